"""Read the arrays of another GPT-2 from files: .npz, .npy, safetensors or JSON.

Pickles, which can run code, are never read.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoints.files import describe
from ..checkpoints.safetensors import read_header
from ..errors import ArgumentError, CheckpointError, short_repr
from .conventions import NOT_COMPARED, our_name

KINDS = ".npz, .safetensors or .json file, or a directory of .npy files"


def read_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a file, or of a directory's .npy files, under their names.

    Raises ArgumentError.
    """
    if path.is_dir():
        arrays = read_directory(path)
    elif path.suffix.lower() == ".safetensors":
        arrays = read_safetensors(path)
    elif path.suffix.lower() == ".json":
        arrays = read_json_arrays(path)
    else:
        arrays = read_npz(path)
    if not arrays:
        raise ArgumentError(f"{path}: there are no arrays in it")
    refuse_two_of_one_kind(arrays, path)
    return arrays


def refuse_two_of_one_kind(arrays: dict[str, np.ndarray], path: Path) -> None:
    """Raise ArgumentError if two names stand for one activation or parameter, and differ.

    Only one of them could be compared, and the other one might be wrong.
    """
    first_names: dict[str, str] = {}
    for name in arrays:
        ours = our_name(name)
        if ours in ("", NOT_COMPARED):
            continue
        first = first_names.setdefault(ours, name)
        if first == name:
            continue
        if not np.array_equal(arrays[first].ravel(), arrays[name].ravel()):
            raise ArgumentError(
                f"{path}: {short_repr(first)} and {short_repr(name)} are both {ours}, and they "
                "differ: give one of them"
            )


def read_directory(path: Path) -> dict[str, np.ndarray]:
    """The arrays of the .npy files in a directory, under the files' names."""
    arrays = {}
    for file in sorted(path.glob("*.npy")):
        try:
            arrays[file.stem] = np.load(file, allow_pickle=False)
        except OSError as error:
            raise ArgumentError(f"{path}: {error.strerror or error}") from error
        except Exception as error:  # a damaged file raises a dozen kinds, such as SyntaxError
            raise numpy_error(path, file.stem, error) from error
    return arrays


def read_npz(path: Path) -> dict[str, np.ndarray]:
    """The arrays of an .npz."""
    arrays = {}
    name = ""  # the array that is being read, for an error
    try:
        # NpzFile refuses a file that is not an .npz. np.load would take it for an .npy or a pickle.
        with (
            path.open("rb") as stream,
            np.lib.npyio.NpzFile(stream, allow_pickle=False) as archive,
        ):
            for name in archive.files:
                arrays[name] = archive[name]
    except OSError as error:
        raise ArgumentError(f"{path}: {error.strerror or error}") from error
    except Exception as error:
        raise numpy_error(path, name, error) from error
    if any(name.endswith(".pkl") for name in arrays):  # a file of PyTorch is a zip file, too
        raise ArgumentError(f"{path} {describe(path)}")
    return arrays


def numpy_error(path: Path, name: str, error: Exception) -> ArgumentError:
    """What is wrong with a file of NumPy's, of which the array `name` was read."""
    if "allow_pickle" in str(error):  # NumPy's message about an array of objects
        return ArgumentError(
            f"{path}: {short_repr(name)} is not an array of numbers but of Python objects, "
            "which are not read because that can run code"
        )
    # A damaged .npz is not described: its name says already what it should be.
    if path.is_file() and path.suffix != ".npz":
        description = describe(path)
        if description:
            return ArgumentError(f"{path} {description}")
    return ArgumentError(f"{path} is not a {KINDS}: {error!s:.100}")


def read_safetensors(path: Path) -> dict[str, np.ndarray]:
    """The tensors of a safetensors file."""
    try:
        tensors, _ = read_header(path)
        return {name: tensor.read_exactly() for name, tensor in tensors.items()}
    except CheckpointError as error:
        raise ArgumentError(str(error)) from error


def read_json_arrays(path: Path) -> dict[str, np.ndarray]:
    """The arrays of a JSON object whose values are lists of numbers, or lists of such lists.

    null is nan, because JavaScript writes nan and infinity so.
    """
    try:
        document = json.loads(path.read_bytes(), object_pairs_hook=without_repeated_names)
    except OSError as error:
        raise ArgumentError(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ArgumentError(f"{path} is not JSON: {error!s:.100}") from error
    if not isinstance(document, dict):
        raise ArgumentError(
            f'{path}: expected an object such as {{"ids": [1, 2], "embed": [[0.5, ...], ...]}}, '
            f"got {short_repr(document)}"
        )
    return {name: array_of(lists, name, path) for name, lists in document.items()}


def without_repeated_names(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object as a dict. Raises ValueError for a name that it has twice."""
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"{short_repr(name)} is in it twice")
        found[name] = value
    return found


def array_of(lists: Any, name: str, path: Path) -> np.ndarray:
    """Nested lists of numbers as an array. Raises ArgumentError if they are anything else."""
    try:
        array = np.array(lists)
        if array.dtype == object:  # with null among the numbers
            array = np.array(lists, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ArgumentError(
            f"{path}: {short_repr(name)} is not lists of numbers of equal lengths: {error!s:.100}"
        ) from error
    if array.dtype.kind not in "iufb":
        raise ArgumentError(f"{path}: {short_repr(name)} is not lists of numbers")
    return array
