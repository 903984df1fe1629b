"""A large file of JSON lines, cut into shards. Each shard becomes one part of the output, and each part is
written once or again with the same bytes. So processes can be killed and started again at any time.

    OUT.parts/          (or OUT itself, if it is given with a slash at its end)
        plan.json       the input files, the shards and the settings, written first
        000000.jsonl    the part of shard 0: a row for each line; it is renamed to this name when complete
        .NAME.tmp       a part that is being written, or was when its process was killed

No process needs to know of another one: what is done is what has a part. A shard starts at the beginning of a
line. Its place in a compressed file is that in the text without compression.
"""

import gzip
import json
import os
import secrets
import shutil
import sys
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from ..checkpoints.files import locked_file
from ..errors import ArgumentError, TiedGPTError, short_repr

MAX_LINE = 1 << 23  # bytes; a longer line is a row with an error. Reading one takes 160 MB
BLOCK = 1 << 20  # bytes to read at once
SUFFIXES = (".jsonl", ".jsonl.gz")
PLAN, LOCK = "plan.json", ".plan.lock"
STDIN = ".stdin"  # where stdin is kept until the output is complete
NO_ERROR = b'"error": null}\n'  # the end of a row without an error


@dataclass(frozen=True)
class Input:
    """An input file, and what changes when the file does."""

    path: str
    size: int
    mtime_ns: int

    @classmethod
    def of(cls, path: str | Path) -> "Input":
        status = os.stat(path)
        return cls(os.path.abspath(path), status.st_size, status.st_mtime_ns)

    def check(self) -> None:
        """Raise TiedGPTError if the file has changed."""
        if Input.of(self.path) != self:
            raise TiedGPTError(f"{self.path} has changed since the run began; remove its parts to start anew")


@dataclass(frozen=True)
class Shard:
    """Whole lines of an input file."""

    number: int
    input: int  # the number of its input file
    line: int  # the number of its first line, counted from 1 through all input files
    offset: int
    size: int  # in bytes
    lines: int


@dataclass(frozen=True)
class Plan:
    """What a run does. `settings` has all that determines the output, besides the input."""

    settings: dict[str, Any]
    model: str  # where the model is; `settings` has its SHA-256
    inputs: list[Input]
    shards: list[Shard]

    @classmethod
    def read(cls, path: Path) -> "Plan":
        try:
            raw = json.loads(path.read_bytes())
            inputs = [Input(**fields) for fields in raw["inputs"]]
            return cls(raw["settings"], raw["model"], inputs, [Shard(*fields) for fields in raw["shards"]])
        except (ValueError, KeyError, TypeError) as error:
            raise TiedGPTError(f"{path} is damaged: {error}; remove its directory to start anew") from error

    def write(self, path: Path) -> None:
        raw = {
            "settings": self.settings,
            "model": self.model,
            "inputs": [asdict(file) for file in self.inputs],
            "shards": [list(asdict(shard).values()) for shard in self.shards],
        }
        write_file(path, [json.dumps(raw).encode()])

    def check(self, settings: dict[str, Any], inputs: list[Input], directory: Path) -> None:
        """Raise ArgumentError that names the first difference from the settings and files given."""
        here = {**settings, **settings["arguments"], "input": [file.path for file in inputs]}
        there = {**self.settings, **self.settings["arguments"], "input": [file.path for file in self.inputs]}
        del here["arguments"]
        for name, value in here.items():
            if value != there.get(name):
                raise ArgumentError(
                    f"{directory} was begun with another {name}: {short_repr(there.get(name))}, now it is "
                    f"{short_repr(value)}; give the same, or remove {directory} to start anew"
                )
        for file in self.inputs:
            file.check()


def make_plan(inputs: list[Input], settings: dict[str, Any], model: str) -> Plan:
    """Cut the input files into shards of about settings["shard_size"] bytes. It reads all of them."""
    shards: list[Shard] = []
    line = 1
    for number, file in enumerate(inputs):
        with open_input(file.path) as stream:
            for offset, size, lines in cut(stream, settings["shard_size"]):
                shards.append(Shard(len(shards), number, line, offset, size, lines))
                line += lines
    return Plan(settings, model, inputs, shards)


def cut(stream: BinaryIO, size: int) -> Iterator[tuple[int, int, int]]:
    """The offset, bytes and lines of each shard: `size` bytes, then up to the end of the line."""
    end = 0
    while True:
        start, lines, last = end, 0, b""
        while end - start < size or not last.endswith(b"\n"):
            left = size - (end - start)
            block = stream.read(min(left, BLOCK)) if left > 0 else stream.readline(BLOCK)
            if not block:
                break
            end += len(block)
            lines += block.count(b"\n")
            last = block
        if end == start:
            return
        yield start, end - start, lines + (not last.endswith(b"\n"))


@contextmanager
def open_input(path: str) -> Iterator[BinaryIO]:
    """A file as a stream of bytes; a .gz file is decompressed. Raises TiedGPTError if it is damaged."""
    try:
        with open(path, "rb") as file:
            if path.endswith(".gz"):
                with gzip.open(file) as stream:
                    yield stream  # type: ignore[misc]
            else:
                yield file
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TiedGPTError(f"{path}: a damaged gzip file: {error}") from error


def read_lines(stream: BinaryIO, shard: Shard) -> Iterator[bytes | None]:
    """The lines of a shard, and None for each line longer than MAX_LINE."""
    stream.seek(shard.offset)
    left = shard.size
    while left > 0:
        line = stream.readline(min(left, MAX_LINE))
        left -= len(line)
        complete, end = left == 0 or line.endswith(b"\n"), line
        while end and left > 0 and not end.endswith(b"\n"):
            end = stream.readline(min(left, BLOCK))
            left -= len(end)
        if not end:
            raise TiedGPTError("the input file has become shorter since the run began")
        yield line if complete else None


# The parts


def part_path(directory: Path, number: int) -> Path:
    return directory / f"{number:06}.jsonl"


def missing(directory: Path, plan: Plan) -> list[Shard]:
    """The shards that have no part yet."""
    names = set(os.listdir(directory))
    return [shard for shard in plan.shards if part_path(directory, shard.number).name not in names]


def write_file(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a file that appears complete or not at all."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp")
    try:
        with open(temporary, "xb", buffering=0) as file:
            for chunk in chunks:
                _write(file, chunk, path)
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _write(file: Any, chunk: bytes, path: Path) -> None:
    try:
        while chunk:
            chunk = chunk[file.write(chunk) :]
    except OSError as error:  # a full disk
        raise TiedGPTError(f"{path}: cannot be written: {error.strerror}") from error


def count_rows(directory: Path, shard: Shard) -> tuple[int, int]:
    """The rows of a part, and how many of them have an error. Raises TiedGPTError for a damaged part."""
    path = part_path(directory, shard.number)
    rows = good = 0
    with open(path, "rb") as file:
        for line in file:
            rows += 1
            good += line.endswith(NO_ERROR)
    if rows != shard.lines:
        raise TiedGPTError(f"{path} has {rows} rows, expected {shard.lines}; remove it to do it again")
    return rows, rows - good


def join(directory: Path, plan: Plan, out: Path) -> None:
    """Join all parts to the file `out`, and remove the directory."""

    def blocks() -> Iterator[bytes]:
        for shard in plan.shards:
            with open(part_path(directory, shard.number), "rb") as file:
                while block := file.read(BLOCK):
                    yield block

    write_file(out, blocks())
    # Renamed first: a directory that is killed while it is removed must not look like a run to resume.
    rubbish = directory.with_name(f".{directory.name}.{secrets.token_hex(8)}.tmp")
    os.rename(directory, rubbish)
    shutil.rmtree(rubbish, ignore_errors=True)


def clean(directory: Path) -> None:
    """Remove what killed processes left beside the parts, and the copy of stdin."""
    for path in [*directory.glob(".*.tmp"), directory / STDIN]:
        path.unlink(missing_ok=True)


def begin(directory: Path, names: list[str], settings: dict[str, Any], model: str, resume: bool) -> Plan:
    """Make the directory of parts and its plan. With `resume`, use those that are there, if they fit.

    Raises ArgumentError if the directory exists and `resume` is False, and if its plan has other settings or
    other input files.
    """
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        if not directory.is_dir() or (not resume and any(directory.iterdir())):
            raise ArgumentError(
                f"{directory} exists: to continue the run that made it, add --resume; otherwise remove it"
            ) from None
    # The first of several processes makes the plan, and the others wait for it.
    with locked_file(directory / LOCK, waiting=lambda: None):
        path = directory / PLAN
        if not path.exists():
            if unknown := [name for name in os.listdir(directory) if not name.startswith(".")]:
                raise ArgumentError(f"{directory} holds {unknown[0]}, but no run to continue")
            plan = make_plan(find_inputs(names, directory), settings, model)
            plan.write(path)
            return plan
        plan = Plan.read(path)
        plan.check(settings, find_inputs(names, directory), directory)
        return plan


def find_inputs(names: list[str], directory: Path) -> list[Input]:
    """The files of the names, in order: a file, a directory (its files by name), or - for stdin."""
    inputs = []
    for name in names:
        if name == "-":
            if not (directory / STDIN).exists():
                write_file(directory / STDIN, iter(lambda: sys.stdin.buffer.read(BLOCK), b""))
            inputs.append(Input.of(directory / STDIN))
        elif os.path.isdir(name):
            found = sorted(path for path in Path(name).iterdir() if path.name.endswith(SUFFIXES))
            if not found:
                raise ArgumentError(f"{name} holds no file that ends in {' or '.join(SUFFIXES)}")
            inputs += [Input.of(path) for path in found]
        else:
            inputs.append(Input.of(name))
    return inputs
