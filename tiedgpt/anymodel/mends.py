"""What to change in a model's files, so that every program reads what they hold.

A mend is tried on the facts (kinds.py) before it is given. After it, each version of transformers
that was measured, and the rule of vLLM and programs like it, read all that the files hold, in the
same way, and nothing at random. Where no mend does that, none is given.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from .kinds import VERSIONS, ModelClass, fields_at
from .matrices import Matrices
from .words import by_rule, has_trouble, values_of

FLAG = "tie_word_embeddings"
FILE = "model.safetensors"
# The lines of a mend that changes the file. The old file stays until the new one is complete.
READ_FILE = f"""\
from safetensors.torch import load_file, save_file
tensors = load_file("DIRECTORY/{FILE}")"""
WRITE_FILE = f"""\
save_file(tensors, "DIRECTORY/new", {{"format": "pt"}})
os.replace("DIRECTORY/new", "DIRECTORY/{FILE}")"""


@dataclass(frozen=True)
class Mend:
    """A change of config.json, or of the file of weights, or of both."""

    flags: dict[str, bool] = field(default_factory=dict)  # place in config.json -> the flag there
    lines: tuple[str, ...] = ()  # of Python, for `tensors`: name -> tensor
    reason: str = ""

    @property
    def python(self) -> str:
        """The Python that changes the file; "" if it stays."""
        if not self.lines:
            return ""
        return "\n".join(["import os", READ_FILE, *self.lines, WRITE_FILE])

    @property
    def text(self) -> str:
        """What to do, for a reader."""
        steps = []
        if self.flags:
            value = "true" if next(iter(self.flags.values())) else "false"
            inner = [place for place in self.flags if place]
            also = f", also in {' and '.join(inner)} in it" if inner else ""
            steps.append(f'{self.reason}write "{FLAG}": {value} into config.json{also}')
        else:
            steps.append(f"{self.reason}run")
        if self.lines:
            steps += self.python.split("\n")
        return "\n".join(steps)

    def as_report(self) -> dict[str, Any]:
        """The mend for JSON."""
        return {"flags": self.flags, "python": self.python, "text": self.text}


@dataclass(frozen=True)
class Files:
    """What a mend may change: the flags, the names of the matrices, and which are stored."""

    word: str  # the flags
    names: int  # the set of names
    state: str


def find_mends(
    known: ModelClass, config: dict[str, Any], word: str, matrices: Matrices, state: str | None
) -> list[Mend]:
    """The mends of a conflict: the smallest change, and the removal of a copy of the head."""
    if state is None or matrices.name_set is None:
        return []
    now = Files(word, matrices.name_set, state)
    places = {place: number for number, place in enumerate(known.places)}
    present = [place for place in places if place == "" or fields_at(config, place)]
    in_one_file = {matrix.file.name for matrix in matrices.stored} == {FILE}
    found = []
    for changed, lines in changes(known, now, in_one_file):
        for tied in flags_to_try(state):
            new_word = changed.word
            flags: dict[str, bool] = {}
            if tied is not None:
                flags = dict.fromkeys(present, tied)
                letters = list(new_word)
                for place in present:
                    letters[places[place]] = "t" if tied else "f"
                new_word = "".join(letters)
            after = Files(new_word, changed.names, changed.state)
            if after != now and is_clean(known, after):
                found.append(Mend(flags, tuple(lines), reason_of(state, flags)))
                break
        if found:
            break
    if found and state == "ab" and in_one_file:
        without = Files(now.word, now.names, "a.")
        if is_clean(known, without):
            head = known.names[now.names][1]
            found.append(Mend({}, (f'del tensors["{head}"]',), "if it is an old copy, "))
    return found


def reason_of(state: str, flags: dict[str, bool]) -> str:
    """When a mend is right, as far as that depends on what the user knows."""
    if state == "ab":
        return "if this head was trained, "
    if flags and True in flags.values() and "." in state:
        return "unless the other matrix was lost, "
    return ""


def flags_to_try(state: str) -> tuple[bool | None, ...]:
    """The flags of a mend, in the order of trying them. None: they stay."""
    if len(set(state) - {"."}) > 1:
        return (None, False, True)
    return (None, True, False)


def changes(known: ModelClass, now: Files, in_one_file: bool) -> Iterator[tuple[Files, list[str]]]:
    """Changes of the file, the smallest first, and the lines of Python that make them."""
    yield now, []
    if not in_one_file:
        return
    usual = known.names[0]
    there = known.names[now.names]
    stored = [place for place, letter in enumerate(now.state) if letter != "."]
    renamed = [
        f'tensors["{usual[place]}"] = tensors.pop("{there[place]}")'
        for place in stored
        if usual[place] != there[place]
    ]
    if renamed and known.prefixes[now.names] == ("", ""):
        yield Files(now.word, 0, now.state), renamed
    if now.names != 0 or len(now.state) != 2:
        return
    embedding, head = usual
    if now.state == ".a":
        yield Files(now.word, 0, "a."), [f'tensors["{embedding}"] = tensors.pop("{head}")']
        line = f'tensors["{embedding}"] = tensors["{head}"].clone()'
        yield Files(now.word, 0, "aa"), [line]
    if now.state == "a.":
        line = f'tensors["{head}"] = tensors["{embedding}"].clone()'
        yield Files(now.word, 0, "aa"), [line]


def is_clean(known: ModelClass, files: Files) -> bool:
    """Whether every reader reads all that the files hold, the same, and nothing at random."""
    words = [
        known.reading(version, files.names, files.word, files.state)
        for version in VERSIONS
        if version in known.rules
    ]
    if known.has_usual_rule:
        flags = {
            {"t": True, "f": False, "-": known.default(number)}[letter]
            for number, letter in enumerate(files.word)
        }
        if len(flags) == 1:
            words.append(by_rule(flags.pop(), files.state))
    if not words or None in words:
        return False
    read = [word for word in words if word is not None]
    if any(has_trouble(word, files.state) for word in read):
        return False
    return len({values_of(word) for word in read}) == 1
