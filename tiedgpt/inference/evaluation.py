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
from ..gpt2.checks import check_logits, check_text_ids, stride_or_default
from ..gpt2.model import GPT2, unembed
from ..gpt2.ops import cross_entropy
from ..gpt2.run import OnProgress
from ..gpt2.tokenizer import Tokenizer

BATCH_TOKENS = 1024  # short windows are read together, up to this many tokens

# From the logits [R, V] of some tokens and the tokens that came next, `targets` [R], to a result.
Measure = Callable[[np.ndarray, np.ndarray], Any]


def windows(n: int, n_ctx: int, stride: int) -> np.ndarray:  # -> [W, 3]
    """The windows over a text of n tokens: each one's start, first predicted token and end.

    >>> windows(9, n_ctx=4, stride=2).tolist(), windows(9, n_ctx=4, stride=4).tolist()
    ([[0, 1, 4], [2, 4, 6], [4, 6, 8], [6, 8, 9]], [[0, 1, 4], [4, 5, 8], [8, 9, 9]])
    """
    start = np.arange(0, max(n - n_ctx, 0) + stride, stride)
    end = np.minimum(start + n_ctx, n)
    first = np.maximum(start + 1, np.append(0, end[:-1]))
    return np.stack([start, first, end], axis=1)


def token_losses(  # [N] -> [n]
    model: GPT2, ids: Any, stride: int, progress: OnProgress = None
) -> np.ndarray:
    """The loss of each of the n predicted tokens, in nats, as float64."""
    pieces = measure_tokens(model, ids, stride, cross_entropy, progress)
    return np.concatenate(pieces, dtype=np.float64)


def measure_tokens(
    model: GPT2, ids: Any, stride: int, measure: Measure, progress: OnProgress = None
) -> list[Any]:
    """The results of `measure` for the predicted tokens of a text [N], in the text's order.

    Each result is of up to LOGIT_ROWS tokens. `progress` gets the number of tokens read.
    """
    config = model.config
    stride = stride_or_default(stride, config)
    ids = check_text_ids(ids, config)
    measured: list[Any] = []
    done = 0
    for batch in window_batches(windows(ids.size, config.n_ctx, stride), config.n_ctx):
        final, targets = read_windows(model, ids, batch)
        measured += measure_rows(model, final, targets, measure)
        end = int(batch[-1, 2])  # of the last window
        if progress is not None:
            progress(end - done)
        done = end
    return measured


def window_batches(spans: np.ndarray, n_ctx: int) -> list[np.ndarray]:  # [W, 3] -> [B, 3] each
    """The windows that are read together. The last one may be shorter, so it is read alone."""
    whole = spans[:-1]
    size = max(1, BATCH_TOKENS // n_ctx)
    batches = [whole[i : i + size] for i in range(0, len(whole), size)]
    batches.append(spans[-1:])
    return batches


def read_windows(  # ids [N], spans [B, 3] -> [R, D], [R]
    model: GPT2, ids: np.ndarray, spans: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Read windows of equal length T. Return what predicts each of their R targets, and these."""
    start = spans[:, 0:1]  # [B, 1], as the other two
    first_target = spans[:, 1:2]
    end = spans[:, 2:3]
    T = end[0, 0] - start[0, 0]
    places = start + np.arange(T)  # [B, T], in the text
    final = model.final(ids[places])  # [B, T, D]
    # The token at a place predicts the next one, if that is in the window and in no earlier one.
    next_places = places + 1
    predicts = (first_target <= next_places) & (next_places < end)  # [B, T]
    return final[predicts], ids[next_places[predicts]]


def measure_rows(  # final [R, D], targets [R]
    model: GPT2, final: np.ndarray, targets: np.ndarray, measure: Measure
) -> list[Any]:
    """The results of `measure` for up to LOGIT_ROWS rows at once, in order, in several threads."""
    rows = len(targets)
    if rows == 0:
        return []
    threads, piece_rows = split_work(rows, LOGIT_ROWS, rows)

    def measure_piece(start: int) -> Any:
        piece = slice(start, start + piece_rows)
        logits = unembed(final[piece], model.W_U)
        # An infinite number in W_U makes a logit of every row infinite, so one row shows it.
        check_logits(logits[0])
        return measure(logits, targets[piece])

    with thread_map(threads) as map_pieces:
        return list(map_pieces(measure_piece, range(0, rows, piece_rows)))


def predicted_places(n: int, n_ctx: int, stride: int) -> np.ndarray:  # -> [predicted tokens]
    """The places in a text of n tokens of those that are predicted, in order.

    >>> predicted_places(9, n_ctx=4, stride=4).tolist()
    [1, 2, 3, 5, 6, 7]
    """
    return np.concatenate([np.arange(first, end) for _, first, end in windows(n, n_ctx, stride)])


@dataclass(frozen=True)
class Score:
    """How well a model predicts a text. Only predicted tokens are counted, not the whole text."""

    tokens: int
    bytes: int  # of the predicted tokens in UTF-8; a special token counts the bytes of its name
    nll: float  # nats per token
    perplexity: float  # exp(nll), which depends on the tokenizer
    bits_per_byte: float  # of the predicted tokens, comparable between tokenizers


def score(
    model: GPT2,
    tokenizer: Tokenizer,
    ids: Any,
    stride: int | None = None,
    progress: OnProgress = None,
) -> Score:
    """The score of `ids` [N], encoded by `tokenizer`. A stride of None is half the context.

    Raises ArgumentError for a stride outside 1 to n_ctx, ids that the model cannot read, and fewer
    than two ids; TiedGPTError for logits that are not finite, and for a loss that is too large to
    be one.
    """
    stride = stride_or_default(stride, model.config)
    ids = check_text_ids(ids, model.config)
    predicted = ids[predicted_places(ids.size, model.config.n_ctx, stride)]
    return score_of(token_losses(model, ids, stride, progress), tokenizer, predicted)


def score_of(losses: np.ndarray, tokenizer: Tokenizer, predicted: np.ndarray) -> Score:  # [N], [N]
    """The score of the `predicted` tokens from their losses."""
    nats = float(losses.sum())
    nll = nats / losses.size
    if not nll < 700:  # the perplexity would be larger than any float, or the loss is nan
        raise TiedGPTError(
            f"the loss is {nll:.4g} nats per token: the model's checkpoint is damaged"
        )
    size = count_bytes(tokenizer, predicted)
    return Score(
        tokens=losses.size,
        bytes=size,
        nll=nll,
        perplexity=math.exp(nll),
        bits_per_byte=nats / math.log(2) / size,
    )


def count_bytes(tokenizer: Tokenizer, ids: np.ndarray) -> int:  # [N] -> of all together
    """The number of UTF-8 bytes of the tokens' text."""
    tokens, counts = np.unique(ids, return_counts=True)
    total = 0
    for token, count in zip(tokens, counts, strict=True):
        total += len(tokenizer.token_bytes(token)) * int(count)
    return total


def bits_per_nat(tokenizer: Tokenizer, predicted: np.ndarray) -> float:  # [N]
    """The factor from nats per token to bits per byte, for the `predicted` tokens."""
    return predicted.size / math.log(2) / count_bytes(tokenizer, predicted)
