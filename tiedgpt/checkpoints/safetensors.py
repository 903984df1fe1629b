"""Read and write the safetensors format: a length, a JSON header, then the data.

    8 bytes     N, little-endian
    N bytes     {"wte.weight": {"dtype": "F32", "shape": [50257, 768], "data_offsets": [0, 154389504]}, ...}
                and optionally "__metadata__": {string: string}; white space may surround it
    the rest    each tensor's values, row-major and little-endian; data_offsets count from here

White space before the header is accepted: the specification forbids it, but the format's own reader
accepts it. A name that is given twice and "__metadata__": null are refused, although that reader
accepts them.
"""

import json
import mmap
import os
import re
import sys
from collections import Counter
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import CheckpointError, Range, short_repr
from ..fast.memory import CACHE_LINE, aligned
from .files import parse_json, reading

# Bytes. A GPT-2 with as many layers as Config allows, and its mask buffers, needs 1.8 million;
# Python's objects for a header of nothing but brackets take 25 times its size.
MAX_HEADER = 1 << 22
TOO_LONG = f"a header of {{}} bytes; expected at most {MAX_HEADER}"
MAX_RANK = 64  # axes, NumPy's limit; multiplying the lengths of a million axes takes minutes
# Every dtype of the format and its bits per value, to check sizes. Those in STORED can be read.
DTYPES = "F4 F6_E2M3 F6_E3M2 BOOL U8 I8 F8_E5M2 F8_E4M3 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ I16 U16 F16 BF16 "
DTYPES += "I32 U32 F32 I64 U64 F64 C64"
DTYPE_BITS = {
    dtype: int(re.findall(r"\d+", f"{dtype} 8")[0]) for dtype in DTYPES.split()
}  # BOOL has 8
VALUES_PER_READ = 1 << 17
U64 = Range(0, 2**64 - 1)
MADV_POPULATE_READ = 22  # Linux's number; Python has no name for it
STORED = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}  # NumPy has no bfloat16, so its bits are read


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file, not read yet."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int  # the position of its first byte in the file, and of the byte after its last
    end: int

    @property
    def can_be_mapped(self) -> bool:
        """Whether its place in a mapped file is a float32 array that BLAS can use."""
        return self.dtype == "F32" and self.start % 4 == 0 and sys.byteorder == "little"

    def view(self, memory: mmap.mmap) -> np.ndarray:
        """The values in the mapped file. Its pages are read from the disk now, if the system can do
        so."""
        start = self.start // mmap.PAGESIZE * mmap.PAGESIZE
        with suppress(
            AttributeError, OSError, ValueError
        ):  # not on macOS or Linux before 5.14; no values
            memory.madvise(MADV_POPULATE_READ, start, self.end - start)
        return np.ndarray(self.shape, np.float32, memory, self.start)

    def read(self) -> np.ndarray:
        """The values as a new float32 array."""
        out = aligned(self.shape, np.float32)
        flat, stored = out.reshape(-1), np.dtype(STORED[self.dtype])
        with reading(self.file) as file:
            file.seek(self.start)
            for at in range(0, flat.size, VALUES_PER_READ):
                part = flat[at : at + VALUES_PER_READ]
                buffer = part if stored == part.dtype else np.empty(part.shape, stored)
                if file.readinto(buffer.data) != buffer.nbytes:
                    raise OSError(f"it is too short for tensor {short_repr(self.name)}")
                if self.dtype == "BF16":  # the upper half of a float32
                    part[...] = (buffer.astype(np.uint32) << 16).view(np.float32)
                elif buffer is not part:
                    part[...] = buffer
        return out


def map_file(path: Path, tensors: Iterable[Tensor]) -> mmap.mmap:
    """The bytes of a file. A page that is written to is copied first.

    Raises CheckpointError if the file cannot be mapped, or does not hold those of `tensors` that
    are its own.
    """
    with reading(path) as file:
        if os.fstat(file.fileno()).st_size == 0:
            raise replaced(path)
        memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    with suppress(AttributeError, OSError):  # not Linux, or without huge pages
        # Pages of 2 MB, if the file is not in the page cache yet: products of few rows find them
        # faster.
        memory.madvise(mmap.MADV_HUGEPAGE)
    found = read_header(path)
    if any(found.get(tensor.name) != tensor for tensor in tensors if tensor.file == path):
        raise replaced(path)
    return memory


def replaced(path: Path) -> CheckpointError:
    return CheckpointError(f"{path}: was replaced while it was loaded; load it again")


def read_header(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name. Raises CheckpointError if the file breaks a
    rule."""
    return read_with_metadata(path)[0]


def read_with_metadata(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors by name, and the metadata. Raises CheckpointError if the file breaks a rule."""
    with reading(path) as file:
        file_size = os.fstat(file.fileno()).st_size
        prefix = file.read(8)
        if len(prefix) < 8:
            raise CheckpointError(
                f"{path}: not a safetensors file: {file_size} bytes, expected 8 or more"
            )
        length = int.from_bytes(prefix, "little")
        if length > MAX_HEADER:
            raise CheckpointError(
                f"{path}: not a GPT-2's safetensors file: {TOO_LONG.format(length)}"
            )
        if 8 + length > file_size:
            raise CheckpointError(
                f"{path}: truncated: {file_size} bytes, the header ends at {8 + length}"
            )
        tensors, metadata = _parse_header(file.read(length), path)
    check_tensors(tensors.values(), path, path, 8 + length, file_size)
    return tensors, metadata


def check_tensors(
    tensors: Iterable[Tensor], listing: Path, file: Path, data_start: int, file_size: int
) -> None:
    """Check that tensors have the size of their shape, and fill a file without overlap, hole or
    remainder.

    Raises CheckpointError that names `listing`, which has the positions, or `file`, which has the
    data.
    """
    end = data_start
    for tensor in sorted(tensors, key=lambda tensor: (tensor.start, tensor.end)):
        where, shape = f"{listing}: tensor {short_repr(tensor.name)}", list(tensor.shape)
        if len(shape) > MAX_RANK:
            raise CheckpointError(f"{where}: {len(shape)} axes; expected at most {MAX_RANK}")
        needed, size = prod(shape) * DTYPE_BITS[tensor.dtype], 8 * (tensor.end - tensor.start)
        if size != needed:
            what = f"{tensor.dtype} {short_repr(shape)} needs {short_repr(needed)}"
            raise CheckpointError(f"{where}: its place has {size} bits, but {what}")
        if tensor.start != end:
            fault = (
                "overlaps the tensor before it" if tensor.start < end else "leaves a hole before it"
            )
            raise CheckpointError(
                f"{where} {fault}: it starts at byte {tensor.start}, expected {end}"
            )
        end = tensor.end
    if end != file_size:
        fault = "truncated" if end > file_size else "bytes after the last tensor"
        raise CheckpointError(
            f"{file}: {fault}: the tensors end at byte {end}, the file at {file_size}"
        )


def write(
    file: BinaryIO,
    tensors: Iterable[tuple[str, np.ndarray]],
    metadata: dict[str, str] | None = None,
) -> None:
    """Write arrays of any shape as F32, in the order given. transformers and safetensors read them
    back.

    Raises CheckpointError for names and metadata that `read_header` would refuse.

    subtle: an array's values are written in the order of its indices, not of its memory. These
    differ for a transposed view, which safetensors.numpy.save writes wrongly.
    """
    tensors = list(tensors)
    header: dict[str, Any] = {
        "__metadata__": {"format": "pt", **(metadata or {})}
    }  # transformers needs "pt"
    end = 0
    for name, array in tensors:
        if name in header:
            raise CheckpointError(
                f"tensor {short_repr(name)} cannot be written: the header has that name"
            )
        begin, end = end, end + 4 * array.size
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [begin, end]}
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-(8 + len(raw)) % CACHE_LINE)  # aligns the data
    _parse_header(raw, Path("the file to be written"))
    file.write(len(raw).to_bytes(8, "little") + raw)
    for _, array in tensors:
        file.write(np.ascontiguousarray(array, "<f4").data)


def _parse_header(raw: bytes, path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors and the metadata of a header. `path` is the file's."""

    def wrong(what: str) -> CheckpointError:
        return CheckpointError(f"{path}: {what}")

    if len(raw) > MAX_HEADER:
        raise wrong(TOO_LONG.format(len(raw)))
    try:
        header = parse_json(raw.decode("utf-8"), object_pairs_hook=_object_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise wrong(f"the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise wrong(f"the header must be a JSON object, got {short_repr(header)}")
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(map(_is_text, metadata.values())):
        raise wrong(f"__metadata__ must be an object of strings, got {short_repr(metadata)}")

    tensors = {}
    for name, entry in header.items():
        where = f"tensor {short_repr(name)}"
        if not isinstance(entry, dict):
            raise wrong(f"{where}: expected an object, got {short_repr(entry)}")
        dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
        if not isinstance(dtype, str) or dtype not in DTYPE_BITS:
            raise wrong(f"{where}: unknown dtype {short_repr(dtype)}")
        if not isinstance(shape, list) or not all(n in U64 for n in shape):
            raise wrong(f"{where}: shape must be a list of whole numbers, got {short_repr(shape)}")
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(n in U64 for n in offsets):
            raise wrong(f"{where}: data_offsets must be two positions, got {short_repr(offsets)}")
        begin, end = (8 + len(raw) + offset for offset in offsets)
        tensors[name] = Tensor(path, name, dtype, tuple(shape), begin, end)
    return tensors, metadata


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{short_repr(name)} is given twice")
    if not all(map(_is_text, result)):
        raise ValueError("a name is not Unicode: it has an unpaired surrogate")
    return result


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and not any(
        "\ud800" <= character <= "\udfff" for character in value
    )
