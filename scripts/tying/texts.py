"""What is measured without training: the text itself, two trained models side by side, the time of
a step."""

import math
from dataclasses import replace
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np

from tiedgpt.study.corpus import Corpus
from tiedgpt.study.direct_path import jsd_floor
from tiedgpt.study.similarity import cosines, spearman
from tiedgpt.training.loop import Settings, Trainer

from .chains import entropy
from .engine import Line
from .fits import fit_families
from .job import data_path, read_data, trained
from .settings import Run
from .training import model_of, start

STRENGTHS = (1, 2, 4, 8, 16, 32, 64)  # of the unigram in the smoothed bigrams, in tokens
REMOVED = (0, 1, 2, 4)  # principal components that are removed from a matrix before it is compared
TIMED_STEPS = 20


def documentation() -> str:
    """The second text: the help texts of the language that this Python brings.

    Some are parts of others, so a paragraph that occurs more than once is kept once.
    """
    from pydoc_data.topics import topics

    together = "\n\n".join(topics[name] for name in sorted(topics))
    paragraphs = dict.fromkeys(together.split("\n\n"))
    return "\n\n".join(paragraphs)


def measure_text(out: Path, text: str, small: Run) -> Line:
    """What the text itself says: entropies, the floor of a symmetric table, the best fits of each
    family."""
    data, corpus = read_data(data_path(out, text, small.vocab_size))
    every = np.arange(small.vocab_size)
    pairs = corpus.table(every, every).astype(np.float64)
    shares = pairs / pairs.sum()
    counts = corpus.counts + 1.0  # so that every held-out token has a share
    result = {
        "tokens": data.tokens.size,
        "held out": data.held_out.size,
        "tokens that occur": int((corpus.counts > 0).sum()),
        "frequent tokens": int(corpus.frequent().size),
        "jsd": jsd_floor(corpus),
        "unigram excess": entropy(shares.sum(axis=0))
        - (entropy(shares) - entropy(shares.sum(axis=1))),
        "unigram loss": float(-np.log(counts / counts.sum())[data.held_out].mean()),
        "uniform loss": math.log(small.vocab_size),
        "smoothed bigrams loss": smoothed_bigrams(data.tokens, data.held_out, small.vocab_size),
    }
    if (share := corpus.self_prediction()) is not None:
        result["self"] = share
    return result | {f"fit {family}": kl for family, kl in fit_families(pairs, small.width).items()}


def smoothed_bigrams(tokens: np.ndarray, held_out: np.ndarray, V: int) -> float:
    """The held-out loss of bigram counts with a multiple of the token counts added to each row.

    The multiple is that of STRENGTHS which is best for the last tenth of `tokens` by the counts of
    the rest.
    """

    def loss(strength: float, counted: np.ndarray, scored: np.ndarray) -> float:
        corpus, every = Corpus.of(counted, V), np.arange(V)
        unigram = (corpus.counts + 1) / (corpus.counts + 1).sum()
        table = corpus.table(every, every) + strength * unigram
        p = table / table.sum(axis=1, keepdims=True)
        return float(-np.log(p[scored[:-1], scored[1:]]).mean())

    cut = len(tokens) * 9 // 10
    best = min(STRENGTHS, key=lambda strength: loss(strength, tokens[:cut], tokens[cut:]))
    return loss(best, tokens, held_out)


def compare(untied: Run, tied: Run, out: Path, text: str) -> Line:
    """How similar W_E and W_U of an untied run are to the matrix of a tied run with another seed.

    The rank correlation of the cosines of all pairs of tokens of the text, with the mean and the
    first principal components of each matrix removed. With the same seed both runs would start from
    the same W_E.
    """
    data, corpus = read_data(data_path(out, text, untied.vocab_size))
    seen, (a, b) = corpus.frequent(1), (trained(run, data)[0] for run in (untied, tied))
    matrices = {"in": a.W_E, "out": a.W_U.T, "tied": b.W_E}
    result: dict[str, Any] = {}
    for k in REMOVED:
        of = {name: cosines(without_components(rows[seen], k)) for name, rows in matrices.items()}
        if not b.config.tied:  # two untied models: how far do two seeds agree?
            other = {"in": b.W_E, "out": b.W_U.T}
            for name in ("in", "out"):
                there = cosines(without_components(other[name][seen], k))
                result[f"{name} and {name}, {k} removed"] = spearman(of[name], there)
            continue
        for name in ("in",) if a.config.tied else ("in", "out"):
            result[f"{name} and tied, {k} removed"] = spearman(of[name], of["tied"])
    return result


def without_components(rows: np.ndarray, k: int) -> np.ndarray:  # [n, D] -> [n, D]
    """The rows without their mean and their first k principal components; as they are for k = 0."""
    if not k:
        return rows
    centred = rows - rows.mean(axis=0)
    first = np.linalg.svd(centred, full_matrices=False)[2][:k]
    return centred - centred @ first.T @ first


def time_steps(small: Run, vocab_size: int) -> Line:
    """The CPU time of a training step, untied over tied.

    The two trainings take turns. Their first steps are not counted.
    """
    tokens = np.random.default_rng(0).integers(0, vocab_size, 10_000)
    run = replace(small, layers=1, vocab_size=vocab_size, seed=1)
    settings = Settings(TIMED_STEPS, run.batch, run.context, eval_every=TIMED_STEPS, threads=1)
    models = model_of(start(run)), model_of(start(replace(run, head="untied")))
    trainings = [Trainer(model, tokens, tokens[: run.context], settings).run() for model in models]
    seconds = np.zeros((2, TIMED_STEPS))
    for step in range(TIMED_STEPS):
        for model, training in enumerate(trainings):
            begin = process_time()
            next(training)
            seconds[model, step] = process_time() - begin
    tied, untied = seconds[:, 6:].sum(axis=1)  # the clock may be too coarse for one step
    return {"ratio": float(untied / tied)}
