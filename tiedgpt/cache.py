"""What attention remembers: each token's keys and values, so that no token is read twice.

A long text is read in pieces, several at once, by as many threads. All that a piece needs of those before it
is, in each layer, their keys and values: there it waits until it has them.
"""

from threading import Event
from typing import Any

import numpy as np

from .config import Config
from .machine import aligned


class KVCache:
    """The keys and values of the tokens read so far: [L, B, H, capacity, K], the first `length` filled."""

    def __init__(self, config: Config, batch: int, capacity: int, dtype: Any) -> None:
        shape = (config.n_layer, batch, config.n_head, capacity, config.head_width)
        self.keys = aligned(shape, dtype)
        self.values = aligned(shape, dtype)
        self.config = config
        self.batch = batch
        self.capacity = capacity
        self.length = 0

    def extend(self, layer: int, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Append a layer's new keys and values [B, H, T, K]; return all of them [B, H, S, K]."""
        end = self.length + k.shape[2]
        self.keys[layer, :, :, self.length : end] = k
        self.values[layer, :, :, self.length : end] = v
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def repeat(self, batch: int) -> "KVCache":
        """A cache for `batch` sequences that all begin as this one's only sequence does."""
        copies = KVCache(self.config, batch, self.capacity, self.keys.dtype)
        copies.keys[..., : self.length, :] = self.keys[..., : self.length, :]
        copies.values[..., : self.length, :] = self.values[..., : self.length, :]
        copies.length = self.length
        return copies


class Piece(KVCache):
    """A piece of a cache that one thread fills while others fill those before and after it.

    To a forward pass it is a cache that holds all that comes before the piece; `extend` waits until it does.
    """

    def __init__(self, cache: KVCache, start: int, before: "Piece | None") -> None:
        vars(self).update(vars(cache))  # all is the cache's own, but the length
        self.length = start
        self._before = before
        self._filled = [Event() for _ in range(self.config.n_layer)]  # from position 0 to the piece's end
        self._given_up = False

    def extend(self, layer: int, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        extended = super().extend(layer, k, v)
        if self._before is not None:
            self._before._filled[layer].wait()
        if self._given_up:
            raise RuntimeError("another piece failed, or the user did not want to wait")
        self._filled[layer].set()
        return extended

    def give_up(self) -> None:
        """Let the thread that fills this piece end at its next layer, and none wait for it."""
        self._given_up = True
        for filled in self._filled:
            filled.set()
