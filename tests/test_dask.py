"""Shards on Dask: the bytes of one process, with workers, drivers and schedulers that are killed."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from conftest import command
from test_shards import arguments, score, source, whole  # noqa: F401

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
    from tiedgpt.scale import rows
    original = rows.read_record

    def read_record(line, *rest):
        if b"EXIT" in line:
            os._exit(1)
        if b"WAIT" in line and not os.path.exists("go"):
            open(f"waiting-{os.getpid()}", "w").close()
            while not os.path.exists("go"):
                time.sleep(0.02)
        return original(line, *rest)

    rows.read_record = read_record
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
        self.folder, self.model = folder, model
        (folder / "sitecustomize.py").write_text(HOOKS)
        checkout = str(Path(__file__).resolve().parents[1])
        self.environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder), checkout]),
            "XDG_CACHE_HOME": str(folder / "cache"),
            "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0",
        }
        self.processes: list[subprocess.Popen] = []

    def popen(self, *arguments: str) -> subprocess.Popen:
        files = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        process = subprocess.Popen(
            arguments, cwd=self.folder, env=self.environment, text=True, start_new_session=True, **files
        )
        self.processes.append(process)
        return process

    def start(self, *flags: str) -> subprocess.Popen:
        return self.popen(*command(*arguments(self.model, "out.jsonl", *flags, file="in.jsonl")))

    def finish(self, process: subprocess.Popen, code: int) -> str:
        out, err = process.communicate(timeout=TIMEOUT)
        assert (process.returncode, out) == (code, ""), err
        assert "Traceback" not in err
        assert err.count("\n") < 8, err
        return err

    def dask(self, program: str, *flags: str) -> subprocess.Popen:
        start = f"from distributed.cli.dask_{program} import main; main()"
        return self.popen(sys.executable, "-c", start, "--scheduler-file", "scheduler.json", *flags)

    def scheduler(self) -> subprocess.Popen:
        process = self.dask("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        wait_for((self.folder / "scheduler.json").exists)
        return process

    def worker(self) -> subprocess.Popen:
        flags = ("--nthreads", "1", "--no-dashboard", "--no-nanny", "--host", "127.0.0.1")
        return self.dask("worker", *flags, "--memory-limit", "0")


@pytest.fixture
def runs(tmp_path, checkpoint, source):  # noqa: F811
    runs = Runs(tmp_path, checkpoint)
    (tmp_path / "in.jsonl").write_bytes(source.read_bytes())
    yield runs
    for process in runs.processes:
        process.kill()
        with suppress(ValueError):  # it was read before
            process.communicate()


def insert(folder: Path, at: int, text: str) -> None:
    """Add a document after `at` others."""
    lines = (folder / "in.jsonl").read_bytes().splitlines(keepends=True)
    lines.insert(at, json.dumps({"id": "hook", "text": text}).encode() + b"\n")
    (folder / "in.jsonl").write_bytes(b"".join(lines))


@pytest.fixture
def serial(runs) -> Callable[..., bytes]:
    """serial(*flags): the output of one process for the same input."""

    def serial(*flags: str) -> bytes:
        (runs.folder / "go").touch()
        (runs.folder / "serial").unlink(missing_ok=True)
        runs.finish(runs.popen(*command(*arguments(runs.model, "serial", *flags, file="in.jsonl"))), 0)
        return (runs.folder / "serial").read_bytes()

    return serial


def test_two_workers_write_the_bytes_of_one_process(runs, whole):  # noqa: F811
    err = runs.finish(runs.start("--workers", "2"), 0)
    assert "60 rows in out.jsonl" in err
    assert (runs.folder / "out.jsonl").read_bytes() == whole


def test_a_killed_worker_changes_nothing(runs, serial):
    insert(runs.folder, 30, "WAIT here")
    runs.environment.pop("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES")
    process = runs.start("--workers", "2")
    [worker] = wait_for(lambda: waiting(runs.folder))
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: len(waiting(runs.folder)) == 2)  # another worker has the shard now
    (runs.folder / "go").touch()
    runs.finish(process, 0)
    assert (runs.folder / "out.jsonl").read_bytes() == serial()


def test_a_killed_driver_leaves_no_worker_and_is_resumed(runs, serial):
    insert(runs.folder, 30, "WAIT here")
    process = runs.start("--workers", "2")
    [worker] = wait_for(lambda: waiting(runs.folder))
    process.kill()
    process.communicate()
    wait_for(lambda: not alive(worker))
    (runs.folder / "go").touch()
    assert list((runs.folder / "out.jsonl.parts").glob("0*.jsonl"))
    runs.finish(runs.start("--workers", "1", "--resume"), 0)
    assert (runs.folder / "out.jsonl").read_bytes() == serial()


def test_ctrl_c_ends_with_130_and_no_worker(runs, serial):
    insert(runs.folder, 30, "WAIT here")
    process = runs.start("--workers", "2")
    [worker] = wait_for(lambda: waiting(runs.folder))
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    (runs.folder / "go").touch()
    assert "the same command with --resume continues" in runs.finish(process, 130)
    wait_for(lambda: not alive(worker))
    runs.finish(runs.start("--resume"), 0)
    assert (runs.folder / "out.jsonl").read_bytes() == serial()


def test_a_document_that_kills_its_workers_stops_its_shard_only(runs, serial):
    insert(runs.folder, 30, "EXIT here")
    err = runs.finish(runs.start("--workers", "2"), 2)
    assert "error: workers died at 1 shards: " in err
    parts = list((runs.folder / "out.jsonl.parts").glob("0*.jsonl"))
    plan = json.loads((runs.folder / "out.jsonl.parts" / "plan.json").read_text())
    assert len(parts) == len(plan["shards"]) - 1
    expected = serial()
    runs.finish(runs.start("--resume"), 0)  # in this process, which has no such document
    assert (runs.folder / "out.jsonl").read_bytes() == expected


def test_workers_of_two_machines_on_a_scheduler(runs, whole):  # noqa: F811
    runs.scheduler()
    process = runs.start("--dask", "scheduler.json")  # waits for its workers
    runs.worker()
    runs.worker()
    runs.finish(process, 0)
    assert (runs.folder / "out.jsonl").read_bytes() == whole


def test_a_worker_that_did_another_job_does_this_one(runs, serial):
    """With another model, or the same model and other settings, to the same output."""
    runs.scheduler()
    runs.worker()
    (runs.folder / "go").touch()
    for flags in (("-m", "shakespeare-tied"), ("-m", "shakespeare-untied"), ("--scores-only",), ()):
        (runs.folder / "out.jsonl").unlink(missing_ok=True)
        runs.finish(runs.start("--dask", "scheduler.json", *flags), 0)
        assert (runs.folder / "out.jsonl").read_bytes() == serial(*flags), flags


@pytest.mark.parametrize("count", [1, 2])
def test_workers_that_are_killed_while_they_start_are_one_line(runs, count):
    with open(runs.folder / "sitecustomize.py", "a", encoding="utf-8") as file:
        file.write("    import signal; os.kill(os.getpid(), signal.SIGKILL)\n")
    err = runs.finish(runs.start("--workers", str(count)), 2)
    assert "error: the workers cannot be started: " in err
    assert "the same command with --resume continues" in err


def test_a_killed_scheduler_ends_the_run(runs, serial):
    insert(runs.folder, 30, "WAIT here")
    scheduler = runs.scheduler()
    worker = runs.worker()
    process = runs.start("--dask", "scheduler.json")
    assert wait_for(lambda: waiting(runs.folder)) == [worker.pid]
    scheduler.kill()
    err = runs.finish(process, 2)
    assert "error: the connection to the Dask scheduler is lost" in err
    assert "the same command with --resume continues" in err
    (runs.folder / "go").touch()
    runs.finish(runs.start("--resume"), 0)
    assert (runs.folder / "out.jsonl").read_bytes() == serial()


def test_a_worker_with_another_version_is_an_error(runs):
    runs.scheduler()
    with open(runs.folder / "sitecustomize.py", "a", encoding="utf-8") as file:
        file.write("    import tiedgpt.scale.rows as rows; rows.__version__ = '0.0.9'\n")
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
    from concurrent.futures import ThreadPoolExecutor

    from tiedgpt.scale import rows

    loads, load_model = [], rows.load_model
    monkeypatch.setattr(rows, "load_model", lambda *rest: loads.append(rest) or load_model(*rest))
    monkeypatch.setattr(rows, "single_thread", lambda: None)
    path = Path(checkpoint)
    identity = rows.identity(rows.open_checkpoint(path), rows.read_tokenizer(path))
    settings = {**identity, "model": checkpoint, "head": "tied", "threads": 8}
    with ThreadPoolExecutor(8) as pool:
        jobs = list(pool.map(rows.open_job, [settings] * 8))
    assert len(loads) == 1
    assert all(job is jobs[0] for job in jobs)
