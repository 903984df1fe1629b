"""Every form a GPT-2 takes on disk: `load_model`, `load_tokenizer`, `save_model`."""

import os.path
from pathlib import Path

from ..config import Config
from ..model import GPT2
from ..tokenizer import Tokenizer
from . import huggingface, tensorflow
from .hub import find_or_download
from .huggingface import Checkpoint, save_model
from .vocabulary import read_tokenizer

__all__ = ["load_model", "load_tokenizer", "save_model"]


def load_model(source: str | Path, head: str | None = None) -> GPT2:
    """The model of a name ("gpt2", "124M"), hub repository, directory or .safetensors file, in float32.

    head: "tied", "untied" or None, as the checkpoint says. "untied" on a checkpoint without a W_U of its
    own starts W_U as a copy of wte.T; "tied" on one that has it drops it. A name whose files are not on
    this machine is downloaded. Raises CheckpointError.
    """
    return open_checkpoint(find_or_download(source)).load(head)


def load_tokenizer(source: str | Path) -> Tokenizer:
    """The tokenizer beside that checkpoint; of a name that is not here, its files alone are downloaded.

    Raises CheckpointError or TokenizerError.
    """
    return read_tokenizer(find_or_download(source, only_tokenizer=True))


def open_checkpoint(path: Path) -> Checkpoint:
    """Check the checkpoint at a path, Hugging Face's or OpenAI's. Raises CheckpointError."""
    return tensorflow.open_tensorflow(path) if _is_openais(path) else huggingface.open_checkpoint(path)


def read_config(path: Path) -> Config:
    """The Config of the checkpoint at a path. Raises CheckpointError."""
    return tensorflow.read_hparams(path) if _is_openais(path) else huggingface.read_config(path)


def _is_openais(path: Path) -> bool:
    return os.path.isfile(path / tensorflow.HPARAMS) and not os.path.isfile(path / "config.json")
