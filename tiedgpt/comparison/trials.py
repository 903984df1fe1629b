"""Trials: a known mistake, planted in some of the places where it can be made."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from .mistakes import MISTAKES, Mistake
from .place import Compute, kind_of, layer_of


class Scope(IntEnum):
    """How far a mistake goes, from the widest to the narrowest."""

    EVERYWHERE = 0
    KIND = 1  # in every layer, but in one kind of activation
    LAYER = 2
    PLACE = 3


@dataclass(frozen=True)
class Trial:
    start: str  # the activation in which the mistake shows first, such as "mlp.0.post"
    sentence: str  # what follows "yours", such as "is relu, in every layer"
    scope: Scope
    planted: Mapping[str, Compute]  # an activation -> the function that computes the wrong one


def in_scope(scope: Scope, name: str, start: str) -> bool:
    """Whether a mistake that shows first in `start`, and goes so far, is in `name`, too."""
    if scope == Scope.EVERYWHERE:
        return True
    if scope == Scope.KIND:
        return kind_of(name) == kind_of(start)
    if scope == Scope.LAYER:
        return layer_of(name) == layer_of(start)
    return name == start


def trial_of(mistake: Mistake, scope: Scope, start: str, sites: list[str]) -> Trial:
    """The trial of a mistake that shows first in `start`. It can be made in all of the `sites`."""
    planted = {}
    for name in sites:
        if in_scope(scope, name, start):
            planted[name] = mistake.wrong[kind_of(name)]

    sentence = mistake.sentence
    if scope in (Scope.EVERYWHERE, Scope.KIND) and len(planted) > 1:
        kinds = {kind_of(name) for name in planted}
        if len(kinds) > 1:
            sentence += ", everywhere"
        else:
            sentence += ", in every layer"
    return Trial(start, sentence, scope, planted)


def trials_in(window: list[str], names: list[str]) -> list[Trial]:
    """Each mistake in each place of the window where it can begin, the widest scope first.

    names: all activations of the model, because a mistake that begins in the window may go on
    after it. Of several trials that plant the same functions in the same places, the first counts.
    """
    trials: dict[frozenset[tuple[str, Compute]], Trial] = {}
    for scope in Scope:
        for mistake in MISTAKES:
            sites = [name for name in names if kind_of(name) in mistake.wrong]
            for start in window:
                if start in sites:
                    trial = trial_of(mistake, scope, start, sites)
                    trials.setdefault(frozenset(trial.planted.items()), trial)
    return list(trials.values())
