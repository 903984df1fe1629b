"""What a forward pass needs besides weights: KV cache, tape of activations, edits, dropout.

Each part is optional. A method of `Run` whose part is absent returns its argument unchanged. So the
functions of model.py are the same for logits, generation, training and study.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..errors import ArgumentError, short_repr
from ..fast.memory import aligned
from .config import Config
from .ops import dropout_mask

Tape = dict[str, np.ndarray]
Edits = Mapping[str, Callable[[np.ndarray], Any]]
OnProgress = (
    Callable[[int], Any] | None
)  # called with the number of tokens (or bytes, steps) just done
OVERWRITTEN = "attn.N.scores"  # softmax writes the pattern into the same memory
# Of a block, in the order of the forward pass: what a tape records and an edit replaces, and its
# shape.
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

    A tape also gets the logits, "B T V", which no edit replaces.

    >>> activation_shapes(Config(n_layer=0))
    {'embed': 'B T D', 'final': 'B T D'}
    """
    layers = range(config.n_layer)
    blocks = {
        name.replace("N", str(n)): shape for n in layers for name, shape in BLOCK_SHAPES.items()
    }
    return {"embed": "B T D", **blocks, "final": "B T D"}


def edited(x: np.ndarray, edit: Callable[[np.ndarray], Any], name: str) -> np.ndarray:
    """edit(x), with x's shape and dtype. It gets a copy, so it cannot change x."""
    returned = edit(x.copy())
    try:
        new = np.asarray(returned)
    except ValueError as error:  # lists of unequal lengths
        raise ArgumentError(f"the edit of {name} returned no array: {error}") from error
    if new.dtype.kind not in "fiub":
        raise ArgumentError(
            f"the edit of {name} returned no real numbers, but {short_repr(returned)}"
        )
    if new.shape != x.shape:
        raise ArgumentError(f"the edit of {name} returned shape {new.shape}; expected {x.shape}")
    return np.array(new, x.dtype)


class KVCache:
    """The keys and values of the tokens read so far: [L, B, H, capacity, K], the first `length`
    filled.

    `length` is an int, or an array [B] for sequences of unequal lengths. Entries after the end of a
    shorter sequence have no meaning: `hide_future` masks them until new tokens overwrite them.
    """

    def __init__(self, config: Config, batch: int, capacity: int, dtype: Any) -> None:
        shape = (config.n_layer, batch, config.n_head, capacity, config.head_width)
        self.keys, self.values = aligned(shape, dtype), aligned(shape, dtype)
        self.capacity = capacity
        self.length: int | np.ndarray = 0

    def extend(self, layer: int, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Add a layer's keys and values [B, H, T, K]; return those of all tokens so far [B, H, S,
        K].

        The caller increases `length` after the last layer.
        """
        start, T = self.length, k.shape[2]
        if isinstance(start, np.ndarray):
            end = int(start.max()) + T
            rows, positions = (
                np.arange(len(k))[:, None],
                start[:, None] + np.arange(T),
            )  # [B, 1], [B, T]
            self.keys[layer][rows, :, positions] = k.swapaxes(1, 2)  # [B, T, H, K]
            self.values[layer][rows, :, positions] = v.swapaxes(1, 2)
        else:
            end = start + T
            self.keys[layer, :, :, start:end] = k
            self.values[layer, :, :, start:end] = v
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def copy_rows(self, rows: Any, other: "KVCache") -> None:
        """Copy the keys and values of `other` to the start of these rows. `length` does not change.

        `other` has as many sequences as there are rows, or one, which is copied to each of them.
        """
        n = int(np.max(other.length))
        self.keys[:, rows, :, :n] = other.keys[:, :, :, :n]
        self.values[:, rows, :, :n] = other.values[:, :, :, :n]

    def drop_last(self, counts: list[int]) -> None:
        """Forget the last counts[b] tokens of each sequence b."""
        if len(set(counts)) == 1:
            self.length = self.length - counts[0]
        else:
            self.length = self.length - np.array(counts)


@dataclass
class Run:
    """One forward pass through a model of `config`."""

    config: Config
    cache: KVCache | None = None
    tape: Tape | None = None
    rng: np.random.Generator | None = None  # for dropout; given in training only
    edits: Edits | None = None
    unrecorded: tuple[str, ...] = ()  # activations that are not needed on the tape
    layer: int = 0  # the number of the block that is running

    def __post_init__(self) -> None:
        if self.tape is not None and not isinstance(self.tape, dict):
            raise ArgumentError(f"tape must be a dict to write to, got {short_repr(self.tape)}")
        # The first token's position; [B] if they differ.
        self.start = 0 if self.cache is None else self.cache.length

    def positions(self, T: int) -> Any:
        """The positions of the tokens given, as an index into wpe."""
        if isinstance(self.start, np.ndarray):
            return self.start[:, None] + np.arange(T)  # [B, T]
        return slice(self.start, self.start + T)

    def name(self, name: str) -> str:
        """A name on the tape, with the layer's number for N: "attn.N.qkv" -> "attn.3.qkv"."""
        return name.replace(".N", f".{self.layer}")

    def tap(self, name: str, x: np.ndarray) -> np.ndarray:
        """Return x, or the edit of x if there is one. If there is a tape, record what is
        returned."""
        if self.edits and (edit := self.edits.get(self.name(name))):
            x = edited(x, edit, self.name(name))
        if self.tape is not None and name not in self.unrecorded:
            self.tape[self.name(name)] = x.copy() if name == OVERWRITTEN else x
        return x

    def taped(self, name: str) -> Any:
        """The activation that the tape has under `name`; None if there is none."""
        return None if self.tape is None else self.tape.get(self.name(name))

    def dropout(self, name: str, x: np.ndarray, p: float) -> np.ndarray:  # [...] -> [...]
        """In training, zero each element with probability p and multiply the others by 1 / (1 - p).

        The factors go on the tape as NAME.kept, for the backward pass.
        """
        if self.rng is None or p == 0:
            return x
        return x * self.tap(f"{name}.kept", dropout_mask(x.shape, p, x.dtype, self.rng))

    def redo_dropout(self, name: str, x: np.ndarray) -> np.ndarray:  # [...] -> [...]
        """Multiply x by the factors that `dropout` recorded. This is also the derivative of
        dropout."""
        kept = self.taped(f"{name}.kept")
        return x if kept is None else x * kept

    def extend_cache(self, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Add this layer's keys and values [B, H, T, K] to the cache; return all of them [B, H, S,
        K]."""
        return (k, v) if self.cache is None else self.cache.extend(self.layer, k, v)
