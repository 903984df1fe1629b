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

import numpy as np

from ..checkpoints.formats import open_checkpoint
from ..comparison.compare import compare
from ..errors import ArgumentError
from . import common
from .terminal import ProgressBar


def add_arguments(parser: common.Parser) -> None:
    parser.add("FILE", "an .npz, or a directory of .npy files")
    parser.add_shared("--head {tied,untied}", "-m --model MODEL", "--json")


def run(args: argparse.Namespace) -> None:
    file, name, head, as_json = args.file, args.model, args.head, args.json
    arrays = read_arrays(Path(file))
    ids, targets = arrays.pop("ids", None), arrays.pop("targets", None)
    if ids is None:
        raise ArgumentError(f"{file} has no `ids`: add the token ids that the other model read")
    if not arrays:
        raise ArgumentError(f"{file} has no activations beside `ids`")
    model = common.load(open_checkpoint(common.find(name)[1]), head)
    with ProgressBar("trying known mistakes", 1, "mistake") as progress:
        report = compare(model, arrays, ids, targets, lambda _, total: progress.add(1, total))
    if as_json:
        document = json.dumps({"same": report.first is None, **asdict(report)})
        # NaN and Infinity, which are not JSON, become null.
        print(json.dumps(json.loads(document, parse_constant=lambda _: None)))
    else:
        print(report)
    if report.first:
        raise SystemExit(1)


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz, or of a directory's .npy files, under their names. Pickles are never
    read."""
    try:
        if path.is_dir():
            arrays = {
                file.stem: np.load(file, allow_pickle=False) for file in sorted(path.glob("*.npy"))
            }
        else:
            with path.open("rb") as file, np.lib.npyio.NpzFile(file, allow_pickle=False) as archive:
                arrays = dict(archive)
    except OSError as error:
        raise ArgumentError(f"{path}: {error.strerror or error}") from error
    except (
        Exception
    ) as error:  # of a damaged file, one of a dozen kinds, SyntaxError and MemoryError too
        raise ArgumentError(
            f"{path} is no .npz file or directory of .npy files: {error!s:.100}"
        ) from error
    if not arrays:
        raise ArgumentError(f"{path}: there are no arrays in it")
    return arrays
