"""How fast is tiedgpt? One run on this machine, side by side with other libraries, in float32.

    python scripts/benchmark.py                             # a random 124M checkpoint, made and removed
    python scripts/benchmark.py --model DIR --json FILE     # a checkpoint of yours; FILE has every turn
    python scripts/benchmark.py --sizes --plot FILE         # also a random 355M and 774M; a picture

It takes some ten minutes, and nothing here passes or fails. Columns are the libraries that are installed:
`pip install torch transformers`, `pip install ctranslate2`, `pip install llama-cpp-python gguf`. Speed does
not depend on what the weights are, so random ones will do, but the row that starts from text needs a
checkpoint with a vocabulary. The rows:

    matrix product, matrix-vector   what the machine can do, by NumPy's BLAS and by torch's
    decode                          from one new token to the next: greedy, 64 tokens after a prompt of 10,
                                    in each side's own generation loop; so many sequences at once
    share of the bandwidth          a token reads every weight once: their bytes / decode / the better
                                    matrix-vector product of the two. At 100 % nothing else takes time
    decode at the end               the same for the last 32 positions of the context, and as a multiple
    without a cache                 picoGPT's way: the whole text is read again for each token
    prompt                          from a prompt of so many tokens to the logits of the next
    share of the matrix product     of the prompt's, and attention's, arithmetic by the better of the two
    all logits, score               those after every token of a text; its loss by Hugging Face's recipe
    --version, first token          whole processes; the second from Enter to the first token's text, the
                                    files being in the page cache
    load, peak memory               of a model in the page cache; of a process that loads it and generates
                                    20 tokens
    training step                   of models of their own, without dropout: forward, backward, clipping,
                                    AdamW (torch's fused one). The second column is the better of transformers
                                    and a plain torch module with scaled_dot_product_attention

Above the table stands what tiedgpt's own time goes into, for a token and for a long prompt.

Each side works in a process of its own, so that their threads do not meet. The sides take turns at every
row, round after round, so that whatever else the machine does meets all of them. A figure is the median of
its rounds, of which the first does not count; a ratio is tiedgpt / that library, and below 1 tiedgpt is the
faster, but for tokens/s.
"""

import argparse
import json
import multiprocessing
import operator
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmark_sides import HALVES, SIDES, TRAININGS, TiedGPTTraining, TorchTraining, seconds
from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
PINS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # some shells choose OpenBLAS's kernels; users' do not
VOCABULARIES = ("merges.txt", "vocab.bpe", "tokenizer.json")
PAUSE = 0.1  # seconds before a turn, for the other sides' threads to stop spinning
COMPARE = {"<": operator.lt, "<=": operator.le, ">=": operator.ge}
TEXT = "Alan Turing theorized that computers"
SIZES = {
    "355M": {"n_embd": 1024, "n_layer": 24, "n_head": 16},
    "774M": {"n_embd": 1280, "n_layer": 36, "n_head": 20},
}

WRITE_RANDOM = """
import json, sys, tiedgpt
config = tiedgpt.Config(**json.loads(sys.argv[2]))
tiedgpt.save_model(tiedgpt.GPT2.random(config), None, sys.argv[1])
"""
FIRST_TOKEN = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
prompt = tokenizer(sys.argv[2], return_tensors="pt")
print(tokenizer.decode(model.generate(**prompt, do_sample=False, max_new_tokens=1)[0, -1:]))
"""


# Processes


class Worker:
    """A side in a process of its own, made of `about`: `call` runs one of its methods there."""

    def __init__(self, side: type[Any], about: Any) -> None:
        spawn = multiprocessing.get_context("spawn")
        self.side = side
        self._ours, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_serve, args=(theirs, side, about), daemon=True)
        self._process.start()
        theirs.close()  # so that a worker's death ends our wait, with EOFError

    def call(self, method: str, *args: Any) -> Any:
        self._ours.send((method, args))
        return self._ours.recv()

    def stop(self) -> None:
        self._ours.send(None)
        self._process.join()


def _serve(connection: Any, side: type[Any], about: Any) -> None:
    served = side(about)
    while request := connection.recv():
        method, args = request
        connection.send(getattr(served, method)(*args))


def convert(side: type[Any], directory: str, out: Path) -> str:
    """`side.convert`, in a process of its own: a process's peak memory is handed down to its children."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(side.convert, (directory, out))


def run(*command: str) -> None:
    """Python with these arguments, from start to exit."""
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"failed: {' '.join(command)}\n{done.stderr}")


# Rows


@dataclass
class Row:
    """A line of the table. `turns` measures each side once; `runs` is what came of it, round by round."""

    name: str
    unit: str
    turns: Mapping[str, Callable[[], float]] = field(default_factory=dict)
    goals: tuple[str, ...] = ()  # "tiedgpt >= 80": our figure; "transformers <= 0.4": our share of theirs
    runs: dict[str, list[float]] = field(default_factory=dict)

    def figure(self, side: str) -> float | None:
        """A side's median; None if it was not measured."""
        return statistics.median(self.runs[side]) if side in self.runs else None

    def ratio(self, side: str) -> float | None:
        """Ours as a share of a side's."""
        ours, theirs = self.figure("tiedgpt"), self.figure(side)
        return ours / theirs if ours is not None and theirs else None

    def outcomes(self) -> dict[str, bool | None]:
        """Each goal, and whether it was met; None where there is nothing to hold against it."""
        outcomes = {}
        for goal in self.goals:
            side, compare, limit = goal.rsplit(" ", 2)
            figure = self.figure(side) if side == "tiedgpt" else self.ratio(side)
            outcomes[goal] = None if figure is None else COMPARE[compare](figure, float(limit))
        return outcomes

    def cells(self, sides: list[str]) -> str:
        """The figures; beside another side's, in brackets, ours as a share of it."""
        line = f"{self.name:35}{self.unit:9}"
        for side in sides:
            figure, ratio = self.figure(side), self.ratio(side)
            cell = "-" if figure is None else digits(figure)
            line += f"{cell:>8}"
            if side != "tiedgpt":
                line += "       " if ratio is None else f" ({ratio:.2f})"
        return line.rstrip()

    def verdicts(self) -> str:
        said = {True: "met", False: "missed", None: "not measured"}
        return ", ".join(f"{goal} {said[met]}" for goal, met in self.outcomes().items())


def digits(figure: float) -> str:
    """Three of them: 1,234, 12.3, 1.23."""
    return f"{figure:,.{0 if figure >= 100 else 1 if figure >= 10 else 2}f}"


def measure(rows: list[Row], repeats: int) -> None:
    """Let the sides of each row take turns, `repeats` times and once before that does not count."""
    for number in tqdm(range(repeats + 1), "rounds", leave=False):
        for row in rows:
            for side, turn in row.turns.items():
                time.sleep(PAUSE)
                figure = turn()
                if number:
                    row.runs.setdefault(side, []).append(figure)


class Bench:
    """Workers for the sides that there are, and rows that let them take turns."""

    def __init__(self, directory: str, sides: Mapping[str, type[Any]], converted: Path) -> None:
        self.directory = directory
        about = {}
        for name, side in sides.items():
            about[name] = directory
            if hasattr(side, "convert"):
                about[name] = convert(side, directory, converted / name.replace(" ", "-"))
        self.about = about
        self.workers = {name: Worker(side, about[name]) for name, side in sides.items()}

    def row(self, name: str, unit: str, method: str, *args: Any, goals: tuple[str, ...] = ()) -> Row:
        """A row of one method, of the sides that have it."""
        turns = {
            side: lambda worker=worker: first(worker.call(method, *args))
            for side, worker in self.workers.items()
            if hasattr(worker.side, method)
        }
        return Row(name, unit, turns, goals)

    def stop(self) -> None:
        for worker in self.workers.values():
            worker.stop()


def first(answer: Any) -> float:
    """Of milliseconds and tokens, the milliseconds."""
    return answer[0] if isinstance(answer, tuple) else answer


def derived(name: str, unit: str, sides: Any, of: Callable[..., float], *rows: Row, goals: Any = ()) -> Row:
    """A row of numbers that follow from other rows', round by round."""
    row = Row(name, unit, goals=goals)
    for side in sides:
        if all(side in other.runs for other in rows):
            row.runs[side] = [of(*numbers) for numbers in zip(*(r.runs[side] for r in rows), strict=True)]
    return row


def inference(bench: Bench, repeats: int, notes: list[str]) -> list[Row]:
    """The rows of one model, measured. Adds to `notes` what they do not say."""
    ours, workers, directory = bench.workers["tiedgpt"], bench.workers, bench.directory
    config = json.loads((Path(directory) / "config.json").read_text(encoding="utf-8"))
    some = random.Random(0)
    ids = [some.randrange(config["vocab_size"]) for _ in range(config["n_positions"])]
    text = [some.randrange(config["vocab_size"]) for _ in range(2 * config["n_positions"])]

    row = bench.row
    product = row("matrix product, 2048^3", "GFLOP/s", "matrix_product")
    bandwidth = row("matrix-vector, 8192^2", "GB/s", "matrix_vector")
    goals = ("transformers <= 0.38", "CTranslate2 <= 0.8", "llama.cpp <= 0.9")
    tied = row("decode, tied", "ms/token", "decode", ids[:10], 64, goals=goals)
    untied = row("decode, untied", "ms/token", "decode_untied", ids[:10], 64)
    at_end = row("decode, at the end", "ms/token", "decode", ids[:-33], 32)
    batches = {n: row(f"decode, {n} at once", "ms/step", "decode_batch", ids[:10], 32, n) for n in (8, 32)}
    no_cache = row("decode without a cache", "ms/token", "decode_without_cache", ids[:10], 16)
    long_goals = ("transformers <= 0.5", "llama.cpp <= 0.8")
    prompts = {
        T: row(f"prompt of {T} tokens", "ms", "prompt", ids[:T], goals=long_goals if T == 1023 else ())
        for T in (128, 512, 1023)
        if len(ids) >= T
    }
    logits = row(f"all logits of {len(ids) - 1} tokens", "ms", "logits", ids[:-1])
    score = row("score of a text", "tokens/s", "score", text, goals=("transformers >= 1.5",))
    load = row("load", "s", "load")

    command = partial(run, "-m", "tiedgpt")
    version = Row(
        "--version", "s", {"tiedgpt": lambda: seconds(partial(command, "--version"))}, ("tiedgpt < 0.2",)
    )
    processes = [version]
    if any((Path(directory) / name).is_file() for name in VOCABULARIES):
        arguments = ("generate", "--greedy", "-n", "1", "--model", directory, TEXT)
        turns = {"tiedgpt": lambda: seconds(partial(command, *arguments))}
        if "transformers" in workers:
            turns["transformers"] = lambda: seconds(partial(run, "-c", FIRST_TOKEN, directory, TEXT))
        processes.append(Row("first token, from Enter", "s", turns, ("transformers <= 0.15", "tiedgpt < 1")))
    else:
        notes.append("no row for the first token from Enter: the checkpoint has no vocabulary to read text")
    memory = Row("peak memory", "MB", goals=("transformers <= 0.75",))
    for side, worker in workers.items():
        memory.runs[side] = [peak_memory(worker.side, bench.about[side], ids[:10])]

    decodes = [tied, untied, at_end, *batches.values(), no_cache]
    measure([product, bandwidth, *decodes, *prompts.values(), logits, score, load, *processes], repeats)

    weights = ours.call("bytes_per_token")
    limits = {"GB/s": bandwidth, "GFLOP/s": product}
    best = {
        unit: [max(round_) for round_ in zip(*r.runs.values(), strict=True)] for unit, r in limits.items()
    }
    share = Row("  of the bandwidth", "%", goals=("tiedgpt >= 80",))
    for side, runs in tied.runs.items():
        share.runs[side] = [weights / ms / limit / 1e4 for ms, limit in zip(runs, best["GB/s"], strict=True)]
    by_untied = derived("  as a multiple of tied", "", untied.runs, operator.truediv, untied, tied)
    by_end = derived(
        "  as a multiple", "", tied.runs, operator.truediv, at_end, tied, goals=("tiedgpt <= 1.25",)
    )
    rows = [product, bandwidth, tied, share, untied, by_untied, at_end, by_end]
    for n, goal in ((8, 2.5), (32, 6)):
        ratio = derived(
            "  tokens/s, as a multiple of 1",
            "",
            batches[n].runs,
            lambda together, one, n=n: n * one / together,
            batches[n],
            tied,
            goals=(f"tiedgpt >= {goal}",),
        )
        rows += [batches[n], ratio]
    rows.append(no_cache)
    for T, prompt in prompts.items():
        done = Row("  of the matrix product", "%", goals=("tiedgpt >= 60",) if T == 1023 else ())
        work = ours.call("operations", T)
        for side, runs in prompt.runs.items():
            done.runs[side] = [
                work / ms / limit / 1e4 for ms, limit in zip(runs, best["GFLOP/s"], strict=True)
            ]
        rows += [prompt, done]
    compare_tokens(workers, ids[:10], notes)
    for what, method, *given in (
        ("a token", "decode", ids[:10], 64),
        (f"a prompt of {len(ids) - 1}", "prompt", ids[:-1]),
    ):
        parts = sorted(ours.call("profile", method, *given).items(), key=lambda part: -part[1])
        shares = ", ".join(f"{part} {share:.0f} %" for part, share in parts)
        notes.append(f"tiedgpt's time for {what}: {shares}")
    return [*rows, logits, score, load, *processes, memory]


def compare_tokens(workers: dict[str, Worker], ids: list[int], notes: list[str]) -> None:
    """Do all sides compute the same model?"""
    chosen = {side: worker.call("decode", ids, 64)[1] for side, worker in workers.items()}
    mine = chosen.pop("tiedgpt")
    for side, theirs in chosen.items():
        same = next((i for i, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b), 64)
        notes.append(f"{side} chose the same tokens as tiedgpt in {same} of 64 steps")


def peak_memory(side: type[Any], about: str, ids: list[int]) -> float:  # MB
    worker = Worker(side, about)
    worker.call("decode", ids, 20)
    peak = worker.call("peak_memory")
    worker.stop()
    return peak


def training_steps(sides: list[str], repeats: int) -> list[Row]:
    rows = []
    for training in TRAININGS:
        classes = {"tiedgpt": TiedGPTTraining, "transformers": TorchTraining}
        workers = {side: Worker(cls, training) for side, cls in classes.items() if side in sides}
        turns = {side: partial(worker.call, "train_step") for side, worker in workers.items()}
        rows.append(Row(f"training step, {training.name}", "ms", turns, (training.goal,)))
        measure(rows[-1:], repeats)
        for worker in workers.values():
            worker.stop()
    return rows


def larger(sides: Mapping[str, type[Any]], directory: Path, repeats: int) -> list[Row]:
    """How decode and a prompt grow with the model: its size beside ours at 124M is what they should cost."""
    rows = []
    for name, sizes in SIZES.items():
        with tempfile.TemporaryDirectory(dir=directory) as temporary:
            run("-c", WRITE_RANDOM, f"{temporary}/model", json.dumps(sizes))
            bench = Bench(f"{temporary}/model", sides, Path(temporary))
            ids = list(range(1000, 1512))
            rows += [
                bench.row(f"{name}: decode, tied", "ms/token", "decode", ids[:10], 32),
                bench.row(f"{name}: prompt of 512 tokens", "ms", "prompt", ids),
            ]
            measure(rows[-2:], repeats)
            bench.stop()
    return rows


# What is told


def processor() -> str:
    """Its name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(": ")[1] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):  # not Linux, or not x86
        return platform.processor() or platform.machine()


def picture(rows: list[Row], sides: list[str], title: str, path: Path) -> None:
    """A bar for each row and library: how many times as long as tiedgpt it takes. Needs matplotlib."""
    from matplotlib.figure import Figure

    rows = [row for row in rows if "ms" in row.unit or row.unit == "s"]
    rows = [row for row in rows if len(row.runs) > 1]
    drawing = Figure(figsize=(9, 0.5 + 0.45 * len(rows)), dpi=100, layout="constrained")
    ax = drawing.subplots()
    others = [side for side in sides if side != "tiedgpt"]
    for number, side in enumerate(others):
        at = [
            (n + (number + 0.5) / len(others) * 0.8, 1 / ratio)
            for n, row in enumerate(rows)
            if (ratio := row.ratio(side))
        ]
        ax.barh([y for y, _ in at], [x for _, x in at], 0.8 / len(others), label=side)
    ax.axvline(1, color="black", lw=1, label="tiedgpt")
    ax.set_yticks([n + 0.4 for n in range(len(rows))], [row.name.strip() for row in rows])
    ax.invert_yaxis()
    ax.set_xlabel("times as long as tiedgpt takes")
    ax.set_title(textwrap.fill(title, 130), fontsize=8)
    ax.legend(frameon=False)
    drawing.savefig(path)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--model", metavar="DIR", type=os.path.abspath, help="a checkpoint (default: 124M at random)"
    )
    parser.add_argument("--sizes", action="store_true", help="also 355M and 774M: 4 GB of disk, some minutes")
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write every number there")
    parser.add_argument("--plot", metavar="FILE", type=Path, help="also draw it; needs matplotlib")
    parser.add_argument("--repeats", metavar="N", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--threads", metavar="N", default=str(os.cpu_count()), help="default: one per core")
    args = parser.parse_args()
    if args.plot and not find_spec("matplotlib"):
        parser.error("--plot needs matplotlib: pip install -e .[plot]")

    # What is measured inherits this environment, and its libraries read it when they are imported.
    notes = [
        f"{pin}={os.environ.pop(pin)}, which was set here, was unset" for pin in PINS if pin in os.environ
    ]
    os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), args.threads))
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    sys.path.insert(0, str(ROOT))  # the checkout, installed or not
    sides = {name: side for name, side in SIDES.items() if side.is_installed()}
    if absent := [name for name in SIDES if name not in sides]:
        notes.append(f"not installed, and so not compared with: {', '.join(absent)}")
    if hasattr(os, "getloadavg"):  # not on Windows
        notes.append(f"load average before: {os.getloadavg()[0]:.1f} (others' work is in the figures, too)")

    about = {"processor": processor(), "threads": args.threads, "Python": platform.python_version()}
    with tempfile.TemporaryDirectory() as temporary:
        directory = args.model or f"{temporary}/model"
        if args.model is None:
            run("-c", WRITE_RANDOM, directory, "{}")
        bench = Bench(directory, sides, Path(temporary))
        for worker in bench.workers.values():
            about |= worker.call("about")
        rows = inference(bench, args.repeats, notes)
        bench.stop()
        if "llama.cpp" in sides:  # they read fewer bytes, and so are no equals; but a user can choose them
            fewer = Bench(directory, HALVES, Path(temporary))
            ids = list(range(1000, 1010))
            for side, worker in fewer.workers.items():
                turns = {"llama.cpp": lambda worker=worker: first(worker.call("decode", ids, 64))}
                rows.append(Row(f"decode, {side}", "ms/token", turns))
            measure(rows[-len(HALVES) :], args.repeats)
            fewer.stop()
        rows += training_steps(list(sides), args.repeats)
        if args.sizes:
            both = {name: side for name, side in sides.items() if name in ("tiedgpt", "transformers")}
            rows += larger(both, Path(temporary), args.repeats)

    names = list(sides)
    described = ", ".join(f"{key} {value}" for key, value in about.items())
    print(described, *notes, "", sep="\n")
    heads = "".join(f"{name:>8}" if name == "tiedgpt" else f"{name:>15}" for name in names)
    print(f"{'':44}{heads}   (in brackets: tiedgpt / it)")
    for row in rows:
        print(row.cells(names))
    goals = [(row.name.strip(), row.verdicts()) for row in rows if row.goals]
    print("\ngoals, on 2 cores", *(f"{name:36}{met}" for name, met in goals), sep="\n")
    if args.json:
        table = [
            {
                "name": row.name.strip(),
                "unit": row.unit,
                "figures": {side: row.figure(side) for side in row.runs},
                "ratios": {side: row.ratio(side) for side in row.runs if side != "tiedgpt"},
                "goals": row.outcomes(),
                "rounds": row.runs,
            }
            for row in rows
        ]
        document = json.dumps({"about": about, "notes": notes, "rows": table}, indent=2)
        args.json.write_text(document + "\n", encoding="utf-8")
    if args.plot:
        picture(rows, names, described, args.plot)


if __name__ == "__main__":
    main()
