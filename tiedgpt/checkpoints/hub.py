"""Download a model, unless it is here: the folder that it goes to, and the order of the steps.

<weights>/gpt2/.lock                the lock of the process that downloads; another one waits for it
<weights>/gpt2/.save.*.tmp/         configuration and vocabulary, until they are read
<weights>/gpt2/.*.part              the bytes of the weights received so far (see fetching.py)
<weights>/gpt2/model.safetensors    files get their names when all are verified (see StagedFiles)
<weights>/gpt2/.tokenizer/          the same without weights, for commands that need none
"""

import os
from contextlib import suppress
from pathlib import Path

from ..errors import ArgumentError, CheckpointError, TiedGPTError, one_line, short_repr
from .fetching import remove_parts
from .known_models import SHIPPED
from .locks import LOCK, locked_file
from .messages import Note, discard_note, megabytes
from .places import (
    check_name,
    find_model,
    folders_of,
    own_folders,
    package_folder,
    weight_folders,
)
from .publishing import StagedFiles, finish_saves, lock_directory
from .reading import directory_of, named_errors
from .remote_models import RemoteModel, remote_model

OTHER_FOLDER = "; to download to another folder, name it in TIEDGPT_WEIGHTS"


def find_or_download(
    source: str | Path, note: Note = discard_note, only_tokenizer: bool = False
) -> Path:
    """The path of a model on this machine. A name that is not here is downloaded, a Path is not.

    only_tokenizer: download the tokenizer without the weights, to a folder of its own, unless the
    model or its tokenizer is here.
    """
    if not isinstance(source, str | Path):
        raise ArgumentError(f"a model must be a name or a path, got {short_repr(source)}")
    try:
        path = find_model(source)
    except CheckpointError as error:
        not_here = error
    else:
        # A save that was killed at its end may have left files that are not in place yet.
        finish_saves(directory_of(path))
        return path

    # check_name raises for a text that is neither a path here nor a name.
    name = check_name(str(source))
    if isinstance(source, Path) or name in SHIPPED:
        raise not_here
    if only_tokenizer:
        for folder in own_folders(name, "tokenizer"):
            if os.path.isfile(folder / "config.json"):
                return folder
    if is_offline():
        raise CheckpointError(f"{not_here}; HF_HUB_OFFLINE is set, so it is not downloaded")
    directory_here = f" (for the directory here, write ./{source})" if os.path.isdir(source) else ""
    note(f"{name} is not on this machine{directory_here}")
    return download(name, "tokenizer" if only_tokenizer else "hub", note)


def is_offline() -> bool:
    """Whether the user wants nothing to be downloaded, as huggingface_hub understands it."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")


def download(name: str, source: str = "hub", note: Note = discard_note) -> Path:
    """Download a model, unless a complete one is on this machine; return its directory.

    name: a known name, an alias, or a hub repository owner/name. source: "hub", "openai" for the
    TensorFlow files that OpenAI released, or "tokenizer" for the hub's files but the weights.
    Raises CheckpointError.
    """
    name = check_name(name)
    if name in SHIPPED:  # it comes with the package
        return find_model(name)
    model = remote_model(name, source, note)
    complete = _find_complete(model, source)
    if complete is not None:
        # Every file whose hash is known was compared just now. The note says "verified" if that is
        # the case for all files whose content is known.
        pins = model.client.pins.values()
        is_verified = bool(pins) and all(pin.digest for pin in pins)
        verified = " and verified" if is_verified else ""
        note(f"{name} is here already, complete{verified}")
        return complete
    if is_offline():
        raise CheckpointError(f"{name} cannot be downloaded: HF_HUB_OFFLINE is set")

    folder = _folder_to_fill(name, source)
    _check_has_no_others(folder, model)
    try:
        with named_errors(f"cannot write to {folder}", OTHER_FOLDER):
            _download_to(folder, model)
    except KeyboardInterrupt:
        note("stopped; the same command continues from here")
        raise
    return folder


def _check_has_no_others(folder: Path, model: RemoteModel) -> None:
    """Refuse a folder with files of something else, which would be mixed with the model's."""
    # Files whose names begin with a dot are those of a download that was interrupted.
    has_files = any(os.path.isfile(path) for path in folder.glob("[!.]*"))
    if has_files:
        fault = model.find_fault(folder)
        if fault:  # without one, another process has just completed the model
            raise CheckpointError(f"{fault}; to download {model.name}, move {folder} away")


def _find_complete(model: RemoteModel, source: str) -> Path | None:
    """The first folder with the complete model; None if none is complete.

    If there is one, the parts that killed downloads of the model left are removed.
    """
    for folder in folders_of(model.name, source):
        with suppress(CheckpointError):
            finish_saves(folder)
        is_complete = model.find_fault(folder) == ""
        if is_complete:
            _remove_abandoned_parts(own_folders(model.name, source))
            return folder
    return None


def _remove_abandoned_parts(folders: list[Path]) -> None:
    """Delete the parts in each folder, unless a process is downloading to it."""
    for folder in folders:
        # A process that is downloading has the lock, so locked_file raises.
        with suppress(OSError, CheckpointError), locked_file(folder / LOCK):
            remove_parts(folder)


def _folder_to_fill(name: str, source: str) -> Path:
    """The model's folder in TIEDGPT_WEIGHTS, else in the first weight folder to write to."""
    roots = weight_folders()
    model_folders = own_folders(name, source)
    if os.environ.get("TIEDGPT_WEIGHTS"):  # it is the first weight folder
        return model_folders[0]
    for root, folder in zip(roots, model_folders, strict=True):
        if package_folder() in root.parents:  # an upgrade of tiedgpt would delete it
            continue
        # The root, or the folder in which it would be made.
        existing = next(path for path in (root, *root.parents) if os.path.exists(path))
        if os.access(existing, os.W_OK):
            return folder
    folders = " or ".join(str(root) for root in roots)
    raise CheckpointError(
        f"cannot write to {folders}: name a folder for weights in TIEDGPT_WEIGHTS"
    )


def _download_to(folder: Path, model: RemoteModel) -> None:
    """Download the model's files to a folder, in which they appear when all are complete."""
    note = model.client.note

    def waiting() -> None:
        note(f"another process is downloading {model.label}: waiting for it")

    with lock_directory(folder, waiting, OTHER_FOLDER):
        if (folder / model.config_file).exists():  # it did not before this process had the lock
            note(f"the other process has completed {model.label}")
            return
        with StagedFiles(folder, OTHER_FOLDER) as files:
            try:
                _fetch(model, files.new, folder)
            except TiedGPTError as error:
                # A message may begin with a path in the staging directory, which the user does not
                # know. The server's name replaces it. Messages have paths as one_line writes them.
                staging = one_line(f"{files.new}{os.sep}")
                message = str(error).replace(staging, f"{model.client.label}/")
                raise CheckpointError(message) from error
            remove_parts(files.new)  # those of the small files, so that they do not appear
        remove_parts(folder)  # those of the weights


def _fetch(model: RemoteModel, new: Path, folder: Path) -> None:
    """Download all files to `new`, small ones first, and check them.

    The parts of the weights are in `folder`, where the next download finds them after a failure.
    """
    client = model.client
    if not client.fetch(model.config_file, new):
        raise CheckpointError(
            f"{client.label}: no such repository, or no {model.config_file} in it (404)"
        )
    model.check_small_files(new)  # the configuration, which is the only one so far
    client.stay_at_commit()  # the repository may change during the download

    size = sum(pin.size or 0 for pin in client.pins.values())
    size_known = f" ({megabytes(size)})" if size else ""
    client.note(f"downloading {model.label}{size_known} from {client.label} to {folder}")
    model.fetch_small_files(new)
    model.fetch_weights(new, parts=folder)
    try:
        model.check_weights(new)
    except CheckpointError as error:
        # A server without hashes may have sent a part of a file as the whole. It must not be kept
        # as the beginning of the next download.
        for part in client.parts_without_hash:
            part.unlink(missing_ok=True)
        raise CheckpointError(f"{error}; the next download starts over") from error
