"""The table of GPT-2's parameters: names, shapes, counts.

Loading, saving and counting use this table. The names are those of checkpoints:

    wte.weight       [V, D]       token embedding, W_E
    wpe.weight       [n_ctx, D]   position embedding, W_pos
    h.N.ln_1         [D]          layer norm before attention
    h.N.attn.c_attn  [D, 3D]      W_Q | W_K | W_V
    h.N.attn.c_proj  [D, D]       W_O
    h.N.ln_2         [D]          layer norm before the MLP
    h.N.mlp.c_fc     [D, F]       W_in
    h.N.mlp.c_proj   [F, D]       W_out
    ln_f             [D]          final layer norm
    lm_head.weight   [V, D]       W_U transposed, only when untied

Modules from h.N.ln_1 to ln_f have a `weight` of this shape, and a `bias`. Their matrices are
[in, out] and used as `x @ W`, without a transpose.
"""

from dataclasses import dataclass
from math import prod
from typing import Any, TypedDict

import numpy as np

from ..errors import ArgumentError, Range
from .config import Config

Parameters = dict[str, np.ndarray]


def parameter_shapes(config: Config) -> dict[str, tuple[int, ...]]:
    """Every tensor's checkpoint name -> its shape, in the order of the forward pass.

    >>> parameter_shapes(Config())["h.0.attn.c_attn.weight"]
    (768, 2304)
    """
    D = config.n_embd
    F = config.n_inner
    shapes: dict[str, Any] = {
        "wte.weight": (config.vocab_size, D),
        "wpe.weight": (config.n_ctx, D),
    }
    block: dict[str, Any] = {
        "ln_1": (D,),
        "attn.c_attn": (D, 3 * D),
        "attn.c_proj": (D, D),
        "ln_2": (D,),
        "mlp.c_fc": (D, F),
        "mlp.c_proj": (F, D),
    }
    modules: dict[str, Any] = {}
    for layer in range(config.n_layer):
        for name, weight_shape in block.items():
            modules[f"h.{layer}.{name}"] = weight_shape
    modules["ln_f"] = (D,)

    for name, weight_shape in modules.items():
        shapes[f"{name}.weight"] = weight_shape
        shapes[f"{name}.bias"] = weight_shape[-1:]  # one number for each output
    if not config.tied:
        shapes["lm_head.weight"] = (config.vocab_size, D)
    return shapes


def nest(parameters: Parameters) -> dict[str, Any]:
    """The arrays in nested dicts, one level for each part of their names; "h" is a list of layers.

    >>> tree = nest({"wte.weight": 1, "h.0.ln_1.weight": 2, "h.0.ln_1.bias": 3})
    >>> tree["wte"], tree["h"][0]
    ({'weight': 1}, {'ln_1': {'weight': 2, 'bias': 3}})
    """
    tree: dict[str, Any] = {}
    for name, array in parameters.items():
        *path, last_part = name.split(".")
        node = tree
        for part in path:
            node = node.setdefault(part, {})
        node[last_part] = array
    layers = tree.get("h", {})  # "0", "1", ... in this order
    tree["h"] = list(layers.values())
    return tree


def unflatten(flat: np.ndarray, shapes: dict[str, tuple[int, ...]]) -> Parameters:  # [P] -> arrays
    """The parameters as views of one vector: a change of the vector changes them.

    >>> unflatten(np.arange(5), {"ln_f.weight": (2,), "ln_f.bias": (3,)})["ln_f.bias"]
    array([2, 3, 4])
    """
    parameters = {}
    start = 0
    for name, shape in shapes.items():
        end = start + prod(shape)
        parameters[name] = flat[start:end].reshape(shape)
        start = end
    return parameters


COUNTED = Range(1, 10**18)  # the sizes that count_matrices accepts
GROUPS = {  # group -> a text that is in the names of its tensors only
    "token embedding": "wte.",
    "position embedding": "wpe.",
    "attention": ".attn.",
    "MLP": ".mlp.",
    "layer norms": "ln_",
    "output head": "lm_head.",
}


class CountReport(TypedDict):
    """A ParameterCount, for JSON."""

    groups: dict[str, int]
    total: int
    bytes: int  # in float32


class CountsByHead(TypedDict):
    tied: CountReport
    untied: CountReport


class CountsOfMatrices(CountsByHead):
    """The counts of the matrices of a vocabulary alone."""

    difference: int  # one matrix, which a tie saves
    saving_percent: float | None  # its share of a whole model; None if its total is not given


class TieSaves(TypedDict):
    """What a tie saves of a model."""

    difference: int  # how many numbers
    more_percent: float  # the difference, of the tied model
    less_percent: float  # of the untied one


def tie_saves(tied: int, untied: int) -> TieSaves:
    """What a tie saves, from the numbers of parameters of both models.

    >>> tie_saves(tied=124_439_808, untied=163_037_184)
    {'difference': 38597376, 'more_percent': 31.02, 'less_percent': 23.67}
    """
    difference = untied - tied
    return {
        "difference": difference,
        "more_percent": round(100 * difference / tied, 2),
        "less_percent": round(100 * difference / untied, 2),
    }


@dataclass(frozen=True)
class ParameterCount:
    """How many numbers a model has: in each group of GROUPS, in all, and their bytes in float32."""

    groups: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.groups.values())

    @property
    def bytes(self) -> int:
        return 4 * self.total

    def to_json(self) -> CountReport:
        return {"groups": self.groups, "total": self.total, "bytes": self.bytes}


def parameter_count(config: Config) -> ParameterCount:
    """The count of a model of this configuration, with the head that it has.

    >>> parameter_count(Config()).total
    124439808
    """
    shapes = parameter_shapes(config)
    groups = {}
    for group, name_part in GROUPS.items():  # such as "MLP", ".mlp."
        sizes = [prod(shape) for name, shape in shapes.items() if name_part in name]
        groups[group] = sum(sizes)
    return ParameterCount(groups)


def count_parameters(config: Config) -> CountsByHead:
    """{"tied": count, "untied": count}; the head of `config` makes no difference.

    Each count is {"groups": {group: n}, "total": n, "bytes": n in float32}; the groups are those of
    GROUPS.

    >>> counts = count_parameters(Config())
    >>> counts["tied"]["total"], counts["untied"]["total"]
    (124439808, 163037184)
    """
    return {
        "tied": parameter_count(config.with_head("tied")).to_json(),
        "untied": parameter_count(config.with_head("untied")).to_json(),
    }


def count_matrices(vocab: int, dim: int, total: int | None = None) -> CountsOfMatrices:
    """The size of the matrices of a vocabulary, and their share of a model of `total` parameters.

    vocab and dim are the V and D of a matrix. "saving_percent" is the share of one matrix in an
    untied model of `total` parameters; None if total is less than two matrices: a model of so many
    is tied. Raises ArgumentError for a size that is not a whole number of at least 1, and for a
    total that is less than one matrix.

    >>> sizes = count_matrices(50_000, 4_096, 7_000_000_000)
    >>> sizes["difference"], round(sizes["saving_percent"], 1)
    (204800000, 2.9)
    """
    matrix = COUNTED.check("vocab", vocab) * COUNTED.check("dim", dim)
    if total is not None and COUNTED.check("total", total) < matrix:
        raise ArgumentError(f"total {total:,} is less than the token embedding alone, {matrix:,}")
    tied = ParameterCount({"token embedding": matrix, "output head": 0})
    untied = ParameterCount({"token embedding": matrix, "output head": matrix})
    saving_percent = None
    if total is not None and total >= 2 * matrix:
        saving_percent = 100 * matrix / total
    return {
        "tied": tied.to_json(),
        "untied": untied.to_json(),
        "difference": matrix,
        "saving_percent": saving_percent,
    }
