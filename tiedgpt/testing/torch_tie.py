"""Is a torch module tied? Its two matrices, its gradient, and a step of its optimizer are measured.

torch is imported in the functions, which only assert_tied calls, for a torch module.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from ..errors import ArgumentError, short_repr

__tracebackhide__ = True  # pytest shows the line of the test, and none of this module
Matrices = tuple[Any, Any]  # two torch tensors: the input matrix [V, D] and the output matrix


def check_module(
    module: Any, optimizer: Any = None, batch: Any = None, matrices: Matrices | None = None
) -> None:
    """What assert_tied does for a torch module. Raises AssertionError, ArgumentError."""
    import torch

    def find_matrices() -> Matrices:
        wte, lm_head = matrices or embeddings_of(module)
        check_numbers(wte, lm_head)
        if lm_head.shape != wte.shape and lm_head.shape == wte.shape[::-1]:
            return wte, lm_head.T  # it is [D, V]
        return wte, lm_head

    check_arguments(optimizer, matrices)
    wte, lm_head = find_matrices()
    check_storage(wte, lm_head)
    with torch.inference_mode(False), torch.enable_grad(), unchanged(module, optimizer):
        module.eval()  # without dropout
        check_gradient(module, batch, wte)
        if optimizer is not None:
            check_optimizer(module, optimizer, wte)
            check_step(module, optimizer, batch, find_matrices)


def check_arguments(optimizer: Any, matrices: Any) -> None:
    """Raise ArgumentError for what is no optimizer of torch, or not two matrices."""
    import torch

    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise ArgumentError(f"expected an optimizer of torch, got {short_repr(optimizer)}")
    if matrices is None:
        return
    match matrices:
        case (torch.Tensor(ndim=2), torch.Tensor(ndim=2)):
            return
    raise ArgumentError(
        f"matrices must be the input and the output matrix, got {short_repr(matrices)}"
    )


def embeddings_of(module: Any) -> Matrices:
    """The two matrices of a module that has the methods of transformers' models."""
    found = []
    for method in ("get_input_embeddings", "get_output_embeddings"):
        layer = getattr(module, method, lambda: None)()
        weight = getattr(layer, "weight", None)
        if weight is None:
            raise ArgumentError(
                f"{type(module).__name__}.{method}() gives no matrix: pass matrices=(input, output)"
            )
        found.append(weight)
    wte, lm_head = found
    return wte, lm_head


def check_numbers(*tensors: Any) -> None:
    """Raise ArgumentError for tensors without numbers: of the device meta, for example."""
    for tensor in tensors:
        try:
            tensor.sum().item()
        except Exception as error:
            raise ArgumentError(
                f"the matrices have no numbers, so there is nothing to look at: {error}"
            ) from error


def check_storage(wte: Any, lm_head: Any) -> None:
    """Raise AssertionError unless both matrices are the same numbers in the same memory."""
    places = [(x.data_ptr(), tuple(x.shape), x.stride()) for x in (wte, lm_head)]
    if places[0] == places[1]:
        return
    shapes = f"{list(wte.shape)} and {list(lm_head.shape)}"
    difference = ""
    if wte.shape == lm_head.shape:
        largest = (wte.detach().double() - lm_head.detach().double().to(wte.device)).abs().max()
        difference = f"; they differ by up to {largest.item():.3g}"
    raise AssertionError(f"storage: input and output matrix are two tensors, {shapes}{difference}")


def check_gradient(module: Any, batch: Any, wte: Any) -> None:
    """Raise AssertionError unless a gradient reaches wte from the input and from the output.

    The output reads row v for the logit of token v alone; the input reads the rows of the batch for
    each logit. So row v has a gradient from the logits of other tokens only if the input reads it.
    Then nothing is known of its output. Every other row must have one from its own logit.
    """
    import torch

    if not wte.requires_grad:
        raise AssertionError("gradient: the input matrix has requires_grad=False")
    V = len(wte)
    # Has an entry of row v a gradient from these logits?
    own_entries, other_entries = torch.zeros(2, *wte.shape, dtype=torch.bool)
    batches = two_batches(wte) if batch is None else [batch, batch]
    for half, ids in enumerate(batches):
        logits = logits_of(module, ids, V)
        (gradient,) = gradients(contrast(logits, half), [wte])
        has_gradient = gradient.ne(0).cpu()
        in_half = (torch.arange(V) % 2 == half)[:, None]
        own_entries |= has_gradient & in_half
        other_entries |= has_gradient & ~in_half
    own, other = own_entries.any(dim=1), other_entries.any(dim=1)
    if not other.any():
        raise AssertionError(
            "gradient: nothing of it comes from the input: the input is detached, or reads another "
            "parameter"
        )
    if batch is None:
        tokens = torch.cat(batches).unique().cpu()
        unread = tokens[~other[tokens]].tolist()
        if len(unread) > 1:  # one may be the padding_idx of nn.Embedding, which has no gradient
            raise AssertionError(
                f"gradient: nothing of it comes from the input of {len(unread)} of {len(tokens)} "
                f"tokens, the first is token {unread[0]}: the input is detached, or reads another "
                "parameter"
            )
    count = other.sum()
    if count > V / 2:
        raise ArgumentError(
            f"the two uses cannot be told apart: each logit depends on the rows of {count} of {V} "
            f"tokens. Pass a batch= of fewer tokens, and return logits [..., {V}], no "
            f"probabilities; they are {list(logits.shape)}"
        )
    missing = ~own
    if batch is not None:  # of two_batches, each shows the output of the other one's tokens
        missing &= ~other
    missing = missing[: logits.shape[-1]].nonzero().flatten().tolist()
    if missing:
        raise AssertionError(
            f"gradient: nothing of it comes from the output of {len(missing)} of {V} tokens, the "
            f"first is token {missing[0]}: the output is detached, or reads another parameter"
        )
    check_columns("input", other_entries[other])
    check_columns("output", own_entries[~other])


def check_columns(use: str, has_gradient: Any) -> None:
    """Raise AssertionError if more than a quarter of the columns have no gradient from a use.

    Some may have none: a ReLU makes them 0 for a few tokens. has_gradient: [tokens, columns].
    """
    missing = (~has_gradient.any(dim=0)).nonzero().flatten().tolist()
    D = has_gradient.shape[1]
    if len(missing) > D / 4:
        raise AssertionError(
            f"gradient: nothing of it comes from the {use} of {len(missing)} of {D} columns, the "
            f"first is column {missing[0]}: the {use} is detached there, or reads another parameter"
        )


def two_batches(wte: Any) -> list[Any]:
    """Ids [few, 6] of up to 6 odd tokens, then of even ones: the contrasts are of the others.

    The tokens are spread over the vocabulary, and each is the last of one sequence.
    """
    import torch

    few = max(1, min(6, len(wte) // 4))
    places = (torch.arange(few)[:, None] + torch.arange(6)).to(wte.device) % few
    even = 2 * (places * (len(wte) // 2) // few)
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

    So it does not change with what is added to all logits of a position, as log_softmax does. The
    weights are integers, so that this is exact.
    """
    import torch

    weights = torch.zeros(logits.shape[-1])
    weights[half::4] = 1
    weights[half + 2 :: 4] = -1
    weights[half + 2] -= weights.sum()  # of an odd number of tokens
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
        is_stale = parameter.shape == wte.shape and id(parameter) not in in_module
        if is_stale or (parameter is not wte and parameter.data_ptr() == wte.data_ptr()):
            raise AssertionError(
                f"optimizer: beside the matrix it holds another {list(wte.shape)}, which is not a "
                "parameter of the module: make the optimizer after the tie"
            )


def check_step(
    module: Any, optimizer: Any, batch: Any, find_matrices: Callable[[], Matrices]
) -> None:
    """Raise AssertionError if both matrices differ after a step, or the step changes nothing."""
    wte, _ = find_matrices()
    before = wte.detach().clone()
    trained = [parameter for parameter in held_by(optimizer) if parameter.requires_grad]
    ids = two_batches(wte)[0] if batch is None else batch
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
        wte, lm_head = (matrix.detach() for matrix in find_matrices())
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
    """After the `with` block, the module has the attributes, modes, parameters and buffers of
    before, and each parameter the memory, values and gradient. So has torch its random state.

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
        tensor.grad = None
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
    """In the `with` block, an optimizer works on a copy of its state and settings."""
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
