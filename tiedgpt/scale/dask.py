"""Shards on the workers of a Dask cluster: processes of this machine, or a scheduler that is running already.

Dask starts a task again if its worker dies. A task carries the directory of parts and a shard's number; the
worker reads the rest from the files, so they must be on storage that all workers see. What is done is what
has a part, so the scheduler holds nothing that would be lost with it.
"""

import asyncio
import json
import logging
import pickle
from collections.abc import Iterator
from concurrent import futures
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import dask
from distributed import Client, KilledWorker, LocalCluster
from distributed.client import ClosedClientError
from distributed.comm import CommClosedError
from distributed.comm import connect as open_connection
from distributed.security import Security

from .. import __version__
from ..errors import TiedGPTError
from ..fast.threads import ctrl_c_for_this_process_only
from .shards import Progress, Shard, do_shard

CONNECT = 10  # seconds until a scheduler must have answered
AHEAD = 3  # tasks for each thread: enough that no worker waits, few to start again if the workers die


@contextmanager
def connect(workers: int | None, address: str | None) -> Iterator[Client]:
    """A client of `workers` new processes here, or of the scheduler at an address or in a file."""
    for name in logging.root.manager.loggerDict:
        if name.startswith(("distributed", "tornado", "asyncio")):
            logging.getLogger(name).setLevel(logging.CRITICAL)  # what matters is raised
    with ExitStack() as stack, dask.config.set({"distributed.comm.timeouts.connect": f"{CONNECT}s"}):
        if workers:
            try:
                with ctrl_c_for_this_process_only():
                    cluster = LocalCluster(
                        n_workers=workers,
                        threads_per_worker=1,
                        host="127.0.0.1",
                        dashboard_address=None,
                        memory_limit=0,
                        silence_logs=logging.CRITICAL,
                    )
            except (RuntimeError, OSError) as error:  # a worker was killed while it started
                raise TiedGPTError(f"the workers cannot be started: {error}") from error
            address = stack.enter_context(cluster).scheduler_address
        try:
            if "://" not in str(address):
                address = json.loads(Path(str(address)).read_text(encoding="utf-8"))["address"]
            asyncio.run(_try(str(address)))
        except (OSError, ValueError, LookupError, TypeError) as error:
            raise TiedGPTError(f"no Dask scheduler at {address}: {error or 'no answer'}") from error
        yield stack.enter_context(Client(address, set_as_default=False, timeout=CONNECT))


async def _try(address: str) -> None:
    """Connect and shake hands. (A Client waits for a server of another kind without end.)"""
    security = Security().get_connection_args("client")
    connection = await asyncio.wait_for(open_connection(address, **security), CONNECT)
    await connection.close()


def do_shards(client: Client, directory: Path, key: str, shards: list[Shard], progress: Progress) -> None:
    """Do the shards of the plan `key`; call progress(rows) after each.

    A shard that has killed its worker four times is tried once more when the others are done, alone. Raises
    TiedGPTError if that fails too, if the scheduler is lost, and for what a worker raises.
    """
    left, killers = list(reversed(shards)), []  # killers: shards whose workers died
    running: dict[futures.Future[Any], Shard] = {}
    pool = client.get_executor(pure=False)
    try:
        for alone in (False, True):
            while left or running:
                window = 1 if alone else AHEAD * max(1, sum(client.nthreads().values()))
                while left and len(running) < window:
                    shard = left.pop()
                    running[pool.submit(do_shard, directory, key, shard.number)] = shard
                ended = futures.wait(running, 0.5, futures.FIRST_COMPLETED).done
                if client.status != "running":
                    raise CommClosedError
                for future in ended:
                    shard = running.pop(future)
                    try:
                        future.result()
                        progress(shard.lines)
                    except KilledWorker:
                        killers.append(shard)
            if not alone:
                left, killers = killers, []
    except (CommClosedError, ClosedClientError, futures.CancelledError) as error:
        raise TiedGPTError("the connection to the Dask scheduler is lost") from error
    except (AttributeError, ImportError, pickle.PickleError) as error:  # another version, or none
        raise TiedGPTError(f"a worker cannot run tiedgpt {__version__}: {error}") from error
    finally:
        if client.status == "running":
            pool.shutdown(wait=False)  # which cancels what runs
    if killers:
        lines = ", ".join(
            f"{shard.number} (line {shard.line} to {shard.line + shard.lines - 1})" for shard in killers
        )
        raise TiedGPTError(f"workers died at {len(killers)} shards: {lines}; the others are done")
