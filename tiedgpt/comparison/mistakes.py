"""The well-known mistakes in a GPT-2.

MISTAKES is the list. To add one, add a row: what to say of it, and for each kind of activation that
it changes the function that computes the wrong one. A mistake of one expression is a lambda in its
row; one of two steps or more is a function with a name. What is right is in model.py alone. A test
plants each row and expects its sentence. The proof from outside is a formula of another GPT-2, a
row in tests/support/wrong_gpt2s.py.

A function gets the Place where the mistake is made, and returns the wrong activation of this place.
at.x is the activation that the wrong one is computed from, at.weight and at.bias are the parameters
that it is computed with, at.right is what model.py computes. at["attn.N.q"] is an activation before
it in its layer. at.D, at.H and at.K are the sizes of model.py. Where no shape is written, x and the
result are [B, T, D] ([B, T, F] within the MLP).

Two mistakes that compute the same in a place share one function, because `trials_of` takes two
functions for two different mistakes.
"""

from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from ..gpt2.activations import ACTIVATIONS
from ..gpt2.model import Array, split_heads, transformer_block
from ..gpt2.ops import gelu_new, layer_norm, log_softmax, softmax
from ..gpt2.run import Run
from .places import LINEARS, NORMS, PARAMETERS_OF, Q_K_V, Mistake, Place, Wrong


def in_each(kinds: Iterable[str], wrong: Wrong) -> dict[str, Wrong]:
    """The same wrong function for several kinds of activations."""
    return dict.fromkeys(kinds, wrong)


def unchanged(at: Place) -> Array:
    """The activation if the step that computes it is missing: what the step would have read."""
    return at.x


def gelu_tanh(x: Array, factor: float, cubic: float) -> Array:
    """gelu_new with other numbers for sqrt(2 / pi) and 0.044715."""
    return 0.5 * x * (1 + np.tanh(factor * (x + cubic * x**3)))


# Layer norms

Axis = int | tuple[int, ...] | None  # what NumPy takes for `axis`: one axis, several, all


def mean_of(x: Array, axis: Axis = -1) -> Array:  # [..., D] -> [..., 1]
    return np.mean(x, axis=axis, keepdims=True)


def variance_of(x: Array, axis: Axis = -1, ddof: int = 0) -> Array:  # [..., D] -> [..., 1]
    """The mean of the squared distances from the mean. ddof 1: their sum by D - 1, not by D."""
    return np.var(x, axis=axis, keepdims=True, ddof=ddof)


def normed(  # x [B, T, D], centre and deviation [B or 1, T or 1, D or 1] -> [B, T, D]
    at: Place, centre: Array | float, deviation: Array
) -> Array:
    """A layer norm that subtracts `centre`, not the mean, and divides by `deviation`, not by the
    root of the variance."""
    return (at.x - centre) / deviation * at.weight + at.bias


def norm_with_epsilon(at: Place, eps: float) -> Array:
    """A layer norm with another epsilon than the model's."""
    return layer_norm(at.x, at.weight, at.bias, eps=eps)


def norm_over(at: Place, mean_axis: Axis, variance_axis: Axis) -> Array:
    """A layer norm whose mean and variance are over these axes of [B, T, D]."""
    variance = variance_of(at.x, variance_axis)
    return normed(at, mean_of(at.x, mean_axis), np.sqrt(variance + at.eps))


def normed_by(at: Place, x: Array, name: str) -> Array:
    """The layer norm `name` of x, such as "h.N.ln_1" of this layer."""
    return layer_norm(x, at[f"{name}.weight"], at[f"{name}.bias"], eps=at.eps)


# Parameters of layer norms and linear layers


def with_parameters(at: Place, weight: Array, bias: Array) -> Array:
    """The layer norm or the linear layer of this place, with this weight and bias."""
    if at.kind in NORMS:
        return layer_norm(at.x, weight, bias, eps=at.eps)
    return at.x @ weight + bias


def with_parameters_of(at: Place, name: str) -> Array:
    """The layer norm or the linear layer of this place, with the parameters of another one."""
    return with_parameters(at, at[f"{name}.weight"], at[f"{name}.bias"])


# A dtype of two bytes -> the binary digits of its numbers, without the exponent. The first digit
# counts: it is always 1, and not stored.
BINARY_DIGITS = {"bfloat16": 8, "float16": 11}


def rounded(x: Array, dtype: str) -> Array:
    """x rounded to the digits of "bfloat16" or "float16", to even in a tie."""
    bits = BINARY_DIGITS[dtype]
    mantissa, exponent = np.frexp(x)  # x is mantissa * 2**exponent, with 0.5 <= |mantissa| < 1
    rounded_mantissa = np.rint(mantissa * 2**bits) / 2**bits
    return np.ldexp(rounded_mantissa, exponent)


def weight_rounded(at: Place, dtype: str, and_bias: bool = False) -> Array:
    """The activation if its weight, and perhaps its bias, is rounded to this dtype."""
    bias = rounded(at.bias, dtype) if and_bias else at.bias
    return with_parameters(at, rounded(at.weight, dtype), bias)


def all_rounded(dtype: str, linears_and_norms: dict[str, Wrong]) -> dict[str, Wrong]:
    """Parameters of all layers are rounded to this dtype. What is computed from them is not.

    linears_and_norms: what is rounded between the embedding and the output matrix.
    """
    return {
        "embed": lambda at: (
            rounded(at["wte.weight"][at.ids], dtype)
            + rounded(at["wpe.weight"][positions(at)], dtype)
        ),
        **linears_and_norms,
        "logits": lambda at: at["final"] @ rounded(at.model.W_U, dtype),
    }


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


# Heads: what is called a part is q, k or v, and at.x is qkv, [B, T, 3 D].


def part_of(at: Place) -> int:
    """Which of q, k and v this is: 0, 1 or 2."""
    return Q_K_V.index(at.kind)


def qkv_in_order(at: Place, order: str) -> Array:  # -> [B, T, 3 D]
    """qkv if c_attn has the columns of q, k and v in this order, such as "kqv" for k first."""
    parts = np.split(at.right, 3, axis=-1)
    return np.concatenate([parts["qkv".index(letter)] for letter in order], axis=-1)


def part_in_order(at: Place, order: str) -> Array:  # -> [B, H, T, K]
    """q, k or v if qkv is taken apart in this order, such as "kqv" for q from the columns of k."""
    letter = order[part_of(at)]
    return split_heads(at.x, at.H)["qkv".index(letter)]


def part_by_columns(at: Place, order: str) -> Array:  # -> [B, H, T, K]
    """q, k or v if the columns of qkv are in another order of part (p), head (h) and width (k).

    "phk" is right: all columns of q first, in it those of the first head, in it the K of its width.
    """
    sizes = {"p": 3, "h": at.H, "k": at.K}
    B, T = at.ids.shape
    columns = at.x.reshape(B, T, *[sizes[letter] for letter in order])
    parts = np.einsum(f"bt{order}->pbhtk", columns)
    return parts[part_of(at)]


def part_without_bias(at: Place) -> Array:  # -> [B, H, T, K]
    """q, k or v if c_attn's bias is missing from it."""
    return split_heads(at.x - at.bias, at.H)[part_of(at)]


def part_reshaped(at: Place) -> Array:  # -> [B, H, T, K]
    """q, k or v if [B, T, D] is reshaped to [B, H, T, K] at once."""
    by_token = at.right.swapaxes(1, 2)  # [B, T, H, K]
    return by_token.reshape(at.right.shape)


def out_of_heads_joined_wrongly(at: Place) -> Array:  # -> [B, T, D]
    """The output of attention if its heads are reshaped from [B, H, T, K] to [B, T, D] at once."""
    B, T = at.ids.shape
    joined = at["attn.N.heads"].reshape(B, T, at.D)
    return joined @ at.weight + at.bias


def attention_between_heads(at: Place, is_masked: bool) -> Array:  # -> [B, H, T, K]
    """The heads if [B, T, H, K] is not transposed: each head of a token sees those of this token.

    is_masked: a head does not see the later ones, because the mask is for scores of any size.
    """
    q, k, v = [at[f"attn.N.{part}"].swapaxes(1, 2) for part in "qkv"]  # [B, T, H, K]
    scores = q @ k.swapaxes(2, 3) / at.K**0.5  # [B, T, H, H]
    pattern = softmax(hide(scores, is_later(scores)) if is_masked else scores)
    return (pattern @ v).swapaxes(1, 2)


# Scores and the pattern


def unscaled_scores(at: Place) -> Array:  # -> [B, H, T, T]
    """The scores without the factor 1 / sqrt(K)."""
    return at["attn.N.q"] @ at["attn.N.k"].swapaxes(2, 3)


def is_later(scores: Array, by: int = 1) -> Array:  # [..., T, T] -> [T, T]
    """Where a key is `by` tokens or more after its query. By 1, it is the causal mask."""
    return np.triu(np.ones(scores.shape[-2:], bool), k=by)


def hide(scores: Array, is_hidden: Array, fill: float = -np.inf) -> Array:
    """Scores [..., T, T] with `fill` where a query does not see a key."""
    return np.where(is_hidden, fill, scores).astype(scores.dtype)


# Embeddings


def positions(at: Place) -> Array:  # -> [T]
    T = at.ids.shape[1]
    return np.arange(T)


def embedding(at: Place, ids: Array) -> Array:  # [B, T] -> [B, T, D]
    """The embedding of other ids than those that were given."""
    return at["wte.weight"][ids] + at["wpe.weight"][positions(at)]


def embedding_at(at: Place, positions: Array) -> Array:  # [T] or [B, T] -> [B, T, D]
    """The embedding with other positions than 0, 1, 2, ...

    Past the end of the context there is no row of wpe: the last one is taken.
    """
    last_position = at.model.config.n_ctx - 1
    return at["wte.weight"][at.ids] + at["wpe.weight"][np.minimum(positions, last_position)]


def embedding_of_neighbours(  # -> [B, T, D]
    at: Place, by: int, missing: Callable[[Place], Array | int]
) -> Array:
    """The embedding if each token is read as the one before it (by 1) or after it (by -1).

    The first or the last token has no such neighbour, and is read as `missing`.
    """
    ids = np.roll(at.ids, by, axis=1)
    without_neighbour = 0 if by == 1 else -1
    ids[:, without_neighbour] = missing(at)
    return embedding(at, ids)


def first_id(at: Place) -> Array:  # -> [B]
    return at.ids[:, 0]


def last_id(at: Place) -> Array:  # -> [B]
    return at.ids[:, -1]


def end_of_text(at: Place) -> int:
    """The smallest id of a token that ends a text, or the last id if there is no such token."""
    config = at.model.config
    # The configuration of from_state_dict may name a token that is not in this vocabulary.
    end_ids = [token for token in config.eos_token_ids if token < config.vocab_size]
    return min(end_ids, default=config.vocab_size - 1)


# What a HookedTransformer of TransformerLens computes from the weights that it makes by default. It
# gives the same probabilities as GPT-2, with other activations. The weight and bias of each layer
# norm become part of the matrix that reads its output, so a layer norm only normalises. What is
# written to the residual stream is centred: its mean over D is 0. So are the logits, over V. The
# bias of the values becomes part of that of c_proj.


def centred(x: Array) -> Array:  # [..., n] -> [..., n]
    return x - mean_of(x)


def normalised(at: Place) -> Array:
    """A layer norm without its weight and bias."""
    return with_parameters(at, np.ones(at.D), np.zeros(at.D))


def unfolded(at: Place, normalised: Array, name: str) -> Array:
    """A normalised x with the weight and bias that it lacks, those of the layer norm `name`."""
    return normalised * at[f"{name}.weight"] + at[f"{name}.bias"]


def bias_of_values(at: Place) -> Array:  # [D]
    """The bias of the values, with what the bias of ln_1 adds to it."""
    # The columns of c_attn are those of q, then k, then v: D each.
    weight = at["h.N.attn.c_attn.weight"][:, -at.D :]
    bias = at["h.N.attn.c_attn.bias"][-at.D :]
    return at["h.N.ln_1.bias"] @ weight + bias


# A kind of activation -> what a HookedTransformer computes there.
FOLDED_AND_CENTRED: dict[str, Wrong] = {
    "embed": lambda at: centred(at.right),
    "attn.N.in": normalised,
    # Of q, k and v, the values lack their bias.
    "attn.N.qkv": lambda at: (
        unfolded(at, at.x, "h.N.ln_1") @ at.weight
        + at.bias
        - np.pad(bias_of_values(at), (2 * at.D, 0))  # 0 for q and k
    ),
    # The output of attention has the bias that the values lack. A token's pattern adds up to 1, so
    # a bias of all values is the same bias of the heads.
    "attn.N.out": lambda at: centred((at.x + bias_of_values(at)) @ at.weight + at.bias),
    "mlp.N.in": normalised,
    "mlp.N.pre": lambda at: unfolded(at, at.x, "h.N.ln_2") @ at.weight + at.bias,
    "mlp.N.out": lambda at: centred(at.right),
    "final": normalised,
    "logits": lambda at: centred(unfolded(at, at["final"], "ln_f") @ at.model.W_U),
}


POST = "mlp.N.post"
SCORES = "attn.N.scores"
PATTERN = "attn.N.pattern"
OTHER_ORDERS = ("qvk", "kqv", "kvq", "vqk", "vkq")  # than q, k, v

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
    *[
        Mistake(
            f"has a layer norm with epsilon {eps}",
            in_each(NORMS, partial(norm_with_epsilon, eps=eps)),
        )
        for eps in (1e-5, 1e-6, 1e-8, 1e-3)
    ],
    Mistake(
        "has a layer norm with no epsilon, or one of 1e-12",
        in_each(NORMS, partial(norm_with_epsilon, eps=0)),
    ),
    Mistake(
        "has a layer norm with epsilon outside the root",
        in_each(NORMS, lambda at: normed(at, mean_of(at.x), np.sqrt(variance_of(at.x)) + at.eps)),
    ),
    Mistake(
        "has a layer norm that divides by the variance, not by its root",
        in_each(NORMS, lambda at: normed(at, mean_of(at.x), variance_of(at.x) + at.eps)),
    ),
    Mistake(
        "has a layer norm with the unbiased variance",
        in_each(
            NORMS,
            lambda at: normed(at, mean_of(at.x), np.sqrt(variance_of(at.x, ddof=1) + at.eps)),
        ),
    ),
    Mistake(
        "has a layer norm over the tokens, not over each vector",
        in_each(NORMS, partial(norm_over, mean_axis=1, variance_axis=1)),
    ),
    # The array is that of a text, or that of all texts in the batch.
    *[
        Mistake(
            "has a layer norm over the whole array, not over each vector",
            in_each(NORMS, partial(norm_over, mean_axis=axis, variance_axis=axis)),
        )
        for axis in ((1, 2), None)
    ],
    *[
        Mistake(
            "has a layer norm that subtracts the mean of the whole array, not of each vector",
            in_each(NORMS, partial(norm_over, mean_axis=axis, variance_axis=-1)),
        )
        for axis in ((1, 2), None)
    ],
    Mistake(
        "has a layer norm that does not subtract the mean",
        in_each(NORMS, lambda at: normed(at, 0.0, np.sqrt(mean_of(at.x * at.x) + at.eps))),
    ),
    Mistake(
        "has a layer norm without its weight",
        in_each(NORMS, lambda at: with_parameters(at, np.ones(at.D), at.bias)),
    ),
    Mistake(
        "has a layer norm without its bias",
        in_each(NORMS, lambda at: with_parameters(at, at.weight, np.zeros(at.D))),
    ),
    Mistake(
        "has a layer norm without weight and bias",
        in_each(NORMS, lambda at: with_parameters(at, np.ones(at.D), np.zeros(at.D))),
    ),
    Mistake("has no layer norm", in_each(NORMS, unchanged)),
    Mistake(
        "has ln_1 and ln_2 swapped",
        {
            "attn.N.in": lambda at: with_parameters_of(at, "h.N.ln_2"),
            "mlp.N.in": lambda at: with_parameters_of(at, "h.N.ln_1"),
        },
    ),
    Mistake(
        "is post-norm: it normalises after the residual connection",
        {
            "attn.N.in": unchanged,
            "resid_mid.N": lambda at: normed_by(at, at.right, "h.N.ln_1"),
            "mlp.N.in": unchanged,
            "resid_post.N": lambda at: normed_by(at, at.right, "h.N.ln_2"),
        },
    ),
    Mistake(
        "gives the MLP the input of attention, in parallel",
        {"mlp.N.in": lambda at: normed_by(at, at["resid_pre.N"], "h.N.ln_2")},
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
        {
            "resid_pre.N": later_blocks_first,
            # A model may have no blocks.
            "final": lambda at: (
                normed_by(at, at["resid_post.0"], "ln_f") if at.n_layer > 0 else at.right
            ),
        },
        only_everywhere=True,
    ),
    Mistake(
        "runs the blocks in reverse order",  # activations are numbered as they are computed
        in_each(
            ("attn.N.in", "mlp.N.in", *LINEARS),
            lambda at: with_parameters_of(
                at, PARAMETERS_OF[at.kind].replace("h.N", f"h.{at.n_layer - 1 - at.layer}")
            ),
        ),
        only_everywhere=True,
    ),
    *[
        Mistake(
            f"has all parameters rounded to {dtype}",
            all_rounded(
                dtype,
                in_each((*NORMS, *LINEARS), partial(weight_rounded, dtype=dtype, and_bias=True)),
            ),
            only_everywhere=True,
        )
        for dtype in BINARY_DIGITS
    ],
    *[
        Mistake(
            f"has all matrices rounded to {dtype}, but no bias and no layer norm",
            all_rounded(dtype, in_each(LINEARS, partial(weight_rounded, dtype=dtype))),
            only_everywhere=True,
        )
        for dtype in BINARY_DIGITS
    ],
    Mistake(
        "has the folded and centred weights that TransformerLens's HookedTransformer makes by "
        "default",
        FOLDED_AND_CENTRED,
        note="to compare the weights as they were trained, load the model with "
        "HookedTransformer.from_pretrained_no_processing, or without enable_compatibility_mode",
        only_everywhere=True,
    ),
    Mistake("lacks the bias", in_each(LINEARS, lambda at: at.x @ at.weight)),
    Mistake(
        "has its weight transposed",  # [in, out], read as if the same numbers were [out, in]
        in_each(LINEARS, lambda at: at.x @ at.weight.reshape(at.weight.shape[::-1]).T + at.bias),
    ),
    *[
        Mistake(
            f"has weights rounded to {dtype}",
            in_each(LINEARS, partial(weight_rounded, dtype=dtype)),
        )
        for dtype in BINARY_DIGITS
    ],
    *[
        Mistake(
            f"computes {', '.join(order)} with c_attn, not q, k, v",
            {"attn.N.qkv": partial(qkv_in_order, order=order)},
        )
        for order in OTHER_ORDERS
    ],
    Mistake("lacks the bias of the queries", {"attn.N.q": part_without_bias}),
    Mistake("lacks the bias of the keys", {"attn.N.k": part_without_bias}),
    Mistake("lacks the bias of the values", {"attn.N.v": part_without_bias}),
    *[
        Mistake(
            f"takes {', '.join(order)} for q, k, v",
            in_each(Q_K_V, partial(part_in_order, order=order)),
        )
        for order in OTHER_ORDERS
    ],
    Mistake(
        "takes q, k and v of one head after the other from qkv",
        in_each(Q_K_V, partial(part_by_columns, order="hpk")),
    ),
    Mistake("interleaves the heads", in_each(Q_K_V, partial(part_by_columns, order="pkh"))),
    Mistake("reshapes to heads without a transpose", in_each(Q_K_V, part_reshaped)),
    Mistake(
        "joins the heads without a transpose",
        # The wrong join is heads.reshape(B, T, D). `merge_heads`, the right one, swaps axes first,
        # so the axes of what the wrong one makes are swapped back here.
        {"attn.N.heads": lambda at: at.right.reshape(*at.ids.shape, at.H, at.K).swapaxes(1, 2)},
    ),
    *[
        Mistake(
            "attends between the heads of each token, not between tokens",
            {"attn.N.heads": partial(attention_between_heads, is_masked=is_masked)},
        )
        for is_masked in (False, True)
    ],
    Mistake("joins the heads without a transpose", {"attn.N.out": out_of_heads_joined_wrongly}),
    Mistake(
        "reshapes to heads and back without a transpose",
        {**in_each(Q_K_V, part_reshaped), "attn.N.out": out_of_heads_joined_wrongly},
    ),
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
        {PATTERN: lambda at: softmax(hide(at.x, is_later(at.x, by=2)))},
    ),
    Mistake(
        "has a mask that is off by one: a token does not see itself",
        {PATTERN: lambda at: softmax(hide(at.x, is_later(at.x, by=0)))},
    ),
    Mistake(
        "has a mask of -1e9 that is off by one: a token does not see itself",
        {PATTERN: lambda at: softmax(hide(at.x, is_later(at.x, by=0), fill=-1e9))},
    ),
    Mistake(
        "puts 0 in place of -inf under the mask",
        {PATTERN: lambda at: softmax(hide(at.x, is_later(at.x), fill=0))},
    ),
    Mistake(
        "hides the past, not the future",
        {PATTERN: lambda at: softmax(hide(at.x, is_later(at.x).T))},
    ),
    Mistake("applies the mask after the softmax", {PATTERN: lambda at: np.tril(softmax(at.x))}),
    Mistake(
        "applies the softmax over the queries",
        {PATTERN: lambda at: softmax(hide(at.x, is_later(at.x)).swapaxes(2, 3)).swapaxes(2, 3)},
    ),
    Mistake("lacks the residual connection", in_each(("resid_mid.N", "resid_post.N"), unchanged)),
    Mistake(
        "adds to the layer norm's output, not to its input",
        {
            "resid_mid.N": lambda at: at["attn.N.in"] + at["attn.N.out"],
            "resid_post.N": lambda at: at["mlp.N.in"] + at["mlp.N.out"],
        },
    ),
    Mistake("has no position embedding", {"embed": lambda at: at["wte.weight"][at.ids]}),
    Mistake(
        "multiplies the token embedding by sqrt(n_embd)",
        {
            "embed": lambda at: (
                at["wte.weight"][at.ids] * at.D**0.5 + at["wpe.weight"][positions(at)]
            )
        },
    ),
    Mistake("counts positions from 1", {"embed": lambda at: embedding_at(at, positions(at) + 1)}),
    Mistake(
        "counts positions from -1",  # position -1 is the last row of wpe
        {"embed": lambda at: embedding_at(at, positions(at) - 1)},
    ),
    Mistake(
        "counts positions 0, 0, 1, 2, ...",
        {"embed": lambda at: embedding_at(at, np.maximum(positions(at) - 1, 0))},
    ),
    Mistake(
        "gives every token position 0",
        {"embed": lambda at: embedding_at(at, 0 * positions(at))},
    ),
    Mistake(
        "adds 1 to the ids",
        {"embed": lambda at: embedding(at, (at.ids + 1) % at.model.config.vocab_size)},
    ),
    Mistake("subtracts 1 from the ids", {"embed": lambda at: embedding(at, at.ids - 1)}),
    # No token is before the first one, and none after the last one.
    *[
        Mistake(
            "has its ids shifted by one: it reads the token before",
            {"embed": partial(embedding_of_neighbours, by=1, missing=first)},
        )
        for first in (last_id, first_id, lambda at: 0, end_of_text)
    ],
    *[
        Mistake(
            "has its ids shifted by one: it reads the token after",
            {"embed": partial(embedding_of_neighbours, by=-1, missing=last)},
        )
        for last in (first_id, last_id, lambda at: 0, end_of_text)
    ],
    Mistake("is the tied head, wte", {"logits": lambda at: at["final"] @ at["wte.weight"].T}),
    Mistake("is softmax(logits)", {"logits": lambda at: softmax(at.right)}),
    Mistake("is log_softmax(logits)", {"logits": lambda at: log_softmax(at.right)}),
]


def mistakes_in(n_layer: int) -> list[Mistake]:
    """MISTAKES, and for each layer norm of a model with so many layers that ln_f is this one."""
    mistakes = list(MISTAKES)
    for layer in range(n_layer):
        for name in (f"h.{layer}.ln_1", f"h.{layer}.ln_2"):
            sentence = f"has the weight and bias of {name} in ln_f"
            mistakes.append(Mistake(sentence, {"final": partial(with_parameters_of, name=name)}))
    return mistakes
