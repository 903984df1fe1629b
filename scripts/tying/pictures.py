"""The pictures of the page. They need matplotlib.

The cost of the tie is the held-out loss of a tied model minus that of an untied one. BARS are the
pairs of models whose costs are drawn; numbers["NAME"] is the cost of the bar NAME. "with signs" is
a tied model of which half of ln_f's gains start at -1; numbers["NAME, signs"] is its cost. A chain
is a Markov chain whose asymmetry was chosen; its JSD, in nats, is what the asymmetry costs a
symmetric table of scores. The excess is the loss above that of the chain's own probabilities.
"""

from dataclasses import dataclass
from typing import Any

from .figures import Numbers, Runs
from .first_screen import BARS, bar_costs
from .settings import JSDS

# Okabe and Ito's colours, for colour-blind readers; markers and lines are for printing in grey.
BLACK = "#000000"
BLUE = "#0072B2"
ORANGE = "#D55E00"
PINK = "#CC79A7"
# A row of the picture of costs has the height 1, and two bars.
BAR_HEIGHT = 0.34
BAR_OFFSET = 0.18  # of the middle of a bar from the middle of its row


@dataclass(frozen=True)
class Curve:
    """A kind of model that is trained on chains with several JSDs."""

    label: str
    name: str  # the name of the model in the table of settings.py, with {jsd:g} for the JSD
    head: str
    color: str
    line: str
    marker: str
    jsds: tuple[float, ...] = JSDS  # of the chains that it is trained on


CURVES = (
    Curve("no layers, tied", "chain {jsd:g}", "tied", color=BLACK, line="-", marker="o"),
    Curve(
        "no layers, tied with signs", "chain {jsd:g}", "signs", color=PINK, line="-.", marker="D"
    ),
    Curve("no layers, untied", "chain {jsd:g}", "untied", color=ORANGE, line="--", marker="s"),
    Curve(
        "one layer, tied",
        "chain {jsd:g}, one layer",
        "tied",
        color=BLUE,
        line=":",
        marker="^",
        jsds=(JSDS[0], JSDS[-1]),
    ),
)


def costs_picture(runs: Runs) -> Any:
    """The first screen's bars: the cost of the tie, and that of tied with signs under it."""
    numbers = bar_costs(runs)
    drawing, ax = panel(width=9, height=1 + 0.36 * len(BARS))  # 0.36 inches for a row
    draw_bars(ax, numbers, suffix="", offset=-BAR_OFFSET, color=BLUE, label="tied")
    draw_bars(ax, numbers, suffix=", signs", offset=BAR_OFFSET, color=PINK, label="tied with signs")
    ax.set_yticks(range(len(BARS)), [bar.label for bar in BARS])
    ax.invert_yaxis()  # row 0 is at the top
    ax.axvline(0, color="grey", lw=0.8)
    ax.set_xlabel("cost of the tie, nats per token (to the right of 0, tying is worse)")
    if any(figure.is_known for figure in numbers.values()):
        ax.legend(frameon=False, loc="lower right")
    for row, bar in enumerate(BARS):
        if not numbers[bar.name].is_known:
            # The words take the place of the upper bar. 0.002 nats are a gap to the line at 0.
            ax.text(0.002, row - BAR_OFFSET, "not known yet", va="center", color="grey", fontsize=8)
    return drawing


def draw_bars(
    ax: Any, numbers: Numbers, suffix: str, offset: float, color: str, label: str
) -> None:
    """Draw a bar and its interval for each known cost: numbers["NAME" + suffix] for the bar NAME.

    The middle of a bar is at the number of its row plus `offset`.
    """
    for row, bar in enumerate(BARS):
        figure = numbers.get(bar.name + suffix)
        if figure is None or not figure.is_known:
            continue
        # How far the interval goes to the left and to the right of the mean.
        lengths = [[figure.mean - figure.low], [figure.high - figure.mean]]
        ax.barh(row + offset, figure.mean, height=BAR_HEIGHT, color=color, label=label)
        ax.errorbar(figure.mean, row + offset, xerr=lengths, color="black", lw=1, capsize=2)
        # The legend names the first bar for all: matplotlib leaves out labels that begin with "_".
        label = "_"


def chains_picture(runs: Runs) -> Any:
    """What the tie costs on a Markov chain, by its asymmetry."""
    drawing, ax = panel(width=9, height=3.4)
    ax.set_xlabel("JSD of pairs and reversed pairs, nats")
    ax.set_ylabel("loss above the chain's own, nats")
    for curve in CURVES:
        figures = []
        for jsd in curve.jsds:
            model = curve.name.format(jsd=jsd)
            figures.append(runs.measure(model, curve.head, "excess"))
        means = [figure.mean for figure in figures]
        ax.plot(
            curve.jsds,
            means,
            linestyle=curve.line,
            color=curve.color,
            marker=curve.marker,
            markersize=4,
            linewidth=1.3,
            label=curve.label,
        )
        # The intervals are a band around the curve.
        lows = [figure.low for figure in figures]
        highs = [figure.high for figure in figures]
        ax.fill_between(curve.jsds, lows, highs, color=curve.color, alpha=0.15, lw=0)
    # The excess of the best symmetric table is the JSD itself.
    ax.plot(JSDS, JSDS, color="grey", lw=0.8, label="the best symmetric table: loss = JSD")
    drawing.legend(frameon=False, loc="outside right center")
    return drawing


def panel(width: float, height: float) -> tuple[Any, Any]:
    """A drawing of this size in inches, and its one panel.

    The panel has no upper and no right edge.
    """
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=(width, height), dpi=100, layout="constrained")
    ax = drawing.subplots()
    ax.spines[["top", "right"]].set_visible(False)
    return drawing, ax


PICTURES = {"costs.png": costs_picture, "chains.png": chains_picture}
