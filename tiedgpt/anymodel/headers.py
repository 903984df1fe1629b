"""What the files of a language model of any kind say without their values: config.json and headers.

A model of the hub that is not on this machine is not downloaded: parts of its files are asked for.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..checkpoints.download import Repository, find_model, offline_variable
from ..checkpoints.files import WEIGHTS, check_that_files_agree, check_weight_map
from ..checkpoints.json_files import CONFIG, JSON_OF_PYTHON, MAX_TEXT, read_json
from ..checkpoints.model_names import INDEX, SHIPPED, check_name, discard_note
from ..checkpoints.opened import Opened
from ..checkpoints.safetensors import read_header
from ..checkpoints.tensors import SavedFile, Tensor
from ..errors import CheckpointError

# Bytes. A quantised mixture of experts in one file has a header of 10 million.
MAX_HEADER = 1 << 24
# The rows of two matrices on the hub that are compared: so many places, and rows at each.
SAMPLED_PLACES = 8
ROWS_AT_A_PLACE = 4


@dataclass
class HubModel:
    """A language model of any kind on the hub, as checkpoints.Opened is one on this machine."""

    config_json: dict[str, Any]  # the content of config.json
    repository: Repository

    @property
    def has_weights(self) -> bool:
        """Whether the repository has weights in safetensors."""
        return self._saved is not None

    @property
    def saved(self) -> SavedFile:
        """What the headers of the files say. Raises CheckpointError."""
        if self._saved is None:
            raise CheckpointError(
                f"{self.repository.label} has neither {WEIGHTS} nor {INDEX}; a pytorch_model.bin "
                "is read only if it is here, with its config.json: give their directory"
            )
        return self._saved

    @property
    def stored(self) -> dict[str, Tensor]:
        """The tensors by their names in the files. No values are read. Raises CheckpointError."""
        return self.saved.tensors

    @cached_property
    def _saved(self) -> SavedFile | None:
        """What the headers of the files say; None if there is no safetensors."""
        saved = fetch_header(self.repository, WEIGHTS)
        index = fetch_json(self.repository, INDEX) if saved is None else None
        if index is None:  # one file has all tensors, or there is none
            return saved
        label = self.repository.label
        tensors: dict[str, Tensor] = {}
        metadata: list[dict[str, str] | None] = []
        weight_map = check_weight_map(index, f"{label}/{INDEX}")
        for file in sorted(set(weight_map.values())):
            header = fetch_header(self.repository, file)
            if header is None:
                raise CheckpointError(f"{label} has no {file}, which {INDEX} names (404)")
            tensors |= header.tensors
            metadata += header.metadata
        file_of = {name: tensor.file.name for name, tensor in tensors.items()}
        check_that_files_agree(file_of.items(), weight_map, f"{label}/{INDEX}")
        return SavedFile(tensors, metadata=metadata)

    def equal_rows(self, one: Tensor, other: Tensor, rounded: bool = False) -> tuple[int, int]:
        """How many rows of a sample of two matrices [V, D] have the same values, and of how many.

        rounded: count values, too, that are the same in bfloat16 or in float16. Raises
        CheckpointError for a dtype that is not a float.
        """
        V = one.shape[0]
        last = max(V - ROWS_AT_A_PLACE, 0)  # the first row of the last place
        # Several places of a small matrix may begin at the same row: it is asked for once.
        firsts = {number * last // (SAMPLED_PLACES - 1) for number in range(SAMPLED_PLACES)}
        equal = compared = 0
        for first in sorted(firsts):
            end = min(first + ROWS_AT_A_PLACE, V)
            compared += end - first
            one_rows = fetch_rows(self.repository, one, first, end)
            equal += one_rows.equal_rows(fetch_rows(self.repository, other, first, end), rounded)
        return equal, compared


AnyModel = Opened | HubModel


def open_any(source: str, weights: bool = True) -> AnyModel:
    """The model of a directory, a file of weights, a config.json, or a name of the hub.

    weights: False if config.json is enough. Then a name finds a folder here without weights, too.
    Raises CheckpointError for another source, and for a config.json that cannot be read.
    """
    try:
        _, path = find_model(source, weights=weights, fetch=False)
    except CheckpointError:
        name = check_name(source)  # raises for a text that is neither a path nor a name
        # A shipped model is not on the hub.
        if name in SHIPPED or offline_variable() is not None:
            raise
        repository = Repository(name, commit="", note=discard_note)  # "": the newest commit
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
        return HubModel(config, repository)
    return Opened(path, source)


# On the hub


def fetch_json(repository: Repository, file: str) -> dict[str, Any] | None:
    """The object of a JSON file of a repository; None if it has no such file."""
    answer = repository.read_range(file, start=0, stop=MAX_TEXT)
    if answer is None:
        return None
    content, size = answer
    name = f"{repository.label}/{file}"
    if size > MAX_TEXT:
        raise CheckpointError(f"{name}: {size} bytes; expected at most {MAX_TEXT}")
    return read_json(Path(name), JSON_OF_PYTHON, content)


def fetch_header(repository: Repository, file: str) -> SavedFile | None:
    """What the header says of a safetensors file of a repository; None if it has no such file."""
    answer = repository.read_range(file, start=0, stop=8)  # the length of the header
    if answer is None:
        return None
    first_bytes, size = answer
    path = Path(repository.label, file)
    end = 8 + int.from_bytes(first_bytes, "little")
    content = first_bytes
    # A header that is too long is not fetched: read_header refuses it by its length.
    if end <= min(size, 8 + MAX_HEADER):
        content += fetch_part(repository, path, start=8, stop=end)
    tensors, metadata = read_header(path, content, size, MAX_HEADER)
    return SavedFile(tensors, metadata=[metadata])


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
