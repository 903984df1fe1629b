"""Generation: the sliding window, batches of prompts, streams, the end of a text, errors.

test_sampling.py has the choice of a token, and test_drafts.py generation with guesses.
"""

from dataclasses import replace

import numpy as np
import pytest
from support.generation import PROMPT, sampled_rows
from support.models import SMALL, random_model

from tiedgpt import GPT2, TiedGPTError, generate
from tiedgpt.errors import ArgumentError
from tiedgpt.inference.generation import random_streams
from tiedgpt.inference.sampling import Sampling


@pytest.fixture
def endless() -> GPT2:
    """A small model without an end-of-text token, so that lengths are known."""
    return random_model(replace(SMALL, eos_token_id=None))


def assert_argmax_of_every_step(model, prompt, tokens):
    """Each token is the likeliest one. When n_ctx tokens have been read, half of them is kept."""
    n_ctx = model.config.n_ctx
    ids = list(prompt)
    window_start = 0
    for token in tokens:
        if len(ids) - window_start > n_ctx:
            window_start = len(ids) - max(1, n_ctx // 2)
        assert token == model(ids[window_start:])[-1].argmax()
        ids.append(token)


@pytest.mark.parametrize("head", ["tied", "untied"])
@pytest.mark.parametrize("length", [1, 5, 30, 31])  # of the prompt; the context is 31 tokens
def test_greedy_is_the_argmax_of_every_step(head, length):
    model = random_model(replace(SMALL.with_head(head), eos_token_id=None))
    prompt = [(7 * i) % SMALL.vocab_size for i in range(length)]
    tokens = list(generate(model, prompt, max_new_tokens=80, greedy=True))
    assert len(tokens) == 80
    assert len(set(tokens)) > 3, "a model that repeats one token shows nothing"
    assert_argmax_of_every_step(model, prompt, tokens)


@pytest.mark.parametrize("head", ["tied", "untied"])
@pytest.mark.parametrize("n_ctx", [1, 2])
def test_greedy_with_a_context_of_one_or_two_tokens(head, n_ctx):
    model = random_model(replace(SMALL.with_head(head), n_ctx=n_ctx, eos_token_id=None))
    prompt = [0, 7][:n_ctx]  # it fills the context
    tokens = list(generate(model, prompt, max_new_tokens=80, greedy=True))
    assert len(tokens) == 80
    assert_argmax_of_every_step(model, prompt, tokens)


def test_without_a_seed_each_call_draws_another(endless):
    first = list(generate(endless, PROMPT, 25, temperature=1.5))
    second = list(generate(endless, PROMPT, 25, temperature=1.5))
    assert first != second


def test_prompts_of_unequal_lengths_are_continued_as_if_each_were_alone(endless):
    """The context is 31 tokens, so the window of each slides at another step."""
    model = endless.astype(np.float64)
    prompts = [PROMPT, PROMPT[:1], list(range(31)), [9] * 17]
    sampling = Sampling(temperature=1.5)
    streams = random_streams(seed=3, n=4)
    together = sampled_rows(model, prompts, sampling, tokens=70, streams=streams)
    for row, prompt in enumerate(prompts):
        stream = random_streams(seed=3, n=4)[row]  # from its beginning
        (alone,) = sampled_rows(model, [prompt], sampling, tokens=70, streams=[stream])
        assert together[row] == alone


def test_samples_of_one_prompt_differ(endless):
    samples = sampled_rows(
        endless, [PROMPT] * 7, Sampling(1.5), tokens=70, streams=random_streams(5, 7)
    )
    assert len({tuple(sample) for sample in samples}) == 7


@pytest.mark.parametrize("count", [1, 2, 5])
def test_sample_i_does_not_depend_on_the_number_of_samples(endless, count):
    """The samples go past the context."""
    many = sampled_rows(
        endless, [PROMPT] * 7, Sampling(1.5), tokens=70, streams=random_streams(5, 7)
    )
    few = sampled_rows(
        endless, [PROMPT] * count, Sampling(1.5), tokens=70, streams=random_streams(5, count)
    )
    assert few == many[:count]


def test_generate_gives_sample_0_of_its_seed(endless):
    (sample,) = sampled_rows(
        endless, [PROMPT], Sampling(1.5), tokens=70, streams=random_streams(5, 1)
    )
    assert list(generate(endless, PROMPT, 70, temperature=1.5, seed=5)) == sample


def test_no_step_is_computed_beyond_the_tokens_asked_for(endless, shapes_read):
    """The prompt, of five tokens, is read once, and each new token but the last one.

    shapes_read has the [B, T] of each forward pass.
    """
    list(generate(endless, PROMPT, 4, greedy=True))
    assert shapes_read == [(1, 5), (1, 1), (1, 1), (1, 1)]


def test_an_unused_generator_computes_no_more(endless, shapes_read):
    next(generate(endless, PROMPT, 4, greedy=True))
    assert shapes_read == [(1, 5)]


def test_end_of_text_ends_generation_and_is_not_yielded(endless):
    """The model is made to end at a token that it writes."""
    tokens = list(generate(endless, PROMPT, 20, greedy=True))
    end = tokens[6]  # any of them
    tokens_before_end = tokens[: tokens.index(end)]  # the token may come up earlier, too
    for eos_token_id in (end, (99, end)):  # a config may name several tokens
        config = replace(endless.config, eos_token_id=eos_token_id)
        model = GPT2(config, endless.parameters)
        assert list(generate(model, PROMPT, 20, greedy=True)) == tokens_before_end


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        pytest.param(
            {"temperature": 0},
            "^temperature must be .* above 0, got 0; for the likeliest token, set greedy$",
            id="temperature-0",
        ),
        pytest.param(
            {"temperature": -1},
            "temperature must be a number above 0, got -1",
            id="temperature-below-0",
        ),
        pytest.param(
            {"top_k": 0}, "top_k must be a whole number of at least 1, got 0", id="top-k-0"
        ),
        pytest.param(
            {"top_p": 0.0}, r"top_p must be a number above 0 and at most 1, got 0\.0", id="top-p-0"
        ),
        pytest.param(
            {"max_new_tokens": 0},
            "max_new_tokens must be a whole number of at least 1, got 0",
            id="no-new-tokens",
        ),
        pytest.param(
            {"seed": -1}, "seed must be a whole number of at least 0, got -1", id="seed-below-0"
        ),
        pytest.param(
            {"ids": []}, "the prompt is empty: GPT-2 needs at least one token", id="no-ids"
        ),
        pytest.param(
            {"ids": [[1, 2]]},
            r"must be one sequence of ids \[T\], got shape \(1, 2\)",
            id="ids-of-a-batch",
        ),
        pytest.param(
            {"ids": [0] * 32},
            "the input has 32 tokens, more than the model's context of 31",
            id="too-many-ids",
        ),
    ],
)
def test_bad_arguments_are_refused_at_once(model, wrong, message):
    """The error does not wait until a token is asked for."""
    arguments = {"ids": PROMPT, **wrong}
    with pytest.raises(ArgumentError, match=message):
        generate(model, **arguments)


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("name", ["ln_f.bias", "wte.weight"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_damaged_model_is_an_error(model, greedy, name, bad):
    """The last number of a tensor is wrong. An inf in W_U makes one logit inf or -inf."""
    damaged = model.parameters[name].copy()
    damaged.flat[-1] = bad
    damaged_model = GPT2(SMALL, {**model.parameters, name: damaged})
    with (
        np.errstate(invalid="ignore"),
        pytest.raises(TiedGPTError, match="logits are not finite numbers"),
    ):
        next(generate(damaged_model, PROMPT, greedy=greedy))
