"""Files read whole, and files that appear whole or not at all."""

import json
import os
import shutil
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from ..errors import CheckpointError, short_repr

MAX_TEXT = 1 << 25  # bytes; the largest of GPT-2's, a tokenizer.json, has some 3 million


def directory_of(model: Path) -> Path:
    """Where the files of a model lie that was found as a directory or as one file in it."""
    return model if model.is_dir() else model.parent


def read_text(path: Path) -> str:
    """A UTF-8 file's text. Raises CheckpointError that names the file, and the line where it is none."""
    try:
        if (size := path.stat().st_size) > MAX_TEXT:
            raise CheckpointError(f"{path}: {size} bytes; expected at most {MAX_TEXT} of a GPT-2's text file")
        data = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be read: {error.strerror}") from error
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CheckpointError(f"{path}, line {line}: not UTF-8") from error


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

    Files are written to a directory beside (or, if it exists, inside) the one they are for. Leaving the
    block flushes them to disk and then renames that directory, or, into one that exists, each file in the
    order of opening. Leaving it by an exception, Ctrl-C included, removes what was written. Raises
    CheckpointError when the system refuses (disk full, no permission).
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._files: dict[str, BinaryIO] = {}
        self._made: list[Path] = []

    def __enter__(self) -> "StagedFiles":
        name = f".{self.directory.name}.{os.getpid()}.tmp"
        self._exists = os.path.isdir(self.directory)
        self._staging = (self.directory if self._exists else self.directory.parent) / name
        try:
            if os.path.lexists(self.directory) and not self._exists:
                raise CheckpointError(f"{self.directory} is a file; expected a directory to write to")
            for path in reversed([self._staging, *self._staging.parents]):
                if not path.exists():
                    self._made.append(path)  # first: Ctrl-C may come before the next line's call returns
                    path.mkdir()
        except BaseException as error:
            self._remove()
            if isinstance(error, OSError):
                raise self._cannot_write(error) from error
            raise
        return self

    def open(self, name: str) -> BinaryIO:
        """A new file, to be called `name` in the end."""
        self._files[name] = open(self._staging / name, "wb")  # noqa: SIM115  # closed when the block ends
        return self._files[name]

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                self._publish()
        except OSError as failure:
            raise self._cannot_write(failure) from failure
        finally:
            self._remove()
        if isinstance(error, OSError):
            raise self._cannot_write(error) from error

    def _publish(self) -> None:
        for file in self._files.values():
            file.flush()
            os.fsync(file.fileno())
            file.close()
        if self._exists:
            for name in self._files:
                os.replace(self._staging / name, self.directory / name)
        else:
            os.rename(self._staging, self.directory)
            self._made = []  # the directories above it are wanted now

    def _remove(self) -> None:
        for file in self._files.values():
            with suppress(OSError):  # a full disk: what could not be flushed is being removed
                file.close()
        shutil.rmtree(self._staging, ignore_errors=True)
        for path in reversed(self._made):
            with suppress(OSError):  # gone with the staging directory, or in use by others meanwhile
                path.rmdir()

    def _cannot_write(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"cannot write to {self.directory}: {error.strerror or error}")
