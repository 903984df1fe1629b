"""Load the weights of a model that open_model has opened, with a progress bar."""

from ..checkpoints.checkpoint import Checkpoint
from ..gpt2.model import GPT2
from ..gpt2.parameters import parameter_count
from .messages import ProgressBar, note


def load(checkpoint: Checkpoint, head: str | None) -> GPT2:
    """The model, as Checkpoint.load loads it. A note says if its W_U is a copy."""
    loaded_head = checkpoint.config.head if head is None else head
    size = parameter_count(checkpoint.config.with_head(loaded_head)).bytes
    with ProgressBar("loading", size, unit="B") as progress:
        model = checkpoint.load(head, progress.add)
    if head == "untied" and not checkpoint.has_own_unembedding:
        note(
            "this checkpoint has no W_U of its own: a copy of wte.T is used, and the logits are "
            "the same"
        )
    return model


def load_heads(checkpoint: Checkpoint, head: str | None) -> list[GPT2]:
    """The model with the head that --head names; for "both", the tied model and the untied one.

    The weights are read once.
    """
    if head == "both":
        untied = load(checkpoint, "untied")
        return [untied.tie(), untied]
    return [load(checkpoint, head)]
