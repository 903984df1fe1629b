"""The names and layouts of other GPT-2s' activations and parameters, and the way to ours.

N is a layer's number; an array under a name of llm.c has all layers, [L, ...]. A module's name
means its output (`h.0.mlp`), with `:in` its input, with `:1` its second output. TransformerLens
writes `.hook_out` and `.hook_in`. Prefixes such as `transformer.` may be there or not.

Heads are [B, H, T, K] on our tape, [B, T, H, K] in TransformerLens, [B, T, D] elsewhere. Matrices
of a block are [in, out] in transformers and here, [out, in] in nanoGPT and llm.c.
"""

import re
import warnings
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from itertools import permutations
from typing import Any

import numpy as np

from ..checkpoints.known_models import MODELS
from ..errors import ArgumentError, TiedGPTWarning, short_repr
from ..gpt2.config import Config
from ..gpt2.model import GPT2, Array
from ..gpt2.parameters import Parameters, parameter_shapes

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

# Arrays that are accepted and not compared: transformers' masks, and what only llm.c has.
NOT_COMPARED = "-"
OTHER_NAMES = [
    "h.N.attn.bias",
    "h.N.attn.masked_bias",
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

# Our name of a parameter -> llm.c's. The other conventions have our names.
PARAMETER_NAMES = {
    "wte.weight": ["wte"],
    "wpe.weight": ["wpe"],
    "h.N.ln_1.weight": ["ln1w"],
    "h.N.ln_1.bias": ["ln1b"],
    "h.N.attn.c_attn.weight": ["qkvw"],
    "h.N.attn.c_attn.bias": ["qkvb"],
    "h.N.attn.c_proj.weight": ["attprojw"],
    "h.N.attn.c_proj.bias": ["attprojb"],
    "h.N.ln_2.weight": ["ln2w"],
    "h.N.ln_2.bias": ["ln2b"],
    "h.N.mlp.c_fc.weight": ["fcw"],
    "h.N.mlp.c_fc.bias": ["fcb"],
    "h.N.mlp.c_proj.weight": ["fcprojw"],
    "h.N.mlp.c_proj.bias": ["fcprojb"],
    "ln_f.weight": ["lnfw"],
    "ln_f.bias": ["lnfb"],
    "lm_head.weight": [],
}
PARAMETER = (".weight", ".bias")  # how our name of a parameter ends, and no name of an activation


def all_aliases() -> dict[str, str]:
    """Each name in any convention, with N for the layer's number -> our name."""
    aliases = {}
    for ours, others in (ACTIVATION_NAMES | PARAMETER_NAMES).items():
        for name in [ours, *others]:
            aliases[name] = ours
    for name in OTHER_NAMES:
        aliases[name] = NOT_COMPARED
    return aliases


ALIASES = all_aliases()
LAYER_NUMBER = re.compile(r"(?<=\.)\d+(?=[.:]|$)")
# What our_name leaves out. TransformerLens's embed.hook_out stays, because it is not our `embed`:
# it has no positions.
LEFT_OUT = re.compile(
    r"^((transformer|module|_orig_mod)\.)+|_original_component\.|(?<!\bembed)\.hook_out$"
)


def our_name(name: Any) -> str:
    """Our name of what another GPT-2 calls `name`.

    It is NOT_COMPARED if there is nothing of ours to compare with, and "" if the name is unknown.
    """
    name = LEFT_OUT.sub("", str(name))
    if name.endswith(".hook_in"):
        name = name.removesuffix(".hook_in") + ":in"
    number = LAYER_NUMBER.search(name)
    if number is None:
        return ALIASES.get(name, "")
    pattern = name[: number.start()] + "N" + name[number.end() :]
    return ALIASES.get(pattern, "").replace(".N", f".{number[0]}")


def known_name(name: Any, kind: str) -> str:
    """Our name of what another GPT-2 calls `name`, or NOT_COMPARED. Raises ArgumentError.

    kind: what is expected, "activation" or "parameter", for the message.
    """
    ours = our_name(name)
    if ours != "":
        return ours
    if ".hook_" in f".{name}":  # one of the many other hooks of TransformerLens
        return NOT_COMPARED
    number = re.search(r"\d+", str(name))
    layer = "N" if number is None else number[0]
    names = [alias.replace(".N", f".{layer}") for alias in ALIASES]
    alike = get_close_matches(LEFT_OUT.sub("", str(name)), names, n=3, cutoff=0)
    raise ArgumentError(
        f"{short_repr(name)} is no {kind} of a GPT-2; the nearest are {', '.join(alike)}"
    )


def shape_error(name: str, shape: tuple[int, ...], expected: tuple[int, ...]) -> ArgumentError:
    """Both shapes, and whether a transpose would fit."""
    message = f"{name} has shape {shape}; expected {expected}"
    if len(shape) < 6:
        for axes in permutations(range(len(shape))):
            transposed = tuple(shape[axis] for axis in axes)
            if transposed == expected:
                return ArgumentError(f"{message}; its transpose by axes {axes} would fit")
    return ArgumentError(message)


def as_floats(value: Any, name: str) -> Array:
    """A NumPy array or a torch tensor as float64 if it is that, else as float32."""
    if hasattr(value, "detach"):  # a torch tensor
        value = value.detach().cpu()
        if str(value.dtype) != "torch.float64":
            value = value.float()  # NumPy has no bfloat16
        value = value.numpy()
    if np.ma.is_masked(value):
        raise ArgumentError(f"{name} is a masked array: give one without a mask")
    try:
        array = np.asarray(value)
    except ValueError as error:  # rows of unequal lengths
        raise ArgumentError(f"{name} must be an array of floats: {error}") from error
    if array.dtype.kind not in "fiu" or array.ndim == 0:
        raise ArgumentError(f"{name} must be an array of floats, got {array.dtype} {array.shape}")
    # `astype` also copies, and puts the bytes in the order of this machine.
    if array.dtype == np.float64:
        return array.astype(np.float64)
    return array.astype(np.float32)


def by_layer(ours: str, array: Array) -> Iterator[tuple[str, Array]]:
    """The names and arrays of all layers, if our name has N for the layer's number."""
    if ".N" not in ours:
        yield ours, array
        return
    for layer, part in enumerate(array):
        yield ours.replace(".N", f".{layer}"), part


def translate_activations(
    values: Mapping[Any, Any], tape: Parameters, config: Config
) -> Parameters:
    """Their activations under our names, in the layouts of `tape` and in its order.

    That is the order of the forward pass. Of several arrays for one activation the last counts: of
    hooks, the last one is nearest to its reader.
    """
    arrays = {}
    for theirs, value in values.items():
        name = known_name(theirs, "activation")
        if name == NOT_COMPARED or name.endswith(PARAMETER):
            continue
        for ours, array in by_layer(name, as_floats(value, short_repr(theirs))):
            if ours not in tape:
                raise ArgumentError(
                    f"{ours} was given, but the model's layers are 0 to {config.n_layer - 1}"
                )
            # Hooks of TransformerLens have [B, T, H, K] where our tape has [B, H, T, K]. Only under
            # our own name is the layout ours.
            has_heads = ours.endswith((".q", ".k", ".v", ".heads"))
            if has_heads and ours != theirs:
                arrays[ours] = heads_in_our_layout(ours, array, tape[ours].shape)
            elif ours == "logits":
                arrays[ours] = logits_in_our_layout(array, tape[ours].shape)
            else:
                arrays[ours] = in_our_layout(ours, array, tape[ours].shape)
    return {name: arrays[name] for name in tape if name in arrays}


def in_our_layout(name: str, array: Array, shape: tuple[int, ...]) -> Array:
    """The array with this shape [B, ...]. A single sequence may come without B."""
    if array.shape == shape:
        return array
    if shape[0] == 1 and array.shape == shape[1:]:
        return array[None]
    raise shape_error(name, array.shape, shape)


def heads_in_our_layout(name: str, array: Array, shape: tuple[int, ...]) -> Array:
    """q, k, v or heads of another GPT-2, [B, T, H, K] or [B, T, D], as `shape`, [B, H, T, K]."""
    B, H, T, K = shape
    D = H * K
    if array.shape == (B, T, D) or (B == 1 and array.shape == (T, D)):
        array = array.reshape(B, T, H, K)
    return in_our_layout(name, array, (B, T, H, K)).swapaxes(1, 2)


def logits_in_our_layout(logits: Array, shape: tuple[int, ...]) -> Array:
    """Logits as `shape`, [B, T, V], without the columns that pad a vocabulary for speed."""
    B, T, V = shape
    is_batch = logits.shape[:-1] == (B, T)
    is_sequence = B == 1 and logits.shape[:-1] == (T,)
    if is_batch or is_sequence:
        logits = logits[..., :V]
    return in_our_layout("logits", logits, shape)


def translate_parameters(values: Mapping[Any, Any]) -> Parameters:
    """Their parameters, or gradients of them, under our names and in our layout."""
    arrays = {}
    for theirs, value in values.items():
        name = known_name(theirs, "parameter")
        if name == NOT_COMPARED:
            continue
        for ours, array in by_layer(name, as_floats(value, short_repr(theirs))):
            arrays[ours] = array

    if has_transposed_matrices(arrays):
        for name, array in arrays.items():
            if name.startswith("h.") and array.ndim == 2:
                arrays[name] = array.T
    return arrays


def has_transposed_matrices(arrays: Mapping[Any, Any]) -> bool:
    """Whether c_attn is [3 D, D], as in nanoGPT; in transformers, with the same names, [D, 3 D]."""
    for name, array in arrays.items():
        if str(name).endswith("c_attn.weight") and array.shape[0] > array.shape[-1]:
            return True
    return False


def from_state_dict(state: Mapping[str, Any], n_head: int | None = None, **fields: Any) -> GPT2:
    """A model from another GPT-2's state dict: transformers', nanoGPT's, llm.c's or ours.

    Arrays are NumPy's or torch's, of any float dtype. Sizes are read from the shapes. n_head cannot
    be; it must be given unless width and depth are those of a model of OpenAI's. `fields` are
    others of Config that the shapes do not tell, such as layer_norm_epsilon. A model without biases
    gets biases of 0. The head is untied if lm_head.weight is there and differs from wte.weight.

    A model of nanoGPT needs activation_function="gelu", the exact one. Without the field, a state
    dict of its layout is read with gelu_new and a TiedGPTWarning. Raises ArgumentError.
    """
    if has_transposed_matrices(state) and "activation_function" not in fields:
        warnings.warn(
            "this state dict has the layout of nanoGPT, whose models have the exact gelu: pass "
            'activation_function="gelu", or "gelu_new" if this model has GPT-2\'s',
            TiedGPTWarning,
            stacklevel=2,
        )
    arrays = translate_parameters(state)
    for name in ("wte.weight", "wpe.weight"):
        if name not in arrays or arrays[name].ndim != 2:
            raise ArgumentError(f"this is not the state dict of a GPT-2: it has no matrix {name}")
    wte = arrays["wte.weight"]
    V, D = wte.shape
    L = len({name.split(".")[1] for name in arrays if name.startswith("h.")})

    tied = np.array_equal(arrays.get("lm_head.weight", wte), wte)
    if tied:
        arrays.pop("lm_head.weight", None)
    F = None
    if "h.0.mlp.c_fc.weight" in arrays:
        F = arrays["h.0.mlp.c_fc.weight"].shape[-1]
    config = Config(
        vocab_size=V,
        n_ctx=len(arrays["wpe.weight"]),
        n_embd=D,
        n_layer=L,
        n_head=n_head or n_head_of_openai(D, L),
        n_inner=F,
        tied=tied,
        **fields,
    )
    shapes = parameter_shapes(config)
    biases = [name for name in shapes if name.endswith(".bias")]
    if not any(name in arrays for name in biases):
        for name in biases:
            arrays[name] = np.zeros(shapes[name])
    parameters = {name: np.asarray(x, wte.dtype, order="C") for name, x in arrays.items()}
    return GPT2(config, parameters)


def n_head_of_openai(width: int, depth: int) -> int:
    """The number of heads of OpenAI's model with this width and depth."""
    for known_model in MODELS.values():
        config = known_model.config
        if (config.n_embd, config.n_layer) == (width, depth):
            return config.n_head
    raise ArgumentError(
        f"n_head cannot be read from the shapes of {depth} layers of width {width}: pass n_head="
    )
