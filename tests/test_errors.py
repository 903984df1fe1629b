"""Numbers in a range, as arguments and as fields of dataclasses; what messages are made of."""

import math
from pathlib import Path

import numpy as np
import pytest
from support.checks import deeply_nested_list

from tiedgpt import TiedGPTError
from tiedgpt.errors import (
    ABOVE_0,
    PROBABILITY,
    RATE,
    ArgumentError,
    CheckpointError,
    ConfigError,
    Range,
    SpecialTokenError,
    TiedGPTWarning,
    TokenizerError,
    check_file_name,
    counted,
    did_you_mean,
    nearest_names,
    short_repr,
)

RANGES = [
    pytest.param(Range(1), [1, 10**18], 0, 0.5, id="whole-from-1"),
    pytest.param(Range(0, 9), [0, 9], 10, 0.5, id="whole-0-to-9"),
    pytest.param(ABOVE_0, [3e-4, 1], 0, 10**400, id="above-0"),
    pytest.param(Range(0, 1, whole=False, open_low=True), [0.5, 1], 0, 10**400, id="above-0-to-1"),
    pytest.param(RATE, [0, 0.5], 1, 10**400, id="from-0-below-1"),
    pytest.param(PROBABILITY, [0, 0.5, 1], 1.5, 10**400, id="from-0-to-1"),
]


@pytest.mark.parametrize(("numbers", "inside", "outside", "wrong"), RANGES)
def test_a_number_in_a_range(numbers, inside, outside, wrong):
    for value in inside:
        assert numbers.check("n", value) == value
    for value in [outside, wrong, -1, True, None, "1", [], math.nan, math.inf]:
        with pytest.raises(ArgumentError) as caught:
            numbers.check("n", value)
        assert str(caught.value) == f"n must be {numbers}, got {short_repr(value)}"
    with pytest.raises(ConfigError, match=r"^n must be"):
        numbers.check("n", outside, ConfigError)


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        (Range(1), "a whole number of at least 1"),
        (Range(1, 9), "a whole number from 1 to 9"),
        (Range(0, 1, whole=False), "a number from 0 to 1"),
        (Range(0, whole=False), "a number of at least 0"),
        (Range(0, whole=False, open_low=True), "a number above 0"),
        (Range(0, 1, whole=False, open_high=True), "a number of at least 0 and below 1"),
        (Range(0, 1, whole=False, open_low=True), "a number above 0 and at most 1"),
        (Range(0, 1, False, open_low=True, open_high=True), "a number above 0 and below 1"),
    ],
)
def test_a_range_in_words(numbers, words):
    assert str(numbers) == words


def test_numbers_of_numpy_become_those_of_python():
    assert type(Range(1).check("n", np.int8(1))) is int
    assert type(RATE.check("n", np.float32(0.5))) is float
    assert type(RATE.check("n", np.int64(0))) is float


# Kinds


@pytest.mark.parametrize(
    ("kind", "caught_as"),
    [
        (TiedGPTError, ValueError),
        (ConfigError, TiedGPTError),
        (CheckpointError, TiedGPTError),
        (TokenizerError, TiedGPTError),
        (SpecialTokenError, TokenizerError),
        (ArgumentError, TiedGPTError),
        (TiedGPTWarning, UserWarning),
    ],
)
def test_what_an_error_is_caught_as(kind, caught_as):
    assert kind.__base__ is caught_as
    if kind is not SpecialTokenError:
        assert str(kind()) == ""


# Messages


@pytest.mark.parametrize(
    ("text", "line"),
    [
        pytest.param("wte\tä \u202e\x1b[2J\n", r"wte\tä \u202e\x1b[2J\n", id="what-moves-a-cursor"),
        pytest.param("\ud800", r"\ud800", id="half-a-surrogate-pair"),
        pytest.param("a" * 2000, "a" * 2000, id="longest"),
        pytest.param(
            "a" * 1500 + "b" * 501, "a" * 1000 + " ... " + "a" * 499 + "b" * 501, id="cut"
        ),
    ],
)
def test_an_error_and_a_warning_are_one_line(text, line):
    assert str(TiedGPTError(text)) == line
    assert str(TiedGPTWarning(text)) == line


@pytest.mark.parametrize(
    ("value", "text"),
    [
        pytest.param("a" * 58, "'" + "a" * 58 + "'", id="60-characters"),
        pytest.param("a" * 59, "'" + "a" * 56 + "...", id="61-characters"),
        pytest.param(10**5000, "a int too long to show", id="many-digits"),
        pytest.param(deeply_nested_list(), "a list too long to show", id="nested"),
    ],
)
def test_a_value_in_a_message_has_60_characters_at_most(value, text):
    assert short_repr(value) == text
    assert short_repr("a" * 99, limit=10) == "'aaaaaa..."


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 tokens"), (1, "1 token"), (1024, "1,024 tokens")]
)
def test_a_number_of_things(count, text):
    assert counted(count, "token") == text


@pytest.mark.parametrize("name", ["a\0b", "\udfff\ud800"])
def test_what_no_file_can_be_called_is_refused(name):
    check_file_name("ä b")
    with pytest.raises(ArgumentError) as caught:
        check_file_name(name)
    assert str(caught.value) == f"{name!r} is not the name of a file"
    with pytest.raises(ArgumentError) as caught:
        check_file_name(Path(name))
    assert str(caught.value) == f"{name!r} is not the name of a file"


FLAGS = ["--top-k", "--top-p", "--temperature", "--tokens", "--tokenizer", "--total"]


@pytest.mark.parametrize(
    ("word", "hint"),
    [
        pytest.param("--temp", "; did you mean --temperature?", id="a-beginning"),
        pytest.param("--toke", "; did you mean --tokens or --tokenizer?", id="of-two"),
        pytest.param("--topk", "; did you mean --top-k?", id="like-one"),
        pytest.param("--t", "", id="of-many"),
        pytest.param("--to", "; did you mean --total?", id="of-five-the-likest"),
        pytest.param("--seed", "", id="like-none"),
        pytest.param("--tempo", "", id="not-like-enough"),
        pytest.param("top", "", id="a-middle"),
    ],
)
def test_a_word_that_is_not_known(word, hint):
    assert did_you_mean(word, iter(FLAGS)) == hint


def test_a_beginning_of_three_words_does_not_say_which_is_meant():
    assert did_you_mean("a", ["ab", "ac"]) == "; did you mean ab or ac?"
    assert did_you_mean("a", ["ab", "ac", "ad"]) == ""


def test_the_three_nearest_names():
    assert nearest_names("--top-kk", FLAGS).split(", ")[:2] == ["--top-k", "--top-p"]
    assert len(nearest_names("", FLAGS).split(", ")) == 3
    assert nearest_names("--total", FLAGS).split(", ")[0] == "--total"
    assert nearest_names(7, ["attn.1", "attn.7"]) == "attn.7, attn.1"  # a name that is no text


def test_the_error_of_a_special_token_names_it():
    error = SpecialTokenError("a text", "<|endoftext|>")
    assert (str(error), error.token) == ("a text", "<|endoftext|>")
