"""From lines of JSON to rows: each line's record, with what the model says of its text.

A worker may live on from one run to the next. So it computes only if its versions and its model are
those that the run began with.
"""

import hashlib
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass
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
from ..checkpoints.vocabulary import read_tokenizer, tokenizer_files
from ..errors import TiedGPTError, short_repr
from ..evaluation import Score
from ..fast.blas import single_thread
from ..gpt2.model import GPT2
from ..gpt2.tokenizer import Tokenizer
from ..inference.documents import generate_documents, score_documents
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
        "min_p",
        "greedy",
        "repetition_penalty",
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
# A string, or a bracket outside of strings. A string that does not end goes on to the end of the
# text: this is not JSON, and its brackets are not nested.
STRING_OR_BRACKET = regex.compile(rb'"[^"]*"?|[][{}]')

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

    opening: bytes  # a JSON object: the row is the same with more fields at its end
    text: str | None = None
    error: str | None = None


def identity(checkpoint: Checkpoint, tokenizer: Tokenizer) -> Settings:
    """What a run and all its workers must share: the versions, and the model.

    Python's version is among them, because the words of JSON's errors are Python's.
    """
    texts = {name: content.decode() for name, content in tokenizer_files(tokenizer).items()}
    configuration = [checkpoint.config.to_json(), texts]
    model_hash = hashlib.sha256(json.dumps(configuration, sort_keys=True).encode())
    for path in sorted(checkpoint.file_states):  # the files of tensors
        model_hash.update(np.memmap(path, np.uint8, "r").data)  # mapped: not in memory as a whole
    return {
        "tiedgpt": __version__,
        "numpy": np.__version__,
        "regex": regex.__version__,
        "python": sys.version.split()[0],
        "model_sha256": model_hash.hexdigest(),
    }


def first_difference(settings: Settings, wanted: Settings) -> str | None:
    """The first setting that is not the wanted one, and both values; None if there is none."""
    for name in settings | wanted:  # a setting may be in one of them only
        value = settings.get(name)
        wanted_value = wanted.get(name)
        if value != wanted_value:
            return f"{name}: {short_repr(value)}, not {short_repr(wanted_value)}"
    return None


def read_record(line: bytes, number: int, settings: Settings, tokenizer: Tokenizer) -> Record:
    """Read one line. An error of the line is in the record.

    With "scores_only", the row begins with `short_opening`. Else it begins with the whole line, or
    with {} for a line that is not a record.
    """
    scores_only = settings["scores_only"]
    record = Record(opening=b"{}")
    if scores_only:
        record.opening = short_opening(number, fields={})
    try:
        fields = parse_line(line)
        if scores_only:
            record.opening = short_opening(number, fields)
        else:
            check_free_fields(fields, settings["command"])
            record.opening = line.removeprefix(BYTE_ORDER_MARK)
        record.text = text_of(fields, settings, tokenizer)
    except TiedGPTError as error:
        record.error = str(error)
    except ValueError as error:
        record.error = f"not JSON: {error}"
    return record


def short_opening(number: int, fields: dict[str, Any]) -> bytes:
    """A JSON object: the line's number, and the record's id if that is a text or a whole number."""
    opening: dict[str, Any] = {"line": number}
    record_id = fields.get("id")
    if isinstance(record_id, (str, int)):
        opening["id"] = record_id
    return json.dumps(opening).encode()


def parse_line(line: bytes) -> dict[str, Any]:
    """The JSON object on a line. Raises TiedGPTError, and ValueError for what is not JSON."""
    if len(line) == inputs.MAX_LINE:  # the rest of a longer line was not read
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
    """How deeply lists and objects are nested in a text that should be JSON.

    >>> nesting(b'{"a": [1, []], "[[": 2}')
    3
    """
    # Without the escapes \\ and \", each quotation mark begins or ends a string.
    without_escapes = line.replace(rb"\\", b"").replace(rb"\"", b"")
    depth = 0
    deepest = 0
    # The pattern matches a string as a whole, so brackets in it are not counted.
    for match in STRING_OR_BRACKET.finditer(without_escapes):
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
    # Each record is needed twice: for its text, and with the result for its row. The model reads
    # the texts of many records before it gives the first result; `tee` keeps these records.
    records, records_ahead = tee(
        read_record(line, number, settings, tokenizer) for number, line in enumerate(lines, first)
    )
    # The text of a line with an error is None. Its result is an error too, but make_row takes the
    # record's.
    texts = (record.text for record in records_ahead)
    results = results_of(texts, settings, model, tokenizer, first)
    for record, result in zip(records, results, strict=True):
        yield make_row(record, result, settings["command"])
    if open_checkpoint(checkpoint.path).file_states != checkpoint.file_states:
        raise TiedGPTError(f"{checkpoint.path} has changed since the run began")


def results_of(
    texts: Any, settings: Settings, model: GPT2, tokenizer: Tokenizer, first: int
) -> Iterator[Any]:
    """The Score or the samples of each text, or its error; `first` is the number of its line."""
    command = settings["command"]
    arguments = {name: settings[name] for name in ARGUMENTS[command]}
    if command == "score":
        return score_documents(model, tokenizer, texts, **arguments)
    # The number of a document decides its random streams. It is counted from 0, a line from 1.
    return generate_documents(model, tokenizer, texts, first=first - 1, **arguments)


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

    # The last bracket of the record goes, and the first one of the new fields.
    opening = record.opening.strip().removesuffix(b"}").rstrip()
    new_fields = json.dumps(fields).encode().removeprefix(b"{")
    separator = b", "
    if opening == b"{":  # a record without fields
        separator = b""
    return Row(opening + separator + new_fields + b"\n", failed=fields["error"] is not None)


# The model that was loaded last. Its key says with which settings, and of which files.
_loaded: dict[str, tuple[Checkpoint, GPT2, Tokenizer]] = {}
_lock = Lock()


def load(settings: Settings) -> tuple[Checkpoint, GPT2, Tokenizer]:
    """The model of the settings; it stays loaded until another one is asked for.

    Raises TiedGPTError if its `identity` here is not the one in the settings.
    """
    checkpoint = open_checkpoint(Path(settings["model"]))
    key = repr((settings, checkpoint.file_states))
    # The number of BLAS's threads changes the rounding. Other code may have set it since.
    single_thread()
    with _lock:  # so that two threads of one process share a model
        if key not in _loaded:
            tokenizer = read_tokenizer(checkpoint.path)
            # The settings have the identity with which the run began; these have the one here.
            settings_here = settings | identity(checkpoint, tokenizer)
            difference = first_difference(settings_here, settings)
            if difference is not None:
                raise TiedGPTError(f"this worker has another {difference}")
            _loaded.clear()
            _loaded[key] = (checkpoint, checkpoint.load(settings["head"]), tokenizer)
        return _loaded[key]
