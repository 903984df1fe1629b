"""Saved files appear together or not at all; locks; planted links. writers.py kills writers at any
moment."""

import os
import shutil
import stat
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace

import pytest
from support.checks import contents, refuses

import tiedgpt
from tiedgpt.checkpoints import locks, publishing
from tiedgpt.checkpoints.locks import LOCK, try_lock
from tiedgpt.checkpoints.publishing import READY, StagedFiles, finish_saves, lock_directory
from tiedgpt.errors import CheckpointError

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX's files and signals")


def write(directory: Path, text: bytes, names=("one", "two", "three")) -> None:
    with StagedFiles(directory) as staged:
        for name in names:
            staged.open(name).write(text)


def every(text: bytes) -> dict[str, bytes]:
    return dict.fromkeys(("one", "two", "three"), text)


@pytest.mark.parametrize("made", ["a", "b"])
def test_an_interruption_while_directories_are_made_leaves_none(tmp_path, monkeypatch, made):
    """SIGTERM, too, is an exception, and may come as soon as a directory is there."""

    def interrupted(path, **_):
        os.mkdir(path)
        if path.name == made:
            raise SystemExit(143)

    monkeypatch.setattr(Path, "mkdir", interrupted)
    with pytest.raises(SystemExit), StagedFiles(tmp_path / "a" / "b"):
        pass
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("old", [{}, every(b"old")])
@pytest.mark.parametrize("renames", range(5))
def test_ctrl_c_between_renames(tmp_path, monkeypatch, renames, old):
    """All files are there or none: complete files are moved though Ctrl-C came after the first of
    them."""
    write(tmp_path / "a", b"old", old)
    replace, calls = os.replace, []

    def interrupted(source, target):
        calls.append(target)
        if len(calls) == renames + 1:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    monkeypatch.setattr(os, "rename", interrupted)
    with suppress(KeyboardInterrupt):
        write(tmp_path / "a", b"new")
    expected = every(b"new") if renames else old
    assert contents(tmp_path) == ({"a": b""} if expected else {})
    assert not expected or contents(tmp_path / "a") == expected


def test_files_that_cannot_all_be_moved_are_kept_for_the_next_save(tmp_path, monkeypatch, model):
    monkeypatch.setattr(publishing, "MAX_WAIT", 0.01)
    (tmp_path / "a" / "two" / "x").mkdir(parents=True)
    for save in (write, write, lambda *_: tiedgpt.load_model(tmp_path / "a")):
        refuses(
            "/a/.save.ready: this save cannot be moved out: Is a dir", save, tmp_path / "a", b"new"
        )
    (tmp_path / "a" / "two" / "x").rmdir()
    (tmp_path / "a" / "two").rmdir()
    finish_saves(tmp_path / "a")
    assert contents(tmp_path / "a") == every(b"new")


def test_a_file_in_the_place_of_a_directory(tmp_path, model):
    (tmp_path / "file").write_text("in the way")
    refuses("is a file; expected a directory", tiedgpt.save_model, model, None, tmp_path / "file")


@posix
def test_the_working_directory_was_removed(tmp_path, monkeypatch):
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    (tmp_path / "a").rmdir()
    for writer in (StagedFiles, lock_directory):
        with pytest.raises(CheckpointError, match=r"cannot write to \.: "), writer(Path()):
            pass


def test_the_staging_directory_of_a_running_save_is_left_alone(tmp_path):
    with StagedFiles(tmp_path / "a") as staged:
        for name in every(b""):
            staged.open(name).write(b"first")
        finish_saves(tmp_path / "a")
        write(tmp_path / "a", b"second")
        assert {name: text for name, text in contents(tmp_path / "a").items() if text} == every(
            b"second"
        )
    assert contents(tmp_path / "a") == every(b"first")


@pytest.mark.parametrize("moves", range(4))
def test_a_save_meets_the_files_of_another(tmp_path, monkeypatch, moves):
    """It moves those that a killed process left; another that saves while it moves its own moves
    the rest."""
    name, other = ("replace", tmp_path / "a") if moves else ("rename", tmp_path / "a" / READY)
    rename, calls = getattr(os, name), []

    def call(source, target):
        calls.append(target)
        if len(calls) == max(moves, 1):
            write(other, b"second", ["one", "four"])
        rename(source, target)

    monkeypatch.setattr(os, name, call)
    write(tmp_path / "a", b"first")
    one = b"second" if moves else b"first"  # that of the later save
    assert contents(tmp_path / "a") == every(b"first") | {"one": one, "four": b"second"}


def test_a_staging_directory_that_was_removed_before_it_was_locked(tmp_path, monkeypatch):
    """Another process may take it for abandoned; then a second one is made."""
    staging = []

    def removed_once(fd, *options):
        if not staging:
            staging.extend((tmp_path / "a").iterdir())
            shutil.rmtree(tmp_path / "a")
        return try_lock(fd, *options)

    monkeypatch.setattr(locks, "try_lock", removed_once)
    write(tmp_path / "a", b"new")
    assert len(staging) == 1
    assert contents(tmp_path / "a") == every(b"new")


@pytest.mark.parametrize("system", ["POSIX", "Windows", "without locks"])
def test_what_a_killed_save_left_is_removed_unless_there_are_no_locks(
    tmp_path, monkeypatch, system
):
    fcntl, rename = pytest.importorskip("fcntl"), os.rename

    def refused(old, new):  # for a directory with an open file, as Windows does
        if str(new).endswith(".tmp"):
            raise PermissionError(13, "Access is denied")
        rename(old, new)

    def unsupported(*_):
        raise OSError(95, "Operation not supported")

    write(tmp_path / "a" / ".save.0.tmp" / "new", b"killed")
    (tmp_path / "a" / ".save.0.tmp" / LOCK).touch()
    if system == "without locks":
        monkeypatch.setattr(fcntl, "flock", unsupported)
    if system == "Windows":
        monkeypatch.setattr(os, "rename", refused)
    write(tmp_path / "a", b"newer")
    left = {".save.0.tmp": b""} if system == "without locks" else {}
    assert contents(tmp_path / "a") == every(b"newer") | left


@posix
def test_the_staging_directory_is_private_and_the_files_are_not(tmp_path):
    mask = os.umask(0o027)
    try:
        with StagedFiles(tmp_path / "a") as staged:
            (private,) = (tmp_path / "a").iterdir()
            assert {stat.S_IMODE(path.stat().st_mode) for path in (private, staged.new)} == {0o700}
            staged.open("one").write(b"new")
    finally:
        os.umask(mask)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.rglob("*")}
    assert modes == {"a": 0o750, "one": 0o640}


@posix
@pytest.mark.parametrize("name", [".save.00.tmp", READY])
@pytest.mark.parametrize("kind", ["link", "directory"])
def test_a_planted_staging_directory_is_not_used(tmp_path, monkeypatch, kind, name):
    """Even if its name had been guessed: nothing is written or moved through it, and it stays as it
    was."""
    shared, victim = tmp_path / "shared", tmp_path / "victim"
    write(victim, b"precious", ["one", LOCK])
    write(victim / "new", b"forged", ["one"])
    shared.mkdir()
    if kind == "link":
        (shared / name).symlink_to(victim)
    else:
        write(shared / name, b"forged", ["one"])
        os.symlink(victim / "one", shared / name / LOCK)
        lstat, others = os.lstat, SimpleNamespace(st_mode=stat.S_IFDIR, st_uid=os.getuid() + 1)
        monkeypatch.setattr(
            os, "lstat", lambda path, **_: others if path == shared / name else lstat(path, **_)
        )
    before = {path: path.read_bytes() for path in victim.rglob("*") if path.is_file()}
    guessed = iter(["00", "01"])
    monkeypatch.setattr(tempfile, "_get_candidate_names", lambda: guessed)
    monkeypatch.setattr(publishing, "MAX_WAIT", 0.01)
    if name == READY:
        refuses(
            f"{READY}: this save cannot be moved out: it is not this user's", write, shared, b"new"
        )
    else:
        write(shared, b"new")
    assert {path: path.read_bytes() for path in victim.rglob("*") if path.is_file()} == before
    assert contents(shared) == {name: b""} | ({} if name == READY else every(b"new"))


@posix
@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_is_not_followed(tmp_path, link):
    """Neither in place of a lock, nor of a new file."""
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "a").mkdir()
    link(tmp_path / "victim", tmp_path / "a" / LOCK)
    message = r"cannot write to .*a: .*links|\.lock is a link"
    with pytest.raises(CheckpointError, match=message), lock_directory(tmp_path / "a"):
        pass
    (tmp_path / "a" / LOCK).unlink()
    with StagedFiles(tmp_path / "a") as staged:
        link(tmp_path / "victim", staged.new / "one")
        with pytest.raises(FileExistsError):
            staged.open("one")
        (staged.new / "one").unlink()
    assert contents(tmp_path) == {"victim": b"precious", "a": b""}
    assert contents(tmp_path / "a") == {}


LOCKS = """
import os, sys, time
from contextlib import suppress
from pathlib import Path
from tiedgpt.checkpoints.publishing import StagedFiles, lock_directory
from tiedgpt.errors import CheckpointError

def hold(directory):
    with lock_directory(directory):
        print("held", flush=True)
        time.sleep(60)

def in_four_processes(directory):
    os.fork(), os.fork()
    for _ in range(30):
        try:
            with lock_directory(directory):
                os.close(os.open(directory / "inside", os.O_CREAT | os.O_EXCL))
                os.unlink(directory / "inside")
        except CheckpointError as error:
            assert "is in use by" in str(error), error
    for n in range(40):
        with StagedFiles(directory / "saved") as files:
            for part in "ab":
                files.open(f"{os.getpid()}-{n}{part}").write(part.encode())
    with suppress(ChildProcessError):
        while True:
            assert os.wait()[1] == 0

globals()[sys.argv[1]](Path(sys.argv[2]))
"""


def start(function: str, directory: Path) -> subprocess.Popen:
    command = [sys.executable, "-c", LOCKS, function, directory]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_directory_is_locked_for_one_process_and_free_when_that_is_killed(tmp_path):
    directory = tmp_path / "deep" / "a"
    with start("hold", directory) as process:
        process.stdout.readline()
        message = f"a is in use by process {process.pid}; wait, or choose another directory"
        for _ in range(2):
            with pytest.raises(CheckpointError, match=message), lock_directory(directory):
                pass
        process.kill()
    with lock_directory(directory):
        assert (directory / LOCK).read_text().split() == [str(os.getpid())]
    assert contents(directory) == {}
    with pytest.raises(ZeroDivisionError), lock_directory(tmp_path / "new" / "b"):
        _ = 1 / 0
    assert contents(tmp_path) == {"deep": b""}, "an empty directory that was made is left"


@posix
def test_many_processes_that_lock_one_directory_take_turns_and_lose_no_file_that_they_save(
    tmp_path,
):
    """A process that opened a lock file which was then removed must not think that it has the
    lock."""
    (tmp_path / "a").mkdir()
    with start("in_four_processes", tmp_path / "a") as process:
        assert process.communicate() == (b"", b"")
    saved = contents(tmp_path / "a" / "saved")
    processes = {name.partition("-")[0] for name in saved}
    assert len(processes) == 4
    assert saved == {
        f"{own}-{n}{part}": part.encode() for own in processes for n in range(40) for part in "ab"
    }
