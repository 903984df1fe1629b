"""The safetensors format: a length, a JSON header, then the numbers.

    8 bytes     N, little-endian
    N bytes     {"wte.weight": {"dtype": "F32", "shape": [50257, 768], "data_offsets": [0, 154389504]}, ...}
                and optionally "__metadata__": {string: string}; may be padded with spaces
    the rest    each tensor's bytes, row-major and little-endian; data_offsets count from here

A file is believed only as far as it is checked, in this order: length, header, every entry, then that the
entries cover the data without overlap, hole or remainder. Where the specification and its own reader
disagree (white space before the brace, a name given twice) this follows the specification and refuses.
"""

import json
import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import CheckpointError, is_count, short_repr
from ..machine import empty_weight

MAX_HEADER = 100_000_000  # bytes, the specification's limit
MAX_RANK = 64  # NumPy's limit; to multiply the lengths of a million axes takes minutes
# Every dtype of the format and its bytes per number, to check sizes by; the three in STORED can be read.
DTYPE_BYTES = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 1),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 2),
    **dict.fromkeys(("I32", "U32", "F32"), 4),
    **dict.fromkeys(("I64", "U64", "F64", "C64"), 8),
}
PIECE = 1 << 19  # bytes of a tensor, as float32, that are read at a time
STORED = {"F32": "<f4", "F16": "<f2", "BF16": "<u2"}  # NumPy has no bfloat16: its bits are read


@dataclass(frozen=True)
class Tensor:
    """One tensor of a file, not read yet."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int  # the position of its first byte in the file

    def read(self) -> np.ndarray:
        """Its numbers as a float32 array of our own, which lies in memory as `empty_weight` has it.

        Read, not mapped: a page at a time is slower, the data may start at an odd byte (gpt2's starts at
        14291), which BLAS cannot use, and a file that shrinks under a view kills the process. Raises
        CheckpointError if the bytes are gone since the file was checked.
        """
        out = empty_weight(self.shape, np.float32)
        stored = np.dtype(STORED[self.dtype])
        as_stored = out.flags.c_contiguous and stored == out.dtype
        step = max(16, PIECE // (4 * prod(self.shape[1:]) or 1) // 16 * 16)  # rows
        try:
            with open(self.file, "rb") as file:
                file.seek(self.start)
                for row in range(0, len(out), step):
                    rows = out[row : row + step]
                    piece = rows if as_stored else np.empty(rows.shape, stored)
                    if file.readinto(piece.data) != piece.nbytes:
                        raise OSError("the file ends before it does")
                    if not as_stored:
                        copy_as_float32(piece, rows)
        except OSError as error:
            raise CheckpointError(
                f"{self.file}: tensor {short_repr(self.name)} cannot be read: {error}"
            ) from error
        return out


def copy_as_float32(piece: np.ndarray, rows: np.ndarray) -> None:
    """Copy numbers as they are stored into rows that may lie in memory column by column."""
    if piece.dtype == "<u2":  # bfloat16 is the upper half of a float32
        piece = (piece.astype(np.uint32) << 16).view(np.float32)
    for at in range(0, len(rows), 16):  # 16 are a line of the processor's cache
        rows[at : at + 16] = piece[at : at + 16]


def read_header(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file by name. Raises CheckpointError where the file breaks a rule."""
    return read_with_metadata(path)[0]


def read_with_metadata(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """The tensors, and what else the header says. Raises what read_header raises."""

    def wrong(what: str) -> CheckpointError:
        return CheckpointError(f"{path}: {what}")

    if os.path.exists(path) and not os.path.isfile(path):  # opening a FIFO would wait for ever
        raise wrong("is not a regular file")
    try:
        with open(path, "rb") as file:
            file_size = os.fstat(file.fileno()).st_size
            prefix = file.read(8)
            if len(prefix) < 8:
                raise wrong(f"not a safetensors file: {file_size} bytes is shorter than the 8-byte length")
            length = int.from_bytes(prefix, "little")
            if length > MAX_HEADER:
                raise wrong(f"not a safetensors file: a header of {length} bytes (at most {MAX_HEADER})")
            if 8 + length > file_size:
                raise wrong(f"truncated: the header needs {8 + length} bytes, the file has {file_size}")
            raw = file.read(length)
    except OSError as error:
        raise wrong(f"cannot be read: {error.strerror}") from error

    if not raw.startswith(b"{"):
        raise wrong(f"the header must start with '{{', got {short_repr(raw[:1])}")
    try:
        header = json.loads(raw.decode("utf-8"), object_pairs_hook=_object_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise wrong(f"the header is not JSON: {error}") from error
    metadata = header.pop("__metadata__", None) or {}

    tensors = {}
    spans = []
    for name, entry in header.items():
        if not isinstance(entry, dict):
            raise wrong(f"tensor {short_repr(name)}: expected an object, got {short_repr(entry)}")
        dtype, shape, offsets = (entry.get(key) for key in ("dtype", "shape", "data_offsets"))
        if not isinstance(dtype, str) or dtype not in DTYPE_BYTES:
            raise wrong(f"tensor {short_repr(name)}: unknown dtype {short_repr(dtype)}")
        if not isinstance(shape, list) or not all(_is_u64(n) for n in shape):
            raise wrong(
                f"tensor {short_repr(name)}: shape must be a list of whole numbers, got {short_repr(shape)}"
            )
        if len(shape) > MAX_RANK:
            raise wrong(f"tensor {short_repr(name)}: {len(shape)} axes; expected at most {MAX_RANK}")
        if not isinstance(offsets, list) or len(offsets) != 2 or not all(_is_u64(n) for n in offsets):
            raise wrong(
                f"tensor {short_repr(name)}: data_offsets must be two positions, got {short_repr(offsets)}"
            )
        begin, end = offsets
        needed = prod(shape) * DTYPE_BYTES[dtype]
        if end - begin != needed:
            raise wrong(
                f"tensor {short_repr(name)}: data_offsets {short_repr(offsets)} hold {end - begin} bytes, "
                f"but {dtype} {short_repr(shape)} needs {short_repr(needed)}"
            )
        spans.append((begin, end, name))
        tensors[name] = Tensor(path, name, dtype, tuple(shape), 8 + length + begin)

    covered = 0
    for begin, end, name in sorted(spans):
        if begin != covered:
            problem = "overlaps the tensor before it" if begin < covered else "leaves a hole before it"
            raise wrong(f"tensor {short_repr(name)}: {problem}: starts at byte {begin}, expected {covered}")
        covered = end
    if 8 + length + covered != file_size:
        problem = "truncated" if 8 + length + covered > file_size else "bytes after the last tensor"
        raise wrong(f"{problem}: the header describes {8 + length + covered} bytes, the file has {file_size}")
    return tensors, metadata


def write(
    file: BinaryIO, tensors: Iterable[tuple[str, np.ndarray]], metadata: dict[str, str] | None = None
) -> None:
    """Write arrays as F32 in the order given, so that transformers and safetensors read them back.

    subtle: an array's numbers are written in the order of its indices, not of its memory. Those differ for
    a matrix that lies column by column, as a loaded wte does; safetensors.numpy.save writes it wrongly.
    """
    tensors = list(tensors)
    header: dict[str, Any] = {
        "__metadata__": {"format": "pt", **(metadata or {})}
    }  # transformers wants to know: "pt" layout
    end = 0
    for name, array in tensors:
        begin, end = end, end + 4 * array.size
        header[name] = {"dtype": "F32", "shape": list(array.shape), "data_offsets": [begin, end]}
    raw = json.dumps(header, separators=(",", ":")).encode()
    raw += b" " * (-len(raw) % 8)  # so that the data starts aligned
    file.write(len(raw).to_bytes(8, "little") + raw)
    for _, array in tensors:
        file.write(np.ascontiguousarray(array, "<f4").data)


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        [(name, _)] = Counter(name for name, _ in pairs).most_common(1)
        raise ValueError(f"{short_repr(name)} is given twice")
    return result


def _is_u64(value: Any) -> bool:
    return is_count(value) and value < 1 << 64
