"""The training loop: draw a batch, compute and clip its gradient, update; evaluate; save.

A training saves to one directory. Its first evaluation makes the directory, with a whole checkpoint
in it, and each later one replaces up to three files:

model.safetensors       the model of the step with the lowest held-out loss so far
training.safetensors    the state to resume from. Its tensors are the parameters of the last step
                        and the optimizer's m and v; its metadata has the rest as JSON
log.jsonl               a line of JSON for each evaluation, for other programs
"""

import json
import math
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field, fields, replace
from math import prod
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from .. import checkpoints
from ..atomic import new_directory, remove_unfinished, replaced_file
from ..checkpoints import safetensors
from ..checkpoints.files import WEIGHTS, write_checkpoint, write_weights
from ..errors import (
    ABOVE_0,
    AT_LEAST_0,
    COUNT,
    RATE,
    ArgumentError,
    CheckpointError,
    Range,
    TiedGPTError,
    short_repr,
)
from ..evaluation import measure_tokens
from ..fast.blas import one_blas_thread
from ..fast.threads import PoolMap, cores, thread_pool, training_threads
from ..gpt2.backward import write_gradients, write_head_gradient
from ..gpt2.checks import check_ids
from ..gpt2.config import Config
from ..gpt2.model import GPT2
from ..gpt2.ops import cross_entropy
from ..gpt2.parameters import parameter_shapes, unflatten
from ..gpt2.run import OnProgress
from .optimizer import AdamW, clip, learning_rate

STATE = "training.safetensors"
LOG = "log.jsonl"
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


class Best(NamedTuple):
    """The evaluation with the lowest held-out loss so far."""

    loss: float
    step: int


class Trainer:
    """Trains a copy of a model; the model given is not changed.

    `tokens` [N] is the text to train on: a sequence is context + 1 consecutive tokens at a random
    place. `held_out` [M] is for evaluation only. With `only="head"`, only W_U of an untied model is
    trained, without dropout. The tokens of step n depend only on the seed and n, and its dropout
    also on the number of threads, so an interrupted run continues with the same numbers.

    `model` is the model as it is now; its trained parameters are views of `flat` [P]. `evaluations`
    are {"step", "loss", "val_loss"}, where loss is the mean over the steps since the last
    evaluation (step 0 has none).
    """

    def __init__(
        self,
        model: GPT2,
        tokens: np.ndarray,
        held_out: np.ndarray,
        settings: Settings,
        only: str | None = None,
    ) -> None:
        config = model.config
        check_only(only, config)
        check_texts(tokens, held_out, settings.context, config)
        self.settings = with_defaults(settings, config)
        self.only = only
        self.tokens = tokens
        self.held_out = held_out
        self.step_tokens = settings.batch * settings.context  # how many tokens a step predicts

        # The trained parameters are copied into one vector; the model has views of it.
        self.shapes = trained_shapes(config, only)
        size = sum(prod(shape) for shape in self.shapes.values())
        self.flat = np.empty(size, model.dtype)
        views = unflatten(self.flat, self.shapes)
        for name, view in views.items():
            view[...] = model.parameters[name]
        self.model = GPT2(config, {**model.parameters, **views})
        betas = (0.9, settings.beta2)  # Adam's usual beta1 is not a setting
        self.optimizer = AdamW(self.flat, self.shapes, betas, settings.weight_decay)

        # Each thread writes the gradient of its share of the batch to one row.
        self._gradients = np.empty((self.settings.threads, size), model.dtype)
        self._gradient_views = [unflatten(row, self.shapes) for row in self._gradients]

        self.step = 0  # how many steps are done
        self.evaluations: list[dict[str, float]] = []
        self.losses: list[float] = []  # those of the steps since the last evaluation
        self.best: Best | None = None
        self._best_flat = self.flat.copy()  # `flat` as it was after the best step
        self.directory: Path | None = None  # where the training is saved
        self.saved_best: Best | None = None  # of the model in the directory

    def run(self, progress: OnProgress = None) -> Iterator[dict[str, Any]]:
        """Train; yield a record after each step.

        {"step", "loss", "lr", "grad_norm", "tokens_per_s"}, where loss is the mean over the step's
        batch in nats per token. "val_loss" is added every eval_every steps and after the last step.
        A new run begins with {"step": 0, "val_loss": ...}. `progress` is called during an
        evaluation with the number of held-out tokens read since the last call. Raises TiedGPTError
        when a loss or a gradient is not finite.
        """
        if self.best is None:
            yield {"step": 0, "val_loss": self.evaluate(progress)}
        # The pool computes the gradient, on as many threads as the settings say, and then updates
        # the parameters, on a thread for each core.
        most_threads = max(self.settings.threads, cores())
        with thread_pool(most_threads) as pool_map:
            while self.step < self.settings.steps:
                record = self._step(pool_map)
                is_last = self.step == self.settings.steps
                if is_last or self.step % self.settings.eval_every == 0:
                    record["val_loss"] = self.evaluate(progress)
                yield record

    def best_model(self) -> GPT2:
        """The model of the step with the lowest held-out loss so far.

        Further training changes its arrays.
        """
        best = unflatten(self._best_flat, self.shapes)
        return GPT2(self.model.config, {**self.model.parameters, **best})

    def evaluate(self, progress: OnProgress = None) -> float:
        """The held-out loss in nats per token; each token but the first is predicted once.

        Adds to `evaluations`, and keeps the parameters if the loss is the lowest so far.
        """
        # The first token of a window is not predicted there. With this stride, it is the last token
        # of the window before, and was predicted there.
        stride = max(1, self.model.config.n_ctx - 1)
        pieces = measure_tokens(self.model, self.held_out, stride, cross_entropy, progress)
        loss = float(np.concatenate(pieces, dtype=np.float64).mean())
        if not math.isfinite(loss):
            raise TiedGPTError(
                f"the held-out loss after step {self.step} is {loss}: {self._why_not_finite()}"
            )
        if self.best is None or loss < self.best.loss:
            self.best = Best(loss, self.step)
            self._best_flat[:] = self.flat

        evaluation: dict[str, float] = {"step": self.step}
        if self.losses:
            evaluation["loss"] = sum(self.losses) / len(self.losses)
        evaluation["val_loss"] = loss
        self.evaluations.append(evaluation)
        self.losses = []
        return loss

    def run_and_save(
        self,
        directory: Path,
        others: Mapping[str, bytes] | None = None,
        should_stop: Callable[[], bool] = lambda: False,
        progress: OnProgress = None,
    ) -> Iterator[dict[str, Any]]:
        """Train as `run` does, and save before each record with a "val_loss" is yielded.

        The first save is that of `save`. When `should_stop()` is True after a step, the training is
        saved and ends. Raises TiedGPTError for a loss that is not finite, files that cannot be
        written, and a batch that does not fit into memory. The message says which model the
        directory holds.
        """
        try:
            for record in self.run(progress):
                is_last = should_stop()
                if directory != self.directory:
                    self.save(directory, others)
                elif is_last or "val_loss" in record:
                    self._replace_saved(directory)
                yield record
                if is_last:
                    return
        except MemoryError as error:
            raise TiedGPTError(
                f"not enough memory for a batch of {self.settings.batch:,} sequences of "
                f"{self.settings.context:,} tokens; use a smaller --batch{self._saved_model()}"
            ) from error
        except TiedGPTError as error:
            raise type(error)(f"{error}{self._saved_model()}") from error

    def _saved_model(self) -> str:
        """The end of an error message: which model the directory holds, if there is one."""
        if self.saved_best is None:
            return ""
        return f"; {self.directory} holds the model of step {self.saved_best.step}"

    def save(self, directory: Path, others: Mapping[str, bytes] | None = None) -> None:
        """Write a new directory: a checkpoint of the best model, the state, and the log.

        others: the contents of more files by name, such as the tokenizer's.
        """
        with new_directory(directory) as new:
            write_checkpoint(new, self.best_model(), others or {})
            with open(new / STATE, "xb") as file:
                self._write_state(file)
            with open(new / LOG, "xb") as file:
                self._write_log(file)
        self.directory = directory
        self.saved_best = self.best

    def _replace_saved(self, directory: Path) -> None:
        """Replace the files that have changed since the last save.

        A kill between two replacements loses nothing. A log that is newer than the state is written
        again when the steps are repeated. A best model is saved after its own step, so its state,
        which is written first, has the same parameters: `resume` writes the model from them.
        """
        with replaced_file(directory / LOG) as file:
            self._write_log(file)
        with replaced_file(directory / STATE) as file:
            self._write_state(file)
        if self.saved_best != self.best:
            with replaced_file(directory / WEIGHTS) as file:
                write_weights(file, self.best_model())
            self.saved_best = self.best

    def _write_log(self, file: BinaryIO) -> None:
        for evaluation in self.evaluations:
            file.write(f"{json.dumps(evaluation)}\n".encode())

    def _write_state(self, file: BinaryIO) -> None:
        state = {
            "only": self.only,
            "step": self.step,
            "best": self.best,
            "evaluations": self.evaluations,
            "losses": self.losses,
            "settings": asdict(self.settings),
            "text": [checksum(self.tokens), checksum(self.held_out)],
        }
        metadata = {"training": json.dumps(state)}
        safetensors.write(file, self._vectors().items(), metadata)

    @classmethod
    def resume(
        cls, directory: Path, tokens: np.ndarray, held_out: np.ndarray, steps: int | None = None
    ) -> "Trainer":
        """The trainer that was saved in a directory; give it the same texts again.

        `steps` is a new total number of steps; the learning rates from here on depend on it.
        Removes what a killed process left in the directory. Raises CheckpointError for a state that
        is missing or damaged, ArgumentError for another text and for too few steps.
        """
        state, tensors = read_state(directory)
        settings = state["settings"]
        if steps is not None:
            settings = replace(settings, steps=steps)
        if settings.steps < state["step"]:
            raise ArgumentError(
                f"steps must be at least the {state['step']} that are done, got {settings.steps}"
            )
        if state["text"] != [checksum(tokens), checksum(held_out)]:
            raise ArgumentError(
                f"{directory} was trained on another text: give the same text again"
            )

        # The trainer begins with the model of the best step, and keeps it as the best. Then the
        # parameters of the last step replace those of its model.
        trainer = cls(checkpoints.load(directory), tokens, held_out, settings, state["only"])
        for name, vector in trainer._vectors().items():
            read_vector(directory, tensors, name, to=vector)
        trainer.step = state["step"]
        trainer.optimizer.steps = state["step"]
        trainer.best = state["best"]
        trainer.evaluations = state["evaluations"]
        trainer.losses = state["losses"]
        trainer.directory = directory
        trainer.saved_best = state["best"]
        trainer._complete_saved(directory)
        return trainer

    def _complete_saved(self, directory: Path) -> None:
        """Do what a process that was killed in `_replace_saved` did not do."""
        for name in (LOG, STATE, WEIGHTS):
            remove_unfinished(directory / name)
        assert self.best is not None  # `read_state` refuses a state without it
        # The state was written after the step of the best model, and the model perhaps not.
        is_last_best = self.best.step == self.step
        if is_last_best and not np.array_equal(self._best_flat, self.flat):
            self._best_flat[:] = self.flat
            with replaced_file(directory / WEIGHTS) as file:
                write_weights(file, self.best_model())

    def _vectors(self) -> dict[str, np.ndarray]:
        """The arrays [P] that a step changes, by their names in the saved state."""
        return {"parameters": self.flat, "m": self.optimizer.m, "v": self.optimizer.v}

    def _step(self, pool_map: PoolMap) -> dict[str, Any]:
        """Do one step; return its record."""
        start = time.perf_counter()
        settings = self.settings
        blas_threads: AbstractContextManager[Any] = nullcontext()
        if settings.threads > 1:  # then each of Python's threads computes its own products
            blas_threads = one_blas_thread()
        with blas_threads:
            loss, gradient = self._loss_and_gradient(pool_map)
            norm, scale = clip(gradient, settings.clip)
        if not math.isfinite(loss) or not math.isfinite(norm):
            raise TiedGPTError(
                f"step {self.step + 1} has loss {loss:.4g}, norm of the gradient {norm:.4g}: "
                f"{self._why_not_finite()}"
            )

        warm_up = min(settings.warm_up, settings.steps // 10)  # a short training warms up shorter
        lr = learning_rate(self.step, settings.steps, settings.lr, warm_up)
        self.optimizer.step(gradient, lr, scale, pool_map)
        self.step += 1
        self.losses.append(loss)
        seconds = time.perf_counter() - start
        return {
            "step": self.step,
            "loss": loss,
            "lr": lr,
            "grad_norm": norm,
            "tokens_per_s": self.step_tokens / seconds,
        }

    def _why_not_finite(self) -> str:
        """Why a loss or a gradient is not finite."""
        # A damaged checkpoint may have a nan in the embedding of a rare token, which no step reads
        # until now. Then the best model has it too. A rate that is too high makes the loss of all
        # tokens nan, so the best model is from before that and is finite.
        parameters = self.best_model().parameters.values()
        best_is_finite = all(np.isfinite(array).all() for array in parameters)
        if self.step == 0 or not best_is_finite:
            return "the model's checkpoint is damaged"
        return "the learning rate is too high for this model"

    def _loss_and_gradient(self, pool_map: PoolMap) -> tuple[float, np.ndarray]:
        """The loss and gradient [P] of a step. Each thread computes a share of the batch.

        The gradient is in memory that the next step writes to.
        """
        threads = self.settings.threads
        shares = np.array_split(self._draw(), threads)
        # Each call returns what its share adds to the loss, and writes its share's gradient into a
        # row of self._gradients. The rows are then added to the first one.
        loss = sum(pool_map(self._share_loss, range(threads), shares))
        gradient = self._gradients[0]
        for share_gradient in self._gradients[1:]:
            gradient += share_gradient
        return loss, gradient

    def _share_loss(self, share: int, sequences: np.ndarray) -> float:  # [B, context + 1]
        """What some sequences add to the mean loss. Their gradient goes to row `share`."""
        ids = sequences[:, :-1]
        targets = sequences[:, 1:]
        gradients = self._gradient_views[share]
        if self.only == "head":
            head = gradients["lm_head.weight"]
            return write_head_gradient(self.model, ids, targets, self.step_tokens, head)
        rng = self._stream(1 + share)  # stream 0 drew the sequences
        return write_gradients(self.model, ids, targets, self.step_tokens, gradients, rng)

    def _draw(self) -> np.ndarray:  # -> [batch, context + 1]
        """The sequences of this step, from random places of the text."""
        rng = self._stream(0)
        context = self.settings.context
        length = context + 1  # the inputs, and the token that follows the last of them
        number_of_starts = len(self.tokens) - length + 1  # the last sequence ends with the text
        starts = rng.integers(0, number_of_starts, self.settings.batch)
        return np.stack([self.tokens[start : start + length] for start in starts])

    def _stream(self, number: int) -> np.random.Generator:
        """A random stream of this step: 0 draws the sequences, 1 + i is for the dropout of share i.

        The third number of the seed, 0, is always the same. Without it, the runs of older versions
        would not repeat.
        """
        return np.random.default_rng([self.settings.seed, self.step, 0, number])


def check_only(only: str | None, config: Config) -> None:
    """Raise ArgumentError if `only` is not allowed, or does not fit the model."""
    if only not in (None, "head"):
        raise ArgumentError(f'only must be "head" or None, got {short_repr(only)}')
    if only == "head" and config.tied:
        raise ArgumentError("a tied model has no separate head to train: untie it first")


def check_texts(tokens: np.ndarray, held_out: np.ndarray, context: int, config: Config) -> None:
    """Raise ArgumentError if the model cannot read the texts, or one is too short."""
    if context > config.n_ctx:
        raise ArgumentError(f"a context of {context} tokens exceeds the model's {config.n_ctx}")
    if len(tokens) <= context:
        raise ArgumentError(
            f"the text to train on must have at least {context + 1} tokens, a context and the "
            f"token after it, got {len(tokens)}"
        )
    # The texts may be longer than the model's context, so check_ids gets each token as a sequence.
    check_ids(tokens[:, None], config)
    if len(held_out) < 2:
        raise ArgumentError(
            "the held-out text must have at least 2 tokens, a context and the token after it, "
            f"got {len(held_out)}"
        )
    check_ids(held_out[:, None], config)


def with_defaults(settings: Settings, config: Config) -> Settings:
    """The settings with numbers in place of each 0 that means a default."""
    threads = settings.threads or training_threads(config.n_embd)
    threads = min(threads, settings.batch)  # each thread has at least one sequence
    eval_every = settings.eval_every or max(1, settings.steps // 10)
    return replace(settings, threads=threads, eval_every=eval_every)


def trained_shapes(config: Config, only: str | None) -> dict[str, tuple[int, ...]]:
    """The names and shapes of the parameters that are trained."""
    shapes = parameter_shapes(config)
    if only == "head":
        return {"lm_head.weight": shapes["lm_head.weight"]}
    return shapes


def checksum(ids: np.ndarray) -> int:  # [N]
    """A checksum of a text's token ids, to recognise the same text."""
    return zlib.crc32(ids.astype("<i8").tobytes())


def read_state(directory: Path) -> tuple[dict[str, Any], dict[str, safetensors.Tensor]]:
    """The state in a directory, and its tensors, which are not read and not checked yet.

    The state is as `Trainer._write_state` has it, with Settings and Best. Raises CheckpointError if
    there is no state, or if it is damaged.
    """
    path = directory / STATE
    tensors, metadata = safetensors.read_header(path)
    try:
        saved = json.loads(metadata["training"])
        state = {name: saved[name] for name in ("only", "step", "text")}
        state["settings"] = Settings(**saved["settings"])
        state["best"] = Best(*saved["best"])
        state["evaluations"] = list(saved["evaluations"])
        state["losses"] = list(saved["losses"])
        COUNT.check("step", state["step"])
        COUNT.check("best step", state["best"].step)
        AT_LEAST_0.check("best loss", state["best"].loss)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} does not hold the state of a training: {error!r}") from error
    return state, tensors


def read_vector(
    directory: Path, tensors: dict[str, safetensors.Tensor], name: str, to: np.ndarray
) -> None:
    """Read the tensor `name` of STATE into the array `to` [P].

    Raises CheckpointError if there is no such tensor of this shape.
    """
    tensor = tensors.get(name)
    if tensor is None or tensor.dtype != "F32" or tensor.shape != to.shape:
        raise CheckpointError(
            f"{directory / STATE}: expected a tensor {name} of {to.size} float32 numbers"
        )
    to[...] = tensor.values()
