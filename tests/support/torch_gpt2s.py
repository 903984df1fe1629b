"""GPT-2 as torch modules: with the names of nanoGPT, with other names, and that of transformers."""

import math
from collections import OrderedDict

import numpy as np
import torch
from torch import nn

torch.set_num_threads(1)


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.n_head = config.n_head
        self.c_attn = nn.Linear(config.n_embd, 3 * config.n_embd)
        self.c_proj = nn.Linear(config.n_embd, config.n_embd)

    def forward(self, x):
        B, T, D = x.shape
        K = D // self.n_head
        q, k, v = self.c_attn(x).split(D, dim=2)
        q = q.view(B, T, self.n_head, K).transpose(1, 2)
        k = k.view(B, T, self.n_head, K).transpose(1, 2)
        v = v.view(B, T, self.n_head, K).transpose(1, 2)
        scores = q @ k.transpose(2, 3) / math.sqrt(K)
        is_later = torch.ones(T, T, dtype=torch.bool).triu(1)
        pattern = scores.masked_fill(is_later, -math.inf).softmax(dim=-1)
        heads = (pattern @ v).transpose(1, 2)
        return self.c_proj(heads.reshape(B, T, D))


def mlp(config):
    layers = {
        "c_fc": nn.Linear(config.n_embd, config.n_inner),
        "gelu": nn.GELU(approximate="tanh"),
        "c_proj": nn.Linear(config.n_inner, config.n_embd),
    }
    return nn.Sequential(OrderedDict(layers))


class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.ln_1 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.attn = Attention(config)
        self.ln_2 = nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon)
        self.mlp = mlp(config)

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class NanoGPT(nn.Module):
    """As in nanoGPT: with dropout, and with the logits of the last token only, without targets."""

    def __init__(self, config):
        super().__init__()
        modules = {
            "wte": nn.Embedding(config.vocab_size, config.n_embd),
            "wpe": nn.Embedding(config.n_ctx, config.n_embd),
            "drop": nn.Dropout(0.5),
            "h": nn.ModuleList([Block(config) for _ in range(config.n_layer)]),
            "ln_f": nn.LayerNorm(config.n_embd, eps=config.layer_norm_epsilon),
        }
        self.transformer = nn.ModuleDict(modules)
        self.lm_head = nn.Linear(config.n_embd, config.vocab_size, bias=False)
        if config.tied:  # one parameter is both
            self.lm_head.weight = self.transformer.wte.weight

    def forward(self, ids, targets=None):
        positions = torch.arange(ids.shape[1])
        x = self.transformer.wte(ids) + self.transformer.wpe(positions)
        x = self.transformer.drop(x)
        for block in self.transformer.h:
            x = block(x)
        x = self.transformer.ln_f(x)
        if targets is None:
            return self.lm_head(x[:, [-1]])
        return self.lm_head(x)


class TiedByHand(nn.Module):
    """A GPT-2 with transformers' names and no lm_head: its logits are x @ wte.weight.T.

    eps: of the layer norms. has_ln_f: without it, ln_f changes nothing. wrong: a function of the
    right logits. returned: a function from the logits to what the module returns.
    """

    names = ("wte", "wpe", "h", "ln_f")

    def __init__(self, model, eps=None, has_ln_f=True, wrong=lambda x: x, returned=lambda x: x):
        super().__init__()
        right = nano_gpt(model).transformer
        for module in right.modules():
            if isinstance(module, nn.LayerNorm) and eps is not None:
                module.eps = eps
        ln_f = right.ln_f if has_ln_f else nn.Identity()
        parts = (right.wte, right.wpe, right.h, ln_f)
        for name, part in zip(self.names, parts, strict=True):
            self.add_module(name, part)
        self.wrong = wrong
        self.returned = returned

    def forward(self, ids):
        wte, wpe, blocks, ln_f = self.children()
        x = wte(ids) + wpe(torch.arange(ids.shape[1]))
        for block in blocks:
            x = block(x)
        return self.returned(self.wrong(ln_f(x) @ wte.weight.T))


class OwnNames(TiedByHand):
    """The same, but no module has a name of a known GPT-2."""

    names = ("tokens", "places", "layers", "last_norm")


def nano_gpt(model):
    """A NanoGPT with the model's parameters."""
    theirs = NanoGPT(model.config)
    theirs.load_state_dict(state_dict(model, transposed=True))
    return theirs


def transformers_gpt2(model):
    """transformers' GPT-2 with the model's parameters."""
    import transformers  # nano_gpt works without it

    config = transformers.GPT2Config(**model.config.to_json())
    theirs = transformers.GPT2LMHeadModel(config).eval()
    theirs.load_state_dict(state_dict(model))
    return theirs


def state_dict(model, transposed=False):
    """The parameters under the names of transformers.

    transposed: the matrices of the blocks are transposed, as nanoGPT has them.
    """
    # np.array copies, so that a training in torch does not change the model.
    state = {"lm_head.weight": torch.from_numpy(np.array(model.W_U.T))}
    for name, array in model.parameters.items():
        if name == "lm_head.weight":
            continue  # W_U is in the state already
        is_matrix_of_a_block = name.startswith("h.") and array.ndim == 2
        if transposed and is_matrix_of_a_block:
            array = array.T
        state[f"transformer.{name}"] = torch.from_numpy(np.array(array))
    return state
