"""`tiedgpt study`: measure what tying does to models, and print a column for each model."""

import argparse
import json
import math
import shutil
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np

from ..checkpoints import open_checkpoint
from ..checkpoints.huggingface import Checkpoint
from ..checkpoints.vocabulary import read_tokenizer
from ..errors import ArgumentError, CheckpointError, TiedGPTError, TokenizerError, one_line
from ..parameters import count_parameters
from ..study import look_up
from ..study.bigrams import bigrams
from ..study.calibrated import OFF_DIAGONAL_PARTS, calibrated_paths
from ..study.calibrated import PARTS as CALIBRATED_PARTS
from ..study.corpus import MIN_COUNT, MIN_TOKENS, Corpus
from ..study.direct_path import direct_path
from ..study.dynamics import effective_rank, negative_gains
from ..study.fits import FAMILIES, fit_families
from ..study.fits import STEPS as FIT_STEPS
from ..study.gradients import batch_gradients
from ..study.paths import PATH_PARTS, paths_of
from ..study.similarity import embeddings
from ..study.solved import PARTS, STEPS, missing, solved_paths
from ..study.swap import losses, sample
from ..study.symmetry import jsd_floor, text_asymmetry
from ..tokenizer import Tokenizer
from . import common

Fits = dict[tuple[int, int], dict[str, dict[str, float]]]  # corpus and width -> fits
MAX_FIT_PRODUCTS = 2**27  # of a step: V V D. Larger fits would take more than two minutes
MAX_TABLE = 2048  # tokens of the corpus whose pairs are compared with their reverse in a dense table
MAX_GRADIENT_TOKENS = 256

EXAMPLES = """\
  tiedgpt study shakespeare-tied shakespeare-untied
  tiedgpt study shakespeare-tied shakespeare-untied --corpus shakespeare.txt
  tiedgpt study gpt2 --corpus story.txt --json
"""


def add_parser(commands: Any) -> None:
    summary = "Measure what tying does to a model: one column for each model."
    parser = common.add_command(commands, "study", run, summary, EXAMPLES)
    add = parser.add_argument
    add("models", nargs="+", metavar="MODEL", help="a name, a directory or a .safetensors file")
    corpus = "a text in UTF-8 for the measurements that need one (bigrams, losses); - for stdin"
    add("--corpus", metavar="FILE", help=corpus)
    common.add_special_option(parser)
    common.add_json_option(parser)


@dataclass
class Subject:
    """A model to study, not loaded yet, with its tokenizer and the corpus in its tokens, if there are any."""

    name: str
    checkpoint: Checkpoint
    tokenizer: Tokenizer | None
    corpus: Corpus | None = None

    @property
    def vocabulary(self) -> object:
        """Equal for two models in which each id is the same token. None if that is not known."""
        return self.tokenizer and common.vocabulary(self.tokenizer, self.checkpoint)


def run(args: argparse.Namespace) -> None:
    text = None if args.corpus is None else common.read_text(args.corpus)
    subjects = open_subjects(args.models)
    corpus = None
    if text is None:
        common.note("no --corpus: only the measurements that need no text, for all tokens of the vocabulary")
    else:
        read_corpus(text, subjects, common.source_name(args.corpus), args.allow_special)
        corpus = {"file": args.corpus, "bytes": len(text.encode()), "min_count": MIN_COUNT}
    reports = study_all(subjects)
    if args.json:
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
            common.note(f"{error}; {name} is not measured on the corpus or compared with other models")
        subjects.append(Subject(name, checkpoint, tokenizer))
    for first, other in pairwise([subject for subject in subjects if subject.tokenizer]):
        if first.vocabulary != other.vocabulary:
            common.note(
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
            common.note(
                f"{name} in the tokens of {subject.name}: {error}; measurements on the corpus are left out"
            )
            continue
        if (frequent := corpus.frequent().size) < MIN_TOKENS:
            common.note(
                f"{name} is too small for the rows about frequent tokens: {frequent} of the tokens of "
                f"{subject.name} occur {MIN_COUNT} times or more in it; expected at least {MIN_TOKENS}"
            )
        if len(ids) < 2:
            common.note(f"{name} is too small for a loss: expected at least two tokens")
        elif subject.checkpoint.config.n_ctx < 2:
            common.note(f"{subject.name} has a context of one token: it has no loss")


def study_all(subjects: list[Subject]) -> list[dict[str, Any]]:
    """Each model's numbers, in the order of the subjects, with one model in memory at a time."""
    reports: dict[int, dict[str, Any]] = {}
    fits: Fits = {}
    tied: list[tuple[Subject, np.ndarray]] = []  # they are studied first: the others are compared with them
    for number, subject in sorted(enumerate(subjects), key=lambda item: not item[1].checkpoint.config.tied):
        with_tied = [
            W_E for other, W_E in tied if subject.tokenizer and other.vocabulary == subject.vocabulary
        ]
        try:
            reports[number], W_E = study(subject, with_tied[0] if with_tied else None, fits)
        except TiedGPTError as error:
            raise TiedGPTError(f"{subject.name}: {error}") from error
        if subject.checkpoint.config.tied:
            tied.append((subject, W_E))
    return [reports[number] for number in range(len(subjects))]


def study(subject: Subject, tied_W_E: np.ndarray | None, fits: Fits) -> tuple[dict[str, Any], np.ndarray]:
    """One model's numbers and its W_E. None: undefined, or it needs a corpus or a tied model.

    The fits to a corpus do not depend on the model, only on its width: those in `fits` are not made again.
    """
    name, corpus = subject.name, subject.corpus
    model = common.load(subject.checkpoint, None)
    head = model.config.head
    count = count_parameters(model.config)[head]
    report: dict[str, Any] = {
        "model": name,
        "head": head,
        "parameters": count["total"],
        "bytes": count["bytes"],
    }
    report["corpus"] = None
    with common.Progress(f"{name}: direct path", 2 * model.config.vocab_size, "token") as bar:
        report["direct_path"] = direct_path(model, corpus, bar.add)
    report |= {
        "bigrams": None,
        "missing": None,
        "fits": None,
        "negative_gains": negative_gains(model),
        "effective_rank": {"W_E": effective_rank(model.W_E), "W_U": effective_rank(model.W_U)},
        "gradients": None,
        "embeddings": embeddings(model, corpus, tied_W_E),
        "loss": None,
    }
    if corpus is None:
        return report, model.W_E
    frequent = corpus.frequent().size
    report["corpus"] = {
        "tokens": corpus.ids.size,
        "frequent": frequent,
        "self_prediction": corpus.self_prediction(),
        "jsd_floor": None,
        "asymmetry": None,
    }
    solved, calibrated = {}, {}
    if frequent >= MIN_TOKENS:
        report["corpus"] |= {
            "jsd_floor": jsd_floor(corpus),
            "asymmetry": text_asymmetry(corpus.table(corpus.most_common(MAX_TABLE))),
        }
        report["fits"] = fitted(subject, corpus, model.config.n_embd, fits)
        with common.Progress(f"{name}: the best W_U", STEPS, "step") as bar:
            solved = solved_paths(model, corpus, bar.add)
        if not solved:
            common.note(f"{name}: the corpus has too many different tokens to solve for the best W_U")
        with common.Progress(f"{name}: scales", 2 + len(paths_of(model)), "path") as bar:
            calibrated = calibrated_paths(model, corpus, bar.add)
    others = {**calibrated, **solved}
    with common.Progress(
        f"{name}: bigrams", frequent * (1 + len(paths_of(model)) + len(others)), "token"
    ) as bar:
        report["bigrams"] = bigrams(model, corpus, bar.add, others)
    report["missing"] = missing(report["bigrams"] or {})
    end = sample(corpus.ids, model.config.n_ctx)
    with common.Progress(f"{name}: loss", end.size * (1 if model.config.tied else 2), "token") as bar:
        report["loss"] = losses(model, end, bar.add)
    if report["loss"]:
        ids = corpus.ids[None, -min(MAX_GRADIENT_TOKENS, model.config.n_ctx) - 1 :]
        report["gradients"] = batch_gradients(model, ids[:, :-1], ids[:, 1:]).whole()
    return report, model.W_E


def fitted(subject: Subject, corpus: Corpus, D: int, fits: Fits) -> dict[str, dict[str, float]] | None:
    """The fits of width D to a corpus, from `fits` if they are there. None if they would take too long."""
    key = id(corpus), D
    if key not in fits:
        seen = corpus.frequent(1)
        if seen.size**2 * D > MAX_FIT_PRODUCTS:
            most = math.isqrt(MAX_FIT_PRODUCTS // D)
            common.note(
                f"{subject.name}: the corpus has {seen.size} different tokens; the best A of each form is "
                f"not computed for more than {most} tokens of width {D}"
            )
            return None
        with common.Progress(f"{subject.name}: the best A", len(FAMILIES) * FIT_STEPS, "step") as bar:
            fits[key] = fit_families(corpus.table(seen), D, progress=bar.add)
    return fits[key]


PERCENT, DECIMALS = (lambda x: f"{100 * x:.1f} %"), "{:.3f}".format


@dataclass(frozen=True)
class Group:
    """Rows of the report that belong together."""

    heading: str
    rows: dict[str, str]  # a row's place in the JSON -> its label
    reading: str  # how to read the numbers
    form: Callable[[float], str] = DECIMALS  # of numbers that are not counts

    def cell(self, value: Any) -> str:
        if value is None or isinstance(value, str):
            return value or "-"
        return f"{value:,}" if isinstance(value, int) else self.form(value)


def path_rows(measure: str) -> dict[str, str]:
    off_diagonal = OFF_DIAGONAL_PARTS if measure.startswith("top") else {}
    paths = {"unigram": "token counts, no model", **PATH_PARTS, **off_diagonal, **PARTS}
    if measure != "kl":
        del paths["scaled"]  # a factor does not change the order
    return {f"bigrams.{path}.{measure}": f"{path}: {parts}" for path, parts in paths.items()}


def calibrated_rows(measure: str) -> dict[str, str]:
    paths = CALIBRATED_PARTS.items()
    return {f"bigrams.{path}.{measure}": f"{path.removesuffix('+unigram')}: {parts}" for path, parts in paths}


GROUPS = (
    Group(
        "Output head and size",
        {"head": "Output head", "parameters": "Parameters", "bytes": "Bytes in float32"},
        "An untied model stores one matrix more: W_U, as large as the token embedding W_E.",
    ),
    Group(
        "Corpus",
        {"corpus.tokens": "Tokens", "corpus.frequent": "Frequent tokens"},
        f"A token is frequent if it occurs at least {MIN_COUNT} times. Rows about frequent tokens are "
        "averages over these, each counted once.",
    ),
    Group(
        "Is A = W_E W_U symmetric?",
        {
            "direct_path.asymmetry": "|A - A^T| / |A|, all tokens",
            "direct_path.asymmetry_frequent": "Frequent tokens, without means",
            "corpus.asymmetry": "The corpus's log counts",
        },
        "A[s, t] is the score that token s by itself, without any layer, gives to t as the next token. 0: "
        '"York" after "New" scores the same as "New" after "York", as in every tied model. 1.414: the two '
        "scores are unrelated, or depend on t only. The other two rows leave out what depends on s only or "
        "on t only. The last row is for the logarithms of the corpus's own pairs.",
    ),
    Group(
        "What does a symmetric A cost on this corpus?",
        {
            "corpus.jsd_floor": "Any symmetric A, at least",
            **{f"fits.{family}.kl": label for family, label in FAMILIES.items()},
        },
        "Nats per token above a table of the corpus's pairs, for the best A of each form, without any model. "
        "The first row is the Jensen-Shannon divergence of the pairs and their reverse, which no symmetric A "
        "comes below, at most 0.693. Other rows are the best fits of this model's width that were found. "
        "ln_f(W_E) W_E^T is a tied GPT-2 without layers. It can be lower, because ln_f is not symmetric.",
    ),
    Group(
        "Does a token predict itself?",
        {
            "direct_path.self_prediction": "All tokens, by A",
            "direct_path.self_prediction_frequent": "Frequent tokens, by A",
            "corpus.self_prediction": "Frequent tokens, in the corpus",
        },
        "The share of tokens whose best next token by A is the same token; in the corpus, whose most common "
        "next token is the same token.",
        PERCENT,
    ),
    Group(
        "Next token from one token: is the most common one found?",
        path_rows("top1"),
        "The share of frequent tokens for which the likeliest next token is the corpus's most common one. "
        "Each row uses a part of the model to turn one token into scores for the next; ln_f is the final "
        "layer norm.",
        PERCENT,
    ),
    Group(
        "Next token from one token: are the five most common ones found?",
        path_rows("top5"),
        "Of the corpus's five most common next tokens, the share that are among the five likeliest.",
        PERCENT,
    ),
    Group(
        "Next token from one token: how far from the corpus's probabilities?",
        path_rows("kl"),
        "KL divergence in nats; 0: the same probabilities. It depends on the scale of the scores. raw has no "
        "layer norm, so its scale has no meaning; a high value of normed can come from the scale alone.",
    ),
    Group(
        "What does one token's path add to the token counts? KL divergence",
        {"bigrams.unigram.kl": "token counts, no model"} | calibrated_rows("kl"),
        "Nats, after one scale of the scores and one of the log counts, which are fitted to the other half "
        "of the frequent tokens. A path that is no lower than the counts adds nothing to them.",
    ),
    Group(
        "What does one token's path add to the token counts? Mean reciprocal rank",
        {"bigrams.unigram.mrr": "token counts, no model"} | calibrated_rows("mrr"),
        "The mean of 1 / rank of the next token in the corpus; 1: always the likeliest.",
    ),
    Group(
        "What does normed miss?",
        {
            "missing.scale": "The scale: scaled is better",
            "missing.head": "The head: solved is better",
            "missing.rank": "The rank: missed by solved too",
        },
        "Three parts of the KL divergence of normed, in nats. In a tied model, the head is the price of the "
        "tie: what a free W_U would gain on these tokens with this W_E. The rank is what no W_U of this "
        "width gains. The best W_U is fitted to the corpus that it is measured on.",
    ),
    Group(
        "Next token from one token: in the corpus's order?",
        path_rows("spearman"),
        "Rank correlation of the scores with the counts, over the tokens that follow in the corpus. 1: the "
        "same order; 0: unrelated.",
    ),
    Group(
        "Do two matrices agree on which tokens are similar?",
        {
            "embeddings.in_out": "W_E and W_U of this model",
            "embeddings.in_tied": "W_E and the tied model's W_E",
            "embeddings.out_tied": "W_U and the tied model's W_E",
            "embeddings.tokens": "Tokens compared",
        },
        "Rank correlation of the cosine similarities of all pairs of tokens. 1: the same order of pairs; 0: "
        "unrelated. The tied model is the first tied one that has the same vocabulary.",
    ),
    Group(
        "Do frequent tokens have long vectors?",
        {
            "embeddings.in_norm_frequency": "Rows of W_E",
            "embeddings.out_norm_frequency": "Columns of W_U",
        },
        "Rank correlation of a vector's length with its token's count, over the tokens of the corpus. 1: the "
        "more frequent, the longer; -1: the more frequent, the shorter.",
    ),
    Group(
        "The output head in numbers",
        {
            "negative_gains.count": "Gains of ln_f below 0",
            "effective_rank.W_E": "Effective rank of W_E",
            "effective_rank.W_U": "Effective rank of W_U",
            "gradients.embed": "Gradient of W_E: tokens read",
            "gradients.head": "Gradient of W_U: all scores",
            "gradients.cosine": "Cosine of the two",
        },
        "A gain below 0 lets W_E G W_E^T score a token's own vector low. Effective rank: e to the entropy of "
        "the singular values. Gradients: norms for the last tokens of the corpus; a tied model adds the two.",
    ),
    Group(
        "Can the embedding replace the head of an untied model?",
        {
            "loss.own": "Loss with the model's own head",
            "loss.swapped": "Loss with x @ wte.T as the head",
            "loss.tokens": "Tokens predicted",
        },
        "Nats per token at the end of the corpus. A model that was trained on these tokens predicts them "
        "better; `tiedgpt train` holds out the last tenth of its text.",
    ),
)

LABEL_WIDTH = 35  # about; model names are broken to leave so much for the labels
MIN_NAME_WIDTH = 12  # but not to fewer characters than this


def print_reports(reports: list[dict[str, Any]]) -> None:
    """A column for each model. A row that no model has is left out, a group if none has its first row."""
    room = (shutil.get_terminal_size().columns - LABEL_WIDTH) // len(reports) - 2
    names = [textwrap.wrap(one_line(report["model"]), max(room, MIN_NAME_WIDTH)) for report in reports]
    lines: list[str | tuple[str, ...]] = [("", *parts) for parts in zip_longest(*names, fillvalue="")]
    for group in GROUPS:
        rows = [
            (f"  {label}", *(group.cell(look_up(report, place)) for report in reports))
            for place, label in group.rows.items()
        ]
        if set(rows[0][1:]) != {"-"}:
            there = (row for row in rows if set(row[1:]) != {"-"})
            lines += ["", group.heading, *there, f"  {group.reading}"]
    common.print_table(lines)
