"""What the commands print and read: notes, errors, tables, JSON, progress; texts from files and
stdin."""

import math
import os
import shutil
import sys
import textwrap
import time
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, one_line
from ..gpt2.tokenizer import Tokenizer

OTHER = 17  # columns of an alternative in a listing
ERROR = "tiedgpt: error: "
STDIN = "-"
# C0 and C1 control characters, except line feed and tab
CONTROLS = {
    code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"
}


def read_text(file: str | None) -> str:
    """A file as text, line ends unchanged; stdin if `file` is "-", or None and stdin is no
    terminal."""
    if file is None and sys.stdin.isatty():
        raise ArgumentError("there is no text: give one, or pipe one in")
    if file == "":  # Path("") is the working directory
        raise ArgumentError("'' is not the name of a file")
    data = sys.stdin.buffer.read() if file in (None, STDIN) else Path(str(file)).read_bytes()
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArgumentError(
            f"{source_name(file)} is not UTF-8 text at byte {error.start}"
        ) from error


def read_prompt(prompt: str | None) -> str:
    """The prompt; the text on stdin less one final newline if `prompt` is "-" or None."""
    if prompt is None or prompt == STDIN:
        return read_text(prompt).removesuffix("\n").removesuffix("\r")
    return prompt


def source_name(file: str | None) -> str:
    return "stdin" if file is None or file == STDIN else file


def spelled(tokenizer: Tokenizer, token: int, limit: int = 24) -> str:
    """A token in quotes, with spaces and line ends visible, cut to `limit` characters.

    It is shown as bytes if it is not whole characters, and as its id if it only pads the
    vocabulary.
    """
    if token >= tokenizer.vocab_size:
        return f"[{token}]"
    data = tokenizer.token_bytes(token)
    try:
        text = repr(data.decode("utf-8"))
    except UnicodeDecodeError:
        text = repr(data)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def end_of(prompt: str) -> str:
    """A prompt in quotes, at most its last 30 characters."""
    return repr(prompt) if len(prompt) <= 30 else f"...{prompt[-27:]!r}"


def printable(text: str) -> str:
    """text; if stdout is a terminal, with U+FFFD in place of control characters, which could change
    it."""
    return text.translate(CONTROLS) if sys.stdout.isatty() else text


def note(text: object) -> None:
    """Print one line on stderr that is not an error."""
    sys.stderr.write(f"tiedgpt: note: {one_line(text)}\n")


def print_error(error: object) -> None:
    sys.stderr.write(f"{ERROR}{one_line(error)}\n")


def print_table(lines: Sequence[str | tuple[str, ...]]) -> None:
    """Print rows of cells in columns, the first flush left, the others flush right; a str is a
    caption.

    Columns that do not fit the terminal follow below, with the first one and the captions again.
    """
    terminal = shutil.get_terminal_size().columns
    rows = [line for line in lines if not isinstance(line, str)]
    first, *widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    first = min(first, max(16, terminal - 2 - max(widths)))
    end = 0
    while end < len(widths):
        start, end = end, end + 1
        while end < len(widths) and first + sum(2 + w for w in widths[start : end + 1]) <= terminal:
            end += 1
        if start:
            print()
        for line in lines:
            if isinstance(line, str):
                print(fill(line, min(terminal, 80)))
                continue
            *above, label = fill(line[0], first).split("\n")
            cells = zip(line[1:][start:end], widths[start:end], strict=True)
            row = label.ljust(first) + "".join(cell.rjust(2 + w) for cell, w in cells)
            print(*above, row.rstrip(), sep="\n")


def print_predictions(tokenizer: Tokenizer, unit: str, rows: Iterable[tuple[int, Any]]) -> None:
    """A line for each token and its predicted_json: bits or logprob, and the likeliest others that
    fit.

    A token that was not predicted (None) has "-". On a terminal, numbers and tokens have colours.
    """
    width = max(len(unit), 6)
    space = shutil.get_terminal_size().columns - width - 2
    limit = min(14, max(6, space))  # columns of the token
    fitting = max(0, space - limit) // (OTHER + 2)  # alternatives
    print(f"{unit:>{width}}  {'token':{limit}}  {'likeliest others' if fitting else ''}".rstrip())
    bits = 1.0 if unit == "bits" else -1 / math.log(2)  # in one unit
    for token, prediction in rows:
        cells = ["-".rjust(width), spelled(tokenizer, token, limit).ljust(limit)]
        if prediction is not None:
            cells[0] = f"{prediction[unit]:{width}.2f}"
            cells = [painted(cell, prediction[unit] * bits) for cell in cells]
            for other in prediction["alternatives"][:fitting]:
                share = f"{2 ** -(other[unit] * bits):4.0%}"
                cells.append(f"{spelled(tokenizer, other['id'], OTHER - 5)} {share}".ljust(OTHER))
        print("  ".join(cells).rstrip())


def painted(text: str, bits: float) -> str:
    """text in the colour of its surprisal, if stdout is a terminal and NO_COLOR is not set."""
    colour = "32" if bits < 1 else "31" if bits >= 10 else "33" if bits >= 5 else ""
    off = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    return text if off or not colour else f"\x1b[{colour}m{text}\x1b[0m"


def fill(text: str, width: int | None = None) -> str:
    """text with its lines broken to fit the terminal, each part indented as its line is."""
    width = max(width or shutil.get_terminal_size().columns, 16)
    wrap = partial(textwrap.fill, width=width, break_on_hyphens=False, break_long_words=False)
    lines = text.split("\n")
    return "\n".join(
        wrap(line, subsequent_indent=" " * (len(line) - len(line.lstrip()))) for line in lines
    )


class Messages:
    """The stderr of a command. If `quiet`, it prints errors only. Text that cannot be written is
    dropped."""

    def __init__(self, stream: Any) -> None:
        self.quiet = False
        self._stream = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def isatty(self) -> bool:
        return not self.quiet and self._stream.isatty()

    def write(self, text: str) -> int:
        if not self.quiet or text.startswith(ERROR):
            try:
                self._stream.write(text)
                self._stream.flush()
            except OSError:
                discard_unwritten(self._stream)
        return len(text)


def discard_unwritten(stream: Any) -> None:
    """Discard the text that a stream could not write. Python would try again at exit and print an
    error."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


class ProgressBar(AbstractContextManager["ProgressBar"]):
    """Show on stderr how far a long computation is: on a terminal a bar, in a file a line a
    minute."""

    DELAY, INTERVAL = (
        1.0,
        60.0,
    )  # seconds: before a bar is shown, and from one line in a file to the next

    def __init__(self, doing: str, total: int, unit: str) -> None:
        self._doing, self._total, self._unit = one_line(doing), total, unit
        self._done = 0
        self._start = self._noted = time.monotonic()
        self._bar: Any = None

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.close()

    def add(self, n: int, total: int | None = None) -> None:
        """n more are done; the bar ends with the last. `total` is for one that was not known at the
        start."""
        self._done, self._total = self._done + n, total or self._total
        now = time.monotonic()
        if not sys.stderr.isatty():
            if now - self._noted >= self.INTERVAL:
                self._noted = now
                minutes = (now - self._start) / 60
                note(f"{self._doing}: {self._done / self._total:.0%} after {minutes:.0f} min")
        elif self._bar is not None:
            self._bar.update(n)
        elif now - self._start > self.DELAY:
            from tqdm import tqdm  # importing it takes longer than most commands wait

            form: Any = {"unit": self._unit, "unit_scale": self._unit == "B", "initial": self._done}
            self._bar = tqdm(
                desc=self._doing, total=self._total, leave=False, file=sys.stderr, **form
            )
        if self._done >= self._total:
            self.__exit__()
