"""The reader of OpenAI's files: OpenAI's own index, files of other writers, each rule, and damage.

A checkpoint has three files. HPARAMS, hparams.json, has the sizes of the model. DATA has the
numbers of all tensors. INDEX is a table: blocks of keys with their values, and then a footer with
two handles, which are the places of two blocks. The value of the key "" is the header. The value of
a tensor's name is its entry: its dtype, its shape, its place in DATA, and a checksum that is not
read.
"""

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.checkpoint_files import assert_same
from support.checks import peak_memory, refuses
from support.commands import answer
from support.models import random_model
from support.openai_files import (
    HEADER,
    block,
    bundle,
    entry_proto,
    handle,
    in_blocks,
    number_field,
    table,
    text_field,
    varint,
    write_openai_files,
    write_openai_model,
)

import tiedgpt
from tiedgpt import Config
from tiedgpt.checkpoints import Opened, tensorflow
from tiedgpt.checkpoints.model_names import MODELS
from tiedgpt.checkpoints.tensorflow import (
    DATA,
    FOOTER,
    HPARAMS,
    INDEX,
    MAGIC,
    MAX_INDEX,
    MAX_KEY,
    read_saved,
)
from tiedgpt.errors import CheckpointError, TiedGPTWarning
from tiedgpt.gpt2.parameters import parameter_shapes

OPENAIS_HEAD_WIDTH = tensorflow.HEAD_WIDTH
OPENAIS_DATA_SIZE = 497_759_232  # bytes of the tensors of 124M
# OpenAI's files hold neither n_inner, which is 4 n_embd, nor the id of <|endoftext|>, the last one.
TINY = Config(vocab_size=5, n_ctx=3, n_embd=2, n_layer=1, n_head=1, bos_token_id=4, eos_token_id=4)
MODEL = random_model(TINY)


@pytest.fixture(autouse=True)
def heads_of_width_2(monkeypatch):
    """Make the reader accept the heads of TINY, of width 2, and no other width."""
    monkeypatch.setattr(tensorflow, "HEAD_WIDTH", TINY.head_width)


# OpenAI's own index


@pytest.fixture
def openais_124m(shared, tmp_path, monkeypatch) -> Path:
    """A directory with OpenAI's hparams.json and index, and a data file of the right size.

    The data file is all zeros, and takes no room on the disk.
    """
    monkeypatch.setattr(tensorflow, "HEAD_WIDTH", OPENAIS_HEAD_WIDTH)
    for name in (HPARAMS, INDEX):
        shutil.copy(shared / "gpt2" / "124M" / name, tmp_path)
    (tmp_path / DATA).touch()
    os.truncate(tmp_path / DATA, OPENAIS_DATA_SIZE)
    return tmp_path


def test_openais_index(openais_124m):
    """The shape and the place of two tensors are those in OpenAI's file.

    The tensors are in the order of their names, in the index and in the data.
    """
    tensors = read_saved(openais_124m / INDEX).tensors
    assert tensors["model/h0/attn/c_attn/w"].shape == (1, 768, 2304)
    assert tensors["model/wte"].start == 343369728
    names = sorted(tensors)
    names_by_start = sorted(tensors, key=lambda name: tensors[name].start)
    assert list(tensors) == names
    assert names_by_start == names


def test_openais_tensors_are_the_parameters_of_gpt2(openais_124m):
    """Config() is the configuration of 124M."""
    assert Opened(openais_124m).config == Config()
    tensors = Opened(openais_124m).tensors
    shapes = {name: tensor.shape for name, tensor in tensors.items()}
    assert shapes == parameter_shapes(Config())
    assert tensors["h.10.mlp.c_fc.weight"].name == "model/h10/mlp/c_fc/w"


def test_all_of_openais_models_have_heads_of_one_width():
    assert {model.config.head_width for model in MODELS.values()} == {OPENAIS_HEAD_WIDTH}


# Files of other writers


def test_a_checkpoint_that_tensorflow_wrote_is_read(tmp_path):
    """TensorFlow 2.21 (tf.raw_ops.SaveV2) wrote its index, goldens/tensorflow, with checksums.

    TINY has 94 parameters. TensorFlow was given the numbers 0, 1, 2 ... as its tensors, and wrote
    them to the data in the order of this list, which is not the order of the names in the index.
    """
    numbers = np.arange(94, dtype="<f4")
    order_in_data = [
        "wte.weight",
        "wpe.weight",
        "ln_f.weight",
        "ln_f.bias",
        "h.0.ln_1.weight",
        "h.0.ln_1.bias",
        "h.0.ln_2.weight",
        "h.0.ln_2.bias",
        "h.0.attn.c_attn.weight",
        "h.0.attn.c_attn.bias",
        "h.0.attn.c_proj.weight",
        "h.0.attn.c_proj.bias",
        "h.0.mlp.c_fc.weight",
        "h.0.mlp.c_fc.bias",
        "h.0.mlp.c_proj.weight",
        "h.0.mlp.c_proj.bias",
    ]
    index = (Path(__file__).parents[1] / "goldens" / "tensorflow" / INDEX).read_bytes()
    write_openai_files(tmp_path, index, numbers.tobytes(), TINY)
    parameters = tiedgpt.load_model(tmp_path).parameters
    values = np.concatenate([parameters[name].ravel() for name in order_in_data])
    np.testing.assert_array_equal(values, numbers)


@pytest.fixture
def openais_model(tmp_path, monkeypatch) -> Path:
    """MODEL in OpenAI's files, in the folder for gpt2."""
    monkeypatch.setenv("TIEDGPT_WEIGHTS", str(tmp_path))
    return write_openai_model(tmp_path / "gpt2", MODEL)


def test_openais_files_are_loaded_by_a_models_name_and_by_their_directory(openais_model):
    for source in ("gpt2", "124M", openais_model):
        assert_same(tiedgpt.load_model(source), MODEL)
    assert Opened(openais_model).config == TINY


LATEST = 'model_checkpoint_path: "{}"\nall_model_checkpoint_paths: "model-900"\n'


@pytest.mark.parametrize(
    "newest",
    [
        "model-1000",
        "/content/checkpoint/run1/model-1000",
        r"C:\\checkpoint\\run1\\model-1000",  # TensorFlow doubles each backslash
        "gone",
        None,
    ],
)
def test_the_checkpoint_of_a_training_is_loaded(openais_model, newest):
    """By gpt-2-simple, for one. `checkpoint` may name a file of another machine."""
    (openais_model / INDEX).rename(openais_model / "model-1000.index")
    (openais_model / DATA).rename(openais_model / "model-1000.data-00000-of-00001")
    if newest is not None:
        (openais_model / "checkpoint").write_text(LATEST.format(newest))
    if newest is not None and newest.endswith("1000"):  # it is one of several
        other = random_model(TINY, seed=1)
        write_openai_model(openais_model, other)
        (openais_model / "model-900.index").write_bytes(b"")
    assert_same(tiedgpt.load_model(openais_model), MODEL)
    (openais_model / "hparams.json").unlink()
    refuses(r"\.index is of TensorFlow: put .* hparams\.json", tiedgpt.load_model, openais_model)


def test_of_several_checkpoints_of_a_training_none_is_loaded(openais_model):
    index = (openais_model / INDEX).read_bytes()
    (openais_model / INDEX).unlink()
    for step in (900, 1000, 700, 800):
        (openais_model / f"model-{step}.index").write_bytes(index)
    assert refuses(".", tiedgpt.load_model, openais_model) == (
        f"{openais_model} has 4 checkpoints, model-1000.index, model-700.index, model-800.index: "
        "give a directory with one, or with the file 'checkpoint' that names one of them"
    )
    (openais_model / INDEX).write_bytes(index)  # OpenAI's own name counts more
    assert_same(tiedgpt.load_model(openais_model), MODEL)


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(b"", id="alone"),
        pytest.param(b'all_model_checkpoint_paths: "model-900"\n' * 100, id="in-a-later-line"),
        pytest.param(b'# model_checkpoint_path: "model-900"\n', id="after-a-comment"),
    ],
)
def test_the_newest_checkpoint_may_be_named_with_a_path_that_is_no_utf_8(tmp_path, before):
    for step in (900, 1000):
        (tmp_path / f"model-{step}.index").touch()
    named = b'model_checkpoint_path: "/r\xe9sum\xe9/model-1000"\n'
    (tmp_path / "checkpoint").write_bytes(before + named)
    assert tensorflow.index_file(tmp_path) == tmp_path / "model-1000.index"


@pytest.mark.parametrize(("dtype", "size"), [(9, 8), (3, 4)])
def test_the_tensors_of_an_optimizer_are_left_out_with_a_warning(openais_model, dtype, size):
    """The step is a whole number of 64 bits, or of 32."""
    entries, data = bundle(MODEL)
    for name in (b"model/wte/Adam", b"model/wte/Adam_1"):
        entries.append((name, entry_proto(MODEL.W_E.shape, offset=len(data))))
        data += bytes(MODEL.W_E.nbytes)
    for name in (b"beta1_power", b"beta2_power"):
        entries.append((name, entry_proto((), offset=len(data))))
        data += bytes(4)
    step = entry_proto((), offset=len(data), size=size, dtype=dtype)
    entries.append((b"global_step", step))
    index = table(in_blocks(sorted(entries)))
    write_openai_files(openais_model, index, data + bytes(size), TINY)
    with pytest.warns(TiedGPTWarning, match="5 tensors of an optimizer are not used") as caught:
        assert_same(tiedgpt.load_model(openais_model), MODEL)
    assert [warning.filename for warning in caught] == [__file__]


def test_one_tensor_of_a_training_is_left_out_with_a_warning(openais_model):
    entries, data = bundle(MODEL)
    entries.append((b"global_step", entry_proto((), offset=len(data), size=8, dtype=9)))
    index = table(in_blocks(sorted(entries)))
    write_openai_files(openais_model, index, data + bytes(8), TINY)
    with pytest.warns(TiedGPTWarning, match="1 tensors of an optimizer are not used"):
        assert_same(tiedgpt.load_model(openais_model), MODEL)


def test_check_reads_openais_files(openais_model, run):
    [report] = answer(run, "check", str(openais_model))["models"]
    assert report["holds"] == "embedding"
    assert report["parameters"]["tied"]["total"] == sum(x.size for x in MODEL.parameters.values())


def test_a_block_that_is_listed_many_times_takes_no_memory(tmp_path):
    """An index of 20 kB would make 500,000 entries."""
    entries = [(f"{n:04}".encode(), ENTRY) for n in range(1000)]
    contents = block(entries)

    def list_many_times(part: str, listed: bytes) -> bytes:
        if part != "index block":
            return listed
        return block([(b"%d" % n, handle(0, contents)) for n in range(500)], interval=1)

    index = table({b"z": contents}, edit=list_many_times)
    path = write_openai_files(tmp_path, index, bytes(4), TINY)
    assert peak_memory(refuses, "'0000' is given twice", tiedgpt.load_model, path) < 5_000_000


def test_only_the_three_files_are_read(openais_model):
    """OpenAI's folders also have model.ckpt.meta and checkpoint, which cannot be read here."""
    (openais_model / "model.ckpt.meta").mkdir()
    (openais_model / "checkpoint").write_bytes(b"\xff\0 no text")
    assert_same(tiedgpt.load_model(openais_model), MODEL)


# Each rule of the index

NAME = b"model/wte"
ENTRY = entry_proto()  # a tensor of one float32


def with_block(contents: bytes) -> bytes:
    """An index with one block of these contents, whose last key is NAME."""
    return table({NAME: contents})


def with_header(header: bytes) -> bytes:
    """An index with this BundleHeaderProto and one tensor."""
    return with_block(block([(b"", header), (NAME, ENTRY)]))


def with_entry(entry: bytes) -> bytes:
    """An index with this BundleEntryProto."""
    return with_block(block([(b"", HEADER), (NAME, entry)]))


GOOD = with_entry(ENTRY)
HANDLES = GOOD[-FOOTER : -len(MAGIC)].rstrip(b"\0")  # the two handles in the footer


def with_footer(handles: bytes) -> bytes:
    """The index GOOD with another footer: these handles, zeros up to 40 bytes, and MAGIC."""
    return GOOD[:-FOOTER] + handles.ljust(40, b"\0") + MAGIC


B_TWICE = block([(b"", HEADER), (b"b", ENTRY), (b"b", entry_proto(offset=4))])
RULES = [  # a wrong index, and the error
    # The table
    pytest.param(b"", "not the index of a GPT-2, or truncated", id="empty"),
    pytest.param(MAGIC, "or truncated: expected 48 to", id="short"),
    pytest.param(GOOD + b"\0", "not the index", id="longer"),
    pytest.param(
        GOOD[:-FOOTER].ljust(1_048_577 - FOOTER, b"\0") + GOOD[-FOOTER:],
        "expected 48 to 1048576 bytes, of which the last are 57fb808b247547db$",
        id="large",
    ),
    pytest.param(
        GOOD[:-1] + b"\0", "expected 48 to 1048576 bytes, of which the last are", id="no-magic"
    ),
    # The footer
    pytest.param(
        with_footer(b"\xff" * 40),
        "damaged: a number of more than 64 bits",
        id="footer-of-ones",
    ),
    pytest.param(
        with_footer(b"\xff" * 9 + b"\2"),
        "damaged: a number of more than 64 bits",
        id="varint-of-65-bits",
    ),
    pytest.param(
        with_footer(b"\0\0\0" + varint(2**62)),
        f"damaged: truncated: expected {2**62} bytes",
        id="handle-of-a-large-block",
    ),
    # The blocks
    pytest.param(
        table({NAME: block([(b"", HEADER)])}, kind=1),
        "a block of type 01; expected 00, not compressed",
        id="snappy",
    ),
    pytest.param(
        with_block(b"\xff" * 8),
        "bytes after the last tensor",
        id="many-restarts",
    ),
    pytest.param(
        with_block(b"\0\1\0a" + (2).to_bytes(4, "little")),
        "bytes after the last tensor",
        id="a-restart-too-many",
    ),
    pytest.param(
        with_block(b"\1\1\0ab" + bytes(4)),
        "a key of 1 bytes after 1 of the previous key",
        id="shared-with-no-key",
    ),
    pytest.param(
        with_block(block([(b"k" * 256, ENTRY)])),
        "a key of 256 bytes after 0",
        id="key-of-256-bytes",
    ),
    pytest.param(
        with_block(block([(b"k" * 255, ENTRY), (b"k" * 256, ENTRY)])),
        "a key of 1 bytes after 255",
        id="shared-key-of-256-bytes",
    ),
    pytest.param(
        with_block(b"\0\xff\x7f\0" + bytes(20)),
        "a key of 16383 bytes after 0",
        id="long-key",
    ),
    pytest.param(
        with_block(b"\0\x09\0a" + bytes(4)),
        "truncated: expected 9 bytes, 1 are left",
        id="short-key",
    ),
    # The header
    pytest.param(
        with_header(HEADER + number_field(2, 1)),
        "endianness is 1; expected 0",
        id="big-endian",
    ),
    pytest.param(
        with_header(HEADER + b"\x1b"),
        "wire type 3; expected 0, 2 or 5",
        id="wire-type",
    ),
    # The entries
    pytest.param(
        with_entry(ENTRY + b"\x4a" + varint(2**62)),
        f"truncated: expected {2**62} bytes",
        id="long-field",
    ),
    pytest.param(
        with_entry(entry_proto(dtype=19)), "'model/wte': dtype is 19; expected 1", id="dtype"
    ),
    pytest.param(
        with_entry(entry_proto(dtype=9, size=8)),  # which only a counter of an optimizer may have
        "'model/wte': dtype is 9; expected 1",
        id="dtype-of-a-counter",
    ),
    pytest.param(
        with_entry(entry_proto(shard=1)),
        "'model/wte': shard_id is 1; expected 0",
        id="shard",
    ),
    # The places of tensors
    pytest.param(
        with_entry(entry_proto((2**63,) * 254, size=4)),
        "'model/wte' has the shape .* at most 32 axes",
        id="many-axes",
    ),
    pytest.param(
        with_entry(entry_proto((2,), size=4)),
        r"has 32 bits, but F32 \[2\] needs 64",
        id="place-too-small",
    ),
    pytest.param(
        with_entry(entry_proto((2,))),
        "truncated: the tensors end at byte 8, the file of their values at 4",
        id="short-data",
    ),
    pytest.param(
        with_block(B_TWICE),
        "'b' is given twice",
        id="name-twice",
    ),
]


ONE_FLOAT = bytes(4)  # the data of an index with one tensor, ENTRY


@pytest.mark.parametrize(("index", "message"), RULES)
def test_an_index_that_breaks_a_rule_is_refused(tmp_path, index, message):
    """The error names the rule and the file, the index or the data, and is short."""
    write_openai_files(tmp_path, index, ONE_FLOAT, TINY)
    error = refuses(message, tiedgpt.load_model, tmp_path)
    assert error.startswith(f"{tmp_path / INDEX}: ")
    assert len(error) < 300 + len(str(tmp_path))


SHAPE_IN_PARTS = text_field(2, text_field(2, number_field(1, 1)))  # one axis of length 1
ODD = {  # an index that may be unusual, and the shapes of its tensors
    "as long as it may be": (
        GOOD[:-FOOTER].ljust(1_048_576 - FOOTER, b"\0") + GOOD[-FOOTER:],
        {"model/wte": (1,)},
    ),
    "a key of 255 bytes": (with_block(block([(b"k" * 255, ENTRY)])), {"k" * 255: (1,)}),
    "a number twice: the last one counts": (
        with_entry(number_field(1, 19) + ENTRY),
        {"model/wte": (1,)},
    ),
    "a shape in two parts": (with_entry(ENTRY + SHAPE_IN_PARTS), {"model/wte": (1, 1)}),
    "a text in place of a number": (with_entry(ENTRY + text_field(3, b"x")), {"model/wte": (1,)}),
    "a number in place of a shape": (with_entry(ENTRY + number_field(2, 7)), {"model/wte": (1,)}),
    "a name that begins like one of an optimizer": (
        with_block(block([(b"model/wte/Adam_2", ENTRY)])),
        {"model/wte/Adam_2": (1,)},
    ),
}


def test_an_odd_index_is_read(tmp_path):
    """Fields of a message that have another type than that of their number are ignored."""
    for kind, (index, shapes) in ODD.items():
        write_openai_files(tmp_path, index, ONE_FLOAT, TINY)
        saved = read_saved(tmp_path / INDEX)
        assert {name: tensor.shape for name, tensor in saved.tensors.items()} == shapes, kind
        assert not saved.of_optimizer, kind


def test_a_number_has_at_most_64_bits():
    for value in (0, 127, 128, 2**63, 2**64 - 1):
        assert tensorflow.Bytes(varint(value) + b"x").varint() == value
    with pytest.raises(ValueError, match="a number of more than 64 bits"):
        tensorflow.Bytes(varint(2**64)).varint()


# The tensors are those of the model


def write_shapes(directory: Path, shapes: dict[bytes, tuple[int, ...]]) -> Path:
    """OpenAI's files with tensors of these shapes, full of zeros."""
    entries = [(b"", HEADER)]
    end = 0  # of the data so far
    for key, shape in sorted(shapes.items()):
        entries.append((key, entry_proto(shape, offset=end)))
        end += 4 * int(np.prod(shape))  # four bytes for each float32
    index = table(in_blocks(entries))
    return write_openai_files(directory, index, bytes(end), TINY)


@pytest.fixture
def shapes(tmp_path) -> dict[bytes, tuple[int, ...]]:
    """The shapes of MODEL by OpenAI's names."""
    directory = write_openai_model(tmp_path / "model", MODEL)
    tensors = read_saved(directory / INDEX).tensors
    return {name.encode(): tensor.shape for name, tensor in tensors.items()}


def test_a_missing_tensor_is_refused(tmp_path, shapes):
    del shapes[b"model/h0/attn/c_proj/w"]
    message = r"h\.0\.attn\.c_proj\.weight is missing; .* of 1 layer$"
    refuses(message, tiedgpt.load_model, write_shapes(tmp_path, shapes))


def test_a_tensor_that_the_model_does_not_have_is_refused(tmp_path, shapes):
    shapes[b"model/wte\n\xff"] = (2,)
    message = r"'model/wte\\nÿ' is not one of"
    refuses(message, tiedgpt.load_model, write_shapes(tmp_path, shapes))


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        pytest.param(
            b"model/wte",
            (2, 5),
            r"wte\.weight has shape \(2, 5\); expected \(5, 2\)",
            id="transposed",
        ),
        pytest.param(
            b"model/h0/attn/c_attn/w", (2, 1, 6), r"has shape \(2, 1, 6\)", id="kernel-of-width-2"
        ),
        pytest.param(
            b"model/h0/attn/c_attn/w", (1, 1, 2, 6), r"has shape \(1, 1, 2, 6\)", id="four-axes"
        ),
    ],
)
def test_a_tensor_of_a_wrong_shape_is_refused(tmp_path, shapes, name, shape, message):
    shapes[name] = shape
    refuses(message, tiedgpt.load_model, write_shapes(tmp_path, shapes))


# Each of the three files


def hparams(**changes) -> str:
    """hparams.json of TINY, with some values changed."""
    values = {"n_vocab": 5, "n_ctx": 3, "n_embd": 2, "n_head": 1, "n_layer": 1}
    return json.dumps({**values, **changes})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        pytest.param("", "not JSON", id="empty"),
        pytest.param("[]", r"expected a JSON object, got \[\]", id="list"),
        pytest.param('{"n_vocab": 5}', "n_ctx .*must be a whole number .* got None", id="missing"),
        pytest.param(
            hparams(n_vocab="5\n"), "vocab_size must be a whole number .* got '5", id="text"
        ),
        pytest.param(
            hparams(scale_by_depth=True),
            "'scale_by_depth' is not a field of OpenAI's models, and may be another computation; "
            "expected n_vocab, n_ctx, n_embd, n_head, n_layer$",
            id="field",
        ),
        pytest.param(hparams(n_layer=10**9), "n_layer must be a whole number", id="large"),
        pytest.param(hparams(n_head=3), "n_embd 2 does not divide into n_head 3", id="n_head-3"),
        # The shapes of the tensors do not depend on n_head, so that only the heads' width, n_embd /
        # n_head, shows a wrong one.
        pytest.param(
            hparams(n_head=2),
            "n_embd 2 with n_head 2 makes heads of width 1, expected 2 as in all of OpenAI's "
            "models: fetch the file again$",
            id="n_head-2",
        ),
        pytest.param(
            hparams(n_embd=4),
            "n_embd 4 with n_head 1 makes heads of width 4, expected 2 ",
            id="wide",
        ),
    ],
)
def test_a_wrong_hparams_json_is_refused(openais_model, content, message):
    (openais_model / HPARAMS).write_text(content)
    error = refuses(f"{HPARAMS}: {message}", tiedgpt.load_model, openais_model)
    assert error.startswith(f"{openais_model / HPARAMS}: ")


def test_the_last_token_of_a_larger_vocabulary_ends_a_text_too(tmp_path):
    config = tensorflow.config_of(json.loads(hparams(n_vocab=60_000)), tmp_path)
    assert (config.bos_token_id, config.eos_token_id) == (59_999, 59_999)


@pytest.mark.parametrize("file", [HPARAMS, INDEX, DATA])
def test_each_of_the_three_files_is_needed(openais_model, file):
    (openais_model / file).unlink()
    refuses(
        f"{file}: cannot be read: No such file|no config.json", tiedgpt.load_model, openais_model
    )


@pytest.mark.parametrize("file", [INDEX, DATA])
def test_a_fifo_is_not_opened(openais_model, file):
    """To open it would wait for a writer, without end."""
    (openais_model / file).unlink()
    os.mkfifo(openais_model / file)
    refuses(f"{file}: is not a regular file", tiedgpt.load_model, openais_model)


# Damage


@pytest.mark.parametrize("step", [pytest.param(7, marks=pytest.mark.slow), 49])
def test_an_index_with_a_flipped_bit_is_refused_or_read_rightly(tmp_path, step):
    """Every seventh bit is flipped, one at a time, so that each byte is damaged once or twice.

    Or a seventh of these bits.
    """
    small_model = random_model(replace(TINY, n_layer=0))
    path = write_openai_model(tmp_path, small_model) / INDEX
    content = path.read_bytes()
    n_refused = 0
    bits = range(0, 8 * len(content), step)
    for bit in bits:
        byte, bit_of_byte = divmod(bit, 8)
        damaged = bytearray(content)
        damaged[byte] ^= 1 << bit_of_byte
        path.write_bytes(damaged)
        try:
            assert_same(tiedgpt.load_model(tmp_path), small_model)
        except CheckpointError:
            n_refused += 1
    assert n_refused > 0.44 * len(bits)


# Small files that could grow large in memory

AXIS_OF_LENGTH_0 = text_field(2, b"")
EMPTY_TENSOR = number_field(1, 1) + text_field(2, AXIS_OF_LENGTH_0)  # the entry of a [0] float32


def long_keys(times: int) -> bytes:
    """An index with `times` keys of the largest length, of which it holds four bytes each.

    All other bytes of a key are shared: they are those of the key before it.
    """
    first_entries = block([(b"", HEADER), (b"k" * MAX_KEY, EMPTY_TENSOR)])
    contents = first_entries[:-8]  # without the eight bytes of restarts at its end
    lengths = varint(MAX_KEY - 4) + varint(4) + varint(len(EMPTY_TENSOR))  # shared, new, value
    for n in range(times):
        last_four_bytes = b"l" + n.to_bytes(3, "big")
        contents += lengths + last_four_bytes + EMPTY_TENSOR
    restarts = block([])  # a block without entries has only these
    return with_block(contents + restarts)


def many_axes(times: int) -> bytes:
    """An index whose tensor has `times` axes more than EMPTY_TENSOR, all of length 0."""
    return with_entry(EMPTY_TENSOR + text_field(2, AXIS_OF_LENGTH_0 * times))


def long_varint(times: int) -> bytes:
    """An index whose header is one number of `times` bytes: each says that more bytes follow."""
    says_that_more_follow = b"\x80"
    return with_header(says_that_more_follow * times)


GROWING = [  # a function that makes an index, its argument `times`, the error
    pytest.param(long_keys, 10_000, "the tensors end at byte 0", id="long-keys"),
    pytest.param(many_axes, 50_000, "at most 32 axes", id="many-axes"),
    pytest.param(long_varint, 1_000_000, "a number of more than 64 bits", id="long-varint"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("make_index", "times", "message"), GROWING)
def test_a_small_file_takes_little_time(
    tmp_path, make_index: Callable[[int], bytes], times, message
):
    index = make_index(times)
    assert len(index) <= MAX_INDEX, "the index is refused because it is too long"
    write_openai_files(tmp_path, index, ONE_FLOAT, TINY)
    start = time.process_time()
    refuses(message, tiedgpt.load_model, tmp_path)
    seconds = time.process_time() - start
    assert seconds < 2


@pytest.mark.slow
@pytest.mark.parametrize(("make_index", "times", "message"), GROWING)
def test_a_small_file_takes_little_memory(
    tmp_path, make_index: Callable[[int], bytes], times, message
):
    """The index has a tenth of `times`, because to trace the memory is slow."""
    index = make_index(times // 10)
    write_openai_files(tmp_path, index, ONE_FLOAT, TINY)
    assert peak_memory(refuses, message, tiedgpt.load_model, tmp_path) < 12_000_000
