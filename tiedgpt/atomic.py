"""Write a directory or a file that appears complete, by one rename, or not at all.

While it is written, it has another name beside its own: a dot, its name, random digits, ".new".
"""

import errno
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from .errors import CheckpointError, check_file_name

UNFINISHED = re.compile(r"\.(?P<target>.+)\.[0-9a-f]{8}\.new", re.DOTALL)
MAX_NAME = 240  # bytes; the unfinished name is 14 longer, and systems allow 255
NOT_EMPTY = (errno.EEXIST, errno.ENOTEMPTY)  # what systems answer if the target is not empty


@contextmanager
def new_directory(target: str | Path) -> Iterator[Path]:
    """`with new_directory("my-model") as directory:` gives a directory to write files to.

    At the end of the block its files are flushed to disk, and one rename makes it `target`. After
    an error or Ctrl-C nothing is left. What a killed process left is removed by the next write to
    the same target. Raises CheckpointError if `check_new` does, or the system refuses.
    """
    target = check_new(target)
    with _named_errors(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_unfinished(target)
        directory = _unfinished_name(target)
        directory.mkdir()  # unlike tempfile's, with the modes that the umask allows
        if target.exists():  # an empty directory, which may be private
            shutil.copymode(target, directory)
    try:
        with _named_errors(target):
            yield directory
            for path in directory.rglob("*"):
                _flush(path)
            _flush(directory)
            if os.name == "nt" and target.exists():  # Windows renames over no directory
                target.rmdir()
            try:
                os.rename(directory, target)
            except OSError as error:
                if error.errno in NOT_EMPTY:  # another process has written it meanwhile
                    raise _not_empty(target) from error
                if error.errno == errno.ENOENT:  # another process has removed what is unfinished
                    raise CheckpointError(f"another process writes to {target}, too") from error
                raise
            _flush(target.parent)
    except BaseException:
        shutil.rmtree(directory, ignore_errors=True)
        raise


@contextmanager
def replaced_file(path: str | Path) -> Iterator[BinaryIO]:
    """`with replaced_file("state") as file:` gives a file to write to.

    At the end of the block it is flushed to disk and replaces `path`. After an error or Ctrl-C,
    `path` is as before. Raises CheckpointError if the system refuses.
    """
    path = Path(path)
    unfinished = _unfinished_name(path)
    try:
        with _named_errors(path):
            with open(unfinished, "xb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(unfinished, path)
            _flush(path.parent)
    except BaseException:
        unfinished.unlink(missing_ok=True)
        raise


def write_first(path: Path, content: bytes) -> None:
    """Write a file, unless another process has written it meanwhile."""
    unfinished = _unfinished_name(path)
    unfinished.write_bytes(content)
    try:
        os.link(unfinished, path)  # unlike a rename, it replaces nothing
    except FileExistsError:
        pass  # the caller compares what is there
    finally:
        unfinished.unlink(missing_ok=True)


def check_new(target: str | Path) -> Path:
    """The target without symbolic links, if `new_directory` can make it. Else CheckpointError.

    It may be a name that does not exist, or an empty directory.
    """
    check_file_name(target)
    path = Path(os.path.realpath(target))
    for parent in path.parents:
        if os.path.lexists(parent) and not parent.is_dir():
            raise CheckpointError(f"cannot write to {target}: {parent} is a file")
    if os.path.lexists(path) and not path.is_dir():
        raise CheckpointError(f"{target} is a file; expected the name of a new directory")
    if len(os.fsencode(path.name)) > MAX_NAME:
        raise CheckpointError(f"{target}: the name is longer than {MAX_NAME} bytes")
    with _named_errors(path):
        is_empty = not path.exists() or not any(path.iterdir())
    if not is_empty:
        raise _not_empty(path)
    # A mounted directory cannot be replaced by a rename. To replace the working directory would
    # leave the shell in one that is deleted.
    if os.path.ismount(path) or path == Path.cwd():
        raise CheckpointError(
            f"{target} cannot be replaced by a new directory, because it is a working directory or "
            "a mounted one; name a new directory inside it"
        )
    return path


def remove_unfinished(target: str | Path) -> None:
    """Remove what killed processes left of `target`, a directory or a file."""
    target = Path(target)
    for path in target.parent.iterdir():
        unfinished = UNFINISHED.fullmatch(path.name)
        if unfinished is None or unfinished["target"] != target.name:
            continue
        if path.is_dir():
            # If its process still runs, the rename makes its write fail. Without it, the process
            # could publish a directory of which some files were removed.
            removed = path.rename(_unfinished_name(target))
            shutil.rmtree(removed, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def remove_unfinished_files(directory: Path) -> None:
    """Remove what killed processes left of all files in a directory."""
    for path in directory.iterdir():
        if UNFINISHED.fullmatch(path.name) and path.is_file():
            path.unlink(missing_ok=True)


def _unfinished_name(target: Path) -> Path:
    """A name that no other process uses, beside the target. UNFINISHED matches it."""
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}.new")


def _flush(path: Path) -> None:
    """Have the system write a file, or the names in a directory, to disk."""
    is_windows = os.name == "nt"  # which flushes only files that are open to write, no directories
    if is_windows and path.is_dir():
        return
    descriptor = os.open(path, os.O_RDWR if is_windows else os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    """Turn an error of the system into a CheckpointError that names the path."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"cannot write to {path}: {error.strerror or error}") from error


def _not_empty(path: Path) -> CheckpointError:
    return CheckpointError(f"{path} exists and is not empty; name a new directory")
