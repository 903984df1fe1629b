"""The safetensors format, read and written: a length, a JSON header, then the values.

    8 bytes     N, little-endian
    N bytes     {"wte.weight": {"dtype": "F32", "shape": [50257, 768],
                 "data_offsets": [0, 154389504]}, ...}
                and optionally "__metadata__": {string: string}
    the rest    each tensor's values, row-major and little-endian; data_offsets count from here

The header may have white space around it, as the format's own reader accepts, and a name only once,
although that reader accepts two. The values fill the rest of the file, without overlap or hole.
"""

import json
import mmap
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import COUNT, CheckpointError, short_repr
from .json_files import STRICT_JSON, open_to_read

# Bytes. A GPT-2 with as many layers as Config allows, and its mask buffers, needs 1.8 million;
# Python's objects for a header of nothing but brackets take 25 times its size.
MAX_HEADER = 1 << 22
MAX_AXES = 32  # what every NumPy accepts
MAX_AXIS = 1 << 31
CACHE_LINE = 64  # bytes
# Every dtype of the format: its bits per value, to check sizes.
DTYPE_BITS = {
    "F4": 4,
    "F6_E2M3": 6,
    "F6_E3M2": 6,
    "BOOL": 8,
    "U8": 8,
    "I8": 8,
    "F8_E5M2": 8,
    "F8_E4M3": 8,
    "F8_E8M0": 8,
    "F8_E4M3FNUZ": 8,
    "F8_E5M2FNUZ": 8,
    "I16": 16,
    "U16": 16,
    "F16": 16,
    "BF16": 16,
    "I32": 32,
    "U32": 32,
    "F32": 32,
    "I64": 64,
    "U64": 64,
    "F64": 64,
    "C64": 64,
}
# The dtypes that NumPy has too. It has no bfloat16, so the bits of these numbers are read.
NUMPY = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "I16": "<i2",
    "U16": "<u2",
    "F16": "<f2",
    "BF16": "<u2",
    "I32": "<i4",
    "U32": "<u4",
    "F32": "<f4",
    "I64": "<i8",
    "U64": "<u8",
    "F64": "<f8",
}
FLOATS = ("F64", "F32", "F16", "BF16")  # the dtypes that a parameter may have in a file
# NumPy's names of types -> the dtype in which `write` can store them as they are, in place of F32.
EXACT = {"float64": "F64", "float16": "F16", "int64": "I64", "int8": "I8"}
VALUES_PER_PIECE = 1 << 17  # of a tensor that is converted: half a megabyte of float32


@dataclass(frozen=True)
class Tensor:
    """One tensor of a mapped file, in this format or another, whose values are not read yet."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int  # the position of its first byte in the file
    end: int  # the position of the byte after its last
    # The whole file. Without bytes if the file is on a hub: its values cannot be read then.
    memory: mmap.mmap | bytearray | bytes = field(repr=False)
    strides: tuple[int, ...] | None = None  # bytes; None for values in row order

    def transposed(self) -> "Tensor":
        """A matrix with its axes exchanged."""
        rows, columns = self.shape
        itemsize = DTYPE_BITS[self.dtype] // 8
        row_stride, stride = self.strides or (columns * itemsize, itemsize)
        return replace(self, shape=(columns, rows), strides=(stride, row_stride))

    def values(self, copy: bool = False) -> np.ndarray:
        """The values in float32: a view of the file where that is possible, and not `copy`.

        Numbers beyond the range of float32 become infinite. Raises CheckpointError for a dtype that
        is not in FLOATS.
        """
        if self.dtype == "F32" and not copy:
            stored = self._stored()
            if stored.flags.carray and stored.dtype.isnative:  # aligned and in row order
                return stored
        array = np.empty(self.shape, np.float32)
        flat = array.reshape(-1)
        with np.errstate(over="ignore"):
            for place, piece in self._pieces():
                flat[place] = piece
        return array

    def read_exactly(self) -> np.ndarray:
        """A new array of the type that the file has. Only bfloat16 becomes float32.

        Raises CheckpointError for the other types that NumPy does not have, such as 8-bit floats.
        """
        if self.dtype == "BF16":
            return self.values()
        if self.dtype not in NUMPY:
            raise CheckpointError(
                f"{self.file}: tensor {short_repr(self.name)} is {self.dtype}, which is not read; "
                "save it as F32 or F64"
            )
        return self._stored().copy()

    def _stored(self) -> np.ndarray:
        """The values in the file itself. bfloat16 is numbers of 16 bits."""
        return np.ndarray(
            self.shape, NUMPY[self.dtype], self.memory, self.start, strides=self.strides
        )

    def has_values_of(self, other: "Tensor") -> bool:
        """Whether another tensor has the same shape and values.

        nan is equal to nothing, but two tensors of one place in a file are the same.

        Raises CheckpointError for a dtype that is not in FLOATS.
        """
        if self.shape != other.shape:
            return False
        if self.is_at_place_of(other):
            return True
        pairs = zip(self._pieces(), other._pieces(), strict=True)
        return all(np.array_equal(piece, other_piece) for (_, piece), (_, other_piece) in pairs)

    def is_at_place_of(self, other: "Tensor") -> bool:
        """Whether another tensor of this shape is the same bytes of the same file."""
        if self.memory is not other.memory or self.start != other.start:
            return False
        return (self.dtype, self.strides) == (other.dtype, other.strides)

    def equal_rows(self, other: "Tensor") -> int:
        """How many rows of two matrices of one shape [V, D] have the same values.

        Raises CheckpointError for a dtype that is not in FLOATS.
        """
        V, D = self.shape
        if self.is_at_place_of(other):
            return V
        is_equal = np.ones(V, dtype=bool)
        for (place, piece), (_, other_piece) in zip(self._pieces(), other._pieces(), strict=True):
            different = np.flatnonzero(piece != other_piece)
            is_equal[(place.start + different) // D] = False
        return int(is_equal.sum())

    def _pieces(self) -> Iterator[tuple[slice, np.ndarray]]:
        """The values piece by piece: which of the flat values they are, and the values."""
        if self.dtype not in FLOATS:
            raise CheckpointError(
                f"{self.file}: tensor {short_repr(self.name)} is {self.dtype}; expected one of "
                f"{', '.join(FLOATS)}"
            )
        flat = self._stored().reshape(-1)  # a copy, if the values are not in row order
        for first in range(0, flat.size, VALUES_PER_PIECE):
            place = slice(first, first + VALUES_PER_PIECE)
            piece = flat[place]
            if self.dtype == "BF16":  # its 16 bits are the upper half of a float32
                piece = (piece.astype(np.uint32) << 16).view(np.float32)
            yield place, piece


def read_header(
    path: Path, max_header: int = MAX_HEADER
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """(name -> tensor, the metadata) of a safetensors file, with tensors of any dtype.

    The file is mapped, and no values are read. Raises CheckpointError if the file breaks a rule.
    """
    with open_to_read(path) as file:
        size = os.fstat(file.fileno()).st_size
        length = header_length(file.read(8), path, size, max_header)
        header_bytes = file.read(length)
        # ACCESS_COPY: a number that is written to an array changes in this process alone.
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    return parse_header(header_bytes, path, size, memory)


def header_length(first_bytes: bytes, path: Path, size: int, max_header: int) -> int:
    """N, which the first 8 of the `size` bytes of a file say. Raises CheckpointError."""
    length = int.from_bytes(first_bytes, "little")
    if length > max_header:
        raise CheckpointError(
            f"{path}: not a safetensors file: it begins with {first_bytes!r}, for a header of "
            f"{length} bytes; expected at most {max_header}"
        )
    if length == 0 or 8 + length > size:
        raise CheckpointError(
            f"{path}: truncated, or not a safetensors file: {size} bytes, a header of {length}"
        )
    return length


def parse_header(
    header_bytes: bytes, path: Path, size: int, memory: mmap.mmap | bytes
) -> tuple[dict[str, Tensor], dict[str, str]]:
    """What read_header returns, from the N bytes of the header of a file of `size` bytes.

    memory: the `memory` of the tensors. Raises CheckpointError.
    """
    data_start = 8 + len(header_bytes)
    try:
        header = STRICT_JSON.decode(header_bytes.decode())
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: the header must be a JSON object, got {short_repr(header)}")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(type(value) is str for value in metadata.values()):
        raise CheckpointError(f"{path}: __metadata__ must hold strings, got {short_repr(metadata)}")
    tensors = {}
    for name, entry in header.items():
        match entry:
            case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [begin, end]} if (
                dtype in DTYPE_BITS and all(number in COUNT for number in (*shape, begin, end))
            ):
                start, stop = data_start + begin, data_start + end
                tensors[name] = Tensor(path, name, dtype, tuple(shape), start, stop, memory)
            case _:
                raise CheckpointError(
                    f"{path}: tensor {short_repr(name)}: expected a known dtype, a shape and two "
                    f"data_offsets, got {short_repr(entry, limit=200)}"
                )
    check_places(tensors.values(), path, data_start, size)
    return tensors, metadata


def check_places(tensors: Iterable[Tensor], listing: Path, data_start: int, file_size: int) -> None:
    """Check that each tensor has the size of its shape, and that they fill the file's data.

    listing: the file that names the positions, which of OpenAI's files is the index. Raises
    CheckpointError.
    """
    end = data_start  # where the tensor before ends
    for tensor in sorted(tensors, key=lambda tensor: (tensor.start, tensor.end)):
        if len(tensor.shape) > MAX_AXES:
            raise CheckpointError(
                f"{listing}: tensor {short_repr(tensor.name)} has {len(tensor.shape)} axes; "
                f"expected at most {MAX_AXES}"
            )
        bits = 8 * (tensor.end - tensor.start)
        bits_needed = prod(tensor.shape) * DTYPE_BITS[tensor.dtype]
        if bits != bits_needed:
            raise CheckpointError(
                f"{listing}: tensor {short_repr(tensor.name)}: its place has {short_repr(bits)} "
                f"bits, but {tensor.dtype} {short_repr(list(tensor.shape))} needs "
                f"{short_repr(bits_needed)}"
            )
        # A tensor with an axis of 0 has no bytes, whatever its other axes are.
        if max(tensor.shape, default=0) > MAX_AXIS:
            raise CheckpointError(
                f"{listing}: tensor {short_repr(tensor.name)} has the shape "
                f"{short_repr(list(tensor.shape))}; expected axes of at most {MAX_AXIS}"
            )
        if tensor.start != end:
            raise CheckpointError(
                f"{listing}: tensor {short_repr(tensor.name)} starts at byte "
                f"{short_repr(tensor.start)}; expected {end}, where the tensor before it ends"
            )
        end = tensor.end
    if end != file_size:
        fault = "truncated" if end > file_size else "bytes after the last tensor"
        raise CheckpointError(
            f"{listing}: {fault}: the tensors end at byte {end}, the file of their values at "
            f"{file_size}"
        )


def write(
    file: BinaryIO,
    tensors: Iterable[tuple[str, np.ndarray]],
    metadata: dict[str, str] | None = None,
    exact: bool = False,
) -> None:
    """Write arrays of any shape as F32, in the order given.

    With `exact`, arrays of the types in EXACT are written as such. transformers and safetensors
    read the file. Raises CheckpointError for metadata that are too long.

    subtle: an array's values are written in the order of its indices. For a transposed view this is
    not the order of its memory, in which safetensors.numpy.save would write them.
    """
    arrays = dict(tensors)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers needs "pt"
    header["__metadata__"] |= metadata or {}
    end = 0
    for name, array in arrays.items():
        dtype = EXACT.get(array.dtype.name, "F32") if exact else "F32"
        begin = end
        end = begin + array.size * DTYPE_BITS[dtype] // 8
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, end]}
    header_bytes = json.dumps(header, separators=(",", ":")).encode()
    # Spaces after the header make the data begin at a multiple of CACHE_LINE.
    header_bytes += b" " * (-(8 + len(header_bytes)) % CACHE_LINE)
    if len(header_bytes) > MAX_HEADER:  # read_header would refuse the file
        raise CheckpointError(
            f"a header of {len(header_bytes)} bytes cannot be written; expected at most "
            f"{MAX_HEADER}"
        )
    file.write(len(header_bytes).to_bytes(8, "little"))
    file.write(header_bytes)
    for name, array in arrays.items():
        stored = NUMPY[header[name]["dtype"]]
        file.write(np.ascontiguousarray(array, stored).data)
