"""The well-known mistakes in a GPT-2, as edits of our own forward pass.

MISTAKES has the end of the sentence "yours ..." and, for each kind of activation that the mistake changes, a
function that computes the wrong one. What is right is computed by model.py alone.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import permutations
from typing import Any

import numpy as np

from ..activations import ACTIVATIONS
from ..model import GPT2, Array, attention_scale, merge_heads
from ..ops import gelu_new, layer_norm, linear, log_softmax, softmax
from ..run import Tape

# What each layer norm and each linear layer reads, and the name of its parameters.
NORMS = {
    "attn.N.in": ("resid_pre.N", "h.N.ln_1"),
    "mlp.N.in": ("resid_mid.N", "h.N.ln_2"),
    "final": ("resid_post.N", "ln_f"),
}
LINEARS = {
    "attn.N.qkv": ("attn.N.in", "h.N.attn.c_attn"),
    "attn.N.out": ("attn.N.heads", "h.N.attn.c_proj"),
    "mlp.N.pre": ("mlp.N.in", "h.N.mlp.c_fc"),
    "mlp.N.out": ("mlp.N.post", "h.N.mlp.c_proj"),
}


@dataclass(frozen=True)
class Place:
    """An activation in a forward pass. place["attn.N.in"] is one before it, or a parameter, of its layer."""

    name: str
    x: Array  # the activation as model.py computes it
    model: GPT2
    ids: Array  # [B, T]
    tape: Tape  # the activations before it

    @property
    def layer(self) -> int:
        """The number of the activation's block; of the last block for final and logits."""
        last = self.model.config.n_layer - 1
        return next((int(step) for step in self.name.split(".") if step.isdigit()), last)

    def __getitem__(self, name: str) -> Array:
        name = name.replace(".N", f".{self.layer}")
        return self.model.parameters[name] if name in self.model.parameters else self.tape[name]

    def norm(self, function: Any, x: str | Array, ln: str) -> Array:
        """function(x, weight, bias, eps) with the parameters of a layer norm; x may be a name."""
        return self.linear(lambda *args: function(*args, self.model.config.layer_norm_epsilon), x, ln)

    def linear(self, function: Any, x: str | Array, layer: str) -> Array:
        """function(x, weight, bias) with the parameters of a linear layer; x may be a name, or heads."""
        x = self[x] if isinstance(x, str) else x
        x = merge_heads(x) if x.ndim == 4 else x
        return function(x, self[f"{layer}.weight"], self[f"{layer}.bias"])


Edits = dict[str, Callable[[Place], Array]]  # by kind of activation, such as "attn.N.qkv", or by name


def kind_of(name: str) -> str:
    """ "attn.3.qkv" -> "attn.N.qkv" """
    return ".".join("N" if step.isdigit() else step for step in name.split("."))


def norms(wrong: Any) -> Edits:
    """Each layer norm computed by wrong(x, weight, bias, eps)."""
    return {kind: partial(Place.norm, function=wrong, x=x, ln=ln) for kind, (x, ln) in NORMS.items()}


def normalised(root: Callable[[Array, float], Array], axis: int = -1, lost: int = 0) -> Edits:
    """Each layer norm with division by root(variance, eps). `lost` is 1 for the unbiased variance."""

    def wrong(x: Array, weight: Array, bias: Array, eps: float) -> Array:
        x = x - x.mean(axis=axis, keepdims=True)
        variance = np.divide((x * x).sum(axis=axis, keepdims=True), x.shape[axis] - lost)
        return x / root(variance, eps) * weight + bias

    return norms(wrong)


def linears(wrong: Any) -> Edits:
    """Each linear layer computed by wrong(x, weight, bias)."""
    return {kind: partial(Place.linear, function=wrong, x=x, layer=p) for kind, (x, p) in LINEARS.items()}


def activation(wrong: Callable[[Array], Array]) -> Edits:
    return {"mlp.N.post": lambda at: wrong(at["mlp.N.pre"])}


def pattern(wrong: Callable[[Array], Array]) -> Edits:
    return {"attn.N.pattern": lambda at: wrong(at["attn.N.scores"])}


def scaled(scale: Callable[[int, int, float, int], float]) -> Edits:
    """q k^T multiplied by scale(D, K, right scale, layer)."""

    def edit(at: Place) -> Array:
        config, right = at.model.config, attention_scale(at.model.config, at.layer)
        return at.x * (scale(config.n_embd, config.head_width, right, at.layer) / right)

    return {"attn.N.scores": edit}


def gelu_like(x: Array, inner: float = math.sqrt(2 / math.pi), cubic: float = 0.044715) -> Array:
    """gelu_new with other constants."""
    return 0.5 * x * (1 + np.tanh(inner * (x + cubic * x * x * x)))


def hide(scores: Array, k: int, fill: float = -np.inf) -> Array:
    """Scores with `fill` where a token would see the k-th after it, or a later one."""
    return np.where(np.triu(np.ones(scores.shape[-2:], bool), k), fill, scores).astype(scores.dtype)


def swap(x: Array) -> Array:
    return x.swapaxes(-1, -2)


def unmerged(heads: Array) -> Array:  # [B, H, T, K] -> the same shape
    """Heads that will be merged by a reshape without a transpose."""
    return heads.reshape(heads.swapaxes(1, 2).shape).swapaxes(1, 2)


def qkv(wrong: Any, parts: str = "qkv") -> Edits:
    """q, k and v computed by wrong(place, 0), wrong(place, 1) and wrong(place, 2), or some of them."""
    return {f"attn.N.{part}": partial(wrong, n="qkv".index(part)) for part in parts}


def splits(axes: str, order: str = "qkv") -> Edits:
    """q, k and v of a qkv that has them in this order; `axes` are those of its last axis, "3HK" in GPT-2."""

    def part(at: Place, n: int) -> Array:
        sizes = {"3": 3, "H": at.model.config.n_head, "K": -1}
        parts = at["attn.N.qkv"].reshape(*at.ids.shape, *map(sizes.__getitem__, axes))
        three, head, width = (2 + axes.index(axis) for axis in "3HK")
        return parts.transpose(three, 0, head, 1, width)["qkv".index(order[n])]

    return qkv(part)


def unbiased(at: Place, n: int) -> Array:
    return at.x - at["h.N.attn.c_attn.bias"].reshape(3, at.model.config.n_head, 1, -1)[n]


def embedded(ids: Callable[[Place], Any], positions: Callable[[Array], Array] = lambda n: n) -> Edits:
    """Other ids [B, T], or positions other than [0, ..., T - 1]. Of a matrix, row -1 is the last."""

    def edit(at: Place) -> Array:
        places = np.minimum(positions(np.arange(at.ids.shape[1])), at.model.config.n_ctx - 1)
        return at["wte.weight"][ids(at) % at.model.config.vocab_size] + at["wpe.weight"][places]

    return {"embed": edit}


def shifted(first: str, step: int) -> Edits:
    """Each token's embedding is that of the token `step` before it; `first` says what the first one's is."""

    def ids(at: Place) -> Array:
        given = at.ids[:, ::step]
        start = {"the other end": given[:, -1:], "itself": given[:, :1], "0": 0 * given[:, :1]}
        eos = np.full_like(given[:, :1], at.model.config.eos_token_id or 0)
        return np.concatenate([start.get(first, eos), given[:, :-1]], axis=1)[:, ::step]

    return embedded(ids)


def bfloat16(x: Array) -> Array:
    """x rounded to bfloat16: to the nearest number, ties to even."""
    bits: Array = x.astype(np.float32).view(np.uint32).astype(np.uint64)
    bits = (bits + 0x7FFF + (bits >> 16 & 1)) & 0xFFFF0000
    return bits.astype(np.uint32).view(np.float32).astype(x.dtype)


HALVES = {"bfloat16": bfloat16, "float16": lambda x: x.astype(np.float16).astype(x.dtype)}
FUNCTIONS = {"gelu": "the exact gelu (erf)", "gelu_new": "gelu_new, the approximation with tanh"}
FUNCTIONS |= {name: name for name in ("relu", "quick_gelu", "silu", "tanh")}
EPSILONS = {f"epsilon {eps:g}": eps for eps in (1e-5, 1e-6, 1e-8, 1e-3)} | {
    "no epsilon, or one of 1e-12": 0.0
}
exact_gelu = ACTIVATIONS["gelu"].forward

MISTAKES: list[tuple[str, Edits]] = [
    *((f"is {says}", activation(ACTIVATIONS[name].forward)) for name, says in FUNCTIONS.items()),
    ("has no activation function", activation(lambda x: x)),
    ("applies gelu_new twice", activation(lambda x: gelu_new(gelu_new(x)))),
    ("applies the exact gelu twice", activation(lambda x: exact_gelu(exact_gelu(x)))),
    ("is gelu_new without the factor 0.5", activation(lambda x: 2 * gelu_new(x))),
    ("is gelu_new without the square root of 2 / pi", activation(partial(gelu_like, inner=2 / math.pi))),
    ("is gelu_new with 0.44715 for 0.044715", activation(partial(gelu_like, cubic=0.44715))),
    *((f"has a layer norm with {says}", norms(lambda x, w, b, _, eps=eps: layer_norm(x, w, b, eps)))
      for says, eps in EPSILONS.items()),
    ("has a layer norm with epsilon outside the root", normalised(lambda v, eps: np.sqrt(v) + eps)),
    ("has a layer norm that divides by the variance, not by its root", normalised(lambda v, eps: v + eps)),
    ("has a layer norm with the unbiased variance", normalised(lambda v, eps: np.sqrt(v + eps), lost=1)),
    ("has a layer norm over the tokens, not over each vector",
     normalised(lambda v, eps: np.sqrt(v + eps), axis=-2)),
    ("has a layer norm without its weight", norms(lambda x, w, b, eps: layer_norm(x, w / w, b, eps))),
    ("has a layer norm without its bias", norms(lambda x, w, b, eps: layer_norm(x, w, 0 * b, eps))),
    ("has a layer norm without weight and bias",
     norms(lambda x, w, b, eps: layer_norm(x, w / w, 0 * b, eps))),
    ("has a layer norm that does not subtract the mean",
     norms(lambda x, w, b, eps: x / np.sqrt((x * x).mean(axis=-1, keepdims=True) + eps) * w + b)),
    ("has no layer norm", norms(lambda x, w, b, eps: x)),
    ("has ln_1 and ln_2 swapped", {
        "attn.N.in": lambda at: at.norm(layer_norm, "resid_pre.N", "h.N.ln_2"),
        "mlp.N.in": lambda at: at.norm(layer_norm, "resid_mid.N", "h.N.ln_1"),
    }),
    ("is post-norm: it normalises after the residual connection", {
        "attn.N.in": lambda at: at["resid_pre.N"],
        "resid_mid.N": lambda at: at.norm(layer_norm, at.x, "h.N.ln_1"),
        "mlp.N.in": lambda at: at["resid_mid.N"],
        "resid_post.N": lambda at: at.norm(layer_norm, at.x, "h.N.ln_2"),
    }),
    ("gives the MLP the input of attention, in parallel",
     {"mlp.N.in": lambda at: at.norm(layer_norm, "resid_pre.N", "h.N.ln_2")}),
    ("lacks the bias", linears(lambda x, w, b: x @ w)),
    ("lacks the bias of the queries", qkv(unbiased, "q")),
    ("lacks the bias of the keys", qkv(unbiased, "k")),
    ("lacks the bias of the values", qkv(unbiased, "v")),
    ("has its weight transposed", linears(lambda x, w, b: x @ w.reshape(w.shape[::-1]).T + b)),
    *((f"has weights rounded to {name}", linears(lambda x, w, b, half=half: x @ half(w) + b))
      for name, half in HALVES.items()),
    *((f"rounds keys and values to {name}", qkv(lambda at, n, half=half: half(at.x), "kv"))
      for name, half in HALVES.items()),
    ("scales the scores by 1 / sqrt(n_embd)", scaled(lambda D, K, right, layer: D**-0.5)),
    ("scales the scores by 1 / sqrt(n_embd / n_head)", scaled(lambda D, K, right, layer: K**-0.5)),
    ("scales the scores by 1, not at all", scaled(lambda D, K, right, layer: 1.0)),
    ("scales the scores by n_head / n_embd, without the square root",
     scaled(lambda D, K, right, layer: 1 / K)),
    ("divides the scores by the layer's number, from 1",
     scaled(lambda D, K, right, layer: right / (layer + 1))),
    ("has no causal mask", pattern(softmax)),
    ("has a mask that is off by one: a token sees the next one", pattern(lambda x: softmax(hide(x, 2)))),
    ("has a mask that is off by one: a token does not see itself", pattern(lambda x: softmax(hide(x, 0)))),
    ("has a mask of -1e9 that is off by one: a token does not see itself",
     pattern(lambda x: softmax(hide(x, 0, -1e9)))),
    ("puts 0 in place of -inf under the mask", pattern(lambda x: softmax(hide(x, 1, 0.0)))),
    ("hides the past, not the future", pattern(lambda x: softmax(swap(hide(swap(x), 1))))),
    ("applies the mask after the softmax", pattern(lambda x: np.tril(softmax(x)))),
    ("applies the softmax over the queries", pattern(lambda x: swap(softmax(swap(hide(x, 1)))))),
    *((f"takes {', '.join(order)} for q, k, v", splits("3HK", "".join(order)))
      for order in list(permutations("qkv"))[1:]),
    ("takes q, k and v of one head after the other from qkv", splits("H3K")),
    ("interleaves the heads", splits("3KH")),
    ("reshapes to heads without a transpose", qkv(lambda at, n: at.x.swapaxes(1, 2).reshape(at.x.shape))),
    ("joins the heads without a transpose", {"attn.N.heads": lambda at: unmerged(at.x)}),
    ("joins the heads without a transpose", {"attn.N.out": lambda at: at.linear(
        linear, unmerged(at["attn.N.heads"]), "h.N.attn.c_proj")}),
    ("lacks the residual connection",
     {"resid_mid.N": lambda at: at["attn.N.out"], "resid_post.N": lambda at: at["mlp.N.out"]}),
    ("adds to the layer norm's output, not to its input", {
        "resid_mid.N": lambda at: at["attn.N.in"] + at["attn.N.out"],
        "resid_post.N": lambda at: at["mlp.N.in"] + at["mlp.N.out"],
    }),
    ("has no position embedding", {"embed": lambda at: at["wte.weight"][at.ids]}),
    ("counts positions from 1", embedded(lambda at: at.ids, lambda n: n + 1)),
    ("counts positions from -1", embedded(lambda at: at.ids, lambda n: n - 1)),
    ("counts positions 0, 0, 1, 2, ...", embedded(lambda at: at.ids, lambda n: np.maximum(n - 1, 0))),
    ("gives every token position 0", embedded(lambda at: at.ids, lambda n: 0 * n)),
    ("adds 1 to the ids", embedded(lambda at: at.ids + 1)),
    ("subtracts 1 from the ids", embedded(lambda at: at.ids - 1)),
    *((f"has its ids shifted by one: it reads the token {side}", shifted(first, step))
      for side, step in (("before", 1), ("after", -1)) for first in ("the other end", "itself", "0", "eos")),
    ("multiplies the token embedding by sqrt(n_embd)",
     {"embed": lambda at: at.x + (at.x.shape[-1] ** 0.5 - 1) * at["wte.weight"][at.ids]}),
    ("is the tied head, wte", {"logits": lambda at: at["final"] @ at["wte.weight"].T}),
    ("is softmax(logits)", {"logits": lambda at: softmax(at.x)}),
    ("is log_softmax(logits)", {"logits": lambda at: log_softmax(at.x)}),
]  # fmt: skip


def trials_in(window: list[str], names: list[str]) -> list[list[tuple[str, Edits]]]:
    """Each mistake in four stages: made everywhere, in one kind of activation, in one layer, in one place.

    At least one of the places is in the window.
    """
    stages: list[list[tuple[str, Edits]]] = [[], [], [], []]
    for says, edits in MISTAKES:
        sites = [name for name in names if kind_of(name) in edits]
        tried: list[list[str]] = []
        for at in (name for name in window if name in sites):
            alike = [site for site in sites if kind_of(site) == kind_of(at)]
            layer = [site for site in sites if site.split(".")[1:2] == at.split(".")[1:2]]
            for stage, places in enumerate((sites, alike, layer, [at])):
                if places not in tried:
                    tried.append(places)
                    where = ", in every layer" if places == alike else ", everywhere"
                    where = where if stage < 2 and len(places) > 1 else ""
                    trial = {place: edits[kind_of(place)] for place in places}
                    stages[stage].append((f"{at}: yours {says}{where}", trial))
    return stages
