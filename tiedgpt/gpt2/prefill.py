"""Read long prompts in pieces. The results are those of one pass, up to rounding.

`in_pieces` divides the tokens among threads. The arrays of a piece are small, and softmax, gelu and
layer norms, which NumPy runs on one core, run on all threads. In each layer, a piece needs only the
keys and values of the pieces before it. So its thread waits in each layer until the piece before
has computed them.
"""

from collections.abc import Callable
from threading import Event
from typing import Any

import numpy as np

from ..threads import split_work, thread_map
from .run import KVCache, OnProgress, Run

PIECE_TOKENS = 512  # the most tokens of each sequence in a piece

Array = np.ndarray
# (ids [B, T], tree, run) -> final [B, T, D]
Forward = Callable[[Array, dict[str, Any], Run], Array]


class CachePiece(KVCache):
    """The part of a cache that one thread fills, while others fill the parts beside it."""

    def __init__(self, cache: KVCache, offset: int, before: "CachePiece | None") -> None:
        self.keys = cache.keys  # all pieces share the arrays of the whole cache
        self.values = cache.values
        self.offset = offset  # where the piece begins in the ids
        self.length = cache.length + offset  # tokens before this piece
        self.before = before
        # The event of a layer is set when its keys and values are there up to this piece's end.
        self.filled = [Event() for layer in range(len(cache.keys))]
        self.cancelled = False

    def extend(  # k and v [B, H, T, K] -> [B, H, S, K]
        self, layer: int, k: Array, v: Array
    ) -> tuple[Array, Array]:
        """Add a layer's keys and values; return them for all tokens up to this piece's end.

        Waits until the piece before has filled this layer.
        """
        # These are views of the cache, which other threads fill: they are complete after the wait.
        extended = super().extend(layer, k, v)
        if self.before is not None:
            self.before.filled[layer].wait()
        # `cancel_all` ends the wait, too.
        if self.cancelled:
            raise RuntimeError("prefill was cancelled")
        self.filled[layer].set()
        return extended


def cancel_all(pieces: list[CachePiece]) -> None:
    """Make the thread of each piece stop at its next layer, or where it waits for another piece."""
    # A cancelled piece releases the one after it, which must be cancelled by then. So the last
    # piece is cancelled first.
    for piece in reversed(pieces):
        piece.cancelled = True
        for filled in piece.filled:
            filled.set()


def in_pieces(  # [B, T] -> [B, T, D]
    forward: Forward, ids: Array, tree: dict[str, Any], run: Run, progress: OnProgress
) -> Array:
    """forward(ids, tree, run), in pieces if there are many tokens.

    A sequence of more than PIECE_TOKENS tokens is read in pieces. So is a shorter one, if the whole
    batch has enough tokens to keep several threads busy. With a tape or edits it is one call,
    because they are about the activations of all tokens. `progress` is called with the length of
    each piece.
    """
    B, T = ids.shape
    threads, piece_tokens = split_work(rows=T, most_rows=PIECE_TOKENS, tokens=B * T)
    is_one_piece = piece_tokens >= T
    if is_one_piece or run.tape is not None or run.edits:
        final = forward(ids, tree, run)
        if progress:
            progress(T)
        return final

    # A piece reads the keys and values of the pieces before it from the cache.
    cache = run.cache
    if cache is None:
        cache = KVCache(run.config, B, T, tree["wte"]["weight"].dtype)
    pieces: list[CachePiece] = []
    before = None
    for offset in range(0, T, piece_tokens):
        before = CachePiece(cache, offset, before)
        pieces.append(before)

    def read(piece: CachePiece) -> Array:
        piece_ids = ids[:, piece.offset : piece.offset + piece_tokens]
        return forward(piece_ids, tree, Run(run.config, piece))

    finals = []
    with thread_map(threads) as map_in_threads:
        try:
            for final in map_in_threads(read, pieces):
                finals.append(final)
                if progress:
                    progress(final.shape[1])
        except BaseException:  # Ctrl-C included
            cancel_all(pieces)
            raise
    return np.concatenate(finals, axis=1)
