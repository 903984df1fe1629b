"""The command line: its output, its errors, and the words that start it in a process."""

import json
import sys


def output(run, *arguments, stdin=b"") -> str:
    """What a command without notes prints on stdout."""
    code, out, err = run(*arguments, stdin=stdin)
    assert (code, err) == (0, "")
    return out


def answer(run, *arguments, stdin=b""):
    """The JSON document of a command without notes."""
    return json.loads(output(run, *arguments, "--json", stdin=stdin))


def command(*arguments: str) -> list[str]:
    """The words that start a command in a new process."""
    return [sys.executable, "-m", "tiedgpt", *arguments]


def assert_one_error_line(result: tuple[int, str, str], message: str) -> None:
    """The result of `run` is a refusal: one line on stderr, which holds this message."""
    code, out, err = result
    assert (code, out) == (2, "")
    assert err.startswith("tiedgpt: error: "), err
    assert err.count("\n") == 1
    assert message in err
