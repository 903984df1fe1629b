"""Every writer of the project is killed, left without room or permission, and started twice.

    python tests/support/writers.py PLACE POINTS [WRITER...]

Each try is a fork of this process, in an empty directory beside the models of PLACE. After it, what
has its final name is whole, and the same command again ends with the files of an uninterrupted run
and nothing else. POINTS is the number of moments to try, 0 for all. HF_ENDPOINT names a hub that
has `tiny/gpt2`. test_writers.py prepares PLACE.
"""

import errno
import importlib
import math
import os
import pkgutil
import shutil
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
from tiedgpt.errors import CheckpointError

TRAIN = (
    "train ../text --out out --n-layer 1 --n-head 1 --n-embd 8 --context 8 --vocab-size 260 "
    "--batch 2 --steps 4 --eval-every 2"
)
DOCUMENTS = "documents score ../in.jsonl -m ../tied --shard-size 1KB --out out"
# Each command, and the one that continues it.
WRITERS = {
    "save": ("save ../untied out", ""),
    "save over another": ("save ../untied out", ""),
    "convert": ("untie ../tied out", ""),
    "download": ("download tiny/gpt2", ""),
    "train, with a vocabulary": (TRAIN, f"{TRAIN} --resume"),
    "documents": (DOCUMENTS, f"{DOCUMENTS} --resume"),
}
# Python's audit events of a change of files, and those that fail on a full disk.
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "open", "tempfile.mkdtemp"}
GROWTH = {"os.mkdir", "os.link", "open"}

Files = dict[str, bytes]  # names and contents; for a directory, b""
Prepare = Callable[[], object]  # called in the fork before the command


def main(place: str, points: str, *names: str) -> None:
    """Attack the writers of these names, or all."""
    os.chdir(place)
    os.chmod(".", 0o755)  # become_nobody runs a command as another user, who must come in here
    os.environ |= {"TIEDGPT_WEIGHTS": "weights", "XDG_CACHE_HOME": "nowhere", "HF_HUB_OFFLINE": "0"}
    import_what_writers_use()
    for name in names or WRITERS:
        Writer(name).attack(int(points))


def import_what_writers_use() -> None:
    """Import all modules before the first fork.

    An import in a fork would open files, which would be counted as changes.
    """
    packages = ("cli", "checkpoints", "training", "inference")
    for module in pkgutil.walk_packages(tiedgpt.__path__, "tiedgpt."):
        _tiedgpt, package, *_ = module.name.split(".")
        if package in packages:
            importlib.import_module(module.name)
    for name in ("tqdm", "requests", "tiedgpt.scale.output"):
        importlib.import_module(name)


def do_nothing() -> None:
    """The fork runs the command without a fault."""


@dataclass
class Fault:
    """What happens to a run, and how it must end."""

    name: str
    prepare: Prepare
    code: int | None = None  # the exit code; None: 2, with `message` in the last line
    message: str = ""


class Writer:
    """A command that writes files, and the files of an uninterrupted run."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.command, self.continuation = WRITERS[name]
        # What a command prints goes to a pipe: the size of a file is limited in some tries.
        self.read_end, self.write_end = os.pipe()
        os.set_blocking(self.read_end, False)
        # This run is not interrupted. Every try must end with its files.
        self.enter_new_directory()
        self.before = files_here()
        code = self.run(self.command, count_changes)
        assert code == 0, self.printed()
        self.whole = files_here()
        self.changes = Path("../changes").stat().st_size  # count_changes writes a byte for each

    def attack(self, points: int) -> None:
        """Try every fault: at about POINTS moments, or for 0 at each change of files.

        A moment is the number of a change, from 1 on. The disk is full from a moment on.
        """
        every_change = range(1, self.changes + 1)
        largest = max(len(content) for content in self.whole.values())
        if points == 0:
            kill_moments = every_change
            full_moments = every_change
            size_limits = [0, 100, largest // 2, largest - 1]
            n_rivals = 10
        else:
            step = math.ceil(self.changes / points)
            kill_moments = every_change[::step]
            full_moments = kill_moments[::2]
            size_limits = [largest - 1]
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
        """Run the command with a fault, and check how it ends and what is there.

        A command to which the fault does not matter any more may succeed.
        """
        self.enter_new_directory()
        code = self.run(self.command, fault.prepare)
        printed = self.printed()
        report = f"{self.name}, {fault.name}: {code}, {printed[-500:]}"
        if fault.code is not None:
            assert code == fault.code, report
        elif code != 0:
            assert code == 2, report
            last_line = printed.splitlines()[-1]
            assert last_line.startswith("tiedgpt: error: "), report
            assert fault.message in last_line, report
        assert "Traceback" not in printed, report
        self.check_files_and_run_again(report)

    def attempt_twice_at_once(self) -> None:
        """Run the command in two processes. One may refuse, because the other has the lock."""
        self.enter_new_directory()
        rival = self.start(self.command)
        code = self.run(self.command)
        codes = {code, exit_code(rival)}
        printed = self.printed()
        report = f"{self.name}, two at once: {codes}, {printed[-500:]}"
        assert 0 in codes, report
        assert codes <= {0, 2}, report
        assert "Traceback" not in printed, report
        self.check_files_and_run_again(report)

    def check_files_and_run_again(self, report: str) -> None:
        """Check what a try has left, and that running again makes the whole files.

        `report` is what an error says of the try. Running again may fail only because the try had
        completed its files.
        """
        self.check_files(report)
        works = self.run_again()
        printed = self.printed()
        if not works:
            assert "exists" in printed, f"{report}, again: {printed}"
        assert files_here() == self.whole, f"{report}, again: {sorted(files_here())}"

    def run_again(self) -> bool:
        """Run the command that continues, or else the same command. Whether one of them works."""
        if self.continuation and self.run(self.continuation) == 0:
            return True
        return self.run(self.command) == 0

    def check_files(self, report: str) -> None:
        """Files with their final names are whole; those of a model are one model's.

        A model that can be loaded is whole. What `train` writes is not compared: it may be that of
        an earlier step.
        """
        for config in Path().rglob("config.json"):
            if not is_hidden(config):
                tiedgpt.load_model(config.parent)
                tiedgpt.load_tokenizer(config.parent)
        files = visible(files_here())
        files_before = visible(self.before)
        whole = visible(self.whole)
        # These publish all their files at once.
        if self.name in ("save", "save over another", "convert"):
            assert files in (files_before, whole), f"{report}: {sorted(files)}"
        # These may have published some. Files of out.parts are there only until the end.
        if self.name in ("download", "documents"):
            for name, content in files.items():
                is_part = "parts" in name
                if not is_part:
                    assert whole.get(name) == content, f"{report}: {name}"

    def enter_new_directory(self) -> None:
        """Make a directory beside the models, in which the next command runs, and enter it."""
        is_first = Path("text").exists()  # in PLACE; later, in the directory of the last attempt
        if not is_first:
            os.chdir("..")
        os.chdir(tempfile.mkdtemp(dir="."))
        if self.name == "save over another":
            shutil.copytree("../tied", "out")

    def run(self, command: str, prepare: Prepare = do_nothing) -> int:
        """Run a command in a fork. Returns its exit code, or minus the signal that killed it."""
        return exit_code(self.start(command, prepare))

    def start(self, command: str, prepare: Prepare = do_nothing) -> int:
        """Run a command in a fork, whose process id is returned."""
        process = os.fork()
        if process != 0:  # in this process; in the fork it is 0
            return process
        code = 99  # if the command raises an error
        try:
            # stdout and stderr are the pipe.
            os.dup2(self.write_end, 1)
            os.dup2(self.write_end, 2)
            prepare()
            code = run_command(command.split())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def printed(self) -> str:
        """What was printed since the last call."""
        with suppress(BlockingIOError):  # nothing was printed
            return os.read(self.read_end, 1 << 16).decode()
        return ""


def run_command(words: list[str]) -> int:
    """Run a command of tiedgpt, or `save SRC DST`, which calls save_model."""
    if words[0] != "save":
        return cli.main(words)
    _, source, destination = words
    try:
        tokenizer = tiedgpt.load_tokenizer(source)
        tiedgpt.save_model(tiedgpt.load_model(source), tokenizer, destination)
    except CheckpointError as error:
        os.write(2, f"tiedgpt: error: {error}\n".encode())
        return 2
    return 0


def exit_code(process: int) -> int:
    """The code with which a process ends; minus the signal that killed it."""
    _, status = os.waitpid(process, 0)
    return os.waitstatus_to_exitcode(status)


# What is done in the fork


def is_change(event: str, arguments: tuple) -> bool:
    """Whether an audit event is a change of files: for `open`, whether it opens one to write.

    The first argument of these events is a path, and the third of `open` has the flags.
    """
    if event not in CHANGES:
        return False
    path = str(arguments[0])
    if path.startswith("/dev"):
        return False
    if event == "open":
        flags = arguments[2] or 0
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
    """Act before the change of files of this number, the first being 1, and before later ones."""
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
    """The disk is full."""
    if event in GROWTH:
        raise OSError(errno.ENOSPC, "No space left on device")


def become_nobody() -> None:
    """Have no permission to write here."""
    os.chmod(".", 0o555)
    if os.geteuid() == 0:  # root has every permission, so the fork becomes the user nobody
        os.seteuid(65534)


# Files


def files_here() -> Files:
    """All files and directories here, hidden ones too."""
    with suppress(OSError):
        os.chmod(".", 0o755)  # become_nobody has forbidden to write
    files = {}
    for path in Path().rglob("*"):
        if path.is_dir():
            files[str(path)] = b""
        else:
            files[str(path)] = path.read_bytes()
    return files


def is_hidden(path: str | Path) -> bool:
    """Whether a part of the path begins with a dot."""
    return "/." in f"/{path}"


def visible(files: Files) -> Files:
    """The files that have their final names and a content."""
    return {name: content for name, content in files.items() if content and not is_hidden(name)}


if __name__ == "__main__":
    main(*sys.argv[1:])
