"""`tiedgpt params`: what either head costs, for a model or for any vocabulary and width."""

import argparse
import json
from dataclasses import asdict
from typing import Any

from ..checkpoints import read_config
from ..checkpoints.names import find_model, known_config
from ..errors import ArgumentError
from ..parameters import count_parameters
from .common import add_command, add_json_option, print_table

EXAMPLES = """\
  tiedgpt params
  tiedgpt params --model gpt2-xl
  tiedgpt params --vocab 50000 --dim 4096 --total 7e9
"""


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "params", run, "Count parameters for both heads.", EXAMPLES)
    add = parser.add_argument
    add(
        "--model",
        metavar="MODEL",
        help="a name (no weights needed), a directory or a .safetensors file (default: gpt2)",
    )
    add(
        "--vocab",
        type=whole_number,
        metavar="V",
        help="calculator: tokens in the vocabulary, as 50000 or 50e3",
    )
    add("--dim", type=whole_number, metavar="D", help="calculator: width of the residual stream")
    add("--total", type=whole_number, metavar="N", help="calculator: parameters of the whole model, as 7e9")
    add_json_option(parser)


def run(args: argparse.Namespace) -> None:
    if args.vocab is None and args.dim is None and args.total is None:
        count_model(args.model or "gpt2", args.json)
        return
    if args.model is not None:
        raise ArgumentError("--model counts a model, --vocab and --dim calculate: give one or the other")
    if args.vocab is None or args.dim is None:
        raise ArgumentError("the calculator needs both --vocab and --dim")
    calculate(args.vocab, args.dim, args.total, args.json)


def whole_number(text: str) -> int:
    """A positive whole number, also as 7e9."""
    try:
        number: float = int(text)  # not by way of float, which is exact only up to 2**53
    except ValueError:
        try:
            number = float(text)
        except ValueError:
            number = 0
    if not 1 <= number <= 1e18 or number != int(number):
        raise argparse.ArgumentTypeError(f"expected a whole number of at least 1, got {text!r}")
    return int(number)


def count_model(name: str, as_json: bool) -> None:
    """Both heads' parameters, group by group."""
    config = known_config(name)
    if config is None:
        config = read_config(find_model(name))
    counts = count_parameters(config)
    if as_json:
        difference = counts["untied"]["total"] - counts["tied"]["total"]
        print(
            json.dumps(
                {
                    "model": name,
                    "config": {k: v for k, v in asdict(config).items() if k != "others"},
                    **counts,
                    "difference": difference,
                }
            )
        )
        return
    print(
        f"{name}: {config.head}; vocabulary {config.vocab_size:,}, context {config.n_ctx:,}, "
        f"width {config.n_embd:,}, {config.n_layer} layers, {config.n_head} heads\n"
    )
    print_counts(counts)
    tied, untied = counts["tied"]["total"], counts["untied"]["total"]
    print(
        f"\nTied {short(tied)}, untied {short(untied)}: tying saves {short(untied - tied)}, "
        f"{percent(untied - tied, untied)} of the untied model."
    )


def calculate(vocab: int, dim: int, total: int | None, as_json: bool) -> None:
    """What a vocabulary's matrices cost, alone and as a share of a model of `total` parameters."""
    matrix = vocab * dim
    if total is not None and total < matrix:
        raise ArgumentError(f"--total {total:,} is less than the token embedding alone, {matrix:,}")
    counts: dict[str, dict[str, Any]] = {
        head: {
            "groups": {"token embedding": matrix, "output head": head_size},
            "total": matrix + head_size,
            "bytes": 4 * (matrix + head_size),
        }
        for head, head_size in (("tied", 0), ("untied", matrix))
    }
    if as_json:
        saving = None if total is None else 100 * matrix / total
        given = {"vocab": vocab, "dim": dim, "total": total}
        print(json.dumps({**given, **counts, "difference": matrix, "saving_percent": saving}))
        return
    print(f"vocabulary {vocab:,}, width {dim:,}\n")
    print_counts(counts)
    of_total = f", {percent(matrix, total)} of a model of {short(total)}" if total else ""
    print(f"\nTied {short(matrix)}, untied {short(2 * matrix)}: tying saves {short(matrix)}{of_total}.")


def print_counts(counts: dict[str, dict[str, Any]]) -> None:
    """A row for each group, then the totals; each number beside its share of its column's total."""
    tied, untied = counts["tied"], counts["untied"]
    rows = [("parameters", "tied", "", "untied", "", "difference")]
    pairs = [(group, n, untied["groups"][group]) for group, n in tied["groups"].items()]
    for label, n, m in [*pairs, ("total", tied["total"], untied["total"])]:
        shares = percent(n, tied["total"]), percent(m, untied["total"])
        rows.append((label, f"{n:,}", shares[0], f"{m:,}", shares[1], f"{m - n:+,}" if m != n else "0"))
    n, m = tied["bytes"], untied["bytes"]
    rows.append(
        ("float32 bytes", f"{n / 1e6:,.1f} MB", "", f"{m / 1e6:,.1f} MB", "", f"{(m - n) / 1e6:+,.1f} MB")
    )
    print_table(rows)


def percent(part: int, whole: int) -> str:
    """A share as people write it.

    >>> percent(204_800_000, 7_000_000_000)
    '2.9 %'
    """
    return f"{100 * part / whole:.1f} %"


def short(n: int) -> str:
    """A count as people quote it.

    >>> short(204_800_000), short(7_000_000_000), short(65_536), short(96)
    ('204.8M', '7B', '65.5K', '96')
    """
    for size, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if n >= size:
            return f"{n / size:.1f}".removesuffix(".0") + letter
    return str(n)
