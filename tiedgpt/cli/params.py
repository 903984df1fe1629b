"""Count the parameters of a model, tied and untied.

Downloads no weights. --vocab and --dim count only the token embedding and the output head, of that
size.

examples:
  tiedgpt params
  tiedgpt params gpt2-xl
  tiedgpt params --vocab 50000 --dim 4096 --total 7e9
"""

import argparse
import json
import os
from dataclasses import asdict
from typing import Any

from ..checkpoints import find_model, read_config
from ..checkpoints.places import DEFAULT_MODEL, known_config
from ..errors import ArgumentError, one_line
from ..gpt2.config import Config
from ..gpt2.parameters import count_matrices, count_parameters
from . import options
from .messages import note
from .output import fill
from .tables import Cells, print_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_models(
        parser,
        "a known name, which needs no files, a directory or a .safetensors file (default: the "
        "variable TIEDGPT_MODEL, else gpt2)",
    )
    parser.add_argument(
        "--vocab",
        metavar="V",
        type=options.positive_int,
        help="tokens in the vocabulary, as 50000 or 50e3",
    )
    parser.add_argument(
        "--dim", metavar="D", type=options.positive_int, help="width of the residual stream"
    )
    parser.add_argument(
        "--total",
        metavar="N",
        type=options.positive_int,
        help="parameters of the whole model, as 7e9",
    )
    options.add_json(parser)


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
        _, path = find_model(source, note, weights=False)
        config = read_config(path)
    counts = count_parameters(config)
    untied_total = counts["untied"]["total"]
    saved = untied_total - counts["tied"]["total"]
    if as_json:
        document = {"model": name, "config": fields_of(config), **counts, "difference": saved}
        print(json.dumps(document))
        return

    title = (
        f"{name}: {config.head}; vocabulary {config.vocab_size:,}, context {config.n_ctx:,}, "
        f"width {config.n_embd:,}, {config.n_layer} layers, {config.n_head} heads"
    )
    print(fill(one_line(title)))
    print()
    print_table(count_rows(counts))
    print()
    share = f"{100 * saved / untied_total:.1f} % of the untied model"
    print(fill(f"{totals(counts)}: tying saves {short(saved)}, {share}."))


def fields_of(config: Config) -> dict[str, Any]:
    """The fields of config.json that describe the model, without those of other programs."""
    fields = asdict(config)
    del fields["others"]
    return fields


def count_two_matrices(vocab: int, dim: int, total: int | None, as_json: bool) -> None:
    """Print the size of the embedding and the output head, and what a tie saves of `total`."""
    counts = count_matrices(vocab, dim, total)
    if as_json:
        print(json.dumps({"vocab": vocab, "dim": dim, "total": total, **counts}))
        return

    print(fill(f"vocabulary {vocab:,}, width {dim:,}"))
    print()
    # Two matrices are not a model, so their shares of it are left out.
    print_table([row[:-1] for row in count_rows(counts)])
    print()
    saved = counts["difference"]
    share = ""
    if total is not None:
        share = f", {100 * saved / total:.1f} % of a model of {short(total)}"
    print(fill(f"{totals(counts)}: tying saves {short(saved)}{share}."))


def count_rows(counts: dict[str, Any]) -> list[Cells]:
    """The rows of the table: each group of parameters, all of them, and their bytes."""
    tied = counts["tied"]
    untied = counts["untied"]
    whole = untied["total"]
    rows: list[Cells] = [("parameters", "tied", "untied", "difference", "of untied")]
    for group in tied["groups"]:
        rows.append(count_row(group, tied["groups"][group], untied["groups"][group], whole))
    rows.append(count_row("total", tied["total"], untied["total"], whole))

    tied_mb = tied["bytes"] / 1e6
    untied_mb = untied["bytes"] / 1e6
    difference = f"{untied_mb - tied_mb:+,.1f} MB"
    rows.append(("float32 bytes", f"{tied_mb:,.1f} MB", f"{untied_mb:,.1f} MB", difference, ""))
    return rows


def count_row(label: str, tied: int, untied: int, whole: int) -> Cells:
    """Two counts, their difference, and the share of the second in the `whole` untied model."""
    difference = "0" if untied == tied else f"{untied - tied:+,}"
    return label, f"{tied:,}", f"{untied:,}", difference, f"{100 * untied / whole:.1f} %"


def totals(counts: dict[str, Any]) -> str:
    """The beginning of the last sentence."""
    tied = short(counts["tied"]["total"], ".4g")
    untied = short(counts["untied"]["total"], ".4g")
    return f"Tied {tied}, untied {untied}"


def short(n: int, form: str = ".1f") -> str:
    """A count with a unit.

    >>> short(204_800_000), short(7_000_000_000), short(65_536), short(96)
    ('204.8M', '7B', '65.5K', '96')
    >>> short(1_557_611_200, ".4g")
    '1.558B'
    """
    for size, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if n >= size:
            return f"{n / size:{form}}".removesuffix(".0") + letter
    return str(n)
