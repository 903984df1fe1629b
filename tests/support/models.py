"""Small random models, whose sizes are all different, and a text of their tokens."""

from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np

from tiedgpt import GPT2, Config
from tiedgpt.checkpoints import find_model
from tiedgpt.study.corpus import Corpus

# The sizes are different primes, so that a test fails if two sizes are mixed up. Only n_embd is no
# prime, because it has to be a multiple of n_head.
SMALL = Config(
    vocab_size=101,
    n_ctx=31,
    n_embd=3 * 7,
    n_layer=2,
    n_head=3,
    n_inner=53,
    bos_token_id=0,
    eos_token_id=0,
)
# For each field of Config that chooses how activations are computed: a model with another choice.
# test_house.py says when one is missing. Gradients, attribution and compare are tested with each.
VARIANTS = {
    "tied": replace(SMALL, tied=False),
    "activation_function": replace(SMALL, activation_function="gelu"),
    "layer_norm_epsilon": replace(SMALL, layer_norm_epsilon=0.1),
    "scale_attn_weights": replace(SMALL, scale_attn_weights=False),
    "scale_attn_by_inverse_layer_idx": replace(SMALL, scale_attn_by_inverse_layer_idx=True),
}
SMALL_MERGES = [("l", "o"), ("lo", "w"), ("Ġ", "low"), ("e", "r"), ("Ã", "©")]  # the last is "é"

# A small model whose tokens are bytes.
CONFIG = replace(SMALL, vocab_size=257, n_ctx=64, bos_token_id=None, eos_token_id=None)


def random_model(config: Config = SMALL, seed: int = 0, dtype: type = np.float32) -> GPT2:
    """A model whose parameters are all random, and large enough to change the logits.

    The weights of the layer norms are near 1. All other parameters, biases too, are near 0.
    """
    rng = np.random.default_rng(seed)
    parameters = {}
    for name, array in GPT2.random(config).parameters.items():  # for the names and shapes
        values = 0.3 * rng.standard_normal(array.shape)
        is_weight_of_a_norm = "ln_" in name and name.endswith(".weight")
        if is_weight_of_a_norm:
            values += 1
        parameters[name] = values.astype(dtype)
    return GPT2(config, parameters)


@cache
def some_corpus() -> Corpus:
    """The counts of a random text in which 70 tokens of SMALL's vocabulary occur.

    It is always the same one, which no test may change.
    Each token has a favourite successor, which follows it in 60 % of all cases. Among the other
    successors, tokens with low ids are more frequent.
    """
    rng = np.random.default_rng(3)
    is_favourite = rng.random(12_000) < 0.6
    random_ids = rng.integers(0, 70, 12_000)
    ids = [0]
    for favourite, random_id in zip(is_favourite, random_ids, strict=True):
        if favourite:
            token_id = (3 * ids[-1] + 1) % 70
        else:
            token_id = int(70 * (random_id / 70) ** 1.3)  # the power makes low ids more frequent
        ids.append(token_id)
    return Corpus.of(ids, SMALL.vocab_size)


def find_here(source: str | Path, weights: bool = True) -> Path:
    """The path of a model on this machine."""
    _, path = find_model(source, weights=weights, fetch=False)
    return path
