"""The heads of a trained untied model swapped: `x @ wte.T` in place of `x @ W_U`. How bad is it?"""

from collections.abc import Callable
from typing import Any

import numpy as np

from ..errors import TiedGPTError
from ..evaluation import token_losses
from ..model import GPT2

MAX_TOKENS = 16_384


def sample(ids: np.ndarray, n_ctx: int) -> np.ndarray:  # [N] -> [n]
    """Of a long text 16,384 tokens: windows, spread evenly over its last tenth, which `train` holds out.

    (`score` reads a whole text, which can take hours.) Of one up to ten times as long, the last 16,384.
    """
    end = ids[-max(MAX_TOKENS, ids.size // 10) :]
    if end.size <= MAX_TOKENS:
        return end
    starts = np.linspace(0, end.size - n_ctx, max(1, MAX_TOKENS // n_ctx)).astype(np.int64)
    return end[starts[:, None] + np.arange(n_ctx)].ravel()


def losses(
    model: GPT2, ids: np.ndarray, progress: Callable[[int], Any] | None = None
) -> dict[str, float | int | None] | None:
    """{"own", "swapped", "tokens"}: nats per token of `ids` [N], and how many were predicted.

    "own" is the model's loss; "swapped" that of an untied model's body under the tied head, None if the
    model is tied. In windows of the whole context that do not overlap; `progress` is called with the tokens
    read, under each head. None of fewer than two tokens, and of a context of one. Raises TiedGPTError for a
    loss that is not a number (a broken checkpoint).
    """
    n_ctx = model.config.n_ctx
    if min(ids.size, n_ctx) < 2:
        return None
    own = token_losses(model, ids, n_ctx, progress)
    swapped = None if model.config.tied else token_losses(model.tie(), ids, n_ctx, progress)
    if not np.isfinite(own).all():
        raise TiedGPTError("the loss is not a finite number: the model's checkpoint is damaged")
    return {
        "own": float(own.mean()),
        "swapped": None if swapped is None else float(swapped.mean()),
        "tokens": own.size,
    }
