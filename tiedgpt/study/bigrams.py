"""Compare each path from one token to logits with the bigram counts of a text.

For each token t that occurs at least 100 times in the text, q_t[s] is the share of its successors
that are s. These numbers compare a path's logits for t with q_t:

    top1, top5   the share of the k most common successors that are among the path's k likeliest
    top1_chance, top5_chance    the same with the successors of another token than t
    mrr          the mean reciprocal rank of the next token: sum_s q_t[s] / (rank of s by the path)
    kl           KL(q_t || p_t) = sum_s q_t[s] log(q_t[s] / p_t[s]) in nats; p_t = softmax(logits)

A high top5 is worth something only above its chance level: a path that says the same after every
token has both. The kl of "raw" and "normed" depends most on the scale of their logits, which no
layer has made right: weighted.py measures what they add to the counts at any scale.

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
    """{path: its numbers} for "unigram", each path of the model, and `others`.

    `others` are paths by name. The result is None if the corpus has fewer than MIN_TOKENS frequent
    tokens. `progress` is called with the number of tokens scored; every path scores all frequent
    tokens.
    """
    tokens = corpus.by_count()
    if tokens.size < MIN_TOKENS:
        return None
    with np.errstate(divide="ignore"):  # log 0 = -inf: a token that is not in the corpus
        log_counts = np.log(corpus.counts)  # [V]

    def unigram(model: GPT2, tokens: np.ndarray) -> np.ndarray:  # [n] -> [n, V]
        """A path whose logits are the same after every token. It does not use the model."""
        return np.broadcast_to(log_counts, (tokens.size, log_counts.size))

    paths: dict[str, Path] = {"unigram": unigram}
    paths.update(paths_of(model))
    if others is not None:
        paths.update(others)

    others_of = np.roll(tokens, tokens.size // 2)  # another token for each
    report = {}
    for name, path in paths.items():
        scores: list[Scores] = []
        for piece in split_tokens(tokens, model.config.vocab_size, progress):
            other_piece = others_of[len(scores) : len(scores) + piece.size]
            scores += score_rows(path(model, piece), piece, other_piece, corpus)
        report[name] = mean_scores(scores)
    return report


def score_rows(
    logits: np.ndarray, tokens: np.ndarray, others: np.ndarray, corpus: Corpus
) -> list[Scores]:
    """The numbers for each of `tokens` [n]; logits [n, V], and another token for each [n]."""
    scores = []
    for token, other, row in zip(tokens, others, logits, strict=True):
        log_p = log_probabilities(row)
        numbers = score_row(log_p, *corpus.row(token))
        for k in (1, 5):
            numbers[f"top{k}_chance"] = overlap(log_p, *corpus.row(other), k)
        scores.append(numbers)
    return scores


def mean_scores(scores: list[Scores]) -> Scores:
    """The mean of each number; each token has the same weight."""
    means = {}
    for number in scores[0]:
        means[number] = float(np.mean([score[number] for score in scores]))
    return means


def score_row(log_p: np.ndarray, successors: np.ndarray, counts: np.ndarray) -> Scores:
    """The four numbers for one token: log_p [V] against the `counts` of its `successors`.

    >>> log_p = np.log([0.5, 0.125, 0.125, 0.25])
    >>> score_row(log_p, np.array([0, 2, 3]), np.array([4, 2, 2]))["top1"]
    1.0
    """
    q = counts / counts.sum()
    # For each successor, this counts the tokens that are as likely or less likely, itself included.
    as_likely_or_less = np.searchsorted(np.sort(log_p), log_p[successors], side="right")
    likelier = log_p.size - as_likely_or_less
    ranks = 1 + likelier
    return {
        "top1": overlap(log_p, successors, counts, 1),
        "top5": overlap(log_p, successors, counts, 5),
        "mrr": float(q @ (1 / ranks)),
        "kl": float(q @ (np.log(q) - log_p[successors])),
    }


def overlap(log_p: np.ndarray, successors: np.ndarray, counts: np.ndarray, k: int) -> float:
    """The share of the k most common successors that are among the k likeliest tokens.

    With fewer than k successors, it is the share of all of them.
    """
    possible_hits = min(k, counts.size)
    kth_count = np.sort(counts)[-possible_hits]
    most_common = successors[counts >= kth_count]  # more than k if several are equally common
    is_hit = np.isin(top_k(log_p, k), most_common)
    return int(is_hit.sum()) / possible_hits
