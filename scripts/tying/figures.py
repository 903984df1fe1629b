"""From the lines of runs.jsonl to means, 95 % intervals and tests.

A line of runs.jsonl is one run and its result: numbers by the names of their measures, such as
"loss", the held-out loss. A run with a text that is drawn from a Markov chain also has "excess",
the loss above that of the chain's own probabilities. A run whose training diverged, so that a
number was not finite, has the result {"diverged": 1}.

A term is a measure of a run, added or subtracted. A figure is a sum of terms, such as "the loss of
the tied model minus that of the untied one": it has the sum for each seed, and their mean over the
seeds. Its interval is Student's t interval over the seeds, and its p is that of the two-sided t
test of a mean of 0. A figure of two or more terms is a difference, and is tested. Because many
differences are tested, a verdict needs more than p < 0.05: Holm's correction keeps the probability
of any wrong verdict below 5 %.

A model is a row of the table of settings.py, by its name. Its heads are the output matrices that it
is trained with, such as "tied" and "untied". A pilot trains it with each head at several learning
rates, with seeds that are used for nothing else, and chooses the rate of the table. The table says
OPEN, which is 0, until the rate is chosen.

figures.json has the terms and the seeds of each figure, so that a reader can compute the figure
from runs.jsonl without this code.
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

Seed = int | tuple[int, int]  # a pair for two models whose matrices are compared
UNKNOWN = "not known yet"
WIDE = 0.02  # an interval around 0 that is wider than this on a side says nothing


@dataclass(frozen=True, kw_only=True)
class Term:
    """A measure of a run, which is added (sign 1) or subtracted (sign -1).

    With `above` it is 1 instead for a run whose measure is above that number, and 0 for any other.
    """

    sign: int = 1
    run: Line  # as in runs.jsonl, without the seed
    text: str  # the name of the text
    measure: str
    above: float | None = None

    def value(self, result: Line) -> float:
        """What the term adds for a run with this result."""
        if "diverged" in result:
            measured = math.inf  # above every limit
        else:
            measured = float(result.get(self.measure, math.nan))
        if self.above is None:
            return self.sign * measured
        return float(measured > self.above)


def subtracted(term: Term) -> Term:
    """The term, with the sign -1."""
    return replace(term, sign=-1)


@dataclass(frozen=True)
class Figure:
    """The mean over n seeds of a sum of terms, its 95 % interval, and p for a mean of 0."""

    terms: tuple[Term, ...]
    seeds: tuple[Seed, ...]  # those for which all runs are done
    all_seeds: tuple[Seed, ...]
    values: tuple[float, ...]  # the sum of the terms for each of `seeds`
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
        """Whether at least three seeds are done, or all if there are fewer, and none diverged."""
        needed = min(3, self.expected)
        return self.n >= needed and math.isfinite(self.mean)

    @property
    def is_test(self) -> bool:
        """Whether it is a difference, so that Holm's correction counts it."""
        return len(self.terms) > 1 and self.is_known

    @property
    def verdict(self) -> str:
        """Where the mean is: "below" 0, "above" 0, or "none" if no difference from 0 is found.

        The verdict is "unknown" if runs are missing, or if no difference is found but the interval
        reaches further than WIDE from 0, so that a difference may have been missed.
        """
        if not self.is_known:
            return "unknown"
        if self.corrected < 0.05:
            if self.mean < 0:
                return "below"
            return "above"
        furthest_from_0 = max(self.high, -self.low)
        if furthest_from_0 > WIDE:
            return "unknown"
        return "none"

    def __str__(self) -> str:
        return self.show(digits=3)

    def show(self, digits: int) -> str:
        """The mean and the interval, and the number of seeds if some are missing."""
        if not self.is_known:
            return UNKNOWN
        text = self.show_mean(digits)
        if self.high > self.low:  # they are equal if all values are, or if there is only one
            text += f" [{self.low:.{digits}f}, {self.high:.{digits}f}]"
        if self.n < self.expected:
            text += f" (n {self.n})"
        return text

    def show_mean(self, digits: int) -> str:
        """The mean without its interval."""
        if not self.is_known:
            return UNKNOWN
        return f"{self.mean:.{digits}f}"

    def as_count(self) -> str:
        """How many seeds have the value 1, such as "3 of 12", if the figure's term has `above`."""
        if self.n < self.expected:
            return UNKNOWN
        return f"{sum(self.values):.0f} of {self.n}"

    def words(self, below: str, above: str, none: str) -> str:
        """The words for the verdict; "not known yet" where that is "unknown"."""
        words = {"below": below, "above": above, "none": none, "unknown": UNKNOWN}
        return words[self.verdict]


Numbers = dict[str, Figure]


def with_interval(figure: Figure) -> Figure:
    """The figure with its mean and, from Student's t distribution, its interval and p.

    A figure without values, or with one that is not finite, stays without a mean.
    """
    values = np.array(figure.values)
    if values.size == 0 or not np.isfinite(values).all():
        return figure
    mean = float(values.mean())
    if np.ptp(values) == 0:  # there is one value, or all are the same: nothing to test
        return replace(figure, mean=mean, low=mean, high=mean)
    standard_error = stats.sem(values)
    low, high = stats.t.interval(0.95, df=values.size - 1, loc=mean, scale=standard_error)
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
    """The p of each test after Holm's correction for the number of tests [Holm 1979].

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    lowest_first = np.argsort(ps, kind="stable")
    corrected = np.zeros(len(ps))
    highest = 0.0
    for tests_before, place in enumerate(lowest_first):
        factor = len(ps) - tests_before
        # A corrected p is at most 1, and at least the corrected p of the test before.
        highest = max(highest, min(1.0, ps[place] * factor))
        corrected[place] = highest
    return [float(p) for p in corrected]


def correct(sections: dict[str, Numbers]) -> dict[str, Numbers]:
    """The figures of all sections, with p corrected by Holm for the number of all tests.

    A test may be in two sections. It is counted once: figures with the same terms are one test.
    """
    ps: dict[str, float] = {}
    for numbers in sections.values():
        for figure in numbers.values():
            if figure.is_test:
                ps[terms_key(figure)] = figure.p
    corrected_ps = dict(zip(ps, holm(list(ps.values())), strict=True))

    corrected_sections: dict[str, Numbers] = {}
    for section, numbers in sections.items():
        corrected_sections[section] = {}
        for name, figure in numbers.items():
            p = corrected_ps.get(terms_key(figure), 1.0)  # 1 if the figure is not a test
            corrected_sections[section][name] = replace(figure, corrected=p)
    return corrected_sections


def terms_key(figure: Figure) -> str:
    """The terms of a figure, as a key of a dictionary."""
    return json.dumps([asdict(term) for term in figure.terms], sort_keys=True)


def with_seed(run: Line, seed: Seed) -> Line:
    """The run with a seed, as in runs.jsonl.

    Most runs are trainings. The other runs compare two models, time a step or measure the text.
    """
    if "compare" in run:
        # Two trained models are compared, and each has a seed of its own.
        first, second = cast(tuple[int, int], seed)
        return {
            "compare": {**run["compare"], "seed": first},
            "with": {**run["with"], "seed": second},
        }
    if run.get("measure") == "step time":
        return {**run, "timing": seed}  # here the "seed" is the number of the repetition
    if run.get("measure") == "text":
        return run  # the same for every seed
    return {**run, "seed": seed}


class Runs:
    """What was measured: the lines of runs.jsonl, by the models of the table."""

    def __init__(self, lines: dict[str, Line], text: str, second_text: str = "") -> None:
        self.lines = lines  # the results, by engine.key_of
        self.text = text  # the names of the texts
        self.second_text = second_text

    def term(self, model: str, head: str, measure: str) -> Term:
        """A measure of a model of the table, trained with one of its heads."""
        row = MODELS[model]
        run = row.run(head, self.rate(row, head))
        return self.run_term(run, measure, self.text_of(row))

    def text_of(self, model: Model) -> str:
        """The name of the text that a model is trained on."""
        if model.second_text:
            return self.second_text
        return self.text

    def rate(self, model: Model, head: str) -> float:
        """The rate of the table. If it is OPEN, the pilot's choice; OPEN if there is none yet."""
        rate: float = getattr(model, head)
        if rate != OPEN:
            return rate
        if model.rates_of:  # it has no pilot, but the rates of this model
            return self.rate(MODELS[model.rates_of], head)
        best = self.best_rate(model, head)
        if best is None:
            return OPEN
        return best

    def run_term(self, run: Run, measure: str, text: str = "") -> Term:
        """A measure of any run, also of one that is not in the table.

        `text` is the name of the text that it is trained on, by default the first text.
        """
        if run.is_chain:
            name = ""  # it is trained on a Markov chain in place of a text
        else:
            name = text or self.text
        return Term(run=run.as_json, text=name, measure=measure)

    def text_term(self, measure: str) -> Term:
        """A measure of the text itself. It is the same for every seed."""
        return Term(run={"measure": "text"}, text=self.text, measure=measure)

    def similarity_term(self, first: Run, second: Run, matrices: str, removed: int = 0) -> Term:
        """How similar a matrix of one model is to a matrix of another.

        `matrices` names the two. "out and tied" is the output matrix of the first model and the one
        matrix of the second, which is tied. "in" is W_E. From both matrices, the first `removed`
        principal components are removed.
        """
        pair = {"compare": first.as_json, "with": second.as_json}
        return Term(run=pair, text=self.text, measure=f"{matrices}, {removed} removed")

    def time_term(self, vocab_size: int) -> Term:
        """The CPU time of an untied training step divided by that of a tied one."""
        run = {"measure": "step time", "vocab_size": vocab_size}
        return Term(run=run, text="", measure="ratio")

    def figure(self, *terms: Term, seeds: Sequence[Seed] = SEEDS) -> Figure:
        """The sum of the terms for each seed whose runs are all done, with mean and interval."""
        done: list[Seed] = []
        values: list[float] = []
        for seed in seeds:
            value = self.sum_of(terms, seed)
            if value is not None:
                done.append(seed)
                values.append(value)
        figure = Figure(terms, seeds=tuple(done), all_seeds=tuple(seeds), values=tuple(values))
        return with_interval(figure)

    def sum_of(self, terms: Sequence[Term], seed: Seed) -> float | None:
        """The sum of the terms for one seed; None if a run is missing."""
        total = 0.0
        for term in terms:
            result = self.result(term, seed)
            if result is None:
                return None
            total += term.value(result)
        return total

    def result(self, term: Term, seed: Seed) -> Line | None:
        """What was measured in the run of a term with one seed; None if the run is missing."""
        return self.lines.get(key_of(with_seed(term.run, seed), term.text))

    def seeds(self, *models: str) -> tuple[int, ...]:
        """The seeds that each of these models is trained with."""
        return SEEDS[: min(MODELS[model].seeds for model in models)]

    def measure(self, model: str, head: str, measure: str = "loss") -> Figure:
        """The mean of a measure of a model with one of its heads."""
        return self.figure(self.term(model, head, measure), seeds=self.seeds(model))

    def cost(self, model: str, tied: str = "tied", measure: str = "loss") -> Figure:
        """The cost of the tie: the loss of the tied model minus that of the untied one.

        `tied` is the head of the tied model: "tied", or "signs", whose gains have random signs.
        """
        return self.difference((model, tied), minus=(model, "untied"), measure=measure)

    def difference(
        self, first: tuple[str, str], minus: tuple[str, str], measure: str = "loss"
    ) -> Figure:
        """The measure of `first` minus that of `minus`, each a (model, head)."""
        first_model, first_head = first
        second_model, second_head = minus
        return self.figure(
            self.term(first_model, first_head, measure),
            subtracted(self.term(second_model, second_head, measure)),
            seeds=self.seeds(first_model, second_model),
        )

    def rise_of_cost(self, before: str, after: str, tied: str = "tied") -> Figure:
        """The cost of the tie for the model `after` minus the cost for the model `before`.

        A cost is the loss with the head `tied` minus the loss with the head "untied".
        """
        measure = MODELS[before].loss_measure
        return self.figure(
            self.term(after, tied, measure),
            subtracted(self.term(after, "untied", measure)),
            subtracted(self.term(before, tied, measure)),
            self.term(before, "untied", measure),
            seeds=self.seeds(before, after),
        )

    def nearer_to_bigrams(self, model: str, head: str, path: str) -> Figure:
        """How much nearer a path through a model is to the text's bigrams than the token counts.

        A distance is a KL divergence in nats: "unigram.kl" is that of the token counts. The path's
        scores are calibrated: times the best factor, and with the best weight of the token counts.
        """
        return self.figure(
            self.term(model, head, "unigram.kl"),
            subtracted(self.term(model, head, f"{path}+unigram.kl")),
            seeds=self.seeds(model),
        )

    def of_text(self, measure: str) -> Figure:
        """A measure of the text itself, one number."""
        return self.figure(self.text_term(measure), seeds=(0,))

    def failing(self, head: str, rate: float, limit: float) -> Figure:
        """Of the trainings with one layer: the share whose loss ends above `limit`.

        It is not known while the limit is not known, which is nan then.
        """
        if not math.isfinite(limit):
            return Figure(terms=(), seeds=(), all_seeds=SEEDS, values=())
        run = replace(ONE, head=head, lr=rate)
        short_limit = round(limit, 6)  # figures.json shows the limit, with few digits
        return self.figure(Term(run=run.as_json, text=self.text, measure="loss", above=short_limit))

    def pilot_mean(self, model: Model, head: str, rate: float) -> float | None:
        """The mean loss of the pilot's seeds at one rate; None while some are missing."""
        term = self.run_term(model.run(head, rate), model.loss_measure, self.text_of(model))
        figure = self.figure(term, seeds=PILOT_SEEDS[: model.pilot_seeds])
        if figure.n < figure.expected:
            return None
        return sum(figure.values) / figure.n

    def tried_rates(self, model: Model, head: str) -> list[float]:
        """The rates of a pilot so far, from low to high, with the next ones that are to be tried.

        If the best rate is the lowest that was tried, half of it is tried next. If it is the
        highest that was tried, double is tried next.
        """
        rates = sorted(pilot_rates(model, head))
        while True:
            means = self.pilot_means(model, head, rates)
            if len(means) < len(rates):
                return rates  # some are not finished, so the best is not known yet
            best = min(means, key=means.__getitem__)
            if best == rates[0]:
                rates.insert(0, best / 2)
            elif best == rates[-1]:
                rates.append(2 * best)
            else:
                return rates

    def pilot_means(self, model: Model, head: str, rates: list[float]) -> dict[float, float]:
        """The mean loss at each of the rates that the pilot has finished."""
        means: dict[float, float] = {}
        for rate in rates:
            mean = self.pilot_mean(model, head, rate)
            if mean is not None:
                means[rate] = mean
        return means

    def best_rate(self, model: Model, head: str) -> float | None:
        """The lowest rate whose mean loss in the pilot is within CLOSE of the lowest mean loss.

        For a chain, it is the rate with the lowest mean loss: costs on chains may be smaller than
        CLOSE. None while the pilot is not finished.
        """
        rates = self.tried_rates(model, head)
        means = self.pilot_means(model, head, rates)
        if len(means) < len(rates):
            return None
        allowed = min(means.values())  # the highest mean loss that the chosen rate may have
        if not model.size.is_chain:
            allowed += CLOSE
        return min(rate for rate, mean in means.items() if mean <= allowed)
