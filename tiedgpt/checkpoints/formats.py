"""For callers of before, until they are converted."""

from pathlib import Path

from .checkpoint import Checkpoint
from .files import read_config as read_config


def open_checkpoint(path: Path) -> Checkpoint:
    checkpoint = Checkpoint(path)
    checkpoint.config  # noqa: B018
    return checkpoint
