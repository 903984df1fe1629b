"""`compare` on right GPT-2s, gradients, torch modules and bad input; its report and its command.

What it says of wrong GPT-2s is in test_compare_mistakes.py and test_compare_diagnosis.py.
"""

import json
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest
from support.commands import assert_one_error_line
from support.comparing import MODELS, TWO_LAYERS, some_ids, tape_of, with_mistake
from support.models import SMALL, VARIANTS
from support.other_gpt2 import STEPS, OtherGPT2
from support.torch_files import torch_file
from support.wrong_gpt2s import named

import tiedgpt
from tiedgpt import GPT2, compare, from_state_dict
from tiedgpt.checkpoints.json_files import STRICT_JSON
from tiedgpt.comparison.compare import (
    Report,
    rounding_note,
    sentences_on_missing,
)
from tiedgpt.comparison.places import ReportRow, compare_arrays, digits_of, few_digits
from tiedgpt.comparison.recording import read_arrays, returned_logits
from tiedgpt.errors import ArgumentError
from tiedgpt.pytest_plugin import tiny_gpt2  # noqa: F401
from tiedgpt.testing import TINY, assert_same_gpt2, random_model

SLOW = pytest.mark.slow


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")


@pytest.fixture
def torch_gpt2s(torch):
    from support import torch_gpt2s

    return torch_gpt2s


# Right GPT-2s


# Without np.sqrt, whose float64 results make float32 arrays float64 since NumPy 2.
ALL_FLOAT32 = {
    "scores": lambda q, k, layer, H: q @ k.transpose(0, 2, 1) / q.shape[-1] ** 0.5,
    "gelu": lambda x, layer: (
        0.5 * x * (1 + np.tanh(0.7978845608028654 * (x + 0.044715 * x**3)))  # sqrt(2 / pi)
    ),
}


def all_float32(model):
    return OtherGPT2(model, **ALL_FLOAT32)


def additive_mask(model):
    """With the mask in the scores already: -1e10 is added to those of later keys."""

    def scores(q, k, layer, H):
        later = 1 - np.tri(q.shape[1])
        return q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1]) + later * -1e10

    return OtherGPT2(model, scores=scores)


def one_token_at_a_time(model):
    """With a KV cache, to which each pass adds a token. It returns the logits."""
    past = {}  # a layer -> the keys and the values in the cache

    def remember(k, v, layer):
        if layer in past:
            past_k, past_v = past[layer]
            k = np.concatenate([past_k, k], axis=1)
            v = np.concatenate([past_v, v], axis=1)
        past[layer] = (k, v)
        return k, v

    def logits_of(sequence):
        past.clear()
        logits = []
        for position, token in enumerate(sequence):
            at_position = OtherGPT2(
                model,
                **ALL_FLOAT32,
                positions=lambda T, position=position: np.array([position]),
                remember=remember,
            )
            logits.append(at_position(np.array([token]))["logits"])
        return np.concatenate(logits)

    return lambda ids: np.stack([logits_of(row) for row in np.atleast_2d(ids)])


def lists(model):
    """Lists in place of arrays. Their numbers are float64."""
    theirs = all_float32(model)
    return lambda ids: {name: array.tolist() for name, array in theirs(ids).items()}


def float64_logits(model):
    """Since NumPy 2, the scalar makes a float32 array float64. The numbers stay rounded."""
    return OtherGPT2(
        model,
        **ALL_FLOAT32,
        logits=lambda final, p: STEPS["logits"](final, p) * np.float64(1),
    )


def logits_only(model):
    theirs = all_float32(model)
    return lambda ids: theirs(ids)["logits"]


# The GPT-2s that return float32, and those that return float64, with a model in float32.
FLOAT32_GPT2S = [all_float32, one_token_at_a_time, logits_only]
FLOAT64_GPT2S = [additive_mask, lists]
if np.lib.NumpyVersion(np.__version__) >= "2.0.0":
    FLOAT64_GPT2S += [OtherGPT2, float64_logits]
else:
    FLOAT32_GPT2S += [OtherGPT2, float64_logits]


def half_precision_model():
    """A model in float32 whose parameters were saved in float16."""
    state = {name: array.astype(np.float16) for name, array in random_model().parameters.items()}
    return from_state_dict(state, config=TINY)


# Functions that return a model.
SOME_MODELS = [
    pytest.param(half_precision_model, id="half"),
    pytest.param(lambda: MODELS["tiny"], id="tiny", marks=SLOW),
    pytest.param(lambda: MODELS["tiny untied"], id="tiny-untied", marks=SLOW),
    pytest.param(lambda: MODELS["shakespeare"], id="shakespeare", marks=SLOW),
]


def reports(model, theirs):
    """What `compare` says on a batch, on one token and on one sequence."""
    return [
        compare(model, theirs, some_ids(model, B=2, T=37)),
        compare(model, theirs, some_ids(model, B=1, T=1)[0]),
        compare(model, theirs, some_ids(model, B=1, T=21)[0]),
    ]


def assert_agrees(model, theirs):
    for report in reports(model, theirs):
        assert report.first is None, str(report)
        assert report.note == ""


@pytest.mark.parametrize("model_of", SOME_MODELS)
@pytest.mark.parametrize("other_gpt2", FLOAT32_GPT2S)
def test_a_right_gpt2_agrees(other_gpt2, model_of):
    model = model_of()
    assert_agrees(model, other_gpt2(model))


@pytest.mark.parametrize("model_of", SOME_MODELS)
@pytest.mark.parametrize("other_gpt2", FLOAT64_GPT2S)
def test_float64_with_the_rounding_of_float32_agrees_with_a_note(other_gpt2, model_of):
    model = model_of()
    theirs = other_gpt2(model)
    for report in reports(model, theirs):
        assert report.first is None, str(report)
        assert report.note.endswith(
            " is float64 and has float32's rounding: something before it is float32"
        )


@pytest.mark.parametrize("model_of", SOME_MODELS)
def test_a_right_gpt2_in_float64_agrees(model_of):
    model = model_of()
    assert_agrees(model, OtherGPT2(model, dtype=np.float64))
    # With another order of sums. A note on float32's rounding would be wrong.
    theirs = model.astype(np.float64)
    with_rounding = lambda ids: theirs(ids) * (1 + 2.0**-48)  # noqa: E731
    assert_agrees(model, with_rounding)


@pytest.mark.parametrize("model_of", SOME_MODELS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_right_torch_module_agrees(torch, torch_gpt2s, dtype, model_of):
    """The module has dropout and is in training mode. `compare` turns the dropout off."""
    model = model_of()
    theirs = torch_gpt2s.nano_gpt(model).to(getattr(torch, dtype)).train()
    assert_agrees(model, theirs)


@pytest.mark.slow
@pytest.mark.parametrize("model_of", SOME_MODELS)
def test_transformers_agrees(torch_gpt2s, model_of):
    pytest.importorskip("transformers", reason="transformers is not installed")
    model = model_of()
    assert_agrees(model, torch_gpt2s.transformers_gpt2(model))


def padded_logits(model, ids, padding=-100.0):
    """The logits and 13 more columns. nanoGPT, too, has 50,304 columns for 50,257 tokens."""
    columns = np.full((*ids.shape, 13), padding, np.float32)
    return np.concatenate([model(ids), columns], axis=-1)


@pytest.mark.parametrize("shape", [(21,), (1, 21), (2, 21)])
def test_the_columns_that_pad_a_vocabulary_are_not_compared(shape):
    model = MODELS["tiny"]
    ids = np.random.default_rng(0).integers(model.config.vocab_size, size=shape)
    report = compare(model, padded_logits(model, ids), ids)
    assert report.same
    V = model.config.vocab_size
    left_out = f"13 columns of logits beyond the vocabulary of {V}: not compared; none is the"
    assert str(report).startswith(left_out)


def test_padding_as_large_as_the_largest_logit_is_not_chosen():
    """Of equal logits, a greedy program takes the first."""
    model = MODELS["tiny"]
    ids = some_ids(model)
    logits = model(ids)
    padding = np.repeat(logits.max(axis=-1, keepdims=True), 13, axis=-1)
    report = compare(model, np.concatenate([logits, padding], axis=-1), ids)
    assert report.same
    assert "none is the largest of its row" in str(report)


def test_unsigned_ids_have_the_report_of_signed_ones():
    """Some mistakes compute with ids - 1, and 0 is among these ids."""
    model = MODELS["tiny"]
    ids = some_ids(model)
    ids[0, 1] = 0
    theirs = {"embed": tape_of(model, ids)["embed"] + np.float32(0.01)}
    report = compare(model, theirs, ids.astype(np.uint16))
    assert report.same is False
    assert str(report) == str(compare(model, theirs, ids))


@pytest.mark.parametrize(("column", "padding"), [(0, 1e5), (1, 1e5), (1, np.inf), (1, np.nan)])
def test_a_token_that_is_not_in_the_vocabulary_is_not_chosen(column, padding):
    """A greedy program takes the largest logit, whatever its column. The first place is named."""
    model = MODELS["tiny"]
    ids = some_ids(model)
    V = model.config.vocab_size
    token = V + column
    logits = np.concatenate([model(ids), np.full((*ids.shape, 2), -100.0)], axis=-1)
    logits[0, 3, token] = padding
    logits[1, 5, token] = padding
    report = compare(model, logits, ids)
    assert report.same is False
    assert report.first.first_wrong == (0, 3, token)
    assert (report.first.name, report.first.expected) == ("logits", -np.inf)
    np.testing.assert_equal(report.first.yours, padding)
    (sentence,) = report.diagnosis
    assert f"yours chooses token {token}, which the vocabulary of {V} has not" in sentence
    assert "none is the largest" not in str(report)


def test_nan_in_the_vocabulary_is_chosen_before_what_is_beyond_it():
    model = MODELS["tiny"]
    ids = some_ids(model)
    logits = padded_logits(model, ids, padding=1e5)
    logits[..., 5] = np.nan
    report = compare(model, logits, ids, trials=0)
    assert report.first.first_wrong == (0, 0, 5)
    assert "chooses token" not in str(report)


def test_an_assertion_of_a_report_fails_unless_it_is_the_same_gpt2():
    model = MODELS["tiny"]
    ids = some_ids(model)
    assert compare(model, model, ids)
    assert not compare(model, model(ids) + 1, ids, trials=0)
    not_enough = compare(model, model(ids[:, :1]), ids[:, :1])
    assert not_enough.same is None
    assert not not_enough


@pytest.mark.parametrize("shape", [(21,), (1, 21), (2, 21)])
def test_the_last_column_before_the_padding_is_compared(shape):
    model = MODELS["tiny"]
    ids = np.random.default_rng(0).integers(model.config.vocab_size, size=shape)
    logits = padded_logits(model, ids)
    last_token = model.config.vocab_size - 1
    logits[..., last_token] += 1
    first = compare(model, logits, ids, trials=0).first
    assert first.name == "logits"
    assert first.first_wrong == (0, 0, last_token), "the comparison is of [B, T, V]"


# Torch modules and gradients


def torch_gradients(torch, theirs, ids, targets):
    logits = theirs(torch.from_numpy(ids), torch.from_numpy(targets))
    loss = torch.nn.functional.cross_entropy(
        logits.flatten(0, 1), torch.from_numpy(targets).flatten()
    )
    loss.backward()
    return {name: parameter.grad for name, parameter in theirs.named_parameters()}


@pytest.mark.parametrize("name", ["tiny", "tiny untied"])
def test_gradients_agree_with_torchs(torch, torch_gpt2s, name):
    model = MODELS[name]
    ids = some_ids(model)
    targets = some_ids(model, seed=1)
    gradients = torch_gradients(torch, torch_gpt2s.nano_gpt(model).eval(), ids, targets)
    report = compare(model, gradients, ids, targets)
    assert report.first is None, str(report)
    assert len(report.rows) == len(model.parameters)


@pytest.mark.parametrize("name", ["tiny", "tiny untied"])
def test_a_wrong_gradient_is_found(torch, torch_gpt2s, name):
    model = MODELS[name]
    ids = some_ids(model)
    targets = some_ids(model, seed=1)
    gradients = torch_gradients(torch, torch_gpt2s.nano_gpt(model).eval(), ids, targets)
    gradients["transformer.wte.weight"] *= 1.001
    assert compare(model, gradients, ids, targets).first.name == "wte.weight"


@pytest.mark.slow
def test_the_eager_attention_of_transformers_gives_the_pattern(torch_gpt2s):
    pytest.importorskip("transformers", reason="transformers is not installed")
    model = random_model()
    theirs = torch_gpt2s.transformers_gpt2(model)
    theirs.config._attn_implementation = "eager"
    rows = compare(model, theirs, some_ids(model)).rows
    assert "attn.0.pattern" in [row.name for row in rows]


@pytest.mark.slow
def test_a_mistake_in_transformers_is_named(torch, torch_gpt2s):
    pytest.importorskip("transformers", reason="transformers is not installed")
    model = random_model()
    ids = some_ids(model, B=1)[0]
    theirs = torch_gpt2s.transformers_gpt2(model)
    theirs.transformer.h[2].mlp.act = torch.nn.ReLU()
    assert compare(model, theirs, ids).diagnosis == ["mlp.2.post: yours is relu"]
    without_logits = theirs.transformer  # the module without its head
    assert compare(model, without_logits, ids).diagnosis == ["mlp.2.post: yours is relu"]


def test_a_module_in_half_precision_is_named(torch_gpt2s):
    model = MODELS["tiny"]
    theirs = torch_gpt2s.nano_gpt(model).bfloat16()
    report = compare(model, theirs, some_ids(model))
    assert report.diagnosis == ["embed: yours is rounded to bfloat16"]
    note = "compare in float32: in rounded numbers no other mistake is looked for"
    assert report.note == note


@pytest.mark.parametrize("trials", [20, pytest.param(None, marks=SLOW)])
@pytest.mark.parametrize(
    ("mistake", "sentence"),
    [
        ({}, "logits: yours is rounded to float16"),
        ({"eps": 1e-6}, ": it computes in float16, or has another mistake"),
        (
            named("by 1, not at all").steps,
            "logits: yours is rounded to float16, and has another mistake",
        ),
    ],
    ids=["right", "eps", "no scale"],
)
def test_rounding_hides_no_other_mistake(mistake, sentence, trials):
    model = MODELS["tiny"]
    ids = some_ids(model)
    logits = OtherGPT2(model, **mistake)(ids)["logits"].astype(np.float16)
    report = compare(model, logits, ids, trials=trials)
    assert report.same is False
    assert report.diagnosis[0].endswith(sentence)
    assert report.note.startswith("compare in float32")


def test_ranks_in_place_of_logits_are_not_said_to_be_rounded():
    """Whole numbers have few digits, and nobody rounded them so."""
    model = MODELS["tiny"]
    ids = some_ids(model)
    ranks = model(ids).argsort(axis=-1).argsort(axis=-1).astype(np.float32)
    assert "rounded" not in str(compare(model, ranks, ids, trials=0))


@pytest.mark.parametrize(
    ("form", "words"),
    [("{:.3f}", "3 decimals"), ("{:.2e}", "3 digits"), ("{:.4g}", "4 digits")],
)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_right_logits_with_few_digits_are_told_to_have_more(form, words, dtype):
    model = MODELS["shakespeare"]
    ids = some_ids(model, B=1, T=9)
    logits = [float(form.format(number)) for number in model(ids).flat]
    printed = np.array(logits, dtype).reshape(model(ids).shape)
    report = compare(model, {"logits": printed}, ids)
    assert report.same is False
    assert report.diagnosis == [f"logits: yours has no more than {words}: print more"]
    assert report.trials == 0


@pytest.mark.parametrize("activation", ["gelu", pytest.param("relu", marks=SLOW)])
def test_wrong_logits_with_few_digits_are_told_to_have_more(activation):
    """No mistake gives these numbers within float32's rounding. So none is excluded, either."""
    model = MODELS["shakespeare"]
    ids = some_ids(model, B=1, T=9)
    theirs = GPT2(replace(model.config, activation_function=activation), model.parameters)
    report = compare(model, {"logits": theirs(ids).round(3)}, ids, trials=20)
    assert report.diagnosis == ["logits: yours has no more than 3 decimals: print more"]
    for trials in (0, 20):
        report = compare(model, {"logits": theirs(ids)}, ids, trials=trials)
        assert "decimals" not in str(report)


@pytest.mark.parametrize(
    "changed",
    [
        lambda x: x + 1,  # as many digits as there are
        lambda x: (x + 1).astype(np.float64),
        lambda x: 1.01 * x.astype(np.float16) + np.float16(1),
        lambda x: np.rint(100 * x),
        lambda x: np.rint(8 * x) / 8,  # a number in fixed point has three decimals, too
        lambda x: np.full_like(x, np.nan),
        lambda x: x.astype(np.float64) * 1e305,
        lambda x: x.astype(np.float64) * 1e-315,
    ],
    ids=["float32", "float64", "float16", "whole", "eighths", "nan", "huge", "tiny"],
)
def test_numbers_that_are_not_printed_with_few_digits(changed):
    model = TWO_LAYERS
    ids = some_ids(model)
    report = compare(model, {"logits": changed(model(ids))}, ids, trials=5)
    assert report.same is False
    assert "print more" not in str(report)


@pytest.mark.parametrize(("size", "words"), [(1, "3 decimals"), (1e-6, "3 digits")])
def test_printing_moves_a_number_by_half_a_unit_of_the_last_digit(size, words):
    """If rounding alone moves numbers as far, nothing is said of the digits."""
    ours = size * np.random.default_rng(0).uniform(0.2, 0.9, size=50)
    ours[7] = 0
    unit = 1e-3 * size
    theirs = np.round(ours / unit) * unit
    sentence, half = few_digits(theirs, ours, 0.9 * unit / 2)
    assert f"no more than {words}" in sentence
    assert half == pytest.approx(unit / 2)
    for tolerance in (half, 1.01 * unit / 2):
        assert few_digits(theirs, ours, tolerance) == ("", 0.0)


def test_how_many_digits_numbers_have():
    """At most six are few. Fewer than ten different numbers may end with zeros by chance."""
    numbers = np.random.default_rng(0).uniform(0.2, 0.9, size=10)
    assert digits_of(numbers.round(3)) == (3, "decimals")
    assert digits_of(np.append(numbers[:9], numbers[0]).round(3)) is None
    assert digits_of(1e-5 * numbers.round(3)) == (3, "digits")
    assert digits_of(numbers.round(6)) == (6, "decimals")
    assert digits_of(numbers.round(7)) is None


def test_gradients_with_few_digits_are_told_to_have_more():
    model = random_model(TINY)
    ids, targets = some_ids(model), some_ids(model, seed=1)
    _, gradients = tiedgpt.loss_and_gradients(model, ids, targets)
    printed = {name: gradient.round(3) for name, gradient in gradients.items()}
    report = compare(model, printed, ids, targets)
    assert report.same is False
    (sentence,) = report.diagnosis
    assert sentence == f"{report.first.name}: yours has no more than 2 digits: print more"
    wrong = {name: gradient * 3 for name, gradient in gradients.items()}
    assert compare(model, wrong, ids, targets).diagnosis == []


def test_the_model_itself_may_have_few_digits():
    """Its embedding has three decimals: a wrong one has them, too."""
    model = MODELS["shakespeare"]
    few = {name: model.parameters[name].round(3) for name in ("wte.weight", "wpe.weight")}
    model = GPT2(model.config, {**model.parameters, **few})
    ids = some_ids(model)
    report = compare(model, {"embed": model.W_E.astype(np.float64)[ids].round(3)}, ids)
    assert report.diagnosis == ["embed: yours has no position embedding"]


def test_a_module_that_adds_in_place_is_recorded_as_it_was_before(torch_gpt2s):
    model = MODELS["tiny"]
    theirs = torch_gpt2s.nano_gpt(model)

    def add_in_place(block, x):
        x += block.attn(block.ln_1(x))
        x += block.mlp(block.ln_2(x))
        return x

    for block in theirs.transformer.h:
        block.forward = partial(add_in_place, block)
    assert compare(model, theirs, some_ids(model)).same


def test_a_module_is_left_as_it_was(torch_gpt2s):
    model = MODELS["tiny"]
    theirs = torch_gpt2s.nano_gpt(model).bfloat16().train()
    theirs.transformer.h[1].eval()  # as some do with a part that is not trained
    modes = [module.training for module in theirs.modules()]
    compare(model, theirs, some_ids(model))
    assert [module.training for module in theirs.modules()] == modes
    for module in theirs.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks
    assert all(parameter.grad is None for parameter in theirs.parameters())


def test_a_model_without_layers_is_compared():
    model = random_model(replace(TINY, n_layer=0))
    ids = [[1, 2, 3]]
    report = compare(model, 2 * model(ids), ids)
    assert report.diagnosis
    assert report.first.name == "logits"


# Bad input

BAD_ARRAYS = [
    pytest.param(
        {"attn.9.qkv": np.zeros(3)},
        "attn.9.qkv was given, but the model's layers are 0 to 2",
        id="no-such-layer",
    ),
    pytest.param(
        {"mlp.1.past": np.zeros(3)},
        "'mlp.1.past' is no activation of a GPT-2; the nearest are mlp.1.post",
        id="no-such-activation",
    ),
    pytest.param(
        {"mlp.0.pre": np.zeros((2, 100, 21))},
        r"mlp.0.pre has shape \(2, 100, 21\); expected \(2, 21, 100\); "
        r"its transpose by axes \(0, 2, 1\) would fit",
        id="transposed",
    ),
    pytest.param(
        {"embed": np.array(["a"])}, "'embed' must be an array of floats, got <U1", id="text"
    ),
    pytest.param(
        {"embed": np.ma.masked_equal([[1.0, 2.0]], 2)},
        "'embed' is a masked array: give one without a mask",
        id="masked",
    ),
    pytest.param(
        {"embed": np.array(1.0)},
        r"'embed' must be an array of floats, got float64 \(\)",
        id="a-number",
    ),
    pytest.param(
        {"embed": [[1.0], [1.0, 2.0]]},
        "'embed' must be an array of floats: ",
        id="rows-of-unequal-lengths",
    ),
    pytest.param(
        {"hook_embed": np.zeros(3)},
        "^there is nothing to compare: no activation of the model was given in which it has "
        "numbers other than 0, inf and nan, or larger than their rounding$",
        id="nothing-known",
    ),
    pytest.param(
        {},
        r"expected logits, a dict of arrays, a torch module or a function, got \{\}",
        id="nothing",
    ),
    pytest.param(
        "mine.npz",
        "expected logits, a dict of arrays, a torch module or a function, got 'mine.npz'",
        id="a-path",
    ),
    pytest.param(
        {"wte.weight": np.zeros((211, 48)), "ln_f.bias": np.zeros(48)},
        "^ln_f.bias is a parameter: to compare its gradient, give targets",
        id="a-gradient-without-targets",
    ),
    pytest.param(
        lambda ids: [][0],
        "the other model failed on these ids: IndexError: list index out of range",
        id="a-function-that-fails",
    ),
]


@pytest.mark.parametrize(("theirs", "message"), BAD_ARRAYS)
def test_bad_arrays(theirs, message):
    model = MODELS["tiny"]
    with pytest.raises(ArgumentError, match=message):
        compare(model, theirs, some_ids(model))


def test_the_logits_among_what_a_gpt2_returns():
    """An array without axes is a loss."""
    logits = np.ones((2, 3))
    loss = np.array(0.5)
    of_one_token = np.ones(3)
    assert returned_logits((of_one_token, logits)) is of_one_token
    for returned in (logits, {"logits": logits}, SimpleNamespace(logits=logits), (loss, logits)):
        assert returned_logits(returned) is logits
    for returned in (loss, [logits], (), (loss, None), {"loss": loss}):
        assert returned_logits(returned) is None


def test_a_model_that_is_a_text():
    with pytest.raises(ArgumentError, match="the model must be a GPT2, got 'shakespeare-tied'"):
        compare("shakespeare-tied", {}, [1])


BAD_GRADIENTS = [
    pytest.param(
        {"wpe.weight": np.zeros((48, 37))},
        r"the gradient of wpe.weight has shape \(48, 37\); expected \(37, 48\); "
        r"its transpose by axes \(1, 0\) would fit",
        id="another-shape",
    ),
    pytest.param(
        {"lm_head.weight": np.zeros((211, 48))},
        r"lm_head\.weight is not a parameter of this tied model$",
        id="no-such-parameter",
    ),
    pytest.param(
        {"ln_f.bias": np.zeros(48), "lm_head.weight": np.zeros((211, 48))},
        r"lm_head\.weight is not a parameter of this tied model$",
        id="the-second-one",
    ),
    pytest.param(
        {"ln_f.bias": np.zeros(48), "ln_f.weight": np.zeros(47)},
        r"the gradient of ln_f.weight has shape \(47,\); expected \(48,\)$",
        id="the-shape-of-the-second-one",
    ),
]


@pytest.mark.parametrize(("gradients", "message"), BAD_GRADIENTS)
def test_bad_gradients(gradients, message):
    ids = some_ids(MODELS["tiny"], B=1, T=2)
    with pytest.raises(ArgumentError, match=message):
        compare(MODELS["tiny"], gradients, ids, targets=ids)


def test_a_gradient_of_a_layer_that_an_untied_model_has_not():
    model = MODELS["tiny untied"]
    ids = some_ids(model, B=1, T=2)
    message = r"^h\.3\.ln_1\.bias is not a parameter of this untied model$"
    with pytest.raises(ArgumentError, match=message):
        compare(model, {"h.3.ln_1.bias": np.zeros(48)}, ids, targets=ids)


def test_targets_of_another_shape():
    ids = some_ids(MODELS["tiny"])
    with pytest.raises(ArgumentError, match=r"targets have shape \(1, 21\)"):
        compare(MODELS["tiny"], {}, ids, targets=ids[:1])


def test_a_module_with_another_vocabulary(torch_gpt2s):
    model = MODELS["tiny"]
    smaller = torch_gpt2s.nano_gpt(random_model(SMALL))
    with pytest.raises(ArgumentError, match="the other model failed on these ids: IndexError"):
        compare(model, smaller, some_ids(model))


def test_a_module_and_targets(torch_gpt2s):
    model = MODELS["tiny"]
    ids = some_ids(model)
    message = "of a torch module, gradients are not recorded: give them in a dict"
    with pytest.raises(ArgumentError, match=message):
        compare(model, torch_gpt2s.nano_gpt(model), ids, targets=ids)


def test_the_note_names_the_first_array_with_the_rounding_of_float32():
    model = random_model(SMALL)
    float64_model = tiedgpt.GPT2(
        model.config, {k: a.astype(np.float64) for k, a in model.parameters.items()}
    )
    ids = some_ids(model, B=2, T=9)
    theirs = tape_of(float64_model, ids)
    for name in ("resid_mid.1", "mlp.1.post", "logits"):
        theirs[name] = theirs[name].astype(np.float32).astype(np.float64)
    assert compare(model, theirs, ids).note.startswith("resid_mid.1 is float64")


@pytest.mark.parametrize(("error", "is_noted"), [(2.0**-24, False), (1.01 * 2.0**-24, True)])
def test_an_error_that_is_too_large_for_the_rounding_of_float64(error, is_noted):
    """Here the tolerance for float32 is 1. A float32 array has a larger error, of course."""
    rows = [
        ReportRow("embed", error=0.9, tolerance=1.0, largest=1.0),
        ReportRow("final", error=2.0**-25, tolerance=1.0, largest=1.0),
        ReportRow("logits", error=error, tolerance=1.0, largest=1.0),
    ]
    theirs = {"embed": np.ones(1, np.float32), "final": np.ones(1), "logits": np.ones(1)}
    note = "logits is float64 and has float32's rounding: something before it is float32"
    assert rounding_note(rows, theirs) == (note if is_noted else "")


# The report


# tiny_gpt2 is a fixture of tiedgpt.pytest_plugin, for the tests of other GPT-2s.


def test_the_assertion_accepts_a_right_gpt2(tiny_gpt2):  # noqa: F811 - a fixture is imported
    def right(ids):
        return tape_of(tiny_gpt2, ids)

    assert_same_gpt2(right, model=tiny_gpt2)


def test_the_assertion_accepts_right_gradients(tiny_gpt2):  # noqa: F811
    ids = some_ids(tiny_gpt2)
    targets = some_ids(tiny_gpt2, seed=1)
    _, gradients = tiedgpt.loss_and_gradients(tiny_gpt2, ids, targets)
    theirs = {**tape_of(tiny_gpt2, ids), **gradients}
    assert_same_gpt2(theirs, model=tiny_gpt2, ids=ids, targets=targets)


def test_a_wrong_activation_explains_wrong_gradients():
    """So nothing is said of the gradients, which here are those of the sum of the losses."""
    model = MODELS["tiny"]
    ids, targets = some_ids(model), some_ids(model, seed=1)
    _, right = tiedgpt.loss_and_gradients(model, ids, targets)
    gradients = {name: gradient * ids.size for name, gradient in right.items()}
    of_gradients = compare(model, {**tape_of(model, ids), **gradients}, ids, targets)
    assert of_gradients.diagnosis != []
    wrong = with_mistake(model, ids, "is relu")
    of_activations = compare(model, wrong, ids)
    of_both = compare(model, {**wrong, **gradients}, ids, targets)
    assert of_both.diagnosis == of_activations.diagnosis != []


def test_right_gradients_of_one_token_have_no_diagnosis():
    """They are those of the sum of the losses, too."""
    model = MODELS["tiny"]
    ids, targets = [3], [5]  # without an axis of texts
    _, gradients = tiedgpt.loss_and_gradients(model, ids, targets)
    report = compare(model, {**tape_of(model, ids), **gradients}, ids, targets)
    assert report.first is None
    assert report.diagnosis == []


def test_right_gradients_hide_no_sentence_on_an_activation():
    model = MODELS["tiny"]
    ids, targets = np.array([[3, 4]]), np.array([[5, 6]])
    _, gradients = tiedgpt.loss_and_gradients(model, ids, targets)
    tape = tape_of(model, ids)
    theirs = {"ln_f": -tape["final"], **tape, "ln_f.bias": gradients["ln_f.bias"]}
    report = compare(model, theirs, ids, targets, trials=0)
    assert report.diagnosis == ["final: yours are two, 'ln_f' and 'final', and they differ"]
    assert [row.name for row in report.rows[-2:]] == ["final, 'ln_f'", "ln_f.bias"]
    assert report.not_given == 0


def test_the_assertion_fails_with_the_report_on_a_wrong_gpt2(tiny_gpt2):  # noqa: F811
    def wrong(ids):
        return with_mistake(tiny_gpt2, ids, "is relu")

    message = r"not the same GPT-2(.|\n)*mlp\.0\.post: yours is relu"
    with pytest.raises(AssertionError, match=message):
        assert_same_gpt2(wrong, model=tiny_gpt2)


@pytest.mark.parametrize("size", [1e-6, 1.0, 1e6])
@pytest.mark.parametrize("rounding_of_float32", [1e-5, 0.0])
def test_a_row_agrees_up_to_sixteen_roundings(size, rounding_of_float32):
    """A rounding is the error of our own float32 numbers, but at least a unit of float32.

    A unit is 2^-23 times the size of the numbers.
    """
    ours64 = np.linspace(-size, size, 50)
    ours32 = ours64 + size * rounding_of_float32
    unit = 2.0**-23  # the distance of 1 from the next float32
    rounding = size * max(rounding_of_float32, unit)
    limit = 16 * rounding

    # One of their numbers, at place 7, is just within the limit.
    theirs = ours64.copy()
    theirs[7] += 0.99 * limit
    row = compare_arrays("embed", theirs, ours64, ours32)
    assert row.tolerance == pytest.approx(limit)
    assert row.error == pytest.approx(0.99 * limit)
    assert not row.differs

    # Then the number is just beyond the limit.
    theirs[7] = ours64[7] + 1.01 * limit
    row = compare_arrays("embed", theirs, ours64, ours32)
    assert row.error == pytest.approx(1.01 * limit)
    assert row.first_wrong == (7,)


def test_inf_agrees_with_inf():
    inf = np.full(3, -np.inf)
    agrees = ReportRow("embed", error=0.0, tolerance=0.0, largest=0.0)
    assert compare_arrays("embed", inf, ours64=inf, ours32=inf) == agrees


def test_a_number_at_the_limit_of_rounding_is_right():
    ours = np.ones(3)
    tolerance = 2.0**-19  # sixteen units of float32
    theirs = ours + [tolerance, 0, 0]
    assert compare_arrays("embed", theirs, ours, ours).first_wrong is None
    theirs[2] = 2
    assert compare_arrays("embed", theirs, ours, ours).first_wrong == (2,)


def test_a_number_that_overflows_in_our_float32_makes_no_tolerance():
    ours64 = np.array([1.0, 1e39])
    row = compare_arrays("embed", ours64 + 1, ours64, ours32=np.array([1.0, np.inf]))
    assert row.first_wrong == (0,)
    assert row.tolerance == pytest.approx(16 * 2.0**-23)


def test_a_report_has_a_line_for_each_activation():
    """With its largest error, the tolerance, and where the first wrong number is."""
    model = MODELS["tiny"]
    ids = some_ids(model)
    tape = tape_of(model, ids)
    wrong = tape["final"].copy()
    wrong[1, 2, 3] += 1
    report = compare(model, {**tape, "final": wrong}, ids, trials=0)
    title, *lines = str(report).splitlines()
    assert title.split() == ["largest", "error", "tolerance", "first", "wrong", "index"]
    assert len(report.rows) == len(tape)
    for row, line in zip(report.rows, lines, strict=False):
        name, error, tolerance, *place = line.split()
        assert (name, error, tolerance) == (row.name, f"{row.error:.1e}", f"{row.tolerance:.1e}")
        assert " ".join(place) == ("[1, 2, 3]" if row.name == "final" else "")


def test_the_whole_text_of_a_report():
    """What was not compared; a table whose columns fit the longest name; the verdict; the mistakes;
    what to do."""
    rows = [
        ReportRow("embed", error=2e-7, tolerance=3.5e-6, largest=2.0),
        ReportRow(
            "attn.10.pattern",
            error=0.25,
            tolerance=1e-5,
            largest=1.0,
            first_wrong=(0, 2, 1, 13),
            yours=0.123456789123,
            expected=-1234.5,
        ),
    ]
    report = Report(
        rows=rows,
        diagnosis=["attn.10.pattern: yours is a", "attn.10.pattern: or yours is b"],
        note="note c",
        not_given=187,
        trials=1234,
        all_trials=56789,
        not_compared=["logits: not compared", "gradients: not compared"],
        left_out="13 columns",
    )
    assert str(report).splitlines() == [
        "logits: not compared",
        "gradients: not compared",
        "13 columns",
        "",
        "                 largest error  tolerance  first wrong index",
        "embed                  2.0e-07    3.5e-06",
        "attn.10.pattern        2.5e-01    1.0e-05  [0, 2, 1, 13]",
        "",
        "first difference: attn.10.pattern[0, 2, 1, 13] is 0.123456789, expected -1234.5 "
        "(2 compared; 187 activations were not given; 1,234 of 56,789 trials of known mistakes)",
        "attn.10.pattern: yours is a",
        "attn.10.pattern: or yours is b",
        "note c",
    ]
    left_out = Report(rows[:1], [], note="", not_given=0, left_out="13 columns")
    assert str(left_out).splitlines()[:2] == ["13 columns", ""]
    assert str(left_out).endswith("\n\nall agree (1 compared; 0 activations were not given)")


def test_large_numbers_of_a_vocabulary_have_commas():
    """Of four logits beyond the vocabulary, two are larger than the others of the last place."""
    model = random_model(replace(TINY, n_layer=0, vocab_size=1200))
    ids = some_ids(model, B=2, T=3)
    beyond = np.full((2, 3, 4), -1e5)
    beyond[1, 2, 2:] = [5e4, 4e4]
    report = compare(model, np.concatenate([model(ids), beyond], axis=-1), ids)
    assert report.left_out == "4 columns of logits beyond the vocabulary of 1,200: not compared"
    [right, row] = report.rows
    assert not right.differs
    assert (row.first_wrong, row.yours, row.expected) == ((1, 2, 1202), 5e4, -np.inf)
    assert report.diagnosis == [
        "logits: yours chooses token 1,202, which the vocabulary of 1,200 has not: set such logits "
        "to -inf, or leave them out"
    ]
    report = compare(model, np.concatenate([model(ids), beyond[..., :1]], axis=-1), ids)
    assert report.left_out == (
        "1 column of logits beyond the vocabulary of 1,200: not compared; none is the largest of "
        "its row"
    )
    assert report.same
    assert (len(report.rows), report.diagnosis) == (1, [])


def test_logits_show_something_if_a_sixteenth_differ_from_those_of_the_first_token():
    """The logits of the first token are 0. Of the 128 logits of the other two tokens, 8 are further
    from 0 than the tolerance, then 7."""
    logits = np.zeros((1, 3, 64))
    logits[0, 1:, :4] = 1.0
    logits[0, 1:, 4:] = 0.5
    comparison = SimpleNamespace(ids=np.zeros((1, 3), int), our_logits=logits)
    compared = {"logits": ReportRow("logits", error=0.0, tolerance=0.5, largest=1.0)}
    assert sentences_on_missing(compared, comparison, targets=None) == []
    logits[0, 2, 3] = 0.5  # which is not further than the tolerance
    almost_all = (
        "logits: not compared, because almost all of this model's are the same for all tokens"
    )
    assert sentences_on_missing(compared, comparison, targets=None) == [almost_all]
    # Three texts of one token, and one text
    one_token = "attention between tokens: not compared, because ids has one token"
    for number, sentences in ((3, [almost_all, one_token]), (1, [one_token])):
        comparison.ids = np.zeros((number, 1), int)
        comparison.our_logits = logits.swapaxes(0, 1)[:number]
        assert sentences_on_missing(compared, comparison, targets=None) == sentences


# The command


@pytest.fixture
def prompt():
    """Token ids, [T]."""
    tokenizer = tiedgpt.load_tokenizer("shakespeare-tied")
    return np.array(tokenizer.encode("ROMEO: But soft"))


@pytest.fixture
def compared(run, tmp_path):
    """compared(file, *flags) -> the exit code, stdout and stderr of the command."""

    def compared(file, *flags):
        return run("compare", "--model", "shakespeare-tied", str(tmp_path / file), *flags)

    return compared


def test_the_command_on_a_right_gpt2(compared, prompt, tmp_path):
    np.savez(tmp_path / "right.npz", ids=prompt, **tape_of(MODELS["shakespeare"], prompt))
    code, out, _ = compared("right.npz")
    assert code == 0
    count = len(tape_of(MODELS["shakespeare"], prompt))
    assert out.splitlines()[-1] == f"all agree ({count} compared; 0 activations were not given)"


def test_the_command_on_a_wrong_gpt2(compared, prompt, tmp_path):
    wrong = with_mistake(MODELS["shakespeare"], prompt[None], "is relu")
    np.savez(tmp_path / "wrong.npz", ids=prompt, **wrong)
    code, out, _ = compared("wrong.npz")
    assert code == 1
    assert out.splitlines()[-1] == "mlp.0.post: yours is relu, in every layer"


def test_the_command_on_a_folder_as_json(compared, prompt, tmp_path):
    wrong = with_mistake(MODELS["shakespeare"], prompt[None], "is relu")
    (tmp_path / "folder").mkdir()
    np.save(tmp_path / "folder" / "ids.npy", prompt)
    for name, array in wrong.items():
        np.save(tmp_path / "folder" / f"{name}.npy", array)
    code, out, _ = compared("folder", "--json")
    document = json.loads(out)
    assert code == 1
    assert document["same"] is False
    assert document["diagnosis"] == ["mlp.0.post: yours is relu, in every layer"]
    assert len(document["rows"]) == len(wrong)


def test_nan_is_null_in_json(compared, prompt, tmp_path):
    embed = tape_of(MODELS["shakespeare"], prompt)["embed"]
    np.savez(tmp_path / "nan.npz", ids=prompt, embed=embed * np.nan)
    _, out, _ = compared("nan.npz", "--json")
    assert STRICT_JSON.decode(out)["rows"][0]["yours"] is None


OBJECTS = np.array([{}], dtype=object)
CAN_RUN_CODE = (
    "FILE: 'embed' is not an array of numbers but of Python objects, which are not read because "
    "that can run code"
)
EXPECTED_FILES = ".npz, .safetensors or .json file, or a directory of .npy files"
ONE_ARRAY = "FILE is one array: put ids.npy and logits.npy into one directory, and give its name"
# A name in the folder -> what is written there, and the error, or a part of it. FILE is the path.
BAD_FILES = {
    "none.npz": (
        lambda path: None,
        f"FILE: No such file or directory; expected a {EXPECTED_FILES}\n",
    ),
    "none.json": (
        lambda path: None,
        'FILE: No such file or directory; expected an object such as {"ids": [1, 2], "embed": '
        "[[0.5, ...], ...]}\n",
    ),
    "none.safetensors": (lambda path: None, "FILE: cannot be read: No such file or directory\n"),
    "empty": (lambda path: path.mkdir(), "FILE: there are no arrays in it\n"),
    "text.npz": (
        lambda path: path.write_text("not an archive"),
        f"FILE is not a {EXPECTED_FILES}: File is not a zip file\n",
    ),
    "logits.npy": (lambda path: np.save(path, np.ones((1, 3, 4))), f"{ONE_ARRAY}\n"),
    "LOGITS.NPY": (lambda path: path.write_bytes(b""), f"{ONE_ARRAY}\n"),
    "missing.npy": (
        lambda path: None,
        f"FILE: No such file or directory; expected a {EXPECTED_FILES}",
    ),
    "objects.npz": (
        lambda path: np.savez(path, ids=np.arange(3), embed=OBJECTS),
        f"{CAN_RUN_CODE}\n",
    ),
    "objects": (lambda path: np.save(made(path) / "embed.npy", OBJECTS), f"{CAN_RUN_CODE}\n"),
    "two names.npz": (
        lambda path: np.savez(path, **{"ids": [1], "ln_f": np.ones(3), "final": np.zeros(3)}),
        "FILE: 'ln_f' and 'final' are both final, and they differ: give one of them\n",
    ),
    # Of three arrays of one activation, the last one differs.
    "three names.npz": (
        lambda path: np.savez(
            path,
            **{"ids": [1], "ln_f": [1.0], "transformer.ln_f": [1.0], "final": [1 + 1e-7]},
        ),
        "FILE: 'ln_f' and 'final' are both final, and they differ: give one of them\n",
    ),
    "of torch.npz": (
        lambda path: path.write_bytes(torch_file({"embed": np.zeros((3, 4), np.float32)})),
        "FILE is a file of PyTorch: `-m FILE` and load_model(FILE) read the model in it, with ",
    ),
    "no ids.npz": (
        lambda path: np.savez(path, embed=np.zeros((1, 3, 128))),
        "has no `ids`: add the token ids that the other model read",
    ),
    "only ids.npz": (
        lambda path: np.savez(path, ids=np.arange(3)),
        "has no activations beside `ids`",
    ),
}


@pytest.mark.parametrize("shape", [(1, 2, 3), (2, 3), (6,)])
def test_two_names_of_one_activation_may_have_the_same_numbers(tmp_path, shape):
    """A sequence may be there with an axis of one text, and without it."""
    numbers = np.arange(6.0).reshape(1, 2, 3)
    np.savez(tmp_path / "a.npz", ids=[1, 2], ln_f=numbers, final=numbers.reshape(shape))
    assert set(read_arrays(tmp_path / "a.npz")) == {"ids", "ln_f", "final"}


def test_arrays_that_are_not_compared_may_differ(tmp_path):
    """So may those of names that are not known. Numbers in JSON may be true and false."""
    np.savez(tmp_path / "a.npz", ln1_mean=[1], ln1_rstd=[2], mine=[3], other=[4])
    assert len(read_arrays(tmp_path / "a.npz")) == 4
    (tmp_path / "a.json").write_text('{"ids": [1, 2], "mask": [true, false]}')
    assert read_arrays(tmp_path / "a.json")["mask"].tolist() == [True, False]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_numbers_in_json_keep_their_precision(tmp_path, encoding):
    """Beside null, too. Programs for Windows write JSON with a mark before it, or in UTF-16."""
    text = '{"ids": [1, 2], "embed": [0.1, 2], "final": [null, 0.1, 12345678901234567890]}'
    (tmp_path / "a.json").write_text(text, encoding=encoding)
    arrays = read_arrays(tmp_path / "a.json")
    assert list(arrays) == ["ids", "embed", "final"]
    assert arrays["ids"].dtype.kind == "i"
    np.testing.assert_array_equal(arrays["embed"], [0.1, 2.0])
    np.testing.assert_array_equal(arrays["final"], [np.nan, 0.1, 12345678901234567890.0])
    assert arrays["embed"].dtype == arrays["final"].dtype == np.float64


def test_all_arrays_of_a_folder_are_read_in_the_order_of_their_names(tmp_path):
    """Of two arrays of one activation, the last one counts."""
    for name, number in (("logits", 3), ("ids", 1), ("embed", 2)):
        np.save(tmp_path / f"{name}.npy", np.array([number]))
    (tmp_path / "notes.txt").write_text("not read")
    arrays = read_arrays(tmp_path)
    assert list(arrays) == ["embed", "ids", "logits"]
    assert [int(array[0]) for array in arrays.values()] == [2, 1, 3]


def made(directory):
    directory.mkdir()
    return directory


@pytest.mark.parametrize("name", BAD_FILES)
def test_the_command_on_a_bad_file(compared, tmp_path, name):
    write, message = BAD_FILES[name]
    path = tmp_path / name
    write(path)
    assert_one_error_line(compared(name), message.replace("FILE", str(path), 1))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param("a.json", "{", "a.json is not JSON: ", id="not-json"),
        pytest.param(
            "a.json",
            "[1]",
            'a.json: expected an object such as {"ids": [1, 2], "embed": [[0.5, ...], ...]}, '
            "got [1]\n",
            id="a-list",
        ),
        pytest.param("a.json", "5", "[[0.5, ...], ...]}, got 5\n", id="a-number"),
        pytest.param("a.json", "{}", "a.json: there are no arrays in it\n", id="empty"),
        pytest.param(
            "a.json",
            '{"ids": [[1], [1, 2]]}',
            "a.json: 'ids' is not lists of numbers of equal lengths: setting an array element",
            id="ragged",
        ),
        pytest.param(
            "a.json", '{"ids": ["1"]}', "a.json: 'ids' is not lists of numbers\n", id="text"
        ),
        pytest.param(
            "a.json",
            '{"ids": {"0": 1}}',
            "a.json: 'ids' is not lists of numbers of equal lengths: float() argument",
            id="object",
        ),
        pytest.param(
            "a.json",
            '{"ids": [1' + "0" * 400 + "]}",
            "a.json: 'ids' is not lists of numbers of equal lengths: int too large to convert",
            id="huge-number",
        ),
        pytest.param(
            "a.json",
            '{"ids": [null, "a"]}',
            "a.json: 'ids' is not lists of numbers of equal lengths: a text\n",
            id="null",
        ),
        pytest.param("a.json", "[" * 200_000, "a.json is not JSON: ", id="nested"),
        pytest.param("a.bin", "x", "a.bin may be a file of PyTorch", id="another-kind"),
        pytest.param("a.safetensors", "x", "not a safetensors file", id="not-safetensors"),
        pytest.param("a.SAFETENSORS", "x", "not a safetensors file", id="capitals"),
        pytest.param(
            "a.json", '{"ids": [1], "ids": [2]}', "is not JSON: 'ids' is in it twice\n", id="twice"
        ),
        pytest.param("a.json", '{"ids": 0, "ids": [2]}', "'ids' is in it twice", id="0 twice"),
        pytest.param(
            "a.json",
            '{"ids": [1], "attn.0.qkv": [[1]], "h.0.attn.c_attn": [[2]]}',
            "'attn.0.qkv' and 'h.0.attn.c_attn' are both attn.0.qkv, and they differ: give "
            "one of them\n",
            id="two-names",
        ),
    ],
)
def test_the_command_on_a_file_of_wrong_text(name, content, message, run, tmp_path):
    path = tmp_path / name
    path.write_text(content)
    result = run("compare", "-m", "shakespeare-tied", str(path))
    assert_one_error_line(result, message)
    assert str(path) in result[2]


@pytest.mark.parametrize("content", [b"x", None], ids=["damaged", "missing"])
def test_a_safetensors_file_that_cannot_be_read_is_a_wrong_argument(content, tmp_path):
    path = tmp_path / "a.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ArgumentError, match="a\\.safetensors: "):
        read_arrays(path)


@pytest.fixture
def noise(prompt, tmp_path):
    """The name of a file of logits that no known mistake explains."""
    logits = MODELS["shakespeare"](prompt)
    np.savez(tmp_path / "noise.npz", ids=prompt, logits=logits + np.sin(logits))
    return "noise.npz"


def test_the_command_with_a_limit_of_trials(compared, noise):
    code, out, _ = compared(noise, "--trials", "3")
    assert code == 1
    assert "logits: this is none of the known mistakes in 3 trials of " in out
    assert "; to make all, give --trials " in out


def test_the_limit_of_trials_in_json(compared, noise):
    _, out, _ = compared(noise, "--trials", "3", "--json")
    document = json.loads(out)
    assert document["trials"] == 3
    assert document["all_trials"] > 700, "about 100 mistakes, most of them in each of 4 layers"


SOME_NAMES = ["attn.0.in", "attn.1.out", "mlp.1.in", "mlp.1.post", "final"]


@pytest.mark.parametrize(
    ("detail", "name"),
    [
        pytest.param(detail, name, marks=() if d == n == 0 else SLOW)
        for d, detail in enumerate(VARIANTS)
        for n, name in enumerate(SOME_NAMES)
    ],
)
def test_the_mistakes_of_each_activation_are_tried_in_a_model_with_any_detail(detail, name):
    """The activation is 3 times what it should be, which is no known mistake of it."""
    model = random_model(VARIANTS[detail])
    ids = some_ids(model, B=2, T=9)
    report = compare(model, {name: 3 * tape_of(model, ids)[name]}, ids)
    assert report.first.name == name
