"""From the lines of all runs to results.json: means, 95 % intervals, differences seed by seed, verdicts.

A figure is [mean, low, high], where low and high are the ends of Student's t interval over the seeds: mean +-
t s / sqrt(n). It holds the true mean in 95 of 100 experiments, if the seeds' numbers are about normal. The
figure of a difference a - b is that of the differences of runs with the same seed. An interval that holds 0
means "no difference found". About 1 in 20 intervals misses the true mean.
"""

import math
from collections import Counter
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import numpy as np

from tiedgpt import TiedGPTError
from tiedgpt.study.similarity import cosines, spearman

from .grid import Plan, Run, Set
from .job import matrices_path

Line = dict[str, Any]
Figure = list[float | None]  # mean, low, high

# The 0.975 quantiles of Student's t distribution with 1, 2, ... degrees of freedom
T_975 = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145)

# What the verdicts of the page rest on: claim, name, set, kind or "a - b", measure
VERDICTS = (
    (2, "direct path adds to the unigram, tied, no layers", "heads", "0/tied", "normed.gain"),
    (2, "direct path adds to the unigram, tied, 1 layer", "heads", "1/tied", "normed.gain"),
    (2, "direct path adds to the unigram, untied, 1 layer", "heads", "1/untied", "normed.gain"),
    (3, "untied - tied, no layers", "heads", "0/untied - 0/tied", "loss"),
    (3, "untied - tied, no layers, longest training", "steps", "best/$long/untied - best/$long/tied", "loss"),
    (3, "untied - tied, no layers, low rate", "steps", "first/$usual/untied - first/$usual/tied", "loss"),
    (3, "tied: signs - free, no layers", "signs", "no layers/signs - no layers/free", "loss"),
    (3, "tied: signs - free, no layers, low rate", "gains", "first/signs - first/free", "loss"),
    (3, "tied: signs - free, 1 layer", "signs", "one layer/signs - one layer/free", "loss"),
    (3, "tied: fixed - free, no layers", "gains", "best/fixed - best/free", "loss"),
    (3, "untied - tied with signs, no layers", "signs", "no layers/untied - no layers/signs", "loss"),
    (3, "untied - tied with signs, 1 layer", "signs", "one layer/untied - one layer/signs", "loss"),
    (3, "untied - tied with signs, 4 layers", "signs", "four layers/untied - four layers/signs", "loss"),
    (3, "untied - tied with signs, MLP only", "signs", "MLP only/untied - MLP only/signs", "loss"),
    (3, "untied - tied, attention only", "sublayers", "attention/untied - attention/tied", "loss"),
    (3, "untied - tied, MLP only", "sublayers", "mlp/untied - mlp/tied", "loss"),
    (3, "chains: untied - tied, reversible", "chains", "0/$low/untied - 0/$low/tied", "excess"),
    (3, "chains: untied - tied, asymmetric", "chains", "0/$high/untied - 0/$high/tied", "excess"),
    (3, "chains: untied - signs, reversible", "chains", "0/$low/untied - 0/$low/signs", "excess"),
    (3, "chains: untied - signs, asymmetric", "chains", "0/$high/untied - 0/$high/signs", "excess"),
    (3, "chains: signs, asymmetric - reversible", "chains", "0/$high/signs - 0/$low/signs", "excess"),
    (3, "chains: untied - tied, 1 layer, asymmetric", "chains", "1/$high/untied - 1/$high/tied", "excess"),
    (4, "direct path adds to the unigram, untied, 4 layers", "heads", "4/untied", "normed.gain"),
    (4, "direct path, 1 layer - none", "heads", "1/untied - 0/untied", "normed.gain"),
    (5, "copy - random, 1 layer", "heads", "1/copy - 1/untied", "loss"),
    (5, "copy - tied, 1 layer", "heads", "1/copy - 1/tied", "loss"),
    (5, "zeros - random, 1 layer", "heads", "1/zeros - 1/untied", "loss"),
    (5, "zeros - random, 1 layer, longest training", "longer", "$long/zeros - $long/untied", "loss"),
    (5, "W_U of 1e-5 - of 0.02, 1 layer", "starts", "1e-05 - $std", "loss"),
    (6, "untied - tied, 1 layer", "heads", "1/untied - 1/tied", "loss"),
    (6, "untied - tied, 1 layer, longest training", "longer", "$long/untied - $long/tied", "loss"),
    (6, "untied - signs, 1 layer, longest training", "longer", "$long/untied - $long/signs", "loss"),
    (6, "untied - tied, 4 layers", "heads", "4/untied - 4/tied", "loss"),
    (6, "untied - tied on little text, 1 layer", "small", "1/best/untied - 1/best/tied", "loss"),
    (6, "untied - tied on little text, 4 layers", "small", "4/best/untied - 4/best/tied", "loss"),
    (6, "untied - signs on little text, 1 layer", "small", "1/best/untied - 1/best/signs", "loss"),
    (6, "untied - signs on little text, 4 layers", "small", "4/best/untied - 4/best/signs", "loss"),
    (6, "untied - tied, as many parameters, 1 layer", "matched", "1/untied - 1/tied", "loss"),
    (6, "untied - signs, as many parameters, 1 layer", "matched", "1/untied - 1/signs", "loss"),
    (6, "untied - tied, large, 1 layer", "scale", "untied - tied", "loss"),
    (6, "untied - tied with signs, large, 1 layer", "scale", "untied - signs", "loss"),
    (7, "W_U is more like the tied matrix than W_E, no layers", "heads", "0/untied", "out_minus_in"),
    (7, "W_U is more like the tied matrix than W_E, 1 layer", "heads", "1/untied", "out_minus_in"),
    (7, "W_U is more like the tied matrix than W_E, 4 layers", "heads", "4/untied", "out_minus_in"),
    (9, "tied head - uniform guess, 1 layer", "heads", "1/untied", "swapped.over_uniform"),
    (9, "tied head - uniform guess, 4 layers", "heads", "4/untied", "swapped.over_uniform"),
    (9, "tied head - uniform guess, 1 layer, from a copy", "heads", "1/copy", "swapped.over_uniform"),
    (9, "tied head - unigram, 1 layer, from a copy", "heads", "1/copy", "swapped.over_unigram"),
)


NONE_FOUND = "no difference found"
WORDS = {  # for two signs
    "++": "same sign",
    "--": "same sign",
    "+-": "OPPOSITE SIGN",
    "00": "no difference found in both",
    "+0": "found in one only",
    "-0": "found in one only",
}

# Numbers


def interval(values: list[float]) -> Figure:
    """The mean of the values and the ends of its 95 % interval.

    >>> interval([1.0, 2.0, 3.0])
    [2.0, -0.484338, 4.48434]
    """
    mean = fmean(values)
    if len(values) < 2:
        return [rounded(mean), None, None]
    half = T_975[min(len(values) - 2, len(T_975) - 1)] * stdev(values) / math.sqrt(len(values))
    return [rounded(x) for x in (mean, mean - half, mean + half)]


def rounded(x: float) -> float:
    """x with six significant digits: more than an interval can use, and fewer bytes."""
    return float(f"{x:.6g}")


def sign(figure: Figure) -> str:
    """The figure's sign, "-" or "+"; "0" if the interval holds 0."""
    _, low, high = figure
    if low is None or high is None or low <= 0 <= high:
        return "0"
    return "+" if low > 0 else "-"


def show(figure: Figure, signed: bool, form: str = ".3f") -> str:
    """A figure as text.

    >>> show([1.0, 0.5, 1.5], False), show([-0.1, -0.5, 0.3], True, ".1f"), show([2.0, None, None], False)
    ('1.000 [0.500, 1.500]', '-0.1 [-0.5, +0.3], no difference found', '2.000')
    """
    alone, form = form == "mean", ".3f" if form == "mean" else form
    mean, *ends = (None if x is None else format(x, ("+" if signed else "") + form) for x in figure)
    if alone or None in ends or ends == [mean, mean]:
        return str(mean)
    return f"{mean} [{', '.join(map(str, ends))}]" + f", {NONE_FOUND}" * (signed and sign(figure) == "0")


# Rates


def choose_rates(lines: dict[Run, Line]) -> dict[str, Line]:
    """For each kind of model: the mean loss at each rate, the best rate, and whether it is at the edge."""
    losses: dict[str, dict[float, list[float]]] = {}
    for run, line in lines.items():
        losses.setdefault(run.kind, {}).setdefault(run.lr, []).append(line["result"].get("loss", math.inf))
    rates = {}
    for kind, by_rate in losses.items():
        means = {rate: fmean(values) for rate, values in by_rate.items()}
        best = min(means, key=lambda rate: means[rate])
        if not math.isfinite(means[best]):
            raise TiedGPTError(f"{kind}: the training diverged at every learning rate of the pilot")
        rates[kind] = {
            "best": best,
            "at_edge": best in (min(means), max(means)),
            "losses": {f"{rate:g}": rounded(m) if math.isfinite(m) else None for rate, m in means.items()},
        }
    return rates


# Similarities of two models


class Similarities:
    """How similar W_E and W_U of a run are to the matrix of the tied run with the next seed.

    With the same seed both would start from the same W_E, which would increase the correlation.
    """

    def __init__(self, out: Path, seeds: tuple[int, ...], tokens: np.ndarray) -> None:
        self.out, self.tokens = out, tokens
        self.next_seed = dict(zip(seeds, seeds[1:] + seeds[:1], strict=True))
        self.cosines = cache(self._cosines)

    def _cosines(self, run: Run, matrix: str) -> np.ndarray:
        rows = np.load(matrices_path(self.out, run))[matrix]
        return cosines((rows if matrix == "W_E" else rows.T)[self.tokens])

    def of(self, run: Run, tied: Run) -> dict[str, float | None]:
        """Of a run with a seed, and the kind of the tied model."""
        tied_cosines = self.cosines(replace(tied, seed=self.next_seed[run.seed]), "W_E")
        found = {"in_tied": spearman(self.cosines(run, "W_E"), tied_cosines)}
        if run.head != "tied":
            found["out_tied"] = spearman(self.cosines(run, "W_U"), tied_cosines)
            found["in_out"] = spearman(self.cosines(run, "W_E"), self.cosines(run, "W_U"))
            if found["in_tied"] is not None and found["out_tied"] is not None:
                found["out_minus_in"] = found["out_tied"] - found["in_tied"]
        return found


# Sets


def summarize(
    s: Set, seeds: tuple[int, ...], line_of: dict[Run, Line], text: Line, similarities: Similarities | None
) -> Line:
    """The figures of a set: of each kind, and of each pair of kinds to compare."""
    lines = {kind: [line_of[replace(run, seed=seed)] for seed in seeds] for kind, run in s.kinds.items()}
    measures = {kind: [derived(line["result"], text) for line in of] for kind, of in lines.items()}
    if similarities:
        for kind, run in s.kinds.items():
            tied = s.kinds[kind.rpartition("/")[0] + "/tied"]
            for seed, of_seed in zip(seeds, measures[kind], strict=True):
                of_seed |= similarities.of(replace(run, seed=seed), tied)
    chosen: dict[str, list[str]] = {}
    for name, options in s.options.items():
        chosen[name] = best_of_other_half({option: measures[option] for option in options})
        measures[name] = [measures[option][at] for at, option in enumerate(chosen[name])]
    kinds: Line = {}
    for kind, of in measures.items():
        kinds[kind] = {"measures": figures(of)}
        if kind in s.kinds:
            kinds[kind] |= {"rate": s.kinds[kind].lr, "width": s.kinds[kind].width}
        else:
            kinds[kind]["chosen"] = chosen[kind]
        if s.course and all(line.get("course") for line in lines[kind]):
            kinds[kind]["course"] = course([line["course"] for line in lines[kind]])
    differences: Line = {}
    for a, b in s.compare:
        shared = zip(measures[a], measures[b], strict=True)
        differences[f"{a} - {b}"] = {"measures": figures([minus(x, y) for x, y in shared])}
        if "course" in kinds[a] and "course" in kinds[b]:
            both = zip(lines[a], lines[b], strict=True)
            steps = [
                [minus(x, y) | {"step": x["step"]} for x, y in zip(p["course"], q["course"], strict=True)]
                for p, q in both
            ]
            differences[f"{a} - {b}"]["course"] = course(steps, ("loss",))
    return {"question": s.question, "kinds": kinds, "differences": differences}


def derived(result: Line, text: Line) -> Line:
    """The measures of a run, with those that compare it with the text's own numbers."""
    result = dict(result)
    for path in ("raw", "normed", "mlp0", "model", "raw-diagonal", "normed-diagonal"):
        if (kl := result.get(f"{path}+unigram.kl")) is not None:
            result[f"{path}.gain"] = result["unigram.kl"] - kl
    if "swapped" in result:
        result["swapped.over_uniform"] = result["swapped"] - text["uniform_loss"]
        result["swapped.over_unigram"] = result["swapped"] - text["unigram_loss"]
    return result


def minus(a: Line, b: Line) -> Line:
    """The differences of the numbers that both have."""
    return {name: a[name] - b[name] for name in a if is_number(a[name]) and is_number(b.get(name))}


def is_number(x: Any) -> bool:
    return isinstance(x, (int, float)) and math.isfinite(x)


def figures(results: list[Line]) -> dict[str, Figure]:
    """The figure of each measure that every seed has."""
    names = [name for name in results[0] if all(is_number(result.get(name)) for result in results)]
    return {name: interval([float(result[name]) for result in results]) for name in names}


def course(courses: list[list[Line]], names: tuple[str, ...] | None = None) -> Line:
    """The figures of each number by step."""
    names = names or tuple(name for name in courses[0][0] if name != "step")
    by_step = [figures([of[at] for of in courses]) for at in range(len(courses[0]))]
    steps = [point["step"] for point in courses[0]]
    return {"steps": steps, **{name: [point.get(name) for point in by_step] for name in names}}


def best_of_other_half(options: dict[str, list[Line]]) -> list[str]:
    """For each seed, the option that had the lowest mean loss with the other half of the seeds.

    If the reported numbers also chose the option, their mean would be too low.
    """
    n = len(next(iter(options.values())))
    half = range(n // 2), range(n // 2, n)
    best = [
        min(options, key=lambda name: fmean(options[name][seed].get("loss", math.inf) for seed in seeds))
        for seeds in half
    ]
    return [best[1] if seed < n // 2 else best[0] for seed in range(n)]


# Everything


def names_in(plan: Line) -> dict[str, str]:
    """Names for the ends of what a plan varies, for the page and the verdicts."""
    rates = (*plan["rates"][1:], *plan["more_rates"]) or (0.0,)  # without layers
    return {
        "usual": str(plan["small"]["steps"]),
        "long": str(plan["steps"][-1]),
        "low": f"{plan['jsds'][0]:g}",
        "high": f"{plan['jsds'][-1]:g}",
        "std": f"{plan['small']['std']:g}",
        "wide": f"{plan['stds'][-1]:g}",
        "slow": f"{rates[0]:g}",
        "fast": f"{rates[-1]:g}",
    }


def verdicts(sets: Line, plan: Plan) -> list[Line]:
    """The sign of each figure that a verdict of the page rests on, if the plan has its runs."""
    names = names_in(asdict(plan))
    found = []
    for claim, name, set_name, what, measure in VERDICTS:
        part = sets.get(set_name, {})
        of = part.get("differences", {}) | part.get("kinds", {})
        for key, value in names.items():
            what = what.replace(f"${key}", value)
        figure = of.get(what, {}).get("measures", {}).get(measure)
        if figure:
            found.append({"claim": claim, "name": name, "what": what, "figure": figure, "sign": sign(figure)})
    return found


def agreement(found: Line, published: Line) -> list[str]:
    """A line for each verdict of `found` that compares it with the published one, and their numbers.

    Both are results.json. A verdict of other lengths or chains than the published one is "not published".
    """
    others = {(verdict["name"], verdict["what"]): verdict for verdict in published["verdicts"]}
    lines, numbers = [], Counter[str]()
    for verdict in found["verdicts"]:
        other = others.get((verdict["name"], verdict["what"]))
        word = "not published" if other is None else WORDS["".join(sorted((verdict["sign"], other["sign"])))]
        numbers[word] += 1
        here, there = (show(v["figure"], True) if v else "-" for v in (verdict, other))
        lines.append(f"{verdict['claim']}  {verdict['name']}: {here}; published: {there}: {word}")
    lines.append(", ".join(f"{word}: {number}" for word, number in numbers.items()))
    return lines


def results_of(plan: Plan, rates: Line, sets: Line, text: Line, times: dict[str, list[float]]) -> Line:
    ratios = {V: {"measures": {"ratio": interval(of)}} for V, of in times.items()}
    question = "By vocabulary: how much longer is a training step of an untied model?"
    return {
        "plan": {"seed_count": len(plan.seeds), **asdict(plan)},
        "rates": rates,
        "text": text,
        "sets": sets | {"time": {"question": question, "kinds": ratios, "differences": {}}},
        "verdicts": verdicts(sets, plan),
    }
