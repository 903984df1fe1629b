"""Where arrays lie in memory."""

import math
from typing import Any

import numpy as np

CACHE_LINE = 64  # bytes


def aligned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An array of zeros that starts at a cache line.

    NumPy's arrays start 16 bytes after one, so each load of 64 bytes touches two lines.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    # The zeros take no time, because the system gives zeroed pages. CACHE_LINE more bytes are room
    # to move the start.
    memory = np.zeros(size + CACHE_LINE, np.uint8)
    address = memory.ctypes.data
    start = -address % CACHE_LINE  # bytes from there to the next cache line
    return memory[start : start + size].view(dtype).reshape(shape)
