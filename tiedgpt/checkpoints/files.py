"""Checkpoints as transformers has them, read and written: config.json and model.safetensors.

The weights are in one file, or in several with an index. generation_config.json and the tokenizer's
files lie beside them. `load` reads a model, also from PyTorch's files (pickles.py) and OpenAI's
(tensorflow.py), and `save_model` writes one.
"""

import fnmatch
import json
import os
import re
import warnings
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from ..atomic import new_directory
from ..errors import ArgumentError, CheckpointError, ConfigError, TiedGPTWarning, short_repr
from ..gpt2.checks import check_parameters
from ..gpt2.config import QUANTISED, Config
from ..gpt2.model import GPT2
from ..gpt2.tokenizer import Tokenizer
from . import safetensors, tensorflow
from .json_files import READ_MORE, open_to_read, read_json
from .places import INDEX, PYTORCH, PYTORCH_INDEX, Note, discard_note
from .safetensors import Tensor, read_header
from .vocabulary import read_tokenizer, tokenizer_files

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
GENERATION_CONFIG = "generation_config.json"
NANO_GPT = "ckpt.pt"
# A directory may have several of these: the first one is read.
WEIGHT_FILES = (WEIGHTS, INDEX, PYTORCH, PYTORCH_INDEX, NANO_GPT)
PICKLES = (".bin", ".pt", ".pth")  # the ends of the names of files of torch.save
# The name of one file of several. It has no directory.
SHARD = re.compile(r"[A-Za-z0-9][\w.-]{,199}\.(safetensors|bin)", re.ASCII)

HEAD = "lm_head.weight"  # W_U transposed
PREFIX = "transformer."  # before all other names, in the files that transformers writes today
# torch's DistributedDataParallel and torch.compile put more before all names.
# mlx-lm's models, and others that hold a GPT-2 as `model`, have that name before theirs.
PREFIXES = re.compile(r"^((module|_orig_mod|model)\.)*(transformer\.)?")
# Older files also have the causal mask of each layer, which is no parameter.
MASK = re.compile(r"h\.\d+\.attn\.(bias|masked_bias)")
# What a model may have beside, or in place of, the head that predicts tokens.
OTHER_HEAD = re.compile(r"(v_head|score|classifier|multiple_choice_head|qa_outputs)\.")

CONTRADICTION = (
    f"config.json says tied, but the file has another {HEAD}, which is used: untied, as "
    'transformers 5 reads it; transformers 4 reads it as tied, as head "tied" does here; for '
    'untied everywhere, write "tie_word_embeddings": false into config.json'
)

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
    tensorflow.INDEX_END: GIVE_DIRECTORY,
    tensorflow.DATA_END: GIVE_DIRECTORY,
    ".safetensors.index.json": GIVE_DIRECTORY,
    ".bin.index.json": GIVE_DIRECTORY,
}
MERGE = "with peft's merge_and_unload, and save that model"
ADAPTER = "adapter_config.json"  # written by peft, for what is added to the weights of a base model
ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
# peft's types of adapters that add to the prompt, not to the weights.
PROMPT_ADAPTERS = ("PROMPT_TUNING", "MULTITASK_PROMPT_TUNING", "P_TUNING", "PREFIX_TUNING", "CPT")
# What transformers' Trainer and accelerate write beside a model.
NOT_WEIGHTS = re.compile(
    r"optimizer|scheduler|training_args|rng_state|random_states|scaler|sampler|dl_state"
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

# Settings of generation_config.json, and the value with which a text is as without it. The value of
# any other setting is None, False, 0 or nothing.
NO_CHANGE = {
    "temperature": 1,
    "top_p": 1,
    "typical_p": 1,
    "repetition_penalty": 1,
    "num_beams": 1,
    "num_beam_groups": 1,
    "length_penalty": 1,
    "guidance_scale": 1,
}
# Other settings that a config.json may have, as those of before 2023.
IN_OLD_CONFIGS = (
    "top_k",
    "no_repeat_ngram_size",
    "bad_words_ids",
    "suppress_tokens",
    "begin_suppress_tokens",
    "forced_bos_token_id",
    "forced_eos_token_id",
    "exponential_decay_length_penalty",
    "min_length",
)
# The parts of generation_config.json that do not change which tokens are likely.
NOT_OF_THE_TEXT = re.compile(
    r"_.*|transformers_version|(bos|eos|pad|decoder_start)_token_id|do_sample|max_.*|early_stopping"
    r"|use_cache|cache_.*|output_.*|return_.*|num_return_sequences|renormalize_logits"
    r"|remove_invalid_values|encoder_.*|.*assistant.*|.*_lookbehind|prompt_lookup_num_tokens"
    r"|speculation_type|use_mtp|.*compile.*|low_memory|prefill_chunk_size|continuous_batching_config"
)

# What describes the tokenizer and the generation of a model, and is copied with it.
COPIED = (
    "merges.txt",
    "vocab.json",
    "added_tokens.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "chat_template.json",
    GENERATION_CONFIG,
)
MORE_CHAT_TEMPLATES = "additional_chat_templates/*.jinja"  # where a tokenizer has several
OPENAIS_NAMES = {"merges.txt": "vocab.bpe", "vocab.json": "encoder.json"}

# Loading


def load(path: Path, head: str | None = None, copy: bool = False) -> GPT2:
    """The model at a path that find_model gives.

    head: "tied", "untied", or None for the checkpoint's own. copy: False maps the file.
    """
    config = read_said_config(path)
    # The warnings name the line that called load_model, which called this function.
    tensors = without_other_heads(read_tensors(path, config), f"{path}", stacklevel=4)
    if head is not None:
        config = config.with_head(head)
    _check_tensors(path, tensors, config, head)
    if head is None and config.tied and HEAD in tensors and _has_another_head(tensors):
        warnings.warn(f"{path}: {CONTRADICTION}", TiedGPTWarning, stacklevel=3)
        config = config.with_head("untied")
    if config.tied:
        tensors.pop(HEAD, None)
    adapter = describe_adapter(path)
    if adapter:
        warnings.warn(f"{path}: {adapter}", TiedGPTWarning, stacklevel=3)
    is_windows = os.name == "nt"  # where a mapped file could not be replaced
    parameters = {name: tensor.values(copy or is_windows) for name, tensor in tensors.items()}
    if config.tied or HEAD in tensors:
        return GPT2(config, parameters)
    return GPT2(config.with_head("tied"), parameters).untie("copy")


def check_weights(path: Path) -> None:
    """Raise CheckpointError if the weights of a checkpoint are there, and `load` refuses them.

    No values are read.
    """
    if weights_file(path) is not None or is_of_tensorflow(path):
        config = read_said_config(path)
        tensors = without_other_heads(read_tensors(path, config), f"{path}", stacklevel=3)
        _check_tensors(path, tensors, config, head=None)


def _check_tensors(
    path: Path, tensors: dict[str, Tensor], config: Config, head: str | None
) -> None:
    """Raise CheckpointError if tensors do not fit the config. head: as for `load`."""
    if head is None and not config.tied and HEAD not in tensors:
        raise CheckpointError(
            f'{path}: config.json says "tie_word_embeddings": false but there is no '
            f'{HEAD}; load it with head "tied", or "untied" to start from a copy of wte.T'
        )
    quantised = first_of_quantised(tensors)
    if quantised:
        raise CheckpointError(f"{path}: has {short_repr(quantised)}, so {QUANTISED}")
    try:
        # A W_U is checked even if it is not used.
        check_parameters(tensors, replace(config, tied=HEAD not in tensors))
    except ArgumentError as error:
        raise CheckpointError(f"{path}: {error}{_other_prefix(tensors)}") from error


def _other_prefix(tensors: dict[str, Tensor]) -> str:
    """What an error says of names that begin in a way that is not known; "" for other names."""
    for name in tensors:
        if name.endswith(".wte.weight"):
            prefix = short_repr(name.removesuffix("wte.weight"))
            return f"; the names of this file begin with {prefix}, so remove that from each of them"
    return ""


def first_of_quantised(names: Iterable[Any]) -> str:
    """The first name that only quantised weights have; "" without one."""
    return next((str(name) for name in names if NAMES_OF_QUANTISED.fullmatch(str(name))), "")


def without_other_heads(tensors: Mapping[str, Any], called: str, stacklevel: int) -> dict[str, Any]:
    """The tensors without those of heads that do not predict tokens, such as v_head.

    A TiedGPTWarning names what is left out. It calls what has the tensors `called`.
    """
    others = [name for name in tensors if OTHER_HEAD.match(PREFIXES.sub("", str(name)))]
    if others:
        warnings.warn(
            f"{called}: {', '.join(others)}: of another head than the one that predicts tokens, so "
            "it is not used",
            TiedGPTWarning,
            stacklevel=stacklevel,
        )
    return {name: tensor for name, tensor in tensors.items() if name not in others}


def read_config(path: Path) -> Config:
    """The Config of the checkpoint at a path, with the head that is loaded from it.

    Weights that are missing or damaged are no error here. Raises CheckpointError for a
    configuration that cannot be read.
    """
    config = read_said_config(path)
    with suppress(CheckpointError):
        tensors = read_tensors(path, config)
        if config.tied and HEAD in tensors and _has_another_head(tensors):
            return config.with_head("untied")
    return config


def has_unembedding(path: Path) -> bool:
    """Whether the files of a checkpoint have a W_U, used or not. Raises CheckpointError."""
    return HEAD in read_tensors(path, read_said_config(path))


def _has_another_head(tensors: dict[str, Tensor]) -> bool:
    """Whether the W_U of a file is not its wte.T.

    transformers 5 takes such a file for untied, whatever config.json says.
    """
    return not tensors[HEAD].has_values_of(tensors["wte.weight"])


# Reading the files


def read_said_config(model: Path) -> Config:
    """The Config that the files of a model say.

    It is in config.json, in OpenAI's hparams.json or in nanoGPT's ckpt.pt. As in transformers,
    generation_config.json is preferred for the token that ends a text, if that file names one.
    Raises CheckpointError.
    """
    if model.is_file() and model.suffix not in (".safetensors", *PICKLES):
        description = describe(model)
        if description == "":
            description = "is not a checkpoint: expected a directory or a file of weights"
        raise CheckpointError(f"{model} {description}")
    file = weights_file(model)
    if file is not None and file.suffix in (".pt", ".pth"):
        from . import pickles  # only for such files, because importing it takes time

        config = pickles.nano_gpt_config(file)
        if config is not None:
            tensors = read_tensors(model, config)
            is_untied = HEAD in tensors and _has_another_head(tensors)
            return config.with_head("untied" if is_untied else "tied")
    directory = model if model.is_dir() else model.parent
    path = directory / CONFIG
    if not path.is_file():
        if os.path.isfile(model / tensorflow.HPARAMS):
            return tensorflow.read_hparams(model)
        raise CheckpointError(
            f"{directory} is not a checkpoint: it has no {CONFIG}{_what_is_there(directory)}"
        )
    try:
        config = Config.from_json(read_json(path))
        path = directory / GENERATION_CONFIG
        if path.is_file():
            eos_token_id = read_json(path).get("eos_token_id")
            if eos_token_id is not None:
                config = replace(config, eos_token_id=eos_token_id)
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error
    return config


def generation_settings(model: Path) -> tuple[str, dict[str, Any]]:
    """The name of generation_config.json, and its settings that change a text.

    The token that ends a text is not among them. transformers generates with them. Without this
    file, it takes those of config.json. Raises CheckpointError.
    """
    directory = model if model.is_dir() else model.parent
    file = GENERATION_CONFIG
    said: dict[str, Any] = {}
    if (directory / file).is_file():
        said = read_json(directory / file)
    elif (directory / CONFIG).is_file():
        file = CONFIG
        others = read_json(directory / file)
        said = {name: others[name] for name in (*NO_CHANGE, *IN_OLD_CONFIGS) if name in others}
    settings = {}
    for name, value in said.items():
        if not NOT_OF_THE_TEXT.fullmatch(name) and value and value != NO_CHANGE.get(name):
            settings[name] = value
    return file, settings


def read_tensors(model: Path, config: Config) -> dict[str, Tensor]:
    """The tensors of a model, by our names; the causal masks of older files are left out.

    model: a directory, or a file of weights itself. config: what read_said_config gives. No values
    are read, and names and shapes are not compared with those of `config`. Raises CheckpointError.
    """
    if is_of_tensorflow(model):
        return tensorflow.read_tensors(model, config)
    tensors: dict[str, Tensor] = {}
    for file_name, tensor in stored_tensors(model):
        name = PREFIXES.sub("", file_name)
        if MASK.fullmatch(name):
            continue
        if name in tensors:
            raise CheckpointError(
                f"{tensor.file}: {short_repr(name)} is there twice, with and without "
                f'"{PREFIX}", or in two files'
            )
        tensors[name] = tensor
    c_attn = tensors.get("h.0.attn.c_attn.weight")
    if c_attn is not None and len(c_attn.shape) == 2 and c_attn.shape[0] > c_attn.shape[1]:
        tensors = _with_transposed_matrices(tensors)
    if config.tied and HEAD in tensors and "wte.weight" not in tensors:
        tensors["wte.weight"] = tensors.pop(HEAD)  # one matrix, stored under its other name
    return tensors


def _with_transposed_matrices(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of a model whose matrices in the blocks are [out, in], such as mlx-lm's."""
    transposed = {}
    for name, tensor in tensors.items():
        is_in_block = name.startswith("h.")
        transposed[name] = tensor.transposed() if is_in_block and len(tensor.shape) == 2 else tensor
    return transposed


def is_of_tensorflow(model: Path) -> bool:
    """Whether a model is a directory of OpenAI's files."""
    return (model / tensorflow.HPARAMS).is_file() and not (model / CONFIG).is_file()


def weights_file(model: Path) -> Path | None:
    """The file of a model's weights, or the index of several; None if its directory has none."""
    if not model.is_dir():
        return model
    for name in WEIGHT_FILES:
        if (model / name).is_file():
            return model / name
    return None


def stored_tensors(
    model: Path, max_header: int = safetensors.MAX_HEADER
) -> list[tuple[str, Tensor]]:
    """(name in its file, tensor) of each tensor of a model of any kind, in one file or several.

    model: a directory, or a file of weights itself. Raises CheckpointError.
    """
    if is_of_tensorflow(model):
        tensors = tensorflow.read_tensors(model, tensorflow.read_hparams(model))
        return [(PREFIX + name, tensor) for name, tensor in tensors.items()]  # as transformers'
    file = weights_file(model)
    if file is None:
        raise CheckpointError(
            f"{model} is not a checkpoint: it has neither {WEIGHTS} nor {INDEX}"
            f"{_what_is_there(model)}"
        )
    if file.name.endswith(".index.json"):
        return _tensors_of_index(file, max_header)
    return list(_tensors_of_file(file, max_header).items())


def _tensors_of_file(file: Path, max_header: int) -> dict[str, Tensor]:
    """The tensors of a file of safetensors or of torch.save, by the names that they have in it."""
    if file.suffix in PICKLES:
        from . import pickles  # only for such files, because importing it takes time

        return pickles.read_saved(file).tensors
    tensors, _ = read_header(file, max_header)
    return tensors


def _tensors_of_index(index: Path, max_header: int) -> list[tuple[str, Tensor]]:
    """(name in its file, tensor) of each tensor in the files that an index lists."""
    directory = index.parent
    weight_map = check_weight_map(read_json(index), f"{index}")
    tensors: list[tuple[str, Tensor]] = []
    for file_name in sorted(set(weight_map.values())):
        file = directory / file_name
        in_file = _tensors_of_file(file, max_header)
        listed = {name for name, listed_file in weight_map.items() if listed_file == file_name}
        for name in sorted(listed - in_file.keys()):
            raise CheckpointError(
                f"{file}: tensor {short_repr(name)} is in the index but not in the file"
            )
        for name in sorted(in_file.keys() - listed):
            raise CheckpointError(
                f"{file}: tensor {short_repr(name)} is in the file but not in the index"
            )
        tensors += in_file.items()
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


def _what_is_there(directory: Path) -> str:
    """What an error says of a directory that is no checkpoint: what it holds, and the next step.

    "" if it holds nothing that is known. Raises CheckpointError for an adapter that cannot be read.
    """
    if (directory / ADAPTER).is_file():
        adapter = read_json(directory / ADAPTER)
        kind = short_repr(adapter.get("peft_type"))
        base = short_repr(adapter.get("base_model_name_or_path"))
        return (
            f" ({ADAPTER} is of an adapter, {kind}, for the model {base}: {_how_to_use(adapter)})"
        )
    saved_steps = {}  # step of a training with transformers' Trainer -> directory
    for path in directory.glob("checkpoint-*"):
        step = path.name.removeprefix("checkpoint-")
        if step.isdecimal() and path.is_dir():
            saved_steps[int(step)] = path
    if saved_steps:
        newest = saved_steps[max(saved_steps)]
        return f" (it holds checkpoints of a training: give one of them, such as {newest})"
    names = sorted(path.name for path in directory.glob("*"))
    for pattern, sentence in OTHER_PROGRAMS.items():
        for name in fnmatch.filter(names, pattern):
            return f" ({name} {sentence})"
    return _weights_by_another_name(names) or _files_not_read(names)


def _files_not_read(names: list[str]) -> str:
    """What an error says of files of weights in formats that are not found in a directory."""
    for name in names:
        description = describe(Path(name))
        if description not in ("", GIVE_DIRECTORY) and not NOT_WEIGHTS.match(name):
            return f" ({name} {description})"
    return ""


def describe_adapter(model: Path) -> str:
    """What is to be said of a model beside which lies an adapter, which is not read; "" without.

    Raises CheckpointError for an adapter_config.json that cannot be read.
    """
    directory = model if model.is_dir() else model.parent
    if not (directory / ADAPTER).is_file():
        return ""
    adapter = read_json(directory / ADAPTER)
    kind = short_repr(adapter.get("peft_type"))
    text = (
        f"{ADAPTER} is of an adapter, {kind}, which lies beside the model and is not used, but "
        f"which transformers applies where peft is installed: {_how_to_use(adapter)}"
    )
    for file in ADAPTER_WEIGHTS:
        if (directory / file).is_file():
            try:
                names = _tensors_of_file(directory / file, safetensors.MAX_HEADER)
            except CheckpointError as error:
                return f"{text}; whether it changes the head is not known: {error}"
            of_head = [name for name in names if re.search(r"\b(lm_head|wte)\b", name)]
            if of_head:
                return f"{text}; it changes the head: {file} has {short_repr(of_head[0])}"
            return text
    return f"{text}; whether it changes the head is not known: its weights are not here"


def _how_to_use(adapter: dict[str, Any]) -> str:
    """What to do with an adapter, of which this is the adapter_config.json."""
    if adapter.get("peft_type") in PROMPT_ADAPTERS:
        return "it adds to the prompt, so it cannot be merged into the weights, and is not read"
    return f"merge it {MERGE} to a new directory"


def _weights_by_another_name(names: list[str]) -> str:
    """What an error says of weights that lack a config.json, or have another name; "" without."""
    has_config = CONFIG in names
    for name in names:
        match = re.search(r"-\d+-of-\d+\.(safetensors|bin)$", name)
        if match and has_config:
            index = INDEX if match[1] == "safetensors" else PYTORCH_INDEX
            return f" ({name} is one of several files: get {index}, which lists them, too)"
    for name in names:
        if name.endswith(".safetensors") or name in WEIGHT_FILES:
            if has_config:
                return f" (there is {name}: give this file)"
            return f" (there is {name}: put the {CONFIG} of its model beside it)"
    return ""


# Writing


def save_model(model: GPT2, tokenizer: Tokenizer | None, directory: str | Path) -> None:
    """Write config.json, model.safetensors (float32) and, unless None, the tokenizer's files.

    directory: the name of a new directory, or an empty one. It appears complete, or not at all.
    transformers' from_pretrained reads it with either head; a tied model has no lm_head.weight. A
    tokenizer with another number of tokens than the model is written with a TiedGPTWarning. Raises
    ArgumentError for other arguments, CheckpointError for a directory that is not empty and if the
    files cannot be written.
    """
    if not isinstance(model, GPT2):
        raise ArgumentError(f"the model must be a GPT2, got {short_repr(model)}")
    if not isinstance(tokenizer, Tokenizer | None):
        raise ArgumentError(
            f"the tokenizer must be a Tokenizer or None, got {short_repr(tokenizer)}"
        )
    if not isinstance(directory, str | Path) or not str(directory):
        raise ArgumentError(f"the directory must be a path, got {short_repr(directory)}")

    V = model.config.vocab_size
    if tokenizer is not None and tokenizer.vocab_size != V:
        warnings.warn(
            f"the tokenizer has {tokenizer.vocab_size} tokens, and the model has {V}",
            TiedGPTWarning,
            stacklevel=2,
        )
    if tokenizer is not None and "tokenizer_class" in model.config.others:  # another tokenizer's
        others = dict(model.config.others)
        del others["tokenizer_class"]
        model = GPT2(replace(model.config, others=others), model.parameters)
    with new_directory(directory) as new:
        write_checkpoint(new, model, {} if tokenizer is None else tokenizer_files(tokenizer))


def write_checkpoint(directory: Path, model: GPT2, others: Mapping[str, bytes]) -> None:
    """Write config.json and model.safetensors, and other files beside them.

    directory: one that `new_directory` gives. Raises CheckpointError for a configuration that is no
    JSON.
    """
    try:
        config = json.dumps(model.config.to_json(), indent=2, sort_keys=True) + "\n"
    except (RecursionError, TypeError, ValueError) as error:  # in Config.others
        raise CheckpointError(f"{CONFIG} cannot be written: {error}") from error
    (directory / CONFIG).write_text(config, encoding="utf-8")
    for name, content in others.items():
        path = directory / name
        # Not `directory` itself: another process may have removed it, with what was written to it.
        if path.parent != directory:
            path.parent.mkdir(exist_ok=True)  # the folder of MORE_CHAT_TEMPLATES
        path.write_bytes(content)
    with open(directory / WEIGHTS, "wb") as file:
        write_weights(file, model)


def write_weights(file: BinaryIO, model: GPT2) -> None:
    """Write model.safetensors: the parameters in float32, by the names of transformers."""
    tensors = []
    for name, array in model.parameters.items():
        file_name = name if name == HEAD else PREFIX + name
        tensors.append((file_name, array))
    safetensors.write(file, tensors)


def copied_files(model: Path, note: Note = discard_note) -> dict[str, bytes]:
    """The tokenizer's files and generation_config.json of a checkpoint, as they are, by name.

    If transformers could not read the vocabulary from them, files that it can read are added. If
    there is no vocabulary at all, `note` is called. Raises CheckpointError for a file that cannot
    be read.
    """
    directory = model if model.is_dir() else model.parent
    paths = {name: directory / name for name in COPIED}
    for name, openais_name in OPENAIS_NAMES.items():
        if not paths[name].is_file():
            paths[name] = directory / openais_name
    for path in directory.glob(MORE_CHAT_TEMPLATES):
        paths[path.relative_to(directory).as_posix()] = path

    contents = {}
    for name, path in paths.items():
        if path.is_file():
            with open_to_read(path) as opened:
                contents[name] = opened.read()
    has_pair = "merges.txt" in contents and "vocab.json" in contents
    if not has_pair and "tokenizer.json" not in contents:
        try:
            files = tokenizer_files(read_tokenizer(model))
        except CheckpointError as error:
            note(f"{error}; the copy is written without a tokenizer")
            return contents
        contents = files | contents  # a file that is there stays as it is
    return contents
