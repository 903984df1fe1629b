"""Continue a prompt: read it once, then choose one token after another.

The way of a prompt, from `tiedgpt generate PROMPT` to a token:

    cli/generate.py    finds and loads the model, and turns the prompt into token ids
    sample_tokens      reads the prompt, and then one token after the other
    gpt2/model.py      GPT2.final reads tokens, unembed gives the logits of the last one
    Sampling.choose    draws the next token from its logits
    TextSample         turns tokens into text that can be printed

`tiedgpt.generate`, for Python, is `generate`, and goes the same way.
"""

import codecs
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from .errors import ABOVE_0, AT_LEAST_0, COUNT, PROBABILITY, ArgumentError, Range, short_repr
from .gpt2.checks import as_array, check_ids, check_logits
from .gpt2.config import Config
from .gpt2.model import GPT2, unembed
from .gpt2.run import OnProgress
from .gpt2.tokenizer import Tokenizer

if TYPE_CHECKING:
    from typing_extensions import Unpack  # Python 3.10 has none in typing

# Called for each chosen token, with the number of its sample, the logits [V] and the token.
Record = Callable[[int, np.ndarray, int], Any]


def generate(
    model: GPT2,
    ids: Any,
    max_new_tokens: int = 40,
    *,
    seed: int | None = None,
    **settings: "Unpack[SamplingSettings]",
) -> Iterator[int]:
    """Yield the tokens that follow `ids` [T], up to max_new_tokens or the end-of-text token.

    The end-of-text token (config.eos_token_ids) is not returned. seed: None draws a new one.
    settings: the fields of Sampling by name: temperature, top_k, top_p, greedy, ... Raises
    ArgumentError at once, before the first token, for a value that is not allowed, an id outside
    the vocabulary, and a prompt that is empty or longer than the context.
    """
    sampling = Sampling(**settings)
    prompt = check_prompt_ids(ids, model.config)
    max_new_tokens = Range(1).check("max_new_tokens", max_new_tokens)
    steps = sample_tokens(model, prompt, max_new_tokens, sampling, seed_or_new(seed))
    return tokens_until_end(steps, model.config.eos_token_ids)


def check_prompt_ids(ids: Any, config: Config) -> list[int]:
    """ids as a list, if a model of this configuration can continue them."""
    array = as_array(ids)
    if array.size == 0:
        raise ArgumentError("the prompt is empty: GPT-2 needs at least one token to continue")
    if array.ndim != 1:
        raise ArgumentError(f"the prompt must be one sequence of ids [T], got shape {array.shape}")
    return check_ids(array, config).tolist()


def seed_or_new(seed: Any) -> int:
    """seed as an int, if it is a whole number of at least 0; a new one if it is None."""
    if seed is None:
        return int(np.random.SeedSequence().generate_state(1)[0])
    return COUNT.check("seed", seed)


def tokens_until_end(steps: Iterator[list[int]], eos_token_ids: tuple[int, ...]) -> Iterator[int]:
    """The tokens of `sample_tokens` with one sample, up to an end-of-text token."""
    for (token,) in steps:
        if token in eos_token_ids:
            return
        yield token


def sample_tokens(
    model: GPT2,
    prompt: list[int],
    max_new_tokens: int,
    sampling: "Sampling",
    seed: int,
    num_samples: int = 1,
    progress: OnProgress = None,
    record: Record | None = None,
) -> Iterator[list[int]]:
    """Yield the next token of each of B samples of a prompt, max_new_tokens times.

    Sample i draws from its own random stream, so it does not depend on the number of samples, up to
    rounding: the products of many rows are summed in another order than those of one row, which
    changes a logit in its seventh digit and about 1 sampled token in 10,000. `progress` is called
    with the length of each piece of the prompt that is read, `record` with each chosen token.

    When the context is full, the later half of the tokens is kept and read again from position 0,
    because GPT-2's positions are absolute and cached keys are valid for their position only. So in
    a text longer than n_ctx, each new token is predicted from the last n_ctx / 2 to n_ctx tokens.
    """
    n_ctx = model.config.n_ctx
    streams = [np.random.default_rng([seed, i]) for i in range(num_samples)]
    texts = [list(prompt) for _ in range(num_samples)]
    capacity = min(n_ctx, len(prompt) + max_new_tokens)
    # The prompt is read once, and its keys and values are copied to all B rows.
    cache = model.new_cache(1, capacity)
    final = model.final([prompt], cache, progress=progress)  # [1, T, D]
    logits = unembed(final[:, -1], model.W_U).repeat(num_samples, axis=0)  # [B, V]
    if num_samples > 1:
        cache.repeat(num_samples)
    for step in range(max_new_tokens):
        # A token is read just before the next one is chosen, so the last one is never read.
        if step > 0:
            unread_tokens = 1
            if cache.length == n_ctx:  # it is full: the later half is read again
                cache.length = 0
                unread_tokens = max(1, n_ctx // 2)
            final = model.final([text[-unread_tokens:] for text in texts], cache)  # [B, T, D]
            logits = unembed(final[:, -1], model.W_U)

        tokens = []
        for row, (text, stream) in enumerate(zip(texts, streams, strict=True)):
            token = sampling.choose(logits[row], stream, text)
            if record is not None:
                record(row, logits[row], token)
            text.append(token)
            tokens.append(token)
        yield tokens


@dataclass
class TextSample:
    """A sample as text that grows.

    Text that may be the beginning of a stop string, or of a character whose last bytes are missing,
    is held back until the next tokens decide, so that `text` can be printed at any time. `ids` and
    `text` are the continuation, without the end-of-text token. After a stop string, `text` ends
    before it; `ids` includes the token that completed it.
    """

    tokenizer: Tokenizer
    stop: Sequence[str]  # it ends before the first of these texts
    eos_token_ids: tuple[int, ...]

    ids: list[int] = field(default_factory=list)
    text: str = ""
    finish_reason: str | None = None  # "length", "stop" or "eos"; None while it grows
    held: str = ""  # the end of the text, if it may be the beginning of a stop string
    decoder: codecs.IncrementalDecoder = field(
        default_factory=lambda: codecs.getincrementaldecoder("utf-8")("replace")
    )

    def push(self, token: int) -> None:
        """Add a token."""
        if token in self.eos_token_ids:
            self.finish("eos")
            return
        self.ids.append(token)
        if token not in self.tokenizer.tokens:  # a row that pads the vocabulary and has no text
            self._add(self.decoder.decode(b"", final=True) + "\ufffd")
        else:
            self._add(self.decoder.decode(self.tokenizer.token_bytes(token)))

    def finish(self, reason: str) -> None:
        """End the sample. The reason is "stop" if its last bytes complete a stop string."""
        self._add(self.decoder.decode(b"", final=True))
        if self.finish_reason is None:  # `_add` found no stop string
            self.finish_reason = reason
            self.text += self.held

    def _add(self, new: str) -> None:
        """Add new text up to the first stop string, but for an end that may begin a stop string."""
        uncertain = self.held + new
        stops_at = [uncertain.find(stop) for stop in self.stop if stop in uncertain]
        if stops_at:
            self.finish_reason = "stop"
            end = min(stops_at)
        else:
            overlaps = [overlap(uncertain, stop) for stop in self.stop]
            end = len(uncertain) - max(overlaps, default=0)
        self.text += uncertain[:end]
        self.held = uncertain[end:]


def overlap(text: str, stop: str) -> int:
    """The length of the longest suffix of `text` that is a prefix of `stop`, but not all of it.

    >>> overlap("to be or n", "not"), overlap("to be", "not"), overlap("or not", "not")
    (1, 0, 0)
    """
    for length in range(len(stop) - 1, 0, -1):
        if text.endswith(stop[:length]):
            return length
    return 0


def grow(samples: list[TextSample], steps: Iterator[list[int]]) -> Iterator[None]:
    """Add the tokens of `sample_tokens` to the samples, a step each time, until all are complete.

    A complete sample stays as it is: the tokens that are drawn for it later are discarded. The
    end of the steps completes the others.
    """
    for tokens in steps:
        for sample, token in zip(samples, tokens, strict=True):
            if sample.finish_reason is None:
                sample.push(token)
        yield
        if all(sample.finish_reason for sample in samples):
            return
    for sample in samples:
        if sample.finish_reason is None:
            sample.finish("length")


# How the next token is chosen from its logits


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen from its logits. Raises ArgumentError for a value out of range.

    The steps and their order are those of transformers. Penalise the tokens that the text has
    already: divide a positive logit by repetition_penalty, and multiply a negative one by it
    [Keskar et al. 2019]. Divide the logits by the temperature. Keep the top_k likeliest tokens, and
    those with the same logit as the last of them. Of these, keep the smallest set whose
    probabilities add up to top_p or more. Of these, keep those that are at least min_p times as
    likely as the likeliest. Draw from what is left. With greedy, or at temperature 0, the likeliest
    token after the penalty is taken instead.

    A new setting is a field here and in SamplingSettings, and its step in `probabilities`. The
    field is an argument of tiedgpt.generate. Its metadata have the range that is accepted, what the
    command's help says of its flag, and whether it changes what greedy takes.
    """

    temperature: float = field(
        default=1.0,
        metadata={
            "accepted": AT_LEAST_0,
            "changes_greedy": False,
            "flag": "-t",
            "metavar": "T",
            "help": "divide the logits by T: below 1 sharpens, above 1 flattens, 0 is --greedy",
        },
    )
    top_k: int | None = field(
        default=None,
        metadata={
            "accepted": COUNT,
            "changes_greedy": False,
            "flag": "-k",
            "metavar": "K",
            "help": "sample from the K likeliest tokens, with 0 from all",
        },
    )
    top_p: float | None = field(
        default=None,
        metadata={
            "accepted": PROBABILITY,
            "changes_greedy": False,
            "flag": "-p",
            "metavar": "P",
            "help": "sample from the smallest set of tokens whose probabilities add up to P, with "
            "0 from the likeliest alone",
        },
    )
    greedy: bool = field(
        default=False,
        metadata={"changes_greedy": True, "help": "take the likeliest token every time"},
    )
    min_p: float | None = field(
        default=None,
        metadata={
            "accepted": PROBABILITY,
            "changes_greedy": False,
            "metavar": "P",
            "help": "sample from the tokens that are at least P times as likely as the likeliest",
        },
    )
    repetition_penalty: float = field(
        default=1.0,
        metadata={
            "accepted": ABOVE_0,
            "changes_greedy": True,
            "metavar": "R",
            "help": "divide the positive logits of tokens that are in the text already by R, "
            "multiply the negative ones by it",
        },
    )

    def __post_init__(self) -> None:
        for setting in fields(self):
            value = getattr(self, setting.name)
            is_no_limit = value is None and setting.default is None
            if "accepted" in setting.metadata and not is_no_limit:
                setting.metadata["accepted"].check(setting.name, value)
        if not isinstance(self.greedy, bool):
            raise ArgumentError(f"greedy must be True or False, got {short_repr(self.greedy)}")

    @property
    def is_greedy(self) -> bool:
        return self.greedy or self.temperature == 0

    def probabilities(  # [V] -> [V] float64
        self, logits: np.ndarray, text: Iterable[int] = ()
    ) -> np.ndarray:
        """The probabilities to draw the token after `text` from; those of dropped tokens are 0.

        The ids of the text are needed for the repetition penalty alone.
        """
        if self.repetition_penalty != 1:
            logits = penalised(logits, text, self.repetition_penalty)
        if self.is_greedy:
            p = np.zeros(logits.shape)
            p[logits.argmax()] = 1
            return p
        # Each step changes the same array, because allocation costs more than the arithmetic.
        p = logits.astype(np.float64)
        p -= p.max()
        with np.errstate(over="ignore"):  # a tiny temperature makes all but the largest -inf
            p /= self.temperature
        if self.top_k and self.top_k < p.size:  # 0 and None are no limit
            last_kept = np.partition(logits, -self.top_k)[-self.top_k]  # the K-th largest
            p[logits < last_kept] = -np.inf
        np.exp(p, out=p)
        p /= p.sum()
        if self.top_p is not None and self.top_p < 1:
            drop_unlikely(p, float(self.top_p))  # a float32 would round 1 - top_p
            p /= p.sum()
        if self.min_p is not None:
            p[p < self.min_p * p.max()] = 0
            p /= p.sum()
        return p

    def choose(  # [V] -> token id
        self, logits: np.ndarray, rng: np.random.Generator, text: Iterable[int] = ()
    ) -> int:
        """Choose the token after `text`, as from `probabilities`.

        Raises TiedGPTError for logits that are not finite (a damaged checkpoint).
        """
        p = self.probabilities(check_logits(logits), text)
        if self.is_greedy:
            return int(p.argmax())
        cumulative = np.cumsum(p, out=p)
        # The sum is 1 only up to rounding, so the random number is scaled by it and cannot be past
        # the end. side="right" never chooses a token of probability 0.
        return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))


class SamplingSettings(TypedDict, total=False):
    """The fields of Sampling, as type checkers know the arguments of tiedgpt.generate."""

    temperature: float
    top_k: int | None
    top_p: float | None
    greedy: bool
    min_p: float | None
    repetition_penalty: float


def penalised(  # [V] -> [V]
    logits: np.ndarray, text: Iterable[int], penalty: float
) -> np.ndarray:
    """The logits with a penalty for each token that is in the text."""
    repeated = list(set(text))
    scores = logits[repeated].astype(np.float64)
    # A penalty near 0 or a huge one makes logits that float32 cannot hold.
    limit = np.finfo(logits.dtype).max
    with np.errstate(over="ignore"):
        scores = np.where(scores < 0, scores * penalty, scores / penalty)
    logits = logits.copy()
    logits[repeated] = scores.clip(-limit, limit)
    return logits


def drop_unlikely(p: np.ndarray, top_p: float) -> None:  # [V], changed in place
    """Set to 0 all but the likeliest tokens, as few as add up to `top_p` or more.

    A token is kept if all likelier tokens together have less than top_p. Of equally likely tokens,
    those with lower ids are kept.
    """
    # Probabilities are sorted, not tokens, which is several times faster. Probabilities below
    # (1 - top_p) / V are left out: all of them add up to less than 1 - top_p, so they are dropped.
    # The likeliest token has 1 / V or more.
    descending = np.sort(p[p >= (1 - top_p) / p.size])[::-1]
    # Token i + 1 of this order is kept if the tokens up to i have less than top_p.
    sums = np.cumsum(descending)
    kept_count = 1 + int(np.searchsorted(sums[:-1], top_p))
    last_kept = descending[kept_count - 1]

    # Of the tokens that are as likely as the last one kept, only the first few are kept.
    likelier_count = np.count_nonzero(p > last_kept)
    equal_tokens = np.flatnonzero(p == last_kept)
    p[p < last_kept] = 0
    p[equal_tokens[kept_count - likelier_count :]] = 0
