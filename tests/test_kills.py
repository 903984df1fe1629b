"""tiedgpt documents: a run whose processes are killed changes no row and leaves no worker.

A run scores the texts of the file `in` and writes their rows to `out`. It divides `in` into shards,
which its workers score. Until all shards are done, their rows are in the folder `out.parts`.

Hooks in the workers (support/hooked_workers/) let files and texts decide what happens:

- A worker that comes to the text "wait" writes a file waiting-PID, and waits for a file `go`.
- A worker that comes to the text "killer" exits, unless there is a file `tame`.
- A worker that finds a file `die` at its start kills itself.

To add a kill: start a run with `kills.start`, kill a process while a worker waits, and let the run
continue with `kills.continue_and_compare`. support/writers.py kills runs without workers.
"""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.checks import wait_until
from support.commands import command

pytest.importorskip("distributed")
pytestmark = [
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="needs Linux's /proc"),
    pytest.mark.filterwarnings("default"),  # of Dask's own code
]

HOOKS = Path(__file__).parent / "support" / "hooked_workers"
ROOT = Path(__file__).resolve().parents[1]
TEXTS = [f"text {number}" * 9 for number in range(40)]  # 3 kB, so three shards of 1000 bytes
SECONDS = 60  # a busy machine takes long to start a worker


class Kills:
    """Starts runs of `documents score` in the working directory, and waits for their ends."""

    def __init__(self, checkpoint: str) -> None:
        self.checkpoint = checkpoint
        self.processes: list[subprocess.Popen] = []

    def start_process(self, *arguments: str) -> subprocess.Popen:
        """Start a process in a group of its own, so that a test can send a signal to the group."""
        process = subprocess.Popen(
            arguments, stderr=subprocess.PIPE, text=True, start_new_session=True
        )
        self.processes.append(process)
        return process

    def command(self, out: str, *flags: str) -> list[str]:
        arguments = ["documents", "score", "in", "-m", self.checkpoint, "--shard-size", "1000"]
        return command(*arguments, "--out", out, *flags)

    def start(self, *flags: str) -> subprocess.Popen:
        """Start a run to `out`, or continue one."""
        return self.start_process(*self.command("out", "--resume", *flags))

    def waiting_worker(self) -> int:
        """Wait until a worker has come to the text "wait", and return its process id.

        A worker is returned only once.
        """
        wait_until(lambda: list(Path().glob("waiting-*")), SECONDS)
        (file,) = Path().glob("waiting-*")
        file.unlink()
        return int(file.name.removeprefix("waiting-"))

    def end(self, run: subprocess.Popen, code: int) -> str:
        """Wait until a run ends. It must have this exit code, and print no traceback.

        Returns what it printed on stderr, which must have fewer than eight lines.
        """
        _, err = run.communicate(timeout=SECONDS)
        assert run.returncode == code, err
        assert "Traceback" not in err
        assert err.count("\n") < 8
        return err

    def continue_and_compare(self) -> None:
        """Continue the run to its end. Its rows must be those of a run without workers or kills."""
        Path("die").unlink(missing_ok=True)  # workers start
        Path("go").touch()  # workers go on at the text "wait"
        Path("tame").touch()  # workers go on at the text "killer"
        n_rows = len(Path("in").read_bytes().splitlines())
        continued = self.start("--workers", "2")
        assert f"{n_rows} rows in out" in self.end(continued, code=0)
        serial = self.start_process(*self.command("serial"))
        self.end(serial, code=0)
        assert Path("out").read_bytes() == Path("serial").read_bytes()
        assert not Path("out.parts").exists()


@pytest.fixture
def kills(tmp_path, monkeypatch, checkpoint):
    """Runs in an empty directory. Their workers have the hooks. All end with the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HOOKS), str(ROOT)]))
    # Dask itself does not try a shard again after a worker has died at it.
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "0")
    kills = Kills(checkpoint)
    yield kills
    for process in kills.processes:
        process.kill()
        process.communicate()


def write_input(*texts: str) -> None:
    """Write a line for each text to the file `in`."""
    lines = [json.dumps({"text": text}) for text in texts]
    Path("in").write_text("\n".join(lines))


def wait_for_end(pid: int) -> None:
    """Wait until a process has ended."""
    program = Path(f"/proc/{pid}/exe")  # even a zombie has none
    wait_until(lambda: not program.exists(), SECONDS)


def test_workers_that_die_when_they_start_are_an_error(kills):
    write_input(*TEXTS)
    Path("die").touch()
    run = kills.start("--workers", "2")
    assert "error: the workers cannot be started: " in kills.end(run, code=2)


def test_a_run_that_is_killed_leaves_no_worker(kills):
    """The run is killed while its worker waits at the text "wait"."""
    write_input(*TEXTS, "wait", *TEXTS)
    run = kills.start("--workers", "1")
    worker = kills.waiting_worker()
    run.kill()
    kills.end(run, code=-signal.SIGKILL)
    wait_for_end(worker)
    kills.continue_and_compare()


@pytest.mark.slow
def test_ctrl_c_ends_the_run_and_its_workers(kills):
    """Ctrl-C comes while the worker waits at the text "wait"."""
    write_input(*TEXTS, "wait", *TEXTS)
    run = kills.start("--workers", "1")
    worker = kills.waiting_worker()
    os.killpg(run.pid, signal.SIGINT)  # to all processes of the command, as a terminal does
    Path("go").touch()  # the worker does not wait any more
    assert "the same command with --resume continues" in kills.end(run, code=130)
    wait_for_end(worker)
    kills.continue_and_compare()


@pytest.mark.slow
def test_a_run_ends_when_its_scheduler_is_killed(kills):
    """The scheduler and the worker are processes of their own, which the run does not start.

    The scheduler writes its address to scheduler.json, where the worker and the run read it. The
    scheduler is killed while the worker waits at the text "wait".
    """
    write_input(*TEXTS, "wait", *TEXTS)
    options = ["--scheduler-file", "scheduler.json", "--host", "127.0.0.1", "--no-dashboard"]
    scheduler_command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--port", "0"]
    worker_command = [sys.executable, "-m", "distributed.cli.dask_worker"]
    worker_command += ["--no-nanny", "--nthreads", "1"]
    scheduler = kills.start_process(*scheduler_command, *options)
    kills.start_process(*worker_command, *options)
    wait_until(Path("scheduler.json").exists, SECONDS)
    run = kills.start("--dask", "scheduler.json")
    worker = kills.waiting_worker()
    scheduler.kill()
    Path("go").touch()  # the worker does not wait any more
    assert "the connection to the Dask scheduler is lost" in kills.end(run, code=2)
    wait_for_end(worker)
    kills.continue_and_compare()


@pytest.mark.slow
def test_the_shard_of_a_killed_worker_is_done_by_a_second_worker(kills):
    """The first worker is killed while it waits at the text "wait"."""
    write_input(*TEXTS, "wait", *TEXTS)
    run = kills.start("--workers", "2")
    first_worker = kills.waiting_worker()
    os.kill(first_worker, signal.SIGKILL)
    kills.waiting_worker()  # until a second worker has come to the same text
    Path("go").touch()  # the second worker does not wait any more
    kills.end(run, code=0)
    assert not Path("out.parts").exists()


def test_a_shard_that_kills_its_workers_is_named_and_the_others_are_done(kills):
    """The text "killer" is in the last of three shards, which are numbered from 0."""
    write_input(*TEXTS, "killer")
    run = kills.start("--workers", "2")
    err = kills.end(run, code=2)
    assert "workers died at 1 shards: 000002-" in err
    assert "the others are done" in err
    shards_done = set()
    for part in Path("out.parts").glob("0*.jsonl"):  # 000000-TAG.jsonl for shard 0
        number, _, _ = part.name.partition("-")
        shards_done.add(number)
    assert shards_done == {"000000", "000001"}
    kills.continue_and_compare()
