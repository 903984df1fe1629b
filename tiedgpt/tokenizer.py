r"""Byte-level BPE: text to ids and back, as GPT-2 does it.

Text is UTF-8 bytes, and each of the 256 bytes is a token, so no text is without ids. Merges join two
neighbouring tokens into a longer one, in the order in which they were learned, the commonest pair first.
Three merges will do for an example; "Ġ" is how a vocabulary spells the space:

    >>> tokenizer = Tokenizer([("l", "o"), ("lo", "w"), ("Ġ", "low")])
    >>> ids = tokenizer.encode("low low loot")
    >>> [tokenizer.token_text(token_id) for token_id in ids], ids
    (['low', ' low', ' ', 'lo', 'o', 't'], [257, 258, 220, 256, 78, 83])
    >>> tokenizer.decode(ids)
    'low low loot'

This file encodes, and decodes, at once or as a stream. It reads no files (checkpoints/vocabulary.py does),
learns no merges (training/merges.py does), and adds no token that the text does not hold.
"""

import codecs
from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush
from itertools import chain, count, pairwise

import numpy as np
import regex

from .errors import ArgumentError, TokenizerError, short_repr

EOT = "<|endoftext|>"  # stands between the documents that GPT-2 was trained on

# Text is first cut into words, and merges happen inside a word only: "dog." and "dog!" share their "dog".
# A word takes along the space before it. subtle: `\s+(?!\S)` is white space up to the end of the text or,
# before a word, all of it but the last character, which the word takes along if it is a space:
# "a   b" is "a", "  ", " b". If it is another, as in "a\nb", the last `\s+` is for it.
WORDS = regex.compile(r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+""")

LONGEST_CACHED_WORD = 32  # characters; longer words seldom come twice
MAX_CACHED_WORDS = 32_768  # then all are forgotten; so many English words take 6 MB
MAX_SPECIAL = (
    200_000  # characters of all special tokens; a regex that finds so many takes a second to compile
)


def byte_alphabet() -> dict[int, str]:
    r"""Byte -> the character that spells it in vocabulary files: itself if printable, else chr(256 + n).

    They need one: a line of merges.txt is two tokens with a space between, and valid UTF-8, while a token
    may hold spaces, line ends, or half a UTF-8 character. The dict is in the order of its characters, which
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


def spelled_ids(merges: list[tuple[str, str]], first_id: int) -> dict[str, int]:
    """Every byte and every merge's result, as vocabulary files spell them -> its id.

    >>> ids = spelled_ids([("l", "o"), ("lo", "w")], first_id=0)
    >>> ids["!"], ids["lo"], ids["low"]
    (0, 256, 257)
    """
    return dict(zip(chain(byte_alphabet().values(), map("".join, merges)), count(first_id), strict=False))


class StreamDecoder:
    """Decodes one id at a time and never shows half a character: its bytes wait until it is complete.

    >>> tokenizer = Tokenizer([])
    >>> stream = tokenizer.stream()
    >>> [stream.push(token_id) for token_id in tokenizer.encode("né")], stream.finish()
    (['n', '', 'é'], '')
    """

    def __init__(self, token_bytes: Callable[[int], bytes]) -> None:
        self._token_bytes = token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, token_id: int) -> str:
        """The text that this token completes."""
        return self._decoder.decode(self._token_bytes(token_id))

    def finish(self) -> str:
        """What still waits: U+FFFD for a character that never became complete, else nothing."""
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
        ids = spelled_ids(merges, first_id)
        end = first_id + 256 + len(merges)
        special_tokens = {EOT: end} if special_tokens is None else special_tokens
        if not 0 <= first_id <= len(special_tokens):
            raise TokenizerError(
                f"the first byte has id {short_repr(first_id)}, expected 0 to {len(special_tokens)}: "
                "only special tokens come before it"
            )
        tokens = [b""] * first_id + [bytes([byte]) for byte in alphabet]  # id -> the bytes it stands for
        try:
            pairs = [(ids[left], ids[right]) for left, right in merges]
            for left_id, right_id in pairs:
                tokens.append(tokens[left_id] + tokens[right_id])  # IndexError: of a later merge
        except LookupError:
            raise _fault(merges) from None
        if len(ids) < 256 + len(merges):
            raise _fault(merges)
        # (left id, right id) -> the id of both as one. Ids follow the order of the merges, so the lowest
        # is the merge to do first: no separate rank is kept.
        self._merge_ids = dict(zip(pairs, count(first_id + 256), strict=False))

        self.special_tokens = dict(sorted(special_tokens.items(), key=lambda item: item[1]))
        free_ids = chain(range(first_id), count(end))
        for (text, token_id), expected in zip(self.special_tokens.items(), free_ids, strict=False):
            name = f"special token {short_repr(text)}"
            if token_id != expected:
                raise TokenizerError(f"{name} has id {short_repr(token_id)}, expected {expected}")
            if text == "" or text in ids:
                raise TokenizerError(f"{name} is {'an ordinary token too' if text else 'empty'}")
            tokens[expected : expected + 1] = [utf8(text, name)]  # in place of a b"", or at the end
        if (length := sum(map(len, special_tokens))) > MAX_SPECIAL:
            raise TokenizerError(
                f"{len(special_tokens)} special tokens of {length} characters; expected at most {MAX_SPECIAL}"
            )
        # Longest first: where both "<a>" and "<a><b>" are special, the text "<a><b>" is the second.
        longest_first = sorted(special_tokens, key=len, reverse=True)
        self._specials = regex.compile(f"({'|'.join(map(regex.escape, longest_first))})")

        self.merges = merges
        self.vocab_size = len(tokens)
        self.eot_id = special_tokens.get(EOT)
        self.first_id = first_id
        self._tokens = tokens
        self._byte_ids = [ids[alphabet[byte]] for byte in range(256)]
        self._cache: dict[str, list[int]] = {}  # word -> its ids

    def encode(self, text: str, special: str = "error") -> list[int]:
        """The ids of `text`. `special` says what the text of a special token in it is:

        "error"  a TokenizerError: text from elsewhere must not be able to end the document
        "token"  that token
        "text"   ordinary characters

        >>> tokenizer = Tokenizer([])
        >>> tokenizer.encode("!<|endoftext|>", special="token"), tokenizer.encode("<|", special="text")
        ([0, 256], [27, 91])
        """
        if special not in ("error", "token", "text"):
            raise ArgumentError(f"special must be 'error', 'token' or 'text', got {short_repr(special)}")
        utf8(text, "the text")
        if special == "text" or not self.special_tokens:
            return self._encode_words(text)
        if special == "error" and (found := self._specials.search(text)):
            raise TokenizerError(
                f"the text holds special token {short_repr(found[0])} at character {found.start()}, and text "
                "from elsewhere must not be able to end the document; special='token' reads it as that "
                "token, special='text' as ordinary characters"
            )
        ids: list[int] = []
        for part in self._specials.split(text):
            ids += [self.special_tokens[part]] if part in self.special_tokens else self._encode_words(part)
        return ids

    def _encode_words(self, text: str) -> list[int]:
        ids: list[int] = []
        for word in WORDS.findall(text):
            word_ids = self._cache.get(word)
            if word_ids is None:
                word_ids = self._merge([self._byte_ids[byte] for byte in word.encode()])
                if len(word) <= LONGEST_CACHED_WORD:
                    if len(self._cache) >= MAX_CACHED_WORDS:
                        self._cache.clear()
                    self._cache[word] = word_ids
            ids += word_ids
        return ids

    def _merge(self, ids: list[int]) -> list[int]:
        """The bytes of one word -> its tokens, by doing again what training did.

        Training took the merges one after the other, each from left to right through all of its text. So:
        of all merges that neighbours in the word have now, the one learned first (the lowest id), and of
        the places where it fits, the leftmost: "aaa" is "aa", "a". A heap finds that place and a linked
        list joins it in n log n steps for n bytes; to search the word again for each merge takes n * n.
        """
        merge_ids, end, gone = self._merge_ids, len(ids), -1
        # A symbol is known by its position. One that merges with nothing is put behind the last; as it is
        # ids[-1] to Python, it is also before the first.
        ids = [*ids, gone]
        after, before = [*range(1, end + 1), end], list(range(-1, end))
        heap = [(merge_ids[pair], n) for n, pair in enumerate(pairwise(ids)) if pair in merge_ids]
        heapify(heap)
        while heap:
            merged, left = heappop(heap)
            right = after[left]
            # Stale: a merge since then took one of the two symbols (a heap cannot drop entries from its
            # middle), and what stands there now does not merge into this id.
            if merge_ids.get((ids[left], ids[right])) != merged:
                continue
            ids[left], ids[right] = merged, gone
            after[left] = after[right]
            before[after[right]] = left
            for start in (before[left], left):  # the pairs that the new symbol is in
                candidate = merge_ids.get((ids[start], ids[after[start]]))
                if candidate is not None:
                    heappush(heap, (candidate, start))
        return [token_id for token_id in ids if token_id != gone]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that a token stands for."""
        # A list would take -1 for its last token, and True for token 1.
        is_int = type(token_id) is int or isinstance(token_id, np.integer)
        if not is_int or not 0 <= token_id < self.vocab_size:
            raise TokenizerError(
                f"{short_repr(token_id)} is not a token id: "
                f"expected an integer from 0 to {self.vocab_size - 1}"
            )
        return self._tokens[token_id]

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes that the tokens stand for; they may begin or end inside a character."""
        return b"".join([self.token_bytes(token_id) for token_id in ids])

    def decode(self, ids: Iterable[int]) -> str:
        """The text that the tokens stand for, special ones included; U+FFFD where it is not UTF-8."""
        return self.decode_bytes(ids).decode(errors="replace")

    def token_text(self, token_id: int) -> str:
        r"""One token for display: bytes that are not a whole character are written as \xe2.

        >>> tokenizer = Tokenizer([])
        >>> [tokenizer.token_text(token_id) for token_id in tokenizer.encode("né")]
        ['n', '\\xc3', '\\xa9']
        """
        return self.token_bytes(token_id).decode(errors="backslashreplace")

    def stream(self) -> StreamDecoder:
        """A decoder for ids that come one at a time; what it returns adds up to decode's text."""
        return StreamDecoder(self.token_bytes)


def _fault(merges: list[tuple[str, str]]) -> TokenizerError:
    """What is wrong with the first merge that is. (All are checked at once, faster, which does not say.)"""
    known = set(byte_alphabet().values())
    for number, (left, right) in enumerate(merges, 1):
        unknown = [part for part in (left, right) if part not in known]
        if unknown or left + right in known:
            what = (
                f"{short_repr(unknown[0])} is neither a byte nor an earlier merge"
                if unknown
                else "exists already"
            )
            return TokenizerError(f"merge {number}, {short_repr(f'{left} {right}')}: {what}")
        known.add(left + right)
    raise AssertionError("no merge is wrong")


def utf8(text: str, name: str) -> bytes:
    """The bytes of a text. Raises TokenizerError that says `name` where it holds half a surrogate pair."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise TokenizerError(
            f"character {error.start} of {name} is {text[error.start]!r}, half of a surrogate pair: "
            "what it was read from was not valid UTF-8"
        ) from None
