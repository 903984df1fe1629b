"""The few functions that GPT-2 is made of, each with its derivative under it.

Arrays in, arrays out; dtype in is dtype out. `dx` stands for the gradient of the loss by x, and has x's
shape; `f_backward(dout, ...)` takes the gradient by what f returned, and then what it needs of what f was
given (softmax: of what f returned). Where f has weights, their gradients are written into `grad`, a dict of
arrays named like them.

Constants are Python floats on purpose: a NumPy float64 scalar (np.sqrt(2), say) would turn a float32
array into float64 without a word. `x * x * x` is on purpose too: NumPy's `x**3` is tens of times slower.
"""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from .erfc import erfc

SQRT_OF_2_OVER_PI = math.sqrt(2 / math.pi)


def gelu_new(x: np.ndarray) -> np.ndarray:  # [...] -> [...]
    """GPT-2's activation: x * Phi(x) with the normal distribution's Phi approximated by a tanh.

        0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))     [Hendrycks & Gimpel 2016, arXiv:1606.08415]

    Written in place: the temporaries of an MLP are the largest arrays of the forward pass.
    """
    out = x * x
    out *= 0.044715 * SQRT_OF_2_OVER_PI
    out += SQRT_OF_2_OVER_PI
    out *= x  # sqrt(2/pi) (x + 0.044715 x^3)
    np.tanh(out, out=out)
    out += 1.0
    out *= x
    out *= 0.5
    return out


def gelu_new_backward(dout: np.ndarray, x: np.ndarray) -> np.ndarray:  # [...], [...] -> [...]
    """With s = (1 + tanh u) / 2 and u = sqrt(2/pi) (x + 0.044715 x^3), gelu_new is x s, and

    (x s)' = s + x s'        s' = 2 s (1 - s) u'        u' = sqrt(2/pi) (1 + 3 * 0.044715 x^2)
    """
    x_squared = x * x
    s = x_squared * (0.044715 * SQRT_OF_2_OVER_PI)
    s += SQRT_OF_2_OVER_PI
    s *= x  # u
    np.tanh(s, out=s)
    s *= 0.5
    s += 0.5
    dx = x_squared  # not needed any more
    dx *= 6 * 0.044715 * SQRT_OF_2_OVER_PI
    dx += 2 * SQRT_OF_2_OVER_PI  # 2 u'
    dx *= x
    dx *= s
    dx *= 1 - s  # x s'
    dx += s
    dx *= dout
    return dx


def normal_cdf(x: np.ndarray) -> np.ndarray:  # [...] -> [...]
    """Phi(x) = erfc(-x / sqrt(2)) / 2, the share of a normal distribution that lies below x."""
    tail = 0.5 * erfc(np.abs(x) * math.sqrt(0.5))  # 1 - Phi(|x|), with all its digits
    return np.where(x < 0, tail, 1.0 - tail)


def gelu(x: np.ndarray) -> np.ndarray:  # [...] -> [...]
    """x * Phi(x), exactly."""
    return x * normal_cdf(x)


def gelu_backward(dout: np.ndarray, x: np.ndarray) -> np.ndarray:  # [...], [...] -> [...]
    """(x Phi)' = Phi + x phi, with phi the normal density exp(-x^2 / 2) / sqrt(2 pi)."""
    phi = np.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return dout * (normal_cdf(x) + x * phi)


def relu(x: np.ndarray) -> np.ndarray:  # [...] -> [...]
    """max(x, 0)."""
    return np.maximum(x, 0)


def relu_backward(dout: np.ndarray, x: np.ndarray) -> np.ndarray:  # [...], [...] -> [...]
    """1 where x > 0, else 0; at 0, where there is no derivative, 0 as in torch."""
    return dout * (x > 0)


def sigmoid(x: np.ndarray) -> np.ndarray:  # [...] -> [...]
    """1 / (1 + exp(-x)), by way of tanh, which cannot overflow."""
    return 0.5 * (1.0 + np.tanh(0.5 * x))


def silu(x: np.ndarray) -> np.ndarray:  # [...] -> [...]
    """x sigmoid(x), also called swish."""
    return x * sigmoid(x)


def silu_backward(dout: np.ndarray, x: np.ndarray) -> np.ndarray:  # [...], [...] -> [...]
    """(x s)' = s + x s (1 - s), with s = sigmoid(x)."""
    s = sigmoid(x)
    return dout * (s + x * s * (1.0 - s))


def quick_gelu(x: np.ndarray) -> np.ndarray:  # [...] -> [...]
    """x sigmoid(1.702 x), a rougher approximation of gelu."""
    return x * sigmoid(1.702 * x)


def quick_gelu_backward(dout: np.ndarray, x: np.ndarray) -> np.ndarray:  # [...], [...] -> [...]
    """(x s)' = s + 1.702 x s (1 - s), with s = sigmoid(1.702 x)."""
    s = sigmoid(1.702 * x)
    return dout * (s + 1.702 * x * s * (1.0 - s))


def tanh_backward(dout: np.ndarray, x: np.ndarray) -> np.ndarray:  # [...], [...] -> [...]
    """1 - tanh(x)^2."""
    t = np.tanh(x)
    return dout * (1.0 - t * t)


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
BACKWARD = {
    gelu_new: gelu_new_backward,
    gelu: gelu_backward,
    relu: relu_backward,
    silu: silu_backward,
    quick_gelu: quick_gelu_backward,
    np.tanh: tanh_backward,
}


def softmax(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:  # [..., n] -> [..., n]
    """exp(x) / sum(exp(x)) over the last axis; -inf becomes exactly 0. `out` may be x itself, as in NumPy.

    subtle: subtracting the maximum changes nothing but keeps exp from overflowing.
    """
    out = np.subtract(x, x.max(axis=-1, keepdims=True), out=out)
    np.exp(out, out=out)
    out /= out.sum(axis=-1, keepdims=True)
    return out


def log_softmax(x: np.ndarray) -> np.ndarray:  # [..., n] -> [..., n]
    """log(softmax(x)), finite where softmax itself would underflow to 0."""
    out = x - x.max(axis=-1, keepdims=True)
    out -= np.log(np.exp(out).sum(axis=-1, keepdims=True))
    return out


def softmax_backward(dout: np.ndarray, out: np.ndarray) -> np.ndarray:  # [..., n], [..., n] -> [..., n]
    """`out` is what softmax returned. d out_i / d x_j = out_i ((i == j) - out_j), so

    dx_j = out_j (dout_j - sum_i dout_i out_i)
    """
    dx = dout - np.einsum("...i,...i->...", dout, out)[..., None]
    dx *= out
    return dx


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


def layer_norm_backward(  # [..., D], [..., D] -> [..., D]
    dout: np.ndarray, x: np.ndarray, weight: np.ndarray, eps: float, grad: dict[str, np.ndarray]
) -> np.ndarray:
    """With n = (x - mean) / s and s = sqrt(variance + eps), layer_norm is n weight + bias.

    Each x_j acts on every n_i in three ways: by itself, through the mean, and through the variance, for which
    ds / dx_j = n_j / D.

        d n_i / d x_j = ((i == j) - 1 / D - n_i n_j / D) / s

    Summed with dn_i over i:    dx = (dn - mean(dn) - n mean(dn n)) / s

    n and s are computed again from x, which the tape holds anyway.
    """
    D = x.shape[-1]
    n = x - x.sum(axis=-1, keepdims=True) / D
    s = np.sqrt((n * n).sum(axis=-1, keepdims=True) / D + eps)
    n /= s

    # out = n * weight + bias
    (dout * n).reshape(-1, D).sum(axis=0, out=grad["weight"])
    dout.reshape(-1, D).sum(axis=0, out=grad["bias"])
    dn = dout * weight

    # n = (x - mean) / s
    dx = dn - dn.sum(axis=-1, keepdims=True) / D
    n *= (dn * n).sum(axis=-1, keepdims=True) / D
    dx -= n
    dx /= s
    return dx


def linear(x: np.ndarray, weight: np.ndarray, bias: np.ndarray) -> np.ndarray:  # [..., in] -> [..., out]
    """x @ weight + bias, weight [in, out].

    subtle: np.matmul of [B, 1, in] would run B separate matrix-vector products; as one [B, in] it is one
    matrix product, which reads the weights once. And OpenBLAS multiplies a few rows by a matrix that lies
    in memory column by column, as the tall ones of loaded checkpoints do, faster the other way round: 1.5
    times for 32 rows, 1.9 for 2.
    """
    rows = x.reshape(-1, x.shape[-1])
    few = len(rows) <= 64 and weight.flags.f_contiguous
    out = (weight.T @ rows.T).T if few else rows @ weight
    out += bias
    return out.reshape(*x.shape[:-1], weight.shape[1])


def linear_backward(  # [..., out], [..., in] -> [..., in]
    dout: np.ndarray, x: np.ndarray, weight: np.ndarray, grad: dict[str, np.ndarray]
) -> np.ndarray:
    """out = x weight + bias, so dx = dout weight^T, dweight = x^T dout and dbias = the sum of dout's rows."""
    rows, drows = x.reshape(-1, x.shape[-1]), dout.reshape(-1, dout.shape[-1])
    np.matmul(rows.T, drows, out=grad["weight"])
    drows.sum(axis=0, out=grad["bias"])
    return (drows @ weight.T).reshape(x.shape)


def cross_entropy(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:  # [N, V], [N] -> [N]
    """-log(softmax(logits)[target]) of each row, in nats: how unlikely it held its target to be.

    As logsumexp(logits) - logits[target], so that a probability too small for a float still has its
    logarithm; the row's maximum is subtracted from both.
    """
    shifted = logits - logits.max(axis=-1, keepdims=True)
    at_target = shifted[np.arange(len(targets)), targets]
    np.exp(shifted, out=shifted)
    return np.log(shifted.sum(axis=-1)) - at_target


def cross_entropy_backward(  # [N], [N, V], [N] -> [N, V]
    dout: np.ndarray, logits: np.ndarray, targets: np.ndarray
) -> np.ndarray:
    """What softmax says less what is true: probabilities, minus 1 at the target.

    A loss is logsumexp(logits) - logits[target]; the first's derivative by logits_j is softmax_j, that of the
    second is (j == target).
    """
    dlogits = softmax(logits)
    dlogits[np.arange(len(targets)), targets] -= 1.0
    dlogits *= dout[:, None]
    return dlogits


def dropout_mask(shape: tuple[int, ...], p: float, dtype: Any, rng: np.random.Generator) -> np.ndarray:
    """0 with probability p, else 1 / (1 - p): what dropout multiplies by, forward and backward."""
    return np.multiply(rng.random(shape, np.float32) >= p, 1 / (1 - p), dtype=dtype)
