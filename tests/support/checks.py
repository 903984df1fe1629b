"""An error of one line, the memory of a call, and the files of a directory."""

import tracemalloc
from pathlib import Path

import pytest

from tiedgpt.errors import CheckpointError, TiedGPTError


def refuses(message: str, function, *arguments, error: type[TiedGPTError] = CheckpointError) -> str:
    """The call raises this error, of one line, with this message, which is returned."""
    with pytest.raises(error, match=message) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def peak_memory(function, *arguments) -> int:
    """The bytes that a call takes at once, beside those that are in use before it."""
    tracemalloc.start()
    try:
        function(*arguments)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def contents(directory: Path) -> dict[str, bytes]:
    """The files in a directory; the other names with b""."""
    files = {}
    for path in directory.iterdir():
        files[path.name] = path.read_bytes() if path.is_file() else b""
    return files
