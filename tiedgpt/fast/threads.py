"""How many threads share which work.

NumPy passes matrix products to BLAS, which uses all cores, and runs everything else on one core. On
two cores, "everything else" takes a quarter of the time to read a text with GPT-2 124M, and half of
it with a small model. So on up to MAX_THREADS cores, Python threads share the work, and each
computes its own products.
"""

import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from threading import main_thread
from typing import Any

import numpy as np

from . import blas

WIDE = 640  # from this n_embd on, training is faster when only BLAS uses threads
# Per thread. With fewer, a thread's products are too small: two threads take 1.1 of the time that
# BLAS's own take for a text of 96 tokens on a Xeon with AVX-512, and 0.98 for 128. With OpenBLAS's
# kernels for AVX2 it is 1.0 and 0.94.
MIN_TOKENS = 64
MAX_THREADS = 4  # Python's own code runs on one core at a time
PoolMap = Callable[..., Iterator[Any]]  # a `map` that several threads share
LOGIT_ROWS = 256  # tokens whose logits a thread computes at once: two arrays of 51 MB for GPT-2


def reading_threads() -> int:
    """How many Python threads share a text: one for each thread of BLAS, or one in all.

    It is one if BLAS has more than MAX_THREADS threads, because MAX_THREADS Python threads would
    leave too many cores idle. It is one with a BLAS other than OpenBLAS, whose threads cannot be
    limited from here. It is one after the end of the main thread, because Python starts no thread
    then.
    """
    blas_threads = blas.blas_threads()
    if blas_threads is None or blas_threads > MAX_THREADS or not main_thread().is_alive():
        return 1
    return blas_threads


def split_work(rows: int, most_rows: int, tokens: int) -> tuple[int, int]:
    """How many threads share the rows of a text or batch, and how many rows are in a piece.

    The rows have `tokens` tokens in all. A piece has at most `most_rows`, and each thread gets the
    same number of pieces. Either all threads are used or one: while several Python threads run,
    BLAS has one thread, so a core without a Python thread would be idle.
    """
    threads = 1 if tokens < MIN_TOKENS else reading_threads()
    if tokens < MIN_TOKENS * threads:
        threads = 1
    # There are as few pieces as possible, with equally many rows in each (the last may have fewer).
    pieces_per_thread = math.ceil(rows / (threads * most_rows))
    pieces = threads * pieces_per_thread
    return threads, math.ceil(rows / pieces)


@contextmanager
def thread_map(threads: int) -> Iterator[PoolMap]:
    """A `map` that runs on several threads, while BLAS has one. For one thread it is Python's own.

    The caller's np.errstate holds in all threads. If the `with` block fails, calls that have not
    begun are dropped.
    """
    if threads == 1:
        yield map
        return

    def map_on_pool(function: Callable[..., Any], *iterables: Any) -> Iterator[Any]:
        # A thread does not inherit np.errstate from the one that starts it.
        with_errstate_of_caller = np.errstate(**np.geterr())(function)
        return pool_map(with_errstate_of_caller, *iterables)

    with blas.one_blas_thread(), thread_pool(threads) as pool_map:
        yield map_on_pool


@contextmanager
def thread_pool(threads: int) -> Iterator[PoolMap]:
    """The `map` of a pool of threads. If the `with` block fails, calls not begun are dropped.

    When the main thread ends, Python closes all pools, and starts no thread any more. From then on
    the calls run in the thread that asks for their results.
    """
    try:
        from concurrent.futures import ThreadPoolExecutor
    except RuntimeError:  # its module cannot be imported either, after the end of the main thread
        yield map
        return

    def map_on_pool(function: Callable[..., Any], *iterables: Any) -> Iterator[Any]:
        get_results = []  # one function for each call
        for arguments in zip(*iterables, strict=False):
            try:
                get_result = pool.submit(function, *arguments).result
            except RuntimeError:  # the pool is closed
                get_result = partial(function, *arguments)
            get_results.append(get_result)
        return (get_result() for get_result in get_results)

    with ThreadPoolExecutor(threads) as pool:
        try:
            yield map_on_pool
        finally:
            pool.shutdown(cancel_futures=True)


def training_threads(n_embd: int) -> int:
    """How many Python threads share a training batch.

    One per core for a small model. In a wide model most of the work is matrix products: BLAS runs
    them on all cores, and one thread needs memory for one gradient only.
    """
    if n_embd >= WIDE or blas.blas_threads() is None:
        return 1
    return min(MAX_THREADS, cores())


def cores() -> int:
    """How many processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # on Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
