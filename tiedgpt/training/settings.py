"""The numbers that a training depends on."""

from dataclasses import dataclass

from ..errors import AT_LEAST_0, RATE, Range

MAX_COUNT = 2**31 - 1  # the largest number of steps, sequences, ...


@dataclass(frozen=True)
class Settings:
    """How a model is trained. Raises ArgumentError for a value out of range."""

    steps: int = 2000
    batch: int = 32  # sequences in a batch
    context: int = 128  # tokens in a sequence
    lr: float = 3e-3  # the peak learning rate, after the warm-up
    warm_up: int = 100  # steps, at most a tenth of all steps
    weight_decay: float = 0.1
    beta2: float = 0.99
    clip: float = 1.0  # the largest norm of a gradient
    eval_every: int = 0  # steps between evaluations; 0 means a tenth of all steps
    seed: int = 1
    threads: int = 0  # threads that share a batch; 0 means as many as training_threads gives

    def __post_init__(self) -> None:
        for name, allowed in RANGES.items():
            # `check` returns one of Python's numbers: a NumPy number cannot be written as JSON.
            number = allowed.check(name, getattr(self, name))
            object.__setattr__(self, name, number)  # the class is frozen


RANGES = {
    "steps": Range(1, MAX_COUNT),
    "batch": Range(1, MAX_COUNT),
    "context": Range(1, MAX_COUNT),
    "warm_up": Range(0, MAX_COUNT),
    "eval_every": Range(0, MAX_COUNT),
    "seed": Range(0, MAX_COUNT),
    "threads": Range(0, MAX_COUNT),
    "lr": AT_LEAST_0,
    "clip": AT_LEAST_0,
    "weight_decay": AT_LEAST_0,
    "beta2": RATE,
}
