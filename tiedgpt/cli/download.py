"""Download a model and verify it.

Print the model's directory. An interrupted download continues where it stopped.

The directory is in $TIEDGPT_WEIGHTS, else in weights/ of a checkout, else in ~/.cache/tiedgpt. The
commands that read a model download it themselves if it is named and not on this machine, so this
command is needed only to choose the time or the source. params and list download nothing; tokenize
gets only the vocabulary.

examples:
  tiedgpt download gpt2
  tiedgpt download 124M --source openai
  TIEDGPT_WEIGHTS=/big/disk tiedgpt download gpt2-xl
"""

import argparse

from ..checkpoints import hub
from ..checkpoints.known_models import MODELS
from ..errors import ArgumentError
from . import options
from .messages import note
from .output import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_models(
        parser, f"{', '.join(MODELS)}, or a repository owner/name of the Hugging Face hub"
    )
    parser.add_argument(
        "--source",
        choices=["hub", "openai"],
        default="hub",
        help="hub: the Hugging Face hub's files for transformers (default); openai: OpenAI's "
        "TensorFlow files",
    )


def run(args: argparse.Namespace) -> None:
    models = args.models or []
    if len(models) != 1:
        raise ArgumentError(f"expected one MODEL, got {len(models)} (try: tiedgpt download -h)")
    directory = hub.download(models[0], args.source, note)
    print(printable(str(directory)))
