"""The few functions that GPT-2 is made of. Arrays in, arrays out; dtype in is dtype out.

Constants are Python floats on purpose: a NumPy float64 scalar (np.sqrt(2), say) would turn a float32
array into float64 without a word. `x * x * x` is on purpose too: NumPy's `x**3` is tens of times slower.
"""

import math
from collections.abc import Callable

import numpy as np

from .erfc import erfc

SQRT_OF_2_OVER_PI = math.sqrt(2 / math.pi)


def gelu_new(x: np.ndarray) -> np.ndarray:  # [...] -> [...]
    """GPT-2's activation: x * Phi(x) with the normal distribution's Phi approximated by a tanh.

        0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))     [Hendrycks & Gimpel 2016, arXiv:1606.08415]

    Written in place: the temporaries of an MLP are the largest arrays of the forward pass.
    """
    out = x * x
    out *= 0.044715
    out += 1.0
    out *= x  # x + 0.044715 x^3
    out *= SQRT_OF_2_OVER_PI
    np.tanh(out, out=out)
    out += 1.0
    out *= x
    out *= 0.5
    return out


def gelu(x: np.ndarray) -> np.ndarray:  # [...] -> [...]
    """x * Phi(x), exactly: Phi(x) = erfc(-x / sqrt(2)) / 2."""
    tail = 0.5 * erfc(np.abs(x) * math.sqrt(0.5))  # 1 - Phi(|x|), with all its digits
    return x * np.where(x < 0, tail, 1.0 - tail)


def relu(x: np.ndarray) -> np.ndarray:  # [...] -> [...]
    """max(x, 0)."""
    return np.maximum(x, 0)


def sigmoid(x: np.ndarray) -> np.ndarray:  # [...] -> [...]
    """1 / (1 + exp(-x)), by way of tanh, which cannot overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def silu(x: np.ndarray) -> np.ndarray:  # [...] -> [...]
    """x sigmoid(x), also called swish."""
    return x * sigmoid(x)


def quick_gelu(x: np.ndarray) -> np.ndarray:  # [...] -> [...]
    """x sigmoid(1.702 x), a rougher approximation of gelu."""
    return x * sigmoid(1.702 * x)


# The activation_function of a config.json -> ours. Five of transformers' names mean one formula.
ACTIVATIONS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "gelu_new": gelu_new,
    "gelu_accurate": gelu_new,
    "gelu_fast": gelu_new,
    "gelu_pytorch_tanh": gelu_new,
    "gelu_python_tanh": gelu_new,
    "gelu": gelu,
    "gelu_python": gelu,
    "quick_gelu": quick_gelu,
    "relu": relu,
    "silu": silu,
    "swish": silu,
    "tanh": np.tanh,
}


def softmax(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:  # [..., n] -> [..., n]
    """exp(x) / sum(exp(x)) over the last axis; -inf becomes exactly 0. `out` may be x itself, as in NumPy.

    subtle: subtracting the maximum changes nothing but keeps exp from overflowing.
    """
    out = np.subtract(x, x.max(axis=-1, keepdims=True), out=out)
    np.exp(out, out=out)
    out /= out.sum(axis=-1, keepdims=True)
    return out


def cross_entropy(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:  # [N, V], [N] -> [N]
    """-log(softmax(logits)[target]) of each row, in nats: how unlikely it held its target to be.

    As logsumexp(logits) - logits[target], so that a probability too small for a float still has its
    logarithm; the row's maximum is subtracted from both.
    """
    shifted = logits - logits.max(axis=-1, keepdims=True)
    at_target = shifted[np.arange(len(targets)), targets]
    np.exp(shifted, out=shifted)
    return np.log(shifted.sum(axis=-1)) - at_target


def layer_norm(  # [..., D] -> [..., D]
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float
) -> np.ndarray:
    """Each vector shifted to mean 0 and scaled to variance 1, then by `weight` and `bias` [D]."""
    D = x.shape[-1]
    out = x - x.sum(axis=-1, keepdims=True) / D  # to the bit what x.mean is, at a third of its overhead
    variance = (out * out).sum(axis=-1, keepdims=True) / D
    out /= np.sqrt(variance + eps)
    out *= weight
    out += bias
    return out


def linear(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:  # [..., in] -> [..., out]
    """x @ weight + bias, weight [in, out].

    subtle: np.matmul of [B, 1, in] would run B separate matrix-vector products; as one [B, in] it is one
    matrix product, which reads the weights once.
    """
    out = x.reshape(-1, x.shape[-1]) @ weight
    out += bias
    return out.reshape(*x.shape[:-1], weight.shape[1])
