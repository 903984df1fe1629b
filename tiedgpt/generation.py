"""Sampling: read the prompt once, then choose one token after another.

`sample_steps` chooses the tokens of all samples, one step at a time. `generate` is the same for one sequence
of ids, and `generate_text` for text that is printed while it grows.
"""

import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from .checks import check_count, check_prompt, check_seed
from .errors import ArgumentError, TiedGPTError, is_count, is_number, short_repr
from .model import GPT2, unembed
from .run import KVCache
from .tokenizer import Tokenizer


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen from its logits. Raises ArgumentError for values that make no sense.

    In transformers' order: logits are divided by the temperature; all but the top_k likeliest tokens are
    dropped (those tied with the last one stay); then all but the smallest set of tokens whose probability
    reaches top_p. What is left is drawn from by its probability. Greedy takes the likeliest token instead.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    greedy: bool = False

    def __post_init__(self) -> None:
        if not is_number(self.temperature) or not 0 < self.temperature <= sys.float_info.max:
            raise ArgumentError(
                f"temperature must be a number above 0, got {short_repr(self.temperature)}"
                + ("; to always take the likeliest token, choose greedy" if self.temperature == 0 else "")
            )
        if self.top_k is not None and not is_count(self.top_k, 1):
            raise ArgumentError(f"top_k must be a whole number of at least 1, got {short_repr(self.top_k)}")
        if self.top_p is not None and not (is_number(self.top_p) and 0 < self.top_p <= 1):
            raise ArgumentError(f"top_p must be above 0 and at most 1, got {short_repr(self.top_p)}")

    def probabilities(self, logits: np.ndarray) -> np.ndarray:  # [V] -> [V] float64
        """The distribution that tokens are drawn from; dropped tokens have exactly 0."""
        p = logits.astype(np.float64)  # in place from here on: fresh memory costs more than the arithmetic
        p -= p.max()
        with np.errstate(over="ignore"):  # a tiny temperature sends all but the best to -inf, as it should
            p /= self.temperature
        if self.top_k is not None and self.top_k < p.size:
            p[logits < np.partition(logits, -self.top_k)[-self.top_k]] = -np.inf
        np.exp(p, out=p)
        p /= p.sum()
        if self.top_p is not None and self.top_p < 1:
            # A token stays if those likelier than it do not reach top_p without it. Only values are sorted,
            # which is several times faster than sorting tokens, and only those that can matter: all tokens
            # below (1 - top_p) / V together are less than 1 - top_p. Among equals the lower ids stay.
            low = min((1 - self.top_p) / p.size, p.max())
            descending = np.sort(p[p >= low])[::-1]
            kept = 1 + int(np.searchsorted(np.cumsum(descending)[:-1], self.top_p))
            last = descending[kept - 1]
            equal = np.flatnonzero(p == last)
            p[p < last] = 0
            p[equal[kept - np.count_nonzero(p > last) :]] = 0
            p /= p.sum()
        return p

    def choose(self, logits: np.ndarray, rng: np.random.Generator) -> int:  # [V] -> token id
        """One token. Raises TiedGPTError when the logits are not numbers (a broken checkpoint)."""
        if not np.isfinite(logits.max()):
            raise TiedGPTError("the model's logits are not finite numbers: its checkpoint is damaged")
        if self.greedy:
            return int(logits.argmax())
        p = self.probabilities(logits)
        cumulative = np.cumsum(p, out=p)
        # subtle: scaled by the sum, which is 1 only up to rounding, a draw can never fall off the end; and
        # side="right" can never land on a token of probability 0.
        return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))


def sample_steps(
    model: GPT2,
    prompt: list[int],
    num_samples: int,
    max_new_tokens: int,
    sampling: Sampling,
    seed: int,
    progress: Callable[[int], Any] | None = None,
) -> Iterator[list[int]]:
    """Yield, max_new_tokens times, the next token of each sample: a list of num_samples ids.

    The samples are one batch, and the prompt is read once (`progress` is called with the length of each piece
    read). Sample i draws from its own random stream, fixed by (seed, i), so it does not depend on
    num_samples, up to rounding: a batch's products are summed in another order than one row's, which changes
    a logit in its seventh digit and about 1 sampled token in 10,000.

    When the context is full, the later half of the tokens is kept and read again from position 0, because
    GPT-2's positions are absolute and cached keys hold for their position only. So past n_ctx a token sees
    n_ctx / 2 to n_ctx tokens before it.
    """
    n_ctx = model.config.n_ctx
    streams = [np.random.default_rng([seed, i]) for i in range(num_samples)]
    capacity = min(n_ctx, len(prompt) + max_new_tokens)
    cache = model.new_cache(batch=1, capacity=capacity)
    logits = next_logits(model, np.array([prompt]), cache, progress).repeat(num_samples, axis=0)
    cache = cache.repeat(num_samples)
    tokens = np.array([prompt] * num_samples)
    # A token is read just before the next one is chosen, so the last one is never read.
    for step in range(max_new_tokens):
        if step:  # the first tokens are chosen from the prompt's own logits
            if cache.length == n_ctx:
                cache.length = 0
                logits = next_logits(model, tokens[:, -max(1, n_ctx // 2) :], cache)
            else:
                logits = next_logits(model, tokens[:, -1:], cache)
        chosen = [sampling.choose(row, stream) for row, stream in zip(logits, streams, strict=True)]
        tokens = np.append(tokens[:, -n_ctx:], np.array([chosen]).T, axis=1)
        yield chosen


def next_logits(  # [B, T] -> [B, V]
    model: GPT2, ids: np.ndarray, cache: KVCache, progress: Callable[[int], Any] | None = None
) -> np.ndarray:
    """Read ids into the cache; return the logits of the token after the last one."""
    hidden = model.hidden(ids, cache, progress=progress)
    return unembed(hidden[:, -1], model.W_U)


def generate(
    model: GPT2,
    ids: Any,
    max_new_tokens: int = 40,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int | None = None,
    greedy: bool = False,
) -> Iterator[int]:
    """The tokens that follow `ids` [T], one at a time, until max_new_tokens or the end-of-text token.

    The end-of-text token (config.eos_token_id) is not returned. The other arguments are those of Sampling;
    seed None draws a new seed. Raises ArgumentError at once, before the first token, for a value that is not
    allowed, an id outside the vocabulary, and a prompt that is empty or longer than the context.
    """
    sampling = Sampling(temperature, top_k, top_p, greedy)
    prompt = check_prompt(ids, model.config)
    steps = sample_steps(
        model, prompt, 1, check_count("max_new_tokens", max_new_tokens), sampling, check_seed(seed)
    )

    def until_end_of_text() -> Iterator[int]:
        for (token,) in steps:
            if token in model.config.eos_token_ids:
                return
            yield token

    return until_end_of_text()


class TextSample:
    """One sample as text that can be shown while it grows.

    Text that might be the beginning of a stop string, or that ends within a character, is held back until
    it is known which it is. `ids` and `text` are what was generated, without the end-of-text token; with a
    stop string, `text` ends before it and `ids` with the token that completed it.
    """

    def __init__(self, tokenizer: Tokenizer, stop: list[str], eos_token_ids: tuple[int, ...]) -> None:
        self.ids: list[int] = []
        self.text = ""
        self.finish_reason: str | None = None  # "length", "stop" or "eos"
        self._tokenizer = tokenizer
        self._stream = tokenizer.stream()
        self._stop = stop
        self._eos_token_ids = eos_token_ids
        self._held = ""

    def push(self, token: int) -> str:
        """Add a token; return the text that can be shown now."""
        if token in self._eos_token_ids:
            return self.finish("eos")
        self.ids.append(token)
        if token >= self._tokenizer.vocab_size:  # a row that pads the vocabulary: no text belongs to it
            return self._show(self._stream.finish() + "\ufffd")
        return self._show(self._stream.push(token))

    def finish(self, reason: str) -> str:
        """End the sample ("length": there are enough tokens); return what was held back."""
        shown = self._show(self._stream.finish())
        if self.finish_reason is None:
            self.finish_reason = reason
            shown += self._held
            self.text += self._held
        return shown

    def _show(self, new: str) -> str:
        held = self._held + new
        found = [at for at in (held.find(stop) for stop in self._stop) if at >= 0]
        if found:
            self.finish_reason = "stop"
            end = min(found)
        else:
            end = len(held) - max((_overlap(held, stop) for stop in self._stop), default=0)
        shown, self._held = held[:end], held[end:]
        self.text += shown
        return shown


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that is a beginning of `stop`, short of all of it.

    >>> _overlap("to be or n", "not"), _overlap("to be", "not")
    (1, 0)
    """
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)


def generate_text(
    model: GPT2,
    prompt: list[int],
    samples: list[TextSample],
    max_new_tokens: int,
    sampling: Sampling,
    seed: int,
    progress: Callable[[int], Any] | None = None,
) -> Iterator[tuple[int, str]]:
    """Let the samples grow until each has ended; yield (a sample's number, new text of it) as it comes."""
    for tokens in sample_steps(model, prompt, len(samples), max_new_tokens, sampling, seed, progress):
        for number, (sample, token) in enumerate(zip(samples, tokens, strict=True)):
            if sample.finish_reason is None:  # one that has ended goes along with the batch, unheard
                yield number, sample.push(token)
        if all(sample.finish_reason for sample in samples):
            return
    for number, sample in enumerate(samples):
        if sample.finish_reason is None:
            yield number, sample.finish("length")
