"""What a training saves beside its best model: the state to resume from, and a log.

STATE is a safetensors file. Its tensors are the parameters of the last step and the optimizer's m
and v; its metadata has the rest as JSON. LOG has one line of JSON for each evaluation.
"""

import json
import zlib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..checkpoints import safetensors
from ..checkpoints.publishing import StagedFiles, finish_saves
from ..errors import AT_LEAST_0, COUNT, CheckpointError, short_repr
from .settings import Settings

STATE = "training.safetensors"  # `resume` needs it; other programs do not
LOG = "log.jsonl"  # for other programs


class Best(NamedTuple):
    """The evaluation with the lowest held-out loss so far."""

    loss: float
    step: int


@dataclass
class TrainingState:
    """What a Trainer needs to continue, in addition to its arrays."""

    only: str | None
    step: int
    best: Best | None  # None before the first evaluation; then nothing can be resumed
    evaluations: list[dict[str, float]]
    losses: list[float]
    flags: dict[str, Any]  # those of `tiedgpt train`
    settings: Settings
    text: list[int]  # the checksums of the two texts


def checksum(ids: np.ndarray) -> int:  # [N]
    """A checksum of a text's token ids, to recognise the same text."""
    return zlib.crc32(ids.astype("<i8").tobytes())


def write_state(files: StagedFiles, state: TrainingState, vectors: dict[str, np.ndarray]) -> None:
    """Write STATE. `vectors` are the arrays [P] that a step changes, by their names in STATE."""
    metadata = {"training": json.dumps(asdict(state))}
    safetensors.write(files.open(STATE), vectors.items(), metadata)


def write_log(files: StagedFiles, evaluations: list[dict[str, float]]) -> None:
    """Write LOG."""
    log = files.open(LOG)
    for evaluation in evaluations:
        log.write(f"{json.dumps(evaluation)}\n".encode())


def read_state(directory: Path) -> tuple[TrainingState, dict[str, safetensors.Tensor]]:
    """The state in a directory, and its tensors, which are not read and not checked yet.

    Raises CheckpointError if there is no state, or if it is damaged.
    """
    finish_saves(directory)  # a save that was killed at its end may not be in place yet
    path = directory / STATE
    tensors, metadata = safetensors.read_with_metadata(path)
    try:
        state = parse_state(metadata["training"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} does not hold the state of a training: {error!r}") from error
    return state, tensors


def parse_state(text: str) -> TrainingState:
    """The state from its JSON.

    Raises KeyError, TypeError, ValueError or RecursionError if it is damaged.
    """
    fields = json.loads(text)
    settings = Settings(**fields["settings"])
    step = fields["step"]
    loss, best_step = fields["best"]
    are_counts = step in COUNT and best_step in COUNT
    if not are_counts or loss not in AT_LEAST_0:
        raise ValueError(f"step {short_repr(step)}, best {short_repr(fields['best'])}")
    return TrainingState(
        only=fields["only"],
        step=step,
        best=Best(loss, best_step),
        evaluations=list(fields["evaluations"]),
        losses=list(fields["losses"]),
        flags=dict(fields["flags"]),
        settings=settings,
        text=fields["text"],
    )


def read_vector(
    directory: Path, tensors: dict[str, safetensors.Tensor], name: str, to: np.ndarray
) -> None:
    """Read the tensor `name` of STATE into the array `to` [P].

    Raises CheckpointError if there is no such tensor of this shape.
    """
    tensor = tensors.get(name)
    if tensor is None or tensor.dtype != "F32" or tensor.shape != to.shape:
        raise CheckpointError(
            f"{directory / STATE}: expected a tensor {name} of {to.size} float32 numbers"
        )
    to[...] = tensor.read()
