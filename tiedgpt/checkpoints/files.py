"""The tensors of a file of weights, or of the files that an index lists. opened.py chooses it."""

import re
from collections.abc import Set
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, short_repr
from . import tensorflow
from .json_files import read_json
from .safetensors import read_header
from .tensors import SavedFile

PICKLES = (".bin", ".pt", ".pth")  # the ends of the names of files of torch.save
INDEX_OF_FILES = ".index.json"  # the end of the name of a list of several files
# The name of one file of several. It has no directory.
SHARD = re.compile(r"[A-Za-z0-9][\w.-]{,199}\.(safetensors|bin)", re.ASCII)


def read_weights(file: Path) -> SavedFile:
    """The tensors of a file of weights, or of the files that an index lists. No values are read.

    Raises CheckpointError.
    """
    if file.suffix in PICKLES:
        from . import pickles  # only for such files, because importing it takes time

        return pickles.read_saved(file)
    if file.name.endswith(tensorflow.INDEX_END):
        return tensorflow.read_saved(file)
    if not file.name.endswith(INDEX_OF_FILES):
        tensors, _ = read_header(file)
        return SavedFile(tensors)

    weight_map = check_weight_map(read_json(file), f"{file}")
    tensors = {}
    found = set()  # the names of a tensor and of its file
    for listed in sorted(set(weight_map.values())):
        in_file = read_weights(file.parent / listed).tensors
        found |= {(name, listed) for name in in_file}
        tensors |= in_file
    check_that_files_agree(found, weight_map, f"{file}")
    return SavedFile(tensors)


def check_weight_map(index: dict[str, Any], name: str) -> dict[str, str]:
    """Tensor name -> file name, from the index of several files, which lie beside the index.

    Raises CheckpointError, which calls the index `name`.
    """
    weight_map: Any = index.get("weight_map")
    files = list(weight_map.values()) if isinstance(weight_map, dict) else []
    wrong = [file for file in files if not isinstance(file, str) or not SHARD.fullmatch(file)]
    if wrong or not files:
        raise CheckpointError(
            f'{name}: "weight_map" must map tensor names to .safetensors or .bin files beside it, '
            f"got {short_repr(wrong[0] if wrong else weight_map)}"
        )
    return weight_map


def check_that_files_agree(
    found: Set[tuple[str, str]], weight_map: dict[str, str], index: str
) -> None:
    """Raise CheckpointError unless an index names the tensors that are in the files, and no others.

    found: (tensor name, file name). index: what the error calls it.
    """
    differences = found ^ weight_map.items()
    if differences:
        name, file = min(differences)
        raise CheckpointError(
            f"{index}: it and the files do not agree on tensor {short_repr(name)} in {file}"
        )
