"""Which MLP turns a token into the bigrams? The first, and is that special?

A distance is KL(text || path) in nats, the mean over the most frequent tokens of a text, after the
one factor on the logits that suits them best: how far a path is from the bigrams. The paths are

    alone     W_E[t] + MLP_l(ln_2 of W_E[t]) -> ln_f -> W_U, for each layer l. The first is the path
              mlp0; the others are its control, MLPs that have never read a bare embedding
    without   the whole model without the MLP of layer l

If only the first MLP alone comes near, and only the model without it is far, the bigrams are there.
"""

from functools import partial
from typing import TypedDict

import numpy as np

from ..gpt2.model import GPT2, mlp, unembed
from ..gpt2.ops import layer_norm, log_softmax
from ..gpt2.run import OnProgress, Run
from .attribution import ablation
from .corpus import Corpus
from .paths import Path, final_logits, normed, whole_model
from .solved import best_factor

MAX_SCORES = 2**22  # n S, of a path


class MLPNumbers(TypedDict):
    """Distances from the bigrams, in nats. The "other" ones are None with one layer."""

    tokens: int  # over which the distances are means
    table: float  # the path normed: no MLP
    first_alone: float
    other_alone: float | None  # the nearest of the others
    model: float
    without_first: float
    without_other: float | None  # the farthest
    alone: list[float]  # by layer
    without: list[float]


def mlp_numbers(model: GPT2, corpus: Corpus, progress: OnProgress = None) -> MLPNumbers | None:
    """The distances of a model with layers; None without layers.

    `progress` is called with 1 after each path; there are `path_count`.
    """
    layers = range(model.config.n_layer)
    if not layers:
        return None
    tokens = probed_tokens(corpus)

    def distance(path: Path) -> float:
        nats = nats_from_bigrams(path(model, tokens), tokens, corpus)
        if progress:
            progress(1)
        return nats

    alone = [distance(partial(mlp_alone, layer)) for layer in layers]
    without = [distance(partial(without_mlp, layer)) for layer in layers]
    return {
        "tokens": tokens.size,
        "table": distance(normed),
        "first_alone": alone[0],
        "other_alone": min(alone[1:], default=None),
        "model": distance(whole_model),
        "without_first": without[0],
        "without_other": max(without[1:], default=None),
        "alone": alone,
        "without": without,
    }


def path_count(model: GPT2) -> int:
    return 2 * model.config.n_layer + 2


def probed_tokens(corpus: Corpus) -> np.ndarray:  # -> [n]
    """The most frequent tokens, so many that their scores fit into memory."""
    seen = corpus.frequent(min_count=1).size
    return corpus.by_count()[: max(1, MAX_SCORES // seen)]


def mlp_alone(layer: int, model: GPT2, tokens: np.ndarray) -> np.ndarray:  # [n] -> [n, V]
    """The logits of tokens that go through one MLP and nothing else."""
    block = model.tree["h"][layer]
    resid = model.W_E[tokens]
    mlp_in = layer_norm(resid, **block["ln_2"], eps=model.config.layer_norm_epsilon)
    return final_logits(
        model, resid + mlp(mlp_in, **block["mlp"], layer=layer, run=Run(model.config))
    )


def without_mlp(layer: int, model: GPT2, tokens: np.ndarray) -> np.ndarray:  # [n] -> [n, V]
    """The logits of the model without one MLP, for prompts of one token."""
    edit = ablation(model.config, [f"mlp.{layer}"])
    final = model.final(tokens[:, None], edit=edit)  # [n, 1, D]
    return unembed(final[:, 0], model.W_U)


def nats_from_bigrams(  # [n, V], [n]
    logits: np.ndarray, tokens: np.ndarray, corpus: Corpus
) -> float:
    """KL(text || path), the mean over tokens, after the best single factor on the logits.

    The scale of W_E W_E^T and of ln_f's output says nothing, so it is not counted against them.
    """
    seen = corpus.frequent(min_count=1)  # [S]
    pairs = corpus.table(tokens, seen).astype(np.float64)
    Q = pairs / np.maximum(pairs.sum(axis=1, keepdims=True), 1)
    scores = logits[:, seen].astype(np.float64)
    log_p = log_softmax(best_factor(scores, Q) * scores)
    log_q = np.log(np.where(Q > 0, Q, 1))
    return float((Q * (log_q - log_p)).sum(axis=1).mean())
