"""The OpenBLAS in NumPy's wheels: its thread count and its kernels, called with ctypes.

With another BLAS these functions do nothing, or say so by returning None.
"""

import ctypes
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

_lock = Lock()
# Each active one_blas_thread -> BLAS's thread count before the first of them.
_saved: dict[object, int] = {}


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


def single_thread() -> None:
    """Give BLAS one thread from now on, because the number of threads changes the rounding."""
    if (blas := openblas()) is not None:
        blas[1](1)


def blas_threads() -> int | None:
    """The thread count of NumPy's OpenBLAS outside of one_blas_thread. None with another BLAS."""
    blas = openblas()
    if blas is None:
        return None
    with _lock:
        return next(iter(_saved.values())) if _saved else blas[0]()


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
    context = object()

    def end() -> None:
        with _lock:
            if len(_saved) == 1 and context in _saved:
                set_(_saved[context])
            _saved.pop(context, None)

    try:
        with _lock:
            _saved[context] = next(iter(_saved.values())) if _saved else get()
            set_(1)
        yield
    finally:
        try:
            end()
        except KeyboardInterrupt:  # in the middle of `end`, which can be repeated
            end()
            raise


@cache
def has_small_kernels() -> bool:
    """Whether this is an OpenBLAS that multiplies small matrices without packing them: x86 with AVX-512."""
    name = _openblas_function("get_corename")
    if name is None:
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
    if _saved and (blas := openblas()) is not None:
        blas[1](next(iter(_saved.values())))
    _saved.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
