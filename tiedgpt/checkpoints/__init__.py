"""Models and tokenizers on disk: `load_model`, `load_tokenizer`, `save_model`, `from_state_dict`.

The way of a checkpoint: a name is found, the model at the path is opened, and `Opened` gives what
a reader asks it for.

model_names.py      names of models, and where they are on this machine
download.py         finds a model, or downloads it and verifies each file
opened.py           a model that is opened: config, tensors, head, tokenizer, files to copy
names.py            how programs name and lay out the tensors: one table
state_dicts.py      a model from another program's arrays
files.py            the files of weights: their tensors, and what is said of files that are not read
safetensors.py      the format of most weights
pickles.py          PyTorch's files, read without running what is in them
tensorflow.py       OpenAI's own files
tensors.py          a tensor of a file, whose values are not read yet
vocabulary.py       a tokenizer from its files
writing.py          checkpoints as transformers has them, and tokenizers, written
json_files.py       text files and JSON, the small files of a folder
"""

from pathlib import Path

from ..gpt2.model import GPT2
from ..gpt2.tokenizer import Tokenizer
from .download import find_model
from .opened import Opened
from .state_dicts import from_state_dict
from .writing import save_model

__all__ = [
    "Opened",
    "find_model",
    "from_state_dict",
    "load_model",
    "load_tokenizer",
    "save_model",
]


def load_model(source: str | Path, head: str | None = None, copy: bool = False) -> GPT2:
    """Load a model, in float32, from a name, hub repository, directory or file of weights.

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
    name, path = find_model(source)
    return Opened(path, name).model(head, copy)


def load_tokenizer(source: str | Path) -> Tokenizer:
    """The tokenizer of a source, as for load_model. Only the tokenizer's files are downloaded.

    Raises CheckpointError for a source that cannot be found, downloaded or read, ArgumentError for
    another type of source, and TokenizerError for a vocabulary that contradicts itself.
    """
    name, path = find_model(source, weights=False)
    return Opened(path, name).tokenizer
