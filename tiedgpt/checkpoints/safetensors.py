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
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import COUNT, CheckpointError, short_repr
from .reading import open_to_read, parse_json

# Bytes. A GPT-2 with as many layers as Config allows, and its mask buffers, needs 1.8 million;
# Python's objects for a header of nothing but brackets take 25 times its size.
MAX_HEADER = 1 << 22
MAX_AXES = 32  # what every NumPy accepts
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
# NumPy's names of types that F32 would round -> the dtype in which `write` can store them exactly.
EXACT = {"float64": "F64", "int64": "I64"}
VALUES_PER_PIECE = 1 << 17  # of a tensor that is converted: half a megabyte of float32


@dataclass(frozen=True)
class Tensor:
    """One tensor of a mapped file, whose values are not read yet."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int  # the position of its first byte in the file
    end: int  # the position of the byte after its last
    memory: mmap.mmap = field(repr=False)  # the whole file

    def view_or_read(self) -> np.ndarray:
        """The values in float32: a view of the file where that is possible, else as `read`."""
        stored = self._stored()
        if stored.dtype == np.float32 and stored.flags.aligned:
            return stored
        return self.read()

    def read(self) -> np.ndarray:
        """The values as a new float32 array. Numbers beyond the range of float32 become infinite.

        The dtype must be F64, F32, F16 or BF16.
        """
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
            return self.read()
        if self.dtype not in NUMPY:
            raise CheckpointError(
                f"{self.file}: tensor {short_repr(self.name)} is {self.dtype}, which is not read; "
                "save it as F32 or F64"
            )
        return self._stored().copy()

    def has_values_of(self, other: "Tensor") -> bool:
        """Whether a tensor of the same shape has the same values. nan is equal to nothing."""
        pairs = zip(self._pieces(), other._pieces(), strict=True)
        return all(np.array_equal(piece, other_piece) for (_, piece), (_, other_piece) in pairs)

    def _stored(self) -> np.ndarray:
        """A view of the file, in the type that the file has; of bfloat16, the bits."""
        return np.ndarray(self.shape, NUMPY[self.dtype], self.memory, self.start)

    def _pieces(self) -> Iterator[tuple[slice, np.ndarray]]:
        """The values piece by piece: which of the flat values they are, and the values."""
        flat = self._stored().reshape(-1)
        for first in range(0, flat.size, VALUES_PER_PIECE):
            place = slice(first, first + VALUES_PER_PIECE)
            piece = flat[place]
            if self.dtype == "BF16":  # its 16 bits are the upper half of a float32
                piece = (piece.astype(np.uint32) << 16).view(np.float32)
            yield place, piece


def map_file(path: Path) -> mmap.mmap:
    """The bytes of a file, mapped. A page that is written to is copied first."""
    with open_to_read(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise CheckpointError(f"{path}: the file is empty")
        return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)


def read_header(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name, of any dtype.

    Raises CheckpointError if the file breaks a rule.
    """
    tensors, _ = read_with_metadata(path)
    return tensors


def read_with_metadata(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors by name, and the metadata. Raises CheckpointError if the file breaks a rule."""
    memory = map_file(path)
    length = int.from_bytes(memory[:8], "little")
    data_start = 8 + length
    if length > MAX_HEADER:
        raise CheckpointError(
            f"{path}: not a safetensors file: a header of {length} bytes; expected at most "
            f"{MAX_HEADER}"
        )
    if data_start > len(memory):
        raise CheckpointError(
            f"{path}: truncated, or not a safetensors file: {len(memory)} bytes, the header ends "
            f"at {data_start}"
        )
    try:
        header = parse_json(memory[8:data_start].decode(), make_object=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: the header must be a JSON object, got {short_repr(header)}")
    metadata = header.pop("__metadata__", {})
    texts = metadata.values() if isinstance(metadata, dict) else [None]
    if not all(isinstance(text, str) for text in texts):
        raise CheckpointError(
            f"{path}: __metadata__ must be an object of strings, got {short_repr(metadata)}"
        )
    tensors = {}
    for name, entry in header.items():
        tensors[name] = _parse_entry(path, name, entry, data_start, memory)
    check_places(tensors.values(), path, data_start, len(memory))
    return tensors, metadata


def _parse_entry(path: Path, name: str, entry: Any, data_start: int, memory: mmap.mmap) -> Tensor:
    """The tensor that one entry of the header describes."""
    where = f"{path}: tensor {short_repr(name)}"
    if not isinstance(entry, dict):
        raise CheckpointError(f"{where}: expected an object, got {short_repr(entry)}")
    dtype = entry.get("dtype")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise CheckpointError(f"{where}: unknown dtype {short_repr(dtype)}")
    shape = entry.get("shape")
    if not isinstance(shape, list) or not all(n in COUNT for n in shape) or len(shape) > MAX_AXES:
        raise CheckpointError(
            f"{where}: shape must be a list of at most {MAX_AXES} whole numbers, got "
            f"{short_repr(shape)}"
        )
    offsets = entry.get("data_offsets")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(n in COUNT for n in offsets):
        raise CheckpointError(
            f"{where}: data_offsets must be two positions, got {short_repr(offsets)}"
        )
    begin, end = offsets
    return Tensor(path, name, dtype, tuple(shape), data_start + begin, data_start + end, memory)


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The dict of a JSON object. Raises ValueError for a name that is there twice."""
    result: dict[str, Any] = {}
    for name, value in pairs:
        if name in result:
            raise ValueError(f"{short_repr(name)} is given twice")
        result[name] = value
    return result


def check_places(tensors: Iterable[Tensor], listing: Path, data_start: int, file_size: int) -> None:
    """Check that each tensor has the size of its shape, and that they fill the file's data.

    listing: the file that has the positions. Raises CheckpointError.
    """
    end = data_start  # where the tensor before ends
    for tensor in sorted(tensors, key=lambda tensor: (tensor.start, tensor.end)):
        where = f"{listing}: tensor {short_repr(tensor.name)}"
        bits = 8 * (tensor.end - tensor.start)
        bits_needed = prod(tensor.shape) * DTYPE_BITS[tensor.dtype]
        if bits != bits_needed:
            raise CheckpointError(
                f"{where}: its place has {short_repr(bits)} bits, but {tensor.dtype} "
                f"{short_repr(list(tensor.shape))} needs {short_repr(bits_needed)}"
            )
        if tensor.start != end:
            raise CheckpointError(
                f"{where} starts at byte {short_repr(tensor.start)}; expected {end}, where the "
                "tensor before it ends"
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

    With `exact`, arrays of float64 and int64 are written as such. transformers and safetensors read
    the file. Raises CheckpointError for metadata that are too long.

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
    if len(header_bytes) > MAX_HEADER:  # nobody could read the file
        raise CheckpointError(
            f"a header of {len(header_bytes)} bytes cannot be written; expected at most "
            f"{MAX_HEADER}"
        )
    file.write(len(header_bytes).to_bytes(8, "little"))
    file.write(header_bytes)
    for name, array in arrays.items():
        stored = NUMPY[header[name]["dtype"]]
        file.write(np.ascontiguousarray(array, stored).data)
