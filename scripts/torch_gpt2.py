"""GPT-2 as a plain torch module, for benchmark_sides.py. Importing this file imports torch.

The module's state_dict has the names of a checkpoint. `attend(layer, q, k, v)` computes the
attention of one layer, from q, k, v [B, H, T, K] to [B, H, T, K]; a caller with a KV cache passes
its own.

Shapes: B sequences of T tokens, after S - T tokens before them if there is a cache; H heads of K
numbers, D numbers for each token, F numbers inside the MLP.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

Module: Any = nn.Module


def causal(layer: int, q: Any, k: Any, v: Any) -> Any:
    """Attention without a cache."""
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class Block(Module):
    def __init__(self, config: Any) -> None:
        super().__init__()
        D = config.n_embd
        F = config.n_inner
        self.H = config.n_head
        self.K = D // config.n_head
        self.ln_1 = nn.LayerNorm(D, eps=config.layer_norm_epsilon)
        self.ln_2 = nn.LayerNorm(D, eps=config.layer_norm_epsilon)
        self.attn = nn.ModuleDict({"c_attn": nn.Linear(D, 3 * D), "c_proj": nn.Linear(D, D)})
        self.mlp = nn.ModuleDict({"c_fc": nn.Linear(D, F), "c_proj": nn.Linear(F, D)})

    def forward(self, x: Any, attend: Callable[..., Any]) -> Any:  # x [B, T, D] -> [B, T, D]
        B, T = x.shape[:2]
        qkv = self.attn["c_attn"](self.ln_1(x)).view(B, T, 3, self.H, self.K)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind()  # each [B, H, T, K]
        heads = attend(q, k, v)
        merged_heads = heads.transpose(1, 2).reshape(x.shape)
        x = x + self.attn["c_proj"](merged_heads)
        hidden = functional.gelu(self.mlp["c_fc"](self.ln_2(x)), approximate="tanh")
        return x + self.mlp["c_proj"](hidden)


class GPT2(Module):
    """GPT-2 with a tied output matrix, for tiedgpt's Config."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        D = config.n_embd
        self.n_head = config.n_head
        self.head_width = D // config.n_head
        self.wte = nn.Embedding(config.vocab_size, D)
        self.wpe = nn.Embedding(config.n_ctx, D)
        self.h = nn.ModuleList(Block(config) for _ in range(config.n_layer))
        self.ln_f = nn.LayerNorm(D, eps=config.layer_norm_epsilon)

    def hidden(self, ids: Any, start: int = 0, attend: Callable[..., Any] = causal) -> Any:
        """The final hidden states [B, T, D] of ids [B, T]. start: the first token's position."""
        T = ids.shape[1]
        x = self.wte(ids) + self.wpe.weight[start : start + T]
        for layer, block in enumerate(self.h):
            x = block(x, partial(attend, layer))
        return self.ln_f(x)

    def forward(self, ids: Any) -> Any:  # [B, T] -> [B, T, V]
        return functional.linear(self.hidden(ids), self.wte.weight)


class Cache:
    """The keys and values of B sequences of at most T tokens. The memory is allocated once."""

    def __init__(self, model: GPT2, B: int, T: int) -> None:
        shape = (2, B, model.n_head, T, model.head_width)  # 2: keys and values
        self.layers = [torch.empty(shape) for _ in model.h]
        self.length = 0  # tokens whose keys and values are there; the caller adds to it

    def attend(self, layer: int, q: Any, k: Any, v: Any) -> Any:
        """Write new keys and values, and attend to all so far."""
        T = q.shape[2]
        end = self.length + T
        keys_and_values = self.layers[layer][:, :, :, :end]  # [2, B, H, end, K]
        keys, values = keys_and_values
        keys[:, :, self.length :] = k
        values[:, :, self.length :] = v
        # A step after the prompt has one query, which may see every key.
        is_causal = self.length == 0
        return functional.scaled_dot_product_attention(q, keys, values, is_causal=is_causal)


class PromptAttention:
    """Attention without a past, which keeps the keys and values."""

    start = 0

    def __init__(self) -> None:
        self.present: list[Any] = []

    def attend(self, layer: int, q: Any, k: Any, v: Any) -> Any:
        self.present += [k, v]
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


class StepAttention:
    """Attention that also sees the keys and values of the tokens before, `past`."""

    def __init__(self, ids: Any, rows: Any, past: tuple[Any, ...]) -> None:
        T = ids.shape[1]
        self.rows = rows
        self.past = past
        self.start = past[0].shape[2]  # the number of tokens before
        positions = torch.arange(self.start + T)  # [S]
        positions_of_ids = positions[self.start :, None]  # [T, 1]
        # A token of ids sees those up to itself.
        self.mask = positions <= positions_of_ids  # [T, S]
        self.present: list[Any] = []

    def attend(self, layer: int, q: Any, k: Any, v: Any) -> Any:
        # `past` has the keys and the values of each layer in turn. `rows` selects sequences of the
        # cache: so OpenVINO fuses cache and attention.
        past_k = self.past[2 * layer].index_select(0, self.rows)
        past_v = self.past[2 * layer + 1].index_select(0, self.rows)
        k = torch.cat([past_k, k], dim=2)
        v = torch.cat([past_v, v], dim=2)
        self.present += [k, v]
        return functional.scaled_dot_product_attention(q, k, v, attn_mask=self.mask)


class WithCache(Module):
    """What OpenVINO converts. It reads a prompt, or the tokens after a prompt."""

    def __init__(self, model: GPT2) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Any, rows: Any = None, *past: Any) -> Any:
        """The logits of the last position, [B, V], and the keys and values of all tokens.

        ids [B, T]: the tokens to read. past: the keys and the values of the tokens before, for each
        layer in turn, [B, H, S, K]; none for a prompt. rows [B]: for each row of ids, the index of
        its sequence in `past`.
        """
        attention: PromptAttention | StepAttention
        if past:
            attention = StepAttention(ids, rows, past)
        else:
            attention = PromptAttention()
        hidden = self.model.hidden(ids, attention.start, attention.attend)
        logits = functional.linear(hidden[:, -1], self.model.wte.weight)  # of the last position
        return logits, *attention.present
