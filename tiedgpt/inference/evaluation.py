"""The loss of each token of a text, and its mean as perplexity and bits per byte.

A text may exceed the context, so it is read in windows, as in Hugging Face's documentation
("Perplexity of fixed-length models"), which most published figures follow. A window of n_ctx tokens
starts every `stride` tokens. The last window ends with the text. A window predicts those of its
tokens that no earlier window has.

    The first token of the text is not predicted. With a stride of up to n_ctx - 1, every other
    token is predicted once. With a stride of n_ctx, the first token of each window is not
    predicted.

    After the first window, a prediction uses n_ctx - stride to n_ctx - 1 earlier tokens (at least
    one). A smaller stride takes longer and mostly gives a lower loss, so compare scores at the same
    stride only.

The result here is the mean over all predicted tokens. Hugging Face's code weights each window by
its number of new tokens minus one, which is right for the first window only.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import TiedGPTError
from ..fast.threads import LOGIT_ROWS, split_work, thread_map
from ..gpt2.checks import check_text_ids, stride_or_default
from ..gpt2.model import GPT2, unembed
from ..gpt2.ops import cross_entropy
from ..gpt2.run import OnProgress
from ..gpt2.tokenizer import Tokenizer

BATCH_TOKENS = 1024  # short windows are read together, up to this many tokens
Measure = Callable[[np.ndarray, np.ndarray], Any]  # logits [R, V], targets [R] -> what is measured


def windows(n: int, n_ctx: int, stride: int) -> np.ndarray:  # -> [W, 3]
    """The windows over a text of n tokens: the start, the first token predicted and the end of
    each.

    >>> windows(9, n_ctx=4, stride=2).tolist(), windows(9, n_ctx=4, stride=4).tolist()
    ([[0, 1, 4], [2, 4, 6], [4, 6, 8], [6, 8, 9]], [[0, 1, 4], [4, 5, 8], [8, 9, 9]])
    """
    start = np.arange(0, max(n - n_ctx, 0) + stride, stride)
    end = np.minimum(start + n_ctx, n)
    first = np.maximum(start + 1, np.append(0, end[:-1]))
    return np.stack([start, first, end], axis=1)


def token_losses(
    model: GPT2, ids: Any, stride: int, progress: OnProgress = None
) -> np.ndarray:  # [N] -> [n]
    """The loss of each of the n predicted tokens, in nats, as float64."""
    return np.concatenate(
        measure_tokens(model, ids, stride, cross_entropy, progress), dtype=np.float64
    )


def measure_tokens(
    model: GPT2, ids: Any, stride: int, measure: Measure, progress: OnProgress = None
) -> list[Any]:  # [N] -> one for each piece
    """What `measure` finds of the predicted tokens of a text, up to LOGIT_ROWS at once, in
    threads."""
    config = model.config
    stride, ids = stride_or_default(stride, config), check_text_ids(ids, config)
    spans = windows(ids.size, config.n_ctx, stride)
    whole, last = spans[:-1], spans[-1:]
    size = max(1, BATCH_TOKENS // config.n_ctx)
    measured: list[Any] = []
    done = 0
    for batch in (*(whole[at : at + size] for at in range(0, len(whole), size)), last):
        start, first, end = batch.T[..., None]  # each [B, 1]
        places = np.arange(end[0, 0] - start[0, 0]) + start  # positions in the text: [B, T]
        final = model.final(ids[places])  # [B, T, D]
        predicts = (first <= places + 1) & (places + 1 < end)  # [B, T]
        measured += measure_rows(model, final[predicts], ids[places[predicts] + 1], measure)
        if progress:
            progress(int(end[-1, 0]) - done)
        done = int(end[-1, 0])
    return measured


def measure_rows(
    model: GPT2, final: np.ndarray, targets: np.ndarray, measure: Measure
) -> list[Any]:
    """What `measure` finds of rows [R, D], up to LOGIT_ROWS at once, in order, in several
    threads."""
    if not len(targets):
        return []
    threads, step = split_work(len(targets), LOGIT_ROWS, len(targets))
    pieces = [
        (final[at : at + step], targets[at : at + step]) for at in range(0, len(targets), step)
    ]
    with thread_map(threads) as map_:
        return list(map_(lambda piece: measure(unembed(piece[0], model.W_U), piece[1]), pieces))


def predicted_places(n: int, n_ctx: int, stride: int) -> np.ndarray:  # -> [predicted tokens]
    """The places in a text of n tokens of those that are predicted, in order.

    >>> predicted_places(9, n_ctx=4, stride=4).tolist()
    [1, 2, 3, 5, 6, 7]
    """
    return np.concatenate([np.arange(first, end) for _, first, end in windows(n, n_ctx, stride)])


@dataclass(frozen=True)
class Score:
    """How well a model predicts a text. Tokens and bytes count what was predicted, not the whole
    text."""

    tokens: int
    bytes: int  # of the predicted tokens in UTF-8; a special token counts the bytes of its name
    nll: float  # nats per token
    perplexity: float  # exp(nll), which depends on the tokenizer
    bits_per_byte: (
        float  # the bits of all predicted tokens over `bytes`, comparable between tokenizers
    )


def score(
    model: GPT2,
    tokenizer: Tokenizer,
    ids: Any,
    stride: int | None = None,
    progress: OnProgress = None,
) -> Score:
    """The score of `ids` [N], encoded by `tokenizer`. A stride of None is half the context.

    Raises ArgumentError for a stride outside 1 to n_ctx, ids that the model cannot read, and fewer
    than two ids; TiedGPTError when the loss is nan or too large to be one.
    """
    stride, ids = stride_or_default(stride, model.config), check_text_ids(ids, model.config)
    predicted = ids[predicted_places(ids.size, model.config.n_ctx, stride)]
    return score_of(token_losses(model, ids, stride, progress), tokenizer, predicted)


def score_of(losses: np.ndarray, tokenizer: Tokenizer, predicted: np.ndarray) -> Score:  # [N], [N]
    """The score of the `predicted` tokens from their losses."""
    nats = float(losses.sum())
    nll = nats / losses.size
    if not nll < 700:  # nan, or a perplexity that no float holds
        raise TiedGPTError(
            f"the loss is {nll:.4g} nats per token: the model's checkpoint is damaged"
        )
    size = count_bytes(tokenizer, predicted)
    return Score(losses.size, size, nll, math.exp(nll), nats / math.log(2) / size)


def count_bytes(tokenizer: Tokenizer, ids: np.ndarray) -> int:  # [N] -> of all together
    """The number of UTF-8 bytes of the tokens' text."""
    tokens = zip(*np.unique(ids, return_counts=True), strict=True)
    return sum(len(tokenizer.token_bytes(token)) * int(count) for token, count in tokens)


def bits_per_nat(tokenizer: Tokenizer, predicted: np.ndarray) -> float:  # [N] -> factor
    """The factor from nats per token to bits per byte, for the `predicted` tokens."""
    return predicted.size / math.log(2) / count_bytes(tokenizer, predicted)
