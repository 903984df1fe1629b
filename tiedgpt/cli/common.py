"""What several commands share: choosing and loading a model, notes, progress, reading stdin."""

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..checkpoints.hub import find_or_download
from ..checkpoints.huggingface import Checkpoint
from ..checkpoints.names import find_default
from ..config import HEADS
from ..errors import ArgumentError
from ..model import GPT2
from ..parameters import count_parameters
from ..tokenizer import Tokenizer


def note(text: str) -> None:
    """One line on stderr that is not an error."""
    print(f"tiedgpt: note: {text}", file=sys.stderr)


def add_command(commands: Any, name: str, run: Any, summary: str, examples: str) -> argparse.ArgumentParser:
    """A subcommand whose -h ends in examples that can be run."""
    parser = commands.add_parser(name, help=summary, description=summary, epilog=f"examples:\n{examples}")
    parser.set_defaults(run=run)
    return parser


def add_model_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="gpt2 or another name, a hub repository owner/name, a directory or a .safetensors file "
        "(default: gpt2 if it is on this machine, else shakespeare-tied)",
    )


def add_head_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--head", choices=HEADS, help="unembed by wte.T or by W_U (default: as the checkpoint says)"
    )


def add_special_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--allow-special", action="store_true", help="read <|endoftext|> as that token")


def add_json_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print one JSON document instead")


def find(model: str | None, only_tokenizer: bool = False) -> tuple[str, Path]:
    """The model's name as the user would give it, and where it is; says so when it is not gpt2 by default."""
    if model is not None:
        return model, find_or_download(model, note, only_tokenizer)
    name, path = find_default()
    if name != "gpt2":
        note(
            f"gpt2 is not on this machine, so this is {name}, a small model that comes with tiedgpt; "
            "for gpt2, fetch it with `tiedgpt download gpt2`"
        )
    return name, path


def encode(tokenizer: Tokenizer, text: str, allow_special: bool, source: str = "the text") -> list[int]:
    """The ids of a text; special tokens in it are an error that names `source` and the flag, or allowed."""
    for special in tokenizer.special_tokens:
        if special in text and not allow_special:
            raise ArgumentError(f"{source} holds {special}; to read it as that token, add --allow-special")
    return tokenizer.encode(text, special="token")


def load(checkpoint: Checkpoint, head: str | None) -> GPT2:
    """`checkpoint.load(head)` under a progress bar; says so where the untied head is a copy."""
    size = count_parameters(checkpoint.config)[head or checkpoint.config.head]["bytes"]
    with Progress("loading", size, unit="B") as progress:
        model = checkpoint.load(head, progress.add)
    if head == "untied" and not checkpoint.has_own_unembedding:
        note(
            "this checkpoint has no W_U of its own: it starts as a copy of wte.T, and the logits are the same"
        )
    return model


def read_stdin() -> str:
    """All of stdin as text. Raises ArgumentError where it is not UTF-8."""
    return _decode(sys.stdin.buffer.read(), "stdin")


def source_name(file: str) -> str:
    """What errors call an input."""
    return "stdin" if file == "-" else file


def read_text(file: str) -> str:
    """All of a file as text, to the byte; "-" is stdin. Raises ArgumentError where it is not UTF-8."""
    return read_stdin() if file == "-" else _decode(Path(file).read_bytes(), file)


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArgumentError(
            f"{name} is not UTF-8 text: byte 0x{data[error.start]:02x} at position {error.start}"
        ) from error


def print_table(lines: Sequence[str | tuple[str, ...]]) -> None:
    """Rows of cells in columns, the first flush left, the others flush right; a str as it is."""
    rows = [line for line in lines if not isinstance(line, str)]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for line in lines:
        if isinstance(line, str):
            print(line)
            continue
        label, *cells = line
        numbers = "  ".join(cell.rjust(width) for cell, width in zip(cells, widths[1:], strict=True))
        print(f"{label.ljust(widths[0])}  {numbers}".rstrip())


def quoted(token: bytes) -> str:
    """A token with its spaces and line ends in sight; as bytes where it is not whole characters.

    >>> print(quoted(b" world"), quoted(b"\\n"), quoted(b"\\xf0\\x9f"))
    ' world' '\\n' b'\\xf0\\x9f'
    """
    try:
        return repr(token.decode("utf-8"))
    except UnicodeDecodeError:
        return repr(token)


def spelled(tokenizer: Tokenizer, token: int) -> str:
    """A token of a model, quoted; its id where it only pads the vocabulary, and no text belongs to it."""
    return quoted(tokenizer.token_bytes(token)) if token < tokenizer.vocab_size else f"[{token}]"


def token_json(tokenizer: Tokenizer, token: int) -> dict[str, Any]:
    """A token of a model as --json has it; null for the text of one that only pads the vocabulary."""
    text = tokenizer.token_text(token) if token < tokenizer.vocab_size else None
    return {"id": int(token), "token": text}


def printable(text: str) -> str:
    """On a terminal, control characters would be obeyed, and a model may write any: they become U+FFFD."""
    return text.translate(CONTROLS) if sys.stdout.isatty() else text


CONTROLS = {code: "\ufffd" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


class Progress:
    """A bar on stderr for a wait that turns out longer than a second; nothing before, and none in a file."""

    DELAY = 1.0  # seconds

    def __init__(self, doing: str, total: int, unit: str) -> None:
        self._doing, self._total, self._unit = doing, total, unit
        self._done = 0
        self._start = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> "Progress":
        return self

    def __exit__(self, *_: Any) -> None:
        if self._bar is not None:
            self._bar.close()

    def add(self, n: int) -> None:
        """n more of the total are done."""
        self._done += n
        if self._bar is not None:
            self._bar.update(n)
        elif sys.stderr.isatty() and time.monotonic() - self._start > self.DELAY:
            from tqdm import tqdm  # here, because most commands end before they need it

            self._bar = tqdm(
                desc=self._doing,
                total=self._total,
                initial=self._done,
                unit=self._unit,
                unit_scale=self._unit == "B",
                leave=False,
                file=sys.stderr,
            )
