"""Models and tokenizers on disk: `load_model`, `load_tokenizer`, `save_model`."""

from pathlib import Path

from ..gpt2.model import GPT2
from ..gpt2.tokenizer import Tokenizer
from .formats import open_checkpoint
from .hub import find_or_download
from .saving import save_model
from .vocabulary import read_tokenizer

__all__ = ["load_model", "load_tokenizer", "save_model"]


def load_model(source: str | Path, head: str | None = None, copy: bool = False) -> GPT2:
    """Load a model, in float32, from a name, hub repository, directory or .safetensors file.

    source: "gpt2", "124M" or another known name; "owner/name" of a repository; or a path. A known
        name or a repository that is not on this machine is downloaded.
    head: "tied", "untied", or None for the checkpoint's own. "untied" starts W_U as a copy of wte.T
        if the checkpoint has no W_U; "tied" drops the checkpoint's W_U.
    copy: True reads the file into memory. By default the parameters are the mapped file itself:
        processes share its memory, and an array that is written to changes in this process only,
        never in the file.

    A mapped file may be replaced by another (as save_model does, and most programs), and the model
    keeps the old weights. A file that is changed in place changes the model; one that is truncated
    ends the process with SIGBUS. Float16, bfloat16, TensorFlow's files, and floats that do not
    start at a multiple of 4 bytes (as in gpt2's file) are read, and so are all files on Windows,
    where no mapped file can be replaced.

    Raises CheckpointError for a source that cannot be found, downloaded or read, ArgumentError for
    another type of source and another `head`.
    """
    return open_checkpoint(find_or_download(source)).load(head, copy=copy)


def load_tokenizer(source: str | Path) -> Tokenizer:
    """The tokenizer of a source, as for load_model. Only the tokenizer's files are downloaded.

    Raises what load_model raises, and TokenizerError for a vocabulary that contradicts itself.
    """
    return read_tokenizer(find_or_download(source, only_tokenizer=True))
