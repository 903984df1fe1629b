"""The training loop: draw a batch, compute and clip its gradient, update; evaluate; save and
resume."""

import json
import math
import time
import zlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoints import safetensors
from ..checkpoints.formats import open_checkpoint
from ..checkpoints.publishing import StagedFiles, finish_saves
from ..checkpoints.saving import write_model
from ..errors import (
    AT_LEAST_0,
    COUNT,
    RATE,
    ArgumentError,
    CheckpointError,
    Range,
    TiedGPTError,
    short_repr,
)
from ..fast.blas import one_blas_thread
from ..fast.threads import cores, training_threads
from ..gpt2.backward import write_gradients, write_head_gradient
from ..gpt2.checks import check_ids
from ..gpt2.model import GPT2
from ..gpt2.parameters import parameter_shapes, unflatten
from ..gpt2.run import OnProgress
from ..gpt2.tokenizer import Tokenizer
from ..inference.evaluation import token_losses
from .optimizer import AdamW, clip, learning_rate

MAX_COUNT = 2**31 - 1  # the largest number of steps, sequences, ...
TOO_HIGH = "the learning rate is too high for this model"
STATE = (
    "training.safetensors"  # the file from which `resume` continues; other programs do not need it
)
SAVED = (
    "only",
    "step",
    "best",
    "evaluations",
    "losses",
    "flags",
)  # attributes of a Trainer, in STATE
LOG = "log.jsonl"  # the evaluations, for other programs: a line of JSON for each


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
        counts = dict.fromkeys(("steps", "batch", "context"), 1)
        counts |= dict.fromkeys(("warm_up", "eval_every", "seed", "threads"), 0)
        ranges = {name: Range(least, MAX_COUNT) for name, least in counts.items()}
        ranges |= {**dict.fromkeys(("lr", "clip", "weight_decay"), AT_LEAST_0), "beta2": RATE}
        for (
            name,
            range_,
        ) in ranges.items():  # as Python's numbers: a NumPy integer cannot be written as JSON
            object.__setattr__(self, name, range_.check(name, getattr(self, name)))


class Trainer:
    """Trains a copy of a model; the model given is not changed.

    `tokens` [N] is the text to train on: a sequence is context + 1 consecutive tokens at a random
    place. `held_out` [M] is for evaluation only. With `only="head"`, only W_U of an untied model is
    trained, without dropout. The tokens of step n depend only on the seed and n, and its dropout
    also on the number of threads, so an interrupted run continues with the same numbers.

    `model` is the model as it is now; its trained parameters are views of `flat` [P]. `evaluations`
    are {"step", "loss", "val_loss"}, where loss is the mean over the steps since the last
    evaluation (step 0 has none). `flags` is saved for the caller and not used.
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
        if only not in (None, "head"):
            raise ArgumentError(f'only must be "head" or None, got {short_repr(only)}')
        if only and config.tied:
            raise ArgumentError("a tied model has no separate head to train: untie it first")
        if settings.context > config.n_ctx:
            raise ArgumentError(
                f"a context of {settings.context} tokens exceeds the model's {config.n_ctx}"
            )
        texts = {"text to train on": (tokens, settings.context), "held-out text": (held_out, 1)}
        for name, (ids, context) in texts.items():
            if len(ids) <= context:
                least = f"at least {context + 1} tokens, a context and the token after it"
                raise ArgumentError(f"the {name} must have {least}, got {len(ids)}")
            check_ids(ids[:, None], config)
        threads = min(settings.threads or training_threads(config.n_embd), settings.batch)
        eval_every = settings.eval_every or max(1, settings.steps // 10)
        self.settings = replace(settings, threads=threads, eval_every=eval_every)
        self.only = only
        self.tokens, self.held_out = tokens, held_out
        self.step_tokens = settings.batch * settings.context  # tokens that a step predicts
        shapes = parameter_shapes(config)
        self.shapes = {"lm_head.weight": shapes["lm_head.weight"]} if only else shapes
        size = sum(prod(shape) for shape in self.shapes.values())
        self.flat = np.empty(size, model.dtype)
        trained = unflatten(self.flat, self.shapes)
        for name, view in trained.items():
            view[...] = model.parameters[name]
        self.model = GPT2(config, {**model.parameters, **trained})
        self.optimizer = AdamW(self.flat, self.shapes, (0.9, settings.beta2), settings.weight_decay)
        self._gradients = np.empty((threads, size), model.dtype)  # a row for each thread
        self._rows = [unflatten(row, self.shapes) for row in self._gradients]
        self.step = 0
        self.evaluations: list[dict[str, float]] = []
        self.flags: dict[str, Any] = {}
        self.losses: list[float] = []  # of the steps since the last evaluation
        self.best: tuple[float, int] | None = None  # the lowest held-out loss and its step
        self._best_flat = self.flat.copy()  # the parameters of that step

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
        with ThreadPoolExecutor(max(len(self._rows), cores())) as pool:
            while self.step < self.settings.steps:
                record = self._step(pool)
                if self.step % self.settings.eval_every == 0 or self.step == self.settings.steps:
                    record["val_loss"] = self.evaluate(progress)
                yield record

    def best_model(self) -> GPT2:
        """The model of the step with the lowest held-out loss so far. Further training changes its
        arrays."""
        best = unflatten(self._best_flat, self.shapes)
        return GPT2(self.model.config, {**self.model.parameters, **best})

    def evaluate(self, progress: OnProgress = None) -> float:
        """The held-out loss in nats per token; each token but the first is predicted once."""
        stride = max(
            1, self.model.config.n_ctx - 1
        )  # a stride of n_ctx would skip each window's first token
        loss = float(token_losses(self.model, self.held_out, stride, progress).mean())
        if not math.isfinite(loss):
            raise TiedGPTError(f"the held-out loss after step {self.step} is {loss}: {TOO_HIGH}")
        if self.best is None or loss < self.best[0]:
            self.best = loss, self.step
            self._best_flat[:] = self.flat
        mean = {"loss": sum(self.losses) / len(self.losses)} if self.losses else {}
        self.evaluations.append({"step": self.step, **mean, "val_loss": loss})
        self.losses = []
        return loss

    def save(self, directory: Path, tokenizer: Tokenizer | None = None) -> None:
        """Write a checkpoint of the best model, as save_model does, with STATE for `resume` and
        LOG."""
        state = {name: getattr(self, name) for name in SAVED}
        state |= {"settings": asdict(self.settings), "text": checksums(self.tokens, self.held_out)}
        with StagedFiles(directory) as files:
            write_model(files, self.best_model(), tokenizer)
            safetensors.write(
                files.open(STATE), self._vectors().items(), {"training": json.dumps(state)}
            )
            log = files.open(LOG)
            log.writelines(
                f"{json.dumps(evaluation)}\n".encode() for evaluation in self.evaluations
            )

    @classmethod
    def resume(
        cls, directory: Path, tokens: np.ndarray, held_out: np.ndarray, steps: int | None = None
    ) -> "Trainer":
        """The trainer that was saved in a directory; give it the same texts again.

        `steps` is a new total number of steps; the learning rates from here on depend on it.
        """
        finish_saves(directory)
        path = directory / STATE
        tensors, metadata = safetensors.read_with_metadata(path)
        try:
            state = json.loads(metadata["training"])
            settings, text = Settings(**state["settings"]), state["text"]
            step, (loss, best_step) = state["step"], state["best"]
            if not (step in COUNT and best_step in COUNT and loss in AT_LEAST_0):
                raise ValueError(f"step {short_repr(step)}, best {short_repr(state['best'])}")
            state |= {name: list(state[name]) for name in ("evaluations", "losses")}
            state |= {"best": (loss, best_step), "flags": dict(state["flags"])}
            saved = {name: state[name] for name in SAVED}
        except (KeyError, TypeError, ValueError, RecursionError) as error:
            raise CheckpointError(
                f"{path} does not hold the state of a training: {error!r}"
            ) from error

        settings = settings if steps is None else replace(settings, steps=steps)
        if settings.steps < step:
            raise ArgumentError(
                f"{step} steps are done already; steps must be at least that, got {steps}"
            )
        if text != checksums(tokens, held_out):
            raise ArgumentError(
                f"{directory} was trained on another text: give the same two texts again"
            )
        trainer = cls(open_checkpoint(directory).load(), tokens, held_out, settings, state["only"])
        for name, vector in trainer._vectors().items():
            if name not in tensors or (tensors[name].dtype, tensors[name].shape) != (
                "F32",
                vector.shape,
            ):
                raise CheckpointError(
                    f"{path}: expected a tensor {name} of {vector.size} float32 numbers"
                )
            vector[...] = tensors[name].read()
        vars(trainer).update(saved)
        trainer.optimizer.steps = step
        return trainer

    def _vectors(self) -> dict[str, np.ndarray]:
        """The arrays [P] that a step changes, by their names in STATE."""
        return {"parameters": self.flat, "m": self.optimizer.m, "v": self.optimizer.v}

    def _step(self, pool: ThreadPoolExecutor) -> dict[str, Any]:
        start = time.perf_counter()
        s = self.settings
        with (
            one_blas_thread() if len(self._rows) > 1 else nullcontext()
        ):  # Python's threads share the batch
            loss, gradient = self._loss_and_gradient(pool)
            norm, scale = clip(gradient, s.clip)
        if not math.isfinite(loss) or not math.isfinite(norm):
            numbers = f"loss {loss:.4g}, norm of the gradient {norm:.4g}"
            raise TiedGPTError(f"step {self.step + 1} has {numbers}: {TOO_HIGH}")
        lr = learning_rate(self.step, s.steps, s.lr, min(s.warm_up, s.steps // 10))
        self.optimizer.step(gradient, lr, scale, pool.map)
        self.step += 1
        self.losses.append(loss)
        speed = self.step_tokens / (time.perf_counter() - start)
        return {"step": self.step, "loss": loss, "lr": lr, "grad_norm": norm, "tokens_per_s": speed}

    def _loss_and_gradient(self, pool: ThreadPoolExecutor) -> tuple[float, np.ndarray]:
        """The loss and gradient [P] of a step. Each thread computes some of the batch's
        sequences."""
        threads = len(self._rows)
        loss = sum(
            pool.map(self._share_loss, range(threads), np.array_split(self._draw(), threads))
        )
        gradient = self._gradients[0]
        for row in self._gradients[1:]:
            gradient += row
        return loss, gradient

    def _share_loss(self, share: int, windows: np.ndarray) -> float:
        """The part of the loss from `windows` [sequences, context + 1]. The gradient goes to
        _rows[share]."""
        ids, targets = windows[:, :-1], windows[:, 1:]
        gradients = self._rows[share]
        if self.only:
            head = gradients["lm_head.weight"]
            return write_head_gradient(self.model, ids, targets, self.step_tokens, head)
        return write_gradients(
            self.model, ids, targets, self.step_tokens, gradients, self._stream(1 + share)
        )

    def _draw(self) -> np.ndarray:  # -> [batch, context + 1]
        s = self.settings
        starts = self._stream(0).integers(0, len(self.tokens) - s.context, s.batch)
        return self.tokens[starts[:, None] + np.arange(s.context + 1)]

    def _stream(self, number: int) -> np.random.Generator:
        """A random stream of this step. The 0 has no meaning; without it, old runs would not
        repeat."""
        return np.random.default_rng([self.settings.seed, self.step, 0, number])


def checksums(*texts: np.ndarray) -> list[int]:  # [N] each
    """A checksum of each text's token ids, to recognise the same texts."""
    return [zlib.crc32(ids.astype("<i8").tobytes()) for ids in texts]
