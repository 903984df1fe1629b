"""From what a user calls the other GPT-2 (arrays, a function, a torch module) to its arrays."""

import sys
from collections.abc import Mapping
from contextlib import ExitStack
from functools import partial
from inspect import signature
from typing import Any

import numpy as np

from ..errors import ArgumentError, short_repr
from ..gpt2.model import GPT2, Array
from .conventions import is_parameter, our_name


def record(theirs: Any, ids: Array, with_gradients: bool) -> Mapping[Any, Any]:
    """The other GPT-2's arrays on `ids`, under its own names. Raises ArgumentError.

    theirs: a torch module, a function from ids, a dict of arrays, or logits.
    """
    # If theirs is a torch module, torch is imported already. So it is never imported here.
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(theirs, torch.nn.Module):
        check_module(theirs, with_gradients)
        arrays = call_theirs(partial(record_module, torch, theirs), ids)
    elif callable(theirs):
        arrays = call_theirs(theirs, ids)
    else:
        arrays = theirs
    if hasattr(arrays, "shape"):  # one array, NumPy's or torch's
        return {"logits": arrays}
    if not isinstance(arrays, Mapping) or not arrays:
        raise ArgumentError(
            "expected logits, a dict of arrays, a torch module or a function, "
            f"got {short_repr(arrays)}"
        )
    return arrays


def call_theirs(function: Any, ids: Array) -> Any:
    """function(ids). It gets a copy, so it cannot change ids."""
    try:
        return function(ids.copy())
    except Exception as error:
        raise ArgumentError(
            f"the other model failed on these ids: {type(error).__name__}: {error}"
        ) from error


def check_module(module: Any, with_gradients: bool) -> None:
    """Raise ArgumentError for a torch module from which nothing would be recorded."""
    if with_gradients:
        raise ArgumentError("of a torch module, gradients are not recorded: give them in a dict")
    if not any(our_name(name) for name, _ in module.named_modules()):
        raise ArgumentError(
            f"{type(module).__name__} has no module of a GPT-2, "
            "such as h.0.attn.c_attn or blocks.0.mlp"
        )


def untied_module_sentences(theirs: Any, model: GPT2) -> list[str]:
    """A sentence if our model is tied and `theirs` is a torch module that is not; else none.

    The module is untied if its lm_head.weight differs from its wte.weight.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(theirs, torch.nn.Module) or not model.config.tied:
        return []
    by_our_name = {}
    for name, parameter in theirs.named_parameters(remove_duplicate=False):
        by_our_name[our_name(name)] = parameter
    wte = by_our_name.get("wte.weight")
    lm_head = by_our_name.get("lm_head.weight")
    if wte is None or lm_head is None or torch.equal(wte, lm_head):
        return []
    sentence = "logits: yours has an lm_head.weight that is not its wte.weight"
    if getattr(getattr(theirs, "config", None), "tie_word_embeddings", False):
        sentence += ", though its config says tied"
    return [sentence]


def record_module(torch: Any, module: Any, ids: Array) -> dict[str, Any]:
    """A torch module's activations under its modules' names, without dropout.

    Afterwards the module has no hooks of ours, and is in the mode in which it was.
    """
    recorder = Recorder(torch)
    first_parameter = next(module.parameters(), None)
    device = None  # torch's default, for a module without parameters
    if first_parameter is not None:
        device = first_parameter.device
    batch = torch.as_tensor(np.atleast_2d(ids), dtype=torch.long, device=device)
    # What is entered in the ExitStack is undone at its end, also after an error.
    with ExitStack() as undo, torch.no_grad():
        undo.callback(module.train, module.training)
        for name, part in module.named_modules():
            keep_input = partial(recorder.keep_input, name)
            keep_output = partial(recorder.keep_output, name)
            undo.enter_context(part.register_forward_pre_hook(keep_input, with_kwargs=True))
            undo.enter_context(part.register_forward_hook(keep_output))

        module.eval()
        if "targets" in signature(module.forward).parameters:
            module(batch, batch)  # nanoGPT computes all logits only if it gets targets
        else:
            module(batch)
    return recorder.arrays


class Recorder:
    """Hooks of torch modules. They keep each tensor that is an activation of a GPT-2."""

    def __init__(self, torch: Any) -> None:
        self.torch = torch
        self.arrays: dict[str, Any] = {}

    def keep_input(
        self, name: str, module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """A hook before a module runs. Its first argument is the activation that it reads."""
        inputs = [*args, *kwargs.values()]
        if inputs:
            self.keep(f"{name}:in", inputs[0])

    def keep_output(self, name: str, module: Any, args: tuple[Any, ...], output: Any) -> None:
        """A hook after a module has run. Attention may return its pattern, too, in second place."""
        if not isinstance(output, tuple | list):
            self.keep(name, output)
            return
        if len(output) > 0:
            self.keep(name, output[0])
        if len(output) > 1:
            self.keep(f"{name}:1", output[1])

    def keep(self, name: str, value: Any) -> None:
        """Keep a copy of a tensor, if its name is that of an activation."""
        ours = our_name(name)
        # For llm.c, wte and wpe are names of parameters. Here they are modules, and not compared.
        if ours == "" or is_parameter(ours):
            return
        # TransformerLens's module `embed` has the name of our activation, but its output has no
        # positions. No other module has a name of ours.
        last_part = name.split(".")[-1]
        if last_part == ours:
            return
        if self.torch.is_tensor(value):
            self.arrays[name] = value.clone()
