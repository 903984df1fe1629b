"""Numbers to follow while a model trains: the signs of ln_f's gains, the effective rank of a matrix."""

import numpy as np

from ..errors import TiedGPTError
from ..model import GPT2
from .direct_path import ROWS_AT_ONCE


def negative_gains(model: GPT2) -> dict[str, float]:
    """{"count", "share"} of the D gains of ln_f that are below 0."""
    negative = model.tree["ln_f"]["weight"] < 0
    return {"count": int(negative.sum()), "share": float(negative.mean())}


def effective_rank(W: np.ndarray) -> float:  # [m, n] -> in [1, min(m, n)]
    """exp(-sum_i p_i log p_i), with p_i = s_i / sum_j s_j and s the singular values [Roy & Vetterli 2007].

    0 for a matrix of zeros. The squares of s are the eigenvalues of W^T W, or of W W^T if W has fewer rows.

    >>> round(effective_rank(np.diag([3.0, 3.0, 0.0])), 3)
    2.0
    """
    W = W if W.shape[0] >= W.shape[1] else W.T
    squares = np.zeros((W.shape[1], W.shape[1]))
    for start in range(0, len(W), ROWS_AT_ONCE):
        rows = W[start : start + ROWS_AT_ONCE].astype(np.float64)
        squares += rows.T @ rows
    if not np.isfinite(squares).all():
        raise TiedGPTError("a matrix with numbers that are not finite has no effective rank")
    s = np.sqrt(np.maximum(np.linalg.eigvalsh(squares), 0))
    p = s[s > 0] / s.sum()
    return float(np.exp(-(p @ np.log(p)))) if p.size else 0.0
