"""How the next token is chosen from its logits."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import TypedDict

import numpy as np

from .errors import ABOVE_0, AT_LEAST_0, COUNT, PROBABILITY, ArgumentError, short_repr
from .gpt2.checks import check_logits


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
            last_kept = np.partition(logits, -self.top_k)[-self.top_k]
            p[logits < last_kept] = -np.inf
        np.exp(p, out=p)
        p /= p.sum()
        if self.top_p is not None and self.top_p < 1:
            drop_unlikely(p, self.top_p)
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
