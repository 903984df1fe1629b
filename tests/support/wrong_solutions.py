"""Wrong solutions of the exercises of scripts/exercises.md: one for each mistake that has a name.

`right` has the right solutions. A wrong solution of few steps is a lambda in the table.
"""

import math

import numpy as np

from . import exercise_solutions as right

# Exercise 1


def merge_in_place(ids, pair, new_id):
    ids[:] = right.merge(ids, pair, new_id)
    return ids


def merge_from_the_right(ids, pair, new_id):
    ids = list(ids)
    n = len(ids) - 2
    while n >= 0:
        if tuple(ids[n : n + 2]) == pair:
            ids[n : n + 2] = [new_id]
            n -= 1  # the token before the pair may not be merged with the new one
        n -= 1
    return ids


def merge_with_overlaps(ids, pair, new_id):
    return [new_id if tuple(ids[n : n + 2]) == pair else ids[n] for n in range(len(ids))]


def merge_in_a_text(ids, pair, new_id):
    """15, 6 has the text of 5, 6 in it."""
    text = " ".join(map(str, ids))
    first, second = pair
    return [int(word) for word in text.replace(f"{first} {second}", str(new_id)).split()]


def merge_the_first_pair(ids, pair, new_id):
    for n in range(len(ids)):
        if tuple(ids[n : n + 2]) == pair:
            return ids[:n] + [new_id] + ids[n + 2 :]
    return list(ids)


# Exercise 3


def softmax_divided_by_sums_over_axis_0(x):
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=0)


def of_targets(x, targets):  # [T, V], [T] -> [T]
    return x[np.arange(len(targets)), targets]


def mean_loss(logits, targets):
    losses = right.cross_entropy(logits, targets)
    return np.full_like(losses, losses.mean())


# Exercises 4 and 5


def head_with(pattern_of):
    """A head whose pattern is computed so, from scores [T, T] that are not scaled, and K."""

    def head(x, W_q, b_q, W_k, b_k, W_v, b_v):
        q = x @ W_q + b_q
        k = x @ W_k + b_k
        return pattern_of(q @ k.T, q.shape[-1]) @ (x @ W_v + b_v)

    return head


def causal(scores, first_hidden=1, fill=-np.inf):
    is_hidden = np.triu(np.ones(scores.shape, bool), k=first_hidden)
    return right.softmax(np.where(is_hidden, fill, scores))


def attention_joined_without_a_transpose(x, c_attn, c_proj, n_head):
    q, k, v = np.split(x @ c_attn["weight"] + c_attn["bias"], 3, axis=-1)
    joined = right.attend_in_all_heads(q, k, v, n_head)  # [T, D]
    heads = np.stack(np.split(joined, n_head, axis=-1))  # [H, T, K]
    return heads.reshape(x.shape) @ c_proj["weight"] + c_proj["bias"]


def attention_reshaped(join):
    """attention whose queries, keys and values [T, D] are reshaped to [H, T, K] at once.

    join: from the heads [H, T, K] to an array whose numbers are reshaped to [T, D].
    """

    def attention(x, c_attn, c_proj, n_head):
        qkv = np.split(x @ c_attn["weight"] + c_attn["bias"], 3, axis=-1)
        q, k, v = (part.reshape(n_head, len(x), -1) for part in qkv)
        pattern = causal(q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]))
        return join(pattern @ v).reshape(x.shape) @ c_proj["weight"] + c_proj["bias"]

    return attention


def attention_between_heads(pattern_of):
    """attention that reshapes to [T, H, K] and does not swap T and H before the products.

    pattern_of: from scores [T, H, H] to a pattern.
    """

    def attention(x, c_attn, c_proj, n_head):
        qkv = np.split(x @ c_attn["weight"] + c_attn["bias"], 3, axis=-1)
        q, k, v = (part.reshape(len(x), n_head, -1) for part in qkv)
        pattern = pattern_of(q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1]))
        return (pattern @ v).reshape(x.shape) @ c_proj["weight"] + c_proj["bias"]

    return attention


# Exercise 7


def block_without_a_residual_connection(resid, block, n_head, eps):
    normed = right.layer_norm(resid, **block["ln_1"], eps=eps)
    resid = right.attention(normed, **block["attn"], n_head=n_head)
    normed = right.layer_norm(resid, **block["ln_2"], eps=eps)
    return resid + right.mlp(normed, **block["mlp"])


def block_with(mlp_in):
    """transformer_block whose MLP reads mlp_in(resid, resid after attention, ln_1, ln_2)."""

    def transformer_block(resid, block, n_head, eps):
        def ln_1(x):
            return right.layer_norm(x, **block["ln_1"], eps=eps)

        def ln_2(x):
            return right.layer_norm(x, **block["ln_2"], eps=eps)

        middle = resid + right.attention(ln_1(resid), **block["attn"], n_head=n_head)
        return middle + right.mlp(mlp_in(resid, middle, ln_1, ln_2), **block["mlp"])

    return transformer_block


def block_with_swapped_norms(resid, block, n_head, eps):
    swapped = {**block, "ln_1": block["ln_2"], "ln_2": block["ln_1"]}
    return right.transformer_block(resid, swapped, n_head, eps)


def block_that_adds_to_the_norm(resid, block, n_head, eps):
    """Twice, because `x = layer_norm(x)` loses what is added to."""
    resid = right.layer_norm(resid, **block["ln_1"], eps=eps)
    resid = resid + right.attention(resid, **block["attn"], n_head=n_head)
    resid = right.layer_norm(resid, **block["ln_2"], eps=eps)
    return resid + right.mlp(resid, **block["mlp"])


# Exercise 9


def cache_of_the_first_piece(x, c_attn, c_proj, n_head, cache):
    cache_before = dict(cache)  # empty at the first call
    out = right.cached_attention(x, c_attn, c_proj, n_head, cache)
    cache.update(cache_before)
    return out


def cache_of_the_last_piece(x, c_attn, c_proj, n_head, cache):
    out = right.cached_attention(x, c_attn, c_proj, n_head, cache)
    T = len(x)
    cache.update(k=cache["k"][-T:], v=cache["v"][-T:])
    return out


def cached_attention_with(pattern_of):
    """Cached attention whose pattern is computed so, from a head's scores [T, S], scaled."""

    def cached_attention(x, c_attn, c_proj, n_head, cache):
        q, k, v = np.split(x @ c_attn["weight"] + c_attn["bias"], 3, axis=-1)
        cache["k"] = k = np.concatenate([cache.get("k", k[:0]), k])
        cache["v"] = v = np.concatenate([cache.get("v", v[:0]), v])
        heads = []
        for q_head, k_head, v_head in zip(
            *[np.split(part, n_head, axis=-1) for part in (q, k, v)], strict=True
        ):
            scores = q_head @ k_head.T / np.sqrt(q_head.shape[-1])
            heads.append(pattern_of(scores) @ v_head)
        return np.concatenate(heads, axis=-1) @ c_proj["weight"] + c_proj["bias"]

    return cached_attention


def unscaled_pattern(scores):
    """The pattern of scores that are not scaled. The small model of the checks has K = 16."""
    T, S = scores.shape
    is_later = np.triu(np.ones((T, S), bool), k=S - T + 1)
    return right.softmax(np.where(is_later, -np.inf, scores * np.sqrt(16)))


# Exercise 10


def top_p_with(is_kept):
    """top_p that keeps these tokens: from the sum of likelier ones, the token's own, and p."""

    def top_p(probabilities, p):
        order = np.argsort(-probabilities)
        own = probabilities[order]
        kept = np.zeros_like(probabilities)
        kept[order] = np.where(is_kept(np.cumsum(own) - own, own, p), own, 0)
        return kept / kept.sum()

    return top_p


def top_p_not_divided(probabilities, p):
    return np.where(right.top_p(probabilities, p) > 0, probabilities, 0)


# Exercise 11


def mean(x):
    return x.mean(axis=-1, keepdims=True)


def backward_with(**formulas):
    """layer_norm_backward with other formulas of dx, dweight or dbias.

    A formula gets dn, n, s and dout: n is the normalised x, dn its gradient, s the deviation.
    """

    def layer_norm_backward(dout, x, weight, eps):
        s = np.sqrt(x.var(axis=-1, keepdims=True) + eps)
        n = (x - mean(x)) / s
        dx, dweight, dbias = right.layer_norm_backward(dout, x, weight, eps)
        results = {"dx": dx, "dweight": dweight, "dbias": dbias}
        for name, formula in formulas.items():
            results[name] = formula(dout * weight, n, s, dout)
        return tuple(results.values())

    return layer_norm_backward


def backward_with_x_for_n(dout, x, weight, eps):
    dx, _, dbias = right.layer_norm_backward(dout, x, weight, eps)
    return dx, (dout * x).sum(axis=0), dbias


def dbias_with_the_weight(dout, x, weight, eps):
    dx, dweight, _ = right.layer_norm_backward(dout, x, weight, eps)
    return dx, dweight, (dout * weight).sum(axis=0)


# Exercise 12


def gradient_with(combine):
    """tied_gradient from that of the embedding, [V, D], that of the output matrix, and ids."""

    def tied_gradient(ids, dresid, final, dlogits):
        of_embedding = np.zeros((dlogits.shape[1], final.shape[1]))
        np.add.at(of_embedding, ids, dresid)
        return combine(of_embedding, dlogits.T @ final)

    return tied_gradient


def gradient_of_repeated_tokens_once(ids, dresid, final, dlogits):
    """Of several gradients of the same token, `+=` adds only the last one."""
    dwte = dlogits.T @ final
    dwte[ids] += dresid
    return dwte


def gradient_overwritten(ids, dresid, final, dlogits):
    dwte = dlogits.T @ final
    dwte[ids] = dresid
    return dwte


def embedding_of_repeated_tokens_once(ids, dresid, final, dlogits):
    dwte = np.zeros((dlogits.shape[1], final.shape[1]))
    dwte[ids] = dresid
    return dwte


UNKNOWN = "this is none of the known mistakes"

# (The number of an exercise, its function) -> what is said of a wrong one, and the wrong one.
WRONG_SOLUTIONS = {
    (1, "merge"): [
        ("merge changes the list that it gets, or returns it; expected a new list", merge_in_place),
        ("merge returned (9, 7, 9); expected a list", lambda *a: tuple(right.merge(*a))),
        ("yours merges from right to left", merge_from_the_right),
        ("yours lets pairs overlap", merge_with_overlaps),
        ("yours loses the last token", lambda *a: right.merge(*a)[:-1]),
        ("yours merges nothing", lambda ids, pair, new_id: list(ids)),
        ("yours merges the first pair only", merge_the_first_pair),
        (UNKNOWN, lambda ids, pair, new_id: [new_id]),
        (UNKNOWN, merge_in_a_text),
    ],
    (2, "layer_norm"): [
        (
            "yours has a layer norm with epsilon 1e-05",
            lambda x, weight, bias, eps: right.layer_norm(x, weight, bias, 1e-5),
        ),
        (
            "yours has a layer norm with epsilon 1e-06",
            lambda x, weight, bias, eps: right.layer_norm(x, weight, bias, 1e-6),
        ),
        (
            "yours has a layer norm with the unbiased variance",
            lambda x, weight, bias, eps: (
                (x - mean(x)) / np.sqrt(x.var(axis=-1, ddof=1, keepdims=True) + eps) * weight + bias
            ),
        ),
        (
            "yours has a layer norm with epsilon outside the root",
            lambda x, weight, bias, eps: (
                (x - mean(x)) / (x.std(axis=-1, keepdims=True) + eps) * weight + bias
            ),
        ),
        (
            "yours has a layer norm without its bias",
            lambda x, weight, bias, eps: right.layer_norm(x, weight, 0, eps),
        ),
        (
            "yours has a layer norm over the whole array, not over each vector",
            lambda x, weight, bias, eps: (x - x.mean()) / np.sqrt(x.var() + eps) * weight + bias,
        ),
        (
            "yours has a layer norm that subtracts the mean of the whole array, not of each vector",
            lambda x, weight, bias, eps: (
                (x - x.mean()) / np.sqrt(x.var(axis=-1, keepdims=True) + eps) * weight + bias
            ),
        ),
    ],
    (3, "softmax"): [
        (
            "yours does not subtract the maximum before exp",
            lambda x: np.exp(x) / np.exp(x).sum(axis=-1, keepdims=True),
        ),
        (
            "yours is over axis 0, not over the last axis",
            lambda x: np.exp(x - x.max(axis=0)) / np.exp(x - x.max(axis=0)).sum(axis=0),
        ),
        (
            "yours divides by the sum over axis 0, not over the last axis",
            softmax_divided_by_sums_over_axis_0,
        ),
    ],
    (3, "cross_entropy"): [
        ("yours lacks the minus sign", lambda *a: -right.cross_entropy(*a)),
        ("yours is in bits, not in nats", lambda *a: right.cross_entropy(*a) / math.log(2)),
        (
            "yours is minus the logit of the target",
            lambda logits, targets: -of_targets(logits, targets),
        ),
        (
            "yours is the probability of the target",
            lambda logits, targets: of_targets(right.softmax(logits), targets),
        ),
        ("yours is the mean", mean_loss),
        (
            "yours is the log of softmax, which rounds to 0",
            lambda logits, targets: -np.log(of_targets(right.softmax(logits), targets)),
        ),
        (
            "yours does not subtract the maximum before exp",
            lambda logits, targets: np.log(np.exp(logits).sum(-1)) - of_targets(logits, targets),
        ),
        (UNKNOWN, lambda logits, targets: logits.max(axis=-1) - of_targets(logits, targets)),
    ],
    (4, "head"): [
        ("yours scales the scores by 1, not at all", head_with(lambda scores, K: causal(scores))),
        (
            "yours has no causal mask",
            head_with(lambda scores, K: right.softmax(scores / np.sqrt(K))),
        ),
        (
            "yours has a mask of -1e9 that is off by one: a token does not see itself",
            head_with(lambda scores, K: causal(scores / np.sqrt(K), first_hidden=0, fill=-1e9)),
        ),
        (
            "yours lacks the bias of the queries",
            lambda x, W_q, b_q, *others: right.head(x, W_q, 0, *others),
        ),
        (
            "yours scales the scores by n_head / n_embd, without the square root",
            head_with(lambda scores, K: causal(scores / K)),
        ),
        (
            "yours puts 0 in place of -inf under the mask",
            head_with(lambda scores, K: causal(scores / np.sqrt(K), fill=0)),
        ),
        (
            "and yours has no causal mask",
            head_with(lambda scores, K: right.softmax(scores)),
        ),
    ],
    (5, "attention"): [
        ("yours joins the heads without a transpose", attention_joined_without_a_transpose),
        (
            "yours reshapes to heads without a transpose",
            attention_reshaped(lambda heads: heads.swapaxes(0, 1)),
        ),
        (
            "yours reshapes to heads and back without a transpose",
            attention_reshaped(lambda heads: heads),
        ),
        (
            "yours attends between the heads of each token, not between tokens",
            attention_between_heads(right.softmax),
        ),
        (
            "yours attends between the heads of each token, not between tokens",
            attention_between_heads(causal),
        ),
    ],
    (6, "gelu"): [
        (
            "yours is the exact gelu (erf)",
            lambda x: 0.5 * x * (1 + np.vectorize(math.erf)(x / np.sqrt(2))),
        ),
        ("yours is relu", lambda x: np.maximum(x, 0)),
        ("yours is quick_gelu", lambda x: x / (1 + np.exp(-1.702 * x))),
        (
            "yours is gelu_new without the factor 0.5",
            lambda x: 2 * right.gelu(x),
        ),
        (
            "yours is gelu_new with 0.44715 for 0.044715",
            lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.44715 * x**3))),
        ),
        ("yours is nan everywhere", lambda x: x * np.nan),
        (UNKNOWN, lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**2)))),
    ],
    (7, "transformer_block"): [
        (
            "yours has a layer norm with epsilon 1e-05",
            lambda resid, block, n_head, eps: right.transformer_block(resid, block, n_head, 1e-5),
        ),
        ("yours lacks the residual connection", block_without_a_residual_connection),
        (
            "yours gives the MLP the input of attention, in parallel",
            block_with(lambda resid, middle, ln_1, ln_2: ln_2(resid)),
        ),
        (
            "yours gives the MLP the output of ln_1",
            block_with(lambda resid, middle, ln_1, ln_2: ln_1(resid)),
        ),
        (
            "yours has no layer norm",
            block_with(lambda resid, middle, ln_1, ln_2: middle),
        ),
        ("yours has ln_1 and ln_2 swapped", block_with_swapped_norms),
        ("yours adds to the layer norm's output, not to its input", block_that_adds_to_the_norm),
    ],
    (8, "output_matrix"): [
        (
            "output_matrix(parameters, False) is the transpose of wte.weight",
            lambda parameters, tied: parameters["wte.weight"].T,
        ),
        (
            "output_matrix(parameters, True) is the transpose of lm_head.weight",
            lambda parameters, tied: parameters["lm_head.weight"].T,
        ),
        (
            "yours is reshaped, not transposed",
            lambda parameters, tied: parameters["wte.weight" if tied else "lm_head.weight"].reshape(
                parameters["wte.weight"].shape[::-1]
            ),
        ),
        (
            "output_matrix(parameters, True) is a copy; expected a view",
            lambda *a: right.output_matrix(*a).copy(),
        ),
        (
            "the result of output_matrix has shape (211, 48); expected (48, 211); "
            "its transpose by axes (1, 0) would fit",
            lambda *a: right.output_matrix(*a).T,
        ),
    ],
    (9, "cached_attention"): [
        (
            "yours forgets the tokens before the piece",
            lambda x, c_attn, c_proj, n_head, cache: right.attention(x, c_attn, c_proj, n_head),
        ),
        ("yours keeps the first piece only", cache_of_the_first_piece),
        ("yours keeps the last piece only", cache_of_the_last_piece),
        (
            "yours lets a token see the later ones of its piece",
            cached_attention_with(right.softmax),
        ),
        ("yours has a mask that begins at position 0 in each piece", cached_attention_with(causal)),
        ("yours scales the scores by 1, not at all", cached_attention_with(unscaled_pattern)),
    ],
    (10, "top_p"): [
        ("yours does not divide by the sum", top_p_not_divided),
        ("yours keeps all tokens", lambda probabilities, p: probabilities),
        (
            "yours drops the token with which the sum reaches p",
            top_p_with(lambda likelier, own, p: likelier + own <= p),
        ),
        ("yours keeps a token too many", top_p_with(lambda likelier, own, p: likelier <= p)),
        (
            "yours keeps the likeliest token only",
            top_p_with(lambda likelier, own, p: likelier == 0),
        ),
        (
            "yours keeps the tokens whose own probability is p or more",
            top_p_with(lambda likelier, own, p: own >= p),
        ),
        (UNKNOWN, top_p_with(lambda likelier, own, p: likelier >= p)),
    ],
    (11, "layer_norm_backward"): [
        (
            "yours lacks the gradient through the standard deviation",
            backward_with(dx=lambda dn, n, s, dout: (dn - mean(dn)) / s),
        ),
        (
            "yours lacks the gradient through the mean",
            backward_with(dx=lambda dn, n, s, dout: (dn - n * mean(dn * n)) / s),
        ),
        (
            "yours lacks the gradients through the mean and the standard deviation",
            backward_with(dx=lambda dn, n, s, dout: dn / s),
        ),
        (
            "yours is not divided by the standard deviation",
            backward_with(dx=lambda dn, n, s, dout: dn - mean(dn) - n * mean(dn * n)),
        ),
        (
            "yours is divided by the variance",
            backward_with(dx=lambda dn, n, s, dout: (dn - mean(dn) - n * mean(dn * n)) / s**2),
        ),
        (
            "yours lacks eps",
            lambda dout, x, weight, eps: right.layer_norm_backward(dout, x, weight, 0),
        ),
        (
            "yours lacks the weight",
            lambda dout, x, weight, eps: right.layer_norm_backward(dout, x, 1, eps),
        ),
        (
            UNKNOWN,
            backward_with(dx=lambda dn, n, s, dout: (dn - mean(dn) - n * mean(dn * n)) / s + 1),
        ),
        ("yours takes x in place of the normalised x", backward_with_x_for_n),
        (
            "yours is that of the bias",
            backward_with(dweight=lambda dn, n, s, dout: dout.sum(axis=0)),
        ),
        (
            "yours is a mean over the tokens, not a sum",
            backward_with(dweight=lambda dn, n, s, dout: (dout * n).mean(axis=0)),
        ),
        ("yours lacks dout", backward_with(dweight=lambda dn, n, s, dout: n.sum(axis=0))),
        (
            "yours is a mean over the tokens, not a sum",
            backward_with(dbias=lambda dn, n, s, dout: dout.mean(axis=0)),
        ),
        ("yours has the weight in it", dbias_with_the_weight),
    ],
    (12, "tied_gradient"): [
        (
            "yours adds one gradient only for a token that occurs several times",
            gradient_of_repeated_tokens_once,
        ),
        ("yours lacks the gradient of the embedding", gradient_with(lambda embedding, head: head)),
        (
            "yours lacks the gradient of the output matrix",
            gradient_with(lambda embedding, head: embedding),
        ),
        (
            "yours lacks the gradient of the output matrix, and has one gradient only for a "
            "repeated token",
            embedding_of_repeated_tokens_once,
        ),
        (
            "yours overwrites the gradient of the output matrix with that of the embedding",
            gradient_overwritten,
        ),
        (
            "yours subtracts the two gradients",
            gradient_with(lambda embedding, head: head - embedding),
        ),
        (
            "yours is the mean of the two gradients, not their sum",
            gradient_with(lambda embedding, head: (head + embedding) / 2),
        ),
    ],
}
