"""What is trained: sets of models with one thing varied, and the pilot that chose their learning
rates.

A Run says everything about one training. A set gives each kind of model a name, and every kind is
trained with every seed. Runs with the same seed have the same batches, and the same initial weights
where their shapes are the same, so kinds are compared seed by seed.

A rate that suits one head may not suit the other. So the pilot trains each kind at several rates,
with seeds that are used for nothing else, and RATES has the one with the lowest held-out loss. On a
tenth of the text the pilot chooses the length of the training too. A test compares both with the
pilot's runs.
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
    text: str = "whole"  # "tenth", the first tenth of it; "chain" or "classes", a Markov chain
    jsd: float = 0.0  # of the chain
    steps: int = 800
    lr: float = 0.0
    seed: int = 0
    vocab_size: int = 512
    width: int = 64
    heads: int = 2
    context: int = 64
    batch: int = 16
    input_gradient: float | None = None  # a factor on the input's part of the tied gradient
    untie_after: int = 0  # steps; 0 means never
    new_averages: bool = False  # AdamW's m and v of W_U start at 0 when it is untied
    shared: float = 0.0  # of a chain of classes: see class_chain
    noise: float = 0.0  # of a chain of classes

    def work(self, held_out: int) -> int:
        """The run's time in seconds on one core, roughly, if the text has so many held-out
        tokens."""
        scored = (
            0 if self.text in ("chain", "classes") else held_out
        )  # once or four times, but without gradients
        tokens = self.steps * self.batch * self.context + scored
        per_token = self.width * (self.vocab_size + self.layers * (600 + 5 * self.width)) / 7e9
        return 1 + round(self.steps / 1000 + tokens * per_token)

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
PILOT_SEEDS = (101, 102, 103, 104)
JSDS = (0.0, 0.15, 0.3, 0.45, 0.65)
VOCABULARIES = (1024, 16384)  # for the time of a step
TIMINGS = 8
MODELS: dict[
    str, tuple[dict[str, Any], str]
] = {  # on the text: what differs from SMALL, and the heads
    "no layers": ({}, "tied signs untied"),
    "low rate": ({"lr": 0.002}, "tied untied"),
    "attention": ({"layers": 1, "only": "attention"}, "tied signs untied"),
    "MLP": ({"layers": 1, "only": "MLP"}, "tied untied"),
    "one layer": ({"layers": 1}, "tied signs untied copy zeros"),
    "longer": ({"layers": 1, "steps": 1600}, "tied untied zeros"),
    "narrow": (
        {"layers": 1, "width": 50},
        "untied",
    ),  # about as many parameters as tied with one layer
    "tenth": ({"layers": 1, "steps": 1600, "text": "tenth"}, "tied untied"),
}
COMPARED = ("no layers", "one layer")  # the matrices of their heads are compared
RATES = {  # text, layers and `only`: the best rate of each head
    ("whole", 0, ""): {"tied": 0.032, "signs": 0.008, "untied": 0.004},
    ("whole", 1, ""): {
        "tied": 0.004,
        "signs": 0.008,
        "untied": 0.008,
        "zeros": 0.002,
        "copy": 0.008,
    },
    ("whole", 1, "attention"): {"tied": 0.004, "signs": 0.004, "untied": 0.008},
    ("whole", 1, "MLP"): {"tied": 0.008, "untied": 0.004},
    ("chain", 0, ""): {"tied": 0.064, "signs": 0.016, "untied": 0.004},
    ("chain", 1, ""): {"tied": 0.008},
    ("tenth", 1, ""): {"tied": 0.001, "untied": 0.0005},
}
TRIED: dict[
    tuple[str, int, str], dict[float, tuple[float, ...]]
] = {  # rates, and lengths by the usual one
    ("whole", 0, "tied"): dict.fromkeys((0.002, 0.008, 0.016, 0.032, 0.064), (1,)),
    ("whole", 0, "signs"): dict.fromkeys((0.002, 0.004, 0.008, 0.016, 0.032), (1,)),
    ("whole", 0, "untied"): dict.fromkeys((0.002, 0.004, 0.008, 0.032), (1,)),
    ("tenth", 1, "tied"): {0.0005: (2,), 0.001: (1, 2)}
    | dict.fromkeys((0.002, 0.004, 0.008), (0.5, 1, 2)),
    ("tenth", 1, "untied"): {0.00025: (2,), 0.0005: (1, 2), 0.001: (0.25, 0.5, 1, 2)}
    | dict.fromkeys((0.002, 0.004), (0.25, 0.5, 1)),
    ("whole", 1, "copy"): {},  # as untied
}


def sets() -> dict[str, dict[str, Run]]:
    """{set: {kind: run without a seed}}."""
    chains = [(0, jsd, head) for jsd in JSDS for head in ("tied", "signs", "untied")]
    chains += [(1, jsd, "tied") for jsd in (JSDS[0], JSDS[-1])]
    found = {
        "chains": {
            f"{n}/{jsd:g}/{head}": replace(CHAIN, layers=n, jsd=jsd, head=head)
            for n, jsd, head in chains
        },
        "models": {
            f"{name}/{head}": replace(SMALL, head=head, **changes)
            for name, (changes, heads) in MODELS.items()
            for head in heads.split()
        },
    }
    for kinds in found.values():
        for kind, run in kinds.items():
            rate = run.lr or RATES[run.text, run.layers, run.only][run.head]
            kinds[kind] = replace(run, lr=rate)
    return found


def pilot() -> Iterator[Run]:
    """Each kind of model at each rate and length, without a seed; where TRIED has none, at three
    rates."""
    for (text, layers, only), rates in RATES.items():
        size = (
            replace(CHAIN, jsd=JSDS[len(JSDS) // 2])
            if text == "chain"
            else replace(SMALL, text=text)
        )
        for head, best in rates.items():
            usual = dict.fromkeys((best / 2, best, 2 * best), (1,))
            for lr, lengths in (usual if only else TRIED.get((text, layers, head), usual)).items():
                for length in lengths:
                    of = replace(size, layers=layers, only=only, head=head)
                    yield replace(of, lr=lr, steps=round(length * size.steps))


def config(run: Run) -> tiedgpt.Config:
    """The configuration of a run's model, tied: `start` of job.py unties it."""
    sizes: dict[str, Any] = {"n_ctx": run.context, "n_embd": run.width, "n_layer": run.layers}
    sizes |= {
        "n_head": run.heads,
        "vocab_size": run.vocab_size,
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    return tiedgpt.Config(**sizes, embd_pdrop=0.0, resid_pdrop=0.0, attn_pdrop=0.0)
