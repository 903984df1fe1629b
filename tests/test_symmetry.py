"""The floor of a symmetric A; the fits, chains and calibrated paths of the tying experiment."""

import math

import numpy as np
import pytest
from support.models import SMALL, random_model, some_corpus
from tying import calibrated, chains, fits  # of scripts/

from tiedgpt import GPT2, Config
from tiedgpt.gpt2.ops import softmax
from tiedgpt.study import paths
from tiedgpt.study.bigrams import bigrams
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.direct_path import jsd_floor

V = SMALL.vocab_size


def random_pairs(n=9, seed=0, ids=400) -> np.ndarray:
    """The counts of pairs in a closed walk: each token is as often the first as the second."""
    rng = np.random.default_rng(seed)
    walk = ((rng.random(ids) ** 2 * n).astype(int).cumsum() + rng.integers(0, 2, ids)) % n
    pairs = np.zeros((n, n))
    np.add.at(pairs, (walk, np.roll(walk, -1)), 1)
    return pairs


def excess_of(pairs, A) -> float:
    """The excess from its definition."""
    M, there = pairs / pairs.sum(), pairs > 0
    return float(M[there] @ np.log((M / M.sum(axis=1, keepdims=True))[there] / softmax(A)[there]))


def corpus_of(pairs, counts) -> Corpus:
    """A text with these counts, or shares, of pairs and of tokens."""
    first, second = np.nonzero(pairs)
    starts = np.searchsorted(first, np.arange(len(pairs) + 1))
    return Corpus(np.empty(0), counts, starts, second, pairs[first, second])


def floor_of(pairs) -> float:
    return jsd_floor(corpus_of(pairs, pairs.sum(axis=1)))


@pytest.mark.parametrize("seed", range(2))
def test_the_floor_is_what_a_convex_fit_of_all_symmetric_matrices_finds(seed):
    pairs = random_pairs(6, seed) + 1
    M = pairs / pairs.sum()
    m, floor = M.sum(axis=1, keepdims=True), floor_of(pairs)
    assert excess_of(pairs, np.log(M + M.T)) == pytest.approx(floor, abs=1e-12)
    assert floor > 0.005
    A, bias = (
        np.zeros_like(M),
        np.random.default_rng(seed).standard_normal(6),
    )  # the next token's: no help
    for _ in range(2_000):
        dA = m * softmax(A + bias) - M
        A -= (dA + dA.T) / (m + m.T)
        bias -= dA.sum(axis=0) / m[:, 0] / 4
    assert excess_of(pairs, A + bias) == pytest.approx(floor, abs=1e-9)


def test_the_floor_of_known_tables_and_its_bounds():
    pairs = random_pairs()
    M = pairs / pairs.sum()
    there = (M > 0) & (M != M.T)
    by_definition = (M[there] * np.log(2 * M[there] / (M + M.T)[there])).sum()
    assert floor_of(pairs) == pytest.approx(by_definition) == pytest.approx(floor_of(7 * M))
    assert floor_of(pairs.T) == pytest.approx(by_definition)
    assert floor_of(pairs + pairs.T) == 0
    assert floor_of(np.roll(np.eye(7), 1, axis=1)) == pytest.approx(math.log(2))
    assert floor_of(np.zeros((3, 3))) == 0
    text, every = some_corpus(), np.arange(V)
    assert jsd_floor(text) == pytest.approx(
        floor_of(text.table(every, every).astype(float)), rel=1e-12
    )
    assert 0.05 < jsd_floor(text) < math.log(2)


@pytest.mark.parametrize(("D", "seed"), [(2, 0), (12, 0), (12, 1)])
def test_no_symmetric_fit_is_below_the_floor_and_each_freedom_helps(D, seed):
    pairs = random_pairs(12, seed)
    floor = floor_of(pairs)
    kls = fits.fit_families(pairs, D, seed=seed, steps=600)
    assert list(kls) == list(fits.FAMILIES)
    assert min(kls["signed"], kls["tied"]) > floor - 1e-5
    assert kls["untied"] > -1e-5
    if D == 12:
        assert kls["untied"] < 5e-3
        assert kls["signed"] == pytest.approx(floor, abs=0.02)
        assert kls["tied"] > floor + 0.02, "it is positive semi-definite"


def test_a_tied_model_without_layers_is_not_bound_by_the_floor_because_of_ln_f():
    pairs = random_pairs(12, 1)
    parts, found = fits.fit("ln_f", pairs / pairs.sum(), 12, 600)
    config = Config(vocab_size=12, n_embd=12, n_head=1, n_layer=0, n_ctx=8)
    norm = {"ln_f.weight": parts["gains"], "ln_f.bias": parts["bias"]}
    model = GPT2(config, {"wte.weight": parts["W_E"], "wpe.weight": np.zeros((8, 12)), **norm})
    kl = excess_of(pairs, model(np.arange(12)[:, None])[:, 0])
    assert kl == pytest.approx(found)
    assert kl < floor_of(pairs) / 2
    assert excess_of(pairs, paths.raw(model, np.arange(12))) > floor_of(pairs)


@pytest.mark.parametrize(
    ("size", "jsd"), [(24, 0), (33, 0.05), (24, 0.3), (33, 0.6), (24, math.log(2))]
)
def test_a_chain_has_the_chosen_jsd_and_all_have_one_entropy(size, jsd):
    P = chains.markov_chain(size, jsd, np.random.default_rng(size))
    np.testing.assert_allclose([P.sum(axis=0), P.sum(axis=1)], 1, atol=1e-9)
    assert P.min() >= 0
    assert floor_of(P) == pytest.approx(jsd, abs=1e-9)
    by_row = [-(row[row > 0] * np.log(row[row > 0])).sum() for row in P]
    assert np.mean(by_row) == pytest.approx(math.log(size) / 2, abs=1e-9)
    assert chains.entropy(P) == pytest.approx(np.sum(by_row))


def test_chains_of_one_seed_have_the_same_pairs_which_follow_no_circle():
    """On a circle, the tokens that follow a token are in one order, so no three of them are in a
    triangle."""
    reversible, cyclic = (
        chains.markov_chain(17, jsd, np.random.default_rng(4)) for jsd in (0, math.log(2))
    )
    np.testing.assert_allclose(reversible, reversible.T)
    allowed = cyclic > 1e-12
    assert (allowed <= (reversible > 0)).all()
    for size in (17, 24):
        allowed = chains.tournament(size, np.random.default_rng(4))
        assert size != 17 or ((cyclic > 1e-12) <= allowed).all()
        assert not (allowed & allowed.T).any()
        assert {*allowed.sum(axis=0)} == {*allowed.sum(axis=1)} == {(size - 1) // 2}
        for row in allowed:
            among = allowed[np.ix_(row, row)].astype(int)
            assert np.trace(among @ among @ among) > 0


def test_a_long_sample_has_the_chains_pairs():
    P = chains.markov_chain(16, 0.4, np.random.default_rng(0))
    ids = chains.sample(P, 100_000, np.random.default_rng(1))
    text = Corpus.of(ids, 16)
    assert jsd_floor(text) == pytest.approx(0.4, abs=0.01)
    every = np.arange(16)
    np.testing.assert_allclose(
        text.table(every, every) / text.pair_counts.sum(), P / 16, atol=0.003
    )


def test_the_scale_and_the_weight_are_those_that_made_the_table():
    rng = np.random.default_rng(0)
    x, log_u = (
        50 * rng.standard_normal((40, 9)).astype(np.float32),
        rng.standard_normal(9).astype(np.float32),
    )
    Q = softmax(0.03 * x + 0.7 * log_u)
    np.testing.assert_allclose(calibrated.fit(x, log_u, Q), [0.03, 0.7], rtol=0.01)
    scale, weight = calibrated.fit(-x, log_u, Q)
    assert scale == 0
    grid = [(excess_of(Q, np.tile(w * log_u, (40, 1))), w) for w in np.linspace(0, 2, 401)]
    assert weight == pytest.approx(min(grid)[1], abs=0.01), "the best without the path"


def test_each_half_of_the_tokens_is_calibrated_by_the_other():
    model, text = random_model(SMALL.with_head("untied")), some_corpus()
    tokens = text.frequent()
    before = calibrated.calibrate(paths.raw, model, text)(model, tokens)
    # shuffle what follows each token of the second half; the counts of tokens stay
    table, seen = text.table(np.arange(V), np.arange(V)), text.frequent(1)
    rng = np.random.default_rng(0)
    for token in tokens[1::2]:
        table[token, seen] = rng.permutation(table[token, seen])
    shuffled = corpus_of(table.astype(int), text.counts)
    after = calibrated.calibrate(paths.raw, model, shuffled)(model, tokens)
    np.testing.assert_array_equal(before[1::2], after[1::2])
    assert not np.allclose(before[::2], after[::2])


def test_a_path_that_has_the_pairs_at_another_scale_has_no_kl_left():
    text = some_corpus()
    seen, A = text.frequent(1), np.zeros((V, V))
    A[np.ix_(seen, seen)] = 7 * np.log(text.table(seen, seen) / text.counts[seen] + 1e-3)
    config = Config(vocab_size=V, n_embd=V, n_head=1, n_layer=0, n_ctx=8, tied=False)
    others = random_model(config, dtype=np.float64).parameters
    model = GPT2(config, {**others, "wte.weight": np.eye(V), "lm_head.weight": A.T.copy()})
    found = calibrated.calibrated_paths(model, text)
    assert list(found) == ["raw+unigram", "normed+unigram", "model+unigram"]
    scores = bigrams(model, text, None, found)
    assert scores["raw"]["kl"] > 1 > 0.05 > scores["raw+unigram"]["kl"]
    assert scores["raw+unigram"]["top1"] > 0.95 > scores["unigram"]["top1"]
    logits = found["raw+unigram"](model, text.frequent())
    assert np.isneginf(np.delete(logits, seen, axis=1)).all(), "tokens that are not in the text"
