"""The reports of `check` and `params` on small made models: a case for each part of a report."""

import json
from dataclasses import replace

import numpy as np
import pytest
from support.checkpoint_files import safetensors_content
from support.commands import answer, assert_one_error_line
from support.loopback_hub import INDEX, WEIGHTS

from tiedgpt.anymodel import kinds, ties
from tiedgpt.anymodel.headers import open_any
from tiedgpt.anymodel.ties import FLAG, tie_report

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


@pytest.mark.parametrize(("config", "known", "differences"), FLAGS.values(), ids=FLAGS)
def test_what_config_json_says_of_the_flag(config, known, differences):
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


def write_adapter(directory, head, path):
    """An adapter of PEFT with LoRA for the head, whose module has this name."""
    config = {"peft_type": "LORA", "base_model_name_or_path": path}
    (directory / "adapter_config.json").write_text(json.dumps(config))
    content = safetensors_content({f"base_model.model.{head}.lora_A.weight": VALUES["a"][:3]})
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
    write_adapter(tmp_path, known.names[0][1].removesuffix(".weight"), path)
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


def test_files_beside_a_file_that_was_asked_for_are_not_looked_at(tmp_path):
    path = write_class(tmp_path, LLAMA, "ab", {FLAG: False})
    (tmp_path / "a.safetensors").touch()
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {E: "a.safetensors"}}))
    assert report_of(path)["verdict"] == "not known"
    report = report_of(tmp_path / WEIGHTS)
    assert (report["verdict"], report["not_read"]) == ("untied", [])


@pytest.mark.parametrize(
    ("file", "is_weights"),
    [
        ("upscaler.pt", True),
        ("model.safetensors.orig", False),
        ("pytorch_model.bin.index.json", False),
        ("sampler.pt", False),
    ],
)
def test_which_files_beside_may_hold_weights(tmp_path, file, is_weights):
    path = write_class(tmp_path, LLAMA, "ab", {FLAG: False})
    (tmp_path / file).touch()
    assert report_of(path)["not_read"] == ([file] if is_weights else [])


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


def test_a_folder_without_weights_and_without_config_json_is_refused(tmp_path, run):
    assert_one_error_line(run("check", str(tmp_path)), str(tmp_path))


# Parameters


@pytest.mark.parametrize("letters", ["abc.", "ab.c", "aabb"])
def test_the_matrices_of_an_encoder_or_a_decoder_are_compared_for_the_counts(
    tmp_path, run, letters
):
    """T5's encoder and decoder are one with the embedding only if they equal it."""
    path = write_class(tmp_path, T5, letters, {FLAG: True})
    document = answer(run, "params", path)
    tied, untied = {"abc.": (1, 3), "ab.c": (1, 3), "aabb": (3, 4)}[letters]
    assert (document["tied"]["total"], document["untied"]["total"]) == (
        tied * V * D,
        untied * V * D,
    )
    counted = report_of(path)["parameters"]
    assert counted == {name: document[name] for name in counted}


def test_params_has_the_shape_of_the_stored_embedding(tmp_path, run):
    """RemBERT's head is wider."""
    known = kinds.read_class("rembert", "RemBertForMaskedLM")
    embedding, head = known.names[0]
    config = {**CONFIG, "model_type": "rembert", "architectures": [known.name], FLAG: False}
    config |= {"input_embedding_size": D - 1, "output_embedding_size": D + 1}
    arrays = {embedding: np.ones((V, D - 1), np.float32), head: np.ones((V, D + 1), np.float32)}
    assert answer(run, "params", write(tmp_path, config, arrays))["shape"] == [V, D - 1]


def test_params_names_both_shapes_that_config_json_contradicts(tmp_path, run):
    arrays = {E: VALUES["a"][1:], H: VALUES["b"][1:]}
    said = [
        f"the shape of {name} is {V - 1} x {D}, but vocab_size is {V} in config.json"
        for name in arrays
    ]
    path = write(tmp_path, {**CONFIG, FLAG: False}, arrays)
    sentence = f"{path}: its parameters are not known: {'; '.join(said)}\n"
    assert_one_error_line(run("params", path), sentence)


@pytest.mark.parametrize(
    ("rows", "state", "is_counted"),
    [(V, "a.", True), (V - 1, "a.", False), (None, "a.", True), (V - 1, "ab", False)],
)
def test_a_head_with_other_rows_that_is_not_stored_is_not_counted(
    tmp_path, rows, state, is_counted
):
    """Inkling's head may have fewer rows than its embedding."""
    known = next(known for known in kinds.all_classes() if known.name == "Inkling2ForCausalLM")
    path = write_class(tmp_path, known, state, {FLAG: False, "unpadded_vocab_size": rows})
    assert (report_of(path)["parameters"] is not None) == is_counted


def test_params_of_a_repository_without_safetensors_are_those_of_config_json(hub_server, run):
    sizes = {"intermediate_size": 4, "num_hidden_layers": 1, "num_attention_heads": 2}
    hub_server.put("owner/model", {"config.json": json.dumps(CONFIG | sizes).encode()})
    document = answer(run, "params", "owner/model")
    assert (document["source"], document["shape"]) == ("config.json", [V, D])
    assert document["difference"] == V * D


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


def test_two_versions_that_read_a_head_that_differs_agree(tmp_path):
    report = {
        "conflict": "",
        "flag": {"class_without_head": None, "tied": True},
        "tensors": 2,
        "holds": "different",
        "transformers4": "untied",
        "transformers": "untied",
    }
    assert ties.verdict(report, None) == ties.verdict(report, LLAMA) == "untied"
    assert ties.verdict(report, replace(LLAMA, versions=("5",))) == "untied"
