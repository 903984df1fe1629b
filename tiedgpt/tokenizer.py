r"""Byte-level BPE: text to ids and back, as GPT-2 does it.

Text is UTF-8 bytes, and each of the 256 bytes is a token, so there is nothing that has no ids. Merges join
two neighbouring tokens into a longer one, in the order in which they were learned, commonest pair first.
Three merges will do for an example; "Ġ" is how a vocabulary spells the space:

    >>> tokenizer = Tokenizer([("l", "o"), ("lo", "w"), ("Ġ", "low")])
    >>> ids = tokenizer.encode("low low loot")
    >>> [tokenizer.token_text(token_id) for token_id in ids], ids
    (['low', ' low', ' ', 'lo', 'o', 't'], [257, 258, 220, 256, 78, 83])
    >>> tokenizer.decode(ids)
    'low low loot'

This file reads and spells vocabularies (merges.txt with vocab.json, or tokenizer.json), encodes, and decodes,
at once or as a stream. It does not learn merges, and it adds no token that the text does not hold: what goes
before, after or around a text (a tokenizer.json's post_processor, truncation, padding) is the caller's.
"""

import codecs
import json
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from itertools import chain, count
from pathlib import Path
from typing import Any

import numpy as np
import regex

from .errors import ArgumentError, TokenizerError, show

EOT = "<|endoftext|>"  # stands between the documents that GPT-2 was trained on

# Text is first cut into words, and merges happen inside a word only: "dog." and "dog!" share their "dog".
# A word takes along the space before it. subtle: `\s+(?!\S)` is white space up to the end of the text or,
# before a word, all of it but the last character, which the word takes along if it is a space:
# "a   b" is "a", "  ", " b". Where it is none, as in "a\nb", the last `\s+` picks it up.
WORDS = regex.compile(r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""")

LONGEST_CACHED_WORD = 32  # characters; longer words seldom come twice
MAX_CACHED_WORDS = 65_536  # then all are forgotten: the cache stays below some 20 MB

# What a tokenizer.json may say where another value would give other ids. None also stands for "absent".
NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "normalizer": (None,),
    "model.type": ("BPE", None),  # older files leave it out
    "model.dropout": (None, 0),
    "model.continuing_subword_prefix": ("", None),
    "model.end_of_word_suffix": ("", None),
    "model.ignore_merges": (False, None),
    "pre_tokenizer.type": ("ByteLevel",),
    "pre_tokenizer.add_prefix_space": (False,),
    "pre_tokenizer.use_regex": (True, None),
}


def byte_alphabet() -> dict[int, str]:
    r"""Byte -> the character that spells it in vocabulary files: itself if printable, else chr(256 + n).

    They need one: a line of merges.txt is two tokens with a space between, and UTF-8 throughout, while a
    token may hold spaces, line ends, or half a UTF-8 character. The dict is in the characters' order, which
    is that of GPT-2's ids: its n-th byte is token n.

    >>> alphabet = byte_alphabet()
    >>> "".join(alphabet[byte] for byte in "A é\n".encode())
    'AĠÃ©Ċ'
    >>> bytes(list(alphabet)[:5]), list(alphabet.values()) == sorted(alphabet.values())
    (b'!"#$%', True)
    """
    printable = [byte for first, last in ("!~", "¡¬", "®ÿ") for byte in range(ord(first), ord(last) + 1)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {byte: chr(256 + n) for n, byte in enumerate(others)}


def spelled_tokens(merges: Iterable[tuple[str, str]]) -> list[str]:
    """The 256 bytes and the merges' results, as vocabulary files spell them, in the order of their ids.

    >>> spelled_tokens([("l", "o"), ("lo", "w")])[254:]
    ['ł', 'Ń', 'lo', 'low']
    """
    return [*byte_alphabet().values(), *map("".join, merges)]


class StreamDecoder:
    """Decodes one id at a time and never shows half a character: bytes wait until theirs is complete.

    >>> tokenizer = Tokenizer([])
    >>> stream = tokenizer.stream()
    >>> [stream.push(token_id) for token_id in tokenizer.encode("né")], stream.finish()
    (['n', '', 'é'], '')
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that is complete with this token and has not been returned before."""
        return self._decoder.decode(self._token_bytes(token_id))

    def finish(self) -> str:
        """What was still waiting: U+FFFD for a character that never became complete, else nothing."""
        return self._decoder.decode(b"", final=True)


class Tokenizer:
    """A byte-level BPE vocabulary. Raises TokenizerError if it contradicts itself.

    The bytes have the ids from `first_id` on, then come the merges in their order; the special tokens have
    what is left of 0 to vocab_size - 1. So GPT-2's ids follow from its merges, with "<|endoftext|>" after
    all (special_tokens=None). Hugging Face's trainer puts special tokens before all. {} means none.

    >>> Tokenizer([("l", "o")]).special_tokens
    {'<|endoftext|>': 257}
    >>> Tokenizer([("l", "o")], {"<|endoftext|>": 0}, first_id=1).encode("lo!")
    [257, 1]
    """

    def __init__(
        self,
        merges: list[tuple[str, str]],
        special_tokens: dict[str, int] | None = None,
        first_id: int = 0,
    ) -> None:
        alphabet = byte_alphabet()
        ids = {character: n for n, character in enumerate(alphabet.values(), first_id)}  # by spelling
        tokens = [bytes([byte]) for byte in alphabet]  # what each stands for, from first_id on
        # (left id, right id) -> the id of both merged. Ids follow the order of the merges, so the lowest id
        # is also the merge to do first: there is no other rank to keep.
        self._merge_ids: dict[tuple[int, int], int] = {}
        for number, (left, right) in enumerate(merges, 1):
            merged = left + right
            if left not in ids or right not in ids or merged in ids:
                raise TokenizerError(f"merge {number}, {_why_not(left, right, ids)}")
            left_id, right_id = ids[left], ids[right]
            self._merge_ids[left_id, right_id] = ids[merged] = first_id + len(tokens)
            tokens.append(tokens[left_id - first_id] + tokens[right_id - first_id])

        end = first_id + len(tokens)
        special_tokens = {EOT: end} if special_tokens is None else special_tokens
        for text, token_id in special_tokens.items():
            if type(token_id) is not int:  # isinstance would take True for 1
                raise TokenizerError(f"special token {show(text)}: expected an integer id, got {show(token_id)}")
            if text == "" or text in ids:
                raise TokenizerError(f"special token {show(text)} is {'a token already' if text else 'empty'}")
        self.special_tokens = dict(sorted(special_tokens.items(), key=lambda item: item[1]))
        free_ids = chain(range(first_id), count(end))
        for expected, (text, token_id) in zip(free_ids, self.special_tokens.items(), strict=False):
            if token_id != expected:
                raise TokenizerError(
                    f"special token {show(text)} has id {show(token_id)}, expected {expected}: the bytes and "
                    f"merges have {first_id} to {end - 1}, and no id is left out or given twice"
                )
        if not 0 <= first_id <= len(special_tokens):
            raise TokenizerError(
                f"the bytes' first id is {show(first_id)}, but the ids before it are special tokens', "
                f"of which there are {len(special_tokens)}"
            )
        special_bytes = [_utf8(text, f"special token {show(text)}") for text in self.special_tokens]

        self.merges = merges
        self.vocab_size = len(tokens) + len(special_tokens)
        self.eot_id = special_tokens.get(EOT)
        self._first_id = first_id
        self._tokens = [*special_bytes[:first_id], *tokens, *special_bytes[first_id:]]  # id -> bytes
        self._byte_ids = [ids[alphabet[byte]] for byte in range(256)]
        self._cache: dict[str, list[int]] = {}  # word -> ids
        # Longest first: of "<a>" and "<a><b>", the text "<a><b>" is the second.
        longest_first = sorted(special_tokens, key=len, reverse=True)
        self._special = regex.compile(f"({'|'.join(map(regex.escape, longest_first))})") if special_tokens else None

    # Vocabularies in files

    @classmethod
    def from_files(cls, merges_path: Path, vocab_path: Path | None = None) -> "Tokenizer":
        """From merges.txt (OpenAI: vocab.bpe); vocab.json (encoder.json) is checked against it, if given."""
        lines = _read_text(merges_path).replace("\r\n", "\n").rstrip("\n").split("\n")
        start = 1 if lines[0].startswith("#version") or lines == [""] else 0
        merges = _pairs([line.split(" ") for line in lines[start:]], f"{merges_path}, line", 1 + start)
        if vocab_path is None:
            return cls._from_vocabulary(merges, None, f"{merges_path}")
        return cls._from_vocabulary(merges, _read_json(vocab_path), f"{merges_path} and {vocab_path}")

    @classmethod
    def from_json(cls, path: Path) -> "Tokenizer":
        """From Hugging Face's tokenizer.json. One whose ids would not be those of this file is refused."""
        file = _read_json(path)
        model, pre_tokenizer, added = file.get("model"), file.get("pre_tokenizer"), file.get("added_tokens")
        match pre_tokenizer:
            case {"type": "Sequence", "pretokenizers": [dict(only)]}:
                pre_tokenizer = only
        match model:
            case {"vocab": dict(vocab), "merges": list(merges)}:
                pass
            case _:
                raise TokenizerError(f"{path}: expected a model with vocab and merges, got {show(model)}")
        for name, accepted in NEUTRAL_VALUES.items():
            section, _, key = name.rpartition(".")
            place = {"": file, "model": model, "pre_tokenizer": pre_tokenizer}[section]
            value = place.get(key) if isinstance(place, dict) else place
            if value not in accepted:
                raise TokenizerError(
                    f"{path}: {name} is {show(value)}, expected {accepted[0]!r}: GPT-2's ids are made without it"
                )
        for token in added or []:
            ...
