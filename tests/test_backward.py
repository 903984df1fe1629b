"""Gradients against central differences in float64.

tests/test_gradients.py compares the same gradients with torch's.
"""

import numpy as np
import pytest
from support.models import SMALL, random_model

from tiedgpt import Config
from tiedgpt.gpt2 import backward
from tiedgpt.gpt2.activations import ACTIVATIONS
from tiedgpt.gpt2.backward import write_gradients, write_head_gradient
from tiedgpt.gpt2.model import transformer
from tiedgpt.gpt2.ops import cross_entropy
from tiedgpt.gpt2.run import Run

STEP = 1e-6  # of central differences


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_each_activations_derivative(name):
    activation = ACTIVATIONS[name]
    rng = np.random.default_rng(0)
    x = 3 * rng.standard_normal((7, 11))
    x += np.sign(x) * 1e-3  # away from 0, where relu has no derivative
    x[0, 0] = -1e-3  # but near to it on both sides
    x[0, 1] = 1e-3
    dout = rng.standard_normal((7, 11))
    x_before = x.copy()
    dout_before = dout.copy()

    slope = (activation.forward(x + STEP) - activation.forward(x - STEP)) / (2 * STEP)
    np.testing.assert_allclose(activation.backward(dout, x), dout * slope, rtol=1e-6, atol=1e-8)
    # Neither argument was changed.
    np.testing.assert_array_equal(x, x_before)
    np.testing.assert_array_equal(dout, dout_before)


def gradients_of(model, ids, targets, seed=None):
    """The loss and its gradients; `seed` is the dropout's. Without it nothing is dropped."""
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


TINY = {"vocab_size": 13, "n_ctx": 7, "n_embd": 6, "n_head": 3, "n_inner": 5}
TINY |= {"bos_token_id": None, "eos_token_id": None, "layer_norm_epsilon": 1e-2}
CONFIGS = {
    "tied": Config(**TINY, n_layer=2),
    "untied": Config(**TINY, n_layer=2, tied=False),
    "no layers": Config(**TINY, n_layer=0),
    "scaled by layer": Config(**TINY, n_layer=2, scale_attn_by_inverse_layer_idx=True),
    "unscaled": Config(**TINY, n_layer=1, scale_attn_weights=False),
    "dropout": Config(**TINY, n_layer=2, embd_pdrop=0.2, resid_pdrop=0.3, attn_pdrop=0.4),
}
IDS = np.array([[3, 1, 3, 12], [7, 3, 3, 5]])
TARGETS = np.array([[1, 3, 12, 0], [3, 3, 5, 1]])


@pytest.mark.parametrize("case", CONFIGS)
def test_the_models_gradients(case, monkeypatch):
    """The gradient of each parameter gives the slope of the loss in two random directions."""
    # The eight rows of logits come in pieces of three, so the last piece is shorter.
    monkeypatch.setattr(backward, "LOGIT_ROWS", 3)
    model = random_model(CONFIGS[case], dtype=np.float64)
    seed = 5 if case == "dropout" else None
    _, gradients = gradients_of(model, IDS, TARGETS, seed)
    rng = np.random.default_rng(0)
    for name, parameter in model.parameters.items():
        before = parameter.copy()
        for direction in rng.standard_normal((2, *parameter.shape)):
            parameter[...] = before + STEP * direction
            loss_above, _ = gradients_of(model, IDS, TARGETS, seed)
            parameter[...] = before - STEP * direction
            loss_below, _ = gradients_of(model, IDS, TARGETS, seed)
            parameter[...] = before

            slope = (loss_above - loss_below) / (2 * STEP)
            computed = (gradients[name] * direction).sum()
            assert computed == pytest.approx(slope, rel=1e-5, abs=1e-8), name


def test_the_loss_is_the_mean_cross_entropy():
    model = random_model(CONFIGS["tied"])
    loss, _ = gradients_of(model, IDS, TARGETS)
    logits = model(IDS).reshape(TARGETS.size, -1)  # [B T, V]
    losses = cross_entropy(logits, TARGETS.ravel())
    assert loss == pytest.approx(losses.mean(), rel=1e-6)


def test_a_second_call_gives_the_same_and_changes_no_parameter():
    model = random_model(CONFIGS["tied"])
    loss, gradients = gradients_of(model, IDS, TARGETS)
    first_gradients = {name: array.copy() for name, array in gradients.items()}
    parameters = {name: array.copy() for name, array in model.parameters.items()}
    second_loss = write_gradients(model, IDS, TARGETS, total=TARGETS.size, gradients=gradients)
    assert second_loss == loss
    for name in parameters:
        np.testing.assert_array_equal(gradients[name], first_gradients[name])
        np.testing.assert_array_equal(model.parameters[name], parameters[name])


def test_the_two_gradients_of_a_tied_wte_add_up():
    """Untied, with W_U = wte.T, they are apart; their sum is the tied gradient to the last bit."""
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


def test_tokens_that_are_not_read_have_a_gradient_from_the_output_matrix_alone():
    untied = random_model(dtype=np.float64).untie("copy")
    ids, targets = some_batch()
    _, gradients = gradients_of(untied, ids, targets)
    unread = np.setdiff1d(np.arange(SMALL.vocab_size), ids)
    assert unread.size > 0
    assert not gradients["wte.weight"][unread].any()
    assert gradients["lm_head.weight"][unread].all()


def test_the_gradient_of_the_output_matrix_alone():
    """It is the one of the whole backward pass.

    These tokens are half of a larger batch here. So the loss is half of their mean loss, and the
    gradient is half of its gradient.
    """
    untied = random_model(dtype=np.float64).untie("copy")
    ids, targets = some_batch()
    loss, gradients = gradients_of(untied, ids, targets)
    d_head = np.full_like(untied.W_E, np.nan)  # write_head_gradient fills it
    tokens_of_the_batch = 2 * targets.size
    half_loss = write_head_gradient(untied, ids, targets, total=tokens_of_the_batch, dhead=d_head)
    assert 2 * half_loss == loss
    np.testing.assert_array_equal(2 * d_head, gradients["lm_head.weight"])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradients_have_the_parameters_dtype(dtype, monkeypatch):
    """What each derivative returns is looked at.

    A float64 result would not show in the gradients: it is written into float32 arrays.
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
    """The same function. It puts the dtype of each of its results into the set `dtypes`."""

    def recording(*arguments):
        dx = derivative(*arguments)
        dtypes.add(dx.dtype)
        return dx

    return recording


RATES = {"embed": 0.5, "attn.0.out": 0.25, "mlp.0.out": 0.25}
WITH_DROPOUT = Config(**TINY, n_layer=1, embd_pdrop=0.5, resid_pdrop=0.25, attn_pdrop=0.0)


def tape_with_dropout(rng):
    """The tape of WITH_DROPOUT on many tokens. Nothing is dropped if rng is None."""
    model = random_model(WITH_DROPOUT)
    ids = np.random.default_rng(1).integers(0, 13, (600, 7))
    tape = {}
    transformer(ids, model.tree, Run(WITH_DROPOUT, tape=tape, rng=rng))
    return tape


def test_without_a_generator_nothing_is_dropped():
    tape = tape_with_dropout(rng=None)
    assert not [name for name in tape if name.endswith(".kept")]


def test_dropout_is_where_a_rate_is_not_0():
    tape = tape_with_dropout(np.random.default_rng(1))
    masks = {name for name in tape if name.endswith(".kept")}
    assert masks == {"embed.kept", "attn.0.out.kept", "mlp.0.out.kept"}


@pytest.mark.parametrize("name", RATES)
def test_dropout_keeps_the_mean_and_the_right_share(name):
    tape = tape_with_dropout(np.random.default_rng(1))
    mask = tape[f"{name}.kept"]
    assert mask.shape == tape[name].shape
    assert set(np.unique(mask).tolist()) == {0.0, np.float32(1 / (1 - RATES[name]))}
    assert mask.mean() == pytest.approx(1, abs=0.03)
    assert not tape[name][mask == 0].any()


@pytest.mark.parametrize("name", RATES)
def test_the_derivative_of_dropout_is_its_mask(name):
    tape = tape_with_dropout(np.random.default_rng(1))
    mask = tape[f"{name}.kept"]
    factors = backward.dropout_backward(np.ones_like(mask), name, tape)
    np.testing.assert_array_equal(factors, mask)
