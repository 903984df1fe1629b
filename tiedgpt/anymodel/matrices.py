"""Which of the stored tensors are the matrices of a model, and which of them are equal.

Of a class that was measured (kinds.py) the names are known. Of another model a matrix is known by
the end of its name and by its shape, [V, D] in config.json. What is not clear is said to be so.

Matrix 0 is the token embedding, matrix 1 the output matrix (the head); those of an encoder and a
decoder follow. A class may have several sets of names: `name_set` is the number of one. A state has
a letter for each matrix of the files, "." for one that is not stored: "ab" are two that differ.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from typing import Any

from ..checkpoints.names import EMBEDDINGS, HEADS, IN_A_LAYER, OTHER_TABLE
from ..checkpoints.tensors import FLOATS, Tensor
from ..errors import Range, shape_in_words, short_repr
from .headers import AnyModel
from .kinds import ModelClass, fields_at, pattern, value_at

SIZE = Range(1, 2**31 - 1)
# The names of the width of both matrices in config.json. The first one that is there holds.
WIDTHS = ("word_embed_proj_dim", "embedding_size", "hidden_size", "n_embd", "d_model")
# The parts of a module whose weight is quantised, by GPTQ and AWQ, MLX, compressed-tensors, FP8,
# bitsandbytes
QUANTISED = (
    *("qweight", "qzeros", "scales", "biases", "weight_packed", "weight_scale"),
    *("weight_scale_inv", "SCB", "weight_format", "absmax", "quant_map"),
)


@dataclass
class Matrices:
    """The matrices of a model as they are stored: the embedding, the head, then the others."""

    tensors: list[Tensor | None]  # None: it is not there, or not clear
    quantised: set[str] = field(default_factory=set)  # names
    # The names of tensors that may be a matrix, too. If there are some, what is stored is not
    # known.
    unclear: list[str] = field(default_factory=list)
    # The names of tensors that the class does not look for, and that may be a matrix, too. If there
    # are some, it is not known how the files are read.
    possible_others: list[str] = field(default_factory=list)
    # For each matrix by name whose shape config.json contradicts: both shapes, in words.
    misfits: list[str] = field(default_factory=list)
    # Which set of names of the class the files have; None if none, or if no class is known.
    name_set: int | None = None

    @property
    def embedding(self) -> Tensor | None:
        return self.tensors[0]

    @property
    def head(self) -> Tensor | None:
        return self.tensors[1]

    @property
    def state_if_equal(self) -> str | None:
        """The state of the files if all matrices that are stored were equal; None if not known.

        "aa" and "a." say which are stored, where they cannot be compared.
        """
        if not self.stored:
            return None
        return "".join("." if matrix is None else "a" for matrix in self.tensors)

    @property
    def stored(self) -> list[Tensor]:
        """The matrices that the files have; none if that is not known."""
        if self.unclear:
            return []
        return [matrix for matrix in self.tensors if matrix is not None]


def find_matrices(
    config: dict[str, Any], tensors: dict[str, Tensor], known: ModelClass | None
) -> Matrices:
    """The matrices of a model. known: its class, None if it was not measured."""
    by_ends = find_by_ends(config, tensors)
    if known is None:
        return by_ends
    by_class = find_by_class(config, tensors, known)
    if by_class.stored or by_class.misfits or not by_ends.stored:
        return by_class
    # The matrices have names that the class does not look for.
    of_matrices = {matrix.name for matrix in by_ends.stored}
    by_ends.possible_others = [name for name in by_class.unclear if name not in of_matrices]
    return by_ends


# By the names of a class


def find_by_class(
    config: dict[str, Any], tensors: dict[str, Tensor], known: ModelClass
) -> Matrices:
    """The matrices by the names that were measured. None is found if no set of them fits."""
    modules = by_module(tensors)
    name_set = find_name_set(known, tensors, modules)
    found = Matrices([None] * len(known.names[0]), name_set=name_set)
    if name_set is None:
        return found
    names = known.names[name_set]
    # A tensor by a name of another set may be a matrix, too.
    unclear = {name for each in known.names for name in each if name in tensors} - set(names)
    of_matrices = set(names)  # names of tensors that are a matrix, or a part of a quantised one
    shape: tuple[int, ...] | None = matrix_shape(config)
    for number, name in enumerate(names):
        module = modules.get(name.rpartition(".")[0], {})
        quantised_parts = [tensor for part, tensor in module.items() if part in QUANTISED]
        matrix = tensors.get(name) or next(iter(quantised_parts), None)
        if matrix is None:
            continue
        found.tensors[number] = matrix
        if matrix.dtype not in FLOATS or quantised_parts:
            found.quantised.add(matrix.name)
            of_matrices |= {tensor.name for tensor in module.values()}
            continue
        if shape is None and len(matrix.shape) == 2:
            shape = matrix.shape
        if number in known.never_tied:  # it may be of another vocabulary, and have another shape
            continue
        # A third matrix can be one with the head, so it has the head's size.
        embedding_or_head = min(number, 1)
        if misfit := describe_misfit(config, known.sizes[embedding_or_head], matrix):
            unclear.add(matrix.name)
            found.misfits.append(misfit)
    # Any other tensor with the shape of a matrix may be one, unless it is a buffer.
    absent_prefix = known.absent_prefixes[name_set]  # the names in known.buffers have it
    for name, tensor in tensors.items():
        is_buffer = pattern(absent_prefix + name) in known.buffers
        if name not in of_matrices and not is_buffer and could_be_matrix(name, tensor, shape):
            unclear.add(name)
    found.unclear = sorted(unclear)
    return found


def find_name_set(
    known: ModelClass, tensors: Mapping[str, Tensor], modules: Mapping[str, Mapping[str, Tensor]]
) -> int | None:
    """The number of the set of names of which most are there; None if none is.

    A name is there as a tensor, or as the module of other tensors: a quantised lm_head.weight is
    lm_head.qweight and lm_head.scales.

    In some sets the names lack a prefix: a model that was saved without its head has
    "embed_tokens.weight" in place of "model.embed_tokens.weight". Such a set does not count if a
    tensor has the prefix.
    """
    best = None
    most = 0
    for name_set, names in enumerate(known.names):
        count = sum(name in tensors or name.rpartition(".")[0] in modules for name in names)
        prefix = known.absent_prefixes[name_set].removesuffix(".")  # so transformers 4 asks for it
        if prefix and any(name.startswith(prefix) for name in tensors):
            continue
        if count > most:
            best, most = name_set, count
    return best


def describe_misfit(
    config: dict[str, Any], places: tuple[str | None, str | None], matrix: Tensor
) -> str:
    """What is wrong with the shape of a matrix, by config.json; "" for nothing.

    places: where config.json has V and D, such as "vocab_size"; None where that was not measured.
    """
    shape = shape_in_words(matrix.shape)
    if len(matrix.shape) != 2 or prod(matrix.shape) == 0:
        return f"the shape of {matrix.name} is {shape}, not that of a matrix [V, D]"
    usual = matrix_shape(config) or (None, None)  # V and D at the usual places of config.json
    wrong = []
    for axis, (size, place) in enumerate(zip(matrix.shape, places, strict=True)):
        expected = value_at(config, place) if place is not None else usual[axis]
        if expected is not None and expected != size:
            field_name = place or ("vocab_size" if axis == 0 else "the width")
            wrong.append(f"{field_name} is {short_repr(expected)}")
    if not wrong:
        return ""
    return f"the shape of {matrix.name} is {shape}, but {' and '.join(wrong)} in config.json"


# By the ends of names


def find_by_ends(config: dict[str, Any], tensors: dict[str, Tensor]) -> Matrices:
    """The two matrices, by the ends of their names and their shape."""
    shape = matrix_shape(config) or shape_of_embedding(tensors)
    candidates = {}  # outside the layers, without biases and tables of positions and the like
    for name, tensor in tensors.items():
        is_bias = name.rpartition(".")[2] == "bias"
        if not (is_bias or IN_A_LAYER.search(name) or OTHER_TABLE.search(name)):
            candidates[name] = tensor
    found: dict[str, list[Tensor]] = {"embedding": [], "head": []}
    unclear = []
    quantised = set()
    for module, parts in by_module(candidates).items():
        weight = parts.get("weight") or next(iter(parts.values()))
        is_quantised = weight.dtype not in FLOATS or any(part in QUANTISED for part in parts)
        last_name = module.rpartition(".")[2]
        # The shape of a quantised weight is not [V, D]: several numbers are packed into one.
        if last_name in EMBEDDINGS + HEADS and (is_quantised or weight.shape == shape):
            found["embedding" if last_name in EMBEDDINGS else "head"].append(weight)
            if is_quantised:
                quantised.add(weight.name)
        elif any(could_be_matrix(part.name, part, shape, padded=True) for part in parts.values()):
            unclear += [tensor.name for tensor in parts.values()]
    for same_use in found.values():
        if len(same_use) > 1:  # which one is the embedding, or the head, is not clear
            unclear += [tensor.name for tensor in same_use]
            same_use.clear()
    embedding, head = (same_use[0] if same_use else None for same_use in found.values())
    if embedding is not None and head is not None:
        unclear = []  # no other tensor can be the embedding or the head
    return Matrices([embedding, head], quantised, sorted(unclear))


def by_module(tensors: Mapping[str, Tensor]) -> dict[str, dict[str, Tensor]]:
    """The tensors by the name of their module, then by the last part of their name.

    >>> by_module({"transformer.wte.weight": 1, "lm_head.weight": 2, "lm_head.bias": 3})
    {'transformer.wte': {'weight': 1}, 'lm_head': {'weight': 2, 'bias': 3}}
    """
    modules: dict[str, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        module, _, part = name.rpartition(".")
        modules.setdefault(module, {})[part] = tensor
    return modules


def shape_of_embedding(tensors: dict[str, Tensor]) -> tuple[int, ...] | None:
    """The shape of the only embedding of a file without config.json; None without one."""
    names = tuple(f"{name}.weight" for name in EMBEDDINGS)
    shapes = [tensor.shape for name, tensor in tensors.items() if name.endswith(names)]
    if len(shapes) == 1 and len(shapes[0]) == 2 and prod(shapes[0]) > 0:
        return shapes[0]
    return None


def could_be_matrix(
    name: str, tensor: Tensor, shape: tuple[int, ...] | None, padded: bool = False
) -> bool:
    """Whether a tensor could be the embedding or the head, [V, D], or one of them transposed.

    padded: also one of width D with more than V rows.
    """
    # A layer's matrix may have the shape by chance, and a table of positions, too.
    if shape is None or IN_A_LAYER.search(name) or OTHER_TABLE.search(name):
        return False
    V, D = shape
    if len(tensor.shape) != 2 or 1 in tensor.shape:
        return False
    return V in tensor.shape or (padded and D in tensor.shape and max(tensor.shape) > V)


def matrix_shape(config: dict[str, Any]) -> tuple[int, int] | None:
    """The [V, D] of both matrices by config.json; None if it does not say."""
    fields = config | dict(fields_at(config, "text_config"))  # of a model of texts and images
    V: Any = fields.get("vocab_size")
    D: Any = next((fields[name] for name in WIDTHS if fields.get(name) is not None), None)
    if V in SIZE and D in SIZE:
        return V, D
    return None


# Which are equal


@dataclass(frozen=True)
class Comparison:
    """The state of the files, and the rows that were compared for it."""

    state: str | None  # None: not known
    equal_rows: int | None = None  # of the embedding and the head
    compared_rows: int | None = None
    # Whether two differ in the files, and are equal in bfloat16 or float16. transformers 5 compares
    # them in the dtype of the model, which a program chooses: whether they are one is not known.
    equal_if_rounded: bool = False


def compare_matrices(model: AnyModel, matrices: Matrices) -> Comparison:
    """Which matrices are stored, and which of them are equal. Quantised ones are not compared."""
    if matrices.unclear or not matrices.stored:
        return Comparison(state=None)
    state = ""
    equal_if_rounded = False
    earlier: list[tuple[str, Tensor]] = []  # the matrices before this one, each with its letter
    equal_rows = compared_rows = None
    for number, matrix in enumerate(matrices.tensors):
        if matrix is None:
            state += "."
            continue
        if matrix.name in matrices.quantised:
            return Comparison(state=None)
        # The next letter, if no earlier matrix is equal
        letter = "abcdefgh"[len({letter for letter, _ in earlier})]
        for earlier_letter, other in earlier:
            if other.shape != matrix.shape:
                continue
            equal, compared = model.equal_rows(other, matrix)
            if number == 1:  # the head, and `other` is the embedding
                equal_rows, compared_rows = equal, compared
            if equal == compared:
                letter = earlier_letter
                break
            equal, _ = model.equal_rows(other, matrix, rounded=True)  # in bfloat16 or float16
            if equal == compared:
                equal_if_rounded = True
        earlier.append((letter, matrix))
        state += letter
    return Comparison(state, equal_rows, compared_rows, equal_if_rounded)
