"""Wrong solutions of the exercises of scripts/exercises.md: one for each mistake that has a name.

`right` has the right solutions. A wrong solution of few steps is a lambda in the table. What a
whole GPT-2 can do wrong, too, has the steps of one in wrong_gpt2s.py.
"""

import math
from functools import partial

import numpy as np

from . import exercise_solutions as right
from . import wrong_gpt2s
from .other_gpt2 import STEPS

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


# Exercises 4 to 7


def with_steps(solution, *sentences, **steps):
    """A solution with the steps of the wrong GPT-2s of these sentences, and with others."""
    for sentence in sentences:
        steps |= wrong_gpt2s.named(sentence).steps
    return partial(solution, **steps)


def gelu_of(sentence):
    """The activation function of the wrong GPT-2 of this sentence."""
    gelu = wrong_gpt2s.named(sentence).steps["gelu"]
    return lambda x: gelu(x, layer=0)


def norm_of(sentence):
    """The layer norm of the wrong GPT-2 of this sentence."""
    return wrong_gpt2s.named(sentence).steps["norm"]


def attention_in_causal_heads(q, k, v, pattern):
    """The heads [H, T, K] if each head of a token sees the heads before it, and itself."""
    q, k, v = (part.swapaxes(0, 1) for part in (q, k, v))  # [T, H, K]
    scores = q @ k.swapaxes(1, 2) / np.sqrt(q.shape[-1])
    return (STEPS["pattern"](scores) @ v).swapaxes(0, 1)


def block_with_swapped_norms(resid, block, n_head, eps):
    swapped = {**block, "ln_1": block["ln_2"], "ln_2": block["ln_1"]}
    return right.transformer_block(resid, swapped, n_head, eps)


# Exercise 9


def cache_of_the_first_piece(x, c_attn, c_proj, n_head, cache):
    cache_before = dict(cache)  # empty at the first call
    out = right.cached_attention(x, c_attn, c_proj, n_head, cache)
    cache.update(cache_before)
    return out


def cache_of_the_last_piece(x, c_attn, c_proj, n_head, cache):
    out = right.cached_attention(x, c_attn, c_proj, n_head, cache)
    T = len(x)
    cache.update(k=cache["k"][:, -T:], v=cache["v"][:, -T:])
    return out


def pattern_from_position_0(scores):
    """The first of the T queries sees the first of the S keys, whatever the cache has."""
    T, S = scores.shape[-2:]
    return right.softmax(np.where(np.triu(np.ones((T, S), bool), k=1), -np.inf, scores))


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
        ("yours has a layer norm with epsilon 1e-06", norm_of("with epsilon 1e-06")),
        ("yours has a layer norm with the unbiased variance", norm_of("the unbiased variance")),
        ("yours has a layer norm with epsilon outside the root", norm_of("outside the root")),
        ("yours has a layer norm without its bias", norm_of("without its bias")),
        (
            "yours has a layer norm over the whole array, not over each vector",
            norm_of("over the whole array"),
        ),
        (
            "yours has a layer norm that subtracts the mean of the whole array, not of each vector",
            norm_of("subtracts the mean of the whole array"),
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
        ("yours scales the scores by 1, not at all", with_steps(right.head, "by 1, not at all")),
        ("yours has no causal mask", with_steps(right.head, "has no causal mask")),
        (
            "yours has a mask of -1e9 that is off by one: a token does not see itself",
            with_steps(right.head, "has a mask of -1e9"),
        ),
        (
            "yours lacks the bias of the queries",
            lambda x, W_q, b_q, *others: right.head(x, W_q, 0, *others),
        ),
        (
            "yours scales the scores by n_head / n_embd, without the square root",
            with_steps(right.head, "by n_head / n_embd"),
        ),
        (
            "yours puts 0 in place of -inf under the mask",
            with_steps(right.head, "puts 0 in place of -inf"),
        ),
        (
            "and yours has no causal mask",
            with_steps(right.head, "by 1, not at all", "has no causal mask"),
        ),
    ],
    (5, "attention"): [
        (
            "yours joins the heads without a transpose",
            with_steps(right.attention, "joins the heads without a transpose"),
        ),
        (
            "yours reshapes to heads without a transpose",
            with_steps(right.attention, "reshapes to heads without a transpose"),
        ),
        (
            "yours reshapes to heads and back without a transpose",
            with_steps(right.attention, "reshapes to heads and back without a transpose"),
        ),
        (
            "yours attends between the heads of each token, not between tokens",
            with_steps(right.attention, "attends between the heads of each token"),
        ),
        (
            "yours attends between the heads of each token, not between tokens",
            with_steps(right.attention, attend=attention_in_causal_heads),
        ),
    ],
    (6, "gelu"): [
        ("yours is the exact gelu (erf)", gelu_of("is the exact gelu (erf), in every layer")),
        ("yours is relu", gelu_of("is relu")),
        ("yours is quick_gelu", gelu_of("is quick_gelu")),
        ("yours is gelu_new without the factor 0.5", gelu_of("without the factor 0.5")),
        ("yours is gelu_new with 0.44715 for 0.044715", gelu_of("with 0.44715 for 0.044715")),
        ("yours is nan everywhere", lambda x: x * np.nan),
        (UNKNOWN, lambda x: 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**2)))),
    ],
    (7, "transformer_block"): [
        (
            "yours has a layer norm with epsilon 1e-05",
            lambda resid, block, n_head, eps: right.transformer_block(resid, block, n_head, 1e-5),
        ),
        (
            "yours lacks the residual connection",
            with_steps(right.transformer_block, "resid_mid.0: yours lacks the residual"),
        ),
        (
            "yours gives the MLP the input of attention, in parallel",
            with_steps(right.transformer_block, "gives the MLP the input of attention"),
        ),
        (
            "yours gives the MLP the output of ln_1",
            with_steps(right.transformer_block, "gives the MLP the output of ln_1"),
        ),
        (
            "yours has no layer norm",
            with_steps(
                right.transformer_block,
                before_mlp=lambda resid_pre, attention_in, resid_mid, ln: resid_mid,
            ),
        ),
        ("yours has ln_1 and ln_2 swapped", block_with_swapped_norms),
        (
            "yours adds to the layer norm's output, not to its input",
            # Twice, because `x = layer_norm(x)` loses what is added to.
            with_steps(
                right.transformer_block,
                "resid_mid.0: yours adds to the layer norm's output",
                "resid_post.0: yours adds to the layer norm's output",
            ),
        ),
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
            with_steps(right.cached_attention, "has no causal mask"),
        ),
        (
            "yours has a mask that begins at position 0 in each piece",
            with_steps(right.cached_attention, pattern=pattern_from_position_0),
        ),
        (
            "yours scales the scores by 1, not at all",
            with_steps(right.cached_attention, "by 1, not at all"),
        ),
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
