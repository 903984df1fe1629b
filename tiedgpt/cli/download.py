"""`tiedgpt download`: a model's files onto this machine, once."""

import argparse
from typing import Any

from ..checkpoints import hub
from ..checkpoints.names import MODELS
from .common import add_command, note

EXAMPLES = """\
  tiedgpt download gpt2
  tiedgpt download openai-community/gpt2
  tiedgpt download 124M --source openai
  TIEDGPT_WEIGHTS=/big/disk tiedgpt download gpt2-xl
"""
DESCRIPTION = """\
Fetch a model, resumable and verified; print its directory.

It goes to $TIEDGPT_WEIGHTS, else weights/ of a checkout, else ~/.cache/tiedgpt. Every other command fetches
what --model names if it is not here (tokenize its vocabulary alone), so this one need not come first.
"""


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "download", run, "Fetch a model, resumable and verified.", EXAMPLES)
    parser.description = DESCRIPTION
    parser.add_argument(
        "name",
        metavar="NAME",
        help=f"{', '.join(MODELS)}, or a repository owner/name of the Hugging Face hub",
    )
    parser.add_argument(
        "--source",
        choices=("hub", "openai"),
        default="hub",
        help="hub: transformers' files, from the Hugging Face hub (default); openai: the TensorFlow files "
        "that OpenAI released",
    )


def run(args: argparse.Namespace) -> None:
    print(hub.download(args.name, args.source, note))
