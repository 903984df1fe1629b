"""What the files of a language model of any kind say without their values: config.json and headers.

A model of the hub that is not on this machine is not downloaded: parts of its files are asked for.
"""

import os
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..checkpoints import tensorflow
from ..checkpoints.download import Repository, is_offline
from ..checkpoints.files import (
    CONFIG,
    INDEX,
    PICKLES,
    WEIGHTS,
    check_weight_map,
    describe,
    is_of_tensorflow,
    stored_tensors,
    weights_file,
)
from ..checkpoints.json_files import JSON_OF_PYTHON, MAX_TEXT, parse_json, read_json
from ..checkpoints.places import SHIPPED, check_name, discard_note, find_here
from ..checkpoints.safetensors import Tensor, header_length, parse_header
from ..errors import CheckpointError, short_repr

# Bytes. A quantised mixture of experts in one file has a header of 10 million.
MAX_HEADER = 1 << 24
# The rows of two matrices on the hub that are compared: so many places, and rows at each.
SAMPLED_PLACES = 8
ROWS_AT_A_PLACE = 4


@dataclass(frozen=True)
class AnyModel:
    """A language model of any kind: its config.json, and where its weights are."""

    said: dict[str, Any]  # config.json; empty if there is none beside the weights
    place: Path | Repository

    @cached_property
    def has_weights(self) -> bool:
        """Whether there are weights: a config.json that was given by itself has none."""
        if isinstance(self.place, Repository):
            return self.fetched is not None
        return self.place.suffix != ".json" and weights_file(self.place) is not None

    @cached_property
    def stored(self) -> dict[str, Tensor]:
        """The tensors, by their names in the files. No values are read.

        Raises CheckpointError for weights that are not there or are damaged.
        """
        if isinstance(self.place, Repository):
            if self.fetched is None:
                raise CheckpointError(
                    f"{self.place.label} has neither {WEIGHTS} nor {INDEX}; a pytorch_model.bin is "
                    "read only if it is here, with its config.json: give their directory"
                )
            return self.fetched
        tensors = {}
        for name, tensor in stored_tensors(self.place, MAX_HEADER):
            # The reader of nanoGPT's files adds biases of 0. Such a bias is a bytearray, not a part
            # of the mapped file, and is not counted.
            if not isinstance(tensor.memory, bytearray):
                tensors[name] = tensor
        return tensors

    @cached_property
    def fetched(self) -> dict[str, Tensor] | None:
        """The tensors of a repository of the hub; None if it has no weights that can be read."""
        assert isinstance(self.place, Repository)
        return fetch_tensors(self.place)

    def equal_rows(self, one: Tensor, other: Tensor) -> tuple[int, int]:
        """How many rows of two matrices of one shape [V, D] have the same values, and of how many.

        All rows are compared if the files are here, else a sample. Raises CheckpointError for a
        dtype that is not a float.
        """
        V = one.shape[0]
        if isinstance(self.place, Path):
            return one.equal_rows(other), V
        last = max(V - ROWS_AT_A_PLACE, 0)  # the first row of the last place
        firsts = {place * last // (SAMPLED_PLACES - 1) for place in range(SAMPLED_PLACES)}
        equal = compared = 0
        for first in sorted(firsts):
            end = min(first + ROWS_AT_A_PLACE, V)
            compared += end - first
            one_rows = fetch_rows(self.place, one, first, end)
            equal += one_rows.equal_rows(fetch_rows(self.place, other, first, end))
        return equal, compared


def open_any(source: str, weights: bool = True) -> AnyModel:
    """The model of a directory, a file of weights, a config.json, or a name of the hub.

    weights: False if a folder with config.json alone will do for a name. Raises CheckpointError for
    what is none of these, and for a config.json that cannot be read.
    """
    try:
        path = find_here(source, weights)
    except CheckpointError:
        name = check_name(source)  # raises for a text that is neither a path nor a name
        if name in SHIPPED or is_offline():
            raise
        repository = Repository(name, commit="", note=discard_note)
        try:
            config = fetch_json(repository, CONFIG)
        except CheckpointError as error:
            raise CheckpointError(
                f"{source} is not on this machine; {error}; without the hub, give a path"
            ) from error
        if config is None:
            raise CheckpointError(
                f"{source} is not on this machine; {repository.label}: no such repository, or no "
                f"{CONFIG} in it (404)"
            ) from None
        return AnyModel(config, repository)
    if path.is_file() and path.suffix == ".json":
        return AnyModel(read_json(path, JSON_OF_PYTHON), path)
    if path.is_file() and path.suffix not in (".safetensors", *PICKLES):
        description = describe(path) or "is not a directory, a file of weights or a config.json"
        raise CheckpointError(f"{path} {description}")
    config_file = path / CONFIG if path.is_dir() else path.parent / CONFIG
    config = {}
    if os.path.exists(config_file):
        config = read_json(config_file, JSON_OF_PYTHON)
    elif is_of_tensorflow(path):
        config = {"model_type": "gpt2", "vocab_size": tensorflow.read_hparams(path).vocab_size}
    return AnyModel(config, path)


# On the hub


def fetch_tensors(repository: Repository) -> dict[str, Tensor] | None:
    """The tensors of a repository, from the headers of its files; None if it has no weights."""
    tensors = fetch_header(repository, WEIGHTS)
    if tensors is not None:
        return tensors
    index = fetch_json(repository, INDEX)
    if index is None:
        return None
    tensors = {}
    weight_map = check_weight_map(index, f"{repository.label}/{INDEX}")
    for file in sorted(set(weight_map.values())):
        header = fetch_header(repository, file)
        if header is None:
            raise CheckpointError(f"{repository.label} has no {file}, which {INDEX} names (404)")
        tensors |= header
    stored = {name: tensor.file.name for name, tensor in tensors.items()}
    if stored != weight_map:
        name, file = min(stored.items() ^ weight_map.items())
        raise CheckpointError(
            f"{repository.label}/{INDEX}: it and the files do not agree on tensor "
            f"{short_repr(name)} in {file}"
        )
    return tensors


def fetch_json(repository: Repository, file: str) -> dict[str, Any] | None:
    """The object of a JSON file of a repository; None if it has no such file."""
    answer = repository.read_range(file, 0, MAX_TEXT)
    if answer is None:
        return None
    content, size = answer
    name = f"{repository.label}/{file}"
    if size > MAX_TEXT:
        raise CheckpointError(f"{name}: {size} bytes; expected at most {MAX_TEXT}")
    return parse_json(content, name, JSON_OF_PYTHON)


def fetch_header(repository: Repository, file: str) -> dict[str, Tensor] | None:
    """The tensors of a safetensors file of a repository; None if it has no such file."""
    answer = repository.read_range(file, 0, 8)
    if answer is None:
        return None
    first_bytes, size = answer
    path = Path(repository.label, file)
    length = header_length(first_bytes, path, size, MAX_HEADER)
    header = fetch_part(repository, path, 8, 8 + length)
    tensors, _ = parse_header(header, path, size, memory=b"")
    return tensors


def fetch_part(repository: Repository, file: Path, start: int, stop: int) -> bytes:
    """The bytes [start, stop) of a file that the repository has. Raises CheckpointError."""
    answer = repository.read_range(file.name, start, stop)
    if answer is None:
        raise CheckpointError(f"{file} is not there any more (404)")
    content, _ = answer
    return content


def fetch_rows(repository: Repository, matrix: Tensor, first: int, end: int) -> Tensor:
    """The rows [first, end) of a matrix of a repository, with their values."""
    rows, columns = matrix.shape
    row_bytes = (matrix.end - matrix.start) // rows
    start, stop = matrix.start + first * row_bytes, matrix.start + end * row_bytes
    content = fetch_part(repository, matrix.file, start, stop)
    shape = (end - first, columns)
    return replace(matrix, shape=shape, start=0, end=len(content), memory=content)
