"""Read text files; write files that appear complete or not at all; lock a directory."""

import errno
import json
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import CheckpointError, short_repr

MAX_TEXT = 1 << 25  # bytes; GPT-2's largest text file, tokenizer.json, has about 3 million
LOCK = ".lock"  # a file that a process keeps locked while it uses the directory
READY = ".save.ready"  # a directory of complete files, until they are moved
MAX_WAIT = 1  # seconds to try to move them
NOT_EMPTY = errno.EEXIST, errno.ENOTEMPTY  # the errors of a directory that is not empty
NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)  # Windows has none
Waiting = Callable[[], Any] | None  # called once, when a lock is another process's


def directory_of(model: Path) -> Path:
    """The directory of a model that was given as a directory or as one file in it."""
    return model if model.is_dir() else model.parent


@contextmanager
def named_errors(message: str, advice: str = "") -> Iterator[None]:
    """Turn an OSError into a CheckpointError: the message, the reason, and what to do about it."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{message}: {error.strerror or error}{advice}") from error


@contextmanager
def reading(path: str | Path) -> Iterator[BufferedReader]:
    """A file, open for reading. Raises CheckpointError that names it, also for an OSError in the
    block."""
    if os.path.exists(path) and not os.path.isfile(path):  # opening a FIFO would wait for a writer
        raise CheckpointError(f"{path}: is not a regular file")
    with named_errors(f"{path}: cannot be read"), open(path, "rb") as file:
        yield file


def file_state(path: str | Path) -> tuple[int, int, int]:
    """What changes when a file does: size, time of the last change, inode. Raises
    CheckpointError."""
    with named_errors(f"{path}: cannot be read"):
        status = os.stat(path)
    return status.st_size, status.st_mtime_ns, status.st_ino


def read_text(path: Path) -> str:
    """A UTF-8 file's text. Raises CheckpointError that names the file and the line that is not
    UTF-8."""
    with reading(path) as file:
        if (size := file_state(path)[0]) > MAX_TEXT:
            raise CheckpointError(
                f"{path}: {size} bytes; expected at most {MAX_TEXT} in a text of GPT-2"
            )
        data = file.read()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CheckpointError(f"{path}, line {line}: not UTF-8") from error


def parse_json(text: str | bytes, **options: Any) -> Any:
    """json.loads without NaN and Infinity, which are not JSON. Raises ValueError or
    RecursionError."""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} is not a JSON number")

    return json.loads(text, parse_constant=refuse, **options)


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds. Raises CheckpointError that names the file."""
    text = read_text(path)
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {short_repr(value)}")
    return value


class StagedFiles:
    """`with StagedFiles(directory) as files: files.open("config.json").write(...)`

    All files of the block appear in `directory` together, or none does. They are written to a
    staging directory in it, and flushed to disk at the end of the block. One rename then marks the
    save as complete, and the files are moved one by one. When the process is killed between two
    moves, `finish_saves`, or the next save, moves the rest. An exception in the block, Ctrl-C
    included, removes what was written. Raises CheckpointError when the system refuses (disk full,
    no permission); `advice` is the end of the message. No other user can write to these
    directories:

        .save.RANDOM.tmp/   of a process that saves
            .lock           locked by it
            new/            the files; renamed to .save.ready when complete
        .save.ready/        complete files that are not moved yet
    """

    def __init__(self, directory: Path, advice: str = "") -> None:
        self.directory, self._advice = directory, advice

    def __enter__(self) -> "StagedFiles":
        with ExitStack() as undo:
            undo.enter_context(named_errors(f"cannot write to {self.directory}", self._advice))
            if os.path.lexists(self.directory) and not self.directory.is_dir():
                raise CheckpointError(
                    f"{self.directory} is a file; expected a directory to write to"
                )
            _make_directory(self.directory, undo)
            finish_saves(self.directory)
            undo.callback(
                finish_saves, self.directory
            )  # after Ctrl-C between two moves, or in mkdtemp
            while not self._stage(undo):
                _make_directory(self.directory, undo)
            self._files = undo.enter_context(ExitStack())
            self._undo = undo.pop_all()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            with self._undo:
                self._publish()
        self._undo.__exit__(kind, error, trace)  # raises again what it does not replace

    def open(self, name: str) -> BinaryIO:
        """A new file that will be called `name`."""
        # "x" is O_CREAT | O_EXCL: the open fails if the name exists, as a symbolic link too.
        return self._files.enter_context(open(self.new / name, "xb"))

    def _stage(self, undo: ExitStack) -> bool:
        """Make and lock a staging directory; False if another process took it for abandoned before
        that."""
        with suppress(FileNotFoundError, CheckpointError):
            staging = Path(tempfile.mkdtemp(".tmp", ".save.", self.directory))
            undo.callback(shutil.rmtree, staging, ignore_errors=True)
            undo.enter_context(locked_file(staging / LOCK))
            self.new = staging / "new"  # for files that other code writes
            self.new.mkdir(0o700)
            return True
        return False

    def _publish(self) -> None:
        self._files.close()
        for path in self.new.iterdir():
            with open(path, "rb+") as file:
                os.fsync(file.fileno())
        while True:
            try:
                os.rename(self.new, self.directory / READY)
                break
            except OSError as error:
                if error.errno not in NOT_EMPTY:
                    raise
            finish_saves(self.directory)  # the files of another process
        finish_saves(self.directory)


def link_new(path: Path, new: Path) -> None:
    """Give a complete file the name `new` too, or instead where the file system has no hard links.

    Raises FileExistsError if there is a file of that name; it is never replaced.
    """
    try:
        os.link(path, new)
    except FileExistsError:
        raise
    except OSError:
        os.close(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL))  # the name is ours now
        try:
            os.replace(path, new)
        except BaseException:
            os.unlink(new)
            raise


def finish_saves(directory: Path) -> None:
    """Move the files of a complete save into place, and remove what killed processes left of other
    saves.

    Any process may do so, several at once too: whatever is in .save.ready belongs to the last
    complete save. Raises CheckpointError if the files cannot be moved.
    """
    ready, end = directory / READY, time.monotonic() + MAX_WAIT
    while os.path.lexists(ready):
        try:
            if not _is_own_directory(ready):
                raise PermissionError(errno.EPERM, "it is not this user's directory")
            for path in sorted(ready.iterdir()):
                os.replace(path, directory / path.name)
            ready.rmdir()
        except OSError as error:
            if error.errno in (
                errno.ENOENT,
                *NOT_EMPTY,
            ):  # another process moves, or has saved again
                end = time.monotonic() + MAX_WAIT
            elif time.monotonic() > end:
                raise CheckpointError(
                    f"{ready}: this save cannot be moved out: {error.strerror}"
                ) from error
            time.sleep(0.001)
    for staging in directory.glob(".save.*.tmp"):
        with suppress(OSError, CheckpointError):
            if _is_own_directory(staging):
                with locked_file(staging / LOCK, without_locks=False):
                    # Its process may be about to lock it. It then finds no directory, and makes
                    # another.
                    abandoned = staging.with_suffix(".old.tmp")
                    with suppress(
                        PermissionError
                    ):  # Windows renames no directory with an open file
                        os.rename(staging, abandoned)
                    shutil.rmtree(abandoned if abandoned.exists() else staging, ignore_errors=True)
                (
                    staging / LOCK
                ).unlink()  # on Windows, where it was open; no other process has it open
                staging.rmdir()


def _is_own_directory(path: Path) -> bool:
    """Whether a path is a directory, not a link to one, that belongs to this user."""
    status = os.lstat(path)
    return stat.S_ISDIR(status.st_mode) and (
        sys.platform == "win32" or status.st_uid == os.geteuid()
    )


def _make_directory(directory: Path, undo: ExitStack) -> None:
    """Make a directory and those above it that are missing. `undo` removes those that stay
    empty."""
    directory = directory.absolute()  # an error if the working directory was removed
    for path in reversed([directory, *directory.parents]):
        if not path.exists():
            undo.callback(_remove_empty, path)  # first: Ctrl-C may come before mkdir returns
            path.mkdir(exist_ok=True)  # two processes may make it at once


def _remove_empty(directory: Path) -> None:
    with suppress(OSError):  # removed already, or in use
        directory.rmdir()


@contextmanager
def lock_directory(directory: Path, waiting: Waiting = None, advice: str = "") -> Iterator[None]:
    """Let one process at a time into a directory; make it if it is missing, remove it if it stays
    empty.

    The operating system holds the lock and releases it when the process ends, even if it is killed.
    Saves that a killed process left unfinished are finished first. If the directory is locked, call
    `waiting` and wait, if it is given; otherwise raise CheckpointError with the other process's id.
    """
    with ExitStack() as stack:
        with named_errors(f"cannot write to {directory}", advice):
            _make_directory(directory, stack)
            stack.enter_context(locked_file(directory / LOCK, waiting=waiting))
            finish_saves(directory)
        yield


@contextmanager
def locked_file(path: Path, waiting: Waiting = None, without_locks: bool = True) -> Iterator[None]:
    """Make and lock a file that holds this process's id; remove it at the end. Waits as
    lock_directory does.

    without_locks: whether to go on where the file system has no locks.
    """
    is_waiting = False
    while True:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | NO_FOLLOW, 0o666)
        locked = try_lock(lock, without_locks)
        links = os.fstat(lock).st_nlink
        os.lseek(lock, 0, os.SEEK_SET)
        if locked and links == 1:
            break
        owner = os.read(lock, 20).decode(errors="replace").strip()
        os.close(lock)
        if links > 1:
            raise CheckpointError(f"{path} is a link to another file; remove it")
        if not links:  # its process removed the file just now
            continue
        if not waiting:
            who = f"process {owner}" if owner.isdecimal() else "another process"
            raise CheckpointError(
                f"{path.parent} is in use by {who}; wait, or choose another directory"
            )
        if not is_waiting:
            waiting()
        is_waiting = True
        time.sleep(0.01)
    try:
        with suppress(OSError):  # a full disk
            os.write(
                lock, f"{os.getpid():<20}".encode()
            )  # padded, so that it overwrites an older id
        yield
    finally:
        with suppress(OSError):  # Windows removes no open file: there, the file stays
            os.unlink(path)
        os.close(lock)


def try_lock(fd: int, without_locks: bool = True) -> bool:
    """Lock an open file unless another process has. Where the system has no locks, return
    `without_locks`."""
    try:
        if sys.platform == "win32":
            import msvcrt

            os.lseek(fd, 1 << 30, os.SEEK_SET)  # beyond the content, which others may read
            msvcrt.locking(fd, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return without_locks
    return True
