"""Downloads: which files a model consists of, which server has them, and which folder they go to.

<weights>/gpt2/.lock                the lock of the process that downloads; another process waits for it
<weights>/gpt2/.save.*.tmp/         configuration and vocabulary, until they are read and all is complete
<weights>/gpt2/.*.part              the bytes of the weights received so far (see fetching.py)
<weights>/gpt2/model.safetensors    files get their names when all are verified (see StagedFiles)
<weights>/gpt2/.tokenizer/          the same without weights, for commands that need none
"""

import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, CheckpointError, TiedGPTError, one_line, short_repr
from ..gpt2.parameters import parameter_count
from . import huggingface, tensorflow
from .fetching import Server, Version, megabytes
from .files import (
    LOCK,
    StagedFiles,
    directory_of,
    finish_saves,
    lock_directory,
    locked_file,
    named_errors,
)
from .names import ALIASES, MODELS, SHIPPED, check_name, find_model, folders_of, weight_folders
from .vocabulary import read_tokenizer

HUB = "https://huggingface.co"
OPENAI = "https://openaipublic.blob.core.windows.net/gpt-2/models"

COMMITS = {
    "gpt2": "607a30d783dfa663caf39e06633721c8d4cfcd7e",
    "gpt2-medium": "6dcaa7a952f72f9298047fd5137cd6e4f05f41da",
    "gpt2-large": "32b71b12589c2f8d625668d2335a01cac3249519",
    "gpt2-xl": "15ea56dee5df4983c59b2538573817e1667135e2",
    "distilgpt2": "2290a62682d06624634c1f46a6ad5be0f47f38aa",
}
PINNED = {  # the model.safetensors of these commits; where the size is None, the server's is used
    "gpt2": Version(
        548_105_171, "248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707"
    ),
    "gpt2-medium": Version(
        1_519_984_962, "fc5a354a19255ad494f3d71549390baca1ccf61d1d822b9408971705c687c9cd"
    ),
    "gpt2-large": Version(None, "5f47f3e12f91cd33b662ce7e433b6150ad5512b5884a2cee961b50e9c3bbebce"),
    "gpt2-xl": Version(None, "0f8b28eb05a8075f48b61b6f35332978c74fc7763fa9fb4051a1c30511736a6a"),
    "distilgpt2": Version(
        352_824_413, "e1ff18884359fe8beb795a5f414feb85a6ce3d929ad019c0d958c039d2b94a1b"
    ),
}
VOCAB = Version(1_042_301, "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783")
MERGES = Version(456_318, "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5")
# Of OpenAI's larger models only the size is known here; model.ckpt.index has a checksum of each
# tensor.
OPENAI_MODELS = {name: size for size, name in ALIASES.items() if name != "distilgpt2"}
OPENAI_124M = {
    tensorflow.HPARAMS: Version(
        90, "d9d56e4121c427164e0c55c6f03c08e1daf9002b9b672825112d19097b680318"
    ),
    tensorflow.INDEX: Version(
        5215, "71916f763f9746f9b2a06b12d91996cf1084ae008d0424543d39391c5f2dc687"
    ),
    tensorflow.DATA: Version(
        497_759_232, "2060c885360cc0cf41d7a6dbc4d24b5127aae20260c8b5ae521b5a6578407118"
    ),
}
TOKENIZER_SETTINGS = ("tokenizer_config.json", "added_tokens.json")
OTHER_FOLDER = "; to download to another folder, name it in TIEDGPT_WEIGHTS"
Note = Callable[[str], Any]  # called with each message for the user; `str` discards it


def find_or_download(source: str | Path, note: Note = str, only_tokenizer: bool = False) -> Path:
    """The path that `find_model` returns; a name that it does not find is downloaded, a Path is
    not.

    only_tokenizer: download the tokenizer without the weights. `find_model` does not find its
    directory.
    """
    if not isinstance(source, str | Path):
        raise ArgumentError(f"a model must be a name or a path, got {short_repr(source)}")
    try:
        path = find_model(source)
    except CheckpointError as error:
        missing = error
    else:
        finish_saves(directory_of(path))
        return path
    name = check_name(str(source))
    if isinstance(source, Path) or name in SHIPPED:
        raise missing
    if only_tokenizer:
        for folder in folders_of(name, "tokenizer"):
            if os.path.isfile(folder / "config.json"):
                return folder
    _check_online(f"{missing}; HF_HUB_OFFLINE is set, so it is not downloaded")
    here = f" (for the directory here, write ./{source})" if os.path.isdir(source) else ""
    note(f"{name} is not on this machine{here}")
    return download(name, "tokenizer" if only_tokenizer else "hub", note)


def download(name: str, source: str = "hub", note: Note = str) -> Path:
    """Download a model, unless a complete one is on this machine; return its directory.

    name: a known name, an alias, or a hub repository owner/name. source: "hub", "openai" for the
    TensorFlow files that OpenAI released, or "tokenizer" for the hub's files but the weights.
    Raises CheckpointError.
    """
    name = check_name(name)
    if name in SHIPPED:
        return find_model(name)
    remote = _at_openai(name, note) if source == "openai" else _on_hub(name, source, note)
    for folder in folders_of(name, source):
        with suppress(CheckpointError):
            finish_saves(folder)
        if not remote.fault_of(folder):
            for _, own in zip(weight_folders(), folders_of(name, source), strict=False):
                with suppress(OSError, CheckpointError), locked_file(own / LOCK):
                    _remove_parts(own)
            verified = remote.pins and all(pin.digest for pin in remote.pins.values())
            note(f"{name} is here already, complete{' and verified' if verified else ''}")
            return folder
    _check_online(f"{name} cannot be downloaded: HF_HUB_OFFLINE is set")
    folder = _folder_to_fill(name, source)
    # Files that are there would be mixed with the new ones.
    if any(map(os.path.isfile, folder.glob("[!.]*"))) and (fault := remote.fault_of(folder)):
        raise CheckpointError(f"{fault}; to download {name}, move {folder} away")
    try:
        with named_errors(f"cannot write to {folder}", OTHER_FOLDER):
            _download(remote, folder, note)
    except KeyboardInterrupt:
        note("stopped; the same command continues from here")
        raise
    return folder


@dataclass(kw_only=True)
class RemoteModel(Server):
    name: str
    source: str
    config: str  # the name of the configuration file

    def check_small_files(self, folder: Path) -> None:
        """Read the configuration and, if there is one, the tokenizer. Raises TiedGPTError."""
        (tensorflow.read_hparams if self.source == "openai" else huggingface.read_config)(folder)
        if any(
            os.path.isfile(folder / file) for file in ("merges.txt", "vocab.bpe", "tokenizer.json")
        ):
            read_tokenizer(folder)

    def fault_of(self, folder: Path) -> str:
        """Why `folder` is not this model, complete and as pinned; "" if it is."""
        try:
            self.check_small_files(folder)
            if self.source == "openai":
                tensorflow.open_tensorflow(folder)
            elif self.source == "hub":
                huggingface.open_checkpoint(folder)
            for file, pin in self.pins.items():
                if wrong := pin.difference(folder / file):
                    return f"{folder / file}: {wrong}"
        except (TiedGPTError, OSError) as error:
            return str(error)
        return ""


def _on_hub(name: str, source: str, note: Note) -> RemoteModel:
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or HUB
    token = os.environ.get("HF_TOKEN", "").strip()
    if not re.fullmatch("[!-~]*", token):
        raise CheckpointError("HF_TOKEN contains characters that no token has")
    repository, revision, pins = name, "main", {}
    if name in MODELS:
        repository, revision = MODELS[name][0], COMMITS[name]
        pins = {"vocab.json": VOCAB, "merges.txt": MERGES}
        pins |= {} if source == "tokenizer" else {huggingface.WEIGHTS: PINNED[name]}
    label = f"{re.sub('.*(//|@)', '', endpoint)}/{repository}"  # without a password
    base = f"{endpoint}/{repository}/resolve/{revision}"
    return RemoteModel(
        base, label, token, note, pins, name=name, source=source, config="config.json"
    )


def _at_openai(name: str, note: Note) -> RemoteModel:
    if name not in OPENAI_MODELS:
        released = ", ".join(OPENAI_MODELS)
        raise CheckpointError(f"OpenAI released {released}, not {name}; download it from the hub")
    base = f"{OPENAI}/{OPENAI_MODELS[name]}"
    size = parameter_count(MODELS[name][1]).bytes
    pins = {tensorflow.DATA: Version(size), "encoder.json": VOCAB, "vocab.bpe": MERGES}
    pins |= OPENAI_124M if name == "gpt2" else {}
    label, config = base.partition("://")[2], tensorflow.HPARAMS
    return RemoteModel(base, label, None, note, pins, name=name, source="openai", config=config)


def _check_online(message: str) -> None:
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE"):
        raise CheckpointError(message)


def _folder_to_fill(name: str, source: str) -> Path:
    """The model's folder in TIEDGPT_WEIGHTS, else in the first folder for weights that can be
    written."""
    package = (
        Path(__file__).resolve().parents[1]
    )  # not in here: an upgrade of tiedgpt would delete it
    roots = weight_folders()
    for root, folder in zip(roots, folders_of(name, source), strict=False):
        existing = next(path for path in (root, *root.parents) if os.path.exists(path))
        can_write = package not in root.parents and os.access(existing, os.W_OK)
        if can_write or os.environ.get("TIEDGPT_WEIGHTS"):
            return folder
    places = " or ".join(map(str, roots))
    raise CheckpointError(f"cannot write to {places}: name a folder for weights in TIEDGPT_WEIGHTS")


def _download(remote: RemoteModel, folder: Path, note: Note) -> None:
    what = f"the tokenizer of {remote.name}" if remote.source == "tokenizer" else remote.name
    waiting = f"another process is downloading {what}: waiting for it"
    with lock_directory(folder, lambda: note(waiting), OTHER_FOLDER):
        if (folder / remote.config).exists():
            note(f"the other process has completed {what}")
            return
        with StagedFiles(folder, OTHER_FOLDER) as files:
            new = files.new
            try:
                if not remote.fetch(remote.config, new):
                    missing = f"no such repository, or no {remote.config} in it (404)"
                    raise CheckpointError(f"{remote.label}: {missing}")
                remote.check_small_files(new)
                if re.fullmatch(
                    "[0-9a-f]{40}", remote.commit
                ):  # all other files are of the same commit
                    remote.base = re.sub("/main$", f"/{remote.commit}", remote.base)
                size = sum(pin.size or 0 for pin in remote.pins.values())
                size_known = f" ({megabytes(size)})" if size else ""
                note(f"downloading {what}{size_known} from {remote.label} to {folder}")
                (_fetch_from_openai if remote.source == "openai" else _fetch_from_hub)(
                    remote, folder, new
                )
            except (
                TiedGPTError
            ) as error:  # its message then names the server, not the staging directory
                there = str(error).replace(one_line(f"{new}{os.sep}"), f"{remote.label}/")
                raise CheckpointError(there) from error
            _remove_parts(new)
        _remove_parts(folder)


def _fetch_from_openai(remote: RemoteModel, folder: Path, new: Path) -> None:
    """Download the small files to `new`, then the weights, by way of parts in `folder`."""
    small = (tensorflow.INDEX, "encoder.json", "vocab.bpe")  # their hashes are pinned
    found = all(remote.fetch(file, new) for file in small)
    if not (found and remote.fetch(tensorflow.DATA, new, parts=folder)):
        raise CheckpointError(
            f"{remote.label}: some of the files that OpenAI released are not there"
        )


def _fetch_from_hub(remote: RemoteModel, folder: Path, new: Path) -> None:
    """As _fetch_from_openai. The small files are read before the weights are asked for."""
    pairs = (("vocab.json", "merges.txt"), ("tokenizer.json",))
    has_tokenizer = any(all(remote.fetch(file, new) for file in files) for files in pairs)
    if not has_tokenizer:
        missing = (
            f"{remote.label} has no tokenizer: neither vocab.json and merges.txt nor tokenizer.json"
        )
        if remote.source == "tokenizer":
            raise CheckpointError(missing)
        remote.note(missing)
    if not remote.pins:  # the repositories of the five known models do not need these files
        for file in ("generation_config.json", *(TOKENIZER_SETTINGS if has_tokenizer else ())):
            remote.fetch(file, new)
    remote.check_small_files(new)

    if remote.source == "tokenizer" or remote.fetch(huggingface.WEIGHTS, new, parts=folder):
        return
    if not remote.fetch(huggingface.INDEX, new):
        raise CheckpointError(f"{remote.label} has {huggingface.NO_WEIGHTS}")
    shards = sorted(set(huggingface.read_weight_map(new / huggingface.INDEX).values()))
    if not all(remote.fetch(file, new, parts=folder) for file in shards):
        raise CheckpointError(
            f"{remote.label} lacks some of the files that {huggingface.INDEX} names"
        )


def _remove_parts(folder: Path) -> None:
    for part in folder.glob(".*.part"):
        part.unlink()
