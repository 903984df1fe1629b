"""The special tokens of a text, found as Hugging Face's tokenizers library finds them.

A text is searched for special tokens before the rest of it is cut into words. GPT-2 has one special
token, <|endoftext|>. Others are added to a vocabulary for dialogues or blanks, with flags:

    >>> tokens = SpecialTokens({"<mask>": Flags(lstrip=True)})
    >>> list(tokens.pieces("a <mask> b"))
    [(0, 1, None), (1, 8, '<mask>'), (8, 10, None)]
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import regex

# What \s matches in the tokenizers library: Unicode's White_Space. str.isspace() has four more.
WHITE_SPACE = frozenset(
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000"
)
WORD_CHARACTER = regex.compile(r"\w")


@dataclass(frozen=True)
class Flags:
    """Where a special token is found in a text. The names are those of tokenizer.json."""

    special: bool = True  # False: any text may contain it, and it is always read as a token
    normalized: bool = False  # it is searched for last, in what the other tokens leave of a text
    lstrip: bool = False  # the white space before it becomes a part of it
    rstrip: bool = False  # the white space after it becomes a part of it
    single_word: bool = False  # no letter, digit, accent or "_" may be next to it


class SpecialTokens:
    """Finds the special tokens of a vocabulary in a text.

    flags: each special token -> its flags.
    """

    def __init__(self, flags: Mapping[str, Flags]) -> None:
        self.flags = flags
        normalized = {token for token, its_flags in flags.items() if its_flags.normalized}
        self.searched_first = SpecialFinder(flags.keys() - normalized)
        self.searched_last = SpecialFinder(normalized)  # in what the first search leaves of a text

    def pieces(self, text: str, as_text: bool = False) -> Iterator[tuple[int, int, str | None]]:
        """Start, end and token of each piece of a text. The token is None for ordinary text.

        as_text: find only tokens that are not special. The others stay a part of the text around
            them.
        """
        for start, end, token in self._search(text, self.searched_first, as_text):
            if token is not None:
                yield start, end, token
                continue
            for inner_start, inner_end, inner_token in self._search(
                text[start:end], self.searched_last, as_text
            ):
                yield start + inner_start, start + inner_end, inner_token

    def _search(
        self, text: str, finder: "SpecialFinder", as_text: bool
    ) -> Iterator[tuple[int, int, str | None]]:
        """The pieces of a text, as `pieces` has them, with the tokens of one finder."""
        done = 0
        for start, end in finder.spans(text):
            token = text[start:end]
            flags = self.flags[token]
            if flags.special and as_text:
                continue
            if flags.single_word and is_within_a_word(text, start, end):
                continue
            start, end = with_white_space(text, start, end, flags, done)
            if start >= end:  # a token of white space, which the token before has taken
                continue
            if done < start:
                yield done, start, None
            yield start, end, token
            done = end
        if done < len(text):
            yield done, len(text), None


def is_within_a_word(text: str, start: int, end: int) -> bool:
    """Whether the character before `start` or the one at `end` is a part of a word.

    >>> is_within_a_word("foo bar", 4, 7), is_within_a_word("foobar", 3, 6)
    (False, True)
    """
    before = text[max(start - 1, 0) : start]
    after = text[end : end + 1]
    return bool(WORD_CHARACTER.match(before) or WORD_CHARACTER.match(after))


def with_white_space(text: str, start: int, end: int, flags: Flags, done: int) -> tuple[int, int]:
    """Start and end of a token with the white space that it takes.

    done: the end of the token before, or 0.
    """
    if flags.lstrip:
        while start > done and text[start - 1] in WHITE_SPACE:
            start -= 1
        # The token before may have taken the white space with which this one begins.
        start = max(start, done)
    if flags.rstrip:
        while end < len(text) and text[end] in WHITE_SPACE:
            end += 1
    return start, end


class SpecialFinder:
    """Finds special tokens in a text, the longest one where several begin.

    Only the first characters of special tokens are searched for. At each one, the lengths of the
    tokens that begin with it are tried. One pattern of all tokens would take 85 us a character for
    60,000 tokens, in a call of C code that Ctrl-C cannot interrupt.
    """

    def __init__(self, special_tokens: Collection[str]) -> None:
        self.special_tokens = special_tokens
        # A first character -> the lengths of the tokens that begin with it.
        lengths: dict[str, set[int]] = {}
        for token in special_tokens:
            lengths.setdefault(token[0], set()).add(len(token))

        # The longest is tried first: "<a><b>" before "<a>".
        self.lengths = {}
        for first, lengths_of_first in lengths.items():
            self.lengths[first] = sorted(lengths_of_first, reverse=True)

        if len(lengths) <= 100:
            pattern = "|".join(regex.escape(first) for first in lengths)
        else:
            pattern = "."  # every character, because a pattern of all first ones would be long
        self.first_characters = regex.compile(pattern, regex.DOTALL)

    def spans(self, text: str) -> Iterator[tuple[int, int]]:
        """Start and end of each special token in `text`, from left to right, without overlap."""
        if not self.special_tokens:
            return
        end = 0
        for match in self.first_characters.finditer(text):
            start = match.start()
            if start < end:  # within the token before
                continue
            for length in self.lengths.get(text[start], []):
                token = text[start : start + length]  # shorter at the end of the text
                if token in self.special_tokens:
                    end = start + len(token)
                    yield start, end
                    break
