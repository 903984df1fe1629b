"""The weights of a folder: which of its files are read, and what is said of those that are not."""

import re
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, short_repr
from . import tensorflow
from .json_files import READ_MORE, read_json
from .places import INDEX, PYTORCH, PYTORCH_INDEX
from .safetensors import read_header
from .tensors import SavedFile, Tensor

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
GENERATION_CONFIG = "generation_config.json"
NANO_GPT = "ckpt.pt"
# A directory may have several of these: the first one is read.
WEIGHT_FILES = (WEIGHTS, INDEX, PYTORCH, PYTORCH_INDEX, NANO_GPT)
PICKLES = (".bin", ".pt", ".pth")  # the ends of the names of files of torch.save
# The name of one file of several. It has no directory.
SHARD = re.compile(r"[A-Za-z0-9][\w.-]{,199}\.(safetensors|bin)", re.ASCII)


PICKLE = (
    "is a file of PyTorch: `-m FILE` and load_model(FILE) read the model in it, with config.json "
    f"beside it unless nanoGPT wrote it ({READ_MORE})"
)
LOAD_ORIGINAL = f"is not read; load the model.safetensors that it was made from ({READ_MORE})"
GIVE_DIRECTORY = "is one of several files of a model; give their directory"
# The ends of the names of files that are not found in a directory, or not read -> what to do.
NOT_READ = {
    "pytorch_model.bin": PICKLE,
    ".bin": (
        "is a file of PyTorch, which `-m FILE` reads with config.json beside it, or one of llm.c, "
        f"which is not read ({READ_MORE})"
    ),
    ".pt": PICKLE,
    ".pth": PICKLE,
    ".ckpt": f"may be a file of PyTorch Lightning, which is not read; convert it ({READ_MORE})",
    ".npz": f"holds arrays of NumPy; tiedgpt.from_state_dict makes a model of them ({READ_MORE})",
    ".gguf": LOAD_ORIGINAL,
    ".h5": LOAD_ORIGINAL,
    ".onnx": LOAD_ORIGINAL,
    ".keras": LOAD_ORIGINAL,
    ".msgpack": LOAD_ORIGINAL,
    ".ckpt.index": GIVE_DIRECTORY,
    ".ckpt.data-00000-of-00001": GIVE_DIRECTORY,
    ".safetensors.index.json": GIVE_DIRECTORY,
    ".bin.index.json": GIVE_DIRECTORY,
}
MERGE = "with peft's merge_and_unload, and save that model"
ADAPTER = "adapter_config.json"  # written by peft, for what is added to the weights of a base model
NOT_WEIGHTS = ("optimizer.pt", "scheduler.pt", "training_args.bin")  # written by a Trainer


def weights_file(model: Path) -> Path | None:
    """The file of a model's weights, or the index of several; None if it has none.

    model: a directory, or a file. A config.json that is given by itself has no weights.
    """
    if model.suffix == ".json" and not model.is_dir():
        return None
    if not model.is_dir():
        return model
    if (model / tensorflow.HPARAMS).is_file() and not (model / CONFIG).is_file():
        return model / tensorflow.INDEX
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
    if file.name == tensorflow.INDEX:
        return SavedFile(tensorflow.read_index(file, file.parent / tensorflow.DATA))
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


def describe(path: Path) -> str:
    """What to do with a file in a format that is not read, by its name; "" for another."""
    for ending, sentence in NOT_READ.items():
        if path.name.lower().endswith(ending):
            return sentence
    return ""


def what_is_there(directory: Path) -> str:
    """What an error says of a directory that is no checkpoint: what it holds, and the next step.

    "" if it holds nothing that is known. Raises CheckpointError for an adapter that cannot be read.
    """
    if (directory / ADAPTER).is_file():
        base = short_repr(read_json(directory / ADAPTER).get("base_model_name_or_path"))
        return f" ({ADAPTER} is of a LoRA adapter: merge it into {base} first, {MERGE})"
    saved_steps = {}  # step of a training with transformers' Trainer -> directory
    for path in directory.glob("checkpoint-*"):
        step = path.name.removeprefix("checkpoint-")
        if step.isdecimal() and path.is_dir():
            saved_steps[int(step)] = path
    if saved_steps:
        newest = saved_steps[max(saved_steps)]
        return f" (it holds checkpoints of a training: give one of them, such as {newest})"
    names = sorted(path.name for path in directory.glob("*"))
    if (directory / CONFIG).is_file():
        description = _weights_by_another_name(names)
        if description:
            return description
    for name in names:
        description = describe(Path(name))
        if description not in ("", GIVE_DIRECTORY) and name not in NOT_WEIGHTS:
            return f" ({name} {description})"
    return ""


def _weights_by_another_name(names: list[str]) -> str:
    """What an error says of weights that are there under other names than WEIGHT_FILES."""
    for name in names:
        match = re.search(r"-\d+-of-\d+\.(safetensors|bin)$", name)
        if match:
            index = INDEX if match[1] == "safetensors" else PYTORCH_INDEX
            return f" ({name} is one of several files: get {index}, which lists them, too)"
    for name in names:
        if name.endswith(".safetensors"):
            return f" (there is {name}: give this file)"
    return ""
