"""Files as torch.save writes them, made without torch; and a second reader of them.

A pickle is a program. The bytes before and after a value are its instructions: X, \x8a and G put a
text, a whole number and a float on the stack; ( begins a tuple that t ends; ] makes an empty list,
to which e appends; c names a class, which R calls with a tuple; u fills a dict; Q asks the reader
for a storage; . ends the program.
"""

import io
import pickle
import struct
import zipfile
from typing import Any

import numpy as np

MAGIC, PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
# NumPy's name of a type -> torch's class. NumPy has no bfloat16: two bytes without a type stand
# for it.
STORAGES = {
    "float64": "DoubleStorage",
    "float32": "FloatStorage",
    "float16": "HalfStorage",
    "void16": "BFloat16Storage",
    "int64": "LongStorage",
    "uint8": "ByteStorage",
    "bool": "BoolStorage",
}


def text(value: str) -> bytes:
    """The instruction that puts a text on the stack."""
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    """The instruction that puts a number on the stack."""
    content = value.to_bytes(value.bit_length() // 8 + 1, "little", signed=True)
    return b"\x8a" + bytes([len(content)]) + content


class Program:
    """A pickle with arrays as tensors. A view of an array is a part of that array's storage."""

    def __init__(self, value: Any) -> None:
        self.storages: list[np.ndarray] = []
        self.content = b"\x80\x02" + self.of(value) + b"."  # protocol 2, the value, the end

    def of(self, value: Any) -> bytes:
        """The instructions that put a value on the stack."""
        match value:
            case None | True | False:
                return {None: b"N", True: b"\x88", False: b"\x89"}[value]
            case int():
                return number(value)
            case float():
                return b"G" + struct.pack(">d", value)
            case str():
                return text(value)
            case tuple():
                return b"(" + b"".join(self.of(each) for each in value) + b"t"
            case list():
                return b"](" + b"".join(self.of(each) for each in value) + b"e"
            case dict():
                pairs = b"".join(self.of(key) + self.of(each) for key, each in value.items())
                return b"ccollections\nOrderedDict\n)R(" + pairs + b"u"
        return self.tensor(value)

    def tensor(self, array: np.ndarray) -> bytes:
        """The instructions for an array, whose storage is the array that it is a view of."""
        whole = array
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        if not any(whole is storage for storage in self.storages):
            self.storages.append(whole)
        # storages.index(whole) would compare numbers, not objects.
        key = [whole is storage for storage in self.storages].index(True)
        address, storage_address = [each.__array_interface__["data"][0] for each in (array, whole)]
        return tensor(
            size=array.shape,
            stride=tuple(stride // array.itemsize for stride in array.strides),
            offset=(address - storage_address) // array.itemsize,
            storage=("storage", f"ctorch\n{STORAGES[whole.dtype.name]}\n", f"{key}", "cpu"),
            n=whole.size,
        )


STORAGE = ("storage", "ctorch\nFloatStorage\n", "0", "cpu")


def tensor(
    size: Any = (2, 2), stride: Any = (2, 1), offset: Any = 0, storage: Any = STORAGE, n: Any = 4
) -> bytes:
    """The instructions that make a tensor. By default it fills a storage of 4 float32."""
    kind, name, key, device = storage
    identity = b"(" + text(kind) + name.encode() + text(key) + text(device) + plain(n) + b"tQ"
    # The last two arguments: it needs no gradient (False), and has no hooks.
    arguments = [identity, plain(offset), plain(size), plain(stride), b"\x89", plain({})]
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + b"".join(arguments) + b"tR"


def plain(value: Any) -> bytes:
    """The instructions for a value without tensors."""
    return Program(value).content[2:-1]  # without the protocol and the end


def archive(program: bytes, storages: list[bytes], byteorder: str = "little") -> bytes:
    """The zip archive that torch 1.6 and later write, with this pickle and these storages."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w") as file:
        file.writestr("model/data.pkl", program)
        file.writestr("model/byteorder", byteorder)
        for key, storage in enumerate(storages):
            file.writestr(f"model/data/{key}", storage)
        file.writestr("model/version", "3\n")
    return content.getvalue()


def five_pickles(program: bytes, storages: list[np.ndarray]) -> bytes:
    """The file that torch wrote before 1.6."""
    content = pickle.dumps(MAGIC, 2) + pickle.dumps(PROTOCOL, 2)
    content += pickle.dumps({"protocol_version": PROTOCOL, "little_endian": True}, 2)
    content += program + pickle.dumps([f"{key}" for key in range(len(storages))], 2)
    for storage in storages:
        content += struct.pack("<Q", storage.size) + storage.tobytes()
    return content


def torch_file(value: Any, is_old: bool = False) -> bytes:
    """The file that torch.save(value) writes: since torch 1.6, or before."""
    program = Program(value)
    if is_old:
        return five_pickles(program.content, program.storages)
    return archive(program.content, [storage.tobytes() for storage in program.storages])


class SecondReader(pickle.Unpickler):
    """The tensors of an archive as arrays, by Python's own unpickler.

    It refuses nothing but other names. A tensor that is not in its storage is an error of NumPy.
    """

    def __init__(self, content: bytes) -> None:
        self.archive = zipfile.ZipFile(io.BytesIO(content))
        super().__init__(io.BytesIO(self.archive.read("model/data.pkl")))

    def find_class(self, module: str, name: str) -> Any:
        known = {
            "collections.OrderedDict": dict,
            "torch._utils._rebuild_tensor_v2": rebuild,
            "torch.FloatStorage": np.float32,
        }
        return known[f"{module}.{name}"]

    def persistent_load(self, identity: Any) -> np.ndarray:
        _, dtype, key, _, _ = identity
        return np.frombuffer(self.archive.read(f"model/data/{key}"), dtype)


def rebuild(storage: np.ndarray, offset: int, size: Any, stride: Any, *_: Any) -> np.ndarray:
    """What torch._utils._rebuild_tensor_v2 returns, as an array."""
    steps = [4 * each for each in stride]  # in bytes
    return np.ndarray(size, np.float32, storage.tobytes(), 4 * offset, steps)
