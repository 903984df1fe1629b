"""Config: a GPT-2's hyperparameters, read from and written to config.json."""

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from ..errors import AT_LEAST_0, RATE, ArgumentError, ConfigError, Range, short_repr
from .activations import ACTIVATIONS

HEADS = ("tied", "untied")
SIZE = Range(1, 2**31 - 1)
TOKEN_ID = Range(0, 2**31 - 1)
RANGES = {  # of the fields that are numbers
    "vocab_size": SIZE,
    "n_ctx": SIZE,
    "n_embd": SIZE,
    "n_head": SIZE,
    "n_inner": SIZE,
    # GPT-2 has at most 48 layers; the tensor names of a billion would fill the memory.
    "n_layer": Range(0, 1_000),
    "layer_norm_epsilon": AT_LEAST_0,
    # float32 ends at 3.4e38, and a weight may be several standard deviations.
    "initializer_range": Range(0, 1e37, whole=False),
    "embd_pdrop": RATE,
    "resid_pdrop": RATE,
    "attn_pdrop": RATE,
}
SWITCHES = ("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "tied")

# Fields with another name in transformers' config.json.
JSON_NAMES = {"n_ctx": "n_positions", "tied": "tie_word_embeddings"}
CALLED = {name: f"{name} ({JSON_NAMES[name]} in config.json)" for name in JSON_NAMES}  # in errors

# Other names that transformers accepts for the same fields of config.json.
ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
# Fields of config.json that are not kept. `to_json` writes the first three itself: two are the same
# for every GPT-2, and n_ctx is n_positions. The others describe one file, and do not hold for
# another one.
FIELDS_NOT_KEPT = (
    "model_type",
    "architectures",
    "n_ctx",
    "dtype",
    "torch_dtype",
    "transformers_version",
    "_name_or_path",
)

# A config.json of 2019 has no model_type. With these fields, it is taken for that of a GPT-2.
GPT2S_SIZES = ("vocab_size", "n_positions", "n_embd", "n_layer", "n_head")

# Fields of config.json that change the model, and the only values under which it is GPT-2.
# (reorder_and_upcast_attn is not among them: it only changes rounding in half precision.)
NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "model_type": ("gpt2",),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "pruned_heads": (None, {}),
}
QUANTISED = "the weights are quantised, which is not read: load the model that they were made from"


@dataclass(frozen=True)
class Config:
    """The hyperparameters of a GPT-2; the defaults are GPT-2 124M's.

    Raises ConfigError for a value that is not valid.
    """

    vocab_size: int = 50257  # V
    n_ctx: int = 1024  # the longest sequence: rows of wpe
    n_embd: int = 768  # D, the width of the residual stream
    n_layer: int = 12  # L
    n_head: int = 12  # H; each head is K = D / H wide
    n_inner: int | None = None  # F, the MLP's width; None means 4 D
    activation_function: str = "gelu_new"
    layer_norm_epsilon: float = 1e-5
    scale_attn_weights: bool = True  # divide attention scores by sqrt(K)
    scale_attn_by_inverse_layer_idx: bool = False  # and by the layer's number, counted from 1
    tied: bool = True  # the switch: logits are x @ wte.T (True) or x @ W_U (False)
    initializer_range: float = 0.02  # standard deviation of random weights
    # Dropout in training: of the embedding, of each layer's output, of the attention patterns.
    embd_pdrop: float = 0.1
    resid_pdrop: float = 0.1
    attn_pdrop: float = 0.1
    bos_token_id: int | None = 50256
    eos_token_id: int | tuple[int, ...] | None = 50256  # ends a generated text
    # The other fields of config.json (pad_token_id, ...), written again by to_json.
    others: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        values = vars(self)  # a change of this dict sets a field, although the class is frozen
        for name, value in values.items():
            if isinstance(value, np.generic):  # a scalar of NumPy
                values[name] = value.item()
        for name in ("bos_token_id", "eos_token_id"):
            if isinstance(values[name], int) and values[name] == -1:  # in files: none
                values[name] = None
        # The default of n_inner needs an n_embd that is a size. _check_fields refuses any other.
        if self.n_inner is None and self.n_embd in SIZE:
            values["n_inner"] = 4 * self.n_embd
        ends = [self.eos_token_id]
        if isinstance(self.eos_token_id, list | tuple):  # a list in config.json
            ends = [int(end) if isinstance(end, np.integer) else end for end in self.eos_token_id]
            values["eos_token_id"] = tuple(ends)
        for token in (self.bos_token_id, *ends):
            if token is not None and token not in TOKEN_ID:
                raise ConfigError(
                    f"bos_token_id and eos_token_id must be {TOKEN_ID}, got {short_repr(token)}"
                )
        self._check_fields()

    def _check_fields(self) -> None:
        """Raise ConfigError for a number, a switch or an activation function that is not valid."""
        for name, accepted in RANGES.items():
            value = getattr(self, name)
            if value not in accepted:
                raise ConfigError(
                    f"{CALLED.get(name, name)} must be {accepted}, got {short_repr(value)}"
                )
        for name in SWITCHES:
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ConfigError(
                    f"{CALLED.get(name, name)} must be true or false, got {short_repr(value)}"
                )
        if self.n_embd % self.n_head != 0:
            raise ConfigError(
                f"n_embd {self.n_embd} does not divide into n_head {self.n_head} equal heads"
            )
        # A list or dict cannot be looked up in ACTIVATIONS.
        activation = self.activation_function
        if not isinstance(activation, str) or activation not in ACTIVATIONS:
            raise ConfigError(
                f"activation_function {short_repr(activation)} is not supported; "
                f"expected one of {', '.join(ACTIVATIONS)}"
            )

    @property
    def head_width(self) -> int:
        """K = D / H."""
        return self.n_embd // self.n_head

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The ids that end a generated text: none, one or several."""
        if self.eos_token_id is None:
            return ()
        if isinstance(self.eos_token_id, tuple):
            return self.eos_token_id
        return (self.eos_token_id,)

    @property
    def head(self) -> str:
        """ "tied" or "untied", as in flags and reports."""
        return "tied" if self.tied else "untied"

    def with_head(self, head: str) -> "Config":
        """This configuration with head "tied" or "untied". Raises ArgumentError for another."""
        if head not in HEADS:
            raise ArgumentError(f'head must be "tied" or "untied", got {short_repr(head)}')
        return replace(self, tied=head == "tied")

    @classmethod
    def from_json(cls, data: Any) -> "Config":
        """A Config from the parsed config.json of a transformers checkpoint.

        Fields that Config does not have are in `others`. Raises ConfigError that names a field of
        another model, or of arithmetic that is not implemented here.
        """
        if not isinstance(data, dict):
            raise ConfigError(f"expected a JSON object, got {short_repr(data)}")
        check_is_gpt2(data)
        values: dict[str, Any] = {}
        others: dict[str, Any] = {}
        for key, value in data.items():
            json_name = ALIASES.get(key) or key  # the usual one of several names for a field
            if json_name in FIELD_NAMES:
                values[FIELD_NAMES[json_name]] = value
            elif json_name not in FIELDS_NOT_KEPT:
                others[json_name] = value
        return cls(others=others, **values)

    def to_json(self) -> dict[str, Any]:
        """The contents of config.json, for json.dump. `from_json` and transformers read it back."""
        data = {**self.others, "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"]}
        for json_name, name in FIELD_NAMES.items():
            data[json_name] = getattr(self, name)
        data["n_ctx"] = self.n_ctx  # what llama.cpp and mlx-lm read
        return data


def check_is_gpt2(data: dict[str, Any]) -> None:
    """Raise ConfigError for what config.json says of another model, or says twice differently."""
    if "model_type" not in data and not all(name in data for name in GPT2S_SIZES):
        raise ConfigError('"model_type" is missing; expected "gpt2"')
    for name in ("quantization_config", "quantization"):  # the latter is mlx-lm's
        if data.get(name) is not None:
            raise ConfigError(f"{name} is {short_repr(data[name])}: {QUANTISED}")
    for name, allowed in NEUTRAL_VALUES.items():
        if name in data and data[name] not in allowed:
            raise ConfigError(
                f"{name} is {short_repr(data[name])}, which is another model than GPT-2; "
                f"expected {short_repr(allowed[0])}"
            )
    for alias, name in ALIASES.items():
        if alias in data and name in data and data[alias] != data[name]:
            raise ConfigError(
                f"{alias} is {short_repr(data[alias])} but {name}, its other name, "
                f"is {short_repr(data[name])}"
            )


# A name in config.json -> the name of the field, for each field but `others`.
FIELD_NAMES: dict[str, str] = {
    JSON_NAMES.get(field_.name, field_.name): field_.name
    for field_ in fields(Config)
    if field_.name != "others"
}
