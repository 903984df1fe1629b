"""Download a model and verify it.

Print the model's directory. An interrupted download continues where it stopped.

The directory is in $TIEDGPT_WEIGHTS, else in weights/ of a checkout, else in ~/.cache/tiedgpt. The
commands that read a model download it themselves if it is named and not on this machine, so this
command is needed only to choose the time. list downloads nothing; tokenize and params get all files
but the weights.

examples:
  tiedgpt download gpt2
  TIEDGPT_WEIGHTS=/big/disk tiedgpt download gpt2-xl
"""

import argparse

from ..checkpoints.download import download
from ..checkpoints.model_names import MODELS
from ..errors import ArgumentError
from . import options
from .messages import note
from .output import printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_models(
        parser, f"{', '.join(MODELS)}, or a repository owner/name of the Hugging Face hub"
    )


def run(args: argparse.Namespace) -> None:
    models = args.models or []
    if len(models) != 1:
        raise ArgumentError(f"expected one MODEL, got {len(models)} (try: tiedgpt download -h)")
    directory = download(models[0], note)
    print(printable(str(directory)))
