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
from typing import Any

import numpy as np

from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.formats import open_checkpoint
from ..checkpoints.vocabulary import read_tokenizer
from ..errors import ArgumentError, CheckpointError, TiedGPTError, TokenizerError, one_line
from ..gpt2.tokenizer import Tokenizer
from ..study.corpus import MIN_COUNT, MIN_TOKENS, Corpus
from ..study.paths import PATH_PARTS
from ..study.report import measure
from . import common
from .terminal import ProgressBar, note, print_table, read_text, source_name


@dataclass
class Subject:
    """A model to study, not loaded yet, with its tokenizer and the corpus in its tokens, if there
    are any."""

    name: str
    checkpoint: Checkpoint
    tokenizer: Tokenizer | None
    vocabulary: (
        object  # equal for two models in which each id is the same token; None if that is not known
    )
    corpus: Corpus | None = None


def add_arguments(parser: common.Parser) -> None:
    common.add_models(parser, "a name, a directory or a .safetensors file")
    corpus = "a text in UTF-8 for the measurements that need one (bigrams, losses); - for stdin"
    parser.add("--corpus FILE", corpus)
    parser.add_shared("--allow-special", "--json")


def run(args: argparse.Namespace) -> None:
    if not args.models:
        raise ArgumentError("expected at least one MODEL (try: tiedgpt study -h)")
    text = None if (file := args.corpus) is None else read_text(file)
    subjects = open_subjects(args.models)
    corpus = None
    if text is None:
        note(
            "no --corpus: only the measurements that need no text, for all tokens of the vocabulary"
        )
    else:
        read_corpus(text, subjects, source_name(file), args.allow_special)
        corpus = {"file": file, "bytes": len(text.encode()), "min_count": MIN_COUNT}
    reports = measure_all(subjects)
    if args.json:
        print(json.dumps({"corpus": corpus, "models": reports}))
    else:
        print_reports(reports)


def open_subjects(names: list[str]) -> list[Subject]:
    """The models of these names, checked but not loaded. Prints a note if two cannot be
    compared."""
    subjects = []
    for name in names:
        path = common.find(name)[1]
        checkpoint, tokenizer = open_checkpoint(path), None
        try:
            tokenizer = read_tokenizer(path)
        except (CheckpointError, TokenizerError) as error:
            note(f"{error}; {name} is not measured on the corpus or compared with other models")
        vocabulary = tokenizer and common.vocabulary(tokenizer, checkpoint)
        subjects.append(Subject(name, checkpoint, tokenizer, vocabulary))
    for first, other in pairwise([subject for subject in subjects if subject.tokenizer]):
        if first.vocabulary != other.vocabulary:
            differ = f"{first.name} and {other.name} have different vocabularies"
            numbers = "do not compare their losses and other numbers per token"
            note(f"{differ}: {numbers}; their embeddings are not compared")
    return subjects


def read_corpus(text: str, subjects: list[Subject], name: str, allow_special: bool) -> None:
    """Give each subject that has a tokenizer the corpus in its tokens."""
    for subject in subjects:
        same = (
            other.corpus
            for other in subjects
            if other.corpus and other.vocabulary == subject.vocabulary
        )
        subject.corpus = next(same, None)
        if subject.corpus or subject.tokenizer is None:
            continue
        ids = common.encode(subject.tokenizer, text, allow_special, name)
        try:
            subject.corpus = corpus = Corpus.of(ids, subject.checkpoint.config.vocab_size)
        except ArgumentError as error:  # its tokenizer has more tokens than the model
            note(
                f"{name} in the tokens of {subject.name}: {error}; measurements on the corpus are left out"
            )
            continue
        if (frequent := corpus.frequent().size) < MIN_TOKENS:
            found = (
                f"{frequent} of the tokens of {subject.name} occur {MIN_COUNT} times or more in it"
            )
            small = f"{name} is too small for the rows about frequent tokens"
            note(f"{small}: {found}; expected at least {MIN_TOKENS}")
        if len(ids) < 2:
            note(f"{name} is too small for a loss: expected at least two tokens")
        elif subject.checkpoint.config.n_ctx < 2:
            note(f"{subject.name} has a context of one token: it has no loss")


def measure_all(subjects: list[Subject]) -> list[dict[str, Any]]:
    """Each model's numbers, with one model in memory at a time."""
    reports: dict[int, dict[str, Any]] = {}
    tied: list[
        tuple[object, np.ndarray]
    ] = []  # they are studied first: the others are compared with them
    for number, subject in sorted(
        enumerate(subjects), key=lambda item: not item[1].checkpoint.config.tied
    ):
        tied_W_E = next((W_E for known, W_E in tied if known and known == subject.vocabulary), None)
        try:
            model = common.load(subject.checkpoint, None)
            reports[number] = measure(
                subject.name, model, subject.corpus, tied_W_E, ProgressBar, note
            )
        except TiedGPTError as error:
            raise TiedGPTError(f"{subject.name}: {error}") from error
        if model.config.tied:
            tied.append((subject.vocabulary, model.W_E))
    return [reports[number] for number in range(len(subjects))]


READING = ""  # in the place of a row: what to see, whichever of the rows are printed
SHARES = ("self_prediction", "self_prediction_frequent", "top1")
GROUPS = {  # the question that the rows answer -> a row's place in the JSON -> its label
    "": {
        "head": "Output head",
        "parameters": "Parameters",
        "corpus.frequent": f"Frequent tokens: {MIN_COUNT} times or more",
    },
    "Is A = W_E W_U symmetric?": {
        "direct_path.asymmetry": "|A - A^T| / |A|",
        "corpus.jsd_floor": "Nats that a symmetric A costs, at least",
        READING: '0: "York New" has the score of "New York"; 1.414: the two are unrelated.',
    },
    "Does a token predict itself?": {
        "direct_path.self_prediction": "All tokens, by A",
        "direct_path.self_prediction_frequent": "Frequent tokens, by A",
        "corpus.self_prediction": "Frequent tokens, in the corpus",
        READING: "The share of tokens whose likeliest next token is the token itself.",
    },
    "Is the corpus's most common next token found, from one token?": {
        "bigrams.unigram.top1": "token counts, no model",
        **{
            f"bigrams.{path}.top1": f"{path}: {PATH_PARTS[path]}"
            for path in ("normed", "mlp0", "model")
        },
        READING: "The share of frequent tokens whose likeliest next token is the corpus's.",
    },
    "What would a free head gain?": {
        "missing.scale": "scale: gained by one factor",
        "missing.head": "head: gained by the best W_U",
        "missing.rank": "rank: out of reach of any W_U",
        READING: "Parts of normed's KL divergence, in nats; the head is the price of a tie.",
    },
    "Do the matrices agree on which tokens are similar?": {
        "embeddings.in_out": "W_E and W_U",
        "embeddings.in_tied": "W_E and the tied model's W_E",
        "embeddings.out_tied": "W_U and the tied model's W_E",
        READING: "Rank correlation of cosines of pairs of tokens (the text's, if any); 1: equal.",
    },
    "Can W_E^T replace W_U?": {
        "loss.own": "Loss with the model's own head",
        "loss.swapped": "Loss with x @ wte.T as the head",
        "loss.uniform": "Loss of a uniform guess",
        READING: "Nats per token at the end of the corpus; training on it lowers the loss.",
    },
}


def cell(report: dict[str, Any], place: str) -> str:
    """A value of a nested report by its dotted place; "-" if it is None or a key on the way is
    missing.

    >>> cell({"loss": {"own": 1.5}, "bigrams": None}, "loss.own"), cell({"bigrams": None}, "bigrams.raw.top1")
    ('1.500', '-')
    """
    value: Any = report
    for key in place.split("."):
        value = value.get(key) if value else None
    if value is None or isinstance(value, str):
        return value or "-"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{100 * value:.1f} %" if key in SHARES else f"{value:.3f}"


LABEL_WIDTH = 35  # about; model names are broken to leave so much for the labels
MIN_NAME_WIDTH = 12  # but not to fewer characters than this


def print_reports(reports: list[dict[str, Any]]) -> None:
    """A column for each model. A row that no model has is left out, a group if none has its first
    row."""
    room = (shutil.get_terminal_size().columns - LABEL_WIDTH) // len(reports) - 2
    names = [
        textwrap.wrap(one_line(report["model"]), max(room, MIN_NAME_WIDTH)) for report in reports
    ]
    lines: list[str | tuple[str, ...]] = [
        ("", *parts) for parts in zip_longest(*names, fillvalue="")
    ]
    for question, labels in GROUPS.items():
        places = [place for place in labels if place != READING]
        rows = [(f"  {labels[at]}", *(cell(report, at) for report in reports)) for at in places]
        if set(rows[0][1:]) != {"-"}:
            there = [row for row in rows if set(row[1:]) != {"-"}]
            lines += ["", question, *there, f"  {labels[READING]}"] if question else there
    print_table(lines)
