"""What several commands do with single tokens: read them from arguments, list how they were predicted."""

import math
import os
import shutil
import sys
from collections.abc import Iterable

from ..errors import ArgumentError, short_repr
from ..study.predictions import Prediction, in_unit, surprisal
from ..tokenizer import Tokenizer
from .common import encode
from .terminal import spelled

OTHER = 17  # columns of an alternative in a listing


def single_token(tokenizer: Tokenizer, V: int, text: str, allow_special: bool) -> int:
    """The id of a text that is one of the V tokens. Raises ArgumentError for any other text."""
    ids = encode(tokenizer, text, allow_special)
    if len(ids) == 1 and ids[0] < V:
        return ids[0]
    if len(ids) == 1:
        raise ArgumentError(f"{short_repr(text)} has id {ids[0]}, and the model has tokens 0 to {V - 1}")
    parts = " ".join(spelled(tokenizer, token) for token in ids[:8]) + (" ..." if len(ids) > 8 else "")
    what = f"{len(ids)} tokens, {parts}" if ids else "empty"
    spaced = f" {text}"
    hint = f", as {short_repr(spaced)} is" if len(encode(tokenizer, spaced, allow_special)) == 1 else ""
    raise ArgumentError(f"{short_repr(text)} is {what}; expected one token{hint}")


def end_of(prompt: str) -> str:
    """A prompt in quotes, at most its last 30 characters."""
    return repr(prompt) if len(prompt) <= 30 else f"...{prompt[-27:]!r}"


def print_predictions(tokenizer: Tokenizer, unit: str, rows: Iterable[tuple[int, Prediction | None]]) -> None:
    """A line for each token: its surprisal or log probability, and the likeliest others as far as they fit.

    A token that was not predicted has "-". On a terminal, numbers and tokens have colours.
    """
    width = max(len(unit), 6)
    space = shutil.get_terminal_size().columns - width - 2
    limit = min(14, max(6, space))  # columns of the token
    fitting = max(0, space - limit) // (OTHER + 2)  # alternatives
    print(f"{unit:>{width}}  {'token':{limit}}  {'likeliest others' if fitting else ''}".rstrip())
    for token, prediction in rows:
        cells = ["-".rjust(width), spelled(tokenizer, token, limit).ljust(limit)]
        if prediction is not None:
            cells[0] = f"{in_unit(prediction.log_probability, unit):{width}.2f}"
            cells = [painted(cell, surprisal(prediction.log_probability)) for cell in cells]
            for other, log_p in prediction.alternatives[:fitting]:
                cells.append(f"{spelled(tokenizer, other, OTHER - 5)} {math.exp(log_p):4.0%}".ljust(OTHER))
        print("  ".join(cells).rstrip())


def painted(text: str, bits: float) -> str:
    """text in the colour of its surprisal, if stdout is a terminal and NO_COLOR is not set."""
    colour = "32" if bits < 1 else "31" if bits >= 10 else "33" if bits >= 5 else ""
    off = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb" or not sys.stdout.isatty()
    return text if off or not colour else f"\x1b[{colour}m{text}\x1b[0m"
