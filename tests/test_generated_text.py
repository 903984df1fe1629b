"""Generated tokens as text: what is shown while it grows, stop strings, and how samples end."""

from dataclasses import dataclass, replace

import pytest
from support.generation import sampled_rows
from support.models import SMALL, random_model

from tiedgpt import Tokenizer
from tiedgpt.inference.generation import random_streams, sample_steps
from tiedgpt.inference.sampling import Sampling
from tiedgpt.inference.text import TextSample, push_steps

TOKENIZER = Tokenizer([])  # ids are bytes in the order of the alphabet
EOT = TOKENIZER.eot_id
encode = TOKENIZER.encode

# The tokens, the stop strings, and what is shown after each token, and once more at the end
GROWING = [
    pytest.param(encode("to be"), [], ["t", "o", " ", "b", "e", ""], id="no-stop"),
    pytest.param(
        encode("to be not"),
        ["not to"],
        ["t", "o", " ", "b", "e", " ", "", "", "", "not"],
        id="begin-of-a-stop-at-the-end",
    ),
    pytest.param(encode("é!"), [], ["", "é", "!", ""], id="character-of-two-tokens"),
    pytest.param(encode("é")[:1], [], ["", "\ufffd"], id="half-a-character-at-the-end"),
    # A padded vocabulary has rows without a text; a random model may choose them.
    pytest.param([*encode("a"), EOT + 1, *encode("b")], [], ["a", "\ufffd", "b", ""], id="padding"),
]
# The same, where the last token completes a stop string
STOPPED = [
    pytest.param(
        encode("to be or not"), ["or"], ["t", "", "o ", "b", "e", " ", "", ""], id="stop-in-a-text"
    ),
    pytest.param(
        encode("a nit not"),
        ["not"],
        ["a", " ", "", "ni", "t", " ", "", "", ""],
        id="begin-of-a-stop-in-a-text",
    ),
    pytest.param(encode("aaab"), ["aab"], ["", "", "a", ""], id="begin-of-a-stop-before-it"),
    pytest.param(
        encode("abababac"),
        ["ababac"],
        ["", "", "", "", "", "ab", "", ""],
        id="stop-that-repeats-its-begin",
    ),
    pytest.param(
        encode("one\n\ntwo"), ["\n\n", "two"], ["o", "n", "e", "", ""], id="first-of-two-stops"
    ),
    pytest.param(
        encode("one two"), ["two", "e t"], ["o", "n", "", "", ""], id="stop-that-begins-another"
    ),
    pytest.param(encode("stop"), ["stop"], ["", "", "", ""], id="stop-alone"),
    pytest.param(
        encode("naïve 😀!"),
        ["😀"],
        ["n", "a", "", "ï", "v", "e", " ", "", "", "", ""],
        id="stop-of-four-tokens",
    ),
]


def show_token_by_token(tokens, stop):
    """A sample of these tokens, and what was shown after each of them, and at the end."""
    sample = TextSample(TOKENIZER, stop, (EOT,))
    steps = [[[token]] for token in tokens]  # a step has a list of new tokens for each sample
    shown = [text for _, text in push_steps(iter(steps), [sample])]
    assert sample.text == "".join(shown)
    return sample, shown


@pytest.mark.parametrize(("tokens", "stop", "pieces"), GROWING)
def test_text_is_shown_as_soon_as_it_is_certain(tokens, stop, pieces):
    sample, shown = show_token_by_token(tokens, stop)
    assert shown == pieces
    assert sample.finish_reason == "length"
    assert sample.ids == tokens


@pytest.mark.parametrize(("tokens", "stop", "pieces"), STOPPED)
def test_text_is_shown_up_to_a_stop_string(tokens, stop, pieces):
    """The tokens after it are dropped. There is a piece for each token up to it."""
    sample, shown = show_token_by_token(tokens, stop)
    assert shown == pieces
    assert sample.finish_reason == "stop"
    assert sample.ids == tokens[: len(pieces)]


def test_the_end_of_text_token_shows_what_was_held_back():
    """The letters "no" are held back, because they may be the beginning of "not"."""
    tokens = encode("a no")
    sample, shown = show_token_by_token([*tokens, EOT], ["not"])
    assert shown == ["a", " ", "", "", "no"]
    assert sample.finish_reason == "eos"
    assert sample.ids == tokens


MAX_NEW_TOKENS = 30  # of a sample


@dataclass
class Batch:
    """Samples of one prompt."""

    samples: list[TextSample]
    pieces: list[str]  # what was shown of each
    rows: list[list[int]]  # the tokens of each if nothing ends it


@pytest.fixture(scope="module")
def batch() -> Batch:
    """Forty samples, of which each stops at one of the letters e, t and a."""
    model = random_model(replace(SMALL, vocab_size=257, n_ctx=64, eos_token_id=EOT))
    samples = [TextSample(TOKENIZER, ["e", "t", "a"], (EOT,)) for _ in range(40)]
    prompts = [[5, 6]] * 40
    sampling = Sampling(temperature=3.0)  # so high that some samples end early, and some do not
    steps = sample_steps(
        model,
        prompts,
        max_new_tokens=MAX_NEW_TOKENS,
        sampling=sampling,
        streams=random_streams(seed=0, n=40),
    )
    pieces = [""] * 40
    for number, text in push_steps(steps, samples):
        pieces[number] += text

    # The same random numbers give the same tokens, which no stop string ends here.
    streams = random_streams(seed=0, n=40)
    rows = sampled_rows(model, prompts, sampling, tokens=MAX_NEW_TOKENS, streams=streams)
    return Batch(samples, pieces, rows)


def test_the_pieces_of_each_sample_of_a_batch_are_its_text(batch):
    assert batch.pieces == [sample.text for sample in batch.samples]


def test_each_sample_of_a_batch_ends_by_itself(batch):
    assert {sample.finish_reason for sample in batch.samples} == {"length", "stop", "eos"}
    for sample, row in zip(batch.samples, batch.rows, strict=True):
        assert sample.ids == row[: len(sample.ids)]
        if sample.finish_reason == "length":
            assert len(sample.ids) == MAX_NEW_TOKENS


def test_no_sample_of_a_batch_has_a_stop(batch):
    for sample in batch.samples:
        for stop in ("e", "t", "a"):
            assert stop not in sample.text
