"""What a user sees while a model is downloaded: notes, a progress bar, sizes."""

import sys
from collections.abc import Callable
from typing import Any

Note = Callable[[str], Any]  # called with each message for the user


def discard_note(message: str) -> None:
    """The note of the library, which prints nothing."""


def megabytes(size: int) -> str:
    """A number of bytes as text.

    >>> megabytes(548_105_171)
    '548.1 MB'
    """
    return f"{size / 1e6:,.1f} MB"


def progress_bar(doing: str, size: int | None, done: int = 0) -> Any:
    """A bar with speed and time left, if stderr is a terminal and the work takes over 0.3 s."""
    from tqdm import tqdm  # imported where it is used: most commands need no bar

    return tqdm(
        desc=doing,
        total=size,
        initial=done,
        file=sys.stderr,
        unit="B",
        unit_scale=True,
        leave=False,
        disable=None,  # no bar unless stderr is a terminal
        delay=0.3,
    )
