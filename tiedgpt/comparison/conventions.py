"""The names that other GPT-2s give to activations and parameters, and the way from their arrays to ours.

N is a layer's number; an array under a name of llm.c has all layers, [L, ...]. A module's name means its
output (`h.0.mlp`), with `:in` its input (`h.0.ln_2:in`), with `:1` its second output. TransformerLens writes
`.hook_out` and `.hook_in`. Prefixes such as `transformer.` may be there or not. Names in the rows of "-", and
other hooks of TransformerLens, are accepted and not compared.
"""

import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from itertools import permutations, product
from typing import Any, NamedTuple

import numpy as np

from ..checkpoints.names import MODELS
from ..config import Config
from ..errors import ArgumentError, short_repr
from ..model import GPT2, Array
from ..parameters import Parameters, parameter_shapes

# Heads are [B, H, T, K] on the tape, [B, T, H, K] or [B, T, D] in TransformerLens, [B, T, D] elsewhere.
# Matrices of a block are [in, out] in transformers and here, [out, in] in nanoGPT and llm.c.
NAMES = """
tiedgpt         transformers,nanoGPT                     TransformerLens                            llm.c
embed           drop                                     -                                          encoded
resid_pre.N     h.N:in                                   blocks.N{.hook_resid_pre,:in}              -
attn.N.in       h.N.attn.c_attn:in,h.N.attn:in,h.N.ln_1  blocks.N.ln1                               ln1
attn.N.qkv      h.N.attn.c_attn                          -                                          qkv
attn.N.{q,k,v}  -                                        blocks.N.attn.hook_{q,k,v}                 -
attn.N.{q,k,v}  -                                        blocks.N.attn.{q,k,v}                      -
attn.N.scores   -                                        -                                          -
attn.N.pattern  h.N.attn:1,h.N.attn.attn_dropout:in      blocks.N.attn.hook_pattern                 att
attn.N.heads    h.N.attn.c_proj:in                       blocks.N.attn.{hook_z,o:in}                atty
attn.N.out      h.N.attn,h.N.attn.c_proj                 blocks.N.{hook_attn_out,attn}              attproj
resid_mid.N     h.N.ln_2:in                              blocks.N.hook_resid_mid                    residual2
mlp.N.in        h.N.mlp.c_fc:in,h.N.mlp:in,h.N.ln_2      blocks.N.ln2                               ln2
mlp.N.pre       h.N.mlp.c_fc                             blocks.N.mlp.{hook_pre,in,c_fc}            fch
mlp.N.post      h.N.mlp.c_proj:in,h.N.mlp.{act,gelu}     blocks.N.mlp.{hook_post,out:in,c_proj:in}  fch_gelu
mlp.N.out       h.N.mlp,h.N.mlp.c_proj                   blocks.N.{hook_mlp_out,mlp}                fcproj
resid_post.N    h.N                                      blocks.N{.hook_resid_post,}                residual3
final           lm_head:in,ln_f                          unembed:in,ln_final                        lnf
logits          lm_head                                  unembed                                    logits
-  h.N.attn.{bias,masked_bias}  -  probs,losses,preatt
-  -  -  lnf_mean,lnf_rstd,ln{1,2}_mean,ln{1,2}_rstd
"""
# llm.c's names of the parameters, in the order of parameter_shapes. The other conventions have our names.
LLM_C = "wte wpe ln1w ln1b qkvw qkvb attprojw attprojb ln2w ln2b fcw fcb fcprojw fcprojb lnfw lnfb"
# TransformerLens's embed.hook_out is not our `embed`: it has no positions.
PREFIX = re.compile(r"^((transformer|module|_orig_mod)\.)+|_original_component\.|(?<!\bembed)\.hook_out$")


class Alias(NamedTuple):
    """What a name of another GPT-2 means: our name, the convention, and its place among several names."""

    ours: str
    convention: str
    rank: int

    @property
    def is_parameter(self) -> bool:
        return self.ours.endswith((".weight", ".bias"))


def read_names() -> dict[str, Alias]:
    """All names and what they mean. A row with {a,b} is two rows, one with a and one with b."""
    header, *rows = NAMES.strip().splitlines()
    aliases: dict[str, Alias] = {}
    for row, number in product(rows, range(3)):
        for convention, cell in zip(header.split(), expand(row, number), strict=True):
            for rank, name in enumerate(cell.split(",")):
                aliases.setdefault(name, Alias(expand(row, number)[0], convention, rank))
    parameters = [name.replace("h.0", "h.N") for name in parameter_shapes(Config(n_layer=1, tied=False))]
    aliases |= {name: Alias(name, "tiedgpt", 0) for name in parameters}
    aliases |= {name: Alias(ours, "llm.c", 0) for ours, name in zip(parameters, LLM_C.split(), strict=False)}
    del aliases["-"]
    return aliases


def expand(row: str, number: int) -> list[str]:
    """The cells of a row, with this choice of each {a,b}. After the last choice comes the first again."""
    return re.sub(r"{(.*?)}", lambda group: (x := group[1].split(","))[number % len(x)], row).split()


ALIASES = read_names()


def find_alias(name: Any) -> Alias | None:
    """What a name means; None if it is not in the table.

    >>> find_alias("transformer.h.11.mlp")
    Alias(ours='mlp.11.out', convention='transformers,nanoGPT', rank=0)
    """
    name = re.sub(r"\.hook_in$", ":in", PREFIX.sub("", str(name)))
    number = re.search(r"(?<=\.)\d+(?=[.:]|$)", name)
    if not number:
        return ALIASES.get(name)
    alias = ALIASES.get(f"{name[: number.start()]}N{name[number.end() :]}")
    return alias and alias._replace(ours=alias.ours.replace(".N", f".{number[0]}"))


def unknown(name: Any, what: str) -> ArgumentError:
    """The error for a name that is not in the table. It lists the nearest names."""
    layer = (re.findall(r"\d+", str(name)) or ["N"])[0]
    known = [alias.replace(".N", f".{layer}") for alias in ALIASES]
    near = get_close_matches(PREFIX.sub("", str(name)), known, n=3, cutoff=0)
    return ArgumentError(f"{short_repr(name)} is no {what} of a GPT-2; the nearest are {', '.join(near)}")


def as_floats(value: Any, name: str) -> Array:
    """A NumPy array or a torch tensor as float64 if it is that, else as float32."""
    if hasattr(value, "detach"):  # a torch tensor; NumPy has no bfloat16
        value = value.detach().cpu()
        value = (value if str(value.dtype) == "torch.float64" else value.float()).numpy()
    if np.ma.is_masked(value):
        raise ArgumentError(f"{name} is a masked array: give one without a mask")
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of unequal lengths
        raise ArgumentError(f"{name} must be an array of floats: {error}") from error
    if array.dtype.kind not in "fiu" or array.ndim == 0:
        raise ArgumentError(f"{name} must be an array of floats, got {array.dtype} {array.shape}")
    with np.errstate(over="ignore"):  # from integers and other floats
        return array.astype(np.float64 if array.dtype == np.float64 else np.float32)


def shape_error(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> ArgumentError:
    """Both shapes, and whether a transpose would fit."""
    fitting = (axes for axes in permutations(range(len(shape))) if tuple(shape[a] for a in axes) == expected)
    axes = next(fitting, None) if len(shape) < 6 else None
    hint = f"; its transpose by axes {axes} would fit" if axes else ""
    return ArgumentError(f"{name} has shape {shape}; expected {expected}{hint}")


def rename(values: Mapping[Any, Any], what: str) -> dict[str, tuple[Alias, Array]]:
    """Their arrays, one for each layer, under our names. The first of several in the table counts."""
    found: dict[str, tuple[Alias, Array]] = {}
    for name, value in values.items():
        alias = find_alias(name)
        if alias is None and ".hook_" not in f".{name}":  # TransformerLens has many more hooks
            raise unknown(name, what)
        if alias is None or alias.ours == "-":
            continue
        array = as_floats(value, short_repr(name))
        layers: Iterable[Any] = enumerate(np.atleast_1d(array)) if ".N" in alias.ours else [("", array)]
        for number, part in layers:
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
    for name, (alias, array) in rename(values, "activation").items():
        if name not in shapes:
            raise ArgumentError(f"{name} was given, but the model's layers are 0 to {config.n_layer - 1}")
        by_token = name.endswith((".q", ".k", ".v", ".heads")) and alias.convention != "tiedgpt"
        layouts = [shapes[name]]
        if by_token:
            layouts = [(B, T, H, D // H), (B, T, D)][alias.convention != "TransformerLens" :]
        if not any(array.shape in (layout, layout[B == 1 :]) for layout in layouts):
            raise shape_error(name, array.shape, layouts[0])
        array = array.reshape(B, T, H, -1).swapaxes(1, 2) if by_token else array.reshape(shapes[name])
        arrays[name] = array
    return {name: arrays[name] for name in shapes if name in arrays}


def our_parameters(values: Mapping[Any, Any]) -> Parameters:
    """Their parameters, or gradients of them, under our names and in our layout."""
    arrays = {name: array for name, (_, array) in rename(values, "parameter").items()}
    # transformers and nanoGPT have the same names; the shape of c_attn tells which matrices are transposed.
    if any(x.shape[0] > x.shape[-1] for name, x in arrays.items() if name.endswith("c_attn.weight")):
        arrays = {name: x.T if name.startswith("h.") and x.ndim == 2 else x for name, x in arrays.items()}
    return arrays


def from_state_dict(state: Mapping[str, Any], n_head: int | None = None, **fields: Any) -> GPT2:
    """A model from another GPT-2's state dict: transformers', nanoGPT's, llm.c's or ours.

    Arrays are NumPy's or torch's, of any float dtype. Sizes are read from the shapes. n_head cannot be; it
    must be given unless width and depth are those of a model of OpenAI's. `fields` are others of Config that
    the shapes do not tell, such as layer_norm_epsilon. A model without biases gets biases of 0. The head is
    untied if lm_head.weight is there and differs from wte.weight. Raises ArgumentError.
    """
    arrays = our_parameters(state)
    for name in ("wte.weight", "wpe.weight"):
        if name not in arrays or arrays[name].ndim != 2:
            raise ArgumentError(f"this is not the state dict of a GPT-2: it has no matrix {name}")
    (V, D), dtype = arrays["wte.weight"].shape, arrays["wte.weight"].dtype
    L = len({name.split(".")[1] for name in arrays if name.startswith("h.")})
    known = {(config.n_embd, config.n_layer): config.n_head for _, config in MODELS.values()}
    if not (n_head := n_head or known.get((D, L))):
        raise ArgumentError(f"n_head cannot be read from the shapes of {L} layers of width {D}: pass n_head=")
    F = arrays["h.0.mlp.c_fc.weight"].shape[-1] if "h.0.mlp.c_fc.weight" in arrays else None
    if tied := np.array_equal(arrays.get("lm_head.weight", arrays["wte.weight"]), arrays["wte.weight"]):
        arrays.pop("lm_head.weight", None)
    config = Config(V, len(arrays["wpe.weight"]), D, L, n_head, F, tied=tied, **fields)
    if not any(name.endswith("bias") for name in arrays):
        shapes = parameter_shapes(config).items()
        arrays |= {name: np.zeros(shape, np.float32) for name, shape in shapes if name.endswith("bias")}
    parameters = {name: np.asarray(array, dtype, order="C") for name, array in arrays.items()}
    return GPT2(config, parameters)
