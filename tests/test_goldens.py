"""Parity with transformers, without torch: goldens/ has results that transformers computed.

Each directory is a checkpoint that transformers wrote, with the logits and greedy continuations that it
computed from it in float64. scripts/make_goldens.py wrote them.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
import pytest

import tiedgpt
from tiedgpt import GPT2
from tiedgpt.checkpoints.safetensors import read_with_metadata

GOLDENS = Path(__file__).parent / "goldens"
CASES = sorted(path.parent.name for path in GOLDENS.glob("*/expected.json"))
# For logits that go up to 10. Measured: 6e-6, and 5e-13, which is where the goldens' digits end.
TOLERANCE = {"float32": 1e-4, "float64": 1e-9}


@dataclass(frozen=True)
class Golden:
    """A model loaded from transformers' checkpoint, and the results that transformers computed from it."""

    model: GPT2
    tolerance: float
    ids: np.ndarray  # [B, T]
    logits: np.ndarray  # [B, T, V]
    greedy: list[list[int]]

    def assert_logits(self, logits: np.ndarray) -> None:
        assert logits.dtype == self.model.dtype
        np.testing.assert_allclose(logits, self.logits, rtol=0, atol=self.tolerance)


@pytest.fixture(scope="module", params=list(product(CASES, TOLERANCE)), ids=" ".join)
def golden(request: pytest.FixtureRequest) -> Golden:
    """Each directory's model, in float32 as loaded, and in float64."""
    name, dtype = request.param
    numbers = json.loads((GOLDENS / name / "expected.json").read_text(encoding="utf-8"))
    loaded = tiedgpt.load_model(GOLDENS / name)
    model = loaded if dtype == "float32" else loaded.astype(dtype)
    ids, logits = np.array(numbers["ids"]), np.array(numbers["logits"])
    return Golden(model, TOLERANCE[dtype], ids, logits, numbers["greedy"])


def test_there_are_goldens() -> None:
    assert len(CASES) >= 17


def test_the_goldens_have_the_scale_that_the_tolerances_assume(golden: Golden) -> None:
    assert 9 < np.abs(golden.logits).max() < 11


def test_logits(golden: Golden) -> None:
    golden.assert_logits(golden.model(golden.ids))


def test_each_row_of_a_batch_is_that_row_alone(golden: Golden) -> None:
    assert not np.array_equal(golden.ids[0], golden.ids[1])
    golden.assert_logits(np.stack([golden.model(row) for row in golden.ids]))


CUTS: dict[str, Callable[[int], list[int]]] = {
    "token by token": lambda T: list(range(1, T)),
    "first token, then the rest": lambda T: [1],
    "all but the last token, then it": lambda T: [T - 1],
    "uneven pieces": lambda T: [3, 4],
}


@pytest.mark.parametrize("cuts", CUTS)
def test_the_cache_changes_nothing(golden: Golden, cuts: str) -> None:
    B, T = golden.ids.shape
    cache = golden.model.new_cache(batch=B, capacity=T)
    pieces = np.split(golden.ids, CUTS[cuts](T), axis=1)
    golden.assert_logits(np.concatenate([golden.model(piece, cache) for piece in pieces], axis=1))
    assert cache.length == T


def test_greedy_continuation(golden: Golden) -> None:
    for row, expected in zip(golden.ids, golden.greedy, strict=True):
        tokens = tiedgpt.generate(golden.model, row, max_new_tokens=len(expected), greedy=True)
        assert list(tokens) == expected


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_saved_files_have_the_tensors_that_transformers_wrote(tmp_path: Path, head: str) -> None:
    """Names with their prefix, shapes, dtypes and values, and the metadata that transformers needs."""
    tiedgpt.save_model(tiedgpt.load_model(GOLDENS / head), None, tmp_path)
    written, expected = (
        read_with_metadata(directory / "model.safetensors") for directory in (tmp_path, GOLDENS / head)
    )
    assert written[1] == expected[1] == {"format": "pt"}
    assert written[0].keys() == expected[0].keys()
    assert ("lm_head.weight" in written[0]) == (head == "untied")
    for name, tensor in expected[0].items():
        assert (written[0][name].dtype, written[0][name].shape) == (tensor.dtype, tensor.shape)
        np.testing.assert_array_equal(written[0][name].read(), tensor.read(), name)
