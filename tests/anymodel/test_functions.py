"""The functions behind `check` and `params` one by one: matrices, counts, the hub, the verdict.

A tensor of these tests has a name, a shape and a dtype, and no values.
"""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from tiedgpt.anymodel import adapters, counting, headers, kinds, matrices, mends, ties
from tiedgpt.checkpoints.model_names import MODELS
from tiedgpt.checkpoints.tensors import Tensor
from tiedgpt.errors import CheckpointError

V, D = 40, 8
E = "model.embed_tokens.weight"
H = "lm_head.weight"
LLAMA = kinds.read_class("llama", "LlamaForCausalLM")
T5 = kinds.read_class("t5", "T5ForConditionalGeneration")
BERT = kinds.read_class("bert", "BertForMaskedLM")
ALBERT = kinds.read_class("albert", "AlbertForMaskedLM")
SIZES = {"vocab_size": V, "hidden_size": D}


def tensor(name, *shape, dtype="F32", start=0, file="a.bin"):
    size = 4
    for length in shape:
        size *= length
    return Tensor(Path(file), name, dtype, shape, start, start + size, memory=b"")


def named(*tensors):
    return {each.name: each for each in tensors}


# Matrices by the ends of their names


@pytest.mark.parametrize(
    ("head", "is_head", "is_unclear"),
    [
        (tensor(H, V, D), True, False),
        (tensor(H, V + 1, D), False, True),  # it may be padded
        (tensor(H, V - 1, D), False, False),
        (tensor("unembed.weight", V, D), False, True),
        (tensor("unembed", V, D), False, True),
        (tensor("unembed.weight", D, V + 1), False, True),
        (tensor("unembed.weight", V - 1, D), False, False),
        (tensor("unembed.weight", V + 1, D + 1), False, False),
        (tensor("unembed.weight", V, 1), False, False),
        (tensor("unembed.weight", 1, V), False, False),
        (tensor("lm_head.bias", V), False, False),
        (tensor("wpe.weight", V, D), False, False),
        (tensor("model.layers.0.up.weight", V, D), False, False),
        (tensor("model.layers.10.output.weight", V, D), False, False),
        (tensor("position.embeddings.weight", V, D), False, False),
        (tensor("to_logits_bias", V, D), False, True),
    ],
    ids=lambda value: f"{value.name} {value.shape}" if isinstance(value, Tensor) else "",
)
def test_which_tensor_may_be_the_head(head, is_head, is_unclear):
    found = matrices.find_by_ends(SIZES, named(tensor(E, V, D), head))
    assert (found.head == head) == is_head
    assert found.unclear == ([head.name] if is_unclear else [])


def test_each_name_of_an_embedding_has_the_shape():
    for name in (
        *("wte", "tok_emb", "embed_tokens", "word_embeddings", "embed_in"),
        *("tok_embeddings", "tokens_embed", "embeddings"),
    ):
        for prefix in ("", "model."):
            tensors = named(tensor(f"{prefix}{name}.weight", V, D), tensor(H, V, D))
            assert matrices.shape_of_embedding(tensors) == (V, D)
            assert matrices.find_by_ends({}, tensors).stored == list(tensors.values())


def test_the_shape_of_the_only_embedding():
    embedding = tensor("wte.weight", V, D)
    assert matrices.shape_of_embedding(named(embedding, tensor(H, V, D))) == (V, D)
    for others in (
        [embedding, tensor("encoder.wte.weight", V, D)],
        [tensor("wte.weight", 0, D)],
        [tensor("wte.weight", V)],
        [],
    ):
        assert matrices.shape_of_embedding(named(*others)) is None


def test_an_embedding_has_the_shape_that_config_json_says():
    for rows, is_embedding in ((V, True), (V + 1, False)):
        found = matrices.find_by_ends(SIZES, named(tensor(E, rows, D)))
        assert (found.embedding is not None) == is_embedding


def test_a_head_of_packed_numbers_is_quantised_whatever_its_parts():
    head = tensor(H, V, D // 2, dtype="U8")
    for known in (None, LLAMA):
        found = matrices.find_matrices(SIZES, named(tensor(E, V, D), head), known)
        assert (found.head, found.quantised) == (head, {H})


def test_a_module_that_may_be_the_head_is_named_by_all_its_parts():
    more = tensor("unembed.weight", V, D), tensor("unembed.gain", D)
    assert matrices.find_by_ends(SIZES, named(tensor(E, V, D), *more)).unclear == [
        "unembed.gain",
        "unembed.weight",
    ]
    of_head = tensor("lm_head.gain", D), tensor(H, V, D)
    assert matrices.find_by_ends(SIZES, named(tensor(E, V, D), *of_head)).head == of_head[1]


def test_two_heads_are_both_named():
    heads = [tensor(f"{name}.{H}", V, D) for name in "ba"]
    found = matrices.find_by_ends(SIZES, named(tensor(E, V, D), *heads))
    assert (found.embedding.name, found.head) == (E, None)
    assert found.unclear == [f"a.{H}", f"b.{H}"]
    assert (found.stored, found.state_if_equal) == ([], None)
    embeddings = [tensor(f"{name}.{E}", V, D) for name in "ba"]
    more = tensor("unembed.weight", V, D)
    found = matrices.find_by_ends(SIZES, named(*heads, more, *embeddings))
    names = [E, H]
    assert found.unclear == sorted([*(f"{x}.{name}" for x in "ab" for name in names), more.name])


def test_which_of_four_matrices_are_stored():
    """An encoder and a decoder have an embedding each, beside the shared one."""
    found = matrices.Matrices([tensor(E, V, D), None, None, tensor(f"decoder.{E}", V, D)])
    assert found.state_if_equal == "a..a"
    assert matrices.Matrices([None, None]).state_if_equal is None


def test_without_sizes_in_config_json_the_embedding_has_the_shape():
    others = tensor("unembed.weight", V, D), tensor("more.weight", D, D)
    for known in (None, LLAMA):
        found = matrices.find_matrices({}, named(tensor(E, V, D), *others), known)
        assert found.unclear == ["unembed.weight"]


def test_a_matrix_by_a_name_of_another_set_is_not_clear():
    both = tensor(E, V, D), tensor(H, V, D)
    found = matrices.find_matrices(SIZES, named(*both, tensor(f"model.{H}", V, D)), LLAMA)
    assert (found.name_set, found.unclear) == (0, [f"model.{H}"])
    assert found.misfits == []
    for other in (f"model.{H}", "embed_tokens.weight"):  # whatever its shape
        found = matrices.find_matrices(SIZES, named(*both, tensor(other, 3, 5)), LLAMA)
        assert (found.name_set, found.possible_others) == (None, [other])


def test_the_names_of_what_is_not_clear_are_sorted():
    names = [f"{letter}.weight" for letter in "hbgcfdea"]
    tensors = named(tensor(E, V, D), *(tensor(name, V, D) for name in names))
    assert matrices.find_matrices(SIZES, tensors, LLAMA).unclear == sorted(names)


def test_beside_a_matrix_that_does_not_fit_another_one_has_the_shape_of_config_json():
    larger, more = tensor(E, V + 1, D), tensor("more.weight", V, D)
    found = matrices.find_matrices(SIZES, named(larger, more), LLAMA)
    assert found.unclear == [E, "more.weight"]
    said = f"the shape of {E} is 41 x 8, but vocab_size is 40 in config.json"
    assert found.misfits == [said]
    of_proteins = kinds.read_class("evolla", "EvollaForProteinText2Text")
    third = tensor(of_proteins.names[0][2], 33, 16)  # of another vocabulary
    found = matrices.find_matrices(SIZES, named(larger, third), of_proteins)
    assert (found.unclear, found.misfits) == ([E], [said])


def test_a_matrix_of_a_decoder_has_the_size_of_the_head():
    known = replace(T5, sizes=(("a", "a"), ("vocab_size", "hidden_size")))
    of_encoder = tensor(T5.names[0][2], V, D)
    found = matrices.find_matrices({**SIZES, "a": 3}, named(of_encoder), known)
    assert (found.tensors[2], found.misfits) == (of_encoder, [])


def test_a_buffer_is_no_matrix_and_in_a_file_without_a_head_it_lacks_the_prefix():
    known = replace(LLAMA, buffers=frozenset(["model.table"]))
    for embedding, buffer, is_buffer in (
        (E, "model.table", True),
        ("embed_tokens.weight", "table", True),
        (E, "table", False),
    ):
        tensors = named(tensor(embedding, V, D), tensor(buffer, V, D))
        found = matrices.find_matrices(SIZES, tensors, known)
        assert found.unclear == ([] if is_buffer else [buffer])


def test_a_padded_matrix_beside_those_of_a_class_is_none_of_them():
    tensors = named(tensor(E, V, D), tensor("more.weight", V + 1, D))
    assert matrices.find_matrices(SIZES, tensors, LLAMA).unclear == []
    assert matrices.find_matrices(SIZES, tensors, None).unclear == ["more.weight"]


def test_a_set_of_names_is_known_by_the_parts_of_quantised_matrices():
    parts = [tensor(f"model.lm_head.{part}", 5, 7, dtype="I32") for part in ("qweight", "scales")]
    found = matrices.find_matrices(SIZES, named(tensor(E, V, D), *parts), LLAMA)
    assert (found.name_set, found.head) == (2, parts[0])
    assert (found.quantised, found.unclear) == ({"model.lm_head.qweight"}, [])


def test_the_first_set_of_names_counts_of_two_that_fit():
    for names, name_set in (((E,), 0), ((E, f"model.{H}"), 2), (("embed_tokens.weight",), 1)):
        tensors = named(*(tensor(name, V, D) for name in names))
        assert matrices.find_matrices(SIZES, tensors, LLAMA).name_set == name_set
    assert matrices.find_matrices(SIZES, named(tensor("a.weight", V, D)), LLAMA).name_set is None


@pytest.mark.parametrize(
    ("config", "places", "sentence"),
    [
        ({}, (None, None), ""),
        (SIZES, (None, None), "vocab_size is 40 and the width is 8"),
        (SIZES, ("vocab_size", "hidden_size"), "vocab_size is 40 and hidden_size is 8"),
        ({"a": {"b": V}, "c": D + 1}, ("a.b", "c"), "a.b is 40"),
        ({"vocab_size": V + 1, "c": "8"}, ("vocab_size", "c"), "c is '8'"),
        ({"vocab_size": 0, "c": D + 1}, ("vocab_size", "c"), "vocab_size is 0"),
    ],
)
def test_what_config_json_says_of_a_shape_that_does_not_fit(config, places, sentence):
    said = matrices.describe_misfit(config, places, tensor(E, V + 1, D + 1))
    assert said == (sentence and f"the shape of {E} is 41 x 9, but {sentence} in config.json")


def test_the_first_width_of_config_json_is_a_size_or_there_is_no_shape():
    for config in (
        {"vocab_size": V, "hidden_size": 0, "d_model": D},
        {"vocab_size": V, "hidden_size": "8"},
        {"vocab_size": V},
        {"vocab_size": 0, "hidden_size": D},
    ):
        assert matrices.matrix_shape(config) is None


def test_of_all_widths_in_config_json_the_first_holds():
    names = ["word_embed_proj_dim", "embedding_size", "hidden_size", "n_embd", "d_model"]
    for n in range(len(names)):
        widths = {name: D + names.index(name) for name in reversed(names[n:])}
        assert matrices.matrix_shape({"vocab_size": V, **widths}) == (V, D + n)


def test_each_matrix_is_compared_with_those_before_it_until_one_is_equal():
    values = {"a": 1, "b": 1, "c": 2, "d": None, "e": 2, "f": 3}
    shape_of = {"f": (V, 2 * D)}  # so it is compared with none
    stored = [
        None if value is None else tensor(name, *shape_of.get(name, (V, D)))
        for name, value in values.items()
    ]
    asked = []

    def equal_rows(one, other, rounded=False):
        asked.append((one.name + other.name, rounded))
        return (V if values[one.name] == values[other.name] else 0), V

    model = SimpleNamespace(equal_rows=equal_rows)
    compared = matrices.compare_matrices(model, matrices.Matrices(stored))
    assert compared == matrices.Comparison("aab.bc", V, V, False)
    exact = [names for names, rounded in asked if not rounded]
    assert exact == ["ab", "ac", "bc", "ae", "be", "ce"]
    assert [names for names, rounded in asked if rounded] == ["ac", "bc", "ae", "be"]


def test_the_rows_that_are_told_are_those_of_the_embedding_and_the_head():
    """Though the matrix of a decoder is equal to the embedding in all rows."""
    found = matrices.Matrices([tensor(name, V, D) for name in "abc"])

    def equal_rows(one, other, rounded=False):
        return (V if one.name + other.name == "ac" else 3), V

    compared = matrices.compare_matrices(SimpleNamespace(equal_rows=equal_rows), found)
    assert compared == matrices.Comparison("aba", 3, V, False)


def test_the_sizes_of_a_model_of_images_and_text():
    assert matrices.matrix_shape({"text_config": SIZES}) == (V, D)
    assert matrices.matrix_shape({**SIZES, "text_config": {"vocab_size": V + 1}}) == (V + 1, D)
    assert matrices.matrix_shape({"vocab_size": V, "hidden_size": None, "d_model": D}) == (V, D)
    assert kinds.fields_at({"a": {"b": {"c": 1}}}, "a.b") == {"c": 1}


@pytest.mark.parametrize("shape", [(0, D), (V,), (V, D, 2)])
def test_what_is_no_matrix_does_not_fit(shape):
    for places in ((None, None), ("vocab_size", "hidden_size")):
        said = matrices.describe_misfit({}, places, tensor(E, *shape))
        assert said.endswith("not that of a matrix [V, D]")


def test_matrices_that_rounding_may_make_equal_are_said_to_be_though_others_differ():
    """The first two are equal if rounded, the third differs from both."""
    found = matrices.Matrices([tensor(name, V, D) for name in "abc"])

    def equal_rows(one, other, rounded=False):
        return (V if rounded and other.name == "b" else 0), V

    compared = matrices.compare_matrices(SimpleNamespace(equal_rows=equal_rows), found)
    assert (compared.state, compared.equal_if_rounded) == ("abc", True)
    assert (compared.equal_rows, compared.compared_rows) == (0, V)


# Counts


@pytest.mark.parametrize(
    ("name", "shape", "is_buffer"),
    [
        ("h.0.attn.bias", (1, 1, 4, 4), True),
        ("h.0.attn.bias", (4,), False),
        ("h.0.attn.masked_bias", (), True),
        ("h.0.mlp.bias", (1, 1, 4, 4), False),
        ("h.11.of_mine", (4,), True),
        ("h.0.attn.bias", (4, 4), False),
        ("h.0.attn.bias", (), False),
        ("layers.0.attention.bias", (1, 1, 4, 4), True),
        ("layers.0.attention.masked_bias", (), True),
        ("h.0.attn.causal_mask", (1, 1, 4, 4), True),
        ("rope.freqs", (4,), True),
        ("layers.0.rotary_emb.inv_freq", (4,), True),
        ("embeddings.position_ids", (1, 4), True),
        ("embeddings.position_ids.weight", (1, 4), False),
    ],
)
def test_which_tensors_are_no_parameters(name, shape, is_buffer):
    measured = frozenset(["h.N.of_mine"])
    assert counting.is_buffer(name, tensor(name, *shape), measured) == is_buffer


def count(*tensors, known, config=SIZES, state=None):
    tensors = named(*tensors)
    found = matrices.find_matrices(config, tensors, known)
    numbers = counting.count_stored(tensors, found, known, state)
    return numbers["tied"]["total"], numbers["untied"]["total"]


def test_a_buffer_of_a_model_without_its_head_lacks_the_prefix():
    known = kinds.read_class("deepseek_v3", "DeepseekV3ForCausalLM")
    embedding = tensor("embed_tokens.weight", V, D)
    buffer = tensor("layers.10.mlp.gate.e_score_correction_bias", 4)
    assert count(embedding, buffer, known=known) == (V * D, 2 * V * D)


def test_a_class_whose_tensors_do_not_add_up_is_not_counted():
    known = kinds.read_class("colpali", "ColPaliForRetrieval")
    tensors = named(*(tensor(name, V, D) for name in known.names[0]))
    found = matrices.find_matrices(SIZES, tensors, known)
    assert len(found.stored) == 2
    assert counting.count_stored(tensors, found, known) is None
    assert counting.count_stored(tensors, found, replace(known, is_counted=True)) is not None


def test_a_tied_model_has_no_more_matrices_than_an_untied_one():
    """And whether the stored head equals the embedding changes nothing of the tied model."""
    # Every other class that has more matrices than an embedding and a head
    with_more = [known for known in kinds.all_classes() if len(known.names[0]) > 2][::2]
    assert len(with_more) > 10
    compared = 0
    for known in with_more:
        for rule in known.rules.get("5", ())[:1]:  # of the usual names
            states = {state for by_state in (rule or {}).values() for state in by_state}
            for state in states:
                stored = len(state.replace(".", ""))
                untied, tied = counting.matrices_in_memory(stored, known, 0, state)
                assert 1 <= tied <= untied <= max(stored, 2)
                equal = state[0] * 2 + state[2:]  # the same, but the head equals the embedding
                if "." not in state[:2] and equal in states:
                    _, tied_if_equal = counting.matrices_in_memory(stored, known, 0, equal)
                    assert tied == tied_if_equal
                    compared += 1
    assert compared > 10


SIZES_LIKE_LLAMA = (
    *("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "intermediate_size"),
)


@pytest.mark.parametrize("name", SIZES_LIKE_LLAMA)
def test_a_size_that_is_not_a_whole_number_above_0_is_named(name):
    optional = ["num_key_value_heads", "head_dim"]
    for value in (0, "8", [8]):
        config = dict.fromkeys(SIZES_LIKE_LLAMA, 4) | {name: value}
        configs = [config]
        if name not in optional:  # the others may be missing
            configs.append({each: config[each] for each in config if each not in optional})
        for each in configs:
            with pytest.raises(CheckpointError) as caught:
                counting.sizes_like_llama(each, optional)
            sentence = f"{name} in config.json must be a whole number above 0, got {value!r}"
            assert str(caught.value) == sentence


def test_a_bias_by_two_names_is_one_if_tied_and_two_if_untied():
    embedding = tensor("bert.embeddings.word_embeddings.weight", V, D)
    bias = tensor("cls.predictions.bias", V)
    second = tensor("cls.predictions.decoder.bias", V)
    expected = (V * D + V, 2 * (V * D + V))
    assert count(embedding, bias, known=BERT) == expected
    assert count(embedding, bias, second, known=BERT) == expected
    assert count(embedding, second, known=BERT)[0] == V * D + V


# Kinds


def test_a_default_in_which_versions_differ_is_not_known():
    for defaults, expected in (
        ({"4": [True], "5": [True]}, True),
        ({"4": [True], "5": [False]}, None),
        ({"4": [None], "5": [None]}, None),
    ):
        assert replace(LLAMA, places=("",), defaults=defaults).default("") is expected


@pytest.mark.parametrize(
    ("known", "name_set", "is_by_rule"),
    [
        (LLAMA, 0, True),
        (LLAMA, 1, False),  # names that lack a prefix
        (LLAMA, 2, False),  # an unusual name of the head alone
        (kinds.read_class("gpt2", "GPT2LMHeadModel"), 0, True),
        (kinds.read_class("llava", "LlavaForConditionalGeneration"), 0, True),
        (kinds.read_class("llava", "LlavaForConditionalGeneration"), 1, True),
        (BERT, 0, False),
        (T5, 0, False),  # more than two matrices
    ],
    ids=lambda value: value.name if isinstance(value, kinds.ModelClass) else str(value),
)
def test_which_files_are_read_by_the_rule(known, name_set, is_by_rule):
    assert known.has_usual_rule(name_set) == is_by_rule


def test_a_matrix_that_is_one_with_another_that_is_one_with_the_first():
    assert kinds.root("a01", 2) == 0
    assert kinds.values_of("a01") == "aaa"


@pytest.mark.parametrize(
    ("name", "of_all_layers"),
    [("h.11", "h.N"), ("0.weight", "0.weight"), ("a.1.b.23.c4", "a.N.b.N.c4")],
)
def test_the_numbers_in_a_name(name, of_all_layers):
    assert kinds.pattern(name) == of_all_layers


def test_a_flag_or_a_kind_at_a_place_that_was_not_measured_is_named():
    gemma4 = kinds.read_class("gemma4_text", "Gemma4ForCausalLM")
    config = SIZES | {"per_layer_config": {ties.FLAG: True}}
    sentence = f"per_layer_config.{ties.FLAG} in config.json was not measured"
    assert ties.place_not_measured(config, gemma4) == sentence
    assert ties.place_not_measured(SIZES, gemma4) is None
    colqwen2 = next(known for known in kinds.all_classes() if known.kind == "colqwen2")
    of_text = {**SIZES, "model_type": "xyz"}
    config = {"vlm_config": {"text_config": of_text}}
    assert ties.other_nested_kinds(config, colqwen2) == {"vlm_config.text_config": "xyz"}
    sentence = f"{colqwen2.name} was not measured with a vlm_config.text_config of kind 'xyz'"
    assert ties.place_not_measured(config, colqwen2) == sentence


# The hub


class Repository:
    """A repository of the hub with these files."""

    label = "owner/name"

    def __init__(self, **files):
        self.files, self.asked = files, []

    def read_range(self, file, start, stop):
        self.asked.append((start, stop))
        content = self.files.get(file)
        return None if content is None else (content[start:stop], len(content))


def test_rows_of_a_matrix_with_fewer_rows_than_are_sampled_at_a_place():
    repository = Repository(a=bytes(range(48)), b=bytes(range(32)) + bytes(16))
    one, other = (tensor(file, 3, 4, file=file) for file in ("a", "b"))
    model = headers.HubModel({}, repository)
    assert model.equal_rows(one, other) == (2, 3)
    assert set(repository.asked) == {(0, 48)}
    halves = [replace(each, dtype="F16", shape=(3, 8)) for each in (one, other)]
    assert model.equal_rows(*halves) == (2, 3)
    assert set(repository.asked) == {(0, 48)}


def test_rows_all_over_a_matrix_are_compared():
    """The last one, too, and those that rounding may make equal if that is asked for."""
    rows = np.arange(100, dtype=np.float32)[:, None]
    near, far = rows * np.float32(1 + 1e-6), rows.copy()
    far[-1] += 1
    files = {"a": rows.tobytes(), "b": near.tobytes(), "c": far.tobytes()}
    repository = Repository(**files)
    model = headers.HubModel({}, repository)
    one, other, with_another = (tensor(file, 100, 1, file=file) for file in files)
    assert model.equal_rows(one, one) == (32, 32)
    # Each part is asked for twice: as one of the first matrix, and of the second.
    assert [start for start, _ in repository.asked[::2]] == [
        4 * first for first in (0, 13, 27, 41, 54, 68, 82, 96)
    ]
    assert model.equal_rows(one, with_another) == (31, 32)
    equal, compared = model.equal_rows(one, other)
    assert equal < compared == 32
    assert model.equal_rows(one, other, rounded=True) == (32, 32)


def test_a_json_file_of_the_hub_may_be_as_large_as_is_allowed(monkeypatch):
    content = json.dumps({"a": 1}).encode()
    repository = Repository(config=content, lists=b"[]", cut=b"{")
    monkeypatch.setattr(headers, "MAX_TEXT", len(content))
    assert headers.fetch_json(repository, "config") == {"a": 1}
    for file in ("lists", "cut"):
        with pytest.raises(CheckpointError, match=f"^owner/name/{file}: "):
            headers.fetch_json(repository, file)
    monkeypatch.setattr(headers, "MAX_TEXT", len(content) - 1)
    with pytest.raises(CheckpointError) as caught:
        headers.fetch_json(repository, "config")
    assert str(caught.value) == "owner/name/config: 8 bytes; expected at most 7"


@pytest.mark.parametrize("most", [2, headers.MAX_HEADER])
def test_a_header_that_is_the_whole_file_is_read(monkeypatch, most):
    monkeypatch.setattr(headers, "MAX_HEADER", most)
    repository = Repository(a=(2).to_bytes(8, "little") + b"{}", b=bytes(3))
    assert headers.fetch_header(repository, "a").tensors == {}
    assert repository.asked == [(0, 8), (8, 10)]
    with pytest.raises(CheckpointError, match=r"^owner/name/b: "):
        headers.fetch_header(repository, "b")


def test_what_is_gone_from_the_hub_is_named():
    repository = Repository()
    assert headers.fetch_header(repository, "a") is None
    assert headers.fetch_json(repository, "a") is None
    with pytest.raises(CheckpointError) as caught:
        headers.fetch_part(repository, Path("owner/name/a"), start=0, stop=1)
    assert str(caught.value) == "owner/name/a is not there any more (404)"


def test_a_header_that_is_too_long_is_not_asked_for(monkeypatch):
    monkeypatch.setattr(headers, "MAX_HEADER", 8)
    repository = Repository(a=(100).to_bytes(8, "little") + b" " * 200)
    with pytest.raises(CheckpointError) as caught:
        headers.fetch_header(repository, "a")
    assert str(caught.value).endswith("208 bytes, a header of 100; expected at most 8")
    assert repository.asked == [(0, 8)]


def test_the_metadata_of_all_shards_are_kept_in_the_order_of_their_names():
    index = {"weight_map": {"a": "b.safetensors", "b": "a.safetensors"}}
    files = {"model.safetensors.index.json": json.dumps(index).encode()}
    for name, file, format_name in (("a", "b.safetensors", "pt"), ("b", "a.safetensors", "np")):
        entry = {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}
        header = json.dumps({"__metadata__": {"format": format_name}, name: entry}).encode()
        files[file] = len(header).to_bytes(8, "little") + header + b"1"
    model = headers.HubModel({}, Repository(**files))
    assert model.saved.metadata == [{"format": "np"}, {"format": "pt"}]
    assert list(model.stored) == ["b", "a"]


def test_which_model_of_the_hub_is_opened(hub_server, weights_folder):
    """A name finds a folder here, without weights if none are needed; else the hub is asked."""
    hub_server.put("owner/empty", {"config.json": b"{}"})
    model = headers.open_any("owner/empty")
    assert (model.config_json, model.has_weights) == ({}, False)
    for text, repository in (("owner/none", "owner/none"), ("124M", "openai-community/gpt2")):
        with pytest.raises(CheckpointError) as caught:
            headers.open_any(text)
        label = f"{hub_server.url.removeprefix('http://')}/{repository}"
        why = f"{label}: no such repository, or no config.json in it (404)"
        assert str(caught.value) == f"{text} is not on this machine; {why}"
    assert f"/{MODELS['gpt2'].commit}/" in hub_server.requests[-1].path
    folder = weights_folder / "owner" / "empty"
    folder.mkdir(parents=True)
    (folder / "config.json").write_text('{"a": 1}')
    assert headers.open_any("owner/empty").config_json == {}
    model = headers.open_any("owner/empty", weights=False)
    assert (model.name, model.config_json) == ("owner/empty", {"a": 1})


def test_the_hub_is_not_asked_for_a_model_that_comes_with_tiedgpt(hub_server):
    with pytest.raises(CheckpointError, match="comes with tiedgpt but is missing from it"):
        headers.open_any("shakespeare-tied")
    assert hub_server.requests == []


def test_json_that_only_python_writes_is_read_from_the_hub():
    config = {"a": float("inf")}
    repository = Repository(config=json.dumps(config).encode())
    assert headers.fetch_json(repository, "config") == config


# Adapters


@pytest.mark.parametrize(
    ("name", "shape", "is_usual"),
    [
        ("lm_head.bias", (V,), False),
        ("final_logits_bias", (1, V), False),  # of BART
        ("model.norm.bias", (D,), True),
        ("bias", (D, D), True),
        ("model.layers.0.bias", (V,), True),
        ("model.norm.weight", (V,), True),
    ],
)
def test_a_head_with_a_bias_for_each_token_is_not_usual(name, shape, is_usual):
    found = matrices.Matrices([tensor(E, V, D), None])
    model = SimpleNamespace(stored=named(tensor(name, *shape)))
    assert adapters.has_usual_head(model, LLAMA, found) == is_usual


def test_what_an_adapter_may_change_is_not_in_a_layer():
    for name, changed in (
        ("model.embed_tokens.mine", ["embedding"]),
        ("lm_head.mine", ["head"]),
        ("model.layers.0.lm_head.mine", []),
        ("model.norm.mine", []),
    ):
        assert adapters.may_be_changed(named(tensor(name, D)), LLAMA) == changed


# The verdict


def verdict_of(**changes):
    report = {
        "conflict": "",
        "flag": {"class_without_head": None, "tied": True},
        "tensors": 2,
        "holds": "equal",
        "transformers4": "tied",
        "transformers": "tied",
        **changes,
    }
    return ties.verdict(report, changes.get("known"))


def test_the_verdict_of_a_report():
    assert verdict_of() == "tied"
    assert verdict_of(conflict="one") == "conflict"
    assert verdict_of(transformers="untied") == "not known"
    # A version that has not the class may drop another head.
    for holds, tied, expected in (
        ("different", True, "not known"),
        ("different", False, "untied"),
        ("equal", True, "untied"),
    ):
        flag = {"class_without_head": None, "tied": tied}
        one = {"transformers4": None, "transformers": "untied", "holds": holds, "flag": flag}
        assert verdict_of(**one) == expected
        assert verdict_of(**one, known=LLAMA) == "not known"
    without = {"class_without_head": "LlamaModel", "tied": True}
    assert verdict_of(flag=without) == "no head"
    assert verdict_of(flag=without, tensors=0) == "tied"


def test_a_head_that_differs_and_that_all_versions_read_is_untied():
    """A version without the class drops the head only if the flag says tied."""
    untied = {"holds": "different", "transformers": "untied"}
    without_4 = replace(LLAMA, versions=("5",))
    for known in (None, LLAMA, without_4):
        assert verdict_of(**untied, transformers4="untied", known=known) == "untied"
    for tied, expected in ((True, "not known"), (None, "untied"), (False, "untied")):
        flag = {"class_without_head": None, "tied": tied}
        assert verdict_of(**untied, transformers4=None, flag=flag, known=without_4) == expected


@pytest.mark.parametrize(
    ("one", "other", "shares"),
    [
        ((0, "a.bin"), (0, "a.bin"), True),
        ((0, "a.bin"), (V * D * 4 - 1, "a.bin"), True),
        ((0, "a.bin"), (V * D * 4, "a.bin"), False),
        ((V * D * 4, "a.bin"), (0, "a.bin"), False),
        ((0, "a.bin"), (0, "b.bin"), False),
        ((0, "a.safetensors"), (0, "a.safetensors"), False),
    ],
)
def test_which_tensors_share_memory(one, other, shares):
    first, second = (tensor(E, V, D, start=start, file=file) for start, file in (one, other))
    assert ties.share_memory(first, second) == shares


# Remedies


def mends_of(known, config, state, *names):
    file = mends.FILE
    found = matrices.Matrices(
        [
            None if letter == "." else tensor(name, V, D, file=file)
            for name, letter in zip(known.names[0], state, strict=True)
        ],
        name_set=0,
    )
    return mends.find_mends(known, config, "t" if config[ties.FLAG] else "f", names, found, state)


def test_a_head_alone_is_renamed_if_no_other_tensor_would_have_to_be():
    """In files where names lack a prefix, all others would have to be renamed as well."""
    clova = kinds.read_class("hyperclovax_vision_v2", "HyperCLOVAXVisionV2ForConditionalGeneration")
    for known, renames in ((LLAMA, 1), (clova, 0)):
        assert known.names[2][1] != known.names[0][1]
        files = mends.Files(flags="-", name_set=2, state=".a")
        lines = [lines for _, lines in mends.changes(known, files, in_one_file=True)]
        assert lines[0] == []
        assert len(lines) == 1 + renames


@pytest.mark.parametrize("state", [".a", "a."])
def test_no_second_bias_is_written_where_the_flag_stays(state):
    """The matrix is renamed or copied, and the model stays tied, with one bias."""
    bias = "predictions.bias"
    remedies = mends_of(ALBERT, {ties.FLAG: True}, state, bias)
    [same_flag] = [mend for mend in remedies if not mend["flags"] and mend["python"]]
    assert "decoder.bias" not in same_flag["python"]


def test_a_tie_is_no_remedy_if_the_embedding_or_the_head_was_lost():
    """An encoder and a decoder need no copies of their own."""
    lost = "unless the other matrix was lost"
    [tied] = mends_of(LLAMA, {ties.FLAG: False}, "a.")
    assert tied["text"].startswith(lost)
    assert not any(lost in mend["text"] for mend in mends_of(LLAMA, {ties.FLAG: True}, "ab"))
    for state, is_lost in (("aa..", False), ("a...", True)):
        [tied] = mends_of(T5, {ties.FLAG: False}, state)
        assert tied["flags"] == {"": True}
        assert tied["text"].startswith(lost) == is_lost


GEMMA3 = kinds.read_class("gemma3", "Gemma3ForConditionalGeneration")
KIMI = kinds.read_class("kimi_linear", "KimiLinearForCausalLM")
OF_GEMMA3 = ("language_model.model.embed_tokens.weight", "language_model.lm_head.weight")
BIASES = ("cls.predictions.bias", "cls.predictions.decoder.bias")
UNTIED = f'write "{ties.FLAG}": false into config.json'
TIED = f'write "{ties.FLAG}": true into config.json'
RUN = "run, with the model's directory in place of DIRECTORY:"
TRAINED, OLD = "if this head was trained, ", "if it is an old copy, "
LOST = "unless the other matrix was lost, "
ONE_FILE = "model.safetensors"


def moved(name, other):
    return f'tensors["{name}"] = tensors.pop("{other}")'


def copied(name, other):
    return f'tensors["{name}"] = tensors["{other}"].clone()'


def deleted(name):
    return f'del tensors["{name}"]'


# A class; its flags in config.json (t: true, f: false, -: not said); the state of its matrices (a
# letter for each, the same for equal ones, a dot for one that is not stored); the number of its set
# of names; the file. Then for each remedy: its flags, its first line, the change of the file.
REMEDIES = [
    (
        LLAMA,
        "t",
        "ab",
        0,
        ONE_FILE,
        [
            ({"": False}, TRAINED + UNTIED, None),
            ({}, OLD + RUN, deleted(H)),
        ],
    ),
    (
        LLAMA,
        "t",
        "ab",
        0,
        "model-00001-of-00002.safetensors",
        [({"": False}, TRAINED + UNTIED, None)],
    ),
    (LLAMA, "f", "a.", 0, ONE_FILE, [({"": True}, LOST + TIED, None)]),
    (LLAMA, "-", "a.", 0, ONE_FILE, [({"": True}, LOST + TIED, None)]),
    (LLAMA, "t", ".a", 0, ONE_FILE, [({}, RUN, moved(E, H))]),
    (LLAMA, "f", ".a", 0, ONE_FILE, [({"": True}, f"{LOST}{TIED}, and {RUN}", moved(E, H))]),
    (LLAMA, "t", "ab", 1, ONE_FILE, []),  # names that lack a prefix
    (
        LLAMA,
        "t",
        "ab",
        2,
        ONE_FILE,
        [({"": False}, f"{TRAINED}{UNTIED}, and {RUN}", moved(H, f"model.{H}"))],
    ),
    (LLAMA, "f", "ab", 2, ONE_FILE, [({}, TRAINED + RUN, moved(H, f"model.{H}"))]),
    (KIMI, "t", "a.", 0, ONE_FILE, [({"": False}, f"{UNTIED}, and {RUN}", copied(H, E))]),
    (KIMI, "t", ".a", 0, ONE_FILE, [({"": False}, f"{UNTIED}, and {RUN}", copied(E, H))]),
    (KIMI, "f", ".a", 0, ONE_FILE, [({}, RUN, copied(E, H))]),
    (KIMI, "t", "ab", 0, ONE_FILE, [({"": False}, TRAINED + UNTIED, None)]),
    (
        GEMMA3,
        "tf",
        "a.",
        0,
        ONE_FILE,
        [({"": True, "text_config": True}, f"{LOST}{TIED}, also in text_config in it", None)],
    ),
    (GEMMA3, "tt", ".a", 0, ONE_FILE, [({}, RUN, moved(*OF_GEMMA3))]),
    (
        BERT,
        "t",
        "ab",
        0,
        ONE_FILE,
        [
            ({"": False}, f"{TRAINED}{UNTIED}, and {RUN}", copied(*BIASES[::-1])),
            ({}, OLD + RUN, deleted(BERT.names[0][1])),
        ],
    ),
    (BERT, "t", "ab", 0, "a.safetensors", []),  # the second bias would have to be written
]


@pytest.mark.parametrize(
    ("known", "flags", "state", "name_set", "file", "expected"),
    REMEDIES,
    ids=[
        f"{known.kind} {flags} {state} {n} {file}" for known, flags, state, n, file, _ in REMEDIES
    ],
)
def test_the_text_and_the_lines_of_each_remedy(known, flags, state, name_set, file, expected):
    stored = [
        None if letter == "." else tensor(name, V, D, file=file)
        for name, letter in zip(known.names[name_set], state, strict=True)
    ]
    found = matrices.Matrices(stored, name_set=name_set)
    config = {"text_config": SIZES}
    remedies = []
    for flag_of, first_line, change in expected:
        lines = [
            "import os",
            "from safetensors.torch import load_file, save_file  # pip install safetensors torch",
            'tensors = load_file("DIRECTORY/model.safetensors")',
            change,
            'save_file(tensors, "DIRECTORY/new", {"format": "pt"})',
            'os.replace("DIRECTORY/new", "DIRECTORY/model.safetensors")',
        ]
        python = "\n".join(lines) if change else ""
        text = f"{first_line}\n{python}" if change else first_line
        remedies.append({"flags": flag_of, "python": python, "text": text})
    assert mends.find_mends(known, config, flags, [BIASES[0]], found, state) == remedies


def test_no_remedy_without_a_state_or_a_set_of_names():
    found = matrices.Matrices([tensor(E, V, D, file=ONE_FILE), None], name_set=0)
    assert mends.find_mends(LLAMA, {}, "f", [], found, "a.")
    assert mends.find_mends(LLAMA, {}, "f", [], found, None) == []
    found.name_set = None
    assert mends.find_mends(LLAMA, {}, "f", [], found, "a.") == []


def test_a_head_in_another_file_is_not_removed():
    for file_of_embedding, file_of_head in (
        (ONE_FILE, "more.safetensors"),
        ("more.safetensors", ONE_FILE),
    ):
        stored = [tensor(E, V, D, file=file_of_embedding), tensor(H, V, D, file=file_of_head)]
        found = matrices.Matrices(stored, name_set=0)
        [remedy] = mends.find_mends(LLAMA, {}, "t", [], found, "ab")
        assert remedy["text"] == TRAINED + UNTIED


def test_all_parts_that_have_a_flag_are_named():
    colqwen2 = next(known for known in kinds.all_classes() if known.kind == "colqwen2")
    flags = dict.fromkeys(colqwen2.places, True)
    text = f"{TIED}, also in vlm_config and vlm_config.text_config in it"
    assert mends.describe_mend(flags, [], reason="") == {"flags": flags, "python": "", "text": text}


def test_a_part_of_config_json_that_is_missing_is_not_made_for_a_flag():
    [remedy] = mends_of_gemma3("tf", {})
    assert remedy["flags"] == {"": False}
    [remedy] = mends_of_gemma3("tf", {"text_config": {"vocab_size": V}})
    assert remedy["flags"] == {"": True, "text_config": True}


def mends_of_gemma3(flags, config):
    found = matrices.Matrices([tensor(OF_GEMMA3[0], V, D, file=ONE_FILE), None], name_set=0)
    return mends.find_mends(GEMMA3, config, flags, [], found, "a.")


# What is said of a conflict


@pytest.mark.parametrize(
    ("said", "tied", "state", "sentence"),
    [
        ({"": True}, True, "ab", "config.json says tied, and the files have another head"),
        ({"": True, "a": True}, True, "aa", "says tied, and the files have two equal matrices"),
        ({"": True, "a": False}, None, "a.", "one flag of config.json says tied and another one"),
        ({"": True}, None, "a.", "config.json does not say whether the model is tied"),
        ({}, True, "a...", "config.json says, by default, tied, and the files hold one matrix"),
        ({"": False}, False, "ab..", "says untied, and the files hold 2 different matrices"),
        ({"": False}, False, "..", "untied, and the files have neither matrix"),
        ({"": False}, False, "", "untied, and the files are not known"),
        ({"": False}, False, "aaa.", "untied, and the files hold one matrix"),
    ],
)
def test_what_config_json_says_and_the_files_hold(said, tied, state, sentence):
    flag = {"said": said, "tied": tied, "place": "" if not said else ties.FLAG}
    assert sentence in ties.said_and_held(flag, state)


def test_who_loses_what_agrees_with_its_verb():
    found = matrices.Matrices([tensor(E, V, D), tensor(H, V, D)], name_set=0)
    flag = {"said": {"": True}, "tied": True, "place": ties.FLAG}
    for readings, words in (
        ({"others": "a0"}, f"vLLM-like programs drop {H}"),
        ({"transformers4": "a0"}, f"transformers 4 drops {H}"),
        ({"transformers4": "a0", "others": "a0"}, f"and vLLM-like programs drop {H}"),
        ({"others": "!"}, "vLLM-like programs cannot read it"),
        ({"others": "ab"}, ""),
    ):
        conflict = ties.describe_conflict(LLAMA, flag, found, matrices.Comparison("ab"), readings)
        assert conflict.endswith(words)
        assert bool(conflict) == bool(words)


# By which rule


@pytest.mark.parametrize(
    ("config", "names", "is_by_rule"),
    [
        ({"architectures": ["MineForCausalLM"]}, [E, H], True),
        ({"architectures": ["MineForCausalLM"]}, [E], True),
        ({"architectures": ["MineForCausalLM"]}, [E, "mine.lm_head.weight"], False),
        ({"architectures": ["MineModel"]}, [E, H], False),
        *(({name: True}, [E, H], False) for name in ("tie_it", "tied", "share_it", "shared")),
        ({"tie_it": False, "tier": True}, [E, H], True),
    ],
)
def test_what_is_read_by_the_flag(config, names, is_by_rule):
    found = matrices.Matrices([tensor(name, V, D) for name in names])
    assert ties.goes_by_the_flag(config, None, found) == is_by_rule


def test_the_bias_beside_a_head_by_another_name_has_its_rows():
    head, bias = tensor(f"model.{H}", 1000, D), "model.lm_head.bias"
    found = matrices.Matrices([tensor(E, 1000, D), head], name_set=2)
    for shape, said in (((1234,), "1,234"), ((V, 2), "40 x 2"), ((), "one number")):
        model = SimpleNamespace(stored=named(tensor(bias, *shape)))
        sentence = f"the shape of {bias} is {said}, and {head.name} has 1,000 rows"
        assert ties.file_not_measured(model, LLAMA, found, name_set=2) == sentence
    model = SimpleNamespace(stored=named(tensor(bias, 1000)))
    assert ties.file_not_measured(model, LLAMA, found, name_set=2) is None


def test_the_number_of_a_padding_token_is_said_with_the_limit():
    roberta = kinds.read_class("roberta", "RobertaForMaskedLM")
    said = ties.setting_of_part_not_measured
    positions = {"max_position_embeddings": 6}
    for part, sentence in (
        ({"pad_token_id": 5, **positions}, None),
        ({"pad_token_id": 7, **positions}, "pad_token_id is 7, and max_position_embeddings is 6"),
        ({"pad_token_id": 513}, "pad_token_id is 513, and max_position_embeddings is 512"),
        ({"pad_token_id": 601}, "pad_token_id is 601, and the vocabulary has 600 tokens"),
    ):
        assert said(part, 600, roberta, None) == sentence
    assert said({}, 600, roberta, 600) == "pad_token_id is 600, and the vocabulary has 600 tokens"
    assert said({"pad_token_id": 601}, None, LLAMA, None) is None


def test_the_formats_of_all_files_are_said():
    def why(known, *metadata):
        model = SimpleNamespace(
            config_json={"quantization_config": None} if "4" not in known.rules else {},
            has_weights=True,
            stored=named(tensor(E, V, D)),
            saved=SimpleNamespace(metadata=list(metadata)),
        )
        found = matrices.Matrices([tensor(E, V, D), None], name_set=0)
        return ties.versions_not_measured(model, known, found)

    sentence = 'transformers 4 may refuse a safetensors file with metadata that lack "format": "pt"'
    formats = ({"format": "pt"}, None, {"format": "np"}, {})
    assert why(LLAMA, *formats) == {"4": f"{sentence}: got 'np' and 'pt' and None"}
    assert why(replace(LLAMA, rules={"5": LLAMA.rules["5"]}), *formats) == {}


def test_another_flag_of_a_tie_has_the_value_that_was_measured():
    marian = kinds.read_class("marian", "MarianForCausalLM")
    name = "share_encoder_decoder_embeddings"
    assert marian.shares == {name: True}
    config = {name: False, "shared": True, "tie_it": 1, ties.FLAG: True}
    assert ties.other_ties(config, marian) == {name: True, "shared": False}
    assert ties.other_ties(config, None) == {name: False, "shared": False}


@pytest.mark.parametrize(
    ("reading", "state", "words"),
    [
        ("ab", "ab", "keeps both"),
        ("a0", "a.", "reads what is there"),
        ("a000", "a...", "reads what is there"),
        ("a0", "aa", "ties the head"),
        ("aa", "aa", "keeps the head apart"),
        ("abcd", "abcd", "keeps the head apart"),
        ("a0cd", "aacd", "ties the head"),
    ],
)
def test_what_a_reader_that_loses_nothing_does(reading, state, words):
    assert ties.what_is_kept(reading, state) == words


def test_all_copies_but_one_of_each_matrix_are_wasted():
    size = 4 * V * D
    apart = [tensor(str(n), V, D, start=n * size) for n in range(4)]
    one = [tensor(str(n), V, D) for n in range(4)]
    for tensors, state, copies in (
        (apart, "abcd", 0),
        (apart, "aaaa", 3),
        (apart, "aabb", 2),
        (apart, "abab", 2),
        (one, "aaaa", 0),
        (apart, "", 0),
    ):
        assert ties.wasted_bytes(matrices.Matrices(tensors), state) == copies * size


def test_the_matrices_of_an_encoder_and_a_decoder_are_all_told():
    stored = [tensor(T5.names[0][0], V, D), None, None, tensor(T5.names[0][3], V, D, dtype="F16")]
    found = matrices.Matrices(stored, name_set=0)
    told = ties.held_report(T5, found, matrices.Comparison("a..b", 0, V), "a00b")
    last = {"name": T5.names[0][3], "dtype": "F16", "shape": [V, D], "file": "a.bin"}
    assert told["more"] == [None, last]
    assert told["one"] == [list(T5.names[0][:3]), [T5.names[0][3]]]
    assert (told["equal_rows"], told["compared_rows"]) == (0, V)
    for reading in ("!", None):
        assert ties.held_report(T5, found, matrices.Comparison("a..b"), reading)["one"] == []
    unclear = matrices.Matrices(stored[:2], unclear=["a"])
    assert ties.held_report(LLAMA, unclear, matrices.Comparison(None), None)["holds"] is None


@pytest.mark.parametrize(
    ("version", "is_known"), [("4.57.6", True), ("40.1", False), ("5.0", False), (None, False)]
)
def test_what_transformers_4_saved_itself_it_loads(version, is_known):
    known = replace(LLAMA, not_read_by_4=True)
    config = {"transformers_version": version}
    model = SimpleNamespace(
        config_json=config,
        has_weights=True,
        stored=named(tensor(E, V, D)),
        saved=SimpleNamespace(metadata=[None]),
    )
    found = matrices.Matrices([tensor(E, V, D), None], name_set=0)
    assert ("4" not in ties.versions_not_measured(model, known, found)) == is_known
