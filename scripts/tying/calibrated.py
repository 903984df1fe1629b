"""Each path after one fitted scale and the token counts: what does it add to the unigram?

A path is a function path(model, tokens [n]) -> logits [n, V]: a way through the model from a token
to scores of the next one, such as the direct path W_E W_U (tiedgpt/study/paths.py). It is compared
with the bigrams of a text, for its frequent tokens, by KL: the divergence of the path's
probabilities from the shares of the tokens that follow. The unigram, the same prediction after
every token, is the counts of the tokens.

The KL of a path (tiedgpt/study/bigrams.py) depends on the scale of its logits. A path may also lack
the frequencies of the tokens, which other parts of the model can add. Here the logits x_t [V] of a
path become

    scale x_t + weight log u        u: the shares of the tokens in the corpus

with the scale of at least 0 and the weight that have the lowest mean KL. They are fitted to one
half of the frequent tokens and used for the other half, so no token is scored by numbers that were
fitted to it. S is the number of tokens that the corpus has, of all V.
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
    """The calibrated path: `path` with a scale, and with a weight of the unigram.

    The tokens of each half of the frequent tokens have the two numbers that are fitted to the other
    half.
    """
    tokens = corpus.frequent()
    seen = corpus.frequent(min_count=1)  # [S]
    first_half = tokens[::2]
    second_half = tokens[1::2]
    log_u = np.log(corpus.counts[seen] / corpus.counts.sum()).astype(np.float32)

    def fitted(half: np.ndarray) -> np.ndarray:  # [n] -> [2]
        """The scale and the weight that fit the tokens of one half best."""
        pair_counts = corpus.table(half, seen)  # [n, S]
        bigrams = pair_counts / pair_counts.sum(axis=1, keepdims=True)
        logits = path(model, half)[:, seen]
        return fit(logits, log_u, bigrams)

    # All tokens get the numbers that are fitted to the second half. Then the tokens of the second
    # half get those that are fitted to the first half instead.
    V = model.config.vocab_size
    scale = np.empty((V, 1), np.float32)
    weight = np.empty((V, 1), np.float32)
    scale[...], weight[...] = fitted(second_half)
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

    Q has the probabilities of the next token. KL is convex in both numbers, so Newton's method
    finds the only minimum. If the scale of the minimum is below 0, the best allowed scale is 0.
    """
    # Newton's method gets x in units in which its standard deviation is 1.
    spread = np.float32(x.std())
    if spread == 0:
        spread = np.float32(1)  # x cannot be divided by 0
    unit_x = x / spread
    scale, weight = newton(unit_x, log_u, Q)
    if scale < 0:
        return fit(np.zeros_like(x), log_u, Q)  # the best weight without x
    return np.array([scale / spread, weight])


def newton(  # [n, S], [S], [n, S] -> [2]
    x: np.ndarray, log_u: np.ndarray, Q: np.ndarray
) -> np.ndarray:
    """The scale and the weight where the gradient of the mean KL of `fit` is 0.

    Q: in each row, the probabilities of the next token. The two features of a token are its x and
    its log_u. The gradient is their mean under the softmax minus their mean under Q. The Hessian is
    their covariance under the softmax.
    """
    n = len(x)
    means_by_Q = np.array([(Q * x).sum(), (Q @ log_u).sum()], np.float64) / n
    numbers = np.array([0.0, 1.0])  # the scale and the weight of the unigram alone
    for _ in range(STEPS):
        scale = np.float32(numbers[0])
        weight = np.float32(numbers[1])
        p = softmax(scale * x + weight * log_u)
        px = p * x

        # The means of the features in each row, and the sums of their products over all rows.
        means = np.stack([px.sum(axis=1), p @ log_u], axis=1).astype(np.float64)  # [n, 2]
        x_x = float((px * x).sum())
        x_u = float((px @ log_u).sum())
        u_u = float((p @ log_u**2).sum())
        sums_of_products = np.array([[x_x, x_u], [x_u, u_u]])

        # In each row, a covariance is the mean of the products minus the product of the means. The
        # Hessian is the mean of the rows' covariances.
        sums_of_mean_products = means.T @ means
        hessian = (sums_of_products - sums_of_mean_products) / n
        gradient = means.mean(axis=0) - means_by_Q
        # If x is 0, or u is the same for all tokens, the Hessian alone has no inverse.
        invertible = hessian + 1e-9 * np.eye(2)
        step = np.linalg.solve(invertible, gradient)

        # Far from the minimum a whole step may go too far, so it is at most 1 long.
        numbers -= step / max(1.0, float(np.linalg.norm(step)))
    return numbers
