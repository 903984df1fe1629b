"""What the registered experiment describes beside its verdicts: figures without a prediction.

d is the result of the tied model minus that of another arm of its cell, of one seed. The names:

    ARM:CELL                   d of the held-out loss, of an arm that no prediction compares
    bits:ARM:CELL              d in bits per byte
    curve:ARM:CELL:STEPS       d of the loss after these steps, on the first 16,384 held-out tokens
    pilot:ARM:CELL             d of the pilots, of 1,600 steps, each arm at its best start and rate
    layers:ARM:VOCABULARY      the loss of an arm with one layer minus that with two
    layers:cost:VOCABULARY     the cost of the tie with one layer minus that with two
    bits:vocabularies:LAYERS   d of untied in bits per byte with 2,048 tokens minus that with 512
    below-COUNT:CELL           d of untied per token, of tokens that the training has fewer times
    from-COUNT:CELL            d of untied per token, of tokens that it has COUNT times or more
    share-below-COUNT:CELL     the share of the cost that lies in tokens below COUNT
"""

from collections.abc import Callable
from functools import partial

import numpy as np

from .differences import Figure
from .registered import ARMS, COUNTS, PILOT_SEEDS, TEXT, Arm, pilot, pilot_run
from .runs import Line, Results, key_of
from .verdicts import ARM, TESTS, Pair, final_results, pairs_of, verdict_figures

RARE, FREQUENT = 300, 30_000


def described_figures(results: Results) -> dict[str, Figure]:
    """The figures of which all runs are done. A pair of which a run diverged is left out."""
    figures = {}
    tested = {(test.cell, test.other) for test in TESTS}
    for arm in ARMS:
        pairs = whole_pairs(arm.cell, arm.name, results) if arm.name != "tied" else []
        if not pairs:
            continue
        if (arm.cell, arm.name) not in tested:
            figures[f"{arm.name}:{arm.cell}"] = figure(pairs, loss)
        figures[f"bits:{arm.name}:{arm.cell}"] = figure(pairs, bits)
        first_tied, _ = pairs[0]
        for steps, _loss in first_tied["curve"]:  # the curves of all runs have the same steps
            name = f"curve:{arm.name}:{arm.cell}:{steps}"
            figures[name] = figure(pairs, partial(loss_after, steps))
        figures[f"pilot:{arm.name}:{arm.cell}"] = pilot_figure(arm, results)
        if arm.name == "untied":
            figures |= by_count(arm.cell, pairs)
    return figures | between_cells(results)


def registered_figures(results: Results) -> dict[str, Figure]:
    """All figures of the registered experiment that are known: verdicts (P1:512-1) and these."""
    return verdict_figures(results) | described_figures(results)


def print_described(results: Results) -> None:
    """The figures in nats and bits, without the learning curves."""
    print("Described, not tested: no prediction and no correction")
    for name, values in described_figures(results).items():
        if not name.startswith("curve:"):
            low, high = values.interval
            print(
                f"{name:24} {values.mean:.4f} [{low:.4f}, {high:.4f}], {len(values.values)} seeds"
            )


def between_cells(results: Results) -> dict[str, Figure]:
    """Figures that compare cells: one layer with two, and 2,048 tokens with 512."""
    figures = {}
    for vocabulary in ("512", "2048"):
        one, two = f"{vocabulary}-1", f"{vocabulary}-2"
        arms = [(one, "tied"), (two, "tied"), (one, "untied"), (two, "untied")]
        losses = measured([ARM[arm] for arm in arms], loss, results)  # [4, seeds]
        if losses is not None:
            tied_one, tied_two, untied_one, untied_two = losses
            tied, untied = tied_one - tied_two, untied_one - untied_two
            figures[f"layers:tied:{vocabulary}"] = Figure(tuple(tied))
            figures[f"layers:untied:{vocabulary}"] = Figure(tuple(untied))
            figures[f"layers:cost:{vocabulary}"] = Figure(tuple(tied - untied))
    for layers in ("1", "2"):
        small, large = f"512-{layers}", f"2048-{layers}"
        arms = [(large, "tied"), (large, "untied"), (small, "tied"), (small, "untied")]
        sizes = measured([ARM[arm] for arm in arms], bits, results)
        if sizes is not None:
            large_tied, large_untied, small_tied, small_untied = sizes
            difference = (large_tied - large_untied) - (small_tied - small_untied)
            figures[f"bits:vocabularies:{layers}"] = Figure(tuple(difference))
    return figures


def measured(
    arms: list[Arm], measure: Callable[[Line], float], results: Results
) -> np.ndarray | None:  # [len(arms), seeds]
    """A measure of the final runs of several arms, of the seeds that all have; None while runs are
    missing. A seed of which a run diverged is left out.
    """
    found = [final_results(arm, results) for arm in arms]
    seeds = set.intersection(*(set(arm.seeds) for arm in arms))
    if any(seed not in runs for runs in found for seed in seeds):
        return None
    whole = [seed for seed in sorted(seeds) if all("loss" in runs[seed] for runs in found)]
    return np.array([[measure(runs[seed]) for seed in whole] for runs in found])


def pilot_figure(arm: Arm, results: Results) -> Figure:
    """d of the pilots of the tied arm and another one, each at its best start and rate."""
    losses = []
    for each in (ARM[arm.cell, "tied"], arm):
        start, rate = pilot(each, results).best
        runs = [pilot_run(each, start, rate, seed) for seed in PILOT_SEEDS]
        losses.append([loss(results[key_of(run.as_json, TEXT)]) for run in runs])
    tied, other = np.array(losses)
    return Figure(tuple(tied - other))


def by_count(cell: str, pairs: list[Pair]) -> dict[str, Figure]:
    """The cost in nats per token, of rare and of frequent tokens, and the share of the rare."""
    below = {limit for limit in COUNTS if limit <= RARE}
    above = {limit for limit in COUNTS if limit > FREQUENT}
    whole = figure(pairs, lambda run: nats_of(run, set(COUNTS)))
    rare = figure(pairs, lambda run: nats_of(run, below))
    share = [part / cost for part, cost in zip(rare.values, whole.values, strict=True)]
    return {
        f"below-{RARE}:{cell}": figure(pairs, lambda run: nats_per_token(run, below)),
        f"from-{FREQUENT}:{cell}": figure(pairs, lambda run: nats_per_token(run, above)),
        f"share-below-{RARE}:{cell}": Figure(tuple(share)),
    }


# ---- Of a run ----


def loss(run: Line) -> float:
    return float(run["loss"])


def loss_after(steps: int, run: Line) -> float:
    """A point of the learning curve."""
    return float(dict(run["curve"])[steps])


def bits(run: Line) -> float:
    return float(run["bits per byte"])


def nats_of(run: Line, limits: set[float]) -> float:
    """The nats of all held-out tokens whose count is in the groups of these limits (COUNTS)."""
    groups = zip(COUNTS, run["by count"], strict=True)
    return float(sum(nats for limit, (_tokens, nats) in groups if limit in limits))


def nats_per_token(run: Line, limits: set[float]) -> float:
    groups = zip(COUNTS, run["by count"], strict=True)
    tokens = sum(tokens for limit, (tokens, _nats) in groups if limit in limits)
    return nats_of(run, limits) / tokens


# ---- Of pairs ----


def whole_pairs(cell: str, other: str, results: Results) -> list[Pair]:
    """The pairs of which no run diverged; none while runs of the arm are missing."""
    pairs = pairs_of(cell, other, results) or []
    return [(tied, untied) for tied, untied in pairs if "loss" in tied and "loss" in untied]


def figure(pairs: list[Pair], measure: Callable[[Line], float]) -> Figure:
    """d of a measure, by seed."""
    return Figure(tuple(measure(tied) - measure(untied) for tied, untied in pairs))
