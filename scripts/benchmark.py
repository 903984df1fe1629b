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

A percentage is how near tiedgpt is to a limit that is measured in the same rounds: the limit's time
/ tiedgpt's. A token, or a step, must read each weight once, so its limit is the time in which all
threads read as many bytes from memory. The limit of a prompt is the time of its products with the
weights alone, in NumPy.
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
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, NamedTuple

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
PAUSE = 0.1  # seconds before each measurement, so that the other libraries' threads stop spinning
PROMPT = 10  # tokens before those that are generated
NEW = 64  # generated tokens
NEW_IN_BATCH = 16  # generated tokens of each text of a batch, whose steps take longer
NEW_FOR_MEMORY = 20  # generated tokens before the peak memory is read
READ = 2**28  # bytes that are read to measure how fast memory is: more than a cache holds
PROMPTS = (16, 64, 128, 512, 1023)  # tokens
WARM_UP = 3  # training steps before those that are measured
TIMED = 3  # training steps that are measured in each round

# The lines of a Markdown file between which --markdown writes
BEGIN = "<!-- benchmark.py --markdown: begin -->"
END = "<!-- benchmark.py --markdown: end -->"

Rows = list[list[int]]  # token ids [B, T]


class Training(NamedTuple):
    """B sequences of T tokens in a batch, and the sizes of the model: GPT-2's if not given."""

    name: str
    B: int
    T: int
    n_layer: int = 12
    n_head: int = 12
    n_embd: int = 768
    vocab_size: int = 50257
    n_ctx: int = 1024

    def config(self) -> dict[str, Any]:
        """The settings of a model without dropout."""
        sizes = self._asdict()
        for name in ("name", "B", "T"):
            del sizes[name]
        no_tokens = {"bos_token_id": None, "eos_token_id": None}
        return {**sizes, **no_tokens, "embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}


TRAININGS = (
    # nanoGPT's setting for a CPU
    Training(
        "d 128, V 257, 12 x 64",
        B=12,
        T=64,
        n_layer=4,
        n_head=4,
        n_embd=128,
        vocab_size=257,
        n_ctx=64,
    ),
    Training(
        "d 128, V 1024, 32 x 128",
        B=32,
        T=128,
        n_layer=4,
        n_head=4,
        n_embd=128,
        vocab_size=1024,
        n_ctx=128,
    ),
    Training("124M, 4 x 64", B=4, T=64),
)


def milliseconds(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return 1e3 * (time.perf_counter() - start)


class Library:
    """A library with the model at `path`. Its modules are imported in its own process only.

    A method raises NotImplementedError if the library cannot do what a row measures.
    """

    packages: tuple[str, ...]  # what pip installs

    def __init__(self, path: str, scratch: str) -> None:
        self.path = path
        self.scratch = scratch
        self.model = self.read()

    def read(self) -> Any:
        """The model, from the files at self.path, or from one in `scratch` that is made of them."""
        raise NotImplementedError

    def steps(self, rows: Rows, n: int) -> Iterator[Any]:
        """Read the prompts and generate n greedy tokens for each, one step at a time.

        The first step reads the prompts. No token ends a text.
        """
        raise NotImplementedError

    def step(self, rows: Rows, n: int) -> float:  # ms
        """The mean time of a step. The first one, which reads the prompts, does not count."""
        steps = self.steps(rows, n)
        next(steps)
        return milliseconds(lambda: list(steps)) / (n - 1)

    def prompt(self, ids: list[int]) -> float:  # ms
        """The time of the second call. The first one allocates memory and wakes threads."""
        next(self.steps([ids], 1))
        return milliseconds(lambda: next(self.steps([ids], 1)))

    def load(self) -> float:  # s
        return milliseconds(self.read) / 1e3

    def peak_memory(self, ids: list[int]) -> float:  # MB
        import resource

        self.step([ids], NEW_FOR_MEMORY)
        bytes_per_unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * bytes_per_unit / 1e6

    @staticmethod
    def trained(training: Training) -> Iterator[Any]:
        """Train a random model: a step at each `next`."""
        raise NotImplementedError


class TiedGPT(Library):
    packages = ("numpy",)

    def read(self) -> Any:
        from tiedgpt import GPT2, load_model

        model = load_model(self.path, head="tied")
        # Without an end-of-text token, no text ends before it has n tokens.
        return GPT2(replace(model.config, eos_token_id=None), model.parameters)

    def steps(self, rows: Rows, n: int) -> Iterator[Any]:
        from tiedgpt import generate

        if len(rows) == 1:
            yield from generate(self.model, rows[0], n, greedy=True)
            return
        cache = self.model.new_cache(len(rows), len(rows[0]) + n)
        ids: Any = rows  # the prompts, then the newest tokens
        for _ in range(n):
            next_logits = self.model(ids, cache)[:, -1]  # [B, V]
            ids = next_logits.argmax(axis=1)[:, None]  # [B, 1]
            yield ids

    def limit_of_step(self) -> float:  # ms
        """The time in which all threads read the bytes of the weights that a token needs."""
        import numpy as np

        from tiedgpt.threads import thread_map

        threads = int(os.environ["OMP_NUM_THREADS"])
        numbers = np.ones(READ // 4, np.float32)  # READ bytes
        pieces = np.array_split(numbers, threads)
        with thread_map(threads) as map_pieces:
            list(map_pieces(np.dot, pieces, pieces))  # the first call starts the threads
            time_of_read = milliseconds(lambda: list(map_pieces(np.dot, pieces, pieces)))
        parameters = dict(self.model.parameters)
        del parameters["wpe.weight"]  # a token reads one row of it
        weights = sum(array.nbytes for array in parameters.values())
        return time_of_read * weights / READ

    def limit_of_prompt(self, ids: list[int]) -> float:  # ms
        """The time of a prompt's products with weights. Only its last token needs logits."""
        import numpy as np

        def products() -> None:
            for name, weight in self.model.parameters.items():
                if name.startswith("h.") and weight.ndim == 2:
                    rows[len(weight)] @ weight
            rows[self.model.config.n_embd][-1:] @ self.model.W_U

        # Rows of ones, of each width that a weight can multiply
        widths = {self.model.config.n_embd, self.model.config.n_inner}
        rows = {width: np.ones((len(ids), width), np.float32) for width in widths}
        products()  # the first call wakes the threads
        return milliseconds(products)

    @staticmethod
    def trained(training: Training) -> Iterator[Any]:
        import numpy as np

        from tiedgpt import GPT2, Config
        from tiedgpt.training.loop import Trainer
        from tiedgpt.training.start import Settings

        config = Config(**training.config())
        tokens = np.random.default_rng(0).integers(
            0, config.vocab_size, 100 * training.B * training.T
        )
        # The held-out text is evaluated before the first step and never again, because a tenth of
        # these steps is not reached.
        settings = Settings(steps=10**9, batch=training.B, context=training.T)
        return Trainer(GPT2.random(config), tokens, held_out=tokens[:2], settings=settings).run()


class Transformers(Library):
    packages = ("torch", "transformers")

    def read(self) -> Any:
        from transformers import GPT2LMHeadModel

        return GPT2LMHeadModel.from_pretrained(self.path, tie_word_embeddings=True)

    def generate(self, rows: Rows, n: int) -> None:
        import torch

        ids = torch.tensor(rows)
        lengths = {"max_new_tokens": n, "min_new_tokens": n}  # no token ends a text
        mask = torch.ones_like(ids)
        self.model.generate(ids, attention_mask=mask, do_sample=False, pad_token_id=0, **lengths)

    def step(self, rows: Rows, n: int) -> float:
        # `generate` has no steps: the time of n tokens less that of one is the time of n - 1 steps.
        first = milliseconds(lambda: self.generate(rows, 1))
        return (milliseconds(lambda: self.generate(rows, n)) - first) / (n - 1)

    def prompt(self, ids: list[int]) -> float:
        import torch

        rows = torch.tensor([ids])
        with torch.inference_mode():
            # The first call allocates memory and wakes threads.
            self.model(rows, use_cache=True, logits_to_keep=1)
            return milliseconds(lambda: self.model(rows, use_cache=True, logits_to_keep=1))

    @staticmethod
    def trained(training: Training) -> Iterator[Any]:
        import torch
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(**training.config(), use_cache=False)
        model = GPT2LMHeadModel(config).train()
        # As in tiedgpt, matrices decay, and vectors do not.
        matrices = [p for p in model.parameters() if p.ndim > 1]
        vectors = [p for p in model.parameters() if p.ndim == 1]
        groups = [
            {"params": matrices, "weight_decay": 0.1},
            {"params": vectors, "weight_decay": 0.0},
        ]
        optimizer = torch.optim.AdamW(groups, lr=1e-3, fused=True)
        while True:
            ids = torch.randint(config.vocab_size, (training.B, training.T + 1))
            logits = model(ids[:, :-1]).logits.flatten(0, 1)  # [B T, V]
            loss = torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten())
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=1.0)
            optimizer.step()
            optimizer.zero_grad()
            yield loss


class LlamaCpp(Library):
    packages = ("llama-cpp-python", "gguf")

    def read(self) -> Any:
        from benchmark_graphs import write_gguf
        from llama_cpp import Llama

        file = f"{self.scratch}/model.gguf"
        if not os.path.exists(file):
            write_gguf(self.path, file)
        threads = int(os.environ["OMP_NUM_THREADS"])
        return Llama(
            file,
            n_ctx=0,  # the length in the file
            n_threads=threads,
            n_threads_batch=threads,
            n_batch=1024,  # tokens of a prompt that are read at once: all
            verbose=False,
        )

    def steps(self, rows: Rows, n: int) -> Iterator[Any]:
        import numpy as np
        from llama_cpp import llama_get_logits_ith

        if len(rows) > 1:  # `eval` reads one text
            raise NotImplementedError
        (ids,) = rows
        self.model.reset()
        for _ in range(n):
            self.model.eval(ids)
            pointer = llama_get_logits_ith(self.model.ctx, -1)  # -1: of the last token
            next_logits = np.ctypeslib.as_array(pointer, shape=(self.model.n_vocab(),))
            ids = [int(next_logits.argmax())]
            yield ids


class OpenVINO(Library):
    packages = ("openvino",)

    def read(self) -> Any:
        """Two requests: one computes the logits of a prompt, the other those of steps after it."""
        import openvino
        from benchmark_graphs import Graph

        from tiedgpt import load_model

        model = load_model(self.path, head="tied")
        settings = {
            "INFERENCE_PRECISION_HINT": "f32",
            "KV_CACHE_PRECISION": "f32",
            "INFERENCE_NUM_THREADS": os.environ["OMP_NUM_THREADS"],
            "PERFORMANCE_HINT": "LATENCY",
        }
        core = openvino.Core()
        requests = []
        for has_cache in (False, True):
            graph = Graph(model, has_cache).model()
            requests.append(core.compile_model(graph, "CPU", settings).create_infer_request())
        return requests

    # The graphs are made here, from arrays, but users load them from files: what loading takes here
    # says nothing of that.

    def load(self) -> float:
        raise NotImplementedError

    def peak_memory(self, ids: list[int]) -> float:
        raise NotImplementedError

    def prompt(self, ids: list[int]) -> float:
        reader, _ = self.model
        reader.infer([[ids]])  # the first call allocates memory and wakes threads
        return milliseconds(lambda: reader.infer([[ids]]))

    def steps(self, rows: Rows, n: int) -> Iterator[Any]:
        import numpy as np

        _, stepper = self.model
        stepper.reset_state()  # the cache of keys and values
        ids = np.array(rows)
        cache_rows = np.arange(len(rows), dtype=np.int32)  # text n goes on from row n of the cache
        for _ in range(n):
            outputs = stepper.infer([ids, cache_rows], share_inputs=True, share_outputs=True)
            ids = outputs[0].argmax(axis=1)[:, None]  # [B, 1]
            yield ids


LIBRARIES: dict[str, type[Library]] = {
    "tiedgpt": TiedGPT,
    "transformers": Transformers,
    "llama.cpp": LlamaCpp,
    "OpenVINO": OpenVINO,
}


# What the process of a library runs


def prepare(name: str) -> None:
    """Begin the process of a library."""
    sys.path.insert(0, str(ROOT))  # this checkout, even if another tiedgpt is installed
    if name == "tiedgpt":
        from tiedgpt.__main__ import tune

        tune()  # before NumPy is imported, as the command line does


@cache  # a process reads its model once
def opened(name: str, path: str, scratch: str) -> Library:
    return LIBRARIES[name](path, scratch)


def measure(name: str, path: str, scratch: str, method: str, *args: Any) -> float:
    """What a method of a library measures, called by its name."""
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
    has_new_process: bool = False  # whether each measurement has a process of its own
    limit: tuple[Any, ...] = ()  # the arguments with which `measure` gives the time of the limit
    figures: dict[str, list[float]] = field(default_factory=dict)  # of each round, by library

    def share_of_limit(self) -> str:
        """The limit's time / tiedgpt's, as a percentage; "" if the row has no limit."""
        limit, ours = self.figure("limit"), self.figure("tiedgpt")
        return f"{limit / ours:.0%}" if limit and ours else ""

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
    starts = [ids[n : n + PROMPT] for n in range(8)]  # of 8 texts

    def row(name: str, method: str, *args: Any, **options: Any) -> Row:
        return Row(name, measure, (path, scratch, method, *args), **options)

    # What `measure` gets for a limit, after the name "tiedgpt"
    of_step = (path, scratch, "limit_of_step")
    rows = [
        row("token, ms", "step", [start], NEW, limit=of_step),
        row("step of 8 texts, ms", "step", starts, NEW_IN_BATCH, limit=of_step),
    ]
    for T in PROMPTS:
        if n_ctx > T:
            of_prompt = (path, scratch, "limit_of_prompt", ids[:T])
            rows.append(row(f"prompt of {T} tokens, ms", "prompt", ids[:T], limit=of_prompt))
    rows.append(row("load, s", "load"))
    rows.append(row("peak memory, MB", "peak_memory", start, has_new_process=True))
    for training in TRAININGS:
        rows.append(Row(f"training step, {training.name}, ms", measure_training, (training,)))
    return rows


def run_rounds(rows: list[Row], libraries: list[str], rounds: int) -> list[str]:
    """Fill in the figures. Return notes on what failed."""
    notes = []
    failed = set()  # (row's name, library): not tried again
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
                # Another library's failure leaves the rest of the table.
                failed.add((row.name, name))
                notes.append(f"{name} failed at {row.name!r}: {type(error).__name__}: {error}")
            if row.has_new_process:
                process.shutdown()
        if row.limit:
            figure = processes["tiedgpt"].submit(measure, "tiedgpt", *row.limit).result()
            row.figures.setdefault("limit", []).append(figure)
    for process in processes.values():
        process.shutdown()
    return notes


# Output

# The widths of the table on a terminal, in characters
ROW_NAME = 38
FIGURE = 8
SHARE = 6  # of the limit, behind tiedgpt's figure
RATIO = 7  # " (1.23)", behind the figure of another library


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
    line = row.name.ljust(ROW_NAME)
    for name in libraries:
        line += digits(row.figure(name)).rjust(FIGURE)
        ours, theirs = row.figure("tiedgpt"), row.figure(name)
        if name == "tiedgpt":
            line += row.share_of_limit().rjust(SHARE)
            continue
        line += f" ({ours / theirs:.2f})" if ours and theirs else " " * RATIO
    return line.rstrip()


def markdown_table(described: str, rows: list[Row], libraries: list[str]) -> str:
    titles = [*libraries, "tiedgpt's share of the limit"]
    lines = [f"{described}.", "", f"| | {' | '.join(titles)} |"]
    lines.append("|---" * (1 + len(titles)) + "|")
    for row in rows:
        cells = [digits(row.figure(name)) for name in libraries]
        lines.append(f"| {' | '.join([row.name, *cells, row.share_of_limit()])} |")
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
            save_model(GPT2.random(Config()), None, path)  # no tokenizer: texts are ids here
        config = load_model(path).config
        rows = all_rows(path, scratch, config.vocab_size, config.n_ctx)
        notes = run_rounds(rows, libraries, args.rounds)
    print(described, *notes, "", sep="\n")
    # The titles of tiedgpt, the second library, the third and the fourth, of which some may not be
    # installed. The share of the limit has no title: it stands before the second library.
    widths = [FIGURE, SHARE + FIGURE + RATIO, FIGURE + RATIO, FIGURE + RATIO]
    titles = [name.rjust(width) for name, width in zip(libraries, widths, strict=False)]
    print(" " * ROW_NAME + "".join(titles))
    for row in rows:
        print(terminal_line(row, libraries))
    if args.markdown:
        replace_table(args.markdown, markdown_table(described, rows, libraries))


if __name__ == "__main__":
    main()
