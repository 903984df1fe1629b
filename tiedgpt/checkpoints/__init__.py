"""Models and tokenizers on disk: `load_model`, `load_tokenizer`, `save_model`, `open_model`.

checkpoint.py       what every format is opened as
formats.py          the formats that are read; here a new one is added
tensor_names.py     the names of tensors in the files of other programs
vocabulary.py       tokenizers: the files that are read
saving.py           models and tokenizers are written
places.py           names of models, and where they are on this machine
download.py         finds a model, or downloads it and verifies each file
reading.py, publishing.py, locks.py
                    open a file; write one that is complete or absent; keep two processes apart.
                    The other folders use these too.
"""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from ..errors import ArgumentError
from ..gpt2.model import GPT2
from ..gpt2.run import OnProgress
from ..gpt2.tokenizer import Tokenizer
from .checkpoint import Checkpoint
from .download import find_model
from .formats import open_checkpoint, read_config
from .places import Note, discard_note
from .saving import save_model
from .vocabulary import read_tokenizer

__all__ = [
    "find_model",
    "load",
    "load_model",
    "load_tokenizer",
    "open_model",
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

    A mapped file may be replaced by another (as save_model does, and most programs), and the model
    keeps the old weights. A file that is changed in place changes the model; one that is truncated
    ends the process with SIGBUS. Float16, bfloat16, TensorFlow's files, and floats that do not
    start at a multiple of 4 bytes (as in gpt2's file) are read, and so are all files on Windows,
    where no mapped file can be replaced.

    Raises CheckpointError for a source that cannot be found, downloaded or read, ArgumentError for
    another type of source and another `head`.
    """
    if source is None:  # the default model is for commands
        raise ArgumentError("a model must be a name or a path, got None")
    opened = open_model(source)
    return opened.checkpoint.load(head, copy=copy)


def load_tokenizer(source: str | Path) -> Tokenizer:
    """The tokenizer of a source, as for load_model. Only the tokenizer's files are downloaded.

    Raises what load_model raises, and TokenizerError for a vocabulary that contradicts itself.
    """
    if source is None:  # the default model is for commands
        raise ArgumentError("a model must be a name or a path, got None")
    _, path = find_model(source, weights=False)
    return read_tokenizer(path)


def load(
    path: Path, head: str | None = None, copy: bool = False, progress: OnProgress = None
) -> GPT2:
    """The model at a path that find_model gives. The other arguments are those of load_model.

    progress: is called with the number of bytes of each tensor that was read.
    """
    return open_checkpoint(path).load(head, progress, copy)


@dataclass
class Opened:
    """A model that was found and whose files were checked. Its weights are not read yet."""

    name: str  # as the user gave it, or the name of the default model
    checkpoint: Checkpoint

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer beside the checkpoint, which is read when it is first asked for.

        Raises CheckpointError if there is none, TokenizerError if it contradicts itself.
        """
        return read_tokenizer(self.checkpoint.path)

    @property
    def vocabulary(self) -> object:
        """A value that is equal for two models if each id is the same token in both."""
        tokenizer = self.tokenizer
        return tokenizer.merges, tokenizer.special_tokens, self.checkpoint.config.vocab_size


def open_model(source: str | Path | None, note: Note = discard_note) -> Opened:
    """Find a model, or download it if it is named and not on this machine, and check its files.

    source: as for load_model; None means the model that the environment variable TIEDGPT_MODEL
        names, else gpt2 if it is on this machine, else a shipped model.
    note: is called with what the user should know, such as the start of a download.

    Raises CheckpointError for a source that cannot be found, downloaded or read, ArgumentError for
    another type of source.
    """
    name, path = find_model(source, note)
    return Opened(name, open_checkpoint(path))
