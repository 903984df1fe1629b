"""The logit lens: what each layer's residual stream would say if it were the last [nostalgebraist 2020].

Every block adds to the same stream, so whatever reads its end can read it anywhere on the way:

    ln_f(resid) W_U     for resid = resid_pre.0 (the embeddings), resid_post.0, ..., resid_post.{L-1}

With a tied head the first row reads a token's embedding by the embedding itself, and mostly finds the
token again; from there the stream has to turn from the token that is to the token that comes.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..model import GPT2, Tape, check_ids
from .paths import best, blocks, log_softmax, read_out


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
    streams = {"resid_pre.0": tape["embed"][0]}  # by its name in a model that has a layer
    streams |= {name: resid[0] for name, resid in tape.items() if name.startswith("resid_post.")}
    return [Layer(name, *likeliest(model, resid, k)) for name, resid in streams.items()]


def likeliest(model: GPT2, resid: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """[T, D] -> the k likeliest tokens [T, k] and their probabilities [T, k]."""
    tokens, probabilities = [], []
    for block in blocks(np.arange(len(resid)), model.config.vocab_size):
        for log_p in log_softmax(read_out(model, resid[block])):
            tokens.append(best(log_p, k))
            probabilities.append(np.exp(log_p[tokens[-1]]))
    return np.array(tokens), np.array(probabilities)
