"""What the tests share: small random models with every size different, and where reference data lies."""

from pathlib import Path

import numpy as np
import pytest

from tiedgpt import GPT2, Config

SHARED = Path(__file__).resolve().parents[2] / "shared"

# Distinct primes where the model allows it (D = H K), so that no transposition or mix-up cancels out.
SMALL = Config(
    vocab_size=101, n_ctx=31, n_embd=3 * 7, n_layer=2, n_head=3, n_inner=53, bos_token_id=0, eos_token_id=0
)


@pytest.fixture
def shared() -> Path:
    """The folder of reference data beside the checkout."""
    if not SHARED.is_dir():
        pytest.skip("no reference data: there is no folder `shared` beside the checkout")
    return SHARED


def random_model(config: Config = SMALL, seed: int = 0, dtype: type = np.float32) -> GPT2:
    """A model whose every parameter is random and large enough to matter, biases and layer norms included."""
    rng = np.random.default_rng(seed)
    model = GPT2.random(config)
    parameters = {}
    for name, array in model.parameters.items():
        around = 1.0 if "ln_" in name and name.endswith(".weight") else 0.0
        parameters[name] = (around + 0.3 * rng.standard_normal(array.shape)).astype(dtype)
    return GPT2(config, parameters)


@pytest.fixture
def model() -> GPT2:
    """A small tied model."""
    return random_model()


def tiny_tokenizer():
    """A byte-level tokenizer of 256 bytes, no merges, and <|endoftext|> (257 ids)."""
    from tiedgpt import Tokenizer

    return Tokenizer([])
