"""The attention patterns."""

import numpy as np

from ...errors import ArgumentError
from ..shown import ATTENTION_TOKENS
from .display import base64_shares, displayed_tokens
from .query import Query
from .registry import Answer, Turn, view


@view("attention")
def attention(query: Query, turn: Turn) -> Answer:
    """The attention patterns of all heads for the last tokens, as numbers from 0 to 65535."""
    ids = query.prompt_ids
    layers = query.model.config.n_layer
    if layers == 0:
        raise ArgumentError("this model has no layers, so it has no attention")
    tape = query.shown.tape(query.model, ids, turn.pause)
    patterns = np.stack([tape[f"attn.{layer}.pattern"][0] for layer in range(layers)])
    return {
        "tokens": displayed_tokens(query.shown.tokenizer, ids[-ATTENTION_TOKENS:]),
        "patterns": base64_shares(patterns),  # [L, H, T, T]
    }
