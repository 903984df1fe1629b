"""What goes to stderr: notes, errors and progress."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, redirect_stderr
from typing import Any

from ..errors import one_line


def note(text: object) -> None:
    """Print one line that is not an error."""
    print_line(f"tiedgpt: note: {one_line(text)}")


def print_error(error: object) -> None:
    """Print an error as one line."""
    print_line(f"tiedgpt: error: {one_line(error)}")


def print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@contextmanager
def silent_stderr() -> Iterator[None]:
    """Drop what is written to stderr in the block, by other code too: a download has a bar."""
    with open(os.devnull, "w", encoding="utf-8", errors="replace") as null, redirect_stderr(null):
        yield


class ProgressBar(AbstractContextManager["ProgressBar"]):
    """How far a long computation is: a bar on a terminal, in a file a line every minute."""

    DELAY = 1.0  # seconds before a bar is shown
    INTERVAL = 60.0  # seconds from one line in a file to the next

    def __init__(self, doing: str, total: int, unit: str) -> None:
        self._doing = one_line(doing)
        self._total = total
        self._unit = unit
        self._done = 0
        self._start = time.monotonic()
        self._last_line = self._start  # when the last line was printed
        self._bar: Any = None

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def add(self, n: int, total: int | None = None) -> None:
        """Count n more. The bar disappears with the last one.

        `total` is for a total that was not known at the start.
        """
        self._done += n
        if total is not None:
            self._total = total
        if not sys.stderr.isatty():
            self._print_line()
        elif self._bar is not None:
            self._bar.update(n)
        elif time.monotonic() - self._start > self.DELAY:
            self._show_bar()
        if self._done >= self._total:
            self.close()

    def _print_line(self) -> None:
        """Print how far the computation is, unless the last such line is new."""
        now = time.monotonic()
        if now - self._last_line >= self.INTERVAL:
            self._last_line = now
            minutes = (now - self._start) / 60
            note(f"{self._doing}: {self._done / self._total:.0%} after {minutes:.0f} min")

    def _show_bar(self) -> None:
        from tqdm import tqdm  # importing it takes longer than most commands wait

        self._bar = tqdm(
            desc=self._doing,
            total=self._total,
            initial=self._done,
            unit=self._unit,
            unit_scale=self._unit == "B",  # bytes are shown as kB, MB and GB
            leave=False,
            file=sys.stderr,
        )
