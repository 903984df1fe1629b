"""Markov chains whose asymmetry is chosen: texts on which the cost of a symmetric A is known.

A circulation C [V, V] has the shares of pairs of a chain in which no pair occurs in both orders.
The chain

    M = (1 + t) / 2 C + (1 - t) / 2 C^T        t in [0, 1]

has the pairs of C with probability (1 + t) / 2, else the reversed pairs. Its JSD is ln 2 minus the
entropy of these two probabilities (scripts/tying_results/floor.md). All chains of one size have the
same entropy rate, ln(V) / 2, and all tokens are equally often. They differ in the JSD, and in how
even C is.
"""

import math
from collections.abc import Callable

import numpy as np


def markov_chain(V: int, jsd: float, rng: np.random.Generator) -> np.ndarray:  # -> [V, V]
    """A transition matrix P[a, b] = p(b|a) with a JSD of `jsd` nats, from 0 to ln 2; V at least 16.

    The pairs and their order by frequency depend on `rng` only, so generators of the same seed make
    chains that differ in the JSD alone.
    """
    coin = math.log(2) - jsd
    t = asymmetry(jsd)
    allowed = tournament(V, rng)
    noise = rng.standard_normal((V, V))

    def circulation(unevenness: float) -> np.ndarray:
        return balance(np.where(allowed, np.exp(unevenness * (noise - noise.max())), 0))

    wanted = math.log(V) / 2 - coin
    unevenness = bisect(lambda x: -entropy(circulation(x)) / V, -wanted, high=20.0)
    C = circulation(unevenness)
    return (1 + t) / 2 * C + (1 - t) / 2 * C.T


def asymmetry(jsd: float) -> float:
    """The t of a chain with this JSD; a share of (1 + t) / 2 of its pairs has the usual order."""
    coin = math.log(2) - jsd
    return bisect(lambda t: -entropy(np.array([1 + t, 1 - t]) / 2), -coin)


def tournament(V: int, rng: np.random.Generator) -> np.ndarray:  # -> [V, V] bool
    """Pairs of which none is there in both orders, with each token as often first as second.

    On a circle of tokens, each leads to the (V - 1) // 2 after it. Then triangles are reversed at
    random, until no order of the tokens explains the pairs: a tied model with ln_f can learn those
    that follow a circle (scripts/tying_results/floor.md).
    """
    steps = (np.arange(V) - np.arange(V)[:, None]) % V
    allowed = (steps > 0) & (steps <= (V - 1) // 2)
    for a, b, c in rng.integers(V, size=(8 * V * V, 3)).tolist():
        if allowed[a, b] and allowed[b, c] and allowed[c, a]:
            allowed[[a, b, c], [b, c, a]] = False
            allowed[[b, c, a], [a, b, c]] = True
    return allowed


def balance(table: np.ndarray) -> np.ndarray:  # [V, V] -> [V, V]
    """The table with its rows and columns scaled until both add up to 1 [Sinkhorn 1964]."""
    for _ in range(10_000):
        table = table / table.sum(axis=0)
        rows = table.sum(axis=1, keepdims=True)
        table /= rows
        if abs(rows - 1).max() < 1e-10:
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
    """Of the probabilities in p, in nats."""
    return -float((p * np.log(np.where(p > 0, p, 1))).sum())


def sample(chain: np.ndarray, n: int, rng: np.random.Generator) -> np.ndarray:  # [V, V] -> [n]
    """n token ids of a walk through the chain, from a token that is drawn evenly from all."""
    limits = chain.cumsum(axis=1)
    limits[:, -1] = 1
    ids = np.empty(n, np.int64)
    token = int(rng.integers(len(chain)))
    for place, draw in enumerate(rng.random(n)):
        ids[place] = token
        token = int(limits[token].searchsorted(draw, side="right"))
    return ids


CLASSES = 8  # of tokens with the same successors, and of tokens with the same predecessors
CLASS_SIZE = 8
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
    classes = rng.standard_normal((2, CLASSES, CLASSES))
    tokens = noise * rng.standard_normal((CLASSES * CLASS_SIZE, CLASSES * CLASS_SIZE))

    # For shared = 0, the probability between two classes and that of its reverse are independent.
    reference = class_table(0.0, math.pi / 4, UNEVENNESS, classes, tokens)
    if shared == 0:
        return reference
    wanted_jsd = jsd_of(reference)
    wanted_entropy = entropy(reference)

    def with_entropy(angle: float) -> np.ndarray:
        unevenness = bisect(
            lambda x: -entropy(class_table(shared, angle, x, classes, tokens)),
            -wanted_entropy,
            high=3 * UNEVENNESS,
            steps=25,
        )
        return class_table(shared, angle, unevenness, classes, tokens)

    angle = bisect(lambda x: jsd_of(with_entropy(x)), wanted_jsd, high=math.pi / 2, steps=25)
    return with_entropy(angle)


def class_table(
    shared: float, angle: float, unevenness: float, classes: np.ndarray, tokens: np.ndarray
) -> np.ndarray:  # -> [V, V]
    """The transition matrix of class_chain for an asymmetry (0 to pi / 2) and an unevenness."""
    symmetric = (classes[0] + classes[0].T) / math.sqrt(2)
    antisymmetric = (classes[1] - classes[1].T) / math.sqrt(2)
    scores = unevenness * (math.cos(angle) * symmetric + math.sin(angle) * antisymmetric)
    place = np.arange(CLASSES * CLASS_SIZE)
    first_class = place // CLASS_SIZE
    is_shared = place % CLASS_SIZE < shared * CLASS_SIZE
    second_class = np.where(is_shared, first_class, (first_class + place) % CLASSES)
    return balance(np.exp(scores[first_class[:, None], second_class] + tokens))


def jsd_of(P: np.ndarray) -> float:
    """The JSD of the pairs and the reversed pairs of a chain whose tokens are equally often."""
    M = P / len(P)
    return entropy((M + M.T) / 2) - entropy(M)
