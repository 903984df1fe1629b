"""The best output matrix, the two gradients, and the nearest tokens.

A path is a function from tokens to logits. A row of Q has the shares of the tokens that follow a
frequent token in a text. The KL of a path is the mean of KL(Q || softmax(logits)) over the frequent
tokens. The path "normed" of a model is ln_f(W_E) W_U. Three paths are solved for a text: "scaled"
multiplies the logits of "normed" by the best factor, "least_squares" replaces W_U by a matrix in
closed form, and "solved" replaces W_U by the matrix with the lowest KL, a fit in many steps.

A matrix wte that is tied has two gradients: that of the embedding, and that of the output matrix.
"""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from support.checks import peak_memory
from support.models import SMALL, random_model, some_corpus

from tiedgpt import GPT2, Config
from tiedgpt.errors import ArgumentError, TiedGPTError
from tiedgpt.gpt2.backward import loss_and_gradients
from tiedgpt.gpt2.ops import log_softmax, softmax
from tiedgpt.study import solved
from tiedgpt.study.bigrams import bigrams
from tiedgpt.study.corpus import MIN_COUNT, Corpus
from tiedgpt.study.embeddings import nearest
from tiedgpt.study.gradients import Gradients, gradient_arrays, gradients
from tiedgpt.study.paths import Path, final_norm


def random_problem(n=9, D=4, S=7):
    """Inputs X [n, D], a distribution in each row of Q [n, S], and a first matrix W [D, S]."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, D))
    Q = rng.random((n, S)) ** 3  # the power makes the shares more unequal
    Q /= Q.sum(axis=1, keepdims=True)
    W = rng.standard_normal((D, S))
    return X, Q, W


def mean_kl(X, Q, W) -> float:
    """The mean of KL(Q || softmax(X W)) over the rows."""
    log_Q = np.log(np.where(Q > 0, Q, 1))  # 0 has no logarithm; its factor Q is 0 below
    kl = (Q * (log_Q - log_softmax(X @ W))).sum(axis=1)
    return float(kl.mean())


@pytest.fixture(scope="module")
def best():
    """The fit of random_problem() in many steps, [D, S]."""
    return solved.fit_softmax(*random_problem(), steps=4000)


def test_the_fit_is_where_the_gradient_is_0(best):
    X, Q, _ = random_problem()
    gradient = X.T @ (softmax(X @ best) - Q)
    assert np.abs(gradient).max() < 1e-6


@pytest.mark.parametrize("distance", [1e-3, 0.1, 1])
def test_no_matrix_near_the_fit_is_better(best, distance):
    X, Q, W = random_problem()
    other = best + distance * np.random.default_rng(1).standard_normal(W.shape)
    assert mean_kl(X, Q, other) > mean_kl(X, Q, best)


def test_the_default_number_of_steps_is_enough(best):
    X, Q, W = random_problem()
    by_default = solved.fit_softmax(X, Q, np.zeros_like(W))
    assert mean_kl(X, Q, by_default) < mean_kl(X, Q, best) + 1e-3


def test_the_fit_does_not_depend_on_the_start(best):
    X, Q, W = random_problem()
    fit = solved.fit_softmax(X, Q, -W, steps=3000)
    np.testing.assert_allclose(softmax(X @ fit), softmax(X @ best), atol=1e-4)


def test_the_fit_does_not_depend_on_the_scales_of_the_columns(best):
    X, Q, W = random_problem()
    scaled_X = X * [1e-3, 1.0, 30.0, 1e3]  # one factor for each of the four columns
    scaled_fit = solved.fit_softmax(scaled_X, Q, W, steps=3000)
    np.testing.assert_allclose(softmax(X @ best), softmax(scaled_X @ scaled_fit), atol=1e-4)


def test_a_column_that_is_there_twice_changes_nothing(best):
    X, Q, W = random_problem()
    with_a_copy = np.column_stack([X, X[:, 0]])
    fit = solved.fit_softmax(with_a_copy, Q, np.vstack([W, W[0]]), steps=3000)
    np.testing.assert_allclose(softmax(with_a_copy @ fit), softmax(X @ best), atol=1e-4)


def test_with_more_dimensions_than_rows_no_kl_is_left():
    X, Q, W = random_problem(n=5, D=8)
    fit = solved.fit_softmax(X, Q, W, steps=3000)
    assert mean_kl(X, Q, fit) < 1e-3
    least_squares_fit = solved.least_squares(X, solved.centred_log(Q))
    assert mean_kl(X, Q, least_squares_fit) < 1e-12


def test_a_fit_has_the_precision_of_its_inputs():
    X, Q, W = random_problem()
    fit = solved.fit_softmax(X.astype(np.float32), Q.astype(np.float32), W, steps=2)
    assert fit.dtype == np.float32


def test_without_inputs_the_fit_is_zeros():
    X, Q, W = random_problem(n=0)
    np.testing.assert_array_equal(solved.fit_softmax(X, Q, W), np.zeros_like(W))


def test_inputs_of_zeros_are_fitted_by_zeros():
    X, Q, W = random_problem()
    np.testing.assert_array_equal(solved.fit_softmax(np.zeros_like(X), Q, W), np.zeros_like(W))


@pytest.mark.parametrize("factor", [1e-3, 0.5, 1.0, 40.0])
def test_the_best_factor_is_found(factor):
    scores = np.random.default_rng(0).standard_normal((30, 9)).astype(np.float32)
    Q = softmax(factor * scores)
    assert solved.best_factor(scores, Q) == pytest.approx(factor, rel=1e-3, abs=1e-5)


def test_the_best_factor_is_not_negative():
    scores = np.random.default_rng(0).standard_normal((30, 9)).astype(np.float32)
    assert solved.best_factor(-scores, softmax(scores)) == 0


@dataclass
class SolvedPaths:
    """A model, a text, and the three paths that were solved for them."""

    model: GPT2
    text: Corpus
    paths: dict[str, Path]
    steps: list[int]  # the numbers of steps that the fit reported
    kls: dict[str, float]  # of the solved paths and of the model's own paths, by name


@pytest.fixture(scope="module", params=["tied", "untied"])
def solved_paths(request) -> SolvedPaths:
    model = random_model(SMALL.with_head(request.param))
    text = some_corpus()
    steps = []
    paths = solved.solved_paths(model, text, steps.append)
    scores = bigrams(model, text, others=paths)
    kls = {name: measures["kl"] for name, measures in scores.items()}
    return SolvedPaths(model, text, paths, steps, kls)


def test_three_paths_are_solved(solved_paths):
    assert list(solved_paths.paths) == ["scaled", "least_squares", "solved"]
    assert solved_paths.steps == [1] * solved.STEPS


def test_a_path_with_more_freedom_has_no_higher_kl(solved_paths):
    kls = solved_paths.kls
    assert kls["normed"] >= kls["scaled"]
    assert kls["scaled"] >= kls["solved"]
    assert kls["least_squares"] >= kls["solved"]


def test_the_parts_of_the_kl_of_normed_add_up(solved_paths):
    scores = {name: {"kl": kl} for name, kl in solved_paths.kls.items()}
    parts = solved.missing(scores)  # the scale's part, the head's part and the rank's part
    assert sum(parts.values()) == pytest.approx(solved_paths.kls["normed"])
    assert min(parts.values()) >= 0


def test_the_parts_of_a_kl_are_those_of_the_scale_the_head_and_the_rank():
    scores = {"normed": {"kl": 6.0}, "scaled": {"kl": 3.0}, "solved": {"kl": 1.0}}
    assert solved.missing(scores) == {"scale": 3, "head": 2, "rank": 1}


def inputs_and_shares(model, text):
    """The problem that the path "solved" solves.

    X [n, D] is ln_f of the embeddings of the n frequent tokens. S is the number of tokens that
    occur in the text. Q [n, S] has the share with which each of them follows a frequent token.
    """
    tokens = text.frequent()
    X = final_norm(model, model.W_E[tokens]).astype(np.float64)
    Q = []
    for token in tokens:
        Q.append([text.share(token, successor) for successor in tokens_that_occur(text)])
    return X, np.array(Q)


def tokens_that_occur(text):
    return text.frequent(1)  # once or more


def test_the_solved_path_has_the_kl_of_a_fit_of_its_problem(solved_paths):
    X, Q = inputs_and_shares(solved_paths.model, solved_paths.text)
    start = np.zeros((X.shape[1], Q.shape[1]))
    W = solved.fit_softmax(X, Q, start, steps=1000)
    assert solved_paths.kls["solved"] == pytest.approx(mean_kl(X, Q, W), abs=0.01)


def test_least_squares_is_nearest_to_the_logarithms_of_the_smoothed_counts(solved_paths):
    """To the counts of each row, ten pairs are added that are divided as the text's tokens are."""
    text = solved_paths.text
    seen = tokens_that_occur(text)
    counts = text.table(text.frequent(), seen) + 10 * text.counts[seen] / text.counts.sum()
    logs = np.log(counts)
    X, _ = inputs_and_shares(solved_paths.model, text)
    W = np.linalg.lstsq(X, logs - logs.mean(axis=1, keepdims=True), rcond=None)[0]
    logits = solved_paths.paths["least_squares"](solved_paths.model, text.frequent())
    np.testing.assert_allclose(logits[:, seen], X @ W, rtol=0, atol=1e-4)


def test_a_token_that_is_not_in_the_text_is_impossible(solved_paths):
    text = solved_paths.text
    logits = solved_paths.paths["solved"](solved_paths.model, text.frequent())  # [n, V]
    assert logits.dtype == np.float32, "as the model"
    logits_of_absent_tokens = np.delete(logits, tokens_that_occur(text), axis=1)
    assert logits_of_absent_tokens.size > 0
    assert np.isneginf(logits_of_absent_tokens).all()


def test_the_scaled_path_is_the_best_of_many_factors(solved_paths):
    model = solved_paths.model
    text = solved_paths.text
    X, Q = inputs_and_shares(model, text)
    logits_of_normed = X @ model.W_U[:, tokens_that_occur(text)]
    losses = []
    for factor in np.geomspace(1e-3, 10, 1000):
        losses.append(-(Q * log_softmax(factor * logits_of_normed)).sum())
    logits = solved_paths.paths["scaled"](model, text.frequent())[:, tokens_that_occur(text)]
    loss = -(Q * log_softmax(logits.astype(np.float64))).sum()
    assert loss == pytest.approx(min(losses), rel=1e-4)


def test_the_kl_of_normed_has_no_parts_without_solved_paths(model):
    assert solved.missing(bigrams(model, some_corpus())) is None


def test_a_damaged_layer_norm_is_an_error(model):
    model.parameters["ln_f.bias"][0] = np.nan
    message = "^ln_f of the embeddings is not finite: the checkpoint is damaged$"
    with pytest.raises(TiedGPTError, match=message):
        solved.solved_paths(model, some_corpus())


def test_no_path_is_solved_for_a_corpus_that_is_too_large(model, monkeypatch):
    """Its size is the number of products of a step: n D S."""
    text = some_corpus()
    products = text.frequent().size * SMALL.n_embd * text.frequent(1).size
    monkeypatch.setattr(solved, "MAX_PRODUCTS", products - 1)
    assert solved.solved_paths(model, text) == {}
    monkeypatch.setattr(solved, "MAX_PRODUCTS", products)
    monkeypatch.setattr(solved, "fit_softmax", lambda X, Q, W, progress: W)
    assert len(solved.solved_paths(model, text)) == 3


def test_the_counts_of_a_corpus_come_back_from_a_file(tmp_path):
    text = some_corpus()
    text = replace(text, counts=text.counts * 70_000, pair_counts=text.pair_counts * 70_000)
    text.write(tmp_path / "counts.npz")
    read = Corpus.read(tmp_path / "counts.npz")
    for name in ("counts", "starts", "successors", "pair_counts"):
        np.testing.assert_array_equal(getattr(read, name), getattr(text, name))
        assert getattr(read, name).dtype == np.int64
    assert read.ids.size == 0, "the file has no text"
    Corpus.of(np.arange(70_000), 70_000).write(tmp_path / "large.npz")
    assert Corpus.read(tmp_path / "large.npz").count(69_998, 69_999) == 1
    assert read.frequent(MIN_COUNT).tolist() == text.frequent(MIN_COUNT).tolist()


# A text. The model reads all tokens but the last one, and predicts all tokens but the first one.
IDS = np.array([5, 9, 5, 100, 7])


@dataclass
class TwoGradients:
    """What the study computes for the text IDS, and what an untied copy of the model computes."""

    gradients: Gradients  # of the study
    loss: float  # of the untied copy, as all that follows
    of_embedding: np.ndarray  # [V, D]
    of_output_matrix: np.ndarray  # [V, D]


@pytest.fixture(params=["tied", "untied"])
def two_gradients(request) -> TwoGradients:
    # The study computes the gradients without dropout, whatever the configuration says.
    config = replace(SMALL.with_head(request.param), embd_pdrop=0.5)
    model = random_model(config, dtype=np.float64)
    untied = model
    if model.config.tied:
        untied = model.untie()
    loss, of_copy = loss_and_gradients(untied, IDS[:-1], IDS[1:])
    return TwoGradients(
        gradients=gradients(model, IDS),
        loss=loss,
        of_embedding=of_copy["wte.weight"],
        of_output_matrix=of_copy["lm_head.weight"],
    )


def test_the_lengths_of_the_rows_do_not_depend_on_the_rows_at_once(monkeypatch):
    model = random_model(dtype=np.float64)
    expected = gradients(model, IDS).head_lengths
    monkeypatch.setattr("tiedgpt.study.gradients.ROWS_AT_ONCE", 17)
    np.testing.assert_allclose(gradients(model, IDS).head_lengths, expected, rtol=1e-9)


def test_the_two_gradients_are_those_of_an_untied_copy(two_gradients):
    computed = two_gradients.gradients
    assert computed.loss == pytest.approx(two_gradients.loss)
    rows = [5, 9, 100]  # the tokens of IDS that are read, without the repetition
    assert computed.tokens.tolist() == rows
    np.testing.assert_allclose(computed.d_embed, two_gradients.of_embedding[rows], atol=1e-12)
    np.testing.assert_allclose(computed.d_head, two_gradients.of_output_matrix[rows], atol=1e-12)


def cosine_of(a, b) -> float:
    return a @ b / np.linalg.norm(a) / np.linalg.norm(b)


def test_the_lengths_of_the_gradients_of_each_row(two_gradients):
    of_embedding = two_gradients.of_embedding
    of_output_matrix = two_gradients.of_output_matrix
    embed_lengths, head_lengths, sum_lengths, _ = two_gradients.gradients.by_row()
    np.testing.assert_allclose(embed_lengths, np.linalg.norm(of_embedding, axis=1))
    np.testing.assert_allclose(head_lengths, np.linalg.norm(of_output_matrix, axis=1))
    expected_sum_lengths = np.linalg.norm(of_embedding + of_output_matrix, axis=1)
    np.testing.assert_allclose(sum_lengths, expected_sum_lengths)


def test_the_cosine_of_the_gradients_of_a_row_is_0_if_the_token_was_not_read(two_gradients):
    """Token 9 is in the text, and token 8 is not."""
    _, _, _, cosines = two_gradients.gradients.by_row()
    cosine = cosine_of(two_gradients.of_embedding[9], two_gradients.of_output_matrix[9])
    assert cosines[9] == pytest.approx(cosine)
    assert cosines[8] == 0


def test_the_lengths_and_the_cosine_of_whole_gradients(two_gradients):
    embed = two_gradients.of_embedding.ravel()
    head = two_gradients.of_output_matrix.ravel()
    computed = two_gradients.gradients.lengths_and_cosine()
    assert computed["embed"] == pytest.approx(np.linalg.norm(embed))
    assert computed["head"] == pytest.approx(np.linalg.norm(head))
    assert computed["cosine"] == pytest.approx(cosine_of(embed, head))


def test_the_cosine_with_a_gradient_of_zeros_is_0(two_gradients):
    computed = two_gradients.gradients
    zeros = np.zeros_like(computed.d_head)
    without_head = replace(computed, d_head=zeros, head_lengths=np.zeros(SMALL.vocab_size))
    assert without_head.lengths_and_cosine()["cosine"] == 0
    without_embed = replace(computed, d_embed=np.zeros_like(computed.d_embed))
    assert without_embed.lengths_and_cosine()["cosine"] == 0
    _, _, _, cosines = without_embed.by_row()
    assert not cosines.any()


@pytest.mark.parametrize(
    ("token_count", "message"),
    [
        pytest.param(1, "two tokens or more", id="one-token"),
        pytest.param(
            SMALL.n_ctx + 2,
            "^33 tokens are more than the context of 31 and one$",
            id="more-than-the-context-and-one",
        ),
    ],
)
def test_gradients_of_texts_that_are_too_short_or_too_long(model, token_count, message):
    with pytest.raises(ArgumentError, match=message):
        gradients(model, [1] * token_count)


def test_gradients_of_the_longest_text(model):
    """The model reads n_ctx tokens, and one more is predicted."""
    assert gradients(model, [1] * (SMALL.n_ctx + 1)).loss > 0


def test_the_gradients_of_all_layers_share_the_memory_of_one():
    model = random_model(replace(SMALL, n_layer=12))
    arrays = gradient_arrays(model, d_embed=np.zeros((3, SMALL.n_embd)))
    of_layers = [name for name in arrays if name.startswith("h.")]
    assert len(of_layers) == 12 * 12, "each layer has 12 parameters"
    of_untied = gradient_arrays(model.untie(), d_embed=np.zeros((3, SMALL.n_embd)))
    assert of_untied.keys() == arrays.keys(), "none for W_U"
    for name in of_layers:
        _, _, name_in_layer = name.split(".", maxsplit=2)
        assert arrays[name] is arrays[f"h.0.{name_in_layer}"]


def test_the_scores_of_attention_are_not_kept_for_the_gradients():
    """In this model the patterns [H, T, T] are much larger than all other activations."""
    model = GPT2.random(Config(vocab_size=5, n_ctx=64, n_embd=8, n_head=8, n_layer=8))
    pattern = 4 * 8 * 64 * 64  # its bytes
    peak = peak_memory(gradients, model, [1] * 65)
    assert 8 * pattern < peak < 16 * pattern


def test_gradients_without_layers():
    assert gradients(random_model(replace(SMALL, n_layer=0)), [1, 2, 3]).loss > 0


ROWS = np.array([[1.0, 0.0], [0.0, 0.0], [-3.0, 4.0], [5.0, 0.0]])


@pytest.mark.parametrize("scale", [1, 1 / 1024])
def test_the_nearest_rows_by_their_cosine(scale):
    """Nine rows are asked for, but only three rows are not row 0 itself."""
    tokens, cosines = nearest(scale * ROWS, 0, 9)
    assert tokens.tolist() == [3, 1, 2]
    assert cosines.tolist() == [1.0, 0.0, -0.6]
    tokens, cosines = nearest(scale * ROWS, 3, 9)  # its row is five times as long
    assert dict(zip(tokens.tolist(), cosines.tolist(), strict=True)) == {0: 1.0, 1: 0.0, 2: -0.6}


def test_no_token_is_near_a_row_of_zeros():
    _, cosines = nearest(ROWS, 1, 2)  # two rows; row 1 is zeros
    assert cosines.tolist() == [0, 0]
