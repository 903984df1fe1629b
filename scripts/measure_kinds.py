"""How transformers reads the matrices of each kind of model, measured: the file kinds.json.

    python scripts/measure_kinds.py names DIR     # with transformers 4, then with transformers 5
    python scripts/measure_kinds.py measure DIR   # with both again: half an hour on one core
    python scripts/measure_kinds.py heads DIR     # with both: classes without a head, and all names
    python scripts/measure_kinds.py save DIR      # with 5: a small model of each class
    python scripts/measure_kinds.py load DIR      # with 4: which of these it cannot load
    python scripts/measure_kinds.py write DIR     # with 5: kinds.json; tables of head.py, head.md

Of each class with an output matrix, in all of transformers' Auto mappings, a small model is made
and saved. Then its files are changed, and it is loaded again: each matrix alone, both, equal or
not, beside each flag, by each set of names. What is in memory then is written to a file of DIR for
this class, so that a run that was ended goes on where it was. A class that cannot be made small is
left out; `write` says why.

Matrices: the token embedding, the output matrix, and those of the encoder and the decoder. A state
of the files has a letter for each matrix, "." for one that is not there: of "ab" both are there and
differ, "aa" are equal, "a." is the first alone. A reading has a letter for each matrix in memory:
"ab"; "a?" if the second is random; "a0" if the second is the first one (matrix 0). It is "!" for an
error.
"""

import argparse
import contextlib
import copy
import importlib
import itertools
import json
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

KINDS_FILE = Path(__file__).resolve().parents[1] / "tiedgpt" / "anymodel" / "kinds.json"
HEAD_FILE = Path(__file__).resolve().parent / "head.py"
HEAD_PAGE = HEAD_FILE.with_suffix(".md")
FLAG = "tie_word_embeddings"
V, D = 97, 32
MAX_PARAMETERS = 25_000_000
MAX_MATRICES = 4
SECONDS = 240  # for a class
# Not measured: the output matrix of MobileBERT is joined of two tensors, so no state of one says
# how it is read. That of FSMT is another one than transformers names.
OTHER_HEADS = (
    "FSMTForConditionalGeneration",
    "MobileBertForMaskedLM",
    "MobileBertForPreTraining",
)
# transformers 4 leaves a matrix of these, if the files lack it, as the memory was: what it holds
# then is not known.
LEFT_IN_MEMORY = ("SwitchTransformersForConditionalGeneration",)
STEPS = ("names", "measure", "heads", "save", "load", "work", "write")
PRETRAINING = "MODEL_FOR_PRETRAINING_MAPPING_NAMES"
MAPPINGS = (
    "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES",
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_VISION_2_SEQ_MAPPING_NAMES",  # of transformers 4
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",  # of transformers 5
    "MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES",
    "MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES",
    "MODEL_FOR_VISUAL_QUESTION_ANSWERING_MAPPING_NAMES",
    PRETRAINING,
)
# Their classes predict tokens, too, by a matrix that is no output matrix to transformers.
MAPPINGS_OF_SPEECH_AND_SCANS = (
    "MODEL_FOR_CTC_MAPPING_NAMES",
    "MODEL_FOR_RNNT_MAPPING_NAMES",
    "MODEL_FOR_TDT_MAPPING_NAMES",
    "MODEL_FOR_TEXT_RECOGNITION_MAPPING_NAMES",
    "MODEL_FOR_TABLE_RECOGNITION_MAPPING_NAMES",
)

# The kinds of text model that are tried in each model of texts and images, or sound.
TEXT_KINDS = ("llama", "mistral", "qwen2")

# A field of a configuration -> its value in a small model, if the kind has this field.
SMALL = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "dim", "emb_dim", "embedding_size"), D),
    **dict.fromkeys(("embed_dim", "encoder_hidden_size", "decoder_hidden_size"), D),
    **dict.fromkeys(("projection_dim", "out_hidden_size", "output_dim", "text_hidden_size"), D),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers", "depth"), 2),
    **dict.fromkeys(("encoder_layers", "decoder_layers", "num_decoder_layers"), 2),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads", "num_heads"), 4),
    **dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), 4),
    **dict.fromkeys(("encoder_num_attention_heads", "decoder_num_attention_heads"), 4),
    **dict.fromkeys(("encoder_num_hidden_layers", "decoder_num_hidden_layers"), 2),
    **dict.fromkeys(("intermediate_size", "n_inner", "ffn_dim", "d_ff", "hidden_dim"), 64),
    **dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 64),
    **dict.fromkeys(("moe_intermediate_size", "expert_ffn_hidden_size"), 16),
    **dict.fromkeys(("num_experts", "n_routed_experts", "num_local_experts"), 4),
    **dict.fromkeys(("head_dim", "v_head_dim", "qk_head_dim", "attention_head_size"), 8),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "kv_lora_rank", "q_lora_rank"), 8),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_source_positions"), 64),
    **dict.fromkeys(("vocab_size", "unpadded_vocab_size", "vocab_size_per_layer_input"), V),
    **dict.fromkeys(("n_group", "topk_group", "first_k_dense_replace"), 1),
    **dict.fromkeys(("pad_token_id", "pad_idx", "num_nextn_predict_layers"), 0),
    **dict.fromkeys(("bos_token_id", "decoder_start_token_id"), 1),
    **dict.fromkeys(("eos_token_id", "num_experts_per_tok", "num_key_value_heads"), 2),
    "hidden_size_per_layer_input": 8,
    "state_size": 8,
    "mamba_d_head": 16,
    "mamba_n_heads": 4,
    **dict.fromkeys(("image_token_id", "image_token_index"), 5),
    **dict.fromkeys(("video_token_id", "video_token_index"), 6),
    **dict.fromkeys(("audio_token_id", "audio_token_index"), 7),
    "image_size": 32,
    "patch_size": 16,
}
MORE_FIELDS: dict[str, dict[str, Any]] = {
    "gpt_neo": {"attention_types": [[["global", "local"], 1]]},
    "mamba2": {"num_heads": 8},
    "nemotron": {"num_key_value_heads": 2},
    "zamba2": {"layer_types": ["mamba", "hybrid"]},
    "hunyuan_v1_dense": {"head_dim": 8},
}
MROPE = {"rope_type": "default", "mrope_section": [2, 1, 1]}
# Fields of small models that transformers 4 needs, and transformers 5 has defaults for.
MORE_FIELDS_OF_4: dict[str, dict[str, Any]] = {
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "phi4_multimodal": {
        "vision_config": {
            **{"hidden_size": D, "intermediate_size": 64, "num_hidden_layers": 2},
            **{"num_attention_heads": 4, "image_size": 32, "patch_size": 16, "image_token_id": 5},
        },
        "audio_config": {
            **{"hidden_size": D, "intermediate_size": 64, "num_blocks": 2},
            **{"num_attention_heads": 4, "ext_pw_out_channel": D, "audio_token_id": 7},
            **{"depthwise_separable_out_channel": D, "nemo_conv_channels": D},
        },
    },
    "qwen3_vl": {"text_config": {"rope_scaling": MROPE}},
    "qwen3_vl_moe": {"text_config": {"rope_scaling": MROPE}},
    "zamba2": {"layers_block_type": ["mamba", "hybrid"], "layer_types": ["mamba", "hybrid"]},
}
POSITIONS = ("max_position_embeddings", "max_target_positions")
TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id")
LETTERS = "abcdefgh"
# The usual names of the sizes of both matrices: they are tried first.
LIKELY_SIZES = ("vocab_size", "hidden_size", "d_model", "n_embd", "embedding_size")


# ---- Small models ----


def small_fields(fields: dict[str, Any], without: tuple[str, ...] = ()) -> dict[str, Any]:
    """The values of SMALL for the fields of a configuration, also in nested configurations.

    without: fields that keep the value of the kind.
    """
    small: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, dict) and (name.endswith("config") or name == "decoder"):
            small[name] = small_fields(value, without)
            if "model_type" in value:
                small[name]["model_type"] = value["model_type"]
        elif name in without:
            continue
        elif name == "layer_types" and isinstance(value, list):
            small[name] = value[:2]  # for the two layers of a small model
        elif name in SMALL and (type(value) is int or name in TOKENS):  # a token may be None
            small[name] = SMALL[name]
    return small


def small_config(kind: str, without: tuple[str, ...] = (), **more_fields: Any) -> Any:
    """The configuration of a small model of a kind. Raises what transformers raises.

    without: fields of SMALL that keep the value of the kind.
    """
    from transformers import CONFIG_MAPPING

    config_class = CONFIG_MAPPING[kind]
    fields = small_fields(config_class().to_dict(), without)
    fields_of_kind = MORE_FIELDS.get(kind, {})
    if version_of().startswith("4."):
        fields_of_kind = MORE_FIELDS_OF_4.get(kind, fields_of_kind)
    fields = merged(fields, fields_of_kind)
    return config_class(**merged(fields, more_fields))


def merged(fields: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
    """The fields of both; one that both have is that of `others`. So in nested configurations."""
    result = dict(fields)
    for name, value in others.items():
        old = result.get(name)
        if isinstance(old, dict) and isinstance(value, dict):
            value = merged(old, value)
        result[name] = value
    return result


def class_of(name: str) -> Any:
    import transformers

    return getattr(transformers, name)


# What is tried in turn: fields that keep the value of the kind, and have not that of SMALL
ATTEMPTS: tuple[tuple[str, ...], ...] = (
    (),
    ("num_key_value_heads",),
    ("layer_types", "num_hidden_layers", "num_layers", "n_layers"),
    ("intermediate_size", "moe_intermediate_size", "hidden_size_per_layer_input"),
    ("num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size", "embed_dim"),
    TOKENS,
    ("patch_size", "image_size", "depth", "embed_dim", "num_heads", "out_hidden_size", "dim"),
)


def new_model(kind: str, class_name: str, **more_fields: Any) -> Any:
    """An untied model with random weights, of a kind and a class. Raises what transformers raises.

    A model that is not small is a ValueError.
    """
    first_error: Exception | None = None  # that of the model with all values of SMALL
    for without in ATTEMPTS:
        try:
            config = small_config(kind, without, **more_fields)
            return model_of(config, class_name)
        except Exception as error:
            first_error = first_error or error
    assert first_error is not None
    raise first_error


def model_of(config: Any, class_name: str) -> Any:
    """An untied model of a configuration and a class."""
    import torch

    model_class = class_of(class_name)
    set_flags(config, tied=False)
    parameters = 0
    # On "meta" a model has no memory, so its size is seen before it is made. Some classes cannot be
    # made there.
    with contextlib.suppress(NotImplementedError), torch.device("meta"):
        parameters = model_class(copy.deepcopy(config)).num_parameters()
    if parameters > MAX_PARAMETERS:
        raise ValueError(f"it cannot be made small: {parameters:,} parameters")
    torch.manual_seed(0)
    return model_class(config).eval()


def set_flags(config: Any, tied: bool) -> None:
    """Set the flag of a configuration, and of the configurations in it."""
    if hasattr(config, FLAG):
        setattr(config, FLAG, tied)
    for value in list(vars(config).values()):
        if is_configuration(value):
            set_flags(value, tied)


def is_configuration(value: Any) -> bool:
    """Whether a field of a configuration is a configuration itself."""
    return hasattr(value, "to_dict") and hasattr(value, "model_type")


def classes() -> list[tuple[str, str]]:
    """(kind, class) of all mappings whose classes may have an output matrix."""
    from transformers.models.auto import modeling_auto

    found = set()
    for mapping in MAPPINGS:
        for kind, names in getattr(modeling_auto, mapping, {}).items():
            for name in [names] if isinstance(names, str) else names:
                if name not in OTHER_HEADS:
                    found.add((kind, name))
    return sorted(found)


def what_is_there() -> dict[str, list[str]]:
    """All "kinds" and "classes" that this version of transformers has."""
    import transformers

    return {"kinds": sorted(transformers.CONFIG_MAPPING.keys()), "classes": dir(transformers)}


def classes_without_head() -> dict[str, dict[str, bool]]:
    """kind -> its classes -> whether this class has no output matrix.

    The classes are those of all mappings whose task is not to predict tokens. A class without a
    table of tokens is listed only if its kind has language models. A class that cannot be made
    small is left out.
    """
    from transformers.models.auto import modeling_auto

    classes_of: dict[str, set[str]] = {}
    predict_tokens = set()
    language_kinds = set()
    # A class for pretraining may predict tokens or something else: such classes are looked at.
    mappings_of_text = set(MAPPINGS) - {PRETRAINING}
    for mapping in dir(modeling_auto):
        if not mapping.endswith("_MAPPING_NAMES"):
            continue
        for kind, names in getattr(modeling_auto, mapping).items():
            of_kind = {names} if isinstance(names, str) else set(names)
            classes_of.setdefault(kind, set()).update(of_kind)
            if mapping in mappings_of_text or mapping in MAPPINGS_OF_SPEECH_AND_SCANS:
                predict_tokens |= {(kind, name) for name in of_kind}
            if mapping in mappings_of_text:
                language_kinds.add(kind)
    found: dict[str, dict[str, bool]] = {}
    for kind in sorted(classes_of):
        for name in sorted(classes_of[kind]):
            if (kind, name) in predict_tokens:
                continue
            without = has_no_head(kind, name, needs_tokens=kind not in language_kinds)
            if without is not None:
                found.setdefault(kind, {})[name] = without
    return found


def has_no_head(kind: str, class_name: str, needs_tokens: bool) -> bool | None:
    """Whether a model of this class has no output matrix; None if it cannot be made small.

    needs_tokens: whether the answer is None for a class without a table of tokens, too.
    """
    import torch

    try:
        config = small_config(kind)
        with torch.device("meta"):
            model = class_of(class_name)(config)
        if model.config.model_type != kind:
            return None
        # get_output_embeddings does not know every output matrix. A module with a matrix that has V
        # rows or columns, and that is no table of tokens, may be one.
        of_tokens = [
            module
            for module in model.modules()
            if any(V in each.shape and each.dim() > 1 for each in module.parameters(recurse=False))
        ]
        tables = [module for module in of_tokens if isinstance(module, torch.nn.Embedding)]
        if needs_tokens and not tables:
            return None
        return len(tables) == len(of_tokens) and model.get_output_embeddings() is None
    except Exception:  # of any type: transformers cannot make the model
        return None


# ---- The matrices of a model ----


def all_tensors(model: Any) -> dict[str, Any]:
    """name -> parameter or buffer, each under all of its names."""
    tensors = dict(model.named_buffers(remove_duplicate=False))
    tensors.update(model.named_parameters(remove_duplicate=False))
    return tensors


def matrix_keys(model: Any) -> list[str]:
    """The names in memory of the matrices: the embedding, the head, then the others.

    The others are tables of tokens with the shape of the embedding. Raises ValueError if the model
    has no embedding or no head.
    """
    import torch

    head = getattr(model.get_output_embeddings(), "weight", None)
    if head is None:
        raise ValueError("it has no output matrix")
    embedding = token_embedding(model, head)
    stored = model.state_dict()
    # A matrix is known by its address in memory, since it may have several names.
    addresses = {embedding.data_ptr(), head.data_ptr()}
    for module in model.modules():
        if isinstance(module, torch.nn.Embedding) and module.weight.shape == embedding.shape:
            addresses.add(module.weight.data_ptr())
    keys = [name for name, tensor in stored.items() if tensor.data_ptr() in addresses]
    of_embedding = [key for key in keys if stored[key].data_ptr() == embedding.data_ptr()]
    of_head = [key for key in keys if stored[key].data_ptr() == head.data_ptr()]
    if not of_embedding or not of_head or embedding.data_ptr() == head.data_ptr():
        raise ValueError("its embedding and its output matrix cannot be told apart")
    first_two = [of_embedding[0], of_head[0]]
    in_order = first_two + of_embedding + of_head + keys
    return list(dict.fromkeys(in_order))  # each once


def token_embedding(model: Any, head: Any) -> Any:
    """The parameter that tokens are looked up in. Raises ValueError if it is not clear.

    It has a row for each token, as the head has.
    """
    candidates = []
    with contextlib.suppress(NotImplementedError, AttributeError):
        candidates.append(model.get_input_embeddings())
    with contextlib.suppress(Exception):
        candidates.append(model.get_decoder().get_input_embeddings())
    for module in candidates:
        weight = getattr(module, "weight", None)
        if weight is not None and weight.dim() == 2 and weight.shape[0] == head.shape[0]:
            return weight
    raise ValueError("its token embedding is not known")


def new_values(shape: Any, letter: str) -> Any:
    """The values of a letter, for a matrix of this shape."""
    import torch

    generator = torch.Generator().manual_seed(ord(letter))
    return torch.randn(tuple(shape), generator=generator) * 0.02


def states(shapes: list[Any]) -> list[str]:
    """All states of files with matrices of these shapes. Equal ones have one shape."""
    found = []
    for letters in itertools.product("." + LETTERS[: len(shapes)], repeat=len(shapes)):
        seen: list[str] = []
        for letter in letters:
            if letter != "." and letter not in seen:
                seen.append(letter)
        in_order = seen == list(LETTERS[: len(seen)])  # "ba" and "bc" say the same as "ab"
        fits = all(
            shapes[i] == shapes[j]
            for i, j in itertools.combinations(range(len(shapes)), 2)
            if letters[i] == letters[j] != "."
        )
        if in_order and fits:
            found.append("".join(letters))
    return found


def reading(model: Any, keys: list[str]) -> str:
    """The letters for what is in memory. keys: the names in memory of the matrices."""
    import torch

    tensors = all_tensors(model)
    letters = ""
    for number, key in enumerate(keys):
        tensor = tensors[key].detach()
        if tensor.is_meta:  # it has no values: the model cannot run
            return "!"
        first = next(
            (i for i in range(number) if tensors[keys[i]].data_ptr() == tensor.data_ptr()), None
        )
        if first is not None:  # this matrix is an earlier one
            letters += str(first)
            continue
        letter = "?"
        for candidate in LETTERS[: len(keys)]:
            values = new_values(tensor.shape, candidate).to(tensor.dtype)
            # Ten rows are enough. The first ones are left out: some kinds set the row of a padding
            # token to 0 when they are loaded.
            if torch.equal(tensor[10:20].cpu(), values[10:20]):
                letter = candidate
        letters += letter
    return letters


# ---- Files ----


class Folder:
    """A saved model of a class, whose files are changed and loaded again."""

    def __init__(self, model: Any, directory: Path) -> None:
        from safetensors.torch import load_file

        self.directory = directory
        self.model_class = type(model)
        self.keys = matrix_keys(model)  # names in memory
        state = state_to_save(model, self.keys)
        self.shapes = [tuple(state[key].shape) for key in self.keys]
        for letter, key in zip(LETTERS, self.keys, strict=False):
            state[key] = new_values(state[key].shape, letter).to(state[key].dtype)
        model.save_pretrained(directory, state_dict=dict(state))
        self.config = json.loads((directory / "config.json").read_text())
        # A file may have other names than the memory: its tensors are known by their values.
        tensors = load_file(directory / "model.safetensors")
        self.names = [name_of(state[key], tensors) or key for key in self.keys]
        self.rest = {name: tensor for name, tensor in tensors.items() if name not in self.names}
        buffers = [state[name] for name, _ in model.named_buffers() if name in state]
        names = [name_of(buffer, self.rest) for buffer in buffers]
        self.buffers = {name for name in names if name is not None}
        self.levels = levels(model.config, self.config)
        self.no_flags: tuple[bool | None, ...] = (None,) * len(self.levels)
        self.parameters = 0  # of the model that `read` has made last; `rule` keeps some of them
        self.parameters_by_flag: dict[str, int] = {}

    def write(
        self,
        state: str,
        flags: tuple[bool | None, ...],
        names: list[str],
        prefix: tuple[str, str] = ("", ""),
    ) -> None:
        """Write the files of a state. names: of the matrices.

        prefix: what the names of all other tensors begin with, and what stands there instead.
        """
        from safetensors.torch import save_file

        tensors = {}
        old, new = prefix
        for name, tensor in self.rest.items():
            if name.startswith(old):
                name = new + name[len(old) :]
            tensors[name] = tensor
        for letter, name, shape in zip(state, names, self.shapes, strict=True):
            if letter != ".":
                tensors[name] = new_values(shape, letter)
        save_file(tensors, self.directory / "model.safetensors", {"format": "pt"})
        config = with_flags(self.config, self.levels, flags)
        (self.directory / "config.json").write_text(json.dumps(config))

    def read(self) -> str:
        """The reading of the files by transformers."""
        try:
            model = self.model_class.from_pretrained(self.directory, local_files_only=True)
        except Exception:  # of any type: transformers does not load the files
            return "!"
        self.parameters = model.num_parameters()
        return reading(model, self.keys)

    def is_left_in_memory(self, measured: str) -> bool:
        """Whether a matrix without values in the files has what was in memory before.

        So it is with the classes LEFT_IN_MEMORY. measured: the reading of the files, with a "?".
        """
        is_of_class = self.model_class.__name__ in LEFT_IN_MEMORY
        return is_of_class and version_of().startswith("4.") and "?" in measured

    def depends_on_padding(self, measured: str) -> bool:
        """Whether files with equal matrices are read in another way without a padding token.

        measured: how the files are read as they are.

        Some classes set the row of the padding token in the embedding to 0 when they are loaded,
        before it is compared with the head. Without such a token the two stay equal.
        """
        file = self.directory / "config.json"
        text = file.read_text()
        file.write_text(json.dumps(with_padding(json.loads(text), pad=None)))
        without = self.read()
        file.write_text(text)
        return without not in (measured, "!")  # "!": some classes cannot do without the token


def state_to_save(model: Any, keys: list[str]) -> dict[str, Any]:
    """The state dict, where no matrix shares its memory, and each buffer has values of its own."""
    import torch

    buffers = {name for name, _ in model.named_buffers()}
    state = {}
    copies: dict[int, Any] = {}
    for name, tensor in model.state_dict().items():
        if name in keys:
            state[name] = tensor.clone()
        # A buffer is found in the file by its values.
        elif name in buffers and tensor.is_floating_point() and tensor.numel() > 0:
            state[name] = torch.randn(tensor.shape).to(tensor.dtype)
        else:  # two names of one tensor stay so
            state[name] = copies.setdefault(tensor.data_ptr(), tensor.clone())
            if state[name].shape != tensor.shape:  # a part of another tensor, or both are empty
                state[name] = tensor.clone()
    return state


def name_of(wanted: Any, tensors: dict[str, Any]) -> str | None:
    """The name of the tensor with these values; None if there is none."""
    import torch

    for name, tensor in tensors.items():
        if tensor.shape == wanted.shape and torch.equal(tensor, wanted):
            return name
    return None


def levels(config: Any, saved: dict[str, Any]) -> list[list[str]]:
    """The places of config.json that may have the flag, from its top [] to that of the text model.

    saved: config.json itself.
    """
    text = config.get_text_config()
    path = path_to(config, text) or []
    if not path and isinstance(saved.get("decoder"), dict):  # get_text_config passes it over
        path = ["decoder"]
    return [path[:depth] for depth in range(len(path) + 1)]


def path_to(config: Any, wanted: Any) -> list[str] | None:
    """The names of the attributes from a configuration to one inside of it; None: not there."""
    if config is wanted:
        return []
    for name, value in vars(config).items():
        if is_configuration(value):
            rest = path_to(value, wanted)
            if rest is not None:
                return [name, *rest]
    return None


def with_flags(
    config: dict[str, Any], places: list[list[str]], flags: tuple[bool | None, ...]
) -> Any:
    """config.json with a flag at each of these places; None removes it."""
    config = copy.deepcopy(config)
    for place, flag in zip(places, flags, strict=True):
        fields = config
        for name in place:
            fields = fields.setdefault(name, {})
        fields.pop(FLAG, None)
        if flag is not None:
            fields[FLAG] = flag
    return config


def with_padding(config: dict[str, Any], pad: int | None) -> dict[str, Any]:
    """config.json with another padding token wherever it has one, also in nested objects."""
    fields: dict[str, Any] = {}
    for name, value in config.items():
        fields[name] = with_padding(value, pad) if isinstance(value, dict) else value
        if name == "pad_token_id":
            fields[name] = pad
    return fields


def flag_letters(flags: tuple[bool | None, ...]) -> str:
    """A letter for each flag: t, f, or - for one that is not there."""
    return "".join({True: "t", False: "f", None: "-"}[flag] for flag in flags)


# ---- What is measured of a class ----


def pattern(name: str) -> str:
    """A name of a tensor, with N in place of each number."""
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "N", name)


def facts_of_names(folder: Folder, model: Any) -> dict[str, Any]:
    """The facts for which the files need not be loaded."""
    return {
        "keys": folder.keys,
        "names": folder.names,
        "shapes": folder.shapes,
        "levels": folder.levels,
        "base": model.base_model_prefix,
        "tied_keys": bool(getattr(model, "_tied_weights_keys", None)),
        **facts_of_counts(folder, model),
    }


def facts_of_counts(folder: Folder, model: Any) -> dict[str, Any]:
    """Which of the stored tensors are no parameters, and whether the others add up."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = sorted({pattern(name) for name in folder.buffers})
    is_buffer = set(buffers)
    counted = sum(t.numel() for name, t in folder.rest.items() if pattern(name) not in is_buffer)
    expected = count_beside(model, folder.keys)
    # Other tensors with two names, of which one is in the files: the bias of a head, for example.
    stored_names = {}  # address in memory -> the name in the files
    for name, tensor in parameters.items():
        if name in folder.rest:
            stored_names[tensor.data_ptr()] = name
    copies = {}
    for name, tensor in parameters.items():
        is_stored = name in folder.rest or name in folder.keys
        if not is_stored and tensor.data_ptr() in stored_names:
            copies[name] = stored_names[tensor.data_ptr()]
    separate, counted_if_tied, expected_if_tied = one_if_tied(folder, model, is_buffer)
    return {
        "buffers": buffers,
        "copies": copies,
        "separate": separate,
        "counts": counted == expected and counted_if_tied == expected_if_tied,
        "rest": [counted, expected],
    }


def one_if_tied(folder: Folder, model: Any, is_buffer: set[str]) -> tuple[dict[str, str], int, int]:
    """The stored tensors that are one in a tied model, and two in an untied one; and two counts.

    The first is a dict: the name of such a tensor -> the name by which it is counted. The counts
    are the parameters of a tied model beside its matrices, first by the stored tensors, then by
    transformers.
    """
    untied = all_tensors(model)
    config = copy.deepcopy(model.config)
    set_flags(config, tied=True)
    tied_model = type(model)(config)
    tied_model.tie_weights()
    parameters = dict(tied_model.named_parameters(remove_duplicate=False))
    first_names: dict[int, str] = {}
    found = {}
    counted = 0
    for name, tensor in folder.rest.items():
        if pattern(name) in is_buffer:
            continue
        counted += tensor.numel()
        if name not in parameters or name not in untied:
            continue
        first = first_names.setdefault(parameters[name].data_ptr(), name)
        if untied[first].data_ptr() != untied[name].data_ptr():
            found[name] = first
            counted -= tensor.numel()
    return found, counted, count_beside(tied_model, folder.keys)


def count_beside(model: Any, keys: list[str]) -> int:
    """The number of parameters beside the matrices. keys: the names of the matrices in memory."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    matrices = {
        parameters[key].data_ptr(): parameters[key].numel() for key in keys if key in parameters
    }
    number: int = model.num_parameters()
    return number - sum(matrices.values())


def padding(folder: Folder) -> dict[str, Any]:
    """The padding token of a kind by default, and the number of positions that it must be below.

    "default_pad": that of a config.json without one. "positions": the field and its default, of a
    class whose table of positions has a row for the padding token, so that a later token does not
    load.
    """
    found: dict[str, Any] = {}
    usual = folder.model_class.config_class()
    pads = [getattr(each, "pad_token_id", None) for each in (usual, usual.get_text_config())]
    if any(isinstance(pad, int) for pad in pads):
        found["default_pad"] = max(pad for pad in pads if isinstance(pad, int))
    folder.write("a" * len(folder.keys), folder.no_flags, folder.names)
    if folder.read() == "!":
        return found
    # The last token of the vocabulary, which is beyond the 64 positions of a small model
    file = folder.directory / "config.json"
    file.write_text(json.dumps(with_padding(json.loads(file.read_text()), pad=V - 1)))
    if folder.read() == "!":
        text = usual.get_text_config()
        name = next(name for name in POSITIONS if hasattr(text, name))
        found["positions"] = {name: getattr(text, name)}
    return found


def defaults(folder: Folder) -> list[bool | None]:
    """The flag of each level where config.json has none."""
    folder.write("a" * len(folder.keys), folder.no_flags, folder.names)
    config = folder.model_class.config_class.from_pretrained(folder.directory)
    found = []
    for level in folder.levels:
        part = config
        for name in level:
            part = getattr(part, name)
        found.append(getattr(part, FLAG, None))
    return found


def variants(
    folder: Folder, facts: dict[str, Any], others: list[list[str]]
) -> list[tuple[str, list[str], Any]]:
    """(label, names of the matrices, prefix of the rest) of each set of names that is tried.

    others: the sets of names of another version of transformers.
    """
    found: list[tuple[str, list[str], Any]] = [("saved", folder.names, ("", ""))]

    def add(label: str, names: list[str], prefix: Any = ("", "")) -> None:
        is_new = all(names != names_of_other for _, names_of_other, _ in found)
        if is_new and len(set(names)) == len(names):
            found.append((label, names, prefix))

    for names in others:
        if len(names) == len(folder.names):
            add("other version", names)
    add("memory", folder.keys)
    base = facts["base"] + "."  # "model." of a LlamaForCausalLM, whose inner model is a LlamaModel
    head = folder.names[1]
    if facts["base"]:
        # As LlamaModel saves: no name has the prefix.
        add("without base", [name.removeprefix(base) for name in folder.names], (base, ""))
        # As a larger model saves: the head has the prefix, too.
        if not head.startswith(base):
            add("head in base", [folder.names[0], base + head, *folder.names[2:]])
    return found


def measure(
    kind: str, class_name: str, others: list[list[str]], only_names: bool
) -> dict[str, Any]:
    """All facts of a class. Raises what transformers raises if it cannot be made small."""
    model = new_model(kind, class_name)
    if model.config.model_type != kind:
        raise ValueError(f"its model_type is {model.config.model_type}")
    with tempfile.TemporaryDirectory() as directory:
        folder = Folder(model, Path(directory))
        if len(folder.keys) > MAX_MATRICES:
            raise ValueError(f"it has {len(folder.keys)} matrices: {folder.keys}")
        facts = facts_of_names(folder, model)
        if only_names:
            return facts
        facts["shape_fields"] = shape_fields(folder)
        facts["defaults"] = defaults(folder)
        facts["padding"] = padding(folder)
        facts["share"] = share_fields(folder.config)
        facts["rules"] = [
            {"label": label, "names": names, "rule": rule(folder, names, prefix, label)}
            for label, names, prefix in variants(folder, facts, others)
        ]
        facts["other_flags"] = other_flags(folder)
        facts["nested_kinds"] = nested_kinds(kind, class_name, folder, facts["rules"])
        facts["parameters"] = folder.parameters_by_flag
    return facts


def rule(folder: Folder, names: list[str], prefix: Any, label: str) -> dict[str, dict[str, str]]:
    """flags -> state -> reading. Of names that are rare, fewer states and flags are measured."""
    count = len(folder.keys)
    embedding_alone = "a" + "." * (count - 1)
    all_equal, all_different = "a" * count, LETTERS[:count]
    is_rare = label not in ("saved", "other version")

    tried = [state for state in states(folder.shapes) if state in some_states(count)]
    if is_rare:
        tried = [state for state in tried if state in ("a.", ".a", "ab", "a...", "abaa", "abbb")]
    if label == "without base" and ".a" in tried:  # such files are of a model without its head
        tried.remove(".a")
    if label == "head in base" and "a." in tried:  # without the head, the names are those saved
        tried.remove("a.")

    found: dict[str, dict[str, str]] = {}
    for flags in itertools.product((None, True, False), repeat=len(folder.levels)):
        differ = len(set(flags)) > 1
        if is_rare and differ:
            continue
        by_state = found.setdefault(flag_letters(flags), {})
        for state in tried:
            if differ and state not in (embedding_alone, all_equal, all_different):
                continue
            folder.write(state, flags, names, prefix)
            measured = folder.read()
            is_whole = state == all_different or (state == all_equal and flags[0])
            if label == "saved" and is_whole and measured != "!":
                folder.parameters_by_flag[flag_letters(flags)] = folder.parameters
            # Not known: the values of one row decide, or what the memory was.
            depends = has_equal(state) and folder.depends_on_padding(measured)
            if not depends and not folder.is_left_in_memory(measured):
                by_state[state] = measured
    return found


def has_equal(state: str) -> bool:
    """Whether two matrices of a state are equal."""
    letters = state.replace(".", "")
    return len(set(letters)) < len(letters)


def some_states(count: int) -> list[str]:
    """The states that are measured: for two matrices all, for more those that are likely."""
    if count == 2:
        return [".a", "a.", "aa", "ab"]
    _nothing, *equal = ("".join(letters) for letters in itertools.product(".a", repeat=count))
    others = count - 2
    another_head = ["ab" + "." * others, "ab" + "a" * others, "ab" + "b" * others]
    return [*equal, *another_head, "aabb"[:count], "ab.a"[:count], "aba."[:count], LETTERS[:count]]


def other_flags(folder: Folder) -> list[list[str]]:
    """The places in config.json, beside folder.levels, where a flag changes a reading."""
    places = [path for path in nested_places(folder.config) if path not in folder.levels]
    embedding_alone = "a" + "." * (len(folder.keys) - 1)
    folder.write(embedding_alone, folder.no_flags, folder.names)
    usual = folder.read()
    found = []
    original = folder.config
    for place, flag in itertools.product(places, (True, False)):
        folder.config = with_flags(original, [place], (flag,))
        folder.write(embedding_alone, folder.no_flags, folder.names)
        if folder.read() != usual and place not in found:
            found.append(place)
    folder.config = original
    return found


def nested_kinds(
    kind: str, class_name: str, folder: Folder, rules: list[dict[str, Any]]
) -> dict[str, list[str]]:
    """The kinds of model at each place inside of config.json where the flag may stand.

    They are the class's own, and each of TEXT_KINDS with which the files are read in the same way.
    """
    [rule] = [each["rule"] for each in rules if each["label"] == "saved"]
    found = {}
    for level in folder.levels[1:]:  # the first is the top of config.json
        fields = folder.config
        for name in level:
            fields = fields.get(name) or {}
        if "model_type" in fields:
            found[".".join(level)] = [fields["model_type"]]
    if len(found) != 1:  # no text model inside, or one inside of another: no other is tried
        return found
    [(place, kinds)] = found.items()
    for text_kind in TEXT_KINDS:
        fields = small_config(text_kind).to_dict() | {"model_type": text_kind}
        try:
            model = new_model(kind, class_name, **{place: fields})
            with tempfile.TemporaryDirectory() as directory:
                is_same = reads_as(Folder(model, Path(directory)), folder.names, rule)
        except Exception:  # the class does not take such a text model
            continue
        if is_same and text_kind not in kinds:
            kinds.append(text_kind)
    return found


def reads_as(folder: Folder, names: list[str], rule: dict[str, dict[str, str]]) -> bool:
    """Whether files with these names are read by a rule, in a few states."""
    if folder.names != names:
        return False
    values = {"t": True, "f": False, "-": None}
    for flags, state in (("tt", "a."), ("ff", "ab"), ("--", "a."), ("--", "ab"), ("tf", "aa")):
        folder.write(state, tuple(values[flag] for flag in flags), names)
        if folder.read() != rule[flags][state]:
            return False
    return True


def nested_places(config: dict[str, Any]) -> list[list[str]]:
    """The places of all configurations in a config.json."""
    found: list[list[str]] = [[]]
    for name, value in config.items():
        if isinstance(value, dict) and (name.endswith("config") or "model_type" in value):
            found += [[name, *rest] for rest in nested_places(value)]
    return found


def share_fields(config: dict[str, Any]) -> dict[str, bool]:
    """Other fields of config.json that may tie: they were measured with these values alone."""
    return {
        name: value
        for name, value in config.items()
        if isinstance(value, bool)
        and re.search(r"(^|_)(tie|tied|share|shared)(_|$)", name)
        and name != FLAG
    }


def shape_fields(folder: Folder) -> list[list[list[str] | None]]:
    """For each axis of the first two matrices: the place in config.json that gives its size."""
    import torch

    config_class = folder.model_class.config_class
    result: list[list[list[str] | None]] = [[None, None], [None, None]]  # [matrix][axis]
    for axis in (0, 1):
        # Every field with the size of this axis is tried, the likely ones first: the size comes
        # from the field if a model with another value has a matrix of another shape.
        sizes = {folder.shapes[0][axis], folder.shapes[1][axis]}
        places = [place for size in sizes for place in places_of(folder.config, size)]
        places.sort(key=lambda place: (place[-1] not in LIKELY_SIZES, len(place)))
        for place in places:
            if all(result[which][axis] is not None for which in (0, 1)):
                break
            fields = copy.deepcopy(folder.config)
            *parents, last_name = place
            inner = fields
            for name in parents:
                inner = inner[name]
            # V may be any number. D stays a multiple of the heads if it is doubled.
            changed = inner[last_name] + 8 if axis == 0 else 2 * inner[last_name]
            inner[last_name] = changed
            for name in ("architectures", "transformers_version", "dtype", "torch_dtype"):
                fields.pop(name, None)
            try:
                with torch.device("meta"):
                    tensors = all_tensors(folder.model_class(config_class.from_dict(fields)))
            except Exception:  # of any type: no model has this value there, and the rest as it is
                continue
            for which in (0, 1):
                is_from_place = tensors[folder.keys[which]].shape[axis] == changed
                if is_from_place and result[which][axis] is None:
                    result[which][axis] = place
    return result


def places_of(config: dict[str, Any], size: int) -> list[list[str]]:
    """The places of all fields with this value."""
    found = []
    for name, value in config.items():
        if isinstance(value, dict):
            found += [[name, *rest] for rest in places_of(value, size)]
        elif type(value) is int and value == size:
            found.append([name])
    return found


# ---- The run ----


def quiet() -> None:
    """One thread, and no warnings: transformers warns of each contradiction of flags and files."""
    import torch
    import transformers

    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    transformers.utils.logging.disable_progress_bar()


def file_of(directory: Path, version: str, kind: str, class_name: str) -> Path:
    return directory / version / f"{kind}.{class_name}.json"


def version_of() -> str:
    import transformers

    return transformers.__version__


def work(directory: Path, cases: list[str], only_names: bool) -> None:
    """Measure these "kind.class", one after the other, and write a file for each."""
    quiet()
    version = version_of()
    for case in cases:
        kind, class_name = case.split(".")
        path = file_of(directory, version, kind, class_name)
        if only_names and path.exists():
            continue
        # The sets of names that another version of transformers was measured with. (Names without
        # the base's prefix are tried by each version.)
        others = []
        for other in directory.glob(f"*/{kind}.{class_name}.json"):
            facts = json.loads(other.read_text())
            if other != path and "names" in facts:
                rules = [each for each in facts.get("rules", ()) if each["label"] != "without base"]
                others += [facts["names"], *(each["names"] for each in rules)]
        path.with_suffix(".begun").touch()  # `run` finds it if this process is ended
        started = time.time()
        try:
            facts = measure(kind, class_name, others, only_names)
        except Exception as error:  # of any type: `write` prints why the class was not measured
            facts = {"error": f"{type(error).__name__}: {error}"[:300]}
        facts["seconds"] = round(time.time() - started, 1)
        facts["complete"] = not only_names or "error" in facts  # `run` leaves it out then
        path.write_text(json.dumps(facts))
        path.with_suffix(".begun").unlink()


def run(directory: Path, only: list[str], only_names: bool, part: str) -> None:
    """Measure all classes, some in each process. part: "0/3" is the first of three parts."""
    quiet()
    version = version_of()
    (directory / version).mkdir(parents=True, exist_ok=True)
    cases = []
    for kind, class_name in classes():
        path = file_of(directory, version, kind, class_name)
        if only and kind not in only:
            continue
        if path.exists():
            facts = json.loads(path.read_text())
            if only_names or facts["complete"]:
                continue
        cases.append(f"{kind}.{class_name}")
    number, parts = map(int, part.split("/"))
    cases = cases[number::parts]
    while cases:
        # A class may end the process that measures it, or take too long. So a few are measured in
        # each process, and after such a class the next process goes on.
        some, cases = cases[:30], cases[30:]
        command = [sys.executable, __file__, "work", str(directory), *some]
        if only_names:
            command.append("--names")
        with contextlib.suppress(subprocess.TimeoutExpired):
            subprocess.run(command, timeout=5 * SECONDS, check=False)  # most take a few seconds
        for case in some:
            path = directory / version / f"{case}.begun"
            if path.exists():  # the process was ended, or ended itself
                path.unlink()
                failure = {"error": "too slow, or the process ended", "complete": True}
                path.with_suffix(".json").write_text(json.dumps(failure))
                not_begun = some[some.index(case) + 1 :]
                cases = not_begun + cases
        print(len(cases), "left", flush=True)


# ---- Kinds whose parameters are counted from config.json ----

# Changes of a small Llama, after which the formula still has to hold.
OTHER_SIZES: tuple[dict[str, int], ...] = (
    {"num_hidden_layers": 3},
    {"intermediate_size": 40},
    {"vocab_size": 101},
    {"num_key_value_heads": 1},
    {"num_key_value_heads": 4},
    {"head_dim": 16},
    {"hidden_size": 64},
)


class SmallLlama:
    """A kind whose layers may be those of Llama: its number of parameters by any fields."""

    def __init__(self, kind: str, class_name: str) -> None:
        config = small_config(kind)
        self.config_class = type(config)
        self.model_class = class_of(class_name)
        self.fields = json.loads(json.dumps(config.to_dict(), default=str))

    def num_parameters(self, changes: dict[str, Any], without: str = "") -> int | None:
        """num_parameters() of an untied model with these changes; None if it cannot be made.

        without: a field that config.json does not have then.
        """
        import torch

        fields = {name: value for name, value in self.fields.items() if name != without}
        try:
            config = self.config_class.from_dict({**fields, **changes})
            set_flags(config, tied=False)
            with torch.device("meta"):
                return int(self.model_class(config).num_parameters())
        except Exception:
            return None

    def is_counted(
        self, layers: dict[str, Any], changes: dict[str, Any], without: str = ""
    ) -> bool:
        """Whether tiedgpt counts the model with these changes, and counts it rightly."""
        from tiedgpt.anymodel.counting import count_from_config

        fields = {name: value for name, value in self.fields.items() if name != without}
        report = count_from_config({**fields, **changes}, layers)
        number = self.num_parameters(changes, without)
        return report is not None and report["untied"]["total"] == number

    def layers(self) -> dict[str, Any] | None:
        """The layers without optional fields, if they are those of Llama; None if not."""
        sizes = [each for each in ({}, *OTHER_SIZES) if self.num_parameters(each) is not None]
        if len(sizes) < 5 or {} not in sizes:  # too few to tell one formula from another
            return None
        for biases, head_norms, norms in itertools.product((False, True), (False, True), (2, 4)):
            layers: dict[str, Any] = {
                "qkv_biases": biases,
                "head_norms": head_norms,
                "norms": norms,
                "biases": ["attention_bias", "mlp_bias"],
                "optional": ["head_dim", "num_key_value_heads"],
                "fixed": {},
            }
            if all(self.is_counted(layers, each) for each in sizes):
                return layers
        return None


def like_llama(kind: str, class_name: str) -> dict[str, Any] | None:
    """What anymodel.counting.count_from_config needs for a kind; None if it is another one."""
    small = SmallLlama(kind, class_name)
    layers = small.layers()
    if layers is None:
        return None
    more_heads = {"num_attention_heads": 8}  # so that no default equals them by chance
    biases = [name for name in layers["biases"] if small.is_counted(layers, {name: True})]
    optional = [
        name
        for name in layers["optional"]
        if small.is_counted(layers, {}, name) and small.is_counted(layers, more_heads, name)
    ]
    layers |= {"biases": biases, "optional": optional}
    sizes = {name for each in OTHER_SIZES for name in each}
    for name, value in small.fields.items():
        if name in sizes or name in ("attention_bias", "mlp_bias") or not isinstance(value, int):
            continue
        other = not value if isinstance(value, bool) else value + 1
        can_be_made = small.num_parameters({name: other}) is not None
        # The field changes the number of parameters in a way that the formula does not have.
        if can_be_made and not small.is_counted(layers, {name: other}):
            layers["fixed"][name] = value
    return layers


# ---- What transformers 5 saves, and transformers 4 cannot load ----


def save_all(directory: Path) -> None:
    """Save a small model of each class; one that cannot be made is left out."""
    for kind, class_name in classes():
        with contextlib.suppress(Exception):
            new_model(kind, class_name).save_pretrained(
                directory / "saved" / f"{kind}.{class_name}"
            )


def not_loaded(directory: Path) -> list[str]:
    """The "kind.class" among the saved ones that this version has and cannot load."""
    import transformers

    found = []
    for path in sorted((directory / "saved").iterdir()):
        model_class = getattr(transformers, path.name.rpartition(".")[2], None)
        if model_class is None:
            continue
        try:
            model_class.from_pretrained(path)
        except Exception:
            found.append(path.name)
    return found


# ---- The file of facts ----


def write(directory: Path) -> None:
    """Write kinds.json from the files of both versions."""
    by_class, measured, without_head = read_measured(directory)
    not_read = json.loads((directory / "not_loaded.json").read_text())
    rules: list[str] = []
    kinds: dict[str, dict[str, Any]] = {}
    for (kind, class_name), facts in sorted(by_class.items()):
        entry = entry_of(facts, rules)
        entry["auto"] = is_auto(kind, class_name)
        entry["in"] = versions_with(directory, kind, class_name)
        if f"{kind}.{class_name}" in not_read and "4" in entry["rules"]:
            entry["not_read_by_4"] = True
        kinds.setdefault(kind, {})[class_name] = entry
    parts = []
    for kind, classes in kinds.items():
        lines = lines_of(classes, indent=" ")
        parts.append(f"{json.dumps(kind)}: {{\n{lines}\n}}")
    like_llama_file = directory / "like_llama.json"
    if not like_llama_file.exists():
        like_llama_file.write_text(json.dumps(all_like_llama()))
    text = "\n".join(
        [
            "{",
            f'"measured": {json.dumps(measured)},',
            '"rules": [',
            ",\n".join(rules),
            '],\n"kinds": {',
            ",\n".join(parts),
            '},\n"without_head": {',
            lines_of({kind: sorted(names) for kind, names in sorted(without_head.items())}),
            '},\n"like_llama": {',
            lines_of(json.loads(like_llama_file.read_text())),
            "}\n}\n",
        ]
    )
    json.loads(text)  # raises if a part above is not JSON: then the old file stays
    KINDS_FILE.write_text(text)
    write_head_table(kinds)
    write_who_ties()
    print(len(kinds), "kinds,", len(by_class), "classes,", len(rules), "rules,", len(text), "bytes")


def write_head_table(kinds: dict[str, dict[str, Any]]) -> None:
    """Write the kinds that are tied by default into head.py, which is read by itself."""
    head = importlib.import_module("head")
    tied = tied_by_default(kinds, head.KINDS)
    text = HEAD_FILE.read_text(encoding="utf-8")
    line = f"TIED_BY_DEFAULT = {json.dumps(tied)}"
    HEAD_FILE.write_text(re.sub(r"^TIED_BY_DEFAULT = .*$", line, text, flags=re.M), "utf-8")


def tied_by_default(kinds: dict[str, dict[str, Any]], of: list[str]) -> list[str]:
    """Which of these kinds transformers 5 ties if config.json has no flag."""
    found = []
    for kind in sorted(of):
        classes = [entry for entry in kinds.get(kind, {}).values() if entry["auto"]]
        if [entry["defaults"]["5"] for entry in classes] == [[True]]:  # one class, one place
            found.append(kind)
    return found


def who_ties() -> str:
    """The table of head.md: what `check` says of a config.json that has a model_type alone."""
    from tiedgpt.anymodel.kinds import is_tied, load_kinds, model_class
    from tiedgpt.anymodel.ties import read_flag

    measured = load_kinds()["measured"]
    rows: dict[str, list[str]] = {
        "tied": [],
        "untied": [],
        "it depends on the version": [],
        "never tied, whatever the flag says": [],
    }
    for kind, classes in load_kinds()["kinds"].items():
        config = {"model_type": kind}
        known = model_class(config)
        is_causal = known is not None and known.name.endswith(("ForCausalLM", "LMHeadModel"))
        if known is None or not is_causal or not classes[known.name]["auto"]:
            continue
        # Never tied: the head is another matrix, though all flags say tied and the files lack it.
        embedding_alone = "a" + "." * (len(known.names[0]) - 1)
        flags = "t" * len(known.places)
        readings = [known.reading(version, 0, flags, embedding_alone) for version in known.rules]
        tied = read_flag(kind, config, known)["tied"]
        if not any(reading is None or is_tied(reading) for reading in readings):
            row = "never tied, whatever the flag says"
        elif tied is None:
            row = "it depends on the version"
        else:
            row = "tied" if tied else "untied"
        rows[row].append(kind)
    date = max(version["date"] for version in measured.values())
    versions = " and ".join(measured[major]["transformers"] for major in sorted(measured))
    lines = [
        f"Measured on {date} with transformers {versions}:",
        "",
        "| without a flag | kinds that AutoModelForCausalLM takes (`model_type`) |",
        "|---|---|",
        *(f"| {row} | {', '.join(kinds)} |" for row, kinds in rows.items() if kinds),
    ]
    return "\n".join(lines)


def write_who_ties() -> None:
    """Write the table into head.md, from its first line to the empty line below it."""
    text = HEAD_PAGE.read_text(encoding="utf-8")
    table = re.compile(r"^Measured on .*?\n\n(\|.*\n)+", re.M)
    HEAD_PAGE.write_text(table.sub(lambda _: who_ties() + "\n", text), encoding="utf-8")


def lines_of(entries: dict[str, Any], indent: str = "") -> str:
    """The entries of a JSON object, a line for each."""
    lines = [f"{indent}{json.dumps(name)}: {json.dumps(value)}" for name, value in entries.items()]
    return ",\n".join(lines)


def read_measured(directory: Path) -> tuple[dict[Any, dict[str, Any]], Any, dict[str, set[str]]]:
    """(kind, class) -> version -> facts; what was measured with; kind -> classes without a head.

    Prints the classes that were not measured, and why.
    """
    import torch

    by_class: dict[Any, dict[str, Any]] = {}
    measured: dict[str, Any] = {}
    without_head: dict[str, set[str]] = {}
    with_head: set[tuple[str, str]] = set()  # in one of the versions
    for folder in sorted(path for path in directory.iterdir() if path.is_dir()):
        major = folder.name.split(".")[0]
        newest = max(path.stat().st_mtime for path in folder.glob("*.json"))
        measured[major] = {
            "transformers": folder.name,
            "torch": torch.__version__.split("+")[0],
            "date": time.strftime("%Y-%m-%d", time.gmtime(newest)),
        }
        for path in sorted(folder.glob("*.*.json")):
            kind, class_name, _json = path.name.rsplit(".", 2)
            facts = json.loads(path.read_text())
            if "rules" in facts:
                by_class.setdefault((kind, class_name), {})[major] = facts
            elif "error" in facts:
                print("not measured:", path.stem, "|", " ".join(facts["error"].split())[:120])
        for kind, answers in json.loads((folder / "without_head.json").read_text()).items():
            without_head.setdefault(kind, set()).update(answers)
            with_head |= {(kind, name) for name, without in answers.items() if not without}
    # A class that has a head in one of the versions is none without a head.
    for kind, name in with_head:
        without_head[kind].discard(name)
    return by_class, measured, without_head


def all_like_llama() -> dict[str, Any]:
    """Kind -> what like_llama says of it, for all kinds of causal language models."""
    from transformers.models.auto import modeling_auto

    found = {}
    for kind, name in modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items():
        try:
            layers = like_llama(kind, name if isinstance(name, str) else name[0])
        except Exception:
            continue
        if layers is not None:
            found[kind] = layers
    return found


def is_auto(kind: str, class_name: str) -> bool:
    """Whether AutoModelForCausalLM takes this class for the kind."""
    from transformers.models.auto import modeling_auto

    names = modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind)
    return class_name == (names if isinstance(names, str) or names is None else names[0])


def versions_with(directory: Path, kind: str, class_name: str) -> list[str]:
    """The versions of transformers that have a class, whether it was measured there or not."""
    found = []
    for file in sorted(directory.glob("*/has.json")):
        has = json.loads(file.read_text())
        if kind in has["kinds"] and class_name in has["classes"]:
            found.append(file.parent.name.split(".")[0])
    return found


def sets_of_names(
    facts: dict[str, dict[str, Any]],
) -> tuple[list[list[str]], list[tuple[str, str]]]:
    """The sets of names of a class, in both versions, and the prefix of each: (absent, "")."""
    names: list[list[str]] = []
    prefixes: list[tuple[str, str]] = []
    for major in sorted(facts, reverse=True):  # the names that the newest version saves come first
        for each in facts[major]["rules"]:
            has_same_matrices = not names or len(each["names"]) == len(names[0])
            if each["names"] not in names and has_same_matrices:
                names.append(each["names"])
                base = facts[major]["base"] + "."
                prefixes.append((base, "") if each["label"] == "without base" else ("", ""))
    return names, prefixes


def kinds_of_all(facts: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """Place in config.json -> the own kind there of each version, and the kinds of all."""
    found = {}
    of_versions = [each["nested_kinds"] for each in facts.values()]
    for place in sorted({place for kinds in of_versions for place in kinds}):
        lists = [kinds[place] for kinds in of_versions if place in kinds]
        of_each = {kinds[0] for kinds in lists}
        of_all = set.intersection(*(set(kinds) for kinds in lists))
        found[place] = sorted(of_each | of_all)
    return found


def entry_of(facts: dict[str, dict[str, Any]], rules: list[str]) -> dict[str, Any]:
    """The entry of a class in kinds.json. New rules are added to `rules`."""
    newest = facts[max(facts)]
    names, prefixes = sets_of_names(facts)
    # Version -> for each set of names, the number of its rule. Many classes share a rule.
    numbers: dict[str, list[int | None]] = {}
    for major in facts:
        numbers[major] = [None] * len(names)
        for each in facts[major]["rules"]:
            if each["names"] not in names:  # this version has other matrices
                continue
            text = json.dumps(each["rule"])
            if text not in rules:
                rules.append(text)
            numbers[major][names.index(each["names"])] = rules.index(text)
    # A version that reads none of these sets of names was not measured.
    numbers = {major: rows for major, rows in numbers.items() if set(rows) != {None}}
    entry: dict[str, Any] = {
        "names": names,
        "prefixes": prefixes,
        "rules": numbers,
        "places": [".".join(level) for level in newest["levels"]],
        "defaults": {major: facts[major]["defaults"] for major in numbers},
        "sizes": [
            [None if place is None else ".".join(place) for place in axes]
            for axes in newest["shape_fields"]
        ],
        "counted": all(each["counts"] for each in facts.values()),
    }
    return entry | {name: value for name, value in optional_fields(facts).items() if value}


def optional_fields(facts: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """The fields that an entry of kinds.json has only if they are not empty."""
    newest = facts[max(facts)]
    versions = facts.values()
    copies = {name: kept for each in versions for name, kept in each["copies"].items()}
    # Two names of one tensor in an older version, and two tensors in the newest one
    now_separate = copies.keys() - newest["copies"].keys()
    return {
        "shares": {name: value for each in versions for name, value in each["share"].items()},
        "copies": copies | newest["separate"],
        "separate": sorted(now_separate | newest["separate"].keys()),
        "buffers": sorted({name for each in versions for name in each["buffers"]}),
        "nested_kinds": kinds_of_all(facts),
        "default_pad": max(each["padding"].get("default_pad", 0) for each in versions),
        "positions": newest["padding"].get("positions"),
        "other_flags": sorted(
            {".".join(place) for each in versions for place in each["other_flags"]}
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("step", choices=STEPS)
    parser.add_argument("directory", type=Path)
    parser.add_argument("cases", nargs="*")
    parser.add_argument("--names", action="store_true")
    parser.add_argument("--part", default="0/1", help="such as 0/3, 1/3 and 2/3 at the same time")
    args = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"
    if args.step == "work":
        work(args.directory, args.cases, args.names)
    elif args.step == "heads":
        quiet()
        folder = args.directory / version_of()
        (folder / "without_head.json").write_text(json.dumps(classes_without_head()))
        (folder / "has.json").write_text(json.dumps(what_is_there()))
    elif args.step == "save":
        quiet()
        save_all(args.directory)
    elif args.step == "load":
        quiet()
        (args.directory / "not_loaded.json").write_text(json.dumps(not_loaded(args.directory)))
    elif args.step in ("names", "measure"):
        run(args.directory, args.cases, args.step == "names", args.part)
    else:
        write(args.directory)


if __name__ == "__main__":
    main()
