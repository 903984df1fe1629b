"""Saved files appear together or not at all, after any interruption; a lock ends with its process."""

import os
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest

import tiedgpt
from tiedgpt.checkpoints import files
from tiedgpt.checkpoints.files import LOCK, StagedFiles, finish_saves, lock_directory, try_lock
from tiedgpt.errors import CheckpointError

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX's files and signals")


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.is_file()}


def write(directory: Path, text: bytes, names=("one", "two", "three")) -> None:
    with StagedFiles(directory) as staged:
        for name in names:
            staged.open(name).write(text)


def every(text: bytes) -> dict[str, bytes]:
    return dict.fromkeys(("one", "two", "three"), text)


def run_and_kill(code: str, *arguments: object) -> None:
    """Run `code` in a process and kill it when it prints a line."""
    process = subprocess.Popen([sys.executable, "-c", code, *map(str, arguments)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()
    process.kill()
    process.communicate()


SAVE = (
    "import os, sys, time\n"
    "from pathlib import Path\n"
    "from tiedgpt.checkpoints.files import StagedFiles\n"
    "def stop(*_): print('now', flush=True); time.sleep(60)\n"
    "def save(directory, text):\n"
    "    with StagedFiles(Path(directory)) as staged:\n"
    "        for name in ('one', 'two', 'three'): staged.open(name).write(text)\n"
)


# Interruptions


@pytest.mark.parametrize("made", ["a", "b"])
def test_an_interruption_while_directories_are_made_leaves_none(tmp_path, monkeypatch, made):
    """SIGTERM, too, is an exception, and may come as soon as a directory is there."""
    mkdir = os.mkdir

    def interrupted(path, *mode):
        mkdir(path, *mode)
        if (Path(path).name == "a") == (made == "a"):
            raise SystemExit(143)

    monkeypatch.setattr(os, "mkdir", interrupted)
    monkeypatch.setattr(Path, "mkdir", lambda path, **_: os.mkdir(path))  # which Python 3.10 does not call
    with pytest.raises(SystemExit), StagedFiles(tmp_path / "a" / "b"):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("renames", range(5))
def test_ctrl_c_between_renames(tmp_path, monkeypatch, renames, exists):
    """All files are there or none: complete files are moved though Ctrl-C came after the first of them."""
    if exists:
        write(tmp_path / "a", b"old")
    calls = []

    def interrupted(rename):
        def call(source, target):
            calls.append(target)
            if len(calls) == renames + 1:
                raise KeyboardInterrupt
            rename(source, target)

        return call

    monkeypatch.setattr(os, "replace", interrupted(os.replace))
    monkeypatch.setattr(os, "rename", interrupted(os.rename))
    with suppress(KeyboardInterrupt):
        write(tmp_path / "a", b"new")
    if renames or exists:
        assert contents(tmp_path / "a") == every(b"new" if renames else b"old")
    assert [path.name for path in tmp_path.iterdir()] == (["a"] if renames or exists else [])


def test_files_that_cannot_all_be_moved_are_kept_for_the_next_save(tmp_path):
    write(tmp_path / "a", b"old")
    (tmp_path / "a" / "two").unlink()
    (tmp_path / "a" / "two" / "x").mkdir(parents=True)
    for _ in range(2):
        with pytest.raises(CheckpointError, match=r"cannot write to .*a: .*directory"):
            write(tmp_path / "a", b"new")
    (tmp_path / "a" / "two" / "x").rmdir()
    (tmp_path / "a" / "two").rmdir()
    finish_saves(tmp_path / "a")
    assert contents(tmp_path / "a") == every(b"new")


def test_a_directory_that_cannot_be_written(tmp_path, model):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(CheckpointError, match="is a file; expected a directory to write to"):
        tiedgpt.save_model(model, None, tmp_path / "file")
    with pytest.raises(CheckpointError, match=r"cannot write to .*Not a directory"):
        tiedgpt.save_model(model, None, tmp_path / "file" / "deeper")


# Kills


@posix
def test_a_model_is_not_read_while_its_files_are_moved(tmp_path, model, monkeypatch):
    monkeypatch.setattr(files, "MAX_WAIT", 0.05)
    tiedgpt.save_model(model, None, tmp_path / "a")
    (staging := tmp_path / "a" / ".save.0.tmp").mkdir()
    (staging / "ready").mkdir()
    with open(staging / LOCK, "w") as lock:
        assert try_lock(lock.fileno())
        with pytest.raises(CheckpointError, match="/a: the last save to it is not complete; save it again"):
            tiedgpt.load_model(tmp_path / "a")
    tiedgpt.load_model(tmp_path / "a")
    assert not staging.exists()


@pytest.mark.parametrize("exists", [False, True])
def test_the_staging_directory_of_a_running_save_is_left_alone(tmp_path, exists):
    if exists:
        write(tmp_path / "a", b"old")
    with StagedFiles(tmp_path / "a") as staged:
        staged.open("one").write(b"new")
        finish_saves(tmp_path / "a")
        write(tmp_path / "b", b"other")
    assert contents(tmp_path / "a")["one"] == b"new"


def test_a_staging_directory_that_was_removed_before_it_was_locked(tmp_path, monkeypatch):
    """Another process may take it for abandoned; then a second one is made."""
    opened = []

    def removed_once(fd, **options):
        if not opened:
            for path in tmp_path.iterdir():
                (path / LOCK).unlink()
                path.rmdir()
        opened.append(fd)
        return try_lock(fd, **options)

    monkeypatch.setattr(files, "try_lock", removed_once)
    write(tmp_path / "a", b"new")
    assert len(opened) == 2
    assert contents(tmp_path / "a") == every(b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_without_locks_no_staging_directory_is_removed(tmp_path, monkeypatch):
    run_and_kill(f"{SAVE}os.fsync = stop\nsave(sys.argv[1], b'new')", tmp_path / "a")
    fcntl = pytest.importorskip("fcntl")

    def unsupported(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", unsupported)
    write(tmp_path / "a", b"newer")
    assert len(list(tmp_path.iterdir())) == 2


def test_saves_wait_for_each_others_moves(tmp_path):
    """One process stops between two moves; another that saves there ends after it, and its files stay."""
    write(tmp_path / "a", b"old")
    stop = (
        "replace = os.replace\n"
        "def stop(*names):\n"
        "    print('now', flush=True); sys.stdin.readline(); os.replace = replace; replace(*names)\n"
        "os.replace = stop\n"
    )
    pipe = subprocess.PIPE
    command = [sys.executable, "-c", f"{SAVE}{stop}save(sys.argv[1], b'first')", tmp_path / "a"]
    first = subprocess.Popen(command, stdin=pipe, stdout=pipe)
    assert first.stdout is not None
    first.stdout.readline()
    second = subprocess.Popen([sys.executable, "-c", f"{SAVE}save(sys.argv[1], b'second')", tmp_path / "a"])
    with suppress(subprocess.TimeoutExpired):
        second.wait(0.5)
    first.communicate(b"go\n")
    assert (first.returncode, second.wait()) == (0, 0)
    assert contents(tmp_path / "a") == every(b"second")


def test_a_directory_that_another_save_makes_meanwhile(tmp_path):
    with StagedFiles(tmp_path / "a") as staged:
        for name in every(b""):
            staged.open(name).write(b"first")
        write(tmp_path / "a", b"second")
    assert contents(tmp_path / "a") == every(b"first")
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@posix
def test_a_lock_file_that_a_kill_left_is_removed_and_one_in_use_is_not(tmp_path):
    (tmp_path / files.MOVING).write_text("1234")
    finish_saves(tmp_path)
    assert contents(tmp_path) == {}
    with files.locked_file(tmp_path / files.MOVING):
        finish_saves(tmp_path)
        assert list(contents(tmp_path)) == [files.MOVING]


# Directories that everyone can write to


@posix
def test_the_staging_directory_is_private_and_the_files_are_not(tmp_path):
    mask = os.umask(0o027)
    try:
        with StagedFiles(tmp_path / "a") as staged:
            (private,) = tmp_path.iterdir()
            assert stat.S_IMODE(private.stat().st_mode) == 0o700
            staged.open("one").write(b"new")
        write(tmp_path / "a", b"newer")
    finally:
        os.umask(mask)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {"a": 0o750, "one": 0o640, "two": 0o640, "three": 0o640}


@posix
@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("kind", ["link", "directory"])
def test_a_planted_staging_directory_is_not_used(tmp_path, monkeypatch, kind, exists):
    """Even if its name had been guessed: nothing is written through it, and it stays as it was."""
    shared, victim = tmp_path / "shared", tmp_path / "victim"
    for path in (shared, victim):
        path.mkdir()
        path.chmod(0o1777)
    for name in ("one", LOCK):
        (victim / name).write_bytes(b"precious")
    (victim / "new").mkdir()
    (victim / "ready").mkdir()
    (victim / "ready" / "one").write_bytes(b"forged")
    if exists:
        write(shared / "a", b"old")
    planted = shared / "a" / ".save.00.tmp" if exists else shared / ".a.save.00.tmp"
    if kind == "link":
        planted.symlink_to(victim)
    else:
        planted.mkdir()
        os.symlink(victim / "one", planted / LOCK)  # in a directory of another user, as far as can be seen
        monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    before = {path: path.read_bytes() for path in victim.rglob("*") if path.is_file()}
    guessed = iter(["00", "01"])
    monkeypatch.setattr(tempfile, "_get_candidate_names", lambda: guessed)
    write(shared / "a", b"new")
    assert {path: path.read_bytes() for path in victim.rglob("*") if path.is_file()} == before
    assert os.path.lexists(planted)
    assert {path.name: path.read_bytes() for path in (shared / "a").iterdir() if path != planted} == every(
        b"new"
    )


@posix
def test_a_link_in_the_staging_directory_is_not_followed(tmp_path):
    (tmp_path / "victim").write_bytes(b"precious")

    def write_through_link():
        with StagedFiles(tmp_path / "a") as staged:
            (staging,) = tmp_path.glob(".a.*")
            os.symlink(tmp_path / "victim", staging / "new" / "one")
            staged.open("one")

    with pytest.raises(CheckpointError, match=r"cannot write to .*a: File exists"):
        write_through_link()
    assert contents(tmp_path) == {"victim": b"precious"}


@posix
@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_lock_that_is_a_link_is_refused(tmp_path, link):
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "a").mkdir()
    link(tmp_path / "victim", tmp_path / "a" / LOCK)
    with (
        pytest.raises(CheckpointError, match=r"cannot write to .*a: .*links|\.lock is a link"),
        lock_directory(tmp_path / "a"),
    ):
        pass
    assert (tmp_path / "victim").read_bytes() == b"precious"


# Locks

HOLD = (
    "import sys, time\nfrom pathlib import Path\nfrom tiedgpt.checkpoints.files import lock_directory\n"
    "with lock_directory(Path(sys.argv[1])):\n    print('held', flush=True)\n    time.sleep(60)\n"
)


def test_a_directory_is_locked_for_one_process_and_free_when_that_is_killed(tmp_path):
    directory = tmp_path / "deep" / "a"
    process = subprocess.Popen([sys.executable, "-c", HOLD, directory], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()
        message = f"a is in use by process {process.pid}; wait until it ends, or choose another directory"
        for _ in range(2):
            with pytest.raises(CheckpointError, match=message), lock_directory(directory):
                pass
    finally:
        process.kill()
        process.communicate()
    with lock_directory(directory):
        assert (directory / LOCK).read_text().split() == [str(os.getpid())]
    assert list(directory.iterdir()) == []
    with pytest.raises(ZeroDivisionError), lock_directory(tmp_path / "new" / "b"):
        _ = 1 / 0
    assert [path.name for path in tmp_path.iterdir()] == ["deep"], "an empty directory that was made is left"


@posix
def test_many_processes_that_lock_one_directory_take_turns(tmp_path):
    """The lock file is removed each time; a process that opened the removed one must not think it has it."""
    code = (
        "import sys, os\nfrom pathlib import Path\nfrom tiedgpt.checkpoints.files import lock_directory\n"
        "from tiedgpt.errors import CheckpointError\n"
        "directory, held = Path(sys.argv[1]), 0\n"
        "while held < 40:\n"
        "    try:\n"
        "        with lock_directory(directory):\n"
        "            os.close(os.open(directory / 'inside', os.O_CREAT | os.O_EXCL))\n"
        "            os.unlink(directory / 'inside')\n"
        "            held += 1\n"
        "    except CheckpointError as error:\n"
        "        assert 'is in use by' in str(error), error\n"
    )
    (tmp_path / "a").mkdir()
    command = [sys.executable, "-c", code, tmp_path / "a"]
    processes = [subprocess.Popen(command, stderr=subprocess.PIPE) for _ in range(4)]
    assert [process.communicate()[1] for process in processes] == [b""] * 4
