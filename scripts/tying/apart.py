"""Trainings in which the two uses of the tied matrix are told apart.

The gradient of a tied matrix is a sum: that of its use as the output matrix, and that of its use as
the token embedding. `train_with_two_gradients` computes them one by one. `train_tied_then_untied`
gives the model a second matrix in the middle of the training.
"""

import warnings
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from tiedgpt import GPT2, TiedGPTError
from tiedgpt.gpt2.backward import write_gradients
from tiedgpt.gpt2.parameters import unflatten
from tiedgpt.inference.evaluation import token_losses
from tiedgpt.training.loop import Settings, Trainer

EARLY_TOKENS = 4097
TENTHS = 10


class TwoGradientTrainer(Trainer):
    """A Trainer of a tied model that multiplies the input's gradient before it adds the output's.

    `ratios` has the norm of the output's gradient over the input's, before the factor, of each
    step.
    """

    input_factor = 1.0

    def _loss_and_gradient(self, pool: ThreadPoolExecutor) -> tuple[float, np.ndarray]:
        # The untied twin has the same arrays, so its logits are the same. It has one gradient for
        # each use of the matrix.
        parameters = self.model.parameters
        twin = GPT2(
            self.model.config.with_head("untied"),
            {**parameters, "lm_head.weight": parameters["wte.weight"]},
        )
        gradient = self._gradients[0]
        gradients = unflatten(gradient, self.shapes)
        output = np.empty_like(parameters["wte.weight"])
        sequences = self._draw()
        ids = sequences[:, :-1]
        targets = sequences[:, 1:]
        both = {**gradients, "lm_head.weight": output}
        loss = write_gradients(twin, ids, targets, self.step_tokens, both)
        input = gradients["wte.weight"]
        self.ratios.append(float(np.linalg.norm(output) / np.linalg.norm(input)))
        input *= np.float32(self.input_factor)
        input += output
        return loss, gradient


def settings_of(run: Any) -> Settings:
    return Settings(
        run.steps, run.batch, run.context, lr=run.lr, eval_every=run.steps, seed=run.seed, threads=1
    )


def early_loss(model: GPT2, early: np.ndarray) -> float:
    return float(token_losses(model, early, model.config.n_ctx - 1).mean())


def train_with_two_gradients(model: GPT2, run: Any, data: Any) -> tuple[GPT2, dict[str, float]]:
    """The trained model, its loss after a tenth of the steps, and the mean ratio of each tenth."""
    early = data.held_out[:EARLY_TOKENS]
    trainer = TwoGradientTrainer(model, data.tokens, early, settings_of(run))
    trainer.input_factor = run.input_factor
    trainer.ratios = []
    result: dict[str, float] = {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)
            for record in trainer.run():
                if record["step"] == round(run.steps / 10):
                    result["early loss"] = early_loss(trainer.model, early)
    except TiedGPTError as error:
        raise FloatingPointError from error
    for tenth, ratios in enumerate(np.array_split(trainer.ratios, TENTHS), 1):
        result[f"gradient ratio, tenth {tenth}"] = float(ratios.mean())
    result["gradient ratio, highest"] = max(trainer.ratios)
    return trainer.model, result


def train_tied_then_untied(model: GPT2, run: Any, data: Any) -> tuple[GPT2, dict[str, float]]:
    """The trained model, and its loss after a tenth of the steps.

    W_U starts as a copy of W_E, after `untie_after` steps. The learning rates go on.
    """
    early = data.held_out[:EARLY_TOKENS]
    tied = Trainer(model, data.tokens, early, settings_of(run))
    result: dict[str, float] = {}
    try:
        for record in tied.run():
            if record["step"] == round(run.steps / 10):
                result["early loss"] = early_loss(tied.model, early)
            if record["step"] == run.untie_after:
                break
        untied = Trainer(tied.model.untie("copy"), data.tokens, early, settings_of(run))
        untied.step = run.untie_after
        untied.optimizer.steps = run.untie_after
        for moment in ("m", "v"):
            before = unflatten(getattr(tied.optimizer, moment), tied.shapes)
            after = unflatten(getattr(untied.optimizer, moment), untied.shapes)
            for name, array in before.items():
                after[name][...] = array
            if not run.fresh_moments:
                after["lm_head.weight"][...] = before["wte.weight"]
        for _ in untied.run():
            pass
    except TiedGPTError as error:
        raise FloatingPointError from error
    return untied.model, result
