"""How much nearer to a text's bigrams is a path than the token counts are?

The counts alone are near: a comma may follow many tokens. So a path is measured by what it adds to
them. Both get a weight, and the prediction for a token t is

    p_t = softmax(a logits_t + b log counts)    over the tokens of the text

The gain is in nats: how much nearer to q_t, what follows t in the text, p_t is than the best
softmax(b log counts). In the order of their counts, every second frequent token fits the weights,
and the others measure the gain, so a path gains nothing by chance. a may have either sign. The
scale of the logits does not matter: that of a tied head with ln_f says nothing about bigrams.
"""

import math
from collections.abc import Mapping

import numpy as np

from ..gpt2.model import GPT2
from ..gpt2.run import OnProgress
from .corpus import Corpus
from .paths import Path, split_tokens

BLOCK = 2**21  # numbers of float64 at once


def gains(
    model: GPT2, corpus: Corpus, paths: Mapping[str, Path], progress: OnProgress = None
) -> dict[str, dict[str, float]]:
    """{path: {"gain", "gain_error"}}: the mean gain, and its standard error over the tokens.

    The corpus must have frequent tokens. `progress` is called with the number of tokens done; every
    path has all frequent tokens.
    """
    tokens = corpus.by_count()  # [n]
    seen = corpus.frequent(min_count=1)  # [S]
    no_path = np.broadcast_to(np.float32(0), (tokens.size, seen.size))
    nats_by_counts = nats(no_path, tokens, corpus)
    report = {}
    for name, path in paths.items():
        logits = np.empty((tokens.size, seen.size), np.float32)
        done = 0
        for piece in split_tokens(tokens, model.config.vocab_size, progress):
            logits[done : done + piece.size] = path(model, piece)[:, seen]
            done += piece.size
        gain = nats_by_counts - nats(logits, tokens, corpus)  # [n // 2]
        report[name] = {
            "gain": float(gain.mean()),
            "gain_error": float(gain.std(ddof=1) / math.sqrt(gain.size)),
        }
    return report


def nats(logits: np.ndarray, tokens: np.ndarray, corpus: Corpus) -> np.ndarray:
    """The cross entropy of every second of `tokens` [n], by weights that fit the others: [n // 2].

    logits [n, S] are those of the tokens of the corpus.
    """
    seen = corpus.frequent(min_count=1)
    log_counts = np.log(corpus.counts[seen])
    # For each token two means over what follows it in the text: of the logits, of log_counts
    by_text = np.empty((tokens.size, 2))
    for row, token in enumerate(tokens):
        successors, counts = corpus.row(token)
        places = np.searchsorted(seen, successors)
        q = counts / counts.sum()
        by_text[row] = q @ logits[row, places], q @ log_counts[places]
    weights = fit(logits[::2], log_counts, by_text[::2])
    return cross_entropies(weights, logits[1::2], log_counts, by_text[1::2])[0]


def fit(  # [m, S], [S], [m, 2] -> [2]
    logits: np.ndarray, log_counts: np.ndarray, by_text: np.ndarray
) -> np.ndarray:
    """The weights a and b with the lowest cross entropy, by Newton's method.

    by_text: for each row, the means of its logits and of log_counts over what follows in the text.
    The cross entropy is convex in both, so it has one minimum. A step that goes too far is halved.
    """
    weights = np.array([0.0, 1.0])
    here = cross_entropies(weights, logits, log_counts, by_text)
    step = newton_step(here)
    for _ in range(100):
        _, gradient, _ = here
        still_to_gain = -gradient @ step
        if still_to_gain < 1e-10:
            break
        there = cross_entropies(weights + step, logits, log_counts, by_text)
        if there[0].mean() > here[0].mean():
            step = step / 2
            continue
        weights = weights + step
        here = there
        step = newton_step(here)
    return weights


Derivatives = tuple[np.ndarray, np.ndarray, np.ndarray]  # [m], [2], [2, 2]


def newton_step(here: Derivatives) -> np.ndarray:  # -> [2]
    """The step to the lowest point, if the curvature were the same everywhere."""
    _, gradient, curvature = here
    # Without a path, or with one that says what the counts say, one direction has no curvature but
    # that of rounding. lstsq takes no step there.
    return np.linalg.lstsq(curvature, -gradient, rcond=1e-12)[0]


def cross_entropies(
    weights: np.ndarray, logits: np.ndarray, log_counts: np.ndarray, by_text: np.ndarray
) -> Derivatives:
    """The cross entropy of each row [m], and both derivatives of their mean by the two weights."""
    m, S = logits.shape
    result = np.empty(m)
    gradient = np.zeros(2)
    curvature = np.zeros((2, 2))
    step = max(1, BLOCK // S)
    for start in range(0, m, step):
        rows = slice(start, start + step)
        x = logits[rows].astype(np.float64)
        scores = weights[0] * x + weights[1] * log_counts
        highest = scores.max(axis=1, keepdims=True)
        p = np.exp(scores - highest)
        sums = p.sum(axis=1, keepdims=True)
        p /= sums
        result[rows] = (highest + np.log(sums))[:, 0] - by_text[rows] @ weights

        # The derivative of log(sum(exp(scores))) is the mean by p, the second one the covariance.
        px = p * x
        by_softmax = np.stack([px.sum(axis=1), p @ log_counts], axis=1)
        gradient += (by_softmax - by_text[rows]).sum(axis=0)
        xx = (px * x).sum()
        xc = (px @ log_counts).sum()
        cc = (p @ log_counts**2).sum()
        curvature += np.array([[xx, xc], [xc, cc]]) - by_softmax.T @ by_softmax
    return result, gradient / m, curvature / m
