"""Measure what tying does to a model: one column for each model.

W_E is the token embedding, wte. W_U is the output matrix: W_E^T in a tied model, a matrix of its
own in an untied one. A = W_E W_U has a score for each pair of tokens: how likely the second one is
after the first, by these two matrices alone.

examples:
  tiedgpt study shakespeare-tied shakespeare-untied
  tiedgpt study shakespeare-tied shakespeare-untied --corpus shakespeare.txt
  tiedgpt study gpt2 --corpus story.txt --json
"""

import argparse
import shutil
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, zip_longest

import numpy as np

from ..checkpoints import Opened
from ..checkpoints.model_names import SHIPPED
from ..errors import ArgumentError, CheckpointError, TiedGPTError, TokenizerError, one_line
from ..gpt2.config import Config
from ..gpt2.tokenizer import EOT, Tokenizer
from ..study.corpus import MIN_COUNT, MIN_TOKENS, Corpus
from ..study.paths import PATH_PARTS
from ..study.reports import StudyReport, study_report
from . import inputs, options
from .inputs import encode_text, read_text, source_name
from .output import Cells, ProgressBar, note, print_json, print_table, rows_of_fields, value_at


@dataclass
class Subject:
    """A model to study, not loaded yet."""

    name: str
    opened: Opened
    config: Config
    tokenizer: Tokenizer | None  # None if it has none that can be read
    vocabulary: int  # a number, the same for models with the same vocabulary


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
        '0, as in each tied model: "York New" scores as "New York"; 1.414: unrelated.',
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
            "bigrams.started.top1": f"started: the same, after {EOT}",
            "bigrams.normed.top1_chance": "normed, of another token",
            "bigrams.started.top1_chance": "started, of another token",
        },
        "The share of frequent tokens whose likeliest next token is the corpus's.",
    ),
    Group(
        "How much nearer to the bigrams than weighted token counts?",
        {
            "gains.normed.gain": "normed",
            "gains.normed.gain_error": "normed, standard error",
            "gains.model.gain": "model",
            "gains.started.gain": "started",
            "gains.started.gain_error": "started, standard error",
        },
        "Nats, by the path and the counts together, on tokens that fit no weight.",
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
        "What does each table know of the text?",
        {
            "tables.W_E.successors.r2": "W_E: what follows a token",
            "tables.W_E.predecessors.r2": "W_E: what precedes it",
            "tables.W_U.successors.r2": "W_U: what follows a token",
            "tables.W_U.predecessors.r2": "W_U: what precedes it",
            "tables.counts.successors.r2": "its count alone: what follows",
            "tables.counts.predecessors.r2": "its count alone: what precedes",
            "tables.random.successors.r2": "random rows: what follows",
        },
        "R2 of a linear probe of a token's row, on tokens that fit no weight.",
    ),
    Group(
        "Is it the first MLP that makes bigrams?",
        {
            "mlps.table": "no MLP: the path normed",
            "mlps.first_alone": "the first MLP alone",
            "mlps.other_alone": "the best other MLP alone",
            "mlps.model": "the whole model",
            "mlps.without_first": "the model without its first MLP",
            "mlps.without_other": "without another, the worst",
        },
        "Nats from the bigrams, after the best factor on the logits.",
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
INDENT = "  "
LABEL_WIDTH = 35  # about; model names are broken to leave so much for the labels
MIN_NAME_WIDTH = 12  # but not to fewer characters than this


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_models(
        parser,
        "a name, a directory or a file of weights (default: shakespeare-tied shakespeare-untied)",
    )
    parser.add_argument(
        "--corpus",
        metavar="FILE",
        help="a text in UTF-8 for the measurements that need one (bigrams, losses); - for stdin",
    )
    options.add(parser, "allow_special", "json")


def run(args: argparse.Namespace) -> None:
    text = None
    if args.corpus is not None:
        text = read_text(args.corpus)
    elif args.allow_special:
        raise ArgumentError("--allow-special needs --corpus: no other text is read")
    subjects = find_subjects(args.models or SHIPPED)

    # Number of a vocabulary -> the corpus in its tokens; None if a model lacks some of them
    corpora: dict[int, Corpus | None] = {}
    facts = None
    if text is None:
        note("no --corpus: only measurements that need no text, for all tokens")
    else:
        source = source_name(args.corpus)
        for subject in subjects:
            if subject.tokenizer is not None and subject.vocabulary not in corpora:
                ids = encode_text(subject.tokenizer, text, args.allow_special, source)
                corpora[subject.vocabulary] = new_corpus(subject, ids, source)
        facts = {"file": args.corpus, "bytes": len(text.encode()), "min_count": MIN_COUNT}

    reports = measure_all(subjects, corpora)
    if args.json:
        print_json({"corpus": facts, "models": reports})
    else:
        print_reports(reports)


def find_subjects(names: Sequence[str]) -> list[Subject]:
    """The models, not loaded yet, with the numbers of their vocabularies.

    Notes say what a missing tokenizer means, and which two models have other vocabularies.
    """
    subjects = []
    vocabularies: list[object] = []  # equal for two models in which each id is the same token
    for name in names:
        opened = inputs.open_model(name)
        # Asked before the tokenizer: the error on a file that is no checkpoint should say that.
        config = opened.config
        tokenizer = None
        vocabulary: object = object()  # an unknown one, equal to no other
        try:
            tokenizer = opened.tokenizer
            vocabulary = (tokenizer.description(), config.vocab_size)
        except (CheckpointError, TokenizerError) as error:
            note(f"{error}; {name} is not measured on the corpus or compared with other models")
        if vocabulary not in vocabularies:
            vocabularies.append(vocabulary)
        number = vocabularies.index(vocabulary)
        subjects.append(Subject(name, opened, config, tokenizer, number))

    with_tokenizer = [subject for subject in subjects if subject.tokenizer is not None]
    for first, other in pairwise(with_tokenizer):
        if first.vocabulary != other.vocabulary:
            note(
                f"{first.name} and {other.name} have different vocabularies: do not compare their "
                "losses and other numbers per token; their embeddings are not compared"
            )
    return subjects


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


def measure_all(subjects: list[Subject], corpora: dict[int, Corpus | None]) -> list[StudyReport]:
    """Each model's report, with one model in memory at a time."""
    # Tied models come first: the embeddings of the others are compared with those of the first
    # tied model of the same vocabulary.
    order = sorted(range(len(subjects)), key=lambda place: not subjects[place].config.tied)
    tied_W_E: dict[int, np.ndarray] = {}  # by the number of the vocabulary
    reports: dict[int, StudyReport] = {}  # by the place of the model
    for place in order:
        subject = subjects[place]
        corpus = corpora.get(subject.vocabulary)
        other_W_E = tied_W_E.get(subject.vocabulary)
        try:
            model = inputs.load(subject.opened, head=None)
            start = None  # the id of the start token
            if subject.tokenizer is not None:
                start = subject.tokenizer.eot_id
            reports[place] = study_report(
                subject.name,
                model,
                corpus,
                tied_W_E=other_W_E,
                progress=ProgressBar,
                note=note,
                start=start,
            )
        except TiedGPTError as error:
            raise TiedGPTError(f"{subject.name}: {error}") from error
        if model.config.tied:
            tied_W_E.setdefault(subject.vocabulary, model.W_E)
    return [reports[place] for place in range(len(subjects))]


def print_reports(reports: list[StudyReport]) -> None:
    """Print a column for each model.

    A row that no model has is left out. A group is left out if no model has its first row.
    """
    # The names of the models are broken to fit above their columns.
    room = shutil.get_terminal_size().columns - LABEL_WIDTH
    room_of_each = room // len(reports) - 2  # two spaces stand before a column
    width = max(room_of_each, MIN_NAME_WIDTH)
    names = [textwrap.wrap(one_line(report["model"]), width) for report in reports]
    # A row holds one line of each name. A name of fewer lines has empty cells below it.
    lines: list[str | Cells] = [("", *parts) for parts in zip_longest(*names, fillvalue="")]

    lines += rows_of_fields(FACTS, reports, INDENT)
    for group in GROUPS:
        first_place = next(iter(group.rows))
        if any(value_at(report, first_place) is not None for report in reports):
            lines.append("")
            lines.append(group.question)
            lines += rows_of_fields(group.rows, reports, INDENT)
            lines.append(f"{INDENT}{group.reading}")
    lines.append("")
    lines.append("W_E: the token embedding. W_U: the output matrix, in a tied model W_E^T.")
    if any("-" in line for line in lines if not isinstance(line, str)):
        lines.append("-: does not apply to this model, or was not measured.")
    print_table(lines)
