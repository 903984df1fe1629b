"""A forward pass of our model with mistakes planted, from another GPT-2's activations."""

from collections.abc import Iterable, Mapping
from functools import partial

import numpy as np

from ..gpt2.model import GPT2, Array, transformer, transformer_block, unembed
from ..gpt2.ops import layer_norm
from ..gpt2.run import Run, Tape, activation_shapes
from .place import Compute, Place, layer_of


def compute_activations(
    model: GPT2, ids: Array, given: Tape, planted: Mapping[str, Compute]
) -> Tape:
    """Compute each activation of ids [B, T] from those before it, in the order of the model.

    given: activations of another GPT-2. The model goes on with them in place of its own. planted:
    the name of an activation -> the wrong function that computes it.
    """
    return ForwardPass(model, ids, given, planted).compute_all()


def layers_between(planted: Iterable[str], name: str, n_layer: int) -> range:
    """The layers in which the activation `name` may change if there are mistakes in `planted`."""
    if name == "embed":
        return range(0)
    first = n_layer
    for activation in planted:
        layer = layer_of(activation)
        if activation == "embed":
            first = 0
        elif layer is not None:
            first = min(first, layer)

    last = layer_of(name)
    if last is None:  # final and logits
        last = n_layer - 1
    return range(first, last + 1)


class ForwardPass:
    """One pass. Its arguments are those of compute_activations."""

    def __init__(
        self, model: GPT2, ids: Array, given: Tape, planted: Mapping[str, Compute]
    ) -> None:
        self.model = model
        self.ids = ids
        self.given = given
        self.planted = planted
        self.tape: Tape = {}  # what the pass goes on with: a given activation, or ours
        self.replaced: Tape = {}  # ours, of the activations that are given
        # Each activation of the pass goes through `compute`.
        edits = {name: partial(self.compute, name) for name in activation_shapes(model.config)}
        self.run = Run(model.config, tape=self.tape, edits=edits)

    def compute(self, name: str, right: Array) -> Array:
        """The edit of an activation: from the right one to the one that the pass goes on with."""
        activation = right
        if name in self.planted:
            activation = self.planted[name](Place(name, right, self.model, self.ids, self.tape))
        if name not in self.given:
            return activation
        self.replaced[name] = np.asarray(activation, self.model.dtype)
        return self.given[name]

    def computed(self, name: str) -> Array:
        """What the pass computes for an activation, also where it goes on with a given one."""
        if name in self.replaced:
            return self.replaced[name]
        return self.tape[name]

    @np.errstate(all="ignore")
    def compute_all(self) -> Tape:
        """All activations, in the order of the model."""
        final = transformer(self.ids, self.model.tree, self.run)
        self.compute_logits(final)
        return {name: self.computed(name) for name in self.tape}

    def compute_logits(self, final: Array) -> None:
        """Put the logits on the tape. They have no edit in model.py."""
        logits = self.compute("logits", unembed(final, self.model.W_U))
        self.tape["logits"] = np.asarray(logits, self.model.dtype)

    @np.errstate(all="ignore")
    def compute_one(self, name: str, without_mistakes: Tape) -> Array:
        """The activation `name`, which is the first planted one or after it.

        without_mistakes: all activations of the same pass with nothing planted. The layers before
        the first mistake are not computed again.
        """
        n_layer = self.model.config.n_layer
        layers = layers_between(self.planted, name, n_layer)
        if "embed" in self.planted:
            # `tap` calls the edit of "embed", which is `compute`: it plants the mistake.
            resid = self.run.tap("embed", without_mistakes["embed"])
        else:
            resid = self.copy_to_tape(layers.start, without_mistakes)
        for layer in layers:
            resid = transformer_block(resid, self.model.tree["h"][layer], layer, self.run)

        if name in ("final", "logits"):
            eps = self.model.config.layer_norm_epsilon
            final = layer_norm(resid, **self.model.tree["ln_f"], eps=eps)
            final = self.run.tap("final", final)
            if name == "logits":
                self.compute_logits(final)
        return self.computed(name)

    def copy_to_tape(self, layer: int, without_mistakes: Tape) -> Array:
        """Put on the tape what comes before a layer. Return the last of it, the layer's input."""
        next_name = f"resid_pre.{layer}"
        if layer == self.model.config.n_layer:
            next_name = "final"
        names = list(without_mistakes)
        names_before = names[: names.index(next_name)]
        for name in names_before:
            array = self.given.get(name, without_mistakes[name])
            self.tape[name] = np.asarray(array, self.model.dtype)
        # The names are in the order of the forward pass. So the last one is the residual stream:
        # resid_post of the layer before, or embed.
        return self.tape[names_before[-1]]
