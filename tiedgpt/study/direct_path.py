"""The direct path A = W_E W_U [V, V]: what a token's embedding says about the next token by itself.

Tied, W_U = W_E^T, so A = W_E W_E^T is symmetric whatever the weights, and its diagonal is squared lengths:
a token says itself, unless a longer one lies in its direction. A is never built: V x V is 10 GB for GPT-2.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import TiedGPTError
from ..model import GPT2
from .corpus import Corpus
from .paths import blocks, raw

ROWS = 4096  # of the vocabulary, turned into float64 at a time


def direct_path(
    model: GPT2, corpus: Corpus | None = None, progress: Callable[[int], Any] | None = None
) -> dict[str, float | None]:
    """{"asymmetry", "self_prediction", "self_prediction_frequent"}.

    The last is of the tokens that the corpus holds often enough for its bigrams, None if there are none: a
    token that training never met has kept its random start, and says what that says. `progress` is called
    with the number of tokens in each block looked at.
    """
    itself = predicts_itself(model, progress)
    frequent = None if corpus is None else itself[corpus.frequent()]
    return {
        "asymmetry": asymmetry(model),
        "self_prediction": float(itself.mean()),
        "self_prediction_frequent": None if frequent is None or not frequent.size else float(frequent.mean()),
    }


def asymmetry(model: GPT2) -> float:
    """|A - A^T|_F / |A|_F: 0 for a symmetric A, sqrt(2) for independent random matrices, 2 at most.

    Exactly, from D x D matrices alone, by tr(XY) = tr(YX):

        |A|^2 = tr(W_E W_U W_U^T W_E^T) = tr((W_E^T W_E) (W_U W_U^T))

    subtle: |A - A^T|^2 = 2 |A|^2 - 2 tr(A A) would be a difference of large numbers just where A is
    nearly symmetric, and its rounding would show as 1e-8. With N = W_U^T - W_E, how far the head is from
    tied, the symmetric W_E W_E^T drops out first:

        A - A^T = W_E N^T - N W_E^T
        |A - A^T|^2 = 2 tr((W_E^T W_E) (N^T N)) - 2 tr((N^T W_E) (N^T W_E))

    so that a tied model has exactly 0. A = 0 is symmetric.
    """
    D = model.config.n_embd
    EE, UU, NN, NE = np.zeros((4, D, D))  # float64: W_E^T W_E, W_U W_U^T, N^T N, N^T W_E
    for start in range(0, model.config.vocab_size, ROWS):
        E = model.W_E[start : start + ROWS].astype(np.float64)
        U = model.W_U.T[start : start + ROWS].astype(np.float64)
        N = U - E
        EE += E.T @ E
        UU += U.T @ U
        NN += N.T @ N
        NE += N.T @ E
    norm = (EE * UU).sum()  # EE and UU are symmetric: the trace of their product
    difference = 2 * (EE * NN).sum() - 2 * (NE * NE.T).sum()
    if not math.isfinite(norm):
        raise TiedGPTError("wte or lm_head holds what is not a finite number: the checkpoint is damaged")
    return math.sqrt(max(difference, 0.0) / norm) if norm > 0 else 0.0


def predicts_itself(model: GPT2, progress: Callable[[int], Any] | None = None) -> np.ndarray:  # -> [V] bool
    """For each token t whether argmax_j A[t, j] = t, by blocks of rows."""
    V = model.config.vocab_size
    hits = []
    for block in blocks(np.arange(V), V):
        hits.append(raw(model, block).argmax(axis=1) == block)
        if progress:
            progress(block.size)
    return np.concatenate(hits)
