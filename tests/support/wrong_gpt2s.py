"""Wrong GPT-2s: what `compare` says of each, and the wrong steps of an OtherGPT2.

The formulas are independent of tiedgpt/comparison/mistakes.py: each is that of a whole GPT-2, of
one sequence, without batch. other_gpt2.py has the steps and their shapes. A model whose `config`
differs from GPT-2's makes a right GPT-2 wrong. wrong_solutions.py makes wrong solutions of the
exercises with the same steps.
"""

import math
from dataclasses import dataclass

import numpy as np

from .other_gpt2 import gelu, is_later, layer_norm, softmax


@dataclass
class WrongGPT2:
    diagnosis: list[str]
    steps: dict
    config: dict


def wrong(*diagnosis, config=None, **steps):
    return WrongGPT2(list(diagnosis), steps, config or {})


def exact_gelu(x, layer=None):
    erf = np.vectorize(math.erf)
    return (x * (1 + erf(x / math.sqrt(2))) / 2).astype(x.dtype)


def hidden(scores, where, fill=-np.inf):
    """The pattern if the scores at these places are hidden, by `fill` in their place."""
    return softmax(np.where(where, fill, scores))


def mean(x):
    return x.mean(axis=-1, keepdims=True)


def var(x):
    return x.var(axis=-1, keepdims=True)


def with_epsilon(epsilon):
    return lambda x, weight, bias, eps: layer_norm(x, weight, bias, epsilon)


def in_linear(part, formula):
    """The step `linear` with this formula in one linear layer of each block, such as "mlp.c_fc"."""

    def linear(x, weight, bias, name):
        if name.endswith(part):
            return formula(x, weight, bias)
        return x @ weight + bias

    return linear


def reordered(order):
    """A function of q, k and v in one array: in this order, such as "kqv" for k first."""

    def in_order(qkv):
        parts = dict(zip("qkv", np.split(qkv, 3, axis=-1), strict=True))
        return [parts[letter] for letter in order]

    return in_order


def computed_in(order):
    """c_attn computes q, k and v in this order."""
    in_order = reordered(order)
    return in_linear("c_attn", lambda x, w, b: np.concatenate(in_order(x @ w + b), axis=-1))


def taken_in(order):
    """q is taken from where the first letter of `order` is."""
    return lambda qkv, bias, H: reordered(order)(qkv)


def without_bias_of(letter):
    def split(qkv, bias, H):
        parts = []
        for name, part, its_bias in zip(
            "qkv", np.split(qkv, 3, axis=-1), np.split(bias, 3), strict=True
        ):
            parts.append(part - its_bias if name == letter else part)
        return parts

    return split


def one_head_after_the_other(qkv, bias, H):
    """The columns are in this order: q, k, v of head 0, then q, k, v of head 1, and so on."""
    T = len(qkv)
    by_head = qkv.reshape(T, H, 3, -1)
    return [by_head[:, :, part].reshape(T, -1) for part in range(3)]


def bfloat16(array):
    """The float32 numbers rounded to the nearest bfloat16; to the even one if two are as near."""
    # A bfloat16 is the upper 16 bits of a float32. To round, half of the last of these bits is
    # added, 0x8000, or one less where that bit is 0. Then the lower 16 bits are set to 0.
    bits = array.view(np.uint32)
    last_bit = (bits >> 16) & 1
    return ((bits + 0x7FFF + last_bit) & 0xFFFF0000).astype(np.uint32).view(np.float32)


def float16(array):
    return array.astype(np.float16).astype(np.float32)


def all_of(rounded):
    """The parameters, all of them rounded by this function."""
    return lambda p: {name: rounded(array) for name, array in p.items()}


def matrices_of(rounded):
    """The parameters, of which only the matrices are rounded by this function."""
    return lambda p: {name: rounded(x) if x.ndim == 2 else x for name, x in p.items()}


def centred(x):
    return x - mean(x)


def folded_and_centred(p):
    """The weights as TransformerLens changes them by default.

    To fold the weight and bias of a layer norm is to make them a part of the linear layer that
    reads its output. The bias of the values is folded into the bias of c_proj. Each vector that is
    added to the residual stream is centred: its mean is subtracted. So are the logits.
    """
    head = p.get("lm_head.weight", p["wte.weight"]).T  # [D, V]
    p["head"] = centred(p["ln_f.weight"][:, None] * head)
    p["head_bias"] = centred(p["ln_f.bias"] @ head)
    p["wte.weight"] = centred(p["wte.weight"])
    p["wpe.weight"] = centred(p["wpe.weight"])
    n_layer = sum(name.endswith("ln_1.bias") for name in p)
    for layer in range(n_layer):
        h = f"h.{layer}"
        for ln, linear in ((f"{h}.ln_1", f"{h}.attn.c_attn"), (f"{h}.ln_2", f"{h}.mlp.c_fc")):
            p[f"{linear}.bias"] = p[f"{linear}.bias"] + p[f"{ln}.bias"] @ p[f"{linear}.weight"]
            p[f"{linear}.weight"] = p[f"{ln}.weight"][:, None] * p[f"{linear}.weight"]
        for name in (f"{h}.attn.c_proj", f"{h}.mlp.c_proj"):
            p[f"{name}.weight"] = centred(p[f"{name}.weight"])
            p[f"{name}.bias"] = centred(p[f"{name}.bias"])
        # Each row of a pattern adds up to 1, so the output of attention stays the same.
        q_bias, k_bias, v_bias = np.split(p[f"{h}.attn.c_attn.bias"], 3)
        p[f"{h}.attn.c_attn.bias"] = np.concatenate([q_bias, k_bias, 0 * v_bias])
        out = f"{h}.attn.c_proj"
        p[f"{out}.bias"] = p[f"{out}.bias"] + v_bias @ p[f"{out}.weight"]
    return p


FOLDED = {
    "parameters": folded_and_centred,
    "norm": lambda x, weight, bias, eps: layer_norm(x, 1, 0, eps),
    "logits": lambda final, p: final @ p["head"] + p["head_bias"],
}


def swapped(name):
    """h.0.ln_2 for h.0.ln_1, h.0.ln_1 for h.0.ln_2, and any other name as it is."""
    if name.endswith("ln_1"):
        return name.replace("ln_1", "ln_2")
    return name.replace("ln_2", "ln_1")


def of_other_layer(name):
    """The weights of the two layers in reverse order."""
    if name.startswith("h.0."):
        return name.replace("h.0.", "h.1.")
    return name.replace("h.1.", "h.0.")


def positions(function):
    """The step `positions`: this function of 0, 1, 2, ..."""
    return lambda T: function(np.arange(T))


def attention_between_heads(q, k, v, pattern):
    """The heads [H, T, K] if each head of a token sees the heads of this token."""
    T = q.shape[1]
    heads = []
    for t in range(T):
        scores = q[:, t] @ k[:, t].T / np.sqrt(q.shape[-1])  # [H, H]
        heads.append(softmax(scores) @ v[:, t])
    return np.stack(heads, axis=1)


def unscaled(q, k, layer, H):
    return q @ k.transpose(0, 2, 1)


def nan_in_layer_1(x, weight, bias, name):
    out = x @ weight + bias
    if name == "h.1.mlp.c_fc":
        out[3, 5] = np.nan  # one number of one token
    return out


# Where a mistake is made in each layer, and where it is made in several kinds of activations.
IN_EVERY_LAYER = ", in every layer"
EVERYWHERE = ", everywhere"


def activation(sentence, formula, config=None):
    diagnosis = f"mlp.0.post: yours {sentence}{IN_EVERY_LAYER}"
    return wrong(diagnosis, gelu=lambda x, layer: formula(x), config=config)


def in_layer_norm(sentence, norm, config=None):
    diagnosis = f"attn.0.in: yours has a layer norm {sentence}{EVERYWHERE}"
    return wrong(diagnosis, norm=norm, config=config)


def pattern(sentence, pattern):
    return wrong(f"attn.0.pattern: yours {sentence}{IN_EVERY_LAYER}", pattern=pattern)


def scores(sentence, scores, config=None):
    diagnosis = f"attn.0.scores: yours scales the scores by {sentence}{IN_EVERY_LAYER}"
    return wrong(diagnosis, scores=scores, config=config)


def embedding(sentence, **steps):
    return wrong(f"embed: yours {sentence}", **steps)


BEFORE = "has its ids shifted by one: it reads the token before"
AFTER = "has its ids shifted by one: it reads the token after"
OFF_BY_ONE = "has a mask that is off by one: a token"
UNKNOWN = "this is none of the known mistakes"

WRONG_GPT2S = [
    activation("is the exact gelu (erf)", exact_gelu),
    wrong(
        "mlp.1.post: yours is the exact gelu (erf)",
        gelu=lambda x, layer: exact_gelu(x) if layer == 1 else gelu(x),
    ),
    activation(
        "is gelu_new, the approximation with tanh", gelu, config={"activation_function": "gelu"}
    ),
    activation("is relu", lambda x: np.maximum(x, 0)),
    activation("is quick_gelu", lambda x: x / (1 + np.exp(-1.702 * x))),
    activation("is silu", lambda x: x / (1 + np.exp(-x))),
    activation("is tanh", lambda x: np.tanh(x)),
    activation("has no activation function", lambda x: x),
    activation("applies gelu_new twice", lambda x: gelu(gelu(x))),
    activation(
        "is gelu_new without the factor 0.5",
        lambda x: x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    ),
    activation(
        "is gelu_new without the square root of 2 / pi",
        lambda x: x / 2 * (1 + np.tanh((2 / np.pi) * (x + 0.044715 * x**3))),
    ),
    activation(
        "is gelu_new with 0.44715 for 0.044715",
        lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.44715 * x**3))),
    ),
    in_layer_norm("with epsilon 1e-05", with_epsilon(1e-5), config={"layer_norm_epsilon": 1e-4}),
    in_layer_norm("with epsilon 1e-06", with_epsilon(1e-6)),
    in_layer_norm("with epsilon 1e-08", with_epsilon(1e-8)),
    in_layer_norm("with epsilon 0.001", with_epsilon(1e-3)),
    in_layer_norm("with no epsilon, or one of 1e-12", with_epsilon(1e-12)),
    in_layer_norm(
        "with epsilon outside the root",
        lambda x, w, b, eps: (x - mean(x)) / (np.sqrt(var(x)) + eps) * w + b,
    ),
    in_layer_norm(
        "that divides by the variance, not by its root",
        lambda x, w, b, eps: (x - mean(x)) / (var(x) + eps) * w + b,
    ),
    in_layer_norm(
        "with the unbiased variance",
        lambda x, w, b, eps: (
            (x - mean(x)) / np.sqrt(var(x) * x.shape[-1] / (x.shape[-1] - 1) + eps) * w + b
        ),
    ),
    in_layer_norm(
        "over the tokens, not over each vector",
        lambda x, w, b, eps: (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + eps) * w + b,
    ),
    in_layer_norm(
        "over the whole array, not over each vector",
        lambda x, w, b, eps: (x - x.mean()) / np.sqrt(x.var() + eps) * w + b,
    ),
    in_layer_norm(
        "that subtracts the mean of the whole array, not of each vector",
        lambda x, w, b, eps: (x - x.mean()) / np.sqrt(var(x) + eps) * w + b,
    ),
    in_layer_norm(
        "that does not subtract the mean",
        lambda x, w, b, eps: x / np.sqrt(mean(x * x) + eps) * w + b,
    ),
    in_layer_norm("without its weight", lambda x, w, b, eps: layer_norm(x, 1, b, eps)),
    in_layer_norm("without its bias", lambda x, w, b, eps: layer_norm(x, w, 0, eps)),
    in_layer_norm("without weight and bias", lambda x, w, b, eps: layer_norm(x, 1, 0, eps)),
    wrong("attn.0.in: yours has no layer norm, everywhere", norm=lambda x, w, b, eps: x),
    wrong("final: yours has no layer norm", before_logits=lambda resid, ln: resid),
    wrong(
        "final: yours has the weight and bias of h.1.ln_2 in ln_f",
        weights=lambda name: "h.1.ln_2" if name == "ln_f" else name,
    ),
    wrong("attn.0.in: yours has ln_1 and ln_2 swapped, everywhere", weights=swapped),
    wrong(
        "attn.0.in: yours is post-norm: it normalises after the residual connection, everywhere",
        before_attention=lambda resid, ln: resid,
        after_attention=lambda resid, normed, out, ln: ln(resid + out),
        before_mlp=lambda resid_pre, attention_in, resid_mid, ln: resid_mid,
        after_mlp=lambda resid, normed, out, ln: ln(resid + out),
    ),
    wrong(
        "mlp.0.in: yours gives the MLP the input of attention, in parallel, in every layer",
        before_mlp=lambda resid_pre, attention_in, resid_mid, ln: ln(resid_pre),
    ),
    wrong(
        "mlp.0.in: yours gives the MLP the output of ln_1, in every layer",
        before_mlp=lambda resid_pre, attention_in, resid_mid, ln: attention_in,
    ),
    wrong("resid_post.1: yours skips the block", order=lambda n_layer: [0, *range(2, n_layer)]),
    wrong(
        "resid_pre.1: yours runs the block twice", order=lambda n_layer: [0, 1, *range(1, n_layer)]
    ),
    wrong(
        "resid_pre.0: yours runs the blocks in reverse order",
        order=lambda n_layer: reversed(range(n_layer)),
    ),
    wrong("attn.0.in: yours runs the blocks in reverse order", weights=of_other_layer),
    embedding("has all parameters rounded to bfloat16", parameters=all_of(bfloat16)),
    embedding("has all parameters rounded to float16", parameters=all_of(float16)),
    embedding(
        "has all matrices rounded to bfloat16, but no bias and no layer norm",
        parameters=matrices_of(bfloat16),
    ),
    embedding(
        "has all matrices rounded to float16, but no bias and no layer norm",
        parameters=matrices_of(float16),
    ),
    embedding(
        "has the folded and centred weights that TransformerLens's HookedTransformer makes by "
        "default",
        **FOLDED,
    ),
    wrong(
        "attn.0.qkv: yours lacks the bias, everywhere",
        linear=lambda x, weight, bias, name: x @ weight,
    ),
    wrong(
        "attn.0.qkv: yours lacks the bias, in every layer",
        linear=in_linear("c_attn", lambda x, w, b: x @ w),
    ),
    wrong(
        "mlp.0.pre: yours lacks the bias, in every layer",
        linear=in_linear("c_fc", lambda x, w, b: x @ w),
    ),
    wrong(
        "attn.0.out: yours has its weight transposed, in every layer",
        linear=in_linear("attn.c_proj", lambda x, w, b: x @ w.T + b),
    ),
    wrong(
        "mlp.0.pre: yours has its weight transposed, in every layer",
        linear=in_linear("c_fc", lambda x, w, b: x @ np.reshape(w, w.shape[::-1]).T + b),
    ),
    wrong(
        "attn.0.qkv: yours has weights rounded to bfloat16, in every layer",
        linear=in_linear("c_attn", lambda x, w, b: x @ bfloat16(w) + b),
    ),
    wrong(
        "mlp.0.out: yours has weights rounded to float16, in every layer",
        linear=in_linear("mlp.c_proj", lambda x, w, b: x @ float16(w) + b),
    ),
    *[
        wrong(
            f"attn.0.qkv: yours computes {', '.join(order)} with c_attn, not q, k, v, "
            "in every layer",
            linear=computed_in(order),
        )
        for order in ("qvk", "kqv", "kvq", "vqk", "vkq")
    ],
    wrong(
        "attn.0.q: yours lacks the bias of the queries, in every layer", split=without_bias_of("q")
    ),
    wrong("attn.0.k: yours lacks the bias of the keys, in every layer", split=without_bias_of("k")),
    wrong(
        "attn.0.v: yours lacks the bias of the values, in every layer", split=without_bias_of("v")
    ),
    wrong("attn.0.k: yours takes q, v, k for q, k, v, everywhere", split=taken_in("qvk")),
    wrong("attn.0.q: yours takes k, q, v for q, k, v, everywhere", split=taken_in("kqv")),
    wrong("attn.0.q: yours takes k, v, q for q, k, v, everywhere", split=taken_in("kvq")),
    wrong("attn.0.q: yours takes v, q, k for q, k, v, everywhere", split=taken_in("vqk")),
    wrong("attn.0.q: yours takes v, k, q for q, k, v, everywhere", split=taken_in("vkq")),
    wrong(
        "attn.0.q: yours takes q, k and v of one head after the other from qkv, everywhere",
        split=one_head_after_the_other,
    ),
    wrong(
        "attn.0.q: yours interleaves the heads, everywhere",
        # Head 0 gets the columns 0, H, 2 H, ...; head 1 gets the columns 1, H + 1, ...
        to_heads=lambda part, H: np.stack([part[:, head::H] for head in range(H)]),
    ),
    wrong(
        "attn.0.q: yours reshapes to heads without a transpose, everywhere",
        to_heads=lambda part, H: part.reshape(H, len(part), -1),
    ),
    wrong(
        "attn.0.heads: yours attends between the heads of each token, not between tokens, in every "
        "layer",
        attend=attention_between_heads,
    ),
    wrong(
        "attn.0.q: yours reshapes to heads and back without a transpose, everywhere",
        to_heads=lambda part, H: part.reshape(H, len(part), -1),
        join=lambda heads: heads.reshape(heads.shape[1], -1),
    ),
    wrong(
        "attn.0.out: yours joins the heads without a transpose, in every layer",
        join=lambda heads: heads.reshape(heads.shape[1], -1),
    ),
    scores(
        "1 / sqrt(n_embd)",
        lambda q, k, layer, H: q @ k.transpose(0, 2, 1) / np.sqrt(H * q.shape[-1]),
    ),
    scores(
        "1 / sqrt(n_embd / n_head)",
        lambda q, k, layer, H: q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1]),
        config={"scale_attn_weights": False},
    ),
    scores("1, not at all", unscaled),
    scores(
        "n_head / n_embd, without the square root",
        lambda q, k, layer, H: q @ k.transpose(0, 2, 1) / q.shape[-1],
    ),
    wrong(
        "attn.1.scores: yours divides the scores by the layer's number, from 1, in every layer",
        scores=lambda q, k, layer, H: q @ k.transpose(0, 2, 1) / np.sqrt(q.shape[-1]) / (layer + 1),
    ),
    pattern("has no causal mask", softmax),
    pattern(f"{OFF_BY_ONE} sees the next one", lambda s: hidden(s, is_later(s, by=2))),
    wrong(
        # The first of 9 tokens has no key: its 9 numbers in each of 3 heads, in 2 texts.
        "attn.0.pattern: yours is nan in 54 of 486 places",
        f"attn.0.pattern: yours {OFF_BY_ONE} does not see itself, in every layer",
        pattern=lambda s: hidden(s, is_later(s, by=0)),
    ),
    pattern(
        "has a mask of -1e9 that is off by one: a token does not see itself",
        lambda s: hidden(s, is_later(s, by=0), fill=-1e9),
    ),
    pattern("puts 0 in place of -inf under the mask", lambda s: hidden(s, is_later(s), fill=0)),
    pattern("hides the past, not the future", lambda s: hidden(s, is_later(s).T)),
    pattern("applies the mask after the softmax", lambda s: np.where(is_later(s), 0, softmax(s))),
    pattern(
        "applies the softmax over the queries",
        lambda s: softmax(np.where(is_later(s), -np.inf, s), axis=-2),
    ),
    wrong(
        "resid_mid.0: yours lacks the residual connection, in every layer",
        after_attention=lambda resid, normed, out, ln: out,
    ),
    wrong(
        "resid_post.0: yours lacks the residual connection, in every layer",
        after_mlp=lambda resid, normed, out, ln: out,
    ),
    wrong(
        "resid_mid.0: yours adds to the layer norm's output, not to its input, in every layer",
        after_attention=lambda resid, normed, out, ln: normed + out,
    ),
    wrong(
        "resid_post.0: yours adds to the layer norm's output, not to its input, in every layer",
        after_mlp=lambda resid, normed, out, ln: normed + out,
    ),
    embedding("has no position embedding", embed=lambda tokens, positions: tokens),
    embedding(
        "multiplies the token embedding by sqrt(n_embd)",
        embed=lambda tokens, positions: tokens * math.sqrt(tokens.shape[-1]) + positions,
    ),
    embedding("counts positions from 1", positions=positions(lambda t: t + 1)),
    # NumPy takes index -1 for the last row of wpe.
    embedding("counts positions from -1", positions=positions(lambda t: t - 1)),
    embedding("counts positions 0, 0, 1, 2, ...", positions=positions(lambda t: np.fmax(t - 1, 0))),
    embedding("gives every token position 0", positions=positions(np.zeros_like)),
    embedding("adds 1 to the ids", tokens=lambda ids: (ids + 1) % 211),  # the last one becomes 0
    embedding("subtracts 1 from the ids", tokens=lambda ids: ids - 1),
    # No token is before the first one. In its place: the last one, itself, token 0, the last token
    # of the vocabulary, or the smallest of those that end a text.
    embedding(BEFORE, tokens=lambda ids: np.roll(ids, 1)),
    embedding(BEFORE, tokens=lambda ids: np.r_[ids[0], ids[:-1]]),
    embedding(BEFORE, tokens=lambda ids: np.r_[0, ids[:-1]]),
    embedding(BEFORE, tokens=lambda ids: np.r_[210, ids[:-1]]),
    embedding(BEFORE, tokens=lambda ids: np.r_[7, ids[:-1]], config={"eos_token_id": (9, 7, 999)}),
    embedding(AFTER, tokens=lambda ids: np.roll(ids, -1)),
    embedding(AFTER, tokens=lambda ids: np.r_[ids[1:], ids[-1]]),
    embedding(AFTER, tokens=lambda ids: np.r_[ids[1:], 0]),
    embedding(AFTER, tokens=lambda ids: np.r_[ids[1:], 210]),
    wrong(
        "logits: yours is the tied head, wte",
        logits=lambda final, p: final @ p["wte.weight"].T,
        config={"tied": False},
    ),
    wrong(
        "logits: yours is softmax(logits)",
        logits=lambda final, p: softmax(final @ p["wte.weight"].T),
    ),
    wrong(
        "logits: yours is log_softmax(logits)",
        # In float64, because a probability of less than 1e-45 is 0 in float32.
        logits=lambda final, p: np.log(softmax(np.float64(final @ p["wte.weight"].T))),
    ),
]

# What no known mistake explains, or not alone.
UNEXPLAINED = [
    wrong("logits: yours is 0 everywhere", logits=lambda final, p: 0 * final @ p["wte.weight"].T),
    wrong(f"mlp.0.post: {UNKNOWN}", gelu=lambda x, layer: 1.1 * exact_gelu(x) - 0.1 * gelu(x)),
    wrong(f"mlp.0.pre: {UNKNOWN}", linear=in_linear("c_fc", lambda x, w, b: x @ w[:, ::-1] + b)),
    wrong(
        "mlp.1.pre: yours is nan in 2 of 1800 places",  # [B, T, F] is [2, 9, 100]
        f"mlp.1.pre: {UNKNOWN}",
        linear=nan_in_layer_1,
    ),
]


def named(sentence):
    """The wrong GPT-2 in whose diagnosis the sentence is, and whose model is a GPT-2."""
    [wrong_gpt2] = [
        case for case in WRONG_GPT2S if sentence in case.diagnosis[-1] and not case.config
    ]
    return wrong_gpt2


# Two mistakes at once

# A part of the sentence on each of the 25 likeliest mistakes. None of them has a config.
LIKELIEST = [
    ": yours is the exact gelu (erf), in every layer",
    "is relu",
    "is quick_gelu",
    "is silu",
    "with epsilon 1e-06",
    "with no epsilon",
    "with epsilon outside the root",
    "with the unbiased variance",
    "that does not subtract the mean",
    "a layer norm without its bias",
    "final: yours has no layer norm",
    "attn.0.qkv: yours lacks the bias, everywhere",
    "attn.0.qkv: yours lacks the bias, in every layer",
    "attn.0.out: yours has its weight transposed",
    "takes k, q, v for q, k, v",
    "takes q, k and v of one head after the other",
    "interleaves the heads",
    "joins the heads without a transpose",
    "by 1 / sqrt(n_embd),",
    "by 1, not at all",
    "has no causal mask",
    "a token sees the next one",
    "resid_post.0: yours lacks the residual connection",
    "has no position embedding",
    "counts positions from 1",
]


def steps_of_both(first, second):
    """The steps of a GPT-2 with two mistakes, or None if it cannot have both.

    It has one formula for each step. But linear layers are several, so that two mistakes in
    different ones are possible.
    """
    common = first.steps.keys() & second.steps.keys()
    if not common:
        return first.steps | second.steps
    is_everywhere = EVERYWHERE in first.diagnosis[-1] + second.diagnosis[-1]
    if common != {"linear"} or is_everywhere:
        return None

    def linear(x, weight, bias, name):
        out = first.steps["linear"](x, weight, bias, name)
        is_right = np.array_equal(out, x @ weight + bias)
        if is_right:  # the first mistake is in another linear layer
            return second.steps["linear"](x, weight, bias, name)
        return out

    return first.steps | second.steps | {"linear": linear}
