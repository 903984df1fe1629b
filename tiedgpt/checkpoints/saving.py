"""Write a checkpoint that transformers' from_pretrained reads, too.

Beside the model there are a tokenizer's files: new ones (`tokenizer_files`), or those of another
checkpoint as they are (`copied_files`), with all that this code does not understand of them.
"""

import json
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

from ..errors import ArgumentError, CheckpointError, TiedGPTWarning, short_repr
from ..gpt2.config import Config
from ..gpt2.model import GPT2
from ..gpt2.tokenizer import Tokenizer
from . import safetensors
from .huggingface import GENERATION_CONFIG, WEIGHTS
from .messages import Note, discard_note
from .publishing import StagedFiles
from .reading import directory_of, open_to_read, read_json
from .tensor_names import to_transformers
from .tokenizer_json import TOKENIZER_JSON, tokenizer_json
from .vocabulary import ADDED, SETTINGS, SPECIAL_TOKENS_MAP, read_tokenizer, vocabulary_files

CHAT_TEMPLATES = ("chat_template.jinja", "chat_template.json")
MORE_CHAT_TEMPLATES = "additional_chat_templates/*.jinja"  # where a tokenizer has several
# What describes the tokenizer and the generation of a model, and is copied with it if it is there.
COPIED = (
    "merges.txt",
    "vocab.json",
    ADDED,
    TOKENIZER_JSON,
    SETTINGS,
    SPECIAL_TOKENS_MAP,
    *CHAT_TEMPLATES,
    GENERATION_CONFIG,
)
OPENAIS_NAMES = {
    "merges.txt": "vocab.bpe",
    "vocab.json": "encoder.json",
}  # Hugging Face's name -> OpenAI's


def save_model(model: GPT2, tokenizer: Tokenizer | None, directory: str | Path) -> None:
    """Write config.json, model.safetensors (float32) and, unless None, the tokenizer's files.

    transformers' from_pretrained reads the result with either head; a tied one has no
    lm_head.weight. The files appear together or not at all (see StagedFiles). Files of an earlier
    model that would contradict them are replaced or removed; so are chat templates, if a tokenizer
    is written. A tokenizer with another number of tokens than the model is written with a
    TiedGPTWarning. Raises ArgumentError for other arguments, CheckpointError if the files cannot be
    written.
    """
    if not isinstance(model, GPT2):
        raise ArgumentError(f"the model must be a GPT2, got {short_repr(model)}")
    if not isinstance(tokenizer, Tokenizer | None):
        raise ArgumentError(
            f"the tokenizer must be a Tokenizer or None, got {short_repr(tokenizer)}"
        )
    if not isinstance(directory, str | Path) or not str(directory) or "\0" in str(directory):
        raise ArgumentError(f"the directory must be a path, got {short_repr(directory)}")

    V = model.config.vocab_size
    if tokenizer is not None and tokenizer.vocab_size != V:
        warnings.warn(
            f"the tokenizer has {tokenizer.vocab_size} tokens, and the model has {V}",
            TiedGPTWarning,
            stacklevel=2,
        )
    with StagedFiles(Path(directory)) as files:
        others = {}
        if tokenizer is not None:
            others = tokenizer_files(tokenizer, files.directory)
            for name in _chat_templates(files.directory):  # of an earlier tokenizer
                files.remove(name)
        write_model(files, model, others)


def write_checkpoint(directory: Path, model: GPT2, others: Mapping[str, bytes]) -> None:
    """Write config.json, model.safetensors and other files to a directory that is new."""
    config = json.dumps(model.config.to_json(), indent=2, sort_keys=True) + "\n"
    contents = {**others, "config.json": config.encode()}
    for name, content in contents.items():
        path = directory / name
        path.parent.mkdir(exist_ok=True)  # of "additional_chat_templates/x.jinja"
        path.write_bytes(content)
    with open(directory / WEIGHTS, "xb") as file:
        write_weights(file, model)


def write_weights(file: BinaryIO, model: GPT2) -> None:
    """Write the parameters as a safetensors file that transformers reads, too."""
    tensors = {to_transformers(name): array for name, array in model.parameters.items()}
    safetensors.write(file, tensors.items())


def write_model(files: StagedFiles, model: GPT2, others: Mapping[str, bytes]) -> None:
    """Write config.json and model.safetensors to `files`, and other files beside them."""
    # The text of config.json comes before the weights, because it may fail and they take long.
    try:
        config = json.dumps(model.config.to_json(), indent=2, sort_keys=True) + "\n"
    except (RecursionError, TypeError, ValueError) as error:  # in Config.others
        raise CheckpointError(
            f"{files.directory}: config.json cannot be written: {error}"
        ) from error
    tensors = {to_transformers(name): array for name, array in model.parameters.items()}
    safetensors.write(files.open(WEIGHTS), tensors.items())
    for name, content in others.items():
        files.open(name).write(content)

    # An earlier model may have left a generation_config.json here. transformers prefers what it
    # says of the end of a text, so one that says something else is replaced.
    path = files.directory / GENERATION_CONFIG
    is_kept = path.exists() and GENERATION_CONFIG not in others
    if is_kept and _contradicts(path, model.config):
        tokens = {
            "bos_token_id": model.config.bos_token_id,
            "eos_token_id": model.config.eos_token_id,
        }
        files.open(GENERATION_CONFIG).write(json.dumps(tokens).encode())
    files.open("config.json").write(config.encode())


def _contradicts(path: Path, config: Config) -> bool:
    """Whether a generation_config.json names another token for the end of a text than `config`.

    A file that cannot be read counts as one that does, so that it is replaced.
    """
    try:
        eos_token_id = read_json(path).get("eos_token_id")
    except CheckpointError:
        return True
    if isinstance(eos_token_id, list):  # Config has a tuple
        eos_token_id = tuple(eos_token_id)
    return eos_token_id is not None and eos_token_id != config.eos_token_id


def tokenizer_files(tokenizer: Tokenizer, directory: Path) -> dict[str, bytes]:
    """The files of a tokenizer, by name.

    The directory may have other files of another tokenizer, which transformers would read too. They
    are replaced by files that add nothing to this one.
    """
    texts = vocabulary_files(tokenizer)
    neutral = {
        ADDED: "{}",
        SPECIAL_TOKENS_MAP: "{}",
        SETTINGS: json.dumps({"tokenizer_class": "GPT2Tokenizer", "add_prefix_space": False}),
        TOKENIZER_JSON: json.dumps(tokenizer_json(tokenizer)),
    }
    for name, text in neutral.items():
        if name not in texts and (directory / name).exists():
            texts[name] = text
    return {name: text.encode() for name, text in texts.items()}


def _chat_templates(directory: Path) -> list[str]:
    """The names of the files of chat templates in a directory."""
    names = []
    for pattern in (*CHAT_TEMPLATES, MORE_CHAT_TEMPLATES):
        for path in sorted(directory.glob(pattern)):
            if path.is_file():
                names.append(path.relative_to(directory).as_posix())
    return names


def copied_files(model: Path, note: Note = discard_note) -> dict[str, bytes]:
    """The tokenizer's files and generation_config.json of a checkpoint, as they are, by name.

    If transformers could not read the vocabulary from them, files that it can read are added. If
    there is no vocabulary at all, `note` is called. Raises CheckpointError for a file that cannot
    be read.
    """
    directory = directory_of(model)
    contents = {}
    for name in [*COPIED, *_chat_templates(directory)]:
        path = directory / name
        if not path.is_file() and name in OPENAIS_NAMES:
            path = directory / OPENAIS_NAMES[name]
        if path.is_file():
            with open_to_read(path) as opened:
                contents[name] = opened.read()
    has_pair = "merges.txt" in contents and "vocab.json" in contents
    if not has_pair and TOKENIZER_JSON not in contents:
        try:
            texts = vocabulary_files(read_tokenizer(model))
        except CheckpointError as error:
            note(f"{error}; the copy is written without a tokenizer")
            return contents
        for name, text in texts.items():
            contents.setdefault(name, text.encode())  # a file that is there stays as it is
    return contents
