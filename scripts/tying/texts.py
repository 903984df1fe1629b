"""What is measured beside single models: the text itself, two models compared, the time of a step.

A loss is in nats per token. The excess of a prediction is its loss on the text's pairs of
neighbours minus the loss of the text's own bigrams on them. The floor is the lowest excess of a
symmetric table of scores, in which "b after a" has the same score as "a after b"
(tying_results/floor.md). The unigram is the prediction of the token counts, the same after every
token. A text is given by its name; its tokens are in the directory `out`.
"""

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

STRENGTHS = (1, 2, 4, 8, 16, 32, 64)  # of the token counts in the smoothed bigrams
REMOVED = (0, 1, 2, 4)  # principal components that are removed from a matrix before it is compared
TIMED_STEPS = 20
FIRST_STEPS = 6  # of the timed steps; they are not counted, since they may be slower


def documentation() -> str:
    """The second text: the help texts of the language that this Python brings.

    Some of these texts repeat parts of other ones, so each different paragraph is kept once.
    """
    from pydoc_data.topics import topics

    together = "\n\n".join(topics[name] for name in sorted(topics))
    paragraphs = dict.fromkeys(together.split("\n\n"))
    return "\n\n".join(paragraphs)


def measure_text(out: Path, text: str, small: Run) -> Line:
    """What is known of a text without a model.

    The result has the text's size, the floor, the held-out losses of some simple predictions, and
    the excess of the token counts and of the best fit of each family of tables (fits.py). The
    vocabulary has the size small.vocab_size. The fits have the rank small.width.
    """
    data, corpus = read_data(data_path(out, text, small.vocab_size))
    every = np.arange(small.vocab_size)
    pairs = corpus.table(every, every).astype(np.float64)  # [a, b]: how often b follows a

    # On the pairs themselves, the loss of the text's own bigrams is the entropy of the pairs minus
    # the entropy of their first tokens. The loss of the unigram is the entropy of their second
    # tokens.
    shares = pairs / pairs.sum()
    shares_of_first = shares.sum(axis=1)
    shares_of_second = shares.sum(axis=0)
    bigram_loss_on_pairs = entropy(shares) - entropy(shares_of_first)
    unigram_loss_on_pairs = entropy(shares_of_second)

    counts = corpus.counts + 1.0  # so that no held-out token has the probability 0
    unigram_losses = -np.log(counts / counts.sum())  # [V], of each token
    result = {
        "tokens": data.tokens.size,
        "held out": data.held_out.size,
        "tokens that occur": int((corpus.counts > 0).sum()),
        "frequent tokens": int(corpus.frequent().size),
        "jsd": jsd_floor(corpus),  # the floor
        "unigram excess": unigram_loss_on_pairs - bigram_loss_on_pairs,
        "unigram loss": float(unigram_losses[data.held_out].mean()),
        "uniform loss": math.log(small.vocab_size),
        "smoothed bigrams loss": smoothed_loss(data.tokens, data.held_out, small.vocab_size),
    }
    # The share of frequent tokens that are their own most common successor. It is None if the text
    # has too few frequent tokens.
    self_prediction = corpus.self_prediction()
    if self_prediction is not None:
        result["self"] = self_prediction
    for family, excess in fit_families(pairs, small.width).items():
        result[f"fit {family}"] = excess
    return result


def smoothed_loss(tokens: np.ndarray, held_out: np.ndarray, V: int) -> float:
    """The held-out loss of the bigram counts of `tokens`, smoothed with the best of STRENGTHS.

    The best strength is chosen without the held-out tokens: the counts of nine tenths of `tokens`
    are scored on the last tenth.
    """
    cut = len(tokens) * 9 // 10
    losses: dict[float, float] = {}
    for strength in STRENGTHS:
        losses[strength] = bigram_loss(tokens[:cut], tokens[cut:], V, strength)
    best = min(losses, key=losses.__getitem__)
    return bigram_loss(tokens, held_out, V, best)


def bigram_loss(counted: np.ndarray, scored: np.ndarray, V: int, strength: float) -> float:
    """The loss on the text `scored` of the smoothed bigram counts of the text `counted`.

    To the counts after each token, `strength` times the unigram is added: the shares of all tokens.
    """
    corpus = Corpus.of(counted, V)
    every = np.arange(V)
    counts = corpus.counts + 1  # so that no probability is 0
    unigram = counts / counts.sum()
    smoothed = corpus.table(every, every) + strength * unigram
    p = smoothed / smoothed.sum(axis=1, keepdims=True)  # p[a, b] is p(b|a)
    return float(-np.log(p[scored[:-1], scored[1:]]).mean())


def compare(first_run: Run, second_run: Run, out: Path, text: str) -> Line:
    """How similar each matrix of the first model is to a matrix of the second.

    W_E of an untied model is "in", W_U is "out". The result has a similarity for each of these:

        untied and tied      "in and tied", "out and tied"
        untied and untied    "in and in", "out and out"
        tied and tied        "in and tied": "in" is the matrix of the first model

    A similarity is the rank correlation of the cosines of all pairs of tokens of the text. It is
    measured for the matrices as they are, and with their mean and some principal components
    removed. The two runs have different seeds, because with one seed the models would start from
    the same W_E.
    """
    data, corpus = read_data(data_path(out, text, first_run.vocab_size))
    seen = corpus.frequent(min_count=1)  # the tokens that occur in the text
    first, _ = trained(first_run, data)
    second, _ = trained(second_run, data)
    if first.config.tied:
        names = ["in"]
    else:
        names = ["in", "out"]

    result: Line = {}
    for removed in REMOVED:
        for name in names:
            if second.config.tied:
                second_name = "tied"
            else:
                second_name = name
            first_rows = without_components(matrix_of(first, name)[seen], removed)
            second_rows = without_components(matrix_of(second, second_name)[seen], removed)
            similarity = spearman(cosines(first_rows), cosines(second_rows))
            result[f"{name} and {second_name}, {removed} removed"] = similarity
    return result


def matrix_of(model: GPT2, name: str) -> np.ndarray:  # -> [V, D]
    """W_E for the names "in" and "tied", or W_U for "out". Row t is the vector of token t."""
    if name == "out":
        return model.W_U.T
    return model.W_E


def without_components(rows: np.ndarray, k: int) -> np.ndarray:  # [n, D] -> [n, D]
    """The rows without their mean and their first k principal components. With k = 0, all stays."""
    if k == 0:
        return rows
    centred = rows - rows.mean(axis=0)
    # The rows of `directions` are the principal directions, the one of the largest variance first.
    _, _, directions = np.linalg.svd(centred, full_matrices=False)
    removed = directions[:k]
    coordinates = centred @ removed.T
    return centred - coordinates @ removed


def time_steps(small: Run, vocab_size: int) -> Line:
    """The CPU time of an untied training step divided by that of a tied one.

    The sizes are those of `small`, but with one layer and this vocabulary. The two trainings take
    turns, so that other work of the machine slows both. Their first steps are not counted.
    """
    tokens = np.random.default_rng(0).integers(0, vocab_size, 10_000)  # any tokens do
    run = replace(small, layers=1, vocab_size=vocab_size, seed=1)
    settings = Settings(
        steps=TIMED_STEPS,
        batch=run.batch,
        context=run.context,
        # One step less is done: the first `next` only evaluates. So no other evaluation is timed.
        eval_every=TIMED_STEPS,
        threads=1,
    )
    trainings = []  # generators: each `next` of one does a step, but the first only evaluates
    for head in ("tied", "untied"):
        model = model_of(start(replace(run, head=head)))
        held_out = tokens[: run.context]
        trainings.append(Trainer(model, tokens, held_out, settings).run())

    seconds = np.zeros((2, TIMED_STEPS))  # row 0: tied, row 1: untied
    for step in range(TIMED_STEPS):
        for row, training in enumerate(trainings):
            begin = process_time()
            next(training)
            seconds[row, step] = process_time() - begin
    # Sums of steps are compared, because the clock may be too coarse for one step.
    tied, untied = seconds[:, FIRST_STEPS:].sum(axis=1)
    return {"ratio": float(untied / tied)}
