"""Files of weights: which are read, the tensors in them, and what is said of other files.

opened.py chooses the file.
"""

import fnmatch
import re
from collections.abc import Collection, Iterable, Set
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, short_repr
from . import tensorflow
from .json_files import CONFIG, READ_MORE, read_json
from .model_names import INDEX, PYTORCH, PYTORCH_INDEX
from .names import IN_A_LAYER
from .safetensors import read_header
from .tensors import SavedFile, Tensor

WEIGHTS = "model.safetensors"
NANO_GPT = "ckpt.pt"
# A directory may have several of these: the first one is read.
WEIGHT_FILES = (WEIGHTS, INDEX, PYTORCH, PYTORCH_INDEX, NANO_GPT)
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
        tensors, metadata = read_header(file)
        return SavedFile(tensors, metadata=[metadata])

    weight_map = check_weight_map(read_json(file), f"{file}")
    tensors = {}
    all_metadata: list[dict[str, str] | None] = []
    found = set()  # (tensor name, file name)
    for listed in sorted(set(weight_map.values())):
        in_file = read_weights(file.parent / listed)
        found |= {(name, listed) for name in in_file.tensors}
        tensors |= in_file.tensors
        all_metadata += in_file.metadata
    check_that_files_agree(found, weight_map, f"{file}")
    return SavedFile(tensors, metadata=all_metadata)


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


# What is said of files and folders that are not read: what they are, and what to do

GIVE_FILE = (
    "is a file of PyTorch: `-m FILE` and load_model(FILE) read the model in it, with config.json "
    f"beside it unless nanoGPT wrote it ({READ_MORE})"
)
LOAD_ORIGINAL = f"is not read; load the model.safetensors that it was made from ({READ_MORE})"
GIVE_DIRECTORY = "is one of several files of a model; give their directory"
# The ends of the names of files that are not found in a directory, or not read -> what to do.
NOT_READ = {
    "pytorch_model.bin": GIVE_FILE,
    ".bin": (
        "may be a file of PyTorch, which `-m FILE` reads with config.json beside it, or one of "
        f"llm.c, which is not read ({READ_MORE})"
    ),
    ".pt": GIVE_FILE,
    ".pth": GIVE_FILE,
    ".ckpt": f"may be a file of PyTorch Lightning, which is not read; convert it ({READ_MORE})",
    ".npz": f"holds arrays of NumPy; tiedgpt.from_state_dict makes a model of them ({READ_MORE})",
    ".gguf": LOAD_ORIGINAL,
    ".h5": LOAD_ORIGINAL,
    ".onnx": LOAD_ORIGINAL,
    ".keras": LOAD_ORIGINAL,
    ".msgpack": LOAD_ORIGINAL,
    tensorflow.INDEX_END: GIVE_DIRECTORY,
    tensorflow.DATA_END: GIVE_DIRECTORY,
    ".safetensors.index.json": GIVE_DIRECTORY,
    ".bin.index.json": GIVE_DIRECTORY,
}
MERGE = "with peft's merge_and_unload, and save that model"
# Why a merge may change what a tied model computes.
TIED = "PEFT 0.21.2 merges what is added to a tied matrix into both its uses"
ADAPTER = "adapter_config.json"  # written by peft, for what is added to the weights of a base model
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
# peft's types of adapters that add to the prompt, not to the weights.
PROMPT_ADAPTERS = ("PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "CPT")
# What transformers' Trainer, accelerate and `tiedgpt train` write beside a model.
NOT_WEIGHTS = re.compile(
    r"optimizer|scheduler|training_args|rng_state|random_states|scaler|sampler|dl_state"
    r"|training\.safetensors"
)
MERGE_SHARDS = (
    "is one of several parts of a model that FSDP trained: `accelerate merge-weights` makes one "
    "model of them"
)
# Files and folders in a directory that other programs wrote -> what to do.
OTHER_PROGRAMS = {
    "zero_to_fp32.py": (
        "is DeepSpeed's, whose folders have the weights in parts: `python zero_to_fp32.py . "
        "merged` makes one model of them"
    ),
    "pytorch_model_fsdp*": MERGE_SHARDS,
    "*.distcp": MERGE_SHARDS,
    "*.index": f"is of TensorFlow: put the {tensorflow.HPARAMS} of its model beside it",
    "openvino_model.*": f"is of OpenVINO, which {LOAD_ORIGINAL}",
    "vocabulary.json": f"is of CTranslate2, whose model.bin {LOAD_ORIGINAL}",
    "*.ot": f"is of rust-bert, which {LOAD_ORIGINAL}",
    "onnx": f"is a folder of ONNX, which {LOAD_ORIGINAL}",
}
# The ends of the names of tensors that are beside quantised weights: of bitsandbytes, mlx-lm, GPTQ,
# AWQ, and 8-bit floats.
NAMES_OF_QUANTISED = re.compile(
    r".*\.(SCB|absmax|quant_map|quant_state\..*|scales|biases|qweight|qzeros|g_idx|weight_scale.*)"
)


def describe(path: Path) -> str:
    """What to do with a file in a format that is not read, by its name; "" for another."""
    for ending, sentence in NOT_READ.items():
        if path.name.lower().endswith(ending):
            return sentence
    return ""


def not_a_checkpoint(directory: Path, lack: str) -> CheckpointError:
    """The error for a directory without what a model needs. lack: such as "no config.json"."""
    there = what_is_there(directory) or f" ({READ_MORE})"
    return CheckpointError(f"{directory} is not a checkpoint: it has {lack}{there}")


def what_is_there(directory: Path) -> str:
    """What an error says of a directory that is no checkpoint: what it holds, and the next step.

    "" if it holds nothing that is known. Raises CheckpointError for an adapter that cannot be read.
    """
    # An adapter of peft
    if (directory / ADAPTER).is_file():
        adapter = read_json(directory / ADAPTER)
        kind = short_repr(adapter.get("peft_type"))
        base = short_repr(adapter.get("base_model_name_or_path"))
        try:
            names = list(adapter_tensors(directory))
        except CheckpointError:  # an adapter whose weights are damaged has a base, too
            names = []
        use = how_to_use(adapter, names)
        return f" ({ADAPTER} is of an adapter, {kind}, for the model {base}: {use})"

    # The folder of a training with transformers' Trainer
    saved_steps = {}  # step -> the directory of its checkpoint
    for path in directory.glob("checkpoint-*"):
        step = path.name.removeprefix("checkpoint-")
        if step.isdecimal() and path.is_dir():
            saved_steps[int(step)] = path
    if saved_steps:
        newest = saved_steps[max(saved_steps)]
        return f" (it holds checkpoints of a training: give one of them, such as {newest})"

    # Files and folders of other programs
    names = sorted(path.name for path in directory.glob("*"))
    for pattern, sentence in OTHER_PROGRAMS.items():
        for name in fnmatch.filter(names, pattern):
            return f" ({name} {sentence})"
    return _folder_in_place_of_a_file(directory) or _weights_that_are_not_found(names)


def _folder_in_place_of_a_file(directory: Path) -> str:
    """What an error says of a folder, or a link to no file, with the name of a file of a model."""
    for name in (CONFIG, *WEIGHT_FILES):
        path = directory / name
        if path.is_symlink() and not path.exists():
            return f" ({name} is a link that leads to no file)"
        if path.exists() and not path.is_file():
            return f" ({name} is no file)"
    return ""


def adapter_tensors(directory: Path) -> dict[str, Tensor]:
    """The tensors of the adapter in a directory; none without an adapter, or without its weights.

    Raises CheckpointError if they cannot be read.
    """
    if not (directory / ADAPTER).is_file():
        return {}
    files = (directory / name for name in ADAPTER_WEIGHTS)
    file = next((file for file in files if file.is_file()), None)
    return {} if file is None else read_weights(file).tensors


def how_to_use(adapter: dict[str, Any], names: Collection[str]) -> str:
    """What to do with an adapter.

    adapter: what its adapter_config.json holds. names: of its tensors; none if they are not known.
    """
    if adapter.get("peft_type") in PROMPT_ADAPTERS:
        return "it adds to the prompt, so it cannot be merged into the weights, and is not read"
    outside = [name for name in names if not IN_A_LAYER.search(name)]
    if names and not outside:  # the matrices that may be tied are outside of the layers
        return f"merge it {MERGE} to a new directory"
    if any(".lora_" in name for name in outside):
        return f"do not merge it into a tied model: {TIED}"
    return f"merge it {MERGE} to a new directory, and compare its logits before and after: {TIED}"


def first_of_quantised(names: Iterable[Any]) -> str:
    """The first name that only quantised weights have; "" without one."""
    return next((str(name) for name in names if NAMES_OF_QUANTISED.fullmatch(str(name))), "")


def _weights_that_are_not_found(names: list[str]) -> str:
    """What an error says of weights that have no config.json, another name, or another format."""
    has_config = CONFIG in names
    for name in names:
        match = re.search(r"-\d+-of-\d+\.(safetensors|bin)$", name)  # model-00001-of-00002.bin
        if match and has_config:
            index = INDEX if match[1] == "safetensors" else PYTORCH_INDEX
            return f" ({name} is one of several files: get {index}, which lists them, too)"
    for name in names:
        if name.endswith(".safetensors") or name in WEIGHT_FILES:
            if has_config:
                return f" (there is {name}: give this file)"
            return f" (there is {name}: put the {CONFIG} of its model beside it)"
    for name in names:
        description = describe(Path(name))
        if description not in ("", GIVE_DIRECTORY) and not NOT_WEIGHTS.match(name):
            return f" ({name} {description})"
    return ""
