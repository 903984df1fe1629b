"""Random texts whose characters every tokenizer knows, and byte-pair encoding as it is defined.

A word is a list of token ids. To merge a pair is to replace two neighbouring ids by one id.
"""

import random
import sys
import unicodedata
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from trace import Trace

# Whether a character is a letter depends on the version of Unicode. regex, tiktoken and Python have
# different versions. All of them know the characters of Unicode 3.2, of which every Python has a
# table. They know the two blocks of emoji, too, which are complete since Unicode 8.
EMOJI = range(0x1F300, 0x1F650)


@cache
def known_characters() -> list[str]:
    """All characters of Unicode 3.2, and the emoji."""
    characters = []
    # Planes 3 to 13 are empty, and those after plane 14 are private.
    for code in (*range(0x30000), *range(0xE0000, 0xF0000)):
        category = unicodedata.ucd_3_2_0.category(chr(code))
        is_assigned = category not in ("Cn", "Cs", "Co")  # unassigned, surrogate, private
        if is_assigned or code in EMOJI:
            characters.append(chr(code))
    return characters


@cache
def alphabets() -> list[str]:
    """Strings of characters, one string for each kind: letters, digits, white space and so on.

    A tokenizer treats these kinds differently where it cuts a text into words. random_texts draws a
    string, and then a character of it.
    """
    return [
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
        # Letters and spaces about as often as English has them, and many apostrophes.
        "the of and ing er tion don't I'll we've she'd it's you're I'm 'S 'LL ''s",
        "0123456789²½Ⅷ٣८",
        "    \n\n\t\r\v\f\x1c\x85\xa0\u1680\u2003\u2028\u3000",
        ".,;:!?-_()[]{}<>|/\\\"'`~@#$%^&*+=\u2019\u20ac\xa7\xb1\xd7",
        "äöüßéèñçøåżščœæıİǅǈ",
        "αβγδеёжзשלוםمرحباनमस्तेไทยქართული",
        "日本語中文字漢かなカナ한국어",
        "é́̈ñ̃zz̧\u200d\u200b\ufeff\ufe0f\u20e3",
        "\x00\x01\x07\x08\x1b\x7f\x80\x9f\xad",
        "".join(chr(code) for code in EMOJI),
        "".join(known_characters()),
    ]


def random_texts(count: int, seed: int) -> list[str]:
    """Short texts of random characters, each drawn from a random one of the alphabets."""
    rng = random.Random(seed)
    texts = []
    for _ in range(count):
        text = ""
        for _ in range(rng.randrange(1, 40)):
            alphabet = rng.choice(alphabets())
            text += rng.choice(alphabet)
        texts.append(text)
    return texts


def assert_same_ids(texts: list[str], ours: Callable, theirs: Callable) -> None:
    for text in texts:
        assert ours(text) == theirs(text), f"the first text with other ids: {text!r}"


def byte_level_bpe(tokenizers, vocab_size: int, **options) -> tuple:
    """(a tokenizer, its trainer) of Hugging Face's library. The tokenizer has no merges yet."""
    byte_level = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = byte_level
    options = {"initial_alphabet": byte_level.alphabet(), "show_progress": False} | options
    return tokenizer, tokenizers.trainers.BpeTrainer(vocab_size=vocab_size, **options)


def merged_everywhere(word: list[int], pair: tuple[int, int], merged: int) -> list[int]:
    """The word after each `pair` in it is replaced by `merged`, from left to right."""
    out: list[int] = []
    place = 0
    while place < len(word):
        if tuple(word[place : place + 2]) == pair:
            out.append(merged)
            place += 2
        else:
            out.append(word[place])
            place += 1
    return out


def lines_run(function: Callable, *args: object) -> int:
    """How many lines of Python a call runs. A busy machine does not change this measure of work."""
    former_trace = sys.gettrace()  # a debugger or coverage may have set one
    counter = Trace(trace=False)
    counter.runfunc(function, *args)
    sys.settrace(former_trace)
    return sum(counter.results().counts.values())


def obvious_bpe(ids: list[int], merge_ids: dict[tuple[int, int], int]) -> list[int]:
    """Byte-pair encoding as it is defined.

    merge_ids has the id that replaces each pair. As long as there is such a pair in the ids, the
    one with the lowest new id is merged everywhere.
    """
    while True:
        pairs = [pair for pair in pairwise(ids) if pair in merge_ids]
        if not pairs:
            return ids
        lowest = min(pairs, key=lambda pair: merge_ids[pair])
        ids = merged_everywhere(ids, lowest, merge_ids[lowest])
