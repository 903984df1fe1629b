"""Copy an untied model without its output matrix, W_U.

The copy computes logits with the token embedding, wte.T. It is written to a new directory, as a
checkpoint that transformers reads too. The tokenizer's files are copied as they are. If the copy
has other logits, a note says what that does to the loss of five sonnets.

examples:
  tiedgpt tie my-untied-gpt2 my-tied-gpt2
"""

import argparse

from ..atomic import check_new
from ..errors import ArgumentError
from . import models
from .convert import add_paths, note_losses, source_and_destination, write_copy


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_paths(parser)


def run(args: argparse.Namespace) -> None:
    source, destination = source_and_destination(args)
    check_new(destination)
    opened = models.open_model(source)
    if opened.config.tied:
        raise ArgumentError(f"{source} is tied already")
    model = models.load(opened, "untied")
    copy = model.tie()
    write_copy(copy, opened, destination)
    note_losses(model, copy, opened)
