"""The OpenBLAS in NumPy's wheels: its thread count, set and asked for with ctypes.

With another BLAS these functions do nothing, or say so by returning None.
"""

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np


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

    None with another BLAS.
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
