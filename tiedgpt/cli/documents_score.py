"""Score many texts: JSON lines in, a row for each out.

examples:
  tiedgpt documents score corpus.jsonl --out scores.jsonl
  tiedgpt documents score folder/ --out scores.jsonl --resume --workers 8
  zcat corpus.gz | tiedgpt documents score - --out - | jq .loss
"""

import argparse
import re

from ..errors import ArgumentError, Range, TiedGPTError, short_repr
from ..gpt2.checks import stride_or_default
from ..scale.inputs import find_files
from . import documents, options

UNITS = {"": 1, "K": 1000, "M": 1000**2, "G": 1000**3}  # of --shard-size, in bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    documents.add_arguments(parser, field="text")
    parser.add_argument(
        "--stride",
        metavar="N",
        type=options.positive_int,
        help="tokens from window to window, as for `tiedgpt score`",
    )
    parser.add_argument(
        "--max-tokens",
        metavar="N",
        type=options.number(Range(2)),  # the first token is not predicted, so 1 has no loss
        help="a longer text is an error",
    )
    parser.add_argument(
        "--cut",
        action="store_const",
        const="cut",
        default="error",
        dest="on_long",
        help="score its first N tokens",
    )
    parser.add_argument(
        "--scores-only",
        action="store_true",
        help="write the line's number and id, not the record",
    )
    parser.add_argument(
        "--shard-size",
        metavar="SIZE",
        type=shard_size,
        default=10**6,
        help="input of a part (default: 1MB)",
    )
    parser.add_argument(
        "--strict", action="store_true", help="exit with code 2 if a row has an error"
    )


def shard_size(argument: str) -> int:
    """The type of --shard-size: a number of bytes, with an optional unit."""
    match = re.fullmatch(r"([1-9][0-9]{0,11})([KMG]?)B?", argument.upper())
    if match is None:
        raise argparse.ArgumentTypeError(
            f"expected a size such as 500kB or 2MB, got {short_repr(argument)}"
        )
    number, unit = match.groups()
    return int(number) * UNITS[unit]


def run(args: argparse.Namespace) -> None:
    if args.on_long == "cut" and args.max_tokens is None:
        raise ArgumentError("--cut needs --max-tokens")
    documents.check_flags(args)
    files = list(find_files(args.inputs))
    opened = documents.open_with_head(args)
    args.stride = stride_or_default(args.stride, opened.checkpoint.config)
    settings = documents.settings_of("score", args, opened)
    total, errors = documents.write_rows(files, settings, args)
    if args.strict and errors > 0:
        raise TiedGPTError(f"{errors:,} of {total:,} rows have an error")
