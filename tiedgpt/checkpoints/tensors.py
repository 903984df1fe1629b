"""Tensors of a file whose values are not read yet: a name, a type, a shape, and a place.

A `Tensor` is a part of a mapped file. `Joined` is several of them side by side. Both can be asked
for their values.
"""

import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError, short_repr

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
VALUES_PER_PIECE = 1 << 17  # of a tensor that is converted: half a megabyte of float32


@dataclass(frozen=True)
class Tensor:
    """One tensor of a mapped file, in any format, whose values are not read yet."""

    file: Path
    name: str
    dtype: str
    shape: tuple[int, ...]
    start: int  # the position of its first byte in the file
    end: int  # the position of the byte after its last
    # The whole file. Without bytes if the file is on a hub: its values cannot be read then.
    memory: mmap.mmap | bytearray | bytes = field(repr=False)
    strides: tuple[int, ...] | None = None  # bytes; None for values in row order

    @property
    def T(self) -> "Tensor":  # [a, b] -> [b, a]
        """The transpose of a matrix."""
        return replace(self, shape=self.shape[::-1], strides=self._strides()[::-1])

    def __getitem__(self, index: int) -> "Tensor":  # [n, ...] -> [...]
        """The part of a tensor at a place of its first axis."""
        step, *strides = self._strides()
        shape = self.shape[1:]
        start = self.start + index * step
        end = start + (self.end - self.start) // self.shape[0]
        if self.strides is None:
            return replace(self, shape=shape, start=start, end=end)
        return replace(self, shape=shape, start=start, end=end, strides=tuple(strides))

    def _strides(self) -> tuple[int, ...]:
        """The bytes from one value to the next, along each axis."""
        if self.strides is not None:
            return self.strides
        step = DTYPE_BITS[self.dtype] // 8
        strides = []
        for size in reversed(self.shape):
            strides.append(step)
            step *= size
        return tuple(reversed(strides))

    def values(self, copy: bool = False) -> np.ndarray:
        """The values in float32: a view of the file where that is possible, and not `copy`.

        Numbers beyond the range of float32 become infinite. Raises CheckpointError for a dtype that
        is not in FLOATS.
        """
        if self.dtype == "F32" and not copy:
            stored = np.ndarray(self.shape, "<f4", self.memory, self.start, strides=self.strides)
            if stored.flags.carray and stored.dtype.isnative:  # aligned and in row order
                return stored
        array = np.empty(self.shape, np.float32)
        flat = array.reshape(-1)
        with np.errstate(over="ignore"):
            for place, piece in self.pieces():
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

    def is_in_row_order(self) -> bool:
        """Whether the values follow each other in the file as in an array of this shape."""
        return self.strides is None or bool(self._stored().flags.c_contiguous)

    def is_at_place_of(self, other: "Tensor") -> bool:
        """Whether another tensor of this shape is the same bytes of the same file."""
        if self.memory is not other.memory or self.start != other.start:
            return False
        return (self.dtype, self.strides) == (other.dtype, other.strides)

    def equal_rows(self, other: "Tensor", rounded: bool = False) -> int:
        """How many rows of two matrices of one shape [V, D] have the same values.

        rounded: count values, too, that are the same in bfloat16 or in float16.
        Raises CheckpointError for a dtype that is not in FLOATS.
        """
        V, D = self.shape
        if self.is_at_place_of(other):
            return V
        is_equal = np.ones(V, dtype=bool)
        for (place, piece), (_, other_piece) in zip(self.pieces(), other.pieces(), strict=True):
            is_different = piece != other_piece
            if rounded:
                with np.errstate(over="ignore"):  # a number beyond float16's range becomes infinite
                    is_different &= piece.astype(np.float16) != other_piece.astype(np.float16)
                is_different &= to_bfloat16(piece) != to_bfloat16(other_piece)
            different = np.flatnonzero(is_different)
            is_equal[(place.start + different) // D] = False
        return int(is_equal.sum())

    def pieces(self) -> Iterator[tuple[slice, np.ndarray]]:
        """The values piece by piece: which of the flat values they are, and the values.

        Raises CheckpointError for a dtype that is not in FLOATS.
        """
        if self.dtype not in FLOATS:
            raise CheckpointError(
                f"{self.file}: tensor {short_repr(self.name)} is {self.dtype}; expected one of "
                f"{', '.join(FLOATS)}"
            )
        flat = self._stored().reshape(-1)  # a copy, if the values are not in row order
        for place, piece in in_pieces(flat):
            if self.dtype == "BF16":  # its 16 bits are the upper half of a float32
                piece = (piece.astype(np.uint32) << 16).view(np.float32)
            yield place, piece


def to_bfloat16(values: np.ndarray) -> np.ndarray:
    """The values rounded to bfloat16, to even ones at a tie, in float32. NaN stays NaN."""
    with np.errstate(over="ignore"):
        bits = values.astype(np.float32).view(np.uint32)
    # Drop the lower 16 bits. Before, add almost half of bit 16, and 1 if bit 16 is set: then a tie
    # becomes even.
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return np.where(
        np.isnan(values), np.float32(np.nan), rounded.astype(np.uint32).view(np.float32)
    )


@dataclass(frozen=True)
class Joined:
    """Tensors side by side along an axis, such as q, k and v that are one matrix in our model."""

    parts: Sequence["Tensor | Joined"]
    axis: int

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all parts together."""
        shape = list(self.parts[0].shape)
        shape[self.axis] = sum(part.shape[self.axis] for part in self.parts)
        return tuple(shape)

    def values(self, copy: bool = False) -> np.ndarray:
        """The values in float32, in a new array. Raises CheckpointError for a dtype that is not in
        FLOATS."""
        return np.concatenate([part.values() for part in self.parts], axis=self.axis)

    def pieces(self) -> Iterator[tuple[slice, np.ndarray]]:
        """The values piece by piece: which of the flat values they are, and the values."""
        yield from in_pieces(self.values().reshape(-1))


AnyTensor = Tensor | Joined


@dataclass(frozen=True)
class SavedFile:
    """The tensors of a file, by its names, and what else is in it."""

    tensors: dict[str, Tensor]
    model_args: dict[str, Any] | None = None  # in nanoGPT's ckpt.pt, the sizes of the model
    of_optimizer: Sequence[str] = ()  # the names of tensors that are not among these
    is_nested: bool = False  # whether the state dict is a value of another dict, as "state_dict"
    metadata: Sequence[dict[str, str] | None] = ()  # of each safetensors file; None: it has none


def join(parts: Sequence[AnyTensor], axis: int) -> AnyTensor:
    """Tensors side by side along an axis: a Tensor if they are one stretch of the file."""
    joined = Joined(parts, axis)
    tensors = [part for part in parts if isinstance(part, Tensor)]
    if axis != 0 or len(tensors) < len(parts):
        return joined
    # Does each begin in the file where the one before it ends?
    for before, tensor in pairwise(tensors):
        is_of_one_type = before.memory is tensor.memory and before.dtype == tensor.dtype
        in_row_order = before.is_in_row_order() and tensor.is_in_row_order()
        if not is_of_one_type or not in_row_order or before.end != tensor.start:
            return joined
    return replace(tensors[0], shape=joined.shape, end=tensors[-1].end)


def in_pieces(flat: np.ndarray) -> Iterator[tuple[slice, np.ndarray]]:  # [n]
    """Parts of an array that are small enough to be copied: their places, and the parts."""
    for first in range(0, flat.size, VALUES_PER_PIECE):
        place = slice(first, first + VALUES_PER_PIECE)
        yield place, flat[place]


def have_same_values(one: AnyTensor, other: AnyTensor) -> bool:
    """Whether two tensors have the same shape and values.

    nan is equal to nothing, but two tensors of one place in a file are the same. Raises
    CheckpointError for a dtype that is not in FLOATS.
    """
    if one.shape != other.shape:
        return False
    if isinstance(one, Tensor) and isinstance(other, Tensor) and one.is_at_place_of(other):
        return True
    pairs = zip(one.pieces(), other.pieces(), strict=True)
    return all(np.array_equal(piece, other_piece) for (_, piece), (_, other_piece) in pairs)


def zeros(file: Path, name: str, shape: tuple[int, ...]) -> Tensor:
    """A tensor that the file lacks, because all its values are 0."""
    memory = bytearray(4 * int(np.prod(shape)))
    return Tensor(file, name, "F32", shape, start=0, end=len(memory), memory=memory)
