"""The safetensors reader, rule by rule in the order of the file, on raw bytes; and the writer."""

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
    """A file with this header and this data."""
    return len(header).to_bytes(8, "little") + header + data


def tensor(dtype="F32", shape=(1,), offsets=(0, 4)) -> dict:
    """An entry of the header."""
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def header_of(**tensors: dict) -> bytes:
    """The header of these tensors."""
    return json.dumps(tensors).encode()


A = header_of(a=tensor())
A_TWICE = A[:-1] + b"," + A[1:]
A_AND_B_AT_ONE_PLACE = header_of(a=tensor(), b=tensor())


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
def test_every_rule_is_enforced_by_name(read, content, message):
    error = refuses(message, read, content)
    assert "model.safetensors: " in error
    assert len(error) < 400


# What is accepted


def every_dtype() -> bytes:
    """A file with a tensor of each dtype, and then one of a single float32, 7."""
    header = {}
    end = 0
    for dtype, bits in safetensors.DTYPE_BITS.items():
        header[dtype] = tensor(dtype, [2, 4], [end, end + bits])
        end += bits
    header["a"] = tensor("F32", [1], [end, end + 4])
    return file_of(json.dumps(header).encode(), bytes(end) + np.float32(7).tobytes())


def test_every_dtype_has_its_size(read):
    tensors = read(every_dtype())
    assert list(tensors) == [*safetensors.DTYPE_BITS, "a"]
    np.testing.assert_array_equal(tensors["a"].read(), [7])


def test_the_formats_own_reader_knows_the_same_dtypes():
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
def test_white_space_around_the_header(read, before, after):
    """The format's own reader accepts it, although its specification forbids it."""
    content = file_of(before.encode() + A + after.encode(), np.float32(7).tobytes())
    np.testing.assert_array_equal(read(content)["a"].read(), [7])
    official = pytest.importorskip("safetensors")
    assert [name for name, _ in official.deserialize(content)] == ["a"]


def test_a_tensor_without_values_takes_no_room(read):
    header = header_of(a=tensor(), none=tensor(shape=[0], offsets=[0, 0]))
    assert read(file_of(header, bytes(4)))["none"].read().shape == (0,)


def test_tensors_may_be_in_another_order_than_their_values(read):
    header = header_of(second=tensor(offsets=[4, 8]), first=tensor(offsets=[0, 4]))
    tensors = read(file_of(header, np.float32([1, 2]).tobytes()))
    assert list(tensors) == ["second", "first"]
    np.testing.assert_array_equal(tensors["second"].read(), [2])


# The memory that a header takes


def test_the_header_of_the_deepest_gpt2_is_short_enough(read):
    config = Config(n_layer=config_module.RANGES["n_layer"].high, n_embd=1, n_head=1, vocab_size=1)
    arrays = {}
    for name, shape in parameter_shapes(config).items():
        arrays[f"transformer.{name}"] = np.zeros(shape)
    for layer in range(config.n_layer):
        arrays[f"transformer.h.{layer}.attn.bias"] = np.zeros((1, 1))
        arrays[f"transformer.h.{layer}.attn.masked_bias"] = np.zeros((1, 1))
    file = io.BytesIO()
    safetensors.write(file, arrays.items())
    header_size = int.from_bytes(file.getvalue()[:8], "little")
    assert header_size < safetensors.MAX_HEADER // 2
    assert len(read(file.getvalue())) == len(arrays)


def test_a_header_takes_little_memory(read):
    """Nothing takes more memory than brackets.

    It is traced at a tenth of the longest header, because tracing is slow.
    """
    pairs = safetensors.MAX_HEADER // 60
    header = b'{"a":[' + b"[],[]," * (pairs - 2) + b"[]]}"
    message = "tensor 'a': expected an object"
    assert peak_memory(refuses, message, read, file_of(header)) < 13_000_000


# Values


@pytest.mark.parametrize("dtype", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("shape", [(3, 70), (70, 3), (50, 50), (70,)])
def test_values_in_row_order_at_a_cache_line(read, dtype, shape, monkeypatch):
    """Wherever they start: gpt2's own start at byte 14291, where no float32 can be read in
    place."""
    monkeypatch.setattr(safetensors, "VALUES_PER_READ", 125)  # several reads each
    rng = np.random.default_rng(0)
    values = rng.integers(-128, 128, shape).astype(np.float32)  # exact in all three
    if dtype == "F32":
        stored = values
    elif dtype == "F16":
        stored = values.astype("<f2")
    else:
        stored = (values.view(np.uint32) >> 16).astype("<u2")  # the upper half
    header = header_of(a=tensor(dtype, shape, (0, stored.nbytes)))
    for spaces in range(9):
        array = read(file_of(header + b" " * spaces, stored.tobytes()))["a"].read()
        np.testing.assert_array_equal(array, values)
        assert array.dtype == np.float32
        assert array.flags.c_contiguous
        address, _ = array.__array_interface__["data"]
        assert address % 64 == 0


def test_a_file_that_shrank_since_it_was_checked(read, tmp_path):
    a = read(file_of(A, bytes(4)))["a"]
    (tmp_path / "model.safetensors").write_bytes(b"")
    refuses("model.safetensors: cannot be read: it is too short for tensor 'a'", a.read)


# Tensors with the same values


def test_tensors_of_two_dtypes_may_have_the_same_values(read, monkeypatch):
    monkeypatch.setattr(safetensors, "VALUES_PER_READ", 4)  # several reads
    values = np.arange(10, dtype=np.float32)
    halves = values.astype("<f2")
    header = header_of(single=tensor("F32", [10], [0, 40]), half=tensor("F16", [2, 5], [40, 60]))
    tensors = read(file_of(header, values.tobytes() + halves.tobytes()))
    assert tensors["single"].has_values_of(tensors["half"])


@pytest.mark.parametrize("place", [0, 9])
def test_tensors_that_differ_in_one_place(read, monkeypatch, place):
    monkeypatch.setattr(safetensors, "VALUES_PER_READ", 4)
    a = np.arange(10, dtype=np.float32)
    b = a.copy()
    b[place] += 1
    header = header_of(
        a=tensor(shape=[10], offsets=[0, 40]), b=tensor(shape=[10], offsets=[40, 80])
    )
    tensors = read(file_of(header, a.tobytes() + b.tobytes()))
    assert not tensors["a"].has_values_of(tensors["b"])


# The writer


def test_the_writer_follows_indices_not_memory(read):
    """The bug of safetensors.numpy.save: a transposed view written in the order of its memory."""
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    arrays = {"plain": a, "transposed": a.T, "strided": a[:, ::2], "wide": a.astype(float)}
    file = io.BytesIO()
    safetensors.write(file, arrays.items())
    tensors = read(file.getvalue())
    assert list(tensors) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(tensors[name].read(), array)


def test_the_data_starts_at_a_cache_line(read):
    file = io.BytesIO()
    safetensors.write(file, [("a", np.zeros(1))])
    assert read(file.getvalue())["a"].start % 64 == 0


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
def test_nothing_is_written_that_would_not_be_read(names, metadata, message):
    file = io.BytesIO()
    refuses(message, safetensors.write, file, [(name, np.zeros(1)) for name in names], metadata)
    assert file.getvalue() == b""
