"""Hooks for the workers of `tiedgpt documents`, which import this file when they start.

Files in the working directory say what happens:

    die        a worker kills itself when it starts
    tame       a worker survives the text "killer"; without this file, it exits there
    go         a worker reads past the text "wait"; without it, the worker writes waiting-PID and
               waits for it
"""

import os
import signal
import sys
import time
from pathlib import Path


def hook_read_record():
    from tiedgpt.scale import rows

    read_record = rows.read_record

    def hooked(line, *arguments):
        if b'"wait"' in line:
            wait_for_go()
        if b'"killer"' in line and not os.path.exists("tame"):
            os._exit(1)
        return read_record(line, *arguments)

    rows.read_record = hooked


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
