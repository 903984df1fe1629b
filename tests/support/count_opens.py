"""Count how often each command opens each file of its models: a program for test_opened.py.

It reads command lines as JSON from stdin, runs them one after the other in this process, and prints
for each its exit code, its stderr, and how often it opened each file of the working directory to
read it.
"""

import contextlib
import io
import json
import os
import sys
from collections import Counter
from pathlib import Path

from tiedgpt import cli
from tiedgpt.explore.server import Server

opened: Counter[str] = Counter()


def count(event: str, arguments: tuple) -> None:
    """An audit hook. The arguments of `open` are a path, a mode, and flags."""
    if event != "open" or not isinstance(arguments[0], str | os.PathLike):
        return
    path = Path(os.path.abspath(arguments[0]))
    writes = (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
    if path.is_relative_to(here) and not writes:
        opened[path.relative_to(here).as_posix()] += 1


if __name__ == "__main__":  # and not in the workers of documents, which import this file
    here = Path.cwd()
    lines = json.load(sys.stdin)
    sys.addaudithook(count)
    Server.serve = lambda server: None  # without this, explore would serve until Ctrl-C
    answers = []
    for line in lines:
        opened.clear()
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8") for _ in range(2))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = cli.main(line.split())
        err.flush()
        answers.append([code, err.buffer.getvalue().decode(), dict(opened)])
    print(json.dumps(answers), file=sys.__stdout__)
