"""The cost of a token, counted and not timed: weights read, operations, float64, memory.

The parameters are arrays of a class that records each NumPy operation on them and on the results.
"""

from collections import namedtuple
from dataclasses import replace

import numpy as np
import pytest
from support.checks import peak_memory
from support.models import SMALL, random_model

from tiedgpt import GPT2
from tiedgpt.checkpoints import load_model, save_model
from tiedgpt.fast import threads as fast_threads
from tiedgpt.gpt2.model import unembed
from tiedgpt.gpt2.prefill import PIECE_TOKENS, QUERY_TOKENS

CONFIG = replace(
    SMALL,
    n_embd=48,
    n_inner=192,
    n_layer=3,
    vocab_size=5000,
    n_ctx=2 * PIECE_TOKENS,
    eos_token_id=None,
)
MATRICES = 4 * CONFIG.n_layer + 1  # c_attn, c_proj, c_fc, c_proj; W_U


# weights: bytes of parameters that a matrix product read; out: the shape of what came out, and its
# dtype
Operation = namedtuple("Operation", "name weights out dtype")


class Watched(np.ndarray):
    """An array that puts each operation on it into `operations`, and whose results do, too."""

    operations: list[Operation] | None = None

    def __array_finalize__(self, source):
        self.operations = getattr(source, "operations", None)

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **settings):
        plain = [np.asarray(x) if isinstance(x, Watched) else x for x in inputs]
        if out is not None:
            settings["out"] = tuple(np.asarray(array) for array in out)
        result = getattr(ufunc, method)(*plain, **settings)
        weights = sum(a.nbytes for a in inputs if is_weight(a)) if ufunc is np.matmul else 0
        name = f"{ufunc.__name__}.{method}"
        self.operations.append(Operation(name, weights, result.shape, result.dtype))
        if out is not None:
            return out[0]
        watched = np.asarray(result).view(Watched)
        watched.operations = self.operations
        return watched


def is_weight(array: np.ndarray) -> bool:
    """Whether it is a view of a parameter, which are the read-only ones, and so no activation."""
    return isinstance(array, Watched) and not array.flags.writeable


def watched(model: GPT2) -> tuple[GPT2, list[Operation]]:
    """The model with watched parameters, and the list of the operations on them."""
    operations: list[Operation] = []
    parameters = {name: array.view(Watched) for name, array in model.parameters.items()}
    for array in parameters.values():
        array.operations, array.flags.writeable = operations, False
    return GPT2(model.config, parameters), operations


@pytest.fixture(params=["tied", "untied"])
def loaded(request, tmp_path) -> GPT2:
    """A model as it comes from a file, its matrices laid out as loading does it."""
    save_model(random_model(CONFIG.with_head(request.param)), None, tmp_path / "model")
    return load_model(tmp_path / "model")


def matrix_bytes(model: GPT2) -> int:
    """Of each matrix that a token goes through, once; the embedding counts where it is the head."""
    blocks = (a for name, a in model.parameters.items() if name.startswith("h.") and a.ndim == 2)
    return sum(array.nbytes for array in blocks) + model.W_U.nbytes


def next_logits(model: GPT2, ids: np.ndarray, cache) -> np.ndarray:  # [B, T] -> [B, V]
    return unembed(model.final(ids, cache)[:, -1], model.W_U)


def read_a_prompt(model: GPT2, B: int, T: int = 10):
    cache = model.new_cache(B)
    next_logits(model, np.ones((B, T), int), cache)
    return cache


@pytest.mark.parametrize("B", [1, 80])
def test_a_step_reads_every_weight_once_in_few_operations_whatever_the_batch(loaded, B):
    """An operation costs a microsecond or more, as long as 50 kB of weights."""
    model, operations = watched(loaded)
    cache = read_a_prompt(model, B)
    assert {operation.dtype for operation in operations} == {np.dtype(np.float32)}, (
        "none becomes float64"
    )
    operations.clear()
    next_logits(model, np.ones((B, 1), int), cache)
    assert sum(operation.weights for operation in operations) == matrix_bytes(loaded)
    assert sum(operation.weights > 0 for operation in operations) == MATRICES
    layer_norm, gelu, linear, softmax = 11, 8, 2, 5
    block = (
        2 * layer_norm + 4 * linear + gelu + softmax + 3 + 2
    )  # q scaled, scores, heads; two additions
    assert len(operations) <= CONFIG.n_layer * block + layer_norm + 2  # embed; unembed


@pytest.fixture(params=[1, 2])
def threads(request, monkeypatch) -> int:
    """As on a machine with this number of cores."""
    monkeypatch.setattr(fast_threads, "reading_threads", lambda: request.param)
    return request.param


def test_a_prompt_reads_every_weight_once_per_piece_and_W_U_once(loaded, threads):
    model, operations = watched(loaded)
    read_a_prompt(model, 1, T=2 * PIECE_TOKENS)
    W_U = loaded.W_U.nbytes
    assert sum(o.weights for o in operations) == 2 * (matrix_bytes(loaded) - W_U) + W_U
    (head,) = (o for o in operations if o.weights and CONFIG.vocab_size in o.out)
    assert sorted(head.out) == [1, CONFIG.vocab_size], "the logits of the last token only"
    scores = [
        o.out
        for o in operations
        if o.name == "matmul.__call__" and not o.weights and len(o.out) == 4
    ]
    assert max(shape[-2] for shape in scores) == QUERY_TOKENS, (
        "no scores of all tokens with all tokens"
    )


def test_a_step_copies_no_weights_and_no_cache(loaded):
    cache = read_a_prompt(loaded, 1, T=500)
    peak = peak_memory(lambda: next_logits(loaded, np.ones((1, 1), int), cache))
    logits, rows = 4 * CONFIG.vocab_size, 4 * (8 * CONFIG.n_inner + 3 * CONFIG.n_head * 500)
    assert peak < 1.5 * logits + rows
    assert cache.keys[0].nbytes > 2 * peak
    assert loaded.W_U.nbytes > 10 * peak


def test_a_prompt_needs_the_memory_of_a_piece_for_each_thread(loaded, threads):
    cache = loaded.new_cache()
    peak = peak_memory(lambda: next_logits(loaded, np.ones((1, 2 * PIECE_TOKENS), int), cache))
    scores = 4 * CONFIG.n_head * QUERY_TOKENS * 2 * PIECE_TOKENS
    activations = 4 * PIECE_TOKENS * (CONFIG.n_inner * 3 + CONFIG.n_embd * 6)
    assert peak < threads * (1.2 * scores + activations)
