"""tie_of: what a state dict in memory holds of the two matrices."""

from types import MappingProxyType

import numpy as np
import pytest

from tiedgpt import TiedGPTError
from tiedgpt.anymodel.kinds import all_classes
from tiedgpt.errors import ArgumentError, short_repr
from tiedgpt.testing import tie_of
from tiedgpt.testing.state_dict import names_in_model_classes

SLOW = pytest.mark.slow
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


BOTH = "transformer.wte.weight and lm_head.weight"
SENTENCES = {  # kind -> what str says
    "one storage": f"{BOTH} are one piece of memory: what changes one changes both",
    "equal": (
        f"{BOTH} have equal values in two pieces of memory: they are two parameters, which a step "
        "of training makes different"
    ),
    "different": f"{BOTH} differ: untied, or a tie that was lost",
    "overlap": (
        f"{BOTH} share memory, but are not the same matrix in it: what changes one changes a part "
        "of the other"
    ),
    "embedding": (
        "transformer.wte.weight alone is there: who loads it must tie the head, or lacks one"
    ),
    "head": "lm_head.weight alone is there: who loads it must tie the embedding, or lacks one",
}
KINDS = tuple(SENTENCES)


@pytest.mark.parametrize("kind", KINDS)
def test_arrays(kind):
    entries = states(np.asarray)[kind]
    before = {name: array.copy() for name, array in entries.items()}
    tie = tie_of(entries)
    assert tie.kind == kind
    assert tie.embedding == (None if kind == "head" else "transformer.wte.weight")
    assert tie.head == (None if kind == "embedding" else "lm_head.weight")
    assert str(tie) == SENTENCES[kind]
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
        pair = array, torch.from_numpy(copy).requires_grad_()
        for one, other in (pair, pair[::-1]):
            assert tie_of({"wte.weight": one, "lm_head.weight": other}).kind == kind
    negative = torch._neg_view(torch.from_numpy(array))
    assert tie_of({"wte.weight": array, "lm_head.weight": negative}).kind == "overlap"


def freed(tensor):
    tensor.untyped_storage().resize_(0)
    return tensor


def in_parts(tensor):
    """A tensor that is made of others, as a DTensor is."""
    import torch

    class Parts(torch.Tensor):
        @staticmethod
        def __new__(cls):
            return torch.Tensor._make_wrapper_subclass(cls, tensor.shape)

        @classmethod
        def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
            raise NotImplementedError(func)

    return Parts()


NO_MEMORY = (
    r"weight has no values in its memory: it was freed, or they are in parts elsewhere; give the "
    r"whole tensor$"
)
UNUSUAL = {  # from a tensor to one that cannot be compared -> what the line says
    "freed": (freed, NO_MEMORY),
    "a part of a freed one": (lambda tensor: freed(tensor.repeat(2, 1)[V:]), NO_MEMORY),
    "in parts": (in_parts, NO_MEMORY),
    "empty": (lambda tensor: tensor[:0], r"no values: its shape is \[0, 4\]$"),
    "sparse": (
        lambda tensor: tensor.to_sparse(),
        r"weight is torch\.sparse_coo: expected a tensor that is not sparse$",
    ),
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
    assert tie_of(copies).kind == "equal"
    copies["wte.weight"] -= 0.1
    assert tie_of(copies).kind == "different"
    meta = {name: tensor.to("meta") for name, tensor in state.items()}
    message = r"^wte\.weight is on the device meta and has no values$"
    with pytest.raises(TiedGPTError, match=message):
        tie_of(meta)
    bfloat16 = {name: tensor.bfloat16().clone() for name, tensor in state.items()}
    assert tie_of(bfloat16).kind == "equal"


def test_names_are_found_or_given():
    entries = {"table": matrix(), "out": matrix()}
    assert tie_of(entries, embedding="table", head="out").kind == "different"
    for no_matrix in (np.ones(3), np.ones((V, 0)), np.ones((0, D))):
        for given in ({"embedding": "bad", "head": "out"}, {"embedding": "out", "head": "bad"}):
            with pytest.raises(TiedGPTError, match=r"^bad (is no matrix|has no values)"):
                tie_of({**entries, "bad": no_matrix}, **given)
    two = {"encoder.embed_tokens.weight": matrix(), "decoder.embed_tokens.weight": matrix()}
    with pytest.raises(TiedGPTError, match="which of"):
        tie_of(two)
    shared = {"encoder.embed_tokens.weight": two["encoder.embed_tokens.weight"]}
    assert (
        tie_of({**shared, "shared.embed_tokens.weight": shared["encoder.embed_tokens.weight"]}).kind
        == "embedding"
    )


WTE = "model.embed_tokens.weight"
LM = "lm_head.weight"
ONE_MATRIX = np.ones((V, D), np.float32)
LONG = 300 * "x"  # it is shown cut
MANY = [f"name {n}" for n in range(99)]
SEVERAL = {f"{name}.{LM}": ONE_MATRIX + n for n, name in enumerate("abc")}
ERRORS = {  # what is wrong -> a state dict, the names that are given, and the whole message
    "no dict": ([1], {}, "expected a dict of tensors, got [1]"),
    "a name that is no text": (
        {WTE: ONE_MATRIX, 3: ONE_MATRIX},
        {},
        "expected strings as names of tensors, got 3",
    ),
    "neither": (
        {"a": ONE_MATRIX},
        {},
        "neither an embedding nor a head is among ['a']: give embedding= and head=, their names",
    ),
    "another name": ({WTE: ONE_MATRIX}, {"head": "out"}, "'out' is not in the state dict"),
    "a long name": (
        {WTE: ONE_MATRIX},
        {"head": LONG},
        f"{short_repr(LONG)} is not in the state dict",
    ),
    "a long name that is no text": (
        {tuple(LONG): ONE_MATRIX},
        {},
        f"expected strings as names of tensors, got {short_repr(tuple(LONG))}",
    ),
    "neither of many": (
        dict.fromkeys(MANY, ONE_MATRIX),
        {},
        f"neither an embedding nor a head is among {short_repr(MANY)}: give embedding= and head=, "
        "their names",
    ),
    "many numbers": (
        {"bad": np.ones(99), LM: ONE_MATRIX},
        {"embedding": "bad"},
        f"bad is no matrix: {short_repr(np.ones(99))}",
    ),
    "several heads": (
        {WTE: ONE_MATRIX, **SEVERAL},
        {},
        f"which of a.{LM}, b.{LM}, c.{LM} is meant? Give its name",
    ),
    "no matrix": (
        {"bad": np.ones(3), LM: ONE_MATRIX},
        {"embedding": "bad"},
        "bad is no matrix: array([1., 1., 1.])",
    ),
    "no values": (
        {"bad": np.ones((0, D)), LM: ONE_MATRIX},
        {"embedding": "bad"},
        "bad has no values: its shape is [0, 4]",
    ),
    "a quantised head": (
        {WTE: ONE_MATRIX, "lm_head.qweight": np.zeros((1, V), np.int32)},
        {},
        f"{WTE} is there, and the quantised lm_head.qweight may be the output matrix: not known "
        "whether they are one",
    ),
    "a quantised embedding": (
        {LM: ONE_MATRIX, "a.weight": np.zeros((1, V), np.uint8)},
        {},
        f"{LM} is there, and the quantised a.weight may be the token embedding: not known whether "
        "they are one",
    ),
    "another head": (
        {WTE: ONE_MATRIX, "a": np.ones((D, V + 1))},
        {},
        f"{WTE} is there, and a [4, 12] may be the output matrix: if it is, give head= its name",
    ),
    "another embedding": (
        {LM: ONE_MATRIX, "a": np.ones((V - 1, D))},
        {},
        f"{LM} is there, and a [10, 4] may be the token embedding: if it is, give embedding= its "
        "name",
    ),
    "quantised": (
        {WTE: ONE_MATRIX, LM: np.ones((V, D), np.int8)},
        {},
        f"{WTE} (float32) and {LM} (int8) cannot be compared: quantised, and its scale is "
        "elsewhere",
    ),
    "quantised, the embedding": (
        {WTE: np.ones((V, D), np.uint8), LM: ONE_MATRIX},
        {},
        f"{WTE} (uint8) and {LM} (float32) cannot be compared: quantised, and its scale is "
        "elsewhere",
    ),
}


@pytest.mark.parametrize(("entries", "given", "sentence"), ERRORS.values(), ids=ERRORS)
def test_what_is_wrong_is_said_with_names_and_a_hint(entries, given, sentence):
    with pytest.raises(ArgumentError) as caught:
        tie_of(entries, **given)
    assert str(caught.value) == sentence


def test_a_mapping_that_is_no_dict_is_a_state_dict():
    assert tie_of(MappingProxyType({WTE: ONE_MATRIX, LM: ONE_MATRIX})).kind == "one storage"


def test_a_matrix_that_differs_in_its_last_number_is_another_one():
    other = ONE_MATRIX.copy()
    other[-1, -1] += 1
    assert tie_of({WTE: ONE_MATRIX, LM: other}).kind == "different"
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    pair = (torch.from_numpy(ONE_MATRIX), torch.from_numpy(other))
    assert tie_of(dict(zip((WTE, LM), pair, strict=True))).kind == "different"


def test_an_entry_that_is_no_matrix_is_no_second_embedding():
    entries = {WTE: matrix(), "images.embeddings.weight": np.ones(D, np.float32)}
    assert tie_of(entries).embedding == WTE


def test_rows_that_pad_a_matrix_that_is_wider_than_long():
    """Beside an embedding of 8 rows, one of 7 to 9 rows may be the head, and one of 6 is not."""
    wide = np.ones((10, 3 * D), np.float32)
    for rows in (7, 8, 9):
        for more in (wide[:rows].copy(), wide[:rows].T.copy()):
            with pytest.raises(TiedGPTError, match="may be the output matrix"):
                tie_of({WTE: wide[:8].copy(), "more.weight": more})
    for more in (wide[:6].copy(), wide[:6].T.copy()):
        assert tie_of({WTE: wide[:8].copy(), "more.weight": more}).kind == "embedding"


def test_the_name_of_a_head_may_be_given_for_the_embedding():
    """As in a model whose one matrix has the name of its last use."""
    name = "vocab_projector.weight"
    assert tie_of({name: matrix()}, embedding=name).kind == "embedding"


@pytest.mark.parametrize("rows", [16, 18, 14, 13])
def test_rows_that_pad_a_matrix_are_an_eighth_of_it_at_most(rows):
    """Beside an embedding of 16 rows, a head may have 14 to 18."""
    entries = {WTE: np.ones((16, D), np.float32), "more.weight": np.ones((rows, D), np.float32)}
    transposed = {**entries, "more.weight": entries["more.weight"].T.copy()}
    for each in (entries, transposed):
        if rows == 13:
            assert tie_of(each).kind == "embedding"
            continue
        with pytest.raises(TiedGPTError, match="may be the output matrix"):
            tie_of(each)


def test_what_is_in_a_layer_or_a_table_of_positions_is_neither_matrix():
    for name in (f"model.layers.10.{LM}", "model.position_embeddings.weight"):
        assert tie_of({WTE: ONE_MATRIX, name: matrix()}).kind == "embedding"
    for name in (
        "model.layers.10.embed_tokens.weight",
        "positions.wpe.weight",
        "positions.embeddings.weight",
    ):
        assert tie_of({LM: ONE_MATRIX, name: matrix()}).kind == "head"


def test_a_bias_and_the_end_of_another_name_are_no_head():
    for name in ("lm_head.bias", "my_vocab_projector.weight"):
        with pytest.raises(ArgumentError) as caught:
            tie_of({WTE: ONE_MATRIX, name: matrix()})
        assert f"{name} [11, 4] may be the output matrix" in str(caught.value)


def test_a_head_by_the_name_of_a_class_has_values():
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    name = "vocab_projector.weight"
    entries = {WTE: torch.ones(V, D), name: freed(torch.ones(V, D))}
    with pytest.raises(
        ArgumentError, match=r"^vocab_projector\.weight has no values in its memory"
    ):
        tie_of(entries)


def test_a_second_name_of_the_head_that_is_alone():
    values = matrix()
    for name in ("output_layer.weight", "vocab_projector.weight"):
        assert tie_of({LM: values, name: values}, head=LM).kind == "head"
    with pytest.raises(TiedGPTError, match=r"wte\.weight is no matrix: 3$"):
        tie_of({LM: values, "wte.weight": 3})


# The other matrix by names that are no usual ones: of transformers, Megatron and ChatGLM, OLMo,
# PEFT, FSDP.
OTHER_NAMES = (
    *("vocab_projector.weight", "generator_lm_head.weight", "pred_layer.proj.weight"),
    *("output_layer.weight", "transformer.ff_out.weight", "lm_head.base_layer.weight"),
    *("lm_head.modules_to_save.default.weight", "lm_head.modules_to_save.mine.weight"),
    "lm_head.token_adapter.base_layer.weight",
    *("lm_head._fsdp_wrapped_module.weight", "mine.output_layer.weight", "mine.ff_out.weight"),
    *("lm_head._orig_mod.weight", "lm_head._checkpoint_wrapped_module.weight"),
    *("out_head._orig_mod.weight", "ff_out.token_adapter.base_layer.weight"),
    "module.vocab_projector._orig_mod.weight",
)


@pytest.mark.parametrize("head", OTHER_NAMES)
def test_the_output_matrix_by_other_names(head):
    values = matrix()
    replaced = {"lm_head.original_module.weight": values} if "modules_to_save" in head else {}
    for other, kind in ((values, "one storage"), (values.copy(), "equal"), (matrix(), "different")):
        tie = tie_of({WTE: values, head: other, **replaced})
        assert (tie.kind, tie.embedding, tie.head) == (kind, WTE, head)


@pytest.mark.parametrize(
    "known",
    [
        pytest.param(known, id=f"{known.kind}-{known.name}", marks=() if n % 8 == 0 else SLOW)
        for n, known in enumerate(all_classes())
    ],
)
def test_both_matrices_of_each_measured_class_are_found(known):
    for embedding, head, *_ in known.names:
        values, other = matrix(), matrix()
        for entry, kind in ((values, "one storage"), (other, "different")):
            tie = tie_of({embedding: values, head: entry})
            assert (tie.kind, tie.embedding, tie.head) == (kind, embedding, head)


def test_the_output_matrix_of_a_class_by_its_shape():
    """It may have more rows than the embedding, or be transposed, and is in no layer."""
    name = "vocab_projector.weight"
    for shape in ((V, D), (V + 1, D), (D, V)):
        tie = tie_of({WTE: matrix(), name: np.ones(shape, np.float32)})
        assert (tie.kind, tie.head) == ("different", name)
    for others in (
        {f"model.layers.0.{name}": matrix()},
        {name: np.ones((2, D), np.float32)},
        {name: np.ones((V, D - 1), np.float32)},
    ):
        assert tie_of({WTE: matrix(), **others}).kind == "embedding"


def test_names_of_an_embedding_are_not_those_of_a_head():
    assert not [name for name in names_in_model_classes("head") if "embed_tokens" in name]
    assert "vocab_projector.weight" in names_in_model_classes("head")
    # These are of sets of names after the first of their class.
    assert "llm.unembed.weight" in names_in_model_classes("head")
    assert "llm.embed.weight" in names_in_model_classes("embedding")


def test_a_second_embedding_beside_the_one_that_is_named():
    """It could be the output matrix, unless it is the same memory."""
    embedding = matrix()
    entries = {WTE: embedding, "other.wte.weight": embedding}
    assert tie_of(entries, embedding=WTE).kind == "embedding"
    entries["other.wte.weight"] = embedding.copy()
    with pytest.raises(TiedGPTError, match=r"other\.wte\.weight .* may be the output matrix"):
        tie_of(entries, embedding=WTE)


def test_an_embedding_that_peft_has_replaced_is_no_output_matrix():
    entries = {
        "model.embed_tokens.modules_to_save.default.weight": matrix(),
        "model.embed_tokens.original_module.weight": matrix(),
    }
    assert tie_of(entries).kind == "embedding"


def test_a_quantised_embedding_alone():
    entries = {"wte.weight": np.ones((V, D), np.int8), "wte.scales": np.ones((V, 1), np.float32)}
    assert tie_of(entries).kind == "embedding"


def test_columns_of_one_memory_in_half_precision_do_not_overlap():
    both = np.ones((V, 2 * D), np.float16)
    assert tie_of({WTE: both[:, ::2], "lm_head.weight": both[:, 1::2]}).kind == "equal"
    assert tie_of({WTE: both[:, :D], "lm_head.weight": both[:, 1 : D + 1]}).kind == "overlap"


CANDIDATES = {  # an entry that could be the output matrix
    "shape": {"to_tokens.weight": matrix()},
    "transposed": {"to_tokens": matrix().T.copy()},
    "padded": {"to_tokens.weight": np.zeros((V + 1, D), np.float32)},
    "packed": {"to_tokens.weight": np.zeros((V * D // 2, 1), np.uint8)},
    "packed in 32 bits": {"to_tokens.weight": np.zeros((V * D // 8, 1), np.int32)},
    "quantised": {"lm_head.qweight": np.zeros((1, V), np.int32), "lm_head.scales": np.ones((1, V))},
    "flat": {"lm_head.weight": np.zeros(V * D, np.float32)},
    "flat, in a model": {"model.lm_head.weight": np.zeros(V * D, np.float32)},
    "no array": {"lm_head.weight": None},
}


@pytest.mark.parametrize("name", ["weight", ".weight", "", "a..weight"])
def test_an_entry_without_a_module_is_no_candidate(name):
    assert tie_of({"wte.weight": matrix(), name: np.ones(3)}).kind == "embedding"


@pytest.mark.parametrize("more", CANDIDATES.values(), ids=CANDIDATES)
def test_a_matrix_beside_a_candidate_is_not_alone(more):
    with pytest.raises(TiedGPTError, match=next(iter(more))):
        tie_of({WTE: matrix(), **more})


def test_what_could_be_no_output_matrix():
    others = {
        "score.weight": np.ones((2, D), np.float32),
        "classifier.weight": np.ones((2, D), np.float32),
        "pooler.dense.weight": np.ones((D, D), np.float32),
        "labels.weight": np.ones((3, V), np.float32),
        "two_rows_more.weight": np.ones((V + 2, D), np.float32),
        "model.position_embeddings.weight": matrix(),
        "model.layers.0.mlp.up_proj.weight": matrix(),
        "model.layers.0.mlp.up_proj.qweight": np.ones((V, D), np.int32),
        "model.norm.weight": np.ones(D, np.float32),
        "lm_head.bias": np.ones(V, np.float32),
        "model.tokens_seen": np.ones((1, 5), np.int64),
        "model.steps.weight": np.ones(D, np.int64),
    }
    tie = tie_of({WTE: matrix(), **others})
    assert (tie.kind, tie.embedding) == ("embedding", WTE)
    values = matrix()
    assert tie_of({WTE: values, "shared.weight": values}).kind == "embedding"
    with pytest.raises(TiedGPTError, match=r"to_tokens.* may be the output matrix"):
        tie_of({WTE: values, "to_tokens.weight": values})


def test_a_sparse_tensor_is_no_copy_of_the_matrix():
    """It has no place in memory. It may be the other matrix."""
    torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    for name in ("decoder.output_layer.weight", "word_predictor.weight"):
        entries = {"lm_head.weight": torch.ones(V, D), name: torch.ones(V, D).to_sparse()}
        with pytest.raises(TiedGPTError, match=name):
            tie_of(entries)
    entries = {LM: torch.ones(V, D), "decoder.output_layer.weight": torch.ones(V, D).to_sparse()}
    with pytest.raises(ArgumentError, match=r"output_layer\.weight .* may be the token embedding"):
        tie_of(entries, head=LM)


def test_a_part_of_the_head_is_no_second_name_of_it():
    """It begins at the same place in memory."""
    values = matrix()
    with pytest.raises(ArgumentError, match=r"output_layer\.weight .* may be the token embedding"):
        tie_of({LM: values, "output_layer.weight": values[:-1]}, head=LM)


@pytest.mark.parametrize("dtype", [np.uint8, np.int8])
def test_a_quantised_matrix_is_not_compared(dtype):
    for head in (np.zeros((V * D, 1), dtype), np.zeros((V, D), dtype)):
        with pytest.raises(TiedGPTError, match="quantised"):
            tie_of({WTE: matrix(), "lm_head.weight": head})


def test_a_name_is_a_string():
    with pytest.raises(TiedGPTError, match="expected strings as names of tensors, got 3"):
        tie_of({3: matrix(), WTE: matrix()})


@pytest.mark.parametrize("entries", [{}, {"lm_head.weight": 3}, {"lm_head.bias": np.ones(3)}, []])
def test_nothing_to_look_at_is_an_error(entries):
    with pytest.raises(TiedGPTError):
        tie_of(entries)
