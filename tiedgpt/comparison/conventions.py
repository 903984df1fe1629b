"""The names and layouts of other GPT-2s' activations, and the way to ours.

Those of parameters are in checkpoints/names.py.

In the tables, N is a layer's number. An array under a name of llm.c has all layers, [L, ...]. A
module's name means its output (`h.0.mlp`), with `:in` its input, with `:1` its second output.
TransformerLens writes `.hook_out` and `.hook_in`. Prefixes such as `transformer.` may be there or
not. An alias is a name in any of these conventions, `theirs` the name that was given, `ours` ours.

Heads are [B, H, T, K] on our tape, [B, T, H, K] in TransformerLens, [B, T, D] elsewhere.
"""

import re
from itertools import permutations
from typing import Any

from ..checkpoints.names import all_names, is_no_parameter, our_parameter, plain_name
from ..checkpoints.state_dicts import as_floats
from ..errors import ArgumentError, nearest_names, short_repr
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


# Each name in any convention, with N for the layer's number -> our name, or NOT_COMPARED
ALIASES = {
    name: ours for ours, others in ACTIVATION_NAMES.items() for name in [ours, *others]
} | dict.fromkeys(NAMES_NOT_COMPARED, NOT_COMPARED)
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
    name = str(name)  # a key of a dict, which may be of any type
    plain = plain_name(name)
    if is_no_parameter(plain):
        return NOT_COMPARED
    if our_parameter(plain) != "":
        return our_parameter(plain)
    name = IGNORED_PARTS.sub("", name)
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


def translate(theirs: Any, value: Any, tape: Parameters, n_layer: int) -> Parameters:
    """Their array under our name, in the layout of `tape`; of llm.c one for each layer.

    theirs: its name. tape: the activations of our model. Nothing for what is not compared. Raises
    ArgumentError.
    """
    name = known_name(theirs)
    if name == NOT_COMPARED or is_parameter(name):
        return {}
    array = as_floats(value, short_repr(theirs))
    parts = {name: array}
    if ".N" in name:  # the array has all layers, [L, ...]
        parts = {name.replace(".N", f".{layer}"): part for layer, part in enumerate(array)}
    for ours, part in parts.items():
        if ours not in tape:
            raise ArgumentError(f"{ours} was given, but the model's layers are 0 to {n_layer - 1}")
        # An array that was given under our name, "attn.0.q", has our layout.
        parts[ours] = in_our_layout(ours, part, tape, is_ours=theirs == ours)
    return parts


def in_our_layout(name: str, array: Array, tape: Parameters, is_ours: bool) -> Array:
    """The array in the shape that the activation has on the tape, [B, ...].

    A single sequence may come without B; q, k, v and heads of another GPT-2 as [B, T, H, K] or
    [B, T, D]; logits with more columns, which pad a vocabulary for speed and are kept. Raises
    ArgumentError for any other shape.
    """
    shape = tape[name].shape
    B, T = tape["embed"].shape[:2]
    layouts = [shape]
    has_other_heads = name.endswith((".q", ".k", ".v", ".heads")) and not is_ours
    if has_other_heads:
        _, H, _, K = shape
        layouts = [(B, T, H, K), (B, T, H * K)]
    elif name == "logits":
        layouts = [(B, T, max(array.shape[-1], shape[-1]))]
    for layout in layouts:
        is_sequence = B == 1 and array.shape == layout[1:]
        if array.shape != layout and not is_sequence:
            continue
        if has_other_heads:
            return array.reshape(B, T, H, K).swapaxes(1, 2)
        return array.reshape(layout)

    # Was a token added? Every axis of length T is taken for tokens: scores [B, H, T, T] have two.
    with_one_more = tuple(T + 1 if length == T else length for length in shape)
    if array.shape == with_one_more or (B == 1 and array.shape == with_one_more[1:]):
        raise ArgumentError(
            f"{name} has {T + 1} tokens, and ids has {T}: a token was added. TransformerLens "
            "prepends one (BOS) unless prepend_bos=False is given"
        )
    expected = (*layouts[0][:-1], shape[-1])  # logits with as many columns as ours
    raise shape_error(name, array.shape, expected)
