"""The reports of `check` and `params` on small made models: a case for each part of a report."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.checkpoint_files import safetensors_content
from support.checks import refuses
from support.loopback_hub import INDEX, WEIGHTS

from tiedgpt.anymodel import kinds, matrices, ties
from tiedgpt.anymodel.headers import HubModel, open_any
from tiedgpt.anymodel.ties import FLAG, tie_report
from tiedgpt.checkpoints.tensors import Tensor
from tiedgpt.errors import CheckpointError

V, D = 40, 8
E = "model.embed_tokens.weight"  # the embedding of Llama
H = "lm_head.weight"
CONFIG = {"model_type": "llama", "vocab_size": V, "hidden_size": D, "d_model": D}
LLAMA = kinds.read_class("llama", "LlamaForCausalLM")
BERT = kinds.read_class("bert", "BertForMaskedLM")
T5 = kinds.read_class("t5", "T5ForConditionalGeneration")
GEMMA3 = kinds.read_class("gemma3", "Gemma3ForConditionalGeneration")
rng = np.random.default_rng(0)
VALUES = {letter: rng.normal(size=(V, D)).astype(np.float32) for letter in "abcd"}


def write(directory, config, arrays):
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    (directory / WEIGHTS).write_bytes(safetensors_content(arrays))
    return str(directory)


def write_class(directory, known, state, fields, name_set=0, more=None):
    """A model of a class: a letter of the state for each matrix, a dot for one that is left out."""
    config = {**CONFIG, "model_type": known.kind, "architectures": [known.name], **fields}
    names = known.names[name_set]
    arrays = {
        name: VALUES[letter] for name, letter in zip(names, state, strict=True) if letter != "."
    }
    return write(directory, config, arrays | (more or {}))


def class_of(name):
    return next(known for known in kinds.all_classes() if known.name == name)


def report_of(path):
    return tie_report("model", open_any(str(path)))


# The flag


FLAGS = {  # the fields of config.json, the class, and what of the report is not as in the first one
    "nothing": ({}, None, {}),
    "no text for a kind": ({"model_type": 3}, None, {}),
    "a kind": ({"model_type": "xyz"}, None, {"kind": "xyz"}),
    "a class": ({"architectures": ["XyzForCausalLM"]}, None, {}),
    "untied": ({FLAG: False}, None, {"said": {"": False}, "word": "f", "tied": False}),
    "at two places": (
        {"a": {FLAG: True}, "b": {FLAG: True}, "c": {}, "d": 1},
        None,
        {"said": {"a": True, "b": True}, "word": "-tt", "tied": True, "place": f"a.{FLAG}"},
    ),
    "two that differ": (
        {"a": {FLAG: False}, "b": {FLAG: True}},
        None,
        {"said": {"a": False, "b": True}, "word": "-ft", "place": f"a.{FLAG}"},
    ),
    "the default of Llama": (
        {"model_type": "llama"},
        LLAMA,
        {"kind": "llama", "class": LLAMA.name, "tied": False},
    ),
    "in a part that Llama has not": (
        {"model_type": "llama", FLAG: True, "text_config": {FLAG: False}},
        LLAMA,
        {"kind": "llama", "class": LLAMA.name, "said": {"": True}, "word": "t", "tied": True},
    ),
    "in both parts": (
        {"model_type": "gemma3", FLAG: True, "text_config": {FLAG: True}},
        GEMMA3,
        {
            "kind": "gemma3",
            "class": GEMMA3.name,
            "said": {"": True, "text_config": True},
            "word": "tt",
            "tied": True,
        },
    ),
    "in a part of another kind": (
        {"model_type": "gemma3", "text_config": {FLAG: True, "model_type": "xyz"}},
        GEMMA3,
        {
            "kind": "gemma3",
            "class": GEMMA3.name,
            "said": {"text_config": True},
            "word": "-t",
            "tied": True,
            "place": f"text_config.{FLAG}",
        },
    ),
    "untied, in a part of another kind": (
        {"model_type": "gemma3", FLAG: False, "text_config": {FLAG: False, "model_type": "xyz"}},
        GEMMA3,
        {
            "kind": "gemma3",
            "class": GEMMA3.name,
            "said": {"": False, "text_config": False},
            "word": "ff",
            "tied": False,
        },
    ),
    "no flag in a part of another kind": (
        {"model_type": "gemma3", FLAG: True, "text_config": {"model_type": "xyz"}},
        GEMMA3,
        {"kind": "gemma3", "class": GEMMA3.name, "said": {"": True}, "word": "t-"},
    ),
    "a class without a head": (
        {"model_type": "llama", "architectures": ["LlamaModel"]},
        None,
        {"kind": "llama", "class_without_head": "LlamaModel"},
    ),
}


def test_what_config_json_says_of_the_flag():
    for config, known, differences in FLAGS.values():
        expected = {
            "kind": None,
            "class": None,
            "said": {},
            "word": "-",
            "tied": None,
            "place": FLAG if "" in differences.get("said", {}) else None,
            "class_without_head": None,
        }
        assert ties.read_flag("model", config, known) == expected | differences


# The adapter beside a model


def write_adapter(directory, name, path):
    """An adapter of PEFT with one tensor, for the model at a path."""
    config = {"peft_type": "LORA", "base_model_name_or_path": path}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    content = safetensors_content({f"base_model.model.{name}": VALUES["a"]})
    (directory / "adapter_model.safetensors").write_bytes(content)


@pytest.mark.parametrize(
    ("known", "state", "fields", "verdict"),
    [
        pytest.param(BERT, "a.", {FLAG: True, "dtype": "auto"}, "conflict", id="by the flag"),
        pytest.param(
            kinds.read_class("glmasr", "GlmAsrForConditionalGeneration"),
            "a.",
            {"text_config": {"vocab_size": V, "hidden_size": D}},
            "conflict",
            id="by transformers",
        ),
        pytest.param(
            GEMMA3,
            "a.",
            {FLAG: True, "dtype": "auto", "text_config": {FLAG: False}},
            "not known",
            id="by one of two flags",
        ),
        pytest.param(LLAMA, "ab", {FLAG: False}, "untied", id="untied"),
    ],
)
def test_an_adapter_changes_a_tie_that_config_json_or_transformers_has(
    tmp_path, known, state, fields, verdict
):
    path = write_class(tmp_path, known, state, fields)
    write_adapter(tmp_path, known.names[0][1].replace(".weight", ".lora_A.weight"), path)
    report = report_of(path)
    assert (report["verdict"], report["changed_by_adapter"]) == (verdict, ["head"])
    assert report["conflict"].startswith("the model is tied") == (verdict == "conflict")


# Files that were not read


def test_another_file_that_may_be_read_is_the_reason_though_there_is_one_already(tmp_path):
    """transformers 4 has no Afmoe, which leaves the verdict of version 5."""
    known = kinds.read_class("afmoe", "AfmoeForCausalLM")
    path = write_class(tmp_path, known, "a.", {FLAG: True})
    assert report_of(path)["verdict"] == "tied"
    for file in ("a.pt", "b.safetensors", "c.safetensors"):
        (tmp_path / file).touch()
    report = report_of(path)
    assert (report["verdict"], report["not_read"]) == (
        "not known",
        ["a.pt", "b.safetensors", "c.safetensors"],
    )
    sentence = "vLLM-like programs may read b.safetensors, which was not looked at"
    assert report["not_measured"] == sentence
    # An adapter of which it is not known what a merge makes of the tie is a reason, too.
    write_adapter(tmp_path, known.names[0][1], path)
    assert report_of(path)["not_measured"] == sentence
    for file in ("b.safetensors", "c.safetensors"):
        (tmp_path / file).unlink()
    because_of_adapter = "what a merge of the adapter, which changes the head, makes of the tie"
    assert report_of(path)["not_measured"] == because_of_adapter


def test_files_beside_a_file_that_was_asked_for_are_not_looked_at(tmp_path):
    path = write_class(tmp_path, LLAMA, "ab", {FLAG: False})
    (tmp_path / "a.safetensors").touch()
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {E: "a.safetensors"}}))
    assert report_of(path)["verdict"] == "not known"
    report = report_of(tmp_path / WEIGHTS)
    assert (report["verdict"], report["not_read"]) == ("untied", [])


def test_which_files_beside_may_hold_weights(tmp_path):
    path = write_class(tmp_path, LLAMA, "ab", {FLAG: False})
    weights = ["old_optimizer.bin", "upscaler.pt"]
    others = ["model.safetensors.orig", "pytorch_model.bin.index.json", "sampler.pt"]
    for file in weights + others:
        (tmp_path / file).touch()
    assert report_of(path)["not_read"] == weights


def test_all_files_of_an_index_were_read(tmp_path):
    path = write_class(tmp_path, LLAMA, "ab", {FLAG: True})
    (tmp_path / WEIGHTS).unlink()
    weight_map = {E: "a.safetensors", H: "b.safetensors"}
    for letter, (name, file) in zip("ab", weight_map.items(), strict=True):
        (tmp_path / file).write_bytes(safetensors_content({name: VALUES[letter]}))
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": weight_map}))
    report = report_of(path)
    assert (report["not_read"], report["holds"]) == ([], "different")
    assert [mend["flags"] for mend in report["mends"]] == [{"": False}]


def test_a_folder_without_weights_and_without_config_json_is_refused(tmp_path):
    message = refuses("is not a checkpoint", report_of, tmp_path)
    assert message == (
        f"{tmp_path} is not a checkpoint: it has neither model.safetensors nor "
        "model.safetensors.index.json (see weights/README.md, Checkpoints of other programs)"
    )


# Parameters


def test_the_matrices_of_an_encoder_or_a_decoder_are_compared_for_the_counts(tmp_path):
    """T5's encoder and decoder are one with the embedding only if they equal it."""
    for state, tied, untied in (("abc.", 1, 3), ("ab.c", 1, 3), ("aabb", 3, 4)):
        path = write_class(tmp_path, T5, state, {FLAG: True})
        for counted in (report_of(path)["parameters"], ties.size_report("model", open_any(path))):
            totals = counted["tied"]["total"], counted["untied"]["total"]
            assert totals == (tied * V * D, untied * V * D), state


def test_params_has_the_shape_of_the_stored_embedding(tmp_path):
    """RemBERT's head is wider."""
    known = kinds.read_class("rembert", "RemBertForMaskedLM")
    embedding, head = known.names[0]
    config = {**CONFIG, "model_type": "rembert", "architectures": [known.name], FLAG: False}
    config |= {"input_embedding_size": D - 1, "output_embedding_size": D + 1}
    arrays = {embedding: np.ones((V, D - 1), np.float32), head: np.ones((V, D + 1), np.float32)}
    model = open_any(write(tmp_path, config, arrays))
    assert ties.size_report("model", model)["shape"] == (V, D - 1)


def test_params_names_both_shapes_that_config_json_contradicts(tmp_path):
    arrays = {E: VALUES["a"][1:], H: VALUES["b"][1:]}
    said = [
        f"the shape of {name} is {V - 1} x {D}, but vocab_size is {V} in config.json"
        for name in arrays
    ]
    model = open_any(write(tmp_path, {**CONFIG, FLAG: False}, arrays))
    with pytest.raises(CheckpointError) as caught:
        ties.size_report("mine", model)
    assert str(caught.value) == f"mine: its parameters are not known: {'; '.join(said)}"


@pytest.mark.parametrize(
    ("rows", "state", "is_counted"),
    [(V, "a.", True), (V - 1, "a.", False), (None, "a.", True), (V - 1, "ab", False)],
)
def test_a_head_with_other_rows_that_is_not_stored_is_not_counted(
    tmp_path, rows, state, is_counted
):
    """Inkling's head may have fewer rows than its embedding."""
    known = class_of("Inkling2ForCausalLM")
    path = write_class(tmp_path, known, state, {FLAG: False, "unpadded_vocab_size": rows})
    assert (report_of(path)["parameters"] is not None) == is_counted


def test_a_repository_without_safetensors_has_the_parameters_of_its_config_json():
    """What its files hold is not known."""
    sizes = {"intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2}
    empty = SimpleNamespace(label="owner/model", read_range=lambda *_, **__: None)
    model = HubModel(CONFIG | sizes, empty)
    report = ties.size_report("model", model)
    assert (report["source"], report["shape"]) == ("config.json", (V, D))
    assert (report["difference"], report["not_looked_at"]) == (V * D, None)
    with pytest.raises(CheckpointError, match="owner/model has neither model"):
        tie_report("model", model)


# Why it is not known


def test_of_several_reasons_the_first_is_said(tmp_path):
    """What config.json names is looked at from the outside in, and then the files."""
    reasons = {  # the reason -> the fields of config.json that no longer give it
        "config.json has text_config, which LlamaForCausalLM has not": {"text_config": None},
        "shared_it, with its value in config.json, was not measured": {"shared_it": False},
        "config.json says that the model is quantised": {"quantization_config": False},
    }
    config = {**CONFIG, FLAG: False, "text_config": {}, "shared_it": True}
    config |= {"quantization_config": {}, "dtype": "auto"}
    bias = "model.lm_head.bias"
    arrays = {E: VALUES["a"], f"model.{H}": VALUES["b"], bias: np.ones(V - 1, np.float32)}
    for reason, fields in reasons.items():
        assert report_of(write(tmp_path, config, arrays))["not_measured"] == reason
        config |= fields
    for name in ("quantization_config", "dtype"):
        del config[name]
    sentence = f"the shape of {bias} is {V - 1}, and model.{H} has {V} rows"
    assert report_of(write(tmp_path, config, arrays))["not_measured"] == sentence


def test_all_tensors_that_may_be_the_head_are_named(tmp_path):
    arrays = {E: VALUES["a"], "table.weight": VALUES["b"], "other.weight": VALUES["c"]}
    report = report_of(write(tmp_path, {**CONFIG, FLAG: True}, arrays))
    assert report["not_measured"] == "these may be the matrices: other.weight, table.weight"
    assert report["unclear"] == ["other.weight", "table.weight"]


ROBERTA = kinds.read_class("roberta", "RobertaForMaskedLM")
GEMMA3_TEXT = kinds.read_class("gemma3_text", "Gemma3ForCausalLM")
SIZES = {"vocab_size": V, "hidden_size": D}
FLAT = (
    "config.json has hidden_size and no text_config: Gemma3ForConditionalGeneration was measured "
    "with hidden_size in text_config alone"
)


def test_what_was_not_measured_at_its_place():
    for known, config, sentence in (
        (GEMMA3, {"text_config": SIZES}, None),
        (GEMMA3, SIZES, FLAT),
        (GEMMA3, {"text_config": None, **SIZES}, FLAT),
        (
            GEMMA3,
            {"hidden_size": "8"},
            "config.json does not say text_config.hidden_size, as a whole number",
        ),
        (
            GEMMA3,
            {"text_config": {**SIZES, "model_type": ""}},
            "Gemma3ForConditionalGeneration was not measured with a text_config of kind ''",
        ),
        (
            class_of("RemBertForMaskedLM"),
            {"vocab_size": V, "input_embedding_size": D},
            "config.json does not say output_embedding_size, as a whole number",
        ),
        (
            class_of("Gemma4ForCausalLM"),
            {**SIZES, "per_layer_config": {FLAG: False}},
            f"per_layer_config.{FLAG} in config.json was not measured",
        ),
    ):
        assert ties.place_not_measured(config, known) == sentence


PAD = "pad_token_id is {}, and the vocabulary has {} tokens"
OTHER_VALUE = "{}, with its value in config.json, was not measured"
QUANTISED = "config.json says that the model is quantised"


def test_what_setting_was_not_measured():
    for known, config, sentence in (
        (LLAMA, {"decoder_vocab_size": None, **SIZES}, OTHER_VALUE.format("decoder_vocab_size")),
        (LLAMA, {"decoder_vocab_size": None}, None),
        (GEMMA3, {"text_config": {**SIZES, "pad_token_id": V}}, PAD.format(V, V)),
        (GEMMA3, {"vocab_size": V, "text_config": {"pad_token_id": V}}, None),
        # The sizes of Bamba were measured at no place: they stand at the usual ones.
        (class_of("BambaForCausalLM"), {**SIZES, "pad_token_id": V}, PAD.format(V, V)),
        (class_of("GlmForCausalLM"), SIZES, PAD.format(151329, V)),
        (class_of("GlmForCausalLM"), {**SIZES, "pad_token_id": None, "a": {}}, None),
        (ROBERTA, {"vocab_size": 999, "pad_token_id": 600, "max_position_embeddings": None}, None),
        (LLAMA, {"a": {}, "b": {"quantization_config": 0}}, QUANTISED),
    ):
        assert ties.setting_not_measured(config, known) == sentence


def tensor(name, start=0, rows=V, file="a.bin"):
    return Tensor(Path(file), name, "F32", (rows, D), start, start + 4 * rows * D, memory=b"")


def test_each_two_matrices_may_share_a_part_of_their_memory():
    """rows: of the last matrix."""
    for starts, rows, sentence in (
        ((0, 1, 2, 3), V, None),
        ((0, 1, 2, 0), V, None),  # one matrix by two names
        ((0, 1, 2, 0), V - 1, "{0} and {3} share a part of their memory in the file"),
        ((0, 1, 1.5, 4), V, "{1} and {2} share a part of their memory in the file"),
        ((0, 1, 3, 3.5), V, "{2} and {3} share a part of their memory in the file"),
    ):
        names = T5.names[0]
        stored = [
            tensor(name, start=int(start * 4 * V * D), rows=rows if name == names[-1] else V)
            for name, start in zip(names, starts, strict=True)
        ]
        found = matrices.Matrices(stored, name_set=0)
        model = SimpleNamespace(stored={})
        said = ties.file_not_measured(model, T5, found, name_set=0)
        assert said == (sentence and sentence.format(*names))


def test_two_matrices_that_end_at_one_place_share_a_part():
    size = 4 * D
    stored = [tensor(E), tensor(H, start=size, rows=V - 1)]
    said = ties.file_not_measured(
        SimpleNamespace(stored={}), LLAMA, matrices.Matrices(stored, name_set=0), name_set=0
    )
    assert said == f"{E} and {H} share a part of their memory in the file"


def test_which_matrices_stay_one_in_an_untied_model():
    for reading, one, names in (  # one: the numbers of the matrices that are one in the file
        ("a0", "01", []),
        ("ab", "01", ["0", "1"]),
        ("ab", "", []),
        ("ab00", "23", []),
        ("ab00", "03", []),
        ("ab00", "12", ["1", "2"]),
        ("ab00", "13", ["1", "3"]),
        ("a?00", "023", []),
        ("abcd", "23", []),
        ("ab1d", "02", ["0", "2"]),
    ):
        stored = [
            None if letter == "?" else tensor(number, start=0 if number in one else n << 20)
            for n, (number, letter) in enumerate(zip("0123", reading, strict=False), start=1)
        ]
        found = matrices.Matrices(stored, name_set=0)
        assert ties.stay_one(found, reading) == names, (reading, one)
        assert ties.stay_one(found, "!") == []


def versions_not_measured(known, stored, name_set=0, **config):
    names = known.names[name_set]
    found = matrices.Matrices([stored.get(name) for name in names], name_set=name_set)
    saved = SimpleNamespace(metadata=[None])
    model = SimpleNamespace(config_json=config, has_weights=True, stored=stored, saved=saved)
    return ties.versions_not_measured(model, known, found)


def test_the_first_tensor_of_a_larger_model_is_named():
    for others, name in (
        (["b.language_model.a"], None),
        (["language_models.a", "language_model.b"], "language_models.a"),
        (["model.language_model"], None),
    ):
        stored = {each: tensor(each) for each in (E, H, *others)}
        sentence = (
            f"beside '{name}' transformers 4 may not look for the matrices under their usual names"
        )
        expected = {} if name is None else {"4": sentence}
        assert versions_not_measured(GEMMA3_TEXT, stored) == expected


def test_a_head_that_has_the_prefix_of_a_larger_model_is_a_matrix():
    names = (E, f"language_model.{H}")
    name_set = GEMMA3_TEXT.names.index(names)
    stored = {name: tensor(name) for name in names}
    assert versions_not_measured(GEMMA3_TEXT, stored, name_set=name_set) == {}


def test_what_transformers_4_cannot_load_is_said_after_what_an_adapter_makes_of_it(tmp_path):
    path = write_class(tmp_path, LLAMA, "a.", {FLAG: True, "quantization_config": None})
    write_adapter(tmp_path, "layers.0.q_proj.lora_A.weight", "owner/base")
    report = report_of(path)
    assert (report["transformers4"], report["transformers"]) == (None, "tied")
    sentence = 'transformers 4 fails at "quantization_config": null in config.json'
    assert report["not_measured"] == sentence


# Who reads what


STATE_NOT_MEASURED = "was not measured with transformers {} in this state of flags and files"


def test_how_a_version_reads_a_state():
    found = matrices.Matrices([tensor(E), tensor(H, start=1 << 20)])
    for version, changes, name_set, state, reading, sentence in (
        ("5", {}, 0, "a.", "a0", None),
        ("4", {"versions": ("5",)}, 0, "a.", None, "transformers 4 has no {}"),
        ("5", {"versions": ("4",)}, 0, "a.", None, "transformers 5 has no {}"),
        ("4", {"rules": {}}, 0, "a.", None, "{} was not measured with transformers 4"),
        ("5", {"rules": {}}, 0, "a.", None, "{} was not measured with transformers 5"),
        ("4", {}, 0, ".a", "!", None),
        ("4", {}, 1, "ab", None, "{} " + STATE_NOT_MEASURED.format(4)),
        ("5", {}, 0, "..", None, "{} " + STATE_NOT_MEASURED.format(5)),
    ):
        known = replace(LLAMA, **changes)
        said = ties.read_by(version, known, "t", found, name_set, state)
        assert said == (reading, sentence and sentence.format(LLAMA.name))


def test_an_error_that_was_measured_with_other_names_is_known():
    known = kinds.read_class("aria", "AriaForConditionalGeneration")
    assert known.absent_prefixes[1] == ""
    found = matrices.Matrices([None, tensor(known.names[1][1])], name_set=1)
    assert ties.read_by("4", known, "tt", found, 1, ".a") == ("!", None)


def test_a_flag_that_was_measured_as_true_leaves_the_rule():
    found = matrices.Matrices([tensor(E), tensor(H)], name_set=0)
    known = replace(LLAMA, shares={"share_it": True})
    for value in (True, False):
        assert ties.goes_by_the_flag({"share_it": value}, known, found) is value


# What is said of a conflict


def conflict_of(known, readings, state="ab", said=None):
    flag = {"said": said or {"": True}, "tied": True, "place": FLAG}
    names = known.names[0]
    found = matrices.Matrices([tensor(names[0]), tensor(names[1])], name_set=0)
    return ties.describe_conflict(known, flag, found, matrices.Comparison(state), readings)


def test_a_class_is_never_tied_by_transformers_5_if_that_was_measured():
    says = "config.json says tied, and the files have another head"
    never = "; transformers 5 never ties {0}"
    for name, ending in (
        ("BigBirdPegasusForCausalLM", never),
        ("KimiLinearForCausalLM", never),
        ("LlamaForCausalLM", ""),
        ("NezhaForMaskedLM", ""),  # transformers 5 has none
        ("MarianForCausalLM", ""),  # it was measured with transformers 4 alone
    ):
        known = class_of(name)
        sentence = f"{says}: vLLM-like programs drop {known.names[0][1]}{ending}"
        assert conflict_of(known, {"others": "a0"}) == sentence.format(name)


def test_readers_that_do_the_same_are_told_together():
    says = "config.json says tied, and the files have another head"
    all_readers = {"transformers4": "a0", "transformers": "a0", "others": "!"}
    together = f"transformers 4 and transformers 5 drop {H}; vLLM-like programs cannot read it"
    assert conflict_of(LLAMA, all_readers) == f"{says}: {together}"
    all_readers = {"transformers4": "!", "transformers": "ab", "others": "!"}
    together = "transformers 4 and vLLM-like programs cannot read it; transformers 5 keeps both"
    assert conflict_of(LLAMA, all_readers) == f"{says}: {together}"


def test_a_flag_in_a_part_is_no_default():
    flag = {"said": {"text_config": False}, "tied": False, "place": f"text_config.{FLAG}"}
    sentence = "config.json says untied, and the files have no head"
    assert ties.said_and_held(flag, "a.") == sentence


# What the files hold


def test_which_of_three_matrices_are_one_by_the_names_in_the_files():
    known = kinds.read_class("prophetnet", "ProphetNetForCausalLM")
    names = known.names[2]
    stored = [tensor(name) for name in names]
    found = matrices.Matrices(stored, name_set=2)
    told = ties.held_report(known, found, matrices.Comparison("aba"), "ab0")
    assert told["one"] == [[names[0], names[2]], [names[1]]]
    assert [each["name"] for each in told["more"]] == [names[2]]
    assert (told["usual"], told["holds"]) == (True, "different")


def test_the_copies_of_matrices_that_cannot_be_compared_waste_nothing_that_is_known():
    names = T5.names[0]
    stored = [tensor(name, start=number << 20) for number, name in enumerate(names)]
    found = matrices.Matrices(stored, quantised=set(names), name_set=0)
    told = ties.held_report(T5, found, matrices.Comparison(None), None)
    assert (told["wasted_bytes"], told["holds"]) == (0, "not comparable")


def test_the_first_copy_is_the_one_that_is_not_wasted():
    sizes = (V, V // 2)  # two copies of unequal size, so that it matters which one is the first
    stored = [tensor(str(rows), start=rows << 20, rows=rows) for rows in sizes]
    assert ties.wasted_bytes(matrices.Matrices(stored), "aa") == 4 * D * sizes[1]


# What the reports do not speak of


def test_what_is_not_looked_at_is_said_whole(tmp_path):
    model = open_any(write_class(tmp_path, LLAMA, "a.", {FLAG: True, "_name_or_path": "other"}))
    reports = tie_report("mine", model), ties.size_report("mine", model)
    assert [report["model"] for report in reports] == ["mine", "mine"]
    assert reports[0]["not_looked_at"] == (
        "whether the rest of config.json and of the files loads, and whether the class has more or "
        "fewer parameters"
    )
    assert reports[1]["not_looked_at"] == (
        "which of the stored tensors the class leaves out, and which others it has"
    )


def test_params_refuses_a_flag_that_is_none_with_the_models_name(tmp_path):
    for fields, shown in (({FLAG: None}, "None"), ({"text_config": {FLAG: "yes"}}, "'yes'")):
        model = open_any(write_class(tmp_path, LLAMA, "a.", fields))
        with pytest.raises(CheckpointError) as caught:
            ties.size_report("mine", model)
        assert str(caught.value) == (
            f"mine: {FLAG} in config.json must be true or false, got {shown}: how programs read "
            "this was not measured"
        )


def test_a_config_json_by_itself_says_nothing_of_the_files_beside(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({**CONFIG, FLAG: True}))
    (tmp_path / "model.gguf").touch()
    refuses("model.gguf", report_of, tmp_path)
    report = report_of(tmp_path / "config.json")
    assert (report["verdict"], report["others"], report["tensors"]) == ("not known", None, 0)
    assert report["not_measured"] == "config.json alone was read"


def test_a_kind_that_is_null_is_none(tmp_path):
    path = write(tmp_path, {**CONFIG, "model_type": None}, {E: VALUES["a"]})
    sentence = "a model without a model_type in a config.json was not measured"
    assert report_of(path)["not_measured"] == sentence


def test_matrices_that_rounding_may_make_one_in_a_class_of_transformers_5_alone(tmp_path):
    known = kinds.read_class("afmoe", "AfmoeForCausalLM")
    head = {known.names[0][1]: VALUES["a"] * np.float32(1 + 1e-6)}
    report = report_of(write_class(tmp_path, known, "a.", {FLAG: False}, more=head))
    assert (report["transformers4"], report["transformers"]) == (None, None)
    sentence = "the matrices differ by less than bfloat16 or float16 may round"
    assert (report["holds"], report["not_measured"]) == ("different", sentence)


def test_a_bias_that_is_no_parameter_of_its_own_may_differ(tmp_path):
    """Nezha has it once in any case."""
    known = class_of("NezhaForMaskedLM")
    biases = {"cls.predictions.bias": np.zeros(V, np.float32)}
    biases["cls.predictions.decoder.bias"] = np.ones(V, np.float32)
    report = report_of(write_class(tmp_path, known, "a.", {FLAG: True}, more=biases))
    assert report["parameters"]["tied"]["total"] == V * D + V
