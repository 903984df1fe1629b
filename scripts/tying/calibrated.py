"""Each path after one fitted scale and the token counts: what does it add to the unigram?

The KL of a path (tiedgpt/study/bigrams.py) depends on the scale of its logits. A path may also lack
the frequencies of the tokens, which other parts of the model can add. Here the logits x_t [V] of a
path become

    scale x_t + weight log u        u: the shares of the tokens in the corpus

with the scale of at least 0 and the weight that have the lowest mean KL. They are fitted to one
half of the frequent tokens and used for the other half, so no token is scored by numbers that were
fitted to it.
"""

import numpy as np

from tiedgpt import GPT2
from tiedgpt.gpt2.ops import softmax
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.paths import Path, paths_of

STEPS = 20  # of Newton's method, each of a length of at most 1


def calibrated_paths(model: GPT2, corpus: Corpus) -> dict[str, Path]:
    """ "NAME+unigram" for each path of the model, as `others` of bigrams.bigrams.

    They are for the frequent tokens, and give the logit -inf to tokens that are not in the corpus.
    """
    return {
        f"{name}+unigram": calibrate(path, model, corpus) for name, path in paths_of(model).items()
    }


def calibrate(path: Path, model: GPT2, corpus: Corpus) -> Path:
    """A path with a scale and a weight of the unigram.

    Each half of the frequent tokens has those that are fitted to the other half.
    """
    tokens = corpus.frequent()
    seen = corpus.frequent(1)
    first_half = tokens[::2]
    second_half = tokens[1::2]
    log_u = np.log(corpus.counts[seen] / corpus.counts.sum()).astype(np.float32)

    def fitted(half: np.ndarray) -> np.ndarray:  # [n] -> [2]
        table = corpus.table(half, seen)
        bigrams = table / table.sum(axis=1, keepdims=True)
        return fit(path(model, half)[:, seen], log_u, bigrams)

    # Row 0 is for the tokens of the first half, row 1 for those of the second.
    scale, weight = np.array([fitted(second_half), fitted(first_half)], np.float32).T
    in_second = np.zeros(model.config.vocab_size, bool)
    in_second[second_half] = True

    def calibrated(model: GPT2, tokens: np.ndarray) -> np.ndarray:  # [n] -> [n, V]
        row = in_second[tokens].astype(int)
        logits = np.full((tokens.size, model.config.vocab_size), -np.inf, np.float32)
        scaled = path(model, tokens)[:, seen] * scale[row, None]
        logits[:, seen] = scaled + weight[row, None] * log_u
        return logits

    return calibrated


def fit(  # [n, S], [S], [n, S] -> [2]
    x: np.ndarray, log_u: np.ndarray, Q: np.ndarray
) -> np.ndarray:
    """The scale and the weight with the lowest mean KL(Q || softmax(scale x + weight log_u)).

    KL is convex in both, so Newton's method finds the only minimum. If that has a scale below 0,
    the best scale is 0.
    """
    # The scale is fitted in units in which x has a standard deviation of 1.
    spread = np.float32(x.std()) or np.float32(1)
    unit_x = x / spread
    scale, weight = newton(unit_x, log_u, Q)
    if scale < 0:
        return fit(np.zeros_like(x), log_u, Q)
    return np.array([scale / spread, weight])


def newton(  # [n, S], [S], [n, S] -> [2]
    x: np.ndarray, log_u: np.ndarray, Q: np.ndarray
) -> np.ndarray:
    """The scale and the weight where the gradient of the mean KL is 0."""
    n = len(x)
    wanted = np.array([(Q * x).sum(), (Q @ log_u).sum()], np.float64) / n
    numbers = np.array([0.0, 1.0])
    for _ in range(STEPS):
        scale = np.float32(numbers[0])
        weight = np.float32(numbers[1])
        p = softmax(scale * x + weight * log_u)
        px = p * x

        # The gradient is the difference of means, the Hessian the mean covariance.
        means = np.stack([px.sum(axis=1), p @ log_u], axis=1).astype(np.float64)  # [n, 2]
        both = float((px @ log_u).sum())
        squares = np.array([[float((px * x).sum()), both], [both, float((p @ log_u**2).sum())]])
        hessian = (squares - means.T @ means) / n
        step = np.linalg.solve(hessian + 1e-9 * np.eye(2), means.mean(axis=0) - wanted)
        numbers -= step / max(1.0, float(np.linalg.norm(step)))
    return numbers
