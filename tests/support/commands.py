"""The command line: its output, its errors, and the words that start it in a process.

`run` is a fixture: run(*arguments, stdin=bytes) -> (exit code, stdout, stderr).
"""

import json
import sys


def output(run, *arguments, stdin=b"") -> str:
    """What a command prints on stdout. It must succeed and print nothing on stderr."""
    code, out, err = run(*arguments, stdin=stdin)
    assert (code, err) == (0, "")
    return out


def answer(run, *arguments, stdin=b""):
    """The JSON document that a command prints with --json, and nothing on stderr."""
    return json.loads(output(run, *arguments, "--json", stdin=stdin))


def command(*arguments: str) -> list[str]:
    """The words with which a new process runs a command of tiedgpt."""
    return [sys.executable, "-m", "tiedgpt", *arguments]


def assert_one_error_line(result: tuple[int, str, str], message: str) -> None:
    """The result of `run` is a refusal: one line on stderr, which contains this message."""
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("tiedgpt: error: "), err
    assert err.count("\n") == 1
    assert message in err
