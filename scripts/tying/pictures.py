"""The two pictures of the page. They need matplotlib.

starts.png has the loss of tied and untied models by the start of their tables, for each width.
costs.png has the cost of the tie, by width and by depth, when both heads start at 0.02 and when
each has its best start. What is not known yet is left out.
"""

from pathlib import Path
from typing import Any

from .differences import WIDTHS, Figure, all_figures
from .runs import HEADS, Results, start_name

# Okabe and Ito's colours, for colour-blind readers; markers and lines are for printing in grey.
STYLES = {
    "tied": {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    "untied": {"color": "#D55E00", "marker": "s", "linestyle": "--"},
    # Starts, not heads: their colours are neither that of tied nor that of untied.
    "tables and all else at 0.02": {"color": "#7F7F7F", "marker": "s", "linestyle": "--"},
    "each head at its best start": {"color": "#000000", "marker": "o", "linestyle": "-"},
}
TICKS = (0.005, 0.02, 0.05, 0.1, 0.2, 0.4, 1.0)
STARTS = sorted((*TICKS, 0.8))
# The label, and the names of the figures at 0.02 and at the best start. Those of one layer at 0.02
# are of earlier runs with 12 seeds. The best start is that of one layer, 512 tokens and 800 steps.
BARS = (
    ("one layer, width 16", "10:1,16,cost", "w16-best:cost"),
    ("one layer, width 32", "10:1,32,cost", "w32-best:cost"),
    ("one layer, width 64", "10:1,64,cost", "w64-best:cost"),
    ("one layer, width 128", "10:1,128,cost", "w128-best:cost"),
    ("2 layers, width 64", "2-layers-0.02:cost", "2-layers:cost"),
    ("4 layers, width 64", "4-layers-0.02:cost", "4-layers:cost"),
    ("2 layers, width 128", "", "2-layers-w128:cost"),
    ("one layer, width 64, 2,048 tokens", "", "2048-tokens:cost"),
    ("one layer, width 64, 1,600 steps", "6:longer", "1600-steps:cost"),
    ("one layer, width 64, 3,200 steps", "", "3200-steps:cost"),
)


def draw_all(results: Results, directory: Path) -> None:
    figures = all_figures(results)
    starts_picture(figures).savefig(directory / "starts.png")
    costs_picture(figures).savefig(directory / "costs.png")


def starts_picture(figures: dict[str, Figure]) -> Any:
    """A panel for each width of which a start is known: the loss by the start of the tables."""
    known: dict[tuple[int, str], list[float]] = {}
    for width in WIDTHS:
        for head in HEADS:
            names = {start: f"{start_name(width, start)}:{head}" for start in STARTS}
            known[width, head] = [start for start in STARTS if names[start] in figures]
    widths = [width for width in WIDTHS if known[width, "tied"] or known[width, "untied"]]
    drawing, panels = new_drawing(len(widths), width=1.5 + 2.5 * len(widths), height=3.2)
    for width, panel in zip(widths, panels, strict=True):
        for head in HEADS:
            x = known[width, head]
            draw(panel, x, [figures[f"{start_name(width, start)}:{head}"] for start in x], head)
        panel.set_xscale("log")
        panel.set_xticks(TICKS, [f"{start:g}" for start in TICKS])
        panel.minorticks_off()
        panel.set_title(f"width {width}", fontsize=10)
    drawing.supxlabel("standard deviation of the tables' start", fontsize=10)
    panels[0].set_ylabel("held-out loss, nats per token")
    panels[0].legend(frameon=False)
    return drawing


def costs_picture(figures: dict[str, Figure]) -> Any:
    """The known costs of the tie, from top to bottom."""
    bars = [bar for bar in BARS if bar[1] in figures or bar[2] in figures]
    drawing, (panel,) = new_drawing(1, width=8, height=1 + 0.45 * len(bars))
    # column: of BARS, with the figure's name. Both figures of a row are drawn, one below the other.
    for column, shift, label in (
        (1, -0.1, "tables and all else at 0.02"),
        (2, 0.1, "each head at its best start"),
    ):
        rows = [row for row, bar in enumerate(bars) if bar[column] in figures]
        if not rows:
            continue
        costs = [figures[bars[row][column]] for row in rows]
        places = [row + shift for row in rows]  # a little above or below the row
        style = {**STYLES[label], "linestyle": "none"}
        means = [cost.mean for cost in costs]
        panel.errorbar(means, places, xerr=lengths(costs), label=label, capsize=2, **style)
    panel.set_yticks(range(len(bars)), [bar[0] for bar in bars])
    panel.set_ylim(len(bars) - 0.5, -0.5)  # row 0 is at the top
    panel.axvline(0, color="grey", lw=0.8)
    panel.set_xlabel("cost of the tie, nats per token (to the right of 0, tying is worse)")
    drawing.legend(frameon=False, loc="outside lower center", ncols=2)
    return drawing


def draw(panel: Any, x: list[float], figures: list[Figure], head: str) -> None:
    """A curve of the means with their intervals."""
    means = [figure.mean for figure in figures]
    panel.errorbar(x, means, yerr=lengths(figures), label=head, capsize=2, ms=4, **STYLES[head])


def lengths(figures: list[Figure]) -> list[list[float]]:
    """How far the intervals go down and up from the means."""
    below = [figure.mean - figure.interval[0] for figure in figures]
    above = [figure.interval[1] - figure.mean for figure in figures]
    return [below, above]


def new_drawing(count: int, width: float, height: float) -> tuple[Any, Any]:
    """A drawing of this size in inches, and its panels, which have no upper and no right edge."""
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=(width, height), dpi=100, layout="constrained")
    panels = drawing.subplots(1, count, squeeze=False)[0]
    for panel in panels:
        panel.spines[["top", "right"]].set_visible(False)
    return drawing, panels
