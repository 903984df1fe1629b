"""A checkpoint, opened once: each of its files is read once, when what it holds is asked for."""

import os
import warnings
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, CheckpointError, ConfigError, TiedGPTWarning, short_repr
from ..gpt2.checks import check_parameters
from ..gpt2.config import QUANTISED, Config
from ..gpt2.model import GPT2
from ..gpt2.tokenizer import Tokenizer
from . import tensorflow
from .beside import describe_adapter, generation_settings
from .files import PICKLES, is_of_tensorflow, read_weights, weights_file
from .folder import CONFIG, GENERATION_CONFIG, Folder, folder_of
from .json_files import JSON_OF_PYTHON, parse_json
from .names import (
    HEAD,
    PREFIX,
    absent_biases,
    by_our_names,
    is_of_other_head,
    name_of_openais,
    plain_name,
    warn_of_other_heads,
)
from .places import Note, discard_note
from .refused import describe, first_of_quantised, what_is_there
from .tensors import AnyTensor, SavedFile, Tensor, have_same_values, join, zeros
from .vocabulary import read_tokenizer, tokenizer_files

CONTRADICTION = (
    f"config.json says tied, but the file has another {HEAD}, which is used: untied, as "
    'transformers 5 reads it; transformers 4 reads it as tied, as head "tied" does here; for '
    'untied everywhere, write "tie_word_embeddings": false into config.json'
)
NO_CHECKPOINT = "is not a checkpoint: expected a directory, a file of weights or a config.json"
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


def read_said(folder: Folder, name: str) -> dict[str, Any]:
    """What config.json holds. Raises CheckpointError for a file that is no JSON.

    transformers 4 writes Infinity into the config.json of Mamba2. In that of a GPT-2 it is refused.
    """
    try:
        return folder.json(name)
    except CheckpointError:
        said = parse_json(folder.read(name), f"{folder.path / name}", JSON_OF_PYTHON)
        if said.get("model_type", "gpt2") == "gpt2":
            raise
        return said


class Opened:
    """A model on this machine: a directory, a file of weights, or a config.json by itself.

    Whatever is asked for raises CheckpointError if the files do not have it, or are damaged.
    """

    def __init__(self, path: Path, name: str = "") -> None:
        """name: what messages call the model; its path if it is "".

        Raises CheckpointError for another file, and for a config.json that is no JSON.
        """
        self.path = path
        self.name = name or str(path)
        self.folder = folder_of(path)
        self.weights_file = weights_file(path)
        config_file = CONFIG
        if path.is_file():
            description = describe(path)
            if path.suffix == ".json" and description == "":
                config_file = path.name
            elif path.suffix not in (".safetensors", *PICKLES):
                raise CheckpointError(f"{path} {description or NO_CHECKPOINT}")
        # config.json as it stands; {} if there is none
        self.said = read_said(self.folder, config_file) if self.folder.has(config_file) else {}
        if is_of_tensorflow(path):
            hparams = self.folder.json(tensorflow.HPARAMS)
            sizes = {"vocab_size": hparams.get("n_vocab"), "n_embd": hparams.get("n_embd")}
            self.said = {"model_type": "gpt2", **sizes}

    # Of any kind

    @property
    def has_weights(self) -> bool:
        """Whether there are weights, damaged or not."""
        return self.weights_file is not None

    @cached_property
    def saved(self) -> SavedFile:
        """What the files of the weights hold: nothing, if the model is a config.json by itself."""
        if self.path.suffix == ".json" and not self.path.is_dir():
            return SavedFile({})
        return read_weights(self.path)

    @cached_property
    def stored(self) -> dict[str, Tensor]:
        """The tensors by their names in the files; OpenAI's by those of transformers.

        No values are read.
        """
        if not is_of_tensorflow(self.path):
            return self.saved.tensors
        renamed = {}
        for theirs, tensor in self.saved.tensors.items():
            name = name_of_openais(theirs)
            renamed[name] = replace(tensor, name=name)
        return renamed

    def equal_rows(self, one: Tensor, other: Tensor, rounded: bool = False) -> tuple[int, int]:
        """How many rows of two matrices of one shape [V, D] have the same values, and of how many.

        Raises CheckpointError for a dtype that is not a float.
        """
        return one.equal_rows(other, rounded), one.shape[0]

    # Of a GPT-2

    @cached_property
    def config_as_said(self) -> Config:
        """The Config that the files say. A ckpt.pt of nanoGPT has the head of its weights."""
        if self._model_args is not None and self.has_other_head:
            return self._config.with_head("untied")
        return self._config

    @property
    def _model_args(self) -> dict[str, Any] | None:
        """What nanoGPT's ckpt.pt says of its model; None if the weights are in another file."""
        if self.weights_file is None or self.weights_file.suffix not in (".pt", ".pth"):
            return None
        return self.saved.model_args

    @cached_property
    def _config(self) -> Config:
        """The Config of nanoGPT's ckpt.pt, a tied one, of OpenAI's hparams.json, or of config.json.

        As in transformers, generation_config.json is preferred for the token that ends a text, if
        that file names one.
        """
        if self._model_args is not None and self.weights_file is not None:
            from . import pickles  # only for such files, because importing it takes time

            return pickles.config_of(self._model_args, self.weights_file)
        folder = self.folder
        if is_of_tensorflow(self.path):
            hparams = folder.json(tensorflow.HPARAMS)
            return tensorflow.config_of(hparams, folder.path / tensorflow.HPARAMS)
        if not self.said and not folder.has(CONFIG):
            raise CheckpointError(
                f"{folder.path} is not a checkpoint: it has no {CONFIG}{what_is_there(folder.path)}"
            )
        file = CONFIG
        try:
            config = Config.from_json(self.said)
            if folder.has(GENERATION_CONFIG):
                file = GENERATION_CONFIG
                eos_token_id = folder.json(file).get("eos_token_id")
                if eos_token_id is not None:
                    config = replace(config, eos_token_id=eos_token_id)
        except ConfigError as error:
            raise CheckpointError(f"{folder.path / file}: {error}") from error
        return config

    @cached_property
    def config(self) -> Config:
        """The Config with the head that is loaded. Weights that cannot be read are no error."""
        if self.config_as_said.tied:
            with suppress(CheckpointError):
                if self.has_other_head:
                    return self.config_as_said.with_head("untied")
        return self.config_as_said

    @cached_property
    def tensors(self) -> dict[str, AnyTensor]:
        """The tensors by our names and in our layout. No values are read.

        Masks and the tensors of other heads are left out. Names and shapes are not compared with
        those of the Config.
        """
        if not self.has_weights and self.path.is_file():
            raise CheckpointError(f"{self.path} has no weights: give its directory")
        plain: dict[str, Tensor] = {}
        for name, tensor in self.saved.tensors.items():
            plain_one = plain_name(name)
            if plain_one in plain:
                raise CheckpointError(
                    f"{tensor.file}: {short_repr(plain_one)} is there twice, with and without "
                    f'"{PREFIX}"'
                )
            if name not in self.of_other_heads:
                plain[plain_one] = tensor
        try:
            renamed = by_our_names(plain, join)
        except ArgumentError as error:
            raise CheckpointError(f"{self.path}: {error}") from error
        tensors = renamed.tensors
        for name, tensor in renamed.zero.items():
            if tensor.values().any():
                raise CheckpointError(f"{tensor.file}: {name} is not 0, which no GPT-2 has")
        for name, shape in absent_biases(renamed.layout, tensors).items():
            tensors[name] = zeros(self.path, name, shape)
        if self._config.tied and HEAD in tensors and "wte.weight" not in tensors:
            tensors["wte.weight"] = tensors.pop(HEAD)  # one matrix, stored under its other name
        return tensors

    @cached_property
    def of_other_heads(self) -> list[str]:
        """The tensors of heads that do not predict tokens, such as v_head, which are not used."""
        return [name for name in self.saved.tensors if is_of_other_head(name)]

    @property
    def has_head(self) -> bool:
        """Whether the files have a W_U, used or not."""
        return HEAD in self.tensors

    @cached_property
    def has_other_head(self) -> bool:
        """Whether the files have a W_U that is not wte.T.

        transformers 5 takes such a model for untied, whatever config.json says.
        """
        if not self.has_head or "wte.weight" not in self.tensors:
            return False
        return not have_same_values(self.tensors[HEAD], self.tensors["wte.weight"])

    def check(self, head: str | None = None, stacklevel: int = 2) -> None:
        """Raise CheckpointError if the tensors do not fit the config. No values are read.

        head: as for `model`. A TiedGPTWarning names the tensors of other heads.
        """
        others = self.of_other_heads
        if others:
            warn_of_other_heads(f"{self.path}", others, stacklevel)
        n = len(self.saved.of_optimizer)
        if n > 0:
            warnings.warn(
                f"{self.weights_file}: {n} tensors of an optimizer are not used",
                TiedGPTWarning,
                stacklevel=stacklevel,
            )
        config = self.config_as_said
        if head is None and not config.tied and not self.has_head:
            raise CheckpointError(
                f'{self.path}: config.json says "tie_word_embeddings": false but there is no '
                f'{HEAD}; load it with head "tied", or "untied" to start from a copy of wte.T'
            )
        quantised = first_of_quantised(self.tensors)
        if quantised:
            raise CheckpointError(f"{self.path}: has {short_repr(quantised)}, so {QUANTISED}")
        try:
            # A W_U is checked even if it is not used.
            check_parameters(self.tensors, replace(config, tied=not self.has_head))
        except ArgumentError as error:
            raise CheckpointError(f"{self.path}: {error}{self._other_prefix()}") from error

    def _other_prefix(self) -> str:
        """What an error says of names that begin in a way that is not known; "" for others."""
        for name in self.tensors:
            if name.endswith(".wte.weight"):
                prefix = short_repr(name.removesuffix("wte.weight"))
                return f"; the names of this file begin with {prefix}, so remove it from each"
        return ""

    def model(self, head: str | None = None, copy: bool = False) -> GPT2:
        """The model. head: "tied", "untied", or None for its own. copy: False maps the file.

        Warnings name the line that called the function which called this one.
        """
        config = self.config if head is None else self.config_as_said.with_head(head)
        self.check(head, stacklevel=4)
        if config.tied != self.config_as_said.tied and head is None:
            warnings.warn(f"{self.path}: {CONTRADICTION}", TiedGPTWarning, stacklevel=3)
        if self.adapter:
            warnings.warn(f"{self.path}: {self.adapter}", TiedGPTWarning, stacklevel=3)
        is_windows = os.name == "nt"  # where a mapped file could not be replaced
        parameters = {}
        for name, tensor in self.tensors.items():
            if name != HEAD or not config.tied:
                parameters[name] = tensor.values(copy or is_windows)
        if config.tied or self.has_head:
            return GPT2(config, parameters)
        return GPT2(config.with_head("tied"), parameters).untie("copy")

    # Beside the model

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises what read_tokenizer raises."""
        config = None
        with suppress(CheckpointError):  # a folder with a vocabulary alone has a tokenizer, too
            config = self._config
        return read_tokenizer(self.folder, config)

    @cached_property
    def adapter(self) -> str:
        """What is to be said of an adapter beside the model; "" if there is none."""
        return describe_adapter(self.folder)

    def generation_settings(self) -> tuple[str, dict[str, Any]]:
        """The file that says how transformers generates, and its settings that change a text."""
        return generation_settings(self.folder)

    def copied_files(self, note: Note = discard_note) -> dict[str, bytes]:
        """The tokenizer's files and generation_config.json, as they are, by name.

        If transformers could not read the vocabulary from them, files that it can read are added.
        If there is no vocabulary at all, `note` is called.
        """
        contents = {}
        for name in COPIED:
            for file in (name, OPENAIS_NAMES.get(name, name)):
                if name not in contents and self.folder.has(file):
                    contents[name] = self.folder.read(file)
        for path in self.folder.path.glob(MORE_CHAT_TEMPLATES):
            name = path.relative_to(self.folder.path).as_posix()
            contents[name] = self.folder.read(name)
        has_pair = "merges.txt" in contents and "vocab.json" in contents
        if not has_pair and "tokenizer.json" not in contents:
            try:
                files = tokenizer_files(self.tokenizer)
            except CheckpointError as error:
                note(f"{error}; the copy is written without a tokenizer")
                return contents
            contents = files | contents  # a file that is there stays as it is
        return contents
