"""Helpers for several commands: flags and their types; finding, loading and encoding for a model."""

import argparse
import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from ..checkpoints import open_checkpoint
from ..checkpoints.hub import find_or_download
from ..checkpoints.huggingface import Checkpoint
from ..checkpoints.names import find_default
from ..checkpoints.vocabulary import read_tokenizer
from ..config import HEADS
from ..errors import FRACTION, ArgumentError, Range, short_repr
from ..model import GPT2
from ..parameters import count_parameters
from ..tokenizer import Tokenizer
from .terminal import Progress, fill, note, spelled

BOTH = "both"  # a value of --head
MAX_SAMPLES = 10_000  # in one batch; memory runs out long before


class Parser(argparse.ArgumentParser):
    """argparse, with errors as exceptions and its help written so that a full disk is an error too."""

    def flag(self, usage: str, help: str, type: Any = None, **more: Any) -> None:
        """Add a flag with a value, as "-n --max-new-tokens N", or a switch, as "--greedy"."""
        *names, last = usage.split()
        if last.startswith("-"):
            self.add_argument(*names, last, action="store_true", help=help)
        else:
            self.add_argument(*names, metavar=last, type=type, help=help, **more)

    def print_help(self, file: Any = None) -> None:
        print(self.format_help(), end="", file=file)

    def error(self, message: str) -> NoReturn:
        raise ArgumentError(f"{message.removeprefix('argument ')} (try: {self.prog} -h)")


def add_command(commands: dict[str, Parser], name: str, run: Any, about: str | None, examples: str) -> Parser:
    """The parser of a command, added to `commands`. `tiedgpt -h` lists the first line of `about`."""
    about = about or ""  # the docstring of a module, which `python -OO` drops
    paragraphs = (fill(part.replace("\n", " ")) for part in about.strip().split("\n\n"))
    parser = commands[name] = Parser(
        prog=f"tiedgpt {name}",
        description="\n\n".join(paragraphs),
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.flag("-q --quiet", "print no notes and no progress on stderr")
    parser.set_defaults(run=run, summary=about.partition("\n")[0])
    return parser


def number(accepted: Range, hint: str = "") -> Callable[[str], Any]:
    """The argparse type of a number; a whole number may be written as 7e9. argparse adds the flag's name."""

    def parse(text: str) -> Any:
        with suppress(ValueError, OverflowError):
            if (value := whole(text) if accepted.whole else float(text)) in accepted:
                return value
        raise argparse.ArgumentTypeError(f"expected {accepted}, got {short_repr(text)}{hint}")

    return parse


def whole(text: str) -> int:
    try:
        value = int(text)  # not through float, which is exact only up to 2**53
    except ValueError:
        if float(text) != (value := int(float(text))):
            raise
    if value > 10**18:
        raise argparse.ArgumentTypeError(f"expected a whole number of at most 10^18, got {short_repr(text)}")
    return value


positive_int, count = number(Range(1)), number(Range(0))


def text(argument: str) -> str:
    """The argparse type of a text: UTF-8, whatever the locale is."""
    return os.fsencode(argument).decode("utf-8", "surrogateescape")


LOGITS = "compute logits with wte.T or with W_U"
CHECKPOINTS = "(default: as the checkpoint says)"
STDIN_TOO = "- or nothing for stdin"
ONE_HEAD: dict[str, Any] = {"choices": HEADS, "help": f"{LOGITS} {CHECKPOINTS}"}
# The arguments that several commands have, with what add_argument needs
SHARED: dict[str, dict[str, Any]] = {
    "prompt": {"nargs": "?", "metavar": "PROMPT", "type": text, "help": f"the text to continue; {STDIN_TOO}"},
    "file": {"nargs": "?", "metavar": "FILE", "help": f"a text in UTF-8; {STDIN_TOO}"},
    "-m --model": {
        "help": "gpt2 or another name, a hub repository owner/name, a directory or a .safetensors file; a "
        "name that is not on this machine is downloaded (default: gpt2 if it is on this machine, else "
        "shakespeare-tied)"
    },
    "--head": {"choices": [*HEADS, BOTH], "help": f"{LOGITS}, or with each in turn {CHECKPOINTS}"},
    "-n --max-new-tokens": {
        "type": positive_int,
        "default": 40,
        "metavar": "N",
        "help": "generate at most N tokens (default: 40)",
    },
    "-k --top-k": {"type": positive_int, "metavar": "K", "help": "sample from the K likeliest tokens"},
    "-p --top-p": {
        "type": number(FRACTION),
        "metavar": "P",
        "help": "sample from the smallest set of tokens whose probabilities add up to P",
    },
    "--num-samples": {
        "type": number(Range(1, MAX_SAMPLES)),
        "default": 1,
        "metavar": "N",
        "help": "continuations (default: 1)",
    },
    "--stop": {
        "action": "append",
        "type": text,
        "default": [],
        "metavar": "TEXT",
        "help": "end before TEXT (may be repeated)",
    },
    "--allow-special": {"action": "store_true", "help": "read <|endoftext|> as that token"},
    "--json": {"action": "store_true", "help": "print the result as one JSON document"},
}


def add_shared(parser: argparse.ArgumentParser, *arguments: str) -> None:
    """Add arguments of SHARED."""
    for argument in arguments:
        parser.add_argument(*argument.split(), **SHARED[argument])


def add_models(parser: argparse.ArgumentParser, help: str) -> None:
    """MODEL ... as arguments or with -m; `models` is the list of them, or None."""
    add = parser.add_argument
    add("models", nargs="*", action="extend", default=argparse.SUPPRESS, metavar="MODEL", help=help)
    add("-m", "--model", action="append", dest="models", metavar="MODEL", help="the same")


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


def single_token(tokenizer: Tokenizer, V: int, text: str, allow_special: bool) -> int:
    """The id of a text that is one of the V tokens. Raises ArgumentError for any other text."""
    ids = encode(tokenizer, text, allow_special)
    if len(ids) == 1 and ids[0] < V:
        return ids[0]
    if len(ids) == 1:
        raise ArgumentError(f"{short_repr(text)} has id {ids[0]}, and the model has tokens 0 to {V - 1}")
    parts = " ".join(spelled(tokenizer, token) for token in ids[:8]) + " ..." * (len(ids) > 8)
    what = f"{len(ids)} tokens, {parts}" if ids else "empty"
    spaced = f" {text}"
    hint = f", as {short_repr(spaced)} is" if len(encode(tokenizer, spaced, allow_special)) == 1 else ""
    raise ArgumentError(f"{short_repr(text)} is {what}; expected one token{hint}")


def load(checkpoint: Checkpoint, head: str | None) -> GPT2:
    """`checkpoint.load(head)` with a progress bar, and a note if the untied head is a copy."""
    size = count_parameters(checkpoint.config)[head or checkpoint.config.head]["bytes"]
    with Progress("loading", size, unit="B") as progress:
        model = checkpoint.load(head, progress.add)
    if head == "untied" and not checkpoint.has_own_unembedding:
        copied = "it starts as a copy of wte.T, and the logits are the same"
        note(f"this checkpoint has no W_U of its own: {copied}")
    return model


def load_heads(checkpoint: Checkpoint, head: str | None) -> list[GPT2]:
    """The model with the head that --head names; for "both", the tied model and the untied one."""
    if head != BOTH:
        return [load(checkpoint, head)]
    untied = load(checkpoint, "untied")
    return [untied.tie(), untied]
