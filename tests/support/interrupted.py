"""Run a command that gets Ctrl-C at a moment at which Python reports it wrongly or ignores it.

    python tests/support/interrupted.py MOMENT

The command is `tiedgpt params`. Its module is replaced by two functions of this file: one is called
while the module is imported, and one when the command runs.
"""

import atexit
import signal
import sys
from contextlib import suppress
from types import SimpleNamespace

import tiedgpt.cli
from tiedgpt.__main__ import main


def press_ctrl_c(*_: object) -> None:
    signal.raise_signal(signal.SIGINT)


def do_nothing(*_: object) -> None:
    pass


def raise_import_error_for_ctrl_c(*_: object) -> None:
    """What Python may do if Ctrl-C ends an import: it reports a failed import."""
    with suppress(BaseException):
        press_ctrl_c()
    raise ImportError


def press_it_twice(*_: object) -> None:
    """Press Ctrl-C, and again while the first KeyboardInterrupt is handled."""
    try:
        press_ctrl_c()
    finally:
        press_ctrl_c()


def press_it_at_exit(*_: object) -> None:
    """Let Ctrl-C come when Python exits, after the command."""
    atexit.register(press_ctrl_c)


# A moment -> (the function for the import of the command's module, the function for its run)
MOMENTS = {
    "import": (raise_import_error_for_ctrl_c, do_nothing),
    "twice": (do_nothing, press_it_twice),
    "exit": (do_nothing, press_it_at_exit),
    "ignored": (press_ctrl_c, press_ctrl_c),
}


def run(moment: str) -> int:
    """Run the command in sys.argv with Ctrl-C at this moment. Returns the exit code."""
    at_import, at_run = MOMENTS[moment]

    def import_command(*_: object) -> SimpleNamespace:
        at_import()
        return SimpleNamespace(run=at_run, add_arguments=do_nothing)

    tiedgpt.cli.import_module = import_command
    if moment == "ignored":
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as for `tiedgpt ... &` in a shell script
    else:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as for a command in a terminal
    return main()


if __name__ == "__main__":
    moment = sys.argv[1]
    sys.argv[1:] = ["params"]
    sys.exit(run(moment))
