"""Measure tiedgpt's speed beside other libraries, on this machine, in float32.

    python scripts/benchmark.py                               # a random 124M checkpoint
    python scripts/benchmark.py --model DIR --json FILE       # yours; FILE gets all measurements
    python scripts/benchmark.py --markdown scripts/README.md  # also replace the table there
    python scripts/benchmark.py --beside DIR                  # beside another checkout of tiedgpt

Columns are the libraries that are installed, of these: `pip install torch transformers`, `pip
install ctranslate2`, `pip install llama-cpp-python gguf`, `pip install openvino`. With all of them
a run takes about twenty minutes and needs 3 GB of temporary disk space. Random weights are enough,
because speed does not depend on their values. The rows:

    matrix product                 the machine's limits: the speed of a large product in NumPy and
                                   in torch
    matrix-vector product
    decode                         time per new token: greedy, 64 tokens after a prompt of 10, in
                                   each library's own generation loop. PyTorch is a plain loop over
                                   a small torch module with scaled_dot_product_attention and a KV
                                   cache
      share of the bandwidth       a token reads every weight once: bytes of the weights / decode /
                                   the matrix-vector product, the faster of NumPy's and torch's
    decode, untied                 with a separate output matrix
    decode, end of the context     for the last 32 positions
    decode, lookup drafts          tokens copied from earlier in the text and checked in one step.
                                   Greedy text of a random model repeats one token, the best case
                                   for lookup
    decode, first layers draft     tokens drafted by a model of the first quarter of the layers
    decode, llama.cpp f16          with weights of half the bytes, which is not the same computation
    step of N sequences            one token for each of N sequences
    N rows by ... / plain          time of tiedgpt's products by the blocks' matrices, or by the
                                   output matrix / that of `rows @ weight`. It should not exceed 1;
                                   benchmark_products.py prints it for more numbers of rows
    decode without a cache         as picoGPT does: the whole text is computed again for each token
    prompt of N tokens             from the prompt to the logits of the next token
      share of the matrix product  arithmetic of the prompt / its time / the faster of the two
      products
    all logits                     the logits after each token of a text
    score                          the loss of a text, by Hugging Face's recipe for perplexity
    load                           from files in the page cache
    import to first logits         in a new process, for a prompt of one token
    --version                      a whole process
    peak memory                    of a process that loads the model and generates 20 tokens
    training step                  forward, backward, clipping and AdamW, without dropout, for
                                   other models

Each library runs in its own process. In each round the libraries take turns at every row, so that
other work on the machine affects all of them. A figure is the median over the rounds; the first
round does not count. A number in brackets is tiedgpt's figure / the library's. An indented row is
computed in each round from that round's figures and is the median of the results, so it can differ
from the ratio of the medians above it.
"""

import argparse
import json
import multiprocessing
import os
import platform
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NoReturn

from benchmark_sides import SIDES, TRAINING_SIDES, TRAININGS, Beside, Side, seconds
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
PINS = (
    "OPENBLAS_CORETYPE",
    "OPENBLAS_L2_SIZE",
)  # these choose OpenBLAS's kernels; most users set neither
PAUSE = 0.1  # seconds before each measurement, so that the other libraries' threads stop spinning
PROMPT, NEW = 10, 64  # tokens, for decoding
BATCHES = (2, 4, 8, 16, 32)  # sequences in a step
PRODUCT_ROWS = (2, 4, 8, 16, 32)  # in a product that is compared with `rows @ weight`
PROMPTS = (32, 64, 128, 512, 1023)  # tokens
GPT2_ARITHMETIC = {
    "activation_function": "gelu_new",
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
}
# The lines of a Markdown file between which --markdown writes
BEGIN, END = "<!-- benchmark.py --markdown: begin -->", "<!-- benchmark.py --markdown: end -->"

WRITE_RANDOM = """
import sys, tiedgpt
tiedgpt.save_model(tiedgpt.GPT2.random(tiedgpt.Config()), None, sys.argv[1])
"""
FIRST_LOGITS = """
import sys, time
start = time.perf_counter()
import tiedgpt
tiedgpt.load_model(sys.argv[1])([0])
print(time.perf_counter() - start)
"""


class Failure(Exception):
    """A library or a command failed. The message is one line."""


def one_line(text: Any) -> str:
    """The last line that says something, without control characters."""
    lines = [line for line in str(text).splitlines() if line.strip()]
    return (
        "".join(c if c.isprintable() else " " for c in lines[-1].strip()) if lines else "no message"
    )


# Processes


class Worker:
    """An object in its own process: `call` runs one of its methods there."""

    def __init__(self, cls: Any, *args: Any) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.cls = cls
        self._ours, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, cls, args), daemon=True)
        # The new process ignores Ctrl-C; this one receives it, and ends that one.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        theirs.close()  # so that recv raises EOFError when the process ends

    def call(self, method: str, *args: Any) -> Any:
        """Raises Failure if the method raises an exception or its process ends."""
        try:
            self._ours.send((method, args))
            answer, error = self._ours.recv()
        except (EOFError, OSError):
            raise Failure("its process ended") from None
        if error:
            raise Failure(error)
        return answer

    def stop(self) -> None:
        self._ours.close()
        self._process.join()


def _serve(connection: Any, cls: type[Any], args: Any) -> None:
    served = None
    with suppress(EOFError, OSError):  # the benchmark has ended
        while True:
            method, arguments = connection.recv()
            answer, message = None, ""
            try:
                served = served or cls(*args)
                answer = getattr(served, method)(*arguments)
            except Exception as error:
                message = f"{type(error).__name__}: {one_line(error)}"
            connection.send((answer, message))


def run(*command: str, checkout: str | Path = ROOT) -> str:
    """Run Python with these arguments, from start to exit, and return what it prints. Raises
    Failure."""
    done = subprocess.run([sys.executable, *command], cwd=checkout, capture_output=True, text=True)
    if done.returncode:
        raise Failure(one_line(done.stderr))
    return done.stdout


# Rows


@dataclass
class Row:
    """A line of the table. `turns` measures each side once; `runs` has the results, one for each
    round.

    A row that is computed from another, its `base`, has `of(side, round)` in place of turns.
    """

    name: str
    unit: str
    turns: dict[str, Callable[[], float]] = field(default_factory=dict)
    runs: dict[str, list[float]] = field(default_factory=dict)
    base: "Row | None" = None
    of: Callable[[str, int], float] = lambda side, number: 0.0

    def derive(self) -> None:
        """Compute the figures of a row with a base in each round, for the sides that have all it
        needs."""
        for side, runs in self.base.runs.items() if self.base else ():
            with suppress(KeyError):
                self.runs[side] = [self.of(side, number) for number in range(len(runs))]

    def figure(self, side: str) -> float | None:
        """The median of a side's rounds; None if it has none."""
        return statistics.median(self.runs[side]) if side in self.runs else None

    def ratio(self, side: str) -> float | None:
        """tiedgpt's figure / the side's."""
        ours, theirs = self.figure("tiedgpt"), self.figure(side)
        return ours / theirs if ours is not None and theirs else None

    def line(self, sides: list[str]) -> str:
        """The row in the terminal's table, with the ratios in brackets."""
        line = f"{self.name:40}{self.unit:9}"
        for side in sides:
            figure, ratio = self.figure(side), self.ratio(side)
            line += f"{digits(figure) or '-':>8}"
            if side != "tiedgpt":
                line += "       " if ratio is None else f" ({ratio:.2f})"
        return line.rstrip()

    def markdown(self, sides: list[str]) -> str:
        """The row in the Markdown table."""
        name = f"*{self.name.strip()}*" if self.name.startswith(" ") else self.name
        cells = [f"{name}, {self.unit}" if self.unit else name]
        return f"| {' | '.join([*cells, *(digits(self.figure(side)) for side in sides)])} |"


def digits(figure: float | None) -> str:
    """Three significant digits: 1,234, 12.3, 1.23."""
    return (
        "" if figure is None else f"{figure:,.{0 if figure >= 100 else 1 if figure >= 10 else 2}f}"
    )


def measure(rows: list[Row], repeats: int, notes: list[str], warm_up: int = 1) -> None:
    """Let the sides of each row take turns, `repeats` times after the rounds that do not count.

    A side that fails has no figure in that row. Raises Failure if tiedgpt fails.
    """
    total = (warm_up + repeats) * sum(len(row.turns) for row in rows)
    with tqdm(total=total, unit=" measurements", leave=False) as progress:
        for number in range(-warm_up, repeats):
            for row in rows:
                turns = list(row.turns.items())
                begin = number % max(1, len(turns))  # so that no side always follows the same one
                for side, turn in turns[begin:] + turns[:begin]:
                    time.sleep(PAUSE)
                    try:
                        figure = turn()
                    except Failure as failure:
                        if side == "tiedgpt":
                            raise
                        notes.append(f"{side} failed at {row.name.strip()!r}: {failure}")
                        del row.turns[side]
                        row.runs.pop(side, None)
                        continue
                    if number >= 0:
                        row.runs.setdefault(side, []).append(figure)
                    progress.update()


def multiple(row: Row, decode: Row) -> Row:
    return Row(
        "  multiple of decode",
        "",
        base=row,
        of=lambda side, n: row.runs[side][n] / decode.runs[side][n],
    )


def share(name: str, row: Row, work: float, limit: Row) -> Row:
    """How near a row comes to a limit of the machine, which is the highest figure of any side in a
    round."""

    def of(side: str, n: int) -> float:
        return work / row.runs[side][n] / max(runs[n] for runs in limit.runs.values()) / 1e4

    return Row(f"  share of the {name}", "%", base=row, of=of)


class Bench:
    """A process for each library that can read one checkpoint, and rows in which they take turns.

    Raises Failure if tiedgpt cannot read it.
    """

    def __init__(
        self, directory: str, sides: Mapping[str, type[Side]], converted: Path, notes: list[str]
    ) -> None:
        self.directory = directory
        self.about: dict[str, str] = {}  # what is measured: names and versions
        self.workers: dict[str, Worker] = {}
        self.paths: dict[str, str] = {}
        for name, side in sides.items():
            self.paths[name] = directory
            try:
                if hasattr(side, "convert"):
                    # In its own process, because a process passes its peak memory on to those it
                    # starts
                    converter = Worker(partial(SimpleNamespace, convert=side.convert))
                    self.paths[name] = converter.call("convert", directory, converted / name)
                    converter.stop()
                worker = Worker(side, self.paths[name])
                self.about |= worker.call("about")
                self.workers[name] = worker
            except Failure as failure:
                if name == "tiedgpt":
                    raise
                notes.append(f"{name} could not read the checkpoint: {failure}")

    def row(self, name: str, unit: str, method: str, *args: Any) -> Row:
        """A row of one method, for the sides that have it."""
        row = Row(name, unit)
        for side, worker in self.workers.items():
            if worker.cls.has(method):
                row.turns[side] = partial(first, worker, method, *args)
        return row

    def stop(self) -> None:
        for worker in self.workers.values():
            worker.stop()


def first(worker: Worker, *call: Any) -> float:
    """What a worker's method measured, without the tokens that some return besides."""
    answer = worker.call(*call)
    return answer[0] if isinstance(answer, tuple) else answer


def check_config(config: Mapping[str, Any]) -> None:
    """Raises Failure for a model that not all libraries compute, or one with a short context."""
    for name, value in GPT2_ARITHMETIC.items():
        if config[name] != value:
            raise Failure(
                f"the libraries compute {name}={value!r}; this checkpoint has {config[name]!r}"
            )
    if config["n_ctx"] < 128:
        raise Failure(
            f"the context must hold at least 128 tokens; this checkpoint's holds {config['n_ctx']}"
        )


def first_logits_row(bench: Bench) -> Row:
    """From the start of a new process to its first logits, of this checkout and of --beside."""
    row = Row("import to first logits", "s")
    row.turns["tiedgpt"] = partial(first_logits, bench.directory, ROOT)
    beside = os.environ.get("TIEDGPT_BESIDE")
    if beside:
        row.turns["beside"] = partial(first_logits, bench.directory, beside)
    return row


def inference(bench: Bench, repeats: int, notes: list[str]) -> list[Row]:
    """The rows of one model, measured."""
    ours, row = bench.workers["tiedgpt"], bench.row
    config = ours.call("config")
    some = random.Random(0)
    ids = [some.randrange(config["vocab_size"]) for _ in range(config["n_ctx"])]
    text = [some.randrange(config["vocab_size"]) for _ in range(2 * config["n_ctx"])]
    start = ids[:PROMPT]

    product = row("matrix product, 2048^3", "GFLOP/s", "matrix_product")
    bandwidth = row("matrix-vector product, 8192^2", "GB/s", "matrix_vector")
    decode = row("decode", "ms/token", "decode", start, NEW)
    weights = ours.call("bytes_per_token")
    rows = [product, bandwidth, decode, share("bandwidth", decode, weights, bandwidth)]

    def slower(row: Row) -> list[Row]:
        return [row, multiple(row, decode)]

    rows += slower(row("decode, untied", "ms/token", "decode_untied", start, NEW))
    rows += slower(row("decode, end of the context", "ms/token", "decode", ids[:-33], 32))
    rows += [
        row("decode, lookup drafts", "ms/token", "decode_lookup", start, NEW),
        row("  tokens per step of the model", "", "lookup_tokens_per_step"),
        row("decode, first layers draft", "ms/token", "decode_layers", start, NEW),
        row("  tokens per step of the model", "", "layers_tokens_per_step"),
        row("decode, llama.cpp f16", "ms/token", "decode_f16", start, NEW),
    ]
    for n in BATCHES:
        rows += slower(row(f"step of {n} sequences", "ms", "decode_batch", start, 16, n))
    rows += product_rows(bench)
    rows.append(row("decode without a cache", "ms/token", "decode_without_cache", start, 16))
    for T in PROMPTS:
        if len(ids) >= T:
            prompt = row(f"prompt of {T} tokens", "ms", "prompt", ids[:T])
            rows += [prompt, share("matrix product", prompt, ours.call("operations", T), product)]
    first = first_logits_row(bench)
    version = partial(seconds, partial(run, "-m", "tiedgpt", "--version"))
    rows += [
        row(f"all logits of {len(ids) - 1} tokens", "ms", "logits", ids[:-1]),
        row("score of a text", "tokens/s", "score", text),
        row("load", "s", "load"),
        first,
        Row("--version", "s", {"tiedgpt": version}),
    ]
    if "beside" in bench.workers:
        rows = [
            one for one in rows if one in (product, bandwidth) or one.base or "beside" in one.turns
        ]
    measure(rows, repeats, notes)
    for one in rows:
        one.derive()

    memory = Row("peak memory", "MB")
    for side, worker in bench.workers.items():
        if worker.cls.has("load"):
            memory.turns[side] = partial(peak_memory, worker.cls, bench.paths[side], start)
    measure([memory], 1, notes, warm_up=0)
    compare_tokens(bench, decode, start, notes)
    note_profile(ours, "a token", notes, "decode", start, NEW)
    note_profile(ours, f"a prompt of {len(ids) - 1}", notes, "prompt", ids[:-1])
    return [*rows, memory]


def product_rows(bench: Bench) -> list[Row]:
    """The rows that compare tiedgpt's own products of few rows with BLAS's."""
    rows = []
    for n in PRODUCT_ROWS:
        rows.append(bench.row(f"{n} rows by the blocks / plain", "", "products_by_blocks", n))
    for n in PRODUCT_ROWS:
        name = f"{n} rows by the output matrix / plain"
        rows.append(bench.row(name, "", "product_by_output_matrix", n))
    return rows


def first_logits(directory: str, checkout: str | Path) -> float:  # s
    return float(run("-c", FIRST_LOGITS, directory, checkout=checkout))


def peak_memory(side: type[Any], path: str, ids: list[int]) -> float:  # MB
    worker = Worker(side, path)
    worker.call("decode", ids, 20)
    peak = worker.call("peak_memory")
    worker.stop()
    return peak


def compare_tokens(bench: Bench, decode: Row, ids: list[int], notes: list[str]) -> None:
    """Note how many tokens are tiedgpt's. A random tied model repeats one token, so it tests
    little."""
    mine, *others = (bench.workers[side].call("decode", ids, NEW)[1] for side in decode.runs)
    counts = []
    for side, theirs in zip(list(decode.runs)[1:], others, strict=True):
        same = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b), NEW)
        counts.append(f"{side} {same}")
    if counts:
        notes.append(f"number of first tokens equal to tiedgpt's, of {NEW}: {', '.join(counts)}")


def note_profile(ours: Worker, what: str, notes: list[str], *call: Any) -> None:
    """Note what tiedgpt's time is spent on."""
    try:
        parts = sorted(ours.call("profile", *call).items(), key=lambda part: -part[1])
        shares = ", ".join(f"{part} {share:.0f} %" for part, share in parts)
        notes.append(f"tiedgpt's time for {what}: {shares}")
    except Failure as failure:
        notes.append(f"no profile of {what}: {failure}")


def training_steps(sides: Iterable[str], repeats: int, notes: list[str]) -> list[Row]:
    rows = []
    for training in TRAININGS:
        workers = {
            side: Worker(cls, training) for side, cls in TRAINING_SIDES.items() if side in sides
        }
        row = Row(f"training step, {training.name}", "ms")
        row.turns |= {side: partial(worker.call, "train_step") for side, worker in workers.items()}
        rows.append(row)
        measure([row], repeats, notes)
        for worker in workers.values():
            worker.stop()
    return rows


# Output


def processor() -> str:
    """The processor's name, if the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(": ")[1] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):  # not Linux, or not x86
        return platform.processor() or platform.machine()


def markdown(described: str, notes: list[str], rows: list[Row], sides: list[str]) -> str:
    """The text that --markdown writes."""
    head = [f"| | {' | '.join(sides)} |", "|---" * (len(sides) + 1) + "|"]
    table = [*head, *(row.markdown(sides) for row in rows)]
    return "\n".join([f"{described}.", "", *table, "", *(f"- {note}" for note in notes)])


def replace_between_markers(text: str, new: str) -> str:
    """`text` with `new` between the two markers."""
    return f"{text.partition(BEGIN)[0]}{BEGIN}\n{new}\n{END}{text.partition(END)[2]}"


class Parser(argparse.ArgumentParser):
    """Errors are one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (try: {self.prog} -h)\n")


def output_file(text: str) -> Path:
    """A path whose directory exists, for argparse."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"cannot write a file there: {text!r}")
    return path


def marked_file(text: str) -> Path:
    """A file that holds both markers, for argparse."""
    path = Path(text)
    try:
        content = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise argparse.ArgumentTypeError(f"cannot read {text!r}: {error}") from None
    if not 0 <= content.find(BEGIN) < content.find(END):
        raise argparse.ArgumentTypeError(f"{text!r} must hold the lines {BEGIN} and {END}")
    return path


def parse_arguments() -> argparse.Namespace:
    # Here, because each process of a Worker imports this file, and some of them another tiedgpt
    from tiedgpt.cli.options import positive_int

    raw = argparse.RawDescriptionHelpFormatter
    parser = Parser(description=__doc__, formatter_class=raw, allow_abbrev=False)
    add = parser.add_argument
    add(
        "--model", metavar="DIR", type=os.path.abspath, help="a checkpoint (default: a random 124M)"
    )
    add("--json", metavar="FILE", type=output_file, help="also write every measurement there")
    replaced = "also replace the table between the markers there"
    add("--markdown", metavar="FILE", type=marked_file, help=replaced)
    add("--repeats", metavar="N", type=positive_int, default=5, help="rounds (default: 5)")
    add(
        "--threads",
        metavar="N",
        type=positive_int,
        default=os.cpu_count(),
        help="default: all cores",
    )
    beside = "measure only the rows that another checkout of tiedgpt has too, beside it"
    add("--beside", metavar="DIR", type=os.path.abspath, help=beside)
    return parser.parse_args()


def main() -> None:
    sys.path.insert(0, str(ROOT))  # this checkout, even if another tiedgpt is installed
    args = parse_arguments()
    # The processes inherit this environment. The libraries read it when they are imported.
    notes = [
        f"{pin}={os.environ.pop(pin)} was set and has been unset"
        for pin in PINS
        if pin in os.environ
    ]
    os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), str(args.threads)))
    os.environ.update(
        HF_HUB_OFFLINE="1", HF_HUB_DISABLE_PROGRESS_BARS="1", TRANSFORMERS_VERBOSITY="error"
    )
    sides = {name: side for name, side in SIDES.items() if side.is_installed()}
    if args.beside:
        os.environ["TIEDGPT_BESIDE"] = args.beside
        sides = {"tiedgpt": SIDES["tiedgpt"], "beside": Beside}
    if absent := [name for name in SIDES if name not in sides and not args.beside]:
        notes.append(f"not installed: {', '.join(absent)}")
    if hasattr(os, "getloadavg"):  # not on Windows
        notes.append(f"load average before the run: {os.getloadavg()[0]:.1f}")

    with tempfile.TemporaryDirectory() as temporary:
        directory = args.model or f"{temporary}/model"
        if args.model is None:
            run("-c", WRITE_RANDOM, directory)
        bench = Bench(directory, sides, Path(temporary), notes)
        check_config(bench.workers["tiedgpt"].call("config"))
        about = {
            "processor": processor(),
            "threads": args.threads,
            "Python": platform.python_version(),
        }
        about |= bench.about
        names = list(bench.workers)
        rows = inference(bench, args.repeats, notes)
        bench.stop()
        if not args.beside:
            rows += training_steps(names, args.repeats, notes)
    notes.append(
        f"rounds: {args.repeats}; each figure is their median; an indented row (in Markdown, "
        "italics) is the median of each round's ratios, which can differ from the ratio of the "
        "medians shown"
    )
    rows = [row for row in rows if row.runs]
    described = ", ".join(f"{key} {value}" for key, value in about.items())
    print(described, *notes, "", sep="\n")
    heads = "".join(f"{name:>8}" if name == "tiedgpt" else f"{name:>15}" for name in names)
    print(f"{'':49}{heads}   (in brackets: tiedgpt / it)")
    for row in rows:
        print(row.line(names))
    if args.json:
        table = [
            {
                "name": row.name.strip(),
                "unit": row.unit,
                "figures": {side: row.figure(side) for side in row.runs},
                "ratios": {side: row.ratio(side) for side in row.runs if side != "tiedgpt"},
                "rounds": row.runs,
            }
            for row in rows
        ]
        document = json.dumps({"about": about, "notes": notes, "rows": table}, indent=2)
        args.json.write_text(document + "\n", encoding="utf-8")
    if args.markdown:
        replace_table(args.markdown, markdown(described, notes, rows, names))


def replace_table(file: Path, table: str) -> None:
    """Write the table between the markers of a file."""
    text = file.read_text(encoding="utf-8")
    file.write_text(replace_between_markers(text, table), encoding="utf-8")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # removes the temporary directory
    try:
        main()
    except (Failure, OSError) as error:
        print(f"benchmark.py: error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("benchmark.py: interrupted", file=sys.stderr)
        sys.exit(130)
