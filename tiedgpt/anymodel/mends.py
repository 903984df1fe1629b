"""What to change in a model's files, so that every program reads what they hold.

A mend is tried on the facts (kinds.py) before it is given. After it, each version of transformers
that was measured, and the rule of vLLM and programs like it, read all that the files hold, in the
same way, and nothing at random. Where no mend does that, none is given.

`flags` has a letter for each place of config.json that may say tied ("t", "f", or "-" for nothing),
`state` a letter for each matrix of the files, the embedding first, then the head: "ab" are two that
differ, "aa" two equal ones, "." is one that is not stored. `name_set` is the number of the names
that the matrices have: 0 for those that the class saves.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from .kinds import VERSIONS, ModelClass, agree, by_rule, fields_at, what_is_lost
from .matrices import Matrices

FLAG = "tie_word_embeddings"
FILE = "model.safetensors"
# The lines of a mend that changes the file. The old file stays until the new one is complete.
READ_FILE = f"""\
from safetensors.torch import load_file, save_file  # pip install safetensors torch
tensors = load_file("DIRECTORY/{FILE}")"""
WRITE_FILE = f"""\
save_file(tensors, "DIRECTORY/new", {{"format": "pt"}})
os.replace("DIRECTORY/new", "DIRECTORY/{FILE}")"""


USUAL = 0  # the set of names with which the class saves its matrices
LETTER_OF_FLAG = {True: "t", False: "f", None: "-"}


@dataclass(frozen=True)
class Files:
    """What a mend may change: the flags, the names of the matrices, and which are stored."""

    flags: str
    name_set: int
    state: str


def find_mends(
    known: ModelClass,
    config: dict[str, Any],
    flags: str,
    tensors: Collection[str],
    matrices: Matrices,
    state: str | None,
) -> list[dict[str, Any]]:
    """The mends of a conflict: the smallest change, and the removal of a copy of the head.

    tensors: the names of all tensors in the files.
    """
    if state is None or matrices.name_set is None:
        return []
    now = Files(flags, matrices.name_set, state)
    # "" is the top of config.json. A part of it that is missing is not made for a flag.
    places = [place for place in known.places if place == "" or fields_at(config, place)]
    # The lines of a mend rewrite FILE alone. Of a model in several files, only flags can change.
    in_one_file = {matrix.file.name for matrix in matrices.stored} == {FILE}
    smallest = smallest_mend(known, now, places, tensors, in_one_file)
    if smallest is None:
        return []
    mends = [smallest]
    if state == "ab" and in_one_file and is_clean(known, replace(now, state="a.")):
        head = known.names[now.name_set][1]
        lines = [f'del tensors["{head}"]']
        mends.append(describe_mend(flags={}, lines=lines, reason="if it is an old copy, "))
    return mends


def smallest_mend(
    known: ModelClass,
    now: Files,
    places: list[str],
    tensors: Collection[str],
    in_one_file: bool,
) -> dict[str, Any] | None:
    """The first change of the file and of the flags after which all is read; None without one.

    places: of config.json, where a flag can be written. tensors: the names of all tensors.
    """
    # BERT's head has its bias by two names, which are two parameters in an untied model.
    second_biases = [
        f'tensors["{name}"] = tensors["{known.copies[name]}"].clone()'
        for name in known.separate
        if known.copies[name] in tensors and name not in tensors
    ]
    # Two different matrices are an untied model, if nothing else is known.
    likely_tied = len(set(now.state) - {"."}) < 2
    for changed, lines in changes(known, now, in_one_file):
        for tied in (None, likely_tied, not likely_tied):  # None: the flags stay
            new_flags = {} if tied is None else dict.fromkeys(places, tied)
            letter_of = dict(zip(known.places, changed.flags, strict=True))
            letter_of |= {place: LETTER_OF_FLAG[flag] for place, flag in new_flags.items()}
            after = replace(changed, flags="".join(letter_of.values()))
            if after == now or not is_clean(known, after):
                continue
            biases = second_biases if tied is False else []
            if biases and not in_one_file:  # they have to be written into the file
                continue
            reason = "if this head was trained, " if now.state == "ab" else ""
            if tied and "." in now.state[:2]:  # the files have no embedding, or no head
                reason = "unless the other matrix was lost, "
            return describe_mend(new_flags, [*lines, *biases], reason)
    return None


def describe_mend(flags: dict[str, bool], lines: list[str], reason: str) -> dict[str, Any]:
    """A mend: "flags" for places in config.json, "python" that changes the file, and a "text".

    lines: of Python, for `tensors`: name -> tensor. reason: when the mend is right, for the text.
    """
    python = "\n".join(["import os", READ_FILE, *lines, WRITE_FILE]) if lines else ""
    run = "run, with the model's directory in place of DIRECTORY:"
    text = f"{reason}{run}"
    if flags:
        value = "true" if next(iter(flags.values())) else "false"  # the same at each place
        inner = [place for place in flags if place]
        also = f", also in {' and '.join(inner)} in it" if inner else ""
        text = f'{reason}write "{FLAG}": {value} into config.json{also}'
        if lines:
            text += f", and {run}"
    if lines:
        text += f"\n{python}"
    return {"flags": flags, "python": python, "text": text}


def changes(known: ModelClass, now: Files, in_one_file: bool) -> Iterator[tuple[Files, list[str]]]:
    """Changes of the file, the smallest first, and the lines of Python that make them."""
    yield now, []
    if not in_one_file:
        return
    usual = known.names[USUAL]
    there = known.names[now.name_set]
    stored = [number for number, letter in enumerate(now.state) if letter != "."]
    renamed = [number for number in stored if usual[number] != there[number]]
    # The head alone has an unusual name. In files where the embedding has one, too, or where names
    # lack a prefix, all other tensors would have to be renamed as well.
    if renamed == [1] and known.absent_prefixes[now.name_set] == "":
        line = f'tensors["{usual[1]}"] = tensors.pop("{there[1]}")'
        yield replace(now, name_set=USUAL), [line]
    if now.name_set != USUAL or len(usual) != 2:  # an encoder and a decoder have more matrices
        return
    embedding, head = usual
    if now.state == ".a":
        line = f'tensors["{embedding}"] = tensors.pop("{head}")'
        yield replace(now, state="a."), [line]
        line = f'tensors["{embedding}"] = tensors["{head}"].clone()'
        yield replace(now, state="aa"), [line]
    if now.state == "a.":
        line = f'tensors["{head}"] = tensors["{embedding}"].clone()'
        yield replace(now, state="aa"), [line]


def is_clean(known: ModelClass, files: Files) -> bool:
    """Whether every reader reads all that the files hold, in the same way, and nothing at random.

    A reading (kinds.py) is what a program has in memory: None if it is not known.
    """
    # transformers, each version that has the class
    readings = [
        known.reading(version, files.name_set, files.flags, files.state)
        for version in VERSIONS
        if version in known.versions
    ]
    # vLLM and programs like it. If two places contradict each other, which one counts is not known.
    if known.has_usual_rule(files.name_set):
        flags = {
            {"t": True, "f": False, "-": known.default(place)}[letter]
            for place, letter in zip(known.places, files.flags, strict=True)
        }
        if len(flags) == 1:
            readings.append(by_rule(flags.pop(), files.state))
    known_readings = [reading for reading in readings if reading is not None]
    if not known_readings or len(known_readings) < len(readings):
        return False
    names = known.names[files.name_set]
    if any(what_is_lost(reading, files.state, names) for reading in known_readings):
        return False
    return agree(known_readings)
