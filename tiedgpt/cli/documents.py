"""What `documents score` and `documents generate` share."""

import argparse
import re
import sys
from importlib.util import find_spec
from typing import Any

from ..checkpoints import Opened, open_model
from ..errors import ArgumentError, short_repr
from ..scale import shards
from ..scale.job import Job, do_part, write_file
from ..scale.rows import ARGUMENTS, identity
from . import options
from .messages import ProgressBar, note


def add_arguments(parser: argparse.ArgumentParser, field: str) -> None:
    """Add what both commands have. `field` is the default of --field."""
    parser.add_argument(
        "inputs",
        metavar="IN",
        nargs="+",
        help=".jsonl or .jsonl.gz files, directories of them, pipes, or - for stdin",
    )
    parser.add_argument(
        "--out", metavar="OUT", required=True, help="the file to write; - for stdout"
    )
    options.add_model(parser)
    options.add_head(parser)
    options.add_allow_special(parser)
    parser.add_argument(
        "--field",
        metavar="NAME",
        default=field,
        help="the field with the text (default: %(default)s)",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue an interrupted run; start one if there is none",
    )
    parser.add_argument(
        "--workers", metavar="N", type=options.positive_int, help="processes here; needs Dask"
    )
    parser.add_argument(
        "--dask",
        metavar="ADDRESS",
        help="a Dask scheduler at tcp://... or in a scheduler file",
    )
    parser.add_argument(
        "--part",
        metavar="I/N",
        type=part,
        help="do part I, from 0, of N; then --resume joins all parts",
    )


def part(argument: str) -> tuple[int, int]:
    """The type of --part: the number of a part, and the number of parts."""
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", argument)
    if match is None or int(match[1]) >= int(match[2]):
        raise argparse.ArgumentTypeError(
            f"expected I/N with I from 0 to N - 1, got {short_repr(argument)}"
        )
    return int(match[1]), int(match[2])


def check_flags(args: argparse.Namespace) -> None:
    """Raise ArgumentError for flags that contradict each other, and for Dask if it is missing."""
    # argparse has groups of flags that exclude each other, but their usage takes 74 columns.
    divisions = [value for value in (args.part, args.workers, args.dask) if value]
    if len(divisions) > 1:
        raise ArgumentError("only one of --workers, --dask and --part can be given")
    if args.out == "-" and (args.resume or divisions):
        raise ArgumentError("--resume, --workers, --dask and --part need a file; --out - is stdout")
    if args.out == "" or args.out.endswith("/"):
        raise ArgumentError(f"--out needs a file, or - for stdout; got {short_repr(args.out)}")
    if (args.workers or args.dask) and not find_spec("distributed"):
        raise ArgumentError(
            "--workers and --dask need Dask: pip install 'tiedgpt[dask]', or use --part"
        )


def open_with_head(args: argparse.Namespace) -> Opened:
    """The model of the flags, not loaded. A note says if its W_U will be a copy."""
    opened = open_model(args.model, note)
    if args.head == "untied" and not opened.checkpoint.has_own_unembedding:
        note(
            "this checkpoint has no W_U of its own: a copy of wte.T is used, and the rows are the "
            "same"
        )
    return opened


def settings_of(command: str, args: argparse.Namespace, opened: Opened) -> dict[str, Any]:
    """All that determines the rows, besides the lines. --resume refuses a file with others."""
    settings = {
        "model": str(opened.checkpoint.path.absolute()),
        "head": args.head or opened.checkpoint.config.head,
        "command": command,
        "field": args.field,
        "scores_only": args.scores_only,
    }
    # A model that is changed under the same name has another identity. The versions come before the
    # settings that depend on them, because --resume names the first setting that differs.
    settings |= identity(opened.checkpoint, opened.tokenizer)
    settings["shard_size"] = args.shard_size
    values = vars(args) | {"special": "token" if args.allow_special else "error"}
    # ARGUMENTS names the arguments of the function that makes the command's rows.
    for name in ARGUMENTS[command]:
        settings[name] = values[name]
    return settings


def write_rows(
    files: list[str], settings: dict[str, Any], args: argparse.Namespace
) -> tuple[int, int]:
    """Write the rows of all files; count them, and those with an error.

    With --part, only that part is done. Its rows are counted when --resume joins all parts.
    """
    if args.out == "-":
        rows = shards.rows_of_files(files, settings)
        total, errors = shards.write_rows(rows, sys.stdout.buffer)
    else:
        job = Job(
            files=files,
            settings=settings,
            out=args.out,
            workers=args.workers,
            scheduler=args.dask,
            note=note,
            progress=ProgressBar,
        )
        if args.part:
            number, parts = args.part
            do_part(job, number, parts)
            return 0, 0
        total, errors = write_file(job, args.resume)

    plural = "" if total == 1 else "s"
    note(f"{total:,} row{plural} in {args.out}, {errors:,} with an error")
    return total, errors
