"""The floor of a symmetric A; the fits, chains and calibrated paths of the tying experiment.

A [V, V] has a score for each pair: how likely the second token (a column) is after the first (a
row). The excess of A is the mean of KL(shares of next tokens in a text || softmax(A)). The floor is
the lowest excess of any symmetric A. It is equal to the JSD: the Jensen-Shannon divergence between
the pairs of neighbours in the text and the reversed pairs. A fit finds an A with a low excess in
one family of matrices:

    "untied"  W_E W_U           "signed"  W_E G W_E^T, G diagonal with gains of either sign
    "tied"    W_E W_E^T         "ln_f"    ln_f(W_E) W_E^T

A chain is a Markov chain: a table P [V, V] with the probability of each next token, made with a
chosen JSD. A path is a function from tokens to logits. The unigram is the share of each token in a
text. A calibrated path is scale * logits + weight * log(unigram), with the best two numbers.
"""

import math
from dataclasses import dataclass

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


def random_pairs(V=9, seed=0) -> np.ndarray:
    """Counts of pairs of neighbours in a random text of 400 tokens.

    The first token also comes after the last one, so that each token is as often the first of a
    pair as the second. Some pairs are much more frequent than others.
    """
    rng = np.random.default_rng(seed)
    steps = (V * rng.random(400) ** 2).astype(int)  # the square makes short steps likelier
    text = (steps.cumsum() + rng.integers(0, 2, 400)) % V
    pairs = np.zeros((V, V))
    for first, second in zip(text, np.roll(text, -1), strict=True):
        pairs[first, second] += 1
    return pairs


def excess_of(pairs, A) -> float:
    """The excess of A by its definition: the mean over all pairs of log(p / softmax(A))."""
    shares = pairs / pairs.sum()
    p = shares / shares.sum(axis=1, keepdims=True)  # of the second token after the first
    occurs = shares > 0
    log_ratios = np.log(p[occurs] / softmax(A)[occurs])
    return float(shares[occurs] @ log_ratios)


def corpus_of(pairs, counts) -> Corpus:
    """A corpus with these counts (or shares) of pairs and of tokens, but without a text."""
    first, second = np.nonzero(pairs)  # in the order of the first tokens
    starts = np.searchsorted(first, np.arange(len(pairs) + 1))  # of each first token's pairs
    no_ids = np.empty(0)
    return Corpus(no_ids, counts, starts, second, pairs[first, second])


def floor_of(pairs) -> float:
    counts_of_tokens = pairs.sum(axis=1)
    return jsd_floor(corpus_of(pairs, counts_of_tokens))


@pytest.mark.parametrize("seed", [0, 1])
def test_the_excess_of_the_best_symmetric_matrix_is_the_floor(seed):
    pairs = random_pairs(6, seed) + 1  # no count is 0, so that each has a logarithm
    A = np.log(pairs + pairs.T)  # the best one, in closed form
    assert floor_of(pairs) > 0.005
    assert excess_of(pairs, A) == pytest.approx(floor_of(pairs), abs=1e-12)


@pytest.mark.parametrize("seed", [0, 1])
def test_gradient_descent_over_symmetric_matrices_ends_at_the_floor(seed):
    """A bias for each next token is fitted too; it does not lower the excess below the floor."""
    pairs = random_pairs(6, seed) + 1
    shares = pairs / pairs.sum()
    token_shares = shares.sum(axis=1, keepdims=True)
    A = np.zeros((6, 6))
    bias = np.random.default_rng(seed).standard_normal(6)
    for _ in range(2_000):
        gradient = token_shares * softmax(A + bias) - shares  # of the excess, for A + bias
        symmetric_gradient = gradient + gradient.T  # A stays symmetric
        # Rare tokens have small gradients. The step sizes are divided by the shares of the tokens,
        # so that rare tokens move as far as frequent ones.
        A -= symmetric_gradient / (token_shares + token_shares.T)
        bias -= gradient.sum(axis=0) / (4 * token_shares[:, 0])
    assert excess_of(pairs, A + bias) == pytest.approx(floor_of(pairs), abs=1e-9)


def test_the_floor_by_its_definition():
    """It is KL(M || mean), where M has the shares of the pairs, and mean = (M + M^T) / 2."""
    pairs = random_pairs()
    M = pairs / pairs.sum()
    mean = (M + M.T) / 2
    occurs = M > 0
    definition = (M[occurs] * np.log(M[occurs] / mean[occurs])).sum()
    assert floor_of(pairs) == pytest.approx(definition)


def test_the_floor_depends_on_the_shares_of_pairs_alone():
    pairs = random_pairs()
    assert floor_of(7 * pairs) == pytest.approx(floor_of(pairs))


def test_the_floor_is_the_same_for_the_reversed_text():
    pairs = random_pairs()
    assert floor_of(pairs.T) == pytest.approx(floor_of(pairs))


def test_the_floor_of_symmetric_pairs_is_0():
    pairs = random_pairs()
    assert floor_of(pairs + pairs.T) == 0


def test_the_floor_of_pairs_in_one_order_only_is_ln_2():
    circle = np.roll(np.eye(7), 1, axis=1)  # token n is followed by token n + 1
    assert floor_of(circle) == pytest.approx(math.log(2))


def test_the_floor_without_pairs_is_0():
    assert floor_of(np.zeros((3, 3))) == 0


def test_the_floor_of_a_sparse_corpus_is_that_of_its_table():
    text = some_corpus()
    table = text.table(np.arange(V), np.arange(V)).astype(np.float64)
    assert jsd_floor(text) == pytest.approx(floor_of(table), rel=1e-12)
    assert 0.05 < jsd_floor(text) < math.log(2)


@pytest.mark.parametrize(
    ("D", "seed"),
    [
        pytest.param(2, 0, id="rank-2"),
        pytest.param(12, 0, id="full-rank"),
        pytest.param(12, 1, id="full-rank-of-another-text"),
    ],
)
def test_no_symmetric_fit_is_below_the_floor(D, seed):
    pairs = random_pairs(12, seed)
    excesses = fits.fit_families(pairs, D, seed=seed, steps=600)
    assert list(excesses) == list(fits.FAMILIES)
    rounding = 1e-5
    assert excesses["signed"] > floor_of(pairs) - rounding
    assert excesses["tied"] > floor_of(pairs) - rounding
    assert excesses["untied"] > -rounding, "no excess is below 0"


@pytest.mark.parametrize("seed", [0, 1])
def test_at_full_rank_untied_reaches_0_signed_the_floor_and_tied_neither(seed):
    pairs = random_pairs(12, seed)
    floor = floor_of(pairs)
    excesses = fits.fit_families(pairs, D=12, seed=seed, steps=600)
    assert excesses["untied"] < 5e-3, "it can be any matrix"
    assert excesses["signed"] == pytest.approx(floor, abs=0.02), "it can be any symmetric matrix"
    assert excesses["tied"] > floor + 0.02, "it has no negative eigenvalues"


def test_with_ln_f_a_tied_model_without_layers_is_below_the_floor():
    """The position embedding is 0. At full rank, 12 tokens have 12 dimensions."""
    pairs = random_pairs(12, seed=1)
    shares = pairs / pairs.sum()
    parts, excess = fits.fit("ln_f", shares, D=12, steps=600)
    parameters = {
        "wte.weight": parts["W_E"],
        "wpe.weight": np.zeros((8, 12)),
        "ln_f.weight": parts["gains"],
        "ln_f.bias": parts["bias"],
    }
    model = GPT2(Config(vocab_size=12, n_embd=12, n_head=1, n_layer=0, n_ctx=8), parameters)
    every_token = np.arange(12)
    logits = model(every_token[:, np.newaxis])[:, 0]
    assert excess_of(pairs, logits) == pytest.approx(excess)
    assert excess < floor_of(pairs) / 2
    logits_without_ln_f = paths.raw(model, every_token)
    assert excess_of(pairs, logits_without_ln_f) > floor_of(pairs)


each_chain = pytest.mark.parametrize(
    ("size", "jsd"),
    [
        pytest.param(24, 0, id="24-reversible"),
        pytest.param(33, 0.05, id="33-nearly-reversible"),
        pytest.param(24, 0.3, id="24-middle"),
        pytest.param(33, 0.6, id="33-nearly-one-sided"),
        pytest.param(24, math.log(2), id="24-one-sided"),
    ],
)


def chain_of(size, jsd) -> np.ndarray:  # -> [size, size]
    return chains.markov_chain(size, jsd, np.random.default_rng(4))


@each_chain
def test_the_rows_and_columns_of_a_chain_add_up_to_1(size, jsd):
    P = chain_of(size, jsd)
    assert P.min() >= 0
    np.testing.assert_allclose(P.sum(axis=0), 1, atol=1e-9)
    np.testing.assert_allclose(P.sum(axis=1), 1, atol=1e-9)


@each_chain
def test_a_chain_has_the_chosen_jsd(size, jsd):
    assert floor_of(chain_of(size, jsd)) == pytest.approx(jsd, abs=1e-9)


def entropies_of_rows(P) -> list[float]:
    """The entropy of each row of shares, in nats."""
    entropies = []
    for row in P:
        p = row[row > 0]
        entropies.append(-(p * np.log(p)).sum())
    return entropies


@each_chain
def test_all_chains_of_a_size_have_the_same_entropy(size, jsd):
    """The mean entropy of a row is log(size) / 2."""
    P = chain_of(size, jsd)
    assert np.mean(entropies_of_rows(P)) == pytest.approx(math.log(size) / 2, abs=1e-9)


@each_chain
def test_the_entropy_of_a_table_is_the_sum_of_the_entropies_of_its_rows(size, jsd):
    P = chain_of(size, jsd)
    assert chains.entropy(P) == pytest.approx(sum(entropies_of_rows(P)))


def test_chains_of_one_seed_have_the_same_pairs():
    """A one-sided chain has only allowed pairs; a reversible chain also has them reversed."""
    reversible = chain_of(17, 0)
    one_sided = chain_of(17, math.log(2))
    np.testing.assert_allclose(reversible, reversible.T)
    occurs = one_sided > 1e-12  # smaller probabilities are rounding errors
    assert (reversible[occurs] > 0).all()
    allowed = chains.tournament(17, np.random.default_rng(4))  # the seed of chain_of
    assert allowed[occurs].all()


@pytest.mark.parametrize("size", [17, 24])
def test_each_token_has_equally_many_allowed_pairs_and_none_in_both_orders(size):
    allowed = chains.tournament(size, np.random.default_rng(4))
    assert not (allowed & allowed.T).any()
    half_of_the_other_tokens = (size - 1) // 2
    assert set(allowed.sum(axis=0)) == {half_of_the_other_tokens}  # as the second of a pair
    assert set(allowed.sum(axis=1)) == {half_of_the_other_tokens}  # as the first of a pair


@pytest.mark.parametrize("size", [17, 24])
def test_the_allowed_pairs_do_not_follow_a_circle(size):
    """Some three successors of each token are a triangle: a, b and c with pairs ab, bc and ca.

    If all pairs led a few steps forward on one circle, no three successors would be a triangle.
    """
    allowed = chains.tournament(size, np.random.default_rng(4))
    for is_successor in allowed:
        among_successors = allowed[np.ix_(is_successor, is_successor)].astype(int)
        # The third power counts walks of three pairs. On its diagonal, they end where they began.
        triangles = np.trace(np.linalg.matrix_power(among_successors, 3))
        assert triangles > 0


def test_a_long_sample_has_the_pairs_of_its_chain():
    P = chains.markov_chain(16, 0.4, np.random.default_rng(0))
    ids = chains.sample(P, 100_000, np.random.default_rng(1))
    text = Corpus.of(ids, 16)
    shares = text.table(np.arange(16), np.arange(16)) / text.pair_counts.sum()
    share_of_each_token = 1 / 16
    np.testing.assert_allclose(shares, share_of_each_token * P, atol=0.003)
    assert jsd_floor(text) == pytest.approx(0.4, abs=0.01)


def path_and_unigram() -> tuple[np.ndarray, np.ndarray]:
    """Random logits of a path [40, 9], and a random logarithm of the unigram [9].

    The logits are large, so that the best scale is small.
    """
    rng = np.random.default_rng(0)
    # Large logits, so that the scales in these tests are small.
    x = 50 * rng.standard_normal((40, 9)).astype(np.float32)
    log_u = rng.standard_normal(9).astype(np.float32)
    return x, log_u


def test_the_fit_finds_the_scale_and_the_weight_that_made_the_probabilities():
    x, log_u = path_and_unigram()
    Q = softmax(0.03 * x + 0.7 * log_u)
    scale, weight = calibrated.fit(x, log_u, Q)
    assert scale == pytest.approx(0.03, rel=0.01)
    assert weight == pytest.approx(0.7, rel=0.01)


def test_a_path_that_does_not_help_gets_the_scale_0_and_the_unigram_its_best_weight():
    x, log_u = path_and_unigram()
    Q = softmax(0.03 * x + 0.7 * log_u)
    scale, weight = calibrated.fit(-x, log_u, Q)
    assert scale == 0
    weights = np.linspace(0, 2, 401)
    excesses = []
    for possible_weight in weights:
        logits_of_each_row = np.tile(possible_weight * log_u, (40, 1))  # [40, 9]
        excesses.append(excess_of(Q, logits_of_each_row))
    best_weight = weights[np.argmin(excesses)]
    assert weight == pytest.approx(best_weight, abs=0.01)


def test_each_half_of_the_tokens_is_calibrated_by_the_other_half():
    """If the successors of one half change, only the other half gets different logits."""
    model = random_model(SMALL.with_head("untied"))
    text = some_corpus()
    tokens = text.frequent()
    first_half = slice(0, None, 2)  # the first, the third, the fifth token, and so on
    second_half = slice(1, None, 2)
    before = calibrated.calibrate(paths.raw, model, text)(model, tokens)

    # Shuffle the counts of the successors of each token of the second half.
    table = text.table(np.arange(V), np.arange(V)).astype(int)
    seen = text.frequent(1)
    rng = np.random.default_rng(0)
    for token in tokens[second_half]:
        table[token, seen] = rng.permutation(table[token, seen])
    shuffled = corpus_of(table, text.counts)
    after = calibrated.calibrate(paths.raw, model, shuffled)(model, tokens)
    np.testing.assert_array_equal(before[second_half], after[second_half])
    assert not np.allclose(before[first_half], after[first_half])


def model_that_lacks_the_scale_and_the_unigram(text) -> GPT2:
    """A model that needs both numbers of a calibration.

    Its scores are 7 log(count of the pair / count of the second token): seven times too large, and
    without the counts of the second tokens, which the unigram adds.
    """
    seen = text.frequent(1)
    ratios = text.table(seen, seen) / text.counts[seen]
    A = np.zeros((V, V))
    A[np.ix_(seen, seen)] = 7 * np.log(ratios + 1e-3)  # the ratio of some pairs is 0
    config = Config(vocab_size=V, n_embd=V, n_head=1, n_layer=0, n_ctx=8, tied=False)
    parameters = dict(random_model(config, dtype=np.float64).parameters)
    parameters["wte.weight"] = np.eye(V)
    parameters["lm_head.weight"] = A.T.copy()
    return GPT2(config, parameters)


@dataclass
class Calibrated:
    """A text, a model that has learned the text's pairs, and its calibrated paths by name."""

    text: Corpus
    model: GPT2
    paths: dict[str, paths.Path]


@pytest.fixture(scope="module")
def calibrated_model() -> Calibrated:
    text = some_corpus()
    model = model_that_lacks_the_scale_and_the_unigram(text)
    return Calibrated(text, model, calibrated.calibrated_paths(model, text))


def test_calibration_adds_the_scale_and_the_unigram_that_a_model_lacks(calibrated_model):
    """Then "kl" is nearly 0, and "top1" is higher than with the unigram alone."""
    scores = bigrams(calibrated_model.model, calibrated_model.text, others=calibrated_model.paths)
    assert scores["raw"]["kl"] > 1
    assert scores["raw+unigram"]["kl"] < 0.05
    assert scores["raw+unigram"]["top1"] > 0.95
    assert scores["unigram"]["top1"] < 0.95


def test_each_path_of_the_model_is_calibrated(calibrated_model):
    """The model has no layers, so there is no path "mlp0"."""
    names = list(calibrated_model.paths)
    assert names == ["raw+unigram", "normed+unigram", "model+unigram"]


def test_tokens_that_are_not_in_the_text_are_impossible(calibrated_model):
    text = calibrated_model.text
    path = calibrated_model.paths["raw+unigram"]
    logits = path(calibrated_model.model, text.frequent())  # [n, V]
    tokens_of_the_text = text.frequent(1)
    logits_of_absent_tokens = np.delete(logits, tokens_of_the_text, axis=1)
    assert logits_of_absent_tokens.size > 0
    assert np.isneginf(logits_of_absent_tokens).all()
