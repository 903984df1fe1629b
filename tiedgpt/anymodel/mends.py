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
    # The places of the flag that config.json has, by their numbers in `flags`.
    present = [
        number
        for number, place in enumerate(known.places)
        if place == "" or fields_at(config, place)
    ]
    in_one_file = {matrix.file.name for matrix in matrices.stored} == {FILE}
    # Two different matrices are an untied model, if nothing else is known.
    likely = (False, True) if len(set(state) - {"."}) > 1 else (True, False)
    tries = (
        (changed, lines, tied)
        for changed, lines in changes(known, now, in_one_file)
        for tied in (None, *likely)  # None: the flags stay
    )
    # BERT's head has its bias by two names, which are two parameters in an untied model.
    second_biases = [
        f'tensors["{name}"] = tensors["{known.copies[name]}"].clone()'
        for name in known.separate
        if known.copies[name] in tensors and name not in tensors
    ]
    found = []
    for changed, lines, tied in tries:
        letters = list(changed.flags)
        for number in present if tied is not None else ():
            letters[number] = "t" if tied else "f"
        after = replace(changed, flags="".join(letters))
        if after == now or not is_clean(known, after):
            continue
        if tied is False and second_biases:
            if not in_one_file:
                continue
            lines = [*lines, *second_biases]
        reason = "if this head was trained, " if state == "ab" else ""
        if tied and "." in state[:2]:  # the embedding or the head
            reason = "unless the other matrix was lost, "
        new_flags = {} if tied is None else {known.places[number]: tied for number in present}
        found.append(as_report(new_flags, lines, reason))
        break
    without_head = replace(now, state="a.")
    if found and state == "ab" and in_one_file and is_clean(known, without_head):
        head = known.names[now.name_set][1]
        found.append(as_report({}, [f'del tensors["{head}"]'], "if it is an old copy, "))
    return found


def as_report(flags: dict[str, bool], lines: list[str], reason: str) -> dict[str, Any]:
    """A mend: "flags" for places in config.json, "python" that changes the file, and a "text".

    lines: of Python, for `tensors`: name -> tensor. reason: when it is right, for the text.
    """
    python = "\n".join(["import os", READ_FILE, *lines, WRITE_FILE]) if lines else ""
    steps = [f"{reason}run, with the model's directory in place of DIRECTORY:"]
    if flags:
        value = "true" if next(iter(flags.values())) else "false"
        inner = [place for place in flags if place]
        also = f", also in {' and '.join(inner)} in it" if inner else ""
        steps = [f'{reason}write "{FLAG}": {value} into config.json{also}']
        if lines:
            steps = [f"{steps[0]}, and run, with the model's directory in place of DIRECTORY:"]
    if lines:
        steps.append(python)
    return {"flags": flags, "python": python, "text": "\n".join(steps)}


def changes(known: ModelClass, now: Files, in_one_file: bool) -> Iterator[tuple[Files, list[str]]]:
    """Changes of the file, the smallest first, and the lines of Python that make them."""
    yield now, []
    if not in_one_file:
        return
    usual = known.names[USUAL]
    there = known.names[now.name_set]
    stored = [number for number, letter in enumerate(now.state) if letter != "."]
    renamed = [number for number in stored if usual[number] != there[number]]
    # The head alone has an unusual name. If another matrix has one, so have the file's other
    # tensors; they have it, too, if they lack a prefix.
    if renamed == [1] and known.absent_prefixes[now.name_set] == "":
        line = f'tensors["{usual[1]}"] = tensors.pop("{there[1]}")'
        yield replace(now, name_set=USUAL), [line]
    if now.name_set != USUAL or len(usual) != 2:
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
    """Whether every reader reads all that the files hold, the same, and nothing at random.

    A reading (kinds.py) is what a program has in memory: None if it is not known.
    """
    readings = [
        known.reading(version, files.name_set, files.flags, files.state)
        for version in VERSIONS
        if version in known.versions
    ]
    if known.has_usual_rule(files.name_set):
        flags = {
            {"t": True, "f": False, "-": known.default(place)}[letter]
            for place, letter in zip(known.places, files.flags, strict=True)
        }
        if len(flags) == 1:
            readings.append(by_rule(flags.pop(), files.state))
    measured = [reading for reading in readings if reading is not None]
    if not measured or len(measured) < len(readings):
        return False
    names = known.names[files.name_set]
    if any(what_is_lost(reading, files.state, names) for reading in measured):
        return False
    return agree(measured)
