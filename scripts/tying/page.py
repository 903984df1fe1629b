"""The page: page.md with the figures of the runs in the place of their names; the tables; the
pictures.

A name is in double braces, and its parts are separated by ": ":

    {{models: one layer/untied: loss}}            set, kind, measure: 3.012 [2.998, 3.026]
    {{models: a/untied - a/tied: loss}}           a sum has a sign, and words if it may be 0
    {{models: a/tied: unigram.kl - mlp0+unigram.kl}}    so has a sum of measures
    {{text: whole: jsd: mean}}                    the mean alone; d: a whole number, .2f: two digits
    {{models: one layer/untied: loss: n}}         the number of values
    {{models: a/untied - a/tied: loss? lower | higher | not different}}    words by the verdict

Every sum of the page is one of the tests that Holm's correction counts.
"""

import re
from math import isfinite, nan
from pathlib import Path
from typing import Any

from . import grid
from .grid import HEADS, JSDS
from .results import Figure, Found, figure, holm, terms, values

PAGE = Path(__file__).with_name("page.md")
NONE_FOUND = "no difference found"
NAME = re.compile(r"\{\{(.*?)\}\}")
Reference = tuple[str, str, str]  # set, kinds, measures


class Page:
    """A page, or a section of it, with the figures that it names and the tests among them."""

    def __init__(self, found: Found, template: str | None = None) -> None:
        self.text = PAGE.read_text(encoding="utf-8") if template is None else template
        names = dict.fromkeys(reference(name) for name in NAME.findall(self.text))
        self.figures = {name: figure(values(found, *name)) for name in names}
        self.tests = {name: of for name, of in self.figures.items() if is_sum(name)}
        corrected = holm([of.p for of in self.tests.values()])
        self.corrected = dict(zip(self.tests, corrected, strict=True))

    def sign(self, name: Reference) -> str:
        """The verdict: "-", "+", or "0" if no difference is found."""
        if self.corrected[name] >= 0.05:
            return "0"
        return "-" if self.tests[name].mean < 0 else "+"

    def render(self) -> str:
        return NAME.sub(lambda match: self.replacement(match[1]), self.text)

    def replacement(self, name: str) -> str:
        of, form = self.figures[reference(name)], [*name.split(": "), ".3f"][3]
        if "?" in name:
            words = [word.strip() for word in name.partition("?")[2].split("|")]
            return words["-+0".index(self.sign(reference(name)))]
        if not is_sum(reference(name)) or not isfinite(of.mean):
            return show(of, form)
        return show(of, form, "+") + f" ({NONE_FOUND})" * (self.sign(reference(name)) == "0")

    def listing(self) -> str:
        """A table of all figures, with a verdict for each test."""
        lines = ["## figures", "", *table_head(["", "mean", "n", "p", "p, Holm", "verdict"])]
        words = {"-": "below 0", "+": "above 0", "0": NONE_FOUND}
        for name, of in self.figures.items():
            test = [
                f"{p:.1g}" if p >= 1e-12 else "< 1e-12"
                for p in (of.p, self.corrected.get(name, 1.0))
            ]
            test = (
                [*test, words[self.sign(name)]] if is_sum(name) and isfinite(of.mean) else [""] * 3
            )
            lines.append(
                as_row([": ".join(name), with_sd(of, "+" * is_sum(name)), str(of.n), *test])
            )
        return "\n".join(lines)


def section(claim: int) -> str:
    return PAGE.read_text(encoding="utf-8").split("\n## ")[claim + 1]


def kinds_of(text: str) -> set[tuple[str, str]]:
    """The sets and kinds that a text names."""
    names = [reference(name) for name in NAME.findall(text)]
    return {(name, kind) for name, kinds, _ in names for kind, _ in terms(kinds)}


def claim(found: Found, number: int) -> str:
    """The table and the figures of a section, without its sentences."""
    page = Page(found, section(number))
    title, *lines = page.render().splitlines()
    table = [line for line in lines if line.startswith("|")]
    return "\n\n".join(filter(None, [f"# {title}", "\n".join(table), page.listing()]))


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

    >>> show(Figure(1.0, 0.5, 1.5, 1.0, 0.001, 4))
    '1.000 [0.500, 1.500]'
    >>> show(Figure(-0.1, -0.5, 0.3, 1.0, 0.5, 4), ".1f", "+")
    '-0.1 [-0.5, +0.3]'
    """
    if form == "n" or not isfinite(of.mean):
        return str(of.n) if form == "n" else "not measured with every seed"
    alone, form = form in ("mean", "d"), {"mean": ".3f", "d": ",.0f"}.get(form, form)
    mean, low, high = (format(x, sign + form) for x in (of.mean, of.low, of.high))
    return mean if alone or low == high else f"{mean} [{low}, {high}]"


def with_sd(of: Figure, sign: str = "") -> str:
    return show(of, sign=sign) + (f", sd {of.sd:.3f}" if of.sd else "")


def tables(found: Found) -> str:
    """Every set and the pilot as tables of means, intervals and standard deviations, for any
    text."""
    lines = [
        "# The tables",
        "",
        "In a cell: mean over n seeds, 95 % interval, standard deviation (sd).",
    ]
    lines += [
        "Losses are in nats per token. The heads:",
        "",
        *(f"- {x}: {how}" for x, how in HEADS.items()),
    ]
    rates = {
        name: {kind: run.lr for kind, run in kinds.items()} for name, kinds in grid.sets().items()
    }
    for name, kinds in found.items():
        measures = list(dict.fromkeys(m for of in kinds.values() for result in of for m in result))
        lines += ["", f"## {name}", "", *table_head(["", "n", *measures])]
        for kind, of in kinds.items():
            rate = f", rate {rates[name][kind]:g}" if name in rates else ""
            there = {m: [result.get(m, nan) for result in of] for m in measures}
            cells = [
                with_sd(figure(there[m])) if any(m in result for result in of) else ""
                for m in measures
            ]
            lines.append(as_row([kind + rate, str(len(of)), *cells]))
    return "\n".join([*lines, ""])


# Okabe and Ito's colours, for colour-blind readers; the line styles are for printing in grey
STYLES = {
    "0/*/tied": ("#000000", "-", "o", "no layers, tied"),
    "0/*/signs": ("#CC79A7", "-.", "D", "no layers, tied with signs"),
    "0/*/untied": ("#D55E00", "--", "s", "no layers, untied"),
    "1/*/tied": ("#0072B2", ":", "^", "one layer, tied"),
}


def chains_picture(found: Found) -> Any:
    """What the tie costs on a Markov chain, by its asymmetry."""
    drawing, ax = panel("JSD of pairs and reversed pairs, nats", "loss above the chain's own, nats")
    for name, (color, line, marker, label) in STYLES.items():
        kinds = {
            jsd: kind for jsd in JSDS if (kind := name.replace("*", f"{jsd:g}")) in found["chains"]
        }
        jsds, of = (
            [*kinds],
            [figure(values(found, "chains", kind, "excess")) for kind in kinds.values()],
        )
        ax.plot(
            jsds, [f.mean for f in of], line, color=color, marker=marker, ms=4, lw=1.3, label=label
        )
        ax.fill_between(
            jsds, [f.low for f in of], [f.high for f in of], color=color, alpha=0.15, lw=0
        )
    ax.plot(JSDS, JSDS, color="grey", lw=0.8, label="the best symmetric table: loss = JSD")
    drawing.legend(frameon=False, loc="outside right center")
    return drawing


def tenth_picture(found: Found) -> Any:
    """Untied minus tied on a tenth of the text: a point for each seed."""
    drawing, ax = panel(
        "training text: untied minus tied, nats", "held out: untied minus tied, nats"
    )
    x, y = (
        values(found, "models", "tenth/untied - tenth/tied", m) for m in ("training loss", "loss")
    )
    ax.plot(x, y, "o", color="#0072B2")
    ax.axhline(0, color="grey", lw=0.8)
    return drawing


def panel(xlabel: str, ylabel: str) -> tuple[Any, Any]:
    """A drawing with one panel. Needs matplotlib."""
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=(9, 3.4), dpi=100, layout="constrained")
    ax = drawing.subplots()
    ax.set(xlabel=xlabel, ylabel=ylabel)
    ax.spines[["top", "right"]].set_visible(False)
    return drawing, ax


PICTURES = {"chains.png": chains_picture, "tenth.png": tenth_picture}
