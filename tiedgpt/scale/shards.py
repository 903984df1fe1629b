"""Files of JSON lines, cut into shards. Each shard becomes one part of the output, and each part is
written once, or again with the same bytes. So processes can be killed and started again at any
time.

    OUT.parts/
        .lock               locked by a run that does all parts
        .input-0            a copy of an input that can be read once
        plan.json           the settings: all that determines the output, the input's SHA-256 included
        000000-TAG.jsonl    the part of shard 0: a row for each line. TAG is a hash of the settings
        joined              all parts; OUT becomes a second name of this file, and the directory is removed
"""

import gzip
import hashlib
import json
import os
import shutil
import stat
import sys
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from io import BufferedReader
from itertools import accumulate, tee
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO, NamedTuple

import numpy as np
import regex

from .. import __version__
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.formats import open_checkpoint
from ..checkpoints.publishing import StagedFiles, link_new
from ..checkpoints.reading import parse_json, read_json
from ..checkpoints.vocabulary import read_tokenizer, vocabulary_files
from ..errors import ArgumentError, TiedGPTError, short_repr
from ..fast.blas import single_thread
from ..gpt2.model import GPT2
from ..gpt2.tokenizer import Tokenizer
from ..inference.documents import generate_documents, score_documents

SUFFIXES = (".jsonl", ".jsonl.gz")
COPY, PLAN, JOINED = ".input-", "plan.json", "joined"
# The settings that are arguments of score_documents or generate_documents
ARGUMENTS = {
    "score": ["special", "stride", "max_tokens", "on_long"],
    "generate": [
        "special",
        "max_new_tokens",
        "temperature",
        "top_k",
        "top_p",
        "seed",
        "num_samples",
        "stop",
    ],
}
# The fields that a row adds to its record, by command; "error" is the last.
FIELDS = {
    "score": ("loss", "tokens", "bytes", "bits_per_byte", "error"),
    "generate": ("samples", "error"),
}
MAX_DEPTH = (
    500  # of nested lists and objects. Python's own limit depends on its version and the caller
)
MAX_LINE = (
    1 << 23
)  # bytes; a line of so many is a row with an error. A text takes up to 100 times its size

Settings = dict[str, Any]  # all that determines the rows, besides the lines
Record = tuple[
    bytes, str | None, str
]  # the JSON object that a row begins with; the text, or None; the error


def identity(checkpoint: Checkpoint, tokenizer: Tokenizer) -> Settings:
    """What a run and all its workers must share: versions (JSON's errors are Python's), and the
    model."""
    texts = [checkpoint.config.to_json(), vocabulary_files(tokenizer)]
    total = hashlib.sha256(json.dumps(texts, sort_keys=True).encode())
    for path in sorted(checkpoint.file_states):
        total.update(np.memmap(path, np.uint8, "r").data)
    versions = {
        "numpy": np.__version__,
        "regex": regex.__version__,
        "python": sys.version.split()[0],
    }
    return {"tiedgpt": __version__, **versions, "model_sha256": total.hexdigest()}


def difference(found: Settings, wanted: Settings) -> str:
    """The first value found that is not the one wanted, and both values; "" if there is none."""
    for name in found | wanted:
        if found.get(name) != wanted.get(name):
            return f"{name}: {short_repr(found.get(name))}, not {short_repr(wanted.get(name))}"
    return ""


def read_record(line: bytes, number: int, settings: Settings, tokenizer: Tokenizer) -> Record:
    """Read one line. An error of the line is in the result."""
    field, only = settings["field"], settings["scores_only"]
    start = json.dumps({"line": number} if only else {}).encode()
    try:
        if len(line) == MAX_LINE:
            raise TiedGPTError(f"the line has {MAX_LINE:,} bytes or more")
        if nesting(line) > MAX_DEPTH:
            raise TiedGPTError(f"lists and objects are nested more than {MAX_DEPTH} deep")
        line = line.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
        record = parse_json(line.decode())
        if not isinstance(record, dict):
            raise TiedGPTError(f"expected a JSON object, got {short_repr(record)}")
        if taken := [name for name in FIELDS[settings["command"]] if name in record and not only]:
            raise TiedGPTError(f"the record has a field {taken[0]} already: rename it")
        if not only:
            start = line
        elif isinstance(record.get("id"), (str, int)):
            start = json.dumps({"line": number, "id": record["id"]}).encode()
        if field not in record:
            raise TiedGPTError(f"the record has no field {short_repr(field)}")
        if not isinstance(text := record[field], str):
            raise TiedGPTError(f"field {short_repr(field)} is not a text: {short_repr(text)}")
        if settings["special"] == "error" and (special := tokenizer.find_special(text)):
            raise TiedGPTError(f"special token {special}: --allow-special reads it as that token")
        return start, text, ""
    except TiedGPTError as error:
        return start, None, str(error)
    except ValueError as error:
        return start, None, f"not JSON: {error}"


def nesting(line: bytes) -> int:
    """How deeply lists and objects are nested in a JSON text.

    >>> nesting(b'{"a": [1, []], "[[": 2}')
    3
    """
    found = regex.finditer(rb'"[^"]*"?|[][{}]', line.replace(rb"\\", b"").replace(rb"\"", b""))
    return max(accumulate((part[0] in b"[{") - (part[0] in b"]}") for part in found), default=0)


def make_rows(settings: Settings, lines: list[bytes], first: int) -> Iterator[bytes]:
    """The row of each line; `first` is the number of the first line.

    Raises TiedGPTError if the model cannot be loaded here as it was when the run began, or if its
    weights, which are mapped, were changed meanwhile.
    """
    checkpoint, model, tokenizer = load(settings)
    command = settings["command"]
    records, ahead = tee(
        read_record(line, n, settings, tokenizer) for n, line in enumerate(lines, first)
    )
    texts: Any = (text for _, text, _ in ahead)  # for None, the result is an error
    do: Any = (
        score_documents if command == "score" else partial(generate_documents, first=first - 1)
    )
    results = do(model, tokenizer, texts, **{name: settings[name] for name in ARGUMENTS[command]})
    for (start, _, error), result in zip(records, results, strict=True):
        fields: dict[str, Any] = dict.fromkeys(FIELDS[command])
        if error or isinstance(result, TiedGPTError):
            fields["error"] = error or str(result)
        elif command == "score":
            fields |= {name: getattr(result, name) for name in FIELDS[command][1:-1]} | {
                "loss": result.nll
            }
        else:
            shown = ("ids", "text", "finish_reason")
            fields["samples"] = [
                {name: getattr(sample, name) for name in shown} for sample in result
            ]
        start = start.strip()[:-1].rstrip()  # without its last bracket
        yield start + (b"" if start == b"{" else b", ") + json.dumps(fields).encode()[1:] + b"\n"
    if open_checkpoint(checkpoint.path).file_states != checkpoint.file_states:
        raise TiedGPTError(f"{checkpoint.path} has changed since the run began")


_loaded: dict[str, tuple[Checkpoint, GPT2, Tokenizer]] = {}  # the last model
_lock = Lock()


def load(settings: Settings) -> tuple[Checkpoint, GPT2, Tokenizer]:
    """The model of the settings. Raises TiedGPTError if it is another one here, or if a version
    is."""
    checkpoint = open_checkpoint(Path(settings["model"]))
    key = repr((settings, checkpoint.file_states))
    single_thread()  # each time: something else in a worker that lives on may have changed it
    with _lock:  # so that two threads of one process share a model
        if key not in _loaded:
            tokenizer = read_tokenizer(checkpoint.path)
            if another := difference(settings | identity(checkpoint, tokenizer), settings):
                raise TiedGPTError(f"this worker has another {another}")
            _loaded.clear()
            _loaded[key] = checkpoint, checkpoint.load(settings["head"]), tokenizer
        return _loaded[key]


def find_files(names: list[str]) -> Iterator[str]:
    """The files of the names: absolute paths, those of a directory by name; pipes and - as they are
    named."""
    for name in names:
        paths = Path(name).iterdir() if name != "-" and os.path.isdir(name) else ()
        found = sorted(str(path) for path in paths if path.name.endswith(SUFFIXES))
        for file in found or [name]:
            mode = os.stat(sys.stdin.fileno() if file == "-" else file).st_mode
            if stat.S_ISDIR(mode) or stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                raise ArgumentError(
                    f"{file} is no file, pipe, or directory of .jsonl or .jsonl.gz files"
                )
            # /dev/stdin is a link to the file or pipe that it stands for.
            yield os.path.realpath(file) if stat.S_ISREG(mode) and file != "-" else file


def open_input(file: str | Path) -> BufferedReader:
    return open(sys.stdin.fileno() if file == "-" else file, "rb", closefd=file != "-")


def read_shards(file: str | Path, size: int, offset: int = 0) -> Iterator[tuple[int, list[bytes]]]:
    """The offset, after decompression, and the lines of each shard: whole lines of `size` bytes or
    more.

    Of a line of MAX_LINE bytes or more, only the beginning is there. Raises TiedGPTError for a
    damaged file.
    """
    try:
        with open_input(file) as packed:
            stream: Any = (
                gzip.GzipFile(fileobj=packed) if packed.peek(2)[:2] == b"\x1f\x8b" else packed
            )
            if offset:
                stream.seek(offset)
            start, lines, ended = offset, [], True
            while line := stream.readline(MAX_LINE):
                if ended:
                    lines.append(line)
                ended = line.endswith(b"\n")
                offset += len(line)
                if ended and offset - start >= size:
                    yield start, lines
                    start, lines = offset, []
            if lines:
                yield start, lines
    except (OSError, EOFError, zlib.error) as error:
        raise TiedGPTError(
            f"{file} cannot be read: {getattr(error, 'strerror', None) or error}"
        ) from error


def hash_lines(lines: list[bytes]) -> str:
    total = hashlib.sha256()
    for line in lines:  # joining them would take 80 bytes for each
        total.update(line)
    return total.hexdigest()


class Shard(NamedTuple):
    """Whole lines of an input file."""

    part: str  # the name of the file with their rows
    file: str  # a path, from the directory of the parts if it is a copy
    offset: int
    line: int  # the number of the first one, counted from 1 through all input files
    lines: int
    sha256: str


def read_all(
    files: list[str], size: int, copies: Path | str = ""
) -> Iterator[tuple[Shard, list[bytes]]]:
    """The shards of all files, whose parts have no names yet, and their lines."""
    number = 1
    for file in files:
        for offset, lines in read_shards(os.path.join(copies, file), size):
            yield Shard("", file, offset, number, len(lines), hash_lines(lines)), lines
            number += len(lines)


def rows_of_files(files: list[str], settings: Settings) -> Iterator[bytes]:
    """The row of each line of all files, one after another."""
    for shard, lines in read_all(files, settings["shard_size"]):
        yield from make_rows(settings, lines, shard.line)


def do_shard(
    directory: Path, settings: Settings, shard: Shard, progress: Any = lambda rows: None
) -> None:
    """Write the part of a shard, unless it is there, in this process or in a worker.

    Raises TiedGPTError if the directory is that of another run now, which a worker may live to see,
    and if the lines are not those that were planned.
    """
    with StagedFiles(directory) as staged:
        # After staging: files that were staged in a removed directory are lost.
        if read_json(directory / PLAN) != settings:
            raise TiedGPTError(f"{directory} has the plan of another run now")
        if (directory / shard.part).exists():
            return
        _, lines = next(
            read_shards(directory / shard.file, settings["shard_size"], shard.offset), (0, [])
        )
        if hash_lines(lines) != shard.sha256:
            raise TiedGPTError(f"{shard.file} has changed since the run began; remove {directory}")
        write_rows(make_rows(settings, lines, shard.line), staged.open(shard.part), progress)


def write_rows(
    rows: Iterable[bytes], target: BinaryIO, progress: Any = lambda rows: None
) -> tuple[int, int]:
    """Write rows; count them, and those with an error. progress(1) is called for each."""
    total = errors = 0
    for row in rows:
        target.write(row)
        total, errors = total + 1, errors + (not row.endswith(b'"error": null}\n'))
        progress(1)
    return total, errors


class Output:
    """OUT, and the directory of its parts. `note` is called with each message for the user."""

    def __init__(self, out: str, note: Callable[[str], Any]) -> None:
        self.path, self.note = Path(os.path.abspath(out)), note
        self.directory = self.path.with_name(f"{self.path.name}.parts")
        self.done = self.directory.with_name(
            f".{self.directory.name}.done"
        )  # any process may remove it

    def plan(
        self, files: list[str], settings: Settings, resume: bool
    ) -> tuple[Settings, list[Shard]]:
        """The settings with the input's SHA-256, which go to plan.json, and the shards.

        Raises ArgumentError if OUT exists, if there is a plan and `resume` is False, or another
        plan.
        """
        shutil.rmtree(self.done, ignore_errors=True)
        joined, plan = self.directory / JOINED, self.directory / PLAN
        if joined.exists() and self.path.exists() and joined.samefile(self.path):
            self._remove_parts()  # a process was killed before it did
        if os.path.lexists(self.path):
            raise ArgumentError(
                f"{self.path} exists and is not replaced; choose another --out (- is stdout)"
            )
        names = [path.name for path in self.directory.glob("[!.]*")]
        begun = plan.exists()  # asked after the names: another process may begin the run meanwhile
        if names and not (begun and resume):
            found = "a run, which --resume continues" if begun else f"{names[0]}, but no run"
            raise ArgumentError(f"{self.directory} holds {found}; to begin a new one, remove it")
        with StagedFiles(self.directory) as staged:
            for n, file in enumerate(files):
                if file == "-" or not os.path.isfile(file):
                    self.note(f"{file} is read from its {'first ' * begun}copy in {self.directory}")
                    files[n] = f"{COPY}{n}"
                    if not begun:
                        self._copy(file, staged.open(files[n]))
            copies = self.directory if begun else staged.new
            shards = [shard for shard, _ in read_all(files, settings["shard_size"], copies)]
            settings = settings | {
                "input_sha256": hash_lines([shard.sha256.encode() for shard in shards])
            }
            if not plan.exists():
                staged.open(PLAN).write(json.dumps(settings).encode())
            elif another := difference(read_json(plan), settings):
                begun_with = f"{self.directory} was begun with another {another}"
                raise ArgumentError(f"{begun_with}; give the same, or remove the directory")
        # A part of another run, begun here at the same moment, has another name.
        tag = hash_lines([json.dumps(settings, sort_keys=True).encode()])[:16]
        return settings, [
            shard._replace(part=f"{n:06}-{tag}.jsonl") for n, shard in enumerate(shards)
        ]

    def _copy(self, file: str, copy: BinaryIO) -> None:
        """Copy a file that can be read once. Raises TiedGPTError if it may fill the disk, or has no
        end."""
        most = shutil.disk_usage(copy.name).free // 2
        with open_input(file) as source:
            while block := source.read1():
                copy.write(block)
                if copy.tell() > most:
                    raise TiedGPTError(
                        f"{file} takes more than half of the free disk at {self.directory}"
                    )
        copy.flush()

    def missing(self, shards: list[Shard]) -> list[Shard]:
        """The shards that have no part yet."""
        return [shard for shard in shards if not (self.directory / shard.part).exists()]

    def finish(self, shards: list[Shard]) -> tuple[int, int]:
        """Join all parts to OUT. Raises TiedGPTError for a damaged part, and if OUT is there by
        now."""
        with StagedFiles(self.directory) as staged:
            counts = write_rows(self._rows(shards), staged.open(JOINED))
        try:
            link_new(self.directory / JOINED, self.path)
        except FileExistsError as error:
            raise TiedGPTError(f"{self.path} exists now; move it away") from error
        self._remove_parts()
        return counts

    def _rows(self, shards: list[Shard]) -> Iterator[bytes]:
        for shard in shards:
            rows = 0
            with open(self.directory / shard.part, "rb") as part:
                for row in part:  # one at a time: a part may be much larger than its shard
                    yield row
                    rows += row.endswith(b"\n")
            if rows != shard.lines:
                raise TiedGPTError(
                    f"{part.name} has {rows} rows, not {shard.lines}: remove it and resume"
                )

    def _remove_parts(self) -> None:
        with suppress(FileNotFoundError):  # another process was faster
            os.rename(
                self.directory, self.done
            )  # so half a directory is never taken for a run to resume
        shutil.rmtree(self.done, ignore_errors=True)
