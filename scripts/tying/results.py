"""From the lines of all runs to means, 95 % intervals and tests.

An interval is Student's t interval over the seeds: mean +- t s / sqrt(n). A difference a - b is taken between
runs with the same seed. Its p is that of the two-sided t test of a mean of 0. Many differences are tested, so
a verdict needs more than p < 0.05: Holm's correction keeps the probability of any wrong verdict below 5 %.
"""

import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from statistics import fmean, stdev

from . import grid
from .chains import bisect
from .engine import Line, key_of
from .grid import Run, pilot, sets

Found = dict[str, dict[str, list[Line]]]  # set, kind, and the result of each seed
VOCABULARIES = (1024, 16384)  # for the time of a step


@dataclass(frozen=True)
class Figure:
    """The mean of n values, its 95 % interval, their standard deviation, and p for a mean of 0."""

    mean: float
    low: float
    high: float
    sd: float
    p: float
    n: int


def figure(values: list[float]) -> Figure:
    """
    >>> f = figure([1.0, 2.0, 3.0])
    >>> f.mean, f.sd, round(f.low, 4), round(f.high, 4), round(f.p, 4)
    (2.0, 1.0, -0.4841, 4.4841, 0.0742)
    """
    n, mean = len(values), fmean(values)
    sd = stdev(values) if n > 1 else 0.0
    if not sd:
        return Figure(mean, mean, mean, 0.0, 1.0, n)
    half = t_quantile(n - 1) * sd / math.sqrt(n)
    return Figure(mean, mean - half, mean + half, sd, t_test(mean / sd * math.sqrt(n), n - 1), n)


def t_test(t: float, df: int) -> float:
    """The probability that |t| is higher, for Student's t [Abramowitz & Stegun 1964, 26.7.3 and 26.7.4]."""
    angle, odd = math.atan(abs(t) / math.sqrt(df)), df % 2
    term = total = (math.cos(angle) if df > 1 else 0.0) if odd else 1.0
    for k in range(2 + odd, df, 2):
        term *= (k - 1) / k * math.cos(angle) ** 2
        total += term
    inside = 2 / math.pi * (angle + math.sin(angle) * total) if odd else math.sin(angle) * total
    return max(0.0, 1 - inside)


def t_quantile(df: int) -> float:
    """The t that |t| exceeds with a probability of 5 %, by bisection."""
    return bisect(lambda t: -t_test(t, df), -0.05, high=20.0)


def holm(ps: list[float]) -> list[float]:
    """The p of each test after Holm's correction for their number.

    >>> [round(p, 3) for p in holm([0.01, 0.04, 0.03])]
    [0.03, 0.06, 0.06]
    """
    corrected, highest = [0.0] * len(ps), 0.0
    for rank, at in enumerate(sorted(range(len(ps)), key=lambda i: ps[i])):
        highest = max(highest, min(1.0, ps[at] * (len(ps) - rank)))
        corrected[at] = highest
    return corrected


def similarities(seeds: Iterable[int]) -> dict[str, list[tuple[Run, Run]]]:
    """By name, the pairs of runs whose matrices are compared: an untied or a tied one, and a tied one.

    The seeds are paired without an overlap, so that no model is used twice for one name.
    """
    seeds, found = list(seeds), {}
    pairs = list(zip(seeds[::2], seeds[1::2], strict=False))
    for place in ("no layers", "one layer"):
        tied, untied = (sets()["places"][f"{place}/{head}"] for head in ("tied", "untied"))
        both = [pair for a, b in pairs for pair in ((a, b), (b, a))]
        found[place] = [(replace(untied, seed=a), replace(tied, seed=b)) for a, b in both]
        found[f"{place}, two tied"] = [(replace(tied, seed=a), replace(tied, seed=b)) for a, b in pairs]
    return found


def similarity_json(one: Run, other: Run) -> Line:
    return {"compare": one.as_json, "with": other.as_json}


def collect(lines: dict[str, Line], text: str, names: Iterable[str]) -> Found:
    """The results of the named sets for the seeds that are complete, and of all else that is there."""

    def result(run: Line, of: str = text) -> Line:
        return lines.get(key_of(run, of), {})

    def of_run(run: Run, seed: int) -> Line:
        return result(replace(run, seed=seed).as_json, "" if run.text == "chain" else text)

    chosen = {name: kinds for name, kinds in sets().items() if name in names}
    runs = [run for kinds in chosen.values() for run in kinds.values()]
    seeds = [seed for seed in grid.SEEDS if all(of_run(run, seed) for run in runs)]
    found: Found = {
        name: {kind: [of_run(run, seed) for seed in seeds] for kind, run in kinds.items()}
        for name, kinds in chosen.items()
    }
    found["similarity"] = {
        kind: [result(similarity_json(*pair)) for pair in of if {run.seed for run in pair} <= set(seeds)]
        for kind, of in similarities(grid.SEEDS).items()
    }
    found["pilot"] = {name_of(r): [of_run(r, s) for s in grid.PILOT_SEEDS] for r in pilot()}
    found["text"] = {"whole": [result({"measure": "text"})]}
    timed = {V: result({"measure": "step time", "vocab_size": V}, "") for V in VOCABULARIES}
    found["step time"] = {str(V): [{"ratio": x} for x in of.values()] for V, of in timed.items()}
    losses = {k: x for k, x in found["text"]["whole"][0].items() if k in ("uniform loss", "unigram loss")}
    return {
        name: {kind: [{**r, **losses} for r in of if r] for kind, of in kinds.items() if any(of)}
        for name, kinds in found.items()
    }


def name_of(run: Run) -> str:
    """What was tried in the pilot: the fields that are not the default."""
    return ", ".join(f"{name} {value}" for name, value in run.as_json.items())


def values(found: Found, set_name: str, what: str, measure: str) -> list[float]:
    """A measure of a kind by seed. Both may be sums such as "a - b" and "a - b - c + d"."""
    totals: list[float] = []
    for kind, sign in terms(what):
        for name, other in terms(measure):
            of = [sign * other * float(result.get(name, math.nan)) for result in found[set_name][kind]]
            totals = [x + y for x, y in zip(totals, of, strict=True)] if totals else of
    return totals


def terms(text: str) -> list[tuple[str, int]]:
    """
    >>> terms("a - b + c")
    [('a', 1), ('b', -1), ('c', 1)]
    """
    parts = re.split(r" ([+-]) ", f"x + {text}")
    return [(name, 1 if sign == "+" else -1) for sign, name in zip(parts[1::2], parts[2::2], strict=True)]
