"""What is trained: one table, and which run comes next.

A Run says everything about one training. A Row of the table is a model that is trained with several
heads: tied, untied, and others (trainer.py). A learning rate that suits one head may not suit
another. So each head of each row has a pilot of its own: trainings with seeds that are used for
nothing else. It tries the rates of the row. While the best of them is the lowest, half of it is
tried too, and while it is the highest, twice as much. The best rate is the one with the lowest mean
held-out loss. A pilot has 800 steps, also for a row with more steps.

The final runs have the best rate and the seeds FINAL_SEEDS. Runs of one seed, vocabulary and size
have the same batches, and the same first weights up to their scale. So models are compared seed by
seed.

Some rows start each head at its best start, which the pilots choose as well: that of BEST_OF with
the lowest loss. Final runs must not choose. The lowest of several means is low in part by luck, and
that luck would be counted as a gain.
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

Line = dict[str, Any]
Results = dict[str, Line]  # what was measured, by the key of the run
TEXT = "86c4e6aa9db7"  # the name of tinyshakespeare.txt (trainer.name_of)


@dataclass(frozen=True)
class Run:
    """One training. Its fields that are not the default are its run in runs.jsonl.

    The head "signs" is tied, and each gain of ln_f starts at 1 or -1 at random. The head "zeros" is
    untied, and W_U starts at 0.
    """

    layers: int = 0
    head: str = "tied"  # or "untied", "signs", "zeros"
    steps: int = 800
    lr: float = 0.0
    seed: int = 0
    vocab_size: int = 512
    width: int = 64
    heads: int = 2  # attention heads of a layer
    context: int = 64
    batch: int = 16
    std: float = 0.02  # the standard deviation of the first weights
    table: float = 0.0  # the same for W_E and W_U alone; 0 means that of all weights
    only_table: str = ""  # "W_E" or "W_U": `table` is for this one alone
    input_scale: float = 1.0  # a token's vector is multiplied by it before the first layer
    W_E_rate: float = 1.0  # W_E has this many times the learning rate
    W_U_rate: float = 1.0  # in a tied model W_U is W_E, and W_E_rate counts
    one_block: bool = False  # all layers have the same weights
    same_layers: int = 0  # the last so many layers have the same weights
    once: bool = False  # no token of the text is trained on twice
    paths: bool = False  # whether the paths through the model are measured too

    @property
    def as_json(self) -> Line:
        """The fields that are not the default."""
        return {name: value for name, value in vars(self).items() if value != getattr(Run, name)}


def key_of(run: Line, text: str = TEXT) -> str:
    """What tells a line of runs.jsonl from the others: its run and the name of its text."""
    return json.dumps([run, text], sort_keys=True)


PILOT_SEEDS = (101, 102, 103, 104)
FINAL_SEEDS = (1, 2, 3, 4, 5, 6)
HEADS = ("tied", "untied")
# First standard deviations of the tables. 0.02 is that of all weights, so it is written as 0.
STARTS = (0.0, 0.05, 0.1, 0.2)
BEST_OF = (*STARTS, 0.4, 0.8)  # 0.4 and 0.8 where the next smaller is better than all below it
SLOW = (0.002, 0.004, 0.008)  # rates that a pilot begins with
MIDDLE = (0.004, 0.008, 0.016)
FAST = (0.008, 0.016, 0.032)


@dataclass(frozen=True)
class Row:
    """A model, the heads it is trained with, and the learning rates that the pilots begin with."""

    name: str
    size: Run
    rates: tuple[float, ...] = MIDDLE
    heads: tuple[str, ...] = HEADS
    best_start: bool = False  # each head starts its tables at its best start of this width


def start_name(width: int, start: float) -> str:
    """The name of the row with one layer whose tables start so, such as "w64-0.1".

    A start of 0 means that of all weights.
    """
    return f"w{width}-{start or Run.std:g}"


def by_start(
    width: int,
    rates: tuple[float, ...],
    starts: tuple[float, ...],
    heads: tuple[str, ...] = HEADS,
) -> list[Row]:
    """The rows of one width with one layer, by the start of the tables."""
    return [
        Row(start_name(width, start), Run(layers=1, width=width, table=start), rates, heads)
        for start in starts
    ]


# In the order in which they are trained: first what says most.
ROWS = [
    # The start of the tables at one width. At its best start: more steps, more layers
    *by_start(64, MIDDLE, STARTS),
    Row("1600-steps", Run(layers=1, steps=1600), best_start=True),
    Row("2-layers", Run(layers=2), best_start=True),
    # Another width, and more depth
    *by_start(32, MIDDLE, STARTS),
    Row("4-layers", Run(layers=4), best_start=True),
    Row("3200-steps", Run(layers=1, steps=3200), best_start=True),
    # A rate of its own for one of the tables, which a tied model cannot have
    Row("W_E-rate-3", Run(layers=1, W_E_rate=3.0), heads=("untied",)),
    Row("W_E-rate-0.3", Run(layers=1, W_E_rate=0.3), heads=("untied",)),
    Row("zeros", Run(layers=1), SLOW, heads=("zeros",)),
    # PyTorch's start of an embedding, and the scale of the input in place of the start
    *by_start(64, MIDDLE, (1.0,)),
    Row("input-times-8", Run(layers=1, input_scale=8.0)),  # sqrt(64)
    Row("2-layers-0.02", Run(layers=2), SLOW),
    Row("zeros-W_U-rate-0.3", Run(layers=1, W_U_rate=0.3), heads=("zeros",)),
    Row("zeros-W_U-rate-3", Run(layers=1, W_U_rate=3.0), SLOW, heads=("zeros",)),
    Row("all-0.1", Run(layers=1, std=0.1)),
    *by_start(64, MIDDLE, (0.4, 0.005)),
    # Other widths
    *by_start(32, MIDDLE, (0.4,), heads=("untied",)),
    *by_start(128, SLOW, STARTS),
    *by_start(128, SLOW, (0.4,), heads=("untied",)),
    *by_start(16, FAST, STARTS),
    *by_start(16, FAST, (0.4, 0.8), heads=("untied",)),
    Row("4-layers-0.02", Run(layers=4), SLOW),
    Row("2-layers-w128", Run(layers=2, width=128), SLOW, best_start=True),
    # A larger vocabulary
    Row("2048-tokens", Run(layers=1, vocab_size=2048), SLOW, best_start=True),
    # What remains of the rates and the starts of all weights
    Row("W_E-rate-10", Run(layers=1, W_E_rate=10.0), heads=("untied",)),
    Row("all-0.05", Run(layers=1, std=0.05)),
    Row("all-0.2", Run(layers=1, std=0.2)),
    # Two layers that share their weights, in place of the tables
    Row("one-block-twice", Run(layers=2, one_block=True), best_start=True),
    # The smallest and the largest start
    *by_start(32, MIDDLE, (0.005, 1.0)),
    *by_start(16, FAST, (0.005, 1.0)),
    *by_start(128, SLOW, (0.005, 1.0)),
    Row("all-0.005", Run(layers=1, std=0.005)),
    Row("all-1", Run(layers=1, std=1.0)),
    # More questions
    Row("no-layers", Run(), best_start=True),
    Row("signs", Run(layers=1), heads=("signs",), best_start=True),
    Row("W_E-alone-0.1", Run(layers=1, table=0.1, only_table="W_E"), heads=("untied",)),
    Row("W_U-alone-0.1", Run(layers=1, table=0.1, only_table="W_U"), heads=("untied",)),
]
ROW = {row.name: row for row in ROWS}


def next_runs(results: Results) -> Iterator[Run]:
    """The runs that are not done, in the order of the table, as far as they are known.

    Which rate a pilot tries next, and the rate and the start of some final runs, are known only
    when other runs are done.
    """
    for row in ROWS:
        for head in row.heads:
            found = pilot(row, head, results)
            if found is None:
                continue
            for run in found.runs():
                if key_of(run.as_json) not in results:
                    yield run


@dataclass(frozen=True)
class Pilot:
    """What the pilot of a row with one head has found."""

    model: Run  # without a rate and a seed
    losses: dict[float, float]  # the mean loss of the pilot's seeds, by rate
    missing: tuple[float, ...]  # the rates that are to be tried next

    @property
    def is_finished(self) -> bool:
        return not self.missing

    @property
    def best_rate(self) -> float:
        return min(self.losses, key=self.losses.__getitem__)

    @property
    def best_loss(self) -> float:
        return min(self.losses.values())

    def runs(self) -> Iterator[Run]:
        """The runs of the pilot that are known, and the final ones if it is finished."""
        for rate in [*self.losses, *self.missing]:
            for seed in PILOT_SEEDS:
                yield replace(self.model, steps=Run.steps, lr=rate, seed=seed)
        if self.is_finished:
            for seed in FINAL_SEEDS:
                yield self.final(seed)

    def final(self, seed: int) -> Run:
        return replace(self.model, lr=self.best_rate, seed=seed, paths=True)


def pilot(row: Row, head: str, results: Results) -> Pilot | None:
    """The pilot of a row with one head; None if the start of its tables is not known yet."""
    model = replace(row.size, head=head)
    if row.best_start:
        table_of = "tied" if head == "signs" else head  # no pilot chooses a start for "signs"
        start = best_start(row.size.width, table_of, results)
        if start is None:
            return None
        model = replace(model, table=start)

    losses: dict[float, float] = {}
    rates = list(row.rates)
    while rates:
        missing = []
        for rate in rates:
            loss = mean_loss(replace(model, lr=rate), results)
            if loss is None:
                missing.append(rate)
            else:
                losses[rate] = loss
        if missing:
            return Pilot(model, losses, tuple(missing))

        # If the best rate is the lowest or the highest, another one may be better.
        best = min(losses, key=losses.__getitem__)
        if best == min(losses):
            rates = [best / 2]
        elif best == max(losses):
            rates = [2 * best]
        else:
            rates = []
    return Pilot(model, losses, missing=())


def best_start(width: int, head: str, results: Results) -> float | None:
    """The start of BEST_OF with the lowest pilot loss; None while a pilot is not finished."""
    losses: dict[float, float] = {}
    for start in BEST_OF:
        row = ROW.get(start_name(width, start))
        if row is None or head not in row.heads:
            continue
        found = pilot(row, head, results)
        if found is None or not found.is_finished:
            return None
        losses[start] = found.best_loss
    return min(losses, key=losses.__getitem__)


def mean_loss(model: Run, results: Results) -> float | None:
    """The mean loss of the pilot's seeds at one rate; None while some are missing.

    A training that diverged has an infinite loss.
    """
    losses = []
    for seed in PILOT_SEEDS:
        run = replace(model, steps=Run.steps, seed=seed)
        result = results.get(key_of(run.as_json))
        if result is None:
            return None
        losses.append(result.get("loss", math.inf))
    return sum(losses) / len(losses)
