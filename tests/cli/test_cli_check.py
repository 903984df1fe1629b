"""What `tiedgpt check` prints, and its exit code. What it finds is in tests/anymodel."""

import json

import numpy as np
import pytest
from support.checkpoint_files import safetensors_content
from support.commands import assert_one_error_line
from support.torch_files import torch_file

E = "model.embed_tokens.weight"
H = "lm_head.weight"
MATRIX = np.arange(20, dtype=np.float32).reshape(10, 2)


@pytest.fixture
def model(tmp_path):
    """model(name, tensors, **fields) -> a folder with a model of Llama's kind."""

    def model(name, tensors, **fields):
        folder = tmp_path / name
        folder.mkdir()
        config = {"model_type": "llama", "vocab_size": 10, "hidden_size": 2, **fields}
        (folder / "config.json").write_text(json.dumps(config))
        if tensors:
            (folder / "model.safetensors").write_bytes(safetensors_content(tensors))
        return str(folder)

    return model


BART = {
    "model_type": "bart",
    "architectures": ["BartForConditionalGeneration"],
    "d_model": 2,
}
CASES = {  # tensors, fields of config.json, exit code, how the answer begins, words of the table
    "tied": ({E: MATRIX}, {"tie_word_embeddings": True}, 0, "tied", ["tied"]),
    "untied": (
        {E: MATRIX, H: MATRIX + 1},
        {"tie_word_embeddings": False},
        0,
        "untied",
        ["config.json untied where it says so", "10 x 2", "0 of 10"],
    ),
    "one matrix": ({E: MATRIX}, {"tie_word_embeddings": True}, 0, "tied", ["one matrix"]),
    "two equal ones": (
        {E: MATRIX, H: MATRIX},
        {"tie_word_embeddings": False},
        0,
        "untied",
        ["two equal ones", "equal rows 10 of 10 transformers 4", "bytes of the copy 80"],
    ),
    "two different ones": (
        {E: MATRIX, H: MATRIX + 1},
        {"tie_word_embeddings": False},
        0,
        "untied",
        ["two different ones", "untied has more by 100.0%", "tied has less by 50.0%"],
    ),
    "quantised": (
        {E: MATRIX, H: np.ones((10, 2), np.uint8)},
        {"tie_word_embeddings": True},
        1,
        "not known: ",
        ["two, quantised"],
    ),
    "a head of another size": (
        {E: MATRIX, H: np.ones((10, 4), np.float32)},
        {"tie_word_embeddings": False},
        1,
        "not known: ",
        ["the files hold not known"],
    ),
    "no head": (
        {E: MATRIX},
        {"architectures": ["LlamaModel"]},
        0,
        "no head: config.json says LlamaModel, which has no output matrix ",
        [],
    ),
    "a head that is left out": (
        {E: MATRIX, H: MATRIX},
        {"architectures": ["LlamaModel"]},
        0,
        "no head: config.json says LlamaModel, which has no output matrix; it leaves out "
        "lm_head.weight, which the files have",
        [],
    ),
    "of an encoder and a decoder": (
        {"model.shared.weight": MATRIX},
        {**BART, "tie_word_embeddings": True},
        0,
        "tied",
        ["one matrix for transformers 5: model.shared.weight, lm_head.weight, model.encoder"],
    ),
    "of a class that transformers 4 has not": (
        {E: MATRIX},
        {"model_type": "afmoe", "tie_word_embeddings": True},
        0,
        "tied",
        ["transformers 4 reads no such class", "transformers 5 reads tied"],
    ),
    "default": ({E: MATRIX, H: MATRIX + 1}, {}, 0, "untied", ["untied by default"]),
    "conflict": (
        {E: MATRIX, H: MATRIX + 1},
        {"tie_word_embeddings": True},
        1,
        "conflict: ",
        ["0 of 10"],
    ),
    "the head alone": (
        {H: MATRIX},
        {"tie_word_embeddings": True},
        1,
        "conflict: config.json says tied, and the files have no embedding",
        ["their shape 10 x 2", "the files hold one matrix", "head lm_head.weight"],
    ),
    "more than two": (
        {"model.shared.weight": MATRIX, "model.encoder.embed_tokens.weight": MATRIX, H: MATRIX + 1},
        {**BART, "tie_word_embeddings": True},
        1,
        "conflict: ",
        ["other matrices model.encoder.embed_tokens.weight their shape"],
    ),
    "more than three": (
        {
            "model.shared.weight": MATRIX,
            "model.encoder.embed_tokens.weight": MATRIX,
            "model.decoder.embed_tokens.weight": MATRIX,
            H: MATRIX + 1,
        },
        {**BART, "tie_word_embeddings": True},
        1,
        "conflict: ",
        ["other matrices model.encoder.embed_tokens.weight, model.decoder.embed_tokens.weight"],
    ),
    "not known": (
        {E: MATRIX},
        {"model_type": "new"},
        1,
        "not known: ",
        [
            "config.json not known embedding",
            "transformers 5 reads not known vLLM-like, by rule not",
        ],
    ),
    "not known, by the flag": (
        {E: MATRIX, H: MATRIX + 1},
        {"model_type": "new", "tie_word_embeddings": False},
        1,
        "not known: ",
        ["; untied, if the program goes by the flag"],
    ),
    "config alone": (
        {},
        {"tie_word_embeddings": True},
        1,
        "not known: config.json alone was read, and says tied",
        [],
    ),
}


@pytest.mark.parametrize(
    ("tensors", "fields", "code", "answer", "words"), CASES.values(), ids=CASES
)
def test_the_answer_and_the_table(run, model, tensors, fields, code, answer, words):
    name = model("model", tensors, **fields)
    result, out, err = run("check", name)
    assert (result, err) == (code, "")
    text = " ".join(out.split())  # lines are filled
    assert text.startswith(f"{name}: {answer}")
    for word in words:
        assert word in text
    if answer == "untied":
        assert "one matrix for" not in text
    assert ("Not looked at: " in text) == bool(tensors)


@pytest.mark.parametrize("tensors", [{}, {E: MATRIX}], ids=["config-alone", "with-weights"])
def test_what_a_count_is_from(run, model, tensors):
    layers = {"num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 3}
    name = model("model", tensors, tie_word_embeddings=True, **layers)
    code, out, _ = run("params", name)
    assert code == 0
    source = "the headers of the weights" if tensors else "config.json"
    assert f"\nCounted from {source}" in out
    assert ("Not looked at: " in out) == bool(tensors)


def test_a_model_that_cannot_be_read_counts_more_than_a_conflict(run, model):
    conflict = model("conflict", {E: MATRIX, H: MATRIX + 1}, tie_word_embeddings=True)
    tied = model("tied", {E: MATRIX}, tie_word_embeddings=True)
    code, out, err = run("check", conflict, "/no/such/model", tied)
    assert code == 2
    assert err.startswith("tiedgpt: error: no model '/no/such/model'")
    assert f"{tied}: tied" in out
    assert out.count("Not looked at: ") == 1  # of both the same
    code, out, _ = run("check", conflict, "/no/such/model", tied, "--json")
    assert code == 2
    reports = json.loads(out)["models"]
    assert [report.get("verdict") for report in reports] == ["conflict", None, "tied"]
    assert set(reports[1]) == {"model", "error"}
    assert run("check", conflict, tied)[0] == 1
    assert run("check", "/no/such/model")[:2] == (2, "")


def test_one_memory_under_two_names_is_no_copy(run, model, tmp_path):
    """As a file of torch may have it."""
    name = model("model", {}, tie_word_embeddings=True)
    (tmp_path / "model" / "pytorch_model.bin").write_bytes(torch_file({E: MATRIX, H: MATRIX}))
    text = " ".join(run("check", name)[1].split())
    assert "the files hold one, by two names" in text
    assert "bytes of the copy" not in text


def test_rows_of_a_model_on_the_hub_are_said_to_be_a_sample(run, hub_server):
    matrix = np.arange(2000, dtype=np.float32).reshape(1000, 2)
    config = {"model_type": "llama", "vocab_size": 1000, "hidden_size": 2}
    files = {
        "config.json": json.dumps(config | {"tie_word_embeddings": True}).encode(),
        "model.safetensors": safetensors_content({E: matrix, H: matrix}),
    }
    hub_server.put("owner/model", files)
    code, out, _ = run("check", "owner/model")
    assert code == 0
    assert "equal rows 32 of 32 sampled" in " ".join(out.split())


def test_what_mends_a_conflict_stands_below_it(run, model):
    name = model("model", {E: MATRIX, H: MATRIX + 1}, tie_word_embeddings=True)
    _, out, _ = run("check", name)
    assert 'write "tie_word_embeddings": false into config.json' in " ".join(out.split())


@pytest.mark.parametrize("columns", range(50, 80, 3))
def test_a_flag_and_its_value_stand_on_one_line(run, model, monkeypatch, columns):
    monkeypatch.setenv("COLUMNS", str(columns))
    name = model("model", {E: MATRIX, H: MATRIX + 1}, tie_word_embeddings=True)
    assert '"tie_word_embeddings": false' in run("check", name)[1]


def test_an_adapter_is_named(run, model, tmp_path):
    name = model("model", {E: MATRIX}, tie_word_embeddings=True)
    [report] = json.loads(run("check", name, "--json")[1])["models"]
    assert report["adapter"] is None
    (tmp_path / "model" / "adapter_config.json").write_text('{"peft_type": "LORA"}')
    _, out, _ = run("check", name)
    assert "adapter_config.json is of an adapter, 'LORA'" in " ".join(out.split())


def test_without_a_model(run):
    assert_one_error_line(run("check"), "expected a MODEL: a directory, a file, or owner/name")
