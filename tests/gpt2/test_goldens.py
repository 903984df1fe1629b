"""Parity with transformers, without torch: goldens/ has results that transformers computed.

Each directory is a checkpoint that transformers wrote, with the logits and greedy continuations
that it computed from it in float64. scripts/make_goldens.py wrote them.
"""

import json
from itertools import product
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import tiedgpt
from tiedgpt.checkpoints.safetensors import read_header

GOLDENS = Path(__file__).parents[1] / "goldens"
CASES = sorted(path.parent.name for path in GOLDENS.glob("*/expected.json"))
# Of logits up to 10. The measured differences are 6e-6, and 5e-13, because the goldens have no more
# digits.
TOLERANCE = {"float32": 1e-4, "float64": 1e-9}


@pytest.fixture(scope="module", params=list(product(CASES, TOLERANCE)), ids=" ".join)
def golden(request: pytest.FixtureRequest) -> SimpleNamespace:
    """A directory's model, in float32 or float64, and what transformers computed from it."""
    name, dtype = request.param
    expected = json.loads((GOLDENS / name / "expected.json").read_text(encoding="utf-8"))
    logits = np.array(expected["logits"])  # [B, T, V]
    assert 9 < np.abs(logits).max() < 11, "the scale that the tolerances assume"
    return SimpleNamespace(
        dtype=dtype,
        model=tiedgpt.load_model(GOLDENS / name).astype(dtype),
        ids=np.array(expected["ids"]),  # [B, T]
        logits=logits,
        greedy=expected["greedy"],
    )


def assert_logits(golden: SimpleNamespace, logits: np.ndarray) -> None:
    assert logits.dtype == golden.dtype
    np.testing.assert_allclose(logits, golden.logits, rtol=0, atol=TOLERANCE[golden.dtype])


def test_there_are_goldens() -> None:
    assert len(CASES) >= 17, "without directories, no other test would run"


def test_logits_of_a_batch_and_of_each_row_alone(golden: SimpleNamespace) -> None:
    assert_logits(golden, golden.model(golden.ids))
    assert not np.array_equal(golden.ids[0], golden.ids[1])
    assert_logits(golden, np.stack([golden.model(row) for row in golden.ids]))


def test_a_batch_read_in_pieces_with_a_cache_has_the_same_logits(golden: SimpleNamespace) -> None:
    B, T = golden.ids.shape
    # Where a batch is cut: the number of the first token of each piece but the first.
    single_tokens = range(1, T)
    one_token_and_the_rest = [1]
    all_but_one_token_and_the_last = [T - 1]
    three_pieces = [3, 4]
    for cuts in (
        single_tokens,
        one_token_and_the_rest,
        all_but_one_token_and_the_last,
        three_pieces,
    ):
        cache = golden.model.new_cache(batch=B, capacity=T)
        logits = []
        for piece in np.split(golden.ids, cuts, axis=1):
            logits.append(golden.model(piece, cache))
        assert_logits(golden, np.concatenate(logits, axis=1))
        assert cache.length == T


def test_greedy_continuation(golden: SimpleNamespace) -> None:
    for row, expected in zip(golden.ids, golden.greedy, strict=True):
        tokens = tiedgpt.generate(golden.model, row, max_new_tokens=len(expected), greedy=True)
        assert list(tokens) == expected


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_saved_files_have_the_tensors_that_transformers_wrote(tmp_path: Path, head: str) -> None:
    """The metadata is compared too, because transformers needs it."""
    tiedgpt.save_model(tiedgpt.load_model(GOLDENS / head), None, tmp_path)
    written, metadata = read_header(tmp_path / "model.safetensors")
    expected, their_metadata = read_header(GOLDENS / head / "model.safetensors")
    assert their_metadata == {"format": "pt"}
    assert metadata == their_metadata
    assert written.keys() == expected.keys()
    assert ("lm_head.weight" in written) == (head == "untied")
    for name, tensor in expected.items():
        assert written[name].dtype == tensor.dtype
        assert written[name].shape == tensor.shape
        np.testing.assert_array_equal(
            written[name].values(copy=True), tensor.values(copy=True), name
        )
