"""tie_of: what a state dict in memory holds of the two matrices."""

import numpy as np
import pytest

from tiedgpt import TiedGPTError
from tiedgpt.testing import tie_of

V, D = 11, 4
rng = np.random.default_rng(0)


def matrix():
    return rng.normal(size=(V, D)).astype(np.float32)


def states(make):
    """kind -> a state dict. make: from an array to an array of another library."""
    values = matrix()
    one, copy, other = make(values), make(values.copy()), make(matrix())
    E, H = "transformer.wte.weight", "lm_head.weight"
    return {
        "one storage": {E: one, H: one},
        "equal": {E: one, H: copy},
        "different": {E: one, H: other},
        "overlap": {E: one, H: one[: V // 2]},  # half a head
        "embedding": {E: one, "transformer.wpe.weight": other},
        "head": {H: one},
    }


KINDS = tuple(states(np.asarray))


@pytest.mark.parametrize("kind", KINDS)
def test_arrays(kind):
    entries = states(np.asarray)[kind]
    before = {name: array.copy() for name, array in entries.items()}
    tie = tie_of(entries)
    assert tie.kind == kind
    assert (tie.embedding or tie.head) in str(tie)
    assert all(np.array_equal(before[name], entries[name]) for name in entries)


@pytest.mark.parametrize("kind", KINDS)
def test_tensors(kind):
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    assert tie_of(states(torch.tensor)[kind]).kind == kind


def test_parts_of_one_memory():
    """FSDP lays all parameters side by side in one flat tensor; columns may lie side by side."""
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    for values, kind in ((matrix(), "different"), (np.ones((V, D), np.float32), "equal")):
        both = np.concatenate([matrix() if kind == "different" else values, values])
        for flat in (both, torch.tensor(both)):
            rows = {"wte.weight": flat[:V], "lm_head.weight": flat[V:]}
            columns = {"wte.weight": flat[:, ::2], "lm_head.weight": flat[:, 1::2]}
            shifted = {"wte.weight": flat[:V], "lm_head.weight": flat[V - 1 : -1]}
            assert [tie_of(each).kind for each in (rows, columns)] == [kind, kind]
            assert tie_of(shifted).kind == "overlap"
    whole = matrix()
    assert tie_of({"wte.weight": whole, "lm_head.weight": whole[::-1]}).kind == "overlap"


def test_an_array_and_a_tensor_may_be_one_memory():
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    array = matrix()
    for copy, kind in ((array, "one storage"), (array.copy(), "equal"), (matrix(), "different")):
        pair = array, torch.from_numpy(copy)
        for one, other in (pair, pair[::-1]):
            assert tie_of({"wte.weight": one, "lm_head.weight": other}).kind == kind
    negative = torch._neg_view(torch.from_numpy(array))
    assert tie_of({"wte.weight": array, "lm_head.weight": negative}).kind == "overlap"


def freed(tensor):
    tensor.untyped_storage().resize_(0)
    return tensor


UNUSUAL = {  # from a tensor to one that cannot be compared -> what the line says
    "freed": (freed, "no values"),
    "empty": (lambda tensor: tensor[:0], r"no values: its shape is \[0, 4\]"),
    "sparse": (lambda tensor: tensor.to_sparse(), "sparse"),
    "float8": (lambda tensor: tensor.to(dtype=float8()), "float8_e4m3fn.*cannot be compared"),
}


def float8():
    return pytest.importorskip("torch").float8_e4m3fn


@pytest.mark.parametrize(("change", "message"), UNUSUAL.values(), ids=UNUSUAL)
def test_tensors_without_values_or_of_another_type_are_refused(change, message):
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    usual, unusual, unusual_head = (torch.tensor(matrix()) for _ in range(3))
    pairs = [(usual, change(unusual))]
    if change is not UNUSUAL["float8"][0]:
        pairs.append((unusual, change(unusual_head)))
    for one, other in pairs:
        for embedding, head in ((one, other), (other, one)):
            with pytest.raises(TiedGPTError, match=message):
                tie_of({"wte.weight": embedding, "lm_head.weight": head})
    same = change(torch.tensor(matrix()))
    if message.startswith("float8"):
        assert tie_of({"wte.weight": same, "lm_head.weight": same.clone()}).kind == "equal"


def test_matrices_of_different_shapes_differ():
    entries = {"wte.weight": matrix(), "lm_head.weight": matrix()[: V // 2].copy()}
    assert tie_of(entries).kind == "different"
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    tensors = {name: torch.tensor(array) for name, array in entries.items()}
    assert tie_of(tensors).kind == "different"


def test_a_square_matrix_and_its_transpose_are_two_views_of_one_memory():
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    square = rng.normal(size=(D, D)).astype(np.float32)
    for one in (square, torch.tensor(square)):
        assert tie_of({"wte.weight": one, "lm_head.weight": one.T}).kind == "overlap"


def test_a_torch_module_before_and_after_its_tie_is_lost():
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    wte, lm_head = torch.nn.Embedding(V, D), torch.nn.Linear(D, V, bias=False)
    module = torch.nn.ModuleDict({"wte": wte, "lm_head": lm_head})
    assert tie_of(module.state_dict()).kind == "different"
    lm_head.weight = wte.weight
    state = module.state_dict()
    assert tie_of(state).kind == "one storage"
    # What functional code does with a state dict: each entry is updated by itself.
    copies = {name: tensor.clone() for name, tensor in state.items()}
    tie = tie_of(copies)
    assert tie.kind == "equal"
    assert "two parameters" in str(tie)
    copies["wte.weight"] -= 0.1
    assert tie_of(copies).kind == "different"
    meta = {name: tensor.to("meta") for name, tensor in state.items()}
    with pytest.raises(TiedGPTError, match="meta"):
        tie_of(meta)
    bfloat16 = {name: tensor.bfloat16().clone() for name, tensor in state.items()}
    assert tie_of(bfloat16).kind == "equal"


def test_names_are_found_or_given():
    entries = {"table": matrix(), "out": matrix()}
    with pytest.raises(TiedGPTError, match="embedding="):
        tie_of(entries)
    assert tie_of(entries, embedding="table", head="out").kind == "different"
    with pytest.raises(TiedGPTError, match="'outs'"):
        tie_of(entries, embedding="table", head="outs")
    two = {"encoder.embed_tokens.weight": matrix(), "decoder.embed_tokens.weight": matrix()}
    with pytest.raises(TiedGPTError, match="which of"):
        tie_of(two)
    shared = {"encoder.embed_tokens.weight": two["encoder.embed_tokens.weight"]}
    assert (
        tie_of({**shared, "shared.embed_tokens.weight": shared["encoder.embed_tokens.weight"]}).kind
        == "embedding"
    )


@pytest.mark.parametrize("entries", [{}, {"lm_head.weight": 3}, {"lm_head.bias": np.ones(3)}, []])
def test_nothing_to_look_at_is_an_error(entries):
    with pytest.raises(TiedGPTError):
        tie_of(entries)
