"""Learning merges: by hand, against the definition, and against Hugging Face's trainer."""

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

NO_LIMIT = 10**9


def obvious_merges(text: str, limit: int) -> list[tuple[str, str]]:
    """The definition of learning: count all pairs of all words again for each merge."""
    spelling = list(byte_alphabet().values())
    byte_ids = Tokenizer([], {}).encode
    words = [byte_ids(word) for document in text.split(EOT) for word in WORDS.findall(document)]
    merges: list[tuple[str, str]] = []
    while len(merges) < limit:
        counts = Counter(pair for word in words for pair in pairwise(word))
        best = max(counts, key=lambda pair: (counts[pair], -pair[0], -pair[1]), default=None)
        if best is None or counts[best] == 1:
            break
        words = [merged_everywhere(word, best, len(spelling)) for word in words]
        merges.append((spelling[best[0]], spelling[best[1]]))
        spelling.append("".join(merges[-1]))
    return merges


def test_the_example_of_the_paper():
    """ "low", "lower", "newest", "widest" come 5, 2, 6 and 3 times [Sennrich et al. 2016, algorithm
    1].

    es is as common as st (9), and e is the older token: es. Then est (9), which no other reaches.
    lo is as common as ow (7): lo, low. ne, ew and west are 6 each: ew, of e, then new, then newest.
    wi, id and dest are 3 each: dest, of d, then idest (of i, before w), then widest. Of what comes
    twice, er is older than lowe: er, lower. What is left are whole words.
    """
    text = "\n".join(["low"] * 5 + ["lower"] * 2 + ["newest"] * 6 + ["widest"] * 3)
    merges = "e+s es+t l+o lo+w e+w n+ew new+est d+est i+dest w+idest e+r low+er"
    assert ["+".join(merge) for merge in learn_merges(text, NO_LIMIT)] == merges.split()
    assert ["+".join(merge) for merge in learn_merges(text, 3)] == merges.split()[:3]


@pytest.mark.parametrize("seed", range(12))
def test_merges_are_what_the_definition_says(seed):
    rng = random.Random(seed)
    letters = [*"aaabc", " ", "é", EOT][: rng.randrange(1, 9)]
    texts = ["".join(rng.choices(letters, k=rng.randrange(300))), "".join(random_texts(40, seed))]
    for text in texts:
        for limit in (NO_LIMIT, 10):
            merges = learn_merges(text, limit)
            assert merges == obvious_merges(text, limit), text
            assert Tokenizer(merges).merges == merges  # which refuses two merges with one result


@pytest.mark.parametrize(
    ("text", "merges"),
    [
        *((text, []) for text in ("", "a", " ", "ab", "abc d", "aa", "👍", "é", EOT, EOT * 100)),
        ("aaa", [("a", "a")]),  # it holds the pair twice, and one of the two becomes a token
        (" " * 17, [("Ġ", "Ġ"), ("ĠĠ", "ĠĠ"), ("ĠĠĠĠ", "ĠĠĠĠ")]),
        (f"ab{EOT}" * 2, [("a", "b")]),
        (f"!{EOT}?{EOT}" * 2, []),  # "!<|" and "|>?" would be words, or "!?"
    ],
)
def test_merges_of_texts_that_hardly_have_any(text, merges):
    assert learn_merges(text, NO_LIMIT) == merges


def test_half_a_surrogate_pair_is_refused():
    with pytest.raises(
        TokenizerError, match=r"character 2 of the text is '\\udcff', .* was not valid UTF-8"
    ):
        learn_merges("ab\udcff", 1)


@pytest.mark.parametrize("letters", ["a", "ab", "abcdefghijklmnopqrstuvwxyz"])
def test_a_huge_word_takes_time_in_proportion(letters):
    text = "".join(random.Random(0).choices(letters, k=2_000))
    half = lines_run(learn_merges, text[:1_000], NO_LIMIT)
    assert lines_run(learn_merges, text, NO_LIMIT) < 2.2 * half


def test_vocab_size_counts_every_token(corpus):
    text = corpus[:200_000]
    for vocab_size in (257, 300, 1024):
        tokenizer = learn_tokenizer(text, vocab_size)
        assert (tokenizer.vocab_size, tokenizer.eot_id) == (vocab_size, vocab_size - 1)
    ids = tokenizer.encode(text)
    assert tokenizer.decode(ids) == text
    assert len(ids) == 77_857  # as a vocabulary that Hugging Face's trainer made of it gives


def test_256_is_bytes_alone_and_a_text_with_few_merges_gives_few():
    tokenizer = learn_tokenizer(f"low low{EOT}", 256)
    assert (tokenizer.vocab_size, tokenizer.eot_id, tokenizer.merges) == (256, None, [])
    assert tokenizer.decode(tokenizer.encode(f"low low{EOT}")) == f"low low{EOT}"
    tokenizer = learn_tokenizer("low low", 50_000)
    assert (tokenizer.vocab_size, tokenizer.merges) == (256 + 2 + 1, [("l", "o"), ("lo", "w")])
    with pytest.raises(
        ArgumentError, match="vocab_size must be a whole number of at least 256, got 255"
    ):
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
    if vocab_size > 256:
        assert theirs.encode(f"a{EOT}") == tokenizer.encode(f"a{EOT}", special="token")


def test_hugging_faces_trainer_learns_the_same_merges(corpus):
    tokenizers = pytest.importorskip("tokenizers")
    for text, vocab_size in [
        (corpus[:200_000], 5_000),
        (EOT.join(random_texts(2_000, seed=3)), 3_000),
    ]:
        theirs, trainer = byte_level_bpe(tokenizers, vocab_size, min_frequency=2)
        theirs.train_from_iterator(text.split(EOT), trainer)
        assert theirs.get_vocab() == spelled_ids(learn_merges(text, vocab_size - 256), first_id=0)
