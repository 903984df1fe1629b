"""Do the jobs that are missing, several at a time, and append what each returns to runs.jsonl.

A job whose line is in the file, with the same settings and texts, is not done again. So the file is all that
is needed to continue after an interruption. A job is done by one thread, and its result does not depend on
the other jobs, so the number of processes changes no number but those of the clock.
"""

import json
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from zipfile import ZipFile

from tqdm import tqdm

from tiedgpt import TiedGPTError
from tiedgpt.fast.threads import ctrl_c_for_this_process_only

Line = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A call that returns a line, and the settings that determine its result."""

    function: Callable[..., Line]
    arguments: tuple[Any, ...]
    settings: Line  # as JSON
    work: float = 1.0  # its time in seconds, roughly
    file: Path | None = None  # another file that it writes

    @property
    def key(self) -> str:
        return json.dumps(self.settings, sort_keys=True)


@contextmanager
def processes(workers: int) -> Iterator[Executor]:
    """Processes of this machine. They end with the block, also in the middle of a job."""
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # the new processes inherit it
    context = multiprocessing.get_context("spawn")  # a forked process would have this one's threads and locks
    pool = ProcessPoolExecutor(workers, context)
    before = set(multiprocessing.active_children())
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - before:
            process.terminate()
        raise
    finally:
        pool.shutdown()


@contextmanager
def dask(address: str) -> Iterator[Executor]:
    """The workers of a Dask scheduler. They need tiedgpt, and must see the files of OUT."""
    from tiedgpt.scale.dask import connect

    with connect(None, address) as client, TemporaryDirectory() as directory:
        here = Path(__file__).parent
        package = Path(directory, "tying.zip")  # workers import it from here
        with ZipFile(package, "w") as file:
            for module in here.glob("*.py"):
                file.write(module, f"{here.name}/{module.name}")
        client.upload_file(str(package))
        pool = client.get_executor(pure=False)
        try:
            yield pool
        finally:
            pool.shutdown(wait=False)  # cancels what is not done


@contextmanager
def ctrl_c_later() -> Iterator[None]:
    """Raise the KeyboardInterrupt of the block at its end: a half-started process would print a traceback."""
    noted = []
    before = signal.signal(signal.SIGINT, lambda *_: noted.append(True))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if noted:
        raise KeyboardInterrupt


def do_jobs(jobs: Iterable[Job], path: Path, pool: Callable[[], Any]) -> dict[str, Line]:
    """Do the jobs that have no line in the file `path`; return the lines of all jobs by their keys.

    `pool` makes the context of an Executor; it is not called if nothing is missing.
    """

    def milliseconds(job: Job) -> int:
        return round(1000 * job.work)

    jobs = list(jobs)
    lines = read_lines(path)
    done = {job.key for job in jobs if job.key in lines and (job.file is None or job.file.exists())}
    left = sorted((job for job in jobs if job.key not in done), key=lambda job: -job.work)
    if not left:
        return lines
    form = "{desc} {percentage:3.0f} % |{bar}| {elapsed}, {remaining} left"
    with pool() as executor, tqdm(total=sum(map(milliseconds, left)), bar_format=form) as bar:
        bar.set_description(f"{len(done)} of {len(jobs)} runs done")
        with ctrl_c_later(), ctrl_c_for_this_process_only():
            futures = {executor.submit(job.function, *job.arguments): job for job in left}
        try:
            for future in as_completed(futures):
                job = futures[future]
                lines[job.key] = line = {"settings": job.settings, **future.result()}
                with open(
                    path, "a", encoding="utf-8"
                ) as file:  # a line is complete if it ends in a line break
                    file.write(json.dumps(line) + "\n")
                done.add(job.key)
                bar.update(milliseconds(job))
                bar.set_description(f"{len(done)} of {len(jobs)} runs done")
        except BrokenProcessPool as error:
            raise TiedGPTError(
                "the process of a run was killed, perhaps for lack of memory; the same command continues"
            ) from error
    return lines


def read_lines(path: Path) -> dict[str, Line]:
    """The lines of runs.jsonl by key, the last of each. An incomplete last line is removed."""
    if not path.exists():
        return {}
    data = path.read_bytes()
    size = data.rfind(b"\n") + 1
    if size < len(data):
        os.truncate(path, size)
    lines = {}
    for number, text in enumerate(data[:size].splitlines(), 1):
        try:
            line = json.loads(text)
            lines[json.dumps(line["settings"], sort_keys=True)] = line
        except (ValueError, TypeError, KeyError) as error:
            raise TiedGPTError(
                f"{path}, line {number}: expected a run of this script; remove the line to do its run again"
            ) from error
    return lines
