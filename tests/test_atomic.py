"""A new directory, or a replaced file, appears complete or not at all (atomic.py).

The function `write` of these tests writes two files to a new directory. `save` and `untie` are what
users call. A process that is killed is a fork of this one: it counts its changes of files, and is
killed before one of them.
"""

import errno
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from support.checks import refuses
from support.models import SMALL, random_model

import tiedgpt
from tiedgpt import Tokenizer, atomic, cli
from tiedgpt.atomic import (
    check_new,
    new_directory,
    remove_unfinished,
    remove_unfinished_files,
    replaced_file,
    write_first,
)
from tiedgpt.checkpoints.writing import write_checkpoint
from tiedgpt.errors import ArgumentError, CheckpointError

MODEL = random_model(replace(SMALL, vocab_size=257))
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "open"}  # audit events
needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
# Newer versions of Python warn of a fork of a process with threads. The fork starts none itself.
pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


def write(target: Path) -> None:
    with new_directory(target) as directory:
        (directory / "a").write_text("a")
        (directory / "folder").mkdir()
        (directory / "folder" / "b").write_text("b")


def names(directory: Path) -> list[str]:
    """All files and folders in a directory, the hidden ones too, by their paths in it."""
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*"))


WRITTEN = ["new", "new/a", "new/folder", "new/folder/b"]

# Where a directory can be written


@pytest.mark.parametrize("parent", ["", "not/there/yet"])
def test_a_new_directory(tmp_path, parent):
    write(tmp_path / parent / "new")
    assert names(tmp_path / parent) == WRITTEN


def test_an_empty_directory_is_replaced(tmp_path):
    (tmp_path / "new").mkdir()
    write(tmp_path / "new")
    assert names(tmp_path) == WRITTEN


@pytest.mark.parametrize("exists", [False, True])
def test_a_link_leads_to_its_target(tmp_path, exists):
    """The target is an empty directory, or is not there yet."""
    if exists:
        (tmp_path / "target").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    write(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "target" / "a").read_text() == "a"


def remove_first(directory: Path, ignore_errors: bool) -> None:
    """What rmtree has removed after a moment."""
    (directory / "config.json").unlink()


@pytest.mark.parametrize("rmtree", [shutil.rmtree, remove_first])
def test_a_checkpoint_whose_first_files_another_process_removes_is_not_published(
    tmp_path, monkeypatch, rmtree
):
    """The other process writes to the same target. It takes this one for killed."""

    class Others(dict):
        def items(self):  # called after config.json is written
            with monkeypatch.context() as patch:
                patch.setattr(shutil, "rmtree", rmtree)
                remove_unfinished(tmp_path / "model")
            return super().items()

    with pytest.raises(CheckpointError), new_directory(tmp_path / "model") as directory:
        write_checkpoint(directory, MODEL, Others({"merges.txt": b""}))
    assert not (tmp_path / "model").exists()
    if rmtree is shutil.rmtree:
        assert names(tmp_path) == []


def test_an_empty_directory_keeps_its_mode(tmp_path):
    (tmp_path / "private").mkdir()
    (tmp_path / "private").chmod(0o700)
    with new_directory(tmp_path / "private"):
        pass
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o700


def test_a_name_that_is_too_long_is_refused_before_any_work(tmp_path):
    long_name = "é" * 121
    with pytest.raises(CheckpointError) as caught:
        check_new(tmp_path / long_name)
    assert str(caught.value) == f"{tmp_path / long_name}: the name is longer than 240 bytes"
    with new_directory(tmp_path / ("é" * 120)):
        pass


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_modes_are_those_of_the_umask(tmp_path, umask):
    """A directory that tempfile makes would have the mode 0700 at any umask."""
    before = os.umask(umask)
    try:
        write(tmp_path / "new")
        with replaced_file(tmp_path / "file") as file:
            file.write(b"x")
    finally:
        os.umask(before)
    for path in (tmp_path / "new", tmp_path / "new" / "folder"):
        assert path.stat().st_mode & 0o777 == 0o777 & ~umask
    for path in (tmp_path / "new" / "a", tmp_path / "file"):
        assert path.stat().st_mode & 0o777 == 0o666 & ~umask


# Where none can be written: refused before the block begins


NOT_REPLACED = (
    "cannot be replaced by a new directory, because it is a working directory or a mounted one; "
    "name a new directory inside it"
)
MESSAGES = {
    "file": "{target} is a file; expected the name of a new directory",
    "full": "{target} exists and is not empty; name a new directory",
    "working": "{target} " + NOT_REPLACED,
    "mounted": "{target} " + NOT_REPLACED,
    "below-a-file": "cannot write to {target}: {folder}/file is a file",
    "link-to-itself": "{target} is a file; expected the name of a new directory",
    "below-such-a-link": "cannot write to {target}: {folder}/link is a file",
}


@pytest.mark.parametrize("place", MESSAGES)
def test_a_target_that_is_refused_before_any_work(tmp_path, monkeypatch, place):
    target = tmp_path / "target"
    if place == "file":
        target.write_text("")
    elif place == "below-a-file":
        (tmp_path / "file").write_text("")
        target = tmp_path / "file" / "target"
    elif place == "link-to-itself":
        target.symlink_to(target)
    elif place == "below-such-a-link":
        (tmp_path / "link").symlink_to(tmp_path / "link")
        target = tmp_path / "link" / "target"
    else:
        target.mkdir()
    if place == "full":
        (target / ".hidden").write_text("")
    if place == "working":
        monkeypatch.chdir(target)
    if place == "mounted":
        monkeypatch.setattr(os.path, "ismount", lambda path: Path(path) == target)
    before = names(tmp_path)
    with pytest.raises(CheckpointError) as caught, new_directory(target):
        pytest.fail("the block began")
    assert str(caught.value) == MESSAGES[place].format(target=target, folder=tmp_path)
    assert names(tmp_path) == before


def test_a_message_has_the_name_that_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert refuses("working", check_new, ".") == f". {NOT_REPLACED}"
    long_name = "a" * 241
    message = f"{long_name}: the name is longer than 240 bytes"
    assert refuses("longer", check_new, long_name) == message
    (tmp_path / "file").touch()
    message = "file is a file; expected the name of a new directory"
    assert refuses("file", check_new, "file") == message
    message = f"cannot write to file/new: {tmp_path}/file is a file"
    assert refuses("file", check_new, "file/new") == message


def test_a_target_that_cannot_be_made_is_refused(tmp_path, monkeypatch):
    def refuse(path, parents=False, exist_ok=False):
        if exist_ok and path.is_dir():  # the directory of the target, which is there
            return
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "mkdir", refuse)
    message = refuses("new", write, tmp_path / "new")
    assert message == f"cannot write to {tmp_path / 'new'}: Permission denied"


def test_what_no_directory_can_be_called_is_refused():
    with pytest.raises(ArgumentError, match=r"^'a\\x00b' is not the name of a file$"):
        check_new("a\0b")


def test_a_target_that_may_not_be_read_is_refused(tmp_path, monkeypatch):
    def refuse(folder):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "iterdir", refuse)
    refuses("cannot write to .*: Permission denied", check_new, tmp_path)


def test_save_model_and_the_commands_refuse_a_directory_that_is_not_empty(run, tmp_path):
    (tmp_path / "mine").write_text("")
    refuses("not empty", tiedgpt.save_model, MODEL, None, tmp_path)
    flags = {"untie": [], "tie": [], "resize": ["--vocab-size", "9"]}
    for command, arguments in flags.items():
        # The source is not there, which would be found out next.
        code, _, err = run(command, "no-such-model", str(tmp_path), *arguments)
        assert code == 2
        assert "not empty" in err
    assert names(tmp_path) == ["mine"]


# After an error


def write_and_raise(folder: Path, error: type[BaseException]) -> None:
    with new_directory(folder / "new") as directory:
        (directory / "a").write_text("a")
        raise error("the reason")


def replace_and_raise(folder: Path, error: type[BaseException]) -> None:
    with replaced_file(folder / "file") as file:
        file.write(b"after")
        raise error("the reason")


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt, OSError])
@pytest.mark.parametrize("function", [write_and_raise, replace_and_raise])
def test_an_error_leaves_nothing(tmp_path, function, error):
    (tmp_path / "file").write_text("before")
    with pytest.raises(CheckpointError if error is OSError else error) as caught:
        function(tmp_path, error)
    name = "new" if function is write_and_raise else "file"
    expected = f"cannot write to {tmp_path / name}: the reason"
    assert str(caught.value) == (expected if error is OSError else "the reason")
    assert names(tmp_path) == ["file"]
    assert (tmp_path / "file").read_text() == "before"


def test_a_file_of_a_folder_that_is_gone_is_not_written(tmp_path):
    """Such as a file of a checkpoint: without the others it would be no checkpoint."""
    with pytest.raises(CheckpointError, match="new"), replaced_file(tmp_path / "new" / "file"):
        pass
    assert names(tmp_path) == []


def test_a_file_is_replaced(tmp_path):
    (tmp_path / "file").write_text("before")
    with replaced_file(tmp_path / "file") as file:
        file.write(b"after")
        assert (tmp_path / "file").read_text() == "before"
    assert (tmp_path / "file").read_text() == "after"
    assert names(tmp_path) == ["file"]


def test_of_two_writers_of_one_target_one_fails(tmp_path):
    """The second one takes the first one's directory for one that a killed process left."""

    def write_while_another_does() -> None:
        with new_directory(tmp_path / "new") as directory:
            (directory / "c").write_text("c")
            write(tmp_path / "new")

    with pytest.raises(CheckpointError, match="new"):
        write_while_another_does()
    assert names(tmp_path) == WRITTEN


# After a fault of a process


def in_fork(function: Callable[[], object], *faults: Callable[[], object]) -> tuple[int, str]:
    """Call the function in a fork with these faults.

    Returns (the exit code, the message): 0; 2 and the message of a CheckpointError; or minus the
    signal that killed the fork.
    """
    read_end, write_end = os.pipe()
    process = os.fork()
    if process == 0:
        code = 99  # of any other exception
        try:
            for fault in faults:
                fault()
            function()
            code = 0
        except CheckpointError as error:
            os.write(write_end, str(error).encode())
            code = 2
        except BaseException:
            os.write(write_end, traceback.format_exc().encode())
        finally:
            os._exit(code)
    _, status = os.waitpid(process, 0)
    os.close(write_end)
    with open(read_end, encoding="utf-8") as message:
        return os.waitstatus_to_exitcode(status), message.read()


def killed_before(moment: int) -> Callable[[], None]:
    """A fault: the fork is killed before the change of files with this number, from 1."""

    def fault() -> None:
        n_changes = 0

        def hook(event: str, arguments: tuple) -> None:
            nonlocal n_changes
            if event in CHANGES:  # not os.kill, which is an event too
                n_changes += 1
                if n_changes == moment:
                    os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(hook)

    return fault


def save(target: Path) -> None:
    tiedgpt.save_model(MODEL, Tokenizer([]), target)


def untie(source: Path, target: Path) -> None:
    os.close(1)
    os.close(2)
    sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115
    if cli.main(["untie", str(source), str(target)]) != 0:
        raise CheckpointError(f"cannot write to {target}")


def assert_complete_or_absent(target: Path, head: str) -> None:
    """The target is a whole checkpoint, or is not there."""
    if target.exists():
        expected = MODEL if head == "tied" else MODEL.untie()
        loaded = tiedgpt.load_model(target)
        for name, array in expected.parameters.items():
            np.testing.assert_array_equal(loaded.parameters[name], array)
        assert tiedgpt.load_tokenizer(target).vocab_size == 257
    for path in target.parent.iterdir():
        assert path == target or path.name.startswith(f".{target.name}.")


# `untie` writes as `save` does, and copies the tokenizer's files too.
@pytest.fixture(params=[pytest.param("save", marks=pytest.mark.slow), "untie"])
def writer(request, tmp_path) -> tuple[Callable[[], None], Path, str]:
    """(a function that writes a checkpoint, where it writes, its head)."""
    target = tmp_path / "place" / "new"
    target.parent.mkdir()
    if request.param == "save":
        return lambda: save(target), target, "tied"
    save(tmp_path / "source")
    return lambda: untie(tmp_path / "source", target), target, "untied"


def assert_writes_again(function: Callable[[], None], target: Path, head: str) -> None:
    """The next write completes the target, unless it is complete, and leaves nothing beside it."""
    is_complete = target.exists()
    code, _ = in_fork(function)
    assert code == (2 if is_complete else 0)
    assert_complete_or_absent(target, head)
    if not is_complete:
        assert list(target.parent.iterdir()) == [target]


@needs_fork
@pytest.mark.parametrize("step", [4, pytest.param(1, marks=pytest.mark.slow)])
def test_a_killed_process_leaves_a_whole_checkpoint_or_none(writer, step):
    """It is killed before each of its changes in turn, or each fourth, until there are no more."""
    function, target, head = writer
    code = -signal.SIGKILL
    moment = 0
    n_absent = 0
    while code == -signal.SIGKILL:
        moment += step
        code, message = in_fork(function, killed_before(moment))
        assert_complete_or_absent(target, head)
        n_absent += not target.exists()
        assert_writes_again(function, target, head)
        shutil.rmtree(target)
    assert code == 0, message
    assert n_absent >= 8 // step  # a directory, four files, and what is read before


def kill_after(seconds: float) -> None:
    """Let SIGALRM kill this process."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # pytest-timeout has a handler for it
    signal.setitimer(signal.ITIMER_REAL, seconds)


@needs_fork
@pytest.mark.slow
def test_a_process_that_is_killed_at_any_time_leaves_a_whole_checkpoint_or_none(writer):
    function, target, head = writer
    start = time.perf_counter()
    assert in_fork(function) == (0, "")
    seconds = time.perf_counter() - start
    rng = random.Random(0)
    for _ in range(50):
        shutil.rmtree(target)
        code, _ = in_fork(function, partial(kill_after, rng.uniform(1e-4, seconds)))
        assert code in (0, -signal.SIGALRM)
        assert_complete_or_absent(target, head)
        assert_writes_again(function, target, head)


@pytest.mark.parametrize("as_given", [str, Path])
@pytest.mark.parametrize("name", ["out", "two\nlines"])
def test_what_a_killed_process_left_is_removed_whatever_names_the_target(tmp_path, as_given, name):
    (tmp_path / f".{name}.01234567.new").mkdir()
    (tmp_path / f".{name} file.01234567.new").touch()
    remove_unfinished(as_given(tmp_path / name))
    remove_unfinished(as_given(tmp_path / f"{name} file"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("other", ["models", "mode"])
def test_what_a_killed_process_left_of_another_target_stays(tmp_path, other):
    left = tmp_path / f".{other}.0123abcd.new"
    left.mkdir()
    write(tmp_path / "model")
    assert left.exists()


@needs_fork
def test_a_full_disk_leaves_nothing(writer):
    """No file may have more than 1,000 bytes, fewer than the weights have."""
    import resource  # which Windows lacks

    function, target, _ = writer
    limits = (1_000, 1_000)
    code, message = in_fork(function, partial(resource.setrlimit, resource.RLIMIT_FSIZE, limits))
    assert code == 2
    assert f"cannot write to {target}" in message
    assert list(target.parent.iterdir()) == []


@needs_fork
def test_a_parent_that_may_not_be_written_to(writer):
    function, target, _ = writer
    os.chmod(target.parent, 0o555)
    faults = []
    if os.geteuid() == 0:  # root may write everywhere
        pytest_folder = target.parents[3]
        for folder in (target.parents[1], target.parents[2], pytest_folder):
            os.chmod(folder, 0o755)
        nobody = 65534  # the id of a user
        faults = [partial(os.seteuid, nobody)]
    code, message = in_fork(function, *faults)
    os.chmod(target.parent, 0o755)
    assert code == 2
    assert f"cannot write to {target}" in message
    assert list(target.parent.iterdir()) == []


def test_a_file_is_on_disk_before_it_replaces_another(tmp_path, monkeypatch):
    done = []
    replace_file = os.replace
    monkeypatch.setattr(os, "fsync", lambda file: done.append(os.fstat(file).st_size))
    monkeypatch.setattr(
        os, "replace", lambda *paths: (done.append("replace"), replace_file(*paths))
    )
    with replaced_file(tmp_path / "state") as file:
        file.write(b"new")
    assert done[:2] == [len(b"new"), "replace"]


def test_all_of_a_new_directory_is_on_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """Then the name is written to disk, too."""
    done = []
    rename = os.rename

    def rename_and_note(source, target):
        done.append("rename")
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_and_note)
    monkeypatch.setattr(atomic, "_flush", done.append)
    with new_directory(tmp_path / "new") as directory:
        (directory / "inner").mkdir()
        (directory / "inner" / "file").touch()
    before = {directory, directory / "inner", directory / "inner" / "file"}
    assert set(done[:3]) == before
    assert done[3:] == ["rename", tmp_path]
    done.clear()
    with replaced_file(tmp_path / "state") as file:
        file.write(b"new")
    assert done == [tmp_path]


def test_what_is_flushed_is_closed(tmp_path, monkeypatch):
    closed = []
    close = os.close
    monkeypatch.setattr(os, "close", lambda descriptor: (closed.append(1), close(descriptor)))
    atomic._flush(tmp_path)
    assert closed == [1]


def test_of_a_file_that_two_write_the_first_stays(tmp_path):
    write_first(tmp_path / "settings", b"first")
    write_first(tmp_path / "settings", b"second")
    assert (tmp_path / "settings").read_bytes() == b"first"
    assert names(tmp_path) == ["settings"]


def test_what_killed_processes_left_of_all_files_is_removed(tmp_path):
    (tmp_path / ".state.0123abcd.new").write_text("unfinished")
    kept = [".state.0123.new", ".state.0123abcd.new.txt", ".state.new", "state"]
    for name in kept:
        (tmp_path / name).write_text("kept")
    (tmp_path / ".folder.0123abcd.new").mkdir()  # another process writes a directory
    remove_unfinished_files(tmp_path)
    assert names(tmp_path) == [".folder.0123abcd.new", *kept]


@pytest.mark.parametrize(
    ("number", "message"),
    [
        # What systems answer if the target is not empty
        (errno.EEXIST, "{} exists and is not empty; name a new directory"),
        (errno.ENOTEMPTY, "{} exists and is not empty; name a new directory"),
        (errno.EIO, "cannot write to {}: the reason"),
    ],
)
def test_a_rename_that_the_system_refuses(tmp_path, monkeypatch, number, message):
    def refuse(source, target):
        raise OSError(number, "the reason")

    monkeypatch.setattr(os, "rename", refuse)
    assert refuses("new", write, tmp_path / "new") == message.format(tmp_path / "new")
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("meanwhile", "message"),
    [
        pytest.param("write", "{} exists and is not empty; name a new directory", id="written"),
        pytest.param("remove", "another process writes to {}, too", id="removed"),
    ],
)
def test_another_process_is_faster_by_one_rename(tmp_path, monkeypatch, meanwhile, message):
    rename = os.rename

    def late_rename(source, target):
        shutil.rmtree(source) if meanwhile == "remove" else (target / "a").mkdir(parents=True)
        rename(source, target)

    monkeypatch.setattr(os, "rename", late_rename)
    assert refuses("new", write, tmp_path / "new") == message.format(tmp_path / "new")
    assert names(tmp_path) == ([] if meanwhile == "remove" else ["new", "new/a"])
