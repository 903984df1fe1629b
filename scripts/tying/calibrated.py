"""Each path after one fitted scale and the token counts: what does it add to the unigram?

The KL of a path (tiedgpt/study/bigrams.py) depends on the scale of its logits. A path may also lack the
frequencies of the tokens, which other parts of the model can add. Here the logits x_t [V] of a path become

    scale x_t + weight log u        u: the shares of the tokens in the corpus

with the scale of at least 0 and the weight that have the lowest mean KL. They are fitted to one half of the
frequent tokens and used for the other half, so no token is scored by numbers that were fitted to it.

Two more paths leave out A's diagonal. What is left if no token has a score for
itself?
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from tiedgpt import GPT2
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.paths import MAX_LOGITS, PATHS, Path, paths_of

from .fits import lbfgs

STEPS = 50  # of the fit, at most


def calibrated_paths(
    model: GPT2, corpus: Corpus, progress: Callable[[int], Any] | None = None
) -> dict[str, Path]:
    """{"raw-diagonal", "normed-diagonal"}, and "NAME+unigram" for these and each path of the model.

    Give them to bigrams.bigrams as `others`: it has "top1", "top5", "mrr" and "kl" of each beside those of
    "unigram". The calibrated ones are for the frequent tokens, and give the logit -inf to tokens that are not
    in the corpus. `progress` is called with 1 after each fit.
    """
    without: dict[str, Path] = {
        f"{name}-diagonal": partial(off_diagonal, PATHS[name]) for name in ("raw", "normed")
    }
    calibrated = {}
    for name, path in {**paths_of(model), **without}.items():
        calibrated[f"{name}+unigram"] = calibrate(path, model, corpus)
        if progress:
            progress(1)
    return {**without, **calibrated}


def off_diagonal(path: Path, model: GPT2, tokens: np.ndarray) -> np.ndarray:  # [n] -> [n, V]
    """The path's scores, with each token's score for itself replaced by the mean of its other scores."""
    A = path(model, tokens)
    place = np.arange(len(A)), tokens
    A[place] = (A.sum(axis=1) - A[place]) / max(1, A.shape[1] - 1)
    return A


def calibrate(path: Path, model: GPT2, corpus: Corpus) -> Path:
    """A path with its scale and the weight of the unigram, each half of the tokens by the other's."""
    tokens, seen = corpus.frequent(), corpus.frequent(1)
    log_u = np.log(corpus.counts[seen] / corpus.counts.sum()).astype(np.float32)
    in_second = np.zeros(model.config.vocab_size, bool)
    in_second[tokens[1::2]] = True
    most = max(1, MAX_LOGITS // model.config.vocab_size)  # tokens to fit to: two numbers need no more
    fitted = []
    for half in (tokens[1::2], tokens[::2]):  # the first tokens are scored by what fits the second half
        some = half[np.linspace(0, half.size - 1, min(half.size, most)).astype(int)]
        table = corpus.table(some, seen)
        fitted.append(fit(path(model, some)[:, seen], log_u, table / table.sum(axis=1, keepdims=True)))
    scale, weight = np.array(fitted, np.float32).T

    def calibrated(model: GPT2, tokens: np.ndarray) -> np.ndarray:  # [n] -> [n, V]
        which = in_second[tokens].astype(int)
        logits = np.full((tokens.size, model.config.vocab_size), -np.inf, np.float32)
        logits[:, seen] = path(model, tokens)[:, seen] * scale[which, None] + weight[which, None] * log_u
        return logits

    return calibrated


def fit(x: np.ndarray, log_u: np.ndarray, Q: np.ndarray) -> np.ndarray:  # [n, S], [S], [n, S] -> [2]
    """The scale and the weight with the lowest mean KL(Q || softmax(scale x + weight log_u)).

    KL is convex in both, so this is the only minimum; if it has a scale below 0, the best scale is 0.
    """
    spread = float(x.std()) or 1.0  # in units of which the scale is fitted
    features = (x / np.float32(spread), log_u)
    wanted = np.array([float((Q * feature).sum()) for feature in features]) / len(x)

    def objective(at: np.ndarray) -> tuple[float, np.ndarray]:
        logits = sum(np.float32(number) * feature for number, feature in zip(at, features, strict=True))
        top = logits.max(axis=1, keepdims=True)
        p = np.exp(logits - top)
        sums = p.sum(axis=1, keepdims=True)
        p /= sums
        means = np.array([float((p * feature).sum()) for feature in features]) / len(x)
        return float((top + np.log(sums)).mean(dtype=np.float64) - at @ wanted), means - wanted

    scale, weight = lbfgs(objective, np.array([0.0, 1.0]), STEPS)[0]
    return np.array([scale / spread, weight]) if scale >= 0 else fit(np.zeros_like(x), log_u, Q)
