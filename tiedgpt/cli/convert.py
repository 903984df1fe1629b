"""`tiedgpt untie` and `tiedgpt tie`: copy a checkpoint, with its own W_U or without."""

import argparse
from pathlib import Path
from typing import Any

from ..checkpoints import open_checkpoint, save_model
from ..checkpoints.vocabulary import read_tokenizer
from ..errors import ArgumentError, CheckpointError
from ..parameters import count_parameters
from ..training import INITS
from .common import add_command, count, find, load, note

UNTIE_EXAMPLES = """\
  tiedgpt untie gpt2 my-untied-gpt2
  tiedgpt untie gpt2 my-fresh-head --init random --seed 1
  tiedgpt untie --model gpt2 my-untied-gpt2
"""
TIE_EXAMPLES = """\
  tiedgpt tie my-untied-gpt2 my-tied-gpt2
"""


def add_parser(commands: Any) -> None:
    untie = add_command(commands, "untie", run, "Copy a tied model and give it its own W_U.", UNTIE_EXAMPLES)
    tie = add_command(commands, "tie", run, "Copy an untied model without its W_U.", TIE_EXAMPLES)
    for parser, head in ((untie, "untied"), (tie, "tied")):
        add = parser.add_argument
        model = "a name (downloaded if it is not on this machine), a directory or a .safetensors file"
        add("source", metavar="SRC", help=f"the model: {model}")
        destination = add("destination", metavar="DST", help="the directory to write, new or empty")
        destination.required = False  # with --model, the only argument is DST; argparse stores it as SRC
        add("-m", "--model", metavar="SRC", help="the model, if SRC is not given")
        parser.set_defaults(head=head)
    init = "the values of W_U: a copy of wte.T, with the same logits (default), random, or zeros"
    untie.add_argument("--init", choices=INITS, default="copy", help=init)
    untie.add_argument("--seed", type=count, default=0, metavar="S", help="for --init random (default: 0)")


def run(args: argparse.Namespace) -> None:
    paths = [path for path in (args.model, args.source, args.destination) if path is not None]
    if len(paths) != 2:
        raise ArgumentError(f"expected SRC and DST, got {' '.join(paths)}; SRC may be given with --model")
    source, destination = paths[0], Path(paths[1])
    checkpoint = open_checkpoint(find(source)[1])
    if checkpoint.config.head == args.head:
        raise ArgumentError(f"{source} is {args.head} already")
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise ArgumentError(f"{destination} exists and is not empty; choose a new directory")
    try:
        tokenizer = read_tokenizer(checkpoint.path)
    except CheckpointError as error:
        note(f"{error}; the copy is written without a tokenizer")
        tokenizer = None

    model = load(checkpoint, None)
    model = model.untie(args.init, args.seed) if args.head == "untied" else model.tie()
    save_model(model, tokenizer, destination)
    size = count_parameters(model.config)[model.config.head]
    numbers = f"{size['total']:,} parameters, {size['bytes'] / 1e6:,.1f} MB"
    note(f"wrote {destination}: {model.config.head}, {numbers}")
