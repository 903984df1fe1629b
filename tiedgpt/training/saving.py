"""The files of a training: where they are written, replaced, and read again.

A training saves to one directory. Its first evaluation makes the directory, with a whole checkpoint
in it, and each later one replaces up to three files:

model.safetensors       the model of the step with the lowest held-out loss so far
training.safetensors    the state to resume from. Its tensors are the parameters of the last step
                        and the optimizer's m and v; its metadata has the rest as JSON
log.jsonl               a line of JSON for each evaluation, for other programs
"""

import json
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from ..atomic import new_directory, replaced_file
from ..checkpoints import safetensors
from ..checkpoints.files import WEIGHTS
from ..checkpoints.json_files import CONFIG
from ..checkpoints.tensors import Tensor
from ..checkpoints.writing import write_checkpoint, write_weights
from ..errors import AT_LEAST_0, COUNT, CheckpointError, short_repr
from ..gpt2.model import GPT2
from ..gpt2.parameters import parameter_shapes
from .start import Settings

STATE = "training.safetensors"
LOG = "log.jsonl"


class Best(NamedTuple):
    """The evaluation with the lowest held-out loss so far."""

    loss: float
    step: int


@dataclass
class State:
    """What a training saves beside its arrays, as JSON in the metadata of STATE."""

    settings: Settings
    only: str | None
    step: int
    best: Best
    evaluations: list[dict[str, float]]
    losses: list[float]  # of the steps since the last evaluation
    text: list[int]  # checksums of the text to train on and of the held-out text
    # tiedgpt 0.4 saved neither of these.
    model: int | None = None  # a checksum of the best model
    config: dict[str, Any] = field(default_factory=dict)  # what config.json holds


def save_new(
    directory: Path,
    state: State,
    vectors: Mapping[str, np.ndarray],
    best_model: GPT2,
    others: Mapping[str, bytes],
) -> None:
    """Write a new directory: a checkpoint of the best model, the state, and the log.

    vectors: the tensors of STATE, by name. others: the contents of more files by name, such as the
    tokenizer's.
    """
    with new_directory(directory) as new:
        write_checkpoint(new, best_model, others)
        with open(new / STATE, "xb") as file:
            write_state(file, state, vectors)
        with open(new / LOG, "xb") as file:
            write_log(file, state)


def replace_saved(
    directory: Path, state: State, vectors: Mapping[str, np.ndarray], new_best: GPT2 | None
) -> None:
    """Replace the files that have changed since the last save.

    new_best: the best model, if it is another one than at the last save. A kill between two
    replacements loses nothing. A log that is newer than the state is written again when the steps
    are repeated. A new best model is that of the last step, so the state has its parameters. The
    state is written first: after a kill, `Trainer.resume` writes the best model from the state.
    """
    with replaced_file(directory / LOG) as file:
        write_log(file, state)
    with replaced_file(directory / STATE) as file:
        write_state(file, state, vectors)
    if new_best is not None:
        replace_model(directory, new_best)


def replace_model(directory: Path, model: GPT2) -> None:
    with replaced_file(directory / WEIGHTS) as file:
        write_weights(file, model)


def write_log(file: BinaryIO, state: State) -> None:
    for evaluation in state.evaluations:
        file.write(f"{json.dumps(evaluation)}\n".encode())


def write_state(file: BinaryIO, state: State, vectors: Mapping[str, np.ndarray]) -> None:
    metadata = {"training": json.dumps(asdict(state))}
    safetensors.write(file, vectors.items(), metadata)


def read_state(directory: Path) -> tuple[State, dict[str, Tensor]]:
    """The state in a directory, and its tensors, which are not read and not checked yet.

    Raises CheckpointError if there is no state, or if it is damaged.
    """
    path = directory / STATE
    tensors, metadata = safetensors.read_header(path)
    try:
        saved = json.loads((metadata or {})["training"])
        state = State(
            settings=Settings(**saved["settings"]),
            only=saved["only"],
            step=COUNT.check("step", saved["step"]),
            best=Best(*saved["best"]),
            evaluations=list(saved["evaluations"]),
            losses=[AT_LEAST_0.check("loss", loss) for loss in saved["losses"]],
            text=saved["text"],
            # tiedgpt 0.4 saved neither of these.
            model=saved.get("model"),
            config=dict(saved.get("config", {})),
        )
        COUNT.check("best step", state.best.step)
        AT_LEAST_0.check("best loss", state.best.loss)
        for evaluation in state.evaluations:
            AT_LEAST_0.check("val_loss", evaluation["val_loss"])
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} does not hold the state of a training: {error!r}") from error
    return state, tensors


def read_vectors(
    directory: Path, tensors: Mapping[str, Tensor], into: Mapping[str, np.ndarray]
) -> None:
    """Read the tensors of STATE into arrays [P], each into the array of its name.

    Raises CheckpointError if a name has no tensor, or one of another shape or type.
    """
    for name, vector in into.items():
        tensor = tensors.get(name)
        if tensor is None or tensor.dtype != "F32" or tensor.shape != vector.shape:
            raise CheckpointError(
                f"{directory / STATE}: expected a tensor {name} of {vector.size} float32 numbers"
            )
        vector[...] = tensor.values()


def check_model(directory: Path, state: State, best_model: GPT2) -> None:
    """Raise CheckpointError if the best model is not the one that the training has saved."""
    # As read from JSON, so that a tuple is a list, as in the state
    config = json.loads(json.dumps(best_model.config.to_json()))
    for name, value in state.config.items():
        if config.get(name) != value:
            raise CheckpointError(
                f"{directory / CONFIG}: {name} is {short_repr(config.get(name))}, but this "
                f"training began with {short_repr(value)}: write that value again"
            )
    # None: tiedgpt 0.4 saved no checksum of the model.
    if state.model not in (None, checksum_of_model(best_model)):
        raise CheckpointError(
            f"{directory / WEIGHTS} is not the model that this training saved at step "
            f"{state.best.step}: put that model back, or start a new training --from this one"
        )


def checksum(ids: np.ndarray) -> int:  # [N]
    """A checksum of a text's token ids, to recognise the same text."""
    return zlib.crc32(ids.astype("<i8").tobytes())  # the same bytes on every machine


def checksum_of_model(model: GPT2) -> int:
    """A checksum of all parameters, to recognise the same model."""
    total = 0
    for name in parameter_shapes(model.config):
        total = zlib.crc32(np.ascontiguousarray(model.parameters[name], "<f4").data, total)
    return total
