"""The grid: which models are trained, in sets. Each set answers one question, with one thing varied.

A Run says everything about one training, and two runs that are equal have the same result. A set names its
kinds of models and the pairs of kinds to compare; each kind is trained with every seed of the plan. Runs with
the same seed have the same batches, and the same initial weights where their shapes are the same, so kinds
are compared seed by seed.

The learning rate. A rate that suits one head may not suit the other. So the pilot trains each kind of model
at several rates, with seeds that are used for nothing else, and each kind is then trained with its own best
rate in the sets. A run of a set with lr = 0 gets that rate. The quick grid has no pilot: it has the rates of
the published results.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import tiedgpt


@dataclass(frozen=True)
class Run:
    """One training."""

    layers: int
    head: str = "tied"  # "tied", "random" (W_U starts from random numbers) or "copy" (from wte.T)
    std: float = 0.02  # of a random W_U; 0: zeros
    gain: str = "free"  # ln_f's gains: "free" start at 1, "fixed" stay at 1, "signs" start at 1 or -1
    off: str = ""  # the sublayer that the layers are without: "attn" or "mlp"
    text: str = "whole"  # "whole"; "tenth", the first tenth of it; "chain", a Markov chain
    jsd: float = 0.0  # of the chain
    vocab_size: int = 512
    width: int = 64
    heads: int = 2
    context: int = 64
    batch: int = 16
    steps: int = 800
    lr: float = 0.0
    seed: int = 0

    @property
    def kind(self) -> str:
        """The kinds of models that have a learning rate each."""
        head = self.head
        if self.head == "random" and self.std != Run.std:
            head = f"{self.std:g}" if self.std else "zeros"
        parts = ["chain" if self.text == "chain" else "text", f"{self.layers} layers", head]
        parts += [f"gains {self.gain}"] * (self.gain != "free") + [f"no {self.off}"] * (self.off != "")
        return ", ".join(parts)

    @property
    def work(self) -> float:
        """The run's time in seconds, roughly: for the progress bar, and to do long runs first."""
        tokens, D = self.batch * self.context, self.width
        per_step = 0.001 + tokens * D * (self.vocab_size + self.layers * (600 + 5 * D)) / 5e9
        return 1.0 + self.steps * per_step


@dataclass(frozen=True)
class Set:
    """Runs that answer one question."""

    name: str
    question: str
    kinds: dict[str, Run]  # without seed; without lr if it is chosen by the pilot
    compare: tuple[tuple[str, str], ...] = ()  # a and b, for the differences a - b
    options: dict[str, tuple[str, ...]] = field(default_factory=dict)  # "best" name: kinds to choose from
    studied: bool = False  # whether the models are also followed and compared with the bigrams
    similar: bool = False  # whether the embeddings are compared with those of another seed
    course: bool = False  # whether the results have what a studied model was like during training


HEADS: dict[str, dict[str, Any]] = {
    "tied": {"head": "tied"},
    "untied": {"head": "random"},
    "copy": {"head": "copy"},
    "zeros": {"head": "random", "std": 0.0},
    "signs": {"gain": "signs"},
}
BOTH = ("tied", "untied")
CLAIMS: dict[int, tuple[str, ...]] = {  # the sets of each claim of the page; 8 has the time of a step only
    1: ("heads",),
    2: ("heads",),
    3: ("chains", "steps", "gains", "signs", "rates", "longer", "sublayers"),
    4: ("heads", "starts"),
    5: ("heads", "longer", "starts"),
    6: ("heads", "longer", "small", "matched", "scale"),
    7: ("heads", "steps"),
    8: (),
    9: ("heads", "steps"),
}
PLACES = {  # layers, off
    "no layers": (0, ""),
    "one layer": (1, ""),
    "attention only": (1, "mlp"),
    "MLP only": (1, "attn"),
    "four layers": (4, ""),
}


@dataclass(frozen=True)
class Plan:
    """The sizes of the grid. The defaults are the published grid."""

    name: str = "whole"
    small: Run = Run(layers=0)
    chain: Run = Run(layers=0, text="chain", vocab_size=64, width=64, context=32, batch=32)
    large: Run | None = Run(layers=1, vocab_size=1024, width=128, heads=4)
    large_rate: float = 4e-3  # of all large models
    layers: tuple[int, ...] = (0, 1, 4)
    seeds: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7, 8)
    pilot_seeds: tuple[int, ...] = (101, 102)
    rates: tuple[float, ...] = (1e-3, 2e-3, 4e-3, 8e-3)
    more_rates: tuple[float, ...] = (1.6e-2, 3.2e-2, 6.4e-2, 1.28e-1)  # for models with fewer parts
    first_rate: float = 3e-3  # that of the earlier version of this experiment
    steps: tuple[int, ...] = (200, 800, 3200)  # without layers; the last also with one layer
    small_steps: tuple[int, ...] = (100, 200, 400, 800)  # on a tenth of the text
    small_layers: tuple[int, ...] = (1, 4)
    jsds: tuple[float, ...] = (0.0, 0.15, 0.3, 0.45, 0.65)
    stds: tuple[float, ...] = (1e-5, 1e-1)
    vocabularies: tuple[int, ...] = (1024, 16384)  # for the time of a step

    def repeated(self, offset: int) -> "Plan":
        """This plan with up to four other seeds in the sets. The pilot and the rates stay the same."""
        return replace(self, seeds=tuple(seed + offset for seed in self.seeds[:4]))

    @property
    def middle_jsd(self) -> float:
        return self.jsds[len(self.jsds) // 2]

    # The pilot

    def pilot(self) -> list[Run]:
        """Every kind of model at every rate."""
        small, chain = self.small, self.chain
        kinds = [replace(small, layers=n, **HEADS[head]) for n in self.layers for head in BOTH]
        kinds += [replace(small, layers=1, **HEADS[head]) for head in ("copy", "zeros")]
        kinds += [replace(small, layers=1, head="random", std=std) for std in self.stds]
        kinds += [
            replace(small, layers=1, off=off, **HEADS[head]) for off in ("attn", "mlp") for head in BOTH
        ]
        kinds += [replace(small, gain="fixed")]
        kinds += [replace(small, layers=n, off=off, gain="signs") for n, off in self.places().values()]
        kinds += [
            replace(chain, layers=n, jsd=self.middle_jsd, **HEADS[head]) for n in (0, 1) for head in BOTH
        ]
        kinds += [replace(chain, jsd=self.middle_jsd, gain="signs")]
        return [
            replace(kind, lr=lr, seed=seed)
            for kind in kinds
            for lr in self.rates_of(kind)
            for seed in self.pilot_seeds
        ]

    def rates_of(self, kind: Run) -> tuple[float, ...]:
        """The rates at which the pilot tries a kind of model."""
        rates = self.rates + self.more_rates
        if kind.layers == 0:
            return rates[1:]
        if kind.off or kind.text == "chain":
            return rates[1 : len(self.rates) + 1]
        return rates[: len(self.rates) + 1]

    # The sets

    def sets(self) -> list[Set]:
        """All sets, those of the first claims first."""
        sets = [self.chains(), self.heads(), self.learning_rates(), self.steps_to_convergence()]
        sets += [self.gains(), self.signs(), self.longer()]
        sets += [self.sublayers(), self.starts(), self.small_text(), self.matched()]
        return [*sets, self.scale(self.large)] if self.large else sets

    def chains(self) -> Set:
        kinds = {
            f"{n}/{jsd:g}/{head}": replace(self.chain, layers=n, jsd=jsd, **HEADS[head])
            for n, jsds in ((0, self.jsds), (1, sorted({self.jsds[0], self.middle_jsd, self.jsds[-1]})))
            for jsd in jsds
            for head in BOTH
        }
        signs = {f"0/{jsd:g}/signs": replace(self.chain, jsd=jsd, gain="signs") for jsd in self.jsds}
        question = (
            "Does the loss of a tied model grow with the asymmetry of the text, and a layer remove this?"
        )
        compare = untied_minus(kinds, "tied")
        compare += tuple((name.replace("signs", "untied"), name) for name in signs)
        compare += tuple((name, name.replace("signs", "tied")) for name in signs)
        low, high = (f"/{jsd:g}/" for jsd in (self.jsds[0], self.jsds[-1]))
        compare += tuple((name.replace(low, high), name) for name in {**kinds, **signs} if low in name)
        return Set("chains", question, {**kinds, **signs}, compare)

    def heads(self) -> Set:
        four = (*BOTH, "copy", "zeros")
        few = [(n, head) for n in self.layers for head in (four if n < 2 else BOTH)]
        kinds = {f"{n}/{head}": replace(self.small, layers=n, **HEADS[head]) for n, head in few}
        compare = untied_minus(kinds, "tied")
        compare += tuple((f"{n}/{head}", f"{n}/untied") for n, head in few if head in ("copy", "zeros"))
        compare += tuple((f"{n}/copy", f"{n}/tied") for n, head in few if head == "copy")
        compare += tuple((f"{n}/untied", f"{before}/untied") for before, n in pairwise(self.layers))
        question = "How do tied and untied models differ if each has its own best learning rate?"
        return Set("heads", question, kinds, compare, studied=True, similar=True, course=True)

    def learning_rates(self) -> Set:
        kinds = {
            f"{n}/{lr:g}/{head}": replace(self.small, layers=n, lr=lr, **HEADS[head])
            for n, rates in ((0, self.rates_of(self.small)[::2]), (1, self.rates[-2:]))
            for lr in rates
            for head in (*BOTH, "signs")
        }
        compare = untied_minus(kinds, "tied", "signs")
        compare += tuple((name, name.replace("signs", "tied")) for name in kinds if name.endswith("signs"))
        return Set("rates", "How do the differences depend on the learning rate?", kinds, compare)

    def steps_to_convergence(self) -> Set:
        kinds = {
            f"{rate}/{steps}/{head}": replace(self.small, steps=steps, lr=lr, **HEADS[head])
            for rate, lr in (("first", self.first_rate), ("best", 0.0))
            for steps in self.steps
            for head in BOTH
        }
        question = "Without layers, is the difference between the heads one of convergence?"
        compare = untied_minus(kinds, "tied")
        compare += tuple(
            (f"best/{b}/{head}", f"best/{a}/{head}") for a, b in pairwise(self.steps) for head in BOTH
        )
        return Set("steps", question, kinds, compare, studied=True, similar=True)

    def gains(self) -> Set:
        kinds = {
            f"{rate}/{gain}": replace(self.small, gain=gain, lr=lr)
            for rate, lr in (("first", self.first_rate), ("best", 0.0))
            for gain in ("free", "fixed", "signs")
        }
        compare = tuple(
            (f"{rate}/{gain}", f"{rate}/free") for rate in ("first", "best") for gain in ("fixed", "signs")
        )
        question = "Tied, without layers: what do the signs of ln_f's gains contribute?"
        return Set("gains", question, kinds, compare)

    def places(self) -> dict[str, tuple[int, str]]:
        return {name: place for name, place in PLACES.items() if place[0] in self.layers}

    def signs(self) -> Set:
        kinds: dict[str, Run] = {}
        for place, (n, off) in self.places().items():
            tied = replace(self.small, layers=n, off=off)
            kinds |= {f"{place}/free": tied, f"{place}/signs": replace(tied, gain="signs")}
            kinds[f"{place}/untied"] = replace(tied, head="random")
        compare = [(f"{place}/signs", f"{place}/free") for place in self.places()]
        compare += [
            (f"{place}/untied", f"{place}/{gain}") for place in self.places() for gain in ("signs", "free")
        ]
        question = "What does tying cost if ln_f's gains start with both signs?"
        return Set("signs", question, kinds, tuple(compare))

    def longer(self) -> Set:
        heads = (*BOTH, "signs", "zeros")
        lengths = sorted({self.small.steps, self.steps[-1]})
        kinds = {
            f"{steps}/{head}": replace(self.small, layers=1, steps=steps, **HEADS[head])
            for steps in lengths
            for head in heads
        }
        compare = untied_minus(kinds, "tied", "signs")
        compare += tuple((f"{steps}/zeros", f"{steps}/untied") for steps in lengths)
        compare += tuple((f"{b}/{head}", f"{a}/{head}") for a, b in pairwise(lengths) for head in heads)
        return Set("longer", "One layer: are the differences ones of convergence?", kinds, compare)

    def sublayers(self) -> Set:
        names = {"both": "", "attention": "mlp", "mlp": "attn"}
        kinds = {
            f"{name}/{head}": replace(self.small, layers=1, off=off, **HEADS[head])
            for name, off in names.items()
            for head in BOTH
        }
        question = "Is it the MLP or the attention of a first layer that makes up for the tie?"
        return Set("sublayers", question, kinds, untied_minus(kinds, "tied"), studied=True)

    def starts(self) -> Set:
        kinds = {
            f"{std:g}": replace(self.small, layers=1, head="random", std=std)
            for std in sorted({0.0, *self.stds, self.small.std})
        }
        normal = f"{self.small.std:g}"
        compare = tuple((name, normal) for name in kinds if name != normal)
        question = "One layer: how does the standard deviation of the initial W_U change the trained model?"
        return Set("starts", question, kinds, compare, studied=True, course=True)

    def small_text(self) -> Set:
        kinds = {
            f"{n}/{steps}/{head}": replace(self.small, layers=n, text="tenth", steps=steps, **HEADS[head])
            for n in self.small_layers
            for steps in self.small_steps
            for head in (*BOTH, "signs")
        }
        options = {
            f"{n}/best/{head}": tuple(f"{n}/{steps}/{head}" for steps in self.small_steps)
            for n in self.small_layers
            for head in (*BOTH, "signs")
        }
        question = "On little data, does tying regularise if each length of training has its own schedule?"
        compare = untied_minus({**kinds, **dict.fromkeys(options)}, "tied", "signs")
        return Set("small", question, kinds, compare, options)

    def matched(self) -> Set:
        kinds: dict[str, Run] = {}
        for n in (0, 1):
            tied = replace(self.small, layers=n)
            kinds |= {
                f"{n}/tied": tied,
                f"{n}/signs": replace(tied, gain="signs"),
                f"{n}/untied": replace(tied, head="random", width=matched_width(tied)),
            }
        question = "With the same number of parameters, which head is better?"
        return Set("matched", question, kinds, untied_minus(kinds, "tied", "signs"))

    def scale(self, large: Run) -> Set:
        kinds = {
            "tied": replace(large, lr=self.large_rate),
            "signs": replace(large, lr=self.large_rate, gain="signs"),
            "untied": replace(large, lr=self.large_rate, head="random"),
        }
        question = "Is a model of twice the width and vocabulary different?"
        compare = (("untied", "tied"), ("untied", "signs"))
        return Set("scale", question, kinds, compare, studied=True)


QUICK = Plan(  # all of its runs are runs of Plan()
    name="quick",
    large=None,
    layers=(0, 1),
    seeds=(1, 2, 3),
    pilot_seeds=(),
    rates=(),
    more_rates=(),
    steps=(800,),
    small_steps=(800,),
    small_layers=(1,),
    jsds=(0.0, 0.65),
    stds=(1e-5,),
    vocabularies=(),
)


def untied_minus(kinds: dict[str, Any], *heads: str) -> tuple[tuple[str, str], ...]:
    """Each untied kind with the kind that differs from it in the head only, for each of the heads."""
    untied = [name for name in kinds if name.endswith("/untied")]
    return tuple((name, name.removesuffix("untied") + head) for head in heads for name in untied)


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


def with_rates(sets: list[Set], rates: dict[str, float]) -> list[Set]:
    """The sets with a learning rate in each kind that has none.

    A head that starts as a copy or as zeros has the rate of an untied one where the pilot did not try it.
    """

    def rated(run: Run) -> Run:
        rate = run.lr or rates.get(run.kind) or rates.get(untied_kind(run))
        if rate is None:
            raise tiedgpt.TiedGPTError(
                f"no learning rate for this kind of model: {run.kind}; add it to the pilot"
            )
        return replace(run, lr=rate)

    return [replace(s, kinds={name: rated(run) for name, run in s.kinds.items()}) for s in sets]


def untied_kind(run: Run) -> str:
    return replace(run, head="random", std=Run.std).kind


def pilot_of(plan: Plan, sets: list[Set]) -> list[Run]:
    """The pilot for the kinds of models of these sets."""
    runs = [run for s in sets for run in s.kinds.values() if not run.lr]
    kinds = {kind for run in runs for kind in (run.kind, untied_kind(run))}
    return [run for run in plan.pilot() if run.kind in kinds]


def runs_of(sets: list[Set], seeds: tuple[int, ...]) -> Iterator[Run]:
    """Every run of the sets; equal runs of several sets come once."""
    runs = {replace(run, seed=seed): None for s in sets for run in s.kinds.values() for seed in seeds}
    yield from runs
