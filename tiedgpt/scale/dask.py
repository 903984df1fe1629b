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

WORKERS_LOG = (
    "distributed.nanny.pre-spawn-environ.DASK_LOGGING__DISTRIBUTED"  # set before a worker starts
)
CONNECT = 10  # seconds to wait for a scheduler, and at the end for workers


@contextmanager
def connect(workers: int | None, address: str | None) -> Iterator[Client]:
    """A client of `workers` new processes here, or of the scheduler at an address or in a file."""
    with ExitStack() as stack:
        logging.disable()  # what matters is raised
        stack.callback(logging.disable, logging.NOTSET)
        if workers:
            options = {"host": "127.0.0.1", "dashboard_address": None, "memory_limit": 0}
            try:
                with ctrl_c_for_this_process_only(), config.set({WORKERS_LOG: "critical"}):
                    cluster = LocalCluster(
                        None, workers, 1, silence_logs=logging.CRITICAL, **options
                    )
            except (RuntimeError, OSError) as error:  # a worker was killed while it started
                raise TiedGPTError(f"the workers cannot be started: {error}") from error
            stack.callback(_quietly, cluster.close)
            stack.callback(_quietly, cluster.wait_for_workers, workers, CONNECT)
            address = cluster.scheduler_address
        try:
            if "://" not in str(address):
                address = json.loads(Path(str(address)).read_text(encoding="utf-8"))["address"]
            asyncio.run(_try(str(address)))
        except (
            OSError,
            ValueError,
            LookupError,
            TypeError,
            MemoryError,
            asyncio.TimeoutError,
        ) as error:
            raise TiedGPTError(f"no Dask scheduler at {address}: {error or 'no answer'}") from error
        yield stack.enter_context(Client(address, set_as_default=False, timeout=CONNECT))


def _quietly(do: Callable[..., Any], *arguments: Any) -> None:
    """Call `do` when the work is done. Dask may raise then, above all if it is starting a worker
    again."""
    with suppress(Exception):
        do(*arguments)


async def _try(address: str) -> None:
    """Ask who is there. (A Client waits without end for another kind of server; that may answer
    anything.)"""
    async with rpc(address, connection_args=Security().get_connection_args("client")) as server:
        await asyncio.wait_for(server.identity(), CONNECT)


def do_shards(client: Client, task: Callable[..., Any], shards: list[Shard], progress: Any) -> None:
    """Call task(shard) for each shard on the workers, and progress(rows) after each.

    A shard that has killed its worker four times is tried once more when the others are done,
    alone. Raises TiedGPTError if that fails too, if the scheduler is lost, and for what a worker
    raises.
    """

    def do(some: list[Shard]) -> list[Shard]:
        """Do some shards at once. Returns those whose workers died."""
        killers, running = [], dict(zip(client.map(task, some, pure=False), some, strict=True))
        for future in as_completed(list(running), loop=client.loop):
            shard = running.pop(future)
            try:
                future.result()
                progress(shard.lines)
            except KilledWorker:
                killers.append(shard)
        return killers

    try:
        killers = [killer for shard in do(shards) for killer in do([shard])]
    except (CommClosedError, ClosedClientError, CancelledError) as error:
        raise TiedGPTError("the connection to the Dask scheduler is lost") from error
    except (AttributeError, ImportError, pickle.PickleError) as error:  # another version, or none
        raise TiedGPTError(f"a worker cannot run tiedgpt {__version__}: {error}") from error
    if killers:
        lines = ", ".join(f"{shard.part} (from line {shard.line})" for shard in killers)
        raise TiedGPTError(f"workers died at {len(killers)} shards: {lines}; the others are done")
