"""Speculative decoding: guess the next tokens cheaply, then check all guesses in one forward pass.

A forward pass reads every weight once, for one token or for ten. So reading the last token and k
guesses takes little longer than reading one token, and gives one more token for each right guess.
The tokens are the model's own: each is drawn from the model's logits with the sample's random
stream, as without guesses. The first token that differs from its guess ends the step.
"""

from bisect import bisect
from collections.abc import Iterable
from copy import deepcopy

import numpy as np

from ..errors import ArgumentError, TiedGPTError, short_repr
from ..fast.blas import has_small_kernels
from ..fast.products import most_rows
from ..gpt2.model import GPT2, unembed
from ..gpt2.parameters import parameter_count
from .sampling import Sampling

LOOKUP = "lookup"
MOST_GUESSES = 15  # in a step
MATCHES = (1, 2, 4, 8)  # lengths of equal text, in tokens, that the lookup tells apart
# Probability of a right guess at first: after each of MATCHES, and in a loop, where the end of the
# text repeats the tokens directly before it. Measured on verse, prose, Python and Markdown in
# GPT-2's tokens.
RATES = (0.15, 0.4, 0.6, 0.75, 0.85)
LEAST_GAIN = 1.05  # guess only if that makes generation so many times faster
RATE_UPDATE = 0.1  # weight of the newest guess in the rate of right guesses


def step_time(rows: int) -> float:
    """The time of a step of several rows, in steps of one row, as measured on two cores and rounded
    up."""
    if rows == 1:
        return 1.0
    return 1.15 + 0.1 * rows if rows <= most_rows() and has_small_kernels() else 2.0 + 0.055 * rows


def guess_count(rates: list[float], time: float, batch: int) -> int:
    """The number of guesses that gives the most tokens per time, 0 to len(rates).

    rates: the probability that each guess is right if those before it are. time: of making a guess,
    in steps.
    """
    best, count, tokens, all_right = LEAST_GAIN / step_time(batch), 0, 1.0, 1.0
    for k, rate in enumerate(rates, 1):
        all_right *= rate
        tokens += all_right
        if (speed := tokens / (step_time(batch * (1 + k)) + k * time * batch)) > best:
            best, count = speed, k
    return count


class Guesser:
    """Guesses the tokens of one sample, and learns how often the guesses are right."""

    def __init__(self, batch: int, rates: Iterable[float]) -> None:
        self.batch = batch
        self.rates = list(rates)  # of right guesses
        self.guessed: list[int] = []
        self.rate_indices: list[int] = []  # of each guess, in self.rates

    def guess(self, text: list[int], most: int) -> list[int]:
        """Up to `most` tokens that may follow `text`; fewer if more would take longer than they
        save."""
        raise NotImplementedError

    def learn(self, tokens: list[int]) -> None:
        """`tokens` followed the text of the last call of `guess`."""
        for index, guess, token in zip(self.rate_indices, self.guessed, tokens, strict=False):
            self.rates[index] += RATE_UPDATE * ((guess == token) - self.rates[index])


class LookupGuesser(Guesser):
    """Guess the tokens that followed the previous occurrence of the text's last 1, 2, 4 or 8
    tokens.

    This is also called prompt lookup. If a guess is right, the next one follows a match that is one
    token longer, and is more likely to be right. One guess more than is returned is compared with
    the text too.
    """

    def __init__(self, batch: int) -> None:
        super().__init__(batch, RATES)
        self.ends: dict[tuple[int, ...], int] = {}  # where each run of MATCHES tokens last ended
        self.indexed = 1

    def guess(self, text: list[int], most: int) -> list[int]:
        for end in range(
            self.indexed, len(text)
        ):  # the end of the text itself is left for the next call
            for n in MATCHES[: bisect(MATCHES, end)]:
                self.ends[tuple(text[end - n : end])] = end
        self.indexed = max(self.indexed, len(text))
        for n in reversed(MATCHES[: bisect(MATCHES, len(text) - 1)]):
            if (start := self.ends.get(tuple(text[-n:]))) is not None:
                followed = text[
                    start : start + most + 1
                ]  # repeated if the text ends before the guess
                # A match as long as the distance to its first occurrence is a loop, which has its
                # own rate.
                distance = len(text) - start
                matches = range(n, n + most + 1)
                of_match = (
                    len(MATCHES) if m >= distance else bisect(MATCHES, m) - 1 for m in matches
                )
                self.rate_indices = list(of_match)
                count = guess_count(
                    [self.rates[i] for i in self.rate_indices[:most]], 0, self.batch
                )
                self.guessed = [followed[i % len(followed)] for i in range(count + 1)]
                return self.guessed[:count]
        self.guessed = []
        return []


class ModelGuesser(Guesser):
    """The tokens that a smaller model would choose, with the random numbers that the large one will
    use."""

    def __init__(
        self, model: GPT2, time: float, batch: int, sampling: Sampling, stream: np.random.Generator
    ) -> None:
        super().__init__(batch, [0.7])
        self.model, self.time, self.sampling, self.stream = model, time, sampling, stream
        self.cache = model.new_cache()
        self.start = 0  # index in the text of the first cached token

    def guess(self, text: list[int], most: int) -> list[int]:
        count = guess_count(self.rates * most, self.time, self.batch)
        n_ctx = self.model.config.n_ctx
        # The cache may end with wrong guesses. The text's last token is not in it.
        self.cache.length = min(self.cache.length, len(text) - 1 - self.start)
        if len(text) - self.start + count > n_ctx:
            self.start, self.cache.length = len(text) - n_ctx // 2, 0
        stream = deepcopy(self.stream)
        self.guessed, self.rate_indices = [], [0] * count
        unread = text[self.start + self.cache.length :]
        for _ in range(count):
            final = self.model.final(unread, self.cache)
            try:
                unread = [self.sampling.choose(unembed(final[-1], self.model.W_U), stream)]
            except TiedGPTError as error:
                raise TiedGPTError(f"the draft model: {error}") from error
            self.guessed += unread
        return self.guessed

    def learn(self, tokens: list[int]) -> None:
        super().learn(tokens)
        if not self.guessed:  # raise the rate slowly, so that guessing is tried again
            self.rates[0] += RATE_UPDATE**2 * (1 - self.rates[0])


class Draft:
    """Where guesses come from: "lookup" in the text so far, or a smaller model. Counts the guesses.

    Raises ArgumentError for another source, and for a model that cannot guess for `model`: the
    model itself, or one with another vocabulary or a shorter context.
    """

    def __init__(self, source: "str | GPT2", model: GPT2) -> None:
        self.source = source
        self.drafted = self.accepted = 0
        self.time = 0.0  # of a guess, in steps of the model
        if isinstance(source, GPT2):
            if source is model:
                raise ArgumentError("the draft model is the model itself; it must be a smaller one")
            draft, of_model = source.config, model.config
            if draft.vocab_size != of_model.vocab_size:
                sizes = f"{draft.vocab_size:,} tokens, the model {of_model.vocab_size:,}"
                raise ArgumentError(f"the draft model has another vocabulary: {sizes}")
            if draft.n_ctx < of_model.n_ctx:
                sizes = f"{draft.n_ctx:,} tokens, the model {of_model.n_ctx:,}"
                raise ArgumentError(f"the draft model has a shorter context: {sizes}")
            small, large = (
                parameter_count(config.with_head("tied")).total for config in (draft, of_model)
            )
            self.time = small / large  # most of the time of a token is reading weights
        elif source != LOOKUP:
            raise ArgumentError(
                f'draft must be "{LOOKUP}", a model or None, got {short_repr(source)}'
            )

    def guesser(self, sampling: Sampling, stream: np.random.Generator, batch: int) -> Guesser:
        """A guesser for one sample of a batch, which is chosen by `sampling` and `stream`."""
        if isinstance(self.source, GPT2):
            return ModelGuesser(self.source, self.time, batch, sampling, stream)
        return LookupGuesser(batch)
