"""Read long prompts in pieces. The results are those of one pass, up to rounding.

`in_pieces` divides the tokens among threads. The arrays of a piece are small, and softmax, gelu and
layer norms, which NumPy runs on one core, run on all threads. In each layer, a piece needs only the
keys and values of the pieces before it. So its thread waits in each layer until the piece before
has computed them.

`in_query_blocks` divides the attention of a piece once more. The scores of a block stay in the
processor's cache, and the scores of keys that come after the block, which the mask would remove,
are not computed.
"""

from collections.abc import Callable
from functools import wraps
from threading import Event
from typing import Any

import numpy as np

from ..fast.threads import split_work, thread_map
from .run import KVCache, OnProgress, Run

PIECE_TOKENS = 512  # the most tokens of each sequence in a piece
QUERY_TOKENS = 128  # the most queries of a sequence in a block

Forward = Callable[
    [np.ndarray, dict[str, Any], Run], np.ndarray
]  # ids [B, T], tree, run -> [B, T, D]
Attend = Callable[
    [np.ndarray, np.ndarray, np.ndarray, Run], np.ndarray
]  # q, k, v, run -> [B, H, T, K]


def in_query_blocks(attend: Attend) -> Attend:
    """`attend` for a block of queries at a time, if there are many. With a tape or edits it is one
    call."""

    @wraps(attend)
    def attend_in_blocks(q: np.ndarray, k: np.ndarray, v: np.ndarray, run: Run) -> np.ndarray:
        T, S = q.shape[2], k.shape[2]
        if (
            T <= QUERY_TOKENS
            or run.tape is not None
            or run.edits
            or isinstance(run.start, np.ndarray)
        ):
            return attend(q, k, v, run)
        heads = np.empty_like(q)
        for start in range(0, T, QUERY_TOKENS):
            end = min(start + QUERY_TOKENS, T)
            keys = slice(S - T + end)  # those of the tokens before the block and in it
            heads[:, :, start:end] = attend(q[:, :, start:end], k[:, :, keys], v[:, :, keys], run)
        return heads

    return attend_in_blocks


class CachePiece(KVCache):
    """The part of a cache that one thread fills, while other threads fill the parts before and
    after it."""

    def __init__(self, cache: KVCache, offset: int, before: "CachePiece | None") -> None:
        self.keys, self.values = cache.keys, cache.values  # all pieces share them
        self.offset = offset  # of the piece's first token in the ids
        self.length = cache.length + offset  # tokens before this piece
        self.before = before
        # Of each layer: set when its keys and values are complete up to this piece's end.
        self.filled = [Event() for _ in cache.keys]
        self.cancelled = False

    def extend(self, layer: int, k: np.ndarray, v: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As KVCache.extend. Waits until the piece before has filled this layer."""
        extended = super().extend(layer, k, v)
        if self.before is not None:
            self.before.filled[layer].wait()
        if self.cancelled:
            raise RuntimeError("prefill was cancelled")
        self.filled[layer].set()
        return extended

    def cancel(self) -> None:
        """Make this piece's thread stop at its next layer, and release the threads that wait for
        it."""
        self.cancelled = True
        for filled in self.filled:
            filled.set()


def in_pieces(
    forward: Forward, ids: np.ndarray, tree: dict[str, Any], run: Run, progress: OnProgress
) -> np.ndarray:  # [B, T] -> [B, T, D]
    """forward(ids, tree, run), in pieces if there are many tokens. With a tape or edits it is one
    call.

    Many means more than PIECE_TOKENS in a sequence, or MIN_TOKENS for each thread in the whole
    batch. `progress` gets the length of each piece.
    """
    B, T = ids.shape
    threads, step = split_work(T, PIECE_TOKENS, B * T)
    if step >= T or run.tape is not None or run.edits:
        final = forward(ids, tree, run)
        if progress:
            progress(T)
        return final

    cache = run.cache or KVCache(run.config, B, T, tree["wte"]["weight"].dtype)
    pieces: list[CachePiece] = []
    for start in range(0, T, step):
        pieces.append(CachePiece(cache, start, pieces[-1] if pieces else None))

    def read(piece: CachePiece) -> np.ndarray:
        return forward(ids[:, piece.offset : piece.offset + step], tree, Run(run.config, piece))

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
