"""Checkpoints on disk: every layout that is read, every way to be wrong, and what is written.

config.json says that the head is tied or untied. The file of weights may hold no W_U, a copy of
wte.T as W_U, or a W_U that is not wte.T. `model` is a small tied model, without a W_U.
"""

import json
import os
import re
from dataclasses import replace

import numpy as np
import pytest
from support.checkpoint_files import assert_same, write_shards, write_tensors
from support.checks import refuses
from support.models import CONFIG, SMALL, random_model

import tiedgpt
from tiedgpt import Tokenizer
from tiedgpt.checkpoints import safetensors
from tiedgpt.checkpoints.formats import open_checkpoint, read_config
from tiedgpt.errors import ArgumentError, TiedGPTWarning, short_repr

UNTIED = SMALL.with_head("untied")

# Saved models


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_a_saved_model_comes_back(tmp_path, head):
    model = random_model(CONFIG.with_head(head))
    tiedgpt.save_model(model, Tokenizer([]), tmp_path)
    assert_same(tiedgpt.load_model(tmp_path), model)
    assert tiedgpt.load_tokenizer(tmp_path).encode("é") == Tokenizer([]).encode("é")


def test_a_model_is_read_from_its_file_too(tmp_path, model):
    """config.json is beside the file."""
    tiedgpt.save_model(model, None, tmp_path)
    assert_same(tiedgpt.load_model(str(tmp_path / "model.safetensors")), model)


def test_the_files_of_a_saved_model(tmp_path):
    """The directory, and the directory above it, are made if they are not there."""
    tiedgpt.save_model(random_model(CONFIG), Tokenizer([]), tmp_path / "new" / "folder")
    files = ["config.json", "merges.txt", "model.safetensors", "vocab.json"]
    assert sorted(os.listdir(tmp_path / "new" / "folder")) == files


def test_arrays_in_columns_and_in_float64_are_written_with_their_values(tmp_path, model):
    """An array may lie in memory column by column, as wte.T does. In a file it is row by row."""
    parameters = {}
    for name, array in model.parameters.items():
        parameters[name] = np.asfortranarray(array.astype(np.float64))
    tiedgpt.save_model(tiedgpt.GPT2(SMALL, parameters), None, tmp_path)
    assert_same(tiedgpt.load_model(tmp_path), model)


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
    """Fields that tiedgpt does not use are given to json.dumps, which refuses numbers of NumPy."""
    model = random_model(replace(SMALL, others={"pad_token_id": np.int64(7)}))
    message = r"new: config\.json cannot be written: "
    refuses(message, tiedgpt.save_model, model, None, tmp_path / "new")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param({"directory": ""}, "the directory must be a path, got ''", id="empty"),
        pytest.param(
            {"directory": "a\0b"}, r"the directory must be a path, got 'a\\x00b'", id="zero-byte"
        ),
        pytest.param({"directory": 7}, "the directory must be a path, got 7", id="number"),
        pytest.param({"model": "gpt2"}, "the model must be a GPT2, got 'gpt2'", id="model"),
        pytest.param(
            {"tokenizer": "new"},
            "the tokenizer must be a Tokenizer or None, got 'new'",
            id="tokenizer",
        ),
    ],
)
def test_arguments_that_cannot_be_saved(tmp_path, monkeypatch, model, arguments, message):
    monkeypatch.chdir(tmp_path)
    right = {"model": model, "tokenizer": None, "directory": "new"}
    with pytest.raises(ArgumentError, match=f"^{message}$"):
        tiedgpt.save_model(**(right | arguments))
    assert list(tmp_path.iterdir()) == []


# Layouts of files


@pytest.mark.parametrize("prefix", ["", "transformer."])
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


def test_several_files_of_weights(tmp_path, model):
    assert_same(tiedgpt.load_model(write_shards(tmp_path, model)), model)


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
    assert_same(tiedgpt.load_model(no_head("tied")), model)


def test_a_checkpoint_that_says_tied_with_a_copy_of_wte_is_loaded_tied(copied_head, model):
    """There is no warning: in a test it would be an error."""
    assert_same(tiedgpt.load_model(copied_head("tied")), model)


def test_a_checkpoint_that_says_tied_with_another_matrix_is_loaded_untied(other_head):
    """transformers 5 does so, too, but transformers 4 does not. A warning says it."""
    path = other_head("tied")
    with pytest.warns(TiedGPTWarning) as caught:
        assert_same(tiedgpt.load_model(path), random_model(UNTIED))
    warning = caught[0]
    message = str(warning.message)
    assert "untied, as transformers 5 reads it; transformers 4 reads it as tied" in message
    assert 'write "tie_word_embeddings": false into config.json' in message
    assert warning.filename == __file__  # the warning is about the call of load_model


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
    assert open_checkpoint(tmp_path).config.head == head


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_a_head_that_load_model_is_given_is_loaded_without_a_warning(other_head, head):
    assert tiedgpt.load_model(other_head("tied"), head).config.head == head


def test_the_configuration_that_is_read_has_the_head_that_is_loaded(other_head, copied_head):
    """config.json says tied in both files."""
    assert read_config(other_head("tied")).head == "untied"
    assert read_config(copied_head("tied")).head == "tied"


def test_a_configuration_is_read_without_weights(other_head):
    path = other_head("tied")
    (path / "model.safetensors").unlink()
    assert read_config(path).head == "tied"


def test_transformers_reads_the_same_head(other_head, copied_head):
    """config.json says tied. But a W_U in the file that is not wte.T is used."""
    transformers = pytest.importorskip("transformers")
    major, _, _ = transformers.__version__.partition(".")
    if int(major) < 5:
        pytest.skip("transformers 4 ties the model, as config.json says")
    untied = transformers.GPT2LMHeadModel.from_pretrained(other_head("tied"))
    W_U = random_model(UNTIED).parameters["lm_head.weight"]
    np.testing.assert_array_equal(untied.lm_head.weight.detach().numpy(), W_U)
    tied = transformers.GPT2LMHeadModel.from_pretrained(copied_head("tied"))
    assert tied.lm_head.weight is tied.transformer.wte.weight


def test_a_checkpoint_that_says_untied_is_loaded_untied(other_head):
    assert_same(tiedgpt.load_model(other_head("untied")), random_model(UNTIED))


def test_a_checkpoint_that_says_untied_with_a_copy_of_wte_is_loaded_untied(copied_head, model):
    assert_same(tiedgpt.load_model(copied_head("untied")), model.untie("copy"))


def test_a_checkpoint_that_says_untied_without_a_matrix_is_refused(no_head):
    message = r'no lm_head\.weight; load it with head "tied", or "unt'
    refuses(message, tiedgpt.load_model, no_head("untied"))


@pytest.mark.parametrize("said", ["tied", "untied"])
def test_head_untied_starts_with_a_copy_of_wte_if_the_file_has_no_matrix(no_head, model, said):
    loaded = tiedgpt.load_model(no_head(said), "untied")
    assert_same(loaded, model.untie("copy"))
    assert not np.shares_memory(loaded.W_U, loaded.W_E)


@pytest.mark.parametrize("said", ["tied", "untied"])
def test_head_untied_uses_the_matrix_of_the_file(other_head, said):
    assert_same(tiedgpt.load_model(other_head(said), "untied"), random_model(UNTIED))


@pytest.mark.parametrize("said", ["tied", "untied"])
def test_head_tied_drops_the_matrix_of_the_file(other_head, said):
    assert_same(tiedgpt.load_model(other_head(said), "tied"), random_model(UNTIED).tie())


def test_a_head_that_is_neither_tied_nor_untied(no_head):
    message = 'head must be "tied" or "untied", got \'both\''
    refuses(message, tiedgpt.load_model, no_head("tied"), "both", error=ArgumentError)


# Tensors that do not fit the configuration


@pytest.fixture
def refuses_tensors(tmp_path, model, monkeypatch):
    """refuses_tensors(message, change): load_model refuses the model's tensors after the change.

    `change` gets a dict of the tensors by name, and changes it. load_model must check all tensors
    before it reads one.
    """

    def fail_because_a_tensor_was_read(*_):
        pytest.fail("read before the check was over")

    monkeypatch.setattr(safetensors.Tensor, "read", fail_because_a_tensor_was_read)

    def refuses_tensors(message, change) -> None:
        tensors = dict(reversed(model.parameters.items()))  # a file may have any order
        change(tensors)
        write_tensors(tmp_path, tensors)
        # A copy reads each tensor. Without copy=True, the file would be mapped and not read.
        error = refuses(message, lambda: tiedgpt.load_model(tmp_path, copy=True))
        file = tmp_path / "model.safetensors"
        assert f"{file}: " in error

    return refuses_tensors


def test_a_tensor_that_is_missing(refuses_tensors):
    refuses_tensors(
        r"h\.1\.ln_2\.bias of the 2-layer .* is missing \(1 in all\)",
        lambda tensors: tensors.pop("h.1.ln_2.bias"),
    )


def test_a_tensor_too_many(refuses_tensors):
    refuses_tensors(
        r"tensor 'h\.2\.ln_1\.bias' is not a parameter",
        lambda tensors: tensors.update({"h.2.ln_1.bias": tensors["ln_f.bias"]}),
    )


def test_a_tensor_of_another_shape(refuses_tensors):
    refuses_tensors(
        r"tensor 'wpe\.weight' has shape \[21, 31\]; config\.json makes it \[31, 21\]",
        lambda tensors: tensors.update({"wpe.weight": tensors["wpe.weight"].T}),
    )


def test_a_tensor_twice(refuses_tensors):
    refuses_tensors(
        r"'wte\.weight' is there twice, once after",
        lambda tensors: tensors.update({"transformer.wte.weight": tensors["wte.weight"]}),
    )


def test_a_head_of_another_shape(refuses_tensors):
    refuses_tensors(
        r"tensor 'lm_head\.weight' has shape \[31, 21",
        lambda tensors: tensors.update({"lm_head.weight": tensors["wpe.weight"]}),
    )


def test_a_dtype_that_is_not_read(tmp_path, model):
    """In the file's header, the dtype of the first tensor, wte.weight, is replaced."""
    path = write_tensors(tmp_path, model.parameters) / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"F32"', b'"I32"', 1))
    message = r"tensor 'wte\.weight' is I32; expected one of F32, F16, BF16"
    refuses(message, tiedgpt.load_model, tmp_path)


# Files that are missing or wrong


@pytest.mark.parametrize(
    ("file", "content", "message"),
    [
        pytest.param("config.json", b"{", r"config\.json: not JSON", id="not-json"),
        pytest.param(
            "config.json",
            b'{"model_type": "gpt2", "n_embd": NaN}',
            r"config\.json: not JSON: NaN is not a JSON number",
            id="nan",
        ),
        pytest.param(
            "config.json",
            b'{"model_type": "bert"}',
            r"config\.json: model_type is 'bert'",
            id="bert",
        ),
        pytest.param(
            "config.json",
            b'{"model_type": "gpt2", "n_embd": 20.5}',
            r"config\.json: n_embd must be a whole",
            id="fraction",
        ),
        pytest.param(
            "generation_config.json",
            b'{"eos_token_id": "end"}',
            r"/generation_config\.json: .*must be .*'end'",
            id="eos",
        ),
    ],
)
def test_a_file_that_is_wrong_is_named(tmp_path, model, file, content, message):
    write_tensors(tmp_path, model.parameters)
    (tmp_path / file).write_bytes(content)
    refuses(message, tiedgpt.load_model, tmp_path)


def test_a_text_file_that_is_too_large(tmp_path, model):
    write_tensors(tmp_path, model.parameters)
    size = 2**40  # bytes, which take no room on the disk
    os.truncate(tmp_path / "config.json", size)
    refuses(rf"config\.json: {size} bytes; expected at most \d+", tiedgpt.load_model, tmp_path)


def test_a_directory_without_a_configuration(tmp_path, model):
    write_tensors(tmp_path, model.parameters)
    (tmp_path / "config.json").unlink()
    refuses(r"is not a checkpoint: it has no config\.json", tiedgpt.load_model, tmp_path)


def test_a_directory_without_weights(tmp_path, model):
    write_tensors(tmp_path, model.parameters)
    (tmp_path / "model.safetensors").unlink()
    message = r"neither model\.safetensors nor model\.safetensors\.index\.json$"
    refuses(message, tiedgpt.load_model, tmp_path)


def test_a_directory_without_a_tokenizer(tmp_path, model):
    write_tensors(tmp_path, model.parameters)
    message = r"no tokenizer: expected merges\.txt and vocab\.json, or tok"
    refuses(message, tiedgpt.load_tokenizer, tmp_path)


@pytest.mark.parametrize("load", [tiedgpt.load_model, tiedgpt.load_tokenizer])
@pytest.mark.parametrize("source", [None, 7, b"gpt2", ["gpt2"]])
def test_a_source_that_is_not_a_path(load, source):
    refuses("^a model must be a name or a path, got ", load, source, error=ArgumentError)


# The index of several files


def write_index(directory, weight_map: object) -> None:
    index = directory / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))


def read_weight_map(directory) -> dict[str, str]:
    index = directory / "model.safetensors.index.json"
    return json.loads(index.read_text())["weight_map"]


@pytest.mark.parametrize(
    "file",
    [
        pytest.param("../a.safetensors", id="parent"),
        pytest.param("a\\b.safetensors", id="backslash"),
        pytest.param(".a.safetensors", id="hidden"),
        pytest.param("a.safetensors\n", id="line-break"),
        pytest.param(3, id="number"),
        pytest.param("config.json", id="another-file"),
        pytest.param("x" * 300 + ".safetensors", id="long"),
    ],
)
def test_an_index_that_names_no_safetensors_file_beside_it(tmp_path, model, file):
    """The index says that wte is in `file`."""
    write_shards(tmp_path, model)
    write_index(tmp_path, {**read_weight_map(tmp_path), "wte.weight": file})
    message = f"{re.escape(short_repr(file))} names no .safetensors file beside it"
    refuses(message, tiedgpt.load_model, tmp_path)


def test_an_index_that_names_a_fifo(tmp_path, model):
    """Opening it would wait for ever."""
    write_shards(tmp_path, model)
    os.mkfifo(tmp_path / "fifo.safetensors")
    write_index(tmp_path, {**read_weight_map(tmp_path), "wte.weight": "fifo.safetensors"})
    refuses(r"fifo\.safetensors: is not a regular file", tiedgpt.load_model, tmp_path)


def test_an_index_that_names_a_missing_file(tmp_path, model):
    write_shards(tmp_path, model)
    write_index(tmp_path, {**read_weight_map(tmp_path), "wte.weight": "c.safetensors"})
    refuses(r"c\.safetensors: cannot be read", tiedgpt.load_model, tmp_path)


def test_a_tensor_that_is_in_another_file_than_the_index_says(tmp_path, model):
    """wte is in a.safetensors, but the index says b.safetensors."""
    write_shards(tmp_path, model)
    write_index(tmp_path, {**read_weight_map(tmp_path), "wte.weight": "b.safetensors"})
    message = r"b\.safetensors: tensor 'wte\.weight' is in the index but not in the file"
    refuses(message, tiedgpt.load_model, tmp_path)


def test_a_tensor_that_the_index_does_not_list(tmp_path, model):
    write_shards(tmp_path, model)
    weight_map = read_weight_map(tmp_path)
    del weight_map["wte.weight"]
    write_index(tmp_path, weight_map)
    message = r"a\.safetensors: tensor 'wte\.weight' is in the file but not in the index"
    refuses(message, tiedgpt.load_model, tmp_path)


def test_an_index_without_a_map(tmp_path, model):
    write_shards(tmp_path, model)
    write_index(tmp_path, ["a.safetensors"])
    refuses('"weight_map" must map tensor names to files', tiedgpt.load_model, tmp_path)
