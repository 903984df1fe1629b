"""`tiedgpt documents score|generate`: many texts, from files of JSON lines to rows with results."""

import argparse
import re
import sys
from contextlib import nullcontext
from functools import partial
from importlib.util import find_spec

from ..checkpoints.publishing import lock_directory
from ..errors import ABOVE_0, ArgumentError, Range, TiedGPTError, short_repr
from ..gpt2.checks import stride_or_default
from . import common
from .terminal import ProgressBar, note

PAGES = {
    "documents score": """Score many texts: JSON lines in, a row for each out.

examples:
  tiedgpt documents score corpus.jsonl --out scores.jsonl
  tiedgpt documents score folder/ --out scores.jsonl --resume --workers 8
  zcat corpus.gz | tiedgpt documents score - --out - | jq .loss
""",
    "documents generate": """Continue many texts: JSON lines in, a row for each out.

examples:
  tiedgpt documents generate prompts.jsonl --out samples.jsonl -n 20
""",
}


def add_arguments(parser: common.Parser) -> None:
    scoring = parser.get_default("command") == "documents score"
    command, field = ("score", "text") if scoring else ("generate", "prompt")
    parser.set_defaults(command=command, scores_only=False, on_long="error")
    inputs = ".jsonl or .jsonl.gz files, directories of them, pipes, or - for stdin"
    parser.add("IN", inputs, nargs="+", dest="inputs")
    parser.add("--out OUT", "the file to write; - for stdout", required=True)
    parser.add_shared("-m --model MODEL", "--head {tied,untied}", "--allow-special")
    parser.add("--field NAME", "the field with the text (default: %(default)s)", default=field)
    parser.add("--resume", "continue an interrupted run; start one if there is none")
    parser.add("--strict", "exit with code 2 if a row has an error")
    parser.add("--shard-size SIZE", "input of a part (default: 1MB)", size, default=10**6)
    parser.add("--workers N", "processes here; needs Dask", common.positive_int)
    parser.add("--dask ADDRESS", "a Dask scheduler at tcp://... or in a scheduler file")
    parser.add("--part I/N", "do part I, from 0, of N; then --resume joins all parts", part)
    if scoring:
        parser.add("--stride N", "as of `tiedgpt score`", common.positive_int)
        parser.add("--max-tokens N", "a longer text is an error", common.number(Range(2)))
        parser.add(
            "--cut", "score its first N tokens", action="store_const", dest="on_long", const="cut"
        )
        parser.add("--scores-only", "write the line's number and id, not the record")
    else:
        parser.add_shared(*common.SAMPLING)
        parser.add("-t --temperature T", "(default: 1)", common.number(ABOVE_0), default=1.0)
        parser.add("-s --seed S", "(default: 0)", common.count, default=0)


def size(text: str) -> int:
    """The type of --shard-size: bytes, with an optional unit."""
    if not (found := re.fullmatch(r"([1-9][0-9]{0,11})([KMG]?)B?", text.upper())):
        raise argparse.ArgumentTypeError(
            f"expected a size such as 500kB or 2MB, got {short_repr(text)}"
        )
    return int(found[1]) * 1000 ** " KMG".index(found[2] or " ")


def part(text: str) -> tuple[int, int]:
    """The type of --part."""
    found = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", text)
    if not found or int(found[1]) >= int(found[2]):
        raise argparse.ArgumentTypeError(
            f"expected I/N with I from 0 to N - 1, got {short_repr(text)}"
        )
    return int(found[1]), int(found[2])


def run(args: argparse.Namespace) -> None:
    from ..scale import shards  # here, because the help needs none of it

    out, part, engine = args.out, args.part, (args.workers, args.dask)
    resume = args.resume or bool(part)
    if args.on_long == "cut" and not args.max_tokens:
        raise ArgumentError("--cut needs --max-tokens")
    if (
        sum(map(bool, (part, *engine))) > 1
    ):  # an argparse group would make usage lines of 74 columns
        raise ArgumentError("--workers, --dask and --part exclude each other")
    if out == "-" and (resume or any(engine)):
        raise ArgumentError("--resume, --workers, --dask and --part need a file; --out - is stdout")
    if out[-1:] in ("", "/"):
        raise ArgumentError(f"--out needs a file, or - for stdout; got {short_repr(out)}")
    if any(engine) and not find_spec("distributed"):
        raise ArgumentError(
            "--workers and --dask need Dask: pip install 'tiedgpt[dask]', or use --part"
        )
    files = list(shards.find_files(args.inputs))
    _, checkpoint, tokenizer = common.open_model(args.model)
    if args.head == "untied" and not checkpoint.has_own_unembedding:
        note(
            "this checkpoint has no W_U of its own: a copy of wte.T is used, and the rows are the same"
        )
    args.special = "token" if args.allow_special else "error"
    if args.command == "score":
        args.stride = stride_or_default(args.stride, checkpoint.config)
    names = ("command", "field", "scores_only", "shard_size", *shards.ARGUMENTS[args.command])
    settings = {
        "model": str(checkpoint.path.absolute()),
        "head": args.head or checkpoint.config.head,
    }
    settings |= {name: getattr(args, name) for name in names} | shards.identity(
        checkpoint, tokenizer
    )
    if out == "-":
        pieces = shards.read_all(files, args.shard_size)
        rows = (
            row for shard, lines in pieces for row in shards.make_rows(settings, lines, shard.line)
        )
        total, errors = shards.write_rows(rows, sys.stdout.buffer)
    else:
        output, (number, of) = shards.Output(out, note), part or (0, 1)
        with nullcontext() if part else lock_directory(output.directory):
            settings, planned = output.plan(files, settings, resume)
            try:
                left = output.missing(planned[number::of])
                with ProgressBar(
                    args.command, sum(shard.lines for shard in left), "row"
                ) as progress:
                    do = partial(shards.do_shard, output.directory, settings)
                    if left and any(engine):
                        from ..scale import dask

                        with dask.connect(*engine) as client:
                            if not client.nthreads():
                                note("the Dask scheduler has no workers yet; waiting for them")
                            dask.do_shards(client, do, left, progress.add)
                    else:
                        for shard in left:
                            do(shard, progress.add)
                if part:
                    count = f"{len(output.missing(planned)):,} of {len(planned):,} shards left"
                    note(
                        f"part {number}/{of} is done, {count}; with none left, run --resume to join"
                    )
                    return
                total, errors = output.finish(planned)
            except BaseException:
                note("the parts that are done are kept; the same command with --resume continues")
                raise
    note(f"{total:,} row{'s' * (total != 1)} in {out}, {errors:,} with an error")
    if args.strict and errors:
        raise TiedGPTError(f"{errors:,} of {total:,} rows have an error")
