"""`tiedgpt score --jsonl` and `tiedgpt generate --jsonl`: many documents, in files of JSON lines."""

import argparse
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..checkpoints.files import locked_file
from ..checks import check_stride
from ..errors import ArgumentError, TiedGPTError
from ..scale import shards
from ..scale.rows import FIELDS, Job, Record, fingerprint, single_thread, versions
from ..scale.shards import Plan, Shard
from .common import Progress, load, note, open_model
from .documents import UNITS

LOCK = ".run.lock"  # of the process that joins the parts


def run_documents(args: argparse.Namespace, command: str, arguments: dict[str, Any]) -> None:
    """Do all shards, or those of --part, and join them. `arguments` are those of score_documents etc."""
    out = Path(args.out)
    keeps_parts = args.out.endswith("/") or out.is_dir()
    directory = out if keeps_parts else out.with_name(f"{out.name}.parts")
    if not keeps_parts and out.exists() and not (args.resume and directory.exists()):
        raise ArgumentError(f"{out} exists; remove it or choose another --out")
    field = args.field or args.default_field
    if not args.scores_only:
        check_first_records(args.jsonl, field, FIELDS[command])
    _, checkpoint, tokenizer = open_model(args.model)
    if command == "score":  # before the weights are read
        arguments["stride"] = check_stride(arguments["stride"], checkpoint.config)
    settings = {
        "command": command,
        "model": fingerprint(checkpoint, tokenizer),
        "head": args.head or checkpoint.config.head,
        "field": field,
        "scores_only": args.scores_only,
        "shard_size": args.shard_size or UNITS["MB"],
        **versions(),
        "arguments": arguments,
    }
    path = str(checkpoint.path.absolute())
    plan = shards.begin(directory, args.jsonl, settings, path, args.resume or args.part is not None)
    with resumable(), locked_file(directory / (f".part.{args.part[0]}.lock" if args.part else LOCK)):
        left = shards.missing(directory, plan)
        if args.part:
            left = [shard for shard in left if shard.number % args.part[1] == args.part[0]]
        with Throughput(command, left) as throughput:
            if left and (args.workers or args.dask):
                from ..scale import dask

                with dask.connect(args.workers, args.dask) as client:
                    dask.run_shards(client, str(directory), left, throughput.shard_done)
            elif left:
                single_thread()
                job = Job(directory, plan, load(checkpoint, args.head), tokenizer)
                for shard in left:
                    throughput.shard_done(shard, job.do(shard, throughput.row_done))
        finish(args, directory, plan, None if keeps_parts else out, throughput.rates())


def finish(args: argparse.Namespace, directory: Path, plan: Plan, out: Path | None, rates: str) -> None:
    """Join the parts if none is missing, and say what was done."""
    if args.part:
        left = len(shards.missing(directory, plan))
        note(f"part {args.part[0]}/{args.part[1]} is done{rates}")
        total = len(plan.shards)
        join = "; to join them, run the command with --resume instead of --part" if not left else ""
        note(f"{left:,} of {total:,} shard{'s' * (total != 1)} left{join}")
        return
    counted = [shards.count_rows(directory, shard) for shard in plan.shards]
    rows, errors = sum(rows for rows, _ in counted), sum(errors for _, errors in counted)
    shards.clean(directory)
    if out is not None:
        shards.join(directory, plan, out)
    note(f"{rows:,} row{'s' * (rows != 1)} in {args.out}{rates}")
    if errors:
        message = f"{errors:,} of {rows:,} row{'s have' if rows != 1 else ' has'} an error"
        if args.strict:
            raise TiedGPTError(message)
        note(message)


def check_first_records(names: list[str], field: str, added: tuple[str, ...]) -> None:
    """Raise ArgumentError if the first record of a file has a field that the rows add."""
    for name in names:
        if name != "-" and not Path(name).is_dir():
            with shards.open_input(name) as stream:
                line = stream.readline(shards.MAX_LINE)
            error = Record.of(line, field, added).error
            if error and Record.of(line, field, ()).error is None:
                raise ArgumentError(f"{name}, line 1: {error}")


@contextmanager
def resumable() -> Iterator[None]:
    """On any error or signal, say how to continue."""
    try:
        yield
    except BaseException:
        note("the parts that are done are kept; the same command with --resume continues")
        raise


class Throughput:
    """The progress of a run in bytes of input, with documents and tokens per second."""

    def __init__(self, command: str, left: list[Shard]) -> None:
        doing = {"score": "scoring", "generate": "generating"}[command]
        self._progress = Progress(doing, sum(shard.size for shard in left), "B")
        self._start = time.monotonic()
        self._total = {"rows": 0, "errors": 0, "tokens": 0}  # of complete shards
        self._shown = 0  # bytes of the shard at hand

    def __enter__(self) -> "Throughput":
        return self

    def __exit__(self, *error: Any) -> None:
        self._progress.__exit__(*error)

    def row_done(self, size: int, counts: dict[str, int]) -> None:
        """A row of the shard at hand is done; `counts` are those of its rows so far."""
        self._shown += size
        self._progress.add(size, self.rates(counts))

    def shard_done(self, shard: Shard, counts: dict[str, int], workers: int = 0) -> None:
        for name, number in counts.items():
            self._total[name] += number
        processes = f", {workers} worker{'s' * (workers != 1)}" if workers else ""
        self._progress.add(shard.size - self._shown, self.rates() + processes)
        self._shown = 0

    def rates(self, counts: dict[str, int] | None = None) -> str:
        """Documents and tokens per second, and rows with an error; "" before the first row."""
        total = {name: number + (counts or {}).get(name, 0) for name, number in self._total.items()}
        if not total["rows"]:
            return ""
        seconds = time.monotonic() - self._start
        errors = f", {total['errors']:,} errors" if total["errors"] else ""
        return (
            f", {total['rows'] / seconds:,.1f} documents/s, {total['tokens'] / seconds:,.0f} tokens/s{errors}"
        )
