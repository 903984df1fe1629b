"""Gradients and AdamW against torch: autograd through transformers' GPT-2, and torch's optimiser.

Needs torch and transformers (pip install torch==2.13.0, then the extra `parity`); tests/test_backward.py
checks the same gradients by central differences.
"""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from conftest import SMALL, random_model

from tiedgpt import GPT2, Config
from tiedgpt.backward import loss_and_gradients, write_gradients
from tiedgpt.parameters import parameter_shapes, unflatten
from tiedgpt.training.loop import Settings, Trainer
from tiedgpt.training.optimizer import AdamW, clip

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
transformers = pytest.importorskip("transformers", reason="transformers is not installed: the extra `parity`")
torch.set_num_threads(1)  # its threads wait for work by spinning, in the way of NumPy's


def as_transformers(model):
    """The same model, with the same numbers, in transformers, without dropout."""
    config = transformers.GPT2Config(**model.config.to_json(), attn_implementation="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' own
        theirs = transformers.GPT2LMHeadModel(config).eval()
    theirs = theirs.to(torch.float64 if model.dtype == np.float64 else torch.float32)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            parameter.copy_(torch.from_numpy(model.parameters[name.removeprefix("transformer.")].copy()))
    return theirs


def torch_loss(theirs, ids):
    """The mean loss of predicting each row's tokens but the first."""
    batch = torch.from_numpy(ids)
    logits = theirs(batch[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def decayed(theirs, weight_decay):
    """The parameters for torch's AdamW: weight decay on the matrices."""
    kinds = {True: weight_decay, False: 0.0}
    return [
        {"params": [p for p in theirs.parameters() if (p.ndim > 1) == matrix], "weight_decay": decay}
        for matrix, decay in kinds.items()
    ]


def batch(config, seed=1, B=4, T=20):
    return np.random.default_rng(seed).integers(0, config.vocab_size, (B, T + 1))


ACTIVATIONS = ("gelu_new", "gelu", "relu", "quick_gelu", "silu", "tanh")
CONFIGS = {
    **{name: replace(SMALL, activation_function=name) for name in ACTIVATIONS},
    "scaled by layer": replace(SMALL, scale_attn_by_inverse_layer_idx=True),
    "unscaled": replace(SMALL, scale_attn_weights=False),
}


def assert_autograds(model, ids, tolerance):
    loss, gradients = loss_and_gradients(model, ids[:, :-1], ids[:, 1:])
    theirs = as_transformers(model)
    expected = torch_loss(theirs, ids)
    expected.backward()
    assert loss == pytest.approx(expected.item(), rel=tolerance / 10)
    grads = {name.removeprefix("transformer."): p.grad.numpy() for name, p in theirs.named_parameters()}
    assert grads.keys() == parameter_shapes(model.config).keys()
    for name, grad in grads.items():
        assert np.abs(gradients[name] - grad).max() / np.abs(grad).max() < tolerance, name


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-4), (np.float64, 1e-9)])
@pytest.mark.parametrize("head", ["tied", "untied"])
@pytest.mark.parametrize("case", CONFIGS)
def test_every_gradient_is_autograds(case, head, dtype, tolerance):
    assert_autograds(random_model(CONFIGS[case].with_head(head), dtype=dtype), batch(SMALL), tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["tied", "untied"])
def test_gradients_at_gpt2s_width_are_autograds(head):
    """Two layers of GPT-2, as it was initialised, with its whole vocabulary."""
    model = GPT2.random(Config(n_layer=2, tied=head == "tied"))
    assert_autograds(model, batch(model.config, B=2, T=32), 1e-4)


@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float32, 1e-5), (np.float64, 1e-12)])
@pytest.mark.parametrize("head", ["tied", "untied"])
def test_ten_steps_are_torchs(head, dtype, tolerance):
    """Ten AdamW steps with decay on matrices and clipping, on the same batches, from the same start."""
    model = random_model(SMALL.with_head(head), dtype=dtype)
    theirs = as_transformers(model)
    theirs_adamw = torch.optim.AdamW(decayed(theirs, 0.1), lr=1e-2, betas=(0.9, 0.95))

    shapes = parameter_shapes(model.config)
    flat = np.concatenate([array.reshape(-1) for array in model.parameters.values()])
    model = GPT2(model.config, unflatten(flat, shapes))
    adamw = AdamW(flat, shapes, betas=(0.9, 0.95), weight_decay=0.1)
    gradient = np.empty_like(flat)
    for step in range(10):
        ids = batch(SMALL, seed=step)
        loss = write_gradients(model, ids[:, :-1], ids[:, 1:], ids[:, 1:].size, unflatten(gradient, shapes))
        norm, scale = clip(gradient, 1.0)
        adamw.step(gradient, lr=1e-2, scale=scale)

        theirs_adamw.zero_grad()
        expected = torch_loss(theirs, ids)
        expected.backward()
        expected_norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        theirs_adamw.step()
        assert loss == pytest.approx(expected.item(), rel=tolerance), step
        assert norm == pytest.approx(expected_norm.item(), rel=10 * tolerance), step
    if dtype == np.float32:
        return  # a key's bias moves no loss: its gradient is rounding, which Adam makes as large as any other
    for name, parameter in theirs.named_parameters():
        ours = model.parameters[name.removeprefix("transformer.")]
        np.testing.assert_allclose(ours, parameter.detach(), rtol=1e-7, atol=1e-9, err_msg=name)


def test_a_run_is_torchs_run():
    """The trainer as a whole, loss by loss, on the batches that it drew and at the rates that it chose."""
    config = replace(SMALL, embd_pdrop=0.0, resid_pdrop=0.0, attn_pdrop=0.0)
    model = random_model(config)
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, 500)
    settings = Settings(steps=30, batch=4, context=16, lr=1e-2, threads=2, accumulate=2)
    trainer = Trainer(model, tokens, tokens[:50], settings)
    drawn = []
    draw = trainer._draw
    trainer._draw = lambda micro: drawn.append(draw(micro)) or drawn[-1]  # type: ignore[method-assign]
    records = [record for record in trainer.run() if "loss" in record]
    theirs = as_transformers(model)
    adamw = torch.optim.AdamW(decayed(theirs, settings.weight_decay), lr=0, betas=(0.9, settings.beta2))
    for number, record in enumerate(records):
        ids = np.concatenate(drawn[2 * number : 2 * number + 2])
        for group in adamw.param_groups:
            group["lr"] = record["lr"]
        adamw.zero_grad()
        loss = torch_loss(theirs, ids)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), settings.clip)
        adamw.step()
        assert record["loss"] == pytest.approx(loss.item(), rel=1e-4), number
