"""The names that other GPT-2s give to activations and parameters, and the way from their arrays to ours.

N is a layer's number. A module's name stands for its output (`h.0.mlp`), with `:in` for its input
(`h.0.ln_2:in`), with `:1` for its second output. Prefixes such as `transformer.` may be there or not. llm.c
has all layers in one array [L, ...]. What stands beside "-" (here, llm.c's other arrays) is accepted and not
compared; so are all other hooks of TransformerLens.
"""

import re
from collections.abc import Mapping
from difflib import get_close_matches
from itertools import permutations
from typing import Any, NamedTuple

import numpy as np

from .checkpoints.names import MODELS
from .config import Config
from .errors import ArgumentError, short_repr
from .model import GPT2, Array
from .parameters import Parameters, parameter_shapes

# Heads are [B, H, T, K] on the tape, [B, T, H, K] in TransformerLens, side by side [B, T, D] elsewhere.
ACTIVATION_NAMES = """
tape            transformers,nanoGPT                        TransformerLens                         llm.c
embed           drop                                        -                                       encoded
resid_pre.N     h.N:in                                      blocks.N.{hook_resid_pre,hook_in}       -
attn.N.in       h.N.attn.c_attn:in,h.N.attn:in,h.N.ln_1     blocks.N.ln1{,.hook_out}                ln1
attn.N.qkv      h.N.attn.c_attn                             -                                       qkv
attn.N.{q,k,v}  -                                           blocks.N.attn.hook_{q,k,v}              -
attn.N.{q,k,v}  -                                           blocks.N.attn.{q,k,v}.hook_out          -
attn.N.scores   -                                           -                                       -
attn.N.pattern  h.N.attn:1,h.N.attn.attn_dropout:in         blocks.N.attn.hook_pattern              att
attn.N.heads    h.N.attn.c_proj:in                          blocks.N.attn.{hook_z,o.hook_in}        atty
attn.N.out      h.N.attn,h.N.attn.c_proj                    blocks.N.{hook_attn_out,attn.hook_out}  attproj
resid_mid.N     h.N.ln_2:in                                 blocks.N.hook_resid_mid                 residual2
mlp.N.in        h.N.mlp.c_fc:in,h.N.mlp:in,h.N.ln_2         blocks.N.ln2{,.hook_out}                ln2
mlp.N.pre       h.N.mlp.c_fc                                blocks.N.mlp.{hook_pre,in.hook_out}     fch
mlp.N.pre       -                                           blocks.N.mlp.c_fc.hook_out              -
mlp.N.post      h.N.mlp.c_proj:in,h.N.mlp.act,h.N.mlp.gelu  blocks.N.mlp.{hook_post,out.hook_in}    fch_gelu
mlp.N.post      -                                           blocks.N.mlp.c_proj.hook_in             -
mlp.N.out       h.N.mlp,h.N.mlp.c_proj                      blocks.N.{hook_mlp_out,mlp.hook_out}    fcproj
resid_post.N    h.N                                         blocks.N.{hook_resid_post,hook_out}     residual3
final           lm_head:in,ln_f                             unembed.hook_in,ln_final{,.hook_out}    lnf
logits          lm_head                                     unembed{,.hook_out}                     logits
-               probs,losses,preatt,lnf_mean,lnf_rstd       -                                       -
-               ln{1,2}_mean,ln{1,2}_rstd                   -                                       -
"""

# Matrices of a block are [in, out] in transformers and here, [out, in] in nanoGPT and llm.c, and have an axis
# for the heads in TransformerLens: W_Q [H, D, K], W_O [H, K, D].
PARAMETER_NAMES = """
transformers,nanoGPT           TransformerLens                          llm.c
wte.weight                     embed.W_E                                wte
wpe.weight                     pos_embed.W_pos                          wpe
h.N.ln_1.{weight,bias}         blocks.N.ln1.{w,b}                       ln1{w,b}
h.N.attn.c_attn.weight         -                                        qkvw
h.N.attn.c_attn.bias           -                                        qkvb
h.N.attn.{W,b}_Q               blocks.N.attn.{W,b}_Q                    -
h.N.attn.{W,b}_K               blocks.N.attn.{W,b}_K                    -
h.N.attn.{W,b}_V               blocks.N.attn.{W,b}_V                    -
h.N.attn.c_proj.{weight,bias}  blocks.N.attn.{W,b}_O                    attproj{w,b}
h.N.ln_2.{weight,bias}         blocks.N.ln2.{w,b}                       ln2{w,b}
h.N.mlp.c_fc.{weight,bias}     blocks.N.mlp.{W,b}_in                    fc{w,b}
h.N.mlp.c_proj.{weight,bias}   blocks.N.mlp.{W,b}_out                   fcproj{w,b}
ln_f.{weight,bias}             ln_final.{w,b}                           lnf{w,b}
lm_head.weight                 unembed.W_U                              -
-                              unembed.b_U,blocks.N.attn.{mask,IGNORE}  -
-                              h.N.attn.{bias,masked_bias}              -
"""
TRANSFORMER_LENS, LLM_C = "TransformerLens", "llm.c"
PREFIX = re.compile(r"^((transformer|module|_orig_mod)\.)+|_original_component\.")


class Alias(NamedTuple):
    """What a name of another GPT-2 means: our name, the convention, and its place among several names."""

    ours: str
    convention: str
    rank: int


def read_table(table: str) -> dict[str, Alias]:
    """A table of names as a dict that has each name in it. A row with {a,b} is two rows."""
    header, *rows = table.strip().splitlines()
    aliases: dict[str, Alias] = {}
    for row in rows:
        for number in range(row.partition("{")[2].partition("}")[0].count(",") + 1):
            names = re.sub(r"{(.*?)}", lambda group, n=number: group[1].split(",")[n], row).split()  # type: ignore[misc]
            for convention, cell in zip(header.split(), names, strict=True):
                for rank, name in enumerate(cell.split(",")):
                    aliases.setdefault(name, Alias(names[0], convention, rank))
    del aliases["-"]
    return aliases


ACTIVATIONS, PARAMETERS = read_table(ACTIVATION_NAMES), read_table(PARAMETER_NAMES)


def find_alias(name: str, table: dict[str, Alias]) -> tuple[Alias | None, str]:
    """The alias that a name with a layer's number matches, and that number; "" if it has none.

    >>> find_alias("transformer.h.11.mlp", ACTIVATIONS)
    (Alias(ours='mlp.N.out', convention='transformers,nanoGPT', rank=0), '11')
    """
    name = PREFIX.sub("", str(name))
    number = re.search(r"(?<=\.)\d+(?=[.:]|$)", name)
    pattern = name[: number.start()] + "N" + name[number.end() :] if number else name
    return table.get(pattern), number[0] if number else ""


def unknown(name: Any, what: str, table: dict[str, Alias]) -> ArgumentError:
    """The error for a name that the table does not have. It lists the nearest names."""
    layer = (re.findall(r"\d+", str(name)) or ["N"])[0]
    known = [alias.replace(".N", f".{layer}") for alias in table]
    near = get_close_matches(PREFIX.sub("", str(name)), known, n=3, cutoff=0)
    return ArgumentError(f"{short_repr(name)} is no {what} of a GPT-2; the nearest are {', '.join(near)}")


def as_floats(value: Any, name: str) -> Array:
    """A NumPy array or a torch tensor as float64 if it is that, else as float32."""
    if hasattr(value, "detach"):  # a torch tensor; NumPy has no bfloat16
        value = value.detach().cpu()
        value = (value if str(value.dtype) == "torch.float64" else value.float()).numpy()
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise ArgumentError(f"{name} must be an array of floats, got {array.dtype}")
    return array.astype(np.float64 if array.dtype == np.float64 else np.float32)


def shape_error(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> ArgumentError:
    """Both shapes, and whether a transpose would fit."""
    fitting = (axes for axes in permutations(range(len(shape))) if tuple(shape[a] for a in axes) == expected)
    axes = next(fitting, None) if len(shape) < 6 else None
    hint = f"; its transpose by axes {axes} would fit" if axes else ""
    return ArgumentError(f"{name} has shape {shape}; expected {expected}{hint}")


def rename(values: Mapping[Any, Any], table: dict[str, Alias], what: str) -> dict[str, tuple[Alias, Array]]:
    """Their arrays, one for each layer, under our names. The first of several in the table counts."""
    found: dict[str, tuple[Alias, Array]] = {}
    for name, value in values.items():
        alias, layer = find_alias(name, table)
        if alias is None and ".hook_" not in f".{name}":  # TransformerLens has many more hooks
            raise unknown(name, what, table)
        if alias is None or alias.ours == "-":
            continue
        array = as_floats(value, short_repr(name))
        stacked = ".N" in alias.ours and not layer
        for number, part in enumerate(np.atleast_1d(array)) if stacked else [(layer, array)]:
            ours = alias.ours.replace(".N", f".{number}")
            if ours not in found or alias.rank < found[ours][0].rank:
                found[ours] = alias, part
    return found


def our_activations(
    values: Mapping[Any, Any], shapes: dict[str, tuple[int, ...]], config: Config
) -> Parameters:
    """Their activations as a tape has them: `shapes` are the tape's, in the order of the forward pass."""
    (B, T, D), H = shapes["embed"], config.n_head
    arrays: Parameters = {}
    for name, (alias, array) in rename(values, ACTIVATIONS, "activation").items():
        if name not in shapes:
            raise ArgumentError(f"{name} was given, but the model's layers are 0 to {config.n_layer - 1}")
        transposed = name.endswith((".q", ".k", ".v", ".heads")) and alias.convention != "tape"
        layouts = [(B, T, H, D // H), (B, T, D)][alias.convention != TRANSFORMER_LENS :] if transposed else []
        layouts = layouts or [shapes[name]]
        if not any(array.shape in (layout, layout[B == 1 :]) for layout in layouts):
            raise shape_error(name, array.shape, layouts[0])
        array = array.reshape(B, T, H, -1).swapaxes(1, 2) if transposed else array.reshape(layouts[0])
        arrays[name] = array
    return {name: arrays[name] for name in shapes if name in arrays}


def our_parameters(values: Mapping[Any, Any]) -> Parameters:
    """Their parameters, or gradients of them, under our names and in our layout."""
    found = rename(values, PARAMETERS, "parameter")
    # nanoGPT's names are transformers', and its matrices are transposed: the shape of c_attn tells.
    shapes = [array.shape for name, (_, array) in found.items() if name.endswith("c_attn.weight")]
    transposed = any(shape[0] > shape[-1] for shape in shapes)
    arrays: Parameters = {}
    for name, (alias, array) in found.items():
        if alias.convention == TRANSFORMER_LENS:
            if name[-3:] in ("W_Q", "W_K", "W_V"):
                array = array.swapaxes(0, 1).reshape(array.shape[-2], -1)  # [H, D, K] -> [D, D]
            elif ".attn." in name:
                array = array.reshape(-1, array.shape[-1]) if array.ndim == 3 else array.reshape(-1)
            array = array.T if name == "lm_head.weight" else array
        elif name.startswith("h.") and array.ndim == 2 and (alias.convention == LLM_C or transposed):
            array = array.T
        arrays[name] = array
    for name in [name for name in arrays if name.endswith("_Q")]:
        parts = [name[:-1] + part for part in "QKV"]
        if all(part in arrays for part in parts):
            joined = name[:-3] + ("c_attn.weight" if name.endswith("W_Q") else "c_attn.bias")
            arrays[joined] = np.concatenate([arrays.pop(part) for part in parts], axis=-1)
    return arrays


def from_state_dict(state: Mapping[str, Any], n_head: int | None = None, **fields: Any) -> GPT2:
    """A model from another GPT-2's state dict: transformers', nanoGPT's, TransformerLens's, llm.c's or ours.

    Arrays are NumPy's or torch's, of any float dtype. Sizes are read from the shapes. n_head cannot be; it
    must be given unless width and depth are those of a model of OpenAI's. `fields` are others of Config that
    the shapes do not tell, such as layer_norm_epsilon. A model without biases gets biases of 0. The head is
    untied if lm_head.weight is there and differs from wte.weight. Raises ArgumentError.
    """
    arrays = our_parameters(state)
    for name in ("wte.weight", "wpe.weight"):
        if name not in arrays or arrays[name].ndim != 2:
            raise ArgumentError(f"this is not the state dict of a GPT-2: it has no matrix {name}")
    (V, D), n_ctx = arrays["wte.weight"].shape, len(arrays["wpe.weight"])
    L = len({name.split(".")[1] for name in arrays if name.startswith("h.")})
    known = {(config.n_embd, config.n_layer): config.n_head for _, config in MODELS.values()}
    if n_head is None and (D, L) not in known:
        raise ArgumentError(f"n_head cannot be read from the shapes of {L} layers of width {D}: pass n_head=")
    F = arrays["h.0.mlp.c_fc.weight"].shape[-1] if "h.0.mlp.c_fc.weight" in arrays else None
    tied = np.array_equal(arrays.get("lm_head.weight", arrays["wte.weight"]), arrays["wte.weight"])
    if tied:
        arrays.pop("lm_head.weight", None)
    config = Config(V, n_ctx, D, L, n_head or known[D, L], F, tied=tied, **fields)
    if not any(name.endswith("bias") for name in arrays):
        shapes = parameter_shapes(config).items()
        arrays |= {name: np.zeros(shape, np.float32) for name, shape in shapes if name.endswith("bias")}
    dtype = arrays["wte.weight"].dtype
    return GPT2(config, {name: np.ascontiguousarray(array, dtype) for name, array in arrays.items()})
