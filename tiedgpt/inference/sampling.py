"""How the next token is chosen from its logits."""

from dataclasses import dataclass

import numpy as np

from ..errors import ABOVE_0, AT_LEAST_0, FRACTION, ArgumentError, Range
from ..gpt2.checks import check_logits


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen from its logits. Raises ArgumentError for a value out of range.

    The steps and their order are those of transformers. Divide the logits by the temperature. Keep
    the top_k likeliest tokens, and those with the same logit as the last of them. Of these, keep
    the smallest set whose probabilities add up to top_p or more. Draw from what is left. Greedy
    takes the likeliest token instead.
    """

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    greedy: bool = False

    def __post_init__(self) -> None:
        is_0 = self.temperature in AT_LEAST_0 and self.temperature not in ABOVE_0
        if is_0:
            raise ArgumentError(
                f"temperature must be {ABOVE_0}, got 0; for the likeliest token, set greedy"
            )
        ABOVE_0.check("temperature", self.temperature)
        if self.top_k is not None:
            Range(1).check("top_k", self.top_k)
        if self.top_p is not None:
            FRACTION.check("top_p", self.top_p)

    def probabilities(self, logits: np.ndarray) -> np.ndarray:  # [V] -> [V] float64
        """The probabilities to draw the token from; those of dropped tokens are exactly 0."""
        # Each step changes the same array, because allocation costs more than the arithmetic.
        p = logits.astype(np.float64)
        p -= p.max()
        with np.errstate(over="ignore"):  # a tiny temperature makes all but the largest -inf
            p /= self.temperature
        if self.top_k is not None and self.top_k < p.size:
            last_kept = np.partition(logits, -self.top_k)[-self.top_k]
            p[logits < last_kept] = -np.inf
        np.exp(p, out=p)
        p /= p.sum()
        if self.top_p is not None and self.top_p < 1:
            drop_unlikely(p, self.top_p)
            p /= p.sum()
        return p

    def choose(self, logits: np.ndarray, rng: np.random.Generator) -> int:  # [V] -> token id
        """Choose one token.

        Raises TiedGPTError for logits that are not finite (a damaged checkpoint).
        """
        check_logits(logits)
        if self.greedy:
            return int(logits.argmax())
        p = self.probabilities(logits)
        cumulative = np.cumsum(p, out=p)
        # The sum is 1 only up to rounding, so the random number is scaled by it and cannot be past
        # the end. side="right" never chooses a token of probability 0.
        return int(np.searchsorted(cumulative, rng.random() * cumulative[-1], side="right"))


def drop_unlikely(p: np.ndarray, top_p: float) -> None:  # [V], changed in place
    """Set to 0 all but the likeliest tokens, as few as add up to `top_p` or more.

    A token is kept if all likelier tokens together have less than top_p. Of equally likely tokens,
    those with lower ids are kept.
    """
    # Probabilities are sorted, not tokens, which is several times faster. Only those of at least
    # (1 - top_p) / V are: all below that add up to less than 1 - top_p, so they are dropped.
    least = min((1 - top_p) / p.size, p.max())  # the likeliest token is kept in any case
    descending = np.sort(p[p >= least])[::-1]
    # Token i + 1 of this order is kept if the tokens up to i have less than top_p.
    sums = np.cumsum(descending)
    kept_count = 1 + int(np.searchsorted(sums[:-1], top_p))
    last_kept = descending[kept_count - 1]

    # Of the tokens that are as likely as the last one kept, only the first few are kept.
    likelier_count = np.count_nonzero(p > last_kept)
    equal_tokens = np.flatnonzero(p == last_kept)
    p[p < last_kept] = 0
    p[equal_tokens[kept_count - likelier_count :]] = 0
