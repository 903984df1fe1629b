"""Trials: a known mistake, planted in some of the places where it can be made.

A trial has a scope: a wrong activation function may be in one layer, or in all of them. The window
is the activations in which the mistake may begin: the first one that differs, and those before it
that the other GPT-2 did not give. A mistake is `whole` if it can be made in the whole model only.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from .forward_pass import layers_between
from .mistakes import Mistake, mistakes_in
from .place import Compute, kind_of, layer_of


class Scope(IntEnum):
    """How far a mistake goes, from the widest to the narrowest."""

    EVERYWHERE = 0
    KIND = 1  # in every layer, but in one kind of activation
    LAYER = 2
    PLACE = 3


@dataclass(frozen=True)
class Trial:
    number: int
    start: str  # the activation in which the mistake shows first, such as "mlp.0.post"
    sentence: str  # what follows "yours", such as "is relu, in every layer"
    note: str  # what to do about the mistake, or ""
    scope: Scope
    planted: Mapping[str, Compute]  # an activation -> the function that computes the wrong one
    layers: int  # that it takes to compute the activation that differs


def in_scope(scope: Scope, name: str, start: str) -> bool:
    """Whether a mistake that shows first in `start`, and goes so far, is in `name`, too."""
    if scope == Scope.EVERYWHERE:
        return True
    if scope == Scope.KIND:
        return kind_of(name) == kind_of(start)
    if scope == Scope.LAYER:
        return layer_of(name) == layer_of(start)
    return name == start


def sentence_of(mistake: Mistake, scope: Scope, places: list[str]) -> str:
    """What the mistake is, and how far it goes if it is made in all of these activations."""
    if mistake.whole or scope > Scope.KIND or len(places) == 1:
        return mistake.sentence
    kinds = {kind_of(name) for name in places}
    if len(kinds) > 1:
        return f"{mistake.sentence}, everywhere"
    return f"{mistake.sentence}, in every layer"


def trials_in(window: list[str], names: list[str]) -> list[Trial]:
    """Each mistake in each place of the window where it can begin.

    window: activations up to the one that differs. names: all activations of the model, because a
    mistake that begins in the window may go on after it. Trials are sorted by scope, the widest
    first, because it is the likeliest. Trials of the same scope are sorted by the number of layers
    that they take. Of trials that plant the same functions in the same places, the first is kept.
    """
    n_layer = sum(kind_of(name) == "resid_post.N" for name in names)
    mistakes = mistakes_in(n_layer)
    trials: dict[frozenset[tuple[str, Compute]], Trial] = {}
    for scope in Scope:
        for mistake in mistakes:
            if mistake.whole and scope != Scope.EVERYWHERE:
                continue
            sites = [name for name in names if kind_of(name) in mistake.wrong]
            for start in window:
                if start not in sites:
                    continue
                places = [name for name in sites if in_scope(scope, name, start)]
                planted = {name: mistake.wrong[kind_of(name)] for name in places}
                key = frozenset(planted.items())
                if key in trials:
                    continue
                trials[key] = Trial(
                    number=len(trials),
                    start=start,
                    sentence=sentence_of(mistake, scope, places),
                    note=mistake.note,
                    scope=scope,
                    planted=planted,
                    layers=len(layers_between(planted, window[-1], n_layer)),
                )
    return sorted(trials.values(), key=lambda trial: (trial.scope, trial.layers))
