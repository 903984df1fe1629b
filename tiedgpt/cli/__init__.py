"""The command line: `tiedgpt COMMAND`. Results go to stdout; notes, progress and errors go to stderr."""

import argparse
import os
import signal
import sys
import textwrap
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NoReturn

from .. import __version__
from ..errors import ArgumentError, TiedGPTError, nearest
from .terminal import Messages, discard_unwritten, note, print_error

# A command -> its module. Only the module of the given command is imported, to save time.
MODULES = {
    "generate": "generate",
    "score": "score",
    "documents": "documents",
    "train": "train",
    "params": "params",
    "tokenize": "tokenize",
    "list": "list_models",
    "download": "download",
    "untie": "convert",
    "tie": "convert",
    "study": "study",
    "next": "next_token",
    "lens": "lens",
    "attribute": "attribute",
    "compare": "compare",
    "explore": "explore",
}

EPILOG = """\
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


class Formatter(argparse.HelpFormatter):
    """Break a help text to the terminal's width, the lines of examples with a backslash, as a shell does."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._action_max_length = 4 + max(map(len, MODULES))  # argparse forgets that commands are indented

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        paragraphs = text.rstrip().split("\n\n")
        for number, part in enumerate(paragraphs):
            if "\n  " not in part:
                paragraphs[number] = super()._fill_text(part, width, indent)
                continue
            wrap = textwrap.TextWrapper(width - 2, subsequent_indent="    ", break_on_hyphens=False).wrap
            paragraphs[number] = "\n".join(" \\\n".join(wrap(line)) for line in part.split("\n"))
        return "\n\n".join(paragraphs)


class Parser(argparse.ArgumentParser):
    """argparse, with errors of one line that suggest the nearest flag."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=Formatter, allow_abbrev=False, **options)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        """Refuse unknown flags here, where the command is known; argparse would refuse them at top level."""
        args = list(args or [])
        flags = self._option_string_actions
        for arg in args[: 1 if self._subparsers else args.index("--") if "--" in args else None]:
            flag = arg.partition("=")[0]
            if flag.startswith("--") and len(flag) > 2 and " " not in flag and flag not in flags:
                alike = f"--n-{flag[2:].removesuffix('s')}"  # --heads is --n-head, not --head
                self.error(f"unknown flag {flag}{nearest(alike if alike in flags else flag, flags)}")
        namespace, rest = super().parse_known_args(args, namespace)
        if rest:
            is_flag = rest[0].startswith("-") and "--" not in args
            self.error(f"{'unknown flag' if is_flag else 'unexpected argument'} {rest[0]}")
        return namespace, rest

    def _print_message(self, message: str, file: Any = None) -> None:
        file.write(message)  # argparse ignores an OSError here

    def error(self, message: str) -> NoReturn:
        raise ArgumentError(f"{message.removeprefix('argument ')} (try: {self.prog} -h)")


def build_parser(argv: list[str]) -> Parser:
    """The parser of the command that argv begins with; if it begins with a flag, of all commands."""
    parser = Parser(
        prog="tiedgpt",
        description="GPT-2 in NumPy, with its output head tied to the token embedding or not.",
        epilog=EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"tiedgpt {__version__}")
    if argv == ["--version"]:
        return parser
    command = argv[0] if argv and not argv[0].startswith("-") else None
    if command is not None and command not in MODULES:
        parser.error(f"no command {command!r}{nearest(command, MODULES)}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    for module in (MODULES[command],) if command else dict.fromkeys(MODULES.values()):
        import_module(f".{module}", __name__).add_parser(commands)
    return parser


def main(argv: list[str] | None = None, started: Callable[[], Any] = lambda: None) -> int:
    """Run one command and return the exit code. `started` is called when all modules are imported."""
    argv = sys.argv[1:] if argv is None else argv
    prepare_streams()
    stderr, sys.stderr = sys.stderr, (messages := Messages(sys.stderr))
    try:
        try:
            args = build_parser(argv).parse_args(argv or ["-h"])
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
        print_error(f"{error.filename}: {error.strerror}" if error.filename else error.strerror or error)
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
    """Prepare stdin, stdout and stderr, which may be closed or not UTF-8. Show warnings as notes."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as in `<&-`
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    # A character that the terminal's encoding lacks becomes "?".
    streams: Any = sys
    streams.stdout.reconfigure(errors="replace")
    streams.stderr.reconfigure(errors="replace")
    warnings.showwarning = lambda message, *_: note(message)
