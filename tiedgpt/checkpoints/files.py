"""Files read whole, and files that appear whole or not at all."""

import json
import os
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO

from ..errors import CheckpointError, show


def directory_of(model: Path) -> Path:
    """Where the files of a model lie that was found as a directory or as one file in it."""
    return model if model.is_dir() else model.parent


def read_text(path: Path) -> str:
    """A UTF-8 file's text. Raises CheckpointError that names the file, and the line where it is none."""
    try:
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
        raise CheckpointError(f"{path}: expected a JSON object, got {show(value)}")
    return value


class StagedFiles:
    """`with StagedFiles(directory) as files: files.open("config.json").write(...)`

    Leaving the block flushes every file to disk and then renames it to its final name, over an older one
    if there is one. Leaving it by an exception, Ctrl-C included, removes what was written and, if this
    made it, the directory. Raises CheckpointError when the system refuses (disk full, no permission).
    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._made: list[Path] = []
        self._files: dict[Path, BinaryIO] = {}

    def __enter__(self) -> "StagedFiles":
        missing = [path for path in (self.directory, *self.directory.parents) if not path.exists()]
        try:
            for path in reversed(missing):
                path.mkdir()
                self._made.append(path)
            if not self.directory.is_dir():
                raise CheckpointError(f"{self.directory} is a file; expected a directory to write to")
        except OSError as error:
            self._remove()
            raise self._cannot_write(error) from error
        return self

    def open(self, name: str) -> BinaryIO:
        """A new file, to be called `name` in the end."""
        file = open(self._temporary(name), "wb")  # noqa: SIM115  # closed when the block ends
        self._files[self.directory / name] = file
        return file

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if error is None:
                for file in self._files.values():
                    file.flush()
                    os.fsync(file.fileno())
                    file.close()
                for path in self._files:
                    os.replace(self._temporary(path.name), path)
                self._files, self._made = {}, []
        except OSError as failure:
            raise self._cannot_write(failure) from failure
        finally:
            self._remove()
        if isinstance(error, OSError):
            raise self._cannot_write(error) from error

    def _temporary(self, name: str) -> Path:
        return self.directory / f".{name}.{os.getpid()}.tmp"

    def _remove(self) -> None:
        for path, file in self._files.items():
            with suppress(OSError):  # a full disk: what could not be flushed is being removed
                file.close()
            self._temporary(path.name).unlink(missing_ok=True)
        for path in reversed(self._made):
            path.rmdir()

    def _cannot_write(self, error: OSError) -> CheckpointError:
        return CheckpointError(f"cannot write to {self.directory}: {error.strerror or error}")
