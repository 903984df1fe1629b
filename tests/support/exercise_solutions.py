"""A solution of each exercise of scripts/exercises.md, which gives the names and shapes.

The parts of a GPT-2 come from other_gpt2.py, and so do layer_norm, softmax and gelu. `steps` are
wrong steps, which make a solution wrong.
"""

import numpy as np

from support.other_gpt2 import Parts, gelu, layer_norm, softmax

__all__ = [
    "attention",
    "cached_attention",
    "cross_entropy",
    "gelu",
    "head",
    "layer_norm",
    "layer_norm_backward",
    "merge",
    "mlp",
    "output_matrix",
    "softmax",
    "tied_gradient",
    "top_p",
    "transformer_block",
]

# Exercise 1


def merge(ids, pair, new_id):
    new_ids = []
    n = 0
    while n < len(ids):
        if tuple(ids[n : n + 2]) == pair:
            new_ids.append(new_id)
            n += 2
        else:
            new_ids.append(ids[n])
            n += 1
    return new_ids


# Exercise 3


def cross_entropy(logits, targets):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    rows = np.arange(len(targets))
    return np.log(np.exp(shifted).sum(axis=-1)) - shifted[rows, targets]


# Exercise 4


def head(x, W_q, b_q, W_k, b_k, W_v, b_v, **steps):
    q = x @ W_q + b_q
    k = x @ W_k + b_k
    v = x @ W_v + b_v
    [out] = Parts(n_head=1, **steps).heads(q[None], k[None], v[None])  # [1, T, K] of each
    return out


# Exercise 5


def attention(x, c_attn, c_proj, n_head, **steps):
    return Parts(n_head, **steps).attention(x, c_attn, c_proj)


# Exercise 7


def mlp(x, c_fc, c_proj):
    return Parts(n_head=1).mlp(x, c_fc, c_proj)


def transformer_block(resid, block, n_head, eps, **steps):
    return Parts(n_head, eps, **steps).block(resid, block)


# Exercise 8


def output_matrix(parameters, tied):
    if tied:
        return parameters["wte.weight"].T
    return parameters["lm_head.weight"].T


# Exercise 9


def cached_attention(x, c_attn, c_proj, n_head, cache, **steps):
    def remember(k, v, layer):
        if cache:  # it is an empty dict at the first call
            k = np.concatenate([cache["k"], k], axis=1)
            v = np.concatenate([cache["v"], v], axis=1)
        cache["k"] = k
        cache["v"] = v
        return k, v

    return attention(x, c_attn, c_proj, n_head, remember=remember, **steps)


# Exercise 10


def top_p(probabilities, p):
    order = np.argsort(-probabilities)  # the tokens, the likeliest first
    # A token is dropped if the tokens before it in this order already add up to p.
    sums_before = np.cumsum(probabilities[order]) - probabilities[order]
    kept = probabilities.copy()
    kept[order[sums_before >= p]] = 0
    return kept / kept.sum()


# Exercise 11


def layer_norm_backward(dout, x, weight, eps):
    """The output is n * weight + bias, with n = (x - mean) / s. dn is the gradient of n."""
    mean = x.mean(axis=-1, keepdims=True)
    s = np.sqrt(x.var(axis=-1, keepdims=True) + eps)
    n = (x - mean) / s
    dn = dout * weight
    through_mean = dn.mean(axis=-1, keepdims=True)
    through_s = n * (dn * n).mean(axis=-1, keepdims=True)
    dx = (dn - through_mean - through_s) / s
    dweight = (dout * n).sum(axis=0)
    dbias = dout.sum(axis=0)
    return dx, dweight, dbias


# Exercise 12


def tied_gradient(ids, dresid, final, dlogits):
    dwte = dlogits.T @ final  # the gradient of wte as the output matrix
    # Add the gradient of wte as the embedding. A token that occurs several times has several
    # gradients. np.add.at adds all of them.
    np.add.at(dwte, ids, dresid)
    return dwte
