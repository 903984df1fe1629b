"""Start `tiedgpt` or `python -m tiedgpt`."""

import signal
import sys


def main() -> int:
    # While modules are imported, Ctrl-C ends the process at once: there is nothing to clean up, and
    # an import can turn KeyboardInterrupt into another exception. cli.main sets Python's own
    # handler when all is imported.
    on_ctrl_c(signal.SIG_DFL)
    from .fast import tune

    tune()  # before NumPy is imported
    from . import cli

    code = cli.main()
    on_ctrl_c(signal.SIG_IGN)  # a second Ctrl-C does not change the exit code
    return code


def on_ctrl_c(action: "signal._HANDLER") -> None:
    """Set what SIGINT does, unless it is ignored, as in a script's `tiedgpt ... &`."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, action)


if __name__ == "__main__":
    sys.exit(main())
