"""Models and tokenizers on disk: `load_model`, `load_tokenizer`, `save_model`.

files.py            checkpoints of transformers are read and written
safetensors.py      the format of their weights
tensorflow.py       OpenAI's own files are read
vocabulary.py       tokenizers: the files that are read
reading.py          text files and JSON are read
hub.py              finds a model on this machine, or downloads it: fetching.py. Each file is
                    verified: verification.py

`find_model` gives the path of a model, and `load` the model at a path.
"""

import os
from pathlib import Path

from ..errors import ArgumentError
from ..gpt2.model import GPT2
from ..gpt2.tokenizer import Tokenizer
from .checkpoint import Opened
from .files import has_unembedding, load, read_config, save_model
from .formats import open_checkpoint
from .hub import find_or_download
from .messages import Note, discard_note
from .places import DEFAULT_MODEL, find_default, named_in_errors
from .vocabulary import read_tokenizer

__all__ = [
    "find_model",
    "has_unembedding",
    "load",
    "load_model",
    "load_tokenizer",
    "read_config",
    "read_tokenizer",
    "save_model",
]


def load_model(source: str | Path, head: str | None = None, copy: bool = False) -> GPT2:
    """Load a model, in float32, from a name, hub repository, directory or .safetensors file.

    source: "gpt2", "124M" or another known name; "owner/name" of a repository; or a path. A known
        name or a repository that is not on this machine is downloaded.
    head: "tied", "untied", or None for the checkpoint's own. "untied" starts W_U as a copy of wte.T
        if the checkpoint has no W_U; "tied" drops the checkpoint's W_U.
    copy: True reads the file into memory. By default the parameters are the mapped file itself:
        processes share its memory, and an array that is written to changes in this process only,
        never in the file.

    A mapped file may be replaced by another (as most programs do), and the model keeps the old
    weights. A file that is changed in place changes the model; one that is truncated ends the
    process with SIGBUS. Other types than float32, floats that do not start at a multiple of 4 bytes
    (as in gpt2's file), and all files on Windows, where no mapped file can be replaced, are read.

    Raises CheckpointError for a source that cannot be found, downloaded or read, ArgumentError for
    another type of source and another `head`.
    """
    if source is None:  # the default model is for commands
        raise ArgumentError("a model must be a name or a path, got None")
    _, path = find_model(source)
    return load(path, head, copy)


def load_tokenizer(source: str | Path) -> Tokenizer:
    """The tokenizer of a source, as for load_model. Only the tokenizer's files are downloaded.

    Raises what load_model raises, and TokenizerError for a vocabulary that contradicts itself.
    """
    if source is None:  # the default model is for commands
        raise ArgumentError("a model must be a name or a path, got None")
    _, path = find_model(source, only_tokenizer=True)
    return read_tokenizer(path)


def find_model(
    source: str | Path | None, note: Note = discard_note, only_tokenizer: bool = False
) -> tuple[str, Path]:
    """The name and the path of a source, which is downloaded if it is named and not here.

    None is the default model: the one in TIEDGPT_MODEL, else one that is on this machine.
    """
    if source is not None:
        path = find_or_download(source, note, only_tokenizer)
        return str(source), path

    named = os.environ.get(DEFAULT_MODEL, "")
    if named != "":
        with named_in_errors(DEFAULT_MODEL):
            return named, find_or_download(named, note, only_tokenizer)
    name, path = find_default()
    if name != "gpt2":
        note(
            f"gpt2 is not on this machine, so this is {name}, a small model that comes with "
            "tiedgpt; for gpt2, fetch it with `tiedgpt download gpt2`"
        )
    return name, path


# For callers of before, until they are converted


def open_model(source, note=discard_note):  # type: ignore
    name, path = find_model(source, note)
    return Opened(name, open_checkpoint(path))


def open_tokenizer(source, note=discard_note):  # type: ignore
    _, path = find_model(source, note, only_tokenizer=True)
    return read_tokenizer(path)
