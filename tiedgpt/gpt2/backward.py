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

from ..threads import LOGIT_ROWS
from .activations import ACTIVATIONS
from .checks import check_ids, check_targets
from .config import Config
from .model import GPT2, Array, attention_scale, merge_heads, split_heads, transformer
from .ops import (
    cross_entropy,
    cross_entropy_backward,
    layer_norm_backward,
    linear_backward,
    softmax_backward,
)
from .parameters import Parameters, nest
from .run import Run, Tape, in_each_layer

Tree = dict[str, Any]  # parameters or gradients in nested dicts, made by `nest`


def loss_and_gradients(model: GPT2, ids: Any, targets: Any) -> tuple[float, Parameters]:
    """The mean loss of predicting `targets` from `ids`, and the gradient of every parameter.

    ids and targets are [T] or [B, T]; the loss is in nats per token. The gradients are arrays under
    the names of the parameters. There is no dropout. Raises ArgumentError for ids or targets
    outside the vocabulary, and for targets of another shape than ids.
    """
    ids = check_ids(ids, model.config)
    targets = check_targets(targets, ids, model.config)
    gradients = {name: np.empty_like(array) for name, array in model.parameters.items()}
    loss = write_gradients(
        model, np.atleast_2d(ids), np.atleast_2d(targets), targets.size, gradients
    )
    return loss, gradients


def write_gradients(
    model: GPT2,
    ids: Array,
    targets: Array,
    total: int,
    gradients: Parameters,
    rng: Generator | None = None,
) -> float:
    """The loss of a part of a batch. Writes its gradients into the arrays of `gradients`.

    `total` is the tokens of the whole batch. The losses of the part's tokens are added up and
    divided by `total`. So the losses of the parts add up to the mean loss of the batch, and their
    gradients to its gradients. `ids` and `targets` are [B, T] and are not checked. `rng` is for the
    dropout of the config; without it there is none.
    """
    grad = nest(gradients)
    tape: Tape = {}
    # The backward pass computes the gradient of scores from the pattern, without the scores.
    unrecorded = in_each_layer(["attn.N.scores"], model.config)
    run = Run(model.config, tape=tape, rng=rng, unrecorded=unrecorded)
    final = transformer(ids, model.tree, run)

    # If tied, the output matrix is wte: its gradient goes there, and embed_backward adds to it.
    head = "wte" if model.config.tied else "lm_head"
    loss, dfinal = unembed_backward(final, model.W_U, targets, total, grad[head]["weight"])
    transformer_backward(dfinal, ids, model.tree, model.config, tape, grad)
    return loss


def write_head_gradient(model: GPT2, ids: Array, targets: Array, total: int, dhead: Array) -> float:
    """The loss of a part of a batch. Writes its head's gradient into dhead [V, D].

    The model is untied. Its other parameters are not trained. `total` is the tokens of the
    whole batch, by which the sum of the losses is divided. There is no dropout.
    """
    final = transformer(ids, model.tree, Run(model.config))
    loss, _ = unembed_backward(final, model.W_U, targets, total, dhead)
    return loss


def unembed_backward(  # [B, T, D], [D, V], [B, T] -> loss, [B, T, D]
    final: Array, W_U: Array, targets: Array, total: int, dhead: Array
) -> tuple[float, Array]:
    """The loss and dfinal. Writes the gradient of the output matrix, as W_U.T, into dhead [V, D].

    `total` is the tokens of the whole batch, of which these B T may be a part. The loss is the sum
    of these tokens' losses divided by `total`, so that the parts add up to the mean of the batch.

    The logits are V / D times as large as `final`, 65 times for GPT-2. So they are computed for
    LOGIT_ROWS tokens at a time.
    """
    N = targets.size  # B T
    D = final.shape[-1]
    rows = final.reshape(N, D)
    flat_targets = targets.reshape(N)
    drows = np.empty_like(rows)
    loss = 0.0
    for start in range(0, N, LOGIT_ROWS):
        part = slice(start, start + LOGIT_ROWS)
        x = rows[part]
        logits = x @ W_U
        losses = cross_entropy(logits, flat_targets[part])
        loss += float(losses.sum()) / total

        # loss = sum(losses) / total
        dlosses = np.full_like(losses, 1 / total)

        # losses = cross_entropy(logits, targets)
        dlogits = cross_entropy_backward(dlosses, logits, flat_targets[part])

        # logits = x @ W_U, so dx = dlogits @ W_U.T and dW_U = x.T @ dlogits.
        # dhead is the transpose of dW_U.
        np.matmul(dlogits, W_U.T, out=drows[part])
        if start == 0:
            np.matmul(dlogits.T, x, out=dhead)
        else:
            dhead += dlogits.T @ x
    return loss, drows.reshape(final.shape)


def transformer_backward(
    dfinal: Array, ids: Array, tree: Tree, config: Config, tape: Tape, grad: Tree
) -> None:
    """Write the gradients of all parameters but the output matrix, from dfinal [B, T, D]."""
    # final = norm(resid, ln_f)
    L = config.n_layer
    resid = tape["embed"] if L == 0 else tape[f"resid_post.{L - 1}"]
    eps = config.layer_norm_epsilon
    dresid = layer_norm_backward(dfinal, resid, tree["ln_f"]["weight"], eps, grad["ln_f"])

    # resid = transformer_block(resid, block, layer, run)
    for layer in reversed(range(L)):
        dresid = transformer_block_backward(
            dresid, tree["h"][layer], layer, config, tape, grad["h"][layer]
        )

    # resid = dropout(wte[ids] + wpe[positions])
    dresid = dropout_backward(dresid, "embed", tape)
    embed_backward(dresid, ids, config.tied, grad["wte"]["weight"], grad["wpe"]["weight"])


def transformer_block_backward(  # [B, T, D] -> [B, T, D]
    dresid: Array, block: Tree, layer: int, config: Config, tape: Tape, grad: Tree
) -> Array:
    """Turn the gradient of resid_post into that of resid_pre, in place."""
    eps = config.layer_norm_epsilon
    # resid_post = resid_mid + mlp(norm(resid_mid, ln_2))
    # Two gradients reach resid_mid and add up: dresid itself, and the one through the MLP.
    dmlp_in = mlp_backward(dresid, block["mlp"], layer, config, tape, grad["mlp"])
    resid_mid = tape[f"resid_mid.{layer}"]
    dresid += layer_norm_backward(dmlp_in, resid_mid, block["ln_2"]["weight"], eps, grad["ln_2"])

    # resid_mid = resid_pre + attention(norm(resid_pre, ln_1))
    # Two gradients reach resid_pre in the same way.
    dattn_in = attention_backward(dresid, block["attn"], layer, config, tape, grad["attn"])
    resid_pre = tape[f"resid_pre.{layer}"]
    dresid += layer_norm_backward(dattn_in, resid_pre, block["ln_1"]["weight"], eps, grad["ln_1"])
    return dresid


def mlp_backward(  # [B, T, D] -> [B, T, D]
    dout: Array, mlp: Tree, layer: int, config: Config, tape: Tape, grad: Tree
) -> Array:
    """From the gradient of the MLP's output to that of its input."""
    x = tape[f"mlp.{layer}.in"]
    pre = tape[f"mlp.{layer}.pre"]
    post = tape[f"mlp.{layer}.post"]

    # out = dropout(linear(post, **c_proj))
    dout = dropout_backward(dout, f"mlp.{layer}.out", tape)
    dpost = linear_backward(dout, post, mlp["c_proj"]["weight"], grad["c_proj"])

    # post = activation(pre)
    dpre = ACTIVATIONS[config.activation_function].backward(dpost, pre)

    # pre = linear(x, **c_fc)
    return linear_backward(dpre, x, mlp["c_fc"]["weight"], grad["c_fc"])


def attention_backward(  # [B, T, D] -> [B, T, D]
    dout: Array, attn: Tree, layer: int, config: Config, tape: Tape, grad: Tree
) -> Array:
    """From the gradient of attention's output to that of its input."""
    B, T, D = dout.shape
    H = config.n_head
    x = tape[f"attn.{layer}.in"]
    qkv = tape[f"attn.{layer}.qkv"]
    pattern = tape[f"attn.{layer}.pattern"]  # [B, H, T, T]
    heads = tape[f"attn.{layer}.heads"]  # [B, H, T, K]
    q, k, v = split_heads(qkv, H)  # each [B, H, T, K]
    dqkv = np.empty_like(qkv)  # [B, T, 3 D]
    dq, dk, dv = split_heads(dqkv, H)  # views: writing to them writes to dqkv

    # out = dropout(linear(merge_heads(heads), **c_proj))
    dout = dropout_backward(dout, f"attn.{layer}.out", tape)
    dmerged = linear_backward(dout, merge_heads(heads), attn["c_proj"]["weight"], grad["c_proj"])
    dheads = dmerged.reshape(B, T, H, D // H).swapaxes(1, 2)  # [B, H, T, K]

    # heads = dropped @ v, with dropped = dropout(pattern)
    # Dropout and its derivative multiply by the same factors, so dropout_backward does both.
    dropped = dropout_backward(pattern, f"attn.{layer}.pattern", tape)
    np.matmul(dropped.swapaxes(2, 3), dheads, out=dv)
    ddropped = dheads @ v.swapaxes(2, 3)
    dpattern = dropout_backward(ddropped, f"attn.{layer}.pattern", tape)

    # pattern = softmax(scores): where the mask is -inf the pattern is 0, so the gradient is 0.
    dscores = softmax_backward(dpattern, pattern)

    # scores = (q * scale) @ k.swapaxes(2, 3)
    dscores *= attention_scale(config, layer)
    np.matmul(dscores, k, out=dq)
    np.matmul(dscores.swapaxes(2, 3), q, out=dk)

    # q, k, v = split_heads(qkv): dq, dk and dv are views of dqkv, so dqkv is complete.
    # qkv = linear(x, **c_attn)
    return linear_backward(dqkv, x, attn["c_attn"]["weight"], grad["c_attn"])


def dropout_backward(dout: Array, name: str, tape: Tape) -> Array:  # [...] -> [...]
    """out = x * factors, so dx = dout * factors. The tape has the factors that Run.dropout drew."""
    factors = tape.get(f"{name}.kept")
    if factors is None:  # there was no dropout
        return dout
    return dout * factors


def embed_backward(dresid: Array, ids: Array, tied: bool, dwte: Array, dwpe: Array) -> None:
    """resid = wte[ids] + wpe[positions]: a row's gradient is the sum over all places that use it.

    dresid [B, T, D], ids [B, T]; writes dwte [V, D] and dwpe [n_ctx, D].
    """
    _, T, D = dresid.shape
    dwpe[:T] = dresid.sum(axis=0)
    dwpe[T:] = 0

    # dwte[ids] += dresid would add only one of the gradients of a row. np.add.at adds all of them,
    # but takes twice as long as this: sort by token, then sum each group of equal tokens.
    order = np.argsort(ids, axis=None, kind="stable")
    sorted_ids = ids.reshape(-1)[order]
    sorted_gradients = dresid.reshape(-1, D)[order]
    tokens, group_starts = np.unique(sorted_ids, return_index=True)
    d_embed = np.add.reduceat(sorted_gradients, group_starts, axis=0)  # [len(tokens), D]

    # The tied gradient: wte was used as the embedding and as the output matrix. dwte has the
    # gradient of the output matrix already, and that of the embedding is added to it. If untied,
    # the gradient of the output matrix is in lm_head.weight.
    if not tied:
        dwte[...] = 0
    dwte[tokens] += d_embed
