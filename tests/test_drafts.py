"""Guessed tokens: whatever is guessed, the text is the one that the model writes without
guesses."""

from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from support.generation import PROMPT, steps
from support.models import SMALL, random_model

from tiedgpt import GPT2, Tokenizer, generate
from tiedgpt.errors import ArgumentError, TiedGPTError
from tiedgpt.inference import drafts
from tiedgpt.inference.drafts import MOST_GUESSES, RATES, Draft, LookupGuesser, guess_count
from tiedgpt.inference.generation import random_streams, sample_steps
from tiedgpt.inference.sampling import Sampling
from tiedgpt.inference.text import TextSample, push_steps

PROMPTS = [PROMPT, PROMPT[:1], [9, 8, 7] * 18, list(range(61))]


@pytest.fixture(scope="module")
def model() -> GPT2:
    """In float64, so that the number of rows in a product changes no token. It repeats itself when
    greedy."""
    return random_model(replace(SMALL, n_ctx=64, eos_token_id=None)).astype(np.float64)


def nearly(model: GPT2, seed: int) -> GPT2:
    """A model that predicts nearly the same."""
    rng = np.random.default_rng(seed)
    noisy = {name: a + 0.01 * rng.standard_normal(a.shape) for name, a in model.parameters.items()}
    return GPT2(model.config, noisy)


@pytest.mark.parametrize(
    "sampling", [Sampling(greedy=True), Sampling(0.7, top_k=20, top_p=0.9), Sampling()]
)
@pytest.mark.parametrize("prompts", [[PROMPT], PROMPTS], ids=["one", "unequal"])
@pytest.mark.parametrize("source", ["lookup", "model"])
def test_a_draft_changes_no_token(model, sampling, prompts, source):
    """Past the context too."""
    draft = Draft(nearly(model, 1) if source == "model" else source, model)
    draft.guess_cost = 0.1  # as if the draft model were a tenth of the model's size
    plain = steps(model, prompts, 90, sampling, random_streams(7, len(prompts)))
    assert steps(model, prompts, 90, sampling, random_streams(7, len(prompts)), draft) == plain
    assert [len(row) for row in plain] == [90] * len(prompts)
    if source == "model" or sampling.greedy:
        assert draft.drafted > draft.accepted > 0, (
            "a draft that is always right or always wrong shows little"
        )


class RandomGuesses:
    """Guesses 0 to `most` tokens: the right ones up to a random place, then any."""

    def __init__(self, answer: list[int], seed: list[int]) -> None:
        self.answer, self.rng = answer, np.random.default_rng(seed)

    def guess(self, text: list[int], most: int) -> list[int]:
        assert 0 <= most <= MOST_GUESSES
        right = self.answer[len(text) :][: self.rng.integers(0, 10)]
        return [*right, *self.rng.integers(0, SMALL.vocab_size, self.rng.integers(0, 5)).tolist()][
            :most
        ]

    def learn(self, tokens: list[int]) -> None:
        assert tokens


@pytest.mark.parametrize("seed", range(3))
def test_any_guesses_change_no_token(model, seed):
    sampling = Sampling(2.0)
    plain = steps(model, PROMPTS, 150, sampling, random_streams(seed, 4))
    draft = Draft("lookup", model)
    answers = [prompt + row for prompt, row in zip(PROMPTS, plain, strict=True)]
    guessers = iter([RandomGuesses(answer, [seed, n]) for n, answer in enumerate(answers)])
    draft.guesser = lambda *_: next(guessers)
    assert steps(model, PROMPTS, 150, sampling, random_streams(seed, 4), draft) == plain
    assert draft.drafted > draft.accepted > 100


def test_a_draft_saves_steps(model):
    with mock.patch.object(GPT2, "final", autospec=True, side_effect=GPT2.final) as final:
        plain = list(generate(model, PROMPT, 300, greedy=True, draft=None))
        without = final.call_count
        assert list(generate(model, PROMPT, 300, greedy=True)) == plain
    assert final.call_count < 1.6 * without


def test_stops_and_the_end_of_text_end_a_sample_inside_checked_tokens(model):
    tokens = list(generate(model, PROMPT, 60, greedy=True, draft=None))
    last_new = max(set(tokens), key=tokens.index)
    ended = GPT2(replace(model.config, eos_token_id=last_new), model.parameters)
    tokenizer = Tokenizer([])
    for model_, stops in ((ended, []), (model, []), (model, ["e"]), (model, ["lo"])):
        results = []
        for draft in (None, Draft("lookup", model_)):
            samples = [TextSample(tokenizer, stops, model_.config.eos_token_ids) for _ in range(4)]
            pieces = [""] * 4
            steps_ = sample_steps(
                model_, [PROMPT] * 4, 90, Sampling(0.2), random_streams(3, 4), draft
            )
            for i, text in push_steps(steps_, samples):
                pieces[i] += text
            assert pieces == [sample.text for sample in samples]
            results.append([(sample.ids, sample.text, sample.finish_reason) for sample in samples])
        assert results[0] == results[1]


def test_the_lookup_guesses_what_followed_the_longest_equal_run():
    guesser = LookupGuesser(batch=1)
    guesser.rates = [1.0] * len(RATES)
    assert guesser.guess([1, 2, 3], 5) == []
    text = [1, 2, 3, 4, 9, 3, 4, 8, 7, 1, 2, 3, 4]
    assert guesser.guess(text, 3) == [9, 3, 4]  # 3, 4 alone was followed by 8
    assert guesser.guess([*text, 5, 3, 4], 2) == [5, 3]
    assert LookupGuesser(1).guess([5] * 9, 15)[:2] == [5, 5]  # a loop goes on


def lookup_steps(prompt: list[int], answer: list[int]) -> tuple[int, int]:
    """Steps of a model that writes `answer`, and guesses."""
    guesser, text, steps, guesses = LookupGuesser(batch=1), list(prompt), 0, 0
    while left := answer[len(text) - len(prompt) :]:
        guess = guesser.guess(text, min(MOST_GUESSES, len(left) - 1))
        right = next(
            (i for i, (a, b) in enumerate(zip(guess, left, strict=False)) if a != b), len(guess)
        )
        guesser.learn(left[: right + 1])
        text += left[: right + 1]
        steps, guesses = steps + 1, guesses + len(guess)
    return steps, guesses


@pytest.fixture(params=[True, False], ids=["AVX-512", "other"])
def kernels(request, monkeypatch):
    """The time of a step as on this kind of machine."""
    monkeypatch.setattr(drafts, "most_rows", lambda: 120)
    monkeypatch.setattr(drafts, "has_small_kernels", lambda: request.param)


DISTINCT = list(range(1000))


def test_steps_of_a_text_that_repeats(kernels):
    for answer, most in (
        ([7] * 64, 7),  # a token
        (DISTINCT[20:27] * 10, 16),  # a phrase
        (DISTINCT[20:50] * 8, 49),  # a sentence
        (
            [token for token in DISTINCT[20:28] for _ in range(16)],
            25,
        ),  # a token 16 times, then another
    ):
        steps, guesses = lookup_steps(DISTINCT[:10], answer)
        assert steps <= most
        assert guesses <= 1.5 * len(answer)


@pytest.mark.parametrize("size", [50, 300, 50_000])
def test_little_is_guessed_in_a_random_text(kernels, size):
    text = np.random.default_rng(0).integers(0, size, 2000).tolist()
    steps, guesses = lookup_steps(text[:10], text[10:])
    assert steps > 1970
    assert guesses < 60


def test_what_has_not_paid_is_not_guessed():
    text = [1, 2] * 20
    guesser = LookupGuesser(batch=1)
    assert guesser.guess(text, 15)
    for token, guessed in ((1, True), (50, False), (1, True)):
        for _ in range(100):  # compared though not checked, so that it comes back
            guesser.guess(text, 15)
            guesser.learn([token])
        assert bool(guesser.guess(text, 15)) == guessed
    assert len(guesser.guess(text, 15)) == 15


def test_a_draft_model_that_was_wrong_is_tried_again_later(model):
    guesser = Draft(nearly(model, 1), model).guesser(
        Sampling(greedy=True), random_streams(7, 1)[0], 1
    )
    guesser.guess_cost = 0.0
    guesser.rates = [1.0]
    for expected in (False, True):
        for _ in range(100):
            guesser.guess(PROMPT, 15)
            guesser.learn([SMALL.vocab_size])  # no guess is that
            if bool(guesser.guessed) == expected:
                break
        assert bool(guesser.guessed) == expected


def test_each_guess_is_learned_for_the_match_that_it_follows():
    guesser = LookupGuesser(batch=1)
    guesser.rates = [1.0] * len(RATES)
    text = [*range(30), 99, 3, 4]
    assert guesser.guess(text, 9) == list(range(5, 14))  # after 2 to 10 equal tokens
    guesser.learn([5, 6, 7, 50])  # after 2, 3 and 4, then a wrong one after 5
    assert [rate < 1 for rate in guesser.rates] == [False, False, True, False, False]
    before = guesser.rates[2]
    assert guesser.guess(text, 2) == [5, 6]
    guesser.learn([5, 6, 50])  # 7 would have been the next guess
    assert guesser.rates[2] < before


def test_guess_count():
    most = MOST_GUESSES
    assert guess_count([0.0] * most, 0, 1) == guess_count([], 0, 1) == 0
    assert guess_count([1.0] * most, 0, 1) == most
    assert guess_count([1.0] * 3, 0, 1) == 3
    assert guess_count([1.0], 0, 8) == 1  # for each of 8 samples
    assert guess_count([1.0] * most, 1.0, 1) == 0  # a draft model as slow as the model
    assert (
        guess_count([0.5, *[1.0] * 14], 0, 1) == most
    )  # the first guess pays with those after it only
    assert guess_count([*[1.0] * 4, 0.0, 1.0], 0, 1) == 4
    counts = [guess_count([p] * most, 0, 1) for p in np.linspace(0, 1, 50)]
    assert counts == sorted(counts)


def test_a_draft_that_cannot_guess(model):
    for source, message in (
        ("look", "draft must be \"lookup\", a model or None, got 'look'"),
        (3, "got 3"),
        ("itself", "the draft model is the model itself"),
        ({"vocab_size": 102}, "another vocabulary: 102 tokens, the model 101"),
        ({"n_ctx": 63}, "a shorter context: 63 tokens, the model 64"),
    ):
        draft = GPT2.random(replace(model.config, **source)) if isinstance(source, dict) else source
        with pytest.raises(ArgumentError, match=message):
            generate(model, PROMPT, draft=model if source == "itself" else draft)


def test_a_damaged_draft_model_is_named(model):
    damaged = nearly(model, 1)
    damaged.parameters["ln_f.bias"][:] = np.nan
    draft = Draft(damaged, model)
    draft.guess_cost = 0.0
    with (
        np.errstate(invalid="ignore"),
        pytest.raises(TiedGPTError, match=r"^the draft model: .* not finite"),
    ):
        steps(model, [PROMPT], 9, Sampling(greedy=True), random_streams(7, 1), draft)
