"""From the lines of runs.jsonl to figures: differences between models, with 95 % intervals.

A figure is the mean over seeds of a measure, or of a sum and difference of measures. A difference
is taken seed by seed, between runs with the same batches, because a part of what varies between
seeds is then the same in both and cancels. The interval is Student's t interval over the seeds. It
says how well the mean over seeds is known for this text, this size and this rate, and nothing about
others. Of twenty intervals one is expected to miss.

Figures have short names. Those of a row of runs.ROWS are

    ROW:HEAD             the held-out loss, such as w64-0.1:tied
    ROW:HEAD:MEASURE     another measure (trainer.py), such as w64-0.1:tied:raw.entropy
    ROW:cost             the cost of the tie: the loss with the head "tied" minus that with "untied"
    ROW:cost:MEASURE     the same difference of another measure
    wWIDTH-best:...      the same with each head at its best start of this width; one layer
    FIRST-minus-SECOND   the loss of FIRST minus that of SECOND, each a ROW:HEAD of BETWEEN_ROWS

Figures of earlier runs, whose code has ended, are sums of terms in figures.json. A term is a
measure of a run, times its sign, which may also be another factor: a half for the mean of two
measures, or bits per byte for a nat per token. With "above" it is a count: 1 where the measure is
above that number. A name begins with the number of a claim of the page claims.md, such as
3:attention,cost.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import stats

from .runs import (
    FINAL_SEEDS,
    HEADS,
    ROW,
    ROWS,
    Line,
    Results,
    best_start,
    key_of,
    pilot,
    start_name,
)

RESULTS = Path(__file__).parents[1] / "tying_results"
WIDTHS = (16, 32, 64, 128)
BETWEEN_ROWS = (
    ("w64-0.02:tied", "w64-0.05:tied"),
    ("w64-0.02:untied", "w64-0.05:untied"),
    ("w64-0.05:tied", "w64-0.02:untied"),
    ("w64-0.02:tied", "w64-best:tied"),
    ("w64-0.02:untied", "w64-best:untied"),
    ("w64-best:tied", "w64-0.02:untied"),
    ("w16-0.02:tied", "w16-best:tied"),
    ("w16-0.02:untied", "w16-best:untied"),
    ("w128-0.02:tied", "w128-best:tied"),
    ("w128-0.02:untied", "w128-best:untied"),
    ("4-layers-0.02:tied", "4-layers:tied"),
    ("4-layers-0.02:untied", "4-layers:untied"),
    ("W_E-rate-3:untied", "w64-0.02:untied"),
    ("W_E-rate-0.3:untied", "w64-0.02:untied"),
    ("W_E-rate-10:untied", "w64-0.02:untied"),
    ("zeros-W_U-rate-3:zeros", "w64-0.02:untied"),
    ("zeros-W_U-rate-0.3:zeros", "w64-0.02:untied"),
    ("input-times-8:tied", "w64-0.02:tied"),
    ("W_E-alone-0.1:untied", "w64-0.02:untied"),
    ("W_U-alone-0.1:untied", "w64-0.02:untied"),
    ("signs:signs", "w64-best:tied"),
    ("all-0.1:tied", "w64-best:tied"),
    ("w64-best:tied", "1600-steps:tied"),
    ("w64-0.2:tied", "w64-best:tied"),
    ("2-layers:tied", "w64-best:tied"),
    ("2-layers:untied", "w64-best:untied"),
    ("4-layers:tied", "w64-best:tied"),
    ("4-layers:untied", "w64-best:untied"),
    ("2-layers-w128:tied", "w128-best:tied"),
    ("2-layers-w128:untied", "w128-best:untied"),
    ("all-0.1:untied", "w64-best:untied"),
)


@dataclass(frozen=True)
class Figure:
    """The mean of the values of all seeds, and its 95 % interval."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return sum(self.values) / len(self.values)

    @property
    def interval(self) -> tuple[float, float]:
        """Both ends are the mean if there is one value, or if all are the same."""
        if len(set(self.values)) == 1:
            return self.mean, self.mean
        error = stats.sem(self.values)
        low, high = stats.t.interval(0.95, len(self.values) - 1, loc=self.mean, scale=error)
        return float(low), float(high)

    def __str__(self) -> str:
        low, high = self.interval
        if low == high:
            return f"{self.mean:.3f}"
        return f"{self.mean:.3f} [{low:.3f}, {high:.3f}]"


def all_figures(results: Results) -> dict[str, Figure]:
    """Every figure whose runs are all done, by name."""
    figures = earlier_figures(results)
    for row in ROWS:
        finals = {head: final_results(row.name, head, results) for head in row.heads}
        figures |= figures_of(row.name, finals)
    for width in WIDTHS:
        finals = {}
        for head in HEADS:
            start = best_start(width, head, results)
            if start is not None:
                finals[head] = final_results(start_name(width, start), head, results)
        figures |= figures_of(f"w{width}-best", finals)
    for first, second in BETWEEN_ROWS:
        if first in figures and second in figures:
            figures[f"{first}-minus-{second}"] = minus(figures[first], figures[second])
    return figures


def minus(first: Figure, second: Figure) -> Figure:
    """The difference, seed by seed."""
    pairs = zip(first.values, second.values, strict=True)
    return Figure(tuple(one - other for one, other in pairs))


def final_results(row: str, head: str, results: Results) -> list[Line]:
    """What the final runs of a row with one head have measured; nothing while some are missing."""
    found = pilot(ROW[row], head, results)
    if found is None or not found.is_finished:
        return []
    keys = [key_of(found.final(seed).as_json) for seed in FINAL_SEEDS]
    if any(key not in results for key in keys):
        return []
    return [results[key] for key in keys]


def figures_of(name: str, finals: dict[str, list[Line]]) -> dict[str, Figure]:
    """The figures of a row: the measures of each head, and of tied minus untied."""
    figures = {}
    for head, runs in finals.items():
        for measure in measures_of(runs):
            values = [run[measure] for run in runs]
            figures[short(name, head, measure)] = Figure(tuple(values))
    tied, untied = (finals.get(head, []) for head in HEADS)
    if tied and untied:
        for measure in measures_of([*tied, *untied]):
            first, second = (figures[short(name, head, measure)] for head in HEADS)
            figures[short(name, "cost", measure)] = minus(first, second)
    return figures


def measures_of(runs: Sequence[Line]) -> list[str]:
    """The measures that all of these runs have. A run that diverged has no loss."""
    if not runs:
        return []
    return [measure for measure in runs[0] if all(measure in run for run in runs)]


def short(name: str, kind: str, measure: str) -> str:
    """The name of a figure. The loss is the measure that is meant if none is named."""
    if measure == "loss":
        return f"{name}:{kind}"
    return f"{name}:{kind}:{measure.replace(' ', '-')}"


def earlier_figures(results: Results) -> dict[str, Figure]:
    """The figures of figures.json whose runs are all in the results."""
    figures = {}
    for figure in json.loads((RESULTS / "figures.json").read_text(encoding="utf-8")):
        seeds, terms = figure["seeds"], figure["terms"]
        keys = {key_of_term(term, seed) for term in terms for seed in seeds}
        if keys <= results.keys():
            values = [sum(value_of(term, seed, results) for term in terms) for seed in seeds]
            figures[figure["name"]] = Figure(tuple(values))
    return figures


def key_of_term(term: dict[str, Any], seed: Any) -> str:
    return key_of(with_seed(term["run"], seed), term["text"])


def value_of(term: dict[str, Any], seed: Any, results: Results) -> float:
    """What a term adds for one seed."""
    result = results[key_of_term(term, seed)]
    if "above" in term:
        return float(result.get(term["measure"], math.inf) > term["above"])  # inf: it diverged
    return float(term["sign"] * result[term["measure"]])


def with_seed(run: Line, seed: Any) -> Line:
    """The run with a seed, as in runs.jsonl. Two models that are compared have a pair of seeds."""
    if "compare" in run:
        first, second = seed
        return {
            "compare": {**run["compare"], "seed": first},
            "with": {**run["with"], "seed": second},
        }
    if run.get("measure") == "text":
        return run  # a measure of the text itself
    if run.get("measure") == "step time":
        return {**run, "timing": seed}  # step times are counted from 1, and have no seed
    return {**run, "seed": seed}
