"""tiedgpt documents: a run whose processes are killed changes no row and leaves no worker.

To add a kill: start a run with `kills.start`, kill a process while a worker waits, and let the run
continue with `kills.continue_and_compare`. support/hooked_workers/ has what workers wait for.
support/writers.py kills a run without workers at any moment.
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
TEXTS = [f"text {number}" * 9 for number in range(40)]  # 3 kB: three shards of 1000 bytes
SECONDS = 60  # a busy machine takes long to start a worker


class Kills:
    """Runs of `documents score` on the file `in`, in the working directory."""

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
        """The process id of a worker that has come to the text "wait"; each is returned once."""
        wait_until(lambda: list(Path().glob("waiting-*")), SECONDS)
        (file,) = Path().glob("waiting-*")
        file.unlink()
        return int(file.name.removeprefix("waiting-"))

    def end(self, run: subprocess.Popen, code: int) -> str:
        """Wait for the end of a run, which has this exit code.

        Returns what it printed on stderr: a few lines, and no traceback.
        """
        _, err = run.communicate(timeout=SECONDS)
        assert run.returncode == code, err
        assert "Traceback" not in err
        assert err.count("\n") < 8
        return err

    def continue_and_compare(self) -> None:
        """Continue the run; the rows are those of one process that nobody killed."""
        # From here on, no worker kills itself, waits at "wait" or exits at "killer".
        Path("die").unlink(missing_ok=True)
        Path("go").touch()
        Path("tame").touch()
        n_rows = len(Path("in").read_bytes().splitlines())
        continued = self.start("--workers", "2")
        assert f"{n_rows} rows in out" in self.end(continued, code=0)
        serial = self.start_process(*self.command("serial"))
        self.end(serial, code=0)
        assert Path("out").read_bytes() == Path("serial").read_bytes()
        assert not Path("out.parts").exists()


@pytest.fixture
def kills(tmp_path, monkeypatch, checkpoint):
    """Runs in an empty directory, whose workers have the hooks. All are killed after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(HOOKS), str(ROOT)]))
    # A shard at which one worker has died is not tried again by Dask itself.
    monkeypatch.setenv("DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES", "0")
    kills = Kills(checkpoint)
    yield kills
    for process in kills.processes:
        process.kill()
        process.communicate()


def write_input(*texts: str) -> None:
    """Write a document of each text to `in`, a line each."""
    lines = [json.dumps({"text": text}) for text in texts]
    Path("in").write_text("\n".join(lines))


def wait_for_end(pid: int) -> None:
    """Wait until a process has ended. It has no program then, even if it is a zombie."""
    program = Path(f"/proc/{pid}/exe")
    wait_until(lambda: not program.exists(), SECONDS)


def test_workers_that_die_when_they_start(kills):
    write_input(*TEXTS)
    Path("die").touch()  # a worker that finds this file kills itself
    run = kills.start("--workers", "2")
    assert "error: the workers cannot be started: " in kills.end(run, code=2)


def test_a_run_that_is_killed_leaves_no_worker(kills):
    """It is killed while its worker waits at the text "wait"."""
    write_input(*TEXTS, "wait", *TEXTS)
    run = kills.start("--workers", "1")
    worker = kills.waiting_worker()
    run.kill()
    kills.end(run, code=-signal.SIGKILL)
    wait_for_end(worker)
    kills.continue_and_compare()


@pytest.mark.slow
def test_ctrl_c_ends_the_run_and_its_workers(kills):
    """It comes while the worker waits at the text "wait"."""
    write_input(*TEXTS, "wait", *TEXTS)
    run = kills.start("--workers", "1")
    worker = kills.waiting_worker()
    os.killpg(run.pid, signal.SIGINT)  # as a terminal does, to all processes of the command
    Path("go").touch()  # the worker does not wait any more
    assert "the same command with --resume continues" in kills.end(run, code=130)
    wait_for_end(worker)
    kills.continue_and_compare()


@pytest.mark.slow
def test_a_scheduler_that_is_killed(kills):
    """The run uses a scheduler and a worker that were started apart from it.

    The scheduler writes its address to scheduler.json, which the others read. It is killed while
    the worker waits at the text "wait".
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
def test_the_shard_of_a_killed_worker_is_done_by_another(kills):
    """One worker is killed when it waits at the text "wait". Then another one comes to the text."""
    write_input(*TEXTS, "wait", *TEXTS)
    run = kills.start("--workers", "2")
    first_worker = kills.waiting_worker()
    os.kill(first_worker, signal.SIGKILL)
    kills.waiting_worker()  # returns when another worker waits there
    Path("go").touch()  # that one does not wait any more
    kills.end(run, code=0)
    assert not Path("out.parts").exists()


def test_a_shard_that_kills_its_workers_is_named_and_the_others_are_done(kills):
    """A worker exits at the text "killer", which is in the last of three shards, number 2."""
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
