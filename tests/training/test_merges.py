"""Learning merges: by hand, against the definition, and against Hugging Face's trainer.

A merge is a pair of tokens that become one token. learn_merges finds the merges of a text. A
vocabulary has the 256 bytes, a token for each merge, and EOT, the token <|endoftext|>.
"""

import random
from collections import Counter
from dataclasses import replace
from itertools import pairwise

import pytest
from support.models import SMALL, random_model
from support.texts import (
    assert_same_ids,
    byte_level_bpe,
    lines_run,
    merged_everywhere,
    random_texts,
)

import tiedgpt
from tiedgpt.errors import ArgumentError, TokenizerError
from tiedgpt.gpt2.tokenizer import EOT, WORDS, Tokenizer, byte_alphabet, spelled_ids
from tiedgpt.training.merges import learn_merges, learn_tokenizer

NO_LIMIT = 10**9  # more merges than any text here has


def obvious_merges(text: str, limit: int) -> list[tuple[str, str]]:
    """The definition of learning: count all pairs of all words again for each merge.

    The most frequent pair is merged. If several pairs are equally frequent, the one with the lowest
    ids is merged. A pair that occurs only once is not merged.
    """
    spellings = list(byte_alphabet().values())  # id -> token, as text
    bytes_alone = Tokenizer([], {})
    words = []  # each as a list of ids
    for document in text.split(EOT):
        for word in WORDS.findall(document):
            words.append(bytes_alone.encode(word))
    merges: list[tuple[str, str]] = []
    while len(merges) < limit:
        counts: Counter[tuple[int, int]] = Counter()
        for word in words:
            counts.update(pairwise(word))
        highest = max(counts.values(), default=0)
        if highest < 2:
            break
        pair = min(pair for pair, count in counts.items() if count == highest)
        new_id = len(spellings)
        words = [merged_everywhere(word, pair, new_id) for word in words]
        left = spellings[pair[0]]
        right = spellings[pair[1]]
        merges.append((left, right))
        spellings.append(left + right)
    return merges


# Single texts

# The example of Sennrich et al. 2016, algorithm 1. The words "low", "lower", "newest" and "widest"
# occur 5, 2, 6 and 3 times. Beside each merge is how often its pair occurs then, and why this pair
# is merged next.
EXAMPLE = [
    ("e", "s"),  # 9 times, as often as "st", but "e" has a lower id than "s"
    ("es", "t"),  # 9 times
    ("l", "o"),  # 7 times, as often as "ow", but "l" has a lower id than "o"
    ("lo", "w"),  # 7 times
    ("e", "w"),  # 6 times, as often as "ne" and "west", but "e" has the lowest id
    ("n", "ew"),  # 6 times, as often as "ewest", but "n" has a lower id than "ew"
    ("new", "est"),  # 6 times
    ("d", "est"),  # 3 times, as often as "wi" and "id", but "d" has the lowest id
    ("i", "dest"),  # 3 times, as often as "wi", but "i" has a lower id than "w"
    ("w", "idest"),  # 3 times
    ("e", "r"),  # 2 times, as often as "lowe", but "e" has a lower id than "low"
    ("low", "er"),  # 2 times
]  # now each word is one token


@pytest.mark.parametrize("limit", [pytest.param(NO_LIMIT, id="all"), pytest.param(3, id="3")])
def test_the_example_of_the_paper(limit):
    text = "\n".join(["low"] * 5 + ["lower"] * 2 + ["newest"] * 6 + ["widest"] * 3)
    assert learn_merges(text, limit) == EXAMPLE[:limit]


TEXTS_WITHOUT_MERGES = [
    pytest.param("", id="empty"),
    pytest.param("a", id="letter"),
    pytest.param(" ", id="space"),
    pytest.param("ab", id="a-pair-once"),
    pytest.param("abc d", id="two-words"),
    pytest.param("aa", id="a-letter-twice"),
    pytest.param("👍", id="four-bytes"),
    pytest.param("é", id="two-bytes"),
    pytest.param(EOT, id="end-of-text"),
    pytest.param(EOT * 100, id="end-of-text-100-times"),
    # If EOT were part of the text, the word "!<|" would occur twice. If EOT were removed, the pair
    # "!?" would occur twice.
    pytest.param(f"!{EOT}?{EOT}" * 2, id="end-of-text-between"),
]


@pytest.mark.parametrize("text", TEXTS_WITHOUT_MERGES)
def test_a_text_in_which_no_pair_occurs_twice_has_no_merges(text):
    assert learn_merges(text, NO_LIMIT) == []


@pytest.mark.parametrize(
    ("text", "merges"),
    [
        # The pair occurs twice, although both have the letter in the middle.
        pytest.param("aaa", [("a", "a")], id="aaa"),
        pytest.param(" " * 17, [("Ġ", "Ġ"), ("ĠĠ", "ĠĠ"), ("ĠĠĠĠ", "ĠĠĠĠ")], id="spaces"),
        pytest.param(f"ab{EOT}" * 2, [("a", "b")], id="two-documents"),
    ],
)
def test_texts_with_few_merges(text, merges):
    assert learn_merges(text, NO_LIMIT) == merges


def test_half_a_surrogate_pair_is_refused():
    """Python reads a byte that is not valid UTF-8, here 0xff, as half a surrogate pair."""
    message = r"character 2 of the text is '\\udcff', .* was not valid UTF-8"
    with pytest.raises(TokenizerError, match=message):
        learn_merges("ab\udcff", 1)


# Random texts


def few_letters(seed: int) -> str:
    """A text of few different characters, so that pairs overlap and are often equally frequent.

    The smallest alphabet is "a" alone. The largest has EOT, too.
    """
    rng = random.Random(seed)
    letters = ["a", "a", "a", "b", "c", " ", "é", EOT]
    alphabet = letters[: rng.randrange(1, len(letters) + 1)]
    length = rng.randrange(300)
    return "".join(rng.choices(alphabet, k=length))


def many_characters(seed: int) -> str:
    return "".join(random_texts(25, seed))


# Of many characters, learning by the definition takes a tenth of a second.
TEXTS = [
    *[pytest.param(few_letters, seed, id=f"few-letters-{seed}") for seed in range(12)],
    pytest.param(many_characters, 0, id="many-characters-0"),
    *[
        pytest.param(many_characters, seed, id=f"many-characters-{seed}", marks=pytest.mark.slow)
        for seed in range(1, 12)
    ],
]


@pytest.mark.parametrize(("make_text", "seed"), TEXTS)
def test_learned_merges_are_those_of_the_definition(make_text, seed):
    text = make_text(seed)
    expected = obvious_merges(text, NO_LIMIT)
    assert learn_merges(text, NO_LIMIT) == expected
    assert learn_merges(text, 10) == expected[:10]


@pytest.mark.parametrize(
    "seed", [seed if seed < 3 else pytest.param(seed, marks=pytest.mark.slow) for seed in range(12)]
)
@pytest.mark.parametrize("make_text", [few_letters, many_characters])
def test_a_tokenizer_accepts_the_merges(make_text, seed):
    """A tokenizer refuses merges of which two make the same token."""
    merges = learn_merges(make_text(seed), NO_LIMIT)
    assert Tokenizer(merges).merges == merges


@pytest.mark.parametrize(
    "letters",
    ["a", "ab", pytest.param("abcdefghijklmnopqrstuvwxyz", marks=pytest.mark.slow)],
)
def test_the_time_for_a_word_is_proportional_to_its_length(letters):
    """A word of twice the length takes about twice as many steps (lines of Python that run)."""
    word = "".join(random.Random(0).choices(letters, k=2_000))
    half_of_it = word[:1_000]
    lines_for_half = lines_run(learn_merges, half_of_it, NO_LIMIT)
    assert lines_run(learn_merges, word, NO_LIMIT) < 2.2 * lines_for_half


# Vocabularies


@pytest.mark.parametrize("vocab_size", [257, 300, 1024])
def test_vocab_size_counts_every_token(corpus, vocab_size):
    """The last token is <|endoftext|>."""
    tokenizer = learn_tokenizer(corpus[:30_000], vocab_size)
    assert tokenizer.vocab_size == vocab_size
    assert tokenizer.eot_id == vocab_size - 1


@pytest.mark.slow
def test_a_text_is_encoded_with_the_tokens_that_were_learned_from_it(corpus):
    text = corpus[:200_000]
    tokenizer = learn_tokenizer(text, 1024)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(ids) == 77_857  # as with a vocabulary that Hugging Face's trainer learned from it


def test_256_tokens_are_the_bytes_alone():
    text = f"low low{EOT}"
    tokenizer = learn_tokenizer(text, 256)
    assert tokenizer.vocab_size == 256
    assert tokenizer.eot_id is None
    assert tokenizer.merges == []
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_258_tokens_have_one_merge():
    """They are 256 bytes, one merged token and <|endoftext|>."""
    assert learn_tokenizer("low low", 258).merges == [("l", "o")]


def test_a_text_with_few_merges_gives_a_small_vocabulary():
    """After two merges no pair occurs twice in the text."""
    tokenizer = learn_tokenizer("low low", 50_000)
    assert tokenizer.merges == [("l", "o"), ("lo", "w")]
    assert tokenizer.vocab_size == 256 + 2 + 1  # bytes, merges, EOT


def test_fewer_tokens_than_bytes_are_refused():
    message = "vocab_size must be a whole number of at least 256, got 255"
    with pytest.raises(ArgumentError, match=message):
        learn_tokenizer("low low", 255)


@pytest.mark.parametrize("vocab_size", [256, 257, 700])
def test_transformers_reads_a_learned_vocabulary(vocab_size, tmp_path):
    transformers = pytest.importorskip("transformers")
    texts = random_texts(500, seed=2)
    tokenizer = learn_tokenizer("\n".join(texts), vocab_size)
    model = random_model(replace(SMALL, vocab_size=tokenizer.vocab_size))
    tiedgpt.save_model(model, tokenizer, tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert_same_ids(texts, tokenizer.encode, theirs.encode)
    has_eot = vocab_size > 256  # 256 tokens are the bytes alone
    if has_eot:
        assert theirs.encode(f"a{EOT}") == tokenizer.encode(f"a{EOT}", special="token")


def assert_hugging_face_learns_the_same(text: str, vocab_size: int) -> None:
    """Hugging Face's trainer learns the same bytes and merged tokens from a text."""
    tokenizers = pytest.importorskip("tokenizers")
    theirs, trainer = byte_level_bpe(tokenizers, vocab_size, min_frequency=2)
    theirs.train_from_iterator(text.split(EOT), trainer)
    n_merges = vocab_size - 256  # their vocabulary has no EOT
    merges = learn_merges(text, n_merges)
    assert theirs.get_vocab() == spelled_ids(merges, first_id=0)


def test_hugging_faces_trainer_learns_the_same_merges_of_a_book(corpus):
    assert_hugging_face_learns_the_same(corpus[:200_000], 5_000)


def test_hugging_faces_trainer_learns_the_same_merges_of_random_texts():
    assert_hugging_face_learns_the_same(EOT.join(random_texts(2_000, seed=3)), 3_000)
