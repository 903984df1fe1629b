"""How many parameters a language model of any kind has: from its files, or from config.json.

A state has a letter for each matrix of the files, the embedding first, then the head: "aa" are two
equal ones, "ab" two that differ, "." is one that is not stored. A class may have several sets of
names of its matrices: `name_set` is the number of one.
"""

import re
from math import prod
from typing import Any

from ..checkpoints.tensors import FLOATS, Tensor
from ..errors import CheckpointError, short_repr
from ..gpt2.parameters import tie_saves
from .kinds import ModelClass, all_classes, load_kinds, pattern
from .matrices import SIZE, Matrices

Report = dict[str, Any]
NOT_MEASURED = "config.json has a setting that was not measured"

# Tensors of older files, and of other programs, that are no parameters: masks, tables of angles.
# (What transformers stores today is measured: kinds.json.)
OLD_BUFFER = re.compile(r"(masked_bias|causal_mask|rope\.freqs|inv_freq|position_ids)$")
CAUSAL_MASK = re.compile(r"(attn|attention)\.bias$")  # with four axes


def count_stored(
    tensors: dict[str, Tensor],
    matrices: Matrices,
    known: ModelClass | None,
    state: str | None = None,
) -> Report | None:
    """The counts of a model from its tensors; None if they are not known.

    known: the class of the model; None if it was not measured: then all known buffers are left out.
    state: that of the files; None if it is not known.
    """
    buffers = frozenset(name for each in all_classes() for name in each.buffers)
    absent_prefix = ""
    copies: dict[str, str] = {}  # a tensor that may be stored twice -> the name that is counted
    separate: tuple[str, ...] = ()  # copies that are parameters of an untied model
    stored = matrices.stored
    if known is not None and matrices.name_set is not None:
        # `buffers` are names with the usual prefix, which these tensors may lack.
        absent_prefix = known.absent_prefixes[matrices.name_set]
        buffers, copies, separate = known.buffers, known.copies, known.separate
        # A matrix that is never tied is counted like any other tensor.
        never_tied = {known.names[matrices.name_set][number] for number in known.never_tied}
        stored = [matrix for matrix in stored if matrix.name not in never_tied]
    if not stored or matrices.quantised or (known is not None and not known.is_counted):
        return None

    # All tensors but the matrices
    of_matrices = {matrix.name for matrix in stored}
    others = 0
    for name, tensor in tensors.items():
        is_counted_elsewhere = name in of_matrices or copies.get(name) in tensors
        if is_counted_elsewhere or is_buffer(absent_prefix + name, tensor, buffers):
            continue
        if tensor.dtype not in FLOATS:  # a quantised model may pack several numbers into one
            return None
        others += prod(tensor.shape)

    # The matrices, of which some are one in a tied model
    sizes = [prod(matrix.shape) for matrix in stored]
    if len(set(sizes)) > 1:  # an embedding and a head of different shapes can never be one
        return counts(tied=others + sum(sizes), only_untied=0)
    if len(stored) < len(matrices.stored):
        state = None  # it has letters of matrices that are never tied, too
    name_set = matrices.name_set or 0  # 0, the usual names, for names that the class does not have
    count_untied, count_tied = matrices_in_memory(len(stored), known, name_set, state)
    only_untied = (count_untied - count_tied) * sizes[0]
    # Some copies are parameters of their own in an untied model: BERT has the head's bias twice.
    originals = [tensors[copies[name]] for name in separate if copies[name] in tensors]
    only_untied += sum(prod(tensor.shape) for tensor in originals)
    return counts(tied=others + count_tied * sizes[0], only_untied=only_untied)


def matrices_in_memory(
    stored: int, known: ModelClass | None, name_set: int, state: str | None
) -> tuple[int, int]:
    """How many matrices are in memory of an untied model, and of a tied one.

    stored: how many the files have. state: that of the files; None if it is not known.
    """
    # An untied model has an embedding and a head; an encoder and a decoder may have one each, too.
    untied, tied = max(stored, 2), 1
    if known is not None and state is not None:
        # Where it was not measured (None), the usual number stays.
        untied = min(untied, known.count_untied(name_set, state) or untied)
        # The files of the tied model have a head that equals the embedding.
        with_equal_head = state[0] * 2 + state[2:]
        tied = min(untied, known.count_in_memory(name_set, "t", with_equal_head) or tied)
    return untied, tied


def is_buffer(name: str, tensor: Tensor, measured: frozenset[str]) -> bool:
    """Whether a stored tensor is no parameter. measured: names of buffers, N for a number."""
    is_causal_mask = CAUSAL_MASK.search(name) is not None and len(tensor.shape) == 4
    return is_causal_mask or OLD_BUFFER.search(name) is not None or pattern(name) in measured


def count_from_config(config: dict[str, Any], layers: dict[str, Any] | None = None) -> Report:
    """The counts of a model from its config.json. Raises CheckpointError if it does not say them.

    layers: how the layers differ from those of Llama; by default what kinds.json says of the kind.
        "qkv_biases" says whether q, k and v have biases, "head_norms" whether the heads of q and k
        have gains, "norms" how many norms a layer has. "biases" are the fields of config.json that
        add biases, "optional" those that may be missing, "fixed" those that must have these values.
    """
    kind = config.get("model_type")
    if layers is None and isinstance(kind, str):
        layers = load_kinds()["like_llama"].get(kind)
    if layers is None:
        raise CheckpointError(
            f"config.json of kind {short_repr(kind)} is not one that is counted from"
        )
    V, D, L, H, kv_heads, K, F = sizes_like_llama(config, layers["optional"])
    if any(config.get(name) != value for name, value in layers["fixed"].items()):
        raise CheckpointError(NOT_MEASURED)
    layer = layers["norms"] * D + 3 * D * F  # the gains of the norms; gate, up and down
    layer += 2 * D * H * K + 2 * D * kv_heads * K  # q and o; k and v
    if layers["qkv_biases"]:
        layer += (H + 2 * kv_heads) * K
    if layers["head_norms"]:  # one gain [K] for all heads of q, and one for those of k
        layer += 2 * K
    for name in ("attention_bias", "mlp_bias"):
        if config.get(name) is not True:
            continue
        if name not in layers["biases"]:
            raise CheckpointError(NOT_MEASURED)
        of_attention = (H + 2 * kv_heads) * K + D  # q, k, v and o
        of_mlp = 2 * F + D  # gate, up and down
        layer += of_attention if name == "attention_bias" else of_mlp
    final_norm = D
    return counts(tied=V * D + L * layer + final_norm, only_untied=V * D)


def sizes_like_llama(config: dict[str, Any], optional: list[str]) -> list[int]:
    """V, D, layers, heads, heads of k and v, K and F. Raises CheckpointError if one is no size.

    optional: the fields that config.json may lack. Without "head_dim" it is D / H, and without
    "num_key_value_heads" there are as many as heads of q.
    """
    V, D = config.get("vocab_size"), config.get("hidden_size")
    L, F = config.get("num_hidden_layers"), config.get("intermediate_size")
    H: Any = config.get("num_attention_heads")
    kv_heads, K = config.get("num_key_value_heads"), config.get("head_dim")
    if kv_heads is None and "num_key_value_heads" in optional:
        kv_heads = H
    if K is None and "head_dim" in optional and isinstance(D, int) and H in SIZE:
        K = D // H
    sizes: dict[str, Any] = {
        "vocab_size": V,
        "hidden_size": D,
        "num_hidden_layers": L,
        "num_attention_heads": H,
        "num_key_value_heads": kv_heads,
        "head_dim": K,
        "intermediate_size": F,
    }
    for name, size in sizes.items():
        if size not in SIZE:
            raise CheckpointError(
                f"{name} in config.json must be a whole number above 0, got {short_repr(size)}"
            )
    return list(sizes.values())


def counts(tied: int, only_untied: int) -> Report:
    """The parameters "tied" and "untied", their bytes in two dtypes, and what a tie saves.

    only_untied: how many parameters only the untied model has.
    """
    untied = tied + only_untied
    report: Report = {}
    for head, total in (("tied", tied), ("untied", untied)):
        report[head] = {"total": total, "bytes": 4 * total, "bytes_bfloat16": 2 * total}
    return {**report, **tie_saves(tied=tied, untied=untied)}
