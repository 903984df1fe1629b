"""The direct path A = W_E W_U [V, V]: token s alone gives its successor t the score A[s, t].

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
    that of the corpus's frequent tokens, None for fewer than MIN_TOKENS. (A token that never
    occurred in training still has nearly its random start.) `progress` is called with the number of
    tokens done.
    """
    is_its_own_prediction = predicts_itself(model, progress)  # [V]
    share_of_frequent = None
    if corpus is not None:
        frequent = corpus.frequent()
        if frequent.size >= MIN_TOKENS:
            share_of_frequent = float(is_its_own_prediction[frequent].mean())
    return {
        "asymmetry": asymmetry(model.W_E, model.W_U),
        "self_prediction": float(is_its_own_prediction.mean()),
        "self_prediction_frequent": share_of_frequent,
    }


def asymmetry(W_E: np.ndarray, W_U: np.ndarray) -> float:  # [V, D], [D, V] -> in [0, 2]
    """|A - A^T| / |A| in Frobenius norms, for A = W_E W_U, without computing A.

    It is 0 for a symmetric A and for A = 0, and sqrt(2) for unrelated matrices. Raises TiedGPTError
    for numbers that are not finite.

    With N = W_U^T - W_E, which is 0 in a tied model, A = W_E W_E^T + X, where X = W_E N^T. The
    first of these is symmetric, so A - A^T = X - X^T, and |X - X^T|^2 = 2 |X|^2 - 2 tr(X X).
    Since |X|^2 = tr(X X^T), and tr(Y Z) = tr(Z Y), D x D matrices are enough:

        |A|^2   = tr(W_E W_U W_U^T W_E^T) = tr((W_E^T W_E) (W_U W_U^T))
        |X|^2   = tr(W_E N^T N W_E^T)     = tr((W_E^T W_E) (N^T N))
        tr(X X) = tr(W_E N^T W_E N^T)     = tr((N^T W_E) (N^T W_E))

    From A itself, |A - A^T|^2 is 2 |A|^2 - 2 tr(A A). If A is nearly symmetric, this is a
    difference of two large numbers, whose rounding error would look like an asymmetry of 1e-8.
    """
    D = W_E.shape[1]
    EE, NE, NN = np.zeros((3, D, D))  # W_E^T W_E, N^T W_E and N^T N, in float64
    for start in range(0, len(W_E), ROWS_AT_ONCE):
        rows = slice(start, start + ROWS_AT_ONCE)
        E = W_E[rows].astype(np.float64)
        N = W_U.T[rows].astype(np.float64) - E
        EE += E.T @ E
        NE += N.T @ E
        NN += N.T @ N
    UU = EE + NE + NE.T + NN  # W_U W_U^T = (W_E + N)^T (W_E + N), multiplied out

    # tr(Y Z) is the sum of Y * Z^T, so a product of two D x D matrices need not be computed.
    A_squared = (EE * UU.T).sum()  # |A|^2
    X_squared = (EE * NN.T).sum()  # |X|^2
    trace_of_XX = (NE * NE.T).sum()  # tr(X X)
    difference_squared = 2 * X_squared - 2 * trace_of_XX  # |A - A^T|^2
    if not math.isfinite(A_squared):
        raise TiedGPTError(
            "wte or lm_head holds a number that is not finite: the checkpoint is damaged"
        )
    if A_squared <= 0:
        return 0.0
    return math.sqrt(max(difference_squared, 0.0) / A_squared)  # rounding may give less than 0


def matrix_asymmetry(A: np.ndarray) -> float:  # [n, n] -> in [0, 2]
    """|A - A^T| / |A| in Frobenius norms, for a matrix that is in memory; 0 for A = 0."""
    norm = float(np.linalg.norm(A))
    if norm > 0:
        return float(np.linalg.norm(A - A.T)) / norm
    return 0.0


def predicts_itself(model: GPT2, progress: OnProgress = None) -> np.ndarray:  # -> [V] bool
    """For each token t, whether argmax_j A[t, j] = t."""
    V = model.config.vocab_size
    is_itself = []
    for tokens in split_tokens(np.arange(V), V, progress):
        predicted = raw(model, tokens).argmax(axis=1)
        is_itself.append(predicted == tokens)
    return np.concatenate(is_itself)


def jsd_floor(corpus: Corpus) -> float:
    """The Jensen-Shannon divergence of M and M^T in nats, at most ln 2.

    It is 0 for a text without pairs.
    """
    counts = corpus.pair_counts  # [P], the numbers of M that are not 0
    if counts.size == 0:
        return 0.0
    V = corpus.counts.size
    first = np.repeat(np.arange(V), np.diff(corpus.starts))  # [P], a of each pair (a, b)
    second = corpus.successors  # [P], b
    # One number stands for a pair. The pairs are in ascending order, so they can be searched.
    pairs = first * V + second
    reversed_pairs = second * V + first  # (b, a)
    places = np.searchsorted(pairs, reversed_pairs)
    places = np.minimum(places, pairs.size - 1)  # one that is above all would be after the end
    occurs = pairs[places] == reversed_pairs
    reversed_counts = np.where(occurs, counts[places], 0)  # [P], the numbers of M^T
    ratios = 2 * counts / (counts + reversed_counts)  # [P], M / S: the number of pairs cancels
    return float(counts @ np.log(ratios) / counts.sum())
