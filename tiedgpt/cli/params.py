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
from ..gpt2.parameters import count_matrices, count_parameters
from . import common
from .terminal import fill, print_table


def add_arguments(parser: common.Parser) -> None:
    model = "a known name, which needs no files, a directory or a .safetensors file (default: gpt2)"
    common.add_models(parser, model)
    parser.add("--vocab V", "tokens in the vocabulary, as 50000 or 50e3", common.positive_int)
    parser.add("--dim D", "width of the residual stream", common.positive_int)
    parser.add("--total N", "parameters of the whole model, as 7e9", common.positive_int)
    parser.add_shared("--json")


def run(args: argparse.Namespace) -> None:
    models, vocab, dim, total, as_json = (
        args.models or [],
        args.vocab,
        args.dim,
        args.total,
        args.json,
    )
    of_model = vocab is dim is total is None
    if len(models) > 1:
        raise ArgumentError(f"expected one MODEL, got {len(models)}")
    if models and not of_model:
        raise ArgumentError(
            "MODEL excludes --vocab, --dim and --total, which count two matrices alone"
        )
    if of_model:
        (name,) = models or ["gpt2"]
        config = known_config(name) or read_config(find_model(name))
        fields = {field: value for field, value in asdict(config).items() if field != "others"}
        counts = count_parameters(config)
        difference = counts["untied"]["total"] - counts["tied"]["total"]
        document: dict[str, Any] = {
            "model": name,
            "config": fields,
            **counts,
            "difference": difference,
        }
        title = (
            f"{name}: {config.head}; vocabulary {config.vocab_size:,}, context {config.n_ctx:,}, "
        )
        title += f"width {config.n_embd:,}, {config.n_layer} layers, {config.n_head} heads"
        whole, what = counts["untied"]["total"], "the untied model"
    elif vocab is None or dim is None:
        raise ArgumentError("to count without a model, both --vocab and --dim are needed")
    else:
        document = {"vocab": vocab, "dim": dim, "total": total, **count_matrices(vocab, dim, total)}
        title = f"vocabulary {vocab:,}, width {dim:,}"
        whole, what = total, f"a model of {short(total)}" if total else ""
    if as_json:
        return print(json.dumps(document))
    print(fill(one_line(title)) + "\n")
    tied, untied, saved = document["tied"], document["untied"], document["difference"]
    rows = [("parameters", "tied", "untied", "difference", "of untied")]
    groups = [(group, n, untied["groups"][group]) for group, n in tied["groups"].items()]
    for label, n, m in [*groups, ("total", tied["total"], untied["total"])]:
        difference = f"{m - n:+,}" if m != n else "0"
        rows.append((label, f"{n:,}", f"{m:,}", difference, f"{100 * m / untied['total']:.1f} %"))
    n, m = tied["bytes"] / 1e6, untied["bytes"] / 1e6
    rows.append(("float32 bytes", f"{n:,.1f} MB", f"{m:,.1f} MB", f"{m - n:+,.1f} MB", ""))
    print_table(rows if of_model else [row[:-1] for row in rows])
    totals = f"Tied {short(tied['total'], '.4g')}, untied {short(untied['total'], '.4g')}"
    share = f", {100 * saved / whole:.1f} % of {what}" if whole else ""
    print(fill(f"\n{totals}: tying saves {short(saved)}{share}."))


def short(n: int, form: str = ".1f") -> str:
    """A count with a unit.

    >>> short(204_800_000), short(7_000_000_000), short(65_536), short(96), short(1_557_611_200, ".4g")
    ('204.8M', '7B', '65.5K', '96', '1.558B')
    """
    for size, letter in ((10**12, "T"), (10**9, "B"), (10**6, "M"), (10**3, "K")):
        if n >= size:
            return f"{n / size:{form}}".removesuffix(".0") + letter
    return str(n)
