"""Train a model, tied or untied.

Train a GPT-2 on a text, from scratch or from a checkpoint. The last tenth of the text is held out.
DIR gets a checkpoint of the step with the lowest loss on it, the losses in log.jsonl, and the file
that --resume continues from. Ctrl-C saves and stops. With --head untied, W_U of a new model starts
random, and W_U of a tied checkpoint as a copy of wte.T.

examples:
  tiedgpt train story.txt --out my-model
  tiedgpt train story.txt --out my-model --resume
  tiedgpt train story.txt --out my-untied --head untied --n-layer 2 --n-embd 64 --steps 500
  tiedgpt train story.txt --out my-gpt2 --from gpt2 --steps 100
  tiedgpt train story.txt --out my-head --from gpt2 --only head
"""

import argparse
import json
import os
import shutil
import signal
import sys
import time
import warnings
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from ..checkpoints import open_model
from ..checkpoints.checkpoint import Checkpoint
from ..checkpoints.locks import LOCK
from ..checkpoints.publishing import lock_directory
from ..checkpoints.saving import copied_files, tokenizer_files
from ..checkpoints.vocabulary import read_tokenizer
from ..errors import ABOVE_0, RATE, ArgumentError, Range
from ..evaluation import bits_per_nat
from ..gpt2.config import Config
from ..gpt2.model import GPT2
from ..gpt2.parameters import parameter_count
from ..gpt2.tokenizer import Tokenizer
from ..training.loop import Trainer
from ..training.saving import train_and_save
from ..training.settings import MAX_COUNT, Settings
from ..training.start import SHAPE, new_model, with_dropout
from ..training.state import STATE
from . import models, options
from .messages import note, print_line
from .output import printable
from .texts import encode_text, read_text

# The settings of a training that flags give, and what is the default of some with --from
SETTINGS = ("context", "steps", "batch", "lr", "seed", "eval_every")
FROM_CHECKPOINT = {"steps": 200, "batch": 4, "lr": 1e-4}
MAX_CONTEXT = 256  # the default of --context with --from is this or the checkpoint's context
# What a training is. With --resume these flags may be repeated, and only steps may differ.
FLAGS = (*SHAPE, *SETTINGS, "source", "only", "head", "dropout")

positive = options.number(Range(1, MAX_COUNT))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_beginning(parser)
    add_shape(parser)
    add_settings(parser)
    options.add_allow_special(parser)
    options.add_json(parser)


def add_beginning(parser: argparse.ArgumentParser) -> None:
    """What is trained, and where the result goes."""
    parser.add_argument(
        "corpus",
        metavar="CORPUS",
        nargs="?",
        help=f"a text in UTF-8; {options.STDIN_TOO}",
    )
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=Path,
        required=True,
        help="a new directory for the checkpoint",
    )
    parser.add_argument(
        "--resume",
        action="store_true",
        help="continue the training in DIR, with the same result as without the stop",
    )
    parser.add_argument(
        "--from",
        metavar="MODEL",
        dest="source",
        help="train this model (default: a new one)",
    )
    parser.add_argument(
        "--only",
        choices=["head"],
        help="with --from, train W_U and keep all other parameters",
    )


def add_shape(parser: argparse.ArgumentParser) -> None:
    """The sizes of a new model."""
    parser.add_argument(
        "--n-layer",
        metavar="L",
        type=options.number(Range(0, 1_000)),
        help=f"layers of a new model (default: {SHAPE['n_layer']})",
    )
    parser.add_argument(
        "--n-head",
        metavar="H",
        type=positive,
        help=f"attention heads of a new model (default: {SHAPE['n_head']})",
    )
    parser.add_argument(
        "--n-embd",
        metavar="D",
        type=options.number(Range(1, MAX_COUNT // 4)),  # n_inner is 4 D
        help=f"width of a new model (default: {SHAPE['n_embd']})",
    )
    parser.add_argument(
        "--vocab-size",
        metavar="V",
        type=options.number(Range(256, MAX_COUNT)),
        help="tokens of a new model; 257: one for each byte and <|endoftext|> "
        f"(default: {SHAPE['vocab_size']})",
    )


def add_settings(parser: argparse.ArgumentParser) -> None:
    """How the model is trained."""
    parser.add_argument(
        "--context",
        metavar="T",
        type=options.number(Range(2, MAX_COUNT)),
        help="tokens in a sequence, and the context of a new model "
        f"(default: {Settings.context}; with --from, {MAX_CONTEXT} or less)",
    )
    parser.add_argument(
        "--head",
        choices=["tied", "untied"],
        help="compute logits with wte.T or W_U (default: tied; with --from, as the checkpoint "
        "does)",
    )
    parser.add_argument(
        "--steps",
        metavar="N",
        type=positive,
        help="steps in all, also with --resume "
        f"(default: {Settings.steps}; with --from, {FROM_CHECKPOINT['steps']}), for the learning "
        "rate too",
    )
    parser.add_argument(
        "--batch",
        metavar="B",
        type=positive,
        help="sequences in a step "
        f"(default: {Settings.batch}; with --from, {FROM_CHECKPOINT['batch']})",
    )
    parser.add_argument(
        "--lr",
        metavar="LR",
        type=options.number(ABOVE_0),
        help=f"peak learning rate (default: {Settings.lr}; with --from, {FROM_CHECKPOINT['lr']})",
    )
    parser.add_argument(
        "--dropout",
        metavar="P",
        type=options.number(RATE),
        help="dropout of embedding and layers' outputs "
        f"(default: {Config.resid_pdrop}; with --from, as the checkpoint says)",
    )
    parser.add_argument(
        "--seed",
        metavar="S",
        type=options.number(Range(0, MAX_COUNT)),
        help=f"seed of weights, batches and dropout (default: {Settings.seed})",
    )
    parser.add_argument(
        "--eval-every",
        metavar="N",
        type=positive,
        help="steps between evaluations, which also save (default: a tenth of all)",
    )


def run(args: argparse.Namespace) -> None:
    flags = {name: getattr(args, name) for name in FLAGS if getattr(args, name) is not None}
    if not args.resume:
        check_flags(flags)
    with lock_directory(args.out):
        check_directory(args.out, args.resume)
        text = read_text(args.corpus)
        if args.resume:
            tokenizer = read_tokenizer(args.out)
            trainer = resumed_trainer(args, flags, tokenizer, text)
            others: dict[str, bytes] = {}  # the tokenizer's files are in the directory already
        else:
            trainer, tokenizer, others = new_trainer(args, flags, text)
        note_limits(trainer, tokenizer.vocab_size, flags)

        # A loss in nats per token times this factor is in bits per byte. The first token of the
        # held-out text is not predicted, so its bytes do not count.
        factor = bits_per_nat(tokenizer, trainer.held_out[1:])
        start = time.monotonic()
        with StopSignals() as signals:
            train(trainer, others, args.out, factor, signals)
        seconds = time.monotonic() - start
        if args.json:
            print(json.dumps(report(trainer, args.out, factor, seconds)))
        else:
            print_result(trainer, args.out, factor)
        note_without_gain(trainer, args.out)
        if signals:
            note(f"stopped after step {trainer.step}; continue with --resume")
            end_by_signal(signals[0])


def note_limits(trainer: Trainer, vocab_size: int, flags: dict[str, Any]) -> None:
    """Print a note if the vocabulary is smaller than --vocab-size, or if no step remains."""
    if vocab_size < flags.get("vocab_size", 0):
        note(f"only {vocab_size} tokens can be learned from the text: the vocabulary has no more")
    if trainer.step == trainer.settings.steps:
        note(f"all {trainer.step:,} steps are done; give a larger --steps to train more")


def end_by_signal(number: int) -> NoReturn:
    """End the command as the signal would have ended it without a training."""
    if number == signal.SIGINT:
        raise KeyboardInterrupt
    raise SystemExit(128 + number)


def flag(name: str) -> str:
    """The flag whose value has this name."""
    if name == "source":
        return "--from"
    return f"--{name.replace('_', '-')}"


def check_flags(flags: dict[str, Any]) -> None:
    """Check that the flags of a new training fit each other. Raises ArgumentError."""
    if "source" in flags:
        for name in SHAPE:
            if name in flags:
                raise ArgumentError(
                    f"{flag(name)} cannot be given with --from: the checkpoint decides it"
                )
    if "only" in flags:
        if "source" not in flags:
            raise ArgumentError(
                "--only head needs --from: the rest of the model must be trained already"
            )
        if flags.get("head") == "tied":
            raise ArgumentError(
                "--only head is for an untied model: a tied one has no W_U of its own"
            )
        if "dropout" in flags:
            raise ArgumentError("--dropout has no effect with --only head: the rest is not trained")
    n_embd = flags.get("n_embd", SHAPE["n_embd"])
    n_head = flags.get("n_head", SHAPE["n_head"])
    if n_embd % n_head != 0:
        raise ArgumentError(f"--n-embd must be a multiple of --n-head, got {n_embd} and {n_head}")


def check_directory(out: Path, resume: bool) -> None:
    """Check that DIR is empty or, with --resume, holds a training. Raises ArgumentError."""
    has_training = (out / STATE).is_file()
    if resume:
        if not has_training:
            raise ArgumentError(f"--resume: {out} holds no training to continue")
        return
    if has_training:
        raise ArgumentError(f"{out} holds a training already: add --resume to continue it")
    if any(path.name != LOCK for path in out.iterdir()):
        raise ArgumentError(f"--out: {out} is not empty; choose a new directory")


def new_trainer(
    args: argparse.Namespace, flags: dict[str, Any], text: str
) -> tuple[Trainer, Tokenizer, dict[str, bytes]]:
    """A training that begins, its tokenizer, and the files that are saved beside the model."""
    given_settings = {name: flags[name] for name in SETTINGS if name in flags}
    if "source" in flags:
        opened = open_model(flags["source"], note)
        tokenizer = opened.tokenizer
        model = checkpoint_to_train(opened.checkpoint, flags)
        others = copied_files(opened.checkpoint.path, note)
        defaults = {**FROM_CHECKPOINT, "context": min(MAX_CONTEXT, model.config.n_ctx)}
        settings = Settings(**(defaults | given_settings))  # a flag replaces a default
    else:
        settings = Settings(**given_settings)
        shape = {name: flags.get(name, default) for name, default in SHAPE.items()}
        learned, _ = split(text)  # the tokenizer too learns from this part alone
        head = flags.get("head", "tied")
        model, tokenizer = new_model(learned, shape, settings, head)
        others = tokenizer_files(tokenizer, args.out)
    if "dropout" in flags:
        model = with_dropout(model, flags["dropout"])

    tokens, held_out = encode_parts(tokenizer, text, args.allow_special)
    trainer = Trainer(model, tokens, held_out, settings, flags.get("only"))
    trainer.command_flags = flags  # saved with the training, so that --resume can compare them
    return trainer, tokenizer, others


def checkpoint_to_train(checkpoint: Checkpoint, flags: dict[str, Any]) -> GPT2:
    """The model of --from with the head to train."""
    head = flags.get("head")
    if head is None and "only" in flags:
        head = "untied"  # --only trains W_U alone, so there must be one
    return models.load(checkpoint.path, head)


def resumed_trainer(
    args: argparse.Namespace, flags: dict[str, Any], tokenizer: Tokenizer, text: str
) -> Trainer:
    """The training in DIR. Raises ArgumentError if the flags are not those that it began with."""
    tokens, held_out = encode_parts(tokenizer, text, args.allow_special)
    trainer = Trainer.resume(args.out, tokens, held_out, flags.get("steps"))
    former = former_values(trainer)
    for name, value in flags.items():
        if name == "steps" or former.get(name) == value:  # a training may be made longer
            continue
        before = "was not given"
        if name in former:
            before = f"was {former[name]}"
        raise ArgumentError(
            f"{flag(name)} cannot change with --resume: it {before}, now it is {value}"
        )
    return trainer


def former_values(trainer: Trainer) -> dict[str, Any]:
    """The values with which a training began, by flag: those given, and the defaults of others."""
    config = trainer.model.config
    values = asdict(trainer.settings)
    for name in SHAPE:
        values[name] = getattr(config, name)
    values["head"] = config.head
    values["dropout"] = config.resid_pdrop
    # The vocabulary may be smaller than --vocab-size, so the flags replace the model's values.
    return values | trainer.command_flags


def split(text: str) -> tuple[str, str]:
    """The text to train on, nine tenths of all characters, and the rest, which is held out."""
    end = len(text) * 9 // 10
    return text[:end], text[end:]


def encode_parts(
    tokenizer: Tokenizer, text: str, allow_special: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The token ids of the text to train on, and those of the held-out text."""
    part, held_out = split(text)
    ids = encode_text(tokenizer, part, allow_special)
    held_out_ids = encode_text(tokenizer, held_out, allow_special)
    return np.array(ids, np.int64), np.array(held_out_ids, np.int64)


class StopSignals:
    """Ctrl-C and SIGTERM during a training. A second one ends the process.

    `with` gives a list to which the first one is appended.
    """

    def __init__(self) -> None:
        self.received: list[int] = []
        self.former_handlers: dict[int, Any] = {}

    def __enter__(self) -> list[int]:
        for number in (signal.SIGINT, signal.SIGTERM):
            former = signal.getsignal(number)
            if former != signal.SIG_IGN:  # it is ignored in a script's `tiedgpt ... &`
                self.former_handlers[number] = former
                signal.signal(number, self.receive)
        return self.received

    def __exit__(self, *_: object) -> None:
        self.restore()

    def receive(self, number: int, _: object) -> None:
        """Note the signal. The next one has the handler from before the training."""
        self.received.append(number)
        self.restore()
        # Not by print: Python refuses a print in the middle of another one.
        line = b"\ntiedgpt: note: stopping after this step; again to stop at once\n"
        with suppress(OSError):  # a full disk behind stderr
            os.write(sys.stderr.fileno(), line)

    def restore(self) -> None:
        """Set the handlers from before the training, each once."""
        while self.former_handlers:
            number, former = self.former_handlers.popitem()
            signal.signal(number, former)


def train(
    trainer: Trainer, others: dict[str, bytes], out: Path, factor: float, signals: list[int]
) -> None:
    """Train to the end or to a signal, with a progress bar and a line for each evaluation.

    others: the files that are saved beside the model. factor: from nats per token to bits per byte.
    signals: the list to which StopSignals appends.
    """
    from tqdm import tqdm  # importing it takes longer than most commands wait

    with (
        warnings.catch_warnings(),
        tqdm(
            total=trainer.settings.steps,
            initial=trainer.step,
            unit="step",
            file=sys.stderr,
            disable=None,  # no bar in a file, where the lines of the evaluations are enough
        ) as bar,
    ):
        # NumPy warns before a loss becomes infinite or nan; the trainer then raises an error.
        warnings.simplefilter("ignore", RuntimeWarning)
        display = Display(trainer, factor, bar)
        for record in train_and_save(
            trainer,
            others,
            out,
            should_stop=lambda: len(signals) > 0,
            progress=display.show_held_out,
        ):
            display.show(record)


class Display:
    """What is shown of a training while it runs.

    factor: from nats per token to bits per byte.
    """

    def __init__(self, trainer: Trainer, factor: float, bar: Any) -> None:
        self.trainer = trainer
        self.factor = factor
        self.bar = bar
        self.held_out_read = 0  # tokens of the evaluation that is running
        self.last_step = ""  # the loss and the speed of the newest step

    def show_held_out(self, tokens: int) -> None:
        """Show how far an evaluation is: a large model takes minutes for the held-out text."""
        length = len(self.trainer.held_out)
        if self.held_out_read >= length:  # the last evaluation is complete: a new one begins
            self.held_out_read = 0
        self.held_out_read += tokens
        self.bar.set_postfix_str(f"held out: {self.held_out_read / length:.0%}")

    def show(self, record: dict[str, Any]) -> None:
        """Show the record of a step, and a line for its evaluation if it has one."""
        from tqdm import tqdm  # importing it takes longer than most commands wait

        if "loss" in record:  # step 0 has none
            self.last_step = f"loss {record['loss']:.3f}, {record['tokens_per_s']:,.0f} tokens/s"
            self.bar.update()
        self.bar.set_postfix_str(self.last_step, refresh=False)
        if "val_loss" in record:
            with tqdm.external_write_mode(file=sys.stderr):  # the bar moves below the line
                print_line(self.evaluation_line(record["step"], record["val_loss"]))

    def evaluation_line(self, step: int, loss: float) -> str:
        """The losses of a step that was evaluated."""
        in_training = ""
        # The newest evaluation also has the mean loss of the steps since the one before it. The
        # evaluation before step 1 has none.
        mean_loss = self.trainer.evaluations[-1].get("loss")
        if mean_loss is not None:
            in_training = f"loss {mean_loss:.4f}, "
        verdict = ""
        best = self.trainer.best
        if best is not None and best.step < step:
            verdict = " (not the best)"
        return (
            f"step {step:>6,}: {in_training}held out {loss:.4f} nats per token, "
            f"{loss * self.factor:.3f} bits per byte{verdict}"
        )


def note_without_gain(trainer: Trainer, out: Path) -> None:
    """Print a note if a training has made no model better than the one before its first step."""
    was_evaluated_again = len(trainer.evaluations) > 1
    if was_evaluated_again and trainer.best is not None and trainer.best.step == 0:
        note(
            f"training has not lowered the held-out loss: {out} holds the model before step 1; "
            f"try another --lr than {trainer.settings.lr:g}"
        )


def report(trainer: Trainer, out: Path, factor: float, seconds: float) -> dict[str, Any]:
    """What --json prints of a training."""
    assert trainer.best is not None  # it is evaluated before the first step
    loss, step = trainer.best
    config = trainer.model.config
    return {
        "model": str(out),
        "head": config.head,
        "parameters": parameter_count(config).total,
        "steps": trainer.step,
        "best_step": step,
        "val_loss": loss,
        "val_bits_per_byte": loss * factor,
        "seconds": round(seconds, 1),
        "evaluations": trainer.evaluations,
    }


def print_result(trainer: Trainer, out: Path, factor: float) -> None:
    """Print the curve of the losses, what the model is, and its loss.

    factor: from nats per token to bits per byte.
    """
    assert trainer.best is not None  # it is evaluated before the first step
    loss, step = trainer.best
    config = trainer.model.config
    count = parameter_count(config).total
    if len(trainer.evaluations) > 1:
        print(loss_curve(trainer.evaluations))
    print(printable(f"{out}: {config.head}, {count:,} parameters, {config.vocab_size:,} tokens"))
    print(
        f"held out: {loss:.4f} nats per token, {loss * factor:.3f} bits per byte, "
        f"after step {step:,}"
    )


def loss_curve(evaluations: Sequence[dict[str, float]], height: int = 8) -> str:
    """The losses against the steps, as text: o held out, . in training.

    evaluations: dicts with "step", and "val_loss" and "loss" if they were measured, in the order of
    the steps. The last one must be after step 0. height: the rows of the curve.
    """
    points = points_of(evaluations, "loss", ".") + points_of(evaluations, "val_loss", "o")
    losses = [loss for _, loss, _ in points]
    high = max(losses)
    low = min(losses)
    last_step = evaluations[-1]["step"]
    # A label and the axis take 9 columns, and one stays free. The curve has 20 to 60 columns.
    room = shutil.get_terminal_size().columns - 10
    width = min(60, max(20, room))

    # The highest loss is in the first row, the lowest in the last one. The last step is in the last
    # column. Where two points meet, the later one of `points` is shown.
    grid = [[" "] * width for _ in range(height)]
    for step, loss, mark in points:
        row = 0
        if high > low:
            row = round((high - loss) / (high - low) * (height - 1))
        column = round(step / last_step * (width - 1))
        grid[row][column] = mark

    labels = [""] * height
    labels[0] = f"{high:.2f}"
    labels[-1] = f"{low:.2f}"
    lines = []
    for label, marks in zip(labels, grid, strict=True):
        lines.append(f"{label:>7} |{''.join(marks).rstrip()}")
    # Below the curve: the other axis, its first and last step, and what the marks mean.
    margin = " " * 8  # as wide as a label and the space after it
    last_label = f"{last_step:,}".rjust(width - 1)  # it ends below the last column
    lines.append(f"{margin}+{'-' * width}")
    lines.append(f"{margin} 0{last_label}")
    lines.append(f"{margin} o held out, . training: nats per token, by step")
    lines.append("")
    return "\n".join(lines)


def points_of(
    evaluations: Sequence[dict[str, float]], name: str, mark: str
) -> list[tuple[float, float, str]]:
    """The step, the loss called `name` and the mark of each evaluation that has this loss."""
    points = []
    for evaluation in evaluations:
        if name in evaluation:
            points.append((evaluation["step"], evaluation[name], mark))
    return points
