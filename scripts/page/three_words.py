"""Part 3 of the article: three words as arrows, in a text that was made up.

TABLE [n, n] has the share with which each word (a column) follows each word (a row). A model of
these words has an arrow for each word, a row of W_E [n, 2], and gives scores S [n, n]. Softmax of a
row of S is what the model predicts after a word:

    tied      S = W_E W_E^T    "New York" and "York New" have the same score
    untied    S = W_E W_U      a column of W_U [2, n] is the hollow arrow of a word
"""

from typing import Any

import numpy as np
from scipy.optimize import minimize

from tiedgpt.gpt2.ops import log_softmax
from tiedgpt.study.solved import centred_log, least_squares

from .pictures import decimal

WORDS = ("New", "York", "City")
TABLE = ((0.05, 0.90, 0.05), (0.10, 0.05, 0.85), (0.60, 0.30, 0.10))
START = ((1.0, 0.5), (0.8, 0.9), (0.3, 1.2))  # the tied arrows that the page shows first
START_HOLLOW = ((1.1, 0.2), (0.3, 1.2), (-0.4, -1.2))  # and its first hollow arrows, not solved yet
LARGEST = 1.2  # of a number of an arrow; longer ones come hardly nearer, and leave the picture
STARTS = 40  # of the search for the best tied arrows


def three_words() -> tuple[dict[str, Any], dict[str, str]]:
    """The arrows and the table, as figures.json has them, and what the text says of them."""
    P = np.array(TABLE)
    start = np.array(START)
    best = best_tied(P)
    W_E = best_untied(P)
    W_U = least_squares(W_E, centred_log(P))
    part = {
        "words": WORDS,
        "text": P.tolist(),
        "tied": START,
        "best": best.round(2).tolist(),
        "E": W_E.round(2).tolist(),
        "untied": START_HOLLOW,
        "U": W_U.T.round(2).tolist(),  # one row for each word
    }
    texts = {
        "toy.new-york": f"{100 * P[0, 1]:.0f} %",
        "toy.start": decimal(nats_from(start @ start.T, P)),
        "toy.tied": decimal(nats_from(best @ best.T, P)),
        "toy.guess": decimal(nats_from(np.zeros_like(P), P)),
        "toy.untied": decimal(nats_from(W_E @ W_U, P)),
        "toy.untied.start": decimal(nats_from(W_E @ np.transpose(START_HOLLOW), P)),
    }
    return part, texts


def nats_from(scores: np.ndarray, P: np.ndarray) -> float:  # [n, n], [n, n]
    """KL(P || softmax(scores)), the mean over the rows."""
    return float((P * (np.log(P) - log_softmax(scores))).sum(axis=1).mean())


def best_tied(P: np.ndarray) -> np.ndarray:  # [n, n] -> [n, 2]
    """The tied arrows that fit in the picture and come nearest to the text; best of STARTS."""

    def distance(numbers: np.ndarray) -> float:
        W_E = numbers.reshape(len(P), 2)
        return nats_from(W_E @ W_E.T, P)

    fits = []
    for seed in range(STARTS):
        start = np.random.default_rng(seed).normal(size=2 * len(P))
        fits.append(minimize(distance, start, bounds=[(-LARGEST, LARGEST)] * start.size))
    best = min(fits, key=lambda fit: float(fit.fun))
    return np.asarray(best.x).reshape(len(P), 2)


def best_untied(P: np.ndarray) -> np.ndarray:  # [n, n] -> [n, 2]
    """The W_E whose least-squares W_U comes nearest to log P, from its singular vectors."""
    # The two highest singular values make the product of rank 2 that is nearest to log P. Its first
    # factor may have any scale; here both factors get the square roots of the values.
    U, s, _ = np.linalg.svd(centred_log(P))
    return U[:, :2] * np.sqrt(s[:2])
