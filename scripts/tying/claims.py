"""The claims of the page: for each, a function of its numbers and a function of its text.

CLAIM_numbers(runs) returns the figures that a claim needs, by name; tables.md has the same names. A
figure is the mean over seeds of a measure of a model, or of a sum or difference of measures.
CLAIM_text(n) returns the section of the page in Markdown. n["NAME"] prints a figure as its mean and
95 % interval; show(2) does so with two digits. `words` are chosen by the figure's verdict:
significantly below 0, above 0, or no difference found. So figures and verdicts are right for any
text that models are trained on, and are "not known yet" where runs are missing. All other words
were written for the published text.

A model is named as in the table of settings.py, such as "one layer"; "longer" has twice the steps,
"tenth" a tenth of the text. "NAME, narrower" is an untied model of a smaller width, which has about
as many parameters as the tied model NAME. Each model is trained with several heads. A head says how
the output matrix W_U comes from the token embedding W_E:

    tied             W_U = W_E^T
    signs            tied, and each gain of ln_f starts at 1 or -1 at random
    untied           W_U is a matrix of its own, and starts from random numbers
    copy, zeros      untied, and W_U starts as a copy of W_E^T, or at 0

These make a figure. The measure is the held-out loss at the end, unless another one is named:

    runs.measure(MODEL, HEAD)               the measure of a model with this head
    runs.difference(PAIR, minus=PAIR)       the measure of the first pair minus that of the second;
                                            a pair is a model with a head: ("one layer", "tied")
    runs.cost(MODEL)                        the cost of the tie: the measure of the tied model minus
                                            that of the untied one. Above 0, tying is worse
    runs.rise_of_cost(before=A, after=B)    the cost with model B minus the cost with model A
    runs.nearer_to_bigrams(MODEL, HEAD, PATH)
                                            unigram.kl minus PATH+unigram.kl (see below)
    runs.of_text(MEASURE)                   a measure of the text itself, without a model
    runs.figure(A, subtracted(B))           A minus B, where A and B are terms: measures of any runs

A model without a name in the table is a Run, such as replace(ONE, lr=...); ONE has one layer.

A path is a way through a model from one token to scores of the next: "raw" is the direct path
A = W_E W_U, "normed" the same with ln_f, "mlp0" the same with ln_f and the first MLP, "model" the
whole model. The unigram predicts by the token counts alone, so it is the same after every token.
These are measures of a path, for the frequent tokens of the text:

    unigram.kl           the distance of the unigram from the text's bigrams, in nats of KL
    PATH+unigram.kl      the distance of a path, after its scores were stretched and mixed with the
                         token counts
    PATH+unigram.top1    the share of tokens whose most common successor is this path's likeliest
    PATH.self            the share of tokens that have the highest score after themselves

A symmetric table of scores gives "b after a" the score of "a after b". The JSD of a text, in nats,
is its asymmetry: the loss of a symmetric table is at least so much above that of the text's bigrams
(tying_results/floor.md). A chain is a Markov chain with a chosen JSD, on which models are trained
in place of a text; "excess" is the loss minus that of the chain's own probabilities.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from .chains import asymmetry
from .figures import Figure, Numbers, Runs, Seed, subtracted
from .settings import (
    BATCHES,
    INPUT_GRADIENTS,
    JSDS,
    MODELS,
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

PATH_MODELS = ("no layers", "MLP", "one layer")  # those of claim 2
# The models with one layer, by their width, and those without layers
WIDTHS = {16: "width 16", 32: "width 32", 64: "one layer", 128: "width 128"}
NO_LAYER_WIDTHS = {
    16: "no layers, width 16",
    32: "no layers, width 32",
    64: "no layers",
    128: "no layers, width 128",
}
# Claim 14: a model's name is "classes SHARE" and two endings: "classes 0.5, noise, one layer". The
# ending "" stands for no noise, or for no layers.
CLASS_SHARES = (0.0, 0.5, 1.0)
NOISE_ENDINGS = ("", ", noise")
LAYER_ENDINGS = ("", ", one layer")
# Claims 7 and 12 need trainings that no other claim needs, so they have fewer seeds.
SIX_SEEDS = SEEDS[:6]


@dataclass(frozen=True)
class Claim:
    """A section of the page."""

    title: str
    numbers: Callable[[Runs], Numbers]
    text: Callable[[Numbers], str]


def table(head: Sequence[str], *rows: Sequence[object]) -> str:
    """A table in Markdown."""
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    for row in rows:
        cells = [str(cell) for cell in row]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def better_or_worse(difference: Figure) -> str:
    """What a difference of two losses says of the first: better if it is below 0."""
    return difference.words(below="better", above="worse", none="not found to differ")


def better_or_worse_than(difference: Figure) -> str:
    """As better_or_worse, for a sentence that goes on with the second model's name."""
    return difference.words(
        below="better than", above="worse than", none="not found to differ from"
    )


def if_known(figures: list[Figure], sentence: str, otherwise: str) -> str:
    """The sentence, if the verdicts of all these figures are known; else the text `otherwise`."""
    if all(figure.verdict != "unknown" for figure in figures):
        return sentence
    return otherwise


# 1


def symmetric_numbers(runs: Runs) -> Numbers:
    """What a symmetric table of scores costs, from the text alone; no model is trained.

    Each number is the loss of a table of scores, above the loss of the text's own bigrams.
    """
    measures = (
        "jsd",  # the lowest loss that a symmetric table can have
        "fit untied",  # the best table of the form W_E W_U that was found
        "fit ln_f",  # ln_f(W_E) W_E^T
        "fit signed",  # W_E G W_E^T, where G is diagonal and may have negative numbers
        "fit tied",  # W_E W_E^T
        "unigram excess",  # the token counts, in every row
    )
    return {measure: runs.of_text(measure) for measure in measures}


def symmetric_text(n: Numbers) -> str:
    """Claim 1: the table of scores of a tied model is symmetric, and what that costs."""
    fits = table(
        ["form of the table, rank 64", "loss above the text's own bigrams, best fit"],
        ["`W_E W_U`", n["fit untied"]],
        ["`ln_f(W_E) W_E^T`", n["fit ln_f"]],
        ["`W_E G W_E^T`, G diagonal and signed", n["fit signed"]],
        ["`W_E W_E^T`", n["fit tied"]],
        ["the token counts, whatever the token before", n["unigram excess"]],
    )
    lowest = n["jsd"]  # no symmetric table has a lower loss
    return f"""\
With `W_U = W_E^T` the direct path `A` is symmetric, so "York" after "New" scores the same as "New"
after "York" (the zero-layer model of [Elhage et al.
2021](https://transformer-circuits.pub/2021/framework/index.html), which has no layer norm).

{fits}

- Verdict: if "b after a" must score the same as "a after b", the loss is at least {lowest} above
  the best ([proof](floor.md)). The best table `W_E W_E^T` without ln_f is {n["fit tied"]} above it,
  because there no token can give itself a negative score. A tied GPT-2 escapes the bound through
  ln_f, which divides each embedding by its own standard deviation.
- Varied: the form of the table. Not varied: the start of each fit, so a better fit may exist.
  ([Wolfer & Watanabe 2021](https://arxiv.org/abs/2106.05669) derive the best reversible chain in
  closed form.)
"""


# 2


def direct_path_numbers(runs: Runs) -> Numbers:
    """How much nearer the paths of three models are to the text's bigrams than the token counts.

    "self, ..." is the share of tokens that have the highest score after themselves, in tied models.
    "self, text" is the share of tokens that are their own most common successor in the text.
    """
    numbers: Numbers = {}
    for model in PATH_MODELS:
        for head in ("tied", "untied"):
            numbers[f"{model}, {head}, normed"] = runs.nearer_to_bigrams(model, head, "normed")
            if model != "no layers":  # this model has no MLP
                numbers[f"{model}, {head}, mlp0"] = runs.nearer_to_bigrams(model, head, "mlp0")
    # The distance of the tied model's path minus that of the untied model's path.
    numbers["untied nearer"] = runs.cost("one layer", measure="normed+unigram.kl")
    numbers["self, no layers"] = runs.measure("no layers", "tied", "raw.self")
    numbers["self, one layer"] = runs.measure("one layer", "tied", "raw.self")
    numbers["self, mlp0"] = runs.measure("one layer", "tied", "mlp0.self")
    numbers["self, text"] = runs.of_text("self")
    # The distance of the token counts from the bigrams. It is the same for every model, and no path
    # can be nearer to the bigrams by more.
    numbers["bigrams"] = runs.measure("one layer", "tied", "unigram.kl")
    return numbers


def direct_path_text(n: Numbers) -> str:
    """Claim 2: the direct path learns bigrams, but a tied one predicts the token itself."""
    rows = []
    for head in ("tied", "untied"):
        for path in ("normed", "mlp0"):
            row = [f"{head}, {path}"]
            for model in PATH_MODELS:
                # Without layers there is no mlp0, and the cell stays empty.
                row.append(str(n.get(f"{model}, {head}, {path}", "")))
            rows.append(row)
    gains = table(["nats nearer to the bigrams than the token counts", *PATH_MODELS], *rows)

    # All these paths go through ln_f. Without ln_f a tied path is symmetric.
    tied_path_is = n["no layers, tied, normed"].words(
        below="further from the bigrams than the token counts",
        above="nearer to the bigrams than the token counts, through ln_f",
        none="not found to differ in its distance from the token counts",
    )
    # The words "almost no bigrams" and "most of them" below do not depend on these figures.
    without_mlp = n["one layer, tied, normed"].show(2)
    with_mlp = n["one layer, tied, mlp0"].show(2)
    most_possible = n["bigrams"].show(2)
    return f"""\
The claim is that the direct path learns bigrams, and that a tied one cannot, and predicts the token
itself (Elhage et al. 2021).

{gains}

- Verdict: without layers a tied path is {tied_path_is}. With one layer, and without its MLP, a tied
  model's path from token to next token knows almost no bigrams ({without_mlp}); with it,
  most of them ({with_mlp} of {most_possible} nats). The share of frequent tokens that have
  the highest score for themselves is {n["self, no layers"]} in a tied `A` without layers,
  {n["self, one layer"]} with one layer, {n["self, mlp0"]} through its MLP, and {n["self, text"]}
  in the text.
- Varied: one layer or none, the sublayers, the path.
"""


# 3


def bigram_model_numbers(runs: Runs) -> Numbers:
    """The losses and costs of models without layers, with parts of a layer, and with a layer.

    An untied model without layers is compared with the smoothed bigram counts of the text.
    """
    numbers: Numbers = {"smoothed bigrams": runs.of_text("smoothed bigrams loss")}
    # The loss of the untied model without layers minus that of the smoothed bigram counts.
    numbers["above bigrams"] = runs.figure(
        runs.term("no layers", "untied", "loss"),
        subtracted(runs.text_term("smoothed bigrams loss")),
    )
    for model in ("no layers", "attention", "MLP", "one layer"):
        for head in ("tied", "signs", "untied"):
            if (model, head) != ("MLP", "signs"):  # no MLP model is trained with signs
                numbers[f"{model}, {head}"] = runs.measure(model, head)
        numbers[f"{model}, cost"] = runs.cost(model)
        if model != "MLP":
            numbers[f"{model}, cost of signs"] = runs.cost(model, tied="signs")
    # The cost with attention alone minus the cost without layers.
    numbers["attention more"] = runs.rise_of_cost(before="no layers", after="attention")
    # The cost with an MLP alone minus the cost with attention alone.
    numbers["MLP less"] = runs.rise_of_cost(before="attention", after="MLP")
    # Both models are untied: one with an MLP alone, and one without layers.
    numbers["worse untied MLP"] = runs.difference(("MLP", "untied"), minus=("no layers", "untied"))
    # This model has no layers, and the same low learning rate for both heads.
    numbers["low rate"] = runs.cost("low rate")
    return numbers


def bigram_model_text(n: Numbers) -> str:
    """Claim 3: an untied model without layers is a bigram model; an MLP breaks the symmetry."""
    models = ("no layers", "attention", "MLP", "one layer")

    def row(label: str, number: str) -> list[object]:
        """A row with the figure "MODEL, NUMBER" of each model."""
        # The MLP alone is not trained with signs, and its cell stays empty.
        return [label] + [n.get(f"{model}, {number}", "") for model in models]

    losses = table(
        ["held-out loss", *models],
        row("tied", number="tied"),
        row("tied with signs", number="signs"),
        row("untied", number="untied"),
        row("cost of the tie", number="cost"),
        row("cost of tied with signs", number="cost of signs"),
    )
    untied_is = better_or_worse_than(n["above bigrams"])
    attention_costs = n["attention more"].words(
        below="less than", above="more than", none="about as much as"
    )
    # The cost with an MLP alone is compared with the cost with attention alone.
    mlp_costs = n["MLP less"].words(below="less", above="more", none="about as much")
    return f"""\
The claim is that without layers an untied model is a bigram model, and that a first MLP is enough
to break the symmetry (Elhage et al. 2021).

{losses}

- Verdict: an untied model without layers is {untied_is} smoothed bigram counts
  ({n["smoothed bigrams"]}), by {n["above bigrams"]}. Tying costs {n["no layers, cost"]} nats there.
  At one low learning rate it seems to cost {n["low rate"]}: most of that is the rate. With
  attention alone it costs {n["attention, cost"]}, {attention_costs} without layers, and with an MLP
  alone {n["MLP, cost"]}, {mlp_costs}. A part of that is the untied model: with the MLP alone its
  loss is higher than without layers by {n["worse untied MLP"]}.
- Varied: the sublayers, the signs, one low learning rate. Not resolved: the best rate with
  attention alone, where runs of one rate differ much.
"""


# 4


def layers_numbers(runs: Runs) -> Numbers:
    """How near the direct path and the whole model are to the bigrams of the text.

    Three untied models are measured: without layers, with one layer, and with one layer and twice
    the steps.
    """
    numbers: Numbers = {}
    for model in ("no layers", "one layer", "longer"):
        numbers[f"{model}, path"] = runs.nearer_to_bigrams(model, "untied", "normed")
        numbers[f"{model}, top"] = runs.measure(model, "untied", "normed+unigram.top1")
        numbers[f"{model}, model"] = runs.nearer_to_bigrams(model, "untied", "model")
    # By how much the direct path is further from the bigrams after twice the steps.
    numbers["longer, further"] = runs.difference(
        ("longer", "untied"), minus=("one layer", "untied"), measure="normed+unigram.kl"
    )
    return numbers


def layers_text(n: Numbers) -> str:
    """Claim 4: the direct path of a model with layers still contains bigrams."""
    models = ("no layers", "one layer", "longer")

    def row(label: str, number: str) -> list[object]:
        """A row with the figure "MODEL, NUMBER" of each model."""
        return [label] + [n[f"{model}, {number}"] for model in models]

    rows = table(
        ["untied", "no layers", "one layer", "one layer, twice the steps"],
        row("direct path, nats nearer to the bigrams than the token counts", number="path"),
        row("direct path, most common successor is likeliest", number="top"),
        row("whole model, nats nearer to the bigrams than the token counts", number="model"),
    )
    distance = n["longer, further"].words(
        below="smaller", above="larger", none="not found to differ"
    )
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
    """The losses of models with one layer: untied with three starts of W_U, and tied.

    "HEAD, early" and "HEAD, end" are the loss of that head minus the loss with a random start,
    after a tenth of the steps and at the end.
    """
    numbers: Numbers = {}
    random_start = ("one layer", "untied")
    for head in ("untied", "copy", "zeros", "tied"):
        numbers[head] = runs.measure("one layer", head)
        if head != "untied":
            model = ("one layer", head)
            numbers[f"{head}, early"] = runs.difference(
                model, minus=random_start, measure="early loss"
            )
            numbers[f"{head}, end"] = runs.difference(model, minus=random_start)
    # The loss with zeros minus the loss with a random start, after twice the steps.
    numbers["zeros, longer"] = runs.difference(("longer", "zeros"), minus=("longer", "untied"))
    return numbers


def start_text(n: Numbers) -> str:
    """Claim 5: a W_U that starts as a copy of W_E^T is worse than a random one."""
    heads = ("copy", "zeros", "tied")
    rows = table(
        ["one layer", "untied, random start", "copy", "zeros", "tied"],
        ["loss at the end", n["untied"], *(n[head] for head in heads)],
        ["minus random, after a tenth", "", *(n[f"{head}, early"] for head in heads)],
        ["minus random, at the end", "", *(n[f"{head}, end"] for head in heads)],
    )
    copy_verdict = n["copy, end"].words(
        below="a copy ends better than random numbers",
        above="a copy ends worse than random numbers",
        none="it makes no difference that we could see whether `W_U` starts as a copy or at random",
    )
    zeros_is = better_or_worse(n["zeros, end"])
    early_copy_is = better_or_worse(n["copy, early"])
    return f"""\
The claim is that a `W_U` that starts as a copy of `W_E^T` is worse than a random one, because its
symmetric `A` has to be unlearned.

{rows}

- Verdict: {copy_verdict}; at zero it is {zeros_is} by {n["zeros, end"].show(2)}, and by
  {n["zeros, longer"].show(2)} after twice the steps. After a tenth of the steps a copy is
  {early_copy_is} by {n["copy, early"].show(2)}.
- Varied: the start, and for zeros the steps. A copy has the learning rate of random numbers. Not
  varied: the scale of the start, a learning rate for `W_U` alone.
"""


# 6


def regular_numbers(runs: Runs) -> Numbers:
    """The cost of the tie on the held-out text and on the text that models are trained on.

    The models have one layer. "early" is the cost after a tenth of the steps. "parameters" is the
    loss of the tied model minus that of the narrower untied model. "NAME, training" is measured on
    the training text.
    """
    numbers: Numbers = {"early": runs.cost("one layer", measure="early loss")}
    for model in ("one layer", "longer", "tenth"):
        numbers[model] = runs.cost(model)
        numbers[f"{model}, training"] = runs.cost(model, measure="training loss")
    tied = ("one layer", "tied")
    narrower = ("one layer, narrower", "untied")
    numbers["parameters"] = runs.difference(tied, minus=narrower)
    numbers["parameters, training"] = runs.difference(tied, minus=narrower, measure="training loss")
    return numbers


def regular_text(n: Numbers) -> str:
    """Claim 6: untied learns faster at first; tying regularises, so it helps with little text."""
    rows = table(
        ["one layer, cost of the tie", "held out", "training text"],
        ["after a tenth of the steps", n["early"], ""],
        ["at the end", n["one layer"], n["one layer, training"]],
        ["twice as many steps", n["longer"], n["longer, training"]],
        ["as many parameters (untied is narrower)", n["parameters"], n["parameters, training"]],
        ["a tenth of the text, each at its best", n["tenth"], n["tenth, training"]],
    )
    early = n["early"].words(below="ahead", above="behind", none="not found to differ")
    at_the_end = better_or_worse(n["one layer"])
    on_a_tenth = if_known(
        [n["tenth"]],
        f"tied is {better_or_worse(n['tenth'])}",
        otherwise="whether tied is better is not known yet",
    )
    training_loss = n["tenth, training"].words(
        below="lower", above="higher", none="not found to differ"
    )
    steps = MODELS["tenth"].size.steps  # a test checks that the pilot tried no more steps
    return f"""\
The claim is that untied learns faster at first, and that tying regularises ([Press & Wolf
2017](https://arxiv.org/abs/1608.05859), [Inan et al. 2017](https://arxiv.org/abs/1611.01462)).

{rows}

- Verdict: tied is {early} after a tenth of the steps and {at_the_end} at the end. On a tenth of the
  text, where a regulariser would help most, {on_a_tenth}; its loss on the training text is
  {training_loss}, and a regulariser would make that loss higher.
- Varied: the steps, the amount of text, the number of parameters. For the tenth the pilot chose the
  rate and the number of steps together: {steps:,} steps, the most that it tried, were best. Not
  varied: dropout, weight decay. [MobileLLM](https://arxiv.org/abs/2402.14905) ties and spends the
  parameters on layers.
"""


# 7


def similarity_numbers(runs: Runs) -> Numbers:
    """How similar the tied matrix is to W_U ("out") and to W_E ("in") of an untied model.

    The similarity of two matrices is the rank correlation of the cosines of all pairs of tokens. It
    is measured for the matrices as they are ("out 0"), and without their mean and first two
    principal components ("out 2"). The models have the rates of the table.
    """
    tied = MODELS["one layer"].run("tied")
    untied = MODELS["one layer"].run("untied")
    # The two models have different seeds. In the pair (1, 2), 1 is the seed of the first model.
    seed_pairs = list(zip(SEEDS[::2], SEEDS[1::2], strict=True))  # (1, 2), (3, 4), ...
    both_orders: list[Seed] = []
    for a, b in seed_pairs:
        both_orders += [(a, b), (b, a)]

    numbers: Numbers = {}
    for removed in (0, 2):
        out = runs.similarity_term(untied, tied, "out and tied", removed=removed)
        into = runs.similarity_term(untied, tied, "in and tied", removed=removed)
        numbers[f"out {removed}"] = runs.figure(out, seeds=both_orders)
        numbers[f"in {removed}"] = runs.figure(into, seeds=both_orders)
        numbers[f"out - in {removed}"] = runs.figure(out, subtracted(into), seeds=both_orders)
        # Two models that differ in the seed alone: no similarity can be expected to be higher.
        numbers |= ceilings(runs, tied=tied, untied=untied, removed=removed, seeds=seed_pairs)

    numbers["no layers"] = nearer_to_output(
        runs,
        untied=MODELS["no layers"].run("untied"),
        tied=MODELS["no layers"].run("tied"),
        seeds=both_orders,
    )
    return numbers | factor_numbers(runs, tied, untied) | ratio_numbers(runs, tied)


def ceilings(runs: Runs, tied: Run, untied: Run, removed: int, seeds: Sequence[Seed]) -> Numbers:
    """How similar a matrix is to the same matrix of a model that differs in the seed alone.

    Each pair of seeds is in `seeds` in one order: the other order compares the same two models.
    """
    # The tied matrix of the first model is called "in", the tied matrix of the second "tied".
    two_tied = runs.similarity_term(tied, tied, "in and tied", removed=removed)
    two_out = runs.similarity_term(untied, untied, "out and out", removed=removed)
    two_in = runs.similarity_term(untied, untied, "in and in", removed=removed)
    return {
        f"two tied {removed}": runs.figure(two_tied, seeds=seeds),
        f"two untied, out {removed}": runs.figure(two_out, seeds=seeds),
        f"two untied, in {removed}": runs.figure(two_in, seeds=seeds),
    }


def nearer_to_output(runs: Runs, untied: Run, tied: Run, seeds: Sequence[Seed]) -> Figure:
    """The similarity of the tied matrix to an untied model's W_U, minus that to its W_E."""
    return runs.figure(
        runs.similarity_term(untied, tied, "out and tied"),
        subtracted(runs.similarity_term(untied, tied, "in and tied")),
        seeds=seeds,
    )


def factor_numbers(runs: Runs, tied: Run, untied: Run) -> Numbers:
    """What changes if the input's part of the tied matrix's gradient is multiplied by a factor.

    "factor FACTOR" is how much more similar the tied matrix is to W_U than to W_E of an untied
    model. "loss FACTOR" is the loss with the factor minus the loss of the usual tied model.
    """
    numbers: Numbers = {}
    for factor in INPUT_GRADIENTS:
        changed = replace(tied, input_gradient=factor)
        numbers[f"factor {factor:g}"] = nearer_to_output(
            runs, untied=untied, tied=changed, seeds=SIMILARITY_PAIRS
        )
        numbers[f"loss {factor:g}"] = runs.figure(
            runs.run_term(changed, "loss"),
            subtracted(runs.run_term(tied, "loss")),
            seeds=SIX_SEEDS,
        )
    return numbers


def ratio_numbers(runs: Runs, tied: Run) -> Numbers:
    """How much larger the output's part of the tied matrix's gradient is than the input's part.

    A ratio is the norm of the output's part, divided by the norm of the input's part.
    """
    ratios = (
        "ratio, tenth 1",  # the mean over the first tenth of the steps
        "ratio, after a tenth",  # the mean over the other steps
        "ratio, peak",  # the highest
    )
    numbers: Numbers = {}
    for batch in (tied.batch, *BATCHES):  # numbers of sequences
        # Only a training with a factor computes the two parts apart. The factor 1 changes nothing.
        run = replace(tied, input_gradient=1.0, batch=batch)
        for ratio in ratios:
            numbers[f"batch {batch}, {ratio}"] = runs.figure(
                runs.run_term(run, ratio), seeds=SIX_SEEDS
            )
    return numbers


def similarity_text(n: Numbers) -> str:
    """Claim 7: the tied matrix is like an output matrix, as the output's gradient is larger."""
    rows = table(
        ["principal components removed (with the mean)", "0", "2"],
        ["`W_U` and the tied matrix", n["out 0"], n["out 2"]],
        ["`W_E` and the tied matrix", n["in 0"], n["in 2"]],
        ["the difference", n["out - in 0"], n["out - in 2"]],
        ["ceiling: two tied models", n["two tied 0"], n["two tied 2"]],
        ["ceiling: `W_U` of two untied models", n["two untied, out 0"], n["two untied, out 2"]],
        ["ceiling: `W_E` of two untied models", n["two untied, in 0"], n["two untied, in 2"]],
    )
    # Whether the tied matrix is more like W_U than like W_E.
    more_than = n["out - in 0"].words(below="less than", above="more than", none="as much as")
    loss_changes = n["loss 5"].words(below="falls", above="rises", none="is not found to change")
    without_layers = n["no layers"].words(below="found not to be", above="found", none="not found")
    effect_of_factor = if_known(
        [n["factor 5"], n["loss 5"]],
        f"With the input's gradient times 5 the difference is {n['factor 5']}, and the loss "
        f"{loss_changes} ({n['loss 5']}).",
        otherwise="Whether that is due to the larger gradient is not known yet.",
    )
    return f"""\
The claim is that the tied matrix becomes more like the output matrix of an untied model than like
its input matrix (Press & Wolf 2017), because the output's gradient is larger ([Lopardo et al.
2026](https://arxiv.org/abs/2603.26663): 83 % of the gradient, 6 times the input's). A number is the
rank correlation of the cosines of all pairs of tokens, between two models with one layer and
different seeds.

{rows}

{table_of_factors(n)}

{table_of_ratios(n)}

- Verdict: tokens that are close in the tied matrix are close in `W_U` ({n["out 0"].show(2)})
  {more_than} in `W_E` ({n["in 0"].show(2)}). Whether this is so without layers is
  {without_layers} ({n["no layers"]}).
  {effect_of_factor}
- Varied: one layer or none, the components that are removed, the factor, the batch. Not varied: the
  width.
"""


def table_of_factors(n: Numbers) -> str:
    """What changes if the input's part of the gradient is multiplied by a factor."""
    rows = []
    for factor in INPUT_GRADIENTS:
        rows.append([f"{factor:g}", n[f"factor {factor:g}"], n[f"loss {factor:g}"]])
    return table(
        [
            "the input's gradient times",
            "how much nearer the tied matrix is to `W_U` than to `W_E`",
            "loss, minus that of the usual tied model",
        ],
        *rows,
    )


def table_of_ratios(n: Numbers) -> str:
    """The norm of the output's part of the gradient, divided by that of the input's part."""
    rows = []
    for batch in (ONE.batch, *BATCHES):
        first_tenth = n[f"batch {batch}, ratio, tenth 1"].show(2)
        later = n[f"batch {batch}, ratio, after a tenth"].show(2)
        highest = n[f"batch {batch}, ratio, peak"].show(1)
        rows.append([f"batches of {batch}", first_tenth, later, highest])
    return table(
        ["output's gradient over input's", "first tenth of the steps", "later", "highest"], *rows
    )


# 8


def saving_numbers(runs: Runs) -> Numbers:
    """The CPU time of an untied training step, divided by that of a tied one; two vocabularies."""
    numbers: Numbers = {}
    for V in VOCABULARIES:
        # A timing has no seed. It is repeated, and the number of the repetition takes its place.
        numbers[f"time {V}"] = runs.figure(runs.time_term(V), seeds=tuple(TIMINGS))
    return numbers


def saving_text(n: Numbers) -> str:
    """Claim 8: tying saves one matrix, and time. A test checks the numbers of the commands."""
    slow = n["time 16384"]  # untied / tied; above 1, tying saves time
    fast = n["time 1024"]
    if slow.low > 1:
        saving_is = "found with the larger vocabulary"
    else:
        saving_is = "not found"
    return f"""\
The claim is that tying saves one matrix, and time.

```console
$ tiedgpt params gpt2                                        # tying saves 38.6M, 23.7 %
$ tiedgpt params gpt2-xl                                     # tying saves 80.4M, 4.9 %
$ tiedgpt params --vocab 128256 --dim 8192 --total 70.6e9    # tying saves 1.1B, 1.5 %
```

- Verdict: the matrix is a smaller share of a larger model with the same vocabulary. That tying
  saves time is {saving_is}: with one layer, the CPU time of an untied training step is
  {slow.show(2)} times that of a tied one with 16,384 tokens, and {fast.show(2)} times with 1,024.
- Varied: the vocabulary. Not varied: the width. The timings are {n["time 1024"].n}, on one machine.
"""


# 9


def swap_numbers(runs: Runs) -> Numbers:
    """The losses of untied models with one layer, if `x @ wte.T` replaces their head `x @ W_U`.

    "swapped" has the logits of `x @ wte.T`, "swapped, scaled" these logits times a fitted scale.
    "swapped, scaled, with counts" also adds the token counts. For the model whose W_U starts at
    random, "A - B" is one of these losses minus the loss of a prediction without a model.
    """
    numbers: Numbers = {}
    for head in ("untied", "copy", "zeros"):
        for measure in ("loss", "swapped", "swapped, scaled", "swapped, scaled, with counts"):
            numbers[f"{head}, {measure}"] = runs.measure("one layer", head, measure)
    without_model = {
        "swapped": "uniform loss",  # all tokens are equally likely
        "swapped, scaled": "uniform loss",
        "swapped, scaled, with counts": "unigram loss",  # the token counts alone
    }
    for swapped, simple in without_model.items():
        numbers[f"{swapped} - {simple}"] = runs.figure(
            runs.term("one layer", "untied", swapped), subtracted(runs.text_term(simple))
        )
        numbers[simple] = runs.of_text(simple)
    return numbers


def swap_text(n: Numbers) -> str:
    """Claim 9: after training, `x @ wte.T` can replace the head `x @ W_U` of an untied model."""

    def row(label: str, measure: str) -> list[object]:
        """A row with a measure of the three models."""
        return [label] + [n[f"{head}, {measure}"] for head in ("untied", "copy", "zeros")]

    rows = table(
        ["one layer, by the start of `W_U`", "untied", "copy", "zeros"],
        row("own head", measure="loss"),
        row("`x @ wte.T`", measure="swapped"),
        row("with a fitted scale", measure="swapped, scaled"),
        row("with a fitted scale, and the token counts", measure="swapped, scaled, with counts"),
    )
    swapped_is = better_or_worse_than(n["swapped - uniform loss"])
    scaled_is = better_or_worse(n["swapped, scaled - uniform loss"])
    with_counts_is = better_or_worse_than(n["swapped, scaled, with counts - unigram loss"])
    return f"""\
The claim is that after training, `x @ wte.T` can replace `x @ W_U`.

{rows}

- Verdict: the swapped head is {swapped_is} a uniform guess ({n["uniform loss"]}); with a
  fitted scale it is {scaled_is}. With a fitted scale and the token counts it is {with_counts_is}
  the counts alone ({n["unigram loss"]}).
- Varied: the start of `W_U`, the scale, the counts.
"""


# 10


def width_numbers(runs: Runs) -> Numbers:
    """The cost of the tie by width, with one layer and without, and on a second text.

    "LAYERS, WIDTH, cost" is the cost of the tie, "LAYERS, WIDTH, signs" the cost of tied with
    signs. "LAYERS, WIDTH, parameters" is the loss of the tied model minus that of the narrower
    untied model, which has about as many parameters.
    """
    numbers: Numbers = {}
    models_by_layers = {1: WIDTHS, 0: NO_LAYER_WIDTHS}
    for layers, models in models_by_layers.items():
        for width, model in models.items():
            name = f"{layers}, {width}"
            tied = (model, "tied")
            narrower = (f"{model}, narrower", "untied")
            numbers[f"{name}, cost"] = runs.cost(model)
            numbers[f"{name}, signs"] = runs.cost(model, tied="signs")
            numbers[f"{name}, parameters"] = runs.difference(tied, minus=narrower)
    # The models of the second text, and what their figures are called.
    called = {"second text": "second text", "second text, width 128": "second, 128"}
    for model, name in called.items():
        numbers[f"{name}, cost"] = runs.cost(model)
        numbers[f"{name}, signs"] = runs.cost(model, tied="signs")
    # "one layer" has the width 64.
    numbers["16 to 64"] = runs.rise_of_cost(before="width 16", after="one layer")
    numbers["64 to 128"] = runs.rise_of_cost(before="one layer", after="width 128")
    return numbers


def width_text(n: Numbers) -> str:
    """Claim 10: the cost of the tie depends on the width, and on the text."""

    def row(label: str, name: str) -> list[object]:
        """A row with the costs whose names begin with `name`: "LAYERS, WIDTH" or a second text."""
        # On the second text no narrower model is trained, and its cell stays empty.
        return [
            label,
            n[f"{name}, cost"],
            n[f"{name}, signs"],
            n.get(f"{name}, parameters", ""),
        ]

    rows = [row(f"one layer, width {width}", name=f"1, {width}") for width in WIDTHS]
    rows += [row(f"no layers, width {width}", name=f"0, {width}") for width in NO_LAYER_WIDTHS]
    rows.append(row("one layer, width 64, Python's documentation", name="second text"))
    rows.append(row("one layer, width 128, Python's documentation", name="second, 128"))
    costs = table(
        ["", "cost of the tie", "cost of tied with signs", "cost at equal numbers of parameters"],
        *rows,
    )

    return f"""\
The question is whether the cost of the tie depends on the width, or on the text.

{costs}

- Verdict: {width_verdict(n)} {parameters_verdict(n)}
- Varied: the width, one layer or none, the text, and whether the untied model is as wide or has as
  many parameters. All have two heads. The narrower untied models have the rate of the wider ones.
"""


def width_verdict(n: Numbers) -> str:
    """How the cost with one layer changes with the width."""

    # Where the interval of a change is too wide to tell, the change is "not known yet", and the
    # interval is printed.
    def falls_or_rises(change: Figure) -> str:
        return change.words(below="falls", above="rises", none="is not found to change")

    # The first sentence follows "Verdict:", so it begins with a small letter.
    to_128 = n["64 to 128"]
    first = if_known(
        [to_128],
        f"from width 64 to 128 the cost with one layer {falls_or_rises(to_128)} (the change is "
        f"{to_128}).",
        otherwise="how the cost with one layer changes from width 64 to 128 is not known yet "
        f"({to_128}).",
    )
    to_64 = n["16 to 64"]
    second = if_known(
        [to_64],
        f"From width 16 to 64 it {falls_or_rises(to_64)} (the change is {to_64}).",
        otherwise=f"How it changes from width 16 to 64 is not known yet ({to_64}).",
    )
    return f"{first} {second}"


def parameters_verdict(n: Numbers) -> str:
    """Whether a tied model is better than a narrower untied one with as many parameters."""
    verdicts = []
    for width in WIDTHS:
        difference = n[f"1, {width}, parameters"]
        tied_is = difference.words(
            below="tied is better", above="tied is worse", none="no difference is found"
        )
        verdicts.append(f"width {width}, {tied_is}")
    return f"At equal numbers of parameters and one layer: {'; '.join(verdicts)}."


# 11


def stability_numbers(runs: Runs) -> Numbers:
    """How many trainings with one layer fail, by head and learning rate.

    A training fails if its loss ends above "limit", the mean loss of the best model without layers.
    """
    # The untied model is the best one.
    numbers: Numbers = {"limit": runs.measure("no layers", "untied")}
    limit = numbers["limit"].mean
    for head in ("tied", "signs", "untied"):
        for rate in STABILITY_RATES:
            numbers[f"{head}, {rate:g}"] = runs.failing(head, rate, limit=limit)
    return numbers


def stability_text(n: Numbers) -> str:
    """Claim 11: tied models need lower learning rates."""
    # as_count() is such as "2 of 12".
    rows = []
    for head in ("tied", "signs", "untied"):
        counts = [n[f"{head}, {rate:g}"].as_count() for rate in STABILITY_RATES]
        rows.append([head, *counts])
    rates = [f"{rate:g}" for rate in STABILITY_RATES]
    failures = table(["one layer, trainings that fail, by rate", *rates], *rows)

    fast = STABILITY_RATES[1]  # the rate at which the heads differ most
    tied = n[f"tied, {fast:g}"]
    untied = n[f"untied, {fast:g}"]
    all_are_done = tied.n == tied.expected and untied.n == untied.expected  # numbers of seeds
    if all_are_done:
        verdict = (
            f"at a rate of {fast:g}, {tied.as_count()} tied trainings fail and "
            f"{untied.as_count()} untied ones."
        )
    else:
        verdict = "not known yet."
    return f"""\
The question is whether a tied model can be trained at the same learning rates. A training fails if
it ends worse than the best model without layers ({n["limit"].show(3)}), so that its layer is of no
use.

{failures}

- Verdict: {verdict}
- Varied: the rate and the head. Not varied: warm-up, clipping, the width.
"""


# 12


def later_numbers(runs: Runs) -> Numbers:
    """The loss of a model with one layer that is tied first and untied later.

    "STEPS" is the loss of a model that is untied after so many steps, minus the loss of one that is
    untied from the start. "never" is the same difference for a model that stays tied.

    When a model is untied, W_U starts with the averages that AdamW has for W_E. "STEPS, new" is the
    loss if they start at 0 instead, minus the loss without this change.
    """
    tied = replace(ONE, lr=UNTIE_RATE)
    untied = replace(tied, head="untied")

    def difference_of_losses(first: Run, minus: Run) -> Figure:
        terms = (runs.run_term(first, "loss"), subtracted(runs.run_term(minus, "loss")))
        return runs.figure(*terms, seeds=SIX_SEEDS)

    numbers: Numbers = {"never": difference_of_losses(tied, minus=untied)}
    for steps in UNTIE_AFTER:
        later = replace(tied, untie_after=steps)
        with_new_averages = replace(later, new_averages=True)
        numbers[f"{steps}"] = difference_of_losses(later, minus=untied)
        numbers[f"{steps}, new"] = difference_of_losses(with_new_averages, minus=later)
    return numbers


def later_text(n: Numbers) -> str:
    """Claim 12: tie first, untie later."""
    third, two_thirds = UNTIE_AFTER  # numbers of steps
    after_third = n[f"{third}"]
    rows = table(
        ["one layer, tied for", "loss minus that of untied from the start"],
        ["a third of the steps", after_third],
        ["two thirds", n[f"{two_thirds}"]],
        ["all steps", n["never"]],
    )
    verdict = if_known(
        [after_third],
        f"a model that is tied for a third of the steps is {better_or_worse_than(after_third)} one "
        f"that is untied from the start. If AdamW's averages for `W_U` start at 0 when it is "
        f"untied, the loss changes by {n[f'{third}, new']} (a third) and "
        f"{n[f'{two_thirds}, new']} (two thirds).",
        otherwise="not known yet.",
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
    """The cost of the tie on Markov chains, by the JSD of the chain, and how it grows with the JSD.

    The models have no layers. "JSD, cost" is the cost of the tie, "JSD, signs" the cost of tied
    with signs. "JSD to JSD" is how much this cost of tied with signs rises between the two JSDs.
    """
    numbers: Numbers = {}
    for jsd in JSDS:
        model = f"chain {jsd:g}"
        numbers[f"{jsd:g}, cost"] = runs.cost(model, measure="excess")
        numbers[f"{jsd:g}, signs"] = runs.cost(model, tied="signs", measure="excess")
        # The loss of a tied model without signs minus the loss of a tied model with signs.
        numbers[f"{jsd:g}, by signs"] = runs.difference(
            (model, "tied"), minus=(model, "signs"), measure="excess"
        )
    for before, after in pairwise(JSDS):
        numbers[f"{before:g} to {after:g}"] = runs.rise_of_cost(
            before=f"chain {before:g}", after=f"chain {after:g}", tied="signs"
        )
    return numbers


def asymmetry_text(n: Numbers) -> str:
    """Claim 13: the tie costs what the asymmetry of the text costs a symmetric table."""
    rows = table(
        ["Markov chain without layers, by its asymmetry (JSD)", *(f"{jsd:g}" for jsd in JSDS)],
        ["cost of the tie"] + [n[f"{jsd:g}, cost"] for jsd in JSDS],
        ["cost of tied with signs"] + [n[f"{jsd:g}, signs"] for jsd in JSDS],
    )
    costs_of_signs = ", ".join(n[f"{jsd:g}, signs"].show_mean(2) for jsd in JSDS)
    rises = [n[f"{before:g} to {after:g}"] for before, after in pairwise(JSDS)]
    if all(rise.verdict == "above" for rise in rises):
        growth = "grows with every step"
    else:
        growth = "does not grow with every step"
    # At half of the rate of "signs", the cost on the symmetric chain is below 0 (runs.jsonl).

    # In a chain, a share of the pairs has one order, and the rest has the reverse. The share is
    # (1 + t) / 2, where t is from 0 to 1 and follows from the JSD.
    highest_jsd = JSDS[-1]
    t = asymmetry(highest_jsd)
    percentage_of_one_order = 100 * (1 + t) / 2
    return f"""\
The claim is that the tie costs what the asymmetry of the text costs a symmetric table.

![What the tie costs on Markov chains](chains.png)

{rows}

- Verdict: for tied models with signs, the cost {growth} of the asymmetry: {costs_of_signs}. On the
  symmetric chain it is {n["0, signs"]}, and its sign depends on the learning rate. At the start a
  tied model without signs gives each token a high score for itself. Its loss minus that of tied
  with signs is {n["0, by signs"]} on the symmetric chain and {n[f"{highest_jsd:g}, by signs"]} on
  the most asymmetric one, where {percentage_of_one_order:.1f} % of the pairs occur in one order.
- Varied: the asymmetry. Each seed has a chain of its own, so the intervals are also about chains.
  The rates are those of the middle chain. Not varied: how well rows and columns agree, which
  falls as the asymmetry rises.
"""


# 14


def classes_numbers(runs: Runs) -> Numbers:
    """The cost of the tie on chains whose tokens have classes.

    The first class of a token decides its successors, the second class its predecessors. For a
    share of the tokens both classes are the same. With noise, the tokens of a class differ.

    A model is named by the share and two endings: "classes 0.5, noise, one layer".
    """
    numbers: Numbers = {}
    for layer_ending in LAYER_ENDINGS:
        for share in CLASS_SHARES:
            for noise_ending in NOISE_ENDINGS:
                model = f"classes {share:g}{noise_ending}{layer_ending}"
                numbers[f"{model}, cost"] = runs.cost(model, measure="excess")
                has_layer = layer_ending != ""
                if not has_layer:  # models with a layer are not trained with signs here
                    numbers[f"{model}, signs"] = runs.cost(model, tied="signs", measure="excess")
    # The cost with a share of 0 minus the cost with a share of 1, without noise and layers.
    numbers["apart"] = runs.rise_of_cost(before="classes 1", after="classes 0")
    return numbers


def classes_text(n: Numbers) -> str:
    """Claim 14: tokens that are alike as input must be alike as output."""
    rows: list[list[object]] = []
    for layer_ending in LAYER_ENDINGS:
        for noise_ending in NOISE_ENDINGS:
            # The ending is ", one layer", or "" for the models without layers.
            label = f"cost of the tie{noise_ending}{layer_ending}"
            if layer_ending == "":
                label += ", no layers"
            row: list[object] = [label]
            for share in CLASS_SHARES:
                row.append(n[f"classes {share:g}{noise_ending}{layer_ending}, cost"])
            rows.append(row)
    percentages = [f"{100 * share:.0f} %" for share in CLASS_SHARES]
    costs = table(["tokens whose successors and predecessors go together", *percentages], *rows)
    # The cost with a share of 0 % minus the cost with a share of 100 %.
    rise = n["apart"]
    costs_more = rise.words(
        below="costs less", above="costs more", none="is not found to cost more or less"
    )
    verdict = if_known(
        [rise],
        f"without layers, at the same asymmetry, entropy and counts, the tie {costs_more} where "
        f"tokens with the same successors do not have the same predecessors, by {rise}.",
        otherwise="not known yet.",
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
    """The loss of models without layers and with W_U = M W_E^T, minus that of untied ones.

    M is trained, and starts as a random rotation or as the identity. "tied" and "signs" are the
    costs of tied models, which have no M.
    """
    numbers: Numbers = {
        "tied": runs.cost("no layers"),
        "signs": runs.cost("no layers", tied="signs"),
    }
    for start in ("rotation", "identity"):  # heads of the model "map"
        numbers[start] = runs.difference(("map", start), minus=("no layers", "untied"))
    return numbers


def map_text(n: Numbers) -> str:
    """Claim 15: a trained map M in place of a second matrix, W_U = M W_E^T."""
    rows = table(
        ["no layers", "loss minus that of untied"],
        ["tied", n["tied"]],
        ["tied with signs", n["signs"]],
        ["`M W_E^T`, M starts as the identity", n["identity"]],
        ["`M W_E^T`, M starts as a random rotation", n["rotation"]],
    )
    rotation = n["rotation"]
    if n["tied"].verdict == "above" and rotation.is_known:
        # The part of the cost of the tie that M does not recover.
        share_left = rotation.mean / n["tied"].mean
        recovered = 100 * (1 - share_left)
        # "An eighth": M has D x D numbers and a second matrix V x D. With D = 64 and V = 512 the
        # ratio is D / V = 1 / 8.
        verdict = (
            f"a map that starts as a random rotation recovers {recovered:.0f} % of the cost of the "
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
