"""Edits for fuzz tests: bytes or JSON texts in which a few things are changed at random.

The same seed gives the same edits. A JSON document is edited as Python's lists and dicts. A text in
it that stands between the marks RAW_BEGINS and RAW_ENDS is written without quotes, so that anything
can be written there. The mark NOT_WRITTEN is not written.
"""

import json
import random
import re
from collections.abc import Sequence
from copy import deepcopy
from typing import Any

# The most bytes that an edit leaves out or repeats. So most of a file stays as it is.
MOST_BYTES = 20


def edit_bytes(rng: random.Random, raw: bytes, interesting: Sequence[bytes]) -> bytes:
    """The bytes, of which some are changed, left out or repeated, with new bytes put in.

    interesting: the new bytes, of which an edit draws one item.
    """
    edited = bytearray(raw)
    n_edits = rng.choice((1, 1, 1, 2, 3, 8))  # 1 in half of all cases
    for _ in range(n_edits):
        places = [rng.randrange(len(edited) + 1), rng.randrange(len(edited) + 1)]
        start, end = sorted(places)
        part = bytes(edited[start : min(end, start + MOST_BYTES)])
        new = rng.choice(interesting)
        edit = rng.choice(("a byte", "a bit", "leave out", "repeat", "put in", "overwrite"))
        # start may be len(edited), where there is no byte. `% len(edited)` then gives byte 0.
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


# The marks in the texts of a document that is edited
RAW_BEGINS = "\ue000"
RAW_ENDS = "\ue001"
NOT_WRITTEN = "\ue002"


def written_like(name: str) -> str:
    """A different key for a dict, which edit_json writes as `name`.

    With it, an object in the JSON text can have a name twice, although a dict of Python cannot.
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


def edit_json(rng: random.Random, text: str) -> str:
    """A JSON text in which some values or names are replaced, left out, repeated or swapped.

    The result may be something else than JSON.
    """
    # edit_a_value edits the values in lists and dicts. The document is put in a list, so that it is
    # such a value, too, and can be replaced.
    root: list[Any] = [json.loads(text)]
    n_edits = rng.choice((1, 1, 1, 2, 3))  # mostly 1
    for _ in range(n_edits):
        edit_a_value(rng, root)

    # json.dumps writes the marks as the escapes \ue000, \ue001 and \ue002.
    edited = json.dumps(root[0]).replace(r"\ue002", "")
    return re.sub(r'"\\ue000(.*?)\\ue001"', unescaped, edited)


def unescaped(match: re.Match[str]) -> str:
    """The text between RAW_BEGINS and RAW_ENDS. json.loads removes the escapes of json.dumps."""
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
    """Edit a value, or the name of a value, anywhere in `root`, a list that holds the document.

    A node is a list or dict; its keys are the indices or names. The value node[key] is edited.
    Nothing changes if the edit that was drawn is not possible for this node.
    """
    node, key = some_place(rng, root)
    other_key = rng.choice(keys_of(node))
    is_object = isinstance(node, dict)
    is_root = node is root  # its only value, the document, is not left out and not repeated
    edit = rng.choice(EDITS)
    if edit == "a new value":
        node[key] = new_value(rng)
    elif edit == "a similar value":
        node[key] = similar_value(rng, node[key])
    elif edit == "leave out" and not is_root:
        del node[key]
    elif edit == "repeat" and is_object:
        # written_like(key) is another key of the dict, but it is written as `key` in the JSON text.
        # So the object there has the name `key` twice, with two values.
        node[written_like(key)] = node[other_key]
    elif edit == "repeat" and not is_root:
        node.insert(other_key, node[key])  # node is a list, so its keys are indices
    elif edit == "swap":
        node[key], node[other_key] = node[other_key], node[key]
    elif edit == "a value from elsewhere":
        other_node, other_node_key = some_place(rng, root)
        node[key] = deepcopy(other_node[other_node_key])
    elif edit == "another name" and is_object:
        if rng.choice(("the name of another value", "a similar name")) == "a similar name":
            new_name = similar_value(rng, key)
        else:
            new_name = written_like(other_key)
        node[new_name] = node.pop(key)


def some_place(rng: random.Random, root: list[Any]) -> tuple[Any, Any]:
    """(a list or dict of the document, one of its keys), drawn at random.

    The search goes down from the root, a list that holds the document. It may stop in each list or
    dict of the document. So places near the root are not rare, although most places are deep in it.
    """
    node: Any = root
    while True:
        key = rng.choice(keys_of(node))
        child = node[key]
        has_children = isinstance(child, list | dict) and len(child) > 0
        if not has_children:
            return node, key
        # It does not stop in the root, because an edit there replaces the whole document.
        if node is not root and rng.random() < 0.3:
            return node, key
        node = child


def keys_of(node: Any) -> Sequence[Any]:
    """The names in a dict, or the indices of a list."""
    if isinstance(node, dict):
        return list(node)
    return range(len(node))


def new_value(rng: random.Random) -> str:
    """A value between the marks that edit_json writes without quotes: JSON, or nearly JSON.

    One time in eight, it is an array in an array in an array and so on, or nested objects.
    """
    value = rng.choice(RAW)
    if rng.randrange(8) == 0:
        # Python allows 1,000 nested calls. Some depths are near that, and one is far beyond.
        depth = rng.choice((2, 100, rng.randrange(200, 1000), 100_000))
        if rng.choice(("arrays", "objects")) == "arrays":
            value = "[" * depth + "0" + "]" * depth
        else:
            value = '{"a":' * depth + "0" + "}" * depth
    return RAW_BEGINS + value + RAW_ENDS


def similar_value(rng: random.Random, value: Any) -> Any:
    """A similar value: another number, a text with one character changed, or [value]."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        similar = (value + 1, value - 1, value * 2, -value, float(value), str(value), [value])
        return rng.choice(similar)
    has_marks = isinstance(value, str) and RAW_BEGINS in value  # the marks must stay
    if isinstance(value, str) and not has_marks:
        start = rng.randrange(len(value) + 1)
        new = rng.choice(("", " ", "\0", "\n", "x", "\ud800", "é", "Ġ"))
        n_replaced = rng.randrange(2)  # 0: `new` is put in; 1: `new` replaces a character
        end = start + n_replaced
        return value[:start] + new + value[end:]
    return [value]
