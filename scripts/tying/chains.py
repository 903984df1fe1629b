"""Markov chains whose asymmetry is chosen: texts on which the cost of a symmetric A is known.

A symmetric table A of scores gives "b after a" the score of "a after b". What that costs at least
is the JSD, the Jensen-Shannon divergence of a chain's pairs of neighbours from the reversed pairs
(scripts/tying_results/floor.md). It is the asymmetry of the chain: 0 if each pair is as often in
one order as in the other, ln 2 if no pair occurs in both.

A circulation C [V, V] has the shares of pairs of a chain in which no pair occurs in both orders.
The chain

    M = (1 + t) / 2 C + (1 - t) / 2 C^T        t in [0, 1]

has the pairs of C with probability (1 + t) / 2, else the reversed pairs. Its JSD is ln 2 minus the
entropy of these two probabilities. All chains of one size have the same entropy rate, ln(V) / 2,
and all tokens are equally often. They differ in the JSD, and in how even C is: with more unevenness
a few successors of a token are likelier than the others, and the entropy is lower.

A second kind are chains of classes: a first class of a token decides its successors, a second class
its predecessors. The functions return tables whose rows and columns add up to 1: V times the share
of each pair, which is the probability P[a, b] = p(b|a).
"""

import math
from collections.abc import Callable

import numpy as np


def markov_chain(V: int, jsd: float, rng: np.random.Generator) -> np.ndarray:  # -> [V, V]
    """A transition matrix P[a, b] = p(b|a) with a JSD of `jsd` nats, from 0 to ln 2; V at least 16.

    The pairs and their order by frequency depend on `rng` only, so generators of the same seed make
    chains that differ in the JSD alone.
    """
    t = asymmetry(jsd)
    allowed = tournament(V, rng)
    noise = rng.standard_normal((V, V))

    def circulation(unevenness: float) -> np.ndarray:
        weights = np.exp(unevenness * (noise - noise.max()))  # at most 1, so that none overflows
        return balance(np.where(allowed, weights, 0))

    # The entropy of the chain is that of C and that of the order of a pair.
    wanted_entropy = math.log(V) / 2 - entropy_of_order(jsd)

    # The entropy falls with the unevenness, so its negative increases, as `bisect` needs.
    def negative_entropy(unevenness: float) -> float:
        return -entropy(circulation(unevenness)) / V

    unevenness = bisect(negative_entropy, wanted=-wanted_entropy, high=20.0)
    C = circulation(unevenness)
    return (1 + t) / 2 * C + (1 - t) / 2 * C.T


def entropy_of_order(jsd: float) -> float:
    """The entropy of whether a pair has the order of C or the reverse, in nats."""
    return math.log(2) - jsd


def asymmetry(jsd: float) -> float:
    """The t of a chain with this JSD; a share of (1 + t) / 2 of its pairs has the usual order."""

    # The entropy falls from t = 0 to t = 1, so its negative increases, as `bisect` needs.
    def negative_entropy(t: float) -> float:
        return -entropy(np.array([1 + t, 1 - t]) / 2)

    return bisect(negative_entropy, wanted=-entropy_of_order(jsd))


def tournament(V: int, rng: np.random.Generator) -> np.ndarray:  # -> [V, V] bool
    """Pairs of which none is there in both orders, with each token as often first as second.

    On a circle of tokens, each leads to the (V - 1) // 2 after it. Then triangles are reversed at
    random, until no order of the tokens explains the pairs: a tied model with ln_f can learn those
    that follow a circle (scripts/tying_results/floor.md).
    """
    first_tokens = np.arange(V)[:, None]
    second_tokens = np.arange(V)
    steps_on_circle = (second_tokens - first_tokens) % V  # [V, V]
    allowed = (steps_on_circle > 0) & (steps_on_circle <= (V - 1) // 2)

    # Many are tried, so that nothing of the circle is left.
    for a, b, c in rng.integers(V, size=(8 * V * V, 3)).tolist():
        is_triangle = allowed[a, b] and allowed[b, c] and allowed[c, a]
        if is_triangle:
            for first, second in ((a, b), (b, c), (c, a)):
                allowed[first, second] = False
                allowed[second, first] = True
    return allowed


def balance(table: np.ndarray) -> np.ndarray:  # [V, V] -> [V, V]
    """The table with its rows and columns scaled until both add up to 1 [Sinkhorn 1964]."""
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
    """The x in [low, high] for which increasing(x) = wanted, by bisection."""
    for _ in range(steps):
        middle = (low + high) / 2
        if increasing(middle) < wanted:
            low = middle
        else:
            high = middle
    return (low + high) / 2


def entropy(p: np.ndarray) -> float:
    """Of the probabilities in p, in nats. A probability of 0 adds 0."""
    return -float((p * np.log(np.where(p > 0, p, 1))).sum())


def sample(chain: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:  # [V, V] -> [n]
    """n token ids of a walk through the chain, from a token that is drawn evenly from all."""
    # A draw from [0, 1) between two limits of a row chooses the token between them.
    limits = chain.cumsum(axis=1)
    limits[:, -1] = 1  # exactly, without rounding
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
    """A transition matrix P[a, b] of a chain of classes.

    Tokens have a first class, which decides their successors, and a second class, which decides
    their predecessors: P[a, b] depends on the first class of a and the second class of b. For a
    share `shared` of the tokens both classes are the same one. The other tokens are spread evenly:
    as many of each first class have each second class. `noise` makes the tokens of a class differ.

    Chains of the same generator and noise have the same entropy and JSD for each share, and all
    tokens are equally often.
    """
    V = CLASSES * CLASS_SIZE
    class_noise = rng.standard_normal((2, CLASSES, CLASSES))
    token_noise = noise * rng.standard_normal((V, V))

    def chain_of(share: float, angle: float, unevenness: float) -> np.ndarray:
        scores = unevenness * class_scores(angle, class_noise)
        first_class, second_class = classes_of_tokens(share)
        return balance(np.exp(scores[first_class[:, None], second_class] + token_noise))

    # For shared = 0, the probability between two classes and that of its reverse are independent.
    reference = chain_of(0.0, angle=math.pi / 4, unevenness=UNEVENNESS)
    if shared == 0:
        return reference

    # For another share, the unevenness and the angle are searched that give the same entropy and
    # the same JSD. The entropy falls with the unevenness, so its negative increases.
    def with_same_entropy(angle: float) -> np.ndarray:
        unevenness = bisect(
            lambda x: -entropy(chain_of(shared, angle, unevenness=x)),
            wanted=-entropy(reference),
            high=3 * UNEVENNESS,
            steps=25,
        )
        return chain_of(shared, angle, unevenness)

    angle = bisect(
        lambda x: jsd_of(with_same_entropy(x)),
        wanted=jsd_of(reference),
        high=math.pi / 2,
        steps=25,
    )
    return with_same_entropy(angle)


def class_scores(angle: float, class_noise: np.ndarray) -> np.ndarray:  # -> [CLASSES, CLASSES]
    """The score of each second class after each first class.

    The angle is the asymmetry: at 0 the scores are symmetric, at pi / 2 antisymmetric.
    """
    # A sum of two random numbers, divided by sqrt(2), has the variance of one.
    symmetric = (class_noise[0] + class_noise[0].T) / math.sqrt(2)
    antisymmetric = (class_noise[1] - class_noise[1].T) / math.sqrt(2)
    return math.cos(angle) * symmetric + math.sin(angle) * antisymmetric


def classes_of_tokens(shared: float) -> tuple[np.ndarray, np.ndarray]:  # -> [V], [V]
    """The first and the second class of each token.

    In each first class, a share of the tokens has the same second class; the others are spread over
    the second classes.
    """
    token = np.arange(CLASSES * CLASS_SIZE)
    first_class = token // CLASS_SIZE
    place_in_class = token % CLASS_SIZE
    is_shared = place_in_class < shared * CLASS_SIZE
    spread = (first_class + place_in_class) % CLASSES
    return first_class, np.where(is_shared, first_class, spread)


def jsd_of(P: np.ndarray) -> float:
    """The JSD of the pairs and the reversed pairs of a chain whose tokens are equally often."""
    M = P / len(P)  # the shares of pairs
    return entropy((M + M.T) / 2) - entropy(M)
