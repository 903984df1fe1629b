"""What a table knows of a text: can a linear map read from a token's row what follows the token?

A table has a row of D numbers for each token: W_E, and in an untied model W_U^T. For the most
frequent tokens of a text there are two things to know:

    successors     which tokens follow it, and how often
    predecessors   which tokens it follows, and how often

Each is the row of shares of a token, [S], of which the square root is taken and the first
COMPONENTS principal components are kept: Y [n, COMPONENTS]. A ridge regression predicts Y from the
rows of the table. Its weights are fitted on nine tenths of the tokens and tried on the last tenth,
ten times, so that each token is predicted once. R2 is the share of the variance of Y that is
predicted so. 0 is what the mean knows, and 1 is everything.

Two controls have no model: "random", rows of random numbers of the same width, and "counts", the
logarithm of each token's count alone. What a table knows is what lies above both.

An interval is 95 % by a bootstrap over the tokens: of one model and one text.
"""

from typing import TypedDict

import numpy as np

from ..errors import TiedGPTError
from ..gpt2.model import GPT2
from .corpus import Corpus

MIN_PROBED = 100  # frequent tokens
MAX_PROBED = 1000
COMPONENTS = 20
FOLDS = 10
PENALTIES = (3, 30, 300)  # on weights of rows whose columns have a variance of 1
MIDDLE = 30  # the penalty of r2 and its interval
RESAMPLES = 1000


class Knowledge(TypedDict):
    """What a table knows of one thing."""

    r2: float  # with the penalty MIDDLE
    low: float  # its interval
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
    tables["counts"] = np.log(corpus.counts[tokens])[:, None]

    seen = corpus.frequent(min_count=1)  # [S]
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
    """The first principal components of the square roots of the rows' shares.

    The distance of two such rows is the Hellinger distance of their distributions, in which a few
    very common tokens do not decide everything.
    """
    pairs_of_row = np.maximum(pair_counts.sum(axis=1, keepdims=True), 1)  # 0 at the end of a text
    roots = np.sqrt(pair_counts / pairs_of_row, dtype=np.float64)  # for eigh, below
    roots -= roots.mean(axis=0)
    values, vectors = np.linalg.eigh(roots @ roots.T)  # [n], [n, n], the lowest first
    highest = slice(None, -COMPONENTS - 1, -1)
    return vectors[:, highest] * np.sqrt(np.maximum(values[highest], 0))


def probe(  # [n, D], {thing: [n, COMPONENTS]}, places of tokens
    rows: np.ndarray, targets: dict[str, np.ndarray], folds: list[np.ndarray]
) -> dict[str, Knowledge]:
    """What rows know of each target."""
    Y = np.hstack(list(targets.values()))  # one fit for all
    by_penalty = {penalty: predicted(rows, Y, folds, penalty) for penalty in PENALTIES}
    report: dict[str, Knowledge] = {}
    for place, (thing, target) in enumerate(targets.items()):
        columns = slice(place * COMPONENTS, (place + 1) * COMPONENTS)
        total = ((target - target.mean(axis=0)) ** 2).sum(axis=1)  # [n], of each token
        errors = {
            penalty: ((target - answer[:, columns]) ** 2).sum(axis=1)  # [n]
            for penalty, answer in by_penalty.items()
        }
        r2 = {penalty: float(1 - error.sum() / total.sum()) for penalty, error in errors.items()}
        # 95 % of R2 when the tokens are drawn anew
        rng = np.random.default_rng(0)
        drawn = rng.integers(0, total.size, (RESAMPLES, total.size))
        resampled = 1 - errors[MIDDLE][drawn].sum(axis=1) / total[drawn].sum(axis=1)
        low, high = np.quantile(resampled, [0.025, 0.975])
        report[thing] = {
            "r2": r2[MIDDLE],
            "low": float(low),
            "high": float(high),
            "by_penalty": {str(penalty): share for penalty, share in r2.items()},
        }
    return report


def predicted(
    rows: np.ndarray, Y: np.ndarray, folds: list[np.ndarray], penalty: float
) -> np.ndarray:
    """Y as a ridge regression predicts it, each token by the weights of the other folds."""
    scale = rows.std(axis=0)
    X = (rows - rows.mean(axis=0)) / np.where(scale > 0, scale, 1)  # [n, D]
    answer = np.empty_like(Y)
    for fold in folds:
        others = np.delete(np.arange(len(Y)), fold)
        X_mean, Y_mean = X[others].mean(axis=0), Y[others].mean(axis=0)
        A = X[others] - X_mean
        ridge = A.T @ A + penalty * np.eye(A.shape[1])
        weights = np.linalg.solve(ridge, A.T @ (Y[others] - Y_mean))  # [D, COMPONENTS]
        answer[fold] = (X[fold] - X_mean) @ weights + Y_mean
    return answer
