"""Errors that are the input's fault; the command line prints each as one line and exits with 2."""

from typing import Any


class TiedGPTError(ValueError):
    """Base of every error that a file, an argument or a flag can cause."""


class ConfigError(TiedGPTError):
    """A configuration that is no GPT-2, or one that this code would compute wrongly."""


class CheckpointError(TiedGPTError):
    """A checkpoint that is missing, damaged, or not the model its configuration describes."""


class TokenizerError(TiedGPTError):
    """A vocabulary that contradicts itself, or text and ids that it cannot express."""


class ArgumentError(TiedGPTError):
    """A value that a function of the library, or a flag of the command line, does not take."""


class TiedGPTWarning(UserWarning):
    """Something in the input that was decided for the user, who may want to know."""


def show(value: Any, limit: int = 60) -> str:
    """`repr` for an error's one line: what a hostile file holds is neither long nor multi-line here."""
    text = repr(value)
    return text if len(text) <= limit else f"{text[: limit - 3]}..."
