"""Count the tokens of a text and its bigrams, to compare them with a model's predictions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import ArgumentError
from ..gpt2.checks import as_array

MIN_COUNT = 100  # a token that occurs less often has too few successors for a bigram distribution
MIN_TOKENS = 10  # no average is reported over fewer frequent tokens


@dataclass(frozen=True)
class Corpus:
    """The token ids of a text, the count of each token, and the count of each pair of neighbours.

    The pairs are the rows of a sparse [V, V] table, which would take 20 GB for GPT-2's vocabulary:
    successors[a:b], in the order of their ids, followed token t pair_counts[a:b] times, where
    a, b = starts[t], starts[t + 1].

    >>> corpus = Corpus.of([2, 0, 2, 1, 2, 0], vocab_size=4)
    >>> corpus.counts.tolist(), [array.tolist() for array in corpus.row(2)]
    ([2, 1, 3, 0], [[0, 1], [2, 1]])
    """

    ids: np.ndarray  # [N]
    counts: np.ndarray  # [V], occurrences of each token
    starts: np.ndarray  # [V + 1]
    successors: np.ndarray  # [P]
    pair_counts: np.ndarray  # [P]

    @classmethod
    def of(cls, ids: Any, vocab_size: int) -> "Corpus":
        """Count the tokens and the pairs of `ids` [N]. Raises ArgumentError for an id outside [0,
        V)."""
        ids, V = as_array(ids).astype(np.int64), vocab_size
        if (outside := ids[(ids < 0) | (ids >= V)]).size:
            raise ArgumentError(
                f"token id {outside[0]} of the corpus is outside the vocabulary of {V}"
            )
        pairs, pair_counts = np.unique(
            ids[:-1] * V + ids[1:], return_counts=True
        )  # sorted by first token
        first, successors = np.divmod(pairs, V)
        starts = np.searchsorted(first, np.arange(V + 1))
        return cls(ids, np.bincount(ids, minlength=V), starts, successors, pair_counts)

    def write(self, path: Path) -> None:
        """Write the counts to an .npz file, without the ids."""
        tables = (self.counts, self.starts, self.successors, self.pair_counts)
        np.savez_compressed(path, *(table.astype(np.uint32) for table in tables))

    @classmethod
    def read(cls, path: Path) -> "Corpus":
        """A corpus that `write` wrote. Its `ids` are empty."""
        with np.load(path, allow_pickle=False) as file:
            return cls(
                np.empty(0, np.int64), *(file[f"arr_{n}"].astype(np.int64) for n in range(4))
            )

    def row(self, token: int) -> tuple[np.ndarray, np.ndarray]:
        """The tokens that follow `token`, in the order of their ids, and the count of each."""
        row = slice(self.starts[token], self.starts[token + 1])
        return self.successors[row], self.pair_counts[row]

    def table(
        self, rows: np.ndarray, columns: np.ndarray
    ) -> np.ndarray:  # [n], [m] -> [n, m] float32
        """How often each of `columns` follows each of `rows`."""
        found = np.empty((rows.size, columns.size), np.float32)
        for number, token in enumerate(rows):
            found[number] = np.bincount(*self.row(token), self.counts.size)[columns]
        return found

    def count(self, first: int, second: int) -> int:
        """How often `second` follows `first`."""
        successors, counts = self.row(first)
        return int(counts[successors == second].sum())

    def share(self, first: int, second: int) -> float:  # in [0, 1]
        """The share of the tokens after `first` that are `second`; 0 if nothing follows `first`."""
        return self.count(first, second) / max(1, int(self.row(first)[1].sum()))

    def frequent(self, min_count: int = MIN_COUNT) -> np.ndarray:  # -> [n]
        """The ids of the tokens that occur at least `min_count` times."""
        return np.flatnonzero(self.counts >= min_count)

    def self_prediction(self) -> float | None:  # in [0, 1]
        """The share of the frequent tokens that no other token follows more often than the token
        itself."""
        tokens = self.frequent()
        if tokens.size < MIN_TOKENS:
            return None
        return float(np.mean([self.count(t, t) == self.row(t)[1].max(initial=1) for t in tokens]))
