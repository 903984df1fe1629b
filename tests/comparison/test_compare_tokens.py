"""`compare_tokens`: the verdict on another GPT-2's greedy tokens, from the tokens alone."""

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from support.checks import refuses
from support.commands import assert_one_error_line
from support.comparing import MODELS, TWO_LAYERS
from support.other_gpt2 import OtherGPT2
from support.wrong_gpt2s import exact_gelu, is_later, softmax

import tiedgpt
from tiedgpt import GPT2, TiedGPTError, Tokenizer, compare_tokens
from tiedgpt.cli.compare import print_mistakes
from tiedgpt.comparison import tokens as judging
from tiedgpt.comparison.mistakes import MISTAKES, mistakes_in
from tiedgpt.comparison.places import Scope, Trial, trials_in_all_layers
from tiedgpt.comparison.token_files import Splitter, ids_of_text, read_greedy_file
from tiedgpt.comparison.tokens import (
    ALL_ZERO,
    DRAWN,
    QUANTISED,
    SLACK_OF,
    Search,
    Text,
    defect_notes,
    notes_of,
    refuse_drawn_tokens,
    rounding_of,
    sentence_of,
    to_precision,
)
from tiedgpt.errors import ArgumentError
from tiedgpt.gpt2.run import activation_shapes
from tiedgpt.gpt2.tokenizer import EOT
from tiedgpt.testing import TINY, random_model

SHAKESPEARE = MODELS["shakespeare"]
TOKENIZER = tiedgpt.load_tokenizer("shakespeare-tied")
PROMPT = TOKENIZER.encode("ROMEO:")
# Only two known mistakes are tried as the cause of a difference, for tests of something else.
FEW_TRIALS = ("--trials", "2")


def greedy(logits_of, prompt, n):
    """n tokens that a function from ids [T] to logits [T, V] appends, each time from the start."""
    ids = list(prompt)
    for _ in range(n):
        ids.append(int(np.argmax(np.asarray(logits_of(np.array(ids)))[-1])))
    return ids[len(prompt) :]


def greedy_of(model, prompt, n, **steps):
    """n tokens of an OtherGPT2 with these steps."""
    theirs = OtherGPT2(model, **steps)
    return greedy(lambda ids: theirs(ids)["logits"], prompt, n)


def some_prompt(model, seed, T=5):
    return np.random.default_rng(seed).integers(model.config.vocab_size, size=T).tolist()


@pytest.mark.parametrize("name", MODELS)
def test_our_own_tokens_are_identical(name):
    model = MODELS[name]
    prompt = some_prompt(model, seed=1)
    tokens = greedy(model, prompt, 20)
    report = compare_tokens(model, prompt, tokens, trials=0)
    assert report["verdict"] == "identical"
    assert report["sentence"] == "identical: the 20 tokens are those that this model takes"
    assert (report["given"], report["judged"], report["departures"]) == (20, 20, [])


# Right GPT-2s. None may be called a defect.


def one_after_the_other(x, weight, bias, name):
    """A linear layer whose sums go from the first product to the last, as in a loop in C."""
    out = np.zeros((len(x), weight.shape[1]), x.dtype)
    for k in range(len(weight)):
        out += x[:, k : k + 1] * weight[k]
    return out + bias


def from_the_last(x, weight, bias, name):
    return x[:, ::-1] @ weight[::-1] + bias


RIGHT = {
    "float32": [{}, {"linear": one_after_the_other}, {"linear": from_the_last}],
    "float16": [{"dtype": np.float16}],
}
RIGHT_MODELS = {**MODELS, "untied": tiedgpt.load_model("shakespeare-untied")}


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=SLOW) if name != "tiny" else name for name in RIGHT_MODELS],
)
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=SLOW)])
@pytest.mark.parametrize("precision", RIGHT)
def test_a_right_gpt2_in_numpy_is_no_defect(name, precision, seed):
    model = RIGHT_MODELS[name]
    for steps in RIGHT[precision]:
        prompt = some_prompt(model, seed)
        tokens = greedy_of(model, prompt, 25, **steps)
        report = compare_tokens(model, prompt, tokens, precision, trials=0)
        assert report["verdict"] != "defect", report["sentence"]


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT_MODELS)
@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_a_right_gpt2_in_torch_is_no_defect(name, precision):
    """In half precision; with autocast; with weights that are only stored so."""
    torch = pytest.importorskip("torch", reason="needs pip install -e .[parity]")
    pytest.importorskip("transformers", reason="needs pip install -e .[parity]")
    from support.torch_gpt2s import nano_gpt, transformers_gpt2

    model = RIGHT_MODELS[name]
    dtype = getattr(torch, precision)
    half = transformers_gpt2(model).to(dtype)
    nano = nano_gpt(model).eval().to(dtype)
    single = transformers_gpt2(model)
    stored = transformers_gpt2(model).to(dtype).float()

    def autocast(ids):
        with torch.autocast("cpu", dtype):
            return single(ids).logits

    programs = [
        lambda ids: half(ids).logits,
        nano,
        autocast,
        lambda ids: stored(ids).logits,
    ]
    verdicts = []
    for program in programs:
        for seed in range(3):
            prompt = some_prompt(model, seed)

            def logits(ids, program=program):
                with torch.no_grad():
                    return program(torch.as_tensor(ids)[None]).float()[0].numpy()

            tokens = greedy(logits, prompt, 30)
            report = compare_tokens(model, prompt, tokens, precision, trials=0)
            assert report["verdict"] != "defect", report["sentence"]
            verdicts.append(report["verdict"])
    if precision == "bfloat16" and name.startswith("tiny"):
        assert "tie-break" in verdicts, "rounding to bfloat16 moves these logits by one or more"


# A tie


def with_equal_tokens(model, first, second):
    """The model, whose token `second` has the vector of `first`: both have the same logit."""
    wte = model.W_E.copy()
    wte[second] = wte[first]
    return GPT2(model.config, {**model.parameters, "wte.weight": wte})


def test_a_tie_is_a_tie_break():
    prompt = some_prompt(TWO_LAYERS, seed=0)
    (best,) = greedy(TWO_LAYERS, prompt, 1)
    other = (best + 1) % TWO_LAYERS.config.vocab_size
    model = with_equal_tokens(TWO_LAYERS, best, other)
    one, two = sorted((best, other))
    assert greedy(model, prompt, 1) == [one], "argmax takes the first"
    report = compare_tokens(model, prompt, [two], trials=0)
    assert report["verdict"] == "tie-break"
    (departure,) = report["departures"]
    assert departure == {
        "place": 0,
        "token": two,
        "ours": one,
        "gap": 0.0,
        "rounding": departure["rounding"],
        "rank": 1,
        "is_tie_break": True,
    }
    assert 0 < departure["rounding"] < 1e-2


@pytest.mark.parametrize(
    ("tokens", "ties", "verdict"),
    [
        ([6, 5, 6], [True, True], "tie-break"),
        ([7, 6], [False, True], "defect"),
        ([6, 7], [True, False], "defect"),
        ([6, 7, 8, 6], [True, False, False, True], "defect"),
    ],
)
def test_one_departure_that_is_no_tie_is_a_defect(tokens, ties, verdict):
    """The model writes 5. Its 6 has the same logit."""
    model = with_equal_tokens(model_that_writes(5), 5, 6)
    report = compare_tokens(model, [1], tokens, trials=0)
    assert report["verdict"] == verdict
    departures = report["departures"]
    assert [departure["is_tie_break"] for departure in departures] == ties
    assert [departure["place"] for departure in departures] == [
        place for place, token in enumerate(tokens) if token != 5
    ]
    assert {departure["ours"] for departure in departures} == {5}
    for departure in departures:
        assert (departure["rank"] == 1) == departure["is_tie_break"]
    if verdict == "defect":
        assert report["sentence"].startswith(f"defect: tokens[{ties.index(False)}] is 7, ")


def test_the_progress_of_the_trials_is_told():
    calls = []
    report = compare_tokens(
        TWO_LAYERS, [1, 2], [3], trials=3, progress=lambda tried, of: calls.append((tried, of))
    )
    total = report["all_trials"]
    assert report["trials"] == 3
    assert total > 100
    assert calls == [(0, total), (1, total), (2, total)]


def test_equal_logits_are_a_tie():
    parameters = {name: 0 * array for name, array in TWO_LAYERS.parameters.items()}
    model = GPT2(TWO_LAYERS.config, parameters)
    report = compare_tokens(model, [1, 2], [3, 4], trials=0)
    assert report["verdict"] == "tie-break"
    assert [departure["gap"] for departure in report["departures"]] == [0, 0]


def test_a_gap_that_is_wider_than_rounding_is_a_defect():
    """The same model, with one number moved by more than rounding can do."""
    prompt = some_prompt(TWO_LAYERS, seed=0)
    (best,) = greedy(TWO_LAYERS, prompt, 1)
    other = (best + 1) % TWO_LAYERS.config.vocab_size
    model = with_equal_tokens(TWO_LAYERS, best, other)
    wte = model.W_E.copy()
    wte[other] *= 0.99
    model = GPT2(model.config, {**model.parameters, "wte.weight": wte})
    report = compare_tokens(model, prompt, [other], trials=0)
    assert report["verdict"] == "defect"
    (departure,) = report["departures"]
    logits = model.astype(np.float64)(prompt)[-1]
    assert departure["gap"] == pytest.approx(logits[best] - logits[other])
    assert departure["gap"] > departure["rounding"]
    assert departure["rank"] == 1 + (logits > logits[other]).sum()


def test_what_rounding_can_do_grows_with_the_precision():
    prompt = some_prompt(SHAKESPEARE, seed=0)
    tokens = [*greedy(SHAKESPEARE, prompt, 3), 5]
    gaps = []
    for precision in SLACK_OF:
        report = compare_tokens(SHAKESPEARE, prompt, tokens, precision, trials=0)
        gaps.append(report["departures"][-1]["rounding"])
    assert gaps[0] * 50 < gaps[1]
    assert gaps[1] * 4 < gaps[2]


# A defect, and its name


def other_tokens(model, n, **steps):
    """A prompt after which an OtherGPT2 with these steps writes other tokens, and these tokens."""
    for seed in range(20):
        prompt = some_prompt(model, seed)
        tokens = greedy_of(model, prompt, n, **steps)
        if tokens != greedy(model, prompt, n):
            return prompt, tokens
    raise AssertionError("the tokens are the same")


@pytest.mark.parametrize(
    ("steps", "sentence"),
    [
        ({"gelu": lambda x, layer: np.maximum(x, 0)}, "is relu"),
        pytest.param(
            {"scores": lambda q, k, layer, H: q @ k.transpose(0, 2, 1)},
            "scales the scores by 1",
            marks=SLOW,
        ),
        pytest.param(
            {"positions": lambda T: np.arange(T) + 1}, "counts positions from 1", marks=SLOW
        ),
        # These see later tokens, so that each token needs a pass of its own.
        pytest.param({"pattern": softmax}, "has no causal mask", marks=SLOW),
        pytest.param(
            {"pattern": lambda s: softmax(np.where(is_later(s, by=2), -np.inf, s))},
            "a token sees the next one",
            marks=SLOW,
        ),
    ],
)
def test_the_mistake_is_named(steps, sentence):
    prompt, tokens = other_tokens(TWO_LAYERS, 30, **steps)
    report = compare_tokens(TWO_LAYERS, prompt, tokens)
    assert report["verdict"] == "defect"
    assert any(sentence in line for line in report["mistakes"]), report
    assert QUANTISED not in report["notes"]


def test_a_mistake_that_sees_later_tokens_is_named():
    prompt, tokens = other_tokens(TWO_LAYERS, 3, pattern=softmax)
    report = compare_tokens(TWO_LAYERS, prompt, tokens)
    assert any("has no causal mask" in line for line in report["mistakes"]), report


@SLOW
def test_logits_of_nan_are_named():
    """A token that does not see itself: the first has no key. argmax of nan is the first token."""

    def does_not_see_itself(scores):
        with np.errstate(invalid="ignore"):
            return softmax(np.where(is_later(scores, by=0), -np.inf, scores))

    prompt = some_prompt(TWO_LAYERS, seed=3)
    tokens = greedy_of(TWO_LAYERS, prompt, 4, pattern=does_not_see_itself)
    assert tokens == [0, 0, 0, 0]
    report = compare_tokens(TWO_LAYERS, prompt, tokens)
    assert any("a token does not see itself" in line for line in report["mistakes"])
    assert ALL_ZERO in report["notes"]
    report = compare_tokens(TWO_LAYERS, prompt, [0, 1], trials=0)
    assert report["verdict"] == "defect"
    assert ALL_ZERO not in report["notes"]


def test_of_tokens_of_0_alone_a_mistake_is_printed_with_perhaps(capsys):
    """Zeros in place of logits give them, too."""
    mistakes = ["attn.0.pattern: yours has a mask", "attn.0.pattern: yours has no mask"]
    report = {"verdict": "defect", "mistakes": mistakes, "notes": [ALL_ZERO]}
    print_mistakes(report)
    assert "attn.0.pattern: perhaps yours has a mask" in capsys.readouterr().out
    print_mistakes({**report, "notes": []})
    assert "perhaps" not in capsys.readouterr().out


def cached(model, prompt, n, position):
    """n tokens, each in a step of its own, by a cache. position: from the number of the token."""
    ids = list(prompt)
    cache = model.new_cache()
    logits = model(ids, cache=cache)[-1]
    for _ in range(n):
        ids.append(int(logits.argmax()))
        wpe = model.parameters["wpe.weight"]
        own = position(len(ids) - 1, len(prompt))
        moved = {"embed": lambda x, own=own: x - wpe[cache.length] + wpe[own]}  # noqa: B023
        logits = model([ids[-1]], cache=cache, edit=moved)[-1]
    return ids[len(prompt) :]


@pytest.mark.parametrize(
    ("position", "sentence"),
    [
        pytest.param(
            lambda place, start: 0,
            "gives every token position 0 in the steps after the prompt",
            marks=SLOW,
        ),
        (lambda place, start: place - start, "counts positions from 0 again in the steps"),
        pytest.param(
            lambda place, start: place + 1,
            "counts positions one too high in the steps",
            marks=SLOW,
        ),
        pytest.param(
            lambda place, start: place - 1,
            "counts positions one too low in the steps",
            marks=SLOW,
        ),
    ],
)
def test_a_mistake_of_the_cache_is_named(position, sentence):
    prompt = some_prompt(TWO_LAYERS, seed=1)
    tokens = cached(TWO_LAYERS, prompt, 12, position)
    report = compare_tokens(TWO_LAYERS, prompt, tokens)
    assert report["verdict"] == "defect"
    assert any(sentence in line for line in report["mistakes"]), report


def test_the_right_steps_with_a_cache_are_identical():
    prompt = some_prompt(TWO_LAYERS, seed=1)
    tokens = cached(TWO_LAYERS, prompt, 12, lambda place, start: place)
    assert compare_tokens(TWO_LAYERS, prompt, tokens, trials=0)["verdict"] == "identical"


def test_a_defect_in_float32_may_be_a_tie_in_bfloat16():
    """It is said, so that a port in bfloat16 is not mended for nothing."""
    model = MODELS["tiny"]
    prompt = some_prompt(model, seed=0)
    logits = model(prompt)[-1]
    second = int(np.argsort(logits)[-2])
    gap = logits.max() - logits[second]
    report = compare_tokens(model, prompt, [second], trials=0)
    in_bfloat16 = compare_tokens(model, prompt, [second], "bfloat16", trials=0)
    assert (report["verdict"], in_bfloat16["verdict"]) == ("defect", "tie-break"), gap
    assert any("in bfloat16 this would be a tie-break" in note for note in report["notes"])
    worst = int(np.argmin(model([*prompt, second])[-1]))  # which is a tie in no precision
    report = compare_tokens(model, prompt, [second, worst], trials=0)
    assert len(report["departures"]) == 2
    assert not any("would be a tie-break" in note for note in report["notes"])


def test_of_the_precisions_in_which_a_defect_is_a_tie_the_first_is_named():
    """The two likeliest tokens have almost the same row of wte."""
    tiny = MODELS["tiny"]
    prompt = some_prompt(tiny, seed=0)
    best, second = np.argsort(tiny(prompt)[-1])[[-1, -2]]
    wte = tiny.parameters["wte.weight"].copy()
    wte[second] = wte[best] * np.float32(0.9997)
    model = GPT2(tiny.config, {**tiny.parameters, "wte.weight": wte})
    report = compare_tokens(model, prompt, [int(second)], trials=0)
    assert report["verdict"] == "defect"
    (note,) = (note for note in report["notes"] if "this would be a tie-break" in note)
    assert note.startswith("in float16 ")


def test_a_precision_that_cannot_hold_the_activations_makes_no_tie():
    parameters = {name: array * 3000 for name, array in TWO_LAYERS.parameters.items()}
    model = GPT2(TWO_LAYERS.config, parameters)
    for precision in ("float32", "bfloat16"):
        report = compare_tokens(model, [1, 2], [3], precision, trials=0)
        assert report["verdict"] == "defect"
        assert not [note for note in report["notes"] if "in float16" in note]
    text = Text.of(model, [1, 2], [3], "float32")
    notes = defect_notes(text, [some_departure(0, 0.0)], Search(["a"], tried=1, all=1))
    assert notes == ["in bfloat16 this would be a tie-break: say so if yours computes in it"]


def some_departure(place, gap, ours=1, is_tie_break=False):
    return {
        "place": place,
        "token": 2,
        "ours": ours,
        "gap": gap,
        "rounding": 0.5,
        "rank": 7,
        "is_tie_break": is_tie_break,
    }


def test_a_defect_is_a_tie_by_the_rounding_at_its_place():
    """This gap is closed in bfloat16 at the place where rounding goes farthest, and at no other."""
    text = Text.of(TWO_LAYERS, some_prompt(TWO_LAYERS, seed=0), [1, 2, 3, 4], "float16")
    roundings = rounding_of(text.model32, text.ids, text.activations, text.logits, "bfloat16")
    farthest = int(roundings.argmax())
    gap = np.sort(roundings)[-2:].mean()
    for place in range(4):
        notes = defect_notes(text, [some_departure(place, gap)], Search([], tried=0, all=0))
        assert any("in bfloat16 this would be" in note for note in notes) == (place == farthest)


def test_a_departure_is_of_the_first_defect_and_a_tie_of_the_widest_gap():
    config = replace(TWO_LAYERS.config, eos_token_id=9)
    text = Text.of(GPT2(config, TWO_LAYERS.parameters), [1, 2], [1, 2, 3, 4], "float32")
    ties = [some_departure(place, gap, is_tie_break=True) for place, gap in enumerate([1, 3, 2])]
    assert sentence_of("tie-break", text, ties) == (
        "tie-break: 3 of 4 tokens differ, by a gap that rounding to float32 can close; the widest "
        "is 3.0e+00 at tokens[1], where rounding can do 5.0e-01"
    )
    for first, second in ((9, 8), (8, 9)):
        departures = [
            some_departure(0, 0.1, ours=first, is_tie_break=True),
            some_departure(2, 5.0, ours=second),
        ]
        departures[1]["rank"] = 12
        assert sentence_of("defect", text, departures) == (
            f"defect: tokens[2] is 2, this model takes {second}; the gap is 5.0e+00, rounding to "
            "float32 can do 5.0e-01; 2 has rank 12"
        )
        notes = defect_notes(text, departures, Search([], tried=0, all=0))
        assert ("this model ends the text there, and yours goes on" in notes) == (second == 9)


def test_what_is_not_judged_is_said_first_whatever_the_verdict_is():
    text = replace(Text.of(TWO_LAYERS, [1, 2], [3, 4], "bfloat16"), given=3)
    departures = [some_departure(0, 5.0)]
    sentences = {
        "identical": "identical: the 2 tokens are those that this model takes",
        "tie-break": (
            "tie-break: 1 of 2 tokens differ, by a gap that rounding to bfloat16 can close; the "
            "widest is 5.0e+00 at tokens[0], where rounding can do 5.0e-01"
        ),
        "defect": (
            "defect: tokens[0] is 2, this model takes 1; the gap is 5.0e+00, rounding to bfloat16 "
            "can do 5.0e-01; 2 has rank 7"
        ),
    }
    for verdict, judged in sentences.items():
        sentence = sentence_of(verdict, text, departures)
        assert sentence == f"of 3 tokens the first 2 are judged; {judged}"
        for tried in (0, 5):
            first, *others = notes_of(verdict, text, departures, Search([], tried, all=5))
            assert first == (
                "tokens[2] and later are not judged: the context of 37 tokens is full, and "
                "programs go on in different ways"
            )
            assert others
    text = replace(text, given=2)
    assert sentence_of("identical", text, []) == sentences["identical"]
    (note,) = notes_of("identical", text, [], Search([], tried=0, all=5))
    assert note.startswith("no known mistake was planted: ")


def test_a_defect_is_noted_with_the_numbers_of_mistakes_that_were_planted_and_were_not():
    text = Text.of(TWO_LAYERS, [1, 2], [3, 4], "bfloat16")
    departures = [some_departure(0, 5.0)]
    assert notes_of("defect", text, departures, Search([], tried=0, all=1)) == [
        "of 0 known mistakes, planted in all layers, none gives these tokens: give the logits",
        "1 more were not planted: --trials 1 (in Python, trials=1)",
        QUANTISED,
    ]
    first, second, *_ = notes_of("defect", text, departures, Search(["a"], tried=1234, all=3468))
    assert first.startswith("of 1,234 known mistakes, ")
    assert second == "2,234 more were not planted: --trials 3468 (in Python, trials=3468)"


@pytest.mark.parametrize(
    ("precision", "wider"), [("float32", "float16"), ("float16", "bfloat16"), ("bfloat16", None)]
)
def test_a_defect_may_be_a_tie_in_a_precision_that_rounds_more_than_its_own(precision, wider):
    text = Text.of(TWO_LAYERS, [1, 2], [3, 4], precision)
    notes = defect_notes(text, [some_departure(1, 0.0)], Search(["a"], tried=1, all=1))
    expected = f"in {wider} this would be a tie-break: say so if yours computes in it"
    assert notes == ([] if wider is None else [expected])


TOKENS_OF_0 = [([0, 0], [ALL_ZERO]), ([0, 3], []), ([3, 0], []), ([3, 4], [])]


def test_tokens_that_are_all_0_are_noted():
    for tokens, note in TOKENS_OF_0:
        text = Text.of(TWO_LAYERS, [1, 2], tokens, "bfloat16")
        departures = [some_departure(0, 5.0)]
        assert defect_notes(text, departures, Search(["a"], tried=1, all=1)) == note
        assert defect_notes(text, departures, Search([], tried=1, all=1)) == [*note, QUANTISED]


def test_each_token_that_ends_a_text_is_known():
    ends = "this model ends the text there, and yours goes on"
    config = replace(TWO_LAYERS.config, eos_token_id=(8, 9))
    text = Text.of(GPT2(config, TWO_LAYERS.parameters), [1, 2], [3, 4], "bfloat16")
    for token in (7, 8, 9):
        notes = defect_notes(text, [some_departure(0, 5.0, ours=token)], Search(["a"], 1, 1))
        assert notes == ([ends] if token in (8, 9) else [])


@pytest.mark.parametrize(
    ("verdict", "found", "note"),
    [
        ("identical", [], "none gives these tokens"),
        ("identical", ["a"], "1 gives them, too; the logits tell"),
        ("tie-break", ["a", "b"], "2 give them, too; the logits tell"),
        ("defect", [], "none gives these tokens: give the logits"),
        ("defect", ["a"], "1 gives these tokens; the logits tell more"),
        ("defect", ["a", "b"], "2 give these tokens; the logits tell more"),
    ],
)
def test_how_many_mistakes_give_the_tokens_is_said(verdict, found, note):
    text = Text.of(TWO_LAYERS, [1, 2], [3, 4], "float32")
    departures = [some_departure(0, 5.0)] if verdict == "defect" else []
    search = Search(found, tried=3, all=5)
    first, second, *_ = notes_of(verdict, text, departures, search)
    cannot_tell = "these tokens cannot tell: " if found and verdict != "defect" else ""
    assert first == f"{cannot_tell}of 3 known mistakes, planted in all layers, {note}"
    assert second == "2 more were not planted: --trials 5 (in Python, trials=5)"
    all_planted = notes_of(verdict, text, departures, Search(found, tried=5, all=5))
    assert not any("more were not planted" in line for line in all_planted)


def test_in_half_precision_rounded_numbers_are_no_mistake():
    reports = {
        precision: compare_tokens(TWO_LAYERS, [1, 2], [3], precision, trials=0)
        for precision in SLACK_OF
    }
    rounded = {mistake.sentence for mistake in MISTAKES if "rounded to" in mistake.sentence}
    fewer = reports["float32"]["all_trials"] - reports["float16"]["all_trials"]
    names = [*activation_shapes(TWO_LAYERS.config), "logits"]
    trials = trials_in_all_layers(mistakes_in(TWO_LAYERS.config.n_layer), names)
    assert fewer == len({trial.line for trial in trials if "rounded to" in trial.sentence})
    assert fewer >= len(rounded) > 0
    assert reports["bfloat16"]["all_trials"] == reports["float16"]["all_trials"]
    assert [report["precision"] for report in reports.values()] == list(SLACK_OF)


def test_a_token_is_the_best_within_rounding():
    """Rounding grows with the logits, but is never less than that of the right ones.

    Whether logits are near each other is asked of float32's rounding.
    """
    tokens = [3, 7]
    text = Text.of(TWO_LAYERS, [1, 2], tokens, "bfloat16")
    for place, token in enumerate(tokens):
        for rounding, is_near in ((text.rounding32, True), (text.rounding, False)):
            moved = text.logits[place] + 0.9 * rounding[place]
            assert text.is_near(moved, text.logits[place], place) == is_near
        # Of large logits a hundred-thousandth is near.
        large = np.full_like(text.logits[place], 1e7)
        assert text.is_near(large * (1 + 0.9e-5), large, place)
        assert not text.is_near(large * (1 + 1.1e-5), large, place)
        for scale, grows in ((10, 10), (0.1, 1)):
            logits = text.logits[place] * scale
            for distance, is_best in ((0.9, True), (1.1, False)):
                logits[token] = np.delete(logits, token).max()
                logits[token] -= distance * grows * text.rounding[place]
                assert text.is_best(logits, place) == is_best
        logits[[token, token + 1]] = np.nan
        assert text.is_best(logits, place), "argmax takes the first nan"
        assert text.is_near(logits, logits, place)
        logits[token - 1] = np.nan
        assert not text.is_best(logits, place)


def changed_logits(place, start):
    """A trial that adds 1 to all logits of a place, and one that makes another token the best.

    A pass that ends before this place has right logits.
    """

    def add(at):
        logits = at.right.copy()
        logits[:, start + place :][:, :1] += 1
        return logits

    def another(at):
        logits = at.right.copy()
        logits[:, start + place :][:, :1] *= -1
        return logits

    return (
        Trial("logits", "adds 1", "", Scope.EVERYWHERE, {"logits": add}),
        Trial("logits", "has the other sign", "", Scope.EVERYWHERE, {"logits": another}),
    )


def test_a_mistake_gives_the_tokens_if_it_changes_any_logit_and_no_token():
    """At the first place, in the middle, and at the last."""
    prompt = [1, 2]
    text = Text.of(TWO_LAYERS, prompt, greedy(TWO_LAYERS, prompt, 3), "float32")
    nothing = Trial("logits", "is right", "", Scope.EVERYWHERE, {"logits": lambda at: at.right})
    assert not text.gives_their_tokens(nothing)
    for place in range(3):
        add, another = changed_logits(place, start=len(prompt) - 1)
        assert text.gives_their_tokens(add)
        assert not text.gives_their_tokens(another)
        if place == 2:  # no change before makes up for another token
            both = {"logits": lambda at, another=another: another.planted["logits"](at) + 1}
            assert not text.gives_their_tokens(replace(another, planted=both))
        # The logits of passes that end before each token, up to the first that is not theirs
        assert len(text.steps(add)) == 2
        assert len(text.steps(another)) == {0: 2, 1: 1, 2: 2}[place]


def test_a_mistake_that_sees_later_tokens_needs_a_pass_for_each():
    """Each logit but the last of a pass is wrong, because tokens come after it."""
    prompt = [1, 2]
    tokens = greedy(TWO_LAYERS, prompt, 3)
    lengths = []  # of the passes

    def wrong(at):
        lengths.append(at.right.shape[1])
        logits = at.right + np.float32(1)
        logits[:, :-1] *= -1
        return logits

    trial = Trial("logits", "sees later tokens", "", Scope.EVERYWHERE, {"logits": wrong})
    text = Text.of(TWO_LAYERS, prompt, tokens, "float32")
    assert text.gives_their_tokens(trial)
    V = TWO_LAYERS.config.vocab_size
    with_another_last_token = [*tokens[:-1], (tokens[-1] + 1) % V]
    text = Text.of(TWO_LAYERS, prompt, with_another_last_token, "float32")
    assert not text.gives_their_tokens(trial)
    # The first token is tried with the prompt alone. It excludes most mistakes.
    lengths.clear()
    with_another_first_token = [(tokens[0] + 1) % V, *tokens[1:]]
    text = Text.of(TWO_LAYERS, prompt, with_another_first_token, "float32")
    assert not text.gives_their_tokens(trial)
    assert lengths == [2]


# What tokens cannot tell


def test_mistakes_that_give_these_tokens_are_named_and_no_other():
    prompt = some_prompt(SHAKESPEARE, seed=0)
    tokens = greedy(SHAKESPEARE, prompt, 10)
    report = compare_tokens(SHAKESPEARE, prompt, tokens, trials=40)
    line = "mlp.0.post: yours is the exact gelu (erf), in every layer"
    with_gelu = greedy_of(SHAKESPEARE, prompt, 10, gelu=exact_gelu)
    assert (line in report["mistakes"]) == (with_gelu == tokens)
    with_relu = greedy_of(SHAKESPEARE, prompt, 10, gelu=lambda x, layer: np.maximum(x, 0))
    assert with_relu != tokens
    assert not any("is relu" in line for line in report["mistakes"])
    # What changes no logit is no mistake here.
    assert not any("is gelu_new, the approx" in line for line in report["mistakes"])
    assert not any("bias of the keys" in line for line in report["mistakes"])


def test_a_mistake_of_several_ways_is_one():
    """The array whose mean is subtracted is that of a text or of a batch: of one text the same."""
    prompt = some_prompt(TWO_LAYERS, seed=0)
    report = compare_tokens(TWO_LAYERS, prompt, greedy(TWO_LAYERS, prompt, 1))
    assert any("the mean of the whole array" in line for line in report["mistakes"])
    assert len(report["mistakes"]) == len(set(report["mistakes"]))


@pytest.mark.parametrize(
    "first", ["last", pytest.param("first", marks=SLOW), pytest.param("zero", marks=SLOW)]
)
def test_ids_that_are_shifted_by_one_are_one_mistake_whatever_comes_first(first):
    prompt = some_prompt(TWO_LAYERS, seed=0)
    token = {"last": prompt[-1], "first": prompt[0], "zero": 0}[first]
    tokens = greedy(TWO_LAYERS, [token, *prompt[:-1]], 1)
    found = compare_tokens(TWO_LAYERS, prompt, tokens)["mistakes"]
    shift = "has its ids shifted by one: it reads the token before"
    assert sum(shift in line for line in found) == 1


def test_nothing_is_said_to_differ_if_nothing_was_planted():
    prompt = some_prompt(TWO_LAYERS, seed=0)
    report = compare_tokens(TWO_LAYERS, prompt, greedy(TWO_LAYERS, prompt, 3), trials=0)
    assert report["trials"] == 0
    assert report["notes"] == [
        "no known mistake was planted: what these tokens cannot tell is not known"
    ]
    some = compare_tokens(TWO_LAYERS, prompt, greedy(TWO_LAYERS, prompt, 3), trials=5)
    assert any("more were not planted" in note for note in some["notes"])


# What is not judged


def test_tokens_after_the_context_are_not_judged():
    model = MODELS["tiny"]
    n_ctx = model.config.n_ctx
    prompt = some_prompt(model, seed=0)
    room = n_ctx - len(prompt) + 1
    tokens = [*greedy(model, prompt, room), 0, 0, 0]
    report = compare_tokens(model, prompt, tokens, trials=0)
    assert (report["given"], report["judged"]) == (room + 3, room)
    assert report["sentence"].startswith(f"of {room + 3} tokens the first {room} are judged; ident")
    assert report["notes"][0].startswith(f"tokens[{room}] and later are not judged: the context")
    wrong = [*tokens[: room - 1], (tokens[room - 1] + 1) % model.config.vocab_size]
    assert compare_tokens(model, prompt, wrong, trials=0)["verdict"] == "defect"


def test_the_temperatures_of_drawn_tokens():
    """From 0.6 to 1.2. The likeliest tokens and the probability must both be as in drawn tokens."""
    logits, N = np.array([2.0, 1.0, 0.0, -1.0]), 4000

    def refuse(shares):
        tokens = np.repeat(np.arange(4), np.round(N * np.array(shares)).astype(int))
        refuse_drawn_tokens(
            SimpleNamespace(logits=np.tile(logits, (len(tokens), 1)), tokens=tokens)
        )

    for temperature in ("0.6", "0.7", "0.8", "0.9", "1.0", "1.1", "1.2"):
        with pytest.raises(ArgumentError, match=f"drawn at temperature {temperature}: "):
            refuse(softmax(logits / float(temperature)))
    refuse(softmax(logits / 0.5))
    refuse(softmax(logits / 1.3))
    p = softmax(logits)
    refuse([p[0], 0, 0, 1 - p[0]])  # as many of the likeliest tokens
    mean = (p * logits).sum()
    refuse([(mean + 1) / 3, 0, 0, (2 - mean) / 3])  # as likely


# The probabilities of some tokens, how often each is among 100, and whether they look drawn
DRAWN_COUNTS = [
    # Of two tokens, by the number of the likelier one: 66.3 at temperature 0.6, 58.4 at 1.2
    ([0.6, 0.4], (49, 51), True),
    ([0.6, 0.4], (48, 52), False),
    ([0.6, 0.4], (75, 25), True),
    ([0.6, 0.4], (76, 24), False),
    # Of three tokens, by the probability alone
    ([0.7054, 0.2595, 0.0351], (65, 23, 12), True),
    ([0.7054, 0.2595, 0.0351], (65, 22, 13), False),
    # and by the number of the likeliest alone
    ([0.5065, 0.3072, 0.1863], (38, 45, 17), True),
    ([0.5065, 0.3072, 0.1863], (37, 46, 17), False),
]


def test_drawn_tokens_are_within_two_standard_deviations():
    for p, counts, is_refused in DRAWN_COUNTS:
        tokens = np.repeat(np.arange(len(counts)), counts)
        text = SimpleNamespace(logits=np.tile(np.log(p), (100, 1)), tokens=tokens)
        if is_refused:
            refuses("as in a text drawn", refuse_drawn_tokens, text, error=ArgumentError)
        else:
            refuse_drawn_tokens(text)


def test_four_departures_are_too_few_to_look_drawn():
    logits = np.array([0.4, 0.0])  # two tokens with the probabilities 0.6 and 0.4
    for departing, is_refused in ((4, False), (5, True)):
        tokens = [0] * 7 + [1] * departing
        text = SimpleNamespace(logits=np.tile(logits, (len(tokens), 1)), tokens=tokens)
        if is_refused:
            message = refuses(
                "5 of the 12 tokens are not the likeliest, as in a text drawn at temperature 0.6: ",
                refuse_drawn_tokens,
                text,
                error=ArgumentError,
            )
            assert message.endswith(
                f'0.6: {DRAWN}; if they are greedy, say so: "greedy": true in the file, '
                "greedy=True in Python"
            )
        else:
            refuse_drawn_tokens(text)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=SLOW) for seed in (1, 2, 3))])
def test_drawn_tokens_are_refused(seed):
    tokens = list(tiedgpt.generate(SHAKESPEARE, PROMPT, 40, seed=seed))
    with pytest.raises(TiedGPTError, match="as in a text drawn at temperature"):
        compare_tokens(SHAKESPEARE, PROMPT, tokens, trials=0)
    report = compare_tokens(SHAKESPEARE, PROMPT, tokens, greedy=True, trials=0)
    assert report["verdict"] == "defect"
    with pytest.raises(TiedGPTError, match="drawn tokens are not judged"):
        compare_tokens(SHAKESPEARE, PROMPT, tokens, greedy=False)


def test_tokens_that_look_drawn_may_be_those_of_a_known_mistake(monkeypatch):
    tokens = list(tiedgpt.generate(SHAKESPEARE, PROMPT, 40, seed=0))
    found = []
    monkeypatch.setattr(judging, "plant", lambda *arguments: Search(found, tried=1, all=1))
    with pytest.raises(TiedGPTError, match="as in a text drawn at temperature"):
        compare_tokens(SHAKESPEARE, PROMPT, tokens)
    found.append("mlp.0.post: yours is relu, in every layer")
    report = compare_tokens(SHAKESPEARE, PROMPT, tokens)
    assert (report["verdict"], report["mistakes"]) == ("defect", found)


@pytest.mark.parametrize(
    ("prompt", "tokens", "settings", "message"),
    [
        ([], [1], {}, "the prompt is empty"),
        (
            [1],
            [],
            {},
            r"the tokens must be one sequence of ids \[N\] with at least one, got shape \(0,\)$",
        ),
        ([1], [[1, 2]], {}, r"got shape \(1, 2\)$"),
        ([1], "my lord", {}, "got text: encode it first"),
        ([1], [1.5], {}, "ids must be whole numbers"),
        ([1], [5000], {}, "token id 5000 is outside the vocabulary of 211"),
        ([1], [2] * 50 + [211], {}, "token id 211 is outside the vocabulary of 211"),
        ([5000], [1], {}, "token id 5000 is outside"),
        ([0] * 38, [1], {}, "the input has 38 tokens, more than the model's context of 37"),
        ([1], [1], {"precision": "int8"}, "got 'int8'; quantised weights .* are not judged"),
        (
            [1],
            [1],
            {"precision": ["float32"]},
            r"^precision must be one of float32, float16, bfloat16, got \['float32'\]; quantised "
            r"weights \(int8, q4 and others\) are not judged, because their rounding is not known: "
            "give a model whose weights are rounded so, or the logits$",
        ),
        ([1], [1], {"greedy": "yes"}, "^greedy must be True or None, got 'yes'$"),
        (
            [1],
            [1],
            {"greedy": False},
            "^drawn tokens are not judged: each token that has a probability can be drawn, so no "
            "token is wrong; let your program take the likeliest token each time "
            r"\(temperature 0, no penalties\)$",
        ),
        ([1], [1], {"trials": -1}, "trials must be a whole number"),
    ],
)
def test_what_is_refused(prompt, tokens, settings, message):
    with pytest.raises(TiedGPTError, match=message):
        compare_tokens(MODELS["tiny"], prompt, tokens, **settings)


def test_a_text_that_goes_on_with_its_prompt_is_judged():
    model = model_that_writes(5)
    assert compare_tokens(model, [5, 5], [5, 5, 5], trials=0)["verdict"] == "identical"
    assert compare_tokens(model, [5, 5], [5, 5, 6], trials=0)["verdict"] == "defect"
    message = "the tokens begin with the prompt: give those after it, which your program appended"
    for prompt in ([5, 6], [6]):
        with pytest.raises(TiedGPTError, match=f"^{message}$"):
            compare_tokens(model, prompt, [*prompt, 5], trials=0)


def test_float16_that_overflows_is_refused():
    parameters = {name: array * 3000 for name, array in TWO_LAYERS.parameters.items()}
    model = GPT2(TWO_LAYERS.config, parameters)
    message = "float16 cannot hold the activations of this model on this text: they become infinite"
    with pytest.raises(TiedGPTError, match=f"^{message}$"):
        compare_tokens(model, [1, 2], [3], "float16")


def test_float16_that_overflows_at_the_last_place_alone_is_refused():
    """The vector of token 9 is too large. Without layers no other place has to do with it."""
    config = replace(TWO_LAYERS.config, n_layer=0).with_head("untied")
    parameters = dict(random_model(config).parameters)
    parameters["wte.weight"] = parameters["wte.weight"].copy()
    parameters["wte.weight"][9] *= np.float32(1e7)
    model = GPT2(config, parameters)
    text = Text.of(model, [1], [2, 3, 9, 4], "float32")
    rounding = rounding_of(text.model32, text.ids, text.activations, text.logits, "float16")
    assert np.isfinite(rounding).tolist() == [True, True, True, False]
    with pytest.raises(TiedGPTError, match="float16 cannot hold the activations"):
        Text.of(model, [1], [2, 3, 9, 4], "float16")
    # Nor is a gap at this place called a tie in float16. In bfloat16 it is one.
    notes = defect_notes(text, [some_departure(3, 0.0)], Search([], tried=0, all=0))
    assert notes[0].startswith("in bfloat16 this would be a tie-break")


# A text in place of ids


@cache
def model_that_writes(token, n_ctx=64):
    """A model of 260 tokens that writes this one after any text."""
    config = replace(TINY, vocab_size=260, n_ctx=n_ctx)
    parameters = dict(random_model(config).parameters)
    wte = parameters["wte.weight"].copy()
    parameters["wte.weight"] = wte
    parameters["ln_f.weight"] = np.zeros_like(parameters["ln_f.weight"])
    direction = np.ones(config.n_embd, np.float32)
    parameters["ln_f.bias"] = direction  # each logit is the sum of the token's row
    wte -= wte.mean(axis=1, keepdims=True)
    wte[token] += 1
    model = GPT2(config, parameters)
    assert greedy(model, [1], 3) == [token, token, token]
    return model


def test_white_space_is_looked_for_up_to_the_end_of_the_context():
    space, ab = 220, 256
    tokenizer = Tokenizer([("a", "b")])
    assert tokenizer.decode([space]) == " "
    model = model_that_writes(space, n_ctx=4)
    for prompt in ([1, 2, 3], [1, 2, 3, 4]):
        assert ids_of_text(model, tokenizer, prompt, "ab") == ([ab], [])


def test_a_prompt_of_padding_alone_begins_no_text():
    """Its tokens have no bytes, with which each text begins."""
    ab, padding = 256, 259
    tokenizer = Tokenizer([("a", "b")])
    assert ids_of_text(model_that_writes(64), tokenizer, [padding], "ab") == ([ab], [])


@pytest.mark.parametrize(("spaces", "is_refused"), [(1, True), (4, True), (5, False)])
def test_a_text_may_lack_four_tokens_of_white_space(spaces, is_refused):
    a, space = 64, 220

    class Written(Splitter):
        def best_after(self, ids):
            return ([space] * spaces + [a])[: len(ids) + 1]

    splitter = Written(model_that_writes(a), Tokenizer([]), prompt=[1], ids=[a, a])
    if is_refused:
        refuses("removed white space", splitter.refuse_a_stripped_text, error=ArgumentError)
    else:
        splitter.refuse_a_stripped_text()


@pytest.mark.parametrize(
    ("ours", "theirs", "shown"),
    [
        # Eight bytes are shown, of which the last one is the first byte of é.
        ([" ", "a"], "aaaaaaaé", "'aaaaaaa\ufffd', this model with ' a'"),
        (["\n", " ", "é"], "é", "'é', this model with '\\n \ufffd'"),
        # These do not lack the white space.
        ([" ", "a"], " a", None),
        (["a"], "a", None),
        # These are other texts.
        ([" ", "a"], "b", None),
        ([" ", "a "], "ab", None),
        (["\t", "\r", "\n", " "], "a", None),
    ],
)
def test_a_text_lacks_the_white_space_that_the_model_begins_with(ours, theirs, shown):
    """Our model writes these tokens. "a " is one, and that of é is its first byte."""
    tokenizer = Tokenizer([("a", "Ġ")])  # a vocabulary writes Ġ for a space
    written = [tokenizer.encode(text)[0] for text in ours]
    if ours[-1] == "a ":  # which encode would split
        written[-1] = 256

    class Written(Splitter):
        def best_after(self, ids):
            return written[: len(ids) + 1]

    splitter = Written(model_that_writes(64), tokenizer, [1], tokenizer.encode(theirs))
    if shown is None:
        splitter.refuse_a_stripped_text()
        return
    message = refuses(".", splitter.refuse_a_stripped_text, error=ArgumentError)
    assert message == (
        f"the text begins with {shown}: your program may have removed white space; give the text "
        "as it is, or ids"
    )


A, B, X, AA = 64, 65, 87, 256  # the ids of "a", "b", "x", and of the first merge


def read_as(place, ours, theirs):
    """The note on a text that our model writes with other tokens than the tokenizer."""
    return (
        f"the text at tokens[{place}] is read as {ours}, as this model writes it; the tokenizer "
        f"splits it into {theirs}"
    )


# The merges of a tokenizer, the token that our model writes, a text; its ids, and the notes
FOLLOWED = [
    (  # our model writes two tokens for one of the tokenizer
        [("a", "a")],
        A,
        "aaaaxaab",
        [A, A, A, A, X, A, A, B],
        [read_as(0, [A, A], [AA]), read_as(2, [A, A], [AA]), read_as(5, [A, A], [AA])],
    ),
    (  # "abc" is one token of the model, two of the tokenizer
        [("a", "b"), ("b", "c"), ("a", "bc")],
        258,
        "xabcabcx",
        [X, 258, 258, X],
        [read_as(1, [258], [256, 66]), read_as(2, [258], [256, 66])],
    ),
    (  # the model's last token goes on after the text
        [("a", "a")],
        AA,
        "xaaa",
        [X, AA, AA],
        [f"the text ends within tokens[2], {AA}"],
    ),
    (  # of two tokens of the model, the text ends within the second
        [("a", "a"), ("aa", "a")],
        AA,
        "xaaa",
        [X, AA, AA],
        [f"the text ends within tokens[2], {AA}"],
    ),
    # Our model writes another text.
    ([("a", "a")], A, "xb", [X, B], []),
    ([("a", "a")], B, "aab", [AA, B], []),
    ([("a", "b")], A, "ab", [256], []),  # after the a, our model writes another one
    ([("a", "b")], B, "ab", [256], []),
]


def test_a_text_is_followed_to_its_end():
    for merges, token, text, ids, notes in FOLLOWED:
        found = ids_of_text(model_that_writes(token), Tokenizer(merges), [1], text)
        assert found == (ids, notes)


def test_each_token_of_the_model_follows_those_before_it():
    """Our model writes "ab" as "a" and "b"; where the text ends, "a" and "bc"."""
    tokenizer = Tokenizer([("a", "b"), ("b", "c")])
    ab, bc = 256, 257
    for last, is_cut in ((B, False), (bc, True)):

        class Written(Splitter):
            def best_after(self, ids, last=last):
                return [X, A, B, A, last, X][: len(ids) + 1]

        splitter = Written(model_that_writes(A), tokenizer, prompt=[1], ids=[X, ab, ab])
        first, second = splitter.follow_our_model()
        assert splitter.ids == [X, A, B, A, last]
        assert first.startswith(f"the text at tokens[1] is read as [{A}, {B}], as this model")
        if is_cut:
            assert second == f"the text ends within tokens[4], {bc}"
        else:
            assert second.startswith(f"the text at tokens[3] is read as [{A}, {B}], as this model")
            assert second.endswith(f"the tokenizer splits it into [{ab}]")


def test_a_text_longer_than_the_context_is_followed_to_its_end():
    """The context of four has room for three tokens after two, and predicts the last of them."""
    tokenizer = Tokenizer([("a", "a")])
    model = model_that_writes(A, n_ctx=4)
    ids, notes = ids_of_text(model, tokenizer, [1, 2], "xaaaaaaaa")
    assert ids == [X, A, A, AA, AA, AA]
    assert len(notes) == 1
    assert ids_of_text(model, tokenizer, [1, 2], "xxxxaa") == ([X, X, X, X, AA], [])
    # The last token that can be predicted is followed, too.
    tokenizer = Tokenizer([("a", "b"), ("b", "c"), ("a", "bc")])
    abc = 258
    ids, notes = ids_of_text(model_that_writes(abc, n_ctx=4), tokenizer, [1, 2], "xxabc")
    assert (ids, len(notes)) == ([X, X, abc], 1)


NO_PROMPTS = [
    ([], "the prompt is empty"),
    ([260], "token id 260 is outside the vocabulary of 260"),
    ([1] * 5, "the input has 5 tokens, more than the model's context of 4"),
]


def test_a_text_after_a_prompt_that_the_model_cannot_read_is_refused():
    for prompt, message in NO_PROMPTS:
        model = model_that_writes(A, n_ctx=4)
        with pytest.raises(TiedGPTError, match=message):
            ids_of_text(model, Tokenizer([]), prompt, "a")


def test_a_special_token_in_a_text_is_read_as_one():
    tokenizer = Tokenizer([("a", "b")], {EOT: 257})
    assert ids_of_text(model_that_writes(5), tokenizer, [1], f"ab{EOT}") == ([256, 257], [])


def test_a_text_is_not_followed_past_the_context():
    """The full context predicts one token, so our model's two for "aa" are not known."""
    a, aa = 64, 256
    tokenizer = Tokenizer([("a", "a")])
    model = model_that_writes(a, n_ctx=4)
    assert ids_of_text(model, tokenizer, [1, 2, 3], "aa")[0] == [a, a]
    assert ids_of_text(model, tokenizer, [1, 2, 3, 4], "aa") == ([aa], [])


def test_a_text_beside_a_token_that_pads_the_vocabulary_is_judged():
    """Our model writes a token without a text."""
    tokenizer = Tokenizer([("a", "b")])
    ab, padding = 256, 259
    assert padding not in tokenizer.tokens
    assert ids_of_text(model_that_writes(padding), tokenizer, [1], "ab") == ([ab], [])


def test_a_text_that_ends_within_a_token_is_read():
    tokens = greedy(SHAKESPEARE, PROMPT, 12)
    while len(TOKENIZER.decode(tokens[-1:])) < 4:
        tokens.pop()
    text = TOKENIZER.decode(tokens)
    ids, notes = ids_of_text(SHAKESPEARE, TOKENIZER, PROMPT, text[:-1])
    assert ids == tokens
    assert notes == [f"the text ends within tokens[{len(tokens) - 1}], {tokens[-1]}"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "the text is empty: there is nothing to judge"),
        ("\ufffd\ufffd", "the text is empty: there is nothing to judge"),
        (
            "a\ufffdb",
            "the text has U+FFFD in it, which stands for bytes that are no character: give ids",
        ),
        (
            "I'll",
            "the text begins with \"I'll\", this model with '\\nI': your program may have removed "
            "white space; give the text as it is, or ids",
        ),
        (
            "ROMEO:\nI'll",
            "the text begins with the prompt: give what comes after it, which your program "
            "appended",
        ),
    ],
)
def test_a_text_that_cannot_be_the_continuation_is_refused(text, message):
    arguments = SHAKESPEARE, TOKENIZER, PROMPT, text
    assert refuses(".", ids_of_text, *arguments, error=ArgumentError) == message


def test_a_text_without_its_white_space_is_refused_with_both_beginnings():
    """Of a longer text the first eight bytes are shown."""
    ours = TOKENIZER.decode(greedy(SHAKESPEARE, PROMPT, 9))
    stripped = ours.lstrip()
    assert len(ours) > len(stripped) > 9
    with pytest.raises(TiedGPTError) as caught:
        ids_of_text(SHAKESPEARE, TOKENIZER, PROMPT, stripped)
    assert f"the text begins with {stripped[:8]!r}, this model with '\\n" in str(caught.value)


def test_a_text_with_another_first_word_is_judged():
    """Our model begins with the end of a line. That is no white space that this text lacks."""
    ids, notes = ids_of_text(SHAKESPEARE, TOKENIZER, PROMPT, "What")
    assert (ids, notes) == (TOKENIZER.encode("What"), [])


# The command


def write(tmp_path, document):
    path = tmp_path / "mine.json"
    path.write_text(document if isinstance(document, str) else json.dumps(document))
    return str(path)


def command(path, *flags):
    return "compare", "-q", "-m", "shakespeare-tied", "--tokens", path, *flags


def test_what_generate_prints_is_judged(run, tmp_path):
    arguments = ("generate", "-m", "shakespeare-tied", "--greedy", "-n", "9", "--json", "ROMEO:")
    _, out, _ = run(*arguments)
    code, report, err = run(*command(write(tmp_path, out), "--trials", "40"))
    assert (code, err) == (0, "")
    assert report.startswith("identical: the 9 tokens are those that this model takes\n")
    assert "these tokens cannot tell: " in report
    heading = "yours may be right, or make one of these mistakes:\n  mlp.0.post: is "
    assert heading in report
    assert "yours is" not in report
    assert "yours has" not in report
    code, out, _ = run(*command(write(tmp_path, out), "--json", *FEW_TRIALS))
    assert code == 0
    assert json.loads(out)["verdict"] == "identical"


def test_a_text_with_a_wrong_word_is_a_defect(run, tmp_path):
    text = TOKENIZER.decode(greedy(SHAKESPEARE, PROMPT, 9)).replace("tell", "kill")
    path = write(tmp_path, {"prompt": "ROMEO:", "text": text})
    code, out, _ = run(*command(path, *FEW_TRIALS))
    assert code == 1
    assert "defect: tokens[3] is " in out
    code, out, _ = run(*command(path, "--json", *FEW_TRIALS))
    assert code == 1
    report = json.loads(out)
    assert report["verdict"] == "defect"
    assert report["departures"][0]["ours_text"] == " tell"


@SLOW
def test_mistakes_that_give_the_tokens_are_alternatives(run, tmp_path):
    """relu gives other tokens, and so do others: it is one of them."""
    prompt, tokens = other_tokens(SHAKESPEARE, 1, gelu=lambda x, layer: np.maximum(x, 0))
    path = write(tmp_path, {"prompt_ids": prompt, "ids": tokens})
    code, out, _ = run(*command(path, "--trials", "60"))
    assert code == 1
    found = [line for line in out.splitlines() if line.startswith("  ") and ": " in line]
    assert len(found) > 1, out
    assert ": yours " in found[0]
    assert all(": or yours " in line for line in found[1:]), out
    assert "may be right" not in out


def test_a_text_beside_ids_is_said_to_be_unread(run, tmp_path):
    ids = greedy(SHAKESPEARE, PROMPT, 9)
    given = {"prompt_ids": PROMPT, "prompt": "another", "ids": ids, "text": "another"}
    code, out, _ = run(*command(write(tmp_path, given), *FEW_TRIALS))
    assert code == 0
    assert "'prompt' is not looked at: its ids are\n'text' is not looked at: its ids are\n" in out
    alone = {"prompt_ids": PROMPT, "ids": ids}
    _, out, _ = run(*command(write(tmp_path, alone), *FEW_TRIALS))
    assert "not looked at" not in out


def test_a_tie_break_has_a_code_of_its_own(run, tmp_path):
    second = int(np.argsort(SHAKESPEARE(PROMPT)[-1])[-2])
    path = write(tmp_path, {"prompt_ids": PROMPT, "ids": [second]})
    assert run(*command(path, *FEW_TRIALS))[0] == 1
    wte = SHAKESPEARE.W_E.copy()
    best = int(np.argmax(SHAKESPEARE(PROMPT)[-1]))
    wte[second] = wte[best]
    model = GPT2(SHAKESPEARE.config, {**SHAKESPEARE.parameters, "wte.weight": wte})
    tiedgpt.save_model(model, TOKENIZER, tmp_path / "tie")
    larger = max(best, second)
    path = write(tmp_path, {"prompt_ids": PROMPT, "ids": [larger]})
    tie = str(tmp_path / "tie")
    code, out, _ = run("compare", "-m", tie, "--tokens", path, *FEW_TRIALS)
    assert code == 3
    assert "tie-break: 1 of 1 token differ" in out


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("{", "is not JSON"),
        ("[1]", "expected {"),
        ('{"prompt": "a", "prompt": "b"}', "is in it twice"),
        ({}, "neither prompt_ids nor prompt"),
        ({"prompt": "a"}, "neither ids nor text"),
        ({"prompt": 1, "ids": [1]}, "prompt must be a text"),
        ({"prompt": "a", "ids": [True]}, "ids must be a list of token ids"),
        ({"prompt": "a", "ids": "bc"}, "ids must be a list of token ids"),
        ({"prompt": "a", "samples": []}, "expected one sample"),
        ({"prompt": "a", "ids": [1], "temperature": 0.7}, "has temperature 0.7: drawn tokens"),
        ({"prompt": "a", "ids": [1], "temperature": 1}, "has temperature 1: drawn tokens"),
        ({"prompt": "a", "ids": [1], "do_sample": True}, "drawn tokens are not judged"),
        ({"prompt": "a", "ids": []}, "with at least one"),
        ({"prompt": "", "ids": [1]}, "the prompt is empty"),
        ({"prompt": "a", "text": ""}, "the text is empty"),
    ],
)
def test_a_wrong_file_is_refused(document, message, run, tmp_path):
    assert_one_error_line(run(*command(write(tmp_path, document))), message)


SETTINGS = {  # of a program -> the values with which it draws no token, and others
    "greedy": ([True, 1], [False, None]),
    "do_sample": ([False], [True, None]),
    "temperature": ([0, 0.0, None], [1, 0.7]),
    "repetition_penalty": ([1, 1.0, None], [1.1]),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_tokens_are_greedy_by_each_setting_of_their_file(tmp_path, name):
    greedy_values, others = SETTINGS[name]
    for value in greedy_values:
        file = read_greedy_file(Path(write(tmp_path, {"prompt": "a", "ids": [1], name: value})))
        assert (file.prompt, file.continuation) == ("a", [1])
        assert file.greedy is (True if name == "greedy" else None)
    for value in others:
        path = Path(write(tmp_path, {"prompt": "a", "ids": [1], name: value}))
        message = refuses("drawn", read_greedy_file, path, error=ArgumentError)
        assert message == f"{path} has {name} {value}: {DRAWN}"


EXPECTED = '{"prompt": TEXT or "prompt_ids": [IDS], "text": TEXT or "ids": [IDS]}'
ONE_SAMPLE = 'expected one sample, {"samples": [{"ids": [IDS]}]}, got'


WRONG_FILES = [
    ({}, f" has neither prompt_ids nor prompt: expected {EXPECTED}"),
    ({"prompt": "a"}, f" has neither ids nor text: expected {EXPECTED}"),
    ({"ids": [1]}, f" has neither prompt_ids nor prompt: expected {EXPECTED}"),
    ({"prompt": [1], "ids": [1]}, ": prompt must be a text, got [1]"),
    (
        {"prompt_ids": "a", "prompt": "a", "ids": [1]},
        ": prompt_ids must be a list of token ids, got 'a'",
    ),
    (
        {"prompt_ids": [1, True], "ids": [1]},
        ": prompt_ids must be a list of token ids, got [1, True]",
    ),
    ({"prompt": "a", "ids": [1, 2.0]}, ": ids must be a list of token ids, got [1, 2.0]"),
    ({"prompt": "a", "ids": [None, 1]}, ": ids must be a list of token ids, got [None, 1]"),
    ({"prompt": "a", "ids": None}, ": ids must be a list of token ids, got None"),
    ({"prompt": "a", "text": None}, ": text must be a text, got None"),
    ({"prompt": "a", "samples": []}, f": {ONE_SAMPLE} []"),
    ({"prompt": "a", "samples": {"ids": [1]}}, f": {ONE_SAMPLE} {{'ids': [1]}}"),
    ({"prompt": "a", "samples": [{"ids": [1]}] * 2}, f": {ONE_SAMPLE} {[{'ids': [1]}] * 2}"),
    ({"prompt": "a", "samples": [[1]]}, f": {ONE_SAMPLE} [[1]]"),
]


def test_a_wrong_file_is_named_with_what_is_wrong(tmp_path):
    for document, message in WRONG_FILES:
        path = Path(write(tmp_path, document))
        assert refuses(".", read_greedy_file, path, error=ArgumentError) == f"{path}{message}"


FILES = [
    ({"prompt": "", "text": ""}, ("", "", None, [])),
    ({"prompt_ids": [], "ids": []}, ([], [], None, [])),
    ({"prompt_ids": [1], "prompt": "a", "text": "b"}, ([1], "b", None, ["prompt"])),
    ({"prompt": "a", "text": "b", "ids": [2]}, ("a", [2], None, ["text"])),
    (
        {"prompt_ids": [1], "prompt": "a", "text": "b", "ids": [2]},
        ([1], [2], None, ["prompt", "text"]),
    ),
    (
        {"prompt": "a", "temperature": 0, "samples": [{"text": "b", "ids": [2]}]},
        ("a", [2], None, ["text"]),
    ),
    (
        {"prompt": "a", "greedy": True, "samples": [{"text": "b", "temperature": None}]},
        ("a", "b", True, []),
    ),
]


def test_ids_of_a_file_come_before_its_text(tmp_path):
    for document, expected in FILES:
        file = read_greedy_file(Path(write(tmp_path, document)))
        assert (file.prompt, file.continuation, file.greedy, file.unread) == expected


def test_a_sample_comes_before_what_is_beside_the_samples(tmp_path):
    document = {"prompt": "a", "ids": [1], "samples": [{"prompt": "b", "ids": [2]}]}
    file = read_greedy_file(Path(write(tmp_path, document)))
    assert (file.prompt, file.continuation) == ("b", [2])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "expected one of FILE, --tokens FILE and --vectors FILE"),
        (("a.npz", "--tokens", "b.json"), "expected one of FILE, --tokens FILE and --vectors FILE"),
        (("a.npz", "--precision", "bfloat16"), "--precision goes with --tokens"),
        (("--tokens", "no-such.json"), "no-such.json: No such file"),
        (("--tokens", ""), "'' is not the name of a file"),
        (("--vectors", ""), "'' is not the name of a file"),
    ],
)
def test_wrong_arguments_are_refused(arguments, message, run):
    assert_one_error_line(run("compare", "-m", "shakespeare-tied", *arguments), message)


def test_a_text_that_cannot_be_read_is_refused_with_the_reason():
    with pytest.raises(TiedGPTError) as reason:
        TOKENIZER.encode("\ud800")
    arguments = SHAKESPEARE, TOKENIZER, PROMPT, "\ud800"
    message = refuses(".", ids_of_text, *arguments, error=ArgumentError)
    assert message == f"the text cannot be read: {reason.value}; give ids"


def test_a_text_that_ends_within_a_character():
    text = TOKENIZER.decode(greedy(SHAKESPEARE, PROMPT, 4))
    ids, notes = ids_of_text(SHAKESPEARE, TOKENIZER, PROMPT, text)
    cut_ids, cut_notes = ids_of_text(SHAKESPEARE, TOKENIZER, PROMPT, text + "\ufffd")
    assert cut_ids == ids
    assert cut_notes == ["the text ends within a character, which is not judged", *notes]
    # Programs show one for each byte.
    twice = ids_of_text(SHAKESPEARE, TOKENIZER, PROMPT, text + 2 * "\ufffd")
    assert twice == (cut_ids, cut_notes)


def test_a_text_needs_a_tokenizer():
    message = "the model has no tokenizer to read a text with: give ids"
    with pytest.raises(TiedGPTError, match=f"^{message}$"):
        ids_of_text(SHAKESPEARE, None, PROMPT, "a")


@pytest.mark.parametrize("precision", SLACK_OF)
def test_numbers_are_rounded_to_the_precision_that_is_said(precision):
    x = np.array([1 / 3, 70_000, -1e-7], np.float32)
    rounded = {
        "float32": x,
        "float16": np.array([0.33325195, np.inf, -1.1920929e-07], np.float32),
        "bfloat16": np.array([0.33398438, 70_144, -1.0011718e-07], np.float32),
    }
    np.testing.assert_allclose(to_precision(x, precision), rounded[precision], rtol=1e-6)
    assert to_precision(x, precision).dtype == np.float32


def float32_tape(model, ids, edit=None):
    tape = {}
    model(ids, tape=tape, edit=edit)
    return tape


@pytest.mark.parametrize(("precision", "slack"), [("float32", 16), ("float16", 3), ("bfloat16", 3)])
def test_how_far_rounding_goes_is_told_by_our_model_in_that_precision(precision, slack):
    """The largest error of a logit's distance from the best one, at each place.

    In half precision weights are rounded, or activations, or both. At half of the places, or more,
    rounding goes as far as at the median one.
    """

    def half(x):
        return to_precision(x, precision)

    model = TWO_LAYERS
    ids = np.random.default_rng(4).integers(model.config.vocab_size, size=(1, 9))
    exact = model.astype(np.float64)(ids)[0]
    right = float32_tape(model, ids)
    ways = [right["logits"][0]]
    if precision != "float32":
        rounded = GPT2(model.config, {name: half(x) for name, x in model.parameters.items()})
        edit = {name: half for name in right if name != "logits"}
        ways.append(rounded(ids)[0])
        ways += [half(each(ids, edit=edit)[0]) for each in (model, rounded)]
    largest = []
    for place, logits in enumerate(exact):
        best = int(np.argmax(logits))
        errors = [way[place] - logits for way in ways]
        largest.append(max(np.abs(error - error[best]).max() for error in errors))
    expected = slack * np.maximum(largest, np.median(largest))
    found = rounding_of(model, ids, right, exact, precision)
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_rounding_is_at_least_that_of_the_largest_logit_of_its_place():
    """Our float32 may be exact by chance."""
    logits = np.outer([1.0, 100.0, 10.0], np.arange(1.0, 6.0))
    found = rounding_of(TWO_LAYERS, [[1, 2, 3]], {"logits": logits[None]}, logits, "float32")
    np.testing.assert_allclose(found, 16 * 2.0**-23 * np.array([5.0, 500.0, 50.0]))


def test_what_is_no_model_is_refused():
    with pytest.raises(TiedGPTError, match="the model must be a GPT2, got 'gpt2'"):
        compare_tokens("gpt2", PROMPT, [1])
