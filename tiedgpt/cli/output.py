"""What a user sees: notes, errors and progress on stderr; answers on stdout.

An answer is JSON, or text that fits the terminal, with tokens in quotes and tables. The rows of a
table are made from reports (study/reports.py).
"""

import json
import math
import os
import shutil
import sys
import textwrap
import time
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any, ClassVar

from ..errors import one_line

if TYPE_CHECKING:  # most commands need nothing of study/, and --version no tokenizer
    from ..gpt2.tokenizer import Tokenizer
    from ..study.reports import SurpriseReport


def note(text: object) -> None:
    """Print one line that is not an error."""
    print_line(f"tiedgpt: note: {one_line(text)}")


def print_error(error: object) -> None:
    """Print an error as one line."""
    print_line(f"tiedgpt: error: {one_line(error)}")


def print_line(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


@dataclass
class ProgressBar(AbstractContextManager["ProgressBar"]):
    """How far a long computation is: a bar on a terminal, in a file a line every minute."""

    DELAY: ClassVar[float] = 1.0  # seconds before a bar is shown
    INTERVAL: ClassVar[float] = 60.0  # seconds from one line in a file to the next

    doing: str
    total: int
    unit: str
    done: int = 0
    start: float = field(default_factory=time.monotonic)
    last_line: float = field(default_factory=time.monotonic)  # when the last line was printed
    bar: Any = None  # the bar of tqdm, once it is shown

    def __exit__(self, *_: object) -> None:
        if self.bar is not None:
            self.bar.close()

    def add(self, n: int, total: int | None = None) -> None:
        """Count n more. The bar disappears with the last one.

        `total` is for a total that was not known at the start.
        """
        self.done += n
        if total is not None:
            self.total = total
        now = time.monotonic()
        if not sys.stderr.isatty():
            if now - self.last_line >= self.INTERVAL:
                self.last_line = now
                minutes = (now - self.start) / 60
                note(f"{self.doing}: {self.done / self.total:.0%} after {minutes:.0f} min")
        elif self.bar is not None:
            self.bar.update(n)
        elif now - self.start > self.DELAY:
            from tqdm import tqdm  # importing it takes longer than most commands wait

            self.bar = tqdm(
                desc=one_line(self.doing),
                total=self.total,
                initial=self.done,
                unit=self.unit,
                unit_scale=self.unit == "B",  # bytes are shown as kB, MB and GB
                leave=False,
                file=sys.stderr,
            )
        if self.bar is not None and self.done >= self.total:
            self.bar.close()


# ---- Answers ----

# Control characters could change the terminal: C0 and C1, except tab and line feed. Others change
# the direction of a line, so that it would read as another one.
DIRECTIONS = {*range(0x202A, 0x202F), *range(0x2066, 0x206A)}
CONTROL_CODES = {*range(0x20), *range(0x7F, 0xA0), *DIRECTIONS} - {ord("\t"), ord("\n")}
CONTROLS = dict.fromkeys(CONTROL_CODES, "\ufffd")  # as str.translate takes it


def print_json(document: Mapping[str, Any]) -> None:
    """Print one JSON document. A number that JSON has not, such as nan, is null."""
    with_nan = json.dumps(document)  # Python writes NaN and Infinity
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
        indent = " " * (len(line) - len(line.lstrip()))
        broken = textwrap.fill(
            line.lstrip(),
            width=max(width, 16),  # a terminal may say that it has 0 columns
            initial_indent=indent,
            subsequent_indent=indent,
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


def quoted_token(tokenizer: "Tokenizer", token: int, limit: int = 24) -> str:
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
    dots = "..."
    ends = accumulate(width(character) for character in quoted)  # the columns up to each character
    fitting = sum(end <= limit - len(dots) for end in ends)  # characters
    return f"{quoted[:fitting]}{dots}"


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


# ---- Tables ----

Cells = tuple[str, ...]  # a row: its label, then a cell for each column
GAP = 2  # spaces before each column

# How a number of a report is printed, by the name of its field: shares with this many decimals of a
# percent, others in this form. Numbers of other fields have ",", if they are whole, and three
# decimals.
SHARES = {
    "probability": 2,
    "self_prediction": 1,
    "self_prediction_frequent": 1,
    "top1": 1,
    "top1_chance": 1,
}
FORMS = {"perplexity": ",.2f", "nll": ".4f", "bits_per_byte": ".4f"}
# An alternative in a listing of predictions: a token, a space and a probability such as " 12%"
OTHER_TOKEN = 12
OTHER = OTHER_TOKEN + 5


def shown(field: str, value: Any, sign: str = "") -> str:
    """The cell of a field of a report; "-" if it is None. sign: "+" gives a positive number one.

    >>> shown("probability", 0.125), shown("rank", 1234), shown("logit", 0.5, "+")
    ('12.50%', '1,234', '+0.500')
    """
    if value is None:
        return "-"
    if isinstance(value, str):
        return value
    if value == 0:
        sign = ""
    if field in SHARES:
        return percent(value, SHARES[field], sign)
    form = "," if isinstance(value, int) else FORMS.get(field, ".3f")
    return f"{value:{sign}{form}}"


def percent(share: float, decimals: int = 1, sign: str = "") -> str:
    """A share as a percentage. A small one without a sign is not rounded to 0.

    >>> percent(0.125), percent(0.0006), percent(0.0004), percent(0)
    ('12.5%', '0.1%', '<0.1%', '0.0%')
    """
    smallest = 10 ** -(2 + decimals)
    if not sign and 0 < share < smallest / 2:
        return f"<{smallest:.{decimals}%}"
    return f"{share:{sign}.{decimals}%}"


def rows_of_fields(
    labels: Mapping[str, str], reports: Sequence[Mapping[str, Any]], indent: str = ""
) -> list[Cells]:
    """A row for each of these fields that some report has, with a cell for each report.

    labels: the place of a field -> its label. A place in a nested report has dots: "loss.own".
    """
    rows = []
    for place, label in labels.items():
        field = place.rpartition(".")[2]
        values = [value_at(report, place) for report in reports]
        if any(value is not None for value in values):
            rows.append((f"{indent}{label}", *(shown(field, value) for value in values)))
    return rows


def value_at(report: Mapping[str, Any], place: str) -> Any:
    """A value of a nested report by its dotted place; None if it is not there.

    >>> value_at({"loss": {"own": 1.5}, "bigrams": None}, "loss.own")
    1.5
    >>> value_at({"bigrams": None}, "bigrams.raw.top1")
    """
    value: Any = report
    for key in place.split("."):
        if value is None:  # a measurement that was not made
            return None
        value = value.get(key)
    return value


def token_cell(
    tokenizer: "Tokenizer", report: Mapping[str, Any], field: str = "probability"
) -> str:
    """A token and a number of its report, which line up in a column."""
    number = report[field]
    figure = percent(number) if field == "probability" else shown(field, number)
    return f"{quoted_token(tokenizer, report['id'])} {figure:>6}"


def print_table(lines: Sequence[str | Cells]) -> None:
    """Print rows of cells in columns, labels flush left and cells flush right; a str is a caption.

    Columns that do not fit the terminal follow below, with the labels and the captions again.
    """
    terminal = shutil.get_terminal_size().columns
    rows = [line for line in lines if not isinstance(line, str)]
    labels, *columns = zip(*rows, strict=True)
    widths = [max(width(cell) for cell in column) for column in columns]
    # A long label is broken where the widest column would not fit beside it, but labels have at
    # least 16 columns, enough for a word.
    room_for_label = max(16, terminal - GAP - max(widths))
    longest_label = max(width(label) for label in labels)
    label_width = min(longest_label, room_for_label)

    for start, end in column_groups(widths, terminal - label_width):
        if start > 0:
            print()
        for line in lines:
            if isinstance(line, str):
                print(fill(line, min(terminal, 80)))
            else:
                label, *cells = line
                *above, last_line = fill(label, label_width).split("\n")
                for part in above:  # a long label takes several lines; the cells are on the last
                    print(part)
                row = padded(last_line, label_width)
                for cell, cell_width in zip(cells[start:end], widths[start:end], strict=True):
                    row += " " * (GAP + cell_width - width(cell)) + cell
                print(row.rstrip())


def column_groups(widths: list[int], room: int) -> Iterator[tuple[int, int]]:
    """The first column and the end of each group of columns that fits, with gaps, into `room`.

    >>> list(column_groups([3, 3, 3, 9], room=11))
    [(0, 2), (2, 3), (3, 4)]
    """
    start = 0
    while start < len(widths):
        end = start + 1  # one column, even if it does not fit
        while end < len(widths) and sum(GAP + each for each in widths[start : end + 1]) <= room:
            end += 1
        yield start, end
        start = end


def padded(text: str, columns: int) -> str:
    """text with spaces after it, as wide as so many columns."""
    return text + " " * (columns - width(text))


def print_predictions(
    tokenizer: "Tokenizer", unit: str, rows: "Iterable[tuple[int, SurpriseReport | None]]"
) -> None:
    """Print a line for each token and its report: its bits or logprob, and others that fit.

    unit: "bits" or "logprob". A token that was not predicted (None) has "-". On a terminal, numbers
    and tokens have colours.
    """
    number_width = max(len(unit), 6)  # 6 for "-12.34"
    room = shutil.get_terminal_size().columns - number_width - GAP
    # The token gets 6 to 14 columns. The others share what is left.
    token_width = min(14, max(6, room))
    room_for_others = max(0, room - token_width)
    fitting = room_for_others // (GAP + OTHER)
    title = "likeliest others" if fitting > 0 else ""
    print(f"{unit:>{number_width}}  {'token':{token_width}}  {title}".rstrip())

    for token, prediction in rows:
        quoted = padded(quoted_token(tokenizer, token, token_width), token_width)
        if prediction is None:
            cells = ["-".rjust(number_width), quoted]
        else:
            number = value_at(prediction, unit)
            bits = in_bits(number, unit)
            cells = [painted(f"{number:{number_width}.2f}", bits), painted(quoted, bits)]
            for other in prediction["alternatives"][:fitting]:
                probability = 2 ** -in_bits(value_at(other, unit), unit)
                other_token = quoted_token(tokenizer, other["id"], OTHER_TOKEN)
                cells.append(padded(f"{other_token} {probability:4.0%}", OTHER))
        print("  ".join(cells).rstrip())


def in_bits(number: float, unit: str) -> float:
    """A surprisal in bits, from one in bits or from a log probability."""
    if unit == "bits":
        return number
    return -number / math.log(2)


def painted(text: str, bits: float) -> str:
    """text in the colour of its surprisal, if stdout is a terminal and NO_COLOR is not set."""
    has_colours = sys.stdout.isatty() and os.environ.get("TERM") != "dumb"
    if os.environ.get("NO_COLOR") or not has_colours:
        return text
    if bits < 1:
        colour = "32"  # green
    elif bits < 5:
        return text
    elif bits < 10:
        colour = "33"  # yellow
    else:
        colour = "31"  # red
    return f"\x1b[{colour}m{text}\x1b[0m"
