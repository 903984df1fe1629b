"""A model from the arrays of another program: `from_state_dict`."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import (
    ArgumentError,
    ConfigError,
    TiedGPTWarning,
    check_file_name,
    nearest_names,
    short_repr,
)
from ..gpt2.config import QUANTISED, Config
from ..gpt2.model import GPT2
from ..gpt2.parameters import Parameters
from .files import first_of_quantised
from .json_files import read_json
from .model_names import MODELS
from .names import (
    HEAD,
    LAYOUTS,
    NOT_OF_TOKENS,
    OTHER_HEAD,
    Layout,
    Renamed,
    absent_biases,
    all_names,
    by_our_names,
    is_no_parameter,
    our_parameter,
    plain_name,
    with_N,
)

# The fields of Config that the shapes of the arrays tell.
IN_SHAPES = ("vocab_size", "n_ctx", "n_embd", "n_layer", "n_head", "n_inner", "tied")
# The fields of Config that change the logits, and that no array of a state dict tells.
NOT_IN_SHAPES = (
    "activation_function",
    "layer_norm_epsilon",
    "scale_attn_weights",
    "scale_attn_by_inverse_layer_idx",
)


def from_state_dict(
    state: Mapping[str, Any],
    n_head: int | None = None,
    config: Config | Mapping[str, Any] | str | Path | None = None,
    **fields: Any,
) -> GPT2:
    """A model from another GPT-2's state dict, in any layout of names.py.

    Arrays are NumPy's or torch's, of any float dtype. A model without biases gets biases of 0. The
    head is untied if lm_head.weight is there and differs from wte.weight, or if config says so. A
    config that says tied has a TiedGPTWarning then; one that says untied needs lm_head.weight.

    config: a Config, or what config.json holds, or the path of that file. Without it, sizes are
    read from the shapes. n_head must be given, unless the layout is by head, or width and depth are
    those of a model of OpenAI's. `fields` are others of Config that the shapes do not tell, such as
    layer_norm_epsilon. A TiedGPTWarning names those that are assumed. A model of nanoGPT needs
    activation_function="gelu", the exact one.

    Raises ArgumentError; for `config` ConfigError, and CheckpointError for a file that cannot be
    read.
    """
    if config is not None and (n_head is not None or fields):
        raise ArgumentError("pass config, or n_head and other fields, not both")
    check_state_dict(state)
    others = [f"{name}" for name in state if OTHER_HEAD.match(plain_name(f"{name}"))]
    if others:
        message = f"the state dict: {', '.join(others)}: {NOT_OF_TOKENS}"
        warnings.warn(message, TiedGPTWarning, stacklevel=2)
    renamed = rename_arrays({name: x for name, x in state.items() if name not in others})
    given_config = None if config is None else as_config(config)
    arrays = parameters_of(renamed, is_tied=given_config is None or given_config.tied)
    if given_config is not None:
        model_config = with_head_of(arrays, given_config)
    else:
        n_head = renamed.n_head if n_head is None else n_head
        model_config = config_of_shapes(arrays, n_head, fields)
        warn_of_assumed_fields(model_config, fields, renamed.layout)
    renamed.check_n_head(model_config.n_head)
    # A transposed matrix is a view. A model's arrays are in C order, as those of a checkpoint.
    dtype = arrays["wte.weight"].dtype
    return GPT2(model_config, {n: np.asarray(x, dtype, order="C") for n, x in arrays.items()})


def parameters_of(renamed: Renamed, is_tied: bool) -> Parameters:
    """The parameters of a model: with biases of 0 if it has none, and one matrix if it is tied.

    The matrix of a tied model may be there as lm_head.weight alone, or twice. is_tied: False if a
    config says that the model has a W_U of its own. Raises ArgumentError if there is no matrix of
    tokens, or none of positions, and for a parameter that a GPT-2 lacks and that is not 0.
    """
    # A bias of the head, which a GPT-2 lacks, may be there if it is 0.
    renamed.refuse_extra_parameters(values=np.asarray)
    biases = absent_biases(renamed.layout, renamed.tensors)
    arrays = renamed.tensors | {name: np.zeros(shape) for name, shape in biases.items()}
    if is_tied and "wte.weight" not in arrays and HEAD in arrays:
        arrays["wte.weight"] = arrays.pop(HEAD)
    for name in ("wte.weight", "wpe.weight"):
        if name not in arrays or arrays[name].ndim != 2:
            raise ArgumentError(f"this is not the state dict of a GPT-2: it has no matrix {name}")
    if is_tied and HEAD in arrays and np.array_equal(arrays[HEAD], arrays["wte.weight"]):
        del arrays[HEAD]
    return arrays


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
        dtype = getattr(array, "dtype", "float")  # a list has none, and as_floats looks at it
        # NumPy's name is the same for both orders of bytes; torch's types have none.
        dtype_name = getattr(dtype, "name", f"{dtype}")
        if "float" not in dtype_name and not is_no_parameter(plain_name(f"{name}")):
            raise ArgumentError(f"{short_repr(name)} must be an array of floats, got {dtype_name}")


def rename_arrays(values: Mapping[Any, Any]) -> Renamed:
    """Another program's parameters, or gradients of them, under our names and in our layout.

    Raises ArgumentError for what is no array of numbers, for an unknown name, and for two names of
    one parameter with different values.
    """
    arrays: Parameters = {}
    first_names: dict[str, Any] = {}
    for theirs, value in values.items():
        name = plain_name(f"{theirs}")
        if is_no_parameter(name):
            continue
        kind, number = with_N(name)
        # A parameter that GPT-2 lacks may only be 0, which refuse_extra_parameters checks later.
        may_be_zero = any(kind in layout.must_be_zero for layout in LAYOUTS)
        if our_parameter(name) == "" and not may_be_zero:
            known = [each.replace("N", number or "N") for each in all_names()]
            raise ArgumentError(
                f"{short_repr(theirs)} is no parameter of a GPT-2; the nearest are "
                f"{nearest_names(name, known)}"
            )
        array = as_floats(value, short_repr(theirs))
        first = first_names.setdefault(name, theirs)
        if first != theirs and not np.array_equal(arrays[name], array, equal_nan=True):
            raise ArgumentError(
                f"{short_repr(first)} and {short_repr(theirs)} are both {name}, and they "
                "differ: give one of them"
            )
        arrays[name] = array
    return by_our_names(arrays, np.concatenate)


def as_floats(value: Any, name: str) -> np.ndarray:
    """A NumPy array, a list or a torch tensor as a new array: float64 if it is that, else float32.

    Raises ArgumentError, with this name, for what is not an array of numbers.
    """
    if np.ma.is_masked(value):
        raise ArgumentError(f"{name} is a masked array: give one without a mask")
    try:
        if hasattr(value, "detach"):  # a torch tensor
            value = value.detach().cpu()
            if value.is_floating_point() and str(value.dtype) != "torch.float64":
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
    if array.dtype.name == "float64":  # the name is the same for both orders of bytes
        return array.astype(np.float64)
    return array.astype(np.float32)


def with_head_of(arrays: Parameters, config: Config) -> Config:
    """The config with the head that the arrays have.

    Warns if the config says tied and the arrays have a head that is not wte. Raises ArgumentError
    if the config says untied and the arrays have no head.
    """
    has_head = HEAD in arrays
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


def as_config(config: Any) -> Config:
    """The Config that a user gives: a Config, the object of a config.json, or the file's path."""
    if isinstance(config, Config):
        return config
    if isinstance(config, Mapping):
        return Config.from_json(dict(config))
    if not isinstance(config, str | Path):
        raise ArgumentError(f"config must be a Config, a dict or a path, got {short_repr(config)}")
    check_file_name(config)
    try:
        return Config.from_json(read_json(Path(config)))
    except ConfigError as error:
        raise ConfigError(f"{config}: {error}") from error


def warn_of_assumed_fields(config: Config, fields: dict[str, Any], layout: Layout) -> None:
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
    if "nanoGPT" in layout.program and "activation_function" in assumed:
        message += (
            ". This one has the layout of nanoGPT, whose models have the exact gelu: pass "
            'activation_function="gelu", or "gelu_new" if this model has GPT-2\'s'
        )
    warnings.warn(message, TiedGPTWarning, stacklevel=3)


def config_of_shapes(arrays: Parameters, n_head: int | None, fields: dict[str, Any]) -> Config:
    """The Config of a model with these parameters. It is untied if lm_head.weight is among them.

    fields: what the shapes do not tell. Raises ArgumentError for other fields, and if n_head is
    needed and None.
    """
    known = [name for name in vars(Config()) if name not in IN_SHAPES]
    for name in fields:
        if name not in known:
            raise ArgumentError(
                f"{short_repr(name)} is not a field that can be given; expected one of "
                f"{', '.join(known)}"
            )
    V, D = arrays["wte.weight"].shape
    layers = {name.split(".")[1] for name in arrays if name.startswith("h.")}
    L = len(layers)
    F = None  # Config makes it 4 D
    if "h.0.mlp.c_fc.weight" in arrays:
        F = arrays["h.0.mlp.c_fc.weight"].shape[-1]
    # The models of OpenAI have known numbers of heads.
    openais = {(each.config.n_embd, each.config.n_layer): each.config for each in MODELS.values()}
    if n_head is None and (D, L) not in openais:
        raise ArgumentError(
            f"n_head cannot be read from the shapes of {L} layers of width {D}: pass n_head="
        )
    return Config(
        vocab_size=V,
        n_ctx=len(arrays["wpe.weight"]),
        n_embd=D,
        n_layer=L,
        n_head=openais[D, L].n_head if n_head is None else n_head,
        n_inner=F,
        tied=HEAD not in arrays,
        **fields,
    )
