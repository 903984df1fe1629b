"""Files of JSON lines, cut into shards. Each shard becomes one part of the output, and each part is written
once, or again with the same bytes. So processes can be killed and started again at any time.

    OUT.parts/          (or OUT itself, if it is given with a slash at its end)
        .lock           locked while the plan is made, and until the end by a run that does all parts
        .input-0        a copy of an input that can be read once
        plan.json       the input files, the shards and the settings, written first
        000000.jsonl    the part of shard 0: a row for each line
        joined          all parts; OUT becomes a second name of this file, and the directory is removed
"""

import gzip
import hashlib
import json
import os
import shutil
import stat
import sys
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from io import BufferedReader
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from ..checkpoints.files import StagedFiles, link_new, lock_directory
from ..errors import ArgumentError, TiedGPTError
from .rows import BLOCK, MAX_LINE, check_state, difference, has_error, open_job, state_of

SUFFIXES = (".jsonl", ".jsonl.gz")
COPY, PLAN, JOINED = ".input-", "plan.json", "joined"
Settings = dict[str, Any]
Progress = Callable[[int], Any]  # called with a number of rows that are done


# The input


def find_files(names: list[str]) -> list[str]:
    """The files of the names, in order: a file, a pipe, - for stdin, or a directory (its files by name)."""
    files = []
    for name in names:
        found = [name]
        if os.path.isdir(name):
            found = sorted(os.path.join(name, file) for file in os.listdir(name) if file.endswith(SUFFIXES))
            if not found:
                raise ArgumentError(f"{name} holds no file that ends in {' or '.join(SUFFIXES)}")
        for file in found:
            mode = os.stat(sys.stdin.fileno() if file == "-" else file).st_mode
            if stat.S_ISDIR(mode) or stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                raise ArgumentError(f"{file} is a directory or a device; expected a file or a pipe")
        files += found
    return files


def is_stream(file: str) -> bool:
    """Whether a file is a pipe, or something that only this process has open: it can be read once."""
    own = file == "-" or file.startswith(("/dev/std", "/dev/fd/", "/proc/"))
    return own or not (os.path.isfile(file) or os.path.isdir(file))


@contextmanager
def open_input(file: str, name: str = "") -> Iterator[BufferedReader]:
    """A file as a stream of bytes, decompressed if it is gzip. Raises TiedGPTError if it is damaged.

    `name` is that of the input, if `file` is a copy of it.
    """
    try:
        with ExitStack() as stack:
            stream: Any = sys.stdin.buffer if file == "-" else stack.enter_context(open(file, "rb"))
            if stream.peek(2)[:2] == b"\x1f\x8b":
                stream = stack.enter_context(gzip.open(stream))
            yield stream
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise TiedGPTError(f"{name or file}: a damaged gzip file: {error}") from error


def read_shard(stream: BinaryIO, size: int) -> Iterator[bytes | None]:
    """Whole lines until they have `size` bytes or more; None for each that is longer than MAX_LINE."""
    while size > 0 and (line := stream.readline(MAX_LINE)):
        size -= len(line)
        whole, end = True, line
        while end and not end.endswith(b"\n"):
            end = stream.readline(BLOCK)
            size -= len(end)
            whole = whole and not end
        yield line if whole else None


# The plan


class Shard(NamedTuple):
    """Whole lines of an input file."""

    number: int
    input: int  # the number of its input file
    line: int  # the number of its first line, counted from 1 through all input files
    lines: int
    offset: int  # in bytes, after decompression


class Plan(NamedTuple):
    """What a run does. `settings` has all that determines the output, besides what the input files hold."""

    settings: Settings
    inputs: list[Any]  # the state of each input file
    shards: list[Shard]
    key: str = ""  # the SHA-256 of plan.json, by which a worker knows that it does what was asked for


def read_plan(directory: Path) -> Plan:
    data = (directory / PLAN).read_bytes()
    try:
        raw = json.loads(data)
        shards = [Shard(*shard) for shard in raw["shards"]]
        return Plan(raw["settings"], raw["inputs"], shards, hashlib.sha256(data).hexdigest())
    except (ValueError, KeyError, TypeError) as error:
        raise TiedGPTError(f"{directory / PLAN} is damaged: {error}; remove {directory}") from error


# The output


def part_path(directory: Path, number: int) -> Path:
    return directory / f"{number:06}.jsonl"


def do_shard(directory: Path, key: str, number: int, progress: Progress = lambda n: None) -> None:
    """Write the part of a shard, unless it is there, in this process or in a worker.

    `key` is that of the plan: a worker may live on when the directory is that of another run. progress(1) is
    called for each row.
    """
    path = part_path(directory, number)
    with StagedFiles(directory) as staged:
        plan = read_plan(directory)  # after staging: files that were staged in a removed directory are lost
        if plan.key != key:
            raise TiedGPTError(f"{directory} has the plan of another run now")
        if path.exists():
            return
        shard, job = plan.shards[number], open_job(plan.settings)
        with open_input(plan.inputs[shard.input][0]) as stream:
            stream.seek(shard.offset)
            target = staged.open(path.name)
            for row in job.rows(read_shard(stream, plan.settings["shard_size"]), shard.line):
                target.write(row)
                progress(1)
        check_state(plan.inputs[shard.input])


def stream_rows(settings: Settings, files: list[str]) -> Iterator[bytes]:
    """The rows that a run would write, without a directory of parts: each input is read once."""
    job, line = open_job(settings), 1
    for file in files:
        with open_input(file) as stream:
            while stream.peek(1):
                for row in job.rows(read_shard(stream, settings["shard_size"]), line):
                    yield row
                    line += 1


class Output:
    """OUT, and the directory of its parts. `note` is called with each message for the user."""

    def __init__(self, out: str, note: Callable[[str], Any]) -> None:
        self.path, self.note = Path(os.path.abspath(out)), note
        self.keeps_parts = out.endswith("/") or self.path.is_dir()
        self.directory = self.path if self.keeps_parts else self.path.with_name(f"{self.path.name}.parts")
        self.done = self.directory.with_name(f".{self.directory.name}.done")  # any process may remove it

    @contextmanager
    def claim(self, files: list[str], settings: Settings, resume: bool, shared: bool) -> Iterator[Plan]:
        """Make the plan, or read the one that is there, and hold the directory; `shared`, with other parts.

        Raises ArgumentError if OUT exists, if there is a plan and `resume` is False, or another plan.
        """
        shutil.rmtree(self.done, ignore_errors=True)
        wait = (lambda: self.note(f"waiting for another process in {self.directory}")) if shared else None
        with ExitStack() as stack:
            stack.enter_context(lock_directory(self.directory, wait))
            if os.path.lexists(self.path) and not (self.keeps_parts or self._is_joined()):
                raise ArgumentError(f"{self.path} exists; remove it or choose another --out")
            if not (self.directory / PLAN).exists():
                self._make_plan(files, settings)
            elif not resume:
                to_continue = "to continue the run that made it, add --resume; otherwise remove it"
                raise ArgumentError(f"{self.directory} exists: {to_continue}")
            elif "-" in settings["input"]:
                self.note(f"the input is the copy that the interrupted run made in {self.directory}")
            plan = read_plan(self.directory)
            if another := difference(plan.settings, settings):
                what = f"{self.directory} was begun with another {another}"
                raise ArgumentError(f"{what}; give the same, or remove {self.directory} to start anew")
            for file in plan.inputs:
                check_state(file)
            if shared:
                stack.close()
            yield plan

    def _make_plan(self, files: list[str], settings: Settings) -> None:
        """Cut the input files into shards of about settings["shard_size"] bytes. It reads all of them."""
        if unknown := [name for name in os.listdir(self.directory) if not name.startswith(".")]:
            raise ArgumentError(f"{self.directory} holds {unknown[0]}, but no run to continue")
        plan, line = Plan(settings, [], []), 1
        with StagedFiles(self.directory) as staged:
            for number, file in enumerate(files):
                path = final = Path(file)
                if is_stream(file):
                    path, final = staged.new / f"{COPY}{number}", self.directory / f"{COPY}{number}"
                    self._copy(file, staged.open(path.name))
                plan.inputs.append([os.path.abspath(final), *state_of(path)[1:]])
                with open_input(str(path), file) as stream:
                    while stream.peek(1):
                        offset = stream.tell()
                        lines = sum(1 for _ in read_shard(stream, settings["shard_size"]))
                        plan.shards.append(Shard(len(plan.shards), number, line, lines, offset))
                        line += lines
            staged.open(PLAN).write(json.dumps(plan._asdict()).encode())

    def _copy(self, file: str, target: BinaryIO) -> None:
        """Copy a file that can be read once."""
        self.note(f"{file} can be read once, so it is copied to {self.directory}")
        left = shutil.disk_usage(self.directory).free // 2
        with open(sys.stdin.fileno() if file == "-" else file, "rb", closefd=file != "-") as stream:
            while block := stream.read(BLOCK):
                target.write(block)
                left -= len(block)
                if left < 0:  # perhaps it has no end
                    raise TiedGPTError(f"{file} takes more than half of the free disk at {self.directory}")
        target.flush()

    def missing(self, plan: Plan) -> list[Shard]:
        """The shards that have no part yet."""
        names = set(os.listdir(self.directory))
        return [shard for shard in plan.shards if part_path(self.directory, shard.number).name not in names]

    def finish(self, plan: Plan) -> tuple[int, int]:
        """Join all parts to OUT, unless they are kept. Returns the numbers of rows and of rows with an error.

        Raises TiedGPTError for a damaged part, and if OUT was made by another process meanwhile.
        """
        total = errors = 0
        with StagedFiles(self.directory) as staged:
            joins = not (self.keeps_parts or self._is_joined())
            write = staged.open(JOINED).write if joins else len
            for shard in plan.shards:
                path, before = part_path(self.directory, shard.number), total
                with open(path, "rb") as part:
                    for row in part:
                        write(row)
                        total, errors = total + 1, errors + has_error(row)
                if total - before != shard.lines:
                    wrong = f"{path} has {total - before} rows, expected {shard.lines}"
                    raise TiedGPTError(f"{wrong}; remove it to do it again")
        if self.keeps_parts:
            for path in self.directory.glob(f"{COPY}*"):
                path.unlink()
            return total, errors
        if joins:
            try:
                link_new(self.directory / JOINED, self.path)
            except FileExistsError as error:
                raise TiedGPTError(f"{self.path} exists now; move it away") from error
        os.rename(self.directory, self.done)  # so that half a directory is never taken for a run to resume
        shutil.rmtree(self.done, ignore_errors=True)
        return total, errors

    def _is_joined(self) -> bool:
        """Whether OUT is a second name of the joined parts: a process was killed before it removed them."""
        joined = self.directory / JOINED
        return joined.exists() and self.path.exists() and joined.samefile(self.path)
