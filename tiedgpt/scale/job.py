"""One run of `tiedgpt documents`: plan the shards, do those that are missing, join their parts."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..checkpoints.publishing import lock_directory
from ..gpt2.run import OnProgress, OpenProgress
from . import shards
from .output import Output
from .rows import Settings
from .shards import Shard

Note = Callable[[str], Any]  # called with each message for the user


@dataclass(frozen=True)
class Job:
    """What to do, who does it, and how to tell the user about it."""

    files: list[str]
    settings: Settings
    out: str
    workers: int | None  # processes of Dask on this machine
    scheduler: str | None  # a Dask scheduler. Without both, this process does all
    note: Note
    progress: OpenProgress


def write_file(job: Job, resume: bool) -> tuple[int, int]:
    """Write all rows to the file `out`; count them, and those with an error.

    `resume` allows it to continue a run that was interrupted. No other process can do all parts of
    the same run meanwhile.
    """
    output = Output(job.out, job.note)
    with lock_directory(output.directory):
        settings, planned = output.plan(job.files, job.settings, resume)
        with parts_are_kept(job.note):
            do_missing(job, output, settings, planned)
            return output.finish(planned)


def do_part(job: Job, number: int, count: int) -> None:
    """Do every `count`th shard, from shard `number`. Other processes do the others."""
    output = Output(job.out, job.note)
    settings, planned = output.plan(job.files, job.settings, resume=True)
    with parts_are_kept(job.note):
        do_missing(job, output, settings, planned[number::count])
        missing = len(output.missing(planned))
    job.note(
        f"part {number}/{count} is done, {missing:,} of {len(planned):,} shards left; with none "
        "left, run --resume to join"
    )


def do_missing(job: Job, output: Output, settings: Settings, planned: list[Shard]) -> None:
    """Do the planned shards that have no part yet."""
    missing = output.missing(planned)
    task = partial(shards.do_shard, output.directory, settings)
    lines = sum(shard.lines for shard in missing)
    with job.progress(settings["command"], lines, "row") as bar:
        if missing and (job.workers or job.scheduler):
            do_with_dask(job, task, missing, bar.add)
        else:
            for shard in missing:
                task(shard, bar.add)


def do_with_dask(
    job: Job, task: Callable[[Shard], None], missing: list[Shard], progress: OnProgress
) -> None:
    """Do shards in processes of Dask, which is an extra and imported here only."""
    from . import dask

    with dask.connect(job.workers, job.scheduler) as client:
        if not client.nthreads():
            job.note("the Dask scheduler has no workers yet; waiting for them")
        dask.do_shards(client, task, missing, progress)


@contextmanager
def parts_are_kept(note: Note) -> Iterator[None]:
    """If the block is interrupted, say that what was done is not lost."""
    try:
        yield
    except BaseException:
        note("the parts that are done are kept; the same command with --resume continues")
        raise
