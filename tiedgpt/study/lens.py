"""The logit lens: the next token that each layer's residual stream predicts [nostalgebraist 2020].

Every block adds to the same residual stream, so the final layer norm and the head can be applied after any
block:

    ln_f(resid) W_U     for resid = resid_pre.0 (the embeddings), resid_post.0, ..., resid_post.{L-1}

In a tied model the first row mostly predicts the current token again; the blocks turn this into the next one.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ..fast.threads import reading_threads, thread_map
from ..model import GPT2
from ..run import Tape
from .paths import final_logits, split_tokens, top_k_probabilities
from .predictions import last_tape

MANY_LOGITS = 2**20  # with fewer, starting threads takes longer than it saves


@dataclass(frozen=True)
class Layer:
    """The predictions of one layer after each token of the prompt."""

    name: str  # as on the tape: "resid_post.0"
    tokens: np.ndarray  # [T, k], likeliest first
    probabilities: np.ndarray  # [T, k]


def lens(model: GPT2, ids: Any, k: int = 5, last: int | None = None, tape: Tape | None = None) -> list[Layer]:
    """The k likeliest next tokens by each layer after each of `ids` [T], from the embeddings on.

    With `last`, only after the last ones of `ids`. The last layer's predictions are the model's. `tape` has
    the activations of these tokens if the model has read them already (`last_tape`). Raises ArgumentError for
    ids that the model cannot read.
    """
    if tape is None:
        tape = last_tape(model, ids, last or model.config.n_ctx)
    streams = {"resid_pre.0": tape["embed"]}  # a model without layers records it as "embed" only
    streams |= {name: resid for name, resid in tape.items() if name.startswith("resid_post.")}
    shown = slice(0 if last is None else -last, None)
    resid = np.concatenate([stream[0, shown] for stream in streams.values()])  # the head is read once for all
    V = model.config.vocab_size
    threads = reading_threads() if len(resid) * V >= MANY_LOGITS else 1
    rows: list[tuple[np.ndarray, np.ndarray]] = []
    for piece in split_tokens(resid, V):
        logits = final_logits(model, piece)  # BLAS uses all cores for this product
        with thread_map(threads) as map_:
            rows += map_(partial(top_k_probabilities, k=k), logits)
    by_layer = (np.split(np.array(column), len(streams)) for column in zip(*rows, strict=True))
    return [Layer(*layer) for layer in zip(streams, *by_layer, strict=True)]
