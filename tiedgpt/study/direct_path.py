"""The direct path A = W_E W_U [V, V]: A[s, t] is the score that token s alone gives to t as its
successor.

In a tied model W_U = W_E^T, so A = W_E W_E^T is symmetric for any weights. A[t, t] is then the
squared length of t's embedding, so a token predicts itself unless a longer embedding points in a
similar direction. The code never builds A, because V x V takes 10 GB for GPT-2.

What a symmetric A costs. M [V, V] has the share of each pair of neighbours in a text. For every
symmetric A, softmax(A) has a cross entropy above the text's own by at least the Jensen-Shannon
divergence of M and M^T:

    JSD(M, M^T) = sum_ab M[a, b] log(M[a, b] / S[a, b]),    S = (M + M^T) / 2

scripts/tying_results/floor.md has the proof. The bound holds for the path `raw`, not for a tied
GPT-2 without layers: ln_f divides each embedding by its own standard deviation, so ln_f(W_E) W_E^T
is not symmetric.
"""

import math

import numpy as np

from ..errors import TiedGPTError
from ..gpt2.model import GPT2
from ..gpt2.run import OnProgress
from .corpus import MIN_TOKENS, Corpus
from .paths import raw, split_tokens

ROWS_AT_ONCE = 4096  # rows of W_E and W_U^T converted to float64 at a time


def direct_path(
    model: GPT2, corpus: Corpus | None = None, progress: OnProgress = None
) -> dict[str, float | None]:
    """{"asymmetry", "self_prediction", "self_prediction_frequent"}.

    self_prediction is the share of all tokens that predict themselves, self_prediction_frequent
    that of the corpus's frequent tokens (None for fewer than MIN_TOKENS): a token that never
    occurred in training still has nearly its random start. `progress` is called with the number of
    tokens done.
    """
    itself = predicts_itself(model, progress)
    frequent = np.empty(0, int) if corpus is None else corpus.frequent()
    return {
        "asymmetry": asymmetry(model.W_E, model.W_U),
        "self_prediction": float(itself.mean()),
        "self_prediction_frequent": float(itself[frequent].mean())
        if frequent.size >= MIN_TOKENS
        else None,
    }


def asymmetry(W_E: np.ndarray, W_U: np.ndarray) -> float:  # [V, D], [D, V] -> in [0, 2]
    """|A - A^T|_F / |A|_F for A = W_E W_U: 0 for a symmetric A and for A = 0; sqrt(2) for unrelated matrices.

    Computed from D x D matrices, with tr(XY) = tr(YX). |A - A^T|^2 = 2 |A|^2 - 2 tr(A A) is a
    difference of two large numbers if A is nearly symmetric, and its rounding error would look like
    an asymmetry of 1e-8. So subtract the symmetric W_E W_E^T first. With N = W_U^T - W_E, which is
    0 in a tied model:

        |A|^2 = tr((W_E^T W_E) (W_U W_U^T))
        |A - A^T|^2 = |W_E N^T - N W_E^T|^2 = 2 tr((W_E^T W_E) (N^T N)) - 2 tr((N^T W_E) (N^T W_E))
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
        raise TiedGPTError(
            "wte or lm_head holds a number that is not finite: the checkpoint is damaged"
        )
    return math.sqrt(max(difference, 0.0) / norm) if norm > 0 else 0.0


def predicts_itself(model: GPT2, progress: OnProgress = None) -> np.ndarray:  # -> [V] bool
    """For each token t, whether argmax_j A[t, j] = t."""
    V = model.config.vocab_size
    pieces = split_tokens(np.arange(V), V, progress)
    return np.concatenate([raw(model, piece).argmax(axis=1) == piece for piece in pieces])


def jsd_floor(corpus: Corpus) -> float:
    """The Jensen-Shannon divergence of M and M^T in nats, at most ln 2; 0 for a text without
    pairs."""
    V, counts = corpus.counts.size, corpus.pair_counts
    if not counts.size:
        return 0.0
    first, second = np.repeat(np.arange(V), np.diff(corpus.starts)), corpus.successors
    keys, reversed_keys = first * V + second, second * V + first  # keys are sorted
    place = np.minimum(np.searchsorted(keys, reversed_keys), keys.size - 1)
    opposite = np.where(keys[place] == reversed_keys, counts[place], 0)  # M^T where M is not 0
    return float(counts @ np.log(2 * counts / (counts + opposite)) / counts.sum())
