"""Every writer of the project, killed or without room at any moment, without permission, and twice
at once.

    python tests/writers.py PLACE POINTS [WRITER...]

Each try is a fork of this process, in an empty directory beside the models. After it, what has its
final name is whole, and the same command again ends with the files of an uninterrupted run and
nothing else. POINTS is the number of moments to try, 0 for all. HF_ENDPOINT names a hub that has
`tiny/gpt2`.
"""

import importlib
import os
import pkgutil
import shutil
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from resource import RLIMIT_FSIZE, setrlimit

import tiedgpt
from tiedgpt import cli
from tiedgpt.errors import CheckpointError

TRAIN = "train ../text --out out --n-layer 1 --n-head 1 --n-embd 8 --context 8 --vocab-size 260 --batch 2"
TRAIN += " --steps 4 --eval-every 2"
DOCUMENTS = "documents score ../in.jsonl -m ../tied --shard-size 1KB --out out"
WRITERS = {  # the command, and the one that continues it
    "save": ("save ../untied out", ""),
    "save over another": ("save ../untied out", ""),
    "convert": ("untie ../tied out", ""),
    "download": ("download tiny/gpt2", ""),
    "train, with a vocabulary": (TRAIN, TRAIN + " --resume"),
    "documents": (DOCUMENTS, DOCUMENTS + " --resume"),
}
CHANGES = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.link", "open", "tempfile.mkdtemp"}
GROWTH = {"os.mkdir", "os.link", "open"}  # what fails on a full disk
Prepare = Callable[[], object]


def main(place: str, points: str, *names: str) -> None:
    os.chdir(place)
    os.chmod(".", 0o755)  # for another user
    os.environ |= {"TIEDGPT_WEIGHTS": "weights", "XDG_CACHE_HOME": "nowhere", "HF_HUB_OFFLINE": "0"}
    for module in pkgutil.walk_packages(tiedgpt.__path__, "tiedgpt."):
        if module.name.partition(".")[2].split(".")[0] in (
            "cli",
            "checkpoints",
            "training",
            "inference",
        ):
            importlib.import_module(module.name)
    for module in ("tqdm", "requests", "tiedgpt.scale.output"):
        importlib.import_module(module)
    for name in names or WRITERS:
        Writer(name).attack(int(points))


class Writer:
    def __init__(self, name: str) -> None:
        self.name, (self.command, self.more) = name, WRITERS[name]
        self.pipe = os.pipe()  # not a file, whose size would be limited too
        os.set_blocking(self.pipe[0], False)
        self.empty()
        self.before = files()
        assert self.run(self.command, self.count) == 0, self.said()
        self.whole = files()
        self.changes = Path("../changes").stat().st_size

    def attack(self, points: int) -> None:
        moments = range(1, self.changes + 1, -(-self.changes // points) if points else 1)
        for n in moments:
            self.attempt(f"killed at {n}", -signal.SIGKILL, partial(self.count, n, kill))
        for n in moments[:: 2 if points else 1]:
            self.attempt(f"full at {n}", "No space left on device", partial(self.count, n, full))
        largest = max(map(len, self.whole.values()))
        for size in (largest - 1,) if points else (0, 100, largest // 2, largest - 1):
            limit = partial(setrlimit, RLIMIT_FSIZE, (size, size))
            self.attempt(f"no file over {size}", "File too large", limit)
        self.attempt("no permission", "Permission denied", become_nobody)
        for n in range(1 if points else 10):
            self.attempt(f"two at once, {n}", 0, other=True)

    def attempt(
        self, fault: str, end: int | str, prepare: Prepare = int, other: bool = False
    ) -> None:
        """Run the command with a fault. `end`: the code with which it ends, or the reason in its
        error."""
        self.empty()
        rival = self.start(self.command) if other else None
        code = self.run(self.command, prepare)
        codes = {code, os.waitstatus_to_exitcode(os.waitpid(rival, 0)[1])} if rival else {code}
        said = self.said()
        where = f"{self.name}, {fault}: {codes}, {said[-500:]}"
        if isinstance(end, int):
            assert end in codes, where
            assert codes <= {end, 2} if other else codes == {end}, where
        elif code:  # a full disk may not matter any more
            assert code == 2, where
            last = said.splitlines()[-1]
            assert last.startswith("tiedgpt: error: "), where
            assert end in last, where
        assert "Traceback" not in said, where
        self.check_what_is_there(where)
        failed = all(
            self.run(command) for command in (self.more, self.command) if command
        )  # until one works
        said = self.said()
        assert not failed or "exists" in said, f"{where}, again: {said}"
        assert files() == self.whole, f"{where}, again: {sorted(files())}, {said}"

    def check_what_is_there(self, where: str) -> None:
        """Files with their final names are whole; those of a model are one model's."""
        for out in [path.parent for path in Path().rglob("config.json") if "/." not in f"/{path}"]:
            tiedgpt.load_model(out)
            tiedgpt.load_tokenizer(out)
        there, before, whole = map(visible, (files(), self.before, self.whole))
        if self.name in ("save", "save over another", "convert"):
            assert there in (before, whole), f"{where}: {sorted(there)}"
        if self.name in ("download", "documents"):
            final = {name: content for name, content in there.items() if "parts" not in name}
            assert final.items() <= whole.items(), f"{where}: {sorted(there)}"

    def empty(self) -> None:
        """An empty directory of an own name, in which the command runs."""
        os.chdir(tempfile.mkdtemp(dir="." if Path("text").exists() else ".."))
        if self.name == "save over another":
            shutil.copytree("../tied", "out")

    def run(self, command: str, prepare: Prepare = int) -> int:
        return os.waitstatus_to_exitcode(os.waitpid(self.start(command, prepare), 0)[1])

    def start(self, command: str, prepare: Prepare = int) -> int:
        if pid := os.fork():
            return pid
        code = 99
        try:
            os.dup2(self.pipe[1], 1)
            os.dup2(self.pipe[1], 2)
            prepare()
            code = (
                save(*command.split()[1:])
                if command.startswith("save")
                else cli.main(command.split())
            )
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def said(self) -> str:
        """What the last command printed."""
        with suppress(BlockingIOError):
            return os.read(self.pipe[0], 1 << 16).decode()
        return ""

    def count(self, left: int = 0, act: Callable[[str], object] | None = None) -> None:
        """Count the changes of files from here on; from the `left`-th on, act."""
        log = None if act else os.open("../changes", os.O_CREAT | os.O_TRUNC | os.O_WRONLY)

        def hook(event: str, arguments: tuple) -> None:
            nonlocal left
            writes = event != "open" or (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR)
            if event not in CHANGES or not writes or str(arguments[0]).startswith("/dev"):
                return
            left -= 1
            if log:
                os.write(log, b".")
            elif left <= 0:
                act(event)

        sys.addaudithook(hook)


def kill(_: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def full(event: str) -> None:
    if event in GROWTH:
        raise OSError(28, "No space left on device")


def become_nobody() -> None:
    os.chmod(".", 0o555)
    if os.geteuid() == 0:
        os.seteuid(65534)


def save(source: str, out: str) -> int:
    try:
        tiedgpt.save_model(tiedgpt.load_model(source), tiedgpt.load_tokenizer(source), out)
        return 0
    except CheckpointError as error:
        os.write(2, f"tiedgpt: error: {error}\n".encode())
        return 2


def files() -> dict[str, bytes]:
    """All files here, hidden ones too, and their contents; for a directory, b""."""
    with suppress(OSError):
        os.chmod(".", 0o755)
    return {str(path): b"" if path.is_dir() else path.read_bytes() for path in Path().rglob("*")}


def visible(found: dict[str, bytes]) -> dict[str, bytes]:
    """The files that have their final names."""
    return {name: content for name, content in found.items() if content and "/." not in f"/{name}"}


if __name__ == "__main__":
    main(*sys.argv[1:])
