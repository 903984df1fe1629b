"""Helpers for several commands: flags and their types; finding, loading and encoding for a
model."""

import argparse
import json
import os
from collections.abc import Callable, Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.formats import open_checkpoint
from ..checkpoints.hub import find_or_download
from ..checkpoints.places import find_default
from ..checkpoints.vocabulary import read_tokenizer
from ..errors import FRACTION, ArgumentError, Range, short_repr
from ..gpt2.model import GPT2
from ..gpt2.parameters import parameter_count
from ..gpt2.tokenizer import Tokenizer
from .terminal import ProgressBar, fill, note, spelled

BOTH = "both"  # a value of --head
MAX_SAMPLES = 10_000  # in one batch; memory runs out long before


class Parser(argparse.ArgumentParser):
    """argparse, with errors as exceptions and its help written so that a full disk is an error too.

    `page` is a docstring: what stands above the arguments, "examples:", and what stands below them.
    """

    def __init__(
        self, name: str, page: str | None, run: Callable[[argparse.Namespace], None]
    ) -> None:
        about, _, examples = (page or "").partition(
            "\nexamples:\n"
        )  # `python -OO` drops docstrings
        paragraphs = (fill(part.replace("\n", " ")) for part in about.strip().split("\n\n"))
        super().__init__(f"tiedgpt {name}", None, "\n\n".join(paragraphs), f"examples:\n{examples}")
        self.formatter_class, self.allow_abbrev = argparse.RawDescriptionHelpFormatter, False
        self.add("-q --quiet", "print no notes and no progress on stderr")
        self.set_defaults(command=name, run=run, summary=about.partition("\n")[0])

    def add(self, usage: str, help: str, type: Any = None, **more: Any) -> None:
        """Add "[PROMPT]", "-n --max-new-tokens N", "--head {tied,untied}", or the switch
        "--json"."""
        *names, last = usage.split()
        if last.startswith("-"):
            names.append(last)
            more.setdefault("action", "store_true")
        elif last.startswith("{"):
            more["choices"] = last.strip("{}").split(",")
        else:
            more |= {"metavar": last.strip("[]"), "type": type} | (
                {"nargs": "?"} if "[" in last else {}
            )
        self.add_argument(*names or [more.pop("dest", last.strip("[]").lower())], help=help, **more)

    def add_shared(self, *arguments: str) -> None:
        for argument in arguments:
            help, type, more = SHARED[argument]
            self.add(argument, help, type, **more)

    def print_help(self, file: Any = None) -> None:
        print(self.format_help(), end="", file=file)

    def error(self, message: str) -> NoReturn:
        raise ArgumentError(f"{message.removeprefix('argument ')} (try: {self.prog} -h)")


def number(accepted: Range, hint: str = "") -> Callable[[str], Any]:
    """The argparse type of a number; a whole number may be written as 7e9. argparse adds the flag's
    name."""

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
        raise argparse.ArgumentTypeError(
            f"expected a whole number of at most 10^18, got {short_repr(text)}"
        )
    return value


positive_int, count = number(Range(1)), number(Range(0))


def text(argument: str) -> str:
    """The argparse type of a text: UTF-8, whatever the locale is."""
    return os.fsencode(argument).decode("utf-8", "surrogateescape")


def some_text(argument: str) -> str:
    """The argparse type of a text that is not empty."""
    if not argument:
        raise argparse.ArgumentTypeError("expected a text that is not empty")
    return text(argument)


LOGITS = "compute logits with wte.T or with W_U"
CHECKPOINTS = "(default: as the checkpoint says)"
STDIN_TOO = "- or nothing for stdin"
TOP_P = "sample from the smallest set of tokens whose probabilities add up to P"
MODEL = (
    "gpt2 or another name, a hub repository owner/name, a directory or a .safetensors file; a name that is "
    "not on this machine is downloaded (default: gpt2 if it is on this machine, else shakespeare-tied)"
)
# The arguments that several commands have, as Parser.add takes them
SHARED: dict[str, tuple[str, Any, dict[str, Any]]] = {
    "[PROMPT]": (f"the text to continue; {STDIN_TOO}", text, {}),
    "[FILE]": (f"a text in UTF-8; {STDIN_TOO}", None, {}),
    "-m --model MODEL": (MODEL, None, {}),
    "--head {tied,untied}": (f"{LOGITS} {CHECKPOINTS}", None, {}),
    "--head {tied,untied,both}": (f"{LOGITS}, or with each in turn {CHECKPOINTS}", None, {}),
    "-n --max-new-tokens N": (
        "generate at most N tokens (default: 40)",
        positive_int,
        {"default": 40},
    ),
    "-k --top-k K": ("sample from the K likeliest tokens", positive_int, {}),
    "-p --top-p P": (TOP_P, number(FRACTION), {}),
    "--num-samples N": (
        "continuations (default: 1)",
        number(Range(1, MAX_SAMPLES)),
        {"default": 1},
    ),
    "--stop TEXT": (
        "end before TEXT (may be repeated)",
        some_text,
        {"action": "append", "default": []},
    ),
    "--allow-special": ("read <|endoftext|> as that token", None, {}),
    "--json": ("print the result as one JSON document", None, {}),
}
# Those of a command that asks a model about a text, and those of sampling
ASKING = ("-m --model MODEL", "--head {tied,untied,both}", "--allow-special", "--json")
SAMPLING = (
    "-n --max-new-tokens N",
    "-k --top-k K",
    "-p --top-p P",
    "--num-samples N",
    "--stop TEXT",
)


def add_models(parser: Parser, help: str) -> None:
    """MODEL ... as arguments or with -m; `models` is the list of them, or None."""
    parser.add("MODEL", help, nargs="*", action="extend", dest="models", default=argparse.SUPPRESS)
    parser.add("-m --model MODEL", "the same", action="append", dest="models")


def find(model: str | None, only_tokenizer: bool = False) -> tuple[str, Path]:
    """The model's name and path, downloaded if it is not here. Without a name: gpt2, or a shipped
    model."""
    if model is not None:
        return model, find_or_download(model, note, only_tokenizer)
    name, path = find_default()
    if name != "gpt2":
        small = (
            f"gpt2 is not on this machine, so this is {name}, a small model that comes with tiedgpt"
        )
        note(f"{small}; for gpt2, fetch it with `tiedgpt download gpt2`")
    return name, path


def open_model(model: str | None) -> tuple[str, Checkpoint, Tokenizer]:
    """The model's name, its checkpoint with the weights not yet read, and its tokenizer."""
    name, path = find(model)
    return name, open_checkpoint(path), read_tokenizer(path)


def vocabulary(tokenizer: Tokenizer, checkpoint: Checkpoint) -> object:
    """Equal for two models in which each id is the same token."""
    return tokenizer.merges, tokenizer.special_tokens, checkpoint.config.vocab_size


def encode(
    tokenizer: Tokenizer, text: str, allow_special: bool, source: str = "the text"
) -> list[int]:
    """The ids of a text. A special token in it is an error that names `source`, unless it is
    allowed."""
    if not allow_special and (special := tokenizer.find_special(text)) is not None:
        raise ArgumentError(
            f"{source} holds {special}; to read it as that token, add --allow-special"
        )
    return tokenizer.encode(text, special="token")


def single_token(tokenizer: Tokenizer, V: int, text: str, allow_special: bool) -> int:
    """The id of a text that is one of the V tokens. Raises ArgumentError for any other text."""
    ids = encode(tokenizer, text, allow_special)
    if len(ids) == 1 and ids[0] < V:
        return ids[0]
    if len(ids) == 1:
        raise ArgumentError(
            f"{short_repr(text)} has id {ids[0]}, and the model has tokens 0 to {V - 1}"
        )
    parts = " ".join(spelled(tokenizer, token) for token in ids[:8]) + " ..." * (len(ids) > 8)
    what = f"{len(ids)} tokens, {parts}" if ids else "empty"
    spaced = f" {text}"
    hint = (
        f", as {short_repr(spaced)} is"
        if len(encode(tokenizer, spaced, allow_special)) == 1
        else ""
    )
    raise ArgumentError(f"{short_repr(text)} is {what}; expected one token{hint}")


def load(checkpoint: Checkpoint, head: str | None) -> GPT2:
    """`checkpoint.load(head)` with a progress bar, and a note if the untied head is a copy."""
    size = parameter_count(checkpoint.config.with_head(head or checkpoint.config.head)).bytes
    with ProgressBar("loading", size, unit="B") as progress:
        model = checkpoint.load(head, progress.add)
    if head == "untied" and not checkpoint.has_own_unembedding:
        note(
            "this checkpoint has no W_U of its own: a copy of wte.T is used, and the logits are the same"
        )
    return model


def load_heads(checkpoint: Checkpoint, head: str | None) -> list[GPT2]:
    """The model with the head that --head names; for "both", the tied model and the untied one."""
    if head != BOTH:
        return [load(checkpoint, head)]
    untied = load(checkpoint, "untied")
    return [untied.tie(), untied]


def print_reports(
    given: dict[str, Any],
    models: list[GPT2],
    found: Iterable[Any],
    as_json: bool,
    show: Callable[[Any], Any],
) -> None:
    """Print what was found by each model: with `show`, or as one JSON document. `given` is of all
    of them."""
    pairs = zip(models, found, strict=True)
    reports = [{**given, "head": model.config.head, **report} for model, report in pairs]
    if not as_json:
        return show(reports)
    both = {"model": given["model"], "head": BOTH, **{report["head"]: report for report in reports}}
    print(json.dumps(both if len(reports) > 1 else reports[0]))
