"""The logit lens: what each layer's residual stream would say if it were the last [nostalgebraist 2020].

Every block adds to the same stream, so whatever reads its end can read it anywhere on the way:

    ln_f(resid) W_U     for resid = resid_pre.0 (the embeddings), resid_post.0, ..., resid_post.{L-1}

With a tied head the first row reads a token's embedding by the embedding itself, and mostly finds the
token again; from there the stream has to turn from the token that is to the token that comes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checks import check_ids
from ..model import GPT2
from ..run import Tape
from .paths import blocks, likeliest, read_out


@dataclass(frozen=True)
class Layer:
    """One point of the residual stream, after each token of the prompt."""

    name: str  # the tape's, "resid_post.0"
    tokens: np.ndarray  # [T, k], the likeliest first
    probabilities: np.ndarray  # [T, k]


def lens(model: GPT2, ids: Any, k: int = 5) -> list[Layer]:
    """The k tokens that each layer holds for likeliest after each of `ids` [T], the embeddings first.

    The last layer's are the model's own. Raises ArgumentError for ids that the model does not take.
    """
    ids = check_ids(ids, model.config)
    tape: Tape = {}
    model.hidden(ids, tape=tape)
    streams = {"resid_pre.0": tape["embed"][0]}  # which a model of no layers records by the second name only
    streams |= {name: resid[0] for name, resid in tape.items() if name.startswith("resid_post.")}
    return [say(name, model, resid, k) for name, resid in streams.items()]


def say(name: str, model: GPT2, resid: np.ndarray, k: int) -> Layer:
    """What the head reads off one point of the stream, resid [T, D]."""
    rows = [
        likeliest(logits, k)
        for block in blocks(np.arange(len(resid)), model.config.vocab_size)
        for logits in read_out(model, resid[block])
    ]
    tokens, probabilities = map(np.array, zip(*rows, strict=True))
    return Layer(name, tokens, probabilities)
