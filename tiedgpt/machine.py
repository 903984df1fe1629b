"""Memory layout and threads, for speed. They change results by rounding at most.

NumPy passes matrix products to BLAS, which uses all cores, and runs everything else on one core. On two
cores, "everything else" takes a quarter of the time to read a text with GPT-2 124M, and half of it with a
small model. So on up to MAX_THREADS cores, Python threads share the work, and each computes its own products.

`openblas` and `keep_freed_memory` call C libraries with ctypes. If a library is missing they do nothing.
"""

import ctypes
import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from pathlib import Path
from queue import SimpleQueue
from threading import Lock, Thread, main_thread
from typing import Any, Literal

import numpy as np

# glibc's names for what mallopt sets, from malloc.h
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8

CACHE_LINE = 64  # bytes
WIDE = 640  # from this n_embd on, training is faster when only BLAS uses threads
MIN_TOKENS = 128  # per thread: with fewer, starting threads costs more than it saves
MAX_THREADS = 4  # Python's own code runs on one core at a time

_lock = Lock()
_saved: list[int] = []  # BLAS's thread count before the first one_blas_thread, once per active context


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


@cache
def _openblas_function(name: str) -> Any:
    """A function of the OpenBLAS in NumPy's wheels, or None with another BLAS."""
    package = Path(np.__path__[0])
    for path in [*package.parent.glob("numpy.libs/*openblas*"), *package.glob(".dylibs/*openblas*")]:
        try:
            library: Any = ctypes.CDLL(str(path))
        except OSError:
            continue
        for prefix in ("scipy_openblas", "openblas"):  # NumPy 2, NumPy 1
            function = getattr(library, f"{prefix}_{name}64_", None)
            if function is not None:
                return function
    return None


@cache
def openblas() -> tuple[Callable[[], int], Callable[[int], None]] | None:
    """The functions that get and set the thread count of NumPy's OpenBLAS. None with another BLAS."""
    get = _openblas_function("get_num_threads")
    return None if get is None else (get, _openblas_function("set_num_threads"))


def blas_threads() -> int | None:
    """The thread count of NumPy's OpenBLAS outside of one_blas_thread. None with another BLAS."""
    blas = openblas()
    if blas is None:
        return None
    with _lock:
        return _saved[0] if _saved else blas[0]()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Give BLAS one thread, for the whole process, until the last such context ends.

    Python threads that share work need this: with more BLAS threads, their products wait for each other.
    """
    blas = openblas()
    if blas is None:
        yield
        return
    get, set_ = blas
    with _lock:
        _saved.append(_saved[0] if _saved else get())
        set_(1)
    try:
        yield
    finally:
        with _lock:
            before = _saved.pop()
            if not _saved:
                set_(before)


@cache
def has_small_kernels() -> bool:
    """Whether this is an OpenBLAS that multiplies small matrices without packing them: x86 with AVX-512."""
    name = _openblas_function("get_corename")
    if name is None:
        return False
    name.restype = ctypes.c_char_p
    return name() in (b"SkylakeX", b"Cooperlake", b"Sapphirerapids")


class _SecondThread:
    """A thread that waits for work. Handing it over takes some 20 microseconds, less than a pool takes."""

    def __init__(self) -> None:
        self.free = Lock()
        self.work: SimpleQueue[tuple[Callable[[], Any], SimpleQueue[BaseException | None]]] = SimpleQueue()
        Thread(target=self._run, daemon=True).start()

    def start(self, function: Callable[[], Any]) -> Callable[[], BaseException | None]:
        """Call `function` in the thread, with the caller's np.errstate. The result waits for its error.

        Each call has its own queue: after a Ctrl-C during the wait, the next call must not get this answer.
        """
        errors = np.geterr()

        def work() -> None:
            with np.errstate(**errors):
                function()

        done: SimpleQueue[BaseException | None] = SimpleQueue()
        self.work.put((work, done))
        return done.get

    def _run(self) -> None:
        while True:
            function, done = self.work.get()
            try:
                function()
                done.put(None)
            except BaseException as error:
                done.put(error)
            del function, done  # or the function's arrays would live until the next call


@cache
def _second_thread() -> _SecondThread:
    return _SecondThread()


def _after_fork() -> None:
    """A forked process has only the thread that forked: no second thread, and none that holds the lock."""
    global _lock
    _second_thread.cache_clear()
    _lock = Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def in_two_threads(first: Callable[[], Any], second: Callable[[], Any]) -> None:
    """Call both, at the same time unless another call does so. BLAS then uses one thread for each."""
    if not _saved and reading_threads() > 1:
        helper = _second_thread()
        if helper.free.acquire(blocking=False):
            try:
                with one_blas_thread():
                    wait = helper.start(second)
                    try:
                        first()
                    finally:
                        error = wait()
                if error is not None:
                    raise error
                return
            finally:
                helper.free.release()
    first()
    second()


def reading_threads() -> int:
    """How many Python threads share a text: BLAS's usual thread count, or 1 if that exceeds MAX_THREADS.

    With more cores, MAX_THREADS threads would leave too many idle. On two cores, sharing takes a fifth less
    time; the limit of four was not measured. With a BLAS other than OpenBLAS it is 1, because its threads
    cannot be limited from here.
    """
    n = blas_threads()
    if n is None or not main_thread().is_alive():  # after the main thread has ended, no thread can start
        return 1
    return n if n <= MAX_THREADS else 1


def split_work(n: int, most: int, tokens: int) -> tuple[int, int]:
    """The number of threads for n rows (`tokens` in all), and the rows of a piece, at most `most`.

    Each thread gets the same number of pieces. Either all threads are used or one: BLAS uses one thread while
    they run, so a core without a Python thread would be idle.
    """
    threads = reading_threads()
    if tokens < MIN_TOKENS * threads:
        threads = 1
    rounds = math.ceil(n / (threads * most))
    return threads, math.ceil(n / (threads * rounds))


@contextmanager
def thread_map(threads: int) -> Iterator[Callable[..., Iterator[Any]]]:
    """A `map` that runs on several threads. For one thread it is Python's own `map`.

    The caller's np.errstate holds in all threads. If the block fails, calls that have not begun are dropped.
    """
    if threads == 1:
        yield map
        return
    errors = np.geterr()  # new threads do not inherit it

    def work(function: Callable[..., Any], *args: Any) -> Any:
        with np.errstate(**errors):
            return function(*args)

    with one_blas_thread(), ThreadPoolExecutor(threads) as pool:
        try:
            yield lambda function, *iterables: pool.map(partial(work, function), *iterables)
        finally:
            pool.shutdown(cancel_futures=True)


def training_threads(n_embd: int) -> int:
    """How many Python threads share a training batch.

    One per core for a small model. In a wide model most of the work is matrix products: BLAS runs them on all
    cores, and one thread needs memory for one gradient only.
    """
    if n_embd >= WIDE or openblas() is None:
        return 1
    return min(MAX_THREADS, cores())


def cores() -> int:
    """How many processor cores this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)  # on Linux
    return len(affinity(0)) if affinity else os.cpu_count() or 1
