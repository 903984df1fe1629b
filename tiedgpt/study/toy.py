"""Tying with three words: matrices small enough to compute by hand.

A table P [n, n] has the share with which each word (a column) follows each word (a row). A model
has an embedding W_E [n, D], one row for each word, and gives scores S [n, n]; softmax of a row is
its prediction:

    tied      S = W_E W_E^T                   "New York" and "York New" have the same score
    untied    S = W_E W_U                     W_U by least squares, or by fitting the softmax
    mlp0      S = (W_E + MLP_0(W_E)) W_E^T    tied, and an MLP between the two uses of W_E

The MLP has UNITS fixed random units. Only its output matrix is solved for, by least squares.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ArgumentError, short_repr
from ..gpt2.ops import gelu_new, linear, log_softmax, softmax
from .direct_path import matrix_asymmetry
from .solved import centred_log, fit_softmax, least_squares

WORDS = ("New", "York", "City")
TABLE = ((0.05, 0.90, 0.05), (0.10, 0.05, 0.85), (0.60, 0.30, 0.10))
EMBEDDING = ((1.0, 0.5), (0.8, 0.9), (0.3, 1.2))
UNITS = 8  # of the MLP


@dataclass(frozen=True)
class Solution:
    """Scores and what they predict."""

    scores: np.ndarray  # [n, n]
    probabilities: np.ndarray  # [n, n], softmax of each row of the scores
    kl: float  # KL(P || probabilities), the mean over rows, in nats
    asymmetry: float  # |S - S^T| / |S|
    W_U: np.ndarray | None = None  # [D, n]


def solve(W_E: Any = EMBEDDING, P: Any = TABLE) -> dict[str, Solution]:
    """Every way to score: "tied", "untied", "fitted", "mlp0". Rows of P are divided by their sums.

    Raises ArgumentError for matrices that do not fit together, and numbers that are not finite;
    those of P must be above 0.
    """
    W_E = as_matrix("W_E", W_E)
    P = as_matrix("P", P)
    if len(P) != P.shape[1] or len(P) != len(W_E):
        raise ArgumentError(f"W_E must be [n, D] and P [n, n], got {W_E.shape} and {P.shape}")
    if P.min() <= 0:
        raise ArgumentError(
            "every number of P must be above 0: the logarithm of 0 has no finite score"
        )
    P = P / P.sum(axis=1, keepdims=True)

    # Scores are best if they are log P. A constant in a row of scores changes no probability, so
    # each row of log P is centred.
    W_U = least_squares(W_E, centred_log(P))
    fitted = fit_softmax(W_E, P, W_U)
    return {
        "tied": solution(W_E @ W_E.T, P),
        "untied": solution(W_E @ W_U, P, W_U),
        "fitted": solution(W_E @ fitted, P, fitted),
        "mlp0": solution((W_E + mlp0(W_E, P)) @ W_E.T, P),
    }


def mlp0(W_E: np.ndarray, P: np.ndarray) -> np.ndarray:  # [n, D], [n, n] -> [n, D]
    """The MLP's output for each word, solved so that (W_E + output) W_E^T is near log P."""
    rng = np.random.default_rng(0)
    c_fc = {
        "weight": rng.standard_normal((W_E.shape[1], UNITS)),
        "bias": rng.standard_normal(UNITS),
    }
    post = gelu_new(linear(W_E, **c_fc))  # [n, UNITS], the same for every P

    # The head's best input x [n, D] has x W_E^T nearest to the best scores, log P. least_squares
    # solves for the second factor of a product, so both sides are transposed: W_E x^T = scores^T.
    best_scores = centred_log(P)  # a constant in a row of scores changes no probability
    best_input = least_squares(W_E, best_scores.T).T

    # The MLP's output is added to W_E, so the output must be what W_E lacks.
    c_proj = least_squares(post, best_input - W_E)  # [UNITS, D]
    return post @ c_proj


def embedding_of(P: Any, D: int) -> np.ndarray:  # [n, n] -> [n, D]
    """The W_E whose least-squares W_U comes nearest to log P, from its singular vectors."""
    # The D highest singular values make the product of rank D that is nearest to log P. Its first
    # factor may have any scale; here both factors get the square roots of the values.
    U, s, _ = np.linalg.svd(centred_log(as_matrix("P", P)))
    return U[:, :D] * np.sqrt(s[:D])


def solution(scores: np.ndarray, P: np.ndarray, W_U: np.ndarray | None = None) -> Solution:
    """What scores S [n, n] predict, compared with the table P."""
    divergences = (P * (np.log(P) - log_softmax(scores))).sum(axis=1)  # [n]
    return Solution(
        scores=scores,
        probabilities=softmax(scores),
        kl=float(divergences.mean()),
        asymmetry=matrix_asymmetry(scores),
        W_U=W_U,
    )


def as_matrix(name: str, values: Any) -> np.ndarray:
    """values as a matrix of finite float64 numbers. Raises ArgumentError if they are not one."""
    try:
        matrix = np.asarray(values, np.float64)
    except (TypeError, ValueError):
        matrix = np.empty(0)  # not a matrix, so it is refused below
    if matrix.ndim != 2 or matrix.size == 0 or not np.isfinite(matrix).all():
        raise ArgumentError(f"{name} must be a matrix of finite numbers, got {short_repr(values)}")
    return matrix
