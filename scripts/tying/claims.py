"""The claims of the page: for each, a function of its numbers and a function of its text.

A text is in Markdown. Its figures and the words of its verdicts follow from the numbers, so it is
right for any text, and says "not known yet" where runs are missing.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from .chains import asymmetry
from .figures import Figure, Numbers, Runs
from .settings import (
    BATCHES,
    INPUT_GRADIENTS,
    JSDS,
    ONE,
    SEEDS,
    SIMILARITY_PAIRS,
    STABILITY_RATES,
    TIMINGS,
    UNTIE_AFTER,
    UNTIE_RATE,
    VOCABULARIES,
    Run,
)

# The words for a loss that is lower, higher, or not found to differ
BETTER = ("better", "worse", "not found to differ")
BETTER_THAN = ("better than", "worse than", "not found to differ from")
MEASURED_ON = ("no layers", "MLP", "one layer")
WIDTHS = {16: "width 16", 32: "width 32", 64: "one layer", 128: "width 128"}
NO_LAYER_WIDTHS = {
    16: "no layers, width 16",
    32: "no layers, width 32",
    64: "no layers",
    128: "no layers, width 128",
}
CLASS_SHARES = (0.0, 0.5, 1.0)
CLASS_NOISES = ("", ", noise")  # what the name of a model of the table has
CLASS_LAYERS = ("", ", one layer")


@dataclass(frozen=True)
class Claim:
    """A section of the page."""

    title: str
    numbers: Callable[[Runs], Numbers]
    text: Callable[[Numbers], str]


def table(head: Sequence[str], *rows: Sequence[object]) -> str:
    lines = [f"| {' | '.join(head)} |", f"|{'---|' * len(head)}"]
    lines += [f"| {' | '.join(map(str, row))} |" for row in rows]
    return "\n".join(lines)


def if_known(figures: list[Figure], sentence: str, otherwise: str) -> str:
    """The sentence, if something can be said of all of its figures."""
    if all(figure.verdict != "unknown" for figure in figures):
        return sentence
    return otherwise


# 1


def symmetric_numbers(runs: Runs) -> Numbers:
    measures = ("jsd", "fit untied", "fit ln_f", "fit signed", "fit tied", "unigram excess")
    return {measure: runs.of_text(measure) for measure in measures}


def symmetric_text(n: Numbers) -> str:
    fits = table(
        ["form of the table, rank 64", "loss above the text's own bigrams, best fit"],
        ["`W_E W_U`", n["fit untied"]],
        ["`ln_f(W_E) W_E^T`", n["fit ln_f"]],
        ["`W_E G W_E^T`, G diagonal and signed", n["fit signed"]],
        ["`W_E W_E^T`", n["fit tied"]],
        ["the token counts, after every token", n["unigram excess"]],
    )
    return f"""\
With `W_U = W_E^T` the direct path `A` is symmetric, so "York" after "New" scores the same as "New"
after "York" (the zero-layer model of [Elhage et al.
2021](https://transformer-circuits.pub/2021/framework/index.html), which has no layer norm).

{fits}

- Verdict: if "b after a" must score the same as "a after b", the loss is at least {n["jsd"]} above
  the best ([proof](floor.md)). Without ln_f it is {n["fit tied"]}: every token must then also give
  itself a score that is not negative. A tied GPT-2 escapes the bound through ln_f, which divides
  each embedding by its own standard deviation.
- Varied: the form of the table. Not varied: the start of each fit, so a better fit may exist.
  ([Wolfer & Watanabe 2021](https://arxiv.org/abs/2106.05669) derive the best reversible chain in
  closed form.)
"""


# 2


def direct_path_numbers(runs: Runs) -> Numbers:
    numbers: Numbers = {}
    for model in MEASURED_ON:
        for head in ("tied", "untied"):
            numbers[f"{model}, {head}, normed"] = runs.gain(model, head, "normed")
            if model != "no layers":
                numbers[f"{model}, {head}, mlp0"] = runs.gain(model, head, "mlp0")
    numbers["untied nearer"] = runs.cost("one layer", measure="normed+unigram.kl")
    numbers["self, no layers"] = runs.measure("no layers", "tied", "raw.self")
    numbers["self, one layer"] = runs.measure("one layer", "tied", "raw.self")
    numbers["self, mlp0"] = runs.measure("one layer", "tied", "mlp0.self")
    numbers["self, text"] = runs.of_text("self")
    numbers["bigrams"] = runs.measure("one layer", "tied", "unigram.kl")
    return numbers


def direct_path_text(n: Numbers) -> str:
    rows = []
    for head in ("tied", "untied"):
        rows.append([f"{head}, normed"] + [n[f"{model}, {head}, normed"] for model in MEASURED_ON])
        rows.append(
            [f"{head}, mlp0", ""] + [n[f"{model}, {head}, mlp0"] for model in MEASURED_ON[1:]]
        )
    gains = table(
        ["nats nearer to the bigrams than the token counts", "no layers", "MLP", "one layer"], *rows
    )
    without = n["one layer, tied, normed"]
    through = n["one layer, tied, mlp0"]
    all_bigrams = n["bigrams"].show(2)
    path = n["no layers, tied, normed"].words(
        below="further from the bigrams than the token counts",
        above="nearer to the bigrams than the token counts, through ln_f",
        none="not found to differ in its distance from the token counts",
    )
    return f"""\
The claim is that the direct path learns bigrams, and that a tied one cannot, and predicts the token
itself (Elhage et al. 2021).

{gains}

- Verdict: without layers a tied path is {path}. With one layer, and without its MLP, a tied model's
  path from token to next token knows almost no bigrams ({without.show(2)}); with it, most of them
  ({through.show(2)} of {all_bigrams} nats). The share of frequent tokens that have the highest
  score for themselves is {n["self, no layers"]} in a tied `A` without layers,
  {n["self, one layer"]} with one layer, {n["self, mlp0"]} through its MLP, and {n["self, text"]}
  in the text.
- Varied: one layer or none, the sublayers, the path.
"""


# 3


def bigram_model_numbers(runs: Runs) -> Numbers:
    numbers: Numbers = {"smoothed bigrams": runs.of_text("smoothed bigrams loss")}
    numbers["above bigrams"] = runs.figure(
        runs.term(1, "no layers", "untied", "loss"), runs.text_term(-1, "smoothed bigrams loss")
    )
    for model in ("no layers", "attention", "MLP", "one layer"):
        for head in ("tied", "signs", "untied"):
            if (model, head) != ("MLP", "signs"):
                numbers[f"{model}, {head}"] = runs.measure(model, head)
        numbers[f"{model}, cost"] = runs.cost(model)
        if model != "MLP":
            numbers[f"{model}, cost of signs"] = runs.cost(model, tied="signs")
    numbers["attention more"] = runs.change(
        ("no layers", "tied", "untied"), ("attention", "tied", "untied")
    )
    numbers["MLP less"] = runs.change(("attention", "tied", "untied"), ("MLP", "tied", "untied"))
    numbers["worse untied MLP"] = runs.difference(("MLP", "untied"), ("no layers", "untied"))
    numbers["low rate"] = runs.cost("low rate")
    return numbers


def bigram_model_text(n: Numbers) -> str:
    models = ("no layers", "attention", "MLP", "one layer")

    def row(label: str, what: str) -> list[object]:
        return [label] + [n.get(f"{model}, {what}", "") for model in models]

    losses = table(
        ["held-out loss", *models],
        row("tied", "tied"),
        row("tied with signs", "signs"),
        row("untied", "untied"),
        row("cost of the tie", "cost"),
        row("cost of tied with signs", "cost of signs"),
    )
    untied = n["above bigrams"].words(*BETTER_THAN)
    attention = n["attention more"].words("less than", "more than", "about as much as")
    mlp = n["MLP less"].words("less", "more", "about as much")
    return f"""\
The claim is that without layers an untied model is a bigram model, and that a first MLP is enough
to break the symmetry (Elhage et al. 2021).

{losses}

- Verdict: an untied model without layers is {untied} smoothed bigram counts
  ({n["smoothed bigrams"]}), by {n["above bigrams"]}. Tying costs {n["no layers, cost"]} nats there.
  At one low learning rate it seems to cost {n["low rate"]}: most of that is the rate. With
  attention alone it costs {n["attention, cost"]}, {attention} without layers, and with an MLP alone
  {n["MLP, cost"]}, {mlp}. A part of that is the untied model: with the MLP alone its loss is higher
  than without layers by {n["worse untied MLP"]}.
- Varied: the sublayers, the signs, one low learning rate. Not resolved: the best rate with
  attention alone, where runs of one rate differ much.
"""


# 4


def layers_numbers(runs: Runs) -> Numbers:
    numbers: Numbers = {}
    for model in ("no layers", "one layer", "longer"):
        numbers[f"{model}, path"] = runs.gain(model, "untied", "normed")
        numbers[f"{model}, top"] = runs.measure(model, "untied", "normed+unigram.top1")
        numbers[f"{model}, model"] = runs.gain(model, "untied", "model")
    numbers["longer, further"] = runs.difference(
        ("longer", "untied"), ("one layer", "untied"), "normed+unigram.kl"
    )
    return numbers


def layers_text(n: Numbers) -> str:
    models = ("no layers", "one layer", "longer")
    rows = table(
        ["untied", "no layers", "one layer", "one layer, twice the steps"],
        ["direct path, nats nearer to the bigrams than the token counts"]
        + [n[f"{model}, path"] for model in models],
        ["direct path, most common successor is likeliest"]
        + [n[f"{model}, top"] for model in models],
        ["whole model, nats nearer to the bigrams than the token counts"]
        + [n[f"{model}, model"] for model in models],
    )
    distance = n["longer, further"].words("shorter", "longer", "not found to differ")
    return f"""\
The claim is that the direct path of a model with layers still contains bigrams (Elhage et al.
2021).

{rows}

- Verdict: read alone, `W_E` and `W_U` of an untied model with one layer still predict the next
  token {n["one layer, path"].show(2)} nats better than the token counts do. After twice the steps
  the distance to the bigrams is {distance}, by {n["longer, further"]} nats of KL divergence.
- Varied: the steps. Not varied: more layers than one, so nothing here is about depth.
"""


# 5


def start_numbers(runs: Runs) -> Numbers:
    numbers: Numbers = {}
    for head in ("untied", "copy", "zeros", "tied"):
        numbers[f"{head}"] = runs.measure("one layer", head)
        if head != "untied":
            numbers[f"{head}, early"] = runs.cost("one layer", tied=head, measure="early loss")
            numbers[f"{head}, end"] = runs.cost("one layer", tied=head)
    numbers["zeros, longer"] = runs.cost("longer", tied="zeros")
    return numbers


def start_text(n: Numbers) -> str:
    heads = ("copy", "zeros", "tied")
    rows = table(
        ["one layer", "untied, random start", "copy", "zeros", "tied"],
        ["loss at the end", n["untied"], *(n[head] for head in heads)],
        ["minus random, after a tenth", "", *(n[f"{head}, early"] for head in heads)],
        ["minus random, at the end", "", *(n[f"{head}, end"] for head in heads)],
    )
    copy = n["copy, end"].words(
        below="a copy ends better than random numbers",
        above="a copy ends worse than random numbers",
        none="it makes no difference that we could see whether `W_U` starts as a copy or at random",
    )
    zeros = n["zeros, end"].words(*BETTER)
    early_copy = n["copy, early"].words(*BETTER)
    return f"""\
The claim is that a `W_U` that starts as a copy of `W_E^T` is worse than a random one, because its
symmetric `A` has to be unlearned.

{rows}

- Verdict: {copy}; at zero it is {zeros} by {n["zeros, end"].show(2)}, and by
  {n["zeros, longer"].show(2)} after twice the steps. After a tenth of the steps a copy is
  {early_copy} by {n["copy, early"].show(2)}.
- Varied: the start, and for zeros the steps. A copy has the learning rate of random numbers. Not
  varied: the scale of the start, a learning rate for `W_U` alone.
"""


# 6


def regular_numbers(runs: Runs) -> Numbers:
    numbers: Numbers = {"early": runs.cost("one layer", measure="early loss")}
    for model in ("one layer", "longer", "tenth"):
        numbers[model] = runs.cost(model)
        numbers[f"{model}, training"] = runs.cost(model, measure="training loss")
    for measure, name in (("loss", "parameters"), ("training loss", "parameters, training")):
        numbers[name] = runs.difference(
            ("one layer", "tied"), ("one layer, narrower", "untied"), measure
        )
    return numbers


def regular_text(n: Numbers) -> str:
    rows = table(
        ["one layer, cost of the tie", "held out", "training text"],
        ["after a tenth of the steps", n["early"], ""],
        ["at the end", n["one layer"], n["one layer, training"]],
        ["twice as many steps", n["longer"], n["longer, training"]],
        ["as many parameters (untied is narrower)", n["parameters"], n["parameters, training"]],
        ["a tenth of the text, each at its best", n["tenth"], n["tenth, training"]],
    )
    early = n["early"].words("ahead", "behind", "not found to differ")
    at_the_end = n["one layer"].words(*BETTER)
    tenth = n["tenth"].words(*BETTER)
    training = n["tenth, training"].words("lower", "higher", "not found to differ")
    return f"""\
The claim is that untied learns faster at first, and that tying regularises ([Press & Wolf
2017](https://arxiv.org/abs/1608.05859), [Inan et al. 2017](https://arxiv.org/abs/1611.01462)).

{rows}

- Verdict: tied is {early} after a tenth of the steps and {at_the_end} at the end. On a tenth of the
  text, where a regulariser would help most, tied is {tenth}; its loss on the training text is
  {training}.
- Varied: the steps, the amount of text, the number of parameters. For the tenth the pilot chose the
  rate and the number of steps together: 1,600 steps, the most that it tried, were best. Not varied:
  dropout, weight decay. [MobileLLM](https://arxiv.org/abs/2402.14905) ties and spends the
  parameters on layers.
"""


# 7


def similarity(
    runs: Runs, untied: Run, tied: Run, seeds: list[tuple[int, int]], *measures: tuple[int, str]
) -> Figure:
    """A similarity of the matrices of two models, or a difference of two similarities."""
    terms = [runs.comparison_term(sign, untied, tied, measure) for sign, measure in measures]
    return runs.figure(*terms, seeds=seeds)


def similarity_numbers(runs: Runs) -> Numbers:
    neighbours = list(zip(SEEDS[::2], SEEDS[1::2], strict=True))
    both_ways = [pair for a, b in neighbours for pair in ((a, b), (b, a))]
    tied = replace(ONE, lr=0.004)
    untied = replace(ONE, head="untied", lr=0.008)
    plain_tied = Run(lr=0.032)
    plain_untied = Run(head="untied", lr=0.004)
    numbers: Numbers = {}
    for removed in (0, 2):
        out = f"out and tied, {removed} removed"
        into = f"in and tied, {removed} removed"
        numbers[f"out {removed}"] = similarity(runs, untied, tied, both_ways, (1, out))
        numbers[f"in {removed}"] = similarity(runs, untied, tied, both_ways, (1, into))
        numbers[f"out - in {removed}"] = similarity(
            runs, untied, tied, both_ways, (1, out), (-1, into)
        )
        numbers[f"two tied {removed}"] = similarity(runs, tied, tied, neighbours, (1, into))
        for which in ("out", "in"):
            numbers[f"two untied, {which} {removed}"] = similarity(
                runs, untied, untied, neighbours, (1, f"{which} and {which}, {removed} removed")
            )
    numbers["no layers"] = similarity(
        runs,
        plain_untied,
        plain_tied,
        both_ways,
        (1, "out and tied, 0 removed"),
        (-1, "in and tied, 0 removed"),
    )
    numbers |= gradient_numbers(runs, tied, untied)
    return numbers


def gradient_numbers(runs: Runs, tied: Run, untied: Run) -> Numbers:
    """The similarity and the loss for each factor on the input's gradient; the ratios of norms."""
    numbers: Numbers = {}
    six = SEEDS[:6]
    for factor in INPUT_GRADIENTS:
        run = replace(tied, input_gradient=factor)
        numbers[f"factor {factor:g}"] = similarity(
            runs,
            untied,
            run,
            list(SIMILARITY_PAIRS),
            (1, "out and tied, 0 removed"),
            (-1, "in and tied, 0 removed"),
        )
        numbers[f"loss {factor:g}"] = runs.figure(
            runs.run_term(1, run, "loss"), runs.run_term(-1, tied, "loss"), seeds=six
        )
    for batch in (16, *BATCHES):
        run = replace(tied, input_gradient=1.0, batch=batch)
        for measure in ("ratio, tenth 1", "ratio, after a tenth", "ratio, peak"):
            numbers[f"batch {batch}, {measure}"] = runs.figure(
                runs.run_term(1, run, measure), seeds=six
            )
    return numbers


def similarity_text(n: Numbers) -> str:
    rows = table(
        ["principal components removed (with the mean)", "0", "2"],
        ["`W_U` and the tied matrix", n["out 0"], n["out 2"]],
        ["`W_E` and the tied matrix", n["in 0"], n["in 2"]],
        ["the difference", n["out - in 0"], n["out - in 2"]],
        ["ceiling: two tied models", n["two tied 0"], n["two tied 2"]],
        ["ceiling: `W_U` of two untied models", n["two untied, out 0"], n["two untied, out 2"]],
        ["ceiling: `W_E` of two untied models", n["two untied, in 0"], n["two untied, in 2"]],
    )
    factors = table(
        [
            "the input's gradient times",
            "nearer to `W_U` than to `W_E`, by",
            "loss, minus that of the usual tied model",
        ],
        *([f"{x:g}", n[f"factor {x:g}"], n[f"loss {x:g}"]] for x in INPUT_GRADIENTS),
    )
    ratios = table(
        ["output's gradient over input's", "first tenth of the steps", "later", "highest"],
        *(
            [
                f"batches of {batch}",
                n[f"batch {batch}, ratio, tenth 1"].show(2),
                n[f"batch {batch}, ratio, after a tenth"].show(2),
                n[f"batch {batch}, ratio, peak"].show(1),
            ]
            for batch in (16, *BATCHES)
        ),
    )
    nearer = n["out - in 0"].words("less than", "more than", "as much as")
    factor = if_known(
        [n["factor 5"], n["loss 5"]],
        f"With the input's gradient times 5 the difference is {n['factor 5']}, and the loss "
        f"changes by {n['loss 5']}.",
        "Whether that is due to the larger gradient is not known yet.",
    )
    return f"""\
The claim is that the tied matrix becomes more like the output matrix of an untied model than like
its input matrix (Press & Wolf 2017), because the output's gradient is larger: 83 % of the sum, a
ratio of 6 ([Lopardo et al. 2026](https://arxiv.org/abs/2603.26663)). A number is the rank
correlation of the cosines of all pairs of tokens, between two models with one layer and different
seeds.

{rows}

{factors}

{ratios}

- Verdict: tokens that are close in the tied matrix are close in `W_U` ({n["out 0"].show(2)})
  {nearer} in `W_E` ({n["in 0"].show(2)}). Without layers the difference is {n["no layers"]}.
  {factor}
- Varied: one layer or none, the components that are removed, the factor, the batch. Not varied: the
  width.
"""


# 8


def saving_numbers(runs: Runs) -> Numbers:
    return {f"time {V}": runs.figure(runs.time_term(V), seeds=tuple(TIMINGS)) for V in VOCABULARIES}


def saving_text(n: Numbers) -> str:
    return f"""\
The claim is that tying saves one matrix, and time.

```console
$ tiedgpt params gpt2                                        # tying saves 38.6M, 23.7 %
$ tiedgpt params gpt2-xl                                     # tying saves 80.4M, 4.9 %
$ tiedgpt params --vocab 128256 --dim 8192 --total 70.6e9    # tying saves 1.1B, 1.5 %
```

- Verdict: the matrix is a smaller share of a larger model with the same vocabulary. With one layer,
  an untied training step takes {n["time 16384"].show(2)} times as much CPU time as a tied one with
  16,384 tokens. With 1,024 tokens the timings scatter too much to tell ({n["time 1024"].show(2)}).
- Varied: the vocabulary. Not varied: the width. The timings are {n["time 1024"].n}, on one machine.
"""


# 9


def swap_numbers(runs: Runs) -> Numbers:
    numbers: Numbers = {}
    for head in ("untied", "copy", "zeros"):
        for measure in ("loss", "swapped", "swapped, scaled", "swapped, scaled, with counts"):
            numbers[f"{head}, {measure}"] = runs.measure("one layer", head, measure)
    for measure, other in (
        ("swapped", "uniform loss"),
        ("swapped, scaled", "uniform loss"),
        ("swapped, scaled, with counts", "unigram loss"),
    ):
        numbers[f"{measure} - {other}"] = runs.figure(
            runs.term(1, "one layer", "untied", measure), runs.text_term(-1, other)
        )
        numbers[other] = runs.of_text(other)
    return numbers


def swap_text(n: Numbers) -> str:
    def row(label: str, measure: str) -> list[object]:
        return [label] + [n[f"{head}, {measure}"] for head in ("untied", "copy", "zeros")]

    rows = table(
        ["one layer, by the start of `W_U`", "untied", "copy", "zeros"],
        row("own head", "loss"),
        row("`x @ wte.T`", "swapped"),
        row("with a fitted scale", "swapped, scaled"),
        row("with a fitted scale, and the token counts", "swapped, scaled, with counts"),
    )
    plain = n["swapped - uniform loss"].words(*BETTER_THAN)
    scaled = n["swapped, scaled - uniform loss"].words(*BETTER)
    with_counts = n["swapped, scaled, with counts - unigram loss"].words(*BETTER_THAN)
    return f"""\
The claim is that after training, `x @ wte.T` can replace `x @ W_U`.

{rows}

- Verdict: the swapped head is {plain} a guess among all tokens ({n["uniform loss"]}); with a fitted
  scale it is {scaled}. With a fitted scale and the token counts it is {with_counts} the counts
  alone ({n["unigram loss"]}).
- Varied: the start of `W_U`, the scale, the counts.
"""


# 10


def width_numbers(runs: Runs) -> Numbers:
    numbers: Numbers = {}
    for layers, models in ((1, WIDTHS), (0, NO_LAYER_WIDTHS)):
        for width, model in models.items():
            name = f"{layers}, {width}"
            numbers[f"{name}, cost"] = runs.cost(model)
            numbers[f"{name}, signs"] = runs.cost(model, tied="signs")
            numbers[f"{name}, parameters"] = runs.difference(
                (model, "tied"), (f"{model}, narrower", "untied")
            )
    for name, model in (("second text", "second text"), ("second, 128", "second text, width 128")):
        numbers[f"{name}, cost"] = runs.cost(model)
        numbers[f"{name}, signs"] = runs.cost(model, tied="signs")
    numbers["16 to 64"] = runs.change(
        ("width 16", "tied", "untied"), ("one layer", "tied", "untied")
    )
    numbers["64 to 128"] = runs.change(
        ("one layer", "tied", "untied"), ("width 128", "tied", "untied")
    )
    return numbers


def width_text(n: Numbers) -> str:
    def row(label: str, name: str) -> list[object]:
        return [label] + [n.get(f"{name}, {x}", "") for x in ("cost", "signs", "parameters")]

    rows = [row(f"one layer, width {width}", f"1, {width}") for width in WIDTHS]
    rows += [row(f"no layers, width {width}", f"0, {width}") for width in NO_LAYER_WIDTHS]
    rows.append(row("one layer, width 64, Python's documentation", "second text"))
    rows.append(row("one layer, width 128, Python's documentation", "second, 128"))
    costs = table(
        ["", "cost of the tie", "cost of tied with signs", "cost at equal numbers of parameters"],
        *rows,
    )
    narrow = n["16 to 64"]
    wide = n["64 to 128"]
    verbs = ("falls", "rises", "is not found to change")
    to_64 = if_known(
        [narrow],
        f"From width 16 to 64 it {narrow.words(*verbs)} (the change is {narrow}).",
        f"How it changes from width 16 to 64 is not known yet ({narrow}).",
    )
    to_128 = if_known(
        [wide],
        f"from width 64 to 128 the cost with one layer {wide.words(*verbs)} (the change is "
        f"{wide}).",
        f"how the cost with one layer changes from width 64 to 128 is not known yet ({wide}).",
    )
    return f"""\
The question is whether the cost of the tie depends on the width, or on the text.

{costs}

- Verdict: {to_128} {to_64}
- Varied: the width, one layer or none, the text, and whether the untied model is as wide or has as
  many parameters. All have two heads. The narrower untied models have the rate of the wider ones.
"""


# 11


def stability_numbers(runs: Runs) -> Numbers:
    numbers: Numbers = {"limit": runs.measure("no layers", "untied")}
    limit = numbers["limit"].mean
    for head in ("tied", "signs", "untied"):
        for rate in STABILITY_RATES:
            numbers[f"{head}, {rate:g}"] = runs.failing(head, rate, limit)
    return numbers


def stability_text(n: Numbers) -> str:
    rows = [
        [head] + [n[f"{head}, {rate:g}"].as_count() for rate in STABILITY_RATES]
        for head in ("tied", "signs", "untied")
    ]
    failures = table(
        ["one layer, trainings that fail, by rate", *(f"{rate:g}" for rate in STABILITY_RATES)],
        *rows,
    )
    fast = STABILITY_RATES[1]
    tied = n[f"tied, {fast:g}"]
    untied = n[f"untied, {fast:g}"]
    if tied.n == tied.expected and untied.n == untied.expected:
        verdict = (
            f"at a rate of {fast:g}, {tied.as_count()} tied trainings fail and "
            f"{untied.as_count()} untied ones."
        )
    else:
        verdict = "not known yet."
    return f"""\
The question is whether a tied model bears the same learning rates. A training fails if it ends
worse than the best model without layers ({n["limit"].show(3)}), so that its layer is of no use.

{failures}

- Verdict: {verdict}
- Varied: the rate and the head. Not varied: warm-up, clipping, the width.
"""


# 12


def later_numbers(runs: Runs) -> Numbers:
    tied = replace(ONE, lr=UNTIE_RATE)
    untied = replace(tied, head="untied")
    six = SEEDS[:6]
    numbers: Numbers = {}
    numbers["never"] = runs.figure(
        runs.run_term(1, tied, "loss"), runs.run_term(-1, untied, "loss"), seeds=six
    )
    for after in UNTIE_AFTER:
        later = replace(tied, untie_after=after)
        numbers[f"{after}"] = runs.figure(
            runs.run_term(1, later, "loss"), runs.run_term(-1, untied, "loss"), seeds=six
        )
        numbers[f"{after}, new"] = runs.figure(
            runs.run_term(1, replace(later, new_averages=True), "loss"),
            runs.run_term(-1, later, "loss"),
            seeds=six,
        )
    return numbers


def later_text(n: Numbers) -> str:
    third, two_thirds = UNTIE_AFTER
    rows = table(
        ["one layer, tied for", "loss minus that of untied from the start"],
        ["a third of the steps", n[f"{third}"]],
        ["two thirds", n[f"{two_thirds}"]],
        ["all steps", n["never"]],
    )
    comparison = n[f"{third}"].words(*BETTER_THAN)
    verdict = if_known(
        [n[f"{third}"]],
        f"a model that is tied for a third of the steps is {comparison} one that is untied from "
        f"the start. If AdamW's averages for `W_U` start at 0 when it is untied, the loss changes "
        f"by {n[f'{third}, new']} (a third) and {n[f'{two_thirds}, new']} (two thirds).",
        "not known yet.",
    )
    return f"""\
The [speedrun of GPT-2](https://github.com/KellerJordan/modded-nanogpt) untied its head in 2024
(record 8), and since December 2025 ties it again, and unties it late.

{rows}

- Verdict: {verdict}
- Varied: when the model is untied, and AdamW's averages. All have one learning rate,
  {UNTIE_RATE:g}. Not varied: the rate, the width.
"""


# 13


def asymmetry_numbers(runs: Runs) -> Numbers:
    numbers: Numbers = {}
    for jsd in JSDS:
        model = f"chain {jsd:g}"
        numbers[f"{jsd:g}, cost"] = runs.cost(model, measure="excess")
        numbers[f"{jsd:g}, signs"] = runs.cost(model, tied="signs", measure="excess")
        numbers[f"{jsd:g}, by signs"] = runs.cost(model, untied="signs", measure="excess")
    for before, after in pairwise(JSDS):
        numbers[f"{before:g} to {after:g}"] = runs.change(
            (f"chain {before:g}", "signs", "untied"), (f"chain {after:g}", "signs", "untied")
        )
    return numbers


def asymmetry_text(n: Numbers) -> str:
    rows = table(
        ["Markov chain without layers, by its asymmetry (JSD)", *(f"{jsd:g}" for jsd in JSDS)],
        ["cost of the tie"] + [n[f"{jsd:g}, cost"] for jsd in JSDS],
        ["cost of tied with signs"] + [n[f"{jsd:g}, signs"] for jsd in JSDS],
    )
    steps = [f"{a:g} to {b:g}" for a, b in pairwise(JSDS)]
    if all(n[step].verdict == "above" for step in steps):
        growth = "grows with every step"
    else:
        growth = "does not grow with every step"
    share = 50 * (1 + asymmetry(JSDS[-1]))
    signs = ", ".join(n[f"{jsd:g}, signs"].show(2).partition(" ")[0] for jsd in JSDS)
    return f"""\
The claim is that the tie costs what the asymmetry of the text costs a symmetric table.

![What the tie costs on Markov chains](chains.png)

{rows}

- Verdict: for tied models with signs, the cost {growth} of the asymmetry: {signs}. On the symmetric
  chain they are {n["0, signs"].words(*BETTER_THAN)}
  untied ones, by {n["0, signs"]}. Without signs two costs are mixed: a tied model also has to
  unlearn the high score of each token for itself, which costs {n["0, by signs"]} on the symmetric
  chain and {n["0.65, by signs"]} on the most asymmetric one, where {share:.1f} % of the pairs
  have one order.
- Varied: the asymmetry. Each seed has a chain of its own, so the intervals are also about chains.
  The rates are those of the middle chain. Not varied: how well rows and columns agree, which
  falls as the asymmetry rises.
"""


# 14


def classes_numbers(runs: Runs) -> Numbers:
    numbers: Numbers = {}
    for layers in CLASS_LAYERS:
        for shared in CLASS_SHARES:
            for noise in CLASS_NOISES:
                model = f"classes {shared:g}{noise}{layers}"
                numbers[f"{model}, cost"] = runs.cost(model, measure="excess")
                if not layers:
                    numbers[f"{model}, signs"] = runs.cost(model, tied="signs", measure="excess")
    numbers["apart"] = runs.change(("classes 1", "tied", "untied"), ("classes 0", "tied", "untied"))
    return numbers


def classes_text(n: Numbers) -> str:
    rows: list[list[object]] = []
    for layers in CLASS_LAYERS:
        for noise in CLASS_NOISES:
            label = f"cost of the tie{noise}{layers or ', no layers'}"
            rows.append([label] + [n[f"classes {x:g}{noise}{layers}, cost"] for x in CLASS_SHARES])
    costs = table(
        [
            "tokens whose successors and predecessors go together",
            *(f"{100 * x:.0f} %" for x in CLASS_SHARES),
        ],
        *rows,
    )
    verbs = ("costs less", "costs more", "is not found to cost more or less")
    verdict = if_known(
        [n["apart"]],
        f"at the same asymmetry, entropy and counts the tie {n['apart'].words(*verbs)} where "
        f"tokens with the same successors do not have the same predecessors, by {n['apart']}.",
        "not known yet.",
    )
    return f"""\
The claim is that a tied model needs tokens that are alike as input to be alike as output
([Bertolotti & Cazzola 2024](https://proceedings.mlr.press/v235/bertolotti24a.html)). In the
chains of claim 13 this and the asymmetry change together. Here tokens have classes: one decides
the successors, one the predecessors, and for a share of the tokens both are the same. With noise,
the tokens of a class differ.

{costs}

- Verdict: {verdict}
- Varied: the share, the noise, one layer or none. The rates are those of a share of 50 % with
  noise.
"""


# 15


def map_numbers(runs: Runs) -> Numbers:
    numbers: Numbers = {"tied": runs.cost("no layers"), "signs": runs.cost("no layers", "signs")}
    for head in ("rotation", "identity"):
        numbers[head] = runs.difference(("map", head), ("no layers", "untied"))
    return numbers


def map_text(n: Numbers) -> str:
    rows = table(
        ["no layers", "loss minus that of untied"],
        ["tied", n["tied"]],
        ["tied with signs", n["signs"]],
        ["`M W_E^T`, M starts as the identity", n["identity"]],
        ["`M W_E^T`, M starts as a random rotation", n["rotation"]],
    )
    rotation = n["rotation"]
    if rotation.is_known:
        share = 100 * (1 - rotation.mean / n["tied"].mean)
        verdict = (
            f"a map that starts as a random rotation recovers {share:.0f} % of the cost of the "
            "tie, with an eighth of the numbers of a second matrix."
        )
    else:
        verdict = "not known yet."
    return f"""\
The question is how much of a second matrix is needed. `W_U = M W_E^T` has a D x D matrix M more
than a tied model ([Gulordava et al. 2018](https://aclanthology.org/D18-1323/)).

{rows}

- Verdict: {verdict}
- Varied: the start of M. Not varied: layers, the width.
"""


CLAIMS = {
    1: Claim("the direct path of a tied model is symmetric", symmetric_numbers, symmetric_text),
    2: Claim("the direct path learns bigrams", direct_path_numbers, direct_path_text),
    3: Claim(
        "without layers an untied model is a bigram model", bigram_model_numbers, bigram_model_text
    ),
    4: Claim("with layers the direct path still has bigrams", layers_numbers, layers_text),
    5: Claim("`W_U` must not start as a copy", start_numbers, start_text),
    6: Claim("untied learns faster; tying regularises", regular_numbers, regular_text),
    7: Claim("the tied matrix is an output matrix", similarity_numbers, similarity_text),
    8: Claim("tying saves one matrix, and time", saving_numbers, saving_text),
    9: Claim("`x @ wte.T` can replace `x @ W_U`", swap_numbers, swap_text),
    10: Claim("the cost depends on the width and the text", width_numbers, width_text),
    11: Claim("tied models need lower rates", stability_numbers, stability_text),
    12: Claim("tie first, untie later", later_numbers, later_text),
    13: Claim("the cost is that of the asymmetry", asymmetry_numbers, asymmetry_text),
    14: Claim("alike as input, alike as output", classes_numbers, classes_text),
    15: Claim("a map in place of a matrix", map_numbers, map_text),
}
