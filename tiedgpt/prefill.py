"""Read long texts in pieces, on several threads. The results are those of one pass, up to rounding.

Pieces are faster than one pass: the arrays of a piece are small, and softmax, gelu and layer norms, which
NumPy runs on one core, run on all threads. In each layer, a piece needs only the keys and values of the
pieces before it. So its thread waits in each layer until the piece before has computed them.
"""

from collections.abc import Callable
from threading import Event
from typing import Any

import numpy as np

from .fast.threads import split_work, thread_map
from .run import KVCache, Run

PIECE_TOKENS = 512  # the most tokens of each sequence in a piece

Forward = Callable[..., np.ndarray]  # ids [B, T], run=run -> [B, T, D]


class CachePiece(KVCache):
    """The part of a cache that one thread fills, while other threads fill the parts before and after it."""

    def __init__(self, cache: KVCache, offset: int, before: "CachePiece | None") -> None:
        self.offset = offset  # of the piece's first token in the ids
        self.length = cache.length + offset  # tokens before this piece
        self.cache = cache
        self.before = before
        # Of each layer: set when its cache is complete up to this piece's end.
        self.filled = [Event() for _ in range(cache.config.n_layer)]
        self.cancelled = False

    def extend(self, layer: int, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As KVCache.extend. Waits until the piece before has filled this layer."""
        extended = self.cache.write(layer, self.length, k, v)
        if self.before is not None:
            self.before.filled[layer].wait()
        if self.cancelled:
            raise RuntimeError("prefill was cancelled")
        self.filled[layer].set()
        return extended

    def cancel(self) -> None:
        """Make this piece's thread stop at its next layer, and release the threads that wait for it."""
        self.cancelled = True
        for filled in self.filled:
            filled.set()


def prefill(
    forward: Forward, ids: np.ndarray, run: Run, dtype: Any, progress: Callable[[int], Any] | None
) -> np.ndarray:  # [B, T] -> [B, T, D]
    """`forward(ids, run=run)`, in pieces if there are many ids; in one pass with a tape or with edits.

    Ids are many if a sequence has more than PIECE_TOKENS, or all together have MIN_TOKENS for each
    thread. Meanwhile BLAS uses one thread in the whole process. `progress` gets the length of each piece.
    """
    B, T = ids.shape
    threads, step = split_work(T, PIECE_TOKENS, B * T)
    if step >= T or run.tape is not None or run.edits:
        final = forward(ids, run=run)
        if progress:
            progress(T)
        return final

    cache = run.cache if isinstance(run.cache, KVCache) else KVCache(run.config, B, T, dtype)
    pieces: list[CachePiece] = []
    for start in range(0, T, step):
        pieces.append(CachePiece(cache, start, pieces[-1] if pieces else None))

    def read(piece: CachePiece) -> np.ndarray:
        return forward(ids[:, piece.offset : piece.offset + step], run=Run(run.config, piece))

    finals = []
    with thread_map(threads) as map_:
        try:
            for final in map_(read, pieces):
                finals.append(final)
                if progress:
                    progress(final.shape[1])
        except BaseException:  # Ctrl-C included
            for piece in reversed(pieces):
                piece.cancel()
            raise
    return np.concatenate(finals, axis=1)
