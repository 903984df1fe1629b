"""Copy a tied model with an output matrix of its own, W_U.

The copy is written to a new directory, as a checkpoint that transformers reads too. The tokenizer's
files are copied as they are. If the copy has other logits, a note says what that does to the loss
of five sonnets.

examples:
  tiedgpt untie gpt2 my-untied-gpt2
  tiedgpt untie gpt2 my-fresh-head --init random --seed 1
"""

import argparse
from pathlib import Path

from ..atomic import check_new
from ..checkpoints import find_model, has_unembedding, read_config
from ..checkpoints.files import read_said_config
from ..errors import COUNT, ArgumentError
from ..gpt2.model import GPT2
from . import models, options
from .convert import add_paths, note_losses, source_and_destination, write_copy
from .messages import note


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_paths(parser)
    parser.add_argument(
        "--init",
        choices=["copy", "random", "zeros"],
        help="the values of W_U: a copy of wte.T, with the same logits (default), random, or zeros",
    )
    parser.add_argument(
        "--seed",
        metavar="S",
        type=options.whole_number,
        default=0,
        help="the seed of --init random (default: 0)",
    )


def run(args: argparse.Namespace) -> None:
    source, destination = source_and_destination(args)
    seed = COUNT.check("seed", args.seed)
    check_new(destination)
    _, path = find_model(source, note)
    model = load_to_untie(path, source, args.init)
    copy = model
    if model.config.tied:  # if not, it has a W_U that its config.json does not mention
        copy = model.untie(args.init or "copy", seed)
    write_copy(copy, path, destination)
    note_losses(model, copy, path)


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
