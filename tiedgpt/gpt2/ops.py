"""The functions that GPT-2 is made of. Each is followed by its derivative.

Inputs and outputs are arrays of one dtype. `dx` is the gradient of the loss with respect to x, and
has x's shape. `f_backward(dout, ...)` takes dout, the gradient with respect to f's output, then the
inputs of f that it needs (softmax_backward: f's output), and returns dx. If f has weights, it
writes their gradients into `grad`, a dict of arrays with the weights' names.

Constants are Python floats: a NumPy float64 scalar such as np.sqrt(2) would turn a float32 array
into float64. Powers are products, because NumPy's x**3 takes tens of times longer.
"""

import math

import numpy as np

SQRT_OF_2_OVER_PI = math.sqrt(2 / math.pi)


def gelu_new(x: np.ndarray) -> np.ndarray:  # [...] -> [...]
    """GPT-2's activation, an approximation of x * Phi(x), Phi the normal distribution's CDF.

        0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3)))     [Hendrycks & Gimpel 2016]

    It is computed in one new array, because the MLP's arrays are the largest of a block.
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
    """gelu_new(x) = x s, with s = (1 + tanh u) / 2 and u = sqrt(2/pi) (x + 0.044715 x^3).

    (x s)' = s + x s'        s' = 2 s (1 - s) u'        u' = sqrt(2/pi) (1 + 3 * 0.044715 x^2)

    Two arrays are computed in place: the first one becomes u, then s; the other one becomes x^2,
    then 2 u', x s' and the result.
    """
    x_squared = x * x
    u = x_squared * (0.044715 * SQRT_OF_2_OVER_PI)
    u += SQRT_OF_2_OVER_PI
    u *= x
    s = np.tanh(u, out=u)
    s *= 0.5
    s += 0.5

    dx = x_squared
    dx *= 2 * 3 * 0.044715 * SQRT_OF_2_OVER_PI
    dx += 2 * SQRT_OF_2_OVER_PI  # 2 u'
    dx *= x
    dx *= s
    dx *= 1 - s  # x s' = x * 2 u' * s * (1 - s)
    dx += s  # (x s)'
    dx *= dout
    return dx


def softmax(x: np.ndarray, out: np.ndarray | None = None) -> np.ndarray:  # [..., n] -> [..., n]
    """exp(x) / sum(exp(x)) over the last axis; -inf becomes exactly 0. `out` may be x itself.

    The maximum is subtracted first. That does not change the result, and exp cannot overflow.
    """
    out = np.subtract(x, x.max(axis=-1, keepdims=True), out=out)
    np.exp(out, out=out)
    out /= out.sum(axis=-1, keepdims=True)
    return out


def log_softmax(x: np.ndarray) -> np.ndarray:  # [..., n] -> [..., n]
    """log(softmax(x)). It stays finite where softmax(x) underflows to 0."""
    out = x - x.max(axis=-1, keepdims=True)
    out -= np.log(np.exp(out).sum(axis=-1, keepdims=True))
    return out


def softmax_backward(dout: np.ndarray, out: np.ndarray) -> np.ndarray:  # both [..., n] -> [..., n]
    """`out` is softmax(x). Since d out_i / d x_j = out_i ((i == j) - out_j),

    dx_j = out_j (dout_j - sum_i dout_i out_i)
    """
    # This is sum_i dout_i out_i, without an array of the products.
    inner = np.einsum("...i,...i->...", dout, out)
    dx = dout - inner[..., None]
    dx *= out
    return dx


def layer_norm(  # [..., D] -> [..., D]
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray, eps: float
) -> np.ndarray:
    """Shift each vector to mean 0, scale it to variance 1, then apply `weight` and `bias` [D].

    A vector whose variance overflows becomes nan.
    """
    D = x.shape[-1]
    # x.sum / D equals x.mean bit for bit, and has a third of its overhead.
    out = x - x.sum(axis=-1, keepdims=True) / D
    variance = (out * out).sum(axis=-1, keepdims=True) / D
    variance[np.isinf(variance)] = np.nan  # a division by inf would give 0, and no error
    out /= np.sqrt(variance + eps)
    out *= weight
    out += bias
    return out


def layer_norm_backward(  # [..., D], [..., D] -> [..., D]
    dout: np.ndarray, x: np.ndarray, weight: np.ndarray, eps: float, grad: dict[str, np.ndarray]
) -> np.ndarray:
    """layer_norm(x) = n weight + bias, with n = (x - mean) / s and s = sqrt(variance + eps).

    x_j changes n_i in three ways: directly, through the mean, and through s.

        directly:            1 / s, if i == j
        through the mean:    d mean / d x_j = 1 / D, so  - 1 / (D s)
        through s:           d s / d x_j = n_j / D, so   - n_i n_j / (D s)

    Their sum, times dn_i and summed over i:    dx = (dn - mean(dn) - n mean(dn n)) / s

    n and s are recomputed from x, so the tape does not have to keep them.
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


def linear(  # [..., in] -> [..., out]
    x: np.ndarray, weight: np.ndarray, bias: np.ndarray
) -> np.ndarray:
    """x @ weight + bias, with weight [in, out].

    The leading axes become one. np.matmul of [B, 1, in] would run B matrix-vector products and read
    the weights B times; [B, in] is one matrix product.
    """
    out = x.reshape(-1, x.shape[-1]) @ weight
    out += bias
    return out.reshape(*x.shape[:-1], weight.shape[1])


def linear_backward(  # [..., out], [..., in] -> [..., in]
    dout: np.ndarray, x: np.ndarray, weight: np.ndarray, grad: dict[str, np.ndarray]
) -> np.ndarray:
    """out = x weight + bias: dx = dout weight^T, dweight = x^T dout, dbias = sum of dout's rows."""
    rows = x.reshape(-1, x.shape[-1])  # [N, in]
    drows = dout.reshape(-1, dout.shape[-1])  # [N, out]
    np.matmul(rows.T, drows, out=grad["weight"])
    drows.sum(axis=0, out=grad["bias"])
    return (drows @ weight.T).reshape(x.shape)


def cross_entropy(logits: np.ndarray, targets: np.ndarray) -> np.ndarray:  # [N, V], [N] -> [N]
    """-log(softmax(logits)[target]) of each row, in nats: the loss of predicting `targets`.

    Computed as logsumexp(logits) - logits[target], which stays finite where softmax underflows.
    """
    shifted = logits - logits.max(axis=-1, keepdims=True)
    target_logits = shifted[np.arange(len(targets)), targets]  # [N]
    np.exp(shifted, out=shifted)
    return np.log(shifted.sum(axis=-1)) - target_logits


def cross_entropy_backward(  # [N], [N, V], [N] -> [N, V]
    dout: np.ndarray, logits: np.ndarray, targets: np.ndarray
) -> np.ndarray:
    """loss = logsumexp(logits) - logits[target], so dlogits_j = softmax_j - (j == target)."""
    dlogits = softmax(logits)
    dlogits[np.arange(len(targets)), targets] -= 1.0
    dlogits *= dout[:, None]
    return dlogits
