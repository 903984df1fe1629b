"""What is trained: sets of models with one thing varied, and the pilot that chose their learning rates.

A Run says everything about one training. A set gives each kind of model a name, and every kind is trained
with every seed. Runs with the same seed have the same batches, and the same initial weights where their
shapes are the same, so kinds are compared seed by seed.

A rate that suits one head may not suit the other. So the pilot trains each kind at several rates, with seeds
that are used for nothing else, and RATES has the one with the lowest held-out loss. On a tenth of the text
the pilot chooses the length of the training too. A test compares both with the pilot's runs.
"""

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import tiedgpt


@dataclass(frozen=True)
class Run:
    """One training."""

    layers: int = 0
    head: str = "tied"  # a key of HEADS
    only: str = ""  # "attention" or "MLP": the layers are without the other one
    text: str = "whole"  # "tenth", the first tenth of it; "chain", a Markov chain
    jsd: float = 0.0  # of the chain
    steps: int = 800
    lr: float = 0.0
    seed: int = 0
    vocab_size: int = 512
    width: int = 64
    heads: int = 2
    context: int = 64
    batch: int = 16

    @property
    def work(self) -> int:
        """The run's time in seconds on one core, roughly."""
        tokens, D = self.batch * self.context, self.width
        per_step = 0.001 + tokens * D * (self.vocab_size + self.layers * (600 + 5 * D)) / 5e9
        return 2 + round(self.steps * per_step)

    @property
    def as_json(self) -> dict[str, Any]:
        """The fields that are not the default."""
        return {name: value for name, value in asdict(self).items() if value != getattr(Run, name)}


SMALL = Run()
CHAIN = Run(text="chain", vocab_size=64, context=32, batch=32)
HEADS = {
    "tied": "tied; the gains of ln_f start at 1",
    "signs": "tied; each gain of ln_f starts at 1 or -1 at random",
    "untied": "W_U starts from random numbers with a standard deviation of 0.02",
    "copy": "untied; W_U starts as a copy of W_E^T",
    "zeros": "untied; W_U starts at 0",
}
SEEDS = (1, 2, 3, 4, 5, 6, 7, 8, 1001, 1002, 1003, 1004)
PILOT_SEEDS = (101, 102)
LOW_RATE = 0.002
JSDS = (0.0, 0.15, 0.3, 0.45, 0.65)
PLACES = {"no layers": (0, ""), "attention": (1, "attention"), "MLP": (1, "MLP"), "one layer": (1, "")}
RATES: dict[tuple[str, int, str, str], tuple[float, Sequence[float]]] = {  # the best rate, and all tried
    ("whole", 0, "", "tied"): (0.032, (0.002, 0.008, 0.016, 0.032, 0.064)),
    ("whole", 0, "", "signs"): (0.008, (0.002, 0.004, 0.008, 0.016, 0.032)),
    ("whole", 0, "", "untied"): (0.004, (0.002, 0.004, 0.008, 0.032)),
    ("whole", 1, "", "tied"): (0.004, (0.002, 0.004, 0.008)),
    ("whole", 1, "", "signs"): (0.008, (0.004, 0.008, 0.016)),
    ("whole", 1, "", "untied"): (0.008, (0.004, 0.008, 0.016)),
    ("whole", 1, "", "zeros"): (0.002, (0.001, 0.002, 0.004)),
    ("whole", 1, "attention", "tied"): (0.004, (0.002, 0.004, 0.008)),
    ("whole", 1, "attention", "signs"): (0.004, (0.002, 0.004, 0.008)),
    ("whole", 1, "attention", "untied"): (0.008, (0.004, 0.008, 0.016)),
    ("whole", 1, "MLP", "tied"): (0.008, (0.004, 0.008, 0.016)),
    ("whole", 1, "MLP", "untied"): (0.004, (0.002, 0.004, 0.008)),
    ("chain", 0, "", "tied"): (0.064, (0.032, 0.064, 0.128)),
    ("chain", 0, "", "signs"): (0.016, (0.008, 0.016, 0.032)),
    ("chain", 0, "", "untied"): (0.004, (0.002, 0.004, 0.008)),
    ("chain", 1, "", "tied"): (0.008, (0.004, 0.008, 0.016)),
}
LIKE = {(1, "copy"): (1, "untied"), (4, "untied"): (1, "untied")}  # they have no pilot
TENTH = {"tied": (0.001, 2), "untied": (0.0005, 2)}  # the best rate, and the best length by the usual one
TENTH_TRIED = {  # by rate, the lengths
    "tied": {0.0005: (2,), 0.001: (1, 2), 0.002: (0.5, 1, 2), 0.004: (0.5, 1, 2), 0.008: (0.5, 1, 2)},
    "untied": {
        0.00025: (2,),
        0.0005: (1, 2),
        0.001: (0.25, 0.5, 1, 2),
        0.002: (0.25, 0.5, 1),
        0.004: (0.25, 0.5, 1),
    },
}
CLAIMS: dict[int, tuple[str, ...]] = {  # the sets of each claim of the page; 1 and 8 train nothing
    1: (),
    2: ("places",),
    3: ("chains", "places", "low rate", "longer"),
    4: ("depth", "longer"),
    5: ("starts", "longer"),
    6: ("places", "longer", "tenth", "matched"),
    7: ("places",),
    8: (),
    9: ("starts",),
}


def sets(small: Run = SMALL, chain: Run = CHAIN) -> dict[str, dict[str, Run]]:
    """{set: {kind: run without a seed}} for the sizes of a model on the text and on a chain."""
    one, twice = replace(small, layers=1), 2 * small.steps
    found = {
        "chains": {
            **{
                f"0/{jsd:g}/{head}": replace(chain, jsd=jsd, head=head)
                for jsd in JSDS
                for head in ("tied", "signs", "untied")
            },
            **{f"1/{jsd:g}/tied": replace(chain, layers=1, jsd=jsd) for jsd in (JSDS[0], JSDS[-1])},
        },
        "places": {
            f"{place}/{head}": replace(small, layers=layers, only=only, head=head)
            for place, (layers, only) in PLACES.items()
            for head in ("tied", "signs", "untied")
            if (place, head) != ("MLP", "signs")
        },
        "low rate": {head: replace(small, head=head, lr=LOW_RATE) for head in ("tied", "untied")},
        "longer": {head: replace(one, head=head, steps=twice) for head in ("tied", "untied", "zeros")},
        "starts": {head: replace(one, head=head) for head in ("tied", "untied", "copy", "zeros")},
        "depth": {str(n): replace(small, layers=n, head="untied") for n in (0, 1, 4)},
        "matched": {
            "tied": one,
            "signs": replace(one, head="signs"),
            "untied": replace(one, head="untied", width=matched_width(one)),
        },
        "tenth": {
            head: replace(one, head=head, text="tenth", lr=lr, steps=round(length * small.steps))
            for head, (lr, length) in TENTH.items()
        },
    }
    return {name: {kind: rated(run) for kind, run in kinds.items()} for name, kinds in found.items()}


def rated(run: Run) -> Run:
    """The run with the rate of its kind, if it has none."""
    layers, head = LIKE.get((run.layers, run.head), (run.layers, run.head))
    return run if run.lr else replace(run, lr=RATES[run.text, layers, run.only, head][0])


def pilot(small: Run = SMALL, chain: Run = CHAIN) -> Iterator[Run]:
    """Each kind of model at each rate, without a seed."""
    middle = replace(chain, jsd=JSDS[len(JSDS) // 2])
    for (text, layers, only, head), (_, tried) in RATES.items():
        for lr in tried:
            size = middle if text == "chain" else small
            yield replace(size, layers=layers, only=only, head=head, lr=lr)
    tenth = replace(small, layers=1, text="tenth")
    for head, by_rate in TENTH_TRIED.items():
        for lr, lengths in by_rate.items():
            for length in lengths:
                yield replace(tenth, head=head, lr=lr, steps=round(length * small.steps))


def config(run: Run) -> tiedgpt.Config:
    """The configuration of a run's model, tied: `start` of job.py unties it."""
    return tiedgpt.Config(
        vocab_size=run.vocab_size,
        n_ctx=run.context,
        n_embd=run.width,
        n_layer=run.layers,
        n_head=run.heads,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        attn_pdrop=0.0,
        bos_token_id=0,
        eos_token_id=0,
    )


def matched_width(tied: Run) -> int:
    """The width at which an untied model has about as many parameters as this tied one."""
    wanted = tiedgpt.count_parameters(config(tied))["tied"]["total"]

    def difference(width: int) -> int:
        return abs(tiedgpt.count_parameters(config(replace(tied, width=width)))["untied"]["total"] - wanted)

    return min(range(tied.heads, tied.width + 1, tied.heads), key=difference)
