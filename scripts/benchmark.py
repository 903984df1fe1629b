"""Measure tiedgpt's speed beside other libraries, on this machine, in float32.

    python scripts/benchmark.py                               # a random model of GPT-2's size
    python scripts/benchmark.py --model DIR                   # yours
    python scripts/benchmark.py --markdown scripts/README.md  # also replace the table there

The columns are the libraries that are installed, of these: `pip install torch transformers`, `pip
install llama-cpp-python gguf`, `pip install openvino`. All read the same weights. Random weights
are enough, because speed does not depend on their values. The rows:

    token                the time of a new token, of 64 greedy tokens after a prompt of 10
    step of 8 texts      one token for each of 8 texts, as with --num-samples 8
    prompt of N tokens   from the prompt to the logits of the next token
    load                 from files in the page cache
    peak memory          of a process that loads the model and generates 20 tokens
    training step        forward, backward, clipping and AdamW, without dropout, for other models

Each library runs in its own process. In each round the libraries take turns at every row, so that
other work on the machine affects all of them. A figure is the median over the rounds. A number in
brackets is tiedgpt's figure / the library's. A library that cannot do what a row measures has no
figure there.
"""

import argparse
import multiprocessing
import os
import platform
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from benchmark_libraries import LIBRARIES, Library, Training, milliseconds
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
PAUSE = 0.1  # seconds before each measurement, so that the other libraries' threads stop spinning
PROMPT = 10  # tokens before those that are generated
NEW = 64  # generated tokens
NEW_IN_BATCH = 16  # generated tokens of each text of a batch, whose steps take longer
PROMPTS = (16, 64, 128, 512, 1023)  # tokens
WARM_UP = 3  # training steps before those that are measured
TIMED = 3  # training steps that are measured in each round

# The lines of a Markdown file between which --markdown writes
BEGIN = "<!-- benchmark.py --markdown: begin -->"
END = "<!-- benchmark.py --markdown: end -->"

TRAININGS = (
    # nanoGPT's setting for a CPU
    Training("d 128, V 257, 12 x 64", 12, 64, 4, 4, 128, vocab_size=257, n_ctx=64),
    Training("d 128, V 1024, 32 x 128", 32, 128, 4, 4, 128, vocab_size=1024, n_ctx=128),
    Training("124M, 4 x 64", 4, 64),
)


# What the process of a library runs


def prepare(name: str) -> None:
    sys.path.insert(0, str(ROOT))  # this checkout, even if another tiedgpt is installed
    if name == "tiedgpt":
        from tiedgpt.fast import tune

        tune()  # before NumPy is imported, as the command line does


@cache
def opened(name: str, path: str, scratch: str) -> Library:
    return LIBRARIES[name](path, scratch)


def measure(name: str, path: str, scratch: str, method: str, *args: Any) -> float:
    figure: float = getattr(opened(name, path, scratch), method)(*args)
    return figure


@cache
def begun(name: str, training: Training) -> Iterator[Any]:
    """A training, of which the first steps are done. They allocate memory."""
    steps = LIBRARIES[name].trained(training)
    for _ in range(WARM_UP):
        next(steps)
    return steps


def measure_training(name: str, training: Training) -> float:  # ms
    steps = begun(name, training)
    return statistics.median(milliseconds(lambda: next(steps)) for _ in range(TIMED))


# The rounds


def new_process(name: str) -> ProcessPoolExecutor:
    spawn = multiprocessing.get_context("spawn")
    return ProcessPoolExecutor(1, spawn, initializer=prepare, initargs=(name,))


@dataclass
class Row:
    """A line of the table, which `function(name, *args)` measures for the library `name`."""

    name: str
    function: Callable[..., float]
    args: tuple[Any, ...]
    has_new_process: bool = False  # for each measurement
    figures: dict[str, list[float]] = field(default_factory=dict)  # of each round, by library

    def figure(self, library: str) -> float | None:
        """The median; None if the library has no figure."""
        if library not in self.figures:
            return None
        return statistics.median(self.figures[library])


def all_rows(path: str, scratch: str, V: int, n_ctx: int) -> list[Row]:
    """The rows for a model of V tokens. Prompts that its context has no room for are left out."""
    rng = random.Random(0)
    ids = [rng.randrange(V) for _ in range(n_ctx)]
    start = ids[:PROMPT]
    starts = [ids[n : n + PROMPT] for n in range(8)]

    def row(name: str, method: str, *args: Any, **options: Any) -> Row:
        return Row(name, measure, (path, scratch, method, *args), **options)

    rows = [
        row("token, ms", "step", [start], NEW),
        row("step of 8 texts, ms", "step", starts, NEW_IN_BATCH),
    ]
    for T in PROMPTS:
        if n_ctx > T:
            rows.append(row(f"prompt of {T} tokens, ms", "prompt", ids[:T]))
    rows.append(row("load, s", "load"))
    rows.append(row("peak memory, MB", "peak_memory", start, has_new_process=True))
    for training in TRAININGS:
        rows.append(Row(f"training step, {training.name}, ms", measure_training, (training,)))
    return rows


def run_rounds(rows: list[Row], libraries: list[str], rounds: int) -> list[str]:
    """Fill in the figures. Return notes on what failed."""
    notes = []
    failed = set()  # (row, library)
    processes = {name: new_process(name) for name in libraries}
    turns = [(number, row) for number in range(rounds) for row in rows]
    for number, row in tqdm(turns, unit=" rows", leave=False):
        first = number % len(libraries)  # in each round another one begins
        for name in libraries[first:] + libraries[:first]:
            if (row.name, name) in failed:
                continue
            time.sleep(PAUSE)
            process = new_process(name) if row.has_new_process else processes[name]
            try:
                figure = process.submit(row.function, name, *row.args).result()
                row.figures.setdefault(name, []).append(figure)
            except NotImplementedError:
                failed.add((row.name, name))
            except Exception as error:
                if name == "tiedgpt":
                    raise
                failed.add((row.name, name))
                notes.append(f"{name} failed at {row.name!r}: {type(error).__name__}: {error}")
            if row.has_new_process:
                process.shutdown()
    for process in processes.values():
        process.shutdown()
    return notes


# Output


def digits(figure: float | None) -> str:
    """Three significant digits: 1,234, 12.3, 1.23."""
    if figure is None:
        return ""
    if figure >= 100:
        return f"{figure:,.0f}"
    if figure >= 10:
        return f"{figure:,.1f}"
    return f"{figure:,.2f}"


def terminal_line(row: Row, libraries: list[str]) -> str:
    line = row.name.ljust(38)
    for name in libraries:
        line += digits(row.figure(name)).rjust(8)
        ours, theirs = row.figure("tiedgpt"), row.figure(name)
        if name == "tiedgpt":
            continue
        line += f" ({ours / theirs:.2f})" if ours and theirs else " " * 7
    return line.rstrip()


def markdown_table(described: str, rows: list[Row], libraries: list[str]) -> str:
    lines = [f"{described}.", "", f"| | {' | '.join(libraries)} |"]
    lines.append("|---" * (1 + len(libraries)) + "|")
    for row in rows:
        cells = [digits(row.figure(name)) for name in libraries]
        lines.append(f"| {' | '.join([row.name, *cells])} |")
    return "\n".join(lines)


def replace_table(file: Path, table: str) -> None:
    """Write the table between the two markers of a file."""
    before, _, rest = file.read_text(encoding="utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    file.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}", encoding="utf-8")


def processor() -> str:
    """The processor's name, if the system reports it."""
    cpuinfo = Path("/proc/cpuinfo")  # on Linux
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):  # on x86: "model name : AMD EPYC"
                return line.partition(": ")[2]
    return platform.processor() or platform.machine()


def versions(libraries: list[str]) -> str:
    packages = dict.fromkeys(p for name in libraries for p in LIBRARIES[name].packages)
    return ", ".join(f"{package} {version(package)}" for package in packages)


def is_installed(library: type[Library]) -> bool:
    try:
        for package in library.packages:
            version(package)
    except PackageNotFoundError:
        return False
    return True


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", metavar="DIR", help="a checkpoint (default: a random 124M)")
    parser.add_argument(
        "--markdown", metavar="FILE", type=Path, help="replace the table between its markers too"
    )
    parser.add_argument("--rounds", metavar="N", type=int, default=5, help="default: %(default)s")
    parser.add_argument(
        "--threads", metavar="N", type=int, default=os.cpu_count(), help="default: all cores"
    )
    args = parser.parse_args()
    if args.rounds < 1:
        parser.error("argument --rounds: expected 1 or more")
    if args.markdown and END not in args.markdown.read_text(encoding="utf-8"):
        parser.error(f"argument --markdown: {args.markdown} must have the lines {BEGIN} and {END}")
    return args


def main() -> None:
    args = parse_arguments()
    # The processes of the libraries inherit these.
    os.environ["OPENBLAS_NUM_THREADS"] = os.environ["OMP_NUM_THREADS"] = str(args.threads)
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    libraries = [name for name in LIBRARIES if is_installed(LIBRARIES[name])]
    described = f"{processor()}, {args.threads} threads, Python {platform.python_version()}, "
    described += f"{versions(libraries)}, medians of {args.rounds} rounds"

    sys.path.insert(0, str(ROOT))
    from tiedgpt import GPT2, Config, load_model, save_model

    with tempfile.TemporaryDirectory() as scratch:
        path = args.model
        if path is None:
            path = f"{scratch}/model"
            save_model(GPT2.random(Config()), None, path)
        config = load_model(path).config
        rows = all_rows(path, scratch, config.vocab_size, config.n_ctx)
        notes = run_rounds(rows, libraries, args.rounds)
    print(described, *notes, "", sep="\n")
    widths = [8] + [15] * (len(libraries) - 1)
    titles = [name.rjust(width) for name, width in zip(libraries, widths, strict=True)]
    print(" " * 38 + "".join(titles))
    for row in rows:
        print(terminal_line(row, libraries))
    if args.markdown:
        replace_table(args.markdown, markdown_table(described, rows, libraries))


if __name__ == "__main__":
    main()
