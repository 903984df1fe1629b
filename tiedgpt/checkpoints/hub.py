"""Downloads: which files make a model, where they come from, and where they go.

    <weights>/gpt2/.lock                held by the process that downloads; another one waits
    <weights>/gpt2/.*.part              what has come
    <weights>/gpt2/model.safetensors    all files get their names when all are verified,
    <weights>/gpt2/config.json          and this one last: where it is, the rest is
    <weights>/gpt2/.tokenizer/          the same without weights, for who needs none

How one file is fetched, whatever happens on the way, is in fetching.py.
"""

import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ..errors import ArgumentError, CheckpointError, TiedGPTError, short_repr
from ..parameters import count_parameters
from . import huggingface, tensorflow
from .fetching import Server, Version, flush, megabytes
from .files import read_json
from .names import MODELS, SHIPPED, check_name, find_model, folders_of, weight_folders
from .vocabulary import read_tokenizer

SOURCES = ("hub", "openai", "tokenizer")
HUB = "https://huggingface.co"
OPENAI = "https://openaipublic.blob.core.windows.net/gpt-2/models"

# name -> (commit, its model.safetensors). Two sizes nobody has measured: there the server's has to do.
PINNED = {
    "gpt2": (
        "607a30d783dfa663caf39e06633721c8d4cfcd7e",
        Version(548_105_171, "248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707"),
    ),
    "gpt2-medium": (
        "6dcaa7a952f72f9298047fd5137cd6e4f05f41da",
        Version(1_519_984_962, "fc5a354a19255ad494f3d71549390baca1ccf61d1d822b9408971705c687c9cd"),
    ),
    "gpt2-large": (
        "32b71b12589c2f8d625668d2335a01cac3249519",
        Version(None, "5f47f3e12f91cd33b662ce7e433b6150ad5512b5884a2cee961b50e9c3bbebce"),
    ),
    "gpt2-xl": (
        "15ea56dee5df4983c59b2538573817e1667135e2",
        Version(None, "0f8b28eb05a8075f48b61b6f35332978c74fc7763fa9fb4051a1c30511736a6a"),
    ),
    "distilgpt2": (
        "2290a62682d06624634c1f46a6ad5be0f47f38aa",
        Version(352_824_413, "e1ff18884359fe8beb795a5f414feb85a6ce3d929ad019c0d958c039d2b94a1b"),
    ),
}
VOCAB = Version(1_042_301, "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783")
MERGES = Version(456_318, "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5")
# OpenAI's larger models are known by their size; model.ckpt.index has a checksum of each tensor.
OPENAI_MODELS = {"gpt2": "124M", "gpt2-medium": "355M", "gpt2-large": "774M", "gpt2-xl": "1558M"}
OPENAI_124M = {
    tensorflow.HPARAMS: Version(90, "d9d56e4121c427164e0c55c6f03c08e1daf9002b9b672825112d19097b680318"),
    tensorflow.INDEX: Version(5215, "71916f763f9746f9b2a06b12d91996cf1084ae008d0424543d39391c5f2dc687"),
    tensorflow.DATA: Version(497_759_232, "2060c885360cc0cf41d7a6dbc4d24b5127aae20260c8b5ae521b5a6578407118"),
}

Note = Callable[[str], Any]


def silent(_: str) -> None:
    """Tell nobody."""


def find_or_download(source: str | Path, note: Note = silent, only_tokenizer: bool = False) -> Path:
    """What `find_model` finds; a name that it does not find is downloaded. (A Path is no name.)

    only_tokenizer: no weights are; the directory is then one that `find_model` does not find.
    """
    try:
        return find_model(source)
    except CheckpointError as error:
        missing = error
    name = check_name(str(source))
    if isinstance(source, Path) or name in SHIPPED:
        raise missing
    if only_tokenizer:
        for folder in folders_of(name, "tokenizer"):
            if os.path.isfile(folder / "config.json"):
                return folder
    if _is_offline():
        raise CheckpointError(f"{missing}; HF_HUB_OFFLINE is set, so it is not downloaded")
    here = f" (for the directory here, write ./{source})" if os.path.isdir(source) else ""
    note(f"{name} is not on this machine{here}")
    return download(name, "tokenizer" if only_tokenizer else "hub", note)


def download(name: str, source: str = "hub", note: Note = silent) -> Path:
    """The directory of a model that was downloaded, now or before.

    name: one of the names known, an alias, or a hub repository owner/name. source: "hub", "openai" for the
    TensorFlow files that OpenAI released, or "tokenizer" for the hub's without weights. On a terminal a bar
    shows how far it is; `note` is called with what else a user may want to know. Raises CheckpointError; what
    has come by then waits for the next try.
    """
    if source not in SOURCES:
        raise ArgumentError(f"source must be one of {', '.join(SOURCES)}, got {short_repr(source)}")
    name = check_name(name)
    if name in SHIPPED:
        return find_model(name)
    remote = _at_openai(name, note) if source == "openai" else _on_hub(name, source, note)
    for folder in folders_of(name, source):
        if not remote.problem(folder):
            note(f"{name} is here already, complete{' and verified' if remote.has_digests else ''}")
            return folder
    if _is_offline():
        raise CheckpointError(f"{name} cannot be downloaded: HF_HUB_OFFLINE is set")
    folder = _folder_to_fill(name, source)
    if os.path.exists(folder / remote.config) and (problem := remote.problem(folder)):
        raise CheckpointError(f"{problem}; to download {name}, move {folder} away")
    try:
        _download(remote, folder, note)
    except OSError as error:
        raise CheckpointError(
            f"cannot write to {error.filename or folder}: {error.strerror or error}; "
            "to download to another folder, name it in TIEDGPT_WEIGHTS"
        ) from error
    except KeyboardInterrupt:
        note("stopped; the same command continues from here")
        raise
    return folder


@dataclass(frozen=True)
class RemoteModel:
    """A model on a server."""

    name: str
    source: str
    server: Server
    pins: dict[str, Version]  # what is known of its files beforehand

    @property
    def config(self) -> str:
        """The file that says what the model is."""
        return tensorflow.HPARAMS if self.source == "openai" else "config.json"

    @property
    def has_digests(self) -> bool:
        return bool(self.pins) and all(pin.digest for pin in self.pins.values())

    def problem(self, folder: Path) -> str:
        """What `folder` lacks to be this model, complete and as it is pinned; nothing if it lacks nothing."""
        openers = {"openai": tensorflow.open_tensorflow, "tokenizer": read_tokenizer}
        try:
            openers.get(self.source, huggingface.open_checkpoint)(folder)
            for file, pin in self.pins.items():
                if wrong := pin.difference(folder / file):
                    return f"{folder / file}: {wrong}"
        except (TiedGPTError, OSError) as error:
            return str(error)
        return ""

    def fetch(self, file: str, folder: Path) -> Path | None:
        """The part that a file has become; None if there is no such file."""
        return self.server.fetch(file, folder, self.pins.get(file, Version()))


def _on_hub(name: str, source: str, note: Note) -> RemoteModel:
    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or HUB
    token = os.environ.get("HF_TOKEN", "").strip()
    if not re.fullmatch(r"https?://[^\s/?#]+[^\s?#]*", endpoint):
        raise CheckpointError(f"HF_ENDPOINT must be an address like {HUB}, got {short_repr(endpoint)}")
    if not re.fullmatch("[!-~]*", token):
        raise CheckpointError("HF_TOKEN holds characters that no token has")
    repository, revision, pins = name, "main", {}
    if name in MODELS:
        repository = MODELS[name][0]
        revision, weights = PINNED[name]
        pins = {"vocab.json": VOCAB, "merges.txt": MERGES}
        pins |= {} if source == "tokenizer" else {huggingface.WEIGHTS: weights}
    label = f"{urlsplit(endpoint).netloc.rpartition('@')[2]}/{repository}"
    server = Server(f"{endpoint}/{repository}/resolve/{revision}", label, token, note)
    return RemoteModel(name, source, server, pins)


def _at_openai(name: str, note: Note) -> RemoteModel:
    if name not in OPENAI_MODELS:
        raise CheckpointError(f"OpenAI released {', '.join(OPENAI_MODELS)}; {name} is only on the hub")
    base = f"{OPENAI}/{OPENAI_MODELS[name]}"
    size = count_parameters(MODELS[name][1])["tied"]["bytes"]
    pins = {tensorflow.DATA: Version(size), "encoder.json": VOCAB, "vocab.bpe": MERGES}
    if name == "gpt2":
        pins |= OPENAI_124M
    return RemoteModel(name, "openai", Server(base, base.partition("://")[2], None, note), pins)


def _is_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def _folder_to_fill(name: str, source: str) -> Path:
    """The model's folder in the first folder of weights that the user has named or that can be written."""
    package = Path(__file__).resolve().parents[1]  # what is in there, an upgrade of tiedgpt removes
    roots = weight_folders()
    for root, folder in zip(roots, folders_of(name, source), strict=False):
        existing = next(path for path in (root, *root.parents) if os.path.exists(path))
        if os.environ.get("TIEDGPT_WEIGHTS") or (
            package not in root.parents and os.access(existing, os.W_OK)
        ):
            return folder
    raise CheckpointError(
        f"cannot write to {' or '.join(map(str, roots))}: name a folder for weights in TIEDGPT_WEIGHTS"
    )


def _download(remote: RemoteModel, folder: Path, note: Note) -> None:
    name, server = remote.name, remote.server
    with tempfile.TemporaryDirectory() as scratch:  # no folder of ours for what turns out to be no GPT-2
        config = _fetch_config(remote, Path(scratch))
    if re.fullmatch("[0-9a-f]{40}", server.commit):  # all other files are to be of the same one
        server.base = re.sub("/main$", f"/{server.commit}", server.base)
    size = sum(pin.size or 0 for pin in remote.pins.values())
    size_known = f" ({megabytes(size)})" if size else ""
    what = f"the tokenizer of {name}" if remote.source == "tokenizer" else name
    note(f"downloading {what}{size_known} from {server.label} to {folder}")
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder, lambda: note(f"another process is downloading {what}: waiting for it")):
        if (folder / remote.config).exists():
            note(f"the other process has completed {what}")
            return
        parts = _fetch_files(remote, folder)
        parts[remote.config] = folder / f".{remote.config}.part"
        parts[remote.config].write_bytes(config)
        flush(parts[remote.config])
        for file, part in parts.items():
            os.replace(part, folder / file)
        for part in folder.glob(".*.part"):  # of versions that are no more
            part.unlink()


def _fetch_config(remote: RemoteModel, scratch: Path) -> bytes:
    part = remote.fetch(remote.config, scratch)
    if part is None:
        raise CheckpointError(f"{remote.server.label}: no such repository, or no {remote.config} in it (404)")
    path = part.rename(scratch / remote.config)
    try:
        (tensorflow.read_hparams if remote.source == "openai" else huggingface.read_config)(scratch)
    except CheckpointError as error:
        raise CheckpointError(str(error).replace(str(scratch), remote.server.label)) from error
    return path.read_bytes()


def _fetch_files(remote: RemoteModel, folder: Path) -> dict[str, Path]:
    """All files but the configuration: name -> part."""
    parts: dict[str, Path] = {}
    label = remote.server.label

    def fetch(*files: str) -> bool:
        for file in files:
            if (part := remote.fetch(file, folder)) is None:
                return False
            parts[file] = part
        return True

    if remote.source == "openai":
        if not fetch(tensorflow.INDEX, tensorflow.DATA, "encoder.json", "vocab.bpe"):
            raise CheckpointError(f"{label}: not all of the files that OpenAI released are there")
        return parts
    if remote.source == "hub" and not fetch(huggingface.WEIGHTS):
        if not fetch(huggingface.INDEX):
            raise CheckpointError(f"{label}: {_why_no_weights(remote.server)}")
        shards = _shards(parts[huggingface.INDEX], f"{label}/{huggingface.INDEX}")
        if not fetch(*shards):
            raise CheckpointError(f"{label}: not all files that {huggingface.INDEX} names are there")
    if not remote.pins:  # the five models have none of these that says anything new
        for file in ("generation_config.json", "tokenizer_config.json", "added_tokens.json"):
            fetch(file)
    if not fetch("vocab.json", "merges.txt") and not fetch("tokenizer.json"):
        missing = f"{label} has no tokenizer: neither vocab.json and merges.txt nor tokenizer.json"
        if remote.source == "tokenizer":
            raise CheckpointError(missing)
        remote.server.note(missing)
    return parts


def _why_no_weights(server: Server) -> str:
    for file in huggingface.REFUSED:
        if server.has(file):
            return (
                f"the weights are in {file} alone, a pickle, which can run any code when it is opened, so it "
                f"is never fetched; have the model saved as {huggingface.WEIGHTS} (save_pretrained does)"
            )
    return f"there is neither {huggingface.WEIGHTS} nor {huggingface.INDEX}"


def _shards(index: Path, where: str) -> list[str]:
    """The files that an index names, none of them outside of its own folder."""
    try:
        files = set(read_json(index)["weight_map"].values())
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f'{where}: "weight_map" must map tensors to files') from error
    for file in files:
        plain = isinstance(file, str) and huggingface.FILE_NAME.fullmatch(file)
        if not plain or not file.endswith(".safetensors"):
            raise CheckpointError(
                f"{where}: {short_repr(file)} is not the name of a .safetensors file beside it"
            )
    return sorted(files)


@contextmanager
def _locked(folder: Path, wait: Callable[[], Any]) -> Iterator[None]:
    """Keep other processes out of `folder`; if one is in there, call `wait` and wait until it is not.

    The lock goes with its process, whatever ends that. The file goes when all is done: who still waits at it,
    or makes another one, finds the folder complete.
    """
    with open(folder / ".lock", "ab") as lock:
        if not _try_lock(lock.fileno()):
            wait()
            while not _try_lock(lock.fileno()):
                time.sleep(0.1)
        yield
        with suppress(OSError):  # Windows removes no file that is open
            os.unlink(lock.name)


def _try_lock(fd: int) -> bool:
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks: should two processes write to a part, its hash will tell
        pass
    return True
