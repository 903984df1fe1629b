"""The well-known mistakes in a GPT-2, each as a change in the text of GPT-2's formulas.

For example, "is relu" changes the formula of mlp.N.post from gelu_new(mlp.N.pre) to relu(mlp.N.pre).
`compare` computes with each mistake and looks which one gives the other model's numbers.
"""

import re
from collections import ChainMap
from functools import lru_cache
from itertools import permutations
from types import CodeType
from typing import Any

import numpy as np

from ..activations import ACTIVATIONS
from ..config import Config
from ..model import GPT2, Array, merge_heads
from ..ops import layer_norm, log_softmax, softmax
from ..run import Tape

# How each activation is computed. Names with dots are those of the tape and of the parameters; N is the
# layer's number. ACT, EPS, SCALE and HEAD depend on the model's configuration. resid_pre.N is given: it is
# the embedding, or resid_post of the layer before.
FORMULAS = """
embed           wte.weight[ids] + rows(wpe.weight, positions)
resid_pre.N     resid_pre.N
attn.N.in       centred(resid_pre.N) / (var(resid_pre.N) + EPS)**0.5 * h.N.ln_1.weight + h.N.ln_1.bias
attn.N.qkv      attn.N.in @ h.N.attn.c_attn.weight + h.N.attn.c_attn.bias
attn.N.q        split(attn.N.qkv, H, "3HK", "qkv")[0]
attn.N.k        split(attn.N.qkv, H, "3HK", "qkv")[1]
attn.N.v        split(attn.N.qkv, H, "3HK", "qkv")[2]
attn.N.scores   attn.N.q @ swap(attn.N.k) * SCALE
attn.N.pattern  softmax(hide(attn.N.scores, 1, -inf))
attn.N.heads    attn.N.pattern @ attn.N.v
attn.N.out      merge_heads(attn.N.heads) @ h.N.attn.c_proj.weight + h.N.attn.c_proj.bias
resid_mid.N     resid_pre.N + attn.N.out
mlp.N.in        centred(resid_mid.N) / (var(resid_mid.N) + EPS)**0.5 * h.N.ln_2.weight + h.N.ln_2.bias
mlp.N.pre       mlp.N.in @ h.N.mlp.c_fc.weight + h.N.mlp.c_fc.bias
mlp.N.post      ACT(mlp.N.pre)
mlp.N.out       mlp.N.post @ h.N.mlp.c_proj.weight + h.N.mlp.c_proj.bias
resid_post.N    resid_mid.N + mlp.N.out
final           centred(resid_post.N) / (var(resid_post.N) + EPS)**0.5 * ln_f.weight + ln_f.bias
logits          final @ swap(HEAD)
"""
NAMES = re.compile(r"\b(?:(?:h\.N|attn|mlp|resid_\w+|ln_f|wte|wpe|lm_head)\.[\w.]+|final)\b")

FUNCTIONS = {"gelu": "the exact gelu (erf)", "gelu_new": "gelu_new, the approximation with tanh"}
FUNCTIONS |= {name: name for name in ("relu", "quick_gelu", "silu", "tanh")}
EPSILONS = (1e-5, 1e-6, 1e-8, 1e-12, 1e-3)
SCALES = {
    "1 / sqrt(n_embd)": "D**-0.5",
    "1 / sqrt(n_embd / n_head)": "K**-0.5",
    "1, not at all": "1.0",
    "n_head / n_embd, without the square root": "1 / K",
}
SPLITS = {
    **{f"takes {', '.join(order)} for q, k, v": f'split(\\1, H, "3HK", "{"".join(order)}")'
       for order in list(permutations("qkv"))[1:]},
    "takes q, k and v of one head after the other from qkv": r'split(\1, H, "H3K", "qkv")',
    "interleaves the heads": r'split(\1, H, "3KH", "qkv")',
    "reshapes to heads without a transpose": r'unsplit(split(\1, H, "3HK", "qkv"))',
}  # fmt: skip
HALVES = ("bfloat16", "float16")
# These fit the other model's numbers as they are, so any other explanation is better.
FITTED = ("is rounded to", "has another output matrix")

# Each mistake: the end of the sentence "yours ...", and its changes to the formulas, regular expression ->
# replacement.
MISTAKES: list[tuple[str, dict[str, str]]] = [
    *((f"is {says}", {"ACT": name}) for name, says in FUNCTIONS.items()),
    ("has no activation function", {"ACT": ""}),
    *((f"has a layer norm with epsilon {eps:g}", {"EPS": repr(eps)}) for eps in EPSILONS),
    ("has a layer norm with the unbiased variance", {r"\bvar": "unbiased_var"}),
    ("has a layer norm without its weight", {r" \* \S*ln_.\.weight": ""}),
    ("has a layer norm without its bias", {r" \+ \S*ln_.\.bias": ""}),
    ("has a layer norm without weight and bias", {r" \* \S*ln_.*": ""}),
    ("has a layer norm that does not subtract the mean", {r"centred(.*)var": r"\1mean_square"}),
    ("has no layer norm", {r"centred\((.*?)\).*": r"\1"}),
    ("has ln_1 and ln_2 swapped", {r"ln_1": "ln_0", r"ln_2": "ln_1", r"ln_0": "ln_2"}),
    ("is post-norm: it normalises after the residual connection", {
        r"centred\((resid_(pre|mid).N)\).*": r"\1",
        r"resid_pre.N \+ .*": r"layer_norm(\g<0>, h.N.ln_1.weight, h.N.ln_1.bias, EPS)",
        r"resid_mid.N \+ .*": r"layer_norm(\g<0>, h.N.ln_2.weight, h.N.ln_2.bias, EPS)",
    }),
    ("gives the MLP the input of attention, in parallel", {r"resid_mid(?=.*ln_2)": "resid_pre"}),
    ("lacks the bias", {r" \+ \S*c_\w+\.bias": ""}),
    ("has its weight transposed", {r"[\w.]*c_\w+\.weight": r"turned(\g<0>)"}),
    *((f"scales the scores by {says}", {"SCALE": scale}) for says, scale in SCALES.items()),
    ("divides the scores by the layer's number, from 1", {"SCALE": "SCALE / (layer + 1)"}),
    ("has no causal mask", {r"hide\((.*?),.*?\)": r"\1"}),
    ("has a mask that is off by one: a token sees the next one", {"1, -inf": "2, -inf"}),
    ("has a mask that is off by one: a token does not see itself", {"1, -inf": "0, -inf"}),
    ("has a mask of -1e9 that is off by one: a token does not see itself", {"1, -inf": "0, -1e9"}),
    ("puts 0 in place of -inf under the mask", {"-inf": "0.0"}),
    ("hides the past, not the future", {r"hide\((.*?)(,.*?)\)": r"swap(hide(swap(\1)\2))"}),
    ("applies the mask after the softmax", {r"softmax\(hide\((.*?),.*": r"tril(softmax(\1))"}),
    ("applies the softmax over the queries", {r"softmax\((hide.*)\)": r"swap(softmax(swap(\1)))"}),
    *((says, {r'split\((.*?), H, "3HK", "qkv"\)': split}) for says, split in SPLITS.items()),
    *((says, {r"(.*c_attn.*)": f"join({split})"}) for says, split in SPLITS.items()),
    *((f"rounds keys and values to {half}", {r"split.*\[[12]\]": rf"{half}(\g<0>)"}) for half in HALVES),
    ("joins the heads without a transpose", {r"attn.N.pattern @ .*": r"rejoined(\g<0>)"}),
    ("joins the heads without a transpose", {r"merge_heads\((.*?)\)": r"merge_heads(rejoined(\1))"}),
    ("lacks the residual connection", {r"resid_...\.N \+ ": ""}),
    ("adds to the layer norm's output, not to its input", {r"resid_...\.N \+ (\w+)": r"\1.N.in + \1"}),
    ("has no position embedding", {r" \+ rows.*": ""}),
    ("counts positions from 1", {"positions": "positions + 1"}),
    ("multiplies the token embedding by sqrt(n_embd)", {r"wte.weight\[ids\]": r"\g<0> * D**0.5"}),
    ("is the tied head, wte", {"HEAD": "wte.weight"}),
    ("is softmax(logits)", {r"final @ .*": r"softmax(\g<0>)"}),
    ("is log_softmax(logits)", {r"final @ .*": r"log_softmax(\g<0>)"}),
    ("has another output matrix than the {} head's", {r"final @ .*": r"fitted(final, \g<0>, theirs)"}),
    *((f"is rounded to {half}", {"(.+)": rf"rounded(\1, theirs, {half})"}) for half in HALVES),
    *((f"has weights rounded to {half}", {r"[\w.]*(c_\w+|wte|wpe)\.weight|HEAD": rf"{half}(\g<0>)"})
      for half in HALVES),
]  # fmt: skip


def known_mistakes(config: Config) -> list[tuple[str, dict[str, str]]]:
    """For a model of this configuration, the end of the sentence "yours ..." and the wrong formulas."""
    right = formulas_of(config, {})
    mistakes = []
    for says, changes in MISTAKES:
        wrong = {name: f for name, f in formulas_of(config, changes).items() if f != right[name]}
        if wrong:
            mistakes.append((says.format(config.head), wrong))
    return mistakes


def formulas_of(config: Config, changes: dict[str, str]) -> dict[str, str]:
    """The formula of each activation, for a model of this configuration, with changes."""
    own = ACTIVATIONS[config.activation_function]
    scale = "K**-0.5" if config.scale_attn_weights else "1.0"
    settings = {
        "ACT": next(name for name, function in ACTIVATIONS.items() if function is own),
        "EPS": repr(config.layer_norm_epsilon),
        "SCALE": scale + (" / (layer + 1)" if config.scale_attn_by_inverse_layer_idx else ""),
        "HEAD": "wte.weight" if config.tied else "lm_head.weight",
    }
    formulas = dict(line.split(maxsplit=1) for line in FORMULAS.strip().splitlines())
    for pattern, replacement in (*changes.items(), *settings.items()):
        formulas = {name: re.sub(pattern, replacement, formula) for name, formula in formulas.items()}
    return formulas


def evaluate(formula: str, name: str, model: GPT2, ids: Array, tape: Tape, theirs: Array | None) -> Array:
    """The activation `name` by a formula, from those on the tape. theirs: the other model's, if given."""
    config = model.config
    layer = next((int(step) for step in name.split(".") if step.isdigit()), config.n_layer - 1)
    values = ChainMap(tape, model.parameters, {"resid_post.-1": tape["embed"]})
    names = {"values": values, "ids": ids, "positions": np.arange(ids.shape[1]), "theirs": theirs}
    names |= {"layer": layer, "D": config.n_embd, "H": config.n_head, "K": config.head_width}
    return eval(compiled(formula, layer), FORMULA_FUNCTIONS, names)


@lru_cache(maxsize=4096)
def compiled(formula: str, layer: int) -> CodeType:
    """The code of a formula, which is text of this file, for one layer."""
    text = NAMES.sub(lambda match: f"values[{match[0].replace('.N', f'.{layer}')!r}]", formula)
    return compile(text, formula, "eval")


def hide(scores: Array, k: int, fill: float) -> Array:
    """Scores with `fill` where a token would see the k-th after it, or a later one."""
    return np.where(np.triu(np.ones(scores.shape[-2:], bool), k), fill, scores).astype(scores.dtype)


def split(qkv: Array, H: int, axes: str, order: str) -> Array:  # [B, T, 3 D] -> [3, B, H, T, K]
    """q, k and v of a qkv that has them in this order; `axes` are those of its last axis, "3HK" in GPT-2."""
    three, head, width = (2 + axes.index(axis) for axis in "3HK")
    sizes = ({"3": 3, "H": H, "K": -1}[axis] for axis in axes)
    parts = qkv.reshape(*qkv.shape[:2], *sizes).transpose(three, 0, head, 1, width)
    return parts[["qkv".index(part) for part in order]]


def bfloat16(x: Array) -> Array:
    """x rounded to bfloat16: to the nearest number, ties to even."""
    bits: Array = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32).astype(x.dtype)


def rounded(x: Array, theirs: Array | None, cast: Any) -> Array:
    """Theirs, if it has only numbers that `cast` does not change and is near x."""
    if theirs is None or not np.array_equal(theirs, cast(theirs)):
        return x
    allowed = np.abs(x).max() * (2**-6 if cast is bfloat16 else 2**-9)
    return theirs if np.abs(theirs - x).max() <= allowed else x


def fitted(final: Array, logits: Array, theirs: Array | None) -> Array:
    """The logits nearest to theirs that an output matrix can give, if there are enough tokens to tell."""
    rows = final.reshape(-1, final.shape[-1])
    if theirs is None or len(np.unique(rows, axis=0)) < 2 * rows.shape[1]:
        return logits
    basis = np.linalg.qr(rows)[0]
    return (basis @ (basis.T @ theirs.reshape(len(rows), -1))).reshape(logits.shape)


FORMULA_FUNCTIONS: dict[str, Any] = {
    **{name: activation.forward for name, activation in ACTIVATIONS.items()},
    **{f.__name__: f for f in (hide, split, merge_heads, softmax, log_softmax, layer_norm, np.tril)},
    **{f.__name__: f for f in (bfloat16, rounded, fitted)},
    "float16": lambda x: x.astype(np.float16).astype(x.dtype),
    "rows": lambda matrix, rows: matrix.take(rows, axis=0, mode="clip"),
    "swap": lambda x: x.swapaxes(-1, -2),
    "turned": lambda weight: weight.reshape(weight.shape[::-1]).T,
    "centred": lambda x: x - x.mean(axis=-1, keepdims=True),
    "var": lambda x: x.var(axis=-1, keepdims=True),
    "unbiased_var": lambda x: x.var(axis=-1, keepdims=True, ddof=min(1, x.shape[-1] - 1)),
    "mean_square": lambda x: (x * x).mean(axis=-1, keepdims=True),
    # [..., H, T, K] -> the same shape: heads that were split, or will be joined, without a transpose
    "unsplit": lambda heads: heads.swapaxes(-3, -2).reshape(heads.shape),
    "rejoined": lambda heads: heads.reshape(heads.swapaxes(-3, -2).shape).swapaxes(-3, -2),
    "join": lambda parts: np.concatenate([merge_heads(heads) for heads in parts], axis=-1),  # -> [B, T, 3 D]
    "inf": np.inf,
}
