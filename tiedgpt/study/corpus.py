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
        """Count the tokens and the pairs of `ids` [N].

        Raises ArgumentError for an id outside the vocabulary.
        """
        V = vocab_size
        ids = as_array(ids).astype(np.int64)
        outside = ids[(ids < 0) | (ids >= V)]
        if outside.size > 0:
            raise ArgumentError(
                f"token id {outside[0]} of the corpus is outside the vocabulary of {V}"
            )
        # One number stands for a pair, so that equal pairs can be counted. np.unique sorts them by
        # their first token.
        pairs, pair_counts = np.unique(ids[:-1] * V + ids[1:], return_counts=True)
        first_tokens, successors = np.divmod(pairs, V)

        # For each token, starts has the place of the first pair that begins with it or with a
        # higher one. Token V does not exist; its place is the end of the last token's pairs.
        starts = np.searchsorted(first_tokens, np.arange(V + 1))
        return cls(
            ids=ids,
            counts=np.bincount(ids, minlength=V),
            starts=starts,
            successors=successors,
            pair_counts=pair_counts,
        )

    def write(self, path: Path) -> None:
        """Write the counts to an .npz file, without the ids."""
        # 32 bits are enough for a text of 4 billion tokens, and halve the file.
        np.savez_compressed(  # it names them arr_0, arr_1, ...
            path,
            self.counts.astype(np.uint32),
            self.starts.astype(np.uint32),
            self.successors.astype(np.uint32),
            self.pair_counts.astype(np.uint32),
        )

    @classmethod
    def read(cls, path: Path) -> "Corpus":
        """A corpus that `write` wrote. Its `ids` are empty."""
        with np.load(path, allow_pickle=False) as file:
            return cls(  # the arrays are numbered in the order in which `write` gives them
                ids=np.empty(0, np.int64),
                counts=file["arr_0"].astype(np.int64),
                starts=file["arr_1"].astype(np.int64),
                successors=file["arr_2"].astype(np.int64),
                pair_counts=file["arr_3"].astype(np.int64),
            )

    def row(self, token: int) -> tuple[np.ndarray, np.ndarray]:
        """The tokens that follow `token`, in the order of their ids, and the count of each."""
        start = self.starts[token]
        end = self.starts[token + 1]
        return self.successors[start:end], self.pair_counts[start:end]

    def table(  # [n], [m] -> [n, m] float32
        self, rows: np.ndarray, columns: np.ndarray
    ) -> np.ndarray:
        """How often each of `columns` follows each of `rows`."""
        table = np.empty((rows.size, columns.size), np.float32)
        for number, token in enumerate(rows):
            successors, counts = self.row(token)
            full_row = np.zeros(self.counts.size)  # [V]
            full_row[successors] = counts
            table[number] = full_row[columns]
        return table

    def count(self, first: int, second: int) -> int:
        """How often `second` follows `first`."""
        successors, counts = self.row(first)
        return int(counts[successors == second].sum())

    def share(self, first: int, second: int) -> float:  # in [0, 1]
        """The share of the tokens after `first` that are `second`; 0 if nothing follows `first`."""
        _, counts = self.row(first)
        pairs = max(1, int(counts.sum()))  # there is none for a token that only ends the text
        return self.count(first, second) / pairs

    def frequent(self, min_count: int = MIN_COUNT) -> np.ndarray:  # -> [n]
        """The ids of the tokens that occur at least `min_count` times."""
        return np.flatnonzero(self.counts >= min_count)

    def by_count(self) -> np.ndarray:  # -> [n]
        """The frequent tokens, the most frequent first."""
        tokens = self.frequent()
        return tokens[np.argsort(-self.counts[tokens], kind="stable")]

    def self_prediction(self) -> float | None:  # in [0, 1]
        """The share of frequent tokens that are their own most frequent successor.

        None for fewer than MIN_TOKENS frequent tokens.
        """
        tokens = self.frequent()
        if tokens.size < MIN_TOKENS:
            return None
        follows_itself_most = []
        for token in tokens:
            _, counts = self.row(token)
            follows_itself_most.append(self.count(token, token) == counts.max())
        return float(np.mean(follows_itself_most))
