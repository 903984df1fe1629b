"""Compare each path from one token to logits with the bigram counts of a text.

For each token t that occurs at least 100 times in the text, q_t[s] is the share of its successors
that are s. Four numbers compare a path's logits for t with q_t:

    top1, top5   how many of the k most common successors are among the path's k likeliest tokens, as a share
    mrr          the mean reciprocal rank of the next token: sum_s q_t[s] / (the rank of s by the path)
    kl           KL(q_t || p_t) = sum_s q_t[s] log(q_t[s] / p_t[s]) in nats, p_t the softmax of the logits

The report has the mean over these tokens, each with the same weight: weighted by count, a few dozen
tokens such as the comma and the line break would decide the mean. The baseline "unigram" makes the
same prediction after every token: the counts of all tokens in the text.

Ties: all successors that are as common as the k-th most common one count as among the k. If a token
has fewer than k successors, k is their number.
"""

from collections.abc import Mapping

import numpy as np

from ..gpt2.model import GPT2
from ..gpt2.run import OnProgress
from .corpus import MIN_TOKENS, Corpus
from .paths import Path, log_probabilities, paths_of, split_tokens, top_k

Scores = dict[str, float]


def bigrams(
    model: GPT2,
    corpus: Corpus,
    progress: OnProgress = None,
    others: Mapping[str, Path] | None = None,
) -> dict[str, Scores] | None:
    """{path: {"top1", "top5", "mrr", "kl"}} for "unigram", each path of the model, and `others`.

    None if the corpus has fewer than MIN_TOKENS frequent tokens. `progress` is called with the
    number of tokens scored; every path scores all frequent tokens.
    """
    tokens = corpus.frequent()
    if tokens.size < MIN_TOKENS:
        return None
    with np.errstate(divide="ignore"):  # log 0 = -inf: a token that is not in the corpus
        unigram = np.log(corpus.counts)
    baseline = {"unigram": lambda _, piece: np.broadcast_to(unigram, (piece.size, unigram.size))}
    report = {}
    for name, path in {**baseline, **paths_of(model), **(others or {})}.items():
        scores: list[Scores] = []
        for piece in split_tokens(tokens, model.config.vocab_size, progress):
            rows = zip(piece, path(model, piece), strict=True)
            scores += [score_row(log_probabilities(row), *corpus.row(token)) for token, row in rows]
            del rows  # and the logits, before the next ones are computed
        report[name] = {of: float(np.mean([score[of] for score in scores])) for of in scores[0]}
    return report


def score_row(log_p: np.ndarray, successors: np.ndarray, counts: np.ndarray) -> Scores:
    """The four numbers for one token: log_p [V] against the `counts` of its `successors`.

    >>> log_p = np.log([0.5, 0.125, 0.125, 0.25])
    >>> score_row(log_p, np.array([0, 2, 3]), np.array([4, 2, 2]))["top1"]
    1.0
    """
    q = counts / counts.sum()
    ranks = 1 + log_p.size - np.searchsorted(np.sort(log_p), log_p[successors], side="right")
    return {
        "top1": overlap(log_p, successors, counts, 1),
        "top5": overlap(log_p, successors, counts, 5),
        "mrr": float(q @ (1 / ranks)),  # a rank is 1 and the number of tokens that are likelier
        "kl": float(q @ (np.log(q) - log_p[successors])),
    }


def overlap(log_p: np.ndarray, successors: np.ndarray, counts: np.ndarray, k: int) -> float:
    """The share of the k most common successors (all, if there are fewer) among the k likeliest
    tokens."""
    wanted = min(k, counts.size)
    most_common = successors[counts >= np.sort(counts)[-wanted]]
    return int(np.isin(top_k(log_p, k), most_common).sum()) / wanted
