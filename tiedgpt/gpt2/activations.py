"""Activation functions that GPT-2 checkpoints name, with their derivatives.

GPT-2 itself uses one of them, gelu_new, which is in ops.py. So a student can skip this file.
ACTIVATIONS maps the activation_function of a config.json to a function and its derivative.
"""

import math
from collections.abc import Callable
from functools import cache, partial
from typing import NamedTuple

import numpy as np

from .ops import gelu_new, gelu_new_backward


def P_of_u(u: np.ndarray) -> np.ndarray:  # [...] -> [...]
    """P in `erfc`, from u in [-1, 1], where a Chebyshev series is defined.

    For z from 0 to 8, t = 2 / (2 + z) is in [0.2, 1], and u = (t - 0.6) / 0.4 is in [-1, 1]. From
    erfc(z) = t exp(P - z^2) follows P = log(erfc(z)) + z^2 - log(t).
    """
    t = 0.6 + 0.4 * u
    z = 2.0 / t - 2.0
    log_erfc = np.array([math.log(math.erfc(value)) for value in z.tolist()])
    return log_erfc + z * z - np.log(t)


@cache
def P_coefficients() -> np.ndarray:  # [21]
    """The Chebyshev series of P_of_u up to degree 20, which is enough for 14 digits of erfc."""
    return np.polynomial.chebyshev.chebinterpolate(P_of_u, deg=20)


def erfc(z: np.ndarray) -> np.ndarray:  # [...] -> [...]
    """The complementary error function for z >= 0, to 14 digits; NumPy has none.

    erfc(z) = t exp(P(t) - z^2) with t = 2 / (2 + z) [Numerical Recipes, "Error function"]. P is
    smooth, so a short Chebyshev series is enough. It is fitted to math.erfc, which is too slow for
    arrays.
    """
    z = np.minimum(z, 8.0)  # erfc(8) is 1e-29
    t = 2.0 / (2.0 + z)  # in [0.2, 1]
    u = (t - 0.6) / 0.4  # in [-1, 1], where a Chebyshev series is defined
    P = np.polynomial.chebyshev.chebval(u, P_coefficients())
    return (t * np.exp(P - z * z)).astype(z.dtype)


def normal_cdf(x: np.ndarray) -> np.ndarray:  # [...] -> [...]
    """The normal distribution's CDF, Phi(x) = erfc(-x / sqrt(2)) / 2."""
    tail = 0.5 * erfc(np.abs(x) * math.sqrt(0.5))  # 1 - Phi(|x|), without cancellation
    return np.where(x < 0, tail, 1.0 - tail)


def gelu(x: np.ndarray) -> np.ndarray:  # [...] -> [...]
    """x * Phi(x), which gelu_new approximates."""
    return x * normal_cdf(x)


def gelu_backward(dout: np.ndarray, x: np.ndarray) -> np.ndarray:  # [...], [...] -> [...]
    """dout (x Phi)', with (x Phi)' = Phi + x phi and phi the normal density.

    phi = exp(-x^2 / 2) / sqrt(2 pi)
    """
    phi = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return dout * (normal_cdf(x) + x * phi)


def sigmoid(x: np.ndarray) -> np.ndarray:  # [...] -> [...]
    """1 / (1 + exp(-x)), computed by tanh, which cannot overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def swish(x: np.ndarray, a: float) -> np.ndarray:  # [...] -> [...]
    """x sigmoid(a x): silu for a = 1; quick_gelu, which approximates gelu, for a = 1.702."""
    return x * sigmoid(a * x)


def swish_backward(  # [...], [...] -> [...]
    dout: np.ndarray, x: np.ndarray, a: float
) -> np.ndarray:
    """dout (x s)', with (x s)' = s + a x s (1 - s) and s = sigmoid(a x)."""
    s = sigmoid(a * x)
    return dout * (s + a * x * s * (1.0 - s))


class Activation(NamedTuple):
    forward: Callable[[np.ndarray], np.ndarray]  # x -> out
    backward: Callable[[np.ndarray, np.ndarray], np.ndarray]  # dout, x -> dx


def relu(x: np.ndarray) -> np.ndarray:  # [...] -> [...]
    return np.maximum(x, 0)


def relu_backward(dout: np.ndarray, x: np.ndarray) -> np.ndarray:  # [...], [...] -> [...]
    """At x = 0 relu has no derivative; 0 is used, as in torch."""
    return dout * (x > 0)


def tanh_backward(dout: np.ndarray, x: np.ndarray) -> np.ndarray:  # [...], [...] -> [...]
    """tanh' = 1 - tanh^2."""
    return dout * (1.0 - np.square(np.tanh(x)))


GELU_NEW = Activation(gelu_new, gelu_new_backward)
GELU = Activation(gelu, gelu_backward)
QUICK_GELU = Activation(partial(swish, a=1.702), partial(swish_backward, a=1.702))
SILU = Activation(partial(swish, a=1.0), partial(swish_backward, a=1.0))
ACTIVATIONS = {
    "gelu_new": GELU_NEW,
    "gelu_accurate": GELU_NEW,
    "gelu_fast": GELU_NEW,
    "gelu_pytorch_tanh": GELU_NEW,
    "gelu_python_tanh": GELU_NEW,
    "gelu": GELU,
    "gelu_python": GELU,
    "quick_gelu": QUICK_GELU,
    "relu": Activation(relu, relu_backward),
    "silu": SILU,
    "swish": SILU,
    "tanh": Activation(np.tanh, tanh_backward),
}
