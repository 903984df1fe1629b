"""The tokenizer against published ids and against tiktoken; its files are in test_vocabulary.py."""

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
    merges: dict[str, tuple[str, str]] = {}
    while len(merges) < count:
        left, right = rng.choices([*letters, *merges], k=2)
        merges.setdefault(left + right, (left, right))
    return list(merges.values())


def test_byte_alphabet_is_256_printable_characters_in_order():
    alphabet = byte_alphabet()
    assert sorted(alphabet) == list(range(256))
    assert list(alphabet.values()) == sorted(set(alphabet.values()))
    assert "".join(alphabet.values()).isprintable()
    assert alphabet[0] == "Ā"
    assert alphabet[ord(" ")] == "Ġ"
    assert alphabet[0xAD] == "Ń"  # the soft hyphen, the last that is not printable


def test_published_ids(gpt2):
    assert gpt2.encode("hello world") == [31373, 995]
    assert gpt2.encode(f"hello world{EOT}", special="token") == [31373, 995, 50256]
    assert (gpt2.vocab_size, gpt2.eot_id, gpt2.special_tokens) == (50257, 50256, {EOT: 50256})
    assert len(gpt2.merges) == 50000
    assert gpt2.merges[:2] == [("Ġ", "t"), ("Ġ", "a")]


def test_published_token_count_of_the_corpus(gpt2, corpus):
    """The counts of nanoGPT's data/shakespeare/readme.md, for training and validation."""
    split = int(len(corpus) * 0.9)
    assert len(gpt2.encode(corpus[:split])) == 301_966
    assert len(gpt2.encode(corpus[split:])) == 36_059


def test_repr_says_how_large_it_is():
    tokenizer = Tokenizer([("l", "o")])
    assert repr(tokenizer) == "Tokenizer(258 tokens, 1 merges, 1 special)"


def test_wikipedia_example():
    """ "aaabdaaabac" [Wikipedia, "Byte-pair encoding"], with Z = aa, Y = ab and X = ZY.

    aa is its commonest pair; then, of ZabdZabac, ab (as common as Za); then, of ZYdZYac, ZY.
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
def test_merging_is_what_the_definition_says(seed):
    rng = random.Random(seed)
    tokenizer = Tokenizer(random_merges(rng, "abc", 40))
    for length in [*range(20), 50, 100, 200]:
        text = "".join(rng.choices("abc", k=length))
        one_byte_each = [tokenizer.encode(letter)[0] for letter in text]
        assert tokenizer.encode(text) == obvious_bpe(one_byte_each, tokenizer._merge_ids), text


def test_tiktoken_gives_the_same_ids(gpt2, tiktoken_gpt2, corpus):
    texts = [*random_texts(2_000, seed=1), corpus, *corpus.splitlines(keepends=True)]
    assert_same_ids(texts, gpt2.encode, tiktoken_gpt2.encode_ordinary)


@pytest.mark.slow
def test_tiktoken_gives_the_same_ids_for_every_character(gpt2, tiktoken_gpt2):
    assert len(known_characters()) > 95_000
    texts = [
        f"a{character}1 {character}{character} '{character}" for character in known_characters()
    ]
    assert_same_ids(texts, gpt2.encode, tiktoken_gpt2.encode_ordinary)


def test_tiktoken_gives_the_same_ids_for_special_tokens(gpt2, tiktoken_gpt2):
    rng = random.Random(2)
    texts = []
    for _ in range(300):
        pieces = rng.choices([EOT, "<|", "|>", "endoftext", " ", "a"], k=8)
        texts.append("".join(pieces))
    for before, after in zip(random_texts(300, seed=3), random_texts(300, seed=4), strict=True):
        texts.append(before + EOT + after)
    with_special = partial(tiktoken_gpt2.encode, allowed_special="all")
    assert_same_ids(texts, partial(gpt2.encode, special="token"), with_special)
    assert_same_ids(texts, partial(gpt2.encode, special="text"), tiktoken_gpt2.encode_ordinary)


def test_text_comes_back(gpt2):
    for tokenizer in (gpt2, Tokenizer([]), Tokenizer(SMALL_MERGES)):
        for text in ["", *random_texts(500, seed=6)]:
            assert tokenizer.decode(tokenizer.encode(text)) == text


def test_every_id_comes_back(gpt2):
    """Each id has the bytes that its spelling in encoder.json says."""
    bytes_by_character = {character: byte for byte, character in byte_alphabet().items()}
    vocabulary = json.loads(GPT2_VOCAB.read_text(encoding="utf-8"))
    assert vocabulary.pop(EOT) == 50256
    assert gpt2.token_bytes(50256) == EOT.encode()
    for spelling, token_id in vocabulary.items():
        token = bytes(bytes_by_character[character] for character in spelling)
        assert gpt2.token_bytes(token_id) == token
        assert gpt2.decode_bytes([token_id]) == token


def test_the_text_of_all_ids_comes_back(gpt2):
    text = gpt2.decode(range(50257))
    assert text == gpt2.decode_bytes(range(50257)).decode(errors="replace")
    assert gpt2.decode(gpt2.encode(text, special="token")) == text


def test_decode_takes_lists_and_arrays():
    tokenizer = Tokenizer(SMALL_MERGES)
    ids = tokenizer.encode("low lower")
    assert tokenizer.decode(ids) == "low lower"
    assert tokenizer.decode(tuple(ids)) == "low lower"
    assert tokenizer.decode(iter(ids)) == "low lower"
    assert tokenizer.decode(np.array(ids)) == "low lower"
    assert tokenizer.decode(np.array(ids, np.uint16)) == "low lower"
    assert tokenizer.decode(list(np.array(ids))) == "low lower"
    assert tokenizer.decode([]) == ""
    assert tokenizer.decode(np.array([], np.int64)) == ""


def test_half_characters(gpt2):
    """As text they are the replacement character; one token alone is shown with its bytes."""
    of_bytes = Tokenizer([])
    first_byte, second_byte = of_bytes.encode("é")
    (x,) = of_bytes.encode("x")
    assert of_bytes.decode([second_byte, x, first_byte]) == "\ufffdx\ufffd"
    assert of_bytes.decode_bytes([first_byte]) == b"\xc3"
    texts = [gpt2.token_text(token_id) for token_id in gpt2.encode("né 👍!")]
    assert texts == ["n", "é", " \\xf0\\x9f\\x91", "\\x8d", "!"]
    assert gpt2.token_text(50256) == EOT


@pytest.mark.parametrize(
    "wrong", [-1, 262, 10**30, 1.0, True, "1", None, np.int64(-1), np.float32(1), [1]]
)
def test_what_is_no_id_is_refused(wrong):
    tokenizer = Tokenizer(SMALL_MERGES)
    assert tokenizer.vocab_size == 262
    with pytest.raises(TokenizerError, match=r"is not a token id from 0 to 261"):
        tokenizer.decode([0, wrong])
    with pytest.raises(TokenizerError, match=r"is not a token id"):
        tokenizer.token_text(wrong)


def test_special_text_is_an_error_unless_asked_for():
    tokenizer = Tokenizer(SMALL_MERGES)
    with pytest.raises(
        TokenizerError,
        match=r"'<\|endoftext\|>' at character 4; "
        r"special='token' reads it as that token, special='text' as ordinary characters",
    ):
        tokenizer.encode(f"low {EOT}")
    assert tokenizer.encode(f"low{EOT}{EOT}low", special="token") == [257, 261, 261, 257]
    as_text = tokenizer.encode(f"low{EOT}", special="text")
    assert as_text == Tokenizer(SMALL_MERGES, {}).encode(f"low{EOT}")
    assert tokenizer.decode(as_text) == tokenizer.decode([257, 261]) == f"low{EOT}"


MARKS = [chr(code) for code in range(33, 127) if not chr(code).isalnum()]
BEGINNINGS = [
    pytest.param("ab", id="two-letters"),
    pytest.param("ab<\n", id="a-mark-and-a-line-break"),
    pytest.param([*MARKS, "é", "\U0001f600"], id="all-marks"),
    pytest.param(known_characters()[200:600], id="400-characters"),
]


@pytest.mark.parametrize("letters", BEGINNINGS)
def test_special_tokens_are_found_as_one_pattern_of_all_would_find_them(letters):
    """The longest token at the leftmost place, whichever characters the tokens begin with."""
    rng = random.Random(0)
    tokens = set()
    for _ in range(3 * len(letters)):
        tokens.add("".join(rng.choices(letters, k=rng.randrange(2, 6))))
    for letter in letters:
        tokens.add(letter * 6)
    special_tokens = {token: token_id for token_id, token in enumerate(sorted(tokens), 256)}
    tokenizer = Tokenizer([], special_tokens)
    longest_first = sorted(tokens, key=len, reverse=True)
    pattern = re.compile("|".join(re.escape(token) for token in longest_first))

    for _ in range(200):
        some_tokens = rng.sample(sorted(tokens), 3)
        text = "".join(rng.choices([*letters, "x", *some_tokens], k=12))
        spans = [match.span() for match in pattern.finditer(text)]
        assert list(tokenizer._special_finder.spans(text)) == spans, text
        ids = tokenizer.encode(text, special="token")
        assert tokenizer.decode(ids) == text
        assert sum(token_id >= 256 for token_id in ids) == len(spans)


@pytest.mark.parametrize("special", ["error", "token", "text"])
def test_what_is_no_text_is_refused(special):
    message = r"character 3 of the text is '\\udcff', .* was not valid UTF-8"
    with pytest.raises(TokenizerError, match=message):
        Tokenizer([]).encode("abc\udcff", special=special)
    for value in (None, 5, b"low", ["low"]):
        with pytest.raises(TokenizerError, match=r"^the text must be a str, got "):
            Tokenizer([]).encode(value, special=special)


def test_another_special_is_refused():
    message = r"special must be 'error', 'token' or 'text', got 'all'"
    with pytest.raises(ArgumentError, match=message):
        Tokenizer([]).encode("", special="all")


def test_long_words_take_time_in_proportion():
    doublings = [("a" * 2**n, "a" * 2**n) for n in range(10)]
    tokenizer = Tokenizer(doublings + random_merges(random.Random(0), "bcd", 300))
    for text in ("a" * 20_000, "".join(random.Random(1).choices("abcd", k=20_000))):
        half = lines_run(tokenizer.encode, text[:10_000])
        assert lines_run(tokenizer.encode, text) < min(2.1 * half, 60 * len(text))


def test_the_cache_is_bounded_keeps_what_is_used_and_changes_no_id(monkeypatch):
    monkeypatch.setattr(module, "MAX_CACHED_WORDS", 5)
    tokenizer = Tokenizer(SMALL_MERGES)
    cache = tokenizer._cache
    merged_words = []
    compute_ids = cache.word_ids

    def word_ids(word):
        merged_words.append(word)
        return compute_ids(word)

    cache.word_ids = word_ids
    text = "".join(f" low {letter}" for letter in "abcdefghijklmnopqrstuvwxyz")
    text += " lower slow lo rerer lower slow lo rerer"
    expected = []
    for word in WORDS.findall(text):
        expected += Tokenizer(SMALL_MERGES).encode(word)
    assert tokenizer.encode(text) == expected
    assert merged_words.count(" low") == 1, "used all the time, it is never forgotten"

    tokenizer.encode("low" * 100)
    assert 0 < len(cache) <= 5
    assert len(cache.older) == 5
    for word in [*cache, *cache.older]:
        assert len(word) <= module.LONGEST_CACHED_WORD


def test_a_tokenizer_can_be_sent_to_another_process():
    tokenizer = Tokenizer(SMALL_MERGES)
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.encode("hello lower") == tokenizer.encode("hello lower")
    assert copy._cache.word_ids.__self__ is copy


def test_ids_can_be_changed_without_changing_the_next():
    tokenizer = Tokenizer(SMALL_MERGES)
    tokenizer.encode("low").clear()
    assert tokenizer.encode("low") == [257]
