"""The command line: `tiedgpt COMMAND`. Results go to stdout; notes, progress and errors go to
stderr."""

import argparse
import os
import re
import signal
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from itertools import takewhile
from typing import Any

from .. import __version__
from ..errors import ArgumentError, TiedGPTError, nearest
from .terminal import Messages, discard_unwritten, fill, note, print_error

COMMANDS = (
    *(
        "generate",
        "score",
        "documents score",
        "documents generate",
        "train",
        "params",
        "tokenize",
        "list",
    ),
    *("download", "untie", "tie", "study", "next", "lens", "attribute", "compare", "explore"),
)
# The modules that have another name. Only that of the given command is imported, to save time.
MODULES = {"list": "list_models", "next": "next_token", "untie": "convert", "tie": "convert"}
# What other programs call a command -> ours
OTHER_NAMES = {
    **dict.fromkeys(("run", "chat", "complete", "sample"), "generate"),
    **dict.fromkeys(("pull", "get", "fetch"), "download"),
    **dict.fromkeys(("models", "ls"), "list"),
    **dict.fromkeys(("eval", "perplexity"), "score"),
    **dict.fromkeys(("finetune", "fit"), "train"),
    **dict.fromkeys(("encode", "decode"), "tokenize"),
    "documents": "documents score or documents generate",
    **dict.fromkeys(("help", "version"), "-h"),
}

HELP = """\
usage: tiedgpt [-h] [--version] COMMAND ...

GPT-2 in NumPy. Its output matrix is the token embedding, or a separate matrix.

commands:
{commands}

options:
  -h, --help  show this page, or after COMMAND the page of that command
  --version   show the version

examples:
  tiedgpt generate "Once upon a time"
  tiedgpt next --head both "To be, or"
  tiedgpt train story.txt --out my-model
  tiedgpt download gpt2
  tiedgpt explore
  tiedgpt COMMAND -h

exit codes:
  0    done
  1    compare found a difference
  2    an error, in one line on stderr
  129  ended by SIGHUP (terminal closed)
  130  stopped by Ctrl-C
  141  stdout was closed, as by `| head`
  143  ended by SIGTERM
"""


def parsers(*names: str) -> dict[str, Any]:
    """The parsers of these commands. Each is made from a module's docstring, `add_arguments` and
    `run`."""
    from .common import Parser  # here, because --version needs none of it

    commands = {}
    for name in names:
        module = import_module(f".{MODULES.get(name, name.split()[0])}", __name__)
        page = getattr(module, "PAGES", {}).get(name, module.__doc__)
        commands[name] = Parser(name, page, module.run)
        module.add_arguments(commands[name])
    return commands


def parse(argv: list[str]) -> argparse.Namespace:
    """The arguments of a command; `run` and `quiet` are among them. Raises ArgumentError, or
    SystemExit."""
    command, *arguments = argv or ["-h"]
    if f"{command} {' '.join(arguments[:1])}" in COMMANDS:  # documents score
        command, arguments = f"{command} {arguments[0]}", arguments[1:]
    if command in ("-h", "--help"):
        every = parsers(*COMMANDS).items()
        listed = (f"  {name:18}  {parser.get_default('summary')}" for name, parser in every)
        print(fill(HELP.format(commands="\n".join(listed))))
        raise SystemExit(0)
    if command == "--version":
        print(f"tiedgpt {__version__}")
        raise SystemExit(0)
    if command not in COMMANDS:
        what = f"unknown flag {command}" if command.startswith("-") else f"no command {command!r}"
        other = OTHER_NAMES.get(command)
        hint = f"; did you mean {other}?" if other else nearest(command, [*COMMANDS, "--version"])
        raise ArgumentError(f"{what}{hint} (try: tiedgpt -h)")
    parser = parsers(command)[command]
    flags = re.findall(r"--[a-z][a-z-]*", parser.format_help())
    for argument in takewhile("--".__ne__, arguments):
        flag = argument.partition("=")[0]
        if flag.startswith("--") and " " not in flag and flag not in flags:
            parser.error(f"unknown flag {flag}{nearest(flag, flags)}")
    dashes = "--" in arguments  # after it there are no flags
    args, rest = parser.parse_known_args(arguments)
    if rest and not dashes:  # arguments with flags between them
        args, rest = parser.parse_known_intermixed_args(arguments)
    if rest:
        is_flag = rest[0].startswith("-") and not dashes
        parser.error(f"{'unknown flag' if is_flag else 'unexpected argument'} {rest[0]}")
    return args


def main(argv: list[str] | None = None, started: Callable[[], Any] = lambda: None) -> int:
    """Run one command and return the exit code. `started` is called when all modules are
    imported."""
    prepare_streams()
    stderr, sys.stderr = sys.stderr, (messages := Messages(sys.stderr))
    try:
        try:
            args = parse(sys.argv[1:] if argv is None else argv)
            messages.quiet = args.quiet
            handle_termination()
            started()
            args.run(args)
        finally:
            sys.stdout.flush()  # here, where an error can still be reported
        return 0
    except SystemExit as stop:
        return int(stop.code or 0)
    except TiedGPTError as error:
        print_error(error)
    except MemoryError:
        print_error("not enough memory for a model of this size")
    except BrokenPipeError:
        discard_unwritten(sys.stdout)
        return 141
    except OSError as error:  # a full disk, a directory that may not be read, ...
        name = "''" if error.filename == "" else error.filename
        print_error(f"{name}: {error.strerror}" if name else error.strerror or error)
        discard_unwritten(sys.stdout)
    except KeyboardInterrupt:
        messages.quiet = False
        messages.write("\n")  # after the terminal's ^C
        return 130
    finally:
        sys.stderr = stderr
    return 2


def handle_termination() -> None:
    """Make SIGTERM and SIGHUP raise SystemExit, so that half-written files are removed."""
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number and signal.getsignal(number) is signal.SIG_DFL:  # under nohup it stays ignored
            signal.signal(number, lambda number, _: sys.exit(128 + number))


def prepare_streams() -> None:
    """Prepare stdin, stdout and stderr, which may be closed or not UTF-8. Show warnings as
    notes."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as in `<&-`
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    streams: Any = sys
    # A character that the terminal's encoding lacks becomes "?". A file or a pipe gets UTF-8.
    streams.stdout.reconfigure(encoding=None if sys.stdout.isatty() else "utf-8", errors="replace")
    streams.stderr.reconfigure(errors="replace")
    warnings.showwarning = lambda message, *_: note(message)
