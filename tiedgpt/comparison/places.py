"""Places in a forward pass of our model, and mistakes planted in them.

A place is an activation, such as "mlp.0.post". Its kind is the name with N for the layer's number,
"mlp.N.post". A mistake has, for each kind of activation that it changes, a wrong function: from a
Place to the wrong activation. A trial plants a mistake in some of the places where it can be made.

In the functions, `given` is a tape of activations of the other GPT-2: our pass computes its own
activation, and goes on with the given one in its place. `planted` maps the name of an activation to
the wrong function that computes it.
"""

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from functools import cache, partial
from typing import Any

import numpy as np

from ..gpt2.model import GPT2, Array, merge_heads, transformer, unembed
from ..gpt2.run import Run, Tape

NORMS = ("attn.N.in", "mlp.N.in", "final")
Q_K_V = ("attn.N.q", "attn.N.k", "attn.N.v")
LINEARS = ("attn.N.qkv", "attn.N.out", "mlp.N.pre", "mlp.N.out")

# The weight and the bias from which each kind of activation is computed.
PARAMETERS_OF = {
    "attn.N.in": "h.N.ln_1",
    "attn.N.qkv": "h.N.attn.c_attn",
    "attn.N.q": "h.N.attn.c_attn",
    "attn.N.k": "h.N.attn.c_attn",
    "attn.N.v": "h.N.attn.c_attn",
    "attn.N.out": "h.N.attn.c_proj",
    "mlp.N.in": "h.N.ln_2",
    "mlp.N.pre": "h.N.mlp.c_fc",
    "mlp.N.out": "h.N.mlp.c_proj",
    "final": "ln_f",
}


@cache
def kind_of(name: str) -> str:
    """Put N for the layer's number: "attn.3.qkv" -> "attn.N.qkv"."""
    return re.sub(r"\.\d+", ".N", name)


@cache
def layer_of(name: str) -> int | None:
    """The number of the activation's layer: "attn.3.qkv" -> 3. None if it is in no layer."""
    number = re.search(r"\.(\d+)", name)
    if number is None:
        return None
    return int(number[1])


@dataclass(frozen=True)
class Place:
    """An activation in a forward pass.

    place["attn.N.in"] is an activation before it in its layer, place["h.N.ln_1.weight"] a parameter
    of its layer, place["wte.weight"] one of the whole model.
    """

    name: str
    right: Array  # the activation as model.py computes it from those before it
    model: GPT2
    ids: Array  # [B, T]
    tape: Tape  # the activations before it

    @property
    def kind(self) -> str:
        return kind_of(self.name)

    @property
    def layer(self) -> int:
        """The number of the activation's layer.

        For final and logits it is that of the last one, from which they are computed. The mistakes
        of embed do not ask for it.
        """
        layer = layer_of(self.name)
        if layer is None:
            return self.n_layer - 1
        return layer

    def __getitem__(self, name: str) -> Array:
        """A parameter or an earlier activation. N in its name stands for this layer's number."""
        name = name.replace(".N", f".{self.layer}")
        if name in self.model.parameters:
            return self.model.parameters[name]
        return self.tape[name]

    @property
    def x(self) -> Array:
        """The activation that this one is computed from, for kinds with a single one.

        For a sum, such as resid_mid.N, it is what is added to the residual stream.
        """
        if self.kind in Q_K_V:
            return self["attn.N.qkv"]
        if self.kind == "attn.N.out":
            return merge_heads(self["attn.N.heads"])
        # The tape ends before this activation, and is in the order of the forward pass. Each other
        # activation is computed from the one just before it, which is the newest on the tape.
        newest = list(self.tape)[-1]
        return self.tape[newest]

    @property
    def weight(self) -> Array:
        """The weight from which an activation of a kind in PARAMETERS_OF is computed."""
        return self[f"{PARAMETERS_OF[self.kind]}.weight"]

    @property
    def bias(self) -> Array:
        """The bias from which an activation of a kind in PARAMETERS_OF is computed."""
        return self[f"{PARAMETERS_OF[self.kind]}.bias"]

    @property
    def eps(self) -> float:
        return self.model.config.layer_norm_epsilon

    @property
    def n_layer(self) -> int:
        return self.model.config.n_layer

    @property
    def D(self) -> int:
        return self.model.config.n_embd

    @property
    def H(self) -> int:
        return self.model.config.n_head

    @property
    def K(self) -> int:
        return self.model.config.head_width


Wrong = Callable[[Place], Array]  # from a place to a wrong activation


@dataclass(frozen=True)
class Mistake:
    sentence: str  # what follows "yours"
    wrong: Mapping[str, Wrong]  # a kind of activation -> the function that computes the wrong one
    note: str = ""  # what to do about it, if that is not clear
    only_everywhere: bool = False  # made in all of these activations or in none


# A forward pass with mistakes


@np.errstate(all="ignore")
def compute_activations(model: GPT2, ids: Array, given: Tape, planted: Mapping[str, Wrong]) -> Tape:
    """Compute each activation of ids [B, T] from those before it, in the order of the model.

    The result is what the model computes, also where it goes on with a given activation.
    """
    tape: Tape = {}  # what the pass goes on with
    replaced: Tape = {}  # what it computes where it goes on with a given activation

    # An edit gets the right activation, as model.py computes it from those on the tape.
    def edit(name: str, right: Array) -> Array:
        ours = right
        if name in planted:
            ours = planted[name](Place(name, right, model, ids, tape))
        if name not in given:
            return ours
        replaced[name] = np.asarray(ours, model.dtype)
        return given[name]

    edits = {name: partial(edit, name) for name in (*given, *planted)}
    run = Run(model.config, tape=tape, edits=edits)
    final = transformer(ids, model.tree, run)
    run.tap("logits", unembed(final, model.W_U))
    return {**tape, **replaced}


# Trials


class Scope(IntEnum):
    """How far a mistake goes. A wider scope is a smaller number."""

    EVERYWHERE = 0  # in each place where the mistake can be made
    KIND = 1  # in every layer, but in one kind of activation
    LAYER = 2  # in one layer
    PLACE = 3  # in one activation


@dataclass(frozen=True)
class Trial:
    """A known mistake of a certain scope, and where it begins."""

    start: str  # the activation in which the mistake shows first, such as "mlp.0.post"
    sentence: str  # what follows "yours", such as "is relu, in every layer"
    note: str  # what to do about the mistake, or ""
    scope: Scope
    planted: Mapping[str, Wrong]  # an activation -> the function that computes the wrong one

    @property
    def line(self) -> str:
        return f"{self.start}: yours {self.sentence}"


# A scope -> what the activations have in common to which a mistake goes from one of them
COMMON: dict[Scope, Callable[[str], Any]] = {
    Scope.EVERYWHERE: lambda name: "",
    Scope.KIND: kind_of,
    Scope.LAYER: layer_of,
    Scope.PLACE: lambda name: name,
}


def sentence_of(mistake: Mistake, scope: Scope, planted: Collection[str]) -> str:
    """What the mistake is, and how far it goes if it is planted in these activations."""
    is_in_one_layer = scope in (Scope.LAYER, Scope.PLACE) or len(planted) == 1
    if mistake.only_everywhere or is_in_one_layer:
        return mistake.sentence
    kinds = {kind_of(name) for name in planted}
    if len(kinds) > 1:
        return f"{mistake.sentence}, everywhere"
    return f"{mistake.sentence}, in every layer"


def trials_of(mistakes: list[Mistake], window: list[str], names: list[str]) -> list[Trial]:
    """Each mistake, in each scope, from each place of the window where it can begin.

    window: activations up to the one that differs. names: all activations of the model, because a
    mistake that begins in the window may go on after it. The widest scope comes first, because it
    is the likeliest; within a scope, trials have the order of the mistakes. Of trials that plant
    the same functions in the same places, the first is kept.
    """
    trials: dict[frozenset[tuple[str, Wrong]], Trial] = {}
    for scope in Scope:
        for mistake in mistakes:
            if mistake.only_everywhere and scope != Scope.EVERYWHERE:
                continue
            places = [name for name in names if kind_of(name) in mistake.wrong]
            for start in window:
                if start not in places:
                    continue
                common = COMMON[scope]
                planted = {
                    name: mistake.wrong[kind_of(name)]
                    for name in places
                    if common(name) == common(start)
                }
                sentence = sentence_of(mistake, scope, planted)
                trial = Trial(start, sentence, mistake.note, scope, planted)
                trials.setdefault(frozenset(planted.items()), trial)
    return list(trials.values())


def trials_in_all_layers(mistakes: list[Mistake], names: list[str]) -> list[Trial]:
    """Each mistake in all layers where it can be made, in one kind of activation or in all."""
    return [trial for trial in trials_of(mistakes, names, names) if trial.scope <= Scope.KIND]
