"""A command on a pseudo-terminal, which looks to the command like a user's terminal.

A pseudo-terminal has two sides. What is written at one side is read at the other.
"""

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

# This program makes the terminal at its stdin the terminal of its session, because otherwise Ctrl-C
# would send no signal. It sets the terminal's size to 40 lines and 100 columns. Then the command in
# its arguments replaces it.
START = """
import fcntl, os, struct, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 100, 0, 0))
os.execv(sys.argv[1], sys.argv[1:])
"""
SECONDS = 60  # the longest wait for what a command prints
# Seconds without output after which keys are typed again. It is longer than a busy machine takes,
# because a second Ctrl-C may not have the effect of the first one.
PATIENCE = 10.0


class Terminal(AbstractContextManager):
    """A command that runs on a pseudo-terminal.

    text: all that the command has printed while `type` waited.
    user_side: the side of the terminal at which a user would type and read.
    """

    def __init__(self, *arguments: str, term: str = "dumb") -> None:
        pty = pytest.importorskip("pty")
        self.text = ""
        self.user_side, command_side = pty.openpty()
        self.process = subprocess.Popen(
            [sys.executable, "-c", START, *command(*arguments)],
            stdin=command_side,
            stdout=command_side,
            stderr=command_side,
            start_new_session=True,  # a new session has no terminal, so START can give it one
            env={**os.environ, "TERM": term},
        )
        os.close(command_side)  # the command keeps its own copy

    def type(self, keys: str, until: str | None = None) -> str:
        """Type the keys, wait, and return what the command has printed meanwhile.

        With `until`, wait until it is printed; more may come after it. Without `until`, wait until
        the command ends.
        """
        shown = ""
        deadline = time.monotonic() + SECONDS
        os.write(self.user_side, keys.encode())
        while until is None or until not in shown:
            assert time.monotonic() < deadline, shown
            if not self.wait_for_output():
                # The keys may be lost, so they are typed again. Ctrl-C is lost if it comes just
                # before readline waits.
                os.write(self.user_side, keys.encode())
                continue

            chunk = self.read()
            if chunk == b"":  # the command has ended
                assert until is None, shown
                break
            shown += chunk.decode(errors="replace").replace("\r\n", "\n")
        self.text += shown
        return shown

    def wait_for_output(self) -> bool:
        """Wait at most PATIENCE seconds. Whether the command has printed something or ended."""
        readable, _, _ = select.select([self.user_side], [], [], PATIENCE)
        return bool(readable)

    def read(self) -> bytes:
        """What the command has printed, or b"" if it has ended."""
        try:
            return os.read(self.user_side, 4096)
        except OSError:  # Linux raises it if the command's side is closed
            return b""

    def __exit__(self, *_: object) -> None:
        os.close(self.user_side)
        self.process.kill()
        self.process.wait()
