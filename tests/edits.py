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
        at, to = sorted(rng.randrange(len(edited) + 1) for _ in range(2))
        part = bytes(edited[at : min(to, at + 20)])
        new = rng.choice(interesting)
        match rng.randrange(6):
            case 0 if edited:
                edited[at % len(edited)] = rng.randrange(256)
            case 1 if edited:
                edited[at % len(edited)] ^= 1 << rng.randrange(8)
            case 2:
                del edited[at : at + len(part)]
            case 3:
                edited[to:to] = part
            case 4:
                edited[at:at] = new
            case 5:
                edited[at : at + len(new)] = new
    return bytes(edited)


# Marks in a value: text between the first two is written as it stands, JSON or not; the third is
# left out, so that an object can have a name twice.
RAW_BEGINS, RAW_ENDS, TWICE = "\ue000", "\ue001", "\ue002"

RAW = [
    *("null", "true", "false", "[]", "{}", "[0]", '{"a":0}', "NaN", "Infinity", "-Infinity"),
    *('""', r'"\n"', r'"\u0000"', r'"\ud800"', r'"\u0120a"'),
    *("-1", "0", "1", "2", "3", "4", "0.0", "-0.0", "1.0", "2.5", "1e-400", "1e999"),
    *map(str, (2**31 - 1, 2**31, 2**62, 2**63, 2**64 - 1, 2**64, -(2**62), 10**300, 10**4000)),
    "9" * 5000,  # more digits than Python reads
    json.dumps("x" * 10_000),
]


HOSTILE = [  # arguments of a command line
    *(
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
    ),
    *(
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
    ),
    *(
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
    ),
    *(
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
    ),
    *(
        "x" * 300,
        "/".join("abc" * 500),
        "owner/" + "n" * 5000,
        "gpt2",
        "gpt3",
        "owner/name",
        "a.safetensors",
    ),
    "x" * 100_000,
]


def edit_json(rng: random.Random, text: str) -> str:
    """A JSON text with some values or names replaced, left out, repeated or swapped; it may be none
    then."""
    root: list[Any] = [json.loads(text)]
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        node, at = _place(rng, root)
        other = rng.choice(_keys(node))
        match rng.randrange(7):
            case 0:
                node[at] = _new_value(rng)
            case 1:
                node[at] = _nudged(rng, node[at])
            case 2 if node is not root:
                del node[at]
            case 3 if isinstance(node, dict):  # twice, with another value
                node[at + TWICE] = node[other]
            case 3 if node is not root:
                node.insert(other, node[at])
            case 4:
                node[at], node[other] = node[other], node[at]
            case 5:
                others, there = _place(rng, root)
                node[at] = deepcopy(others[there])
            case 6 if isinstance(node, dict):
                name = _nudged(rng, at) if rng.randrange(2) else other + TWICE
                node[name] = node.pop(at)
    edited = json.dumps(root[0]).replace(r"\ue002", "")
    return re.sub(r'"\\ue000(.*?)\\ue001"', lambda raw: json.loads(f'"{raw[1]}"'), edited)


def _place(rng: random.Random, root: list[Any]) -> tuple[Any, Any]:
    """An array or object and a place in it, as likely near the root as in the largest of its
    branches."""
    node: Any = root
    while True:
        at = rng.choice(_keys(node))
        child = node[at]
        if (
            not isinstance(child, list | dict)
            or not child
            or (node is not root and rng.random() < 0.3)
        ):
            return node, at
        node = child


def _keys(node: Any) -> Sequence[Any]:
    return [*node] if isinstance(node, dict) else range(len(node))


def _new_value(rng: random.Random) -> str:
    value = rng.choice(RAW)
    if rng.randrange(8) == 0:
        depth = rng.choice((2, 100, rng.randrange(200, 1000), 100_000))
        opening, closing = rng.choice((("[", "]"), ('{"a":', "}")))
        value = opening * depth + "0" + closing * depth
    return RAW_BEGINS + value + RAW_ENDS


def _nudged(rng: random.Random, value: Any) -> Any:
    """A value that is nearly the same, where there is one."""
    match value:
        case bool():
            return not value
        case int() | float():
            return rng.choice(
                (value + 1, value - 1, value * 2, -value, float(value), str(value), [value])
            )
        case str() if RAW_BEGINS not in value:
            at = rng.randrange(len(value) + 1)
            new = rng.choice(("", " ", "\0", "\n", "x", "\ud800", "é", "Ġ"))
            return value[:at] + new + value[at + rng.randrange(2) :]
        case _:
            return [value]
