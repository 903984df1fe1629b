"""From the lines of all runs to means, 95 % intervals and tests.

An interval is Student's t interval over the seeds: mean +- t s / sqrt(n). A difference a - b is
taken between runs with the same seed. Its p is that of the two-sided t test of a mean of 0. Many
differences are tested, so a verdict needs more than p < 0.05: Holm's correction keeps the
probability of any wrong verdict below 5 %.
"""

import math
import re
from dataclasses import dataclass
from statistics import fmean, stdev

from .chains import bisect
from .engine import Line, Plan

Found = dict[str, dict[str, list[Line]]]  # set, kind, and the result of each seed


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
    sd = stdev(values) if n > 1 and math.isfinite(mean) else 0.0
    if not sd:
        return Figure(mean, mean, mean, 0.0, 1.0, n)
    half = t_quantile(n - 1) * sd / math.sqrt(n)
    return Figure(mean, mean - half, mean + half, sd, t_test(mean / sd * math.sqrt(n), n - 1), n)


def t_test(t: float, df: int) -> float:
    """The probability that |t| is higher, for Student's t [Abramowitz & Stegun 1964, 26.7.3 and
    26.7.4]."""
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


def collect(plan: Plan, lines: dict[str, Line]) -> Found:
    """The results of a plan's jobs, which have been done."""
    return {
        name: {kind: [lines[job.key] for job in jobs] for kind, jobs in kinds.items()}
        for name, kinds in plan.items()
    }


def values(found: Found, set_name: str, what: str, measure: str) -> list[float]:
    """A measure of a kind by seed. Both may be sums such as "a - b" and "a - b - c + d".

    What was measured of the text alone is a measure of every kind.
    """
    of_text = found.get("text", {"whole": [{}]})["whole"][0]
    totals: list[float] = []
    for kind, sign in terms(what):
        for name, other in terms(measure):
            results = ({name: math.nan, **of_text, **result} for result in found[set_name][kind])
            of = [sign * other * float(result[name]) for result in results]
            totals = [x + y for x, y in zip(totals, of, strict=True)] if totals else of
    return totals


def terms(text: str) -> list[tuple[str, int]]:
    """
    >>> terms("a - b + c")
    [('a', 1), ('b', -1), ('c', 1)]
    """
    parts = re.split(r" ([+-]) ", f"x + {text}")
    return [
        (name, 1 if sign == "+" else -1)
        for sign, name in zip(parts[1::2], parts[2::2], strict=True)
    ]
