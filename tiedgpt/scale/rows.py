"""From JSON lines to rows: read records, score or continue their texts, add the results."""

import hashlib
import json
import os
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import regex

from .. import __version__
from ..checkpoints import load_model, open_checkpoint
from ..checkpoints.files import file_state, parse_json
from ..checkpoints.huggingface import Checkpoint
from ..checkpoints.vocabulary import read_tokenizer, vocabulary_files
from ..errors import TiedGPTError, short_repr
from ..fast.blas import single_thread
from ..inference.documents import generate_documents, score_documents
from ..inference.evaluation import Score
from ..model import GPT2
from ..tokenizer import Tokenizer

# The settings that are arguments of score_documents or generate_documents
ARGUMENTS = {
    "score": ["special", "stride", "max_tokens", "on_long"],
    "generate": ["special", "max_new_tokens", "temperature", "top_k", "top_p", "seed", "num_samples", "stop"],
}
# The fields that a row adds to its record, by command; "error" is the last.
FIELDS = {"score": ("loss", "tokens", "bytes", "bits_per_byte", "error"), "generate": ("samples", "error")}
BLOCK = 1 << 20  # bytes to read at once
MAX_LINE = 1 << 23  # bytes; a longer line is a row with an error. Reading one takes 160 MB
MAX_DEPTH = 500  # of nested lists and objects. Python's own limit depends on who calls the parser
BOM = b"\xef\xbb\xbf"


def identity(checkpoint: Checkpoint, tokenizer: Tokenizer) -> dict[str, str]:
    """What a run and all its workers must share: versions, and the SHA-256 of a model's files.

    Errors of JSON depend on the version of Python.
    """
    texts = [checkpoint.config.to_json(), vocabulary_files(tokenizer)]
    total = hashlib.sha256(json.dumps(texts, sort_keys=True).encode())
    for path in weight_files(checkpoint):
        with open(path, "rb") as file:
            while block := file.read(BLOCK):
                total.update(block)
    versions = {"numpy": np.__version__, "regex": regex.__version__, "python": sys.version.split()[0]}
    return {"tiedgpt": __version__, **versions, "model_sha256": total.hexdigest()}


def difference(found: dict[str, Any], wanted: dict[str, Any]) -> str:
    """The first value found that is not the one wanted, and both values; "" if there is none."""
    for name, value in found.items():
        if value != wanted.get(name):
            return f"{name}: {short_repr(value)}, not {short_repr(wanted.get(name))}"
    return ""


def weight_files(checkpoint: Checkpoint) -> list[Path]:
    return sorted({tensor.file for tensor in checkpoint.tensors.values()})


def state_of(path: str | Path) -> list[Any]:
    """The path of a file, and what changes when the file does."""
    return [os.path.abspath(path), *file_state(path)]


def check_state(state: list[Any]) -> None:
    if state_of(state[0]) != state:
        raise TiedGPTError(f"{state[0]} has changed since the run began; remove its parts to start anew")


class Record(NamedTuple):
    """One line of the input: its text, or the error that it has."""

    line: bytes | None  # None if it is no JSON object, or has a field of the row already
    text: str | None = None
    id: Any = None
    error: str | None = None


def read_record(line: bytes | None, field: str, added: Iterable[str]) -> Record:
    """The record of a line. `added` are the fields that its row adds to it."""
    if line is None:
        return Record(None, error=f"the line is longer than {MAX_LINE:,} bytes")
    line = line.removeprefix(BOM)
    try:
        text = line.decode()
        if line.count(b"[") + line.count(b"{") > MAX_DEPTH and nesting(line) > MAX_DEPTH:
            return Record(None, error=f"lists and objects are nested more than {MAX_DEPTH} deep")
        record = parse_json(text)
    except UnicodeDecodeError as error:
        return Record(None, error=f"not UTF-8: byte 0x{line[error.start]:02x} at position {error.start}")
    except ValueError as error:
        return Record(None, error=f"not JSON: {error}")
    if not isinstance(record, dict):
        return Record(None, error=f"expected a JSON object, got {short_repr(record)}")
    if taken := [name for name in added if name in record]:
        return Record(None, error=f"the record has a field {taken[0]} already: rename it")
    value, id_ = record.get(field), record.get("id")
    id_ = id_ if isinstance(id_, (str, int)) else None
    if field not in record:
        return Record(line, id=id_, error=f"the record has no field {short_repr(field)}")
    if not isinstance(value, str):
        return Record(line, id=id_, error=f"field {short_repr(field)} is not a text: {short_repr(value)}")
    return Record(line, value, id_)


def nesting(line: bytes) -> int:
    r"""How deeply lists and objects are nested in a JSON text.

    >>> nesting(b'{"a": [1, "[[[\\"["]}')
    2
    """
    text = np.frombuffer(line.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    in_string = np.logical_xor.accumulate(text == ord('"'))
    steps = np.isin(text, [*b"[{"]).astype(np.int8) - np.isin(text, [*b"]}"])
    return int(np.cumsum(np.where(in_string, 0, steps), dtype=np.int32).max())


class Job(NamedTuple):
    """What makes rows of lines. `settings` has all that determines them, besides the lines."""

    settings: dict[str, Any]
    model: GPT2
    tokenizer: Tokenizer
    weights: list[Any]  # the state of their files, which the model may be a view of

    def rows(self, lines: Iterable[bytes | None], first: int) -> Iterator[bytes]:
        """The row of each line; `first` is the number of the first line.

        Raises TiedGPTError at the end if the weights were changed meanwhile.
        """
        settings, model, tokenizer, _ = self
        command, only_fields = settings["command"], settings["scores_only"]
        names, arguments = FIELDS[command], {name: settings[name] for name in ARGUMENTS[command]}
        records: deque[Record] = deque()  # those whose result is not here yet

        def texts() -> Iterator[Any]:
            for line in lines:
                record = read_record(line, settings["field"], () if only_fields else names)
                if arguments["special"] == "error" and (found := tokenizer.find_special(record.text or "")):
                    error = f"the text has the special token {found}; --allow-special reads it as a token"
                    record = record._replace(text=None, error=error)
                records.append(record)
                yield record.text  # for None, the result is an error

        results: Iterator[Any]
        if command == "score":
            results = score_documents(model, tokenizer, texts(), **arguments)
        else:
            results = generate_documents(model, tokenizer, texts(), first=first - 1, **arguments)
        for number, result in enumerate(results, first):
            record, fields = records.popleft(), dict.fromkeys(names)
            if record.error or isinstance(result, TiedGPTError):
                fields["error"] = record.error or str(result)
            elif isinstance(result, Score):
                fields |= {name: getattr(result, name) for name in names[1:-1]} | {"loss": result.nll}
            else:
                fields["samples"] = [
                    {"ids": sample.ids, "text": sample.text, "finish_reason": sample.finish_reason}
                    for sample in result
                ]
            if only_fields:
                fields = {"line": number} | ({} if record.id is None else {"id": record.id}) | fields
            yield add_fields(None if only_fields else record.line, fields)
        for state in self.weights:
            check_state(state)


def add_fields(line: bytes | None, fields: dict[str, Any]) -> bytes:
    """A JSON object with fields added at its end, otherwise unchanged; without one, the fields alone.

    >>> add_fields(b'{"text" : 1.50 }', {"loss": 2.0})
    b'{"text" : 1.50, "loss": 2.0}\\n'
    """
    new = json.dumps(fields).encode() + b"\n"
    if line is None:
        return new
    record = line.strip()[:-1].rstrip()  # without its last bracket
    return record + (b"" if record == b"{" else b", ") + new[1:]


def has_error(row: bytes) -> bool:
    return not row.endswith(b'"error": null}\n')


_jobs: dict[str, Job] = {}  # the last one
_lock = Lock()


def open_job(settings: dict[str, Any]) -> Job:
    """The job of these settings; a process that did another job loads the model of this one.

    Raises TiedGPTError if the job cannot be done here.
    """
    path = Path(settings["model"])
    checkpoint = open_checkpoint(path)
    weights = [state_of(file) for file in weight_files(checkpoint)]
    key = json.dumps([settings, weights])
    with _lock:  # so that two threads of one process share a model
        if key not in _jobs:
            tokenizer = read_tokenizer(path)
            if another := difference(identity(checkpoint, tokenizer), settings):
                raise TiedGPTError(f"this worker has another {another}")
            single_thread()
            _jobs.clear()
            _jobs[key] = Job(settings, load_model(path, settings["head"]), tokenizer, weights)
        return _jobs[key]
