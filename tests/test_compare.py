"""`compare` names the activation that differs first, and the mistake that was made; and nothing
else."""

import json
import re
import sys
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from benchmark_sides import torch_gpt2  # of scripts/
from conftest import SMALL, assert_one_error_line

import tiedgpt
from tiedgpt import GPT2
from tiedgpt.checkpoints.reading import parse_json
from tiedgpt.comparison.compare import Row, compare, forward, row_of
from tiedgpt.comparison.conventions import from_state_dict
from tiedgpt.comparison.mistakes import MISTAKES, Place, kind_of
from tiedgpt.errors import ArgumentError
from tiedgpt.testing import TINY, assert_same_gpt2, random_model, tiny_gpt2  # noqa: F401

SOURCE = (Path(__file__).parent / "other_gpt2.py").read_text(encoding="utf-8")
MODELS = {
    "tiny": random_model(),
    "tiny untied": random_model(TINY.with_head("untied")),
    "shakespeare": tiedgpt.load_model("shakespeare-tied"),
}
TWO_LAYERS = random_model(
    replace(TINY, n_layer=2, eos_token_id=50256)
)  # which is no token of this model
SLOW = pytest.mark.slow


def some_ids(model: GPT2, B: int = 2, T: int = 21, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(model.config.vocab_size, size=(B, T))


def tape_of(model: GPT2, ids: np.ndarray) -> dict[str, np.ndarray]:
    tape: dict[str, np.ndarray] = {}
    model(ids, tape=tape)
    return tape


def planted(model: GPT2, ids: np.ndarray, says: str) -> dict[str, np.ndarray]:
    """Our own float32 activations with one of MISTAKES in every place."""
    codes = next(codes for sentence, codes in MISTAKES if sentence == says)
    sites = {
        name: codes[kind_of(name)] for name in forward(model, ids, {}, {}) if kind_of(name) in codes
    }
    edits = {name: partial(Place.evaluate, code=code) for name, code in sites.items()}
    return forward(model, ids, {}, edits)


def state_dict(model: GPT2, prefix: str = "", transposed: bool = False) -> dict[str, np.ndarray]:
    """The parameters and lm_head.weight, under names with this prefix; transposed as in nanoGPT."""
    arrays = model.parameters | {"lm_head.weight": model.W_U.T}
    if transposed:
        arrays = {name: x.T if x.ndim == 2 and name[0] == "h" else x for name, x in arrays.items()}
    return {name if name == "lm_head.weight" else prefix + name: x for name, x in arrays.items()}


def other_gpt2(model: GPT2, *changes: str, dtype: str = "float32", cached: bool = False):
    """The GPT-2 of other_gpt2.py with a changed text: a function from ids to its tape."""
    source, names = SOURCE, {}
    for old, new in zip(changes[::2], changes[1::2], strict=True):
        assert old in source, old
        source = source.replace(old, new)
    exec(source, names)
    parameters = {name: array.astype(dtype) for name, array in model.parameters.items()}
    sizes = model.config.n_layer, model.config.n_head

    def run(ids):
        if ids.ndim == 2:
            tapes = [run(row) for row in ids]
            return {name: np.stack([tape[name] for tape in tapes]) for name in tapes[0]}
        tape, past = {}, {}
        with np.errstate(all="ignore"):
            if cached:
                tokens = [
                    names["gpt2"](ids[[n]], parameters, *sizes, {}, past) for n in range(len(ids))
                ]
                return {"logits": np.concatenate(tokens)}
            names["gpt2"](ids, parameters, *sizes, tape)
        return tape

    return run


LAYERS, EVERYWHERE = ", in every layer", ", everywhere"
GELU = "0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))"
ERF = "x * (1 + np.vectorize(__import__('math').erf)(x / 2**0.5)) / 2"
QKV = "    q, k, v = (part"
HEADS = "part.reshape(T, H, K).transpose(1, 0, 2)"
FUTURE = "has a mask that is off by one: a token sees the next one"
ITSELF = "has a mask that is off by one: a token does not see itself"
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
    ("mlp.0.post", "is gelu_new without the square root of 2 / pi", LAYERS, "np.sqrt(2 /", "(2 /"),
    ("mlp.0.post", "is gelu_new with 0.44715 for 0.044715", LAYERS, "0.044715", "0.44715"),
    ("attn.0.in", "has a layer norm with epsilon 1e-06", EVERYWHERE, "1e-5", "1e-6"),
    ("attn.0.in", "has a layer norm with no epsilon, or one of 1e-12", EVERYWHERE, " + 1e-5", ""),
    ("attn.0.in", "has a layer norm with epsilon outside the root", EVERYWHERE,
     "np.sqrt(variance + 1e-5)", "(np.sqrt(variance) + 1e-5)"),
    ("attn.0.in", "has a layer norm that divides by the variance, not by its root", EVERYWHERE,
     "np.sqrt(variance + 1e-5)", "(variance + 1e-5)"),
    ("attn.0.in", "has a layer norm with the unbiased variance", EVERYWHERE, "x.var(", "x.var(ddof=1, "),
    ("attn.0.in", "has a layer norm over the tokens, not over each vector", EVERYWHERE,
     "x.mean(axis=-1", "x.mean(axis=0", "x.var(axis=-1", "x.var(axis=0"),
    ("attn.0.in", "has a layer norm without its weight", EVERYWHERE, "n * weight + bias", "n + bias"),
    ("attn.0.in", "has a layer norm without its bias", EVERYWHERE, "n * weight + bias", "n * weight"),
    ("attn.0.in", "has a layer norm without weight and bias", EVERYWHERE, "n * weight + bias", "n"),
    ("attn.0.in", "has a layer norm that does not subtract the mean", EVERYWHERE,
     "(x - mean) / np.sqrt(variance", "x / np.sqrt((x * x).mean(axis=-1, keepdims=True)"),
    ("attn.0.in", "has no layer norm", EVERYWHERE, "n * weight + bias", "x"),
    ("final", "has no layer norm", "", "final = layer_norm(resid,", "final = (lambda x, *_: x)(resid,"),
    ("attn.0.in", "has ln_1 and ln_2 swapped", EVERYWHERE, "ln_1", "ln_0", "ln_2", "ln_1", "ln_0", "ln_2"),
    ("attn.0.in", "is post-norm: it normalises after the residual connection", EVERYWHERE,
     "mid = resid + attention(layer_norm(resid, p",
     "mid = layer_norm(resid + attention((lambda x, *_: x)(resid, p", "layer, H, tape, past)\n",
     "layer, H, tape, past), p['ln_1.weight'], p['ln_1.bias'])\n", "post = mid + mlp(layer_norm(mid, p",
     "post = layer_norm(mid + mlp((lambda x, *_: x)(mid, p", "p, layer, tape)\n",
     "p, layer, tape), p['ln_2.weight'], p['ln_2.bias'])\n"),
    ("mlp.0.in", "gives the MLP the input of attention, in parallel", LAYERS, "norm(mid,", "norm(resid,"),
    ("attn.0.qkv", "lacks the bias", LAYERS, 'p["attn.c_attn.bias"]', "0"),
    ("mlp.0.pre", "lacks the bias", LAYERS, 'p["mlp.c_fc.bias"]', "0"),
    ("attn.0.q", "lacks the bias of the queries", LAYERS,
     QKV, "    parts[0] = parts[0] - p['attn.c_attn.bias'][:D]\n" + QKV),
    ("attn.0.v", "lacks the bias of the values", LAYERS,
     QKV, "    parts[2] = parts[2] - p['attn.c_attn.bias'][2 * D:]\n" + QKV),
    ("attn.0.out", "has its weight transposed", LAYERS, 'attn.c_proj.weight"]', 'attn.c_proj.weight"].T'),
    ("mlp.0.out", "has weights rounded to float16", LAYERS,
     'post, p["mlp.c_proj.weight"]', 'post, p["mlp.c_proj.weight"].astype(np.float16).astype(np.float32)'),
    ("attn.0.scores", "scales the scores by 1 / sqrt(n_embd)", LAYERS, "/ np.sqrt(K)", "/ np.sqrt(D)"),
    ("attn.0.scores", "scales the scores by 1, not at all", LAYERS, "/ np.sqrt(K)", ""),
    ("attn.0.scores", "scales the scores by n_head / n_embd, without the square root", LAYERS,
     "/ np.sqrt(K)", "/ K"),
    ("attn.1.scores", "divides the scores by the layer's number, from 1", LAYERS,
     "/ np.sqrt(K)", "/ np.sqrt(K) / (layer + 1)"),
    ("attn.0.pattern", "has no causal mask", LAYERS, "later, -np.inf", "False, -np.inf"),
    ("attn.0.pattern", FUTURE, LAYERS, "bool), 1", "bool), 2"),
    ("attn.0.pattern", ITSELF, LAYERS, "bool), 1", "bool), 0"),
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
    ("attn.0.q", "interleaves the heads", EVERYWHERE, HEADS, "part.reshape(T, K, H).transpose(2, 0, 1)"),
    ("attn.0.q", "reshapes to heads without a transpose", EVERYWHERE, HEADS, "part.reshape(H, T, K)"),
    ("attn.0.q", "takes q, k and v of one head after the other from qkv", EVERYWHERE,
     HEADS + " for part in parts", "qkv.reshape(T, H, 3, K)[:, :, n].transpose(1, 0, 2) for n in range(3)"),
    ("attn.0.out", "joins the heads without a transpose", LAYERS, "heads.transpose(1, 0, 2)", "heads"),
    ("resid_mid.0", "lacks the residual connection", LAYERS, "mid = resid + ", "mid = "),
    ("resid_post.0", "lacks the residual connection", LAYERS, "post = mid + ", "post = "),
    ("resid_mid.0", "adds to the layer norm's output, not to its input", LAYERS,
     "mid = resid + ", "mid = layer_norm(resid, p['ln_1.weight'], p['ln_1.bias']) + "),
    ("embed", "has no position embedding", "", " + wpe[positions]", ""),
    ("embed", "counts positions from 1", "", "wpe[positions]", "wpe[positions + 1]"),
    ("embed", "counts positions from -1", "", "wpe[positions]", "wpe[positions - 1]"),
    ("embed", "counts positions 0, 0, 1, 2, ...", "", "[positions]", "[np.maximum(positions - 1, 0)]"),
    ("embed", "gives every token position 0", "", "wpe[positions]", "wpe[0]"),
    ("embed", "adds 1 to the ids", "", "wte[ids]", "wte[ids + 1]"),
    ("embed", "subtracts 1 from the ids", "", "wte[ids]", "wte[ids - 1]"),
    ("embed", "has its ids shifted by one: it reads the token before", "", "[ids]", "[np.roll(ids, 1)]"),
    ("embed", "has its ids shifted by one: it reads the token before", "", "[ids]", "[[0, *ids[:-1]]]"),
    ("embed", "has its ids shifted by one: it reads the token after", "", "[ids]", "[[*ids[1:], ids[-1]]]"),
    ("embed", "multiplies the token embedding by sqrt(n_embd)", "",
     "wte[ids]", "wte[ids] * np.float32(wte.shape[1]) ** 0.5"),
    ("logits", "is the tied head, wte", "", 'parameters.get("lm_head.weight", wte)', "wte"),
    ("logits", "is softmax(logits)", "", "= final, final @ head.T", "= final, softmax(final @ head.T)"),
]  # fmt: skip


QUICK = {row[0]: row for row in PLANTED}.values()  # one of each place
ROWS = [row if row in QUICK else pytest.param(row, marks=SLOW) for row in PLANTED]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[1])
@pytest.mark.parametrize("name", ["tiny", pytest.param("shakespeare", marks=SLOW)])
def test_each_planted_mistake_is_named(name, row):
    place, says, where, *changes = row
    model = MODELS["tiny untied" if "tied head" in says else name]
    tape = other_gpt2(model, *changes)(ids := some_ids(model, B=1, T=13)[0])
    report = compare(model, tape, ids)
    assert report.diagnosis[-1] == f"{place}: yours {says}{where}", str(report)
    nan = np.isnan(tape[place])
    where = f"{place}: yours is nan in {nan.sum()} of {nan.size} places"
    assert report.diagnosis[:-1] == ([where] if nan.any() else [])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "row"),  # a row takes seconds in the larger model
    [*(("tiny", row) for row in PLANTED), *(("shakespeare", row) for row in QUICK)],
    ids=lambda value: value if isinstance(value, str) else value[1],
)
def test_each_planted_mistake_is_named_from_logits_alone(name, row, monkeypatch):
    """Or a mistake is named that these ids cannot tell from it."""
    monkeypatch.setattr(time, "monotonic", time.thread_time)  # others may use the processor too
    _, says, _, *changes = row
    model = MODELS["tiny untied" if "tied head" in says else name]
    logits = other_gpt2(model, *changes)(ids := some_ids(model, B=1, T=13)[0])["logits"].astype(
        np.float32
    )
    start = time.monotonic()
    report = compare(model, logits, ids)
    assert time.monotonic() - start < 20
    assert any(f"yours {says}" in sentence for sentence in report.diagnosis), str(report)


try:
    import torch
    from torch import nn

    torch.set_num_threads(1)
except ImportError:
    torch = None  # type: ignore[assignment]


def nano_gpt(model: GPT2):
    """Modules named as in nanoGPT, with dropout, and all logits only if there are targets."""
    pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")

    def gpt(self, ids, targets=None):
        x = self.dropout(self.transformer.hidden(ids))
        return self.lm_head(x if targets is not None else x[:, [-1]])

    head = nn.Linear(model.config.n_embd, model.config.vocab_size, bias=False)
    parts = {
        "transformer": torch_gpt2(torch, model.config),
        "dropout": nn.Dropout(0.5),
        "lm_head": head,
    }
    theirs = nn.Module()
    for name, part in parts.items():
        theirs.add_module(name, part)
    theirs.forward = partial(gpt, theirs)
    state = state_dict(model, "transformer.", transposed=True)
    theirs.load_state_dict({name: torch.from_numpy(np.array(x)) for name, x in state.items()})
    if model.config.tied:
        head.weight = theirs.transformer.wte.weight
    return theirs


MASKED = (
    "k.transpose(0, 2, 1) / np.sqrt(K)",
    "k.transpose(0, 2, 1) / np.sqrt(K) + (1 - np.tri(T)) * -1e10",
)
PURE = "np.sqrt(2 / np.pi)", "0.7978845608028654", "np.sqrt(K)", "float(np.sqrt(K))"


def transformers_gpt2(model: GPT2):
    pytest.importorskip("torch", reason="torch is not installed: pip install torch==2.13.0")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**model.config.to_json())).eval()
    state = state_dict(model, "transformer.")
    theirs.load_state_dict({name: torch.from_numpy(np.array(x)) for name, x in state.items()})
    return theirs


RIGHT = {
    "float32 with float64 scalars": other_gpt2,
    "float32": lambda model: other_gpt2(model, *PURE),
    "float64": lambda model: other_gpt2(model, dtype="float64"),
    "scores after an additive mask": lambda model: other_gpt2(model, *MASKED),
    "one token at a time": lambda model: other_gpt2(model, *PURE, cached=True),
    "lists": lambda model: (
        lambda ids: {n: x.tolist() for n, x in other_gpt2(model, *PURE)(ids).items()}
    ),
    "float64 logits": lambda model: (
        lambda ids: other_gpt2(model, *PURE)(ids)["logits"] * np.float64(1)
    ),
    "torch in float32": lambda model: nano_gpt(model).train(),
    "torch in float64": lambda model: nano_gpt(model).double(),
    "transformers": transformers_gpt2,
}
FLOAT64 = ["scores after an additive mask", "lists"]
if (
    np.lib.NumpyVersion(np.__version__) >= "2.0.0"
):  # where a float64 scalar makes float32 arrays float64
    FLOAT64 += ["float32 with float64 scalars", "float64 logits"]


@pytest.mark.parametrize("name", ["half", *(pytest.param(name, marks=SLOW) for name in MODELS)])
@pytest.mark.parametrize("right", [*list(RIGHT)[:-1], pytest.param("transformers", marks=SLOW)])
def test_a_right_gpt2_agrees(right, name):
    half = {name: x.astype(np.float16) for name, x in MODELS["tiny"].parameters.items()}
    model = from_state_dict(half, n_head=TINY.n_head) if name == "half" else MODELS[name]
    theirs = RIGHT[right](model)
    for ids in (some_ids(model, T=37), some_ids(model, B=1, T=1)[0], some_ids(model, B=1)[0]):
        report = compare(model, theirs, ids)
        assert report.first is None, str(report)
        assert bool(report.note) == (right in FLOAT64), report.note


@pytest.mark.parametrize("name", ["tiny", "tiny untied"])
def test_gradients_agree_with_torchs(name):
    model = MODELS[name]
    theirs, ids, targets = nano_gpt(model).eval(), some_ids(model), some_ids(model, seed=1)
    logits = theirs(torch.from_numpy(ids), torch.from_numpy(ids))
    nn.functional.cross_entropy(
        logits.flatten(0, 1), torch.from_numpy(targets).flatten()
    ).backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    report = compare(model, gradients, ids, targets)
    assert report.first is None, str(report)
    assert len(report.rows) == len(model.parameters)
    gradients["transformer.wte.weight"] *= 1.001
    assert compare(model, gradients, ids, targets).first.name == "wte.weight"


@pytest.mark.slow
def test_a_mistake_in_transformers_is_named():
    model = random_model()
    theirs, ids = transformers_gpt2(model), some_ids(model)
    theirs.config._attn_implementation = "eager"
    assert any(row.name == "attn.0.pattern" for row in compare(model, theirs, ids).rows)
    theirs.transformer.h[2].mlp.act = torch.nn.ReLU()
    for module in (theirs, theirs.transformer):  # with a head and without
        assert compare(model, module, ids[0]).diagnosis == ["mlp.2.post: yours is relu"]


def test_a_module_is_left_as_it_was_and_half_precision_is_named():
    model, ids = MODELS["tiny"], some_ids(MODELS["tiny"])
    theirs = nano_gpt(model).bfloat16().train()
    report = compare(model, theirs, ids)
    assert report.diagnosis == ["resid_pre.0: yours is rounded to bfloat16"]
    assert report.note == "compare in float32"
    assert theirs.training
    assert not any(part._forward_hooks or part._forward_pre_hooks for part in theirs.modules())
    assert all(parameter.grad is None for parameter in theirs.parameters())


NO_MISTAKE = (  # in these models; the bias of the keys shifts all scores of a query equally
    "is gelu_new, the approximation with tanh", "has a layer norm with epsilon 1e-05",
    "scales the scores by 1 / sqrt(n_embd / n_head)", "lacks the bias of the keys",
)  # fmt: skip


@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=SLOW)])
@pytest.mark.parametrize("config", [TINY.with_head("untied"), pytest.param(SMALL, marks=SLOW)])
def test_every_mistake_moves_a_logit_of_the_random_model(config, seed):
    model = random_model(config, seed)
    logits = model(ids := some_ids(model, B=1, T=config.n_ctx))
    for says, _ in MISTAKES:
        if says not in NO_MISTAKE and not (config.tied and says == "is the tied head, wte"):
            moved = np.abs(planted(model, ids, says)["logits"] - logits)
            assert np.isnan(moved).any() or moved.max() >= 1e-2, says  # nan: all of a row is masked


def changed(ids, *names):
    """Activations with these names, or all: each is wrong but the embedding."""
    tape = tape_of(TWO_LAYERS, ids)
    wrong = {
        name: x + np.float32(0.1) * x * x if name != "embed" else x for name, x in tape.items()
    }
    return {name: wrong[name] for name in names or wrong}


def few_of(says, ids):
    """What follows the place of the mistake."""
    missing = ("attn.N.pattern", "mlp.N.post", "resid_mid.N")
    return {n: x for n, x in planted(TWO_LAYERS, ids, says).items() if kind_of(n) not in missing}


BEGINS = "to find where it begins, give "
BLOCKS = BEGINS + "resid_post.0 to resid_post.1, too"
NONE = ": this is none of the known mistakes"
DIAGNOSES = [  # T, what is given, the diagnosis, how the note begins
    # A mask that hides the first token from itself makes all logits nan; so do many other mistakes.
    (5, lambda ids: np.full((1, 5, 211), np.nan),
     ["logits: yours is nan everywhere", f"attn.0.pattern: perhaps yours {ITSELF}{LAYERS}"], BLOCKS),
    (5, lambda ids: planted(TWO_LAYERS, ids, ITSELF),  # here the numbers say so, too
     ["attn.0.pattern: yours is nan in 15 of 75 places", f"attn.0.pattern: yours {ITSELF}{LAYERS}"], ""),
    (5, lambda ids: np.full((1, 5, 211), np.inf),
     ["logits: yours is inf everywhere", "logits" + NONE], BLOCKS),
    (5, other_gpt2(TWO_LAYERS, "post = g", "pre[3, 5] += [0, np.nan][layer]\n    post = g"),
     ["mlp.1.pre: yours is nan in 1 of 500 places", "mlp.1.pre" + NONE], ""),
    (5, lambda ids: TWO_LAYERS(np.multiply(ids, 0, out=ids)), ["logits" + NONE], BLOCKS),
    (9, lambda ids: changed(ids, "resid_post.0", "resid_post.1"), ["resid_post.0" + NONE],
     BEGINS + "embed, resid_pre.0, attn.0.in, "),
    (9, lambda ids: changed(ids, "embed", "attn.0.heads"), ["attn.0.heads" + NONE],
     BEGINS + "resid_pre.0, attn.0.in, attn.0.qkv, attn.0.q, "),
    (9, lambda ids: {"embed": 2 * tape_of(TWO_LAYERS, ids)["embed"]}, ["embed" + NONE], ""),
    # Nearly the exact gelu, but not up to rounding
    (9, other_gpt2(TWO_LAYERS, GELU, f"1.1 * {ERF} - 0.1 * {GELU}"), ["mlp.0.post" + NONE], ""),
    (9, other_gpt2(TWO_LAYERS, 'p["mlp.c_fc.weight"]', 'p["mlp.c_fc.weight"][:, ::-1]'),
     ["mlp.0.pre" + NONE], ""),
    # The mistake is named where it was made, even if only what follows was recorded.
    *((9, partial(theirs, says), [f"{place}: yours {says}{where}"], "")
      for theirs in (lambda says, ids: planted(TWO_LAYERS, ids, says)["logits"], few_of)
      for place, says, where in (
          ("mlp.0.post", "is relu", LAYERS), ("attn.0.pattern", "has no causal mask", LAYERS),
          ("resid_mid.0", "lacks the residual connection", EVERYWHERE))),
    (9, other_gpt2(TWO_LAYERS, GELU, "np.maximum(x, 0)", 'p["mlp.c_fc.bias"]', "0"),
     ["mlp.0.pre: yours lacks the bias, in every layer"],
     "mlp.0.post differs then, too: correct this first, and compare again"),
    # The second token is the last, so a mask that shows the next one hides nothing.
    (2, partial(few_of, "has no causal mask"),
     [f"attn.0.pattern: yours has no causal mask{LAYERS}", f"attn.0.pattern: or yours {FUTURE}{LAYERS}"], ""),
]  # fmt: skip


@pytest.mark.parametrize(("T", "theirs", "diagnosis", "note"), DIAGNOSES)
def test_diagnosis(T, theirs, diagnosis, note):
    ids, seen = some_ids(TWO_LAYERS, B=1, T=T), []
    before, logits = ids.copy(), TWO_LAYERS(ids)
    report = compare(TWO_LAYERS, theirs, ids, progress=lambda *at: seen.append(at))
    assert report.diagnosis == diagnosis
    assert report.note.startswith(note)
    assert bool(report.note) == bool(note), report.note
    assert f"first difference: {report.first.name}[" in str(report)
    assert [done for done, _ in seen] == [*range(len(seen))]
    assert all(total >= len(seen) for _, total in seen)
    np.testing.assert_array_equal(ids, before)
    np.testing.assert_array_equal(TWO_LAYERS(ids), logits)


def test_the_time_is_bounded(monkeypatch):
    monkeypatch.setattr(sys.modules[compare.__module__], "SECONDS", 0.0)
    [sentence] = compare(TWO_LAYERS, changed(ids := some_ids(TWO_LAYERS), "logits"), ids).diagnosis
    assert re.fullmatch(
        r"\S+: none of the 0 trials that 0 s sufficed for explains this, of \d+", sentence
    )


@pytest.mark.parametrize("name", ["tiny", pytest.param("shakespeare", marks=SLOW)])
def test_a_random_difference_is_none_of_the_known(name):
    model = MODELS[name]
    ids = some_ids(model, B=1, T=9)
    tape = tape_of(model, ids)
    rng = np.random.default_rng(5)
    places = (
        "embed",
        "attn.1.in",
        "attn.0.qkv",
        "attn.1.pattern",
        "resid_mid.0",
        "mlp.1.post",
        "logits",
    )
    for seed, where in enumerate(places):
        size = 10.0 ** rng.integers(-4, 1) * np.abs(tape[where]).mean()
        noise = size * np.random.default_rng(seed).standard_normal(tape[where].shape, np.float32)
        one = np.zeros_like(noise)
        one.flat[rng.integers(one.size)] = 1
        changes = (noise, one, np.float32(size))
        for change in changes if name == "shakespeare" else [changes[seed % 3]]:
            report = compare(model, tape | {where: tape[where] + change}, ids)
            assert report.first.name == where
            assert report.diagnosis == [f"{where}: this is none of the known mistakes"], str(change)


NAMES = """
embed           drop                    -                        encoded
resid_pre.N     h.N:in                  blocks.N.hook_resid_pre  -
attn.N.in       h.N.ln_1                -                        ln1
attn.N.qkv      h.N.attn.c_attn         -                        qkv
attn.N.q        -                       blocks.N.attn.hook_q     -
attn.N.k        -                       blocks.N.attn.hook_k     -
attn.N.v        -                       blocks.N.attn.hook_v     -
attn.N.pattern  h.N.attn:1              -                        att
attn.N.heads    h.N.attn.c_proj:in      blocks.N.attn.hook_z     atty
attn.N.out      h.N.attn                -                        attproj
resid_mid.N     -                       blocks.N.hook_resid_mid  residual2
mlp.N.in        h.N.ln_2                blocks.N.ln2.hook_out    ln2
mlp.N.pre       h.N.mlp.c_fc            -                        fch
mlp.N.post      h.N.mlp.act             blocks.N.mlp.out.hook_in fch_gelu
mlp.N.out       h.N.mlp                 -                        fcproj
resid_post.N    h.N                     -                        residual3
final           ln_f                    ln_final                 lnf
logits          lm_head                 unembed                  logits
"""


@pytest.mark.parametrize(
    ("convention", "column", "prefix"),
    [
        ("transformers", 1, "transformer."),
        ("TransformerLens", 2, "_original_component."),
        ("llm.c", 3, ""),
    ],
)
def test_names_of_every_convention(convention, column, prefix):
    """The same arrays under other names, in their layouts."""
    model = MODELS["tiny"]
    tape = tape_of(model, ids := some_ids(model))
    given = {}
    if convention == "TransformerLens":  # accepted, not compared
        given = dict.fromkeys(
            ("hook_embed", "embed.hook_out", "pos_embed.hook_out"), 2 * tape["embed"]
        )
    rows = [row.split() for row in NAMES.strip().splitlines()]
    names = {row[column]: row[0] for row in rows if row[column] != "-"}
    for theirs, ours in names.items():
        layers = [tape[ours.replace("N", str(n))] for n in range(model.config.n_layer)]
        if ours[-2:] in (".q", ".k", ".v", "ds"):
            layers = [array.swapaxes(1, 2) for array in layers]  # [B, T, H, K]
            layers = [
                x if convention == "TransformerLens" else x.reshape(*ids.shape, -1) for x in layers
            ]
        if "N" in ours and convention == "llm.c":
            given[theirs] = np.stack(layers)
        else:
            given |= {prefix + theirs.replace("N", str(n)): array for n, array in enumerate(layers)}
    report = compare(model, given, ids)
    assert report.first is None, str(report)
    assert len(report.rows) == sum(3 if "N" in ours else 1 for ours in names.values())


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_from_state_dict(head):
    model = random_model(TINY.with_head(head))
    config = model.config
    mask = {"transformer.h.0.attn.bias": np.zeros((1, 1, 3, 3))}  # of transformers
    nano_gpt = state_dict(model, "_orig_mod.transformer.", transposed=True)
    states = [model.parameters, state_dict(model, "transformer.") | mask, nano_gpt]
    if head == "tied":  # llm.c has no other head; an array there has all layers
        kinds: dict[str, list[np.ndarray]] = {}
        for name, array in state_dict(model, transposed=True).items():
            kinds.setdefault(kind_of(name), []).append(array)
        llm_c = "wte wpe ln1w ln1b qkvw qkvb attprojw attprojb ln2w ln2b fcw fcb fcprojw fcprojb lnfw lnfb"
        pairs = zip(llm_c.split(), kinds.values(), strict=False)
        states.append({theirs: np.squeeze(np.stack(x)) for theirs, x in pairs})
    for state in states:
        read = from_state_dict(state, n_head=config.n_head)
        assert (read.config.tied, read.config.n_layer, read.config.n_inner) == (config.tied, 3, 100)
        assert all(
            np.array_equal(read.parameters[name], array) for name, array in model.parameters.items()
        )
        wide = from_state_dict({name: a.astype(np.float64) for name, a in state.items()}, n_head=3)
        assert wide.dtype == np.float64
        if torch is not None:
            half = {
                name: torch.from_numpy(array.copy()).bfloat16() for name, array in state.items()
            }
            assert from_state_dict(half, n_head=3).dtype == np.float32
    bare = {name: array for name, array in model.parameters.items() if not name.endswith("bias")}
    assert (
        not from_state_dict(bare, n_head=3, layer_norm_epsilon=1e-6).parameters["ln_f.bias"].any()
    )


BAD = [
    ({"attn.9.qkv": np.zeros(3)}, "attn.9.qkv was given, but the model's layers are 0 to 2"),
    ({"mlp.1.past": np.zeros(3)}, "'mlp.1.past' is no activation of a GPT-2; the nearest are mlp.1.post"),
    ({"mlp.0.pre": np.zeros((2, 100, 21))}, r"\(2, 21, 100\); its transpose by axes \(0, 2, 1\) would"),
    ({"mlp.0.pre": np.zeros((2, 21, 99))}, r"mlp.0.pre has shape \(2, 21, 99\); expected \(2, 21, 100\)$"),
    ({"embed": np.array(["a"])}, "'embed' must be an array of floats, got <U1"),
    ({"embed": np.ma.masked_equal([[1.0, 2.0]], 2)}, "'embed' is a masked array: give one without a mask"),
    ({"embed": np.array(1.0)}, r"'embed' must be an array of floats, got float64 \(\)"),
    ({"embed": [[1.0], [1.0, 2.0]]}, "'embed' must be an array of floats: "),
    ({"hook_embed": np.zeros(3)}, "nothing to compare"),
    ({}, r"expected logits, a dict of arrays, a torch module or a function, got \{\}"),
    ("mine.npz", "expected logits, .* got 'mine.npz'"),
    ({"wte.weight": np.zeros((211, 48))}, "wte.weight is a parameter: to compare its gradient, give targets"),
    (lambda ids: ids / 0 + [][0], "the other model failed on these ids: IndexError: list index"),
]  # fmt: skip
BAD_USES = [
    (lambda model, ids: compare(model, {}, ids, ids[:1]),
     r"targets have shape \(1, 21\); expected that of ids, \(2, 21\)"),
    (lambda model, ids: compare(model, {"wpe.weight": np.zeros((48, 37))}, ids, ids),
     r"gradient of wpe.weight has shape \(48, 37\); .* would fit"),
    (lambda model, _: from_state_dict(model.parameters),
     "n_head cannot be read from the shapes of 3 layers of width 48"),
    (lambda *_: from_state_dict({"ln_f.weight": np.ones(3)}), r"it has no matrix wte\.weight"),
    (lambda *_: from_state_dict({"conv1": np.ones(3)}), "'conv1' is no parameter of a GPT-2"),
    (lambda model, ids: compare(model, nano_gpt(model).lm_head, ids), "Linear has no module of a GPT-2"),
    (lambda model, ids: compare(model, nano_gpt(random_model(SMALL)), ids),
     "the other model failed on these ids: IndexError"),
    (lambda model, ids: compare(model, nano_gpt(model), ids, ids),
     "of a torch module, gradients are not recorded"),
    *((lambda model, ids, theirs=theirs: compare(model, theirs, ids), message) for theirs, message in BAD),
]  # fmt: skip


@pytest.mark.parametrize(("use", "message"), BAD_USES)
def test_bad_input(use, message):
    with pytest.raises(ArgumentError, match=message), np.errstate(all="ignore"):
        use(MODELS["tiny"], some_ids(MODELS["tiny"]))


def test_the_assertion_and_the_fixture(tiny_gpt2):  # noqa: F811
    assert_same_gpt2(lambda ids: tape_of(tiny_gpt2, ids), model=tiny_gpt2)
    with pytest.raises(
        AssertionError, match=r"not the same GPT-2(.|\n)*mlp\.0\.post: yours is relu"
    ):
        assert_same_gpt2(lambda ids: planted(tiny_gpt2, ids, "is relu"), model=tiny_gpt2)


def test_a_row_agrees_up_to_sixteen_roundings():
    """The tolerance comes from our float32 or from float32's unit, whatever the size of the
    numbers."""
    for size in (1e-6, 1.0, 1e6):
        wide = np.linspace(-size, size, 50)
        for narrow, rounding in ((wide + size * 1e-5, size * 1e-5), (wide, size * 2.0**-23)):
            for far, same in ((0.99, True), (1.01, False), (1.99, False)):
                theirs = wide.copy()
                theirs[7] += far * 16 * rounding
                row = row_of("embed", theirs, wide, narrow)
                assert row.tolerance == pytest.approx(16 * rounding)
                assert row.error == pytest.approx(far * 16 * rounding)
                assert row.first_wrong == (None if same else (7,))
    nothing = np.full(3, -np.inf)
    assert row_of("embed", nothing, nothing, nothing) == Row("embed", 0.0, 0.0)
    assert row_of("embed", np.zeros(3), nothing, nothing).first_wrong == (0,)


def test_the_command(run, tmp_path):
    model = MODELS["shakespeare"]
    ids = np.array(tiedgpt.load_tokenizer("shakespeare-tied").encode("ROMEO: But soft"))
    right, wrong = tape_of(model, ids), planted(model, ids[None], "is relu")
    for name, arrays in (
        ("right", {"ids": ids, **right}),
        ("wrong", {"ids": ids, **wrong}),
        ("nan", {"ids": ids, "embed": right["embed"] * np.nan}),
        ("no ids", wrong),
        ("only ids", {"ids": ids}),
        ("pickle", {"embed": np.array([{}], dtype=object)}),
    ):
        np.savez(tmp_path / f"{name}.npz", **arrays)
    for folder in ("folder", "empty"):
        (tmp_path / folder).mkdir()
    for name, array in (wrong | {"ids": ids}).items():
        np.save(tmp_path / "folder" / f"{name}.npy", array)
    (tmp_path / "text.npz").write_text("not an archive")

    def compared(file, *flags):
        return run("compare", "--model", "shakespeare-tied", str(tmp_path / file), *flags)

    relu = "mlp.0.post: yours is relu, in every layer"
    code, out, _ = compared("right.npz")
    assert (code, out.splitlines()[-1][:9]) == (0, "all agree")
    code, out, _ = compared("wrong.npz")
    assert (code, out.splitlines()[-1]) == (1, relu)
    code, out, _ = compared("folder", "--json")
    found = json.loads(out)
    assert (code, found["same"], found["diagnosis"], len(found["rows"])) == (
        1,
        False,
        [relu],
        len(right),
    )
    assert parse_json(compared("nan.npz", "--json")[1])["rows"][0]["yours"] is None
    for file, message in (
        ("pickle.npz", "Object arrays cannot be loaded when allow_pickle=False"),
        ("text.npz", "is no .npz file or directory of .npy files"),
        ("empty", "there are no arrays in it"),
        ("none.npz", "No such file or directory"),
        ("only ids.npz", "has no activations beside `ids`"),
        ("no ids.npz", "has no `ids`: add the token ids that the other model read"),
    ):
        assert_one_error_line(compared(file), message)
