"""The assertion that a model is tied: a GPT2 of tiedgpt, or a torch module of any kind.

Its two matrices, its gradient, and a step of its optimizer are measured. torch is imported in the
functions that look at a torch module.
"""

import copy
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..errors import ArgumentError, short_repr
from ..gpt2.backward import loss_and_gradients
from ..gpt2.model import GPT2
from ..training.optimizer import AdamW

__tracebackhide__ = True  # pytest shows the line of the test, and none of this module
Matrices = tuple[Any, Any]  # two torch tensors: the input matrix [V, D] and the output matrix


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
    torch = sys.modules.get("torch")  # imported already, if the model is a torch module
    if torch is not None and isinstance(model, torch.nn.Module):
        check_module(model, optimizer, batch, matrices)
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
    """Raise AssertionError unless a GPT2 of tiedgpt is tied, and its optimizer keeps it so."""
    if not np.shares_memory(model.W_E, model.W_U):
        raise AssertionError("storage: W_E and W_U are two arrays: the model is untied")
    if batch is None:
        batch = np.arange(min(12, model.config.n_ctx)) % model.config.vocab_size
    ids = np.asarray(batch)
    targets = np.roll(ids, 1, axis=-1)  # any tokens will do
    _, gradients = loss_and_gradients(model, ids, targets)
    # An untied copy has a gradient for each of the two uses.
    _, parts = loss_and_gradients(model.untie("copy"), ids, targets)
    for use, name in (("input", "wte.weight"), ("output", "lm_head.weight")):
        if not parts[name].any():
            raise AssertionError(f"gradient: nothing of it comes from the {use}")
    both = parts["wte.weight"] + parts["lm_head.weight"]
    # The tolerance is for float32's rounding.
    if not np.allclose(gradients["wte.weight"], both, rtol=1e-4, atol=1e-4 * abs(both).max()):
        raise AssertionError("gradient: it is not the sum of those from input and output")
    if optimizer is None:
        return

    # Does the optimizer untie the model in a step? The step is then undone.
    is_once = "wte.weight" in optimizer.shapes and "lm_head.weight" not in optimizer.shapes
    if not is_once or not np.shares_memory(model.W_E, optimizer.flat):
        raise AssertionError("optimizer: it does not hold the model's matrix once")
    vectors = (optimizer.flat, optimizer.m, optimizer.v)  # the parameters, and two averages of each
    before = [vector.copy() for vector in vectors]
    steps = optimizer.steps
    # One vector, in the order of optimizer.flat.
    gradient = np.concatenate([gradients[name].ravel() for name in optimizer.shapes])
    try:
        optimizer.step(gradient, lr=1e-3)
        if not np.array_equal(model.W_E.T, model.W_U):
            raise AssertionError("optimizer: after one step, W_E.T and W_U differ")
    finally:
        optimizer.steps = steps
        for vector, values in zip(vectors, before, strict=True):
            vector[:] = values


# A torch module


def check_module(module: Any, optimizer: Any, batch: Any, matrices: Matrices | None) -> None:
    """Raise AssertionError unless a torch module is tied, and its optimizer keeps it so.

    Raises ArgumentError for what cannot be looked at.
    """
    import torch

    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise ArgumentError(f"expected an optimizer of torch, got {short_repr(optimizer)}")
    wte, lm_head = matrices_of(module, matrices)
    places = [(x.data_ptr(), tuple(x.shape), x.stride()) for x in (wte, lm_head)]
    if places[0] != places[1]:
        shapes = f"{list(wte.shape)} and {list(lm_head.shape)}"
        difference = ""
        if wte.shape == lm_head.shape:
            distances = wte.detach().double() - lm_head.detach().double().to(wte.device)
            difference = f"; they differ by up to {distances.abs().max().item():.3g}"
        raise AssertionError(
            f"storage: input and output matrix are two tensors, {shapes}{difference}"
        )
    # The caller may have switched gradients off.
    with torch.inference_mode(False), torch.enable_grad(), unchanged(module, optimizer):
        module.eval()  # without dropout
        check_gradient(module, batch, wte)
        if optimizer is not None:
            check_optimizer(module, optimizer, wte)
            check_step(module, optimizer, batch, matrices)


def matrices_of(module: Any, given: Matrices | None) -> Matrices:
    """The input matrix [V, D] and the output matrix, which is transposed if it is [D, V].

    given: both; if None, they are found by the methods of transformers' models. Raises
    ArgumentError if they are not two matrices with numbers.
    """
    import torch

    match given:
        case None:
            found = []
            for method in ("get_input_embeddings", "get_output_embeddings"):
                layer = getattr(module, method, lambda: None)()  # None without such a method
                weight = getattr(layer, "weight", None)
                if weight is None:
                    raise ArgumentError(
                        f"{type(module).__name__}.{method}() gives no matrix: pass "
                        "matrices=(input, output)"
                    )
                found.append(weight)
            wte, lm_head = found
        case (torch.Tensor(ndim=2), torch.Tensor(ndim=2)):
            wte, lm_head = given
        case _:
            raise ArgumentError(
                f"matrices must be the input and the output matrix, got {short_repr(given)}"
            )
    for tensor in (wte, lm_head):
        try:
            tensor.sum().item()  # fails if there are no numbers, as on the device meta
        except Exception as error:
            raise ArgumentError(
                f"the matrices have no numbers, so there is nothing to look at: {error}"
            ) from error
    if lm_head.shape != wte.shape and lm_head.shape == wte.shape[::-1]:
        lm_head = lm_head.T
    return wte, lm_head


def check_gradient(module: Any, batch: Any, wte: Any) -> None:
    """Raise AssertionError unless a gradient reaches wte from the input and from the output.

    The output reads row v for the logit of token v alone. The input reads the rows of the batch's
    tokens, and all logits depend on them. So if row v has a gradient from the logits of other
    tokens, the input reads row v. If it has none, a gradient from the logit of token v is of the
    output, and each of these rows must have it.
    """
    import torch

    if not wte.requires_grad:
        raise AssertionError("gradient: the input matrix has requires_grad=False")
    V = len(wte)
    batches = two_batches(wte) if batch is None else [batch, batch]  # for even and for odd logits
    from_own_half, from_other_half, shape = entries_with_gradient(module, batches, wte)
    own_rows = from_own_half.any(dim=1)  # [V]: whether any number of the row has a gradient
    other_rows = from_other_half.any(dim=1)

    # The input: is any row read, and each row of the tokens that two_batches gives?
    if not other_rows.any():
        raise AssertionError(
            "gradient: nothing of it comes from the input: the input is detached, or reads another "
            "parameter"
        )
    if batch is None:
        tokens = torch.cat(batches).unique().cpu()
        unread = tokens[~other_rows[tokens]].tolist()
        if len(unread) > 1:  # one may be the padding_idx of nn.Embedding, which has no gradient
            raise no_gradient("input", "token", unread, len(tokens))

    # The output can be judged only in rows that no other logit depends on.
    count = other_rows.sum()  # rows that the input reads, or that softmax brought into each logit
    if count > V / 2:
        raise ArgumentError(
            f"the two uses cannot be told apart: each logit depends on the rows of {count} of {V} "
            f"tokens. Pass a batch= of fewer tokens, and return logits [..., {V}], no "
            f"probabilities; they are {shape}"
        )
    is_missing = ~own_rows
    if batch is not None:  # it may read a row for the row's own logit: such a row is not judged
        is_missing &= ~other_rows
    has_logit = slice(shape[-1])  # a padded matrix has more rows
    missing = is_missing[has_logit].nonzero().flatten().tolist()
    if missing:
        raise no_gradient("output", "token", missing, V)

    check_columns("input", from_other_half[other_rows])
    check_columns("output", from_own_half[~other_rows])


def entries_with_gradient(module: Any, batches: list[Any], wte: Any) -> tuple[Any, Any, list[int]]:
    """Which entries of wte [V, D] have a gradient from which logits, and the shape of the logits.

    The vocabulary has two halves, the even and the odd tokens. Returns from_own_half [V, D]: in row
    v, the entries with a gradient from the logits of token v's half; and from_other_half [V, D]:
    those with a gradient from the logits of the half without token v. batches: for each half, the
    ids that the module reads for its logits.
    """
    import torch

    V = len(wte)
    from_own_half, from_other_half = torch.zeros(2, *wte.shape, dtype=torch.bool)
    for half, ids in enumerate(batches):
        logits = logits_of(module, ids, V)
        (gradient,) = gradients(contrast(logits, half), [wte])
        has_gradient = gradient.ne(0).cpu()
        in_half = (torch.arange(V) % 2 == half)[:, None]
        from_own_half |= has_gradient & in_half
        from_other_half |= has_gradient & ~in_half
    return from_own_half, from_other_half, list(logits.shape)


def check_columns(use: str, has_gradient: Any) -> None:
    """Raise AssertionError if more than a quarter of the columns have no gradient from a use.

    Some may have none: a ReLU makes them 0 for a few tokens. has_gradient: [tokens, columns].
    """
    missing = (~has_gradient.any(dim=0)).nonzero().flatten().tolist()
    D = has_gradient.shape[1]
    if len(missing) > D / 4:
        raise no_gradient(use, "column", missing, D)


def no_gradient(use: str, unit: str, missing: list[int], count: int) -> AssertionError:
    """The error if a use gives no gradient to some tokens or columns: `missing`, of `count`."""
    there = " there" if unit == "column" else ""
    return AssertionError(
        f"gradient: nothing of it comes from the {use} of {len(missing)} of {count} {unit}s, the "
        f"first is {unit} {missing[0]}: the {use} is detached{there}, or reads another parameter"
    )


def two_batches(wte: Any) -> list[Any]:
    """Two batches of ids [few, 6], each of up to 6 different tokens.

    The first has odd tokens, for a contrast of the logits of even ones; the second has even tokens,
    for a contrast of the logits of odd ones. So no token is read for its own logit. The tokens are
    spread over the vocabulary, and each is the last of one sequence.
    """
    import torch

    few = max(1, min(6, len(wte) // 4))
    # Each sequence begins one place later than the one before it: 0 1 2, 1 2 0, 2 0 1.
    places = (torch.arange(few)[:, None] + torch.arange(6)).to(wte.device) % few
    even = 2 * (places * (len(wte) // 2) // few)  # below len(wte), in equal steps
    return [even + 1, even]


def logits_of(module: Any, batch: Any, V: int) -> Any:
    """What the module returns for a batch: logits [..., V], or fewer for a padded matrix."""
    import torch

    try:
        if isinstance(batch, Mapping):
            output = module(**batch)
        elif isinstance(batch, tuple | list):
            output = module(*batch)
        else:
            output = module(batch)
    except Exception as error:
        raise ArgumentError(
            f"the module failed on the batch: {type(error).__name__}: {error}; pass batch= ids, a "
            "tuple of arguments or a dict of them"
        ) from error
    if isinstance(output, Mapping):
        output = output.get("logits")
    output = getattr(output, "logits", output)
    if isinstance(output, tuple | list):  # (loss, logits), for example
        output = next((each for each in output if torch.is_tensor(each) and each.ndim), None)
    if not torch.is_tensor(output) or output.ndim == 0 or output.shape[-1] < 4:
        raise ArgumentError(
            "the module must return logits of 4 tokens or more: a loss does not show what depends "
            f"on a row. It returned {short_repr(output)}"
        )
    if output.shape[-1] > V:
        raise AssertionError(
            f"output: the module returns {output.shape[-1]} logits for each token, and the matrix "
            f"has {V} rows"
        )
    return output


def contrast(logits: Any, half: int) -> Any:
    """A sum of the logits of even tokens (half 0) or of odd ones (1), with weights that sum to 0.

    So a number that is added to all logits of a position, as log_softmax does, does not change it.
    The weights are integers, so that their sum is exactly 0.
    """
    import torch

    weights = torch.zeros(logits.shape[-1])
    weights[half::4] = 1
    weights[half + 2 :: 4] = -1
    weights[half + 2] -= weights.sum()  # the sum is 1 if the half has an odd number of tokens
    return (logits * weights.to(logits)).sum()


def gradients(loss: Any, tensors: list[Any]) -> list[Any]:
    """The gradient of each tensor. It does not touch `tensor.grad`."""
    import torch

    if not loss.requires_grad:
        raise AssertionError("gradient: the logits do not depend on any parameter")
    try:
        found = torch.autograd.grad(loss, tensors, allow_unused=True, materialize_grads=True)
    except RuntimeError as error:  # of a checkpoint with use_reentrant=True, for example
        raise ArgumentError(f"torch cannot compute the gradient: {error}") from error
    found = [gradient.to_dense() for gradient in found]
    if not all(gradient.isfinite().all() for gradient in found):
        raise AssertionError("gradient: it is not finite")
    return found


# The optimizer


def check_optimizer(module: Any, optimizer: Any, wte: Any) -> None:
    """Raise AssertionError unless an optimizer has the matrix as one parameter."""
    held = held_by(optimizer)
    count = sum(parameter is wte for parameter in held)
    if count != 1:
        raise AssertionError(f"optimizer: it holds the matrix {count} times; expected once")
    in_module = {id(parameter) for parameter in module.parameters()}
    for parameter in held:
        # The optimizer may still have a matrix that the tie took out of the module.
        is_stale = parameter.shape == wte.shape and id(parameter) not in in_module
        if is_stale or (parameter is not wte and parameter.data_ptr() == wte.data_ptr()):
            raise AssertionError(
                f"optimizer: beside the matrix it holds another {list(wte.shape)}, which is not a "
                "parameter of the module: make the optimizer after the tie"
            )


def check_step(module: Any, optimizer: Any, batch: Any, matrices: Matrices | None) -> None:
    """Raise AssertionError if both matrices differ after a step, or the step changes nothing."""
    wte, _ = matrices_of(module, matrices)
    before = wte.detach().clone()
    trained = [parameter for parameter in held_by(optimizer) if parameter.requires_grad]
    ids = two_batches(wte)[0] if batch is None else batch
    # Any loss will do for a step.
    step_gradients = gradients(contrast(logits_of(module, ids, len(wte)), half=0), trained)
    for parameter, gradient in zip(trained, step_gradients, strict=True):
        parameter.grad = gradient.to(parameter.dtype)
    with copied_state(optimizer):
        try:
            optimizer.step()
        except Exception as error:  # of an optimizer that needs a closure, for example
            raise ArgumentError(
                f"the optimizer failed in a step: {type(error).__name__}: {error}"
            ) from error
        wte, lm_head = (matrix.detach() for matrix in matrices_of(module, matrices))
        if not wte.equal(lm_head):
            raise AssertionError("optimizer: after one step, input and output matrix differ")
        if wte.equal(before):
            raise AssertionError(
                "optimizer: a step does not change the matrix, so it does not show that the matrix "
                "stays one; is the learning rate 0?"
            )


def held_by(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


@contextmanager
def unchanged(module: Any, optimizer: Any) -> Iterator[None]:
    """After the `with` block, all is as before: the module's attributes, modes, parameters and
    buffers, each parameter's memory, values and gradient, and torch's random state.

    A pass may assign a buffer anew, or change one in place, as nn.Embedding with max_norm does its
    matrix.
    """
    import torch

    tables = []  # the attributes of each part, and the tables in them: parameters, buffers, ...
    for part in module.modules():
        attributes = vars(part)
        for table in [attributes, *attributes.values()]:
            if isinstance(table, dict | set):
                tables.append((table, table.copy()))
    tensors = [*module.parameters(), *module.buffers()]
    if optimizer is not None:
        tensors += held_by(optimizer)
    before = [(each, each.data, each.detach().clone(), each.grad) for each in tensors]
    for tensor in tensors:
        tensor.grad = None  # else a step could use gradients of the caller's
    try:
        with torch.random.fork_rng():
            yield
    finally:
        for table, entries in tables:
            table.clear()
            table.update(entries)
        for tensor, memory, values, gradient in before:
            memory.copy_(values)
            tensor.data = memory
            tensor.grad = gradient


@contextmanager
def copied_state(optimizer: Any) -> Iterator[None]:
    """In the `with` block, an optimizer works on a copy of its state and settings.

    Its parameters are not copied: `unchanged` restores their values.
    """
    before = dict(vars(optimizer))
    old_state, old_groups = optimizer.state, optimizer.param_groups
    state = copy.copy(optimizer.state)  # with the same parameters as keys
    for parameter, values in optimizer.state.items():
        state[parameter] = copy.deepcopy(values)
    optimizer.state = state
    optimizer.param_groups = [
        {name: value if name == "params" else copy.deepcopy(value) for name, value in group.items()}
        for group in optimizer.param_groups
    ]
    try:
        yield
    finally:
        vars(optimizer).clear()
        vars(optimizer).update(before)
        # Of a wrapper, `state` and `param_groups` may be properties, which the optimizer inside it
        # has: they are not in vars(optimizer), so they are set back by name.
        optimizer.state, optimizer.param_groups = old_state, old_groups
