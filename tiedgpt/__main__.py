"""Start `tiedgpt` or `python -m tiedgpt`. Ctrl-C ends the command with exit code 130 at any time.

It sets its own handler of SIGINT before it imports anything slow:
- while modules are imported, SIGINT ends the process at once: there is nothing to clean up, and an
  import can turn KeyboardInterrupt into another exception (2 of 250 tries);
- while the command runs, it raises KeyboardInterrupt as usual, so that half-written files are
  removed;
- after the command it is ignored, so that it does not change the exit code.
"""

import _signal as signal  # type: ignore[import-not-found]  # signal itself imports enum, for 7 ms
import os
import sys


def main() -> int:
    sys.excepthook, sys.unraisablehook = on_exception, on_ignored_exception
    on_ctrl_c(exit_at_once)
    from .fast import tune

    tune()  # before NumPy is imported
    from .cli import main as run

    code = run(started=lambda: on_ctrl_c(signal.default_int_handler))
    on_ctrl_c(signal.SIG_IGN)
    return code


def on_ctrl_c(handler: object) -> None:
    """Set the handler of SIGINT, unless SIGINT is ignored, as in a script's `tiedgpt ... &`."""
    if signal.getsignal(signal.SIGINT) != signal.SIG_IGN:
        signal.signal(signal.SIGINT, handler)


def exit_at_once(*_: object) -> None:
    try:
        os.write(2, b"\n")
    finally:
        os._exit(130)


def on_exception(kind: type[BaseException], error: BaseException, _: object) -> None:
    """Exit without a traceback if the error is a Ctrl-C or was caused by one, as in an import."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, KeyboardInterrupt):
            exit_at_once()
        cause = cause.__cause__ or cause.__context__
    sys.__excepthook__(kind, error, error.__traceback__)


def on_ignored_exception(ignored: "sys.UnraisableHookArgs") -> None:
    """Exit after a Ctrl-C in a finalizer. Python ignores exceptions there, KeyboardInterrupt
    too."""
    if issubclass(ignored.exc_type, KeyboardInterrupt):
        exit_at_once()
    sys.__unraisablehook__(ignored)


if __name__ == "__main__":
    sys.exit(main())
