"""Backward: the gradient of the loss by every parameter. model.py and its functions, read from the end.

Above each derivative stands the line of the forward pass that it differentiates. `dx` is the gradient of the
loss by x, and has x's shape. `tape` is what the forward pass recorded; `grad` holds the parameters' gradients
under the parameters' names, nested as they are, and is overwritten, never added to: running this twice gives
the same answer. Gradients add up where the forward pass uses one thing twice, and only there: on the residual
stream, where each branch reads what also flows by, and in a tied wte, which embeds and unembeds.
"""

from typing import Any

import numpy as np

from ..config import Config
from ..evaluation import ROWS
from ..model import GPT2, Tape, attention_scale, split_heads, transformer
from ..ops import (
    ACTIVATIONS,
    BACKWARD,
    cross_entropy,
    cross_entropy_backward,
    layer_norm_backward,
    linear_backward,
    softmax_backward,
)
from ..parameters import Parameters, nest


def loss_and_gradients(
    model: GPT2,
    ids: np.ndarray,
    targets: np.ndarray,
    gradients: Parameters,
    rng: np.random.Generator | None = None,
    total: int | None = None,
) -> float:
    """The mean loss of predicting `targets` [B, T] from `ids` [B, T], in nats per token.

    Writes its gradient by each parameter into `gradients`, arrays like the parameters'. If lm_head.weight is
    there alone, the body is frozen, and has no dropout. Else `rng` draws what the config asks for; None is
    without. The ids are not checked here. For a part of a batch, `total` is how many tokens the whole has:
    the parts' losses and gradients then add up to the whole's.
    """
    total = targets.size if total is None else total
    grad = nest(gradients)
    if gradients.keys() == {"lm_head.weight"}:
        final = transformer(ids, model.tree, model.config)
        loss, _ = unembed_backward(final, model.W_U, targets, total, grad["lm_head"]["weight"])
        return loss

    tape: Tape = {}
    final = transformer(ids, model.tree, model.config, tape=tape, rng=rng)
    # The head's gradient goes to the matrix that unembeds; where that is wte, embed_backward adds the other.
    head = "wte" if model.config.tied else "lm_head"
    loss, dfinal = unembed_backward(final, model.W_U, targets, total, grad[head]["weight"])
    transformer_backward(dfinal, ids, model.tree, model.config, tape, grad)
    return loss


def unembed_backward(  # [B, T, D], [D, V], [B, T] -> loss, [B, T, D]
    final: np.ndarray, W_U: np.ndarray, targets: np.ndarray, total: int, dhead: np.ndarray
) -> tuple[float, np.ndarray]:
    """The loss and its gradient by `final`; writes that by the head's matrix into dhead [V, D].

    Logits are V / D times as large as what they are made of, so only those of ROWS tokens exist at a time,
    and each piece goes forward and backward before the next.
    """
    N, D = targets.size, final.shape[-1]
    rows, wanted = final.reshape(N, D), targets.reshape(N)
    dfinal = np.empty_like(rows)
    loss = 0.0
    for start in range(0, N, ROWS):
        piece, goal = rows[start : start + ROWS], wanted[start : start + ROWS]
        logits = piece @ W_U
        losses = cross_entropy(logits, goal)
        loss += float(losses.sum()) / total

        # loss = sum(losses) / total
        dlosses = np.full_like(losses, 1 / total)
        # losses = cross_entropy(logits, goal)
        dlogits = cross_entropy_backward(dlosses, logits, goal)
        # logits = piece @ W_U; dW_U = piece.T @ dlogits, and dhead is its transpose
        np.matmul(dlogits, W_U.T, out=dfinal[start : start + ROWS])
        if start == 0:
            np.matmul(dlogits.T, piece, out=dhead)
        else:
            dhead += dlogits.T @ piece
    return loss, dfinal.reshape(final.shape)


def transformer_backward(  # [B, T, D] -> None: the way back ends at the embeddings
    dfinal: np.ndarray,
    ids: np.ndarray,
    tree: dict[str, Any],
    config: Config,
    tape: Tape,
    grad: dict[str, Any],
) -> None:
    eps = config.layer_norm_epsilon
    # final = layer_norm(resid, **ln_f)
    last = f"resid_post.{config.n_layer - 1}" if config.n_layer else "embed"
    dresid = layer_norm_backward(dfinal, tape[last], tree["ln_f"]["weight"], eps, grad["ln_f"])
    # resid = transformer_block(resid, block)
    for layer in reversed(range(config.n_layer)):
        transformer_block_backward(dresid, tree["h"][layer], config, layer, tape, grad["h"][layer])
    # resid = dropout(embed(ids, wte, wpe))
    dresid = dropout_backward(dresid, "embed", tape)
    embed_backward(dresid, ids, config.tied, grad["wte"]["weight"], grad["wpe"]["weight"])


def transformer_block_backward(  # [B, T, D], changed in place from dresid_post to dresid_pre
    dresid: np.ndarray, block: dict[str, Any], config: Config, layer: int, tape: Tape, grad: dict[str, Any]
) -> None:
    eps = config.layer_norm_epsilon
    # resid_post = resid_mid + mlp(mlp_in, **block["mlp"])
    dmlp_in = mlp_backward(dresid, block["mlp"], config, layer, tape, grad["mlp"])
    # mlp_in = layer_norm(resid_mid, **block["ln_2"]); what the MLP read adds to what passed it by
    resid_mid = tape[f"resid_mid.{layer}"]
    dresid += layer_norm_backward(dmlp_in, resid_mid, block["ln_2"]["weight"], eps, grad["ln_2"])

    # resid_mid = resid_pre + attention(attn_in, **block["attn"]), and dresid is resid_mid's by now
    dattn_in = attention_backward(dresid, block["attn"], config, layer, tape, grad["attn"])
    # attn_in = layer_norm(resid_pre, **block["ln_1"])
    resid_pre = tape[f"resid_pre.{layer}"]
    dresid += layer_norm_backward(dattn_in, resid_pre, block["ln_1"]["weight"], eps, grad["ln_1"])


def mlp_backward(  # [B, T, D] -> [B, T, D]
    dout: np.ndarray, mlp: dict[str, Any], config: Config, layer: int, tape: Tape, grad: dict[str, Any]
) -> np.ndarray:
    # out = dropout(linear(post, **c_proj))
    dout = dropout_backward(dout, f"mlp.{layer}.out", tape)
    dpost = linear_backward(dout, tape[f"mlp.{layer}.post"], mlp["c_proj"]["weight"], grad["c_proj"])
    # post = activation(pre)
    dpre = BACKWARD[ACTIVATIONS[config.activation_function]](dpost, tape[f"mlp.{layer}.pre"])
    # pre = linear(x, **c_fc)
    return linear_backward(dpre, tape[f"mlp.{layer}.in"], mlp["c_fc"]["weight"], grad["c_fc"])


def attention_backward(  # [B, T, D] -> [B, T, D]
    dout: np.ndarray, attn: dict[str, Any], config: Config, layer: int, tape: Tape, grad: dict[str, Any]
) -> np.ndarray:
    H = config.n_head  # K = D / H, and no cache here: S = T
    heads, qkv, pattern = (tape[f"attn.{layer}.{name}"] for name in ("heads", "qkv", "pattern"))
    q, k, v = split_heads(qkv, H)  # each [B, H, T, K]
    kept = tape.get(f"attn.{layer}.pattern.kept")
    dqkv = np.empty_like(qkv)  # [B, T, 3 D]
    dq, dk, dv = split_heads(dqkv, H)  # views: what is written to them is written to dqkv

    # out = dropout(linear(heads.swapaxes(1, 2).reshape(x.shape), **c_proj))
    dout = dropout_backward(dout, f"attn.{layer}.out", tape)
    merged = heads.swapaxes(1, 2).reshape(dout.shape)
    dmerged = linear_backward(dout, merged, attn["c_proj"]["weight"], grad["c_proj"])
    dheads = dmerged.reshape(*dout.shape[:2], H, -1).swapaxes(1, 2)  # [B, H, T, K]

    # heads = dropout(pattern) @ v
    dropped = pattern if kept is None else pattern * kept
    np.matmul(dropped.swapaxes(-1, -2), dheads, out=dv)
    dpattern = dheads @ v.swapaxes(-1, -2)  # [B, H, T, T]
    dpattern = dropout_backward(dpattern, f"attn.{layer}.pattern", tape)

    # pattern = softmax(scores); where the mask was added the pattern is 0, and so is the gradient
    dscores = softmax_backward(dpattern, pattern)

    # scores = (q * scale) @ k.swapaxes(-1, -2)
    dscores *= attention_scale(config, layer)
    np.matmul(dscores, k, out=dq)
    np.matmul(dscores.swapaxes(-1, -2), q, out=dk)

    # q, k, v = split_heads(qkv, H): dq, dk and dv were views of dqkv, which is full now
    # qkv = linear(x, **c_attn)
    return linear_backward(dqkv, tape[f"attn.{layer}.in"], attn["c_attn"]["weight"], grad["c_attn"])


def embed_backward(
    dresid: np.ndarray, ids: np.ndarray, tied: bool, dwte: np.ndarray, dwpe: np.ndarray
) -> None:
    """resid = wte[ids] + wpe[positions]: each row that was read receives what came of it.

    A token that stands in the batch several times was read several times, and its gradients add up. So do
    those of one position in all sequences.
    """
    _, T, D = dresid.shape
    dwpe[:T] = dresid.sum(axis=0)
    dwpe[T:] = 0

    # NumPy's dwte[ids] += dresid would add only one gradient to each row; np.add.at adds all, at half the
    # speed. So bring a token's places together, and let reduceat add up rows first[i] to first[i + 1] - 1.
    order = np.argsort(ids, axis=None, kind="stable")
    tokens, first = np.unique(ids.reshape(-1)[order], return_index=True)
    d_embed = np.add.reduceat(dresid.reshape(-1, D)[order], first, axis=0)  # [len(tokens), D]

    # THE SWITCH, seen from behind. Tied, wte has been used twice, to embed and to unembed, and its two
    # gradients meet here: dwte holds the head's already. Untied, that one went to lm_head.weight.
    if not tied:
        dwte[...] = 0
    dwte[tokens] += d_embed


def dropout_backward(dout: np.ndarray, name: str, tape: Tape) -> np.ndarray:  # [...] -> [...]
    """out = x * kept, where there was dropout; else dout itself, which no caller changes."""
    kept = tape.get(f"{name}.kept")
    return dout if kept is None else dout * kept
