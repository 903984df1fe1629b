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
from . import common
from .terminal import note, printable


def add_arguments(parser: common.Parser) -> None:
    common.add_models(
        parser, f"{', '.join(MODELS)}, or a repository owner/name of the Hugging Face hub"
    )
    source = "hub: the Hugging Face hub's files for transformers (default); openai: OpenAI's TensorFlow files"
    parser.add("--source {hub,openai}", source, default="hub")


def run(args: argparse.Namespace) -> None:
    models, source = args.models or [], args.source
    if len(models) != 1:
        raise ArgumentError(f"expected one MODEL, got {len(models)} (try: tiedgpt download -h)")
    print(printable(str(hub.download(models[0], source, note))))
