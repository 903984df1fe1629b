"""The analysis of the registered experiment, as scripts/tying_results/registered.md fixes it.

A test compares two arms of a cell seed by seed. It is computed when all of its runs are done, and
then has a verdict: "holds", "refuted" or "not decided". Until then it is "not run".
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats

from .differences import Figure
from .registered import ARMS, COUNTS, TEXT, Arm, final_runs
from .runs import Line, Results, key_of

LEVEL = 0.05
EQUAL = 0.02  # P1: nats per token
LITTLE = 0.005  # P3
RARE = 300  # P4: times in the training text of the run
FAMILY_SIZE = {"P1": 3, "P2": 3, "P3": 5, "P4": 2}
ARM = {(arm.cell, arm.name): arm for arm in ARMS}

Pair = tuple[Line, Line]  # the results of a tied and of an untied run of one seed


@dataclass(frozen=True)
class Test:
    """A prediction in one cell."""

    prediction: str
    cell: str
    other: str  # the arm that the tied one is compared with
    says: str  # of the mean of d
    value: Callable[[Pair], float]  # d of a pair
    p: Callable[[Sequence[float]], float]  # of all d, without correction
    is_refuted: Callable[[float, float], bool]  # by the ends of the 95 % interval


@dataclass(frozen=True)
class Verdict:
    test: Test
    values: tuple[float, ...] = ()  # d by seed, without pairs that diverged
    lost: int = 0  # pairs that diverged
    p: float = 1.0  # after Holm's correction
    verdict: str = "not run"

    @property
    def mean(self) -> float:
        return float(np.mean(self.values))

    @property
    def median(self) -> float:
        return float(np.median(self.values))

    @property
    def interval(self) -> tuple[float, float]:
        return interval(self.values)


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Student's t interval of the mean, 95 %."""
    low, high = stats.ttest_1samp(values, 0).confidence_interval(0.95)
    return float(low), float(high)


# ---- The tests ----


def loss_difference(pair: Pair) -> float:
    tied, untied = pair
    return float(tied["loss"] - untied["loss"])


def rare_minus_others(pair: Pair) -> float:
    """The part of the loss difference that lies in rare tokens, minus the rest of it."""
    tied, untied = pair
    rare = others = 0.0
    for limit, (_, tied_nats), (_, untied_nats) in zip(
        COUNTS, tied["by count"], untied["by count"], strict=True
    ):
        if limit <= RARE:
            rare += tied_nats - untied_nats
        else:
            others += tied_nats - untied_nats
    tokens = sum(count for count, _ in tied["by count"])
    return (rare - others) / tokens


def above(limit: float) -> Callable[[Sequence[float]], float]:
    """p of "the mean is above this", by a one-sided t test."""
    return lambda values: float(stats.ttest_1samp(values, limit, alternative="greater").pvalue)


def below(limit: float) -> Callable[[Sequence[float]], float]:
    return lambda values: float(stats.ttest_1samp(values, limit, alternative="less").pvalue)


def between(low: float, high: float) -> Callable[[Sequence[float]], float]:
    """p of "the mean is between these": the larger p of two one-sided t tests."""
    return lambda values: max(above(low)(values), below(high)(values))


NO_DIFFERENCE = Test(
    prediction="P1",
    cell="512-1",
    other="narrower",
    says=f"-{EQUAL} < mean < {EQUAL}",
    value=loss_difference,
    p=between(-EQUAL, EQUAL),
    is_refuted=lambda low, high: low > EQUAL or high < -EQUAL,
)
UNTIED_AHEAD = Test(
    prediction="P1",
    cell="2048-1",
    other="narrower",
    says=f"mean > {EQUAL}",
    value=loss_difference,
    p=above(EQUAL),
    is_refuted=lambda low, high: high < EQUAL,
)
TIED_AHEAD = Test(
    prediction="P2",
    cell="512-4",
    other="narrower",
    says="mean < 0",
    value=loss_difference,
    p=below(0),
    is_refuted=lambda low, high: low > 0,
)
STILL_COSTS = Test(
    prediction="P3",
    cell="512-1",
    other="untied",
    says=f"mean > {LITTLE}",
    value=loss_difference,
    p=above(LITTLE),
    is_refuted=lambda low, high: high < LITTLE,
)
IN_RARE_TOKENS = Test(
    prediction="P4",
    cell="2048-1",
    other="untied",
    says="rare - others > 0",
    value=rare_minus_others,
    p=above(0),
    is_refuted=lambda low, high: high < 0,
)
TESTS = [
    NO_DIFFERENCE,
    UNTIED_AHEAD,
    replace(UNTIED_AHEAD, cell="8192-1"),
    TIED_AHEAD,
    replace(TIED_AHEAD, cell="2048-4"),
    replace(TIED_AHEAD, cell="8192-4"),
    STILL_COSTS,
    replace(STILL_COSTS, cell="2048-1"),
    replace(STILL_COSTS, cell="512-2"),
    replace(STILL_COSTS, cell="2048-2"),
    replace(STILL_COSTS, cell="8192-2"),
    IN_RARE_TOKENS,
    replace(IN_RARE_TOKENS, cell="8192-1"),
]


# ---- The verdicts ----


def pairs_of(cell: str, other: str, results: Results) -> list[Pair] | None:
    """The final results of the tied arm and another, by seed; None while some are missing.

    The other arm may have the first of the tied arm's seeds only.
    """
    tied = final_results(ARM[cell, "tied"], results)
    untied = final_results(ARM[cell, other], results)
    seeds = ARM[cell, other].seeds
    if any(seed not in tied or seed not in untied for seed in seeds):
        return None
    return [(tied[seed], untied[seed]) for seed in seeds]


def final_results(arm: Arm, results: Results) -> dict[int, Line]:
    """The results of the final runs that are done, by seed."""
    found = {}
    for run in final_runs(arm, results) or []:
        result = results.get(key_of(run.as_json, TEXT))
        if result is not None:
            found[run.seed] = result
    return found


def verdicts(results: Results) -> list[Verdict]:
    """The verdict of each of TESTS."""
    found = []
    for test in TESTS:
        pairs = pairs_of(test.cell, test.other, results)
        if pairs is None:
            found.append(Verdict(test))
            continue
        whole = [pair for pair in pairs if "loss" in pair[0] and "loss" in pair[1]]
        values = tuple(test.value(pair) for pair in whole)
        lost = len(pairs) - len(whole)
        p = test.p(values) if lost <= 1 else 1.0  # with more than one lost, it is not decided
        found.append(Verdict(test, values, lost, p, verdict="not decided"))
    corrected = holm(found)
    return [decided(one) for one in corrected]


def holm(found: list[Verdict]) -> list[Verdict]:
    """The same with p after Holm's correction. Tests that were not run have a p of 1."""
    corrected = []
    for one in found:
        family = [other for other in found if other.test.prediction == one.test.prediction]
        size = FAMILY_SIZE[one.test.prediction]
        # The smallest p is multiplied by the size of the family, the next by one less, and so on. A
        # corrected p is at least as large as those of smaller p.
        ordered = sorted(other.p for other in family)
        steps = [(size - place) * p for place, p in enumerate(ordered) if p <= one.p]
        corrected.append(replace(one, p=min(1.0, max(steps))))
    return corrected


def decided(one: Verdict) -> Verdict:
    """The verdict as registered.md fixes it. A test that lost more than one pair is not decided."""
    if one.verdict == "not run" or one.lost > 1:
        return one
    if one.p < LEVEL:
        return replace(one, verdict="holds")
    if one.test.is_refuted(*one.interval):
        return replace(one, verdict="refuted")
    return one


def verdict_figures(results: Results) -> dict[str, Figure]:
    """The mean of d of each test that was run, under a name such as "P1:512-1"."""
    done = [one for one in verdicts(results) if one.verdict != "not run"]
    return {f"{one.test.prediction}:{one.test.cell}": Figure(one.values) for one in done}


def print_verdicts(results: Results) -> None:
    for one in verdicts(results):
        test = one.test
        start = f"{test.prediction} {test.cell:7} tied - {test.other:8} {test.says:22}"
        if one.verdict == "not run":
            print(f"{start} not run")
            continue
        low, high = one.interval
        lost = f", {one.lost} pairs diverged" if one.lost else ""
        print(
            f"{start} {one.verdict}: {one.mean:.4f} [{low:.4f}, {high:.4f}], median "
            f"{one.median:.4f}, p {one.p:.3g}, {len(one.values)} pairs{lost}"
        )
    predicted = law(costs_of_cells(results))
    if predicted is not None:
        low, high = predicted
        print(f"law: the cost with 4096 tokens, 2 layers, width 96: {low:.4f} to {high:.4f} bits")


# ---- The law ----

Cell = tuple[int, int, int]  # vocabulary, layers, width
EXTRA: Cell = (4096, 2, 96)


def bit_differences(pairs: list[Pair]) -> list[float]:
    """Tied minus untied in bits per byte, without the pairs of which a run diverged."""
    return [
        tied["bits per byte"] - untied["bits per byte"]
        for tied, untied in pairs
        if "loss" in tied and "loss" in untied
    ]


def costs_of_cells(results: Results) -> dict[Cell, tuple[float, float]]:
    """The cost at equal width in bits per byte and its standard error, of the cells that are done.

    A seed is left out if one of its runs diverged.
    """
    costs = {}
    for (cell, name), arm in ARM.items():
        pairs = pairs_of(cell, "untied", results) if name == "tied" else None
        if pairs is None:
            continue
        values = bit_differences(pairs)
        model = arm.model
        size = (model.vocab_size, model.layers, model.width)
        costs[size] = float(np.mean(values)), float(stats.sem(values))
    return costs


def law(costs: dict[Cell, tuple[float, float]]) -> tuple[float, float] | None:
    """The 95 % interval that the law predicts for EXTRA; None before all ten cells are done.

    cost = a + b log2(V / 512) + c log2(layers) + d log2(D / 64), weighted least squares.
    """
    if len(costs) < 10:
        return None
    # The fit: each cell is weighted by the inverse of its standard error.
    X = np.array([terms(cell) for cell in costs])  # [10, 4]
    y = np.array([cost for cost, _ in costs.values()])
    error = np.array([error for _, error in costs.values()])
    weighted_X, weighted_y = X / error[:, None], y / error
    inverse = np.linalg.inv(weighted_X.T @ weighted_X)
    coefficients = inverse @ weighted_X.T @ weighted_y

    # The prediction's variance is that of a cell and that of the fit, times how far the ten cells
    # are from the fit.
    freedom = len(y) - X.shape[1]
    scatter = ((weighted_y - weighted_X @ coefficients) ** 2).sum() / freedom
    x = np.array(terms(EXTRA))
    typical = 1 / (1 / error**2).mean()  # the variance of a cell that is like the others
    spread = math.sqrt(scatter * (typical + x @ inverse @ x))
    t = float(stats.t.ppf(0.975, freedom))
    middle = float(x @ coefficients)
    return middle - t * spread, middle + t * spread


def terms(cell: Cell) -> list[float]:
    """What a, b, c and d of the law are multiplied by."""
    vocabulary, layers, width = cell
    return [1.0, math.log2(vocabulary / 512), math.log2(layers), math.log2(width / 64)]
