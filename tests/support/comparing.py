"""Models and activations for the tests of comparisons.

A tape holds the activations of a forward pass by name, such as "mlp.0.out". The kind of an
activation is its name with N for the number of the layer: "mlp.N.out".
"""

from dataclasses import replace

import numpy as np

import tiedgpt
from tiedgpt import GPT2
from tiedgpt.comparison.forward_pass import compute_activations
from tiedgpt.comparison.mistakes import MISTAKES
from tiedgpt.comparison.place import kind_of
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


def with_mistake(model: GPT2, ids: np.ndarray, sentence: str) -> dict[str, np.ndarray]:
    """The activations of the model with a known mistake at every place where it can be made.

    sentence: the sentence that describes the mistake in MISTAKES. The first mistake that has this
    sentence is made.
    """
    mistake = next(mistake for mistake in MISTAKES if mistake.sentence == sentence)
    wrong_functions = mistake.wrong  # by the kind of the activation that they compute
    planted = {}  # by the name of the activation
    for name in tape_of(model, ids):
        kind = kind_of(name)
        if kind in wrong_functions:
            planted[name] = wrong_functions[kind]
    return compute_activations(model, ids, given={}, planted=planted)
