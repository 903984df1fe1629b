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

from ..activations import ACTIVATIONS
from ..model import GPT2, Array, attention_scale, merge_heads, split_heads
from ..ops import gelu_new, layer_norm, linear, log_softmax, softmax
from ..run import Tape

# What some kinds of activations are computed from: the activation, and the layer that has the parameters.
INPUTS = {
    "attn.N.in": ("resid_pre.N", "h.N.ln_1"),
    "mlp.N.in": ("resid_mid.N", "h.N.ln_2"),
    "final": ("resid_post.N", "ln_f"),
    "attn.N.qkv": ("attn.N.in", "h.N.attn.c_attn"),
    "attn.N.out": ("attn.N.heads", "h.N.attn.c_proj"),
    "mlp.N.pre": ("mlp.N.in", "h.N.mlp.c_fc"),
    "mlp.N.out": ("mlp.N.post", "h.N.mlp.c_proj"),
    "mlp.N.post": ("mlp.N.pre", ""),
    "attn.N.pattern": ("attn.N.scores", ""),
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
        return int(layer_of(self.name) or self.model.config.n_layer - 1)

    def __getitem__(self, name: str) -> Array:
        name = name.replace(".N", f".{self.layer}")
        return self.model.parameters[name] if name in self.model.parameters else self.tape[name]

    def inputs(self) -> list[Any]:
        """x; for a linear layer x, weight and bias; for a layer norm x, weight, bias and eps. See INPUTS."""
        source, layer = INPUTS[kind_of(self.name)]
        x = merge_heads(self[source]) if source == "attn.N.heads" else self[source]
        eps = [self.model.config.layer_norm_epsilon] if "ln_" in layer else []
        return [x, *(self[f"{layer}.{name}"] for name in ("weight", "bias") if layer), *eps]

    def norm(self, x: str | Array, ln: str) -> Array:
        """A layer norm of this block; x may be a name."""
        x = self[x] if isinstance(x, str) else x
        weight, bias = self[f"h.N.{ln}.weight"], self[f"h.N.{ln}.bias"]
        return layer_norm(x, weight, bias, self.model.config.layer_norm_epsilon)


Edits = dict[str, Callable[[Place], Array]]  # by kind of activation, such as "attn.N.qkv"


def kind_of(name: str) -> str:
    """ "attn.3.qkv" -> "attn.N.qkv" """
    return ".".join("N" if step.isdigit() else step for step in name.split("."))


def layer_of(name: str) -> str:
    """ "attn.3.qkv" -> "3"; "" for an activation that is in no block"""
    return "".join(filter(str.isdigit, name))


def each(kinds: Iterable[str], wrong: Callable[..., Array], **how: Any) -> Edits:
    """Each activation of some kinds, computed by wrong(*inputs)."""
    return dict.fromkeys(kinds, lambda at: wrong(*at.inputs(), **how))


norms = partial(each, ("attn.N.in", "mlp.N.in", "final"))
linears = partial(each, ("attn.N.qkv", "attn.N.out", "mlp.N.pre", "mlp.N.out"))
activation = partial(each, ["mlp.N.post"])
pattern = partial(each, ["attn.N.pattern"])


def scaled(scale: Callable[[int, int, float, int], float]) -> Edits:
    """q k^T multiplied by scale(D, K, right scale, layer)."""

    def edit(at: Place) -> Array:
        config, right = at.model.config, attention_scale(at.model.config, at.layer)
        return at.x * (scale(config.n_embd, config.head_width, right, at.layer) / right)

    return {"attn.N.scores": edit}


def qkv(wrong: Callable[..., Any], parts: str = "qkv") -> Edits:
    """q, k and v, or some of them, as parts of wrong(qkv [B, T, 3 D], bias [3 D], H) [3, B, H, T, K]."""

    def edit(at: Place) -> Array:
        heads = wrong(at["attn.N.qkv"], at["h.N.attn.c_attn.bias"], at.model.config.n_head)
        result: Array = heads["qkv".index(at.name[-1])]
        return result

    return {f"attn.N.{part}": edit for part in parts}


def embedding(wrong: Callable[..., Any]) -> Edits:
    """The embedding of wrong(ids, positions, eos). Of a matrix, row -1 is the last."""

    def edit(at: Place) -> Array:
        ids, positions = wrong(at.ids, np.arange(at.ids.shape[1]), at.model.config.eos_token_id or 0)
        wte, wpe = at["wte.weight"], at["wpe.weight"]
        return wte[ids % len(wte)] + wpe[np.minimum(positions, len(wpe) - 1)]

    return {"embed": edit}


def padded(ids: Array, eos: int, fill: str) -> Array:
    """ids with one more at both ends: the one at the other end, the same again, 0 or eos."""
    constants = {"0": 0, "eos": eos}
    how: Any = {"constant_values": constants[fill]} if fill in constants else {"mode": fill}
    return np.pad(ids, ((0, 0), (1, 1)), **how)


def other_norm(
    x: Array,
    w: Array,
    b: Array,
    eps: float,
    root: Any = np.sqrt,
    axis: int = -1,
    mean: int = 1,
    lost: int = 0,
) -> Array:
    """A layer norm with other choices. `lost` is 1 for the unbiased variance."""
    x = x - mean * x.mean(axis=axis, keepdims=True)
    variance = np.divide((x * x).sum(axis=axis, keepdims=True), x.shape[axis] - lost)
    return x / root(variance + eps) * w + b


def gelu_like(x: Array, inner: float = math.sqrt(2 / math.pi), cubic: float = 0.044715) -> Array:
    """gelu_new with other constants."""
    return 0.5 * x * (1 + np.tanh(inner * (x + cubic * x * x * x)))


def hide(scores: Array, k: int = 1, fill: float = -np.inf) -> Array:
    """Scores with `fill` where a token would see the k-th after it, or a later one."""
    return np.where(np.triu(np.ones(scores.shape[-2:], bool), k), fill, scores).astype(scores.dtype)


def swap(x: Array) -> Array:
    return x.swapaxes(-1, -2)


def bfloat16(x: Array) -> Array:
    """x rounded to 8 binary digits, to even in a tie."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(mantissa * 256) / 256, exponent)


def float16(x: Array) -> Array:
    with np.errstate(over="ignore"):  # a number above 65,504 becomes inf
        return x.astype(np.float16).astype(x.dtype)


HALVES = {"bfloat16": bfloat16, "float16": float16}
FUNCTIONS = {"gelu": "the exact gelu (erf)", "gelu_new": "gelu_new, the approximation with tanh"}
FUNCTIONS |= {name: name for name in ("relu", "quick_gelu", "silu", "tanh")}
EPSILONS = {f"epsilon {eps:g}": eps for eps in (1e-5, 1e-6, 1e-8, 1e-3)} | {"no epsilon, or one of 1e-12": 0}
exact_gelu = ACTIVATIONS["gelu"].forward

MISTAKES: list[tuple[str, Edits]] = [
    *((f"is {says}", activation(ACTIVATIONS[name].forward)) for name, says in FUNCTIONS.items()),
    ("has no activation function", activation(lambda x: x)),
    ("applies gelu_new twice", activation(lambda x: gelu_new(gelu_new(x)))),
    ("applies the exact gelu twice", activation(lambda x: exact_gelu(exact_gelu(x)))),
    ("is gelu_new without the factor 0.5", activation(lambda x: 2 * gelu_new(x))),
    ("is gelu_new without the square root of 2 / pi", activation(lambda x: gelu_like(x, inner=2 / math.pi))),
    ("is gelu_new with 0.44715 for 0.044715", activation(lambda x: gelu_like(x, cubic=0.44715))),
    *((f"has a layer norm with {says}", norms(lambda x, w, b, _, eps: layer_norm(x, w, b, eps), eps=eps))
      for says, eps in EPSILONS.items()),
    ("has a layer norm with epsilon outside the root",
     norms(lambda x, w, b, eps: other_norm(x, w, b, 0, lambda variance: np.sqrt(variance) + eps))),
    ("has a layer norm that divides by the variance, not by its root", norms(other_norm, root=np.positive)),
    ("has a layer norm with the unbiased variance", norms(other_norm, lost=1)),
    ("has a layer norm over the tokens, not over each vector", norms(other_norm, axis=-2)),
    ("has a layer norm that does not subtract the mean", norms(other_norm, mean=0)),
    ("has a layer norm without its weight", norms(lambda x, w, b, eps: layer_norm(x, w / w, b, eps))),
    ("has a layer norm without its bias", norms(lambda x, w, b, eps: layer_norm(x, w, 0 * b, eps))),
    ("has a layer norm without weight and bias",
     norms(lambda x, w, b, eps: layer_norm(x, w / w, 0 * b, eps))),
    ("has no layer norm", norms(lambda x, w, b, eps: x)),
    ("has ln_1 and ln_2 swapped", {
        "attn.N.in": lambda at: at.norm("resid_pre.N", "ln_2"),
        "mlp.N.in": lambda at: at.norm("resid_mid.N", "ln_1"),
    }),
    ("is post-norm: it normalises after the residual connection", {
        "attn.N.in": lambda at: at["resid_pre.N"],
        "resid_mid.N": lambda at: at.norm(at.x, "ln_1"),
        "mlp.N.in": lambda at: at["resid_mid.N"],
        "resid_post.N": lambda at: at.norm(at.x, "ln_2"),
    }),
    ("gives the MLP the input of attention, in parallel",
     {"mlp.N.in": lambda at: at.norm("resid_pre.N", "ln_2")}),
    ("lacks the bias", linears(lambda x, w, b: x @ w)),
    ("has its weight transposed", linears(lambda x, w, b: x @ w.reshape(w.shape[::-1]).T + b)),
    *((f"has weights rounded to {name}", linears(lambda x, w, b, half=half: x @ half(w) + b))
      for name, half in HALVES.items()),
    *((f"rounds keys and values to {name}", qkv(lambda x, b, H, half=half: half(split_heads(x, H)), "kv"))
      for name, half in HALVES.items()),
    *((f"lacks the bias of the {name}", qkv(lambda x, b, H: split_heads(x - b, H), part))
      for part, name in (("q", "queries"), ("k", "keys"), ("v", "values"))),
    *((f"takes {', '.join(np.array(list('qkv'))[order])} for q, k, v",
       qkv(lambda x, b, H, order=order: split_heads(x, H)[order]))
      for order in map(list, list(permutations(range(3)))[1:])),
    ("takes q, k and v of one head after the other from qkv",
     qkv(lambda x, b, H: x.reshape(*x.shape[:2], H, 3, -1).transpose(3, 0, 2, 1, 4))),
    ("interleaves the heads",
     qkv(lambda x, b, H: x.reshape(*x.shape[:2], 3, -1, H).transpose(2, 0, 4, 1, 3))),
    ("reshapes to heads without a transpose",
     qkv(lambda x, b, H: (heads := split_heads(x, H)).swapaxes(2, 3).reshape(heads.shape))),
    ("joins the heads without a transpose",
     {"attn.N.heads": lambda at: at.x.reshape(at.x.swapaxes(1, 2).shape).swapaxes(1, 2)}),
    ("joins the heads without a transpose",
     {"attn.N.out": lambda at: linear(at["attn.N.heads"].reshape(at.x.shape), *at.inputs()[1:])}),
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
