"""Reference values for a port (GPT-2 in another language): `tiedgpt vectors` writes them.

It writes a folder with a small model. expected.safetensors has ids, targets, and each activation
and each gradient in float64. after_step.safetensors has the parameters after one step of AdamW.
vectors.json has the loss, a greedy continuation and the settings of AdamW. `tiedgpt compare`
compares a file of a port with this folder and names the first difference.
"""

import hashlib
import json

import numpy as np
import pytest
from support.commands import assert_one_error_line, output

import tiedgpt
from tiedgpt.checkpoints.safetensors import read_header
from tiedgpt.comparison.vectors import VECTORS, exact_model, write_vectors
from tiedgpt.gpt2.activations import ACTIVATIONS

HEADS = ["tied", "untied"]
NEUTRAL = {"weight": 1.0, "bias": 0.0}  # values that change nothing: a layer norm's weight, a bias


def read(path):
    """The arrays of a safetensors file, in the precision of the file."""
    return {name: tensor.read_exactly() for name, tensor in read_header(path).items()}


@pytest.fixture(params=HEADS)
def folder(request, tmp_path):
    write_vectors(tmp_path / "vectors", request.param)
    return tmp_path / "vectors"


def test_the_parameters_are_the_same_on_every_machine():
    parameters = exact_model(VECTORS.with_head("untied"), seed=5).parameters
    digest = hashlib.sha256()
    for array in parameters.values():
        digest.update(array.astype("<f4").tobytes())
    assert digest.hexdigest()[:16] == "f60a368c46fa2e87"


def test_no_parameter_is_neutral():
    """So a port that leaves out a bias, or the weight of a layer norm, gets different numbers."""
    for name, array in exact_model().parameters.items():
        if array.ndim == 1:
            _, _, kind = name.rpartition(".")  # such as "weight" of "ln_f.weight"
            distance = np.abs(array - NEUTRAL[kind])
            assert np.median(distance) > 0.001, name


def test_the_files_are_small(folder):
    assert sum(path.stat().st_size for path in folder.iterdir()) < 1_000_000


def test_the_model_is_a_checkpoint(folder):
    model = tiedgpt.load_model(folder)
    expected = read(folder / "expected.safetensors")
    logits = model.astype(np.float64)(expected["ids"])
    np.testing.assert_allclose(logits, expected["logits"], rtol=0, atol=1e-12)


def test_the_values_are_those_of_the_model_in_float64(folder):
    model = tiedgpt.load_model(folder).astype(np.float64)
    expected = read(folder / "expected.safetensors")
    document = json.loads((folder / "vectors.json").read_text())
    loss, gradients = tiedgpt.loss_and_gradients(model, expected["ids"], expected["targets"])
    assert document["loss"] == pytest.approx(loss, rel=1e-12)
    for name, gradient in gradients.items():
        assert expected[name].dtype == np.float64
        scale = np.abs(gradient).max()
        np.testing.assert_allclose(expected[name], gradient, rtol=0, atol=1e-12 * scale)
    first_row = expected["ids"][0]
    greedy = list(tiedgpt.generate(model, first_row, max_new_tokens=10, greedy=True))
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


def test_the_step_does_not_change_the_biases_of_the_keys(folder):
    """Their gradient is 0 but for rounding errors, which AdamW must not make large."""
    expected = read(folder / "expected.safetensors")
    after = read(folder / "after_step.safetensors")
    parameters = tiedgpt.load_model(folder).parameters
    D = VECTORS.n_embd
    name = "h.0.attn.c_attn.bias"  # of the queries, the keys and the values
    keys = slice(D, 2 * D)
    np.testing.assert_allclose(expected[name][keys], 0, atol=1e-14)
    before = parameters[name][keys]
    np.testing.assert_allclose(after[name][keys], before, rtol=0, atol=1e-14)


# The command


def test_compare_finds_no_difference_in_what_the_command_writes(run, tmp_path):
    folder = str(tmp_path / "vectors")
    assert run("vectors", "-q", folder, "--head", "untied", "--seed", "3") == (0, "", "")
    report = output(run, "compare", "-m", folder, f"{folder}/expected.safetensors")
    assert "all agree (64 compared; 0 activations were not given)" in report


def test_a_folder_with_files_is_not_touched(run, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    assert_one_error_line(run("vectors", str(tmp_path)), "exists and is not empty")
    assert [path.name for path in tmp_path.iterdir()] == ["mine.txt"]


@pytest.mark.parametrize("kind", ["json", "safetensors"])
def test_the_mistake_of_a_port_is_named(kind, run, tmp_path):
    """This port computes the exact gelu in place of gelu_new. Its file has some activations."""
    folder = tmp_path / "vectors"
    write_vectors(folder, "tied")
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
    folder = tmp_path / "vectors"
    write_vectors(folder, "tied")
    expected = read(folder / "expected.safetensors")
    logits = expected["logits"].tolist()
    logits[1][8][100] = None  # json.dumps writes null
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"ids": expected["ids"].tolist(), "logits": logits}))
    code, out, _ = run("compare", "-m", str(folder), str(path))
    assert code == 1
    assert "first difference: logits[1, 8, 100] is nan" in out


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        pytest.param("a.json", "{", "a.json is not JSON: ", id="not-json"),
        pytest.param("a.json", "[1]", "a.json: expected an object such as", id="a-list"),
        pytest.param("a.json", "{}", "a.json: there are no arrays in it", id="empty"),
        pytest.param(
            "a.json", '{"ids": [[1], [1, 2]]}', "'ids' is not lists of numbers", id="ragged"
        ),
        pytest.param("a.json", '{"ids": ["1"]}', "'ids' is not lists of numbers", id="text"),
        pytest.param("a.json", '{"ids": {"0": 1}}', "'ids' is not lists of numbers", id="object"),
        pytest.param("a.json", '{"ids": [1' + "0" * 400 + "]}", "'ids' is not", id="huge-number"),
        pytest.param("a.safetensors", "x", "not a safetensors file", id="not-safetensors"),
        pytest.param("a.SAFETENSORS", "x", "not a safetensors file", id="capitals"),
        pytest.param("a.json", '{"ids": [1], "ids": [2]}', "'ids' is in it twice", id="twice"),
        pytest.param(
            "a.json",
            '{"ids": [1], "attn.0.qkv": [[1]], "h.0.attn.c_attn": [[2]]}',
            "'attn.0.qkv' and 'h.0.attn.c_attn' are both attn.0.qkv, and they differ",
            id="two-names",
        ),
    ],
)
def test_compare_refuses_a_wrong_file(name, content, message, run, tmp_path):
    path = tmp_path / name
    path.write_text(content)
    assert_one_error_line(run("compare", "-m", "shakespeare-tied", str(path)), message)
