"""The gradients of the backward pass equal central differences in float64; what dropout does.

A central difference is (f(x + step) - f(x - step)) / (2 step), which is near the slope of f at x.
The tape holds the activations of a forward pass by name. NAME.kept is the mask of the dropout after
NAME: 0 for each number that is dropped, 1 / (1 - rate) for each that is kept.
tests/gpt2/test_gradients.py compares the same gradients with torch's.
"""

from dataclasses import replace

import numpy as np
import pytest
from support.checks import peak_memory
from support.models import SMALL, VARIANTS, random_model

from tiedgpt import Config, loss_and_gradients
from tiedgpt.errors import ArgumentError
from tiedgpt.gpt2 import backward
from tiedgpt.gpt2.activations import ACTIVATIONS
from tiedgpt.gpt2.backward import write_gradients, write_head_gradient
from tiedgpt.gpt2.model import transformer
from tiedgpt.gpt2.ops import cross_entropy
from tiedgpt.gpt2.run import Run

STEP = 1e-6  # of central differences


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_the_derivative_of_each_activation_function_equals_central_differences(name):
    activation = ACTIVATIONS[name]
    rng = np.random.default_rng(0)
    x = 3 * rng.standard_normal((7, 11))
    # relu has no derivative at 0, so every number is at least 1e-3 away from 0.
    x += np.sign(x) * 1e-3
    # Two numbers are as near to 0 as that, one on each side.
    x[0, 0] = -1e-3
    x[0, 1] = 1e-3
    dout = rng.standard_normal((7, 11))
    x_before = x.copy()
    dout_before = dout.copy()

    slope = (activation.forward(x + STEP) - activation.forward(x - STEP)) / (2 * STEP)
    np.testing.assert_allclose(activation.backward(dout, x), dout * slope, rtol=1e-6, atol=1e-8)
    # Neither argument was changed.
    np.testing.assert_array_equal(x, x_before)
    np.testing.assert_array_equal(dout, dout_before)


def test_relu_has_the_derivative_0_at_0():
    relu = ACTIVATIONS["relu"]
    np.testing.assert_array_equal(relu.backward(np.ones(3), np.array([-1.0, 0, 1])), [0, 0, 1])


def gradients_of(model, ids, targets, seed=None):
    """(the loss, its gradients). Dropout draws from `seed`; without it, nothing is dropped."""
    # write_gradients fills these arrays. A number that it does not write stays nan.
    gradients = {name: np.full_like(array, np.nan) for name, array in model.parameters.items()}
    rng = None
    if seed is not None:
        rng = np.random.default_rng(seed)
    loss = write_gradients(model, ids, targets, total=targets.size, gradients=gradients, rng=rng)
    return loss, gradients


def some_batch():
    """Random ids and targets of SMALL's vocabulary, [3, 19] each."""
    ids, targets = np.random.default_rng(1).integers(0, SMALL.vocab_size, (2, 3, 19))
    return ids, targets


# Small sizes, because the test of the gradients computes the loss four times for each parameter
TINY = {"vocab_size": 13, "n_ctx": 7, "n_embd": 6, "n_head": 3, "n_inner": 5}
TINY |= {"bos_token_id": None, "eos_token_id": None, "layer_norm_epsilon": 1e-2}
CONFIGS = {
    "tied": Config(**TINY, n_layer=2),
    "no layers": Config(**TINY, n_layer=0),
    **{f"another {name}": replace(config, **TINY) for name, config in VARIANTS.items()},
    "dropout": Config(**TINY, n_layer=2, embd_pdrop=0.2, resid_pdrop=0.3, attn_pdrop=0.4),
}
IDS = np.array([[3, 1, 3, 12], [7, 3, 3, 5]])
TARGETS = np.array([[1, 3, 12, 0], [3, 3, 5, 1]])


def loss_of(model, seed):
    """The loss of IDS. Dropout draws from `seed`; without it, nothing is dropped."""
    if seed is not None:
        loss, _ = gradients_of(model, IDS, TARGETS, seed)
        return loss
    logits = model(IDS).reshape(TARGETS.size, -1)  # [B T, V]
    return cross_entropy(logits, TARGETS.ravel()).mean()


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=pytest.mark.slow) if case.startswith("another") else case
        for case in CONFIGS
    ],
)
def test_the_models_gradients_equal_central_differences(case, monkeypatch):
    """For each parameter, the slope of the loss in two random directions is computed both ways."""
    # A batch has 8 tokens, so 8 rows of logits. They are cut into pieces of 3, 3 and 2 rows.
    monkeypatch.setattr(backward, "LOGIT_ROWS", 3)
    model = random_model(CONFIGS[case], dtype=np.float64)
    seed = 5 if case == "dropout" else None
    _, gradients = gradients_of(model, IDS, TARGETS, seed)
    rng = np.random.default_rng(0)
    for name, parameter in model.parameters.items():
        before = parameter.copy()
        for direction in rng.standard_normal((2, *parameter.shape)):
            parameter[...] = before + STEP * direction
            loss_above = loss_of(model, seed)
            parameter[...] = before - STEP * direction
            loss_below = loss_of(model, seed)
            parameter[...] = before

            slope = (loss_above - loss_below) / (2 * STEP)
            computed = (gradients[name] * direction).sum()
            assert computed == pytest.approx(slope, rel=1e-5, abs=1e-8), name


def test_the_loss_is_the_mean_cross_entropy_of_the_models_logits():
    model = random_model(CONFIGS["tied"])
    loss, _ = gradients_of(model, IDS, TARGETS)
    logits = model(IDS).reshape(TARGETS.size, -1)  # [B T, V]
    losses = cross_entropy(logits, TARGETS.ravel())
    assert loss == pytest.approx(losses.mean(), rel=1e-6)


def test_a_second_call_overwrites_the_gradients_with_equal_ones_and_changes_no_parameter():
    model = random_model(CONFIGS["tied"])
    loss, gradients = gradients_of(model, IDS, TARGETS)
    first_gradients = {name: array.copy() for name, array in gradients.items()}
    parameters = {name: array.copy() for name, array in model.parameters.items()}
    # The second call writes into the arrays `gradients`, which hold the gradients of the first.
    second_loss = write_gradients(model, IDS, TARGETS, total=TARGETS.size, gradients=gradients)
    assert second_loss == loss
    for name in parameters:
        np.testing.assert_array_equal(gradients[name], first_gradients[name])
        np.testing.assert_array_equal(model.parameters[name], parameters[name])


def test_the_gradient_of_a_tied_wte_is_the_sum_of_the_gradients_of_both_untied_matrices():
    """The untied model starts with W_U = wte.T, so both models compute the same loss.

    The sum is equal to the last bit. All gradients but that of wte are the same in both models.
    """
    tied = random_model(dtype=np.float64)
    untied = tied.untie("copy")
    ids, targets = some_batch()
    tied_loss, tied_gradients = gradients_of(tied, ids, targets)
    untied_loss, untied_gradients = gradients_of(untied, ids, targets)
    d_embed = untied_gradients["wte.weight"]
    d_head = untied_gradients["lm_head.weight"]

    assert tied_loss == untied_loss
    assert np.abs(d_embed).max() > 1e-3
    assert np.abs(d_head).max() > 1e-3
    np.testing.assert_array_equal(tied_gradients["wte.weight"], d_embed + d_head)
    for name in tied_gradients:
        if name != "wte.weight":
            np.testing.assert_array_equal(tied_gradients[name], untied_gradients[name])


def test_a_token_outside_the_batch_has_gradient_0_in_the_embedding_but_not_in_the_output_matrix():
    untied = random_model(dtype=np.float64).untie("copy")
    ids, targets = some_batch()
    _, gradients = gradients_of(untied, ids, targets)
    unread = np.setdiff1d(np.arange(SMALL.vocab_size), ids)
    assert unread.size > 0
    assert not gradients["wte.weight"][unread].any()
    assert gradients["lm_head.weight"][unread].all()


def test_write_head_gradient_and_the_whole_backward_pass_give_the_same_gradient_of_the_head():
    """write_head_gradient divides the sum of the losses by `total`.

    Here `total` is twice the number of these tokens, as if they were half of a larger batch. So the
    loss and the gradient are half of those of the whole backward pass.
    """
    untied = random_model(dtype=np.float64).untie("copy")
    ids, targets = some_batch()
    loss, gradients = gradients_of(untied, ids, targets)
    d_head = np.full_like(untied.W_E, np.nan)  # write_head_gradient fills it
    total = 2 * targets.size
    half_loss = write_head_gradient(untied, ids, targets, total=total, dhead=d_head)
    assert 2 * half_loss == loss
    np.testing.assert_array_equal(2 * d_head, gradients["lm_head.weight"])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_each_derivative_has_the_dtype_of_the_parameters(dtype, monkeypatch):
    """The test records the dtype of what each derivative function returns.

    The arrays of the gradients would not show a wrong dtype, because they have been made before.
    """
    dtypes = set()
    derivatives = (
        "layer_norm_backward",
        "linear_backward",
        "softmax_backward",
        "cross_entropy_backward",
    )
    for name in derivatives:
        derivative = getattr(backward, name)
        monkeypatch.setattr(backward, name, recording_dtypes(derivative, dtypes))
    gradients_of(random_model(CONFIGS["dropout"], dtype=dtype), IDS, TARGETS, seed=1)
    assert dtypes == {np.dtype(dtype)}


def recording_dtypes(derivative, dtypes):
    """A function that calls `derivative` and adds the dtype of its result to the set `dtypes`."""

    def recording(*arguments):
        dx = derivative(*arguments)
        dtypes.add(dx.dtype)
        return dx

    return recording


WITH_DROPOUT = Config(**TINY, n_layer=1, embd_pdrop=0.5, resid_pdrop=0.25, attn_pdrop=0.0)
# An activation of this model after which some numbers are dropped -> the rate
RATES = {"embed": 0.5, "attn.0.out": 0.25, "mlp.0.out": 0.25}


def tape_with_dropout(rng):
    """The tape of the model WITH_DROPOUT for 600 texts of 7 tokens; rng draws what is dropped."""
    model = random_model(WITH_DROPOUT)
    ids = np.random.default_rng(1).integers(0, WITH_DROPOUT.vocab_size, (600, 7))
    tape = {}
    transformer(ids, model.tree, Run(WITH_DROPOUT, tape=tape, rng=rng))
    return tape


def test_a_loss_with_dropout_depends_on_the_random_generator():
    model = random_model(CONFIGS["dropout"])
    losses = {gradients_of(model, IDS, TARGETS, seed)[0] for seed in (None, 1, 2)}
    assert len(losses) == 3


def test_without_a_random_generator_nothing_is_dropped():
    tape = tape_with_dropout(rng=None)
    masks = [name for name in tape if name.endswith(".kept")]
    assert masks == []


def test_dropout_has_a_mask_at_each_place_whose_rate_is_not_0():
    """The model has the rates embd_pdrop and resid_pdrop. Its attn_pdrop is 0."""
    tape = tape_with_dropout(np.random.default_rng(1))
    masks = {name for name in tape if name.endswith(".kept")}
    assert masks == {"embed.kept", "attn.0.out.kept", "mlp.0.out.kept"}


@pytest.mark.parametrize("name", RATES)
def test_a_mask_is_0_or_1_divided_by_the_share_that_is_kept_and_its_mean_is_1(name):
    tape = tape_with_dropout(np.random.default_rng(1))
    mask = tape[f"{name}.kept"]
    kept_share = 1 - RATES[name]
    assert mask.shape == tape[name].shape
    assert set(np.unique(mask).tolist()) == {0.0, np.float32(1 / kept_share)}
    assert mask.mean() == pytest.approx(1, abs=0.03)
    dropped = tape[name][mask == 0]
    assert not dropped.any(), "each number that is dropped is 0 in the tape"


@pytest.mark.parametrize("name", RATES)
def test_dropout_backward_multiplies_by_the_mask(name):
    tape = tape_with_dropout(np.random.default_rng(1))
    mask = tape[f"{name}.kept"]
    dout = np.ones_like(mask)
    dx = backward.dropout_backward(dout, name, tape)
    np.testing.assert_array_equal(dx, mask)


# The public function


def test_loss_and_gradients_of_one_sequence_are_those_of_a_batch_of_one():
    model = random_model(dtype=np.float64)
    ids, targets = [3, 5, 8], [5, 8, 2]
    loss, gradients = loss_and_gradients(model, ids, targets)
    expected_loss, expected = gradients_of(model, np.array([ids]), np.array([targets]))
    assert loss == expected_loss
    np.testing.assert_equal(gradients, expected)


def test_loss_and_gradients_of_a_batch_are_means_over_all_its_tokens():
    model = random_model(CONFIGS["dropout"], dtype=np.float64)
    loss, gradients = loss_and_gradients(model, IDS.tolist(), TARGETS.tolist())
    expected_loss, expected = gradients_of(model, IDS, TARGETS)
    assert loss == expected_loss
    np.testing.assert_equal(gradients, expected)


def test_the_scores_of_attention_are_not_kept_for_the_backward_pass():
    """In this model the patterns [H, T, T] are much larger than all other activations."""
    sizes = {"vocab_size": 5, "n_ctx": 64, "n_embd": 8, "n_head": 8, "n_inner": 8, "n_layer": 8}
    model = random_model(Config(**sizes, bos_token_id=None, eos_token_id=None))
    ids = [1] * 64
    pattern = 4 * 8 * 64 * 64  # its bytes
    peak = peak_memory(loss_and_gradients, model, ids, ids)
    assert 8 * pattern < peak < 13 * pattern


@pytest.mark.parametrize(
    ("ids", "targets", "message"),
    [
        ([1, 2], [1, SMALL.vocab_size], f"token id {SMALL.vocab_size} is outside"),
        ([1, -2], [1, 2], "token id -2 is outside"),
    ],
)
def test_targets_that_are_not_those_of_the_ids_are_refused(ids, targets, message):
    with pytest.raises(ArgumentError, match=message):
        loss_and_gradients(random_model(), ids, targets)
