"""The well-known mistakes in a GPT-2.

MISTAKES is the list. To add one, add a row: what to say of it, and for each kind of activation that
it changes the function that computes the wrong one. A mistake of one expression is a lambda in its
row; one of two steps or more is a function with a name. What is right is in model.py alone. The
mistake's test is a GPT-2 that makes it, in tests/support/wrong_gpt2s.py, and what is said of it, in
tests/test_compare_mistakes.py.

A function gets the place where the mistake is made, and returns the wrong activation of this place.
at.x is the activation that the wrong one is computed from, at.weight and at.bias are the parameters
that it is computed with, at.right is what model.py computes. at["attn.N.q"] is an activation before
it in its layer. at.D, at.H and at.K are the sizes of model.py. Where no shape is written, x and the
result are [B, T, D] ([B, T, F] within the MLP).

Two mistakes that compute the same in a place share one function, because `trials_in` takes two
functions for two different mistakes.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial

import numpy as np

from ..gpt2.activations import ACTIVATIONS
from ..gpt2.model import Array, split_heads, transformer_block
from ..gpt2.ops import gelu_new, layer_norm, log_softmax, softmax
from ..gpt2.run import Run
from .place import LINEARS, NORMS, PARAMETERS_OF, Q_K_V, Compute, Place
from .transformer_lens import FOLDED_AND_CENTRED


@dataclass(frozen=True)
class Mistake:
    sentence: str  # what follows "yours"
    wrong: dict[str, Compute]  # a kind of activation -> the function that computes the wrong one
    note: str = ""  # what to do about it, if that is not clear
    only_everywhere: bool = False  # made in all of these activations or in none


def in_each(kinds: Iterable[str], compute: Compute) -> dict[str, Compute]:
    """The same wrong function for several kinds of activations."""
    wrong = {}
    for kind in kinds:
        wrong[kind] = compute
    return wrong


def unchanged(at: Place) -> Array:
    """The activation if the step that computes it is missing: what the step would have read."""
    return at.x


# Activation functions


def gelu_tanh(x: Array, factor: float, cubic: float) -> Array:
    """gelu_new with other numbers for sqrt(2 / pi) and 0.044715."""
    return 0.5 * x * (1 + np.tanh(factor * (x + cubic * x**3)))


# Layer norms


def mean_of(x: Array) -> Array:  # [..., D] -> [..., 1]
    return np.mean(x, axis=-1, keepdims=True)


def variance_of(x: Array, ddof: int = 0) -> Array:  # [..., D] -> [..., 1]
    return np.var(x, axis=-1, keepdims=True, ddof=ddof)


def norm_with_epsilon(at: Place, eps: float) -> Array:
    """A layer norm with another epsilon than the model's."""
    return layer_norm(at.x, at.weight, at.bias, eps=eps)


def norm_epsilon_outside(at: Place) -> Array:
    """A layer norm that adds epsilon to the standard deviation, not to the variance."""
    deviation = np.sqrt(variance_of(at.x))
    return (at.x - mean_of(at.x)) / (deviation + at.eps) * at.weight + at.bias


def norm_divided_by_variance(at: Place) -> Array:
    """A layer norm without the square root."""
    return (at.x - mean_of(at.x)) / (variance_of(at.x) + at.eps) * at.weight + at.bias


def norm_unbiased(at: Place) -> Array:
    """A layer norm whose variance is a sum divided by D - 1, not by D."""
    deviation = np.sqrt(variance_of(at.x, ddof=1) + at.eps)
    return (at.x - mean_of(at.x)) / deviation * at.weight + at.bias


def norm_over_tokens(at: Place) -> Array:
    """A layer norm whose mean and variance are over axis T of [B, T, D], not over axis D."""
    mean = np.mean(at.x, axis=1, keepdims=True)  # [B, 1, D]
    variance = np.var(at.x, axis=1, keepdims=True)
    return (at.x - mean) / np.sqrt(variance + at.eps) * at.weight + at.bias


def norm_without_mean(at: Place) -> Array:
    """A layer norm without the step of the mean, as RMSNorm, but with its bias."""
    mean_square = mean_of(at.x * at.x)
    return at.x / np.sqrt(mean_square + at.eps) * at.weight + at.bias


def normed_by(at: Place, x: Array, name: str) -> Array:
    """The layer norm `name` of this layer ("ln_1" or "ln_2"), of x."""
    return layer_norm(x, at[f"h.N.{name}.weight"], at[f"h.N.{name}.bias"], eps=at.eps)


def final_norm_of(at: Place, name: str) -> Array:
    """ln_f with the weight and bias of another layer norm, such as h.0.ln_1."""
    return layer_norm(at.x, at[f"{name}.weight"], at[f"{name}.bias"], eps=at.eps)


# Blocks


def run_block(at: Place, resid: Array, layer: int) -> Array:  # [B, T, D] -> [B, T, D]
    """The output of a block that reads `resid`, without mistakes."""
    block = at.model.tree["h"][layer]
    return transformer_block(resid, block, layer, Run(at.model.config))


def later_blocks_first(at: Place) -> Array:
    """What enters a block if the blocks run from the last one to the first.

    These are the outputs of the blocks with higher numbers, which come first then. Our model has
    not run them yet, so they are run here.
    """
    resid = at["embed"]
    for layer in reversed(range(at.layer + 1, at.n_layer)):
        resid = run_block(at, resid, layer)
    return resid


def final_of_first_block(at: Place) -> Array:
    """ln_f of the first block's output, which is the last if the blocks run in reverse order."""
    return layer_norm(at["resid_post.0"], at.weight, at.bias, eps=at.eps)


# Parameters of the layers in reverse order: layer 0 has those of the last one, and so on.


def weight_if_reversed(at: Place) -> Array:
    """The weight for this place if the layers have their parameters in reverse order."""
    layer = at.n_layer - 1 - at.layer
    name = PARAMETERS_OF[at.kind].replace("h.N", f"h.{layer}")
    return at[f"{name}.weight"]


def bias_if_reversed(at: Place) -> Array:
    """The bias for this place if the layers have their parameters in reverse order."""
    layer = at.n_layer - 1 - at.layer
    name = PARAMETERS_OF[at.kind].replace("h.N", f"h.{layer}")
    return at[f"{name}.bias"]


def norm_if_reversed(at: Place) -> Array:
    """The layer norm if the layers have their parameters in reverse order."""
    return layer_norm(at.x, weight_if_reversed(at), bias_if_reversed(at), eps=at.eps)


def linear_if_reversed(at: Place) -> Array:
    """The linear layer if the layers have their parameters in reverse order."""
    return at.x @ weight_if_reversed(at) + bias_if_reversed(at)


# Linear layers


def rounded(x: Array, bits: int) -> Array:
    """x rounded to so many binary digits, to even in a tie."""
    mantissa, exponent = np.frexp(x)  # x is mantissa * 2**exponent, with 0.5 <= |mantissa| < 1
    rounded_mantissa = np.rint(mantissa * 2**bits) / 2**bits
    return np.ldexp(rounded_mantissa, exponent)


# A dtype -> the binary digits of its numbers, without the exponent. The first digit counts: it is
# always 1, and not stored.
DIGITS_OF_HALVES = {"bfloat16": 8, "float16": 11}


def linear_with_rounded_weight(at: Place, dtype: str) -> Array:
    """A linear layer whose weight alone is rounded, not its bias."""
    weight = rounded(at.weight, DIGITS_OF_HALVES[dtype])
    return at.x @ weight + at.bias


def embedding_rounded(at: Place, dtype: str) -> Array:
    """The embedding, if wte and wpe are rounded to this dtype."""
    bits = DIGITS_OF_HALVES[dtype]
    return rounded(at.token_vectors, bits) + rounded(at.position_vectors, bits)


def norm_rounded(at: Place, dtype: str) -> Array:
    """A layer norm, if its weight and bias are rounded to this dtype."""
    bits = DIGITS_OF_HALVES[dtype]
    return layer_norm(at.x, rounded(at.weight, bits), rounded(at.bias, bits), eps=at.eps)


def linear_rounded(at: Place, dtype: str) -> Array:
    """A linear layer, if its weight and bias are rounded to this dtype."""
    bits = DIGITS_OF_HALVES[dtype]
    return at.x @ rounded(at.weight, bits) + rounded(at.bias, bits)


def logits_rounded(at: Place, dtype: str) -> Array:  # -> [B, T, V]
    """The logits, if the output matrix is rounded to this dtype."""
    return at["final"] @ rounded(at.W_U, DIGITS_OF_HALVES[dtype])


def all_rounded(dtype: str) -> dict[str, Compute]:
    """The wrong function of each activation that is computed from parameters: it rounds them.

    What is computed from them is not rounded. dtype: "bfloat16" or "float16".
    """
    return {
        "embed": lambda at: embedding_rounded(at, dtype),
        **in_each(NORMS, lambda at: norm_rounded(at, dtype)),
        **in_each(LINEARS, lambda at: linear_rounded(at, dtype)),
        "logits": lambda at: logits_rounded(at, dtype),
    }


def matrices_rounded(dtype: str) -> dict[str, Compute]:
    """As all_rounded, but biases and layer norms are not rounded."""
    return {
        "embed": lambda at: embedding_rounded(at, dtype),
        **in_each(LINEARS, lambda at: linear_with_rounded_weight(at, dtype)),
        "logits": lambda at: logits_rounded(at, dtype),
    }


def linear_with_transposed_weight(at: Place) -> Array:
    """A linear layer that reads its weight [in, out] as if the same numbers were [out, in]."""
    inputs, outputs = at.weight.shape
    return at.x @ at.weight.reshape(outputs, inputs).T + at.bias


def qkv_in_order(at: Place, order: str) -> Array:  # -> [B, T, 3 D]
    """qkv if c_attn has the columns of q, k and v in this order, such as "kqv" for k first."""
    q, k, v = np.split(at.right, 3, axis=-1)
    parts = {"q": q, "k": k, "v": v}
    return np.concatenate([parts[letter] for letter in order], axis=-1)


# Heads: what is called a part is q, k or v. at.part is 0, 1 or 2, and at.x is qkv, [B, T, 3 D].


def part_without_bias(at: Place) -> Array:  # -> [B, H, T, K]
    """q, k or v if c_attn's bias is missing from it."""
    return split_heads(at.x - at.bias, at.H)[at.part]


def part_in_order(at: Place, order: str) -> Array:  # -> [B, H, T, K]
    """q, k or v if qkv is taken apart in this order, such as "kqv" for q from the columns of k."""
    letter = order[at.part]
    part_taken = "qkv".index(letter)
    return split_heads(at.x, at.H)[part_taken]


def part_one_head_after_the_other(at: Place) -> Array:  # -> [B, H, T, K]
    """q, k or v if qkv holds q, k and v of the first head, then those of the second, and so on."""
    B, T = at.ids.shape
    by_head = at.x.reshape(B, T, at.H, 3, at.K)
    return by_head[:, :, :, at.part].swapaxes(1, 2)


def part_interleaved(at: Place) -> Array:  # -> [B, H, T, K]
    """q, k or v if the first head has columns 0, H, 2 H, ... and the next one 1, H + 1, ..."""
    B, T = at.ids.shape
    interleaved = at.x.reshape(B, T, 3, at.K, at.H)
    return interleaved[:, :, at.part].transpose(0, 3, 1, 2)


def part_reshaped(at: Place) -> Array:  # -> [B, H, T, K]
    """q, k or v if [B, T, D] is reshaped to [B, H, T, K] at once."""
    by_token = at.right.swapaxes(1, 2)  # [B, T, H, K]
    return by_token.reshape(at.right.shape)


def heads_joined_wrongly(at: Place) -> Array:  # -> [B, H, T, K]
    """The heads, in an order from which the right join makes what the wrong join would make.

    The wrong join is heads.reshape(B, T, D), without a transpose. `merge_heads`, the right one,
    swaps axes first, so the axes are swapped back here.
    """
    B, H, T, K = at.right.shape
    wrongly_joined = at.right.reshape(B, T, H, K)  # as [B, T, D], in heads of width K
    return wrongly_joined.swapaxes(1, 2)


def out_of_heads_joined_wrongly(at: Place) -> Array:  # -> [B, T, D]
    """The output of attention if its heads are reshaped from [B, H, T, K] to [B, T, D] at once."""
    B, T = at.ids.shape
    joined = at["attn.N.heads"].reshape(B, T, at.D)
    return joined @ at.weight + at.bias


# Scores and the pattern


def unscaled_scores(at: Place) -> Array:  # -> [B, H, T, T]
    """The scores without the factor 1 / sqrt(K)."""
    return at["attn.N.q"] @ at["attn.N.k"].swapaxes(2, 3)


def hide(scores: Array, first_hidden: int = 1, fill: float = -np.inf) -> Array:
    """Scores [..., T, T] with `fill` where a key is `first_hidden` tokens or more after its query.

    With the defaults, it is the causal mask.
    """
    is_hidden = np.triu(np.ones(scores.shape[-2:], bool), k=first_hidden)
    return np.where(is_hidden, fill, scores).astype(scores.dtype)


def pattern_of_the_future(at: Place) -> Array:  # -> [B, H, T, T]
    """The pattern if a mask hides the keys before the query, not those after it."""
    T = at.x.shape[-1]
    is_past = np.tril(np.ones((T, T), bool), k=-1)  # the key comes before the query
    without_past = np.where(is_past, -np.inf, at.x).astype(at.x.dtype)
    return softmax(without_past)


def pattern_over_queries(at: Place) -> Array:  # -> [B, H, T, T]
    """The pattern if the softmax is over the queries of a key, not over the keys of a query."""
    by_key = hide(at.x).swapaxes(2, 3)
    return softmax(by_key).swapaxes(2, 3)


# Embeddings


def embedding(at: Place, ids: Array) -> Array:  # [B, T] -> [B, T, D]
    """The embedding of other ids than those that were given."""
    return at["wte.weight"][ids] + at.position_vectors


def embedding_at(at: Place, positions: Array) -> Array:  # [T] -> [B, T, D]
    """The embedding with other positions than 0, 1, 2, ..."""
    return at.token_vectors + at["wpe.weight"][positions]


def positions_from_1(at: Place) -> Array:  # -> [T]
    """1, 2, 3, ... In a full context the last one has no row of wpe, and stays as it is."""
    last_position = at.model.config.n_ctx - 1
    return np.minimum(at.positions + 1, last_position)


def tokens_before(at: Place, first: Array | int) -> Array:  # -> [B, T, D]
    """The embedding if each token is read as the one before it, and the first one as `first`."""
    ids = at.ids.copy()
    ids[:, 1:] = at.ids[:, :-1]
    ids[:, 0] = first
    return embedding(at, ids)


def tokens_after(at: Place, last: Array | int) -> Array:  # -> [B, T, D]
    """The embedding if each token is read as the one after it, and the last one as `last`."""
    ids = at.ids.copy()
    ids[:, :-1] = at.ids[:, 1:]
    ids[:, -1] = last
    return embedding(at, ids)


POST = "mlp.N.post"
SCORES = "attn.N.scores"
PATTERN = "attn.N.pattern"

MISTAKES = [
    Mistake(
        "is the exact gelu (erf)",
        {POST: lambda at: ACTIVATIONS["gelu"].forward(at.x)},
        note="if it was trained so, as nanoGPT's models: "
        'from_state_dict(..., activation_function="gelu")',
    ),
    Mistake(
        "is gelu_new, the approximation with tanh",
        {POST: lambda at: gelu_new(at.x)},
    ),
    Mistake("is relu", {POST: lambda at: ACTIVATIONS["relu"].forward(at.x)}),
    Mistake("is quick_gelu", {POST: lambda at: ACTIVATIONS["quick_gelu"].forward(at.x)}),
    Mistake("is silu", {POST: lambda at: ACTIVATIONS["silu"].forward(at.x)}),
    Mistake("is tanh", {POST: lambda at: ACTIVATIONS["tanh"].forward(at.x)}),
    Mistake("has no activation function", {POST: unchanged}),
    Mistake("applies gelu_new twice", {POST: lambda at: gelu_new(gelu_new(at.x))}),
    Mistake("is gelu_new without the factor 0.5", {POST: lambda at: 2 * gelu_new(at.x)}),
    Mistake(
        "is gelu_new without the square root of 2 / pi",
        {POST: lambda at: gelu_tanh(at.x, factor=2 / np.pi, cubic=0.044715)},
    ),
    Mistake(
        "is gelu_new with 0.44715 for 0.044715",
        {POST: lambda at: gelu_tanh(at.x, factor=(2 / np.pi) ** 0.5, cubic=0.44715)},
    ),
    Mistake(
        "has a layer norm with epsilon 1e-05",
        in_each(NORMS, lambda at: norm_with_epsilon(at, 1e-5)),
    ),
    Mistake(
        "has a layer norm with epsilon 1e-06",
        in_each(NORMS, lambda at: norm_with_epsilon(at, 1e-6)),
    ),
    Mistake(
        "has a layer norm with epsilon 1e-08",
        in_each(NORMS, lambda at: norm_with_epsilon(at, 1e-8)),
    ),
    Mistake(
        "has a layer norm with epsilon 0.001",
        in_each(NORMS, lambda at: norm_with_epsilon(at, 1e-3)),
    ),
    Mistake(
        "has a layer norm with no epsilon, or one of 1e-12",
        in_each(NORMS, lambda at: norm_with_epsilon(at, 0)),
    ),
    Mistake("has a layer norm with epsilon outside the root", in_each(NORMS, norm_epsilon_outside)),
    Mistake(
        "has a layer norm that divides by the variance, not by its root",
        in_each(NORMS, norm_divided_by_variance),
    ),
    Mistake("has a layer norm with the unbiased variance", in_each(NORMS, norm_unbiased)),
    Mistake(
        "has a layer norm over the tokens, not over each vector",
        in_each(NORMS, norm_over_tokens),
    ),
    Mistake("has a layer norm that does not subtract the mean", in_each(NORMS, norm_without_mean)),
    Mistake(
        "has a layer norm without its weight",
        in_each(NORMS, lambda at: layer_norm(at.x, np.ones(at.D), at.bias, at.eps)),
    ),
    Mistake(
        "has a layer norm without its bias",
        in_each(NORMS, lambda at: layer_norm(at.x, at.weight, np.zeros(at.D), at.eps)),
    ),
    Mistake(
        "has a layer norm without weight and bias",
        in_each(NORMS, lambda at: layer_norm(at.x, np.ones(at.D), np.zeros(at.D), at.eps)),
    ),
    Mistake("has no layer norm", in_each(NORMS, unchanged)),
    Mistake(
        "has ln_1 and ln_2 swapped",
        {
            "attn.N.in": lambda at: normed_by(at, at.x, "ln_2"),
            "mlp.N.in": lambda at: normed_by(at, at.x, "ln_1"),
        },
    ),
    Mistake(
        "is post-norm: it normalises after the residual connection",
        {
            "attn.N.in": unchanged,
            "resid_mid.N": lambda at: normed_by(at, at.right, "ln_1"),
            "mlp.N.in": unchanged,
            "resid_post.N": lambda at: normed_by(at, at.right, "ln_2"),
        },
    ),
    Mistake(
        "gives the MLP the input of attention, in parallel",
        {"mlp.N.in": lambda at: normed_by(at, at["resid_pre.N"], "ln_2")},
    ),
    Mistake(
        "gives the MLP the output of ln_1",
        {"mlp.N.in": lambda at: at["attn.N.in"]},
    ),
    Mistake("skips the block", {"resid_post.N": lambda at: at["resid_pre.N"]}),
    Mistake(
        "runs the block twice",
        {"resid_pre.N": lambda at: run_block(at, at.right, at.layer)},
    ),
    Mistake(
        "runs the blocks in reverse order",  # activations have the numbers of the blocks
        {"resid_pre.N": later_blocks_first, "final": final_of_first_block},
        only_everywhere=True,
    ),
    Mistake(
        "runs the blocks in reverse order",  # activations are numbered as they are computed
        {
            **in_each(("attn.N.in", "mlp.N.in"), norm_if_reversed),
            **in_each(LINEARS, linear_if_reversed),
        },
        only_everywhere=True,
    ),
    Mistake(
        "has all parameters rounded to bfloat16", all_rounded("bfloat16"), only_everywhere=True
    ),
    Mistake("has all parameters rounded to float16", all_rounded("float16"), only_everywhere=True),
    Mistake(
        "has all matrices rounded to bfloat16, but no bias and no layer norm",
        matrices_rounded("bfloat16"),
        only_everywhere=True,
    ),
    Mistake(
        "has all matrices rounded to float16, but no bias and no layer norm",
        matrices_rounded("float16"),
        only_everywhere=True,
    ),
    Mistake(
        "has the folded and centred weights that TransformerLens's HookedTransformer makes by "
        "default",
        FOLDED_AND_CENTRED,
        note="to compare the weights as they were trained, load the model with "
        "HookedTransformer.from_pretrained_no_processing, or without enable_compatibility_mode",
        only_everywhere=True,
    ),
    Mistake("lacks the bias", in_each(LINEARS, lambda at: at.x @ at.weight)),
    Mistake("has its weight transposed", in_each(LINEARS, linear_with_transposed_weight)),
    Mistake(
        "has weights rounded to bfloat16",
        in_each(LINEARS, lambda at: linear_with_rounded_weight(at, "bfloat16")),
    ),
    Mistake(
        "has weights rounded to float16",
        in_each(LINEARS, lambda at: linear_with_rounded_weight(at, "float16")),
    ),
    Mistake(
        "computes q, v, k with c_attn, not q, k, v",
        {"attn.N.qkv": lambda at: qkv_in_order(at, "qvk")},
    ),
    Mistake(
        "computes k, q, v with c_attn, not q, k, v",
        {"attn.N.qkv": lambda at: qkv_in_order(at, "kqv")},
    ),
    Mistake(
        "computes k, v, q with c_attn, not q, k, v",
        {"attn.N.qkv": lambda at: qkv_in_order(at, "kvq")},
    ),
    Mistake(
        "computes v, q, k with c_attn, not q, k, v",
        {"attn.N.qkv": lambda at: qkv_in_order(at, "vqk")},
    ),
    Mistake(
        "computes v, k, q with c_attn, not q, k, v",
        {"attn.N.qkv": lambda at: qkv_in_order(at, "vkq")},
    ),
    Mistake("lacks the bias of the queries", {"attn.N.q": part_without_bias}),
    Mistake("lacks the bias of the keys", {"attn.N.k": part_without_bias}),
    Mistake("lacks the bias of the values", {"attn.N.v": part_without_bias}),
    Mistake("takes q, v, k for q, k, v", in_each(Q_K_V, lambda at: part_in_order(at, "qvk"))),
    Mistake("takes k, q, v for q, k, v", in_each(Q_K_V, lambda at: part_in_order(at, "kqv"))),
    Mistake("takes k, v, q for q, k, v", in_each(Q_K_V, lambda at: part_in_order(at, "kvq"))),
    Mistake("takes v, q, k for q, k, v", in_each(Q_K_V, lambda at: part_in_order(at, "vqk"))),
    Mistake("takes v, k, q for q, k, v", in_each(Q_K_V, lambda at: part_in_order(at, "vkq"))),
    Mistake(
        "takes q, k and v of one head after the other from qkv",
        in_each(Q_K_V, part_one_head_after_the_other),
    ),
    Mistake("interleaves the heads", in_each(Q_K_V, part_interleaved)),
    Mistake("reshapes to heads without a transpose", in_each(Q_K_V, part_reshaped)),
    Mistake("joins the heads without a transpose", {"attn.N.heads": heads_joined_wrongly}),
    Mistake("joins the heads without a transpose", {"attn.N.out": out_of_heads_joined_wrongly}),
    Mistake(
        "scales the scores by 1 / sqrt(n_embd)",
        {SCORES: lambda at: unscaled_scores(at) / at.D**0.5},
    ),
    Mistake(
        "scales the scores by 1 / sqrt(n_embd / n_head)",
        {SCORES: lambda at: unscaled_scores(at) / at.K**0.5},
    ),
    Mistake("scales the scores by 1, not at all", {SCORES: unscaled_scores}),
    Mistake(
        "scales the scores by n_head / n_embd, without the square root",
        {SCORES: lambda at: unscaled_scores(at) / at.K},
    ),
    Mistake(
        "divides the scores by the layer's number, from 1",
        {SCORES: lambda at: unscaled_scores(at) / at.K**0.5 / (at.layer + 1)},
    ),
    Mistake("has no causal mask", {PATTERN: lambda at: softmax(at.x)}),
    Mistake(
        "has a mask that is off by one: a token sees the next one",
        {PATTERN: lambda at: softmax(hide(at.x, first_hidden=2))},
    ),
    Mistake(
        "has a mask that is off by one: a token does not see itself",
        {PATTERN: lambda at: softmax(hide(at.x, first_hidden=0))},
    ),
    Mistake(
        "has a mask of -1e9 that is off by one: a token does not see itself",
        {PATTERN: lambda at: softmax(hide(at.x, first_hidden=0, fill=-1e9))},
    ),
    Mistake(
        "puts 0 in place of -inf under the mask",
        {PATTERN: lambda at: softmax(hide(at.x, fill=0))},
    ),
    Mistake("hides the past, not the future", {PATTERN: pattern_of_the_future}),
    Mistake("applies the mask after the softmax", {PATTERN: lambda at: np.tril(softmax(at.x))}),
    Mistake("applies the softmax over the queries", {PATTERN: pattern_over_queries}),
    Mistake("lacks the residual connection", in_each(("resid_mid.N", "resid_post.N"), unchanged)),
    Mistake(
        "adds to the layer norm's output, not to its input",
        {
            "resid_mid.N": lambda at: at["attn.N.in"] + at["attn.N.out"],
            "resid_post.N": lambda at: at["mlp.N.in"] + at["mlp.N.out"],
        },
    ),
    Mistake("has no position embedding", {"embed": lambda at: at.token_vectors}),
    Mistake(
        "multiplies the token embedding by sqrt(n_embd)",
        {"embed": lambda at: at.token_vectors * at.D**0.5 + at.position_vectors},
    ),
    Mistake(
        "counts positions from 1",
        {"embed": lambda at: embedding_at(at, positions_from_1(at))},
    ),
    Mistake(
        "counts positions from -1",  # position -1 is the last row of wpe
        {"embed": lambda at: embedding_at(at, at.positions - 1)},
    ),
    Mistake(
        "counts positions 0, 0, 1, 2, ...",
        {"embed": lambda at: embedding_at(at, np.maximum(at.positions - 1, 0))},
    ),
    Mistake(
        "gives every token position 0",
        {"embed": lambda at: embedding_at(at, 0 * at.positions)},
    ),
    Mistake(
        "adds 1 to the ids",
        {"embed": lambda at: embedding(at, (at.ids + 1) % at.model.config.vocab_size)},
    ),
    Mistake("subtracts 1 from the ids", {"embed": lambda at: embedding(at, at.ids - 1)}),
    # No token is before the first one. It is read as the last one (by np.roll), as itself, as token
    # 0, or as the end of a text. The same holds for the token after the last one.
    Mistake(
        "has its ids shifted by one: it reads the token before",
        {"embed": lambda at: tokens_before(at, first=at.ids[:, -1])},
    ),
    Mistake(
        "has its ids shifted by one: it reads the token before",
        {"embed": lambda at: tokens_before(at, first=at.ids[:, 0])},
    ),
    Mistake(
        "has its ids shifted by one: it reads the token before",
        {"embed": lambda at: tokens_before(at, first=0)},
    ),
    Mistake(
        "has its ids shifted by one: it reads the token before",
        {"embed": lambda at: tokens_before(at, first=at.end_of_text)},
    ),
    Mistake(
        "has its ids shifted by one: it reads the token after",
        {"embed": lambda at: tokens_after(at, last=at.ids[:, 0])},
    ),
    Mistake(
        "has its ids shifted by one: it reads the token after",
        {"embed": lambda at: tokens_after(at, last=at.ids[:, -1])},
    ),
    Mistake(
        "has its ids shifted by one: it reads the token after",
        {"embed": lambda at: tokens_after(at, last=0)},
    ),
    Mistake(
        "has its ids shifted by one: it reads the token after",
        {"embed": lambda at: tokens_after(at, last=at.end_of_text)},
    ),
    Mistake("is the tied head, wte", {"logits": lambda at: at["final"] @ at["wte.weight"].T}),
    Mistake("is softmax(logits)", {"logits": lambda at: softmax(at.right)}),
    Mistake("is log_softmax(logits)", {"logits": lambda at: log_softmax(at.right)}),
]


def mistakes_in(n_layer: int) -> list[Mistake]:
    """MISTAKES, and for each layer norm of a model with so many layers that ln_f is this one."""
    mistakes = list(MISTAKES)
    for layer in range(n_layer):
        for name in (f"h.{layer}.ln_1", f"h.{layer}.ln_2"):
            final = partial(final_norm_of, name=name)
            mistakes.append(Mistake(f"has the weight and bias of {name} in ln_f", {"final": final}))
    return mistakes
