"""What is measured without training: the text itself, two trained models side by side, the time of
a step."""

import math
from dataclasses import replace
from pathlib import Path
from time import process_time

import numpy as np

from tiedgpt import GPT2
from tiedgpt.study.corpus import Corpus
from tiedgpt.study.direct_path import jsd_floor
from tiedgpt.study.similarity import cosines, spearman
from tiedgpt.training.loop import Settings, Trainer

from .chains import entropy
from .data import data_path, read_data
from .engine import Line
from .fits import fit_families
from .job import trained
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
    entropy_of_next = entropy(shares) - entropy(shares.sum(axis=1))
    result = {
        "tokens": data.tokens.size,
        "held out": data.held_out.size,
        "tokens that occur": int((corpus.counts > 0).sum()),
        "frequent tokens": int(corpus.frequent().size),
        "jsd": jsd_floor(corpus),
        "unigram excess": entropy(shares.sum(axis=0)) - entropy_of_next,
        "unigram loss": float(-np.log(counts / counts.sum())[data.held_out].mean()),
        "uniform loss": math.log(small.vocab_size),
        "smoothed bigrams loss": smoothed_bigrams(data.tokens, data.held_out, small.vocab_size),
    }
    self_prediction = corpus.self_prediction()
    if self_prediction is not None:
        result["self"] = self_prediction
    for family, excess in fit_families(pairs, small.width).items():
        result[f"fit {family}"] = excess
    return result


def smoothed_bigrams(tokens: np.ndarray, held_out: np.ndarray, V: int) -> float:
    """The held-out loss of bigram counts with a multiple of the token counts added to each row.

    The multiple is that of STRENGTHS which is best for the last tenth of `tokens` by the counts of
    the rest.
    """

    cut = len(tokens) * 9 // 10
    losses = {
        strength: bigram_loss(tokens[:cut], tokens[cut:], V, strength) for strength in STRENGTHS
    }
    best = min(losses, key=losses.__getitem__)
    return bigram_loss(tokens, held_out, V, best)


def bigram_loss(counted: np.ndarray, scored: np.ndarray, V: int, strength: float) -> float:
    """The loss on one text of the bigram counts of another, smoothed."""
    corpus = Corpus.of(counted, V)
    every = np.arange(V)
    unigram = (corpus.counts + 1) / (corpus.counts + 1).sum()
    table = corpus.table(every, every) + strength * unigram
    p = table / table.sum(axis=1, keepdims=True)
    return float(-np.log(p[scored[:-1], scored[1:]]).mean())


def compare(untied: Run, other: Run, out: Path, text: str) -> Line:
    """How similar the matrices of two runs with different seeds are.

    The other run is tied, or both are untied, or both are tied. A similarity is the rank
    correlation of the cosines of all pairs of tokens of the text, with the mean and the first
    principal components of each matrix removed. With the same seed both runs would start from the
    same W_E.
    """
    data, corpus = read_data(data_path(out, text, untied.vocab_size))
    seen = corpus.frequent(1)
    first, _ = trained(untied, data)
    second, _ = trained(other, data)
    result: Line = {}
    for removed in REMOVED:
        for name in ("in", "out"):
            if name == "out" and first.config.tied:
                continue
            other_name = "tied" if second.config.tied else name
            similarity = spearman(
                cosines(without_components(matrix_of(first, name)[seen], removed)),
                cosines(without_components(matrix_of(second, other_name)[seen], removed)),
            )
            result[f"{name} and {other_name}, {removed} removed"] = similarity
    return result


def matrix_of(model: GPT2, name: str) -> np.ndarray:  # -> [V, D]
    """The input matrix of a model, "in" or "tied", or its output matrix, "out"."""
    if name == "out":
        return model.W_U.T
    return model.W_E


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
    trainings = []
    for head in ("tied", "untied"):
        model = model_of(start(replace(run, head=head)))
        trainings.append(Trainer(model, tokens, tokens[: run.context], settings).run())
    seconds = np.zeros((2, TIMED_STEPS))
    for step in range(TIMED_STEPS):
        for row, training in enumerate(trainings):
            begin = process_time()
            next(training)
            seconds[row, step] = process_time() - begin
    tied, untied = seconds[:, 6:].sum(axis=1)  # the clock may be too coarse for one step
    return {"ratio": float(untied / tied)}
