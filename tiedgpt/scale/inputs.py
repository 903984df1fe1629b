"""The input: files of JSON lines, directories of them, pipes and stdin, read in shards."""

import gzip
import hashlib
import os
import stat
import sys
import zlib
from collections.abc import Iterator
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from ..errors import ArgumentError, TiedGPTError

SUFFIXES = (".jsonl", ".jsonl.gz")
GZIP_MAGIC = b"\x1f\x8b"  # the first bytes of a compressed file
# A line of so many bytes becomes a row with an error. A text takes up to 100 times its size.
MAX_LINE = 1 << 23


def find_files(names: list[str]) -> Iterator[str]:
    """The files that names stand for, as absolute paths; pipes and - stay as they are named.

    A directory stands for its .jsonl and .jsonl.gz files, in the order of their names.
    """
    for name in names:
        files = [name]
        if name != "-" and os.path.isdir(name):
            files = [str(path) for path in Path(name).iterdir() if path.name.endswith(SUFFIXES)]
        if not files:
            files = [name]  # a directory without such files, which check_file refuses
        for file in sorted(files):
            yield check_file(file)


def check_file(file: str) -> str:
    """The absolute path of a regular file, or `file` itself if it is a pipe or -."""
    if file == "-":
        mode = os.fstat(sys.stdin.fileno()).st_mode
    else:
        mode = os.stat(file).st_mode
    if stat.S_ISDIR(mode) or stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
        raise ArgumentError(f"{file} is no file, pipe, or directory of .jsonl or .jsonl.gz files")
    if file == "-" or not stat.S_ISREG(mode):
        return file
    return os.path.realpath(file)  # /dev/stdin is a link to the file that it stands for


def open_input(file: str | Path) -> BufferedReader:
    """Open a file to read its bytes; - is stdin, which stays open."""
    if file == "-":
        return open(sys.stdin.fileno(), "rb", closefd=False)
    return open(file, "rb")


def read_shards(file: str | Path, size: int, offset: int = 0) -> Iterator[tuple[int, list[bytes]]]:
    """The offset and the lines of each shard of a file: whole lines of `size` bytes or more.

    Offsets are those after decompression; reading begins at `offset`. A line of MAX_LINE bytes or
    more is cut: only its first MAX_LINE bytes are there. Raises TiedGPTError for a damaged file.
    """
    try:
        with open_input(file) as packed:
            stream: BinaryIO = packed
            if packed.peek(2).startswith(GZIP_MAGIC):
                stream = gzip.GzipFile(fileobj=packed)  # type: ignore[assignment]
            if offset > 0:
                stream.seek(offset)
            yield from cut_into_shards(stream, size, offset)
    except (OSError, EOFError, zlib.error) as error:
        # An OSError's own text has the path again, so only its strerror is said. Others have none.
        reason = getattr(error, "strerror", None) or error
        raise TiedGPTError(f"{file} cannot be read: {reason}") from error


def cut_into_shards(stream: BinaryIO, size: int, offset: int) -> Iterator[tuple[int, list[bytes]]]:
    """The shards of a stream that stands at `offset`, as read_shards yields them."""
    start = offset  # where this shard begins; `offset` is where the next piece begins
    lines: list[bytes] = []
    at_line_start = True
    while True:
        # A longer line than MAX_LINE comes in several pieces, of which the first one is kept.
        piece = stream.readline(MAX_LINE)
        if not piece:
            break
        if at_line_start:
            lines.append(piece)
        at_line_start = piece.endswith(b"\n")
        offset += len(piece)
        if at_line_start and offset - start >= size:
            yield start, lines
            start = offset
            lines = []
    if lines:
        yield start, lines


def hash_lines(lines: list[bytes]) -> str:
    """The SHA-256 of all lines together."""
    joined_hash = hashlib.sha256()
    for line in lines:  # a shard is large, and joining its lines first would copy it
        joined_hash.update(line)
    return joined_hash.hexdigest()
