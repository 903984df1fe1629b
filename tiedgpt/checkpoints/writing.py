"""Checkpoints as transformers has them, written: config.json, model.safetensors, other files."""

import json
import warnings
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

from ..atomic import new_directory
from ..errors import ArgumentError, CheckpointError, TiedGPTWarning, short_repr
from ..gpt2.model import GPT2
from ..gpt2.tokenizer import Tokenizer
from . import safetensors
from .json_files import CONFIG
from .names import name_in_transformers
from .refused import WEIGHTS
from .vocabulary import tokenizer_files


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
    tensors = {name_in_transformers(name): array for name, array in model.parameters.items()}
    safetensors.write(file, tensors.items())
