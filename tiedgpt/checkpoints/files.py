"""The weights of a model: which files of its folder have them, and the tensors in these."""

import re
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, short_repr
from . import tensorflow
from .folder import CONFIG
from .json_files import read_json
from .places import INDEX
from .refused import WEIGHT_FILES, WEIGHTS, what_is_there
from .safetensors import read_header
from .tensors import SavedFile, Tensor

PICKLES = (".bin", ".pt", ".pth")  # the ends of the names of files of torch.save
# The name of one file of several. It has no directory.
SHARD = re.compile(r"[A-Za-z0-9][\w.-]{,199}\.(safetensors|bin)", re.ASCII)


def is_of_tensorflow(model: Path) -> bool:
    """Whether a model is a directory of OpenAI's files, or of a training of them."""
    return (model / tensorflow.HPARAMS).is_file() and not (model / CONFIG).is_file()


def weights_file(model: Path) -> Path | None:
    """The file of a model's weights, or the index of several; None if it has none.

    model: a directory, or a file. A config.json that is given by itself has no weights. Raises
    CheckpointError for a directory with several models of TensorFlow.
    """
    if model.suffix == ".json" and not model.is_dir():
        return None
    if not model.is_dir():
        return model
    if is_of_tensorflow(model):
        return tensorflow.index_file(model)
    for name in WEIGHT_FILES:
        if (model / name).is_file():
            return model / name
    return None


def read_weights(model: Path) -> SavedFile:
    """The tensors of a model of any kind, in one file or several. No values are read.

    model: a directory, or a file of weights itself. Raises CheckpointError.
    """
    file = weights_file(model)
    if file is None:
        raise CheckpointError(
            f"{model} is not a checkpoint: it has neither {WEIGHTS} nor {INDEX}"
            f"{what_is_there(model)}"
        )
    if file.name.endswith(".index.json"):
        return SavedFile(_tensors_of_index(file))
    return _read_file(file)


def _read_file(file: Path) -> SavedFile:
    """The tensors of one file, by the names that they have in it."""
    if file.suffix in PICKLES:
        from . import pickles  # only for such files, because importing it takes time

        return pickles.read_saved(file)
    if file.name.endswith(tensorflow.INDEX_END):
        tensors = tensorflow.read_index(file, tensorflow.data_file(file))
        of_optimizer = [name for name in tensors if tensorflow.OF_OPTIMIZER.fullmatch(name)]
        rest = {name: tensor for name, tensor in tensors.items() if name not in of_optimizer}
        return SavedFile(rest, of_optimizer=of_optimizer)
    tensors, _ = read_header(file)
    return SavedFile(tensors)


def _tensors_of_index(index: Path) -> dict[str, Tensor]:
    """The tensors in the files that an index lists."""
    directory = index.parent
    weight_map = check_weight_map(read_json(index), f"{index}")
    tensors: dict[str, Tensor] = {}
    for file_name in sorted(set(weight_map.values())):
        file = directory / file_name
        in_file = _read_file(file).tensors
        listed = {name for name, listed_file in weight_map.items() if listed_file == file_name}
        for name in sorted(listed - in_file.keys()):
            raise CheckpointError(
                f"{file}: tensor {short_repr(name)} is in the index but not in the file"
            )
        for name in sorted(in_file.keys() - listed):
            raise CheckpointError(
                f"{file}: tensor {short_repr(name)} is in the file but not in the index"
            )
        tensors |= in_file
    return tensors


def check_weight_map(index: dict[str, Any], name: str) -> dict[str, str]:
    """Tensor name -> file name, from the index of several files, which lie beside the index.

    Raises CheckpointError, which calls the index `name`.
    """
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f'{name}: "weight_map" must map tensor names to files')
    for file in weight_map.values():
        if not isinstance(file, str) or not SHARD.fullmatch(file):
            raise CheckpointError(
                f'{name}: "weight_map" must map to .safetensors or .bin files beside it, got '
                f"{short_repr(file)}"
            )
    return weight_map
