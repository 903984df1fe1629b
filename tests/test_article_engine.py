"""GPT-2 in JavaScript, the engine of the article, against the package and the published values."""

import json
from pathlib import Path

import numpy as np
import pytest
from support.node import run_node
from support.texts import known_characters, random_texts

import tiedgpt
from tiedgpt.checkpoints import safetensors
from tiedgpt.study.paths import PATHS

VECTORS = Path(__file__).parent / "vectors" / "v1"
TEXT = "ROMEO:\nMy lord, I will not be"


def read(path):
    """The arrays of a safetensors file, in the precision of the file."""
    tensors, _ = safetensors.read_header(path)
    return {name: tensor.read_exactly() for name, tensor in tensors.items()}


def square(rows, T):
    """Rows of 1, 2, ..., T numbers as a matrix [T, T] with zeros above its diagonal."""
    return [row + [0.0] * (T - len(row)) for row in rows]


@pytest.mark.parametrize("name", ["tied", "untied", "gelu"])
def test_the_published_activations_loss_and_greedy_tokens(name):
    """The program passes these parts of the vectors. It computes no gradients."""
    folder = VECTORS / name
    expected = read(folder / "expected.safetensors")
    document = json.loads((folder / "vectors.json").read_text())
    ids = expected["ids"].tolist()
    script = """
        const {params, config} = readModel(bufferOf(input.weights), input.config)
        const tied = config.tie_word_embeddings
        const tapes = input.ids.map(ids => {
            const tape = {}
            gpt2(ids, params, {config, tied, tape})
            return tape
        })
        const greedy = [...input.prompt]
        while (greedy.length < input.prompt.length + 10) {
            const logits = gpt2(greedy, params, {config, tied}).at(-1)
            greedy.push(topK(logits, 1)[0])
        }
        print({tapes, greedy})
    """
    answer = run_node(
        script,
        weights=str(folder / "model.safetensors"),
        config=json.loads((folder / "config.json").read_text()),
        ids=ids,
        prompt=document["prompt"],
    )
    B, T = expected["ids"].shape
    names = {name for name in expected if not name.startswith(("h.", "w", "ln_f", "lm_head"))}
    assert set(answer["tapes"][0]) == names - {"ids", "targets"}
    for activation in answer["tapes"][0]:
        mine = [tape[activation] for tape in answer["tapes"]]
        if activation.endswith(("scores", "pattern")):
            mine = [[square(rows, T) for rows in heads] for heads in mine]
        theirs = expected[activation]
        if activation.endswith("scores"):
            theirs = np.tril(theirs)  # what is above the diagonal is not compared
        scale = np.abs(theirs).max()
        np.testing.assert_allclose(np.array(mine), theirs, rtol=0, atol=1e-12 * scale)
    logits = np.array([tape["logits"] for tape in answer["tapes"]])
    log_sums = np.log(np.exp(logits).sum(axis=-1))  # [B, T]
    targets = expected["targets"][..., None]
    of_targets = np.take_along_axis(logits, targets, axis=-1)[..., 0]
    assert (log_sums - of_targets).mean() == pytest.approx(document["loss"], rel=1e-12)
    assert answer["greedy"][-10:] == document["greedy"]
