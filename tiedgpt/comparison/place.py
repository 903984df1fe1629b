"""A place in a forward pass: one activation, and what the model computes it from.

The kind of an activation is its name with N for the layer's number: "attn.N.qkv". A mistake is a
function from a place to a wrong activation.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from ..gpt2.model import GPT2, Array, merge_heads
from ..gpt2.run import Tape

NORMS = ("attn.N.in", "mlp.N.in", "final")
Q_K_V = ("attn.N.q", "attn.N.k", "attn.N.v")
LINEARS = ("attn.N.qkv", "attn.N.out", "mlp.N.pre", "mlp.N.out")

# The weight and the bias from which each kind of activation is computed.
PARAMETERS_OF = {
    "attn.N.in": "h.N.ln_1",
    "attn.N.qkv": "h.N.attn.c_attn",
    "attn.N.q": "h.N.attn.c_attn",
    "attn.N.k": "h.N.attn.c_attn",
    "attn.N.v": "h.N.attn.c_attn",
    "attn.N.out": "h.N.attn.c_proj",
    "mlp.N.in": "h.N.ln_2",
    "mlp.N.pre": "h.N.mlp.c_fc",
    "mlp.N.out": "h.N.mlp.c_proj",
    "final": "ln_f",
}


@cache
def kind_of(name: str) -> str:
    """Put N for the layer's number: "attn.3.qkv" -> "attn.N.qkv"."""
    return re.sub(r"\.\d+", ".N", name)


@cache
def layer_of(name: str) -> int | None:
    """The number of the activation's layer: "attn.3.qkv" -> 3. None if it is in no layer."""
    number = re.search(r"\.(\d+)", name)
    if number is None:
        return None
    return int(number[1])


@dataclass(frozen=True)
class Place:
    """An activation in a forward pass.

    place["attn.N.in"] is an activation before it in its layer, place["h.N.ln_1.weight"] a parameter
    of its layer, place["wte.weight"] one of the whole model.
    """

    name: str
    right: Array  # the activation as model.py computes it from those before it
    model: GPT2
    ids: Array  # [B, T]
    tape: Tape  # the activations before it

    @property
    def kind(self) -> str:
        return kind_of(self.name)

    @property
    def layer(self) -> int:
        """The number of the activation's layer.

        For final and logits it is that of the last one, from which they are computed. The mistakes
        of embed do not ask for it.
        """
        layer = layer_of(self.name)
        if layer is None:
            return self.n_layer - 1
        return layer

    def __getitem__(self, name: str) -> Array:
        """A parameter or an earlier activation. N in its name stands for this layer's number."""
        name = name.replace(".N", f".{self.layer}")
        if name in self.model.parameters:
            return self.model.parameters[name]
        return self.tape[name]

    @property
    def x(self) -> Array:
        """The activation that this one is computed from, for kinds with a single one.

        For a sum, such as resid_mid.N, it is what is added to the residual stream.
        """
        if self.kind in Q_K_V:
            return self["attn.N.qkv"]
        if self.kind == "attn.N.out":
            return merge_heads(self["attn.N.heads"])
        # The tape ends before this activation, and is in the order of the forward pass. Each other
        # activation is computed from the one just before it, which is the newest on the tape.
        newest = list(self.tape)[-1]
        return self.tape[newest]

    @property
    def weight(self) -> Array:
        """The weight from which an activation of a kind in PARAMETERS_OF is computed."""
        return self[f"{PARAMETERS_OF[self.kind]}.weight"]

    @property
    def bias(self) -> Array:
        """The bias from which an activation of a kind in PARAMETERS_OF is computed."""
        return self[f"{PARAMETERS_OF[self.kind]}.bias"]

    @property
    def W_U(self) -> Array:  # [D, V]
        return self.model.W_U

    @property
    def eps(self) -> float:
        return self.model.config.layer_norm_epsilon

    @property
    def n_layer(self) -> int:
        return self.model.config.n_layer

    @property
    def D(self) -> int:
        return self.model.config.n_embd

    @property
    def H(self) -> int:
        return self.model.config.n_head

    @property
    def K(self) -> int:
        return self.model.config.head_width

    @property
    def part(self) -> int:
        """Which of q, k and v this is: 0, 1 or 2."""
        return Q_K_V.index(self.kind)

    @property
    def positions(self) -> Array:  # [T]
        return np.arange(self.ids.shape[1])

    @property
    def token_vectors(self) -> Array:  # [B, T, D]
        return self["wte.weight"][self.ids]

    @property
    def position_vectors(self) -> Array:  # [T, D]
        return self["wpe.weight"][self.positions]

    @property
    def end_of_text(self) -> int:
        """The smallest id of a token that ends a text, or the last id if there is no such token."""
        config = self.model.config
        # The configuration of from_state_dict may name a token that is not in this vocabulary.
        end_ids = [token for token in config.eos_token_ids if token < config.vocab_size]
        if not end_ids:
            return config.vocab_size - 1
        return min(end_ids)


Compute = Callable[[Place], Array]  # from a place to its activation
