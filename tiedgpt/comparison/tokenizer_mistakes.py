"""The well-known mistakes in a tokenizer of GPT-2, as `compare --vectors` plants them.

ENCODERS and DECODERS are the lists. A row says what follows "yours", and has the function that
makes the mistake: a lambda, or a function with a name if it needs several steps. What is right is
in gpt2/tokenizer.py alone.

Tokens are spelled as in vocabulary files here: a character stands for each byte, "Ġ" for a space.
"""

import re
import unicodedata
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import pairwise

import regex

from ..gpt2.tokenizer import EOT, Tokenizer, byte_alphabet, spelled_ids

Bytes = Callable[[str], bytes]  # from a word to its bytes
Pattern = Callable[[str], Iterable[str]]  # from a text to its words
Merge = Callable[["Vocabulary", list[str]], list[str]]  # from the bytes of a word to its tokens
# GPT-2's split, in parts, of which a mistake replaces one
CONTRACTIONS = r"'(?:[sdmt]|ll|ve|re)"
LETTERS = r" ?\p{L}+"
DIGITS = r" ?\p{N}+"
OTHERS = r" ?[^\s\p{L}\p{N}]+"
SPACES = r"\s+(?!\S)|\s+"


@dataclass(frozen=True)
class Vocabulary:
    """What the wrong encoders need of a tokenizer."""

    tokenizer: Tokenizer

    @cached_property
    def ids(self) -> dict[str, int]:
        return spelled_ids(self.tokenizer.merges)

    @cached_property
    def ranks(self) -> dict[tuple[str, str], int]:
        return {pair: rank for rank, pair in enumerate(self.tokenizer.merges)}


def words_of(*parts: str) -> Pattern:
    """The words of a text by a split that is made of these parts."""
    return regex.compile("|".join(parts)).findall


RIGHT_WORDS = words_of(CONTRACTIONS, LETTERS, DIGITS, OTHERS, SPACES)


def lowest_rank(
    vocabulary: Vocabulary, tokens: list[str], at_its_last_place: bool = False
) -> list[str]:
    """The right one: the merge that was learned first, where it fits first, again and again."""
    while True:
        ranks = [vocabulary.ranks.get(pair) for pair in pairwise(tokens)]
        lowest = min((rank for rank in ranks if rank is not None), default=None)
        if lowest is None:
            return tokens
        places = [place for place, rank in enumerate(ranks) if rank == lowest]
        tokens = joined(tokens, places[-1] if at_its_last_place else places[0])


def joined(tokens: list[str], place: int) -> list[str]:
    return [*tokens[:place], tokens[place] + tokens[place + 1], *tokens[place + 2 :]]


def first_that_fits(vocabulary: Vocabulary, tokens: list[str]) -> list[str]:
    """The leftmost pair that has a merge, whichever was learned first."""
    place = 0
    while place < len(tokens) - 1:
        if (tokens[place], tokens[place + 1]) in vocabulary.ranks:
            tokens = joined(tokens, place)
            place = 0
        else:
            place += 1
    return tokens


def longest_match(vocabulary: Vocabulary, tokens: list[str]) -> list[str]:
    """The longest token that the text goes on with, without a look at the merges."""
    spelled = "".join(tokens)
    longest = []
    start = 0
    while start < len(spelled):
        end = len(spelled)
        while spelled[start:end] not in vocabulary.ids:
            end -= 1
        longest.append(spelled[start:end])
        start = end
    return longest


def one_pass(vocabulary: Vocabulary, tokens: list[str]) -> list[str]:
    """Each merge in the order in which it was learned, once, at its first place."""
    for pair in vocabulary.tokenizer.merges:
        for place in range(len(tokens) - 1):
            if (tokens[place], tokens[place + 1]) == pair:
                tokens = joined(tokens, place)
                break
    return tokens


def encode(
    vocabulary: Vocabulary,
    text: str,
    words: Pattern = RIGHT_WORDS,
    to_bytes: Bytes = str.encode,  # as UTF-8
    merge: Merge = lowest_rank,
    before: Callable[[str], str] = lambda text: text,
    reads_special: bool = True,
) -> list[int]:
    """The ids of a text, with one of the steps replaced."""
    alphabet = byte_alphabet()
    parts = re.split(f"({re.escape(EOT)})", text) if reads_special else [text]
    ids = []
    for part in parts:
        if part == EOT and reads_special:
            ids.append(vocabulary.tokenizer.special_tokens[EOT])
            continue
        for word in words(before(part)):
            tokens = merge(vocabulary, [alphabet[byte] for byte in to_bytes(word)])
            ids += [vocabulary.ids[token] for token in tokens]
    return ids


def surrogates(word: str) -> bytes:
    """Each half of an emoji as three bytes, as in programs whose characters have 16 bits."""
    units = word.encode("utf-16-be")
    pairs = [units[n : n + 2].decode("utf-16-be", "surrogatepass") for n in range(0, len(units), 2)]
    return "".join(pairs).encode("utf-8", "surrogatepass")


Encoder = Callable[[Vocabulary, str], list[int]]

ENCODERS: dict[str, Encoder] = {
    "takes the longest token that fits, without the merges": partial(encode, merge=longest_match),
    "makes the leftmost merge, not the one that was learned first": partial(
        encode, merge=first_that_fits
    ),
    "makes a merge at its last place first": partial(
        encode, merge=partial(lowest_rank, at_its_last_place=True)
    ),
    "makes each merge once, at its first place alone": partial(encode, merge=one_pass),
    "makes no merge": partial(encode, merge=lambda vocabulary, tokens: tokens),
    "merges across words: the text is not split": partial(encode, words=lambda text: [text]),
    "splits at white space alone": partial(encode, words=words_of(r" ?\S+", SPACES)),
    "takes [a-zA-Z] for \\p{L}": partial(
        encode,
        words=words_of(CONTRACTIONS, r" ?[a-zA-Z]+", DIGITS, r" ?[^\sa-zA-Z\p{N}]+", SPACES),
    ),
    "takes \\w for letters, as the module re without \\p{L}": partial(
        encode, words=words_of(CONTRACTIONS, r" ?\w+", r" ?[^\s\w]+", SPACES)
    ),
    "takes [0-9] for \\p{N}": partial(
        encode,
        words=words_of(CONTRACTIONS, LETTERS, r" ?[0-9]+", r" ?[^\s\p{L}0-9]+", SPACES),
    ),
    "takes each digit alone": partial(
        encode, words=words_of(CONTRACTIONS, LETTERS, r" ?\p{N}", OTHERS, SPACES)
    ),
    "takes [ \\t\\r\\n] for \\s": partial(
        encode,
        words=words_of(
            CONTRACTIONS,
            LETTERS,
            DIGITS,
            r" ?[^ \t\r\n\p{L}\p{N}]+",
            r"[ \t\r\n]+(?![^ \t\r\n])|[ \t\r\n]+",
        ),
    ),
    "lacks the contractions ('s, 't, 'll)": partial(
        encode, words=words_of(LETTERS, DIGITS, OTHERS, SPACES)
    ),
    "reads contractions in capitals, too ('S, 'LL)": partial(
        encode, words=words_of(f"(?i:{CONTRACTIONS})", LETTERS, DIGITS, OTHERS, SPACES)
    ),
    "lacks the rule \\s+(?!\\S): no space is left for the next word": partial(
        encode, words=words_of(CONTRACTIONS, LETTERS, DIGITS, OTHERS, r"\s+")
    ),
    "has the characters for bytes (latin-1), not UTF-8": partial(
        encode, to_bytes=lambda word: bytes(ord(character) % 256 for character in word)
    ),
    "drops what is not ASCII": partial(
        encode, to_bytes=lambda word: word.encode("ascii", "ignore")
    ),
    "writes an emoji as two halves of three bytes": partial(encode, to_bytes=surrogates),
    "makes LF of CR LF": partial(encode, before=lambda text: text.replace("\r\n", "\n")),
    "drops NUL, or ends there": partial(encode, before=lambda text: text.split("\0")[0]),
    "puts a space before the text": partial(encode, before=lambda text: f" {text}"),
    "removes white space at both ends": partial(encode, before=str.strip),
    "makes small letters of capitals": partial(encode, before=str.lower),
    "normalises characters (NFC)": partial(
        encode, before=lambda text: unicodedata.normalize("NFC", text)
    ),
    "normalises characters (NFKC)": partial(
        encode, before=lambda text: unicodedata.normalize("NFKC", text)
    ),
    "reads <|endoftext|> as ordinary characters": partial(encode, reads_special=False),
}


# From ids to text. A right decoder joins the bytes of all tokens, and reads them as UTF-8.

Decoder = Callable[[Tokenizer, list[int]], str]


def spelled(tokenizer: Tokenizer, ids: list[int]) -> str:
    alphabet = byte_alphabet()
    return "".join(alphabet[byte] for byte in tokenizer.decode_bytes(ids))


DECODERS: dict[str, Decoder] = {
    "decodes one token after the other, and a character has several": lambda tokenizer, ids: (
        "".join(tokenizer.decode([token]) for token in ids)
    ),
    "shows the characters of the vocabulary file, such as Ġ": spelled,
    "turns Ġ into a space, and no other character into its byte": lambda tokenizer, ids: (
        spelled(tokenizer, ids).replace("Ġ", " ").replace("Ċ", "\n")
    ),
    "drops <|endoftext|>": lambda tokenizer, ids: tokenizer.decode(
        [token for token in ids if token not in tokenizer.special_tokens.values()]
    ),
    "removes spaces before punctuation marks": lambda tokenizer, ids: re.sub(
        r" ([.,!?])", r"\1", tokenizer.decode(ids)
    ),  # clean_up_tokenization_spaces
    "removes white space at both ends": lambda tokenizer, ids: tokenizer.decode(ids).strip(),
    "drops bytes that are no character, without U+FFFD": lambda tokenizer, ids: (
        tokenizer.decode_bytes(ids).decode("utf-8", "ignore")
    ),
    "ends at NUL": lambda tokenizer, ids: tokenizer.decode(ids).split("\0")[0],
}
