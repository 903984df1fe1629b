"""An error of one line, the memory of a call, the files of a directory, and a time to wait."""

import time
import tracemalloc
from collections.abc import Callable
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
    """A name in the directory -> the bytes of the file, or b"" if it is not a file."""
    files = {}
    for path in directory.iterdir():
        if path.is_file():
            files[path.name] = path.read_bytes()
        else:
            files[path.name] = b""
    return files


def wait_until(condition: Callable[[], object], seconds: float = 20) -> None:
    """Return when the condition is true. The test fails if it is not after so many seconds."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.001)
