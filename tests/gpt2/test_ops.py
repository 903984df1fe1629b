"""Activation functions, softmax and cross-entropy against their definitions, in both precisions."""

import math

import numpy as np
import pytest

from tiedgpt.gpt2 import ops
from tiedgpt.gpt2.activations import ACTIVATIONS

# Numbers near 0, and some whose exponential is 0 or infinite in float32.
X = np.concatenate([np.linspace(-12, 12, 4001), [-300.0, -40.0, 40.0, 300.0]])

# The definitions, on one Python float at a time.
DEFINITIONS = {
    "gelu_new": lambda x: 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    "gelu": lambda x: x * math.erfc(-x / math.sqrt(2)) / 2,
    "quick_gelu": lambda x: x / (1 + math.exp(-1.702 * x)),
    "relu": lambda x: max(x, 0.0),
    "silu": lambda x: x / (1 + math.exp(-x)),
    "tanh": math.tanh,
}
# Some functions have several names.
for name in ("gelu_accurate", "gelu_fast", "gelu_pytorch_tanh", "gelu_python_tanh"):
    DEFINITIONS[name] = DEFINITIONS["gelu_new"]
DEFINITIONS["gelu_python"] = DEFINITIONS["gelu"]
DEFINITIONS["swish"] = DEFINITIONS["silu"]


@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(("dtype", "tolerance"), [(np.float64, 1e-13), (np.float32, 1e-6)])
def test_activations_follow_their_definitions(name, dtype, tolerance):
    x = X.astype(dtype)
    before = x.copy()
    y = ACTIVATIONS[name].forward(x)
    expected = [DEFINITIONS[name](float(number)) for number in x]
    np.testing.assert_allclose(y, expected, rtol=tolerance, atol=tolerance)
    assert y.dtype == dtype
    np.testing.assert_array_equal(x, before)  # the input has not changed


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_softmax(dtype):
    x = np.array([[0.0, math.log(3.0), -np.inf], [1000.0, 1000.0, 1000.0]], dtype)
    before = x.copy()
    p = ops.softmax(x)
    # The exponentials of the first row are 1, 3 and 0.
    np.testing.assert_allclose(p, [[1 / 4, 3 / 4, 0.0], [1 / 3, 1 / 3, 1 / 3]], rtol=1e-6)
    assert p.dtype == dtype
    assert p[0, 2] == 0
    np.testing.assert_array_equal(x, before)  # the input has not changed


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_softmax_in_place(dtype):
    x = np.array([[0.0, math.log(3.0), -np.inf], [1000.0, 1000.0, 1000.0]], dtype)
    p = ops.softmax(x)
    assert ops.softmax(x, out=x) is x
    np.testing.assert_array_equal(x, p)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_log_softmax(dtype):
    x = np.array([[0.0, math.log(3.0), -np.inf], [5000.0, 5000.0, 0.0]], dtype)
    before = x.copy()
    log_p = ops.log_softmax(x)
    # The exponentials of the first row are 1, 3 and 0. In the second one, exp(-5000) is 0.
    expected = [
        [-math.log(4), math.log(3 / 4), -np.inf],
        [-math.log(2), -math.log(2), -5000 - math.log(2)],
    ]
    np.testing.assert_allclose(log_p, expected, rtol=1e-6)
    assert log_p.dtype == dtype
    np.testing.assert_array_equal(x, before)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_cross_entropy(dtype):
    logits = np.array(
        [[0.0, math.log(3.0), -np.inf], [-1000.0, 0.0, 0.0], [1000.0, 1000.0, 1000.0]], dtype
    )
    before = logits.copy()
    losses = ops.cross_entropy(logits, targets=np.array([1, 0, 2]))
    # The probabilities of the targets are 3/4, exp(-1000) / 2 and 1/3.
    expected = [-math.log(3 / 4), 1000 + math.log(2), -math.log(1 / 3)]
    np.testing.assert_allclose(losses, expected, rtol=1e-6)
    assert losses.dtype == dtype
    np.testing.assert_array_equal(logits, before)


@pytest.mark.filterwarnings("ignore:overflow")
@pytest.mark.parametrize("largest", [1e18, 1e20])
def test_a_variance_that_overflows_gives_nan(largest):
    """float32 ends at 3.4e38, the variance of numbers of 1.8e19. The other row stays right."""
    x = np.array([[1.0, -1.0], [largest, -largest]], np.float32)
    gain, bias = np.ones(2, np.float32), np.zeros(2, np.float32)
    y = ops.layer_norm(x, gain, bias, eps=1e-5)
    np.testing.assert_allclose(y[0], [1, -1], rtol=1e-5)
    if largest == 1e18:
        np.testing.assert_allclose(y[1], [1, -1], rtol=1e-5)
    else:
        assert np.isnan(y[1]).all()
