"""Read OpenAI's original GPT-2 files, which are in TensorFlow's format, without TensorFlow. All are
tied.

    hparams.json                     {"n_vocab": 50257, "n_ctx": 1024, "n_embd": 768, "n_head": 12, ...}
    model.ckpt.data-00000-of-00001   the values of every tensor: float32, row-major, little-endian
    model.ckpt.index                 a table: each tensor's name -> the position and checksum of its values

The table has LevelDB's format: data blocks, a metaindex block, an index block, a footer. Read from
its end:

    footer     the last 48 bytes: handles of the metaindex and the index block, zeros, 8 bytes of MAGIC
    handle     offset and size of a block. Both are varints: 7 bits a byte, lowest first; bit 8 means more
    block      `size` bytes of contents; a byte of type, 0 stored, 1 snappy; 4 bytes of CRC over all of these
    contents   entries; the positions of the entries with a whole key ("restarts"); how many: 4 bytes each
    entry      shared, unshared, length (varints); `unshared` bytes of key; `length` bytes of value. The key
               is the first `shared` bytes of the previous key, then the unshared ones.

The index block has an entry for each data block: a key not below any key of the block -> the
block's handle. The reader needs neither these keys nor the restarts, which are for programs that
search for one key. The data blocks hold the table: "" -> BundleHeaderProto, name ->
BundleEntryProto, both protocol buffers:

    message    fields: a varint, number << 3 | wire type; then, by wire type, 0 a varint, 2 a varint and as
               many bytes (text or another message), 5 four bytes. Zeros are left out.

Every flipped bit of either file is detected. What no checksum covers is checked in another way:
blocks fill the index, and tensors the data, without overlap, hole or remainder, and no varint is
longer than necessary.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CheckpointError, ConfigError, short_repr
from ..gpt2.config import Config
from ..gpt2.parameters import parameter_shapes
from . import safetensors
from .crc32c import crc32c, mask
from .files import file_state, read_json, reading
from .huggingface import Checkpoint, check_parameters

HEAD_WIDTH = 64
HPARAMS, INDEX, DATA = "hparams.json", "model.ckpt.index", "model.ckpt.data-00000-of-00001"
MAX_INDEX = 1 << 20  # bytes; the index of the 1558M model has about 20,000
MAX_KEY = 255  # bytes; sharing makes long keys short in the file, but not in memory

FOOTER, TRAILER = 48, 5  # bytes at the end of the table, and of each block
MAGIC = bytes.fromhex("57fb808b247547db")
VARINT, LENGTH, FIXED32 = 0, 2, 5  # wire types that TensorFlow uses here
Fields = dict[tuple[int, int], list[Any]]  # of a message: number and wire type -> the values


@dataclass(frozen=True)
class CheckedTensor(safetensors.Tensor):
    """A tensor of the data file, not read yet, and its checksum from the index."""

    masked_crc: int
    can_be_mapped = False  # so that the checksum is tested

    def read(self) -> np.ndarray:
        """The values, as Tensor.read does. Raises CheckpointError also if the checksum differs."""
        array = super().read()
        found = mask(crc32c(array.reshape(-1).view(np.uint8)))
        if found != self.masked_crc:
            crcs = f"its masked CRC-32C is {found:08x}, the index expects {self.masked_crc:08x}"
            raise CheckpointError(f"{self.file}: tensor {short_repr(self.name)} is damaged: {crcs}")
        return array


def open_tensorflow(directory: Path) -> Checkpoint:
    """Check a directory with the three files above; others in it are ignored. Raises
    CheckpointError."""
    config = read_hparams(directory)
    ours = {tensorflow_name(name): name for name in parameter_shapes(config)}
    tensors: dict[str, safetensors.Tensor] = {}
    for name, tensor in read_index(directory).items():
        # A block's matrix is stored as the kernel of a convolution of width 1: [1, in, out].
        is_kernel = len(tensor.shape) == 3 and tensor.shape[0] == 1
        shape = tensor.shape[1:] if is_kernel else tensor.shape
        tensors[ours.get(name, name)] = replace(tensor, shape=shape)
    check_parameters(tensors, config, directory / INDEX, HPARAMS)
    return Checkpoint(directory, config, tensors)


def read_hparams(directory: Path) -> Config:
    """The Config of hparams.json. Raises CheckpointError that names the file."""
    path = directory / HPARAMS
    hparams = read_json(path)
    names = {name: name for name in ("n_ctx", "n_embd", "n_head", "n_layer")} | {
        "vocab_size": "n_vocab"
    }
    try:
        config = Config(**{ours: hparams[theirs] for ours, theirs in names.items()})
    except KeyError as error:
        raise CheckpointError(f"{path}: {error.args[0]} is missing") from error
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error
    if (
        config.head_width != HEAD_WIDTH
    ):  # the file has no checksum: a damaged n_head would load another model
        found = f"n_embd {config.n_embd} with n_head {config.n_head} makes heads of width {config.head_width}"
        expected = f"expected {HEAD_WIDTH} as in all of OpenAI's models: fetch the file again"
        raise CheckpointError(f"{path}: {found}, {expected}")
    last = config.vocab_size - 1  # <|endoftext|> is the last token of OpenAI's vocabulary
    return replace(config, bos_token_id=last, eos_token_id=last)


def tensorflow_name(name: str) -> str:
    """OpenAI's name of a parameter.

    >>> tensorflow_name("h.0.attn.c_attn.weight"), tensorflow_name("h.11.ln_1.weight")
    ('model/h0/attn/c_attn/w', 'model/h11/ln_1/g')
    >>> tensorflow_name("ln_f.bias"), tensorflow_name("wte.weight")
    ('model/ln_f/b', 'model/wte')
    """
    if name in ("wte.weight", "wpe.weight"):
        return f"model/{name.removesuffix('.weight')}"
    module, _, kind = name.rpartition(".")
    letter = "b" if kind == "bias" else "g" if "ln_" in module else "w"
    return f"model/{module.replace('h.', 'h', 1).replace('.', '/')}/{letter}"


def read_index(directory: Path) -> dict[str, CheckedTensor]:
    """The tensors of the data file by OpenAI's names. Raises CheckpointError if a file breaks a
    rule."""
    index, data = directory / INDEX, directory / DATA
    entries = _read_table(index)
    key, value = next(entries, (None, b""))
    if key != b"":
        raise CheckpointError(f"{index}: the header is missing (the entry with an empty key)")
    # BundleHeaderProto
    _fields(_Bytes(value, f"{index}: header"), {1: ("num_shards", 1), 2: ("endianness", 0)})
    tensors = {}
    for key, value in entries:
        name = key.decode(
            "latin-1"
        )  # accepts any bytes; a name that is not a parameter's is refused later
        tensors[name] = _parse_entry(
            _Bytes(value, f"{index}: tensor {short_repr(name)}"), data, name
        )
    safetensors.check_tensors(tensors.values(), index, data, 0, file_state(data)[0])
    return tensors


def _parse_entry(message: "_Bytes", file: Path, name: str) -> CheckedTensor:
    """BundleEntryProto: dtype = 1, shape = 2, shard_id = 3, offset = 4, size = 5, crc32c = 6,
    slices = 7.

    The shape is a message with a field 2 for each axis: a message {size = 1}.
    """
    fields = _fields(message, {1: ("dtype", 1), 3: ("shard_id", 0)})  # dtype 1 is float32
    if (7, LENGTH) in fields:
        raise message.wrong("stored in slices; expected one piece")
    dims = _fields(message.part(b"".join(fields.get((2, LENGTH), [])))).get((2, LENGTH), [])
    shape = tuple(_number(_fields(message.part(dim)), 1) for dim in dims)
    start, crc = _number(fields, 4), _number(fields, 6, FIXED32)
    return CheckedTensor(file, name, "F32", shape, start, start + _number(fields, 5), crc)


def _read_table(path: Path) -> Iterator[tuple[bytes, bytes]]:
    with reading(path) as file:
        table = file.read(MAX_INDEX + 1)
    if len(table) > MAX_INDEX:
        raise CheckpointError(f"{path}: not the index of a GPT-2: more than {MAX_INDEX} bytes")
    if len(table) < FOOTER or not table.endswith(MAGIC):
        found = f"{len(table)} bytes that end with {table[-8:].hex()!r}"
        expected = f"expected at least {FOOTER} that end with {MAGIC.hex()!r}"
        raise CheckpointError(f"{path}: truncated, or not an index: {found}; {expected}")
    footer = _Bytes(table[-FOOTER : -len(MAGIC)], f"{path}: footer")
    metaindex, index = footer.handle(), footer.handle()
    if any(footer.take(footer.left)):
        raise footer.wrong("expected zeros after the two handles")

    entries = _read_entries(_read_block(path, table, index))
    handles = [
        _Bytes(value, f"{path}: index entry {short_repr(key)}").handle() for key, value in entries
    ]
    end = 0
    for offset, size in [*handles, metaindex, index, (len(table) - FOOTER, 0)]:
        if offset != end:
            raise CheckpointError(
                f"{path}: a block or the footer starts at byte {offset}, expected {end}"
            )
        end = offset + size + TRAILER
    _read_block(
        path, table, metaindex
    )  # lists filters; TensorFlow has none, so only the checksum matters
    for handle in handles:
        yield from _read_entries(_read_block(path, table, handle))


def _read_block(path: Path, table: bytes, handle: tuple[int, int]) -> "_Bytes":
    """The contents of a block. Raises CheckpointError if its checksum differs or it is
    compressed."""
    offset, size = handle
    block = _Bytes(table[offset : offset + size + TRAILER], f"{path}: block at byte {offset}")
    contents, kind, expected = block.take(size), block.take(1), block.fixed32()
    found = mask(crc32c(contents + kind))
    if found != expected:
        raise block.wrong(f"damaged: its masked CRC-32C is {found:08x}, expected {expected:08x}")
    if kind != b"\0":
        raise block.wrong(
            f"of type {kind[0]}{' (snappy)' * (kind[0] == 1)}; expected 0, not compressed"
        )
    return block.part(contents)


def _read_entries(block: "_Bytes") -> Iterator[tuple[bytes, bytes]]:
    contents = block.take(block.left)
    restarts = int.from_bytes(contents[-4:], "little")
    end = len(contents) - 4 - 4 * restarts
    if end < 0:
        raise block.wrong(f"{len(contents)} bytes do not hold {restarts} restarts")
    entries, key = block.part(contents[:end]), b""
    while entries.left:
        start = entries.position
        shared, unshared, length = entries.varint(), entries.varint(), entries.varint()
        if shared > len(key) or shared + unshared > MAX_KEY:
            raise block.wrong(
                f"at {start}: a key of {unshared} bytes after {shared} of the previous key"
            )
        key = key[:shared] + entries.take(unshared)
        yield key, entries.take(length)


def _fields(message: "_Bytes", expected: dict[int, tuple[str, int]] | None = None) -> Fields:
    """The fields of a message. A field of an unexpected wire type is therefore unknown.

    `expected`: number -> name and value of a field that must have this value.
    """
    fields: Fields = {}
    read = {
        VARINT: message.varint,
        LENGTH: lambda: message.take(message.varint()),
        FIXED32: message.fixed32,
    }
    while message.left:
        number, wire_type = divmod(message.varint(), 8)
        if wire_type not in read:
            raise message.wrong(f"field {number} has wire type {wire_type}; expected 0, 2 or 5")
        fields.setdefault((number, wire_type), []).append(read[wire_type]())
    for number, (name, needed) in (expected or {}).items():
        if (found := _number(fields, number)) != needed:
            raise message.wrong(f"{name} is {found}; expected {needed}")
    return fields


def _number(fields: Fields, number: int, wire_type: int = VARINT) -> int:
    """A field's value: 0 if it is left out, the last one if it is repeated."""
    return fields.get((number, wire_type), [0])[-1]


class _Bytes:
    """Reads bytes from first to last. `where` is for errors, which are CheckpointErrors."""

    def __init__(self, data: bytes, where: str) -> None:
        self.data, self.where, self.position = data, where, 0

    @property
    def left(self) -> int:
        return len(self.data) - self.position

    def part(self, data: bytes) -> "_Bytes":
        return _Bytes(data, self.where)

    def wrong(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self.where}: {what}")

    def take(self, size: int) -> bytes:
        if size > self.left:
            raise self.wrong(
                f"truncated: expected {size} bytes at {self.position}, {self.left} are left"
            )
        self.position += size
        return self.data[self.position - size : self.position]

    def fixed32(self) -> int:
        return int.from_bytes(self.take(4), "little")

    def varint(self) -> int:
        value = 0
        for shift in range(0, 64, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80 and (byte > 0 or shift == 0) and value < 1 << 64:
                return value
            if byte < 0x80:
                break
        raise self.wrong(
            f"wrong varint before {self.position}: over 64 bits, or longer than necessary"
        )

    def handle(self) -> tuple[int, int]:
        return self.varint(), self.varint()
