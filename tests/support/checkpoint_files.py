"""Checkpoints with any tensors, and the comparison of two models."""

import json
from pathlib import Path

import numpy as np

from support.models import SMALL
from tiedgpt import GPT2, Config
from tiedgpt.checkpoints import safetensors


def write_config(directory: Path, config: Config) -> None:
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config.to_json()))


def write_tensors(directory: Path, tensors: dict[str, np.ndarray], config: Config = SMALL) -> Path:
    """Write a checkpoint that has exactly these tensors, under these names."""
    write_config(directory, config)
    with open(directory / "model.safetensors", "wb") as file:
        safetensors.write(file, tensors.items())
    return directory


def safetensors_content(
    arrays: dict[str, np.ndarray], dtypes: dict[str, str] | None = None
) -> bytes:
    """A safetensors file. An array of bytes has the dtype that `dtypes` names."""
    header, data = {}, b""
    for name, array in arrays.items():
        usual = {"float32": "F32", "float16": "F16", "uint16": "BF16", "uint8": "U8"}
        dtype = (dtypes or {}).get(name) or usual[array.dtype.name]
        begin = len(data)
        data += array.tobytes()
        header[name] = {"dtype": dtype, "shape": array.shape, "data_offsets": [begin, len(data)]}
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def write_shards(directory: Path, model: GPT2) -> Path:
    """Write a model in two files of weights and an index, which names the file of each tensor.

    a.safetensors has the first five tensors. wte.weight is the first of them. b.safetensors has the
    rest of the tensors.
    """
    write_config(directory, model.config)
    tensors = list(model.parameters.items())
    files = {"a.safetensors": tensors[:5], "b.safetensors": tensors[5:]}
    weight_map = {}
    for file, tensors_in_file in files.items():
        with open(directory / file, "wb") as out:
            safetensors.write(out, tensors_in_file)
        for name, _ in tensors_in_file:
            weight_map[name] = file
    index = json.dumps({"weight_map": weight_map})
    (directory / "model.safetensors.index.json").write_text(index)
    return directory


def assert_same(loaded: GPT2, model: GPT2) -> None:
    """Both models have the same configuration, equal parameters, and nearly equal logits.

    The logits may differ by rounding, because the two models may have their arrays in different
    orders in memory.
    """
    assert loaded.config == model.config
    assert list(loaded.parameters) == list(model.parameters)
    for name, array in model.parameters.items():
        assert loaded.parameters[name].dtype == np.float32
        np.testing.assert_array_equal(loaded.parameters[name], array, name)
    ids = np.arange(model.config.n_ctx) % model.config.vocab_size  # a text of n_ctx tokens
    np.testing.assert_allclose(loaded(ids), model(ids), rtol=1e-3, atol=1e-4)
