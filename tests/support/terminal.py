"""A command on a pseudo-terminal, as a user at a keyboard has it."""

import os
import select
import subprocess
import sys
import time
from contextlib import AbstractContextManager

import pytest

from support.commands import command

CTRL_C = "\x03"
CTRL_D = "\x04"

# This program makes its terminal, of 40 lines and 100 columns, that of its session. Otherwise,
# Ctrl-C would send no signal. Then it becomes the command in its arguments.
START = """
import fcntl, os, struct, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
os.execv(sys.argv[1], sys.argv[1:])
"""
SECONDS = 60  # the longest wait for what a command prints
PATIENCE = 2.0  # seconds without output after which keys are typed again


class Terminal(AbstractContextManager):
    """A command on a pseudo-terminal. `text` is all that it has printed.

    user_side is the end at which the user types and reads; the command has the other one.
    """

    def __init__(self, *arguments: str, term: str = "dumb") -> None:
        pty = pytest.importorskip("pty")
        self.text = ""
        self.user_side, command_side = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, *command(*arguments)],  # START becomes the command
            stdin=command_side,
            stdout=command_side,
            stderr=command_side,
            start_new_session=True,  # which has no terminal yet
            env={**os.environ, "TERM": term},
        )
        os.close(command_side)  # here; the command has a copy of it

    def type(self, keys: str, until: str | None = None) -> str:
        """Type the keys; return what the command prints then.

        With `until`, wait until the output ends with it. Without it, wait until the command ends.
        """
        shown = ""
        deadline = time.monotonic() + SECONDS
        os.write(self.user_side, keys.encode())
        while until is None or not shown.endswith(until):
            assert time.monotonic() < deadline, shown
            if not self.has_output():
                # The keys may be lost: a Ctrl-C is, if it comes just before readline waits.
                os.write(self.user_side, keys.encode())
                continue

            chunk = self.read()
            if chunk == b"":  # the command has ended
                assert until is None, shown
                break
            shown += chunk.decode(errors="replace").replace("\r\n", "\n")
        self.text += shown
        return shown

    def has_output(self) -> bool:
        """Whether the command prints something, or ends, within PATIENCE."""
        readable, _, _ = select.select([self.user_side], [], [], PATIENCE)
        return bool(readable)

    def read(self) -> bytes:
        """What the command has printed, or b"" if it has ended."""
        try:
            return os.read(self.user_side, 4096)
        except OSError:  # on Linux, where the other side is closed
            return b""

    def __exit__(self, *_: object) -> None:
        os.close(self.user_side)
        self.process.kill()
        self.process.wait()
