"""The well-known mistakes in a GPT-2, each as what it makes of an activation.

`compare` computes with each of them and looks which one gives the other model's numbers.
"""

import math
from collections.abc import Callable, Iterable
from functools import partial
from itertools import permutations
from operator import itemgetter, methodcaller
from typing import Any

import numpy as np

from .activations import ACTIVATIONS
from .config import Config
from .model import GPT2, Array, attention_scale, merge_heads, split_heads
from .ops import log_softmax, softmax
from .run import Tape

# activation -> the weights and the activation that it is computed from
NORMS = {
    "attn.N.in": ("ln_1", "resid_pre.N"),
    "mlp.N.in": ("ln_2", "resid_mid.N"),
    "final": ("ln_f", "resid_post.N"),
}
LINEAR = {
    "attn.N.qkv": ("attn.c_attn", "attn.N.in"),
    "attn.N.out": ("attn.c_proj", "attn.N.heads"),
    "mlp.N.pre": ("mlp.c_fc", "mlp.N.in"),
    "mlp.N.out": ("mlp.c_proj", "mlp.N.post"),
}
RESIDUAL = {"resid_mid.N": ("attn.N.in", "attn.N.out"), "resid_post.N": ("mlp.N.in", "mlp.N.out")}
QKV, SCORES, PATTERN, HEADS = "attn.N.qkv", "attn.N.scores", "attn.N.pattern", "attn.N.heads"
SPLIT = ("attn.N.q", "attn.N.k", "attn.N.v")
ALL = (
    "embed",
    "resid_pre.N",
    *NORMS,
    *LINEAR,
    *RESIDUAL,
    *SPLIT,
    SCORES,
    PATTERN,
    HEADS,
    "mlp.N.post",
    "logits",
)

FUNCTIONS = ("gelu", "gelu_new", "relu", "quick_gelu", "silu", "tanh")
# These fit the other model's numbers as they are, so any other explanation is better.
FITTED = ("is rounded to", "has another output matrix")

Split = Callable[[Array, int], Array]  # [B, T, 3 D], H -> [3, B, H, T, K]
Mistake = tuple[str, dict[str, Callable[["At"], Any]]]  # what "yours ..." does; activation -> its value then


class At:
    """One place in a forward pass: what was computed before it, and wrong ways to go on."""

    def __init__(self, model: GPT2, ids: Array, tape: Tape, name: str, right: Array, theirs: Array | None):
        self.config, self.parameters, self.ids, self.tape = model.config, model.parameters, ids, tape
        self.layer = next((int(step) for step in name.split(".") if step.isdigit()), model.config.n_layer - 1)
        self.right, self.theirs = right, theirs  # the activation without a mistake, and the other model's

    def __getitem__(self, name: str) -> Array:
        """ "attn.N.qkv" of this layer; "resid_pre.N+attn.N.out" is a sum."""
        names = ["embed"] if self.layer < 0 else name.replace(".N", f".{self.layer}").split("+")
        return sum(self.tape[one] for one in names)  # type: ignore[return-value]

    def weights(self, path: str) -> list[Array]:
        prefix = path if path == "ln_f" else f"h.{self.layer}.{path}"
        return [self.parameters[f"{prefix}.{name}"] for name in ("weight", "bias")]

    def embed(
        self, _: str, first: int = 0, tokens: float = 1, positions: int = 1, cast: Any = np.asarray
    ) -> Array:
        rows = np.minimum(np.arange(self.ids.shape[1]) + first, self.config.n_ctx - 1)
        wte, wpe = (cast(self.parameters[name]) for name in ("wte.weight", "wpe.weight"))
        return wte[self.ids] * tokens + wpe[rows] * positions

    def norm(
        self, name: str, x: str = "", ln: str = "", eps: float | None = None, ddof: int = 0, without: str = ""
    ) -> Array:
        """Layer norm of another input, with other weights or epsilon, without a part of it."""
        resid = self[x or NORMS[name][1]]
        weight, bias = self.weights(ln or NORMS[name][0])
        out = resid if "mean" in without else resid - np.mean(resid, axis=-1, keepdims=True)
        variance = (out * out).sum(axis=-1, keepdims=True) / max(1, out.shape[-1] - ddof)
        out = out / np.sqrt(variance + (self.config.layer_norm_epsilon if eps is None else eps))
        out = out if "weight" in without else out * weight
        return out if "bias" in without else out + bias

    def linear(self, name: str, cast: Any = np.asarray, bias: int = 1, join: Any = merge_heads) -> Array:
        path, source = LINEAR[name]
        weight, shift = self.weights(path)
        return (join(self[source]) if source == HEADS else self[source]) @ cast(weight) + bias * shift

    def split(self, name: str, split: Split) -> Array:
        """q, k or v; or a qkv that split_heads reads as `split` reads the right one."""
        if name == QKV:
            return split(self.right, self.config.n_head).transpose(1, 3, 0, 2, 4).reshape(self.right.shape)
        return split(self[QKV], self.config.n_head)[SPLIT.index(name)]

    def scores(self, _: str, scale: float) -> Array:
        return self[SPLIT[0]] * scale @ self[SPLIT[1]].swapaxes(-1, -2)

    def pattern(self, _: str, mask: Callable[[Array], Array]) -> Array:
        return softmax(mask(self[SCORES]))

    def apply(self, name: str, function: Callable[[Array], Array]) -> Array:
        """Another activation function; or a function of what is right."""
        return function(self["mlp.N.pre"] if name == "mlp.N.post" else self.right)

    def unembed(self, head: str, cast: Any = np.asarray) -> Array:
        return self["final"] @ cast(self.parameters[head]).T

    def rounded(self, _: str, kind: str) -> Array:
        """Theirs, if all of it are numbers of that kind and near ours."""
        if self.theirs is None or not np.array_equal(self.theirs, round_to(kind, self.theirs)):
            return self.right
        allowed = np.abs(self.right).max() * (2**-6 if kind == "bfloat16" else 2**-9)
        return self.theirs if np.abs(self.theirs - self.right).max() <= allowed else self.right

    def own_head(self, _: str) -> Array:
        """What an output matrix makes of `final` nearest to their logits, given rows enough to tell."""
        rows = self["final"].reshape(-1, self.config.n_embd)
        if self.theirs is None or len(np.unique(rows, axis=0)) < 2 * self.config.n_embd:
            return self.right
        basis = np.linalg.qr(rows)[0]
        return (basis @ (basis.T @ self.theirs.reshape(len(rows), -1))).reshape(self.right.shape)


def round_to(kind: str, x: Array) -> Array:
    """x rounded to float16 or bfloat16, in x's dtype."""
    if kind == "float16":
        return x.astype(np.float16).astype(x.dtype)
    bits: Array = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000  # to the nearest, ties to even
    return bits.astype(np.uint32).view(np.float32).astype(x.dtype)


def hide(fill: float, k: int, scores: Array) -> Array:
    """Scores with `fill` where a token would see the k-th after it, or a later one."""
    return np.where(np.triu(np.ones(scores.shape[-2:], bool), k), fill, scores).astype(scores.dtype)


def unjoined(heads: Array) -> Array:  # [B, H, T, K] -> [B, T, D]
    """merge_heads without its transpose."""
    B, H, T, K = heads.shape
    return heads.reshape(B, T, H * K)


def split_unjoined(x: Array, H: int) -> Array:
    """split_heads without its transpose."""
    return np.stack([part.reshape(len(x), H, x.shape[1], -1) for part in np.split(x, 3, axis=-1)])


def each(names: Iterable[str], method: str, **change: Any) -> dict[str, Callable[[At], Any]]:
    """One change of all these activations."""
    return {name: methodcaller(method, name, **change) for name in names}


def known_mistakes(c: Config) -> list[Mistake]:
    """All of them, for a model of this configuration."""
    D, K = c.n_embd, c.head_width
    own, scale = ACTIVATIONS[c.activation_function].forward, attention_scale(c, 0)
    functions = {name: f for name in FUNCTIONS if (f := ACTIVATIONS[name].forward) is not own}
    epsilons = [eps for eps in (1e-5, 1e-6, 1e-8, 1e-12, 1e-3) if eps != c.layer_norm_epsilon]
    scales = {"1 / sqrt(n_embd)": 1 / math.sqrt(D), "1 / sqrt(n_embd / n_head)": 1 / math.sqrt(K)}
    scales |= {"1, not at all": 1.0, "n_head / n_embd, without the square root": 1 / K}
    masks = {
        "has no causal mask": lambda x: x,
        "has a mask that is off by one: a token sees the next one": partial(hide, -np.inf, 2),
        "has a mask that is off by one: a token does not see itself": partial(hide, -np.inf, 0),
        "has a mask of -1e9 that is off by one: a token does not see itself": partial(hide, -1e9, 0),
        "puts 0 in place of -inf under the mask": partial(hide, 0.0, 1),
        "hides the past, not the future": lambda x: hide(-np.inf, 1, x.swapaxes(-1, -2)).swapaxes(-1, -2),
    }
    splits: list[tuple[str, Split]] = [
        *((f"takes {', '.join(order)} for q, k, v",
           lambda x, H, order=order: split_heads(x, H)[["qkv".index(part) for part in order]])
          for order in list(permutations("qkv"))[1:]),
        ("takes q, k and v of one head after the other from qkv",
         lambda x, H: x.reshape(*x.shape[:2], H, 3, -1).transpose(3, 0, 2, 1, 4)),
        ("interleaves the heads", lambda x, H: x.reshape(*x.shape[:2], 3, -1, H).transpose(2, 0, 4, 1, 3)),
        ("reshapes to heads without a transpose", split_unjoined),
    ]  # fmt: skip
    head = "wte.weight" if c.tied else "lm_head.weight"
    halves = ("bfloat16", "float16")
    return [
        *((f"is {name}", each(["mlp.N.post"], "apply", function=f)) for name, f in functions.items()),
        ("has no activation function", {"mlp.N.post": itemgetter("mlp.N.pre")}),
        *((f"has a layer norm with epsilon {eps:g}", each(NORMS, "norm", eps=eps)) for eps in epsilons),
        ("has a layer norm with the unbiased variance", each(NORMS, "norm", ddof=1)),
        ("has a layer norm without its weight", each(NORMS, "norm", without="weight")),
        ("has a layer norm without its bias", each(NORMS, "norm", without="bias")),
        ("has a layer norm without weight and bias", each(NORMS, "norm", without="weight bias")),
        ("has a layer norm that does not subtract the mean", each(NORMS, "norm", without="mean")),
        ("has no layer norm", {name: itemgetter(source) for name, (_, source) in NORMS.items()}),
        ("has ln_1 and ln_2 swapped",
         each(["attn.N.in"], "norm", ln="ln_2") | each(["mlp.N.in"], "norm", ln="ln_1")),
        ("is post-norm: it normalises after the residual connection", {
            "attn.N.in": itemgetter("resid_pre.N"),
            "resid_mid.N": methodcaller("norm", "attn.N.in", x="resid_pre.N+attn.N.out"),
            "mlp.N.in": itemgetter("resid_mid.N"),
            "resid_post.N": methodcaller("norm", "mlp.N.in", x="resid_mid.N+mlp.N.out"),
        }),
        ("gives the MLP the input of attention, in parallel", each(["mlp.N.in"], "norm", x="resid_pre.N")),
        ("lacks the bias", each(LINEAR, "linear", bias=0)),
        ("has its weight transposed", each(LINEAR, "linear", cast=lambda w: w.reshape(w.shape[::-1]).T)),
        *((f"scales the scores by {name}", each([SCORES], "scores", scale=x))
          for name, x in scales.items() if x != scale or c.scale_attn_by_inverse_layer_idx),
        ("divides the scores by the layer's number, from 1", {
            SCORES: lambda at: at.scores(SCORES, attention_scale(c, at.layer) / (at.layer + 1))}),
        *((says, each([PATTERN], "pattern", mask=mask)) for says, mask in masks.items()),
        ("applies the mask after the softmax", {PATTERN: lambda at: np.tril(softmax(at[SCORES]))}),
        ("applies the softmax over the queries",
         {PATTERN: lambda at: softmax(hide(-np.inf, 1, at[SCORES]).swapaxes(-1, -2)).swapaxes(-1, -2)}),
        *((says, each(names, "split", split=split)) for names in (SPLIT, [QKV]) for says, split in splits),
        *((f"rounds keys and values to {kind}",
           each(SPLIT[1:], "apply", function=partial(round_to, kind))) for kind in halves),
        ("joins the heads without a transpose", {
            HEADS: lambda at: unjoined(at.right).reshape(at.right.swapaxes(1, 2).shape).swapaxes(1, 2)}),
        ("joins the heads without a transpose", each(["attn.N.out"], "linear", join=unjoined)),
        ("lacks the residual connection", {name: itemgetter(out) for name, (_, out) in RESIDUAL.items()}),
        ("adds to the layer norm's output, not to its input",
         {name: itemgetter(f"{x}+{out}") for name, (x, out) in RESIDUAL.items()}),
        ("has no position embedding", each(["embed"], "embed", positions=0)),
        ("counts positions from 1", each(["embed"], "embed", first=1)),
        ("multiplies the token embedding by sqrt(n_embd)", each(["embed"], "embed", tokens=math.sqrt(D))),
        ("is the tied head, wte", {} if c.tied else {"logits": methodcaller("unembed", "wte.weight")}),
        ("is softmax(logits)", each(["logits"], "apply", function=softmax)),
        ("is log_softmax(logits)", each(["logits"], "apply", function=log_softmax)),
        (f"has another output matrix than the {c.head} head's", each(["logits"], "own_head")),
        *((f"is rounded to {kind}", each(ALL, "rounded", kind=kind)) for kind in halves),
        *((f"has weights rounded to {kind}", each(LINEAR, "linear", cast=partial(round_to, kind))
           | each(["embed"], "embed", cast=partial(round_to, kind))
           | {"logits": methodcaller("unembed", head, cast=partial(round_to, kind))}) for kind in halves),
    ]  # fmt: skip
