"""Compare another GPT-2 with this one, and name its mistake.

FILE has its activations, or its logits alone. Find the activation that differs first from this
model's, and the known mistake that gives the same numbers. Save the activations, and the token ids
that were read, with numpy.savez("mine.npz", ids=ids, **activations), as safetensors, or as JSON:
under the names of tiedgpt's tape, or of transformers, nanoGPT, TransformerLens or llm.c. If there
are `targets`, arrays under names of parameters are gradients. The exit code is 1 if anything
differs, or if nothing could be compared. What was not compared is said first.

--tokens FILE has the tokens that it appended to a prompt, greedily: {"prompt": TEXT, "text": TEXT},
or "prompt_ids" and "ids" with lists. Exit code 0: they are this model's; 1: a defect; 3: each
departure is a tie that rounding breaks.

--vectors FILE has its answers to the reference values for other languages, under the names of the
cases: .json, .npz or .safetensors. Exit code 0: none of them is wrong.

examples:
  tiedgpt compare --model shakespeare-tied mine.npz
  tiedgpt compare --model gpt2 --head untied directory/ --json
  tiedgpt compare --model gpt2 --tokens mine.json --precision bfloat16
  tiedgpt compare --vectors mine.json
"""

import argparse
from dataclasses import asdict
from pathlib import Path

from ..comparison.compare import NothingCompared, compare
from ..comparison.recording import KINDS, read_arrays
from ..errors import ArgumentError
from . import compare_tokens, compare_vectors, models, options
from .messages import ProgressBar
from .output import print_json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", nargs="?", help=f"a {KINDS}")
    parser.add_argument(
        "--tokens", metavar="FILE", help="a prompt and its greedy continuation, JSON"
    )
    parser.add_argument("--vectors", metavar="FILE", help="answers to the reference values")
    parser.add_argument(
        "--precision",
        metavar="P",
        help="with --tokens, that of the other GPT-2: float32, float16 or bfloat16 (default: "
        "float32)",
    )
    options.add(parser, "head", "model", "json")
    parser.add_argument(
        "--trials",
        metavar="N",
        type=options.whole_number,
        help="make at most N trials of known mistakes, alone and together, the likeliest first "
        "(default: as many as take some minutes)",
    )


def run(args: argparse.Namespace) -> None:
    given = [each for each in (args.file, args.tokens, args.vectors) if each is not None]
    if len(given) != 1:
        raise ArgumentError(
            "expected one of FILE, --tokens FILE and --vectors FILE (try: tiedgpt compare -h)"
        )
    if args.precision is not None and args.tokens is None:
        raise ArgumentError("--precision goes with --tokens: arrays are compared in float32")
    if given == [""]:  # Path("") is the working directory
        raise ArgumentError("'' is not the name of a file")
    if args.tokens is not None:
        compare_tokens.run(args)
        return
    if args.vectors is not None:
        if args.model is not None or args.head is not None:
            raise ArgumentError("--vectors has models of its own: leave out --model and --head")
        if args.trials is not None:
            raise ArgumentError("--vectors plants all known mistakes: leave out --trials")
        compare_vectors.run(args)
        return
    run_arrays(args)


def run_arrays(args: argparse.Namespace) -> None:
    """Compare the arrays of a file."""
    arrays = read_arrays(Path(args.file))
    ids = arrays.pop("ids", None)
    targets = arrays.pop("targets", None)
    if ids is None:
        raise ArgumentError(
            f"{args.file} has no `ids`: add the token ids that the other model read"
        )
    if not arrays:
        raise ArgumentError(f"{args.file} has no activations beside `ids`")

    model = models.load(models.open_model(args.model), args.head)
    try:
        # Each trial reports how many there are, so a total of 1 lasts until the first is done.
        with ProgressBar("trying known mistakes", total=1, unit="mistake") as bar:

            def show_trial(number: int, total: int) -> None:
                bar.add(1, total)

            report = compare(model, arrays, ids, targets, progress=show_trial, trials=args.trials)
    except NothingCompared as error:
        document = {"same": None, "rows": [], "not_compared": [str(error)]}
        if args.json:
            print_json(document)
        else:
            print(error)
        raise SystemExit(1) from None
    if args.json:
        print_json({"same": report.same, **asdict(report)})
    else:
        print(report)
    if report.same is False:
        raise SystemExit(1)
