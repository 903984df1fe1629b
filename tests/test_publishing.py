"""Saved files appear together or not at all; planted links; locks of directories.

A save of StagedFiles writes its files to the folder `new` of a staging directory, .save.RANDOM.tmp.
When all files are written, one rename gives `new` the name .save.ready (READY). Then the save is
complete. Each file is moved from .save.ready to its place, and .save.ready is removed.

If a process is killed, finish_saves moves the files of its complete save, and removes its staging
directory. Every save calls finish_saves. A planted link or directory is one that another user has
put where a save makes its own. support/writers.py kills writers at any moment.
"""

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

NAMES = ("one", "two", "three")

posix = pytest.mark.skipif(os.name != "posix", reason="needs POSIX's files and signals")


def save(directory: Path, text: bytes, names: tuple[str, ...] = NAMES) -> None:
    """Save files of these names, by default "one", "two" and "three", each with the same text."""
    with StagedFiles(directory) as staged:
        for name in names:
            staged.open(name).write(text)


def files_with(text: bytes) -> dict[str, bytes]:
    """The contents of a directory to which `save` has saved this text."""
    return {"one": text, "two": text, "three": text}


# Interruptions


@pytest.mark.parametrize("last_made", ["a", "b"])
def test_an_interruption_while_directories_are_made_leaves_none(tmp_path, monkeypatch, last_made):
    """SIGTERM raises SystemExit, here just after a directory was made."""

    def make_and_interrupt(path, **_):
        os.mkdir(path)
        if path.name == last_made:
            raise SystemExit(143)  # the exit code after SIGTERM

    monkeypatch.setattr(Path, "mkdir", make_and_interrupt)
    with pytest.raises(SystemExit), StagedFiles(tmp_path / "a" / "b"):
        pass
    assert list(tmp_path.iterdir()) == []


def interrupt_rename(monkeypatch, number: int) -> None:
    """Raise KeyboardInterrupt in place of the rename with this number. The first one is number 1.

    A save of three files has four renames: of the directory to .save.ready, and of each file.
    """
    replace = os.replace
    calls = []

    def rename_or_interrupt(source, target):
        calls.append(target)
        if len(calls) == number:
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", rename_or_interrupt)
    monkeypatch.setattr(os, "rename", rename_or_interrupt)


def test_ctrl_c_before_the_first_rename_leaves_no_directory(tmp_path, monkeypatch):
    interrupt_rename(monkeypatch, 1)
    with suppress(KeyboardInterrupt):
        save(tmp_path / "a", b"new")
    assert contents(tmp_path) == {}


def test_ctrl_c_before_the_first_rename_leaves_the_old_files(tmp_path, monkeypatch):
    save(tmp_path / "a", b"old")
    interrupt_rename(monkeypatch, 1)
    with suppress(KeyboardInterrupt):
        save(tmp_path / "a", b"new")
    assert contents(tmp_path / "a") == files_with(b"old")


@pytest.mark.parametrize("interrupted_rename", [2, 3, 4, 5])
def test_ctrl_c_after_the_first_rename_leaves_the_new_files(
    tmp_path, monkeypatch, interrupted_rename
):
    """A save has four renames. So with 5, Ctrl-C does not come at all."""
    save(tmp_path / "a", b"old")
    interrupt_rename(monkeypatch, interrupted_rename)
    with suppress(KeyboardInterrupt):
        save(tmp_path / "a", b"new")
    assert contents(tmp_path / "a") == files_with(b"new")


# Folders, and files that a save removes


def save_and_remove(directory: Path) -> None:
    """Save the files one and folder/new, and remove the files two and folder/old."""
    with StagedFiles(directory) as staged:
        staged.open("one").write(b"new")
        staged.open("folder/new").write(b"new")
        staged.remove("two")
        staged.remove("folder/old")


@pytest.fixture
def earlier_save(tmp_path) -> Path:
    """A directory of an earlier save with the files one, two, three and folder/old."""
    save(tmp_path / "a", b"old", (*NAMES, "folder/old"))
    return tmp_path / "a"


def assert_saved_and_removed(directory: Path) -> None:
    """The directory of `earlier_save` is as save_and_remove leaves it."""
    assert contents(directory) == {"one": b"new", "three": b"old", "folder": b""}
    assert contents(directory / "folder") == {"new": b"new"}


def test_a_save_can_remove_files_and_make_files_in_a_folder(earlier_save):
    save_and_remove(earlier_save)
    assert_saved_and_removed(earlier_save)


def test_a_file_that_is_to_be_removed_may_be_missing(tmp_path):
    """Without an earlier save, save_and_remove makes its two files and has none to remove."""
    save_and_remove(tmp_path / "a")
    assert contents(tmp_path / "a") == {"one": b"new", "folder": b""}


def test_a_save_that_fails_removes_no_file(earlier_save):
    with suppress(ZeroDivisionError), StagedFiles(earlier_save) as staged:
        staged.remove("two")
        raise ZeroDivisionError
    assert contents(earlier_save) == files_with(b"old") | {"folder": b""}


@pytest.mark.parametrize("interrupted_rename", [1, 2, 3, 4])
def test_files_to_remove_are_gone_before_a_new_file_appears(
    earlier_save, monkeypatch, interrupted_rename
):
    """save_and_remove was killed when its save was complete and none of its files was moved.

    finish_saves has four renames: of two files to remove, and of two new files. It is interrupted
    in place of one of them. Called again, it does the rest.
    """
    ready = earlier_save / READY
    (ready / "folder").mkdir(parents=True)
    (ready / "one").write_bytes(b"new")
    (ready / "folder" / "new").write_bytes(b"new")
    # An empty file .removed/NAME says that the file NAME is to be removed.
    (ready / ".removed" / "folder").mkdir(parents=True)
    (ready / ".removed" / "two").touch()
    (ready / ".removed" / "folder" / "old").touch()

    with monkeypatch.context() as patch:
        interrupt_rename(patch, interrupted_rename)
        with suppress(KeyboardInterrupt):
            finish_saves(earlier_save)
    new_file = earlier_save / "folder" / "new"
    files_to_remove = [earlier_save / "two", earlier_save / "folder" / "old"]
    if new_file.exists():
        for file in files_to_remove:
            assert not file.exists()

    finish_saves(earlier_save)
    assert_saved_and_removed(earlier_save)


# A system that refuses


@pytest.fixture
def short_wait(monkeypatch) -> None:
    """finish_saves raises an error after 0.01 s if it cannot move a file."""
    monkeypatch.setattr(publishing, "MAX_WAIT", 0.01)


def put_directory_in_the_way(directory: Path) -> None:
    """Make a directory `two`, not empty, so that no file of that name can be moved there."""
    (directory / "two" / "x").mkdir(parents=True)


@pytest.mark.usefixtures("short_wait")
def test_files_that_cannot_all_be_moved_are_kept_for_the_next_save(tmp_path):
    directory = tmp_path / "a"
    put_directory_in_the_way(directory)
    message = "/a/.save.ready: this save cannot be moved out: Is a dir"
    refuses(message, save, directory, b"new")
    refuses(message, save, directory, b"newer")  # .save.ready has the files of the first save
    shutil.rmtree(directory / "two")
    finish_saves(directory)
    assert contents(directory) == files_with(b"new")


@pytest.mark.usefixtures("short_wait")
def test_a_model_is_not_read_while_its_files_cannot_be_moved(tmp_path):
    """A save whose files cannot be moved fails, and leaves them in .save.ready."""
    directory = tmp_path / "a"
    put_directory_in_the_way(directory)
    message = "/a/.save.ready: this save cannot be moved out"
    refuses(message, save, directory, b"new")
    refuses(message, tiedgpt.load_model, directory)


def test_a_file_in_the_place_of_the_directory_is_refused(tmp_path, model):
    (tmp_path / "file").write_text("in the way")
    refuses("is a file; expected a directory", tiedgpt.save_model, model, None, tmp_path / "file")


@posix
@pytest.mark.parametrize("writer", [StagedFiles, lock_directory])
def test_a_working_directory_that_was_removed_is_refused(tmp_path, monkeypatch, writer):
    (tmp_path / "a").mkdir()
    monkeypatch.chdir(tmp_path / "a")
    (tmp_path / "a").rmdir()
    with pytest.raises(CheckpointError, match=r"cannot write to \.: "), writer(Path()):
        pass


# Several saves at once


def test_the_staging_directory_of_a_running_save_is_left_alone(tmp_path):
    """A second save begins and ends while the first one runs. Then the first save ends.

    So the files of the first save are there in the end.
    """
    with StagedFiles(tmp_path / "a") as staged:
        for name in NAMES:
            staged.open(name).write(b"first")
        finish_saves(tmp_path / "a")
        save(tmp_path / "a", b"second")
        assert (tmp_path / "a" / "one").read_bytes() == b"second"
    assert contents(tmp_path / "a") == files_with(b"first")


def test_a_save_moves_the_files_that_another_process_has_completed(tmp_path, monkeypatch):
    """While this save runs, another process completes a save of "one" and "four", and is killed.

    This save moves the files of the other process first. Then it moves its own, "one" included.
    """
    rename = os.rename

    def rename_after_another_save(source, target):
        monkeypatch.setattr(os, "rename", rename)  # the other save comes once
        save(tmp_path / "a" / READY, b"second", ("one", "four"))
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_after_another_save)
    save(tmp_path / "a", b"first")
    assert contents(tmp_path / "a") == files_with(b"first") | {"four": b"second"}


@pytest.mark.parametrize("interrupted_move", [1, 2, 3])
def test_another_save_moves_the_files_that_this_save_has_not_moved_yet(
    tmp_path, monkeypatch, interrupted_move
):
    """Just before one of the three moves of this save, another one saves "one" and "four".

    The other save moves all files of this save first. Then it moves its own, "one" included.
    """
    replace = os.replace
    moves = []

    def replace_after_another_save(source, target):
        moves.append(target)
        if len(moves) == interrupted_move:
            save(tmp_path / "a", b"second", ("one", "four"))
        replace(source, target)

    monkeypatch.setattr(os, "replace", replace_after_another_save)
    save(tmp_path / "a", b"first")
    assert contents(tmp_path / "a") == {
        "one": b"second",
        "two": b"first",
        "three": b"first",
        "four": b"second",
    }


def test_a_staging_directory_that_is_removed_before_it_is_locked_is_made_again(
    tmp_path, monkeypatch
):
    """Another process takes it for the staging directory of a killed process, and removes it."""
    removed = []

    def remove_once_and_lock(descriptor, *options):
        if not removed:
            removed.extend((tmp_path / "a").iterdir())
            shutil.rmtree(tmp_path / "a")
        return try_lock(descriptor, *options)

    monkeypatch.setattr(locks, "try_lock", remove_once_and_lock)
    save(tmp_path / "a", b"new")
    assert len(removed) == 1  # the first staging directory
    assert contents(tmp_path / "a") == files_with(b"new")


# What a killed save left


@pytest.fixture
def killed_save(tmp_path) -> Path:
    """A directory in which a killed process has left its staging directory."""
    staging = tmp_path / "a" / ".save.0.tmp"
    save(staging / "new", b"killed")
    (staging / LOCK).touch()
    return tmp_path / "a"


def test_what_a_killed_save_left_is_removed(killed_save):
    save(killed_save, b"newer")
    assert contents(killed_save) == files_with(b"newer")


def test_what_a_killed_save_left_is_removed_on_windows(killed_save, monkeypatch):
    """On Windows a directory cannot be renamed while a file in it, here the lock, is open.

    Before a save removes the directory that a killed one left, it renames it to a name in ".tmp".
    """
    rename = os.rename

    def rename_unless_open(old, new):
        is_staging_directory = str(new).endswith(".tmp")
        if is_staging_directory:
            raise PermissionError(13, "Access is denied")
        rename(old, new)

    monkeypatch.setattr(os, "rename", rename_unless_open)
    save(killed_save, b"newer")
    assert contents(killed_save) == files_with(b"newer")


def test_what_a_killed_save_left_stays_where_there_are_no_locks(killed_save, monkeypatch):
    """Without locks, nothing shows whether the process of a staging directory still runs."""
    fcntl = pytest.importorskip("fcntl")

    def refuse_to_lock(*_):
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(fcntl, "flock", refuse_to_lock)
    save(killed_save, b"newer")
    staging_directory = {".save.0.tmp": b""}
    assert contents(killed_save) == files_with(b"newer") | staging_directory


# Other users


@posix
def test_the_staging_directory_is_private_and_the_files_are_not(tmp_path):
    """Files and their directory get the permissions that the user's mask allows."""
    mask = os.umask(0o027)  # the group may not write, and others may do nothing
    try:
        with StagedFiles(tmp_path / "a") as staged:
            (staging,) = (tmp_path / "a").iterdir()
            assert stat.S_IMODE(staging.stat().st_mode) == 0o700
            assert stat.S_IMODE(staged.new.stat().st_mode) == 0o700
            staged.open("one").write(b"new")
    finally:
        os.umask(mask)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o750
    assert stat.S_IMODE((tmp_path / "a" / "one").stat().st_mode) == 0o640


@pytest.fixture
def victim(tmp_path) -> Path:
    """A directory to which planted links lead. Its files must stay as they are."""
    save(tmp_path / "victim", b"precious", ("one", LOCK))
    save(tmp_path / "victim" / "new", b"forged", ("one",))
    return tmp_path / "victim"


@pytest.fixture
def shared_directory(tmp_path, victim, short_wait, monkeypatch) -> Path:
    """A directory in which other users can make files. They know the names of staging directories.

    A save makes .save.00.tmp, or .save.01.tmp if the first name is taken.
    """
    names = iter(["00", "01"])
    monkeypatch.setattr(tempfile, "_get_candidate_names", lambda: names)
    (tmp_path / "shared").mkdir()
    return tmp_path / "shared"


def plant_directory(path: Path, victim: Path, monkeypatch) -> None:
    """Make a directory of which os.lstat says that another user owns it.

    Its lock is a link to a file of the victim.
    """
    path.mkdir()
    (path / "one").write_bytes(b"forged")
    os.symlink(victim / "one", path / LOCK)
    lstat = os.lstat
    another_user = os.getuid() + 1
    status = SimpleNamespace(st_mode=stat.S_IFDIR, st_uid=another_user)

    def forged_lstat(asked_path, **options):
        if asked_path == path:
            return status
        return lstat(asked_path, **options)

    monkeypatch.setattr(os, "lstat", forged_lstat)


def files_below(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}


@posix
def test_a_planted_link_is_not_used_as_a_staging_directory(shared_directory, victim):
    """The link has the first name of a staging directory."""
    before = files_below(victim)
    (shared_directory / ".save.00.tmp").symlink_to(victim)
    save(shared_directory, b"new")
    planted = {".save.00.tmp": b""}
    assert contents(shared_directory) == files_with(b"new") | planted
    assert files_below(victim) == before


@posix
def test_a_planted_directory_is_not_used_as_a_staging_directory(
    shared_directory, victim, monkeypatch
):
    """The planted directory has the first name of a staging directory."""
    before = files_below(victim)
    plant_directory(shared_directory / ".save.00.tmp", victim, monkeypatch)
    save(shared_directory, b"new")
    planted = {".save.00.tmp": b""}
    assert contents(shared_directory) == files_with(b"new") | planted
    assert files_below(victim) == before


@posix
def test_nothing_is_moved_out_of_a_planted_link(shared_directory, victim):
    before = files_below(victim)
    (shared_directory / READY).symlink_to(victim)
    message = f"{READY}: this save cannot be moved out: it is not this user's"
    refuses(message, save, shared_directory, b"new")
    assert contents(shared_directory) == {READY: b""}
    assert files_below(victim) == before


@posix
def test_nothing_is_moved_out_of_a_planted_directory(shared_directory, victim, monkeypatch):
    before = files_below(victim)
    plant_directory(shared_directory / READY, victim, monkeypatch)
    message = f"{READY}: this save cannot be moved out: it is not this user's"
    refuses(message, save, shared_directory, b"new")
    assert contents(shared_directory) == {READY: b""}
    assert files_below(victim) == before


@posix
@pytest.mark.parametrize("link", [os.symlink, os.link])
def test_a_link_in_the_place_of_a_new_file_is_not_followed(tmp_path, link):
    """The save has no other file. So the directory that it has made is removed again."""
    (tmp_path / "victim").write_bytes(b"precious")
    with StagedFiles(tmp_path / "a") as staged:
        link(tmp_path / "victim", staged.new / "one")
        with pytest.raises(FileExistsError):
            staged.open("one")
        (staged.new / "one").unlink()  # remove the link
    assert contents(tmp_path) == {"victim": b"precious"}


@posix
@pytest.mark.parametrize(
    ("link", "message"),
    [
        pytest.param(os.symlink, r"cannot write to .*a: .*links", id="symbolic"),
        pytest.param(os.link, r"\.lock is a link", id="hard"),
    ],
)
def test_a_link_in_the_place_of_a_lock_is_not_followed(tmp_path, link, message):
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "a").mkdir()
    link(tmp_path / "victim", tmp_path / "a" / LOCK)
    with pytest.raises(CheckpointError, match=message), lock_directory(tmp_path / "a"):
        pass
    assert (tmp_path / "victim").read_bytes() == b"precious"


# Locks of directories

# A program that locks a directory, prints "held", and keeps the lock for a minute.
HOLD = """
import sys, time
from pathlib import Path
from tiedgpt.checkpoints.publishing import lock_directory

with lock_directory(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def start(script: str, directory: Path) -> subprocess.Popen:
    command = [sys.executable, "-c", script, directory]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def test_a_directory_is_locked_for_one_process(tmp_path):
    """A second process cannot lock the directory. When it tries again, it gets the same error."""
    with start(HOLD, tmp_path / "a") as process:
        process.stdout.readline()  # wait for "held"
        message = f"a is in use by process {process.pid}; wait, or choose another directory"
        for _ in range(2):
            with pytest.raises(CheckpointError, match=message), lock_directory(tmp_path / "a"):
                pass
        process.kill()


def test_a_directory_is_free_when_its_process_is_killed(tmp_path):
    with start(HOLD, tmp_path / "a") as process:
        process.stdout.readline()  # wait for "held"
        process.kill()
    with lock_directory(tmp_path / "a"):
        assert (tmp_path / "a" / LOCK).read_text().strip() == str(os.getpid())
    assert contents(tmp_path / "a") == {}


def test_a_directory_that_was_made_for_a_lock_is_removed_if_it_stays_empty(tmp_path):
    with pytest.raises(ZeroDivisionError), lock_directory(tmp_path / "new" / "b"):
        _ = 1 / 0
    assert contents(tmp_path) == {}


# Two forks make four processes. Each process tries 30 times to lock a directory. Then it makes 40
# saves of two files, a and b, to the folder `saved` in it, and waits for its children.
FOUR_PROCESSES = """
import os, sys
from contextlib import suppress
from pathlib import Path
from tiedgpt.checkpoints.publishing import StagedFiles, lock_directory
from tiedgpt.errors import CheckpointError

directory = Path(sys.argv[1])
os.fork()
os.fork()
for _ in range(30):
    try:
        with lock_directory(directory):
            # This fails if another process is inside.
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
        _process, status = os.wait()
        assert status == 0
"""


@posix
def test_four_processes_lock_in_turn_and_lose_no_file_that_they_save(tmp_path):
    """A process has no lock if another process removes the lock file that it has opened."""
    (tmp_path / "a").mkdir()
    with start(FOUR_PROCESSES, tmp_path / "a") as process:
        assert process.communicate() == (b"", b"")
    saved = contents(tmp_path / "a" / "saved")  # names such as 4711-0a: process, save, file
    process_ids = {name.partition("-")[0] for name in saved}
    assert len(process_ids) == 4
    expected = {}
    for process_id in process_ids:
        for n in range(40):
            expected[f"{process_id}-{n}a"] = b"a"
            expected[f"{process_id}-{n}b"] = b"b"
    assert saved == expected
