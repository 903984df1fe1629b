"""The first screen of the page: "should I tie?", with a bar for each pair of models.

The cost of the tie is the held-out loss of a tied model minus that of an untied one, above 0 where
tying is worse. A tied model "with signs" has gains of ln_f that start at 1 or -1 at random. Names
such as "one layer" are those of the models in the table of settings.py.

In a text, n["NAME"] prints a figure: its mean and 95 % interval over seeds, or "not known yet". Its
`words` are chosen by the verdict on its mean: below 0, above 0, or no difference found. If runs are
missing, or the interval is too wide to tell, the verdict is "unknown" and the words are "not known
yet".
"""

import math
from dataclasses import dataclass, replace

from scipy import stats

from .figures import Figure, Numbers, Runs, subtracted
from .settings import ONE, STABILITY_RATES

SLOW = STABILITY_RATES[0]  # the rate of the tied model with one layer
FAST = STABILITY_RATES[1]  # the rate of the untied one


@dataclass(frozen=True)
class Bar:
    """A tied model and an untied one whose losses are compared."""

    name: str  # for --bar
    label: str  # in the picture
    tied: str  # the names of the two models in the table
    untied: str
    signs: bool = True  # whether the model `tied` is trained with signs too


BARS = (
    Bar("width 16", "one layer, width 16", "width 16", "width 16"),
    Bar("width 32", "one layer, width 32", "width 32", "width 32"),
    Bar("width 64", "one layer, width 64", "one layer", "one layer"),
    Bar("width 128", "one layer, width 128", "width 128", "width 128"),
    Bar("width 256", "one layer, width 256 (3 seeds)", "width 256", "width 256"),
    Bar("no layers 16", "no layers, width 16", "no layers, width 16", "no layers, width 16"),
    Bar("no layers 32", "no layers, width 32", "no layers, width 32", "no layers, width 32"),
    Bar("no layers 64", "no layers, width 64", "no layers", "no layers"),
    Bar("no layers 128", "no layers, width 128", "no layers, width 128", "no layers, width 128"),
    Bar("attention", "a layer with attention only", "attention", "attention"),
    Bar("MLP", "a layer with an MLP only", "MLP", "MLP", signs=False),
    Bar("longer", "one layer, 1,600 steps", "longer", "longer", signs=False),
    Bar("tenth", "one layer, a tenth of the text", "tenth", "tenth", signs=False),
    Bar("second text", "one layer, Python's documentation", "second text", "second text"),
    Bar(
        "second text 128",
        "one layer, width 128, Python's documentation",
        "second text, width 128",
        "second text, width 128",
    ),
    Bar(
        "parameters",
        "one layer, as many parameters (untied has width 50)",
        "one layer",
        "one layer, narrower",
    ),
)


def bar_costs(runs: Runs) -> Numbers:
    """The cost of each bar by the bar's name; "NAME, signs" is the cost of tied with signs."""
    costs: Numbers = {}
    for bar in BARS:
        untied = (bar.untied, "untied")
        costs[bar.name] = runs.difference((bar.tied, "tied"), minus=untied)
        if bar.signs:
            costs[f"{bar.name}, signs"] = runs.difference((bar.tied, "signs"), minus=untied)
    return costs


def numbers(runs: Runs) -> Numbers:
    """The figures of the first screen: the bars, how costs change, and how many trainings fail."""
    found = bar_costs(runs)
    # A change is the cost of the tie with the second model minus the cost with the first.
    found["width change"] = runs.rise_of_cost(before="one layer", after="width 128")
    found["layer change"] = runs.rise_of_cost(before="no layers", after="one layer")

    # A training with one layer fails if its layer is of no use: if its loss ends above that of the
    # best model without layers, which is untied.
    limit = runs.measure("no layers", "untied").mean
    found["tied fails"] = runs.failing("tied", rate=FAST, limit=limit)
    found["untied fails"] = runs.failing("untied", rate=FAST, limit=limit)

    # The cost if both models have the lower rate.
    found["cost at one rate"] = runs.figure(
        runs.run_term(replace(ONE, head="tied", lr=SLOW), "loss"),
        subtracted(runs.run_term(replace(ONE, head="untied", lr=SLOW), "loss")),
    )
    return found


def text(n: Numbers) -> str:
    """The first screen in Markdown."""
    return f"""\
# To tie or not to tie

A tied model computes its logits with its token embedding `W_E` (wte): `x @ W_E.T`. An untied model
has a second matrix for it: `x @ W_U`. GPT-2 is tied. **The cost of the tie** is the held-out loss
of a tied model minus that of an untied one, in nats per token. Where it is positive, tying is
worse.

**Should I tie?**

1. {answer_by_width(n)}
2. {answer_by_parts(n)}
3. {answer_by_stability(n)}

**Known from:** a vocabulary of 512 tokens, 800 steps, 0.5 million tokens, 12 seeds each, unless
said. **Not known:** what the tie costs with two layers or more, with a larger vocabulary, or after
more steps (width 64: than 1,600). {missing_bars(n)}

![The cost of the tie for each pair of models](costs.png)

*The cost of the tie, with 95 % intervals over the seeds; the width is 64 where none is named. To
the right of 0, tying is worse. "Tied with signs" is a control, which is explained below.*
"""


def answer_by_width(n: Numbers) -> str:
    """Whether a model with one layer should be tied, by its width."""
    narrow = n["width 64"].words(
        below="With one layer, a model of width 64 is better tied.",
        above="With one layer, a model of width 64 is better untied.",
        none="With one layer, no cost is found at width 64.",
    )
    narrow_costs = [n[f"width {width}"] for width in (16, 32, 64)]
    if all(cost.verdict == "above" for cost in narrow_costs):
        narrow = "With one layer, models of width 16 to 64 are better untied."
    wide = n["width 128"].words(
        below="At width 128 it is better tied.",
        above="At width 128 it is better untied, too.",
        none="At width 128 no cost is found: tie, it saves a matrix.",
    )
    # The words "not known yet" are no sentence. At width 64 the published verdict is known.
    if n["width 128"].verdict == "unknown":
        wide = "At width 128 it is not known yet."
    costs = ", ".join(f"{n[f'width {width}'].show_mean(3)} at {width}" for width in (16, 32, 64))
    return (
        f"**{narrow} {wide}** The cost is {costs}, {n['width 128']} at 128, and with 3 seeds "
        f"{n['width 256']} at 256. On a second text, Python's documentation, it is "
        f"{n['second text']} at 64 and {n['second text 128']} at 128."
    )


def answer_by_parts(n: Numbers) -> str:
    """What the tie costs without layers, and with a layer that has only an MLP or attention."""
    # "layer change" is the cost with one layer minus the cost without layers.
    without_layers = n["layer change"].words(
        below="costs more than with a whole layer",
        above="costs less than with a whole layer",
        none="is not found to cost more or less than with a whole layer",
    )
    return (
        f"Without layers the tie {without_layers}: {n['no layers 64']} at width 64, and "
        f"{n['no layers 128']} at 128. With only attention in the layer it costs "
        f"{n['attention']}, and with only an MLP {n['MLP']}, so little that it may be due to the "
        f"learning rates."
    )


def answer_by_stability(n: Numbers) -> str:
    """Whether a tied model is less stable: how many trainings fail at a high learning rate."""
    tied = n["tied fails"]
    untied = n["untied fails"]
    some_are_missing = tied.n < tied.expected or untied.n < untied.expected  # numbers of seeds
    if some_are_missing:
        return "Whether a tied model is less stable at a high learning rate is not known yet."
    counts = (
        f"At width 64 with one layer and a rate of {FAST:g}, {tied.as_count()} tied trainings and "
        f"{untied.as_count()} untied ones end worse than without layers (Fisher's exact test, "
        f"uncorrected: p {fisher(tied, untied):.1g})."
    )
    if tied.mean > untied.mean:  # the shares of trainings that fail
        return (
            f"A tied model can be less stable. {counts} So the figure above for width 64 is that "
            f"of tied at {SLOW:g} and untied at {FAST:g}. With {SLOW:g} for both, the cost is "
            f"{n['cost at one rate']}."
        )
    return f"A tied model is not found to be less stable. {counts}"


def fisher(first: Figure, second: Figure) -> float:
    """p of Fisher's exact test for two shares of trainings that fail."""
    table = [[sum(figure.values), figure.n - sum(figure.values)] for figure in (first, second)]
    return float(stats.fisher_exact(table).pvalue)


def missing_bars(n: Numbers) -> str:
    """A sentence that names the bars without a known cost; "" if there are none."""
    missing = [bar.label for bar in BARS if not n[bar.name].is_known]
    if not missing:
        return ""
    return f"Not trained yet: {'; '.join(missing)}."


def repeat(label: str, found: Figure, published: Figure) -> str:
    """Whether new seeds of a bar give a cost in the published interval, in words."""
    # The published interval is for the true mean. The mean of the new seeds differs from the true
    # mean too, so the interval for this mean is wider. The variance of a mean is proportional to
    # 1 / n, so the variance of the new mean is published.n / found.n times that of the published
    # mean. The variance of the difference of both means is the sum of their variances.
    published_half = (published.high - published.low) / 2
    half = published_half * math.sqrt(1 + published.n / found.n)
    low = published.mean - half
    high = published.mean + half
    return (
        f"{label}: the cost of the tie is {found.mean:.3f} with {found.n} new seeds.\n"
        f"The published cost is {published}. "
        f"It lies {in_or_outside(found.mean, published.low, published.high)} that interval, and "
        f"{in_or_outside(found.mean, low, high)} [{low:.3f}, {high:.3f}], where 95 of 100 such "
        f"means of {found.n} seeds lie."
    )


def in_or_outside(x: float, low: float, high: float) -> str:
    """Whether x lies in the interval [low, high]: "in" or "outside"."""
    return "in" if low <= x <= high else "outside"
