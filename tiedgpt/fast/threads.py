"""How many threads share which work.

NumPy passes matrix products to BLAS, which uses all cores, and runs everything else on one core. On
two cores, "everything else" takes a quarter of the time to read a text with GPT-2 124M, and half of
it with a small model. So on up to MAX_THREADS cores, Python threads share the work, and each
computes its own products.
"""

import math
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache
from queue import SimpleQueue
from threading import Thread, main_thread
from typing import Any

import numpy as np

from . import blas

WIDE = 640  # from this n_embd on, training is faster when only BLAS uses threads
MIN_TOKENS = 40  # per thread: with fewer, BLAS's own threads are faster on idle cores
MAX_THREADS = 4  # Python's own code runs on one core at a time
LOGIT_ROWS = 256  # tokens whose logits a thread computes at once: two arrays of 51 MB for GPT-2


def _with_errstate(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with the np.errstate of here and now, which another thread does not inherit."""
    return np.errstate(**np.geterr())(function)


@cache
def _second_thread() -> SimpleQueue[Any]:
    """The queue of a thread that calls functions: (function, queue for its error). A pool would be
    slower."""
    queue: SimpleQueue[Any] = SimpleQueue()

    def work() -> None:
        while True:
            function, done = queue.get()
            try:
                function()
                done.put(None)
            except BaseException as error:
                done.put(error)
            del function, done  # or the function's arrays would live until the next call

    Thread(target=work, daemon=True).start()
    return queue


if hasattr(os, "register_at_fork"):  # a forked process has only the thread that forked
    os.register_at_fork(after_in_child=_second_thread.cache_clear)


def in_two_threads(first: Callable[[], Any], second: Callable[[], Any]) -> None:
    """Call both at the same time, with one BLAS thread for each; in turn if BLAS has one thread
    already."""
    if blas.is_limited() or reading_threads() == 1:
        first()
        second()
        return
    # For this call only: after a Ctrl-C during the wait, the next call must not get this answer.
    done: SimpleQueue[BaseException | None] = SimpleQueue()
    with blas.one_blas_thread():
        _second_thread().put((_with_errstate(second), done))
        try:
            first()
        finally:
            error = done.get()
    if error is not None:
        raise error


def reading_threads() -> int:
    """How many Python threads share a text: BLAS's usual thread count, or 1 if that exceeds
    MAX_THREADS.

    With more cores, MAX_THREADS threads would leave too many idle. With a BLAS other than OpenBLAS
    it is 1, because its threads cannot be limited from here.
    """
    n = blas.blas_threads()
    if (
        n is None or not main_thread().is_alive()
    ):  # after the main thread has ended, no thread can start
        return 1
    return n if n <= MAX_THREADS else 1


def split_work(n: int, most: int, tokens: int) -> tuple[int, int]:
    """The number of threads for n rows (`tokens` in all), and the rows of a piece, at most `most`.

    Each thread gets the same number of pieces. Either all threads are used or one: BLAS uses one
    thread while they run, so a core without a Python thread would be idle.
    """
    threads = reading_threads()
    if tokens < MIN_TOKENS * threads:
        threads = 1
    rounds = math.ceil(n / (threads * most))
    return threads, math.ceil(n / (threads * rounds))


@contextmanager
def thread_map(threads: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """A `map` that runs on several threads. For one thread it is Python's own `map`.

    The caller's np.errstate holds in all threads. If the block fails, calls that have not begun are
    dropped.
    """
    if threads == 1:
        yield map
        return
    with blas.one_blas_thread(), ThreadPoolExecutor(threads) as pool:
        try:
            yield lambda function, *iterables: pool.map(_with_errstate(function), *iterables)
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
    affinity = getattr(os, "sched_getaffinity", None)  # on Linux
    return len(affinity(0)) if affinity else os.cpu_count() or 1


@contextmanager
def ctrl_c_for_this_process_only() -> Iterator[None]:
    """Block SIGINT, which the terminal sends to all processes, in those that are started here and
    later.

    They inherit the block from the thread that starts them. The resource tracker of
    multiprocessing, which would unblock SIGINT in that thread, is started before.
    """
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    from multiprocessing import resource_tracker  # takes 10 ms

    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
