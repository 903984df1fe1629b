"""What each form of A costs without a model: the best fit of rank D to a text's bigrams.

A [V, V] has the score of each token b after each token a, so that p(b|a) = softmax(A[a])[b]. M
[V, V] has the share of each pair a, b among all pairs of neighbours in a text. AdamW fits p to M
from a random start, for four families of tables:

    untied      A = W_E W_U                any A of rank D
    signed      A = W_E G W_E^T            symmetric; G is diagonal, its gains of either sign
    tied        A = W_E W_E^T              symmetric and positive semi-definite
    ln_f        A = ln_f(W_E) W_E^T        a tied GPT-2 without layers and positions

The parts of A are the arrays that it is computed from. All families have W_E. untied has also W_U,
which is stored transposed, [V, D] like W_E. signed has also the gains of G, and ln_f its own gains
and bias.

The cost of a fit is its excess, sum_ab M[a, b] log(M[b|a] / p(b|a)) in nats per token. M[b|a] is
the share of b among the tokens that follow a. The excess of the text's own bigrams is 0. For signed
and tied, whose A is symmetric, the excess is at least the floor of symmetric tables
(scripts/tying_results/floor.md). The excess is not convex in the parts, so a fit may miss the
lowest one, and its result depends on the `seed` of its start.
"""

import math

import numpy as np

from tiedgpt.gpt2.ops import layer_norm, layer_norm_backward, softmax
from tiedgpt.gpt2.parameters import Parameters, unflatten
from tiedgpt.training.optimizer import AdamW

FAMILIES = ("untied", "signed", "tied", "ln_f")
STEPS = 3000
RATE = 0.05  # at the start; it falls to 0 along a cosine
EPS = 1e-5  # of ln_f


def fit_families(pairs: np.ndarray, D: int, steps: int = STEPS, seed: int = 0) -> dict[str, float]:
    """The excess of the best fit of rank D to the counts of pairs [V, V], by family."""
    count_in_pairs = pairs.sum(axis=0) + pairs.sum(axis=1)
    seen = np.flatnonzero(count_in_pairs)  # a token without pairs has no shares to fit
    M = pairs[np.ix_(seen, seen)] / pairs.sum()
    excesses: dict[str, float] = {}
    for family in FAMILIES:
        _, excesses[family] = fit(family, M, D, steps, seed)
    return excesses


def fit(family: str, M: np.ndarray, D: int, steps: int, seed: int = 0) -> tuple[Parameters, float]:
    """The parts of A after `steps` steps of a fit, and the excess that is reached."""
    first = first_parts(family, len(M), D, np.random.default_rng(seed))
    shapes = {name: part.shape for name, part in first.items()}
    flat = np.concatenate([part.ravel() for part in first.values()])
    parts = unflatten(flat, shapes)  # views of `flat`, which the optimizer changes
    optimizer = AdamW(flat, shapes, betas=(0.9, 0.99), weight_decay=0.0)
    for step in range(steps):
        _, grad = excess_and_gradients(M, parts)
        flat_grad = np.concatenate([grad[name].ravel() for name in shapes])
        rate = RATE * (1 + math.cos(math.pi * step / steps)) / 2
        optimizer.step(flat_grad, rate)
    excess, _ = excess_and_gradients(M, parts)
    return parts, excess


def first_parts(family: str, V: int, D: int, rng: np.random.Generator) -> Parameters:
    """The parts at the start: small random matrices; gains of 1 and -1 in turn; a bias of 0."""
    parts = {"W_E": 0.1 * rng.standard_normal((V, D))}
    if family == "untied":
        parts["W_U"] = 0.1 * rng.standard_normal((V, D))
    if family in ("signed", "ln_f"):
        parts["gains"] = np.where(np.arange(D) % 2, -1.0, 1.0)
    if family == "ln_f":
        parts["bias"] = np.zeros(D)
    return parts


def left_factor(parts: Parameters) -> np.ndarray:  # -> [V, D]
    """The left factor of A: ln_f(W_E), W_E G or W_E. The right factor is W_U or W_E^T."""
    if "bias" in parts:  # only ln_f has a bias
        return layer_norm(parts["W_E"], parts["gains"], parts["bias"], EPS)
    if "gains" in parts:
        return parts["W_E"] * parts["gains"]
    return parts["W_E"]


def excess_and_gradients(M: np.ndarray, parts: Parameters) -> tuple[float, Parameters]:
    """The excess of softmax(A) over the bigrams of M [V, V], and the gradient of each part."""
    m = M.sum(axis=1, keepdims=True)  # [V, 1], the share of pairs that begin with a
    W_E = parts["W_E"]
    left = left_factor(parts)
    right = parts.get("W_U", W_E)
    p = softmax(left @ right.T)

    # M[b|a] / p(b|a) is M[a, b] / (m[a] p(b|a)). Pairs that do not occur add nothing.
    occurs = M > 0
    bounded_p = np.maximum(p, 1e-300)  # so that no pair is divided by 0
    ratios = M[occurs] / (m * bounded_p)[occurs]
    excess = float(M[occurs] @ np.log(ratios))

    # The gradients of A, and of the two factors of A = left right^T. The excess is a cross entropy
    # minus a constant, so its gradient for A is m p - M.
    dA = m * p - M
    dleft = dA @ right
    dright = dA.T @ left

    # The left factor is computed from W_E, and from the gains and the bias if there are any.
    grad: Parameters = {}
    if "bias" in parts:
        grad["gains"] = np.empty_like(parts["gains"])
        grad["bias"] = np.empty_like(parts["bias"])
        # layer_norm_backward returns the gradient of W_E. It writes those of the gains and the bias
        # into these two arrays.
        written = {"weight": grad["gains"], "bias": grad["bias"]}
        grad["W_E"] = layer_norm_backward(dleft, W_E, parts["gains"], EPS, written)
    elif "gains" in parts:
        grad["gains"] = (dleft * W_E).sum(axis=0)
        grad["W_E"] = dleft * parts["gains"]
    else:
        grad["W_E"] = dleft

    # The right factor is W_U, or W_E again. If it is W_E, then W_E has two gradients: their sum.
    if "W_U" in parts:
        grad["W_U"] = dright
    else:
        grad["W_E"] = grad["W_E"] + dright
    return excess, grad
