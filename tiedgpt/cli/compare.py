"""Compare another GPT-2 with this one, and name its mistake.

Find the activation of another GPT-2 that differs first from this model's, and the known mistake
that gives the same numbers. Save its activations, and the token ids that it read, with
numpy.savez("mine.npz", ids=ids, **activations), as safetensors, or as JSON: under the names of
tiedgpt's tape, or of transformers, nanoGPT, TransformerLens or llm.c. If there are `targets`,
arrays under names of parameters are gradients. The exit code is 1 if anything differs, or if
nothing could be compared. What was not compared is said first.

examples:
  tiedgpt compare --model shakespeare-tied mine.npz
  tiedgpt compare --model gpt2 --head untied directory/ --json
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..checkpoints import find_model
from ..comparison.compare import NothingCompared, compare
from ..comparison.recording import KINDS, read_arrays
from ..errors import ArgumentError
from . import models, options
from .messages import ProgressBar, note


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help=f"a {KINDS}")
    options.add(parser, "head", "model", "json")
    parser.add_argument(
        "--trials",
        metavar="N",
        type=options.whole_number,
        help="make at most N trials of known mistakes, alone and together, the likeliest first "
        "(default: as many as take some minutes)",
    )


def run(args: argparse.Namespace) -> None:
    arrays = read_arrays(Path(args.file))
    ids = arrays.pop("ids", None)
    targets = arrays.pop("targets", None)
    if ids is None:
        raise ArgumentError(
            f"{args.file} has no `ids`: add the token ids that the other model read"
        )
    if not arrays:
        raise ArgumentError(f"{args.file} has no activations beside `ids`")

    _, path = find_model(args.model, note)
    model = models.load(path, args.head)
    try:
        # Each trial reports how many there are, so a total of 1 lasts until the first is done.
        with ProgressBar("trying known mistakes", total=1, unit="mistake") as bar:

            def show_trial(number: int, total: int) -> None:
                bar.add(1, total)

            report = compare(model, arrays, ids, targets, progress=show_trial, trials=args.trials)
    except NothingCompared as error:
        document = {"same": None, "rows": [], "not_compared": [str(error)]}
        print(to_json(document) if args.json else error)
        raise SystemExit(1) from None
    if args.json:
        print(to_json({"same": report.same, **asdict(report)}))
    else:
        print(report)
    if report.same is False:
        raise SystemExit(1)


def to_json(document: dict[str, Any]) -> str:
    """A document as JSON, with null for the numbers that JSON lacks, NaN and Infinity."""
    with_nan = json.dumps(document)
    return json.dumps(json.loads(with_nan, parse_constant=lambda _: None))
