"""The OpenBLAS in NumPy's wheels: its thread count and its kernels, called with ctypes.

With another BLAS these functions do nothing, or say so by returning None.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

_lock = Lock()
# Each active one_blas_thread -> BLAS's thread count before the first of them.
_saved: dict[object, int] = {}


@cache
def openblas(function: str) -> Any:
    """A function of the OpenBLAS in NumPy's wheels, such as "get_num_threads". None with another
    BLAS."""
    package = Path(np.__path__[0])
    for path in [
        *package.parent.glob("numpy.libs/*openblas*"),
        *package.glob(".dylibs/*openblas*"),
    ]:
        with suppress(OSError):
            library = ctypes.CDLL(str(path))
            for prefix in ("scipy_openblas", "openblas"):  # NumPy 2, NumPy 1
                if found := getattr(library, f"{prefix}_{function}64_", None):
                    return found
    return None


def single_thread() -> None:
    """Give BLAS one thread from now on, because the number of threads changes the rounding."""
    if set_threads := openblas("set_num_threads"):
        set_threads(1)


def blas_threads() -> int | None:
    """The thread count of NumPy's OpenBLAS outside of one_blas_thread. None with another BLAS."""
    if not (get_threads := openblas("get_num_threads")):
        return None
    with _lock:
        return next(iter(_saved.values())) if _saved else get_threads()


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Give BLAS one thread, for the whole process, until the last such context ends.

    Python threads that share work need this: with more BLAS threads, their products wait for each
    other.
    """
    get_threads, set_threads = openblas("get_num_threads"), openblas("set_num_threads")
    if not get_threads:
        yield
        return
    context = object()

    def end() -> None:
        with _lock:
            if len(_saved) == 1 and context in _saved:
                set_threads(_saved[context])
            _saved.pop(context, None)

    try:
        with _lock:
            _saved[context] = next(iter(_saved.values())) if _saved else get_threads()
            set_threads(1)
        yield
    finally:
        try:
            end()
        except KeyboardInterrupt:  # in the middle of `end`, which can be repeated
            end()
            raise


@cache
def has_small_kernels() -> bool:
    """Whether this is an OpenBLAS that multiplies small matrices without packing them: x86 with
    AVX-512."""
    if not (name := openblas("get_corename")):
        return False
    name.restype = ctypes.c_char_p
    return name() in (b"SkylakeX", b"Cooperlake", b"Sapphirerapids")


def is_limited() -> bool:
    """Whether BLAS has one thread now, inside one_blas_thread."""
    return bool(_saved)


def _after_fork() -> None:
    """In a forked process no other thread holds the lock or is inside one_blas_thread."""
    global _lock
    _lock = Lock()
    if _saved:
        openblas("set_num_threads")(next(iter(_saved.values())))
    _saved.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
