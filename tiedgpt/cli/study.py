"""Measure what tying does to a model: one column for each model."""

import argparse
import json
import shutil
import textwrap
from itertools import pairwise, zip_longest
from typing import Any

from ..checkpoints import open_checkpoint
from ..checkpoints.vocabulary import read_tokenizer
from ..errors import ArgumentError, CheckpointError, TokenizerError, one_line
from ..study.corpus import MIN_COUNT, MIN_TOKENS, Corpus
from ..study.readings import FIRST_ROWS, GROUPS, Group, look_up
from ..study.report import Subject, measure_all
from . import common
from .terminal import Progress, note, print_table, read_text, source_name

EXAMPLES = """\
  tiedgpt study shakespeare-tied shakespeare-untied
  tiedgpt study shakespeare-tied shakespeare-untied --corpus shakespeare.txt
  tiedgpt study gpt2 --corpus story.txt --json
"""


def add_parser(commands: dict[str, common.Parser]) -> None:
    parser = common.add_command(commands, "study", run, __doc__, EXAMPLES)
    common.add_models(parser, "a name, a directory or a .safetensors file")
    corpus = "a text in UTF-8 for the measurements that need one (bigrams, losses); - for stdin"
    parser.add_argument("--corpus", metavar="FILE", help=corpus)
    common.add_shared(parser, "--allow-special", "--json")


def run(args: argparse.Namespace) -> None:
    models, file, allow_special, as_json = args.models or [], args.corpus, args.allow_special, args.json
    if not models:
        raise ArgumentError("expected at least one MODEL (try: tiedgpt study -h)")
    text = None if file is None else read_text(file)
    subjects = open_subjects(models)
    corpus = None
    if text is None:
        note("no --corpus: only the measurements that need no text, for all tokens of the vocabulary")
    else:
        read_corpus(text, subjects, source_name(file), allow_special)
        corpus = {"file": file, "bytes": len(text.encode()), "min_count": MIN_COUNT}
    reports = measure_all(subjects, lambda checkpoint: common.load(checkpoint, None), Progress, note)
    if as_json:
        print(json.dumps({"corpus": corpus, "models": reports}))
    else:
        print_reports(reports)


def open_subjects(names: list[str]) -> list[Subject]:
    """The models of these names, checked but not loaded. Prints a note if two cannot be compared."""
    subjects = []
    for name in names:
        path = common.find(name)[1]
        checkpoint, tokenizer = open_checkpoint(path), None
        try:
            tokenizer = read_tokenizer(path)
        except (CheckpointError, TokenizerError) as error:
            note(f"{error}; {name} is not measured on the corpus or compared with other models")
        known = tokenizer and common.vocabulary(tokenizer, checkpoint)
        subjects.append(Subject(name, checkpoint, tokenizer, known))
    for first, other in pairwise([subject for subject in subjects if subject.tokenizer]):
        if first.vocabulary != other.vocabulary:
            note(
                f"{first.name} and {other.name} have different vocabularies: do not compare their losses and "
                "other numbers per token; their embeddings are not compared"
            )
    return subjects


def read_corpus(text: str, subjects: list[Subject], name: str, allow_special: bool) -> None:
    """Give each subject that has a tokenizer the corpus in its tokens."""
    for subject in subjects:
        if subject.tokenizer is None:
            continue
        same = [other for other in subjects if other.corpus and other.vocabulary == subject.vocabulary]
        if same:
            subject.corpus = same[0].corpus
            continue
        ids = common.encode(subject.tokenizer, text, allow_special, name)
        try:
            subject.corpus = corpus = Corpus.of(ids, subject.checkpoint.config.vocab_size)
        except ArgumentError as error:  # its tokenizer has more tokens than the model
            note(f"{name} in the tokens of {subject.name}: {error}; measurements on the corpus are left out")
            continue
        if (frequent := corpus.frequent().size) < MIN_TOKENS:
            note(
                f"{name} is too small for the rows about frequent tokens: {frequent} of the tokens of "
                f"{subject.name} occur {MIN_COUNT} times or more in it; expected at least {MIN_TOKENS}"
            )
        if len(ids) < 2:
            note(f"{name} is too small for a loss: expected at least two tokens")
        elif subject.checkpoint.config.n_ctx < 2:
            note(f"{subject.name} has a context of one token: it has no loss")


LABEL_WIDTH = 35  # about; model names are broken to leave so much for the labels
MIN_NAME_WIDTH = 12  # but not to fewer characters than this


def print_reports(reports: list[dict[str, Any]]) -> None:
    """A column for each model. A row that no model has is left out, a group if none has its first row."""
    room = (shutil.get_terminal_size().columns - LABEL_WIDTH) // len(reports) - 2
    names = [textwrap.wrap(one_line(report["model"]), max(room, MIN_NAME_WIDTH)) for report in reports]
    lines: list[str | tuple[str, ...]] = [("", *parts) for parts in zip_longest(*names, fillvalue="")]
    for group in (Group("", FIRST_ROWS, ""), *GROUPS):
        rows = [
            (f"  {label}", *(group.cell(look_up(report, place)) for report in reports))
            for place, label in group.rows.items()
        ]
        if set(rows[0][1:]) != {"-"}:
            there = [row for row in rows if set(row[1:]) != {"-"}]
            lines += ["", group.heading, *there, f"  {group.reading}"] if group.heading else there
    print_table(lines)
