"""What is trained: one table of models, with the learning rate of each head.

A Run says everything about one training. A head says how the output matrix W_U comes from the token
embedding W_E: HEADS has all of them. A Model is a size and a learning rate for each head. Runs of
one seed have the same batches, and the same initial weights where their shapes are the same, so
models are compared seed by seed.

Some models are trained on a walk through a Markov chain in place of a text: a chain with a chosen
asymmetry, or a chain whose tokens have classes (chains.py).

A rate that suits one head may not suit another. So a pilot trains each model at several rates, with
seeds that are used for nothing else, and chooses a rate for each head. Of the rates whose mean
held-out loss is within CLOSE of the lowest such loss, the lowest rate is chosen: at a high rate
some trainings fail, and the few seeds of a pilot may miss them. CLOSE was added after the first
runs of width 32, where 0.016 was better than 0.008 by 0.004 in the pilot, and then failed for some
seeds. If the chosen rate is the lowest that was tried, no lower one is tried. The differences on
chains are as small as CLOSE, so a chain has the rate with the lowest loss. Where the table has
OPEN, the pilot is not finished. A test compares the table with the pilot.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from tiedgpt import Config


@dataclass(frozen=True)
class Run:
    """One training. Its fields that are not the default are its key in runs.jsonl."""

    layers: int = 0
    head: str = "tied"  # a key of HEADS
    only: str = ""  # "attention" or "MLP": the only sublayer that the layers have
    text: str = "whole"  # or "tenth", its first tenth; or "chain" or "classes", a Markov chain
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

    def seconds(self, held_out: int) -> int:
        """The run's time on one core, roughly, for a text with so many held-out tokens."""
        tokens = self.steps * self.batch * self.context
        if not self.is_chain:  # `held_out` is about a text; few tokens of a chain are held out
            tokens += held_out  # they are only scored, but count as if they were trained on

        # The formula and its numbers are rough. A token costs work in each layer and in the head,
        # and each step takes a millisecond more.
        work_of_layer = self.width * (600 + 5 * self.width)
        work_of_head = self.width * self.vocab_size
        work_per_second = 7e9
        seconds_of_token = (work_of_head + self.layers * work_of_layer) / work_per_second
        seconds_of_steps = self.steps / 1000
        seconds_to_start = 1
        return seconds_to_start + round(seconds_of_steps + tokens * seconds_of_token)

    @property
    def is_chain(self) -> bool:
        """Whether it is trained on a chain, which is drawn anew for each seed."""
        return self.text in ("chain", "classes")

    @property
    def as_json(self) -> dict[str, Any]:
        """The fields that are not the default."""
        return {name: value for name, value in asdict(self).items() if value != getattr(Run, name)}


HEADS = {
    "tied": "tied; the gains of ln_f start at 1",
    "signs": "tied; each gain of ln_f starts at 1 or -1 at random",
    "untied": "W_U starts from random numbers with a standard deviation of 0.02",
    "copy": "untied; W_U starts as a copy of W_E^T",
    "zeros": "untied; W_U starts at 0",
    "rotation": "W_U = M W_E^T; M [D, D] is trained, and starts as a random rotation",
    "identity": "W_U = M W_E^T; M starts as the identity",
}
SEEDS = (1, 2, 3, 4, 5, 6, 7, 8, 1001, 1002, 1003, 1004)
PILOT_SEEDS = (101, 102, 103, 104)
SECOND_TEXT = "6d5b0d1e6aed"  # the name of the documentation of this Python
SECOND_TEXT_PYTHON = "3.11.7"
NEW_SEEDS = (2001, 2002, 2003)  # of --bar
CLOSE = 0.01  # nats; see above
OPEN = 0.0  # in place of a rate that the pilot has not chosen yet
ONE = Run(layers=1)
CHAIN = Run(text="chain", vocab_size=64, context=32, batch=32)
CLASSES = Run(text="classes", vocab_size=64, context=32, batch=32)
JSDS = (0.0, 0.15, 0.3, 0.45, 0.65)
VOCABULARIES = (1024, 16384)  # for the time of a step
TIMINGS = range(1, 9)


@dataclass(frozen=True)
class Model:
    """A size, and the learning rate of each head that it is trained with."""

    name: str
    size: Run
    tied: float | None = None
    signs: float | None = None
    untied: float | None = None
    copy: float | None = None
    zeros: float | None = None
    rotation: float | None = None
    identity: float | None = None
    seeds: int = 12  # it is trained with the first so many of SEEDS
    second_text: bool = False  # it is trained on the documentation of Python
    rates_of: str = ""  # the model whose pilot chose its rates, if it has no pilot
    pilot_seeds: int = 4
    shows_paths: bool = False  # its paths are compared with the bigrams

    @property
    def loss_measure(self) -> str:
        """The name of its held-out loss in runs.jsonl.

        Each seed has a chain of its own, and some chains are harder to predict than others. So a
        model of a chain is measured by its excess: the loss above that of the chain's own
        probabilities.
        """
        if self.size.is_chain:
            return "excess"
        return "loss"

    @property
    def heads(self) -> list[str]:
        """The heads that it is trained with."""
        return [head for head in HEADS if getattr(self, head) is not None]

    def run(self, head: str, rate: float | None = None) -> Run:
        """The training without a seed, at `rate`; by default at the rate of the table."""
        if rate is None:
            rate = getattr(self, head)
        return replace(self.size, head=head, lr=rate)


# One row for each model, so it is not formatted.
# fmt: off
TABLE = [
    # One layer, by width                  size                      tied   signs  untied
    Model("width 16",                      replace(ONE, width=16),   0.032, 0.032, 0.016),
    Model("width 32",                      replace(ONE, width=32),   0.008, 0.016, 0.008),
    Model("one layer",                     ONE,                      0.004, 0.008, 0.008,
          copy=0.008, zeros=0.002, shows_paths=True),
    Model("width 128",                     replace(ONE, width=128),  0.004, 0.004, 0.004),
    Model("width 256",                     replace(ONE, width=256),  0.002,  0.002,  0.002,
          seeds=3, pilot_seeds=2),
    # No layers, by width
    Model("no layers, width 16",           Run(width=16),            0.064,  0.016,  0.008),
    Model("no layers, width 32",           Run(width=32),            0.032,  0.008,  0.008),
    Model("no layers",                     Run(),                    0.032, 0.004, 0.004,
          shows_paths=True),
    Model("no layers, width 128",          Run(width=128),           0.016,  0.004,  0.002),
    # A second text
    Model("second text",                   ONE,                      0.004,  0.004,  0.008,
          second_text=True),
    Model("second text, width 128",        replace(ONE, width=128),  0.004,  0.004,  0.004,
          second_text=True),
    # A map in place of the second matrix
    Model("map",                           Run(),                    None,  None,  None,
          rotation=0.004, identity=0.016, seeds=6),
    # Parts of a layer, more steps, less text, one low rate
    Model("attention",                     replace(ONE, only="attention"), 0.004, 0.004, 0.008,
          shows_paths=True),
    Model("MLP",                           replace(ONE, only="MLP"), 0.004, None,  0.002,
          shows_paths=True),
    Model("longer",                        replace(ONE, steps=1600), 0.004, None,  0.008,
          zeros=0.002, rates_of="one layer", shows_paths=True),
    Model("tenth",                         Run(layers=1, steps=1600, text="tenth"),
                                                                     0.001, None,  0.0005),
    Model("low rate",                      Run(),                    0.002, None,  0.002,
          rates_of="no layers", shows_paths=True),
    # An untied model with about as many parameters as the tied one of `rates_of`
    Model("width 16, narrower",            replace(ONE, width=10),   None,  None,  0.016,
          seeds=6, rates_of="width 16"),
    Model("width 32, narrower",            replace(ONE, width=22),   None,  None,  0.008,
          seeds=6, rates_of="width 32"),
    Model("one layer, narrower",           replace(ONE, width=50),   None,  None,  0.008,
          rates_of="one layer", shows_paths=True),
    Model("width 128, narrower",           replace(ONE, width=112),  None,  None,  0.004,
          seeds=6, rates_of="width 128"),
    Model("no layers, width 16, narrower", Run(width=8),             None,  None,  0.008,
          seeds=6, rates_of="no layers, width 16"),
    Model("no layers, width 32, narrower", Run(width=16),            None,  None,  0.008,
          seeds=6, rates_of="no layers, width 32"),
    Model("no layers, narrower",           Run(width=34),            None,  None,  0.004,
          seeds=6, rates_of="no layers"),
    Model("no layers, width 128, narrower", Run(width=68),           None,  None,  0.002,
          seeds=6, rates_of="no layers, width 128"),
    # Markov chains, by their asymmetry. The pilot is that of the middle one.
    Model("chain 0",     replace(CHAIN, jsd=0.0),                    0.064, 0.032, 0.004,
          rates_of="chain 0.3"),
    Model("chain 0.15",  replace(CHAIN, jsd=0.15),                   0.064, 0.032, 0.004,
          rates_of="chain 0.3"),
    Model("chain 0.3",   replace(CHAIN, jsd=0.3),                    0.064, 0.032, 0.004),
    Model("chain 0.45",  replace(CHAIN, jsd=0.45),                   0.064, 0.032, 0.004,
          rates_of="chain 0.3"),
    Model("chain 0.65",  replace(CHAIN, jsd=0.65),                   0.064, 0.032, 0.004,
          rates_of="chain 0.3"),
    Model("chain 0, one layer",    replace(CHAIN, layers=1),         0.008,
          rates_of="chain 0.3, one layer"),
    Model("chain 0.3, one layer",  replace(CHAIN, layers=1, jsd=0.3), 0.008, seeds=0),
    Model("chain 0.65, one layer", replace(CHAIN, layers=1, jsd=0.65), 0.008,
          rates_of="chain 0.3, one layer"),
    # Chains of classes: the share of tokens with the same successors and the same predecessors
    Model("classes 0", replace(CLASSES, shared=0.0, noise=0.0),
          0.032, 0.016, 0.004, rates_of="classes 0.5, noise", seeds=6),
    Model("classes 0.5", replace(CLASSES, shared=0.5, noise=0.0),
          0.032, 0.016, 0.004, rates_of="classes 0.5, noise", seeds=6),
    Model("classes 1", replace(CLASSES, shared=1.0, noise=0.0),
          0.032, 0.016, 0.004, rates_of="classes 0.5, noise", seeds=6),
    Model("classes 0, noise", replace(CLASSES, shared=0.0, noise=0.5),
          0.032, 0.016, 0.004, rates_of="classes 0.5, noise", seeds=6),
    Model("classes 0.5, noise", replace(CLASSES, shared=0.5, noise=0.5),
          0.032, 0.016, 0.004, seeds=6),
    Model("classes 1, noise", replace(CLASSES, shared=1.0, noise=0.5),
          0.032, 0.016, 0.004, rates_of="classes 0.5, noise", seeds=6),
    Model("classes 0, one layer", replace(CLASSES, layers=1, shared=0.0, noise=0.0),
          0.008, None, 0.004, rates_of="classes 0.5, noise, one layer", seeds=6),
    Model("classes 0.5, one layer", replace(CLASSES, layers=1, shared=0.5, noise=0.0),
          0.008, None, 0.004, rates_of="classes 0.5, noise, one layer", seeds=6),
    Model("classes 1, one layer", replace(CLASSES, layers=1, shared=1.0, noise=0.0),
          0.008, None, 0.004, rates_of="classes 0.5, noise, one layer", seeds=6),
    Model("classes 0, noise, one layer", replace(CLASSES, layers=1, shared=0.0, noise=0.5),
          0.008, None, 0.004, rates_of="classes 0.5, noise, one layer", seeds=6),
    Model("classes 0.5, noise, one layer", replace(CLASSES, layers=1, shared=0.5, noise=0.5),
          0.008, None, 0.004, seeds=6),
    Model("classes 1, noise, one layer", replace(CLASSES, layers=1, shared=1.0, noise=0.5),
          0.008, None, 0.004, rates_of="classes 0.5, noise, one layer", seeds=6),
]
# fmt: on
MODELS = {model.name: model for model in TABLE}

# The rates of a pilot, where they are not half of the chosen rate, the rate, and double.
PILOT_RATES: dict[tuple[str, str], tuple[float, ...]] = {
    ("width 16", "tied"): (0.004, 0.008, 0.016),
    ("width 16", "signs"): (0.008, 0.016, 0.032),
    ("width 16", "untied"): (0.008, 0.016, 0.032),
    ("width 32", "tied"): (0.004, 0.008, 0.016),
    ("width 32", "signs"): (0.004, 0.008, 0.016),
    ("width 32", "untied"): (0.004, 0.008, 0.016),
    ("width 128", "tied"): (0.002, 0.004, 0.008),
    ("width 128", "signs"): (0.002, 0.004, 0.008),
    ("width 128", "untied"): (0.002, 0.004, 0.008),
    ("width 256", "tied"): (0.001, 0.002, 0.004),
    ("width 256", "signs"): (0.001, 0.002, 0.004),
    ("width 256", "untied"): (0.001, 0.002, 0.004),
    ("no layers, width 16", "tied"): (0.016, 0.032, 0.064),
    ("no layers, width 16", "signs"): (0.008, 0.016, 0.032),
    ("no layers, width 16", "untied"): (0.004, 0.008, 0.016),
    ("no layers, width 32", "tied"): (0.016, 0.032, 0.064),
    ("no layers, width 32", "signs"): (0.004, 0.008, 0.016),
    ("no layers, width 32", "untied"): (0.004, 0.008, 0.016),
    ("no layers", "tied"): (0.002, 0.008, 0.016, 0.032, 0.064),
    ("no layers", "signs"): (0.002, 0.004, 0.008, 0.016, 0.032),
    ("no layers", "untied"): (0.002, 0.004, 0.008, 0.032),
    ("no layers, width 128", "tied"): (0.008, 0.016, 0.032),
    ("no layers, width 128", "signs"): (0.004, 0.008, 0.016),
    ("no layers, width 128", "untied"): (0.002, 0.004, 0.008),
    ("MLP", "tied"): (0.004, 0.008, 0.016),
    ("MLP", "untied"): (0.002, 0.004, 0.008),
    ("map", "rotation"): (0.004, 0.008, 0.016),
    ("map", "identity"): (0.004, 0.008, 0.016),
    ("chain 0.3", "tied"): (0.032, 0.064, 0.128),
    ("chain 0.3", "signs"): (0.008, 0.016, 0.032),
    ("chain 0.3", "untied"): (0.002, 0.004, 0.008),
    ("chain 0.3, one layer", "tied"): (0.004, 0.008, 0.016),
    ("classes 0.5, noise", "tied"): (0.032, 0.064, 0.128),
    ("classes 0.5, noise", "signs"): (0.008, 0.016, 0.032),
    ("classes 0.5, noise", "untied"): (0.002, 0.004, 0.008),
    ("classes 0.5, noise, one layer", "tied"): (0.004, 0.008, 0.016),
    ("classes 0.5, noise, one layer", "untied"): (0.002, 0.004, 0.008),
    ("second text", "tied"): (0.002, 0.004, 0.008),
    ("second text", "signs"): (0.004, 0.008, 0.016),
    ("second text", "untied"): (0.004, 0.008, 0.016),
    ("second text, width 128", "tied"): (0.002, 0.004, 0.008),
    ("second text, width 128", "signs"): (0.002, 0.004, 0.008),
    ("second text, width 128", "untied"): (0.002, 0.004, 0.008),
}

# On a tenth of the text the pilot chooses the number of steps too.
TENTH_PILOT_SEEDS = 2
TENTH_PILOT: dict[str, tuple[tuple[float, int], ...]] = {
    "tied": (
        (0.0005, 1600), (0.001, 800), (0.001, 1600),
        (0.002, 400), (0.002, 800), (0.002, 1600),
        (0.004, 400), (0.004, 800), (0.004, 1600),
        (0.008, 400), (0.008, 800), (0.008, 1600),
    ),
    "untied": (
        (0.00025, 1600), (0.0005, 800), (0.0005, 1600),
        (0.001, 200), (0.001, 400), (0.001, 800), (0.001, 1600),
        (0.002, 200), (0.002, 400), (0.002, 800),
        (0.004, 200), (0.004, 400), (0.004, 800),
    ),
}  # fmt: skip

# How often a training fails, by rate: one layer, each head, each of SEEDS.
STABILITY_RATES = (0.004, 0.008, 0.016)

# What the two gradients of the tied matrix do: one layer, the usual rate of the tied model.
INPUT_GRADIENTS = (0.0, 0.2, 1.0, 5.0, 25.0)
BATCHES = (4, 64)  # beside the usual batch of 16
# The seeds of an untied model and a tied one whose matrices are compared
SIMILARITY_PAIRS = ((1, 2), (2, 1), (3, 4), (4, 3), (5, 6), (6, 5))

# Tied first, untied after so many of 800 steps. The rate does not change where the head does.
UNTIE_AFTER = (267, 533)
UNTIE_RATE = 0.004


def pilot_rates(model: Model, head: str) -> tuple[float, ...]:
    """The rates that the pilot of a model tries first: by default those around the chosen rate."""
    if (model.name, head) in PILOT_RATES:
        return PILOT_RATES[model.name, head]
    chosen = getattr(model, head)
    return (chosen / 2, chosen, 2 * chosen)


def pilot_models() -> Iterator[tuple[Model, str]]:
    """The models and heads for which a pilot chooses the rate and nothing else."""
    for model in TABLE:
        if model.rates_of:
            continue  # another model's pilot chose its rates
        if model.name == "tenth":
            continue  # its pilot, TENTH_PILOT, chooses the number of steps too
        for head in model.heads:
            if head != "copy":  # it has the rate of "untied", and is different only at the start
                yield model, head


def config(run: Run) -> Config:
    """The configuration of a run's model, as a tied model. training.py unties it for some heads."""
    return Config(
        n_ctx=run.context,
        n_embd=run.width,
        n_layer=run.layers,
        n_head=run.heads,
        vocab_size=run.vocab_size,
        bos_token_id=0,
        eos_token_id=0,
        embd_pdrop=0.0,
        resid_pdrop=0.0,
        attn_pdrop=0.0,
    )
