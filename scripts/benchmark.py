"""How fast is tiedgpt? One run on this machine, side by side with transformers, in float32.

    python scripts/benchmark.py                             # a random 124M checkpoint, made and removed
    python scripts/benchmark.py --model DIR --json FILE     # a checkpoint of yours; FILE has every turn

It takes three to five minutes, and nothing here passes or fails. The second column needs `pip install torch
transformers`. Speed does not depend on what the weights are, so random ones will do, but the row that
starts from text needs a checkpoint with a vocabulary. The rows:

    matrix product, matrix-vector   what the machine can do, by NumPy's BLAS and by torch's
    decode                          from one new token to the next: greedy, batch 1, 64 tokens after a
                                    prompt of 10, in each side's own generation loop
    share of the bandwidth          a token reads every weight once: their bytes / decode / the better
                                    matrix-vector product of the two. At 100 % nothing else takes time
    decode at the end               the same for the last 32 positions of the context, and as a multiple
    prompt                          from a prompt of so many tokens to the logits of the next
    --version, first token          whole processes; the second from Enter to the first token's text, the
                                    files being in the page cache
    peak memory                     of a process that loads the tied model and generates 20 tokens
    training step                   of models of their own, without dropout: forward, backward, clipping,
                                    AdamW (torch's fused one). The second column is the better of transformers
                                    and a plain torch module with scaled_dot_product_attention

Each side works in a process of its own, so that their threads do not meet. The sides take turns at every
row, round after round, so that whatever else the machine does meets both. A figure is the median of its
rounds, of which the first does not count; a ratio is tiedgpt / transformers.
"""

import argparse
import ctypes
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
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tqdm import tqdm

ROOT = Path(__file__).resolve().parents[1]
PINS = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")  # some shells choose OpenBLAS's kernels; users' do not
VOCABULARIES = ("merges.txt", "vocab.bpe", "tokenizer.json")
PAUSE = 0.1  # seconds before a turn, for the other side's threads to stop spinning
COMPARE = {"<": operator.lt, "<=": operator.le, ">=": operator.ge}
TEXT = "Alan Turing theorized that computers"

WRITE_RANDOM = "import sys, tiedgpt as t; t.save_model(t.GPT2.random(t.Config()), None, sys.argv[1])"
FIRST_TOKEN = """
import sys, torch
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype=torch.float32)
prompt = tokenizer(sys.argv[2], return_tensors="pt")
print(tokenizer.decode(model.generate(**prompt, do_sample=False, max_new_tokens=1)[0, -1:]))
"""


def seconds(function: Callable[[], Any]) -> float:
    """How long a call takes."""
    start = time.perf_counter()
    function()
    return time.perf_counter() - start


class Side:
    """A library under measurement, in a worker: the parent imports neither.

    A subclass has `ones`, which makes a float32 array of its kind, and `decode` and `prompt`.
    """

    ones: Callable[..., Any]

    def matrix_vector(self, n: int = 8192) -> float:  # GB/s
        W, x = self.ones((n, n)), self.ones(n)
        return W.nbytes / statistics.median(seconds(lambda: W @ x) for _ in range(20)) / 1e9

    def matrix_product(self, n: int = 2048) -> float:  # GFLOP/s
        a, b = self.ones((n, n)), self.ones((n, n))
        return 2 * n**3 / statistics.median(seconds(lambda: a @ b) for _ in range(5)) / 1e9

    def peak_memory(self) -> float:  # MB, of this process so far
        unit = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes
        resource: Any = import_module("resource")  # which Windows lacks
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e6


class TiedGPT(Side):
    def __init__(self, directory: str) -> None:
        self.np, self.tiedgpt = import_module("numpy"), import_module("tiedgpt")
        self.next_logits = import_module("tiedgpt.generation").next_logits
        self.ones = partial(self.np.ones, dtype="f4")
        model = self.tiedgpt.load_model(directory, head="tied")
        endless = replace(model.config, eos_token_id=None)
        self.models = {"tied": self.tiedgpt.GPT2(endless, model.parameters)}

    def about(self) -> dict[str, str]:
        blas = self.np.show_config(mode="dicts")["Build Dependencies"]["blas"]
        about = {"NumPy": self.np.__version__, "BLAS": f"{blas['name']} {blas['version']}"}
        # The OpenBLAS in NumPy's wheels tells which kernels it chose for this processor.
        for library in Path(self.np.__path__[0]).parent.glob("numpy.libs/*openblas64*"):
            corename = ctypes.CDLL(str(library)).scipy_openblas_get_corename64_
            corename.restype = ctypes.c_char_p
            about["BLAS"] += f" with kernels for {corename().decode()}"
        return about

    def bytes_per_token(self) -> int:
        """Of the weights: all but the position embedding. The token embedding counts as the head."""
        parameters = self.models["tied"].parameters
        return sum(array.nbytes for array in parameters.values()) - parameters["wpe.weight"].nbytes

    def decode(self, head: str, ids: list[int], n: int) -> tuple[float, list[int]]:  # ms, tokens
        if head not in self.models:
            self.models[head] = self.models["tied"].untie("copy")
        steps = self.tiedgpt.generate(self.models[head], ids, max_new_tokens=n, greedy=True)
        tokens = [next(steps)]
        return 1e3 * seconds(lambda: tokens.extend(steps)) / (n - 1), tokens

    def prompt(self, ids: list[int]) -> float:  # ms
        model, array = self.models["tied"], self.np.array([ids])
        return 1e3 * seconds(lambda: self.next_logits(model, array, model.new_cache()))


class Transformers(Side):
    def __init__(self, directory: str) -> None:
        self.torch, self.transformers = import_module("torch"), import_module("transformers")
        self.ones = self.torch.ones
        self.model = self.transformers.AutoModelForCausalLM.from_pretrained(
            directory, dtype=self.torch.float32, tie_word_embeddings=True
        )
        self.model.generation_config.eos_token_id = None
        self.heads = {"tied": self.model.lm_head.weight}

    def about(self) -> dict[str, str]:
        return {"torch": self.torch.__version__, "transformers": self.transformers.__version__}

    def decode(self, head: str, ids: list[int], n: int) -> tuple[float, list[int]]:  # ms, tokens
        if head not in self.heads:
            self.heads[head] = self.torch.nn.Parameter(self.heads["tied"].detach().clone())
        self.model.lm_head.weight = self.heads[head]
        prompt, arrivals = self.torch.tensor([ids]), Arrivals()
        inputs = {"input_ids": prompt, "attention_mask": self.torch.ones_like(prompt)}
        settings = {"do_sample": False, "max_new_tokens": n, "min_new_tokens": n}
        out = self.model.generate(**inputs, **settings, streamer=arrivals)
        _, first, *_, last = arrivals.times  # the prompt is streamed too, as one piece
        return 1e3 * (last - first) / (n - 1), out[0, len(ids) :].tolist()

    def prompt(self, ids: list[int]) -> float:  # ms
        array = self.torch.tensor([ids])
        with self.torch.inference_mode():
            return 1e3 * seconds(lambda: self.model(input_ids=array, use_cache=True, logits_to_keep=1))


class Arrivals:
    """A streamer for transformers that notes when each token comes."""

    def __init__(self) -> None:
        self.times: list[float] = []

    def put(self, _: Any) -> None:
        self.times.append(time.perf_counter())

    def end(self) -> None:
        pass


@dataclass(frozen=True)
class Training:
    """A model's sizes and a batch's, to be trained for `steps` steps a turn."""

    name: str
    goal: str
    V: int
    L: int
    H: int
    D: int
    n_ctx: int
    B: int
    T: int
    steps: int


TRAININGS = (
    # nanoGPT's setting for a CPU, by byte; the shipped models' size; GPT-2 124M on llm.c's batch
    Training("nanoGPT's on a CPU", "ratio <= 0.75", V=257, L=4, H=4, D=128, n_ctx=64, B=12, T=64, steps=40),
    Training("4 x 128, V 1024", "ratio <= 0.8", V=1024, L=4, H=4, D=128, n_ctx=128, B=32, T=128, steps=20),
    Training("124M, 4 x 64", "ratio <= 0.55", V=50257, L=12, H=12, D=768, n_ctx=1024, B=4, T=64, steps=3),
)
NO_DROPOUT = {"embd_pdrop": 0.0, "resid_pdrop": 0.0, "attn_pdrop": 0.0}
WARM_UP = 3  # steps before the first turn


class TiedGPTTraining:
    def __init__(self, training: Training) -> None:
        np, tiedgpt = import_module("numpy"), import_module("tiedgpt")
        loop = import_module("tiedgpt.training.loop")
        t = self.training = training
        sizes = {"vocab_size": t.V, "n_ctx": t.n_ctx, "n_layer": t.L, "n_head": t.H, "n_embd": t.D}
        config = tiedgpt.Config(**sizes, **NO_DROPOUT, bos_token_id=None, eos_token_id=None)
        tokens = np.random.default_rng(0).integers(0, t.V, 100 * t.B * t.T)
        endless = 10**9  # steps, which also puts the next look at held-out text far away
        settings = loop.Settings(steps=endless, batch=t.B, context=t.T)
        self.records = loop.Trainer(tiedgpt.GPT2.random(config), tokens, tokens[:2], settings).run()
        for _ in range(WARM_UP):
            next(self.records)

    def train_step(self) -> float:  # ms
        steps = [next(self.records)["tokens_per_s"] for _ in range(self.training.steps)]
        return 1e3 * self.training.B * self.training.T / statistics.median(steps)


class TorchTraining:
    """The better of two: transformers' GPT-2, and the fewest torch operations that make one."""

    def __init__(self, training: Training) -> None:
        self.torch, self.training = import_module("torch"), training
        self.models = []
        for model in (self.transformers(), self.plain()):
            parameters = list(model.train().parameters())
            groups = [
                {"params": [p for p in parameters if p.ndim > 1], "weight_decay": 0.1},
                {"params": [p for p in parameters if p.ndim == 1], "weight_decay": 0.0},
            ]
            self.models.append((model, self.torch.optim.AdamW(groups, lr=1e-3, fused=True)))
            for _ in range(WARM_UP):
                self.step(*self.models[-1])

    def train_step(self) -> float:  # ms
        return min(
            1e3 * statistics.median(seconds(partial(self.step, *model)) for _ in range(self.training.steps))
            for model in self.models
        )

    def step(self, model: Any, optimizer: Any) -> None:
        t = self.training
        ids = self.torch.randint(t.V, (t.B, t.T + 1))
        logits = model(ids[:, :-1])
        logits = getattr(logits, "logits", logits)
        loss = self.torch.nn.functional.cross_entropy(logits.view(-1, t.V), ids[:, 1:].reshape(-1))
        loss.backward()
        self.torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    def transformers(self) -> Any:
        library, t = import_module("transformers"), self.training
        sizes = {"vocab_size": t.V, "n_positions": t.n_ctx, "n_layer": t.L, "n_head": t.H, "n_embd": t.D}
        tokens = {"bos_token_id": 0, "eos_token_id": 0}
        config = library.GPT2Config(**sizes, **NO_DROPOUT, **tokens, use_cache=False)
        return library.GPT2LMHeadModel(config)

    def plain(self) -> Any:
        t, nn = self.training, self.torch.nn
        F = nn.functional

        class Block(nn.Module):  # type: ignore[name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.ln_1, self.ln_2 = nn.LayerNorm(t.D), nn.LayerNorm(t.D)
                self.c_attn, self.attn_proj = nn.Linear(t.D, 3 * t.D), nn.Linear(t.D, t.D)
                self.c_fc, self.mlp_proj = nn.Linear(t.D, 4 * t.D), nn.Linear(4 * t.D, t.D)

            def forward(self, x: Any) -> Any:
                qkv = self.c_attn(self.ln_1(x)).view(t.B, t.T, 3, t.H, t.D // t.H)
                heads = F.scaled_dot_product_attention(*qkv.permute(2, 0, 3, 1, 4), is_causal=True)
                x = x + self.attn_proj(heads.transpose(1, 2).reshape(x.shape))
                return x + self.mlp_proj(F.gelu(self.c_fc(self.ln_2(x)), approximate="tanh"))

        class Plain(nn.Module):  # type: ignore[name-defined]
            def __init__(self) -> None:
                super().__init__()
                self.wte, self.wpe = nn.Embedding(t.V, t.D), nn.Embedding(t.n_ctx, t.D)
                self.h = nn.ModuleList(Block() for _ in range(t.L))
                self.ln_f = nn.LayerNorm(t.D)

            def forward(self, ids: Any) -> Any:
                x = self.wte(ids) + self.wpe.weight[: t.T]
                for block in self.h:
                    x = block(x)
                return F.linear(self.ln_f(x), self.wte.weight)

        return Plain()


class Worker:
    """A side in a process of its own, made of `about`: `call` runs one of its methods there."""

    def __init__(self, side: type[Any], about: Any) -> None:
        spawn = multiprocessing.get_context("spawn")
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


def run(*command: str) -> None:
    """Python with these arguments, from start to exit."""
    done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"failed: {' '.join(command)}\n{done.stderr}")


def peak_memory(side: type[Any], directory: str, ids: list[int]) -> float:  # MB
    worker = Worker(side, directory)
    worker.call("decode", "tied", ids, 20)
    peak = worker.call("peak_memory")
    worker.stop()
    return peak


@dataclass
class Row:
    """A line of the table. `turns` measures each side once; `runs` is what came of it, round by round."""

    name: str
    unit: str
    turns: Mapping[str, Callable[[], float]] = field(default_factory=dict)
    goal: str = ""  # figure, comparison, limit: "ratio <= 0.4"
    runs: dict[str, list[float]] = field(default_factory=dict)

    def figures(self) -> dict[str, float | None]:
        figures: dict[str, float | None] = {"tiedgpt": None, "transformers": None, "ratio": None}
        figures |= {side: statistics.median(runs) for side, runs in self.runs.items()}
        ours, theirs = figures["tiedgpt"], figures["transformers"]
        return figures | {"ratio": ours / theirs if ours and theirs else None}

    def goal_met(self) -> bool | None:
        """None where there is no goal, or nothing to hold against it."""
        if not self.goal:
            return None
        column, compare, limit = self.goal.split()
        figure = self.figures()[column]
        return None if figure is None else COMPARE[compare](figure, float(limit))

    def __str__(self) -> str:
        ours, theirs, ratio = (
            "-" if figure is None else f"{figure:,.{0 if figure >= 100 else 1 if figure >= 10 else 2}f}"
            for figure in self.figures().values()
        )
        met = {True: "met", False: "missed", None: ""}[self.goal_met()]
        return f"{self.name:34}{self.unit:9}{ours:>8}{theirs:>14}{ratio:>8}  {self.goal:16}  {met}".rstrip()


def benchmark(directory: str, repeats: int, notes: list[str]) -> tuple[dict[str, str], list[Row]]:
    """What was measured on, and the rows. Adds to `notes` what they do not say."""
    sides: dict[str, type[Side]] = {"tiedgpt": TiedGPT}
    if find_spec("torch") and find_spec("transformers"):
        sides["transformers"] = Transformers
    else:
        notes.append("nothing to compare with: pip install torch transformers")
    config = json.loads((Path(directory) / "config.json").read_text(encoding="utf-8"))
    some = random.Random(0)
    ids = [some.randrange(config["vocab_size"]) for _ in range(config["n_positions"])]
    memory = Row("peak memory", "MB", goal="ratio <= 1")
    memory.runs = {side: [peak_memory(cls, directory, ids[:10])] for side, cls in sides.items()}
    workers = {side: Worker(cls, directory) for side, cls in sides.items()}
    about = {key: value for worker in workers.values() for key, value in worker.call("about").items()}

    def turns(method: str, *args: Any) -> dict[str, Any]:
        return {side: partial(worker.call, method, *args) for side, worker in workers.items()}

    def decode(*args: Any) -> dict[str, Any]:
        return {side: lambda turn=turn: turn()[0] for side, turn in turns("decode", *args).items()}

    bandwidth = Row("matrix-vector, 8192^2", "GB/s", turns("matrix_vector"))
    product = Row("matrix product, 2048^3", "GFLOP/s", turns("matrix_product"))
    tied = Row("decode, tied", "ms/token", decode("tied", ids[:10], 64), "ratio <= 0.4")
    untied = Row("decode, untied", "ms/token", decode("untied", ids[:10], 64), "ratio <= 0.4")
    at_end = Row("decode, tied, at the end", "ms/token", decode("tied", ids[:-32], 33))
    prompts = [
        Row(f"prompt of {T} tokens", "ms", turns("prompt", ids[:T]), "ratio <= 0.7")
        for T in (128, 512, 1023)
        if len(ids) >= T
    ]
    command = partial(run, "-m", "tiedgpt")
    processes = [
        Row("--version", "s", {"tiedgpt": lambda: seconds(partial(command, "--version"))}, "tiedgpt < 0.2")
    ]
    if any((Path(directory) / name).is_file() for name in VOCABULARIES):
        ours = partial(command, "generate", "--greedy", "-n", "1", "--model", directory, TEXT)
        theirs = partial(run, "-c", FIRST_TOKEN, directory, TEXT)
        both = zip(sides, (ours, theirs), strict=False)
        first = {side: partial(seconds, process) for side, process in both}
        processes.append(Row("first token, from Enter", "s", first, "tiedgpt < 1"))
    else:
        notes.append("no row for the first token from Enter: the checkpoint has no vocabulary to read text")

    measure([product, bandwidth, tied, untied, at_end, *prompts, *processes], repeats)
    share = Row("  share of the bandwidth", "%", goal="tiedgpt >= 80")
    multiple = Row("  as a multiple", "")
    weights = workers["tiedgpt"].call("bytes_per_token")
    limits = [max(gigabytes) for gigabytes in zip(*bandwidth.runs.values(), strict=True)]
    for side, runs in tied.runs.items():
        share.runs[side] = [weights / ms / limit / 1e4 for ms, limit in zip(runs, limits, strict=True)]
        multiple.runs[side] = [end / ms for end, ms in zip(at_end.runs[side], runs, strict=True)]
    if len(sides) == 2:
        mine, others = (worker.call("decode", "tied", ids[:10], 64)[1] for worker in workers.values())
        same = next((i for i, (a, b) in enumerate(zip(mine, others, strict=True)) if a != b), 64)
        notes.append(f"both sides chose the same tokens in {same} of 64 steps")
    for worker in workers.values():
        worker.stop()
    rows = [product, bandwidth, tied, share, untied, at_end, multiple, *prompts, *processes, memory]
    return about, [*rows, *training_steps(list(sides), repeats)]


def training_steps(sides: list[str], repeats: int) -> list[Row]:
    rows = []
    for training in TRAININGS:
        classes = zip(sides, (TiedGPTTraining, TorchTraining), strict=False)
        workers = {side: Worker(cls, training) for side, cls in classes}
        turns = {side: partial(worker.call, "train_step") for side, worker in workers.items()}
        rows.append(Row(f"training step, {training.name}", "ms", turns, training.goal))
        measure(rows[-1:], repeats)
        for worker in workers.values():
            worker.stop()
    return rows


def measure(rows: list[Row], repeats: int) -> None:
    """Let the sides of each row take turns, `repeats` times and once before that does not count."""
    for number in tqdm(range(repeats + 1), "rounds", leave=False):
        for row in rows:
            for side, turn in row.turns.items():
                time.sleep(PAUSE)
                figure = turn()
                if number:
                    row.runs.setdefault(side, []).append(figure)


def processor() -> str:
    """Its name, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.split(": ")[1] for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):  # not Linux, or not x86
        return platform.processor() or platform.machine()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument(
        "--model", metavar="DIR", type=os.path.abspath, help="a checkpoint (default: 124M at random)"
    )
    parser.add_argument("--json", metavar="FILE", type=Path, help="also write every number there")
    parser.add_argument("--repeats", metavar="N", type=int, default=5, help="rounds (default: 5)")
    parser.add_argument("--threads", metavar="N", default=str(os.cpu_count()), help="default: one per core")
    args = parser.parse_args()

    # What is measured inherits this environment, and its libraries read it when they are imported.
    notes = [
        f"{pin}={os.environ.pop(pin)}, which was set here, was unset" for pin in PINS if pin in os.environ
    ]
    os.environ.update(dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"), args.threads))
    os.environ.update(HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error")
    sys.path.insert(0, str(ROOT))  # the checkout, installed or not

    if hasattr(os, "getloadavg"):  # not on Windows
        notes.append(f"load average before: {os.getloadavg()[0]:.1f} (others' work is in the figures, too)")
    with tempfile.TemporaryDirectory() as temporary:
        if args.model is None:
            run("-c", WRITE_RANDOM, temporary)
        measured_on, rows = benchmark(args.model or temporary, args.repeats, notes)
    about = {
        "processor": processor(),
        "threads": args.threads,
        "Python": platform.python_version(),
    } | measured_on
    print(", ".join(f"{key} {value}" for key, value in about.items()))
    print(*notes, "", sep="\n")
    print(f"{'':43}{'tiedgpt':>8}{'transformers':>14}{'ratio':>8}  goal")
    print(*rows, sep="\n")
    if args.json:
        table = [
            {"name": row.name.strip(), "unit": row.unit, "goal": row.goal, "goal_met": row.goal_met()}
            | row.figures()
            | {"rounds": row.runs}
            for row in rows
        ]
        document = json.dumps({"about": about, "notes": notes, "rows": table}, indent=2)
        args.json.write_text(document + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
