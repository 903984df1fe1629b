"""Threads: how many share which work, and how many BLAS has meanwhile.

NumPy passes matrix products to BLAS, which uses all cores, and runs everything else on one core. On
two cores, "everything else" takes a quarter of the time to read a text with GPT-2 124M, and half of
it with a small model. So on up to MAX_THREADS cores, Python threads share the work, and each
computes its own products. This changes results by rounding at most.
"""

import ctypes
import math
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from threading import Lock, main_thread
from typing import Any

import numpy as np

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
    count = blas_threads()
    if count is None or count > MAX_THREADS or not main_thread().is_alive():
        return 1
    return count


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

    with one_blas_thread(), thread_pool(threads) as pool_map:
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
    if n_embd >= WIDE:
        return 1
    if blas_threads() is None:  # BLAS's threads cannot be limited, and would compete with Python's
        return 1
    return min(MAX_THREADS, cores())


def cores() -> int:
    """How many processor cores this process may use."""
    if hasattr(os, "sched_getaffinity"):  # on Linux
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


# ---- The threads of BLAS: of the OpenBLAS in NumPy's wheels ----


@dataclass
class RunningBlocks:
    """Which `with one_blas_thread()` blocks are running, in any Python thread.

    BLAS has one thread as long as a block runs. `usual_threads` is the thread count that BLAS had
    before the first block, and gets again after the last.
    """

    lock: Any = field(default_factory=Lock)
    blocks: set[object] = field(default_factory=set)  # one object for each block that is running
    usual_threads: int = 0


_running = RunningBlocks()


@cache
def openblas(function: str) -> Any:
    """A function of the OpenBLAS that NumPy's wheel brings and has loaded, as "get_num_threads".

    It is called with ctypes. None with another BLAS.
    """
    package = Path(np.__path__[0])
    linux_and_windows = package.parent.glob("numpy.libs/*openblas*")
    macos = package.glob(".dylibs/*openblas*")
    for path in [*linux_and_windows, *macos]:
        with suppress(OSError):  # a file that is no library
            library = ctypes.CDLL(str(path))
            # NumPy 2 has the first prefix, NumPy 1 the second. All names end with "64_", because
            # both builds have 64-bit integers.
            for prefix in ("scipy_openblas", "openblas"):
                name = f"{prefix}_{function}64_"
                if hasattr(library, name):
                    return getattr(library, name)
    return None


def single_thread() -> None:
    """Give BLAS one thread from now on, because the number of threads changes the rounding."""
    set_threads = openblas("set_num_threads")
    if set_threads is not None:
        set_threads(1)


def blas_threads() -> int | None:
    """The thread count of NumPy's OpenBLAS outside of one_blas_thread. None with another BLAS."""
    get_threads = openblas("get_num_threads")
    if get_threads is None:
        return None
    with _running.lock:
        if _running.blocks:  # BLAS itself has one thread now
            return _running.usual_threads
        return get_threads()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Give BLAS one thread, for the whole process, until the last running `with one_blas_thread()`
    ends.

    Python threads that share work need this: with more BLAS threads, their products wait for each
    other.
    """
    if openblas("get_num_threads") is None:
        yield
        return

    block = object()  # stands for this `with` block in _running.blocks
    try:
        # This is inside of `try`, because Ctrl-C may come in the middle of it.
        with _running.lock:
            if not _running.blocks:
                _running.usual_threads = openblas("get_num_threads")()
            _running.blocks.add(block)
            openblas("set_num_threads")(1)
        yield
    finally:
        try:
            _end(block)
        except KeyboardInterrupt:  # Ctrl-C in the middle of _end, which can be repeated
            _end(block)
            raise


def _end(block: object) -> None:
    """Leave a block of one_blas_thread: BLAS gets its threads again, if this is the last block.

    The caller has checked that BLAS is OpenBLAS.
    """
    with _running.lock:
        is_last = _running.blocks == {block}
        if is_last:
            openblas("set_num_threads")(_running.usual_threads)
        # This comes last. After a Ctrl-C before it, the block is still there, and _end can be
        # repeated.
        _running.blocks.discard(block)


def _after_fork() -> None:
    """In a forked process, end the blocks of one_blas_thread that were running in the parent.

    The threads in which they ran do not exist in the new process, and the lock of one of them would
    never be released.
    """
    if _running.blocks:  # there are blocks with OpenBLAS only
        openblas("set_num_threads")(_running.usual_threads)
    _running.lock = Lock()
    _running.blocks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
