"""Speculative decoding: guess the next tokens cheaply, then check all guesses in one forward pass.

A forward pass reads every weight once, for one token or for ten. So reading the last token and k
guesses takes little longer than reading one token, and gives one more token for each right guess.
The tokens are the model's own: each is drawn from the model's logits with the sample's random
stream, as without guesses. The first token that differs from its guess ends the step.
"""

from collections.abc import Iterable
from copy import deepcopy

import numpy as np

from ..errors import ArgumentError, TiedGPTError, short_repr
from ..fast.products import FEW_ROWS
from ..gpt2.model import GPT2, unembed
from ..gpt2.parameters import parameter_count
from ..sampling import Sampling

LOOKUP = "lookup"
MOST_GUESSES = 15  # in a step
MATCH_LENGTHS = (1, 2, 4, 8)  # how many of the last tokens the lookup searches the text for
# A hit rate is the probability that a guess is right. These are the lookup's at first: one after a
# match of each of MATCH_LENGTHS, and the last one in a loop, where the end of the text repeats the
# tokens directly before it. Measured on verse, prose, Python and Markdown in GPT-2's tokens.
HIT_RATES = (0.15, 0.4, 0.6, 0.75, 0.85)
MODEL_HIT_RATE = 0.7  # of a draft model at first
LEAST_GAIN = 1.05  # guess only if that makes generation so many times faster
GUESS_WEIGHT = 0.1  # of the newest guess in a hit rate
# How fast the hit rate of a draft model rises towards 1 while it makes no guesses. It is slow, so a
# model that guesses badly is tried again only after dozens of tokens.
RISE_WEIGHT = GUESS_WEIGHT**2


def step_time(rows: int) -> float:
    """The time of a step that reads so many tokens (rows of the products), in steps of one.

    Measured on two cores and rounded up. Up to FEW_ROWS rows, products take a faster way.
    """
    if rows == 1:
        return 1.0
    if rows <= FEW_ROWS:
        return 1.15 + 0.1 * rows
    return 2.0 + 0.055 * rows


def guess_count(hit_rates: list[float], guess_cost: float, batch: int) -> int:
    """How many guesses give the most tokens per time: 0 to len(hit_rates).

    hit_rates: the probability that each guess is right if those before it are. guess_cost: the time
    of making a guess. batch: how many samples are read together; each gets so many guesses. All
    times are in steps of one row.
    """
    best_count = 0
    best_speed = LEAST_GAIN / step_time(batch)  # the tokens per time that guessing must exceed
    expected_tokens = 1.0  # a sample gains one token in a step, and one more for each right guess
    chance_all_right = 1.0
    for count, hit_rate in enumerate(hit_rates, start=1):
        chance_all_right *= hit_rate
        expected_tokens += chance_all_right
        # The samples' guesses are made one after another, and read together in one step.
        time_to_guess = count * guess_cost * batch
        rows_read = batch * (1 + count)
        duration = step_time(rows_read) + time_to_guess
        speed = expected_tokens / duration
        if speed > best_speed:
            best_speed = speed
            best_count = count
    return best_count


class Guesser:
    """Guesses the tokens of one sample, and learns how often the guesses are right.

    batch: how many samples are read together. hit_rates: the probability that a guess is right, at
    first, for each kind of guess.
    """

    def __init__(self, batch: int, hit_rates: Iterable[float]) -> None:
        self.batch = batch
        self.hit_rates = list(hit_rates)
        # What `guess` guessed last, and the kind of each guess, which is an index of `hit_rates`.
        self.guessed: list[int] = []
        self.kinds: list[int] = []

    def guess(self, text: list[int], most: int) -> list[int]:
        """Up to `most` tokens that may follow `text`; fewer if more would take longer."""
        raise NotImplementedError

    def learn(self, tokens: list[int]) -> None:
        """Update the hit rates: `tokens` followed the text of the last call of `guess`."""
        # After a wrong guess there are fewer tokens than guesses: the others are not judged.
        for kind, guess, token in zip(self.kinds, self.guessed, tokens, strict=False):
            is_right = guess == token
            self.hit_rates[kind] += GUESS_WEIGHT * (is_right - self.hit_rates[kind])


def kind_of_guess(match: int, distance: int) -> int:
    """The index in HIT_RATES for a guess that follows a match of `match` tokens, one or more.

    `distance` is from the match back to its earlier occurrence. If the match is as long as that, or
    longer, the text is in a loop: its end repeats the tokens directly before it.
    """
    is_loop = match >= distance
    if is_loop:
        return len(HIT_RATES) - 1  # the last one
    lengths_reached = [length for length in MATCH_LENGTHS if length <= match]
    return len(lengths_reached) - 1  # the index of the longest of them


class LookupGuesser(Guesser):
    """Guesses the tokens that followed the previous occurrence of the text's last tokens.

    This is also called prompt lookup. The last 1, 2, 4 or 8 tokens are looked up. If a guess is
    right, the next one follows a match that is one token longer, and is more likely to be right.
    """

    def __init__(self, batch: int) -> None:
        super().__init__(batch, HIT_RATES)
        # Where each run of 1, 2, 4 or 8 tokens last ended in the text.
        self.ends: dict[tuple[int, ...], int] = {}
        self.ends_are_complete_to = 0  # `ends` has the runs that end before this position

    def guess(self, text: list[int], most: int) -> list[int]:
        """As Guesser.guess; no tokens if the last token of `text` did not occur before."""
        self.add_new_runs(text)
        match = self.longest_match(text)
        if match == 0:
            self.guessed = []
            return []

        # The earlier occurrence of the match ends at `start`. The tokens from there to the end of
        # the text are the guesses. If more are needed, they begin again at `start`, as in a loop.
        start = self.ends[tuple(text[-match:])]
        distance = len(text) - start
        guesses = []
        self.kinds = []
        for i in range(most + 1):  # one more than `most`, for `learn` alone
            guesses.append(text[start + i % distance])
            # If the i guesses before this one are right, it follows a match that is i longer.
            self.kinds.append(kind_of_guess(match + i, distance))

        hit_rates = [self.hit_rates[kind] for kind in self.kinds[:most]]
        count = guess_count(hit_rates, guess_cost=0, batch=self.batch)
        # `learn` gets one guess more than the model. So a hit rate that is too low for a guess can
        # still rise, until guessing pays again.
        self.guessed = guesses[: count + 1]
        return guesses[:count]

    def add_new_runs(self, text: list[int]) -> None:
        """Add to `ends` the runs that are new in `text`, which has grown since the last call.

        The runs at its very end are left out until the next call. They are what `longest_match`
        searches for, and must not be found as their own earlier occurrence.
        """
        for end in range(self.ends_are_complete_to, len(text)):
            for length in MATCH_LENGTHS:
                if length <= end:
                    self.ends[tuple(text[end - length : end])] = end
        self.ends_are_complete_to = len(text)

    def longest_match(self, text: list[int]) -> int:
        """How many of the last tokens occurred before: the largest of MATCH_LENGTHS, or 0."""
        for length in reversed(MATCH_LENGTHS):
            if tuple(text[-length:]) in self.ends:
                return length
        return 0


class ModelGuesser(Guesser):
    """Guesses the tokens that a smaller model chooses.

    It draws with the random numbers that the large model will draw with, so that both choose the
    same token where their probabilities are similar.
    """

    def __init__(
        self,
        model: GPT2,
        guess_cost: float,
        batch: int,
        sampling: Sampling,
        stream: np.random.Generator,
    ) -> None:
        super().__init__(batch, hit_rates=[MODEL_HIT_RATE])  # all guesses are of one kind
        self.model = model
        self.guess_cost = guess_cost
        self.sampling = sampling
        self.stream = stream
        self.cache = model.new_cache()
        self.start = 0  # index in the text of the first cached token

    def guess(self, text: list[int], most: int) -> list[int]:
        """As Guesser.guess: the tokens that the smaller model chooses after `text`."""
        hit_rates = [self.hit_rates[0]] * most  # all guesses are of one kind
        count = guess_count(hit_rates, self.guess_cost, self.batch)
        self.kinds = [0] * count
        self.guessed = []

        unread = self.unread_tokens(text, count)
        stream = deepcopy(self.stream)  # the large model still has to draw the same numbers
        for _ in range(count):
            final = self.model.final(unread, self.cache)  # [T, D]
            logits = unembed(final[-1], self.model.W_U)  # [V]
            try:
                token = self.sampling.choose(logits, stream, [*text, *self.guessed])
            except TiedGPTError as error:
                raise TiedGPTError(f"the draft model: {error}") from error
            self.guessed.append(token)
            unread = [token]
        return self.guessed

    def unread_tokens(self, text: list[int], count: int) -> list[int]:
        """The tokens at the end of `text` that are not in the cache, at least one.

        The cache gets room for them and for `count` guesses.
        """
        # The last token of the text was never read. Tokens that the cache holds beyond those before
        # it are wrong guesses, which are dropped.
        most_cached = len(text) - 1 - self.start
        self.cache.length = min(self.cache.length, most_cached)

        # When the cache would be full, it begins again with half a context of tokens.
        n_ctx = self.model.config.n_ctx
        if len(text) - self.start + count > n_ctx:
            self.start = len(text) - n_ctx // 2
            self.cache.length = 0
        return text[self.start + self.cache.length :]

    def learn(self, tokens: list[int]) -> None:
        """Update the hit rate, as Guesser.learn, and also if there were no guesses."""
        super().learn(tokens)
        # Without guesses there is nothing to learn from. The hit rate rises until it is high enough
        # to try a guess again.
        if not self.guessed:
            self.hit_rates[0] += RISE_WEIGHT * (1 - self.hit_rates[0])


class Draft:
    """Where guesses come from: "lookup" in the text so far, or a smaller model. Counts the guesses.

    Raises ArgumentError for another source, and for a model that cannot guess for `model`: the
    model itself, or one with another vocabulary or a shorter context.
    """

    def __init__(self, source: str | GPT2, model: GPT2) -> None:
        self.source = source
        self.drafted = 0  # guesses that the model has read
        self.accepted = 0  # those of them that were right
        self.guess_cost = 0.0  # the time of a guess, in steps of the model
        if isinstance(source, GPT2):
            check_draft_model(source, model)
            # Most of the time of a token is reading the weights. An untied model reads all of W_U,
            # but only one row of wte, so it reads as much as a tied model.
            draft_total = parameter_count(source.config.with_head("tied")).total
            model_total = parameter_count(model.config.with_head("tied")).total
            self.guess_cost = draft_total / model_total
        elif source != LOOKUP:
            raise ArgumentError(
                f'draft must be "lookup", a model or None, got {short_repr(source)}'
            )

    def guesser(self, sampling: Sampling, stream: np.random.Generator, batch: int) -> Guesser:
        """A guesser for one sample of a batch, whose tokens `sampling` and `stream` choose."""
        if isinstance(self.source, GPT2):
            return ModelGuesser(self.source, self.guess_cost, batch, sampling, stream)
        return LookupGuesser(batch)


def check_draft_model(draft: GPT2, model: GPT2) -> None:
    """Raise ArgumentError if `draft` cannot guess for `model`."""
    if draft is model:
        raise ArgumentError("the draft model is the model itself; it must be a smaller one")
    if draft.config.vocab_size != model.config.vocab_size:
        raise ArgumentError(
            f"the draft model has another vocabulary: {draft.config.vocab_size:,} tokens, "
            f"the model {model.config.vocab_size:,}"
        )
    if draft.config.n_ctx < model.config.n_ctx:
        raise ArgumentError(
            f"the draft model has a shorter context: {draft.config.n_ctx:,} tokens, "
            f"the model {model.config.n_ctx:,}"
        )
