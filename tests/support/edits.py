"""Edits for fuzz tests: bytes and JSON with a few changes, the same for the same seed."""

import json
import random
import re
from collections.abc import Sequence
from copy import deepcopy
from typing import Any


def edit_bytes(rng: random.Random, raw: bytes, interesting: Sequence[bytes]) -> bytes:
    """The bytes with some of them changed, left out, put in, repeated or moved."""
    edited = bytearray(raw)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
        places = [rng.randrange(len(edited) + 1), rng.randrange(len(edited) + 1)]
        start, end = sorted(places)
        part = bytes(edited[start : min(end, start + 20)])
        new = rng.choice(interesting)
        kind = rng.randrange(6)
        if kind == 0 and edited:
            edited[start % len(edited)] = rng.randrange(256)
        elif kind == 1 and edited:
            edited[start % len(edited)] ^= 1 << rng.randrange(8)
        elif kind == 2:
            del edited[start : start + len(part)]
        elif kind == 3:
            edited[end:end] = part
        elif kind == 4:
            edited[start:start] = new
        elif kind == 5:
            edited[start : start + len(new)] = new
    return bytes(edited)


# Marks in a value. Text between the first two is written as it stands, JSON or not. The third is
# left out, so that an object can have a name twice.
RAW_BEGINS = "\ue000"
RAW_ENDS = "\ue001"
TWICE = "\ue002"

RAW = [
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


HOSTILE = [  # arguments of a command line
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
    root: list[Any] = [json.loads(text)]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        edit_a_value(rng, root)
    edited = json.dumps(root[0]).replace(r"\ue002", "")
    return re.sub(r'"\\ue000(.*?)\\ue001"', lambda raw: json.loads(f'"{raw[1]}"'), edited)


def edit_a_value(rng: random.Random, root: list[Any]) -> None:
    """Change a value, or the name of one, somewhere in root."""
    node, key = some_place(rng, root)
    other_key = rng.choice(keys_of(node))
    is_object = isinstance(node, dict)
    is_root = node is root
    kind = rng.randrange(7)
    if kind == 0:
        node[key] = new_value(rng)
    elif kind == 1:
        node[key] = similar_value(rng, node[key])
    elif kind == 2 and not is_root:
        del node[key]
    elif kind == 3 and is_object:
        node[key + TWICE] = node[other_key]
    elif kind == 3 and not is_root:
        node.insert(other_key, node[key])
    elif kind == 4:
        node[key], node[other_key] = node[other_key], node[key]
    elif kind == 5:
        other_node, place = some_place(rng, root)
        node[key] = deepcopy(other_node[place])
    elif kind == 6 and is_object:
        if rng.randrange(2):
            new_name = similar_value(rng, key)
        else:
            new_name = other_key + TWICE
        node[new_name] = node.pop(key)


def some_place(rng: random.Random, root: list[Any]) -> tuple[Any, Any]:
    """An array or object and a key of it, as likely near the root as deep in a large branch."""
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
    if isinstance(node, dict):
        return list(node)
    return range(len(node))


def new_value(rng: random.Random) -> str:
    """A text that is written as it stands: JSON of any kind, or nearly JSON."""
    value = rng.choice(RAW)
    if rng.randrange(8) == 0:
        depth = rng.choice((2, 100, rng.randrange(200, 1000), 100_000))
        opening, closing = rng.choice((("[", "]"), ('{"a":', "}")))
        value = opening * depth + "0" + closing * depth
    return RAW_BEGINS + value + RAW_ENDS


def similar_value(rng: random.Random, value: Any) -> Any:
    """A value that is nearly the same, where there is one."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        similar = (value + 1, value - 1, value * 2, -value, float(value), str(value), [value])
        return rng.choice(similar)
    if isinstance(value, str) and RAW_BEGINS not in value:
        start = rng.randrange(len(value) + 1)
        new = rng.choice(("", " ", "\0", "\n", "x", "\ud800", "é", "Ġ"))
        return value[:start] + new + value[start + rng.randrange(2) :]
    return [value]
