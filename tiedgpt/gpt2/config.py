"""Config: a GPT-2's hyperparameters, read from and written to config.json."""

from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np

from ..errors import AT_LEAST_0, RATE, ArgumentError, ConfigError, Range, short_repr
from .activations import ACTIVATIONS

HEADS = ("tied", "untied")
SIZE = Range(1, 2**31 - 1)
RANGES = {  # of the fields that are numbers
    **dict.fromkeys(("vocab_size", "n_ctx", "n_embd", "n_head", "n_inner"), SIZE),
    "n_layer": Range(
        0, 1_000
    ),  # GPT-2 has at most 48; a billion would fill the memory with tensor names
    **dict.fromkeys(("layer_norm_epsilon", "initializer_range"), AT_LEAST_0),
    **dict.fromkeys(("embd_pdrop", "resid_pdrop", "attn_pdrop"), RATE),
}

# Fields with another name in transformers' config.json.
JSON_NAMES = {"n_ctx": "n_positions", "tied": "tie_word_embeddings"}

# Other names that transformers accepts for the same fields of config.json.
ALIASES = {
    "hidden_size": "n_embd",
    "max_position_embeddings": "n_positions",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
}
# Fields that describe the file itself and are not copied to another.
OF_THE_FILE = ("architectures", "dtype", "torch_dtype", "transformers_version", "_name_or_path")

# Fields of config.json that change the model, and the only values under which it is GPT-2.
# (reorder_and_upcast_attn is not among them: it only changes rounding in half precision.)
NEUTRAL_VALUES: dict[str, tuple[Any, ...]] = {
    "model_type": ("gpt2",),
    "add_cross_attention": (False,),
    "is_encoder_decoder": (False,),
    "pruned_heads": (None, {}),
    "quantization_config": (None,),
}


@dataclass(frozen=True)
class Config:
    """The hyperparameters of a GPT-2. The defaults are GPT-2 124M's. Raises ConfigError for wrong
    values."""

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
        for f in fields(self):
            object.__setattr__(self, f.name, _as_python(getattr(self, f.name)))
        if isinstance(self.eos_token_id, list | tuple):  # a list in config.json
            object.__setattr__(self, "eos_token_id", tuple(map(_as_python, self.eos_token_id)))
        for name, accepted in RANGES.items():
            if name == "n_inner" and self.n_inner is None:
                object.__setattr__(self, "n_inner", 4 * self.n_embd)
            accepted.check(_with_json_name(name), getattr(self, name), ConfigError)
        if self.n_embd % self.n_head:
            raise ConfigError(
                f"n_embd {self.n_embd} does not divide into n_head {self.n_head} equal heads"
            )
        if (
            not isinstance(self.activation_function, str)
            or self.activation_function not in ACTIVATIONS
        ):
            found, expected = short_repr(self.activation_function), ", ".join(ACTIVATIONS)
            raise ConfigError(
                f"activation_function {found} is not supported; expected one of {expected}"
            )
        for name in ("scale_attn_weights", "scale_attn_by_inverse_layer_idx", "tied"):
            value = getattr(self, name)
            if not isinstance(value, bool):
                raise ConfigError(
                    f"{_with_json_name(name)} must be true or false, got {short_repr(value)}"
                )
        for token in (self.bos_token_id, *self.eos_token_ids):
            if token is not None:
                Range(0, SIZE.high).check("bos_token_id and eos_token_id", token, ConfigError)

    @property
    def head_width(self) -> int:
        """K = D / H."""
        return self.n_embd // self.n_head

    @property
    def eos_token_ids(self) -> tuple[int, ...]:
        """The ids that end a generated text: none, one or several."""
        ids = self.eos_token_id
        return ids if isinstance(ids, tuple) else () if ids is None else (ids,)

    @property
    def head(self) -> str:
        """ "tied" or "untied", as in flags and reports."""
        return "tied" if self.tied else "untied"

    def with_head(self, head: str) -> "Config":
        """This configuration with head "tied" or "untied". Raises ArgumentError for another
        head."""
        if head not in HEADS:
            raise ArgumentError(f'head must be "tied" or "untied", got {short_repr(head)}')
        return replace(self, tied=head == "tied")

    @classmethod
    def from_json(cls, data: Any) -> "Config":
        """A Config from the parsed config.json of a transformers checkpoint. Unknown fields are in
        `others`.

        Raises ConfigError that names a field of another model, or of arithmetic that is not
        implemented here.
        """
        if not isinstance(data, dict):
            raise ConfigError(f"expected a JSON object, got {short_repr(data)}")
        if "model_type" not in data:
            raise ConfigError('"model_type" is missing; expected "gpt2"')
        for name, allowed in NEUTRAL_VALUES.items():
            if name in data and data[name] not in allowed:
                found = f"{name} is {short_repr(data[name])}, which is another model than GPT-2"
                raise ConfigError(f"{found}; expected {short_repr(allowed[0])}")
        for alias, name in ALIASES.items():
            if alias in data and data.get(name, data[alias]) != data[alias]:
                values = short_repr(data[alias]), short_repr(data[name])
                raise ConfigError(
                    f"{alias} is {values[0]} but {name}, its other name, is {values[1]}"
                )
        data = {ALIASES.get(name, name): value for name, value in data.items()}
        names = cls._json_names()
        read = {ours: data[theirs] for ours, theirs in names.items() if theirs in data}
        passed_over = {*names.values(), *OF_THE_FILE, "model_type"}
        others = {name: value for name, value in data.items() if name not in passed_over}
        return cls(**read, others=others)

    def to_json(self) -> dict[str, Any]:
        """The contents of config.json, for json.dump. `from_json` and transformers read it back."""
        own = {theirs: getattr(self, ours) for ours, theirs in self._json_names().items()}
        return {**self.others, "model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], **own}

    @classmethod
    def _json_names(cls) -> dict[str, str]:
        """Field -> its name in config.json."""
        return {f.name: JSON_NAMES.get(f.name, f.name) for f in fields(cls) if f.name != "others"}


def _as_python(value: Any) -> Any:
    """A NumPy scalar as Python's number; any other value unchanged."""
    return value.item() if isinstance(value, np.generic) else value


def _with_json_name(name: str) -> str:
    return f"{name} ({JSON_NAMES[name]} in config.json)" if name in JSON_NAMES else name
