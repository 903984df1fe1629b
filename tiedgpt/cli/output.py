"""What goes to stdout: text that fits the terminal, tokens in quotes, JSON. (tables.py: tables.)"""

import json
import shutil
import sys
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from ..gpt2.tokenizer import Tokenizer

# Control characters could change the terminal: C0 and C1, except tab and line feed. Others change
# the direction of a line, so that it would read as another one.
DIRECTIONS = {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}
CONTROL_CODES = {*range(0x20), *range(0x7F, 0xA0), *DIRECTIONS} - {ord("\t"), ord("\n")}
CONTROLS = dict.fromkeys(CONTROL_CODES, "\ufffd")  # as str.translate takes it


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document. A number that JSON has not, such as nan, is null."""
    with_nan = json.dumps(document)
    print(json.dumps(json.loads(with_nan, parse_constant=lambda _: None)))


def print_json_by_head(question: Mapping[str, Any], reports: Sequence[Mapping[str, Any]]) -> None:
    """Print the report of a model, after what was asked, as one JSON document.

    For --head both, there are two reports. The document then has each of them under its head.
    """
    documents = [{**question, **report} for report in reports]
    if len(documents) == 1:
        print_json(documents[0])
        return
    by_head = {document["head"]: document for document in documents}
    print_json({"model": question["model"], "head": "both", **by_head})


def fill(text: str, width: int | None = None) -> str:
    """text with lines that fit the terminal. A line's continuation has the indent of the line."""
    if width is None:
        width = shutil.get_terminal_size().columns
    filled = []
    for line in text.split("\n"):
        indent = len(line) - len(line.lstrip())
        broken = textwrap.fill(
            line,
            width=max(width, 16),  # a terminal may say that it has 0 columns
            subsequent_indent=" " * indent,
            break_on_hyphens=False,
            break_long_words=False,
        )
        filled.append(broken)
    return "\n".join(filled)


def printable(text: str) -> str:
    """text; if stdout is a terminal, with U+FFFD in place of control characters."""
    if sys.stdout.isatty():
        return text.translate(CONTROLS)
    return text


def quoted_token(tokenizer: Tokenizer, token: int, limit: int = 24) -> str:
    """A token in quotes, with spaces and line ends visible, cut to `limit` columns.

    A token that is not whole characters is shown as bytes, one that only pads the vocabulary as its
    id.
    """
    if token not in tokenizer.tokens:
        return f"[{token}]"
    data = tokenizer.token_bytes(token)
    try:
        quoted = repr(data.decode("utf-8"))
    except UnicodeDecodeError:
        quoted = repr(data)
    if width(quoted) <= limit:
        return quoted
    ends = accumulate(width(character) for character in quoted)
    fitting = sum(end <= limit - 3 for end in ends)  # characters
    return f"{quoted[:fitting]}..."


def width(text: str) -> int:
    """The columns that a text takes on a terminal.

    >>> width("caf\u00e9"), width("cafe\u0301"), width("\u4f60\u597d"), width("\U0001f600")
    (4, 4, 4, 2)
    """
    columns = 0
    for character in text:
        if unicodedata.category(character) in ("Mn", "Me"):  # it is drawn over the one before
            continue
        columns += 2 if unicodedata.east_asian_width(character) in ("W", "F") else 1
    return columns


def megabytes(count: int) -> str:
    """A number of bytes.

    >>> megabytes(497_759_232)
    '497.8 MB'
    """
    return f"{count / 1e6:,.1f} MB"


def end_of_prompt(prompt: str) -> str:
    """A prompt in quotes, at most its last 30 characters."""
    if len(prompt) > 30:
        return f"...{prompt[-27:]!r}"
    return repr(prompt)
