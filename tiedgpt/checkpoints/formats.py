"""The formats of checkpoints on disk, and how each is recognised.

    huggingface.py    config.json and model.safetensors, or several files with an index
    tensorflow.py     hparams.json and model.ckpt.*, as OpenAI released GPT-2

A new format is a module with two functions, `open_directory(path) -> Checkpoint` and one that reads
the Config; both are called here. It must refuse every damaged file with one line (test_fuzz.py).
"""

import os.path
from contextlib import suppress
from pathlib import Path

from ..errors import CheckpointError
from ..gpt2.config import Config
from . import huggingface, tensorflow
from .checkpoint import Checkpoint
from .unread_formats import check_format


def open_checkpoint(path: Path) -> Checkpoint:
    """Check the files of a checkpoint. Its weights are not read. Raises CheckpointError.

    A file in a format that is not read is named (unread_formats.py).
    """
    check_format(path)
    if is_openais(path):
        return tensorflow.open_directory(path)
    return huggingface.open_directory(path)


def read_config(path: Path) -> Config:
    """The Config of the checkpoint at a path, with the head that is loaded from it.

    Weights that are missing or damaged are no error here. Raises CheckpointError for a
    configuration that cannot be read.
    """
    check_format(path)
    if is_openais(path):
        return tensorflow.read_hparams(path)
    config = huggingface.read_config_json(path)
    # A W_U in the file may differ from wte. The head is then untied, whatever config.json says.
    with suppress(CheckpointError):
        return huggingface.open_directory(path).config
    return config


def is_openais(path: Path) -> bool:
    """Whether a directory holds TensorFlow's files, as OpenAI released them."""
    has_hparams = os.path.isfile(path / tensorflow.HPARAMS)
    has_config = os.path.isfile(path / "config.json")
    return has_hparams and not has_config
