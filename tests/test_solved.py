"""The best output matrix, the toy of three words and the two gradients, against plain
computations."""

from dataclasses import replace

import numpy as np
import pytest
from support.models import SMALL, random_model, some_corpus

from tiedgpt.errors import ArgumentError, TiedGPTError
from tiedgpt.gpt2.backward import loss_and_gradients
from tiedgpt.gpt2.ops import log_softmax, softmax
from tiedgpt.study import solved, toy
from tiedgpt.study.bigrams import bigrams
from tiedgpt.study.corpus import MIN_COUNT, Corpus
from tiedgpt.study.gradients import gradients
from tiedgpt.study.paths import final_norm
from tiedgpt.study.similarity import nearest


def problem(n=9, D=4, S=7, seed=0):
    rng = np.random.default_rng(seed)
    X, Q = rng.standard_normal((n, D)), rng.random((n, S)) ** 3
    return X, Q / Q.sum(axis=1, keepdims=True), rng.standard_normal((D, S))


def mean_kl(X, Q, W):
    log_Q = np.log(np.where(Q > 0, Q, 1))
    return float((Q * (log_Q - log_softmax(X @ W))).sum(axis=1).mean())


def test_the_fit_is_where_the_gradient_is_0_and_no_other_matrix_is_better():
    X, Q, W = problem()
    best = solved.fit_softmax(X, Q, W, steps=4000)
    assert abs(X.T @ (softmax(X @ best) - Q)).max() < 1e-6
    rng = np.random.default_rng(1)
    for size in (1e-3, 0.1, 1):
        assert mean_kl(X, Q, best + size * rng.standard_normal(W.shape)) > mean_kl(X, Q, best)
    assert (
        mean_kl(X, Q, solved.fit_softmax(X, Q, 0 * W)) < mean_kl(X, Q, best) + 1e-3
    )  # the usual steps


def test_the_fit_does_not_depend_on_the_coordinates_or_the_start():
    X, Q, W = problem()
    turned = X @ np.diag([1e-3, 1.0, 30.0, 1e3])
    one, other = solved.fit_softmax(X, Q, W, 3000), solved.fit_softmax(turned, Q, -W, 3000)
    np.testing.assert_allclose(softmax(X @ one), softmax(turned @ other), atol=1e-4)


def test_with_enough_dimensions_nothing_is_missed_and_with_0_all_is():
    X, Q, W = problem(n=5, D=8)
    assert mean_kl(X, Q, solved.fit_softmax(X, Q, W, 3000)) < 1e-3
    assert mean_kl(X, Q, solved.least_squares(X, solved.centred_log(Q))) < 1e-12
    assert not solved.fit_softmax(0 * X, Q, W).any()


@pytest.mark.parametrize("factor", [1e-3, 0.5, 1.0, 40.0])
def test_the_best_factor_is_found(factor):
    scores = np.random.default_rng(0).standard_normal((30, 9)).astype(np.float32)
    Q = softmax(factor * scores)
    assert solved.best_factor(scores, Q) == pytest.approx(factor, rel=1e-3, abs=1e-5)
    assert solved.best_factor(-scores, Q) == 0


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_the_paths_and_what_normed_misses(head):
    model, text = random_model(SMALL.with_head(head)), some_corpus()
    steps = []
    paths = solved.solved_paths(model, text, steps.append)
    assert sum(steps) == solved.STEPS
    assert list(paths) == ["scaled", "least_squares", "solved"]
    scores = bigrams(model, text, None, paths)
    kls = [scores[path]["kl"] for path in ("normed", "scaled", "solved")]
    assert kls == sorted(kls, reverse=True)
    assert scores["solved"]["kl"] <= scores["least_squares"]["kl"]
    parts = solved.missing(scores)
    assert sum(parts.values()) == pytest.approx(kls[0])
    assert min(parts.values()) >= 0

    # solved again, by hand, with the whole table
    tokens, seen = text.frequent(), text.frequent(1)
    Q = np.array([[text.share(t, s) for s in seen] for t in tokens])
    X = final_norm(model, model.W_E[tokens]).astype(np.float64)
    W = solved.fit_softmax(X, Q, np.zeros((X.shape[1], seen.size)), 3000)
    assert scores["solved"]["kl"] == pytest.approx(mean_kl(X, Q, W), abs=0.01)
    logits = paths["solved"](model, tokens)
    assert np.isneginf(np.delete(logits, seen, axis=1)).all()
    own = X @ model.W_U[:, seen]
    by_hand = min(float((Q * -log_softmax(a * own)).sum()) for a in np.geomspace(1e-3, 10, 4000))
    found = -float(
        (Q * log_softmax(paths["scaled"](model, tokens)[:, seen].astype(np.float64))).sum()
    )
    assert found == pytest.approx(by_hand, rel=1e-4)


def test_a_damaged_layer_norm_is_an_error_and_a_corpus_too_large_is_not_solved(model, monkeypatch):
    assert solved.missing(bigrams(model, some_corpus())) is None
    model.parameters["ln_f.bias"][0] = np.nan
    with pytest.raises(TiedGPTError, match="not finite: the checkpoint is damaged"):
        solved.solved_paths(model, some_corpus())
    monkeypatch.setattr(solved, "MAX_PRODUCTS", 10)
    assert solved.solved_paths(random_model(), some_corpus()) == {}


def test_the_counts_of_a_corpus_in_a_file(tmp_path):
    text = some_corpus()
    text.write(tmp_path / "counts.npz")
    again = Corpus.read(tmp_path / "counts.npz")
    for name in ("counts", "starts", "successors", "pair_counts"):
        np.testing.assert_array_equal(getattr(again, name), getattr(text, name))
    assert again.ids.size == 0
    assert again.frequent(MIN_COUNT).tolist() == text.frequent(MIN_COUNT).tolist()


def test_the_toy_by_hand():
    W_E, P, ways = np.array(toy.EMBEDDING), np.array(toy.TABLE), toy.solve()
    for name, way in ways.items():
        p = np.exp(way.scores) / np.exp(way.scores).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(way.probabilities, p)
        assert way.kl == pytest.approx((P * np.log(P / p)).sum() / 3)
        norms = [np.linalg.norm(matrix) for matrix in (way.scores - way.scores.T, way.scores)]
        assert way.asymmetry == pytest.approx(norms[0] / norms[1])
        assert (way.asymmetry == 0) == (name == "tied")
    log_P = np.log(P) - np.log(P).mean(axis=1, keepdims=True)
    np.testing.assert_allclose(ways["untied"].W_U, np.linalg.solve(W_E.T @ W_E, W_E.T @ log_P))
    np.testing.assert_allclose(ways["tied"].scores, W_E @ W_E.T)
    kls = [ways[name].kl for name in ("tied", "untied", "fitted", "mlp0")]
    assert kls == sorted(kls, reverse=True), "each has more freedom"
    assert np.round(kls, 2).tolist() == [0.54, 0.31, 0.29, 0.26], "the first two are published"


@pytest.mark.parametrize("W_E", [np.eye(3), toy.embedding_of(toy.TABLE, 2)])
def test_with_three_dimensions_or_a_solved_embedding_the_untied_toy_fits(W_E):
    ways = toy.solve(W_E, 10 * np.array(toy.TABLE))  # rows are divided by their sums
    assert ways["untied"].kl < 1e-12
    assert ways["tied"].kl > 0.5


@pytest.mark.parametrize(
    ("W_E", "P", "message"),
    [
        ([[1, 2]], toy.TABLE, r"got \(1, 2\) and \(3, 3\)"),
        (toy.EMBEDDING, [[0.5, 0.5], [1, 1]], "W_E must be"),
        (toy.EMBEDDING, [[0, 1, 0]] * 3, "above 0"),
        ([[1, np.nan]] * 3, toy.TABLE, "W_E must be a matrix of finite numbers"),
        ("x", toy.TABLE, "W_E must be a matrix"),
    ],
)
def test_matrices_that_the_toy_refuses(W_E, P, message):
    with pytest.raises(ArgumentError, match=message):
        toy.solve(W_E, P)


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_the_two_gradients_are_those_of_an_untied_copy(head):
    model = random_model(replace(SMALL, tied=head == "tied", embd_pdrop=0.5), dtype=np.float64)
    ids = np.array([5, 9, 5, 100, 7])
    found = gradients(model, ids)
    untied = model.untie() if model.config.tied else model
    loss, expected = loss_and_gradients(untied, ids[:-1], ids[1:])
    assert found.loss == pytest.approx(loss)
    assert found.tokens.tolist() == [5, 9, 100]
    np.testing.assert_allclose(found.d_embed, expected["wte.weight"][found.tokens], atol=1e-12)
    np.testing.assert_allclose(found.d_head, expected["lm_head.weight"][found.tokens], atol=1e-12)
    embed, head_ = expected["wte.weight"], expected["lm_head.weight"]
    rows = found.by_row()
    np.testing.assert_allclose(
        rows[:3], [np.linalg.norm(g, axis=1) for g in (embed, head_, embed + head_)]
    )
    assert rows[3, 9] == pytest.approx(embed[9] @ head_[9] / rows[0, 9] / rows[1, 9])
    assert rows[3, 8] == 0
    sizes = {"embed": np.linalg.norm(embed), "head": np.linalg.norm(head_)}
    cosine = (embed * head_).sum() / sizes["embed"] / sizes["head"]
    assert found.whole() == pytest.approx({**sizes, "cosine": cosine})
    assert replace(found, d_embed=0 * found.d_embed).whole()["cosine"] == 0


def test_gradients_refuse_what_has_no_loss():
    for T, message in ((1, "two tokens or more"), (SMALL.n_ctx + 2, "more than the context")):
        with pytest.raises(ArgumentError, match=message):
            gradients(random_model(), [1] * T)
    assert gradients(random_model(), [1] * (SMALL.n_ctx + 1)).loss > 0
    assert gradients(random_model(replace(SMALL, n_layer=0)), [1, 2, 3]).loss > 0


def test_no_token_is_near_a_row_of_zeros():
    rows = np.array([[1.0, 0.0], [0.0, 0.0], [-3.0, 4.0], [5.0, 0.0]])
    assert [x.tolist() for x in nearest(rows, 0, 9)] == [[3, 1, 2], [1.0, 0.0, -0.6]]
    assert nearest(rows, 1, 2)[1].tolist() == [0, 0]
