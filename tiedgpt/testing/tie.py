"""The assertion that a model is tied, and what it looks at in a GPT2 of tiedgpt.

torch_tie.py looks at a torch module.
"""

import sys
from typing import Any

import numpy as np

from ..errors import ArgumentError, short_repr
from ..gpt2.backward import loss_and_gradients
from ..gpt2.model import GPT2
from ..gpt2.parameters import Parameters
from ..training.optimizer import AdamW
from . import torch_tie


def assert_tied(model: Any, optimizer: Any = None, batch: Any = None, matrices: Any = None) -> None:
    """Raise AssertionError, which says what failed, unless the model's two matrices are one.

    The input matrix and the output matrix have one storage. A gradient reaches it from the input of
    the batch's tokens, and from the output of all tokens; from each in three of four columns or
    more, because a ReLU's zeros have none. The optimizer, if it is given, holds the matrix once,
    and after one step both are equal. Afterwards the modes, attributes, parameters, buffers,
    gradients, the optimizer and torch's random state are as before.

    Not looked at: the input of tokens that are not in the batch; what a loss adds to the logits; of
    a torch module, the mode of training, the input of single tokens of your own batch and their
    output, rows without a logit, and whether the logits of each position are of this matrix.

    model: a GPT2, or a torch module of any kind. It returns logits [..., V], or an object, dict or
        tuple that has them.
    batch: ids, or for a torch module a tuple or dict of its arguments too, with at most half of the
        V tokens. If None, a GPT2 reads the first 12 tokens, and a torch module up to 12 tokens all
        over the vocabulary.
    optimizer: torch's, or for a GPT2 the AdamW of training.
    matrices: the input and the output matrix of a torch module; the output matrix may be [V, D] or
        [D, V]. If None, they are the weights of get_input_embeddings() and get_output_embeddings().
    Raises ArgumentError for other arguments; if the module has no such methods, cannot read the
    batch or returns no logits; if its matrices have no numbers (on the device meta); if what the
    input reads cannot be told from the output; if torch cannot compute the gradient or the step.
    """
    __tracebackhide__ = True
    torch = sys.modules.get("torch")  # imported already, if the model is a torch module
    if torch is not None and isinstance(model, torch.nn.Module):
        torch_tie.check_module(model, optimizer, batch, matrices)
        return
    if not isinstance(model, GPT2) or not isinstance(optimizer, AdamW | None):
        raise ArgumentError(
            "expected a GPT2 and an AdamW of tiedgpt, or a torch module and torch's optimizer, got "
            f"{short_repr(model)} and {short_repr(optimizer)}"
        )
    if matrices is not None:
        raise ArgumentError("matrices= are those of a torch module; a GPT2 has W_E and W_U")
    check_gpt2(model, optimizer, batch)


def check_gpt2(model: GPT2, optimizer: AdamW | None, batch: Any) -> None:
    """What assert_tied does for a GPT2 of tiedgpt."""
    if not np.shares_memory(model.W_E, model.W_U):
        raise AssertionError("storage: W_E and W_U are two arrays: the model is untied")
    if batch is None:
        batch = np.arange(min(12, model.config.n_ctx)) % model.config.vocab_size
    ids = np.asarray(batch)
    targets = np.roll(ids, 1, axis=-1)
    _, gradients = loss_and_gradients(model, ids, targets)
    # An untied copy has a gradient for each of the two uses.
    _, parts = loss_and_gradients(model.untie("copy"), ids, targets)
    for use, name in (("input", "wte.weight"), ("output", "lm_head.weight")):
        if not parts[name].any():
            raise AssertionError(f"gradient: nothing of it comes from the {use}")
    both = parts["wte.weight"] + parts["lm_head.weight"]
    if not np.allclose(gradients["wte.weight"], both, rtol=1e-4, atol=1e-4 * abs(both).max()):
        raise AssertionError("gradient: it is not the sum of those from input and output")
    if optimizer is not None:
        check_step(model, optimizer, gradients)


def check_step(model: GPT2, optimizer: AdamW, gradients: Parameters) -> None:
    """Raise AssertionError if the optimizer unties the model in a step, which is then undone."""
    is_once = "wte.weight" in optimizer.shapes and "lm_head.weight" not in optimizer.shapes
    if not is_once or not np.shares_memory(model.W_E, optimizer.flat):
        raise AssertionError("optimizer: it does not hold the model's matrix once")
    vectors = (optimizer.flat, optimizer.m, optimizer.v)
    before = [vector.copy() for vector in vectors]
    steps = optimizer.steps
    gradient = np.concatenate([gradients[name].ravel() for name in optimizer.shapes])
    try:
        optimizer.step(gradient, lr=1e-3)
        if not np.array_equal(model.W_E.T, model.W_U):
            raise AssertionError("optimizer: after one step, W_E.T and W_U differ")
    finally:
        optimizer.steps = steps
        for vector, values in zip(vectors, before, strict=True):
            vector[:] = values
