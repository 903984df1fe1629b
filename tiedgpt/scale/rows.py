"""From lines of JSON to rows: each line's record, with what the model says of its text.

A worker may live on from one run to the next. So it computes only if its versions and its model are
those that the run began with.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import tee
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

import numpy as np
import regex

from .. import __version__
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.formats import open_checkpoint
from ..checkpoints.reading import parse_json
from ..checkpoints.vocabulary import read_tokenizer, vocabulary_files
from ..errors import TiedGPTError, short_repr
from ..fast.blas import single_thread
from ..gpt2.model import GPT2
from ..gpt2.tokenizer import Tokenizer
from ..inference.documents import generate_documents, score_documents
from ..inference.evaluation import Score
from ..inference.text import TextSample
from . import inputs

Settings = dict[str, Any]  # all that determines the rows, besides the lines
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
# The fields that a row adds to its record, by command
FIELDS = {
    "score": ["loss", "tokens", "bytes", "bits_per_byte", "error"],
    "generate": ["samples", "error"],
}
# Nested lists and objects. Python's own limit depends on its version and on the caller.
MAX_DEPTH = 500
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


# How a row without an error ends: `make_row` puts the error last.
NO_ERROR = b'"error": null}\n'


class Row(NamedTuple):
    """A line of the output."""

    line: bytes
    failed: bool  # whether it has an error in place of a result

    @classmethod
    def read(cls, line: bytes) -> "Row":
        """A row that `make_row` made, from a file."""
        return cls(line, failed=not line.endswith(NO_ERROR))


@dataclass
class Record:
    """What was read from a line: the text, or the error of the line."""

    opening: bytes  # the JSON object that the row begins with
    text: str | None = None
    error: str | None = None


def identity(checkpoint: Checkpoint, tokenizer: Tokenizer) -> Settings:
    """What a run and all its workers must share: the versions, and the model.

    Python's version is among them, because the words of JSON's errors are Python's.
    """
    configuration = [checkpoint.config.to_json(), vocabulary_files(tokenizer)]
    total = hashlib.sha256(json.dumps(configuration, sort_keys=True).encode())
    for path in sorted(checkpoint.file_states):
        total.update(np.memmap(path, np.uint8, "r").data)
    return {
        "tiedgpt": __version__,
        "numpy": np.__version__,
        "regex": regex.__version__,
        "python": sys.version.split()[0],
        "model_sha256": total.hexdigest(),
    }


def first_difference(settings: Settings, wanted: Settings) -> str | None:
    """The first setting that is not the wanted one, and both values; None if there is none."""
    for name in settings | wanted:
        value = settings.get(name)
        wanted_value = wanted.get(name)
        if value != wanted_value:
            return f"{name}: {short_repr(value)}, not {short_repr(wanted_value)}"
    return None


def read_record(line: bytes, number: int, settings: Settings, tokenizer: Tokenizer) -> Record:
    """Read one line. An error of the line is in the record."""
    scores_only = settings["scores_only"]
    record = Record(opening=json.dumps({"line": number}).encode() if scores_only else b"{}")
    try:
        fields = parse_line(line)
        if scores_only:
            if isinstance(fields.get("id"), (str, int)):
                record.opening = json.dumps({"line": number, "id": fields["id"]}).encode()
        else:
            check_free_fields(fields, settings["command"])
            record.opening = line.removeprefix(BYTE_ORDER_MARK)
        record.text = text_of(fields, settings, tokenizer)
    except TiedGPTError as error:
        record.error = str(error)
    except ValueError as error:
        record.error = f"not JSON: {error}"
    return record


def parse_line(line: bytes) -> dict[str, Any]:
    """The JSON object on a line. Raises TiedGPTError, and ValueError for what is not JSON."""
    if len(line) == inputs.MAX_LINE:  # the rest of the line was not read
        raise TiedGPTError(f"the line has {inputs.MAX_LINE:,} bytes or more")
    if nesting(line) > MAX_DEPTH:
        raise TiedGPTError(f"lists and objects are nested more than {MAX_DEPTH} deep")
    fields = parse_json(line.removeprefix(BYTE_ORDER_MARK).decode())
    if not isinstance(fields, dict):
        raise TiedGPTError(f"expected a JSON object, got {short_repr(fields)}")
    return fields


def check_free_fields(fields: dict[str, Any], command: str) -> None:
    """Raise TiedGPTError if a record has a field that its row will get."""
    for name in FIELDS[command]:
        if name in fields:
            raise TiedGPTError(f"the record has a field {name} already: rename it")


def text_of(fields: dict[str, Any], settings: Settings, tokenizer: Tokenizer) -> str:
    """The text of a record. Raises TiedGPTError if it has none that can be encoded."""
    name = settings["field"]
    if name not in fields:
        raise TiedGPTError(f"the record has no field {short_repr(name)}")
    text = fields[name]
    if not isinstance(text, str):
        raise TiedGPTError(f"field {short_repr(name)} is not a text: {short_repr(text)}")
    if settings["special"] == "error":
        special = tokenizer.find_special(text)
        if special is not None:
            raise TiedGPTError(f"special token {special}: --allow-special reads it as that token")
    return text


def nesting(line: bytes) -> int:
    """How deeply lists and objects are nested in a JSON text.

    >>> nesting(b'{"a": [1, []], "[[": 2}')
    3
    """
    # Without escaped characters, a string is all that stands between two quotation marks.
    without_escapes = line.replace(rb"\\", b"").replace(rb"\"", b"")
    depth = 0
    deepest = 0
    for match in regex.finditer(rb'"[^"]*"?|[][{}]', without_escapes):
        if match[0] in b"[{":
            depth += 1
            deepest = max(deepest, depth)
        elif match[0] in b"]}":
            depth -= 1
    return deepest


def make_rows(settings: Settings, lines: list[bytes], first: int) -> Iterator[Row]:
    """The row of each line; `first` is the number of the first line.

    Raises TiedGPTError if the model cannot be loaded here as it was when the run began, or if its
    weights, which are mapped, were changed meanwhile.
    """
    checkpoint, model, tokenizer = load(settings)
    # The model reads some texts ahead of the rows.
    records, records_ahead = tee(
        read_record(line, number, settings, tokenizer) for number, line in enumerate(lines, first)
    )
    # A line with an error has no text, and its result is an error too.
    texts: Any = (record.text for record in records_ahead)
    command = settings["command"]
    arguments = {name: settings[name] for name in ARGUMENTS[command]}
    work: Any = score_documents
    if command == "generate":
        # The number of a document decides its random streams.
        work = partial(generate_documents, first=first - 1)
    results = work(model, tokenizer, texts, **arguments)

    for record, result in zip(records, results, strict=True):
        yield make_row(record, result, command)
    if open_checkpoint(checkpoint.path).file_states != checkpoint.file_states:
        raise TiedGPTError(f"{checkpoint.path} has changed since the run began")


def make_row(record: Record, result: Score | list[TextSample] | TiedGPTError, command: str) -> Row:
    """The record's own text as it is, with the new fields before its last bracket."""
    fields: dict[str, Any] = {}
    for name in FIELDS[command]:
        fields[name] = None
    if record.error is not None:
        fields["error"] = record.error
    elif isinstance(result, TiedGPTError):
        fields["error"] = str(result)
    elif isinstance(result, Score):
        fields["loss"] = result.nll
        fields["tokens"] = result.tokens
        fields["bytes"] = result.bytes
        fields["bits_per_byte"] = result.bits_per_byte
    else:
        fields["samples"] = [
            {"ids": sample.ids, "text": sample.text, "finish_reason": sample.finish_reason}
            for sample in result
        ]

    opening = record.opening.strip().removesuffix(b"}").rstrip()
    separator = b"" if opening == b"{" else b", "
    new_fields = json.dumps(fields).encode().removeprefix(b"{")  # with the last bracket
    return Row(opening + separator + new_fields + b"\n", failed=fields["error"] is not None)


_loaded: dict[str, tuple[Checkpoint, GPT2, Tokenizer]] = {}  # the last model, by its settings
_lock = Lock()


def load(settings: Settings) -> tuple[Checkpoint, GPT2, Tokenizer]:
    """The model of the settings; it stays loaded until another one is asked for.

    Raises TiedGPTError if the model here is another one than that of the settings, or if a version
    is.
    """
    checkpoint = open_checkpoint(Path(settings["model"]))
    key = repr((settings, checkpoint.file_states))
    single_thread()  # each time: something else in a worker that lives on may have changed it
    with _lock:  # so that two threads of one process share a model
        if key not in _loaded:
            tokenizer = read_tokenizer(checkpoint.path)
            here = settings | identity(checkpoint, tokenizer)
            difference = first_difference(here, settings)
            if difference is not None:
                raise TiedGPTError(f"this worker has another {difference}")
            _loaded.clear()
            _loaded[key] = (checkpoint, checkpoint.load(settings["head"]), tokenizer)
        return _loaded[key]
