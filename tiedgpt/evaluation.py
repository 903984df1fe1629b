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
from typing import Any, NamedTuple

import numpy as np

from .errors import ArgumentError, Range, TiedGPTError, short_repr
from .gpt2.checks import as_array, check_ids, check_logits
from .gpt2.config import Config
from .gpt2.model import GPT2, unembed
from .gpt2.ops import cross_entropy
from .gpt2.run import OnProgress
from .gpt2.tokenizer import Tokenizer
from .threads import LOGIT_ROWS, split_work, thread_map

BATCH_TOKENS = 1024  # short windows are read together, up to this many tokens

# From the logits [R, V] of some tokens and the tokens that came next, `targets` [R], to a result.
Measure = Callable[[np.ndarray, np.ndarray], Any]


class Window(NamedTuple):
    """The tokens from `start` to before `end` of a text, of which those from `first` are predicted.

    If `first` is `end`, none is predicted.
    """

    start: int
    first: int
    end: int


def windows(n: int, n_ctx: int, stride: int) -> list[Window]:
    """The windows over a text of n tokens, in order.

    >>> [tuple(window) for window in windows(9, n_ctx=4, stride=2)]
    [(0, 1, 4), (2, 4, 6), (4, 6, 8), (6, 8, 9)]
    >>> [tuple(window) for window in windows(9, n_ctx=4, stride=4)]
    [(0, 1, 4), (4, 5, 8), (8, 9, 9)]
    """
    text_windows = []
    start = 0
    end = 0
    while end < n:
        # A window cannot predict its own first token. It need not predict tokens of the previous
        # window, whose end is still in `end`.
        first = max(start + 1, end)
        end = min(start + n_ctx, n)
        text_windows.append(Window(start, first, end))
        start += stride
    return text_windows


def check_text_ids(ids: Any, config: Config) -> np.ndarray:  # -> [N]
    """ids as an array, if a model of this configuration can score them.

    There may be more of them than its context has room for.
    """
    array = as_array(ids)
    if array.ndim != 1:
        raise ArgumentError(f"the text must be one sequence of ids [N], got shape {array.shape}")
    if array.size < 2:
        raise ArgumentError(
            f"a score needs two tokens or more, got {array.size}: the first is not predicted"
        )
    if config.n_ctx < 2:
        raise ArgumentError("the model's context is 1 token, so it predicts no token from another")
    # Each token is a row of its own here, so that check_ids accepts a text longer than the context.
    check_ids(array[:, None], config)
    return array


def stride_or_default(stride: Any, config: Config) -> int:
    """stride, or half the context if it is None."""
    if stride is None:  # at least 1, because half of a context of 1 token is 0
        return max(1, config.n_ctx // 2)
    if stride not in Range(1, config.n_ctx):
        raise ArgumentError(
            f"stride must be a whole number from 1 to the model's context of {config.n_ctx}, "
            f"got {short_repr(stride)}"
        )
    return int(stride)


def token_losses(  # [N] -> [n]
    model: GPT2, ids: Any, stride: int, progress: OnProgress = None
) -> np.ndarray:
    """The loss of each of the n predicted tokens, in nats, as float64.

    Raises TiedGPTError for logits that are not finite (a damaged checkpoint).
    """
    pieces = measure_tokens(model, ids, stride, row_losses, progress)
    return np.concatenate(pieces, dtype=np.float64)  # whose sum over a long text keeps its digits


def row_losses(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:  # [R, V], [R] -> [R]
    """The losses of some tokens, in nats: a Measure. Raises what token_losses raises."""
    # An infinite number in W_U makes a logit of every row infinite, so one row shows it.
    check_logits(logits[0])
    return cross_entropy(logits, targets)


def measure_tokens(
    model: GPT2, ids: Any, stride: int, measure: Measure, progress: OnProgress = None
) -> list[Any]:
    """The results of `measure` for the predicted tokens of a text [N], in the text's order.

    Each result is of up to LOGIT_ROWS tokens. `progress` gets the number of tokens read. Raises
    ArgumentError for a stride outside 1 to n_ctx, and for ids that the model cannot score.
    """
    config = model.config
    stride = stride_or_default(stride, config)
    ids = check_text_ids(ids, config)
    measured: list[Any] = []
    tokens_done = 0
    for batch in window_batches(windows(ids.size, config.n_ctx, stride), config.n_ctx):
        final, targets = read_windows(model, ids, batch)
        measured += measure_rows(model, final, targets, measure)
        end = batch[-1].end
        if progress is not None:
            progress(end - tokens_done)
        tokens_done = end
    return measured


def window_batches(text_windows: list[Window], n_ctx: int) -> list[list[Window]]:
    """The windows in batches that are read together, in order.

    The windows of a batch have the same length. Several have up to BATCH_TOKENS tokens together.
    """
    batch_size = max(1, BATCH_TOKENS // n_ctx)  # a long context is a batch by itself
    full_windows = text_windows[:-1]
    batches = []
    for i in range(0, len(full_windows), batch_size):
        batches.append(full_windows[i : i + batch_size])
    batches.append(text_windows[-1:])  # the last window may be shorter, so it is read alone
    return batches


def read_windows(  # ids [N] -> [R, D], [R]
    model: GPT2, ids: np.ndarray, batch: list[Window]
) -> tuple[np.ndarray, np.ndarray]:
    """Read windows of equal length T, with R predicted tokens (targets) in all.

    Returns the rows of `GPT2.final` from which the targets are predicted, and the targets.
    """
    final = model.final(np.stack([ids[window.start : window.end] for window in batch]))  # [B, T, D]
    rows = []
    targets = []
    for final_of_window, window in zip(final, batch, strict=True):
        # Each token is predicted from the row before its own.
        first_row = window.first - window.start - 1
        end_row = window.end - window.start - 1
        rows.append(final_of_window[first_row:end_row])
        targets.append(ids[window.first : window.end])
    return np.concatenate(rows), np.concatenate(targets)


def measure_rows(  # final [R, D], targets [R]
    model: GPT2, final: np.ndarray, targets: np.ndarray, measure: Measure
) -> list[Any]:
    """The results of `measure` for up to LOGIT_ROWS rows at once, in order, in several threads."""
    rows = len(targets)
    if rows == 0:
        return []
    # A row is one token.
    threads, piece_rows = split_work(rows=rows, most_rows=LOGIT_ROWS, tokens=rows)

    def measure_piece(start: int) -> Any:
        piece = slice(start, start + piece_rows)
        logits = unembed(final[piece], model.W_U)
        return measure(logits, targets[piece])

    with thread_map(threads) as map_pieces:
        return list(map_pieces(measure_piece, range(0, rows, piece_rows)))


def predicted_places(n: int, n_ctx: int, stride: int) -> np.ndarray:  # -> [predicted tokens]
    """The places of the predicted tokens in a text of n tokens, in order.

    >>> predicted_places(9, n_ctx=4, stride=4).tolist()
    [1, 2, 3, 5, 6, 7]
    """
    places = [np.arange(window.first, window.end) for window in windows(n, n_ctx, stride)]
    return np.concatenate(places)


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
    text: Any,
    stride: int | None = None,
    progress: OnProgress = None,
) -> Score:
    """The score of a text, or of its ids [N]. A stride of None is half the context.

    Raises TokenizerError for a text that `tokenizer` cannot encode, such as one with a special
    token; ArgumentError for a stride outside 1 to n_ctx, ids that the model cannot read, and fewer
    than two ids; TiedGPTError for logits that are not finite, and for a loss that is too large to
    be one.
    """
    stride = stride_or_default(stride, model.config)  # also of a text that cannot be encoded
    if isinstance(text, str):
        text = tokenizer.encode(text)
    losses = token_losses(model, text, stride, progress)  # it checks the ids
    ids = np.asarray(text)
    predicted = ids[predicted_places(ids.size, model.config.n_ctx, stride)]
    return score_of(losses, tokenizer, predicted)


def score_of(losses: np.ndarray, tokenizer: Tokenizer, predicted: np.ndarray) -> Score:  # [N], [N]
    """The score of the `predicted` tokens from their losses."""
    nats = float(losses.sum())
    nll = nats / losses.size
    # From 709 on, the perplexity exp(nll) is larger than any float. nan is not below 700 either.
    if not nll < 700:
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


def count_bytes(tokenizer: Tokenizer, ids: np.ndarray) -> int:  # [N]
    """The number of UTF-8 bytes of all tokens together."""
    tokens, counts = np.unique(ids, return_counts=True)
    total = 0
    for token, count in zip(tokens, counts, strict=True):
        total += len(tokenizer.token_bytes(token)) * int(count)
    return total
