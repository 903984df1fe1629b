"""How many parameters a language model of any kind has: from its files, or from config.json."""

import re
from math import prod
from typing import Any

from ..checkpoints.tensors import FLOATS, Tensor
from .kinds import ModelClass, all_buffers, load_kinds, pattern
from .matrices import SIZE, Matrices, matrix_shape

Report = dict[str, Any]

# Stored in older files, and in those of other programs, but no parameters: masks, tables of angles.
# (What transformers stores today is measured: kinds.json.)
OLD_BUFFER = re.compile(r"(masked_bias|causal_mask|rope\.freqs|inv_freq|position_ids)$")
CAUSAL_MASK = re.compile(r"(attn|attention)\.bias$")  # with four axes


def count_stored(
    tensors: dict[str, Tensor], matrices: Matrices, known: ModelClass | None
) -> Report | None:
    """The counts of a model from its tensors; None if they are not known.

    known: the class of the model, None if it was not measured. The numbers of a quantised model are
    packed, so that shapes do not count them.
    """
    if not matrices.stored or matrices.quantised:
        return None
    if known is not None and not known.is_counted:
        return None
    if matrices.name_set is None:
        known = None
    total = 0
    of_matrices = {matrix.name for matrix in matrices.stored}
    for name, tensor in tensors.items():
        if name in of_matrices or is_buffer(name, tensor, matrices, known):
            continue
        if known is not None and known.copies.get(name) in tensors:
            continue
        if tensor.dtype not in FLOATS:
            return None
        total += prod(tensor.shape)
    sizes = {prod(matrix.shape) for matrix in matrices.stored}
    if len(sizes) > 1:  # an embedding and a head of different shapes can never be one
        both = sum(prod(matrix.shape) for matrix in matrices.stored)
        return counts(total + both, 0)
    size = sizes.pop()
    # The head is one more matrix. An encoder and a decoder may have one each, too.
    difference = (max(len(matrices.stored), 2) - 1) * size
    if known is not None:
        difference += count_separate(tensors, known)
    return counts(total + size, difference)


def count_separate(tensors: dict[str, Tensor], known: ModelClass) -> int:
    """What an untied model has twice beside its matrices: the bias of the head, in BERT."""
    kept = [tensors.get(known.copies[name]) for name in known.separate]
    return sum(prod(tensor.shape) for tensor in kept if tensor is not None)


def is_buffer(name: str, tensor: Tensor, matrices: Matrices, known: ModelClass | None) -> bool:
    """Whether a stored tensor is no parameter."""
    if OLD_BUFFER.search(name) or (CAUSAL_MASK.search(name) and len(tensor.shape) == 4):
        return True
    if known is None or matrices.name_set is None:
        return pattern(name) in all_buffers()
    usual, there = known.prefixes[matrices.name_set]
    return pattern(usual + name.removeprefix(there)) in known.buffers


def count_like_llama(config: dict[str, Any]) -> Report | None:
    """The counts of a model from its config.json; None if they are not known from it."""
    kind = config.get("model_type")
    layers = load_kinds()["like_llama"].get(kind) if isinstance(kind, str) else None
    if layers is None:
        return None
    return count_layers(config, layers)


def count_layers(config: dict[str, Any], layers: dict[str, Any]) -> Report | None:
    """The counts of a model whose layers are those of Llama but for what `layers` says.

    layers: whether q, k and v have biases ("qkv_biases"), whether the heads of q and k have gains
        ("head_norms"), and the number of "norms" of a layer. "biases" are fields of config.json
        that add biases. "optional" are fields that may be missing. "fixed" are fields that must
        have these values.
    """
    shape = matrix_shape(config)
    sizes = sizes_like_llama(config, layers["optional"])
    if shape is None or sizes is None:
        return None
    if any(config.get(name) != value for name, value in layers["fixed"].items()):
        return None
    V, D = shape
    L, H, kv_heads, K, F = sizes
    layer = layers["norms"] * D + 3 * D * F  # gate, up and down
    layer += 2 * D * H * K + 2 * D * kv_heads * K  # q and o, k and v
    if layers["qkv_biases"]:
        layer += (H + 2 * kv_heads) * K
    if layers["head_norms"]:
        layer += 2 * K
    for name in ("attention_bias", "mlp_bias"):
        if config.get(name) is not True:
            continue
        if name not in layers["biases"]:
            return None
        layer += (H + 2 * kv_heads) * K + D if name == "attention_bias" else 2 * F + D
    return counts(V * D + L * layer + D, V * D)  # + D: the final norm


def sizes_like_llama(
    config: dict[str, Any], optional: list[str]
) -> tuple[int, int, int, int, int] | None:
    """Layers, heads, heads of k and v, K and F; None if they are not all known.

    optional: "head_dim" if it is D / H where config.json has none, "num_key_value_heads" if there
    are as many as heads of q.
    """
    L: Any = config.get("num_hidden_layers")
    H: Any = config.get("num_attention_heads")
    F: Any = config.get("intermediate_size")
    D: Any = config.get("hidden_size")
    kv_heads: Any = config.get("num_key_value_heads")
    if kv_heads is None and "num_key_value_heads" in optional:
        kv_heads = H
    K: Any = config.get("head_dim")
    if K is None and "head_dim" in optional and H in SIZE and D in SIZE:
        K = D // H
    if all(size in SIZE for size in (L, H, kv_heads, K, F)):
        return L, H, kv_heads, K, F
    return None


def counts(tied: int, matrix: int) -> Report:
    """The parameters "tied" and "untied", their bytes, and the "difference": `matrix`.

    >>> report = counts(tied=124_439_808, matrix=38_597_376)
    >>> report["untied"]["total"], report["more_percent"], report["less_percent"]
    (163037184, 31.02, 23.67)
    """
    report: Report = {}
    for head, total in (("tied", tied), ("untied", tied + matrix)):
        report[head] = {"total": total, "bytes": 4 * total, "bytes_bfloat16": 2 * total}
    return {
        **report,
        "difference": matrix,
        "more_percent": round(100 * matrix / tied, 2),
        "less_percent": round(100 * matrix / (tied + matrix), 2),
    }
