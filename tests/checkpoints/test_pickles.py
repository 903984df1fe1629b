"""Files of torch.save: what is read of them, without torch, and that nothing in them is run.

A file is a zip archive, or in the old format five pickles and the storages. Most files here are
made by support/torch_files.py. The last tests compare with torch.load, live.
"""

import json
import mmap
import os
import pickle
import pickletools
import warnings
import zipfile
from dataclasses import replace
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from support.checkpoint_files import assert_same, write_config
from support.checks import peak_memory, refuses
from support.commands import assert_one_error_line
from support.models import SMALL, random_model
from support.torch_files import (
    MAGIC,
    PROTOCOL,
    archive,
    five_pickles,
    number,
    tensor,
    text,
    torch_file,
)

import tiedgpt
from tiedgpt import GPT2, Config
from tiedgpt.checkpoints import Opened, pickles, safetensors
from tiedgpt.checkpoints.pickles import read_saved
from tiedgpt.errors import TiedGPTWarning

FORMATS = [pytest.param(False, id="zip"), pytest.param(True, id="old")]


@pytest.fixture
def read(tmp_path):
    """read(content) -> the arrays in a file with this content."""

    def read(content: bytes) -> dict[str, np.ndarray]:
        path = tmp_path / "pytorch_model.bin"
        path.write_bytes(content)
        return {name: each.values() for name, each in read_saved(path).tensors.items()}

    return read


# Values


@pytest.mark.parametrize("dtype", ["float64", "float32", "float16", "bfloat16"])
@pytest.mark.parametrize("is_old", FORMATS)
def test_values_of_every_type(read, is_old, dtype):
    values = np.arange(-4, 8, dtype=np.float32).reshape(3, 4)
    stored = values.astype(dtype) if dtype != "bfloat16" else bfloat16(values)
    tensors = {"a": stored, "none": stored[:0], "number": stored[1, 2:3]}
    tensors["no column"] = np.empty((3, 0), stored.dtype)
    found = read(torch_file(tensors, is_old))
    np.testing.assert_array_equal(found["a"], values)
    np.testing.assert_array_equal(found["number"], values[1, 2:3])
    assert found["none"].shape == (0, 4)
    assert found["no column"].shape == (3, 0)
    assert {array.dtype.name for array in found.values()} == {"float32"}


def bfloat16(values: np.ndarray) -> np.ndarray:
    """The upper halves of the bits, as support/torch_files.py takes them."""
    return (values.view(np.uint32) >> 16).astype("<u2").view("<V2").copy()


# The types of whole numbers that torch saves -> NumPy's
WHOLE_NUMBERS = {
    "torch\nLongStorage": "int64",
    "torch\nIntStorage": "int32",
    "torch\nShortStorage": "int16",
    "torch\nCharStorage": "int8",
    "torch\nByteStorage": "uint8",
    "torch\nBoolStorage": "bool",
    "torch.storage\nUntypedStorage": "uint8",
}


@pytest.mark.parametrize("name", WHOLE_NUMBERS)
def test_a_file_is_read_that_also_has_a_tensor_of_whole_numbers(tmp_path, name):
    """A mask or a counter of any type lies beside the weights, and keeps none from being read."""
    counter = np.ones((2, 2), WHOLE_NUMBERS[name])
    weights = np.arange(4, dtype=np.float32)
    storage = ("storage", f"c{name}\n", "0", "cpu")
    of_weights = ("storage", "ctorch\nFloatStorage\n", "1", "cpu")
    program = b"\x80\x02}" + text("counter") + tensor(storage=storage) + b"s"
    program += text("wte.weight") + tensor(storage=of_weights) + b"s."
    path = tmp_path / "model.pt"
    path.write_bytes(archive(program, [counter.tobytes(), weights.tobytes()]))
    tensors = read_saved(path).tensors
    assert set(tensors) == {"counter", "wte.weight"}
    np.testing.assert_array_equal(tensors["wte.weight"].values(), [[0, 1], [2, 3]])


@pytest.mark.parametrize("is_old", FORMATS)
def test_views_of_one_storage(read, is_old):
    flat = np.arange(24, dtype=np.float32)
    views = {
        "flat": flat,
        "matrix": flat.reshape(4, 6),
        "transposed": flat.reshape(4, 6).T,
        "row": flat.reshape(4, 6)[2],
        "column": flat.reshape(4, 6)[:, 2],
        "slice": flat.reshape(4, 6)[1:3, ::2],
        "axes": flat.reshape(2, 3, 4).transpose(1, 2, 0),
    }
    found = read(torch_file(views, is_old))
    for name, view in views.items():
        np.testing.assert_array_equal(found[name], view, name)
        assert found[name].flags.c_contiguous


# Models


@pytest.fixture
def write(tmp_path):
    """write(tensors, file="pytorch_model.bin", ...) -> a directory with that file and a config."""

    def write(
        tensors: object,
        file: str = "pytorch_model.bin",
        is_old: bool = False,
        config: Config | None = SMALL,
    ) -> Path:
        if config is not None:
            write_config(tmp_path, config)
        (tmp_path / file).write_bytes(torch_file(tensors, is_old))
        return tmp_path

    return write


MASKS = {"h.0.attn.bias": np.ones((1, 1, 31, 31), bool), "h.1.attn.masked_bias": np.ones((1,))}


@pytest.mark.parametrize("prefix", ["", "transformer.", "module.transformer.", "_orig_mod.module."])
@pytest.mark.parametrize("is_old", FORMATS)
def test_a_pytorch_model_bin_is_loaded(write, is_old, prefix):
    """A tied head is the storage of wte. The masks of old files are no parameters."""
    model = random_model()
    tensors = {prefix + name: array for name, array in (MASKS | model.parameters).items()}
    tensors["lm_head.weight"] = model.W_E
    directory = write(tensors, is_old=is_old)
    for path in (directory, directory / "pytorch_model.bin"):
        assert_same(tiedgpt.load_model(path), model)
        assert Opened(path).config == SMALL
        assert Opened(path).has_head


def test_a_tied_head_of_one_storage_is_tied_even_if_a_number_is_nan(write):
    """nan is equal to nothing, so a comparison of the values would call the head another one."""
    model = random_model()
    model.W_E[3, 4] = np.nan
    directory = write({**model.parameters, "lm_head.weight": model.W_E})
    assert tiedgpt.load_model(directory).config.tied


@pytest.mark.parametrize("file", ["pytorch_model.bin", "model.pt", "model.pth"])
def test_another_head_than_a_config_json_says_contradicts_it(write, file):
    """A config.json that says tied is meant for these weights, whatever the file's name is."""
    model = random_model(SMALL.with_head("untied"))
    directory = write(model.parameters, file, config=SMALL)
    assert Opened(directory / file).contradicts_config
    with pytest.warns(TiedGPTWarning, match="tied"):
        assert not tiedgpt.load_model(directory / file).config.tied


def test_another_head_is_untied(write):
    model = random_model(SMALL.with_head("untied"))
    directory = write(model.parameters, config=model.config)
    assert_same(tiedgpt.load_model(directory), model)


@pytest.mark.parametrize("ending", ["bin", "safetensors"])
def test_shards_are_loaded(tmp_path, write, ending):
    """The index of pytorch_model.bin may even name a file of safetensors."""
    model = random_model()
    names = list(model.parameters)
    halves = {"a.bin": names[:5], f"b.{ending}": names[5:]}
    weight_map = {}
    for file, half in halves.items():
        tensors = {name: model.parameters[name] for name in half}
        if file.endswith(".bin"):
            write(tensors, file)
        else:
            with open(tmp_path / file, "wb") as out:
                safetensors.write(out, tensors.items())
        weight_map |= dict.fromkeys(half, file)
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert_same(tiedgpt.load_model(tmp_path), model)


def test_safetensors_are_preferred(write):
    directory = write({"x": np.ones(1)})
    tiedgpt.save_model(random_model(), None, directory / "saved")
    (directory / "saved" / "model.safetensors").rename(directory / "model.safetensors")
    assert_same(tiedgpt.load_model(directory), random_model())


def test_float32_is_the_mapped_file(tmp_path):
    """If it is in row order and starts at a multiple of 4. Longer names move it byte by byte."""
    path = tmp_path / "saved.pt"
    matrix = np.ones((3, 5), np.float32)
    starts = set()
    for length in range(1, 5):
        path.write_bytes(torch_file({"a" * length: matrix, "transposed": matrix.T}))
        tensor, transposed = read_saved(path).tensors.values()
        is_view = isinstance(tensor.values().base, mmap.mmap)
        assert is_view == (tensor.start % 4 == 0)
        assert not isinstance(tensor.values(copy=True).base, mmap.mmap)
        assert not isinstance(transposed.values().base, mmap.mmap)
        starts.add(tensor.start % 4)
    assert starts == {0, 1, 2, 3}


# nanoGPT

ARGS = {"n_layer": 2, "n_head": 3, "n_embd": 21, "block_size": 31, "vocab_size": 101}
NANO = replace(
    SMALL,
    n_inner=84,
    activation_function="gelu",
    embd_pdrop=0.2,
    resid_pdrop=0.2,
    attn_pdrop=0.2,
    bos_token_id=None,
    eos_token_id=None,
)


def nano_gpt(model: GPT2, bias: bool = True, prefix: str = "", **args: object) -> dict:
    """What nanoGPT saves: matrices [out, in], a head, an optimizer, and fields of other types."""
    state = {}
    for name, array in {**model.parameters, "lm_head.weight": model.W_U.T}.items():
        if bias or not name.endswith(".bias"):
            is_in_block = name.startswith("h.") and array.ndim == 2
            theirs = f"{prefix}transformer.{name}" if name != "lm_head.weight" else prefix + name
            state[theirs] = array.T.copy() if is_in_block else array
    return {
        "model": state,
        "optimizer": {"state": {0: {"step": np.ones(1), "exp_avg": np.ones((7, 3))}}},
        "model_args": ARGS | {"bias": bias, "dropout": 0.2} | args,
        "iter_num": 9,
        "best_val_loss": 1.5,
        "config": {"out_dir": "out", "compile": True, "betas": [0.9, None]},
    }


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("prefix", ["", pytest.param("_orig_mod.", marks=pytest.mark.slow)])
@pytest.mark.parametrize("is_old", FORMATS)
def test_a_ckpt_pt_of_nanogpt_is_loaded(write, is_old, prefix, bias):
    """Beside it may lie GPT-2's config.json, which came with the vocabulary. It does not count."""
    model = random_model(NANO)
    if not bias:
        for name, array in model.parameters.items():
            if name.endswith(".bias"):
                array[:] = 0
    saved = nano_gpt(model, bias, prefix)
    for config in (None, SMALL):
        directory = write(saved, "ckpt.pt", is_old, config)
        for path in (directory, directory / "ckpt.pt"):
            loaded = tiedgpt.load_model(path)
            assert_same(loaded, model)
            assert loaded.config == Opened(path).config == NANO
    loaded.parameters["h.0.ln_1.bias"][:] = 7  # each bias has its own memory
    assert not (loaded.parameters["h.1.ln_1.bias"] == 7).any()


@pytest.mark.filterwarnings("always::tiedgpt.errors.TiedGPTWarning")
@pytest.mark.parametrize("command", ["generate", "next", "lens"])
def test_gpt2s_vocabulary_is_not_advised_for_a_nanogpt_of_characters(write, run, command):
    """Its ids would mean other tokens. With another vocabulary, there is a warning."""
    model = random_model(NANO)
    directory = write(nano_gpt(model), "ckpt.pt", config=None)
    result = run(command, "-m", str(directory), "A lower")
    assert_one_error_line(result, "ckpt.pt has 101 tokens, so its vocabulary is not GPT-2's")
    (directory / "merges.txt").write_text("l o\n", encoding="utf-8")
    _, _, err = run("generate", "-m", str(directory), "-n", "2", "-s", "1", "A")
    assert "ids up to 257, more than the model of 101 tokens" in err


def test_a_nanogpt_of_before_the_field_bias_has_gelu_new(tmp_path):
    """Whether it has biases is seen from its tensors: the value of the field does not count."""
    for fields, activation in (
        ({}, "gelu_new"),
        ({"bias": None}, "gelu"),
        ({"bias": False}, "gelu"),
    ):
        config = pickles.config_of(ARGS | fields, tmp_path)
        assert config.activation_function == activation
        assert (config.embd_pdrop, config.resid_pdrop, config.attn_pdrop) == (0, 0, 0)
        assert (config.bos_token_id, config.eos_token_id) == (None, None)


@pytest.mark.parametrize("file", ["ckpt.pt", "mine.pt", "mine.pth"])
def test_a_nanogpt_with_another_head_is_untied(write, file):
    model = random_model(NANO.with_head("untied"))
    directory = write(nano_gpt(model), file, config=None)
    assert_same(tiedgpt.load_model(directory / file), model)


@pytest.mark.parametrize(("size", "ends"), [(50256, ()), (50257, (50256,)), (50304, (50256,))])
def test_gpt2s_token_ends_a_text_where_the_vocabulary_has_it(write, size, ends):
    directory = write(nano_gpt(random_model(NANO), vocab_size=size), "ckpt.pt", config=None)
    assert Opened(directory / "ckpt.pt").config.eos_token_ids == ends


def test_only_a_state_dict_inside_of_another_dict_is_said_to_be_there(write):
    """transformers does not look for it there. nanoGPT's own files have a reader of their own."""
    state = {"a": np.ones(3)}
    nano = {"model": state, "model_args": ARGS}
    for value, is_nested in (
        (state, False),
        ({"state_dict": {"a": np.ones((1, 3))}}, True),
        ({"state_dict": {"a": np.ones((1, 3))}, "model_args": None}, True),
        (nano, False),
    ):
        assert read_saved(write(value) / "pytorch_model.bin").is_nested == is_nested


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"n_head": "3"}, "n_head must be a whole number"),
        ({"n_head": (((3,),),)}, "model_args has 'n_head', a tuple, which"),
        ({"vocab_size": None}, "vocab_size must be a whole number .*, got None"),
        ({"n_head": 4}, "ckpt.pt: model_args: n_embd 21 .* n_head 4 equal heads"),
        ({"block_size": 7}, r"wpe\.weight has shape"),
        ({"n_layer": 10**9}, "n_layer"),
        ({"dropout": 2.0}, "pdrop"),
        ({"n_inner": 5}, r"mlp\.c_fc\.weight has shape"),
    ],
)
def test_model_args_that_do_not_fit(write, change, message):
    directory = write(nano_gpt(random_model(NANO), **change), "ckpt.pt", config=None)
    refuses(message, tiedgpt.load_model, directory)


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("scale_attn_by_inverse_layer_idx", True, {"scale_attn_by_inverse_layer_idx": True}),
        ("scale_attn_weights", False, {"scale_attn_weights": False}),
        ("activation", "relu", {"activation_function": "relu"}),
        ("activation_function", "relu", {"activation_function": "relu"}),
        ("layer_norm_epsilon", 0.1, {"layer_norm_epsilon": 0.1}),
        ("n_inner", None, {}),
        ("n_inner", 4 * NANO.n_embd, {}),
        ("n_inner", 5, {"n_inner": 5}),
    ],
)
def test_a_field_that_a_fork_of_nanogpt_adds_is_used(write, field, value, expected):
    model = random_model(replace(NANO, **expected))
    saved = nano_gpt(model, **{field: value})
    assert_same(tiedgpt.load_model(write(saved, "ckpt.pt", config=None)), model)


@pytest.mark.parametrize("value", [True, False, 1, None, {"type": "linear"}])
def test_a_field_of_model_args_that_may_be_another_computation_is_refused(tmp_path, value):
    """Its name says nothing: False may turn off what GPT-2 does."""
    model_args = ARGS | {"use_rotary": value}
    assert refuses(".", pickles.config_of, model_args, tmp_path / "ckpt.pt") == (
        f"{tmp_path / 'ckpt.pt'}: model_args has 'use_rotary', a {type(value).__name__}, which "
        "nanoGPT does not have and which may be another computation; if it is GPT-2 all the same, "
        f"load the file with torch, and give its state dict to tiedgpt.from_state_dict {READ_MORE}"
    )


WRAPPED = {  # a kind of training -> what it saves, around the state dict STATE
    "PyTorch's recipe": {
        "epoch": 3,
        "model_state_dict": "STATE",
        "optimizer_state_dict": {"state": {0: {"exp_avg": np.ones((7, 3))}}, "param_groups": []},
        "loss": np.ones(1),
    },
    "preferences": {"step_idx": 10, "state": "STATE", "metrics": {"loss": 0.1}},
    "alone": {"state_dict": "STATE"},
    "random numbers": {"model": "STATE", "rng": {"cpu": np.ones(9, np.uint8)}, "seed": None},
    "DeepSpeed": {"module": "STATE", "dp_world_size": 1, "ds_version": "0.14"},
}


@pytest.mark.parametrize("kind", WRAPPED)
@pytest.mark.parametrize(
    "prefix", ["transformer.", pytest.param("module.transformer.", marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("is_old", FORMATS)
def test_the_one_state_dict_in_a_file_is_loaded(write, is_old, prefix, kind):
    model = random_model()
    state = {f"{prefix}{name}": array for name, array in model.parameters.items()}
    saved = {name: state if each == "STATE" else each for name, each in WRAPPED[kind].items()}
    directory = write(saved, "policy.pt", is_old)
    assert_same(tiedgpt.load_model(directory / "policy.pt"), model)
    (directory / "policy.pt").rename(directory / "pytorch_model.bin")
    assert_same(tiedgpt.load_model(directory), model)


@pytest.mark.parametrize(
    "value",
    [
        [1],
        {"state_dict": {"wte.weight": np.ones(1)}},
        {3: np.ones(1)},
    ],
)
def test_what_is_no_state_dict(read, value):
    refuses("state dict", read, torch_file(value))


# What is refused. No name is imported, and nothing is called


def global_(module: str, name: str) -> bytes:
    return f"c{module}\n{name}\n".encode()


RUN = text("touch pwned") + b"\x85R."
HOSTILE = {  # a kind of exploit -> a program, and a part of the message
    "GLOBAL": (global_("os", "system") + RUN, "os.system"),
    "posix": (global_("posix", "system") + RUN, "posix.system"),
    "STACK_GLOBAL": (text("os") + text("system") + b"\x93" + RUN, "os.system"),
    "INST": (b"(" + text("touch pwned") + b"ios\nsystem\n.", "INST 'os system'"),
    "OBJ": (b"(" + global_("os", "system") + text("touch pwned") + b"o.", "os.system"),
    "NEWOBJ": (global_("subprocess", "Popen") + text("touch pwned") + b"\x85\x81.", "subprocess"),
    "eval": (global_("builtins", "eval") + RUN, "builtins.eval"),
    "python 2": (global_("__builtin__", "exec") + RUN, "__builtin__.exec"),
    "getattr": (global_("builtins", "getattr") + RUN, "builtins.getattr"),
    "attrgetter": (global_("operator", "attrgetter") + RUN, "operator.attrgetter"),
    "import": (global_("importlib", "import_module") + RUN, "importlib.import_module"),
    "runpy": (global_("runpy", "_run_code") + RUN, "runpy._run_code"),
    "partial": (global_("functools", "partial") + RUN, "functools.partial"),
    "torch.load": (global_("torch", "load") + RUN, "torch.load"),
    "torch.hub": (global_("torch.hub", "load") + RUN, "torch.hub.load"),
    "numpy": (global_("numpy.testing._private.utils", "runstring") + RUN, "runstring"),
    "scalar": (global_("numpy._core.multiarray", "scalar") + RUN, "multiarray.scalar"),
    "class of a script": (global_("__main__", "GPTConfig") + b")\x81}b.", "__main__.GPTConfig"),
    "dotted module": (global_("torch", "_utils._rebuild_tensor_v2") + b".", "_rebuild_tensor_v2"),
    "attribute": (
        text("torch._utils") + text("_rebuild_tensor_v2.__globals__") + b"\x93.",
        "__globals__",
    ),
    "EXT": (b"\x82\1.", "EXT1"),
    "persistent text": (b"Pmodule\n.", "PERSID"),
    "numbers for names": (b"K\1K\2\x93.", "name"),
    "BUILD": (b"}" + text("__class__") + global_("os", "system") + b"sb.", "os.system"),
    "call of a text": (text("os.system") + RUN, "call"),
    "dict of pairs": (global_("collections", "OrderedDict") + RUN, "call"),
    "storage called": (global_("torch", "FloatStorage") + number(2**40) + b"\x85R.", "call"),
    "texts for a storage": (
        global_("torch._utils", "_rebuild_tensor_v2") + b"(" + text("os") * 6 + b"tR.",
        "call",
    ),
    "parameter of a text": (global_("torch._utils", "_rebuild_parameter") + RUN, "call"),
    "persistent tuple": (b"(" + text("storage") + text("torch FloatStorage") + b"tQ.", "storage"),
    "append to a tuple": (b")K\1a.", "APPEND"),
    "item of a list": (b"]K\1K\2s.", "SETITEM"),
    "half a pair": (b"}(K\1u.", "damaged"),
    "stack": (b"R.", "damaged"),
    "mark": (b"t.", "damaged"),
    "memo": (b"h\5.", "damaged"),
    "no STOP": (b"}", "damaged"),
    "length": (b"X\xff\xff\xff\xff.", "damaged"),
    "long length": (b"\x8d" + b"\xff" * 8 + b".", "damaged"),
    "not a pickle": (b"hello", "damaged"),
    "too long": (b"}0" * pickles.MAX_PICKLE, "POP"),
    "deep": (b"]" * 5000 + b"a" * 4999 + b".", "list"),
    "large key": (b"}" + number(2**61 - 1) + b"Ns.", "key"),
    "deep key": (b"})" + b"\x85" * 5000 + b"K\1s.", "key"),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_a_program_that_would_do_more_is_refused(read, tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)
    program, message = HOSTILE[kind]
    program = b"\x80\x02" + program
    for content in (archive(program, []), five_pickles(program, []), program):
        if content == program:
            message = "pytorch_model.bin"
        error = refuses(message, read, content)
        assert len(error) < 500
    assert os.listdir() == ["pytorch_model.bin"]


def test_nothing_of_pickle_is_used(read, monkeypatch):
    """Neither Python's unpickler nor an import of a name, even for a file that is right."""
    content = torch_file({"a": np.ones(2)})

    def fail(*_: object, **__: object) -> None:
        pytest.fail("it was unpickled")

    for name in ("load", "loads", "Unpickler", "_Unpickler"):
        monkeypatch.setattr(pickle, name, fail)
    np.testing.assert_array_equal(read(content)["a"], [1, 1])


def bomb(depth: int) -> bytes:
    """Nested tuples of 2**depth numbers: each has the one before twice."""
    program = b"K\1\x85q\0"
    for n in range(depth):
        program += b"h%ch%c\x86q%c" % (n, n, n + 1)
    return program


BOMBS = {
    "a value": bomb(200) + b".",
    "a key": b"}" + bomb(200) + b"h\5s.",
    "a name": bomb(200) + text("os") + b"h\xc8\x93.",
    "a value of a state dict": b"}" + text("a") + b"(" + bomb(200) + b"ts.",
    "model_args": b"}(" + text("model_args") + b"}" + text("n_embd") + b"(" + bomb(200) + b"ts"
    + text("model") + b"}u.",
}  # fmt: skip


@pytest.mark.parametrize("kind", BOMBS)
def test_nested_tuples_are_neither_walked_nor_shown(tmp_path, read, kind):
    content = archive(b"\x80\x02" + BOMBS[kind], [])
    path = tmp_path / "ckpt.pt"
    path.write_bytes(content)
    error = refuses(r"ckpt\.pt", tiedgpt.load_model, path)
    assert len(error) < 500


DEPTH = 80_000


@pytest.mark.slow
@pytest.mark.parametrize(
    "nested",
    [
        pytest.param(b"]" * DEPTH + b"a" * (DEPTH - 1), id="lists"),
        pytest.param(b")" + b"\x85" * DEPTH, id="tuples"),
        pytest.param(b"}K\1" * DEPTH + b"}" + b"s" * DEPTH, id="dicts"),
    ],
)
def test_deep_nesting_does_not_fill_the_stack_of_python(read, nested):
    for program in (nested, b"}" + text("a") + nested + b"s"):
        refuses("state dict", read, archive(b"\x80\x02" + program + b".", []))


WRONG_TENSORS = {  # what is wrong with a tensor of 2 x 2 in a storage of 4 -> its arguments
    "offset": {"offset": 1},
    "size": {"size": (3, 2)},
    "stride": {"stride": (3, 1)},
    "one number many times": {"size": (2**62, 2), "stride": (0, 1)},
    "axis beside one of 0": {"size": (0, 2**62)},
    "negative stride": {"stride": (-1, 1)},
    "negative offset": {"offset": -1},
    "negative size": {"size": (-2, -2)},
    "numbers of 2000 bits": {"size": (2**2000, 2**2000)},
    "offset of 2000 bits": {"offset": 2**2000},
    "axes": {"size": (1,) * 33, "stride": (1,) * 33},
    "lengths": {"size": (2,)},
    "float": {"size": (2.0, 2)},
    "true": {"size": (True, 2)},
    "none": {"size": None},
    "a list": {"stride": [2, 1]},
    "storage beyond the file": {"n": 2**62},
    "storage too large": {"n": 5},
    "storage too small": {"n": 3},
    "storage below 0": {"n": -4},
    "no such storage": {"storage": ("storage", "ctorch\nFloatStorage\n", "7", "cpu")},
    "path": {"storage": ("storage", "ctorch\nFloatStorage\n", "../byteorder", "cpu")},
    "wider type": {"storage": ("storage", "ctorch\nDoubleStorage\n", "0", "cpu")},
    "unknown type": {"storage": ("storage", "ctorch\nQInt8Storage\n", "0", "cpu")},
    "no storage": {"storage": ("module", "ctorch\nFloatStorage\n", "0", "cpu")},
}


@pytest.mark.parametrize("fault", WRONG_TENSORS)
def test_a_tensor_that_is_not_in_its_storage(read, fault):
    for arguments, is_right in (({}, True), (WRONG_TENSORS[fault], False)):
        program = b"\x80\x02}" + text("wte.weight") + tensor(**arguments) + b"s."
        values = np.arange(4, dtype=np.float32)
        for content in (archive(program, [values.tobytes()]), five_pickles(program, [values])):
            if is_right:
                np.testing.assert_array_equal(read(content)["wte.weight"], [[0, 1], [2, 3]])
            else:
                error = refuses("tensor|storage|call|name", read, content)
                assert len(error) < 900


@pytest.mark.parametrize("size", [(1, 2), (2, 1), (0, 3)])
def test_a_stride_that_leads_nowhere_may_be_large(read, size):
    stride = tuple(1 if axis > 1 else 2**62 for axis in size)
    program = b"\x80\x02}" + text("a") + tensor(size=size, stride=stride) + b"s."
    found = read(archive(program, [np.arange(4, dtype=np.float32).tobytes()]))
    np.testing.assert_array_equal(found["a"], np.arange(size[0] * size[1]).reshape(size))


STATE_DICT = text("state_dict") + b"}" + text("a") + tensor() + b"ss"
WITH_ANOTHER_VALUE = b"\x80\x02}" + STATE_DICT + text("other") + b"Ns."
A_NUMBER, A_TEXT, A_PAIR = number(2), text("a"), b"(" + 2 * number(2) + b"t"
NONE = text("other") + b"N"
INSTRUCTIONS = {  # of pickle's -> what it replaces in WITH_ANOTHER_VALUE, and its bytes
    "BININT1": (A_NUMBER, b"K\x02"),
    "BININT2": (A_NUMBER, b"M\x02\x00"),
    "BININT": (A_NUMBER, b"J\x02\x00\x00\x00"),
    "SHORT_BINUNICODE": (A_TEXT, b"\x8c\x01a"),
    "BINSTRING": (A_TEXT, b"T\x01\x00\x00\x00a"),
    "SHORT_BINSTRING": (A_TEXT, b"U\x01a"),
    "TUPLE2": (A_PAIR, 2 * number(2) + b"\x86"),
    "TUPLE1": (NONE, text("other") + number(7) + b"\x85"),
    "TUPLE3": (NONE, text("other") + 3 * number(7) + b"\x87"),
    "EMPTY_TUPLE": (NONE, text("other") + b")"),
    "NEWTRUE": (NONE, text("other") + b"\x88"),
    "NEWFALSE": (NONE, text("other") + b"\x89"),
    "BINFLOAT": (NONE, text("other") + b"G" + bytes(8)),
    "APPEND": (NONE, text("other") + b"]" + number(7) + b"a"),
    "APPENDS": (NONE, text("other") + b"](" + number(7) + number(8) + b"e"),
    "SETITEMS": (NONE, text("other") + b"}(" + text("y") + b"N" + text("z") + b"\x88u"),
    "BINPUT": (NONE, text("other") + number(7) + b"q\7h\7\x86"),
    "LONG_BINPUT": (NONE, text("other") + number(7) + b"r\0\1\0\0j\0\1\0\0\x86"),
    "MEMOIZE": (NONE, text("other") + number(7) + b"\x94h\0\x86"),
    "BUILD": (NONE, text("other") + b"ccollections\nOrderedDict\n)R}" + text("y") + b"}sb"),
}


@pytest.mark.parametrize("name", INSTRUCTIONS)
def test_each_instruction_that_torch_writes_is_followed(read, name):
    """Which of them stands for a number depends on its size: numbers of 17 bits have BININT."""
    values = np.arange(4, dtype=np.float32).tobytes()
    usual, instruction = INSTRUCTIONS[name]
    assert usual in WITH_ANOTHER_VALUE
    found = read(archive(WITH_ANOTHER_VALUE.replace(usual, instruction), [values]))
    np.testing.assert_array_equal(found["a"], [[0, 1], [2, 3]])


def test_tensors_that_overlap_are_refused(read):
    """1,000 layers of one matrix would take 1,000 times the memory of the file."""
    matrix = np.ones((100, 100), np.float16)
    tensors = {f"h.{layer}.mlp.c_fc.weight": matrix for layer in range(1000)}
    refuses("overlap", read, torch_file(tensors))


# Limits


@pytest.mark.parametrize("is_old", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_pickle_may_have_two_megabytes(read, is_old):
    """Here a text beside the state dict makes it so long."""
    short = len(WITH_ANOTHER_VALUE) - len(b"N") + len(text(""))
    values = np.arange(4, dtype=np.float32)
    for size, is_right in ((2_097_152, True), (2_097_153, False)):
        note = text("other") + text(" " * (size - short))
        program = WITH_ANOTHER_VALUE.replace(NONE, note)
        assert len(program) == size
        content = (
            five_pickles(program, [values]) if is_old else archive(program, [values.tobytes()])
        )
        if is_right:
            assert read(content)["a"].shape == (2, 2)
        else:
            refuses("longer than 2097152 bytes", read, content)


def test_all_instructions_up_to_the_limit_are_followed(read, monkeypatch):
    content = archive(WITH_ANOTHER_VALUE, [bytes(16)])
    count = sum(1 for _ in pickletools.genops(WITH_ANOTHER_VALUE)) - 1  # the last one is STOP
    monkeypatch.setattr(pickles, "MAX_INSTRUCTIONS", count)
    assert read(content)["a"].shape == (2, 2)
    monkeypatch.setattr(pickles, "MAX_INSTRUCTIONS", count - 1)
    refuses(f"more than {count - 1} instructions in its pickles$", read, content)


def test_the_limits_leave_room_for_gpt2_xl_with_its_optimizer():
    assert pickles.MAX_INSTRUCTIONS > 75_000
    assert pickles.MAX_LIST > 200_000


def test_a_dict_may_have_numbers_of_31_bits_as_keys(read):
    """Optimizers number their parameters."""
    for key in (0, 2**31 - 1, 2**31, -1):
        optimizer = text("other") + b"}" + number(key) + b"Ns"
        content = archive(WITH_ANOTHER_VALUE.replace(NONE, optimizer), [bytes(16)])
        if key in (0, 2**31 - 1):
            assert read(content)["a"].shape == (2, 2)
        else:
            refuses("a key of type int; expected a text or a small number", read, content)


@pytest.mark.parametrize("is_old", FORMATS)
@pytest.mark.parametrize("count", [2, 3])
def test_a_matrix_may_have_two_names(read, is_old, count):
    """Of a tied model it has two. With more, the tensors take more memory than the file."""
    matrix = np.ones((40, 40), np.float32)
    content = torch_file({f"{n}": matrix for n in range(count)}, is_old)
    if count == 2:
        np.testing.assert_array_equal(read(content)["1"], matrix)
    else:
        refuses("damaged: tensors overlap: they have more values than the file$", read, content)


# Tensors that are unusual, and right: the arguments of `tensor` -> its values
UNUSUAL = {
    "32 axes": ({"size": (2, 2) + 30 * (1,), "stride": (2, 1) + 30 * (1,)}, [[0, 1], [2, 3]]),
    "an axis of 31 bits": ({"size": (0, 2**31)}, []),
    "no values, and any offset": ({"size": (0, 2), "offset": 2**62}, []),
    "a row twice": ({"stride": (0, 1)}, [[0, 1], [0, 1]]),
    "the last number": ({"size": (1, 1), "offset": 3}, [[3]]),
}


def test_unusual_tensors_are_read(read):
    for kind, (arguments, expected) in UNUSUAL.items():
        program = b"\x80\x02}" + text("a") + tensor(**arguments) + b"s."
        found = read(archive(program, [np.arange(4, dtype=np.float32).tobytes()]))["a"]
        assert found.shape == arguments.get("size", (2, 2)), kind
        np.testing.assert_array_equal(found.ravel(), np.ravel(expected), kind)


IDENTITY_ENDS, CALL_ENDS = b"tQ", b"tR"
FORMS = {  # of a tensor's instructions: what is replaced in them, by what, and part of the error
    "a storage that is no view": (IDENTITY_ENDS, b"N" + IDENTITY_ENDS, None),
    "a storage that is a view": (IDENTITY_ENDS, text("v") + IDENTITY_ENDS, "another storage"),
    "no bits": (CALL_ENDS, b"N" + CALL_ENDS, None),
    "a dict without bits": (CALL_ENDS, b"}" + CALL_ENDS, None),
    "a negative bit": (CALL_ENDS, b"}" + text("neg") + b"\x88s" + CALL_ENDS, "resolve_neg"),
}


def test_what_newer_and_older_versions_of_torch_write_after_a_tensor(read):
    for form, (ending, other_ending, message) in FORMS.items():
        before, after = tensor().rsplit(ending, 1)
        program = b"\x80\x02}" + text("a") + before + other_ending + after + b"s."
        content = archive(program, [np.arange(4, dtype=np.float32).tobytes()])
        if message is None:
            np.testing.assert_array_equal(read(content)["a"], [[0, 1], [2, 3]], form)
        else:
            refuses(message, read, content)


def test_a_storage_that_is_described_twice_and_differently_is_refused(read):
    """Another number of values, another type, or both with the same number of bytes."""
    as_doubles = ("storage", "ctorch\nDoubleStorage\n", "0", "cpu")
    as_numbers = tensor(storage=("storage", "ctorch\nIntStorage\n", "0", "cpu"))
    one_double = tensor(size=(1,), stride=(1,), n=2, storage=as_doubles)
    for second in (tensor(n=5), tensor(n=3), as_numbers, one_double):
        program = b"\x80\x02}" + text("a") + tensor() + b"s" + text("b") + second + b"s."
        refuses("another storage", read, archive(program, [bytes(16)]))


def test_the_storages_of_the_old_format_are_in_the_order_of_their_list(read):
    """Neither in that in which the tensors name them, nor in that of the alphabet: 0, 1, 10, 2."""
    program = b"\x80\x02}"
    for key in range(10, -1, -1):
        storage = ("storage", "ctorch\nFloatStorage\n", f"{key}", "cpu")
        program += text(f"{key}") + tensor((1,), (1,), n=1, storage=storage) + b"s"
    found = read(five_pickles(program + b".", [np.float32([key]) for key in range(11)]))
    assert found == {f"{key}": [key] for key in range(11)}


# Whole messages


def in_the_old_format(computer: object, keys: object, program: bytes = b"\x80\x02}.") -> bytes:
    """A file of these pickles, without values. The first two are right."""
    content = pickle.dumps(MAGIC, 2) + pickle.dumps(PROTOCOL, 2) + pickle.dumps(computer, 2)
    return content + program + pickle.dumps(keys, 2)


def of_pickle(program: bytes) -> bytes:
    return archive(b"\x80\x02" + program, [bytes(16)])


READ_MORE = "(see weights/README.md, Checkpoints of other programs)"
CONVERT = f"if you trust the file, convert it with torch {READ_MORE}"
NOT_SAVED = f" is not a file of torch.save; a model of llm.c is not read {READ_MORE}"
NO_STATE_DICT = (
    "expected a state dict, name -> tensor, by itself or as one value of a dict, or nanoGPT's "
    f"model and model_args; {CONVERT}"
)
OTHER_PICKLE = ": its pickle is damaged, not of torch.save, or longer than 2097152 bytes: "
BIG_ENDIAN = (
    ": its numbers begin with the highest byte (big-endian), which is not read; load it with "
    "torch, and save it on a little-endian computer"
)
OTHER_STORAGES = ": damaged: its storages are not those of its tensors"
ONE_TENSOR = {"wte.weight": np.ones((1, 1))}
COMPUTER = {"little_endian": True}
MESSAGES = {  # what is wrong -> the content of a file, and what the error says after its name
    "another file": (b"hello", NOT_SAVED),
    "another pickle": (pickle.dumps(3, 2) + pickle.dumps(PROTOCOL, 2), NOT_SAVED),
    "another protocol": (pickle.dumps(MAGIC, 2) + pickle.dumps(3, 2), NOT_SAVED),
    "a name": (
        of_pickle(b"cos\nsystem\n."),
        ": names 'os.system', which no state dict needs and which could run any code, so it is not "
        f"read; {CONVERT}",
    ),
    "an instruction": (of_pickle(b"0."), f"{OTHER_PICKLE}ValueError('the instruction POP')"),
    "an instruction of 0": (
        of_pickle(b"I0\n."),
        f"{OTHER_PICKLE}ValueError('the instruction INT 0')",
    ),
    "a later version": (
        archive(b"\x80\x06}.", []),
        f"{OTHER_PICKLE}ValueError('the instruction PROTO 6')",
    ),
    "an item of a list": (
        of_pickle(b"]K\1K\2s."),
        f"{OTHER_PICKLE}ValueError('SETITEM of a list')",
    ),
    "attributes of a list": (
        of_pickle(b"]}b."),
        f"{OTHER_PICKLE}ValueError('BUILD of a list')",
    ),
    "a number": (torch_file(7), f": holds a int; {NO_STATE_DICT}"),
    "a number as the model": (
        torch_file({"model_args": {}, "model": 3}),
        f": holds a int; {NO_STATE_DICT}",
    ),
    "a value that is no tensor": (
        torch_file(ONE_TENSOR | {"step": 3, "loss": 1.5}),
        f": 'step' is a int; {NO_STATE_DICT}",
    ),
    "several state dicts": (  # which one is meant is not known
        torch_file({"model": ONE_TENSOR, "ema": ONE_TENSOR, "step": 3, "teacher": ONE_TENSOR}),
        ": holds several state dicts, 'model', 'ema', 'teacher': save one of them",
    ),
    "a tensor beyond its storage": (
        of_pickle(b"}" + text("a") + tensor(size=(3, 2)) + b"s."),
        ": damaged: tensor 'a' of shape (3, 2) is not in its storage of 4 numbers",
    ),
    "an expanded tensor": (
        of_pickle(b"}" + text("a") + tensor(size=(9, 2), stride=(0, 1)) + b"s."),
        ": tensor 'a' of shape (9, 2) is expanded from 4 numbers, which is not read: save its "
        "contiguous()",
    ),
    "a negative bit": (
        of_pickle(b"}" + text("a") + tensor().removesuffix(b"tR") + b"}K\0Ns" + b"tRs."),
        ": 'a' has torch's negative bit, so its values are not those in the file: save its "
        "resolve_neg()",
    ),
    "an archive without a list": (
        b"PK\3\4" + bytes(6),
        ": damaged: truncated, or not of torch.save: File is not a zip file",
    ),
    "a byteorder": (archive(b"\x80\x02}.", [], byteorder="big"), BIG_ENDIAN),
    "a big computer": (in_the_old_format({"little_endian": False}, []), BIG_ENDIAN),
    "a computer that is not known": (in_the_old_format({}, []), BIG_ENDIAN),
    "no computer": (in_the_old_format([], []), BIG_ENDIAN),
    "a key too many": (in_the_old_format(COMPUTER, ["0"]), OTHER_STORAGES),
    "a key that is none": (in_the_old_format(COMPUTER, [[]]), OTHER_STORAGES),
    "keys that are none": (in_the_old_format(COMPUTER, "0"), OTHER_STORAGES),
    "a key too few": (
        in_the_old_format(COMPUTER, [], b"\x80\x02}" + text("a") + tensor() + b"s."),
        OTHER_STORAGES,
    ),
}


def test_the_whole_message_of_each_file_that_is_refused(read, tmp_path):
    for fault, (content, message) in MESSAGES.items():
        assert refuses(".", read, content) == f"{tmp_path / 'pytorch_model.bin'}{message}", fault


def test_a_pickle_of_version_5_is_read(read):
    content = archive(WITH_ANOTHER_VALUE.replace(b"\x80\x02", b"\x80\x05"), [bytes(16)])
    assert read(content)["a"].shape == (2, 2)


# Archives


def edit_archive(change) -> bytes:
    """An archive with one tensor, of which `change` makes (name, content, kind of compression)."""
    program = b"\x80\x02}" + text("a") + tensor() + b"s."
    files = {"m/data.pkl": program, "m/byteorder": b"little", "m/data/0": bytes(16)}
    content = BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(content, "w") as file:
        warnings.simplefilter("ignore")  # a name twice
        for name, data, *compression in change(files):
            file.writestr(name, data, *compression)
    return content.getvalue()


ARCHIVES = {
    "compressed": (
        lambda f: [(n, d, zipfile.ZIP_DEFLATED) for n, d in f.items()],
        "damaged: 'm/data.pkl' is missing, compressed or encrypted, or not where the archive says$",
    ),
    "an order that is not known": (lambda f: (f | {"m/byteorder": b""}).items(), "big-endian"),
    "no pickle": (lambda f: list(f.items())[1:], "data.pkl"),
    "two pickles": (lambda f: [*f.items(), ("n/data.pkl", b"")], "data.pkl"),
    "a name twice": (lambda f: [*f.items(), ("m/data/0", bytes(16))], "data.pkl"),
    "no storage": (lambda f: list(f.items())[:2], "m/data/0"),
    "nothing": (lambda f: [], "torch.save"),
    "a folder in a folder": (
        lambda f: [(f"x/{n}", d) for n, d in f.items()],
        "damaged: not an archive of torch.save, with one data.pkl$",
    ),
}


@pytest.mark.parametrize("fault", ARCHIVES)
def test_an_archive_that_torch_does_not_write(read, fault):
    assert read(edit_archive(lambda files: files.items()))["a"].shape == (2, 2)
    change, message = ARCHIVES[fault]
    refuses(message, read, edit_archive(change))


def test_an_archive_of_an_old_torch_is_read(read):
    """It has no file that names the order of the bytes. They are those of a small computer."""
    content = edit_archive(lambda files: [file for file in files.items() if "order" not in file[0]])
    assert read(content)["a"].shape == (2, 2)


def test_an_archive_may_have_bytes_between_the_header_of_a_file_and_its_content(read):
    """torch pads with them, so that each storage begins at a multiple of 64."""
    info = zipfile.ZipInfo("m/data/0")
    info.extra = b"FB\4\0ZZZZ"
    values = np.arange(4, dtype=np.float32).tobytes()
    found = read(edit_archive(lambda files: [*list(files.items())[:2], (info, values)]))
    np.testing.assert_array_equal(found["a"], [[0, 1], [2, 3]])


def test_a_storage_of_another_size_is_named_with_both_sizes(read):
    program = b"\x80\x02}" + text("a") + tensor() + b"s."
    content = archive(program, [bytes(12)])
    refuses("the storage '0' has 12 bytes; expected 16", read, content)


def test_a_long_list_of_files_is_not_read(read, monkeypatch):
    """The objects that zipfile makes of a list take 10 times its memory."""
    content = edit_archive(lambda files: files.items())
    size = int.from_bytes(content[-10:-6], "little")  # of the list, as the archive's end says
    monkeypatch.setattr(pickles, "MAX_LIST", size)
    assert read(content)["a"].shape == (2, 2)
    monkeypatch.setattr(pickles, "MAX_LIST", size - 1)
    message = f"not of torch.save: a list of files of {size} bytes; expected {size - 1}$"
    refuses(message, read, content)


# Places in the last entry of the list of files, which is that of m/data/0 -> another value
LIST = {
    "header": (42, 2**31),
    "sizes": (20, 2**31),
    "encrypted": (8, 1),
    "encrypted, with a name in UTF-8": (8, 0x801),
    "method": (10, 99),
}


@pytest.mark.parametrize("place", LIST)
def test_a_list_of_files_that_is_damaged(read, place):
    content = bytearray(edit_archive(lambda files: files.items()))
    offset, value = LIST[place]
    start = content.rindex(b"PK\1\2") + offset
    size = 4 if place in ("header", "sizes") else 2
    content[start : start + size] = value.to_bytes(size, "little")
    if place == "sizes":
        content[start + 4 : start + 8] = value.to_bytes(4, "little")
    refuses("m/data/0", read, bytes(content))


def test_a_list_of_files_that_zipfile_does_not_read(read):
    """A later version of the format, and a name that is said to be UTF-8, and is not."""
    content = edit_archive(lambda files: files.items())
    start = content.rindex(b"PK\1\2")
    for changes in ({6: 99}, {9: 8, 46: 0xFF}):  # places in an entry -> other bytes
        changed = bytearray(content)
        for place, value in changes.items():
            changed[start + place] = value
        refuses("damaged: truncated, or not of torch.save: .", read, bytes(changed))


def test_a_file_that_is_not_where_the_archive_says(read):
    content = bytearray(edit_archive(lambda files: files.items()))
    header = content.index(b"m/data/0") - pickles.LOCAL_HEADER.size
    content[header : header + 4] = bytes(4)
    refuses("m/data/0", read, bytes(content))


def test_an_archive_whose_list_says_that_files_begin_before_it(read):
    """The place of the list, at the end of the archive, is that from which all others count."""
    content = bytearray(edit_archive(lambda files: files.items()))
    place_of_list = slice(-6, -2)
    further = int.from_bytes(content[place_of_list], "little") + 9
    content[place_of_list] = further.to_bytes(4, "little")
    refuses(r"m/data\.pkl", read, bytes(content))


@pytest.mark.parametrize("step", [pytest.param(16, marks=pytest.mark.slow), 48])
@pytest.mark.parametrize("is_old", FORMATS)
def test_a_truncated_file_is_refused(read, is_old, step):
    content = torch_file({"a": np.ones(40), "b": np.ones((7, 3)).T}, is_old)
    for end in range(0, len(content), step):
        refuses(r"pytorch_model\.bin: ", read, content[:end])


@pytest.mark.parametrize("limit", [3_000, pytest.param(250_000, marks=pytest.mark.slow)])
@pytest.mark.parametrize("is_old", FORMATS)
def test_instructions_that_would_take_long_are_not_followed(read, monkeypatch, is_old, limit):
    """In the old format, each of five pickles may have many. The first ones are dicts."""
    if limit == 3_000:
        monkeypatch.setattr(pickles, "MAX_INSTRUCTIONS", limit)
    nested = b")" + b"\x85" * (pickles.MAX_INSTRUCTIONS * 2 // 3)
    program = b"\x80\x02}" + text("a") + nested + b"s."
    content = archive(b"\x80\x02}" + text("a") + nested + nested + b"s.", [])
    if is_old:
        computer = text("little_endian") + b"\x88" + text("a") + nested + b"u."
        first = pickle.dumps(MAGIC, 2) + pickle.dumps(PROTOCOL, 2)
        content = first + b"\x80\x02}(" + computer + program + pickle.dumps([], 2)
    refuses(f"more than {limit:,} instructions", read, content)


def test_a_large_number_takes_no_memory(read):
    arguments = {"size": (2**40,), "stride": (1,), "n": 2**40}
    content = archive(b"\x80\x02}" + text("a") + tensor(**arguments) + b"s.", [bytes(16)])
    assert peak_memory(refuses, "storage", read, content) < 1_000_000


# Compared with torch, live


def saved_by_torch(torch) -> dict[str, object]:
    """A name -> what torch.save saves."""
    generator = torch.Generator().manual_seed(0)
    flat = torch.randn(60, generator=generator)
    matrix = flat.view(6, 10)
    linear = torch.nn.Linear(3, 4)
    optimizer = torch.optim.AdamW(linear.parameters())
    linear(torch.ones(2, 3)).sum().backward()
    optimizer.step()
    dtypes = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
    return {
        "dtypes": {f"{dtype}": flat.to(dtype) for dtype in dtypes},
        "views": {
            "t": matrix.t(),
            "slice": matrix[1:4, 2:9:3],
            "column": matrix[:, 3],
            "number": matrix[2, 3],
            "none": matrix[:0],
            "permuted": flat.view(3, 4, 5).permute(2, 0, 1),
        },
        "shared": {"wte.weight": matrix, "lm_head.weight": matrix},
        "parameters": dict(linear.named_parameters()),
        "state dict": linear.state_dict(),
        "nanoGPT": {
            "model": {f"_orig_mod.{name}": each for name, each in linear.state_dict().items()},
            "optimizer": optimizer.state_dict(),
            "model_args": {"n_layer": 12, "bias": False, "vocab_size": None, "dropout": 0.0},
            "best_val_loss": flat[0],
            "config": {"betas": (0.9, 0.95), "name": "é", "seed": 2**40, "gone": None},
        },
    }


SAVED = ["dtypes", "views", "shared", "parameters", "state dict", "nanoGPT"]


@pytest.mark.parametrize("name", SAVED)
@pytest.mark.parametrize("protocol", [2, 3, 4])
@pytest.mark.parametrize("is_old", FORMATS)
def test_files_of_torch_are_read_as_torch_reads_them(tmp_path, name, is_old, protocol):
    torch = pytest.importorskip("torch")
    path = tmp_path / "saved.pt"
    value = saved_by_torch(torch)[name]
    new = not is_old
    torch.save(value, path, pickle_protocol=protocol, _use_new_zipfile_serialization=new)
    # weights_only reads the second protocol alone.
    theirs = torch.load(path, weights_only=protocol == 2)
    ours = read_saved(path)
    if name == "nanoGPT":
        assert ours.model_args == theirs["model_args"]
        theirs = theirs["model"]
    assert list(ours.tensors) == list(theirs)
    for key, expected in theirs.items():
        values = expected.detach().float().numpy()
        np.testing.assert_array_equal(ours.tensors[key].values(), values, key)


@pytest.mark.parametrize("is_old", FORMATS)
def test_values_that_torch_negates_or_conjugates_are_refused(tmp_path, is_old):
    """The bit of such a tensor stands in the pickle: the values in the file are others."""
    torch = pytest.importorskip("torch")
    numbers = torch.complex(torch.ones(2, 3), torch.ones(2, 3)).conj()
    path = tmp_path / "saved.pt"
    for wrong, message in ((numbers.imag, "'w' has torch's negative bit"), (numbers, "Complex")):
        for value in (wrong, torch.nn.Parameter(wrong)):
            torch.save({"w": value}, path, _use_new_zipfile_serialization=not is_old)
            refuses(message, read_saved, path)
    torch.save({"w": numbers.imag.resolve_neg()}, path, _use_new_zipfile_serialization=not is_old)
    np.testing.assert_array_equal(read_saved(path).tensors["w"].values(), -np.ones((2, 3)))


@pytest.mark.parametrize("is_old", FORMATS)
def test_an_expanded_tensor_is_named_as_such(tmp_path, is_old):
    """torch.save writes the numbers from which it was expanded, and a stride of 0."""
    torch = pytest.importorskip("torch")
    path = tmp_path / "saved.pt"
    for expanded in (torch.zeros(1).expand(7), torch.ones(1, 3).expand(9, 3)):
        torch.save({"w": expanded}, path, _use_new_zipfile_serialization=not is_old)
        message = refuses("'w' of shape .* is expanded from .*contiguous", read_saved, path)
        assert "damaged" not in message
        value = {"w": expanded.contiguous()}
        torch.save(value, path, _use_new_zipfile_serialization=not is_old)
        np.testing.assert_array_equal(read_saved(path).tensors["w"].values(), value["w"])


def test_what_torch_refuses_is_refused(tmp_path):
    """Both refuse a class of the script, which `weights_only` would have to import."""
    torch = pytest.importorskip("torch")
    path = tmp_path / "saved.pt"
    torch.save({"model": {}, "config": Config()}, path)
    with pytest.raises(pickle.UnpicklingError):
        torch.load(path, weights_only=True)
    refuses("tiedgpt.gpt2.config.Config", read_saved, path)
