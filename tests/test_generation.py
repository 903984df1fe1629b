"""Sampling, the sliding window, stop strings and streaming; test_transformers.py compares
distributions."""

from dataclasses import replace
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
from support.models import SMALL, random_model

from tiedgpt import GPT2, TiedGPTError, Tokenizer, generate
from tiedgpt.errors import ArgumentError
from tiedgpt.inference.generation import random_streams, sample_steps
from tiedgpt.inference.sampling import Sampling
from tiedgpt.inference.text import TextSample, push_steps

PROMPT = [3, 1, 4, 1, 5]


@pytest.fixture
def endless() -> GPT2:
    """A small model without an end-of-text token, so that lengths are known."""
    return random_model(replace(SMALL, eos_token_id=None))


@pytest.mark.parametrize("head", ["tied", "untied"])
@pytest.mark.parametrize(
    ("n_ctx", "length"), [(31, 1), (31, 5), (31, 30), (31, 31), (1, 1), (2, 2)]
)
def test_greedy_is_the_argmax_of_every_step(head, n_ctx, length):
    """When n_ctx tokens have been read, half of them is kept."""
    model = random_model(replace(SMALL.with_head(head), n_ctx=n_ctx, eos_token_id=None))
    ids, start = [(7 * i) % 101 for i in range(length)], 0
    tokens = list(generate(model, ids, max_new_tokens=80, greedy=True))
    for token in tokens:
        if len(ids) - start > n_ctx:
            start = len(ids) - max(1, n_ctx // 2)
        assert token == model(ids[start:])[-1].argmax()
        ids.append(token)
    assert len(tokens) == 80
    assert len(set(tokens)) > 3 or n_ctx < 3, "a model that repeats one token shows nothing"


P, EVEN = np.array([0.1, 0.4, 0.05, 0.3, 0.15]), np.full(8, 1 / 8)


def test_filters_on_distributions_checked_by_hand():
    for sampling, given, expected in (
        (Sampling(), P, P),
        (Sampling(top_k=2), P, [0, 4 / 7, 0, 3 / 7, 0]),
        (
            Sampling(top_p=0.75),
            P,
            [0, 8 / 17, 0, 6 / 17, 3 / 17],
        ),  # 0.4 + 0.3 is less, so 0.15 stays
        (Sampling(top_k=3, top_p=0.5), P, [0, 4 / 7, 0, 3 / 7, 0]),
        (Sampling(0.5), P, np.array([4, 64, 1, 36, 9]) / 114),  # the squares
        (Sampling(0.5, top_p=0.6), P, [0, 16 / 25, 0, 9 / 25, 0]),  # temperature first
        *((Sampling(*one), P, [0, 1, 0, 0, 0]) for one in ((1, None, 1e-9), (1, 1), (1e-300,))),
        (Sampling(top_k=3), EVEN, EVEN),  # all that tie with the last one stay, as in transformers
        (Sampling(top_p=0.5), EVEN, [1 / 4] * 4 + [0] * 4),  # still the fewest
        (Sampling(top_k=100, top_p=1.0), EVEN, EVEN),
    ):
        for dtype, rtol in ((np.float32, 1e-6), (np.float64, 1e-14)):
            p = sampling.probabilities(np.log(given).astype(dtype))
            np.testing.assert_allclose(p, expected, rtol=rtol, err_msg=str(sampling))
            assert p.dtype == np.float64


def test_of_equal_tokens_top_p_keeps_one_at_least():
    for V in range(1, 200):  # 1 / V, summed and divided, may come out a little below 1 / V
        assert np.count_nonzero(Sampling(top_p=1e-300).probabilities(np.zeros(V))) == 1


def test_draws_follow_the_distribution():
    """Chi-squared over 20,000 draws; the 0.9999 quantile of 4 degrees of freedom is 23.5."""
    rng = np.random.default_rng(0)
    draws = np.bincount([Sampling().choose(np.log(P), rng) for _ in range(20_000)], minlength=5)
    assert (((draws - 20_000 * P) ** 2) / (20_000 * P)).sum() < 23.5


def test_no_draw_falls_on_a_dropped_token_or_off_the_end():
    logits = np.array([0.0, 5.0, 5.0, 0.0, 5.0, 0.0])
    for draw, token in ((0.0, 1), (1 / 3 + 1e-9, 2), (np.nextafter(1.0, 0.0), 4)):
        assert (
            Sampling(top_k=3).choose(logits, SimpleNamespace(random=lambda draw=draw: draw))
            == token
        )


def test_without_a_seed_each_call_draws_another(endless):
    first, second = (list(generate(endless, PROMPT, 25, temperature=1.5)) for _ in range(2))
    assert first != second


def steps(model, prompts, n, sampling, streams, draft=None):
    """The tokens of each row of sample_steps."""
    rows = [[] for _ in prompts]
    for chosen in sample_steps(model, prompts, n, sampling, streams, draft):
        for row, tokens in zip(rows, chosen, strict=True):
            row += tokens
    return rows


def test_prompts_of_unequal_lengths_are_continued_as_if_each_were_alone(endless):
    model = endless.astype(np.float64)
    prompts = [
        PROMPT,
        PROMPT[:1],
        list(range(31)),
        [9] * 17,
    ]  # each row's window slides at another step
    together = steps(model, prompts, 70, Sampling(1.5), random_streams(3, 4))
    for prompt, tokens, stream in zip(prompts, together, random_streams(3, 4), strict=True):
        assert steps(model, [prompt], 70, Sampling(1.5), [stream]) == [tokens]


def test_sample_i_does_not_depend_on_the_number_of_samples(endless):
    """Past the context too."""
    sampled = [
        steps(endless, [PROMPT] * n, 70, Sampling(1.5), random_streams(5, n)) for n in (1, 2, 5, 7)
    ]
    assert len({tuple(sample) for sample in sampled[-1]}) == 7, (
        "samples must differ from one another"
    )
    assert sampled == [sampled[-1][:n] for n in (1, 2, 5, 7)]
    assert [list(generate(endless, PROMPT, 70, temperature=1.5, seed=5))] == sampled[0]


def test_no_step_is_computed_beyond_the_tokens_asked_for(endless):
    """n tokens need passes for the prompt and n - 1 tokens; an unused generator computes no
    more."""
    with mock.patch.object(GPT2, "final", autospec=True, side_effect=GPT2.final) as final:
        list(generate(endless, PROMPT, 4, greedy=True))
        next(generate(endless, PROMPT, 4, greedy=True))
    assert [np.shape(call.args[1]) for call in final.call_args_list] == [
        (1, 5),
        *[(1, 1)] * 3,
        (1, 5),
    ]


def test_end_of_text_ends_generation_and_is_not_yielded(endless):
    tokens = list(generate(endless, PROMPT, 20, greedy=True))
    end = tokens[6]
    first = tokens.index(end)
    for eos in (end, (99, end)):
        model = GPT2(replace(endless.config, eos_token_id=eos), endless.parameters)
        assert list(generate(model, PROMPT, 20, greedy=True)) == tokens[:first]


TOKENIZER = Tokenizer([])  # ids are bytes in the order of the alphabet
EOT, encode = TOKENIZER.eot_id, TOKENIZER.encode


@pytest.mark.parametrize(
    ("tokens", "stop", "pieces", "reason"),
    [
        (encode("to be or not"), [], "t|o| |b|e| |o|r| |n|o|t|", "length"),
        (encode("to be or not"), ["or"], "t||o |b|e| ||", "stop"),
        (encode("to be or not"), ["not to"], "t|o| |b|e| |o|r| ||||not", "length"),
        (encode("a nit not"), ["not"], "a| ||ni|t| |||", "stop"),
        (encode("aaab"), ["aab"], "||a|", "stop"),
        (encode("abababac"), ["ababac"], "|||||ab||", "stop"),
        (encode("one\n\ntwo"), ["\n\n", "two"], "o|n|e||", "stop"),
        (encode("one two"), ["two", "e t"], "o|n|||", "stop"),
        (encode("stop"), ["stop"], "|||", "stop"),
        (encode("naïve 😀!"), ["😀"], "n|a||ï|v|e| ||||", "stop"),
        (encode("é!"), [], "|é|!|", "length"),
        (encode("é")[:1], [], "|\ufffd", "length"),
        ([*encode("a no"), EOT], ["not"], "a| |||no", "eos"),
        # A padded vocabulary has rows without a text; a random model may choose them.
        ([*encode("a"), 300, *encode("b")], [], "a|\ufffd|b|", "length"),
    ],
)
def test_text_is_shown_as_soon_as_it_is_certain_and_up_to_a_stop_string(
    tokens, stop, pieces, reason
):
    sample = TextSample(TOKENIZER, stop, (EOT,))
    shown = [text for _, text in push_steps(([[token]] for token in tokens), [sample])]
    assert ("|".join(shown), sample.text, sample.finish_reason) == (pieces, "".join(shown), reason)
    assert sample.ids == [token for token in tokens[: len(shown)] if token != EOT]


def test_each_sample_of_a_batch_ends_by_itself():
    """Pieces of text add up to each sample's text, and one that has ended receives no more."""
    model = random_model(replace(SMALL, vocab_size=257, n_ctx=64, eos_token_id=EOT))
    samples = [TextSample(TOKENIZER, ["e", "t", "a"], (EOT,)) for _ in range(40)]
    pieces = [""] * 40
    arguments = model, [[5, 6]] * 40, 30, Sampling(3.0)
    for number, text in push_steps(sample_steps(*arguments, random_streams(0, 40)), samples):
        pieces[number] += text
    assert pieces == [sample.text for sample in samples]
    assert {sample.finish_reason for sample in samples} == {"length", "stop", "eos"}
    for sample in samples:
        assert len(sample.ids) == 30 or sample.finish_reason != "length"
        assert not any(stop in sample.text for stop in "eta")
    rows = steps(*arguments, random_streams(0, 40))
    for sample, tokens in zip(samples, rows, strict=True):
        assert sample.ids == tokens[: len(sample.ids)]


def test_bad_arguments_are_refused_at_once(model):
    for arguments, message in (
        (
            {"temperature": 0},
            "^temperature must be .* above 0, got 0; for the likeliest token, set greedy$",
        ),
        ({"top_k": 0}, "top_k must be a whole number of at least 1, got 0"),
        ({"top_p": 0.0}, r"top_p must be a number above 0 and at most 1, got 0\.0"),
        ({"max_new_tokens": 0}, "max_new_tokens must be a whole number of at least 1, got 0"),
        ({"seed": -1}, "seed must be a whole number of at least 0, got -1"),
        ({"ids": []}, "the prompt is empty: GPT-2 needs at least one token"),
        ({"ids": [[1, 2]]}, r"must be one sequence of ids \[T\], got shape \(1, 2\)"),
        ({"ids": [0] * 32}, "the input has 32 tokens, more than the model's context of 31"),
    ):
        with pytest.raises(ArgumentError, match=message):
            generate(model, **{"ids": PROMPT, **arguments})  # no token is asked for


@pytest.mark.parametrize("greedy", [True, False])
@pytest.mark.parametrize("name", ["ln_f.bias", "wte.weight"])
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_damaged_model_is_an_error(model, greedy, name, bad):
    """One number of a tensor: an inf in W_U makes one logit inf or -inf."""
    parameters = {**model.parameters, name: model.parameters[name].copy()}
    parameters[name].flat[-1] = bad
    with (
        np.errstate(invalid="ignore"),
        pytest.raises(TiedGPTError, match="logits are not finite numbers"),
    ):
        next(generate(GPT2(SMALL, parameters), PROMPT, greedy=greedy))
