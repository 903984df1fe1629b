"""Ctrl-C, SIGTERM and SIGHUP: they end a command, or save a training and then end it."""

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress


def handle_signals() -> None:
    """Make Ctrl-C, SIGTERM and SIGHUP raise exceptions, so that nothing half-written is left."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:  # as __main__ sets it
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number and signal.getsignal(number) is signal.SIG_DFL:  # under nohup it stays ignored
            signal.signal(number, exit_by_signal)


def exit_by_signal(number: int, _: object) -> None:
    """End the process with the exit code that a shell gives to a process ended by this signal."""
    sys.exit(128 + number)


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """In the block, the first Ctrl-C or SIGTERM is only added to a list, which `with` gives.

    From then on, and after the block, both have the handlers from before it, so a second one ends
    the process.
    """
    received: list[int] = []
    handlers = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        if handler != signal.SIG_IGN:  # SIGINT is ignored in a script's `tiedgpt ... &`
            handlers[number] = handler

    def receive(number: int, _: object) -> None:
        received.append(number)
        restore()
        # Not by print: Python refuses a print in the middle of another one.
        line = b"\ntiedgpt: note: stopping after this step; again to stop at once\n"
        with suppress(OSError):  # a full disk behind stderr
            os.write(sys.stderr.fileno(), line)

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    for number in handlers:
        signal.signal(number, receive)
    try:
        yield received
    finally:
        restore()
