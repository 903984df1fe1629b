"""The command line: `tiedgpt COMMAND`.

Results go to stdout; notes, progress and errors go to stderr. A command is a module with a
docstring (its help page), `add_arguments(parser)` and `run(args)`. Where several commands share a
module, it has `add_NAME_arguments` and `run_NAME` for each, and the docstring of `run_NAME` is the
page.
"""

import argparse
import inspect
import os
import signal
import sys
import warnings
from collections.abc import Callable
from contextlib import ExitStack, redirect_stderr
from importlib import import_module
from typing import Any, NamedTuple

from .. import __version__
from ..errors import ArgumentError, TiedGPTError, did_you_mean
from .output import fill, note, print_error

# A command -> its module. Only the module of the given command is imported, to save time.
COMMANDS = {
    "generate": "generate",
    "score": "score",
    "documents": "score",
    "train": "train",
    "check": "anymodel",
    "params": "anymodel",
    "tokenize": "tokenize",
    "list": "models",
    "download": "models",
    "untie": "models",
    "tie": "models",
    "resize": "models",
    "study": "study",
    "next": "prompt",
    "lens": "prompt",
    "attribute": "prompt",
    "compare": "compare",
    "explore": "explore",
}
# What other programs call a command -> what to write here
OTHER_NAMES = {
    "run": "generate",
    "chat": "generate",
    "pull": "download",
    "ls": "list",
    "eval": "score",
    "finetune": "train",
    "version": "--version",
}

HELP = """\
usage: tiedgpt [-h] [--version] COMMAND ...

GPT-2 in NumPy. Its output matrix is the token embedding, or another one, W_U.

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
  1    compare found a difference, check a contradiction, or nothing to look at;
       documents --strict: a line has an error
  2    an error, in one line on stderr
  3    compare --tokens found only ties that rounding breaks
  129  ended by SIGHUP (terminal closed)
  130  stopped by Ctrl-C
  141  stdout was closed, as by `| head`
  143  ended by SIGTERM
"""


def main(argv: list[str] | None = None) -> int:
    """Run one command and return the exit code."""
    if argv is None:
        argv = sys.argv[1:]
    prepare_streams()
    flags: dict[str, str] = {}  # the name of a value -> the flag that gives it
    try:
        try:
            args = parse(argv)
            flags = args.flags
            handle_signals()
            with ExitStack() as until_done:
                if args.quiet:  # also what other code writes to stderr: a download has a bar
                    null = until_done.enter_context(
                        open(os.devnull, "w", encoding="utf-8", errors="replace")
                    )
                    until_done.enter_context(redirect_stderr(null))
                args.run(args)
        finally:
            sys.stdout.flush()  # here, where the handlers below can report an error
    except SystemExit as stop:
        return int(stop.code or 0)
    except TiedGPTError as error:
        # Values are checked by the functions and dataclasses that own them, which know no flags. If
        # the message begins with the name of a value, the value's flag takes its place.
        name, space, rest = str(error).partition(" ")
        print_error(f"{flags.get(name, name)}{space}{rest}")
        return 2
    except MemoryError:
        print_error("not enough memory for a model of this size")
        return 2
    except BrokenPipeError:
        discard_output()
        return 141  # as a shell reports SIGPIPE
    except OSError as error:  # a full disk, a directory that may not be read, ...
        print_error(os_error_message(error))
        discard_output()
        return 2
    except KeyboardInterrupt:
        print(file=sys.stderr)  # after the terminal's ^C
        return 130  # as a shell reports SIGINT
    return 0


def parse(argv: list[str]) -> argparse.Namespace:
    """The arguments of a command; `command`, `run`, `flags` and `quiet` are among them.

    Raises ArgumentError, and SystemExit after a help page or the version.
    """
    if argv and argv[0] == "help":  # `tiedgpt help generate` is `tiedgpt generate -h`
        argv = [*argv[1:], "-h"]
    if not argv or argv[0] in ("-h", "--help"):
        print_help()
        raise SystemExit(0)
    if argv[0] == "--version":
        print(f"tiedgpt {__version__}")
        raise SystemExit(0)

    command, *arguments = argv
    if command not in COMMANDS:
        raise no_such_command(command)
    from .options import new_parser  # here, because --version needs none of it

    parser = new_parser(command, find_command(command))
    check_flags(parser, arguments)
    args, rest = parser.parse_known_args(arguments)
    # argparse's usual way leaves arguments over that come after a flag: `study A --json B`. The
    # other way reads these, but it takes what comes after "--" for flags too.
    if rest and "--" not in arguments:
        args, rest = parser.parse_known_intermixed_args(arguments)
        if rest and rest[0].startswith("-"):
            parser.error(f"unknown flag {rest[0]}")
    if rest:
        hint = ""
        if hasattr(args, "prompt"):
            hint = ": put the prompt in quotes"
        parser.error(f"unexpected argument {rest[0]}{hint}")
    return args


class Command(NamedTuple):
    """What a module says of a command."""

    page: str
    add_arguments: Callable[[argparse.ArgumentParser], None]
    run: Callable[[argparse.Namespace], None]


def find_command(name: str) -> Command:
    """A command of COMMANDS, in a module of its own or in one that several share."""
    module = import_module(f".{COMMANDS[name]}", __name__)
    if hasattr(module, "run"):  # the module has this command alone
        return Command(module.__doc__ or "", module.add_arguments, module.run)
    run = getattr(module, f"run_{name}")
    page = inspect.getdoc(run) or ""  # under `python -OO` there are no docstrings
    return Command(page, getattr(module, f"add_{name}_arguments"), run)


def no_such_command(command: str) -> ArgumentError:
    """The error for a command that does not exist, with what the user may have meant."""
    if command in OTHER_NAMES:
        hint = f"; did you mean {OTHER_NAMES[command]}?"
    else:
        hint = did_you_mean(command, [*COMMANDS, "--version"])
    if command.startswith("-"):
        return ArgumentError(f"unknown flag {command}{hint} (try: tiedgpt -h)")
    return ArgumentError(f"no command {command!r}{hint} (try: tiedgpt -h)")


def check_flags(parser: Any, arguments: list[str]) -> None:
    """Raise ArgumentError for a flag that the command does not have, before any other mistake."""
    flags = [flag for action in parser._actions for flag in action.option_strings]
    long_flags = [flag for flag in flags if flag.startswith("--")]
    for argument in arguments:
        if argument == "--":  # after it, nothing is a flag
            return
        flag = argument.partition("=")[0]
        # A text with a space is a prompt that begins with dashes.
        if flag.startswith("--") and " " not in flag and flag not in long_flags:
            parser.error(f"unknown flag {flag}{did_you_mean(flag, long_flags)}")


def print_help() -> None:
    """Print the page that lists all commands."""
    lines = []
    for command in COMMANDS:
        summary = find_command(command).page.partition("\n")[0]
        # A summary begins in column 13, after a command of up to 9 characters, and so do its
        # later lines.
        beside = fill(f"{'':13}{summary}").lstrip()
        lines.append(f"  {command:9}  {beside}")
    print(fill(HELP).format(commands="\n".join(lines)))


def os_error_message(error: OSError) -> str:
    """The file that an error of the system is about, and the reason."""
    reason = error.strerror or str(error)
    if error.filename == "":
        return f"'': {reason}"
    if error.filename:
        return f"{error.filename}: {reason}"
    return reason


def handle_signals() -> None:
    """Make Ctrl-C, SIGTERM and SIGHUP raise exceptions, so that nothing half-written is left."""
    # While Python imports, Ctrl-C ends the process at once: __main__ sets SIG_DFL. From here it
    # raises. A SIGINT that is ignored, as in a script's `tiedgpt ... &`, stays so.
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number and signal.getsignal(number) is signal.SIG_DFL:  # under nohup it stays ignored
            # The exit code is what a shell gives to a process that the signal has ended.
            signal.signal(number, lambda number, _: sys.exit(128 + number))


def prepare_streams() -> None:
    """Prepare the three streams, which may be closed or not UTF-8. Show warnings as notes."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:  # closed by the caller, as in `<&-`
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115  (open until the end)

    # A character that the terminal's encoding lacks becomes "?". A file or a pipe gets UTF-8.
    stdout: Any = sys.stdout
    stderr: Any = sys.stderr
    if stdout.isatty():
        stdout.reconfigure(errors="replace")
    else:
        stdout.reconfigure(encoding="utf-8", errors="replace")
    stderr.reconfigure(errors="replace")
    # A warning is printed as a note, without its place in the code.
    warnings.showwarning = lambda message, *place, **stream: note(message)


def discard_output() -> None:
    """Discard what stdout could not write. Python would try again at its exit, and fail."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
