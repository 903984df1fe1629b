"""Measures that only the page has: signs of ln_f's gains, effective rank, asymmetry without means."""

import numpy as np

from tiedgpt import GPT2, TiedGPTError
from tiedgpt.study.direct_path import asymmetry
from tiedgpt.study.solved import PRIOR


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
    W = (W if W.shape[0] >= W.shape[1] else W.T).astype(np.float64)
    squares = W.T @ W
    if not np.isfinite(squares).all():
        raise TiedGPTError("a matrix with numbers that are not finite has no effective rank")
    s = np.sqrt(np.maximum(np.linalg.eigvalsh(squares), 0))
    p = s[s > 0] / s.sum()
    return float(np.exp(-(p @ np.log(p)))) if p.size else 0.0


def asymmetry_without_means(model: GPT2, tokens: np.ndarray) -> float | None:  # [n] -> in [0, 2]
    """The asymmetry of A = W_E W_U among `tokens`, with the means of its rows and columns removed.

    Compare it with `text_asymmetry`. None for fewer than two tokens.
    """
    if tokens.size < 2:
        return None
    W_E, W_U = (rows - rows.mean(axis=0) for rows in (model.W_E[tokens], model.W_U.T[tokens]))
    return asymmetry(W_E, W_U.T)


def text_asymmetry(pairs: np.ndarray) -> float | None:  # [n, n]
    """|A - A^T| / |A| for A the log bigram table of a text, with the means of its rows and columns removed.

    `pairs` are counts of pairs of frequent tokens. None for fewer than two tokens. Zeros: PRIOR pairs in
    proportion to the next tokens' counts are added to each row. On tinyshakespeare a PRIOR of 0.000001 or 100
    changes the result by less than 0.01.

    The means are removed because they say nothing about symmetry. A mean of a row changes no prediction. The
    means of columns are the token counts, and a table of these alone has an asymmetry of sqrt(2).
    """
    shares = pairs.sum(axis=0) / max(1, pairs.sum())
    seen = np.flatnonzero(shares)
    if seen.size < 2:
        return None
    A = np.log(pairs[np.ix_(seen, seen)] + PRIOR * shares[seen])
    A -= A.mean(axis=1, keepdims=True)
    A -= A.mean(axis=0)
    norm = np.linalg.norm(A)
    return float(np.linalg.norm(A - A.T) / norm) if norm else 0.0
