"""Where arrays lie in memory, and whether freed memory is kept."""

import ctypes
import math
from typing import Any, Literal

import numpy as np

# glibc's names for what mallopt sets, from malloc.h
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8

CACHE_LINE = 64  # bytes


def aligned(shape: tuple[int, ...], dtype: Any, order: Any = "C") -> np.ndarray:
    """An array of zeros that starts at a cache line.

    NumPy's arrays start 16 bytes after one, so each load of 64 bytes touches two lines. For weights, that
    costs 3 to 10 % of the time of a token.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.zeros(size + CACHE_LINE, np.uint8)  # takes no time: the system gives zeroed pages
    start = -memory.__array_interface__["data"][0] % CACHE_LINE
    return memory[start : start + size].view(dtype).reshape(shape, order=order)


def empty_weight(name: str, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array for a parameter, in which the weights of one output are side by side in memory.

    Weights [in, out] of the blocks are in column order; wte and W_U, which have a row for each token, are in
    row order. A token takes the same time in either order, and few rows (products.py) take half as long as
    with all matrices in row order.
    """
    return aligned(shape, dtype, weight_order(name, shape))


def weight_order(name: str, shape: tuple[int, ...]) -> Literal["C", "F"]:
    """The memory order of a parameter."""
    in_block = len(shape) == 2 and "c_" in name  # c_attn, c_fc, c_proj
    return "F" if in_block else "C"


def keep_freed_memory() -> None:
    """Make glibc keep the memory of freed arrays for the next arrays, in the whole process, from now on.

    Each training step makes and frees the same arrays. glibc would return their memory to the system, and
    getting it back page by page costs a fifth of a step.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return
    mallopt(M_MMAP_THRESHOLD, 32 * 2**20)  # the largest value that is allowed
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    mallopt(M_ARENA_MAX, 1)  # one arena: those of other threads always return memory
