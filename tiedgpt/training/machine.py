"""Settings of the machine under NumPy, which decide how fast small models train.

Both reach below NumPy, by ctypes, and where they find nothing to set, nothing is set.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

# glibc's names for what mallopt sets, from malloc.h
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8

WIDE = 640  # n_embd
MOST = 4  # threads: Python itself runs on one core at a time


def keep_freed_memory() -> None:
    """Tell the C library to keep the memory of arrays that are freed, for the next ones.

    A step makes and frees the same arrays as the step before. glibc would give their memory back to the
    system after each, and fetching it again, page by page, costs a fifth of a step. This holds for the whole
    process from here on.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return
    mallopt(M_MMAP_THRESHOLD, 32 * 2**20)  # as large as it may be
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    mallopt(M_ARENA_MAX, 1)  # or threads would have memory of their own, which is always given back


@cache
def openblas() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """What gets and sets the number of threads of the OpenBLAS in NumPy's wheels; None if there is none."""
    package = Path(np.__path__[0])
    for path in [*package.parent.glob("numpy.libs/*openblas*"), *package.glob(".dylibs/*openblas*")]:
        try:
            library: Any = ctypes.CDLL(str(path))
        except OSError:
            continue
        for prefix in ("scipy_openblas", "openblas"):  # NumPy 2, NumPy 1
            get = getattr(library, f"{prefix}_get_num_threads64_", None)
            if get is not None:
                return get, getattr(library, f"{prefix}_set_num_threads64_")
    return None


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let each thread of ours compute its own products; BLAS would let them wait for each other.

    Meanwhile BLAS has one thread for the whole process.
    """
    blas = openblas()
    if blas is None:
        yield
        return
    get, set_ = blas
    before = get()
    set_(1)
    try:
        yield
    finally:
        set_(before)


def default_threads(n_embd: int) -> int:
    """How many threads should share a batch.

    NumPy computes everything but products on one core, which for a small model is half the work; so each
    core gets its share of the batch. In a wide model products are nearly all of it, and BLAS spreads them by
    itself, without a gradient for each thread.
    """
    if n_embd >= WIDE or openblas() is None:
        return 1
    return min(MOST, cores())


def cores() -> int:
    """How many processor cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux
    return len(affinity(0)) if affinity else os.cpu_count() or 1
