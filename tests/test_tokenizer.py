"""The tokenizer against published ids and against tiktoken; its files are in test_vocabulary.py."""

import json
import pickle
import random
import re
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
from support.models import SMALL_MERGES
from support.reference import GPT2_MERGES, GPT2_VOCAB
from support.texts import (
    assert_same_ids,
    known_characters,
    lines_run,
    merged_everywhere,
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


def obvious_bpe(ids: list[int], merge_ids: dict[tuple[int, int], int]) -> list[int]:
    """Byte-pair encoding as it is defined: again and again the lowest pair, everywhere, left to
    right."""
    while known := [pair for pair in pairwise(ids) if pair in merge_ids]:
        lowest = min(known, key=merge_ids.__getitem__)
        ids = merged_everywhere(ids, lowest, merge_ids[lowest])
    return ids


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
    """nanoGPT's data/shakespeare/readme.md: 301,966 tokens of training text and 36,059 of
    validation."""
    split = int(len(corpus) * 0.9)
    assert [len(gpt2.encode(part)) for part in (corpus[:split], corpus[split:])] == [
        301_966,
        36_059,
    ]


def test_wikipedia_example():
    """ "aaabdaaabac" [Wikipedia, "Byte-pair encoding"], with Z = aa, Y = ab and X = ZY.

    aa is its commonest pair; then, of ZabdZabac, ab (as common as Za); then, of ZYdZYac, ZY.
    """
    X, a, c, d = 258, 64, 66, 67
    assert Tokenizer([("a", "a"), ("a", "b"), ("aa", "ab")]).encode("aaabdaaabac") == [
        X,
        d,
        X,
        a,
        c,
    ]


def test_words_are_cut_as_gpt2_does():
    text = "It's  12 o'clock,\n\n \twe'll go!   "
    words = [
        "It",
        "'s",
        " ",
        " 12",
        " o",
        "'",
        "clock",
        ",",
        "\n\n ",
        "\t",
        "we",
        "'ll",
        " go",
        "!",
        "   ",
    ]
    assert WORDS.findall(text) == words


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
    texts = [
        EOT.join(texts)
        for texts in zip(*(random_texts(300, seed) for seed in (3, 4, 5)), strict=True)
    ]
    texts += [
        "".join(rng.choices([EOT, "<|", "|>", "endoftext", " ", "a"], k=8)) for _ in range(300)
    ]
    with_special = partial(tiktoken_gpt2.encode, allowed_special="all")
    assert_same_ids(texts, partial(gpt2.encode, special="token"), with_special)
    assert_same_ids(texts, partial(gpt2.encode, special="text"), tiktoken_gpt2.encode_ordinary)


def test_text_comes_back(gpt2):
    for tokenizer in (gpt2, Tokenizer([]), Tokenizer(SMALL_MERGES)):
        for text in ["", *random_texts(500, seed=6)]:
            assert tokenizer.decode(tokenizer.encode(text)) == text


def test_every_id_comes_back(gpt2):
    """Each id has the bytes that its spelling in encoder.json says, and the text of all comes
    back."""
    byte_of = {character: byte for byte, character in byte_alphabet().items()}
    for spelling, token_id in json.loads(GPT2_VOCAB.read_text(encoding="utf-8")).items():
        token = (
            spelling.encode()
            if spelling == EOT
            else bytes(byte_of[character] for character in spelling)
        )
        assert gpt2.token_bytes(token_id) == gpt2.decode_bytes([token_id]) == token
    text = gpt2.decode(range(50257))
    assert text.encode() == gpt2.decode_bytes(range(50257)).decode(errors="replace").encode()
    assert gpt2.decode(gpt2.encode(text, special="token")) == text


def test_decode_takes_lists_and_arrays():
    tokenizer = Tokenizer(SMALL_MERGES)
    ids = tokenizer.encode("low lower")
    for form in (
        ids,
        tuple(ids),
        iter(ids),
        np.array(ids),
        np.array(ids, np.uint16),
        list(np.array(ids)),
    ):
        assert tokenizer.decode(form) == "low lower"
    assert tokenizer.decode([]) == tokenizer.decode(np.array([], np.int64)) == ""


def test_half_characters(gpt2):
    """As text they are the replacement character; one token alone is shown with its bytes."""
    e_acute = Tokenizer([]).encode("é")
    assert (
        Tokenizer([]).decode([*e_acute[1:], *Tokenizer([]).encode("x"), e_acute[0]])
        == "\ufffdx\ufffd"
    )
    assert Tokenizer([]).decode_bytes(e_acute[:1]) == b"\xc3"
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


def test_special_tokens_are_found_as_one_pattern_of_all_would_find_them():
    """The longest at the leftmost place; with few and with many first characters, of all kinds."""
    rng = random.Random(0)
    marks = [chr(code) for code in range(33, 127) if not chr(code).isalnum()]
    for letters in ("ab", "ab<\n", [*marks, "é", "\U0001f600"], known_characters()[200:600]):
        texts = {
            "".join(rng.choices(letters, k=rng.randrange(2, 6))) for _ in range(3 * len(letters))
        }
        texts |= {letter * 6 for letter in letters}
        tokenizer = Tokenizer([], {text: 256 + n for n, text in enumerate(sorted(texts))})
        pattern = re.compile("|".join(map(re.escape, sorted(texts, key=len, reverse=True))))
        for _ in range(200):
            text = "".join(rng.choices([*letters, "x", *rng.sample(sorted(texts), 3)], k=12))
            spans = [found.span() for found in pattern.finditer(text)]
            assert list(tokenizer._special_finder.spans(text)) == spans, text
            ids = tokenizer.encode(text, special="token")
            assert tokenizer.decode(ids) == text
            assert sum(token_id >= 256 for token_id in ids) == len(spans)


@pytest.mark.parametrize("special", ["error", "token", "text"])
def test_what_is_no_text_is_refused(special):
    with pytest.raises(
        TokenizerError, match=r"character 3 of the text is '\\udcff', .* was not valid UTF-8"
    ):
        Tokenizer([]).encode("abc\udcff", special=special)
    for wrong in (None, 5, b"low", ["low"]):
        with pytest.raises(TokenizerError, match=r"^the text must be a str, got "):
            Tokenizer([]).encode(wrong, special=special)
    with pytest.raises(
        ArgumentError, match=r"special must be 'error', 'token' or 'text', got 'all'"
    ):
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
    merged = []
    word_ids = tokenizer._cache.word_ids
    tokenizer._cache.word_ids = lambda word: merged.append(word) or word_ids(word)
    text = (
        "".join(f" low {letter}" for letter in "abcdefghijklmnopqrstuvwxyz")
        + " lower slow lo rerer" * 2
    )
    expected = [
        token for word in WORDS.findall(text) for token in Tokenizer(SMALL_MERGES).encode(word)
    ]
    assert tokenizer.encode(text) == expected
    assert merged.count(" low") == 1, "used all the time, it is never forgotten"
    tokenizer.encode("low" * 100)
    cache = tokenizer._cache
    assert 0 < len(cache) <= len(cache.older) == 5
    assert max(map(len, [*cache, *cache.older])) <= module.LONGEST_CACHED_WORD


def test_a_tokenizer_can_be_sent_to_another_process():
    tokenizer = Tokenizer(SMALL_MERGES)
    copy = pickle.loads(pickle.dumps(tokenizer))
    assert copy.encode("hello lower") == tokenizer.encode("hello lower")
    assert copy._cache.word_ids.__self__ is copy


def test_ids_can_be_changed_without_changing_the_next():
    tokenizer = Tokenizer(SMALL_MERGES)
    tokenizer.encode("low").clear()
    assert tokenizer.encode("low") == [257]
