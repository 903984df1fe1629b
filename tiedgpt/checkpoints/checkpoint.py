"""Checkpoint: the files of a model, checked, with the weights not read yet.

Each format (formats.py) makes a Checkpoint of its files. The names and shapes of its tensors are
those of `parameter_shapes`, and its `load` reads the weights.
"""

import mmap
import os
import warnings
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from ..errors import CheckpointError, TiedGPTWarning, short_repr
from ..gpt2.config import Config
from ..gpt2.model import GPT2
from ..gpt2.parameters import Parameters, parameter_shapes
from ..gpt2.run import OnProgress
from .reading import FileState, file_state
from .safetensors import STORED, Tensor, map_file, replaced
from .tensor_names import HEAD


@dataclass
class Checkpoint:
    """A checkpoint whose files were checked: its configuration and the places of its tensors."""

    path: Path
    config: Config  # with the head that is loaded if no other is asked for
    tensors: dict[str, Tensor]
    # Whether config.json says tied, but the files contain a W_U that is not wte.T.
    contradicts_tied: bool = False
    file_states: dict[Path, FileState] = field(init=False)

    def __post_init__(self) -> None:
        files = {tensor.file for tensor in self.tensors.values()}
        self.file_states = {file: file_state(file) for file in files}

    @property
    def has_own_unembedding(self) -> bool:
        """Whether the files contain a W_U, used or not."""
        return HEAD in self.tensors

    @property
    def lacks_unembedding(self) -> bool:
        """Whether config.json says untied, but the files contain no W_U."""
        return not self.config.tied and not self.has_own_unembedding

    def load(
        self, head: str | None = None, progress: OnProgress = None, copy: bool = False
    ) -> GPT2:
        """The model, in float32, as `load_model` loads it.

        head: "tied", "untied", or None for that of `config`. progress: is called with the number of
            bytes of each tensor that was read. copy: True reads the values; False maps the files
            where possible.
        Raises ArgumentError for another `head`, CheckpointError if config.json says untied and
        there is no W_U, or if the files changed since they were checked.
        """
        if head is None:
            self._check_has_head()
            if self.contradicts_tied:
                # The warning names the line that called load_model, which called this method.
                warnings.warn(self._contradiction(), TiedGPTWarning, stacklevel=3)
            head = self.config.head
        config = self.config.with_head(head)
        if head == "untied" and not self.has_own_unembedding:
            # There is no W_U to read, so the tied model is read, and untied with a copy of wte.
            tied_model = self._read_model(config.with_head("tied"), progress, copy)
            return tied_model.untie("copy")
        return self._read_model(config, progress, copy)

    def _read_model(self, config: Config, progress: OnProgress, copy: bool) -> GPT2:
        """The model of a configuration, all of whose parameters are in the files."""
        reader = TensorReader(self.tensors, copy)
        parameters = reader.read_all(parameter_shapes(config), progress)
        for file, state in self.file_states.items():
            if file_state(file) != state:  # some parameters may be from the file before
                raise replaced(file)
        return GPT2(config, parameters)

    def _check_has_head(self) -> None:
        """Raise CheckpointError if the head that config.json names is not in the files."""
        if self.lacks_unembedding:
            raise CheckpointError(
                f'{self.path}: config.json says "tie_word_embeddings": false but there is no '
                f'{HEAD}; load it with head "tied", or "untied" to start from a copy of wte.T'
            )

    def _contradiction(self) -> str:
        """The warning of a checkpoint that says tied and has another W_U."""
        return (
            f"{self.path}: config.json says tied, but the file has another {HEAD}, which is used: "
            "untied, as transformers 5 reads it; transformers 4 reads it as tied, as head "
            '"tied" does here; for untied everywhere, write "tie_word_embeddings": false into '
            "config.json"
        )


class TensorReader:
    """It reads tensors as float32 arrays: views of the mapped file where that is possible."""

    def __init__(self, tensors: dict[str, Tensor], copy: bool) -> None:
        self.tensors = tensors
        # The tensors that become views of a mapped file. The values of the others are not aligned
        # float32 numbers in the file, or have a checksum to be tested, so they are read.
        self.mapped: set[Tensor] = set()
        is_windows = os.name == "nt"  # where a mapped file could not be replaced
        if not copy and not is_windows:
            self.mapped = {tensor for tensor in tensors.values() if tensor.can_be_mapped}
        self.memory: dict[Path, mmap.mmap] = {}  # each file that has mapped tensors
        for file in {tensor.file for tensor in self.mapped}:
            self.memory[file] = map_file(file, self.mapped)

    def read(self, name: str) -> np.ndarray:
        """The values of a tensor. Raises CheckpointError."""
        tensor = self.tensors[name]
        if tensor in self.mapped:
            return tensor.view(self.memory[tensor.file])
        return tensor.read()

    def read_all(self, names: Collection[str], progress: OnProgress) -> Parameters:
        """The values of several tensors, by name. `progress` is called with the bytes of each."""
        parameters = {}
        # Most of the time of reading is spent on new memory, which comes page by page. Two threads
        # get it faster.
        pool = ThreadPoolExecutor(2)
        try:
            for name, array in zip(names, pool.map(self.read, names), strict=True):
                parameters[name] = array
                if progress:
                    progress(array.nbytes)
        finally:
            pool.shutdown(cancel_futures=True)  # after Ctrl-C, tensors not begun are not read
        return parameters


def check_tensor_shapes(
    tensors: dict[str, Tensor], config: Config, listing: Path, describing: str
) -> None:
    """Check that the tensors are the parameters of a configuration, with a W_U or without.

    listing: the file that lists the tensors. describing: the name of the configuration's file.
    Raises CheckpointError.
    """
    # These are the parameters with a W_U. Its shape is checked even if it is not used, and it may
    # be missing.
    expected = parameter_shapes(config.with_head("untied"))
    described = f"the {config.n_layer}-layer GPT-2 that {describing} describes"
    missing = [name for name in expected if name not in tensors and name != HEAD]
    if missing:
        raise CheckpointError(
            f"{listing}: {missing[0]} of {described} is missing ({len(missing)} in all)"
        )
    for name, tensor in tensors.items():
        where = f"{listing}: tensor {short_repr(tensor.name)}"
        if name not in expected:
            raise CheckpointError(f"{where} is not a parameter of {described}")
        if tensor.shape != expected[name]:
            raise CheckpointError(
                f"{where} has shape {short_repr(list(tensor.shape))}; {describing} makes it "
                f"{list(expected[name])}"
            )
        if tensor.dtype not in STORED:
            raise CheckpointError(f"{where} is {tensor.dtype}; expected one of {', '.join(STORED)}")
