"""Train a model, tied or untied.

Train a GPT-2 on a text, from scratch or from a checkpoint. The last tenth of the text is held out.
DIR gets a checkpoint of the step with the lowest loss on it, the losses in log.jsonl, and the state
that --resume continues from. Ctrl-C saves and stops. With --head untied, W_U of a new model starts
random, and W_U of a tied checkpoint as a copy of wte.T. With --from, the defaults are --steps 200,
--batch 4, --lr 0.0001, and a --context of 256 or the checkpoint's, whichever is less.

examples:
  tiedgpt train story.txt --out my-model
  tiedgpt train story.txt --resume my-model
  tiedgpt train story.txt --out my-untied --head untied --n-layer 2 --n-embd 64
  tiedgpt train story.txt --out my-gpt2 --from gpt2 --steps 100
  tiedgpt train story.txt --out my-head --from gpt2 --only head
"""

import argparse
import math
import os
import shlex
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..atomic import check_new
from ..checkpoints import Opened
from ..checkpoints.writing import tokenizer_files
from ..errors import ArgumentError
from ..evaluation import count_bytes
from ..gpt2.config import HEADS, Config
from ..gpt2.model import GPT2
from ..gpt2.parameters import parameter_count
from ..gpt2.tokenizer import Tokenizer
from ..training.loop import Trainer
from ..training.saving import STATE
from ..training.start import Settings, Shape, new_model, split
from . import inputs, options
from .inputs import encode_text, read_text
from .output import note, print_json, print_line, printable


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "corpus", metavar="CORPUS", nargs="?", help=f"a text in UTF-8; {options.STDIN_TOO}"
    )
    target = parser.add_mutually_exclusive_group(required=True)
    target.add_argument(
        "--out", metavar="DIR", type=Path, help="a new directory for the checkpoint"
    )
    target.add_argument(
        "--resume",
        metavar="DIR",
        type=Path,
        help="continue the training in DIR on the same text, with the same result as without the "
        "stop; its flags are kept, and --steps may be raised",
    )
    parser.add_argument(
        "--from", metavar="MODEL", dest="source", help="train this model (default: a new one)"
    )
    parser.add_argument(
        "--only", choices=["head"], help="with --from, train W_U and keep all other parameters"
    )
    parser.add_argument(
        "--head",
        choices=HEADS,
        help="the output matrix: tied is wte.T, untied is W_U (default: tied; with --from, as the "
        "checkpoint says)",
    )
    options.add_fields(parser, Shape)
    options.add_fields(parser, Settings)
    parser.add_argument(
        "--dropout",
        metavar="P",
        dest="embd_pdrop",  # which Config checks
        type=options.any_number,
        help="dropout of embedding and layers' outputs "
        f"(default: {Config.resid_pdrop}; with --from, as the checkpoint says)",
    )
    options.add(parser, "allow_special", "json")


def run(args: argparse.Namespace) -> None:
    check_flags(args)
    out = args.resume or args.out
    check_directory(args)
    text = read_text(args.corpus)
    others: dict[str, bytes] = {}  # the files beside the model, such as the tokenizer's
    if args.resume is None:
        trainer, tokenizer, others = new_trainer(args, text)
    else:
        tokenizer = Opened(args.resume).tokenizer
        tokens, held_out = encode_parts(tokenizer, text, args.allow_special)
        trainer = Trainer.resume(args.resume, tokens, held_out, args.steps)
        if trainer.step == trainer.settings.steps:
            note(f"all {trainer.step:,} steps are done; give a larger --steps to train more")

    # A loss in nats per token times this factor is in bits per byte. The first token of the
    # held-out text is not predicted, so its bytes do not count.
    predicted = trainer.held_out[1:]
    factor = predicted.size / math.log(2) / count_bytes(tokenizer, predicted)
    start = time.monotonic()
    with stop_signals() as signals:
        train(trainer, out, others, factor, signals)
    report = report_of(trainer, out, factor, time.monotonic() - start)
    if args.json:
        print_json(report)
    else:
        print_result(report, trainer.model.config.vocab_size)
    if len(trainer.evaluations) > 1 and report["best_step"] == 0:
        note(
            f"training has not lowered the held-out loss: {out} holds the model before step 1; "
            f"try another --lr than {trainer.settings.lr:g}"
        )
    if signals:
        words = ["tiedgpt", "train", args.corpus or "-", "--resume", str(out)]
        if args.allow_special:
            words.append("--allow-special")
        note(f"stopped after step {trainer.step}; continue with: {shlex.join(words)}")
        signal.raise_signal(signals[0])  # ends the command as it would have without a training


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """In the block, the first Ctrl-C or SIGTERM is only added to a list, which `with` gives.

    From then on, and after the block, both have the handlers from before it, so a second one ends
    the process.
    """
    received: list[int] = []
    handlers = {}
    for number in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(number)
        if handler != signal.SIG_IGN:  # SIGINT is ignored in a script's `tiedgpt ... &`
            handlers[number] = handler

    def receive(number: int, _: object) -> None:
        received.append(number)
        restore()
        # Not by print: Python refuses a print in the middle of another one.
        line = b"\ntiedgpt: note: stopping after this step; again to stop at once\n"
        with suppress(OSError):  # a full disk behind stderr
            os.write(sys.stderr.fileno(), line)

    def restore() -> None:
        for number, handler in handlers.items():
            signal.signal(number, handler)

    for number in handlers:
        signal.signal(number, receive)
    try:
        yield received
    finally:
        restore()


def check_flags(args: argparse.Namespace) -> None:
    """Check that the flags fit each other. Raises ArgumentError."""
    shape = options.values_of(args, Shape)
    if args.resume is not None:
        given = {**shape, **options.values_of(args, Settings), "from": args.source}
        given |= {"only": args.only, "head": args.head}
        given |= {"dropout": args.embd_pdrop}  # --dropout gives this field of Config
        for name, value in given.items():
            if value is not None and name != "steps":
                raise ArgumentError(
                    f"{options.flag_of(name)} cannot be given with --resume: the training in "
                    f"{args.resume} keeps its flags, and only --steps may change"
                )
    if args.source is not None and shape:
        flag = options.flag_of(next(iter(shape)))
        raise ArgumentError(f"{flag} cannot be given with --from: the checkpoint decides it")
    if args.only is not None:
        if args.source is None:
            raise ArgumentError(
                "--only head needs --from: the rest of the model must be trained already"
            )
        if args.embd_pdrop is not None:
            raise ArgumentError("--dropout has no effect with --only head: the rest is not trained")


def check_directory(args: argparse.Namespace) -> None:
    """Check that --resume is a training, or that --out is new. Raises TiedGPTError."""
    if args.resume is not None:
        if not (args.resume / STATE).is_file():
            raise ArgumentError(f"--resume: {args.resume} holds no training to continue")
    elif (args.out / STATE).is_file():
        raise ArgumentError(
            f"--out: {args.out} holds a training already; to continue it, give --resume {args.out}"
        )
    else:
        check_new(args.out)


def new_trainer(args: argparse.Namespace, text: str) -> tuple[Trainer, Tokenizer, dict[str, bytes]]:
    """A training that begins, its tokenizer, and the files that are saved beside the model."""
    given = options.values_of(args, Settings)
    settings = Settings(**given)  # refuses a number before a model is looked for
    if args.source is None:
        shape = Shape(**options.values_of(args, Shape))
        learned, _ = split(text)  # the tokenizer too learns from this part alone
        model, tokenizer = new_model(learned, shape, settings, args.head)
        others = tokenizer_files(tokenizer)
        if args.vocab_size is not None and tokenizer.vocab_size < args.vocab_size:
            note(
                f"the vocabulary has {tokenizer.vocab_size} tokens, not {args.vocab_size}: in the "
                "text, no other two neighbouring tokens of a word occur twice"
            )
    else:
        opened = inputs.open_model(args.source)
        context = min(256, opened.config.n_ctx)  # more takes more time and memory
        defaults = {"steps": 200, "batch": 4, "lr": 1e-4, "context": context}
        settings = replace(settings, **(defaults | given))
        tokenizer = opened.tokenizer
        head = args.head
        if head is None and args.only == "head":  # there must be a W_U to train
            head = "untied"
        model = inputs.load(opened, head, copy_is="it is trained as a matrix of its own")
        others = opened.copied_files(note)
    if args.embd_pdrop is not None:  # of the embedding and the layers' outputs, not the pattern
        rates = {"embd_pdrop": args.embd_pdrop, "resid_pdrop": args.embd_pdrop, "attn_pdrop": 0.0}
        model = GPT2(replace(model.config, **rates), model.parameters)

    tokens, held_out = encode_parts(tokenizer, text, args.allow_special)
    return Trainer(model, tokens, held_out, settings, only=args.only), tokenizer, others


def encode_parts(
    tokenizer: Tokenizer, text: str, allow_special: bool
) -> tuple[np.ndarray, np.ndarray]:
    """The token ids of the text to train on, and those of the held-out text."""
    part, held_out = split(text)
    ids = encode_text(tokenizer, part, allow_special)
    held_out_ids = encode_text(tokenizer, held_out, allow_special)
    return np.array(ids, np.int64), np.array(held_out_ids, np.int64)


def train(
    trainer: Trainer, out: Path, others: dict[str, bytes], factor: float, signals: list[int]
) -> None:
    """Train to the end or to a signal, with a progress bar and a line for each evaluation.

    others: the files that are saved beside the model. factor: from nats per token to bits per byte.
    """
    from tqdm import tqdm  # importing it takes longer than most commands wait

    held_out_read = 0  # tokens that the evaluation has read, which is running or comes next
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

        def show_held_out(tokens: int) -> None:
            nonlocal held_out_read
            held_out_read += tokens
            bar.set_postfix_str(f"held out: {held_out_read / len(trainer.held_out):.0%}")

        # NumPy warns before a loss becomes infinite or nan; the trainer then raises an error.
        warnings.simplefilter("ignore", RuntimeWarning)
        records = trainer.run_and_save(out, others, lambda: bool(signals), show_held_out)
        for record in records:
            if "loss" in record:  # step 0 has none
                loss_and_speed = f"{record['loss']:.3f}, {record['tokens_per_s']:,.0f} tokens/s"
                bar.set_postfix_str(f"loss {loss_and_speed}", refresh=False)
                bar.update()
            if "val_loss" in record:
                held_out_read = 0
                with tqdm.external_write_mode(file=sys.stderr):  # the bar moves below the line
                    print_line(evaluation_line(trainer, factor))


def evaluation_line(trainer: Trainer, factor: float) -> str:
    """The losses of the last evaluation. factor: from nats per token to bits per byte."""
    evaluation = trainer.evaluations[-1]
    loss = evaluation["val_loss"]
    in_training = ""
    if "loss" in evaluation:  # the evaluation at step 0 has no training loss
        in_training = f"loss {evaluation['loss']:.4f}, "
    lowest = min(earlier["val_loss"] for earlier in trainer.evaluations)
    verdict = " (not the best)" if loss > lowest else ""
    return (
        f"step {evaluation['step']:>6,}: {in_training}held out {loss:.4f} nats per token, "
        f"{loss * factor:.3f} bits per byte{verdict}"
    )


def report_of(trainer: Trainer, out: Path, factor: float, seconds: float) -> dict[str, Any]:
    """What --json prints. factor: from nats per token to bits per byte."""
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


def print_result(report: dict[str, Any], vocab_size: int) -> None:
    """Print what the model is, and its loss."""
    model = f"{report['model']}: {report['head']}, {report['parameters']:,} parameters"
    print(printable(f"{model}, {vocab_size:,} tokens"))
    print(
        f"held out: {report['val_loss']:.4f} nats per token, "
        f"{report['val_bits_per_byte']:.3f} bits per byte, after step {report['best_step']:,}"
    )
