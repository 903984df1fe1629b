"""The direct path A = W_E W_U [V, V]: A[s, t] is the score that token s alone gives to t as its successor.

In a tied model W_U = W_E^T, so A = W_E W_E^T is symmetric for any weights. A[t, t] is then the squared length
of t's embedding, so a token predicts itself unless a longer embedding points in a similar direction.

The code never builds A, because V x V takes 10 GB for GPT-2.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import TiedGPTError
from ..model import GPT2
from .corpus import MIN_TOKENS, Corpus
from .paths import raw, split_tokens

ROWS_AT_ONCE = 4096  # rows of W_E and W_U^T converted to float64 at a time


def direct_path(
    model: GPT2, corpus: Corpus | None = None, progress: Callable[[int], Any] | None = None
) -> dict[str, float | None]:
    """{"asymmetry", "asymmetry_frequent", "self_prediction", "self_prediction_frequent"}.

    asymmetry_frequent is that of A among the corpus's frequent tokens, without the means of its rows and
    columns; compare it with symmetry.text_asymmetry. self_prediction is the share of all tokens that predict
    themselves, self_prediction_frequent that of the corpus's frequent tokens. A token that never occurred in
    training still has nearly its random start, so the second number says more. Both numbers of frequent
    tokens are None if there are fewer than MIN_TOKENS of them. After each piece of work, `progress` is called
    with the number of tokens in it; all tokens are read twice.
    """
    itself = predicts_itself(model, progress)
    frequent = np.empty(0, int) if corpus is None else corpus.frequent()
    enough = frequent.size >= MIN_TOKENS
    return {
        "asymmetry": asymmetry(model, progress),
        "asymmetry_frequent": asymmetry(model, tokens=frequent) if enough else None,
        "self_prediction": float(itself.mean()),
        "self_prediction_frequent": float(itself[frequent].mean()) if enough else None,
    }


def asymmetry(
    model: GPT2, progress: Callable[[int], Any] | None = None, tokens: np.ndarray | None = None
) -> float:
    """|A - A^T|_F / |A|_F: 0 for a symmetric A, about sqrt(2) for independent random matrices, at most 2.

    Computed from D x D matrices, with tr(XY) = tr(YX):

        |A|^2 = tr(W_E W_U W_U^T W_E^T) = tr((W_E^T W_E) (W_U W_U^T))

    |A - A^T|^2 = 2 |A|^2 - 2 tr(A A) is a difference of two large numbers if A is nearly symmetric, and its
    rounding error would look like an asymmetry of 1e-8. So subtract the symmetric W_E W_E^T first. With
    N = W_U^T - W_E, the difference between the head and a tied one:

        A - A^T = W_E N^T - N W_E^T
        |A - A^T|^2 = 2 tr((W_E^T W_E) (N^T N)) - 2 tr((N^T W_E) (N^T W_E))

    A tied model has N = 0 and so an asymmetry of exactly 0. A = 0 counts as symmetric.

    With `tokens` [n], A has these rows and columns only, and their means are subtracted: that of each row
    changes no prediction, and those of the columns can come from the frequencies of the tokens alone.
    """
    D, W_E, W_U = model.config.n_embd, model.W_E, model.W_U.T
    if tokens is not None:
        W_E, W_U = (rows - rows.mean(axis=0) for rows in (W_E[tokens], W_U[tokens]))
    EE, UU, NN, NE = np.zeros((4, D, D))  # W_E^T W_E, W_U W_U^T, N^T N, N^T W_E, in float64
    for start in range(0, len(W_E), ROWS_AT_ONCE):
        E = W_E[start : start + ROWS_AT_ONCE].astype(np.float64)
        U = W_U[start : start + ROWS_AT_ONCE].astype(np.float64)
        N = U - E
        EE += E.T @ E
        UU += U.T @ U
        NN += N.T @ N
        NE += N.T @ E
        if progress:
            progress(len(E))
    norm = (EE * UU).sum()  # the trace of EE @ UU, because both are symmetric
    difference = 2 * (EE * NN).sum() - 2 * (NE * NE.T).sum()
    if not math.isfinite(norm):
        raise TiedGPTError("wte or lm_head holds a number that is not finite: the checkpoint is damaged")
    return math.sqrt(max(difference, 0.0) / norm) if norm > 0 else 0.0


def predicts_itself(model: GPT2, progress: Callable[[int], Any] | None = None) -> np.ndarray:  # -> [V] bool
    """For each token t, whether argmax_j A[t, j] = t."""
    V = model.config.vocab_size
    hits = []
    for piece in split_tokens(np.arange(V), V):
        hits.append(raw(model, piece).argmax(axis=1) == piece)
        if progress:
            progress(piece.size)
    return np.concatenate(hits)
