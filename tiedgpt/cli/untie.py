"""Copy a tied model with an output matrix of its own, W_U.

The copy is written to a new directory, as a checkpoint that transformers reads too. The tokenizer's
files are copied as they are. If the copy has other logits, a note says what that does to the loss
of five sonnets.

examples:
  tiedgpt untie gpt2 my-untied-gpt2
  tiedgpt untie gpt2 my-fresh-head --init random --seed 1
"""

import argparse

from ..atomic import check_new
from ..checkpoints import Opened
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
    opened = models.open_model(source)
    model = load_to_untie(opened, args.init)
    copy = model
    if model.config.tied:  # if not, it has a W_U that its config.json does not mention
        copy = model.untie(args.init or "copy", seed)
    write_copy(copy, opened, destination)
    note_losses(model, copy, opened)


def load_to_untie(opened: Opened, init: str | None) -> GPT2:
    """The model to untie: tied, or with a W_U of its own that its config.json does not mention.

    init: None keeps such a W_U. Raises ArgumentError if it is untied already.
    """
    if opened.config.tied:
        return models.load(opened, "tied")
    if not opened.has_head:
        note(f"config.json of {opened.name} says untied, but there is no W_U: it begins with wte.T")
        return models.load(opened, "tied")
    if not opened.contradicts_config:
        raise ArgumentError(f"{opened.name} is untied already")
    if init is not None:
        return models.load(opened, "tied")
    note(
        f"config.json of {opened.name} says tied, but the file has a W_U that is not wte.T: it is "
        "kept"
    )
    return models.load(opened, "untied")
