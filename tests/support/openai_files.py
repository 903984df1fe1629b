"""Checkpoints as OpenAI released them: a writer of TensorFlow's format.

It is written from the specification and independent of the reader.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from tiedgpt import GPT2, Config
from tiedgpt.checkpoints.crc32c import crc32c, mask
from tiedgpt.checkpoints.tensor_names import to_tensorflow
from tiedgpt.checkpoints.tensorflow import DATA, HPARAMS, INDEX
from tiedgpt.checkpoints.tensorflow_index import MAGIC

Entry = tuple[bytes, bytes]  # a key and a value
Edit = Callable[[str, bytes], bytes]  # of a part of a table, "index block" for one


def sealed(stored: bytes) -> bytes:
    """The stored bytes and their checksum."""
    return stored + mask(crc32c(stored)).to_bytes(4, "little")


def varint(value: int) -> bytes:
    """A number, 7 bits a byte, lowest first. The highest bit says that more bytes follow."""
    if value < 128:
        return bytes([value])
    return bytes([value % 128 + 128]) + varint(value // 128)


# A message is a sequence of fields. A field begins with 8 * its number + its wire type.


def number_field(number: int, value: int) -> bytes:
    """A field of wire type 0: a number."""
    return varint(number * 8) + varint(value)


def number_field_or_nothing(number: int, value: int) -> bytes:
    """Such a field, which is left out if its value is 0."""
    if value == 0:
        return b""
    return number_field(number, value)


def text_field(number: int, value: bytes) -> bytes:
    """A field of wire type 2: a text, or another message."""
    return varint(number * 8 + 2) + varint(len(value)) + value


def fixed32_field(number: int, value: bytes) -> bytes:
    """A field of wire type 5: four bytes."""
    return varint(number * 8 + 5) + value


# BundleHeaderProto: num_shards is 1, and the version's producer is 1.
HEADER = number_field(1, 1) + text_field(3, number_field(1, 1))


def entry_proto(
    shape: tuple[int, ...] = (1,),
    offset: int = 0,
    size: int | None = None,
    crc: bytes = bytes(4),
    dtype: int = 1,
    shard: int = 0,
) -> bytes:
    """A BundleEntryProto, which describes a tensor. Its fields have the numbers 1 to 6.

    The default dtype 1 is float32, and the default size is that of such a tensor of this shape.
    Fields that are 0 are left out.
    """
    if size is None:
        size = 4 * int(np.prod(shape, dtype=object))
    axes = b""
    for length in shape:
        axes += text_field(2, number_field_or_nothing(1, length))
    message = number_field_or_nothing(1, dtype)
    message += text_field(2, axes)
    message += number_field_or_nothing(3, shard)
    message += number_field_or_nothing(4, offset)
    message += number_field_or_nothing(5, size)
    return message + fixed32_field(6, crc)


def block(entries: Iterable[Entry], interval: int = 3) -> bytes:
    """The contents of a block: its entries, then the positions of whole keys, and their number.

    Each `interval`-th key is whole. Of a key between them, only the end is written: the beginning
    that it shares with the key before it is replaced by the number of shared bytes.
    """
    contents = b""
    previous_key = b""
    whole_key_positions = []
    for number, (key, value) in enumerate(entries):
        is_whole = number % interval == 0
        if is_whole:
            whole_key_positions.append(len(contents))
            shared = 0
        else:
            shared = shared_length(key, previous_key)
        key_end = key[shared:]
        contents += varint(shared) + varint(len(key_end)) + varint(len(value))
        contents += key_end + value
        previous_key = key
    if not whole_key_positions:  # an empty block has one, too
        whole_key_positions = [0]
    for position in whole_key_positions:
        contents += position.to_bytes(4, "little")
    return contents + len(whole_key_positions).to_bytes(4, "little")


def shared_length(one: bytes, other: bytes) -> int:
    """The number of bytes with which both begin."""
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return length


def no_edit(part: str, contents: bytes) -> bytes:
    return contents


def handle(offset: int, contents: bytes) -> bytes:
    """Where a block is in its table, and how long it is."""
    return varint(offset) + varint(len(contents))


def table(blocks: dict[bytes, bytes], kind: int = 0, edit: Edit = no_edit) -> bytes:
    """A whole table: data blocks, then the metaindex block, the index block and the footer.

    blocks: the contents of each data block, by the last key in it.
    kind: the type of all blocks, a byte after the contents; 0 for not compressed.
    edit: called with the name and contents of the metaindex and index block, which it may change.
    """
    kind_byte = bytes([kind])
    stored = b""
    index = []  # the last key of each data block, and where the block is
    for last_key, contents in blocks.items():
        index.append((last_key, handle(len(stored), contents)))
        stored += sealed(contents + kind_byte)

    metaindex_block = edit("metaindex block", block([]))
    footer = handle(len(stored), metaindex_block)
    stored += sealed(metaindex_block + kind_byte)

    index_block = edit("index block", block(index, interval=1))
    footer += handle(len(stored), index_block)
    stored += sealed(index_block + kind_byte)
    padded_footer = footer.ljust(40, b"\0")
    return stored + padded_footer + MAGIC


def in_blocks(entries: list[Entry]) -> dict[bytes, bytes]:
    """Data blocks of four entries, each by its last key."""
    blocks = {}
    for start in range(0, len(entries), 4):
        group = entries[start : start + 4]
        last_key, _ = group[-1]
        blocks[last_key] = block(group)
    return blocks


def bundle(model: GPT2) -> tuple[list[Entry], bytes]:
    """A model's entries in the index, and its data, in the order of OpenAI's names."""
    arrays = {}
    for name, array in model.parameters.items():
        is_weight_of_a_layer = name.startswith("h.") and array.ndim == 2
        if is_weight_of_a_layer:
            array = array[np.newaxis]  # OpenAI's is a convolution of width 1
        arrays[to_tensorflow(name).encode()] = array

    entries = [(b"", HEADER)]  # the key of the header is empty
    data = b""
    for key, array in sorted(arrays.items()):
        values = np.ascontiguousarray(array, "<f4").tobytes()
        crc = sealed(values)[-4:]  # the checksum comes after the values
        entries.append((key, entry_proto(array.shape, offset=len(data), crc=crc)))
        data += values
    return entries, data


def write_openai_files(directory: Path, index: bytes, data: bytes, config: Config) -> Path:
    """A directory with these files, and the hparams.json of the configuration."""
    directory.mkdir(exist_ok=True)
    hparams = {
        "n_vocab": config.vocab_size,
        "n_ctx": config.n_ctx,
        "n_embd": config.n_embd,
        "n_head": config.n_head,
        "n_layer": config.n_layer,
    }
    (directory / HPARAMS).write_text(json.dumps(hparams))
    (directory / INDEX).write_bytes(index)
    (directory / DATA).write_bytes(data)
    return directory


def write_openai_model(directory: Path, model: GPT2) -> Path:
    """A directory with the model's files."""
    entries, data = bundle(model)
    return write_openai_files(directory, table(in_blocks(entries)), data, model.config)
