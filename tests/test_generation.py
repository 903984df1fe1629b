"""Generation: the sliding window, batches of prompts, streams, the end of a text, errors.

The window has the tokens from which the next one is predicted. When it fills the context, which is
31 tokens in the small models, the next token is predicted from its later half, and it grows again.
A stream has the random numbers of one sample. `Sampling(1.5)` draws tokens at the temperature 1.5.
The fixture shapes_read has the shape [B, T] of the ids of each forward pass.

test_sampling.py has the choice of a token, and test_drafts.py generation with guesses.
"""

from dataclasses import replace

import numpy as np
import pytest
from support.generation import PROMPT, sampled_rows
from support.models import SMALL, random_model

from tiedgpt import GPT2, TiedGPTError, generate
from tiedgpt.errors import ArgumentError
from tiedgpt.generation import random_streams
from tiedgpt.sampling import Sampling


@pytest.fixture
def endless() -> GPT2:
    """A small model without an end-of-text token, so that a text has the length asked for."""
    return random_model(replace(SMALL, eos_token_id=None))


def assert_argmax_of_every_step(model, prompt, tokens):
    """Each of the tokens is the likeliest one after the tokens in the window."""
    n_ctx = model.config.n_ctx
    ids = list(prompt)
    window_start = 0
    for token in tokens:
        if len(ids) - window_start > n_ctx:  # too many; half of them are kept, but at least one
            window_start = len(ids) - max(1, n_ctx // 2)
        assert token == model(ids[window_start:])[-1].argmax()
        ids.append(token)


@pytest.mark.parametrize("head", ["tied", "untied"])
@pytest.mark.parametrize("prompt_length", [1, 5, 30, 31])  # the context is 31 tokens
def test_greedy_is_the_argmax_of_every_step(head, prompt_length):
    model = random_model(replace(SMALL.with_head(head), eos_token_id=None))
    prompt = [(7 * i) % SMALL.vocab_size for i in range(prompt_length)]
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


def test_without_a_seed_two_calls_draw_different_tokens(endless):
    first = list(generate(endless, PROMPT, 25, temperature=1.5))
    second = list(generate(endless, PROMPT, 25, temperature=1.5))
    assert first != second


def test_prompts_of_unequal_lengths_are_continued_as_if_each_were_alone(endless):
    """The windows of the prompts slide at different steps."""
    model = endless.astype(np.float64)
    prompts = [PROMPT, PROMPT[:1], list(range(31)), [9] * 17]
    sampling = Sampling(temperature=1.5)
    streams = random_streams(seed=3, n=4)
    together = sampled_rows(model, prompts, sampling, tokens=70, streams=streams)
    for row, prompt in enumerate(prompts):
        stream = random_streams(seed=3, n=4)[row]  # the same stream, from its beginning
        (alone,) = sampled_rows(model, [prompt], sampling, tokens=70, streams=[stream])
        assert together[row] == alone


def test_samples_of_one_prompt_differ(endless):
    streams = random_streams(seed=5, n=7)
    samples = sampled_rows(endless, [PROMPT] * 7, Sampling(1.5), tokens=70, streams=streams)
    assert len({tuple(sample) for sample in samples}) == 7


@pytest.mark.parametrize("count", [1, 2, 5])
def test_sample_i_does_not_depend_on_the_number_of_samples(endless, count):
    """The 70 tokens of a sample are more than the context."""
    streams = random_streams(seed=5, n=7)
    many = sampled_rows(endless, [PROMPT] * 7, Sampling(1.5), tokens=70, streams=streams)
    streams = random_streams(seed=5, n=count)
    few = sampled_rows(endless, [PROMPT] * count, Sampling(1.5), tokens=70, streams=streams)
    assert few == many[:count]


def test_generate_gives_sample_0_of_its_seed(endless):
    streams = random_streams(seed=5, n=1)
    (sample,) = sampled_rows(endless, [PROMPT], Sampling(1.5), tokens=70, streams=streams)
    assert list(generate(endless, PROMPT, 70, temperature=1.5, seed=5)) == sample


def test_no_step_is_computed_beyond_the_tokens_asked_for(endless, shapes_read):
    """The model reads the prompt, of five tokens, and then each new token but the last one."""
    list(generate(endless, PROMPT, 4, greedy=True))
    assert shapes_read == [(1, 5), (1, 1), (1, 1), (1, 1)]


def test_a_generator_computes_no_token_before_it_is_asked_for(endless, shapes_read):
    """Only the first token is asked for. For it, the model reads the prompt, of five tokens."""
    next(generate(endless, PROMPT, 4, greedy=True))
    assert shapes_read == [(1, 5)]


def test_end_of_text_ends_generation_and_is_not_yielded(endless):
    """A token that the model writes is made its end-of-text token."""
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
