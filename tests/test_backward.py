"""Gradients against central differences in float64: of each activation, of the whole model, of a tied wte.

tests/test_gradients.py compares the same gradients with torch's.
"""

import numpy as np
import pytest
from conftest import SMALL, random_model

from tiedgpt import Config, backward
from tiedgpt.activations import ACTIVATIONS
from tiedgpt.backward import write_gradients, write_head_gradient
from tiedgpt.ops import softmax
from tiedgpt.run import Run


def central_differences(f, x, h=1e-6):
    """The gradient of f() by x, where f reads the array x."""
    gradient = np.empty_like(x)
    for i in np.ndindex(x.shape):
        before = x[i]
        x[i] = before + h
        above = f()
        x[i] = before - h
        gradient[i] = (above - f()) / (2 * h)
        x[i] = before
    return gradient


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_each_activations_derivative(name):
    activation = ACTIVATIONS[name]
    x, dout = np.random.default_rng(0).standard_normal((2, 7, 11)) * [[[3]], [[1]]]
    x += np.sign(x) * 1e-3  # away from 0, where relu has no derivative
    before = x.copy(), dout.copy()
    dx = activation.backward(dout, x)
    expected = central_differences(lambda: (activation.forward(x) * dout).sum(), x)
    np.testing.assert_allclose(dx, expected, rtol=1e-6, atol=1e-8)
    np.testing.assert_array_equal((x, dout), before)


def batch(B, T):
    """Random ids [B, T] and the tokens after each."""
    ids = np.random.default_rng(1).integers(0, SMALL.vocab_size, (B, T + 1))
    return ids[:, :-1], ids[:, 1:]


def gradients_of(model, ids, targets, seed=None):
    """The loss and its gradients; `seed` is the dropout's."""
    gradients = {name: np.full_like(array, np.nan) for name, array in model.parameters.items()}
    rng = None if seed is None else np.random.default_rng(seed)
    return write_gradients(model, ids, targets, targets.size, gradients, rng), gradients


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


@pytest.mark.parametrize("case", CONFIGS)
def test_the_models_gradients(case):
    model = random_model(CONFIGS[case], dtype=np.float64)
    ids, targets = np.array([[3, 1, 3, 12], [7, 3, 3, 5]]), np.array([[1, 3, 12, 0], [3, 3, 5, 1]])
    seed = 5 if case == "dropout" else None
    _, gradients = gradients_of(model, ids, targets, seed)
    for name, parameter in model.parameters.items():
        expected = central_differences(lambda: gradients_of(model, ids, targets, seed)[0], parameter)
        np.testing.assert_allclose(gradients[name], expected, rtol=1e-5, atol=1e-8, err_msg=name)


def test_the_loss_is_the_mean_cross_entropy_of_the_logits(monkeypatch):
    monkeypatch.setattr(backward, "LOGIT_ROWS", 7)  # so that the logits come in pieces, the last one shorter
    model = random_model(dtype=np.float64)
    ids, targets = batch(2, 9)
    loss, gradients = gradients_of(model, ids, targets)
    expected = -np.log(softmax(model(ids).reshape(18, -1)))[np.arange(18), targets.reshape(-1)].mean()
    assert loss == pytest.approx(expected, rel=1e-12)
    monkeypatch.setattr(backward, "LOGIT_ROWS", 10_000)
    whole_loss, whole = gradients_of(model, ids, targets)
    assert loss == pytest.approx(whole_loss, rel=1e-12)
    for name in whole:
        np.testing.assert_allclose(gradients[name], whole[name], rtol=1e-9, atol=1e-12)


def test_the_two_gradients_of_a_tied_wte_add_up():
    """Untied, with W_U = wte.T, they are apart; their sum is the tied gradient to the last bit."""
    tied = random_model(dtype=np.float64)
    untied = tied.untie("copy")
    ids, targets = batch(3, 19)
    tied_loss, together = gradients_of(tied, ids, targets)
    untied_loss, apart = gradients_of(untied, ids, targets)
    d_embed, d_head = apart["wte.weight"], apart["lm_head.weight"]
    assert tied_loss == untied_loss
    assert np.abs(d_embed).max() > 1e-3
    assert np.abs(d_head).max() > 1e-3
    np.testing.assert_array_equal(together["wte.weight"], d_embed + d_head)
    for name in together:
        if name != "wte.weight":
            np.testing.assert_array_equal(together[name], apart[name], err_msg=name)
    # A row that no token of the batch reads has no gradient from embedding, but every row unembeds.
    unread = np.setdiff1d(np.arange(SMALL.vocab_size), ids)
    assert unread.size
    assert not d_embed[unread].any()
    assert d_head[unread].all()


def test_twice_gives_the_same():
    model = random_model()
    ids, targets = batch(2, 8)
    first, gradients = gradients_of(model, ids, targets)
    kept = {name: gradient.copy() for name, gradient in gradients.items()}
    parameters = {name: array.copy() for name, array in model.parameters.items()}
    assert write_gradients(model, ids, targets, 16, gradients) == first
    for name in kept:
        np.testing.assert_array_equal(gradients[name], kept[name])
        np.testing.assert_array_equal(model.parameters[name], parameters[name])


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_gradients_have_the_parameters_dtype(dtype, monkeypatch):
    """A float64 anywhere in a float32 model's backward pass would become float32 when it is written."""
    seen = set()
    for name in ("layer_norm_backward", "linear_backward", "softmax_backward", "cross_entropy_backward"):
        original = getattr(backward, name)

        def spy(*args, original=original):
            out = original(*args)
            seen.add(out.dtype)
            return out

        monkeypatch.setattr(backward, name, spy)
    model = random_model(CONFIGS["dropout"], dtype=dtype)
    gradients_of(model, np.array([[3, 1, 3, 12]]), np.array([[1, 3, 12, 0]]), seed=1)
    assert seen == {np.dtype(dtype)}


def test_the_heads_gradient_alone_is_the_same():
    model = random_model(dtype=np.float64).untie("random")
    ids, targets = batch(2, 8)
    loss, gradients = gradients_of(model, ids, targets)
    alone = np.full_like(model.W_E, np.nan)
    assert write_head_gradient(model, ids, targets, 16, alone) == loss
    np.testing.assert_array_equal(alone, gradients["lm_head.weight"])


def test_dropout_keeps_the_mean_and_the_right_share(monkeypatch):
    config = Config(**TINY, n_layer=1, embd_pdrop=0.5, resid_pdrop=0.25, attn_pdrop=0.0)
    model = random_model(config)
    ids = np.random.default_rng(1).integers(0, 13, (600, 7))
    runs: list[Run] = []
    monkeypatch.setattr(backward, "transformer_backward", lambda *arguments: runs.append(arguments[3]))
    unused = {name: np.empty_like(array) for name, array in model.parameters.items()}
    write_gradients(model, ids, ids, ids.size, unused)
    assert not [name for name in runs[0].tape if name.endswith(".kept")]  # no rng, no dropout
    rng = np.random.default_rng(1)
    write_gradients(model, ids, ids, ids.size, unused, rng)
    tape = runs[1].tape
    kept = {name.removesuffix(".kept"): mask for name, mask in tape.items() if name.endswith(".kept")}
    assert set(kept) == {"embed", "attn.0.out", "mlp.0.out"}
    for name, p in (("embed", 0.5), ("attn.0.out", 0.25), ("mlp.0.out", 0.25)):
        mask = kept[name]
        assert mask.shape == tape[name].shape
        assert set(np.unique(mask).tolist()) == {0.0, np.float32(1 / (1 - p))}
        assert mask.mean() == pytest.approx(1, abs=0.03)
        assert not tape[name][mask == 0].any()
        np.testing.assert_array_equal(runs[1].redo_dropout(name, np.ones_like(mask)), mask)
