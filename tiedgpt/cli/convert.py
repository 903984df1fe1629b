"""Copy a model with its own W_U (untie), or without it (tie).

untie gives a tied model an output matrix of its own. tie drops that of an untied model. The copy is
a checkpoint that transformers reads too.

If W_U is not wte.T, the predictions of the copy differ. tie then says by how much, and needs
--force; so does untie with --init if the file holds such a W_U already. The tokenizer's files are
copied as they are.

examples:
  tiedgpt untie gpt2 my-untied-gpt2
  tiedgpt untie gpt2 my-fresh-head --init random --seed 1
  tiedgpt tie my-untied-gpt2 my-tied-gpt2
"""

import argparse
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np

from ..checkpoints import open_model
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.conversion import tied_model, untied_model
from ..checkpoints.locks import LOCK
from ..checkpoints.publishing import StagedFiles, lock_directory
from ..checkpoints.saving import copied_files, write_model
from ..errors import ArgumentError
from ..generation import generate
from ..gpt2.checks import check_logits
from ..gpt2.model import GPT2
from ..gpt2.parameters import parameter_count
from ..study.report import losses
from . import models, options
from .messages import note

MEASURED = 64  # tokens for the loss with and without W_U


def add_paths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        metavar="SRC DST",
        nargs="*",
        help="the model (a name, a directory or a .safetensors file), and the new directory to "
        "write",
    )
    parser.add_argument("-m", "--model", metavar="SRC", help="the model, if SRC is not given")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_paths(parser)
    parser.add_argument(
        "--init",
        choices=["copy", "random", "zeros"],
        help="untie: the values of W_U: a copy of wte.T, with the same logits (default), random, "
        "or zeros",
    )
    parser.add_argument(
        "--seed",
        metavar="S",
        type=options.count,
        help="untie: the seed of --init random (default: 0)",
    )
    parser.add_argument("--force", action="store_true", help="drop a W_U that is not wte.T")


def run(args: argparse.Namespace) -> None:
    source, destination = source_and_destination(args)
    check_flags(args)
    opened = open_model(source, note)
    with new_directory(destination):
        model = convert(opened.checkpoint, source, args)
        write_copy(model, opened.checkpoint, destination)


@contextmanager
def new_directory(directory: Path) -> Iterator[None]:
    """Lock the directory of a copy. Raises ArgumentError if something is in it."""
    with lock_directory(directory, advice="; choose a new directory"):
        if any(path.name != LOCK for path in directory.iterdir()):
            raise ArgumentError(f"{directory} exists and is not empty; choose a new directory")
        yield


def write_copy(model: GPT2, checkpoint: Checkpoint, directory: Path) -> None:
    """Write a changed model, with the files of its checkpoint's tokenizer as they are.

    Raises TiedGPTError if the model's logits are not finite.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        check_logits(model([0]))
    others = copied_files(checkpoint.path, note)
    with StagedFiles(directory) as files:
        write_model(files, model, others)
    head = model.config.head
    size = parameter_count(model.config)
    note(f"wrote {directory}: {head}, {size.total:,} parameters, {size.bytes / 1e6:,.1f} MB")


def convert(checkpoint: Checkpoint, source: str, args: argparse.Namespace) -> GPT2:
    """The model of the copy. Raises ArgumentError where a W_U would be thrown away."""
    load = partial(models.load, checkpoint.path)  # which head is loaded depends on the command
    if args.command == "tie":
        return tied_model(
            checkpoint, source, load, force=args.force, effect=effect_of_tying, note=note
        )
    return untied_model(
        checkpoint,
        source,
        load,
        init=args.init,
        seed=args.seed or 0,
        force=args.force,
        note=note,
    )


def source_and_destination(args: argparse.Namespace) -> tuple[str, Path]:
    """The model, and the directory of the copy. Raises ArgumentError if one is missing."""
    paths = list(args.paths)
    if args.model is not None:
        paths.insert(0, args.model)
    if len(paths) != 2:
        raise ArgumentError(f"expected SRC and DST, got {' '.join(paths) or 'neither'}")
    return paths[0], Path(paths[1])


def check_flags(args: argparse.Namespace) -> None:
    """Raise ArgumentError for a flag of the other command."""
    if args.command == "tie" and (args.init is not None or args.seed is not None):
        raise ArgumentError("--init and --seed are for untie: a tied model has no W_U of its own")
    if args.command == "untie" and args.force and args.init is None:
        raise ArgumentError("--force is for tie, or with --init: untie alone drops nothing")


def effect_of_tying(model: GPT2) -> str:
    """What happens to the loss of a text that the model generates, if it loses its W_U.

    "" if the loss cannot be measured.
    """
    # Generation needs a token to begin with, and every model has a token 0.
    text = [0, *generate(model, [0], MEASURED, seed=0)]
    measured = losses(model, np.array(text))
    if measured is None:
        return ""
    before = measured["own"]
    after = measured["swapped"]  # with wte.T in place of W_U
    return (
        f": the loss of {measured['tokens']} tokens that the model generates goes from "
        f"{before:.2f} to {after:.2f} nats per token"
    )
