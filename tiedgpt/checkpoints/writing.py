"""Checkpoints as transformers has them, written: config, weights, and the tokenizer's files."""

import json
import warnings
from collections.abc import Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, BinaryIO

from ..atomic import new_directory
from ..errors import ArgumentError, CheckpointError, TiedGPTWarning, short_repr
from ..gpt2.model import GPT2
from ..gpt2.special_tokens import Flags
from ..gpt2.tokenizer import EOT, Tokenizer
from . import safetensors
from .files import WEIGHTS
from .json_files import CONFIG
from .names import name_in_transformers
from .vocabulary import SETTINGS, TOKENIZER_JSON


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
    # The class of a tokenizer in the model's configuration may be another one than this one's.
    if tokenizer is not None and "tokenizer_class" in model.config.others:
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
    tensors = {name_in_transformers(name): array for name, array in model.parameters.items()}
    safetensors.write(file, tensors.items())


# The tokenizer


def tokenizer_files(tokenizer: Tokenizer) -> dict[str, bytes]:
    """The contents of merges.txt and vocab.json, by name. For GPT-2 they are OpenAI's files.

    If the special tokens are not <|endoftext|> alone, or a space is put before a text, more files
    are written. Without them, transformers would give other ids.
    """
    merges = "".join(f"{left} {right}\n" for left, right in tokenizer.merges)
    files = {
        "merges.txt": f"#version: 0.2\n{merges}".encode(),
        "vocab.json": json.dumps(tokenizer.ids).encode(),
    }
    settings: dict[str, Any] = {}
    if EOT not in tokenizer.special_tokens:
        settings["tokenizer_class"] = "PreTrainedTokenizerFast"  # GPT2Tokenizer would add it
    if tokenizer.prefix_space:
        settings["add_prefix_space"] = True
    if settings:
        files[SETTINGS] = json.dumps(settings).encode()
    if settings or tokenizer.flags != {EOT: Flags()}:
        files[TOKENIZER_JSON] = json.dumps(tokenizer_json(tokenizer)).encode()
    return files


def tokenizer_json(tokenizer: Tokenizer) -> dict[str, Any]:
    """The object of tokenizer.json, with all fields that transformers writes."""
    byte_level = {
        "type": "ByteLevel",
        "add_prefix_space": False,
        "trim_offsets": True,
        "use_regex": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {"id": token, "content": text, **asdict(tokenizer.flags[text])}
            for text, token in tokenizer.special_tokens.items()
        ],
        "normalizer": None,
        "pre_tokenizer": byte_level | {"add_prefix_space": tokenizer.prefix_space},
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": tokenizer.ids,
            "merges": [[left, right] for left, right in tokenizer.merges],
        },
    }
