"""Shards on the workers of a Dask cluster: processes of this machine, or a scheduler that is
running already.

Dask starts a task again if its worker dies. A task carries what a shard is, not its text, so the
files must be on storage that all workers see. The scheduler holds nothing that would be lost with
it.
"""

import asyncio
import json
import logging
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from dask import config
from distributed import Client, KilledWorker, LocalCluster, Security, as_completed, rpc
from distributed.client import ClosedClientError
from distributed.comm import CommClosedError

from .. import __version__
from ..errors import TiedGPTError
from ..fast.threads import ctrl_c_for_this_process_only
from .shards import Shard

# The setting that a worker's log is read from when the worker starts
WORKERS_LOG = "distributed.nanny.pre-spawn-environ.DASK_LOGGING__DISTRIBUTED"
CONNECT = 10  # seconds to wait for a scheduler, and at the end for workers
NO_SCHEDULER = (  # what another kind of server, another file and no answer raise
    OSError,
    ValueError,
    LookupError,
    TypeError,
    MemoryError,
    asyncio.TimeoutError,
)


@contextmanager
def connect(workers: int | None, address: str | None) -> Iterator[Client]:
    """A client of `workers` new processes here, or of the scheduler at an address or in a file.

    Raises TiedGPTError if the workers cannot be started, or if there is no scheduler.
    """
    with ExitStack() as stack:
        logging.disable()  # what matters is raised
        stack.callback(logging.disable, logging.NOTSET)
        if workers:
            cluster = start_workers(workers)
            stack.callback(_quietly, cluster.close)
            # Close the cluster when no worker is being started again, or its end is noisy.
            stack.callback(_quietly, cluster.wait_for_workers, workers, CONNECT)
            address = cluster.scheduler_address
        scheduler = str(address)
        try:
            if "://" not in scheduler:  # the name of a file that a scheduler wrote
                description = json.loads(Path(scheduler).read_text(encoding="utf-8"))
                scheduler = str(description["address"])
            asyncio.run(_ask_identity(scheduler))
        except NO_SCHEDULER as error:
            raise TiedGPTError(
                f"no Dask scheduler at {scheduler}: {error or 'no answer'}"
            ) from error
        yield stack.enter_context(Client(scheduler, set_as_default=False, timeout=CONNECT))


def start_workers(count: int) -> LocalCluster:
    """New processes on this machine, each with one thread, that log nothing."""
    try:
        with ctrl_c_for_this_process_only(), config.set({WORKERS_LOG: "critical"}):
            return LocalCluster(
                n_workers=count,
                threads_per_worker=1,
                silence_logs=logging.CRITICAL,
                host="127.0.0.1",
                dashboard_address=None,
                memory_limit=0,
            )
    except (RuntimeError, OSError) as error:  # a worker was killed while it started
        raise TiedGPTError(f"the workers cannot be started: {error}") from error


def _quietly(do: Callable[..., Any], *arguments: Any) -> None:
    """Call `do` when the work is done, whatever it raises: Dask may be starting a worker again."""
    with suppress(Exception):
        do(*arguments)


async def _ask_identity(scheduler: str) -> None:
    """Ask a server who it is. A Client would wait without end for another kind of server."""
    async with rpc(scheduler, connection_args=Security().get_connection_args("client")) as server:
        await asyncio.wait_for(server.identity(), CONNECT)


def do_shards(client: Client, task: Callable[..., Any], shards: list[Shard], progress: Any) -> None:
    """Call task(shard) for each shard on the workers, and progress(rows) after each.

    A shard that has killed its worker four times is tried once more when the others are done,
    alone. Raises TiedGPTError if that fails too, if the scheduler is lost, and for what a worker
    raises.
    """

    try:
        killers = []
        for shard in do_at_once(client, task, shards, progress):
            killers += do_at_once(client, task, [shard], progress)
    except (CommClosedError, ClosedClientError, CancelledError) as error:
        raise TiedGPTError("the connection to the Dask scheduler is lost") from error
    except (AttributeError, ImportError, pickle.PickleError) as error:  # another version, or none
        raise TiedGPTError(f"a worker cannot run tiedgpt {__version__}: {error}") from error
    if killers:
        names = ", ".join(f"{shard.part} (from line {shard.line})" for shard in killers)
        raise TiedGPTError(f"workers died at {len(killers)} shards: {names}; the others are done")


def do_at_once(
    client: Client, task: Callable[..., Any], shards: list[Shard], progress: Callable[[int], Any]
) -> list[Shard]:
    """Do shards at the same time. Returns those whose workers died."""
    futures = client.map(task, shards, pure=False)
    shard_of_future = dict(zip(futures, shards, strict=True))
    killers = []
    del futures  # so that a future that is done is forgotten, and its result with it
    for future in as_completed(list(shard_of_future), loop=client.loop):
        shard = shard_of_future.pop(future)
        try:
            future.result()
            progress(shard.lines)
        except KilledWorker:
            killers.append(shard)
    return killers
