"""Guessed tokens: whatever is guessed, the text is that of the model without guesses.

A draft makes a guesser for each text. The guesser guesses the next tokens, and the model checks all
guesses in one step, a forward pass. A lookup guesser searches the text for its last tokens: these
are the match, and the guesses are the tokens that followed the match earlier. A guesser learns its
hit rates: how often guesses of each kind are right. It makes only guesses that save time.
"""

from dataclasses import replace

import numpy as np
import pytest
from support.generation import PROMPT, sampled_rows
from support.models import SMALL, random_model

from tiedgpt import GPT2, Tokenizer, generate
from tiedgpt.errors import ArgumentError, TiedGPTError
from tiedgpt.generation import random_streams, sample_steps
from tiedgpt.inference.drafts import HIT_RATES, MOST_GUESSES, Draft, LookupGuesser, guess_count
from tiedgpt.inference.text import TextSample, push_steps
from tiedgpt.sampling import Sampling

# The lengths differ, from one token to three less than the context.
UNEQUAL_PROMPTS = [PROMPT, PROMPT[:1], [9, 8, 7] * 18, list(range(61))]


@pytest.fixture(scope="module")
def model() -> GPT2:
    """A model that repeats itself when greedy, with a context of 64 tokens.

    It is in float64, so that the number of rows in a product changes no token.
    """
    return random_model(replace(SMALL, n_ctx=64, eos_token_id=None)).astype(np.float64)


@pytest.fixture(scope="module")
def similar_model(model) -> GPT2:
    """A model that predicts nearly the same as `model`: its parameters with some noise."""
    rng = np.random.default_rng(1)
    noisy = {}
    for name, array in model.parameters.items():
        noisy[name] = array + 0.01 * rng.standard_normal(array.shape)
    return GPT2(model.config, noisy)


# The text is the same

SAMPLINGS = [
    pytest.param(Sampling(greedy=True), id="greedy"),
    pytest.param(Sampling(0.7, top_k=20, top_p=0.9), id="top-k-and-top-p"),
    pytest.param(Sampling(), id="all-tokens"),
]
PROMPTS = [
    pytest.param([PROMPT], id="one-prompt"),
    pytest.param(UNEQUAL_PROMPTS, id="unequal-prompts"),
]


def assert_same_tokens(model, draft, prompts, sampling):
    """Each prompt gets the same 90 tokens with the draft and without. The context is 64 tokens."""
    n = len(prompts)
    plain = sampled_rows(model, prompts, sampling, tokens=90, streams=random_streams(7, n))
    drafted = sampled_rows(
        model, prompts, sampling, tokens=90, streams=random_streams(7, n), draft=draft
    )
    assert [len(row) for row in plain] == [90] * n
    assert drafted == plain


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("prompts", PROMPTS)
def test_lookup_changes_no_token(model, prompts, sampling):
    draft = Draft("lookup", model)
    assert_same_tokens(model, draft, prompts, sampling)
    if sampling.greedy:
        # The text repeats itself. So some guesses were right and some wrong, and both were tested.
        assert draft.accepted > 0
        assert draft.drafted > draft.accepted


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("prompts", PROMPTS)
def test_a_draft_model_changes_no_token(model, similar_model, prompts, sampling):
    draft = Draft(similar_model, model)
    draft.guess_cost = 0.1  # as if a guess took a tenth of the time that a step of `model` takes
    assert_same_tokens(model, draft, prompts, sampling)
    # Some guesses were right and some wrong, so both were tested.
    assert draft.accepted > 0
    assert draft.drafted > draft.accepted


class RandomGuesser:
    """Guesses 0 to `most` tokens: up to nine right ones, and then up to four random ones."""

    def __init__(self, answer: list[int], seed: list[int]) -> None:
        self.answer = answer  # the prompt and what the model writes
        self.rng = np.random.default_rng(seed)

    def guess(self, text: list[int], most: int) -> list[int]:
        assert 0 <= most <= MOST_GUESSES
        right_count = self.rng.integers(0, 10)
        right = self.answer[len(text) : len(text) + right_count]
        any_count = self.rng.integers(0, 5)
        any_tokens = self.rng.integers(0, SMALL.vocab_size, any_count).tolist()
        return [*right, *any_tokens][:most]

    def learn(self, tokens: list[int]) -> None:
        assert tokens, "each step gives at least one token"


@pytest.mark.parametrize("seed", range(3))
def test_any_guesses_change_no_token(model, seed):
    sampling = Sampling(temperature=2.0)
    n = len(UNEQUAL_PROMPTS)
    plain = sampled_rows(
        model, UNEQUAL_PROMPTS, sampling, tokens=150, streams=random_streams(seed, n)
    )
    guessers = []
    for number, (prompt, row) in enumerate(zip(UNEQUAL_PROMPTS, plain, strict=True)):
        guessers.append(RandomGuesser(prompt + row, [seed, number]))

    draft = Draft("lookup", model)
    unused_guessers = iter(guessers)
    # The draft asks for a guesser for each row of the batch, and gets the next one.
    draft.guesser = lambda *_: next(unused_guessers)
    drafted = sampled_rows(
        model, UNEQUAL_PROMPTS, sampling, tokens=150, streams=random_streams(seed, n), draft=draft
    )
    assert drafted == plain
    # Many guesses were right, and some were wrong.
    assert draft.accepted > 100
    assert draft.drafted > draft.accepted


def test_a_draft_saves_steps(model, shapes_read):
    """shapes_read has an entry for each forward pass. The default draft is by lookup."""
    plain = list(generate(model, PROMPT, 300, greedy=True, draft=None))
    steps_without = len(shapes_read)
    shapes_read.clear()
    assert list(generate(model, PROMPT, 300, greedy=True)) == plain
    assert len(shapes_read) < 0.6 * steps_without


def last_new_token(model):
    """Of the tokens in a greedy text, the one whose first occurrence is the latest."""
    tokens = list(generate(model, PROMPT, 60, greedy=True, draft=None))
    return max(tokens, key=tokens.index)  # tokens.index gives the first occurrence


def sampled_texts(model, stops, draft):
    """Four samples, each with its ids, its text and why it ended."""
    n = 4
    tokenizer = Tokenizer([])
    samples = [TextSample(tokenizer, stops, model.config.eos_token_ids) for _ in range(n)]
    steps = sample_steps(
        model,
        [PROMPT] * n,
        max_new_tokens=90,
        sampling=Sampling(temperature=0.2),
        streams=random_streams(3, n),
        draft=draft,
    )
    texts = [""] * n
    for number, piece in push_steps(steps, samples):
        texts[number] += piece
    assert texts == [sample.text for sample in samples]
    return [(sample.ids, sample.text, sample.finish_reason) for sample in samples]


@pytest.mark.parametrize(
    "stops",
    [
        pytest.param([], id="no-stop"),
        pytest.param(["e"], id="one-letter"),
        pytest.param(["lo"], id="two-letters"),
    ],
)
def test_a_stop_text_among_right_guesses_ends_a_sample(model, stops):
    plain = sampled_texts(model, stops, draft=None)
    assert sampled_texts(model, stops, Draft("lookup", model)) == plain


def test_the_end_of_text_among_right_guesses_ends_a_sample(model):
    config = replace(model.config, eos_token_id=last_new_token(model))
    ended = GPT2(config, model.parameters)
    plain = sampled_texts(ended, [], draft=None)
    assert sampled_texts(ended, [], Draft("lookup", ended)) == plain


# What lookup guesses


def sure_guesser():
    """A LookupGuesser whose hit rates are all 1, so that it makes as many guesses as it may."""
    guesser = LookupGuesser(batch=1)
    guesser.hit_rates = [1.0] * len(HIT_RATES)
    return guesser


def test_the_lookup_guesses_what_followed_the_longest_equal_run():
    guesser = sure_guesser()
    assert guesser.guess([1, 2, 3], most=5) == [], "no token occurred before"

    # The last four tokens, 1 to 4, occurred before 9, 3, 4. The last two, 3 and 4, occurred again
    # later, before 8, but a longer match is better.
    text = [1, 2, 3, 4, 9, 3, 4, 8, 7, 1, 2, 3, 4]
    assert guesser.guess(text, most=3) == [9, 3, 4]

    # Now only the last two tokens, 3 and 4, occurred before, three times. 5, 3 followed the latest.
    assert guesser.guess([*text, 5, 3, 4], most=2) == [5, 3]


def test_the_lookup_guesses_that_a_loop_goes_on():
    guesses = LookupGuesser(batch=1).guess([5] * 9, most=15)
    assert guesses[:2] == [5, 5]


def right_guesses(guesses: list[int], tokens: list[int]) -> int:
    """How many guesses are right before the first wrong one."""
    for count, (guess, token) in enumerate(zip(guesses, tokens, strict=False)):
        if guess != token:
            return count
    return len(guesses)


def lookup_steps(prompt: list[int], answer: list[int]) -> tuple[int, int]:
    """Simulate a model that writes `answer`: the number of its steps, and of all guesses."""
    guesser = LookupGuesser(batch=1)
    text = list(prompt)
    step_count = 0
    guess_total = 0
    while len(text) < len(prompt) + len(answer):
        unwritten = answer[len(text) - len(prompt) :]
        # A step writes its right guesses and one token more, so the last token is not guessed.
        guesses = guesser.guess(text, min(MOST_GUESSES, len(unwritten) - 1))
        tokens = unwritten[: right_guesses(guesses, unwritten) + 1]
        guesser.learn(tokens)
        text += tokens
        step_count += 1
        guess_total += len(guesses)
    return step_count, guess_total


PHRASE = [20, 21, 22, 23, 24, 25, 26]
SENTENCE = list(range(20, 50))
RUNS_OF_TOKENS = np.repeat(range(20, 28), 16).tolist()


@pytest.mark.parametrize(
    ("answer", "most_steps"),
    [
        pytest.param([7] * 64, 7, id="token"),
        pytest.param(PHRASE * 10, 16, id="phrase"),
        pytest.param(SENTENCE * 8, 49, id="sentence"),
        pytest.param(RUNS_OF_TOKENS, 25, id="runs-of-16-equal-tokens"),
    ],
)
def test_a_text_that_repeats_takes_few_steps(answer, most_steps):
    """Without guesses, each token of the answer takes a step."""
    step_count, guess_total = lookup_steps(list(range(10)), answer)
    assert step_count <= most_steps
    assert guess_total <= 1.5 * len(answer), "few guesses are wrong"


@pytest.mark.parametrize("vocab_size", [50, 300, 50_000])
def test_little_is_guessed_in_a_random_text(vocab_size):
    text = np.random.default_rng(0).integers(0, vocab_size, 2000).tolist()
    step_count, guess_total = lookup_steps(text[:10], text[10:])
    # Without guesses, the 1990 tokens after the prompt take as many steps.
    assert step_count > 1970
    assert guess_total < 60


# What guessers learn

LOOP = [1, 2] * 20  # the next token is 1
# An index in a guesser's hit_rates, which are for matches of 1, 2 or 3, 4 to 7, and 8 or more
# tokens, and for loops.
AFTER_4_TO_7_EQUAL_TOKENS = 2


def learn_100_times(guesser, text, token):
    """Let a guesser learn 100 times that this token comes after the text."""
    for _ in range(100):
        guesser.guess(text, most=15)
        guesser.learn([token])


def test_a_guesser_that_was_wrong_makes_no_guesses():
    guesser = LookupGuesser(batch=1)
    assert guesser.guess(LOOP, most=15) != []
    learn_100_times(guesser, LOOP, token=50)  # the guess was 1
    assert guesser.guess(LOOP, most=15) == []


def test_a_guesser_guesses_again_when_its_guesses_would_have_been_right():
    """While it makes no guesses, it still compares what it would have guessed with the text."""
    guesser = LookupGuesser(batch=1)
    learn_100_times(guesser, LOOP, token=50)  # the guess was 1
    learn_100_times(guesser, LOOP, token=1)
    assert len(guesser.guess(LOOP, most=15)) == 15


def test_a_draft_model_that_was_wrong_is_tried_again_later(model, similar_model):
    stream = random_streams(7, 1)[0]
    guesser = Draft(similar_model, model).guesser(Sampling(greedy=True), stream, batch=1)
    # Guesses cost nothing, and all were right until now. So at first it guesses as many as it may.
    guesser.guess_cost = 0.0
    guesser.hit_rates = [1.0]
    guess_counts = []
    for _ in range(200):
        guesses = guesser.guess(PROMPT, most=15)
        guess_counts.append(len(guesses))
        guesser.learn([SMALL.vocab_size])  # no token has this id, so each guess is wrong
    first_without_guesses = guess_counts.index(0)
    assert 0 < first_without_guesses < 100
    # Within the next 100 tokens it guesses again.
    next_100_counts = guess_counts[first_without_guesses : first_without_guesses + 100]
    assert any(next_100_counts)


def test_the_hit_rate_of_a_guess_is_that_for_the_length_of_its_match():
    """A guess that follows right guesses has a longer match: they are equal tokens, too."""
    guesser = sure_guesser()
    text = [*range(30), 99, 3, 4]
    assert guesser.guess(text, most=9) == [5, 6, 7, 8, 9, 10, 11, 12, 13]
    # The guesses 5, 6 and 7 are right, after matches of 2, 3 and 4 tokens. The guess 8, after the
    # match of the 5 tokens 3 to 7, is wrong, because 50 comes. So only its hit rate falls.
    guesser.learn([5, 6, 7, 50])
    for index, rate in enumerate(guesser.hit_rates):
        if index == AFTER_4_TO_7_EQUAL_TOKENS:
            assert rate < 1
        else:
            assert rate == 1


def test_a_guesser_learns_from_the_next_guess_that_it_would_have_made():
    guesser = sure_guesser()
    text = [*range(30), 99, 3, 4]
    assert guesser.guess(text, most=2) == [5, 6]
    # The next guess would have been 7, after the match of the 4 tokens 3 to 6. But 50 comes.
    guesser.learn([5, 6, 50])
    assert guesser.hit_rates[AFTER_4_TO_7_EQUAL_TOKENS] < 1


# How many tokens are guessed


@pytest.mark.parametrize(
    ("rates", "guess_cost", "batch", "count"),
    [
        pytest.param([], 0, 1, 0, id="no-guesses"),
        pytest.param([0.0] * MOST_GUESSES, 0, 1, 0, id="all-wrong"),
        pytest.param([1.0] * MOST_GUESSES, 0, 1, MOST_GUESSES, id="all-right"),
        pytest.param([1.0] * 3, 0, 1, 3, id="three-guesses"),
        pytest.param([1.0], 0, 8, 1, id="one-for-each-of-8-samples"),
        pytest.param([1.0] * MOST_GUESSES, 1.0, 1, 0, id="draft-model-as-slow-as-the-model"),
        pytest.param(
            [0.5] + [1.0] * 14, 0, 1, MOST_GUESSES, id="first-one-pays-with-those-after-it"
        ),
        pytest.param([1.0, 1.0, 1.0, 0.0, 1.0, 1.0], 0, 1, 3, id="fourth-one-wrong"),
        pytest.param([0.1], 0, 8, 0, id="each-of-8-samples-reads-its-own-guess"),
    ],
)
def test_guess_count(rates, guess_cost, batch, count):
    """`rates` are the hit rates of the first guess, the second, and so on.

    guess_cost is the time of making a guess; a step of the model takes 1. `batch` is the number of
    samples that are read together.
    """
    assert guess_count(rates, guess_cost, batch) == count


def test_more_is_guessed_where_guesses_are_more_often_right():
    counts = []
    for rate in np.linspace(0, 1, 50):
        counts.append(guess_count([rate] * MOST_GUESSES, guess_cost=0, batch=1))
    assert counts == sorted(counts)


# Drafts that cannot guess


@pytest.mark.parametrize(
    ("draft", "message"),
    [
        pytest.param(
            "look", "draft must be \"lookup\", a model or None, got 'look'", id="another-word"
        ),
        pytest.param(3, "got 3", id="number"),
    ],
)
def test_a_draft_of_another_kind(model, draft, message):
    with pytest.raises(ArgumentError, match=message):
        generate(model, PROMPT, draft=draft)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            {"vocab_size": 102},
            "another vocabulary: 102 tokens, the model 101",
            id="larger-vocabulary",
        ),
        pytest.param(
            {"n_ctx": 63}, "a shorter context: 63 tokens, the model 64", id="shorter-context"
        ),
    ],
)
def test_a_draft_model_that_does_not_fit(model, change, message):
    draft = GPT2.random(replace(model.config, **change))
    with pytest.raises(ArgumentError, match=message):
        generate(model, PROMPT, draft=draft)


def test_a_draft_that_is_the_model(model):
    with pytest.raises(ArgumentError, match="the draft model is the model itself"):
        generate(model, PROMPT, draft=model)


def test_a_damaged_draft_model_is_named(model, similar_model):
    damaged = {**similar_model.parameters, "ln_f.bias": np.full(SMALL.n_embd, np.nan)}
    draft = Draft(GPT2(model.config, damaged), model)
    draft.guess_cost = 0.0  # so that it makes guesses, although it is as large as the model
    with (
        np.errstate(invalid="ignore"),  # NumPy's own warnings about nan would be errors
        pytest.raises(TiedGPTError, match=r"^the draft model: .* not finite"),
    ):
        sampled_rows(
            model,
            [PROMPT],
            Sampling(greedy=True),
            tokens=9,
            streams=random_streams(7, 1),
            draft=draft,
        )
