"""`compare` names each known mistake, and where it begins.

Each row of mistakes.py is planted in our own model, and each sentence has a wrong GPT-2 that is
independent of ours.
"""

import re
from dataclasses import replace

import numpy as np
import pytest
from support.comparing import MODELS, TWO_LAYERS, some_ids, with_mistake
from support.models import SMALL
from support.other_gpt2 import OtherGPT2, is_later, softmax
from support.wrong_gpt2s import (
    FOLDED,
    UNEXPLAINED,
    WRONG_GPT2S,
    all_of,
    attention_between_heads,
    bfloat16,
    float16,
    matrices_of,
    of_other_layer,
)

from tiedgpt import GPT2, compare
from tiedgpt.comparison.mistakes import MISTAKES, end_of_text, mistakes_in, rounded
from tiedgpt.comparison.places import Place
from tiedgpt.testing import TINY, random_model

SLOW = pytest.mark.slow

# These "mistakes" change nothing in a tied GPT-2, which has the first four properties. The bias of
# the keys shifts all scores of a query equally, which changes no softmax.
RIGHT = [
    "is gelu_new, the approximation with tanh",
    "has a layer norm with epsilon 1e-05",
    "scales the scores by 1 / sqrt(n_embd / n_head)",
    "is the tied head, wte",
]
RIGHT_LOGITS = [*RIGHT, "lacks the bias of the keys"]
# A model in which they are mistakes.
NO_GPT2 = random_model(
    replace(
        TWO_LAYERS.config,
        activation_function="gelu",
        layer_norm_epsilon=1e-4,
        scale_attn_weights=False,
        tied=False,
    )
)


@pytest.mark.parametrize(
    "mistake",
    [
        mistake if n % 12 == 0 else pytest.param(mistake, marks=SLOW)
        for n, mistake in enumerate(mistakes_in(n_layer=2))
    ],
    ids=lambda mistake: mistake.sentence,
)
def test_a_planted_mistake_is_named(mistake):
    model = NO_GPT2 if mistake.sentence in RIGHT else TWO_LAYERS
    ids = some_ids(model, B=2, T=9)
    report = compare(model, with_mistake(model, ids, mistake), ids)
    diagnosis = report.diagnosis[-1]
    place, sentence = diagnosis.split(": yours ", maxsplit=1)
    assert sentence.startswith(mistake.sentence), str(report)
    assert place == report.first.name
    assert not report.note or report.note == mistake.note


def make(wrong_gpt2, config=TWO_LAYERS.config):
    """A model, and the wrong GPT-2 with its parameters."""
    model = random_model(replace(config, **wrong_gpt2.config))
    return model, OtherGPT2(model, **wrong_gpt2.steps)


def id_of(wrong_gpt2):
    return wrong_gpt2.diagnosis[-1]


@pytest.mark.parametrize(
    "wrong_gpt2",
    [
        case if n % 8 == 0 else pytest.param(case, marks=SLOW)
        for n, case in enumerate(WRONG_GPT2S + UNEXPLAINED)
    ],
    ids=id_of,
)
def test_a_wrong_gpt2_is_diagnosed(wrong_gpt2):
    model, theirs = make(wrong_gpt2)
    report = compare(model, theirs, some_ids(model, B=2, T=9))
    assert report.diagnosis == wrong_gpt2.diagnosis, str(report)
    assert "differs then, too" not in report.note, "the mistake explains all differences"


def test_each_sentence_has_a_wrong_gpt2():
    diagnoses = [wrong_gpt2.diagnosis[-1] for wrong_gpt2 in WRONG_GPT2S]
    for mistake in MISTAKES:
        assert any(mistake.sentence in diagnosis for diagnosis in diagnoses), mistake.sentence
    sentences = [mistake.sentence for mistake in mistakes_in(n_layer=2)]
    for diagnosis in diagnoses:
        assert any(sentence in diagnosis for sentence in sentences), diagnosis


# From the logits alone, the place where a mistake begins, and how far it goes, may be wrong.


def assert_named_from_logits(model, theirs, wrong_gpt2):
    ids = some_ids(model, B=2, T=9)
    report = compare(model, theirs(ids)["logits"].astype(np.float32), ids)
    _, sentence = wrong_gpt2.diagnosis[-1].split(": yours ", maxsplit=1)
    sentence = sentence.removesuffix(", in every layer").removesuffix(", everywhere")
    assert any(sentence in line for line in report.diagnosis), str(report)


CHANGE_LOGITS = [case for case in WRONG_GPT2S if "the bias of the keys" not in id_of(case)]


@pytest.mark.parametrize(
    "wrong_gpt2",
    [
        case if n % 60 == 0 else pytest.param(case, marks=SLOW)
        for n, case in enumerate(CHANGE_LOGITS)
    ],
    ids=id_of,
)
def test_a_wrong_gpt2_is_diagnosed_from_logits_alone(wrong_gpt2):
    model, theirs = make(wrong_gpt2)
    assert_named_from_logits(model, theirs, wrong_gpt2)


# The steps of these fit a model of any sizes.
FOR_ANY_MODEL = [
    case
    for case in CHANGE_LOGITS
    if not case.config
    and "tokens" not in case.steps  # the vocabulary
    and case.steps.get("weights") is not of_other_layer  # of two
    and len(case.diagnosis) == 1
]


def every(step, cases):
    """The cases, of which those between the sample are marked `whole`."""
    return [
        case if n % step == 0 else pytest.param(case, marks=pytest.mark.whole)
        for n, case in enumerate(cases)
    ]


@pytest.mark.slow
@pytest.mark.parametrize("wrong_gpt2", every(3, FOR_ANY_MODEL), ids=id_of)
def test_a_wrong_shakespeare_is_diagnosed(wrong_gpt2):
    model = MODELS["shakespeare"]
    report = compare(model, OtherGPT2(model, **wrong_gpt2.steps), some_ids(model, B=1, T=13))
    assert report.diagnosis == wrong_gpt2.diagnosis, str(report)


@pytest.mark.slow
@pytest.mark.parametrize("wrong_gpt2", every(8, FOR_ANY_MODEL), ids=id_of)
def test_a_wrong_shakespeare_is_diagnosed_from_logits_alone(wrong_gpt2):
    model = MODELS["shakespeare"]
    assert_named_from_logits(model, OtherGPT2(model, **wrong_gpt2.steps), wrong_gpt2)


@pytest.mark.parametrize("name", ["final", "logits"])
def test_the_layer_of_what_comes_after_all_layers_is_the_last_one(name):
    place = Place(name, right=None, model=TWO_LAYERS, ids=None, tape={"resid_post.1": 3})
    assert place.layer == 1
    assert place["resid_post.N"] == 3
    assert place["h.N.ln_2.bias"] is TWO_LAYERS.parameters["h.1.ln_2.bias"]


# What mistakes compute, beside other GPT-2s of three layers, and in a batch


def rows_of(sentence):
    """The known mistakes in a model of three layers that have this sentence."""
    return [row for row in mistakes_in(n_layer=3) if row.sentence == sentence]


JOIN = {"join": lambda heads: heads.reshape(heads.shape[1], -1)}


def attention_between_later_heads(q, k, v, pattern):
    """The heads [H, T, K] if each head of a token sees itself and the heads before it."""
    heads = []
    for t in range(q.shape[1]):
        scores = q[:, t] @ k[:, t].T / np.sqrt(q.shape[-1])  # [H, H]
        heads.append(softmax(np.where(is_later(scores), -np.inf, scores)) @ v[:, t])
    return np.stack(heads, axis=1)


@pytest.mark.parametrize(
    ("mistake", "steps"),
    [
        (
            rows_of("runs the blocks in reverse order")[0],
            {"order": lambda n_layer: reversed(range(n_layer))},
        ),
        (
            rows_of("runs the blocks in reverse order")[1],
            {
                "weights": lambda name: re.sub(
                    r"^h\.(\d)", lambda match: f"h.{2 - int(match[1])}", name
                )
            },
        ),
        (rows_of("joins the heads without a transpose")[0], JOIN),
        (rows_of("joins the heads without a transpose")[1], JOIN),
        (
            rows_of("attends between the heads of each token, not between tokens")[0],
            {"attend": attention_between_heads},
        ),
        (
            rows_of("attends between the heads of each token, not between tokens")[1],
            {"attend": attention_between_later_heads},
        ),
        (
            rows_of("skips the block")[0],
            {"order": lambda n_layer: []},
        ),
        (
            rows_of("has all parameters rounded to bfloat16")[0],
            {"parameters": all_of(bfloat16)},
        ),
        (
            rows_of("has all matrices rounded to float16, but no bias and no layer norm")[0],
            {"parameters": matrices_of(float16)},
        ),
        (
            next(row for row in MISTAKES if "folded and centred" in row.sentence),
            FOLDED,
        ),
        (
            rows_of("has the weight and bias of h.2.ln_1 in ln_f")[0],
            {"weights": lambda name: name.replace("ln_f", "h.2.ln_1")},
        ),
        (
            rows_of("has the weight and bias of h.2.ln_2 in ln_f")[0],
            {"weights": lambda name: name.replace("ln_f", "h.2.ln_2")},
        ),
    ],
    ids=lambda value: getattr(value, "sentence", ""),
)
def test_the_logits_of_a_mistake_are_those_of_another_gpt2_that_makes_it(mistake, steps):
    model = MODELS["tiny"]
    ids = some_ids(model, B=2, T=5)
    logits = with_mistake(model, ids, mistake)["logits"]
    expected = OtherGPT2(model, **steps)(ids)["logits"]
    np.testing.assert_allclose(logits, expected, rtol=0, atol=1e-5 * abs(expected).max())


# Their wrong GPT-2s have other parameters and right steps. The test above compares them.
OF_OTHER_STEPS = ("runs the blocks in reverse order", "has all parameters rounded to ")


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("mlp.1.post", "gelu"),
        ("final", "norm"),
        ("attn.1.scores", "scores"),
        ("attn.1.pattern", "pattern"),
    ],
)
@np.errstate(all="ignore")  # a mask that hides all keys makes nan
def test_the_formula_of_each_mistake_is_that_of_a_wrong_gpt2(name, step):
    """Its activation is computed from one text of random numbers."""
    model = MODELS["tiny"]
    rng = np.random.default_rng(0)
    D, F, H, K, T = 48, model.config.n_inner, model.config.n_head, model.config.head_width, 5
    shapes = {"gelu": (1, T, F), "norm": (1, T, D), "scores": (1, H, T, K), "pattern": (1, H, T, T)}
    x, k = rng.normal(size=(2, *shapes[step]))
    tape = {"attn.1.q": x, "attn.1.k": k, "newest": x}
    at = Place(name, right=None, model=model, ids=None, tape=tape)
    arguments = {
        "gelu": (x[0], 1),
        "norm": (x[0], model.parameters["ln_f.weight"], model.parameters["ln_f.bias"], 1e-5),
        "scores": (x[0], k[0], 1, H),
        "pattern": (x[0],),
    }[step]
    rows = [row for row in MISTAKES if at.kind in row.wrong]
    rows = [row for row in rows if not row.sentence.startswith(OF_OTHER_STEPS)]
    assert rows
    for row in rows:
        ends = (row.sentence, f"{row.sentence}, in every layer", f"{row.sentence}, everywhere")
        cases = [case for case in WRONG_GPT2S if step in case.steps and id_of(case).endswith(ends)]
        assert cases, row.sentence
        array = row.wrong[at.kind](at)[0]
        expected = cases[0].steps[step](*arguments)
        np.testing.assert_allclose(array, expected, rtol=1e-6, atol=1e-9, err_msg=row.sentence)


def test_layer_norms_over_an_array_are_over_that_of_a_text_or_of_the_batch():
    model = MODELS["tiny"]
    x = np.random.default_rng(0).normal(size=(2, 3, model.config.n_embd))
    at = Place("final", right=None, model=model, ids=None, tape={"resid_post.2": x})
    for sentence, variance_of_array in (
        ("has a layer norm over the whole array, not over each vector", True),
        ("has a layer norm that subtracts the mean of the whole array, not of each vector", False),
    ):
        for row, axis in zip(rows_of(sentence), ((1, 2), (0, 1, 2)), strict=True):
            centred = x - x.mean(axis=axis, keepdims=True)
            variance = x.var(axis=axis if variance_of_array else 2, keepdims=True)
            expected = centred / np.sqrt(variance + 1e-5) * at.weight + at.bias
            np.testing.assert_allclose(row.wrong["final"](at), expected, rtol=1e-6)


def test_a_position_past_the_end_of_the_context_is_the_last_one():
    model = MODELS["tiny"]
    ids = some_ids(model, B=2, T=model.config.n_ctx)
    at = Place("embed", right=None, model=model, ids=ids, tape={})
    tokens, positions = (model.parameters[f"{name}.weight"] for name in ("wte", "wpe"))
    [from_1] = rows_of("counts positions from 1")
    rows = [*range(1, model.config.n_ctx), model.config.n_ctx - 1]
    np.testing.assert_array_equal(from_1.wrong["embed"](at), tokens[ids] + positions[rows])


def test_ids_that_are_one_off_go_on_at_the_other_end_of_the_vocabulary():
    model = MODELS["tiny"]
    at = Place("embed", right=None, model=model, ids=np.array([[0, 5, 210]]), tape={})
    positions = model.parameters["wpe.weight"][:3]
    for sentence, ids in (
        ("adds 1 to the ids", [[1, 6, 0]]),
        ("subtracts 1 from the ids", [[210, 4, 209]]),
    ):
        [row] = rows_of(sentence)
        np.testing.assert_array_equal(row.wrong["embed"](at), model.W_E[ids] + positions)


@pytest.mark.parametrize(
    ("ids", "token"), [((9, 7, 999), 7), ((211,), 210), ((211, 209), 209), ((210,), 210), (0, 0)]
)
def test_which_token_ends_a_text(ids, token):
    """The smallest of the vocabulary, which has 211; else the last one."""
    tiny = MODELS["tiny"]
    model = GPT2(replace(tiny.config, eos_token_id=ids), tiny.parameters)
    assert end_of_text(Place("embed", None, model, None, {})) == token


def test_a_token_without_a_neighbour_is_read_as_another_token_of_its_text():
    """Or as token 0, or as the one that ends a text."""
    model = TWO_LAYERS
    ids = np.array([[3, 5, 8], [13, 21, 34]])
    at = Place("embed", right=None, model=model, ids=ids, tape={})
    first, last, zero, end = (3, 13), (8, 34), (0, 0), (210, 210)  # in each of the two texts
    reads = "has its ids shifted by one: it reads the token"
    for row, (a, b) in zip(rows_of(f"{reads} before"), (last, first, zero, end), strict=True):
        expected = model.W_E[[[a, 3, 5], [b, 13, 21]]] + model.parameters["wpe.weight"][:3]
        np.testing.assert_array_equal(row.wrong["embed"](at), expected)
    for row, (a, b) in zip(rows_of(f"{reads} after"), (first, last, zero, end), strict=True):
        expected = model.W_E[[[5, 8, a], [21, 34, b]]] + model.parameters["wpe.weight"][:3]
        np.testing.assert_array_equal(row.wrong["embed"](at), expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_numbers_in_the_middle_of_two_are_rounded_to_even(dtype):
    """Those of float16 are NumPy's. A bfloat16 is the first half of a float32."""
    ulp = {"bfloat16": 2.0**-7, "float16": 2.0**-10}[dtype]  # from 1 to the next number
    numbers = np.array([1 + ulp / 2, 1 + 1.5 * ulp, -1 - ulp / 2, 1 + 0.51 * ulp, 3 + ulp, 0.0])
    expected = [1, 1 + 2 * ulp, -1, 1 + ulp, 3, 0]
    if dtype == "float16":
        np.testing.assert_array_equal(numbers.astype(np.float16), expected)
    np.testing.assert_array_equal(rounded(numbers, dtype), expected)
    random = np.random.default_rng(0).normal(size=50).astype(np.float32)
    of_wrong_gpt2 = {"bfloat16": bfloat16, "float16": float16}[dtype]
    np.testing.assert_array_equal(rounded(random, dtype), of_wrong_gpt2(random))


def test_zeros_alone_are_named():
    ids = some_ids(TWO_LAYERS, B=1, T=9)
    report = compare(TWO_LAYERS, np.zeros((1, 9, TINY.vocab_size), np.float32), ids)
    assert report.diagnosis == ["logits: yours is 0 everywhere"]
    assert report.note == "to find where it begins, give resid_post.0 to resid_post.1, too"


@pytest.mark.parametrize(
    ("sentence", "note"),
    [
        (
            "is the exact gelu (erf)",
            "if it was trained so, as nanoGPT's models: "
            'from_state_dict(..., activation_function="gelu")',
        ),
        (
            "has the folded and centred weights",
            "to compare the weights as they were trained, load the model with "
            "HookedTransformer.from_pretrained_no_processing, or without "
            "enable_compatibility_mode",
        ),
    ],
)
def test_what_to_do_is_said(sentence, note):
    wrong_gpt2 = next(case for case in WRONG_GPT2S if sentence in id_of(case))
    model, theirs = make(wrong_gpt2)
    assert compare(model, theirs, some_ids(model, B=2, T=9)).note == note


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=SLOW)])
@pytest.mark.parametrize("config", [TINY, pytest.param(SMALL, marks=SLOW)], ids=["tiny", "small"])
def test_every_mistake_moves_a_logit_of_the_random_model(config, seed):
    model = random_model(config, seed)
    ids = some_ids(model, B=1, T=config.n_ctx)
    logits = model(ids)
    for mistake in MISTAKES:
        if mistake.sentence in RIGHT_LOGITS:
            continue
        difference = np.abs(with_mistake(model, ids, mistake)["logits"] - logits).max()
        # It is nan if the mistake is a mask that hides all keys of a token.
        assert np.isnan(difference) or difference >= 1e-2, mistake.sentence
