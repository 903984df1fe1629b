"""The well-known mistakes in a GPT-2, as edits of our own forward pass.

What is right is computed by model.py alone. MISTAKES has the end of the sentence "yours ..." and,
for each kind of activation that the mistake changes, the code that computes the wrong one. See
Place.evaluate.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import permutations
from typing import Any

import numpy as np

from ..gpt2.activations import ACTIVATIONS
from ..gpt2.model import GPT2, Array, merge_heads, split_heads
from ..gpt2.ops import layer_norm, log_softmax, softmax
from ..gpt2.run import Tape

# Kinds of activations, and the layer that has the parameters from which they are computed.
LAYERS = {
    "attn.N.in": "h.N.ln_1",
    **dict.fromkeys(("attn.N.qkv", "attn.N.q", "attn.N.k", "attn.N.v"), "h.N.attn.c_attn"),
    "attn.N.out": "h.N.attn.c_proj",
    "mlp.N.in": "h.N.ln_2",
    "mlp.N.pre": "h.N.mlp.c_fc",
    "mlp.N.out": "h.N.mlp.c_proj",
    "final": "ln_f",
}
layer_of = partial(
    re.sub, r"\D", ""
)  # "attn.3.qkv" -> "3"; "" for an activation that is in no block


@dataclass(frozen=True)
class Place:
    """An activation in a forward pass. place["attn.N.in"] is one before it, or a parameter, of its
    layer."""

    name: str
    right: Array  # the activation as model.py computes it
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

    def inputs(self) -> list[Array]:
        """x, the activation before (qkv for q, k and v); weight and bias, if its layer has
        parameters."""
        x = (
            self["attn.N.qkv"]
            if self.name.endswith((".q", ".k", ".v"))
            else list(self.tape.values())[-1]
        )
        x = merge_heads(x) if kind_of(self.name) == "attn.N.out" else x
        layer = LAYERS.get(kind_of(self.name))
        return [x, *(self[f"{layer}.{name}"] for name in ("weight", "bias") if layer)]

    def evaluate(self, code: str) -> Array:
        config, eps = self.model.config, self.model.config.layer_norm_epsilon
        names = vars(self) | {"at": self, "wte": self["wte.weight"], "wpe": self["wpe.weight"]}
        names |= {"D": config.n_embd, "H": config.n_head, "K": config.head_width}
        names |= {"n": np.arange(self.ids.shape[1]), "part": "qkv".find(self.name[-1])}
        eos = min(
            (*config.eos_token_ids, config.vocab_size - 1)
        )  # from_state_dict may have none of this V
        names |= {"eps": eps, "norm": partial(layer_norm, eps=eps), "eos": eos}
        names |= {ln: (self[f"h.N.{ln}.weight"], self[f"h.N.{ln}.bias"]) for ln in ("ln_1", "ln_2")}
        names |= zip("xwb", self.inputs() if self.tape else (), strict=False)
        return eval(code, FUNCTIONS, names)


@cache
def kind_of(name: str) -> str:
    """ "attn.3.qkv" -> "attn.N.qkv" """
    return re.sub(r"\.\d+", ".N", name)


def hide(scores: Array, k: int = 1, fill: float = -np.inf) -> Array:
    """Scores with `fill` where a token would see the k-th after it, or a later one."""
    return np.where(np.triu(np.ones(scores.shape[-2:], bool), k), fill, scores).astype(scores.dtype)


def rounded(x: Array, bits: int) -> Array:
    """x rounded to so many binary digits, to even in a tie."""
    mantissa, exponent = np.frexp(x)
    return np.ldexp(np.rint(mantissa * 2**bits) / 2**bits, exponent)


HALVES = {"bfloat16": 8, "float16": 11}
# The functions in the code of a mistake. Place.evaluate has the other names.
FUNCTIONS: dict[str, Any] = {name: activation.forward for name, activation in ACTIVATIONS.items()}
FUNCTIONS |= {f.__name__: f for f in (hide, log_softmax, rounded, softmax, split_heads)}
FUNCTIONS |= {"np": np} | {
    f.__name__: partial(f, axis=-1, keepdims=True) for f in (np.mean, np.var)
}

# From a code to the code for each of several kinds of activations.
norms = partial(dict.fromkeys, ("attn.N.in", "mlp.N.in", "final"))
heads = partial(dict.fromkeys, ("attn.N.q", "attn.N.k", "attn.N.v"))
linears = partial(dict.fromkeys, ("attn.N.qkv", "attn.N.out", "mlp.N.pre", "mlp.N.out"))
POST, SCORES, PATTERN = "mlp.N.post", "attn.N.scores", "attn.N.pattern"
QK = 'at["attn.N.q"] @ at["attn.N.k"].swapaxes(2, 3)'
TANH = "0.5 * x * (1 + np.tanh({} * (x + {} * x**3)))"
NAMES = {"gelu": "the exact gelu (erf)", "gelu_new": "gelu_new, the approximation with tanh"}
NAMES |= {name: name for name in ("relu", "quick_gelu", "silu", "tanh")}
NORMS = {
    **{f"with epsilon {eps:g}": f"norm(x, w, b, eps={eps})" for eps in (1e-5, 1e-6, 1e-8, 1e-3)},
    "with no epsilon, or one of 1e-12": "norm(x, w, b, eps=0)",
    "with epsilon outside the root": "(x - mean(x)) / (np.sqrt(var(x)) + eps) * w + b",
    "that divides by the variance, not by its root": "(x - mean(x)) / (var(x) + eps) * w + b",
    "with the unbiased variance": "(x - mean(x)) / np.sqrt(var(x, ddof=1) + eps) * w + b",
    "over the tokens, not over each vector": "(x - mean(x, axis=1)) / np.sqrt(var(x, axis=1) + eps) * w + b",
    "that does not subtract the mean": "x / np.sqrt(mean(x * x) + eps) * w + b",
    "without its weight": "norm(x, 1, b)",
    "without its bias": "norm(x, w, 0)",
    "without weight and bias": "norm(x, 1, 0)",
}

MISTAKES: list[tuple[str, dict[str, Any]]] = [
    *((f"is {says}", {POST: f"{name}(x)"}) for name, says in NAMES.items()),
    ("has no activation function", {POST: "x"}),
    ("applies gelu_new twice", {POST: "gelu_new(gelu_new(x))"}),
    ("is gelu_new without the factor 0.5", {POST: "2 * gelu_new(x)"}),
    ("is gelu_new without the square root of 2 / pi", {POST: TANH.format("2 / np.pi", 0.044715)}),
    ("is gelu_new with 0.44715 for 0.044715", {POST: TANH.format("(2 / np.pi) ** 0.5", 0.44715)}),
    *((f"has a layer norm {says}", norms(code)) for says, code in NORMS.items()),
    ("has no layer norm", norms("x")),
    ("has ln_1 and ln_2 swapped", {"attn.N.in": "norm(x, *ln_2)", "mlp.N.in": "norm(x, *ln_1)"}),
    ("is post-norm: it normalises after the residual connection",
     {"attn.N.in": "x", "resid_mid.N": "norm(right, *ln_1)",
      "mlp.N.in": "x", "resid_post.N": "norm(right, *ln_2)"}),
    ("gives the MLP the input of attention, in parallel", {"mlp.N.in": 'norm(at["resid_pre.N"], *ln_2)'}),
    ("lacks the bias", linears("x @ w")),
    ("has its weight transposed", linears("x @ w.reshape(w.shape[::-1]).T + b")),
    *((f"has weights rounded to {half}", linears(f"x @ rounded(w, {bits}) + b"))
      for half, bits in HALVES.items()),
    *((f"lacks the bias of the {says}", {f"attn.N.{part}": "split_heads(x - b, H)[part]"})
      for part, says in (("q", "queries"), ("k", "keys"), ("v", "values"))),
    *((f"takes {', '.join(order)} for q, k, v", heads(f"split_heads(x, H)['qkv'.index({order}[part])]"))
      for order in list(permutations("qkv"))[1:]),
    ("takes q, k and v of one head after the other from qkv",
     heads("x.reshape(*x.shape[:2], H, 3, K)[:, :, :, part].swapaxes(1, 2)")),
    ("interleaves the heads", heads("x.reshape(*x.shape[:2], 3, K, H)[:, :, part].transpose(0, 3, 1, 2)")),
    ("reshapes to heads without a transpose", heads("right.swapaxes(1, 2).reshape(right.shape)")),
    ("joins the heads without a transpose",
     {"attn.N.heads": "right.reshape(right.swapaxes(1, 2).shape).swapaxes(1, 2)"}),
    ("joins the heads without a transpose", {"attn.N.out": 'at["attn.N.heads"].reshape(x.shape) @ w + b'}),
    ("scales the scores by 1 / sqrt(n_embd)", {SCORES: f"{QK} / D**0.5"}),
    ("scales the scores by 1 / sqrt(n_embd / n_head)", {SCORES: f"{QK} / K**0.5"}),
    ("scales the scores by 1, not at all", {SCORES: QK}),
    ("scales the scores by n_head / n_embd, without the square root", {SCORES: f"{QK} / K"}),
    ("divides the scores by the layer's number, from 1", {SCORES: f"{QK} / K**0.5 / (at.layer + 1)"}),
    ("has no causal mask", {PATTERN: "softmax(x)"}),
    ("has a mask that is off by one: a token sees the next one", {PATTERN: "softmax(hide(x, 2))"}),
    ("has a mask that is off by one: a token does not see itself", {PATTERN: "softmax(hide(x, 0))"}),
    ("has a mask of -1e9 that is off by one: a token does not see itself",
     {PATTERN: "softmax(hide(x, 0, -1e9))"}),
    ("puts 0 in place of -inf under the mask", {PATTERN: "softmax(hide(x, fill=0))"}),
    ("hides the past, not the future", {PATTERN: "softmax(hide(x.swapaxes(2, 3)).swapaxes(2, 3))"}),
    ("applies the mask after the softmax", {PATTERN: "np.tril(softmax(x))"}),
    ("applies the softmax over the queries", {PATTERN: "softmax(hide(x).swapaxes(2, 3)).swapaxes(2, 3)"}),
    ("lacks the residual connection", {"resid_mid.N": "x", "resid_post.N": "x"}),
    ("adds to the layer norm's output, not to its input",
     {"resid_mid.N": 'at["attn.N.in"] + x', "resid_post.N": 'at["mlp.N.in"] + x'}),
    ("has no position embedding", {"embed": "wte[ids]"}),
    ("multiplies the token embedding by sqrt(n_embd)", {"embed": "wte[ids] * D**0.5 + wpe[n]"}),
    ("counts positions from 1", {"embed": "wte[ids] + wpe.take(n + 1, 0, mode='clip')"}),
    ("counts positions from -1", {"embed": "wte[ids] + wpe[n - 1]"}),
    ("counts positions 0, 0, 1, 2, ...", {"embed": "wte[ids] + wpe[np.maximum(n - 1, 0)]"}),
    ("gives every token position 0", {"embed": "wte[ids] + wpe[0]"}),
    ("adds 1 to the ids", {"embed": "wte.take(ids + 1, 0, mode='wrap') + wpe[n]"}),
    ("subtracts 1 from the ids", {"embed": "wte[ids - 1] + wpe[n]"}),
    *((f"has its ids shifted by one: it reads the token {side}",
       {"embed": f"wte[np.pad(ids, ((0, 0), (1, 1)), {fill})[:, n + {first}]] + wpe[n]"})
      for side, first in (("before", 0), ("after", 2))
      for fill in ("'wrap'", "'edge'", "constant_values=0", "constant_values=eos")),
    ("is the tied head, wte", {"logits": 'at["final"] @ wte.T'}),
    ("is softmax(logits)", {"logits": "softmax(right)"}),
    ("is log_softmax(logits)", {"logits": "log_softmax(right)"}),
]  # fmt: skip
# How far a mistake goes: everywhere, in one kind of activation, in one layer, in one place.
SCOPES: list[Callable[[str], str]] = [lambda name: "", kind_of, layer_of, str]
Trial = frozenset[tuple[str, str]]  # activations, and the code for each


def trials_in(window: list[str], names: list[str]) -> dict[Trial, tuple[int, str]]:
    """Each mistake that has a place in the window -> how far it goes, and the sentence."""
    trials: dict[Trial, tuple[int, str]] = {}
    for stage, scope in enumerate(SCOPES):
        for says, wrong in MISTAKES:
            sites = [name for name in names if kind_of(name) in wrong]
            for at in (name for name in window if name in sites):
                places = [name for name in sites if scope(name) == scope(at)]
                where = ", everywhere" if len(set(map(kind_of, places))) > 1 else ", in every layer"
                where = where if stage < 2 and len(places) > 1 else ""
                trial = frozenset((place, wrong[kind_of(place)]) for place in places)
                trials.setdefault(trial, (stage, f"{at}: yours {says}{where}"))
    return trials
