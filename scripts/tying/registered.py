"""The registered experiment: its table, which run comes next, and how a run is measured.

Its predictions and its analysis stand in scripts/tying_results/registered.md, which is older than
its first run. It differs from the runs of runs.py in this:

- the text is 26 MB of English (english.py), and no token of it is trained on twice;
- each arm has a pilot in its own cell, of half the steps, which tries rates and starts together;
- pilots are judged on a part of the text that is used for nothing else.

A cell is a vocabulary, a number of layers and a width. Its arms are

    tied       the output matrix is the token embedding
    untied     it is another matrix; the width is the same
    narrower   untied, of as many parameters as the tied model, by a smaller width

and, in two cells, two more untied ones of about as many parameters as the tied model:

    shallower  one layer less
    sharing    its last two layers have the same weights
"""

import math
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from tiedgpt import count_parameters
from tiedgpt.training.merges import learn_tokenizer

from .english import FILES
from .runs import Line, Results, Run, key_of
from .trainer import Training, config, drawn_once, loss_of, losses_of

TEXT = FILES["train.txt"][:12]  # the name of the text in registered.jsonl
STEPS = 3200
PILOT_STEPS = 1600
PILOT_SEEDS = (101, 102, 103)
SEEDS_12 = tuple(range(1, 13))
SEEDS_18 = tuple(range(1, 19))  # where models of different widths are compared
TIED_STARTS = (0.05, 0.1)
UNTIED_STARTS = (0.1, 0.2)
CURVE = 400  # steps between the losses of a learning curve
CURVE_TOKENS = 16_385  # of the held-out text
# A token belongs to the first of these that is above its count in the training tokens of the run.
COUNTS = (1, 3, 10, 30, 100, 300, 1_000, 3_000, 10_000, 30_000, math.inf)


# ---- The table ----


@dataclass(frozen=True)
class Arm:
    """A model of a cell: what its pilot tries, and the seeds of its final runs."""

    cell: str
    name: str
    model: Run  # without a rate, a start and a seed
    starts: tuple[float, ...]
    rates: tuple[float, ...]
    seeds: tuple[int, ...]


def number_of_parameters(model: Run) -> int:
    """The number of parameters that are trained."""
    counts = count_parameters(config(model))
    total = counts["tied" if model.head == "tied" else "untied"]["total"]
    one_layer = count_parameters(config(replace(model, layers=1)))["tied"]["total"]
    no_layer = count_parameters(config(replace(model, layers=0)))["tied"]["total"]
    copies = max(model.same_layers - 1, 0)  # layers that have the weights of another layer
    return int(total - copies * (one_layer - no_layer))


def narrower(tied: Run) -> Run:
    """The untied model whose number of parameters is nearest, by an even width (two heads)."""
    wanted = number_of_parameters(tied)
    models = [replace(tied, head="untied", width=width) for width in range(2, tied.width + 1, 2)]
    return min(models, key=lambda model: abs(number_of_parameters(model) - wanted))


def arms_of(vocab_size: int, layers: int, width: int = 64) -> dict[str, Arm]:
    """The arms of a cell that every cell has."""
    cell = f"{vocab_size}-{layers}" + ("" if width == 64 else f"-w{width}")
    rates = (0.004, 0.008, 0.016) if width == 64 else (0.002, 0.004, 0.008)
    tied = Run(layers=layers, vocab_size=vocab_size, width=width, once=True)
    untied = replace(tied, head="untied")
    return {
        "tied": Arm(cell, "tied", tied, TIED_STARTS, rates, SEEDS_18),
        "untied": Arm(cell, "untied", untied, UNTIED_STARTS, rates, SEEDS_12),
        "narrower": Arm(cell, "narrower", narrower(tied), UNTIED_STARTS, rates, SEEDS_18),
    }


def shallower(arm: Arm) -> Arm:
    model = replace(arm.model, layers=arm.model.layers - 1)
    return replace(arm, name="shallower", model=model, seeds=SEEDS_18)


def sharing(arm: Arm) -> Arm:
    model = replace(arm.model, same_layers=2)
    return replace(arm, name="sharing", model=model, seeds=SEEDS_18)


SMALL_1, MIDDLE_1, LARGE_1 = arms_of(512, 1), arms_of(2048, 1), arms_of(8192, 1)
SMALL_2, MIDDLE_2, LARGE_2 = arms_of(512, 2), arms_of(2048, 2), arms_of(8192, 2)
SMALL_4, MIDDLE_4, LARGE_4 = arms_of(512, 4), arms_of(2048, 4), arms_of(8192, 4)
WIDE_1 = arms_of(2048, 1, width=128)

# In the order in which they are trained: what decides most comes first.
ARMS = [
    # P1: one layer, as many parameters
    *(SMALL_1["tied"], SMALL_1["narrower"]),
    *(MIDDLE_1["tied"], MIDDLE_1["narrower"]),
    # P3: the same width, one layer and two
    *(SMALL_1["untied"], SMALL_2["tied"], SMALL_2["untied"]),
    *(MIDDLE_1["untied"], MIDDLE_2["tied"], MIDDLE_2["untied"]),
    *(SMALL_2["narrower"], MIDDLE_2["narrower"]),
    # The saving spent elsewhere
    *(shallower(SMALL_2["untied"]), sharing(SMALL_2["untied"])),
    # P2: four layers; P1 and P4 at 8,192 tokens
    *(SMALL_4["tied"], SMALL_4["narrower"], MIDDLE_4["tied"], MIDDLE_4["narrower"]),
    *LARGE_1.values(),
    *(shallower(SMALL_4["untied"]), sharing(SMALL_4["untied"])),
    # The rest of the ten cells, for the law
    *(SMALL_4["untied"], MIDDLE_4["untied"]),
    *WIDE_1.values(),
    *LARGE_2.values(),
    *LARGE_4.values(),
]


# ---- Which run comes next ----


@dataclass(frozen=True)
class Pilot:
    """What the pilot of an arm has found, by start and rate."""

    losses: dict[tuple[float, float], float]  # means over the pilot's seeds
    missing: list[Run]  # runs that are to be done before more is known

    @property
    def best(self) -> tuple[float, float]:
        """The start and the rate with the lowest mean loss; of equal ones, the first tried."""
        return min(self.losses, key=self.losses.__getitem__)


def pilot(arm: Arm, results: Results) -> Pilot:
    """Try each start with each rate. While the best rate is the lowest or the highest of its start,
    try half of it, or twice as much, with this start.
    """
    losses: dict[tuple[float, float], float] = {}
    todo = [(start, rate) for start in arm.starts for rate in arm.rates]
    while todo:
        missing = []
        for start, rate in todo:
            runs = [pilot_run(arm, start, rate, seed) for seed in PILOT_SEEDS]
            found = [results.get(key_of(run.as_json, TEXT)) for run in runs]
            missing += [run for run, result in zip(runs, found, strict=True) if result is None]
            losses[start, rate] = sum(loss_or_inf(result) for result in found) / len(runs)
        if missing:
            return Pilot(losses, missing)

        # If the best rate is the lowest or the highest, another one may be better.
        start, rate = min(losses, key=losses.__getitem__)
        tried = [other_rate for other_start, other_rate in losses if other_start == start]
        todo = []
        if rate == min(tried):
            todo = [(start, rate / 2)]
        elif rate == max(tried):
            todo = [(start, rate * 2)]
    return Pilot(losses, missing=[])


def loss_or_inf(result: Line | None) -> float:
    """The loss of a run; infinite if it diverged or is not done."""
    return math.inf if result is None else result.get("loss", math.inf)


def pilot_run(arm: Arm, start: float, rate: float, seed: int) -> Run:
    return replace(arm.model, steps=PILOT_STEPS, table=start, lr=rate, seed=seed)


def final_runs(arm: Arm, results: Results) -> list[Run] | None:
    """The final runs of an arm; None while its pilot is not finished."""
    found = pilot(arm, results)
    if found.missing:
        return None
    start, rate = found.best
    model = replace(arm.model, steps=STEPS, table=start, lr=rate)
    return [replace(model, seed=seed) for seed in arm.seeds]


def next_runs(results: Results) -> Iterator[Run]:
    """The runs that are not done, in the order of the table, as far as they are known."""
    for arm in ARMS:
        yield from pilot(arm, results).missing
        for run in final_runs(arm, results) or []:
            if key_of(run.as_json, TEXT) not in results:
                yield run


# ---- A run ----


@dataclass(frozen=True)
class Parts:
    """The three parts of the text as tokens. The merges are learned from the first."""

    train: np.ndarray
    choose: np.ndarray
    held_out: np.ndarray
    choose_bytes: int  # of the tokens that are predicted: all but the first
    held_out_bytes: int


@cache
def read_parts(directory: Path, vocab_size: int) -> Parts:
    """The text that english.py has written into a directory.

    A worker makes the tokens once for all of its runs.
    """
    texts = [(directory / name).read_text(encoding="utf-8") for name in FILES]
    tokenizer = learn_tokenizer(texts[0], vocab_size)
    train, choose, held_out = (np.array(tokenizer.encode(text), np.int64) for text in texts)
    sizes = np.array([len(tokenizer.token_bytes(token)) for token in range(vocab_size)])
    choose_bytes = int(sizes[choose[1:]].sum())
    held_out_bytes = int(sizes[held_out[1:]].sum())
    return Parts(train, choose, held_out, choose_bytes, held_out_bytes)


def do_run(run: Run, directory: Path) -> Line:
    """Train a model and measure it; numbers have six significant digits.

    loss            nats per token, of the held-out text, or in a pilot of the text for choosing
    bits per byte   the same loss
    curve           [steps, loss] on the first tokens of the same text
    training curve  [steps, loss] on the sequences of the last CURVE steps, each predicted before it
                    is trained on
    by count        [tokens, nats] of the same text, by how often the token occurs in the run's
                    training text (COUNTS)
    """
    parts = read_parts(directory, run.vocab_size)
    is_pilot = run.steps == PILOT_STEPS
    measuring = parts.choose if is_pilot else parts.held_out
    measuring_bytes = parts.choose_bytes if is_pilot else parts.held_out_bytes
    training = Training(run)
    curve, training_curve = [], []
    recent = []  # the losses of the steps since the last point of the curves
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # overflow, at much too high a rate
            for step in range(run.steps):
                recent.append(training.step(parts.train, step))
                if (step + 1) % CURVE == 0:
                    training_curve.append([step + 1, digits(float(np.mean(recent)))])
                    curve.append([step + 1, digits(loss_of(training, measuring[:CURVE_TOKENS]))])
                    recent = []
            losses = losses_of(training, measuring).astype(np.float64)
        if not np.isfinite(losses).all():
            raise FloatingPointError
    except FloatingPointError:
        return {"diverged": 1}
    return {
        "loss": digits(losses.mean()),
        "bits per byte": digits(losses.sum() / math.log(2) / measuring_bytes),
        "curve": curve,
        "training curve": training_curve,
        "by count": by_count(losses, measuring[1:], counts_in_training(run, parts.train)),
    }


def digits(value: float) -> float:
    """The number with six significant digits."""
    return float(f"{value:.6g}")


def counts_in_training(run: Run, tokens: np.ndarray) -> np.ndarray:  # [N] -> [V]
    """How often each token is predicted in the training of a run."""
    sequences = drawn_once(run.seed, len(tokens), run.context)[: run.steps * run.batch]
    targets = tokens[sequences[:, None] * run.context + np.arange(1, run.context + 1)]
    return np.bincount(targets.ravel(), minlength=run.vocab_size)


def by_count(
    losses: np.ndarray, targets: np.ndarray, counts: np.ndarray
) -> list[list[float]]:  # [N], [N], [V] -> [len(COUNTS), 2]
    """[tokens, nats] for each of COUNTS."""
    # The group of a token is the place of the first of COUNTS that is above its count.
    group = np.searchsorted(COUNTS, counts, side="right")[targets]
    tokens = np.bincount(group, minlength=len(COUNTS))
    nats = np.bincount(group, weights=losses, minlength=len(COUNTS))
    return [[int(n), digits(total)] for n, total in zip(tokens, nats, strict=True)]
