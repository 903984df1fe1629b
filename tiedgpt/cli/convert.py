"""Copy a model with its own W_U (untie), or without it (tie).

untie gives a tied model an output matrix of its own. tie drops that of an untied model. The copy is
written to a new directory, as a checkpoint that transformers reads too. The tokenizer's files are
copied as they are.

If the copy has other logits, a note says what that does to the loss of five sonnets.

examples:
  tiedgpt untie gpt2 my-untied-gpt2
  tiedgpt untie gpt2 my-fresh-head --init random --seed 1
  tiedgpt tie my-untied-gpt2 my-tied-gpt2
"""

import argparse
from pathlib import Path

import numpy as np

from ..atomic import check_new, new_directory
from ..checkpoints import find_model, has_unembedding, read_config, read_tokenizer
from ..checkpoints.files import copied_files, read_said_config, write_checkpoint
from ..checkpoints.places import weight_folders
from ..errors import COUNT, ArgumentError, TiedGPTError
from ..evaluation import score
from ..gpt2.checks import check_logits
from ..gpt2.model import GPT2
from ..gpt2.parameters import parameter_count
from . import models, options
from .messages import note

SONNETS = "sonnets.txt"  # in the folder of the shipped models


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
        type=options.whole_number,
        help="untie: the seed of --init random (default: 0)",
    )


def run(args: argparse.Namespace) -> None:
    source, destination = source_and_destination(args)
    if args.command == "tie" and (args.init is not None or args.seed is not None):
        raise ArgumentError("--init and --seed are for untie: a tied model has no W_U of its own")
    seed = COUNT.check("seed", args.seed or 0)
    check_new(destination)
    _, path = find_model(source, note)
    if args.command == "tie":
        model = load_untied(path, source)
        copy = model.tie()
    else:
        model = load_to_untie(path, source, args.init)
        copy = model
        if model.config.tied:  # if not, it has a W_U that its config.json does not mention
            copy = model.untie(args.init or "copy", seed)
    write_copy(copy, path, destination)
    if not np.array_equal(copy.W_U, model.W_U):
        note_losses(model, copy, path)


def load_untied(path: Path, name: str) -> GPT2:
    """The model to tie. Raises ArgumentError if it is tied already."""
    if read_config(path).tied:
        raise ArgumentError(f"{name} is tied already")
    return models.load(path, "untied")


def load_to_untie(path: Path, name: str, init: str | None) -> GPT2:
    """The model to untie: tied, or with a W_U of its own that its config.json does not mention.

    init: None keeps such a W_U. Raises ArgumentError if it is untied already.
    """
    if read_config(path).tied:
        return models.load(path, "tied")
    if not has_unembedding(path):
        note(f"config.json of {name} says untied, but there is no W_U: it begins with wte.T")
        return models.load(path, "tied")
    if not read_said_config(path).tied:
        raise ArgumentError(f"{name} is untied already")
    if init is not None:
        return models.load(path, "tied")
    note(f"config.json of {name} says tied, but the file has a W_U that is not wte.T: it is kept")
    return models.load(path, "untied")


def write_copy(model: GPT2, source: Path, destination: Path) -> None:
    """Write a changed model, with the files of its source's tokenizer as they are.

    Raises TiedGPTError if the model's logits are not finite.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        check_logits(model([0]))
    with new_directory(destination) as directory:
        write_checkpoint(directory, model, copied_files(source, note))
    head = model.config.head
    size = parameter_count(model.config)
    note(f"wrote {destination}: {head}, {size.total:,} parameters, {size.bytes / 1e6:,.1f} MB")


def note_losses(model: GPT2, copy: GPT2, source: Path) -> None:
    """Print the losses of the shipped sonnets before and after, if there is a tokenizer."""
    try:
        tokenizer = read_tokenizer(source)
        ids = tokenizer.encode(read_sonnets())
        before = score(model, tokenizer, ids)
        after = score(copy, tokenizer, ids)
    except TiedGPTError as error:
        note(f"what the copy does to the loss of a text is not measured: {error}")
        return
    note(
        f"the loss of {SONNETS} ({before.tokens} tokens) goes from {before.nll:.2f} to "
        f"{after.nll:.2f} nats per token"
    )


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
