"""A solution of each exercise of scripts/exercises.md."""

import numpy as np


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def layer_norm(x, weight, bias, eps):
    mean = x.mean(axis=-1, keepdims=True)
    variance = x.var(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps) * weight + bias


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def cross_entropy(logits, targets):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    at_target = shifted[np.arange(len(targets)), targets]
    return np.log(np.exp(shifted).sum(axis=-1)) - at_target


def average(q, k, v):
    T, S, K = *q.shape[:-1], k.shape[0], q.shape[-1]
    scores = q @ k.T / np.sqrt(K)
    scores = np.where(np.triu(np.ones((T, S)), 1 + S - T), -np.inf, scores)
    return softmax(scores) @ v


def head(x, W_q, b_q, W_k, b_k, W_v, b_v):
    return average(x @ W_q + b_q, x @ W_k + b_k, x @ W_v + b_v)


def split(x, n_head):
    return x.reshape(len(x), n_head, -1).transpose(1, 0, 2)


def attention(x, c_attn, c_proj, n_head):
    return cached_attention(x, c_attn, c_proj, n_head, {})


def transformer_block(resid, block, n_head, eps):
    resid = resid + attention(
        layer_norm(resid, **block["ln_1"], eps=eps), **block["attn"], n_head=n_head
    )
    x = layer_norm(resid, **block["ln_2"], eps=eps)
    c_fc, c_proj = block["mlp"]["c_fc"], block["mlp"]["c_proj"]
    post = gelu(x @ c_fc["weight"] + c_fc["bias"])
    return resid + post @ c_proj["weight"] + c_proj["bias"]


def output_matrix(parameters, tied):
    return parameters["wte.weight" if tied else "lm_head.weight"].T


def cached_attention(x, c_attn, c_proj, n_head, cache):
    q, k, v = np.split(x @ c_attn["weight"] + c_attn["bias"], 3, axis=-1)
    if cache:
        k = np.concatenate([cache["k"], k])
        v = np.concatenate([cache["v"], v])
    cache["k"], cache["v"] = k, v
    heads = map(average, split(q, n_head), split(k, n_head), split(v, n_head))
    return np.concatenate(list(heads), axis=-1) @ c_proj["weight"] + c_proj["bias"]


def merge(ids, pair, new_id):
    out, n = [], 0
    while n < len(ids):
        found = tuple(ids[n : n + 2]) == pair
        out.append(new_id if found else ids[n])
        n += 2 if found else 1
    return out


def layer_norm_backward(dout, x, weight, eps):
    s = np.sqrt(x.var(axis=-1, keepdims=True) + eps)
    n = (x - x.mean(axis=-1, keepdims=True)) / s
    dn = dout * weight
    mean, through_s = dn.mean(axis=-1, keepdims=True), n * (dn * n).mean(axis=-1, keepdims=True)
    dx = (dn - mean - through_s) / s
    return dx, (dout * n).sum(axis=0), dout.sum(axis=0)


def tied_gradient(ids, dresid, final, dlogits):
    dwte = dlogits.T @ final
    np.add.at(dwte, ids, dresid)
    return dwte


def top_p(probabilities, p):
    order = np.argsort(-probabilities)
    before = np.cumsum(probabilities[order]) - probabilities[order]
    kept = probabilities.copy()
    kept[order[before >= p]] = 0
    return kept / kept.sum()
