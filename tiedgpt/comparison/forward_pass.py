"""A forward pass of our model with mistakes planted, from another GPT-2's activations.

In all functions, `given` is a tape of activations of the other GPT-2: the pass computes its own
activation, and goes on with the given one in its place. `planted` maps the name of an activation to
the wrong function that computes it.
"""

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

    The result is what the model computes, also where it goes on with a given activation.
    """
    return ForwardPass(model, ids, given, planted).compute_all()


def layers_between(planted: Iterable[str], name: str, n_layer: int) -> range:
    """The layers to compute for `name`, from the first with a mistake to that of `name`.

    The result is range(n_layer, n_layer) if only final or logits are planted.
    """
    if name == "embed":  # it comes before all layers
        return range(0)
    start = n_layer
    for activation in planted:
        layer = layer_of(activation)
        if activation == "embed":
            start = 0
        elif layer is not None:  # it is None for final and logits, which come after all layers
            start = min(start, layer)

    last = layer_of(name)
    if last is None:  # final and logits are computed from the last layer
        last = n_layer - 1
    return range(start, last + 1)


class ForwardPass:
    """One pass, of all activations (compute_all) or up to one (compute_one)."""

    def __init__(
        self, model: GPT2, ids: Array, given: Tape, planted: Mapping[str, Compute]
    ) -> None:
        self.model = model
        self.ids = ids
        self.given = given
        self.planted = planted
        self.tape: Tape = {}  # what the pass goes on with: the given activation, or else ours
        self.ours_replaced: Tape = {}  # ours, where the pass goes on with the given activation
        # model.py lets each activation be edited. Here the edit of each one is `compute`.
        edits = {name: partial(self.compute, name) for name in activation_shapes(model.config)}
        self.run = Run(model.config, tape=self.tape, edits=edits)

    def compute(self, name: str, right: Array) -> Array:
        """The edit of an activation: from the right one to the one that the pass goes on with.

        `right` is what model.py computes from the activations on the tape.
        """
        ours = right
        if name in self.planted:
            wrong = self.planted[name]
            ours = wrong(Place(name, right, self.model, self.ids, self.tape))
        if name not in self.given:
            return ours
        self.ours_replaced[name] = np.asarray(ours, self.model.dtype)
        return self.given[name]

    def computed(self, name: str) -> Array:
        """What the pass computes for an activation, also where it goes on with a given one."""
        if name in self.ours_replaced:
            return self.ours_replaced[name]
        return self.tape[name]

    @np.errstate(all="ignore")
    def compute_all(self) -> Tape:
        """All activations, in the order of the model."""
        final = transformer(self.ids, self.model.tree, self.run)
        self.compute_logits(final)
        return {name: self.computed(name) for name in self.tape}

    def compute_logits(self, final: Array) -> None:
        """Put the logits on the tape. model.py has no edit of them, so `compute` is called here."""
        logits = self.compute("logits", unembed(final, self.model.W_U))
        self.tape["logits"] = np.asarray(logits, self.model.dtype)

    @np.errstate(all="ignore")
    def compute_one(self, name: str, without_mistakes: Tape) -> Array:
        """The activation `name`, which is the first planted one or one after it.

        without_mistakes: what compute_activations returns for the same `given` with nothing
        planted. The layers before the first mistake are copied from it, not computed again.
        """
        n_layer = self.model.config.n_layer
        layers = layers_between(self.planted, name, n_layer)
        if "embed" in self.planted:
            # The layers go on with what `tap` returns. It calls self.compute, the edit of "embed",
            # which makes the wrong embedding from the right one.
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
        """Put on the tape what comes before a layer. Return the last of it, the layer's input.

        If `layer` is the number of layers, that is what comes before `final`.
        """
        if layer < self.model.config.n_layer:
            next_name = f"resid_pre.{layer}"
        else:
            next_name = "final"
        names = list(without_mistakes)
        names_before = names[: names.index(next_name)]
        for name in names_before:
            array = self.given.get(name, without_mistakes[name])
            self.tape[name] = np.asarray(array, self.model.dtype)
        # The names are in the order of the forward pass. So the last one is the residual stream:
        # resid_post of the layer before, or embed.
        return self.tape[names_before[-1]]
