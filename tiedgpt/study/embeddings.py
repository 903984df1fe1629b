"""The two tables of a model, W_E and W_U: which tokens are similar in each, and what each knows.

A row of W_E is a token's vector as input, a column of W_U its vector as output.

`embeddings`: do two tables agree on which tokens are similar? Tables of different models have
different coordinates, so their vectors cannot be compared directly. Instead, compute the cosine of
every pair of tokens in each table, and compare the two lists of cosines by rank correlation [Press
& Wolf 2017].

`knowledge`: what does a table know of a text? Can a linear map read from a token's row what follows
the token? For the most frequent tokens of a text there are two things to know:

    successors     which tokens follow it, and how often
    predecessors   which tokens it follows, and how often

Each is the row of shares of a token, [S], of which the square root is taken and the first
COMPONENTS principal components are kept: Y [n, COMPONENTS]. A ridge regression predicts Y from the
rows of the table. Its weights are fitted on nine tenths of the tokens and tried on the last tenth,
ten times, so that each token is predicted once. R2 is the share of the variance of Y that is
predicted so. 0 is what the mean knows, and 1 is everything. It depends on the regression's penalty
on large weights: R2 is that of a penalty of 30, and the report has that of 3 and of 300 beside it.

Two controls have no model: "random", rows of random numbers of the same width, and "counts", the
logarithm of each token's count alone. What a table knows is what lies above both.

An interval is 95 % by a bootstrap over the tokens: of one model and one text.
"""

from typing import TypedDict

import numpy as np

from ..errors import TiedGPTError
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
    """The tokens to compare in pairs, in the order of their ids: all, or the tokens of the corpus.

    Of more than MAX_TOKENS, a sample of that size, which is always the same.
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
    to_token = rows @ rows[token] / norms / norms[token]  # [V], the cosines
    is_itself = np.arange(V) == token
    # Without the token itself there are V - 1 rows.
    tokens = top_k(np.where(is_itself, -np.inf, to_token), min(k, V - 1))
    return tokens, to_token[tokens]


def ranks(x: np.ndarray) -> np.ndarray:  # [n] -> [n]
    """The rank of each number, from 1; equal numbers get the mean of their ranks.

    >>> ranks(np.array([30, 10, 20, 10])).tolist()
    [4.0, 1.5, 3.0, 1.5]
    """
    _, inverse, counts = np.unique(x, return_inverse=True, return_counts=True)
    last_ranks = np.cumsum(counts)  # of each different number
    mean_ranks = last_ranks - (counts - 1) / 2  # the middle of `counts` ranks in succession
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
    return float(np.corrcoef(ranks(x), ranks(y))[0, 1])  # corrcoef: [[1, r], [r, 1]]


# What a table knows of a text

MIN_PROBED = 100  # frequent tokens
MAX_PROBED = 1000
COMPONENTS = 20
FOLDS = 10
PENALTIES = (3, 30, 300)  # on weights of rows whose columns have a variance of 1
MIDDLE_PENALTY = 30  # r2 and its interval are of this one
RESAMPLES = 1000


class Knowledge(TypedDict):
    """What a table knows of one thing."""

    r2: float  # with MIDDLE_PENALTY
    low: float  # the lower end of its interval
    high: float
    by_penalty: dict[str, float]  # R2 by each of PENALTIES


Tables = dict[str, dict[str, Knowledge]]  # by the table, then "successors" or "predecessors"


def knowledge(model: GPT2, corpus: Corpus) -> Tables | None:
    """What W_E, W_U, random rows and the counts know of the corpus.

    A tied model has no "W_U". None for fewer than MIN_PROBED frequent tokens. Raises TiedGPTError
    if a table is not finite.
    """
    tokens = corpus.by_count()[:MAX_PROBED]  # [n]
    if tokens.size < MIN_PROBED:
        return None
    rng = np.random.default_rng(0)
    tables = {"W_E": model.W_E[tokens]}
    if not model.config.tied:
        tables["W_U"] = model.W_U[:, tokens].T
    tables["random"] = rng.normal(size=(tokens.size, model.config.n_embd))
    tables["counts"] = np.log(corpus.counts[tokens])[:, None]  # [n, 1]

    seen = corpus.frequent(min_count=1)  # [S], all tokens of the corpus
    targets = {
        "successors": components(corpus.table(tokens, seen)),
        "predecessors": components(corpus.table(seen, tokens).T),
    }
    folds = np.array_split(rng.permutation(tokens.size), FOLDS)
    report: Tables = {}
    for name, rows in tables.items():
        if not np.isfinite(rows).all():
            raise TiedGPTError(f"{name} is not finite: the checkpoint is damaged")
        report[name] = probe(rows, targets, folds)
    return report


def components(pair_counts: np.ndarray) -> np.ndarray:  # [n, S] -> [n, COMPONENTS]
    """The first principal components of the square roots of the rows' shares. No row may be 0.

    The distance of two such rows is the Hellinger distance of their distributions, in which a few
    very common tokens do not decide everything.
    """
    shares = pair_counts / pair_counts.sum(axis=1, keepdims=True)
    roots = np.sqrt(shares, dtype=np.float64)  # float64: eigh needs the digits
    roots -= roots.mean(axis=0)
    # The components of all rows are the eigenvectors of this [n, n] matrix, each times the square
    # root of its eigenvalue.
    values, vectors = np.linalg.eigh(roots @ roots.T)  # [n], [n, n], the lowest first
    highest = slice(None, -COMPONENTS - 1, -1)  # the last COMPONENTS, from the last on
    return vectors[:, highest] * np.sqrt(np.maximum(values[highest], 0))  # rounding may give < 0


def probe(  # [n, D], {thing: [n, COMPONENTS]}
    rows: np.ndarray, targets: dict[str, np.ndarray], folds: list[np.ndarray]
) -> dict[str, Knowledge]:
    """What rows know of each target. folds: the numbers of the rows that are predicted together."""
    Y = np.hstack(list(targets.values()))  # the columns of all targets, for one fit
    by_penalty = {penalty: predicted(rows, Y, folds, penalty) for penalty in PENALTIES}
    report: dict[str, Knowledge] = {}
    for number, (thing, target) in enumerate(targets.items()):
        columns = slice(number * COMPONENTS, (number + 1) * COMPONENTS)  # this target's in Y
        squares = ((target - target.mean(axis=0)) ** 2).sum(axis=1)  # [n], of each token
        errors = {
            penalty: ((target - prediction[:, columns]) ** 2).sum(axis=1)  # [n]
            for penalty, prediction in by_penalty.items()
        }
        r2 = {penalty: float(1 - error.sum() / squares.sum()) for penalty, error in errors.items()}

        # The bootstrap: R2 of n tokens drawn with repetition, RESAMPLES times.
        n = len(rows)
        drawn = np.random.default_rng(0).integers(0, n, (RESAMPLES, n))
        errors_of_drawn = errors[MIDDLE_PENALTY][drawn].sum(axis=1)  # [RESAMPLES]
        resampled_r2 = 1 - errors_of_drawn / squares[drawn].sum(axis=1)
        low, high = np.quantile(resampled_r2, [0.025, 0.975])
        report[thing] = {
            "r2": r2[MIDDLE_PENALTY],
            "low": float(low),
            "high": float(high),
            "by_penalty": {str(penalty): share for penalty, share in r2.items()},
        }
    return report


def predicted(  # [n, D], [n, columns] -> [n, columns]
    rows: np.ndarray, Y: np.ndarray, folds: list[np.ndarray], penalty: float
) -> np.ndarray:
    """Y as a ridge regression predicts it: each fold by weights fitted to the other folds."""
    scale = rows.std(axis=0)
    # All columns have one penalty, so all get a variance of 1. A constant column becomes 0.
    X = (rows - rows.mean(axis=0)) / np.where(scale > 0, scale, 1)  # [n, D]
    prediction = np.empty_like(Y)
    for fold in folds:
        others = np.delete(np.arange(len(Y)), fold)  # the rows of the other folds
        # The means are subtracted, so that the constant of the regression has no penalty.
        X_mean, Y_mean = X[others].mean(axis=0), Y[others].mean(axis=0)
        A = X[others] - X_mean
        ridge = A.T @ A + penalty * np.eye(A.shape[1])  # [D, D]
        weights = np.linalg.solve(ridge, A.T @ (Y[others] - Y_mean))  # [D, columns of Y]
        prediction[fold] = (X[fold] - X_mean) @ weights + Y_mean
    return prediction
