"""The reader of OpenAI's files: their own index, files from a writer in this module, each rule,
damage."""

import json
import os
import shutil
import time
import timeit
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.checks import peak_memory, refuses
from support.models import random_model
from test_checkpoints import assert_same

import tiedgpt
from tiedgpt import GPT2, Config
from tiedgpt.checkpoints import tensorflow, tensorflow_index
from tiedgpt.checkpoints.crc32c import DISTANCES, crc32c, mask
from tiedgpt.checkpoints.formats import read_config
from tiedgpt.checkpoints.known_models import MODELS
from tiedgpt.checkpoints.tensor_names import to_tensorflow
from tiedgpt.checkpoints.tensorflow import DATA, HPARAMS, INDEX, open_directory
from tiedgpt.checkpoints.tensorflow_index import MAGIC, read_index
from tiedgpt.gpt2.parameters import parameter_shapes

HEAD_WIDTH = tensorflow.HEAD_WIDTH  # the tests change it
# OpenAI's files fix n_inner and the id of the last token.
TINY = Config(vocab_size=5, n_ctx=3, n_embd=2, n_layer=1, n_head=1, bos_token_id=4, eos_token_id=4)
MODEL = random_model(TINY)


@pytest.fixture(autouse=True)
def heads_of_width_2(monkeypatch):
    """The small models of this module have heads of width 2; OpenAI's have 64."""
    monkeypatch.setattr(tensorflow, "HEAD_WIDTH", TINY.head_width)


# A writer of the format, written from the specification and independent of the reader


def slow_crcs(data: bytes) -> Iterator[int]:
    """The CRC-32C of the first 0, 1, 2 ... bytes, by the definition, bit by bit."""
    register = 0xFFFFFFFF
    yield 0
    for byte in data:
        register ^= byte
        for _ in range(8):
            register = register >> 1 ^ (0x82F63B78 if register & 1 else 0)
        yield register ^ 0xFFFFFFFF


def sealed(stored: bytes) -> bytes:
    """The stored bytes and their checksum."""
    return stored + mask(crc32c(stored)).to_bytes(4, "little")


def varint(value: int) -> bytes:
    return bytes([value]) if value < 128 else bytes([value % 128 + 128]) + varint(value // 128)


def field(number: int, wire_type: int, value: int | bytes) -> bytes:
    tag = varint(number * 8 + wire_type)
    if isinstance(value, int):
        return tag + varint(value)
    return tag + (varint(len(value)) if wire_type == 2 else b"") + value


def entry_proto(
    shape=(1,), offset=0, size=None, crc=bytes(4), dtype=1, shard=0, extra=b""
) -> bytes:
    """BundleEntryProto, with what is zero left out."""
    dims = b"".join(field(2, 2, field(1, 0, n) if n else b"") for n in shape)
    size = 4 * int(np.prod(shape, dtype=object)) if size is None else size
    value = (field(1, 0, dtype) if dtype else b"") + field(2, 2, dims)
    value += b"".join(
        field(number, 0, n) for number, n in ((3, shard), (4, offset), (5, size)) if n
    )
    return value + field(6, 5, crc) + extra


HEADER = field(1, 0, 1) + field(3, 2, field(1, 0, 1))
Edit = Callable[[str, bytes], bytes]  # of a part of a table, "index block" for one


def contents(entries: Iterable[tuple[bytes, bytes]], interval: int = 3) -> bytes:
    """A block: each `interval`-th key whole, what the others share with the key before them left
    out."""
    raw, previous, positions = b"", b"", []
    for i, (key, value) in enumerate(entries):
        shared = 0
        while (
            i % interval
            and shared < min(len(key), len(previous))
            and key[shared] == previous[shared]
        ):
            shared += 1
        if i % interval == 0:
            positions.append(len(raw))
        raw += (
            varint(shared) + varint(len(key) - shared) + varint(len(value)) + key[shared:] + value
        )
        previous = key
    positions = positions or [0]
    return raw + b"".join(n.to_bytes(4, "little") for n in [*positions, len(positions)])


def table(blocks: dict[bytes, bytes], kind=0, edit: Edit = lambda part, raw: raw) -> bytes:
    """A whole table of data blocks, each by its last key."""
    raw = b""

    def add(block: bytes) -> bytes:
        nonlocal raw
        handle = varint(len(raw)) + varint(len(block))
        raw += sealed(block + bytes([kind]))
        return handle

    handles = [(last_key, add(block)) for last_key, block in blocks.items()]
    footer = add(edit("metaindex block", contents([])))
    footer += add(edit("index block", contents(handles, interval=1)))
    return raw + footer.ljust(40, b"\0") + MAGIC


def in_blocks(entries: list[tuple[bytes, bytes]]) -> dict[bytes, bytes]:
    """As many data blocks as it takes, each by its last key."""
    groups = [entries[i : i + 4] for i in range(0, len(entries), 4)]
    return {group[-1][0]: contents(group) for group in groups}


def bundle(model: GPT2) -> tuple[list[tuple[bytes, bytes]], bytes]:
    """A model's entries and data, in the order of OpenAI's names, as TensorFlow has them."""
    arrays = {}
    for name, array in model.parameters.items():
        stored = array[np.newaxis] if name.startswith("h.") and array.ndim == 2 else array
        arrays[to_tensorflow(name).encode()] = stored
    entries, data = [(b"", HEADER)], b""
    for key in sorted(arrays):
        raw = np.ascontiguousarray(arrays[key], "<f4").tobytes()
        entries.append((key, entry_proto(arrays[key].shape, len(data), crc=sealed(raw)[-4:])))
        data += raw
    return entries, data


def write(directory: Path, index: bytes, data: bytes, config: Config) -> Path:
    directory.mkdir(exist_ok=True)
    hparams = {name: getattr(config, name) for name in ("n_ctx", "n_embd", "n_head", "n_layer")}
    (directory / HPARAMS).write_text(json.dumps({"n_vocab": config.vocab_size, **hparams}))
    (directory / INDEX).write_bytes(index)
    (directory / DATA).write_bytes(data)
    return directory


def write_bundle(directory: Path, model: GPT2) -> Path:
    entries, data = bundle(model)
    return write(directory, table(in_blocks(entries)), data, model.config)


PUBLISHED = {  # RFC 3720, B.4, and the catalogue's check value
    b"": 0,
    b"123456789": 0xE3069283,
    bytes(32): 0x8A9136AA,
    b"\xff" * 32: 0x62A8AB43,
    bytes(range(32)): 0x46DD794E,
    bytes(reversed(range(32))): 0x113FDB5C,
}


def test_the_crc_is_the_published_one_and_that_of_its_definition_at_every_kind_of_length():
    for crc_of in (crc32c, lambda data: [*slow_crcs(data)][-1]):
        assert {data: crc_of(data) for data in PUBLISHED} == PUBLISHED
    data = np.random.default_rng(0).bytes(30 * 6777 + 5)
    step, _, kept = DISTANCES
    edges = (kept, kept + step, 8 * kept, 8 * step, 8 * (kept + step), 16 * step)
    lengths = {
        *range(40),
        *(edge + n for edge in edges for n in (-9, -8, -1, 0, 1, 7, 8)),
        len(data),
    }
    for length, crc in enumerate(slow_crcs(data)):
        if length in lengths:
            assert crc32c(data[:length]) == crc, length


def test_498_megabytes_take_less_than_three_seconds():
    """Measured on an eighth of them. It takes 0.02 s on an idle machine."""
    data = np.random.default_rng(0).integers(0, 2**63, 497_759_232 // 64, np.int64)
    assert min(timeit.repeat(lambda: crc32c(data), number=1, repeat=3)) < 3 / 8


def test_openais_index_and_names(shared, tmp_path, monkeypatch):
    monkeypatch.setattr(tensorflow, "HEAD_WIDTH", HEAD_WIDTH)
    for name in (HPARAMS, INDEX):
        shutil.copy(shared / "gpt2" / "124M" / name, tmp_path)
    (tmp_path / DATA).touch()
    os.truncate(tmp_path / DATA, 497759232)  # it takes no room on the disk
    tensors = read_index(tmp_path / INDEX, tmp_path / DATA)
    assert tensors["model/h0/attn/c_attn/w"].shape == (1, 768, 2304)
    assert (tensors["model/wte"].start, tensors["model/wte"].masked_crc) == (343369728, 0x0E298522)
    assert list(tensors) == sorted(tensors, key=lambda name: tensors[name].start) == sorted(tensors)
    checkpoint = open_directory(tmp_path)
    assert (checkpoint.config, checkpoint.has_own_unembedding) == (Config(), False)
    assert {name: tensor.shape for name, tensor in checkpoint.tensors.items()} == parameter_shapes(
        Config()
    )
    assert checkpoint.tensors["h.10.mlp.c_fc.weight"].name == "model/h10/mlp/c_fc/w"


# TensorFlow 2.21 (tf.raw_ops.SaveV2) wrote goldens/tensorflow for TINY's tensors with the numbers
# 0, 1, 2 ... in this order.
WRITTEN = [
    "wte",
    "wpe",
    "ln_f",
    *(f"h.0.{m}" for m in ("ln_1", "ln_2", "attn.c_attn", "attn.c_proj")),
]
WRITTEN += ["h.0.mlp.c_fc", "h.0.mlp.c_proj"]


def test_a_checkpoint_that_tensorflow_wrote(tmp_path):
    """Its tensors' CRCs are TensorFlow's own, and the data is in another order than the names."""
    index = (Path(__file__).parent / "goldens" / "tensorflow" / INDEX).read_bytes()
    write(tmp_path, index, np.arange(94, dtype="<f4").tobytes(), TINY)
    parameters = open_directory(tmp_path).load().parameters
    names = [f"{module}.{kind}" for module in WRITTEN for kind in ("weight", "bias")]
    arrays = [parameters[name].ravel() for name in names if name in parameters]
    np.testing.assert_array_equal(np.concatenate(arrays), np.arange(94))


def test_openais_files_are_found_and_loaded_like_any_others(tmp_path, monkeypatch):
    """Other files beside them are not read."""
    write_bundle(tmp_path / "gpt2", MODEL)
    (tmp_path / "gpt2" / "model.ckpt.meta").mkdir()
    (tmp_path / "gpt2" / "checkpoint").write_bytes(b"\xff\0 no text")
    monkeypatch.setenv("TIEDGPT_WEIGHTS", str(tmp_path))
    for source in ("gpt2", "124M", tmp_path / "gpt2"):
        assert_same(tiedgpt.load_model(source), MODEL)
    assert read_config(tmp_path / "gpt2") == TINY


NAME = b"model/wte"
ENTRY = entry_proto()
ONE = contents([(b"", HEADER), (NAME, ENTRY)])


def with_block(block: bytes) -> bytes:
    return table({NAME: block})


def with_entry(value: bytes, header: bytes = HEADER) -> bytes:
    return with_block(contents([(b"", header), (NAME, value)]))


def with_header(value: bytes) -> bytes:
    return with_entry(ENTRY, value)


def with_footer(footer: bytes) -> bytes:
    return with_block(ONE)[: -tensorflow_index.FOOTER] + footer.ljust(40, b"\0") + MAGIC


GOOD = with_block(ONE)
HANDLES = GOOD[-tensorflow_index.FOOTER : -8].rstrip(b"\0")
TWICE = with_block(contents([(b"", HEADER), (b"b", ENTRY), (b"b", entry_proto(offset=4))]))
LATE_FOOTER = GOOD[: -tensorflow_index.FOOTER] + b"\0" + GOOD[-tensorflow_index.FOOTER :]
LONG = "wrong varint before 10: over 64 bits"
RULES = {  # what is damaged, and how it is written -> the damage and the error
    bytes: [
        (b"", "truncated, or not an index: 0 bytes that end with ''"),
        (MAGIC, "8 bytes that end with '57fb808b247547db'; expected at least 48"),
        (GOOD + b"\0", "truncated, or not an index: .* that end with"),
        (
            bytes(tensorflow_index.MAX_INDEX + 1),
            "not the index of a GPT-2: more than 1048576 bytes",
        ),
        (LATE_FOOTER, r"a block or the footer starts at byte \d+, expected \d+"),
        (
            GOOD[:9] + b"\1" + GOOD[10:],
            r"block at byte 0: damaged: its masked CRC-32C is \w{8}, expected",
        ),
        (
            table({NAME: ONE}, kind=1),
            r"block at byte \d+: of type 1 \(snappy\); expected 0, not compr",
        ),
        (table({}), "index: the header is missing"),
        (TWICE, "tensor 'b' leaves a hole before it: it starts at byte 4, expected 0"),
    ],
    with_footer: [
        (b"\xff" * 40, f"footer: {LONG}"),
        (b"\xff" * 9 + b"\2", f"footer: {LONG}"),
        (
            HANDLES[:-1] + bytes([HANDLES[-1] | 128, 0]),
            "footer: wrong varint .* longer than necessary",
        ),
        (HANDLES.ljust(39, b"\0") + b"\1", "footer: expected zeros after the two handles"),
        (b"\0\0\0" + varint(2**62), f"block at byte 0: truncated: expected {2**62} bytes"),
    ],
    with_block: [
        (b"\xff" * 8, f"block at byte 0: 8 bytes do not hold {2**32 - 1} restarts"),
        (b"\1\1\0ab" + bytes(4), "at 0: a key of 1 bytes after 1 of the previous key"),
        (b"\0\xff\x7f\0" + bytes(20), "at 0: a key of 16383 bytes after 0"),
        (b"\0\x09\0a" + bytes(4), "block at byte 0: truncated: expected 9 bytes at 3, 1 are left"),
        (b"\0\0\x80\0" + bytes(4), "block at byte 0: wrong varint before 4"),
    ],
    with_header: [
        (b"", "header: num_shards is 0; expected 1"),
        (HEADER + field(2, 0, 1), "header: endianness is 1; expected 0"),
        (HEADER + b"\x1b", "header: field 3 has wire type 3; expected 0, 2 or 5"),
    ],
    with_entry: [
        (ENTRY + b"\x4a" + varint(2**62), f"tensor 'model/wte': truncated: expected {2**62} bytes"),
        (entry_proto(dtype=19), "tensor 'model/wte': dtype is 19; expected 1"),
        (entry_proto(shard=1), "tensor 'model/wte': shard_id is 1; expected 0"),
        (entry_proto(extra=field(7, 2, b"")), "tensor 'model/wte': stored in slices"),
        (entry_proto((2**63,) * 254, size=4), "tensor 'model/wte': 254 axes; expected at most 64"),
        (entry_proto((2,), size=4), r"its place has 32 bits, but F32 \[2\] needs 64"),
        (entry_proto((2,)), "00001: truncated: the tensors end at byte 8, the file at 4"),
    ],
}


@pytest.mark.parametrize(
    ("write_with", "damage", "message"),
    [(write_with, *row) for write_with, rows in RULES.items() for row in rows],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_rule_is_enforced_by_name(tmp_path, write_with, damage, message):
    write(tmp_path, write_with(damage), bytes(4), TINY)
    error = refuses(message, open_directory, tmp_path)
    assert str(tmp_path / "model.ckpt.") in error
    assert len(error) < 300 + len(str(tmp_path))


C_ATTN = b"model/h0/attn/c_attn/w"


@pytest.mark.parametrize(
    ("name", "shape", "message"),
    [
        (
            b"model/h0/attn/c_proj/w",
            None,
            r"h\.0\.attn\.c_proj\.weight of the 1-layer .* is missing",
        ),
        (b"model/wte\n\xff", (2,), r"tensor 'model/wte\\nÿ' is not a parameter"),
        (
            b"model/wte",
            (2, 5),
            r"tensor 'model/wte' has shape \[2, 5\]; hparams.json makes it \[5, 2\]",
        ),
        (C_ATTN, (2, 1, 6), r"has shape \[2, 1, 6\]"),
        (C_ATTN, (1, 1, 2, 6), r"has shape \[1, 1, 2, 6\]"),
    ],
)
def test_the_tensors_are_those_of_the_model(tmp_path, name, shape, message):
    write_bundle(tmp_path, MODEL)
    tensors = read_index(tmp_path / INDEX, tmp_path / DATA)
    shapes = {key.encode(): tensor.shape for key, tensor in tensors.items()}
    entries, end = [(b"", HEADER)], 0
    for key, its in sorted((shapes | {name: shape}).items()):
        if its is not None:
            entries.append((key, entry_proto(its, end)))
            end += 4 * int(np.prod(its))
    write(tmp_path, table(in_blocks(entries)), bytes(end), TINY)
    refuses(f"model.ckpt.index: .*{message}", open_directory, tmp_path)


def hparams(**changes) -> str:
    """hparams.json of TINY, with some values changed; None: left out."""
    values = {"n_vocab": 5, "n_ctx": 3, "n_embd": 2, "n_head": 1, "n_layer": 1, **changes}
    return json.dumps({name: value for name, value in values.items() if value is not None})


FILES = (HPARAMS, INDEX, DATA)
WRONG = [  # None: there is no such file; FIFO: opening it would wait for a writer
    (HPARAMS, "", "not JSON"),
    (HPARAMS, "[]", r"expected a JSON object, got \[\]"),
    (HPARAMS, hparams(n_layer=None), "n_layer is missing"),
    (HPARAMS, hparams(n_vocab="5\n"), "vocab_size must be a whole number .* got '5"),
    (HPARAMS, hparams(n_layer=10**9), "n_layer must be a whole number"),
    (HPARAMS, hparams(n_head=3), "n_embd 2 does not divide into n_head 3"),
    # One flipped bit makes 16 of OpenAI's n_head 12: the tensors' shapes are the same, so they tell
    # nothing.
    (
        HPARAMS,
        hparams(n_head=2),
        "n_embd 2 with n_head 2 makes heads of width 1, expected 2 as in all of Op",
    ),
    *((file, None, "cannot be read: No such file") for file in FILES),
    *((file, "FIFO", r"(is not a regular file|truncated: .* the file at 0)") for file in FILES),
]


@pytest.mark.parametrize(("file", "content", "message"), WRONG)
def test_each_of_the_three_files_is_needed_and_checked(tmp_path, file, content, message):
    path = write_bundle(tmp_path, MODEL) / file
    path.unlink()
    if content == "FIFO":
        os.mkfifo(path)
    elif content is not None:
        path.write_text(content)
    refuses(f"{file}: .*{message}", open_directory, tmp_path)


def test_all_of_openais_models_have_heads_of_one_width():
    assert {model.config.head_width for model in MODELS.values()} == {HEAD_WIDTH} == {64}


@pytest.mark.parametrize(
    ("name", "message"), [(INDEX, ""), (DATA, "tensor 'model/.*' is damaged: ")]
)
def test_every_flipped_bit_is_caught(tmp_path, name, message):
    path = write_bundle(tmp_path, random_model(replace(TINY, n_layer=0))) / name
    content = bytearray(path.read_bytes())
    for bit in range(0, 8 * len(content), 7):
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        content[bit // 8] ^= 1 << bit % 8
        refuses(f"{name}: {message}", lambda: open_directory(tmp_path).load())


EMPTY = field(1, 0, 1) + field(2, 2, field(2, 2, b""))  # a tensor without values


def long_keys(times: int) -> bytes:
    """Keys of the largest length, with only four bytes of each in the file; tensors without
    values."""
    block = contents([(b"", HEADER), (b"k" * tensorflow_index.MAX_KEY, EMPTY)])[:-8]
    entry = varint(tensorflow_index.MAX_KEY - 4) + varint(4) + varint(len(EMPTY))
    block += b"".join(entry + b"l" + n.to_bytes(3, "big") + EMPTY for n in range(times))
    return with_block(block + contents([]))


def many_axes(times: int) -> bytes:
    return with_entry(EMPTY + field(2, 2, field(2, 2, b"") * times))


GROWING = [
    (long_keys, 10_000, "00001: bytes after the last tensor"),
    (many_axes, 50_000, "50+1 axes; expected at most"),
    (lambda times: with_header(b"\x80" * times), 1_000_000, f"header: {LONG}"),
]


@pytest.mark.parametrize(("make", "times", "message"), GROWING)
def test_a_small_file_does_not_grow_large(tmp_path, make, times, message):
    """The time for a large file, and the memory for a tenth of it, because tracing is slow."""
    write(tmp_path, index := make(times), bytes(4), TINY)
    assert len(index) <= tensorflow_index.MAX_INDEX
    start = time.process_time()
    refuses(message, open_directory, tmp_path)
    assert time.process_time() - start < 2  # of the processor
    write(tmp_path, make(times // 10), bytes(4), TINY)
    assert peak_memory(refuses, message, open_directory, tmp_path) < 12_000_000
