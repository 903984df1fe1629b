"""Trials: a known mistake, planted in some of the places where it can be made.

A place is the name of an activation, such as "mlp.0.post". A trial has a scope: a wrong activation
function may be in one layer, or in all of them. The window is the places in which the mistake may
begin: the first activation that differs, and those before it that the other GPT-2 did not give. To
plant a mistake is to compute the activations of some places by its wrong functions.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from .forward_pass import layers_between
from .mistakes import Mistake, mistakes_in
from .place import Compute, kind_of, layer_of


class Scope(IntEnum):
    """How far a mistake goes. A wider scope is a smaller number."""

    EVERYWHERE = 0  # in each place where the mistake can be made
    KIND = 1  # in every layer, but in one kind of activation
    LAYER = 2  # in one layer
    PLACE = 3  # in one activation


@dataclass(frozen=True)
class Trial:
    """A known mistake of a certain scope, and where it begins."""

    number: int  # in the order of scopes, and of the list of mistakes in each
    start: str  # the activation in which the mistake shows first, such as "mlp.0.post"
    sentence: str  # what follows "yours", such as "is relu, in every layer"
    note: str  # what to do about the mistake, or ""
    scope: Scope
    planted: Mapping[str, Compute]  # an activation -> the function that computes the wrong one
    layers: int  # how many are computed up to the activation that differs


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
    is_in_one_layer = scope in (Scope.LAYER, Scope.PLACE) or len(places) == 1
    if mistake.only_everywhere or is_in_one_layer:
        return mistake.sentence
    kinds = {kind_of(name) for name in places}
    if len(kinds) > 1:
        return f"{mistake.sentence}, everywhere"
    return f"{mistake.sentence}, in every layer"


def trials_in(window: list[str], names: list[str]) -> list[Trial]:
    """Each mistake, in each scope, from each place of the window where it can begin.

    window: activations up to the one that differs. names: all activations of the model, because a
    mistake that begins in the window may go on after it. Trials are sorted by scope, the widest
    first, because it is the likeliest. Trials of the same scope are sorted by the number of layers
    that they compute, so that the quick ones come first. Of trials that plant the same functions in
    the same places, the first is kept.
    """
    outputs_of_layers = [name for name in names if kind_of(name) == "resid_post.N"]
    n_layer = len(outputs_of_layers)  # each layer has one
    mistakes = mistakes_in(n_layer)
    trials: dict[frozenset[tuple[str, Compute]], Trial] = {}
    for scope in Scope:
        for mistake in mistakes:
            for start in window:
                if not can_begin(mistake, scope, start):
                    continue
                planted = planted_from(mistake, scope, start, names)
                key = frozenset(planted.items())
                if key in trials:  # a trial that plants the same
                    continue
                trials[key] = Trial(
                    number=len(trials),
                    start=start,
                    sentence=sentence_of(mistake, scope, list(planted)),
                    note=mistake.note,
                    scope=scope,
                    planted=planted,
                    layers=len(layers_between(planted, window[-1], n_layer)),
                )
    # A wider scope is a smaller number, so the widest comes first.
    return sorted(trials.values(), key=lambda trial: (trial.scope, trial.layers))


def can_begin(mistake: Mistake, scope: Scope, start: str) -> bool:
    """Whether the mistake can be made in `start`, and can go so far."""
    if mistake.only_everywhere and scope != Scope.EVERYWHERE:
        return False
    return kind_of(start) in mistake.wrong


def planted_from(
    mistake: Mistake, scope: Scope, start: str, names: list[str]
) -> dict[str, Compute]:
    """The places of a mistake that begins in `start` -> the wrong function for each of them."""
    planted = {}
    for name in names:
        kind = kind_of(name)
        if kind in mistake.wrong and in_scope(scope, name, start):
            planted[name] = mistake.wrong[kind]
    return planted
