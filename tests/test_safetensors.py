"""The safetensors reader, rule by rule in the order of the file, on raw bytes; and the writer.

A file has the length of the header in eight bytes, then the header, then the data. The header is a
JSON object: the name of each tensor -> its entry. An entry has the dtype, the shape, and the
data_offsets, between which the tensor's values are in the data.
"""

import io
import json

import numpy as np
import pytest
from support.checks import peak_memory, refuses

from tiedgpt import Config
from tiedgpt.checkpoints import safetensors
from tiedgpt.gpt2 import config as config_module
from tiedgpt.gpt2.parameters import parameter_shapes


def file_of(header: bytes, data: bytes = b"") -> bytes:
    """A file with this header and this data: first the length of the header in eight bytes."""
    return len(header).to_bytes(8, "little") + header + data


def tensor(dtype="F32", shape=(1,), offsets=(0, 4)) -> dict:
    """The entry of a tensor in the header: by default, one float32 at the start of the data."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def header_of(**tensors: dict) -> bytes:
    """The header of these tensors, each by its name."""
    return json.dumps(tensors).encode()


A = header_of(a=tensor())  # 61 bytes, so the data after it starts at byte 8 + 61 = 69
# The header with the entry of the tensor a twice
A_TWICE = A.removesuffix(b"}") + b"," + A.removeprefix(b"{")
A_AND_B_AT_ONE_PLACE = header_of(a=tensor(), b=tensor())
CACHE_LINE = 64  # bytes


@pytest.fixture
def read(tmp_path):
    """read(content) -> the tensors that the reader finds in a file with this content."""

    def read(content: bytes) -> dict[str, safetensors.Tensor]:
        path = tmp_path / "model.safetensors"
        path.write_bytes(content)
        return safetensors.read_header(path)

    return read


@pytest.mark.parametrize(
    ("content", "message"),
    [
        # The length of the header
        pytest.param(b"", "0 bytes, expected 8 or more", id="empty"),
        pytest.param(
            (2**22 + 1).to_bytes(8, "little"),
            "a header of 4194305 bytes; expected at most 4194304",
            id="long-header",
        ),
        pytest.param(
            (50).to_bytes(8, "little") + b"{}",
            "truncated: 10 bytes, the header ends at 58",
            id="short-file",
        ),
        # The header as JSON
        pytest.param(file_of(b"\xef\xbb\xbf{}"), "the header is not JSON", id="bom"),
        pytest.param(file_of(b"[]"), r"the header must be a JSON object, got \[\]", id="list"),
        pytest.param(file_of(b'{"\xff":1}'), "the header is not JSON", id="not-utf-8"),
        pytest.param(file_of(b'{"a":' * 100_000), "the header is not JSON", id="deep"),
        pytest.param(
            file_of(b'{"a":' + b"9" * 5000 + b"}"), "the header is not JSON", id="long-number"
        ),
        pytest.param(file_of(A_TWICE, bytes(4)), "'a' is given twice", id="name-twice"),
        pytest.param(
            file_of(b'{"\\ud800":1}'),
            "a name is not Unicode: it has an unpaired surrogate",
            id="surrogate-in-a-name",
        ),
        pytest.param(
            file_of(b'{"a":{"dtype":NaN}}'),
            "the header is not JSON: NaN is not a JSON number",
            id="nan",
        ),
        # The metadata
        pytest.param(
            file_of(b'{"__metadata__":null}'),
            "__metadata__ must be an object of strings, got None",
            id="metadata-null",
        ),
        pytest.param(
            file_of(b'{"__metadata__":{"a":5}}'),
            "__metadata__ must be an object of strings, got {'a': 5}",
            id="metadata-number",
        ),
        pytest.param(
            file_of(b'{"__metadata__":{"a":"\\ud800"}}'),
            "__metadata__ must be an object of strings, got {'a'",
            id="surrogate-in-the-metadata",
        ),
        # The entry of a tensor
        pytest.param(file_of(b'{"a":7}'), "tensor 'a': expected an object, got 7", id="number"),
        pytest.param(
            file_of(b'{"%s":7}' % (b"\\n" * 10_000)), "expected an object, got 7", id="long-name"
        ),
        pytest.param(
            file_of(header_of(a=tensor(dtype="F31")), bytes(4)),
            "tensor 'a': unknown dtype 'F31'",
            id="dtype-unknown",
        ),
        pytest.param(
            file_of(b'{"a":{"dtype":["F32"]}}'),
            r"tensor 'a': unknown dtype \['F32'\]",
            id="dtype-list",
        ),
        pytest.param(
            file_of(header_of(a=tensor(shape=(-1,)))),
            r"tensor 'a': shape .* got \[-1\]",
            id="shape-negative",
        ),
        pytest.param(
            file_of(header_of(a=tensor(shape=(True,)))),
            r"tensor 'a': shape .* got \[True\]",
            id="shape-true",
        ),
        pytest.param(
            file_of(b'{"a":{"dtype":"F32","shape":[%s]}}' % (b"9" * 4000)),
            r"tensor 'a': shape .* got",
            id="shape-long-number",
        ),
        pytest.param(
            file_of(b'{"a":{"dtype":"F32","shape":4}}'),
            "tensor 'a': shape .* got 4",
            id="shape-number",
        ),
        pytest.param(
            file_of(header_of(a=tensor("U8", [1], [0, 10**4300 - 1]))),
            "tensor 'a': data_offsets must be",
            id="offset-long-number",
        ),
        pytest.param(
            file_of(header_of(a=tensor(offsets=(0,)))),
            r"tensor 'a': data_offsets .* got \[0\]",
            id="one-offset",
        ),
        # The place of a tensor
        pytest.param(
            file_of(header_of(a=tensor(shape=[2**63] * 10_000))),
            "tensor 'a': 10000 axes; expected at",
            id="many-axes",
        ),
        pytest.param(
            file_of(header_of(a=tensor(offsets=(4, 0)))),
            "its place has -32 bits, but F32 .* needs 32",
            id="end-before-start",
        ),
        pytest.param(
            file_of(header_of(a=tensor(shape=(2,))), bytes(4)),
            r"its place has 32 bits, but F32 \[2\]",
            id="place-too-small",
        ),
        pytest.param(
            file_of(header_of(a=tensor("F4", (3,), (0, 2))), bytes(2)),
            r"has 16 bits, but F4 \[3\] needs",
            id="half-a-byte",
        ),
        pytest.param(
            file_of(header_of(a=tensor(offsets=(4, 8))), bytes(8)),
            "leaves a hole before it: it starts at byte 73, expected 69",
            id="hole",
        ),
        pytest.param(
            file_of(A_AND_B_AT_ONE_PLACE, bytes(4)),
            "'b' overlaps the tensor before it: it starts at byte",
            id="overlap",
        ),
        # The end of the file
        pytest.param(
            file_of(A, bytes(3)),
            "truncated: the tensors end at byte 73, the file at 72",
            id="short-data",
        ),
        pytest.param(
            file_of(A, bytes(5)),
            "bytes after the last tensor: the tensors end at byte 73, the file at 74",
            id="long-data",
        ),
    ],
)
def test_a_file_that_breaks_a_rule_is_refused(read, content, message):
    """The error names the file. It is short, although names and numbers in the file may be long."""
    error = refuses(message, read, content)
    assert "model.safetensors: " in error
    assert len(error) < 400


# What is accepted


def every_dtype() -> bytes:
    """A file with a tensor of each dtype, all zeros, and then one of a single float32, 7."""
    header = {}
    end = 0
    for dtype, bits in safetensors.DTYPE_BITS.items():
        n_values = 2 * 4
        n_bytes = n_values * bits // 8
        header[dtype] = tensor(dtype, [2, 4], [end, end + n_bytes])
        end += n_bytes
    header["a"] = tensor("F32", [1], [end, end + 4])
    zeros = bytes(end)
    return file_of(json.dumps(header).encode(), zeros + np.float32(7).tobytes())


def test_every_dtype_has_its_size(read):
    """With a wrong size, the last tensor, whose value is 7, would be read from a wrong place."""
    tensors = read(every_dtype())
    assert list(tensors) == [*safetensors.DTYPE_BITS, "a"]
    np.testing.assert_array_equal(tensors["a"].read(), [7])


def test_the_official_reader_knows_the_same_dtypes():
    official = pytest.importorskip("safetensors")
    names = {name for name, _ in official.deserialize(every_dtype())}
    assert names == {*safetensors.DTYPE_BITS, "a"}


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param(" ", "", id="space-before"),
        pytest.param("\n", " \n\r\t", id="before-and-after"),
        pytest.param("\r\n\t ", "", id="lines-before"),
    ],
)
def test_white_space_around_the_header_is_accepted(read, before, after):
    """The official reader accepts white space, although the specification forbids it at the start.

    The file holds one tensor, a, whose only value is 7.
    """
    content = file_of(before.encode() + A + after.encode(), np.float32(7).tobytes())
    np.testing.assert_array_equal(read(content)["a"].read(), [7])
    official = pytest.importorskip("safetensors")
    assert [name for name, _ in official.deserialize(content)] == ["a"]


def test_a_tensor_without_values_takes_no_room(read):
    header = header_of(a=tensor(), none=tensor(shape=[0], offsets=[0, 0]))
    assert read(file_of(header, bytes(4)))["none"].read().shape == (0,)


def test_the_header_may_have_tensors_in_another_order_than_the_data(read):
    header = header_of(second=tensor(offsets=[4, 8]), first=tensor(offsets=[0, 4]))
    tensors = read(file_of(header, np.float32([1, 2]).tobytes()))
    assert list(tensors) == ["second", "first"]
    np.testing.assert_array_equal(tensors["second"].read(), [2])


# The memory that a header takes


def test_the_header_of_the_deepest_gpt2_is_short_enough(read):
    """The model has as many layers as a configuration may have, and the mask buffers of old files.

    Its header must have less than half of the greatest length. A real one has longer numbers.
    """
    most_layers = config_module.RANGES["n_layer"].high
    config = Config(n_layer=most_layers, n_embd=1, n_head=1, vocab_size=1)
    arrays = {}
    for name, shape in parameter_shapes(config).items():
        arrays[f"transformer.{name}"] = np.zeros(shape)
    for layer in range(config.n_layer):
        arrays[f"transformer.h.{layer}.attn.bias"] = np.zeros((1, 1))
        arrays[f"transformer.h.{layer}.attn.masked_bias"] = np.zeros((1, 1))
    file = io.BytesIO()
    safetensors.write(file, arrays.items())
    content = file.getvalue()
    header_size = int.from_bytes(content[:8], "little")
    assert header_size < safetensors.MAX_HEADER // 2
    assert len(read(content)) == len(arrays)


def test_a_header_takes_little_memory(read):
    """No header takes more memory than one of brackets, which takes about 25 times its size.

    Tracing memory is slow, so this header has a tenth of the greatest length.
    """
    length = safetensors.MAX_HEADER // 10
    brackets = b"[],[],"
    # Two fewer than fit, so that the beginning and the end of the header fit, too.
    count = length // len(brackets) - 2
    header = b'{"a":[' + brackets * count + b"[]]}"
    assert len(header) <= length
    message = "tensor 'a': expected an object"
    assert peak_memory(refuses, message, read, file_of(header)) < 13_000_000


# Values


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("shape", [(3, 70), (70, 3), (50, 50), (70,)])
def test_values_are_read_into_an_array_in_row_order_at_a_cache_line(
    read, dtype, shape, monkeypatch
):
    """Values may start at any byte of the file. Spaces after the header move them.

    In the file of gpt2 they start at byte 14291, which is no multiple of the 4 bytes of a float32.
    """
    monkeypatch.setattr(safetensors, "VALUES_PER_READ", 125)  # most shapes take several reads
    rng = np.random.default_rng(0)
    values = rng.integers(-128, 128, shape).astype(np.float32)  # exact in all three dtypes
    if dtype == "F32":
        stored = values
    elif dtype == "F16":
        stored = values.astype("<f2")
    else:
        # BF16 is the upper half of the bits of a float32.
        stored = (values.view(np.uint32) >> 16).astype("<u2")
    header = header_of(a=tensor(dtype, shape, (0, stored.nbytes)))
    for n_spaces in range(9):
        content = file_of(header + b" " * n_spaces, stored.tobytes())
        array = read(content)["a"].read()
        np.testing.assert_array_equal(array, values)
        assert array.dtype == np.float32
        assert array.flags.c_contiguous


def test_a_file_that_shrank_since_its_header_was_read_is_refused(read, tmp_path):
    a = read(file_of(A, bytes(4)))["a"]
    (tmp_path / "model.safetensors").write_bytes(b"")
    refuses("model.safetensors: cannot be read: it is too short for tensor 'a'", a.read)


# Tensors with the same values


def test_tensors_of_two_dtypes_may_have_the_same_values(read, monkeypatch):
    """Ten values are stored as float32, in 40 bytes, and as float16, in 20."""
    monkeypatch.setattr(safetensors, "VALUES_PER_READ", 4)  # ten values take three reads
    values = np.arange(10, dtype=np.float32)
    halves = values.astype("<f2")
    header = header_of(single=tensor("F32", [10], [0, 40]), half=tensor("F16", [2, 5], [40, 60]))
    tensors = read(file_of(header, values.tobytes() + halves.tobytes()))
    assert tensors["single"].has_values_of(tensors["half"])


@pytest.mark.parametrize("place", [0, 9])
def test_tensors_that_differ_in_one_value_have_not_the_same_values(read, monkeypatch, place):
    """Each tensor has ten float32s, in 40 bytes. The first or the last one differs."""
    monkeypatch.setattr(safetensors, "VALUES_PER_READ", 4)  # ten values take three reads
    a = np.arange(10, dtype=np.float32)
    b = a.copy()
    b[place] += 1
    header = header_of(
        a=tensor(shape=[10], offsets=[0, 40]), b=tensor(shape=[10], offsets=[40, 80])
    )
    tensors = read(file_of(header, a.tobytes() + b.tobytes()))
    assert not tensors["a"].has_values_of(tensors["b"])


# The writer


def test_values_are_written_in_row_order_whatever_their_order_in_memory(read):
    """safetensors.numpy.save has a bug: it writes a transposed view in the order of memory."""
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    every_second_column = a[:, ::2]
    arrays = {
        "plain": a,
        "transposed": a.T,
        "strided": every_second_column,
        "float64": a.astype(np.float64),
    }
    file = io.BytesIO()
    safetensors.write(file, arrays.items())
    tensors = read(file.getvalue())
    assert list(tensors) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(tensors[name].read(), array)


def test_the_data_starts_at_a_cache_line(read):
    file = io.BytesIO()
    safetensors.write(file, [("a", np.zeros(1))])
    tensors = read(file.getvalue())
    assert tensors["a"].start % CACHE_LINE == 0


@pytest.mark.parametrize(
    ("names", "metadata", "message"),
    [
        pytest.param(
            ["__metadata__"],
            {},
            "tensor '__metadata__' cannot be written: the header has that name",
            id="metadata-as-a-name",
        ),
        pytest.param(
            ["a", "b", "a"],
            {},
            "tensor 'a' cannot be written: the header has that name",
            id="name-twice",
        ),
        pytest.param(
            ["a"], {"a": 5}, "__metadata__ must be an object of strings", id="metadata-number"
        ),
        pytest.param(
            ["a"],
            {"a": " " * safetensors.MAX_HEADER},
            r"a header of \d+ bytes; expected at most",
            id="long-metadata",
        ),
    ],
)
def test_the_writer_refuses_what_the_reader_would_refuse(names, metadata, message):
    file = io.BytesIO()
    tensors = [(name, np.zeros(1)) for name in names]
    refuses(message, safetensors.write, file, tensors, metadata)
    assert file.getvalue() == b""
