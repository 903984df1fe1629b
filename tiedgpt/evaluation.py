"""Loss of a text in: how likely a model held each token of a long text to be, given those before it.

A text is longer than the context, so it is read in windows, by the recipe of Hugging Face's documentation
("Perplexity of fixed-length models"), with which most published figures were made. Windows of n_ctx tokens
start every `stride` tokens, the last one being shorter if the text ends before it does, and each predicts
those of its tokens that no window before it held. Two things follow that a reader of a score should know:

    The first token of the text is not predicted: it follows nothing. All others are, each exactly once,
    for any stride up to n_ctx - 1. With a stride of n_ctx no window knows the one before it, and its first
    token is not predicted either: one token in n_ctx is left out.

    Past the first window, a token sees n_ctx - stride to n_ctx - 1 tokens before it (at least one). So a
    smaller stride takes longer and mostly gives a lower loss: scores compare at the same stride only.

What is averaged here is the loss of every token. The recipe's own code averages the means of windows, each
weighted by the number of tokens that are new in it less one. In the first window, and in all of them when
the stride is n_ctx, so many are predicted; in the others one more is, so that they weigh a little less than
they should. Over 30,000 tokens, at a stride of half the context, this changed a loss of 1.5087 by 0.00002;
at a stride of 1 the recipe's code counts nothing but the first window.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from . import machine
from .config import Config
from .errors import ArgumentError, TiedGPTError, is_count, short_repr
from .model import GPT2, as_array, check_ids, unembed
from .ops import cross_entropy
from .tokenizer import Tokenizer

BATCH = 1024  # tokens read at a time; short windows are read several at once
ROWS = 256  # tokens whose logits a thread has at a time: 51 MB with GPT-2's vocabulary, and as much in work


def windows(n: int, n_ctx: int, stride: int) -> np.ndarray:  # -> [W, 3]
    """The windows over a text of n tokens: where each starts, the first token that it predicts, its end.

    >>> windows(9, n_ctx=4, stride=2).tolist(), windows(9, n_ctx=4, stride=4).tolist()
    ([[0, 1, 4], [2, 4, 6], [4, 6, 8], [6, 8, 9]], [[0, 1, 4], [4, 5, 8], [8, 9, 9]])
    """
    start = np.arange(0, max(n - n_ctx, 0) + stride, stride)
    end = np.minimum(start + n_ctx, n)
    first = np.maximum(start + 1, np.append(0, end[:-1]))
    return np.stack([start, first, end], axis=1)


def token_losses(
    model: GPT2, ids: Any, stride: int, progress: Callable[[int], Any] | None = None
) -> np.ndarray:  # [N] -> [predicted tokens] float64
    """The loss, in nats, of each token of a text that is predicted: all but the first, up to a stride of
    n_ctx - 1 (see above). Their mean is the loss per token, its exponential the perplexity.

    `progress` is called with the number of tokens of the text that each batch of windows came forward.
    Raises ArgumentError for a stride outside 1 to n_ctx, ids that the model cannot read, and fewer than two.
    """
    config = model.config
    stride, ids = check_stride(config, stride), check_text(config, ids)
    spans = windows(ids.size, config.n_ctx, stride)
    whole, last = spans[:-1], spans[-1:]
    size = max(1, BATCH // config.n_ctx)
    losses: list[np.ndarray] = []
    done = 0
    for batch in (*(whole[at : at + size] for at in range(0, len(whole), size)), last):
        start, first, end = batch.T[..., None]  # each [B, 1]
        places = np.arange(end[0, 0] - start[0, 0]) + start  # in the text, of the tokens read: [B, T]
        hidden = model.hidden(ids[places])  # [B, T, D]
        predicts = (first <= places + 1) & (places + 1 < end)  # [B, T]
        hidden, targets = hidden[predicts], ids[places[predicts] + 1]  # [R, D], [R]
        if len(targets):
            threads, step = machine.share(len(targets), ROWS, len(targets))
            pieces = [slice(start, start + step) for start in range(0, len(targets), step)]
            with machine.team(threads) as shared_map:
                losses += shared_map(partial(_piece_losses, model, hidden, targets), pieces)
        if progress:
            progress(int(end[-1, 0]) - done)
        done = int(end[-1, 0])
    return np.concatenate(losses, dtype=np.float64)


def _piece_losses(  # [R, D], [R] -> [at most ROWS]
    model: GPT2, hidden: np.ndarray, targets: np.ndarray, piece: slice
) -> np.ndarray:
    return cross_entropy(unembed(hidden[piece], model.W_U), targets[piece])


@dataclass(frozen=True)
class Score:
    """How well a model predicts a text. Tokens and bytes are those predicted, fewer than the text has."""

    tokens: int
    bytes: int  # that the predicted tokens stand for in UTF-8; a special token's are those that spell it
    nll: float  # nats per token
    perplexity: float  # exp(nll); per token, so it depends on the tokenizer
    bits_per_byte: float  # nll in bits, of all tokens together, over `bytes`: whatever the tokenizer


def score(
    model: GPT2,
    tokenizer: Tokenizer,
    ids: Any,
    stride: int | None = None,
    progress: Callable[[int], Any] | None = None,
) -> Score:
    """The score of a text that `tokenizer` made into `ids` [N], in windows every `stride` tokens.

    A stride of None is half the context. Raises what token_losses raises, and TiedGPTError where the loss is
    not a number that a language model can have.
    """
    stride, ids = check_stride(model.config, stride), check_text(model.config, ids)
    losses = token_losses(model, ids, stride, progress)
    nats = float(losses.sum())
    nll = nats / losses.size
    if not nll < 700:  # nan, or a perplexity that no float holds
        raise TiedGPTError(f"the loss is {nll:.4g} nats per token: the model's checkpoint is damaged")
    spans = windows(ids.size, model.config.n_ctx, stride)
    predicted = np.concatenate([ids[first:end] for _, first, end in spans])
    size = count_bytes(tokenizer, predicted)
    return Score(losses.size, size, nll, math.exp(nll), nats / math.log(2) / size)


def count_bytes(tokenizer: Tokenizer, ids: np.ndarray) -> int:  # [N] -> of all together
    """How many bytes of UTF-8 tokens stand for; a special token's are those that spell it."""
    tokens = zip(*np.unique(ids, return_counts=True), strict=True)
    return sum(len(tokenizer.token_bytes(token)) * int(count) for token, count in tokens)


def bits_per_nat(tokenizer: Tokenizer, predicted: np.ndarray) -> float:  # [N] -> factor
    """What makes bits per byte of a loss in nats per token, for the tokens that were predicted."""
    return predicted.size / math.log(2) / count_bytes(tokenizer, predicted)


def check_stride(config: Config, stride: Any) -> int:
    """stride, or half the context if None. Raises ArgumentError for one that is none or skips tokens."""
    if stride is None:
        return max(1, config.n_ctx // 2)
    if not is_count(stride, 1) or stride > config.n_ctx:
        raise ArgumentError(
            f"stride must be a whole number from 1 to the model's context of {config.n_ctx}, "
            f"got {short_repr(stride)}"
        )
    return int(stride)


def check_text(config: Config, ids: Any) -> np.ndarray:  # -> [N]
    """ids as an array, if a model of this configuration can score them. Raises ArgumentError."""
    array = as_array(ids)
    if array.ndim != 1:
        raise ArgumentError(f"the text must be one sequence of ids [N], got shape {array.shape}")
    if array.size < 2:
        raise ArgumentError(
            f"the text has {array.size} token{'s' * (array.size != 1)}: it takes two to predict one, "
            "because the first follows nothing"
        )
    if config.n_ctx < 2:
        raise ArgumentError("the model's context is 1 token: a window of one predicts nothing")
    check_ids(array[:, None], config)  # as sequences of one token, which fit into any context
    return array
