"""The training loop: draw a batch, compute and clip its gradient, update; evaluate; save.

saving.py writes and reads the files.
"""

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from ..atomic import remove_unfinished_files
from ..checkpoints import Opened
from ..errors import ArgumentError, TiedGPTError
from ..evaluation import measure_tokens
from ..gpt2.backward import write_gradients, write_head_gradient
from ..gpt2.model import GPT2
from ..gpt2.ops import cross_entropy
from ..gpt2.parameters import parameter_shapes, unflatten
from ..gpt2.run import OnProgress
from ..threads import PoolMap, cores, one_blas_thread, thread_pool
from . import saving
from .optimizer import AdamW, clip, learning_rate
from .saving import Best, State, checksum
from .start import Settings, checked_settings


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
        self.settings = checked_settings(settings, only, tokens, held_out, config)
        self.only = only
        self.tokens = tokens
        self.held_out = held_out
        self.step_tokens = settings.batch * settings.context  # how many tokens a step predicts

        # The trained parameters are copied into one vector. The model's are views of it, so that a
        # step that updates the vector updates the model.
        self.shapes = parameter_shapes(config)
        if only == "head":
            self.shapes = {"lm_head.weight": self.shapes["lm_head.weight"]}
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
        self.losses: list[float] = []  # of the steps since the last evaluation
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
        if self.best is None:  # a new run: one that is resumed has evaluations
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
        stride = self.model.config.n_ctx - 1
        pieces = measure_tokens(self.model, self.held_out, stride, cross_entropy, progress)
        # In float64, so that the mean over a long text keeps its digits
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

        The first save makes the directory (`save`), with `others` in it: name -> contents of more
        files. It comes with the first record if nothing is saved there yet. When `should_stop()` is
        True after a step, the training is saved and ends. Raises TiedGPTError for a loss that is
        not finite, files that cannot be written, and a batch that does not fit into memory. The
        message says which model the directory holds.
        """
        try:
            for record in self.run(progress):
                is_last = should_stop()
                is_new = directory != self.directory
                if is_new or is_last or "val_loss" in record:
                    self.save(directory, others)
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
        """Write a checkpoint of the best model, the state, and the log to a new directory.

        In the directory of the last save, replace the files that have changed since.
        others: the contents of more files of a new directory by name, such as the tokenizer's.
        """
        best_model = self.best_model()
        if directory != self.directory:
            saving.save_new(directory, self._state(), self._vectors(), best_model, others or {})
        else:
            new_best = best_model if self.saved_best != self.best else None
            saving.replace_saved(directory, self._state(), self._vectors(), new_best)
        self.directory = directory
        self.saved_best = self.best

    @classmethod
    def resume(
        cls, directory: Path, tokens: np.ndarray, held_out: np.ndarray, steps: int | None = None
    ) -> "Trainer":
        """The trainer that was saved in a directory; give it the same texts again.

        `steps` is a new total number of steps; the learning rates from here on depend on it.
        Removes what a killed process left in the directory. Raises CheckpointError for a state that
        is missing or damaged and for another model, ArgumentError for another text and for too few
        steps.
        """
        state, tensors = saving.read_state(directory)
        settings = state.settings
        if steps is not None:
            settings = replace(settings, steps=steps)
        if settings.steps < state.step:
            raise ArgumentError(
                f"steps must be at least the {state.step} that are done, got {settings.steps}"
            )
        if state.text != [checksum(tokens), checksum(held_out)]:
            raise ArgumentError(
                f"{directory} was trained on another text: give the same text again"
            )

        # The trainer begins with the model of the best step, and keeps it as the best. Then it gets
        # the parameters of the last step, from which the training goes on.
        model = Opened(directory).model()
        trainer = cls(model, tokens, held_out, settings, only=state.only)
        saving.read_vectors(directory, tensors, into=trainer._vectors())  # flat, m and v
        trainer.step = state.step
        trainer.optimizer.steps = state.step
        trainer.best = state.best
        trainer.evaluations = state.evaluations
        trainer.losses = state.losses
        trainer.directory = directory
        trainer.saved_best = state.best
        # The process may have been killed after it saved the state and before it saved the model.
        trainer._finish_save(directory, state)
        return trainer

    def _finish_save(self, directory: Path, state: State) -> None:
        """Do what a process that was killed in `replace_saved` did not do.

        Raises CheckpointError if the directory holds another model.
        """
        # If the last step is the best one, the best model has its parameters. If the file of the
        # model has other parameters, the best model was not written.
        is_last_best = state.best.step == state.step
        is_unwritten = is_last_best and not np.array_equal(self._best_flat, self.flat)
        if is_unwritten:
            self._best_flat[:] = self.flat
        saving.check_model(directory, state, self.best_model())
        remove_unfinished_files(directory)
        if is_unwritten:
            saving.replace_model(directory, self.best_model())

    def _state(self) -> State:
        """What is saved beside the arrays."""
        assert self.best is not None  # a training is saved after an evaluation
        return State(
            self.settings,
            self.only,
            self.step,
            self.best,
            self.evaluations,
            self.losses,
            text=[checksum(self.tokens), checksum(self.held_out)],
            model=saving.checksum_of_model(self.best_model()),
            config=self.model.config.to_json(),
        )

    def _vectors(self) -> dict[str, np.ndarray]:
        """The parameters and the averages of AdamW, each [P], by their names in the saved state."""
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

        warm_up = min(settings.warm_up, settings.steps // 10)  # shorter in a short training
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
        # A damaged checkpoint may have a nan in the row of a rare token. The loss is finite until a
        # batch has this token, so the best model may have the nan. A rate that is too high makes
        # the loss nan, which is never the best loss. So then the best model is finite.
        parameters = self.best_model().parameters.values()
        best_is_finite = all(np.isfinite(array).all() for array in parameters)
        if not best_is_finite:
            return "the model's checkpoint is damaged"
        if self.step == 0:
            return "the model's weights are too large"
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
        rng = self._stream(0)  # streams 1, 2, ... are for dropout
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
