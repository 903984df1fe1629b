"""Continue a prompt: read it once, then choose one token after another.

The way of a prompt, from `tiedgpt generate PROMPT` to a token:

    cli/generate.py    finds and loads the model, and turns the prompt into token ids
    generation.py      sample_tokens reads the prompt, and then one token after the other
    gpt2/model.py      GPT2.final reads tokens, unembed gives the logits of the last one
    sampling.py        Sampling.choose draws the next token from its logits
    generation.py      TextSample turns tokens into text that can be printed

`tiedgpt.generate`, for Python, is `generate`, and goes the same way.
"""

import codecs
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from .errors import COUNT, ArgumentError, Range
from .gpt2.checks import as_array, check_ids
from .gpt2.config import Config
from .gpt2.model import GPT2, unembed
from .gpt2.run import OnProgress
from .gpt2.tokenizer import Tokenizer
from .sampling import Sampling

if TYPE_CHECKING:
    from typing_extensions import Unpack  # Python 3.10 has none in typing

    from .sampling import SamplingSettings

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
    sampling: Sampling,
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
            if cache.length == n_ctx:
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
