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

traceback      an exception that is not a TiedGPTError, or an exit code that is not documented
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
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from io import BytesIO, TextIOWrapper
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

# ruff: noqa: E402
from support.damaged_files import CASES, OPENAIS, Case, write_model
from support.edits import HOSTILE
from support.loopback_hub import LoopbackHub, running
from support.models import SMALL, random_model

from tiedgpt import TiedGPTError, Tokenizer, cli, load_model, load_tokenizer, save_model
from tiedgpt.checkpoints import tensorflow

TRIES_IN_ROUND = {"files": 400, "signals": 4, "two at once": 1, "command lines": 200}
TRIES_IN_WORKER = {"files": 200, "command lines": 200}  # the other kinds use no worker
KINDS_OF_PROBLEMS = ("traceback", "hang", "wrong model", "leftover", "message")
MOST_PRINTED = 10  # problems of one kind
TRY_SECONDS = 20
PROCESS_SECONDS = 100
WORKER_MEMORY = 1 << 29  # bytes that a worker may take beyond what it has when it begins
EXIT_CODES = (0, 1, 2, 129, 130, 141, 143)  # all that a command may have
LINES = [f"Each of {n} tokens was read {n * n} times, and not once too often.\n" for n in range(40)]
TEXT = "".join(LINES)
NAME = "someone/tiny"
TRAIN = (
    "train ../text --out out --n-layer 1 --n-head 1 --n-embd 8 --context 8 --vocab-size 260 "
    "--batch 2 "
)
DOCUMENTS = "../lines.jsonl -m ../bytes --out out/rows.jsonl --resume"

# Commands that write files. Each command runs in an empty directory beside the models.
WRITERS = {
    "untie": "untie ../bytes out",
    "tie": "tie --force ../bytes-untied out",
    "resize": "resize ../bytes out --vocab-size 260",
    "vectors": "vectors out",
    "train": TRAIN + "--steps 6 --eval-every 2",
    "download": f"download {NAME}",
    "documents score": f"documents score {DOCUMENTS} --shard-size 200",
    "documents generate": f"documents generate {DOCUMENTS} -n 4",
}
COMMANDS = WRITERS | {
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
READERS = (  # of a directory with an edited file
    "params -m {}",
    "tokenize -m {} lower",
    "generate -m {} -n 2 a",
    "score -m {} text",
    "untie {} untied",
    "train text --resume --out {}",
    "compare -m {0} {0}/mine.npz",
    "list",
)

# A command in a process that sends itself a signal at its n-th import or operation on files. The
# start of Python itself is left out: there, Ctrl-C ends any program with a traceback. The last
# thing that it prints is the number of these events, if it was started with n = 0.
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
if sys.argv[1:3] == ["documents", "generate"]:
    from tiedgpt.cli import documents_generate
    documents_generate.SHARD_SIZE = 200  # bytes, so that a run has several shards
EVENTS = "import open rename mkdir remove rmdir listdir truncate socket.connect".split()
signal.signal(signal.SIGINT, signal.SIG_DFL)
os.write(1, b"started\\n")
sys.addaudithook(count)
code = main()
os.write(1, b" %d\\n" % -left)
sys.exit(code)
"""


@dataclass(frozen=True)
class Problem:
    kind: str  # one of KINDS_OF_PROBLEMS
    text: str  # what happened


@dataclass(frozen=True)
class Try:
    """A try that has been made, and what it found."""

    kind: str
    number: int
    problems: list[Problem]


@dataclass(frozen=True)
class Task:
    """`count` tries of a kind, from the number `first` on."""

    kind: str
    first: int
    count: int


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    exit_code: int | None  # None if it did not end in time
    stdout: str
    stderr: str


def random_of_try(kind: str, seed: int | str, number: int) -> random.Random:
    return random.Random(f"{kind} {seed} {number}")


# Tries in a worker process, with limits on its memory and on the time of each try


def work(kind: str, seed: str, first: str, last: str, place: str) -> None:
    """Make the tries from `first` to before `last`, and print the problems of each as JSON.

    A try's line is printed when the try ends, so the lines say how many have ended.
    """
    # The lines go to a copy of stdout, because a command may close or replace stdout itself.
    results = os.fdopen(os.dup(1), "w")
    attack: Files | CommandLines
    if kind == "files":
        attack = Files(Path(place))
    else:
        attack = CommandLines(Path(place))
    limit_memory()
    for number in range(int(first), int(last)):
        # A try that takes too long ends this process, with "Timeout (" on stderr.
        faulthandler.dump_traceback_later(TRY_SECONDS, exit=True)
        try:
            problems = list(attack.make_try(random_of_try(kind, seed, number), number))
        except BaseException as error:
            problems = [problem_of_exception(error)]
        faulthandler.cancel_dump_traceback_later()
        line = json.dumps([asdict(problem) for problem in problems])
        print(line, file=results, flush=True)


def limit_memory() -> None:
    """Let this process take WORKER_MEMORY more than it has now, on systems with such a limit."""
    with suppress(ValueError, OSError):  # macOS has none
        pages, *_ = Path("/proc/self/statm").read_text().split()
        limit = int(pages) * resource.getpagesize() + WORKER_MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def problem_of_exception(error: BaseException) -> Problem:
    """If no file of tiedgpt is in the traceback, a check has found numbers that are wrong."""
    text = "".join(traceback.format_exception(error))
    file_of_tiedgpt = f'"{ROOT / "tiedgpt"}'  # how such a file's name begins in a traceback
    if file_of_tiedgpt in text:
        kind = "traceback"
    else:
        kind = "wrong model"
    return Problem(kind, text[-2000:])


@dataclass(frozen=True)
class WrittenCase:
    """A case of damaged_files.py, with its directory and the bytes of its file before edits."""

    case: Case
    directory: Path
    original: bytes


class Files:
    """Edit a file and read it, sometimes with a command too."""

    def __init__(self, place: Path) -> None:
        tensorflow.HEAD_WIDTH = OPENAIS.head_width  # OpenAI's own heads are 64 wide
        self.cases = []
        for number, case in enumerate(CASES):
            directory = place / str(number)
            directory.mkdir()
            case.write(directory)
            case.check(directory)  # the file is read rightly before it is edited
            original = (directory / case.file).read_bytes()
            self.cases.append(WrittenCase(case, directory, original))
        os.chdir(place)
        Path("text").write_text(TEXT)

    def make_try(self, rng: random.Random, number: int) -> Iterator[Problem]:
        written = self.cases[number % len(self.cases)]
        case = written.case
        directory = written.directory
        edited = case.edit(rng, written.original)
        (directory / case.file).write_bytes(edited)
        if rng.randrange(8) == 0:  # one time in eight, because a command takes longer than a check
            command = rng.choice(READERS).format(directory)
            yield from call(command.split())
            shutil.rmtree("untied", ignore_errors=True)  # what the command untie writes
        try:
            case.check(directory)  # any other exception is a problem, which `work` prints
        except TiedGPTError as error:
            # Refusing the file is right. The message may be wrong.
            fault = case.message_fault(directory, str(error))
            if fault:
                yield Problem("message", f"the message {fault}: {str(error)!r}")


class CommandLines:
    """A command with flags and arguments, each with a usual value or a hostile one."""

    PATHS = ("bytes", "bytes-untied", "tiny", "text", "lines.jsonl", "new")
    USUAL = (*PATHS, "1", "2", "3", "0.5", "tied", "Each of")
    LARGE = ("1e18", "999999999999", "2147483648")
    # With a large number these flags ask for work that may take as long as it likes.
    FLAGS_OF_WORK = ("-n", "--steps", "--workers", "--num-samples")

    def __init__(self, place: Path) -> None:
        os.chdir(place)
        write_model(place / "tiny")  # without a tokenizer
        write_models(place)
        self.inputs = set(Path().iterdir())

    def make_try(self, rng: random.Random, number: int) -> Iterator[Problem]:
        argv = self.random_command_line(rng)
        stdout = rng.choice((os.devnull, "/dev/full"))  # to /dev/full nothing can be written
        yield from call(argv, stdout)
        for path in set(Path().iterdir()) - self.inputs:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()

    def random_command_line(self, rng: random.Random) -> list[str]:
        command = rng.choice(list(COMMANDS))
        actions = cli.parser_of(command)._actions  # the command's flags and arguments
        if rng.randrange(20) == 0:  # now and then there is no such command
            argv = [rng.choice(HOSTILE)]
        else:
            argv = command.split()

        # Up to five flags and arguments of the command.
        count = rng.randrange(min(6, len(actions)))
        for action in rng.sample(actions, count):
            if action.option_strings:  # a flag, with its short and its long name
                argv.append(rng.choice(action.option_strings))
            takes_value = action.nargs != 0
            if takes_value or rng.randrange(10) == 0:
                argv.append(self.random_value(rng, action))

        # Up to two values that belong to no flag.
        count = rng.randrange(3)
        argv += rng.choices((*HOSTILE, *self.USUAL), k=count)
        if command == "train" and "--steps" not in argv:  # or else it takes thousands of steps
            argv += ["--steps", "2"]
        return argv

    def random_value(self, rng: random.Random, action: argparse.Action) -> str:
        """A value for a flag or an argument: a usual, a hostile, or a usual or large one."""
        usual = list(self.USUAL)
        if action.choices:
            usual = [*action.choices, *usual]
        usual_or_large = list(usual)
        is_of_work = bool(set(self.FLAGS_OF_WORK) & set(action.option_strings))
        if not is_of_work:
            usual_or_large += self.LARGE
        values = rng.choice((usual, HOSTILE, usual_or_large))
        return rng.choice(values)


def call(argv: list[str], stdout: str = os.devnull) -> Iterator[Problem]:
    """Run a command in this process. Problems are told with at most 500 characters of it."""
    stderr = TextIOWrapper(BytesIO(), "utf-8", write_through=True)
    # `score` reads stdin. The text is short, because --stride 1 takes a step for each token.
    sys.stdin = TextIOWrapper(BytesIO(TEXT[:300].encode()))
    try:
        with (
            open(stdout, "w", encoding="utf-8") as out,
            redirect_stdout(out),
            redirect_stderr(stderr),
        ):
            exit_code = cli.main(argv)
    except BaseException as error:
        raise RuntimeError(f"tiedgpt {argv!r:.500}") from error
    stderr.seek(0)
    ended = Ended(exit_code, stdout="", stderr=stderr.read())
    for problem in judge(ended, EXIT_CODES):
        yield Problem(problem.kind, f"tiedgpt {argv!r:.500}: {problem.text}")


# Tries with processes


def finish(process: subprocess.Popen[bytes]) -> Ended:
    """Wait until a command ends. It is killed if it takes too long."""
    try:
        out, err = process.communicate(timeout=PROCESS_SECONDS)
        return Ended(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))
    except subprocess.TimeoutExpired:
        process.kill()
        _, err = process.communicate()
        return Ended(None, "", err.decode(errors="replace"))


def judge(ended: Ended, exit_codes: Collection[int]) -> Iterator[Problem]:
    """What is wrong with how a command ended and with what it said on stderr."""
    code = ended.exit_code
    err = ended.stderr
    if code is None:
        yield Problem("hang", f"not ended after {PROCESS_SECONDS} s: {err[-500:]!r}")
    elif code not in exit_codes or re.search("Traceback|Exception ignored|Fatal Python", err):
        yield Problem("traceback", f"exit code {code}: {err[-2000:]}")
    elif not is_documented(code, err):
        yield Problem("message", f"exit code {code}: {err[-500:]!r}")


def is_documented(exit_code: int, err: str) -> bool:
    """Whether stderr has short printable lines, and one error, the last line, if the code is 2."""
    lines = err.split("\n")
    if len(err) > 5000 or not all(line.isprintable() for line in lines):
        return False
    errors = [line for line in lines if line.startswith("tiedgpt: error: ")]
    if exit_code != 2:
        return errors == []
    return len(errors) == 1 and err.endswith(f"{errors[0]}\n")


@dataclass(frozen=True)
class Home:
    """An empty directory beside the models, where commands run."""

    path: Path
    environment: dict[str, str]

    def start(self, command: str, event: int = 0, number: int = 0) -> subprocess.Popen[bytes]:
        """Start a command that sends itself the signal `number` at an event: 1, 2, ... or 0, never.

        The events are the imports and the operations on files that PROGRAM counts.
        """
        settings = [str(ROOT), str(event), str(int(number))]
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *settings, *command.split()],
            cwd=self.path,
            env=self.environment,
            start_new_session=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        assert process.stdout is not None
        process.stdout.readline()  # wait for "started"
        return process


@dataclass(frozen=True)
class Duration:
    """How long an uninterrupted command runs."""

    seconds: float
    events: int  # imports and operations on files; PROGRAM can send itself a signal at each


class Processes:
    """Models, a text, and what uninterrupted commands make of them."""

    def __init__(self, place: Path) -> None:
        # explore runs until it is stopped: its own tests attack it.
        assert set(cli.COMMANDS) - {"explore"} == set(COMMANDS), "a command that is not attacked"
        write_models(place)
        self.place = place
        # What the hub has: the files of the model named "bytes", whose tokens are the bytes.
        self.model = files(place / "bytes")
        self.durations: dict[str, Duration] = {}
        self.expected: dict[str, list[dict[str, bytes]]] = {}  # the files that a writer may leave
        for name, command in COMMANDS.items():
            with self.new_home() as home:
                began = time.monotonic()
                ended = run_uninterrupted(name, command, home)
                seconds = time.monotonic() - began
                # The last thing that PROGRAM prints is how many events there were at which it
                # could have sent itself a signal.
                *_, events = ended.stdout.split()
                self.durations[name] = Duration(seconds, int(events))
                self.expected[name] = [files(out_of(name, home.path))]

        # If two processes train at once, the second one has another seed.
        with self.new_home() as home:
            run_uninterrupted("train", COMMANDS["train"] + " --seed 2", home)
            self.expected["train"].append(files(out_of("train", home.path)))

    @contextmanager
    def new_home(self, pause: float = 0) -> Iterator[Home]:
        """An empty directory, and a hub that has a model and waits `pause` s between pieces."""
        with tempfile.TemporaryDirectory(dir=self.place) as place, running(LoopbackHub()) as server:
            server.files = {f"{NAME}/{file}": content for file, content in self.model.items()}
            server.pause = pause
            (Path(place) / "tmp").mkdir()
            environment = {
                "PATH": os.environ["PATH"],
                "OPENBLAS_NUM_THREADS": "1",
                "HF_ENDPOINT": f"http://{server.host}",
                "NO_PROXY": "127.0.0.1,localhost",
                "HOME": place,
                "TMPDIR": f"{place}/tmp",
                "TIEDGPT_WEIGHTS": f"{place}/weights",
            }
            yield Home(Path(place), environment)

    def make_try(self, kind: str, rng: random.Random, number: int) -> Iterator[Problem]:
        """A try of the kind "signals" or "two at once"."""
        if kind == "two at once":
            names = list(WRITERS)
        else:
            names = [*COMMANDS, *WRITERS, *WRITERS]  # writers come more often: they can lose more
        name = names[number % len(names)]
        pause = rng.choice((0, 0.005))  # with a pause, a download takes longer
        with self.new_home(pause) as home:
            if kind == "two at once":
                yield from self.run_two(name, rng, home)
            else:
                yield from self.interrupt(name, rng, home)
            if name in WRITERS:
                yield from self.check_files(name, home)
                yield from self.run_again(name, home)

    def interrupt(self, name: str, rng: random.Random, home: Home) -> Iterator[Problem]:
        """Send a command a signal, at a random event or at a random time."""
        # A command that has ended before the signal has its own exit code. The negative ones are
        # those of a signal that no handler gets: while modules are imported, or before anything is
        # written.
        exit_codes = {signal.SIGINT: [0, 130, -signal.SIGINT]}
        if name == "compare":
            exit_codes[signal.SIGINT].append(1)  # something differs
        if name in WRITERS:
            exit_codes[signal.SIGKILL] = [0, -signal.SIGKILL]
            exit_codes[signal.SIGTERM] = [0, 143, -signal.SIGTERM]
        sent = rng.choice(list(exit_codes))
        duration = self.durations[name]
        if rng.randrange(2) == 1:
            event = rng.randrange(1, duration.events)
            process = home.start(COMMANDS[name], event=event, number=sent)
        else:
            process = home.start(COMMANDS[name])
            time.sleep(rng.uniform(0, 1.2 * duration.seconds))  # sometimes until after its end
            process.send_signal(sent)
        yield from judge(finish(process), exit_codes[sent])

    def run_two(self, name: str, rng: random.Random, home: Home) -> Iterator[Problem]:
        """Run a writer twice at once, and in a third of the tries kill the first one."""
        is_killed = rng.randrange(3) == 0
        seconds = self.durations[name].seconds
        first_process = home.start(COMMANDS[name])
        delay = rng.uniform(0, 0.5 * seconds)
        time.sleep(rng.choice((0, 0, delay)))  # two times of three, they start together
        second_command = COMMANDS[name]
        if name == "train":
            second_command += " --seed 2"  # another model, so that a mixture is seen
        second_process = home.start(second_command)
        if is_killed:
            time.sleep(rng.uniform(0, seconds))
            first_process.kill()
        first = finish(first_process)
        second = finish(second_process)

        # A writer refuses a directory that another one writes to. A second download waits.
        exit_codes = [0, 2]
        if name == "download":
            exit_codes = [0]
        first_exit_codes = list(exit_codes)
        if is_killed:
            first_exit_codes.append(-signal.SIGKILL)
        yield from judge(first, first_exit_codes)
        yield from judge(second, exit_codes)
        if not is_killed and first.exit_code != 0 and second.exit_code != 0:
            yield Problem("wrong model", f"neither process made it: {first}, {second}")

    def check_files(self, name: str, home: Home) -> Iterator[Problem]:
        """What a writer left is whole or absent."""
        out = out_of(name, home.path)
        if (out / "config.json").exists():
            try:
                load_model(out)
                if name != "vectors":  # it writes a model without a tokenizer
                    load_tokenizer(out)
            except TiedGPTError as error:
                yield Problem("wrong model", f"{name} left what is refused: {error}")
        if name == "train":  # it also writes a model before its last step
            return
        if is_complete(out) and files(out) not in self.expected[name]:
            yield Problem("wrong model", f"{name} left {list(files(out))}")

    def run_again(self, name: str, home: Home) -> Iterator[Problem]:
        """The same command again completes what a writer left, and cleans up."""
        out = out_of(name, home.path)
        continues = name in ("train", "download")  # the others refuse to replace what is there
        if is_complete(out) and not continues:
            shutil.rmtree(out)
        ended = finish(home.start(COMMANDS[name]))
        # A training that has begun goes on with --resume only.
        if name == "train" and ended.exit_code == 2 and "add --resume" in ended.stderr:
            ended = finish(home.start("train ../text --out out --resume"))
        yield from judge(ended, [0])
        if files(out) not in self.expected[name]:
            yield Problem("wrong model", f"{name} again made other files: {list(files(out))}")

        leftovers = []
        for path in home.path.rglob("*"):
            is_hidden = path.name.startswith(".")
            is_temporary = path.parent.name == "tmp"
            if is_hidden or is_temporary:
                leftovers.append(str(path.relative_to(home.path)))
        if leftovers:
            yield Problem("leftover", ", ".join(leftovers))


def run_uninterrupted(name: str, command: str, home: Home) -> Ended:
    ended = finish(home.start(command))
    expected = 0
    if name == "compare":
        expected = 1  # something differs
    assert ended.exit_code == expected, (name, ended)
    return ended


def write_models(place: Path) -> None:
    """Write texts, and two small models whose tokens are bytes."""
    (place / "text").write_text(TEXT)
    documents = [json.dumps({"text": line, "prompt": line[:9]}) for line in TEXT.splitlines()]
    (place / "lines.jsonl").write_text("\n".join(documents))
    np.savez(place / "mine.npz", ids=[1, 2], logits=np.zeros((1, 2, 257)))
    config = replace(SMALL, vocab_size=257, n_ctx=16, bos_token_id=256, eos_token_id=256)
    model = random_model(config)
    save_model(model, Tokenizer([]), place / "bytes")
    save_model(model.untie("random"), Tokenizer([]), place / "bytes-untied")


def out_of(name: str, directory: Path) -> Path:
    """Where a writer writes."""
    if name == "download":
        return directory / "weights" / NAME
    return directory / "out"


def is_complete(out: Path) -> bool:
    """Whether a writer's directory has what is written last: a model, or the rows of documents."""
    return (out / "config.json").exists() or (out / "rows.jsonl").exists()


def files(directory: Path) -> dict[str, bytes]:
    """The contents of all files that are not hidden."""
    return {path.name: path.read_bytes() for path in directory.glob("[!.]*") if path.is_file()}


# The whole attack


def make_tries(processes: Processes, seed: int, task: Task) -> list[Try]:
    """Make the tries of a task."""
    if task.kind not in TRIES_IN_WORKER:
        rng = random_of_try(task.kind, seed, task.first)
        problems = list(processes.make_try(task.kind, rng, task.first))
        return [Try(task.kind, task.first, problems)]

    # A try may end its worker. Then another worker goes on with the next try.
    tries: list[Try] = []
    while len(tries) < task.count:
        worker = run_worker(
            processes.place,
            task.kind,
            seed,
            first=task.first + len(tries),
            last=task.first + task.count,
        )
        for line in worker.stdout.decode().splitlines():
            problems = [Problem(**fields) for fields in json.loads(line)]
            tries.append(Try(task.kind, task.first + len(tries), problems))
        if len(tries) < task.count:
            stderr = worker.stderr.decode(errors="replace")
            if "Timeout (" in stderr:  # `work` tells of it
                kind = "hang"
            else:
                kind = "traceback"
            text = f"the worker's exit code is {worker.returncode}: {stderr[-2000:]}"
            problem = Problem(kind, text)
            tries.append(Try(task.kind, task.first + len(tries), [problem]))
    return tries


def run_worker(
    place: Path, kind: str, seed: int, first: int, last: int
) -> subprocess.CompletedProcess[bytes]:
    """Run `work` in a process with a home of its own. It makes the tries up to before `last`."""
    with tempfile.TemporaryDirectory(dir=place) as home:
        environment = os.environ | {
            "OPENBLAS_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "HOME": home,
            "XDG_CACHE_HOME": home,
            "TIEDGPT_WEIGHTS": f"{home}/weights",
        }
        command = [sys.executable, __file__, "--worker", kind, str(seed), str(first), str(last)]
        return subprocess.run(
            [*command, home],
            env=environment,
            start_new_session=True,
            stdin=subprocess.DEVNULL,
            capture_output=True,
        )


def tasks_of_round(number: int) -> list[Task]:
    """The tasks of a round, the first of which has the number 0."""
    tasks = []
    for kind, count in TRIES_IN_ROUND.items():
        size = TRIES_IN_WORKER.get(kind, 1)  # of a task
        first_of_round = number * count
        for first in range(first_of_round, first_of_round + count, size):
            tasks.append(Task(kind, first, size))
    return tasks


def parse_task(text: str) -> Task:
    """The one try that is written "files 1234"."""
    kind, _, number = text.rpartition(" ")
    return Task(kind, int(number), 1)


class Report:
    """The numbers of tries and problems. The first problems of each kind are printed at once."""

    def __init__(self) -> None:
        self.tries: Counter[str] = Counter()
        self.problems: Counter[tuple[str, str]] = Counter()  # kinds of the try and of the problem

    def add(self, made: Try) -> None:
        self.tries[made.kind] += 1
        for problem in made.problems:
            self.problems[made.kind, problem.kind] += 1
            if self.problems[made.kind, problem.kind] <= MOST_PRINTED:
                # A character that is repeated more than 50 times is printed twice, with dots.
                text = re.sub(r"(.)\1{50,}", r"\1\1...", problem.text)
                line = f'"{made.kind} {made.number}" {problem.kind}: {text}'
                print(line, file=sys.stderr, flush=True)

    def print_table(self) -> None:
        titles = [f"{title:>13}" for title in ("tries", *KINDS_OF_PROBLEMS)]
        print(f"{'':<14}" + "".join(titles))
        for kind in TRIES_IN_ROUND:
            numbers = [self.tries[kind]]
            numbers += [self.problems[kind, problem] for problem in KINDS_OF_PROBLEMS]
            print(f"{kind:<14}" + "".join(f"{number:>13,}" for number in numbers))


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "tries", nargs="*", metavar="TRY", help='repeat these alone, as "files 1234"'
    )
    parser.add_argument("--seed", type=int, default=1, metavar="S", help="(default: 1)")
    parser.add_argument("--minutes", type=float, default=10, metavar="M", help="(default: 10)")
    args = parser.parse_args()
    warnings.simplefilter("ignore")  # of models whose W_U is not used
    report = Report()
    with (
        tempfile.TemporaryDirectory(prefix="attack-") as place,
        ThreadPoolExecutor(os.cpu_count()) as pool,
    ):
        processes = Processes(Path(place))
        end = time.monotonic() + 60 * args.minutes
        for number in itertools.count():
            if args.tries:
                tasks = [parse_task(text) for text in args.tries]
            else:
                tasks = tasks_of_round(number)
            for tries in pool.map(partial(make_tries, processes, args.seed), tasks):
                for made in tries:
                    report.add(made)
            if args.tries or time.monotonic() > end:
                break
    report.print_table()
    return int(report.problems.total() > 0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--worker"]:
        work(*sys.argv[2:])
    else:
        with suppress(KeyboardInterrupt):
            sys.exit(main())
        sys.exit(130)
