"""Load the weights of a model that find_model has found, with a progress bar."""

from pathlib import Path

from .. import checkpoints
from ..gpt2.model import GPT2
from ..gpt2.parameters import parameter_count
from .messages import ProgressBar, note


def load(path: Path, head: str | None) -> GPT2:
    """The model, as checkpoints.load loads it. A note says if its W_U is a copy."""
    config = checkpoints.read_config(path)
    if head is not None:
        config = config.with_head(head)
    with ProgressBar("loading", parameter_count(config).bytes, unit="B") as progress:
        model = checkpoints.load(path, head, progress=progress.add)
    if head == "untied" and not checkpoints.has_unembedding(path):
        note(
            "this checkpoint has no W_U of its own: a copy of wte.T is used, and the logits are "
            "the same"
        )
    return model


def load_heads(path: Path, head: str | None) -> list[GPT2]:
    """The model with the head that --head names; for "both", the tied model and the untied one.

    The weights are read once.
    """
    if head == "both":
        untied = load(path, "untied")
        return [untied.tie(), untied]
    return [load(path, head)]
