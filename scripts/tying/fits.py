"""What each form of A costs before any training: the best fit of rank D to a text's bigrams.

p(b|a) = softmax(A[a])[b] is fitted to the shares M [V, V] of a text's pairs, by L-BFGS from a random start:

    untied      A = W_E W_U                         any A of rank D
    signed      A = W_E G W_E^T                     symmetric; G is diagonal, its gains of either sign
    diagonal    A = W_E W_E^T + a free diagonal     symmetric; positive semi-definite but for the diagonal
    tied        A = W_E W_E^T                       symmetric and positive semi-definite
    ln_f        A = ln_f(W_E) W_E^T                 a tied GPT-2 without layers and positions

A fit's cost is its excess: sum_ab M[a, b] log(M[b|a] / p(b|a)) nats per token, 0 for the text's own bigrams.
For signed, diagonal and tied it is at least the floor of tiedgpt/study/symmetry.py. The fits are not convex:
a result is the best that was found, and another `seed` shows how it depends on the start.

The floor does not hold for ln_f. Let u_b be the mean of b's embedding, s_b its standard deviation, and n_b
the embedding after both are removed. With the weight g and the bias of ln_f,

    A[a, b] = s_b sum_i g_i n_a[i] n_b[i]  +  (g . n_a) u_b  +  bias . W_E[b]

The first term is symmetric but for the factor s_b of each column. The second is a product w_a u_b. This form
fits a cycle, such as tokens 0, 1, 2, 0, ..., whose JSD is ln 2.
"""

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np

from tiedgpt.ops import layer_norm, layer_norm_backward

FAMILIES = {  # what each fit is, for reports
    "untied": "W_E W_U",
    "signed": "W_E G W_E^T, G of either sign",
    "diagonal": "W_E W_E^T and a free diagonal",
    "tied": "W_E W_E^T",
    "ln_f": "ln_f(W_E) W_E^T",
}
STEPS = 600
TOLERANCE = 1e-7  # nats
MEMORY = 10  # steps from which L-BFGS estimates the curvature
POWER = 0.4  # rare tokens have small gradients, so rows are divided by share^-POWER while they are fitted
EPS = 1e-5  # of ln_f
LOWEST = -60.0  # scores further below the best of their row are raised to this: float32 is slow near e^-90

Parts = dict[str, np.ndarray]


def fit_families(
    pairs: np.ndarray,
    D: int,
    families: Iterable[str] = FAMILIES,
    steps: int = STEPS,
    seed: int = 0,
    progress: Callable[[int], Any] | None = None,
) -> dict[str, dict[str, float]]:
    """{family: {"kl", "last_tenth", "steps"}} of the best rank-D fits to the counts of pairs [V, V].

    kl           the excess over the text's own bigrams, in nats per token
    last_tenth   how much of it the last tenth of the steps removed: near 0 if the fit has converged
    steps        the steps taken, at most `steps`; fewer if no step lowers the excess any more

    After each family, `progress` is called with `steps`.
    """
    seen = np.flatnonzero(pairs.sum(axis=0) + pairs.sum(axis=1))
    M = pairs[np.ix_(seen, seen)] / pairs.sum()
    report = {}
    for family in families:
        start = first_parts(family, len(M), D, np.random.default_rng(seed))
        _, curve = fit(family, M, start, steps)
        before = curve[-1 - len(curve) // 10]
        report[family] = {"kl": curve[-1], "last_tenth": before - curve[-1], "steps": len(curve) - 1}
        if progress:
            progress(steps)
    return report


def first_parts(family: str, V: int, D: int, rng: np.random.Generator) -> Parts:
    """Where a fit starts: small random matrices; half of the gains are 1, the other half -1."""
    gains = np.where(np.arange(D) % 2, -1.0, 1.0)
    others: dict[str, Parts] = {
        "untied": {"W_U": 0.1 * rng.standard_normal((V, D))},  # transposed
        "signed": {"gains": gains},
        "diagonal": {"diagonal": np.zeros(V)},
        "tied": {},
        "ln_f": {"weight": gains, "bias": np.zeros(D)},
    }
    return {"W_E": 0.1 * rng.standard_normal((V, D)), **others[family]}


def scores(family: str, parts: Parts) -> np.ndarray:  # -> [V, V]
    """A, from the parts of a family."""
    W_E = parts["W_E"]
    if family == "untied":
        return W_E @ parts["W_U"].T
    if family == "signed":
        return (W_E * parts["gains"]) @ W_E.T
    if family == "ln_f":
        return layer_norm(W_E, parts["weight"], parts["bias"], EPS) @ W_E.T
    A = W_E @ W_E.T
    if family == "diagonal":
        A[np.diag_indices_from(A)] += parts["diagonal"]
    return A


def scores_backward(family: str, parts: Parts, dA: np.ndarray) -> Parts:  # [V, V]
    """The gradient of each part from that of A."""
    W_E = parts["W_E"]
    if family == "untied":
        return {"W_E": dA @ parts["W_U"], "W_U": dA.T @ W_E}
    if family == "ln_f":
        norm = {"weight": parts["weight"], "bias": parts["bias"]}
        grad = {name: np.empty_like(part) for name, part in norm.items()}
        of_norm = layer_norm_backward(dA @ W_E, W_E, parts["weight"], EPS, grad)
        return {"W_E": of_norm + dA.T @ layer_norm(W_E, **norm, eps=EPS), **grad}
    dA_W, dAT_W = dA @ W_E, dA.T @ W_E
    if family == "signed":
        return {"W_E": (dA_W + dAT_W) * parts["gains"], "gains": (W_E * dA_W).sum(axis=0)}
    grad = {"W_E": dA_W + dAT_W}
    return {**grad, "diagonal": dA.diagonal()} if family == "diagonal" else grad


def excess(M: np.ndarray, A: np.ndarray) -> tuple[float, np.ndarray]:  # [V, V], [V, V] -> [V, V]
    """The excess of softmax(A) over the bigrams of M, and its derivative dA, written over A.

    The excess is sum_ab M[a, b] (log M[b|a] - log p(b|a)); dA[a, b] = m[a] p(b|a) - M[a, b].
    """
    m = M.sum(axis=1, keepdims=True)
    pairs = np.nonzero(M)
    A -= A.max(axis=1, keepdims=True)
    shares, at_pairs = M[pairs].astype(np.float64), A[pairs].astype(np.float64)
    p = np.exp(np.maximum(A, LOWEST, out=A), out=A)
    sums = p.sum(axis=1, keepdims=True)
    log_p = at_pairs - np.log(sums.astype(np.float64))[pairs[0], 0]
    log_table = np.log(shares / m[pairs[0], 0])
    p *= m / sums
    p -= M
    return float(shares @ (log_table - log_p)), p


def fit(
    family: str, M: np.ndarray, start: Parts, steps: int, dtype: Any = np.float32
) -> tuple[Parts, list[float]]:
    """The parts with the lowest excess that was found, and the excess after each step."""
    m = np.maximum(M.sum(axis=1), M.sum(axis=0))
    units = m[:, None] ** -POWER * m.max() ** POWER
    M = M.astype(dtype)
    of = {"W_E": units, "W_U": units, "diagonal": units[:, 0]}
    by_row = {name: np.asarray(of.get(name, 1.0), dtype) for name in start}

    def unpack(x: np.ndarray) -> Parts:
        pieces = np.split(x, np.cumsum([part.size for part in start.values()])[:-1])
        shaped = zip(start.items(), pieces, strict=True)
        return {name: piece.reshape(part.shape) * by_row[name] for (name, part), piece in shaped}

    def objective(x: np.ndarray) -> tuple[float, np.ndarray]:
        parts = unpack(x)
        loss, dA = excess(M, scores(family, parts))
        grad = scores_backward(family, parts, dA)
        return loss, np.concatenate([(grad[name] * by_row[name]).ravel() for name in start])

    first = np.concatenate([(part / by_row[name]).ravel() for name, part in start.items()])
    x, curve = lbfgs(objective, first.astype(dtype), steps)
    return unpack(x), curve


def lbfgs(
    objective: Callable[[np.ndarray], tuple[float, np.ndarray]], x: np.ndarray, steps: int
) -> tuple[np.ndarray, list[float]]:  # [n] -> [n]
    """Minimise objective(x) -> (value, gradient) [Nocedal 1980]; the last x, and the value at each step.

    The direction is the gradient times an estimate of the inverse Hessian from the last MEMORY steps s and
    changes of the gradient y. A step is halved until it lowers the value by a ten thousandth of what its
    slope promises [Armijo 1966]. Ends when no step does, or when the slope promises less than TOLERANCE.
    """
    value, gradient = objective(x)
    curve = [value]
    history: list[tuple[np.ndarray, np.ndarray, Any]] = []
    while len(curve) <= steps:
        direction, factors = gradient.copy(), []
        for s, y, sy in reversed(history):
            factors.append(np.vdot(s, direction) / sy)
            direction -= factors[-1] * y
        direction *= history[-1][2] / np.vdot(y0 := history[-1][1], y0) if history else 1 / length(gradient)
        for (s, y, sy), factor in zip(history, reversed(factors), strict=True):
            direction += (factor - np.vdot(y, direction) / sy) * s
        slope, size = float(np.vdot(gradient, direction)), x.dtype.type(1)
        if 0 <= slope < TOLERANCE:
            break
        for _ in range(20):
            next_x = x - size * direction
            next_value, next_gradient = objective(next_x)
            if slope > 0 and next_value < value - 1e-4 * size * slope:
                break
            size /= 2
        else:
            if not history:
                break
            history = []
            continue
        s, y = next_x - x, next_gradient - gradient
        if (sy := np.vdot(s, y)) > 0:
            history = [*history, (s, y, sy)][-MEMORY:]
        x, value, gradient = next_x, next_value, next_gradient
        curve.append(value)
    return x, curve


def length(x: np.ndarray) -> float:
    """The Euclidean length, to divide by: 1 if it is 0."""
    return float(np.linalg.norm(x)) or 1.0
