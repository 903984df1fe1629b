"""Count the parameters of a model, tied and untied.

Downloads nothing. --vocab and --dim count only the token embedding and the output head, of that
size.

examples:
  tiedgpt params
  tiedgpt params gpt2-xl
  tiedgpt params --vocab 50000 --dim 4096 --total 7e9
"""

import argparse
import json
from dataclasses import asdict
from typing import Any

from ..checkpoints.formats import read_config
from ..checkpoints.known_models import known_config
from ..checkpoints.places import find_model
from ..errors import ArgumentError, one_line
from ..gpt2.config import Config
from ..gpt2.parameters import count_matrices, count_parameters
from . import options
from .output import fill
from .tables import Cells, print_table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_models(
        parser,
        "a known name, which needs no files, a directory or a .safetensors file (default: gpt2)",
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
        count_model(models[0] if models else "gpt2", args.json)
        return
    if models:
        raise ArgumentError(
            "MODEL cannot be given with --vocab, --dim or --total, which count two matrices alone"
        )
    if args.vocab is None or args.dim is None:
        raise ArgumentError("to count without a model, both --vocab and --dim are needed")
    count_two_matrices(args.vocab, args.dim, args.total, args.json)


def count_model(name: str, as_json: bool) -> None:
    """Print the parameters of a model, of each group and of all, with both heads."""
    config = known_config(name) or read_config(find_model(name))
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
    print_table(count_rows(counts, with_share=True))
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
    print_table(count_rows(counts, with_share=False))
    print()
    saved = counts["difference"]
    share = ""
    if total is not None:
        share = f", {100 * saved / total:.1f} % of a model of {short(total)}"
    print(fill(f"{totals(counts)}: tying saves {short(saved)}{share}."))


def count_rows(counts: dict[str, Any], with_share: bool) -> list[Cells]:
    """The rows of the table: each group of parameters, all of them, and their bytes."""
    tied = counts["tied"]
    untied = counts["untied"]
    rows = [["parameters", "tied", "untied", "difference"]]
    shares = ["of untied"]
    for label in [*tied["groups"], "total"]:
        if label == "total":
            tied_count = tied["total"]
            untied_count = untied["total"]
        else:
            tied_count = tied["groups"][label]
            untied_count = untied["groups"][label]
        difference = "0"
        if untied_count != tied_count:
            difference = f"{untied_count - tied_count:+,}"
        rows.append([label, f"{tied_count:,}", f"{untied_count:,}", difference])
        shares.append(f"{100 * untied_count / untied['total']:.1f} %")

    tied_mb = tied["bytes"] / 1e6
    untied_mb = untied["bytes"] / 1e6
    difference = f"{untied_mb - tied_mb:+,.1f} MB"
    rows.append(["float32 bytes", f"{tied_mb:,.1f} MB", f"{untied_mb:,.1f} MB", difference])
    shares.append("")
    if with_share:
        for row, share in zip(rows, shares, strict=True):
            row.append(share)
    return [tuple(row) for row in rows]


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
