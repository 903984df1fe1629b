"""The logit lens: the next token that each layer's residual stream predicts [nostalgebraist 2020].

Every block adds to the same residual stream, so the final layer norm and the head can be applied after any
block:

    ln_f(resid) W_U     for resid = resid_pre.0 (the embeddings), resid_post.0, ..., resid_post.{L-1}

In a tied model the first row mostly predicts the current token again; the blocks turn this into the next one.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..inference.evaluation import measure_rows
from ..model import GPT2
from ..ops import softmax
from ..run import Tape
from .paths import check_logits, final_norm, top_k
from .predictions import last_tape


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

    def likeliest(logits: np.ndarray, _: Any) -> tuple[np.ndarray, np.ndarray]:  # [R, V] -> [R, k], [R, k]
        tokens = np.stack([top_k(row, k) for row in check_logits(logits)])
        return tokens, np.take_along_axis(softmax(logits, out=logits), tokens, axis=1)

    pieces = measure_rows(model, final_norm(model, resid), resid, likeliest)
    by_layer = (np.split(np.concatenate(column), len(streams)) for column in zip(*pieces, strict=True))
    return [Layer(*layer) for layer in zip(streams, *by_layer, strict=True)]
