"""Generated tokens as text: what is shown while it grows, stop strings, and how samples end.

A piece is the text that is shown after a new token. It is empty while the text is uncertain: a
character may lack a byte, or the text may be the beginning of a stop string.
"""

from dataclasses import dataclass, replace

import pytest
from support.generation import sampled_rows
from support.models import SMALL, random_model

from tiedgpt import Tokenizer
from tiedgpt.generation import random_streams, sample_steps
from tiedgpt.inference.text import TextSample, push_steps
from tiedgpt.sampling import Sampling

TOKENIZER = Tokenizer([])  # each token is a byte
EOT = TOKENIZER.eot_id
encode = TOKENIZER.encode

# The tokens, the stop strings, and the pieces: one after each token, and one at the end
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
    # EOT + 1 is an id without a text. A padded vocabulary has such ids.
    pytest.param([*encode("a"), EOT + 1, *encode("b")], [], ["a", "\ufffd", "b", ""], id="padding"),
]
# The tokens, the stop strings, and the pieces: one after each token up to the end of a stop string
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
    """A sample of these tokens, and the pieces that were shown."""
    sample = TextSample(TOKENIZER, stop, (EOT,))
    steps = [[[token]] for token in tokens]  # a step has a list of new tokens for each sample
    shown = [text for _sample_number, text in push_steps(iter(steps), [sample])]
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
    """The tokens after the stop string are dropped."""
    sample, shown = show_token_by_token(tokens, stop)
    assert shown == pieces
    assert sample.finish_reason == "stop"
    tokens_up_to_the_stop = tokens[: len(pieces)]  # each of them has a piece
    assert sample.ids == tokens_up_to_the_stop


def test_at_the_end_of_text_token_the_rest_is_shown():
    """The letters "no" are not shown before, because they may be the beginning of "not"."""
    tokens = encode("a no")
    sample, shown = show_token_by_token([*tokens, EOT], ["not"])
    assert shown == ["a", " ", "", "", "no"]
    assert sample.finish_reason == "eos"
    assert sample.ids == tokens


N_SAMPLES = 40
STOPS = ["e", "t", "a"]
MAX_NEW_TOKENS = 30  # of a sample


@dataclass
class Batch:
    """Samples of one prompt."""

    samples: list[TextSample]
    shown: list[str]  # the pieces of each, joined
    rows: list[list[int]]  # MAX_NEW_TOKENS tokens of each, which nothing has ended


@pytest.fixture(scope="module")
def batch() -> Batch:
    """Samples that end at one of the letters STOPS, at EOT, or after MAX_NEW_TOKENS."""
    model = random_model(replace(SMALL, vocab_size=257, n_ctx=64, eos_token_id=EOT))
    samples = [TextSample(TOKENIZER, STOPS, (EOT,)) for _ in range(N_SAMPLES)]
    prompts = [[5, 6]] * N_SAMPLES
    sampling = Sampling(temperature=3.0)  # so high that some samples end early, and some do not
    steps = sample_steps(
        model,
        prompts,
        max_new_tokens=MAX_NEW_TOKENS,
        sampling=sampling,
        streams=random_streams(seed=0, n=N_SAMPLES),
    )
    shown = [""] * N_SAMPLES
    for number, piece in push_steps(steps, samples):
        shown[number] += piece

    # The same random numbers give the same tokens, but here nothing ends a sample.
    streams = random_streams(seed=0, n=N_SAMPLES)
    rows = sampled_rows(model, prompts, sampling, tokens=MAX_NEW_TOKENS, streams=streams)
    return Batch(samples, shown, rows)


def test_the_pieces_of_each_sample_of_a_batch_are_its_text(batch):
    assert batch.shown == [sample.text for sample in batch.samples]


def test_each_sample_of_a_batch_ends_by_itself(batch):
    assert {sample.finish_reason for sample in batch.samples} == {"length", "stop", "eos"}
    for sample, row in zip(batch.samples, batch.rows, strict=True):
        assert sample.ids == row[: len(sample.ids)]  # the row goes on after the sample's end
        if sample.finish_reason == "length":
            assert len(sample.ids) == MAX_NEW_TOKENS


def test_no_sample_of_a_batch_has_a_stop(batch):
    for sample in batch.samples:
        for stop in STOPS:
            assert stop not in sample.text
