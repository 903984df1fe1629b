"""Errors caused by the input, and the checks that several inputs need.

The command line prints each error as one line and exits with code 2.
"""

from typing import Any

import numpy as np


class TiedGPTError(ValueError):
    """Base of every error that a file, an argument or a flag can cause. Its message is one line."""

    def __init__(self, message: object = "") -> None:
        super().__init__(one_line(message))


class ConfigError(TiedGPTError):
    """A configuration that is not a GPT-2's, or one that this code would compute wrongly."""


class CheckpointError(TiedGPTError):
    """A checkpoint that is missing, damaged, or not the model its configuration describes."""


class TokenizerError(TiedGPTError):
    """A vocabulary that contradicts itself, or text and ids that it cannot express."""


class ArgumentError(TiedGPTError):
    """A value that a function of the library, or a flag of the command line, does not take."""


class TiedGPTWarning(UserWarning):
    """Something in the input that was decided for the user, who may want to know."""


def is_count(value: Any, least: int = 0) -> bool:
    """Whether a value is a whole number of at least `least`; True and 1.0 are not."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool) and bool(value >= least)


def is_number(value: Any) -> bool:
    """Whether a value is a real number, nan and inf included; True is not."""
    return isinstance(value, (int, float, np.integer, np.floating)) and not isinstance(value, bool)


def one_line(text: object) -> str:
    r"""Text from outside (a path, a token, a flag, a server's answer) made safe for one line of a terminal.

    Line breaks, control characters, invisible format characters and unpaired surrogates are escaped. Every
    error and every note passes through here, so a file name cannot move the cursor or start a new line.

    >>> print(one_line("a\nb \x1b[31m"))
    a\nb \x1b[31m
    """
    return "".join(c if c == " " or c.isprintable() else _escape(c) for c in str(text))


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def short_repr(value: Any, limit: int = 60) -> str:
    """`repr`, cut to `limit` characters: a damaged file may hold a value of any size."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, a list in a list in a list in ...
        text = f"a {type(value).__name__} too long to show"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
