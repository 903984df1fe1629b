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
from ..gpt2.run import OnProgress
from .shards import Shard

# Dask's setting for an environment variable of new workers, which says what they log.
WORKERS_LOG = "distributed.nanny.pre-spawn-environ.DASK_LOGGING__DISTRIBUTED"
CONNECT = 10  # seconds to wait for a scheduler, and at the end for workers
# The errors if no server answers, if it is of another kind, or if a file is not a scheduler's.
NO_SCHEDULER = (
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
    logging.disable()  # what matters is raised
    try:
        with ExitStack() as stack:
            if workers:
                cluster = stack.enter_context(new_workers(workers))
                address = cluster.scheduler_address
            scheduler = find_scheduler(str(address))
            # do_at_once is given this client, so it need not be the default of the process.
            yield stack.enter_context(Client(scheduler, set_as_default=False, timeout=CONNECT))
    finally:
        logging.disable(logging.NOTSET)


@contextmanager
def new_workers(count: int) -> Iterator[LocalCluster]:
    """New processes on this machine, which end with the block."""
    cluster = start_workers(count)
    try:
        try:
            yield cluster
        finally:
            # A worker that is just being started again would print errors if the cluster closed.
            _quietly(cluster.wait_for_workers, count, CONNECT)
    finally:
        _quietly(cluster.close)


def find_scheduler(address: str) -> str:
    """The address of a scheduler that answers, from its address or the file that it wrote.

    Raises TiedGPTError if there is none.
    """
    scheduler = address
    try:
        is_file = "://" not in address
        if is_file:
            description = json.loads(Path(address).read_text(encoding="utf-8"))
            scheduler = str(description["address"])
        asyncio.run(_ask_identity(scheduler))
    except NO_SCHEDULER as error:
        reason = str(error) or "no answer"  # asyncio's TimeoutError has no text
        raise TiedGPTError(f"no Dask scheduler at {scheduler}: {reason}") from error
    return scheduler


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
                memory_limit=0,  # 0 is no limit, at which Dask would stop a worker
            )
    except (RuntimeError, OSError) as error:  # a worker was killed while it started
        raise TiedGPTError(f"the workers cannot be started: {error}") from error


def _quietly(do: Callable[..., Any], *arguments: Any) -> None:
    """Call `do`, whatever it raises. The work is done then, so nothing that fails matters."""
    with suppress(Exception):
        do(*arguments)


async def _ask_identity(scheduler: str) -> None:
    """Ask a server who it is, and raise if it is not a scheduler. A Client would wait for ever."""
    async with rpc(scheduler, connection_args=Security().get_connection_args("client")) as server:
        await asyncio.wait_for(server.identity(), CONNECT)


def do_shards(
    client: Client, task: Callable[[Shard], None], shards: list[Shard], progress: OnProgress
) -> None:
    """Call task(shard) for each shard on the workers; `progress` gets the rows of each.

    A shard whose worker has died four times (Dask's limit) is tried once more when the others are
    done, alone: it may not have been the one that killed the worker. Raises TiedGPTError if that
    fails too, if the scheduler is lost, and for what a worker raises.
    """
    try:
        killers = []
        suspects = do_at_once(client, task, shards, progress)
        for shard in suspects:
            killers += do_at_once(client, task, [shard], progress)
    except (CommClosedError, ClosedClientError, CancelledError) as error:
        raise TiedGPTError("the connection to the Dask scheduler is lost") from error
    except (AttributeError, ImportError, pickle.PickleError) as error:
        # The worker has another version of tiedgpt, or none.
        raise TiedGPTError(f"a worker cannot run tiedgpt {__version__}: {error}") from error
    if killers:
        names = ", ".join(f"{shard.part} (from line {shard.line})" for shard in killers)
        raise TiedGPTError(f"workers died at {len(killers)} shards: {names}; the others are done")


def do_at_once(
    client: Client, task: Callable[[Shard], None], shards: list[Shard], progress: OnProgress
) -> list[Shard]:
    """Do shards at the same time. Returns those that are not done, because their workers died."""
    # pure=False: the result of an equal task of an earlier run does not count.
    futures = client.map(task, shards, pure=False)
    shard_of_future = dict(zip(futures, shards, strict=True))
    killers = []
    # Dask keeps a result as long as there is a name for its future. So `futures` goes, and each
    # future leaves the dict when it is done.
    del futures
    # Without `loop`, as_completed would look for the process's default client, and there is none.
    for future in as_completed(list(shard_of_future), loop=client.loop):
        shard = shard_of_future.pop(future)
        try:
            future.result()
        except KilledWorker:
            killers.append(shard)
            continue
        if progress is not None:
            progress(shard.lines)
    return killers
