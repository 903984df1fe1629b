"""Do the jobs that are missing, several at a time, and append what each returns to runs.jsonl.

A job is a call that measures something, such as the training of one model. Its result does not
depend on the other jobs. A job whose line is in the file is not done again.

A line of runs.jsonl is JSON: {"run": what determines the result, "text": the name of the text,
"result": numbers by name}. The key of a line is made of its "run" and its "text".
"""

import json
import multiprocessing
import os
import signal
from _thread import start_new_thread
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from tiedgpt import TiedGPTError
from tiedgpt.fast.blas import single_thread
from tiedgpt.fast.threads import ctrl_c_for_this_process_only

Line = dict[str, Any]


@dataclass(frozen=True)
class Job:
    """A call that measures something, and what determines its result."""

    run: Line  # what the line of runs.jsonl has as "run"
    text: str  # the name of the text, "" if it needs none
    function: Callable[..., Line]
    arguments: tuple[Any, ...]
    work: int = 60  # its time in seconds, roughly

    @property
    def key(self) -> str:
        return key_of(self.run, self.text)


def key_of(run: Line, text: str) -> str:
    """What tells a line of runs.jsonl from all other lines: its run and its text."""
    return json.dumps([run, text], sort_keys=True)


def measured(job: Job) -> Line:
    """The line of a job, done with one thread: what was measured, with six significant digits."""
    single_thread()
    try:
        result = job.function(*job.arguments)
    except FloatingPointError:
        result = {"diverged": 1}
    rounded = {name: six_digits(value) for name, value in result.items()}
    return {"run": job.run, "text": job.text, "result": rounded}


def six_digits(value: float) -> float:
    """A number as runs.jsonl has it. A count, which is an int, stays as it is."""
    if isinstance(value, int):
        return value
    return float(f"{value:.6g}")


@contextmanager
def processes(workers: int) -> Iterator[Executor]:
    """Processes on this machine. At the end of the `with` block they finish their jobs and end.

    If the block raises, or this process ends, they end in the middle of their jobs.
    """
    os.environ["OPENBLAS_NUM_THREADS"] = "1"  # the new processes inherit it
    pool = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),  # a fork would copy threads and locks
        initializer=start_new_thread,  # each process begins with end_with_parent in a thread
        initargs=(end_with_parent, ()),
    )
    with pool:
        try:
            yield pool
        except BaseException:
            # The end of `with pool` would wait for the jobs that are running.
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def end_with_parent() -> None:
    """In a thread: wait until the process that started this one has ended, and end this one."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()  # returns when the parent has ended, also if a signal ended it
    os._exit(1)  # sys.exit would end the thread alone


@contextmanager
def signals_later() -> Iterator[None]:
    """Handle Ctrl-C and SIGTERM at the end of the block, if one comes in the block.

    The block starts processes. If this process ended in the middle of it, a process that is just
    starting would print a traceback.
    """
    noted: list[int] = []

    def note(number: int, _: object) -> None:
        noted.append(number)

    usual_handlers = {
        number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        yield
    finally:
        for number, handler in usual_handlers.items():
            signal.signal(number, handler)
    if noted:
        signal.raise_signal(noted[0])  # its usual handler ends this process


def do_jobs(jobs: list[Job], path: Path, workers: int) -> None:
    """Do the jobs in their order, and append a line for each to the file `path`."""
    if not jobs:
        return
    seconds = sum(job.work for job in jobs)
    form = "{desc} {percentage:3.0f} % |{bar}| {elapsed}, {remaining} left"
    with processes(workers) as executor, tqdm(total=seconds, bar_format=form) as bar:
        # `submit` starts the processes. signals_later: this process handles a signal only when all
        # of them have been started. ctrl_c_for_this_process_only: Ctrl-C does not reach the
        # started processes, and this process ends them.
        with signals_later(), ctrl_c_for_this_process_only():
            futures = {executor.submit(measured, job): job for job in jobs}
        try:
            for number, future in enumerate(as_completed(futures), 1):
                line = json.dumps(future.result())
                with open(path, "a", encoding="utf-8") as file:
                    file.write(line + "\n")  # a line is complete if it ends in a line break
                bar.update(futures[future].work)
                bar.set_description(f"{number} of {len(jobs)} runs")
        except BrokenProcessPool as error:
            message = "a process was killed, perhaps for lack of memory; the same command continues"
            raise TiedGPTError(message) from error


def read_lines(path: Path) -> dict[str, Line]:
    """The results of runs.jsonl by key.

    An incomplete last line, which a killed process leaves, is removed from the file.
    """
    if not path.exists():
        return {}
    data = path.read_bytes()
    complete_size = data.rfind(b"\n") + 1  # the bytes up to the last line break
    if complete_size < len(data):
        os.truncate(path, complete_size)
    results: dict[str, Line] = {}
    for number, text in enumerate(data[:complete_size].splitlines(), 1):
        try:
            add_line(results, text)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise TiedGPTError(
                f"{path}, line {number}: expected a run of this script; "
                "remove the line to do its run again"
            ) from error
    return results


def add_line(results: dict[str, Line], text: bytes) -> None:
    """Add the result of a line. Raises ValueError for two different results of one run."""
    line = json.loads(text)
    result = {name: float(value) for name, value in line["result"].items()}
    if not result:
        raise ValueError("there is no result")
    key = key_of(line["run"], line["text"])
    if key in results and results[key] != result:
        raise ValueError("there are two results of one run")
    results[key] = result
