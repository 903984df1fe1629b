"""What a HookedTransformer of TransformerLens computes from the weights that it makes by default.

It gives the same probabilities as GPT-2, with other activations. The weight and bias of each layer
norm become part of the matrix that reads its output, so a layer norm only normalises. What is
written to the residual stream is centred: its mean over D is 0. So are the logits, over V. The bias
of the values becomes part of that of c_proj.
"""

import numpy as np

from ..gpt2.model import Array
from ..gpt2.ops import layer_norm
from .place import Compute, Place


def centred(x: Array) -> Array:  # [..., n] -> [..., n]
    return x - x.mean(axis=-1, keepdims=True)


def normalised(at: Place) -> Array:
    """A layer norm without its weight and bias."""
    return layer_norm(at.x, np.ones(at.D), np.zeros(at.D), at.eps)


def bias_of_values(at: Place) -> Array:  # [D]
    """The bias of the values, with what the bias of ln_1 adds to it."""
    # The columns of c_attn are those of q, then k, then v: D each.
    weight = at["h.N.attn.c_attn.weight"][:, -at.D :]
    bias = at["h.N.attn.c_attn.bias"][-at.D :]
    return at["h.N.ln_1.bias"] @ weight + bias


def qkv_without_bias_of_values(at: Place) -> Array:  # -> [B, T, 3 D]
    """qkv, from a normalised x that lacks the weight and bias of ln_1."""
    x = at.x * at["h.N.ln_1.weight"] + at["h.N.ln_1.bias"]
    qkv = x @ at.weight + at.bias
    qkv[:, :, -at.D :] -= bias_of_values(at)
    return qkv


def mlp_pre(at: Place) -> Array:
    """mlp.N.pre, from a normalised x that lacks the weight and bias of ln_2."""
    x = at.x * at["h.N.ln_2.weight"] + at["h.N.ln_2.bias"]
    return x @ at.weight + at.bias


def attention_out(at: Place) -> Array:
    """The centred output of attention, with the bias that the values lack."""
    # A token's pattern adds up to 1, so a bias of all values is the same bias of the heads.
    heads = at.x + bias_of_values(at)
    return centred(heads @ at.weight + at.bias)


def centred_logits(at: Place) -> Array:
    """The logits, from a normalised `final` that lacks the weight and bias of ln_f."""
    final = at["final"] * at["ln_f.weight"] + at["ln_f.bias"]
    return centred(final @ at.W_U)


# A kind of activation -> what a HookedTransformer computes there.
FOLDED_AND_CENTRED: dict[str, Compute] = {
    "embed": lambda at: centred(at.right),
    "attn.N.in": normalised,
    "attn.N.qkv": qkv_without_bias_of_values,
    "attn.N.out": attention_out,
    "mlp.N.in": normalised,
    "mlp.N.pre": mlp_pre,
    "mlp.N.out": lambda at: centred(at.right),
    "final": normalised,
    "logits": centred_logits,
}
