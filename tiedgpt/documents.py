"""The score of each text in files of JSON lines, on any number of processes or machines, with Dask.

The inputs are cut into blocks of whole lines. The output is a directory:

    DIR/settings.json       everything that determines the rows
    DIR/part-00042.jsonl    the rows of block 42: one for each line of the block, in order

A part appears by one rename. So every process may be killed at any moment, and the same command
does the blocks that have no part yet. Each process computes with one thread, so the rows have the
same bytes with any number of processes, on processors of one type.
"""

import gzip
import hashlib
import json
import logging
import os
import platform
import signal
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import lru_cache, partial
from io import BytesIO
from itertools import chain, islice
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import regex

from . import __version__
from .atomic import remove_unfinished_files, replaced_file, write_first
from .checkpoints import Opened
from .checkpoints.json_files import without_mark
from .errors import (
    ArgumentError,
    SpecialTokenError,
    TiedGPTError,
    TiedGPTWarning,
    TokenizerError,
    check_file_name,
    short_repr,
)
from .evaluation import score
from .gpt2.model import GPT2
from .gpt2.run import OnProgress
from .gpt2.tokenizer import Tokenizer
from .threads import cores, single_thread

BLOCK_SIZE = 10**6  # bytes of a block, after decompression; it ends with the line that fills it
MAX_LINE = 1 << 23  # bytes: a longer line is an error. A text takes up to 100 times its size
GZIP_MAGIC = b"\x1f\x8b"  # the first bytes of a compressed file
# The first bytes of files that are not read -> their format
OTHER_FORMATS = {
    b"\x28\xb5\x2f\xfd": "zstd",
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x04\x22\x4d\x18": "lz4",
    b"PK\x03\x04": "zip",
    b"PAR1": "Parquet",
    b"ARROW1": "Arrow",
    b"\xff\xfe": "UTF-16",
    b"\xfe\xff": "UTF-16",
}
SETTINGS = "settings.json"
CONNECT = 10  # seconds to wait for a scheduler
NO_WORKER = 60  # seconds to wait for a worker
# What Dask is told of the processes that it starts on this machine
LOCAL_CLUSTER = {
    "threads_per_worker": 1,
    "host": "127.0.0.1",  # not to be reached from other machines
    "memory_limit": 0,  # no limit: the weights are mapped, and all workers share them
    "dashboard_address": None,
    # Without a dashboard Dask serves metrics all the same: at any free port, not 8787.
    "scheduler_kwargs": {"dashboard_address": "127.0.0.1:0"},
}

Settings = dict[str, Any]


class Input(NamedTuple):
    """An input file, as it was when the command began."""

    file: str
    size: int
    modified: int  # nanoseconds
    sha256: str


class Block(NamedTuple):
    """Whole lines of an input file."""

    number: int  # counted from 0 through all files
    file: str
    offset: int  # of the first line, in bytes after decompression
    lines: bytes
    file_bytes: int  # how much of the file was read for the block; less than `lines` if compressed

    @property
    def part(self) -> str:
        """The name of the file with the block's rows."""
        return f"part-{self.number:05}.jsonl"


# What determines the rows


def settings_of(inputs: list[Input], model: GPT2, tokenizer: Tokenizer, stride: int) -> Settings:
    """Everything that determines the rows. `stride` is one that stride_or_default has checked."""
    settings = versions()
    settings["head"] = model.config.head
    settings["stride"] = stride
    settings["block_size"] = BLOCK_SIZE
    settings["model_sha256"] = model_sha256(model, tokenizer)
    settings["inputs"] = [source.file for source in inputs]
    for source in inputs:
        settings[f"size of {source.file}"] = source.size
        settings[f"sha256 of {source.file}"] = source.sha256
    return settings


def versions() -> Settings:
    """The versions that can change a row: regex splits texts, Python words the errors of JSON."""
    return {
        "tiedgpt": __version__,
        "numpy": np.__version__,
        "regex": regex.__version__,
        "python": platform.python_version(),
    }


def model_sha256(model: GPT2, tokenizer: Tokenizer) -> str:
    """A hash of the configuration, the vocabulary and all parameters."""
    description = [model.config.to_json(), tokenizer.description()]
    model_hash = hashlib.sha256(json.dumps(description, sort_keys=True).encode())
    for name, array in sorted(model.parameters.items()):
        model_hash.update(name.encode())
        model_hash.update(np.ascontiguousarray(array).data)
    return model_hash.hexdigest()


def first_difference(settings: Settings, wanted: Settings) -> str | None:
    """The first setting that is not the wanted one, and both values; None if there is none."""
    for name in wanted | settings:
        if settings.get(name) != wanted.get(name):
            there = short_repr(settings.get(name), limit=80)
            here = short_repr(wanted.get(name), limit=80)
            return f"{name}: {there}, not {here}"
    return None


def begin(out: Path, settings: Settings) -> None:
    """Make the directory `out` with its settings.json, or continue what the same settings began.

    Raises ArgumentError for a directory of other settings, or of something else.
    """
    check_file_name(out)
    path = out / SETTINGS
    out.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        # Another process may begin at the same time. Hidden files of this name are its unfinished
        # ones, and the first settings stay.
        if any(not file.name.startswith(f".{SETTINGS}.") for file in out.iterdir()):
            raise ArgumentError(f"{out} has files but no {SETTINGS}; name a new directory")
        write_first(path, json.dumps(settings, indent=2).encode() + b"\n")
    try:
        begun = json.loads(path.read_bytes())
        difference = first_difference(dict(begun), settings)
    except (ValueError, TypeError) as error:
        raise ArgumentError(f"{path} is damaged: {error}; name a new directory") from error
    if difference is not None:
        raise ArgumentError(
            f"{out} was begun with another {difference}; give the same, or name a new directory"
        )
    remove_unfinished_files(out)


# The input


def read_input(file: str) -> Input:
    """Read a whole file for its hash.

    Raises ArgumentError for a file of another format than lines, plain or compressed by gzip.
    """
    check_file_name(file)
    # A pipe could not be read twice. For a file that is not there, `open` raises below.
    if os.path.exists(file) and not os.path.isfile(file):
        raise ArgumentError(f"{file} is not a file; expected .jsonl or .jsonl.gz")
    file_hash = hashlib.sha256()
    with open(file, "rb") as stream:
        status = os.fstat(stream.fileno())
        beginning = stream.peek(8)  # they are read again below
        for magic, name in OTHER_FORMATS.items():
            if beginning.startswith(magic):
                raise ArgumentError(f"{file} is {name}; expected .jsonl or .jsonl.gz")
        while piece := stream.read(1 << 20):
            file_hash.update(piece)
    return Input(file, status.st_size, status.st_mtime_ns, file_hash.hexdigest())


def read_blocks(inputs: Iterable[Input]) -> Iterator[Block]:
    """The blocks of all files, in order.

    Raises TiedGPTError for a file that has changed since read_input, and for a damaged .gz.
    """
    number = 0
    for source in inputs:
        offset = 0
        file_bytes = 0
        with open(source.file, "rb") as file:
            stream: BinaryIO = file
            if file.peek(2).startswith(GZIP_MAGIC):
                stream = gzip.GzipFile(fileobj=file)  # type: ignore[assignment]
            while True:
                try:
                    lines, size = read_lines(stream)
                except (EOFError, zlib.error, gzip.BadGzipFile) as error:
                    raise TiedGPTError(f"{source.file} cannot be read: {error}") from error
                status = os.fstat(file.fileno())
                if (status.st_size, status.st_mtime_ns) != (source.size, source.modified):
                    raise TiedGPTError(f"{source.file} has changed since the command began")
                if size == 0:
                    break
                text = without_mark(lines, source.file) if offset == 0 else lines
                # The text begins after the byte order mark, if there is one.
                start = offset + len(lines) - len(text)
                yield Block(number, source.file, start, text, file.tell() - file_bytes)
                number += 1
                offset += size
                file_bytes = file.tell()


def read_lines(stream: BinaryIO) -> tuple[bytes, int]:
    """The next block of a stream, and its size there; 0 at the end of the stream.

    Only the first MAX_LINE bytes of a longer line are in the block. They fill it, so such a line is
    the last one of its block.
    """
    lines = []
    size = 0
    while size < BLOCK_SIZE:
        piece = stream.readline(MAX_LINE)
        if not piece:
            break
        lines.append(piece)
        size += len(piece)
        while len(piece) == MAX_LINE and not piece.endswith(b"\n"):
            piece = stream.readline(MAX_LINE)  # the rest of a long line
            size += len(piece)
    return b"".join(lines), size


# The rows of a block, in a worker


def write_part(out: Path, path: Path, settings: Settings, block: Block) -> None:
    """Score the lines of a block and write its part.

    path: the model. Raises TiedGPTError if this process has another model there, or other versions,
    than the process that made the settings.
    """
    difference = first_difference(settings | versions(), settings)  # of this process's versions
    if difference is not None:
        raise TiedGPTError(f"a worker has another {difference}")
    single_thread()  # in each task: other code may have changed it since
    model, tokenizer = load_same(path, settings["head"], settings["model_sha256"])
    rows = []
    offset = block.offset
    for line in BytesIO(block.lines):
        row = row_of(line, block.file, offset, model, tokenizer, settings["stride"])
        rows.append(json.dumps(row).encode() + b"\n")
        offset += len(line)
    with replaced_file(out / block.part) as part:
        part.writelines(rows)


@lru_cache(maxsize=1)  # a worker does many blocks with one model
def load_same(path: Path, head: str, sha256: str) -> tuple[GPT2, Tokenizer]:
    """The model and the tokenizer at a path. Raises TiedGPTError if they have another hash."""
    opened = Opened(path)
    with warnings.catch_warnings():  # which the process that began the run has shown
        warnings.simplefilter("ignore", TiedGPTWarning)
        model = opened.model(head)
        tokenizer = opened.tokenizer
    if model_sha256(model, tokenizer) != sha256:
        raise TiedGPTError(f"{path} is another model in a worker than it was when the run began")
    return model, tokenizer


def row_of(
    line: bytes, file: str, offset: int, model: GPT2, tokenizer: Tokenizer, stride: int
) -> dict[str, Any]:
    """The row of a line: the record's id, or the place of the line, with a Score or an error.

    Raises TiedGPTError if the model is damaged, which is no fault of the line.
    """
    row: dict[str, Any] = {"file": file, "offset": offset}
    try:
        record = parse_line(line)
        if isinstance(record.get("id"), (str, int)):
            row = {"id": record["id"]}
        if "text" not in record:
            raise ArgumentError('the record has no "text"')
        text = record["text"]
        if not isinstance(text, str):
            raise ArgumentError(f'"text" is not a string: {short_repr(text)}')
        return row | asdict(score(model, tokenizer, text, stride))
    except SpecialTokenError as error:
        return row | {"error": f"the text contains the special token {error.token}"}
    except (ArgumentError, TokenizerError) as error:
        return row | {"error": str(error)}


def parse_line(line: bytes) -> dict[str, Any]:
    """The JSON object on a line. Raises ArgumentError."""
    if len(line) >= MAX_LINE:  # the rest of a longer line was not read
        raise ArgumentError(f"the line has {MAX_LINE:,} bytes or more")
    try:
        record = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"not JSON: {error}") from error
    if not isinstance(record, dict):
        raise ArgumentError(f"expected a JSON object, got {short_repr(record)}")
    return record


# All blocks, on the workers of Dask


def score_inputs(
    inputs: list[Input],
    out: Path,
    path: Path,
    settings: Settings,
    scheduler: str | None = None,
    progress: OnProgress = None,
) -> None:
    """Write the parts that are missing in `out`, which `begin` has made.

    path: the model. scheduler: the address of a Dask scheduler whose workers see `out` and the
        model under the same paths; None starts a process for each core of this machine.
        progress: is called with the bytes of the input files that are done.
    Raises TiedGPTError if a part cannot be written.
    """
    missing = missing_blocks(inputs, out, progress)
    first = next(missing, None)
    if first is None:  # all parts are there, so Dask is not needed
        return
    from distributed import CancelledError  # takes a second
    from distributed.client import ClosedClientError
    from distributed.comm import CommClosedError

    task = partial(write_part, out.absolute(), path.absolute(), settings)
    logging.disable()  # Dask logs what is raised here, and workers that it starts again
    try:
        with new_client(scheduler) as client:
            do_blocks(client, task, chain([first], missing), progress)
    except (CommClosedError, ClosedClientError, CancelledError) as error:
        raise TiedGPTError("the connection to the Dask scheduler is lost") from error
    except (AttributeError, ImportError) as error:  # a worker has another tiedgpt, or none
        raise TiedGPTError(f"a worker cannot run tiedgpt {__version__}: {error}") from error
    finally:
        logging.disable(logging.NOTSET)
        remove_unfinished_files(out)


def missing_blocks(inputs: list[Input], out: Path, progress: OnProgress) -> Iterator[Block]:
    """The blocks that have no part yet. `progress` counts the others as done."""
    for block in read_blocks(inputs):
        if not (out / block.part).exists():
            yield block
        elif progress is not None:
            progress(block.file_bytes)


def new_client(scheduler: str | None) -> Any:
    """A Dask client of the scheduler at an address; None starts a process for each core.

    Raises TiedGPTError if there is no scheduler, or if the processes cannot be started.
    """
    from distributed import Client

    if scheduler is not None:
        try:
            return Client(scheduler, timeout=CONNECT)
        except (OSError, ValueError) as error:
            raise TiedGPTError(f"no Dask scheduler at {scheduler}: {error}") from error

    # On Ctrl-C the terminal sends SIGINT to all processes. The workers must not get it, because
    # this process ends them. So this thread blocks SIGINT while it starts them, and they inherit
    # that. The resource tracker of multiprocessing unblocks SIGINT in this thread when the tracker
    # starts, so it is started first.
    blocked = None
    if hasattr(signal, "pthread_sigmask"):  # not on Windows
        from multiprocessing import resource_tracker  # takes 10 ms

        resource_tracker.ensure_running()
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        client = Client(n_workers=cores(), **LOCAL_CLUSTER)
        client.run(logging.disable)  # a worker logs each error of a task, which is raised here too
        return client
    except (OSError, RuntimeError) as error:
        raise TiedGPTError(f"the workers cannot be started: {error}") from error
    finally:
        if blocked is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)


def do_blocks(
    client: Any, task: Callable[[Block], None], blocks: Iterator[Block], progress: OnProgress
) -> None:
    """Call task(block) for each block on the workers of a Dask client.

    Raises TiedGPTError for a block at which several workers died, and if there is no worker for
    NO_WORKER seconds, and what a task raises.
    """
    from distributed import KilledWorker, TimeoutError, wait

    running: dict[Any, Block] = {}  # a future -> its block
    try:
        while True:
            # A block for each thread. More blocks would only wait in the scheduler's memory. If
            # there is no worker yet, one block waits for it. If workers have left, more blocks are
            # running than there are threads.
            threads = max(1, sum(client.nthreads().values()))
            for block in islice(blocks, max(0, threads - len(running))):
                # pure=False: the result of an equal task of an earlier run does not count.
                running[client.submit(task, block, pure=False)] = block
            if not running:
                return
            try:
                done = wait(list(running), NO_WORKER, "FIRST_COMPLETED").done
            except TimeoutError:
                if client.nthreads():
                    continue
                raise TiedGPTError(f"Dask had no worker for {NO_WORKER} seconds") from None
            for future in done:
                block = running.pop(future)
                future.result()
                if progress is not None:
                    progress(block.file_bytes)
    except KilledWorker as error:
        where = f"{block.part}, {block.file} from byte {block.offset}"
        raise TiedGPTError(f"worker after worker died at {where}") from error


def count_rows(out: Path) -> tuple[int, int]:
    """How many rows are in all parts, and how many of them have an error."""
    rows = 0
    errors = 0
    for path in out.glob("part-*.jsonl"):
        part = path.read_bytes()
        rows += part.count(b"\n")
        errors += part.count(b'"error": ')  # a string has \\" in place of each quotation mark
    return rows, errors
