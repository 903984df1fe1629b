"""How one token is chosen: each setting of Sampling, and the draw.

test_transformers.py compares distributions with those of transformers for more settings.
"""

from dataclasses import fields
from types import SimpleNamespace

import numpy as np
import pytest
from support.models import random_model

import tiedgpt
from tiedgpt.errors import ArgumentError
from tiedgpt.generation import Sampling, SamplingSettings, penalised

# Distributions
P = [0.1, 0.4, 0.05, 0.3, 0.15]
EVEN = [1 / 8, 1 / 8, 1 / 8, 1 / 8, 1 / 8, 1 / 8, 1 / 8, 1 / 8]
LIKELIEST = [0, 1, 0, 0, 0]  # of P

# Settings, the distribution before them, and that after them, which was computed by hand
FILTERED = [
    ({}, P, P),
    ({"top_k": 0, "top_p": 1.0, "min_p": 0.0}, P, P),
    ({"top_k": 2}, P, [0, 4 / 7, 0, 3 / 7, 0]),
    # 0.4 + 0.3 is less than 0.75, so 0.15 stays.
    ({"top_p": 0.75}, P, [0, 8 / 17, 0, 6 / 17, 3 / 17]),
    ({"top_k": 3, "top_p": 0.5}, P, [0, 4 / 7, 0, 3 / 7, 0]),
    # P is 2, 8, 1, 6 and 3 twentieths. The squares of these numbers add up to 114.
    ({"temperature": 0.5}, P, [4 / 114, 64 / 114, 1 / 114, 36 / 114, 9 / 114]),
    ({"temperature": 0.5, "top_p": 0.6}, P, [0, 16 / 25, 0, 9 / 25, 0]),
    # The limit is 0.3 times 0.4, which is 0.12.
    ({"min_p": 0.3}, P, [0, 8 / 17, 0, 6 / 17, 3 / 17]),
    # 0.4 + 0.3 is less than 0.8, so 0.15 stays, and it is more than the limit. Without the other
    # tokens, 0.4 and 0.3 would be more than 0.8.
    ({"top_p": 0.8, "min_p": 0.3}, P, [0, 8 / 17, 0, 6 / 17, 3 / 17]),
    # The limit is that of the squares: 0.3 times 64 is more than 9 and less than 36.
    ({"min_p": 0.3, "temperature": 0.5}, P, [0, 64 / 100, 0, 36 / 100, 0]),
    ({"top_p": 1e-9}, P, LIKELIEST),
    ({"top_k": 1}, P, LIKELIEST),
    ({"min_p": 1}, P, LIKELIEST),
    ({"temperature": 1e-300}, P, LIKELIEST),
    ({"temperature": 5e-324}, P, LIKELIEST),
    ({"temperature": 0, "top_k": 3}, P, LIKELIEST),
    ({"greedy": True, "temperature": 2}, P, LIKELIEST),
    # Tokens as likely as the third likeliest stay, too, as in transformers.
    ({"top_k": 3}, EVEN, EVEN),
    ({"top_p": 0.5}, EVEN, [1 / 4, 1 / 4, 1 / 4, 1 / 4, 0, 0, 0, 0]),
    ({"top_p": 0.5}, [0.2, 0.4, 0.2, 0.2], [1 / 3, 2 / 3, 0, 0]),
    ({"top_k": 100, "top_p": 1.0}, EVEN, EVEN),
]


@pytest.mark.parametrize(("dtype", "rtol"), [(np.float32, 1e-6), (np.float64, 1e-14)])
@pytest.mark.parametrize(("settings", "before", "after"), FILTERED)
def test_settings_give_the_distributions_computed_by_hand(settings, before, after, dtype, rtol):
    logits = np.log(before).astype(dtype)
    p = Sampling(**settings).probabilities(logits)
    assert p.dtype == np.float64
    np.testing.assert_allclose(p, after, rtol=rtol)


SETTINGS = {
    "temperature": 0.5,
    "top_k": 2,
    "top_p": 0.5,
    "min_p": 0.3,
    "repetition_penalty": 3.0,
}


HELP = {
    "temperature": "divide the logits by T: below 1 sharpens, above 1 flattens, 0 is --greedy",
    "top_k": "sample from the K likeliest tokens, with 0 from all",
    "top_p": "sample from the smallest set of tokens whose probabilities add up to P, with 0 from "
    "the likeliest alone",
    "greedy": "take the likeliest token every time",
    "min_p": "sample from the tokens that are at least P times as likely as the likeliest",
    "repetition_penalty": "divide the positive logits of tokens that are in the text already by R, "
    "multiply the negative ones by it",
}
LETTERS = {
    "temperature": "T",
    "top_k": "K",
    "top_p": "P",
    "min_p": "P",
    "repetition_penalty": "R",
}
SHORT_FLAGS = {"temperature": "-t", "top_k": "-k", "top_p": "-p"}


@pytest.mark.parametrize("field", fields(Sampling), ids=lambda field: field.name)
def test_what_the_flag_of_a_setting_says_of_it(field):
    """Its help, and whether it changes what greedy takes. A number has a letter in the help."""
    assert field.metadata["help"] == HELP[field.name]
    assert field.metadata.get("flag") == SHORT_FLAGS.get(field.name)
    if field.name == "greedy":
        assert field.metadata["changes_greedy"]
        return
    assert field.metadata["metavar"] == LETTERS[field.name]
    model = random_model()
    plain = list(tiedgpt.generate(model, [1, 2], 20, greedy=True))
    with_it = {field.name: SETTINGS[field.name]}
    changed = list(tiedgpt.generate(model, [1, 2], 20, greedy=True, **with_it))
    assert (changed != plain) == field.metadata["changes_greedy"]


@pytest.mark.parametrize("k", [1, 2, 50, 399])
def test_the_k_likeliest_of_many_tokens_are_kept(k):
    logits = np.random.default_rng(0).permutation(400).astype(np.float32) / 100
    p = Sampling(top_k=k).probabilities(logits)
    assert np.flatnonzero(p).tolist() == sorted(np.argsort(logits)[-k:])


@pytest.mark.parametrize("top_p", [0, 1e-300, np.float32(0)])
def test_the_least_top_p_keeps_one_of_several_equal_tokens(top_p):
    """Rounding may make the probability of each of V tokens a little less than 1 / V."""
    for V in range(1, 200):
        p = Sampling(top_p=top_p).probabilities(np.zeros(V))
        assert np.count_nonzero(p) == 1


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_top_p_of_numpy_is_as_one_of_python(dtype):
    """Of so many equal tokens a float16 does not tell the probability from a little more."""
    p = np.full(50_257, 0.5001 / 50_256)
    p[0] = 0.4999
    kept = Sampling(top_p=dtype(0.5)).probabilities(np.log(p))
    expected = Sampling(top_p=0.5).probabilities(np.log(p))
    assert np.count_nonzero(kept) == np.count_nonzero(expected) > 1


# The repetition penalty

TEXT = [3, 5, 5, 40, 3]  # the tokens whose logits a penalty lowers
LOGITS = np.random.default_rng(1).normal(0, 3, 101).astype(np.float32)


@pytest.mark.parametrize("seed", range(8))
def test_the_largest_top_p_below_1_drops_next_to_nothing(seed):
    """Probabilities may add up to less than it: they are rounded."""
    logits = np.random.default_rng(seed).normal(size=500)
    all_tokens = Sampling().probabilities(logits)
    kept = Sampling(top_p=np.nextafter(1, 0)).probabilities(logits)
    np.testing.assert_allclose(kept, all_tokens, rtol=1e-12, atol=1e-12)


def test_of_two_likeliest_tokens_greedy_takes_the_first():
    p = Sampling(greedy=True).probabilities(np.array([1.0, 3.0, 3.0]))
    np.testing.assert_array_equal(p, [0, 1, 0])


def test_a_repeated_token_is_penalised_once():
    """A logit above 0 is divided by the penalty. A logit below 0 is multiplied by it.

    The text has token 0 twice, and not token 2.
    """
    logits = np.float32([2.0, -2.0, 1.0, 0.0])
    np.testing.assert_array_equal(penalised(logits, [0, 0, 1, 3], penalty=2), [1, -4, 1, 0])
    np.testing.assert_array_equal(logits, [2, -2, 1, 0], "the argument is not changed")


@pytest.mark.parametrize("penalty", [1e-308, 1e308])
def test_a_penalty_of_any_size_gives_finite_logits(penalty):
    logits = np.array([2.0, -2.0, 0.0], np.float32)
    text = [0, 1, 2]
    assert np.isfinite(penalised(logits, text, penalty)).all()
    sampling = Sampling(repetition_penalty=penalty)
    assert sampling.choose(logits, np.random.default_rng(0), text) in text


@pytest.mark.parametrize("greedy", [{"greedy": True}, {"temperature": 0}])
def test_greedy_takes_the_likeliest_token_after_the_penalty(greedy):
    likeliest = int(LOGITS.argmax())
    sampling = Sampling(**greedy, repetition_penalty=100.0)
    assert sampling.choose(LOGITS, None) == likeliest  # it draws no random number
    assert sampling.choose(LOGITS, None, [likeliest]) != likeliest


# What the fields say

ANOTHER = {"temperature": 0.5, "top_k": 2, "top_p": 0.5, "min_p": 0.5, "repetition_penalty": 1e9}


@pytest.mark.parametrize("setting", fields(Sampling), ids=lambda setting: setting.name)
def test_a_field_says_whether_it_changes_what_greedy_takes(setting):
    likeliest = int(LOGITS.argmax())
    alone = {} if setting.name == "greedy" else {"greedy": True}
    value = True if setting.name == "greedy" else ANOTHER[setting.name]
    before = Sampling(**alone).probabilities(LOGITS, [likeliest])
    after = Sampling(**alone, **{setting.name: value}).probabilities(LOGITS, [likeliest])
    assert setting.metadata["changes_greedy"] == (not np.array_equal(before, after))


def test_type_checkers_know_the_fields():
    types = {setting.name: setting.type for setting in fields(Sampling)}
    assert SamplingSettings.__annotations__ == types
    assert SamplingSettings.__required_keys__ == frozenset()


@pytest.mark.slow
def test_a_misspelt_setting_is_an_error_of_a_type_checker():
    api = pytest.importorskip("mypy.api")
    lines = "import tiedgpt\nmodel: tiedgpt.GPT2\n"
    right = lines + "tiedgpt.generate(model, [1], seed=1, temperature=0.5, top_k=None)\n"
    out, _, _ = api.run(["--config-file=", "--ignore-missing-imports", "-c", right])
    assert "Success" in out
    wrong = lines + "tiedgpt.generate(model, [1], temprature=0.5)\n"
    out, _, _ = api.run(["--config-file=", "--ignore-missing-imports", "-c", wrong])
    assert 'Unexpected keyword argument "temprature"' in out


# The draw


@pytest.mark.parametrize("n", [2_000, pytest.param(20_000, marks=pytest.mark.slow)])
def test_draws_follow_the_distribution(n):
    """Chi-squared of the draws is below 23.5, the 0.9999 quantile of 4 degrees of freedom."""
    rng = np.random.default_rng(0)
    sampling = Sampling()
    logits = np.log(P)
    draws = [sampling.choose(logits, rng) for _ in range(n)]
    counts = np.bincount(draws, minlength=5)
    expected = n * np.array(P)
    chi_squared = ((counts - expected) ** 2 / expected).sum()
    assert chi_squared < 23.5


@pytest.mark.parametrize(
    ("number", "token"), [(0.0, 1), (1 / 3 + 1e-9, 2), (np.nextafter(1.0, 0.0), 4)]
)
def test_no_draw_falls_on_a_dropped_token_or_off_the_end(number, token):
    """`number` is the random number from 0 to 1 that decides which token is drawn.

    top_k=3 keeps tokens 1, 2 and 4, each with a probability of 1/3.
    """
    logits = np.array([0.0, 5.0, 5.0, 0.0, 5.0, 0.0])
    rng = SimpleNamespace(random=lambda: number)
    assert Sampling(top_k=3).choose(logits, rng) == token


def test_no_draw_is_past_the_end_if_the_probabilities_add_up_to_less_than_1():
    largest = np.nextafter(1.0, 0.0)
    assert np.cumsum(np.full(10, 0.1))[-1] == largest
    rng = SimpleNamespace(random=lambda: largest)
    assert Sampling().choose(np.zeros(10), rng) == 9


@pytest.mark.parametrize(
    ("name", "accepted", "values"),
    [
        (
            "temperature",
            "a number of at least 0",
            [-1, float("nan"), float("inf"), None, "1", True],
        ),
        ("top_k", "a whole number of at least 0", [-1, 0.5, "1", True]),
        ("top_p", "a number from 0 to 1", [-0.1, 1.1]),
        ("greedy", "True or False", [1, "yes", None]),
        ("min_p", "a number from 0 to 1", [-0.1, 1.1]),
        ("repetition_penalty", "a number above 0", [0, -1, float("nan"), None]),
    ],
)
def test_a_value_out_of_range_is_refused(name, accepted, values):
    for value in values:
        with pytest.raises(ArgumentError) as caught:
            Sampling(**{name: value})
        assert str(caught.value) == f"{name} must be {accepted}, got {value!r}"


# transformers


@pytest.mark.parametrize(
    "settings",
    [
        {"repetition_penalty": 1.3},
        {"repetition_penalty": 0.7},
        {"min_p": 0.05},
        {"temperature": 2.0, "min_p": 0.05},
        {"top_k": 20, "top_p": 0.8, "min_p": 0.1},
        {"top_p": 0},
        {
            "repetition_penalty": 1.3,
            "temperature": 0.5,
            "top_k": 9,
            "top_p": 0.9,
            "min_p": 0.02,
        },
    ],
)
def test_transformers_keeps_the_same_tokens_with_the_same_probabilities(settings):
    transformers = pytest.importorskip("transformers", reason="needs pip install -e .[parity]")
    torch = pytest.importorskip("torch")
    processors = {  # in the order in which `generate` of transformers applies them
        "repetition_penalty": transformers.RepetitionPenaltyLogitsProcessor,
        "temperature": transformers.TemperatureLogitsWarper,
        "top_k": transformers.TopKLogitsWarper,
        "top_p": transformers.TopPLogitsWarper,
        "min_p": transformers.MinPLogitsWarper,
    }
    scores = torch.from_numpy(LOGITS)[None].clone()
    for name, processor in processors.items():
        if name in settings:
            scores = processor(settings[name])(torch.tensor([TEXT]), scores)
    expected = torch.softmax(scores.double(), dim=-1)[0].numpy()

    probabilities = Sampling(**settings).probabilities(LOGITS, TEXT)
    np.testing.assert_array_equal(probabilities > 0, expected > 0)
    np.testing.assert_allclose(probabilities, expected, atol=1e-6)


def test_greedy_text_with_a_penalty_is_that_of_transformers():
    transformers = pytest.importorskip("transformers", reason="needs pip install -e .[parity]")
    torch = pytest.importorskip("torch")
    theirs = transformers.GPT2LMHeadModel.from_pretrained("weights/shakespeare-tied")
    ids = tiedgpt.load_tokenizer("shakespeare-tied").encode("To be, or not to be")
    expected = theirs.generate(
        torch.tensor([ids]), max_new_tokens=40, do_sample=False, repetition_penalty=1.2
    )
    model = tiedgpt.load_model("shakespeare-tied")
    tokens = list(tiedgpt.generate(model, ids, 40, greedy=True, repetition_penalty=1.2))
    assert [*ids, *tokens] == expected[0].tolist()
