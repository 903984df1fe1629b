"""Attack tiedgpt as a stranger or an accident would, and count what breaks.

    python scripts/attack.py                        about ten minutes
    python scripts/attack.py --seed 2 --minutes 0   one round of tries of every kind
    python scripts/attack.py "files 1234"           repeat one try, as a failure prints it

It needs `pip install -e ".[test]"`. The tries are:

files          a file of a model, a vocabulary or a training is edited at random and read, as in
               test_fuzz.py
command lines  a command gets flags and hostile texts at random
signals        a command is killed, or gets Ctrl-C or SIGTERM, at a random moment, and then runs
               again
two at once    two processes convert to one directory, train in one, continue one run of
               `documents`, or download one model

What breaks is counted as:

traceback      an exception that is no TiedGPTError, or an exit code that is not documented
hang           more than 20 s for a file or a command line, more than 100 s for any other command
wrong model    An edited file is read as something else than what it says now; a TensorFlow file,
               which has checksums, as another model. (safetensors has none: other numbers in its
               data do not count.) After a signal or two writers, a directory holds a model that
               nobody saved, or the command that runs again does not end with the files of an
               uninterrupted one.
leftover       a hidden or temporary file that is still there after the same command has run again
message        text on stderr that is not one line for each message, or that holds a control
               character

The exit code is 0 if all are zero, else 1. The seed and the number of a try decide everything but
the time at which a signal comes from outside.
"""

import argparse
import faulthandler
import itertools
import json
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import replace
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

# ruff: noqa: E402
from support.damaged_files import CASES, OPENAIS, write_model
from support.edits import HOSTILE
from support.loopback_hub import LoopbackHub, running
from support.models import SMALL, random_model

from tiedgpt import TiedGPTError, Tokenizer, cli, load_model, load_tokenizer, save_model
from tiedgpt.checkpoints import tensorflow

# kind -> tries in a round, and how many of them one process or thread does
KINDS = {"files": (400, 200), "signals": (4, 1), "two at once": (1, 1), "command lines": (200, 200)}
PROBLEMS = ("traceback", "hang", "wrong model", "leftover", "message")
TRY_SECONDS, PROCESS_SECONDS = 20, 100
WORKER_MEMORY = 1 << 29  # bytes that a worker may take beyond what it has when it begins
CODES = (0, 1, 2, 129, 130, 141, 143)
TEXT = "".join(
    f"Each of {n} tokens was read {n * n} times, and not once too often.\n" for n in range(40)
)
NAME = "someone/tiny"
TRAIN = (
    "train ../text --out out --n-layer 1 --n-head 1 --n-embd 8 --context 8 --vocab-size 260 "
    "--batch 2 "
)
DOCUMENTS = "../lines.jsonl -m ../bytes --out out/rows.jsonl --resume --shard-size 200"
COMMANDS = {  # each runs in an empty directory beside the models
    "untie": "untie ../bytes out",
    "tie": "tie --force ../bytes-untied out",
    "resize": "resize ../bytes out --vocab-size 260",
    "vectors": "vectors out",
    "train": TRAIN + "--steps 6 --eval-every 2",
    "download": f"download {NAME}",
    "documents score": f"documents score {DOCUMENTS}",
    "documents generate": f"documents generate {DOCUMENTS} -n 4",
    "generate": "generate -m ../bytes -n 50 a",
    "score": "score -m ../bytes ../text",
    "params": "params -m ../bytes",
    "tokenize": "tokenize -m ../bytes abc",
    "list": "list",
    "study": "study ../bytes ../bytes-untied --corpus ../text",
    "next": "next -m ../bytes a",
    "lens": "lens -m ../bytes ab",
    "attribute": "attribute -m ../bytes ab",
    "compare": "compare -m ../bytes ../mine.npz",
}
WRITERS = [*COMMANDS][:8]  # of files
READERS = (  # of a directory with an edited file
    *(
        "params -m {}",
        "tokenize -m {} lower",
        "generate -m {} -n 2 a",
        "score -m {} text",
        "untie {} untied",
    ),
    *("train text --resume --out {}", "compare -m {0} {0}/mine.npz", "list"),
)

# A command in a process that sends itself a signal at its n-th import or operation on files. The
# start of Python itself is left out: there, Ctrl-C ends any program with a traceback.
PROGRAM = """
import os, signal, sys
root, left, number = sys.argv.pop(1), int(sys.argv.pop(1)), int(sys.argv.pop(1))
def count(event, _):
    global left
    if event.removeprefix("os.") in EVENTS:
        left -= 1
        if left == 0:
            os.kill(os.getpid(), number)
sys.path.insert(0, root)
from tiedgpt.__main__ import main
EVENTS = "import open rename mkdir remove rmdir listdir truncate socket.connect".split()
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.write(1, b"started\\n")
sys.addaudithook(count)
code = main()
os.write(1, b" %d\\n" % -left)
sys.exit(code)
"""
Problem = tuple[str, str]  # one of PROBLEMS, and what happened
Start = Callable[..., subprocess.Popen[bytes]]
Try = tuple[str, int, list[Problem]]  # its kind and its number


# Tries in a worker process, with limits on its memory and on the time of each try


def work(kind: str, seed: str, first: str, last: str, place: str) -> None:
    """Print the problems of each try when it ends: a line of JSON."""
    out = os.fdopen(os.dup(1), "w")  # a command may close or replace stdout
    attempt: Any = Files(Path(place)) if kind == "files" else CommandLines(Path(place))
    with suppress(ValueError, OSError):  # on macOS there is no such limit
        limit = (
            int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            + WORKER_MEMORY
        )
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    for number in range(int(first), int(last)):
        faulthandler.dump_traceback_later(TRY_SECONDS, exit=True)
        try:
            problems = list(attempt(random.Random(f"{kind} {seed} {number}"), number))
        except BaseException as error:
            text = "".join(traceback.format_exception(error))
            problems = [
                ("traceback" if f'"{ROOT / "tiedgpt"}' in text else "wrong model", text[-2000:])
            ]
        faulthandler.cancel_dump_traceback_later()
        print(json.dumps(problems), file=out, flush=True)


class Files:
    """Edit a file and read it, sometimes with a command too."""

    def __init__(self, place: Path) -> None:
        tensorflow.HEAD_WIDTH = OPENAIS.head_width  # OpenAI's own heads are 64 wide
        self.cases = []
        for number, case in enumerate(CASES):
            (directory := place / str(number)).mkdir()
            case.write(directory)
            case.check(directory)
            self.cases.append((case, directory, (directory / case.file).read_bytes()))
        os.chdir(place)
        Path("text").write_text(TEXT)

    def __call__(self, rng: random.Random, number: int) -> Iterator[Problem]:
        case, directory, original = self.cases[number % len(self.cases)]
        (directory / case.file).write_bytes(case.edit(rng, original))
        if rng.randrange(8) == 0:
            yield from call(rng.choice(READERS).format(directory).split())
            shutil.rmtree("untied", ignore_errors=True)
        try:
            case.check(directory)
        except TiedGPTError as error:
            if fault := case.message_fault(directory, str(error)):
                yield "message", f"the message {fault}: {str(error)!r}"


class CommandLines:
    """A command with flags and arguments, each with a usual value or a hostile one."""

    PATHS = ("bytes", "bytes-untied", "tiny", "text", "lines.jsonl", "new")
    USUAL = (*PATHS, "1", "2", "3", "0.5", "tied", "Each of")
    LARGE = (
        "1e18",
        "999999999999",
        "2147483648",
    )  # not for a number of steps, which may be as large
    SLOW = ("-n", "--steps", "--workers", "--num-samples")

    def __init__(self, place: Path) -> None:
        os.chdir(place)
        write_model(place / "tiny")  # without a tokenizer
        write_models(place)
        self.given = {*Path().iterdir()}

    def __call__(self, rng: random.Random, number: int) -> Iterator[Problem]:
        command = rng.choice([*COMMANDS])
        actions = cli.parser_of(command)._actions
        argv = command.split() if rng.randrange(20) else [rng.choice(HOSTILE)]
        for action in rng.sample(actions, rng.randrange(min(6, len(actions)))):
            argv += rng.sample(action.option_strings, min(1, len(action.option_strings)))
            if action.nargs != 0 or rng.randrange(10) == 0:
                large = () if {*self.SLOW} & {*action.option_strings} else self.LARGE
                known = (*(action.choices or ()), *self.USUAL)
                argv.append(rng.choice(rng.choice((known, HOSTILE, (*known, *large)))))
        argv += rng.choices((*HOSTILE, *self.USUAL), k=rng.randrange(3))
        argv += ["--steps", "2"] if command == "train" and "--steps" not in argv else []
        yield from call(argv, rng.choice((os.devnull, "/dev/full")))
        for path in {*Path().iterdir()} - self.given:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def call(argv: list[str], stdout: str = os.devnull) -> Iterator[Problem]:
    """Run a command in this process."""
    err = TextIOWrapper(BytesIO(), "utf-8", write_through=True)
    sys.stdin = TextIOWrapper(BytesIO(TEXT[:300].encode()))  # score reads it, also with --stride 1
    try:
        with open(stdout, "w", encoding="utf-8") as out, redirect_stdout(out), redirect_stderr(err):
            code = cli.main(argv)
    except BaseException as error:
        raise RuntimeError(f"tiedgpt {argv!r:.500}") from error
    err.seek(0)
    for kind, text in judge((code, "", err.read()), CODES):
        yield kind, f"tiedgpt {argv!r:.500}: {text}"


# Tries with processes

Done = tuple[int | None, str, str]  # exit code, or None if it did not end in time; stdout; stderr


def finish(process: subprocess.Popen[bytes]) -> Done:
    try:
        out, err = process.communicate(timeout=PROCESS_SECONDS)
        return process.returncode, out.decode(), err.decode(errors="replace")
    except subprocess.TimeoutExpired:
        process.kill()
        return None, "", process.communicate()[1].decode(errors="replace")


def judge(done: Done, codes: Any) -> Iterator[Problem]:
    """What is wrong with how a command ended and with what it said."""
    code, _, err = done
    lines = err.split("\n")
    errors = [line for line in lines if line.startswith("tiedgpt: error: ")]
    # An error is the last line, and the only one.
    as_documented = lines[-2:] == [*errors, ""] if code == 2 else not errors
    if code is None:
        yield "hang", f"not ended after {PROCESS_SECONDS} s: {err[-500:]!r}"
    elif code not in codes or re.search("Traceback|Exception ignored|Fatal Python", err):
        yield "traceback", f"exit code {code}: {err[-2000:]}"
    elif not as_documented or not all(map(str.isprintable, lines)) or len(err) > 5000:
        yield "message", f"exit code {code}: {err[-500:]!r}"


class Processes:
    """Models, a text, and what uninterrupted commands make of them."""

    def __init__(self, place: Path) -> None:
        # explore runs until it is stopped: its own tests attack it.
        assert {*cli.COMMANDS} - {"explore"} == {*COMMANDS}, "a command that is not attacked"
        write_models(place)
        self.place, self.model = place, files(place / "bytes")
        self.length: dict[str, tuple[float, int]] = {}  # of a command: seconds, events
        self.expected: dict[str, list[dict[str, bytes]]] = {}  # the files that a writer may leave
        for name, command in [*COMMANDS.items(), ("train", COMMANDS["train"] + " --seed 2")]:
            with self.directory() as (directory, start):
                began = time.monotonic()
                done = finish(start(command))
                assert done[0] == (name == "compare"), (name, done)  # 1: something differs
                self.length.setdefault(name, (time.monotonic() - began, int(done[1].split()[-1])))
                self.expected.setdefault(name, []).append(files(out_of(name, directory)))

    @contextmanager
    def directory(self, pause: float = 0) -> Iterator[tuple[Path, Start]]:
        """An empty directory beside the models, with a hub that has one of them; and how to start a
        command.

        start(command, event, signal): at that event, the command sends itself the signal.
        """
        with tempfile.TemporaryDirectory(dir=self.place) as place, running(LoopbackHub()) as server:
            server.files = {f"{NAME}/{file}": data for file, data in self.model.items()}
            server.pause = pause
            (Path(place) / "tmp").mkdir()
            hub = {"HF_ENDPOINT": f"http://{server.host}", "NO_PROXY": "127.0.0.1,localhost"}
            folders = {
                "HOME": place,
                "TMPDIR": f"{place}/tmp",
                "TIEDGPT_WEIGHTS": f"{place}/weights",
            }
            env = {"PATH": os.environ["PATH"], "OPENBLAS_NUM_THREADS": "1", **hub, **folders}

            def start(command: str, event: int = 0, sent: int = 0) -> subprocess.Popen[bytes]:
                argv = [
                    sys.executable,
                    "-c",
                    PROGRAM,
                    str(ROOT),
                    str(event),
                    str(sent),
                    *command.split(),
                ]
                pipes: Any = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
                process: Any = subprocess.Popen(
                    argv, cwd=place, env=env, start_new_session=True, **pipes
                )
                process.stdout.readline()  # "started"
                return process

            yield Path(place), start

    def __call__(self, kind: str, rng: random.Random, number: int) -> Iterator[Problem]:
        attack, turns = self.interrupt, [*COMMANDS, *WRITERS, *WRITERS]
        if kind == "two at once":
            attack, turns = self.two_at_once, WRITERS
        name = turns[number % len(turns)]
        with self.directory(rng.choice((0, 0.005))) as (directory, start):
            yield from attack(name, rng, start)
            if name in WRITERS:
                yield from self.again(name, directory, start)

    def interrupt(self, name: str, rng: random.Random, start: Start) -> Iterator[Problem]:
        """Send a command a signal at a random moment."""
        codes: dict[int, tuple[int, ...]] = {
            # -SIGINT: while modules are imported
            signal.SIGINT: (0, 130, -signal.SIGINT, int(name == "compare"))
        }
        if name in WRITERS:
            codes[signal.SIGKILL] = (0, -signal.SIGKILL)
            codes[signal.SIGTERM] = (
                0,
                143,
                -signal.SIGTERM,
            )  # -SIGTERM: before anything is written
        sent, (seconds, events) = rng.choice([*codes]), self.length[name]
        if rng.randrange(2):
            process = start(COMMANDS[name], rng.randrange(1, events), sent)
        else:
            process = start(COMMANDS[name])
            time.sleep(rng.uniform(0, 1.2 * seconds))
            process.send_signal(sent)
        yield from judge(finish(process), codes[sent])

    def two_at_once(self, name: str, rng: random.Random, start: Start) -> Iterator[Problem]:
        """Run a writer twice at once, and sometimes kill one."""
        kill = rng.randrange(3) == 0
        one = start(COMMANDS[name])
        time.sleep(rng.choice((0, 0, rng.uniform(0, 0.5 * self.length[name][0]))))
        two = start(COMMANDS[name] + " --seed 2" * (name == "train"))
        if kill:
            time.sleep(rng.uniform(0, self.length[name][0]))
            one.kill()
        done = finish(one), finish(two)
        codes = (0,) if name == "download" else (0, 2)
        yield from judge(done[0], (*codes, *[-signal.SIGKILL] * kill))
        yield from judge(done[1], codes)
        if not kill and 0 not in (done[0][0], done[1][0]):
            yield "wrong model", f"neither process made it: {done}"

    def again(self, name: str, directory: Path, start: Start) -> Iterator[Problem]:
        """What a writer left is whole or absent. The same command again completes it and cleans
        up."""
        out, expected = out_of(name, directory), self.expected[name]
        try:
            if (out / "config.json").exists():
                load_model(out), load_tokenizer(out)
        except TiedGPTError as error:
            yield "wrong model", f"{name} left what is refused: {error}"
        complete = (out / "config.json").exists() or (out / "rows.jsonl").exists()
        if complete and name != "train" and files(out) not in expected:
            yield "wrong model", f"{name} left {[*files(out)]}"
        if complete and name not in ("train", "download"):  # it would not be replaced
            shutil.rmtree(out)
        done = finish(start(COMMANDS[name]))
        if name == "train" and done[0] == 2 and "add --resume" in done[2]:
            done = finish(start("train ../text --out out --resume"))
        yield from judge(done, (0,))
        if files(out) not in expected:
            yield "wrong model", f"{name} again made other files: {[*files(out)]}"
        hidden = [
            path
            for path in directory.rglob("*")
            if path.name[0] == "." or path.parent.name == "tmp"
        ]
        if hidden:
            yield "leftover", ", ".join(str(path.relative_to(directory)) for path in hidden)


def write_models(place: Path) -> None:
    """Texts, and two small models whose tokens are bytes."""
    (place / "text").write_text(TEXT)
    documents = (json.dumps({"text": line, "prompt": line[:9]}) for line in TEXT.splitlines())
    (place / "lines.jsonl").write_text("\n".join(documents))
    np.savez(place / "mine.npz", ids=[1, 2], logits=np.zeros((1, 2, 257)))
    model = random_model(
        replace(SMALL, vocab_size=257, n_ctx=16, bos_token_id=256, eos_token_id=256)
    )
    save_model(model, Tokenizer([]), place / "bytes")
    save_model(model.untie("random"), Tokenizer([]), place / "bytes-untied")


def out_of(name: str, directory: Path) -> Path:
    """Where a writer writes."""
    return directory / "weights" / NAME if name == "download" else directory / "out"


def files(directory: Path) -> dict[str, bytes]:
    """The contents of all files that are not hidden."""
    return {path.name: path.read_bytes() for path in directory.glob("[!.]*") if path.is_file()}


# The whole attack


def attempt(processes: Processes, seed: int, kind: str, first: int, count: int) -> Iterator[Try]:
    """Try a signal or two at once; the others `count` times, in a worker, and after its end in
    another."""
    if kind in ("signals", "two at once"):
        yield kind, first, [*processes(kind, random.Random(f"{kind} {seed} {first}"), first)]
        return
    last = first + count
    while first < last:
        with tempfile.TemporaryDirectory(dir=processes.place) as place:
            weights = {
                "HOME": place,
                "XDG_CACHE_HOME": place,
                "TIEDGPT_WEIGHTS": f"{place}/weights",
            }
            worker = subprocess.run(
                [sys.executable, __file__, "--worker", kind, *map(str, (seed, first, last)), place],
                env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", **weights},
                start_new_session=True,
                stdin=subprocess.DEVNULL,
                capture_output=True,
            )
        for line in worker.stdout.decode().splitlines():
            yield kind, first, json.loads(line)
            first += 1
        if first < last:
            text = worker.stderr.decode(errors="replace")
            what = "hang" if "Timeout (" in text else "traceback"
            yield (
                kind,
                first,
                [(what, f"the worker's exit code is {worker.returncode}: {text[-2000:]}")],
            )
            first += 1


def main() -> int:
    about, raw = __doc__, argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=about, formatter_class=raw, allow_abbrev=False)
    parser.add_argument(
        "tries", nargs="*", metavar="TRY", help='repeat these alone, as "files 1234"'
    )
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="(default: 1)")
    parser.add_argument("--minutes", type=float, default=10, metavar="M", help="(default: 10)")
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # of models whose W_U is not used
    tries: Counter[str] = Counter()
    problems: Counter[tuple[str, str]] = Counter()
    with (
        tempfile.TemporaryDirectory(prefix="attack-") as place,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        processes = Processes(Path(place))
        end = time.monotonic() + 60 * args.minutes
        given = [
            (kind, int(number), 1)
            for kind, _, number in (text.rpartition(" ") for text in args.tries)
        ]
        for turn in itertools.count():
            tasks = given or [
                (kind, first, size)
                for kind, (count, size) in KINDS.items()
                for first in range(turn * count, (turn + 1) * count, size)
            ]
            done = pool.map(lambda task: [*attempt(processes, args.seed, *task)], tasks)
            for kind, number, found in itertools.chain.from_iterable(done):
                tries[kind] += 1
                for problem, text in found:
                    problems[kind, problem] += 1
                    text = re.sub(r"(.)\1{50,}", r"\1\1...", text)
                    if problems[kind, problem] <= 10:
                        print(f'"{kind} {number}" {problem}: {text}', file=sys.stderr, flush=True)
            if given or time.monotonic() > end:
                break
    print(f"{'':<14}" + "".join(f"{title:>13}" for title in ("tries", *PROBLEMS)))
    for kind in KINDS:
        numbers = tries[kind], *(problems[kind, problem] for problem in PROBLEMS)
        print(f"{kind:<14}" + "".join(f"{number:>13,}" for number in numbers))
    return 1 if problems else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(*sys.argv[2:])
    else:
        with suppress(KeyboardInterrupt):
            sys.exit(main())
        sys.exit(130)
