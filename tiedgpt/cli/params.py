"""`tiedgpt params`: count the parameters of a model, tied and untied, or of two matrices of any size."""

import argparse
import json
from dataclasses import asdict
from typing import Any

from ..checkpoints import read_config
from ..checkpoints.names import find_model, known_config
from ..errors import ArgumentError, one_line
from ..parameters import count_matrices, count_parameters
from . import common
from .terminal import fill, print_table

EXAMPLES = """\
  tiedgpt params
  tiedgpt params gpt2-xl
  tiedgpt params --vocab 50000 --dim 4096 --total 7e9
"""
ABOUT = """\
Count the parameters of a model, tied and untied. Downloads nothing.

With --vocab and --dim, count only the token embedding and the output head of a model of that size."""


def add_parser(commands: dict[str, common.Parser]) -> None:
    summary = "Count the parameters with either head."
    parser = common.add_command(commands, "params", run, summary, EXAMPLES, ABOUT)
    model = "a known name, which needs no files, a directory or a .safetensors file (default: gpt2)"
    common.add_models(parser, model)
    add, size = parser.add_argument, common.positive_int
    add("--vocab", type=size, metavar="V", help="tokens in the vocabulary, as 50000 or 50e3")
    add("--dim", type=size, metavar="D", help="width of the residual stream")
    add("--total", type=size, metavar="N", help="parameters of the whole model, as 7e9")
    common.add_json_option(parser)


def run(args: argparse.Namespace) -> None:
    models, vocab, dim, total, as_json = args.models, args.vocab, args.dim, args.total, args.json
    if len(models) > 1:
        raise ArgumentError(f"expected one MODEL, got {len(models)}")
    if vocab is dim is total is None:
        count_model(models[0] if models else "gpt2", as_json)
    elif models:
        raise ArgumentError(
            "MODEL counts a model, --vocab and --dim count two matrices: give one or the other"
        )
    elif vocab is None or dim is None:
        raise ArgumentError("to count without a model, both --vocab and --dim are needed")
    else:
        report_matrices(vocab, dim, total, as_json)


def count_model(name: str, as_json: bool) -> None:
    """Report a model's parameters by group, with either head."""
    config = known_config(name) or read_config(find_model(name))
    counts = count_parameters(config)
    untied = counts["untied"]["total"]
    difference = untied - counts["tied"]["total"]
    if as_json:
        fields = {field: value for field, value in asdict(config).items() if field != "others"}
        print(json.dumps({"model": name, "config": fields, **counts, "difference": difference}))
        return
    size = f"vocabulary {config.vocab_size:,}, context {config.n_ctx:,}, width {config.n_embd:,}"
    layers = f"{config.n_layer} layers, {config.n_head} heads"
    print(fill(one_line(f"{name}: {config.head}; {size}, {layers}")) + "\n")
    print_counts(counts, shares=True, saving=f", {percent(difference, untied)} of the untied model")


def report_matrices(vocab: int, dim: int, total: int | None, as_json: bool) -> None:
    """Report the size of the matrices of a vocabulary, and their share of a model of `total` parameters."""
    counts = count_matrices(vocab, dim, total)
    matrix = counts["difference"]
    if as_json:
        print(json.dumps({"vocab": vocab, "dim": dim, "total": total, **counts}))
        return
    print(f"vocabulary {vocab:,}, width {dim:,}\n")
    share = f", {percent(matrix, total)} of a model of {short(total)}" if total else ""
    print_counts(counts, shares=False, saving=share)


def print_counts(counts: dict[str, dict[str, Any]], shares: bool, saving: str) -> None:
    """Print a row for each group and for the totals, with their shares of the untied total if `shares`."""
    tied, untied = counts["tied"], counts["untied"]
    rows = [("parameters", "tied", "untied", "difference", "of untied")]
    groups = [(group, n, untied["groups"][group]) for group, n in tied["groups"].items()]
    for label, n, m in [*groups, ("total", tied["total"], untied["total"])]:
        difference = f"{m - n:+,}" if m != n else "0"
        rows.append((label, f"{n:,}", f"{m:,}", difference, percent(m, untied["total"])))
    n, m = tied["bytes"] / 1e6, untied["bytes"] / 1e6
    rows.append(("float32 bytes", f"{n:,.1f} MB", f"{m:,.1f} MB", f"{m - n:+,.1f} MB", ""))
    print_table(rows if shares else [row[:-1] for row in rows])
    saved = untied["total"] - tied["total"]
    totals = f"Tied {short(tied['total'], saved)}, untied {short(untied['total'], saved)}"
    print(fill(f"\n{totals}: tying saves {short(saved)}{saving}."))


def percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %"


def short(n: int, difference: int | None = None) -> str:
    """A count with a unit and one decimal, or with more if `difference` would not be visible.

    >>> short(204_800_000), short(7_000_000_000), short(65_536), short(96)
    ('204.8M', '7B', '65.5K', '96')
    >>> short(1_557_611_200, 80_411_200), short(1_638_022_400, 80_411_200)
    ('1.558B', '1.638B')
    """
    for size, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if n >= size:
            decimals = 1
            while difference and 10 * size > difference * 10**decimals:
                decimals += 1
            return f"{n / size:.{decimals}f}".removesuffix(".0") + letter
    return str(n)
