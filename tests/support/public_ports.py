"""What public ports of GPT-2 compute, rebuilt from their formulas as steps of an OtherGPT2.

Each row: the port, the steps in which it differs from GPT-2, and what is to be said of it. The
versions are those that a public archive of source code holds; later ones may differ. A port whose
departures depend on its own weights, such as a bias of the head, has none of them here.
"""

import math
from dataclasses import dataclass

import numpy as np

from .other_gpt2 import is_later, softmax
from .wrong_gpt2s import exact_gelu, one_head_after_the_other, with_epsilon


@dataclass
class Port:
    name: str
    language: str
    steps: dict
    is_right: bool
    mistakes: list[str]  # a part of the sentence of each departure that compare knows
    has_others: bool = False  # departures that it does not know
    is_seen_in_tokens: bool = True  # in the greedy texts of the reference values


def one_after_the_other(x, weight, bias, name):
    """A linear layer whose sums begin with the bias, and go from the first product to the last."""
    out = np.zeros((len(x), weight.shape[1]), x.dtype) + bias
    for k in range(len(weight)):
        out += x[:, k : k + 1] * weight[k]
    return out


def masked_by(number):
    """The pattern if the mask adds a large negative number to the scores of later keys."""
    return lambda scores: softmax(
        scores + np.where(is_later(scores), number, 0).astype(scores.dtype)
    )


def rational_tanh(x):
    """A quotient of polynomials near tanh, as far as 4; cut to -1 and 1 beyond."""
    squared = x * x
    above = 135135 + squared * (17325 + squared * (378 + squared))
    below = 135135 + squared * (62370 + squared * (3150 + 28 * squared))
    return np.clip(x * above / below, -1, 1)


def gelu_of_rational_tanh(x, layer=None):
    return 0.5 * x * (1 + rational_tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def gelu_with_a_sum(x, layer=None):
    """gelu_new in which 0.044715 is added to the cube of x, not multiplied with it."""
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 + x**3)))


def scores_by_8(q, k, layer, H):
    """Scores for heads of width 64, whatever their width is."""
    return q @ k.transpose(0, 2, 1) / 8


def heads_innermost(qkv, bias, H):
    """q, v and k: a head's number is the last part of a column's, q, v, k the part before it."""
    T = len(qkv)
    parts = qkv.reshape(T, -1, 3, H).transpose(2, 0, 3, 1)  # [3, T, H, K]
    q, v, k = (part.reshape(T, -1) for part in parts)
    return [q, k, v]


def softmax_without_maximum(scores):
    powers = np.exp(np.where(is_later(scores), -np.inf, scores))
    return powers / powers.sum(axis=-1, keepdims=True)


def one_head(part, H):
    """The whole width as one head, for each of H heads."""
    return np.broadcast_to(part, (H, *part.shape))


def scores_of_the_first_head(q, k, layer, H):
    """Scores from the columns of the first head alone."""
    K = q.shape[-1] // H
    return q[:, :, :K] @ k[:, :, :K].transpose(0, 2, 1) / math.sqrt(K)


EXACT = "is the exact gelu (erf)"
NO_EPSILON = "has a layer norm with no epsilon"

PORTS = [
    Port("jaymody/picoGPT", "NumPy", {"pattern": masked_by(-1e10)}, is_right=True, mistakes=[]),
    Port("rasbt/LLMs-from-scratch, ch04", "PyTorch", {}, is_right=True, mistakes=[]),
    Port(
        "karpathy/llm.c, train_gpt2.c",
        "C",
        {"linear": one_after_the_other},
        is_right=True,
        mistakes=[],
    ),
    Port(
        "hashneo/nano-vllm-go",
        "Go",
        {"linear": one_after_the_other, "pattern": masked_by(-1e10)},
        is_right=True,
        mistakes=[],
    ),
    Port("karpathy/nanoGPT", "PyTorch", {"gelu": exact_gelu}, is_right=False, mistakes=[EXACT]),
    Port(
        "karpathy/minGPT, its first version",
        "PyTorch",
        {"gelu": exact_gelu},
        is_right=False,
        mistakes=[EXACT],
    ),
    Port("harrrshall/numpygrad", "NumPy", {"gelu": exact_gelu}, is_right=False, mistakes=[EXACT]),
    Port(
        "ita9naiwa/gpt-numpy",
        "NumPy",
        {"norm": with_epsilon(1e-10), "pattern": masked_by(-1e10)},
        is_right=False,
        mistakes=[NO_EPSILON],
    ),
    Port(
        "Genius1237/numpy-gpt2",
        "NumPy",
        {"gelu": exact_gelu, "norm": with_epsilon(0)},
        is_right=False,
        mistakes=[EXACT, NO_EPSILON],
    ),
    Port(
        "arman-hk/gpt-2",
        "JAX",
        {"gelu": exact_gelu, "split": one_head_after_the_other},
        is_right=False,
        mistakes=[EXACT, "takes q, k and v of one head after the other"],
    ),
    Port(
        "sammy-snipes/numpy-GPT2",
        "NumPy",
        {"gelu": exact_gelu, "split": heads_innermost, "pattern": softmax_without_maximum},
        is_right=False,
        mistakes=[EXACT],
        has_others=True,
    ),
    # Its tanh is off by 0.0001 near 5, which moves a logit by 0.0001 or less.
    Port(
        "fschmole/bare-bones-inference",
        "Rust",
        {"gelu": gelu_of_rational_tanh},
        is_right=False,
        mistakes=[],
        has_others=True,
        is_seen_in_tokens=False,
    ),
    # Right for the heads of gpt2, of width 64. The heads of the reference values have width 8.
    Port(
        "christianschleifer/gpt2.rs",
        "Rust",
        {"scores": scores_by_8},
        is_right=False,
        mistakes=["scales the scores by n_head / n_embd, without the square root"],
    ),
    Port(
        "Mountagha/fromZeroToHero, lecture 6",
        "PyTorch",
        {"gelu": gelu_with_a_sum},
        is_right=False,
        mistakes=[],
        has_others=True,
    ),
    Port(
        "nathan-barry/gpt2-webgl",
        "TypeScript, WebGL",
        {
            "to_heads": one_head,
            "scores": scores_of_the_first_head,
            "pattern": softmax,
            "join": lambda heads: heads[0],
        },
        is_right=False,
        mistakes=["has no causal mask"],
        has_others=True,
    ),
]
