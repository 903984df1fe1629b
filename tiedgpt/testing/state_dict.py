"""Is a state dict in memory tied? Its two matrices: one storage, equal, different, or only one."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..anymodel.matrices import EMBEDDINGS, HEADS, IN_A_LAYER, OTHER_TABLE
from ..errors import ArgumentError, short_repr

SENTENCES = {
    "one storage": "{embedding} and {head} are one piece of memory: what changes one changes both",
    "equal": (
        "{embedding} and {head} have equal values in two pieces of memory: they are two "
        "parameters, which a step of training makes different"
    ),
    "different": "{embedding} and {head} differ: untied, or a tie that was lost",
    "overlap": (
        "{embedding} and {head} share memory, but are not the same part of it: one is a view of "
        "the other"
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
    does. Raises ArgumentError if the matrices are not found, if there may be several, or if they
    have no values (on the device meta).
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
    return Tie(compare_entries(one, other), found_embedding, found_head)


def one_name(entries: Mapping[str, Any], given: str | None, ends: tuple[str, ...]) -> str | None:
    """The name of a matrix: as it was given, or the only one with one of these ends."""
    if given is not None:
        if given not in entries:
            raise ArgumentError(f"{short_repr(given)} is not in the state dict")
        check_values(given, entries[given])
        return given
    found = [name for name in entries if is_matrix(name, entries[name], ends)]
    places = {place_of(entries[name]) for name in found}
    if len(places) > 1:
        raise ArgumentError(f"which of {', '.join(found)} is meant? Give its name")
    if not found:
        return None
    check_values(found[0], entries[found[0]])
    return found[0]


def is_matrix(name: str, value: Any, ends: tuple[str, ...]) -> bool:
    """Whether an entry is a matrix whose module has one of these names."""
    module, _, part = name.rpartition(".")
    if part != "weight" or IN_A_LAYER.search(name) or OTHER_TABLE.search(name):
        return False
    return module.rpartition(".")[2] in ends and len(getattr(value, "shape", ())) == 2


def check_values(name: str, value: Any) -> None:
    """Raise ArgumentError for what is no array, and for a tensor without values."""
    if len(getattr(value, "shape", ())) != 2:
        raise ArgumentError(f"{name} is no matrix: {short_repr(value)}")
    if getattr(value, "is_meta", False):
        raise ArgumentError(f"{name} is on the device meta and has no values")


def compare_entries(one: Any, other: Any) -> str:
    """The kind of two entries: "one storage", "overlap", "equal" or "different"."""
    if place_of(one) == place_of(other):
        return "one storage"
    if storage_of(one) == storage_of(other):
        return "overlap"
    if tuple(one.shape) != tuple(other.shape):
        return "different"
    if hasattr(one, "untyped_storage"):  # torch's
        is_equal = bool((one.detach() == other.detach().to(one.device)).all())
    else:
        is_equal = np.array_equal(one, other)
    return "equal" if is_equal else "different"


def place_of(value: Any) -> tuple[Any, ...]:
    """Where the values of an entry are: two with the same place are one."""
    if hasattr(value, "untyped_storage"):
        return (*storage_of(value), value.data_ptr(), tuple(value.shape), value.stride())
    array = np.asarray(value)
    return (*storage_of(array), array.ctypes.data, array.shape, array.strides)


def storage_of(value: Any) -> tuple[Any, ...]:
    """The piece of memory that an entry is a part of."""
    if hasattr(value, "untyped_storage"):
        return (value.device.type, value.device.index, value.untyped_storage().data_ptr())
    array = np.asarray(value)
    while isinstance(array.base, np.ndarray):
        array = array.base
    return ("numpy", array.ctypes.data)
