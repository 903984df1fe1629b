"""The page: page.md with the figures of results.json in the place of their names; and its pictures.

A name is in double braces, its parts are separated by ": ":

    {{heads: 0/untied: loss}}                 set, kind, measure: 3.012 [2.998, 3.026]
    {{heads: 0/untied - 0/tied: loss}}        a difference has a sign, and words if its interval holds 0
    {{heads: 0/untied - 0/tied: loss@0.1}}    on the way, after this share of the steps
    {{heads: 0/tied: loss: mean}}             the mean alone; any other format, as .1f, is that of the numbers
    {{heads: 0/untied - 0/tied: loss? lower | higher | not different}}    words by the sign
    {{header: layers: heads: */tied}}         a table's head, with a column for each kind that fits
    {{row: tied: heads: */tied: loss}}        a row with these columns
    {{value: text/jsd}}                       any other number, by its path

$usual is the usual number of steps and $long the most steps; $low and $high are the least and the highest JSD
of the chains; $std is the usual standard deviation of a random W_U and $wide the largest; $slow and $fast are
the lowest and the highest learning rate without layers.
"""

import json
import re
from io import BytesIO
from pathlib import Path
from typing import Any

from .results import Figure, Line, names_in, show, sign

NOT_THE_WHOLE = (
    "These are results of a part of the grid, with fewer seeds. They are not for citation. The words around "
    "them are about the whole grid. There was no pilot: the learning rates are the published ones."
)
PAGE = Path(__file__).with_name("page.md")
DIFFERENCES = (".gain", ".over_uniform", ".over_unigram", "out_minus_in")  # measures that are differences


def as_json(found: Line) -> str:
    """results.json, with each figure on one line."""
    text = json.dumps(found, indent=1, ensure_ascii=False)
    return re.sub(r"\[[^][{}]*\]", lambda match: " ".join(match.group().split()), text) + "\n"


# The figures


def tables(found: Line) -> str:
    """Every set as a table of losses, and of differences of losses: all that can be said of another text."""
    lines = ["The loss of each kind of model in nats per held-out token, with its 95 % interval.", ""]
    for name, of in found["sets"].items():
        measure = "ratio" if name == "time" else "loss"
        rows = {**of["kinds"], **of["differences"]}
        if not rows:
            continue
        lines += [f"## {name}", "", of["question"], "", table_row(["", measure]), table_row(["---"] * 2)]
        for kind, numbers in rows.items():
            figure = numbers["measures"].get(measure)
            lines.append(table_row([kind, show(figure, kind in of["differences"]) if figure else "diverged"]))
        lines.append("")
    return "\n".join(lines)


def render(found: Line, page: str | None = None) -> str:
    """The page with every name replaced. In the results of the whole grid, every name must be there."""
    page = PAGE.read_text(encoding="utf-8") if page is None else page
    for name, value in names_in(found["plan"]).items():
        page = page.replace(f"${name}", value)
    columns: list[str] = []  # of the table at hand
    page = re.sub(
        r"\{\{value: ([^{}]*)\}\}", lambda match: replacement(found, f"value: {match[1]}", columns), page
    )
    page = re.sub(r"\{\{(.*?)\}\}", lambda match: replacement(found, match[1], columns), page)
    return page if found["plan"]["name"] == "whole" else f"*{NOT_THE_WHOLE}*\n\n{page}"


def replacement(found: Line, name: str, columns: list[str]) -> str:
    """What the page has in the place of a name. `columns` are those of the last header."""
    first, *parts = (part.strip() for part in name.split(": "))
    try:
        if first == "value":
            return path_value(found, *parts)
        if first == "header":
            title, where, what = parts
            columns[:] = fitting(found, where, what)
            return table_row([title, *columns]) + "\n" + table_row(["---"] * (1 + len(columns)))
        if first == "row":
            title, where, what, *rest = parts
            kinds = fitting(found, where, what)
            return table_row(
                [title, *(cell(found, where, kinds[c], *rest) if c in kinds else "" for c in columns)]
            )
        return cell(found, first, *parts)
    except (KeyError, ValueError, TypeError) as error:
        if found["plan"]["name"] == "whole":
            raise KeyError(f"{{{{{name}}}}} is not in the results") from error
        return "-"


def fitting(found: Line, where: str, what: str) -> dict[str, str]:
    """The kinds, or differences, that fit a pattern with *, by what they have in the place of the *."""
    kinds = {}
    for kind in found["sets"][where]["differences" if " - " in what else "kinds"]:
        place = re.match(f"{re.escape(what.partition('*')[0])}(.*?)(/| - |$)", kind)
        if place and kind == what.replace("*", place[1]):
            kinds[place[1]] = kind
    if not kinds:
        raise KeyError(what)
    return kinds


def table_row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def cell(found: Line, where: str, what: str, measure: str, form: str = ".3f") -> str:
    """A figure, or words by its sign."""
    measure, _, words = measure.partition("?")
    figure = figure_of(found, where, what, measure)
    if words:
        lower, higher, same = (word.strip() for word in words.split("|"))
        return {"-": lower, "+": higher, "0": same}[sign(figure)]
    signed = " - " in what or measure.partition("@")[0].endswith(DIFFERENCES)
    return show(figure, signed, form)


def figure_of(found: Line, where: str, what: str, measure: str) -> Figure:
    of = found["sets"][where]["differences" if " - " in what else "kinds"][what]
    measure, at, share = measure.partition("@")
    if not at:
        return of["measures"][measure]
    steps = of["course"]["steps"]
    return of["course"][measure][steps.index(round(float(share) * steps[-1]))]


def path_value(found: Line, path: str, form: str = "") -> str:
    value: Any = found
    for key in path.split("/"):
        value = value[key]
    if isinstance(value, (list, tuple)):
        return ", ".join(format(x, form or "g") for x in value)
    if isinstance(value, str):
        return value
    return format(value, form or (",d" if isinstance(value, int) else ".3f"))


# The pictures

# Okabe and Ito's colours, for colour-blind readers; the line styles are for printing in grey
COLORS = ("#000000", "#0072B2", "#CC79A7", "#009E73", "#D55E00")
STYLES: dict[str, dict[str, Any]] = {
    "tied": {"color": "#000000", "linestyle": "-", "marker": "o"},
    "untied": {"color": "#D55E00", "linestyle": "--", "marker": "s"},
    "zeros": {"color": "#009E73", "linestyle": ":", "marker": "^"},
    "copy": {"color": "#0072B2", "linestyle": "-.", "marker": "v"},
    "signs": {"color": "#CC79A7", "linestyle": "-.", "marker": "D"},
}
LABELS = {"signs": "tied with signs"}  # the other heads are labelled by their names


def pictures(found: Line) -> dict[str, bytes]:
    """The pictures by file name. Needs matplotlib."""
    from matplotlib import rc_context

    with rc_context({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False}):
        drawn = {"chains.png": chains, "rates.png": rates, "course.png": course, "small.png": small}
        return {name: png(draw(found)) for name, draw in drawn.items()}


def figure(columns: int, rows: int = 1) -> tuple[Any, Any]:
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=(9, 0.5 + 2.6 * rows), dpi=100, layout="constrained")
    return drawing, drawing.subplots(rows, columns, squeeze=False)


def png(drawing: Any) -> bytes:
    """A PNG file with 256 colours, which makes it three times smaller."""
    from PIL import Image

    drawing.savefig(buffer := BytesIO())
    Image.open(buffer).convert("RGB").quantize(256).save(small := BytesIO(), "png", optimize=True)
    return small.getvalue()


def draw(ax: Any, x: list[float], figures: list[Figure], **style: Any) -> None:
    """The means as a line with marks, the intervals as a band."""
    ax.plot(x, [f[0] for f in figures], ms=3, lw=1.2, **style)
    if all(f[1] is not None for f in figures):
        ax.fill_between(
            x, [f[1] for f in figures], [f[2] for f in figures], color=style["color"], alpha=0.15, lw=0
        )


def legend_above(drawing: Any, ax: Any) -> None:
    """The legend of one panel, above all of them, where it covers no line."""
    handles, labels = ax.get_legend_handles_labels()
    drawing.legend(
        handles, labels, frameon=False, loc="outside upper center", ncols=3 if len(labels) > 5 else 5
    )


def depth(layers: str) -> str:
    return {"0": "no layers", "1": "one layer", "4": "four layers"}.get(layers, f"{layers} layers")


def chains(found: Line) -> Any:
    """What the tie costs on a Markov chain, by its asymmetry."""
    drawing, axes = figure(2)
    for ax, layers in zip(axes[0], ("0", "1"), strict=True):
        names = list(fitting(found, "chains", f"{layers}/*/untied"))
        jsds = list(map(float, names))
        for head in ("tied", "signs", "untied") if layers == "0" else ("tied", "untied"):
            figures = [figure_of(found, "chains", f"{layers}/{name}/{head}", "excess") for name in names]
            draw(ax, jsds, figures, label=LABELS.get(head, head), **STYLES[head])
        if layers == "0":
            ends = [0, jsds[-1]]
            ax.plot(ends, ends, color="grey", lw=0.8, label="loss = JSD: the best symmetric table")
        ax.set_title(depth(layers))
        ax.set_xlabel("JSD of the chain's pairs and their reverse, nats (0: reversible)")
    axes[0][0].set_ylabel("loss above the chain's own, nats")
    axes[0][0].legend(frameon=False, loc="upper center")
    return drawing


KINDS = {  # of the pilot
    "tied": "tied",
    "signs": "tied, gains signs",
    "untied": "random",
    "copy": "copy",
    "zeros": "zeros",
}


def rates(found: Line) -> Any:
    """The pilot: held-out loss by learning rate."""
    layers = found["plan"]["layers"]
    drawing, axes = figure(len(layers))
    for ax, n in zip(axes[0], layers, strict=True):
        tried: set[float] = set()
        for head, name in KINDS.items():
            kind = found["rates"].get(f"text, {n} layers, {name}")
            points = {float(rate): loss for rate, loss in kind["losses"].items() if loss} if kind else {}
            if points:
                tried |= set(points)
                style = {"label": LABELS.get(head, head), **STYLES[head]}
                ax.plot(list(points), list(points.values()), ms=3, lw=1.2, **style)
        ax.set_xscale("log")
        ticks = sorted(tried)[::2]
        ax.set_xticks(ticks, [f"{rate:g}" for rate in ticks])
        ax.minorticks_off()
        ax.set_title(depth(str(n)))
        ax.set_xlabel("learning rate")
    axes[0][0].set_ylabel("held-out loss, nats per token")
    legend_above(drawing, axes[0][min(1, len(layers) - 1)])
    return drawing


def course(found: Line) -> Any:
    """During training: the gradients of a tied matrix, ln_f's signs, self-prediction, the rank, the loss."""
    drawing, axes = figure(3, 2)
    norms, cosine, gains, itself, rank, loss = axes.flat
    titles = {
        norms: "tied: norms of the gradients, head / embedding",
        cosine: "tied: cosine of the two gradients",
        gains: "tied: share of ln_f's gains below 0",
        itself: "share of tokens that predict themselves",
        rank: "one layer: effective rank of W_U, by its start",
        loss: "held-out loss: untied - tied, nats",
    }
    for ax, title in titles.items():
        ax.set_title(title, fontsize=8)
        ax.set_xlabel("step")
    sets = found["sets"]
    kinds, differences = sets["heads"]["kinds"], sets["heads"]["differences"]
    for n, color in zip(found["plan"]["layers"], COLORS, strict=False):
        of = kinds[f"{n}/tied"]["course"]
        style = {"color": color, "marker": "o", "label": depth(str(n))}
        ratios = [h[0] / e[0] for h, e in zip(of["head"], of["embed"], strict=True)]
        norms.plot(of["steps"], ratios, ms=3, lw=1.2, **style)
        draw(cosine, of["steps"], of["cosine"], **style)
        draw(gains, of["steps"], of["negative_gains"], **style)
        draw(itself, of["steps"], of["self"], **style)
        untied = kinds[f"{n}/untied"]["course"]["self"]
        draw(itself, of["steps"], untied, color=color, marker="s", linestyle="--")
        difference = differences[f"{n}/untied - {n}/tied"]["course"]["loss"]
        draw(loss, of["steps"], difference, **style)
    for (std, kind), color in zip(sets["starts"]["kinds"].items(), COLORS, strict=False):
        of = kind["course"]
        draw(rank, of["steps"], of["rank_U"], label=std, color=color, marker="o")
    norms.set_yscale("log")
    norms.set_yticks(ticks := [1, 2, 5, 10, 20, 50], list(map(str, ticks)))
    norms.minorticks_off()
    norms.legend(frameon=False, loc="upper right")
    rank.legend(frameon=False, loc="lower right")
    loss.axhline(0, color="grey", lw=0.8)
    return drawing


def small(found: Line) -> Any:
    """A tenth of the text: held-out and training loss by the length of the training."""
    layers = found["plan"]["small_layers"]
    drawing, axes = figure(len(layers))
    steps = found["plan"]["small_steps"]
    for ax, n in zip(axes[0], layers, strict=True):
        for measure, alpha in (("loss", 1.0), ("train", 0.4)):
            for head in ("tied", "signs", "untied"):
                figures = [figure_of(found, "small", f"{n}/{length}/{head}", measure) for length in steps]
                label = f"{LABELS.get(head, head)}, {'held out' if measure == 'loss' else 'training text'}"
                draw(ax, steps, figures, label=label, alpha=alpha, **STYLES[head])
        ax.set_xscale("log")
        ax.set_xticks(steps, list(map(str, steps)))
        ax.minorticks_off()
        ax.set_title(f"a tenth of the text, {depth(str(n))}")
        ax.set_xlabel("steps of the whole training, each with its own schedule")
    axes[0][0].set_ylabel("loss, nats per token")
    legend_above(drawing, axes[0][0])
    return drawing
