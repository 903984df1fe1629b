"""Open the model that a user names, and load its weights."""

from ..checkpoints import Opened, find_model
from ..checkpoints.download import find_default
from ..gpt2.model import GPT2
from .messages import note


def open_model(source: str | None, weights: bool = True) -> Opened:
    """The model that a user names; None is the default model. Its weights are not read yet.

    weights: False if configuration and vocabulary are enough.
    """
    if source is None:
        name, path = find_default(note, weights)
    else:
        name, path = find_model(source, note, weights)
    return Opened(path, name)


def load(opened: Opened, head: str | None, copy_is: str = "both heads are one") -> GPT2:
    """The model with this head. A note says if its W_U is a copy of wte.T.

    copy_is: what the note says of the copy.
    """
    model = opened.model(head)
    if head == "untied" and not opened.has_head:
        note(f"no W_U in the model: a copy of wte.T is used; {copy_is}")
    return model


def load_heads(opened: Opened, head: str | None) -> list[GPT2]:
    """The model with the head that --head names; for "both", the tied model and the untied one.

    The weights are read once.
    """
    if head == "both":
        untied = load(opened, "untied")
        return [untied.tie(), untied]
    return [load(opened, head)]
