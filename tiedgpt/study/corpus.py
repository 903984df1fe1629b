"""Which token follows which in a text: counts, to hold a model's opinions against."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from ..checks import as_array
from ..errors import ArgumentError

MIN_COUNT = 100  # a token seen less often has too few successors for its counts to say much


@dataclass(frozen=True)
class Corpus:
    """A text's ids, its tokens counted, and its pairs of neighbours counted.

    The pairs are the rows of a sparse [V, V] table: token t was followed by successors[a:b], in the order
    of their ids, followed[a:b] times, where a, b = starts[t], starts[t + 1]. (The whole table would be
    20 GB for GPT-2's vocabulary; a megabyte of text has some hundred thousand different pairs.)

    >>> corpus = Corpus.of([2, 0, 2, 1, 2, 0], vocab_size=4)
    >>> corpus.counts.tolist()
    [2, 1, 3, 0]
    >>> [array.tolist() for array in corpus.row(2)]
    [[0, 1], [2, 1]]
    """

    ids: np.ndarray  # [N]
    counts: np.ndarray  # [V], how often each token is there
    starts: np.ndarray  # [V + 1]
    successors: np.ndarray  # [P]
    followed: np.ndarray  # [P]

    @classmethod
    def of(cls, ids: Any, vocab_size: int) -> "Corpus":
        """Count the tokens and the pairs of `ids` [N]. Raises ArgumentError for one outside [0, V)."""
        ids = as_array(ids).astype(np.int64)
        V = vocab_size
        outside = ids[(ids < 0) | (ids >= V)]
        if outside.size:
            raise ArgumentError(
                f"the corpus holds token id {outside[0]}, which is outside the model's vocabulary of {V}"
            )
        pairs, followed = np.unique(ids[:-1] * V + ids[1:], return_counts=True)  # sorted: row after row
        first, successors = np.divmod(pairs, V)
        starts = np.searchsorted(first, np.arange(V + 1))
        return cls(ids, np.bincount(ids, minlength=V), starts, successors, followed)

    def row(self, token: int) -> tuple[np.ndarray, np.ndarray]:
        """The tokens that follow `token`, in the order of their ids, and how often each does."""
        row = slice(self.starts[token], self.starts[token + 1])
        return self.successors[row], self.followed[row]

    def count(self, first: int, second: int) -> int:
        """How often `second` follows `first`."""
        successors, followed = self.row(first)
        return int(followed[successors == second].sum())

    def frequent(self, least: int = MIN_COUNT) -> np.ndarray:  # -> [n]
        """The ids of the tokens that are there at least `least` times."""
        return np.flatnonzero(self.counts >= least)

    def self_prediction(self, tokens: np.ndarray) -> float | None:  # [n] -> in [0, 1]
        """The share of `tokens` that nothing follows more often than the token itself; None of no tokens."""
        if tokens.size == 0:
            return None
        hits = 0
        for token in tokens:
            successors, followed = self.row(token)
            hits += token in successors[followed == followed.max(initial=0)]
        return hits / tokens.size
