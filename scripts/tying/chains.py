"""Markov chains whose asymmetry is chosen: texts on which the cost of a symmetric A is known.

A symmetric table A of scores gives "b after a" the score of "a after b". A model with such a table
has a loss above that of the chain's own probabilities by at least the JSD: the Jensen-Shannon
divergence of the chain's pairs of neighbours from the reversed pairs (tying_results/floor.md). The
JSD measures the asymmetry of the chain. It is 0 if each pair occurs as often in one order as in the
other, and ln 2 if no pair occurs in both orders.

A chain is a table P [V, V] of the probabilities P[a, b] = p(b|a). Its rows and its columns add up
to 1, so all tokens are equally frequent, and P / V has the shares of the pairs.

The first kind of chain is made from a circulation C [V, V]: a chain in which no pair occurs in both
orders. The chain

    P = (1 + t) / 2 C + (1 - t) / 2 C^T        t in [0, 1]

has the pairs of C with probability (1 + t) / 2, and the reversed pairs with probability
(1 - t) / 2. Its JSD is ln 2 minus the entropy of these two probabilities. Its entropy rate, the
entropy of the next token after a known one, is the same for all chains of one size: ln(V) / 2. It
is set by the unevenness of C. If the unevenness is higher, a few successors of a token are likelier
than its other successors, and the entropy is lower.

The second kind are chains of classes. Each token has a first class, which decides its successors,
and a second class, which decides its predecessors. There are CLASSES classes of each sort, with
CLASS_SIZE tokens each.
"""

import math
from collections.abc import Callable

import numpy as np


def markov_chain(V: int, jsd: float, rng: np.random.Generator) -> np.ndarray:  # -> [V, V]
    """A chain of the first kind with a JSD of `jsd` nats, from 0 to ln 2.

    Generators of the same seed make chains from the same random numbers for every JSD. V must be at
    least 16: in a smaller chain there may be too few pairs for the entropy ln(V) / 2.
    """
    t = asymmetry(jsd)
    allowed = tournament(V, rng)
    noise = rng.standard_normal((V, V))

    def circulation(unevenness: float) -> np.ndarray:
        weights = np.exp(unevenness * (noise - noise.max()))  # at most 1, so that none overflows
        return balance(np.where(allowed, weights, 0))

    # The chain's entropy rate, ln(V) / 2, is that of C plus the entropy of a pair's order.
    wanted_rate_of_C = math.log(V) / 2 - entropy_of_order(jsd)

    # The entropy falls with the unevenness, so its negative increases, as `bisect` needs.
    def negative_rate_of_C(unevenness: float) -> float:
        rows = circulation(unevenness)
        return -entropy(rows) / V  # the mean over the rows, because all tokens are equally often

    # At an unevenness of 20, the rate is far below the wanted one.
    unevenness = bisect(negative_rate_of_C, wanted=-wanted_rate_of_C, high=20.0)
    C = circulation(unevenness)
    return (1 + t) / 2 * C + (1 - t) / 2 * C.T


def entropy_of_order(jsd: float) -> float:
    """In nats, the entropy of the order of a pair: that of C, or the reverse."""
    return math.log(2) - jsd


def asymmetry(jsd: float) -> float:
    """The t of a chain with this JSD: a share (1 + t) / 2 of its pairs has the order of C."""

    # The entropy falls from t = 0 to t = 1, so its negative increases, as `bisect` needs.
    def negative_entropy(t: float) -> float:
        return -entropy(np.array([1 + t, 1 - t]) / 2)

    return bisect(negative_entropy, wanted=-entropy_of_order(jsd))


def tournament(V: int, rng: np.random.Generator) -> np.ndarray:  # -> [V, V] bool
    """Which pairs may occur in a circulation: none in both orders.

    Each token is the first one of as many pairs as it is the second one of. To begin with, the
    tokens stand in a circle, and each may be followed by the (V - 1) // 2 tokens after it. A tied
    model with ln_f can learn these pairs (tying_results/floor.md). So random triangles of pairs,
    a -> b -> c -> a, are reversed, so often that the pairs do not show the circle any more.
    """
    first_tokens = np.arange(V)[:, None]
    second_tokens = np.arange(V)
    steps_on_circle = (second_tokens - first_tokens) % V  # [V, V]
    allowed = (steps_on_circle > 0) & (steps_on_circle <= (V - 1) // 2)

    # A reversed triangle has each of its tokens once as first and once as second, as before.
    draws = 8 * V * V  # many more than there are pairs; most draws are not a triangle
    for a, b, c in rng.integers(V, size=(draws, 3)).tolist():
        is_triangle = allowed[a, b] and allowed[b, c] and allowed[c, a]
        if is_triangle:
            for first, second in ((a, b), (b, c), (c, a)):
                allowed[first, second] = False
                allowed[second, first] = True
    return allowed


def balance(table: np.ndarray) -> np.ndarray:  # [V, V] -> [V, V]
    """The table, its columns and rows scaled in turn until both add up to 1 [Sinkhorn 1964]."""
    for _ in range(10_000):
        table = table / table.sum(axis=0)
        row_sums = table.sum(axis=1, keepdims=True)
        table /= row_sums
        is_balanced = abs(row_sums - 1).max() < 1e-10  # then this scaling changed almost nothing
        if is_balanced:
            break
    return table


def bisect(
    increasing: Callable[[float], float],
    wanted: float,
    low: float = 0.0,
    high: float = 1.0,
    steps: int = 45,
) -> float:
    """The x in [low, high] for which increasing(x) = wanted. Each step halves the interval."""
    for _ in range(steps):
        middle = (low + high) / 2
        if increasing(middle) < wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def entropy(p: np.ndarray) -> float:
    """The entropy of the probabilities in p, in nats. A probability of 0 adds 0."""
    return -float((p * np.log(np.where(p > 0, p, 1))).sum())


def sample(chain: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:  # [V, V] -> [n]
    """n token ids of a walk through the chain. At the start, all tokens are equally likely."""
    # limits[a, b] is the probability that one of the tokens 0 to b follows a. The next token is the
    # first one whose limit is above a number drawn from [0, 1).
    limits = chain.cumsum(axis=1)
    limits[:, -1] = 1  # the sum is rounded, and may be below 1
    ids = np.empty(n, np.int64)
    token = int(rng.integers(len(chain)))
    for place, draw in enumerate(rng.random(n)):
        ids[place] = token
        token = int(limits[token].searchsorted(draw, side="right"))
    return ids


CLASSES = 8  # of tokens with the same successors, and of tokens with the same predecessors
CLASS_SIZE = 8  # tokens in each
UNEVENNESS = 2.0  # of the probabilities between classes, for shared = 0


def class_chain(shared: float, noise: float, rng: np.random.Generator) -> np.ndarray:  # -> [V, V]
    """A chain of classes.

    P[a, b] depends on the first class of a and the second class of b. A share `shared` of the
    tokens has the same class as first and as second class. `noise` makes the tokens of a class
    differ. Chains of one seed and one noise have the same entropy and the same JSD for every
    `shared`.
    """
    V = CLASSES * CLASS_SIZE
    class_noise = rng.standard_normal((2, CLASSES, CLASSES))
    token_noise = noise * rng.standard_normal((V, V))

    def chain_of(share: float, angle: float, unevenness: float) -> np.ndarray:
        """A chain of classes. The angle sets the asymmetry of the scores between classes."""
        scores_of_classes = unevenness * class_scores(angle, class_noise)
        first_class, second_class = classes_of_tokens(share)
        scores = scores_of_classes[first_class[:, None], second_class] + token_noise  # [V, V]
        return balance(np.exp(scores))

    # The reference has a share of 0. All other chains get its entropy and its JSD. At the angle
    # pi / 4 the symmetric and the antisymmetric part of the scores have the same weight, so the
    # scores of "b after a" and "a after b" are independent.
    reference = chain_of(share=0.0, angle=math.pi / 4, unevenness=UNEVENNESS)
    if shared == 0:
        return reference

    # Two numbers are searched, one search inside of the other: for each angle that is tried, the
    # unevenness with which the entropy is that of the reference.
    def with_same_entropy(angle: float) -> np.ndarray:
        """The chain with this angle and the unevenness that gives the entropy of the reference."""

        # The entropy falls with the unevenness, so its negative increases, as `bisect` needs.
        def negative_entropy(unevenness: float) -> float:
            return -entropy(chain_of(shared, angle, unevenness))

        unevenness = bisect(
            negative_entropy,
            wanted=-entropy(reference),
            high=3 * UNEVENNESS,
            steps=25,  # fewer than usual: each step of the search below makes this whole search
        )
        return chain_of(shared, angle, unevenness)

    def jsd_at(angle: float) -> float:
        return jsd_of(with_same_entropy(angle))

    # Search the angle that gives the JSD of the reference. The JSD increases with the angle.
    angle = bisect(jsd_at, wanted=jsd_of(reference), high=math.pi / 2, steps=25)
    return with_same_entropy(angle)


def class_scores(angle: float, class_noise: np.ndarray) -> np.ndarray:  # -> [CLASSES, CLASSES]
    """The score of each second class after each first class.

    The angle sets the asymmetry: at 0 the scores are symmetric, at pi / 2 antisymmetric.
    `class_noise` has a table of random numbers for each of these two parts of the scores.
    """
    # The sum or difference of two independent random numbers has twice the variance of one number.
    # The division by sqrt(2) halves the variance again.
    symmetric = (class_noise[0] + class_noise[0].T) / math.sqrt(2)
    antisymmetric = (class_noise[1] - class_noise[1].T) / math.sqrt(2)
    return math.cos(angle) * symmetric + math.sin(angle) * antisymmetric


def classes_of_tokens(shared: float) -> tuple[np.ndarray, np.ndarray]:  # -> [V], [V]
    """The first and the second class of each token.

    In each first class, a share `shared` of the tokens has the same class as second class. The
    second classes of the other tokens are different classes, in turn.
    """
    token = np.arange(CLASSES * CLASS_SIZE)
    first_class = token // CLASS_SIZE
    place_in_class = token % CLASS_SIZE
    is_shared = place_in_class < shared * CLASS_SIZE
    spread = (first_class + place_in_class) % CLASSES
    return first_class, np.where(is_shared, first_class, spread)


def jsd_of(P: np.ndarray) -> float:
    """The JSD of a chain: the divergence of its pairs from the reversed pairs."""
    M = P / len(P)  # the shares of the pairs
    # The JSD of two distributions is the entropy of their mean minus the mean of their entropies.
    # Here the two are M and M^T, which have the same entropy.
    return entropy((M + M.T) / 2) - entropy(M)
