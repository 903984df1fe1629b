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
    rows = {"in": model.W_E, "out": model.W_U.T, "tied": tied_W_E}
    of = {name: cosines(W[tokens]) for name, W in rows.items() if W is not None}
    pairs = (("in", "out"), ("in", "tied"), ("out", "tied"))
    found = {f"{a}_{b}": spearman(of[a], of[b]) if b in of else None for a, b in pairs}
    return {**found, "tokens": tokens.size}


def sampled_tokens(vocab_size: int, corpus: Corpus | None = None) -> np.ndarray:  # -> [n]
    """The tokens to compare in pairs: all, or those of the corpus; of more than MAX_TOKENS, a
    sample."""
    tokens = np.arange(vocab_size) if corpus is None else corpus.frequent(1)
    if tokens.size <= MAX_TOKENS:
        return tokens
    return np.sort(np.random.default_rng(0).choice(tokens, MAX_TOKENS, replace=False))


def cosines(rows: np.ndarray) -> np.ndarray:  # [n, D] -> [n (n - 1) / 2]
    """The cosine of each pair of rows, (0, 1), (0, 2), ..., (1, 2), ...; 0 if a row is 0.

    >>> cosines(np.array([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]])).tolist()
    [0.0, 1.0, 0.0]
    """
    norms = lengths(rows)
    units = rows / np.where(norms > 0, norms, 1)[:, None]
    return (units @ units.T)[np.triu_indices(len(rows), k=1)]


def lengths(rows: np.ndarray) -> np.ndarray:  # [n, D] -> [n]
    """The length of each row. np.linalg.norm would need another matrix for the squares."""
    return np.sqrt(np.einsum("ij,ij->i", rows, rows))


def nearest(
    rows: np.ndarray, token: int, k: int
) -> tuple[np.ndarray, np.ndarray]:  # [V, D] -> [k], [k]
    """The k other rows with the highest cosine to the row of `token`, highest first, and these
    cosines.

    >>> [x.tolist() for x in nearest(np.array([[1.0, 0.0], [-2.0, 0.0], [3.0, 4.0]]), 0, 2)]
    [[2, 1], [0.6, -1.0]]
    """
    norms = lengths(rows)
    cosines = rows @ rows[token] / np.where(norms > 0, norms, 1) / (norms[token] or 1)
    tokens = top_k(np.where(np.arange(len(rows)) == token, -np.inf, cosines), min(k, len(rows) - 1))
    return tokens, cosines[tokens]


def ranks(x: np.ndarray) -> np.ndarray:  # [n] -> [n]
    """The rank of each number, from 1; equal numbers get the mean of their ranks.

    >>> ranks(np.array([30, 10, 20, 10])).tolist()
    [4.0, 1.5, 3.0, 1.5]
    """
    _, inverse, count = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[inverse]


def spearman(x: np.ndarray, y: np.ndarray) -> float | None:  # [n], [n] -> in [-1, 1]
    """Spearman's rank correlation: Pearson's correlation of the ranks. None if all x or all y are
    equal.

    >>> spearman(np.array([1, 2, 3]), np.array([1, 10, 100])), spearman(np.array([1, 2]), np.array([5, 5]))
    (1.0, None)
    """
    if x.size == 0 or x.min() == x.max() or y.min() == y.max():
        return None
    return float(np.corrcoef(ranks(x), ranks(y))[0, 1])
