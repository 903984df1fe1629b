"""A GPT-2 in NumPy for one sequence, written apart from tiedgpt. Tests change its text to make mistakes."""

import numpy as np


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def softmax(x):
    e = np.exp(x - x.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


def layer_norm(x, weight, bias):
    mean = x.mean(axis=-1, keepdims=True)
    variance = x.var(axis=-1, keepdims=True)
    n = (x - mean) / np.sqrt(variance + 1e-5)
    return n * weight + bias


def linear(x, weight, bias):
    return x @ weight + bias


def attention(x, p, layer, H, tape, past):
    (T, D), K = x.shape, x.shape[-1] // H
    qkv = linear(x, p["attn.c_attn.weight"], p["attn.c_attn.bias"])
    parts = np.split(qkv, 3, axis=-1)
    q, k, v = (part.reshape(T, H, K).transpose(1, 0, 2) for part in parts)
    if past is not None:
        old = past.get(layer, (k[:, :0], v[:, :0]))
        k, v = past[layer] = (
            np.concatenate([old[0], k], axis=1),
            np.concatenate([old[1], v], axis=1),
        )
    scores = q @ k.transpose(0, 2, 1) / np.sqrt(K)
    S = k.shape[1]
    later = np.triu(np.ones((T, S), bool), 1 + S - T)
    pattern = softmax(np.where(later, -np.inf, scores))
    heads = pattern @ v
    joined = heads.transpose(1, 0, 2).reshape(T, D)
    out = linear(joined, p["attn.c_proj.weight"], p["attn.c_proj.bias"])
    names = {"in": x, "qkv": qkv, "q": q, "k": k, "v": v, "scores": scores, "pattern": pattern}
    tape |= {
        f"attn.{layer}.{name}": array
        for name, array in (names | {"heads": heads, "out": out}).items()
    }
    return out


def mlp(x, p, layer, tape):
    pre = linear(x, p["mlp.c_fc.weight"], p["mlp.c_fc.bias"])
    post = gelu(pre)
    out = linear(post, p["mlp.c_proj.weight"], p["mlp.c_proj.bias"])
    names = {"in": x, "pre": pre, "post": post, "out": out}
    tape |= {f"mlp.{layer}.{name}": array for name, array in names.items()}
    return out


def gpt2(ids, parameters, L, H, tape, past=None):  # [T] -> [T, V]
    wte, wpe = parameters["wte.weight"], parameters["wpe.weight"]
    start = past[0][0].shape[1] if past else 0
    positions = np.arange(start, start + len(ids))
    resid = wte[ids] + wpe[positions]
    tape["embed"] = resid
    for layer in range(L):
        p = {
            name[len(f"h.{layer}.") :]: x
            for name, x in parameters.items()
            if name.startswith(f"h.{layer}.")
        }
        tape[f"resid_pre.{layer}"] = resid
        mid = resid + attention(
            layer_norm(resid, p["ln_1.weight"], p["ln_1.bias"]), p, layer, H, tape, past
        )
        post = mid + mlp(layer_norm(mid, p["ln_2.weight"], p["ln_2.bias"]), p, layer, tape)
        tape[f"resid_mid.{layer}"], tape[f"resid_post.{layer}"] = mid, post
        resid = post
    final = layer_norm(resid, parameters["ln_f.weight"], parameters["ln_f.bias"])
    head = parameters.get("lm_head.weight", wte)
    tape["final"], tape["logits"] = final, final @ head.T
    return tape["logits"]
