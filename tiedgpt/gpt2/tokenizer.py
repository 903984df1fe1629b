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

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import astuple
from heapq import heapify, heappop, heappush
from itertools import chain, count, pairwise
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


def spelled_ids(
    merges: list[tuple[str, str]], first_id: int, missing_bytes: Collection[int] = ()
) -> dict[str, int]:
    """Each byte and each merge's result, as written in vocabulary files -> its id.

    >>> ids = spelled_ids([("l", "o"), ("lo", "w")], first_id=0)
    >>> ids["!"], ids["lo"], ids["low"]
    (0, 256, 257)
    """
    alphabet = byte_alphabet()
    spellings = [alphabet[byte] for byte in alphabet if byte not in missing_bytes]
    for left, right in merges:
        spellings.append(left + right)
    return {spelling: token_id for token_id, spelling in enumerate(spellings, first_id)}


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

    merges: pairs of tokens, as vocabulary files write them.
    special_tokens: text -> id; None is {"<|endoftext|>": the last id}, as in GPT-2; {} means none.
    first_id: the id of the first byte. GPT-2's is 0; Hugging Face's trainer puts special tokens
        first.
    flags: special token -> where it is found in a text; Flags() for those that are not given.
    unreachable_tokens: name -> id of tokens that have an id, but that no merge makes: no text has
        them.
    missing_bytes: bytes that are no tokens. A text with one of them cannot be encoded.
    prefix_space: put a space before each stretch of text that begins without one.

    The bytes have the ids from `first_id` on, followed by the merges in their order. All other
    tokens have the remaining ids of 0 to vocab_size - 1. A special token that is also an ordinary
    one has the ordinary token's id, and is read as one token, as transformers does. Raises
    TokenizerError if the vocabulary contradicts itself.

    >>> Tokenizer([("l", "o")], {"<|endoftext|>": 0}, first_id=1).encode("lo!")
    [257, 1]
    """

    def __init__(
        self,
        merges: list[tuple[str, str]],
        special_tokens: dict[str, int] | None = None,
        first_id: int = 0,
        flags: Mapping[str, Flags] | None = None,
        unreachable_tokens: dict[str, int] | None = None,
        missing_bytes: Collection[int] = (),
        prefix_space: bool = False,
    ) -> None:
        self.merges = merges
        self.first_id = first_id
        self.missing_bytes = frozenset(missing_bytes)
        self.prefix_space = prefix_space
        # _spelled_ids: spelling -> id of each ordinary token. _tokens: their bytes, in the order of
        # the ids. Both have the bytes at first, and `_add_merges` adds the merged tokens.
        alphabet = byte_alphabet()  # byte -> spelling, in the order of the bytes' ids
        bytes_here = [byte for byte in alphabet if byte not in self.missing_bytes]
        self._spelled_ids = spelled_ids([], first_id, self.missing_bytes)
        self._tokens = [bytes([byte]) for byte in bytes_here]

        # (left id, right id) -> the id of the merged token. Ids are in the order of the merges, so
        # the lowest id is the merge to apply first, and no separate rank is needed.
        self._merge_ids: dict[tuple[int, int], int] = {}
        self._add_merges(merges)

        if special_tokens is None:
            special_tokens = {EOT: first_id + len(self._tokens)}
        self.special_tokens = in_order_of_ids(special_tokens)
        self.unreachable_tokens = in_order_of_ids(unreachable_tokens or {})
        self._add_other_tokens()  # from here on, _tokens[id] has the bytes of each id

        self.vocab_size = len(self._tokens)
        self.eot_id = special_tokens.get(EOT)
        self.flags = {token: (flags or {}).get(token, Flags()) for token in self.special_tokens}
        self._special = SpecialTokens(self.flags)
        self._byte_ids = {byte: self._spelled_ids[alphabet[byte]] for byte in bytes_here}
        self._cache = WordCache(self._word_ids)

    def __repr__(self) -> str:
        special = len(self.special_tokens)
        return (
            f"Tokenizer({self.vocab_size:,} tokens, {len(self.merges):,} merges, {special} special)"
        )

    def description(self) -> list[Any]:
        """All that determines the ids of a text, for JSON. Equal ones give the same ids."""
        flags = [astuple(flags) for flags in self.flags.values()]
        others = [self.special_tokens, flags, self.unreachable_tokens, self.prefix_space]
        return [self.merges, self.first_id, sorted(self.missing_bytes), *others]

    def _add_merges(self, merges: list[tuple[str, str]]) -> None:
        """Give each merge's result the next id. Both parts must be bytes or earlier results."""
        ids = self._spelled_ids
        for number, (left, right) in enumerate(merges, start=1):
            for part in (left, right):
                if part not in ids:
                    merge = short_repr(f"{left} {right}")
                    raise TokenizerError(
                        f"merge {number}, {merge}: {short_repr(part)} is no byte and no earlier "
                        "merge"
                    )
            if left + right in ids:
                merge = short_repr(f"{left} {right}")
                raise TokenizerError(f"merge {number}, {merge}: exists already")

            left_id = ids[left]
            right_id = ids[right]
            merged_id = self.first_id + len(self._tokens)
            ids[left + right] = merged_id
            self._merge_ids[left_id, right_id] = merged_id
            left_bytes = self._tokens[left_id - self.first_id]
            right_bytes = self._tokens[right_id - self.first_id]
            self._tokens.append(left_bytes + right_bytes)

    def _add_other_tokens(self) -> None:
        """Check the ids of special and unreachable tokens, and put their bytes into `_tokens`.

        A special token that is an ordinary one, too, has the ordinary token's id. The others have
        the ids below first_id, then those after the last merge. Until this is called, `_tokens`
        begins with the token of id first_id.
        """
        ids = self._spelled_ids  # spelling -> id, of the bytes and the merged tokens
        first_id = self.first_id
        others = in_order_of_ids(self.special_tokens | self.unreachable_tokens)
        most_before = len(others.keys() - ids.keys())  # those that are not ordinary
        if not 0 <= first_id <= most_before:
            raise TokenizerError(
                f"the first byte has id {short_repr(first_id)}, expected 0 to {most_before}: "
                "only other tokens come before it"
            )
        self._tokens = [b""] * first_id + self._tokens  # the loop fills the first places
        ids_before_the_bytes = range(first_id)
        ids_after_the_merges = count(len(self._tokens))
        free_ids = chain(ids_before_the_bytes, ids_after_the_merges)
        for name, token_id in others.items():
            if name in ids:  # an ordinary token, which is in _tokens already
                self._check_special_token(name, token_id, ids[name])
                continue
            expected_id = next(free_ids)
            if name in self.special_tokens:
                token = self._check_special_token(name, token_id, expected_id)
            else:
                check_id(name, token_id, expected_id)
                token = spelled_bytes(name)
            if token_id < first_id:
                self._tokens[token_id] = token
            else:
                self._tokens.append(token)

    def _check_special_token(self, text: str, token_id: int, expected_id: int) -> bytes:
        """The bytes of a special token. Raises TokenizerError if its id or its text is wrong."""
        check_id(text, token_id, expected_id)
        if not 1 <= len(text) <= MAX_SPECIAL_LENGTH:
            raise TokenizerError(
                f"special token {short_repr(text)} has {len(text)} characters, expected 1 to "
                f"{MAX_SPECIAL_LENGTH}"
            )
        text_bytes = utf8(text, "a special token")
        is_ordinary = text in self._spelled_ids
        if is_ordinary and self._tokens[token_id] != text_bytes:
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
            elif special == "error" and not self._may_be_anywhere(token):
                raise SpecialTokenError(
                    f"the text contains special token {short_repr(token)} at character "
                    f"{text.rindex(token, 0, end)}; special='token' reads it as that token, "
                    "special='text' as ordinary characters",
                    token,
                )
            else:
                ids.append(self.special_tokens[token])
        return ids

    def _may_be_anywhere(self, token: str) -> bool:
        """Whether any text may contain this special token."""
        # The text of an ordinary token may be anywhere, but that of EOT ends a document.
        is_ordinary = token in self._spelled_ids and token != EOT
        return is_ordinary or not self.flags[token].special

    def _word_ids(self, word: str) -> list[int]:
        """The ids of the tokens of one word.

        The next merge is always the one learned first (the lowest id) of those that fit somewhere
        in the word, at the leftmost place where it fits: "aaa" is "aa", "a". A heap finds that
        place and a linked list joins the two tokens, in n log n steps for n bytes; a search of the
        whole word would take n * n.
        """
        merge_ids = self._merge_ids
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
            if pair in merge_ids:
                heap.append((merge_ids[pair], position))
        heapify(heap)

        while heap:
            merged_id, left = heappop(heap)
            right = after[left]
            # Skip an outdated entry: one of the two tokens has become part of another since it was
            # pushed. (A heap cannot remove entries from its middle.)
            if merge_ids.get((ids[left], ids[right])) != merged_id:
                continue
            ids[left] = merged_id
            ids[right] = GONE
            after[left] = after[right]
            before[after[right]] = left

            # Two new pairs contain the new token: with the one before it, and with the one after.
            for start in (before[left], left):
                next_id = merge_ids.get((ids[start], ids[after[start]]))
                if next_id is not None:
                    heappush(heap, (next_id, start))
        return [token_id for token_id in ids if token_id != GONE]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token. Raises TokenizerError for an id outside 0 to vocab_size - 1."""
        # COUNT has no -1 and no True, which a list would accept as an index.
        if token_id not in COUNT or token_id >= self.vocab_size:
            raise TokenizerError(
                f"{short_repr(token_id)} is not a token id from 0 to {self.vocab_size - 1}"
            )
        return self._tokens[token_id]

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


def in_order_of_ids(ids: Mapping[str, int]) -> dict[str, int]:
    """The tokens of a vocabulary, or some of them, sorted by their ids."""
    return dict(sorted(ids.items(), key=lambda item: item[1]))


def check_id(name: str, token_id: int, expected_id: int) -> None:
    """Raise TokenizerError if a token has another id than the one that is left for it."""
    if token_id != expected_id:
        raise TokenizerError(
            f"token {short_repr(name)} has id {short_repr(token_id)}, expected {expected_id}"
        )


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
