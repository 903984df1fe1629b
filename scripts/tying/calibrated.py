"""Calibrated paths: what does a path add to the unigram, if its logits have the best scale?

A path is a function path(model, tokens [n]) -> logits [n, V]: a way through the model from a token
to scores of the next one, such as the direct path W_E W_U (tiedgpt/study/paths.py). A corpus is a
text with the counts of its tokens and of its pairs of neighbours. Q [V] has, for one token of the
corpus, the share of each token among those that follow it. A path is compared with the corpus by
the KL divergence of the path's probabilities from Q, for the frequent tokens of the corpus.

The KL of a path (tiedgpt/study/bigrams.py) depends on the scale of its logits. A path may also lack
the frequencies of the tokens, which other parts of the model can add. The unigram u [V] has the
share of each token in the corpus, and predicts the same after every token. A calibrated path has,
in place of the logits x [V] of a path after one token, the logits

    scale x + weight log u

The scale, of at least 0, and the weight are those with the lowest mean KL. They are fitted to one
half of the frequent tokens and used for the other half. So a token is scored by numbers that were
not fitted to it. Of the V tokens of the vocabulary, S are seen: they occur in the corpus.
"""

import numpy as np

from tiedgpt import GPT2
from tiedgpt.gpt2.ops import softmax
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.paths import Path, paths_of

STEPS = 20  # of Newton's method


def calibrated_paths(model: GPT2, corpus: Corpus) -> dict[str, Path]:
    """The calibrated paths of a model, named "NAME+unigram" after the path NAME.

    A calibrated path is called with frequent tokens only. It gives the logit -inf to tokens that
    are not in the corpus.
    """
    return {
        f"{name}+unigram": calibrate(path, model, corpus) for name, path in paths_of(model).items()
    }


def calibrate(path: Path, model: GPT2, corpus: Corpus) -> Path:
    """The calibrated path that is made of `path`."""
    frequent = corpus.frequent()
    seen = corpus.frequent(min_count=1)  # [S]
    first_half = frequent[::2]
    second_half = frequent[1::2]
    log_u = np.log(corpus.counts[seen] / corpus.counts.sum()).astype(np.float32)

    def fitted(half: np.ndarray) -> np.ndarray:  # [n] -> [2]
        """The scale and the weight that are the best for the tokens of one half."""
        pair_counts = corpus.table(half, seen)  # [n, S]
        Q = pair_counts / pair_counts.sum(axis=1, keepdims=True)
        logits = path(model, half)[:, seen]
        return fit(logits, log_u, Q)

    # The scale and the weight of each frequent token are fitted to the half without the token.
    V = model.config.vocab_size
    scale = np.full((V, 1), np.nan, np.float32)  # remains nan for tokens that are not frequent
    weight = np.full((V, 1), np.nan, np.float32)
    scale[first_half], weight[first_half] = fitted(second_half)
    scale[second_half], weight[second_half] = fitted(first_half)

    def calibrated(model: GPT2, tokens: np.ndarray) -> np.ndarray:  # [n] -> [n, V]
        """The logits scale x + weight log u; -inf for tokens that are not in the corpus."""
        logits = np.full((tokens.size, V), -np.inf, np.float32)
        scaled = path(model, tokens)[:, seen] * scale[tokens]
        logits[:, seen] = scaled + weight[tokens] * log_u
        return logits

    return calibrated


def fit(  # [n, S], [S], [n, S] -> [2]
    x: np.ndarray, log_u: np.ndarray, Q: np.ndarray
) -> np.ndarray:
    """The scale and the weight with the lowest mean KL(Q || softmax(scale x + weight log_u)).

    x has the logits of a path, and Q the probabilities of the next token: one row for each token.
    KL is convex in both numbers, so Newton's method finds the only minimum. If the scale at the
    minimum is below 0, the best allowed scale is 0.
    """
    # Newton's method gets x divided by its standard deviation.
    spread = np.float32(x.std())
    if spread == 0:
        spread = np.float32(1)  # all of x is the same; it cannot be divided by 0
    scale, weight = newton(x / spread, log_u, Q)
    if scale < 0:
        # Fit the weight alone: with an x of 0, the scale that is found is 0.
        return fit(np.zeros_like(x), log_u, Q)
    return np.array([scale / spread, weight])


def newton(  # [n, S], [S], [n, S] -> [2]
    x: np.ndarray, log_u: np.ndarray, Q: np.ndarray
) -> np.ndarray:
    """The scale and the weight with the lowest mean KL(Q || softmax(scale x + weight log_u)).

    Each row has the probabilities Q of the next token. The two features of a next token are its x
    and its log_u. The gradient of the KL is the mean of the features under the softmax minus their
    mean under Q. The Hessian is the covariance of the features under the softmax.
    """
    n = len(x)
    means_under_Q = np.array([(Q * x).sum(), (Q @ log_u).sum()], np.float64) / n
    numbers = np.array([0.0, 1.0])  # the scale and the weight; at the start, the unigram alone
    for _ in range(STEPS):
        scale = np.float32(numbers[0])
        weight = np.float32(numbers[1])
        p = softmax(scale * x + weight * log_u)  # a large array, in float32; its sums are float64
        px = p * x

        # The means of the features in each row, and the sums of their products over all rows.
        means = np.stack([px.sum(axis=1), p @ log_u], axis=1).astype(np.float64)  # [n, 2]
        x_x = float((px * x).sum())
        x_u = float((px @ log_u).sum())
        u_u = float((p @ log_u**2).sum())
        sums_of_products = np.array([[x_x, x_u], [x_u, u_u]])

        # In each row, a covariance is the mean of the products minus the product of the means. The
        # Hessian is the mean of the rows' covariances. The product of two columns of `means` adds
        # up the products of a row's means over all rows.
        sums_of_mean_products = means.T @ means
        hessian = (sums_of_products - sums_of_mean_products) / n
        gradient = means.mean(axis=0) - means_under_Q
        # The Hessian has no inverse if x is 0, or u is the same for all tokens. The sum has one.
        invertible = hessian + 1e-9 * np.eye(2)
        step = np.linalg.solve(invertible, gradient)

        # Far from the minimum a whole step may go too far, so it is at most 1 long.
        numbers -= step / max(1.0, float(np.linalg.norm(step)))
    return numbers
