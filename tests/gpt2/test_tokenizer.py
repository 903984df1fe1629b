"""The tokenizer against published ids and against tiktoken; its files are in test_vocabulary.py.

EOT is <|endoftext|>. The bytes have the ids 0 to 255, in the order of byte_alphabet(). SMALL_MERGES
makes 256 "lo", 257 "low", 258 " low", 259 "er" and 260 "é", so that EOT has id 261.
"""

import json
import pickle
import random
import re
from functools import partial

import numpy as np
import pytest
from support.models import SMALL_MERGES
from support.reference import GPT2_MERGES, GPT2_VOCAB
from support.texts import (
    assert_same_ids,
    known_characters,
    lines_run,
    obvious_bpe,
    random_texts,
)

from tiedgpt.errors import SpecialTokenError, TokenizerError
from tiedgpt.gpt2 import tokenizer as module
from tiedgpt.gpt2.special_tokens import Flags
from tiedgpt.gpt2.tokenizer import EOT, WORDS, Tokenizer, byte_alphabet, spelled_ids


@pytest.fixture(scope="module")
def tiktoken_gpt2(gpt2: Tokenizer):
    """tiktoken's GPT-2 from the same two files; tiktoken.get_encoding would download them."""
    tiktoken = pytest.importorskip("tiktoken")
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks

    ranks = data_gym_to_mergeable_bpe_ranks(str(GPT2_MERGES), str(GPT2_VOCAB))
    settings = {"pat_str": WORDS.pattern, "mergeable_ranks": ranks, "special_tokens": {EOT: 50256}}
    return tiktoken.Encoding("gpt2", **settings)


def random_merges(rng: random.Random, letters: str, count: int) -> list[tuple[str, str]]:
    """`count` merges, each of two parts: letters, or tokens that earlier merges make."""
    merges: dict[str, tuple[str, str]] = {}  # a new token -> its two parts
    while len(merges) < count:
        left, right = rng.choices([*letters, *merges], k=2)
        if left + right not in merges:
            merges[left + right] = (left, right)
    return list(merges.values())


def test_byte_alphabet_is_256_printable_characters_in_order():
    alphabet = byte_alphabet()
    assert sorted(alphabet) == list(range(256))
    assert list(alphabet.values()) == sorted(set(alphabet.values()))
    assert "".join(alphabet.values()).isprintable()
    assert alphabet[0] == "Ā"
    assert alphabet[ord(" ")] == "Ġ"
    assert alphabet[0xAD] == "Ń"  # the soft hyphen, the last byte that is not printable


def test_published_ids(gpt2):
    assert gpt2.encode("hello world") == [31373, 995]
    assert gpt2.encode(f"hello world{EOT}", special="token") == [31373, 995, 50256]


def test_sizes_of_gpt2s_vocabulary(gpt2):
    assert gpt2.vocab_size == 50257
    assert gpt2.eot_id == 50256
    assert gpt2.special_tokens == {EOT: 50256}
    assert len(gpt2.merges) == 50000
    assert gpt2.merges[:2] == [("Ġ", "t"), ("Ġ", "a")]


@pytest.mark.parametrize(
    ("part", "count"),
    [pytest.param("training", 301_966, marks=pytest.mark.slow), ("validation", 36_059)],
)
def test_published_token_count_of_the_corpus(gpt2, corpus, part, count):
    """nanoGPT's data/shakespeare/readme.md has the counts of its training and validation texts."""
    split = int(len(corpus) * 0.9)
    text = corpus[:split] if part == "training" else corpus[split:]
    assert len(gpt2.encode(text)) == count


def test_wikipedia_example():
    """The merges of Wikipedia's "Byte-pair encoding" turn "aaabdaaabac" into XdXac.

    First aa becomes Z: ZabdZabac. Then ab becomes Y: ZYdZYac. Then ZY becomes X.
    """
    tokenizer = Tokenizer([("a", "a"), ("a", "b"), ("aa", "ab")])
    ids = tokenizer.encode("aaabdaaabac")
    assert [tokenizer.token_text(token) for token in ids] == ["aaab", "d", "aaab", "a", "c"]
    assert ids == [258, 67, 258, 64, 66]


def test_words_are_cut_as_gpt2_does():
    text = "It's  12 o'clock,\n\n \twe'll go!   "
    words = "It|'s| | 12| o|'|clock|,|\n\n |\t|we|'ll| go|!|   "
    assert WORDS.findall(text) == words.split("|")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        pytest.param("I'm you're he's", "I|'m| you|'re| he|'s", id="forms-of-to-be"),
        pytest.param("we've she'd I'll don't", "we|'ve| she|'d| I|'ll| don|'t", id="verbs"),
        pytest.param("DON'T 's's 'tis", "DON|'|T| '|s|'s| '|tis", id="other-apostrophes"),
        pytest.param("abc123 45x½²", "abc|123| 45|x|½²", id="numbers"),
        pytest.param("né 日本 ...?! €5", "né| 日本| ...?!| €|5", id="letters-and-marks"),
        pytest.param("a   b\n\n c \n", "a|  | b|\n\n| c| \n", id="white-space"),
    ],
)
def test_words_of_each_kind(text, words):
    assert WORDS.findall(text) == words.split("|")


@pytest.mark.parametrize("seed", range(20))
def test_random_merges_are_applied_as_the_definition_says(seed):
    rng = random.Random(seed)
    merges = random_merges(rng, "abc", 40)
    tokenizer = Tokenizer(merges)
    ids = spelled_ids(merges)
    merge_ids = {(ids[left], ids[right]): ids[left + right] for left, right in merges}
    for length in [*range(20), 50, 100, 200]:
        text = "".join(rng.choices("abc", k=length))
        ids_of_letters = [tokenizer.encode(letter)[0] for letter in text]
        assert tokenizer.encode(text) == obvious_bpe(ids_of_letters, merge_ids), text


def test_tiktoken_gives_the_same_ids(gpt2, tiktoken_gpt2, corpus):
    texts = [*random_texts(2_000, seed=1), corpus, *corpus.splitlines(keepends=True)]
    rng = random.Random(2)
    for text in random_texts(600, seed=3):
        pieces = rng.choices([EOT, "<|", "|>", "endoftext", " ", "a", text], k=8)
        texts.append("".join(pieces))
    as_text = partial(gpt2.encode, special="text")
    assert_same_ids(texts, as_text, tiktoken_gpt2.encode_ordinary)
    as_token = partial(gpt2.encode, special="token")
    assert_same_ids(texts, as_token, partial(tiktoken_gpt2.encode, allowed_special="all"))


@pytest.mark.slow
def test_tiktoken_gives_the_same_ids_for_every_character(gpt2, tiktoken_gpt2):
    assert len(known_characters()) > 95_000
    texts = []
    for character in known_characters():
        # Between a letter and a digit, doubled after a space, and after an apostrophe.
        texts.append(f"a{character}1 {character}{character} '{character}")
    assert_same_ids(texts, gpt2.encode, tiktoken_gpt2.encode_ordinary)


def test_decode_gives_back_an_encoded_text_with_gpt2s_vocabulary(gpt2):
    for text in ["", *random_texts(500, seed=6)]:
        assert gpt2.decode(gpt2.encode(text)) == text


@pytest.mark.parametrize("merges", [[], SMALL_MERGES], ids=["bytes", "small"])
def test_decode_gives_back_an_encoded_text(merges):
    tokenizer = Tokenizer(merges)
    for text in ["", *random_texts(500, seed=6)]:
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_each_id_has_the_bytes_of_its_spelling_in_the_file_of_the_vocabulary(gpt2):
    bytes_by_character = {character: byte for byte, character in byte_alphabet().items()}
    vocabulary = json.loads(GPT2_VOCAB.read_text(encoding="utf-8"))
    assert vocabulary.pop(EOT) == 50256
    assert gpt2.token_bytes(50256) == EOT.encode()
    for spelling, token_id in vocabulary.items():
        token = bytes(bytes_by_character[character] for character in spelling)
        assert gpt2.token_bytes(token_id) == token
        assert gpt2.decode_bytes([token_id]) == token


def test_the_decoded_text_of_all_ids(gpt2):
    """Bytes that are not a whole character are the replacement character in it."""
    text = gpt2.decode(range(50257))
    assert text == gpt2.decode_bytes(range(50257)).decode(errors="replace")


@pytest.mark.parametrize("step", [pytest.param(1, marks=pytest.mark.slow), 20])
def test_the_text_of_all_ids_is_encoded_and_decoded_again(gpt2, step):
    """Of all ids, or of each twentieth."""
    text = gpt2.decode(range(0, 50257, step))
    assert gpt2.decode(gpt2.encode(text, special="token")) == text


def test_decode_takes_lists_tuples_iterators_and_arrays():
    tokenizer = Tokenizer(SMALL_MERGES)
    ids = tokenizer.encode("low lower")
    for same_ids in (ids, tuple(ids), iter(ids), np.array(ids), np.array(ids, np.uint16)):
        assert tokenizer.decode(same_ids) == "low lower"
    assert tokenizer.decode([]) == tokenizer.decode(np.array([], np.int64)) == ""


def test_decode_shows_half_a_character_as_the_replacement_character():
    tokenizer = Tokenizer([])
    first_byte, second_byte = tokenizer.encode("é")
    (x,) = tokenizer.encode("x")
    assert tokenizer.decode([second_byte, x, first_byte]) == "\ufffdx\ufffd"
    assert tokenizer.decode_bytes([first_byte]) == b"\xc3"


def test_token_text_shows_a_part_of_a_character_as_escaped_bytes(gpt2):
    texts = [gpt2.token_text(token_id) for token_id in gpt2.encode("né 👍!")]
    assert texts == ["n", "é", " \\xf0\\x9f\\x91", "\\x8d", "!"]
    assert gpt2.token_text(50256) == EOT


@pytest.mark.parametrize(
    "wrong",
    [-1, 262, 10**30, 1.0, True, "1", None, np.int64(-1), np.float32(1), [1]],
    ids=repr,
)
def test_what_is_not_an_id_is_refused(wrong):
    tokenizer = Tokenizer(SMALL_MERGES)
    for function in (tokenizer.token_text, lambda token_id: tokenizer.decode([0, token_id])):
        with pytest.raises(TokenizerError, match=r"is not a token id from 0 to 261"):
            function(wrong)


# Special tokens

EOT_LAST = Tokenizer(SMALL_MERGES)
PLAIN = Tokenizer(SMALL_MERGES, {EOT: 261, "<user>": 262}, flags={"<user>": Flags(special=False)})
PART = Tokenizer(SMALL_MERGES, {"<|end|>": 261, "end": 262}, flags={"end": Flags(special=False)})
NORMALIZED = Tokenizer(
    SMALL_MERGES, {EOT: 261, "<|end|>": 262, "!<": 263}, flags={"!<": Flags(normalized=True)}
)
# Tokens that are ordinary ones, too. "!!" is a merge.
MERGES = [*SMALL_MERGES, ("!", "!")]
MERGE = Tokenizer(MERGES, {EOT: 262, "low": 257})
BYTE = Tokenizer(MERGES, {EOT: 262, "!": 0})
BEFORE = Tokenizer(SMALL_MERGES, {EOT: 0}, ids=spelled_ids(SMALL_MERGES, first_id=1))
BEFORE_AND_AFTER = Tokenizer(
    SMALL_MERGES, {"<pad>": 1, EOT: 263, "<s>": 0}, ids=spelled_ids(SMALL_MERGES, first_id=2)
)


@pytest.mark.parametrize(
    ("tokenizer", "text", "special", "ids"),
    [
        (EOT_LAST, f"low{EOT}{EOT}low", "token", [257, 261, 261, 257]),
        (EOT_LAST, "<|end", "token", [27, 91, 68, 77, 67]),
        (EOT_LAST, f"low{EOT}", "text", Tokenizer(SMALL_MERGES, {}).encode(f"low{EOT}")),
        (PLAIN, f"low<user>!{EOT}", "token", [257, 262, 0, 261]),
        (PLAIN, "low<user>!", "text", [257, 262, 0]),
        (PLAIN, "low<user>!", "error", [257, 262, 0]),
        # A special token that is read as text is read whole, without the plain token in it.
        (PART, "<|end|>end", "text", [*Tokenizer([]).encode("<|end|>"), 262]),
        # "!<" begins before <|end|>, but it is searched for last.
        (NORMALIZED, "low!<|end|>!<", "token", [257, 0, 262, 263]),
        (NORMALIZED, f"{EOT}a!<b", "token", [261, 64, 263, 65]),
        (NORMALIZED, "low!<", "text", [257, *Tokenizer([]).encode("!<")]),
        (MERGE, "low lower", "token", [257, 220, 257, 259]),
        (MERGE, "low lower", "error", [257, 220, 257, 259]),
        (MERGE, "low lower", "text", [257, 258, 259]),
        (BYTE, "low!!", "token", [257, 0, 0]),
        (BYTE, "low!!", "error", [257, 0, 0]),
        (BYTE, "low!!", "text", [257, 261]),
        (BEFORE, f"low!{EOT}", "token", [258, 1, 0]),
        (BEFORE_AND_AFTER, f"low!<pad>{EOT}<s>", "token", [259, 2, 1, 263, 0]),
    ],
)
def test_special_tokens_in_a_text(tokenizer, text, special, ids):
    assert tokenizer.encode(text, special) == ids
    assert tokenizer.decode(ids) == text


def with_flags(**flags: Flags) -> Tokenizer:
    """EOT has id 261, and these tokens the ids from 262 on."""
    ids = {token: 262 + n for n, token in enumerate(flags)}
    return Tokenizer(SMALL_MERGES, {EOT: 261} | ids, flags=flags)


@pytest.mark.parametrize(
    ("tokenizer", "text", "ids"),
    [
        (with_flags(MASK=Flags(lstrip=True)), "low \n MASK low", [257, 262, 258]),
        (with_flags(MASK=Flags(rstrip=True)), "low MASK \n low", [257, 220, 262, 257]),
        (with_flags(MASK=Flags(rstrip=True)), "low MASK  ", [257, 220, 262]),
        (with_flags(MASK=Flags(lstrip=True)), "  MASKlow", [262, 257]),
        (with_flags(MASK=Flags(single_word=True)), "MASKer MASK!MASK", None),
        (
            with_flags(MASK=Flags(single_word=True)),
            "éMASKé",
            Tokenizer(SMALL_MERGES).encode("éMASKé"),
        ),
        # A token of white space that the token before has taken is not there any more.
        (
            Tokenizer(
                SMALL_MERGES,
                {"<a>": 261, " ": 262},
                flags={"<a>": Flags(rstrip=True), " ": Flags(lstrip=True)},
            ),
            "<a>  low",
            [261, 257],
        ),
    ],
    ids=[
        "lstrip",
        "rstrip",
        "rstrip-at-the-end",
        "lstrip-at-the-start",
        "single-word",
        "accents",
        "white-space",
    ],
)
def test_flags_of_special_tokens(tokenizer, text, ids):
    """test_conformance.py has many more, compared with the tokenizers library."""
    if ids is None:
        ids = [*Tokenizer(SMALL_MERGES).encode("MASKer "), 262, 0, 262]
    assert tokenizer.encode(text, "token") == ids


def test_a_single_word_has_no_letter_digit_accent_or_underscore_beside_it():
    tokenizer = with_flags(MASK=Flags(single_word=True))
    for beside in "aé日7_\u0301.- ²":
        is_alone = beside in ".- ²"
        for text in (f"{beside}MASK", f"MASK{beside}"):
            assert (262 in tokenizer.encode(text, special="token")) == is_alone, text


def test_flags_with_gpt2s_vocabulary(gpt2):
    """The ids are those of transformers 5. "foo" is an ordinary token, 21943, too."""
    flags = {
        "<left>": Flags(lstrip=True),
        "<right>": Flags(rstrip=True),
        "<both>": Flags(lstrip=True, rstrip=True),
        "foo": Flags(single_word=True),
    }
    ids = {"<left>": 50257, "<right>": 50258, "<both>": 50259, "foo": 21943}
    tokenizer = Tokenizer(gpt2.merges, gpt2.special_tokens | ids, flags=flags)

    def ids_of(text: str) -> list[int]:
        return tokenizer.encode(text, special="token")

    assert ids_of("a <left> b") == [64, 50257, 275]
    assert ids_of("a <right> b") == [64, 220, 50258, 65]
    assert ids_of("a <both> b") == [64, 50259, 65]
    assert ids_of("foo foobar foo") == [21943, 11511, 30973, 220, 21943]


def test_the_place_of_a_special_token_with_white_space_is_that_of_its_text():
    tokenizer = with_flags(MASK=Flags(lstrip=True, rstrip=True, single_word=True))
    with pytest.raises(SpecialTokenError, match="at character 8"):
        tokenizer.encode("MASKer  MASK  ")


def test_a_space_is_put_before_each_stretch_of_text():
    tokenizer = Tokenizer(SMALL_MERGES, prefix_space=True)
    assert tokenizer.encode("") == []
    assert tokenizer.encode("low") == tokenizer.encode(" low") == [258]
    assert tokenizer.encode(f"low{EOT}\nlow", special="token") == [258, 261, 220, 198, 257]


def test_a_vocabulary_without_some_bytes_refuses_a_text_that_needs_one():
    ids = {"e": 0, "l": 1, "o": 2, "r": 3, "w": 4, "Ġ": 5, "lo": 6, "low": 7}
    tokenizer = Tokenizer([("l", "o"), ("lo", "w")], ids=ids)
    assert tokenizer.vocab_size == 6 + 2 + 1
    assert tokenizer.encode(f"low role{EOT}", special="token") == [7, 5, 3, 2, 1, 0, 8]
    assert tokenizer.decode([7, 5, 3, 2, 1, 0]) == "low role"
    for text, byte in (("lows", "0x73"), ("é", "0xc3"), ("\n", "0x0a")):
        with pytest.raises(TokenizerError, match=byte):
            tokenizer.encode(text)


def test_an_unreachable_token_has_an_id_and_a_text_but_no_text_has_it():
    merges = [("l", "o")]
    ids = {"Ġx": 0, **spelled_ids(merges, first_id=1), "日": 259, "Ġ日": 260}
    tokenizer = Tokenizer(merges, {EOT: 258}, ids=ids)
    assert tokenizer.vocab_size == 261
    assert [tokenizer.decode([token]) for token in (0, 257, 258, 259)] == [" x", "lo", EOT, "日"]
    assert tokenizer.decode([260]) == "Ġ日", "a name with any other character is its own text"
    ids = tokenizer.encode("Ġx x日lo", special="token")
    assert not {0, 259, 260} & set(ids)
    assert tokenizer.decode(ids) == "Ġx x日lo"


# Merges that make the text of the end-of-text token, so that it is an ordinary token, too.
MERGES_TO_EOT = [(EOT[:length], EOT[length]) for length in range(1, len(EOT))]
MERGED_EOT = Tokenizer(MERGES_TO_EOT, {EOT: 254 + len(EOT)})


@pytest.mark.parametrize(
    ("tokenizer", "text", "token", "place"),
    [
        (EOT_LAST, f"low {EOT}", EOT, 4),
        (PLAIN, f"<user>{EOT}", EOT, 6),
        (NORMALIZED, "!<|end|>", "<|end|>", 1),
        (NORMALIZED, "low!<", "!<", 3),
        (MERGE, f"low{EOT}", EOT, 3),
        (BYTE, f"low!{EOT}", EOT, 4),
        (Tokenizer([], flags={"<user>": Flags(special=False)}), f"a{EOT}", EOT, 1),
        (MERGED_EOT, f"a{EOT}", EOT, 1),
    ],
)
def test_a_special_token_in_a_text_is_an_error_by_default(tokenizer, text, token, place):
    message = rf"{re.escape(repr(token))} at character {place}"
    with pytest.raises(SpecialTokenError, match=message) as error:
        tokenizer.encode(text)
    assert error.value.token == token


def test_the_ids_of_the_end_of_text():
    ids = [tokenizer.eot_id for tokenizer in (EOT_LAST, BEFORE, BEFORE_AND_AFTER, PART)]
    assert ids == [261, 0, 263, None]
    as_an_ordinary_token = Tokenizer([], {}, ids={**spelled_ids([]), EOT: 256})
    assert as_an_ordinary_token.eot_id is None


def test_a_special_token_without_flags_has_those_of_gpt2():
    tokenizer = Tokenizer([], {"<a>": 256, "<b>": 257}, flags={"<a>": Flags(lstrip=True)})
    assert tokenizer.flags == {"<a>": Flags(lstrip=True), "<b>": Flags()}


def test_ids_in_any_order_and_with_holes():
    """The merges apply in their own order, whatever their ids."""
    merges = [("l", "o"), ("lo", "w"), ("o", "w")]
    in_order = Tokenizer(merges)
    ids = {name: 1000 - 2 * token_id for name, token_id in spelled_ids(merges).items()}
    tokenizer = Tokenizer(merges, {EOT: 7}, ids=ids)
    text = "low lower slow owl"
    expected = [1000 - 2 * token_id for token_id in in_order.encode(text)]
    assert tokenizer.encode(text) == expected
    assert tokenizer.decode([*expected, 7]) == text + EOT
    assert (tokenizer.vocab_size, len(tokenizer.ids)) == (1001, 260)
    assert Tokenizer(merges, ids=ids).eot_id == 1001  # the next id after the largest
    for hole in (0, 8, 999):
        assert hole not in tokenizer.tokens
        with pytest.raises(TokenizerError, match=f"{hole} is not a token id"):
            tokenizer.decode([hole])


def test_tokens_are_in_the_order_of_their_ids():
    ids = dict(reversed(spelled_ids([]).items()))
    tokenizer = Tokenizer([], {"<b>": 300, "<a>": 290}, ids)
    assert list(tokenizer.special_tokens.items()) == [("<a>", 290), ("<b>", 300)]
    assert list(tokenizer.ids.values()) == [*range(256), 290, 300]


def test_a_vocabulary_without_any_token():
    assert Tokenizer([], {}, ids={}).vocab_size == 0
    alone = Tokenizer([], ids={})
    assert (alone.special_tokens, alone.vocab_size) == ({EOT: 0}, 1)


def test_two_merges_may_make_one_token():
    tokenizer = Tokenizer([("b", "c"), ("a", "bc"), ("a", "b"), ("ab", "c")])
    assert tokenizer.vocab_size == 256 + 3 + 1
    abc = tokenizer.ids["abc"]
    assert tokenizer.encode("abc abcb") == [abc, tokenizer.ids["Ġ"], abc, tokenizer.ids["b"]]


ONE_LATER = spelled_ids([], first_id=1)


@pytest.mark.parametrize(
    ("merges", "special_tokens", "ids", "words"),
    [
        pytest.param([], {"<a>": 0, "<b>": 256}, ONE_LATER, ["<b>", "256"], id="taken"),
        pytest.param([], {"<a>": -1}, None, ["<a>", "-1", "from 0"], id="negative"),
        pytest.param([], {}, {"!": "0"}, ["'!'", "'0'"], id="text"),
        pytest.param([], {}, {"!": 2**32}, ["'!'", "4294967296"], id="large"),
        pytest.param([], {"": 256}, None, ["''", "1 to 128"], id="empty"),
        pytest.param([("lo", "w"), ("l", "o")], {}, None, ["merge 1", "'lo'"], id="too-early"),
        pytest.param([("l", " ")], {}, None, ["merge 1", "' '"], id="space"),
    ],
)
def test_a_vocabulary_that_contradicts_itself_is_refused(merges, special_tokens, ids, words):
    with pytest.raises(TokenizerError) as caught:
        Tokenizer(merges, special_tokens, ids=ids)
    for word in words:
        assert word in str(caught.value)


def test_the_longest_special_token_and_the_largest_id():
    for character in ("<", "é"):
        longest = character * 128
        tokenizer = Tokenizer([], {longest: 2**32 - 1})
        assert tokenizer.encode(f"!{longest}", "token") == [0, 2**32 - 1]


MARKS = [chr(code) for code in range(33, 127) if not chr(code).isalnum()]
# Characters of which special tokens are made. The tokenizer searches in another way if its special
# tokens begin with more than 100 different characters.
CHARACTERS = [
    pytest.param("ab", id="two-letters"),
    pytest.param("ab<\n", id="a-mark-and-a-line-break"),
    pytest.param([*MARKS, "é", "\U0001f600"], id="all-marks"),
    pytest.param([*known_characters()[200:600], "\n"], id="401-characters"),
]


def random_special_tokens(rng, characters):
    """Random tokens of two to five characters, and each character repeated six times; sorted."""
    tokens = set()
    for _ in range(3 * len(characters)):
        length = rng.randrange(2, 6)
        tokens.add("".join(rng.choices(characters, k=length)))
    for character in characters:
        tokens.add(6 * character)
    return sorted(tokens)


@pytest.mark.parametrize("characters", CHARACTERS)
def test_special_tokens_are_found_from_left_to_right_and_the_longest_first(characters):
    """A regular expression finds the same ones: its alternatives are the tokens, by length."""
    rng = random.Random(0)
    tokens = random_special_tokens(rng, characters)
    special_ids = range(256, 256 + len(tokens))  # the bytes have the ids 0 to 255
    tokenizer = Tokenizer([], dict(zip(tokens, special_ids, strict=True)))
    longest_first = sorted(tokens, key=len, reverse=True)
    pattern = re.compile("|".join(re.escape(token) for token in longest_first))

    for _ in range(200):
        some_tokens = rng.sample(tokens, 3)
        text = "".join(rng.choices([*characters, "x", *some_tokens], k=12))
        spans = [match.span() for match in pattern.finditer(text)]
        assert list(tokenizer._special.searched_first.spans(text)) == spans, text
        ids = tokenizer.encode(text, special="token")
        assert tokenizer.decode(ids) == text
        special_ids_of_text = [token_id for token_id in ids if token_id in special_ids]
        assert len(special_ids_of_text) == len(spans)
    last = 6 * characters[-1]  # a line break, in one case
    assert tokenizer.encode(f"x{last}x", special="token")[1:-1] == [256 + tokens.index(last)]


@pytest.mark.parametrize("special", ["error", "token", "text"])
@pytest.mark.parametrize("value", ["abc\udcff", None, 5, b"low", ["low"]])
def test_what_is_not_a_text_is_refused(value, special):
    with pytest.raises(TokenizerError, match="the text"):
        Tokenizer([]).encode(value, special=special)


@pytest.mark.parametrize(
    "word",
    [
        pytest.param("a" * 4_000, id="one-letter"),
        pytest.param("".join(random.Random(1).choices("abcd", k=4_000)), id="random-letters"),
    ],
)
def test_a_word_of_twice_the_length_takes_twice_the_time(word):
    """The time is measured as the number of lines of Python that are run."""
    doublings = [("a" * 2**n, "a" * 2**n) for n in range(10)]  # aa, aaaa, ...
    tokenizer = Tokenizer(doublings + random_merges(random.Random(0), "bcd", 300))
    lines = lines_run(tokenizer.encode, word)
    lines_for_half = lines_run(tokenizer.encode, word[:2_000])
    assert lines < 2.1 * lines_for_half
    assert lines < 60 * len(word)


# " low" comes again and again, and between its occurrences come many words that the cache lacks.
TEXT_OF_MANY_WORDS = "".join(f" low {letter}" for letter in "abcdefghijklmnopqrstuvwxyz")
TEXT_OF_MANY_WORDS += " lower slow lo rerer lower slow lo rerer"


@pytest.fixture
def small_cache(monkeypatch):
    """The cache of a tokenizer holds the ids of at most five new words and five older words."""
    monkeypatch.setattr(module, "MAX_CACHED_WORDS", 5)


@pytest.mark.usefixtures("small_cache")
def test_a_text_has_the_ids_of_its_words_encoded_without_a_cache():
    """A new tokenizer for each word has an empty cache."""
    expected = []
    for word in WORDS.findall(TEXT_OF_MANY_WORDS):
        expected += Tokenizer(SMALL_MERGES).encode(word)
    assert Tokenizer(SMALL_MERGES).encode(TEXT_OF_MANY_WORDS) == expected


@pytest.mark.usefixtures("small_cache")
def test_the_cache_is_bounded_and_keeps_a_frequent_word(monkeypatch):
    """The ids of " low" are computed once, although more new words come than the cache holds."""
    tokenizer = Tokenizer(SMALL_MERGES)
    compute_ids = tokenizer._cache.word_ids
    computed_words = []

    def word_ids(word):
        computed_words.append(word)
        return compute_ids(word)

    monkeypatch.setattr(tokenizer._cache, "word_ids", word_ids)
    tokenizer.encode(TEXT_OF_MANY_WORDS)
    assert computed_words.count(" low") == 1
    assert 0 < len(tokenizer._cache) <= 5
    assert len(tokenizer._cache.older) == 5


def test_the_cache_does_not_keep_a_word_above_the_longest_length():
    tokenizer = Tokenizer(SMALL_MERGES)
    longest = "a" * module.LONGEST_CACHED_WORD
    tokenizer.encode(longest)
    tokenizer.encode(longest + "a")
    assert list(tokenizer._cache) == [longest]


def test_changing_the_list_of_ids_does_not_change_the_cache():
    tokenizer = Tokenizer(SMALL_MERGES)
    tokenizer.encode("low").clear()
    assert tokenizer.encode("low") == [257]


def test_a_pickled_tokenizer_encodes_as_the_original():
    """Its cache, whose `word_ids` is a method of a tokenizer, computes ids with the copy."""
    tokenizer = Tokenizer(SMALL_MERGES)
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.encode("hello lower") == tokenizer.encode("hello lower")
    assert copy._cache.word_ids.__self__ is copy


def test_a_tokenizer_describes_itself():
    tokenizer = Tokenizer([("l", "o"), ("lo", "w")])
    assert repr(tokenizer) == "Tokenizer(259 tokens, 2 merges, 1 special)"
    thousand = [("a" * length, "a") for length in range(1, 1001)]
    many = Tokenizer(thousand, {"<a>": 2000, "<b>": 3000})  # with holes
    assert repr(many) == "Tokenizer(1,258 tokens, 1,000 merges, 2 special)"


# Unicode's White_Space. The four that str.isspace() takes for white space, too, are not.
SPACES = (
    "\t\n\v\f\r \x85\xa0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
)
SPACES += "\u2028\u2029\u202f\u205f\u3000"


@pytest.mark.parametrize("space", [*SPACES, "\x1c", "\x1d", "\x1e", "\x1f", "\u200b", "a"])
def test_a_special_token_takes_the_white_space_beside_it(space):
    tokenizer = Tokenizer([], {"<m>": 256}, flags={"<m>": Flags(lstrip=True, rstrip=True)})
    ids = tokenizer.encode(f"b{space}<m>{space}c", special="token")
    assert (len(ids) == 3) == (space in SPACES)


def test_the_alphabet_has_each_printable_byte_of_latin_1_as_itself():
    alphabet = byte_alphabet()
    itself = [byte for byte, character in alphabet.items() if character == chr(byte)]
    assert itself == [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [alphabet[byte] for byte in range(256) if byte not in itself]
    assert others == [chr(256 + number) for number in range(len(others))]


OTHERS = {  # another tokenizer for the same bytes, in one respect alone
    "merges": Tokenizer(SMALL_MERGES[:-1], {EOT: 261}),
    "order of the merges": Tokenizer(
        [*SMALL_MERGES[:3], SMALL_MERGES[4], SMALL_MERGES[3]],
        {EOT: 261},
        ids=spelled_ids(SMALL_MERGES),
    ),
    "ids": Tokenizer(SMALL_MERGES, {EOT: 261}, ids=spelled_ids(SMALL_MERGES) | {"!": 1, '"': 0}),
    "special tokens": Tokenizer(SMALL_MERGES, {EOT: 262}),
    **{
        f"flag {name}": Tokenizer(
            SMALL_MERGES, {EOT: 261}, flags={EOT: Flags(**{name: not getattr(Flags(), name)})}
        )
        for name in ("special", "normalized", "lstrip", "rstrip", "single_word")
    },
    "a space before the text": Tokenizer(SMALL_MERGES, {EOT: 261}, prefix_space=True),
}


@pytest.mark.parametrize("name", OTHERS)
def test_the_description_of_a_tokenizer_differs_from_that_of_another_one(name):
    small = Tokenizer(SMALL_MERGES, {EOT: 261})
    again = Tokenizer(SMALL_MERGES, {EOT: 261})
    assert json.dumps(small.description()) == json.dumps(again.description())
    assert json.dumps(small.description()) != json.dumps(OTHERS[name].description())
