"""Which files a model on a server consists of, and how a folder of them is checked.

HubModel        a repository of the Hugging Face hub: config.json, a vocabulary, the weights
HubTokenizer    the same without the weights
OpenAIModel     the TensorFlow files that OpenAI released
"""

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from ..errors import CheckpointError, TiedGPTError
from ..gpt2.parameters import parameter_count
from . import huggingface, tensorflow
from .fetching import DownloadClient
from .known_models import MERGES, MODELS, OPENAI_124M, RELEASED_BY_OPENAI, VOCAB
from .messages import Note
from .unread_formats import PICKLE
from .verification import Version
from .vocabulary import read_tokenizer

HUB = "https://huggingface.co"
OPENAI = "https://openaipublic.blob.core.windows.net/gpt-2/models"
TOKENIZER_SETTINGS = (
    "tokenizer_config.json",
    "added_tokens.json",
    "special_tokens_map.json",
    "chat_template.jinja",  # for copies of the model
)
VOCABULARIES = ("merges.txt", "vocab.bpe", "tokenizer.json")  # each makes a tokenizer


def remote_model(name: str, source: str, note: Note) -> "RemoteModel":
    """The model of a source: "hub", "openai", or "tokenizer" for the hub's without the weights.

    Nothing is asked of the server yet. Raises CheckpointError for a model that OpenAI did not
    release, and for a HF_TOKEN with characters that no token has.
    """
    if source == "openai":
        return OpenAIModel(name, _openai_client(name, note))
    if source == "tokenizer":
        return HubTokenizer(name, _hub_client(name, {}, note))
    weights = {}
    if name in MODELS:
        weights[huggingface.WEIGHTS] = MODELS[name].weights
    return HubModel(name, _hub_client(name, weights, note))


@dataclass
class RemoteModel(ABC):
    """A model, and the client that fetches its files."""

    name: str
    client: DownloadClient
    config_file = "config.json"

    @property
    def label(self) -> str:
        """What is downloaded, for messages."""
        return self.name

    @abstractmethod
    def read_config(self, folder: Path) -> None:
        """Read the configuration. Raises CheckpointError."""

    @abstractmethod
    def check_weights(self, folder: Path) -> None:
        """Check where the tensors are in the files, and their shapes. Raises CheckpointError."""

    @abstractmethod
    def fetch_small_files(self, new: Path) -> None:
        """Download all but configuration and weights to `new`, and read them.

        Raises TiedGPTError.
        """

    @abstractmethod
    def fetch_weights(self, new: Path, parts: Path) -> None:
        """Download the weights to `new`, by way of parts in `parts`. Raises CheckpointError."""

    def check_small_files(self, folder: Path) -> None:
        """Read the configuration and, if there is one, the tokenizer. Raises TiedGPTError."""
        self.read_config(folder)
        if any(os.path.isfile(folder / file) for file in VOCABULARIES):
            read_tokenizer(folder)

    def find_fault(self, folder: Path) -> str:
        """Why `folder` is not this model, complete and as published; "" if it is."""
        try:
            self.check_small_files(folder)
            self.check_weights(folder)
            for file, pin in self.client.pins.items():
                difference = pin.find_difference(folder / file)
                if difference:
                    return f"{folder / file}: {difference}"
        except (TiedGPTError, OSError) as error:
            return str(error)
        return ""

    def fetch_all(self, files: Iterable[str], new: Path, parts: Path | None = None) -> bool:
        """Download files, one after the other; stop and return False if the server lacks one."""
        return all(self.client.fetch(file, new, parts) for file in files)


class HubModel(RemoteModel):
    """A model on the Hugging Face hub."""

    def read_config(self, folder: Path) -> None:
        huggingface.read_config_json(folder)

    def check_weights(self, folder: Path) -> None:
        huggingface.open_directory(folder)

    def fetch_small_files(self, new: Path) -> None:
        has_pair = self.fetch_all(["vocab.json", "merges.txt"], new)
        # For the known models these two files are enough. Another model may have more tokens, in
        # other files, and settings.
        is_known = self.name in MODELS
        has_json = not is_known and self.client.fetch("tokenizer.json", new)
        has_tokenizer = has_pair or has_json
        if not has_tokenizer:
            self.report_no_tokenizer(
                f"{self.client.label} has no tokenizer: neither vocab.json and merges.txt nor "
                "tokenizer.json"
            )
        if not is_known:
            self.client.fetch("generation_config.json", new)
        if not is_known and has_tokenizer:
            for file in TOKENIZER_SETTINGS:
                self.client.fetch(file, new)
        self.check_small_files(new)

    def report_no_tokenizer(self, message: str) -> None:
        """Tell the user, who may want the model without a tokenizer."""
        self.client.note(message)

    def fetch_weights(self, new: Path, parts: Path) -> None:
        if self.client.fetch(huggingface.WEIGHTS, new, parts):
            return
        if not self.client.fetch(huggingface.INDEX, new):
            raise CheckpointError(
                f"{self.client.label} has neither {huggingface.WEIGHTS} nor {huggingface.INDEX}; a "
                f"pytorch_model.bin, if it has one, is {PICKLE}"
            )
        weight_map = huggingface.read_weight_map(new / huggingface.INDEX)
        if not self.fetch_all(sorted(set(weight_map.values())), new, parts):
            raise CheckpointError(
                f"{self.client.label} lacks some of the files that {huggingface.INDEX} names"
            )


class HubTokenizer(HubModel):
    """The tokenizer of a model on the hub, and its configuration."""

    @property
    def label(self) -> str:
        return f"the tokenizer of {self.name}"

    def check_weights(self, folder: Path) -> None:
        """There are none to check."""

    def report_no_tokenizer(self, message: str) -> None:
        raise CheckpointError(message)

    def fetch_weights(self, new: Path, parts: Path) -> None:
        """There are none to fetch."""


class OpenAIModel(RemoteModel):
    """A model in the TensorFlow files that OpenAI released."""

    config_file = tensorflow.HPARAMS

    def read_config(self, folder: Path) -> None:
        tensorflow.read_hparams(folder)

    def check_weights(self, folder: Path) -> None:
        tensorflow.open_directory(folder)

    def fetch_small_files(self, new: Path) -> None:
        if not self.fetch_all([tensorflow.INDEX, "encoder.json", "vocab.bpe"], new):
            self._raise_missing()

    def fetch_weights(self, new: Path, parts: Path) -> None:
        if not self.client.fetch(tensorflow.DATA, new, parts):
            self._raise_missing()

    def _raise_missing(self) -> None:
        raise CheckpointError(
            f"{self.client.label}: some of the files that OpenAI released are not there"
        )


def _hub_client(name: str, weights: dict[str, Version], note: Note) -> DownloadClient:
    """The client for a repository. Raises CheckpointError for a wrong HF_TOKEN.

    weights: the versions of the weights that are known, by file.
    """
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or HUB
    token = os.environ.get("HF_TOKEN", "").strip()
    if not re.fullmatch("[!-~]*", token):  # ASCII without spaces and control characters
        raise CheckpointError("HF_TOKEN contains characters that no token has")

    repository = name
    revision = "main"
    pins: dict[str, Version] = {}
    if name in MODELS:
        repository = MODELS[name].repository
        revision = MODELS[name].commit
        pins = {"vocab.json": VOCAB, "merges.txt": MERGES, **weights}
    server = re.sub(".*(//|@)", "", endpoint)  # the host, without "https://" and a password
    return DownloadClient(
        base=f"{endpoint}/{repository}/resolve/{revision}",
        label=f"{server}/{repository}",
        token=token,
        note=note,
        pins=pins,
    )


def _openai_client(name: str, note: Note) -> DownloadClient:
    """The client for a folder of OpenAI's server."""
    if name not in RELEASED_BY_OPENAI:
        raise CheckpointError(
            f"OpenAI released {', '.join(RELEASED_BY_OPENAI)}, not {name}; download it from the hub"
        )
    model = MODELS[name]
    size = parameter_count(model.config).bytes
    # The size of the data follows from the parameters. Only the smallest model's hashes are known.
    pins = {tensorflow.DATA: Version(size), "encoder.json": VOCAB, "vocab.bpe": MERGES}
    if name == "gpt2":
        pins |= OPENAI_124M
    base = f"{OPENAI}/{model.alias}"
    label = base.partition("://")[2]
    return DownloadClient(base=base, label=label, token=None, note=note, pins=pins)
