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
from collections.abc import Iterable
from math import prod
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from ..errors import CheckpointError, short_repr
from .json_files import STRICT_JSON, open_to_read
from .tensors import DTYPE_BITS, NUMPY, Tensor

# Bytes. A GPT-2 with as many layers as Config allows, and its mask buffers, needs 1.8 million;
# Python's objects for a header of nothing but brackets take 25 times its size.
MAX_HEADER = 1 << 22
MAX_AXES = 32  # what every NumPy accepts
MAX_AXIS = 1 << 31
CACHE_LINE = 64  # bytes
# NumPy's names of types -> the dtype in which `write` can store them as they are, in place of F32.
EXACT = {"float64": "F64", "float16": "F16", "int64": "I64", "int8": "I8"}


def read_header(
    path: Path, content: bytes | None = None, size: int = 0, max_header: int = MAX_HEADER
) -> tuple[dict[str, Tensor], dict[str, str] | None]:
    """(name -> tensor, the metadata) of a safetensors file, with tensors of any dtype.

    The metadata are None if it has none, not even empty ones. The file is mapped, and no values
    are read. Raises CheckpointError if the file breaks a rule.
    content: the beginning of a file of `size` bytes on a hub, with all of the header.
    """
    memory: mmap.mmap | bytes = content or b""  # an empty file cannot be mapped
    if content is None:
        with open_to_read(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > 0:
                # ACCESS_COPY: a number that is written to an array changes in this process alone.
                memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    length = int.from_bytes(memory[:8], "little")
    if length == 0 or length > max_header or 8 + length > size:
        sizes = f"{size} bytes, a header of {length}"
        if length > max_header:
            sizes += f"; expected at most {max_header}"
        raise damaged(path, f"truncated, or not a safetensors file: {sizes}")
    data_start = 8 + length
    try:
        header = STRICT_JSON.decode(memory[8:data_start].decode())
    except (ValueError, RecursionError) as error:  # ValueError: not UTF-8, or not JSON
        raise damaged(path, f"the header is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise damaged(path, f"the header must be a JSON object, got {short_repr(header)}")
    has_metadata = "__metadata__" in header
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(type(value) is str for value in metadata.values()):
        raise damaged(path, f"__metadata__ must hold strings, got {short_repr(metadata)}")
    tensors = {}
    for name, entry in header.items():
        match entry:
            case {"dtype": str(dtype), "shape": [*shape], "data_offsets": [begin, end]} if (
                dtype in DTYPE_BITS
                and all(type(number) is int and number >= 0 for number in (*shape, begin, end))
            ):
                start, stop = data_start + begin, data_start + end
                tensors[name] = Tensor(path, name, dtype, tuple(shape), start, stop, memory)
            case _:
                expected = "expected a known dtype, a shape and two data_offsets"
                got = short_repr(entry, limit=200)
                raise damaged(path, f"tensor {short_repr(name)}: {expected}, got {got}")
    check_places(tensors.values(), path, data_start, size)
    return tensors, metadata if has_metadata else None


def damaged(path: Path, detail: str) -> CheckpointError:
    """The error for a file that breaks a rule."""
    return CheckpointError(f"{path}: damaged: {detail}")


def check_places(tensors: Iterable[Tensor], listing: Path, data_start: int, file_size: int) -> None:
    """Check that each tensor has the size of its shape, and that they fill the file's data.

    listing: the file that names the positions, which of OpenAI's files is the index. Raises
    CheckpointError.
    """
    end = data_start  # where the tensor before ends
    for tensor in sorted(tensors, key=lambda tensor: (tensor.start, tensor.end)):
        shape = list(tensor.shape)
        # A tensor with an axis of 0 has no bytes, whatever its other axes are.
        if len(shape) > MAX_AXES or max(shape, default=0) > MAX_AXIS:
            raise damaged(
                listing,
                f"tensor {short_repr(tensor.name)} has the shape {short_repr(shape)}; expected at "
                f"most {MAX_AXES} axes of at most {MAX_AXIS}",
            )
        bits = 8 * (tensor.end - tensor.start)
        bits_needed = prod(shape) * DTYPE_BITS[tensor.dtype]
        if tensor.start != end or bits != bits_needed:
            raise damaged(
                listing,
                f"tensor {short_repr(tensor.name)} starts at byte {short_repr(tensor.start)}, "
                f"expected {end}, and has {short_repr(bits)} bits, but {tensor.dtype} "
                f"{short_repr(shape)} needs {short_repr(bits_needed)}",
            )
        end = tensor.end
    if end != file_size:
        fault = "truncated" if end > file_size else "bytes after the last tensor"
        raise damaged(
            listing,
            f"{fault}: the tensors end at byte {end}, the file of their values at {file_size}",
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
