"""From the lines of runs.jsonl to means, 95 % intervals and tests.

A figure is a sum of measures of runs, such as "the loss of the tied model minus that of the untied
one", taken seed by seed. Its interval is Student's t interval over the seeds, and its p is that of
the two-sided t test of a mean of 0. Many differences are tested, so a verdict needs more than
p < 0.05: Holm's correction keeps the probability of any wrong verdict below 5 %.

figures.json has the terms and the seeds of each figure, so that others can compute it from
runs.jsonl without this code.
"""

import json
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import cast

import numpy as np
from scipy import stats

from .engine import Line, key_of
from .settings import CLOSE, MODELS, ONE, OPEN, PILOT_SEEDS, SEEDS, Model, Run, pilot_rates

Seed = int | tuple[int, int]  # a pair for two models that are compared
UNKNOWN = "not known yet"
WIDE = 0.02  # an interval that holds 0 and is wider than this on a side says nothing


@dataclass(frozen=True)
class Term:
    """A measure of a run, which is added (sign 1) or subtracted (sign -1)."""

    sign: int
    run: Line  # as in runs.jsonl, without the seed
    text: str
    measure: str
    above: float | None = (
        None  # if it is given, the value is 1 where the measure is above it, else 0
    )

    def value(self, result: Line) -> float:
        default = math.inf if "diverged" in result else math.nan
        measured = float(result.get(self.measure, default))
        if self.above is None:
            return self.sign * measured
        return float(measured > self.above)


@dataclass(frozen=True)
class Figure:
    """The mean over n seeds of a sum of terms, its 95 % interval, and p for a mean of 0."""

    terms: tuple[Term, ...]
    seeds: tuple[Seed, ...]  # those for which all runs are done
    all_seeds: tuple[Seed, ...]
    values: tuple[float, ...]
    mean: float = math.nan
    low: float = math.nan
    high: float = math.nan
    sd: float = 0.0
    p: float = 1.0
    corrected: float = 1.0  # p after Holm's correction

    @property
    def expected(self) -> int:
        return len(self.all_seeds)

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def is_known(self) -> bool:
        """Whether the runs are there. At least three seeds are needed, if there is to be more."""
        return self.n >= min(3, self.expected) and math.isfinite(self.mean)

    @property
    def is_test(self) -> bool:
        """Whether it is a difference, so that Holm's correction counts it."""
        return len(self.terms) > 1 and self.is_known

    @property
    def verdict(self) -> str:
        """ "below", "above", "none" if no difference is found, "unknown" if none can be said."""
        if not self.is_known:
            return "unknown"
        if self.corrected < 0.05:
            return "below" if self.mean < 0 else "above"
        if max(self.high, -self.low) > WIDE:
            return "unknown"
        return "none"

    def __str__(self) -> str:
        return self.show(digits=3)

    def show(self, digits: int) -> str:
        """The mean and the interval; the number of seeds if some are missing."""
        if not self.is_known:
            return UNKNOWN
        text = f"{self.mean:.{digits}f}"
        if self.high > self.low:
            text += f" [{self.low:.{digits}f}, {self.high:.{digits}f}]"
        if self.n < self.expected:
            text += f" (n {self.n})"
        return text

    def as_count(self) -> str:
        """The number of seeds with the value 1."""
        if self.n < self.expected:
            return UNKNOWN
        return f"{sum(self.values):.0f} of {self.n}"

    def words(self, below: str, above: str, none: str) -> str:
        """The words for the verdict."""
        words = {"below": below, "above": above, "none": none, "unknown": UNKNOWN}
        return words[self.verdict]


Numbers = dict[str, Figure]


def with_interval(figure: Figure) -> Figure:
    """The figure with what Student's t says of its values."""
    values = np.array(figure.values)
    if values.size == 0 or not np.isfinite(values).all():
        return figure
    mean = float(values.mean())
    if values.size == 1 or np.ptp(values) == 0:
        return replace(figure, mean=mean, low=mean, high=mean)
    error = stats.sem(values)
    low, high = stats.t.interval(0.95, df=values.size - 1, loc=mean, scale=error)
    test = stats.ttest_1samp(values, 0)
    return replace(
        figure,
        mean=mean,
        low=float(low),
        high=float(high),
        sd=float(values.std(ddof=1)),
        p=float(test.pvalue),
    )


def holm(ps: Sequence[float]) -> list[float]:
    """The p of each test after Holm's correction for their number [Holm 1979].

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    order = np.argsort(ps, kind="stable")
    corrected = np.zeros(len(ps))
    highest = 0.0
    for rank, place in enumerate(order):
        highest = max(highest, min(1.0, ps[place] * (len(ps) - rank)))
        corrected[place] = highest
    return [float(p) for p in corrected]


def correct(sections: dict[str, Numbers]) -> dict[str, Numbers]:
    """The numbers of all sections, with Holm's correction for all tests among them.

    A test that two sections have is counted once.
    """
    tests: dict[str, float] = {}
    for numbers in sections.values():
        for figure in numbers.values():
            if figure.is_test:
                tests[terms_key(figure)] = figure.p
    corrected = dict(zip(tests, holm(list(tests.values())), strict=True))
    return {
        name: {
            label: replace(figure, corrected=corrected.get(terms_key(figure), 1.0))
            for label, figure in numbers.items()
        }
        for name, numbers in sections.items()
    }


def terms_key(figure: Figure) -> str:
    return json.dumps([asdict(term) for term in figure.terms], sort_keys=True)


def with_seed(run: Line, seed: Seed) -> Line:
    """The run of one seed, as in runs.jsonl."""
    if "compare" in run:
        first, second = cast(tuple[int, int], seed)
        return {
            "compare": {**run["compare"], "seed": first},
            "with": {**run["with"], "seed": second},
        }
    if run.get("measure") == "step time":
        return {**run, "timing": seed}
    if run.get("measure") == "text":
        return run
    return {**run, "seed": seed}


class Runs:
    """What was measured: the lines of runs.jsonl, by the models of the table."""

    def __init__(self, lines: dict[str, Line], text: str, second_text: str = "") -> None:
        self.lines = lines
        self.text = text  # the names of the texts
        self.second_text = second_text

    def term(self, sign: int, model: str, head: str, measure: str) -> Term:
        """A measure of a model of the table."""
        row = MODELS[model]
        text = self.second_text if row.second_text else self.text
        run = row.run(head, self.rate(row, head))
        return self.run_term(sign, run, measure, text)

    def rate(self, model: Model, head: str) -> float:
        """The rate of the table; where that is OPEN, the pilot's, if it is finished."""
        rate: float = getattr(model, head)
        if rate != OPEN:
            return rate
        if model.rates_of:
            return self.rate(MODELS[model.rates_of], head)
        return self.best_rate(model, head) or OPEN

    def run_term(self, sign: int, run: Run, measure: str, text: str = "") -> Term:
        if run.is_chain:
            return Term(sign, run.as_json, "", measure)
        return Term(sign, run.as_json, text or self.text, measure)

    def text_term(self, sign: int, measure: str) -> Term:
        """A measure of the text itself. It is the same for every seed."""
        return Term(sign, {"measure": "text"}, self.text, measure)

    def comparison_term(self, sign: int, untied: Run, tied: Run, measure: str) -> Term:
        """A similarity of the matrices of two models."""
        pair = {"compare": untied.as_json, "with": tied.as_json}
        return Term(sign, pair, self.text, measure)

    def time_term(self, vocab_size: int) -> Term:
        """The CPU time of a training step, untied over tied."""
        return Term(1, {"measure": "step time", "vocab_size": vocab_size}, "", "ratio")

    def figure(self, *terms: Term, seeds: Sequence[Seed] = SEEDS) -> Figure:
        """The sum of the terms for the seeds whose runs are all done."""
        done: list[Seed] = []
        values: list[float] = []
        for seed in seeds:
            results = [self.result(term, seed) for term in terms]
            if all(result is not None for result in results):
                done.append(seed)
                pairs = zip(terms, results, strict=True)
                values.append(sum(term.value(result) for term, result in pairs if result))
        return with_interval(Figure(terms, tuple(done), tuple(seeds), tuple(values)))

    def result(self, term: Term, seed: Seed) -> Line | None:
        return self.lines.get(key_of(with_seed(term.run, seed), term.text))

    def seeds(self, *models: str) -> tuple[int, ...]:
        """The seeds that all of some models are trained with."""
        return SEEDS[: min(MODELS[model].seeds for model in models)]

    def measure(self, model: str, head: str, measure: str = "loss") -> Figure:
        return self.figure(self.term(1, model, head, measure), seeds=self.seeds(model))

    def cost(
        self, model: str, tied: str = "tied", untied: str = "untied", measure: str = "loss"
    ) -> Figure:
        """The cost of the tie: the loss of the tied model minus that of the untied one.

        `tied` may also be another head that is compared with `untied`.
        """
        return self.difference((model, tied), (model, untied), measure)

    def difference(
        self, first: tuple[str, str], second: tuple[str, str], measure: str = "loss"
    ) -> Figure:
        """The measure of the first (model, head) minus that of the second."""
        return self.figure(
            self.term(1, *first, measure),
            self.term(-1, *second, measure),
            seeds=self.seeds(first[0], second[0]),
        )

    def change(self, before: tuple[str, str, str], after: tuple[str, str, str]) -> Figure:
        """How much higher the cost is in the second (model, tied head, untied head) than in the
        first."""
        measure = "excess" if MODELS[before[0]].size.is_chain else "loss"
        return self.figure(
            self.term(1, after[0], after[1], measure),
            self.term(-1, after[0], after[2], measure),
            self.term(-1, before[0], before[1], measure),
            self.term(1, before[0], before[2], measure),
            seeds=self.seeds(before[0], after[0]),
        )

    def gain(self, model: str, head: str, path: str) -> Figure:
        """How much nearer a path is to the bigrams than the token counts, in nats of KL."""
        return self.figure(
            self.term(1, model, head, "unigram.kl"),
            self.term(-1, model, head, f"{path}+unigram.kl"),
            seeds=self.seeds(model),
        )

    def of_text(self, measure: str) -> Figure:
        """A measure of the text itself, one number."""
        return self.figure(self.text_term(1, measure), seeds=(0,))

    def failing(self, head: str, rate: float, limit: float) -> Figure:
        """Of the trainings with one layer: the share whose loss ends above `limit`."""
        run = replace(ONE, head=head, lr=rate)
        return self.figure(Term(1, run.as_json, self.text, "loss", above=round(limit, 6)))

    def pilot_mean(self, model: Model, head: str, rate: float) -> float | None:
        """The mean loss of the pilot's seeds at one rate; None while some are missing."""
        measure = "excess" if model.size.is_chain else "loss"
        text = self.second_text if model.second_text else self.text
        term = self.run_term(1, model.run(head, rate), measure, text)
        figure = self.figure(term, seeds=PILOT_SEEDS[: model.pilot_seeds])
        if figure.n < figure.expected:
            return None
        return sum(figure.values) / figure.n

    def tried_rates(self, model: Model, head: str) -> list[float]:
        """The rates of a pilot so far. It goes on while the best rate is at an edge."""
        rates = sorted(pilot_rates(model, head))
        while True:
            means = self.pilot_means(model, head, rates)
            if len(means) < len(rates):
                return rates
            best = min(means, key=means.__getitem__)
            if best == rates[0]:
                rates.insert(0, best / 2)
            elif best == rates[-1]:
                rates.append(2 * best)
            else:
                return rates

    def pilot_means(self, model: Model, head: str, rates: list[float]) -> dict[float, float]:
        """The mean loss at each of the rates that the pilot has finished."""
        means = {rate: self.pilot_mean(model, head, rate) for rate in rates}
        return {rate: mean for rate, mean in means.items() if mean is not None}

    def best_rate(self, model: Model, head: str) -> float | None:
        """The lowest rate whose mean loss in the pilot is within CLOSE of the lowest one.

        None while the pilot is not finished.
        """
        rates = self.tried_rates(model, head)
        means = self.pilot_means(model, head, rates)
        if len(means) < len(rates):
            return None
        lowest_loss = min(means.values())
        return min(rate for rate, mean in means.items() if mean <= lowest_loss + CLOSE)
