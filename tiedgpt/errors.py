"""Errors that are the input's fault, and the checks that several inputs need.

The command line prints each error as one line and exits with 2.
"""

from typing import Any

import numpy as np


class TiedGPTError(ValueError):
    """Base of every error that a file, an argument or a flag can cause."""


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


def show(value: Any, limit: int = 60) -> str:
    """`repr` for an error's one line: what a hostile file holds is neither long nor multi-line here."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, a list in a list in a list in ...
        text = f"a {type(value).__name__} too long to show"
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
