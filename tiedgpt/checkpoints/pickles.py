"""Files of torch.save, read without torch and without running what is in them.

A pickle is a program for a machine with a stack. `pickle.load` imports and calls what the program
names, which may be any code. Here, pickletools lists the instructions, which runs nothing, and
`Machine` follows those that make numbers, texts, tuples, lists and dicts. It has no instruction
that calls: where the program asks for a call, one of the few NAMES makes a dict, or a StoredTensor,
which says where the values are. Every other name is refused.

Since torch 1.6 the file is a zip archive, whose files are not compressed:

    NAME/data.pkl     the pickle: {"wte.weight": a tensor, ...}
    NAME/byteorder    "little", since torch 2.1
    NAME/data/KEY     a storage: numbers of one type. Several tensors may be parts of it

Before, it was five pickles: MAGIC, PROTOCOL, the properties of the computer, the tensors, and the
keys of the storages. Then comes each storage: 8 bytes with how many numbers it has, and these.

nanoGPT's ckpt.pt holds {"model": {"transformer.wte.weight": a tensor, ...}, "model_args": {...},
"optimizer": ...}. Its matrices are [out, in].
"""

import io
import mmap
import os
import pickletools
import struct
import zipfile
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

from ..errors import COUNT, CheckpointError, ConfigError, Range, short_repr
from ..gpt2.config import Config
from .json_files import READ_MORE, map_file
from .safetensors import MAX_AXES, MAX_AXIS, damaged
from .tensors import DTYPE_BITS, SavedFile, Tensor

# Bytes. nanoGPT's GPT-2 XL with its optimizer needs 0.2 million; Python's objects for nothing but
# empty dicts take 72 times the size of their pickle.
MAX_PICKLE = 1 << 21
# In all pickles of a file. GPT-2 XL with its optimizer needs 75,000; these take half a second.
MAX_INSTRUCTIONS = 250_000
# Bytes of the list of files in an archive. GPT-2 XL needs 0.2 million; the objects of zipfile take
# 10 times the size of the list.
MAX_LIST = 1 << 22
ZIP = b"PK\3\4"  # the first bytes of an archive
OLD = b"\x80"  # the first byte of a pickle
CONVERT = f"if you trust the file, convert it with torch ({READ_MORE})"
NOT_SAVED = f"is not a file of torch.save; a model of llm.c is not read ({READ_MORE})"
LOCAL_HEADER = struct.Struct("<4s22xHH")  # ZIP, and the lengths of the name and the extra field
# The sizes in model_args -> what Config calls them.
SIZES = {
    "block_size": "n_ctx",
    "vocab_size": "vocab_size",
    "n_layer": "n_layer",
    "n_head": "n_head",
    "n_embd": "n_embd",
}
NANO_GPTS_FIELDS = (*SIZES, "dropout", "bias")  # all that nanoGPT's own GPTConfig has
# Fields that forks of it add, and what Config calls them.
FORKS_FIELDS = {
    "n_inner": "n_inner",
    "activation": "activation_function",
    "activation_function": "activation_function",
    "layer_norm_epsilon": "layer_norm_epsilon",
    "scale_attn_weights": "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx": "scale_attn_by_inverse_layer_idx",
}
GPT2S_END = 50256  # the id of <|endoftext|>
MAGIC = 0x1950A86A20F9469CFC6C
PROTOCOL = 1001
VERSION = 5  # of pickles; torch.save writes 2 by default

# The names that a pickle may have, as pickletools writes them: module and name.
ORDERED_DICT = "collections OrderedDict"
REBUILD_TENSOR = "torch._utils _rebuild_tensor_v2"
REBUILD_PARAMETER = "torch._utils _rebuild_parameter"
STORAGES = {  # and the dtype in the terms of safetensors
    "torch DoubleStorage": "F64",
    "torch FloatStorage": "F32",
    "torch HalfStorage": "F16",
    "torch BFloat16Storage": "BF16",
    "torch LongStorage": "I64",
    "torch IntStorage": "I32",
    "torch ShortStorage": "I16",
    "torch CharStorage": "I8",
    "torch ByteStorage": "U8",
    "torch BoolStorage": "BOOL",
    "torch.storage UntypedStorage": "U8",
}
NAMES = (ORDERED_DICT, REBUILD_TENSOR, REBUILD_PARAMETER, *STORAGES)

# The keys of a dict that are no texts, as optimizers have. Others may take for ever: nested tuples
# to hash, and large numbers to store, if all have one hash.
NUMBER_KEYS = Range(0, 2**31 - 1)

# Instructions that put their argument, or a constant, on the stack.
LITERALS = (
    "BININT",
    "BININT1",
    "BININT2",
    "LONG1",
    "BINFLOAT",
    "BINUNICODE",
    "SHORT_BINUNICODE",
    "BINSTRING",
    "SHORT_BINSTRING",
)
CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False, "EMPTY_TUPLE": ()}
TUPLES = {"TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}  # of so many values
CHANGES = ("APPEND", "APPENDS", "SETITEM", "SETITEMS", "BUILD")  # of a list or dict


@dataclass(frozen=True)
class Name:
    """One of NAMES on the stack."""

    text: str


@dataclass(frozen=True)
class Storage:
    """The numbers of a type to which a key leads."""

    key: str
    dtype: str
    size: int  # how many numbers

    @property
    def itemsize(self) -> int:
        """Bytes of a number."""
        return DTYPE_BITS[self.dtype] // 8


@dataclass(frozen=True)
class StoredTensor:
    """A part of a storage. Offset and strides count numbers."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    has_negative_bit: bool  # the values are the numbers of the storage with the other sign


class Machine:
    """Follows the instructions of the pickles of a file."""

    def __init__(self, path: Path) -> None:
        self.path = path  # for the CheckpointErrors
        self.storages: dict[str, Storage] = {}  # key -> each storage that the pickles name
        self.instructions = 0  # followed so far, in all pickles
        self.stack: list[Any] = []
        self.marks: list[int] = []  # how long the stack was at each MARK
        self.memo: dict[int, Any] = {}

    def run(self, content: bytes) -> tuple[Any, int]:
        """The value of the pickle at the start of `content`, and the length of the pickle."""
        self.stack, self.marks, self.memo = [], [], {}
        program = io.BytesIO(content)
        try:
            for instruction, argument, _ in pickletools.genops(program):
                if instruction.name == "STOP":
                    return self.stack.pop(), program.tell()
                self.instructions += 1
                if self.instructions > MAX_INSTRUCTIONS:
                    raise CheckpointError(
                        f"{self.path}: more than {MAX_INSTRUCTIONS:,} instructions in its pickles"
                    )
                self.follow(instruction.name, argument)
        except CheckpointError:  # a name that is refused, or too many instructions
            raise
        except (ValueError, IndexError, KeyError) as error:
            # ValueError: genops and `follow`. The others: the stack or the memo lacks a value.
            raise CheckpointError(
                f"{self.path}: its pickle is damaged, not of torch.save, or longer than "
                f"{MAX_PICKLE} bytes: {short_repr(error, limit=100)}"
            ) from error
        raise AssertionError("genops ends with STOP or a ValueError")

    def follow(self, instruction: str, argument: Any) -> None:
        """One instruction. Raises ValueError for one that torch.save does not write."""
        stack = self.stack
        if instruction in LITERALS:
            stack.append(argument)
        elif instruction in CONSTANTS:
            stack.append(CONSTANTS[instruction])
        elif instruction in TUPLES:
            stack.append(tuple(self.pop(TUPLES[instruction])))
        elif instruction == "EMPTY_DICT":
            stack.append({})
        elif instruction == "EMPTY_LIST":
            stack.append([])
        elif instruction in CHANGES:
            self.change(instruction)
        elif instruction in ("GLOBAL", "STACK_GLOBAL"):
            stack.append(self.name(instruction, argument))
        elif instruction == "REDUCE":
            function, arguments = self.pop(2)
            stack.append(self.call(function, arguments))
        elif instruction == "BINPERSID":
            stack.append(self.storage(stack.pop()))
        else:
            self.mark_or_remember(instruction, argument)

    def mark_or_remember(self, instruction: str, argument: Any) -> None:
        """An instruction for the marks or the memo, or for neither."""
        match instruction:
            case "PROTO" if argument <= VERSION:
                pass
            case "FRAME":  # the length of a part
                pass
            case "MARK":
                self.marks.append(len(self.stack))
            case "TUPLE":
                values = self.pop_to_mark()
                self.stack.append(tuple(values))
            case "BINPUT" | "LONG_BINPUT":
                self.memo[argument] = self.stack[-1]
            case "MEMOIZE":
                self.memo[len(self.memo)] = self.stack[-1]
            case "BINGET" | "LONG_BINGET":
                self.stack.append(self.memo[argument])
            case _:
                named = "" if argument is None else f" {short_repr(argument)}"
                raise ValueError(f"the instruction {instruction}{named}")

    def pop(self, count: int) -> list[Any]:
        """Take the last `count` values from the stack."""
        if count > len(self.stack):
            raise IndexError("the stack is too short")
        values = self.stack[-count:]
        del self.stack[-count:]
        return values

    def pop_to_mark(self) -> list[Any]:
        """Take the values after the last mark from the stack."""
        mark = self.marks.pop()
        values = self.stack[mark:]
        del self.stack[mark:]
        return values

    def change(self, instruction: str) -> None:
        """Put values into the list or dict before them on the stack."""
        is_many = instruction in ("APPENDS", "SETITEMS")
        count = 2 if instruction == "SETITEM" else 1
        values = self.pop_to_mark() if is_many else self.pop(count)
        target = self.stack[-1]
        if instruction == "BUILD" and isinstance(target, dict):
            return  # the attributes of an OrderedDict: _metadata, which has no values
        if instruction.startswith("APPEND") and isinstance(target, list):
            target += values
        elif instruction.startswith("SETITEM") and isinstance(target, dict):
            for key, value in zip(values[::2], values[1::2], strict=True):
                if not isinstance(key, str) and key not in NUMBER_KEYS:
                    kind = type(key).__name__
                    raise ValueError(f"a key of type {kind}; expected a text or a small number")
                target[key] = value
        else:
            raise ValueError(f"{instruction} of a {type(target).__name__}")

    def name(self, instruction: str, argument: Any) -> Name:
        """The name that GLOBAL has as its argument, or that STACK_GLOBAL takes from the stack."""
        if instruction == "STACK_GLOBAL":
            module, name = self.pop(2)
            is_text = isinstance(module, str) and isinstance(name, str)
            argument = f"{module} {name}" if is_text else ""
        if argument not in NAMES:
            raise CheckpointError(
                f"{self.path}: names {short_repr(argument.replace(' ', '.'))}, which no state dict "
                f"needs and which could run any code, so it is not read; {CONVERT}"
            )
        return Name(argument)

    def call(self, function: Any, arguments: Any) -> Any:
        """The dict or the tensor that the function of this name would return."""
        name = function.text if isinstance(function, Name) else ""
        match arguments:
            case () if name == ORDERED_DICT:
                return {}
            case (StoredTensor() as tensor, *_) if name == REBUILD_PARAMETER:
                return tensor
            case (Storage() as storage, offset, tuple(shape), tuple(strides), *more) if (
                name == REBUILD_TENSOR
            ):
                # More: whether it has a gradient, hooks, and only where a bit is set, a dict.
                has_bit = len(more) > 2 and more[2] not in (None, {})
                has_few_axes = len(shape) == len(strides) <= MAX_AXES
                if has_few_axes and all(number in COUNT for number in (offset, *shape, *strides)):
                    return StoredTensor(storage, offset, shape, strides, has_bit)
        raise ValueError("a call with other arguments")

    def storage(self, identity: Any) -> Storage:
        """The storage that a persistent id names."""
        match identity:
            # The sixth part, in files of before torch 1.6, is None.
            case ("storage", Name(text=text), str(key), str(), size, *view) if (
                text in STORAGES and size in COUNT and view in ([], [None])
            ):
                storage = Storage(key, STORAGES[text], size)
                if self.storages.setdefault(key, storage) == storage:
                    return storage
        raise ValueError("another storage")


# A file


def read_saved(path: Path) -> SavedFile:
    """The tensors of a file, whose values are not read. Raises CheckpointError."""
    memory = map_file(path)
    machine = Machine(path)
    if memory[:4] == ZIP:
        value, places = _read_archive(machine, memory, path)
    elif memory[:1] == OLD:
        value, places = _read_five_pickles(machine, memory, path)
    else:
        raise CheckpointError(f"{path} {NOT_SAVED}")
    for key, storage in machine.storages.items():  # has each the bytes that the pickle says?
        start, end = places[key]
        expected = storage.size * storage.itemsize
        if end - start != expected:
            sizes = f"{short_repr(end - start)} bytes; expected {short_repr(expected)}"
            raise damaged(path, f"the storage {short_repr(key)} has {sizes}")

    state, model_args = _state_of(value, path)
    tensors = {}
    for name, stored in state.items():
        start, _ = places[stored.storage.key]
        tensors[name] = _located(name, stored, start, path, memory)
    # The bytes of a tied head are twice in the sum. More would be tensors that overlap, such as
    # 1,000 layers of one matrix.
    if sum(tensor.end - tensor.start for tensor in tensors.values()) > 2 * len(memory):
        raise damaged(path, "tensors overlap: they have more values than the file")
    # nanoGPT's {"model": state dict, "model_args": ...} is known. In another dict, transformers
    # does not look for a state dict, so `check` asks for is_nested.
    is_nested = state is not value and model_args is None
    return SavedFile(tensors, model_args, is_nested=is_nested)


def _state_of(value: Any, path: Path) -> tuple[dict[str, StoredTensor], dict[str, Any] | None]:
    """The state dict that a file holds, and nanoGPT's model_args if they lie beside it.

    It is the value of the file, or the one state dict in this value, as where a training saves
    {"model_state_dict": ..., "epoch": 3}. Raises CheckpointError.
    """
    state, model_args = value, None
    if isinstance(value, dict) and isinstance(value.get("model_args"), dict):
        state, model_args = value.get("model"), value["model_args"]
    elif isinstance(value, dict) and not _is_state_dict(value):
        # The states of random numbers have no matrix.
        names = [
            name
            for name, inner in value.items()
            if _is_state_dict(inner) and any(len(each.shape) == 2 for each in inner.values())
        ]
        if len(names) > 1:
            shown = ", ".join(short_repr(name) for name in names)
            raise CheckpointError(f"{path}: holds several state dicts, {shown}: save one of them")
        if names:
            state = value[names[0]]
    if _is_state_dict(state):
        return state, model_args

    held = f"holds a {type(state).__name__}"
    if isinstance(state, dict):
        for name, each in state.items():
            if not isinstance(name, str) or not isinstance(each, StoredTensor):
                held = f"{short_repr(name)} is a {type(each).__name__}"
                break
    raise CheckpointError(
        f"{path}: {held}; expected a state dict, name -> tensor, by itself or as one value of a "
        f"dict, or nanoGPT's model and model_args; {CONVERT}"
    )


def _is_state_dict(value: Any) -> bool:
    """Whether a value of a pickle is a dict of tensors by name."""
    if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
        return False
    return all(isinstance(each, StoredTensor) for each in value.values())


class ListReader:
    """A file from which zipfile reads the list of files, if that is not too long."""

    def __init__(self, archive: mmap.mmap) -> None:
        self.archive = archive
        self.tell = archive.tell

    def seek(self, offset: int, whence: Any = os.SEEK_SET) -> int:
        try:
            self.archive.seek(offset, whence)
        except ValueError as error:  # a file raises OSError here, which zipfile expects
            raise OSError(f"{error}") from error
        return self.archive.tell()

    def read(self, size: int = -1) -> bytes:
        if size > MAX_LIST:
            raise zipfile.BadZipFile(f"a list of files of {size} bytes; expected {MAX_LIST}")
        return self.archive.read(size)


Places = dict[str, tuple[int, int]]  # of a storage's first byte, and of the one after its last


def _read_archive(machine: Machine, memory: mmap.mmap, path: Path) -> tuple[Any, Places]:
    """The value of the pickle in an archive, and the places of the storages that it names."""
    try:
        # zipfile uses only the methods of a file that ListReader has.
        with zipfile.ZipFile(ListReader(memory)) as opened:
            entries = opened.infolist()
    # What zipfile raises. ValueError: a name is no text.
    except (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error) as error:
        raise damaged(path, f"truncated, or not of torch.save: {error}") from error
    by_name = {entry.filename: entry for entry in entries}
    pickles = [name for name in by_name if name.count("/") == 1 and name.endswith("/data.pkl")]
    has_a_name_twice = len(by_name) != len(entries)
    if has_a_name_twice or len(pickles) != 1:
        raise damaged(path, "not an archive of torch.save, with one data.pkl")
    start, end = _place(pickles[0], by_name, memory, path)
    value, _ = machine.run(memory[start : min(end, start + MAX_PICKLE)])

    folder = pickles[0].removesuffix("data.pkl")
    if f"{folder}byteorder" in by_name:
        start, end = _place(f"{folder}byteorder", by_name, memory, path)
        if memory[start:end] != b"little":
            raise _other_byte_order(path)
    places = {}
    for key in machine.storages:
        places[key] = _place(f"{folder}data/{key}", by_name, memory, path)
    return value, places


def _place(
    name: str, by_name: dict[str, zipfile.ZipInfo], memory: mmap.mmap, path: Path
) -> tuple[int, int]:
    """The positions of the first byte of a file in the archive, and of the byte after its last.

    Before the file, the archive has a header of it. Raises CheckpointError.
    """
    entry = by_name.get(name)
    if entry is not None and entry.compress_type == zipfile.ZIP_STORED:
        is_encrypted = entry.flag_bits & 1
        data = entry.header_offset + LOCAL_HEADER.size
        if entry.header_offset >= 0 and data <= len(memory) and not is_encrypted:
            header = memory[entry.header_offset : data]
            signature, name_length, extra_length = LOCAL_HEADER.unpack(header)
            start = data + name_length + extra_length
            end = start + entry.file_size
            if signature == ZIP and end <= len(memory):
                return start, end
    raise damaged(
        path,
        f"{short_repr(name)} is missing, compressed or encrypted, or not where the archive says",
    )


def _read_five_pickles(machine: Machine, memory: mmap.mmap, path: Path) -> tuple[Any, Places]:
    """The value of a file of before torch 1.6, and the places of the storages that it names."""
    values: list[Any] = []
    position = 0  # of the next pickle, then of the next storage
    for expected in (MAGIC, PROTOCOL, None, None, None):  # None: any value
        found, length = machine.run(memory[position : position + MAX_PICKLE])
        position += length
        values.append(found)
        if expected is not None and found != expected:
            raise CheckpointError(f"{path} {NOT_SAVED}")
    _, _, computer, state, keys = values
    if not isinstance(computer, dict) or computer.get("little_endian") is not True:
        raise _other_byte_order(path)
    are_keys = isinstance(keys, list) and all(isinstance(key, str) for key in keys)
    if not are_keys or machine.storages.keys() != set(keys):
        raise damaged(path, "its storages are not those of its tensors")

    places = {}
    for key in keys:
        size = int.from_bytes(memory[position : position + 8], "little")
        start = position + 8
        position = start + size * machine.storages[key].itemsize
        places[key] = (start, min(position, len(memory)))  # a truncated one is too short
    return state, places


def _other_byte_order(path: Path) -> CheckpointError:
    return CheckpointError(
        f"{path}: its numbers begin with the highest byte (big-endian), which is not read; load it "
        "with torch, and save it on a little-endian computer"
    )


def _located(name: str, stored: StoredTensor, start: int, path: Path, memory: mmap.mmap) -> Tensor:
    """A tensor as one of the file, if its values are in its storage, which starts at `start`."""
    if stored.has_negative_bit:
        raise CheckpointError(
            f"{path}: {short_repr(name)} has torch's negative bit, so its values are not those in "
            "the file: save its resolve_neg()"
        )
    storage = stored.storage
    size = prod(stored.shape)
    last = stored.offset  # of the last number
    strides = []  # in bytes
    for axis, stride in zip(stored.shape, stored.strides, strict=True):
        last += (axis - 1) * stride
        # The stride of a shorter axis leads nowhere, and may be too large for NumPy.
        strides.append(stride * storage.itemsize if axis > 1 else 0)
    # NumPy refuses such an axis, even if another one is 0 and there are no values.
    is_too_long = max(stored.shape, default=0) > MAX_AXIS
    # torch's expand() makes many values of one number. A few bytes could fill the memory so.
    is_expanded = any(
        axis > 1 and stride == 0 for axis, stride in zip(stored.shape, stored.strides, strict=True)
    )
    named = f"tensor {short_repr(name)} of shape {short_repr(stored.shape)}"
    numbers = f"{short_repr(storage.size)} numbers"
    if is_expanded and size > storage.size:
        raise CheckpointError(
            f"{path}: {named} is expanded from {numbers}, which is not read: save its contiguous()"
        )
    if is_too_long or size > storage.size or (size > 0 and last >= storage.size):
        raise damaged(path, f"{named} is not in its storage of {numbers}")
    # Without values, the offset is not checked above, and may lead anywhere.
    first_byte = start + (stored.offset * storage.itemsize if size > 0 else 0)
    return Tensor(
        file=path,
        name=name,
        dtype=storage.dtype,
        shape=stored.shape,
        start=first_byte,
        end=first_byte + size * storage.itemsize,
        memory=memory,
        strides=tuple(strides),
    )


# nanoGPT


def config_of(model_args: dict[str, Any], path: Path) -> Config:
    """The Config that the model_args of nanoGPT say, as a tied one.

    Raises a CheckpointError that names the file, `path`.
    """
    for name, value in model_args.items():
        is_known = name in (*NANO_GPTS_FIELDS, *FORKS_FIELDS)
        if not is_known or not isinstance(value, int | float | str | None):
            # The value is not shown: nested tuples may be very long.
            raise CheckpointError(
                f"{path}: model_args has {short_repr(name)}, a {type(value).__name__}, which "
                "nanoGPT does not have and which may be another computation; if it is GPT-2 all "
                "the same, load the file with torch, and give its state dict to "
                f"tiedgpt.from_state_dict ({READ_MORE})"
            )
    dropout = model_args.get("dropout", 0.0)
    fields: dict[str, Any] = {
        # nanoGPT has the field bias since February 2023, and the exact gelu since June. A file of
        # the months between is read as if it had the exact one.
        "activation_function": "gelu" if "bias" in model_args else "gelu_new",
        "embd_pdrop": dropout,
        "resid_pdrop": dropout,
        "attn_pdrop": dropout,
    }
    for name, field in SIZES.items():
        fields[field] = model_args.get(name)  # Config refuses None
    for name, field in FORKS_FIELDS.items():
        if name in model_args:
            fields[field] = model_args[name]
    try:
        config = Config(**fields)
    except ConfigError as error:
        raise CheckpointError(f"{path}: model_args: {error}") from error
    if config.vocab_size <= GPT2S_END:  # another vocabulary, such as one of characters
        config = replace(config, bos_token_id=None, eos_token_id=None)
    return config
