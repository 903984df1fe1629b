"""What a training starts from: settings, a new model with its tokenizer, a text in two parts."""

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

import numpy as np

from ..errors import ABOVE_0, AT_LEAST_0, RATE, ArgumentError, Range, short_repr
from ..gpt2.checks import check_ids
from ..gpt2.config import Config
from ..gpt2.model import GPT2
from ..gpt2.parameters import parameter_count
from ..gpt2.tokenizer import Tokenizer
from ..threads import training_threads
from .merges import learn_tokenizer

MAX_COUNT = 2**31 - 1  # the largest number of steps, sequences, ...


def setting(default: float, accepted: Range, help: str = "", metavar: str = "") -> Any:
    """A field of Settings: its default, the numbers that it accepts, and the help of its flag."""
    return field(default=default, metadata={"accepted": accepted, "help": help, "metavar": metavar})


@dataclass(frozen=True)
class Settings:
    """How a model is trained. Raises ArgumentError for a number that is not accepted."""

    steps: int = setting(2000, Range(1, MAX_COUNT), "steps in all, for the learning rate too", "N")
    batch: int = setting(32, Range(1, MAX_COUNT), "sequences in a step", "B")
    # A context of one token predicts nothing.
    context: int = setting(128, Range(2, MAX_COUNT), "tokens in a sequence", "T")
    lr: float = setting(3e-3, ABOVE_0, "peak learning rate, after the warm-up", "LR")
    warm_up: int = setting(100, Range(0, MAX_COUNT))  # steps, at most a tenth of all steps
    weight_decay: float = setting(0.1, AT_LEAST_0)
    beta2: float = setting(0.99, RATE)
    clip: float = setting(1.0, AT_LEAST_0)  # the largest norm of a gradient
    eval_every: int = setting(
        0, Range(0, MAX_COUNT), "steps between evaluations, which also save; 0: a tenth of all", "N"
    )
    seed: int = setting(1, Range(0, MAX_COUNT), "seed of weights, batches and dropout", "S")
    threads: int = setting(0, Range(0, MAX_COUNT))  # that share a batch; 0: training_threads

    def __post_init__(self) -> None:
        for each in fields(self):
            # `check` returns one of Python's numbers: a NumPy number cannot be written as JSON.
            number = each.metadata["accepted"].check(each.name, getattr(self, each.name))
            object.__setattr__(self, each.name, number)  # the class is frozen


@dataclass(frozen=True)
class Shape:
    """The sizes of a new model and of its first weights.

    Config and learn_tokenizer refuse sizes that are not valid.
    """

    n_layer: int = field(default=4, metadata={"help": "layers of a new model", "metavar": "L"})
    n_head: int = field(
        default=4, metadata={"help": "attention heads of a new model", "metavar": "H"}
    )
    n_embd: int = field(default=128, metadata={"help": "width of a new model", "metavar": "D"})
    vocab_size: int = field(
        default=1024,
        metadata={
            "help": "tokens of a new model; 257: one for each byte and <|endoftext|>",
            "metavar": "V",
        },
    )
    initializer_range: float = field(
        default=0.02,
        metadata={
            "help": "standard deviation of a new model's first weights; GPT-2's 0.02 is too small "
            "for small models: try 0.05 or 0.1",
            "metavar": "STD",
        },
    )


def split(text: str) -> tuple[str, str]:
    """The text to train on, nine tenths of all characters, and the rest, which is held out."""
    end = len(text) * 9 // 10
    return text[:end], text[end:]


def new_model(
    text: str, shape: Shape, settings: Settings, head: str | None
) -> tuple[GPT2, Tokenizer]:
    """A random model, and the tokenizer that is learned from the text.

    Its vocabulary is smaller than that of `shape` if the text has too few pairs to merge. Raises
    ConfigError for a shape that is not valid, MemoryError for a model that does not fit into
    memory.
    """
    # The attention pattern [B, H, T, T] has no dropout: it would take most of the random numbers of
    # a step. The other rates of dropout are GPT-2's, 0.1.
    config = Config(**asdict(shape), n_ctx=settings.context, attn_pdrop=0.0)
    tokenizer = learn_tokenizer(text, shape.vocab_size)
    config = replace(
        config,
        vocab_size=tokenizer.vocab_size,
        bos_token_id=tokenizer.eot_id,
        eos_token_id=tokenizer.eot_id,
    )
    # This raises the MemoryError now, not after a minute of drawing random numbers.
    np.empty(parameter_count(config).total, np.float32)
    model = GPT2.random(config, settings.seed)
    if head == "untied":
        model = model.untie("random", settings.seed)
    return model, tokenizer


def checked_settings(
    settings: Settings,
    only: str | None,
    tokens: np.ndarray,
    held_out: np.ndarray,
    config: Config,
) -> Settings:
    """The settings with numbers in place of each 0 that means a default.

    Raises ArgumentError if `only` is not allowed or does not fit the model, if the model cannot
    read the texts, and if one of them is too short.
    """
    if only not in (None, "head"):
        raise ArgumentError(f'only must be "head" or None, got {short_repr(only)}')
    if only == "head" and config.tied:
        raise ArgumentError("a tied model has no separate head to train: untie it first")
    context = settings.context
    if context > config.n_ctx:
        raise ArgumentError(f"a context of {context} tokens exceeds the model's {config.n_ctx}")
    if len(tokens) <= context:
        raise ArgumentError(
            f"the text to train on must have at least {context + 1} tokens, a context and the "
            f"token after it, got {len(tokens)}; give a longer text or a smaller context"
        )
    # The texts may be longer than the model's context, so check_ids gets each token as a sequence.
    check_ids(tokens[:, None], config)
    if len(held_out) < 2:
        raise ArgumentError(
            "the held-out text must have at least 2 tokens, a context and the token after it, "
            f"got {len(held_out)}"
        )
    check_ids(held_out[:, None], config)
    threads = settings.threads or training_threads(config.n_embd)
    threads = min(threads, settings.batch)  # each thread has at least one sequence
    eval_every = settings.eval_every or max(1, settings.steps // 10)  # at least 1, for few steps
    return replace(settings, threads=threads, eval_every=eval_every)
