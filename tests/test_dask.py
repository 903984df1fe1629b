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
from test_shards import arguments, restored_threads, score, source, whole  # noqa: F401

from tiedgpt.scale import shards

pytest.importorskip("distributed", reason="Dask is not installed: pip install 'tiedgpt[dask]'")
pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="finds the workers in /proc"),
    pytest.mark.filterwarnings("default"),  # of Dask's own code
]

TIMEOUT = 60  # seconds, for one step of a test

# Workers import this at their start, and look for files in their working directory.
HOOKS = """
import os, signal, sys, time
if "distributed" in " ".join(sys.argv) + " ".join(sys.orig_argv) or "spawn" in " ".join(sys.orig_argv):
    if os.path.exists("die"):
        os.kill(os.getpid(), signal.SIGKILL)
    from tiedgpt.scale import shards
    read_record, read_tokenizer, version = shards.read_record, shards.read_tokenizer, shards.__version__

    def hooked_record(line, *rest):
        if b"EXIT" in line:
            os._exit(1)
        if b"WAIT" in line and not os.path.exists("go"):
            open(f"waiting-{os.getpid()}", "w").close()
            while not os.path.exists("go"):
                time.sleep(0.02)
        return read_record(line, *rest)

    def hooked_tokenizer(path):
        shards.__version__ = "0.0.9" if os.path.exists("old") else version
        return read_tokenizer(path)

    shards.read_record, shards.read_tokenizer = hooked_record, hooked_tokenizer
"""


class Processes:
    """Processes in a folder, in which workers have the hooks."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.started = folder, []
        (folder / "sitecustomize.py").write_text(HOOKS)
        path = os.pathsep.join([str(folder), str(Path(__file__).resolve().parents[1])])
        failures = {"DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": "0"}
        self.options = {"cwd": folder, "env": {**os.environ, "PYTHONPATH": path, **failures}}
        self.options |= dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)

    def start(self, *arguments: str) -> subprocess.Popen:
        self.started.append(subprocess.Popen(arguments, start_new_session=True, text=True, **self.options))
        return self.started[-1]

    def cluster(self) -> str:
        """The scheduler file of a scheduler with two workers, which are started if there are none."""
        file = self.folder / "scheduler.json"
        for program in (
            [] if file.exists() else ["scheduler --port 0", *["worker --no-nanny --nthreads 1"] * 2]
        ):
            name, *flags = program.split()
            code = f"from distributed.cli.dask_{name} import main; main()"
            flags += ["--scheduler-file", str(file), "--host", "127.0.0.1", "--no-dashboard"]
            self.start(sys.executable, "-c", code, *flags)
        return str(wait_for(lambda: file.exists() and file))

    def waiting(self) -> list[int]:
        """The ids of the workers that have waited at a document."""
        return [int(path.name.partition("-")[2]) for path in self.folder.glob("waiting-*")]

    def end(self) -> None:
        for process in self.started:
            process.kill()
            with suppress(ValueError):  # it was read before
                process.communicate()


def wait_for(condition: Callable[[], object]) -> object:
    end = time.monotonic() + TIMEOUT
    while not (found := condition()):
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def is_alive(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def check(run: subprocess.Popen | tuple[int, str, str], code: int = 0) -> str:
    """What a run that ends with this code has printed on stderr."""
    if isinstance(run, subprocess.Popen):
        out, err = run.communicate(timeout=TIMEOUT)
        run = run.returncode, out, err
    assert run[:2] == (code, ""), run
    assert "Traceback" not in run[2]
    assert run[2].count("\n") < 8, run[2]
    return run[2]


@pytest.fixture(scope="module")
def lasting(tmp_path_factory):
    """Processes that live through all tests."""
    processes = Processes(tmp_path_factory.mktemp("cluster"))
    yield processes
    processes.end()


@pytest.fixture
def here(tmp_path, checkpoint, source):  # noqa: F811
    """Processes of one test. here.score(*flags) starts a run to `out`; one document stops its worker."""
    processes = Processes(tmp_path)
    known = command(*arguments(checkpoint, "out", file="in.jsonl"))
    processes.score = lambda *flags: processes.start(*known, *flags)
    (tmp_path / "in.jsonl").write_bytes(source.read_bytes())
    insert(tmp_path / "in.jsonl", 30, "WAIT here")
    yield processes
    processes.end()


def insert(file: Path, at: int, text: str) -> None:
    lines = file.read_bytes().splitlines(keepends=True)
    lines.insert(at, json.dumps({"id": text, "text": text}).encode() + b"\n")
    file.write_bytes(b"".join(lines))


@pytest.fixture
def same_as_serial(score, tmp_path):  # noqa: F811
    def same_as_serial(file: Path, *flags: str) -> None:
        """Resume the run to `out` here, if it is not complete. Its bytes are those of a run here."""
        out, serial = tmp_path / "out", tmp_path / "serial"
        if not out.exists():
            check(score(out, "--resume", *flags, file=file))
        check(score(serial, *flags, file=file))
        assert out.read_bytes() == serial.read_bytes(), flags
        assert not (tmp_path / "out.parts").exists()
        out.unlink()
        serial.unlink()

    return same_as_serial


def test_two_workers_write_the_bytes_of_one_process(score, tmp_path, whole):  # noqa: F811
    assert "60 rows in" in check(score(tmp_path / "out", "--workers", "2"))
    assert (tmp_path / "out").read_bytes() == whole


def test_a_worker_that_did_another_job_does_this_one(lasting, score, tmp_path, source, same_as_serial):  # noqa: F811
    """With another model, or the same model and other settings, to the same output."""
    for flags in (["-m", "shakespeare-tied"], ["-m", "shakespeare-untied"], ["--scores-only"], []):
        check(score(tmp_path / "out", "--dask", lasting.cluster(), *flags))
        assert (tmp_path / "out").exists()
        same_as_serial(source, *flags)


def test_a_worker_with_another_version_is_an_error(lasting, score, tmp_path):  # noqa: F811
    (lasting.folder / "old").touch()
    err = check(score(tmp_path / "out", "--dask", lasting.cluster(), "--stride", "7"), 2)
    (lasting.folder / "old").unlink()
    assert "this worker has another tiedgpt: '0.0.9', not " in err


def test_a_worker_that_is_killed_and_a_document_that_kills_its_workers(here, tmp_path, same_as_serial):
    """The shard of the first is done by another worker; that of the second is left out and named."""
    insert(tmp_path / "in.jsonl", 55, "EXIT here")
    process = here.score("--workers", "2")
    [worker] = wait_for(here.waiting)
    os.kill(worker, signal.SIGKILL)
    wait_for(lambda: len(here.waiting()) == 2)  # another worker has the shard now
    (tmp_path / "go").touch()
    assert "error: workers died at 1 shards: 000007-" in check(process, 2)
    assert len(list((tmp_path / "out.parts").glob("0*.jsonl"))) == 8
    same_as_serial(tmp_path / "in.jsonl")  # in this process, which has no hook


KILLS = {  # what is killed -> the run's flags, its code, its error
    "driver": ("--workers 1", -signal.SIGKILL, ""),
    "Ctrl-C": ("--workers 1", 130, "the same command with --resume continues"),
    "scheduler": ("--dask scheduler.json", 2, "error: the connection to the Dask scheduler is lost"),
    "one worker at its start": ("--workers 1", 2, "error: the workers cannot be started: "),
    "workers at their start": ("--workers 2", 2, "error: the workers cannot be started: "),
}


@pytest.mark.parametrize("what", KILLS)
def test_a_kill_changes_nothing_and_leaves_no_worker(here, tmp_path, same_as_serial, what):
    flags, code, message = KILLS[what]
    if what == "scheduler":
        here.cluster()
    if "start" in what:
        (tmp_path / "die").touch()
    process, worker = here.score(*flags.split()), 0
    if "start" not in what:
        [worker] = wait_for(here.waiting)
        assert list((tmp_path / "out.parts").glob("0*.jsonl"))
    if what == "Ctrl-C":
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    elif worker:
        (here.started[0] if what == "scheduler" else process).kill()
    if what != "driver":
        (tmp_path / "go").touch()
    err = check(process, code)
    assert message in err
    assert what == "driver" or "the same command with --resume continues" in err
    wait_for(lambda: not (worker and is_alive(worker)))
    same_as_serial(tmp_path / "in.jsonl")


@pytest.mark.parametrize(
    "address",
    [
        "missing.json",
        __file__,
        "what://x",
        pytest.param("tcp://127.0.0.1:1", marks=pytest.mark.slow),  # tries for ten seconds
        pytest.param("HTTP", marks=pytest.mark.slow),
    ],
)
def test_no_scheduler_there(here, score, tmp_path, address):  # noqa: F811
    if address == "HTTP":
        server = here.start(sys.executable, "-u", "-m", "http.server", "0", "--bind", "127.0.0.1")
        address = f"tcp://127.0.0.1:{server.stdout.readline().split('port ')[1].split()[0]}"
    err = check(score(tmp_path / "out", "--dask", address), 2)
    assert f"error: no Dask scheduler at {address}: " in err


def test_two_threads_of_a_worker_load_one_model(monkeypatch, checkpoint):
    loads, checkpoint = [], shards.open_checkpoint(Path(checkpoint))
    load = type(checkpoint).load
    monkeypatch.setattr(type(checkpoint), "load", lambda *rest: loads.append(rest) or load(*rest))
    identity = shards.identity(checkpoint, shards.read_tokenizer(checkpoint.path))
    settings = {**identity, "model": str(checkpoint.path), "head": "tied", "threads": 8}
    with ThreadPoolExecutor(8) as pool:
        assert len(set(map(id, pool.map(shards.load, [settings] * 8)))) == len(loads) == 1
