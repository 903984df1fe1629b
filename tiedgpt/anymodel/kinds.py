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
    # For each set of names: the prefix that all tensors lack in files with this set, such as
    # "model." if a model was saved without its head; "" for the usual names.
    absent_prefixes: tuple[str, ...]
    # Version -> for each set of names: flags -> state -> reading; None if it was not measured.
    rules: dict[str, list[dict[str, dict[str, str]] | None]]
    versions: tuple[str, ...]  # of transformers that have the class, measured or not
    # Where the flag may stand in config.json: "" is the whole, and "text_config" inside of it.
    places: tuple[str, ...]
    nested_kinds: dict[str, list[str]]  # place -> the kinds there that were measured
    defaults: dict[str, list[bool | None]]  # version -> the flag at each place without one
    # For the axes of the first and of the second matrix: the place of the size in config.json.
    sizes: tuple[tuple[str | None, str | None], ...]
    shares: dict[str, bool]  # other fields that may tie, and the values they were measured with
    other_flags: tuple[str, ...]  # places where a flag has an effect that was not measured
    buffers: frozenset[str]  # names of stored tensors that are no parameters, N for a number
    copies: dict[str, str]  # a tensor that older files may have twice -> the one that is counted
    separate: tuple[str, ...]  # of copies: they are parameters of their own in an untied model
    is_counted: bool  # whether the stored tensors add up to the number of parameters
    not_read_by_4: bool  # whether transformers 4 cannot load what transformers 5 saves

    def has_usual_rule(self, names: int) -> bool:
        """Whether vLLM and programs like it read files with this set of names by their rule.

        Files with an absent prefix, and a head alone with an unusual name, are read by
        transformers, and may not be by others.
        """
        has_rule = len(self.names[0]) == 2 and self.name.endswith(HAVE_A_RULE)
        is_of_head_alone = names != 0 and self.names[names][0] == self.names[0][0]
        return has_rule and not self.absent_prefixes[names] and not is_of_head_alone

    def wrapper(self, version: str) -> str:
        """The beginning of a name with which a tensor makes the embedding random; "" without one.

        To that version of transformers a file with it is one of a larger model, and only what
        begins so is read. It was measured with a head of such a name.
        """
        embedding, head = self.names[0][:2]
        for names, rule in zip(self.names, self.rules.get(version, ()), strict=False):
            if rule is None or names[0] != embedding or not names[1].endswith(f".{head}"):
                continue
            beginning = names[1].removesuffix(f".{head}")
            readings = [item for table in rule.values() for item in table.items()]
            is_random = any("." not in state[:2] and word[0] == "?" for state, word in readings)
            if is_random and not embedding.startswith(beginning):
                return beginning
        return ""

    @cached_property
    def never_one(self) -> frozenset[int]:
        """The matrices, after the first two, that no reading makes one with another."""
        found = set(range(2, len(self.names[0])))
        rules = [rule for rules in self.rules.values() for rule in rules if rule is not None]
        for word in {word for rule in rules for table in rule.values() for word in table.values()}:
            roots = [root(word, place) for place in range(len(word))]
            found -= {place for place in found if word != "!" and roots.count(roots[place]) > 1}
        return frozenset(found)

    def count_untied(self, names: int, state: str) -> int | None:
        """The number of matrices in memory if a state has another head and the flag says untied.

        Copies that an encoder and a decoder have in files may be one there. None if it is not
        known.
        """
        matrices = list(state)
        if state[1] in (".", *state[:1], *state[2:]):
            matrices[1] = "another head"
        found = [each for each in dict.fromkeys(matrices) if each != "."]
        word = "".join("." if each == "." else "abcdefgh"[found.index(each)] for each in matrices)
        return self.count_in_memory(names, "f", word)

    def count_in_memory(self, names: int, flag: str, state: str) -> int | None:
        """The number of matrices in memory, if all flags are `flag`; None if it is not known."""
        for version in reversed(VERSIONS):
            reading = self.reading(version, names, flag * len(self.places), state)
            if reading is not None and reading != "!":
                return len({root(reading, place) for place in range(len(reading))})
        return None

    def default(self, number: int) -> bool | None:
        """The flag at a place of config.json that has none.

        None if it is not known, or if the versions of transformers differ in it.
        """
        defaults = {flags[number] for flags in self.defaults.values()}
        return defaults.pop() if len(defaults) == 1 else None

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
    name = named_class(config)
    if config.get("architectures") in (None, []):
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
    for version, numbers in entry["rules"].items():
        rules[version] = [
            None if number is None else content["rules"][number] for number in numbers
        ]
    return ModelClass(
        kind=kind,
        name=name,
        names=tuple(tuple(names) for names in entry["names"]),
        absent_prefixes=tuple(absent for absent, _ in entry["prefixes"]),
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


# The words for what files hold, and for how it is read


def by_rule(tied: bool | None, state: str) -> str | None:
    """The word for a program that reads one matrix if the flag says tied, else two.

    "aa" are two equal matrices, "a." is the first alone.

    >>> by_rule(True, "ab"), by_rule(True, "a."), by_rule(False, "a."), by_rule(False, "aa")
    ('a0', 'a0', '!', 'aa')
    """
    if tied is None:
        return None
    if tied:
        return "!" if state.startswith(".") else "a0"
    return "!" if "." in state else state


def in_words(word: str | None) -> str | None:
    """A reading in words.

    >>> in_words("a0"), in_words("a?"), in_words("?a"), in_words("aa"), in_words("?0")
    ('tied', 'random head', 'random embedding', 'untied', 'random')
    """
    if word is None:
        return None
    if word == "!":
        return "error"
    values = values_of(word)
    if values.startswith("??") or "?" in values[2:]:
        return "random"
    if values[1] == "?":
        return "random head"
    if values[0] == "?":
        return "random embedding"
    return "tied" if is_one(word) else "untied"


def values_of(word: str) -> str:
    """The letter of each matrix in memory.

    >>> values_of("a0"), values_of("ab02"), values_of("!")
    ('aa', 'abaa', '!')
    """
    return "".join(word[root(word, place)] for place in range(len(word)))


def root(word: str, place: int) -> int:
    """The number of the first matrix that a matrix shares its memory with.

    >>> root("ab1", 2), root("ab1", 0)
    (1, 0)
    """
    while word[place].isdigit():
        place = int(word[place])
    return place


def is_one(word: str) -> bool:
    """Whether the head is one with the token embedding.

    In "ab11" it is one with the matrices of an encoder and a decoder, and not with the embedding.

    >>> is_one("a0"), is_one("ab"), is_one("ab11"), is_one("!")
    (True, False, False, False)
    """
    return word != "!" and root(word, 0) == root(word, 1)


def agree(words: Collection[str]) -> bool:
    """Whether readings have the same values in memory, and the same tie of the head.

    >>> agree(["a0", "a0"]), agree(["ab", "a0"]), agree(["aa", "a0"])
    (True, False, False)
    """
    return len({(values_of(word), is_one(word)) for word in words}) == 1


def what_is_lost(word: str, state: str, names: Sequence[str]) -> str:
    """What is lost when a state is read so; "" for nothing. names: those of the matrices.

    >>> names = ["wte.weight", "lm_head.weight"]
    >>> what_is_lost("a0", "ab", names), what_is_lost("a?", "a.", names)
    ('drops lm_head.weight', 'makes the head random')
    """
    if word == "!":
        return "cannot read it"
    values = values_of(word)
    if "?" in values:
        uses = ["the embedding", "the head", *("another matrix" for _ in values[2:])]
        random = [use for use, value in zip(uses, values, strict=True) if value == "?"]
        return f"makes {' and '.join(dict.fromkeys(random))} random"
    stored = [(letter, name) for letter, name in zip(state, names, strict=True) if letter != "."]
    lost = [name for letter, name in stored if letter not in values]
    return f"drops {' and '.join(lost)}" if lost else ""
