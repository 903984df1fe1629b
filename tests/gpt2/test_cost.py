"""The cost of a token, counted and not timed: weights read, operations, float64, memory.

The parameters are arrays of a class that records each NumPy operation on them and on the results.
A prompt is read in pieces of PIECE_TOKENS tokens. A step reads one more token of each sequence of a
batch, and computes the logits of the next tokens.
"""

import math
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pytest
from support.checks import peak_memory
from support.models import SMALL, random_model

from tiedgpt import GPT2
from tiedgpt.checkpoints import load_model, save_model
from tiedgpt.gpt2.model import unembed
from tiedgpt.gpt2.prefill import PIECE_TOKENS

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


class Operation(NamedTuple):
    """The name of an operation, the weights that it read, and its result."""

    name: str  # such as "matmul.__call__"
    weights: int  # the bytes of parameters that it read; 0 if it is no matrix product
    shape: tuple[int, ...]  # of the result
    dtype: np.dtype  # of the result


class Watched(np.ndarray):
    """An array that puts each operation on it into `operations`, and whose results do, too."""

    operations: list[Operation] | None = None

    def __array_finalize__(self, source):
        """Give a view or a copy of a watched array the same list."""
        self.operations = getattr(source, "operations", None)

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **settings):
        """Compute the operation, record it, and make its result a watched array.

        NumPy calls this in place of ufunc.method(*inputs), for example np.add.reduce(x).
        """
        # The operation gets plain arrays. With watched arrays, NumPy would call this method again.
        plain = [np.asarray(x) if isinstance(x, Watched) else x for x in inputs]
        if out is not None:
            settings["out"] = tuple(np.asarray(array) for array in out)
        result = getattr(ufunc, method)(*plain, **settings)

        weights = 0
        if ufunc is np.matmul:
            weights = sum(array.nbytes for array in inputs if is_weight(array))
        name = f"{ufunc.__name__}.{method}"
        self.operations.append(Operation(name, weights, result.shape, result.dtype))
        if out is not None:
            return out[0]  # it holds the result now
        watched = np.asarray(result).view(Watched)
        watched.operations = self.operations
        return watched


def is_weight(array: np.ndarray) -> bool:
    """Whether it is a view of a parameter. `watched` has made these read-only."""
    return isinstance(array, Watched) and not array.flags.writeable


def watched(model: GPT2) -> tuple[GPT2, list[Operation]]:
    """The model with watched parameters, and the list of the operations on them."""
    operations: list[Operation] = []
    parameters = {name: array.view(Watched) for name, array in model.parameters.items()}
    for array in parameters.values():
        array.operations = operations
        array.flags.writeable = False  # as is_weight expects of parameters
    return GPT2(model.config, parameters), operations


@pytest.fixture(scope="module", params=["tied", "untied"])
def loaded(request, tmp_path_factory) -> GPT2:
    """A model that was saved and loaded, which decides how its matrices lie in memory."""
    path = tmp_path_factory.mktemp("models") / request.param
    save_model(random_model(CONFIG.with_head(request.param)), None, path)
    return load_model(path)


def matrix_bytes(model: GPT2) -> int:
    """The bytes of each matrix that a token goes through: those of the blocks, and W_U."""
    total = model.W_U.nbytes
    for name, array in model.parameters.items():
        if name.startswith("h.") and array.ndim == 2:
            total += array.nbytes
    return total


def next_logits(model: GPT2, ids: np.ndarray, cache) -> np.ndarray:  # [B, T] -> [B, V]
    final = model.final(ids, cache)
    return unembed(final[:, -1], model.W_U)


def read_a_prompt(model: GPT2, B: int, T: int = 10):
    """A cache after B prompts of T tokens, of which the next logits were computed."""
    cache = model.new_cache(B)
    next_logits(model, np.ones((B, T), int), cache)
    return cache


def operations_of_a_step(loaded: GPT2, B: int) -> list[Operation]:
    """The operations of a step, for B sequences of which a prompt was read before."""
    model, operations = watched(loaded)
    cache = read_a_prompt(model, B)
    operations.clear()
    next_logits(model, np.ones((B, 1), int), cache)
    return operations


@pytest.mark.parametrize("B", [1, 80])
def test_a_step_reads_every_weight_once_whatever_the_batch(loaded, B):
    products = [operation for operation in operations_of_a_step(loaded, B) if operation.weights > 0]
    assert sum(product.weights for product in products) == matrix_bytes(loaded)
    assert len(products) == MATRICES


@pytest.mark.parametrize("B", [1, 80])
def test_a_step_has_few_operations_whatever_the_batch(loaded, B):
    """Each operation takes a microsecond or more of its own, in which 50 kB of weights are read."""
    operations = operations_of_a_step(loaded, B)
    # The operations of each part.
    layer_norm = 12  # one of them finds a variance that overflows
    gelu = 8
    linear = 2
    softmax = 5
    attend = 3 + softmax  # the three others are: q scaled, scores, heads
    additions = 2  # to the residual stream
    block = 2 * layer_norm + 4 * linear + attend + gelu + additions
    embed_and_unembed = 2
    assert len(operations) <= CONFIG.n_layer * block + layer_norm + embed_and_unembed


@pytest.mark.parametrize("B", [1, 80])
def test_no_operation_becomes_float64(loaded, B):
    model, operations = watched(loaded)
    cache = read_a_prompt(model, B)
    next_logits(model, np.ones((B, 1), int), cache)
    dtypes = {operation.dtype for operation in operations}
    assert dtypes == {np.dtype(np.float32), np.dtype(bool)}  # bool: whether a variance overflows


@pytest.fixture(params=[1, 2])
def threads(request, monkeypatch) -> int:
    """The number of threads that read a prompt, as on a machine with so many cores."""
    monkeypatch.setattr("tiedgpt.threads.reading_threads", lambda: request.param)
    return request.param


def test_a_prompt_reads_every_weight_once_per_piece_and_W_U_once_for_its_end(loaded, threads):
    model, operations = watched(loaded)
    read_a_prompt(model, 1, T=2 * PIECE_TOKENS)
    W_U = loaded.W_U.nbytes
    blocks = matrix_bytes(loaded) - W_U
    assert sum(operation.weights for operation in operations) == 2 * blocks + W_U
    rows = []  # of each product with W_U
    for operation in operations:
        if operation.weights > 0 and CONFIG.vocab_size in operation.shape:
            logits = math.prod(operation.shape)  # the shape may be [rows, V] or [V, rows]
            rows.append(logits // CONFIG.vocab_size)
    assert rows == [1]


def test_a_step_copies_no_weights_and_no_cache(loaded):
    cache = read_a_prompt(loaded, 1, T=500)
    peak = peak_memory(lambda: next_logits(loaded, np.ones((1, 1), int), cache))
    # A number has four bytes. The bound is for the logits and half as many numbers again, 8
    # vectors of the MLP's width, and 3 arrays of the scores of the 500 keys, for the softmax.
    logits = 4 * CONFIG.vocab_size
    vectors = 4 * 8 * CONFIG.n_inner
    scores = 4 * 3 * CONFIG.n_head * 500
    assert peak < 1.5 * logits + vectors + scores
    # So there was no memory for a copy of the keys of a layer, or of W_U.
    assert cache.keys[0].nbytes > 2 * peak
    assert loaded.W_U.nbytes > 10 * peak


def test_a_prompt_needs_the_memory_of_a_piece_for_each_thread(loaded, threads):
    cache = loaded.new_cache()
    prompt = np.ones((1, 2 * PIECE_TOKENS), int)
    peak = peak_memory(lambda: next_logits(loaded, prompt, cache))
    # A number has four bytes. In each thread, a piece has scores of all keys and a mask, and each
    # token of a piece has three vectors of the MLP's width and six of the residual stream's. The
    # bound allows a fifth more for the scores.
    scores = 4 * CONFIG.n_head * PIECE_TOKENS * 2 * PIECE_TOKENS
    mask = 4 * PIECE_TOKENS * PIECE_TOKENS
    activations = 4 * PIECE_TOKENS * (3 * CONFIG.n_inner + 6 * CONFIG.n_embd)
    assert peak < threads * (1.2 * scores + mask + activations)
