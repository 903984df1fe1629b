"""Models and activations for the tests of comparisons.

A tape holds the activations of a forward pass by name, such as "mlp.0.out". The kind of an
activation is its name with N for the number of the layer: "mlp.N.out".
"""

from dataclasses import replace

import numpy as np

import tiedgpt
from tiedgpt import GPT2
from tiedgpt.comparison.mistakes import MISTAKES
from tiedgpt.comparison.places import Mistake, Place, kind_of
from tiedgpt.gpt2.run import activation_shapes
from tiedgpt.testing import TINY, random_model

MODELS = {
    "tiny": random_model(),
    "tiny untied": random_model(TINY.with_head("untied")),
    "shakespeare": tiedgpt.load_model("shakespeare-tied"),
}
# The token that ends a text, 50256, is not in the vocabulary of this model.
TWO_LAYERS = random_model(replace(TINY, n_layer=2, eos_token_id=50256))


def some_ids(model: GPT2, B: int = 2, T: int = 21, seed: int = 0) -> np.ndarray:
    """Random ids of the model's vocabulary, [B, T]."""
    return np.random.default_rng(seed).integers(model.config.vocab_size, size=(B, T))


def tape_of(model: GPT2, ids: np.ndarray) -> dict[str, np.ndarray]:
    """All activations of the model on ids [T] or [B, T], in the order of the forward pass."""
    tape: dict[str, np.ndarray] = {}
    model(ids, tape=tape)
    return tape


def with_mistake(model: GPT2, ids: np.ndarray, mistake: Mistake | str) -> dict[str, np.ndarray]:
    """The activations of the model with a known mistake at every place where it can be made.

    They come from the model's own call, by its edits. mistake: one of MISTAKES, or the sentence of
    one; the first that has this sentence is made.
    """
    if isinstance(mistake, str):
        mistake = next(row for row in MISTAKES if row.sentence == mistake)
    tape: dict[str, np.ndarray] = {}

    def edit_of(name, wrong):
        return lambda right: wrong(Place(name, right, model, ids, tape))

    edits = {}
    for name in activation_shapes(model.config):
        if kind_of(name) in mistake.wrong:
            edits[name] = edit_of(name, mistake.wrong[kind_of(name)])
    with np.errstate(all="ignore"):  # some mistakes make nan
        model(ids, tape=tape, edit=edits)
        logits = tape.pop("logits")
        if "logits" in mistake.wrong:  # of which the model has no edit
            logits = mistake.wrong["logits"](Place("logits", logits, model, ids, tape))
    tape["logits"] = logits
    return tape
