"""The two gradients of the token embedding: one from reading tokens, one from scoring them.

In a tied model, both are added to the same matrix wte (the last lines of backward.py). In an untied
model the first changes W_E and the second changes W_U.
"""

import re
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ArgumentError
from ..evaluation import check_text_ids
from ..gpt2.backward import transformer_backward
from ..gpt2.model import GPT2, transformer, unembed
from ..gpt2.ops import cross_entropy, cross_entropy_backward
from ..gpt2.parameters import Parameters, nest
from ..gpt2.run import Run, Tape, in_each_layer
from .embeddings import lengths

ROWS_AT_ONCE = 1024  # rows of d_head computed at a time: 3 MB for GPT-2; all of them take 154 MB


@dataclass(frozen=True)
class Gradients:
    """The gradients of one training step on one text."""

    loss: float  # nats per token
    tokens: np.ndarray  # [n], the tokens that were read, in the order of their ids
    d_embed: (
        np.ndarray
    )  # [n, D], the embedding's gradient in these rows of wte; in all others it is 0
    d_head: np.ndarray  # [n, D], the output matrix's gradient for the same rows
    head_lengths: np.ndarray  # [V], the length of each row of the output matrix's gradient

    def by_row(self) -> np.ndarray:  # -> [4, V]
        """For each row of wte: the lengths of d_embed, of d_head and of their sum, and the cosine.

        The cosine between d_embed and d_head is 0 for a row that one of them does not reach.
        """
        # First as if no token was read: d_embed is 0, so the sum is d_head.
        V = len(self.head_lengths)
        embed_lengths = np.zeros(V)
        sum_lengths = self.head_lengths.astype(np.float64)  # a copy, to be changed below
        cosines = np.zeros(V)

        # Then the rows of the tokens that were read.
        embed_lengths[self.tokens] = lengths(self.d_embed)
        sum_lengths[self.tokens] = lengths(self.d_embed + self.d_head)
        products = lengths(self.d_embed) * lengths(self.d_head)  # [n]
        inner = (self.d_embed * self.d_head).sum(axis=1)  # [n], 0 where `products` is 0
        cosines[self.tokens] = inner / np.where(products > 0, products, 1)
        return np.stack([embed_lengths, self.head_lengths, sum_lengths, cosines])

    def lengths_and_cosine(self) -> dict[str, float]:
        """The Frobenius norms "embed" and "head" of both gradients, and the "cosine" between them.

        The cosine is 0 if one of the gradients is 0.
        """
        embed = float(np.linalg.norm(self.d_embed))
        head = float(np.linalg.norm(self.head_lengths))  # over all rows; d_head has n of them
        cosine = 0.0
        if embed > 0 and head > 0:
            # d_embed is 0 in the other rows, so these n give the whole inner product.
            cosine = float(np.vdot(self.d_embed, self.d_head)) / (embed * head)
        return {"embed": embed, "head": head, "cosine": cosine}


def gradients(model: GPT2, ids: Any) -> Gradients:
    """The gradients of the mean loss of predicting each of `ids` [T] but the first.

    There is no dropout. Raises ArgumentError for fewer than two ids, and for more than n_ctx + 1.
    """
    ids = check_text_ids(ids, model.config)
    if ids.size > model.config.n_ctx + 1:
        raise ArgumentError(
            f"{ids.size} tokens are more than the context of {model.config.n_ctx} and one"
        )
    tape: Tape = {}
    # The backward pass does not read the attention scores, which take much memory.
    unrecorded = in_each_layer(["attn.N.scores"], model.config)
    run = Run(model.config, tape=tape, unrecorded=unrecorded)
    final = transformer(ids[None, :-1], model.tree, run)  # [1, T - 1, D]

    # The tokens that were read are numbered 0, 1, ..., so that the gradient of wte needs rows for
    # these only.
    tokens, numbers = np.unique(ids[:-1], return_inverse=True)
    loss, dfinal, d_head, head_lengths = head_backward(final[0], model.W_U, ids[1:], tokens)

    # The backward pass writes the gradient of each parameter into an array that it is given. Only
    # d_embed, the array of wte, is read afterwards. The pass takes a batch, here of one text.
    d_embed = np.zeros((tokens.size, model.config.n_embd), model.dtype)
    arrays = nest(gradient_arrays(model, d_embed))
    dfinals = dfinal[None]  # [1, T - 1, D]
    rows = numbers[None]  # [1, T - 1], in place of ids: the row of d_embed for each token
    transformer_backward(dfinals, rows, model.tree, model.config, tape, arrays)
    return Gradients(loss, tokens, d_embed, d_head, head_lengths)


def gradient_arrays(model: GPT2, d_embed: np.ndarray) -> Parameters:
    """An array for the gradient of each parameter but W_U, to which the backward pass writes.

    d_embed [n, D] is the array of wte: a row for each token that was read. The gradients of the
    blocks are not used, so all layers share the arrays of one layer.
    """
    shared_arrays: Parameters = {"wte.weight": d_embed}
    arrays: Parameters = {}
    for name, parameter in model.tie().parameters.items():  # a tied model has no W_U of its own
        name_without_layer = re.sub(r"h\.\d+", "h", name)
        if name_without_layer not in shared_arrays:
            shared_arrays[name_without_layer] = np.empty_like(parameter)
        arrays[name] = shared_arrays[name_without_layer]
    return arrays


def head_backward(  # [N, D], [D, V], [N], [n] -> loss, [N, D], [n, D], [V]
    final: np.ndarray, W_U: np.ndarray, targets: np.ndarray, tokens: np.ndarray
) -> tuple[float, np.ndarray, np.ndarray, np.ndarray]:
    """The mean loss, dfinal, the rows of d_head for `tokens`, and the lengths of all its rows.

    d_head is the gradient of W_U.T that training computes (unembed_backward). Here only some of
    its rows are in memory at a time.
    """
    logits = unembed(final, W_U)
    losses = cross_entropy(logits, targets)
    dlosses = np.full_like(losses, 1 / losses.size)  # the loss is their mean
    dlogits = cross_entropy_backward(dlosses, logits, targets)
    dfinal = dlogits @ W_U.T
    d_head = dlogits[:, tokens].T @ final

    V = W_U.shape[1]
    head_lengths = []
    for start in range(0, V, ROWS_AT_ONCE):
        piece = dlogits[:, start : start + ROWS_AT_ONCE]
        # The rows of d_head have no name, so that they are freed before the next ones.
        head_lengths.append(lengths(piece.T @ final))
    return float(losses.mean()), dfinal, d_head, np.concatenate(head_lengths)
