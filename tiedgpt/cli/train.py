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
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoints.locks import LOCK
from ..checkpoints.publishing import lock_directory
from ..checkpoints.vocabulary import read_tokenizer
from ..errors import ABOVE_0, RATE, ArgumentError, Range, TiedGPTError
from ..gpt2.config import Config
from ..gpt2.model import GPT2
from ..gpt2.parameters import parameter_count
from ..gpt2.tokenizer import Tokenizer
from ..inference.evaluation import bits_per_nat
from ..training.loop import MAX_COUNT, STATE, Settings, Trainer
from ..training.merges import learn_tokenizer
from . import common
from .terminal import note, printable, read_text

SHAPE = {"n_layer": 4, "n_head": 4, "n_embd": 128, "vocab_size": 1024}  # of a new model
SETTINGS = ("context", "steps", "batch", "lr", "seed", "eval_every")
FROM_CHECKPOINT = {"steps": 200, "batch": 4, "lr": 1e-4}
# What a training is. With --resume these flags may be repeated, and only steps may differ.
FLAGS = (*SHAPE, *SETTINGS, "source", "only", "head", "dropout")


def add_arguments(parser: common.Parser) -> None:
    add, number = parser.add, common.number
    positive = number(Range(1, MAX_COUNT))
    add("[CORPUS]", f"a text in UTF-8; {common.STDIN_TOO}")
    add("--out DIR", "a new directory for the checkpoint", Path, required=True)
    add("--resume", "continue the training in DIR, with the same result as without the stop")
    add("--from MODEL", "train this model (default: a new one)", dest="source")
    add("--only {head}", "with --from, train W_U and keep all other parameters")
    add("--n-layer L", "layers of a new model (default: 4)", number(Range(0, 1_000)))
    add("--n-head H", "attention heads of a new model (default: 4)", positive)
    width = number(Range(1, MAX_COUNT // 4))  # n_inner is 4 D
    add("--n-embd D", "width of a new model (default: 128)", width)
    size = "tokens of a new model; 257: one for each byte and <|endoftext|> (default: 1024)"
    add("--vocab-size V", size, number(Range(256, MAX_COUNT)))
    context = "tokens in a sequence, and the context of a new model (default: 128; with --from, 256 or less)"
    add("--context T", context, number(Range(2, MAX_COUNT)))
    head = "compute logits with wte.T or W_U (default: tied; with --from, as the checkpoint does)"
    add("--head {tied,untied}", head)
    steps = "steps in all, also with --resume (default: 2000; with --from, 200), for the learning rate too"
    add("--steps N", steps, positive)
    add("--batch B", "sequences in a step (default: 32; with --from, 4)", positive)
    add("--lr LR", "peak learning rate (default: 0.003; with --from, 0.0001)", number(ABOVE_0))
    dropout = "dropout of embedding and layers' outputs (default: 0.1; with --from, as the checkpoint says)"
    add("--dropout P", dropout, number(RATE))
    add(
        "--seed S", "seed of weights, batches and dropout (default: 1)", number(Range(0, MAX_COUNT))
    )
    add(
        "--eval-every N",
        "steps between evaluations, which also save (default: a tenth of all)",
        positive,
    )
    parser.add_shared("--allow-special", "--json")


def run(args: argparse.Namespace) -> None:
    corpus, out, resume, as_json = args.corpus, args.out, args.resume, args.json
    allow_special, quiet = args.allow_special, args.quiet
    given = {name: value for name in FLAGS if (value := getattr(args, name)) is not None}
    if not resume:
        check_flags(given)
    with lock_directory(out):
        check_directory(out, resume)
        text = read_text(corpus)
        cut = len(text) * 9 // 10
        parts = text[:cut], text[cut:]
        model, tokenizer, settings = (
            (None, read_tokenizer(out), None) if resume else new(given, parts[0])
        )
        encoded = (common.encode(tokenizer, part, allow_special) for part in parts)
        tokens, held_out = (np.array(ids, np.int64) for ids in encoded)
        if model and settings:
            trainer = Trainer(model, tokens, held_out, settings, given.get("only"))
            trainer.flags = given
        else:
            trainer = Trainer.resume(out, tokens, held_out, given.get("steps"))
            check_same(trainer, given)
        del model  # the trainer has a copy
        bits = bits_per_nat(tokenizer, trainer.held_out[1:])  # the first token is not predicted
        if (size := tokenizer.vocab_size) < given.get("vocab_size", 0):
            note(f"only {size} tokens can be learned from the text: the vocabulary has no more")
        if trainer.step == trainer.settings.steps:
            note(f"all {trainer.step:,} steps are done; give a larger --steps to train more")
        start = time.monotonic()
        with stop_on_signal(quiet) as signals:
            train(trainer, tokenizer, bits, out, signals)
        report(trainer, bits, out, as_json, time.monotonic() - start)
        if signals:
            note(f"stopped after step {trainer.step}; continue with --resume")
            raise KeyboardInterrupt if signals[0] == signal.SIGINT else SystemExit(128 + signals[0])


def flag(name: str) -> str:
    return "--from" if name == "source" else f"--{name.replace('_', '-')}"


def check_flags(given: dict[str, Any]) -> None:
    """Check that the flags of a new training fit each other. Raises ArgumentError."""
    if "source" in given and (fixed := [name for name in SHAPE if name in given]):
        raise ArgumentError(
            f"{flag(fixed[0])} cannot be given with --from: the checkpoint decides it"
        )
    if "only" in given:
        if "source" not in given:
            raise ArgumentError(
                "--only head needs --from: the rest of the model must be trained already"
            )
        if given.get("head") == "tied":
            raise ArgumentError(
                "--only head is for an untied model: a tied one has no W_U of its own"
            )
        if "dropout" in given:
            raise ArgumentError("--dropout has no effect with --only head: the rest is not trained")
    n_embd, n_head = (given.get(name, SHAPE[name]) for name in ("n_embd", "n_head"))
    if n_embd % n_head:
        raise ArgumentError(f"--n-embd must be a multiple of --n-head, got {n_embd} and {n_head}")


def check_directory(out: Path, resume: bool) -> None:
    """Check that DIR is empty or, with --resume, holds a training. Raises ArgumentError."""
    if (out / STATE).is_file() != resume:
        holds = (
            "no training to continue"
            if resume
            else "a training already: add --resume to continue it"
        )
        raise ArgumentError(f"{'--resume: ' * resume}{out} holds {holds}")
    if not resume and any(path.name != LOCK for path in out.iterdir()):
        raise ArgumentError(f"--out: {out} is not empty; choose a new directory")


def check_same(trainer: Trainer, given: dict[str, Any]) -> None:
    """Check that the flags with --resume are those of the training. Raises ArgumentError."""
    config = trainer.model.config
    was = {**asdict(trainer.settings), **{name: getattr(config, name) for name in SHAPE}}
    was |= {"head": config.head, "dropout": config.resid_pdrop, **trainer.flags}
    for name, value in given.items():
        if name != "steps" and value != was.get(name):
            before = f"was {was[name]}" if name in was else "was not given"
            raise ArgumentError(
                f"{flag(name)} cannot change with --resume: it {before}, now it is {value}"
            )


def new(given: dict[str, Any], text: str) -> tuple[GPT2, Tokenizer, Settings]:
    """What a new training begins with. The tokenizer of a new model is learned from `text`."""
    chosen = {name: given[name] for name in SETTINGS if name in given}
    if "source" in given:
        _, checkpoint, tokenizer = common.open_model(given["source"])
        context = min(256, checkpoint.config.n_ctx)
        settings = Settings(**{**FROM_CHECKPOINT, "context": context, **chosen})
        model = common.load(checkpoint, given.get("head", "untied" if "only" in given else None))
    else:
        settings = Settings(**chosen)
        shape = {name: given.get(name, default) for name, default in SHAPE.items()}
        tokenizer = learn_tokenizer(text, shape["vocab_size"])
        shape |= {"vocab_size": tokenizer.vocab_size, "n_ctx": settings.context}
        config = Config(
            **shape, attn_pdrop=0.0, bos_token_id=tokenizer.eot_id, eos_token_id=tokenizer.eot_id
        )
        # Refuse a model that does not fit in memory now, not after a minute of drawing random
        # numbers.
        np.empty(parameter_count(config.with_head("tied")).total, np.float32)
        model = GPT2.random(config, settings.seed)
        model = model.untie("random", settings.seed) if given.get("head") == "untied" else model
    if (p := given.get("dropout")) is not None:
        model = GPT2(
            replace(model.config, embd_pdrop=p, resid_pdrop=p, attn_pdrop=0.0), model.parameters
        )
    return model, tokenizer, settings


@contextmanager
def stop_on_signal(quiet: bool) -> Iterator[list[int]]:
    """A list to which the first Ctrl-C or SIGTERM is appended; the loop then stops. A second one
    ends it."""
    signals: list[int] = []
    with ExitStack() as handlers:  # those from before; closing it restores them

        def first(number: int, _: Any) -> None:
            signals.append(number)
            handlers.close()
            line = (
                b""
                if quiet
                else b"\ntiedgpt: note: stopping after this step; again to stop at once\n"
            )
            with suppress(OSError):  # a full disk behind stderr
                os.write(
                    sys.stderr.fileno(), line
                )  # Python refuses a print in the middle of another

        for number in (signal.SIGINT, signal.SIGTERM):
            if (before := signal.getsignal(number)) != signal.SIG_IGN:  # as in a script's `... &`
                handlers.callback(signal.signal, number, before)
                signal.signal(number, first)
        yield signals


def train(
    trainer: Trainer, tokenizer: Tokenizer, bits: float, out: Path, signals: list[int]
) -> None:
    """Run the trainer to its end or to a signal, with a progress bar; save at each evaluation."""
    from tqdm import tqdm

    shown, read, saved = "", 0, trainer.best

    def show_held_out(tokens: int) -> None:
        """Show progress: a large model takes minutes for the held-out text."""
        nonlocal read
        read = read % len(trainer.held_out) + tokens
        bar.set_postfix_str(f"held out: {read / len(trainer.held_out):.0%}")

    total, first = trainer.settings.steps, trainer.step
    with (
        warnings.catch_warnings(),
        # disable=None: no bar in a file, where the lines of the evaluations are enough.
        tqdm(total=total, initial=first, unit="step", file=sys.stderr, disable=None) as bar,
    ):
        # NumPy warns before a loss becomes infinite or nan; the trainer then raises an error.
        warnings.simplefilter("ignore", RuntimeWarning)
        try:
            for record in trainer.run(show_held_out):
                if "loss" in record:
                    shown = f"loss {record['loss']:.3f}, {record['tokens_per_s']:,.0f} tokens/s"
                    bar.update()
                bar.set_postfix_str(shown, refresh=False)
                if "val_loss" in record or signals:
                    trainer.save(out, tokenizer)
                    saved = trainer.best
                if (loss := record.get("val_loss")) is not None:
                    mean = trainer.evaluations[-1].get(
                        "loss"
                    )  # of the steps since the last evaluation
                    in_training = "" if mean is None else f"loss {mean:.4f}, "
                    held_out = f"{loss:.4f} nats per token, {loss * bits:.3f} bits per byte"
                    verdict = " (not the best)" * (saved is not None and saved[1] < trainer.step)
                    line = f"step {record['step']:>6,}: {in_training}held out {held_out}{verdict}"
                    bar.write(line, file=sys.stderr)
                if signals:
                    return
        except MemoryError as error:
            size = f"{trainer.settings.batch:,} sequences of {trainer.settings.context:,} tokens"
            raise TiedGPTError(
                f"not enough memory for a batch of {size}; use a smaller --batch"
            ) from error
        except TiedGPTError as error:
            kept = f"; {out} holds the model of step {saved[1]}" if saved else ""
            raise TiedGPTError(f"{error}{kept}") from error


def report(trainer: Trainer, bits: float, out: Path, as_json: bool, seconds: float) -> None:
    assert trainer.best is not None  # of the first evaluation, before the first step
    config, (loss, step) = trainer.model.config, trainer.best
    count = parameter_count(config).total
    if as_json:
        document = {
            "model": str(out),
            "head": config.head,
            "parameters": count,
            "steps": trainer.step,
        }
        document |= {"best_step": step, "val_loss": loss, "val_bits_per_byte": loss * bits}
        document |= {"seconds": round(seconds, 1), "evaluations": trainer.evaluations}
        return print(json.dumps(document))
    curve = [loss_curve(trainer.evaluations)] if len(trainer.evaluations) > 1 else []
    print(
        *curve,
        printable(f"{out}: {config.head}, {count:,} parameters, {config.vocab_size:,} tokens"),
        f"held out: {loss:.4f} nats per token, {loss * bits:.3f} bits per byte, after step {step:,}",
        sep="\n",
    )


def loss_curve(evaluations: Sequence[dict[str, float]], height: int = 8) -> str:
    """The losses against the steps, as text: o held out, . in training."""
    marks = {"loss": ".", "val_loss": "o"}
    points = [
        (e["step"], e[name], mark) for name, mark in marks.items() for e in evaluations if name in e
    ]
    high, low = (of(loss for _, loss, _ in points) for of in (max, min))
    last, width = evaluations[-1]["step"], min(60, max(20, shutil.get_terminal_size().columns - 10))
    rows = [[" "] * width for _ in range(height)]
    for step, loss, mark in points:
        row = round((high - loss) / ((high - low) or 1) * (height - 1))
        rows[row][round(step / last * (width - 1))] = mark
    labels = [f"{high:.2f}", *[""] * (height - 2), f"{low:.2f}"]
    lines = [
        f"{label:>7} |{''.join(row).rstrip()}" for label, row in zip(labels, rows, strict=True)
    ]
    axis = f"{'':8}+{'-' * width}\n{'':9}0{last:>{width - 1},}"
    return "\n".join([*lines, axis, f"{'':9}o held out, . training: nats per token, by step", ""])
