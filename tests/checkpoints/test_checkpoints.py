"""Checkpoints on disk: every layout that is read, every way to be wrong, and what is written.

config.json says that the head is tied or untied. The file of weights may hold no W_U, a copy of
wte.T as W_U, or a W_U that is not wte.T. `model` is a small tied model, without a W_U.
"""

import json
import mmap
import os
import re
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
from support.checkpoint_files import assert_same, write_config, write_shards, write_tensors
from support.checks import contents, deeply_nested_list, refuses
from support.models import CONFIG, SMALL, SMALL_MERGES, random_model
from support.openai_files import write_openai_model
from support.torch_files import torch_file
from support.vocabularies import added_token, tokenizer_json

import tiedgpt
from tiedgpt import Tokenizer
from tiedgpt.checkpoints import Opened, json_files, safetensors, tensorflow
from tiedgpt.checkpoints.files import first_of_quantised
from tiedgpt.checkpoints.tensors import Tensor
from tiedgpt.checkpoints.writing import tokenizer_files
from tiedgpt.errors import ArgumentError, TiedGPTWarning, short_repr
from tiedgpt.gpt2.special_tokens import Flags
from tiedgpt.gpt2.tokenizer import EOT

UNTIED = SMALL.with_head("untied")

# Saved models


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_a_saved_model_comes_back(tmp_path, head):
    model = random_model(CONFIG.with_head(head))
    tiedgpt.save_model(model, Tokenizer([]), tmp_path)
    assert sorted(os.listdir(tmp_path)) == [
        "config.json",
        "merges.txt",
        "model.safetensors",
        "vocab.json",
    ]
    assert_same(tiedgpt.load_model(tmp_path), model)
    assert_same(tiedgpt.load_model(str(tmp_path / "model.safetensors")), model)
    assert tiedgpt.load_tokenizer(tmp_path).encode("é") == Tokenizer([]).encode("é")


def test_arrays_in_columns_and_in_float64_are_written_with_their_values(tmp_path, model):
    """An array may lie in memory column by column, as wte.T does. In a file it is row by row."""
    parameters = {}
    for name, array in model.parameters.items():
        parameters[name] = np.asfortranarray(array.astype(np.float64))
    tiedgpt.save_model(tiedgpt.GPT2(SMALL, parameters), None, tmp_path)
    assert_same(tiedgpt.load_model(tmp_path), model)


def test_the_class_of_a_tokenizer_is_not_written_beside_another_tokenizer(tmp_path):
    """Without a tokenizer, the field stays."""
    others = {"tokenizer_class": "BertTokenizer", "pad_token_id": 7}
    model = random_model(replace(SMALL, vocab_size=257, others=others))
    tiedgpt.save_model(model, Tokenizer([]), tmp_path / "new")
    tiedgpt.save_model(model, None, tmp_path / "none")
    for name in ("new", "none"):
        fields = json.loads((tmp_path / name / "config.json").read_text())
        assert fields["pad_token_id"] == 7
        assert ("tokenizer_class" in fields) == (name == "none")


def test_numbers_of_numpy_in_a_configuration_are_written(tmp_path, model):
    """json.dumps alone would refuse them."""
    config = replace(
        SMALL,
        vocab_size=np.int64(SMALL.vocab_size),
        n_embd=np.int64(SMALL.n_embd),
        n_inner=np.int64(SMALL.n_inner),
        eos_token_id=[np.int32(0), np.uint8(1)],
    )
    model = tiedgpt.GPT2(config, model.parameters)
    tiedgpt.save_model(model, None, tmp_path)
    assert_same(tiedgpt.load_model(tmp_path), model)


def test_a_field_of_a_configuration_that_cannot_be_written(tmp_path):
    """Fields that tiedgpt does not use are given to json.dumps, which refuses numbers of NumPy.

    It refuses, too, what is nested too deeply, and a list that is in itself.
    """
    circle = []
    circle.append(circle)
    model = random_model(replace(SMALL, others={"pad_token_id": np.int64(7)}))
    message = r"^config\.json cannot be written: Object of type int64 is not JSON serializable$"
    refuses(message, tiedgpt.save_model, model, None, tmp_path / "new")
    for value in (deeply_nested_list(), circle):
        model = random_model(replace(SMALL, others={"pad_token_id": value}))
        refuses("cannot be written: ", tiedgpt.save_model, model, None, tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("argument", "value", "message"),
    [
        ("directory", "", "the directory must be a path, got ''"),
        ("directory", "a\0b", r"'a\\x00b' is not the name of a file"),
        ("directory", 7, "the directory must be a path, got 7"),
        ("directory", b"new", "the directory must be a path, got b'new'"),
        ("model", "gpt2", "the model must be a GPT2, got 'gpt2'"),
        ("tokenizer", 1, "the tokenizer must be a Tokenizer or None, got 1"),
        ("tokenizer", "", "the tokenizer must be a Tokenizer or None, got ''"),
    ],
)
def test_arguments_that_cannot_be_saved(tmp_path, monkeypatch, model, argument, value, message):
    monkeypatch.chdir(tmp_path)
    right = {"model": model, "tokenizer": None, "directory": "new"}
    with pytest.raises(ArgumentError, match=f"^{message}$"):
        tiedgpt.save_model(**(right | {argument: value}))
    assert list(tmp_path.iterdir()) == []


def test_a_tokenizer_of_another_size_is_written_with_a_warning(tmp_path):
    """The warning names the file of the line that calls save_model, which is this file."""
    message = "^the tokenizer has 257 tokens, and the model has {}$"
    with pytest.warns(TiedGPTWarning, match=message.format(101)) as caught:
        tiedgpt.save_model(random_model(), Tokenizer([]), tmp_path)
    assert caught[0].filename == __file__
    larger = random_model(replace(SMALL, vocab_size=258))
    with pytest.warns(TiedGPTWarning, match=message.format(258)):
        tiedgpt.save_model(larger, Tokenizer([]), tmp_path / "larger")
    with pytest.warns(TiedGPTWarning, match="ids up to 256, .* of 101 tokens"):
        assert tiedgpt.load_tokenizer(tmp_path).vocab_size == 257


# Layouts of files


@pytest.mark.parametrize(
    "prefix", ["", "transformer.", "_orig_mod.transformer.", "module.", "model."]
)
def test_names_with_and_without_a_prefix_and_masks(tmp_path, model, prefix):
    """Older files also hold the causal mask of each layer, and the score that hides a token.

    They are not parameters.
    """
    tensors = {f"{prefix}{name}": array for name, array in model.parameters.items()}
    causal_mask = np.ones((1, 1, SMALL.n_ctx, SMALL.n_ctx), np.float32)
    for layer in range(SMALL.n_layer):
        tensors[f"{prefix}h.{layer}.attn.bias"] = causal_mask
        tensors[f"{prefix}h.{layer}.attn.masked_bias"] = np.float32([-1e4])
    assert_same(tiedgpt.load_model(write_tensors(tmp_path, tensors)), model)


@pytest.mark.parametrize("prefix", ["", "model.", "transformer."])
@pytest.mark.parametrize("head", ["tied", "untied"])
def test_a_layout_with_matrices_out_in(tmp_path, prefix, head):
    """That of mlx-lm, whose names begin with "model."."""
    model = random_model(SMALL.with_head(head))
    tensors = {}
    for name, array in model.parameters.items():
        is_matrix = name.startswith("h.") and array.ndim == 2
        tensors[name if name == "lm_head.weight" else prefix + name] = (
            array.T if is_matrix else array
        )
    write_tensors(tmp_path, tensors, model.config)
    for copy in (False, True):
        assert_same(tiedgpt.load_model(tmp_path, copy=copy), model)


def test_a_tensor_whose_name_only_begins_like_that_of_a_mask_is_refused(tmp_path, model):
    tensors = {**model.parameters, "h.0.attn.bias_k": np.ones(3)}
    write_tensors(tmp_path, tensors)
    refuses(r"'h\.0\.attn\.bias_k' is not one of", tiedgpt.load_model, tmp_path)


def test_a_mask_may_have_any_dtype(tmp_path, model):
    """Some files have masks of booleans. A parameter may not be of such a type."""
    tensors = {"h.0.attn.bias": np.zeros(1), **model.parameters}
    path = write_tensors(tmp_path, tensors) / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b'"F32"', b'"U32"', 1))
    assert_same(tiedgpt.load_model(tmp_path), model)


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_several_files_of_weights(tmp_path, head):
    model = random_model(SMALL.with_head(head))
    assert_same(tiedgpt.load_model(write_shards(tmp_path, model)), model)


def is_mapped(array: np.ndarray) -> bool:
    """Whether the array is a view of a mapped file."""
    return isinstance(array.base, mmap.mmap)


def test_on_windows_a_file_is_read(tmp_path, model, monkeypatch):
    """Elsewhere it is mapped, and an array that is not aligned is read (test_safetensors.py)."""
    tiedgpt.save_model(model, None, tmp_path)
    opened = Opened(tmp_path)
    with monkeypatch.context() as windows:  # only for the load: pytest needs the real name
        windows.setattr(os, "name", "nt")
        loaded = opened.model()
    assert_same(loaded, model)
    assert not is_mapped(loaded.W_E)
    assert not is_mapped(tiedgpt.load_model(tmp_path, copy=True).W_E)
    assert is_mapped(tiedgpt.load_model(tmp_path).W_E)


# The head


@pytest.fixture
def no_head(tmp_path, model):
    """no_head(head) -> a checkpoint without W_U, whose config.json says that the head is `head`."""
    return lambda head: write_tensors(tmp_path, model.parameters, SMALL.with_head(head))


@pytest.fixture
def copied_head(tmp_path, model):
    """copied_head(head) -> a checkpoint with a copy of wte.T as W_U, as many files have it.

    Its config.json says that the head is `head`.
    """
    parameters = model.untie("copy").parameters
    return lambda head: write_tensors(tmp_path, parameters, SMALL.with_head(head))


@pytest.fixture
def other_head(tmp_path):
    """other_head(head) -> a checkpoint with the parameters of random_model(UNTIED).

    Its W_U is not wte.T. Its config.json says that the head is `head`.
    """
    parameters = random_model(UNTIED).parameters
    return lambda head: write_tensors(tmp_path, parameters, SMALL.with_head(head))


def test_a_checkpoint_that_says_tied_is_loaded_tied(no_head, model):
    path = no_head("tied")
    assert_same(tiedgpt.load_model(path), model)
    assert not Opened(path).has_head


def test_a_checkpoint_that_says_tied_with_a_copy_of_wte_is_loaded_tied(copied_head, model):
    """There is no warning: in a test it would be an error."""
    path = copied_head("tied")
    assert_same(tiedgpt.load_model(path), model)
    assert Opened(path).config.head == "tied"
    assert not Opened(path).contradicts_config
    assert Opened(path).has_head


def test_a_checkpoint_that_says_tied_with_another_matrix_is_loaded_untied(other_head):
    """transformers 5 does so, too, but transformers 4 does not. A warning says it."""
    path = other_head("tied")
    with pytest.warns(TiedGPTWarning) as caught:
        assert_same(tiedgpt.load_model(path), random_model(UNTIED))
    assert str(caught[0].message) == (
        f"{path}: config.json says tied, but the file has another lm_head.weight, which is used: "
        "untied, as transformers 5 reads it; transformers 4 reads it as tied, as head "
        '"tied" does here; for untied everywhere, write "tie_word_embeddings": false into '
        "config.json"
    )
    assert caught[0].filename == __file__  # the warning is about the call of load_model
    assert Opened(path).config.head == "untied"
    assert Opened(path).contradicts_config


def test_a_matrix_that_differs_from_wte_in_one_number_is_used(tmp_path, model):
    """config.json says tied. The number is the next float32 after that in wte."""
    untied = model.untie("copy")
    W_U = untied.parameters["lm_head.weight"]
    W_U[3, 4] = np.nextafter(W_U[3, 4], np.float32(np.inf))
    write_tensors(tmp_path, untied.parameters, SMALL)
    with pytest.warns(TiedGPTWarning):
        assert_same(tiedgpt.load_model(tmp_path), untied)


@pytest.mark.parametrize(
    ("in_wte", "in_head", "head"),
    [
        pytest.param(0.0, -0.0, "tied", id="zeros-of-both-signs"),
        pytest.param(np.nan, np.nan, "untied", id="nan"),
    ],
)
def test_heads_are_compared_as_numbers(tmp_path, model, in_wte, in_head, head):
    """Zeros of both signs are equal, and NaN does not equal NaN. transformers does the same.

    config.json says tied. W_U is a copy of wte.T, but for the first number of both, which is in_wte
    and in_head. `head` is how the checkpoint is read.
    """
    untied = model.untie("copy")
    untied.W_E[0, 0] = in_wte
    untied.parameters["lm_head.weight"][0, 0] = in_head
    write_tensors(tmp_path, untied.parameters, SMALL)
    assert Opened(tmp_path).config.head == head


@pytest.mark.parametrize("damage", ["missing", "truncated"])
def test_a_configuration_is_read_without_weights(other_head, damage):
    path = other_head("tied")
    weights = path / "model.safetensors"
    content = weights.read_bytes()
    weights.unlink()
    if damage == "truncated":
        weights.write_bytes(content[:-1])
    assert Opened(path).config.head == "tied"


def test_a_checkpoint_that_says_untied_is_loaded_untied(other_head):
    path = other_head("untied")
    assert_same(tiedgpt.load_model(path), random_model(UNTIED))
    assert not Opened(path).contradicts_config


def test_a_checkpoint_that_says_untied_with_a_copy_of_wte_is_loaded_untied(copied_head, model):
    assert_same(tiedgpt.load_model(copied_head("untied")), model.untie("copy"))


def test_a_checkpoint_that_says_untied_without_a_matrix_is_refused(no_head):
    path = no_head("untied")
    message = (
        f'{path}: config.json says "tie_word_embeddings": false but there is no lm_head.weight; '
        'load it with head "tied", or "untied" to start from a copy of wte.T'
    )
    refuses(f"^{re.escape(message)}$", tiedgpt.load_model, path)


@pytest.mark.parametrize("head_of_config", ["tied", "untied"])
def test_head_untied_starts_with_a_copy_of_wte_if_the_file_has_no_matrix(
    no_head, model, head_of_config
):
    loaded = tiedgpt.load_model(no_head(head_of_config), "untied")
    assert_same(loaded, model.untie("copy"))
    assert not np.shares_memory(loaded.W_U, loaded.W_E)
    assert_same(tiedgpt.load_model(no_head(head_of_config), "tied"), model)


@pytest.mark.parametrize("head", [None, "tied", "untied"])
def test_a_tied_matrix_may_be_stored_under_its_other_name(tmp_path, model, head):
    """safetensors' save_model stores one of two names of a matrix: here, lm_head.weight."""
    tensors = dict(model.parameters)
    tensors["lm_head.weight"] = tensors.pop("wte.weight")
    write_tensors(tmp_path, tensors)
    expected = model.untie("copy") if head == "untied" else model
    assert_same(tiedgpt.load_model(tmp_path, head), expected)
    assert not Opened(tmp_path).has_head
    write_config(tmp_path, UNTIED)
    refuses(r"wte\.weight is missing", tiedgpt.load_model, tmp_path, head)


@pytest.mark.parametrize(
    "other",
    [
        *("v_head.summary.weight", "score.weight", "multiple_choice_head.summary.bias"),
        *("classifier.weight", "qa_outputs.bias"),
    ],
)
def test_another_head_beside_the_model_is_left_out_with_one_warning(tmp_path, model, other):
    more = {other: np.ones(3, np.float32), "transformer.classifier.bias": np.ones(2, np.float32)}
    write_tensors(tmp_path, model.parameters | more)
    message = (
        f"{tmp_path}: {', '.join(more)}: of another head than the one that predicts tokens, so it "
        "is not used"
    )
    with pytest.warns(TiedGPTWarning, match=f"^{re.escape(message)}$") as caught:
        assert_same(tiedgpt.load_model(tmp_path), model)
    assert [warning.filename for warning in caught] == [__file__]
    write_tensors(tmp_path, model.parameters | {f"x{other}": more[other]})
    refuses(f"'x{other}' is not one of", tiedgpt.load_model, tmp_path)


@pytest.mark.parametrize("head_of_config", ["tied", "untied"])
def test_a_head_that_load_model_is_given_is_loaded_without_a_warning(other_head, head_of_config):
    assert_same(tiedgpt.load_model(other_head(head_of_config), "untied"), random_model(UNTIED))
    assert_same(tiedgpt.load_model(other_head(head_of_config), "tied"), random_model(UNTIED).tie())


def test_a_head_that_is_neither_tied_nor_untied(no_head):
    refuses("head .*'both'", tiedgpt.load_model, no_head("tied"), "both", error=ArgumentError)


# Tensors that do not fit the configuration: refused before a value is read


def change_tensors(tensors: dict[str, np.ndarray]) -> dict[str, tuple[dict[str, np.ndarray], str]]:
    """A fault -> the tensors with this fault, and what the message says."""
    without = {name: array for name, array in tensors.items() if name != "h.1.ln_2.bias"}
    wte = tensors["wte.weight"]
    wpe = tensors["wpe.weight"]
    return {
        "missing": (without, r"h\.1\.ln_2\.bias is missing; .* of 2 layers"),
        "too many": (
            {**tensors, "h.2.ln_1.bias": wte[0]},
            r"'h\.2\.ln_1\.bias' is not one of .* 2 layers",
        ),
        "shape": ({**tensors, "wpe.weight": wpe.T}, r"wpe\.weight has shape \(21, 31\)"),
        "head's shape": ({**tensors, "lm_head.weight": wpe}, r"lm_head\.weight has shape"),
        "twice": (
            {**tensors, "transformer.wte.weight": wte},
            "/model.safetensors: 'wte.weight' is there twice, with and without \"transformer.\"$",
        ),
        "head twice": (
            {**tensors, "lm_head.weight": wte, "transformer.lm_head.weight": wte},
            "'lm_head.weight' is there twice, with and without",
        ),
        "mask of none": ({**tensors, "h.attn.bias": wte}, r"'h\.attn\.bias' is not one of"),
        "like a mask": ({**tensors, "xh.0.attn.bias": wte}, r"'xh\.0\.attn\.bias' is not one of"),
    }


@pytest.mark.parametrize("fault", change_tensors(random_model().parameters))
def test_tensors_that_do_not_fit_the_configuration(tmp_path, model, monkeypatch, fault):
    tensors = dict(reversed(model.parameters.items()))  # a file may have any order
    changed, message = change_tensors(tensors)[fault]
    write_tensors(tmp_path, changed)
    monkeypatch.setattr(Tensor, "values", lambda *_: pytest.fail("it was read"))
    error = refuses(message, lambda: tiedgpt.load_model(tmp_path, copy=True))
    assert error.startswith(str(tmp_path))


@pytest.mark.parametrize("dtype", [b"I32", b"U32"])
def test_a_dtype_that_is_not_read(tmp_path, model, dtype):
    """In the file's header, the dtype of the first tensor, wte.weight, is replaced."""
    path = write_tensors(tmp_path, model.parameters) / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b"F32", dtype, 1))
    refuses(rf"'wte\.weight' is {dtype.decode()}; .*F64, F32", tiedgpt.load_model, tmp_path)


@pytest.mark.parametrize("fault", ["missing", "shape", "dtype"])
def test_the_configuration_is_read_beside_weights_that_are_wrong(tmp_path, model, fault):
    """A W_U in the file is compared with wte, which may be another matrix or missing as W_U is."""
    wte = {"shape": model.W_E[1:], "dtype": model.W_E.astype(np.int64)}
    tensors = dict(model.parameters)
    del tensors["wte.weight"]
    if fault in wte:
        tensors |= {"wte.weight": wte[fault], "lm_head.weight": model.W_E}
    write_tensors(tmp_path, {})  # for its config.json
    with open(tmp_path / "model.safetensors", "wb") as file:
        safetensors.write(file, tensors.items(), exact=True)
    assert Opened(tmp_path).config.n_embd == model.config.n_embd
    refuses(r"wte\.weight", tiedgpt.load_model, tmp_path)


# Files that are missing or wrong


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        ("config.json", b"{", "not JSON"),
        ("config.json", b"\xff", "not JSON: 'utf-8' codec"),
        pytest.param(
            "config.json",
            b'{"a":' * 100_000 + b"0" + b"}" * 100_000,
            "not JSON: ",
            id="nested-too-deeply",
        ),
        ("config.json", b'{"model_type": "gpt2", "n_embd": NaN}', "NaN"),
        ("config.json", b'{"n_embd": NaN}', "NaN"),
        ("config.json", b'{"model_type": "gpt2", "n_embd": 2, "n_embd": 2}', "'n_embd' .* twice"),
        ("config.json", b'{"model_type": "bert"}', "model_type is 'bert'"),
        ("config.json", b'{"model_type": "mamba2", "limit": Infinity}', "model_type is 'mamba2'"),
        ("config.json", b'{"model_type": "gpt2", "n_embd": 20.5}', "n_embd"),
        ("generation_config.json", b'{"eos_token_id": "end"}', "eos_token_id .*'end'"),
        ("generation_config.json", b"[]", r"expected a JSON object, got \[\]$"),
    ],
)
def test_a_file_that_is_wrong_is_named(tmp_path, model, file, content, message):
    write_tensors(tmp_path, model.parameters)
    (tmp_path / file).write_bytes(content)
    refuses(f"^{re.escape(str(tmp_path / file))}: .*{message}", tiedgpt.load_model, tmp_path)


def test_a_file_hparams_json_beside_config_json_does_not_count(tmp_path, model):
    """Alone, it is that of OpenAI's own files. Other programs write one, too."""
    write_tensors(tmp_path, model.parameters)
    (tmp_path / "hparams.json").write_text('{"learning_rate": 0.1}')
    assert_same(tiedgpt.load_model(tmp_path), model)
    (tmp_path / "model.safetensors").unlink()
    refuses(r"neither model\.safetensors", tiedgpt.load_model, tmp_path)


@pytest.mark.parametrize("eos", [0, 5, [3, 4], None])
def test_generation_config_is_preferred_for_the_end_of_a_text(tmp_path, model, eos):
    write_tensors(tmp_path, model.parameters, replace(SMALL, eos_token_id=7))
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": eos}))
    expected = (7,) if eos is None else tuple(np.atleast_1d(eos).tolist())
    assert tiedgpt.load_model(tmp_path).config.eos_token_ids == expected


def test_a_text_file_that_is_too_large(tmp_path, model):
    write_tensors(tmp_path, model.parameters)
    size = 2**40  # bytes, which take no room on the disk
    os.truncate(tmp_path / "config.json", size)
    most = 2**25
    message = f"{tmp_path}/config.json: {size} bytes; expected at most {most}"
    refuses(f"^{re.escape(message)}$", tiedgpt.load_model, tmp_path)
    write_config(tmp_path, SMALL)
    (tmp_path / "merges.txt").touch()
    os.truncate(tmp_path / "merges.txt", most + 1)
    message = f"{tmp_path}/merges.txt: {most + 1} bytes; expected at most {most}"
    refuses(f"^{re.escape(message)}$", tiedgpt.load_tokenizer, tmp_path)


FORMATS = r" \(see weights/README\.md, Checkpoints of other programs\)$"  # the end of a message


def test_a_directory_without_a_file(tmp_path, model):
    write_tensors(tmp_path, model.parameters)
    refuses(r"no tokenizer", tiedgpt.load_tokenizer, tmp_path)
    (tmp_path / "model.safetensors").unlink()
    message = r"neither model\.safetensors nor model\.safetensors\.index\.json"
    refuses(message + FORMATS, tiedgpt.load_model, tmp_path)
    (tmp_path / "config.json").unlink()
    refuses(r"no config\.json" + FORMATS, tiedgpt.load_model, tmp_path)


@pytest.mark.parametrize("function", [tiedgpt.load_model, tiedgpt.load_tokenizer])
@pytest.mark.parametrize("source", [None, 7, b"gpt2", ["gpt2"]])
def test_a_source_that_is_not_a_path(function, source):
    message = f"^a model must be a name or a path, got {re.escape(repr(source))}$"
    refuses(message, function, source, error=ArgumentError)


# Formats that are not read

LOAD_ORIGINAL = "is not read; load the model.safetensors that it was made from"
WEIGHTS_OF_OTHERS = {
    "model_124M.bin": (
        "may be a file of PyTorch, which `-m FILE` reads with config.json beside it, or one of "
        "llm.c, which is not read"
    ),
    "weights.NPZ": "holds arrays of NumPy; tiedgpt.from_state_dict makes a model of them",
    "epoch=3.ckpt": "may be a file of PyTorch Lightning, which is not read; convert it",
    "model.gguf": LOAD_ORIGINAL,
    "tf_model.h5": LOAD_ORIGINAL,
    "model.onnx": LOAD_ORIGINAL,
    "flax_model.msgpack": LOAD_ORIGINAL,
    "model.keras": LOAD_ORIGINAL,
}
SEE = "(see weights/README.md, Checkpoints of other programs)"
README = Path(__file__).resolve().parents[2] / "weights" / "README.md"


@pytest.mark.parametrize("name", WEIGHTS_OF_OTHERS)
def test_the_error_says_what_to_do_with_weights_of_another_format(run, tmp_path, name):
    (tmp_path / name).write_bytes(b"\xb6\xd7\x34\1")
    message = re.escape(f"{name} {WEIGHTS_OF_OTHERS[name]} {SEE}")
    if name != "model_124M.bin":
        refuses(f"^{re.escape(str(tmp_path))}/{message}$", tiedgpt.load_model, tmp_path / name)
    refuses(rf"no config\.json \({message}\)$", tiedgpt.load_model, tmp_path)
    write_tensors(tmp_path, random_model().parameters)
    (tmp_path / "model.safetensors").unlink()
    refuses(rf"neither .* \({message}\)$", tiedgpt.load_model, tmp_path)
    if name != "weights.NPZ":  # which compare reads
        code, _, err = run("compare", "-m", "shakespeare-tied", str(tmp_path / name))
        assert code == 2
        assert re.search(message, err)


@pytest.mark.parametrize(
    "name",
    [
        "model.ckpt.index",
        "model.ckpt.data-00000-of-00001",
        "model.safetensors.index.json",
        "pytorch_model.bin.index.json",
    ],
)
def test_for_one_of_several_files_the_error_asks_for_the_directory(tmp_path, name):
    (tmp_path / name).write_bytes(b"")
    message = f"{tmp_path / name} is one of several files of a model; give their directory"
    refuses(f"^{re.escape(message)}$", tiedgpt.load_model, tmp_path / name)


def test_a_directory_is_not_advised_in_its_own_place(tmp_path):
    """It has one of several files, and not the others."""
    (tmp_path / "model.data-00000-of-00001").write_bytes(bytes(9))
    error = refuses("is not a checkpoint", tiedgpt.load_model, tmp_path)
    assert "give their directory" not in error


def test_a_file_of_an_unknown_format_is_not_a_checkpoint(tmp_path):
    (tmp_path / "notes.txt").write_text("none")
    message = r"notes\.txt is not a checkpoint: .* a config\.json"
    refuses(message + FORMATS, tiedgpt.load_model, tmp_path / "notes.txt")


@pytest.mark.parametrize(
    "name",
    [
        *("optimizer.pt", "optimizer.bin", "scheduler.bin", "training_args.bin", "rng_state_0.pth"),
        *("random_states_0.pt", "scaler.pt", "sampler.bin", "dl_state_dict.bin"),
    ],
)
def test_files_of_a_training_that_hold_no_model_are_not_named(tmp_path, name):
    (tmp_path / name).write_bytes(b"PK\x03\x04")
    refuses(r"no config\.json" + FORMATS, tiedgpt.load_model, tmp_path)
    write_config(tmp_path, SMALL)
    refuses(r"neither model\.safetensors nor [^(]*" + FORMATS, tiedgpt.load_model, tmp_path)


MERGE_SHARDS = (
    "is one of several parts of a model that FSDP trained: `accelerate merge-weights` makes one "
    "model of them"
)
FOLDERS = {  # a program -> files of its folder, and what the message says of them
    "DeepSpeed": (
        ["latest", "zero_to_fp32.py", "rng_state_0.pth"],
        "zero_to_fp32.py is DeepSpeed's, whose folders have the weights in parts: "
        "`python zero_to_fp32.py . merged` makes one model of them",
    ),
    "FSDP": (["pytorch_model_fsdp_0/__0_0.distcp"], f"pytorch_model_fsdp_0 {MERGE_SHARDS}"),
    "FSDP's own": (["__0_0.distcp", ".metadata"], f"__0_0.distcp {MERGE_SHARDS}"),
    "OpenVINO": (
        ["openvino_model.xml", "openvino_model.bin"],
        f"openvino_model.bin is of OpenVINO, which {LOAD_ORIGINAL} {SEE}",
    ),
    "CTranslate2": (
        ["model.bin", "vocabulary.json"],
        f"vocabulary.json is of CTranslate2, whose model.bin {LOAD_ORIGINAL} {SEE}",
    ),
    "optimum": (["onnx/model.onnx"], f"onnx is a folder of ONNX, which {LOAD_ORIGINAL} {SEE}"),
    "rust-bert": (
        ["rust_model.ot"],
        f"rust_model.ot is of rust-bert, which {LOAD_ORIGINAL} {SEE}",
    ),
    "TensorFlow": (
        ["model-10.index", "model-9.index"],
        "model-10.index is of TensorFlow: put the hparams.json of its model beside it",
    ),
    "PyTorch": (
        ["my_optimizer.pth", "optimizer.pt"],
        "my_optimizer.pth is a file of PyTorch: `-m FILE` and load_model(FILE) read the model in "
        f"it, with config.json beside it unless nanoGPT wrote it {SEE}",
    ),
}


@pytest.mark.parametrize("program", FOLDERS)
@pytest.mark.parametrize("has_config", [True, False])
def test_the_folder_of_another_program_is_named(tmp_path, program, has_config):
    files, message = FOLDERS[program]
    for file in files:
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_bytes(bytes(200))
    if has_config:
        write_config(tmp_path, SMALL)
    lack = "neither model.safetensors nor model.safetensors.index.json"
    if not has_config:
        lack = "no config.json"
    error = refuses("is not a checkpoint", tiedgpt.load_model, tmp_path)
    assert error == f"{tmp_path} is not a checkpoint: it has {lack} ({message})"


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "pytorch_model.bin",
        "model_1.safetensors",
        "model-00001-of-00002.safetensors",
    ],
)
def test_weights_without_a_configuration_are_named(tmp_path, model, name):
    """accelerate's save_state writes such a folder."""
    write_tensors(tmp_path, model.parameters)
    (tmp_path / "config.json").unlink()
    (tmp_path / "model.safetensors").rename(tmp_path / name)
    (tmp_path / "optimizer.bin").write_bytes(b"PK\x03\x04")
    message = rf"no config\.json \(there is {name}: put the config\.json of its model beside it\)$"
    refuses(message, tiedgpt.load_model, tmp_path)


QUANTISED = {  # a program -> names that it adds, and what it writes into config.json
    "bitsandbytes, 8 bits": ("h.0.attn.c_attn.SCB", {"quant_method": "bitsandbytes"}),
    "bitsandbytes, 4 bits": ("h.0.mlp.c_fc.weight.absmax", {"load_in_4bit": True}),
    "mlx-lm": ("model.h.0.attn.c_attn.scales", {"group_size": 32, "bits": 4}),
    "GPTQ": ("transformer.h.0.attn.c_attn.qweight", {"quant_method": "gptq"}),
    "8-bit floats": ("h.0.attn.c_attn.weight_scale_inv", {"quant_method": "fp8"}),
}


@pytest.mark.parametrize("program", QUANTISED)
def test_quantised_weights_are_named(tmp_path, model, program):
    name, config = QUANTISED[program]
    tensors = model.parameters | {name: np.ones(3, np.float32)}
    write_tensors(tmp_path, tensors)
    sentence = "the weights are quantised, which is not read: load the model that"
    our_name = name[name.index("h.0") :]
    message = f"{tmp_path}: has '{our_name}', so {sentence} they were made from"
    refuses(f"^{re.escape(message)}$", tiedgpt.load_model, tmp_path)
    refuses(sentence, tiedgpt.from_state_dict, tensors, None, SMALL, error=ArgumentError)
    for field in ("quantization_config", "quantization"):
        config_json = SMALL.to_json() | {field: config}
        (tmp_path / "config.json").write_text(json.dumps(config_json))
        error = refuses(f"{field} is .*: {sentence}", tiedgpt.load_model, tmp_path)
        assert "another model" not in error


WEB_PAGE = (
    "is a web page, not the file: on the hub, the address of a file has /resolve/, and that of its "
    "page /blob/"
)
MESSAGE = "is a server's message, not the file: download it again"
PICKLE = "is a pickle or zip file, as PyTorch writes: name it pytorch_model.bin if it is one"
STAND_INS = {  # the content of a file that is not what its name says -> what the message says
    "Git LFS": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n",
        "is a pointer of Git LFS, not the file: `git lfs pull` fetches it",
    ),
    "web page": (b"\n<!DOCTYPE html>\n<html>", WEB_PAGE),
    "web page without a type": (b"<HTML>", WEB_PAGE),
    "XML": (b'<?xml version="1.0"?><Error>', WEB_PAGE),
    "error of the hub": (b"Entry not found", MESSAGE),
    "error of GitHub": (b"404: Not Found", MESSAGE),
    "no repository": (b"Repository not found", MESSAGE),
    "gated": (b"Access to model owner/name is restricted.", MESSAGE),
    "not signed in": (b"Invalid username or password.", MESSAGE),
    "JSON error": (b'{"error": "Repository not found"}', MESSAGE),
    "JSON message": (b'{"message": "Not Found"}', MESSAGE),
    "zip": (b"PK\3\4" + bytes(99), PICKLE),
    "pickle": (b"\x80\2}q\0.", PICKLE),
    "old file of PyTorch": (b"\x80\2\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.", PICKLE),
    "pickle of today": (b"\x80\4\x95\x10" + bytes(7) + b"}.", PICKLE),
}


@pytest.mark.parametrize(
    "name",
    [
        "model.safetensors",
        "config.json",
        pytest.param("generation_config.json", marks=pytest.mark.slow),
        "merges.txt",
        pytest.param("tokenizer.json", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(("content", "message"), STAND_INS.values(), ids=STAND_INS)
def test_a_file_that_is_not_what_its_name_says(tmp_path, model, name, content, message):
    write_tensors(tmp_path, model.parameters)
    (tmp_path / name).write_bytes(content)
    is_of_tokenizer = name in ("merges.txt", "tokenizer.json")
    function = tiedgpt.load_tokenizer if is_of_tokenizer else tiedgpt.load_model
    refuses(f"^{re.escape(f'{tmp_path / name} {message}')}$", function, tmp_path)


def test_a_pickle_of_each_kind_is_known_by_its_first_bytes(tmp_path):
    write_config(tmp_path, SMALL)
    path = tmp_path / "model.safetensors"
    for protocol in (b"\x80\2", b"\x80\3"):
        for instruction in (b"}", b"]", b"(", b"c", b"\x8a"):
            path.write_bytes(protocol + instruction + b"0123456789")
            refuses(PICKLE, tiedgpt.load_model, path)
    path.write_bytes(b"\x80\5\x95\x10" + bytes(7) + b"}.")
    refuses(PICKLE, tiedgpt.load_model, path)


def test_a_name_that_only_quantised_weights_have():
    names = ["weight.quant_map", "weight.quant_state.bitsandbytes__nf4", "biases", "qzeros"]
    names += ["g_idx", "weight_scale", "SCB", "weight.absmax", "scales", "qweight"]
    for name in names:
        name = f"h.0.mlp.c_fc.{name}"
        assert first_of_quantised(["h.0.mlp.c_fc.weight", name, "h.1.x.SCB"]) == name
    assert first_of_quantised(["h.0.mlp.c_fc.bias", "h.0.scales.weight", "SCB", 7]) == ""


def test_a_file_with_the_words_of_a_web_page_inside_is_read(tmp_path, model):
    note = "<!doctype html> 404: Not Found"
    write_tensors(tmp_path, model.parameters)
    (tmp_path / "config.json").write_text(json.dumps({"note": note} | SMALL.to_json()))
    assert tiedgpt.load_model(tmp_path).config.others["note"] == note


def test_an_adapter_and_its_base_are_named(tmp_path):
    config = {"peft_type": "LORA", "base_model_name_or_path": "gpt2-medium"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    (tmp_path / "adapter_model.safetensors").write_bytes(b"")
    for path in (tmp_path, tmp_path / "adapter_model.safetensors"):
        message = f"of an adapter, 'LORA', for the model 'gpt2-medium': {COMPARE})"
        refuses(f"{re.escape(message)}$", tiedgpt.load_model, path)
    write_adapter(tmp_path, [LORA])
    refuses(f": {MERGE}\\)$", tiedgpt.load_model, tmp_path)


def write_adapter(directory: Path, names: list[str] | None, kind: str = "LORA") -> None:
    """Write an adapter with tensors of these names beside a model; None: without its weights."""
    adapter = {"peft_type": kind, "base_model_name_or_path": str(directory)}
    (directory / "adapter_config.json").write_text(json.dumps(adapter))
    if names is not None:
        with open(directory / "adapter_model.safetensors", "wb") as file:
            safetensors.write(file, [(name, np.ones((3, 3), np.float32)) for name in names])


LORA = "base_model.model.transformer.h.0.attn.c_attn.lora_A.weight"
LORA_HEAD = "base_model.model.lm_head.lora_A.weight"
TIED = "PEFT 0.21.2 merges what is added to a tied matrix into both its uses"
MERGE = "merge it with peft's merge_and_unload, and save that model to a new directory"
COMPARE = f"{MERGE}, and compare its logits before and after: {TIED}"


@pytest.mark.parametrize(
    ("names", "kind", "message", "check_code"),
    [
        ([LORA], "LORA", MERGE, 0),
        (
            [LORA, LORA_HEAD, LORA_HEAD.replace("_A", "_B")],
            "LORA",
            f"do not merge it into a tied model: {TIED}; it changes the head: "
            f"adapter_model.safetensors has '{LORA_HEAD}'",
            1,
        ),
        (
            ["base_model.model.transformer.wte.weight"],
            "IA3",
            f"{COMPARE}; it changes the head: adapter_model.safetensors has "
            "'base_model.model.transformer.wte.weight'",
            1,
        ),
        (
            [LORA],
            "PREFIX_TUNING",
            "it adds to the prompt, so it cannot be merged into the weights, and is not read",
            1,
        ),
        (
            None,
            "LORA",
            f"{COMPARE}; whether it changes the head is not known: its weights are not here",
            1,
        ),
    ],
)
def test_an_adapter_beside_a_model_is_not_used_with_a_warning(
    tmp_path, model, run, names, kind, message, check_code
):
    """transformers may apply it if peft is installed. A copy is made of the model alone.

    check_code: of `check`, for which an adapter of one matrix of a tied model is a conflict, and
    one that transformers cannot load is not known.
    """
    write_tensors(tmp_path / "model", model.parameters)
    write_adapter(tmp_path / "model", names, kind)
    message = (
        f"adapter_config.json is of an adapter, '{kind}', which lies beside the model and is not "
        f"used, but which transformers may apply where peft is installed: {message}"
    )
    for path in (tmp_path / "model", tmp_path / "model" / "model.safetensors"):
        with pytest.warns(TiedGPTWarning) as caught:
            assert_same(tiedgpt.load_model(path), model)
        assert [str(warning.message) for warning in caught] == [f"{path}: {message}"]
        assert [warning.filename for warning in caught] == [__file__]
    code, document, _ = run("check", str(tmp_path / "model"), "--json")
    [report] = json.loads(document)["models"]
    assert code == check_code
    assert report["adapter"] == message
    code, out, _ = run("check", str(tmp_path / "model"))
    assert code == check_code
    assert " ".join(report["adapter"].split()) in " ".join(out.split())


def test_a_damaged_adapter_beside_a_model_is_not_used_with_a_warning(tmp_path, model, run):
    """The model is whole. Without it, the damaged file is an error."""
    write_tensors(tmp_path, model.parameters)
    (tmp_path / "adapter_config.json").write_text('{"peft_type": ')
    message = (
        "an adapter lies beside the model, and is not used nor known: .*/adapter_config.json: not "
        "JSON: Expecting value"
    )
    with pytest.warns(TiedGPTWarning, match=message):
        assert_same(tiedgpt.load_model(tmp_path), model)
    code, document, _ = run("check", str(tmp_path), "--json")
    [report] = json.loads(document)["models"]
    assert (code, report["verdict"]) == (1, "not known")
    assert "adapter_config.json: not JSON" in report["adapter"]
    (tmp_path / "model.safetensors").unlink()
    refuses("adapter_config.json: not JSON", tiedgpt.load_model, tmp_path)


@pytest.mark.filterwarnings("always::tiedgpt.errors.TiedGPTWarning")
def test_a_copy_of_a_model_does_not_carry_the_adapter_silently(tmp_path, model, run):
    write_tensors(tmp_path / "model", model.parameters)
    write_adapter(tmp_path / "model", [LORA])
    code, _out, err = run("untie", str(tmp_path / "model"), str(tmp_path / "copy"))
    assert code == 0
    assert "note" in err
    assert "adapter_config.json" in err
    assert sorted(os.listdir(tmp_path / "copy")) == ["config.json", "model.safetensors"]


@pytest.mark.parametrize("prefix", ["gpt.", "base_model.model.transformer."])
def test_names_that_begin_in_another_way(tmp_path, model, prefix):
    write_tensors(tmp_path, {f"{prefix}{name}": x for name, x in model.parameters.items()})
    message = f"; the names of this file begin with '{prefix}', so remove it from each$"
    error = refuses(message, tiedgpt.load_model, tmp_path)
    assert error.startswith(f"{tmp_path}: parameter wte.weight is missing; ")


def test_the_newest_checkpoint_of_a_training_is_named(tmp_path):
    for name in ("checkpoint-500", "checkpoint-1000", "checkpoint-best", "checkpoint-²"):
        (tmp_path / name).mkdir()
    (tmp_path / "checkpoint-2000").touch()
    latest = tmp_path / "checkpoint-1000"
    message = f"(it holds checkpoints of a training: give one of them, such as {latest})"
    refuses(f"{re.escape(message)}$", tiedgpt.load_model, tmp_path)


SHARD = "{} is one of several files: get {}.index.json, which lists them, too"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("model.fp16.safetensors", "there is model.fp16.safetensors: give this file"),
        (
            "model-00001-of-00002.safetensors",
            SHARD.format("model-00001-of-00002.safetensors", "model.safetensors"),
        ),
        (
            "pytorch_model-00001-of-00002.bin",
            SHARD.format("pytorch_model-00001-of-00002.bin", "pytorch_model.bin"),
        ),
        (
            "pytorch_model.fp16.bin",
            f"pytorch_model.fp16.bin {WEIGHTS_OF_OTHERS['model_124M.bin']} {SEE}",
        ),
    ],
)
def test_weights_under_another_name_are_named(tmp_path, model, name, message):
    write_tensors(tmp_path, model.parameters)
    (tmp_path / "model.safetensors").rename(tmp_path / name)
    if name.endswith(".bin"):
        (tmp_path / name).write_bytes(torch_file(model.parameters))
    lack = "neither model.safetensors nor model.safetensors.index.json"
    error = refuses("is not a checkpoint", tiedgpt.load_model, tmp_path)
    assert error == f"{tmp_path} is not a checkpoint: it has {lack} ({message})"
    assert_same(tiedgpt.load_model(tmp_path / name), model)  # all parameters are in this file


@pytest.mark.parametrize("name", ["model.safetensors", "ckpt.pt", "config.json"])
def test_a_name_of_a_checkpoint_that_is_no_file(tmp_path, model, name):
    """In a cache of Hugging Face that was copied without its blobs, links lead to no file."""
    write_tensors(tmp_path, model.parameters, model.config)
    (tmp_path / "model.safetensors").rename(tmp_path / "x.safetensors")
    (tmp_path / name).unlink(missing_ok=True)
    (tmp_path / name).mkdir()
    refuses(f"\\({name} is no file\\)", tiedgpt.load_model, tmp_path)
    (tmp_path / name).rmdir()
    os.mkfifo(tmp_path / name)
    refuses(f"\\({name} is no file\\)", tiedgpt.load_model, tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to(tmp_path)
    refuses(f"\\({name} is no file\\)", tiedgpt.load_model, tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).symlink_to("../../blobs/0123")
    refuses(f"\\({name} is a link that leads to no file\\)", tiedgpt.load_model, tmp_path)


def test_a_text_of_the_largest_size_is_read(tmp_path, model, monkeypatch):
    write_config(tmp_path, model.config)
    path = tmp_path / "config.json"
    size = path.stat().st_size
    monkeypatch.setattr(json_files, "MAX_TEXT", size)
    assert Opened(path).config == model.config
    monkeypatch.setattr(json_files, "MAX_TEXT", size - 1)
    refuses(f"{size} bytes; expected at most {size - 1}", Opened, path)


def test_another_json_file_than_config_json_is_named(tmp_path, model):
    """config.json beside it is not read."""
    write_config(tmp_path, model.config)
    (tmp_path / "vocab.json").write_text("{}")
    refuses("vocab.json: ", lambda: Opened(tmp_path / "vocab.json").config)
    refuses('vocab.json: "model_type" is missing', tiedgpt.load_model, tmp_path / "vocab.json")


def test_the_readme_has_the_section_that_errors_name():
    assert "\n## Checkpoints of other programs\n" in README.read_text()


@pytest.mark.parametrize("name", ["ckpt.pt", "pytorch_model.bin", "model.pth"])
def test_compare_says_that_a_file_of_pytorch_is_a_model(run, tmp_path, name):
    (tmp_path / name).write_bytes(b"\x80\x02}q\0.")
    code, _, err = run("compare", "-m", "shakespeare-tied", str(tmp_path / name))
    assert code == 2
    assert re.search(f"{name} .*PyTorch.*weights/README.md, Checkpoints of other programs", err)


def test_the_code_in_the_readme_converts_a_file_of_another_form(tmp_path, monkeypatch):
    """A training loop of one's own saves a dataclass, which only torch can read."""
    torch = pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    model = random_model(CONFIG.with_head("untied"))
    state = {name: torch.tensor(array) for name, array in model.parameters.items()}
    torch.save({"model": state, "config": CONFIG}, "mine.pt")
    refuses("tiedgpt.gpt2.config.Config", tiedgpt.load_model, tmp_path / "mine.pt")
    block = re.search(r"```text\n(state = torch\.load.*?)```", README.read_text(), re.DOTALL)
    (tmp_path / "config.json").write_text(json.dumps(model.config.to_json()))
    exec(block[1], {"torch": torch, "tiedgpt": tiedgpt})
    np.testing.assert_array_equal(tiedgpt.load_model("my-model").W_U, model.W_U)


# The index of several files


def read_weight_map(directory) -> dict[str, str]:
    index = directory / "model.safetensors.index.json"
    return json.loads(index.read_text())["weight_map"]


def write_index(directory, weight_map: object) -> None:
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))


@pytest.mark.parametrize(
    "file",
    [
        "../a.safetensors",
        "a\\b.safetensors",
        ".a.safetensors",
        "a.safetensors\n",
        3,
        "config.json",
        "x" * 201 + ".safetensors",
    ],
)
def test_an_index_that_names_no_safetensors_file_beside_it(tmp_path, model, file):
    """The index says that wte is in `file`."""
    write_shards(tmp_path, model)
    names = {**read_weight_map(tmp_path), "wte.weight": file, "z": "../z.safetensors"}
    write_index(tmp_path, names)
    message = (
        f'{tmp_path}/model.safetensors.index.json: "weight_map" must map tensor names to '
        f".safetensors or .bin files beside it, got {short_repr(file)}"
    )
    refuses(f"^{re.escape(message)}$", tiedgpt.load_model, tmp_path)


def test_a_file_of_an_index_may_have_a_name_of_200_characters(tmp_path, model):
    write_shards(tmp_path, model)
    name = "x" * 200 + ".safetensors"
    (tmp_path / "b.safetensors").rename(tmp_path / name)
    weight_map = read_weight_map(tmp_path)
    renamed = {tensor: file.replace("b.safetensors", name) for tensor, file in weight_map.items()}
    write_index(tmp_path, renamed)
    assert_same(tiedgpt.load_model(tmp_path), model)


@pytest.mark.parametrize("kind", ["fifo", "missing"])
def test_an_index_that_names_a_file_that_cannot_be_read(tmp_path, model, kind):
    """Opening a FIFO would wait for ever."""
    write_shards(tmp_path, model)
    if kind == "fifo":
        os.mkfifo(tmp_path / "fifo.safetensors")
    write_index(tmp_path, {**read_weight_map(tmp_path), "w": f"{kind}.safetensors"})
    reason = {
        "fifo": "is not a regular file",
        "missing": "cannot be read: No such file or directory",
    }
    message = f"{tmp_path / kind}.safetensors: {reason[kind]}"
    refuses(f"^{re.escape(message)}$", tiedgpt.load_model, tmp_path)


def test_a_tensor_that_is_in_another_file_than_the_index_says(tmp_path, model):
    """wte is in a.safetensors, but the index says b.safetensors."""
    write_shards(tmp_path, model)
    write_index(tmp_path, {**read_weight_map(tmp_path), "wte.weight": "b.safetensors"})
    message = (
        f"{tmp_path}/model.safetensors.index.json: it and the files do not agree on tensor "
        "'wte.weight' in a.safetensors"
    )
    refuses(f"^{re.escape(message)}$", tiedgpt.load_model, tmp_path)


def test_a_tensor_that_is_in_the_index_but_in_no_file(tmp_path, model):
    write_shards(tmp_path, model)
    write_index(tmp_path, {**read_weight_map(tmp_path), "h.9.ln_1.bias": "b.safetensors"})
    message = r"do not agree on tensor 'h\.9\.ln_1\.bias' in b\.safetensors"
    refuses(message, tiedgpt.load_model, tmp_path)


def test_a_tensor_that_the_index_does_not_list(tmp_path, model):
    write_shards(tmp_path, model)
    weight_map = read_weight_map(tmp_path)
    del weight_map["wte.weight"]
    write_index(tmp_path, weight_map)
    refuses(r"do not agree on tensor 'wte\.weight' in a\.safetensors", tiedgpt.load_model, tmp_path)


@pytest.mark.parametrize("name", ["wte.weight", "transformer.wte.weight"])
def test_a_tensor_that_is_in_two_files(tmp_path, model, name):
    """wte is in a.safetensors, and in b.safetensors as well, under one of its two names.

    The index can name one file for a name.
    """
    write_shards(tmp_path, model)
    path = tmp_path / "b.safetensors"
    in_file, _ = safetensors.read_header(path)
    tensors = {key: tensor.values(copy=True) for key, tensor in in_file.items()}
    with open(path, "wb") as file:
        safetensors.write(file, [*tensors.items(), (name, model.W_E + 1)])
    refuses(rf"do not agree on tensor '{name}' in b\.safetensors", tiedgpt.load_model, tmp_path)
    if name != "wte.weight":
        write_index(tmp_path, {**read_weight_map(tmp_path), name: "b.safetensors"})
        refuses(r"'wte\.weight' is there twice", tiedgpt.load_model, tmp_path)


@pytest.mark.parametrize("weight_map", [["a.safetensors"], {}, None])
def test_an_index_without_a_map(tmp_path, model, weight_map):
    write_shards(tmp_path, model)
    write_index(tmp_path, weight_map)
    got = re.escape(repr(weight_map))
    refuses(f"files beside it, got {got}$", tiedgpt.load_model, tmp_path)


# The files beside a model are copied as they are

OTHER_FILES = {
    "added_tokens.json": b'{"<pad>": 262}',
    "tokenizer_config.json": b'{"pad_token": "<pad>", "model_max_length": 9}',
    "special_tokens_map.json": b'{"pad_token": "<pad>"}',
    "chat_template.jinja": b"{{ messages }}",
    "chat_template.json": b'{"chat_template": "{{ messages }}"}',
    "generation_config.json": b'{"do_sample": true, "pad_token_id": 262}',
    "additional_chat_templates/rag.jinja": b"{{ documents }}",
    "additional_chat_templates/tools.jinja": b"{{ tools }}",
}


@pytest.fixture
def source(tmp_path) -> Path:
    """A tied checkpoint with a tokenizer.json of 263 tokens, of which <pad> is the last.

    The files of OTHER_FILES are there, too.
    """
    folder = tmp_path / "source"
    added = [added_token(EOT, 261), added_token("<pad>", 262)]
    tiedgpt.save_model(random_model(replace(SMALL, vocab_size=263)), None, folder)
    (folder / "additional_chat_templates").mkdir()
    text = json.dumps(tokenizer_json(added_tokens=added))
    (folder / "tokenizer.json").write_text(text)
    for name, content in OTHER_FILES.items():
        (folder / name).write_bytes(content)
    return folder


def files_beside_model(folder: Path) -> dict[str, bytes]:
    """The contents of a checkpoint's folder, without the files of the model itself."""
    files = contents(folder)
    del files["config.json"], files["model.safetensors"]
    del files["additional_chat_templates"]
    for path in (folder / "additional_chat_templates").iterdir():
        files[f"additional_chat_templates/{path.name}"] = path.read_bytes()
    return files


@pytest.mark.parametrize("change", ["none", "unreadable"])
def test_the_files_beside_a_model_are_copied_as_they_are(source, change):
    """A tokenizer.json with a normalizer is one that tiedgpt cannot read."""
    if change == "unreadable":
        text = json.dumps(tokenizer_json(normalizer={"type": "NFC"}))
        (source / "tokenizer.json").write_text(text)
    expected = files_beside_model(source)
    assert len(expected) == 1 + len(OTHER_FILES)
    assert Opened(source).copied_files() == expected
    assert Opened(source / "model.safetensors").copied_files() == expected


def test_openais_files_get_the_names_that_transformers_knows(tmp_path, monkeypatch):
    """They are vocab.bpe, which becomes merges.txt, and encoder.json, which becomes vocab.json."""
    monkeypatch.setattr(tensorflow, "HEAD_WIDTH", SMALL.head_width)  # OpenAI's is 64
    config = replace(SMALL, n_inner=4 * SMALL.n_embd)  # OpenAI's files have no other n_inner
    write_openai_model(tmp_path, random_model(config))
    files = tokenizer_files(Tokenizer(SMALL_MERGES))
    (tmp_path / "vocab.bpe").write_bytes(files["merges.txt"])
    (tmp_path / "encoder.json").write_bytes(files["vocab.json"])
    assert Opened(tmp_path).copied_files() == files


def test_the_tokens_of_a_written_vocabulary_are_in_the_order_of_their_ids():
    ids = json.loads(tokenizer_files(Tokenizer(SMALL_MERGES))["vocab.json"])
    assert list(ids.values()) == list(range(len(ids)))


def test_the_files_that_a_tokenizer_needs():
    """More than its vocabulary if transformers would give other ids without them."""
    fast = {"tokenizer_class": "PreTrainedTokenizerFast"}
    space = {"add_prefix_space": True}
    stripped = {EOT: Flags(lstrip=True)}
    cases = [  # a tokenizer, its tokenizer_config.json, and whether it has a tokenizer.json
        (Tokenizer(SMALL_MERGES), None, False),
        (Tokenizer(SMALL_MERGES, {}), fast, True),
        (Tokenizer(SMALL_MERGES, {"<s>": 261}), fast, True),
        (Tokenizer(SMALL_MERGES, prefix_space=True), space, True),
        (Tokenizer(SMALL_MERGES, {}, prefix_space=True), fast | space, True),
        (Tokenizer(SMALL_MERGES, flags=stripped), None, True),
    ]
    for tokenizer, settings, has_json in cases:
        files = tokenizer_files(tokenizer)
        written = json.loads(files.pop("tokenizer_config.json", b"null"))
        assert written == settings
        assert ("tokenizer.json" in files) == has_json
        merges = "".join(f"{left} {right}\n" for left, right in SMALL_MERGES)
        assert files["merges.txt"].decode() == f"#version: 0.2\n{merges}"
        assert json.loads(files["vocab.json"]) == tokenizer.ids


def test_the_fields_of_a_tokenizer_json_are_those_that_transformers_writes():
    tokenizer = Tokenizer(
        SMALL_MERGES, {"<s>": 261}, flags={"<s>": Flags(lstrip=True)}, prefix_space=True
    )
    byte_level = {"type": "ByteLevel", "trim_offsets": True, "use_regex": True}
    token = {"id": 261, "content": "<s>", **asdict(Flags(lstrip=True))}
    assert json.loads(tokenizer_files(tokenizer)["tokenizer.json"]) == {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [token],
        "normalizer": None,
        "pre_tokenizer": byte_level | {"add_prefix_space": True},
        "post_processor": None,
        "decoder": byte_level | {"add_prefix_space": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": tokenizer.ids,
            "merges": [list(pair) for pair in SMALL_MERGES],
        },
    }


def test_a_vocabulary_that_transformers_cannot_read_is_completed(tmp_path):
    """For tiedgpt, merges.txt is enough. transformers needs vocab.json, too. The copy has both."""
    files = tokenizer_files(Tokenizer(SMALL_MERGES))
    (tmp_path / "merges.txt").write_bytes(files["merges.txt"])
    assert Opened(tmp_path).copied_files() == files


@pytest.mark.parametrize(
    ("head", "words"),
    [("tied", ["untie"]), ("untied", ["tie"]), ("tied", ["resize", "--vocab-size", "270"])],
)
def test_a_completed_copy_has_the_files_of_the_source_as_they_are(run, tmp_path, head, words):
    """vocab.json is made for the copy. merges.txt would be made with another first line."""
    source = tmp_path / "source"
    vocabulary = Tokenizer(SMALL_MERGES)
    config = replace(SMALL, vocab_size=vocabulary.vocab_size)
    tiedgpt.save_model(random_model(config.with_head(head)), vocabulary, source)
    (source / "vocab.json").unlink()
    merges = (source / "merges.txt").read_text(encoding="utf-8").splitlines()
    merges[0] = "#version: 0.2 - of somebody else"
    files = {
        "merges.txt": "\n".join(merges).encode(),
        "tokenizer_config.json": b'{"model_max_length": 9}',
        "generation_config.json": b'{"eos_token_id":   3}',
    }
    for name, content in files.items():
        (source / name).write_bytes(content)
    code, _, _ = run(*words, "-q", str(source), str(tmp_path / "copy"))
    assert code == 0
    copied = contents(tmp_path / "copy")
    del copied["config.json"], copied["model.safetensors"]
    assert copied == files | {"vocab.json": tokenizer_files(vocabulary)["vocab.json"]}


def test_a_note_says_that_the_copy_has_no_tokenizer(tmp_path):
    files = {"generation_config.json": b"{}"}
    for more in ({}, {"vocab.json": b"{}"}):
        files |= more
        for name, content in files.items():
            (tmp_path / name).write_bytes(content)
        notes = []
        assert Opened(tmp_path).copied_files(notes.append) == files
        error = refuses("^", tiedgpt.load_tokenizer, tmp_path)
        assert notes == [f"{error}; the copy is written without a tokenizer"]


@pytest.mark.parametrize("words", [["untie"], ["resize", "--vocab-size", "270"]], ids=" ".join)
def test_a_command_copies_the_files_beside_the_model(run, source, tmp_path, words):
    """transformers then knows the pad token. Token 257 is "low", and 262 is <pad>."""
    copy = tmp_path / "copy"
    code, _, _ = run(*words, "-q", str(source), str(copy))
    assert code == 0
    assert files_beside_model(copy) == files_beside_model(source)
    transformers = pytest.importorskip("transformers")
    theirs = transformers.AutoTokenizer.from_pretrained(copy)
    assert theirs.pad_token == "<pad>"
    assert theirs.decode([257, 262], skip_special_tokens=True) == "low"


def test_the_fields_of_a_config_that_is_written_are_in_order(model, tmp_path):
    """So that two of them can be compared line by line."""
    tiedgpt.save_model(model, None, tmp_path / "new")
    text = (tmp_path / "new" / "config.json").read_text(encoding="utf-8")
    assert text == json.dumps(json.loads(text), indent=2, sort_keys=True) + "\n"
