"""The safetensors reader, rule by rule in the order of the file, on raw bytes; and the writer."""

import io
import json
import struct

import numpy as np
import pytest
from support.checks import peak_memory, refuses

from tiedgpt import Config
from tiedgpt.checkpoints import safetensors
from tiedgpt.gpt2 import config as config_module
from tiedgpt.gpt2.parameters import parameter_shapes


def raw(header: bytes, data: bytes = b"") -> bytes:
    return struct.pack("<Q", len(header)) + header + data


def one(dtype="F32", shape=(1,), offsets=(0, 4), name="a") -> bytes:
    """The header of one tensor."""
    return json.dumps({name: {"dtype": dtype, "shape": shape, "data_offsets": offsets}}).encode()


@pytest.fixture
def read(tmp_path):
    """Bytes -> the header that the reader makes of a file that holds them."""

    def read(content: bytes) -> dict[str, safetensors.Tensor]:
        path = tmp_path / "model.safetensors"
        path.write_bytes(content)
        return safetensors.read_header(path)

    return read


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "0 bytes, expected 8 or more"),
        (struct.pack("<Q", 2**22 + 1), "a header of 4194305 bytes; expected at most 4194304"),
        (struct.pack("<Q", 50) + b"{}", "truncated: 10 bytes, the header ends at 58"),
        (raw(b"\xef\xbb\xbf{}"), "the header is not JSON"),
        (raw(b"[]"), r"the header must be a JSON object, got \[\]"),
        (raw(b'{"\xff":1}'), "the header is not JSON"),
        (raw(b'{"a":' * 100_000), "the header is not JSON"),
        (raw(b'{"a":' + b"9" * 5000 + b"}"), "the header is not JSON"),
        (raw(one()[:-1] + b"," + one()[1:], bytes(4)), "'a' is given twice"),
        (raw(b'{"\\ud800":1}'), "a name is not Unicode: it has an unpaired surrogate"),
        (raw(b'{"a":{"dtype":NaN}}'), "the header is not JSON: NaN is not a JSON number"),
        (raw(b'{"__metadata__":null}'), "__metadata__ must be an object of strings, got None"),
        (
            raw(b'{"__metadata__":{"a":5}}'),
            "__metadata__ must be an object of strings, got {'a': 5}",
        ),
        (
            raw(b'{"__metadata__":{"a":"\\ud800"}}'),
            "__metadata__ must be an object of strings, got {'a'",
        ),
        (raw(b'{"a":7}'), "tensor 'a': expected an object, got 7"),
        (raw(b'{"%s":7}' % (b"\\n" * 10_000)), "expected an object, got 7"),
        (raw(one(dtype="F31"), bytes(4)), "tensor 'a': unknown dtype 'F31'"),
        (raw(b'{"a":{"dtype":["F32"]}}'), r"tensor 'a': unknown dtype \['F32'\]"),
        (raw(one(shape=(-1,))), r"tensor 'a': shape .* got \[-1\]"),
        (raw(one(shape=(True,))), r"tensor 'a': shape .* got \[True\]"),
        (raw(b'{"a":{"dtype":"F32","shape":[%s]}}' % (b"9" * 4000)), r"tensor 'a': shape .* got"),
        (raw(one("U8", [1], [0, 10**4300 - 1])), "tensor 'a': data_offsets must be"),
        (raw(one(shape=[2**63] * 10_000)), "tensor 'a': 10000 axes; expected at"),
        (raw(b'{"a":{"dtype":"F32","shape":4}}'), "tensor 'a': shape .* got 4"),
        (raw(one(offsets=(0,))), r"tensor 'a': data_offsets .* got \[0\]"),
        (raw(one(offsets=(4, 0))), "its place has -32 bits, but F32 .* needs 32"),
        (raw(one(shape=(2,)), bytes(4)), r"its place has 32 bits, but F32 \[2\]"),
        (raw(one("F4", (3,), (0, 2)), bytes(2)), r"has 16 bits, but F4 \[3\] needs"),
        (
            raw(one(offsets=(4, 8)), bytes(8)),
            "leaves a hole before it: it starts at byte 73, expected 69",
        ),
        (
            raw(one()[:-1] + b"," + one(name="b")[1:], bytes(4)),
            "'b' overlaps the tensor before it: it",
        ),
        (raw(one(), bytes(3)), "truncated: the tensors end at byte 73, the file at 72"),
        (
            raw(one(), bytes(5)),
            "bytes after the last tensor: the tensors end at byte 73, the file at 74",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_rule_is_enforced_by_name(read, content, message):
    error = refuses(message, read, content)
    assert "model.safetensors: " in error
    assert len(error) < 400


@pytest.mark.parametrize(("before", "after"), [(" ", ""), ("\n", " \n\r\t"), ("\r\n\t ", "")])
def test_what_the_formats_own_reader_accepts(read, before, after):
    """White space, although its specification forbids it; tensors of every dtype, if they have
    their size.

    A tensor without values takes no room, and tensors may be in another order than their values.
    """
    header, end = {}, 0
    for dtype, bits in safetensors.DTYPE_BITS.items():
        header[dtype] = {"dtype": dtype, "shape": [2, 4], "data_offsets": [end, end + bits]}
        end += bits
    header["a"] = {"dtype": "F32", "shape": [1], "data_offsets": [end, end + 4]}
    header["none"] = {"dtype": "F32", "shape": [0], "data_offsets": [0, 0]}
    content = raw(
        (before + json.dumps(header) + after).encode(), bytes(end) + np.float32(7).tobytes()
    )
    tensors = read(content)
    assert list(tensors) == list(header)
    np.testing.assert_array_equal(tensors["a"].read(), [7])
    assert tensors["none"].read().shape == (0,)
    official = pytest.importorskip("safetensors")
    assert {name for name, _ in official.deserialize(content)} == header.keys()


def test_a_header_takes_little_memory(read):
    """The header of the deepest GPT-2 that is allowed is read, and none can be much longer."""
    config = Config(n_layer=config_module.RANGES["n_layer"].high, n_embd=1, n_head=1, vocab_size=1)
    names = {f"transformer.{name}": shape for name, shape in parameter_shapes(config).items()}
    for layer in range(config.n_layer):
        names |= {f"transformer.h.{layer}.attn.{name}": (1, 1) for name in ("bias", "masked_bias")}
    file = io.BytesIO()
    safetensors.write(file, ((name, np.zeros(shape)) for name, shape in names.items()))
    assert int.from_bytes(file.getvalue()[:8], "little") < safetensors.MAX_HEADER // 2
    assert len(read(file.getvalue())) == len(names)

    # Nothing takes more memory than brackets. Traced at a tenth of the longest header: tracing is
    # slow.
    worst = b'{"a":[' + b"[],[]," * (safetensors.MAX_HEADER // 60 - 2) + b"[]]}"
    assert peak_memory(refuses, "tensor 'a': expected an object", read, raw(worst)) < 13_000_000


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("shape", [(3, 70), (70, 3), (50, 50), (70,)])
def test_values_in_row_order_at_a_cache_line(read, dtype, shape, monkeypatch):
    """Wherever they start: gpt2's own start at byte 14291, where no float32 can be read in
    place."""
    monkeypatch.setattr(safetensors, "VALUES_PER_READ", 125)  # several reads each
    values = (
        np.random.default_rng(0).integers(-128, 128, shape).astype(np.float32)
    )  # exact in all three
    upper_half = (values.view(np.uint32) >> 16).astype("<u2")
    stored = {"F32": values, "F16": values.astype("<f2"), "BF16": upper_half}[dtype]
    header = one(dtype, shape, (0, stored.nbytes))
    for spaces in range(9):
        array = read(raw(header + b" " * spaces, stored.tobytes()))["a"].read()
        np.testing.assert_array_equal(array, values)
        assert (array.dtype, array.flags.c_contiguous) == (np.float32, True)
        assert array.__array_interface__["data"][0] % 64 == 0


def test_a_file_that_shrank_since_it_was_checked(read, tmp_path):
    tensor = read(raw(one(), np.float32(1).tobytes()))["a"]
    (tmp_path / "model.safetensors").write_bytes(b"")
    refuses("model.safetensors: cannot be read: it is too short for tensor 'a'", tensor.read)


def test_the_writer_follows_indices_not_memory(read):
    """The bug of safetensors.numpy.save: a transposed view written in the order of its memory."""
    a, file = np.arange(6, dtype=np.float32).reshape(2, 3), io.BytesIO()
    arrays = {"plain": a, "transposed": a.T, "strided": a[:, ::2], "wide": a.astype(float)}
    safetensors.write(file, arrays.items())
    tensors = read(file.getvalue())
    assert tensors["plain"].start % 64 == 0
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor.read(), arrays.pop(name))
    assert not arrays


@pytest.mark.parametrize(
    ("names", "metadata", "message"),
    [
        (["__metadata__"], {}, "tensor '__metadata__' cannot be written: the header has that name"),
        (["a", "b", "a"], {}, "tensor 'a' cannot be written: the header has that name"),
        (["a"], {"a": 5}, "__metadata__ must be an object of strings"),
        (["a"], {"a": " " * safetensors.MAX_HEADER}, r"a header of \d+ bytes; expected at most"),
    ],
)
def test_nothing_is_written_that_would_not_be_read(names, metadata, message):
    file = io.BytesIO()
    refuses(message, safetensors.write, file, [(name, np.zeros(1)) for name in names], metadata)
    assert file.getvalue() == b""
