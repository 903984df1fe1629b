"""Write a checkpoint that transformers' from_pretrained reads, too."""

import json
from pathlib import Path

from ..errors import ArgumentError, CheckpointError, short_repr
from ..gpt2.model import GPT2
from ..gpt2.tokenizer import Tokenizer
from . import safetensors
from .huggingface import WEIGHTS
from .publishing import StagedFiles
from .tensor_names import to_transformers
from .vocabulary import ADDED, vocabulary_files


def save_model(model: GPT2, tokenizer: Tokenizer | None, directory: str | Path) -> None:
    """Write config.json, model.safetensors (float32) and, unless None, the tokenizer's files.

    transformers' from_pretrained reads the result with either head; a tied one has no
    lm_head.weight. The files appear together or not at all (see StagedFiles). Raises ArgumentError
    for other arguments, CheckpointError if the files cannot be written.
    """
    if not isinstance(model, GPT2):
        raise ArgumentError(f"the model must be a GPT2, got {short_repr(model)}")
    if not isinstance(tokenizer, Tokenizer | None):
        raise ArgumentError(
            f"the tokenizer must be a Tokenizer or None, got {short_repr(tokenizer)}"
        )
    if not isinstance(directory, str | Path) or not str(directory) or "\0" in str(directory):
        raise ArgumentError(f"the directory must be a path, got {short_repr(directory)}")
    with StagedFiles(Path(directory)) as files:
        write_model(files, model, tokenizer)


def write_model(files: StagedFiles, model: GPT2, tokenizer: Tokenizer | None) -> None:
    """Write what save_model writes to `files`, to which the caller may add others."""
    try:
        config = json.dumps(model.config.to_json(), indent=2, sort_keys=True) + "\n"
    except (RecursionError, TypeError, ValueError) as error:  # in Config.others
        raise CheckpointError(
            f"{files.directory}: config.json cannot be written: {error}"
        ) from error
    tensors = {to_transformers(name): array for name, array in model.parameters.items()}
    safetensors.write(files.open(WEIGHTS), tensors.items())
    if tokenizer is not None:
        texts = vocabulary_files(tokenizer)
        if (files.directory / ADDED).exists():
            texts.setdefault(ADDED, "{}")  # replaces the added tokens of an earlier save
        for name, text in texts.items():
            files.open(name).write(text.encode())
    files.open("config.json").write(config.encode())
