"""Read OpenAI's original GPT-2 files, which are in TensorFlow's format. All are tied.

    hparams.json                     {"n_vocab": 50257, "n_ctx": 1024, "n_embd": 768, ...}
    model.ckpt.index                 each tensor's name, shape, and the place of its values
    model.ckpt.data-00000-of-00001   the values of every tensor: float32, row-major, little-endian

A training of them, such as gpt-2-simple's, writes model-1000.index and model-1000.data-... after
1,000 steps. Its file `checkpoint` names the newest. There may be tensors of the optimizer, too.

The index is a table in LevelDB's format. Read from its end:

    footer     the last 48 bytes: the handles of the metaindex block, which is empty, and of the
               index block, then zeros, then 8 bytes of MAGIC
    handle     offset and size of a block. Both are varints: 7 bits a byte, lowest first; bit 8
               means that more follow
    block      `size` bytes of contents; a byte of type, 0 for contents that are not compressed; 4
               bytes of checksum
    contents   entries; 4 bytes for each entry with a whole key, and how many of these there are
    entry      shared, unshared, length (varints); `unshared` bytes of key; `length` bytes of value.
               The key is the first `shared` bytes of the previous key, then the unshared ones.

An entry of the index block has the handle of a data block as its value. The entries of the data
blocks are "" -> BundleHeaderProto, and name -> BundleEntryProto, which are protocol buffers:

    message    fields: a varint, number << 3 | wire type; then, by wire type, 0 a varint, 2 a varint
               and as many bytes (text or another message), 5 four bytes. Zeros are left out.

The files also have checksums (CRC-32C), which are not tested: a damaged number in the data is not
noticed. Names, shapes and sizes are checked, and that the tensors fill the data without overlap.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, ConfigError, short_repr
from ..gpt2.config import Config
from .json_files import map_file, open_to_read
from .safetensors import check_places, damaged
from .tensors import SavedFile, Tensor

HPARAMS = "hparams.json"
# The fields of hparams.json -> what Config calls them.
SIZES = {
    "n_vocab": "vocab_size",
    "n_ctx": "n_ctx",
    "n_embd": "n_embd",
    "n_head": "n_head",
    "n_layer": "n_layer",
}
INDEX = "model.ckpt.index"
INDEX_END = ".index"
DATA_END = ".data-00000-of-00001"  # in place of INDEX_END
DATA = "model.ckpt.data-00000-of-00001"
LATEST = "checkpoint"  # the file that names the newest of several checkpoints
MAX_LATEST = 1 << 20  # bytes
# TensorFlow's names of what its Adam keeps of a parameter, and of a training.
OF_OPTIMIZER = re.compile(r".*/Adam(_1)?|beta[12]_power|global_step")
HEAD_WIDTH = 64  # n_embd / n_head, in all of OpenAI's models
MAX_INDEX = 1 << 20  # bytes; the index of the 1558M model has about 20,000
MAX_KEY = 255  # bytes; sharing makes long keys short in the file, but not in memory
FOOTER = 48  # bytes at the end of the index
MAGIC = bytes.fromhex("57fb808b247547db")
# The numbers of fields
ENDIANNESS = 2  # of BundleHeaderProto
DTYPE, SHAPE, SHARD_ID, OFFSET, SIZE = 1, 2, 3, 4, 5  # of BundleEntryProto; 6 is a checksum
AXIS = 2  # of the shape, which has a message for each axis
AXIS_SIZE = 1  # of an axis
DT_FLOAT = 1  # the value of DTYPE for float32
DTYPES_OF_OPTIMIZER = {DT_FLOAT: "F32", 3: "I32", 9: "I64"}

Message = dict[int, list[int | bytes]]  # the number of a field -> its values


def config_of(hparams: dict[str, Any], path: Path) -> Config:
    """The Config that hparams.json says. Raises a CheckpointError that names the file, `path`."""
    for name in hparams:
        if name not in SIZES:
            raise CheckpointError(
                f"{path}: {short_repr(name)} is not a field of OpenAI's models, and may be another "
                f"computation; expected {', '.join(SIZES)}"
            )
    sizes: dict[str, Any] = {field: hparams.get(name) for name, field in SIZES.items()}
    try:
        config = Config(**sizes)  # which refuses None
    except ConfigError as error:
        raise CheckpointError(f"{path}: {error}") from error

    # No shape depends on n_head: a damaged one would load another model.
    if config.head_width != HEAD_WIDTH:
        raise CheckpointError(
            f"{path}: n_embd {config.n_embd} with n_head {config.n_head} makes heads of width "
            f"{config.head_width}, expected {HEAD_WIDTH} as in all of OpenAI's models: fetch the "
            "file again"
        )
    last_id = config.vocab_size - 1  # <|endoftext|> is the last token of OpenAI's vocabulary
    return replace(config, bos_token_id=last_id, eos_token_id=last_id)


def index_file(directory: Path) -> Path:
    """The index of the checkpoint in a directory.

    It is the one that the file `checkpoint` names, else model.ckpt.index, else the only one. Raises
    CheckpointError if there are several others.
    """
    names = sorted(path.name for path in directory.glob(f"*{INDEX_END}"))
    if (directory / LATEST).is_file():
        with open_to_read(directory / LATEST, limit=MAX_LATEST) as file:
            newest = re.search(rb'^model_checkpoint_path: "(.*)"', file.read(), re.MULTILINE)
        if newest is not None:
            # It may be a path on the machine where it was written.
            prefix = re.split(r"[/\\]", newest[1].decode("utf-8", "replace"))[-1]
            if f"{prefix}{INDEX_END}" in names:
                return directory / f"{prefix}{INDEX_END}"
    if INDEX in names or not names:
        return directory / INDEX
    if len(names) > 1:
        raise CheckpointError(
            f"{directory} has {len(names)} checkpoints, {', '.join(names[:3])}: give a directory "
            f"with one, or with the file {LATEST!r} that names one of them"
        )
    return directory / names[0]


def read_saved(index: Path) -> SavedFile:
    """The tensors by OpenAI's names, from the index and the data file beside it.

    Raises CheckpointError.
    """
    data = index.with_name(index.name.removesuffix(INDEX_END) + DATA_END)
    with open_to_read(index) as file:
        table = file.read(MAX_INDEX + 1)  # the last byte is there if the file is too long
    if len(table) > MAX_INDEX or len(table) < FOOTER or not table.endswith(MAGIC):
        raise CheckpointError(
            f"{index}: not the index of a GPT-2, or truncated: expected {FOOTER} to {MAX_INDEX} "
            f"bytes, of which the last are {MAGIC.hex()}"
        )
    memory = map_file(data)
    tensors: dict[str, Tensor] = {}
    try:
        for name, message in _messages_by_name(table).items():
            if name == "":  # the BundleHeaderProto, in which 0 means little-endian
                _check("header", "endianness", _number(message, ENDIANNESS), expected=0)
                continue
            dtype, shape, start, size = _parse_tensor(name, message)
            tensors[name] = Tensor(data, name, dtype, shape, start, start + size, memory)
    except ValueError as error:
        raise damaged(index, f"{error}") from error
    check_places(tensors.values(), index, data_start=0, file_size=len(memory))
    of_optimizer = [name for name in tensors if OF_OPTIMIZER.fullmatch(name)]
    others = {name: tensors[name] for name in tensors if name not in of_optimizer}
    return SavedFile(others, of_optimizer=of_optimizer)


# The functions below raise ValueError for an index that breaks a rule.


def _messages_by_name(table: bytes) -> dict[str, Message]:
    """The message of each entry of all data blocks, by its name."""
    footer = Bytes(table[-FOOTER:])
    footer.handle()  # of the metaindex block, which is empty
    messages: dict[str, Message] = {}
    for _, block_handle in _read_block(table, footer.handle()):
        for key, value in _read_block(table, Bytes(block_handle).handle()):
            name = key.decode("latin-1")  # which accepts any bytes
            if name in messages:  # blocks that are listed many times would fill the memory
                raise ValueError(f"{short_repr(name)} is given twice")
            messages[name] = Bytes(value).message()
    return messages


def _parse_tensor(name: str, message: Message) -> tuple[str, tuple[int, ...], int, int]:
    """(dtype, shape, offset, size in bytes) of a BundleEntryProto."""
    dtype = "F32"
    dtype_number = _number(message, DTYPE)
    if OF_OPTIMIZER.fullmatch(name) and dtype_number in DTYPES_OF_OPTIMIZER:
        dtype = DTYPES_OF_OPTIMIZER[dtype_number]
    else:
        _check(short_repr(name), "dtype", dtype_number, expected=DT_FLOAT)
    _check(short_repr(name), "shard_id", _number(message, SHARD_ID), expected=0)
    shape = []
    for shape_message in _messages_in(message, SHAPE):
        for axis in _messages_in(shape_message, AXIS):
            shape.append(_number(axis, AXIS_SIZE))
    return dtype, tuple(shape), _number(message, OFFSET), _number(message, SIZE)


def _check(what: str, field: str, value: int, expected: int) -> None:
    if value != expected:
        raise ValueError(f"{what}: {field} is {value}; expected {expected}")


# In a protocol buffer, a field of another wire type than that of its number is ignored.


def _number(message: Message, field: int) -> int:
    """A number of a message: 0 if it is left out, the last one if it is repeated."""
    value = message.get(field, [0])[-1]
    return value if isinstance(value, int) else 0


def _messages_in(message: Message, field: int) -> list[Message]:
    """The messages that are the values of a field of a message."""
    values = message.get(field, [])
    return [Bytes(value).message() for value in values if isinstance(value, bytes)]


def _read_block(table: bytes, handle: tuple[int, int]) -> Iterator[tuple[bytes, bytes]]:
    """(key, value) of each entry of a block."""
    offset, size = handle
    contents = Bytes(table[offset:]).take(size)
    kind = table[offset + size : offset + size + 1]
    if kind != b"\0":
        raise ValueError(f"a block of type {kind.hex()}; expected 00, not compressed")
    # The contents end with the places of whole keys, 4 bytes each, and how many there are.
    n_places = int.from_bytes(contents[-4:], "little")
    end = len(contents) - 4 * n_places - 4
    # A damaged count may make `end` negative. Then there are no entries, and a later check finds
    # that no tensors fill the data.
    entries = Bytes(contents[: max(end, 0)])
    key = b""
    while entries.remaining():
        shared = entries.varint()
        unshared = entries.varint()
        length = entries.varint()
        if shared > len(key) or shared + unshared > MAX_KEY:
            raise ValueError(f"a key of {unshared} bytes after {shared} of the previous key")
        key = key[:shared] + entries.take(unshared)
        yield key, entries.take(length)


class Bytes:
    """Bytes that are read from first to last."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def remaining(self) -> int:
        """How many bytes are not read yet."""
        return len(self.data) - self.position

    def take(self, size: int) -> bytes:
        """The next `size` bytes."""
        if size > self.remaining():
            raise ValueError(f"truncated: expected {size} bytes, {self.remaining()} are left")
        start = self.position
        self.position += size
        return self.data[start : self.position]

    def varint(self) -> int:
        """A number of at most 64 bits."""
        value = 0
        for shift in range(0, 64, 7):
            byte = self.take(1)[0]
            value |= (byte & 0x7F) << shift
            if byte < 0x80 and value < 1 << 64:
                return value
        raise ValueError("a number of more than 64 bits")

    def handle(self) -> tuple[int, int]:
        """The offset and the size of a block."""
        offset = self.varint()
        size = self.varint()
        return offset, size

    def message(self) -> Message:
        """The fields of a message, which fills the remaining bytes."""
        fields: Message = {}
        while self.remaining():
            number, wire_type = divmod(self.varint(), 8)
            value: int | bytes
            if wire_type == 0:
                value = self.varint()
            elif wire_type == 2:
                value = self.take(self.varint())
            elif wire_type == 5:
                value = self.take(4)
            else:
                raise ValueError(f"wire type {wire_type}; expected 0, 2 or 5")
            fields.setdefault(number, []).append(value)
        return fields
