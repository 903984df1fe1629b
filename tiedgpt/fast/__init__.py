"""What makes it fast: threads that share a text or a batch, and how they share BLAS.

These modules change results by rounding at most.
"""

import os


def tune() -> None:
    """Let OpenBLAS's threads sleep soon after a product. Call this before NumPy is imported.

    By default they keep a core busy for some 30 ms, while they wait for the next product. With 14
    it is 2**14 cycles, a few microseconds. So other threads have the core: those of tiedgpt, and
    other programs, and a token takes a fraction of the time where more programs are busy than there
    are cores.

    The setting holds for the whole process, so the command line makes it, and the library does not.
    The user's own setting stays.
    """
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "14")
