"""The page: page.md with the figures of the runs in the place of their names; the tables; the picture.

A name is in double braces, and its parts are separated by ": ":

    {{models: one layer/untied: loss}}            set, kind, measure: 3.012 [2.998, 3.026]
    {{models: a/untied - a/tied: loss}}           a sum has a sign, and words if it may be 0
    {{models: a/tied: unigram.kl - mlp0+unigram.kl}}    so has a sum of measures
    {{text: whole: jsd: mean}}                    the mean alone; d for whole numbers, .2f for two digits
    {{models: a/untied - a/tied: loss? lower | higher | not different}}    words by the verdict
    {{seeds}}                                     the number of seeds

Every sum of the page is one of the tests that Holm's correction counts.
"""

import math
import re
from pathlib import Path
from typing import Any

from tiedgpt import TiedGPTError

from . import grid
from .engine import Line
from .grid import HEADS, JSDS
from .results import Figure, Found, figure, holm, terms, values

PAGE = Path(__file__).with_name("page.md")
NONE_FOUND = "no difference found"
NAME = re.compile(r"\{\{(.*?)\}\}")
Reference = tuple[str, str, str]  # set, kinds, measures


class Page:
    """A page with its references to figures, and the tests among them."""

    def __init__(self, found: Found, template: str | None = None) -> None:
        self.found = found
        template = PAGE.read_text(encoding="utf-8") if template is None else template
        self.text = template.replace("{{seeds}}", str(len(next(iter(found["models"].values())))))
        names = dict.fromkeys(reference(name) for name in NAME.findall(self.text))
        self.tests = {name: self.figure(name) for name in names if is_sum(name)}
        corrected = holm([of.p for of in self.tests.values()])
        self.corrected = dict(zip(self.tests, corrected, strict=True))

    def figure(self, name: Reference) -> Figure:
        try:
            of = values(self.found, *name)
        except KeyError:
            of = [math.nan]
        if not all(map(math.isfinite, of)):
            raise TiedGPTError(f"{': '.join(name)}: not measured with every seed")
        return figure(of)

    def sign(self, name: Reference) -> str:
        """The verdict: "-", "+", or "0" if no difference is found."""
        if self.corrected[name] >= 0.05:
            return "0"
        return "-" if self.tests[name].mean < 0 else "+"

    def render(self) -> str:
        return NAME.sub(lambda match: self.replacement(match[1]), self.text)

    def replacement(self, name: str) -> str:
        of, form = self.figure(reference(name)), [*name.split(": "), ".3f"][3]
        if "?" in name:
            words = [word.strip() for word in name.partition("?")[2].split("|")]
            return words["-+0".index(self.sign(reference(name)))]
        if not is_sum(reference(name)):
            return show(of, form)
        return show(of, form, "+") + f" ({NONE_FOUND})" * (self.sign(reference(name)) == "0")

    def verdicts(self) -> str:
        """A table of all tests."""
        lines = ["## verdicts", "", *table_head(["", "mean", "n", "p", "p, Holm", "verdict"])]
        words = {"-": "below 0", "+": "above 0", "0": NONE_FOUND}
        for name, of in self.tests.items():
            ps = [f"{p:.1g}" if p >= 1e-12 else "< 1e-12" for p in (of.p, self.corrected[name])]
            cells = [": ".join(name), show(of, sign="+"), str(of.n), *ps, words[self.sign(name)]]
            lines.append(as_row(cells))
        return "\n".join(lines)


def reference(name: str) -> Reference:
    set_name, kinds, measures = name.partition("?")[0].split(": ")[:3]
    return set_name, kinds, measures


def is_sum(name: Reference) -> bool:
    return len(terms(name[1])) * len(terms(name[2])) > 1


def as_row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def table_head(cells: list[str]) -> list[str]:
    return [as_row(cells), as_row(["---"] * len(cells))]


def show(of: Figure, form: str = ".3f", sign: str = "") -> str:
    """A figure as text.

    >>> show(Figure(1.0, 0.5, 1.5, 1.0, 0.001, 4)), show(Figure(-0.1, -0.5, 0.3, 1.0, 0.5, 4), ".1f", "+")
    ('1.000 [0.500, 1.500]', '-0.1 [-0.5, +0.3]')
    """
    alone, form = form in ("mean", "d"), {"mean": ".3f", "d": ",.0f"}.get(form, form)
    mean, low, high = (format(x, sign + form) for x in (of.mean, of.low, of.high))
    return mean if alone or low == high else f"{mean} [{low}, {high}]"


def tables(found: Found) -> str:
    """Every set and the pilot as tables of means, intervals and standard deviations, for any text."""
    lines = [
        "# The tables",
        "",
        "In a cell: the mean over n seeds, its 95 % interval, the standard deviation.",
    ]
    lines += ["Losses are in nats per held-out token. The heads:", ""]
    lines += [f"- {head}: {how}" for head, how in HEADS.items()]
    rates = {name: {kind: run.lr for kind, run in kinds.items()} for name, kinds in grid.sets().items()}
    for name, kinds in found.items():
        measures = list(dict.fromkeys(m for of in kinds.values() for m in of[0]))
        if name in (*rates, "pilot"):
            measures = [m for m in measures if m in ("loss", "training loss", "excess", "negative gains")]
        lines += ["", f"## {name}", "", *table_head(["", "n", *measures])]
        for kind, of in kinds.items():
            rate = f", rate {rates[name][kind]:g}" if name in rates else ""
            lines.append(as_row([kind + rate, str(len(of)), *(table_cell(of, m) for m in measures)]))
    return "\n".join([*lines, ""])


def table_cell(results: list[Line], measure: str) -> str:
    of: list[Any] = [math.nan if "diverged" in result else result.get(measure) for result in results]
    if None in of:  # not measured for this kind, or undefined
        return ""
    if not all(map(math.isfinite, of)):
        return "diverged"
    f = figure(of)
    return show(f) + (f", sd {f.sd:.3f}" if f.sd else "")


# Okabe and Ito's colours, for colour-blind readers; the line styles are for printing in grey
STYLES = {
    "0/*/tied": ("#000000", "-", "o", "no layers, tied"),
    "0/*/signs": ("#CC79A7", "-.", "D", "no layers, tied with signs"),
    "0/*/untied": ("#D55E00", "--", "s", "no layers, untied"),
    "1/*/tied": ("#0072B2", ":", "^", "one layer, tied"),
}


def picture(found: Found) -> Any:
    """What the tie costs on a Markov chain, by its asymmetry. Needs matplotlib."""
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=(9, 3.4), dpi=100, layout="constrained")
    ax = drawing.subplots()
    for name, (color, line, marker, label) in STYLES.items():
        kinds = {jsd: kind for jsd in JSDS if (kind := name.replace("*", f"{jsd:g}")) in found["chains"]}
        jsds, of = [*kinds], [figure(values(found, "chains", kind, "excess")) for kind in kinds.values()]
        ax.plot(jsds, [f.mean for f in of], line, color=color, marker=marker, ms=4, lw=1.3, label=label)
        ax.fill_between(jsds, [f.low for f in of], [f.high for f in of], color=color, alpha=0.15, lw=0)
    ax.plot(JSDS, JSDS, color="grey", lw=0.8, label="the best symmetric table: loss = JSD")
    ax.set_xlabel("JSD of the chain's pairs and their reverse, nats (0: reversible)")
    ax.set_ylabel("loss above the chain's own, nats")
    ax.spines[["top", "right"]].set_visible(False)
    drawing.legend(frameon=False, loc="outside right center")
    return drawing
