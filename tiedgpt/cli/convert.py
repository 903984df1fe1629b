"""`tiedgpt untie` and `tiedgpt tie`: write a checkpoint with the other kind of head."""

import argparse
import sys
from pathlib import Path
from typing import Any

from ..checkpoints import open_checkpoint, save_model
from ..checkpoints.vocabulary import read_tokenizer
from ..errors import ArgumentError, CheckpointError
from ..parameters import count_parameters
from .common import add_command, find, load, note

UNTIE_EXAMPLES = """\
  tiedgpt untie gpt2 my-untied-gpt2
  tiedgpt untie gpt2 my-fresh-head --init random --seed 1
"""
TIE_EXAMPLES = """\
  tiedgpt tie my-untied-gpt2 my-tied-gpt2
"""


def add_parser(commands: Any) -> None:
    untie = add_command(commands, "untie", run, "Write a checkpoint with a W_U of its own.", UNTIE_EXAMPLES)
    tie = add_command(commands, "tie", run, "Write a checkpoint that unembeds by wte.T.", TIE_EXAMPLES)
    for parser, head in ((untie, "untied"), (tie, "tied")):
        parser.add_argument("source", metavar="SRC", help="the model: a name, directory or .safetensors file")
        parser.add_argument("destination", metavar="DST", type=Path, help="a directory, new or empty")
        parser.set_defaults(head=head)
    untie.add_argument(
        "--init",
        choices=("copy", "random", "zeros"),
        default="copy",
        help="what W_U starts as: a copy of wte.T, which changes no logit (default), random, or zeros",
    )
    untie.add_argument("--seed", type=int, default=0, metavar="S", help="of --init random (default: 0)")


def run(args: argparse.Namespace) -> None:
    checkpoint = open_checkpoint(find(args.source)[1])
    if checkpoint.config.head == args.head:
        raise ArgumentError(f"{args.source} is {args.head} already")
    destination = args.destination
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise ArgumentError(f"{destination} exists and is not empty; choose a new directory")
    try:
        tokenizer = read_tokenizer(checkpoint.path)
    except CheckpointError as error:
        note(f"{error}; the copy has none either")
        tokenizer = None

    model = load(checkpoint, None)
    model = model.untie(args.init, args.seed) if args.head == "untied" else model.tie()
    save_model(model, tokenizer, destination)
    count = count_parameters(model.config)[model.config.head]
    print(
        f"wrote {destination}: {model.config.head}, {count['total']:,} parameters, "
        f"{count['bytes'] / 1e6:,.1f} MB",
        file=sys.stderr,
    )
