"""Checkpoints on disk: every layout that is read, every way to be wrong, and what is written."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.checks import refuses
from support.models import SMALL, random_model

import tiedgpt
from tiedgpt import Config, Tokenizer
from tiedgpt.checkpoints import safetensors
from tiedgpt.errors import ArgumentError, TiedGPTWarning, short_repr


def write(directory: Path, tensors: dict[str, np.ndarray], config: Config = SMALL) -> Path:
    """A checkpoint with just these tensors under just these names."""
    directory.mkdir(exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config.to_json()))
    with open(directory / "model.safetensors", "wb") as file:
        safetensors.write(file, tensors.items())
    return directory


def assert_same(loaded: tiedgpt.GPT2, model: tiedgpt.GPT2) -> None:
    """The same head and numbers, bit by bit; the same logits but for rounding, as memory's order
    differs."""
    assert loaded.config == model.config
    assert list(loaded.parameters) == list(model.parameters)
    for name, array in model.parameters.items():
        assert loaded.parameters[name].dtype == np.float32
        np.testing.assert_array_equal(loaded.parameters[name], array, name)
    ids = np.arange(model.config.n_ctx) % model.config.vocab_size
    np.testing.assert_allclose(loaded(ids), model(ids), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_a_saved_model_comes_back(tmp_path, head):
    """From its directory, and from its file, with the configuration beside it."""
    model, path = random_model(SMALL.with_head(head)), tmp_path / "new" / "folder"
    tiedgpt.save_model(model, Tokenizer([]), path)
    assert sorted(os.listdir(path)) == [
        "config.json",
        "merges.txt",
        "model.safetensors",
        "vocab.json",
    ]
    assert_same(tiedgpt.load_model(path), model)
    assert_same(tiedgpt.load_model(str(path / "model.safetensors")), model)
    assert tiedgpt.load_tokenizer(path).encode("é") == Tokenizer([]).encode("é")


def test_transposed_views_float64_and_numpy_scalars_are_written_with_their_true_values(
    tmp_path, model
):
    """wte.T in memory is wte's numbers in another order: the file must not show which it was."""
    numbers = {
        name: np.int64(getattr(SMALL, name))
        for name in ("vocab_size", "n_ctx", "n_embd", "n_inner")
    }
    config = replace(SMALL, **numbers, eos_token_id=[np.int32(0), np.uint8(1)])
    parameters = {
        name: np.asfortranarray(array.astype(float)) for name, array in model.parameters.items()
    }
    tiedgpt.save_model(tiedgpt.GPT2(config, parameters), None, tmp_path)
    assert_same(tiedgpt.load_model(tmp_path), tiedgpt.GPT2(config, model.parameters))


@pytest.mark.parametrize("prefix", ["", "transformer."])
def test_prefix_and_mask_buffers(tmp_path, model, prefix):
    tensors = {prefix + name: array for name, array in model.parameters.items()}
    for layer in range(SMALL.n_layer):
        tensors[f"{prefix}h.{layer}.attn.bias"] = np.ones((1, 1, 31, 31), np.float32)
        tensors[f"{prefix}h.{layer}.attn.masked_bias"] = np.float32([-1e4])
    assert_same(tiedgpt.load_model(write(tmp_path, tensors)), model)


def shard(directory: Path, model: tiedgpt.GPT2) -> Path:
    """model in two files and an index."""
    write(directory, {}, model.config)
    (directory / "model.safetensors").unlink()
    items = list(model.parameters.items())
    weight_map = {}
    for file, part in (("a.safetensors", items[:5]), ("b.safetensors", items[5:])):
        with open(directory / file, "wb") as out:
            safetensors.write(out, part)
        weight_map |= dict.fromkeys(dict(part), file)
    (directory / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    return directory


@pytest.mark.parametrize("says", ["tied", "untied"])
@pytest.mark.parametrize("holds", ["no W_U", "a copy of wte.T", "its own W_U"])
def test_the_head_is_as_the_checkpoint_says_or_as_asked_for(tmp_path, model, says, holds):
    """Many tied ones hold wte again as W_U. A W_U that differs is not used, as in transformers: a
    warning."""
    untied = random_model(SMALL.with_head("untied"))
    if holds != "its own W_U":
        untied = model.untie("copy")
    path = write(
        tmp_path, (model if holds == "no W_U" else untied).parameters, SMALL.with_head(says)
    )
    loaded = tiedgpt.load_model(path, "untied")
    assert_same(loaded, untied)
    assert not np.shares_memory(loaded.W_U, loaded.W_E)
    assert_same(tiedgpt.load_model(path, "tied"), untied.tie())
    if (says, holds) == ("untied", "no W_U"):
        refuses(r'no lm_head\.weight; load it with head "tied", or "unt', tiedgpt.load_model, path)
    elif (says, holds) == ("tied", "its own W_U"):
        with pytest.warns(
            TiedGPTWarning, match=r"config\.json says tied, so lm_head\.weight is not used"
        ):
            assert_same(tiedgpt.load_model(path), untied.tie())
    else:  # without a warning, which would be an error
        assert_same(tiedgpt.load_model(path), untied if says == "untied" else untied.tie())


def test_an_unknown_head(tmp_path, model):
    path, message = (
        write(tmp_path, model.parameters),
        'head must be "tied" or "untied", got \'both\'',
    )
    refuses(message, tiedgpt.load_model, path, "both", error=ArgumentError)


def changed(entries, changes):
    """None removes an entry."""
    return {name: value for name, value in {**entries, **changes}.items() if value is not None}


SHAPE = r"tensor 'wpe\.weight' has shape \[21, 31\]; config\.json makes it \[31, 21\]"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda t: {"h.1.ln_2.bias": None},
            r"h\.1\.ln_2\.bias of the 2-layer .* is missing \(1 in all\)",
        ),
        (
            lambda t: {"h.2.ln_1.bias": t["ln_f.bias"]},
            r"tensor 'h\.2\.ln_1\.bias' is not a parameter",
        ),
        (lambda t: {"wpe.weight": t["wpe.weight"].T}, SHAPE),
        (
            lambda t: {"transformer.wte.weight": t["wte.weight"]},
            r"'wte\.weight' is there twice, once after",
        ),
        (
            lambda t: {"lm_head.weight": t["wpe.weight"]},
            r"tensor 'lm_head\.weight' has shape \[31, 21",
        ),
    ],
)
def test_tensors_that_are_not_the_configurations(tmp_path, model, monkeypatch, change, message):
    """Nothing is read before all is checked."""
    monkeypatch.setattr(
        safetensors.Tensor, "read", lambda *_: pytest.fail("read before the check was over")
    )
    tensors = dict(reversed(model.parameters.items()))
    path = write(tmp_path, changed(tensors, change(tensors))) / "model.safetensors"
    assert f"{path}: " in refuses(message, lambda: tiedgpt.load_model(tmp_path, copy=True))


NO_WEIGHTS = (
    r"neither model\.safetensors nor model\.safetensors\.index\.json \(pytorch_model\.bin is"
)
WRONG = [  # a file's content, or its size, or None: there is none
    ("config.json", b"{", r"config\.json: not JSON"),
    ("config.json", b'{"model_type": "bert"}', r"config\.json: model_type is 'bert'"),
    (
        "config.json",
        b'{"model_type": "gpt2", "n_embd": 20.5}',
        r"config\.json: n_embd must be a whole",
    ),
    ("config.json", 2**40, rf"config\.json: {2**40} bytes; expected at most \d+"),
    ("config.json", None, r"is not a checkpoint: it has no config\.json"),
    (
        "generation_config.json",
        b'{"eos_token_id": "end"}',
        r"/generation_config\.json: .*must be .*'end'",
    ),
    ("model.safetensors", None, NO_WEIGHTS),
]


@pytest.mark.parametrize(("file", "content", "message"), WRONG)
def test_a_file_that_is_wrong_is_named(tmp_path, model, file, content, message):
    write(tmp_path, model.parameters)
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x02")  # is never opened
    if content is None:
        (tmp_path / file).unlink()
    elif content == 2**40:
        os.truncate(tmp_path / file, content)  # it takes no room on the disk
    else:
        (tmp_path / file).write_bytes(content)
    refuses(message, tiedgpt.load_model, tmp_path)
    refuses(
        r"no tokenizer: expected merges\.txt and vocab\.json, or tok",
        tiedgpt.load_tokenizer,
        tmp_path,
    )


def test_a_dtype_that_is_not_read(tmp_path, model):
    path = write(tmp_path, model.parameters) / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"F32"', b'"I32"', 1))
    refuses(
        r"tensor 'wte\.weight' is I32; expected one of F32, F16, BF16", tiedgpt.load_model, tmp_path
    )


OUTSIDE = [
    "../a.safetensors",
    "a\\b.safetensors",
    ".a.safetensors",
    "a.safetensors\n",
    3,
    "config.json",
]
OUTSIDE += ["x" * 300 + ".safetensors"]
LISTED = [
    (file, re.escape(short_repr(file)) + " names no .safetensors file beside it")
    for file in OUTSIDE
]
LISTED += [
    ("fifo.safetensors", r"fifo\.safetensors: is not a regular file"),
    ("c.safetensors", r"c\.safetensors: cannot be read"),
    ("b.safetensors", r"b\.safetensors: tensor 'wte\.weight' is in the index but not"),
    (None, r"a\.safetensors: tensor 'wte\.weight' is in the file but not in the index"),
]


@pytest.mark.parametrize(("file", "message"), LISTED)
def test_an_index_that_names_another_file(tmp_path, model, file, message):
    """None: it names no file for the tensor."""
    index = shard(tmp_path, model) / "model.safetensors.index.json"
    os.mkfifo(tmp_path / "fifo.safetensors")  # opening it would wait for ever
    weight_map = changed(json.loads(index.read_text())["weight_map"], {"wte.weight": file})
    for said, error in (
        (weight_map, message),
        ([file], '"weight_map" must map tensor names to files'),
    ):
        index.write_text(json.dumps({"weight_map": said}))
        refuses(error, tiedgpt.load_model, tmp_path)


def test_what_was_kept_of_a_configuration_and_cannot_be_written(tmp_path):
    model = random_model(replace(SMALL, others={"pad_token_id": np.int64(7)}))
    refuses(
        r"new: config\.json cannot be written: ", tiedgpt.save_model, model, None, tmp_path / "new"
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"directory": ""}, "the directory must be a path, got ''"),
        ({"directory": "a\0b"}, r"the directory must be a path, got 'a\\x00b'"),
        ({"directory": 7}, "the directory must be a path, got 7"),
        ({"model": "gpt2"}, "the model must be a GPT2, got 'gpt2'"),
        ({"tokenizer": "new"}, "the tokenizer must be a Tokenizer or None, got 'new'"),
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
    refuses("^a model must be a name or a path, got ", load, source, error=ArgumentError)
