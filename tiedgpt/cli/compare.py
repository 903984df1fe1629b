"""Find the mistake in another GPT-2.

Find the activation of another GPT-2 that differs first from this model's, and the known mistake
that gives the same numbers. Save its activations, and the token ids that it read, with
numpy.savez("mine.npz", ids=ids, **activations): under the names of tiedgpt's tape, or of
transformers, nanoGPT, TransformerLens or llm.c. If there are `targets`, arrays under names of
parameters are gradients. The exit code is 1 if anything differs.

examples:
  tiedgpt compare --model shakespeare-tied mine.npz
  tiedgpt compare --model gpt2 --head untied directory/ --json
"""

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoints import open_model
from ..comparison.compare import compare
from ..errors import ArgumentError, short_repr
from . import models, options
from .messages import ProgressBar, note


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", help="an .npz, or a directory of .npy files")
    options.add_head(parser)
    options.add_model(parser)
    options.add_json(parser)
    parser.add_argument(
        "--trials",
        metavar="N",
        type=options.count,
        help="try at most N known mistakes, those that take little time first (default: as many as "
        "take some minutes)",
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

    model = models.load(open_model(args.model, note).checkpoint, args.head)
    # How many trials there are is known when the first one is done.
    with ProgressBar("trying known mistakes", total=1, unit="mistake") as bar:

        def show_trial(number: int, total: int) -> None:
            bar.add(1, total)

        report = compare(model, arrays, ids, targets, progress=show_trial, trials=args.trials)
    if args.json:
        print(to_json({"same": report.first is None, **asdict(report)}))
    else:
        print(report)
    if report.first:
        raise SystemExit(1)


def to_json(document: dict[str, Any]) -> str:
    """A document as JSON, with null for the numbers that JSON lacks, NaN and Infinity."""
    with_nan = json.dumps(document)
    return json.dumps(json.loads(with_nan, parse_constant=lambda _: None))


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz, or of a directory's .npy files, under their names.

    Pickles, which can run code, are never read. Raises ArgumentError.
    """
    arrays: dict[str, np.ndarray] = {}
    name = ""
    try:
        if path.is_dir():
            for file in sorted(path.glob("*.npy")):
                name = file.stem
                arrays[name] = np.load(file, allow_pickle=False)
        else:
            # np.load takes a file that is not an .npz for an .npy or a pickle. This refuses it.
            with (
                path.open("rb") as stream,
                np.lib.npyio.NpzFile(stream, allow_pickle=False) as archive,
            ):
                for name in archive.files:
                    arrays[name] = archive[name]
    except OSError as error:
        raise ArgumentError(f"{path}: {error.strerror or error}") from error
    except Exception as error:  # a damaged file has a dozen kinds, SyntaxError among them
        if "allow_pickle" in str(error):  # NumPy's message about an array of objects
            raise ArgumentError(
                f"{path}: {short_repr(name)} is not an array of numbers but of Python objects, "
                "which are not read because that can run code"
            ) from error
        raise ArgumentError(
            f"{path} is not an .npz file or a directory of .npy files: {error!s:.100}"
        ) from error
    if not arrays:
        raise ArgumentError(f"{path}: there are no arrays in it")
    return arrays
