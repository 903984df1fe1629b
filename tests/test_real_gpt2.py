"""GPT-2 124M against published numbers. Skipped if the checkpoint is not on this machine.

goldens/gpt2-124M.json holds the numbers, PUBLISHED, each with its source: logits, greedy
continuations, a final hidden state and losses, from transformers, TransformerLens, llm.c, picoGPT
and others. So an error that this package shares with one other implementation is still found.
"""

import json
from typing import Any

import check_gpt2  # of scripts/
import numpy as np
import pytest
from support.models import random_model

import tiedgpt
from tiedgpt import GPT2
from tiedgpt.checkpoints.places import find_here
from tiedgpt.errors import CheckpointError
from tiedgpt.gpt2.backward import write_gradients
from tiedgpt.gpt2.parameters import parameter_shapes, unflatten
from tiedgpt.training.optimizer import AdamW

PUBLISHED = json.loads(check_gpt2.PUBLISHED.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def real() -> GPT2:
    """GPT-2 124M, if it is here; one that is here but does not load is a failure, not a skip."""
    try:
        path = find_here("gpt2")
    except CheckpointError as error:
        pytest.skip(str(error))
    return tiedgpt.load_model(path)


def test_published_numbers(real: GPT2) -> None:
    for check in check_gpt2.checks(real, PUBLISHED):
        assert check.difference <= check.allowed, check.name


def last_logits(model: GPT2, ids: list[int]) -> dict[str, Any]:
    """Numbers of the logits after a text, in the form of PUBLISHED."""
    logits = model(ids)[-1].astype(np.float64)
    likeliest_first = np.argsort(-logits)
    top10 = []
    for token in likeliest_first[:10]:
        top10.append((int(token), "its text", logits[token]))  # the text is not compared
    return {
        "ids": ids,
        "logsumexp": np.log(np.exp(logits).sum()),
        "mean_logit": logits.mean(),
        "max_logit": logits.max(),
        "min_logit": logits.min(),
        "first8_logits": logits[:8],
        "top10": top10,
    }


def greedy_text(model: GPT2, ids: list[int]) -> list[int]:
    """The text, and the five tokens that follow it."""
    text = list(ids)
    for _ in range(5):
        likeliest = model(text)[-1].argmax()
        text.append(int(likeliest))
    return text


def mean_loss(model: GPT2, ids: list[int]) -> float:
    """The mean loss of all tokens but the first."""
    logits = model(ids).astype(np.float64)
    probabilities = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    losses = []
    for position, target in enumerate(ids[1:]):
        losses.append(-np.log(probabilities[position, target]))
    return float(np.mean(losses))


def numbers_of(model: GPT2) -> dict[str, Any]:
    """Numbers of any model in the form of PUBLISHED, with the tolerances of PUBLISHED."""
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    prompt = last_logits(model, ids)
    final_of_first_token = model.final(ids)[0]
    five_values = final_of_first_token[:5]
    loss = mean_loss(model, ids)
    return {
        "last_position_logits": {"suggested_tolerance": 0.005, "examples": [prompt]},
        "greedy": [{"ids": ids, "output_ids": greedy_text(model, ids)}],
        "final_hidden": {"ids": ids, "values": five_values, "tolerance": 0.01},
        "mean_loss": [{"source": "here", "ids": ids, "loss": loss, "tolerance": 4e-5}],
    }


@pytest.fixture
def report(tmp_path, monkeypatch, capsys):
    """report(model) -> the exit code of check_gpt2.py for this model, and the lines it prints.

    check_gpt2.py compares the model with the numbers of random_model() in place of PUBLISHED.
    """
    published = tmp_path / "published.json"
    numbers = numbers_of(random_model())
    published.write_text(json.dumps(numbers, default=np.ndarray.tolist))
    monkeypatch.setattr(check_gpt2, "PUBLISHED", published)
    monkeypatch.setattr("sys.argv", ["check_gpt2.py", str(tmp_path / "model")])

    def report(model):
        tiedgpt.save_model(model, None, tmp_path / "model")
        code = check_gpt2.main()
        return code, capsys.readouterr().out.splitlines()

    return report


def verdicts(lines: list[str]) -> list[str]:
    """The verdict, "ok" or "DIFFERS", of each of the five comparisons in a report.

    A comparison has one line, which begins with the verdict. They come after three other lines.
    """
    _versions, _path, _model, *comparisons = lines
    assert len(comparisons) == 5
    return [line.split()[0] for line in comparisons]


def test_the_report_of_a_model_with_the_published_numbers_says_ok(report, tmp_path):
    code, lines = report(random_model())
    assert code == 0
    versions, path, *_ = lines
    assert versions.startswith(f"tiedgpt {tiedgpt.__version__}, NumPy")
    assert path == str(tmp_path / "model")
    assert set(verdicts(lines)) == {"ok"}


@pytest.mark.parametrize("name", ["wte.weight", "wpe.weight", "h.1.mlp.c_proj.weight", "ln_f.bias"])
def test_the_report_of_a_model_with_one_wrong_number_says_differs(report, name):
    """The fourth number of the parameter is wrong."""
    model = random_model()
    model.parameters[name].flat[3] += 0.5
    code, lines = report(model)
    assert code == 1
    assert "DIFFERS" in verdicts(lines)


@pytest.mark.slow
def test_ten_steps_of_training_have_the_losses_of_llm_c(real: GPT2) -> None:
    """llm.c's ten steps of AdamW on one batch of 4 x 64 tokens, with its settings."""
    # The text of llm.c is one of those in PUBLISHED. Its source says which tokens it has.
    (text,) = [text for text in PUBLISHED["mean_loss"] if "x = val[0:256]" in text["source"]]
    B, T = text["batch"]  # the shape of the batch
    ids = np.array(text["ids"][: B * T]).reshape(B, T)
    targets = np.array(text["ids"][1 : B * T + 1]).reshape(B, T)

    # The optimizer changes `flat`, of which the model's parameters are views.
    shapes = parameter_shapes(real.config)
    flat = np.concatenate([array.reshape(-1) for array in real.parameters.values()])
    model = GPT2(real.config, unflatten(flat, shapes))
    adamw = AdamW(flat, shapes, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    # llm.c decays every parameter. Without this line, AdamW decays weight matrices alone.
    adamw.decayed = list(unflatten(flat, shapes).values())

    expected = PUBLISHED["training"]["losses"]
    gradient = np.empty_like(flat)
    gradients = unflatten(gradient, shapes)  # views of `gradient`
    losses = []
    for _ in expected:
        # The loss is a mean over `total` tokens, here over all of the batch.
        loss = write_gradients(model, ids, targets, total=targets.size, gradients=gradients)
        losses.append(loss)
        adamw.step(gradient, lr=1e-4)
    assert losses == pytest.approx(expected, rel=0, abs=PUBLISHED["training"]["tolerance"])
