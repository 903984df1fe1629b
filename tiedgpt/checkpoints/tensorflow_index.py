"""Read model.ckpt.index: the table of the tensors in a TensorFlow checkpoint, without TensorFlow.

The table has LevelDB's format: data blocks, a metaindex block, an index block, a footer. Read from
its end:

    footer     the last 48 bytes: handles of the metaindex and the index block, zeros, and 8 bytes
               of MAGIC
    handle     offset and size of a block. Both are varints: 7 bits a byte, lowest first; bit 8
               means that more follow
    block      `size` bytes of contents; a byte of type, 0 stored, 1 snappy; 4 bytes of CRC over all
               of these
    contents   entries; the positions of the entries with a whole key ("restarts"); how many of
               these there are: 4 bytes each
    entry      shared, unshared, length (varints); `unshared` bytes of key; `length` bytes of value.
               The key is the first `shared` bytes of the previous key, then the unshared ones.

The index block has an entry for each data block: a key not below any key of the block -> the
block's handle. The reader needs neither these keys nor the restarts, which are for programs that
search for one key. The data blocks hold the table: "" -> BundleHeaderProto, name ->
BundleEntryProto, both protocol buffers:

    message    fields: a varint, number << 3 | wire type; then, by wire type, 0 a varint, 2 a varint
               and as many bytes (text or another message), 5 four bytes. Zeros are left out.

What no checksum covers is checked in another way: blocks fill the index, and tensors the data,
without overlap, hole or remainder, and no varint is longer than necessary.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..errors import CheckpointError, short_repr
from .crc32c import crc32c, mask
from .reading import file_state, open_to_read
from .safetensors import Tensor, check_places

MAX_INDEX = 1 << 20  # bytes; the index of the 1558M model has about 20,000
MAX_KEY = 255  # bytes; sharing makes long keys short in the file, but not in memory
FOOTER = 48  # bytes at the end of the table
TRAILER = 5  # bytes after the contents of each block: its type and its checksum
MAGIC = bytes.fromhex("57fb808b247547db")
DT_FLOAT = 1  # the dtype of BundleEntryProto that is float32


@dataclass(frozen=True)
class CheckedTensor(Tensor):
    """A tensor of the data file, not read yet, and its checksum from the index."""

    masked_crc: int
    can_be_mapped = False  # so that the checksum is tested

    def read(self) -> np.ndarray:
        """The values, as Tensor.read does. Raises CheckpointError also if the checksum differs."""
        array = super().read()
        all_bytes = array.reshape(-1).view(np.uint8)
        masked_crc = mask(crc32c(all_bytes))  # the index holds the CRC in this form
        if masked_crc != self.masked_crc:
            raise CheckpointError(
                f"{self.file}: tensor {short_repr(self.name)} is damaged: its masked CRC-32C is "
                f"{masked_crc:08x}, the index expects {self.masked_crc:08x}"
            )
        return array


class Handle(NamedTuple):
    """Where a block is in the table."""

    offset: int
    size: int


class Entry(NamedTuple):
    """A row of a block."""

    key: bytes
    value: bytes


def read_index(index: Path, data: Path) -> dict[str, CheckedTensor]:
    """The tensors of the data file by OpenAI's names.

    Raises CheckpointError if a file breaks a rule.
    """
    entries = _read_table(index)
    header = next(entries, None)
    if header is None or header.key != b"":
        raise CheckpointError(f"{index}: the header is missing (the entry with an empty key)")
    _check_header(ByteReader(header.value, f"{index}: header"))

    tensors = {}
    for entry in entries:
        # latin-1 accepts any bytes; a name that is not a parameter's is refused later.
        name = entry.key.decode("latin-1")
        message = ByteReader(entry.value, f"{index}: tensor {short_repr(name)}")
        tensors[name] = _parse_tensor(message, data, name)
    check_places(
        tensors.values(), listing=index, file=data, data_start=0, file_size=file_state(data).size
    )
    return tensors


def _check_header(message: "ByteReader") -> None:
    """Check a BundleHeaderProto: field 1 is num_shards, field 2 endianness (0 is little)."""
    fields = message.fields()
    num_shards = fields.number(1)
    if num_shards != 1:
        raise message.error(f"num_shards is {num_shards}; expected 1")
    endianness = fields.number(2)
    if endianness != 0:
        raise message.error(f"endianness is {endianness}; expected 0")


def _parse_tensor(message: "ByteReader", file: Path, name: str) -> CheckedTensor:
    """The tensor of a BundleEntryProto, whose fields have these numbers:

    dtype = 1, shape = 2, shard_id = 3, offset = 4, size = 5, crc32c = 6, slices = 7. The shape is a
    message that has a field 2 for each axis, again a message, whose field 1 is the axis's size.
    """
    fields = message.fields()
    dtype = fields.number(1)
    if dtype != DT_FLOAT:
        raise message.error(f"dtype is {dtype}; expected {DT_FLOAT}")
    shard_id = fields.number(3)
    if shard_id != 0:
        raise message.error(f"shard_id is {shard_id}; expected 0")
    if 7 in fields.texts:
        raise message.error("stored in slices; expected one piece")

    # Protocol buffers may give a message in several pieces, which are joined.
    shape_message = b"".join(fields.texts.get(2, []))
    axes = message.part(shape_message).fields().texts.get(2, [])
    shape = []
    for axis in axes:
        shape.append(message.part(axis).fields().number(1))
    start = fields.number(4)
    return CheckedTensor(
        file=file,
        name=name,
        dtype="F32",
        shape=tuple(shape),
        start=start,
        end=start + fields.number(5),
        masked_crc=fields.fixed(6),
    )


def _read_table(path: Path) -> Iterator[Entry]:
    """The entries of all data blocks, in their order. Raises CheckpointError."""
    with open_to_read(path) as file:
        table = file.read(MAX_INDEX + 1)
    if len(table) > MAX_INDEX:
        raise CheckpointError(f"{path}: not the index of a GPT-2: more than {MAX_INDEX} bytes")
    if len(table) < FOOTER or not table.endswith(MAGIC):
        raise CheckpointError(
            f"{path}: truncated, or not an index: {len(table)} bytes that end with "
            f"{table[-8:].hex()!r}; expected at least {FOOTER} that end with {MAGIC.hex()!r}"
        )
    footer = ByteReader(table[-FOOTER : -len(MAGIC)], f"{path}: footer")
    metaindex = footer.handle()
    index = footer.handle()
    if any(footer.take(footer.remaining)):
        raise footer.error("expected zeros after the two handles")

    handles = []
    for entry in _read_entries(_read_block(path, table, index)):
        where = f"{path}: index entry {short_repr(entry.key)}"
        handles.append(ByteReader(entry.value, where).handle())
    _check_blocks(path, [*handles, metaindex, index], footer_start=len(table) - FOOTER)
    # The metaindex block lists filters. TensorFlow has none, so only its checksum matters.
    _read_block(path, table, metaindex)
    for handle in handles:
        yield from _read_entries(_read_block(path, table, handle))


def _check_blocks(path: Path, handles: list[Handle], footer_start: int) -> None:
    """Check that the blocks lie one after the other, from the first byte to the footer."""
    end = 0  # where the block before ends
    footer = Handle(footer_start, 0)  # only its start is checked, so any size will do
    for start, size in [*handles, footer]:
        if start != end:
            raise CheckpointError(
                f"{path}: a block or the footer starts at byte {start}, expected {end}"
            )
        end = start + size + TRAILER


def _read_block(path: Path, table: bytes, handle: Handle) -> "ByteReader":
    """The contents of a block.

    Raises CheckpointError if its checksum differs or it is compressed.
    """
    stored = table[handle.offset : handle.offset + handle.size + TRAILER]
    block = ByteReader(stored, f"{path}: block at byte {handle.offset}")
    contents = block.take(handle.size)
    kind = block.take(1)
    expected_crc = block.fixed32()
    crc = mask(crc32c(contents + kind))
    if crc != expected_crc:
        raise block.error(f"damaged: its masked CRC-32C is {crc:08x}, expected {expected_crc:08x}")
    if kind == b"\1":
        raise block.error("of type 1 (snappy); expected 0, not compressed")
    if kind != b"\0":
        raise block.error(f"of type {kind[0]}; expected 0, not compressed")
    return block.part(contents)


def _read_entries(block: "ByteReader") -> Iterator[Entry]:
    """The entries of a block's contents, in their order. Raises CheckpointError."""
    contents = block.take(block.remaining)
    # The contents end with the restarts, which are not needed here, and their number, 4 bytes each.
    n_restarts = int.from_bytes(contents[-4:], "little")
    end = len(contents) - 4 * n_restarts - 4
    if end < 0:
        raise block.error(f"{len(contents)} bytes do not hold {n_restarts} restarts")
    entries = block.part(contents[:end])
    key = b""
    while entries.remaining:
        start = entries.position
        shared = entries.varint()
        unshared = entries.varint()
        length = entries.varint()
        if shared > len(key) or shared + unshared > MAX_KEY:
            raise block.error(
                f"at {start}: a key of {unshared} bytes after {shared} of the previous key"
            )
        key = key[:shared] + entries.take(unshared)
        yield Entry(key, entries.take(length))


@dataclass
class Fields:
    """The fields of a message: number -> values, in the three wire types that are used here."""

    numbers: dict[int, list[int]] = field(default_factory=dict)
    texts: dict[int, list[bytes]] = field(default_factory=dict)
    fixed32s: dict[int, list[int]] = field(default_factory=dict)

    def number(self, field_number: int) -> int:
        """The value of a number: 0 if it is left out, the last one if it is repeated."""
        return self.numbers.get(field_number, [0])[-1]

    def fixed(self, field_number: int) -> int:
        """The value of four bytes, as `number`."""
        return self.fixed32s.get(field_number, [0])[-1]


class ByteReader:
    """It reads bytes from first to last. `where` is for its errors, which are CheckpointErrors."""

    def __init__(self, data: bytes, where: str) -> None:
        self.data = data
        self.where = where
        self.position = 0

    @property
    def remaining(self) -> int:
        """The number of bytes that are not read yet."""
        return len(self.data) - self.position

    def part(self, data: bytes) -> "ByteReader":
        """A reader of bytes that were taken from these, with the same `where`."""
        return ByteReader(data, self.where)

    def error(self, fault: str) -> CheckpointError:
        """An error that names where these bytes are from."""
        return CheckpointError(f"{self.where}: {fault}")

    def take(self, size: int) -> bytes:
        """The next `size` bytes. Raises CheckpointError if there are fewer."""
        if size > self.remaining:
            raise self.error(
                f"truncated: expected {size} bytes at {self.position}, {self.remaining} are left"
            )
        start = self.position
        self.position += size
        return self.data[start : self.position]

    def fixed32(self) -> int:
        """A number of four bytes."""
        return int.from_bytes(self.take(4), "little")

    def varint(self) -> int:
        """A number of at most 64 bits, in as few bytes as possible."""
        value = 0
        for shift in range(0, 64, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            is_last = byte < 0x80
            if is_last:
                is_too_long = byte == 0 and shift > 0  # this byte adds nothing to those before
                if is_too_long or value >= 1 << 64:
                    break
                return value
        raise self.error(
            f"wrong varint before {self.position}: over 64 bits, or longer than necessary"
        )

    def handle(self) -> Handle:
        """Two varints: where a block is."""
        offset = self.varint()
        size = self.varint()
        return Handle(offset, size)

    def fields(self) -> Fields:
        """The fields of a message, which fills the remaining bytes, by wire type.

        A field of another wire type than is read later counts as left out.
        """
        fields = Fields()
        while self.remaining:
            number, wire_type = divmod(self.varint(), 8)  # the varint is number << 3 | wire_type
            if wire_type == 0:
                fields.numbers.setdefault(number, []).append(self.varint())
            elif wire_type == 2:
                size = self.varint()
                fields.texts.setdefault(number, []).append(self.take(size))
            elif wire_type == 5:
                fields.fixed32s.setdefault(number, []).append(self.fixed32())
            else:
                raise self.error(f"field {number} has wire type {wire_type}; expected 0, 2 or 5")
        return fields
