"""Shards on Dask: the bytes of one process, with workers, drivers and schedulers that are killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import command
from test_shards import arguments, score, source, whole  # noqa: F401

from tiedgpt.scale import shards

pytest.importorskip("distributed", reason="Dask is not installed: pip install 'tiedgpt[dask]'")
pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the workers in /proc"),
    pytest.mark.filterwarnings("default"),  # of Dask's own code
]

TIMEOUT = 60  # seconds, for one step of a test

# Workers import this at their start. A document with WAIT stops its worker until the file `go` is there; one
# with EXIT ends it.
HOOKS = """
import os, sys, time
if "distributed" in " ".join(sys.argv) + " ".join(sys.orig_argv) or "spawn" in " ".join(sys.orig_argv):
    from tiedgpt.scale import shards
    original = shards.read_record

    def read_record(line, *rest, **settings):
        if b"EXIT" in line:
            os._exit(1)
        if b"WAIT" in line and not os.path.exists("go"):
            open(f"waiting-{os.getpid()}", "w").close()
            while not os.path.exists("go"):
                time.sleep(0.02)
        return original(line, *rest, **settings)

    shards.read_record = read_record
"""


def wait_for(condition: Callable[[], object]) -> object:
    end = time.monotonic() + TIMEOUT
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def waiting(folder: Path) -> list[int]:
    return sorted(int(path.name.partition("-")[2]) for path in folder.glob("waiting-*"))


def alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


class Runs:
    """`documents score` as a process, in a folder with the hooks; what is started is ended after the test."""

    def __init__(self, folder: Path, model: str) -> None:
        self.folder, self.model, self.output = folder, model, folder / "out.jsonl"
        self.processes: list[subprocess.Popen] = []
        checkout = str(Path(__file__).resolve().parents[1])
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder), checkout]),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0",
        }

    def hooks(self, more: str = "") -> None:
        (self.folder / "sitecustomize.py").write_text(HOOKS + more)

    def insert(self, text: str) -> None:
        """Add a document after 30 others."""
        lines = (self.folder / "in.jsonl").read_bytes().splitlines(keepends=True)
        lines.insert(30, json.dumps({"id": "hook", "text": text}).encode() + b"\n")
        (self.folder / "in.jsonl").write_bytes(b"".join(lines))

    def popen(self, *arguments: str) -> subprocess.Popen:
        options = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "start_new_session": True}
        process = subprocess.Popen(arguments, cwd=self.folder, env=self.environment, text=True, **options)
        self.processes.append(process)
        return process

    def start(self, *flags: str, out: str = "out.jsonl") -> subprocess.Popen:
        return self.popen(*command(*arguments(self.model, out, *flags, file="in.jsonl")))

    def finish(self, process: subprocess.Popen, code: int = 0) -> str:
        out, err = process.communicate(timeout=TIMEOUT)
        assert (process.returncode, out) == (code, ""), err
        assert "Traceback" not in err
        assert err.count("\n") < 8, err
        return err

    def complete(self, *flags: str) -> None:
        """Resume the run in one process, if it is not complete; its bytes are those of one process."""
        (self.folder / "go").touch()
        if not self.output.exists():
            self.finish(self.start("--resume", *flags))
        self.finish(self.start(*flags, out="serial"))
        assert self.output.read_bytes() == (self.folder / "serial").read_bytes(), flags
        self.output.unlink()
        (self.folder / "serial").unlink()

    def dask(self, program: str, *flags: str) -> subprocess.Popen:
        start = f"from distributed.cli.dask_{program} import main; main()"
        known = ("--scheduler-file", "scheduler.json", "--host", "127.0.0.1", "--no-dashboard")
        return self.popen(sys.executable, "-c", start, *known, *flags)

    def scheduler(self) -> subprocess.Popen:
        process = self.dask("scheduler", "--port", "0")
        wait_for((self.folder / "scheduler.json").exists)
        return process

    def worker(self) -> subprocess.Popen:
        return self.dask("worker", "--nthreads", "1", "--no-nanny", "--memory-limit", "0")


@pytest.fixture
def runs(tmp_path, checkpoint, source):  # noqa: F811
    runs = Runs(tmp_path, checkpoint)
    runs.hooks()
    (tmp_path / "in.jsonl").write_bytes(source.read_bytes())
    yield runs
    for process in runs.processes:
        process.kill()
        with suppress(ValueError):  # it was read before
            process.communicate()


@pytest.mark.parametrize("flags", [("--workers", "2"), ("--dask", "scheduler.json")])
def test_two_workers_write_the_bytes_of_one_process(runs, whole, flags):  # noqa: F811
    if "--dask" in flags:
        runs.scheduler()
    process = runs.start(*flags)
    if "--dask" in flags:  # for which it waits
        runs.worker()
        runs.worker()
    assert "60 rows in out.jsonl" in runs.finish(process)
    assert runs.output.read_bytes() == whole


@pytest.mark.parametrize("what", ["worker", "driver", "scheduler", "Ctrl-C"])
def test_a_kill_changes_nothing_and_leaves_no_worker(runs, what):
    runs.insert("WAIT here")
    scheduler = runs.scheduler() if what == "scheduler" else None
    if scheduler:
        runs.worker()
    if what == "worker":
        runs.environment.pop("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES")
    process = runs.start(*(("--dask", "scheduler.json") if scheduler else ("--workers", "2")))
    [worker] = wait_for(lambda: waiting(runs.folder))
    if what == "worker":
        os.kill(worker, signal.SIGKILL)
        wait_for(lambda: len(waiting(runs.folder)) == 2)  # another worker has the shard now
        (runs.folder / "go").touch()
        runs.finish(process)
        assert runs.output.exists()
    elif what == "driver":
        process.kill()
        process.communicate()
        wait_for(lambda: not alive(worker))
        assert list((runs.folder / "out.jsonl.parts").glob("0*.jsonl"))
        (runs.folder / "go").touch()
        runs.finish(runs.start("--workers", "1", "--resume"))
    elif what == "scheduler":
        scheduler.kill()
        err = runs.finish(process, 2)
        assert "error: the connection to the Dask scheduler is lost" in err
        assert "the same command with --resume continues" in err
    else:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        (runs.folder / "go").touch()
        assert "the same command with --resume continues" in runs.finish(process, 130)
        wait_for(lambda: not alive(worker))
    runs.complete()


def test_a_document_that_kills_its_workers_stops_its_shard_only(runs):
    runs.insert("EXIT here")
    assert "error: workers died at 1 shards: " in runs.finish(runs.start("--workers", "2"), 2)
    parts = runs.folder / "out.jsonl.parts"
    assert len(list(parts.glob("0*.jsonl"))) == 7
    runs.complete()  # in this process, which has no hook


def test_a_worker_that_did_another_job_does_this_one(runs):
    """With another model, or the same model and other settings, to the same output."""
    runs.scheduler()
    runs.worker()
    for flags in (("-m", "shakespeare-tied"), ("-m", "shakespeare-untied"), ("--scores-only",), ()):
        runs.finish(runs.start("--dask", "scheduler.json", *flags))
        assert runs.output.exists()
        runs.complete(*flags)


@pytest.mark.parametrize("count", [1, 2])
def test_workers_that_are_killed_while_they_start_are_one_line(runs, count):
    runs.hooks("    import signal; os.kill(os.getpid(), signal.SIGKILL)\n")
    err = runs.finish(runs.start("--workers", str(count)), 2)
    assert "error: the workers cannot be started: " in err
    assert "the same command with --resume continues" in err


def test_a_worker_with_another_version_is_an_error(runs):
    runs.scheduler()
    runs.hooks("    shards.__version__ = '0.0.9'\n")
    runs.worker()
    err = runs.finish(runs.start("--dask", "scheduler.json"), 2)
    assert "this worker has another tiedgpt: '0.0.9', not " in err


@pytest.mark.parametrize(
    "address",
    [
        "missing.json",
        "in.jsonl",
        "what://x",
        pytest.param("tcp://127.0.0.1:1", marks=pytest.mark.slow),  # tries for ten seconds
        pytest.param("HTTP", marks=pytest.mark.slow),
    ],
)
def test_no_scheduler_there(runs, address):
    if address == "HTTP":
        server = runs.popen(sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1")
        port = server.stdout.readline().split("port ")[1].split()[0]
        address = f"tcp://127.0.0.1:{port}"
    err = runs.finish(runs.start("--dask", address), 2)
    assert f"error: no Dask scheduler at {address}: " in err


def test_two_threads_of_a_worker_load_one_model(monkeypatch, checkpoint):
    loads, checkpoint = [], shards.open_checkpoint(Path(checkpoint))
    load = type(checkpoint).load
    monkeypatch.setattr(type(checkpoint), "load", lambda *rest: loads.append(rest) or load(*rest))
    monkeypatch.setattr(shards, "single_thread", lambda: None)
    identity = shards.identity(checkpoint, shards.read_tokenizer(checkpoint.path))
    settings = {**identity, "model": str(checkpoint.path), "head": "tied", "threads": 8}
    with ThreadPoolExecutor(8) as pool:
        assert len(set(map(id, pool.map(shards.load, [settings] * 8)))) == len(loads) == 1
