"""Copy a model with its own W_U (untie), or without it (tie).

untie gives a tied model an output matrix of its own. tie drops that of an untied model. The copy is
a checkpoint that transformers reads too.

If W_U is not wte.T, the predictions of the copy differ. tie then says by how much, and needs
--force.

examples:
  tiedgpt untie gpt2 my-untied-gpt2
  tiedgpt untie gpt2 my-fresh-head --init random --seed 1
  tiedgpt tie my-untied-gpt2 my-tied-gpt2
"""

import argparse
from pathlib import Path

import numpy as np

from ..checkpoints import save_model
from ..checkpoints.formats import open_checkpoint
from ..checkpoints.locks import LOCK
from ..checkpoints.publishing import lock_directory
from ..checkpoints.vocabulary import read_tokenizer
from ..errors import ArgumentError, CheckpointError
from ..gpt2.model import GPT2
from ..gpt2.parameters import parameter_count
from ..inference.generation import generate
from ..study.report import losses
from . import common
from .terminal import note

MEASURED = 64  # tokens for the loss with and without W_U


def add_arguments(parser: common.Parser) -> None:
    paths = "the model (a name, a directory or a .safetensors file), and the new directory to write"
    parser.add_argument("paths", nargs="*", metavar="SRC DST", help=paths)
    parser.add("-m --model SRC", "the model, if SRC is not given")
    init = "untie: the values of W_U: a copy of wte.T, with the same logits (default), random, or zeros"
    parser.add("--init {copy,random,zeros}", init)
    parser.add("--seed S", "untie: the seed of --init random (default: 0)", common.count)
    parser.add("--force", "tie: drop a W_U that is not wte.T")


def run(args: argparse.Namespace) -> None:
    head = "tied" if args.command == "tie" else "untied"
    paths = [path for path in (args.model, *args.paths) if path is not None]
    init, seed, force = args.init, args.seed, args.force
    if len(paths) != 2:
        raise ArgumentError(f"expected SRC and DST, got {' '.join(paths) or 'neither'}")
    if head == "tied" and (init, seed) != (None, None):
        raise ArgumentError("--init and --seed are for untie: a tied model has no W_U of its own")
    if head == "untied" and force:
        raise ArgumentError("--force is for tie: untie drops nothing")
    source, destination = paths[0], Path(paths[1])
    checkpoint = open_checkpoint(common.find(source)[1])
    if checkpoint.config.head == head:
        raise ArgumentError(f"{source} is {head} already")
    with lock_directory(destination, advice="; choose a new directory"):
        if any(path.name != LOCK for path in destination.iterdir()):
            raise ArgumentError(f"{destination} exists and is not empty; choose a new directory")
        try:
            tokenizer = read_tokenizer(checkpoint.path)
        except CheckpointError as error:
            note(f"{error}; the copy is written without a tokenizer")
            tokenizer = None
        model = common.load(checkpoint, None)
        if head == "tied" and not force:
            check_loss(model, source)
        model = model.tie() if head == "tied" else model.untie(init or "copy", seed or 0)
        save_model(model, tokenizer, destination)
    size = parameter_count(model.config)
    note(f"wrote {destination}: {head}, {size.total:,} parameters, {size.bytes / 1e6:,.1f} MB")


def check_loss(model: GPT2, source: str) -> None:
    """Raise ArgumentError if the model predicts otherwise without its W_U. Measured on text of its
    own."""
    if np.array_equal(model.W_U, model.W_E.T):
        return
    text = [0, *generate(model, [0], MEASURED, seed=0)]
    effect = ""
    if found := losses(model, np.array(text)):
        change = f"{found['own']:.2f} to {found['swapped']:.2f} nats per token"
        effect = (
            f": the loss of {found['tokens']} tokens that the model generates goes from {change}"
        )
    raise ArgumentError(
        f"the W_U of {source} is not wte.T{effect}; to drop it all the same, add --force"
    )
