"""The parameters that are counted from tensors, function by function."""

from dataclasses import replace
from pathlib import Path

import pytest

from tiedgpt.anymodel import counting, kinds, matrices
from tiedgpt.checkpoints.tensors import Tensor
from tiedgpt.errors import CheckpointError

V, D = 40, 8
E = "model.embed_tokens.weight"
H = "lm_head.weight"
SIZES = {"vocab_size": V, "hidden_size": D}
LLAMA = kinds.read_class("llama", "LlamaForCausalLM")
BERT = kinds.read_class("bert", "BertForMaskedLM")


def tensor(name, *shape):
    return Tensor(Path("a.bin"), name, "F32", shape, 0, 4, memory=b"")


def count(stored, known, state, name_set=0, others=()):
    """The tied and the untied number of parameters."""
    tensors = {each.name: each for each in (*stored, *others)}
    found = matrices.Matrices(list(stored), name_set=name_set)
    numbers = counting.count_stored(tensors, found, known, state)
    return numbers["tied"]["total"], numbers["untied"]["total"]


def test_a_number_by_itself_is_a_parameter():
    both = [tensor(E, V, D), tensor(H, V, D)]
    others = [tensor("model.scale"), tensor("model.norm.weight", D), tensor("empty", 0, D)]
    expected = (V * D + 1 + D, 2 * V * D + 1 + D)
    assert count(both, None, None, others=others) == expected


@pytest.mark.parametrize("widths", [(D, 2 * D), (D, 2 * D, D), (D, D, 2 * D), (2 * D, D, D)])
def test_all_matrices_are_counted_if_one_has_another_size(widths):
    stored = [tensor(str(number), V, width) for number, width in enumerate(widths)]
    total = V * sum(widths)
    for others, more in (([], 0), ([tensor("norm.weight", D)], D)):
        assert count(stored, None, None, others=others) == (total + more, total + more)


@pytest.mark.parametrize("name_set", [0, 1])
@pytest.mark.parametrize("state", ["aab", "abc"])
def test_a_table_that_is_never_tied_leaves_the_tie_of_the_others(name_set, state):
    known = kinds.read_class("ovis2", "Ovis2ForConditionalGeneration")
    assert known.never_tied == {2}
    assert known.names[0][2] != known.names[1][2]
    for shape in ((V, D), (7, 3)):
        embedding, head, table = known.names[name_set]
        stored = [tensor(embedding, V, D), tensor(head, V, D), tensor(table, *shape)]
        of_table = shape[0] * shape[1]
        expected = (V * D + of_table, 2 * V * D + of_table)
        assert count(stored, known, state, name_set=name_set) == expected


def test_the_matrices_are_counted_by_the_rule_for_their_names():
    """With the second set of names this class ties nothing."""
    usual = {"f": {"ab": "ab"}, "t": {"aa": "a0"}}
    other = {"f": {"ab": "ab"}, "t": {"aa": "aa"}}
    names = ((E, H), (E, f"model.{H}"))
    known = replace(LLAMA, names=names, absent_prefixes=("", ""), rules={"5": [usual, other]})
    for name_set, matrices_if_tied in ((0, 1), (1, 2)):
        stored = [tensor(name, V, D) for name in names[name_set]]
        numbers = count(stored, known, "ab", name_set=name_set)
        assert numbers == (matrices_if_tied * V * D, 2 * V * D)
        in_memory = counting.matrices_in_memory(2, known, name_set, "aa")
        assert in_memory == (2, matrices_if_tied)


def test_each_copy_that_is_a_parameter_of_the_untied_model_is_counted():
    copies = {"a.copy": "a.bias", "b.copy": "b.bias", "c.copy": "c.bias"}
    known = replace(BERT, copies=copies, separate=("a.copy", "b.copy"))
    stored = [tensor(name, V, D) for name in known.names[0]]
    biases = [tensor("a.bias", 2), tensor("b.bias", 3), tensor("c.bias", 5)]
    expected = (V * D + 10, 2 * V * D + 10 + 2 + 3)
    for state in (None, "aa", "ab"):
        assert count(stored, known, state, others=biases) == expected
    all_copies = [tensor("a.copy", 2), tensor("b.copy", 3), tensor("c.copy", 5)]
    assert count(stored, known, None, others=biases + all_copies) == expected


def test_a_buffer_of_another_class_is_a_parameter():
    stored = [tensor(E, V, D), tensor(H, V, D)]
    name = "model.layers.0.mlp.gate.e_score_correction_bias"
    assert any(kinds.pattern(name) in known.buffers for known in kinds.all_classes())
    for known, more in ((LLAMA, 5), (None, 0)):  # of a class that is not known it may be one
        numbers = count(stored, known, None, others=[tensor(name, 5)])
        assert numbers == (V * D + more, 2 * V * D + more)


# From config.json


OF_LAYERS = (
    *("num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    "intermediate_size",
)
LIKE_LLAMA = {
    "qkv_biases": False,
    "head_norms": False,
    "norms": 2,
    "biases": ["attention_bias"],
    "optional": [],
    "fixed": {"of_mine": 1},
}


def test_a_setting_that_was_not_measured_is_refused():
    config = SIZES | dict.fromkeys(OF_LAYERS, 4) | {"of_mine": 1}
    assert counting.count_from_config(config, LIKE_LLAMA)["difference"] == V * D
    for fields in ({"of_mine": None}, {"of_mine": 2}, {"mlp_bias": True}):
        with pytest.raises(CheckpointError) as caught:
            counting.count_from_config(config | fields, LIKE_LLAMA)
        assert str(caught.value) == "config.json has a setting that was not measured"
    del config["of_mine"]
    with pytest.raises(CheckpointError, match="not measured"):
        counting.count_from_config(config, LIKE_LLAMA)


@pytest.mark.parametrize("value", [True, 2**31, 4.0, None])
def test_what_is_no_size_is_refused(value):
    for name in (*SIZES, *OF_LAYERS):
        config = SIZES | dict.fromkeys(OF_LAYERS, 4) | {"of_mine": 1, name: value}
        with pytest.raises(CheckpointError) as caught:
            counting.count_from_config(config, LIKE_LLAMA)
        sentence = f"{name} in config.json must be a whole number above 0, got {value!r}"
        assert str(caught.value) == sentence
