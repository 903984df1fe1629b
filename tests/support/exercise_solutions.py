"""A solution of each exercise of scripts/exercises.md, which gives the names and shapes."""

import numpy as np

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


# Exercise 2


def layer_norm(x, weight, bias, eps):
    mean = x.mean(axis=-1, keepdims=True)
    variance = x.var(axis=-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + eps) * weight + bias


# Exercise 3


def softmax(x):
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def cross_entropy(logits, targets):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    rows = np.arange(len(targets))
    return np.log(np.exp(shifted).sum(axis=-1)) - shifted[rows, targets]


# Exercise 4


def attend(q, k, v):
    """Attention of one head: q is [T, K], of the last T of S tokens; k and v are [S, K]."""
    T, K = q.shape
    S = len(k)
    scores = q @ k.T / np.sqrt(K)
    past = S - T  # the number of tokens before the first query
    is_later = np.triu(np.ones((T, S), bool), k=past + 1)
    pattern = softmax(np.where(is_later, -np.inf, scores))
    return pattern @ v


def head(x, W_q, b_q, W_k, b_k, W_v, b_v):
    q = x @ W_q + b_q
    k = x @ W_k + b_k
    v = x @ W_v + b_v
    return attend(q, k, v)


# Exercise 5


def attend_in_all_heads(q, k, v, n_head):
    K = q.shape[-1] // n_head
    heads = []
    for n in range(n_head):
        columns = slice(n * K, (n + 1) * K)
        heads.append(attend(q[:, columns], k[:, columns], v[:, columns]))
    return np.concatenate(heads, axis=-1)


def attention(x, c_attn, c_proj, n_head):
    qkv = x @ c_attn["weight"] + c_attn["bias"]
    q, k, v = np.split(qkv, 3, axis=-1)
    joined = attend_in_all_heads(q, k, v, n_head)
    return joined @ c_proj["weight"] + c_proj["bias"]


# Exercise 6


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


# Exercise 7


def mlp(x, c_fc, c_proj):
    pre = x @ c_fc["weight"] + c_fc["bias"]
    return gelu(pre) @ c_proj["weight"] + c_proj["bias"]


def transformer_block(resid, block, n_head, eps):
    normed = layer_norm(resid, **block["ln_1"], eps=eps)
    resid = resid + attention(normed, **block["attn"], n_head=n_head)
    normed = layer_norm(resid, **block["ln_2"], eps=eps)
    return resid + mlp(normed, **block["mlp"])


# Exercise 8


def output_matrix(parameters, tied):
    if tied:
        return parameters["wte.weight"].T
    return parameters["lm_head.weight"].T


# Exercise 9


def cached_attention(x, c_attn, c_proj, n_head, cache):
    qkv = x @ c_attn["weight"] + c_attn["bias"]
    q, k, v = np.split(qkv, 3, axis=-1)
    if cache:  # it is an empty dict at the first call
        k = np.concatenate([cache["k"], k])
        v = np.concatenate([cache["v"], v])
    cache["k"] = k
    cache["v"] = v
    joined = attend_in_all_heads(q, k, v, n_head)
    return joined @ c_proj["weight"] + c_proj["bias"]


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
