"""From what a user has of the other GPT-2 to its arrays.

`record` takes arrays, a function or a torch module; `read_arrays` a file: .npz, .npy, safetensors
or JSON. Pickles, which can run code, are never read.
"""

import json
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoints.files import GIVE_FILE, describe
from ..checkpoints.safetensors import read_header
from ..errors import ArgumentError, CheckpointError, short_repr
from ..gpt2.model import GPT2, Array
from .conventions import NOT_COMPARED, is_parameter, our_name

FILE_KINDS = ".npz, .safetensors or .json file"
KINDS = f"{FILE_KINDS}, or a directory of .npy files"


def record(theirs: Any, ids: Array, vocab_size: int, with_gradients: bool) -> Mapping[Any, Any]:
    """The other GPT-2's arrays on `ids`, under its own names. Raises ArgumentError.

    theirs: a torch module, a function from ids, a dict of arrays, or logits.
    vocab_size: logits have so many columns, or more.
    """
    # If theirs is a torch module, torch is imported already. So it is never imported here.
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(theirs, torch.nn.Module):
        if with_gradients:
            raise ArgumentError(
                "of a torch module, gradients are not recorded: give them in a dict"
            )
        return record_module(torch, theirs, ids, vocab_size)
    given = theirs
    if callable(theirs):
        given = call_theirs(theirs, ids.copy())  # a copy, so that it cannot change ids
    # What transformers returns is a dict, too, but of other things than activations.
    if isinstance(given, Mapping) and len(given) > 0 and not hasattr(given, "logits"):
        return given
    logits = returned_logits(given)
    if logits is None:
        raise ArgumentError(
            "expected logits, a dict of arrays, a torch module or a function, "
            f"got {short_repr(given)}"
        )
    return {"logits": logits}


def call_theirs(function: Any, *arguments: Any, advice: str = "") -> Any:
    """function(*arguments). Raises ArgumentError, whose message ends with the advice."""
    try:
        return function(*arguments)
    except Exception as error:
        raise ArgumentError(
            f"the other model failed on these ids: {type(error).__name__}: {error}{advice}"
        ) from error


def returned_logits(returned: Any) -> Any:
    """The logits among what a GPT-2 returns, or None.

    They are what it returns, if that is an array; its attribute or item `logits`; or the first
    array of a tuple. An array of one number is a loss.
    """
    if isinstance(returned, Mapping) and "logits" in returned:
        return returned["logits"]
    logits = getattr(returned, "logits", None)
    if logits is not None:
        return logits
    candidates = [returned]
    if isinstance(returned, tuple):
        candidates = list(returned)
    for value in candidates:
        if hasattr(value, "shape") and len(value.shape) > 0:
            return value
    return None


def untied_module_sentences(theirs: Any, model: GPT2) -> list[str]:
    """A sentence if our model is tied and `theirs` is a torch module that is not; else none.

    The module is untied if its lm_head.weight differs from its wte.weight.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(theirs, torch.nn.Module) or not model.config.tied:
        return []
    by_our_name = {}
    # remove_duplicate=False: a tied matrix under both its names.
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


def record_module(torch: Any, module: Any, ids: Array, vocab_size: int) -> dict[str, Any]:
    """A torch module's activations under its modules' names, without dropout, and its logits.

    What the module returns comes last, under the name logits. If it has not the shape of logits,
    none are recorded, whatever an lm_head computes. Afterwards the module has no hooks of ours, and
    each part is in the mode in which it was. Raises ArgumentError if nothing is recorded.
    """
    recorder = Recorder(torch)
    device = getattr(next(module.parameters(), None), "device", None)  # None is torch's default
    batch = torch.as_tensor(np.atleast_2d(ids), dtype=torch.long, device=device)
    arguments = [batch]
    with suppress(ValueError):  # of a module of torch.jit, Python knows no signature
        if "targets" in signature(module.forward).parameters:
            arguments = [batch, batch]  # nanoGPT computes all logits only if it gets targets
    advice = "give a function from ids to logits"
    # What is entered in the ExitStack is undone at its end, also after an error.
    with ExitStack() as undo, torch.no_grad():
        for name, part in module.named_modules():
            undo.callback(setattr, part, "training", part.training)  # eval() changes it below
            keep_input = partial(recorder.keep_input, name)
            keep_output = partial(recorder.keep_output, name)
            undo.enter_context(part.register_forward_pre_hook(keep_input, with_kwargs=True))
            undo.enter_context(part.register_forward_hook(keep_output))

        module.eval()
        returned = call_theirs(module, *arguments, advice=f"; if it takes more than ids, {advice}")

    arrays = recorder.arrays
    logits = as_logits(returned_logits(returned), batch.shape, vocab_size)
    if logits is not None:
        arrays["logits"] = logits
    else:
        # Its lm_head may be right, and what the module returns wrong. What a user gets counts.
        arrays = {name: array for name, array in arrays.items() if our_name(name) != "logits"}
    if not arrays:
        raise ArgumentError(
            f"{type(module).__name__} returns no logits, and has no module of a GPT-2, such as "
            f"h.0.attn.c_attn or blocks.0.mlp: {advice}"
        )
    return arrays


def as_logits(returned: Any, shape: tuple[int, int], vocab_size: int) -> Any:
    """What a module returns as [B, T, V], or None if it has not the shape of logits.

    shape: B and T. Some modules return [B T, V], for torch's cross_entropy. A module without its
    output matrix returns [B, T, D].
    """
    B, T = shape
    if returned is None or returned.shape[-1] < vocab_size:
        return None
    if tuple(returned.shape[:-1]) not in ((B, T), (B * T,)):
        return None
    return returned.reshape(B, T, -1)


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


# Files


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file, or of a directory's .npy files, under their names.

    In JSON, null is nan, because JavaScript writes nan and infinity so. Raises ArgumentError, also
    if two names stand for one activation or parameter, and differ: only one of them could be
    compared, and the other one might be wrong.
    """
    arrays: dict[str, np.ndarray] = {}
    if path.is_dir():
        arrays = read_numpy(path)
    elif path.suffix.lower() == ".npy" and path.is_file():
        raise ArgumentError(
            f"{path} is one array: put ids.npy and logits.npy into one directory, and give its name"
        )
    else:
        given = read_by_name(path, '{"ids": [1, 2], "embed": [[0.5, ...], ...]}', kinds=KINDS)
        for name, value in given.items():
            arrays[name] = array_of(value, name, path)
    if not arrays:
        raise ArgumentError(f"{path}: there are no arrays in it")

    first_names: dict[str, str] = {}
    for name in arrays:
        ours = our_name(name)
        if ours in ("", NOT_COMPARED):
            continue
        first = first_names.setdefault(ours, name)
        # Without their axes: conventions give one activation different shapes.
        if first != name and not np.array_equal(arrays[first].ravel(), arrays[name].ravel()):
            raise ArgumentError(
                f"{path}: {short_repr(first)} and {short_repr(name)} are both {ours}, and they "
                "differ: give one of them"
            )
    return arrays


def read_by_name(path: Path, example: str, kinds: str = FILE_KINDS) -> dict[str, Any]:
    """The arrays of an .npz or a .safetensors file; of a JSON file, the values of its object.

    example: what a JSON file holds, for an error. kinds: what else the caller reads, for an error.
    Raises ArgumentError.
    """
    suffix = path.suffix.lower()
    if suffix == ".json":
        return read_json_object(path, f"an object such as {example}")
    if suffix == ".safetensors":
        return dict(read_safetensors(path))
    if path.is_dir():
        raise ArgumentError(f"{path} is a directory: expected a {kinds}")
    return dict(read_numpy(path, kinds))


def read_numpy(path: Path, kinds: str = KINDS) -> dict[str, np.ndarray]:
    """The arrays of an .npz, or those of a directory's .npy files under the files' names.

    kinds: what was expected, for an error.
    """
    arrays = {}
    name = ""  # the array that is being read, for an error
    try:
        if path.is_dir():
            for file in sorted(path.glob("*.npy")):
                name = file.stem
                arrays[name] = np.load(file, allow_pickle=False)
            return arrays
        # NpzFile refuses a file that is not an .npz. np.load would take it for an .npy or a pickle.
        with (
            path.open("rb") as stream,
            np.lib.npyio.NpzFile(stream, allow_pickle=False) as archive,
        ):
            for name in archive.files:
                arrays[name] = archive[name]
    except OSError as error:
        raise ArgumentError(f"{path}: {error.strerror or error}; expected a {kinds}") from error
    except Exception as error:  # a damaged file raises a dozen kinds, such as SyntaxError
        if "allow_pickle" in str(error):  # NumPy's message about an array of objects
            raise ArgumentError(
                f"{path}: {short_repr(name)} is not an array of numbers but of Python objects, "
                "which are not read because that can run code"
            ) from error
        problem = f"is not a {kinds}: {error!s:.100}"
        # A damaged .npz is not described: its name says already what it should be.
        if path.is_file() and path.suffix != ".npz":
            problem = describe(path) or problem
        raise ArgumentError(f"{path} {problem}") from error
    # A file of PyTorch is a zip file, too, with a .pkl in it, whatever its name is.
    if any(name.endswith(".pkl") for name in arrays):
        raise ArgumentError(f"{path} {GIVE_FILE}")
    return arrays


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file."""
    try:
        tensors, _ = read_header(path)
        return {name: tensor.read_exactly() for name, tensor in tensors.items()}
    except CheckpointError as error:
        raise ArgumentError(str(error)) from error


def read_json_object(path: Path, expected: str) -> dict[str, Any]:
    """The object of a JSON file. A name that is given twice is an error.

    expected: what the error says if it is something else. Raises ArgumentError.
    """
    try:
        document = json.loads(path.read_bytes(), object_pairs_hook=without_repeated_names)
    except OSError as error:
        reason = error.strerror or error
        raise ArgumentError(f"{path}: {reason}; expected {expected}") from error
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{path} is not JSON: {error!s:.100}") from error
    if not isinstance(document, dict):
        raise ArgumentError(f"{path}: expected {expected}, got {short_repr(document)}")
    return document


def without_repeated_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object as a dict. Raises ValueError for a name that it has twice."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{short_repr(name)} is in it twice")
        found[name] = value
    return found


def array_of(lists: Any, name: str, path: Path) -> np.ndarray:
    """Nested lists of numbers, or an array, as an array. Raises ArgumentError for anything else."""
    if isinstance(lists, np.ndarray):
        return lists
    try:
        array = np.array(lists)
        if array.dtype == object:  # null, which becomes nan, or an integer above 64 bits
            if any(isinstance(value, str) for value in array.flat):
                raise ValueError("a text")
            array = np.array(lists, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(
            f"{path}: {short_repr(name)} is not lists of numbers of equal lengths: {error!s:.100}"
        ) from error
    if array.dtype.kind not in "iufb":  # integers with and without a sign, floats, booleans
        raise ArgumentError(f"{path}: {short_repr(name)} is not lists of numbers")
    return array
