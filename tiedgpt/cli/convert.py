"""What the commands untie, tie and resize share: SRC and DST, and the copy that they write."""

import argparse
from pathlib import Path

import numpy as np

from ..atomic import new_directory
from ..checkpoints import Opened
from ..checkpoints.model_names import weight_folders
from ..checkpoints.writing import write_checkpoint
from ..errors import ArgumentError, TiedGPTError
from ..evaluation import score
from ..gpt2.checks import check_logits
from ..gpt2.model import GPT2
from ..gpt2.parameters import parameter_count
from .messages import note

SONNETS = "sonnets.txt"  # in the folder of the shipped models


def add_paths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        metavar="SRC DST",
        nargs="*",
        help="the model (a name, a directory or a file of weights), and the new directory to write",
    )
    parser.add_argument("-m", "--model", metavar="SRC", help="the model, if SRC is not given")


def write_copy(model: GPT2, source: Opened, destination: Path) -> None:
    """Write a changed model, with the files of its source's tokenizer as they are.

    Raises TiedGPTError if the model's logits are not finite.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        check_logits(model([0]))
    with new_directory(destination) as directory:
        write_checkpoint(directory, model, source.copied_files(note))
    head = model.config.head
    size = parameter_count(model.config)
    note(f"wrote {destination}: {head}, {size.total:,} parameters, {size.bytes / 1e6:,.1f} MB")


def note_losses(model: GPT2, copy: GPT2, source: Opened) -> None:
    """Print the losses of the shipped sonnets before and after, if the copy has other logits.

    Without a tokenizer they are not measured.
    """
    if np.array_equal(copy.W_U, model.W_U):
        return
    try:
        tokenizer = source.tokenizer
        ids = tokenizer.encode(read_sonnets())
        before = score(model, tokenizer, ids)
        after = score(copy, tokenizer, ids)
    except TiedGPTError as error:
        note(f"what the copy does to the loss of a text is not measured: {error}")
        return
    note(f"the loss of {SONNETS} goes from {before.nll:.2f} to {after.nll:.2f} nats per token")


def read_sonnets() -> str:
    """The text that comes with the shipped models. Raises ArgumentError without it."""
    for folder in weight_folders():
        if (folder / SONNETS).is_file():
            return (folder / SONNETS).read_text(encoding="utf-8")
    raise ArgumentError(f"{SONNETS} is missing from tiedgpt: install tiedgpt again")


def source_and_destination(args: argparse.Namespace) -> tuple[str, Path]:
    """The model, and the directory of the copy. Raises ArgumentError if one is missing."""
    paths = list(args.paths)
    if args.model is not None:
        paths.insert(0, args.model)
    if len(paths) != 2:
        raise ArgumentError(f"expected SRC and DST, got {' '.join(paths) or 'neither'}")
    return paths[0], Path(paths[1])
