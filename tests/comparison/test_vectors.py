"""The published reference values in vectors/v1, for a GPT-2 in another language.

A folder of each model has its parameters and what is computed from them: expected.safetensors has
ids, targets, each activation and each gradient in float64, after_step.safetensors the parameters
after one step of AdamW, and vectors.json the loss, a greedy continuation and AdamW's settings.
`tiedgpt compare` compares a file of a port with such a folder and names the first difference.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from support.commands import output

import tiedgpt
from tiedgpt.checkpoints.safetensors import read_header
from tiedgpt.gpt2.activations import ACTIVATIONS

VECTORS = Path(__file__).parents[1] / "vectors" / "v1"
NEUTRAL = {"weight": 1.0, "bias": 0.0}  # values that change nothing: a layer norm's weight, a bias


def read(path):
    """The arrays of a safetensors file, in the precision of the file."""
    tensors, _ = read_header(path)
    return {name: tensor.read_exactly() for name, tensor in tensors.items()}


@pytest.fixture(params=["tied", "untied", "gelu"])
def folder(request):
    return VECTORS / request.param


def test_the_published_files_never_change():
    lines = (VECTORS / "SHA256SUMS").read_text().splitlines()
    assert len(lines) == 15
    for line in lines:
        digest, name = line.split("  ")
        assert hashlib.sha256((VECTORS / name).read_bytes()).hexdigest() == digest, name


def test_no_parameter_is_neutral(folder):
    """So a port that leaves out a bias, or the weight of a layer norm, gets different numbers."""
    for name, array in tiedgpt.load_model(folder).parameters.items():
        if array.ndim == 1:
            _, _, kind = name.rpartition(".")  # such as "weight" of "ln_f.weight"
            distance = np.abs(array - NEUTRAL[kind])
            assert np.median(distance) > 0.001, name


def test_the_activations_are_those_of_the_model_in_float64(folder):
    model = tiedgpt.load_model(folder).astype(np.float64)
    expected = read(folder / "expected.safetensors")
    tape = {}
    model(expected["ids"], tape=tape)
    for name, array in tape.items():
        scale = np.abs(array[np.isfinite(array)]).max()
        np.testing.assert_allclose(expected[name], array, rtol=0, atol=1e-12 * scale)


def test_the_loss_gradients_and_greedy_tokens_are_those_of_the_model_in_float64(folder):
    model = tiedgpt.load_model(folder).astype(np.float64)
    expected = read(folder / "expected.safetensors")
    document = json.loads((folder / "vectors.json").read_text())
    loss, gradients = tiedgpt.loss_and_gradients(model, expected["ids"], expected["targets"])
    assert document["loss"] == pytest.approx(loss, rel=1e-12)
    for name, gradient in gradients.items():
        assert expected[name].dtype == np.float64
        scale = np.abs(gradient).max()
        np.testing.assert_allclose(expected[name], gradient, rtol=0, atol=1e-12 * scale)
    greedy = list(tiedgpt.generate(model, document["prompt"], max_new_tokens=10, greedy=True))
    assert document["greedy"] == greedy


def test_the_parameters_after_one_step_are_those_of_adamw_in_torch(folder):
    torch = pytest.importorskip("torch", reason="needs pip install -e .[parity]")
    settings = json.loads((folder / "vectors.json").read_text())["adamw"]
    expected = read(folder / "expected.safetensors")
    parameters = tiedgpt.load_model(folder).parameters
    for name, after in read(folder / "after_step.safetensors").items():
        parameter = torch.tensor(parameters[name].astype(np.float64), requires_grad=True)
        parameter.grad = torch.tensor(expected[name])
        weight_decay = 0.0
        if parameter.ndim > 1:  # matrices alone decay
            weight_decay = settings["weight_decay"]
        optimizer = torch.optim.AdamW(
            [parameter],
            lr=settings["lr"],
            betas=(settings["beta1"], settings["beta2"]),
            eps=settings["eps"],
            weight_decay=weight_decay,
        )
        optimizer.step()
        np.testing.assert_allclose(after, parameter.detach().numpy(), rtol=0, atol=1e-12)


def test_the_logits_and_gradients_are_those_of_transformers(folder):
    torch = pytest.importorskip("torch", reason="needs pip install -e .[parity]")
    transformers = pytest.importorskip("transformers", reason="needs pip install -e .[parity]")
    expected = read(folder / "expected.safetensors")
    model = transformers.GPT2LMHeadModel.from_pretrained(folder, dtype=torch.float64).eval()
    logits = model(torch.tensor(expected["ids"])).logits
    np.testing.assert_allclose(expected["logits"], logits.detach(), rtol=0, atol=1e-11)
    targets = torch.tensor(expected["targets"])
    torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
    for name, parameter in model.named_parameters():
        gradient = expected[name.removeprefix("transformer.")]
        np.testing.assert_allclose(gradient, parameter.grad, rtol=0, atol=1e-11)


def test_the_step_does_not_change_the_biases_of_the_keys(folder):
    """Their gradient is 0 but for rounding errors, which AdamW must not make large."""
    expected = read(folder / "expected.safetensors")
    after = read(folder / "after_step.safetensors")
    model = tiedgpt.load_model(folder)
    D = model.config.n_embd
    name = "h.0.attn.c_attn.bias"  # of the queries, the keys and the values
    keys = slice(D, 2 * D)
    np.testing.assert_allclose(expected[name][keys], 0, atol=1e-14)
    before = model.parameters[name][keys]
    np.testing.assert_allclose(after[name][keys], before, rtol=0, atol=1e-14)


def test_compare_finds_no_difference(run, folder):
    report = output(run, "compare", "-m", str(folder), str(folder / "expected.safetensors"))
    assert "all agree" in report
    assert "; 0 activations were not given" in report


@pytest.mark.parametrize("kind", ["json", "safetensors"])
def test_the_mistake_of_a_port_is_named(kind, run, tmp_path):
    """This port computes the exact gelu in place of gelu_new. Its file has some activations."""
    folder = VECTORS / "tied"
    expected = read(folder / "expected.safetensors")
    mine = {name: expected[name] for name in ("ids", "embed", "attn.0.out", "mlp.0.pre")}
    mine["mlp.0.post"] = ACTIVATIONS["gelu"].forward(expected["mlp.0.pre"])
    path = tmp_path / f"mine.{kind}"
    if kind == "json":
        path.write_text(json.dumps({name: array.tolist() for name, array in mine.items()}))
    else:
        save_file = pytest.importorskip("safetensors.numpy").save_file
        save_file(mine, path)
    code, out, _ = run("compare", "-m", str(folder), str(path))
    assert code == 1
    assert "first difference: mlp.0.post" in out
    assert "exact gelu" in out


def test_null_in_json_is_read_as_nan(run, tmp_path):
    """JavaScript writes a nan as null."""
    folder = VECTORS / "tied"
    expected = read(folder / "expected.safetensors")
    logits = expected["logits"].tolist()
    logits[1][8][50] = None  # json.dumps writes null
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"ids": expected["ids"].tolist(), "logits": logits}))
    code, out, _ = run("compare", "-m", str(folder), str(path), "--trials", "0")
    assert code == 1
    assert "first difference: logits[1, 8, 50] is nan" in out
