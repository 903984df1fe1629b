"""The tokenizer against published ids, against tiktoken and Hugging Face, and against wrong files."""

import json
import random
import unicodedata
from collections.abc import Callable
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tiedgpt import tokenizer as module
from tiedgpt.errors import ArgumentError, TokenizerError
from tiedgpt.tokenizer import EOT, WORDS, Tokenizer, byte_alphabet, spelled_ids

SHARED = Path(__file__).resolve().parents[1].parent / "shared"
MERGES, VOCAB = SHARED / "gpt2" / "124M" / "vocab.bpe", SHARED / "gpt2" / "124M" / "encoder.json"
CORPUS = SHARED / "corpus" / "tinyshakespeare.txt"

SMALL_MERGES = [("l", "o"), ("lo", "w"), ("Ġ", "low"), ("e", "r"), ("Ã", "©")]  # the last is "é"

# Whether a character is a letter depends on the Unicode version, and regex, tiktoken and Python each bring
# their own. Characters of Unicode 3.2 are in all of them, and every Python has that table; the two blocks of
# emoji are younger, but complete since Unicode 8.
EMOJI = range(0x1F300, 0x1F650)


@cache
def known_characters() -> list[str]:
    """All characters that every Unicode table in question knows."""
    table = unicodedata.ucd_3_2_0
    return [
        chr(code)
        for code in range(0x110000)
        if code in EMOJI or table.category(chr(code)) not in ("Cn", "Cs", "Co")
    ]


@pytest.fixture(scope="module")
def gpt2() -> Tokenizer:
    if not (MERGES.is_file() and VOCAB.is_file()):
        pytest.skip("GPT-2's vocabulary is not here: no shared/gpt2/124M beside the checkout")
    return Tokenizer.from_files(MERGES, VOCAB)


@pytest.fixture(scope="module")
def corpus() -> str:
    if not CORPUS.is_file():
        pytest.skip("the corpus is not here: no shared/corpus/tinyshakespeare.txt beside the checkout")
    return CORPUS.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tiktoken_gpt2(gpt2: Tokenizer):
    """tiktoken's GPT-2 from the same two files; tiktoken.get_encoding would download them."""
    tiktoken = pytest.importorskip("tiktoken")
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks

    ranks = data_gym_to_mergeable_bpe_ranks(vocab_bpe_file=str(MERGES), encoder_json_file=str(VOCAB))
    return tiktoken.Encoding(
        "gpt2", pat_str=WORDS.pattern, mergeable_ranks=ranks, special_tokens={EOT: 50256}
    )


def random_texts(count: int, seed: int) -> list[str]:
    """Short texts of what cuts words differently: scripts, digits, white space, apostrophes, marks, emoji."""
    rng = random.Random(seed)
    some = [
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ",
        "the of and ing er tion don't I'll we've she'd it's you're I'm 'S 'LL ''s",
        "0123456789²½Ⅷ٣८",
        "    \n\n\t\r\v\f\x1c\x85\xa0\u1680\u2003\u2028\u3000",
        ".,;:!?-_()[]{}<>|/\\\"'`~@#$%^&*+=\u2019\u20ac\xa7\xb1\xd7",
        "äöüßéèñçøåżščœæıİǅǈ",
        "αβγδеёжзשלוםمرحباनमस्तेไทยქართული",
        "日本語中文字漢かなカナ한국어",
        "é́̈ñ̃zz̧\u200d\u200b\ufeff\ufe0f\u20e3",
        "\x00\x01\x07\x08\x1b\x7f\x80\x9f\xad",
        "".join(map(chr, EMOJI)),
        "".join(known_characters()),
    ]
    return ["".join(rng.choice(rng.choice(some)) for _ in range(rng.randrange(1, 40))) for _ in range(count)]


def assert_same_ids(
    texts: list[str], ours: Callable[[str], list[int]], theirs: Callable[[str], list[int]]
) -> None:
    for text in texts:
        assert ours(text) == theirs(text), f"the first text with other ids: {text!r}"


def obvious_bpe(ids: list[int], merge_ids: dict[tuple[int, int], int]) -> list[int]:
    """Byte-pair encoding as it is defined: again and again the lowest pair, everywhere, left to right."""
    while True:
        known = [merge_ids[pair] for pair in pairwise(ids) if pair in merge_ids]
        if not known:
            return ids
        merged: list[int] = []
        at = 0
        while at < len(ids):
            fits = merge_ids.get(tuple(ids[at : at + 2])) == min(known)
            merged.append(min(known) if fits else ids[at])
            at += 2 if fits else 1
        ids = merged


def random_merges(rng: random.Random, letters: str, count: int) -> list[tuple[str, str]]:
    tokens, merges = list(letters), []
    while len(merges) < count:
        left, right = rng.choice(tokens), rng.choice(tokens)
        if left + right not in tokens:
            tokens.append(left + right)
            merges.append((left, right))
    return merges


# Ids


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
    assert 50256 not in gpt2.encode(f"hello world{EOT}", special="text")
    assert (gpt2.vocab_size, gpt2.eot_id, gpt2.special_tokens) == (50257, 50256, {EOT: 50256})
    assert len(gpt2.merges) == 50000
    assert gpt2.merges[:2] == [("Ġ", "t"), ("Ġ", "a")]


def test_published_token_count_of_the_corpus(gpt2, corpus):
    """nanoGPT's data/shakespeare/readme.md: 301,966 tokens of training text and 36,059 of validation."""
    split = int(len(corpus) * 0.9)
    assert (len(gpt2.encode(corpus[:split])), len(gpt2.encode(corpus[split:]))) == (301_966, 36_059)


def test_wikipedia_example():
    """ "aaabdaaabac" [Wikipedia, "Byte-pair encoding"], with Z = aa, Y = ab and X = ZY.

    aa is its commonest pair; then, of ZabdZabac, ab (as common as Za); then, of ZYdZYac, ZY.
    """
    merges = [("a", "a"), ("a", "b"), ("aa", "ab")]
    states = ["a a a b d a a a b a c", "aa a b d aa a b a c", "aa ab d aa ab a c", "aaab d aaab a c"]
    for known, state in enumerate(states):
        tokenizer = Tokenizer(merges[:known])
        ids = tokenizer.encode("aaabdaaabac")
        assert [tokenizer.token_text(token_id) for token_id in ids] == state.split()
    X, a, c, d = 258, 64, 66, 67
    assert ids == [X, d, X, a, c]


def test_repetition_ladder(gpt2):
    """The rungs of tiktoken's own test: the leftmost of overlapping pairs is first."""
    ladder = [[15], [405], [830], [2388], [20483], [10535], [24598], [8269], [10535, 830], [8269, 405]]
    ladder += [
        [8269, 830],
        [8269, 2388],
        [8269, 20483],
        [8269, 10535],
        [8269, 24598],
        [25645],
        [8269, 10535, 830],
    ]
    assert [gpt2.encode("0" * n) for n in range(1, 18)] == ladder


def test_words_are_cut_as_gpt2_does():
    text = "It's  12 o'clock,\n\n \twe'll go!   "
    words = ["It", "'s", " ", " 12", " o", "'", "clock", ",", "\n\n ", "\t", "we", "'ll", " go", "!", "   "]
    assert WORDS.findall(text) == words


@pytest.mark.parametrize("seed", range(20))
def test_merging_is_what_the_definition_says(seed):
    rng = random.Random(seed)
    tokenizer = Tokenizer(random_merges(rng, "abc", 40))
    for length in [*range(20), 50, 100, 200]:
        text = "".join(rng.choices("abc", k=length))
        one_byte_each = [tokenizer.encode(letter)[0] for letter in text]
        assert tokenizer.encode(text) == obvious_bpe(one_byte_each, tokenizer._merge_ids), text


def test_tiktoken_gives_the_same_ids_for_random_texts(gpt2, tiktoken_gpt2):
    assert_same_ids(random_texts(20_000, seed=1), gpt2.encode, tiktoken_gpt2.encode_ordinary)


def test_tiktoken_gives_the_same_ids_for_every_character(gpt2, tiktoken_gpt2):
    assert len(known_characters()) > 95_000
    texts = [f"a{character}1 {character}{character} '{character}" for character in known_characters()]
    assert_same_ids(texts, gpt2.encode, tiktoken_gpt2.encode_ordinary)


def test_tiktoken_gives_the_same_ids_for_the_corpus(gpt2, tiktoken_gpt2, corpus):
    assert_same_ids([corpus, *corpus.splitlines(keepends=True)], gpt2.encode, tiktoken_gpt2.encode_ordinary)


def test_tiktoken_gives_the_same_ids_for_special_tokens(gpt2, tiktoken_gpt2):
    rng = random.Random(2)
    texts = [EOT.join(texts) for texts in zip(*(random_texts(300, seed) for seed in (3, 4, 5)), strict=True)]
    texts += ["".join(rng.choices([EOT, "<|", "|>", "endoftext", " ", "a"], k=8)) for _ in range(300)]
    assert_same_ids(
        texts,
        lambda text: gpt2.encode(text, special="token"),
        lambda text: tiktoken_gpt2.encode(text, allowed_special="all"),
    )
    assert_same_ids(texts, lambda text: gpt2.encode(text, special="text"), tiktoken_gpt2.encode_ordinary)


# There and back


def test_text_comes_back(gpt2):
    tokenizers = (gpt2, Tokenizer([]), Tokenizer(SMALL_MERGES))
    for text in ["", *random_texts(2_000, seed=6)]:
        for tokenizer in tokenizers:
            assert tokenizer.decode(tokenizer.encode(text)) == text


def test_every_id_comes_back(gpt2):
    """Each id has the bytes that its spelling in encoder.json says, and their text comes back."""
    byte_of = {character: byte for byte, character in byte_alphabet().items()}
    for spelling, token_id in json.loads(VOCAB.read_text(encoding="utf-8")).items():
        token = spelling.encode() if spelling == EOT else bytes(byte_of[character] for character in spelling)
        assert gpt2.token_bytes(token_id) == gpt2.decode_bytes([token_id]) == token
        text = gpt2.decode([token_id])
        assert gpt2.decode(gpt2.encode(text, special="token")) == text
    assert gpt2.decode_bytes(range(50257)) == b"".join(map(gpt2.token_bytes, range(50257)))


def test_decode_takes_lists_and_arrays():
    tokenizer = Tokenizer(SMALL_MERGES)
    ids = tokenizer.encode("low lower")
    for form in (ids, tuple(ids), iter(ids), np.array(ids), np.array(ids, np.uint16), list(np.array(ids))):
        assert tokenizer.decode(form) == "low lower"
    assert tokenizer.decode([]) == tokenizer.decode(np.array([], np.int64)) == ""


def test_bytes_that_are_no_utf8_decode_to_the_replacement_character():
    tokenizer = Tokenizer([])
    e_acute = tokenizer.encode("é")
    assert tokenizer.decode(e_acute[:1]) == "\ufffd"
    assert tokenizer.decode([*e_acute[1:], *tokenizer.encode("x")]) == "\ufffdx"
    assert tokenizer.decode_bytes(e_acute[:1]) == b"\xc3"


def test_token_text_writes_half_characters_out(gpt2):
    texts = [gpt2.token_text(token_id) for token_id in gpt2.encode("né 👍!")]
    assert texts == ["n", "é", " \\xf0\\x9f\\x91", "\\x8d", "!"]
    assert gpt2.token_text(50256) == EOT


@pytest.mark.parametrize("wrong", [-1, 262, 10**30, 1.0, True, "1", None, np.int64(-1), np.float32(1), [1]])
def test_what_is_no_id_is_refused(wrong):
    tokenizer = Tokenizer(SMALL_MERGES)
    assert tokenizer.vocab_size == 262
    with pytest.raises(TokenizerError, match=r"is no token's id: expected an integer from 0 to 261"):
        tokenizer.decode([0, wrong])
    with pytest.raises(TokenizerError, match=r"is no token's id"):
        tokenizer.token_text(wrong)
    with pytest.raises(TokenizerError, match=r"is no token's id"):
        tokenizer.stream().push(wrong)


# Streams


def streamed(tokenizer: Tokenizer, ids: list[int]) -> list[str]:
    stream = tokenizer.stream()
    return [*(stream.push(token_id) for token_id in ids), stream.finish()]


def test_a_stream_waits_for_whole_characters():
    assert streamed(Tokenizer([]), Tokenizer([]).encode("a€b")) == ["a", "", "", "€", "b", ""]
    assert streamed(Tokenizer([]), Tokenizer([]).encode("a€")[:-1]) == ["a", "", "", "\ufffd"]


@pytest.mark.parametrize("seed", range(10))
def test_a_stream_adds_up_to_decode(seed):
    """For text whose characters are cut at random places, and for random ids, most of them no UTF-8."""
    rng = random.Random(seed)
    letters = list(byte_alphabet().values())
    tokenizer = Tokenizer(random_merges(rng, "".join(letters), 3_000))
    for text in random_texts(50, seed):
        ids = tokenizer.encode(text)
        pieces = streamed(tokenizer, ids)
        assert "".join(pieces) == tokenizer.decode(ids) == text
        assert "\ufffd" not in pieces
    for _ in range(200):
        ids = rng.choices(range(tokenizer.vocab_size), k=rng.randrange(30))
        assert "".join(streamed(tokenizer, ids)) == tokenizer.decode(ids)


def test_a_stream_of_gpt2_adds_up_to_decode(gpt2):
    rng = random.Random(0)
    for _ in range(300):
        ids = rng.choices(range(gpt2.vocab_size), k=50)
        assert "".join(streamed(gpt2, ids)) == gpt2.decode(ids)


# Special tokens


def test_special_text_is_an_error_unless_asked_for():
    tokenizer = Tokenizer(SMALL_MERGES)
    with pytest.raises(
        TokenizerError,
        match=r"'<\|endoftext\|>' at character 4, .* not be able to end the document; "
        r"special='token' reads it as that token, special='text' as ordinary characters",
    ):
        tokenizer.encode(f"low {EOT}")
    assert tokenizer.encode(f"low{EOT}{EOT}low", special="token") == [257, 261, 261, 257]
    as_text = tokenizer.encode(f"low{EOT}", special="text")
    assert as_text == Tokenizer(SMALL_MERGES, {}).encode(f"low{EOT}")
    assert tokenizer.decode(as_text) == tokenizer.decode([257, 261]) == f"low{EOT}"


def test_text_that_is_nearly_special_is_text():
    assert Tokenizer([]).decode(Tokenizer([]).encode("<|endoftext|")) == "<|endoftext|"


def test_the_longest_special_token_is_read():
    tokenizer = Tokenizer([], {"<a>": 256, "<a><b>": 257, "[x]*": 258, "(?i)": 259})
    text = "<a><b><a>[x]*(?i)<A>"
    assert tokenizer.encode(text, special="token") == [257, 256, 258, 259, *tokenizer.encode("<A>")]


def test_special_must_be_one_of_three():
    with pytest.raises(ArgumentError, match=r"special must be 'error', 'token' or 'text', got 'all'"):
        Tokenizer([]).encode("", special="all")


@pytest.mark.parametrize("special", ["error", "token", "text"])
def test_surrogates_are_refused(special):
    with pytest.raises(TokenizerError, match=r"character 3 of the text is '\\udcff', .* was not valid UTF-8"):
        Tokenizer([]).encode("abc\udcff", special=special)


# Time and memory


class Counted(dict):
    """A dict that counts how often it is asked."""

    asked = 0

    def get(self, *args):
        self.asked += 1
        return super().get(*args)

    def __contains__(self, key):
        self.asked += 1
        return super().__contains__(key)

    def __getitem__(self, key):
        self.asked += 1
        return super().__getitem__(key)


def lookups(tokenizer: Tokenizer, text: str) -> int:
    """How often merging `text` asks for a pair: once for every push to the heap and every pop, at least."""
    assert len(text) > module.LONGEST_CACHED_WORD
    merge_ids, tokenizer._merge_ids = tokenizer._merge_ids, Counted(tokenizer._merge_ids)
    try:
        assert tokenizer.decode(tokenizer.encode(text)) == text
        return tokenizer._merge_ids.asked
    finally:
        tokenizer._merge_ids = merge_ids


RUNS = {
    "one letter": "a",
    "letters": "abcdefghijklmnopqrstuvwxyz",
    "spaces": " ",
    "digits": "0123456789",
    "marks": "-=_*#",
    "ideographs": "".join(map(chr, range(0x4E00, 0x9FA6))),
    "emoji": "".join(map(chr, EMOJI)),
}


@pytest.mark.parametrize("run", RUNS)
def test_long_words_take_time_in_proportion(gpt2, run):
    text = "".join(random.Random(0).choices(RUNS[run], k=20_000))
    half, whole = lookups(gpt2, text[:10_000]), lookups(gpt2, text)
    assert whole < 2.1 * half
    assert whole < 8 * len(
        text.encode()
    )  # the obvious loop asks as often for each of its thousands of merges


def test_long_words_take_time_in_proportion_without_gpt2():
    tokenizer = Tokenizer(
        [("a" * 2**n, "a" * 2**n) for n in range(10)] + random_merges(random.Random(0), "bcd", 300)
    )
    for text in ("a" * 20_000, "".join(random.Random(1).choices("abcd", k=20_000))):
        assert lookups(tokenizer, text) < min(2.1 * lookups(tokenizer, text[:10_000]), 8 * len(text))


def test_the_cache_is_bounded_and_changes_nothing(monkeypatch):
    monkeypatch.setattr(module, "MAX_CACHED_WORDS", 5)
    tokenizer, text = Tokenizer(SMALL_MERGES), "low lower slow lo rerer lowlow x y z low " * 3
    assert tokenizer.encode(text) == [
        token for word in WORDS.findall(text) for token in tokenizer.encode(word)
    ]
    assert 0 < len(tokenizer._cache) <= 5
    tokenizer.encode("low" * 100)
    assert max(map(len, tokenizer._cache)) <= module.LONGEST_CACHED_WORD


def test_ids_can_be_changed_without_changing_the_next():
    tokenizer = Tokenizer(SMALL_MERGES)
    tokenizer.encode("low").clear()
    assert tokenizer.encode("low") == [257]


# Vocabularies


@pytest.mark.parametrize(
    ("special_tokens", "first_id", "eot_id"),
    [
        (None, 0, 261),
        ({}, 0, None),
        ({"<pad>": 261}, 0, None),
        ({EOT: 0}, 1, 0),
        ({"<pad>": 1, EOT: 263, "<s>": 0}, 2, 263),
    ],
)
def test_special_tokens_before_and_after(special_tokens, first_id, eot_id, tmp_path):
    tokenizer = Tokenizer(SMALL_MERGES, special_tokens, first_id)
    assert tokenizer.eot_id == eot_id
    assert tokenizer.vocab_size == 261 + len(tokenizer.special_tokens)
    assert tokenizer.encode("low!") == [first_id + 257, first_id]
    for text, token_id in tokenizer.special_tokens.items():
        assert tokenizer.encode(f"!{text}", special="token") == [first_id, token_id]
        assert tokenizer.decode([token_id]) == text
    assert_same_tokenizer(saved_and_read(tokenizer, tmp_path), tokenizer)


def saved_and_read(tokenizer: Tokenizer, directory: Path) -> Tokenizer:
    for name, text in tokenizer.to_files().items():
        (directory / name).write_text(text, encoding="utf-8", newline="")
    return Tokenizer.from_files(directory / "merges.txt", directory / "vocab.json")


def assert_same_tokenizer(read: Tokenizer, tokenizer: Tokenizer) -> None:
    assert read.merges == tokenizer.merges
    assert read.special_tokens == tokenizer.special_tokens
    assert read.to_files() == tokenizer.to_files()
    text = "a lower low é"
    assert read.encode(text) == tokenizer.encode(text)


def test_bytes_alone_are_a_vocabulary(tmp_path):
    for special_tokens in (None, {}):
        tokenizer = Tokenizer([], special_tokens)
        assert tokenizer.encode("low") == [75, 78, 86]
        assert_same_tokenizer(saved_and_read(tokenizer, tmp_path), tokenizer)


def test_the_files_of_gpt2_come_back_byte_for_byte(gpt2):
    files = gpt2.to_files()
    assert files["merges.txt"].encode() == MERGES.read_bytes()
    assert files["vocab.json"].encode() == VOCAB.read_bytes()


def test_merges_alone_are_enough_for_gpt2(gpt2):
    assert_same_tokenizer(Tokenizer.from_files(MERGES), gpt2)


@pytest.mark.parametrize(
    "text",
    [
        "#version: 0.2\nl o\nlo w\n",
        "l o\nlo w",
        "#version: 0.2 - Trained by `huggingface/tokenizers`\r\nl o\r\nlo w\r\n",
        "#version: 0.2\nl o\nlo w\n\n\n",
    ],
)
def test_forms_of_merges_txt(text, tmp_path):
    path = tmp_path / "merges.txt"
    path.write_text(text, encoding="utf-8", newline="")
    assert Tokenizer.from_files(path).merges == [("l", "o"), ("lo", "w")]


@pytest.mark.parametrize("text", ["", "\n", "#version: 0.2\n", "#version: 0.2"])
def test_merges_txt_without_merges(text, tmp_path):
    path = tmp_path / "merges.txt"
    path.write_text(text, encoding="utf-8")
    assert Tokenizer.from_files(path).merges == []


def test_a_merge_may_begin_with_the_comment_sign(tmp_path):
    path = tmp_path / "merges.txt"
    path.write_text("#version: 0.2\n# #\n## #\n", encoding="utf-8")
    assert Tokenizer.from_files(path).merges == [("#", "#"), ("##", "#")]


@pytest.mark.parametrize(
    ("merges", "message"),
    [
        ([("l", "o"), ("lo", "wer")], r"merge 2, 'lo wer': 'wer' is no byte or earlier merge"),
        ([("lo", "w"), ("l", "o")], r"merge 1, 'lo w': 'lo' is no byte or earlier merge"),
        ([("l", " ")], r"merge 1, 'l  ': ' ' is no byte or earlier merge"),
        ([("l", "o"), ("l", "o")], r"merge 2, 'l o': exists already"),
        ([("a", "b"), ("b", "c"), ("a", "bc"), ("ab", "c")], r"merge 4, 'ab c': exists already"),
    ],
)
def test_merges_that_contradict_themselves(merges, message, tmp_path):
    with pytest.raises(TokenizerError, match=f"^{message}$"):
        Tokenizer(merges)
    path, vocab_path = tmp_path / "merges.txt", tmp_path / "vocab.json"
    path.write_text("".join(f"{left} {right}\n" for left, right in merges if right != " "), encoding="utf-8")
    if merges[0][1] != " ":  # a part that is a space is two spaces to merges.txt, another error
        with pytest.raises(TokenizerError, match=rf"merges\.txt: {message}"):
            Tokenizer.from_files(path)
        vocab_path.write_text(json.dumps(spelled_ids(merges, 0)), encoding="utf-8")
        with pytest.raises(TokenizerError, match=rf"merges\.txt with .*vocab\.json: {message}"):
            Tokenizer.from_files(path, vocab_path)


@pytest.mark.parametrize(
    ("special_tokens", "first_id", "message"),
    [
        ({EOT: 257}, 0, r"special token '<\|endoftext\|>' has id 257, expected 256"),
        ({EOT: 255}, 0, r"special token '<\|endoftext\|>' has id 255, expected 256"),
        ({"<a>": 256, "<b>": 256}, 0, r"special token '<b>' has id 256, expected 257"),
        ({"<a>": 0, "<b>": 256}, 1, r"special token '<b>' has id 256, expected 257"),
        ({"<a>": -1}, 0, r"special token '<a>' has id -1, expected 256"),
        ({}, 1, r"the first byte has id 1, expected 0 to 0: only special tokens come before it"),
        ({"<a>": 0}, 10**30, r"the first byte has id 10{30}, expected 0 to 1"),
        ({"<a>": 0}, -1, r"the first byte has id -1, expected 0 to 1"),
        ({"": 256}, 0, r"special token '' is empty"),
        ({"lo": 257}, 0, r"special token 'lo' is an ordinary token too"),
        (
            {"\ud800": 256},
            0,
            r"character 0 of special token '\\ud800' is '\\ud800', half of a surrogate pair",
        ),
    ],
)
def test_special_tokens_that_do_not_fit(special_tokens, first_id, message):
    with pytest.raises(TokenizerError, match=message):
        Tokenizer([("l", "o")] if "lo" in special_tokens else [], special_tokens, first_id)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"#version: 0.2\nl o\nlow\n", r"merges\.txt, line 3: expected two tokens, got 'low'"),
        (b"l o\nlo w x\n", r"merges\.txt, line 2: expected two tokens, got 'lo w x'"),
        (b"l o\n\nlo w\n", r"merges\.txt, line 2: expected two tokens, got ''"),
        (b"l o\nlo \n", r"merges\.txt, line 2: expected two tokens, got 'lo '"),
        (b"l  o\n", r"merges\.txt, line 1: expected two tokens, got 'l  o'"),
        (b"l\to\n", r"merges\.txt, line 1: expected two tokens, got 'l\\to'"),
        (b"l o\n#version: 0.2 x\n", r"merges\.txt, line 2: expected two tokens"),
        (b"#version: 0.2\nl o\nl \xff\n", r"merges\.txt, line 3: not UTF-8"),
        (
            b"l " + b"o" * 1000 + b"\n",
            r"merges\.txt: merge 1, 'l o{50,60}\.\.\.: 'o+\.\.\. is no byte or earlier merge$",
        ),
    ],
)
def test_malformed_merges(content, message, tmp_path):
    path = tmp_path / "merges.txt"
    path.write_bytes(content)
    with pytest.raises(TokenizerError, match=message):
        Tokenizer.from_files(path)


def vocab_with(**changes: object) -> str:
    """The vocab.json of bytes, "lo", "low" and <|endoftext|>, with some ids changed, or removed by None."""
    ids = spelled_ids([("l", "o"), ("lo", "w")], 0) | {EOT: 258} | changes
    return json.dumps({token: token_id for token, token_id in ids.items() if token_id is not None})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", r"vocab\.json, line 1: not UTF-8"),
        (b"", r"vocab\.json: not JSON: "),
        (b'{"!": 0', r"vocab\.json: not JSON: "),
        (b"[" * 100_000, r"vocab\.json: not JSON: "),
        (b'{"!": ' + b"1" * 5000 + b"}", r"vocab\.json: not JSON: "),
        (b"[0, 1]", r"vocab\.json: expected a JSON object, got \[0, 1\]"),
        (b"{}", r"vocab\.json: token '!' has no id, expected 0"),
        (vocab_with(lo="256"), r"vocab\.json: token 'lo' has id '256', expected an integer"),
        (vocab_with(lo=256.0), r"vocab\.json: token 'lo' has id 256\.0, expected an integer"),
        (vocab_with(lo=float("nan")), r"vocab\.json: token 'lo' has id nan, expected an integer"),
        (vocab_with(**{'"': True}), r"vocab\.json: token '\"' has id True, expected an integer"),
        (
            vocab_with(**{EOT: [258]}),
            r"vocab\.json: token '<\|endoftext\|>' has id \[258\], expected an integer",
        ),
        (vocab_with(**{"Ġ": None}), r"vocab\.json: token 'Ġ' has no id, expected 220"),
        (vocab_with(**{"!": None}), r"vocab\.json: token '!' has no id, expected 0"),
        (vocab_with(low=None), r"vocab\.json: token 'low' has no id, expected 257"),
        (vocab_with(lo=257, low=256), r"vocab\.json: token 'lo' has id 257, expected 256"),
        (vocab_with(low=258, **{EOT: 257}), r"vocab\.json: token 'low' has id 258, expected 257"),
        (vocab_with(lo=10**30), r"vocab\.json: token 'lo' has id 10{30}, expected 256"),
        (vocab_with(**{"!": 10**30}), r"vocab\.json: token '\"' has id 1, expected 10{29}1"),
        (vocab_with(**{EOT: 259}), r"vocab\.json: special token '<\|endoftext\|>' has id 259, expected 258"),
        (vocab_with(**{EOT: 257}), r"vocab\.json: special token '<\|endoftext\|>' has id 257, expected 258"),
        (vocab_with(extra=260), r"vocab\.json: special token 'extra' has id 260, expected 259"),
        (vocab_with(Ġlow=258, **{EOT: 259}), r"vocab\.json: token 'Ġlow' is the result of no merge"),
        (vocab_with(**{"\ud800": 259}), r"vocab\.json: character 0 of special token '\\ud800'"),
        (
            json.dumps(spelled_ids([("l", "o"), ("lo", "w")], 1)),
            r"vocab\.json: the first byte has id 1, expected 0 to 0: only special tokens come before it",
        ),
        (
            json.dumps(spelled_ids([("l", "o"), ("lo", "w")], -1)),
            r"vocab\.json: the first byte has id -1, expected 0 to 0",
        ),
    ],
)
def test_vocab_json_that_is_malformed_or_contradicts_the_merges(content, message, tmp_path):
    merges_path, vocab_path = tmp_path / "merges.txt", tmp_path / "vocab.json"
    merges_path.write_text("#version: 0.2\nl o\nlo w\n", encoding="utf-8")
    vocab_path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(TokenizerError, match=message) as caught:
        Tokenizer.from_files(merges_path, vocab_path)
    assert "\n" not in str(caught.value)
    vocab_path.write_text(vocab_with(), encoding="utf-8")
    assert Tokenizer.from_files(merges_path, vocab_path).eot_id == 258


# tokenizer.json


def tokenizer_json(**changes: object) -> dict:
    """What Hugging Face writes for SMALL_MERGES, with a dotted name's value changed ("model__dropout")."""
    added = {
        "id": 261,
        "content": EOT,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "special": True,
    }
    file: dict = {
        "version": "1.0",
        "added_tokens": [added],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "ByteLevel",
            "add_prefix_space": False,
            "trim_offsets": True,
            "use_regex": True,
        },
        "post_processor": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False},
        "model": {
            "type": "BPE",
            "dropout": None,
            "vocab": spelled_ids(SMALL_MERGES, 0) | {EOT: 261},
            "merges": [f"{left} {right}" for left, right in SMALL_MERGES],
        },
    }
    for name, value in changes.items():
        *path, last = name.split("__")
        place = file
        for key in path:
            place = place[key]
        if value is KeyError:
            del place[last]
        else:
            place[last] = value
    return file


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False}
VOCAB_WITHOUT_EOT = spelled_ids(SMALL_MERGES, 0)


def added(**changes: object) -> list[dict]:
    return [{"id": 261, "content": EOT} | changes]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model__merges": [list(pair) for pair in SMALL_MERGES]},
        {"model__type": KeyError},  # GPT-2's own file
        {
            "model__continuing_subword_prefix": "",
            "model__end_of_word_suffix": "",
            "model__ignore_merges": False,
        },
        {"pre_tokenizer": BYTE_LEVEL},
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTE_LEVEL]}},
        {"added_tokens": KeyError},
        {"added_tokens": None},
        {"model__vocab": VOCAB_WITHOUT_EOT},  # only added_tokens has it
    ],
)
def test_forms_of_tokenizer_json(changes, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(tokenizer_json(**changes)), encoding="utf-8")
    assert_same_tokenizer(Tokenizer.from_json(path), Tokenizer(SMALL_MERGES))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"normalizer": {"type": "NFC"}},
            r"normalizer is \{'type': 'NFC'\}, expected None: GPT-2's ids need it so",
        ),
        ({"model__type": "Unigram"}, r"model\.type is 'Unigram', expected 'BPE'"),
        ({"model__dropout": 0.1}, r"model\.dropout is 0\.1, expected None"),
        (
            {"model__continuing_subword_prefix": "##"},
            r"model\.continuing_subword_prefix is '##', expected ''",
        ),
        ({"model__end_of_word_suffix": "</w>"}, r"model\.end_of_word_suffix is '</w>', expected ''"),
        ({"model__ignore_merges": True}, r"model\.ignore_merges is True, expected False"),
        ({"pre_tokenizer": None}, r"pre_tokenizer\.type is None, expected 'ByteLevel'"),
        ({"pre_tokenizer": KeyError}, r"pre_tokenizer\.type is None, expected 'ByteLevel'"),
        ({"pre_tokenizer": "ByteLevel"}, r"pre_tokenizer\.add_prefix_space is 'ByteLevel', expected False"),
        ({"pre_tokenizer__type": "Metaspace"}, r"pre_tokenizer\.type is 'Metaspace', expected 'ByteLevel'"),
        (
            {"pre_tokenizer__add_prefix_space": True},
            r"pre_tokenizer\.add_prefix_space is True, expected False",
        ),
        (
            {"pre_tokenizer__add_prefix_space": KeyError},
            r"pre_tokenizer\.add_prefix_space is None, expected False",
        ),
        ({"pre_tokenizer__use_regex": False}, r"pre_tokenizer\.use_regex is False, expected True"),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [{"type": "Digits"}, BYTE_LEVEL]}},
            r"pre_tokenizer\.type is 'Sequence', expected 'ByteLevel'",
        ),
        (
            {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [BYTE_LEVEL | {"use_regex": False}]}},
            r"pre_tokenizer\.use_regex is False, expected True",
        ),
        ({"model": KeyError}, r"expected model\.vocab, model\.merges and a list of added_tokens"),
        ({"model__vocab": []}, r"expected model\.vocab, model\.merges and a list of added_tokens"),
        ({"model__merges": KeyError}, r"expected model\.vocab, model\.merges and a list of added_tokens"),
        ({"added_tokens": {"a": 1}}, r"expected model\.vocab, model\.merges and a list of added_tokens"),
        ({"model__merges": ["l o", "low"]}, r", merge 2: expected two tokens, got 'low'"),
        (
            {"model__merges": ["l o", ["lo", "w", "x"]]},
            r", merge 2: expected two tokens, got \['lo', 'w', 'x'\]",
        ),
        ({"model__merges": [["l", 1]]}, r", merge 1: expected two tokens, got \['l', 1\]"),
        ({"model__merges": [["l", []]]}, r", merge 1: expected two tokens, got \['l', \[\]\]"),
        (
            {"model__merges": [{"l": "o", "a": "b"}]},
            r", merge 1: expected two tokens, got \{'l': 'o', 'a': 'b'\}",
        ),
        ({"model__merges": ["l xyz"]}, r": merge 1, 'l xyz': 'xyz' is no byte or earlier merge"),
        ({"model__merges": ["l o", "lo w"]}, r": token 'Ġlow' is the result of no merge: some are missing"),
        ({"added_tokens": [EOT]}, r"added token '<\|endoftext\|>': expected content"),
        ({"added_tokens": [{"id": 261}]}, r"added token \{'id': 261\}: expected content"),
        ({"added_tokens": added(id=262)}, r"added token \{'id': 262, .* the id that vocab has for it"),
        ({"added_tokens": added(id="261")}, r"added token \{'id': '261', "),
        (
            {"added_tokens": added(content="low", id=257)},
            r"'content': 'low'\}: expected content that no merge makes",
        ),
        ({"added_tokens": added(lstrip=True)}, r"added token .*, and not lstrip, rstrip or single_word"),
        ({"added_tokens": added(rstrip=True)}, r"added token .*, and not lstrip, rstrip or single_word"),
        ({"added_tokens": added(single_word=True)}, r"added token .*, and not lstrip, rstrip or single_word"),
        ({"added_tokens": added(content="<x>", id=263)}, r"special token '<x>' has id 263, expected 262"),
        ({"added_tokens": added(content="<x>", id=True)}, r"token '<x>' has id True, expected an integer"),
        ({"model__vocab": VOCAB_WITHOUT_EOT | {"low": 1}}, r"token 'low' has id 1, expected 257"),
    ],
)
def test_tokenizer_json_that_is_malformed_or_gives_other_ids(changes, message, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(tokenizer_json(**changes)), encoding="utf-8")
    with pytest.raises(TokenizerError, match=rf"tokenizer\.json.*{message}"):
        Tokenizer.from_json(path)


@pytest.mark.parametrize("content", [b"", b"\xff", b"[]", b"[" * 100_000])
def test_tokenizer_json_that_is_no_object(content, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(
        TokenizerError, match=r"tokenizer\.json(: not JSON|, line 1: not UTF-8|: expected a JSON object)"
    ):
        Tokenizer.from_json(path)


def test_transformers_tokenizer_json_of_gpt2(gpt2, tmp_path):
    transformers = pytest.importorskip("transformers")
    files = {"merges": tmp_path / "merges.txt", "vocab": tmp_path / "vocab.json"}
    files["merges"].write_bytes(MERGES.read_bytes())
    files["vocab"].write_bytes(VOCAB.read_bytes())
    theirs = transformers.GPT2TokenizerFast(**{name: str(path) for name, path in files.items()})
    theirs.save_pretrained(tmp_path / "saved")
    ours = Tokenizer.from_json(tmp_path / "saved" / "tokenizer.json")
    assert_same_tokenizer(ours, gpt2)
    assert_same_ids(
        random_texts(500, seed=7),
        ours.encode,
        lambda text: theirs.backend_tokenizer.encode(text, add_special_tokens=False).ids,
    )


def test_tokenizers_that_hugging_face_trained(tmp_path):
    """Special tokens first, as its trainer puts them: tokenizer.json and the two files give its ids."""
    tokenizers = pytest.importorskip("tokenizers")
    theirs = tokenizers.Tokenizer(tokenizers.models.BPE())
    theirs.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=[EOT, "<pad>"],
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    texts = random_texts(500, seed=8)
    theirs.train_from_iterator(texts, trainer)
    theirs.save(str(tmp_path / "tokenizer.json"))
    theirs.model.save(str(tmp_path))
    ours = Tokenizer.from_json(tmp_path / "tokenizer.json")
    assert ours.special_tokens == {EOT: 0, "<pad>": 1}
    assert ours.vocab_size == theirs.get_vocab_size() > 600
    texts += [f"{text}{EOT}<pad>{text}" for text in texts[:50]]
    for tokenizer in (ours, Tokenizer.from_files(tmp_path / "merges.txt", tmp_path / "vocab.json")):
        assert_same_ids(
            texts,
            lambda text, encode=tokenizer.encode: encode(text, special="token"),
            lambda text: theirs.encode(text).ids,
        )
