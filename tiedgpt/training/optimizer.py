"""AdamW on one flat vector, the clipping of its gradient, and the learning rate's course."""

import math
from collections.abc import Callable, Iterable

import numpy as np

from ..parameters import unflatten

PIECE = 262_144  # numbers updated at a time: they and their moments stay in the processor's cache


class AdamW:
    """Adam with decoupled weight decay [Kingma & Ba 2015; Loshchilov & Hutter 2019], as torch computes it.

    `flat` [P] holds the parameters of `shapes`, one after the other, and is updated in place. Decay shrinks
    the matrices, wte and wpe among them, not the biases and layer norms. A tied wte is one matrix: it is
    decayed once and has one pair of moments, which see the sum of its two gradients. Untied, wte and lm_head
    have decay and moments each of its own; wte's gradient is 0 in the rows of tokens that the batch lacks,
    lm_head's nowhere.
    """

    def __init__(
        self,
        flat: np.ndarray,
        shapes: dict[str, tuple[int, ...]],
        betas: tuple[float, float],
        weight_decay: float,
        eps: float = 1e-8,
    ) -> None:
        self.flat = flat
        self.m = np.zeros_like(flat)  # mean of the gradients, lately
        self.v = np.zeros_like(flat)  # mean of their squares
        self.steps = 0
        self.betas = betas
        self.eps = eps
        self.weight_decay = weight_decay
        self.decayed = [view for name, view in unflatten(flat, shapes).items() if len(shapes[name]) > 1]

    def step(
        self, gradient: np.ndarray, lr: float, scale: float = 1.0, each: Callable[..., Iterable[None]] = map
    ) -> None:
        """Move the parameters against `scale` times `gradient` [P], by about `lr` each.

        `each` may be a pool's map.
        """
        self.steps += 1
        for matrix in self.decayed:
            matrix *= 1 - lr * self.weight_decay
        beta1, beta2 = self.betas
        # m and v start at 0; to make up for it they are divided by these.
        correction1, root2 = 1 - beta1**self.steps, math.sqrt(1 - beta2**self.steps)

        def update(start: int) -> None:
            """In place, for time goes into memory: `x` is each of the three terms in turn."""
            w, m, v, g = (a[start : start + PIECE] for a in (self.flat, self.m, self.v, gradient))
            # m = beta1 m + (1 - beta1) scale g
            x = g * ((1 - beta1) * scale)
            m *= beta1
            m += x
            # v = beta2 v + (1 - beta2) (scale g)^2
            np.multiply(g, g, out=x)
            x *= (1 - beta2) * scale**2
            v *= beta2
            v += x
            # w = w - lr (m / correction1) / (sqrt(v) / root2 + eps)
            np.sqrt(v, out=x)
            x += self.eps * root2
            np.divide(m, x, out=x)
            x *= lr * root2 / correction1
            w -= x

        for _ in each(update, range(0, self.flat.size, PIECE)):
            pass  # a map does nothing until it is asked


def clip(gradient: np.ndarray, limit: float) -> tuple[float, float]:
    """The norm of a gradient [P], and what to scale it by for a norm of at most `limit`."""
    norm = math.sqrt(float(gradient @ gradient))
    return norm, limit / (norm + 1e-6) if norm > limit else 1.0  # as torch does


def learning_rate(step: int, steps: int, peak: float, warm_up: int) -> float:
    """A straight line up to `peak` over `warm_up` steps, then half a cosine down to a tenth of it.

    Steps count from 0.
    """
    if step < warm_up:
        return peak * (step + 1) / (warm_up + 1)
    progress = (step - warm_up) / max(1, steps - warm_up)
    return peak * (0.1 + 0.45 * (1 + math.cos(math.pi * progress)))
