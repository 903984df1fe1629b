"""Run a command that gets Ctrl-C at a moment at which Python reports it wrongly or drops it.

    python tests/support/interrupted.py MOMENT

The command is `tiedgpt params`, with other code in place of its module.
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


def import_that_fails_in_another_way(*_: object) -> None:
    """Ctrl-C ends an import, and Python reports that the import failed."""
    with suppress(BaseException):
        press_ctrl_c()
    raise ImportError


def press_it_twice(*_: object) -> None:
    """The second Ctrl-C comes while the first is handled."""
    try:
        press_ctrl_c()
    finally:
        press_ctrl_c()


def press_it_at_exit(*_: object) -> None:
    atexit.register(press_ctrl_c)


# A moment -> the functions that are called when the command's module is imported, and when the
# command runs
MOMENTS = {
    "import": (import_that_fails_in_another_way, do_nothing),
    "twice": (do_nothing, press_it_twice),
    "exit": (do_nothing, press_it_at_exit),
    "ignored": (press_ctrl_c, press_ctrl_c),
}


def run(moment: str) -> int:
    """Run the command of sys.argv, and return its exit code."""
    while_imported, while_run = MOMENTS[moment]

    def import_command(*_: object) -> SimpleNamespace:
        while_imported()
        return SimpleNamespace(run=while_run, add_arguments=do_nothing)

    tiedgpt.cli.import_module = import_command
    if moment == "ignored":
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # as in a script's `tiedgpt ... &`
    else:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # as in a terminal
    return main()


if __name__ == "__main__":
    moment = sys.argv[1]
    sys.argv[1:] = ["params"]
    sys.exit(run(moment))
