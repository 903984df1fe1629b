"""Another GPT-2's activations and gradients against ours: which differs first, and why.

The reference is our model in float64. An array agrees if its largest distance from the reference is
at most SLACK times the largest distance of our own float32, or SLACK roundings if that is more.
This holds for float64 arrays, too, because one np.sqrt(K) makes float64 arrays of float32 ones,
with float32's rounding.

`diagnose` plants one known mistake after the other in our own model, which goes on from the other
GPT-2's activations where these are right. A mistake explains the difference if the activation
agrees then. The best explanation leaves the fewest other activations wrong.

Some words: `given` has the other GPT-2's activations, from which ours are computed, and `planted`
mistakes that our model makes. `theirs` is the other GPT-2's array of an activation, `ours` the one
that we compute. The window is the activations in which the mistake may be: the one that differs,
and those before it that were not given.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..errors import COUNT, ArgumentError, short_repr
from ..gpt2.backward import loss_and_gradients
from ..gpt2.checks import check_ids, check_targets
from ..gpt2.model import GPT2, Array
from ..gpt2.parameters import Parameters, parameter_shapes
from ..gpt2.run import Tape
from .conventions import (
    is_parameter,
    our_name,
    shape_error,
    translate_activations,
    translate_parameters,
)
from .mistakes import DIGITS_OF_HALVES, mistakes_in, rounded
from .places import Trial, Wrong, compute_activations, trials_of
from .recording import record, untied_module_sentences

SLACK = 16.0  # another order of the same sums rounds otherwise, by several times as much

# The multiplications of a search whose caller does not say how many trials to make. They take some
# minutes. There is no limit of time, because a busy machine would find less then.
MOST_MULTIPLICATIONS = 1e13
FEW_TOKENS = 32  # fewer tokens take as long, because each trial reads all weights
ALMOST_NONE = 1 / 16  # of the numbers of an array
NEAR = 1 / 64  # of the largest number: rounding to bfloat16 is 1 / 512, and grows in later layers
OnTrial = Callable[[int, int], Any]  # called with the number of trials before this one and of all


@dataclass(frozen=True)
class ReportRow:
    """One array of the other GPT-2 against ours."""

    name: str
    error: float  # the largest distance from our float64
    tolerance: float
    first_wrong: tuple[int, ...] | None = None  # the first index beyond the tolerance
    yours: float | None = None  # the number at that index
    expected: float | None = None

    @property
    def differs(self) -> bool:
        return self.first_wrong is not None

    @property
    def shows_nothing(self) -> bool:
        """Whether both have only 0, or only inf and nan. So do many wrong GPT-2s."""
        return self.tolerance == 0 and not self.differs


class NothingCompared(ArgumentError):
    """No array that was given could show a difference."""


@np.errstate(invalid="ignore")
def distance(name: str, a: Array, b: Array) -> Array:
    """|a - b| in float64; 0 where both are the same inf or nan, inf where one of them is nan."""
    distances = np.abs(np.subtract(a, b, dtype=np.float64))
    both_nan = np.isnan(a) & np.isnan(b)
    is_same = (a == b) | both_nan  # inf - inf is nan
    distances[is_same] = 0
    distances[np.isnan(distances)] = np.inf
    if name.endswith(".scores"):
        # The other GPT-2 may have masked the scores of later keys already, or not. These are above
        # the diagonal, and `tril` makes their distance 0.
        return np.tril(distances)
    return distances


def tolerance_of(ours64: Array, ours32: Array) -> float:
    """The largest distance from our float64 that is taken for rounding. Our float32 tells it."""
    finite = np.isfinite(ours64) & np.isfinite(ours32)
    rounding = np.abs(ours64[finite] - ours32[finite]).max(initial=0)
    # Our float32 may be exact by chance. So rounding is at least that of the largest number.
    least = np.finfo(np.float32).eps * np.abs(ours64[finite]).max(initial=0)
    return SLACK * float(max(rounding, least))


def compare_arrays(name: str, theirs: Array, ours64: Array, ours32: Array) -> ReportRow:
    """Compare theirs with our float64. Our float32 tells how large rounding is."""
    tolerance = tolerance_of(ours64, ours32)
    distances = distance(name, theirs, ours64)
    error = float(distances.max(initial=0))
    if error <= tolerance:
        return ReportRow(name, error, tolerance)

    is_wrong = distances > tolerance
    position = int(is_wrong.argmax())  # of the first True, in the flattened array
    index = tuple(int(n) for n in np.unravel_index(position, distances.shape))
    return ReportRow(
        name,
        error,
        tolerance,
        first_wrong=index,
        yours=float(theirs[index]),
        expected=float(ours64[index]),
    )


class Comparison:
    """Our model in float32 and float64 on some ids [B, T], and the other model's activations.

    Of several arrays of one activation, such as the output of ln_1 and the input of attention, the
    last one counts, because the other model goes on with it. The earlier ones are compared, too, if
    they differ from it.
    """

    def __init__(self, model: GPT2, ids: Array, activations: Mapping[Any, Any]) -> None:
        self.model32 = model.astype(np.float32)
        self.model64 = model.astype(np.float64)
        self.ids = ids
        ours = compute_activations(self.model32, ids, given={}, planted={})
        self.names = list(ours)  # of all activations, in the order of the forward pass
        self.our_logits = ours["logits"]
        last: Tape = {}
        self.their_names: dict[str, str] = {}  # our name -> theirs, for messages
        self.earlier: list[tuple[str, str, Array]] = []  # our name, their name, the array
        for their_name, value in activations.items():
            translated = translate_activations({their_name: value}, ours, model.config)
            for name, array in translated.items():
                if name in last and not np.array_equal(last[name], array, equal_nan=True):
                    self.earlier.append((name, self.their_names[name], last[name]))
                last[name] = array
                self.their_names[name] = short_repr(their_name)
        self.theirs = {name: last[name] for name in self.names if name in last}

    def rows(self, given: Tape, planted: Mapping[str, Wrong]) -> list[ReportRow]:
        """A row for each of their activations, in the order of the forward pass.

        Ours are computed from those before them: from theirs in `given`, and elsewhere from ours,
        with the planted mistakes.
        """
        ours32 = compute_activations(self.model32, self.ids, given, planted)
        ours64 = compute_activations(self.model64, self.ids, given, planted)
        rows = []
        for name, theirs in self.theirs.items():
            rows.append(compare_arrays(name, theirs, ours64[name], ours32[name]))
        return rows

    def rows_of_earlier(self) -> tuple[list[ReportRow], list[str]]:
        """A row for each array for which a later one counts; a sentence if the two differ."""
        rows: list[ReportRow] = []
        sentences: list[str] = []
        if not self.earlier:
            return rows, sentences
        ours32 = compute_activations(self.model32, self.ids, given={}, planted={})
        ours64 = compute_activations(self.model64, self.ids, given={}, planted={})
        for name, their_name, array in self.earlier:
            row = compare_arrays(name, array, ours64[name], ours32[name])
            rows.append(replace(row, name=f"{name}, {their_name}"))
            if distance(name, array, self.theirs[name]).max() > row.tolerance:
                sentences.append(
                    f"{name}: yours are two, {their_name} and {self.their_names[name]}, "
                    "and they differ"
                )
        return rows, sentences


@dataclass(frozen=True)
class Report:
    """What `compare` found.

    `str(report)` says what was not compared, has a table in the order of the forward pass, and then
    the diagnosis.
    """

    rows: list[ReportRow]
    diagnosis: list[str]  # what explains the first difference; several if they cannot be told apart
    note: str  # what to do next, or ""
    not_given: int  # activations of the model that were not compared
    trials: int = 0  # known mistakes that were tried, each in each place where it may be
    all_trials: int = 0  # those that could be tried
    not_compared: Sequence[str] = ()  # sentences on what a verdict needs and was not compared

    @property
    def same(self) -> bool | None:
        """Whether it is the same GPT-2. None if all that was compared agrees, and that is too
        little: without logits, with one token, or without a gradient where targets were given.
        """
        if self.first is not None:
            return False
        return None if self.not_compared else True

    @property
    def first(self) -> ReportRow | None:
        """The first row that differs, or None if all agree."""
        for row in self.rows:
            if row.differs:
                return row
        return None

    def __str__(self) -> str:
        lines = list(self.not_compared)
        if lines:
            lines.append("")
        width = max(len(row.name) for row in self.rows)  # of names; numbers are below their titles
        lines.append(f"{'':{width}}  largest error  tolerance  first wrong index")
        for row in self.rows:
            line = f"{row.name:{width}}  {row.error:13.1e}  {row.tolerance:9.1e}"
            if row.first_wrong is not None:
                line += f"  {list(row.first_wrong)}"
            lines.append(line)
        lines.append("")
        lines.append(f"{self.verdict()} ({self.counts()})")
        lines += self.diagnosis
        if self.note:
            lines.append(self.note)
        return "\n".join(lines)

    def verdict(self) -> str:
        """The first number that is wrong, for people."""
        first = self.first
        if first is None or first.first_wrong is None:
            return "all agree" if self.same else "what was compared agrees"
        return (
            f"first difference: {first.name}{list(first.first_wrong)} is {first.yours:.9g}, "
            f"expected {first.expected:.9g}"
        )

    def counts(self) -> str:
        """How many activations were compared and how many mistakes were tried, for people."""
        counts = f"{len(self.rows)} compared; {self.not_given} activations were not given"
        if self.all_trials > 0:
            counts += f"; {self.trials:,} of {self.all_trials:,} mistakes were tried"
        return counts


def no_progress(tried: int, total: int) -> None:
    """What `compare` calls before each trial if the caller does not want to know."""


def compare(
    model: GPT2,
    theirs: Any,
    ids: Any,
    targets: Any = None,
    progress: OnTrial = no_progress,
    trials: int | None = None,
) -> Report:
    """Compare another GPT-2 with `model` on `ids` [T] or [B, T].

    theirs: a dict of arrays (NumPy's or torch's) under any names of conventions.py; or a function
    from ids to such a dict, or to logits; or a torch module: transformers', nanoGPT's or
    TransformerLens's GPT-2, whose activations are recorded by hooks, without dropout. If logits
    have more columns than the model's, those of a padded vocabulary, the first V are compared.

    targets: of the shape of ids. With them, gradients of the mean loss are compared, too: arrays of
    the dict under names of parameters. progress: called before each trial of a mistake, with the
    number of those before it and of all. trials: at most so many are made, those that take little
    time first; None: as many as take some minutes. Raises ArgumentError, of which NothingCompared
    is one: none of the arrays could show a difference.
    """
    if not isinstance(model, GPT2):
        raise ArgumentError(f"the model must be a GPT2, got {short_repr(model)}")
    if trials is not None:
        trials = COUNT.check("trials", trials)
    ids = check_ids(ids, model.config)
    if targets is not None:
        targets = np.atleast_2d(check_targets(targets, ids, model.config))
    values = record(theirs, ids, model.config.vocab_size, with_gradients=targets is not None)
    gradients = gradients_among(values)
    if gradients and targets is None:
        first_name = sorted(gradients)[0]
        raise ArgumentError(f"{first_name} is a parameter: to compare its gradient, give targets")
    # Some mistakes compute with ids - 1. Unsigned ids have no -1, so they become signed.
    batch = np.atleast_2d(ids).astype(np.int64)
    comparison = Comparison(model, batch, values)

    # Our model computes all activations from the ids, with nothing given and no mistake planted.
    rows = comparison.rows(given={}, planted={})
    if any(row.differs for row in rows):
        diagnosis = diagnose(comparison, progress, trials)
    else:
        diagnosis = Diagnosis([], rounding_note(rows, comparison.theirs))

    sentences = list(diagnosis.sentences)
    if any(row.name == "logits" and row.differs for row in rows):
        sentences += untied_module_sentences(theirs, model)
    rows_of_earlier, of_earlier = comparison.rows_of_earlier()
    rows += rows_of_earlier
    sentences += of_earlier
    if gradients:
        rows_of_gradients, of_gradients = compare_gradients(comparison, gradients, targets)
        rows += rows_of_gradients
        if not sentences:  # else a wrong activation explains wrong gradients
            sentences = of_gradients

    rows = [row for row in rows if not row.shows_nothing]
    if not rows:
        raise NothingCompared(
            "there is nothing to compare: no activation of the model was given in which it has "
            "numbers other than 0, inf and nan"
        )
    compared = {row.name: row for row in rows}
    return Report(
        rows,
        sentences,
        diagnosis.note,
        not_given=sum(name not in compared for name in comparison.names),
        trials=diagnosis.tried,
        all_trials=diagnosis.total,
        not_compared=sentences_on_missing(compared, comparison, targets),
    )


def sentences_on_missing(
    compared: Mapping[str, ReportRow], comparison: Comparison, targets: Any
) -> list[str]:
    """What a verdict on a whole GPT-2 needs, and was not compared.

    compared: the rows of activations and gradients by name. targets: with them, gradients are
    needed.
    """
    sentences = []
    if "logits" not in compared:
        sentences.append("logits: not compared")
    elif are_alike(comparison.our_logits, compared["logits"].tolerance):
        sentences.append(
            "logits: not compared, because almost all of this model's are the same for all tokens"
        )
    if comparison.ids.shape[1] == 1:
        sentences.append("attention between tokens: not compared, because ids has one token")
    if targets is None:
        return sentences
    names = list(parameter_shapes(comparison.model32.config))
    missing = [name for name in names if name not in compared]
    if len(missing) == len(names):
        sentences.append("gradients: not compared")
    elif missing:
        sentences.append(
            f"{len(missing)} of {len(names)} gradients: not compared, such as {missing[0]}"
        )
    return sentences


def gradients_among(values: Mapping[Any, Any]) -> Parameters:
    """The arrays under names of parameters, under our names."""
    gradients = {}
    for name, value in values.items():
        if is_parameter(our_name(name)):
            gradients[name] = value
    return translate_parameters(gradients)


def rounding_note(rows: list[ReportRow], theirs: Mapping[str, Array]) -> str:
    """A note on the first float64 array with the precision of float32, or "" if there is none."""
    for row in rows:
        # The tolerance is for rounding to float32. Rounding to float64 is 2**29 times finer. An
        # error above this limit, which is between the two, cannot be rounding to float64.
        limit = row.tolerance / 2**24
        is_float64 = theirs[row.name].dtype == np.float64
        if is_float64 and row.error > limit:
            return (
                f"{row.name} is float64 and has float32's rounding: something before it is float32"
            )
    return ""


def are_alike(logits: Array, tolerance: float) -> bool:
    """Whether almost all logits [B, T, V] are those of the first token, up to the tolerance.

    Then a GPT-2 with wrong layers has them, too. One token alone does not tell.
    """
    V = logits.shape[-1]
    by_token = logits.reshape(-1, V)
    differ = np.abs(by_token[1:] - by_token[0]) > tolerance
    return len(by_token) > 1 and bool(differ.mean() < ALMOST_NONE)


# Gradients


def compare_gradients(
    comparison: Comparison, gradients: Parameters, targets: Array
) -> tuple[list[ReportRow], list[str]]:
    """A row for each of their gradients, and sentences on what is wrong with them."""
    _, ours64 = loss_and_gradients(comparison.model64, comparison.ids, targets)
    _, ours32 = loss_and_gradients(comparison.model32, comparison.ids, targets)
    rows = gradient_rows(gradients, ours64, ours32)
    differing = [row.name for row in rows if row.differs]
    sentences: list[str] = []
    if "wte.weight" in differing and comparison.model64.config.tied:
        sentences += missing_part_sentences(comparison, gradients, targets)
    if len(differing) == len(rows):
        sentences += sum_sentences(gradients, ours64, ours32, n=targets.size)
    return rows, sentences


def gradient_rows(gradients: Parameters, ours64: Parameters, ours32: Parameters) -> list[ReportRow]:
    """A row for each of their gradients, under our names, in the order of the backward pass."""
    for name, gradient in gradients.items():
        if name not in ours64:
            head = "untied" if "lm_head.weight" in ours64 else "tied"
            raise ArgumentError(f"{name} is not a parameter of this {head} model")
        if gradient.shape != ours64[name].shape:
            raise shape_error(f"the gradient of {name}", gradient.shape, ours64[name].shape)
    rows = []
    for name in reversed(ours64):  # parameters are in the order of the forward pass
        if name in gradients:
            rows.append(compare_arrays(name, gradients[name], ours64[name], ours32[name]))
    return rows


def sum_sentences(
    gradients: Parameters, ours64: Parameters, ours32: Parameters, n: int
) -> list[str]:
    """A sentence if their gradients are those of the sum of the n losses; else none."""
    for name, theirs in gradients.items():
        if compare_arrays(name, theirs / n, ours64[name], ours32[name]).differs:
            return []
    return [
        f"gradients: yours are {n} times as large, those of the sum of the {n} losses; "
        "expected those of their mean"
    ]


def missing_part_sentences(
    comparison: Comparison, gradients: Parameters, targets: Array
) -> list[str]:
    """A sentence if their gradient of a tied wte lacks one of its two parts; else none.

    The right gradient is that of the embedding plus that of the output matrix.
    """
    model = comparison.model64
    # An untied model with a copy of wte as output matrix has the same activations, and an array for
    # each of the two parts.
    _, apart64 = loss_and_gradients(model.untie("copy"), comparison.ids, targets)
    _, apart32 = loss_and_gradients(comparison.model32.untie("copy"), comparison.ids, targets)
    for name, part in (
        ("lm_head.weight", "the output matrix, without the embedding's"),
        ("wte.weight", "the embedding, without the output matrix's"),
    ):
        row = compare_arrays(name, gradients["wte.weight"], apart64[name], apart32[name])
        if not row.differs:
            return [f"wte.weight: yours is the gradient of {part}; a tied wte gets the sum of both"]
    return []


# The diagnosis


@dataclass(frozen=True)
class Difference:
    """The first activation that differs."""

    name: str
    error: float
    tolerance: float
    theirs: Array
    distances: Array  # of theirs from ours, number by number
    given: Tape  # their activations, from which ours are computed
    without_mistakes: Tape  # ours, all of them, in the order of the forward pass

    @property
    def ours(self) -> Array:
        return self.without_mistakes[self.name]

    @property
    def infinite(self) -> Array:
        """Where theirs is inf or nan, and ours is not."""
        return np.isinf(self.distances)

    @property
    def window(self) -> list[str]:
        """The activations in which the mistake may be, up to the one that differs.

        They begin after the last given activation before it: ours are computed from that one.
        """
        window: list[str] = []
        for name in self.without_mistakes:
            window.append(name)
            if name == self.name:
                break
            if name in self.given:
                window = []
        return window


@dataclass(frozen=True)
class Explanation:
    """A trial after which the first difference is gone."""

    trial: Trial
    error: float  # the distance of theirs from ours that is left there
    still_wrong: list[str]  # activations that still differ then, in the order of the forward pass


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

    progress: called before each trial. most_trials: how many are made; None: so many that they take
    some minutes.
    """
    difference = first_difference(comparison)

    # Two explanations are plain to see without a trial.
    dtype = half_precision_of(difference)
    if dtype is not None:
        sentence = f"{difference.name}: yours is rounded to {dtype}"
        return Diagnosis([sentence], "compare in float32")
    if not difference.theirs.any():
        sentence = f"{difference.name}: yours is 0 everywhere"
        return Diagnosis([sentence], what_to_give(difference.window))

    # The others are known mistakes. They are tried one after the other.
    mistakes = mistakes_in(comparison.model32.config.n_layer)
    trials = trials_of(mistakes, difference.window, comparison.names)
    if most_trials is None:
        # A trial multiplies each token by each parameter, once.
        parameters = sum(array.size for array in comparison.model32.parameters.values())
        tokens = max(comparison.ids.size, FEW_TOKENS)
        most_trials = int(MOST_MULTIPLICATIONS / (tokens * parameters))
    explanations, tried = try_mistakes(comparison, difference, trials[:most_trials], progress)
    if explanations:
        sentences, note = describe_explanations(difference, best_of(explanations))
    else:
        sentences, note = describe_failure(difference, tried, len(trials))
    return Diagnosis(infinite_sentences(difference) + sentences, note, tried, len(trials))


def first_difference(comparison: Comparison) -> Difference:
    """The first activation of theirs that differs from ours, which is computed from the activations
    of theirs before it.

    If none does, small differences have added up. Then it is the first activation that differs from
    ours, which is computed from the ids alone: `given` is empty.
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
    for dtype in DIGITS_OF_HALVES:
        if np.array_equal(difference.theirs, rounded(difference.theirs, dtype)):
            return dtype
    return None


def try_mistakes(
    comparison: Comparison, difference: Difference, trials: list[Trial], progress: OnTrial
) -> tuple[list[Explanation], int]:
    """Plant one mistake after the other: those that explain the difference, and how many trials.

    trials: the widest scope first. The search ends with the scope in which a mistake explains all
    differences, because it is a better explanation than one of a narrower scope.
    """
    explanations: list[Explanation] = []
    for tried, trial in enumerate(trials):
        for found in explanations:
            if not found.still_wrong and found.trial.scope < trial.scope:
                return explanations, tried
        progress(tried, len(trials))
        ours = compute_activations(
            comparison.model32, comparison.ids, difference.given, trial.planted
        )
        error = float(distance(difference.name, difference.theirs, ours[difference.name]).max())

        # To compare all activations takes two more passes, one of them in float64. It is done only
        # if the error is much smaller. The right mistake leaves only rounding, which is less than a
        # quarter of a difference beyond the tolerance.
        is_much_smaller = error < difference.error / 4
        if is_much_smaller:
            rows = comparison.rows(difference.given, trial.planted)
            still_wrong = [row.name for row in rows if row.differs]
            if difference.name not in still_wrong:
                explanations.append(Explanation(trial, error, still_wrong))
    return explanations, len(trials)


def best_of(explanations: list[Explanation]) -> list[Explanation]:
    """The best explanation, and those that cannot be told apart from it.

    They leave the fewest activations wrong, have then the widest scope, and an error of at most
    twice the smallest.
    """
    fewest = min(len(explanation.still_wrong) for explanation in explanations)
    best = [each for each in explanations if len(each.still_wrong) == fewest]
    widest = min(explanation.trial.scope for explanation in best)
    best = [each for each in best if each.trial.scope == widest]
    smallest_error = min(explanation.error for explanation in best)

    # If an error is at most twice the smallest one, the two may differ by rounding alone.
    # A mistake that can be made in two places with the same result is named once.
    by_sentence: dict[str, Explanation] = {}
    for explanation in best:
        if explanation.error <= 2 * smallest_error:
            by_sentence.setdefault(explanation.trial.sentence, explanation)
    return list(by_sentence.values())


def describe_explanations(
    difference: Difference, explanations: list[Explanation]
) -> tuple[list[str], str]:
    """The sentences on explanations that cannot be told apart, and a note on what to do next."""
    # Many mistakes make numbers nan or inf. If no other number is wrong, the mistake is named with
    # "perhaps".
    finite_distances = difference.distances[~difference.infinite]
    others_agree = finite_distances.max(initial=0) <= difference.tolerance
    only_infinite = bool(difference.infinite.any() and others_agree)

    # The first sentence names the likeliest mistake, and the others are alternatives.
    words = ["perhaps yours" if only_infinite else "yours"]
    words += ["or yours"] * (len(explanations) - 1)
    sentences = []
    for yours, explanation in zip(words, explanations, strict=True):
        trial = explanation.trial
        sentences.append(f"{trial.start}: {yours} {trial.sentence}")

    # The note is about the explanation with the smallest error.
    nearest = min(explanations, key=lambda explanation: explanation.error)
    if nearest.still_wrong:
        next_wrong = nearest.still_wrong[0]
        note = f"{next_wrong} differs then, too: correct this first, and compare again"
    elif only_infinite:
        note = what_to_give(difference.window)
    else:
        note = nearest.trial.note
    return sentences, note


def describe_failure(difference: Difference, tried: int, total: int) -> tuple[list[str], str]:
    """The sentence if no mistake explains the difference, and a note on what would help."""
    note = what_to_give(difference.window)
    if tried == total:
        return [f"{difference.name}: this is none of the known mistakes"], note
    sentence = (
        f"{difference.name}: this is none of the {tried:,} mistakes that were tried, of {total:,}"
    )
    notes = [f"to try all, give --trials {total} (in Python, trials={total})"]
    if note:
        notes.insert(0, note)
    return [sentence], "; ".join(notes)


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
