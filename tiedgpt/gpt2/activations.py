"""Activation functions of GPT-2 checkpoints, with their derivatives. GPT-2's own, gelu_new, is in
ops.py.

ACTIVATIONS maps the activation_function of a config.json to a function and its derivative.
"""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from .ops import gelu_new, gelu_new_backward


@cache
def series() -> np.ndarray:
    """The Chebyshev coefficients of P in `erfc`, by u = (t - 0.6) / 0.4: in [-1, 1] for z up to
    8."""

    def P(u: np.ndarray) -> np.ndarray:
        t = 0.6 + 0.4 * u
        return np.array(
            [math.log(math.erfc(z)) + z * z for z in (2.0 / t - 2.0).tolist()]
        ) - np.log(t)

    return np.polynomial.chebyshev.chebinterpolate(P, 20)


def erfc(z: np.ndarray) -> np.ndarray:  # [...] -> [...]
    """The complementary error function for z >= 0, to 14 digits. NumPy has none; exact gelu needs
    it.

    erfc(z) = t exp(P(t) - z^2) with t = 2 / (2 + z) [Numerical Recipes, "Error function"]. P is
    smooth, so a short Chebyshev series is enough. It is fitted to math.erfc, which is too slow for
    arrays.
    """
    z = np.minimum(z, 8.0)  # erfc(8) is 1e-29
    t = 2.0 / (2.0 + z)
    P = np.polynomial.chebyshev.chebval((t - 0.6) / 0.4, series())
    return (t * np.exp(P - z * z)).astype(z.dtype)


def normal_cdf(x: np.ndarray) -> np.ndarray:  # [...] -> [...]
    """The normal distribution's CDF, Phi(x) = erfc(-x / sqrt(2)) / 2."""
    tail = 0.5 * erfc(np.abs(x) * math.sqrt(0.5))  # 1 - Phi(|x|), without cancellation
    return np.where(x < 0, tail, 1.0 - tail)


def gelu(x: np.ndarray) -> np.ndarray:  # [...] -> [...]
    """x * Phi(x), which gelu_new approximates."""
    return x * normal_cdf(x)


def gelu_backward(dout: np.ndarray, x: np.ndarray) -> np.ndarray:  # [...], [...] -> [...]
    """dout (x Phi)', with (x Phi)' = Phi + x phi and phi = exp(-x^2 / 2) / sqrt(2 pi), the normal
    density."""
    phi = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return dout * (normal_cdf(x) + x * phi)


def sigmoid(x: np.ndarray) -> np.ndarray:  # [...] -> [...]
    """1 / (1 + exp(-x)), computed by tanh, which cannot overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def swish(x: np.ndarray, a: float) -> np.ndarray:  # [...] -> [...]
    """x sigmoid(a x): silu for a = 1, and quick_gelu, another approximation of gelu, for a =
    1.702."""
    return x * sigmoid(a * x)


def swish_backward(
    dout: np.ndarray, x: np.ndarray, a: float
) -> np.ndarray:  # [...], [...] -> [...]
    """dout (x s)', with (x s)' = s + a x s (1 - s) and s = sigmoid(a x)."""
    s = sigmoid(a * x)
    return dout * (s + a * x * s * (1.0 - s))


class Activation(NamedTuple):
    forward: Callable[[np.ndarray], np.ndarray]  # x -> out
    backward: Callable[[np.ndarray, np.ndarray], np.ndarray]  # dout, x -> dx


GELU_NEW = Activation(gelu_new, gelu_new_backward)
GELU = Activation(gelu, gelu_backward)
SILU = Activation(partial(swish, a=1.0), partial(swish_backward, a=1.0))
ACTIVATIONS = {
    "gelu_new": GELU_NEW,
    **dict.fromkeys(
        ("gelu_accurate", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh"), GELU_NEW
    ),
    **dict.fromkeys(("gelu", "gelu_python"), GELU),
    "quick_gelu": Activation(partial(swish, a=1.702), partial(swish_backward, a=1.702)),
    # At x = 0 the derivative of relu does not exist; 0 is used, as in torch.
    "relu": Activation(lambda x: np.maximum(x, 0), lambda dout, x: dout * (x > 0)),
    **dict.fromkeys(("silu", "swish"), SILU),
    "tanh": Activation(np.tanh, lambda dout, x: dout * (1.0 - np.square(np.tanh(x)))),
}
