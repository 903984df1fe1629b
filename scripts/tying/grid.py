"""What is trained: sets of models with one thing varied, and the pilot that chose their learning rates.

A Run says everything about one training. A set gives each kind of model a name, and every kind is trained
with every seed. Runs with the same seed have the same batches, and the same initial weights where their
shapes are the same, so kinds are compared seed by seed.

A rate that suits one head may not suit the other. So the pilot trains each kind at several rates, with seeds
that are used for nothing else, and RATES has the one with the lowest held-out loss. On a tenth of the text
the pilot chooses the length of the training too. A test compares both with the pilot's runs.
"""

from collections.abc import Iterator
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
RATES = {  # text, layers and `only`: the best rate of each head
    ("whole", 0, ""): {"tied": 0.032, "signs": 0.008, "untied": 0.004},
    ("whole", 1, ""): {"tied": 0.004, "signs": 0.008, "untied": 0.008, "zeros": 0.002},
    ("whole", 1, "attention"): {"tied": 0.004, "signs": 0.004, "untied": 0.008},
    ("whole", 1, "MLP"): {"tied": 0.008, "untied": 0.004},
    ("chain", 0, ""): {"tied": 0.064, "signs": 0.016, "untied": 0.004},
    ("chain", 1, ""): {"tied": 0.008},
}
TRIED = {  # without layers on the text. Of the others: half the best rate, this rate and twice as much
    "tied": (0.002, 0.008, 0.016, 0.032, 0.064),
    "signs": (0.002, 0.004, 0.008, 0.016, 0.032),
    "untied": (0.002, 0.004, 0.008, 0.032),
}
LIKE = {(1, "copy"): (1, "untied"), (4, "untied"): (1, "untied")}  # they have no pilot
TENTH = {"tied": (0.001, 2), "untied": (0.0005, 2)}  # the best rate, and the best length by the usual one
TENTH_TRIED = {  # by rate, the lengths
    "tied": {0.0005: (2,), 0.001: (1, 2), **dict.fromkeys((0.002, 0.004, 0.008), (0.5, 1, 2))},
    "untied": {
        **{0.00025: (2,), 0.0005: (1, 2), 0.001: (0.25, 0.5, 1, 2)},
        **dict.fromkeys((0.002, 0.004), (0.25, 0.5, 1)),
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


def sets() -> dict[str, dict[str, Run]]:
    """{set: {kind: run without a seed}}."""
    one, twice = replace(SMALL, layers=1), 2 * SMALL.steps
    chains = [(0, jsd, head) for jsd in JSDS for head in ("tied", "signs", "untied")]
    chains += [(1, jsd, "tied") for jsd in (JSDS[0], JSDS[-1])]
    found = {
        "chains": {
            f"{n}/{jsd:g}/{head}": replace(CHAIN, layers=n, jsd=jsd, head=head) for n, jsd, head in chains
        },
        "places": {
            f"{place}/{head}": replace(SMALL, layers=layers, only=only, head=head)
            for place, (layers, only) in PLACES.items()
            for head in ("tied", "signs", "untied")
            if (place, head) != ("MLP", "signs")
        },
        "low rate": {head: replace(SMALL, head=head, lr=LOW_RATE) for head in ("tied", "untied")},
        "longer": {head: replace(one, head=head, steps=twice) for head in ("tied", "untied", "zeros")},
        "starts": {head: replace(one, head=head) for head in ("tied", "untied", "copy", "zeros")},
        "depth": {str(n): replace(SMALL, layers=n, head="untied") for n in (0, 1, 4)},
        "matched": {
            "tied": one,
            "signs": replace(one, head="signs"),
            "untied": replace(one, head="untied", width=matched_width(one)),
        },
        "tenth": {
            head: replace(one, head=head, text="tenth", lr=lr, steps=round(length * SMALL.steps))
            for head, (lr, length) in TENTH.items()
        },
    }
    return {name: {kind: rated(run) for kind, run in kinds.items()} for name, kinds in found.items()}


def rated(run: Run) -> Run:
    """The run with the rate of its kind, if it has none."""
    layers, head = LIKE.get((run.layers, run.head), (run.layers, run.head))
    return run if run.lr else replace(run, lr=RATES[run.text, layers, run.only][head])


def pilot() -> Iterator[Run]:
    """Each kind of model at each rate, without a seed."""
    for (text, layers, only), rates in RATES.items():
        size = replace(CHAIN, jsd=JSDS[len(JSDS) // 2]) if text == "chain" else SMALL
        for head, best in rates.items():
            special = (text, layers) == ("whole", 0)
            for lr in TRIED[head] if special else (best / 2, best, 2 * best):
                yield replace(size, layers=layers, only=only, head=head, lr=lr)
    tenth = replace(SMALL, layers=1, text="tenth")
    for head, by_rate in TENTH_TRIED.items():
        for lr, lengths in by_rate.items():
            for length in lengths:
                yield replace(tenth, head=head, lr=lr, steps=round(length * SMALL.steps))


def config(run: Run) -> tiedgpt.Config:
    """The configuration of a run's model, tied: `start` of job.py unties it."""
    sizes: dict[str, Any] = {"n_ctx": run.context, "n_embd": run.width, "n_layer": run.layers}
    sizes |= {"n_head": run.heads, "vocab_size": run.vocab_size, "bos_token_id": 0, "eos_token_id": 0}
    return tiedgpt.Config(**sizes, embd_pdrop=0.0, resid_pdrop=0.0, attn_pdrop=0.0)


def matched_width(tied: Run) -> int:
    """The width at which an untied model has about as many parameters as this tied one."""
    wanted = tiedgpt.count_parameters(config(tied))["tied"]["total"]

    def difference(width: int) -> int:
        return abs(tiedgpt.count_parameters(config(replace(tied, width=width)))["untied"]["total"] - wanted)

    return min(range(tied.heads, tied.width + 1, tied.heads), key=difference)
