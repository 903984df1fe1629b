"""Each number of the study against a plain computation of it, and on inputs with a known answer."""

import math
from dataclasses import replace

import numpy as np
import pytest
from support.checks import refuses
from support.models import SMALL, random_model, some_corpus

from tiedgpt import GPT2
from tiedgpt.errors import ArgumentError, TiedGPTError
from tiedgpt.gpt2.parameters import parameter_shapes
from tiedgpt.study import bigrams, direct_path, paths, predictions, similarity
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.report import losses, sample

V = SMALL.vocab_size
UNTIED = SMALL.with_head("untied")
TOKENS = np.array([3, 100, 0, 57, 3])


def table_of(ids, vocab_size) -> np.ndarray:
    """The whole [V, V] table that Corpus keeps sparse."""
    table = np.zeros((vocab_size, vocab_size), int)
    np.add.at(table, (ids[:-1], ids[1:]), 1)
    return table


def test_the_sparse_table_is_the_whole_one():
    text = some_corpus()
    table, every, some = table_of(text.ids, V), np.arange(V), np.array([60, 3, 100, 0])
    for token, row in enumerate(table):
        successors, counts = (array.tolist() for array in text.row(token))
        assert (successors, counts) == (np.flatnonzero(row).tolist(), [*row[row > 0]])
    assert (text.table(every, every) == table).all()
    assert (text.table(some, some[1:]) == table[np.ix_(some, some[1:])]).all()
    assert (text.count(0, 1), text.share(0, 1)) == (table[0, 1], table[0, 1] / table[0].sum())
    assert text.count(V - 1, 0) == text.share(V - 1, 0) == 0 < text.count(0, 1)
    counts = np.bincount(text.ids, minlength=V)
    assert text.counts.tolist() == counts.tolist()
    assert text.frequent().tolist() == np.flatnonzero(counts >= 100).tolist()
    assert 1 < text.frequent().size < text.frequent(1).size < V, (
        "some tokens are frequent and some are not"
    )


def test_a_corpus_without_pairs_and_ids_of_another_vocabulary():
    for ids in ([], [4]):
        text = Corpus.of(ids, 5)
        assert [array.size for array in text.row(4)] == [0, 0]
        assert (text.counts.sum(), text.frequent().size, text.self_prediction()) == (
            len(ids),
            0,
            None,
        )
    for token in (-1, V):
        message = f"token id {token} of the corpus is outside the vocabulary of 101"
        refuses(message, Corpus.of, [0, token, 1], V, error=ArgumentError)


def test_the_share_of_frequent_tokens_that_follow_themselves():
    ids = [t for t in range(9) for _ in range(120)]  # 0 to 8 follow themselves,
    ids += [9, 9, 10] * 60  # and so does 9, although 10 follows it as often
    ids += [10, 11, 12, 13] * 150 + [14] * 80  # 10 to 13 do not; 14 is not frequent
    table, frequent = table_of(ids, 15), range(14)
    expected = np.mean([table[t, t] == table[t].max() for t in frequent])
    text = Corpus.of(np.array(ids), 15)
    assert text.frequent().tolist() == list(frequent)
    assert text.self_prediction() == expected == 10 / 14


def test_an_average_over_too_few_frequent_tokens_is_not_reported():
    model = random_model()
    for frequent, reported in ((9, False), (10, True)):
        text = Corpus.of(np.arange(V).repeat(np.where(np.arange(V) < frequent, 100, 99)), V)
        assert text.frequent().size == frequent
        numbers = [
            direct_path.direct_path(model, text)["self_prediction_frequent"],
            text.self_prediction(),
        ]
        assert [number is not None for number in [*numbers, bigrams.bigrams(model, text)]] == [
            reported
        ] * 3


def first_layers(model: GPT2, n_layer: int, **changed) -> GPT2:
    config = replace(model.config, n_layer=n_layer)
    parameters = model.parameters | changed
    return GPT2(config, {name: parameters[name] for name in parameter_shapes(config)})


@pytest.mark.parametrize("config", [SMALL, UNTIED])
def test_each_path_is_a_smaller_model(config):
    """normed has no layers, mlp0 has one whose attention adds nothing; both have no position."""
    model = random_model(config, dtype=np.float64)
    zeros = {name: np.zeros_like(array) for name, array in model.parameters.items()}
    absent = {
        name: zeros[name]
        for name in ("wpe.weight", "h.0.attn.c_proj.weight", "h.0.attn.c_proj.bias")
    }
    no_layers, one_layer = (first_layers(model, n_layer, **absent) for n_layer in (0, 1))
    expected = {
        "raw": (model.W_E @ model.W_U)[TOKENS],
        "normed": no_layers(TOKENS[:, None])[:, 0],
        "mlp0": one_layer(TOKENS[:, None])[:, 0],
        "model": [model([token])[0] for token in TOKENS],
    }
    for name, path in paths.paths_of(model).items():
        np.testing.assert_allclose(
            path(model, TOKENS), expected[name], rtol=1e-12, atol=1e-12, err_msg=name
        )
        assert path(random_model(config), TOKENS).dtype == np.float32, name
    assert list(paths.paths_of(model)) == ["raw", "normed", "mlp0", "model"]
    assert list(paths.paths_of(no_layers)) == ["raw", "normed", "model"]
    assert (
        np.abs(paths.whole_model(first_layers(model, 0), TOKENS) - expected["normed"]).max() > 0.1
    )


def test_log_softmax_of_very_large_logits():
    log_p = paths.log_probabilities(
        np.array([[0.0, -5000.0, 0.0], [-np.inf, 1.0, 1.0]], np.float32)
    )
    log_half = -math.log(2)
    np.testing.assert_allclose(
        log_p, [[log_half, -5000 + log_half, log_half], [-np.inf, log_half, log_half]]
    )
    with pytest.raises(TiedGPTError, match="not finite numbers: its checkpoint is damaged"):
        paths.log_probabilities(np.array([1.0, np.nan]))


@pytest.mark.parametrize("nearly_tied", [False, True])
def test_asymmetry_is_that_of_the_whole_matrix(monkeypatch, nearly_tied):
    monkeypatch.setattr(direct_path, "ROWS_AT_ONCE", 17)
    model = random_model(UNTIED)
    if nearly_tied:  # rounding must not drown what is left
        model.parameters["lm_head.weight"][:] = model.W_E
        model.parameters["lm_head.weight"][5, 3] += 1e-6
    A = model.W_E.astype(np.float64) @ model.W_U.astype(np.float64)
    expected = np.linalg.norm(A - A.T) / np.linalg.norm(A)
    assert (1e-9 < expected < 1e-7) == nearly_tied
    found = direct_path.asymmetry(model.W_E, model.W_U)
    assert found == pytest.approx(expected, rel=1e-6 if nearly_tied else 1e-12)


def test_tied_is_exactly_symmetric(model):
    for tied in (model, model.untie("copy"), model.untie("zeros")):  # 0 = 0^T
        assert direct_path.asymmetry(tied.W_E, tied.W_U) == 0.0


def test_self_prediction_is_that_of_the_whole_matrix(monkeypatch):
    monkeypatch.setattr(paths, "MAX_LOGITS", 7 * V)
    for model in (random_model(), random_model(UNTIED), random_model(SMALL, seed=2)):
        best = (model.W_E @ model.W_U).argmax(axis=1)
        done = []
        text = Corpus.of(
            np.repeat(np.arange(V), np.where(np.arange(V) % 2, 100, 99)), V
        )  # odd ones frequent
        report = direct_path.direct_path(model, text, done.append)
        itself = best == np.arange(V)
        assert report["self_prediction"] == itself.mean()
        assert report["self_prediction_frequent"] == itself[1::2].mean()
        assert sum(done) == V
    assert direct_path.direct_path(model, Corpus.of([0, 1], V))["self_prediction_frequent"] is None


def test_a_damaged_matrix_is_an_error(model):
    model.parameters["wte.weight"][7, 2] = np.nan
    with pytest.raises(
        TiedGPTError, match="holds a number that is not finite: the checkpoint is damaged"
    ):
        direct_path.direct_path(model)


def brute_force(logits, table, token):
    """The four measures of one row, from whole arrays and their definitions."""
    p = np.exp(logits - logits.max())
    p /= p.sum()
    counts = table[token]
    q = counts / counts.sum()
    there = counts > 0
    answer = {"kl": (q[there] * np.log(q[there] / p[there])).sum()}
    answer["mrr"] = sum(share / (1 + sum(p > p[t])) for t, share in enumerate(q))
    for k in (1, 5):
        least = max(np.sort(counts)[-k], 1)
        of = min(k, np.count_nonzero(there))
        answer[f"top{k}"] = sum(counts[t] >= least for t in np.argsort(-p)[:k]) / of
    return answer


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_bigrams_are_those_of_the_definitions(head, monkeypatch):
    monkeypatch.setattr(paths, "MAX_LOGITS", 4 * V)
    text = some_corpus()
    table, model = table_of(text.ids, V), random_model(SMALL.with_head(head), dtype=np.float64)
    done = []
    report = bigrams.bigrams(model, text, done.append)
    assert list(report) == ["unigram", "raw", "normed", "mlp0", "model"]
    assert sum(done) == 5 * text.frequent().size
    with np.errstate(divide="ignore"):
        unigram = np.log(np.bincount(text.ids, minlength=V))
    known = {**paths.PATHS, "unigram": lambda _, tokens: [unigram] * tokens.size}
    for name, scores in report.items():
        rows = [
            brute_force(known[name](model, np.array([t]))[0], table, t) for t in text.frequent()
        ]
        assert list(scores) == ["top1", "top5", "mrr", "kl"]
        for measure, value in scores.items():
            expected = np.mean([row[measure] for row in rows])
            assert value == pytest.approx(expected, rel=1e-9), (name, measure)


def test_ties_and_tokens_with_few_successors():
    log_p = np.log([0.4, 0.3, 0.15, 0.1, 0.04, 0.01])
    tie = np.array([1, 5]), np.array([50, 50])
    assert bigrams.overlap(log_p, *tie, 1) == 0
    assert bigrams.overlap(log_p, *tie, 5) == 1 / 2, "two successors are asked for, one is found"
    assert bigrams.overlap(log_p, np.array([0, 3]), np.array([50, 50]), 1) == 1, (
        "either is the commonest"
    )


def test_spearman_is_pearson_of_average_ranks():
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 9, 60), rng.standard_normal(60)
    place = [(x < a).sum() + ((x == a).sum() + 1) / 2 for a in x]
    rank_y = np.argsort(np.argsort(y))
    assert similarity.spearman(x, y) == pytest.approx(np.corrcoef(place, rank_y)[0, 1], rel=1e-12)
    assert similarity.spearman(y, -(y**3)) == pytest.approx(-1)
    for nothing in ((y, np.ones(60)), (np.ones(60), y), (y[:0], y[:0])):
        assert similarity.spearman(*nothing) is None


def test_the_cosines_of_a_row_of_zeros_are_0():
    assert similarity.cosines(np.array([[3.0, 4.0], [0.0, 0.0], [6.0, 8.0]])) == pytest.approx(
        [0, 1, 0]
    )


def test_similarity_is_invariant_to_rotation():
    """In out_tied's place W_U is the tied matrix in other coordinates; in in_tied's, W_E is
    unrelated."""
    model = random_model(replace(UNTIED, vocab_size=211), dtype=np.float64)
    tied = np.random.default_rng(1).standard_normal(model.W_E.shape)
    rotation = np.linalg.qr(model.W_E[: SMALL.n_embd])[0]
    model.parameters["lm_head.weight"][:] = tied @ rotation
    report = similarity.embeddings(model, tied_W_E=tied)
    assert report["out_tied"] == pytest.approx(1)
    assert abs(report["in_tied"]) < 0.05
    assert report["in_out"] == pytest.approx(report["in_tied"])
    report = similarity.embeddings(model.tie(), some_corpus())
    assert report["in_out"] == pytest.approx(1)
    assert report["in_tied"] is report["out_tied"] is None


def test_the_tokens_compared_are_of_the_corpus_and_at_most_max_tokens():
    assert similarity.sampled_tokens(5).tolist() == [0, 1, 2, 3, 4]
    assert similarity.sampled_tokens(5, Corpus.of([3, 1, 3], 5)).tolist() == [1, 3]
    drawn = similarity.sampled_tokens(50257)
    assert drawn.tolist() == sorted(set(drawn.tolist()))
    assert (drawn.size, drawn.tolist()) == (2048, similarity.sampled_tokens(50257).tolist())


@pytest.mark.parametrize("config", [SMALL, UNTIED])
def test_each_layer_predicts_as_a_model_of_the_layers_up_to_it(config):
    model = random_model(config, dtype=np.float64)
    layers = predictions.lens(model, TOKENS, k=4)
    assert [layer.name for layer in layers] == ["resid_pre.0", "resid_post.0", "resid_post.1"]
    for n_layer, layer in enumerate(layers):
        logits = first_layers(model, n_layer)(TOKENS)
        expected = np.argsort(-logits, axis=1)[:, :4]
        np.testing.assert_array_equal(layer.tokens, expected)
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        np.testing.assert_allclose(
            layer.probabilities, np.take_along_axis(p, expected, axis=1), rtol=1e-9
        )


@pytest.mark.parametrize("threads", [1, 2])
def test_the_end_of_a_lens_is_the_end_of_the_whole_one(model, monkeypatch, threads):
    monkeypatch.setattr(
        "tiedgpt.inference.evaluation.split_work", lambda *_: (threads, 4)
    )  # four rows each
    both = zip(
        predictions.lens(model, TOKENS, 3), predictions.lens(model, TOKENS, 3, last=2), strict=True
    )
    for whole, end in both:
        assert (whole.name, whole.tokens[-2:].tolist()) == (end.name, end.tokens.tolist())
        np.testing.assert_allclose(whole.probabilities[-2:], end.probabilities, rtol=1e-5)
    (layer,) = predictions.lens(GPT2.random(replace(SMALL, n_layer=0, vocab_size=3)), [0, 2], k=5)
    assert layer.tokens.shape == layer.probabilities.shape == (2, 3)


def test_losses_under_both_heads():
    model = random_model(UNTIED, dtype=np.float64)
    ids = some_corpus().ids[:30]
    done = []
    report = losses(model, ids, done.append)
    final = model.final(ids[:-1])
    for name, W_U in (("own", model.W_U), ("swapped", model.W_E.T)):
        logits = final @ W_U
        p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
        assert report[name] == pytest.approx(-np.log(p[np.arange(29), ids[1:]]).mean(), rel=1e-9)
    assert (report["tokens"], report["uniform"]) == (29, pytest.approx(math.log(V)))
    tied = {**report, "own": pytest.approx(report["swapped"]), "swapped": None}
    assert losses(model.tie(), ids) == tied
    assert sum(done) == 2 * 30, "once for each head"
    assert losses(model, ids[:1]) is None


def test_the_sample_of_a_long_text_is_windows_of_its_end(monkeypatch):
    monkeypatch.setattr("tiedgpt.study.report.MAX_LOSS_TOKENS", 40)
    assert sample(np.arange(30), 8).tolist() == list(range(30))
    assert sample(np.arange(300), 8).tolist() == list(range(260, 300))
    windows = sample(np.arange(1000), 8).reshape(5, 8)
    assert (windows[0, 0], windows[-1, -1]) == (900, 999)
    assert (np.diff(windows) == 1).all(), "whole windows"
    assert set(np.diff(windows[:, 0])) == {23}, "evenly spread"


def test_logits_that_are_not_finite_are_an_error(model):
    model.parameters["h.0.mlp.c_fc.bias"][0] = np.nan
    with pytest.raises(TiedGPTError, match=r"logits are not finite numbers: .* damaged"):
        losses(model, TOKENS)


def test_a_loss_that_is_not_finite_is_an_error():
    model = random_model(UNTIED)
    logits = model([0])[-1]
    unlikeliest = int(logits.argmin())
    # All logits are finite, but the difference of the highest and the lowest is not.
    model.parameters["lm_head.weight"] *= 3e38 / np.abs(logits).max()
    message = r"the loss is not a finite number: .* damaged"
    with np.errstate(over="ignore"), pytest.raises(TiedGPTError, match=message):
        losses(model, np.array([0, unlikeliest]))
