"""Helpers for several commands: flags, finding and loading a model, notes, tables, progress."""

import argparse
import json
import shutil
import sys
import textwrap
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from ..checkpoints import open_checkpoint
from ..checkpoints.hub import find_or_download
from ..checkpoints.huggingface import Checkpoint
from ..checkpoints.names import find_default
from ..checkpoints.vocabulary import read_tokenizer
from ..config import HEADS
from ..errors import ArgumentError, one_line, short_repr
from ..model import GPT2
from ..parameters import count_parameters
from ..tokenizer import Tokenizer
from .terminal import CONTROLS as CONTROLS
from .terminal import note as note
from .terminal import print_error as print_error
from .terminal import printable as printable
from .terminal import quoted as quoted
from .terminal import read_text as read_text
from .terminal import source_name as source_name

Number = TypeVar("Number", int, float)


def number_type(
    expected: str, convert: Callable[[str], Number], accepts: Callable[[Number], bool]
) -> Callable[[str], Number]:
    """An argparse type. argparse puts the flag's name before the message."""

    def parse(text: str) -> Number:
        try:
            if accepts(value := convert(text)):
                return value
        except (ValueError, OverflowError):
            pass
        raise argparse.ArgumentTypeError(f"expected {expected}, got {short_repr(text)}")

    return parse


def _whole(text: str) -> int:
    """A whole number, also written as 7e9."""
    try:
        number = int(text)  # not through float, which is exact only up to 2**53
    except ValueError:
        if float(text) != int(float(text)):
            raise
        number = int(float(text))
    if number > 10**18:
        raise argparse.ArgumentTypeError(f"expected a whole number of at most 10^18, got {short_repr(text)}")
    return number


positive_int = number_type("a whole number of at least 1", _whole, lambda n: n >= 1)
count = number_type("a whole number of at least 0", _whole, lambda n: n >= 0)
positive_float = number_type("a number above 0", float, lambda x: 0 < x < float("inf"))
fraction = number_type("a number above 0 and at most 1", float, lambda x: 0 < x <= 1)
dropout_rate = number_type("a number of at least 0 and below 1", float, lambda x: 0 <= x < 1)


def add_command(commands: Any, name: str, run: Any, summary: str, examples: str) -> argparse.ArgumentParser:
    """Add a subcommand. Its -h ends in examples that can be run."""
    parser = commands.add_parser(name, help=summary, description=summary, epilog=f"examples:\n{examples}")
    parser.add_argument("-q", "--quiet", action="store_true", help="print no notes and no progress on stderr")
    parser.set_defaults(run=run)
    return parser


def add_model_option(parser: argparse.ArgumentParser) -> None:
    model = (
        "gpt2 or another name, a hub repository owner/name, a directory or a .safetensors file; a name that "
        "is not on this machine is downloaded (default: gpt2 if it is on this machine, else shakespeare-tied)"
    )
    parser.add_argument("-m", "--model", metavar="MODEL", help=model)


BOTH = "both"  # a value of --head


def add_head_option(parser: argparse.ArgumentParser, both: bool = True) -> None:
    in_turn = ", or with each in turn" if both else ""
    help = f"compute logits with wte.T or with W_U{in_turn} (default: as the checkpoint says)"
    parser.add_argument("--head", choices=[*HEADS, BOTH] if both else HEADS, help=help)


def add_special_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--allow-special", action="store_true", help="read <|endoftext|> as that token")


def add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as one JSON document")


def find(model: str | None, only_tokenizer: bool = False) -> tuple[str, Path]:
    """The model's name and path; without a name, the default model, with a note if that is not gpt2.

    Downloads a name that is not on this machine. only_tokenizer: the weights are not needed.
    """
    if model is not None:
        return model, find_or_download(model, note, only_tokenizer)
    name, path = find_default()
    if name != "gpt2":
        note(
            f"gpt2 is not on this machine, so this is {name}, a small model that comes with tiedgpt; "
            "for gpt2, fetch it with `tiedgpt download gpt2`"
        )
    return name, path


def open_model(model: str | None) -> tuple[str, Checkpoint, Tokenizer]:
    """The model's name, its checkpoint with the weights not yet read, and its tokenizer."""
    name, path = find(model)
    return name, open_checkpoint(path), read_tokenizer(path)


def vocabulary(tokenizer: Tokenizer, checkpoint: Checkpoint) -> object:
    """Equal for two models in which each id is the same token."""
    return tokenizer.merges, tokenizer.special_tokens, checkpoint.config.vocab_size


def encode(tokenizer: Tokenizer, text: str, allow_special: bool, source: str = "the text") -> list[int]:
    """The ids of a text. A special token in it is an error that names `source`, unless it is allowed."""
    if not allow_special and (special := tokenizer.find_special(text)) is not None:
        raise ArgumentError(f"{source} holds {special}; to read it as that token, add --allow-special")
    return tokenizer.encode(text, special="token")


def load(checkpoint: Checkpoint, head: str | None) -> GPT2:
    """`checkpoint.load(head)` with a progress bar, and a note if the untied head is a copy."""
    size = count_parameters(checkpoint.config)[head or checkpoint.config.head]["bytes"]
    with Progress("loading", size, unit="B") as progress:
        model = checkpoint.load(head, progress.add)
    if head == "untied" and not checkpoint.has_own_unembedding:
        note(
            "this checkpoint has no W_U of its own: it starts as a copy of wte.T, and the logits are the same"
        )
    return model


def load_heads(checkpoint: Checkpoint, head: str | None) -> list[GPT2]:
    """The model with the head that --head names; for "both", the tied model and the untied one."""
    if head != BOTH:
        return [load(checkpoint, head)]
    untied = load(checkpoint, "untied")
    return [untied.tie(), untied]


def print_json(documents: Sequence[dict[str, Any]]) -> None:
    """Print a report as JSON; those of both heads as one document, each under the name of its head."""
    by_head = {document["head"]: document for document in documents}
    both = {"model": documents[0]["model"], "head": BOTH, **by_head}
    print(json.dumps(both if len(documents) > 1 else documents[0]))


def print_table(lines: Sequence[str | tuple[str, ...]]) -> None:
    """Print rows of cells in columns, the first flush left, the others flush right; a str is a caption.

    If the terminal is too narrow for all columns, the others follow below, with the first one and the
    captions again.
    """
    terminal = shutil.get_terminal_size().columns
    rows = [line for line in lines if not isinstance(line, str)]
    first, *widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    first = min(first, max(16, terminal - 2 - max(widths)))
    end = 0
    while end < len(widths):
        start, end = end, end + 1
        while end < len(widths) and first + sum(2 + w for w in widths[start : end + 1]) <= terminal:
            end += 1
        if start:
            print()
        for line in lines:
            if isinstance(line, str):
                print(fill(line, min(terminal, 80)))
                continue
            *above, label = fill(line[0], first).split("\n")
            cells = zip(line[1:][start:end], widths[start:end], strict=True)
            row = label.ljust(first) + "".join(cell.rjust(2 + w) for cell, w in cells)
            print(*above, row.rstrip(), sep="\n")


def fill(text: str, width: int | None = None) -> str:
    """text with its lines broken to fit the terminal, each part indented as its line is."""
    width = width or shutil.get_terminal_size().columns
    wrapper = textwrap.TextWrapper(max(width, 16), break_on_hyphens=False, break_long_words=False)
    parts = []
    for line in text.split("\n"):
        wrapper.subsequent_indent = " " * (len(line) - len(line.lstrip()))
        parts.append(wrapper.fill(line))
    return "\n".join(parts)


def spelled(tokenizer: Tokenizer, token: int, limit: int = 24) -> str:
    """A token of a model, quoted, cut to `limit` characters; its id if it only pads the vocabulary."""
    text = quoted(tokenizer.token_bytes(token)) if token < tokenizer.vocab_size else f"[{token}]"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def token_json(tokenizer: Tokenizer, token: int) -> dict[str, Any]:
    """A token of a model for --json; its text is null if it only pads the vocabulary."""
    text = tokenizer.token_text(token) if token < tokenizer.vocab_size else None
    return {"id": int(token), "token": text}


class Progress:
    """Show on stderr how far a long computation is: on a terminal a bar, in a file a line a minute.

    Nothing is shown before `DELAY` seconds on a terminal, or `INTERVAL` seconds in a file. tqdm has a delay
    too, but importing tqdm takes longer than most commands wait.
    """

    DELAY, INTERVAL = 1.0, 60.0

    def __init__(self, doing: str, total: int, unit: str) -> None:
        self._doing, self._total, self._unit = one_line(doing), total, unit
        self._done = 0
        self._start = self._noted = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.close()

    def add(self, n: int, rates: str = "") -> None:
        """n more of the total are done. `rates` is shown at the end of the line, if it is given."""
        self._done += n
        now = time.monotonic()
        if self._bar is not None:
            self._bar.set_postfix_str(rates.removeprefix(", "), refresh=False)
            self._bar.update(n)
        elif not sys.stderr.isatty():
            if now - self._noted >= self.INTERVAL:
                self._noted = now
                minutes = (now - self._start) / 60
                note(f"{self._doing}: {self._done / self._total:.0%} after {minutes:.0f} min{rates}")
        elif now - self._start > self.DELAY:
            from tqdm import tqdm

            form: Any = {"unit": self._unit, "unit_scale": self._unit == "B"}
            self._bar = tqdm(
                desc=self._doing, total=self._total, initial=self._done, leave=False, file=sys.stderr, **form
            )
