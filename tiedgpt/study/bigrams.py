"""How near each path from one token to logits is to the bigram counts of a text. Three measures.

`bigrams`: the scores of each path. For each token t that occurs at least 100 times in the text,
q_t[s] is the share of its successors that are s. These numbers compare a path's logits for t with
q_t:

    top1, top5   the share of the k most common successors that are among the path's k likeliest
    top1_chance, top5_chance    the same with the successors of another token than t
    mrr          the mean reciprocal rank of the next token: sum_s q_t[s] / (rank of s by the path)
    kl           KL(q_t || p_t) = sum_s q_t[s] log(q_t[s] / p_t[s]) in nats; p_t = softmax(logits)

A high top5 is worth something only above top5_chance, which is as high in a path that says the same
after every token. The kl of "raw" and "normed" depends most on the scale of their logits, which no
layer has made right. top1, top5 and mrr do not depend on it, for they read ranks.

The report has the mean over these tokens, each with the same weight: weighted by count, a few dozen
tokens such as the comma and the line break would decide the mean. The baseline "unigram" makes the
same prediction after every token: the counts of all tokens in the text.

Ties: all successors that are as common as the k-th most common one count as among the k. If a token
has fewer than k successors, k is their number.

`gains`: what a path adds to the token counts, which alone are near: a comma may follow many tokens.
Both get a weight, and the prediction for a token t is

    p_t = softmax(a logits_t + b log counts)    over the tokens of the text

The gain is in nats: how much nearer to q_t p_t is than the best softmax(b log counts). In the order
of their counts, every second frequent token fits the weights. The tokens between them measure the
gain, so a path gains nothing by chance. a may have either sign.

`mlp_numbers`: which MLP turns a token into the bigrams? The first, and is that special? A distance
is KL(text || path) in nats, the mean over the most frequent tokens of a text, after the one factor
on the logits that suits them best. The paths are

    alone     mlp0 with the MLP of each layer. All but the first are its control, MLPs that have
              never read a bare embedding
    without   the whole model without the MLP of layer l

If only the first MLP alone comes near, and only the model without it is far, the bigrams are there.
"""

import math
from collections.abc import Mapping
from typing import NamedTuple, TypedDict

import numpy as np

from ..gpt2.model import GPT2
from ..gpt2.ops import log_softmax
from ..gpt2.run import OnProgress
from .corpus import MIN_TOKENS, Corpus
from .paths import Path, log_probabilities, mlp0, normed, paths_of, split_tokens, top_k, whole_model
from .predictions import ablation
from .solved import best_factor

BLOCK = 2**21  # numbers of float64 at once
MAX_SCORES = 2**22  # n S, of a path in `mlp_numbers`: they are in memory at once
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
    with np.errstate(divide="ignore"):  # a token that is not in the corpus has log 0 = -inf
        log_counts = np.log(corpus.counts)  # [V]

    paths: dict[str, Path] = {
        # The same logits after every token, whatever the model is
        "unigram": lambda model, tokens: np.broadcast_to(
            log_counts, (tokens.size, log_counts.size)
        ),
        **paths_of(model),
        **(others or {}),
    }
    # For each token another one, whose successors give the numbers of chance.
    controls = np.roll(tokens, tokens.size // 2)
    report = {}
    for name, path in paths.items():
        scores: list[Scores] = []
        for piece in split_tokens(tokens, model.config.vocab_size, progress):
            for row, token in zip(path(model, piece), piece, strict=True):
                control = controls[len(scores)]  # there is a score for each token before this one
                scores.append(score_token(log_probabilities(row), token, control, corpus))
        # The plain mean: each token has the same weight, however common it is.
        report[name] = {
            number: float(np.mean([score[number] for score in scores])) for number in scores[0]
        }
    return report


def score_token(log_p: np.ndarray, token: int, control: int, corpus: Corpus) -> Scores:
    """The numbers of one token: log_p [V] against its successors.

    control: another token, whose successors give the numbers of chance.
    """
    successors, counts = corpus.row(token)
    q = counts / counts.sum()
    # For each successor, how many tokens are at most as likely, itself included.
    as_likely_or_less = np.searchsorted(np.sort(log_p), log_p[successors], side="right")
    likelier = log_p.size - as_likely_or_less
    ranks = 1 + likelier
    return {
        "top1": overlap(log_p, successors, counts, k=1),
        "top5": overlap(log_p, successors, counts, k=5),
        "mrr": float(q @ (1 / ranks)),
        "kl": float(q @ (np.log(q) - log_p[successors])),
        "top1_chance": overlap(log_p, *corpus.row(control), k=1),
        "top5_chance": overlap(log_p, *corpus.row(control), k=5),
    }


def overlap(log_p: np.ndarray, successors: np.ndarray, counts: np.ndarray, k: int) -> float:
    """The share of the k most common successors that are among the k likeliest tokens.

    With fewer than k successors, it is the share of all of them.
    """
    possible_hits = min(k, counts.size)
    kth_count = np.sort(counts)[-possible_hits]
    most_common = successors[counts >= kth_count]  # more than k if several are equally common
    hits = set(top_k(log_p, k).tolist()) & set(most_common.tolist())
    return len(hits) / possible_hits


# What a path adds to the token counts


def gains(
    model: GPT2, corpus: Corpus, paths: Mapping[str, Path], progress: OnProgress = None
) -> dict[str, dict[str, float]]:
    """{path: {"gain", "gain_error"}}: the mean gain, and its standard error over the tokens.

    The corpus must have frequent tokens. `progress` is called with the number of tokens done; every
    path has all frequent tokens.
    """
    tokens = corpus.by_count()  # [n]
    seen = corpus.frequent(min_count=1)  # [S]
    # Logits that are all 0 leave the prediction to the counts.
    no_path = np.broadcast_to(np.float32(0), (tokens.size, seen.size))
    nats_by_counts = fitted_cross_entropies(no_path, tokens, corpus)
    report = {}
    for name, path in paths.items():
        logits = np.empty((tokens.size, seen.size), np.float32)
        done = 0
        for piece in split_tokens(tokens, model.config.vocab_size, progress):
            logits[done : done + piece.size] = path(model, piece)[:, seen]
            done += piece.size
        nats_by_both = fitted_cross_entropies(logits, tokens, corpus)
        gain = nats_by_counts - nats_by_both  # [n // 2]
        report[name] = {
            "gain": float(gain.mean()),
            "gain_error": float(gain.std(ddof=1) / math.sqrt(gain.size)),
        }
    return report


def fitted_cross_entropies(  # [n, S], [n] -> [n // 2]
    logits: np.ndarray, tokens: np.ndarray, corpus: Corpus
) -> np.ndarray:
    """The cross entropy of every second token, in nats, by weights fitted to the tokens between.

    logits: of the S tokens that are in the corpus, after each of `tokens`.
    """
    seen = corpus.frequent(min_count=1)
    log_counts = np.log(corpus.counts[seen])
    # For each token two means over what follows it in the text: of its logits, and of log_counts
    by_text = np.empty((tokens.size, 2))
    for row, token in enumerate(tokens):
        successors, counts = corpus.row(token)
        places = np.searchsorted(seen, successors)
        q = counts / counts.sum()
        by_text[row] = q @ logits[row, places], q @ log_counts[places]
    weights = fit(logits[::2], log_counts, by_text[::2])
    return cross_entropies(weights, logits[1::2], log_counts, by_text[1::2]).of_rows


def fit(  # [m, S], [S], [m, 2] -> [2]
    logits: np.ndarray, log_counts: np.ndarray, by_text: np.ndarray
) -> np.ndarray:
    """The weights a and b with the lowest mean cross entropy, by Newton's method.

    by_text: for each row, the means of its logits and of log_counts over what follows in the text.
    The cross entropy is convex in a and b: it has one minimum. A step that goes too far is halved.
    """
    weights = np.array([0.0, 1.0])  # begin with the shares of the tokens in the text
    here = cross_entropies(weights, logits, log_counts, by_text)
    step = newton_step(here)
    for _ in range(100):  # the shipped models need fewer than ten
        still_to_gain = -here.gradient @ step  # in nats, by the slope here
        if still_to_gain < 1e-10:
            break
        there = cross_entropies(weights + step, logits, log_counts, by_text)
        if there.of_rows.mean() > here.of_rows.mean():
            step = step / 2
            continue
        weights = weights + step
        here = there
        step = newton_step(here)
    return weights


class CrossEntropies(NamedTuple):
    """Cross entropies in nats, and the derivatives of their mean by the two weights."""

    of_rows: np.ndarray  # [m]
    gradient: np.ndarray  # [2]
    curvature: np.ndarray  # [2, 2], the second derivatives


def newton_step(here: CrossEntropies) -> np.ndarray:  # -> [2]
    """The step to the lowest point, if the curvature were the same everywhere."""
    # Without a path, or with one that says what the counts say, one direction has no curvature but
    # that of rounding. lstsq takes no step there.
    step, *_ = np.linalg.lstsq(here.curvature, -here.gradient, rcond=1e-12)
    return step


def cross_entropies(
    weights: np.ndarray, logits: np.ndarray, log_counts: np.ndarray, by_text: np.ndarray
) -> CrossEntropies:
    """log(sum(exp(scores))) less the mean score by the text, of each row, and the derivatives.

    scores [m, S] = weights[0] logits + weights[1] log_counts. by_text [m, 2]: the means of logits
    and of log_counts by the text.
    """
    m, S = logits.shape
    of_rows = np.empty(m)
    gradient = np.zeros(2)
    curvature = np.zeros((2, 2))
    step = max(1, BLOCK // S)  # rows at once; one, if a row is longer than a block
    for start in range(0, m, step):
        rows = slice(start, start + step)
        x = logits[rows].astype(np.float64)
        scores = weights[0] * x + weights[1] * log_counts
        highest = scores.max(axis=1, keepdims=True)
        p = np.exp(scores - highest)  # at most 1, so nothing overflows
        sums = p.sum(axis=1, keepdims=True)
        p /= sums
        of_rows[rows] = (highest + np.log(sums))[:, 0] - by_text[rows] @ weights

        # The first derivatives of log(sum(exp(scores))) are the means of x and log_counts by p.
        px = p * x
        by_softmax = np.stack([px.sum(axis=1), p @ log_counts], axis=1)
        gradient += (by_softmax - by_text[rows]).sum(axis=0)
        # The second ones are their covariances: the means of products less the products of means.
        xx = (px * x).sum()
        xc = (px @ log_counts).sum()
        cc = (p @ log_counts**2).sum()
        curvature += np.array([[xx, xc], [xc, cc]]) - by_softmax.T @ by_softmax
    return CrossEntropies(of_rows, gradient / m, curvature / m)


# Which MLP makes bigrams


class MLPNumbers(TypedDict):
    """Distances from the bigrams, in nats. With one layer, those of other MLPs are None."""

    tokens: int  # over which the distances are means
    table: float  # the path normed: no MLP
    first_alone: float
    other_alone: float | None  # the lowest distance of the other MLPs
    model: float  # the whole model
    without_first: float
    without_other: float | None  # the highest distance without one of the other MLPs
    alone: list[float]  # by layer
    without: list[float]


def mlp_numbers(model: GPT2, corpus: Corpus, progress: OnProgress = None) -> MLPNumbers | None:
    """The distances of a model with layers; None without layers.

    `progress` is called with 1 after each of 2 L + 2 paths: each MLP alone, the model without each
    MLP, the path normed, and the model.
    """
    layers = range(model.config.n_layer)
    if not layers:
        return None
    # Each token has a score for each token seen: take the most frequent, with at most MAX_SCORES.
    seen = corpus.frequent(min_count=1).size
    tokens = corpus.by_count()[: MAX_SCORES // seen]

    def distance(logits: np.ndarray) -> float:
        nats = nats_from_bigrams(logits, tokens, corpus)
        if progress:
            progress(1)
        return nats

    alone = [distance(mlp0(model, tokens, layer)) for layer in layers]
    without = []
    for layer in layers:
        edit = ablation(model.config, [f"mlp.{layer}"])
        without.append(distance(whole_model(model, tokens, edit=edit)))
    return {
        "tokens": tokens.size,
        "table": distance(normed(model, tokens)),
        "first_alone": alone[0],
        "other_alone": min(alone[1:], default=None),
        "model": distance(whole_model(model, tokens)),
        "without_first": without[0],
        "without_other": max(without[1:], default=None),
        "alone": alone,
        "without": without,
    }


def nats_from_bigrams(  # [n, V], [n]
    logits: np.ndarray, tokens: np.ndarray, corpus: Corpus
) -> float:
    """KL(text || path), the mean over tokens, after the best single factor on the logits.

    Each of the tokens must have a successor, as frequent ones have.
    Without all layers, the scale of a path's logits means nothing, so it is not counted against it.
    """
    seen = corpus.frequent(min_count=1)  # [S]
    pairs = corpus.table(tokens, seen).astype(np.float64)
    Q = pairs / pairs.sum(axis=1, keepdims=True)
    scores = logits[:, seen].astype(np.float64)
    log_p = log_softmax(best_factor(scores, Q) * scores)
    log_q = np.log(np.where(Q > 0, Q, 1))  # where Q is 0, its term below is 0 too
    return float((Q * (log_q - log_p)).sum(axis=1).mean())
