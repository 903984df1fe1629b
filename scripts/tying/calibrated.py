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
    """A path with its scale and the weight of the unigram, each half of the tokens by the
    other's."""
    tokens, seen = corpus.frequent(), corpus.frequent(1)
    log_u = np.log(corpus.counts[seen] / corpus.counts.sum()).astype(np.float32)
    in_second = np.zeros(model.config.vocab_size, bool)
    in_second[tokens[1::2]] = True
    fitted = []
    for half in (
        tokens[1::2],
        tokens[::2],
    ):  # the first tokens are scored by what fits the second half
        table = corpus.table(half, seen)
        fitted.append(
            fit(path(model, half)[:, seen], log_u, table / table.sum(axis=1, keepdims=True))
        )
    scale, weight = np.array(fitted, np.float32).T

    def calibrated(model: GPT2, tokens: np.ndarray) -> np.ndarray:  # [n] -> [n, V]
        which = in_second[tokens].astype(int)
        logits = np.full((tokens.size, model.config.vocab_size), -np.inf, np.float32)
        logits[:, seen] = (
            path(model, tokens)[:, seen] * scale[which, None] + weight[which, None] * log_u
        )
        return logits

    return calibrated


def fit(
    x: np.ndarray, log_u: np.ndarray, Q: np.ndarray
) -> np.ndarray:  # [n, S], [S], [n, S] -> [2]
    """The scale and the weight with the lowest mean KL(Q || softmax(scale x + weight log_u)).

    KL is convex in both, so Newton's method finds the only minimum; if that has a scale below 0,
    the best scale is 0.
    """
    spread = np.float32(x.std()) or np.float32(1)  # in units of which the scale is fitted
    n, x = len(x), x / spread
    wanted = np.array([(Q * x).sum(), (Q @ log_u).sum()], np.float64) / n
    at = np.array([0.0, 1.0])
    for _ in range(STEPS):
        p = softmax(np.float32(at[0]) * x + np.float32(at[1]) * log_u)
        px = p * x
        means = np.stack([px.sum(axis=1), p @ log_u], axis=1).astype(np.float64)  # [n, 2]
        both = float((px @ log_u).sum())
        squares = np.array([[float((px * x).sum()), both], [both, float((p @ log_u**2).sum())]])
        hessian = (squares - means.T @ means) / n
        step = np.linalg.solve(hessian + 1e-9 * np.eye(2), means.mean(axis=0) - wanted)
        at -= step / max(1.0, float(np.linalg.norm(step)))
    scale, weight = at
    return np.array([scale / spread, weight]) if scale >= 0 else fit(np.zeros_like(x), log_u, Q)
