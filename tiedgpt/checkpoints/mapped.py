"""Weights that the processes of a machine share: a file with their memory layout, mapped read-only.

    ~/.cache/tiedgpt/.mapped/KEY/weights    each parameter at a multiple of 4096 bytes

The first process makes the file, the others wait for it. KEY depends on the checkpoint's files and the head,
so a changed checkpoint gets another file. The folder can be removed whenever no process uses it.
"""

import hashlib
import json
import math
import mmap
import os
from pathlib import Path

import numpy as np

from ..config import Config
from ..errors import CheckpointError
from ..fast.memory import weight_order
from ..model import GPT2
from ..parameters import parameter_shapes
from .files import StagedFiles, locked_file
from .huggingface import Checkpoint
from .names import weight_folders

PAGE = 4096  # bytes


def load_mapped(checkpoint: Checkpoint, head: str | None) -> GPT2:
    """`checkpoint.load(head)` with read-only weights in pages that other processes share."""
    config = checkpoint.config.with_head(head or checkpoint.config.head)
    folder = weight_folders()[-1] / ".mapped" / _key(checkpoint, config)
    if not (folder / "weights").exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with locked_file(folder.parent / f".{folder.name}.lock", waiting=lambda: None):
            if not (folder / "weights").exists():
                _write(checkpoint.load(head), folder)
    with open(folder / "weights", "rb") as file:
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    places, end = _places(config)
    if len(memory) != end:
        raise CheckpointError(f"{folder}: {len(memory)} bytes, expected {end}; remove this folder")
    parameters = {}
    for name, shape in parameter_shapes(config).items():
        values = np.frombuffer(memory, np.float32, math.prod(shape), places[name])
        parameters[name] = values.reshape(shape, order=weight_order(name, shape))
    return GPT2(config, parameters)


def _key(checkpoint: Checkpoint, config: Config) -> str:
    files = sorted({str(tensor.file.resolve()) for tensor in checkpoint.tensors.values()})
    states = [(path, os.stat(path).st_size, os.stat(path).st_mtime_ns) for path in files]
    return hashlib.sha256(json.dumps([states, config.to_json()], sort_keys=True).encode()).hexdigest()[:32]


def _places(config: Config) -> tuple[dict[str, int], int]:
    """The position of each parameter in the file, and the file's size."""
    places, end = {}, 0
    for name, shape in parameter_shapes(config).items():
        places[name] = end
        end += -(-4 * math.prod(shape) // PAGE) * PAGE
    return places, end


def _write(model: GPT2, folder: Path) -> None:
    places, end = _places(model.config)
    with StagedFiles(folder) as files:
        file = files.open("weights")
        for name, array in model.parameters.items():
            file.seek(places[name])
            file.write(array.ravel(order=weight_order(name, array.shape)).data)
        file.truncate(end)
