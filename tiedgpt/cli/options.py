"""Options that several commands have, flags from the fields of a dataclass, types of values."""

import argparse
import math
import os
import re
from contextlib import suppress
from dataclasses import fields
from typing import Any, NoReturn

from ..errors import ArgumentError, short_repr
from .output import fill

STDIN_TOO = "- or nothing for stdin"
ESCAPES = {r"\n": "\n", r"\r": "\r", r"\t": "\t", "\\\\": "\\"}


class Parser(argparse.ArgumentParser):
    """argparse, with an ArgumentError in place of a usage text and an exit."""

    def error(self, message: str) -> NoReturn:
        raise ArgumentError(f"{message.removeprefix('argument ')} (try: {self.prog} -h)")

    def print_help(self, file: Any = None) -> None:
        """Print the help page. argparse ignores an error here, such as a full disk."""
        # The parser keeps the lines of a page, those of its examples too: fill the paragraphs here.
        paragraphs = []
        for paragraph in (self.description or "").strip().split("\n\n"):
            paragraphs.append(fill(paragraph.replace("\n", " ")))
        self.description = "\n\n".join(paragraphs)
        print(self.format_help(), end="", file=file)


def new_parser(name: str, command: Any) -> Parser:
    """The parser of a command, from its `page`, `add_arguments` and `run`.

    The page has what stands above the arguments, then "examples:" and what stands below them.
    """
    about, _, examples = command.page.partition("\nexamples:\n")
    parser = Parser(
        prog=f"tiedgpt {name}",
        description=about,
        epilog=f"examples:\n{examples}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add(parser, "quiet")
    command.add_arguments(parser)
    # The name of a number -> its flag, which an error names
    flags = {}
    for action in parser._actions:
        if action.type in (whole_number, any_number):
            flags[action.dest] = action.option_strings[-1]
    parser.set_defaults(command=name, run=command.run, flags=flags)
    return parser


# Types of values

UNITS = {"k": 10**3, "m": 10**6, "b": 10**9, "t": 10**12}  # as in "128k" tokens, "7B" parameters


def whole_number(argument: str) -> int:
    """The argparse type of a whole number: 50,257, 50k or 7e9. Who uses it checks its range."""
    if re.fullmatch(r"\d{1,3}(,\d{3})+", argument, re.ASCII):  # as tables of tiedgpt have it
        return int(argument.replace(",", ""))
    if re.fullmatch(r"\d{1,3}(\.\d{3})+", argument, re.ASCII):  # in some countries 50,000
        raise argparse.ArgumentTypeError(
            f"{short_repr(argument)} may be a thousand times as much: write it without a point"
        )
    with suppress(ValueError):
        return int(argument)  # not by way of float, which is exact only up to 2**53
    from fractions import Fraction  # here, because importing it takes time

    unit = UNITS.get(argument[-1:].lower(), 1)
    number = argument if unit == 1 else argument[:-1]
    with suppress(ValueError):
        if math.isfinite(float(number)):  # not nan, inf or 1e400
            exact = unit * Fraction(number)  # 4.1k is 4100, and 4.1 * 1000 as floats is not
            if exact.denominator == 1:
                return exact.numerator
    raise argparse.ArgumentTypeError(f"expected a whole number, got {short_repr(argument)}")


def any_number(argument: str) -> float:
    """The argparse type of a number. Who uses it checks its range."""
    try:
        return float(argument)
    except ValueError as error:
        raise argparse.ArgumentTypeError(
            f"expected a number, got {short_repr(argument)}"
        ) from error


def utf8_text(argument: str) -> str:
    """The argparse type of a text: its bytes are read as UTF-8, whatever the locale is."""
    return os.fsencode(argument).decode("utf-8", "surrogateescape")


def stop_text(argument: str) -> str:
    r"""The argparse type of a text that is not empty. \n, \r, \t and \\ in it are escapes."""
    if not argument:
        raise argparse.ArgumentTypeError("expected a text that is not empty")
    return re.sub(r"\\[nrt\\]", lambda escape: ESCAPES[escape[0]], utf8_text(argument))


# Options that several commands have

COMMON: dict[str, tuple[list[str], dict[str, Any]]] = {  # name: flags, and what argparse is told
    "prompt": (
        ["prompt"],
        {
            "metavar": "PROMPT",
            "nargs": "?",
            "type": utf8_text,
            "help": f"the text to continue; {STDIN_TOO}",
        },
    ),
    "file": (["file"], {"metavar": "FILE", "nargs": "?", "help": f"a text in UTF-8; {STDIN_TOO}"}),
    "model": (
        ["-m", "--model"],
        {
            "metavar": "MODEL",
            "help": "gpt2 or another name, a hub repository owner/name, a directory or a "
            "file of weights; a name that is not on this machine is downloaded (default: the "
            "variable TIEDGPT_MODEL, else gpt2 if it is on this machine, else shakespeare-tied)",
        },
    ),
    "head": (
        ["--head"],
        {
            "choices": ["tied", "untied"],
            "help": "the output matrix: tied is wte.T, untied is W_U (default: as the checkpoint "
            "says)",
        },
    ),
    "heads": (
        ["--head"],
        {
            "choices": ["tied", "untied", "both"],
            "help": "the output matrix: tied is wte.T, untied is W_U, both is each in turn "
            "(default: as the checkpoint says)",
        },
    ),
    "allow_special": (
        ["--allow-special"],
        {"action": "store_true", "help": "read <|endoftext|> as that token"},
    ),
    "json": (
        ["--json"],
        {"action": "store_true", "help": "print the result as one JSON document"},
    ),
    "quiet": (
        ["-q", "--quiet"],
        {"action": "store_true", "help": "print no notes and no progress on stderr"},
    ),
}


def add(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add options of COMMON."""
    for name in names:
        flags, settings = COMMON[name]
        parser.add_argument(*flags, **settings)


def add_models(parser: argparse.ArgumentParser, description: str) -> None:
    """MODEL ... as arguments, or each after -m. `models` is the list of them, or None.

    Both arguments add to one list. The first one must have no default: argparse would set it after
    the second one has added to the list.
    """
    parser.add_argument(
        "models",
        metavar="MODEL",
        nargs="*",
        action="extend",
        default=argparse.SUPPRESS,
        help=description,
    )
    parser.add_argument(
        "-m",
        "--model",
        metavar="MODEL",
        action="append",
        dest="models",
        help="another way to give MODEL",
    )


# Flags from the fields of a dataclass


def add_fields(parser: argparse.ArgumentParser, cls: type) -> None:
    """Add a flag for each field of a dataclass that has a help; `values_of` reads their values.

    A field's metadata has "help", the sentence on the help page, "metavar", and perhaps "flag", a
    short flag such as "-t". argparse only turns the text into a number: the dataclass refuses a
    number that is out of range. A field that is True or False has a flag without a value. One that
    is None by default is a limit.
    """
    for field in fields(cls):
        if not field.metadata["help"]:
            continue
        flags = [flag_of(field.name)]
        if field.type is bool:
            parser.add_argument(*flags, action="store_true", help=field.metadata["help"])
            continue
        if "flag" in field.metadata:
            flags.insert(0, field.metadata["flag"])
        default = "no limit" if field.default is None else field.default
        parser.add_argument(
            *flags,
            metavar=field.metadata["metavar"],
            type=whole_number if field.type in (int, int | None) else any_number,
            help=f"{field.metadata['help']} (default: {default})",
        )


def flag_of(name: str) -> str:
    """The flag of a field: --n-layer of n_layer."""
    return f"--{name.replace('_', '-')}"


def values_of(args: argparse.Namespace, cls: type) -> dict[str, Any]:
    """The values of the fields of a dataclass whose flags were given."""
    values = {}
    for field in fields(cls):
        value = getattr(args, field.name, None)
        if value is not None:
            values[field.name] = value
    return values
