"""Errors that the input can cause, and checks that several modules use.

The command line prints an error as one line and exits with code 2.
"""

import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import numpy as np

MAX_MESSAGE = 2000  # characters


class TiedGPTError(ValueError):
    """The base class of all errors that a file, an argument or a flag can cause. The message is one
    line."""

    def __init__(self, message: object = "") -> None:
        super().__init__(one_line(message))


class ConfigError(TiedGPTError):
    """A configuration that is not valid for a GPT-2, or that this code does not support."""


class CheckpointError(TiedGPTError):
    """A checkpoint that is missing or damaged, or does not match its configuration."""


class TokenizerError(TiedGPTError):
    """A vocabulary that is not valid, or a text or ids that it cannot encode or decode."""


class SpecialTokenError(TokenizerError):
    """A text with a special token, where it must not have one."""

    def __init__(self, message: str, token: str) -> None:
        super().__init__(message)
        self.token = token


class ArgumentError(TiedGPTError):
    """A value that a function or a flag does not accept."""


class TiedGPTWarning(UserWarning):
    """The input can be used, but the user should know something about it. The message is one
    line."""

    def __init__(self, message: object = "") -> None:
        super().__init__(one_line(message))


@dataclass(frozen=True)
class Range:
    """The numbers that an argument, a field or a flag accepts; never nan, inf or True. `str`
    describes them.

    >>> print(Range(1), Range(1, 9), Range(0, 1, whole=False, open_high=True), sep="; ")
    a whole number of at least 1; a whole number from 1 to 9; a number of at least 0 and below 1
    """

    low: float
    high: float = math.inf
    whole: bool = True
    open_low: bool = False  # whether `low` itself is outside
    open_high: bool = False  # whether `high` itself is outside

    def __str__(self) -> str:
        kind = "a whole number" if self.whole else "a number"
        if self.high < math.inf and not self.open_low and not self.open_high:
            return f"{kind} from {self.low} to {self.high}"

        lower = f"above {self.low}" if self.open_low else f"of at least {self.low}"
        if self.high == math.inf:
            return f"{kind} {lower}"
        upper = f"below {self.high}" if self.open_high else f"at most {self.high}"
        return f"{kind} {lower} and {upper}"

    def __contains__(self, value: Any) -> bool:
        kinds = (int, np.integer) if self.whole else (int, float, np.integer, np.floating)
        if isinstance(value, bool) or not isinstance(value, kinds):
            return False
        number = value
        if not self.whole:
            try:
                number = float(value)
            except OverflowError:  # an integer of hundreds of digits
                return False
        if number == math.inf:  # which a range without an upper end would contain
            return False
        if number == self.low and self.open_low:
            return False
        if number == self.high and self.open_high:
            return False
        return bool(self.low <= number <= self.high)  # False for nan

    def check(self, name: str, value: Any, error: type[TiedGPTError] = ArgumentError) -> Any:
        """value as a Python int or float. Raises `error` if it is not in the range."""
        if value not in self:
            raise error(f"{name} must be {self}, got {short_repr(value)}")
        return int(value) if self.whole else float(value)


COUNT = Range(0)
PROBABILITY = Range(0, 1, whole=False)
RATE = Range(0, 1, whole=False, open_high=True)
AT_LEAST_0 = Range(0, whole=False)
ABOVE_0 = Range(0, whole=False, open_low=True)


def one_line(text: object) -> str:
    r"""Text from outside (a path, a token, a flag, a server's answer), made safe to print on one
    line.

    It escapes line breaks, control characters, invisible format characters and unpaired surrogates.
    Every error and every note passes through it, so a file name cannot move the cursor or start a
    new line.

    >>> print(one_line("a\nb \x1b[31m"))
    a\nb \x1b[31m
    """
    text = str(text)
    if len(text) > MAX_MESSAGE:  # a flag's value may be a whole file
        half = MAX_MESSAGE // 2
        text = f"{text[:half]} ... {text[-half:]}"
    characters = []
    for character in text:
        if not character.isprintable():
            character = character.encode("unicode_escape").decode()
        characters.append(character)
    return "".join(characters)


def short_repr(value: Any, limit: int = 60) -> str:
    """`repr`, cut to `limit` characters, because a damaged file may hold a value of any size."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # an integer of thousands of digits, deeply nested lists
        text = f"a {type(value).__name__} too long to show"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def counted(count: int, thing: str) -> str:
    """A number of things, for a message.

    >>> counted(1, "layer"), counted(1024, "token")
    ('1 layer', '1,024 tokens')
    """
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def shape_in_words(shape: Sequence[int]) -> str:
    """The shape of an array, for a message.

    >>> shape_in_words((50257, 768)), shape_in_words(())
    ('50,257 x 768', 'one number')
    """
    return " x ".join(f"{size:,}" for size in shape) or "one number"


def check_file_name(path: str | Path) -> None:
    """Raise ArgumentError for a name that no file can have: with NUL, or half a surrogate pair."""
    try:
        name = os.fsencode(path)
    except UnicodeEncodeError:
        name = b"\0"
    if b"\0" in name:
        raise ArgumentError(f"{short_repr(str(path))} is not the name of a file")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """ "; did you mean ...?" for a word that is not known; "" if no known word is like it.

    >>> did_you_mean("--temp", ["--temperature", "--top-k"]), did_you_mean("x", ["--top-k"])
    ('; did you mean --temperature?', '')
    """
    known = list(known)
    similar = [candidate for candidate in known if candidate.startswith(word)]
    if len(similar) not in (1, 2):  # a word that begins many others does not say which is meant
        similar = get_close_matches(word, known, n=1, cutoff=0.7)
    if not similar:
        return ""
    return f"; did you mean {' or '.join(similar)}?"


def nearest_names(name: object, known: Iterable[str]) -> str:
    """The three known names that are most like a name that is not known, for a message.

    >>> nearest_names("attn.0.query", ["embed", "attn.0.qkv", "attn.0.q", "mlp.0.in", "attn.0.k"])
    'attn.0.q, attn.0.qkv, attn.0.k'
    """
    return ", ".join(get_close_matches(str(name), list(known), n=3, cutoff=0))
