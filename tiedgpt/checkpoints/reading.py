"""Read text files and JSON. An error is a CheckpointError that names the file."""

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, short_repr

MAX_TEXT = 1 << 25  # bytes; GPT-2's largest text file, tokenizer.json, has about 3 million


def directory_of(model: Path) -> Path:
    """The directory of a model that was given as a directory or as one file in it."""
    if model.is_dir():
        return model
    return model.parent


@contextmanager
def named_errors(message: str, advice: str = "") -> Iterator[None]:
    """Turn an OSError into a CheckpointError: the message, the reason, and what to do about it."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"{message}: {error.strerror or error}{advice}") from error


@contextmanager
def open_to_read(path: str | Path) -> Iterator[BufferedReader]:
    """A file, open for reading. Raises CheckpointError, also for an OSError in the block."""
    if os.path.exists(path) and not os.path.isfile(path):  # opening a FIFO would wait for a writer
        raise CheckpointError(f"{path}: is not a regular file")
    with named_errors(f"{path}: cannot be read"), open(path, "rb") as file:
        yield file


def read_text(path: Path) -> str:
    """A file's text. Raises CheckpointError, which names the first line that is not UTF-8."""
    with open_to_read(path) as file:
        size = os.fstat(file.fileno()).st_size
        if size > MAX_TEXT:
            raise CheckpointError(
                f"{path}: {size} bytes; expected at most {MAX_TEXT} in a text of GPT-2"
            )
        data = file.read()
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise CheckpointError(f"{path}, line {line}: not UTF-8") from error


def read_json(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds. Raises CheckpointError."""
    text = read_text(path)
    try:
        value = parse_json(text)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{path}: expected a JSON object, got {short_repr(value)}")
    return value


def parse_json(
    text: str | bytes,
    make_object: Callable[[list[tuple[str, Any]]], Any] | None = None,
) -> Any:
    """The value of a JSON text. Python's reader also accepts NaN and Infinity; this one does not.

    make_object: makes an object's value from its names and values; by default, a dict.
    Raises ValueError, or RecursionError for a text that is nested too deeply.
    """
    return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=make_object)


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")
