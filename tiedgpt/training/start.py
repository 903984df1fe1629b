"""The model that a training begins with, if it does not begin with a checkpoint."""

from dataclasses import replace

import numpy as np

from ..gpt2.config import Config
from ..gpt2.model import GPT2
from ..gpt2.parameters import parameter_count
from ..gpt2.tokenizer import Tokenizer
from .merges import learn_tokenizer
from .settings import Settings

SHAPE = {"n_layer": 4, "n_head": 4, "n_embd": 128, "vocab_size": 1024}  # of a new model


def new_model(
    text: str, shape: dict[str, int], settings: Settings, head: str
) -> tuple[GPT2, Tokenizer]:
    """A random model, and the tokenizer that is learned from the text.

    shape: the fields of SHAPE. The vocabulary is smaller than its `vocab_size` if the text has too
    few pairs to merge. Raises MemoryError for a model that does not fit into memory.
    """
    tokenizer = learn_tokenizer(text, shape["vocab_size"])
    # The other rates of dropout are GPT-2's, 0.1. That of the attention pattern is 0, because the
    # pattern [B, H, T, T] would take most of the random numbers of a step.
    config = Config(
        vocab_size=tokenizer.vocab_size,
        n_ctx=settings.context,
        n_embd=shape["n_embd"],
        n_layer=shape["n_layer"],
        n_head=shape["n_head"],
        attn_pdrop=0.0,
        bos_token_id=tokenizer.eot_id,
        eos_token_id=tokenizer.eot_id,
    )
    # This raises the MemoryError now, not after a minute of drawing random numbers.
    np.empty(parameter_count(config.with_head("tied")).total, np.float32)
    model = GPT2.random(config, settings.seed)
    if head == "untied":
        model = model.untie("random", settings.seed)
    return model, tokenizer


def with_dropout(model: GPT2, rate: float) -> GPT2:
    """The model with this dropout of the embedding and of the layers' outputs, and no other."""
    config = replace(model.config, embd_pdrop=rate, resid_pdrop=rate, attn_pdrop=0.0)
    return GPT2(config, model.parameters)
