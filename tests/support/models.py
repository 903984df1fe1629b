"""Small random models with every size different, and a text in their tokens."""

from dataclasses import replace

import numpy as np

from tiedgpt import GPT2, Config
from tiedgpt.study.corpus import Corpus

# Distinct primes where the model allows it (n_embd has to be a multiple of n_head), so that sizes
# that are mixed up are noticed.
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
SMALL_MERGES = [("l", "o"), ("lo", "w"), ("Ġ", "low"), ("e", "r"), ("Ã", "©")]  # the last is "é"

# A small model whose tokens are bytes.
CONFIG = replace(SMALL, vocab_size=257, n_ctx=64, bos_token_id=None, eos_token_id=None)


def random_model(config: Config = SMALL, seed: int = 0, dtype: type = np.float32) -> GPT2:
    """A model whose parameters are all random and large enough to matter, biases included."""
    rng = np.random.default_rng(seed)
    parameters = {}
    for name, array in GPT2.random(config).parameters.items():
        noise = 0.3 * rng.standard_normal(array.shape)
        is_weight_of_a_norm = "ln_" in name and name.endswith(".weight")
        if is_weight_of_a_norm:
            noise += 1
        parameters[name] = noise.astype(dtype)
    return GPT2(config, parameters)


def some_corpus() -> Corpus:
    """A text of 70 of SMALL's tokens, some frequent and some not.

    Each has a favourite successor, which follows it six times of ten.
    """
    rng = np.random.default_rng(3)
    is_favourite = rng.random(12_000) < 0.6
    others = rng.integers(0, 70, 12_000)
    ids = [0]
    for favourite, other in zip(is_favourite, others, strict=True):
        if favourite:
            token_id = (3 * ids[-1] + 1) % 70
        else:
            token_id = int(70 * (other / 70) ** 1.3)  # the power makes low ids more frequent
        ids.append(token_id)
    return Corpus.of(ids, SMALL.vocab_size)
