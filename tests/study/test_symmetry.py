"""The floor of a symmetric A, by its definition and by gradient descent.

A [V, V] has a score for each pair: how likely the second token (a column) is after the first (a
row). The excess of A is the mean of KL(shares of next tokens in a text || softmax(A)). The floor is
the lowest excess of any symmetric A. It is equal to the JSD: the Jensen-Shannon divergence between
the pairs of neighbours in the text and the reversed pairs.
"""

import math

import numpy as np
import pytest
from support.models import SMALL, some_corpus

from tiedgpt.gpt2.ops import softmax
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.paths import jsd_floor

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
