"""GPT-2 124M against published numbers. Skipped if the checkpoint is not on this machine.

goldens/gpt2-124M.json holds the numbers, each with its source: logits, greedy continuations, a
final hidden state and losses, from transformers, TransformerLens, llm.c, picoGPT and others. So an
error that this package shares with one other implementation is still found.
"""

import json
from typing import Any

import check_gpt2  # of scripts/
import numpy as np
import pytest
from support.models import random_model

import tiedgpt
from tiedgpt import GPT2
from tiedgpt.checkpoints.places import find_model
from tiedgpt.errors import CheckpointError
from tiedgpt.gpt2.backward import write_gradients
from tiedgpt.gpt2.parameters import parameter_shapes, unflatten
from tiedgpt.training.optimizer import AdamW

PUBLISHED = json.loads(check_gpt2.PUBLISHED.read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def real() -> GPT2:
    """GPT-2 124M, if it is here; one that is here but does not load is a failure, not a skip."""
    try:
        path = find_model("gpt2")
    except CheckpointError as error:
        pytest.skip(str(error))
    return tiedgpt.load_model(path)


def test_published_numbers(real: GPT2) -> None:
    for what, difference, allowed in check_gpt2.checks(real, PUBLISHED):
        assert difference <= allowed, what


def recorded(model: GPT2) -> dict[str, Any]:
    """Numbers as in PUBLISHED, of another model and from its logits alone."""
    ids = [3, 1, 4, 1, 5, 9, 2, 6]
    logits = model(ids).astype(np.float64)
    p = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
    last, losses = logits[-1], -np.log(p[np.arange(7), ids[1:]])
    top10 = [(int(token), "", last[token]) for token in np.argsort(-last)[:10]]
    example = {
        "ids": ids,
        "logsumexp": np.log(np.exp(last).sum()),
        "mean_logit": last.mean(),
        "top10": top10,
    }
    example |= {"max_logit": last.max(), "min_logit": last.min(), "first8_logits": last[:8]}
    new: list[int] = []
    for _ in range(5):
        new.append(int(model(ids + new)[-1].argmax()))
    return {
        "last_position_logits": {"suggested_tolerance": 0.005, "examples": [example]},
        "greedy": [{"ids": ids, "output_ids": ids + new}],
        "final_hidden": {"ids": ids, "values": model.final(ids)[0, :5], "tolerance": 0.01},
        "mean_loss": [{"source": "here", "ids": ids, "loss": losses.mean(), "tolerance": 4e-5}],
    }


@pytest.mark.parametrize(
    "changed", [None, "wte.weight", "wpe.weight", "h.1.mlp.c_proj.weight", "ln_f.bias"]
)
def test_the_report_of_a_random_model(changed, tmp_path, monkeypatch, capsys):
    """All is ok for the model of which the numbers are, and not if one of its numbers is
    another."""
    model = random_model()
    (tmp_path / "published.json").write_text(json.dumps(recorded(model), default=np.ndarray.tolist))
    monkeypatch.setattr(check_gpt2, "PUBLISHED", tmp_path / "published.json")
    monkeypatch.setattr("sys.argv", ["check_gpt2.py", str(tmp_path / "model")])
    if changed is not None:
        model = GPT2(model.config, {**model.parameters, changed: model.parameters[changed].copy()})
        model.parameters[changed].flat[3] += 0.5
    tiedgpt.save_model(model, None, tmp_path / "model")
    assert check_gpt2.main() == (changed is not None)
    header, report = (lines := capsys.readouterr().out.splitlines())[:3], lines[3:]
    assert header[0].startswith(f"tiedgpt {tiedgpt.__version__}, NumPy")
    assert header[1] == str(tmp_path / "model")
    assert len(report) == 5
    assert ({line.split()[0] for line in report} == {"ok"}) == (changed is None)


@pytest.mark.slow
def test_ten_steps_of_training(real: GPT2) -> None:
    """llm.c's ten steps of AdamW on one batch of 4 x 64 tokens, with weight decay on every
    parameter."""
    example = next(e for e in PUBLISHED["mean_loss"] if "x = val[0:256]" in e["source"])
    B, T = example["batch"]
    ids = np.array(example["ids"][: B * T]).reshape(B, T)
    targets = np.array(example["ids"][1 : B * T + 1]).reshape(B, T)

    shapes = parameter_shapes(real.config)
    flat = np.concatenate([array.reshape(-1) for array in real.parameters.values()])
    model = GPT2(real.config, unflatten(flat, shapes))
    adamw = AdamW(flat, shapes, betas=(0.9, 0.999), eps=1e-8, weight_decay=0.01)
    adamw.decayed = list(unflatten(flat, shapes).values())
    gradient = np.empty_like(flat)
    for number, expected in enumerate(PUBLISHED["training"]["losses"]):
        loss = write_gradients(model, ids, targets, targets.size, unflatten(gradient, shapes))
        assert loss == pytest.approx(expected, rel=0, abs=PUBLISHED["training"]["tolerance"]), (
            number
        )
        adamw.step(gradient, lr=1e-4)
