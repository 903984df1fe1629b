"""An error of one line, the memory of a call, the files of a directory, and a time to wait."""

import time
import tracemalloc
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from tiedgpt.errors import CheckpointError, TiedGPTError


def refuses(message: str, function, *arguments, error: type[TiedGPTError] = CheckpointError) -> str:
    """Call the function. It must raise this error, whose message has one line and matches.

    message: a regular expression. Returns the whole message.
    """
    with pytest.raises(error, match=message) as caught:
        function(*arguments)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@cache
def deeply_nested_list() -> list:
    """A list that is nested too deeply to be shown, or to be written as JSON."""
    value = []
    for _ in range(100_000):
        value = [value]
    return value


def peak_memory(function, *arguments) -> int:
    """The most bytes that a call has in use at once, without those in use before the call."""
    tracemalloc.start()
    try:
        function(*arguments)
        _now, peak = tracemalloc.get_traced_memory()
        return peak
    finally:
        tracemalloc.stop()


def contents(directory: Path) -> dict[str, bytes]:
    """{name: content} of the files in the directory; the content of a folder in it is b""."""
    files = {}
    for path in directory.iterdir():
        if path.is_file():
            files[path.name] = path.read_bytes()
        else:
            files[path.name] = b""
    return files


def wait_until(condition: Callable[[], object], seconds: float = 120) -> None:
    """Wait until the condition is true. The test fails if that takes longer than `seconds`."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.001)
