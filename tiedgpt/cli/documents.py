"""The flags of `tiedgpt score --jsonl` and `tiedgpt generate --jsonl`. run_documents.py does the work.

run_documents.py is imported for `--jsonl` only: its imports take 15 ms.
"""

import argparse
import re
from importlib.util import find_spec
from typing import Any

from ..errors import ArgumentError, short_repr
from .common import BOTH, positive_int

FLAGS = (
    *("out", "field", "resume", "scores_only", "strict", "shard_size", "workers", "dask", "part"),
    *("max_tokens", "cut"),  # of score alone
)
UNITS = {"": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}


def add_documents_options(parser: argparse.ArgumentParser, field: str) -> Any:
    """Add --jsonl and the flags that go with it; return their group. `field` is the default of --field."""
    group = parser.add_argument_group("many documents")
    add = group.add_argument
    add(
        "--jsonl",
        nargs="+",
        metavar="IN",
        help="read a JSON object from each line of these files (.jsonl, .jsonl.gz, a directory of them, - "
        "for stdin) and write a row for each line to --out",
    )
    add("--out", metavar="OUT", help="the file to write; with a slash at its end, a directory of parts")
    add("--field", metavar="NAME", help=f"the field that has the text (default: {field})")
    add("--resume", action="store_true", help="continue an interrupted run; start one if there is none")
    add("--scores-only", action="store_true", help="write the line's number and id in place of the record")
    add("--strict", action="store_true", help="exit with code 2 if a row has an error")
    add("--shard-size", type=size, metavar="SIZE", help="bytes of input in a shard (default: 1MB)")
    engine = group.add_mutually_exclusive_group()
    add = engine.add_argument
    add("--workers", type=positive_int, metavar="N", help="use N processes of this machine; needs Dask")
    add("--dask", metavar="ADDRESS", help="use the Dask scheduler at tcp://... or in a scheduler file")
    add(
        "--part",
        type=part,
        metavar="I/N",
        help="do shards I, I + N, I + 2N, ... for a job array (I from 0 to N - 1); implies --resume. When "
        "all are done, run the command with --resume instead of --part: it joins the results",
    )
    parser.set_defaults(default_field=field)
    return group


def size(text: str) -> int:
    """The type of --shard-size: bytes, with an optional unit."""
    found = re.fullmatch(r"(\d{1,12})(kB|MB|GB)?", text)
    if not found or int(found[1]) == 0:
        raise argparse.ArgumentTypeError(f"expected a size such as 500kB or 2MB, got {short_repr(text)}")
    return int(found[1]) * UNITS[found[2] or ""]


def part(text: str) -> tuple[int, int]:
    """The type of --part."""
    found = re.fullmatch(r"(\d{1,9})/(\d{1,9})", text)
    if not found or int(found[1]) >= int(found[2]):
        raise argparse.ArgumentTypeError(f"expected I/N with I from 0 to N - 1, got {short_repr(text)}")
    return int(found[1]), int(found[2])


def is_given(value: Any) -> bool:
    """Whether a flag was given: 0 is a value too."""
    return value is not None and value is not False


def check_documents_flags(args: argparse.Namespace, excluded: dict[str, Any]) -> None:
    """Raise ArgumentError for flags that need --jsonl, need each other or exclude each other.

    `excluded` has the flags that --jsonl does not go with, and their values.
    """
    if args.jsonl is None:
        for name in FLAGS:
            if is_given(getattr(args, name, None)):
                raise ArgumentError(f"--{name.replace('_', '-')} needs --jsonl")
        return
    for name, given in excluded.items():
        if is_given(given):
            raise ArgumentError(f"{name} and --jsonl exclude each other")
    if not args.out:
        raise ArgumentError("--jsonl needs --out, the file to write")
    if args.head == BOTH:
        raise ArgumentError("--head both and --jsonl exclude each other: run the command once for each head")
    if getattr(args, "cut", False) and not args.max_tokens:
        raise ArgumentError("--cut needs --max-tokens")
    if args.part and "-" in args.jsonl:
        raise ArgumentError("--part cannot read stdin: save it to a file first")
    if (args.workers or args.dask) and not find_spec("distributed"):
        raise ArgumentError(
            f"{'--workers' if args.workers else '--dask'} needs Dask: pip install 'tiedgpt[dask]'; without "
            "it, run the command with --part 0/2 and, at the same time, with --part 1/2"
        )
