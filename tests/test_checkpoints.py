"""Checkpoints on disk: every layout that is read, every way to be wrong, and what is written."""

import json
import os
import warnings
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL, random_model

import tiedgpt
from tiedgpt import Config, Tokenizer
from tiedgpt.checkpoints import safetensors
from tiedgpt.errors import ArgumentError, CheckpointError, TiedGPTWarning

IDS = np.arange(11)


def write(directory: Path, tensors: dict[str, np.ndarray], config: Config = SMALL, **changes) -> Path:
    """A checkpoint with just these tensors under just these names."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps({**config.to_json(), **changes}))
    with open(directory / "model.safetensors", "wb") as file:
        safetensors.write(file, tensors.items())
    return directory


def assert_same(loaded: tiedgpt.GPT2, model: tiedgpt.GPT2) -> None:
    """The same head and numbers, bit by bit; the same logits but for rounding, as memory's order differs."""
    assert loaded.config == model.config
    assert list(loaded.parameters) == list(model.parameters)
    for name, array in model.parameters.items():
        assert loaded.parameters[name].dtype == np.float32
        np.testing.assert_array_equal(loaded.parameters[name], array, name)
    np.testing.assert_allclose(loaded(IDS), model(IDS), rtol=1e-3, atol=1e-4)


# What is read


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_a_saved_model_comes_back(tmp_path, head):
    model = random_model(SMALL.with_head(head))
    tiedgpt.save_model(model, Tokenizer([]), tmp_path / "new" / "folder")
    assert_same(tiedgpt.load_model(tmp_path / "new" / "folder"), model)
    assert tiedgpt.load_tokenizer(tmp_path / "new" / "folder").encode("é") == Tokenizer([]).encode("é")
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == [
        "config.json",
        "merges.txt",
        "model.safetensors",
        "vocab.json",
    ]


def test_a_single_file_loads_with_the_configuration_beside_it(tmp_path, model):
    write(tmp_path, model.parameters)
    assert_same(tiedgpt.load_model(str(tmp_path / "model.safetensors")), model)


def test_transposed_views_and_float64_are_written_with_their_true_values(tmp_path, model):
    """wte.T in memory is wte's numbers in another order: the file must not show which it was."""
    parameters = {
        name: np.asfortranarray(array.astype(np.float64)) for name, array in model.parameters.items()
    }
    tiedgpt.save_model(tiedgpt.GPT2(SMALL, parameters), None, tmp_path)
    assert_same(tiedgpt.load_model(tmp_path), model)


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_prefix_and_mask_buffers(tmp_path, model, prefix):
    tensors = {prefix + name: array for name, array in model.parameters.items()}
    for layer in range(SMALL.n_layer):
        tensors[f"{prefix}h.{layer}.attn.bias"] = np.ones((1, 1, 31, 31), np.float32)
        tensors[f"{prefix}h.{layer}.attn.masked_bias"] = np.float32([-1e4])
    assert_same(tiedgpt.load_model(write(tmp_path, tensors)), model)


def shard(directory: Path, model: tiedgpt.GPT2) -> Path:
    """model in two files and an index."""
    write(directory, {})
    (directory / "model.safetensors").unlink()
    items = list(model.parameters.items())
    weight_map = {}
    for file, part in (("a.safetensors", items[:5]), ("b.safetensors", items[5:])):
        with open(directory / file, "wb") as out:
            safetensors.write(out, part)
        weight_map |= dict.fromkeys(dict(part), file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


def test_shards(tmp_path, model):
    assert_same(tiedgpt.load_model(shard(tmp_path, model)), model)


# The head


def test_head_as_the_checkpoint_says_or_as_asked_for(tmp_path):
    untied = random_model(SMALL.with_head("untied"))
    path = write(tmp_path, untied.parameters, untied.config)
    assert_same(tiedgpt.load_model(path), untied)
    assert_same(tiedgpt.load_model(path, "untied"), untied)
    assert_same(tiedgpt.load_model(path, "tied"), untied.tie())


def test_untied_without_a_matrix_of_its_own_starts_as_a_copy(tmp_path, model):
    path = write(tmp_path, model.parameters)
    untied = tiedgpt.load_model(path, "untied")
    assert not untied.config.tied
    assert not np.shares_memory(untied.W_U, untied.W_E)
    np.testing.assert_array_equal(untied(IDS), tiedgpt.load_model(path, "tied")(IDS))


def test_tied_with_a_matrix_that_is_the_same_is_silent(tmp_path, model):
    """Many checkpoints hold lm_head.weight although it is wte.weight again."""
    path = write(tmp_path, {**model.parameters, "lm_head.weight": model.W_E})
    assert tiedgpt.load_model(path).config.tied


def test_tied_with_a_matrix_that_differs_warns_and_is_tied_as_in_transformers(tmp_path, model):
    other = random_model(SMALL.with_head("untied"), seed=1).parameters["lm_head.weight"]
    path = write(tmp_path, {**model.parameters, "lm_head.weight": other})
    with pytest.warns(TiedGPTWarning, match=r"config\.json says tied, so lm_head\.weight is not used"):
        loaded = tiedgpt.load_model(path)
    assert_same(loaded, model)
    np.testing.assert_array_equal(tiedgpt.load_model(path, "untied").W_U, other.T)


def test_untied_without_a_matrix_is_an_error_that_says_what_to_do(tmp_path, model):
    path = write(tmp_path, model.parameters, SMALL.with_head("untied"))
    with pytest.raises(CheckpointError, match=r'no lm_head\.weight; load it with head "tied", or "untied"'):
        tiedgpt.load_model(path)
    assert_same(tiedgpt.load_model(path, "untied"), model.untie("copy"))
    assert_same(tiedgpt.load_model(path, "tied"), model)


def test_an_unknown_head(tmp_path, model):
    with pytest.raises(ArgumentError, match='head must be "tied" or "untied", got \'both\''):
        tiedgpt.load_model(write(tmp_path, model.parameters), "both")


def test_what_is_wrong_in_generation_config_is_said_of_that_file(tmp_path, model):
    path = write(tmp_path, model.parameters)
    (path / "generation_config.json").write_text('{"eos_token_id": "end"}')
    with pytest.raises(CheckpointError, match=r"/generation_config\.json: .*eos_token_id must be .*'end'"):
        tiedgpt.load_model(path)


# Wrong checkpoints


def without(tensors, name):
    return {key: array for key, array in tensors.items() if key != name}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: without(t, "h.1.ln_2.bias"),
            r"/model\.safetensors: tensor h\.1\.ln_2\.bias of the 2-layer GPT-2 .* is missing \(1 in all\)",
        ),
        (lambda t: {**t, "h.2.ln_1.bias": t["ln_f.bias"]}, r"tensor 'h\.2\.ln_1\.bias' is not a parameter"),
        (lambda t: {**t, "score.weight": t["ln_f.bias"]}, r"tensor 'score\.weight' is not a parameter of"),
        (
            lambda t: {**t, "wpe.weight": t["wpe.weight"].T},
            r"tensor 'wpe\.weight' has shape \[21, 31\]; config\.json makes it \[31, 21\]",
        ),
        (lambda t: {**t, "transformer.wte.weight": t["wte.weight"]}, r"'wte\.weight' is there twice, with"),
        (lambda t: {**t, "lm_head.weight": t["wpe.weight"]}, r"tensor 'lm_head\.weight' has shape \[31, 21"),
    ],
)
def test_tensors_that_are_not_the_configurations(tmp_path, model, change, message):
    path = write(tmp_path, change(dict(reversed(model.parameters.items()))))
    with pytest.raises(CheckpointError, match=message) as caught:
        tiedgpt.load_model(path)
    assert str(path) in str(caught.value)


def test_a_dtype_that_is_not_read(tmp_path, model):
    path = write(tmp_path, model.parameters)
    content = (path / "model.safetensors").read_bytes()
    (path / "model.safetensors").write_bytes(content.replace(b'"F32"', b'"I32"', 1))
    with pytest.raises(CheckpointError, match=r"tensor 'wte\.weight' is I32; expected one of F32, F16, BF16"):
        tiedgpt.load_model(path)


def test_nothing_is_read_before_all_is_checked(tmp_path, model, monkeypatch):
    monkeypatch.setattr(safetensors.Tensor, "read", lambda *_: pytest.fail("read before the check was over"))
    with pytest.raises(CheckpointError, match=r"ln_f\.bias .* is missing"):
        tiedgpt.load_model(write(tmp_path, without(model.parameters, "ln_f.bias")))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("{", r"config\.json: not JSON"),
        ("[" * 100_000, r"config\.json: not JSON"),
        ('{"model_type": "bert"}', r"config\.json: model_type is 'bert'"),
        ('{"model_type": "gpt2", "n_embd": 20.5}', r"config\.json: n_embd must be a whole number"),
    ],
)
def test_a_bad_configuration_names_its_file(tmp_path, config, message):
    (tmp_path / "config.json").write_text(config)
    with pytest.raises(CheckpointError, match=message):
        tiedgpt.load_model(tmp_path)


def test_a_text_file_that_is_too_large_is_not_read(tmp_path):
    with open(tmp_path / "config.json", "wb") as file:
        file.truncate(2**40)
    with pytest.raises(CheckpointError, match=rf"config\.json: {2**40} bytes; expected at most \d+"):
        tiedgpt.load_model(tmp_path)


def test_directories_that_are_no_checkpoints(tmp_path, model):
    with pytest.raises(CheckpointError, match=r"is not a checkpoint: it has no config\.json"):
        tiedgpt.load_model(tmp_path)
    write(tmp_path, model.parameters)
    with pytest.raises(
        CheckpointError, match=r"no tokenizer: expected merges\.txt and vocab\.json, or tokenizer"
    ):
        tiedgpt.load_tokenizer(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(
        CheckpointError, match=r"neither model\.safetensors nor model\.safetensors\.index\.json"
    ):
        tiedgpt.load_model(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin is a pickle, which can run any code"):
        tiedgpt.load_model(tmp_path)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: None, '"weight_map" must map tensor names to files'),
        (lambda m: {**m, "wte.weight": "../a.safetensors"}, r"'\.\./a\.safetensors' is not the name of a"),
        (lambda m: {**m, "wte.weight": 3}, "3 is not the name of a .safetensors file"),
        (lambda m: {**m, "wte.weight": "b\0c"}, r"'b\\x00c' is not the name of a"),
        (lambda m: {**m, "wte.weight": "fifo.safetensors"}, r"fifo\.safetensors: is not a regular file"),
        (
            lambda m: {**m, "wte.weight": "x" * 10_000},
            r"'x{50,60}\.\.\. is not the name of a .safetensors file beside",
        ),
        (lambda m: {**m, "wte.weight": "c.safetensors"}, r"c\.safetensors: cannot be read"),
        (lambda m: {**m, "wte.weight": "b.safetensors"}, r"b\.safetensors: tensor 'wte\.weight' is in the"),
        (lambda m: without(m, "wte.weight"), r"a\.safetensors: tensor 'wte\.weight' is in the file but not"),
    ],
)
def test_a_lying_index(tmp_path, model, change, message):
    index = shard(tmp_path, model) / "model.safetensors.index.json"
    os.mkfifo(tmp_path / "fifo.safetensors")  # opening it would wait for ever
    weight_map = json.loads(index.read_text())["weight_map"]
    index.write_text(json.dumps({"weight_map": change(weight_map)}))
    with pytest.raises(CheckpointError, match=message):
        tiedgpt.load_model(tmp_path)


def test_what_was_kept_of_a_configuration_and_cannot_be_written(tmp_path):
    nested: list = []
    for _ in range(100_000):
        nested = [nested]
    for others in ({"task_specific_params": nested}, {"pad_token_id": np.int64(7)}):
        model = random_model(replace(SMALL, others=others))
        with pytest.raises(CheckpointError, match=r"new: config\.json cannot be written: "):
            tiedgpt.save_model(model, None, tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"directory": ""}, "the directory must be a path, got ''"),
        ({"directory": "a\0b"}, r"the directory must be a path, got 'a\\x00b'"),
        ({"directory": Path("a\0b")}, r"the directory must be a path, got PosixPath\('a\\x00b'\)"),
        ({"directory": None}, "the directory must be a path, got None"),
        ({"directory": 7}, "the directory must be a path, got 7"),
        ({"directory": b"new"}, "the directory must be a path, got b'new'"),
        ({"model": "gpt2"}, "the model must be a GPT2, got 'gpt2'"),
        ({"model": {}}, "the model must be a GPT2, got {}"),
        ({"tokenizer": "new"}, "the tokenizer must be a Tokenizer or None, got 'new'"),
        ({"tokenizer": False}, "the tokenizer must be a Tokenizer or None, got False"),
    ],
)
def test_arguments_that_cannot_be_saved(tmp_path, monkeypatch, model, arguments, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArgumentError, match=f"^{message}$"):
        tiedgpt.save_model(**{"model": model, "tokenizer": None, "directory": "new"} | arguments)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("load", [tiedgpt.load_model, tiedgpt.load_tokenizer])
@pytest.mark.parametrize("source", [None, 7, b"gpt2", ["gpt2"]])
def test_a_source_that_is_no_path(load, source):
    with pytest.raises(ArgumentError, match=r"^a model must be a name or a path, got "):
        load(source)


def test_a_configuration_of_numpy_scalars_can_be_saved(tmp_path):
    numbers = {name: np.int64(getattr(SMALL, name)) for name in ("vocab_size", "n_ctx", "n_embd", "n_inner")}
    model = random_model(replace(SMALL, **numbers, eos_token_id=[np.int32(0), np.uint8(1)]))
    tiedgpt.save_model(model, None, tmp_path)
    assert_same(tiedgpt.load_model(tmp_path), model)


def test_loading_prints_and_warns_nothing(tmp_path, model, capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tiedgpt.load_model(write(tmp_path, model.parameters), "untied")
    assert capsys.readouterr() == ("", "")
