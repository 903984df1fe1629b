"""Paths from one token to logits. Each uses more of the model than the one before.

    raw      W_E[t]                                           -> W_U     a row of A = W_E W_U
    normed   W_E[t]                                   -> ln_f -> W_U     a GPT-2 without layers
    mlp0     W_E[t] -> W_E[t] + MLP_0(ln_2 of W_E[t]) -> ln_f -> W_U     block 0, no attention
    model    W_E[t] + wpe[0] -> every block           -> ln_f -> W_U     the model, for prompt [t]

The first three add no position embedding, because they ask what a token predicts at any position.
`raw` skips ln_f, so the scale of its logits has no meaning: use only their order.

Each path is a function path(model, tokens [n]) -> logits [n, V], biases included. Give it many
tokens in pieces (`split_tokens`).

The first is the direct path, A = W_E W_U [V, V]: token s alone gives its successor t the score
A[s, t]. In a tied model W_U = W_E^T, so A = W_E W_E^T is symmetric for any weights. A[t, t] is then
the squared length of t's embedding, so a token predicts itself unless a longer embedding points in
a similar direction. The code never builds A, because V x V takes 10 GB for GPT-2.

What a symmetric A costs. M [V, V] has the share of each pair of neighbours in a text. For every
symmetric A, softmax(A) has a cross entropy above the text's own by at least the Jensen-Shannon
divergence of M and M^T:

    JSD(M, M^T) = sum_ab M[a, b] log(M[a, b] / S[a, b]),    S = (M + M^T) / 2

scripts/tying_results/floor.md has the proof. The bound holds for the path `raw`, not for a tied
GPT-2 without layers: ln_f divides each embedding by its own standard deviation, so ln_f(W_E) W_E^T
is not symmetric.
"""

import math
from collections.abc import Callable, Iterator

import numpy as np

from ..errors import TiedGPTError
from ..gpt2.checks import check_logits
from ..gpt2.model import GPT2, mlp, norm, unembed
from ..gpt2.ops import log_softmax
from ..gpt2.run import Edits, OnProgress, Run
from .corpus import MIN_TOKENS, Corpus

MAX_LOGITS = 2**23  # computed at once: 32 MB in float32
ROWS_AT_ONCE = 4096  # rows of W_E and W_U^T converted to float64 at a time


def raw(model: GPT2, tokens: np.ndarray) -> np.ndarray:  # [n] -> [n, V]
    """A[t] = W_E[t] W_U."""
    return unembed(model.W_E[tokens], model.W_U)


def normed(model: GPT2, tokens: np.ndarray) -> np.ndarray:  # [n] -> [n, V]
    """ln_f(W_E[t]) W_U."""
    return final_logits(model, model.W_E[tokens])


def mlp0(model: GPT2, tokens: np.ndarray, layer: int = 0) -> np.ndarray:  # [n] -> [n, V]
    """ln_f(W_E[t] + MLP_0(ln_2(W_E[t]))) W_U, with block 0's ln_2. The model must have a block.

    layer: the block whose ln_2 and MLP are used, to compare the first with another one.
    """
    block = model.tree["h"][layer]
    resid_mid = model.W_E[tokens]
    mlp_in = norm(resid_mid, block["ln_2"], model.config)
    run = Run(model.config)  # records and edits nothing
    mlp_out = mlp(mlp_in, **block["mlp"], layer=layer, run=run)
    return final_logits(model, resid_mid + mlp_out)


def whole_model(  # [n] -> [n, V]
    model: GPT2, tokens: np.ndarray, start: int | None = None, edit: Edits | None = None
) -> np.ndarray:
    """The model's logits for a prompt of one token.

    start: a token that begins a document, which the prompt then has before its one token. Many
        models have never seen a text that begins with another token.
    """
    prompts = tokens[:, None]  # [n, 1]: each token is a prompt
    if start is not None:
        prompts = np.stack([np.full_like(tokens, start), tokens], axis=1)  # [n, 2]
    final = model.final(prompts, edit=edit)
    return unembed(final[:, -1], model.W_U)


def final_logits(model: GPT2, resid: np.ndarray) -> np.ndarray:  # [..., D] -> [..., V]
    """Apply ln_f and the output matrix to a residual stream."""
    return unembed(final_norm(model, resid), model.W_U)


def final_norm(model: GPT2, resid: np.ndarray) -> np.ndarray:  # [..., D] -> [..., D]
    return norm(resid, model.tree["ln_f"], model.config)


Path = Callable[[GPT2, np.ndarray], np.ndarray]
PATHS: dict[str, Path] = {"raw": raw, "normed": normed, "mlp0": mlp0, "model": whole_model}
PATH_PARTS = {  # the parts of the model that each path uses, for reports
    "raw": "W_E, W_U",
    "normed": "W_E, ln_f, W_U",
    "mlp0": "W_E, first MLP, ln_f, W_U",
    "model": "the whole model",
}


def paths_of(model: GPT2) -> dict[str, Path]:
    """The paths that exist in the model: without layers there is no mlp0."""
    paths = dict(PATHS)
    if model.config.n_layer == 0:
        del paths["mlp0"]
    return paths


def split_tokens(tokens: np.ndarray, V: int, progress: OnProgress = None) -> Iterator[np.ndarray]:
    """`tokens` [n] in pieces [m] whose logits [m, V] are at most MAX_LOGITS numbers."""
    step = max(1, MAX_LOGITS // V)  # one token, if its logits alone are more
    for start in range(0, tokens.size, step):
        piece = tokens[start : start + step]
        yield piece
        if progress:
            progress(piece.size)


def log_probabilities(logits: np.ndarray) -> np.ndarray:  # [..., V] -> [..., V] float64
    """log_softmax in float64. A logit of -inf is a probability of 0.

    Raises TiedGPTError for a row with nan or inf.
    """
    # The highest logit of a row with nan or inf is nan or inf.
    check_logits(logits.max(axis=-1))
    return log_softmax(logits.astype(np.float64))


def top_k(scores: np.ndarray, k: int) -> np.ndarray:  # [V] -> [k]
    """The ids of the k highest scores, or of all if there are fewer, highest first.

    Of equal scores, that of the lower id comes first.

    >>> top_k(np.array([0.5, 3.0, 1.0, 2.0]), 3).tolist(), top_k(np.zeros(9), 2).tolist()
    ([1, 3, 2], [0, 1])
    """
    # A partition finds the k-th highest score without sorting the whole vocabulary. If there are
    # not more than k scores, all are above -inf or equal to it.
    kth_highest = -np.inf
    if k < scores.size:
        kth_highest = np.partition(scores, -k)[-k]
    candidates = np.flatnonzero(scores >= kth_highest)  # more than k if there are equal scores
    order = np.argsort(-scores[candidates], kind="stable")
    return candidates[order][:k]


# The direct path


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
    places = np.minimum(places, pairs.size - 1)  # above all pairs, the place is after the last one
    occurs = pairs[places] == reversed_pairs
    reversed_counts = np.where(occurs, counts[places], 0)  # [P], the numbers of M^T
    ratios = 2 * counts / (counts + reversed_counts)  # [P], M / S: the number of pairs cancels
    return float(counts @ np.log(ratios) / counts.sum())
