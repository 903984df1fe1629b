"""How transformers reads the matrices of each kind of model: the facts in kinds.json.

The file is written by scripts/measure_kinds.py, which made a small model of each class, saved it,
changed its files and its flags, and loaded it again. Nothing in it is typed by hand. A kind, a
class or a state that is not in it was not measured, and how it is read is not known.

Matrix 0 of a class is the token embedding, matrix 1 the output matrix (the head). Those of an
encoder and a decoder follow. Files may have them by several sets of names: `name_set` is the number
of one set, and set 0 has the usual names. These words say the rest:

flags     what config.json says, a letter for each place where it may be said: "t" for tied, "f" for
          untied, "-" for nothing
state     what the files hold, a letter for each matrix: "ab" are two that differ, "aa" two equal
          ones, "a." is the embedding alone
reading   what a program has in memory then, a letter for each matrix: "ab" are two, "a0" is one,
          since the head is matrix 0; "a?" has a random head, and "!" is an error
"""

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any

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
    # For each set of names: the prefix that all tensors lack in files with this set. It is "model."
    # for a LlamaForCausalLM that was saved as a LlamaModel, without its head; "" for usual names.
    absent_prefixes: tuple[str, ...]
    # Version -> for each set of names: flags -> state -> reading; None if it was not measured.
    rules: dict[str, list[dict[str, dict[str, str]] | None]]
    versions: tuple[str, ...]  # of transformers that have the class, measured or not
    # Where the flag may stand in config.json: "" is the top, and "text_config" inside of it.
    places: tuple[str, ...]
    nested_kinds: dict[str, list[str]]  # place -> the kinds there that were measured
    defaults: dict[str, list[bool | None]]  # version -> for each place: the flag if none is there
    # For the embedding, and for the head: the places of V and D in config.json.
    sizes: tuple[tuple[str | None, str | None], ...]
    shares: dict[str, bool]  # other fields that may tie, and the values they were measured with
    other_flags: tuple[str, ...]  # places where a flag has an effect that was not measured
    buffers: frozenset[str]  # names of stored tensors that are no parameters, N for a number
    copies: dict[str, str]  # a tensor that older files may have twice -> the one that is counted
    separate: tuple[str, ...]  # of copies: they are parameters of their own in an untied model
    is_counted: bool  # whether the stored tensors add up to the number of parameters
    default_pad: int  # the padding token of a config.json that does not say it; 0 also for none
    # The field of config.json with the number of positions -> its default: the padding token must
    # be below it. {} for a class whose table of positions has no row for the padding token.
    positions: dict[str, int]
    not_read_by_4: bool  # whether transformers 4 cannot load what transformers 5 saves

    def has_usual_rule(self, name_set: int) -> bool:
        """Whether vLLM and programs like it read files with these names by their rule (`by_rule`).

        Files with an absent prefix, and an unusual name of the head alone, are read by
        transformers, and may not be by others.
        """
        has_two_matrices = len(self.names[0]) == 2
        usual_embedding, embedding = self.names[0][0], self.names[name_set][0]
        has_unusual_head_alone = name_set != 0 and embedding == usual_embedding
        return (
            has_two_matrices
            and self.name.endswith(HAVE_A_RULE)
            and not self.absent_prefixes[name_set]
            and not has_unusual_head_alone
        )

    def wrapper(self, version: str) -> str:
        """The prefix by which a version of transformers takes a file for one of a larger model.

        If the name of one tensor has the prefix, that version reads only the tensors that have it.
        "" if no prefix was measured to have this effect.
        """
        embedding, head = self.names[0][:2]
        for names, rule in zip(self.names, self.rules.get(version, ()), strict=False):
            # In this set of names, the head has a prefix, and the embedding its usual name.
            has_prefix_at_head = names[0] == embedding and names[1].endswith(f".{head}")
            if rule is None or not has_prefix_at_head:
                continue
            prefix = names[1].removesuffix(f".{head}")
            items = [item for by_state in rule.values() for item in by_state.items()]
            # The embedding is stored, and was not read.
            is_ignored = any(
                "." not in state[:2] and reading.startswith("?") for state, reading in items
            )
            if is_ignored and not embedding.startswith(prefix):
                return prefix
        return ""

    @cached_property
    def never_tied(self) -> frozenset[int]:
        """The numbers of the matrices, after the first two, that no reading makes one with another.

        Such a matrix may have another vocabulary: that of proteins, beside one of a text.
        """
        never_tied = set(range(2, len(self.names[0])))
        readings = {reading for version in self.rules for reading in self.all_readings(version)}
        for reading in readings - {"!"}:  # an error says nothing of a tie
            roots = [root(reading, number) for number in range(len(reading))]
            never_tied -= {number for number in never_tied if roots.count(roots[number]) > 1}
        return frozenset(never_tied)

    def all_readings(self, version: str) -> set[str]:
        """The readings of a version of transformers in all states that were measured."""
        rules = [rule for rule in self.rules.get(version, ()) if rule is not None]
        by_states = [by_state for rule in rules for by_state in rule.values()]
        return {reading for by_state in by_states for reading in by_state.values()}

    def count_untied(self, name_set: int, state: str) -> int | None:
        """The number of matrices in memory of the untied model with these files; None: not known.

        The untied model has a head of its own, so this is the number for a state whose head differs
        from all other matrices. Equal matrices of an encoder and a decoder may be one in memory.
        """
        values = list(state)
        if state[1] == "." or state.count(state[1]) > 1:  # no head, or one that equals another
            values[1] = "another head"
        # A measured state has the letters a, b, c in this order.
        different = dict.fromkeys(value for value in values if value != ".")
        letter_of = {".": ".", **dict(zip(different, "abcdefgh", strict=False))}
        with_another_head = "".join(letter_of[value] for value in values)
        return self.count_in_memory(name_set, "f", with_another_head)

    def count_in_memory(self, name_set: int, flag: str, state: str) -> int | None:
        """The number of matrices in memory, if the flag at each place is `flag`, "t" or "f".

        It is that of the newest version of transformers that reads the state. For "t", a version
        that ties the head goes before a newer one that does not. None if it is not known.
        """
        counts_untied = []  # of versions that do not tie the head, the newest first
        for version in reversed(VERSIONS):
            reading = self.reading(version, name_set, flag * len(self.places), state)
            if reading is None or reading == "!":
                continue
            count = len({root(reading, number) for number in range(len(reading))})
            if flag == "f" or is_tied(reading):
                return count
            counts_untied.append(count)
        return counts_untied[0] if counts_untied else None

    def default(self, place: str) -> bool | None:
        """The flag at a place of config.json that has none.

        None if it is not known, or if the versions of transformers differ in it.
        """
        number = self.places.index(place)
        defaults = {of_places[number] for of_places in self.defaults.values()}
        return defaults.pop() if len(defaults) == 1 else None

    def reading(self, version: str, name_set: int, flags: str, state: str) -> str | None:
        """How a version of transformers reads a state; None if that was not measured."""
        rules = self.rules.get(version)
        rule = None if rules is None else rules[name_set]
        if rule is None:
            return None
        return rule.get(flags, {}).get(state)


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
    name = named_class(config)
    if config.get("architectures") in (None, []):
        # "auto": AutoModelForCausalLM takes this class for the kind.
        usual = [each for each, entry in classes.items() if entry["auto"] or len(classes) == 1]
        name = usual[0] if len(usual) == 1 else None
    return read_class(kind, name) if name in classes else None


def named_class(config: Fields) -> str | None:
    """The class that config.json names; None if there is none, or if there are several."""
    match config.get("architectures"):
        case [str(name)]:
            return name
    return None


@cache
def read_class(kind: str, name: str) -> ModelClass:
    """A class of kinds.json."""
    content = load_kinds()
    entry = content["kinds"][kind][name]
    rules: dict[str, list[dict[str, dict[str, str]] | None]] = {}
    # Classes that are read alike have one rule in the file: an entry has its number.
    for version, numbers in entry["rules"].items():
        rules[version] = [
            None if number is None else content["rules"][number] for number in numbers
        ]
    return ModelClass(
        kind=kind,
        name=name,
        names=tuple(tuple(names) for names in entry["names"]),
        # What stands in place of an absent prefix is always "".
        absent_prefixes=tuple(absent for absent, _in_its_place in entry["prefixes"]),
        rules=rules,
        versions=tuple(entry["in"]),
        places=tuple(entry["places"]),
        nested_kinds=entry.get("nested_kinds", {}),
        defaults=entry["defaults"],
        sizes=tuple((rows, columns) for rows, columns in entry["sizes"]),
        shares=entry.get("shares", {}),
        other_flags=tuple(entry.get("other_flags", ())),
        buffers=frozenset(entry.get("buffers", ())),
        copies=entry.get("copies", {}),
        separate=tuple(entry.get("separate", ())),
        is_counted=entry["counted"],
        default_pad=entry.get("default_pad", 0),
        positions=entry.get("positions", {}),
        not_read_by_4=entry.get("not_read_by_4", False),
    )


@cache
def all_classes() -> tuple[ModelClass, ...]:
    """All classes of kinds.json."""
    kinds = load_kinds()["kinds"]
    return tuple(read_class(kind, name) for kind, classes in kinds.items() for name in classes)


def fields_at(config: Fields, place: str) -> Fields:
    """The fields at a place of config.json; empty if there are none.

    >>> fields_at({"text_config": {"vocab_size": 9}}, "text_config")
    {'vocab_size': 9}
    """
    fields: Any = config
    for name in place.split(".") if place else ():  # "" is the top: config.json itself
        fields = fields.get(name)
        if not isinstance(fields, dict):
            return {}
    return fields


def value_at(config: Fields, place: str) -> Any:
    """A value of config.json by its dotted place; None if it is not there."""
    parent, _, name = place.rpartition(".")
    return fields_at(config, parent).get(name)


def pattern(name: str) -> str:
    """A name of a tensor with N in place of each number.

    >>> pattern("h.11.attn.masked_bias")
    'h.N.attn.masked_bias'
    """
    return re.sub(r"(?<=\.)\d+(?=\.|$)", "N", name)


# Readings: the letters for what is in memory


def by_rule(tied: bool | None, state: str) -> str | None:
    """The reading of a program that reads one matrix if the flag says tied, else two.

    tied: what the flag says; None if that is not known.

    >>> by_rule(True, "ab"), by_rule(True, "a."), by_rule(False, "a."), by_rule(False, "aa")
    ('a0', 'a0', '!', 'aa')
    """
    if tied is None:
        return None
    if tied:  # the head is not read: without the embedding there is no matrix
        return "!" if state.startswith(".") else "a0"
    return "!" if "." in state else state


def in_words(reading: str | None) -> str | None:
    """What a reading (at the top of this module) says of the tie, in words; None for None.

    >>> in_words("a0"), in_words("a?"), in_words("?a"), in_words("aa"), in_words("?0")
    ('tied', 'random head', 'random embedding', 'untied', 'random')
    """
    if reading is None:
        return None
    if reading == "!":
        return "error"
    values = values_of(reading)
    # Both are random, or a matrix of an encoder or a decoder is.
    if values.startswith("??") or "?" in values[2:]:
        return "random"
    if values[1] == "?":
        return "random head"
    if values[0] == "?":
        return "random embedding"
    return "tied" if is_tied(reading) else "untied"


def values_of(reading: str) -> str:
    """A reading with the letter of its values for each matrix, also for one that is another.

    >>> values_of("a0"), values_of("ab02"), values_of("!")
    ('aa', 'abaa', '!')
    """
    return "".join(reading[root(reading, number)] for number in range(len(reading)))


def root(reading: str, number: int) -> int:
    """The number of the first matrix that a matrix shares its memory with.

    >>> root("ab1", 2), root("ab1", 0)
    (1, 0)
    """
    while reading[number].isdigit():  # this matrix is the one with that number
        number = int(reading[number])
    return number


def is_tied(reading: str) -> bool:
    """Whether the head is one with the token embedding.

    In "ab11" it is one with the matrices of an encoder and a decoder, and not with the embedding.

    >>> is_tied("a0"), is_tied("ab"), is_tied("ab11"), is_tied("!")
    (True, False, False, False)
    """
    return reading != "!" and root(reading, 0) == root(reading, 1)


def agree(readings: Collection[str]) -> bool:
    """Whether readings have the same values in memory, and the same tie of the head.

    >>> agree(["a0", "a0"]), agree(["ab", "a0"]), agree(["aa", "a0"])
    (True, False, False)
    """
    return len({(values_of(reading), is_tied(reading)) for reading in readings}) == 1


def what_is_lost(reading: str, state: str, names: Sequence[str]) -> str:
    """What a program with this reading loses of the files; "" for nothing. names: of the matrices.

    >>> names = ["wte.weight", "lm_head.weight"]
    >>> what_is_lost("a0", "ab", names), what_is_lost("a?", "a.", names)
    ('drops lm_head.weight', 'makes the head random')
    """
    if reading == "!":
        return "cannot read it"
    values = values_of(reading)
    if "?" in values:
        uses = ["the embedding", "the head", *("another matrix" for _ in values[2:])]
        random = [use for use, value in zip(uses, values, strict=True) if value == "?"]
        return f"makes {' and '.join(dict.fromkeys(random))} random"
    stored = [(letter, name) for letter, name in zip(state, names, strict=True) if letter != "."]
    # A matrix is kept if its values are in memory, at whatever place.
    lost = [name for letter, name in stored if letter not in values]
    return f"drops {' and '.join(lost)}" if lost else ""
