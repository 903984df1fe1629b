"""Is a torch module tied? Its two matrices, its gradient, and a step of its optimizer are measured.

torch is imported in the functions, which only testing.assert_tied calls, for a torch module.
"""

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from .errors import ArgumentError, short_repr

__tracebackhide__ = True  # pytest shows the line of the test, and none of this module
Matrices = tuple[Any, Any]  # two torch tensors: the input matrix [V, D] and the output matrix


def check_module(
    module: Any, optimizer: Any = None, batch: Any = None, matrices: Matrices | None = None
) -> None:
    """What testing.assert_tied does for a torch module. Raises AssertionError, ArgumentError."""
    import torch

    def find_matrices() -> Matrices:
        wte, lm_head = matrices or embeddings_of(module)
        if lm_head.shape != wte.shape and lm_head.shape == wte.shape[::-1]:
            return wte, lm_head.T  # it is [D, V]
        return wte, lm_head

    check_arguments(optimizer, matrices)
    wte, lm_head = find_matrices()
    check_storage(wte, lm_head)
    with ExitStack() as undo:
        undo.enter_context(torch.random.fork_rng())
        undo.enter_context(torch.inference_mode(False))
        undo.enter_context(torch.enable_grad())
        # A pass changes a buffer that counts passes, and nn.Embedding with max_norm its matrix.
        undo.enter_context(unchanged([wte, *module.buffers()]))
        for part in module.modules():
            undo.callback(setattr, part, "training", part.training)
        module.eval()  # without dropout, so that two passes are the same

        def compute_loss() -> Any:
            return loss_of(module, batch, wte)

        check_gradient(compute_loss, wte)
        if optimizer is not None:
            check_optimizer(module, optimizer, wte)
            check_step(module, optimizer, compute_loss, find_matrices)


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


def loss_of(module: Any, batch: Any, wte: Any) -> Any:
    """A number that depends on the module's output for a batch: its own loss if it has one."""
    import torch

    if batch is None:
        batch = torch.arange(12, device=wte.device).reshape(2, 6) % len(wte)
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
    loss = getattr(output, "loss", None)
    if loss is not None:
        return loss
    logits = getattr(output, "logits", output)
    if isinstance(logits, tuple | list):
        logits = logits[0]
    if not torch.is_tensor(logits):
        raise ArgumentError(f"the module must return logits or a loss, got {short_repr(output)}")
    if logits.ndim == 0:
        return logits
    return -torch.log_softmax(logits.float(), dim=-1)[..., 0].mean()  # of predicting token 0


def check_gradient(compute_loss: Callable[[], Any], wte: Any) -> None:
    """Raise AssertionError unless the gradient of wte is the sum of one from each of its two uses.

    In a second pass, the lookup of tokens reads a copy of wte. Then the gradient of the copy is
    that of the input, and the gradient of wte that of all other uses: the output.
    """
    import torch

    if not wte.requires_grad:
        raise AssertionError("gradient: the input matrix has requires_grad=False")
    (total,) = gradients(compute_loss(), [wte])
    lookup = wte.detach().clone().requires_grad_()
    with reading_rows_of(lookup, wte):
        from_input, from_output = gradients(compute_loss(), [lookup, wte])
    for use, part in (("input", from_input), ("output", from_output)):
        if not part.any():
            raise AssertionError(
                f"gradient: nothing of it comes from the {use}: the {use} is detached, does not "
                "read this matrix, or reads it as another parameter or otherwise than by its rows"
            )
    largest = max(part.abs().max().item() for part in (from_input, from_output))
    error = (total - (from_input + from_output)).abs().max().item()
    roundings = 1e-4 + 4 * torch.finfo(wte.dtype).eps
    if not error <= roundings * largest:
        raise AssertionError(
            f"gradient: it is not the sum of those from input and output: off by {error:.3g}, "
            f"where the largest number is {largest:.3g}"
        )


def gradients(loss: Any, tensors: list[Any]) -> list[Any]:
    """The gradient of each tensor, in float64. It does not touch `tensor.grad`."""
    import torch

    if not loss.requires_grad:
        raise AssertionError("gradient: the loss does not depend on any parameter")
    try:
        found = torch.autograd.grad(loss, tensors, allow_unused=True, materialize_grads=True)
    except RuntimeError as error:  # of a checkpoint with use_reentrant=True, for example
        raise ArgumentError(f"torch cannot compute the gradient: {error}") from error
    return [gradient.to_dense().double() for gradient in found]


@contextmanager
def reading_rows_of(lookup: Any, wte: Any) -> Iterator[None]:
    """In the `with` block, each function that takes rows of wte takes the rows of `lookup`."""
    import torch
    from torch.overrides import TorchFunctionMode

    TAKE_ROWS = (
        torch.nn.functional.embedding,
        torch.embedding,
        torch.index_select,
        torch.Tensor.index_select,
    )

    class ReadOtherRows(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = kwargs or {}
            takes_rows = function in TAKE_ROWS
            if function is torch.Tensor.__getitem__:  # wte[ids]
                takes_rows = torch.is_tensor(args[1])
            if takes_rows:
                args = [lookup if x is wte else x for x in args]
                kwargs = {name: lookup if x is wte else x for name, x in kwargs.items()}
            return function(*args, **kwargs)

    with ReadOtherRows():
        yield


# The optimizer


def check_optimizer(module: Any, optimizer: Any, wte: Any) -> None:
    """Raise AssertionError unless an optimizer has the matrix as one parameter."""
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
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
    module: Any,
    optimizer: Any,
    compute_loss: Callable[[], Any],
    find_matrices: Callable[[], Matrices],
) -> None:
    """Raise AssertionError if both matrices differ after a step. Then the step is undone."""
    held = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    trained = [parameter for parameter in held if parameter.requires_grad]
    with ExitStack() as undo:
        undo.enter_context(unchanged([*module.parameters(), *held]))
        undo.enter_context(copied_state(optimizer))
        step_gradients = gradients(compute_loss(), trained)
        for parameter, gradient in zip(trained, step_gradients, strict=True):
            parameter.grad = gradient.to(parameter.dtype)
        try:
            optimizer.step()
        except Exception as error:  # of an optimizer that needs a closure, for example
            raise ArgumentError(
                f"the optimizer failed in a step: {type(error).__name__}: {error}"
            ) from error
        wte, lm_head = (matrix.detach() for matrix in find_matrices())
        if not wte.equal(lm_head):
            raise AssertionError("optimizer: after one step, input and output matrix differ")


@contextmanager
def unchanged(parameters: list[Any]) -> Iterator[None]:
    """After the `with` block, parameters have the memory, values and gradients of before."""
    before = [(each, each.data, each.detach().clone(), each.grad) for each in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, memory, values, gradient in before:
            memory.copy_(values)
            parameter.data = memory
            parameter.grad = gradient


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
