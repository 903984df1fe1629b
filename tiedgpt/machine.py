"""The machine under NumPy: where arrays lie in memory, memory that is kept, and threads.

NumPy leaves products to BLAS, which spreads each over all cores, and computes everything else on one. What is
not products takes a quarter of the time in which GPT-2 124M reads a text on two cores, and half of a small
model's. So on up to MOST cores threads of ours share the work instead, each with its own products.

`openblas` and `keep_freed_memory` reach below NumPy, by ctypes; what they do not find, they do not set.
"""

import ctypes
import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from threading import Lock, main_thread
from typing import Any

import numpy as np

# glibc's names for what mallopt sets, from malloc.h
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8

LINE = 64  # bytes, of the processor's cache
WIDE = 640  # n_embd from which BLAS alone trains faster
SHARE = 128  # tokens that are worth a thread, at least
MOST = 4  # threads: Python itself runs on one core at a time

_lock = Lock()
_before: list[int] = []  # for each who is in one_blas_thread now, BLAS's threads before the first came


def aligned(shape: tuple[int, ...], dtype: Any, order: Any = "C") -> np.ndarray:
    """An empty array that starts where a line of the processor's cache does.

    subtle: NumPy's own start 16 bytes after a line does, so that each load of 64 bytes touches two lines. Of
    weights, that makes a token take 3 to 10 % more time.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    memory = np.empty(size + LINE, np.uint8)
    start = -memory.__array_interface__["data"][0] % LINE
    return memory[start : start + size].view(dtype).reshape(shape, order=order)


def empty_weight(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """An empty array for a parameter: a tall or square matrix column by column, a wide one row by row.

    BLAS streams a matrix fastest along its longer axis. At batch 1, where reading the weights is all there is
    to do, a token takes an eighth less time than if every matrix lay row by row, or all but wte column by
    column.
    """
    is_tall = len(shape) == 2 and shape[0] >= shape[1]
    return aligned(shape, dtype, "F" if is_tall else "C")


def keep_freed_memory() -> None:
    """Tell the C library to keep the memory of arrays that are freed, for the next ones.

    A training step makes and frees the same arrays as the step before. glibc would give their memory back to
    the system after each, and fetching it again, page by page, costs a fifth of a step. This holds for the
    whole process from here on.
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

    Meanwhile BLAS has one thread for the whole process, until the last who asked for that has ended.
    """
    blas = openblas()
    if blas is None:
        yield
        return
    get, set_ = blas
    with _lock:
        _before.append(_before[0] if _before else get())
        set_(1)
    try:
        yield
    finally:
        with _lock:
            before = _before.pop()
            if not _before:
                set_(before)


def reading_threads() -> int:
    """How many threads of ours should share a text: as many as BLAS has when left alone, if at most MOST.

    Else one: so few of ours would leave too many of more cores idle (a guess: what was measured is two, where
    ours take a fifth less time). And a BLAS that is not OpenBLAS cannot be told to leave the cores to us.
    """
    blas = openblas()
    if blas is None or not main_thread().is_alive():  # after whose end Python starts no thread for a pool
        return 1
    get, _ = blas
    with _lock:
        n = _before[0] if _before else get()
    return n if n <= MOST else 1


def share(n: int, most: int, tokens: int) -> tuple[int, int]:
    """How threads share n tokens of each sequence, `tokens` in all: how many threads, and a piece's length.

    Each thread has as many pieces as another, of at most `most`. It is all threads or one: while ours work,
    BLAS has one thread, and a core that has none of ours is idle.
    """
    threads = reading_threads()
    if tokens < SHARE * threads:
        threads = 1
    rounds = math.ceil(n / (threads * most))
    return threads, math.ceil(n / (threads * rounds))


@contextmanager
def team(size: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """A `map` whose work threads share, each with its own products; for a team of one, Python's own.

    What NumPy does about overflow and the like is what the caller's np.errstate says. If the block fails,
    what has not begun never does.
    """
    if size == 1:
        yield map
        return
    errors = np.geterr()  # which new threads do not inherit

    def work(function: Callable[..., Any], *args: Any) -> Any:
        with np.errstate(**errors):
            return function(*args)

    with one_blas_thread(), ThreadPoolExecutor(size) as pool:
        try:
            yield lambda function, *iterables: pool.map(partial(work, function), *iterables)
        finally:
            pool.shutdown(cancel_futures=True)


def training_threads(n_embd: int) -> int:
    """How many threads should share a training batch.

    In a small model, each core gets its share. In a wide one products are most of the work, and BLAS spreads
    them by itself, without a gradient for each thread.
    """
    if n_embd >= WIDE or openblas() is None:
        return 1
    return min(MOST, cores())


def cores() -> int:
    """How many processor cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # Linux
    return len(affinity(0)) if affinity else os.cpu_count() or 1
