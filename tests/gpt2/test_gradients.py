"""Gradients and AdamW against torch: autograd through transformers' GPT-2, and torch's optimiser.

`theirs` is the same model in transformers: torch keeps the gradient of each parameter in its
attribute `grad`. `ids` [B, T + 1] are the rows of a batch: from its first T tokens, a model
predicts the last T.

Needs torch and transformers (pip install torch==2.13.0, then the extra `parity`);
tests/gpt2/test_backward.py checks the same gradients by central differences.
"""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from support.models import SMALL, random_model

from tiedgpt import GPT2, Config
from tiedgpt.gpt2.activations import ACTIVATIONS
from tiedgpt.gpt2.backward import write_gradients
from tiedgpt.gpt2.parameters import parameter_shapes, unflatten
from tiedgpt.training.loop import Trainer
from tiedgpt.training.optimizer import AdamW, clip
from tiedgpt.training.start import Settings

torch = pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
transformers = pytest.importorskip(
    "transformers", reason="transformers is not installed: the extra `parity`"
)
torch.set_num_threads(1)  # more threads of torch, which wait by spinning, would slow NumPy's


def as_transformers(model):
    """The same model in transformers, with a copy of the parameters, and without dropout."""
    config = transformers.GPT2Config(**model.config.to_json(), attn_implementation="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # transformers' own
        theirs = transformers.GPT2LMHeadModel(config).eval()
    theirs = theirs.to(torch.float64 if model.dtype == np.float64 else torch.float32)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            ours = model.parameters[name.removeprefix("transformer.")]
            parameter.copy_(torch.from_numpy(ours.copy()))
    return theirs


def torch_adamw(theirs, lr, betas, weight_decay):
    """torch's AdamW for all parameters. Its weight decay is that of the matrices alone."""
    vectors = [parameter for parameter in theirs.parameters() if parameter.ndim == 1]
    matrices = [parameter for parameter in theirs.parameters() if parameter.ndim > 1]
    groups = [
        {"params": vectors, "weight_decay": 0.0},
        {"params": matrices, "weight_decay": weight_decay},
    ]
    return torch.optim.AdamW(groups, lr=lr, betas=betas)


def torch_loss(theirs, ids):
    """The mean loss of the predictions of a batch."""
    batch = torch.from_numpy(ids)
    logits = theirs(batch[:, :-1]).logits
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch[:, 1:].flatten())


def assert_gradients(gradients, theirs, tolerance):
    """Each gradient is torch's. `tolerance` is a fraction of the gradient's largest number."""
    names = []
    for their_name, parameter in theirs.named_parameters():
        name = their_name.removeprefix("transformer.")
        names.append(name)
        expected = parameter.grad.numpy()
        difference = np.abs(gradients[name] - expected).max()
        assert difference / np.abs(expected).max() < tolerance, name
    assert set(names) == gradients.keys()


def write_our_gradients(model, ids, gradients):
    """Write the gradients of a batch to `gradients`, and return the mean loss."""
    tokens = ids[:, :-1]
    targets = ids[:, 1:]
    return write_gradients(model, tokens, targets, targets.size, gradients)


def write_torch_gradients(theirs, ids):
    """Write the gradients of a batch to `grad` of torch's parameters, and return the mean loss."""
    theirs.zero_grad()
    loss = torch_loss(theirs, ids)
    loss.backward()
    return loss.item()


def assert_loss_and_gradients(model, theirs, ids, tolerance):
    """Our mean loss of a batch and its gradients are torch's."""
    gradients = {name: np.empty_like(array) for name, array in model.parameters.items()}
    loss = write_our_gradients(model, ids, gradients)
    expected_loss = write_torch_gradients(theirs, ids)
    # A mean of many losses has a smaller rounding error than a gradient.
    assert loss == pytest.approx(expected_loss, rel=tolerance / 10)
    assert_gradients(gradients, theirs, tolerance)


CASES = {name: {"activation_function": name} for name in ACTIVATIONS}
CASES["scaled by layer"] = {"scale_attn_by_inverse_layer_idx": True}
CASES["unscaled"] = {"scale_attn_weights": False}
TOLERANCES = [(np.float32, 1e-4), (np.float64, 1e-11)]


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("head", ["tied", "untied"])
@pytest.mark.parametrize("case", CASES)
def test_gradients_are_torchs(case, head, dtype, tolerance):
    model = random_model(replace(SMALL.with_head(head), **CASES[case]), dtype=dtype)
    theirs = as_transformers(model)
    ids = np.random.default_rng(0).integers(0, SMALL.vocab_size, (4, 21))
    assert_loss_and_gradients(model, theirs, ids, tolerance)


@pytest.mark.slow
@pytest.mark.parametrize("head", ["tied", "untied"])
def test_gradients_at_gpt2s_width_are_torchs(head):
    """A model of two layers, with GPT-2's width, vocabulary and random initial parameters."""
    model = GPT2.random(Config(n_layer=2).with_head(head))
    theirs = as_transformers(model)
    ids = np.random.default_rng(0).integers(0, model.config.vocab_size, (2, 33))
    assert_loss_and_gradients(model, theirs, ids, tolerance=1e-4)


@pytest.mark.parametrize(("dtype", "tolerance"), TOLERANCES)
@pytest.mark.parametrize("head", ["tied", "untied"])
def test_ten_steps_are_torchs(head, dtype, tolerance):
    """Each step clips the gradient to the norm 1. The matrices have weight decay."""
    model = random_model(SMALL.with_head(head), dtype=dtype)
    theirs = as_transformers(model)
    theirs_adamw = torch_adamw(theirs, lr=1e-2, betas=(0.9, 0.95), weight_decay=0.1)

    # As in a training, all parameters are views of one array, `flat`, and all gradients are views
    # of another, `gradient`.
    shapes = parameter_shapes(model.config)
    flat = np.concatenate([array.reshape(-1) for array in model.parameters.values()])
    model = GPT2(model.config, unflatten(flat, shapes))
    adamw = AdamW(flat, shapes, betas=(0.9, 0.95), weight_decay=0.1)
    gradient = np.empty_like(flat)
    gradients = unflatten(gradient, shapes)

    for step in range(10):
        ids = np.random.default_rng(step).integers(0, SMALL.vocab_size, (4, 21))
        loss = write_our_gradients(model, ids, gradients)
        expected_loss = write_torch_gradients(theirs, ids)
        assert loss == pytest.approx(expected_loss, rel=tolerance / 10), step
        assert_gradients(gradients, theirs, tolerance)

        # We scale the gradient in the step. torch scales it at once.
        norm, scale = clip(gradient, 1.0)
        expected_norm = torch.nn.utils.clip_grad_norm_(theirs.parameters(), 1.0)
        assert norm == pytest.approx(expected_norm.item(), rel=tolerance), step
        adamw.step(gradient, lr=1e-2, scale=scale)
        theirs_adamw.step()

    # The parameters in float32 are not compared. The bias of the keys does not change the loss, so
    # its gradient is nothing but rounding errors. Adam makes full steps even of these, because it
    # divides a gradient by its usual size.
    if dtype == np.float64:
        for name, parameter in theirs.named_parameters():
            ours = model.parameters[name.removeprefix("transformer.")]
            np.testing.assert_allclose(ours, parameter.detach(), rtol=1e-7, atol=1e-9, err_msg=name)


def test_a_run_is_torchs_run():
    """torch repeats a run of the Trainer, with the same batches and the same learning rates."""
    config = replace(SMALL, embd_pdrop=0.0, resid_pdrop=0.0, attn_pdrop=0.0)
    model = random_model(config)
    theirs = as_transformers(model)
    tokens = np.random.default_rng(0).integers(0, config.vocab_size, 500)
    settings = Settings(steps=30, batch=4, context=16, lr=1e-2, threads=2)
    trainer = Trainer(model, tokens, tokens[:50], settings)
    batches = []
    draw = trainer._draw

    def draw_and_keep():
        batch = draw()
        batches.append(batch)
        return batch

    trainer._draw = draw_and_keep
    records = list(trainer.run())
    steps = records[1:]  # the first record is the evaluation at the start
    theirs_adamw = torch_adamw(
        theirs,
        lr=settings.lr,  # replaced below, in each step
        betas=(0.9, settings.beta2),
        weight_decay=settings.weight_decay,
    )
    for number, (record, ids) in enumerate(zip(steps, batches, strict=True)):
        for group in theirs_adamw.param_groups:
            group["lr"] = record["lr"]
        loss = write_torch_gradients(theirs, ids)
        torch.nn.utils.clip_grad_norm_(theirs.parameters(), settings.clip)
        theirs_adamw.step()
        assert record["loss"] == pytest.approx(loss, rel=1e-4), number
