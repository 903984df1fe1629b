"""Write files that appear complete or not at all, and keep other processes out meanwhile."""

import errno
import os
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import CheckpointError
from .locks import LOCK, Waiting, locked_file
from .reading import named_errors

READY = ".save.ready"  # a directory of complete files, until they are moved
REMOVED = ".removed"  # in it: empty files with the names of those that the save removes
MAX_WAIT = 1  # seconds to try to move them
# The errors, on different systems, of replacing or removing a directory that is not empty.
NOT_EMPTY = (errno.EEXIST, errno.ENOTEMPTY)


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
            .removed/       empty files that have the names of those to be removed
    """

    def __init__(self, directory: Path, advice: str = "") -> None:
        self.directory = directory
        self._advice = advice

    def __enter__(self) -> "StagedFiles":
        # After an error or Ctrl-C in this block, the callbacks on `undo` run, the last one first.
        # Otherwise pop_all hands them on to __exit__.
        with ExitStack() as undo:
            undo.enter_context(named_errors(f"cannot write to {self.directory}", self._advice))
            if os.path.lexists(self.directory) and not self.directory.is_dir():
                raise CheckpointError(
                    f"{self.directory} is a file; expected a directory to write to"
                )
            _make_directory(self.directory, undo)
            finish_saves(self.directory)
            # On `undo`, it is called again at the end of the save, because Ctrl-C may come between
            # two moves, or in mkdtemp.
            undo.callback(finish_saves, self.directory)
            # Another process may remove the staging directory before it is locked, or the empty
            # directory in which it would be. Both are then made again.
            while not self._stage(undo):
                _make_directory(self.directory, undo)
            self._files = undo.enter_context(ExitStack())  # the open files, which it closes
            self._undo = undo.pop_all()
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            with self._undo:
                self._publish()
        else:
            # named_errors, which is on `undo` too, turns an OSError into a CheckpointError.
            self._undo.__exit__(kind, error, trace)

    def open(self, name: str) -> BinaryIO:
        """A new file that will be called `name`, which may be in a folder: "a/b"."""
        path = self.new / name
        if path.parent != self.new:
            path.parent.mkdir(parents=True, exist_ok=True)
        # "x" is O_CREAT | O_EXCL: the open fails if the name exists, as a symbolic link too.
        return self._files.enter_context(open(path, "xb"))

    def remove(self, name: str) -> None:
        """Remove an earlier file, too, when the files of the block appear."""
        self.open(f"{REMOVED}/{name}")

    def _stage(self, undo: ExitStack) -> bool:
        """Make and lock a staging directory; False if another process is removing it.

        Until it is locked, another process takes it for one that a killed process left.
        """
        with suppress(FileNotFoundError, CheckpointError):
            staging = Path(tempfile.mkdtemp(".tmp", ".save.", self.directory))
            undo.callback(shutil.rmtree, staging, ignore_errors=True)
            undo.enter_context(locked_file(staging / LOCK))
            self.new = staging / "new"  # for files that other code writes
            self.new.mkdir(0o700)
            return True
        return False

    def _publish(self) -> None:
        """Flush the files to disk, mark them as complete with one rename, and move them."""
        self._files.close()
        for path in _files_in(self.new):
            with open(path, "rb+") as file:
                os.fsync(file.fileno())
        while not self._mark_as_ready():
            finish_saves(self.directory)  # moves the files of another process
        finish_saves(self.directory)  # moves these files

    def _mark_as_ready(self) -> bool:
        """Rename the directory of the new files; False if that of another save is there."""
        try:
            os.rename(self.new, self.directory / READY)
        except OSError as error:
            if error.errno not in NOT_EMPTY:
                raise
            return False
        return True


def finish_saves(directory: Path) -> None:
    """Move the files of a complete save into place, and remove what killed saves left.

    Any process may do so, several at once too: whatever is in .save.ready belongs to the last
    complete save. Raises CheckpointError if the files cannot be moved.
    """
    ready = directory / READY
    deadline = time.monotonic() + MAX_WAIT
    while os.path.lexists(ready):
        try:
            _move_out(ready, directory)
        except OSError as error:
            # Another process moved a file before this one did, or has saved again. While others
            # make progress, this one waits without a limit. After any other error, it tries again
            # for MAX_WAIT: the error may pass, for example when a program closes a file.
            is_progress_of_another = error.errno in (errno.ENOENT, *NOT_EMPTY)
            if is_progress_of_another:
                deadline = time.monotonic() + MAX_WAIT
            elif time.monotonic() > deadline:
                raise CheckpointError(
                    f"{ready}: this save cannot be moved out: {error.strerror}"
                ) from error
            time.sleep(0.001)

    for staging in directory.glob(".save.*.tmp"):
        with suppress(OSError, CheckpointError):
            if _is_own_directory(staging):
                _remove_abandoned(staging)


def _move_out(ready: Path, directory: Path) -> None:
    """Move the files of a complete save to their directory, after those that it removes."""
    if not _is_own_directory(ready):
        raise PermissionError(errno.EPERM, "it is not this user's directory")
    removed = ready / REMOVED
    for marker in _files_in(removed):
        # The file goes to where its marker is. Unlike an unlink, this does nothing if another
        # process has done so, and has moved this save.
        with suppress(FileNotFoundError):
            os.replace(directory / marker.relative_to(removed), marker)
    if removed.exists():
        shutil.rmtree(removed)

    for path in _files_in(ready):
        if removed in path.parents:
            continue  # another process has saved again
        new_path = directory / path.relative_to(ready)
        if path.parent != ready:
            with suppress(FileExistsError):  # if it is a file, os.replace raises
                new_path.parent.mkdir()
        os.replace(path, new_path)
    for folder in list(ready.iterdir()):
        if folder.is_dir():
            folder.rmdir()
    ready.rmdir()


def _files_in(directory: Path) -> list[Path]:
    """The files of a directory and of its folders, in the order of their names."""
    return sorted(path for path in directory.rglob("*") if not path.is_dir())


def _remove_abandoned(staging: Path) -> None:
    """Remove the staging directory of a killed process. Raises if its process is running."""
    # Without a lock, nothing shows that the process was killed.
    with locked_file(staging / LOCK, lock_is_optional=False):
        # The process may have made the directory just now and be about to lock it. After the rename
        # it finds no directory of that name, and makes another.
        abandoned = staging.with_suffix(".old.tmp")
        try:
            os.rename(staging, abandoned)
        except PermissionError:  # on Windows, because the lock in it is open
            abandoned = staging
        shutil.rmtree(abandoned, ignore_errors=True)
    # On Windows, the lock was open and is still there, and so is its directory. On other systems
    # this raises an OSError, because both are gone, and the caller ignores it.
    (staging / LOCK).unlink()
    staging.rmdir()


def link_new(path: Path, new: Path) -> None:
    """Give a complete file the name `new` too. Without hard links it is moved to that name.

    Raises FileExistsError if there is a file of that name, which is never replaced.
    """
    try:
        os.link(path, new)
    except FileExistsError:
        raise
    except OSError:  # the file system has no hard links
        # An empty file reserves the name, so that no other process's file is replaced.
        empty_file = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        os.close(empty_file)
        try:
            os.replace(path, new)
        except BaseException:
            os.unlink(new)
            raise


@contextmanager
def lock_directory(directory: Path, waiting: Waiting = None, advice: str = "") -> Iterator[None]:
    """Let one process at a time into a directory.

    The directory is made if it is missing, and removed if it stays empty. Saves that a killed
    process left unfinished are finished first. If another process has the lock, `waiting` is called
    and the lock waited for. If `waiting` is None, that raises CheckpointError with the other
    process's id.
    """
    with ExitStack() as undo:
        with named_errors(f"cannot write to {directory}", advice):
            _make_directory(directory, undo)
            undo.enter_context(locked_file(directory / LOCK, waiting=waiting))
            finish_saves(directory)
        yield


def _is_own_directory(path: Path) -> bool:
    """Whether a path is a directory, not a link to one, that belongs to this user."""
    status = os.lstat(path)
    if not stat.S_ISDIR(status.st_mode):
        return False
    return sys.platform == "win32" or status.st_uid == os.geteuid()


def _make_directory(directory: Path, undo: ExitStack) -> None:
    """Make a directory and those above it. `undo` removes the new ones that stay empty."""
    directory = directory.absolute()  # an error if the working directory was removed
    for path in reversed([directory, *directory.parents]):
        if not path.exists():
            undo.callback(_remove_empty, path)  # first: Ctrl-C may come before mkdir returns
            path.mkdir(exist_ok=True)  # two processes may make it at once


def _remove_empty(directory: Path) -> None:
    with suppress(OSError):  # removed already, or in use
        directory.rmdir()
