"""Speculative decoding: guess the next tokens cheaply, then check all guesses in one forward pass.

A forward pass reads every weight once, for one token or for ten. So reading the last token and k guesses
takes little longer than reading one token, and gives one more token for each right guess. The tokens are the
model's own: each is drawn from the model's logits with the sample's random stream, as without guesses. The
first token that differs from its guess ends the step.
"""

from bisect import bisect
from dataclasses import dataclass

from ..fast.blas import has_small_kernels
from ..fast.products import most_rows

LOOKUP = "lookup"
MOST_GUESSES = 15  # in a step
MATCHES = (1, 2, 4, 8)  # lengths of equal text, in tokens, that the lookup tells apart
# Probability of a right guess at first: after each of MATCHES, and in a loop, where the end of the text
# repeats the tokens directly before it. Measured on verse, prose, Python and Markdown in GPT-2's tokens.
RATES = (0.15, 0.4, 0.6, 0.75, 0.85)
LEAST_GAIN = 1.05  # guess only if that makes generation so many times faster
RATE_UPDATE = 0.1  # weight of the newest guess in the rate of right guesses


def step_time(rows: int) -> float:
    """The time of a step of several rows, in steps of one row.

    Measured with GPT-2 124M and the shipped models on two cores, and rounded up: a guess must pay for itself.
    """
    if rows == 1:
        return 1.0
    return 1.15 + 0.1 * rows if rows <= most_rows() and has_small_kernels() else 2.0 + 0.055 * rows


def guess_count(rates: list[float], batch: int) -> int:
    """The number of guesses that gives the most tokens per time, 0 to len(rates).

    rates: the probability that each guess is right if those before it are.
    """
    best, count, tokens, all_right = LEAST_GAIN / step_time(batch), 0, 1.0, 1.0
    for k, rate in enumerate(rates, 1):
        all_right *= rate
        tokens += all_right
        if (speed := tokens / step_time(batch * (1 + k))) > best:
            best, count = speed, k
    return count


@dataclass
class Draft:
    """How many tokens were guessed for all samples, and how many of the guesses were right."""

    drafted: int = 0
    accepted: int = 0


class Guesser:
    """Guess the tokens that followed the previous occurrence of the text's last 1, 2, 4 or 8 tokens.

    This is also called prompt lookup. A guesser has one sample, and learns how often its guesses are right.
    If a guess is right, the next one follows a match that is one token longer, and is more likely to be
    right. One guess more than is returned is compared with the text too.
    """

    def __init__(self, batch: int, draft: Draft) -> None:
        self.batch = batch  # samples that are read together
        self.draft = draft
        self.rates = list(RATES)  # of right guesses
        self.guessed: list[int] = []
        self.rate_indices: list[int] = []  # of each guess, in self.rates
        self.ends: dict[tuple[int, ...], int] = {}  # where each run of MATCHES tokens last ended
        self.indexed = 1

    def guess(self, text: list[int], most: int) -> list[int]:
        """Up to `most` tokens that may follow `text`; fewer if more would take longer than they save."""
        for end in range(self.indexed, len(text)):  # the end of the text itself is left for the next call
            for n in MATCHES[: bisect(MATCHES, end)]:
                self.ends[tuple(text[end - n : end])] = end
        self.indexed = max(self.indexed, len(text))
        for n in reversed(MATCHES[: bisect(MATCHES, len(text) - 1)]):
            if (start := self.ends.get(tuple(text[-n:]))) is not None:
                followed = text[start : start + most + 1]  # repeated if the text ends before the guess
                # A match as long as the distance to its first occurrence is a loop, which has its own rate.
                distance = len(text) - start
                matches = range(n, n + most + 1)
                self.rate_indices = [
                    len(MATCHES) if m >= distance else bisect(MATCHES, m) - 1 for m in matches
                ]
                count = guess_count([self.rates[i] for i in self.rate_indices[:most]], self.batch)
                self.guessed = [followed[i % len(followed)] for i in range(count + 1)]
                return self.guessed[:count]
        self.guessed = []
        return []

    def learn(self, tokens: list[int]) -> None:
        """`tokens` followed the text of the last call of `guess`."""
        for index, guess, token in zip(self.rate_indices, self.guessed, tokens, strict=False):
            self.rates[index] += RATE_UPDATE * ((guess == token) - self.rates[index])
        self.draft.drafted += max(len(self.guessed) - 1, 0)
        self.draft.accepted += len(tokens) - 1
