"""Find a model, and load its weights."""

from pathlib import Path
from typing import NamedTuple

from .. import checkpoints
from ..gpt2.config import Config
from ..gpt2.model import GPT2
from ..gpt2.tokenizer import Tokenizer
from .messages import note


class Found(NamedTuple):
    """A model of which all is read but the weights, so that a command can check its input first."""

    name: str
    path: Path
    config: Config
    tokenizer: Tokenizer


def find(source: str | None) -> Found:
    """The model that a user names; None is the default model. Raises what find_model raises."""
    name, path = checkpoints.find_model(source, note)
    # The configuration is read first, because a file that is no checkpoint has no tokenizer either.
    config = checkpoints.read_config(path)
    return Found(name, path, config, checkpoints.read_tokenizer(path, config))


def load(path: Path, head: str | None, copy_is: str = "both heads are one") -> GPT2:
    """The model, as checkpoints.load loads it. A note says if its W_U is a copy of wte.T.

    copy_is: what the note says of the copy.
    """
    model = checkpoints.load(path, head)
    if head == "untied" and not checkpoints.has_unembedding(path):
        note(f"no W_U in the model: a copy of wte.T is used; {copy_is}")
    return model


def load_heads(path: Path, head: str | None) -> list[GPT2]:
    """The model with the head that --head names; for "both", the tied model and the untied one.

    The weights are read once.
    """
    if head == "both":
        untied = load(path, "untied")
        return [untied.tie(), untied]
    return [load(path, head)]
