"""To tie or not to tie, as an experiment: small models, each head, several depths and seeds, on one text.

    python scripts/tying_experiment.py ../shared/corpus/tinyshakespeare.txt OUT

It takes an hour or more on two cores. Ctrl-C stops it, the same command goes on with the runs that are
not done, and when all are it only writes the tables and the pictures anew. OUT receives

    runs.jsonl       a line for each run that is done: its settings, its losses, what `tiedgpt study` says
    models/NAME      the model of each run (120 MB in all), a checkpoint as any other
    results.md       the tables: mean and standard deviation over the seeds
    *.png            loss curves and differences, direct paths, similarities; need `pip install -e .[plot]`

Everything but the head is the same. Models of one seed and depth start from the same weights and see the
same batches, so that they compare in pairs; there is no dropout, so that what regularises is the tie. The
tokenizer is learned from nine tenths of the text, and the last tenth is held out. Models are trained on the
nine tenths, and again on a tenth of them, where little data is to show who overfits. Held-out loss is looked
at often at first, then ever more seldom; kept and studied is the model that did best.
"""

import argparse
import json
import os
import statistics
import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

import tiedgpt
from tiedgpt.checkpoints import open_checkpoint
from tiedgpt.checkpoints.files import StagedFiles
from tiedgpt.cli import drop_stdout
from tiedgpt.cli.common import quoted, read_text
from tiedgpt.cli.study import look_up
from tiedgpt.cli.train import INITS
from tiedgpt.evaluation import bits_per_nat
from tiedgpt.study.bigrams import bigrams
from tiedgpt.study.corpus import MIN_COUNT, Corpus
from tiedgpt.study.direct_path import direct_path
from tiedgpt.study.paths import PATHS, raw
from tiedgpt.study.similarity import embeddings
from tiedgpt.study.swap import losses
from tiedgpt.training.loop import Settings, Trainer, checksum
from tiedgpt.training.merges import learn_tokenizer

Line = dict[str, Any]  # what runs.jsonl says of a run

HEAD_INITS = {"tied": None, **INITS}  # ours -> GPT2.untie's name of how W_U starts
EARLY = (0.05, 0.1, 0.2)  # of a run's steps: looks at the held-out text that have a column in the table
LOOKS = (0.01, 0.02, 0.03, 0.075, 0.15, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, *EARLY)


# The grid


@dataclass(frozen=True)
class Text:
    """What is trained on: the first of so many equal parts of the text that is not held out."""

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
        """About the milliseconds that it takes on two cores, for the progress bar."""
        return self.text.steps * (20 + 25 * self.layers)


@dataclass(frozen=True)
class Grid:
    """All that is to be trained."""

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

    def runs(self) -> Iterator[Run]:
        """Each text's and depth's tied models first, for the others are compared with them."""
        for text in self.texts:
            for layers in self.layers:
                for head in text.heads:
                    for seed in self.seeds:
                        yield Run(text, layers, head, seed)

    def settings(self, run: Run) -> Settings:
        steps = run.text.steps  # the trainer itself looks at held-out text at the beginning and the end only
        return Settings(
            steps=steps, batch=self.batch, context=self.context, eval_every=steps, seed=run.seed, threads=2
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
        """The tied model that a run's embeddings are compared with: the one of the seed before.

        Of the same seed it would have started as the same W_E, and part of the likeness would be that. The
        first seed's partner is the last seed's, which its tied model comes too early for.
        """
        number = self.seeds.index(run.seed)
        if run.head == "tied" and number == 0:
            return None
        return Run(run.text, run.layers, "tied", self.seeds[number - 1])


# One run


@dataclass(frozen=True)
class Data:
    """A text in tokens, the last tenth held out, and the bigrams of the rest."""

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
        """A loss in nats per token of the held-out text, times this, is bits per byte."""
        return bits_per_nat(self.tokenizer, self.held_out[1:])

    def part(self, text: Text) -> np.ndarray:
        return self.tokens[: len(self.tokens) // text.parts]


def settings_of(run: Run, grid: Grid, data: Data) -> Line:
    """All that decides what comes of a run: one that was done with other settings is done again."""
    config = grid.config(run.layers, data.tokenizer)
    sizes = {name: getattr(config, name) for name in ("vocab_size", "n_embd", "n_head")}
    texts = [checksum(part) for part in (data.part(run.text), data.tokens, data.held_out)]
    partner = grid.partner(run)
    return {**sizes, **asdict(grid.settings(run)), "texts": texts, "partner": partner and partner.name}


def do(run: Run, grid: Grid, data: Data, out: Path, progress: Callable[[float], Any]) -> Line:
    """Train, study and save one model; what there is to say of it."""
    start = tiedgpt.GPT2.random(grid.config(run.layers, data.tokenizer), run.seed)
    if init := HEAD_INITS[run.head]:
        start = start.untie(init, run.seed)
    trainer = Trainer(start, data.part(run.text), data.held_out, grid.settings(run))
    curve, seconds = train(trainer, data.bits, lambda: progress(run.work / run.text.steps))
    partner = grid.partner(run)
    tied_W_E = tiedgpt.load_model(out / "models" / partner.name).W_E if partner else None
    model = trainer.model
    line = {
        "name": run.name,
        "text": run.text.name,
        "layers": run.layers,
        "head": run.head,
        "seed": run.seed,
        "settings": settings_of(run, grid, data),
        "parameters": tiedgpt.count_parameters(model.config)[model.config.head]["total"],
        "seconds_per_step": seconds,
        "best": min(curve, key=lambda look: look["held_out"]),
        "curve": curve,
        "direct_path": direct_path(model, data.corpus),
        "bigrams": bigrams(model, data.corpus),
        "embeddings": embeddings(model, data.corpus, tied_W_E),
        "loss": losses(model, data.held_out),
    }
    tiedgpt.save_model(model, data.tokenizer, out / "models" / run.name)
    return line


def train(trainer: Trainer, bits: float, progress: Callable[[], Any]) -> tuple[list[Line], float]:
    """Train to the end and leave the trainer's model as it was at its best.

    Returns the looks at held-out text, {"step", "train", "held_out", "bits_per_byte"} each, where train is
    the mean loss of the batches since the look before, and the median step's seconds.
    """
    steps = {step_at(trainer.settings.steps, share) for share in LOOKS}
    curve: list[Line] = []
    since: list[float] = []
    seconds = []
    best = trainer.flat.copy()
    for record in trainer.run():
        step = record["step"]
        if step > 0:
            since.append(record["loss"])
            seconds.append(trainer.settings.batch * trainer.settings.context / record["tokens_per_s"])
            progress()
        if "val_loss" not in record and step not in steps:
            continue
        loss = record["val_loss"] if "val_loss" in record else trainer.evaluate()
        batches = statistics.fmean(since) if since else None
        curve.append({"step": step, "train": batches, "held_out": loss, "bits_per_byte": loss * bits})
        since = []
        if trainer.is_best:
            best[:] = trainer.flat
    trainer.flat[:] = best
    return curve, statistics.median(seconds)


def step_at(steps: int, share: float) -> int:
    return max(1, round(steps * share))


# All runs


def run_grid(grid: Grid, data: Data, out: Path) -> dict[str, Line]:
    """Do what is not done yet; the line of each run of the grid by its name."""
    for text in grid.texts:  # all that is too small is found out before an hour of training
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
            f"{len(again)} of the runs in {out} had another text or other settings, or lost their model, and "
            "are done again",
            file=sys.stderr,
        )
    form = "{desc}{percentage:3.0f} % |{bar}| {elapsed}, {remaining} left"
    with tqdm(total=sum(run.work for run in left), bar_format=form, disable=not left) as bar:
        for run in left:
            bar.set_description(f"run {len(done) + 1} of {len(wanted)}, {run.name}")
            line = do(run, grid, data, out, bar.update)
            with open(path, "a", encoding="utf-8") as file:  # whole when its line end is there
                file.write(json.dumps(line) + "\n")
            done[run.name] = line
            best = line["best"]
            bar.write(
                f"{run.name}: {best['bits_per_byte']:.3f} bits per byte held out, after step {best['step']}",
                file=sys.stderr,
            )
    return {name: done[name] for name in wanted}


def is_checkpoint(path: Path) -> bool:
    """Whether a model lies there whole."""
    try:
        open_checkpoint(path)
        return True
    except tiedgpt.TiedGPTError:
        return False


def read_lines(path: Path) -> dict[str, Line]:
    """What runs.jsonl holds, by name; the last of a name counts. A line without its end is cut off."""
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
                f"{path}, line {number}: expected a run of this script; remove the line, and its run is done "
                "again"
            ) from error
    return lines


# The tables

Column = tuple[str, Callable[[Line], Any], str]  # its title, its number in a run's line, its form


def at(name: str, place: str, form: str = "{:.3f}") -> Column:
    """The column of a number by its place in the line."""
    return name, lambda line: look_up(line, place), form


def bits_after(share: float, steps: int) -> Column:
    """Held-out bits per byte after a share of the steps."""
    step = step_at(steps, share)
    return (
        f"after {step}",
        lambda line: next(look["bits_per_byte"] for look in line["curve"] if look["step"] == step),
        "{:.3f}",
    )


def tables(grid: Grid, data: Data, lines: dict[str, Line]) -> str:
    """results.md."""
    unigram = look_up(next(iter(lines.values())), "bigrams.unigram")
    itself = data.corpus.self_prediction(data.corpus.frequent())
    parts = [
        "# To tie or not to tie: results",
        f"{len(lines)} models of d {grid.n_embd}, {grid.n_head} heads, context {grid.context}, vocabulary "
        f"{data.tokenizer.vocab_size}, batch {grid.batch}, no dropout. Mean ± standard deviation over the "
        f"seeds {', '.join(map(str, grid.seeds))}. Untied heads by what W_U starts as. Losses are of "
        f"{data.held_out.size:,} held-out tokens, in bits per byte where not said otherwise. What is studied "
        "is the model at its best step.",
    ]
    for text in grid.texts:
        runs = [(run, lines[run.name]) for run in grid.runs() if run.text == text]
        bits = [
            *(bits_after(share, text.steps) for share in EARLY),
            at("best", "best.bits_per_byte"),
            ("last", lambda line: line["curve"][-1]["bits_per_byte"], "{:.3f}"),
        ]
        parts += [
            f"## Trained on {data.part(text).size:,} tokens, {text.steps:,} steps",
            "Held-out loss after some steps, at its best and at the end; the best step; the time of a step.",
            table(
                runs,
                [
                    at("parameters", "parameters", "{:,.0f}"),
                    *bits,
                    at("best step", "best.step", "{:.0f}"),
                    ("ms per step", lambda line: 1000 * line["seconds_per_step"], "{:.1f}"),
                ],
            ),
            "The same losses, untied minus tied of the same seed and batches: below 0, untied is better.",
            table(
                [(run, line) for run, line in runs if run.head != "tied"],
                [(title, minus_tied(number, lines), "{:+.3f}") for title, number, _ in bits],
            ),
            "The direct path A = W_E W_U: its asymmetry (0 symmetric, 1.414 unrelated), the share of tokens "
            "with themselves as likeliest successor; by path, KL in nats from the bigrams of all "
            f"{data.tokens.size:,} tokens, and the share of tokens whose likeliest successor is the "
            f"commonest; all over tokens there {MIN_COUNT} times. (raw lacks ln_f: the size of its "
            "logits, and so its KL, means nothing.)"
            + (f" In the text: itself {itself:.3f}." if itself is not None else "")
            + (f" By the unigram: kl {unigram['kl']:.3f}, top1 {unigram['top1']:.3f}." if unigram else ""),
            table(
                runs,
                [
                    at("asymmetry", "direct_path.asymmetry"),
                    at("itself", "direct_path.self_prediction_frequent"),
                    *(at(f"kl {path}", f"bigrams.{path}.kl") for path in PATHS),
                    *(at(f"top1 {path}", f"bigrams.{path}.top1") for path in PATHS),
                ],
            ),
            "Which tokens are alike, as rank correlations: by W_E with by W_U, each with by the tied model's "
            "matrix of the same depth and the seed before (where the head is tied: how alike two tied models "
            "are); held-out nats per token with the model's own head, and under the tied one.",
            table(
                runs,
                [
                    *(at(name, f"embeddings.{name}") for name in ("in_out", "in_tied", "out_tied")),
                    *(at(f"loss.{name}", f"loss.{name}") for name in ("own", "swapped")),
                ],
            ),
        ]
    return "\n\n".join(parts) + "\n"


def minus_tied(number: Callable[[Line], Any], lines: dict[str, Line]) -> Callable[[Line], Any]:
    """What an untied run's number has more than that of the tied run of the same seed."""
    return lambda line: number(line) - number(lines[f"{line['text']}-{line['layers']}-tied-{line['seed']}"])


def table(runs: list[tuple[Run, Line]], columns: list[Column]) -> str:
    """A row for each depth and head, the seeds together."""
    groups: dict[tuple[int, str], list[Line]] = {}
    for run, line in runs:
        groups.setdefault((run.layers, run.head), []).append(line)
    rows = [["layers", "head", *(title for title, _, _ in columns)], ["---"] * (2 + len(columns))]
    for (layers, head), lines in groups.items():
        cells = (spread([number(line) for line in lines], form) for _, number, form in columns)
        rows.append([str(layers), label(head), *cells])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def spread(numbers: list[float | None], form: str) -> str:
    """Mean and standard deviation of those that there are; the mean alone where they are all the same.

    >>> spread([1.0, 2.0, None], "{:.1f}"), spread([3, 3], "{:.0f}"), spread([None], "{:.1f}")
    ('1.5 ± 0.7', '3', '-')
    """
    there = [number for number in numbers if number is not None]
    if not there:
        return "-"
    mean = form.format(statistics.fmean(there))
    return mean if len(set(there)) == 1 else f"{mean} ± {form.format(statistics.stdev(there)).lstrip('+')}"


def label(head: str) -> str:
    return head if head == "tied" else f"untied, {head}"


# The pictures

# Okabe and Ito's colours, which the colour-blind can tell apart; the dashes do it in grey
STYLES: dict[str, dict[str, Any]] = {
    "tied": {"color": "#000000", "linestyle": "-"},
    "normal": {"color": "#D55E00", "linestyle": "--"},
    "copy": {"color": "#0072B2", "linestyle": "-."},
    "zeros": {"color": "#009E73", "linestyle": ":"},
}
DOZEN = 12


def pictures(grid: Grid, data: Data, lines: dict[str, Line], out: Path) -> dict[str, bytes]:
    """The pictures, by the names of their files. Needs matplotlib."""
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
    """As a file of 256 colours, a third of the size."""
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
    """The steps after the first, and the held-out bits per byte there, a row for each seed."""
    curves = [line["curve"][1:] for line in of_head(lines, text, layers, head)]
    bits = [[look["bits_per_byte"] for look in curve] for curve in curves]
    return [look["step"] for look in curves[0]], np.array(bits)


def panels(grid: Grid, title: str) -> tuple[Any, Iterator[tuple[Any, Text, int]]]:
    """A figure with a row for each text, a column for each depth, and the panels one by one."""
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
    """The seeds' mean as a line, and from their lowest to their highest as a band."""
    ax.plot(steps, bits.mean(axis=0), label=label(head), **STYLES[head])
    color = STYLES[head]["color"]
    ax.fill_between(steps, bits.min(axis=0), bits.max(axis=0), color=color, alpha=0.15, lw=0)


def add_legend(drawing: Any) -> None:
    """Of the first panel, above them all."""
    handles, labels = drawing.axes[0].get_legend_handles_labels()
    drawing.legend(handles, labels, loc="outside upper center", ncols=len(labels), frameon=False)


def loss_curves(grid: Grid, lines: dict[str, Line]) -> Any:
    """Held-out loss against the step."""
    drawing, axes = panels(grid, "bits per byte")
    for ax, text, layers in axes:
        for head in text.heads:
            draw(ax, *bits_by_step(lines, text, layers, head), head)
    add_legend(drawing)
    return drawing


def loss_differences(grid: Grid, lines: dict[str, Line]) -> Any:
    """What each untied head loses more than the tied one of the same seed."""
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
    """A = W_E W_U among the text's dozen commonest tokens, beside how often they follow each other."""
    tokens = np.argsort(-data.corpus.counts, kind="stable")[:DOZEN]
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
    """Which matrices hold the same tokens for alike: bars of the untied heads; a line, of two tied models."""
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
    """Of the runs' embeddings; nan where one is not defined."""
    return np.array([[line["embeddings"][name] for name in names] for line in lines], float)


# The command


def main(arguments: list[str] | None = None, grid: Grid = Grid()) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("corpus", help="a text in UTF-8")
    parser.add_argument("out", metavar="OUT", type=Path, help="a directory, new or of a run to go on with")
    args = parser.parse_args(arguments)
    try:
        data = Data.of(read_text(args.corpus), grid.vocab_size)
        args.out.mkdir(parents=True, exist_ok=True)
        lines = run_grid(grid, data, args.out)
        with StagedFiles(args.out) as files:
            files.open("results.md").write(tables(grid, data, lines).encode())
            if find_spec("matplotlib"):
                for name, picture in pictures(grid, data, lines, args.out).items():
                    files.open(name).write(picture)
            else:
                print("no pictures: they need matplotlib, `pip install -e .[plot]`", file=sys.stderr)
        print(args.out / "results.md", flush=True)
    except BrokenPipeError:  # nobody reads where the table is; it is there
        drop_stdout()
        return 141
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on with the runs that are not done", file=sys.stderr)
        return 130
    except (tiedgpt.TiedGPTError, OSError) as error:
        print(f"tying_experiment: error: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
