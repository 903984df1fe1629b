r"""GPT-2's tokenizer, a byte-level BPE: text to token ids and back.

Text is encoded as UTF-8. Each of the 256 bytes is a token, so every text has ids. A merge joins two
adjacent tokens into a longer one. Merges apply in the order in which they were learned, the most
frequent pair first. An example with three merges (vocabulary files write the space as "Ġ"):

    >>> tokenizer = Tokenizer([("l", "o"), ("lo", "w"), ("Ġ", "low")])
    >>> ids = tokenizer.encode("low low loot")
    >>> [tokenizer.token_text(token_id) for token_id in ids], ids
    (['low', ' low', ' ', 'lo', 'o', 't'], [257, 258, 220, 256, 78, 83])
    >>> tokenizer.decode(ids)
    'low low loot'

special_tokens.py finds <|endoftext|> and the like in a text; checkpoints/vocabulary.py reads
vocabulary files; training/merges.py learns merges.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple
from heapq import heapify, heappop, heappush
from itertools import pairwise
from operator import itemgetter
from typing import Any

import regex

from ..errors import COUNT, ArgumentError, SpecialTokenError, TokenizerError, short_repr
from .special_tokens import Flags, SpecialTokens

EOT = "<|endoftext|>"  # separates the documents that GPT-2 was trained on

# Text is split into words first, and merges apply within a word: "dog." and "dog!" share the token
# "dog". A word includes the space before it. subtle: `\s+(?!\S)` matches white space up to the end
# of the text, or all white space before a word but its last character. If that last character is a
# space, it belongs to the word: "a   b" is "a", "  ", " b". Any other one, as in "a\nb", is matched
# by the final `\s+`.
WORDS = regex.compile(
    r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
)

LONGEST_CACHED_WORD = 32  # characters; longer words are rarely seen twice
MAX_CACHED_WORDS = 65_536  # in each of the cache's two dicts; so many English words take 12 MB
# In the worst case, each length up to this one is tried at each character of a text.
MAX_SPECIAL_LENGTH = 128
# The first and the last character of each range of printable bytes, read as Latin-1.
PRINTABLE = (("!", "~"), ("¡", "¬"), ("®", "ÿ"))
LARGEST_ID = 2**32 - 1  # as in transformers
GONE = -1  # in a word that is being merged: the id of a token that is now part of another


def byte_alphabet() -> dict[int, str]:
    r"""Byte -> the character that vocabulary files write for it.

    That is the byte's own character if it is printable, else chr(256 + n) for the n-th other byte.
    So each line of merges.txt is valid UTF-8: two tokens, separated by a space, though a token may
    contain spaces, line breaks or part of a UTF-8 character. The dict has the order of GPT-2's ids:
    its n-th byte is token n.

    >>> alphabet = byte_alphabet()
    >>> "".join(alphabet[byte] for byte in "A é\n".encode()), bytes(list(alphabet)[:5])
    ('AĠÃ©Ċ', b'!"#$%')
    """
    alphabet = {}
    for first, last in PRINTABLE:
        for byte in range(ord(first), ord(last) + 1):
            alphabet[byte] = chr(byte)
    others = [byte for byte in range(256) if byte not in alphabet]
    for n, byte in enumerate(others):
        alphabet[byte] = chr(256 + n)
    return alphabet


def spelled_bytes(name: str) -> bytes:
    r"""The bytes of a token from its name in a vocabulary file: the inverse of byte_alphabet().

    A name with another character than those of the alphabet is its own text, as in transformers.

    >>> spelled_bytes("Ġlow"), spelled_bytes("日")
    (b' low', b'\xe6\x97\xa5')
    """
    bytes_of_characters = {character: byte for byte, character in byte_alphabet().items()}
    if not bytes_of_characters.keys() >= set(name):
        return utf8(name, "the name of a token")
    return bytes(bytes_of_characters[character] for character in name)


def spelled_ids(merges: list[tuple[str, str]], first_id: int = 0) -> dict[str, int]:
    """Each byte and each merge's result, as written in vocabulary files -> its id in GPT-2's order.

    >>> ids = spelled_ids([("l", "o"), ("lo", "w")])
    >>> ids["!"], ids["lo"], ids["low"]
    (0, 256, 257)
    """
    spellings = list(byte_alphabet().values())
    for left, right in merges:
        spellings.append(left + right)
    unique = dict.fromkeys(spellings)  # two merges may make one token: "ab c" and "a bc"
    return {spelling: token_id for token_id, spelling in enumerate(unique, first_id)}


class WordCache(dict[str, list[int]]):
    """Word -> its ids, computed when the word is first looked up.

    There are two generations: the dict itself, and `older`. When the dict is full, its words become
    `older` and the former `older` is dropped. A word that is found in `older` is copied back, so
    words in use are kept. (functools.lru_cache cannot leave out long words, and takes longer.)
    """

    def __init__(self, word_ids: Callable[[str], list[int]]) -> None:
        self.word_ids = word_ids
        self.older: dict[str, list[int]] = {}

    def __missing__(self, word: str) -> list[int]:
        """What cache[word] returns if the dict itself lacks the word. It may be in `older`."""
        ids = self.older.get(word)
        if ids is None:
            ids = self.word_ids(word)
        if len(word) <= LONGEST_CACHED_WORD:
            is_full = len(self) >= MAX_CACHED_WORDS
            if is_full:  # its words become the older generation, and it begins anew
                self.older = dict(self)
                self.clear()
            self[word] = ids
        return ids


class Tokenizer:
    """A byte-level BPE vocabulary.

    merges: pairs of tokens, as vocabulary files write them, in the order in which they apply.
    special_tokens: text -> id; None is {"<|endoftext|>": the next id}, as in GPT-2; {} means none.
    ids: name -> id of the other tokens, as vocab.json has them: bytes, the results of the merges,
        and tokens that no merge makes, which no text has. None is GPT-2's order: the bytes have the
        ids 0 to 255, followed by the merges.
    flags: special token -> where it is found in a text; Flags() for those that are not given.
    prefix_space: put a space before each stretch of text that begins without one.

    A text with a byte that has no id cannot be encoded. Some ids may be no token's. A special token
    that is also an ordinary one, which is a byte or the result of a merge, has its id, and is read
    as one token, as transformers does. Raises TokenizerError if the vocabulary contradicts itself.

    >>> merges = [("l", "o")]
    >>> ids = spelled_ids(merges, first_id=1)
    >>> Tokenizer(merges, {"<|endoftext|>": 0}, ids).encode("lo!")
    [257, 1]
    """

    def __init__(
        self,
        merges: list[tuple[str, str]],
        special_tokens: Mapping[str, int] | None = None,
        ids: Mapping[str, int] | None = None,
        flags: Mapping[str, Flags] | None = None,
        prefix_space: bool = False,
    ) -> None:
        if ids is None:
            ids = spelled_ids(merges)
        check_ids(ids)
        if special_tokens is None:
            special_tokens = {EOT: max(ids.values(), default=-1) + 1}
        check_ids(special_tokens)
        for name, token_id in special_tokens.items():
            if ids.get(name, token_id) != token_id:
                raise TokenizerError(
                    f"special token {short_repr(name)} has id {token_id}, expected {ids[name]}, "
                    "its id as an ordinary token"
                )
        self.merges = merges
        # name -> id of every token, and of the special tokens, in the order of the ids
        by_id = itemgetter(1)
        self.ids = dict(sorted({**ids, **special_tokens}.items(), key=by_id))
        self.special_tokens = dict(sorted(special_tokens.items(), key=by_id))
        self.prefix_space = prefix_space

        # name -> bytes of each byte, to which `_add_merges` adds the results of the merges
        self.ordinary_tokens: dict[str, bytes] = {}
        self._byte_ids: dict[int, int] = {}
        for byte, name in byte_alphabet().items():
            if name in self.ids:  # a vocabulary may lack a byte, which then cannot be encoded
                self.ordinary_tokens[name] = bytes([byte])
                self._byte_ids[byte] = self.ids[name]
        # (left id, right id) -> the rank of this merge: the lowest is applied first. Its result has
        # the id _merged_ids[rank].
        self._ranks: dict[tuple[int, int], int] = {}
        self._merged_ids: list[int] = []
        self._add_merges()
        self.tokens = self._all_tokens()  # id -> bytes

        self.vocab_size = max(self.tokens, default=-1) + 1
        self.eot_id = special_tokens.get(EOT)
        self.flags = {token: (flags or {}).get(token, Flags()) for token in self.special_tokens}
        self._special = SpecialTokens(self.flags)
        self._cache = WordCache(self._word_ids)

    def __repr__(self) -> str:
        special = len(self.special_tokens)
        return (
            f"Tokenizer({len(self.ids):,} tokens, {len(self.merges):,} merges, {special} special)"
        )

    def description(self) -> list[Any]:
        """All that determines the ids of a text, for JSON. Equal ones give the same ids."""
        flags = [astuple(flags) for flags in self.flags.values()]
        return [self.merges, self.ids, self.special_tokens, flags, self.prefix_space]

    def _add_merges(self) -> None:
        """Add each merge's rank and its result. Both parts must be bytes or earlier results."""
        ids = self.ids
        ordinary = self.ordinary_tokens
        for rank, (left, right) in enumerate(self.merges):
            name = left + right
            for part in (left, right):
                if part not in ordinary:
                    reason = f"{short_repr(part)} is no byte and no earlier merge"
                    raise merge_error(rank, left, right, reason)
            if name not in ids:
                raise merge_error(rank, left, right, f"{short_repr(name)} has no id")
            pair = (ids[left], ids[right])
            if pair in self._ranks:
                raise merge_error(rank, left, right, "exists already")
            self._ranks[pair] = rank
            self._merged_ids.append(ids[name])
            ordinary[name] = ordinary[left] + ordinary[right]

    def _all_tokens(self) -> dict[int, bytes]:
        """id -> bytes of every token. Raises TokenizerError if two have one id."""
        names: dict[int, str] = {}
        tokens: dict[int, bytes] = {}
        for name, token_id in self.ids.items():
            if token_id in names:
                raise TokenizerError(
                    f"tokens {short_repr(names[token_id])} and {short_repr(name)} have one id, "
                    f"{token_id}"
                )
            names[token_id] = name
            if name in self.special_tokens:
                tokens[token_id] = self._special_bytes(name)
            elif name in self.ordinary_tokens:
                tokens[token_id] = self.ordinary_tokens[name]
            else:  # no merge makes it, and no text is searched for it
                tokens[token_id] = spelled_bytes(name)
        return tokens

    def _special_bytes(self, text: str) -> bytes:
        """The bytes of a special token. Raises TokenizerError for a text that cannot be one."""
        if not 1 <= len(text) <= MAX_SPECIAL_LENGTH:
            raise TokenizerError(
                f"special token {short_repr(text)} has {len(text)} characters, expected 1 to "
                f"{MAX_SPECIAL_LENGTH}"
            )
        text_bytes = utf8(text, "a special token")
        if self.ordinary_tokens.get(text, text_bytes) != text_bytes:  # "é" is how a byte is written
            raise TokenizerError(
                f"special token {short_repr(text)} is also the spelling of an ordinary token of "
                "another text"
            )
        return text_bytes

    def encode(self, text: str, special: str = "error") -> list[int]:
        """The ids of `text`. `special` says what to do with the text of a special token:

        "error"  raise SpecialTokenError: text from outside must not be able to end the document
        "token"  read it as that token
        "text"   read it as ordinary characters

        Raises ArgumentError for another `special`, TokenizerError for anything but Unicode text.

        >>> tokenizer = Tokenizer([])
        >>> tokenizer.encode("!<|endoftext|>", special="token")
        [0, 256]
        >>> tokenizer.encode("<|", special="text")
        [27, 91]
        """
        if special not in ("error", "token", "text"):
            raise ArgumentError(
                f"special must be 'error', 'token' or 'text', got {short_repr(special)}"
            )
        utf8(text, "the text")  # raises an error for anything but Unicode text
        ids: list[int] = []
        for start, end, token in self._special.pieces(text, as_text=special == "text"):
            if token is None:
                piece = text[start:end]
                if self.prefix_space and not piece.startswith(" "):
                    piece = " " + piece
                for word in WORDS.findall(piece):
                    ids += self._cache[word]
            elif special == "error" and not self._is_harmless(token):
                place = text.rindex(token, 0, end)  # start may be the white space before it
                raise SpecialTokenError(
                    f"the text contains special token {short_repr(token)} at character {place}; "
                    "special='token' reads it as that token, special='text' as ordinary characters",
                    token,
                )
            else:
                ids.append(self.special_tokens[token])
        return ids

    def _is_harmless(self, token: str) -> bool:
        """Whether a text from outside may contain this special token."""
        # A special token that is an ordinary one, too, is harmless, unless it ends a document.
        is_ordinary = token in self.ordinary_tokens and token != EOT
        return is_ordinary or not self.flags[token].special

    def _word_ids(self, word: str) -> list[int]:
        """The ids of the tokens of one word.

        The next merge is always the one learned first (the lowest rank) of those that fit somewhere
        in the word, at the leftmost place where it fits: "aaa" is "aa", "a". A heap finds that
        place and a linked list joins the two tokens, in n log n steps for n bytes; a search of the
        whole word would take n * n.
        """
        ranks = self._ranks
        try:
            ids = [self._byte_ids[byte] for byte in word.encode()]
        except KeyError as error:
            raise TokenizerError(
                f"the vocabulary has no token for byte 0x{error.args[0]:02x} of {short_repr(word)}"
            ) from None
        n = len(ids)

        # A token is known by the position of its first byte. The tokens next to the one at
        # position p are at after[p] and before[p]. One more entry, GONE, merges with nothing. It is
        # at position n, after the last token. It is also before the first token, whose `before` is
        # -1, because ids[-1] is the last entry.
        ids.append(GONE)
        after = list(range(1, n + 1))
        after.append(n)
        before = list(range(-1, n))

        heap = []
        for position, pair in enumerate(pairwise(ids)):
            if pair in ranks:
                heap.append((ranks[pair], position))
        heapify(heap)

        while heap:
            rank, left = heappop(heap)
            right = after[left]
            # Skip an outdated entry: one of the two tokens has become part of another since it was
            # pushed. (A heap cannot remove entries from its middle.)
            if ranks.get((ids[left], ids[right])) != rank:
                continue
            ids[left] = self._merged_ids[rank]
            ids[right] = GONE
            after[left] = after[right]
            before[after[right]] = left

            # Two new pairs contain the new token: with the one before it, and with the one after.
            for start in (before[left], left):
                next_rank = ranks.get((ids[start], ids[after[start]]))
                if next_rank is not None:
                    heappush(heap, (next_rank, start))
        return [token_id for token_id in ids if token_id != GONE]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token. Raises TokenizerError for an id that is no token's."""
        # COUNT has no True, which a dict takes for 1, and no list, which it cannot look up.
        token = self.tokens.get(token_id) if token_id in COUNT else None
        if token is None:
            raise TokenizerError(
                f"{short_repr(token_id)} is not a token id from 0 to {self.vocab_size - 1}"
            )
        return token

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of the tokens; they may begin or end inside a character.

        Raises TokenizerError for an id outside the vocabulary.
        """
        return b"".join([self.token_bytes(token_id) for token_id in ids])

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the tokens, special ones included; U+FFFD where it is not UTF-8.

        A special token is its own text. (transformers takes the letters of "<é>" for bytes, and
        gives U+FFFD for the é.)

        Raises TokenizerError for an id outside the vocabulary.
        """
        return self.decode_bytes(ids).decode(errors="replace")

    def token_text(self, token_id: int) -> str:
        r"""One token for display: bytes of an incomplete character are written as \xe2."""
        return self.token_bytes(token_id).decode(errors="backslashreplace")


def check_ids(ids: Mapping[str, int]) -> None:
    """Raise TokenizerError for an id that is no whole number, or too large."""
    for name, token_id in ids.items():
        if type(token_id) is not int or not 0 <= token_id <= LARGEST_ID:  # True is no id
            raise TokenizerError(
                f"token {short_repr(name)} has id {short_repr(token_id)}, expected a whole number "
                f"from 0 to {LARGEST_ID}"
            )


def merge_error(rank: int, left: str, right: str, reason: str) -> TokenizerError:
    """The error that names a merge, and says what is wrong with it."""
    return TokenizerError(f"merge {rank + 1}, {short_repr(f'{left} {right}')}: {reason}")


def utf8(text: str, name: str) -> bytes:
    """The UTF-8 bytes of a text. Raises TokenizerError for anything but Unicode text.

    `name` says in the error what the text is.
    """
    if not isinstance(text, str):
        raise TokenizerError(f"{name} must be a str, got {short_repr(text)}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"character {error.start} of {name} is {text[error.start]!r}, half of a surrogate "
            "pair: the input was not valid UTF-8"
        ) from None
