"""Read and write checkpoints of Hugging Face's transformers: config.json, model.safetensors, a
vocabulary.

The weights are in one file, or in several with an index. Tensor names may have the prefix
`transformer.`. Some files also contain the causal mask of each layer, which is not a parameter and
is ignored. A Checkpoint has the names and shapes of `parameter_shapes`; they are checked before any
values are read.
"""

import json
import os
import re
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..errors import ArgumentError, CheckpointError, ConfigError, TiedGPTWarning, short_repr
from ..gpt2.config import Config
from ..gpt2.model import GPT2
from ..gpt2.parameters import parameter_shapes
from ..gpt2.run import OnProgress
from ..gpt2.tokenizer import Tokenizer
from . import safetensors
from .files import StagedFiles, directory_of, file_state, read_json
from .safetensors import Tensor
from .vocabulary import ADDED, vocabulary_files

PREFIX = "transformer."
MASK_BUFFER = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")
SHARD = re.compile(
    r"[A-Za-z0-9][\w.-]{,199}\.safetensors", re.ASCII
)  # the name of one: without a directory
HEAD = "lm_head.weight"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLE = f"pytorch_model.bin is a pickle, which can run any code, so it is not read; save it as {WEIGHTS}"
NO_WEIGHTS = f"neither {WEIGHTS} nor {INDEX} ({PICKLE}, as save_pretrained does)"


@dataclass
class Checkpoint:
    """A checkpoint whose files were checked: its configuration and the places of its tensors."""

    path: Path
    config: Config  # with the head of config.json
    tensors: dict[str, Tensor]

    def __post_init__(self) -> None:
        self.states = {
            file: file_state(file) for file in {tensor.file for tensor in self.tensors.values()}
        }

    @property
    def has_own_unembedding(self) -> bool:
        """Whether the files contain a W_U, used or not."""
        return HEAD in self.tensors

    def load(
        self, head: str | None = None, progress: OnProgress = None, copy: bool = False
    ) -> GPT2:
        """The model, in float32, as `load_model` loads it.

        `progress` is called with the number of bytes of each tensor that is there. Raises
        ArgumentError for another `head`, CheckpointError if config.json says untied and there is no
        W_U, or if the files changed since they were checked.
        """
        if head is None and not self.config.tied and not self.has_own_unembedding:
            found = f'config.json says "tie_word_embeddings": false but there is no {HEAD}'
            expected = 'load it with head "tied", or "untied" to start from a copy of wte.T'
            raise CheckpointError(f"{self.path}: {found}; {expected}")
        is_unused = head is None and self.config.tied and self.has_own_unembedding
        head = self.config.head if head is None else head
        copied = head == "untied" and not self.has_own_unembedding
        config = self.config.with_head("tied" if copied else head)  # raises for an unknown head
        can_map = not copy and os.name != "nt"  # Windows replaces no mapped file
        mapped = {tensor for tensor in self.tensors.values() if can_map and tensor.can_be_mapped}
        files = {
            file: safetensors.map_file(file, mapped) for file in {tensor.file for tensor in mapped}
        }

        def values(name: str) -> np.ndarray:
            tensor = self.tensors[name]
            return tensor.view(files[tensor.file]) if tensor in mapped else tensor.read()

        if is_unused and not np.array_equal(values(HEAD), values("wte.weight")):
            unused = f"config.json says tied, so {HEAD} is not used, but it differs from wte.weight"
            message = f'{self.path}: {unused}; to use it, load with head "untied"'
            warnings.warn(message, TiedGPTWarning, stacklevel=3)

        names, parameters = parameter_shapes(config), {}
        # Two threads: most of the time of reading is spent on new memory, which comes page by page.
        pool = ThreadPoolExecutor(2)
        try:
            for name, array in zip(names, pool.map(values, names), strict=True):
                parameters[name] = array
                if progress:
                    progress(array.nbytes)
        finally:
            pool.shutdown(cancel_futures=True)  # after Ctrl-C, tensors not begun are not read
        for file, state in self.states.items():
            if file_state(file) != state:  # the parameters may be those of two files
                raise safetensors.replaced(file)
        model = GPT2(config, parameters)
        return model.untie("copy") if copied else model


def open_checkpoint(path: Path) -> Checkpoint:
    """Check a directory, or a .safetensors file with config.json beside it. Raises
    CheckpointError."""
    config = read_config(path)
    listing, found = _find_tensors(path)

    tensors: dict[str, Tensor] = {}
    for tensor in found:
        name = tensor.name.removeprefix(PREFIX)
        if name in tensors:
            raise CheckpointError(
                f'{tensor.file}: {short_repr(name)} is there twice, once after "{PREFIX}"'
            )
        if not MASK_BUFFER.fullmatch(name):
            tensors[name] = tensor
    check_parameters(tensors, config, listing, "config.json")
    checkpoint = Checkpoint(path, config, tensors)
    # Its states were taken after the headers were read: no file may have been replaced between.
    if _find_tensors(path)[1] != found or read_config(path) != config:
        raise safetensors.replaced(listing)
    return checkpoint


def check_parameters(
    tensors: dict[str, Tensor], config: Config, listing: Path, describing: str
) -> None:
    """Check that the tensors of `listing` are the parameters of a configuration, with a W_U or
    without."""
    expected = parameter_shapes(
        config.with_head("untied")
    )  # a W_U is checked even if it is not used
    described = f"the {config.n_layer}-layer GPT-2 that {describing} describes"
    if missing := [name for name in expected if name not in tensors and name != HEAD]:
        raise CheckpointError(
            f"{listing}: {missing[0]} of {described} is missing ({len(missing)} in all)"
        )
    for name, tensor in tensors.items():
        fault = ""
        if name not in expected:
            fault = f"is not a parameter of {described}"
        elif tensor.shape != expected[name]:
            shape = short_repr(list(tensor.shape))
            fault = f"has shape {shape}; {describing} makes it {list(expected[name])}"
        elif tensor.dtype not in safetensors.STORED:
            fault = f"is {tensor.dtype}; expected one of {', '.join(safetensors.STORED)}"
        if fault:
            raise CheckpointError(f"{listing}: tensor {short_repr(tensor.name)} {fault}")


def read_config(model: Path) -> Config:
    """The Config of a directory, or of a file's directory. Raises CheckpointError."""
    directory = directory_of(model)
    path = directory / "config.json"
    if not path.is_file():
        if model.is_file() and model.suffix != ".safetensors":
            raise CheckpointError(
                f"{model} is not a checkpoint: expected a directory or a .safetensors file"
            )
        raise CheckpointError(f"{directory} is not a checkpoint: it has no config.json")
    try:
        config = Config.from_json(read_json(path))
        path = directory / "generation_config.json"  # transformers prefers its eos_token_id
        if path.is_file() and (eos := read_json(path).get("eos_token_id")) is not None:
            config = replace(config, eos_token_id=eos)
        return config
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error


def save_model(model: GPT2, tokenizer: Tokenizer | None, directory: str | Path) -> None:
    """Write config.json, model.safetensors (float32) and, unless None, the tokenizer's files.

    transformers' from_pretrained reads the result with either head; a tied one has no
    lm_head.weight. The files appear together or not at all (see StagedFiles). Raises ArgumentError
    for other arguments, CheckpointError if the files cannot be written.
    """
    if not isinstance(model, GPT2):
        raise ArgumentError(f"the model must be a GPT2, got {short_repr(model)}")
    if not isinstance(tokenizer, Tokenizer | None):
        raise ArgumentError(
            f"the tokenizer must be a Tokenizer or None, got {short_repr(tokenizer)}"
        )
    if not isinstance(directory, str | Path) or not str(directory) or "\0" in str(directory):
        raise ArgumentError(f"the directory must be a path, got {short_repr(directory)}")
    with StagedFiles(Path(directory)) as files:
        write_model(files, model, tokenizer)


def write_model(files: StagedFiles, model: GPT2, tokenizer: Tokenizer | None) -> None:
    """Write what save_model writes to `files`, to which the caller may add others."""
    try:
        config = json.dumps(model.config.to_json(), indent=2, sort_keys=True) + "\n"
    except (RecursionError, TypeError, ValueError) as error:  # in Config.others
        raise CheckpointError(
            f"{files.directory}: config.json cannot be written: {error}"
        ) from error
    named = ((name if name == HEAD else PREFIX + name, a) for name, a in model.parameters.items())
    safetensors.write(files.open(WEIGHTS), named)
    texts = vocabulary_files(tokenizer) if tokenizer else {}
    if texts and (files.directory / ADDED).exists():
        texts.setdefault(ADDED, "{}")  # replaces the added tokens of an earlier save
    for name, text in texts.items():
        files.open(name).write(text.encode())
    files.open("config.json").write(config.encode())


def _find_tensors(path: Path) -> tuple[Path, list[Tensor]]:
    """The file that lists the tensors (the weights, or the index of several files), and the
    tensors."""
    for file in (path, path / WEIGHTS):
        if file.is_file():
            return file, list(safetensors.read_header(file).values())
    if (path / INDEX).is_file():
        return path / INDEX, _find_sharded(path / INDEX)
    raise CheckpointError(f"{path} is not a checkpoint: it has {NO_WEIGHTS}")


def read_weight_map(index: Path) -> dict[str, str]:
    """Tensor -> its file, from the index of several files. No file lies in another directory."""
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f'{index}: "weight_map" must map tensor names to files')
    for file in weight_map.values():
        if not isinstance(file, str) or not SHARD.fullmatch(file):
            raise CheckpointError(
                f"{index}: {short_repr(file)} names no .safetensors file beside it"
            )
    return weight_map


def _find_sharded(index: Path) -> list[Tensor]:
    listed = {(file, name) for name, file in read_weight_map(index).items()}
    files = sorted({index.parent / file for file, _ in listed})
    tensors = [tensor for file in files for tensor in safetensors.read_header(file).values()]
    found = {(tensor.file.name, tensor.name) for tensor in tensors}
    for file, name in [*sorted(listed - found), *sorted(found - listed)]:
        place = (
            "index but not in the file" if (file, name) in listed else "file but not in the index"
        )
        raise CheckpointError(f"{index.parent / file}: tensor {short_repr(name)} is in the {place}")
    return tensors
