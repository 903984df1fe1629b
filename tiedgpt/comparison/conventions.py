"""The names and layouts of other GPT-2s' activations and parameters, and the way to ours.

In the tables, N is a layer's number. An array under a name of llm.c has all layers, [L, ...]. A
module's name means its output (`h.0.mlp`), with `:in` its input, with `:1` its second output.
TransformerLens writes `.hook_out` and `.hook_in`. Prefixes such as `transformer.` may be there or
not. An alias is a name in any of these conventions, `theirs` the name that was given, `ours` ours.

Heads are [B, H, T, K] on our tape, [B, T, H, K] in TransformerLens, [B, T, D] elsewhere. Matrices
of a block are [in, out] in transformers and here, [out, in] in nanoGPT and llm.c.
"""

import re
import warnings
from collections.abc import Iterator, Mapping
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoints.files import first_of_quantised, without_other_heads
from ..checkpoints.json_files import read_json
from ..checkpoints.places import MODELS
from ..errors import ArgumentError, ConfigError, TiedGPTWarning, nearest_names, short_repr
from ..gpt2.config import QUANTISED, Config
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
NAMES_NOT_COMPARED = [
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

# The fields of Config that the shapes of the arrays tell.
IN_SHAPES = ("vocab_size", "n_ctx", "n_embd", "n_layer", "n_head", "n_inner", "tied")
# The fields of Config that change the logits, and that no array of a state dict tells.
NOT_IN_SHAPES = (
    "activation_function",
    "layer_norm_epsilon",
    "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx",
)


def is_parameter(ours: str) -> bool:
    """Whether our name is that of a parameter, not of an activation."""
    return ours.endswith((".weight", ".bias"))


def all_aliases() -> dict[str, str]:
    """Each name in any convention, with N for the layer's number -> our name, or NOT_COMPARED."""
    aliases = {}
    for ours, others in (ACTIVATION_NAMES | PARAMETER_NAMES).items():
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


def known_name(name: Any, kind: str) -> str:
    """Our name of what another GPT-2 calls `name`, or NOT_COMPARED. Raises ArgumentError.

    kind: what is expected, "activation" or "parameter", for the message.
    """
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
    names = [alias.replace(".N", f".{layer}") for alias in ALIASES]
    name_in_table = IGNORED_PARTS.sub("", str(name))  # without a prefix such as "transformer."
    alike = nearest_names(name_in_table, names)
    raise ArgumentError(f"{short_repr(name)} is no {kind} of a GPT-2; the nearest are {alike}")


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


def as_floats(value: Any, name: str) -> Array:
    """A NumPy array, a list or a torch tensor as a new array: float64 if it is that, else float32.

    Raises ArgumentError, with this name, for what is not an array of numbers.
    """
    if np.ma.is_masked(value):
        raise ArgumentError(f"{name} is a masked array: give one without a mask")
    try:
        if hasattr(value, "detach"):  # a torch tensor
            value = value.detach().cpu()
            if value.is_complex():
                raise ArgumentError(f"{name} must be an array of floats, got {value.dtype}")
            if str(value.dtype) != "torch.float64":
                value = value.float()  # to float32, because NumPy has no bfloat16
            value = value.numpy()
        array = np.asarray(value)
    # Rows of unequal lengths; a torch tensor that is sparse, or has no values (on device "meta").
    except (ValueError, TypeError, RuntimeError) as error:
        reason = short_repr(str(error), limit=150)
        raise ArgumentError(f"{name} must be an array of floats: {reason}") from error
    if array.dtype.kind not in "fiu" or array.ndim == 0:
        raise ArgumentError(f"{name} must be an array of floats, got {array.dtype} {array.shape}")
    # For a float64 array, too, `astype` does something: it makes a copy, which does not change with
    # the other model's array, and it puts the bytes of a number in the order of this machine.
    if array.dtype == np.float64:
        return array.astype(np.float64)
    return array.astype(np.float32)


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
        name = known_name(theirs, "activation")
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


def translate_parameters(values: Mapping[Any, Any]) -> Parameters:
    """Their parameters, or gradients of them, under our names and in our layout.

    Raises ArgumentError for what is no array of numbers, and for two names of one parameter with
    different values.
    """
    arrays: Parameters = {}
    first_names: dict[str, Any] = {}
    for theirs, value in values.items():
        name = known_name(theirs, "parameter")
        if name == NOT_COMPARED:
            continue
        for ours, array in by_layer(name, as_floats(value, short_repr(theirs))):
            first = first_names.setdefault(ours, theirs)
            if first != theirs and not np.array_equal(arrays[ours], array, equal_nan=True):
                raise ArgumentError(
                    f"{short_repr(first)} and {short_repr(theirs)} are both {ours}, and they "
                    "differ: give one of them"
                )
            arrays[ours] = array
    if has_transposed_matrices(arrays):
        return with_transposed_matrices(arrays)
    return arrays


def with_transposed_matrices(arrays: Parameters) -> Parameters:
    """The parameters, with each matrix of a block transposed."""
    parameters = {}
    for name, array in arrays.items():
        is_in_block = name.startswith("h.")
        if is_in_block and array.ndim == 2:
            parameters[name] = array.T
        else:
            parameters[name] = array
    return parameters


def has_transposed_matrices(arrays: Mapping[Any, Any]) -> bool:
    """Whether the matrices of the blocks are [out, in], as in nanoGPT and llm.c, not [in, out].

    The shape of c_attn.weight tells: [3 D, D] or [D, 3 D]. The name that llm.c has for it, qkvw, is
    not recognised: translate_parameters puts ours in its place first.
    """
    for name, array in arrays.items():
        is_c_attn = str(name).endswith("c_attn.weight")
        if is_c_attn and np.shape(array)[0] > np.shape(array)[-1]:
            return True
    return False


def check_state_dict(state: Any) -> None:
    """Raise ArgumentError for what is no dict of arrays of floats. Masks may have other types."""
    if not isinstance(state, Mapping):
        raise ArgumentError(
            f"a state dict maps names to arrays, got {short_repr(state)}; a torch module's is "
            "module.state_dict()"
        )
    quantised = first_of_quantised(state)
    if quantised:
        raise ArgumentError(f"{short_repr(quantised)}: {QUANTISED}")
    for name, array in state.items():
        if isinstance(array, Mapping):
            raise ArgumentError(
                f"{short_repr(name)} is a dict: give that one, if it is the model's"
            )
        # Quantised weights are whole numbers, whose scale is somewhere else.
        dtype = str(getattr(array, "dtype", "float"))
        if "float" not in dtype and our_name(name) != NOT_COMPARED:
            raise ArgumentError(f"{short_repr(name)} must be an array of floats, got {dtype}")


def from_state_dict(
    state: Mapping[str, Any],
    n_head: int | None = None,
    config: Config | Mapping[str, Any] | str | Path | None = None,
    **fields: Any,
) -> GPT2:
    """A model from another GPT-2's state dict: transformers', nanoGPT's, llm.c's or ours.

    Arrays are NumPy's or torch's, of any float dtype. A model without biases gets biases of 0. The
    head is untied if lm_head.weight is there and differs from wte.weight, or if config says so. A
    config that says tied has a TiedGPTWarning then; one that says untied needs lm_head.weight.

    config: a Config, or what config.json holds, or the path of that file. Without it, sizes are
    read from the shapes. n_head cannot be; it must be given unless width and depth are those of a
    model of OpenAI's. `fields` are others of Config that the shapes do not tell, such as
    layer_norm_epsilon. A TiedGPTWarning names those that are assumed. A model of nanoGPT needs
    activation_function="gelu", the exact one.

    Raises ArgumentError, and for `config` what Config and load_model raise.
    """
    check_state_dict(state)
    state = without_other_heads(state, "the state dict", stacklevel=3)
    arrays = translate_parameters(state)
    given = None
    if config is not None:
        if n_head is not None or fields:
            raise ArgumentError("pass config, or n_head and other fields, not both")
        given = as_config(config)
    says_untied = given is not None and not given.tied
    if "wte.weight" not in arrays and "lm_head.weight" in arrays and not says_untied:
        arrays["wte.weight"] = arrays.pop("lm_head.weight")  # one matrix, under its other name
    for name in ("wte.weight", "wpe.weight"):
        if name not in arrays or arrays[name].ndim != 2:
            raise ArgumentError(f"this is not the state dict of a GPT-2: it has no matrix {name}")
    wte = arrays["wte.weight"]
    # A tied model may come with lm_head.weight, a copy of wte.weight.
    lm_head = arrays.get("lm_head.weight")
    if lm_head is not None and np.array_equal(lm_head, wte) and not says_untied:
        del arrays["lm_head.weight"]
    if given is not None:
        model_config = with_head_of(arrays, given)
    else:
        check_fields(fields)
        model_config = config_of_shapes(arrays, n_head, fields)
        warn_of_assumed_fields(model_config, fields, has_transposed_matrices(state))
    add_biases_if_none(arrays, model_config)
    # A transposed matrix is a view. A model's arrays are in C order, as those of a checkpoint.
    parameters = {name: np.asarray(x, wte.dtype, order="C") for name, x in arrays.items()}
    return GPT2(model_config, parameters)


def with_head_of(arrays: Parameters, config: Config) -> Config:
    """The config with the head that the arrays have, if that is another one than the config says.

    As load_model does: a TiedGPTWarning if the arrays have a head that is not wte and the config
    says tied, an ArgumentError if it says untied and they have none.
    """
    has_head = "lm_head.weight" in arrays
    if not config.tied and not has_head:
        raise ArgumentError(
            "config says untied (tie_word_embeddings false), but the state dict has no "
            "lm_head.weight; say tied in config, and call the model's untie() to start from a copy"
        )
    if config.tied and has_head:
        warnings.warn(
            "config says tied, but the state dict has another lm_head.weight, which is used: "
            "untied, as transformers 5 reads it; for tied, leave lm_head.weight out; for untied "
            "without this warning, say so in config (tie_word_embeddings false)",
            TiedGPTWarning,
            stacklevel=3,
        )
        return config.with_head("untied")
    return config


def check_fields(given: dict[str, Any]) -> None:
    """Raise ArgumentError for a name that is no field of Config, or one that the shapes tell."""
    known = [name for name in vars(Config()) if name not in IN_SHAPES]
    for name in given:
        if name not in known:
            raise ArgumentError(
                f"{short_repr(name)} is not a field that can be given; expected one of "
                f"{', '.join(known)}"
            )


def as_config(config: Any) -> Config:
    """The Config that a user gives as such, as what config.json holds, or as a path of that."""
    if isinstance(config, Config):
        return config
    if isinstance(config, Mapping):
        return Config.from_json(dict(config))
    if not isinstance(config, str | Path):
        raise ArgumentError(f"config must be a Config, a dict or a path, got {short_repr(config)}")
    try:
        return Config.from_json(read_json(Path(config)))
    except ConfigError as error:
        raise ConfigError(f"{config}: {error}") from error


def warn_of_assumed_fields(config: Config, fields: dict[str, Any], is_nano_gpts: bool) -> None:
    """Warn of the fields that change the logits, are told by no array, and were not given.

    The warning names the line that called from_state_dict, which called this function.
    """
    assumed = [name for name in NOT_IN_SHAPES if name not in fields]
    if not assumed:
        return
    values = ", ".join(f"{name}={getattr(config, name)!r}" for name in assumed)
    message = (
        f"a state dict does not tell these fields, which are assumed: {values}; pass config, such "
        "as the path of a config.json, or the fields"
    )
    if is_nano_gpts and "activation_function" in assumed:
        message += (
            ". This one has the layout of nanoGPT, whose models have the exact gelu: pass "
            'activation_function="gelu", or "gelu_new" if this model has GPT-2\'s'
        )
    warnings.warn(message, TiedGPTWarning, stacklevel=3)


def config_of_shapes(arrays: Parameters, n_head: int | None, fields: dict[str, Any]) -> Config:
    """The Config of a model with these parameters. It is untied if lm_head.weight is among them.

    fields: what the shapes do not tell. Raises ArgumentError if n_head is needed and None.
    """
    V, D = arrays["wte.weight"].shape
    layers = {name.split(".")[1] for name in arrays if name.startswith("h.")}
    L = len(layers)
    F = None  # Config makes it 4 D
    if "h.0.mlp.c_fc.weight" in arrays:
        F = arrays["h.0.mlp.c_fc.weight"].shape[-1]
    return Config(
        vocab_size=V,
        n_ctx=len(arrays["wpe.weight"]),
        n_embd=D,
        n_layer=L,
        n_head=n_head or n_head_of_openai(D, L),
        n_inner=F,
        tied="lm_head.weight" not in arrays,
        **fields,
    )


def add_biases_if_none(arrays: Parameters, config: Config) -> None:
    """Add biases of 0 to the parameters of a model that was made without biases.

    If there is a bias, none is added: the missing ones are an error that GPT2 raises.
    """
    shapes = parameter_shapes(config)
    biases = [name for name in shapes if name.endswith(".bias")]
    if any(name in arrays for name in biases):
        return
    for name in biases:
        arrays[name] = np.zeros(shapes[name])


def n_head_of_openai(width: int, depth: int) -> int:
    """The number of heads of OpenAI's model with this width and depth.

    Raises ArgumentError if OpenAI has no such model.
    """
    for known_model in MODELS.values():
        config = known_model.config
        if (config.n_embd, config.n_layer) == (width, depth):
            return config.n_head
    raise ArgumentError(
        f"n_head cannot be read from the shapes of {depth} layers of width {width}: pass n_head="
    )
