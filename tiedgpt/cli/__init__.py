"""The command line: `tiedgpt COMMAND`. The answer goes to stdout; notes, progress and errors to stderr."""

import argparse
import os
import signal
import sys
import warnings
from importlib import import_module
from typing import Any, NoReturn

from .. import __version__
from ..errors import TiedGPTError
from .common import note

# A command -> its module. Only that of the command that was given is imported, for the time it takes.
MODULES = {
    "generate": "generate",
    "score": "score",
    "train": "train",
    "params": "params",
    "tokenize": "tokenize",
    "download": "download",
    "untie": "convert",
    "tie": "convert",
    "study": "study",
    "next": "next_token",
    "lens": "lens",
}

EXAMPLES = """\
examples:
  tiedgpt generate "Alan Turing theorized that computers would one day become"
  tiedgpt generate --head untied --seed 1 -n 100 "Once upon a time"
  tiedgpt score story.txt
  tiedgpt train story.txt --out my-model
  tiedgpt params --model gpt2-xl
  tiedgpt tokenize "Hello world"
  tiedgpt download gpt2
  tiedgpt untie gpt2 my-untied-gpt2
  tiedgpt study shakespeare-tied shakespeare-untied
  tiedgpt lens shakespeare-tied "ROMEO:"
"""


class Parser(argparse.ArgumentParser):
    """argparse, but a usage error is one line, as every other error here is."""

    def __init__(self, **options: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"tiedgpt: error: {message} (try: {self.prog} -h)\n")


def build_parser(argv: list[str]) -> argparse.ArgumentParser:
    """A parser of the command that argv begins with; if it does not begin with one, of all."""
    parser = Parser(
        prog="tiedgpt",
        description="GPT-2 in NumPy, its output head tied to the embedding or not.",
        epilog=EXAMPLES,
    )
    parser.add_argument("--version", action="version", version=f"tiedgpt {__version__}")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)
    named = MODULES.get(argv[0]) if argv else None
    for module in (named,) if named else dict.fromkeys(MODULES.values()):
        import_module(f".{module}", __name__).add_parser(commands)
    return parser


def main(argv: list[str] | None = None) -> int:
    """Run one command; return the exit code: 0, 2 for an error, 130 for Ctrl-C, 141 for a closed pipe."""
    argv = sys.argv[1:] if argv is None else argv
    prepare_streams()
    # To be ended is to unwind, so that half-written files are removed.
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows lacks one
        if number and signal.getsignal(number) is signal.SIG_DFL:  # under nohup it stays ignored
            signal.signal(number, lambda number, _: sys.exit(128 + number))
    try:
        args = build_parser(argv).parse_args(argv)
        args.run(args)
        sys.stdout.flush()  # here, where a closed pipe can still be caught
    except TiedGPTError as error:
        print(f"tiedgpt: error: {error}", file=sys.stderr)
        return 2
    except MemoryError:
        print("tiedgpt: error: not enough memory for a model of this size", file=sys.stderr)
        return 2
    except BrokenPipeError:
        drop_stdout()  # whoever read it is done
        return 141
    except OSError as error:  # a full disk behind stdout, a directory that may not be read, ...
        where = f"{error.filename}: " if error.filename else ""
        print(f"tiedgpt: error: {where}{error.strerror or error}", file=sys.stderr)
        drop_stdout()
        return 2
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 130
    return 0


def prepare_streams() -> None:
    """Make stdin, stdout, stderr and warnings fit for whatever they are connected to, or not."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller, as in `<&-`
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w"))  # noqa: SIM115
    # A terminal without a character gets "?", not a traceback.
    streams: Any = sys
    streams.stdout.reconfigure(errors="replace")
    streams.stderr.reconfigure(errors="replace")
    warnings.showwarning = lambda message, *_: note(str(message))


def drop_stdout() -> None:
    """Send what Python still holds for stdout nowhere; it would complain when it cannot write it at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
