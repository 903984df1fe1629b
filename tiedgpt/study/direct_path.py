"""The direct path A = W_E W_U [V, V]: A[s, t] is the score that token s alone gives to t as its successor.

In a tied model W_U = W_E^T, so A = W_E W_E^T is symmetric for any weights. A[t, t] is then the squared length
of t's embedding, so a token predicts itself unless a longer embedding points in a similar direction.

The code never builds A, because V x V takes 10 GB for GPT-2.
"""

import math

import numpy as np

from ..errors import TiedGPTError
from ..model import GPT2
from .corpus import MIN_TOKENS, Corpus
from .paths import Progress, raw, split_tokens

ROWS_AT_ONCE = 4096  # rows of W_E and W_U^T converted to float64 at a time


def direct_path(
    model: GPT2, corpus: Corpus | None = None, progress: Progress = None
) -> dict[str, float | None]:
    """{"asymmetry", "self_prediction", "self_prediction_frequent"}.

    self_prediction is the share of all tokens that predict themselves, self_prediction_frequent that of the
    corpus's frequent tokens (None for fewer than MIN_TOKENS): a token that never occurred in training still
    has nearly its random start. `progress` is called with the number of tokens done.
    """
    itself = predicts_itself(model, progress)
    frequent = np.empty(0, int) if corpus is None else corpus.frequent()
    return {
        "asymmetry": asymmetry(model.W_E, model.W_U),
        "self_prediction": float(itself.mean()),
        "self_prediction_frequent": float(itself[frequent].mean()) if frequent.size >= MIN_TOKENS else None,
    }


def asymmetry(W_E: np.ndarray, W_U: np.ndarray) -> float:  # [V, D], [D, V] -> in [0, 2]
    """|A - A^T|_F / |A|_F for A = W_E W_U: 0 if A is symmetric, about sqrt(2) if W_E and W_U are unrelated.

    Computed from D x D matrices, with tr(XY) = tr(YX):

        |A|^2 = tr(W_E W_U W_U^T W_E^T) = tr((W_E^T W_E) (W_U W_U^T))

    |A - A^T|^2 = 2 |A|^2 - 2 tr(A A) is a difference of two large numbers if A is nearly symmetric, and its
    rounding error would look like an asymmetry of 1e-8. So subtract the symmetric W_E W_E^T first. With
    N = W_U^T - W_E, the difference between the head and a tied one:

        A - A^T = W_E N^T - N W_E^T
        |A - A^T|^2 = 2 tr((W_E^T W_E) (N^T N)) - 2 tr((N^T W_E) (N^T W_E))

    A tied model has N = 0 and so an asymmetry of exactly 0. A = 0 counts as symmetric.
    """
    D = W_E.shape[1]
    products = np.zeros((2 * D, 2 * D))  # [W_E, N]^T [W_E, N], in float64; W_U^T = W_E + N
    for start in range(0, len(W_E), ROWS_AT_ONCE):
        E, U = (W[start : start + ROWS_AT_ONCE].astype(np.float64) for W in (W_E, W_U.T))
        both = np.hstack([E, U - E])
        products += both.T @ both
    EE, NE, NN = products[:D, :D], products[D:, :D], products[D:, D:]
    norm = (EE * (EE + NE + NE.T + NN)).sum()  # the trace of EE @ UU, because both are symmetric
    difference = 2 * (EE * NN).sum() - 2 * (NE * NE.T).sum()
    if not math.isfinite(norm):
        raise TiedGPTError("wte or lm_head holds a number that is not finite: the checkpoint is damaged")
    return math.sqrt(max(difference, 0.0) / norm) if norm > 0 else 0.0


def predicts_itself(model: GPT2, progress: Progress = None) -> np.ndarray:  # -> [V] bool
    """For each token t, whether argmax_j A[t, j] = t."""
    V = model.config.vocab_size
    hits = []
    for piece in split_tokens(np.arange(V), V):
        hits.append(raw(model, piece).argmax(axis=1) == piece)
        if progress:
            progress(piece.size)
    return np.concatenate(hits)
