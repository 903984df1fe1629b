"""Which known mistake explains the first activation that differs.

`diagnose` plants one mistake after the other in our own model, which goes on from the other
GPT-2's activations where these are right. A mistake explains the difference if the activation
agrees then. The best explanation leaves the fewest other activations wrong.

Some words: `given` has the other GPT-2's activations, from which ours are computed. `theirs` is its
array of the activation that differs, `ours` the one that we compute. The window is the activations
in which the mistake may be: the one that differs, and those before it that were not given.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..gpt2.model import Array
from ..gpt2.run import Tape
from .agreement import Comparison, distance
from .forward_pass import ForwardPass, compute_activations
from .mistakes import DIGITS_OF_HALVES, rounded
from .place import Compute
from .trials import Scope, Trial, trials_in

# The multiplications of a search whose caller does not say how many trials to make. They take some
# minutes. There is no limit of time, because a busy machine would find less then.
MOST_MULTIPLICATIONS = 1e13
FEW_TOKENS = 32  # fewer tokens take as long, because each pass reads all weights
NEAR = 1 / 64  # of the largest number: rounding to bfloat16 is 1 / 512, and grows in later layers
OnTrial = Callable[[int, int], Any]  # called with the number of trials before this one and of all


@dataclass(frozen=True)
class Difference:
    """The first activation that differs."""

    name: str
    error: float
    tolerance: float
    theirs: Array
    distances: Array  # of theirs from ours, number by number
    given: Tape  # their activations, from which ours are computed
    without_mistakes: Tape  # ours, all of them

    @property
    def ours(self) -> Array:
        return self.without_mistakes[self.name]

    @property
    def infinite(self) -> Array:
        """Where theirs is inf or nan, and ours is not."""
        return np.isinf(self.distances)


@dataclass(frozen=True)
class Explanation:
    """A trial after which the first difference is gone."""

    trial: Trial
    error: float  # the distance of theirs from ours that is left there
    still_wrong: list[str]  # activations that still differ then, in the order of the forward pass

    @property
    def rank(self) -> tuple[int, Scope]:
        """The smaller, the better: few activations are still wrong, and then a wide scope."""
        return len(self.still_wrong), self.trial.scope


@dataclass(frozen=True)
class Search:
    """What came of the trials."""

    explanations: list[Explanation]
    tried: int  # the number of trials that were made


@dataclass(frozen=True)
class Diagnosis:
    """What `compare` reports of the first difference."""

    sentences: list[str]
    note: str  # what to do next, or ""
    tried: int = 0  # trials of mistakes
    total: int = 0  # trials that there are


@np.errstate(all="ignore")
def diagnose(comparison: Comparison, progress: OnTrial, most_trials: int | None) -> Diagnosis:
    """The mistakes that explain the first difference. There has to be a difference.

    progress: called before each trial. most_trials: how many are made; None: affordable_trials.
    """
    difference = first_difference(comparison)

    # Two explanations are plain to see without a trial.
    dtype = half_precision_of(difference)
    if dtype is not None:
        sentence = f"{difference.name}: yours is rounded to {dtype}"
        return Diagnosis([sentence], "compare in float32")

    window = window_of(difference, comparison.names)
    is_zero = not difference.theirs.any()
    if is_zero:
        return Diagnosis([f"{difference.name}: yours is 0 everywhere"], what_to_give(window))

    # The others are known mistakes. They are tried one after the other.
    trials = trials_in(window, comparison.names)
    if most_trials is None:
        most_trials = affordable_trials(comparison, difference.name, trials)
    search = try_mistakes(comparison, difference, window, trials[:most_trials], progress)
    if search.explanations:
        sentences, note = describe_explanations(difference, best_of(search.explanations), window)
    else:
        sentences, note = describe_failure(difference, window, search.tried, len(trials))
    return Diagnosis(sentences, note, search.tried, len(trials))


def first_difference(comparison: Comparison) -> Difference:
    """The first activation that differs from what we compute from theirs before it.

    If none differs from that, small differences have grown. Then it is the first one that differs
    from what we compute from the ids alone, and nothing is given.
    """
    given = comparison.theirs
    wrong_rows = [row for row in comparison.rows(given, planted={}) if row.differs]
    if not wrong_rows:
        given = {}
        wrong_rows = [row for row in comparison.rows(given, planted={}) if row.differs]
    row = wrong_rows[0]
    theirs = comparison.theirs[row.name]
    without_mistakes = compute_activations(comparison.model32, comparison.ids, given, planted={})
    return Difference(
        name=row.name,
        error=row.error,
        tolerance=row.tolerance,
        theirs=theirs,
        distances=distance(row.name, theirs, without_mistakes[row.name]),
        given=given,
        without_mistakes=without_mistakes,
    )


def half_precision_of(difference: Difference) -> str | None:
    """The dtype to which theirs is rounded, "bfloat16" or "float16", or None.

    If theirs is far from ours, rounding does not explain the difference.
    """
    is_near = difference.distances.max() <= np.abs(difference.ours).max() * NEAR
    if not is_near:
        return None
    for dtype, bits in DIGITS_OF_HALVES.items():
        if np.array_equal(difference.theirs, rounded(difference.theirs, bits)):
            return dtype
    return None


def window_of(difference: Difference, names: list[str]) -> list[str]:
    """The activations in which the mistake may be, up to the one that differs.

    They begin after the last given activation before it, because ours are computed from that one.
    names: all activations, in the order of the forward pass.
    """
    end = names.index(difference.name)
    start = 0
    for index in range(end):
        if names[index] in difference.given:
            start = index + 1
    return names[start : end + 1]


def affordable_trials(comparison: Comparison, name: str, trials: list[Trial]) -> int:
    """How many of the trials, from the first, are made if the caller does not say.

    So many take at most MOST_MULTIPLICATIONS. name: the activation that differs.
    """
    model = comparison.model32
    layer_size = 0  # the number of parameters of a layer
    for parameter, array in model.parameters.items():
        if parameter.startswith("h.0."):
            layer_size += array.size
    # A trial computes no logits if an activation before them differs.
    head_size = 0
    if name == "logits":
        head_size = model.W_U.size

    # Each token is multiplied by each parameter once. The time for a few tokens is that of reading
    # the parameters, which is the same for one token as for FEW_TOKENS.
    tokens = max(comparison.ids.size, FEW_TOKENS)
    multiplications = 0
    for count, trial in enumerate(trials):
        multiplications += tokens * (trial.layers * layer_size + head_size)
        if multiplications > MOST_MULTIPLICATIONS:
            return count
    return len(trials)


def try_mistakes(
    comparison: Comparison,
    difference: Difference,
    window: list[str],
    trials: list[Trial],
    progress: OnTrial,
) -> Search:
    """Plant one mistake after the other, and see whether the difference is gone.

    trials: sorted by scope, the widest first. The search ends before a scope if a mistake of a
    wider one explains all differences.
    """
    explanations: list[Explanation] = []
    errors: dict[frozenset[tuple[str, Compute]], float] = {}
    for tried, trial in enumerate(trials):
        if is_explained(explanations, trial.scope):
            return Search(explanations, tried)
        progress(tried, len(trials))

        # The activation that differs is the last of the window, and mistakes after it do not change
        # it. So trials with the same mistakes in the window leave the same error, which is computed
        # once.
        in_window = planted_in(window, trial)
        if in_window not in errors:
            errors[in_window] = error_with(comparison, difference, trial)
        error = errors[in_window]

        # To compare all activations takes two whole passes. It is done only if the error is much
        # smaller. The right mistake leaves only rounding, which is less than a quarter of a
        # difference beyond the tolerance.
        is_much_smaller = error < difference.error / 4
        if is_much_smaller:
            rows = comparison.rows(difference.given, trial.planted)
            still_wrong = [row.name for row in rows if row.differs]
            if difference.name not in still_wrong:
                explanations.append(Explanation(trial, error, still_wrong))
    return Search(explanations, len(trials))


def planted_in(window: list[str], trial: Trial) -> frozenset[tuple[str, Compute]]:
    """The mistakes of a trial in the window: each activation, and its wrong function."""
    planted = set()
    for name, compute in trial.planted.items():
        if name in window:
            planted.add((name, compute))
    return frozenset(planted)


def is_explained(explanations: list[Explanation], scope: Scope) -> bool:
    """Whether a mistake of a wider scope than this explains all differences.

    It is the better explanation, so no mistake of this scope has to be tried.
    """
    for explanation in explanations:
        explains_all = len(explanation.still_wrong) == 0
        is_wider = explanation.trial.scope < scope  # a wider scope is a smaller number
        if explains_all and is_wider:
            return True
    return False


def error_with(comparison: Comparison, difference: Difference, trial: Trial) -> float:
    """The largest distance of theirs from ours with the mistakes of a trial, where they differ."""
    forward_pass = ForwardPass(comparison.model32, comparison.ids, difference.given, trial.planted)
    ours = forward_pass.compute_one(difference.name, difference.without_mistakes)
    return float(distance(difference.name, difference.theirs, ours).max())


def best_of(explanations: list[Explanation]) -> list[Explanation]:
    """The best explanation, and those that cannot be told apart from it.

    They have its rank: they leave as many activations wrong, and their scope is as wide. They are
    in the order of the list of mistakes.
    """
    best_rank = min(explanation.rank for explanation in explanations)
    best = [explanation for explanation in explanations if explanation.rank == best_rank]
    best.sort(key=lambda explanation: explanation.trial.number)
    smallest_error = min(explanation.error for explanation in best)

    # If an error is at most twice the smallest one, the two may differ by rounding alone.
    # A mistake that can be made in two places with the same result is named once.
    by_sentence: dict[str, Explanation] = {}
    for explanation in best:
        sentence = explanation.trial.sentence
        is_as_near = explanation.error <= 2 * smallest_error
        if is_as_near and sentence not in by_sentence:
            by_sentence[sentence] = explanation
    return list(by_sentence.values())


def describe_explanations(
    difference: Difference, explanations: list[Explanation], window: list[str]
) -> tuple[list[str], str]:
    """The sentences on explanations that cannot be told apart, and a note on what to do next."""
    # Many mistakes make numbers nan or inf. If no other number is wrong, the mistake is named with
    # "perhaps".
    only_infinite = differs_only_by_infinite(difference)

    # The first sentence names the likeliest mistake, and the others are alternatives.
    sentences = infinite_sentences(difference)
    for count, explanation in enumerate(explanations):
        start = explanation.trial.start
        mistake = explanation.trial.sentence
        if count > 0:
            sentences.append(f"{start}: or yours {mistake}")
        elif only_infinite:
            sentences.append(f"{start}: perhaps yours {mistake}")
        else:
            sentences.append(f"{start}: yours {mistake}")

    # The note is about the explanation with the smallest error.
    nearest = min(explanations, key=lambda explanation: explanation.error)
    if nearest.still_wrong:
        next_wrong = nearest.still_wrong[0]
        note = f"{next_wrong} differs then, too: correct this first, and compare again"
    elif only_infinite:
        note = what_to_give(window)
    else:
        note = nearest.trial.note
    return sentences, note


def describe_failure(
    difference: Difference, window: list[str], tried: int, total: int
) -> tuple[list[str], str]:
    """The sentences if no mistake explains the difference, and a note on what would help."""
    sentences = infinite_sentences(difference)
    note = what_to_give(window)
    if tried == total:
        sentences.append(f"{difference.name}: this is none of the known mistakes")
        return sentences, note

    sentences.append(
        f"{difference.name}: this is none of the {tried:,} mistakes that were tried, of {total:,}"
    )
    try_all = f"to try all, give --trials {total} (in Python, trials={total})"
    if note == "":
        return sentences, try_all
    return sentences, f"{note}; {try_all}"


def differs_only_by_infinite(difference: Difference) -> bool:
    """Whether theirs differs by nan or inf, and its other numbers agree."""
    infinite = difference.infinite
    finite_distances = difference.distances[~infinite]
    others_agree = finite_distances.max(initial=0) <= difference.tolerance
    return bool(infinite.any() and others_agree)


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
    """A note on the activations that would show where the mistake is, or "" if all were given.

    If there are blocks in the window, their outputs come first: they are few.
    """
    before = window[:-1]  # without the one that differs
    blocks = [name for name in before if name.startswith("resid_post")]
    if len(blocks) > 1:
        return f"to find where it begins, give {blocks[0]} to {blocks[-1]}, too"
    if before:
        return f"to find where it begins, give {', '.join(before)}, too"
    return ""
