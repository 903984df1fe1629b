"""The paths from one token to the next one's scores: how symmetric they are, and why."""

import math
from functools import partial
from typing import Any

import numpy as np

from ...errors import ArgumentError
from ...gpt2.model import GPT2
from ...study import bigrams, direct_path, paths, similarity, solved
from ...study.corpus import Corpus
from ..shown import matrix_ids
from .display import base64_floats, displayed_token, displayed_tokens
from .query import Query
from .registry import Answer, Turn, view

MATRIX_TOKENS = 7  # rows and columns of a matrix of scores, at most
NEAREST = 8  # tokens
LARGE_VOCABULARY = 1024  # larger ones are measured by a sample of their tokens
SAMPLED_TOKENS = 512
# The most tokens whose logits are computed between two pauses, and the most of these logits.
PIECE_TOKENS = 128
PIECE_LOGITS = 2**20


@view("path")
def path(query: Query, turn: Turn) -> Answer:
    """One path's scores of the prompt's tokens after one another, and the text's own counts."""
    shown = query.shown
    tokens = last_different_tokens(query.prompt_ids)
    index = np.array(tokens)
    path_function = query.path  # the one that the page names
    logits = path_function(query.model, index)  # [n, V]

    counts_in_text = None
    if shown.corpus is not None:
        counts_in_text = text_counts(shown.corpus, tokens)
    return {
        "tokens": displayed_tokens(shown.tokenizer, tokens),
        "text": counts_in_text,
        "A": logits[:, index],
        # From these rows the page computes the product of two of them, under the pointer.
        "W_E": base64_floats(query.model.W_E[index]),
        "W_U": base64_floats(query.model.W_U.T[index]),
    }


def last_different_tokens(ids: list[int]) -> list[int]:
    """The last MATRIX_TOKENS different tokens of a text, in the order of the text."""
    from_the_end = list(dict.fromkeys(reversed(ids)))  # each once
    last_tokens = from_the_end[:MATRIX_TOKENS]
    last_tokens.reverse()
    return last_tokens


def text_counts(corpus: Corpus, tokens: list[int]) -> dict[str, Any]:
    """How often a token (a column) follows another (a row): counts, and percents of the row."""
    counts = []
    percents = []
    for first in tokens:
        counts.append([corpus.count(first, second) for second in tokens])
        percents.append([100 * corpus.share(first, second) for second in tokens])
    return {"counts": counts, "percent": percents}


@view("symmetry")
def symmetry(query: Query, turn: Turn) -> Answer:
    """How symmetric the scores of each path are, and how many tokens predict themselves."""
    model = query.model
    tokens = measured_tokens(model)
    model_paths = paths.paths_of(model)

    symmetries: dict[str, dict[str, float]] = {}
    for name, path_to_measure in model_paths.items():
        # While a path is measured, the page is told which part of all paths was done before it.
        part_done = len(symmetries) / len(model_paths)
        compute = partial(symmetry_of, path_to_measure, model, tokens, turn, part_done)
        key = (*matrix_ids(model), name)  # a model with another head has another W_U
        symmetries[name] = query.shown.symmetries.get_or_compute(key, compute)

    self_prediction = None
    if query.shown.corpus is not None:
        self_prediction = query.shown.corpus.self_prediction()
    return {"paths": symmetries, "measured": tokens.size, "text": self_prediction}


def symmetry_of(  # tokens [n]
    path: paths.Path, model: GPT2, tokens: np.ndarray, turn: Turn, part_done: float
) -> dict[str, float]:
    """|A - A^T| / |A| of a path's scores A; the share of tokens that score themselves highest.

    After each piece of tokens, the page is told `part_done`, the part of all paths that was done
    before this one.
    """
    scores = []
    self_predicted = 0
    tokens_of_logits = max(1, PIECE_LOGITS // model.config.vocab_size)
    piece_size = min(PIECE_TOKENS, tokens_of_logits)
    pieces = math.ceil(tokens.size / piece_size)
    for piece in np.array_split(tokens, pieces):
        logits = path(model, piece)  # [m, V]
        self_predicted += np.count_nonzero(logits.argmax(axis=1) == piece)
        scores.append(logits[:, tokens].astype(np.float64))
        turn.report(part_done)

    A = np.concatenate(scores)  # [n, n]
    asymmetry = direct_path.matrix_asymmetry(A)
    return {"asymmetry": asymmetry, "self_prediction": self_predicted / tokens.size}


def measured_tokens(model: GPT2) -> np.ndarray:  # -> [n]
    """All tokens, or SAMPLED_TOKENS of a large vocabulary, always the same."""
    V = model.config.vocab_size
    if V <= LARGE_VOCABULARY:
        return np.arange(V)
    tokens = np.random.default_rng(0).permutation(V)[:SAMPLED_TOKENS]
    return np.sort(tokens)


@view("solved")
def solved_differences(query: Query, turn: Turn) -> Answer:
    """How far the direct path is from the corpus: which part is the scale, the head, the rank.

    These are the numbers of solved.missing; None for a corpus with too few tokens.
    """
    model = query.model
    corpus = query.shown.corpus
    if corpus is None:
        raise ArgumentError("there is no text to compare with; start with --corpus FILE")
    key = matrix_ids(model)  # a model with another head has another W_U
    scores = query.shown.solutions.get_or_compute(key, lambda: solve(model, corpus, turn))
    return {"missing": solved.missing(scores)}


def solve(model: GPT2, corpus: Corpus, turn: Turn) -> dict[str, bigrams.Scores]:
    """The scores of each path and of the solved ones; {} for a corpus with too few tokens."""
    reporter = StepReporter(turn)
    solved_paths = solved.solved_paths(model, corpus, reporter.add)
    scores = bigrams.bigrams(model, corpus, reporter.add, solved_paths)
    return scores or {}


class StepReporter:
    """Counts calls of `add`, an OnProgress, and tells the page which part of them is done.

    Most of the time are the solver's STEPS. What comes after them counts as done.
    """

    def __init__(self, turn: Turn) -> None:
        self.turn = turn
        self.steps = 0

    def add(self, _: int) -> None:
        """Count one step, whatever the number that an OnProgress gets."""
        self.steps += 1
        self.turn.report(min(1.0, self.steps / solved.STEPS))


@view("nearest")
def nearest(query: Query, turn: Turn) -> Answer:
    """The tokens nearest to the prompt's last one by W_E, and by W_U."""
    tokenizer = query.shown.tokenizer
    token = query.prompt_ids[-1]
    answer: Answer = {"token": displayed_token(tokenizer, token)}
    for name, rows in (("W_E", query.model.W_E), ("W_U", query.model.W_U.T)):
        neighbours, cosines = similarity.nearest(rows, token, NEAREST)
        answer[name] = displayed_tokens(tokenizer, neighbours, cosine=cosines)
    return answer
