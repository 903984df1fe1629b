"""A writer of checkpoints as OpenAI released them: TensorFlow's format, and hparams.json.

It is written from the specification, independently of tiedgpt's reader. A checkpoint has a file of
data and an index. The index is a table of entries, a key and a value each: the name of a tensor and
its description. The entries are in blocks. An index block says where each block is.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np

from tiedgpt import GPT2, Config
from tiedgpt.checkpoints.tensorflow import DATA, HPARAMS, INDEX, MAGIC

Entry = tuple[bytes, bytes]  # a key and a value
Edit = Callable[[str, bytes], bytes]  # (name of a part of a table, its contents) -> new contents


def sealed(stored: bytes) -> bytes:
    """The stored bytes, and 4 bytes in the place of their checksum, which is not read."""
    return stored + b"crc!"


def varint(value: int) -> bytes:
    """A number with 7 bits in each byte, the lowest bits first.

    The highest bit of a byte says that more bytes follow.
    """
    if value < 128:
        return bytes([value])
    return bytes([value % 128 + 128]) + varint(value // 128)


# A message of Protocol Buffers is a sequence of fields. A field has a number and a wire type, and
# begins with 8 * number + wire type.


def number_field(number: int, value: int) -> bytes:
    """A field of wire type 0: a number."""
    return varint(number * 8) + varint(value)


def number_field_or_nothing(number: int, value: int) -> bytes:
    """A field of wire type 0, or nothing if its value is 0."""
    if value == 0:
        return b""
    return number_field(number, value)


def text_field(number: int, value: bytes) -> bytes:
    """A field of wire type 2: a text, or another message."""
    return varint(number * 8 + 2) + varint(len(value)) + value


def fixed32_field(number: int, value: bytes) -> bytes:
    """A field of wire type 5: four bytes."""
    return varint(number * 8 + 5) + value


# The message BundleHeaderProto: num_shards (field 1) is 1, and version (field 3) is a message whose
# producer (field 1) is 1.
HEADER = number_field(1, 1) + text_field(3, number_field(1, 1))


def entry_proto(
    shape: tuple[int, ...] = (1,),
    offset: int = 0,
    size: int | None = None,
    dtype: int = 1,
    shard: int = 0,
) -> bytes:
    """The message BundleEntryProto, which describes a tensor.

    The default dtype, 1, is float32. The default size is that of a float32 tensor of this shape.
    """
    if size is None:
        size = 4 * int(np.prod(shape, dtype=object))  # `object`, because it may exceed 64 bits
    # The shape is a message, too. Each axis is its field 2, a message whose field 1 is the length.
    axes = b""
    for length in shape:
        axes += text_field(2, number_field_or_nothing(1, length))
    message = number_field_or_nothing(1, dtype)
    message += text_field(2, axes)
    message += number_field_or_nothing(3, shard)
    message += number_field_or_nothing(4, offset)
    message += number_field_or_nothing(5, size)
    return message + fixed32_field(6, b"crc!")  # in the place of a checksum, which is not read


def block(entries: Iterable[Entry], interval: int = 3) -> bytes:
    """The contents of a block: the entries, the positions of its whole keys, and their number.

    Keys number 0, interval, 2 * interval, ... are written whole. Any other key begins like the key
    before it: only the number of shared bytes and the rest of the key are written.
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
    if not whole_key_positions:  # a block without entries has one position, too
        whole_key_positions = [0]
    for position in whole_key_positions:
        contents += position.to_bytes(4, "little")
    return contents + len(whole_key_positions).to_bytes(4, "little")


def shared_length(one: bytes, other: bytes) -> int:
    """The number of bytes that are the same at the beginning of both."""
    length = 0
    while length < min(len(one), len(other)) and one[length] == other[length]:
        length += 1
    return length


def no_edit(part: str, contents: bytes) -> bytes:
    return contents


def handle(offset: int, contents: bytes) -> bytes:
    """A block's position in its table, and its length."""
    return varint(offset) + varint(len(contents))


def table(blocks: dict[bytes, bytes], kind: int = 0, edit: Edit = no_edit) -> bytes:
    """A whole table: data blocks, then the metaindex block, the index block and the footer.

    blocks: {the last key of a data block: the contents of the block}.
    kind: the byte after the contents of each block; 0 means that a block is not compressed.
    edit: called with the name and the contents of the metaindex block and of the index block. What
        it returns is written.
    """
    kind_byte = bytes([kind])
    stored = b""
    index = []  # the entries of the index block: (the last key of a data block, its handle)
    for last_key, contents in blocks.items():
        index.append((last_key, handle(len(stored), contents)))
        stored += sealed(contents + kind_byte)

    metaindex_block = edit("metaindex block", block([]))
    footer = handle(len(stored), metaindex_block)
    stored += sealed(metaindex_block + kind_byte)

    index_block = edit("index block", block(index, interval=1))  # 1: each key is written whole
    footer += handle(len(stored), index_block)
    stored += sealed(index_block + kind_byte)
    padded_footer = footer.ljust(40, b"\0")  # the handles of both blocks, and zeros to 40 bytes
    return stored + padded_footer + MAGIC


def in_blocks(entries: list[Entry]) -> dict[bytes, bytes]:
    """{the last key of a data block: the contents of the block}, with four entries in a block."""
    blocks = {}
    for start in range(0, len(entries), 4):
        group = entries[start : start + 4]
        last_key, _ = group[-1]
        blocks[last_key] = block(group)
    return blocks


def openais_name(name: str) -> str:
    """OpenAI's name of a parameter.

    >>> openais_name("h.0.attn.c_attn.weight"), openais_name("h.11.ln_1.weight")
    ('model/h0/attn/c_attn/w', 'model/h11/ln_1/g')
    >>> openais_name("ln_f.bias"), openais_name("wte.weight")
    ('model/ln_f/b', 'model/wte')
    """
    module, _, kind = name.rpartition(".")
    path = module.replace("h.", "h", 1).replace(".", "/")
    if module in ("wte", "wpe"):
        return f"model/{path}"
    if kind == "bias":
        return f"model/{path}/b"
    if "ln_" in module:
        return f"model/{path}/g"  # the gain of a layer norm
    return f"model/{path}/w"


def bundle(model: GPT2) -> tuple[list[Entry], bytes]:
    """(the entries of the index, the data) of a model, in the order of OpenAI's names."""
    arrays = {}
    for name, array in model.parameters.items():
        is_weight_of_a_layer = name.startswith("h.") and array.ndim == 2
        if is_weight_of_a_layer:
            array = array[np.newaxis]  # OpenAI's weight is that of a convolution of width 1
        arrays[openais_name(name).encode()] = array

    entries = [(b"", HEADER)]  # the key of the header is empty
    data = b""
    for key, array in sorted(arrays.items()):
        values = np.ascontiguousarray(array, "<f4").tobytes()
        entries.append((key, entry_proto(array.shape, offset=len(data))))
        data += values
    return entries, data


def write_openai_files(directory: Path, index: bytes, data: bytes, config: Config) -> Path:
    """Write the index, the data, and an hparams.json with the configuration into a directory."""
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
    """Write all files of a model into a directory."""
    entries, data = bundle(model)
    return write_openai_files(directory, table(in_blocks(entries)), data, model.config)
