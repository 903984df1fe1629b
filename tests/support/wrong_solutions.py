"""Wrong solutions of the exercises of scripts/exercises.md, each with one mistake.

The name of a function says what the mistake is. `right` has the right solutions.
"""

import math

import numpy as np

from . import exercise_solutions as right

# Exercise 1: merge


def merge_in_place(ids, pair, new_id):
    """It changes the list that it gets."""
    ids[:] = right.merge(ids, pair, new_id)
    return ids


def merge_with_overlaps(ids, pair, new_id):
    """It does not skip the second token of a pair that is merged."""
    new_ids = []
    for n in range(len(ids)):
        if tuple(ids[n : n + 2]) == pair:
            new_ids.append(new_id)
        else:
            new_ids.append(ids[n])
    return new_ids


def merge_without_the_last_token(ids, pair, new_id):
    return right.merge(ids, pair, new_id)[:-1]


def merge_the_first_pair(ids, pair, new_id):
    for n in range(len(ids)):
        if tuple(ids[n : n + 2]) == pair:
            return ids[:n] + [new_id] + ids[n + 2 :]
    return list(ids)


def merge_nothing(ids, pair, new_id):
    return list(ids)


def merge_to_a_tuple(ids, pair, new_id):
    return tuple(right.merge(ids, pair, new_id))


def merge_to_a_number(ids, pair, new_id):
    return 3


# Exercise 2: layer_norm


def norm_with_an_epsilon_of_its_own(x, weight, bias, eps):
    return right.layer_norm(x, weight, bias, 1e-6)


# Exercise 3: softmax and cross_entropy


def softmax_divided_by_sums_over_axis_0(x):
    exponentials = np.exp(x - x.max(axis=-1, keepdims=True))
    return exponentials / exponentials.sum(axis=0, keepdims=True)


def softmax_over_axis_0(x):
    exponentials = np.exp(x - x.max(axis=0, keepdims=True))
    return exponentials / exponentials.sum(axis=0, keepdims=True)


def softmax_of_large_numbers_overflows(x):
    """It does not subtract the largest number first."""
    exponentials = np.exp(x)
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def target_logits_of(logits, targets):
    return logits[np.arange(len(targets)), targets]


def loss_of_large_numbers_overflows(logits, targets):
    """It does not subtract the largest logit first."""
    return np.log(np.exp(logits).sum(axis=-1)) - target_logits_of(logits, targets)


def loss_without_the_sum(logits, targets):
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return -target_logits_of(shifted, targets)


def loss_in_bits(logits, targets):
    return right.cross_entropy(logits, targets) / np.log(2)


def loss_by_softmax(logits, targets):
    """The logarithm is infinite where softmax gives 0."""
    return -np.log(target_logits_of(right.softmax(logits), targets))


# Exercise 4: head


def causal_pattern(scores):
    is_later = np.triu(np.ones(scores.shape, bool), k=1)
    return right.softmax(np.where(is_later, -np.inf, scores))


def head_not_scaled(x, W_q, b_q, W_k, b_k, W_v, b_v):
    q = x @ W_q + b_q
    k = x @ W_k + b_k
    v = x @ W_v + b_v
    return causal_pattern(q @ k.T) @ v


def head_without_a_mask(x, W_q, b_q, W_k, b_k, W_v, b_v):
    q = x @ W_q + b_q
    k = x @ W_k + b_k
    v = x @ W_v + b_v
    scores = q @ k.T / np.sqrt(q.shape[-1])
    return right.softmax(scores) @ v


def head_that_hides_the_token_itself(x, W_q, b_q, W_k, b_k, W_v, b_v):
    q = x @ W_q + b_q
    k = x @ W_k + b_k
    v = x @ W_v + b_v
    scores = q @ k.T / np.sqrt(q.shape[-1])
    is_hidden = np.triu(np.ones(scores.shape, bool), k=0)  # k=1 would leave the token itself
    return right.softmax(np.where(is_hidden, -1e9, scores)) @ v


def head_without_the_bias_of_queries(x, W_q, b_q, W_k, b_k, W_v, b_v):
    zero = 0  # in place of b_q
    return right.head(x, W_q, zero, W_k, b_k, W_v, b_v)


# Exercise 5: attention


def attention_joined_without_a_transpose(x, c_attn, c_proj, n_head):
    qkv = x @ c_attn["weight"] + c_attn["bias"]
    q, k, v = np.split(qkv, 3, axis=-1)
    joined = right.attend_in_all_heads(q, k, v, n_head)  # [T, D]
    heads = np.stack(np.split(joined, n_head, axis=-1))  # [H, T, K]
    return heads.reshape(x.shape) @ c_proj["weight"] + c_proj["bias"]


# Exercise 6: gelu


def exact_gelu(x):
    erf = np.vectorize(math.erf)
    return 0.5 * x * (1 + erf(x / np.sqrt(2)))


def gelu_of_nan(x):
    return x * np.nan


def gelu_with_a_square(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**2)))


# Exercise 7: transformer_block


def block_without_a_residual_connection(resid, block, n_head, eps):
    normed = right.layer_norm(resid, **block["ln_1"], eps=eps)
    resid = right.attention(normed, **block["attn"], n_head=n_head)
    normed = right.layer_norm(resid, **block["ln_2"], eps=eps)
    return resid + right.mlp(normed, **block["mlp"])


# Exercise 8: output_matrix


def always_tied(parameters, tied):
    return parameters["wte.weight"].T


def always_untied(parameters, tied):
    return parameters["lm_head.weight"].T


def copied_output_matrix(parameters, tied):
    return right.output_matrix(parameters, tied).copy()


def output_matrix_without_a_transpose(parameters, tied):
    return right.output_matrix(parameters, tied).T


# Exercise 9: cached_attention


def queries_keys_values(x, c_attn):
    qkv = x @ c_attn["weight"] + c_attn["bias"]
    return np.split(qkv, 3, axis=-1)


def cache_that_is_not_read(x, c_attn, c_proj, n_head, cache):
    return right.attention(x, c_attn, c_proj, n_head)


def cache_of_the_first_piece(x, c_attn, c_proj, n_head, cache):
    """After the first call, the cache does not grow."""
    cache_before = dict(cache)  # empty at the first call
    out = right.cached_attention(x, c_attn, c_proj, n_head, cache)
    if cache_before:
        cache.update(cache_before)
    return out


def cache_of_the_last_piece(x, c_attn, c_proj, n_head, cache):
    """The cache holds the keys and values of the last call alone."""
    out = right.cached_attention(x, c_attn, c_proj, n_head, cache)
    _, cache["k"], cache["v"] = queries_keys_values(x, c_attn)
    return out


def attend_with(pattern_of, x, c_attn, c_proj, n_head, cache):
    """Attention with a cache. The function pattern_of computes a pattern from a head's scores."""
    q, k, v = queries_keys_values(x, c_attn)
    if cache:  # it is an empty dict at the first call
        k = np.concatenate([cache["k"], k])
        v = np.concatenate([cache["v"], v])
    cache["k"] = k
    cache["v"] = v
    K = q.shape[-1] // n_head
    heads = []
    for n in range(n_head):
        columns = slice(n * K, (n + 1) * K)
        scores = q[:, columns] @ k[:, columns].T / np.sqrt(K)
        heads.append(pattern_of(scores) @ v[:, columns])
    return np.concatenate(heads, axis=-1) @ c_proj["weight"] + c_proj["bias"]


def cache_with_a_mask_from_position_0(x, c_attn, c_proj, n_head, cache):
    """The mask takes the first query for that of token 0, although tokens came before it."""
    return attend_with(causal_pattern, x, c_attn, c_proj, n_head, cache)


def cache_without_a_mask(x, c_attn, c_proj, n_head, cache):
    return attend_with(right.softmax, x, c_attn, c_proj, n_head, cache)


def cache_with_scores_not_scaled(x, c_attn, c_proj, n_head, cache):
    def pattern_of(scores):
        T, S = scores.shape
        past = S - T  # the number of tokens before the first query
        is_later = np.triu(np.ones((T, S), bool), k=past + 1)
        K = x.shape[-1] // n_head
        unscaled_scores = scores * np.sqrt(K)  # attend_with has divided them
        return right.softmax(np.where(is_later, -np.inf, unscaled_scores))

    return attend_with(pattern_of, x, c_attn, c_proj, n_head, cache)


# Exercise 10: top_p


def top_p_not_divided(probabilities, p):
    """The probabilities that are kept are not divided by their sum."""
    order = np.argsort(-probabilities)
    sums_before = np.cumsum(probabilities[order]) - probabilities[order]
    kept = probabilities.copy()
    kept[order[sums_before >= p]] = 0
    return kept


def top_p_with_a_token_too_few(probabilities, p):
    """It drops the token with which the sum exceeds p."""
    order = np.argsort(-probabilities)
    sums = np.cumsum(probabilities[order])
    kept = probabilities.copy()
    kept[order[sums > p]] = 0
    return kept / kept.sum()


def top_p_with_a_token_too_many(probabilities, p):
    """It keeps one token more if the likeliest ones add up to exactly p."""
    order = np.argsort(-probabilities)
    sums_before = np.cumsum(probabilities[order]) - probabilities[order]
    kept = probabilities.copy()
    kept[order[sums_before > p]] = 0
    return kept / kept.sum()


def top_p_from_the_unlikeliest(probabilities, p):
    order = np.argsort(probabilities)  # the unlikeliest first
    sums_before = np.cumsum(probabilities[order]) - probabilities[order]
    kept = probabilities.copy()
    kept[order[sums_before >= p]] = 0
    return kept / kept.sum()


# Exercise 11: layer_norm_backward


def normalised(x, eps):
    """(the normalised x, the standard deviation s by which it was divided, which includes eps)."""
    s = np.sqrt(x.var(axis=-1, keepdims=True) + eps)
    return (x - x.mean(axis=-1, keepdims=True)) / s, s


def backward_without_s(dout, x, weight, eps):
    """dx lacks the gradient through s."""
    _, dweight, dbias = right.layer_norm_backward(dout, x, weight, eps)
    _, s = normalised(x, eps)
    dn = dout * weight
    dx = (dn - dn.mean(axis=-1, keepdims=True)) / s
    return dx, dweight, dbias


def backward_without_mean(dout, x, weight, eps):
    """dx lacks the gradient through the mean."""
    _, dweight, dbias = right.layer_norm_backward(dout, x, weight, eps)
    n, s = normalised(x, eps)
    dn = dout * weight
    dx = (dn - n * (dn * n).mean(axis=-1, keepdims=True)) / s
    return dx, dweight, dbias


def backward_without_mean_and_s(dout, x, weight, eps):
    """dx lacks the gradients through the mean and through s."""
    _, dweight, dbias = right.layer_norm_backward(dout, x, weight, eps)
    _, s = normalised(x, eps)
    return dout * weight / s, dweight, dbias


def backward_with_dx_plus_1(dout, x, weight, eps):
    dx, dweight, dbias = right.layer_norm_backward(dout, x, weight, eps)
    return dx + 1, dweight, dbias


def backward_with_x_for_n(dout, x, weight, eps):
    """dweight is computed from x instead of the normalised x, n."""
    dx, _, dbias = right.layer_norm_backward(dout, x, weight, eps)
    return dx, (dout * x).sum(axis=0), dbias


def backward_with_mean_for_sum(dout, x, weight, eps):
    """dbias is the mean of dout over the tokens instead of the sum."""
    dx, dweight, _ = right.layer_norm_backward(dout, x, weight, eps)
    return dx, dweight, dout.mean(axis=0)


def backward_without_eps(dout, x, weight, eps):
    return right.layer_norm_backward(dout, x, weight, 0)


# Exercise 12: tied_gradient


def gradient_of_repeated_tokens_once(ids, dresid, final, dlogits):
    """Of several gradients of the same token, `+=` adds only the last one."""
    dwte = dlogits.T @ final
    dwte[ids] += dresid
    return dwte


def gradient_without_the_embedding(ids, dresid, final, dlogits):
    return dlogits.T @ final


def gradient_without_the_output_matrix(ids, dresid, final, dlogits):
    dwte = np.zeros((dlogits.shape[1], final.shape[1]))
    np.add.at(dwte, ids, dresid)
    return dwte
