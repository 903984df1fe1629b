"""The heads of a trained untied model swapped: `x @ wte.T` in place of `x @ W_U`. How bad is it?"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import TiedGPTError
from ..evaluation import token_losses
from ..model import GPT2

MAX_TOKENS = 16_384


def loss_work(model: GPT2, ids: np.ndarray) -> int:
    """How many tokens `losses` reads, once under each head."""
    return min(ids.size, MAX_TOKENS) * (1 if model.config.tied else 2)


def losses(
    model: GPT2, ids: np.ndarray, progress: Callable[[int], Any] | None = None
) -> dict[str, float | int | None] | None:
    """{"own", "swapped", "tokens"}: nats per token of the end of `ids` [N], and how many were predicted.

    "own" is the model's loss; "swapped" that of an untied model's body under the tied head, None if the
    model is tied. The end, because that is what training holds out; 16,384 tokens at most (`score` reads a
    whole text), in windows of the whole context that do not overlap. None of fewer than two tokens, and of
    a context of one token. Raises TiedGPTError for a loss that is not a number (a broken checkpoint).
    """
    end = ids[-MAX_TOKENS:]
    if min(end.size, model.config.n_ctx) < 2:
        return None
    stride = model.config.n_ctx
    own = token_losses(model, end, stride, progress)
    swapped = None if model.config.tied else token_losses(model.tie(), end, stride, progress)
    if not np.isfinite(own).all():
        raise TiedGPTError("the loss is not a finite number: the model's checkpoint is damaged")
    return {
        "own": float(own.mean()),
        "swapped": None if swapped is None else float(swapped.mean()),
        "tokens": own.size,
    }
