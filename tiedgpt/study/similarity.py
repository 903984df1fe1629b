"""Compare embedding matrices: do they agree on which tokens are similar?

A row of W_E is a token's vector as input, a column of W_U its vector as output. Matrices of
different models have different coordinates, so their vectors cannot be compared directly. Instead,
compute the cosine of every pair of tokens in each matrix, and compare the two lists of cosines by
rank correlation [Press & Wolf 2017].
"""

import numpy as np

from ..gpt2.model import GPT2
from .corpus import Corpus
from .paths import top_k

MAX_TOKENS = 2048  # 2.1 million pairs; all tokens of GPT-2 would make 1.3 billion


def embeddings(
    model: GPT2, corpus: Corpus | None = None, tied_W_E: np.ndarray | None = None
) -> dict[str, float | int | None]:
    """Spearman correlations between embedding matrices, each None where it is undefined.

    in_out      cosines in W_E with cosines in W_U; 1 in a tied model
    in_tied     cosines in W_E with cosines in tied_W_E [V, D'], the matrix of a tied model
    out_tied    cosines in W_U with cosines in tied_W_E
    tokens      how many tokens were compared in pairs
    """
    tokens = sampled_tokens(model.config.vocab_size, corpus)
    in_cosines = cosines(model.W_E[tokens])
    out_cosines = cosines(model.W_U.T[tokens])
    report: dict[str, float | int | None] = {
        "in_out": spearman(in_cosines, out_cosines),
        "in_tied": None,
        "out_tied": None,
        "tokens": tokens.size,
    }
    if tied_W_E is not None:
        tied_cosines = cosines(tied_W_E[tokens])
        report["in_tied"] = spearman(in_cosines, tied_cosines)
        report["out_tied"] = spearman(out_cosines, tied_cosines)
    return report


def sampled_tokens(vocab_size: int, corpus: Corpus | None = None) -> np.ndarray:  # -> [n]
    """The tokens to compare in pairs: all, or those of the corpus; at most MAX_TOKENS of them.

    A sample of more tokens is always the same, and in the order of the ids.
    """
    if corpus is None:
        tokens = np.arange(vocab_size)
    else:
        tokens = corpus.frequent(min_count=1)
    if tokens.size <= MAX_TOKENS:
        return tokens
    rng = np.random.default_rng(0)
    return np.sort(rng.choice(tokens, MAX_TOKENS, replace=False))


def cosines(rows: np.ndarray) -> np.ndarray:  # [n, D] -> [n (n - 1) / 2]
    """The cosine of each pair of rows, (0, 1), (0, 2), ..., (1, 2), ...; 0 if a row is 0.

    >>> cosines(np.array([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]])).tolist()
    [0.0, 1.0, 0.0]
    """
    norms = lengths(rows)
    units = rows / np.where(norms > 0, norms, 1)[:, None]
    table = units @ units.T  # [n, n]
    return table[np.triu_indices(len(rows), k=1)]


def lengths(rows: np.ndarray) -> np.ndarray:  # [n, D] -> [n]
    """The length of each row. np.linalg.norm would need another matrix for the squares."""
    return np.sqrt(np.einsum("ij,ij->i", rows, rows))


def nearest(  # [V, D] -> [k], [k]
    rows: np.ndarray, token: int, k: int
) -> tuple[np.ndarray, np.ndarray]:
    """The k other rows with the highest cosine to the row of `token`, highest first; the cosines.

    >>> [x.tolist() for x in nearest(np.array([[1.0, 0.0], [-2.0, 0.0], [3.0, 4.0]]), 0, 2)]
    [[2, 1], [0.6, -1.0]]
    """
    V = len(rows)
    norms = lengths(rows)
    norms = np.where(norms > 0, norms, 1)  # a row of zeros has the cosine 0 to all others
    cosines = rows @ rows[token] / norms / norms[token]
    is_itself = np.arange(V) == token
    # Without the token itself there are V - 1 rows.
    tokens = top_k(np.where(is_itself, -np.inf, cosines), min(k, V - 1))
    return tokens, cosines[tokens]


def ranks(x: np.ndarray) -> np.ndarray:  # [n] -> [n]
    """The rank of each number, from 1; equal numbers get the mean of their ranks.

    >>> ranks(np.array([30, 10, 20, 10])).tolist()
    [4.0, 1.5, 3.0, 1.5]
    """
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    last_ranks = np.cumsum(counts)  # of each different number
    mean_ranks = last_ranks - (counts - 1) / 2
    return mean_ranks[inverse]


def spearman(x: np.ndarray, y: np.ndarray) -> float | None:  # [n], [n] -> in [-1, 1]
    """Spearman's rank correlation: Pearson's correlation of the ranks.

    None if all x or all y are equal.

    >>> spearman(np.array([1, 2, 3]), np.array([1, 10, 100]))
    1.0
    >>> print(spearman(np.array([1, 2]), np.array([5, 5])))
    None
    """
    if x.size == 0 or x.min() == x.max() or y.min() == y.max():
        return None
    return float(np.corrcoef(ranks(x), ranks(y))[0, 1])
