"""Train one model: the package's training step, and what the experiment changes in it.

The head of a run says how the output matrix W_U comes from the token embedding W_E. W_E is the
parameter wte.weight. In a tied model, W_U is W_E^T. An untied model has another parameter for it,
lm_head.weight, which is W_U^T. The gradient of a tied W_E has two parts: the input's part, from its
use as token embedding, and the output's part, from its use as output matrix.

A step draws a batch, computes and clips its gradient, and updates the parameters with AdamW, as
tiedgpt.training.loop does with one thread. Four things can be added to it:

    fixed parameters        the gradient of a sublayer that is left out is set to 0
    a factor                the input's part of the gradient of a tied W_E is multiplied by it
    untying                 W_U becomes a matrix of its own after some steps
    a map                   W_U = M W_E^T, with a trained matrix M [D, D]
"""

import math
import warnings
from dataclasses import dataclass, field
from math import prod

import numpy as np

from tiedgpt import GPT2
from tiedgpt.gpt2.backward import write_gradients
from tiedgpt.gpt2.parameters import Parameters, unflatten
from tiedgpt.training.loop import Settings
from tiedgpt.training.optimizer import AdamW, clip, learning_rate

from .settings import Run, config

MAPS = ("rotation", "identity")  # heads with W_U = M W_E^T, by the start of M
MAP = "map"  # the name of M among the parameters
STARTS_OF_W_U = {"untied": "random", "copy": "copy", "zeros": "zeros"}  # by head, for GPT2.untie
# What is drawn at random has a stream of its own, so that a draw does not change the others.
SIGNS_STREAM = 4
MAP_STREAM = 5
USUAL = Settings()  # for the warm-up, the weight decay, beta2 and the clipping


@dataclass
class Training:
    """The trained parameters as views of one vector, their gradients, and the optimizer."""

    run: Run
    parameters: Parameters
    gradients: Parameters
    flat_gradient: np.ndarray  # [P]
    optimizer: AdamW
    fixed: tuple[str, ...] = ()  # the names of parameters that are not trained
    # By step, the norm of the output's part of the gradient divided by that of the input's part
    ratios: list[float] = field(default_factory=list)


def new_training(run: Run, parameters: Parameters, fixed: tuple[str, ...] = ()) -> Training:
    """A training that starts from copies of `parameters`."""
    # The parameters are views of one vector, which the optimizer changes, and so are the gradients.
    shapes = {name: array.shape for name, array in parameters.items()}
    size = sum(prod(shape) for shape in shapes.values())
    flat = np.empty(size, np.float32)
    views = unflatten(flat, shapes)
    for name, view in views.items():
        view[...] = parameters[name]
    flat_gradient = np.empty(size, np.float32)
    gradients = unflatten(flat_gradient, shapes)
    optimizer = AdamW(flat, shapes, betas=(0.9, USUAL.beta2), weight_decay=USUAL.weight_decay)
    return Training(run, views, gradients, flat_gradient, optimizer, fixed)


def start(run: Run) -> Training:
    """The training of a run before its first step."""
    model = GPT2.random(config(run), run.seed)
    parameters = {name: array.copy() for name, array in model.parameters.items()}

    # run.only names the one sublayer that the layers have. The parameters of the other sublayer are
    # 0, so that its output is 0. They are not trained, and weight decay does not change a 0.
    fixed: tuple[str, ...] = ()
    if run.only:
        names_of_other = {"attention": ".mlp.", "MLP": ".attn."}  # parts of parameter names
        left_out = names_of_other[run.only]
        fixed = tuple(name for name in parameters if left_out in name)
        for name in fixed:
            parameters[name][...] = 0

    if run.head == "signs":  # tied; the gains of ln_f start at 1 or -1
        rng = np.random.default_rng([run.seed, SIGNS_STREAM])
        gains = parameters["ln_f.weight"]
        gains[...] = rng.choice([-1.0, 1.0], gains.size)
    elif run.head in MAPS:
        parameters[MAP] = first_map(run)
    elif run.head in STARTS_OF_W_U:
        tied = GPT2(model.config, parameters)
        parameters = tied.untie(STARTS_OF_W_U[run.head], run.seed).parameters
    return new_training(run, parameters, fixed)


def first_map(run: Run) -> np.ndarray:  # -> [D, D]
    """The start of M: a random rotation, or the identity."""
    if run.head == "identity":
        return np.eye(run.width, dtype=np.float32)
    rng = np.random.default_rng([run.seed, MAP_STREAM])
    normal = rng.standard_normal((run.width, run.width))
    Q, R = np.linalg.qr(normal)
    # Without these signs, not all rotations would be equally likely.
    rotation = Q * np.sign(np.diag(R))
    return rotation.astype(np.float32)


def model_of(training: Training) -> GPT2:
    """The model with the parameters as they are now.

    The model has the same arrays as the training, so a later step changes the model too. With a map
    the model is untied. Its W_U is computed here, and a later step does not change it.
    """
    parameters = dict(training.parameters)
    tied_config = config(training.run)
    if MAP in parameters:
        M = parameters.pop(MAP)
        parameters["lm_head.weight"] = parameters["wte.weight"] @ M.T  # W_U = M W_E^T, transposed
    if "lm_head.weight" in parameters:
        return GPT2(tied_config.with_head("untied"), parameters)
    return GPT2(tied_config, parameters)


def do_step(training: Training, tokens: np.ndarray, step: int) -> None:
    """One step of training, counted from 0.

    Raises FloatingPointError if the loss or the gradient is not finite.
    """
    run = training.run
    ids, targets = draw(tokens, run, step)

    # The gradients are written into training.gradients, which are views of flat_gradient.
    if MAP in training.parameters:
        loss = write_map_gradients(training, ids, targets)
    elif run.input_gradient is not None:
        loss = write_weighted_gradients(training, ids, targets)
    else:
        model = model_of(training)
        loss = write_gradients(model, ids, targets, total=ids.size, gradients=training.gradients)
    for name in training.fixed:
        training.gradients[name][...] = 0

    # `scale` is the factor of a clipped gradient, which the optimizer multiplies it by.
    norm, scale = clip(training.flat_gradient, USUAL.clip)
    if not math.isfinite(loss) or not math.isfinite(norm):
        raise FloatingPointError
    warm_up = min(USUAL.warm_up, run.steps // 10)
    rate = learning_rate(step, run.steps, run.lr, warm_up)
    training.optimizer.step(training.flat_gradient, rate, scale)


def draw(  # [N] -> [batch, context], [batch, context]
    tokens: np.ndarray, run: Run, step: int
) -> tuple[np.ndarray, np.ndarray]:
    """The sequences of a step, from random places of the text, and the token after each token.

    The places depend on the seed and the step only, so runs of one seed have the same batches.
    """
    # The package's training has the same four numbers as seed, so it draws the same batches.
    rng = np.random.default_rng([run.seed, step, 0, 0])
    starts = rng.integers(0, len(tokens) - run.context, run.batch)
    sequences = tokens[starts[:, None] + np.arange(run.context + 1)]
    return sequences[:, :-1], sequences[:, 1:]


def write_weighted_gradients(training: Training, ids: np.ndarray, targets: np.ndarray) -> float:
    """Write the gradients of a tied model, with a factor on the input's part of W_E's gradient.

    Returns the loss. training.ratios gets one ratio more: the norm of the output's part divided by
    that of the input's part, before the factor.
    """
    # Take an untied model with the same W_E and W_U. The input's part is the gradient of its W_E,
    # and the output's part is that of its lm_head.weight.
    untied_model = model_of(training).untie("copy")
    output_part = np.empty_like(untied_model.W_E)
    gradients = {**training.gradients, "lm_head.weight": output_part}
    loss = write_gradients(untied_model, ids, targets, total=ids.size, gradients=gradients)

    wte_gradient = training.gradients["wte.weight"]  # so far the input's part alone
    ratio = np.linalg.norm(output_part) / np.linalg.norm(wte_gradient)
    training.ratios.append(float(ratio))
    wte_gradient *= np.float32(training.run.input_gradient)
    wte_gradient += output_part
    return loss


def write_map_gradients(training: Training, ids: np.ndarray, targets: np.ndarray) -> float:
    """Write the gradients of a model with a map, W_U = M W_E^T. Returns the loss."""
    W_E = training.parameters["wte.weight"]
    M = training.parameters[MAP]

    # First the gradients of an untied model with this W_U. The untied model has no M.
    untied_model = model_of(training)
    gradients = dict(training.gradients)  # a new dict of the same arrays, which are written to
    del gradients[MAP]
    lm_head_gradient = np.empty_like(W_E)  # [V, D]
    gradients["lm_head.weight"] = lm_head_gradient
    loss = write_gradients(untied_model, ids, targets, total=ids.size, gradients=gradients)

    # lm_head.weight is W_E M^T. So M gets a gradient, and W_E a second one, added to its first.
    training.gradients[MAP][...] = lm_head_gradient.T @ W_E
    training.gradients["wte.weight"] += lm_head_gradient @ M
    return loss


def continue_untied(training: Training) -> Training:
    """The training of a tied model, continued as that of an untied one. W_U starts as W_E^T.

    AdamW has averages m and v of the gradients. Those of W_U start as copies of those of W_E, or at
    0 if run.new_averages is set.
    """
    run = training.run
    parameters = model_of(training).untie("copy").parameters
    following = new_training(run, parameters)  # all of its averages are 0

    # Copy AdamW's number of steps, and its averages parameter by parameter.
    before = training.optimizer
    after = following.optimizer
    after.steps = before.steps
    for old, new in ((before.m, after.m), (before.v, after.v)):
        old_views = unflatten(old, before.shapes)
        new_views = unflatten(new, after.shapes)
        for name, old_view in old_views.items():
            new_views[name][...] = old_view
        if not run.new_averages:
            new_views["lm_head.weight"][...] = old_views["wte.weight"]
    return following


def train(run: Run, tokens: np.ndarray) -> tuple[GPT2, GPT2, list[float]]:
    """The model at the end, a copy of it after a tenth of the steps, and the ratios of gradients.

    Raises FloatingPointError if a loss or a gradient is not finite.
    """
    training = start(run)
    early = model_of(training)  # replaced after a tenth of the steps, if that is a step or more
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # overflow, if the rate is much too high
        for step in range(run.steps):
            is_untied_later = run.untie_after > 0
            if is_untied_later and step == run.untie_after:
                training = continue_untied(training)
            do_step(training, tokens, step)
            if step + 1 == round(run.steps / 10):
                early = model_of(training).astype(np.float32)  # a copy, which no step changes
    return model_of(training), early, training.ratios
