"""Read text files and JSON; make text safe for terminals; print notes and errors."""

import os
import sys
from pathlib import Path
from typing import Any

from ..errors import ArgumentError, one_line, short_repr

ERROR = "tiedgpt: error: "


def read_text(file: str) -> str:
    """A file as text, line ends unchanged; "-" is stdin. Raises ArgumentError if it is not UTF-8."""
    try:
        data = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    except ValueError as error:  # a NUL or half a surrogate pair
        raise ArgumentError(f"{short_repr(file)} is not the name of a file: {error}") from error
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArgumentError(
            f"{source_name(file)} is not UTF-8 text: byte 0x{data[error.start]:02x} at position {error.start}"
        ) from error


def source_name(file: str) -> str:
    """The name of an input file in messages."""
    return "stdin" if file == "-" else file


def quoted(token: bytes) -> str:
    """A token in quotes, with spaces and line ends visible; as bytes if it is not whole characters.

    >>> print(quoted(b" world"), quoted(b"\\n"), quoted(b"\\xf0\\x9f"))
    ' world' '\\n' b'\\xf0\\x9f'
    """
    try:
        return repr(token.decode("utf-8"))
    except UnicodeDecodeError:
        return repr(token)


# C0 and C1 control characters, except line feed and tab
CONTROLS = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


def printable(text: str) -> str:
    """text; if stdout is a terminal, with U+FFFD in place of control characters, which could change it."""
    return text.translate(CONTROLS) if sys.stdout.isatty() else text


def note(text: object) -> None:
    """Print one line on stderr that is not an error."""
    sys.stderr.write(f"tiedgpt: note: {one_line(text)}\n")


def print_error(error: object) -> None:
    """Print one line on stderr that is an error."""
    sys.stderr.write(f"{ERROR}{one_line(error)}\n")


class Messages:
    """The stderr of a command. If `quiet`, it prints errors only. Text that cannot be written is dropped."""

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

    def flush(self) -> None:
        pass


def discard_unwritten(stream: Any) -> None:
    """Discard the text that a stream could not write. Python would try again at exit and print an error."""
    try:
        stream.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
