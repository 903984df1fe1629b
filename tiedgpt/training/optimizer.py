"""AdamW on one flat vector, gradient clipping, and the learning rate's schedule."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from ..gpt2.parameters import unflatten

# So many are updated together that they, m and v stay in the processor's cache.
PARAMETERS_AT_A_TIME = 262_144


@dataclass
class AdamW:
    """Adam with decoupled weight decay, as torch computes it.

    [Kingma & Ba 2015; Loshchilov & Hutter 2019]

    `flat` [P] holds the parameters of `shapes`, one after the other, and is updated in place.
    Weight decay applies to the matrices, wte and wpe included, but not to biases and layer norms. A
    tied wte is one matrix: it is decayed once and has one m and one v, computed from the sum of its
    two gradients. In an untied model, wte and lm_head are decayed separately and each has an m and
    a v. The gradient of wte is then 0 in the rows of tokens that are not in the batch; the gradient
    of lm_head has no such rows.
    """

    flat: np.ndarray
    shapes: dict[str, tuple[int, ...]]
    betas: tuple[float, float]
    weight_decay: float
    eps: float = 1e-8
    steps: int = 0

    def __post_init__(self) -> None:
        self.m = np.zeros_like(self.flat)  # moving average of the gradients
        self.v = np.zeros_like(self.flat)  # moving average of their squares
        views = unflatten(self.flat, self.shapes).values()
        # Only matrices are decayed. Biases and layer norms have one axis.
        self.decayed = [view for view in views if view.ndim > 1]

    def step(
        self,
        gradient: np.ndarray,
        lr: float,
        scale: float = 1.0,
        map_parts: Callable[..., Iterable[None]] = map,
    ) -> None:
        """Update the parameters for the gradient `scale * gradient` [P].

        `map_parts` is Python's `map`, or that of a thread pool, which updates several parts of the
        parameters at once.
        """
        self.steps += 1
        for matrix in self.decayed:
            matrix *= 1 - lr * self.weight_decay

        def update(start: int) -> None:
            part = slice(start, start + PARAMETERS_AT_A_TIME)
            self._update(part, gradient[part], lr, scale)

        starts = range(0, self.flat.size, PARAMETERS_AT_A_TIME)
        for _ in map_parts(update, starts):
            pass  # Python's `map` calls `update` only when it is asked for the next item

    def _update(self, part: slice, g: np.ndarray, lr: float, scale: float) -> None:
        """Adam's update of a part of the parameters for its gradient `scale * g`.

        It is in place, because memory traffic takes most of the time; `x` is the only new array.
        """
        beta1, beta2 = self.betas
        w = self.flat[part]
        m = self.m[part]
        v = self.v[part]
        # m and v start at 0, so they are too small at first. m / m_factor and
        # sqrt(v) / root_v_factor are not.
        m_factor = 1 - beta1**self.steps
        root_v_factor = math.sqrt(1 - beta2**self.steps)

        # m = beta1 m + (1 - beta1) scale g
        x = g * ((1 - beta1) * scale)
        m *= beta1
        m += x
        # v = beta2 v + (1 - beta2) (scale g)^2
        np.multiply(g, g, out=x)
        x *= (1 - beta2) * scale**2
        v *= beta2
        v += x
        # Adam's update is w = w - lr (m / m_factor) / (sqrt(v) / root_v_factor + eps). Multiplying
        # the fraction's two sides by root_v_factor leaves one factor for m and saves a division:
        # w = w - step_size m / (sqrt(v) + eps root_v_factor)
        step_size = lr * root_v_factor / m_factor
        np.sqrt(v, out=x)
        x += self.eps * root_v_factor
        np.divide(m, x, out=x)
        x *= step_size
        w -= x


def clip(gradient: np.ndarray, limit: float) -> tuple[float, float]:
    """The norm of a gradient [P], and the factor that scales it to a norm of at most `limit`."""
    norm = math.sqrt(float(gradient @ gradient))
    if norm > limit:
        return norm, limit / (norm + 1e-6)  # as torch does
    return norm, 1.0


def learning_rate(step: int, steps: int, peak: float, warm_up: int) -> float:
    """The rate of a step, counted from 0, of `steps` in all.

    It rises in a straight line to `peak` over `warm_up` steps, and falls to a tenth as a cosine.
    """
    if step < warm_up:
        return peak * (step + 1) / (warm_up + 1)  # step 0 is above 0, and step `warm_up` the peak
    progress = (step - warm_up) / (steps - warm_up)  # from 0 to 1
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))  # the cosine is from 1 to -1
