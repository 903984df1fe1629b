"""The tying experiment: train small models, tied and untied, with several depths and seeds, on one text.

    python scripts/tying_experiment.py tinyshakespeare.txt OUT

takes an hour or more on two cores. Ctrl-C stops it; the same command then continues with the runs that are
missing. If none is missing, it only writes the tables and the pictures again. With `--workers N` it does N
runs at a time, one thread each; they need Dask: `pip install -e .[dask]`. It writes to OUT:

    runs.jsonl       one line for each finished run: its settings, its losses, the numbers of `tiedgpt study`
    models/NAME      the model of each run, an ordinary checkpoint (120 MB in all)
    results.md       the tables: mean and standard deviation over the seeds
    *.png            loss curves and differences, direct paths, similarities; need `pip install -e .[plot]`

Only the head differs between models. Models with the same seed and depth have the same initial weights and
the same batches, so they can be compared in pairs. There is no dropout, because it regularises
too. The tokenizer is learned from the first nine tenths of the text; the last tenth is held out. The models
are trained on the nine tenths, and again on a tenth of those, to see which of them overfit on little data.
The held-out loss is evaluated often at first and then less often. The model with the lowest one is kept and
studied.
"""

from tiedgpt.__main__ import exit_at_once, on_ctrl_c

if __name__ == "__main__":
    on_ctrl_c(exit_at_once)  # while the rest is imported, there is nothing to clean up

import argparse
import json
import os
import signal
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from functools import cache
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import tiedgpt
from tiedgpt.checkpoints import open_checkpoint
from tiedgpt.checkpoints.files import StagedFiles
from tiedgpt.evaluation import bits_per_nat
from tiedgpt.scale.rows import single_thread
from tiedgpt.study import look_up
from tiedgpt.study.bigrams import bigrams
from tiedgpt.study.corpus import MIN_COUNT, Corpus
from tiedgpt.study.direct_path import direct_path
from tiedgpt.study.paths import PATHS, raw
from tiedgpt.study.similarity import embeddings
from tiedgpt.study.swap import losses
from tiedgpt.text import quoted, read_text
from tiedgpt.training.loop import Settings, Trainer, checksum
from tiedgpt.training.merges import learn_tokenizer

Line = dict[str, Any]  # a finished run, as runs.jsonl has it

# How the head starts -> what GPT2.untie calls it. (The recorded results say "normal".)
HEAD_INITS = {"tied": None, "normal": "random", "copy": "copy", "zeros": "zeros"}
# When to evaluate the held-out loss, as shares of a run's steps. The tables have a column for each of EARLY.
EARLY = (0.05, 0.1, 0.2)
EVALUATIONS = (0.01, 0.02, 0.03, 0.075, 0.15, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, *EARLY)


# The grid


@dataclass(frozen=True)
class Text:
    """A text to train on: the first of `parts` equal parts of the text that is not held out."""

    name: str
    parts: int
    steps: int
    heads: tuple[str, ...]


@dataclass(frozen=True)
class Run:
    """One model to train."""

    text: Text
    layers: int
    head: str
    seed: int

    @property
    def name(self) -> str:
        return f"{self.text.name}-{self.layers}-{self.head}-{self.seed}"

    @property
    def work(self) -> int:
        """The run's time on two cores in milliseconds, roughly; for the progress bar."""
        return self.text.steps * (20 + 25 * self.layers)


@dataclass(frozen=True)
class Grid:
    """All runs of the experiment."""

    texts: tuple[Text, ...] = (
        Text("whole", 1, 800, tuple(HEAD_INITS)),  # eight times through tinyshakespeare
        Text("tenth", 10, 300, ("tied", "normal")),  # thirty times through its first tenth
    )
    layers: tuple[int, ...] = (0, 1, 4)
    seeds: tuple[int, ...] = (1, 2, 3)
    vocab_size: int = 1024
    n_embd: int = 128
    n_head: int = 4
    batch: int = 32
    context: int = 128
    threads: int = 2  # of a run; 1 if several are done at a time

    def runs(self) -> Iterator[Run]:
        """For each text and depth the tied models come first, because the others are compared with them."""
        for text in self.texts:
            for layers in self.layers:
                for head in text.heads:
                    for seed in self.seeds:
                        yield Run(text, layers, head, seed)

    def settings(self, run: Run) -> Settings:
        steps = run.text.steps  # eval_every=steps: `train` makes the other evaluations
        return Settings(
            steps=steps,
            batch=self.batch,
            context=self.context,
            eval_every=steps,
            seed=run.seed,
            threads=self.threads,
        )

    def config(self, layers: int, tokenizer: tiedgpt.Tokenizer) -> tiedgpt.Config:
        return tiedgpt.Config(
            vocab_size=tokenizer.vocab_size,
            n_ctx=self.context,
            n_embd=self.n_embd,
            n_layer=layers,
            n_head=self.n_head,
            embd_pdrop=0.0,
            resid_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=tokenizer.eot_id,
            eos_token_id=tokenizer.eot_id,
        )

    def partner(self, run: Run) -> Run | None:
        """The tied run with which a run's embeddings are compared: the one with the previous seed.

        With the same seed both would start from the same W_E, which would increase the correlation. For the
        first seed it is the one with the last seed, but the first tied run is done before and has no partner.
        """
        number = self.seeds.index(run.seed)
        if run.head == "tied" and number == 0:
            return None
        return Run(run.text, run.layers, "tied", self.seeds[number - 1])


# One run


@dataclass(frozen=True)
class Data:
    """The tokens of a text, the last tenth held out, and the bigram counts of the rest."""

    tokenizer: tiedgpt.Tokenizer
    tokens: np.ndarray
    held_out: np.ndarray
    corpus: Corpus

    @classmethod
    def of(cls, text: str, vocab_size: int) -> "Data":
        cut = len(text) * 9 // 10
        tokenizer = learn_tokenizer(text[:cut], vocab_size)
        tokens, held_out = (np.array(tokenizer.encode(part), np.int64) for part in (text[:cut], text[cut:]))
        return cls(tokenizer, tokens, held_out, Corpus.of(tokens, tokenizer.vocab_size))

    @property
    def bits(self) -> float:
        """Bits per byte of the held-out text for each nat per token."""
        return bits_per_nat(self.tokenizer, self.held_out[1:])

    def part(self, text: Text) -> np.ndarray:
        return self.tokens[: len(self.tokens) // text.parts]


def settings_of(run: Run, grid: Grid, data: Data) -> Line:
    """Everything that determines a run's result. If it changes, the run is repeated."""
    config = grid.config(run.layers, data.tokenizer)
    sizes = {name: getattr(config, name) for name in ("vocab_size", "n_embd", "n_head")}
    texts = [checksum(part) for part in (data.part(run.text), data.tokens, data.held_out)]
    partner = grid.partner(run)
    return {**sizes, **asdict(grid.settings(run)), "texts": texts, "partner": partner and partner.name}


def train_run(run: Run, grid: Grid, data: Data, out: Path, progress: Callable[[float], Any]) -> Line:
    """Train and save one model; return its line for runs.jsonl, without the study."""
    start = tiedgpt.GPT2.random(grid.config(run.layers, data.tokenizer), run.seed)
    if init := HEAD_INITS[run.head]:
        start = start.untie(init, run.seed)
    trainer = Trainer(start, data.part(run.text), data.held_out, grid.settings(run))
    curve, seconds = train(trainer, data.bits, lambda: progress(run.work / run.text.steps))
    model = trainer.best_model()
    tiedgpt.save_model(model, data.tokenizer, out / "models" / run.name)
    return {
        "name": run.name,
        "text": run.text.name,
        "layers": run.layers,
        "head": run.head,
        "seed": run.seed,
        "settings": settings_of(run, grid, data),
        "parameters": tiedgpt.count_parameters(model.config)[model.config.head]["total"],
        "seconds_per_step": seconds,
        "best": min(curve, key=lambda point: point["held_out"]),
        "curve": curve,
    }


def study_run(line: Line, run: Run, grid: Grid, data: Data, out: Path) -> Line:
    """The line with the study of the model that was saved, and of its partner, which was saved before."""
    partner = grid.partner(run)
    model = tiedgpt.load_model(out / "models" / run.name)
    tied_W_E = tiedgpt.load_model(out / "models" / partner.name).W_E if partner else None
    return {
        **line,
        "direct_path": direct_path(model, data.corpus),
        "bigrams": bigrams(model, data.corpus),
        "embeddings": embeddings(model, data.corpus, tied_W_E),
        "loss": losses(model, data.held_out),
    }


def train(trainer: Trainer, bits: float, progress: Callable[[], Any]) -> tuple[list[Line], float]:
    """Train to the end, evaluating at the steps of EVALUATIONS.

    Returns the evaluations, {"step", "train", "held_out", "bits_per_byte"} each, where "train" is the mean
    loss of the batches since the evaluation before, and the median time of a step in seconds.
    """
    steps = {step_at(trainer.settings.steps, share) for share in EVALUATIONS}
    curve: list[Line] = []
    batch_losses: list[float] = []
    seconds = []
    for record in trainer.run():
        step = record["step"]
        if step > 0:
            batch_losses.append(record["loss"])
            seconds.append(trainer.settings.batch * trainer.settings.context / record["tokens_per_s"])
            progress()
        if "val_loss" not in record and step not in steps:
            continue
        loss = record["val_loss"] if "val_loss" in record else trainer.evaluate()
        mean = statistics.fmean(batch_losses) if batch_losses else None
        curve.append({"step": step, "train": mean, "held_out": loss, "bits_per_byte": loss * bits})
        batch_losses = []
    return curve, statistics.median(seconds)


def step_at(steps: int, share: float) -> int:
    return max(1, round(steps * share))


# All runs

Do = Callable[[list[Run], Callable[[float], Any]], Iterator[Line]]  # runs, progress -> the lines of the runs


def in_turn(grid: Grid, data: Data, out: Path) -> Do:
    """Do the runs one after the other."""

    def do(runs: list[Run], progress: Callable[[float], Any]) -> Iterator[Line]:
        for run in runs:
            yield study_run(train_run(run, grid, data, out, progress), run, grid, data, out)

    return do


def at_once(grid: Grid, corpus: str, out: Path, workers: int | None, address: str | None) -> Do:
    """Do several runs at a time, on the workers of a Dask cluster, which must see the files."""
    from tiedgpt.scale.dask import Tasks, connect

    def do(runs: list[Run], progress: Callable[[float], Any]) -> Iterator[Line]:
        with connect(workers, address) as client:
            if address:  # own workers find this file in sys.path
                client.upload_file(__file__)
            tasks, trained = Tasks(client), {}
            shared = (grid, os.path.abspath(corpus), out.absolute())
            for run in sorted(runs, key=lambda run: -run.work):  # a long one last would keep one core busy
                trained[run] = tasks.submit(None, train_task, run, *shared)
            for run in runs:
                partner = grid.partner(run)
                after = trained.get(partner) if partner else None  # None if it was trained before
                tasks.submit(run, study_task, trained[run], after, run, *shared)
            try:
                while tasks.running:
                    studied, future = tasks.next()
                    line = future.result()
                    if studied:
                        progress(studied.work)
                        yield line
            finally:
                tasks.cancel()

    return do


def train_task(run: Run, grid: Grid, corpus: str, out: Path) -> Line:
    single_thread()
    return train_run(run, grid, data_of(corpus, grid.vocab_size), out, lambda work: None)


def study_task(line: Line, _partner: Line | None, run: Run, grid: Grid, corpus: str, out: Path) -> Line:
    return study_run(line, run, grid, data_of(corpus, grid.vocab_size), out)


@cache
def data_of(corpus: str, vocab_size: int) -> Data:
    return Data.of(read_text(corpus), vocab_size)


def run_grid(grid: Grid, data: Data, out: Path, do: Do) -> dict[str, Line]:
    """Do the missing runs; return the line of every run by its name."""
    for text in grid.texts:  # check all before an hour of training
        if (size := data.part(text).size) <= grid.context:
            raise tiedgpt.TiedGPTError(
                f"the {text.name} text to train on has {size} tokens; expected more than the context of "
                f"{grid.context}: give a longer text"
            )
    path = out / "runs.jsonl"
    lines = read_lines(path)
    wanted = {run.name: settings_of(run, grid, data) for run in grid.runs()}
    done = {
        name: line
        for name, line in lines.items()
        if line["settings"] == wanted.get(name) and is_checkpoint(out / "models" / name)
    }
    left = [run for run in grid.runs() if run.name not in done]
    if again := [run for run in left if run.name in lines]:
        print(
            f"{len(again)} of the runs in {out} have another text, other settings or no model any more; they "
            "are done again",
            file=sys.stderr,
        )
    form = "{desc}{percentage:3.0f} % |{bar}| {elapsed}, {remaining} left"
    with tqdm(total=sum(run.work for run in left), bar_format=form, disable=not left) as bar:
        bar.set_description(f"{len(done)} of {len(wanted)} runs done")
        for line in do(left, bar.update) if left else ():
            with open(path, "a", encoding="utf-8") as file:  # complete if it ends in a line break
                file.write(json.dumps(line) + "\n")
            done[line["name"]] = line
            bar.set_description(f"{len(done)} of {len(wanted)} runs done")
            bits, step = line["best"]["bits_per_byte"], line["best"]["step"]
            bar.write(
                f"{line['name']}: held-out loss {bits:.3f} bits per byte at step {step}",
                file=sys.stderr,
            )
    return {name: done[name] for name in wanted}


def is_checkpoint(path: Path) -> bool:
    """Whether a directory holds a complete model."""
    try:
        open_checkpoint(path)
        return True
    except tiedgpt.TiedGPTError:
        return False


def read_lines(path: Path) -> dict[str, Line]:
    """The runs of runs.jsonl by name, the last of each name. An incomplete last line is removed."""
    if not path.exists():
        return {}
    data = path.read_bytes()
    size = data.rfind(b"\n") + 1
    if size < len(data):
        os.truncate(path, size)
    lines = {}
    for number, text in enumerate(data[:size].splitlines(), 1):
        try:
            line = json.loads(text)
            lines[line["name"]], _ = line, line["settings"]
        except (ValueError, TypeError, KeyError) as error:
            raise tiedgpt.TiedGPTError(
                f"{path}, line {number}: expected a run of this script; remove the line to do its run again"
            ) from error
    return lines


# The tables

Column = tuple[str, Callable[[Line], Any], str]  # title, function from a run's line to its number, format


def at(name: str, place: str, form: str = "{:.3f}") -> Column:
    """The column of the number at a dotted place of the line."""
    return name, lambda line: look_up(line, place), form


def bits_after(share: float, steps: int) -> Column:
    """The column of the held-out loss after a share of the steps."""
    step = step_at(steps, share)
    return (
        f"after {step}",
        lambda line: next(point["bits_per_byte"] for point in line["curve"] if point["step"] == step),
        "{:.3f}",
    )


def tables(grid: Grid, data: Data, lines: dict[str, Line]) -> str:
    """The contents of results.md."""
    unigram = look_up(next(iter(lines.values())), "bigrams.unigram")
    in_text = data.corpus.self_prediction()
    counts = [
        f"{len(grid.layers) * len(text.heads) * len(grid.seeds)} trained on {data.part(text).size:,} tokens"
        for text in grid.texts
    ]
    parts = [
        "# To tie or not to tie: results",
        f"{len(lines)} models: {', '.join(counts)}. Width {grid.n_embd}, {grid.n_head} heads, context "
        f"{grid.context}, vocabulary {data.tokenizer.vocab_size}, batch {grid.batch}, no dropout. Each "
        f"number is the mean ± standard deviation over the seeds {', '.join(map(str, grid.seeds))}; without "
        "±, all seeds have the same value. An untied head starts from normal random numbers (normal), as a "
        f"copy of W_E^T (copy) or as zeros (zeros). Losses are on {data.held_out.size:,} held-out tokens, in "
        "bits per byte unless another unit is given. The last two tables of each section measure the model "
        "at its best step, the one with the lowest held-out loss.",
    ]
    for text in grid.texts:
        runs = [(run, lines[run.name]) for run in grid.runs() if run.text == text]
        bits = [
            *(bits_after(share, text.steps) for share in EARLY),
            at("best loss", "best.bits_per_byte"),
            ("last loss", lambda line: line["curve"][-1]["bits_per_byte"], "{:.3f}"),
        ]
        parts += [
            f"## Trained on {data.part(text).size:,} tokens for {text.steps:,} steps",
            "Held-out loss after some of the steps, at the best step and at the last step; the best step; "
            "the time of a training step.",
            table(
                runs,
                [
                    at("parameters", "parameters", "{:,.0f}"),
                    *bits,
                    at("best step", "best.step", "{:.0f}"),
                    ("ms per step", lambda line: 1000 * line["seconds_per_step"], "{:.1f}"),
                ],
            ),
            "The difference of these losses, untied minus tied, for models with the same seed and batches. "
            "Below 0, untied is better.",
            table(
                [(run, line) for run, line in runs if run.head != "tied"],
                [(title, minus_tied(number, lines), "{:+.3f}") for title, number, _ in bits],
            ),
            "The direct path A = W_E W_U, and the next token predicted from one token alone. A token is "
            f"frequent if it occurs at least {MIN_COUNT} times in the {data.tokens.size:,} tokens that are "
            "not held out; the successors of a token are counted in the same tokens. Columns:",
            "- asymmetry: |A - A^T| / |A|. 0: A is symmetric; 1.414: A and its transpose are unrelated.\n"
            "- self-prediction: the share of frequent tokens whose best next token by A is the same token."
            + (f" In the text it is {in_text:.3f}." if in_text is not None else "")
            + "\n- KL: the KL divergence of a path's probabilities from those of the text, in nats, averaged "
            "over frequent tokens. It depends on the scale of the logits."
            + (f" For token counts alone (unigram) it is {unigram['kl']:.3f}." if unigram else "")
            + "\n- top1: the share of frequent tokens whose most common successor is the path's likeliest "
            "token."
            + (f" For token counts alone it is {unigram['top1']:.3f}." if unigram else "")
            + "\n- Paths: raw is W_E W_U (it has no layer norm, so its KL has no meaning); normed adds the "
            "final layer norm; mlp0 adds the first MLP; model is the whole model.",
            table(
                runs,
                [
                    at("asymmetry", "direct_path.asymmetry"),
                    at("self-prediction", "direct_path.self_prediction_frequent"),
                    *(at(f"KL {path}", f"bigrams.{path}.kl") for path in PATHS),
                    *(at(f"top1 {path}", f"bigrams.{path}.top1") for path in PATHS),
                ],
            ),
            "Do two matrices agree on which tokens are similar? The rank correlation of the cosine "
            "similarities of all pairs of tokens: W_E with W_U of the same model; W_E, and W_U, with the "
            "matrix of a tied model of the same depth and another seed (in the rows of tied models, this "
            "compares two tied models). Then the held-out loss in nats per token with the model's own head, "
            "and with x @ wte.T in its place.",
            table(
                runs,
                [
                    at("W_E, W_U", "embeddings.in_out"),
                    at("W_E, tied", "embeddings.in_tied"),
                    at("W_U, tied", "embeddings.out_tied"),
                    at("loss, own head", "loss.own"),
                    at("loss, tied head", "loss.swapped"),
                ],
            ),
        ]
    return "\n\n".join(parts) + "\n"


def minus_tied(number: Callable[[Line], Any], lines: dict[str, Line]) -> Callable[[Line], Any]:
    """A function from an untied run's line: its number minus that of the tied run with the same seed."""
    return lambda line: number(line) - number(lines[f"{line['text']}-{line['layers']}-tied-{line['seed']}"])


def table(runs: list[tuple[Run, Line]], columns: list[Column]) -> str:
    """A row for each depth and head, over all seeds."""
    groups: dict[tuple[int, str], list[Line]] = {}
    for run, line in runs:
        groups.setdefault((run.layers, run.head), []).append(line)
    rows = [["layers", "head", *(title for title, _, _ in columns)], ["---"] * (2 + len(columns))]
    for (layers, head), lines in groups.items():
        cells = (spread([number(line) for line in lines], form) for _, number, form in columns)
        rows.append([str(layers), label(head), *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def spread(numbers: list[float | None], form: str) -> str:
    """Mean and standard deviation of the numbers that are not None; the mean alone if they are equal.

    >>> spread([1.0, 2.0, None], "{:.1f}"), spread([3, 3], "{:.0f}"), spread([None], "{:.1f}")
    ('1.5 ± 0.7', '3', '-')
    """
    defined = [number for number in numbers if number is not None]
    if not defined:
        return "-"
    mean = form.format(statistics.fmean(defined))
    return (
        mean if len(set(defined)) == 1 else f"{mean} ± {form.format(statistics.stdev(defined)).lstrip('+')}"
    )


def label(head: str) -> str:
    return head if head == "tied" else f"untied, {head}"


# The pictures

# Okabe and Ito's colours, for colour-blind readers; the line styles are for printing in grey
STYLES: dict[str, dict[str, Any]] = {
    "tied": {"color": "#000000", "linestyle": "-"},
    "normal": {"color": "#D55E00", "linestyle": "--"},
    "copy": {"color": "#0072B2", "linestyle": "-."},
    "zeros": {"color": "#009E73", "linestyle": ":"},
}
DIRECT_PATH_TOKENS = 12  # the most common tokens, shown in the picture of A


def pictures(grid: Grid, data: Data, lines: dict[str, Line], out: Path) -> dict[str, bytes]:
    """The pictures by file name. Needs matplotlib."""
    from matplotlib import rc_context

    with rc_context({"font.size": 8, "axes.spines.top": False, "axes.spines.right": False}):
        return {
            "loss_curves.png": png(loss_curves(grid, lines)),
            "loss_differences.png": png(loss_differences(grid, lines)),
            "direct_paths.png": png(direct_paths(grid, data, out)),
            "similarities.png": png(similarities(grid, lines)),
        }


def figure(width: float, height: float) -> Any:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), dpi=100, layout="constrained")


def png(drawing: Any) -> bytes:
    """A PNG file with 256 colours, which makes it three times smaller."""
    from PIL import Image

    drawing.savefig(buffer := BytesIO())
    Image.open(buffer).convert("RGB").quantize(256).save(small := BytesIO(), "png", optimize=True)
    return small.getvalue()


def depth(layers: int) -> str:
    return f"{layers} layer{'s' * (layers != 1)}"


def of_head(lines: dict[str, Line], text: Text, layers: int, head: str) -> list[Line]:
    """The lines of all seeds."""
    place = {"text": text.name, "layers": layers, "head": head}
    return [line for line in lines.values() if place.items() <= line.items()]


def bits_by_step(lines: dict[str, Line], text: Text, layers: int, head: str) -> tuple[list[int], np.ndarray]:
    """The evaluated steps from 1 on, and the held-out bits per byte at each, a row for each seed."""
    curves = [line["curve"][1:] for line in of_head(lines, text, layers, head)]
    bits = [[point["bits_per_byte"] for point in curve] for curve in curves]
    return [point["step"] for point in curves[0]], np.array(bits)


def panels(grid: Grid, title: str) -> tuple[Any, Iterator[tuple[Any, Text, int]]]:
    """A figure with a row for each text and a column for each depth, and an iterator over its panels."""
    drawing = figure(9, 0.4 + 2.4 * len(grid.texts))
    axes = drawing.subplots(len(grid.texts), len(grid.layers), sharex="row", sharey="row", squeeze=False)
    for ax, layers in zip(axes[0], grid.layers, strict=True):
        ax.set_title(depth(layers))
    for row, text in zip(axes, grid.texts, strict=True):
        row[0].set_ylabel(f"{text.name} text: {title}")
        row[0].set_xscale("log")
    for ax in axes[-1]:
        ax.set_xlabel("step")
    places = [(text, layers) for text in grid.texts for layers in grid.layers]
    return drawing, ((ax, *place) for ax, place in zip(axes.flat, places, strict=True))


def draw(ax: Any, steps: list[int], bits: np.ndarray, head: str) -> None:
    """The mean over the seeds as a line, the range from the lowest to the highest as a band."""
    ax.plot(steps, bits.mean(axis=0), label=label(head), **STYLES[head])
    color = STYLES[head]["color"]
    ax.fill_between(steps, bits.min(axis=0), bits.max(axis=0), color=color, alpha=0.15, lw=0)


def add_legend(drawing: Any) -> None:
    """Put the legend of the first panel above all panels."""
    handles, labels = drawing.axes[0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)


def loss_curves(grid: Grid, lines: dict[str, Line]) -> Any:
    """Held-out loss by step."""
    drawing, axes = panels(grid, "bits per byte")
    for ax, text, layers in axes:
        for head in text.heads:
            draw(ax, *bits_by_step(lines, text, layers, head), head)
    add_legend(drawing)
    return drawing


def loss_differences(grid: Grid, lines: dict[str, Line]) -> Any:
    """Held-out loss by step, untied minus tied with the same seed."""
    drawing, axes = panels(grid, "untied - tied")
    for ax, text, layers in axes:
        steps, tied = bits_by_step(lines, text, layers, "tied")
        ax.axhline(0, label="tied", lw=1, **STYLES["tied"])
        for head in text.heads:
            if head != "tied":
                draw(ax, steps, bits_by_step(lines, text, layers, head)[1] - tied, head)
    add_legend(drawing)
    return drawing


def direct_paths(grid: Grid, data: Data, out: Path) -> Any:
    """A = W_E W_U among the 12 most common tokens, beside how often each follows each in the text."""
    tokens = np.argsort(-data.corpus.counts, kind="stable")[:DIRECT_PATH_TOKENS]
    names = [quoted(data.tokenizer.token_bytes(token)) for token in tokens.tolist()]
    counts = np.array([[data.corpus.count(first, second) for second in tokens] for first in tokens])
    drawing = figure(9, 5)
    axes = drawing.subplots(2, 1 + len(grid.layers), squeeze=False)
    image = axes[0, 0].imshow(np.log10(1 + counts), cmap="cividis")
    axes[0, 0].set_title("seen in the text,\nlog10 (1 + times)")
    axes[1, 0].axis("off")
    drawing.colorbar(image, ax=axes[1, 0], orientation="horizontal", location="top", shrink=0.9)
    axes[1, 0].text(0.5, 0.4, "A = W_E W_U:\nviolet below 0, orange above", ha="center", va="center")
    for row, head in zip(axes, ("tied", "normal"), strict=True):
        for ax, layers in zip(row[1:], grid.layers, strict=True):
            run = Run(grid.texts[0], layers, head, grid.seeds[0])
            A = raw(tiedgpt.load_model(out / "models" / run.name), tokens)[:, tokens]
            limit = float(np.abs(A).max())
            ax.imshow(A, cmap="PuOr_r", vmin=-limit, vmax=limit)
            ax.set_title(f"{label(head)},\n{depth(layers)}")
    for ax in (axes[0, 0], *axes[:, 1:].flat):
        ax.tick_params(length=0)
        ax.set_xticks(range(len(names)), names, rotation=90, fontsize=7, parse_math=False)
        ax.set_yticks([])
    for ax in (axes[0, 0], *axes[:, 1]):  # the rows of the panels to the right are the same
        ax.set_yticks(range(len(names)), names, fontsize=7, parse_math=False)
    axes[0, 0].set_ylabel("token")
    axes[0, 0].set_xlabel("the next one")
    return drawing


def similarities(grid: Grid, lines: dict[str, Line]) -> Any:
    """Do two matrices agree on which tokens are similar? Bars: untied models; line: two tied models."""
    text = grid.texts[0]
    measures = {
        "in_out": "W_E and\nits W_U",
        "in_tied": "W_E and a\ntied W_E",
        "out_tied": "W_U and a\ntied W_E",
    }
    untied = [head for head in text.heads if head != "tied"]
    drawing = figure(9, 3)
    axes = drawing.subplots(1, len(grid.layers), sharey=True, squeeze=False)[0]
    axes[0].set_ylabel("rank correlation")
    for ax, layers in zip(axes, grid.layers, strict=True):
        for number, head in enumerate(untied):
            seeds = numbers(of_head(lines, text, layers, head), measures)
            mean = seeds.mean(axis=0)
            reach = [mean - seeds.min(axis=0), seeds.max(axis=0) - mean]
            at_x = np.arange(len(measures)) + (number - (len(untied) - 1) / 2) * 0.26
            color = STYLES[head]["color"]
            ax.bar(at_x, mean, 0.24, yerr=reach, color=color, label=label(head), error_kw={"lw": 0.8})
        pairs = numbers(of_head(lines, text, layers, "tied"), ["in_tied"])
        if not np.isnan(pairs).all():
            ax.axhline(np.nanmean(pairs), label="two tied models", lw=1, **STYLES["tied"])
        ax.set_xticks(range(len(measures)), list(measures.values()))
        ax.set_title(depth(layers))
    add_legend(drawing)
    return drawing


def numbers(lines: list[Line], names: Iterable[str]) -> np.ndarray:  # -> [seeds, names]
    """The runs' numbers of these names under "embeddings"; nan if undefined."""
    return np.array([[line["embeddings"][name] for name in names] for line in lines], float)


# The command


def main(arguments: list[str] | None = None, grid: Grid = Grid()) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("corpus", help="a text in UTF-8")
    parser.add_argument("out", metavar="OUT", type=Path, help="a directory, new or of an interrupted run")
    engine = parser.add_mutually_exclusive_group()
    engine.add_argument("--workers", type=int, metavar="N", help="do N runs at a time, in N processes")
    engine.add_argument("--dask", metavar="ADDRESS", help="do the runs on the workers of a Dask scheduler")
    try:
        on_ctrl_c(signal.default_int_handler)
        args = parser.parse_args(arguments)
        data = data_of(os.path.abspath(args.corpus), grid.vocab_size)
        args.out.mkdir(parents=True, exist_ok=True)
        if args.workers or args.dask:
            if not find_spec("distributed"):
                raise tiedgpt.TiedGPTError("--workers and --dask need Dask: pip install -e .[dask]")
            grid = replace(grid, threads=1)
            do = at_once(grid, args.corpus, args.out, args.workers, args.dask)
        else:
            do = in_turn(grid, data, args.out)
        lines = run_grid(grid, data, args.out, do)
        with StagedFiles(args.out) as files:
            files.open("results.md").write(tables(grid, data, lines).encode())
            if find_spec("matplotlib"):
                for name, picture in pictures(grid, data, lines, args.out).items():
                    files.open(name).write(picture)
            else:
                print("no pictures: they need matplotlib, `pip install -e .[plot]`", file=sys.stderr)
        print(f"wrote {args.out / 'results.md'}", file=sys.stderr)
    except KeyboardInterrupt:
        print("\nstopped; the same command continues with the missing runs", file=sys.stderr)
        return 130
    except (tiedgpt.TiedGPTError, OSError) as error:
        print(f"tying_experiment: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    import tying_experiment  # this file again, under a name by which workers can import its classes

    sys.exit(tying_experiment.main())
