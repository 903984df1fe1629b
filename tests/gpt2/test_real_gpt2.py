"""GPT-2 124M against published numbers. Skipped if the checkpoint is not on this machine.

goldens/gpt2-124M.json holds the numbers, PUBLISHED, each with its source: logits, greedy
continuations, a final hidden state and losses, from transformers, TransformerLens, llm.c, picoGPT
and others. So an error that this package shares with one other implementation is still found.
"""

import json

import check_gpt2  # of scripts/
import numpy as np
import pytest
from support.models import random_model

import tiedgpt
from tiedgpt import GPT2
from tiedgpt.checkpoints import find_model
from tiedgpt.errors import TiedGPTError
from tiedgpt.gpt2.backward import write_gradients
from tiedgpt.gpt2.parameters import parameter_shapes, unflatten
from tiedgpt.training.optimizer import AdamW

PUBLISHED = json.loads(check_gpt2.PUBLISHED.read_text(encoding="utf-8"))
FACTS = list(check_gpt2.facts(PUBLISHED))


@pytest.fixture(scope="module")
def real() -> GPT2:
    """GPT-2 124M, if it is here; one that is here but does not load is a failure, not a skip."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_HUB_OFFLINE", "1")
        try:
            _, path = find_model("gpt2")
        except TiedGPTError as error:
            pytest.skip(str(error))
    return tiedgpt.load_model(path)


@pytest.mark.parametrize("fact", FACTS, ids=lambda fact: fact.name)
def test_published_numbers(real: GPT2, fact: check_gpt2.Fact) -> None:
    assert fact.difference(real) <= fact.tolerance


@pytest.mark.parametrize("error", [0, 0.5, np.nan], ids=["right", "wrong", "nan"])
def test_the_report_says_whether_all_numbers_are_right(tmp_path, monkeypatch, capsys, error):
    """`published` are the numbers of a small model, but for an error in one of them."""
    model = random_model()
    ids = [3, 1, 4, 1, 5]
    logits = model(ids)[-1].tolist()
    most_likely_first = sorted(range(len(logits)), key=lambda token: -logits[token])
    prompt = {
        "ids": ids,
        "logsumexp": np.log(np.exp(logits).sum()),
        "mean_logit": np.mean(logits),
        "max_logit": max(logits),
        "min_logit": min(logits),
        "first8_logits": logits[:8],
        "top10": [(token, "its text", logits[token]) for token in most_likely_first[:10]],
    }
    published = {
        "last_position_logits": {"suggested_tolerance": 0.005, "examples": [prompt]},
        "greedy": [{"ids": ids, "output_ids": [*ids, most_likely_first[0]]}],
        "final_hidden": {"ids": ids, "values": model.final(ids)[0, :5].tolist(), "tolerance": 0.01},
        "mean_loss": [],
    }
    published["final_hidden"]["values"][3] += error
    file = tmp_path / "published.json"
    file.write_text(json.dumps(published))
    tiedgpt.save_model(model, None, tmp_path / "model")
    monkeypatch.setattr(check_gpt2, "PUBLISHED", file)
    monkeypatch.setattr("sys.argv", ["check_gpt2.py", str(tmp_path / "model")])
    code = check_gpt2.main()
    assert code == (error != 0)
    assert ("DIFFERS" in capsys.readouterr().out) == (error != 0)


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
