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
from typing import Any, NoReturn

from benchmark_sides import SIDES, TRAINING_SIDES, TRAININGS, Beside, Side, seconds
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
# These choose OpenBLAS's kernels. Most users set neither.
PINS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
PAUSE = 0.1  # seconds before each measurement, so that the other libraries' threads stop spinning
PROMPT = 10  # tokens before those that are decoded
NEW = 64  # tokens that are decoded
NEW_IN_BATCH = 16  # tokens that are decoded for each sequence of a batch, whose steps take longer
BATCHES = (2, 4, 8, 16, 32)  # sequences in a step
PRODUCT_ROWS = (2, 4, 8, 16, 32)  # in a product that is compared with `rows @ weight`
PROMPTS = (32, 64, 128, 512, 1023)  # tokens
NEW_FOR_MEMORY = 20  # tokens that are decoded before the peak memory is read

# Characters of the terminal's table
NAME_WIDTH = 40
UNIT_WIDTH = 9
FIGURE_WIDTH = 8
RATIO_WIDTH = 7

GPT2_ARITHMETIC = {
    "activation_function": "gelu_new",
    "scale_attn_weights": True,
    "scale_attn_by_inverse_layer_idx": False,
}

# The lines of a Markdown file between which --markdown writes
BEGIN = "<!-- benchmark.py --markdown: begin -->"
END = "<!-- benchmark.py --markdown: end -->"

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


def one_line(text: object) -> str:
    """The last line that is not blank, without control characters."""
    lines = [line for line in str(text).splitlines() if line.strip()]
    if not lines:
        return "no message"
    return "".join(c if c.isprintable() else " " for c in lines[-1].strip())


# Processes


class Worker:
    """An object in its own process: `call` runs one of its methods there."""

    def __init__(self, cls: Any, *args: Any) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.cls = cls
        self._ours, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, cls, args), daemon=True)
        # The new process inherits that Ctrl-C is ignored. This one receives it, and ends that one.
        before = signal.signal(signal.SIGINT, signal.SIG_IGN)
        try:
            self._process.start()
        finally:
            signal.signal(signal.SIGINT, before)
        theirs.close()  # so that recv raises EOFError when the process ends

    def call(self, method: str, *args: Any) -> Any:
        """What the method returns. Raises Failure if it raises an exception or its process ends."""
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


def _serve(connection: Any, cls: Any, args: Any) -> None:
    """Answer the calls of a Worker, in its process, until the other end is closed.

    An answer is what the method returned and an error's message, "" if there was none. The object
    is constructed at the first call, so that an error of its construction is an answer too.
    """
    instance = None
    with suppress(EOFError, OSError):  # of a connection whose other end is closed
        while True:
            method, arguments = connection.recv()
            answer = None
            message = ""
            try:
                if instance is None:
                    instance = cls(*args)
                answer = getattr(instance, method)(*arguments)
            except Exception as error:
                message = f"{type(error).__name__}: {one_line(error)}"
            connection.send((answer, message))


def run(*command: str, checkout: str | Path = ROOT) -> str:
    """Run Python with these arguments in a checkout of tiedgpt, and return what it prints.

    Raises Failure if its exit code is not 0.
    """
    done = subprocess.run([sys.executable, *command], cwd=checkout, capture_output=True, text=True)
    if done.returncode:
        raise Failure(one_line(done.stderr))
    return done.stdout


# Rows


@dataclass
class Row:
    """A line of the table. turns: what measures each side once. runs: its figure of each round.

    A row that is computed from another one, its `base`, has no turns. `compute(side, round)` is its
    figure; it raises KeyError if a row that it needs has no figure of the side.
    """

    name: str
    unit: str
    turns: dict[str, Callable[[], float]] = field(default_factory=dict)
    runs: dict[str, list[float]] = field(default_factory=dict)
    base: "Row | None" = None
    compute: Callable[[str, int], float] | None = None

    def derive(self) -> None:
        """Compute the figures of a row with a base, for the sides that have all it needs."""
        if self.base is None or self.compute is None:
            return
        for side, figures_of_base in self.base.runs.items():
            rounds = range(len(figures_of_base))
            with suppress(KeyError):  # the side has no figure in another row that is needed
                self.runs[side] = [self.compute(side, number) for number in rounds]

    def figure(self, side: str) -> float | None:
        """The median of a side's rounds; None if it has none."""
        if side not in self.runs:
            return None
        return statistics.median(self.runs[side])

    def ratio(self, side: str) -> float | None:
        """tiedgpt's figure / the side's; None if one of them is missing."""
        ours = self.figure("tiedgpt")
        theirs = self.figure(side)
        if ours is None or not theirs:  # None or 0
            return None
        return ours / theirs

    def line(self, sides: list[str]) -> str:
        """The row in the terminal's table, with the ratios in brackets."""
        line = self.name.ljust(NAME_WIDTH) + self.unit.ljust(UNIT_WIDTH)
        for side in sides:
            figure = digits(self.figure(side)) or "-"
            line += figure.rjust(FIGURE_WIDTH)
            if side == "tiedgpt":  # it has no ratio to itself
                continue
            ratio = self.ratio(side)
            if ratio is None:
                line += " " * RATIO_WIDTH
            else:
                line += f" ({ratio:.2f})"
        return line.rstrip()

    def markdown(self, sides: list[str]) -> str:
        """The row in the Markdown table."""
        name = self.name
        if name.startswith(" "):  # a computed row
            name = f"*{name.strip()}*"
        if self.unit:
            name += f", {self.unit}"
        cells = [name]
        for side in sides:
            cells.append(digits(self.figure(side)))
        return f"| {' | '.join(cells)} |"


def digits(figure: float | None) -> str:
    """Three significant digits: 1,234, 12.3, 1.23."""
    if figure is None:
        return ""
    if figure >= 100:
        return f"{figure:,.0f}"
    if figure >= 10:
        return f"{figure:,.1f}"
    return f"{figure:,.2f}"


def measure(rows: list[Row], repeats: int, notes: list[str], warm_up: int = 1) -> None:
    """Let the sides of each row take turns, `repeats` times after the rounds that do not count.

    A side that fails has no figure in that row. Raises Failure if tiedgpt fails.
    """
    total = (warm_up + repeats) * sum(len(row.turns) for row in rows)
    with tqdm(total=total, unit=" measurements", leave=False) as progress:
        for number in range(-warm_up, repeats):  # those below 0 do not count
            for row in rows:
                for side in sides_in_turn(row, number):
                    time.sleep(PAUSE)
                    figure = take_turn(row, side, notes)
                    if figure is None:  # it has failed, and takes no more turns
                        continue
                    if number >= 0:
                        row.runs.setdefault(side, []).append(figure)
                    progress.update()


def sides_in_turn(row: Row, number: int) -> list[str]:
    """The sides of a round. In each round another one begins, so none always follows the same."""
    sides = list(row.turns)
    if not sides:
        return []
    begin = number % len(sides)
    return sides[begin:] + sides[:begin]


def take_turn(row: Row, side: str, notes: list[str]) -> float | None:
    """Measure one side once. If it fails, remove it from the row and return None.

    Raises Failure if tiedgpt fails.
    """
    try:
        return row.turns[side]()
    except Failure as failure:
        if side == "tiedgpt":
            raise
        notes.append(f"{side} failed at {row.name.strip()!r}: {failure}")
        del row.turns[side]
        row.runs.pop(side, None)
        return None


def multiple(row: Row, decode: Row) -> Row:
    """A row's time / the time of decoding a token."""

    def compute(side: str, number: int) -> float:
        return row.runs[side][number] / decode.runs[side][number]

    return Row("  multiple of decode", "", base=row, compute=compute)


def share(name: str, row: Row, work: float, limit: Row) -> Row:
    """How near a row comes to a limit of the machine, in percent.

    work: the operations or bytes of a figure of `row`, which is in ms. limit: a row in 1e9 of them
    per second. Its highest figure of any side counts.
    """

    def compute(side: str, number: int) -> float:
        per_ms = work / row.runs[side][number]
        highest_limit = max(figures[number] for figures in limit.runs.values())
        limit_per_ms = highest_limit * 1e6
        return 100 * per_ms / limit_per_ms

    return Row(f"  share of the {name}", "%", base=row, compute=compute)


@dataclass
class Converter:
    """What a Worker calls to convert a checkpoint for a side that has no object yet."""

    side: Any

    def convert(self, directory: str, out: Path) -> str:
        path: str = self.side.convert(directory, out)
        return path


class Bench:
    """A process for each library that can read one checkpoint, and rows in which they take turns.

    Raises Failure if tiedgpt cannot read it.
    """

    def __init__(
        self, directory: str, sides: Mapping[str, type[Side]], converted: Path, notes: list[str]
    ) -> None:
        self.directory = directory  # of the checkpoint
        self.about: dict[str, str] = {}  # what is measured: names and versions
        self.workers: dict[str, Worker] = {}
        self.paths: dict[str, str] = {}  # what each side reads: the checkpoint, or a converted one
        for name, side in sides.items():
            try:
                self.start(name, side, converted)
            except Failure as failure:
                if name == "tiedgpt":
                    raise
                notes.append(f"{name} could not read the checkpoint: {failure}")

    def start(self, name: str, side: type[Side], converted: Path) -> None:
        """Start a side's process. If it needs the checkpoint in another format, convert it first.

        converted: the directory for what is converted.
        """
        path = self.directory
        if hasattr(side, "convert"):
            # A new process inherits the peak memory of the one that starts it. So this one, which
            # starts the sides, does not convert.
            converter = Worker(Converter, side)
            path = converter.call("convert", self.directory, converted / name)
            converter.stop()
        worker = Worker(side, path)
        self.about |= worker.call("about")
        self.paths[name] = path
        self.workers[name] = worker

    def row(self, name: str, unit: str, method: str, *args: Any) -> Row:
        """A row that one method measures, for the sides that have this method."""
        row = Row(name, unit)
        for side, worker in self.workers.items():
            if worker.cls.has(method):
                row.turns[side] = partial(call_for_figure, worker, method, *args)
        return row

    def stop(self) -> None:
        for worker in self.workers.values():
            worker.stop()


def call_for_figure(worker: Worker, method: str, *args: Any) -> float:
    """What a worker's method measured, without the tokens that some methods return besides."""
    answer = worker.call(method, *args)
    if isinstance(answer, tuple):
        figure, _ = answer
        return figure
    return answer


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
    """From the import in a new process to its first logits, of this checkout and of --beside."""
    row = Row("import to first logits", "s")
    row.turns["tiedgpt"] = partial(first_logits, bench.directory, ROOT)
    beside = os.environ.get("TIEDGPT_BESIDE")  # the directory of --beside: see set_environment
    if beside:
        row.turns["beside"] = partial(first_logits, bench.directory, beside)
    return row


def inference(bench: Bench, repeats: int, notes: list[str]) -> list[Row]:
    """The rows of one model, measured. What the sides' tokens and times tell besides is noted."""
    ours = bench.workers["tiedgpt"]
    config = ours.call("config")
    V = config["vocab_size"]
    n_ctx = config["n_ctx"]
    rng = random.Random(0)
    ids = [rng.randrange(V) for _ in range(n_ctx)]
    long_text = [rng.randrange(V) for _ in range(2 * n_ctx)]
    start = ids[:PROMPT]
    decode = bench.row("decode", "ms/token", "decode", start, NEW)
    rows = rows_of_inference(bench, decode, ids, long_text)
    measure(rows, repeats, notes)
    for row in rows:
        row.derive()

    # Once without a warm-up, because each measurement takes a new process.
    memory = memory_row(bench, start)
    measure([memory], repeats=1, notes=notes, warm_up=0)
    compare_tokens(bench, decode, start, notes)
    note_profile(ours, "decode", start, NEW, task="a token", notes=notes)
    prompt = ids[:-1]
    note_profile(ours, "prompt", prompt, task=f"a prompt of {len(prompt)}", notes=notes)
    return [*rows, memory]


def rows_of_inference(bench: Bench, decode: Row, ids: list[int], long_text: list[int]) -> list[Row]:
    """All rows of one model but its memory, in the order of the table.

    ids: a text as long as the context. long_text: one that is read in several windows.
    """
    start = ids[:PROMPT]
    longest_prompt = ids[:-1]  # after it, the context has room for a token
    product = bench.row("matrix product, 2048^3", "GFLOP/s", "matrix_product")
    bandwidth = bench.row("matrix-vector product, 8192^2", "GB/s", "matrix_vector")
    rows = [product, bandwidth]
    rows += decode_rows(bench, decode, bandwidth, ids)
    rows += product_rows(bench)
    few = 16  # tokens: without a cache, each one takes as long as the whole text
    rows.append(bench.row("decode without a cache", "ms/token", "decode_without_cache", start, few))
    rows += prompt_rows(bench, product, ids)
    name = f"all logits of {len(longest_prompt)} tokens"
    rows.append(bench.row(name, "ms", "logits", longest_prompt))
    rows.append(bench.row("score of a text", "tokens/s", "score", long_text))
    rows.append(bench.row("load", "s", "load"))
    rows.append(first_logits_row(bench))
    rows.append(Row("--version", "s", {"tiedgpt": version_seconds}))
    if "beside" in bench.workers:
        # The shares are computed from these two rows, which the other checkout does not have.
        rows = rows_that_beside_has(rows, also=[product, bandwidth])
    return rows


def rows_that_beside_has(rows: list[Row], also: list[Row]) -> list[Row]:
    """The rows that the other checkout has too, the computed ones, and those in `also`."""
    kept = []
    for row in rows:
        # A computed row gets no figure, and is not printed, if its base is not measured.
        is_computed = row.base is not None
        if "beside" in row.turns or is_computed or row in also:
            kept.append(row)
    return kept


def decode_rows(bench: Bench, decode: Row, bandwidth: Row, ids: list[int]) -> list[Row]:
    """`decode`, which comes after the start of a text, and the rows of other ways to decode.

    bandwidth: the row of the machine's limit. ids: a text as long as the context.
    """
    start = ids[:PROMPT]
    bytes_of_weights = bench.workers["tiedgpt"].call("bytes_per_token")
    untied = bench.row("decode, untied", "ms/token", "decode_untied", start, NEW)
    # The context has room for a prompt, 32 tokens after it, and one more: some libraries want room
    # for a token after the last one.
    new_at_end = 32
    long_prompt = ids[: -(new_at_end + 1)]
    end = bench.row("decode, end of the context", "ms/token", "decode", long_prompt, new_at_end)
    # The rows of tokens per step ask each side for those of the row before, which it decoded last.
    rows = [
        decode,
        share("bandwidth", decode, work=bytes_of_weights, limit=bandwidth),
        untied,
        multiple(untied, decode),
        end,
        multiple(end, decode),
        bench.row("decode, lookup drafts", "ms/token", "decode_lookup", start, NEW),
        bench.row("  tokens per step of the model", "", "lookup_tokens_per_step"),
        bench.row("decode, first layers draft", "ms/token", "decode_layers", start, NEW),
        bench.row("  tokens per step of the model", "", "layers_tokens_per_step"),
        bench.row("decode, llama.cpp f16", "ms/token", "decode_f16", start, NEW),
    ]
    for n in BATCHES:
        name = f"step of {n} sequences"
        step = bench.row(name, "ms", "decode_batch", start, NEW_IN_BATCH, n)
        rows += [step, multiple(step, decode)]
    return rows


def prompt_rows(bench: Bench, product: Row, ids: list[int]) -> list[Row]:
    """The rows of the prompts that fit into the context, which has the length of ids."""
    rows = []
    for T in PROMPTS:
        if len(ids) >= T:
            prompt = bench.row(f"prompt of {T} tokens", "ms", "prompt", ids[:T])
            operations = bench.workers["tiedgpt"].call("operations", T)
            rows += [prompt, share("matrix product", prompt, work=operations, limit=product)]
    return rows


def memory_row(bench: Bench, ids: list[int]) -> Row:
    """The row of the peak memory, of the sides that load the model from a file."""
    row = Row("peak memory", "MB")
    for side, worker in bench.workers.items():
        if worker.cls.has("load"):
            row.turns[side] = partial(peak_memory, worker.cls, bench.paths[side], ids)
    return row


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


def version_seconds() -> float:
    return seconds(partial(run, "-m", "tiedgpt", "--version"))


def peak_memory(side: type[Any], path: str, ids: list[int]) -> float:  # MB
    worker = Worker(side, path)
    worker.call("decode", ids, NEW_FOR_MEMORY)
    peak = worker.call("peak_memory")
    worker.stop()
    return peak


def compare_tokens(bench: Bench, decode: Row, ids: list[int], notes: list[str]) -> None:
    """Note how many of each side's first tokens are tiedgpt's.

    A random tied model repeats one token, so there it tests little.
    """
    tokens = {}  # of each side that has figures
    for side in decode.runs:
        _time, tokens[side] = bench.workers[side].call("decode", ids, NEW)
    ours = tokens.pop("tiedgpt")
    counts = [f"{side} {count_equal(ours, theirs)}" for side, theirs in tokens.items()]
    if counts:
        notes.append(f"number of first tokens equal to tiedgpt's, of {NEW}: {', '.join(counts)}")


def count_equal(ours: list[int], theirs: list[int]) -> int:
    """The number of tokens before the first that differs."""
    count = 0
    for our_token, their_token in zip(ours, theirs, strict=True):
        if our_token != their_token:
            break
        count += 1
    return count


def note_profile(ours: Worker, method: str, *args: Any, task: str, notes: list[str]) -> None:
    """Note what the time of a method of tiedgpt is spent on, the largest part first.

    task: what the method does, in the words of the note.
    """
    try:
        profile: dict[str, float] = ours.call("profile", method, *args)  # in percent
    except Failure as failure:
        notes.append(f"no profile of {task}: {failure}")
        return
    parts = sorted(profile, key=lambda part: -profile[part])
    shares = ", ".join(f"{part} {profile[part]:.0f} %" for part in parts)
    notes.append(f"tiedgpt's time for {task}: {shares}")


def training_steps(sides: Iterable[str], repeats: int, notes: list[str]) -> list[Row]:
    """The rows of training, measured, for those of the sides that can train."""
    rows = []
    for training in TRAININGS:
        row = Row(f"training step, {training.name}", "ms")
        workers = []  # which end before the next training, so that memory is free
        for side, cls in TRAINING_SIDES.items():
            if side in sides:
                worker = Worker(cls, training)
                workers.append(worker)
                row.turns[side] = partial(worker.call, "train_step")
        measure([row], repeats, notes)
        rows.append(row)
        for worker in workers:
            worker.stop()
    return rows


# Output


def processor() -> str:
    """The processor's name, if the system reports it."""
    with suppress(OSError):  # not Linux
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):  # on x86: "model name : AMD EPYC"
                _, name = line.split(": ", maxsplit=1)
                return name
    return platform.processor() or platform.machine()


def markdown(described: str, notes: list[str], rows: list[Row], sides: list[str]) -> str:
    """The text that --markdown writes: what was measured, the table, the notes."""
    columns = 1 + len(sides)  # the first one has the names of the rows
    lines = [f"{described}.", ""]
    lines.append(f"| | {' | '.join(sides)} |")
    lines.append("|---" * columns + "|")
    lines += [row.markdown(sides) for row in rows]
    lines.append("")
    lines += [f"- {note}" for note in notes]
    return "\n".join(lines)


def replace_between_markers(text: str, new: str) -> str:
    """`text` with `new` between the two markers."""
    before, _, _ = text.partition(BEGIN)
    _, _, after = text.partition(END)
    return f"{before}{BEGIN}\n{new}\n{END}{after}"


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
    if BEGIN not in content or END not in content.partition(BEGIN)[2]:
        raise argparse.ArgumentTypeError(f"{text!r} must hold the lines {BEGIN} and {END}")
    return path


def parse_arguments() -> argparse.Namespace:
    # Imported here and not at the top: the process of a Worker imports this file too, and it may
    # use another checkout of tiedgpt.
    from tiedgpt.cli.options import positive_int

    parser = Parser(
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--model", metavar="DIR", type=os.path.abspath, help="a checkpoint (default: a random 124M)"
    )
    parser.add_argument(
        "--json", metavar="FILE", type=output_file, help="also write every measurement there"
    )
    parser.add_argument(
        "--markdown",
        metavar="FILE",
        type=marked_file,
        help="also replace the table between the markers there",
    )
    parser.add_argument(
        "--repeats", metavar="N", type=positive_int, default=5, help="rounds (default: 5)"
    )
    parser.add_argument(
        "--threads",
        metavar="N",
        type=positive_int,
        default=os.cpu_count(),
        help="default: all cores",
    )
    parser.add_argument(
        "--beside",
        metavar="DIR",
        type=os.path.abspath,
        help="measure only the rows that another checkout of tiedgpt has too, beside it",
    )
    return parser.parse_args()


def set_environment(threads: int, beside: str | None) -> list[str]:
    """Set what the processes inherit and the libraries read, and return notes on what was unset."""
    notes = []
    for pin in PINS:  # most users set none
        if pin in os.environ:
            notes.append(f"{pin}={os.environ.pop(pin)} was set and has been unset")
    os.environ["OPENBLAS_NUM_THREADS"] = str(threads)
    os.environ["OMP_NUM_THREADS"] = str(threads)
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"
    os.environ["TRANSFORMERS_VERBOSITY"] = "error"
    if beside:
        os.environ["TIEDGPT_BESIDE"] = beside
    return notes


def installed_sides(notes: list[str]) -> dict[str, type[Side]]:
    """The libraries that are installed. The others are noted."""
    sides = {}
    absent = []
    for name, side in SIDES.items():
        if side.is_installed():
            sides[name] = side
        else:
            absent.append(name)
    if absent:
        notes.append(f"not installed: {', '.join(absent)}")
    return sides


def main() -> None:
    sys.path.insert(0, str(ROOT))  # this checkout, even if another tiedgpt is installed
    args = parse_arguments()
    notes = set_environment(args.threads, args.beside)
    if args.beside:
        sides = {"tiedgpt": SIDES["tiedgpt"], "beside": Beside}
    else:
        sides = installed_sides(notes)
    if hasattr(os, "getloadavg"):  # not on Windows
        load_of_last_minute, _, _ = os.getloadavg()
        notes.append(f"load average before the run: {load_of_last_minute:.1f}")

    with tempfile.TemporaryDirectory() as temporary:
        directory = args.model
        if directory is None:
            directory = f"{temporary}/model"
            run("-c", WRITE_RANDOM, directory)
        bench = Bench(directory, sides, converted=Path(temporary), notes=notes)
        check_config(bench.workers["tiedgpt"].call("config"))
        names = list(bench.workers)
        rows = inference(bench, args.repeats, notes)
        bench.stop()
        if not args.beside:
            rows += training_steps(names, args.repeats, notes)
    report(args, bench.about, notes, rows, sides=names)


def report(
    args: argparse.Namespace,
    about_sides: dict[str, str],
    notes: list[str],
    rows: list[Row],
    sides: list[str],
) -> None:
    """Print the table, and write it to the files that the flags name."""
    notes.append(
        f"rounds: {args.repeats}; each figure is their median; an indented row (in Markdown, "
        "italics) is the median of each round's ratios, which can differ from the ratio of the "
        "medians shown"
    )
    about = {
        "processor": processor(),
        "threads": args.threads,
        "Python": platform.python_version(),
        **about_sides,
    }
    described = ", ".join(f"{key} {value}" for key, value in about.items())
    rows = [row for row in rows if row.runs]  # a row without figures is left out
    print_table(described, notes, rows, sides)
    if args.json:
        write_json(args.json, about, notes, rows)
    if args.markdown:
        replace_table(args.markdown, markdown(described, notes, rows, sides))


def print_table(described: str, notes: list[str], rows: list[Row], sides: list[str]) -> None:
    print(described, *notes, "", sep="\n")
    titles = " " * (NAME_WIDTH + UNIT_WIDTH)
    for side in sides:
        width = FIGURE_WIDTH
        if side != "tiedgpt":
            width += RATIO_WIDTH
        titles += side.rjust(width)
    print(f"{titles}   (in brackets: tiedgpt / it)")
    for row in rows:
        print(row.line(sides))


def write_json(file: Path, about: dict[str, Any], notes: list[str], rows: list[Row]) -> None:
    table = []
    for row in rows:
        entry = {
            "name": row.name.strip(),  # that of a computed row is indented
            "unit": row.unit,
            "figures": {side: row.figure(side) for side in row.runs},
            "ratios": {side: row.ratio(side) for side in row.runs if side != "tiedgpt"},
            "rounds": row.runs,  # the figures of each round
        }
        table.append(entry)
    document = json.dumps({"about": about, "notes": notes, "rows": table}, indent=2)
    file.write_text(document + "\n", encoding="utf-8")


def replace_table(file: Path, table: str) -> None:
    """Write the table between the markers of a file."""
    text = file.read_text(encoding="utf-8")
    file.write_text(replace_between_markers(text, table), encoding="utf-8")


def exit_on_signal(number: int, frame: object) -> NoReturn:
    """Exit with an exception, which removes the temporary directory."""
    sys.exit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, exit_on_signal)
    try:
        main()
    except (Failure, OSError) as error:
        print(f"benchmark.py: error: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("benchmark.py: interrupted", file=sys.stderr)
        sys.exit(130)
