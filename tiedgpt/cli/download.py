"""`tiedgpt download`: store a model's files on this machine."""

import argparse
from typing import Any

from ..checkpoints import hub
from ..checkpoints.names import MODELS
from ..errors import ArgumentError
from .common import add_command, note, printable

EXAMPLES = """\
  tiedgpt download gpt2
  tiedgpt download openai-community/gpt2
  tiedgpt download 124M --source openai
  TIEDGPT_WEIGHTS=/big/disk tiedgpt download gpt2-xl
"""
DESCRIPTION = """\
Download a model, verify it, and print its directory. An interrupted download continues where it stopped.

The directory is in $TIEDGPT_WEIGHTS, else in weights/ of a checkout, else in ~/.cache/tiedgpt. The commands
that read a model download it themselves if its name is given and it is not on this machine (tokenize
downloads only the vocabulary), so this command is needed only to choose the time or the source. params and
list download nothing.
"""


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "download", run, "Download a model and verify it.", EXAMPLES)
    parser.description = DESCRIPTION
    add = parser.add_argument
    name = f"{', '.join(MODELS)}, or a repository owner/name of the Hugging Face hub"
    add("name", nargs="?", metavar="MODEL", help=name)
    add("-m", "--model", metavar="MODEL", help="the model, if it is not given as the argument")
    source = (
        "hub: the files for transformers, from the Hugging Face hub (default); openai: the TensorFlow files "
        "that OpenAI released"
    )
    add("--source", choices=("hub", "openai"), default="hub", help=source)


def run(args: argparse.Namespace) -> None:
    if (args.name is None) == (args.model is None):
        raise ArgumentError("give one MODEL, as an argument or with --model (try: tiedgpt download -h)")
    name = args.model if args.name is None else args.name
    print(printable(str(hub.download(name, args.source, note))))
