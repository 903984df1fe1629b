"""Every form a GPT-2 takes on disk: `load_model`, `load_tokenizer`, `save_model`."""

from pathlib import Path

from ..model import GPT2
from ..tokenizer import Tokenizer
from .huggingface import open_checkpoint, save_model
from .names import find_model
from .vocabulary import read_tokenizer

__all__ = ["load_model", "load_tokenizer", "save_model"]


def load_model(source: str | Path, head: str | None = None) -> GPT2:
    """The model of a name ("gpt2", "124M"), hub repository, directory or .safetensors file, in float32.

    head: "tied", "untied" or None, as the checkpoint says. "untied" on a checkpoint without a W_U of its
    own starts W_U as a copy of wte.T; "tied" on one that has it drops it. Raises CheckpointError.
    """
    return open_checkpoint(find_model(source)).load(head)


def load_tokenizer(source: str | Path) -> Tokenizer:
    """The tokenizer beside that checkpoint. Raises CheckpointError or TokenizerError."""
    return read_tokenizer(find_model(source))
