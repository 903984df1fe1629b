"""From the lines of a shard to the rows of its part: read records, score or continue their texts."""

import hashlib
import json
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from .. import __version__
from ..checkpoints import load_model, open_checkpoint
from ..checkpoints.files import parse_json
from ..checkpoints.huggingface import Checkpoint
from ..checkpoints.vocabulary import read_tokenizer, vocabulary_files
from ..errors import CheckpointError, TiedGPTError, short_repr
from ..fast.blas import openblas
from ..inference.documents import generate_documents, score_documents
from ..inference.evaluation import Score
from ..model import GPT2
from ..tokenizer import Tokenizer
from .shards import MAX_LINE, PLAN, Plan, Shard, count_rows, open_input, part_path, read_lines, write_file

# The fields that a row adds to its record, by command; "error" is the last.
FIELDS = {"score": ("loss", "tokens", "bytes", "bits_per_byte", "error"), "generate": ("samples", "error")}
Progress = Callable[[int, dict[str, int]], Any]


def fingerprint(checkpoint: Checkpoint, tokenizer: Tokenizer) -> str:
    """The SHA-256 of a model's files: its configuration, weights and vocabulary."""
    total = hashlib.sha256(json.dumps(checkpoint.config.to_json(), sort_keys=True).encode())
    for text in vocabulary_files(tokenizer).values():
        total.update(text.encode())
    for path in sorted({tensor.file for tensor in checkpoint.tensors.values()}):
        with open(path, "rb") as file:
            while block := file.read(1 << 20):
                total.update(block)
    return total.hexdigest()


def versions() -> dict[str, str]:
    """The versions that a run and all its workers must share."""
    return {"tiedgpt": __version__, "numpy": np.__version__}


@dataclass(frozen=True)
class Record:
    """One line of the input: its text, or the error that it has."""

    line: bytes | None  # None if it is no JSON object, or has a field of the row already
    text: str | None = None
    id: Any = None
    error: str | None = None

    @classmethod
    def of(cls, line: bytes | None, field: str, added: tuple[str, ...]) -> "Record":
        if line is None:
            return cls(None, error=f"the line is longer than {MAX_LINE:,} bytes")
        try:
            record = parse_json(line.decode())
        except UnicodeDecodeError as error:
            return cls(None, error=f"not UTF-8: byte 0x{line[error.start]:02x} at position {error.start}")
        except (ValueError, RecursionError) as error:
            return cls(None, error=f"not JSON: {error}")
        if not isinstance(record, dict):
            return cls(None, error=f"expected a JSON object, got {short_repr(record)}")
        if taken := [name for name in added if name in record]:
            return cls(None, error=f"the record has a field {taken[0]} already; use --scores-only")
        text, id_ = record.get(field), record.get("id")
        id_ = id_ if isinstance(id_, (str, int)) else None
        if field not in record:
            return cls(line, id=id_, error=f"the record has no field {short_repr(field)}")
        if not isinstance(text, str):
            return cls(line, id=id_, error=f"field {short_repr(field)} is not a text: {short_repr(text)}")
        return cls(line, text, id_)

    def row(self, number: int, fields: dict[str, Any], only_fields: bool) -> bytes:
        """The record as it is, with the fields added; or its number and id with the fields."""
        if only_fields:
            fields = {"line": number} | ({} if self.id is None else {"id": self.id}) | fields
        new = json.dumps(fields).encode()
        if only_fields or self.line is None:
            return new + b"\n"
        record = self.line.strip()[:-1].rstrip()  # without its last bracket
        return record + (b"" if record == b"{" else b", ") + new[1:] + b"\n"


@dataclass(frozen=True)
class Job:
    """A plan, with the model that does it."""

    directory: Path
    plan: Plan
    model: GPT2
    tokenizer: Tokenizer

    def do(self, shard: Shard, progress: Progress = lambda size, counts: None) -> dict[str, int]:
        """Write the part of a shard, unless it is there. Returns the numbers of rows, errors and tokens.

        `progress` is called after each row with the bytes of its line and the counts so far.
        """
        counts = {"rows": 0, "errors": 0, "tokens": 0}
        path = part_path(self.directory, shard.number)
        if path.exists():
            rows, errors = count_rows(self.directory, shard)
            return {"rows": rows, "errors": errors, "tokens": 0}
        self.plan.inputs[shard.input].check()
        with open_input(self.plan.inputs[shard.input].path) as stream:
            write_file(path, self.rows(read_lines(stream, shard), shard.line, counts, progress))
        return counts

    def rows(
        self, lines: Iterator[bytes | None], first: int, counts: dict[str, int], progress: Progress
    ) -> Iterator[bytes]:
        settings = self.plan.settings
        command, only_fields = settings["command"], settings["scores_only"]
        added = () if only_fields else FIELDS[command]
        records: deque[Record] = deque()  # those whose result is not here yet

        def texts() -> Iterator[Any]:
            for line in lines:
                records.append(Record.of(line, settings["field"], added))
                yield records[-1].text  # for None, the result is an error

        arguments: dict[str, Any] = settings["arguments"]
        results: Iterator[Any]
        if command == "score":
            results = score_documents(self.model, self.tokenizer, texts(), **arguments)
        else:
            results = generate_documents(self.model, self.tokenizer, texts(), first=first - 1, **arguments)
        for result in results:
            record = records.popleft()
            fields = dict.fromkeys(FIELDS[command])
            if record.error or isinstance(result, TiedGPTError):
                counts["errors"] += 1
                fields["error"] = record.error or str(result)
            elif isinstance(result, Score):
                counts["tokens"] += result.tokens
                fields |= {name: getattr(result, name) for name in ("tokens", "bytes", "bits_per_byte")}
                fields["loss"] = result.nll
            else:
                counts["tokens"] += sum(len(sample.ids) for sample in result)
                names = ("ids", "text", "finish_reason")
                fields["samples"] = [{name: getattr(sample, name) for name in names} for sample in result]
            yield record.row(first + counts["rows"], fields, only_fields)
            counts["rows"] += 1
            progress(len(record.line or b""), counts)


def single_thread() -> None:
    """Give BLAS one thread from now on, because the number of threads changes the rounding."""
    if (blas := openblas()) is not None:
        blas[1](1)


@contextmanager
def ctrl_c_for_this_process_only() -> Iterator[None]:
    """Block SIGINT, which the terminal sends to all processes, in those that are started here and later.

    They inherit the block from the thread that starts them. The resource tracker of multiprocessing, which
    would unblock SIGINT in that thread, is started before.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


_lock = Lock()
_jobs: dict[str, Job] = {}


def open_job(directory: str) -> Job:
    """The job of a directory of parts, once for each process. Raises TiedGPTError if it cannot be done here.

    The lock makes two threads of one process share a model.
    """
    with _lock:
        if directory not in _jobs:
            plan = Plan.read(Path(directory) / PLAN)
            settings = plan.settings
            for name, version in versions().items():
                if settings[name] != version:
                    raise TiedGPTError(f"this worker has {name} {version}; the run has {settings[name]}")
            path = Path(plan.model)
            checkpoint, tokenizer = open_checkpoint(path), read_tokenizer(path)
            if fingerprint(checkpoint, tokenizer) != settings["model"]:
                raise TiedGPTError(f"{path}: this worker has another model there than the run")
            single_thread()
            try:
                model = load_model(path, settings["head"])
            except (CheckpointError, OSError):  # a cache directory that cannot be written
                model = load_model(path, settings["head"])
            _jobs[directory] = Job(Path(directory), plan, model, tokenizer)
        return _jobs[directory]
