"""A checkpoint, opened once: each of its files is read once, when what it holds is asked for.

`generation_settings` are those in generation_config.json with which other programs generate, and
this one does not.
"""

import os
import re
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
from ..gpt2.parameters import parameter_shapes
from ..gpt2.tokenizer import Tokenizer
from . import tensorflow
from .files import (
    ADAPTER,
    ADAPTER_WEIGHTS,
    PICKLES,
    WEIGHT_FILES,
    WEIGHTS,
    adapter_tensors,
    describe,
    first_of_quantised,
    how_to_use,
    not_a_checkpoint,
    read_weights,
)
from .json_files import CONFIG, GENERATION_CONFIG, JSON_OF_PYTHON, READ_MORE, Folder, read_json
from .model_names import INDEX, Note, discard_note
from .names import (
    HEAD,
    MASK,
    NOT_OF_TOKENS,
    OTHER_HEAD,
    PREFIX,
    absent_biases,
    by_our_names,
    name_in_transformers,
    our_parameter,
    plain_name,
)
from .tensors import AnyTensor, SavedFile, Tensor, have_same_values, join, zeros
from .vocabulary import read_tokenizer
from .writing import tokenizer_files

CONTRADICTION = (
    f"config.json says tied, but the file has another {HEAD}, which is used: untied, as "
    'transformers 5 reads it; transformers 4 reads it as tied, as head "tied" does here; for '
    'untied everywhere, write "tie_word_embeddings": false into config.json'
)
NO_CHECKPOINT = (
    f"is not a checkpoint: expected a directory, a file of weights or a config.json ({READ_MORE})"
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


class Opened:
    """A model on this machine: a directory, a file of weights, or a config.json by itself.

    Whatever is asked for raises CheckpointError if the files do not have it, or are damaged.
    """

    def __init__(self, path: Path, name: str = "") -> None:
        """name: what messages call the model; its path if it is "".

        Raises CheckpointError for another file, for a directory whose files this user may not read,
        and for a config.json that is no JSON.
        """
        self.path = path
        self.name = name or str(path)
        # os.path.isdir, unlike Path.is_dir, is False for what this user may not look for.
        self.folder = Folder(path if os.path.isdir(path) else path.parent)
        if os.path.isdir(self.folder.path) and not os.access(self.folder.path, os.X_OK):
            raise CheckpointError(f"{self.folder.path}: its files cannot be read: no permission")
        self.is_of_openai = False  # OpenAI's own files, or those of a training of them
        self.weights_file: Path | None = None  # or the index of several files
        self.notes: list[str] = []  # warnings, of what the files hold and the model does not
        self.config_file = CONFIG

        # Which file has the weights, and which one is config.json?
        if path.is_dir():  # the first of WEIGHT_FILES that it has is loaded
            files = (path / name for name in WEIGHT_FILES)
            self.weights_file = next((file for file in files if file.is_file()), None)
            if (path / tensorflow.HPARAMS).is_file() and not (path / CONFIG).is_file():
                self.is_of_openai = True
                self.weights_file = tensorflow.index_file(path)
        elif path.suffix == ".json" and describe(path) == "":  # no index of weights
            self.config_file = path.name
        elif path.is_file() and path.suffix not in (".safetensors", *PICKLES):
            raise CheckpointError(f"{path} {describe(path) or NO_CHECKPOINT}")
        else:
            self.weights_file = path

        self.config_json: dict[str, Any] = {}  # {} if there is no config.json
        config_path = self.folder.path / self.config_file
        if config_path.is_file():
            try:
                self.config_json = read_json(config_path)
            except CheckpointError:
                # transformers 4 writes Infinity into the config.json of Mamba2. A GPT-2 has none.
                self.config_json = read_json(config_path, JSON_OF_PYTHON)
                if self.config_json.get("model_type", "gpt2") == "gpt2":
                    raise
            self.folder.objects[self.config_file] = self.config_json  # so it is not read again
        elif self.is_of_openai:  # the fields that readers of models of any kind ask for
            hparams = self.folder.json(tensorflow.HPARAMS)
            V, D = hparams.get("n_vocab"), hparams.get("n_embd")
            self.config_json = {"model_type": "gpt2", "vocab_size": V, "n_embd": D}

    # Of any kind

    @property
    def has_weights(self) -> bool:
        """Whether there are weights, damaged or not."""
        return self.weights_file is not None

    @cached_property
    def saved(self) -> SavedFile:
        """What the files of the weights hold: nothing, if the model is a config.json by itself."""
        file = self.weights_file
        if file is None and self.path.is_dir():
            raise not_a_checkpoint(self.path, f"neither {WEIGHTS} nor {INDEX}")
        if file is None:
            return SavedFile({})
        saved = read_weights(file)
        n = len(saved.of_optimizer)
        if n > 0:
            self.notes.append(f"{file}: {n} tensors of an optimizer are not used")
        return saved

    @cached_property
    def stored(self) -> dict[str, Tensor]:
        """The tensors by their names in the files; OpenAI's by the names of transformers.

        No values are read.
        """
        if not self.is_of_openai:
            return self.saved.tensors
        renamed = {}
        for theirs, tensor in self.saved.tensors.items():
            ours = our_parameter(theirs)
            name = name_in_transformers(ours) if ours else theirs
            renamed[name] = replace(tensor, name=name)
        return renamed

    def equal_rows(self, one: Tensor, other: Tensor, rounded: bool = False) -> tuple[int, int]:
        """How many rows of two matrices of one shape [V, D] have the same values, and of how many.

        Raises CheckpointError for a dtype that is not a float.
        """
        return one.equal_rows(other, rounded), one.shape[0]

    # Of a GPT-2

    @cached_property
    def config_of_files(self) -> Config:
        """The Config of config.json, of OpenAI's hparams.json, or of nanoGPT's ckpt.pt.

        The last two say nothing of the head, so they are tied. As in transformers, the token that
        ends a text is the one of generation_config.json, if that file names one.
        """
        folder = self.folder
        if self.weights_file is not None and self.weights_file.suffix in (".pt", ".pth"):
            if self.saved.model_args is not None:
                from . import pickles  # only for such files, because importing it takes time

                return pickles.config_of(self.saved.model_args, self.weights_file)
        if self.is_of_openai:
            hparams = folder.json(tensorflow.HPARAMS)
            return tensorflow.config_of(hparams, folder.path / tensorflow.HPARAMS)
        if not self.config_json and not folder.has(CONFIG):  # the file itself may hold {}
            raise not_a_checkpoint(folder.path, f"no {CONFIG}")
        file = self.config_file
        try:
            config = Config.from_json(self.config_json)
            if (folder.path / GENERATION_CONFIG).is_file():
                file = GENERATION_CONFIG
                eos_token_id = folder.json(file).get("eos_token_id")
                if eos_token_id is not None:
                    config = replace(config, eos_token_id=eos_token_id)
        except ConfigError as error:
            raise CheckpointError(f"{folder.path / file}: {error}") from error
        return config

    @cached_property
    def config(self) -> Config:
        """The Config with the head that is loaded.

        It is untied if the files have an lm_head.weight that differs from wte, whatever config.json
        says. So transformers 5 reads it, too.
        """
        config = self.config_of_files
        if config.tied:
            with suppress(CheckpointError):  # weights that cannot be read: to load them says so
                head, wte = self.tensors.get(HEAD), self.tensors.get("wte.weight")
                if head is not None and wte is not None and not have_same_values(head, wte):
                    return replace(config, tied=False)
        return config

    @property
    def contradicts_config(self) -> bool:
        """Whether config.json says tied, and the files have a W_U that is not wte.T."""
        if not self.config_of_files.tied or self.config.tied:
            return False
        # The model_args of nanoGPT's ckpt.pt do not say whether the model is tied.
        is_pt = self.weights_file is not None and self.weights_file.suffix in (".pt", ".pth")
        return not is_pt or self.saved.model_args is None

    @cached_property
    def tensors(self) -> dict[str, AnyTensor]:
        """The tensors by our names and in our layout. No values are read.

        Masks and the tensors of other heads are left out. Raises CheckpointError if the names and
        shapes that are left are not those of the Config.
        """
        if self.weights_file is None and self.path.is_file():  # a config.json
            raise CheckpointError(f"{self.path} has no weights: give its directory")
        stored = {}
        for name, tensor in self.saved.tensors.items():
            if not MASK.fullmatch(name):
                stored[name] = tensor

        # Most files have our names, but for a prefix, and our layout. Then the tensors stay as they
        # are, unless two have one name, with the prefix and without it.
        plain = {name.removeprefix(PREFIX): tensor for name, tensor in stored.items()}
        shapes = {name: tensor.shape for name, tensor in plain.items()}
        expected = parameter_shapes(replace(self.config_of_files, tied=HEAD not in plain))
        if shapes == expected and len(plain) == len(stored):
            return dict(plain)

        tensors = self._renamed(stored)
        try:
            # A W_U is checked even if it is not used.
            check_parameters(tensors, replace(self.config_of_files, tied=HEAD not in tensors))
        except ArgumentError as error:
            # Another prefix, or quantised weights, explain the error better than its own message.
            reason = f"{error}"
            quantised = first_of_quantised(tensors)
            for name in tensors:
                if name.endswith(".wte.weight"):
                    prefix = short_repr(name.removesuffix("wte.weight"))
                    reason = (
                        f"{error}; the names of this file begin with {prefix}, so remove it from "
                        "each"
                    )
            if quantised:
                reason = f"has {short_repr(quantised)}, so {QUANTISED}"
            raise CheckpointError(f"{self.path}: {reason}") from error
        return tensors

    def _renamed(self, stored: dict[str, Tensor]) -> dict[str, AnyTensor]:
        """The tensors by our names, if their names or their layout are another program's.

        A note says which tensors are of other heads, and not used.
        """
        plain: dict[str, Tensor] = {}
        of_other_heads = []
        for name, tensor in stored.items():
            plain_one = plain_name(name)
            if plain_one in plain:
                raise CheckpointError(
                    f"{tensor.file}: {short_repr(plain_one)} is there twice, with and without "
                    f'"{PREFIX}"'
                )
            if OTHER_HEAD.match(plain_one):
                of_other_heads.append(name)
            else:
                plain[plain_one] = tensor
        if of_other_heads:
            self.notes.append(f"{self.path}: {', '.join(of_other_heads)}: {NOT_OF_TOKENS}")
        try:
            renamed = by_our_names(plain, join)
            renamed.check_n_head(self.config_of_files.n_head)
            # A layout may have a parameter that no GPT-2 has, such as a bias of the head.
            renamed.refuse_extra_parameters(values=lambda tensor: tensor.values())
        except ArgumentError as error:
            raise CheckpointError(f"{self.path}: {error}") from error
        tensors = renamed.tensors
        for name, shape in absent_biases(renamed.layout, tensors).items():
            tensors[name] = zeros(self.path, name, shape)
        if self.config_of_files.tied and HEAD in tensors and "wte.weight" not in tensors:
            tensors["wte.weight"] = tensors.pop(HEAD)  # one matrix, stored under its other name
        return tensors

    @property
    def has_head(self) -> bool:
        """Whether the files have a W_U, used or not."""
        return HEAD in self.tensors

    def check_weights(self) -> None:
        """Raise CheckpointError for weights that do not fit the config, or lack its W_U."""
        # has_head reads self.tensors, which raises for weights that do not fit.
        if not self.has_head and not self.config_of_files.tied:
            raise CheckpointError(
                f'{self.path}: config.json says "tie_word_embeddings": false but there is no '
                f'{HEAD}; load it with head "tied", or "untied" to start from a copy of wte.T'
            )

    def model(self, head: str | None = None, copy: bool = False) -> GPT2:
        """The model. head: "tied", "untied", or None for its own. copy: False maps the file.

        Warnings name the line that called the function which called this one.
        """
        config = self.config_of_files
        if head is not None:
            config = config.with_head(head)
        tensors = self.tensors
        notes = list(self.notes)
        if head is None and config.tied and HEAD in tensors:  # is the stored W_U another matrix?
            config = self.config
            if self.contradicts_config:
                notes.append(f"{self.path}: {CONTRADICTION}")
        if head is None and not config.tied:
            self.check_weights()
        if (self.folder.path / ADAPTER).is_file():
            notes.append(f"{self.path}: {self.adapter}")
        for note in notes:
            warnings.warn(note, TiedGPTWarning, stacklevel=3)
        is_windows = os.name == "nt"  # where a mapped file could not be replaced
        parameters = {}
        for name, tensor in tensors.items():
            if name != HEAD or not config.tied:
                parameters[name] = tensor.values(copy or is_windows)
        if config.tied or HEAD in tensors:
            return GPT2(config, parameters)
        # head is "untied", and the files have no W_U: it starts as a copy of wte.T.
        return GPT2(replace(config, tied=True), parameters).untie("copy")

    # Beside the model

    @cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises TokenizerError for a vocabulary that contradicts itself."""
        config = None
        with suppress(CheckpointError):  # a folder with a vocabulary alone has a tokenizer, too
            config = self.config_of_files
        return read_tokenizer(self.folder, config)

    @cached_property
    def adapter(self) -> str:
        """What is to be said of an adapter beside the model, which is not read; "" without one."""
        folder = self.folder
        if not folder.has(ADAPTER):
            return ""
        try:
            adapter = folder.json(ADAPTER)
        except CheckpointError as error:
            return f"an adapter lies beside the model, and is not used nor known: {error}"
        kind = short_repr(adapter.get("peft_type"))
        names: list[str] = []
        why_not_known = ""
        file = next((file for file in ADAPTER_WEIGHTS if folder.has(file)), None)
        if file is None:
            why_not_known = "its weights are not here"
        try:
            names = list(adapter_tensors(folder.path))
        except CheckpointError as error:
            why_not_known = f"{error}"
        text = (
            f"{ADAPTER} is of an adapter, {kind}, which lies beside the model and is not used, but "
            f"which transformers may apply where peft is installed: {how_to_use(adapter, names)}"
        )
        if why_not_known:
            return f"{text}; whether it changes the head is not known: {why_not_known}"
        of_head = [name for name in names if re.search(r"\b(lm_head|wte)\b", name)]
        if of_head:
            return f"{text}; it changes the head: {file} has {short_repr(of_head[0])}"
        return text

    def copied_files(self, note: Note = discard_note) -> dict[str, bytes]:
        """The tokenizer's files and generation_config.json, as they are, by name.

        If transformers could not read the vocabulary from them, files that it can read are added.
        If there is no vocabulary at all, `note` is called.
        """
        contents = {}
        for name in COPIED:
            for file in (name, OPENAIS_NAMES.get(name, name)):  # the first one that is there
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
            contents = files | contents  # a file of the folder stays as it is
        return contents


# What other programs generate with

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


def generation_settings(folder: Folder) -> tuple[str, dict[str, Any]]:
    """The file whose settings transformers generates with, and those of them that change a text.

    It is generation_config.json or, without this file, config.json. The token that ends a text is
    not among the settings. Raises CheckpointError.
    """
    file = GENERATION_CONFIG
    in_file: dict[str, Any] = {}
    if (folder.path / file).is_file():
        in_file = folder.json(file)
    else:
        file = CONFIG
        others = folder.json(file)
        names = [name for name in (*NO_CHANGE, *IN_OLD_CONFIGS) if name in others]
        in_file = {name: others[name] for name in names}
    settings = {}
    for name, value in in_file.items():
        if not NOT_OF_THE_TEXT.fullmatch(name) and value and value != NO_CHANGE.get(name):
            settings[name] = value
    return file, settings
