"""The other kind of a model: with its own W_U, or without it.

A checkpoint may say one thing and hold another. No W_U is thrown away without `force`:

    config.json    W_U in the file     untied_model              tied_model
    tied           none, or wte        a copy of wte, or init    error: it is tied already
    tied           another matrix      this matrix;              needs force
                                       init needs force
    untied         another matrix      error: it is untied       needs force
    untied         wte                 error: it is untied       without it
    untied         none                a copy of wte, or init    without it
"""

from collections.abc import Callable

import numpy as np

from ..errors import ArgumentError
from ..gpt2.model import GPT2
from .checkpoint import Checkpoint
from .places import Note, discard_note

Load = Callable[[str], GPT2]  # loads the checkpoint with head "tied" or "untied"


def untied_model(
    checkpoint: Checkpoint,
    name: str,
    load: Load,
    init: str | None = None,
    seed: int = 0,
    force: bool = False,
    note: Note = discard_note,
) -> GPT2:
    """The model of a checkpoint with a W_U of its own.

    name: what errors and notes call it. init: the values of W_U, as for GPT2.untie; None is a W_U
        that the file holds already, or a copy of wte.T. note: is called with what the user should
        know of the W_U.
    Raises ArgumentError for a model that is untied already, and where a W_U would be thrown away.
    """
    if checkpoint.contradicts_tied:
        if init is None:
            note(
                f"config.json of {name} says tied, but the file holds a W_U that is not "
                "wte.T: the copy has this W_U"
            )
            return load("untied")
        if not force:
            raise ArgumentError(
                f"{name} holds a W_U that is not wte.T, though its config.json says "
                "tied: leave out --init to keep it, or add --force to drop it"
            )
    elif checkpoint.lacks_unembedding:
        note(_lacks_unembedding(name))
    elif not checkpoint.config.tied:
        raise ArgumentError(f"{name} is untied already")
    # In all other cases, W_U is new, and one in the file is not read.
    if init is None:
        init = "copy"
    return load("tied").untie(init, seed)


def no_effect(model: GPT2) -> str:
    """What tied_model says of the effect of dropping W_U, where nobody measures it."""
    return ""


def tied_model(
    checkpoint: Checkpoint,
    name: str,
    load: Load,
    force: bool = False,
    effect: Callable[[GPT2], str] = no_effect,
    note: Note = discard_note,
) -> GPT2:
    """The model of a checkpoint without a W_U of its own.

    effect: what an error says of dropping a W_U that is not wte.T. name, note: as for untied_model.
    Raises ArgumentError for a model that is tied already, and where a W_U would be thrown away.
    """
    if checkpoint.config.tied:
        raise ArgumentError(f"{name} is tied already")
    if checkpoint.lacks_unembedding:
        note(_lacks_unembedding(name))
        return load("tied")
    model = load("untied")
    if not force and not np.array_equal(model.W_U, model.W_E.T):
        raise ArgumentError(
            f"the W_U of {name} is not wte.T{effect(model)}; to drop it all the same, add --force"
        )
    return model.tie()


def _lacks_unembedding(name: str) -> str:
    """The note on a checkpoint that says untied and has no W_U."""
    return (
        f"config.json of {name} says untied, but the file holds no W_U: the copy begins with wte.T"
    )
