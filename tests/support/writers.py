"""Every writer of the project is killed, left without room or permission, and started twice.

    python tests/support/writers.py PLACE POINTS [WRITER...]

Each try is a fork of this process, in an empty directory beside the models of PLACE. After it, what
has its final name is whole, and the same command again ends with the files of an uninterrupted run
and nothing else. POINTS is the number of moments to try, 0 for all. HF_ENDPOINT names a hub that
has `tiny/gpt2`. test_writers.py prepares PLACE.
"""

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
    os.chdir(place)
    os.chmod(".", 0o755)  # for another user
    os.environ |= {"TIEDGPT_WEIGHTS": "weights", "XDG_CACHE_HOME": "nowhere", "HF_HUB_OFFLINE": "0"}
    import_what_writers_use()
    for name in names or WRITERS:
        Writer(name).attack(int(points))


def import_what_writers_use() -> None:
    """An import in a fork would open files, which would be counted as changes."""
    rooms = ("cli", "checkpoints", "training", "inference")
    for module in pkgutil.walk_packages(tiedgpt.__path__, "tiedgpt."):
        if module.name.split(".")[1] in rooms:
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
        self.pipe = os.pipe()  # not a file, whose size would be limited too
        os.set_blocking(self.pipe[0], False)
        self.enter_new_directory()
        self.before = files_here()
        code = self.run(self.command, count_changes)
        assert code == 0, self.printed()
        self.whole = files_here()
        self.changes = Path("../changes").stat().st_size  # a byte for each

    def attack(self, points: int) -> None:
        """Try every fault: at about POINTS moments, or for 0 at each change of files."""
        moments = range(1, self.changes + 1)
        largest = max(len(content) for content in self.whole.values())
        kills = fills = moments
        sizes = [0, 100, largest // 2, largest - 1]
        rivals = 10
        if points:
            kills = moments[:: math.ceil(self.changes / points)]
            fills = kills[::2]
            sizes = [largest - 1]
            rivals = 1

        for number in kills:
            prepare = partial(act_from, number, kill)
            self.attempt(Fault(f"killed at {number}", prepare, code=-signal.SIGKILL))
        for number in fills:
            prepare = partial(act_from, number, refuse_growth)
            message = "No space left on device"
            self.attempt(Fault(f"full at {number}", prepare, message=message))
        for size in sizes:
            prepare = partial(setrlimit, RLIMIT_FSIZE, (size, size))
            self.attempt(Fault(f"no file over {size}", prepare, message="File too large"))
        self.attempt(Fault("no permission", become_nobody, message="Permission denied"))
        for _ in range(rivals):
            self.attempt_twice_at_once()

    def attempt(self, fault: Fault) -> None:
        """Run the command with a fault, and check how it ends and what is there."""
        self.enter_new_directory()
        code = self.run(self.command, fault.prepare)
        printed = self.printed()
        where = f"{self.name}, {fault.name}: {code}, {printed[-500:]}"
        if fault.code is not None:
            assert code == fault.code, where
        elif code != 0:  # a full disk may not matter any more
            assert code == 2, where
            last_line = printed.splitlines()[-1]
            assert last_line.startswith("tiedgpt: error: "), where
            assert fault.message in last_line, where
        assert "Traceback" not in printed, where
        self.check_files_and_run_again(where)

    def attempt_twice_at_once(self) -> None:
        """Run the command in two processes. One may refuse, because the other has the lock."""
        self.enter_new_directory()
        rival = self.start(self.command)
        code = self.run(self.command)
        codes = {code, exit_code(rival)}
        printed = self.printed()
        where = f"{self.name}, two at once: {codes}, {printed[-500:]}"
        assert 0 in codes, where
        assert codes <= {0, 2}, where
        assert "Traceback" not in printed, where
        self.check_files_and_run_again(where)

    def check_files_and_run_again(self, where: str) -> None:
        self.check_files(where)
        if not self.run_again():  # right only if the first run had completed its files
            printed = self.printed()
            assert "exists" in printed, f"{where}, again: {printed}"
        assert files_here() == self.whole, f"{where}, again: {sorted(files_here())}"
        self.printed()

    def run_again(self) -> bool:
        """Run the command that continues, or else the same command. Whether one of them works."""
        if self.continuation and self.run(self.continuation) == 0:
            return True
        return self.run(self.command) == 0

    def check_files(self, where: str) -> None:
        """Files with their final names are whole; those of a model are one model's."""
        for config in Path().rglob("config.json"):
            if not is_hidden(config):
                tiedgpt.load_model(config.parent)
                tiedgpt.load_tokenizer(config.parent)
        files = visible(files_here())
        whole = visible(self.whole)
        # These publish all their files at once.
        if self.name in ("save", "save over another", "convert"):
            assert files in (visible(self.before), whole), f"{where}: {sorted(files)}"
        # These may have published some. Files of out.parts are there only until the end.
        if self.name in ("download", "documents"):
            final = {name: content for name, content in files.items() if "parts" not in name}
            assert final.items() <= whole.items(), f"{where}: {sorted(files)}"

    def enter_new_directory(self) -> None:
        """A directory of its own beside the models, in which the command runs."""
        is_first = Path("text").exists()  # in PLACE; later, in the directory of the last attempt
        if not is_first:
            os.chdir("..")
        os.chdir(tempfile.mkdtemp(dir="."))
        if self.name == "save over another":
            shutil.copytree("../tied", "out")

    def run(self, command: str, prepare: Prepare = do_nothing) -> int:
        return exit_code(self.start(command, prepare))

    def start(self, command: str, prepare: Prepare = do_nothing) -> int:
        """Run a command in a fork, whose process id is returned."""
        process = os.fork()
        if process:
            return process
        code = 99
        try:
            os.dup2(self.pipe[1], 1)
            os.dup2(self.pipe[1], 2)
            prepare()
            code = run_command(command.split())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def printed(self) -> str:
        """What was printed since the last call."""
        with suppress(BlockingIOError):
            return os.read(self.pipe[0], 1 << 16).decode()
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
    """Whether an audit event is a change of files."""
    if event not in CHANGES or str(arguments[0]).startswith("/dev"):
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


def act_from(number: int, act: Callable[[str], object]) -> None:
    """Act before the `number`-th change of files, and before each one after it."""
    changes = 0

    def hook(event: str, arguments: tuple) -> None:
        nonlocal changes
        if is_change(event, arguments):
            changes += 1
            if changes >= number:
                act(event)

    sys.addaudithook(hook)


def kill(event: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def refuse_growth(event: str) -> None:
    """The disk is full."""
    if event in GROWTH:
        raise OSError(28, "No space left on device")


def become_nobody() -> None:
    """Have no permission to write here."""
    os.chmod(".", 0o555)
    if os.geteuid() == 0:
        os.seteuid(65534)


# Files


def files_here() -> Files:
    """All files here, hidden ones too."""
    with suppress(OSError):
        os.chmod(".", 0o755)
    files = {}
    for path in Path().rglob("*"):
        files[str(path)] = b"" if path.is_dir() else path.read_bytes()
    return files


def is_hidden(path: str | Path) -> bool:
    """Whether a part of the path begins with a dot."""
    return "/." in f"/{path}"


def visible(files: Files) -> Files:
    """The files that have their final names and a content."""
    return {name: content for name, content in files.items() if content and not is_hidden(name)}


if __name__ == "__main__":
    main(*sys.argv[1:])
