"""Start `tiedgpt` or `python -m tiedgpt`."""

import os
import signal
import sys


def main() -> int:
    # While modules are imported, Ctrl-C ends the process at once: there is nothing to clean up, and
    # an import can turn KeyboardInterrupt into another exception. cli.main sets Python's own
    # handler when all is imported.
    on_ctrl_c(signal.SIG_DFL)
    tune()
    from . import cli

    code = cli.main()
    on_ctrl_c(signal.SIG_IGN)  # a second Ctrl-C does not change the exit code
    return code


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


def on_ctrl_c(action: "signal._HANDLER") -> None:
    """Set what SIGINT does, unless it is ignored, as in a script's `tiedgpt ... &`."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, action)


if __name__ == "__main__":
    sys.exit(main())
