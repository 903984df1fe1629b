"""Edits for fuzz tests: bytes and JSON with a few changes, the same for the same seed."""

import json
import random
import re
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

# An edit leaves out or repeats at most so many bytes, so that most of a file stays as it is.
MOST_BYTES = 20


def edit_bytes(rng: random.Random, raw: bytes, interesting: Sequence[bytes]) -> bytes:
    """The bytes with some of them changed, left out or repeated, or with others among them.

    interesting: the others, of which an edit puts in one, or writes it over what is there.
    """
    edited = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):  # half of the time, there is one edit
        places = [rng.randrange(len(edited) + 1), rng.randrange(len(edited) + 1)]
        start, end = sorted(places)
        part = bytes(edited[start : min(end, start + MOST_BYTES)])
        new = rng.choice(interesting)
        edit = rng.choice(("a byte", "a bit", "leave out", "repeat", "put in", "overwrite"))
        # If start is the end of all bytes, % makes it the first byte.
        if edit == "a byte" and edited:
            edited[start % len(edited)] = rng.randrange(256)
        elif edit == "a bit" and edited:
            edited[start % len(edited)] ^= 1 << rng.randrange(8)
        elif edit == "leave out":
            del edited[start : start + len(part)]
        elif edit == "repeat":
            edited[end:end] = part
        elif edit == "put in":
            edited[start:start] = new
        elif edit == "overwrite":
            edited[start : start + len(new)] = new
    return bytes(edited)


# Marks in the texts of a document that is edited. edit_json writes what is between the first two as
# it stands, JSON or not. It does not write the third.
RAW_BEGINS = "\ue000"
RAW_ENDS = "\ue001"
NOT_WRITTEN = "\ue002"


def written_like(name: str) -> str:
    """A name that is another key of a dict, and that edit_json writes as `name`.

    So an object in the JSON can have a name twice, though a dict of Python cannot.
    """
    return name + NOT_WRITTEN


RAW = [  # values to write as they stand
    "null",
    "true",
    "false",
    "[]",
    "{}",
    "[0]",
    '{"a":0}',
    "NaN",
    "Infinity",
    "-Infinity",
    '""',
    r'"\n"',
    r'"\u0000"',
    r'"\ud800"',
    r'"\u0120a"',
    "-1",
    "0",
    "1",
    "2",
    "3",
    "4",
    "0.0",
    "-0.0",
    "1.0",
    "2.5",
    "1e-400",
    "1e999",
    str(2**31 - 1),
    str(2**31),
    str(2**62),
    str(2**63),
    str(2**64 - 1),
    str(2**64),
    str(-(2**62)),
    str(10**300),
    str(10**4000),
    "9" * 5000,  # more digits than Python reads
    json.dumps("x" * 10_000),
]


HOSTILE = [  # arguments of a command line, for scripts/attack.py
    "",
    " ",
    "a\nb",
    "\x1b[31mred",
    "\x9b2J",
    "\0",
    "a\0b",
    "\ud800",
    "\udcff",
    "\u202eabc",
    "é" * 300,
    "-",
    "--",
    "-1",
    "--head",
    "--model=x",
    "-n",
    "--no-such",
    "=",
    "@file",
    "%s %d %(prog)s {0}",
    "nan",
    "inf",
    "-inf",
    "1e999",
    "1e-400",
    "9" * 5000,
    "0x10",
    "1_0",
    "٣",
    " 1 ",
    "1.5",
    "-0",
    "true",
    ".",
    "..",
    "/",
    "~",
    "~root",
    "/dev/null",
    "/dev/full",
    "/proc/self/mem",
    "a/b/c/d",
    "../../etc",
    "x" * 300,
    "/".join("abc" * 500),
    "owner/" + "n" * 5000,
    "gpt2",
    "gpt3",
    "owner/name",
    "a.safetensors",
    "x" * 100_000,
]


def edit_json(rng: random.Random, text: str) -> str:
    """A JSON text with some values or names replaced, left out, repeated or swapped.

    It may be no JSON then.
    """
    # edit_a_value changes the values of a list or dict. The whole document is a value in a list
    # here, so that it can be replaced, too.
    root: list[Any] = [json.loads(text)]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):  # mostly, there is one edit
        edit_a_value(rng, root)

    # json.dumps writes the marks as escapes, such as \ue002.
    edited = json.dumps(root[0]).replace(r"\ue002", "")
    return re.sub(r'"\\ue000(.*?)\\ue001"', as_it_stands, edited)


def as_it_stands(match: re.Match[str]) -> str:
    """The text between RAW_BEGINS and RAW_ENDS, without the escapes of json.dumps."""
    return json.loads(f'"{match[1]}"')


EDITS = (
    "a new value",
    "a similar value",
    "leave out",
    "repeat",
    "swap",
    "a value from elsewhere",
    "another name",
)


def edit_a_value(rng: random.Random, root: list[Any]) -> None:
    """Change a value, or the name of one, somewhere in root [document].

    Nothing changes if the edit that was drawn is not possible at the place that was drawn.
    """
    node, key = some_place(rng, root)
    other_key = rng.choice(keys_of(node))
    is_object = isinstance(node, dict)
    is_root = node is root  # the document is not left out, and there is only one
    edit = rng.choice(EDITS)
    if edit == "a new value":
        node[key] = new_value(rng)
    elif edit == "a similar value":
        node[key] = similar_value(rng, node[key])
    elif edit == "leave out" and not is_root:
        del node[key]
    elif edit == "repeat" and is_object:
        # The object then has the name `key` twice, with two values.
        node[written_like(key)] = node[other_key]
    elif edit == "repeat" and not is_root:
        node.insert(other_key, node[key])  # the keys of an array are its indices
    elif edit == "swap":
        node[key], node[other_key] = node[other_key], node[key]
    elif edit == "a value from elsewhere":
        other_node, place = some_place(rng, root)
        node[key] = deepcopy(other_node[place])
    elif edit == "another name" and is_object:
        if rng.choice(("that of another value", "a similar one")) == "a similar one":
            new_name = similar_value(rng, key)
        else:
            new_name = written_like(other_key)
        node[new_name] = node.pop(key)


def some_place(rng: random.Random, root: list[Any]) -> tuple[Any, Any]:
    """An array or object, and a key or index of it.

    It goes down from the root, and may stop in each array or object. So a place near the root is
    found as often as one of the many places deep in a document.
    """
    node: Any = root
    while True:
        key = rng.choice(keys_of(node))
        child = node[key]
        has_children = isinstance(child, list | dict) and len(child) > 0
        if not has_children:
            return node, key
        if node is not root and rng.random() < 0.3:
            return node, key
        node = child


def keys_of(node: Any) -> Sequence[Any]:
    """The names in an object, or the indices of an array."""
    if isinstance(node, dict):
        return list(node)
    return range(len(node))


def new_value(rng: random.Random) -> str:
    """A text that is written as it stands: JSON of any kind, or nearly JSON."""
    value = rng.choice(RAW)
    if rng.randrange(8) == 0:
        # Python's limit for nested calls is 1,000. Some depths are near it, one is far beyond.
        depth = rng.choice((2, 100, rng.randrange(200, 1000), 100_000))
        if rng.choice(("arrays", "objects")) == "arrays":
            value = "[" * depth + "0" + "]" * depth
        else:
            value = '{"a":' * depth + "0" + "}" * depth
    return RAW_BEGINS + value + RAW_ENDS


def similar_value(rng: random.Random, value: Any) -> Any:
    """A value that is nearly the same: another number or text, or the value in a list."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        similar = (value + 1, value - 1, value * 2, -value, float(value), str(value), [value])
        return rng.choice(similar)
    is_raw = isinstance(value, str) and RAW_BEGINS in value  # its marks must stay
    if isinstance(value, str) and not is_raw:
        start = rng.randrange(len(value) + 1)
        new = rng.choice(("", " ", "\0", "\n", "x", "\ud800", "é", "Ġ"))
        end = start + rng.randrange(2)  # put in, or in place of a character
        return value[:start] + new + value[end:]
    return [value]
