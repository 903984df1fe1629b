"""Count the parameters of a model, tied and untied.

Downloads no weights. A model that is no GPT-2 is counted by the headers of its weights, or by
config.json where its kind is known. --vocab and --dim count only the token embedding and the output
head, of that size.

examples:
  tiedgpt params
  tiedgpt params gpt2-xl
  tiedgpt params EleutherAI/pythia-160m
  tiedgpt params --vocab 50000 --dim 4096 --total 7e9
"""

import argparse
import os
from collections.abc import Mapping
from typing import Any

from ..anymodel.headers import HubModel, open_any
from ..anymodel.ties import Report, size_report
from ..checkpoints import Opened
from ..checkpoints.places import DEFAULT_MODEL, known_config
from ..errors import ArgumentError, CheckpointError, one_line
from ..gpt2.parameters import count_matrices
from ..study.reports import parameters_report
from . import options
from .check import said
from .models import open_model
from .output import fill, megabytes, print_json
from .tables import Cells, percent, print_table, shown


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_models(
        parser,
        "a known name, which needs no files, a directory, a file of weights, a config.json or "
        "owner/name of the hub (default: the variable TIEDGPT_MODEL, else gpt2)",
    )
    parser.add_argument(
        "--vocab",
        metavar="V",
        type=options.whole_number,
        help="tokens in the vocabulary, as 50000 or 50k",
    )
    parser.add_argument(
        "--dim", metavar="D", type=options.whole_number, help="width of the residual stream"
    )
    parser.add_argument(
        "--total",
        metavar="N",
        type=options.whole_number,
        help="parameters of the whole model, tied or untied, as 7B",
    )
    options.add(parser, "json")


def run(args: argparse.Namespace) -> None:
    models = args.models or []
    if len(models) > 1:
        raise ArgumentError(f"expected one MODEL, got {len(models)}")
    if args.vocab is None and args.dim is None and args.total is None:
        count_model(models[0] if models else None, args.json)
        return
    if models:
        raise ArgumentError(
            "MODEL cannot be given with --vocab, --dim or --total, which count two matrices alone"
        )
    if args.vocab is None or args.dim is None:
        raise ArgumentError("to count without a model, both --vocab and --dim are needed")
    count_two_matrices(args.vocab, args.dim, args.total, args.json)


def count_model(source: str | None, as_json: bool) -> None:
    """Print the parameters of a model, of each group and of all, with both heads.

    Without a source: of the model that the environment names, else of gpt2.
    """
    name = source
    if name is None:
        name = os.environ.get(DEFAULT_MODEL) or "gpt2"
    config = known_config(name)
    if config is None:
        model = open_to_count(source, name)
        if model.said.get("model_type", "gpt2") != "gpt2":
            print_sizes(size_report(name, model), as_json)
            return
        if isinstance(model, HubModel):
            model = open_model(source, weights=False)
        config = model.config
        if model.has_weights:
            model.check_weights()
    report = parameters_report(config)
    if as_json:
        print_json({"model": name, **report})
        return
    title = (
        f"{name}: {config.head}; vocabulary {config.vocab_size:,}, context {config.n_ctx:,}, "
        f"width {config.n_embd:,}, {config.n_layer} layers, {config.n_head} heads"
    )
    print_counts(title, report, shares_of_models(report), with_shares=True)


def open_to_count(source: str | None, name: str) -> Opened | HubModel:
    """The model of a name, of any kind, here or on the hub. source: None if nobody gave the name.

    If it is nowhere, the errors are those of open_model, which name the variable of the name.
    """
    try:
        return open_any(name, weights=False)
    except CheckpointError:
        return open_model(source, weights=False)


def print_sizes(report: Report, as_json: bool) -> None:
    """Print the counts of a model that is no GPT-2."""
    if as_json:
        print_json(report)
        return
    V, D = report["shape"]
    kind = f"{report['flag']['kind']}, {said(report['flag'])}"
    title = f"{report['model']}: {kind}; vocabulary {V:,}, width {D:,}"
    print_counts(title, report, shares_of_models(report), with_shares=False)
    print(fill(f"Counted from {report['source']}."))


def shares_of_models(report: Mapping[str, Any]) -> str:
    """The end of the last line that print_counts prints, for the counts of a whole model."""
    less = percent(report["difference"] / report["untied"]["total"])
    more = percent(report["difference"] / report["tied"]["total"])
    return f", {less} of the untied model. Untied has {more} more"


def count_two_matrices(vocab: int, dim: int, total: int | None, as_json: bool) -> None:
    """Print the size of the embedding and the output head, and what a tie saves of `total`."""
    report = count_matrices(vocab, dim, total)
    if as_json:
        print_json({"vocab": vocab, "dim": dim, "total": total, **report})
        return
    share = ""
    if total is not None:
        of_untied = percent(report["difference"] / total)
        if_tied = percent(report["difference"] / (total + report["difference"]))
        size = short(total)
        share = f", {of_untied} of an untied model of {size} ({if_tied} if {size} is the tied one)"
    # Two matrices are not a model, so their shares of it are left out.
    print_counts(f"vocabulary {vocab:,}, width {dim:,}", report, share, with_shares=False)


def print_counts(title: str, report: Mapping[str, Any], share: str, with_shares: bool) -> None:
    """Print a title, a table of the counts, and what a tie saves.

    share: the end of the last line, such as ", 23.7% of the untied model". with_shares: whether the
    table has the column of shares.
    """
    print(fill(one_line(title)))
    print()
    rows = rows_of_counts(report)
    if not with_shares:
        rows = [row[:-1] for row in rows]
    print_table(rows)
    print()
    tied = short(report["tied"]["total"], "#.4g")
    untied = short(report["untied"]["total"], "#.4g")
    saved = short(report["difference"])
    print(fill(f"Tied {tied}, untied {untied}: tying saves {saved}{share}."))


def rows_of_counts(report: Mapping[str, Any]) -> list[Cells]:
    """The rows of the table: each group of parameters if it is known, the total, and the bytes."""
    tied = report["tied"]
    untied = report["untied"]
    counts = {}
    for group in tied.get("groups", ()):
        counts[group] = (tied["groups"][group], untied["groups"][group])
    counts["total"] = (tied["total"], untied["total"])
    rows: list[Cells] = [("parameters", "tied", "untied", "difference", "of untied")]
    for label, (by_tied, by_untied) in counts.items():
        sizes = [shown("parameters", size) for size in (by_tied, by_untied)]
        difference = shown("parameters", by_untied - by_tied, "+")
        rows.append((label, *sizes, difference, percent(by_untied / untied["total"])))
    for label, size in (("float32 bytes", 4), ("bfloat16 bytes", 2)):
        sizes = [megabytes(size * report[head]["total"]) for head in ("tied", "untied")]
        rows.append((label, *sizes, f"+{megabytes(size * report['difference'])}", ""))
    return rows


def short(n: int, form: str = ".1f") -> str:
    """A count with a unit.

    >>> short(204_800_000), short(7_000_000_000), short(999_950), short(96)
    ('204.8M', '7.0B', '1.0M', '96')
    >>> short(163_037_184, "#.4g")
    '163.0M'
    """
    if n < 1000:
        return str(n)
    size = float(n)
    for letter in "KMBT":
        size /= 1000
        rounded = f"{size:{form}}"
        text = f"{rounded}{letter}"
        if float(rounded) < 1000:
            break
    return text
