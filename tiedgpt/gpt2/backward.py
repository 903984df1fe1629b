"""The backward pass: the gradient of the loss with respect to every parameter.

The functions are those of model.py in reverse order. A comment above each derivative has the line
of the forward pass that it differentiates. `dx` is the gradient of the loss with respect to x, and
has x's shape. `run` has the tape of the forward pass. `grad` has an array for each gradient, nested
as the parameters are.

The arrays in `grad` are overwritten, so a second call gives the same result. Gradients are added in
the two places where the forward pass uses an array twice: the residual stream, which goes into each
layer and past it, and a tied wte, which is both the token embedding and the output matrix.
"""

from typing import Any

import numpy as np
from numpy.random import Generator

from ..fast.threads import LOGIT_ROWS
from .activations import ACTIVATIONS
from .checks import check_ids, check_targets
from .model import GPT2, Array, attention_scale, merge_heads, split_heads, transformer
from .ops import (
    cross_entropy,
    cross_entropy_backward,
    layer_norm_backward,
    linear_backward,
    softmax_backward,
)
from .parameters import Parameters, nest
from .run import Run

Tree = dict[str, Any]  # parameters or gradients in nested dicts, made by `nest`


def loss_and_gradients(model: GPT2, ids: Any, targets: Any) -> tuple[float, Parameters]:
    """The mean loss of predicting `targets` from `ids`, [T] or [B, T], in nats per token, and its
    gradients.

    The gradients are arrays under the names of the parameters. There is no dropout. Raises
    ArgumentError for ids or targets outside the vocabulary, and for targets of another shape than
    ids.
    """
    ids = check_ids(ids, model.config)
    targets = np.atleast_2d(check_targets(targets, ids, model.config))
    gradients = {name: np.empty_like(array) for name, array in model.parameters.items()}
    return write_gradients(model, np.atleast_2d(ids), targets, targets.size, gradients), gradients


def write_gradients(
    model: GPT2,
    ids: Array,
    targets: Array,
    total: int,
    gradients: Parameters,
    rng: Generator | None = None,
) -> float:
    """As loss_and_gradients, for a part of a batch of `total` tokens: the parts add up to the
    batch.

    `targets` and `ids` are [B, T] and are not checked. The gradients are written into the arrays of
    `gradients`. `rng` is for the dropout of the config; without it there is none.
    """
    grad = nest(gradients)
    run = Run(model.config, tape={}, rng=rng, unrecorded=("attn.N.scores",))
    final = transformer(ids, model.tree, run)
    # If tied, the output matrix is wte: its gradient goes there, and embed_backward adds to it.
    head = "wte" if model.config.tied else "lm_head"
    loss, dfinal = unembed_backward(final, model.W_U, targets, total, grad[head]["weight"])
    transformer_backward(dfinal, ids, model.tree, run, grad)
    return loss


def write_head_gradient(model: GPT2, ids: Array, targets: Array, total: int, dhead: Array) -> float:
    """As write_gradients, for the output matrix of an untied model alone: into dhead [V, D], no
    dropout."""
    final = transformer(ids, model.tree, Run(model.config))
    return unembed_backward(final, model.W_U, targets, total, dhead)[0]


def unembed_backward(  # [B, T, D], [D, V], [B, T] -> loss, [B, T, D]
    final: Array, W_U: Array, targets: Array, total: int, dhead: Array
) -> tuple[float, Array]:
    """The loss and dfinal. Writes the gradient of the output matrix, as W_U.T, into dhead [V, D].

    The logits are V / D times as large as `final`, so only those of LOGIT_ROWS tokens are in
    memory.
    """
    N, D = targets.size, final.shape[-1]
    rows, flat_targets = final.reshape(N, D), targets.reshape(N)
    dfinal = np.empty_like(rows)
    loss = 0.0
    for start in range(0, N, LOGIT_ROWS):
        x, y = rows[start : start + LOGIT_ROWS], flat_targets[start : start + LOGIT_ROWS]
        logits = x @ W_U
        losses = cross_entropy(logits, y)
        loss += float(losses.sum()) / total

        # loss = sum(losses) / total
        dlosses = np.full_like(losses, 1 / total)
        # losses = cross_entropy(logits, y)
        dlogits = cross_entropy_backward(dlosses, logits, y)
        # logits = x @ W_U: dx = dlogits @ W_U.T, dW_U = x.T @ dlogits, and dhead is the transpose
        # of dW_U
        np.matmul(dlogits, W_U.T, out=dfinal[start : start + LOGIT_ROWS])
        if start == 0:
            np.matmul(dlogits.T, x, out=dhead)
        else:
            dhead += dlogits.T @ x
    return loss, dfinal.reshape(final.shape)


def transformer_backward(dfinal: Array, ids: Array, tree: Tree, run: Run, grad: Tree) -> None:
    """Write the gradients of all parameters but the output matrix, from dfinal [B, T, D]."""
    # final = layer_norm(resid, **ln_f)
    eps, run.layer = run.config.layer_norm_epsilon, len(tree["h"]) - 1
    resid = run.taped("resid_post.N" if tree["h"] else "embed")
    dresid = layer_norm_backward(dfinal, resid, tree["ln_f"]["weight"], eps, grad["ln_f"])
    # resid = transformer_block(resid, block, run)
    for layer in reversed(range(len(tree["h"]))):
        run.layer = layer
        dresid = transformer_block_backward(dresid, tree["h"][layer], run, grad["h"][layer])
    # resid = dropout(wte[ids] + wpe[positions])
    dresid = run.redo_dropout("embed", dresid)
    embed_backward(dresid, ids, run.config.tied, grad["wte"]["weight"], grad["wpe"]["weight"])


def transformer_block_backward(dresid: Array, block: Tree, run: Run, grad: Tree) -> Array:
    """Turn the gradient of resid_post [B, T, D] into that of resid_pre, in place."""
    eps = run.config.layer_norm_epsilon
    # resid_post = resid_mid + mlp(layer_norm(resid_mid, **ln_2)): two gradients reach resid_mid and
    # add up
    dmlp_in = mlp_backward(dresid, block["mlp"], run, grad["mlp"])
    resid_mid = run.taped("resid_mid.N")
    dresid += layer_norm_backward(dmlp_in, resid_mid, block["ln_2"]["weight"], eps, grad["ln_2"])

    # resid_mid = resid_pre + attention(layer_norm(resid_pre, **ln_1)): two gradients reach
    # resid_pre
    dattn_in = attention_backward(dresid, block["attn"], run, grad["attn"])
    resid_pre = run.taped("resid_pre.N")
    dresid += layer_norm_backward(dattn_in, resid_pre, block["ln_1"]["weight"], eps, grad["ln_1"])
    return dresid


def mlp_backward(dout: Array, mlp: Tree, run: Run, grad: Tree) -> Array:  # [B, T, D] -> [B, T, D]
    """From the gradient of the MLP's output to that of its input."""
    # out = dropout(linear(post, **c_proj))
    dout = run.redo_dropout("mlp.N.out", dout)
    dpost = linear_backward(dout, run.taped("mlp.N.post"), mlp["c_proj"]["weight"], grad["c_proj"])
    # post = activation(pre)
    dpre = ACTIVATIONS[run.config.activation_function].backward(dpost, run.taped("mlp.N.pre"))
    # pre = linear(x, **c_fc)
    return linear_backward(dpre, run.taped("mlp.N.in"), mlp["c_fc"]["weight"], grad["c_fc"])


def attention_backward(
    dout: Array, attn: Tree, run: Run, grad: Tree
) -> Array:  # [B, T, D] -> [B, T, D]
    """From the gradient of attention's output to that of its input."""
    H = run.config.n_head
    qkv, pattern, heads = (run.taped(f"attn.N.{name}") for name in ("qkv", "pattern", "heads"))
    q, k, v = split_heads(qkv, H)  # each [B, H, T, K]
    dqkv = np.empty_like(qkv)  # [B, T, 3 D]
    dq, dk, dv = split_heads(dqkv, H)  # views: writing to them writes to dqkv

    # out = dropout(linear(merge_heads(heads), **c_proj))
    dout = run.redo_dropout("attn.N.out", dout)
    dmerged = linear_backward(dout, merge_heads(heads), attn["c_proj"]["weight"], grad["c_proj"])
    dheads = dmerged.reshape(*dout.shape[:2], H, -1).swapaxes(1, 2)  # [B, H, T, K]

    # heads = dropout(pattern) @ v
    dropped = run.redo_dropout("attn.N.pattern", pattern)
    np.matmul(dropped.swapaxes(-1, -2), dheads, out=dv)
    dpattern = run.redo_dropout("attn.N.pattern", dheads @ v.swapaxes(-1, -2))  # [B, H, T, T]

    # pattern = softmax(scores): at masked scores the pattern is 0, so the gradient is 0
    dscores = softmax_backward(dpattern, pattern)

    # scores = (q * scale) @ k.swapaxes(-1, -2)
    dscores *= attention_scale(run.config, run.layer)
    np.matmul(dscores, k, out=dq)
    np.matmul(dscores.swapaxes(-1, -2), q, out=dk)

    # q, k, v = split_heads(qkv): dq, dk and dv are views, so dqkv is complete
    # qkv = linear(x, **c_attn)
    return linear_backward(dqkv, run.taped("attn.N.in"), attn["c_attn"]["weight"], grad["c_attn"])


def embed_backward(dresid: Array, ids: Array, tied: bool, dwte: Array, dwpe: Array) -> None:
    """resid = wte[ids] + wpe[positions]: the gradient of a row is the sum over all places that use
    it."""
    _, T, D = dresid.shape
    dwpe[:T] = dresid.sum(axis=0)
    dwpe[T:] = 0

    # dwte[ids] += dresid would add only one of the gradients of a row. np.add.at adds all of them,
    # but takes twice as long as this: sort by token, then sum each group of equal tokens with
    # reduceat.
    order = np.argsort(ids, axis=None, kind="stable")
    tokens, first = np.unique(ids.reshape(-1)[order], return_index=True)
    d_embed = np.add.reduceat(dresid.reshape(-1, D)[order], first, axis=0)  # [len(tokens), D]

    # The tied gradient: wte was used as the embedding and as the output matrix. The two gradients
    # are added here; dwte has the output matrix's already. If untied, that gradient is in
    # lm_head.weight.
    if not tied:
        dwte[...] = 0
    dwte[tokens] += d_embed
