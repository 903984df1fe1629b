"""Shards on the workers of a Dask cluster: processes of this machine, or a scheduler that is running already.

Dask starts a task again if its worker dies. A task carries the directory of parts and a shard's number; the
worker reads the rest from the files, so they must be on storage that all workers see. A worker loads the
model once. What is done is what has a part, so the scheduler holds nothing that would be lost with it.
"""

import asyncio
import json
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager
from queue import Empty, SimpleQueue
from typing import Any

import dask
from distributed import Client, Future, KilledWorker, LocalCluster
from distributed.client import ClosedClientError
from distributed.comm import CommClosedError
from distributed.comm import connect as open_connection
from distributed.security import Security

from ..cli.terminal import note
from ..errors import TiedGPTError
from .rows import ctrl_c_for_this_process_only, open_job
from .shards import Shard

CONNECT = 10  # seconds until a scheduler must have answered
AHEAD = 3  # tasks for each thread: enough that no worker waits, few to start again if the workers die

LOST = "the connection to the Dask scheduler is lost"


@contextmanager
def connect(workers: int | None, address: str | None) -> Iterator[Client]:
    """A client of `workers` new processes here, or of the scheduler at an address or in a file."""
    for name in [name for name in logging.root.manager.loggerDict if name.startswith("distributed")]:
        logging.getLogger(name).setLevel(logging.CRITICAL)  # what matters is raised
    with ExitStack() as stack, dask.config.set({"distributed.comm.timeouts.connect": f"{CONNECT}s"}):
        if workers:
            with ctrl_c_for_this_process_only():
                cluster = LocalCluster(
                    n_workers=workers,
                    threads_per_worker=1,
                    host="127.0.0.1",
                    dashboard_address=None,
                    memory_limit=0,
                    silence_logs=logging.CRITICAL,
                )
            address = stack.enter_context(cluster).scheduler_address
        try:
            address = _read_address(str(address))
            asyncio.run(_try(address))
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise TiedGPTError(f"no Dask scheduler at {address}: {error or 'no answer'}") from error
        client = Client(address, set_as_default=False, timeout=CONNECT)
        yield stack.enter_context(client)


async def _try(address: str) -> None:
    """Connect and shake hands. (A Client waits for a server of another kind without end.)"""
    security = Security().get_connection_args("client")
    connection = await asyncio.wait_for(open_connection(address, **security), CONNECT)
    await connection.close()


def _read_address(address: str) -> str:
    """The address itself, or the one in a scheduler file."""
    if "://" in address:
        return address
    with open(address, encoding="utf-8") as file:
        return str(json.load(file)["address"])


class Tasks:
    """Tasks of a client, in the order in which they end."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._ended: SimpleQueue[Future] = SimpleQueue()
        self.running: dict[Future, Any] = {}

    def submit(self, label: Any, function: Callable[..., Any], *args: Any) -> Future:
        """Start function(*args) on a worker, after the futures among `args`."""
        future = self._client.submit(function, *args, pure=False)
        self.running[future] = label
        future.add_done_callback(self._ended.put)
        return future

    def next(self) -> tuple[Any, Future]:
        """Wait for the next task to end; return its label and its future."""
        while True:
            try:
                future = self._ended.get(timeout=0.5)
            except Empty:
                if self._client.status == "running":
                    continue
                future = None
            if future is None or future.cancelled():
                raise TiedGPTError(LOST)
            return self.running.pop(future), future

    def cancel(self) -> None:
        self._client.cancel(list(self.running))


def do_shard(directory: str, number: int) -> dict[str, int]:
    """What a worker does."""
    job = open_job(directory)
    return job.do(job.plan.shards[number])


def run_shards(
    client: Client, directory: str, shards: list[Shard], done: Callable[[Shard, dict[str, int], int], Any]
) -> None:
    """Do the shards; call done(shard, counts, number of workers) after each.

    A shard that has killed its worker four times is tried once more when the others are done, alone. Raises
    TiedGPTError if that fails too, if the scheduler is lost, and for what a worker raises.
    """
    if not client.nthreads():
        note("the Dask scheduler has no workers yet; waiting for them")
    killers: list[Shard] = []  # shards whose workers died
    left = list(reversed(shards))
    tasks = Tasks(client)
    try:
        for alone in (False, True):
            if alone:
                left, killers = killers, []
            while left or tasks.running:
                window = 1 if alone else AHEAD * max(1, sum(client.nthreads().values()))
                while left and len(tasks.running) < window:
                    shard = left.pop()
                    tasks.submit(shard, do_shard, os.path.abspath(directory), shard.number)
                shard, future = tasks.next()
                try:
                    done(shard, future.result(), len(client.nthreads()))
                except KilledWorker:
                    killers.append(shard)
    except (CommClosedError, ClosedClientError, CancelledError) as error:
        raise TiedGPTError(LOST) from error
    finally:
        if client.status == "running":
            tasks.cancel()
    if killers:
        lines = ", ".join(
            f"{shard.number} (line {shard.line} to {shard.line + shard.lines - 1})" for shard in killers
        )
        raise TiedGPTError(f"workers died at {len(killers)} shards: {lines}; the others are done")
