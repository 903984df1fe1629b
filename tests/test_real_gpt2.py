"""GPT-2 124M against published numbers. Skipped if the checkpoint is not on this machine.

goldens/gpt2-124M.json holds the numbers, each with its source: logits, greedy continuations,
a final hidden state
and losses, from transformers, TransformerLens, llm.c, picoGPT and others. So an error that this package
shares with one other implementation is still found.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tiedgpt
from tiedgpt import GPT2
from tiedgpt.backward import write_gradients
from tiedgpt.checkpoints.names import find_model
from tiedgpt.errors import CheckpointError
from tiedgpt.inference.evaluation import token_losses
from tiedgpt.parameters import parameter_shapes, unflatten
from tiedgpt.training.optimizer import AdamW

PUBLISHED = json.loads((Path(__file__).parent / "goldens" / "gpt2-124M.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def real() -> GPT2:
    """GPT-2 124M, if it is here; one that is here but does not load is a failure, not a skip."""
    try:
        path = find_model("gpt2")
    except CheckpointError as error:
        pytest.skip(str(error))
    return tiedgpt.load_model(path)


def logsumexp(logits: np.ndarray) -> np.ndarray:  # [..., V] -> [...]
    logits = logits.astype(np.float64)
    top = logits.max(axis=-1)
    return top + np.log(np.exp(logits - top[..., None]).sum(axis=-1))


def by(key: str) -> Any:
    """A test's name for one entry: what was fed in, or where the numbers are from."""
    return lambda entry: entry[key][:40]


@pytest.mark.parametrize("example", PUBLISHED["last_position_logits"]["examples"], ids=by("prompt"))
def test_last_position_logits(real: GPT2, example: dict[str, Any]) -> None:
    logits = real(example["ids"])[-1]
    found = {
        "logsumexp": logsumexp(logits),
        "mean_logit": logits.mean(dtype=np.float64),
        "max_logit": logits.max(),
        "min_logit": logits.min(),
        "first8_logits": logits[:8],
    }
    tolerance = PUBLISHED["last_position_logits"]["suggested_tolerance"]
    for name, value in found.items():
        np.testing.assert_allclose(value, example[name], rtol=0, atol=tolerance, err_msg=name)
    top10 = np.argsort(-logits)[:10]
    assert top10.tolist() == [token for token, _, _ in example["top10"]]
    np.testing.assert_allclose(logits[top10], [at for _, _, at in example["top10"]], rtol=0, atol=tolerance)


@pytest.mark.parametrize("example", PUBLISHED["greedy"], ids=by("source"))
def test_greedy_continuation(real: GPT2, example: dict[str, Any]) -> None:
    ids, expected = example["ids"], example["output_ids"]
    tokens = tiedgpt.generate(real, ids, max_new_tokens=len(expected) - len(ids), greedy=True)
    assert [*ids, *tokens] == expected


def test_final_hidden(real: GPT2) -> None:
    example = PUBLISHED["final_hidden"]
    final = real.final(example["ids"])[0, :5]
    np.testing.assert_allclose(final, example["values"], rtol=0, atol=example["tolerance"])


@pytest.mark.parametrize("example", PUBLISHED["mean_loss"], ids=by("source"))
def test_mean_loss(real: GPT2, example: dict[str, Any]) -> None:
    B, T = example.get("batch", (1, len(example["ids"]) - 1))
    rows = [example["ids"][at : at + T + 1] for at in range(0, B * T, T)]
    losses = [token_losses(real, row, stride=1) for row in rows]  # each row shorter than the context
    assert np.mean(losses) == pytest.approx(example["loss"], rel=0, abs=example["tolerance"])


@pytest.mark.slow
def test_ten_steps_of_training(real: GPT2) -> None:
    """llm.c's ten steps of AdamW on one batch of 4 x 64 tokens, with weight decay on every parameter."""
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
        assert loss == pytest.approx(expected, rel=0, abs=PUBLISHED["training"]["tolerance"]), number
        adamw.step(gradient, lr=1e-4)
