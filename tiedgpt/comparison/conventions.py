"""The names and layouts of other GPT-2s' activations, and the way to ours.

Those of parameters are in checkpoints/names.py.

In the tables, N is a layer's number. An array under a name of llm.c has all layers, [L, ...]. A
module's name means its output (`h.0.mlp`), with `:in` its input, with `:1` its second output.
TransformerLens writes `.hook_out` and `.hook_in`. Prefixes such as `transformer.` may be there or
not. An alias is a name in any of these conventions, `theirs` the name that was given, `ours` ours.

Heads are [B, H, T, K] on our tape, [B, T, H, K] in TransformerLens, [B, T, D] elsewhere.
"""

import re
from collections.abc import Iterator, Mapping
from itertools import permutations
from typing import Any

from ..checkpoints.names import all_names, is_beside, our_parameter, plain_name
from ..checkpoints.state_dicts import as_floats
from ..errors import ArgumentError, nearest_names, short_repr
from ..gpt2.config import Config
from ..gpt2.model import Array
from ..gpt2.parameters import Parameters

# Our name of an activation -> the others': those of transformers and nanoGPT (h.N), of
# TransformerLens (blocks.N), and of llm.c (without a dot).
ACTIVATION_NAMES = {
    "embed": ["drop", "encoded"],
    "resid_pre.N": ["h.N:in", "blocks.N:in", "blocks.N.hook_resid_pre"],
    "attn.N.in": ["h.N.ln_1", "h.N.attn:in", "h.N.attn.c_attn:in", "blocks.N.ln1", "ln1"],
    "attn.N.qkv": ["h.N.attn.c_attn", "qkv"],
    "attn.N.q": ["blocks.N.attn.q", "blocks.N.attn.hook_q"],
    "attn.N.k": ["blocks.N.attn.k", "blocks.N.attn.hook_k"],
    "attn.N.v": ["blocks.N.attn.v", "blocks.N.attn.hook_v"],
    "attn.N.scores": [],
    "attn.N.pattern": [
        "h.N.attn.attn_dropout:in",
        "h.N.attn:1",
        "blocks.N.attn.hook_pattern",
        "att",
    ],
    "attn.N.heads": [
        "h.N.attn.c_proj:in",
        "blocks.N.attn.hook_z",
        "blocks.N.attn.o:in",
        "atty",
    ],
    "attn.N.out": [
        "h.N.attn.c_proj",
        "h.N.attn",
        "blocks.N.attn",
        "blocks.N.hook_attn_out",
        "attproj",
    ],
    "resid_mid.N": ["blocks.N.hook_resid_mid", "residual2"],
    "mlp.N.in": ["h.N.ln_2", "h.N.mlp:in", "h.N.mlp.c_fc:in", "blocks.N.ln2", "ln2"],
    "mlp.N.pre": [
        "h.N.mlp.c_fc",
        "blocks.N.mlp.c_fc",
        "blocks.N.mlp.in",
        "blocks.N.mlp.hook_pre",
        "fch",
    ],
    "mlp.N.post": [
        "h.N.mlp.act",
        "h.N.mlp.gelu",
        "h.N.mlp.c_proj:in",
        "fch_gelu",
        "blocks.N.mlp.c_proj:in",
        "blocks.N.mlp.out:in",
        "blocks.N.mlp.hook_post",
    ],
    "mlp.N.out": [
        "h.N.mlp.c_proj",
        "h.N.mlp",
        "blocks.N.mlp",
        "blocks.N.hook_mlp_out",
        "fcproj",
    ],
    "resid_post.N": ["h.N", "blocks.N", "blocks.N.hook_resid_post", "residual3"],
    "final": ["ln_f", "lm_head:in", "ln_final", "unembed:in", "lnf"],
    "logits": ["lm_head", "unembed"],
}

# Arrays that are accepted and not compared: what only llm.c has.
NOT_COMPARED = "-"
NAMES_NOT_COMPARED = [
    "probs",
    "losses",
    "preatt",
    "ln1_mean",
    "ln1_rstd",
    "ln2_mean",
    "ln2_rstd",
    "lnf_mean",
    "lnf_rstd",
]


def is_parameter(ours: str) -> bool:
    """Whether our name is that of a parameter, not of an activation."""
    return ours.endswith((".weight", ".bias"))


def all_aliases() -> dict[str, str]:
    """Each name in any convention, with N for the layer's number -> our name, or NOT_COMPARED."""
    aliases = {}
    for ours, others in ACTIVATION_NAMES.items():
        for name in [ours, *others]:
            aliases[name] = ours
    for name in NAMES_NOT_COMPARED:
        aliases[name] = NOT_COMPARED
    return aliases


ALIASES = all_aliases()
# It is a whole part of a name after a dot. The 1 of "ln_1" and that of "attn:1" are not.
LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=[.:]|$)")
# What our_name removes from a name. TransformerLens's embed.hook_out stays, because it is not our
# `embed`: it has no positions.
IGNORED_PARTS = re.compile(
    r"^((transformer|module|_orig_mod|model)\.)+|_original_component\.|(?<!\bembed)\.hook_out$"
)


def our_name(name: Any) -> str:
    """Our name of what another GPT-2 calls `name`.

    It is NOT_COMPARED if there is nothing of ours to compare with, and "" if the name is unknown.

    >>> our_name("transformer.h.3.attn.c_proj")
    'attn.3.out'
    """
    plain = plain_name(f"{name}")
    if is_beside(plain):
        return NOT_COMPARED
    if our_parameter(plain) != "":
        return our_parameter(plain)
    name = IGNORED_PARTS.sub("", str(name))
    if name.endswith(".hook_in"):
        name = name.removesuffix(".hook_in") + ":in"
    number = LAYER_NUMBER.search(name)
    if number is None:
        return ALIASES.get(name, "")
    # The table has N in the place of the number.
    alias = name[: number.start()] + "N" + name[number.end() :]
    ours = ALIASES.get(alias, "")
    return ours.replace(".N", f".{number[0]}")


def known_name(name: Any) -> str:
    """Our name of what another GPT-2 calls `name`, or NOT_COMPARED. Raises ArgumentError."""
    ours = our_name(name)
    if ours != "":
        return ours
    # TransformerLens has many other hooks, such as hook_embed and blocks.0.attn.hook_rot_q.
    if str(name).startswith("hook_") or ".hook_" in str(name):
        return NOT_COMPARED

    # The message has the three names that are nearest, with the layer's number that `name` has.
    layer = "N"
    number = re.search(r"\d+", str(name))
    if number is not None:
        layer = number[0]
    names = [alias.replace("N", layer) for alias in (*ALIASES, *all_names())]
    name_in_table = IGNORED_PARTS.sub("", str(name))  # without a prefix such as "transformer."
    alike = nearest_names(name_in_table, names)
    raise ArgumentError(f"{short_repr(name)} is no activation of a GPT-2; the nearest are {alike}")


def shape_error(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> ArgumentError:
    """The error that tells both shapes, and the transpose that would fit if there is one."""
    message = f"{name} has shape {shape}; expected {expected}"
    # More axes than a GPT-2's arrays have are not tried: n axes have n! permutations.
    if len(shape) < 6:
        for axes in permutations(range(len(shape))):
            transposed = tuple(shape[axis] for axis in axes)
            if transposed == expected:
                return ArgumentError(f"{message}; its transpose by axes {axes} would fit")
    return ArgumentError(message)


def by_layer(ours: str, array: Array) -> Iterator[tuple[str, Array]]:
    """Our name and the array of each layer.

    If `ours` has N for the layer's number, the array has all layers, [L, ...]. Otherwise it has one
    layer or none, and comes back as it is.
    """
    if ".N" not in ours:
        yield ours, array
        return
    for layer, part in enumerate(array):
        yield ours.replace(".N", f".{layer}"), part


def translate_activations(
    values: Mapping[Any, Any], tape: Parameters, config: Config
) -> Parameters:
    """Their activations under our names, in the layouts of `tape` and in its order.

    tape: the same activations of our model, in the order of the forward pass. If several arrays are
    for one activation, such as the output of ln_1 and the input of attention, the last one counts,
    because it is what the other model goes on with.
    """
    arrays = {}
    for theirs, value in values.items():
        name = known_name(theirs)
        if name == NOT_COMPARED or is_parameter(name):
            continue
        for ours, array in by_layer(name, as_floats(value, short_repr(theirs))):
            if ours not in tape:
                raise ArgumentError(
                    f"{ours} was given, but the model's layers are 0 to {config.n_layer - 1}"
                )
            shape = tape[ours].shape
            refuse_one_more_token(ours, array, shape, T=tape["embed"].shape[1])
            # An array that was given under our name, "attn.0.q", has our layout, [B, H, T, K].
            is_our_name = theirs == ours
            has_heads = ours.endswith((".q", ".k", ".v", ".heads"))
            if has_heads and not is_our_name:
                arrays[ours] = heads_in_our_layout(ours, array, shape)
            elif ours == "logits":
                arrays[ours] = logits_in_our_layout(array, shape)
            else:
                arrays[ours] = in_our_layout(ours, array, shape)
    return {name: arrays[name] for name in tape if name in arrays}


def refuse_one_more_token(name: str, array: Array, shape: tuple[int, ...], T: int) -> None:
    """Raise ArgumentError if the array has T + 1 tokens in place of the T of `shape` [B, ...].

    An array of any other shape passes, because a later check refuses it.
    """
    # Every axis of length T is taken for tokens: the scores [B, H, T, T] have two.
    shape_with_one_more = []
    for length in shape:
        if length == T:
            shape_with_one_more.append(T + 1)
        else:
            shape_with_one_more.append(length)
    is_batch = list(array.shape) == shape_with_one_more
    is_one_sequence = shape[0] == 1 and list(array.shape) == shape_with_one_more[1:]
    if is_batch or is_one_sequence:
        raise ArgumentError(
            f"{name} has {T + 1} tokens, and ids has {T}: a token was added. TransformerLens "
            "prepends one (BOS) unless prepend_bos=False is given"
        )


def in_our_layout(name: str, array: Array, shape: tuple[int, ...]) -> Array:
    """The array with this shape [B, ...]. A single sequence may come without B.

    Raises ArgumentError for another shape.
    """
    if array.shape == shape:
        return array
    is_one_sequence = shape[0] == 1
    if is_one_sequence and array.shape == shape[1:]:
        return array[None]
    raise shape_error(name, array.shape, shape)


def heads_in_our_layout(name: str, array: Array, shape: tuple[int, ...]) -> Array:
    """q, k, v or heads of another GPT-2, [B, T, H, K] or [B, T, D], as `shape`, [B, H, T, K]."""
    B, H, T, K = shape
    D = H * K
    is_batch = array.shape == (B, T, D)
    is_sequence = B == 1 and array.shape == (T, D)
    if is_batch or is_sequence:
        array = array.reshape(B, T, H, K)
    by_token = in_our_layout(name, array, (B, T, H, K))
    return by_token.swapaxes(1, 2)


def logits_in_our_layout(logits: Array, shape: tuple[int, ...]) -> Array:
    """Logits as `shape`, [B, T, V], without the columns that pad a vocabulary for speed."""
    B, T, V = shape
    is_batch = logits.shape[:-1] == (B, T)
    is_sequence = B == 1 and logits.shape[:-1] == (T,)
    if is_batch or is_sequence:
        logits = logits[..., :V]
    return in_our_layout("logits", logits, shape)
