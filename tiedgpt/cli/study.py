"""Measure what tying does to a model: one column for each model.

examples:
  tiedgpt study shakespeare-tied shakespeare-untied
  tiedgpt study shakespeare-tied shakespeare-untied --corpus shakespeare.txt
  tiedgpt study gpt2 --corpus story.txt --json
"""

import argparse
import json
import shutil
import textwrap
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoints import find_model, read_config, read_tokenizer
from ..checkpoints.places import SHIPPED
from ..errors import ArgumentError, CheckpointError, TiedGPTError, TokenizerError, one_line
from ..gpt2.config import Config
from ..gpt2.tokenizer import Tokenizer
from ..study.corpus import MIN_COUNT, MIN_TOKENS, Corpus
from ..study.paths import PATH_PARTS
from ..study.report import measure
from . import models, options
from .messages import ProgressBar, note
from .tables import Cells, print_table
from .texts import encode_text, read_text, source_name


@dataclass
class Subject:
    """A model to study, not loaded yet, with what can be measured on it."""

    name: str
    path: Path
    config: Config
    tokenizer: Tokenizer | None = None  # None if it has none that can be read
    vocabulary: object = None  # equal for two models in which each id is the same token
    corpus: Corpus | None = None  # in its tokens


@dataclass(frozen=True)
class Group:
    """Rows of the table that answer one question."""

    question: str
    rows: dict[str, str]  # the place of a number in the JSON -> the label of its row
    reading: str  # what to see in the numbers


FACTS = {  # the first rows, which answer no question
    "head": "Output head",
    "parameters": "Parameters",
    "corpus.frequent": f"Frequent tokens: {MIN_COUNT} times or more",
}
GROUPS = [
    Group(
        "Is A = W_E W_U symmetric?",
        {
            "direct_path.asymmetry": "|A - A^T| / |A|",
            "corpus.jsd_floor": "Nats that a symmetric A costs, at least",
        },
        '0: "York New" has the score of "New York"; 1.414: the two are unrelated.',
    ),
    Group(
        "Does a token predict itself?",
        {
            "direct_path.self_prediction": "All tokens, by A",
            "direct_path.self_prediction_frequent": "Frequent tokens, by A",
            "corpus.self_prediction": "Frequent tokens, in the corpus",
        },
        "The share of tokens whose likeliest next token is the token itself.",
    ),
    Group(
        "Is the corpus's most common next token found, from one token?",
        {
            "bigrams.unigram.top1": "token counts, no model",
            "bigrams.normed.top1": f"normed: {PATH_PARTS['normed']}",
            "bigrams.mlp0.top1": f"mlp0: {PATH_PARTS['mlp0']}",
            "bigrams.model.top1": f"model: {PATH_PARTS['model']}",
        },
        "The share of frequent tokens whose likeliest next token is the corpus's.",
    ),
    Group(
        "What would a free head gain?",
        {
            "missing.scale": "scale: gained by one factor",
            "missing.head": "head: gained by the best W_U",
            "missing.rank": "rank: out of reach of any W_U",
        },
        "Parts of normed's KL divergence, in nats; the head is the price of a tie.",
    ),
    Group(
        "Do the matrices agree on which tokens are similar?",
        {
            "embeddings.in_out": "W_E and W_U",
            "embeddings.in_tied": "W_E and the tied model's W_E",
            "embeddings.out_tied": "W_U and the tied model's W_E",
        },
        "Rank correlation of cosines of pairs of tokens (the text's, if any); 1: equal.",
    ),
    Group(
        "Can W_E^T replace W_U?",
        {
            "loss.own": "Loss with the model's own head",
            "loss.swapped": "Loss with x @ wte.T as the head",
            "loss.uniform": "Loss of a uniform guess",
        },
        "Nats per token at the end of the corpus; training on it lowers the loss.",
    ),
]
SHARES = ("self_prediction", "self_prediction_frequent", "top1")  # printed in percent
LABEL_WIDTH = 35  # about; model names are broken to leave so much for the labels
MIN_NAME_WIDTH = 12  # but not to fewer characters than this


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_models(
        parser,
        "a name, a directory or a .safetensors file (default: shakespeare-tied shakespeare-untied)",
    )
    parser.add_argument(
        "--corpus",
        metavar="FILE",
        help="a text in UTF-8 for the measurements that need one (bigrams, losses); - for stdin",
    )
    options.add_allow_special(parser)
    options.add_json(parser)


def run(args: argparse.Namespace) -> None:
    names = args.models or SHIPPED
    text = None
    if args.corpus is not None:
        text = read_text(args.corpus)
    subjects = [open_subject(name) for name in names]
    note_different_vocabularies(subjects)

    corpus = None
    if text is None:
        note(
            "no --corpus: only the measurements that need no text, for all tokens of the vocabulary"
        )
    else:
        set_corpora(subjects, text, source_name(args.corpus), args.allow_special)
        corpus = {"file": args.corpus, "bytes": len(text.encode()), "min_count": MIN_COUNT}

    reports = measure_all(subjects)
    if args.json:
        print(json.dumps({"corpus": corpus, "models": reports}))
    else:
        print_reports(reports)


def set_corpora(subjects: list[Subject], text: str, source: str, allow_special: bool) -> None:
    """Give each model the corpus in its tokens; models with the same vocabulary share one."""
    for subject in subjects:
        subject.corpus = corpus_of_other(subject, subjects)
        if subject.corpus is None and subject.tokenizer is not None:
            ids = encode_text(subject.tokenizer, text, allow_special, source)
            subject.corpus = new_corpus(subject, ids, source)


def open_subject(name: str) -> Subject:
    """A model that is not loaded yet. A note says what a missing tokenizer means."""
    _, path = find_model(name, note)
    config = read_config(path)
    subject = Subject(name, path, config)
    try:
        tokenizer = read_tokenizer(path)
        subject.tokenizer = tokenizer
        subject.vocabulary = (tokenizer.merges, tokenizer.special_tokens, config.vocab_size)
    except (CheckpointError, TokenizerError) as error:
        note(f"{error}; {name} is not measured on the corpus or compared with other models")
    return subject


def note_different_vocabularies(subjects: list[Subject]) -> None:
    """Print a note if the numbers of a model and of the next one cannot be compared."""
    with_tokenizer = [subject for subject in subjects if subject.tokenizer is not None]
    for first, other in pairwise(with_tokenizer):
        if first.vocabulary != other.vocabulary:
            note(
                f"{first.name} and {other.name} have different vocabularies: do not compare their "
                "losses and other numbers per token; their embeddings are not compared"
            )


def corpus_of_other(subject: Subject, subjects: list[Subject]) -> Corpus | None:
    """The corpus of another model with the same vocabulary, which is the same in its tokens."""
    for other in subjects:
        if other.corpus is not None and other.vocabulary == subject.vocabulary:
            return other.corpus
    return None


def new_corpus(subject: Subject, ids: list[int], source: str) -> Corpus | None:
    """The corpus in the tokens of a model; None, with a note, if the model lacks some of them.

    Notes say what cannot be measured on a small corpus.
    """
    try:
        corpus = Corpus.of(ids, subject.config.vocab_size)
    except ArgumentError as error:  # its tokenizer has more tokens than the model
        note(
            f"{source} in the tokens of {subject.name}: {error}; measurements on the corpus are "
            "left out"
        )
        return None

    frequent = corpus.frequent().size
    if frequent < MIN_TOKENS:
        note(
            f"{source} is too small for the rows about frequent tokens: {frequent} of the tokens "
            f"of {subject.name} occur {MIN_COUNT} times or more in it; expected at least "
            f"{MIN_TOKENS}"
        )
    if len(ids) < 2:
        note(f"{source} is too small for a loss: expected at least two tokens")
    elif subject.config.n_ctx < 2:
        note(f"{subject.name} has a context of one token: it has no loss")
    return corpus


def measure_all(subjects: list[Subject]) -> list[dict[str, Any]]:
    """Each model's numbers, with one model in memory at a time."""
    # Tied models come first: the embeddings of the others are compared with theirs.
    tied = [subject for subject in subjects if subject.config.tied]
    untied = [subject for subject in subjects if not subject.config.tied]
    embeddings: list[tuple[object, np.ndarray]] = []  # vocabularies and W_E of tied models
    reports: dict[int, dict[str, Any]] = {}  # by id: two subjects may have the same name
    for subject in [*tied, *untied]:
        tied_W_E = embedding_of_tied(subject, embeddings)
        try:
            model = models.load(subject.path, None)
            reports[id(subject)] = measure(
                subject.name, model, subject.corpus, tied_W_E, ProgressBar, note
            )
        except TiedGPTError as error:
            raise TiedGPTError(f"{subject.name}: {error}") from error
        if model.config.tied:
            embeddings.append((subject.vocabulary, model.W_E))
    return [reports[id(subject)] for subject in subjects]


def embedding_of_tied(
    subject: Subject, embeddings: list[tuple[object, np.ndarray]]
) -> np.ndarray | None:  # [V, D]
    """The W_E of the first tied model with the vocabulary of `subject`, if that is known."""
    if subject.vocabulary is None:
        return None
    for vocabulary, W_E in embeddings:
        if vocabulary == subject.vocabulary:
            return W_E
    return None


def print_reports(reports: list[dict[str, Any]]) -> None:
    """Print a column for each model.

    A row that no model has is left out. A group is left out if no model has its first row.
    """
    lines: list[str | Cells] = [*heading(reports), *rows_of(FACTS, reports)]
    for group in GROUPS:
        first_place = next(iter(group.rows))
        if any(cell(report, first_place) != "-" for report in reports):
            lines.append("")
            lines.append(group.question)
            lines += rows_of(group.rows, reports)
            lines.append(f"  {group.reading}")
    print_table(lines)


def heading(reports: list[dict[str, Any]]) -> list[Cells]:
    """The names of the models, broken to fit above their columns."""
    room = shutil.get_terminal_size().columns - LABEL_WIDTH
    room_of_each = room // len(reports) - 2  # two spaces stand before a column
    width = max(room_of_each, MIN_NAME_WIDTH)
    names = [textwrap.wrap(one_line(report["model"]), width) for report in reports]
    # A row holds one line of each name. A name of fewer lines has empty cells below it.
    return [("", *lines) for lines in zip_longest(*names, fillvalue="")]


def rows_of(labels: dict[str, str], reports: list[dict[str, Any]]) -> list[Cells]:
    """The rows with these labels that some model has."""
    rows = []
    for place, label in labels.items():
        cells = [cell(report, place) for report in reports]
        if any(text != "-" for text in cells):
            rows.append((f"  {label}", *cells))
    return rows


def cell(report: dict[str, Any], place: str) -> str:
    """A value of a nested report by its dotted place; "-" if it is not there.

    >>> cell({"loss": {"own": 1.5}, "bigrams": None}, "loss.own")
    '1.500'
    >>> cell({"bigrams": None}, "bigrams.raw.top1")
    '-'
    """
    value: Any = report
    keys = place.split(".")
    for key in keys:
        if not value:  # None for a measurement that was not made
            return "-"
        value = value.get(key)
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if isinstance(value, int):
        return f"{value:,}"
    if keys[-1] in SHARES:
        return f"{100 * value:.1f} %"
    return f"{value:.3f}"
