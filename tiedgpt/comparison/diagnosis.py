"""The known mistakes that explain why another GPT-2 differs from ours.

`diagnose` plants known mistakes in our own model, which goes on from the other GPT-2's activations
where these are right. Mistakes explain the difference if the activation agrees then. The best
explanation leaves the fewest other activations wrong.

First each mistake is tried alone. If none explains the difference, two are tried together, then
three: with those that brought it down most, each other one. Mistakes are named only if the
activation agrees with them up to rounding. To bring the difference down is not enough: from the
logits of 268 pairs of mistakes, the right one that brought it down most divided it by as little as
1.1, and a wrong one by as much as 1,000.

Some words: `given` has the other GPT-2's activations, from which ours are computed, and `planted`
mistakes that our model makes. `theirs` is the other GPT-2's array of an activation, `ours` the one
that we compute. The window is the activations in which the mistake may be: the one that differs,
and those before it that were not given.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..gpt2.model import Array
from ..gpt2.run import Tape
from .mistakes import BINARY_DIGITS, rounded
from .places import (
    FEWEST_NUMBERS,
    Comparison,
    Mistake,
    Scope,
    Trial,
    Wrong,
    compute_activations,
    distance,
    few_digits,
    trials_of,
)

# The multiplications of a search whose caller does not say how many trials to make. They take some
# minutes. There is no limit of time, because a busy machine would find less then.
MOST_MULTIPLICATIONS = 1e13
FEW_TOKENS = 32  # fewer tokens take as long, because each trial reads all weights
MOST_MISTAKES = 3  # that are named together
# With so many of the mistakes that brought the difference down most, each other one is tried. In
# 268 pairs of mistakes, one of the two was always among the first four.
NEAREST = 4
# Of the largest number. Rounding to bfloat16 is 1 / 512 of it, and grows in later layers.
MOST_ROUNDING = 1 / 64
IN_FLOAT32 = "compare in float32: in rounded numbers no other mistake is looked for"
OnTrial = Callable[[int, int], Any]  # called with the number of trials before this one and of all
Planted = dict[str, Wrong]  # an activation -> the function that computes the wrong one
Trials = tuple[Trial, ...]  # one mistake, or several that are made together


@dataclass(frozen=True)
class Difference:
    """The first activation that differs."""

    name: str
    error: float
    tolerance: float
    theirs: Array
    distances: Array  # of theirs from ours, number by number
    given: Tape  # their activations, from which ours are computed
    computed: Tape  # ours, all of them, in the order of the forward pass

    @property
    def infinite(self) -> Array:
        """Where theirs is inf or nan, and ours is not."""
        return np.isinf(self.distances)

    @property
    def is_infinite_alone(self) -> bool:
        """Whether the numbers that are not infinite agree. Many mistakes make inf or nan."""
        others = self.distances[~self.infinite]
        return bool(self.infinite.any() and others.max(initial=0) <= self.tolerance)

    @property
    def window(self) -> list[str]:
        """The activations in which the mistake may be, up to the one that differs.

        They begin after the last given activation before it: ours are computed from that one.
        """
        window: list[str] = []
        for name in self.computed:
            window.append(name)
            if name == self.name:
                break
            if name in self.given:
                window = []
        return window


@dataclass(frozen=True)
class Explanation:
    """Mistakes after which the difference is gone."""

    trials: Trials
    error: float  # the distance of theirs from ours that is left there
    still_wrong: list[str]  # activations that still differ then, in the order of the forward pass


@dataclass
class Counter:
    """Counts the trials that are made, up to a limit."""

    progress: OnTrial
    most: int
    tried: int = 0
    total: int = 0  # those that could be made
    is_at_limit: bool = False  # whether one more was asked for

    def begin_trial(self) -> bool:
        """Count one more trial. False if no more may be made."""
        if self.tried == self.most:
            self.is_at_limit = True
            return False
        self.progress(self.tried, min(self.total, self.most))
        self.tried += 1
        return True


@dataclass(frozen=True)
class Diagnosis:
    """What `compare` reports of the differences."""

    sentences: list[str]
    note: str  # what to do next, or ""
    tried: int = 0  # trials of mistakes
    total: int = 0  # trials that there are


@np.errstate(all="ignore")  # theirs, or a planted mistake, may have inf and nan
def diagnose(
    comparison: Comparison, mistakes: list[Mistake], progress: OnTrial, most_trials: int | None
) -> Diagnosis:
    """The mistakes that explain the differences, at most three. There has to be a difference.

    mistakes: those that are tried, the likeliest first. progress: called before each trial.
    most_trials: how many are made; None: so many that they take some minutes.
    """
    # First, our model computes each activation from the other model's activations before it. If
    # none differs then, small differences have added up, and it computes from the ids alone.
    difference = first_difference(comparison, given=comparison.theirs, planted={})
    if difference is None:
        difference = first_difference(comparison, given={}, planted={})
    assert difference is not None

    plain = plain_diagnosis(difference)
    if plain is not None:
        return plain
    if most_trials is None:
        # A trial multiplies each token by each parameter, once.
        parameters = sum(array.size for array in comparison.model32.parameters.values())
        tokens = max(comparison.ids.size, FEW_TOKENS)
        most_trials = int(MOST_MULTIPLICATIONS / (tokens * parameters))
    counter = Counter(progress, most_trials)
    found, still_wrong = find_mistakes(comparison, mistakes, difference, counter)
    if found:
        sentences, note = describe_mistakes(comparison, difference, found, still_wrong)
    else:
        sentences, note = describe_failure(difference, counter)
        ours = difference.computed[difference.name]
        digits, _ = few_digits(difference.theirs, ours, difference.tolerance)
        dtype = two_byte_dtype(difference.theirs)
        if digits:  # then a known mistake would not agree either
            sentences = [f"{difference.name}: {digits}"]
        elif dtype is not None:
            sentences = [f"{difference.name}: yours is rounded to {dtype}, and has another mistake"]
            note = IN_FLOAT32
    infinite = difference.infinite
    if infinite.any():
        kind = "nan" if np.isnan(difference.theirs[infinite]).any() else "inf"
        places = f"in {infinite.sum()} of {infinite.size} places"
        if infinite.all():
            places = "everywhere"
        sentences.insert(0, f"{difference.name}: yours is {kind} {places}")
    return Diagnosis(sentences, note, tried=counter.tried, total=counter.total)


def first_difference(comparison: Comparison, given: Tape, planted: Planted) -> Difference | None:
    """The first activation that differs from ours with planted mistakes, or None if all agree.

    given: their activations, from which ours are computed.
    """
    rows, computed = comparison.rows(given, planted)
    for row in rows:
        if row.differs:
            theirs = comparison.theirs[row.name]
            return Difference(
                name=row.name,
                error=row.error,
                tolerance=row.tolerance,
                theirs=theirs,
                distances=distance(row.name, theirs, computed[row.name]),
                given=given,
                computed=computed,
            )
    return None


def plain_diagnosis(difference: Difference) -> Diagnosis | None:
    """What is plain to see without a trial: theirs is 0, or rounded. Else None.

    If theirs is far from ours, rounding does not explain the difference.
    """
    theirs = difference.theirs
    ours = difference.computed[difference.name]
    error = difference.distances.max()
    dtype = two_byte_dtype(theirs)
    if dtype is not None and error <= np.abs(ours).max() * MOST_ROUNDING:
        sentence = f"{difference.name}: yours is rounded to {dtype}"
        # Half a unit of the largest number's last digit
        half_unit = np.abs(theirs).max() / 2 ** BINARY_DIGITS[dtype]
        if error > half_unit + difference.tolerance:
            sentence += (
                f", which explains {half_unit:.1e} of {error:.1e}: it computes in {dtype}, or has "
                "another mistake"
            )
        return Diagnosis([sentence], note=IN_FLOAT32)
    sentence, half_unit = few_digits(theirs, ours, difference.tolerance)
    if sentence and error <= half_unit + difference.tolerance:
        return Diagnosis([f"{difference.name}: {sentence}"], note="")
    if not theirs.any():
        sentence = f"{difference.name}: yours is 0 everywhere"
        return Diagnosis([sentence], note=what_to_give(difference.window))
    return None


def two_byte_dtype(x: Array) -> str | None:
    """The dtype of two bytes to which all numbers are rounded, or None."""
    numbers = np.unique(x[np.isfinite(x)])
    is_whole = np.array_equal(numbers, np.rint(numbers))  # such as ranks: nobody rounded them so
    if numbers.size < FEWEST_NUMBERS or is_whole:
        return None
    for dtype in BINARY_DIGITS:
        if np.array_equal(numbers, rounded(numbers, dtype)):
            return dtype
    return None


def find_mistakes(
    comparison: Comparison, mistakes: list[Mistake], difference: Difference, counter: Counter
) -> tuple[list[list[Trial]], list[str]]:
    """The mistakes that explain the differences, and the activations that still differ then.

    For each mistake that is found there is a list: its trial, and the trials that cannot be told
    apart from it. After mistakes that explain the first difference, the next one is explained.
    """
    found: list[list[Trial]] = []
    planted: Planted = {}
    remaining: Difference | None = difference
    still_wrong: list[str] = []
    while remaining is not None and len(found) < MOST_MISTAKES:
        search = Search(comparison, mistakes, remaining, planted, counter)
        best, alike = search.explain(MOST_MISTAKES - len(found))
        if best is None:
            break
        found += alike
        planted = search.with_planted(best.trials)
        still_wrong = best.still_wrong
        remaining = None
        if still_wrong:
            # The first difference that the mistakes found so far do not explain
            remaining = first_difference(comparison, difference.given, planted)
    return found, still_wrong


class Search:
    """A search for the known mistakes that explain a difference.

    kept: mistakes that are planted beside those that are tried.
    """

    def __init__(
        self,
        comparison: Comparison,
        mistakes: list[Mistake],
        difference: Difference,
        kept: Planted,
        counter: Counter,
    ) -> None:
        self.comparison = comparison
        self.difference = difference
        self.kept = kept
        self.counter = counter
        trials = trials_of(mistakes, difference.window, comparison.names)
        self.by_scope: dict[Scope, list[Trials]] = {scope: [] for scope in Scope}
        for trial in trials:
            self.by_scope[trial.scope].append((trial,))
        # A mistake in one layer is not tried together with others.
        self.wide = [trial for trial in trials if trial.scope <= Scope.KIND]
        # Two mistakes need two places in the window. And if nothing but inf or nan is wrong, so
        # many mistakes explain it that a pair of them tells nothing.
        self.may_be_several = len(difference.window) > 1 and not difference.is_infinite_alone
        # What was tried, with the median of the distances that it left.
        self.tried: list[tuple[float, Trials]] = []
        self.explanations: list[Explanation] = []
        counter.total += len(trials)

    def explain(self, most: int) -> tuple[Explanation | None, list[list[Trial]]]:
        """The best explanation, of at most `most` mistakes; None if there is none.

        Beside it, for each of its mistakes a list of the trials that cannot be told apart.
        """
        if self.may_be_several:  # one_more tries a second mistake, then a third one, up to `most`
            self.counter.total += (most - 1) * NEAREST * len(self.wide)
        # The search ends with the group in which mistakes explain all differences, because they are
        # a better explanation than those of a later group.
        for group in self.groups(most):
            for trials in group:
                if not self.counter.begin_trial():
                    return self.best()
                explanation = self.attempt(trials)
                if explanation is not None:
                    self.explanations.append(explanation)
            if any(not explanation.still_wrong for explanation in self.explanations):
                break
        return self.best()

    def groups(self, most: int) -> Iterator[list[Trials]]:
        """What is tried, the likeliest first: one mistake, two, one in one layer, three."""
        yield self.by_scope[Scope.EVERYWHERE]
        yield self.by_scope[Scope.KIND]
        if most > 1:
            yield from self.one_more(count=1)
        yield self.by_scope[Scope.LAYER]
        yield self.by_scope[Scope.PLACE]
        if most > 2:
            yield from self.one_more(count=2)

    def one_more(self, count: int) -> Iterator[list[Trials]]:
        """Each mistake beside each of the attempts of `count` mistakes that left the smallest
        distances.
        """
        if self.explanations or not self.may_be_several:  # fewer mistakes explain it already
            return
        attempts = []
        for median, trials in self.tried:
            if len(trials) == count and trials[0].scope <= Scope.KIND:
                attempts.append((median, trials))
        attempts.sort(key=lambda attempt: attempt[0])
        for _, trials in attempts[:NEAREST]:
            yield [(*trials, trial) for trial in self.wide]

    def with_planted(self, trials: Trials) -> Planted:
        """The kept mistakes and the mistakes of the trials. A later one replaces an earlier one."""
        planted = dict(self.kept)
        for trial in trials:
            planted |= trial.planted
        return planted

    def attempt(self, trials: Trials) -> Explanation | None:
        """Plant these mistakes. Returns an explanation if the difference is gone then."""
        for number, trial in enumerate(trials):
            later = {name for each in trials[number + 1 :] for name in each.planted}
            if trial.planted.keys() <= later:
                return None  # the later mistakes leave nothing of this one
        planted = self.with_planted(trials)
        difference = self.difference
        ours = compute_activations(
            self.comparison.model32,
            self.comparison.ids,
            difference.given,
            planted,
            last=difference.name,
        )
        distances = distance(difference.name, difference.theirs, ours[difference.name])
        error = float(distances.max())
        self.tried.append((float(np.median(distances)), trials))

        # To compare all activations takes two more passes, one of them in float64. It is done only
        # if the error is much smaller. The right mistake leaves only rounding, which is less than a
        # quarter of a difference beyond the tolerance.
        is_much_smaller = error < difference.error / 4
        if not is_much_smaller:
            return None
        rows, _ = self.comparison.rows(difference.given, planted)
        still_wrong = [row.name for row in rows if row.differs]
        if difference.name in still_wrong:
            return None
        return Explanation(trials, error, still_wrong)

    def best(self) -> tuple[Explanation | None, list[list[Trial]]]:
        """The best explanation so far, or None. Beside it, for each of its mistakes a list of the
        trials that cannot be told apart."""
        if not self.explanations:
            return None, []
        best, alike = nearest_of(self.explanations, number=0)
        if len(best.trials) == 1:
            return best, [alike]
        # The search ended with the first mistakes that fit together. So in the place of each one,
        # beside the rest, all other mistakes are tried.
        alike_of_each = []
        self.counter.total += len(best.trials) * len(self.wide)
        for number in range(len(best.trials)):
            before, after = best.trials[:number], best.trials[number + 1 :]
            found = [best]
            for trial in self.wide:
                if not self.counter.begin_trial():
                    break
                explanation = self.attempt((*before, trial, *after))
                if explanation is not None:
                    found.append(explanation)
            best, alike = nearest_of(found, number)
            alike_of_each.append(alike)
        return best, alike_of_each


def nearest_of(explanations: list[Explanation], number: int) -> tuple[Explanation, list[Trial]]:
    """The best of some explanations, and the trials that may be its mistake of this number.

    The best one leaves the fewest activations wrong; of several, it has the fewest mistakes, then
    the widest scopes, then the smallest error. If an error is at most twice the smallest one, the
    two may differ by rounding alone, so the trial with the larger error may be the mistake, too. A
    mistake that can be made in two places is named once.
    """
    rank = min(rank_of(explanation) for explanation in explanations)
    best = [explanation for explanation in explanations if rank_of(explanation) == rank]
    nearest = min(best, key=lambda explanation: explanation.error)
    alike: dict[str, Trial] = {}
    for explanation in best:
        if explanation.error <= 2 * nearest.error:
            trial = explanation.trials[number]
            alike.setdefault(trial.sentence, trial)
    return nearest, list(alike.values())


def rank_of(explanation: Explanation) -> tuple[int, int, int]:
    """The smaller, the better."""
    scopes = sum(trial.scope for trial in explanation.trials)  # a wide scope is a small number
    return len(explanation.still_wrong), len(explanation.trials), scopes


def describe_mistakes(
    comparison: Comparison,
    difference: Difference,
    found: list[list[Trial]],
    still_wrong: list[str],
) -> tuple[list[str], str]:
    """The sentences on the mistakes, in the order of the forward pass, and a note on what to do.

    found: for each mistake, those that cannot be told apart from it.
    """
    in_order = sorted(found, key=lambda alike: comparison.names.index(alike[0].start))
    sentences = []
    for number, alike in enumerate(in_order):
        # The first sentence names the likeliest trial, and the others of `alike` are alternatives.
        yours = "yours"
        if number > 0:
            yours = "and yours"
        elif difference.is_infinite_alone:
            yours = "perhaps yours"
        for trial in alike:
            sentences.append(f"{trial.start}: {yours} {trial.sentence}")
            yours = "or yours"

    count = len(found)
    correct = "correct this first" if count == 1 else f"correct these {count} first, in this order"
    if still_wrong:
        return sentences, f"{still_wrong[0]} differs then, too: {correct}, and compare again"
    if difference.is_infinite_alone:
        return sentences, what_to_give(difference.window)
    notes = [alike[0].note for alike in in_order if alike[0].note]
    if count > 1:
        notes.insert(0, f"these are {count} mistakes: correct them in this order")
    return sentences, "; ".join(notes)


def joined_by_or(lines: Sequence[str], first: str = "yours") -> list[str]:
    """Sentences on "yours" of which one is true: after the first, each has "or yours"."""
    firsts = [line.replace("yours ", f"{first} ", 1) for line in lines[:1]]
    others = [line.replace("yours ", "or yours ", 1) for line in lines[1:]]
    return [*firsts, *others]


def describe_failure(difference: Difference, counter: Counter) -> tuple[list[str], str]:
    """The sentence if no mistake explains the difference, and a note on what would help."""
    note = what_to_give(difference.window)
    if not counter.is_at_limit:
        return [f"{difference.name}: this is none of the known mistakes"], note
    tried, total = counter.tried, counter.total
    sentence = (
        f"{difference.name}: this is none of the known mistakes in {tried:,} trials of {total:,}"
    )
    notes = [f"to make all, give --trials {total} (in Python, trials={total})"]
    if note:
        notes.insert(0, note)
    return [sentence], "; ".join(notes)


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
