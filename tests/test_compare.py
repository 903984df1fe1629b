"""`compare` names the activation that differs first, and the mistake that was made; and nothing else."""

import json
import math
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from conftest import SMALL

import tiedgpt
from tiedgpt import GPT2, cli
from tiedgpt.checkpoints.files import parse_json
from tiedgpt.comparison import compare as compare_module
from tiedgpt.comparison.compare import SLACK, compare, forward, loss_and_gradients, row_of
from tiedgpt.comparison.conventions import from_state_dict
from tiedgpt.comparison.mistakes import MISTAKES, activation, embedded, hide, kind_of, linears, norms, pattern, splits
from tiedgpt.errors import ArgumentError
from tiedgpt.ops import gelu_new, layer_norm, softmax
from tiedgpt.testing import TINY, assert_same_gpt2, random_model, tiny_gpt2  # noqa: F401

SOURCE = Path(__file__).with_name("other_gpt2.py").read_text(encoding="utf-8")
MODELS = {
    "tiny": random_model(),
    "tiny untied": random_model(TINY.with_head("untied")),
    "shakespeare": tiedgpt.load_model("shakespeare-tied"),
}


def some_ids(model: GPT2, B: int = 2, T: int = 21, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(model.config.vocab_size, size=(B, T))


def tape_of(model: GPT2, ids: np.ndarray) -> dict[str, np.ndarray]:
    tape: dict[str, np.ndarray] = {}
    model(ids, tape=tape)
    return tape


def planted(model: GPT2, ids: np.ndarray, says: str, *kinds: str) -> dict[str, np.ndarray]:
    """Our own float32 activations with one of MISTAKES, in every place or in these kinds of them."""
    edits = next(edits for sentence, edits in MISTAKES if sentence == says)
    names = [name for name in forward(model, ids, {}, {}) if kind_of(name) in (kinds or edits)]
    return forward(model, ids, {}, {name: edits[kind_of(name)] for name in names if kind_of(name) in edits})


def other_gpt2(model: GPT2, *changes: str, dtype: str = "float32", past: dict | None = None):
    """The GPT-2 of other_gpt2.py with a changed text: a function from ids [T] to its tape."""
    source = SOURCE
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert old in source, old
        source = source.replace(old, new)
    names: dict = {}
    exec(source, names)
    parameters = {name: array.astype(dtype) for name, array in model.parameters.items()}
    config = model.config

    def run(ids, logits: bool = False):
        tape: dict[str, np.ndarray] = {}
        with np.errstate(all="ignore"):
            names["gpt2"](ids, parameters, config.n_layer, config.n_head, tape, past)
        return tape["logits"] if logits else tape

    return run


LAYERS, EVERYWHERE = ", in every layer", ", everywhere"
GELU = "0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))"
ERF = "x * (1 + np.vectorize(__import__('math').erf)(x / 2**0.5)) / 2"
QKV = "    q, k, v = (part"
SPLIT = "part.reshape(T, H, K).transpose(1, 0, 2) for part in parts"
EXP = "e / e.sum(axis=-1, keepdims=True)"
NORM = "    n = (x - mean) / np.sqrt(variance + 1e-5)\n    return n * weight + bias"
HALF = "x.astype(np.float16).astype(x.dtype)"
PLANTED = [  # where the mistake is, what it is, how far it goes; the changes of other_gpt2.py's text
    ("mlp.0.post", "is the exact gelu (erf)", LAYERS, GELU, ERF),
    ("mlp.1.post", "is the exact gelu (erf)", "",
     "post = gelu(pre)", f"post = gelu(pre) if layer != 1 else np.float32({ERF.replace('x', 'pre')})"),
    ("mlp.0.post", "is relu", LAYERS, GELU, "np.maximum(x, 0)"),
    ("mlp.0.post", "is silu", LAYERS, GELU, "x / (1 + np.exp(-x))"),
    ("mlp.0.post", "is quick_gelu", LAYERS, GELU, "x / (1 + np.exp(-1.702 * x))"),
    ("mlp.0.post", "has no activation function", LAYERS, GELU, "x"),
    ("mlp.0.post", "applies gelu_new twice", LAYERS, "gelu(pre)", "gelu(gelu(pre))"),
    ("mlp.0.post", "is gelu_new without the factor 0.5", LAYERS, "0.5 * x * (1", "x * (1"),
    ("mlp.0.post", "is gelu_new without the square root of 2 / pi", LAYERS,
     "np.sqrt(2 / np.pi)", "(2 / np.pi)"),
    ("mlp.0.post", "is gelu_new with 0.44715 for 0.044715", LAYERS, "0.044715", "0.44715"),
    ("attn.0.in", "has a layer norm with epsilon 1e-06", EVERYWHERE, "1e-5", "1e-6"),
    ("attn.0.in", "has a layer norm with no epsilon, or one of 1e-12", EVERYWHERE,
     "variance + 1e-5", "variance"),
    ("attn.0.in", "has a layer norm with epsilon outside the root", EVERYWHERE,
     "np.sqrt(variance + 1e-5)", "(np.sqrt(variance) + 1e-5)"),
    ("attn.0.in", "has a layer norm that divides by the variance, not by its root", EVERYWHERE,
     "np.sqrt(variance + 1e-5)", "(variance + 1e-5)"),
    ("attn.0.in", "has a layer norm with the unbiased variance", EVERYWHERE, "x.var(", "x.var(ddof=1, "),
    ("attn.0.in", "has a layer norm over the tokens, not over each vector", EVERYWHERE,
     "x.mean(axis=-1, keepdims=True)\n    variance = x.var(axis=-1",
     "x.mean(axis=0, keepdims=True)\n    variance = x.var(axis=0"),
    ("attn.0.in", "has a layer norm without its weight", EVERYWHERE, "n * weight + bias", "n + bias"),
    ("attn.0.in", "has a layer norm without its bias", EVERYWHERE, "n * weight + bias", "n * weight"),
    ("attn.0.in", "has a layer norm without weight and bias", EVERYWHERE, "n * weight + bias", "n"),
    ("attn.0.in", "has a layer norm that does not subtract the mean", EVERYWHERE,
     "(x - mean) / np.sqrt(variance", "x / np.sqrt((x * x).mean(axis=-1, keepdims=True)"),
    ("attn.0.in", "has no layer norm", EVERYWHERE, NORM, "    return x"),
    ("final", "has no layer norm", "", "final = layer_norm(resid,", "final = (lambda x, *_: x)(resid,"),
    ("attn.0.in", "has ln_1 and ln_2 swapped", EVERYWHERE, "ln_1", "ln_0", "ln_2", "ln_1", "ln_0", "ln_2"),
    ("attn.0.in", "is post-norm: it normalises after the residual connection", EVERYWHERE,
     "mid = resid + attention(layer_norm(resid, p",
     "mid = layer_norm(resid + attention((lambda x, *_: x)(resid, p", "layer, H, tape, past)\n",
     "layer, H, tape, past), p['ln_1.weight'], p['ln_1.bias'])\n", "post = mid + mlp(layer_norm(mid, p",
     "post = layer_norm(mid + mlp((lambda x, *_: x)(mid, p", "p, layer, tape)\n",
     "p, layer, tape), p['ln_2.weight'], p['ln_2.bias'])\n"),
    ("mlp.0.in", "gives the MLP the input of attention, in parallel", LAYERS,
     "layer_norm(mid, p", "layer_norm(resid, p"),
    ("attn.0.qkv", "lacks the bias", LAYERS,
     'x, p["attn.c_attn.weight"], p["attn.c_attn.bias"]', 'x, p["attn.c_attn.weight"], 0'),
    ("mlp.0.pre", "lacks the bias", LAYERS, 'p["mlp.c_fc.bias"]', "0"),
    ("attn.0.q", "lacks the bias of the queries", LAYERS,
     QKV, "    parts[0] = parts[0] - p['attn.c_attn.bias'][:D]\n" + QKV),
    ("attn.0.v", "lacks the bias of the values", LAYERS,
     QKV, "    parts[2] = parts[2] - p['attn.c_attn.bias'][2 * D:]\n" + QKV),
    ("attn.0.out", "has its weight transposed", LAYERS,
     'linear(joined, p["attn.c_proj.weight"]', 'linear(joined, p["attn.c_proj.weight"].T'),
    ("mlp.0.out", "has weights rounded to float16", LAYERS,
     'linear(post, p["mlp.c_proj.weight"]', f'linear(post, {HALF}'.replace("x", 'p["mlp.c_proj.weight"]')),
("attn.0.scores", "scales the scores by 1 / sqrt(n_embd)", LAYERS, "/ np.sqrt(K)", "/ np.sqrt(D)"),
    ("attn.0.scores", "scales the scores by 1, not at all", LAYERS, "/ np.sqrt(K)", ""),
    ("attn.0.scores", "scales the scores by n_head / n_embd, without the square root", LAYERS,
     "/ np.sqrt(K)", "/ K"),
    ("attn.1.scores", "divides the scores by the layer's number, from 1", LAYERS,
     "/ np.sqrt(K)", "/ np.sqrt(K) / (layer + 1)"),
    ("attn.0.pattern", "has no causal mask", LAYERS, "later, -np.inf", "False, -np.inf"),
    ("attn.0.pattern", "has a mask that is off by one: a token sees the next one", LAYERS,
     "bool), 1", "bool), 2"),
    ("attn.0.pattern", "has a mask that is off by one: a token does not see itself", LAYERS,
     "bool), 1", "bool), 0"),
    ("attn.0.pattern", "has a mask of -1e9 that is off by one: a token does not see itself", LAYERS,
     "bool), 1", "bool), 0", "-np.inf", "-1e9"),
    ("attn.0.pattern", "puts 0 in place of -inf under the mask", LAYERS, "later, -np.inf", "later, 0"),
    ("attn.0.pattern", "hides the past, not the future", LAYERS, "later, -np.inf", "later.T, -np.inf"),
    ("attn.0.pattern", "applies the mask after the softmax", LAYERS,
     "softmax(np.where(later, -np.inf, scores))", "np.where(later, 0, softmax(scores))"),
    ("attn.0.pattern", "applies the softmax over the queries", LAYERS,
     "x.max(axis=-1", "x.max(axis=-2", "e.sum(axis=-1", "e.sum(axis=-2"),
    ("attn.0.q", "takes k, q, v for q, k, v", EVERYWHERE, QKV, QKV.replace("q, k, v", "k, q, v")),
    ("attn.0.q", "takes v, k, q for q, k, v", EVERYWHERE, QKV, QKV.replace("q, k, v", "v, k, q")),
    ("attn.0.q", "interleaves the heads", EVERYWHERE,
     SPLIT, "part.reshape(T, K, H).transpose(2, 0, 1) for part in parts"),
    ("attn.0.q", "reshapes to heads without a transpose", EVERYWHERE,
     SPLIT, "part.reshape(H, T, K) for part in parts"),
    ("attn.0.q", "takes q, k and v of one head after the other from qkv", EVERYWHERE,
     SPLIT, "qkv.reshape(T, H, 3, K)[:, :, n].transpose(1, 0, 2) for n in range(3)"),
    ("attn.0.out", "joins the heads without a transpose", LAYERS,
     "heads.transpose(1, 0, 2).reshape(T, D)", "heads.reshape(T, D)"),
    ("resid_mid.0", "lacks the residual connection", LAYERS, "mid = resid + ", "mid = "),
    ("resid_post.0", "lacks the residual connection", LAYERS, "post = mid + ", "post = "),
    ("resid_mid.0", "adds to the layer norm's output, not to its input", LAYERS,
     "mid = resid + ", "mid = layer_norm(resid, p['ln_1.weight'], p['ln_1.bias']) + "),
    ("embed", "has no position embedding", "", " + wpe[positions]", ""),
    ("embed", "counts positions from 1", "", "wpe[positions]", "wpe[positions + 1]"),
    ("embed", "counts positions from -1", "", "wpe[positions]", "wpe[positions - 1]"),
    ("embed", "counts positions 0, 0, 1, 2, ...", "",
     "wpe[positions]", "wpe[np.maximum(positions - 1, 0)]"),
    ("embed", "gives every token position 0", "", "wpe[positions]", "wpe[0]"),
    ("embed", "adds 1 to the ids", "", "wte[ids]", "wte[ids + 1]"),
    ("embed", "subtracts 1 from the ids", "", "wte[ids]", "wte[ids - 1]"),
    ("embed", "has its ids shifted by one: it reads the token before", "",
     "wte[ids]", "wte[np.roll(ids, 1)]"),
    ("embed", "has its ids shifted by one: it reads the token before", "",
     "wte[ids]", "wte[[0, *ids[:-1]]]"),
    ("embed", "has its ids shifted by one: it reads the token after", "",
     "wte[ids]", "wte[[*ids[1:], ids[-1]]]"),
    ("embed", "multiplies the token embedding by sqrt(n_embd)", "",
     "wte[ids]", "wte[ids] * np.float32(wte.shape[1]) ** 0.5"),
    ("logits", "is the tied head, wte", "", 'parameters.get("lm_head.weight", wte)', "wte"),
    ("logits", "is softmax(logits)", "", "= final, final @ head.T", "= final, softmax(final @ head.T)"),
]  # fmt: skip


@pytest.mark.parametrize(("place", "says", "where", "changes"), [(*row[:3], row[3:]) for row in PLANTED])
def test_each_planted_mistake_is_named(place, says, where, changes):
    for name, model in MODELS.items():
        if (name == "tiny untied") == ("tied head" in says):  # the others have no second matrix
            ids = some_ids(model, B=1, T=13)[0]
            report = compare(model, other_gpt2(model, *changes), ids)
            assert report.diagnosis == [f"{place}: yours {says}{where}"], str(report)
            # From logits alone it has the same name, or one that these ids cannot tell from it.
            if name != "shakespeare":
                logits = other_gpt2(model, *changes)(ids, logits=True)
                report = compare(model, logits.astype(np.float32), ids)
                assert any(f"yours {says}" in sentence for sentence in report.diagnosis), str(report)
