"""What a forward pass needs besides weights: KV cache, tape of activations, edits, dropout.

Each part is optional. A method of `Run` whose part is absent returns its argument unchanged. So the
functions of model.py are the same for logits, generation, training and study.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ArgumentError, short_repr
from .config import Config

Tape = dict[str, np.ndarray]
Edits = Mapping[str, Callable[[np.ndarray], Any]]
# It is called with the number of tokens (or bytes, or steps) that were just done.
OnProgress = Callable[[int], Any] | None

# The activations of a block, in the order of the forward pass, and their shapes. A tape records
# them and an edit replaces them. N stands for the number of the layer. The ids may be one sequence
# [T]; B is then 1.
BLOCK_SHAPES = {
    "resid_pre.N": "B T D",
    "attn.N.in": "B T D",
    "attn.N.qkv": "B T 3D",
    "attn.N.q": "B H T K",
    "attn.N.k": "B H T K",
    "attn.N.v": "B H T K",
    "attn.N.scores": "B H T S",
    "attn.N.pattern": "B H T S",
    "attn.N.heads": "B H T K",
    "attn.N.out": "B T D",
    "resid_mid.N": "B T D",
    "mlp.N.in": "B T D",
    "mlp.N.pre": "B T F",
    "mlp.N.post": "B T F",
    "mlp.N.out": "B T D",
    "resid_post.N": "B T D",
}


def activation_shapes(config: Config) -> dict[str, str]:
    """The name of each activation that a tape records and an edit replaces -> its shape, in order.

    A tape also gets the logits, "B T V", which no edit replaces. (The call returns [T, V] for [T].)

    >>> activation_shapes(Config(n_layer=0))
    {'embed': 'B T D', 'final': 'B T D'}
    """
    shapes = {"embed": "B T D"}
    for layer in range(config.n_layer):
        for kind, shape in BLOCK_SHAPES.items():
            shapes[kind.replace("N", str(layer))] = shape
    shapes["final"] = "B T D"
    return shapes


def in_each_layer(kinds: Collection[str], config: Config) -> list[str]:
    """The names that kinds of activations have in the layers of a model.

    >>> in_each_layer(["attn.N.q", "attn.N.k"], Config(n_layer=2))
    ['attn.0.q', 'attn.0.k', 'attn.1.q', 'attn.1.k']
    """
    return [kind.replace("N", str(layer)) for layer in range(config.n_layer) for kind in kinds]


class KVCache:
    """The keys and values of the tokens read so far: [L, B, H, capacity, K].

    The first `length` of the capacity are filled, for all B sequences.
    """

    def __init__(self, config: Config, batch: int, capacity: int, dtype: Any) -> None:
        shape = (config.n_layer, batch, config.n_head, capacity, config.head_width)
        self.keys = np.zeros(shape, dtype)
        self.values = np.zeros(shape, dtype)
        self.capacity = capacity
        self.length = 0

    def extend(  # k and v [B, H, T, K] -> [B, H, S, K]
        self, layer: int, k: np.ndarray, v: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add a layer's keys and values; return the keys and values of all tokens so far.

        The caller increases `length` after the last layer.
        """
        start = self.length
        end = start + k.shape[2]
        self.keys[layer, :, :, start:end] = k
        self.values[layer, :, :, start:end] = v
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def repeat(self, batch: int) -> None:
        """Copy the one sequence of the cache, so that it holds `batch` equal ones."""
        self.keys = self.keys.repeat(batch, axis=1)
        self.values = self.values.repeat(batch, axis=1)


@dataclass
class Run:
    """What one forward pass through a model of `config` reads and records, besides weights."""

    config: Config
    cache: KVCache | None = None
    tape: Tape | None = None
    edits: Edits | None = None
    rng: np.random.Generator | None = None  # for dropout; given in training only
    unrecorded: Collection[str] = ()  # names of activations that the tape does not need

    def __post_init__(self) -> None:
        if self.tape is not None and not isinstance(self.tape, dict):
            raise ArgumentError(f"tape must be a dict to write to, got {short_repr(self.tape)}")

    def positions(self, T: int) -> slice:
        """The rows of wpe for the T tokens of this pass, which follow the tokens in the cache."""
        start = 0
        if self.cache is not None:
            start = self.cache.length
        return slice(start, start + T)

    def tap(self, name: str, x: np.ndarray, copy: bool = False) -> np.ndarray:
        """x, or the edit of x if there is one. If there is a tape, record what is returned.

        `copy` is for an x that the caller overwrites: the tape gets a copy. Raises ArgumentError
        for an edit that returns something else than real numbers in x's shape.
        """
        if self.edits and name in self.edits:
            returned = self.edits[name](x.copy())  # a copy, so that the edit cannot change x
            try:
                new = np.asarray(returned)
            except ValueError as error:  # lists of unequal lengths
                raise ArgumentError(f"the edit of {name} returned no array: {error}") from error
            if new.dtype.kind not in "fiub":  # floats, integers, booleans
                raise ArgumentError(
                    f"the edit of {name} returned no real numbers, but {short_repr(returned)}"
                )
            if new.shape != x.shape:
                raise ArgumentError(
                    f"the edit of {name} returned shape {new.shape}; expected {x.shape}"
                )
            x = np.array(new, x.dtype)
        if self.tape is not None and name not in self.unrecorded:
            self.tape[name] = x.copy() if copy else x
        return x

    def dropout(self, name: str, x: np.ndarray, p: float) -> np.ndarray:  # [...] -> [...]
        """In training, zero each element with probability p and multiply the others by 1 / (1 - p).

        The factors go on the tape as NAME.kept, for the backward pass.
        """
        if self.rng is None or p == 0:
            return x
        is_kept = self.rng.random(x.shape, np.float32) >= p
        factors = np.multiply(is_kept, 1 / (1 - p), dtype=x.dtype)
        return x * self.tap(f"{name}.kept", factors)
