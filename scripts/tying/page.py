"""The files of the results: the page, the tables, the figures with their terms.

README.md, the page, is for readers. It has a first screen and a section for each claim. tables.md
lists all figures. figures.json has each figure with its terms, so that it can be computed from
runs.jsonl without this code, as tests/test_tying_figures.py does with scipy.

A figure is the mean over seeds of a sum of terms; a term is a measure of a run, added or
subtracted. With "above" a term is a count instead: 1 where the measure is above that number. A
figure of two terms or more is a test of whether the mean is 0. Holm's correction raises the p of
each test, because many tests are done.

A model is a row of the table of settings.py, with a learning rate for each head: "tied", "untied"
and others. Its pilot is trainings at several rates, with seeds of their own. Of the rates whose
mean loss is within CLOSE nats of the lowest mean loss, the pilot chooses the lowest rate; on a
chain, it chooses the rate with the lowest mean loss. Until
then the rate of the table is OPEN. The excess is the loss of a model of a Markov chain, above that
of the chain's own probabilities.
"""

import json
import math
import re
import textwrap
from dataclasses import asdict

from . import first_screen
from .claims import CLAIMS, table
from .figures import WIDE, Figure, Numbers, Runs, Term, correct
from .settings import CLOSE, HEADS, OPEN, SECOND_TEXT, SECOND_TEXT_PYTHON, TABLE, pilot_models

FIRST = "first screen"
COMMANDS = """\
```console
$ python scripts/tying_experiment.py tinyshakespeare.txt OUT                    # trains all
$ python scripts/tying_experiment.py tinyshakespeare.txt OUT --bar "width 64"   # repeats one bar
$ python scripts/tying_experiment.py some-text.txt OUT --claim 3                # one claim
```"""
VERDICTS = {"below": "below 0", "above": "above 0", "none": "no difference found", "unknown": ""}


def all_numbers(runs: Runs) -> dict[str, Numbers]:
    """The figures of each section by name: the first screen and the claims.

    Holm's correction counts the tests of all sections.
    """
    sections = {FIRST: first_screen.numbers(runs)}
    for number, claim in CLAIMS.items():
        sections[f"claim {number}"] = claim.numbers(runs)
    return correct(sections)


def page(runs: Runs) -> str:
    """The text of README.md."""
    sections = all_numbers(runs)
    parts = [first_screen.text(sections[FIRST]), how_to_read(runs)]
    for number, claim in CLAIMS.items():
        text = claim.text(sections[f"claim {number}"])
        parts.append(f"## Claim {number}: {claim.title}\n\n{text}")
    return wrapped("\n".join(parts))


def wrapped(text: str) -> str:
    """The text with lines of at most 110 columns. Tables and commands stay as they are."""
    blocks: list[str] = []
    for block in text.strip().split("\n\n"):
        if block.startswith(("|", "```", "#")):
            blocks.append(block)
            continue
        # If the block is a list, it is split before each line that begins with "- " or "1. ". Else
        # it is one item.
        items = re.split(r"\n(?=- |\d\. )", block)
        blocks.append("\n".join(wrapped_item(item) for item in items))
    return "\n\n".join(blocks) + "\n"


def wrapped_item(item: str) -> str:
    """A paragraph or an item of a list, wrapped. All lines of its text begin in one column."""
    if item.startswith("- "):
        indent = "  "
    elif item[0].isdigit():  # the item begins with "1. "
        indent = "   "
    else:
        indent = ""
    words = " ".join(item.split())
    return textwrap.fill(
        words,
        width=110,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def how_to_read(runs: Runs) -> str:
    """The section of the page that explains its words and how its figures were made.

    The numbers of tokens come from the runs. The other settings are fixed words.
    """
    tokens = runs.of_text("tokens").mean
    held_out = runs.of_text("held out").mean
    return f"""\
## How to read this page

- Models: width 64, a vocabulary of 512 tokens, context 64, 800 steps of 16 sequences, no dropout,
  tinyshakespeare: {tokens:,.0f} tokens to train on, {held_out:,.0f} held out. What differs is said.
  Models of chains (claims 13 and 14) have 64 tokens, context 32 and batches of 32. Each bar of the
  picture is of 12 seeds, or as many as its label says; [tables.md](tables.md) has the number of
  seeds of every other figure, mostly 6 or 12.
- *Tied with signs* is a control: each gain of ln_f starts at 1 or -1 at random. Then tokens do not
  favour themselves at the start, and the model has no additional parameters.
- A difference is taken seed by seed, between models with the same batches. "No difference found"
  means that it is not significant at 5 % after Holm's correction for all differences on this
  page. An interval is not corrected. "Not known yet": runs are missing, or the difference is not
  significant and its interval reaches more than {WIDE:g} from 0.
- *Python's documentation* is `pydoc_data.topics` of Python {SECOND_TEXT_PYTHON}, each paragraph
  once (SHA-256 {SECOND_TEXT}...).
- Tied and untied models each have the learning rate with the lowest mean loss of pilot seeds; of
  rates within {CLOSE:g} nats of it, the lowest (on chains, the one with the lowest loss). Narrower
  models, copies, chains and classes have the rate of a related model. The rates that were tried are
  a factor of 2 apart or more, so a cost of a few hundredths may be that of the rate.
  [tables.md](tables.md) has all rates and all losses.
- "The direct path" is `A = W_E W_U` ([tiedgpt/study/paths.py](../../tiedgpt/study/paths.py));
  *normed* is the same with ln_f, *mlp0* also has the first MLP. Before a path is scored it may be
  stretched and mixed with the token counts; both numbers are fitted on other tokens. A figure is a
  mean over the tokens that occur at least 100 times; in claim 1 it is one over all pairs.
- Left out: "the head destroys 95 to 99 % of the gradient" (Godey & Artzi 2026). A random subspace
  of as many directions loses as much.
- [runs.jsonl](runs.jsonl) has every run, [figures.json](figures.json) what each figure is made of:

{COMMANDS}
"""


def tables(runs: Runs) -> str:
    """tables.md: all models with their losses, the pilot, all figures with their tests."""
    parts = ["# The tables", list_of_heads()]
    parts += ["## models", table_of_models(runs)]
    parts += ["## the pilot", table_of_pilots(runs)]
    for section, numbers in all_numbers(runs).items():
        parts += [f"## {section}", table_of_figures(numbers)]
    return "\n\n".join(parts) + "\n"


def list_of_heads() -> str:
    """The heads: how the output matrix comes from the token embedding."""
    return "\n".join(f"- {head}: {start}" for head, start in HEADS.items())


def table_of_models(runs: Runs) -> str:
    """The rate and the losses of each model of the table, with each of its heads."""
    rows: list[list[object]] = []
    for model in TABLE:
        for head in model.heads:
            held_out = runs.measure(model.name, head, model.loss_measure)
            training = runs.measure(model.name, head, "training loss")
            rate = runs.rate(model, head)
            if rate == OPEN:
                shown_rate = "open"
            else:
                shown_rate = f"{rate:g}"
            rows.append([model.name, head, shown_rate, held_out, training])
    return table(
        ["model", "head", "rate", "held-out loss (chains: excess)", "training loss"], *rows
    )


def table_of_pilots(runs: Runs) -> str:
    """The mean loss of each pilot's seeds by rate, for the rates whose seeds are all done."""
    rows: list[list[object]] = []
    for model, head in pilot_models():
        means = runs.pilot_means(model, head, runs.tried_rates(model, head))
        losses = [f"{rate:g}: {mean:.3f}" for rate, mean in means.items()]
        rows.append([model.name, head, "; ".join(losses)])
    return table(["model", "head", "mean held-out loss (chains: excess) by rate"], *rows)


def table_of_figures(numbers: Numbers) -> str:
    """The figures of a section, with a verdict for each test."""
    rows = [figure_row(name, figure) for name, figure in numbers.items()]
    return table(["", "mean", "sd", "n", "p", "p, Holm", "verdict"], *rows)


def figure_row(name: str, figure: Figure) -> list[object]:
    """The cells of a figure: name, mean, sd, n, p, p after Holm's correction, verdict."""
    if figure.sd == 0:  # it has one seed, or the same value for all seeds
        sd = ""
    else:
        sd = f"{figure.sd:.3f}"
    cells: list[object] = [name, figure, sd, figure.n]
    if not figure.is_test:
        return [*cells, "", "", ""]
    return [*cells, show_p(figure.p), show_p(figure.corrected), VERDICTS[figure.verdict]]


def show_p(p: float) -> str:
    """A p with one significant digit, or "< 1e-12"."""
    if p < 1e-12:
        return "< 1e-12"
    return f"{p:.1g}"


def figures_json(runs: Runs) -> str:
    """figures.json, with each known figure on a line."""
    lines = []
    for section, numbers in all_numbers(runs).items():
        for name, figure in numbers.items():
            if figure.is_known:
                lines.append(json.dumps(figure_json(section, name, figure)))
    return "[\n" + ",\n".join(lines) + "\n]\n"


def figure_json(section: str, name: str, figure: Figure) -> dict[str, object]:
    """A figure as figures.json has it: its terms and seeds, and what was computed from them.

    Raises ValueError for a mean that is not finite, because JSON has no such number.
    """
    if not math.isfinite(figure.mean):
        raise ValueError(f"{section}, {name} is not finite")
    terms = [term_json(term) for term in figure.terms]
    found: dict[str, object] = {"section": section, "name": name}
    found |= {"terms": terms, "seeds": figure.seeds}
    found |= {"mean": figure.mean, "low": figure.low, "high": figure.high, "sd": figure.sd}
    if figure.is_test:
        found |= {"p": figure.p, "holm": figure.corrected}
    return found


def term_json(term: Term) -> dict[str, object]:
    """The fields of a term. Only a count has "above"."""
    fields = asdict(term)
    if term.above is None:
        del fields["above"]
    return fields


def claim(runs: Runs, number: int) -> str:
    """The section of one claim, and its table of figures.

    Holm's correction counts the tests of this section alone.
    """
    chosen = CLAIMS[number]
    corrected = correct({"claim": chosen.numbers(runs)})
    numbers = corrected["claim"]
    title = f"# Claim {number}: {chosen.title}"
    return f"{title}\n\n{chosen.text(numbers)}\n{table_of_figures(numbers)}"


def bar(runs: Runs, name: str) -> tuple[first_screen.Bar, Figure]:
    """The bar of the first screen with this name, and its cost."""
    chosen = next(bar for bar in first_screen.BARS if bar.name == name)
    return chosen, first_screen.bar_costs(runs)[name]
