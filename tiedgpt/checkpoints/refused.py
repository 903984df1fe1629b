"""What is said of files and folders that are not read: what they are, and what to do."""

import re
from pathlib import Path
from typing import Any

from ..errors import short_repr
from .folder import CONFIG
from .json_files import READ_MORE, read_json
from .places import INDEX, PYTORCH_INDEX

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
# peft's types of adapters that add to the prompt, not to the weights.
PROMPT_ADAPTERS = ("PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "CPT")
NOT_WEIGHTS = ("optimizer.pt", "scheduler.pt", "training_args.bin")  # written by a Trainer


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
        adapter = read_json(directory / ADAPTER)
        kind = short_repr(adapter.get("peft_type"))
        base = short_repr(adapter.get("base_model_name_or_path"))
        return f" ({ADAPTER} is of an adapter, {kind}, for the model {base}: {how_to_use(adapter)})"
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


def how_to_use(adapter: dict[str, Any]) -> str:
    """What to do with an adapter, of which this is the adapter_config.json."""
    if adapter.get("peft_type") in PROMPT_ADAPTERS:
        return "it adds to the prompt, so it cannot be merged into the weights, and is not read"
    return f"merge it {MERGE} to a new directory"


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
