"""The well-known mistakes in a GPT-2, as edits of our own forward pass.

MISTAKES has the end of the sentence "yours ..." and, for each kind of activation that the mistake changes, a
function that computes the wrong one. What is right is computed by model.py alone.
"""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np

from ..activations import ACTIVATIONS, gelu
from ..model import GPT2, Array, merge_heads, split_heads
from ..ops import gelu_new, layer_norm, linear, log_softmax, softmax
from ..run import Tape

# What a mistake's function gets: activations, `joined` [B, T, D] of all heads, parameters, fields of Config.
INPUTS = {
    "embed": "ids wte.weight wpe.weight eos_token_id",
    "attn.N.in": "resid_pre.N h.N.ln_1.weight h.N.ln_1.bias layer_norm_epsilon",
    "attn.N.qkv": "attn.N.in h.N.attn.c_attn.weight h.N.attn.c_attn.bias",
    **dict.fromkeys(("attn.N.q", "attn.N.k", "attn.N.v"), "attn.N.qkv h.N.attn.c_attn.bias n_head"),
    "attn.N.scores": "attn.N.q attn.N.k n_embd head_width layer",
    "attn.N.pattern": "attn.N.scores",
    "attn.N.out": "joined h.N.attn.c_proj.weight h.N.attn.c_proj.bias",
    "mlp.N.in": "resid_mid.N h.N.ln_2.weight h.N.ln_2.bias layer_norm_epsilon",
    "mlp.N.pre": "mlp.N.in h.N.mlp.c_fc.weight h.N.mlp.c_fc.bias",
    "mlp.N.post": "mlp.N.pre",
    "mlp.N.out": "mlp.N.post h.N.mlp.c_proj.weight h.N.mlp.c_proj.bias",
    "final": "resid_post.N ln_f.weight ln_f.bias layer_norm_epsilon",
}


@dataclass(frozen=True)
class Place:
    """An activation in a forward pass."""

    name: str
    x: Array  # the activation as model.py computes it
    model: GPT2
    ids: Array  # [B, T]
    tape: Tape  # the activations before it

    @property
    def layer(self) -> int:
        """The number of the activation's block; of the last block for final and logits."""
        return int(layer_of(self.name) or self.model.config.n_layer - 1)

    def __getitem__(self, name: str) -> Any:
        """ids, layer, a field of Config, or an activation or a parameter of this layer; see INPUTS."""
        name = name.replace(".N", f".{self.layer}")
        for values in (self.tape, self.model.parameters):
            if name in values:
                return values[name]
        if name == "joined":
            return merge_heads(self["attn.N.heads"])
        return getattr(self if name in ("ids", "layer") else self.model.config, name)

    def inputs(self) -> list[Any]:
        return [self[name] for name in INPUTS[kind_of(self.name)].split()]

    def norm(self, x: Array, ln: str) -> Array:
        """A layer norm of this block."""
        weight, bias = self[f"h.N.{ln}.weight"], self[f"h.N.{ln}.bias"]
        return layer_norm(x, weight, bias, self["layer_norm_epsilon"])


Edits = dict[str, Callable[[Place], Array]]  # of activations, or of kinds of them such as "attn.N.qkv"


def kind_of(name: str) -> str:
    """ "attn.3.qkv" -> "attn.N.qkv" """
    return ".".join("N" if step.isdigit() else step for step in name.split("."))


def layer_of(name: str) -> str:
    """ "attn.3.qkv" -> "3"; "" for an activation that is in no block"""
    return "".join(filter(str.isdigit, name))


def edits(kinds: Iterable[str], wrong: Callable[..., Any]) -> Edits:
    """Each activation of some kinds, computed by wrong(*what is in INPUTS)."""
    return dict.fromkeys(kinds, lambda at: wrong(*at.inputs()))


norms = partial(edits, ("attn.N.in", "mlp.N.in", "final"))
linears = partial(edits, ("attn.N.qkv", "attn.N.out", "mlp.N.pre", "mlp.N.out"))
activation, pattern = partial(edits, ["mlp.N.post"]), partial(edits, ["attn.N.pattern"])
scores = partial(edits, ["attn.N.scores"])
mean, variance = (partial(function, axis=-1, keepdims=True) for function in (np.mean, np.var))
swap = partial(np.swapaxes, axis1=-1, axis2=-2)


def heads(wrong: Callable[..., Any], parts: str = "qkv") -> Edits:
    """q, k and v, or some of them, as parts of wrong(qkv [B, T, 3 D], bias [3 D], H) [3, B, H, T, K]."""
    kinds = (f"attn.N.{part}" for part in parts)
    return dict.fromkeys(kinds, lambda at: wrong(*at.inputs())["qkv".index(at.name[-1])])


def embedding(wrong: Callable[..., Any]) -> Edits:
    """The embedding of wrong(ids, positions, eos). Of a matrix, row -1 is the last."""

    def edit(ids: Array, wte: Array, wpe: Array, eos: int | None) -> Array:
        ids, positions = wrong(ids, np.arange(ids.shape[1]), eos or 0)
        return wte[ids % len(wte)] + wpe[np.minimum(positions, len(wpe) - 1)]

    return edits(["embed"], edit)


def padded(ids: Array, eos: int, fill: str) -> Array:
    """ids with one more at both ends: the one at the other end, the same again, 0 or eos."""
    ends = {"wrap": (ids[:, -1:], ids[:, :1]), "edge": (ids[:, :1], ids[:, -1:])}
    first, last = ends.get(fill) or [np.full_like(ids[:, :1], eos if fill == "eos" else 0)] * 2
    return np.concatenate([first, ids, last], axis=1)


def hide(scores: Array, k: int = 1, fill: float = -np.inf) -> Array:
    """Scores with `fill` where a token would see the k-th after it, or a later one."""
    return np.where(np.triu(np.ones(scores.shape[-2:], bool), k), fill, scores).astype(scores.dtype)


def bfloat16(x: Array) -> Array:
    """x rounded to 8 binary digits, to even in a tie."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(mantissa * 256) / 256, exponent)


HALVES: dict[str, Callable[[Array], Array]] = {
    "bfloat16": bfloat16,
    "float16": lambda x: x.astype(np.float16).astype(x.dtype),
}
FUNCTIONS = {"gelu": "the exact gelu (erf)", "gelu_new": "gelu_new, the approximation with tanh"}
FUNCTIONS |= {name: name for name in ("relu", "quick_gelu", "silu", "tanh")}
EPSILONS = {f"epsilon {eps:g}": eps for eps in (1e-5, 1e-6, 1e-8, 1e-3)} | {"no epsilon, or one of 1e-12": 0}

MISTAKES: list[tuple[str, Edits]] = [
    *((f"is {says}", activation(ACTIVATIONS[name].forward)) for name, says in FUNCTIONS.items()),
    ("has no activation function", activation(lambda x: x)),
    ("applies gelu_new twice", activation(lambda x: gelu_new(gelu_new(x)))),
    ("applies the exact gelu twice", activation(lambda x: gelu(gelu(x)))),
    ("is gelu_new without the factor 0.5", activation(lambda x: 2 * gelu_new(x))),
    ("is gelu_new without the square root of 2 / pi",
     activation(lambda x: 0.5 * x * (1 + np.tanh(2 / math.pi * (x + 0.044715 * x * x * x))))),
    ("is gelu_new with 0.44715 for 0.044715",
     activation(lambda x: 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.44715 * x * x * x))))),
    *((f"has a layer norm with {says}", norms(lambda x, w, b, _, eps=eps: layer_norm(x, w, b, eps)))
      for says, eps in EPSILONS.items()),
    ("has a layer norm with epsilon outside the root",
     norms(lambda x, w, b, eps: (x - mean(x)) / (np.sqrt(variance(x)) + eps) * w + b)),
    ("has a layer norm that divides by the variance, not by its root",
     norms(lambda x, w, b, eps: (x - mean(x)) / (variance(x) + eps) * w + b)),
    ("has a layer norm with the unbiased variance",
     norms(lambda x, w, b, eps: (x - mean(x)) / np.sqrt(variance(x, ddof=1) + eps) * w + b)),
    ("has a layer norm over the tokens, not over each vector",
     norms(lambda x, w, b, eps: (x - mean(x, axis=-2)) / np.sqrt(variance(x, axis=-2) + eps) * w + b)),
    ("has a layer norm that does not subtract the mean",
     norms(lambda x, w, b, eps: x / np.sqrt(mean(x * x) + eps) * w + b)),
    ("has a layer norm without its weight", norms(lambda x, w, b, eps: layer_norm(x, w / w, b, eps))),
    ("has a layer norm without its bias", norms(lambda x, w, b, eps: layer_norm(x, w, 0 * b, eps))),
    ("has a layer norm without weight and bias",
     norms(lambda x, w, b, eps: layer_norm(x, w / w, 0 * b, eps))),
    ("has no layer norm", norms(lambda x, w, b, eps: x)),
    ("has ln_1 and ln_2 swapped", {
        "attn.N.in": lambda at: at.norm(at["resid_pre.N"], "ln_2"),
        "mlp.N.in": lambda at: at.norm(at["resid_mid.N"], "ln_1"),
    }),
    ("is post-norm: it normalises after the residual connection", {
        "attn.N.in": lambda at: at["resid_pre.N"],
        "resid_mid.N": lambda at: at.norm(at.x, "ln_1"),
        "mlp.N.in": lambda at: at["resid_mid.N"],
        "resid_post.N": lambda at: at.norm(at.x, "ln_2"),
    }),
    ("gives the MLP the input of attention, in parallel",
     {"mlp.N.in": lambda at: at.norm(at["resid_pre.N"], "ln_2")}),
    ("lacks the bias", linears(lambda x, w, b: x @ w)),
    ("has its weight transposed", linears(lambda x, w, b: x @ w.reshape(w.shape[::-1]).T + b)),
    *((f"has weights rounded to {name}", linears(lambda x, w, b, half=half: x @ half(w) + b))
      for name, half in HALVES.items()),
    *((f"rounds keys and values to {name}", heads(lambda x, b, H, half=half: half(split_heads(x, H)), "kv"))
      for name, half in HALVES.items()),
    *((f"lacks the bias of the {name}", heads(lambda x, b, H: split_heads(x - b, H), name[0]))
      for name in ("queries", "keys", "values")),
    *((f"takes {', '.join(order)} for q, k, v",
       heads(lambda x, b, H, order=order: split_heads(x, H)[["qkv".index(part) for part in order]]))
      for order in list(permutations("qkv"))[1:]),
    ("takes q, k and v of one head after the other from qkv",
     heads(lambda x, b, H: x.reshape(*x.shape[:2], H, 3, -1).transpose(3, 0, 2, 1, 4))),
    ("interleaves the heads",
     heads(lambda x, b, H: x.reshape(*x.shape[:2], 3, -1, H).transpose(2, 0, 4, 1, 3))),
    ("reshapes to heads without a transpose",
     heads(lambda x, b, H: (right := split_heads(x, H)).swapaxes(2, 3).reshape(right.shape))),
    ("joins the heads without a transpose",
     {"attn.N.heads": lambda at: at.x.reshape(at.x.swapaxes(1, 2).shape).swapaxes(1, 2)}),
    ("joins the heads without a transpose",
     {"attn.N.out": lambda at: linear(at["attn.N.heads"].reshape(at.x.shape), *at.inputs()[1:])}),
    ("scales the scores by 1 / sqrt(n_embd)", scores(lambda q, k, D, *_: q @ swap(k) / math.sqrt(D))),
    ("scales the scores by 1 / sqrt(n_embd / n_head)",
     scores(lambda q, k, D, K, layer: q @ swap(k) / math.sqrt(K))),
    ("scales the scores by 1, not at all", scores(lambda q, k, *_: q @ swap(k))),
    ("scales the scores by n_head / n_embd, without the square root",
     scores(lambda q, k, D, K, layer: q @ swap(k) / K)),
    ("divides the scores by the layer's number, from 1",
     scores(lambda q, k, D, K, layer: q @ swap(k) / math.sqrt(K) / (layer + 1))),
    ("has no causal mask", pattern(softmax)),
    ("has a mask that is off by one: a token sees the next one", pattern(lambda x: softmax(hide(x, 2)))),
    ("has a mask that is off by one: a token does not see itself", pattern(lambda x: softmax(hide(x, 0)))),
    ("has a mask of -1e9 that is off by one: a token does not see itself",
     pattern(lambda x: softmax(hide(x, 0, -1e9)))),
    ("puts 0 in place of -inf under the mask", pattern(lambda x: softmax(hide(x, fill=0.0)))),
    ("hides the past, not the future", pattern(lambda x: softmax(swap(hide(swap(x)))))),
    ("applies the mask after the softmax", pattern(lambda x: np.tril(softmax(x)))),
    ("applies the softmax over the queries", pattern(lambda x: swap(softmax(swap(hide(x)))))),
    ("lacks the residual connection",
     {"resid_mid.N": lambda at: at["attn.N.out"], "resid_post.N": lambda at: at["mlp.N.out"]}),
    ("adds to the layer norm's output, not to its input", {
        "resid_mid.N": lambda at: at["attn.N.in"] + at["attn.N.out"],
        "resid_post.N": lambda at: at["mlp.N.in"] + at["mlp.N.out"],
    }),
    ("has no position embedding", {"embed": lambda at: at["wte.weight"][at.ids]}),
    ("multiplies the token embedding by sqrt(n_embd)",
     {"embed": lambda at: at.x + (at.x.shape[-1] ** 0.5 - 1) * at["wte.weight"][at.ids]}),
    ("counts positions from 1", embedding(lambda ids, n, eos: (ids, n + 1))),
    ("counts positions from -1", embedding(lambda ids, n, eos: (ids, n - 1))),
    ("counts positions 0, 0, 1, 2, ...", embedding(lambda ids, n, eos: (ids, np.maximum(n - 1, 0)))),
    ("gives every token position 0", embedding(lambda ids, n, eos: (ids, 0 * n))),
    ("adds 1 to the ids", embedding(lambda ids, n, eos: (ids + 1, n))),
    ("subtracts 1 from the ids", embedding(lambda ids, n, eos: (ids - 1, n))),
    *((f"has its ids shifted by one: it reads the token {side}",
       embedding(lambda ids, n, eos, at=at, fill=fill: (padded(ids, eos, fill)[:, n + at], n)))
      for side, at in (("before", 0), ("after", 2)) for fill in ("wrap", "edge", "0", "eos")),
    ("is the tied head, wte", {"logits": lambda at: at["final"] @ at["wte.weight"].T}),
    ("is softmax(logits)", {"logits": lambda at: softmax(at.x)}),
    ("is log_softmax(logits)", {"logits": lambda at: log_softmax(at.x)}),
]  # fmt: skip
# How far a mistake goes: everywhere, in one kind of activation, in one layer, in one place.
SCOPES: list[Callable[[str], str]] = [lambda name: "", kind_of, layer_of, str]
Edit = tuple[str, Callable[[Place], Array]]  # an activation's name, and the function


def trials_in(window: list[str], names: list[str]) -> dict[frozenset[Edit], tuple[int, str]]:
    """Each mistake as edits -> how far it goes, and the sentence; one of its places is in the window."""
    trials: dict[frozenset[Edit], tuple[int, str]] = {}
    for stage, scope in enumerate(SCOPES):
        for says, edits in MISTAKES:
            sites = [name for name in names if kind_of(name) in edits]
            for at in (name for name in window if name in sites):
                places = [name for name in sites if scope(name) == scope(at)]
                where = ", everywhere" if len(set(map(kind_of, places))) > 1 else ", in every layer"
                where = where if stage < 2 and len(places) > 1 else ""
                trial = frozenset((place, edits[kind_of(place)]) for place in places)
                trials.setdefault(trial, (stage, f"{at}: yours {says}{where}"))
    return trials
