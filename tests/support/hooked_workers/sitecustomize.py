"""Faults for the worker processes of `tiedgpt documents`, which import this file when they start.

Which of these files are in the working directory decides what a worker does:

    die        With it, a worker kills itself when it starts.
    tame       Without it, a worker ends at once when it reads the text "killer".
    go         Without it, a worker that reads the text "wait" writes a file waiting-PID and waits
               until there is a file `go`.
"""

import os
import signal
import sys
import time
from pathlib import Path


def hook_read_record():
    """Replace rows.read_record by a function that looks for the two texts before it reads."""
    from tiedgpt.scale import rows

    read_record = rows.read_record

    def hooked_read_record(line, *arguments):
        if b'"wait"' in line:
            wait_for_go()
        if b'"killer"' in line and not os.path.exists("tame"):
            os._exit(1)
        return read_record(line, *arguments)

    rows.read_record = hooked_read_record


def wait_for_go():
    if not os.path.exists("go"):
        Path(f"waiting-{os.getpid()}").touch()
    while not os.path.exists("go"):
        time.sleep(0.02)


command_line = " ".join(sys.orig_argv)
if "spawn_main" in command_line or "dask_worker" in command_line:
    if os.path.exists("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    hook_read_record()
