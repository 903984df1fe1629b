"""What goes to stderr: notes, errors and progress."""

import sys
import time
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ..errors import one_line


def note(text: object) -> None:
    """Print one line that is not an error."""
    print_line(f"tiedgpt: note: {one_line(text)}")


def print_error(error: object) -> None:
    """Print an error as one line."""
    print_line(f"tiedgpt: error: {one_line(error)}")


def print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass
class ProgressBar(AbstractContextManager["ProgressBar"]):
    """How far a long computation is: a bar on a terminal, in a file a line every minute."""

    DELAY: ClassVar[float] = 1.0  # seconds before a bar is shown
    INTERVAL: ClassVar[float] = 60.0  # seconds from one line in a file to the next

    doing: str
    total: int
    unit: str
    done: int = 0
    start: float = field(default_factory=time.monotonic)
    last_line: float = field(default_factory=time.monotonic)  # when the last line was printed
    bar: Any = None  # the bar of tqdm, once it is shown

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def add(self, n: int, total: int | None = None) -> None:
        """Count n more. The bar disappears with the last one.

        `total` is for a total that was not known at the start.
        """
        self.done += n
        if total is not None:
            self.total = total
        now = time.monotonic()
        if not sys.stderr.isatty():
            if now - self.last_line >= self.INTERVAL:
                self.last_line = now
                minutes = (now - self.start) / 60
                note(f"{self.doing}: {self.done / self.total:.0%} after {minutes:.0f} min")
        elif self.bar is not None:
            self.bar.update(n)
        elif now - self.start > self.DELAY:
            from tqdm import tqdm  # importing it takes longer than most commands wait

            self.bar = tqdm(
                desc=one_line(self.doing),
                total=self.total,
                initial=self.done,
                unit=self.unit,
                unit_scale=self.unit == "B",  # bytes are shown as kB, MB and GB
                leave=False,
                file=sys.stderr,
            )
        if self.bar is not None and self.done >= self.total:
            self.bar.close()
