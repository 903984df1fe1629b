"""Which tokens a matrix holds for alike, and whether another agrees; rank correlation.

A row of W_E says how a token is read, a column of W_U how it is written. Two matrices of different models
have no coordinates in common, so they are compared by what they say of pairs: the cosine of each pair of
tokens in one, ranked, against the same pairs' in the other [Press & Wolf 2017].
"""

import numpy as np

from ..model import GPT2
from .corpus import Corpus

MAX_TOKENS = 2048  # 2.1 million pairs; all of GPT-2's tokens would make 1.3 billion
SEED = 0


def embeddings(
    model: GPT2, corpus: Corpus | None = None, tied_W_E: np.ndarray | None = None
) -> dict[str, float | int | None]:
    """What W_E and W_U have in common: Spearman correlations, each None where it is not defined.

    in_out      of the similarities by W_E with those by W_U; 1 when tied
    in_tied     of those by W_E with those by tied_W_E [V, D'], the matrix of a tied model
    out_tied    of those by W_U with those by tied_W_E
    in_norm_frequency, out_norm_frequency
                of the lengths of W_E's rows, of W_U's columns, with how often each token of the corpus
                is in it
    tokens      how many of them were compared, in pairs
    """
    W_in, W_out = model.W_E, model.W_U.T  # [V, D] both
    tokens = sampled_tokens(model.config.vocab_size, corpus)
    like_in, like_out = cosines(W_in[tokens]), cosines(W_out[tokens])
    like_tied = None if tied_W_E is None else cosines(tied_W_E[tokens])
    return {
        "in_out": spearman(like_in, like_out),
        "in_tied": None if like_tied is None else spearman(like_in, like_tied),
        "out_tied": None if like_tied is None else spearman(like_out, like_tied),
        "in_norm_frequency": None if corpus is None else norm_frequency(W_in, corpus),
        "out_norm_frequency": None if corpus is None else norm_frequency(W_out, corpus),
        "tokens": tokens.size,
    }


def norm_frequency(W: np.ndarray, corpus: Corpus) -> float | None:  # [V, D] -> in [-1, 1]
    """Whether the frequent tokens' vectors are longer (1) or shorter (-1), of the tokens in the corpus."""
    seen = corpus.frequent(1)
    return spearman(np.linalg.norm(W[seen], axis=1), corpus.counts[seen])


def sampled_tokens(vocab_size: int, corpus: Corpus | None = None) -> np.ndarray:  # -> [n]
    """The tokens whose pairs are compared: those of the corpus if there is one, else all; 2048 at most.

    A token that training never met has kept its random start, and would only add noise: hence the
    corpus's. Of more than 2048 as many are drawn, the same ones each time.
    """
    tokens = np.arange(vocab_size) if corpus is None else corpus.frequent(1)
    if tokens.size <= MAX_TOKENS:
        return tokens
    return np.sort(np.random.default_rng(SEED).choice(tokens, MAX_TOKENS, replace=False))


def cosines(rows: np.ndarray) -> np.ndarray:  # [n, D] -> [n (n - 1) / 2]
    """The cosine of each pair of rows, (0, 1), (0, 2), ..., (1, 2), ...; 0 where a row is 0.

    >>> cosines(np.array([[2.0, 0.0], [0.0, 3.0], [1.0, 0.0]])).tolist()
    [0.0, 1.0, 0.0]
    """
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    units = rows / np.where(norms > 0, norms, 1)
    return (units @ units.T)[np.triu_indices(len(rows), k=1)]


def ranks(x: np.ndarray) -> np.ndarray:  # [n] -> [n]
    """Each number's place when they are sorted, from 1; equal numbers share the mean of their places.

    >>> ranks(np.array([30, 10, 20, 10])).tolist()
    [4.0, 1.5, 3.0, 1.5]
    """
    _, place, count = np.unique(x, return_inverse=True, return_counts=True)
    return (np.cumsum(count) - (count - 1) / 2)[place]


def spearman(x: np.ndarray, y: np.ndarray) -> float | None:  # [n], [n] -> in [-1, 1]
    """Spearman's correlation: Pearson's, of the ranks. None where all of x or all of y are equal.

    >>> spearman(np.array([1, 2, 3]), np.array([1, 10, 100])), spearman(np.array([1, 2]), np.array([5, 5]))
    (1.0, None)
    """
    if x.size == 0:
        return None
    x, y = ranks(x), ranks(y)
    x -= x.mean()
    y -= y.mean()
    scale = np.sqrt((x @ x) * (y @ y))
    return float(x @ y / scale) if scale > 0 else None
