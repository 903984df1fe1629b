"""`tiedgpt study`: what the switch does to a model, as numbers, side by side."""

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from ..checkpoints import open_checkpoint
from ..checkpoints.huggingface import Checkpoint
from ..checkpoints.vocabulary import read_tokenizer
from ..errors import ArgumentError, CheckpointError, TiedGPTError, TokenizerError
from ..parameters import count_parameters
from ..study.bigrams import bigrams
from ..study.corpus import MIN_COUNT, Corpus
from ..study.direct_path import direct_path
from ..study.paths import PATHS, paths_of
from ..study.similarity import embeddings
from ..study.swap import losses, sample
from ..tokenizer import Tokenizer
from .common import (
    Progress,
    add_command,
    add_json_option,
    add_special_option,
    encode,
    find,
    load,
    note,
    print_table,
    read_text,
    source_name,
)

EXAMPLES = """\
  tiedgpt study shakespeare-tied shakespeare-untied
  tiedgpt study shakespeare-tied shakespeare-untied --corpus shakespeare.txt
  tiedgpt study gpt2 --corpus story.txt --json
"""


def add_parser(commands: Any) -> None:
    summary = "Measure what the output head learned, models side by side."
    parser = add_command(commands, "study", run, summary, EXAMPLES)
    parser.add_argument(
        "models", nargs="+", metavar="MODEL", help="a name, a directory or a .safetensors file"
    )
    parser.add_argument(
        "--corpus", metavar="FILE", help="a text in UTF-8, for the numbers that need one; - for stdin"
    )
    add_special_option(parser)
    add_json_option(parser)


@dataclass
class Subject:
    """A model to study, not loaded yet, with its tokenizer and the corpus in its tokens, where there are."""

    name: str
    checkpoint: Checkpoint
    tokenizer: Tokenizer | None
    corpus: Corpus | None = None

    def shares_vocabulary(self, other: "Subject") -> bool:
        """Whether each token id is the same token to both, for all that is known."""
        ours, theirs = self.tokenizer, other.tokenizer
        return (
            ours is not None
            and theirs is not None
            and (ours.merges, ours.special_tokens) == (theirs.merges, theirs.special_tokens)
            and self.checkpoint.config.vocab_size == other.checkpoint.config.vocab_size
        )


def run(args: argparse.Namespace) -> None:
    text = None if args.corpus is None else read_text(args.corpus)
    subjects = open_subjects(args.models)
    if text is None:
        note(
            "no --corpus: bigrams, norms and losses need a text and are left out; similarities are also of "
            "tokens that training may never have met"
        )
        corpus = None
    else:
        read_corpus(text, subjects, source_name(args.corpus), args.allow_special)
        corpus = {"file": args.corpus, "bytes": len(text.encode()), "min_count": MIN_COUNT}
    reports = study_all(subjects)
    if args.json:
        print(json.dumps({"corpus": corpus, "models": reports}))
    else:
        print_reports(reports)


def open_subjects(names: list[str]) -> list[Subject]:
    """The models by name, checked but not loaded; notes on what about them does not compare."""
    subjects = []
    for name in names:
        path = find(name)[1]
        checkpoint, tokenizer = open_checkpoint(path), None
        try:
            tokenizer = read_tokenizer(path)
        except (CheckpointError, TokenizerError) as error:
            note(f"{error}; what needs a corpus or another model is left out")
        subjects.append(Subject(name, checkpoint, tokenizer))
    for first, other in pairwise([subject for subject in subjects if subject.tokenizer]):
        if not first.shares_vocabulary(other):
            note(
                f"{first.name} and {other.name} have vocabularies of different tokens or sizes: what is "
                "counted in tokens does not compare, and their embeddings are not compared"
            )
    return subjects


def read_corpus(text: str, subjects: list[Subject], name: str, allow_special: bool) -> None:
    """Give each subject that has a tokenizer the corpus in its tokens."""
    for subject in subjects:
        if subject.tokenizer is None:
            continue
        alike = [other for other in subjects if other.corpus and subject.shares_vocabulary(other)]
        if alike:
            subject.corpus = alike[0].corpus
            continue
        ids = encode(subject.tokenizer, text, allow_special, name)
        try:
            subject.corpus = corpus = Corpus.of(ids, subject.checkpoint.config.vocab_size)
        except ArgumentError as error:  # its tokenizer has more tokens than the model
            note(f"{name} in the tokens of {subject.name}: {error}; what needs a corpus is left out")
            continue
        if corpus.frequent().size == 0:
            note(
                f"{name} is too small for bigrams: of its {len(ids):,} tokens, as {subject.name} has them, "
                f"none is there {MIN_COUNT} times"
            )
        if len(ids) < 2:
            note(f"{name} is too small for a loss: it takes two tokens to predict one")
        elif subject.checkpoint.config.n_ctx < 2:
            note(
                f"{subject.name} has a context of one token, and so no loss: a window of one predicts nothing"
            )


def study_all(subjects: list[Subject]) -> list[dict[str, Any]]:
    """Each model's numbers, in the order of the subjects; one model in memory at a time."""
    reports: dict[int, dict[str, Any]] = {}
    tied: list[tuple[Subject, np.ndarray]] = []  # these are studied first: the others' matrices are compared
    for number, subject in sorted(enumerate(subjects), key=lambda item: not item[1].checkpoint.config.tied):
        with_tied = [W_E for other, W_E in tied if subject.shares_vocabulary(other)]
        try:
            reports[number], W_E = study(subject, with_tied[0] if with_tied else None)
        except TiedGPTError as error:
            raise TiedGPTError(f"{subject.name}: {error}") from error
        if subject.checkpoint.config.tied:
            tied.append((subject, W_E))
    return [reports[number] for number in range(len(subjects))]


def study(subject: Subject, tied_W_E: np.ndarray | None) -> tuple[dict[str, Any], np.ndarray]:
    """One model's numbers, None where they have no meaning or would need what is not there, and its W_E."""
    name, corpus = subject.name, subject.corpus
    model = load(subject.checkpoint, None)
    count = count_parameters(model.config)[model.config.head]
    report: dict[str, Any] = {
        "model": name,
        "head": model.config.head,
        "parameters": count["total"],
        "bytes": count["bytes"],
        "corpus": None,
    }
    with Progress(f"{name}: direct path", model.config.vocab_size, "token") as bar:
        report["direct_path"] = direct_path(model, corpus, bar.add)
    report |= {"bigrams": None, "embeddings": embeddings(model, corpus, tied_W_E), "loss": None}
    if corpus is None:
        return report, model.W_E
    tokens = corpus.frequent()
    report["corpus"] = {
        "tokens": corpus.ids.size,
        "frequent": tokens.size,
        "self_prediction": corpus.self_prediction(tokens),
    }
    with Progress(f"{name}: bigrams", tokens.size * (1 + len(paths_of(model))), "token") as bar:
        report["bigrams"] = bigrams(model, corpus, bar.add)
    end = sample(corpus.ids, model.config.n_ctx)
    with Progress(f"{name}: loss", end.size * (1 if model.config.tied else 2), "token") as bar:
        report["loss"] = losses(model, end, bar.add)
    return report, model.W_E


PERCENT, DECIMALS, COUNT = (lambda x: f"{100 * x:.1f} %"), "{:.3f}".format, "{:,}".format
# What stands above a group of rows; the rows, by their places in the JSON; what is read off them.
GROUPS: tuple[tuple[str, tuple[str, ...], Callable[[Any], str], str], ...] = (
    (
        "What the head costs",
        ("parameters", "bytes"),
        COUNT,
        "Tied, there is one [V, D] matrix less. Bytes in float32.",
    ),
    (
        "The corpus",
        ("corpus.tokens", "corpus.frequent"),
        COUNT,
        f"Tokens in it; different ones there {MIN_COUNT} times or more, whose bigrams are below.",
    ),
    (
        "Tied, the direct path A = W_E W_U is symmetric",
        ("direct_path.asymmetry",),
        DECIMALS,
        '|A - A^T| / |A|: 0 if "New York" scores as "York New", 1.414 if unrelated.',
    ),
    (
        "Tied, a token predicts itself",
        ("direct_path.self_prediction", "direct_path.self_prediction_frequent", "corpus.self_prediction"),
        PERCENT,
        "Share with themselves as likeliest successor: by A, of all tokens and of the\n"
        "  frequent ones; of these in the corpus.",
    ),
    (
        "A path from one token to logits is a bigram model: raw, W_E W_U; normed, by\n"
        "ln_f too; mlp0, by the first MLP too; model, all of it; unigram, no path at all",
        tuple(f"bigrams.{path}.top1" for path in ("unigram", *PATHS)),
        PERCENT,
        "Share of tokens whose likeliest successor by the path is the commonest there.",
    ),
    (
        "",
        tuple(f"bigrams.{path}.top5" for path in ("unigram", *PATHS)),
        PERCENT,
        "Of the path's five likeliest, the share that are among the five commonest.",
    ),
    (
        "",
        tuple(f"bigrams.{path}.kl" for path in ("unigram", *PATHS)),
        DECIMALS,
        "KL divergence of the path from the corpus's counts, in nats; 0 is a bigram\n"
        "  model. raw has no ln_f, so its size means nothing: judge it by its order.",
    ),
    (
        "",
        tuple(f"bigrams.{path}.spearman" for path in ("unigram", *PATHS)),
        DECIMALS,
        "Are the successors that there are ranked as the corpus ranks them? 1: yes.",
    ),
    (
        "The tied matrix becomes like an untied model's output embedding",
        tuple(f"embeddings.{pair}" for pair in ("in_out", "in_tied", "out_tied")),
        DECIMALS,
        "Rank correlation of all pairs' cosines, by two of these: in, the model's W_E;\n"
        "  out, its W_U; tied, the first tied model's W_E.",
    ),
    (
        "Frequent tokens and the lengths of their vectors",
        ("embeddings.in_norm_frequency", "embeddings.out_norm_frequency"),
        DECIMALS,
        "Are frequent tokens' vectors the longer ones (towards 1), or the shorter (-1)?",
    ),
    (
        "An untied model's body needs its own head",
        ("loss.own", "loss.swapped"),
        DECIMALS,
        "Nats per token, of up to 16,384 in the corpus's last tenth, which is what\n"
        "  `train` holds out; swapped: the same body under x @ wte.T.",
    ),
)


def print_reports(reports: list[dict[str, Any]]) -> None:
    """A column for each model, a row for each quantity that one of them has."""
    names = [report["model"] for report in reports]
    short = [short_name(name) for name in names]
    if len(set(short)) < len(set(names)):  # two that end alike
        short = [f"{number}: {name}" for number, name in enumerate(short, 1)]
    lines: list[str | tuple[str, ...]] = [
        ("", *short),
        ("head", *(report["head"] for report in reports)),
    ]
    for claim, rows, form, reading in GROUPS:
        values = {row: [look_up(report, row) for report in reports] for row in rows}
        there = {row: cells for row, cells in values.items() if any(cell is not None for cell in cells)}
        if there:
            lines += ["", *([claim] if claim else [])]
            lines += [
                (f"  {row}", *("-" if cell is None else form(cell) for cell in cells))
                for row, cells in there.items()
            ]
            lines.append(f"  {reading}")
    print_table(lines)


def look_up(report: dict[str, Any], place: str) -> Any:
    """A number by its place in the JSON; None if it is not there.

    >>> look_up({"loss": {"own": 1.5}, "bigrams": None}, "loss.own")
    1.5
    """
    value: Any = report
    for key in place.split("."):
        value = value.get(key) if value else None
    return value


def short_name(name: str, limit: int = 18) -> str:
    """A model's name at the head of its column; of a long path the end.

    >>> short_name("shakespeare-tied"), short_name("some/where/my-model/"), short_name("x" * 30)
    ('shakespeare-tied', 'my-model', '...xxxxxxxxxxxxxxx')
    """
    if len(name) > limit:
        name = name.rstrip("/").rpartition("/")[2]
    return name if len(name) <= limit else f"...{name[3 - limit :]}"
