"""How transformers reads the matrices of each kind of model: the facts in kinds.json.

The file is written by scripts/measure_kinds.py, which made a small model of each class, saved it,
changed its files and its flags, and loaded it again. Nothing in it is typed by hand. A kind, a
class or a state that is not in it was not measured, and how it is read is not known.

A state of the files is a word with a letter for each matrix of the class, "." for one that is not
there: "ab" are two that differ, "aa" two equal ones, "a." is the first alone. The first matrix is
the token embedding, the second the output matrix; those of an encoder and a decoder follow. A
reading is a word, too: "ab" are two matrices in memory, "a0" is one, since the second is the first
one (matrix 0), "a?" has a random second one, and "!" is an error.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from .words import is_one

Fields = Mapping[str, Any]
VERSIONS = ("4", "5")  # of transformers
# The classes that vLLM and programs like it read.
HAVE_A_RULE = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")


@dataclass(frozen=True)
class ModelClass:
    """A class of transformers, as it was measured."""

    kind: str  # model_type in config.json
    name: str
    # The names of the matrices in files: each entry is a set of names that some files have.
    names: tuple[tuple[str, ...], ...]
    # For each set of names: what stands before all names of such a file, (as usual, there).
    prefixes: tuple[tuple[str, str], ...]
    # Version -> for each set of names: flags -> state -> reading; None if it was not measured.
    rules: dict[str, list[dict[str, dict[str, str]] | None]]
    # Where the flag may stand in config.json: "" is the whole, and "text_config" inside of it.
    places: tuple[str, ...]
    defaults: dict[str, list[bool | None]]  # version -> the flag at each place without one
    # For the axes of the first and of the second matrix: the place of the size in config.json.
    sizes: tuple[tuple[str | None, str | None], ...]
    shares: dict[str, bool]  # other fields that may tie, and the values they were measured with
    other_flags: tuple[str, ...]  # places where a flag has an effect that was not measured
    buffers: frozenset[str]  # names of stored tensors that are no parameters, N for a number
    copies: dict[str, str]  # a tensor that older files may have twice -> the one that is counted
    separate: tuple[str, ...]  # of copies: they are parameters of their own in an untied model
    is_counted: bool  # whether the stored tensors add up to the number of parameters

    @property
    def has_usual_rule(self) -> bool:
        """Whether vLLM and programs like it read the models of this class by their rule."""
        return len(self.names[0]) == 2 and self.name.endswith(HAVE_A_RULE)

    def default(self, number: int) -> bool | None:
        """The flag at a place of config.json that has none.

        None if it is not known, or if the versions of transformers differ in it.
        """
        defaults = {flags[number] for flags in self.defaults.values()}
        return defaults.pop() if len(defaults) == 1 else None

    def is_never_tied(self, version: str) -> bool:
        """Whether a version of transformers was measured, and never made one matrix of two."""
        rules = [rule for rule in self.rules.get(version, []) if rule is not None]
        words = [word for rule in rules for table in rule.values() for word in table.values()]
        return bool(words) and not any(is_one(word) for word in words)

    def reading(self, version: str, names: int, flags: str, state: str) -> str | None:
        """How a version of transformers reads a state; None if that was not measured."""
        rules = self.rules.get(version)
        if rules is None or rules[names] is None:
            return None
        return (rules[names] or {}).get(flags, {}).get(state)


@cache
def load_kinds() -> dict[str, Any]:
    """The content of kinds.json."""
    text = (Path(__file__).parent / "kinds.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def model_class(config: Fields) -> ModelClass | None:
    """The class that reads a model with this config.json; None if it was not measured.

    A config.json that names no class is read by the one that AutoModelForCausalLM takes, or by the
    only class of its kind.
    """
    kind = config.get("model_type")
    if not isinstance(kind, str):
        return None
    classes = load_kinds()["kinds"].get(kind, {})
    match config.get("architectures"):
        case [str(name), *_]:
            return read_class(kind, name) if name in classes else None
        case None | []:
            usual = [name for name, entry in classes.items() if entry.get("auto")]
            if len(classes) == 1:
                usual = list(classes)
            return read_class(kind, usual[0]) if len(usual) == 1 else None
    return None


@cache
def read_class(kind: str, name: str) -> ModelClass:
    """A class of kinds.json."""
    content = load_kinds()
    entry = content["kinds"][kind][name]
    rules: dict[str, list[dict[str, dict[str, str]] | None]] = {}
    for version, numbers in entry["rules"].items():
        rules[version] = [
            None if number is None else content["rules"][number] for number in numbers
        ]
    return ModelClass(
        kind=kind,
        name=name,
        names=tuple(tuple(names) for names in entry["names"]),
        prefixes=tuple((old, new) for old, new in entry["prefixes"]),
        rules=rules,
        places=tuple(entry["places"]),
        defaults=entry["defaults"],
        sizes=tuple((rows, columns) for rows, columns in entry["sizes"]),
        shares=entry.get("shares", {}),
        other_flags=tuple(entry.get("other_flags", ())),
        buffers=frozenset(entry.get("buffers", ())),
        copies=entry.get("copies", {}),
        separate=tuple(entry.get("separate", ())),
        is_counted=entry["counted"],
    )


@cache
def usual_names() -> frozenset[frozenset[str]]:
    """The names of the two matrices that a class of kinds.json has in files, for each class."""
    classes = [entry for kind in load_kinds()["kinds"].values() for entry in kind.values()]
    return frozenset(frozenset(entry["names"][0]) for entry in classes)


@cache
def nested_names() -> frozenset[str]:
    """The names of the configurations inside of a config.json that have the flag in some class."""
    classes = [entry for kind in load_kinds()["kinds"].values() for entry in kind.values()]
    places = {place for entry in classes for place in entry["places"]}
    return frozenset(place.partition(".")[0] for place in places if place)


@cache
def all_buffers() -> frozenset[str]:
    """The names of the buffers of all classes, N for a number."""
    classes = [entry for kind in load_kinds()["kinds"].values() for entry in kind.values()]
    return frozenset(name for entry in classes for name in entry.get("buffers", ()))


def class_without_head(config: Fields) -> str | None:
    """The class that config.json names, if it was measured and has no output matrix."""
    match config.get("model_type"), config.get("architectures"):
        case str(kind), [str(name), *_] if name in load_kinds()["without_head"].get(kind, ()):
            return name
    return None


def fields_at(config: Fields, place: str) -> Fields:
    """The fields at a place of config.json; empty if there are none.

    >>> fields_at({"text_config": {"vocab_size": 9}}, "text_config")
    {'vocab_size': 9}
    """
    fields: Any = config
    for name in place.split(".") if place else ():
        fields = fields.get(name)
        if not isinstance(fields, dict):
            return {}
    return fields if isinstance(fields, dict) else {}


def value_at(config: Fields, place: str) -> Any:
    """A value of config.json by its dotted place; None if it is not there."""
    inner, _, name = place.rpartition(".")
    return fields_at(config, inner).get(name)


def pattern(name: str) -> str:
    """A name of a tensor with N in place of each number.

    >>> pattern("h.11.attn.masked_bias")
    'h.N.attn.masked_bias'
    """
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "N", name)
