"""Score many texts: JSON lines in, a directory of JSON lines out.

A line is a JSON object with a "text", and an "id" if it has one. DIR gets a row for each line: the
id, or the file and the byte offset of the line, with the text's loss ("nll", in nats per token), or
with an "error". With --strict, the exit code is 1 if there is such a row. Needs Dask: pip install
'tiedgpt[dask]'. After an interruption, the same command goes on.

examples:
  tiedgpt documents in.jsonl --out scores
  tiedgpt documents *.jsonl.gz --out scores --scheduler tcp://10.0.0.1:8786
"""

import argparse
from importlib.util import find_spec
from pathlib import Path

from .. import documents
from ..errors import ArgumentError
from ..evaluation import stride_or_default
from . import inputs, options
from .messages import ProgressBar, note


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("inputs", metavar="IN", nargs="+", help=".jsonl or .jsonl.gz files")
    parser.add_argument(
        "--out", metavar="DIR", required=True, help="a new directory, or one to go on with"
    )
    options.add(parser, "model", "head")
    parser.add_argument(
        "--stride",
        metavar="N",
        type=options.whole_number,
        help="tokens from window to window, as for `tiedgpt score`",
    )
    parser.add_argument(
        "--scheduler",
        metavar="ADDRESS",
        help="a Dask scheduler, tcp://HOST:PORT, whose workers see DIR and the model under the "
        "same paths (default: a process for each core of this machine)",
    )
    parser.add_argument(
        "--strict", action="store_true", help="after all lines, exit with 1 if one has an error"
    )


def run(args: argparse.Namespace) -> None:
    if not find_spec("distributed"):
        raise ArgumentError("this command needs Dask: pip install 'tiedgpt[dask]'")
    opened = inputs.open_model(args.model)
    stride = stride_or_default(args.stride, opened.config)  # before the input is read
    sources = [documents.read_input(file) for file in args.inputs]
    model = inputs.load(opened, args.head)
    settings = documents.settings_of(sources, model, opened.tokenizer, stride)

    out = Path(args.out)
    documents.begin(out, settings)
    size = sum(source.size for source in sources)
    try:
        with ProgressBar("scoring", size, "B") as progress:
            documents.score_inputs(
                sources, out, opened.path, settings, args.scheduler, progress.add
            )
    except BaseException:
        note(f"the parts in {out} are complete; the same command goes on")
        raise
    rows, errors = documents.count_rows(out)
    note(f"{rows:,} rows in {out}, {errors:,} with an error")
    if args.strict and errors > 0:
        raise SystemExit(1)
