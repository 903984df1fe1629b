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

checkpoints/vocabulary.py reads vocabulary files; training/merges.py learns merges.
"""

from collections.abc import Callable, Iterable, Iterator
from heapq import heapify, heappop, heappush
from itertools import chain, count, pairwise

import regex

from ..errors import COUNT, ArgumentError, TokenizerError, short_repr

EOT = "<|endoftext|>"  # separates the documents that GPT-2 was trained on

# Text is split into words first, and merges apply within a word: "dog." and "dog!" share the token "dog".
# A word includes the space before it. subtle: `\s+(?!\S)` matches white space up to the end of the text, or
# all white space before a word but its last character. If that last character is a space, it belongs to the
# word: "a   b" is "a", "  ", " b". Any other one, as in "a\nb", is matched by the final `\s+`.
WORDS = regex.compile(
    r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
)

LONGEST_CACHED_WORD = 32  # characters; longer words are rarely seen twice
MAX_CACHED_WORDS = 65_536  # in each of the cache's two dicts; so many English words take 12 MB
MAX_SPECIAL_LENGTH = (
    128  # characters; finding special tokens tries each of their lengths, in the worst case
)


def byte_alphabet() -> dict[int, str]:
    r"""Byte -> the character that vocabulary files write for it: itself if printable, else chr(256
    + n).

    A token may contain spaces, line breaks or part of a UTF-8 character; a line of merges.txt is
    valid UTF-8: two tokens, separated by a space. The dict has the order of GPT-2's ids: its n-th
    byte is token n.

    >>> alphabet = byte_alphabet()
    >>> "".join(alphabet[byte] for byte in "A é\n".encode()), bytes(list(alphabet)[:5])
    ('AĠÃ©Ċ', b'!"#$%')
    """
    printable = [
        byte for first, last in ("!~", "¡¬", "®ÿ") for byte in range(ord(first), ord(last) + 1)
    ]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + n) for n, byte in enumerate(others)
    }


def spelled_ids(merges: list[tuple[str, str]], first_id: int) -> dict[str, int]:
    """Each byte and each merge's result, as written in vocabulary files -> its id.

    >>> ids = spelled_ids([("l", "o"), ("lo", "w")], first_id=0)
    >>> ids["!"], ids["lo"], ids["low"]
    (0, 256, 257)
    """
    return dict(
        zip(chain(byte_alphabet().values(), map("".join, merges)), count(first_id), strict=False)
    )


class WordCache(dict[str, list[int]]):
    """Word -> its ids, computed when the word is first looked up.

    When `self` is full it becomes `older`, and the last `older` is dropped. Words in use are copied
    back.
    """

    def __init__(self, word_ids: Callable[[str], list[int]]) -> None:
        self.word_ids = word_ids
        self.older: dict[str, list[int]] = {}

    def __missing__(self, word: str) -> list[int]:
        ids = self.older.get(word) or self.word_ids(word)
        if len(word) <= LONGEST_CACHED_WORD:
            if len(self) >= MAX_CACHED_WORDS:
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

    The bytes have the ids from `first_id` on, followed by the merges in their order. Special tokens
    have the remaining ids of 0 to vocab_size - 1; one that is also an ordinary token keeps that
    one's id, and is read as one token, as transformers does. Raises TokenizerError if the
    vocabulary contradicts itself.

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
        ids = spelled_ids([], first_id)
        tokens = [bytes([byte]) for byte in alphabet]  # the bytes of each token, from `first_id` on
        # (left id, right id) -> the id of the merged token. Ids are in the order of the merges, so
        # the lowest id is the merge to apply first, and no separate rank is needed.
        self._merge_ids: dict[tuple[int, int], int] = {}
        for merged_id, (left, right) in enumerate(merges, first_id + 256):
            if left not in ids or right not in ids or left + right in ids:
                unknown = [short_repr(part) for part in (left, right) if part not in ids]
                fault = (
                    f"{unknown[0]} is no byte and no earlier merge" if unknown else "exists already"
                )
                raise TokenizerError(
                    f"merge {len(tokens) - 255}, {short_repr(f'{left} {right}')}: {fault}"
                )
            left_id, right_id = ids[left], ids[right]
            self._merge_ids[left_id, right_id] = ids[left + right] = merged_id
            tokens.append(tokens[left_id - first_id] + tokens[right_id - first_id])

        end = first_id + len(tokens)
        special_tokens = {EOT: end} if special_tokens is None else special_tokens
        own_ids = len(
            special_tokens.keys() - ids.keys()
        )  # special tokens that are not ordinary ones too
        if not 0 <= first_id <= own_ids:
            found = f"the first byte has id {short_repr(first_id)}, expected 0 to {own_ids}"
            raise TokenizerError(f"{found}: only special tokens come before it")
        tokens = [b""] * first_id + tokens
        self.special_tokens = dict(sorted(special_tokens.items(), key=lambda item: item[1]))
        free_ids = chain(range(first_id), count(end))
        for text, token_id in self.special_tokens.items():
            name = f"special token {short_repr(text)}"
            expected = ids[text] if text in ids else next(free_ids)
            if token_id != expected:
                raise TokenizerError(f"{name} has id {short_repr(token_id)}, expected {expected}")
            if not 1 <= len(text) <= MAX_SPECIAL_LENGTH:
                raise TokenizerError(
                    f"{name} has {len(text)} characters, expected 1 to {MAX_SPECIAL_LENGTH}"
                )
            text_bytes = utf8(text, name)
            if text in ids and tokens[expected] != text_bytes:
                raise TokenizerError(
                    f"{name} is also the spelling of an ordinary token of another text"
                )
            tokens[expected : expected + 1] = [text_bytes]  # replaces a b"", or is appended

        # To find special tokens in a text: a pattern for their first characters, and for each of
        # these the lengths to try, longest first ("<a><b>" before "<a>"). One pattern of all tokens
        # would take 85 us a character for 60,000 tokens, in a C call that Ctrl-C cannot interrupt.
        lengths: dict[str, set[int]] = {}
        for text in special_tokens:
            lengths.setdefault(text[0], set()).add(len(text))
        self._lengths = {first: sorted(found, reverse=True) for first, found in lengths.items()}
        firsts = "|".join(map(regex.escape, lengths)) if len(lengths) <= 100 else "."
        self._firsts = regex.compile(firsts, regex.DOTALL)
        self._ordinary_specials = (special_tokens.keys() & ids.keys()) - {EOT}

        self.merges, self.first_id = merges, first_id
        self.vocab_size, self._tokens = len(tokens), tokens
        self.eot_id = special_tokens.get(EOT)
        self._byte_ids = [ids[alphabet[byte]] for byte in range(256)]
        self._cache = WordCache(self._word_ids)

    def encode(self, text: str, special: str = "error") -> list[int]:
        """The ids of `text`. `special` says what to do with the text of a special token:

        "error"  raise TokenizerError: text from outside must not be able to end the document
        "token"  read it as that token
        "text"   read it as ordinary characters

        Raises ArgumentError for another `special`, TokenizerError for anything but Unicode text.

        >>> tokenizer = Tokenizer([])
        >>> tokenizer.encode("!<|endoftext|>", special="token"), tokenizer.encode("<|", special="text")
        ([0, 256], [27, 91])
        """
        if special not in ("error", "token", "text"):
            raise ArgumentError(
                f"special must be 'error', 'token' or 'text', got {short_repr(special)}"
            )
        utf8(text, "the text")
        if special == "error" and (token := self.find_special(text)) is not None:
            found = f"the text contains special token {short_repr(token)} at character {text.index(token)}"
            how = "special='token' reads it as that token, special='text' as ordinary characters"
            raise TokenizerError(f"{found}; {how}")
        ids: list[int] = []
        done = 0
        for start, end in self._special_spans(text) if special != "text" else ():
            ids += self._encode_words(text[done:start])
            ids.append(self.special_tokens[text[start:end]])
            done = end
        return ids + self._encode_words(text[done:])

    def find_special(self, text: str) -> str | None:
        """The first special token in `text` that is not also an ordinary token; None if there is
        none.

        >>> Tokenizer([]).find_special("one<|endoftext|>two")
        '<|endoftext|>'
        """
        tokens = (text[start:end] for start, end in self._special_spans(text))
        return next((token for token in tokens if token not in self._ordinary_specials), None)

    def _special_spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Start and end of each special token in `text`, left to right, the longest if several
        fit."""
        end = 0
        for found in self._firsts.finditer(text) if self.special_tokens else ():
            start = found.start()
            for length in self._lengths.get(found[0], ()) if start >= end else ():
                if (token := text[start : start + length]) in self.special_tokens:
                    end = start + len(token)  # less than `length` at the end of the text
                    yield start, end
                    break

    def _encode_words(self, text: str) -> list[int]:
        return list(chain.from_iterable(map(self._cache.__getitem__, WORDS.findall(text))))

    def _word_ids(self, word: str) -> list[int]:
        """The ids of the tokens of one word.

        The next merge is always the one learned first (the lowest id) of those that fit somewhere
        in the word, at the leftmost place where it fits: "aaa" is "aa", "a". A heap finds that
        place and a linked list joins the two tokens, in n log n steps for n bytes; a search of the
        whole word would take n * n.
        """
        ids = [self._byte_ids[byte] for byte in word.encode()]
        merge_ids, end, gone = self._merge_ids, len(ids), -1
        # A token is identified by its position. An id that merges with nothing is appended; as
        # ids[-1], it is also the one before the first.
        ids = [*ids, gone]
        after, before = [*range(1, end + 1), end], list(range(-1, end))
        heap = [(merge_ids[pair], n) for n, pair in enumerate(pairwise(ids)) if pair in merge_ids]
        heapify(heap)
        while heap:
            merged, left = heappop(heap)
            right = after[left]
            # Skip an outdated entry: a later merge has used one of the two tokens. (A heap cannot
            # remove entries from its middle.)
            if merge_ids.get((ids[left], ids[right])) != merged:
                continue
            ids[left], ids[right] = merged, gone
            after[left] = after[right]
            before[after[right]] = left
            for start in (before[left], left):  # the pairs that contain the new token
                candidate = merge_ids.get((ids[start], ids[after[start]]))
                if candidate is not None:
                    heappush(heap, (candidate, start))
        return [token_id for token_id in ids if token_id != gone]

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of one token. Raises TokenizerError for an id outside 0 to vocab_size - 1."""
        if token_id not in COUNT or token_id >= self.vocab_size:  # a list would accept -1 and True
            raise TokenizerError(
                f"{short_repr(token_id)} is no token id from 0 to {self.vocab_size - 1}"
            )
        return self._tokens[token_id]

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of the tokens; they may begin or end inside a character. Raises as token_bytes
        does."""
        return b"".join([self.token_bytes(token_id) for token_id in ids])

    def decode(self, ids: Iterable[int]) -> str:
        """The text of the tokens, special ones included; U+FFFD where it is not UTF-8. Raises as
        above."""
        return self.decode_bytes(ids).decode(errors="replace")

    def token_text(self, token_id: int) -> str:
        r"""One token for display: bytes of an incomplete character are written as \xe2."""
        return self.token_bytes(token_id).decode(errors="backslashreplace")


def utf8(text: str, name: str) -> bytes:
    """The UTF-8 bytes of `text`. Raises TokenizerError, with `name`, for anything but Unicode
    text."""
    if not isinstance(text, str):
        raise TokenizerError(f"{name} must be a str, got {short_repr(text)}")
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        half = f"{text[error.start]!r}, half of a surrogate pair: the input was not valid UTF-8"
        raise TokenizerError(f"character {error.start} of {name} is {half}") from None
