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

from tiedgpt.errors import ArgumentError, TokenizerError
from tiedgpt.gpt2 import tokenizer as module
from tiedgpt.gpt2.tokenizer import EOT, WORDS, Tokenizer, byte_alphabet


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


def test_published_token_count_of_the_corpus(gpt2, corpus):
    """nanoGPT's data/shakespeare/readme.md has the counts of its training and validation texts."""
    split = int(len(corpus) * 0.9)
    assert len(gpt2.encode(corpus[:split])) == 301_966
    assert len(gpt2.encode(corpus[split:])) == 36_059


def test_repr_says_how_large_it_is():
    tokenizer = Tokenizer([("l", "o")])
    assert repr(tokenizer) == "Tokenizer(258 tokens, 1 merges, 1 special)"


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


@pytest.mark.parametrize("seed", range(20))
def test_random_merges_are_applied_as_the_definition_says(seed):
    rng = random.Random(seed)
    tokenizer = Tokenizer(random_merges(rng, "abc", 40))
    for length in [*range(20), 50, 100, 200]:
        text = "".join(rng.choices("abc", k=length))
        ids_of_letters = [tokenizer.encode(letter)[0] for letter in text]
        assert tokenizer.encode(text) == obvious_bpe(ids_of_letters, tokenizer._merge_ids), text


def test_tiktoken_gives_the_same_ids(gpt2, tiktoken_gpt2, corpus):
    texts = [*random_texts(2_000, seed=1), corpus, *corpus.splitlines(keepends=True)]
    assert_same_ids(texts, gpt2.encode, tiktoken_gpt2.encode_ordinary)


@pytest.mark.slow
def test_tiktoken_gives_the_same_ids_for_every_character(gpt2, tiktoken_gpt2):
    assert len(known_characters()) > 95_000
    texts = []
    for character in known_characters():
        # Between a letter and a digit, doubled after a space, and after an apostrophe.
        texts.append(f"a{character}1 {character}{character} '{character}")
    assert_same_ids(texts, gpt2.encode, tiktoken_gpt2.encode_ordinary)


def test_tiktoken_gives_the_same_ids_for_special_tokens(gpt2, tiktoken_gpt2):
    rng = random.Random(2)
    texts = []
    for _ in range(300):
        pieces = rng.choices([EOT, "<|", "|>", "endoftext", " ", "a"], k=8)
        texts.append("".join(pieces))
    for before, after in zip(random_texts(300, seed=3), random_texts(300, seed=4), strict=True):
        texts.append(before + EOT + after)
    as_token = partial(gpt2.encode, special="token")
    theirs_as_token = partial(tiktoken_gpt2.encode, allowed_special="all")
    assert_same_ids(texts, as_token, theirs_as_token)
    as_text = partial(gpt2.encode, special="text")
    assert_same_ids(texts, as_text, tiktoken_gpt2.encode_ordinary)


def test_decode_gives_back_an_encoded_text_with_gpt2s_vocabulary(gpt2):
    for text in ["", *random_texts(500, seed=6)]:
        assert gpt2.decode(gpt2.encode(text)) == text


@pytest.mark.parametrize(
    "merges", [pytest.param([], id="bytes"), pytest.param(SMALL_MERGES, id="small")]
)
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
    assert gpt2.decode(gpt2.encode(text, special="token")) == text


def test_decode_takes_lists_tuples_iterators_and_arrays():
    tokenizer = Tokenizer(SMALL_MERGES)
    ids = tokenizer.encode("low lower")
    assert tokenizer.decode(ids) == "low lower"
    assert tokenizer.decode(tuple(ids)) == "low lower"
    assert tokenizer.decode(iter(ids)) == "low lower"
    assert tokenizer.decode(np.array(ids)) == "low lower"
    assert tokenizer.decode(np.array(ids, np.uint16)) == "low lower"
    assert tokenizer.decode(list(np.array(ids))) == "low lower"


def test_decode_of_no_ids_is_an_empty_text():
    tokenizer = Tokenizer(SMALL_MERGES)
    assert tokenizer.decode([]) == ""
    assert tokenizer.decode(np.array([], np.int64)) == ""


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


NOT_IDS = [
    pytest.param(-1, id="below-0"),
    pytest.param(262, id="above-the-last"),
    pytest.param(10**30, id="above-int64"),
    pytest.param(1.0, id="float"),
    pytest.param(True, id="bool"),
    pytest.param("1", id="text"),
    pytest.param(None, id="none"),
    pytest.param(np.int64(-1), id="int64-below-0"),
    pytest.param(np.float32(1), id="float32"),
    pytest.param([1], id="list"),
]


@pytest.mark.parametrize("wrong", NOT_IDS)
def test_what_is_not_an_id_is_refused(wrong):
    tokenizer = Tokenizer(SMALL_MERGES)
    assert tokenizer.vocab_size == 262
    with pytest.raises(TokenizerError, match=r"is not a token id from 0 to 261"):
        tokenizer.decode([0, wrong])
    with pytest.raises(TokenizerError, match=r"is not a token id"):
        tokenizer.token_text(wrong)


def test_a_special_token_in_a_text_is_an_error():
    message = (
        r"'<\|endoftext\|>' at character 4; "
        r"special='token' reads it as that token, special='text' as ordinary characters"
    )
    with pytest.raises(TokenizerError, match=message):
        Tokenizer(SMALL_MERGES).encode(f"low {EOT}")


def test_a_special_token_in_a_text_is_a_token_if_asked_for():
    ids = Tokenizer(SMALL_MERGES).encode(f"low{EOT}{EOT}low", special="token")
    assert ids == [257, 261, 261, 257]


def test_a_special_token_in_a_text_is_ordinary_characters_if_asked_for():
    tokenizer = Tokenizer(SMALL_MERGES)
    as_text = tokenizer.encode(f"low{EOT}", special="text")
    assert as_text == Tokenizer(SMALL_MERGES, {}).encode(f"low{EOT}")
    assert tokenizer.decode(as_text) == tokenizer.decode([257, 261]) == f"low{EOT}"


MARKS = [chr(code) for code in range(33, 127) if not chr(code).isalnum()]
# Characters of which special tokens are made. The tokenizer searches in another way if its special
# tokens begin with more than 100 different characters.
CHARACTERS = [
    pytest.param("ab", id="two-letters"),
    pytest.param("ab<\n", id="a-mark-and-a-line-break"),
    pytest.param([*MARKS, "é", "\U0001f600"], id="all-marks"),
    pytest.param(known_characters()[200:600], id="400-characters"),
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
        assert list(tokenizer._first_finder.spans(text)) == spans, text
        ids = tokenizer.encode(text, special="token")
        assert tokenizer.decode(ids) == text
        special_ids_of_text = [token_id for token_id in ids if token_id in special_ids]
        assert len(special_ids_of_text) == len(spans)


@pytest.mark.parametrize("special", ["error", "token", "text"])
def test_a_text_that_was_not_valid_utf_8_is_refused(special):
    message = r"character 3 of the text is '\\udcff', .* was not valid UTF-8"
    with pytest.raises(TokenizerError, match=message):
        Tokenizer([]).encode("abc\udcff", special=special)


@pytest.mark.parametrize("special", ["error", "token", "text"])
@pytest.mark.parametrize("value", [None, 5, b"low", ["low"]])
def test_what_is_not_a_text_is_refused(value, special):
    with pytest.raises(TokenizerError, match=r"^the text must be a str, got "):
        Tokenizer([]).encode(value, special=special)


def test_an_unknown_value_of_special_is_refused():
    message = r"special must be 'error', 'token' or 'text', got 'all'"
    with pytest.raises(ArgumentError, match=message):
        Tokenizer([]).encode("", special="all")


@pytest.mark.parametrize(
    "word",
    [
        pytest.param("a" * 20_000, id="one-letter"),
        pytest.param("".join(random.Random(1).choices("abcd", k=20_000)), id="random-letters"),
    ],
)
def test_a_word_of_twice_the_length_takes_twice_the_time(word):
    """The time is measured as the number of lines of Python that are run."""
    doublings = [("a" * 2**n, "a" * 2**n) for n in range(10)]  # aa, aaaa, ...
    tokenizer = Tokenizer(doublings + random_merges(random.Random(0), "bcd", 300))
    lines = lines_run(tokenizer.encode, word)
    lines_for_half = lines_run(tokenizer.encode, word[:10_000])
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
def test_the_cache_keeps_a_frequent_word():
    """The ids of " low" are computed once, although more new words come than the cache holds."""
    tokenizer = Tokenizer(SMALL_MERGES)
    compute_ids = tokenizer._cache.word_ids
    computed_words = []

    def word_ids(word):
        computed_words.append(word)
        return compute_ids(word)

    tokenizer._cache.word_ids = word_ids
    tokenizer.encode(TEXT_OF_MANY_WORDS)
    assert computed_words.count(" low") == 1


@pytest.mark.usefixtures("small_cache")
def test_the_cache_holds_at_most_five_new_and_five_older_words():
    tokenizer = Tokenizer(SMALL_MERGES)
    tokenizer.encode(TEXT_OF_MANY_WORDS)
    assert 0 < len(tokenizer._cache) <= 5
    assert len(tokenizer._cache.older) == 5


def test_the_cache_does_not_keep_a_word_above_the_longest_length():
    tokenizer = Tokenizer(SMALL_MERGES)
    longest = "a" * module.LONGEST_CACHED_WORD
    tokenizer.encode(longest)
    tokenizer.encode(longest + "a")
    assert list(tokenizer._cache) == [longest]


def test_a_pickled_tokenizer_encodes_as_the_original():
    tokenizer = Tokenizer(SMALL_MERGES)
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.encode("hello lower") == tokenizer.encode("hello lower")


def test_the_cache_of_a_pickled_tokenizer_computes_ids_with_that_tokenizer():
    """`word_ids`, which the cache calls, is a method of a tokenizer."""
    tokenizer = Tokenizer(SMALL_MERGES)
    copy = pickle.loads(pickle.dumps(tokenizer))
    tokenizer_of_the_cache = copy._cache.word_ids.__self__
    assert tokenizer_of_the_cache is copy


def test_changing_the_list_of_ids_does_not_change_the_cache():
    tokenizer = Tokenizer(SMALL_MERGES)
    tokenizer.encode("low").clear()
    assert tokenizer.encode("low") == [257]
