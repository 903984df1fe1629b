"""What makes it fast: threads, BLAS, products of few rows, memory.

These modules change results by rounding at most.
"""

import ctypes
import os

# glibc's numbers for what mallopt sets, from malloc.h
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
M_ARENA_MAX = -8


def tune() -> None:
    """Change two settings of the whole process.

    The command line does so. A library must leave them alone.

    - OPENBLAS_THREAD_TIMEOUT, unless it is set: by default, OpenBLAS's threads keep a core busy for
      some 30 ms after a product, while they wait for the next one. With 14 it is 2**14 cycles, a
      few microseconds, and then they sleep. So other threads have the core: those of tiedgpt, and
      other programs. Where another program uses a core, a thread that has slept also gets a core
      sooner, and a prompt of 16 to 64 tokens takes half of the time that it takes with 22, which is
      2 ms. OpenBLAS reads the variable when NumPy is imported, so call this before.
    - glibc keeps the memory of freed arrays for the next arrays. It would return it to the system,
      and getting it back page by page takes time in each prompt and each training step.
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "14")
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return
    # Arrays of up to 32 MB, the largest value that glibc allows, are not mapped one by one.
    mallopt(M_MMAP_THRESHOLD, 32 * 2**20)
    # Free memory is returned only from 2 GB on.
    mallopt(M_TRIM_THRESHOLD, 2**31 - 1)
    # All threads use one arena. In the arenas of other threads, the two settings have no effect.
    mallopt(M_ARENA_MAX, 1)
