"""Is a state dict in memory tied? Its two matrices: one storage, equal, different, or only one."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np

from ..anymodel.kinds import all_classes
from ..anymodel.matrices import QUANTISED
from ..checkpoints.names import EMBEDDINGS, HEADS, IN_A_LAYER, OTHER_TABLE
from ..errors import ArgumentError, one_line, short_repr

SENTENCES = {
    "one storage": "{embedding} and {head} are one piece of memory: what changes one changes both",
    "equal": (
        "{embedding} and {head} have equal values in two pieces of memory: they are two "
        "parameters, which a step of training makes different"
    ),
    "different": "{embedding} and {head} differ: untied, or a tie that was lost",
    "overlap": (
        "{embedding} and {head} share memory, but are not the same matrix in it: what changes one "
        "changes a part of the other"
    ),
    "embedding": "{embedding} alone is there: who loads it must tie the head, or lacks one",
    "head": "{head} alone is there: who loads it must tie the embedding, or lacks one",
}
USE = {"embedding": "the token embedding", "head": "the output matrix"}
LAST_NAMES = {
    "embedding": EMBEDDINGS,
    "head": (*HEADS, "output_layer", "ff_out"),  # Megatron and ChatGLM, OLMo
}
# A module around the one that has the matrix: PEFT's, and those of FSDP and torch.compile.
WRAPPER = re.compile(
    r"\.(base_layer|token_adapter|modules_to_save\.\w+|_fsdp_wrapped_module|_orig_mod"
    r"|_checkpoint_wrapped_module)(?=\.)"
)
REPLACED = ".original_module."  # PEFT keeps here what modules_to_save has replaced


@dataclass(frozen=True)
class Tie:
    """What a state dict holds of the two matrices. `str` says what it means.

    kind: "one storage", "equal", "different", "overlap", or "embedding" or "head" if one is there.
    """

    kind: str
    embedding: str | None  # names in the state dict
    head: str | None

    def __str__(self) -> str:
        return SENTENCES[self.kind].format(embedding=self.embedding, head=self.head)


def tie_of(
    state_dict: Mapping[str, Any], embedding: str | None = None, head: str | None = None
) -> Tie:
    """Whether the token embedding and the output matrix of a state dict are one.

    state_dict: name -> tensor of torch, or array of NumPy. Both matrices are [V, D].
    embedding, head: their names; by default they are known by the ends of their names, such as
        wte.weight and lm_head.weight.
    Nothing is changed. A state dict does not say what a forward pass does with it: assert_tied
    does. Raises ArgumentError if the matrices are not found, if there may be several, if only one
    is found and an entry of another name could be the second, if they have no values in memory (on
    the device meta, or freed), and if they are quantised or their types cannot be compared.
    """
    if not isinstance(state_dict, Mapping):
        raise ArgumentError(f"expected a dict of tensors, got {short_repr(state_dict)}")
    for name in state_dict:
        if not isinstance(name, str):
            raise ArgumentError(f"expected strings as names of tensors, got {short_repr(name)}")
    found_embedding = one_name(state_dict, "embedding", embedding)
    found_head = one_name(state_dict, "head", head, beside=found_embedding)
    if found_embedding is None:
        if found_head is None:
            raise ArgumentError(
                f"neither an embedding nor a head is among {short_repr(list(state_dict))}: give "
                "embedding= and head=, their names"
            )
        check_that_it_is_alone(state_dict, found_head, there="head", missing="embedding")
        return Tie("head", None, found_head)
    if found_head is None:
        check_that_it_is_alone(state_dict, found_embedding, there="embedding", missing="head")
        return Tie("embedding", found_embedding, None)

    one, other = state_dict[found_embedding], state_dict[found_head]
    try:
        kind = compare_entries(one, other)
    except (RuntimeError, TypeError) as error:  # quantised, or torch's float8 beside another dtype
        raise ArgumentError(
            f"{found_embedding} ({one.dtype}) and {found_head} ({other.dtype}) cannot be compared: "
            f"{one_line(str(error))}"
        ) from error
    return Tie(kind, found_embedding, found_head)


def one_name(
    entries: Mapping[str, Any], which: str, given: str | None, beside: str | None = None
) -> str | None:
    """The name of the "embedding" or the "head": as it was given, or the only one that is known.

    beside: the name of the other matrix, if it is found.
    """
    if given is not None:
        if given not in entries:
            raise ArgumentError(f"{short_repr(given)} is not in the state dict")
        check_values(given, entries[given])
        return given
    found = [name for name in entries if is_matrix(name, entries[name], LAST_NAMES[which])]
    for name in found:
        check_values(name, entries[name])
    if not found:
        found = names_by_model_classes(entries, which, beside)
    # One matrix may have several names. Several memories are several matrices.
    if len({memory_of(entries[name]) for name in found}) > 1:
        raise ArgumentError(f"which of {', '.join(found)} is meant? Give its name")
    return found[0] if found else None


def is_matrix(name: str, value: Any, last_names: tuple[str, ...]) -> bool:
    """Whether an entry is a matrix whose module has one of these last names."""
    module, _, part = WRAPPER.sub("", name).rpartition(".")
    if part != "weight" or IN_A_LAYER.search(name) or OTHER_TABLE.search(name):
        return False
    return module.rpartition(".")[2] in last_names and len(getattr(value, "shape", ())) == 2


def names_by_model_classes(entries: Mapping[str, Any], which: str, beside: str | None) -> list[str]:
    """The names of entries that model classes of transformers have for the embedding or the head.

    In another model such a name may be a classifier's. So beside the other matrix [V, D] an entry
    counts only if it has the width D and V rows or more, or is [D, V].
    """
    found = []
    for name, value in entries.items():
        shape = tuple(getattr(value, "shape", ()))
        is_other = IN_A_LAYER.search(name) or OTHER_TABLE.search(name)
        if name == beside or len(shape) != 2 or is_other:
            continue
        if beside is not None:
            V, D = entries[beside].shape
            is_transposed = shape == (D, V)
            is_as_large = shape[0] >= V and shape[1] == D
            if not is_transposed and not is_as_large:
                continue
        if has_name_of_model_class(name, which):
            check_values(name, value)
            found.append(name)
    return found


def has_name_of_model_class(name: str, which: str) -> bool:
    """Whether a name is, or ends with, one of names_in_model_classes."""
    plain = f".{WRAPPER.sub('', name)}"
    return any(plain.endswith(f".{end}") for end in names_in_model_classes(which))


@cache
def names_in_model_classes(which: str) -> frozenset[str]:
    """The names of the "embedding" or the "head" in all classes of transformers in kinds.json."""
    number = 0 if which == "embedding" else 1  # in each set of names of a class
    return frozenset(names[number] for known in all_classes() for names in known.names)


def check_that_it_is_alone(
    entries: Mapping[str, Any], found: str, there: str, missing: str
) -> None:
    """Raise ArgumentError if an entry could be the missing matrix, under a name that is not known.

    found: the name of the matrix that is there, [V, D]. there, missing: "embedding" and "head", or
    the other way round. Outside of the layers, a quantised matrix could be the missing one, and one
    of the width D with about V rows, because one of the two matrices may be padded.
    """
    module = found.rpartition(".")[0]
    V, D = entries[found].shape
    for name, value in entries.items():
        if IN_A_LAYER.search(name) or OTHER_TABLE.search(name) or REPLACED in name:
            continue
        module_here, _, part = name.rpartition(".")
        is_quantised = part in QUANTISED or (part == "weight" and is_of_integers(value))
        if is_quantised and module_here != module:
            raise ArgumentError(
                f"{found} is there, and the quantised {name} may be {USE[missing]}: not known "
                "whether they are one"
            )
        # It has the name of the missing matrix, but not two axes: check_values says so.
        if part == "weight" and module_here.rpartition(".")[2] in LAST_NAMES[missing]:
            check_values(name, value)
        shape = tuple(getattr(value, "shape", ()))
        if name == found or len(shape) != 2 or D not in shape:
            continue
        is_known = is_matrix(name, value, LAST_NAMES[there]) or has_name_of_model_class(name, there)
        if is_known and is_same_memory(value, entries[found]):
            continue  # a second name of the matrix that is there
        rows = shape[0] if shape[1] == D else shape[1]
        if abs(rows - V) <= V / 8:  # rows that pad a matrix are fewer than that
            raise ArgumentError(
                f"{found} is there, and {name} {list(shape)} may be {USE[missing]}: if it is, give "
                f"{missing}= its name"
            )


def is_of_integers(value: Any) -> bool:
    """Whether an entry is a matrix of integers, as quantised weights are."""
    if len(getattr(value, "shape", ())) != 2:
        return False
    dtype = str(getattr(value, "dtype", ""))  # such as "torch.uint8"
    return re.search(r"\bu?int\d+$", dtype) is not None


def is_same_memory(one: Any, other: Any) -> bool:
    """Whether two entries are the same values in memory; not, if one has none."""
    try:
        return memory_of(one) == memory_of(other)
    except (RuntimeError, ValueError):  # a sparse tensor has no such memory
        return False


def check_values(name: str, value: Any) -> None:
    """Raise ArgumentError for what is no matrix, and for one without values in memory."""
    if len(getattr(value, "shape", ())) != 2:
        raise ArgumentError(f"{name} is no matrix: {short_repr(value)}")
    if getattr(value, "is_meta", False):
        raise ArgumentError(f"{name} is on the device meta and has no values")
    if 0 in value.shape:
        raise ArgumentError(f"{name} has no values: its shape is {list(value.shape)}")
    if not is_of_torch(value):
        return
    if str(value.layout) != "torch.strided":
        raise ArgumentError(f"{name} is {value.layout}: expected a tensor that is not sparse")
    # A tensor whose memory was freed has the address 0, as FSDP leaves it. So has a tensor with its
    # values in other tensors, such as a DTensor. To read at this address would end the process.
    try:
        address = value.untyped_storage().data_ptr()
    except RuntimeError:  # of a tensor that is made of others
        address = 0
    if address == 0:
        raise ArgumentError(
            f"{name} has no values in its memory: it was freed, or they are in parts elsewhere; "
            "give the whole tensor"
        )


def is_of_torch(value: Any) -> bool:
    return hasattr(value, "untyped_storage")


def compare_entries(one: Any, other: Any) -> str:
    """The kind of two entries: "one storage", "overlap", "equal" or "different"."""
    if memory_of(one) == memory_of(other):
        return "one storage"
    # Bytes are compared, not storages: FSDP lays many parameters side by side in one storage.
    is_one_device = memory_of(one).device == memory_of(other).device
    if is_one_device and np.shares_memory(array_over(one), array_over(other)):
        return "overlap"
    if is_of_integers(one) or is_of_integers(other):
        raise TypeError("quantised, and its scale is elsewhere")
    if tuple(one.shape) != tuple(other.shape):
        return "different"
    if is_of_torch(one) and is_of_torch(other):  # torch has dtypes that NumPy lacks
        is_equal = bool((one.detach() == other.detach().to(one.device)).all())
    else:
        arrays = [each.detach().cpu() if is_of_torch(each) else each for each in (one, other)]
        is_equal = np.array_equal(*arrays)
    return "equal" if is_equal else "different"


class Memory(NamedTuple):
    """Where the values of an entry are. Two entries with the same are one matrix."""

    device: tuple[str, int | None]
    address: int  # of the first value
    shape: tuple[int, ...]
    strides: tuple[int, ...]  # the bytes from one value to the next along each axis
    dtype: str
    is_negative: bool  # torch may store a tensor as the negative of another one


def memory_of(value: Any) -> Memory:
    if is_of_torch(value):
        return Memory(
            device=(value.device.type, value.device.index),
            address=value.data_ptr(),
            shape=tuple(value.shape),
            strides=tuple(step * value.element_size() for step in value.stride()),
            dtype=str(value.dtype).removeprefix("torch."),
            is_negative=value.is_neg(),
        )
    array = np.asarray(value)
    return Memory(
        device=("cpu", None),
        address=array.ctypes.data,
        shape=array.shape,
        strides=array.strides,
        dtype=array.dtype.name,
        is_negative=False,
    )


def array_over(value: Any) -> np.ndarray:
    """An array of the same bytes as an entry. It is not to be read: they may be a GPU's."""
    memory = memory_of(value)
    itemsize = value.element_size() if is_of_torch(value) else np.asarray(value).itemsize
    interface = {
        "version": 3,
        "typestr": f"|V{itemsize}",  # bytes that are no numbers
        "shape": memory.shape,
        "strides": memory.strides,
        "data": (memory.address, True),  # True: it cannot be written
    }
    return np.asarray(SimpleNamespace(__array_interface__=interface))
