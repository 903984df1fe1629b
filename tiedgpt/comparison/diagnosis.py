"""Which known mistake explains the first activation that differs.

`diagnose` plants one mistake after the other in our own model, which goes on from the other
GPT-2's activations where these are right. A mistake explains the difference if the activation
agrees then. The best explanation leaves the fewest other activations wrong.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..gpt2.model import GPT2, Array
from ..gpt2.run import Tape
from .agreement import ReportRow, compare_arrays, distance
from .conventions import translate_activations
from .mistakes import HALVES, rounded
from .place import Compute, compute_activations
from .trials import Scope, Trial, trials_in

SECONDS = 15.0  # for which mistakes are tried
OnTrial = Callable[[int, int], Any]  # called with the number of trials before this one and of all


class Comparison:
    """Our model in float32 and float64 on some ids [B, T], and the other model's activations."""

    def __init__(self, model: GPT2, ids: Array, activations: Mapping[Any, Any]) -> None:
        self.model32 = model.astype(np.float32)
        self.model64 = model.astype(np.float64)
        self.ids = ids
        ours = compute_activations(self.model32, ids, given={}, planted={})
        self.names = list(ours)  # of all activations, in the order of the forward pass
        self.theirs = translate_activations(activations, ours, model.config)

    def compute(self, given: Tape, planted: Mapping[str, Compute]) -> Tape:
        """Our float32 activations, from those that are given, with planted mistakes."""
        return compute_activations(self.model32, self.ids, given, planted)

    def rows(self, given: Tape, planted: Mapping[str, Compute]) -> list[ReportRow]:
        """Their activations against ours, computed from what is given, with planted mistakes."""
        ours32 = compute_activations(self.model32, self.ids, given, planted)
        ours64 = compute_activations(self.model64, self.ids, given, planted)
        rows = []
        for name, theirs in self.theirs.items():
            rows.append(compare_arrays(name, theirs, ours64[name], ours32[name]))
        return rows


@dataclass(frozen=True)
class Difference:
    """The first activation that differs."""

    name: str
    error: float
    tolerance: float
    theirs: Array
    ours: Array
    far: Array  # the distance of theirs from ours
    given: Tape  # their activations, from which ours are computed

    @property
    def infinite(self) -> Array:
        """Where theirs is inf or nan, and ours is not."""
        return np.isinf(self.far)


@dataclass(frozen=True)
class Explanation:
    """A trial after which the first difference is gone."""

    trial: Trial
    error: float  # the distance that is left there
    still_wrong: list[str]  # activations that differ then, too

    @property
    def rank(self) -> tuple[int, Scope]:
        """The smaller, the better."""
        return len(self.still_wrong), self.trial.scope


@dataclass(frozen=True)
class Search:
    """What came of the trials."""

    explanations: list[Explanation]
    tried: int
    total: int
    is_complete: bool  # whether all were tried that could give a better explanation


@dataclass(frozen=True)
class Diagnosis:
    sentences: list[str]
    note: str  # what to do next, or ""


@np.errstate(all="ignore")
def diagnose(comparison: Comparison, progress: OnTrial) -> Diagnosis:
    """The mistakes that explain the first difference. There has to be one."""
    difference = first_difference(comparison)
    dtype = half_precision_of(difference)
    if dtype is not None:
        sentence = f"{difference.name}: yours is rounded to {dtype}"
        return Diagnosis([sentence], "compare in float32")

    window = window_of(difference, comparison.names)
    search = try_mistakes(comparison, difference, window, progress)
    if not search.explanations:
        return no_explanation(difference, search, window)
    return best_explanation(difference, search.explanations, window)


def first_difference(comparison: Comparison) -> Difference:
    """The first activation that differs from what we compute from theirs before it.

    If each agrees with that, small differences have grown. Then it is the first one that differs
    from what we compute from the ids alone.
    """
    given = comparison.theirs
    rows = comparison.rows(given, planted={})
    if not any(row.differs for row in rows):
        given = {}
        rows = comparison.rows(given, planted={})
    row = next(row for row in rows if row.differs)
    theirs = comparison.theirs[row.name]
    ours = comparison.compute(given, planted={})[row.name]
    return Difference(
        name=row.name,
        error=row.error,
        tolerance=row.tolerance,
        theirs=theirs,
        ours=ours,
        far=distance(row.name, theirs, ours),
        given=given,
    )


def half_precision_of(difference: Difference) -> str | None:
    """The dtype to which theirs is rounded, if it is near ours and all its numbers are of that."""
    is_near = difference.far.max() <= np.abs(difference.ours).max() / 64
    if not is_near:
        return None
    for dtype, bits in HALVES.items():
        if np.array_equal(difference.theirs, rounded(difference.theirs, bits)):
            return dtype
    return None


def window_of(difference: Difference, names: list[str]) -> list[str]:
    """The activations in which the mistake may be: those after the last one that is given.

    The last one of the window is the one that differs.
    """
    end = names.index(difference.name)
    start = 0
    for index in range(end):
        if names[index] in difference.given:
            start = index + 1
    return names[start : end + 1]


def try_mistakes(
    comparison: Comparison, difference: Difference, window: list[str], progress: OnTrial
) -> Search:
    """Plant each known mistake in turn, and see whether the difference is gone."""
    trials = trials_in(window, comparison.names)
    deadline = time.monotonic() + SECONDS
    errors: dict[frozenset[tuple[str, Compute]], float] = {}
    explanations: list[Explanation] = []
    for tried, trial in enumerate(trials):
        if time.monotonic() > deadline:
            return Search(explanations, tried, len(trials), is_complete=False)
        if any(not found.still_wrong and found.trial.scope < trial.scope for found in explanations):
            return Search(explanations, tried, len(trials), is_complete=True)
        progress(tried, len(trials))

        # Trials that differ only after the window have the same error in it.
        in_window = frozenset(item for item in trial.planted.items() if item[0] in window)
        if in_window not in errors:
            ours = comparison.compute(difference.given, trial.planted)[difference.name]
            errors[in_window] = distance(difference.name, difference.theirs, ours).max()
        error = errors[in_window]
        if error >= difference.error / 4:  # not much nearer than without the mistake
            continue

        rows = comparison.rows(difference.given, trial.planted)
        still_wrong = [row.name for row in rows if row.differs]
        if difference.name not in still_wrong:
            explanations.append(Explanation(trial, error, still_wrong))
    return Search(explanations, len(trials), len(trials), is_complete=True)


def best_explanation(
    difference: Difference, explanations: list[Explanation], window: list[str]
) -> Diagnosis:
    """The best of the explanations, with those that cannot be told apart from it."""
    best_rank = min(explanation.rank for explanation in explanations)
    best = [explanation for explanation in explanations if explanation.rank == best_rank]
    nearest = min(best, key=lambda found: (found.error, found.trial.start, found.trial.sentence))
    mistakes = []
    for explanation in best:
        mistake = (explanation.trial.start, explanation.trial.sentence)
        if explanation.error <= 2 * nearest.error and mistake not in mistakes:
            mistakes.append(mistake)

    # A mistake that explains nan alone, and no number, is one of many that do.
    finite = difference.far[~difference.infinite]
    only_infinite = difference.infinite.any() and finite.max(initial=0) <= difference.tolerance
    sentences = infinite_sentences(difference)
    start, sentence = mistakes[0]
    if only_infinite:
        sentences.append(f"{start}: perhaps yours {sentence}")
    else:
        sentences.append(f"{start}: yours {sentence}")
    for start, sentence in mistakes[1:]:
        sentences.append(f"{start}: or yours {sentence}")

    if nearest.still_wrong:
        next_wrong = nearest.still_wrong[0]
        note = f"{next_wrong} differs then, too: correct this first, and compare again"
    elif only_infinite:
        note = what_to_give(window)
    else:
        note = ""
    return Diagnosis(sentences, note)


def no_explanation(difference: Difference, search: Search, window: list[str]) -> Diagnosis:
    sentences = infinite_sentences(difference)
    if search.is_complete:
        sentences.append(f"{difference.name}: this is none of the known mistakes")
    else:
        sentences.append(
            f"{difference.name}: none of the {search.tried} trials that {SECONDS:.0f} s sufficed "
            f"for explains this, of {search.total}"
        )
    return Diagnosis(sentences, what_to_give(window))


def infinite_sentences(difference: Difference) -> list[str]:
    """A sentence that says where theirs is nan or inf, and ours is not."""
    infinite = difference.infinite
    if not infinite.any():
        return []
    kind = "inf"
    if np.isnan(difference.theirs[infinite]).any():
        kind = "nan"
    if infinite.all():
        return [f"{difference.name}: yours is {kind} everywhere"]
    return [f"{difference.name}: yours is {kind} in {infinite.sum()} of {infinite.size} places"]


def what_to_give(window: list[str]) -> str:
    """A note on the activations that would show where the mistake is, if some were not given."""
    before = window[:-1]
    blocks = [name for name in before if name.startswith("resid_post")]
    if len(blocks) > 1:
        return f"to find where it begins, give {blocks[0]} to {blocks[-1]}, too"
    if before:
        return f"to find where it begins, give {', '.join(before)}, too"
    return ""
