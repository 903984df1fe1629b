"""The loss of a trained untied model with its own head, and with `x @ wte.T` in place of `x @ W_U`."""

import math

import numpy as np

from ..errors import TiedGPTError
from ..inference.evaluation import token_losses
from ..model import GPT2
from .paths import Progress

MAX_TOKENS = 16_384


def sample(ids: np.ndarray, n_ctx: int) -> np.ndarray:  # [N] -> [n]
    """At most MAX_TOKENS from the end of a text, because scoring all of a long text can take hours.

    If its last tenth, which `train` holds out, has more tokens, they are windows spread evenly over it.
    """
    end = ids[-max(MAX_TOKENS, ids.size // 10) :]
    if end.size <= MAX_TOKENS:
        return end
    starts = np.linspace(0, end.size - n_ctx, max(1, MAX_TOKENS // n_ctx)).astype(np.int64)
    return end[starts[:, None] + np.arange(n_ctx)].ravel()


def losses(model: GPT2, ids: np.ndarray, progress: Progress = None) -> dict[str, float | int | None] | None:
    """{"own", "swapped", "uniform", "tokens"}: three losses in nats per token of `ids` [N], and their number.

    "own" is the model's loss, "swapped" that of an untied model with the tied head (None for a tied model),
    "uniform" that of a uniform guess. Windows as long as the context, without overlap. `progress` is called
    with the number of tokens read, for each head. None for fewer than two tokens or a context of one.
    """
    n_ctx = model.config.n_ctx
    if min(ids.size, n_ctx) < 2:
        return None
    own = token_losses(model, ids, n_ctx, progress)
    if not np.isfinite(own).all():
        raise TiedGPTError("the loss is not a finite number: the model's checkpoint is damaged")
    swapped = None if model.config.tied else float(token_losses(model.tie(), ids, n_ctx, progress).mean())
    uniform = math.log(model.config.vocab_size)
    return {"own": float(own.mean()), "swapped": swapped, "uniform": uniform, "tokens": own.size}
