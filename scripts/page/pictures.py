"""Fill the article with figures and pictures, so that it shows them without JavaScript.

index.html has empty elements, and `filled` writes into them:

    data-figure="NAME"    a text of figures.json
    data-value="NAME"     a text of figures.json, as the value of an input
    data-words="NAME"     a list of tokens
    data-picture="NAME"   a picture

Pictures are SVG without style attributes, which the page's Content-Security-Policy refuses. Two of
them are drawn again by JavaScript when the reader changes something (drag.js, words.js).
"""

import math
import re
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

import numpy as np

Figures = dict[str, Any]

MINUS = "\N{MINUS SIGN}"
TIMES = "\N{MULTIPLICATION SIGN}"
PRIME = "\N{PRIME}"  # of the hollow arrow of a word
UNIT = 90  # of a plane of arrows: the length of an arrow of 1
GAP = 20  # from the end of an arrow to its name
RADIUS = {"arrow": 10, "hollow": 15}  # of the end of an arrow; a filled one fits into a hollow one
NEAREST = 1e-3  # two scores that differ by less are shown as equal
STOPS = {
    "raw": ("The table alone", "W_E W_Eᵀ"),
    "normed": ("With the last layer norm, which gives each row one length", "ln_f(W_E) W_Eᵀ"),
    "mlp0": ("With the first MLP", "ln_f(W_E + MLP(W_E)) W_Eᵀ"),
    "model": ("The whole model", "all layers"),
}
MEASURES = (
    ("asymmetry", "asymmetry: 0 is a mirror image, 1.41 unrelated"),
    ("self", "tokens that predict themselves"),
    ("nats", "nats from the bigrams of the text"),
)
# Where a word is typed. The page has several, and article.js keeps one text in all.
FIELD = (
    '<label>Your word: <input class="word" value="my" maxlength="80" autocomplete="off" '
    'autocapitalize="none" spellcheck="false" enterkeyhint="done"></label>'
)
STARTS = {  # of a model's weights: a class of the style sheet, and the legend
    "0.02": ("small-start", "all weights start at random, with a standard deviation of 0.02"),
    "best": ("best", "the tables of each model at their best start"),
}


def filled(page: str, figures: Figures) -> str:
    """The page with all figures, lists and pictures in it."""
    pictures = all_pictures(figures)

    def picture(name: str) -> str:
        return pictures[name]

    def figure(name: str) -> str:
        return escape(figures["texts"][name])

    def words(name: str) -> str:
        # Without ln_f, as on the path "raw", the scale of the logits means nothing.
        return word_items(figures["words"][name], with_probability=not name.endswith(".raw"))

    # A picture has empty elements for figures and lists, so pictures come first.
    page = fill("picture", picture, page)
    page = fill("figure", figure, page)
    page = fill("words", words, page)
    return re.sub(r'data-value="([^"]*)"', lambda match: f'value="{figure(match[1])}"', page)


def fill(kind: str, content: Callable[[str], str], page: str) -> str:
    """The page, in which each empty element with data-KIND="NAME" has content(NAME)."""
    empty_element = rf'(<(\w+)[^>]* data-{kind}="([^"]*)"[^>]*>)(</\2>)'

    def filled_element(match: re.Match[str]) -> str:
        start_tag, _, name, end_tag = match.groups()
        return start_tag + content(name) + end_tag

    return re.sub(empty_element, filled_element, page)


def all_pictures(figures: Figures) -> dict[str, str]:
    """The content of each data-picture, by its name."""
    toy = figures["toy"]
    return {
        "field": FIELD,
        "tied-plane": plane([(toy["tied"], "arrow")], toy["words"]),
        "untied-plane": plane([(toy["untied"], "hollow"), (toy["E"], "arrow")], toy["words"]),
        "tied-pairs": pairs(toy["tied"], toy["tied"], toy["words"]),
        "untied-pairs": pairs(toy["E"], toy["untied"], toy["words"]),
        "rows.tied": rows(figures["rows"], "tied"),
        "rows.untied": rows(figures["rows"], "untied"),
        "streams": streams(figures),
        "stops": "".join(stop(place, figures) for place in range(len(STOPS))),
        "costs": costs(figures["costs"]),
        "shares": bars(figures["shares"]),
        "knows": bars(figures["knows"]),
        "mlps": bars(figures["mlps"]),
        "one-hot": one_hot(toy["words"], toy["tied"]),
        "bigrams": bigrams(toy["words"], toy["text"]),
    }


# Lists of words


def word_items(words: Sequence[tuple[str, float, bool]], with_probability: bool) -> str:
    """The items of a list of tokens, each with a sign if it really follows.

    words.js changes them for the reader's word, so an item without a sign has a place for it.
    """
    items = []
    for token, probability, follows in words:
        sign = "✓" if follows else ""
        item = f'<b>{escape(shown(token))}</b> <i class="follows">{sign}</i>'
        if with_probability:
            item += f" <span>{escape(percent(probability))}</span>{bar(100 * probability)}"
        items.append(f"<li>{item}</li>")
    return "".join(items)


def shown(token: str) -> str:
    """A token for a reader: a piece that is glued to the word before has a hyphen."""
    if token == "\n":
        return "line break"
    if token[:1].islower():
        return f"-{token}"
    return token.removeprefix(" ") or "space"


def percent(p: float) -> str:
    """A share in percent, with a digit for tenths below 1 %, as the lists of words.js have it."""
    if p >= 0.0095:
        return f"{100 * p:.0f} %"
    if p >= 0.0005:
        return f"{100 * p:.1f} %"
    return "<0.1 %" if p > 0 else "0 %"


def bar(length: float) -> str:
    """A bar with a length from 0 to 100. The style sheet stretches it over its place."""
    return (
        '<svg class="bar" viewBox="0 0 100 1" preserveAspectRatio="none" aria-hidden="true">'
        f'<rect width="{length:.1f}" height="1"/></svg>'
    )


# Three words: reading one, and a text of them

BOX = 28  # the height of a cell, and the width of one of a one-hot vector
NUMBER = 42  # the width of a cell with a number
READ = 1  # the word that is read


def one_hot(words: Sequence[str], table: Sequence[Sequence[float]]) -> str:
    """A one-hot vector times a table, which is a row of the table."""
    parts = ["<title>A one-hot vector times the table is the row of the token</title>"]

    def cells(left: int, top: int, width: int, texts: Sequence[str], kind: str) -> None:
        for i, text in enumerate(texts):
            x = left + i * width
            shape = f'x="{x}" y="{top}" width="{width}" height="{BOX}"'
            parts.append(f'<rect class="{kind}" {shape}/>')
            parts.append(f'<text class="middle" x="{x + width / 2:g}" y="{top + 19}">{text}</text>')

    def sign(x: int, text: str) -> None:
        parts.append(f'<text class="middle" x="{x}" y="{middle + 19}">{text}</text>')

    first = 18  # the top of the table
    middle = first + READ * BOX  # the top of the row that is read
    # Each turn adds a row of the table, and a cell of the one-hot vector, which lies to the left of
    # the row that is read.
    for i, word in enumerate(words):
        kind = "read" if i == READ else "cell"
        top = first + i * BOX
        cells(i * BOX, middle, BOX, ["1" if i == READ else "0"], kind)
        parts.append(f'<text class="small end" x="160" y="{top + 19}">{word}</text>')
        cells(166, top, NUMBER, [decimal(x) for x in table[i]], kind)
    sign(100, TIMES)
    sign(263, "=")
    cells(275, middle, NUMBER, [decimal(x) for x in table[READ]], "read")
    # x of their middles, below the vector, the table and the row
    names = ((42, "one-hot"), (208, "table"), (317, "its row"))
    for x, name in names:
        parts.append(f'<text class="small middle" x="{x}" y="{first + 3 * BOX + 20}">{name}</text>')
    return "".join(parts)


def bigrams(words: Sequence[str], text: Sequence[Sequence[float]]) -> str:
    """Rows of a table: the share with which each word (a column) follows each word (a row)."""
    head = "".join(f'<th scope="col">{word}</th>' for word in words)
    lines = [f"<tr><td></td>{head}</tr>"]
    for word, shares in zip(words, text, strict=True):
        cells = "".join(f"<td>{percent(share)}</td>" for share in shares)
        lines.append(f'<tr><th scope="row">{word}</th>{cells}</tr>')
    return "".join(lines)


# Arrows


def plane(sets: Sequence[tuple[Sequence[Sequence[float]], str]], words: Sequence[str]) -> str:
    """Arrows from the origin: each set has an arrow for each word, and a kind of RADIUS."""
    parts = [f'<circle class="ring" r="{UNIT * r:g}"/>' for r in (0.5, 1, 1.5)]
    for arrows, kind in sets:
        for word, (x, y) in zip(words, arrows, strict=True):
            left = round(UNIT * x, 1)
            top = round(-UNIT * y, 1)
            # The name is on the outer side of the arrow's end, and lower at a hollow arrow.
            side, text_x = "start", left + GAP
            if x < 0:
                side, text_x = "end", left - GAP
            name, text_y = word, top - 6
            if kind == "hollow":
                name, text_y = word + PRIME, top + 18
            parts.append(
                f'<g class="{kind}"><line x2="{left:g}" y2="{top:g}"/>'
                f'<circle cx="{left:g}" cy="{top:g}" r="{RADIUS[kind]}"/>'
                f'<text class="{side}" x="{text_x:g}" y="{text_y:g}">{name}</text></g>'
            )
    return "".join(parts)


def pairs(
    read: Sequence[Sequence[float]], written: Sequence[Sequence[float]], words: Sequence[str]
) -> str:
    """Rows of a table: the score of each pair of words in either order, as drag.js writes."""
    lines = []
    for i, word in enumerate(words):
        j = (i + 1) % len(words)
        score = float(np.dot(read[i], written[j]))
        mirrored = float(np.dot(read[j], written[i]))
        sign = "=" if abs(score - mirrored) < NEAREST else "≠"
        lines.append(
            f'<tr><td>{word} {words[j]}</td><td class="number">{decimal(score)}</td>'
            f'<td class="sign">{sign}</td>'
            f'<td class="number">{decimal(mirrored)}</td><td>{words[j]} {word}</td></tr>'
        )
    return "".join(lines)


def decimal(x: float, digits: int = 2) -> str:
    """A rounded number with a real minus sign, and without a negative zero."""
    rounded = round(x, digits) + 0.0
    return f"{rounded:.{digits}f}".replace("-", MINUS)


# Dots: how many tokens can follow

LEFT, RIGHT, TOP, BOTTOM = 44, 352, 14, 246  # of the axes
MOST = 400  # tokens, at the end of an axis
TICKS = (1, 3, 10, 30, 100, 300)
NAMED = (("RICHARD", "sharp", "start"), ("the", "flat", "end"))  # name, token of `part`, anchor


def across(number: float) -> float:
    return round(LEFT + (RIGHT - LEFT) * math.log(max(1.0, number)) / math.log(MOST), 1)


def upward(number: float) -> float:
    return round(BOTTOM - (BOTTOM - TOP) * math.log(max(1.0, number)) / math.log(MOST), 1)


def rows(part: Figures, head: str) -> str:
    """A dot for each frequent token, on logarithmic axes."""
    lines = []
    # The lines of the axes, and their numbers
    for tick in TICKS:
        x, y = across(tick), upward(tick)
        lines.append(f'<path class="grid" d="M{x} {TOP}V{BOTTOM}M{LEFT} {y}H{RIGHT}"/>')
        lines.append(f'<text class="middle small" x="{x}" y="{BOTTOM + 16}">{tick}</text>')
        lines.append(f'<text class="end small" x="{LEFT - 6}" y="{y + 4}">{tick}</text>')
    dots = [  # in whole numbers of half a unit, which are short
        f"M{2 * across(by_text):.0f} {2 * upward(by_table):.0f}z"
        for by_text, by_table in zip(part["text"], part[head], strict=True)
    ]
    lines.append(f'<path class="dots" transform="scale(.5)" d="{"".join(dots)}"/>')
    # The tokens that have a name in the picture
    for name, token, side in NAMED:
        place = part["ids"].index(part[token])
        x = across(part["text"][place])
        y = upward(part[head][place])
        gap = 8 if side == "start" else -8
        lines.append(f'<circle class="ringed" cx="{x}" cy="{y}" r="5"/>')
        lines.append(f'<text class="{side} strong" x="{x + gap}" y="{y - 7}">{name}</text>')
    lines.append(
        f'<text class="middle small" x="{(LEFT + RIGHT) / 2}" y="{BOTTOM + 36}">'
        "tokens that follow, by the text</text>"
        f'<text class="middle small" transform="translate(11 {(TOP + BOTTOM) / 2}) rotate(-90)">'
        "by the table</text>"
    )
    label = f"A dot for each token: tokens that follow by the text, and by the {head} table"
    axes = f'<g class="axes" data-axes="{LEFT} {RIGHT} {TOP} {BOTTOM} {MOST}"/>'  # for rows.js
    return f"<title>{label}</title>{axes}{''.join(lines)}"


# The residual stream

STREAMS = {"tied": "Tied: one table reads and writes", "untied": "Untied: a second table writes"}


def streams(figures: Figures) -> str:
    """For each model, what it would write after each layer. The lists are filled later."""
    columns = []
    for head, title in STREAMS.items():
        names = [name for name in figures["words"] if name.startswith(f"{head}.stream.")]
        items = []
        for stop, name in enumerate(names):
            text = "its row of the table" if stop == 0 else f"layer {stop} added"
            items.append(f'<li><p>{text}</p><ol data-words="{name}"></ol></li>')
        columns.append(
            f'<div class="{head}"><h3>{title}</h3>'
            f'<ol class="stream {head}">{"".join(items)}</ol></div>'
        )
    return "".join(columns)


# Four stops

CELL = 26
MARGIN = 72  # for the words beside and above the cells


def stop(place: int, figures: Figures) -> str:
    """One of the four stops, as an item of a list. Its figures and its list are filled later."""
    part = figures["stops"][place]
    path = part["path"]
    title, formula = STOPS[path]
    measures = "".join(
        f'<div><dt>{text}</dt><dd data-figure="stop.{path}.{measure}"></dd></div>'
        for measure, text in MEASURES
    )
    return (
        f'<li id="stop-{place + 1}"><h3>{title} <small>{formula}</small></h3>'
        f"{heat(part['shades'], figures['pairs'], title)}"
        f'<div class="after"><p class="note">after <b class="own">my</b>:</p>'
        f'<ol data-words="tied.{path}"></ol></div>'
        f"<dl>{measures}</dl></li>"
    )


def heat(shades: Sequence[Sequence[float]], words: Sequence[str], title: str) -> str:
    """The higher a score, the stronger the colour of its cell; a cell of 0 is empty."""
    n = len(words)
    size = MARGIN + n * CELL
    parts = [f"<title>{title}: the scores of {n} words after {n} words</title>"]
    for i, word in enumerate(words):
        at = MARGIN + i * CELL
        name = escape(shown(word))
        parts.append(f'<text class="end" x="{MARGIN - 5}" y="{at + 17}">{name}</text>')
        parts.append(
            f'<text transform="translate({at + 16} {MARGIN - 5}) rotate(-55)">{name}</text>'
        )
        for j, shade in enumerate(shades[i]):
            parts.append(
                f'<rect x="{MARGIN + j * CELL}" y="{at}" width="{CELL - 2}" height="{CELL - 2}" '
                f'fill-opacity="{shade:g}"/>'
            )
    return (
        f'<svg class="drawing heat" viewBox="0 0 {size} {size}" role="img">{"".join(parts)}</svg>'
    )


# Costs and shares


def costs(bars: Sequence[Figures]) -> str:
    """For each kind of model a mean with its interval, or two."""
    shown_numbers = [0.0]
    for bar in bars:
        for start in STARTS:
            shown_numbers += bar.get(start, [])
    low = math.floor(20 * min(shown_numbers)) / 20  # a multiple of 0.05
    high = math.ceil(20 * max(shown_numbers)) / 20

    lines = ['<ul class="legend">']
    lines += [f'<li class="{name}">{text}</li>' for name, text in STARTS.values()]
    lines.append('<li class="worse">right of the dotted line (0): tied is worse</li></ul><dl>')
    for bar in bars:
        lines.append(f"<div><dt>{escape(bar['label'])}</dt>")
        for start, (name, _) in STARTS.items():
            if start in bar:
                mean, first, last = bar[start]  # the mean and the ends of its interval
                lines.append(
                    f'<dd class="{name}">{whisker(mean, first, last, low, high)} '
                    f"<span>{decimal(mean, 3)} "
                    f"<small>[{decimal(first, 3)}, {decimal(last, 3)}]</small></span></dd>"
                )
        lines.append("</div>")
    return "".join(lines) + "</dl>"


def whisker(mean: float, first: float, last: float, low: float, high: float) -> str:
    """A line from `first` to `last` with a mark at the mean, on an axis from `low` to `high`."""

    def place(x: float) -> str:
        return f"{100 * (x - low) / (high - low):.1f}"

    return (
        '<svg class="whisker" viewBox="0 0 100 10" preserveAspectRatio="none" aria-hidden="true">'
        f'<path class="zero" d="M{place(0)} 0V10"/>'
        f'<path class="interval" d="M{place(first)} 5H{place(last)}"/>'
        f'<path class="mean" d="M{place(mean)} 5h0"/></svg>'
    )


def bars(groups: Sequence[Figures]) -> str:
    """For each group a title, and for each of its rows a name, a bar, and its number as a text."""
    lines = []
    for group in groups:
        lines.append(f'<div class="{group["kind"]}"><p class="note">{group["title"]}</p><dl>')
        for row in group["rows"]:
            lines.append(
                f"<div><dt>{row['name']} <small>{row['more']}</small></dt>"
                f"<dd>{bar(100 * row['length'])}<b>{row['text']}</b></dd></div>"
            )
        lines.append("</dl></div>")
    return "".join(lines)
