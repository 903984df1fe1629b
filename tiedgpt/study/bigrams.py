"""How near a path from one token to logits comes to the corpus's counts of what follows that token.

For each token t that the corpus holds at least 100 times, q_t[s] is the share of its successors that are
s, and a path's logits for t are measured against q_t by four numbers:

    top1, top5   of the path's k best tokens, how many are among q_t's k commonest, as a share of k
    kl           KL(q_t || p_t) = sum_s q_t[s] log(q_t[s] / p_t[s]) in nats, p_t the softmax of the logits
    spearman     the rank correlation of the logits with the counts, over the successors that t has

What is reported is the mean over the tokens, each counted once: the claims are about rows of A, and by
weight a few dozen tokens, the comma and the line's end among them, would decide it all. The baseline,
"unigram", predicts after every token the same: how often each token is in the corpus.

All four are kind to ties. Successors as common as the k-th commonest count as among the k; a token with
fewer than k successors is asked for those alone; spearman leaves out tokens whose successors are all
equally common (or equally scored), for which it is not defined.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..model import GPT2
from .corpus import Corpus
from .paths import best, blocks, log_probabilities, paths_of
from .similarity import spearman

MEASURES = ("top1", "top5", "kl", "spearman")
Scores = dict[str, float | None]


def bigrams(
    model: GPT2, corpus: Corpus, progress: Callable[[int], Any] | None = None
) -> dict[str, Scores] | None:
    """{path: {"top1", "top5", "kl", "spearman"}} for "unigram" and each path that the model has.

    None if no token is there often enough. `progress` is called with the number of tokens scored; each path
    scores all of them.
    """
    tokens = corpus.frequent()
    if tokens.size == 0:
        return None
    with np.errstate(divide="ignore"):  # log 0: a token that is not in the corpus follows none
        unigram = np.log(corpus.counts)
    baseline = {"unigram": lambda _, block: np.broadcast_to(unigram, (block.size, unigram.size))}
    report = {}
    for name, path in {**baseline, **paths_of(model)}.items():
        scores = []
        for block in blocks(tokens, model.config.vocab_size):
            for token, log_p in zip(block, log_probabilities(path(model, block)), strict=True):
                scores.append(score_row(log_p, *corpus.row(token)))
            if progress:
                progress(block.size)
        report[name] = {measure: mean([score[measure] for score in scores]) for measure in MEASURES}
    return report


def score_row(log_p: np.ndarray, successors: np.ndarray, followed: np.ndarray) -> Scores:
    """One token's four numbers: log_p [V] against the counts `followed` of its `successors`.

    >>> log_p = np.log([0.5, 0.125, 0.125, 0.25])
    >>> score_row(log_p, np.array([0, 2, 3]), np.array([4, 2, 2]))["top1"]
    1.0
    """
    q = followed / followed.sum()
    return {
        "top1": overlap(log_p, successors, followed, 1),
        "top5": overlap(log_p, successors, followed, 5),
        "kl": float(q @ (np.log(q) - log_p[successors])),
        "spearman": spearman(log_p[successors], followed),
    }


def overlap(log_p: np.ndarray, successors: np.ndarray, followed: np.ndarray, k: int) -> float:
    """The share of the k commonest successors (all, if there are fewer) among the k likeliest tokens."""
    k_of_them = min(k, followed.size)
    least = np.sort(followed)[-k_of_them]
    hits = np.isin(best(log_p, k), successors[followed >= least])
    return int(hits.sum()) / k_of_them


def mean(values: list[float | None]) -> float | None:
    """The mean of those that there are; None if there are none."""
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None
