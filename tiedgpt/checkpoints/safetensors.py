"""Read and write the safetensors format: a length, a JSON header, then the data.

    8 bytes     N, little-endian
    N bytes     {"wte.weight": {"dtype": "F32", "shape": [50257, 768],
                 "data_offsets": [0, 154389504]}, ...}
                and optionally "__metadata__": {string: string}; white space may surround it
    the rest    each tensor's values, row-major and little-endian; data_offsets count from here

White space before the header is accepted: the specification forbids it, but the format's own reader
accepts it. A name that is given twice and "__metadata__": null are refused, although that reader
accepts them.
"""

import json
import mmap
import os
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from io import BufferedReader
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import CheckpointError, Range, short_repr
from .reading import open_to_read, parse_json

# Bytes. A GPT-2 with as many layers as Config allows, and its mask buffers, needs 1.8 million;
# Python's objects for a header of nothing but brackets take 25 times its size.
MAX_HEADER = 1 << 22
CACHE_LINE = 64  # bytes
MAX_RANK = 64  # axes, NumPy's limit; multiplying the lengths of a million axes takes minutes
# Every dtype of the format and its bits per value, to check sizes. Those in STORED can be read.
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
STORED = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}  # NumPy has no bfloat16, so its bits are read
# NumPy's names of the dtypes that it has too: real numbers with the same number of bits.
NUMBERS = {
    "BOOL": "?",
    "U8": "u1",
    "I8": "i1",
    "I16": "<i2",
    "U16": "<u2",
    "F16": "<f2",
    "I32": "<i4",
    "U32": "<u4",
    "F32": "<f4",
    "I64": "<i8",
    "U64": "<u8",
    "F64": "<f8",
}
# NumPy's names of types that F32 would round -> the dtype in which `write` can store them exactly.
EXACT = {"float64": "F64", "int64": "I64"}
VALUES_PER_READ = 1 << 17  # half a megabyte of float32: a small buffer for tensors of any size
U64 = Range(0, 2**64 - 1)
MADV_POPULATE_READ = 22  # Linux's number; Python has no name for it


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file, not read yet."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int  # the position of its first byte in the file
    end: int  # the position of the byte after its last

    @property
    def can_be_mapped(self) -> bool:
        """Whether its place in a mapped file is a float32 array that BLAS can use."""
        return self.dtype == "F32" and self.start % 4 == 0 and sys.byteorder == "little"

    def view(self, memory: mmap.mmap) -> np.ndarray:
        """The values in the mapped file. Its pages are read from the disk now, where possible."""
        # madvise accepts only an address where a page starts.
        page_start = self.start // mmap.PAGESIZE * mmap.PAGESIZE
        # The system refuses on macOS, on Linux before 5.14, and for a tensor without values.
        with suppress(AttributeError, OSError, ValueError):
            memory.madvise(MADV_POPULATE_READ, page_start, self.end - page_start)
        return np.ndarray(self.shape, np.float32, memory, self.start)

    def read(self) -> np.ndarray:
        """The values as a new float32 array."""
        array = np.empty(self.shape, np.float32)
        values = array.reshape(-1)
        with open_to_read(self.file) as file:
            file.seek(self.start)
            for first in range(0, values.size, VALUES_PER_READ):
                self._read_into(values[first : first + VALUES_PER_READ], file)
        return array

    def read_exactly(self) -> np.ndarray:
        """The values in the type that the file has. Only bfloat16 becomes float32.

        Raises CheckpointError for the other types that NumPy does not have, such as 8-bit floats.
        """
        if self.dtype == "BF16":
            return self.read()
        if self.dtype not in NUMBERS:
            raise CheckpointError(
                f"{self.file}: tensor {short_repr(self.name)} is {self.dtype}, which is not read; "
                "save it as F32 or F64"
            )
        with open_to_read(self.file) as file:
            file.seek(self.start)
            stored = file.read(self.end - self.start)
        return np.frombuffer(stored, NUMBERS[self.dtype]).reshape(self.shape)

    def has_values_of(self, other: "Tensor") -> bool:
        """Whether a tensor of the same shape has the same values. nan is equal to nothing.

        Both are read part by part, up to the first that differs, and neither is kept.
        """
        size = prod(self.shape)
        with open_to_read(self.file) as file, open_to_read(other.file) as other_file:
            file.seek(self.start)
            other_file.seek(other.start)
            for first in range(0, size, VALUES_PER_READ):
                part = np.empty(min(VALUES_PER_READ, size - first), np.float32)
                other_part = np.empty_like(part)
                self._read_into(part, file)
                other._read_into(other_part, other_file)
                if not np.array_equal(part, other_part):
                    return False
        return True

    def _read_into(self, part: np.ndarray, file: BufferedReader) -> None:
        """Fill `part` (float32) with the next values of the file, and move on in the file."""
        stored = np.dtype(STORED[self.dtype])
        if stored == part.dtype:
            buffer = part
        else:
            buffer = np.empty(part.shape, stored)
        if file.readinto(buffer.data) != buffer.nbytes:
            raise OSError(f"it is too short for tensor {short_repr(self.name)}")
        if self.dtype == "BF16":  # its 16 bits are the upper half of a float32
            part[...] = (buffer.astype(np.uint32) << 16).view(np.float32)
        elif buffer is not part:
            part[...] = buffer


def map_file(path: Path, tensors: Iterable[Tensor]) -> mmap.mmap:
    """The bytes of a file, mapped. A page that is written to is copied first.

    tensors: those of this file, and of other files, were found in the headers before. Raises
    CheckpointError if this file cannot be mapped, or no longer has one of them.
    """
    with open_to_read(path) as file:
        if os.fstat(file.fileno()).st_size == 0:  # mmap refuses it; it had a header before
            raise replaced(path)
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    with suppress(AttributeError, OSError):  # not Linux, or without huge pages
        # Pages of 2 MB, if the file is not in the page cache yet: products of few rows find them
        # faster.
        memory.madvise(mmap.MADV_HUGEPAGE)
    # The file may have been replaced since its header was read.
    present_tensors = read_header(path)
    for tensor in tensors:
        if tensor.file == path and present_tensors.get(tensor.name) != tensor:
            raise replaced(path)
    return memory


def replaced(path: Path) -> CheckpointError:
    """The error for a file that is not the one whose header was read."""
    return CheckpointError(f"{path}: was replaced while it was loaded; load it again")


def read_header(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name.

    Raises CheckpointError if the file breaks a rule.
    """
    tensors, _ = read_with_metadata(path)
    return tensors


def read_with_metadata(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors by name, and the metadata. Raises CheckpointError if the file breaks a rule."""
    with open_to_read(path) as file:
        file_size = os.fstat(file.fileno()).st_size
        prefix = file.read(8)
        if len(prefix) < 8:
            raise CheckpointError(
                f"{path}: not a safetensors file: {file_size} bytes, expected 8 or more"
            )
        length = int.from_bytes(prefix, "little")
        if length > MAX_HEADER:
            raise CheckpointError(
                f"{path}: not a GPT-2's safetensors file: a header of {length} bytes; expected at "
                f"most {MAX_HEADER}"
            )
        if 8 + length > file_size:
            raise CheckpointError(
                f"{path}: truncated: {file_size} bytes, the header ends at {8 + length}"
            )
        header = file.read(length)
    tensors, metadata = _parse_header(header, path)
    check_places(
        tensors.values(), listing=path, file=path, data_start=8 + length, file_size=file_size
    )
    return tensors, metadata


def check_places(
    tensors: Iterable[Tensor], listing: Path, file: Path, data_start: int, file_size: int
) -> None:
    """Check that each tensor has the size of its shape, and that they fill the file's data.

    There is no overlap, no hole and no remainder. Raises CheckpointError that names `listing`,
    which has the positions, or `file`, which has the data.
    """
    end = data_start  # where the tensor before ends
    for tensor in sorted(tensors, key=lambda tensor: (tensor.start, tensor.end)):
        where = f"{listing}: tensor {short_repr(tensor.name)}"
        shape = list(tensor.shape)  # as JSON writes it, for the messages
        if len(shape) > MAX_RANK:
            raise CheckpointError(f"{where}: {len(shape)} axes; expected at most {MAX_RANK}")
        bits_needed = prod(shape) * DTYPE_BITS[tensor.dtype]
        bits = 8 * (tensor.end - tensor.start)
        if bits != bits_needed:
            raise CheckpointError(
                f"{where}: its place has {bits} bits, but {tensor.dtype} {short_repr(shape)} needs "
                f"{short_repr(bits_needed)}"
            )
        if tensor.start < end:
            raise CheckpointError(
                f"{where} overlaps the tensor before it: it starts at byte {tensor.start}, "
                f"expected {end}"
            )
        if tensor.start > end:
            raise CheckpointError(
                f"{where} leaves a hole before it: it starts at byte {tensor.start}, expected {end}"
            )
        end = tensor.end
    if end > file_size:
        raise CheckpointError(
            f"{file}: truncated: the tensors end at byte {end}, the file at {file_size}"
        )
    if end < file_size:
        raise CheckpointError(
            f"{file}: bytes after the last tensor: the tensors end at byte {end}, the file at "
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
    the file. Raises CheckpointError for names and metadata that `read_header` would refuse.

    subtle: an array's values are written in the order of its indices. For a transposed view this is
    not the order of its memory, in which safetensors.numpy.save would write them.
    """
    tensors = list(tensors)
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}  # transformers needs "pt"
    header["__metadata__"] |= metadata or {}
    end = 0
    for name, array in tensors:
        if name in header:
            raise CheckpointError(
                f"tensor {short_repr(name)} cannot be written: the header has that name"
            )
        dtype = EXACT.get(array.dtype.name, "F32") if exact else "F32"
        bytes_per_value = DTYPE_BITS[dtype] // 8
        begin = end
        end = begin + bytes_per_value * array.size
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [begin, end]}
    header_bytes = json.dumps(header, separators=(",", ":")).encode()
    # Spaces after the header make the data begin at a multiple of CACHE_LINE.
    remainder = (8 + len(header_bytes)) % CACHE_LINE
    if remainder > 0:
        header_bytes += b" " * (CACHE_LINE - remainder)
    # A header that would be refused when the file is read raises now.
    _parse_header(header_bytes, Path("the file to be written"))
    file.write(len(header_bytes).to_bytes(8, "little"))
    file.write(header_bytes)
    for name, array in tensors:
        stored = NUMBERS[header[name]["dtype"]]
        file.write(np.ascontiguousarray(array, stored).data)


def _parse_header(header_bytes: bytes, path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a header. `path` is its file, for the tensors and errors.

    Raises CheckpointError if the header breaks a rule.
    """
    if len(header_bytes) > MAX_HEADER:
        raise CheckpointError(
            f"{path}: a header of {len(header_bytes)} bytes; expected at most {MAX_HEADER}"
        )
    try:
        header = parse_json(header_bytes.decode("utf-8"), make_object=_object_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise CheckpointError(f"{path}: the header must be a JSON object, got {short_repr(header)}")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(_is_text(text) for text in metadata.values()):
        raise CheckpointError(
            f"{path}: __metadata__ must be an object of strings, got {short_repr(metadata)}"
        )
    data_start = 8 + len(header_bytes)
    tensors = {name: _parse_entry(name, header[name], data_start, path) for name in header}
    return tensors, metadata


def _parse_entry(name: str, entry: Any, data_start: int, path: Path) -> Tensor:
    """The tensor that one entry of the header describes."""
    where = f"{path}: tensor {short_repr(name)}"
    if not isinstance(entry, dict):
        raise CheckpointError(f"{where}: expected an object, got {short_repr(entry)}")
    dtype = entry.get("dtype")
    if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
        raise CheckpointError(f"{where}: unknown dtype {short_repr(dtype)}")
    shape = entry.get("shape")
    if not isinstance(shape, list) or not all(n in U64 for n in shape):
        raise CheckpointError(
            f"{where}: shape must be a list of whole numbers, got {short_repr(shape)}"
        )
    offsets = entry.get("data_offsets")
    if not isinstance(offsets, list) or len(offsets) != 2 or not all(n in U64 for n in offsets):
        raise CheckpointError(
            f"{where}: data_offsets must be two positions, got {short_repr(offsets)}"
        )
    begin, end = offsets
    return Tensor(path, name, dtype, tuple(shape), data_start + begin, data_start + end)


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """The dict of a JSON object. Raises ValueError for a name that is there twice, or not text."""
    result = dict(pairs)
    if len(result) != len(pairs):
        counts = Counter(name for name, _ in pairs)
        name, _ = counts.most_common(1)[0]
        raise ValueError(f"{short_repr(name)} is given twice")
    if not all(_is_text(name) for name in result):
        raise ValueError("a name is not Unicode: it has an unpaired surrogate")
    return result


def _is_text(value: Any) -> bool:
    """Whether a JSON value is a string without an unpaired surrogate."""
    if not isinstance(value, str):
        return False
    return not any("\ud800" <= character <= "\udfff" for character in value)
