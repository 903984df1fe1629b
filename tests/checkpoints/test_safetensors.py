"""The safetensors reader, rule by rule in the order of the file, on raw bytes; and the writer.

A file has the length of the header in eight bytes, then the header, then the data. The header is a
JSON object: the name of each tensor -> its entry. An entry has the dtype, the shape, and the
data_offsets, between which the tensor's values are in the data.
"""

import io
import json
import mmap
import re
from pathlib import Path

import numpy as np
import pytest
from support.checks import peak_memory, refuses

from tiedgpt import Config
from tiedgpt.checkpoints import safetensors
from tiedgpt.checkpoints.files import read_weights
from tiedgpt.checkpoints.json_files import map_file, without_mark
from tiedgpt.checkpoints.tensors import DTYPE_BITS, Tensor, have_same_values, to_bfloat16
from tiedgpt.errors import TiedGPTWarning
from tiedgpt.gpt2 import config as config_module
from tiedgpt.gpt2.parameters import parameter_shapes

CACHE_LINE = 64  # bytes

PIECE = "tiedgpt.checkpoints.tensors.VALUES_PER_PIECE"


def file_of(header: bytes | dict, data: bytes = b"") -> bytes:
    """A file with this header and this data: first the length of the header in eight bytes."""
    if isinstance(header, dict):
        header = json.dumps(header).encode()
    return len(header).to_bytes(8, "little") + header + data


def tensor(dtype="F32", shape=(1,), offsets=(0, 4)) -> dict:
    """The entry of a tensor in the header: by default, one float32 at the start of the data."""
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


A = json.dumps({"a": tensor()}).encode()
A_TWICE = A.removesuffix(b"}") + b"," + A.removeprefix(b"{")

B = A_TWICE.replace(b'"a"', b'"b"').removeprefix(b"{")
B_TWICE = A.removesuffix(b"}") + b"," + B


@pytest.fixture
def read(tmp_path):
    """read(content) -> the tensors that the reader finds in a file with this content."""

    def read(content: bytes) -> dict[str, Tensor]:
        path = tmp_path / "model.safetensors"
        path.write_bytes(content)
        tensors, _ = safetensors.read_header(path)
        return tensors

    return read


def in_a(**changes) -> dict:
    """A header with one tensor, a, whose entry has these changes."""
    return {"a": tensor() | changes}


@pytest.mark.parametrize(("shape", "size"), [([0, 2**31], 0), (32 * [1], 4)])
def test_a_shape_may_have_32_axes_and_an_axis_of_31_bits(read, shape, size):
    entry = in_a(shape=shape, data_offsets=[0, size])
    assert read(file_of(entry, bytes(size)))["a"].shape == tuple(shape)


def test_a_header_may_be_as_long_as_a_pickle_begins(read):
    length = int.from_bytes(b"\x80\2(", "little")
    assert list(read(file_of(A.ljust(length), bytes(4)))) == ["a"]


NOT_A_FILE = "truncated, or not a safetensors file: "
NOT_JSON = "the header is not JSON: "
ENTRY = "tensor 'a': expected a known dtype, a shape and two data_offsets, got "
PLACE = "tensor 'a' starts at byte {}, expected {}, and has {} bits, but F32"
AXES = "; expected at most 32 axes of at most 2147483648"
AT_MOST = "; expected at most 4194304"
# A rule that is broken -> the content of a file, and what the message says after "damaged: ". Of a
# message that ends in " ..." it is the beginning.
WRONG = {
    # The length of the header
    "empty": (b"", f"{NOT_A_FILE}0 bytes, a header of 0"),
    "seven bytes": (bytes(7), f"{NOT_A_FILE}7 bytes, a header of 0"),
    "no header": (bytes(8), f"{NOT_A_FILE}8 bytes, a header of 0"),
    "long header": (
        (2**22 + 1).to_bytes(8, "little"),
        f"{NOT_A_FILE}8 bytes, a header of 4194305{AT_MOST}",
    ),
    "longest header": (b"\xff" * 8, f"{NOT_A_FILE}8 bytes, a header of {2**64 - 1}{AT_MOST}"),
    "missing header": ((2**22).to_bytes(8, "little"), f"{NOT_A_FILE}8 bytes, a header of 4194304"),
    "short file": ((50).to_bytes(8, "little") + b"{}", f"{NOT_A_FILE}10 bytes, a header of 50"),
    "a byte too few": (file_of(b"{}")[:-1], f"{NOT_A_FILE}9 bytes, a header of 2"),
    # The header as JSON
    "bom": (file_of(b"\xef\xbb\xbf{}"), f"{NOT_JSON}Expecting value: line 1 column 1 (char 0)"),
    "list": (file_of(b"[]"), "the header must be a JSON object, got []"),
    "not utf-8": (file_of(b'{"\xff":1}'), f"{NOT_JSON}'utf-8' codec can't decode byte 0xff ..."),
    "deep": (file_of(b'{"a":' * 100_000), f"{NOT_JSON} ..."),
    "long number": (file_of(b'{"a":' + b"9" * 5000 + b"}"), f"{NOT_JSON}Exceeds the limit ..."),
    "name twice": (file_of(A_TWICE, bytes(4)), f"{NOT_JSON}'a' is given twice"),
    "last name twice": (file_of(B_TWICE, bytes(8)), f"{NOT_JSON}'b' is given twice"),
    "field twice": (
        file_of(b'{"a":{"dtype":"F32","dtype":"F32","shape":[1],"data_offsets":[0,4]}}', bytes(4)),
        f"{NOT_JSON}'dtype' is given twice",
    ),
    "nan": (file_of(b'{"a":{"dtype":NaN}}'), f"{NOT_JSON}NaN is not a JSON number"),
    "infinity": (file_of(b'{"a":-Infinity}'), f"{NOT_JSON}-Infinity is not a JSON number"),
    # The metadata
    "metadata null": (
        file_of(b'{"__metadata__":null}'),
        "__metadata__ must hold strings, got None",
    ),
    "metadata number": (
        file_of(b'{"__metadata__":{"a":"x","b":5}}'),
        "__metadata__ must hold strings, got {'a': 'x', 'b': 5}",
    ),
    # The entry of a tensor
    "entry is a number": (file_of(b'{"a":7}'), f"{ENTRY}7"),
    "long name": (
        file_of(b'{"%s":7}' % (b"\\n" * 10_000)),
        "tensor '" + 28 * r"\n" + "..." + ENTRY.removeprefix("tensor 'a'") + "7",
    ),
    "dtype unknown": (file_of(in_a(dtype="F31"), bytes(4)), f"{ENTRY}{in_a(dtype='F31')['a']}"),
    "dtype list": (file_of(in_a(dtype=["F32"]), bytes(4)), f"{ENTRY}{in_a(dtype=['F32'])['a']}"),
    "shape negative": (file_of(in_a(shape=[-1]), bytes(4)), f"{ENTRY}{in_a(shape=[-1])['a']}"),
    "shape true": (file_of(in_a(shape=[True]), bytes(4)), f"{ENTRY}{in_a(shape=[True])['a']}"),
    "shape long number": (
        file_of(b'{"a":{"dtype":"F32","shape":[%s],"data_offsets":[0,4]}}' % (b"9" * 4000)),
        f"tensor 'a' has the shape [{56 * '9'}...{AXES}",
    ),
    "long entry": (
        file_of(in_a(dtype="F31", more=list(range(100)))),
        f"{ENTRY}{str(in_a(dtype='F31', more=list(range(100)))['a'])[:197]}...",
    ),
    "shape number": (file_of(in_a(shape=4), bytes(4)), f"{ENTRY}{in_a(shape=4)['a']}"),
    "shape missing": (file_of({"a": {"dtype": "F32"}}), f"{ENTRY}{{'dtype': 'F32'}}"),
    "a long axis beside 0": (
        file_of(in_a(shape=[0, 2**62], data_offsets=[0, 0])),
        f"tensor 'a' has the shape [0, {2**62}]{AXES}",
    ),
    "an axis that is too long": (
        file_of(in_a(shape=[0, 2**31 + 1], data_offsets=[0, 0])),
        f"tensor 'a' has the shape [0, {2**31 + 1}]{AXES}",
    ),
    "an axis too many": (
        file_of(in_a(shape=33 * [1]), bytes(4)),
        f"tensor 'a' has the shape [{18 * '1, '}1,...{AXES}",
    ),
    "many axes": (
        file_of(in_a(shape=[2**63] * 10_000)),
        f"tensor 'a' has the shape [{2**63}, {2**63}, 92233720368547...{AXES}",
    ),
    "one offset": (
        file_of(in_a(data_offsets=[0]), bytes(4)),
        f"{ENTRY}{in_a(data_offsets=[0])['a']}",
    ),
    "offset true": (
        file_of(in_a(shape=[], dtype="U8", data_offsets=[0, True]), bytes(1)),
        f"{ENTRY}{in_a(shape=[], dtype='U8', data_offsets=[0, True])['a']}",
    ),
    "offset false": (
        file_of(in_a(data_offsets=[False, 4]), bytes(4)),
        f"{ENTRY}{in_a(data_offsets=[False, 4])['a']}",
    ),
    "offset negative": (
        file_of(in_a(data_offsets=[-4, 0])),
        f"{ENTRY}{in_a(data_offsets=[-4, 0])['a']}",
    ),
    "offset long number": (
        file_of(in_a(data_offsets=[0, 10**4300 - 1])),
        "tensor 'a' starts at byte 4368, expected 4368, and has a int too long to show bits, but "
        "F32 [1] needs 32",
    ),
    # The place of a tensor
    "end before start": (
        file_of(in_a(data_offsets=[4, 0])),
        f"{PLACE.format(73, 69, -32)} [1] needs 32",
    ),
    "place too small": (
        file_of(in_a(shape=[2]), bytes(4)),
        f"{PLACE.format(69, 69, 32)} [2] needs 64",
    ),
    "half a byte": (
        file_of({"a": tensor("F4", (3,), (0, 2))}, bytes(2)),
        f"{PLACE.format(68, 68, 16).replace('F32', 'F4')} [3] needs 12",
    ),
    "hole": (
        file_of(in_a(data_offsets=[4, 8]), bytes(8)),
        f"{PLACE.format(73, 69, 32)} [1] needs 32",
    ),
    "overlap": (
        file_of({"a": tensor(), "b": tensor()}, bytes(4)),
        f"{PLACE.format(130, 134, 32).replace('a', 'b', 1)} [1] needs 32",
    ),
    # The end of the file
    "short data": (
        file_of(A, bytes(3)),
        "truncated: the tensors end at byte 73, the file of their values at 72",
    ),
    "long data": (
        file_of(A, bytes(5)),
        "bytes after the last tensor: the tensors end at byte 73, the file of their values at 74",
    ),
    "data without tensors": (
        file_of({}, bytes(5)),
        "bytes after the last tensor: the tensors end at byte 10, the file of their values at 15",
    ),
}


@pytest.mark.parametrize("rule", WRONG)
def test_a_file_that_breaks_a_rule_is_refused(read, tmp_path, rule):
    """The error names the file. It is short, although names and numbers in the file may be long."""
    content, message = WRONG[rule]
    error = refuses("damaged: ", read, content)
    before, detail = error.split(": damaged: ", 1)
    assert before == str(tmp_path / "model.safetensors")
    if message.endswith(" ..."):
        assert detail.startswith(message.removesuffix(" ..."))
    else:
        assert detail == message
    assert len(detail) < 300


def test_the_beginning_of_a_file_on_a_hub_is_read():
    """Its size is that of the whole file. The greatest length of a header may be another one."""
    path = Path("owner/name/model.safetensors")
    content = file_of(A)
    size = len(content) + 4
    tensors, metadata = safetensors.read_header(path, content, size)
    assert (list(tensors), metadata) == (["a"], None)
    assert safetensors.read_header(path, content, size, max_header=len(A))[0] == tensors
    message = f"^{path}: damaged: {NOT_A_FILE}{size} bytes, a header of {len(A)}"
    shorter = (path, content, size, len(A) - 1)
    refuses(f"{message}; expected at most {len(A) - 1}$", safetensors.read_header, *shorter)
    refuses(f"{path}: damaged: truncated", safetensors.read_header, path, content, size - 1)


# Rules that tiedgpt alone checks. The official reader takes the second of two tensors of a name.
ONLY_OURS = ["name twice", "metadata null", "a long axis beside 0"]
ONLY_OURS += ["an axis that is too long", "an axis too many"]


@pytest.mark.parametrize("rule", WRONG)
def test_the_official_reader_refuses_what_we_refuse(rule):
    official = pytest.importorskip("safetensors")
    content, _ = WRONG[rule]
    try:
        official.deserialize(content)
    except official.SafetensorError:
        assert rule not in ONLY_OURS
    else:
        assert rule in ONLY_OURS


# What is accepted


def every_dtype() -> bytes:
    """A file with a tensor of each dtype, all zeros, and then one of a single float32, 7."""
    header = {}
    end = 0
    for dtype, bits in DTYPE_BITS.items():
        n_values = 2 * 4
        n_bytes = n_values * bits // 8
        header[dtype] = tensor(dtype, [2, 4], [end, end + n_bytes])
        end += n_bytes
    header["a"] = tensor("F32", [1], [end, end + 4])
    return file_of(header, bytes(end) + np.float32(7).tobytes())


def test_every_dtype_has_its_size(read):
    """With a wrong size, the last tensor, whose value is 7, would be read from a wrong place."""
    tensors = read(every_dtype())
    assert list(tensors) == [*DTYPE_BITS, "a"]
    np.testing.assert_array_equal(tensors["a"].values(copy=True), [7])


AS_STORED = {  # dtypes that NumPy has, and bfloat16, which becomes float32
    "BOOL": "bool",
    "U8": "uint8",
    "I8": "int8",
    "I16": "int16",
    "U16": "uint16",
    "F16": "float16",
    "BF16": "float32",
    "I32": "int32",
    "U32": "uint32",
    "F32": "float32",
    "I64": "int64",
    "U64": "uint64",
    "F64": "float64",
}


@pytest.mark.parametrize("dtype", DTYPE_BITS)
def test_numbers_of_a_dtype_that_numpy_has_are_read_as_they_are(read, dtype):
    if dtype not in AS_STORED:
        array = read(every_dtype())[dtype]
        refuses(f"'{dtype}' is {dtype}, which is not read", array.read_exactly)
        return
    values = np.array([0, 1], AS_STORED[dtype])
    if dtype.startswith("I"):  # a number whose first bit is 1
        values[1] = -2
    data = values.tobytes()
    if dtype == "BF16":
        data = stored(values, dtype)
    found = read(file_of({"a": tensor(dtype, (2,), (0, len(data)))}, data))["a"].read_exactly()
    assert found.dtype == AS_STORED[dtype]
    assert found.base is None or dtype == "BF16"  # it does not keep the file open
    np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize("dtype", ["float64", "float16", "int64", "int8", "float32"])
def test_numbers_are_written_in_their_dtype_if_that_is_asked_for(tmp_path, dtype):
    values = np.array([[0, 1, -2]], dtype)
    with (tmp_path / "a.safetensors").open("wb") as file:
        safetensors.write(file, [("a", values)], exact=True)
    found = safetensors.read_header(tmp_path / "a.safetensors")[0]["a"].read_exactly()
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, values)


def test_the_official_reader_knows_the_same_dtypes():
    official = pytest.importorskip("safetensors")
    names = {name for name, _ in official.deserialize(every_dtype())}
    assert names == {*DTYPE_BITS, "a"}


@pytest.mark.parametrize(("before", "after"), [(" ", ""), ("\n", " \n\r\t"), ("\r\n\t ", "")])
def test_white_space_around_the_header_is_accepted(read, before, after):
    """The official reader accepts white space, although the specification forbids it at the start.

    The file holds one tensor, a, whose only value is 7.
    """
    content = file_of(before.encode() + A + after.encode(), np.float32(7).tobytes())
    np.testing.assert_array_equal(read(content)["a"].values(copy=True), [7])
    official = pytest.importorskip("safetensors")
    assert [name for name, _ in official.deserialize(content)] == ["a"]


@pytest.mark.parametrize("entry", [tensor(shape=[0], offsets=[4, 4]), tensor(shape=[3, 0])])
def test_a_tensor_without_values_takes_no_room(read, entry):
    entry = entry | {"data_offsets": [4, 4]}
    none = read(file_of({"a": tensor(), "none": entry}, bytes(4)))["none"]
    for array in (none.values(copy=True), none.values(), none.read_exactly()):
        assert array.shape == tuple(entry["shape"])


def test_the_header_may_have_tensors_in_another_order_than_the_data(read):
    header = {"second": tensor(offsets=[4, 8]), "first": tensor(offsets=[0, 4])}
    header["none"] = tensor(shape=[0], offsets=[4, 4])  # begins where the second one does
    tensors = read(file_of(header, np.float32([1, 2]).tobytes()))
    assert list(tensors) == ["second", "first", "none"]
    np.testing.assert_array_equal(tensors["second"].values(copy=True), [2])


# The memory that a header takes


@pytest.mark.slow
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
    content = written(arrays)
    header_size = int.from_bytes(content[:8], "little")
    assert header_size < safetensors.MAX_HEADER // 2
    assert len(read(content)) == len(arrays)


def test_a_header_takes_little_memory(read):
    """No header takes more memory than one of brackets, which takes about 25 times its size.

    Tracing memory is slow, so this header has a fortieth of the greatest length.
    """
    length = safetensors.MAX_HEADER // 40
    brackets = b"[],[],"
    # Two fewer than fit, so that the beginning and the end of the header fit, too.
    count = length // len(brackets) - 2
    header = b'{"a":[' + brackets * count + b"[]]}"
    assert len(header) <= length
    message = "tensor 'a': expected a known dtype"
    assert peak_memory(refuses, message, read, file_of(header)) < 3_250_000


# Values

STORED = {"F64": "<f8", "F32": "<f4", "F16": "<f2"}


def stored(values: np.ndarray, dtype: str) -> bytes:
    """The float32 values as they are in a file."""
    if dtype == "BF16":  # the upper half of the bits of a float32
        return (values.view(np.uint32) >> 16).astype("<u2").tobytes()
    return values.astype(STORED[dtype]).tobytes()


@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
@pytest.mark.parametrize("shape", [(3, 70), (70, 3), (50, 50), (70,)])
def test_values_are_read_into_an_array_in_row_order_at_a_cache_line(
    read, dtype, shape, monkeypatch
):
    """Values may start at any byte of the file. Spaces after the header move them.

    In the file of gpt2 they start at byte 14291, which is no multiple of the 4 bytes of a float32.
    Only aligned float32 values are a view of the file.
    """
    monkeypatch.setattr(PIECE, 125)  # most shapes have several pieces
    rng = np.random.default_rng(0)
    values = rng.integers(-128, 128, shape).astype(np.float32)  # exact in all four dtypes
    data = stored(values, dtype)
    header = json.dumps({"a": tensor(dtype, shape, (0, len(data)))}).encode()
    for n_spaces in range(9):
        a = read(file_of(header + b" " * n_spaces, data))["a"]
        array = a.values(copy=True)
        np.testing.assert_array_equal(array, values)
        assert array.dtype == np.float32
        assert array.flags.c_contiguous
        np.testing.assert_array_equal(a.read_exactly(), values)
        view = a.values()
        np.testing.assert_array_equal(view, values)
        is_view = isinstance(view.base, mmap.mmap)
        assert is_view == (dtype == "F32" and a.start % 4 == 0)
        assert view.flags.carray  # writeable, aligned, in row order


def test_numbers_beyond_float32_become_infinite(read):
    data = np.array([1e300, -1e300, 1.0]).tobytes()
    tensors = read(file_of({"a": tensor("F64", [3], [0, 24])}, data))
    np.testing.assert_array_equal(tensors["a"].values(copy=True), np.float32([np.inf, -np.inf, 1]))


# Tensors with the same values


@pytest.mark.parametrize("change", [None, 0, 9])
@pytest.mark.parametrize("dtype", ["F64", "F32", "F16", "BF16"])
def test_tensors_with_the_same_values(read, monkeypatch, dtype, change):
    """Two tensors with ten values each, one of them as float32. Perhaps one value differs."""
    monkeypatch.setattr(PIECE, 4)  # ten values are three pieces
    values = np.arange(10, dtype=np.float32)
    others = values.copy()
    if change is not None:
        others[change] += 1
    data = stored(others, dtype)
    header = {
        "a": tensor("F32", [10], [0, 40]),
        "b": tensor(dtype, [10], [40, 40 + len(data)]),
    }
    tensors = read(file_of(header, values.tobytes() + data))
    assert have_same_values(tensors["a"], tensors["b"]) == (change is None)


def test_a_float_of_eight_bits_is_not_read_exactly(read):
    a = read(file_of({"a": tensor("F8_E4M3", [4], [0, 4])}, bytes(4)))["a"]
    refuses("model.safetensors: tensor 'a' is F8_E4M3", a.read_exactly)


# The writer


def written(arrays: dict[str, np.ndarray], **options) -> bytes:
    """The content of a file of these arrays."""
    file = io.BytesIO()
    safetensors.write(file, arrays.items(), **options)
    return file.getvalue()


def test_values_are_written_in_row_order_whatever_their_order_in_memory(read):
    """safetensors.numpy.save has a bug: it writes a transposed view in the order of memory."""
    a = np.arange(6, dtype=np.float32).reshape(2, 3)
    arrays = {"plain": a, "transposed": a.T, "every second": a[:, ::2]}
    arrays |= {dtype: a.astype(dtype) for dtype in safetensors.EXACT}
    tensors = read(written(arrays))
    assert list(tensors) == list(arrays)
    for name, array in arrays.items():
        assert tensors[name].dtype == "F32"
        np.testing.assert_array_equal(tensors[name].values(copy=True), array)
    assert tensors["plain"].start % CACHE_LINE == 0


def test_exact_values_and_metadata(read, tmp_path):
    arrays = {"float64": np.array([1 / 3]), "int64": np.array([2**60 + 1]), "float32": np.ones(2)}
    arrays["float32"] = arrays["float32"].astype(np.float32)
    tensors = read(written(arrays, exact=True, metadata={"note": "ü", "format": "np"}))
    for name, array in arrays.items():
        read_array = tensors[name].read_exactly()
        assert read_array.dtype == array.dtype
        np.testing.assert_array_equal(read_array, array)
    _, metadata = safetensors.read_header(tmp_path / "model.safetensors")
    assert metadata == {"format": "np", "note": "ü"}
    read(written(arrays, metadata={"note": "ü"}))
    _, metadata = safetensors.read_header(tmp_path / "model.safetensors")
    assert metadata == {"format": "pt", "note": "ü"}


def test_a_header_that_could_not_be_read_is_not_written(monkeypatch):
    """With the 8 bytes of its length, a header has a multiple of 64 bytes."""
    monkeypatch.setattr(safetensors, "MAX_HEADER", 1016)
    arrays = {"a": np.zeros(1)}
    longest = 921  # characters in the metadata; the rest of the header takes 95 bytes
    assert len(written(arrays, metadata={"long": " " * longest})) == 8 + 1016 + 4
    message = "^a header of 1080 bytes cannot be written; expected at most 1016$"
    refuses(message, lambda: written(arrays, metadata={"long": " " * (longest + 1)}))


def test_equal_rows_are_counted_over_the_pieces(read, monkeypatch):
    monkeypatch.setattr(PIECE, 7)  # a piece ends in the middle of a row
    one = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    other = one.copy()
    other[[0, 3, 8], [0, 3, 1]] += 1
    tensors = read(written({"one": one, "other": other}))
    assert tensors["one"].equal_rows(tensors["other"]) == 6


@pytest.mark.parametrize(
    ("value", "other", "is_equal"),
    [
        pytest.param(1, 1 + 2**-9, True, id="same-in-bfloat16"),
        pytest.param(1, 1 + 2**-8, True, id="a-tie-of-bfloat16-to-even"),
        pytest.param(1 + 2**-7, 1 + 2**-7 + 2**-8, False, id="a-tie-of-bfloat16-to-odd"),
        pytest.param(1 + 2**-7 + 2**-8, 1 + 2**-6, True, id="a-tie-that-rounds-up"),
        pytest.param(1e-5, 1.001e-5, True, id="same-in-float16-alone"),
        pytest.param(1e5, 1.1e5, True, id="beyond-float16"),
        pytest.param(1, 1.01, False, id="different-in-both"),
    ],
)
def test_rows_that_are_equal_in_half_precision(read, value, other, is_equal):
    tensors = read(written({"one": np.full((2, 3), value), "other": np.full((2, 3), other)}))
    assert tensors["one"].equal_rows(tensors["other"]) == 0
    assert tensors["one"].equal_rows(tensors["other"], rounded=True) == 2 * is_equal


def test_a_matrix_of_one_place_has_equal_rows_even_of_nan(read):
    tensors = read(written({"one": np.full((2, 3), np.nan), "other": np.full((2, 3), np.nan)}))
    assert tensors["one"].equal_rows(tensors["one"]) == 2
    assert tensors["one"].equal_rows(tensors["other"], rounded=True) == 0


def test_bfloat16_rounds_to_the_nearest():
    values = np.float32([1 + 2**-9, 1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-7, np.inf, 3e38])
    expected = [1, 1, 1 + 2**-6, -1 - 2**-7, np.inf, 3.00406e38]
    np.testing.assert_allclose(to_bfloat16(values), expected, rtol=1e-5)


def test_numbers_beyond_bfloat16_become_infinite():
    np.testing.assert_array_equal(to_bfloat16(np.array([1e300, -3.4e38, 1])), [np.inf, -np.inf, 1])


def test_nan_of_any_bits_stays_nan_in_bfloat16():
    """To round its bits may make a number of them."""
    bits = np.array([0x7FFFFFFF, 0xFFFFFFFF, 0x7F800001, 0x7FC00000], np.uint32)
    assert np.isnan(to_bfloat16(bits.view(np.float32))).all()


def test_a_byte_order_mark_is_dropped_with_a_warning():
    assert without_mark(b"a\xef\xbb\xbf", "text.txt") == b"a\xef\xbb\xbf"
    message = "^text.txt begins with a byte order mark, which is dropped$"
    with pytest.warns(TiedGPTWarning, match=message) as caught:
        assert without_mark(b"\xef\xbb\xbfa\xef\xbb\xbf", "text.txt") == b"a\xef\xbb\xbf"
    assert [warning.filename for warning in caught] == [__file__]


def test_a_file_is_mapped_unless_it_is_empty(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"")
    refuses(f"^{re.escape(str(path))}: the file is empty$", map_file, path)
    path.write_bytes(b"a")
    memory = map_file(path)
    memory[0] = ord("b")  # in this process alone
    assert memory[:] == b"b"
    assert path.read_bytes() == b"a"


@pytest.mark.parametrize("metadata", [None, {}, {"format": "pt"}])
def test_the_metadata_of_a_file_and_of_each_shard_are_kept(tmp_path, metadata):
    """transformers 4 refuses a file without them."""
    for name in ("a", "b"):
        header = {name: tensor()}
        if metadata is not None:
            header["__metadata__"] = metadata
        (tmp_path / f"{name}.safetensors").write_bytes(file_of(header, bytes(4)))
    assert read_weights(tmp_path / "a.safetensors").metadata == [metadata]
    index = tmp_path / "model.safetensors.index.json"
    weight_map = {name: f"{name}.safetensors" for name in ("a", "b")}
    index.write_text(json.dumps({"weight_map": weight_map}))
    assert read_weights(index).metadata == [metadata, metadata]
