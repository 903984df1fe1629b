"""Run `download` and `train` with faults, and check the files that they leave.

    python tests/support/writers.py PLACE POINTS [WRITER...]

A writer is a command that writes files. A fault is what happens to a run of it: it is killed, or it
finds the disk full, or it has no permission to write. Or two processes run the writer at once. Each
try runs in a fork of this process, in a new directory in PLACE, which has the models that are read.
After a try, each file with its final name must be whole. Then the same command runs again without a
fault. It must leave the same files as an uninterrupted run, and no others.

A change of files, such as a removal, has a number, from 1 on. This number is the moment of a fault.
POINTS is how many moments are tried, 0 for all. HF_ENDPOINT names a hub that has `tiny/gpt2`.
test_writers.py prepares PLACE.
"""

import errno
import importlib
import math
import os
import pkgutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from resource import RLIMIT_FSIZE, setrlimit

import tiedgpt
from tiedgpt import cli

TRAIN = (
    "train ../text --out out --n-layer 1 --n-head 1 --n-embd 8 --context 8 --vocab-size 260 "
    "--batch 2 --steps 4 --eval-every 2"
)
# A name -> the command, and the command that continues it, if there is one
WRITERS = {
    "download": ("download tiny/gpt2", ""),
    "train, with a vocabulary": (TRAIN, "train ../text --resume out"),
}
# Python's audit events that are changes of files, and those of them that fail on a full disk
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "open", "tempfile.mkdtemp"}
GROWTH = {"os.mkdir", "os.link", "open"}

Files = dict[str, bytes]  # the path of a file -> its content; of a directory -> b""
Prepare = Callable[[], object]  # called in the fork before the command


def main(place: str, points: str, *names: str) -> None:
    """Attack the writers with these names; without names, all writers."""
    os.chdir(place)
    os.chmod(".", 0o755)  # some tries run as another user, who must be able to enter PLACE
    os.environ |= {"TIEDGPT_WEIGHTS": "weights", "XDG_CACHE_HOME": "nowhere", "HF_HUB_OFFLINE": "0"}
    import_what_writers_use()
    for name in names or WRITERS:
        Writer(name).attack(int(points))


def import_what_writers_use() -> None:
    """Import all modules that the commands use before the first fork.

    An import in a fork may open files to write, such as byte code. They would count as changes.
    """
    packages = ("cli", "checkpoints", "training")
    for module in pkgutil.walk_packages(tiedgpt.__path__, "tiedgpt."):
        _tiedgpt, package, *_ = module.name.split(".")
        if package in packages:
            importlib.import_module(module.name)
    for name in ("tqdm", "requests"):
        importlib.import_module(name)


def do_nothing() -> None:
    """The preparation of a run without a fault."""


@dataclass
class Fault:
    """What happens to a run, and how it must end.

    Without `code`, the run must either succeed, or end with exit code 2 and an error line that
    contains `message`.
    """

    name: str
    prepare: Prepare  # makes the fault happen
    code: int | None = None  # the exit code
    message: str = ""


class Writer:
    """A command that writes files, and the files of an uninterrupted run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.command, self.continuation = WRITERS[name]
        # A command prints to a pipe, not to a file, because some tries limit the size of files.
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        # The first run is not interrupted. Every try must end with the files that it leaves.
        self.enter_new_directory()
        code = self.run(self.command, count_changes)
        assert code == 0, self.printed()
        self.whole = files_here()
        # count_changes writes one byte to this file for each change.
        self.n_changes = Path("../changes").stat().st_size

    def attack(self, points: int) -> None:
        """Try every fault: at about `points` moments, or, if that is 0, at each change of files.

        The command is killed at one moment. The disk is full from a moment to the end.
        """
        every_change = range(1, self.n_changes + 1)
        largest_size = max(len(content) for content in self.whole.values())
        if points == 0:
            kill_moments = every_change
            full_moments = every_change
            size_limits = [0, 100, largest_size // 2, largest_size - 1]
            n_rivals = 10
        else:
            step = math.ceil(self.n_changes / points)
            kill_moments = every_change[step // 2 :: step]
            full_moments = kill_moments[::2]
            size_limits = [largest_size - 1]
            n_rivals = 1

        for moment in kill_moments:
            prepare = partial(act_from, moment, act=kill)
            self.attempt(Fault(f"killed at {moment}", prepare, code=-signal.SIGKILL))
        for moment in full_moments:
            prepare = partial(act_from, moment, act=refuse_growth)
            message = "No space left on device"
            self.attempt(Fault(f"full at {moment}", prepare, message=message))
        for size in size_limits:
            limits = (size, size)  # the soft and the hard one
            prepare = partial(setrlimit, RLIMIT_FSIZE, limits)
            self.attempt(Fault(f"no file over {size}", prepare, message="File too large"))
        self.attempt(Fault("no permission", become_nobody, message="Permission denied"))
        for _ in range(n_rivals):
            self.attempt_twice_at_once()

    def attempt(self, fault: Fault) -> None:
        """Run the command with a fault, and check how it ends and which files it leaves.

        It may succeed, if what the fault forbids is not needed any more.
        """
        self.enter_new_directory()
        code = self.run(self.command, fault.prepare)
        printed = self.printed()
        report = f"{self.name}, {fault.name}: {code}, {printed[-500:]}"
        if fault.code is not None:
            assert code == fault.code, report
        elif code != 0:
            assert code == 2, report  # an error that the user is told of in one line
            last_line = printed.splitlines()[-1]
            assert last_line.startswith("tiedgpt: error: "), report
            assert fault.message in last_line, report
        assert "Traceback" not in printed, report
        self.check_files_and_run_again(report)

    def attempt_twice_at_once(self) -> None:
        """Run the command in two processes at once. One may fail because the other has the lock."""
        self.enter_new_directory()
        rival_process = self.start(self.command)
        code = self.run(self.command)
        codes = {code, exit_code(rival_process)}
        printed = self.printed()
        report = f"{self.name}, two at once: {codes}, {printed[-500:]}"
        assert 0 in codes, report  # one of them succeeds
        assert codes <= {0, 2}, report
        assert "Traceback" not in printed, report
        self.check_files_and_run_again(report)

    def check_files_and_run_again(self, report: str) -> None:
        """Check the files that a try has left; run the command again, and check its files.

        The second run may fail, but only because the first has completed the files, so that they
        exist. `report` describes the first run. It is shown if a check fails.
        """
        self.check_files(report)
        has_succeeded = self.run_again()
        printed = self.printed()
        if not has_succeeded:
            assert "exists" in printed, f"{report}, again: {printed}"
        assert files_here() == self.whole, f"{report}, again: {sorted(files_here())}"

    def run_again(self) -> bool:
        """Run the continuation, if there is one. If there is none or it fails, run the command.

        Returns whether one of them has succeeded.
        """
        if self.continuation and self.run(self.continuation) == 0:
            return True
        return self.run(self.command) == 0

    def check_files(self, report: str) -> None:
        """Each file with its final name is whole, and the files of a model belong to one model.

        A model that can be loaded is whole. The files of `train` are not compared with those of the
        uninterrupted run, because they may be those of an earlier step.
        """
        for config in Path().rglob("config.json"):
            has_weights = (config.parent / "model.safetensors").exists()
            is_small_files = self.name == "download" and not has_weights
            if not is_hidden(config) and not is_small_files:
                tiedgpt.load_model(config.parent)
                tiedgpt.load_tokenizer(config.parent)
        files = visible(files_here())
        whole = visible(self.whole)
        # `download` publishes one file after the other, so some may be missing.
        if self.name == "download":
            for name, content in files.items():
                assert whole.get(name) == content, f"{report}: {name}"

    def enter_new_directory(self) -> None:
        """Make a directory in PLACE, in which the next command runs, and enter it."""
        is_in_place = Path("text").exists()  # PLACE has a file `text`; the directory of a try, none
        if not is_in_place:
            os.chdir("..")
        os.chdir(tempfile.mkdtemp(dir="."))

    def run(self, command: str, prepare: Prepare = do_nothing) -> int:
        """Run a command in a fork and wait for it. Returns its `exit_code`."""
        return exit_code(self.start(command, prepare))

    def start(self, command: str, prepare: Prepare = do_nothing) -> int:
        """Start a command in a fork. Returns the id of its process."""
        process = os.fork()
        is_in_fork = process == 0
        if not is_in_fork:
            return process
        code = 99  # the exit code if the command raises an error
        try:
            # stdout and stderr are the pipe.
            os.dup2(self.write_end, 1)
            os.dup2(self.write_end, 2)
            prepare()
            code = cli.main(command.split())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def printed(self) -> str:
        """What was printed since the last call."""
        with suppress(BlockingIOError):  # nothing was printed
            return os.read(self.read_end, 1 << 16).decode()
        return ""


def exit_code(process: int) -> int:
    """Wait for a process. Returns its exit code; if a signal killed it, minus the signal."""
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status)


# What is done in the fork


def is_change(event: str, arguments: tuple) -> bool:
    """Whether an audit event is a change of files. `open` is one if it opens a file to write.

    The first argument of these events is a path. The third argument of `open` is its flags.
    """
    if event not in CHANGES:
        return False
    path = str(arguments[0])
    if path.startswith("/dev"):  # a device, such as /dev/null
        return False
    if event == "open":
        flags = arguments[2] or 0  # it may be None
        return bool(flags & (os.O_WRONLY | os.O_RDWR))
    return True


def count_changes() -> None:
    """Write a byte to ../changes for each change of files from here on."""
    log = os.open("../changes", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)

    def hook(event: str, arguments: tuple) -> None:
        if is_change(event, arguments):
            os.write(log, b".")

    sys.addaudithook(hook)


def act_from(moment: int, act: Callable[[str], object]) -> None:
    """Call `act` before the change of files with the number `moment`, and before all later ones."""
    n_changes = 0

    def hook(event: str, arguments: tuple) -> None:
        nonlocal n_changes
        if is_change(event, arguments):
            n_changes += 1
            if n_changes >= moment:
                act(event)

    sys.addaudithook(hook)


def kill(event: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuse_growth(event: str) -> None:
    """Behave like a full disk."""
    if event in GROWTH:
        raise OSError(errno.ENOSPC, "No space left on device")


def become_nobody() -> None:
    """Take from this process the permission to write in this directory."""
    os.chmod(".", 0o555)
    if os.geteuid() == 0:  # root may write everywhere
        nobody = 65534  # the id of a user
        os.seteuid(nobody)


# Files


def files_here() -> Files:
    """All files and directories in this directory and below it, hidden ones too.

    become_nobody has forbidden to write in this directory. This allows it again.
    """
    with suppress(OSError):
        os.chmod(".", 0o755)
    files = {}
    for path in Path().rglob("*"):
        if path.is_dir():
            files[str(path)] = b""
        else:
            files[str(path)] = path.read_bytes()
    return files


def is_hidden(path: str | Path) -> bool:
    """Whether the name of the file, or of a directory in its path, begins with a dot."""
    return "/." in f"/{path}"


def visible(files: Files) -> Files:
    """The files that are not hidden and have a content, so no directories."""
    return {name: content for name, content in files.items() if content and not is_hidden(name)}


if __name__ == "__main__":
    main(*sys.argv[1:])
