"""Generation: the sliding window, samples, the end of a text, tokens as text, errors.

The window has the tokens from which the next one is predicted. When it fills the context, which is
31 tokens in the small models, the next token is predicted from its later half, and it grows again.
The fixture shapes_read has the shape [B, T] of the ids of each forward pass. test_sampling.py has
the choice of a token.
"""

from dataclasses import replace

import numpy as np
import pytest
from support.models import SMALL, random_model

from tiedgpt import GPT2, TiedGPTError, Tokenizer, generate
from tiedgpt.errors import ArgumentError
from tiedgpt.generation import (
    Sampling,
    TextSample,
    check_prompt_ids,
    grow,
    overlap,
    penalised,
    sample_tokens,
    seed_or_new,
)

PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture
def endless() -> GPT2:
    """A small model without an end-of-text token, so that a text has the length asked for."""
    return random_model(replace(SMALL, eos_token_id=None))


def samples_of(model, num_samples, tokens=40):
    """The new tokens of each sample of PROMPT. By default they are more than the context."""
    sampling = Sampling(temperature=1.5)
    steps = sample_tokens(model, PROMPT, tokens, sampling, seed=5, num_samples=num_samples)
    return np.transpose(list(steps)).tolist()


# Tokens


@pytest.mark.parametrize(
    ("n_ctx", "prompt_length", "head"),
    [
        (31, 1, "tied"),
        (31, 31, "untied"),
        (1, 1, "tied"),
        (2, 2, "untied"),
        pytest.param(31, 1, "untied", marks=pytest.mark.slow),
        pytest.param(31, 5, "tied", marks=pytest.mark.slow),
        pytest.param(31, 5, "untied", marks=pytest.mark.slow),
        pytest.param(31, 30, "tied", marks=pytest.mark.slow),
        pytest.param(31, 30, "untied", marks=pytest.mark.slow),
        pytest.param(31, 31, "tied", marks=pytest.mark.slow),
        pytest.param(1, 1, "untied", marks=pytest.mark.slow),
        pytest.param(2, 2, "tied", marks=pytest.mark.slow),
    ],
)
def test_greedy_is_the_argmax_of_every_step(head, n_ctx, prompt_length):
    model = random_model(replace(SMALL.with_head(head), n_ctx=n_ctx, eos_token_id=None))
    ids = [(7 * i) % SMALL.vocab_size for i in range(prompt_length)]
    tokens = list(generate(model, ids, max_new_tokens=80, greedy=True))
    assert len(tokens) == 80
    assert len(set(tokens)) > 3 or n_ctx < 3, "a model that repeats one token shows nothing"
    window_start = 0
    for token in tokens:
        if len(ids) - window_start > n_ctx:  # too many; half of them are kept, but at least one
            window_start = len(ids) - max(1, n_ctx // 2)
        assert token == model(ids[window_start:])[-1].argmax()
        ids.append(token)


def test_the_penalty_is_for_tokens_of_the_prompt_and_for_new_ones(endless):
    ids = list(PROMPT)
    for token in generate(endless, PROMPT, 20, greedy=True, repetition_penalty=1.5):
        assert token == penalised(endless(ids)[-1], ids, penalty=1.5).argmax()
        ids.append(token)


def test_the_penalty_is_for_tokens_that_the_context_has_no_more(endless):
    """The text is longer than the context of 31."""
    text = list(PROMPT)

    def record(number, logits, token):
        assert token == penalised(logits, text, penalty=1.5).argmax()
        text.append(token)

    sampling = Sampling(greedy=True, repetition_penalty=1.5)
    list(sample_tokens(endless, PROMPT, 40, sampling, seed=0, record=record))
    assert len(text) == 45


def test_without_a_seed_two_calls_draw_different_tokens(endless):
    first = list(generate(endless, PROMPT, temperature=1.5))
    second = list(generate(endless, PROMPT, temperature=1.5))
    assert first != second
    assert len(first) == len(second) == 40


def test_the_ids_of_a_prompt_are_numbers_of_python():
    """So they can be written as JSON."""
    ids = check_prompt_ids(np.array([3, 0, 100], np.uint16), SMALL)
    assert ids == [3, 0, 100]
    assert [type(token) for token in ids] == [int, int, int]


def test_a_new_seed_is_one_of_billions():
    seeds = {seed_or_new(None) for _ in range(50)}
    assert len(seeds) == 50
    assert max(seeds) > 2**27


def test_0_is_a_seed(endless):
    first = list(generate(endless, PROMPT, 9, temperature=1.5, seed=0))
    assert first == list(generate(endless, PROMPT, 9, temperature=1.5, seed=0))


def test_sample_i_does_not_depend_on_the_number_of_samples(endless):
    many = samples_of(endless, 7)
    assert len({tuple(sample) for sample in many}) == 7, "the samples differ"
    for count in (1, 2, 5):
        assert samples_of(endless, count) == many[:count]
    assert list(generate(endless, PROMPT, 40, temperature=1.5, seed=5)) == many[0]


def test_a_seed_shares_no_sample_with_the_next_seed(endless):
    sampling = Sampling(temperature=1.5)
    first, second = (
        np.transpose(list(sample_tokens(endless, PROMPT, 9, sampling, seed, num_samples=2)))
        for seed in (5, 6)
    )
    assert first[1].tolist() != second[0].tolist()


def test_the_prompt_is_read_once_for_all_samples_and_no_step_is_computed_too_much(
    endless, shapes_read
):
    """The model reads the prompt, of five tokens, and then each new token but the last one."""
    samples_of(endless, 3, tokens=4)
    assert shapes_read == [(1, 5), (3, 1), (3, 1), (3, 1)]


def test_a_generator_computes_no_token_before_it_is_asked_for(endless, shapes_read):
    next(generate(endless, PROMPT, 4, greedy=True))
    assert shapes_read == [(1, 5)]


def test_the_cache_has_room_for_the_context_at_most(endless):
    """A cache of all these tokens would not fit into any memory."""
    tokens = generate(endless, [1, 2], max_new_tokens=10**13, seed=1)
    assert len([next(tokens) for _ in range(2 * endless.config.n_ctx)]) > endless.config.n_ctx


@pytest.mark.parametrize(
    ("tokens", "capacity"), [(4, 9), (26, 31), (27, 31)], ids=["short", "full", "longer"]
)
def test_the_cache_has_room_for_the_text_alone(endless, monkeypatch, tokens, capacity):
    """The prompt has 5 tokens, and the context 31."""
    capacities = []
    new_cache = GPT2.new_cache

    def recorded(model, B, capacity):
        capacities.append(capacity)
        return new_cache(model, B, capacity)

    monkeypatch.setattr(GPT2, "new_cache", recorded)
    assert len(list(generate(endless, PROMPT, tokens, greedy=True))) == tokens
    assert capacities == [capacity]


def test_progress_and_record_are_called_for_the_prompt_and_for_each_token(endless):
    pieces = []
    records = []
    steps = sample_tokens(
        endless,
        PROMPT,
        max_new_tokens=3,
        sampling=Sampling(greedy=True),
        seed=0,
        num_samples=2,
        progress=pieces.append,
        record=lambda number, logits, token: records.append((number, logits.argmax(), token)),
    )
    tokens = list(steps)
    assert pieces == [5]
    assert records == [(number, row[number], row[number]) for row in tokens for number in (0, 1)]


def test_each_sample_is_recorded_with_the_logits_from_which_it_was_drawn(endless):
    texts = [list(PROMPT), list(PROMPT)]

    def record(number, logits, token):
        np.testing.assert_allclose(logits, endless(texts[number])[-1], rtol=0, atol=1e-4)
        texts[number].append(token)

    sampling = Sampling(temperature=1.5)
    list(sample_tokens(endless, PROMPT, 5, sampling, seed=5, num_samples=2, record=record))
    assert texts[0] != texts[1]


def test_end_of_text_ends_generation_and_is_not_yielded(endless):
    """A token that the model writes is made its end-of-text token."""
    tokens = list(generate(endless, PROMPT, 20, greedy=True))
    end = tokens[6]  # any of them
    tokens_before_end = tokens[: tokens.index(end)]  # the token may come up earlier, too
    for eos_token_id in (end, (99, end), (end, 99)):  # a config may name several tokens
        config = replace(endless.config, eos_token_id=eos_token_id)
        model = GPT2(config, endless.parameters)
        assert list(generate(model, PROMPT, 20, greedy=True)) == tokens_before_end


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"temperature": -1}, "^temperature must be a number of at least 0, got -1$"),
        ({"max_new_tokens": 0}, "^max_new_tokens must be a whole number of at least 1, got 0$"),
        ({"seed": -1}, "^seed must be a whole number of at least 0, got -1$"),
        ({"ids": []}, "^the prompt is empty: GPT-2 needs at least one token to continue$"),
        ({"ids": [[]]}, "^the prompt is empty: GPT-2 needs at least one token to continue$"),
        ({"ids": [[1, 2]]}, r"^the prompt must be one sequence of ids \[T\], got shape \(1, 2\)$"),
        ({"ids": [0] * 32}, "the input has 32 tokens, more than the model's context of 31"),
        ({"ids": [SMALL.vocab_size]}, "token id 101 is outside the vocabulary"),
    ],
)
def test_bad_arguments_are_refused_at_once(model, wrong, words):
    """The error does not wait until a token is asked for."""
    arguments = {"ids": PROMPT, **wrong}
    with pytest.raises(ArgumentError, match=words):
        generate(model, **arguments)


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("name", ["ln_f.bias", "wte.weight"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_number_that_is_not_finite_in_a_model_is_an_error(model, greedy, name, bad):
    """The last number of a tensor is replaced by `bad`."""
    damaged = model.parameters[name].copy()
    damaged.flat[-1] = bad
    damaged_model = GPT2(SMALL, {**model.parameters, name: damaged})
    with (
        np.errstate(invalid="ignore"),  # NumPy would warn, for example of inf - inf
        pytest.raises(TiedGPTError, match="logits are not finite numbers"),
    ):
        next(generate(damaged_model, PROMPT, greedy=greedy))


# Tokens as text

TOKENIZER = Tokenizer([("Ġ", "t"), ("o", "r")])  # the other tokens are bytes
EOT = TOKENIZER.eot_id
PADDING = EOT + 1  # an id without a text, as a padded vocabulary has them
encode = TOKENIZER.encode

# The tokens, the stop strings, the text after each token and at the end, and the reason of the end.
# Text is held back while a character lacks a byte, or while it may be the beginning of a stop.
GROWING = [
    (encode("to b"), [], ["t", "to", "to ", "to b", "to b"], "length"),
    (encode("a not"), ["not to"], ["a", "a ", "a ", "a ", "a ", "a not"], "length"),
    (encode("é!"), [], ["", "é", "é!", "é!"], "length"),
    (encode("é")[:1], [], ["", "\ufffd"], "length"),
    (encode("é")[:1], ["\ufffd"], ["", ""], "stop"),
    ([*encode("a"), PADDING, *encode("b")], [], ["a", "a\ufffd", "a\ufffdb", "a\ufffdb"], "length"),
    ([*encode("é")[:1], PADDING], [], ["", "\ufffd\ufffd", "\ufffd\ufffd"], "length"),
    ([*encode("a no"), EOT], ["not"], ["a", "a ", "a ", "a ", "a no"], "eos"),
    (encode("be or"), ["or"], ["b", "be", "be ", "be "], "stop"),
    (encode("a nit not"), ["not"], ["a", "a ", "a ", "a ni", "a nit"], "still"),
    (encode("aaab"), ["aab"], ["", "", "a", "a"], "stop"),
    (encode("abababac"), ["ababac"], ["", "", "", "", "", "ab", "ab", "ab"], "stop"),
    (encode("e\n\nt"), ["\n\n", "t"], ["e", "e", "e"], "stop"),
    (encode("e two"), ["two", "e t"], ["", ""], "stop"),
    (encode("a to"), ["t", " "], ["a", "a"], "stop"),  # both in one token: the first in the text
    (encode("stop"), ["stop"], ["", "", "", ""], "stop"),
    (encode("ï 😀!"), ["😀"], ["", "ï", "ï ", "ï ", "ï ", "ï ", "ï "], "stop"),
]


@pytest.mark.parametrize(
    ("text", "stop", "length"),
    [
        ("to be or n", "not", 1),
        ("to be or no", "not", 2),
        ("or not", "not", 0),
        ("to be", "not", 0),
        ("nn", "nnn", 2),
        ("", "not", 0),
        ("no", "n", 0),
    ],
)
def test_how_much_of_a_stop_text_may_have_begun(text, stop, length):
    assert overlap(text, stop) == length


def test_the_step_that_completes_a_text_is_told_and_none_after_it():
    sample = TextSample(TOKENIZER, [], (EOT,))
    texts = [sample.text for _ in grow([sample], iter([[64], [65], [EOT], [66]]))]
    assert texts == ["a", "ab", "ab"]


@pytest.mark.parametrize(("tokens", "stop", "texts", "reason"), GROWING)
def test_text_grows_as_soon_as_it_is_certain(tokens, stop, texts, reason):
    sample = TextSample(TOKENIZER, stop, (9999, EOT))  # two tokens end a text
    grown = []
    is_complete = False
    for _ in grow([sample], iter([[token] for token in tokens])):
        grown.append(sample.text)
        is_complete = sample.finish_reason is not None
    if not is_complete:  # the end of the tokens adds the text that was held back
        grown.append(sample.text)
    if reason == "still":
        assert grown[: len(texts)] == texts
        return
    assert grown == texts
    assert sample.finish_reason == reason
    if reason == "stop":  # the tokens after the stop are dropped
        tokens = tokens[: len(texts)]
    assert sample.ids == [token for token in tokens if token != EOT]


def test_an_id_between_those_of_the_tokens_has_no_text():
    sample = TextSample(Tokenizer([], {"<end>": 300}), [], ())
    for token in [*encode("a"), 299, *encode("b"), 300]:
        sample.push(token)
    assert sample.text == "a\ufffdb<end>"


def test_each_sample_of_a_batch_ends_by_itself():
    """Samples end at one of the letters in `stops`, at EOT, or after 30 tokens."""
    stops = ["e", "t", "a"]
    vocab_size = TOKENIZER.vocab_size
    model = random_model(replace(SMALL, vocab_size=vocab_size, n_ctx=64, eos_token_id=EOT))
    samples = [TextSample(TOKENIZER, stops, (EOT,)) for _ in range(40)]
    sampling = Sampling(temperature=3.0)  # so high that some samples end early, and some do not
    arguments = (model, [5, 6], 30, sampling, 0, len(samples))
    for _ in grow(samples, sample_tokens(*arguments)):
        pass
    rows = np.transpose(list(sample_tokens(*arguments))).tolist()  # the same tokens, without an end
    assert {sample.finish_reason for sample in samples} == {"length", "stop", "eos"}
    for sample, row in zip(samples, rows, strict=True):
        assert sample.ids == row[: len(sample.ids)]
        assert not any(stop in sample.text for stop in stops)
        if sample.finish_reason == "length":
            assert len(sample.ids) == 30
