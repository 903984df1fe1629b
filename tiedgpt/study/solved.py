"""The best output matrix for a given embedding: how much of what a direct path misses is the head?

The inputs are X [n, D], ln_f of each frequent token's embedding, as in the path `normed`. Q [n, S]
has the shares of what follows each of them in the corpus, over the S tokens of the corpus. Four
paths share these inputs and differ in the head only:

    normed          X W_U                the model's own head; tied, W_U = W_E^T
    scaled          X W_U times the one factor that fits best, for the S tokens only
    least_squares   X W, W = pinv(X) log Q, in closed form
    solved          X W, W such that the mean KL(Q || softmax(X W)) is lowest

So the KL of `normed` is the sum of three parts. normed - scaled: the scale of the logits. scaled -
solved: the head; in a tied model, this is the price of the tie. solved: the rank, what no W [D, S]
mends.

KL is convex in W, so `solved` has no local minima. It is fitted to the pairs that measure it, so it
says nothing about another text.
"""

import math
from functools import partial

import numpy as np

from ..errors import TiedGPTError
from ..gpt2.model import GPT2
from ..gpt2.ops import softmax
from ..gpt2.run import OnProgress
from .corpus import Corpus
from .paths import Path, final_norm

STEPS = 300  # the KL of the shipped models is then 0.02 nats above that after 1,000
MAX_PRODUCTS = 2**35  # n D S, for a step. A larger fit would take more than half an hour
# Pairs that are added to each row in proportion to the corpus's tokens, so that log Q is finite.
PRIOR = 10.0


def solved_paths(model: GPT2, corpus: Corpus, progress: OnProgress = None) -> dict[str, Path]:
    """The paths "scaled", "least_squares" and "solved", for the frequent tokens of the corpus.

    Tokens that are not in the corpus get the logit -inf. {} if the corpus has too many tokens for
    the fit. After each step of the fit, `progress` is called with 1. Raises TiedGPTError for a
    damaged checkpoint.
    """
    tokens = corpus.frequent()  # [n]
    seen = corpus.frequent(min_count=1)  # [S], all tokens of the corpus
    if tokens.size * seen.size * model.config.n_embd > MAX_PRODUCTS:
        return {}
    X = final_norm(model, model.W_E[tokens])  # [n, D]
    if not np.isfinite(X).all():
        raise TiedGPTError("ln_f of the embeddings is not finite: the checkpoint is damaged")

    pair_counts = corpus.table(tokens, seen)  # [n, S]
    Q = pair_counts / pair_counts.sum(axis=1, keepdims=True)

    # The prior adds a little to every count, because a pair that never occurs has no logarithm. The
    # logs of counts and of shares differ by a constant in each row, and centred they are equal. So
    # the counts need not be divided by their sums.
    prior = PRIOR * corpus.counts[seen] / corpus.counts.sum()  # [S]
    smoothed_counts = pair_counts + prior.astype(np.float32)  # [n, S]
    W = least_squares(X, centred_log(smoothed_counts))

    solved = fit_softmax(X, Q, W, progress=progress)
    scaled = model.W_U[:, seen]  # [D, S], a copy
    scaled *= np.float32(best_factor(X @ scaled, Q))
    return {
        "scaled": partial(path_to_seen, seen, scaled),
        "least_squares": partial(path_to_seen, seen, W),
        "solved": partial(path_to_seen, seen, solved),
    }


def path_to_seen(  # [S], [D, S], [n] -> [n, V]
    seen: np.ndarray, W: np.ndarray, model: GPT2, tokens: np.ndarray
) -> np.ndarray:
    """The path through the head W to the tokens `seen`; all others get the logit -inf."""
    scores = final_norm(model, model.W_E[tokens]) @ W  # [n, S]
    logits = np.full((tokens.size, model.config.vocab_size), -np.inf, scores.dtype)
    logits[:, seen] = scores
    return logits


def least_squares(X: np.ndarray, Y: np.ndarray) -> np.ndarray:  # [n, D], [n, S] -> [D, S]
    """The W for which X W is nearest to Y; the shortest, if there are several."""
    return np.linalg.pinv(X) @ Y


def centred_log(table: np.ndarray) -> np.ndarray:  # [n, S] -> [n, S]
    """log `table`, which has numbers above 0, less the mean of each row, which softmax ignores."""
    log_table = np.log(table)
    return log_table - log_table.mean(axis=1, keepdims=True)


def fit_softmax(  # [n, D], [n, S], [D, S] -> [D, S]
    X: np.ndarray, Q: np.ndarray, W: np.ndarray, steps: int = STEPS, progress: OnProgress = None
) -> np.ndarray:
    """The W with the lowest KL(Q || softmax(X W)), summed over rows; it starts from the given W.

    X is replaced by orthonormal columns U with the same span, X = U R. The second derivative of the
    KL in R W is then at most 1/2 [Böhning 1992], so a step of 2 times the gradient never
    overshoots. Nesterov's momentum, which restarts when it points uphill, makes the steps count.
    """
    # The singular value decomposition gives U and R. Values of 0, but for rounding, are left out.
    U, singular, Vh = np.linalg.svd(X, full_matrices=False)
    # `initial` is for an X without rows, which has no singular value.
    rounding = singular.max(initial=0) * max(X.shape) * np.finfo(X.dtype).eps
    is_kept = singular > rounding
    U = U[:, is_kept]
    R = singular[is_kept, None] * Vh[is_kept]

    # From here on, the unknown is M = R W, so that the logits are X W = U M.
    M = descend(U, Q, (R @ W).astype(X.dtype), steps, progress)  # W may be in float64
    return least_squares(R, M)


def descend(  # [n, r], [n, S], [r, S] -> [r, S]
    U: np.ndarray, Q: np.ndarray, M: np.ndarray, steps: int, progress: OnProgress
) -> np.ndarray:
    """The M with the lowest KL(Q || softmax(U M)), from a first M.

    U has orthonormal columns, so the second derivative of the KL is at most 1/2, and a step of 2
    times the gradient never overshoots. With Nesterov's momentum, the gradient is computed at M
    plus momentum times the last change.
    """
    step = 2  # the inverse of the highest second derivative
    ahead = M  # where the gradient is computed
    t = 1.0  # Nesterov's sequence 1, 1.6, 2.2, ...; with it the momentum grows from 0 towards 1
    for _ in range(steps):
        difference = softmax(U @ ahead)  # [n, S]
        difference -= Q
        gradient = U.T @ difference  # [r, S], of the KL
        new_M = ahead - step * gradient
        change = new_M - M
        M = new_M

        is_uphill = np.vdot(gradient, change) > 0
        if is_uphill:
            # The momentum starts again from 0.
            momentum = 0.0
            t = 1.0
        else:
            next_t = (1 + math.sqrt(1 + 4 * t * t)) / 2
            momentum = (t - 1) / next_t
            t = next_t
        ahead = M + momentum * change
        if progress:
            progress(1)
    return M


def missing(scores: dict[str, dict[str, float]]) -> dict[str, float] | None:
    """The three parts of the KL of `normed`, from the scores of bigrams.py; None without a fit."""
    if "solved" not in scores:
        return None
    normed = scores["normed"]["kl"]
    scaled = scores["scaled"]["kl"]
    solved = scores["solved"]["kl"]
    return {"scale": normed - scaled, "head": scaled - solved, "rank": solved}


def best_factor(scores: np.ndarray, Q: np.ndarray) -> float:  # [n, S], [n, S]
    """The factor a of at least 0 for which KL(Q || softmax(a scores)), summed over rows, is lowest.

    KL is convex in a, and its derivative is the mean score by softmax less that by Q. So the factor
    is where both means are equal, which bisection finds.
    """
    mean_by_Q = float((Q * scores).sum())
    low = 0.0
    high = 2.0**20  # no factor of a model's logits comes near it
    for _ in range(50):  # the last interval is 1e-9 wide
        middle = (low + high) / 2
        p = softmax(np.float32(middle) * scores)  # which leaves float32 scores float32
        mean_by_softmax = float((p * scores).sum())
        if mean_by_softmax > mean_by_Q:
            high = middle
        else:
            low = middle
    return low
