"""The names that other GPT-2s give to activations and parameters, and the way from their arrays to
ours.

N is a layer's number; an array under a name of llm.c has all layers, [L, ...]. A module's name
means its output (`h.0.mlp`), with `:in` its input, with `:1` its second output. TransformerLens
writes `.hook_out` and `.hook_in`. Prefixes such as `transformer.` may be there or not. Names after
"-", and other hooks of TransformerLens, are accepted and not compared.
"""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from itertools import permutations
from typing import Any

import numpy as np

from ..checkpoints.known_models import MODELS
from ..errors import ArgumentError, short_repr
from ..gpt2.config import Config
from ..gpt2.model import GPT2, Array
from ..gpt2.parameters import Parameters, parameter_shapes

# Our name and theirs: those of transformers and nanoGPT, of TransformerLens (blocks), and of llm.c
# (no dots). Heads are [B, H, T, K] on the tape, [B, T, H, K] in TransformerLens, [B, T, D]
# elsewhere. Matrices of a block are [in, out] in transformers and here, [out, in] in nanoGPT and
# llm.c.
NAMES = """
embed           drop  encoded
resid_pre.N     h.N:in  blocks.N:in blocks.N.hook_resid_pre
attn.N.in       h.N.ln_1 h.N.attn:in h.N.attn.c_attn:in  blocks.N.ln1  ln1
attn.N.qkv      h.N.attn.c_attn  qkv
attn.N.q        blocks.N.attn.q blocks.N.attn.hook_q
attn.N.k        blocks.N.attn.k blocks.N.attn.hook_k
attn.N.v        blocks.N.attn.v blocks.N.attn.hook_v
attn.N.scores
attn.N.pattern  h.N.attn.attn_dropout:in h.N.attn:1  blocks.N.attn.hook_pattern  att
attn.N.heads    h.N.attn.c_proj:in  blocks.N.attn.hook_z blocks.N.attn.o:in  atty
attn.N.out      h.N.attn.c_proj h.N.attn  blocks.N.attn blocks.N.hook_attn_out  attproj
resid_mid.N     blocks.N.hook_resid_mid  residual2
mlp.N.in        h.N.ln_2 h.N.mlp:in h.N.mlp.c_fc:in  blocks.N.ln2  ln2
mlp.N.pre       h.N.mlp.c_fc  blocks.N.mlp.c_fc blocks.N.mlp.in blocks.N.mlp.hook_pre  fch
mlp.N.post      h.N.mlp.act h.N.mlp.gelu h.N.mlp.c_proj:in  fch_gelu
mlp.N.post      blocks.N.mlp.c_proj:in blocks.N.mlp.out:in blocks.N.mlp.hook_post
mlp.N.out       h.N.mlp.c_proj h.N.mlp  blocks.N.mlp blocks.N.hook_mlp_out  fcproj
resid_post.N    h.N  blocks.N blocks.N.hook_resid_post  residual3
final           ln_f lm_head:in  ln_final unembed:in  lnf
logits          lm_head  unembed
-               h.N.attn.bias h.N.attn.masked_bias  probs losses preatt
-               ln1_mean ln1_rstd ln2_mean ln2_rstd lnf_mean lnf_rstd
"""
# llm.c's names of the parameters, in the order of parameter_shapes. The other conventions have our
# names.
LLM_C = "wte wpe ln1w ln1b qkvw qkvb attprojw attprojb ln2w ln2b fcw fcb fcprojw fcprojb lnfw lnfb"
# TransformerLens's embed.hook_out is not our `embed`: it has no positions.
PREFIX = re.compile(
    r"^((transformer|module|_orig_mod)\.)+|_original_component\.|(?<!\bembed)\.hook_out$"
)

ALIASES = {name: row.split()[0] for row in NAMES.strip().splitlines() for name in row.split()}
PARAMETER = (".weight", ".bias")  # how our name of one ends
PARAMETERS = [
    name.replace("h.0", "h.N") for name in parameter_shapes(Config(n_layer=1, tied=False))
]
ALIASES |= {name: name for name in PARAMETERS} | dict(zip(LLM_C.split(), PARAMETERS, strict=False))


def our_name(name: Any) -> str:
    """Our name of what another GPT-2 calls `name`; "-" if it is not compared, "" if it is
    unknown."""
    name = re.sub(r"\.hook_in$", ":in", PREFIX.sub("", str(name)))
    layer = re.search(r"(?<=\.)\d+(?=[.:]|$)", name)
    ours = ALIASES.get(re.sub(layer.re, "N", name, count=1) if layer else name, "")
    return ours.replace(".N", f".{layer[0]}") if layer else ours


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
    return array.astype(np.float64 if array.dtype == np.float64 else np.float32)


def shape_error(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> ArgumentError:
    """Both shapes, and whether a transpose would fit."""
    fitting = (
        axes
        for axes in permutations(range(len(shape)))
        if tuple(shape[a] for a in axes) == expected
    )
    axes = next(fitting, None) if len(shape) < 6 else None
    hint = f"; its transpose by axes {axes} would fit" if axes else ""
    return ArgumentError(f"{name} has shape {shape}; expected {expected}{hint}")


def renamed(values: Mapping[Any, Any], what: str) -> Iterator[tuple[str, Any, Array]]:
    """Our name, theirs, and the array, one for each layer."""
    for name, value in values.items():
        ours = our_name(name)
        if not ours and ".hook_" not in f".{name}":  # TransformerLens has many more hooks
            layer = (re.findall(r"\d+", str(name)) or ["N"])[0]
            known = [alias.replace(".N", f".{layer}") for alias in ALIASES]
            near = ", ".join(get_close_matches(PREFIX.sub("", str(name)), known, n=3, cutoff=0))
            raise ArgumentError(
                f"{short_repr(name)} is no {what} of a GPT-2; the nearest are {near}"
            )
        if ours.strip("-") and not (what == "activation" and ours.endswith(PARAMETER)):
            array = as_floats(value, short_repr(name))
            for layer, part in enumerate(array if ".N" in ours else [array]):
                yield ours.replace(".N", f".{layer}"), name, part


def our_activations(values: Mapping[Any, Any], tape: Parameters, config: Config) -> Parameters:
    """Their activations in the layouts of `tape`, and in its order: that of the forward pass.

    Of several arrays for one activation, the last counts: of hooks, the last one is nearest to its
    reader.
    """
    (B, T, D), H = tape["embed"].shape, config.n_head
    arrays: Parameters = {}
    for name, theirs, array in renamed(values, "activation"):
        if name not in tape:
            raise ArgumentError(
                f"{name} was given, but the model's layers are 0 to {config.n_layer - 1}"
            )
        by_token = name.endswith((".q", ".k", ".v", ".heads")) and name != theirs
        layouts = [(B, T, H, D // H), (B, T, D)] if by_token else [tape[name].shape]
        if not any(array.shape in (layout, layout[B == 1 :]) for layout in layouts):
            raise shape_error(name, array.shape, layouts[0])
        arrays[name] = (
            array.reshape(layouts[0]).swapaxes(1, 2) if by_token else array.reshape(layouts[0])
        )
    return {name: arrays[name] for name in tape if name in arrays}


def our_parameters(values: Mapping[Any, Any]) -> Parameters:
    """Their parameters, or gradients of them, under our names and in our layout."""
    arrays = {ours: array for ours, _, array in renamed(values, "parameter")}
    # transformers and nanoGPT have the same names; the shape of c_attn tells which matrices are
    # transposed.
    if any(
        x.shape[0] > x.shape[-1] for name, x in arrays.items() if name.endswith("c_attn.weight")
    ):
        arrays = {
            name: x.T if name.startswith("h.") and x.ndim == 2 else x for name, x in arrays.items()
        }
    return arrays


def from_state_dict(state: Mapping[str, Any], n_head: int | None = None, **fields: Any) -> GPT2:
    """A model from another GPT-2's state dict: transformers', nanoGPT's, llm.c's or ours.

    Arrays are NumPy's or torch's, of any float dtype. Sizes are read from the shapes. n_head cannot
    be; it must be given unless width and depth are those of a model of OpenAI's. `fields` are
    others of Config that the shapes do not tell, such as layer_norm_epsilon. A model without biases
    gets biases of 0. The head is untied if lm_head.weight is there and differs from wte.weight.
    Raises ArgumentError.
    """
    arrays = our_parameters(state)
    for name in ("wte.weight", "wpe.weight"):
        if name not in arrays or arrays[name].ndim != 2:
            raise ArgumentError(f"this is not the state dict of a GPT-2: it has no matrix {name}")
    (V, D), dtype = arrays["wte.weight"].shape, arrays["wte.weight"].dtype
    L = len({name.split(".")[1] for name in arrays if name.startswith("h.")})
    configs = [model.config for model in MODELS.values()]
    known = {(config.n_embd, config.n_layer): config.n_head for config in configs}
    if not (n_head := n_head or known.get((D, L))):
        raise ArgumentError(
            f"n_head cannot be read from the shapes of {L} layers of width {D}: pass n_head="
        )
    F = arrays["h.0.mlp.c_fc.weight"].shape[-1] if "h.0.mlp.c_fc.weight" in arrays else None
    if tied := np.array_equal(
        arrays.get("lm_head.weight", arrays["wte.weight"]), arrays["wte.weight"]
    ):
        arrays.pop("lm_head.weight", None)
    config = Config(V, len(arrays["wpe.weight"]), D, L, n_head, F, tied=tied, **fields)
    biases = {
        name: np.zeros(shape) for name, shape in parameter_shapes(config).items() if "bias" in name
    }
    arrays = arrays if any(name in biases for name in arrays) else arrays | biases
    return GPT2(config, {name: np.asarray(x, dtype, order="C") for name, x in arrays.items()})
