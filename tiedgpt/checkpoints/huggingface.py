"""Read checkpoints of Hugging Face's transformers: config.json and model.safetensors.

The weights are in one file, or in several with an index. saving.py writes such checkpoints.
"""

import re
from dataclasses import replace
from pathlib import Path

from ..errors import CheckpointError, ConfigError, short_repr
from ..gpt2.config import Config
from .checkpoint import Checkpoint, check_tensor_shapes
from .reading import directory_of, read_json
from .safetensors import Tensor, read_header, replaced
from .tensor_names import HEAD, TRANSFORMERS_PREFIX, from_transformers
from .unread_formats import describe_weights

WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
GENERATION_CONFIG = "generation_config.json"
# The name of one file of several. It has no directory.
SHARD = re.compile(r"[A-Za-z0-9][\w.-]{,199}\.safetensors", re.ASCII)


def open_directory(path: Path) -> Checkpoint:
    """Check a directory, or a .safetensors file with config.json beside it.

    Raises CheckpointError.
    """
    config = read_config_json(path)
    listing, tensors = _find_tensors(path)
    by_name = _by_our_names(tensors)
    check_tensor_shapes(by_name, config, listing, "config.json")

    checkpoint = Checkpoint(path, config, by_name)
    # The checkpoint noted the states of the files only after their headers were read. A file that
    # was replaced between these two steps has another header now.
    _, tensors_now = _find_tensors(path)
    if tensors_now != tensors or read_config_json(path) != config:
        raise replaced(listing)
    if config.tied and HEAD in by_name:
        checkpoint.contradicts_tied = not by_name[HEAD].has_values_of(by_name["wte.weight"])
    if checkpoint.contradicts_tied:  # transformers 5 does not tie them either
        checkpoint.config = config.with_head("untied")
    return checkpoint


def _by_our_names(tensors: list[Tensor]) -> dict[str, Tensor]:
    """The tensors that are parameters, by our names. Raises CheckpointError."""
    by_name: dict[str, Tensor] = {}
    for tensor in tensors:
        name = from_transformers(tensor.name)
        if name is None:  # the causal mask of a layer, which is not a parameter
            continue
        if name in by_name:
            raise CheckpointError(
                f"{tensor.file}: {short_repr(name)} is there twice, once after "
                f'"{TRANSFORMERS_PREFIX}"'
            )
        by_name[name] = tensor
    return by_name


def read_config_json(model: Path) -> Config:
    """The Config of a model: the directory itself, or the one of its file. Raises CheckpointError.

    As in transformers, generation_config.json is preferred for the token that ends a text, if that
    file names one.
    """
    directory = directory_of(model)
    path = directory / "config.json"
    if not path.is_file():
        raise CheckpointError(
            f"{directory} is not a checkpoint: it has no config.json{other_weights(directory)}"
        )
    try:
        config = Config.from_json(read_json(path))
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error

    generation = directory / GENERATION_CONFIG
    if not generation.is_file():
        return config
    eos_token_id = read_json(generation).get("eos_token_id")
    if eos_token_id is None:
        return config
    try:
        return replace(config, eos_token_id=eos_token_id)
    except ConfigError as error:
        raise CheckpointError(f"{generation}: {error}") from error


def read_weight_map(index: Path) -> dict[str, str]:
    """Tensor name -> file name, from the index of several files, which lie beside the index.

    Raises CheckpointError for another index.
    """
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f'{index}: "weight_map" must map tensor names to files')
    for file in weight_map.values():
        if not isinstance(file, str) or not SHARD.fullmatch(file):
            raise CheckpointError(
                f"{index}: {short_repr(file)} names no .safetensors file beside it"
            )
    return weight_map


def _find_tensors(path: Path) -> tuple[Path, list[Tensor]]:
    """The file that lists the tensors (the weights, or an index), and the tensors.

    `path` is a directory, or a file of weights itself. Raises CheckpointError if it is neither.
    """
    for file in (path, path / WEIGHTS):
        if file.is_file():
            return file, list(read_header(file).values())
    index = path / INDEX
    if index.is_file():
        return index, _find_sharded(index)
    raise CheckpointError(
        f"{path} is not a checkpoint: it has neither {WEIGHTS} nor {INDEX}{other_weights(path)}"
    )


def other_weights(directory: Path) -> str:
    """What an error says of weights in a format that is not read; "" if there are none."""
    description = describe_weights(directory)
    if description == "":
        return ""
    return f" ({description})"


def _find_sharded(index: Path) -> list[Tensor]:
    """The tensors of all files that an index names.

    Raises CheckpointError if a file has other tensors than the index lists for it.
    """
    weight_map = read_weight_map(index)
    tensors: list[Tensor] = []
    for file in sorted(set(weight_map.values())):
        tensors += read_header(index.parent / file).values()

    listed = {(file, name) for name, file in weight_map.items()}
    in_files = {(tensor.file.name, tensor.name) for tensor in tensors}
    missing = sorted(listed - in_files)
    if missing:
        file, name = missing[0]
        raise CheckpointError(
            f"{index.parent / file}: tensor {short_repr(name)} is in the index but not in the file"
        )
    unlisted = sorted(in_files - listed)
    if unlisted:
        file, name = unlisted[0]
        raise CheckpointError(
            f"{index.parent / file}: tensor {short_repr(name)} is in the file but not in the index"
        )
    return tensors
