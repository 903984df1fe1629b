"""`compare` names the activation that differs first, and the mistake that was made; and nothing else."""

import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from conftest import SMALL

import tiedgpt
from tiedgpt import GPT2, Config, cli
from tiedgpt.backward import loss_and_gradients
from tiedgpt.checkpoints.files import parse_json
from tiedgpt.comparison.compare import Comparison, compare, forward, kind_of
from tiedgpt.comparison.conventions import from_state_dict
from tiedgpt.comparison.mistakes import FITTED, formulas_of, known_mistakes
from tiedgpt.errors import ArgumentError
from tiedgpt.testing import TINY, assert_same_gpt2, random_model, tiny_gpt2  # noqa: F401

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


# A torch GPT-2 as nanoGPT writes it, with the mistakes that people make in it.

try:
    import torch
    import torch.nn.functional as F
    from torch import nn
except ImportError:
    torch = None  # type: ignore[assignment]
needs_torch = pytest.mark.skipif(torch is None, reason="torch is not installed: pip install torch==2.13.0")

if torch is not None:
    torch.set_num_threads(1)

    class LayerNorm(nn.Module):
        def __init__(self, D: int, eps: float, bug: str) -> None:
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.ones(D)), nn.Parameter(torch.zeros(D))
            self.eps = {"eps": 1e-6, "eps 1e-12": 1e-12}.get(bug, eps)
            self.bug = bug

        def forward(self, x):
            n = x - x.mean(-1, keepdim=True)
            variance = x.var(-1, keepdim=True, unbiased=self.bug == "unbiased")
            n = n / torch.sqrt(variance + self.eps)
            n = n if self.bug == "no ln weight" else n * self.weight
            return n if self.bug == "no ln bias" else n + self.bias

    class Attention(nn.Module):
        def __init__(self, config: Config, layer: int, bug: str) -> None:
            super().__init__()
            self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
            self.c_proj = nn.Linear(config.n_embd, config.n_embd)
            self.attn_dropout = nn.Dropout(0.5)
            self.H, self.layer, self.bug = config.n_head, layer, bug

        def forward(self, x):
            B, T, D = x.shape
            H, K, bug = self.H, D // self.H, self.bug
            qkv = F.linear(x, self.c_attn.weight) if bug == "no c_attn bias" else self.c_attn(x)
            parts = qkv.split(D, dim=2)
            if bug == "interleaved":
                q, k, v = (part.view(B, T, K, H).permute(0, 3, 1, 2) for part in parts)
            elif bug == "head by head":
                q, k, v = qkv.view(B, T, H, 3 * K).transpose(1, 2).split(K, dim=-1)
            elif bug == "no transpose":
                q, k, v = (part.reshape(B, H, T, K) for part in parts)
            else:
                q, k, v = (part.view(B, T, H, K).transpose(1, 2) for part in parts)
            if bug == "kqv":
                k, q, v = q, k, v
            if bug == "vkq":
                v, k, q = q, k, v
            if bug == "cache in float16":
                k, v = k.half().to(x.dtype), v.half().to(x.dtype)
            scale = {"scale": D**-0.5, "no scale": 1.0, "by layer": K**-0.5 / (self.layer + 1)}.get(
                bug, K**-0.5
            )
            scores = q @ k.transpose(-1, -2) * scale
            ones = torch.ones(T, T, dtype=torch.bool)
            later = torch.triu(ones, {"mask": 2, "mask itself": 0, "mask itself by -1e9": 0}.get(bug, 1))
            if bug == "mask after softmax":
                pattern = scores.softmax(-1).masked_fill(later, 0)
            elif bug == "no mask":
                pattern = scores.softmax(-1)
            else:
                fill = {"mask of 0": 0.0, "mask itself by -1e9": -1e9}.get(bug, -math.inf)
                pattern = scores.masked_fill(later, fill).softmax(-2 if bug == "wrong softmax" else -1)
            heads = self.attn_dropout(pattern) @ v
            joined = (heads if bug == "unjoined" else heads.transpose(1, 2)).reshape(B, T, D)
            if bug == "transposed":
                return joined @ self.c_proj.weight + self.c_proj.bias
            if bug == "bfloat16":
                weights = self.c_proj.weight.bfloat16(), self.c_proj.bias.bfloat16()
                return F.linear(joined.bfloat16(), *weights).to(x.dtype)
            return self.c_proj(joined)

    class MLP(nn.Module):
        def __init__(self, config: Config, layer: int, bug: str) -> None:
            super().__init__()
            self.c_fc = nn.Linear(config.n_embd, config.n_inner)
            self.c_proj = nn.Linear(config.n_inner, config.n_embd)
            self.bug = "gelu" if bug == "gelu in one layer" and layer == 1 else bug

        def forward(self, x):
            functions = {
                "gelu": F.gelu,
                "relu": F.relu,
                "silu": F.silu,
                "quick gelu": lambda x: x * torch.sigmoid(1.702 * x),
                "linear": lambda x: x,
            }
            pre = F.linear(x, self.c_fc.weight) if self.bug == "no c_fc bias" else self.c_fc(x)
            post = functions.get(self.bug, lambda x: F.gelu(x, approximate="tanh"))(pre)
            if self.bug == "weights in float16":
                return F.linear(post, self.c_proj.weight.half().to(x.dtype), self.c_proj.bias)
            return self.c_proj(post)

    class Block(nn.Module):
        def __init__(self, config: Config, layer: int, bug: str) -> None:
            super().__init__()
            self.ln_1 = LayerNorm(config.n_embd, config.layer_norm_epsilon, bug)
            self.attn = Attention(config, layer, bug)
            self.ln_2 = LayerNorm(config.n_embd, config.layer_norm_epsilon, bug)
            self.mlp = MLP(config, layer, bug)
            self.bug = bug

        def forward(self, x):
            if self.bug == "post-norm":
                x = self.ln_1(x + self.attn(x))
                return self.ln_2(x + self.mlp(x))
            if self.bug == "parallel":
                return x + self.attn(self.ln_1(x)) + self.mlp(self.ln_2(x))
            if self.bug == "norm of the residual":
                x = self.ln_1(x)
                x = x + self.attn(x)
                return x + self.mlp(self.ln_2(x))
            ln_1, ln_2 = (self.ln_2, self.ln_1) if self.bug == "swapped" else (self.ln_1, self.ln_2)
            x = self.attn(ln_1(x)) + (0 if self.bug == "no residual" else x)
            return self.mlp(ln_2(x)) + (0 if self.bug == "no second residual" else x)

    class TorchGPT2(nn.Module):
        def __init__(self, model: GPT2, bug: str = "") -> None:
            super().__init__()
            config, self.bug = model.config, bug
            ln_f = LayerNorm(config.n_embd, config.layer_norm_epsilon, bug)
            blocks = [Block(config, layer, bug) for layer in range(config.n_layer)]
            wte, wpe = (nn.Embedding(n, config.n_embd) for n in (config.vocab_size, config.n_ctx))
            parts = {
                "wte": wte,
                "wpe": wpe,
                "drop": nn.Dropout(0.5),
                "h": nn.ModuleList(blocks),
                "ln_f": ln_f,
            }
            self.transformer = nn.ModuleDict(parts)
            self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
            state = {}
            for name, array in model.parameters.items():
                array = array.T if array.ndim == 2 and name.startswith("h.") else array
                prefix = "" if name == "lm_head.weight" else "transformer."
                state[prefix + name] = torch.from_numpy(np.array(array))
            if config.tied or bug == "tied":
                state["lm_head.weight"] = state["transformer.wte.weight"]
            if bug == "own head":
                state["lm_head.weight"] = state["transformer.wte.weight"].flip(0)
            self.load_state_dict(state)
            if config.tied and bug != "own head":
                self.lm_head.weight = self.transformer["wte"].weight

        def forward(self, ids, targets=None):
            part, bug = self.transformer, self.bug
            positions = torch.arange(ids.shape[1]) + (bug == "position")
            x = part["wte"](ids) * (x_scale(part["wte"]) if bug == "embedding scaled" else 1)
            x = part["drop"](x if bug == "no position" else x + part["wpe"](positions))
            for block in part["h"]:
                x = block(x)
            x = x if bug == "ln_f" else part["ln_f"](x)
            return self.lm_head(x if targets is not None else x[:, [-1]]), None

    def x_scale(embedding):
        return math.sqrt(embedding.weight.shape[1])


SEVEN = {
    "gelu": "mlp.0.post: yours is the exact gelu (erf), in every layer",
    "gelu in one layer": "mlp.1.post: yours is the exact gelu (erf)",
    "scale": "attn.0.scores: yours scales the scores by 1 / sqrt(n_embd), in every layer",
    "mask": "attn.0.pattern: yours has a mask that is off by one: a token sees the next one, in every layer",
    "eps": "attn.0.in: yours has a layer norm with epsilon 1e-06, everywhere",
    "position": "embed: yours counts positions from 1",
    "ln_f": "final: yours has no layer norm",
}
MORE = {
    "relu": "mlp.0.post: yours is relu, in every layer",
    "silu": "mlp.0.post: yours is silu, in every layer",
    "quick gelu": "mlp.0.post: yours is quick_gelu, in every layer",
    "linear": "mlp.0.post: yours has no activation function, in every layer",
    "eps 1e-12": "attn.0.in: yours has a layer norm with epsilon 1e-12, everywhere",
    "unbiased": "attn.0.in: yours has a layer norm with the unbiased variance, everywhere",
    "no ln weight": "attn.0.in: yours has a layer norm without its weight, everywhere",
    "no ln bias": "attn.0.in: yours has a layer norm without its bias, everywhere",
    "swapped": "attn.0.in: yours has ln_1 and ln_2 swapped, everywhere",
    "no scale": "attn.0.scores: yours scales the scores by 1, not at all, in every layer",
    "by layer": "attn.1.scores: yours divides the scores by the layer's number, from 1, in every layer",
    "no mask": "attn.0.pattern: yours has no causal mask, in every layer",
    "mask itself": "attn.0.pattern: yours has a mask that is off by one: a token does not see itself",
    "mask itself by -1e9": "attn.0.pattern: yours has a mask of -1e9 that is off by one: "
    "a token does not see itself, in every layer",
    "mask after softmax": "attn.0.pattern: yours applies the mask after the softmax, in every layer",
    "mask of 0": "attn.0.pattern: yours puts 0 in place of -inf under the mask, in every layer",
    "wrong softmax": "attn.0.pattern: yours applies the softmax over the queries, in every layer",
    "kqv": "attn.0.q: yours takes k, q, v for q, k, v, everywhere",
    "vkq": "attn.0.q: yours takes v, k, q for q, k, v, everywhere",
    "interleaved": "attn.0.q: yours interleaves the heads, everywhere",
    "head by head": "attn.0.q: yours takes q, k and v of one head after the other from qkv, everywhere",
    "no transpose": "attn.0.q: yours reshapes to heads without a transpose, everywhere",
    "unjoined": "attn.0.heads: yours joins the heads without a transpose, in every layer",
    "transposed": "attn.0.out: yours has its weight transposed, in every layer",
    "no c_attn bias": "attn.0.qkv: yours lacks the bias, in every layer",
    "no c_fc bias": "mlp.0.pre: yours lacks the bias, in every layer",
    "post-norm": "attn.0.in: yours is post-norm: it normalises after the residual connection, everywhere",
    "parallel": "mlp.0.in: yours gives the MLP the input of attention, in parallel, in every layer",
    "no residual": "resid_mid.0: yours lacks the residual connection, in every layer",
    "no second residual": "resid_post.0: yours lacks the residual connection, in every layer",
    "no position": "embed: yours has no position embedding",
    "embedding scaled": "embed: yours multiplies the token embedding by sqrt(n_embd)",
    "bfloat16": "attn.0.out: yours is rounded to bfloat16, in every layer",
    "weights in float16": "mlp.0.out: yours has weights rounded to float16, in every layer",
    "cache in float16": "attn.0.k: yours rounds keys and values to float16, everywhere",
}


@needs_torch
@pytest.mark.parametrize("bug", [*SEVEN, *MORE])
@pytest.mark.parametrize("name", ["tiny", "shakespeare"])
def test_each_planted_mistake_is_named(name, bug):
    model = MODELS[name]
    report = compare(model, TorchGPT2(model, bug), some_ids(model, B=1 + (name == "tiny"), T=13))
    assert report.diagnosis[0] == {**SEVEN, **MORE}[bug], str(report)


@needs_torch
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_right_gpt2_agrees_with_its_gradients(name, dtype):
    model = MODELS[name]
    theirs = TorchGPT2(model).to(getattr(torch, dtype)).train()
    for T, seed in ((1, 0), (2, 1), (21, 2), (37, 3)):
        ids, targets = some_ids(model, T=T, seed=seed), some_ids(model, T=T, seed=seed + 1)
        report = compare(model, theirs, ids, targets)
        assert report.first is None, str(report)
        assert len(report.rows) == 2 + 11 * model.config.n_layer + 1 + len(model.parameters)
    assert theirs.training  # as it was
    assert all(parameter.grad is None for parameter in theirs.parameters())


@needs_torch
@pytest.mark.parametrize(("name", "bug"), [("tiny untied", "tied"), ("tiny", "own head")])
def test_another_head_is_named(name, bug):
    model = MODELS[name]
    report = compare(model, TorchGPT2(model, bug), some_ids(model, B=4, T=36))
    says = {"tied": "is the tied head, wte", "own head": "has another output matrix than the tied head's"}
    assert report.diagnosis == [f"logits: yours {says[bug]}"]


@needs_torch
def test_transformers_module_agrees_and_its_activation_is_named():
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    model = random_model()
    theirs = transformers.GPT2LMHeadModel(transformers.GPT2Config(**model.config.to_json())).eval()
    state = {
        f"transformer.{name}": torch.from_numpy(array.copy()) for name, array in model.parameters.items()
    }
    theirs.load_state_dict(state | {"lm_head.weight": state["transformer.wte.weight"]})
    ids = some_ids(model)
    assert_same_gpt2(theirs, model, ids, some_ids(model, seed=1))
    theirs.config._attn_implementation = "eager"
    assert any(row.name == "attn.0.pattern" for row in compare(model, theirs, ids).rows)
    theirs.transformer.h[2].mlp.act = torch.nn.ReLU()
    assert compare(model, theirs, ids[0]).diagnosis == ["mlp.2.post: yours is relu"]
    assert compare(model, theirs.transformer, ids).diagnosis == [
        "mlp.2.post: yours is relu"
    ]  # without a head


def without(tape: dict[str, np.ndarray], *kinds: str) -> dict[str, np.ndarray]:
    return {name: array for name, array in tape.items() if kind_of(name) not in kinds}


def planted(model: GPT2, ids: np.ndarray, says: str, *kinds: str) -> dict[str, np.ndarray]:
    """Our own float32 activations with a mistake, in every place or in these kinds of them."""
    names = list(tape_of(model, ids))
    formulas = next(f for s, f in known_mistakes(model.config) if s == says)
    chosen = [name for name in names if kind_of(name) in (kinds or formulas)]
    return forward(
        model, ids, {}, {name: formulas[kind_of(name)] for name in chosen if kind_of(name) in formulas}
    )


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"tied": False, "activation_function": "gelu"},
        {"scale_attn_weights": False, "layer_norm_epsilon": 0.1},
        {"scale_attn_by_inverse_layer_idx": True, "activation_function": "swish"},
        {"n_layer": 0},
    ],
)
def test_the_formulas_are_the_models(change):
    """Without a mistake, each formula gives what the model computes."""
    model = random_model(replace(TINY, **change)).astype(np.float64)
    ids = some_ids(model)
    tape, formulas = tape_of(model, ids), formulas_of(model.config, {})
    by_formulas = forward(model, ids, {}, {name: formulas[kind_of(name)] for name in tape})
    for name, expected in tape.items():
        if not name.endswith("scores"):  # the tape has them before the mask
            np.testing.assert_allclose(by_formulas[name], expected, rtol=1e-12, atol=1e-12, err_msg=name)


def test_every_mistake_moves_a_logit_of_the_random_model():
    for config in (TINY, TINY.with_head("untied"), SMALL):
        for seed in range(2):
            model = random_model(config, seed).astype(np.float64)
            ids = some_ids(model, T=config.n_ctx)
            logits = model(ids)
            for says, formulas in known_mistakes(config):
                if formulas and not says.startswith(FITTED):
                    moved = np.abs(planted(model, ids, says)["logits"] - logits)
                    assert np.isnan(moved).any() or moved.max() >= 1e-2, says  # nan: all of a row is masked


def test_no_parameter_of_the_random_model_is_neutral():
    for name, array in random_model().parameters.items():
        assert np.abs(array - ("ln_" in name and name.endswith("weight"))).max() > 0.005, name


@pytest.mark.parametrize("says", ["is relu", "lacks the residual connection", "has no causal mask"])
def test_a_mistake_is_found_from_a_few_activations(says):
    """The mistake is named where it was made, even if only what follows was recorded."""
    model = random_model(replace(TINY, n_layer=2))
    ids = some_ids(model, B=1, T=9)
    tape = planted(model, ids, says)
    for given in ({"logits": tape["logits"]}, without(tape, "attn.N.pattern", "mlp.N.post", "resid_mid.N")):
        [sentence] = compare(model, given, ids).diagnosis
        assert f"yours {says}, " in sentence


def test_two_mistakes_are_both_named():
    model = random_model()
    ids = some_ids(model)
    tape = planted(model, ids, "lacks the bias", "mlp.N.pre")
    relu = {f"mlp.{layer}.post": np.maximum(tape[f"mlp.{layer}.pre"], 0) for layer in range(3)}
    tape = forward(model, ids, {name: tape[name] for name in tape if ".pre" in name} | relu, {})
    for layer in range(3):
        tape[f"mlp.{layer}.pre"] -= model.parameters[f"h.{layer}.mlp.c_fc.bias"]
        tape[f"mlp.{layer}.post"] = np.maximum(tape[f"mlp.{layer}.pre"], 0)
    found = compare(model, tape, ids).diagnosis
    assert found[:2] == [
        "mlp.0.pre: yours lacks the bias, in every layer",
        "mlp.0.post: yours is relu, in every layer",
    ]


@pytest.mark.parametrize("name", ["tiny", "shakespeare"])
def test_a_random_difference_is_none_of_the_known(name):
    model = MODELS[name]
    ids = some_ids(model, B=1, T=9)
    tape = tape_of(model, ids)
    rng = np.random.default_rng(5)
    for seed, where in enumerate(
        ["embed", "attn.1.in", "attn.0.qkv", "attn.1.pattern", "mlp.1.post", "logits"]
    ):
        size = 10.0 ** rng.integers(-4, 1) * np.abs(tape[where]).mean()
        noise = size * np.random.default_rng(seed).standard_normal(tape[where].shape, np.float32)
        one = np.zeros_like(noise)
        one.flat[rng.integers(one.size)] = 1
        for change in (noise, one, np.float32(size)):
            report = compare(model, tape | {where: tape[where] + change}, ids)
            assert report.first.name == where
            assert report.diagnosis == [f"{where}: this is none of the known mistakes"], str(change)
    # nearly a known mistake, but not up to rounding
    near = dict(planted(model, ids, "is the exact gelu (erf)"))
    near["mlp.0.post"] = near["mlp.0.post"] + np.float32(0.1) * (near["mlp.0.post"] - tape["mlp.0.post"])
    assert compare(model, near, ids).diagnosis[0] == "mlp.0.post: this is none of the known mistakes"
    parameters = dict(model.parameters)
    parameters["h.1.mlp.c_fc.weight"] = parameters["h.1.mlp.c_fc.weight"][:, ::-1]
    report = compare(model, tape_of(GPT2(model.config, parameters), ids), ids)
    assert report.diagnosis == ["mlp.1.pre: this is none of the known mistakes"]


def test_names_of_every_convention():
    """The same arrays under transformers', TransformerLens's and llm.c's names, in their layouts."""
    model = random_model()
    ids = some_ids(model)
    tape = tape_of(model, ids)
    config, (B, T) = model.config, ids.shape
    joined = {
        name: array.swapaxes(1, 2).reshape(B, T, -1) for name, array in tape.items() if name.endswith("heads")
    }
    modules = {
        "transformer.drop": tape["embed"],
        "transformer.ln_f": tape["final"],
        "lm_head": tape["logits"],
    }
    llm_c = {"encoded": tape["embed"], "lnf": tape["final"], "logits": tape["logits"]}
    lens = {"ln_final": tape["final"], "unembed": tape["logits"], "hook_embed": tape["embed"]}
    lens["embed.hook_out"] = lens["pos_embed.hook_out"] = 2 * tape["embed"]  # accepted, not compared
    stacked = {
        "ln1": "attn.N.in", "qkv": "attn.N.qkv", "att": "attn.N.pattern", "attproj": "attn.N.out",
        "residual2": "resid_mid.N", "ln2": "mlp.N.in", "fch": "mlp.N.pre", "fch_gelu": "mlp.N.post",
        "fcproj": "mlp.N.out", "residual3": "resid_post.N",
    }  # fmt: skip
    layers = range(config.n_layer)
    for name, ours in stacked.items():
        llm_c[name] = np.stack([tape[ours.replace("N", str(layer))] for layer in layers])
    llm_c["atty"] = np.stack([joined[f"attn.{layer}.heads"] for layer in layers])
    for n in layers:
        block = f"transformer.h.{n}"
        modules |= {f"{block}:in": tape[f"resid_pre.{n}"], block: tape[f"resid_post.{n}"]}
        modules |= {f"{block}.ln_1": tape[f"attn.{n}.in"], f"{block}.attn.c_attn": tape[f"attn.{n}.qkv"]}
        modules |= {f"{block}.attn": tape[f"attn.{n}.out"], f"{block}.attn:1": tape[f"attn.{n}.pattern"]}
        modules |= {
            f"{block}.attn.c_proj:in": joined[f"attn.{n}.heads"],
            f"{block}.mlp": tape[f"mlp.{n}.out"],
        }
        modules |= {f"{block}.ln_2:in": tape[f"resid_mid.{n}"], f"{block}.ln_2": tape[f"mlp.{n}.in"]}
        modules |= {f"{block}.mlp.c_fc": tape[f"mlp.{n}.pre"], f"{block}.mlp.act": tape[f"mlp.{n}.post"]}
        qkv = tape[f"attn.{n}.qkv"].reshape(B, T, 3, config.n_head, -1)
        lens |= {f"blocks.{n}.attn.hook_{part}": qkv[:, :, i] for i, part in enumerate("qkv")}
        lens |= {f"blocks.{n}.attn.hook_z": tape[f"attn.{n}.heads"].swapaxes(1, 2)}
        lens |= {f"blocks.{n}.hook_resid_pre": tape[f"resid_pre.{n}"]}
    for theirs, count in (
        (tape, len(tape)),
        (modules, len(tape) - 12),
        (llm_c, len(tape) - 15),
        (lens, 2 + 5 * 3),
    ):
        report = compare(model, theirs, ids)
        assert report.first is None, str(report)
        assert len(report.rows) == count
    assert compare(model, lambda ids: model(ids), ids[0]).first is None  # a function to logits


@pytest.mark.parametrize("head", ["tied", "untied"])
def test_from_state_dict(head):
    model = random_model(TINY.with_head(head))
    config = model.config
    names = {"ours": model.parameters}
    names["transformers"] = {f"transformer.{name}": array for name, array in model.parameters.items()}
    names["transformers"] |= {"transformer.h.0.attn.bias": np.zeros((1, 1, 3, 3))}
    names["nanoGPT"] = {
        f"_orig_mod.transformer.{name}": array.T if array.ndim == 2 and name.startswith("h.") else array
        for name, array in model.parameters.items()
    } | {"lm_head.weight": model.W_U.T}
    names["transformers"] |= {"lm_head.weight": model.W_U.T}
    names["transformers"].pop("transformer.lm_head.weight", None)
    names["nanoGPT"].pop("_orig_mod.transformer.lm_head.weight", None)
    if head == "tied":  # llm.c has no other head
        stacked = {name: [array] for name, array in model.parameters.items() if not name.startswith("h.")}
        for name, array in model.parameters.items():
            if name.startswith("h."):
                array = array.T if array.ndim == 2 else array
                stacked.setdefault(name.partition(".")[2].partition(".")[2], []).append(array)
        short = {"wte.weight": "wte", "wpe.weight": "wpe"}
        parts = {"ln_": "ln", "attn.c_attn": "qkv", "attn.c_proj": "attproj", "mlp.c_fc": "fc"}
        for part, theirs in {**parts, "mlp.c_proj": "fcproj", ".weight": "w", ".bias": "b"}.items():
            short |= {name: short.get(name, name).replace(part, theirs) for name in stacked}
        names["llm.c"] = {short[name]: np.squeeze(np.stack(arrays)) for name, arrays in stacked.items()}
        assert {"wte", "ln1w", "qkvb", "attprojw", "fcprojb", "lnfw"} < set(names["llm.c"])
    for state in names.values():
        read = from_state_dict(state, n_head=config.n_head)
        assert (read.config.tied, read.config.n_layer, read.config.n_inner) == (config.tied, 3, 100)
        assert all(np.array_equal(read.parameters[name], array) for name, array in model.parameters.items())
        wide = from_state_dict({name: a.astype(np.float64) for name, a in state.items()}, n_head=3)
        assert wide.dtype == np.float64
        if torch is not None:
            half = {name: torch.from_numpy(array.copy()).bfloat16() for name, array in state.items()}
            assert from_state_dict(half, n_head=3).dtype == np.float32
    bare = {name: array for name, array in model.parameters.items() if not name.endswith("bias")}
    assert not from_state_dict(bare, n_head=3, layer_norm_epsilon=1e-6).parameters["ln_f.bias"].any()


def test_gradients_are_compared():
    model = random_model()
    ids, targets = some_ids(model), some_ids(model, seed=1)
    _, arrays = loss_and_gradients(model, ids, targets)
    wrong = arrays | {"wte.weight": arrays["wte.weight"] * 1.001}
    assert compare(model, arrays, ids, targets).first is None
    assert compare(model, wrong, ids, targets).first.name == "wte.weight"


@pytest.mark.parametrize(
    ("theirs", "message"),
    [
        ({"attn.9.qkv": np.zeros(3)}, "attn.9.qkv was given, but the model's layers are 0 to 2"),
        ({"mlp.1.past": np.zeros(3)}, "'mlp.1.past' is no activation of a GPT-2; the nearest are mlp.1.post"),
        (
            {"mlp.0.pre": np.zeros((2, 100, 21))},
            r"expected \(2, 21, 100\); its transpose by axes \(0, 2, 1\) would",
        ),
        (
            {"mlp.0.pre": np.zeros((2, 21, 99))},
            r"mlp.0.pre has shape \(2, 21, 99\); expected \(2, 21, 100\)$",
        ),
        ({"embed": np.array(["a"])}, "'embed' must be an array of floats, got <U1"),
        ({"embed": np.array(1.0)}, r"'embed' must be an array of floats, got float64 \(\)"),
        ({"embed": [[1.0], [1.0, 2.0]]}, "'embed' must be an array of floats: "),
        ({"hook_embed": np.zeros(3)}, "nothing to compare"),
        ({}, r"expected a dict of arrays, logits, a torch module or a function, got \{\}"),
        ("mine.npz", "expected a dict of arrays, .* got 'mine.npz'"),
        (
            {"wte.weight": np.zeros((211, 48))},
            "wte.weight is a parameter: to compare its gradient, give targets",
        ),
        (lambda ids: ids / 0 + [][0], "the other model failed on these ids: IndexError: list index"),
    ],
)
def test_bad_input(theirs, message):
    model = random_model()
    with pytest.raises(ArgumentError, match=message), np.errstate(all="ignore"):
        compare(model, theirs, some_ids(model))


@needs_torch
def test_a_torch_module_that_is_no_gpt2():
    model = random_model()
    with pytest.raises(ArgumentError, match="Embedding has no module of a GPT-2"):
        compare(model, torch.nn.Embedding(211, 4), some_ids(model))
    with pytest.raises(ArgumentError, match="the other model failed on these ids: IndexError"):
        compare(model, TorchGPT2(random_model(SMALL)), some_ids(model))


def test_bad_gradients_and_state_dicts():
    model = random_model()
    ids = some_ids(model)
    with pytest.raises(ArgumentError, match=r"targets have shape \(1, 21\); expected that of ids, \(2, 21\)"):
        compare(model, {}, ids, ids[:1])
    with pytest.raises(ArgumentError, match=r"gradient of wpe.weight has shape \(48, 37\); .* would fit"):
        compare(model, {"wpe.weight": np.zeros((48, 37))}, ids, ids)
    with pytest.raises(ArgumentError, match="n_head cannot be read from the shapes of 3 layers of width 48"):
        from_state_dict(model.parameters)
    with pytest.raises(ArgumentError, match=r"it has no matrix wte\.weight"):
        from_state_dict({"ln_f.weight": np.ones(3)})
    with pytest.raises(ArgumentError, match="'conv1' is no parameter of a GPT-2"):
        from_state_dict({"conv1": np.ones(3)})


def test_float64_is_compared_as_float64():
    """A difference that float32 does not show is found in float64 arrays, not in float32 arrays."""
    model = random_model()
    ids = some_ids(model)
    wide = tape_of(model.astype(np.float64), ids)
    wide["mlp.1.pre"] = wide["mlp.1.pre"] * (1 + 1e-9)
    assert compare(model, wide, ids).first.name == "mlp.1.pre"
    assert compare(model, {name: array.astype(np.float32) for name, array in wide.items()}, ids).first is None
    # float32 numbers in float64 arrays, as a list of Python floats gives, are float32 numbers
    narrow = {name: array.astype(np.float64) for name, array in tape_of(model, ids).items()}
    assert compare(model, narrow, ids).first is None


def test_nan_in_theirs_says_where_it_is_first():
    model = random_model()
    ids = some_ids(model, T=5)
    tape = tape_of(model, ids)
    tape["mlp.1.pre"] = tape["mlp.1.pre"].copy()
    tape["mlp.1.pre"][1, 3, 5] = np.nan
    report = compare(model, tape, ids)
    assert report.first.first_wrong == (1, 3, 5)
    assert "first difference: mlp.1.pre[1, 3, 5] is nan, expected" in str(report)


def test_the_assertion_and_the_fixture(tiny_gpt2):  # noqa: F811
    assert_same_gpt2(lambda ids: tape_of(tiny_gpt2, ids), model=tiny_gpt2)
    with pytest.raises(AssertionError, match=r"not the same GPT-2(.|\n)*mlp\.0\.post: yours is relu"):
        assert_same_gpt2(lambda ids: planted(tiny_gpt2, ids, "is relu"), model=tiny_gpt2)


def test_torch_is_not_imported():
    code = "import sys, tiedgpt.testing, tiedgpt.cli.compare; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_comparing_changes_no_logit():
    model = random_model(replace(TINY, n_layer=1))
    ids = some_ids(model, B=1, T=5)
    before = model(ids)
    Comparison(model, ids, {"logits": before + 1}).report({}, None)
    assert np.array_equal(model(ids), before)


def run_command(monkeypatch, capsys, *args: str) -> tuple[int, str, str]:
    try:
        code = cli.main(["compare", "--model", "shakespeare-tied", *map(str, args)])
    except SystemExit as end:
        code = end.code
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command(monkeypatch, capsys, tmp_path):
    model = MODELS["shakespeare"]
    ids = np.array(tiedgpt.load_tokenizer("shakespeare-tied").encode("ROMEO: But soft"))
    right, wrong = tape_of(model, ids), planted(model, ids[None], "is relu")
    np.savez(tmp_path / "right.npz", ids=ids, **right)
    np.savez(tmp_path / "wrong.npz", ids=ids, **wrong)
    np.savez(tmp_path / "no ids.npz", **wrong)
    (tmp_path / "folder").mkdir()
    for name, array in {"ids": ids, **wrong}.items():
        np.save(tmp_path / "folder" / f"{name}.npy", array)
    code, out, _ = run_command(monkeypatch, capsys, "--with", tmp_path / "right.npz")
    assert (code, out.splitlines()[-1][:9]) == (0, "all agree")
    for file in ("wrong.npz", "folder"):
        code, out, _ = run_command(monkeypatch, capsys, "--with", tmp_path / file)
        assert (code, out.splitlines()[-1]) == (1, "mlp.0.post: yours is relu, in every layer")
        code, out, _ = run_command(monkeypatch, capsys, "--with", tmp_path / file, "--json")
        assert (json.loads(out)["same"], code) == (False, 1)
        assert len(json.loads(out)["rows"]) == len(right)

    np.savez(tmp_path / "nan.npz", ids=ids, embed=right["embed"] * np.nan)
    code, out, _ = run_command(monkeypatch, capsys, "--with", tmp_path / "nan.npz", "--json")
    assert (parse_json(out)["rows"][0]["yours"], code) == (None, 1)

    np.savez(tmp_path / "only ids.npz", ids=ids)
    np.savez(tmp_path / "pickle.npz", embed=np.array([{}], dtype=object))
    (tmp_path / "text.npz").write_text("not an archive")
    (tmp_path / "empty").mkdir()
    for file, message in (
        ("pickle.npz", "Object arrays cannot be loaded when allow_pickle=False"),
        ("text.npz", "expected an .npz archive or a directory of .npy files"),
        ("empty", "there are no arrays in it"),
        ("none.npz", "No such file or directory"),
        ("only ids.npz", "has no activations beside `ids`"),
        ("no ids.npz", "has no `ids`: add the token ids that the other model read"),
    ):
        code, out, err = run_command(monkeypatch, capsys, "--with", tmp_path / file)
        assert (code, out) == (2, "")
        assert message in err
        assert err.count("\n") == 1
