"""Is a state dict in memory tied? Its two matrices: one storage, equal, different, or only one."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np

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
    does. Raises ArgumentError if the matrices are not found, if there may be several, if they have
    no values in memory (on the device meta, or freed), and if their types cannot be compared.
    """
    if not isinstance(state_dict, Mapping):
        raise ArgumentError(f"expected a dict of tensors, got {short_repr(state_dict)}")
    names = [one_name(state_dict, embedding, EMBEDDINGS), one_name(state_dict, head, HEADS)]
    found_embedding, found_head = names
    if found_embedding is None and found_head is None:
        raise ArgumentError(
            f"neither an embedding nor a head is among {short_repr(list(state_dict))}: give "
            "embedding= and head=, their names"
        )
    if found_head is None:
        return Tie("embedding", found_embedding, None)
    if found_embedding is None:
        return Tie("head", None, found_head)
    one, other = state_dict[found_embedding], state_dict[found_head]
    try:
        kind = compare_entries(one, other)
    except (RuntimeError, TypeError) as error:  # torch's, for float8 beside another dtype
        raise ArgumentError(
            f"{found_embedding} ({one.dtype}) and {found_head} ({other.dtype}) cannot be compared: "
            f"{one_line(str(error))}"
        ) from error
    return Tie(kind, found_embedding, found_head)


def one_name(entries: Mapping[str, Any], given: str | None, ends: tuple[str, ...]) -> str | None:
    """The name of a matrix: as it was given, or the only one with one of these ends."""
    if given is not None:
        if given not in entries:
            raise ArgumentError(f"{short_repr(given)} is not in the state dict")
        check_values(given, entries[given])
        return given
    found = [name for name in entries if is_matrix(name, entries[name], ends)]
    for name in found:
        check_values(name, entries[name])
    places = {place_of(entries[name]) for name in found}
    if len(places) > 1:
        raise ArgumentError(f"which of {', '.join(found)} is meant? Give its name")
    return found[0] if found else None


def is_matrix(name: str, value: Any, ends: tuple[str, ...]) -> bool:
    """Whether an entry is a matrix whose module has one of these names."""
    module, _, part = name.rpartition(".")
    if part != "weight" or IN_A_LAYER.search(name) or OTHER_TABLE.search(name):
        return False
    return module.rpartition(".")[2] in ends and len(getattr(value, "shape", ())) == 2


def check_values(name: str, value: Any) -> None:
    """Raise ArgumentError for what is no array, and for a tensor without values in memory."""
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
    # The address is 0 of memory that was freed, as FSDP does, and of a tensor that has its values
    # in other tensors, such as a DTensor. To read it would end the process.
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
    if place_of(one) == place_of(other):
        return "one storage"
    # Two parts of one storage may have no byte in common: FSDP lays many parameters side by side.
    device, other_device = place_of(one)[0], place_of(other)[0]
    if device == other_device and np.shares_memory(addresses(one), addresses(other)):
        return "overlap"
    if tuple(one.shape) != tuple(other.shape):
        return "different"
    if is_of_torch(one) and is_of_torch(other):
        is_equal = bool((one.detach() == other.detach().to(one.device)).all())
    else:
        arrays = [each.detach().cpu() if is_of_torch(each) else each for each in (one, other)]
        is_equal = np.array_equal(*arrays)
    return "equal" if is_equal else "different"


def place_of(value: Any) -> tuple[Any, ...]:
    """Where the values of an entry are: two with the same place are one.

    It begins with the device, the address of the first value, the shape, and the bytes from one
    value to the next along each axis.
    """
    if is_of_torch(value):
        device = (value.device.type, value.device.index)
        strides = tuple(step * value.element_size() for step in value.stride())
        dtype = str(value.dtype).removeprefix("torch.")
        return (device, value.data_ptr(), tuple(value.shape), strides, dtype, value.is_neg())
    array = np.asarray(value)
    is_negative = False  # torch may store a tensor as the negative of another one
    at = array.ctypes.data
    return (("cpu", None), at, array.shape, array.strides, array.dtype.name, is_negative)


def addresses(value: Any) -> np.ndarray:
    """An array at the addresses of an entry, on any device, whose values must not be read."""
    _, start, shape, strides, *_ = place_of(value)
    itemsize = value.element_size() if is_of_torch(value) else np.asarray(value).itemsize
    interface = {
        "version": 3,
        "typestr": f"|V{itemsize}",
        "shape": shape,
        "strides": strides,
        "data": (start, True),  # True: it cannot be written
    }
    return np.asarray(SimpleNamespace(__array_interface__=interface))
