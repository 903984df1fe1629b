"""`tiedgpt train`: train a model from scratch or from a checkpoint, with either head."""

import argparse
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoints.files import LOCK, lock_directory
from ..checkpoints.vocabulary import read_tokenizer
from ..config import HEADS, Config
from ..errors import ArgumentError, TiedGPTError
from ..inference.evaluation import bits_per_nat
from ..model import GPT2
from ..parameters import count_parameters
from ..tokenizer import Tokenizer
from ..training import INITS, MAX_COUNT
from ..training.merges import learn_tokenizer
from . import common

SHAPE = {"n_layer": 4, "n_head": 4, "n_embd": 128, "n_ctx": 128, "vocab_size": 1024}  # of a new model
SETTINGS = ("context", "steps", "batch", "accumulate", "lr", "seed", "eval_every", "threads")
FROM_CHECKPOINT = {"steps": 200, "batch": 4, "lr": 1e-4}

ABOUT = """\
Train a GPT-2 on a text, from scratch or from a checkpoint, tied or untied. DIR gets a checkpoint of the step
with the lowest loss on held-out text, and the file that --resume continues from. Ctrl-C saves and stops.
"""

EXAMPLES = """\
  tiedgpt train story.txt --out my-model
  tiedgpt train story.txt --out my-model --resume
  tiedgpt train story.txt --out my-untied --head untied --n-layer 2 --n-embd 64 --steps 500
  tiedgpt train story.txt --out my-gpt2 --from gpt2 --steps 100 --log log.jsonl
  tiedgpt train story.txt --out my-head --from gpt2 --only head
  tiedgpt generate --model my-model "Once"
"""


def add_parser(commands: Any) -> None:
    parser = common.add_command(commands, "train", run, "Train a model, tied or untied.", EXAMPLES)
    parser.description = ABOUT

    def add_number(flag: str, metavar: str, help: str, least: int = 1, most: int = MAX_COUNT) -> None:
        expected = f"a whole number from {least} to {most}"
        number = common.number_type(expected, int, lambda n: least <= n <= most)
        parser.add_argument(flag, type=number, metavar=metavar, help=help)

    add = parser.add_argument
    add("corpus", metavar="CORPUS", help='a text in UTF-8; "-" is stdin')
    add("--out", metavar="DIR", type=Path, required=True, help="a new directory for the checkpoint")
    resume = "continue the training in DIR, with the same result as without the stop"
    add("--resume", action="store_true", help=resume)
    add("--val", metavar="FILE", help="the held-out text (default: the last tenth of CORPUS)")
    add("--from", dest="source", metavar="MODEL", help="train this model (default: a new one)")
    add_number("--n-layer", "L", "layers of a new model (default: 4)", least=0, most=1_000)
    add_number("--n-head", "H", "attention heads of a new model (default: 4)")
    add_number("--n-embd", "D", "width of a new model (default: 128)", most=MAX_COUNT // 4)  # n_inner is 4 D
    add_number("--n-ctx", "T", "context of a new model, in tokens, also in training (default: 128)", least=2)
    size = "tokens of a new model; 257: one for each byte and <|endoftext|> (default: 1024)"
    add_number("--vocab-size", "V", size, least=256)
    add_number("--context", "T", "with --from, tokens in a sequence (default: 256, or n_ctx if less)")
    head = "compute logits with wte.T or W_U (default: tied; with --from, as the checkpoint does)"
    add("--head", choices=HEADS, help=head)
    init = "initial W_U of an untied model; copy: of wte.T (default: random; from a tied checkpoint, copy)"
    add("--init-unembedding", choices=INITS, help=init)
    add("--only", choices=["head"], help="with --from, train W_U and keep all other parameters")
    steps = (
        "steps in all (default: 2000; with --from, 200); with --resume it may be larger than before; the "
        "learning rate follows the new schedule"
    )
    add_number("--steps", "N", steps)
    add_number("--batch", "B", "sequences in a batch (default: 32; with --from, 4)")
    add_number("--accumulate", "A", "batches in a step (default: 1)")
    lr = "peak learning rate (default: 0.003; with --from, 0.0001)"
    add("--lr", type=common.positive_float, metavar="LR", help=lr)
    dropout = (
        "dropout of the embedding and of each layer's outputs, none of the attention patterns (default: 0.1; "
        "with --from, as the checkpoint says)"
    )
    add("--dropout", type=common.dropout_rate, metavar="P", help=dropout)
    add_number("--seed", "S", "seed of weights, batches and dropout (default: 1)", least=0)
    add_number("--eval-every", "N", "steps between evaluations, which also save (default: a tenth of all)")
    add_number("--threads", "N", "threads that share a batch (default: by width and number of cores)")
    add("--log", metavar="FILE", type=Path, help="write one line of JSON for each step to this file")
    common.add_special_option(parser)
    common.add_json_option(parser)


def run(args: argparse.Namespace) -> None:
    _check_flags(args)
    with lock_directory(args.out):
        _check_directory(args)
        _run(args)


def _run(args: argparse.Namespace) -> None:
    text, held_out = common.read_text(args.corpus), common.read_text(args.val) if args.val else ""
    if not args.val:
        cut = len(text) * 9 // 10
        text, held_out = text[:cut], text[cut:]
    trainer, tokenizer = _trainer(args, text, held_out)
    bits = bits_per_nat(tokenizer, trainer.held_out[1:])  # the first token is not predicted
    start = time.monotonic()
    with _log(args, trainer.step) as log, _stop_on_signal() as signals:
        if args.vocab_size and tokenizer.vocab_size < args.vocab_size:
            common.note(
                f"only {tokenizer.vocab_size} tokens can be learned from the text: the vocabulary has no more"
            )
        if trainer.step == trainer.settings.steps:
            common.note(f"all {trainer.step:,} steps are done; give a larger --steps to train more")
        _train(trainer, tokenizer, bits, args.out, log, signals)
    _report(args, trainer, bits, time.monotonic() - start)
    if signals:
        common.note(f"stopped after step {trainer.step}; continue with --resume")
        raise KeyboardInterrupt if signals[0] == signal.SIGINT else SystemExit(128 + signals[0])


def _check_flags(args: argparse.Namespace) -> None:
    """Check that the flags fit each other, before anything is read or made. Raises ArgumentError."""
    settled: tuple[str, ...] = ()
    if args.resume:
        why = "--resume: it stays as it was"
        settled = (*SHAPE, *SETTINGS, "source", "head", "init_unembedding", "only", "dropout")
    elif args.source:
        why, settled = "--from: the checkpoint decides it", tuple(SHAPE)
    for name in settled:
        if getattr(args, name) is not None and name != "steps":
            flag = "--from" if name == "source" else f"--{name.replace('_', '-')}"
            raise ArgumentError(f"{flag} cannot be given with {why}")
    if not (args.resume or args.source):
        if args.only:
            raise ArgumentError("--only head needs --from: the rest of the model must be trained already")
        if args.context:
            raise ArgumentError("--context needs --from; the sequences of a new model have --n-ctx tokens")
        n_embd, n_head = (_shape(args)[name] for name in ("n_embd", "n_head"))
        if n_embd % n_head:
            raise ArgumentError(f"--n-embd must be a multiple of --n-head, got {n_embd} and {n_head}")
    if args.head == "tied" and (args.only or args.init_unembedding):
        flag = "--only head" if args.only else "--init-unembedding"
        raise ArgumentError(f"{flag} is for an untied model: a tied one has no W_U of its own")
    if args.only and args.dropout is not None:
        raise ArgumentError("--dropout has no effect with --only head: the rest of the model is not trained")
    if args.log and not args.log.parent.is_dir():
        raise ArgumentError(f"--log: there is no directory {args.log.parent}")
    if args.log and args.log.exists() and not args.resume:
        raise ArgumentError(f"--log: {args.log} exists; choose a new file")
    if os.path.lexists(args.out) and not args.out.is_dir():
        raise ArgumentError(f"--out: {args.out} is a file; choose a new directory")
    if args.resume and not args.out.is_dir():
        raise ArgumentError(f"--resume: there is no directory {args.out}")


def _check_directory(args: argparse.Namespace) -> None:
    """Check that DIR is empty or, with --resume, holds a training. Raises ArgumentError."""
    from ..training.loop import STATE

    holds_training = (args.out / STATE).is_file()
    if args.resume and not holds_training:
        raise ArgumentError(f"--resume: {args.out} holds no training to continue")
    if holds_training and not args.resume:
        raise ArgumentError(f"{args.out} holds a training already: add --resume to continue it")
    if not args.resume and any(path.name != LOCK for path in args.out.iterdir()):
        raise ArgumentError(f"--out: {args.out} is not empty; choose a new directory")


def _shape(args: argparse.Namespace) -> dict[str, Any]:
    """The sizes of a new model: those of the flags, or the defaults."""
    return {name: default if (n := getattr(args, name)) is None else n for name, default in SHAPE.items()}


def _trainer(args: argparse.Namespace, text: str, held_out: str) -> tuple[Any, Tokenizer]:
    """The trainer that the flags describe, new or resumed, and its tokenizer."""
    from ..training.loop import Settings, Trainer

    def tokens(tokenizer: Tokenizer, part: str) -> np.ndarray:
        return np.array(common.encode(tokenizer, part, args.allow_special), np.int64)

    if args.resume:
        tokenizer = read_tokenizer(args.out)
        texts = tokens(tokenizer, text), tokens(tokenizer, held_out)
        return Trainer.resume(args.out, *texts, args.steps), tokenizer

    given = {name: getattr(args, name) for name in SETTINGS if getattr(args, name) is not None}
    if args.source:
        name, checkpoint, tokenizer = common.open_model(args.source)
        n_ctx = checkpoint.config.n_ctx
        if args.context and args.context > n_ctx:
            raise ArgumentError(f"--context must be at most {n_ctx}, the n_ctx of {name}, got {args.context}")
        settings = Settings(**{**FROM_CHECKPOINT, "context": min(256, n_ctx), **given})
        if args.init_unembedding:
            model = common.load(checkpoint, "tied").untie(args.init_unembedding, settings.seed)
        else:
            model = common.load(checkpoint, args.head or ("untied" if args.only else None))
    else:
        shape = _shape(args)
        settings = Settings(**{"context": shape["n_ctx"], **given})
        tokenizer = learn_tokenizer(text, shape["vocab_size"])
        model = _new_model(args, {**shape, "vocab_size": tokenizer.vocab_size}, tokenizer, settings.seed)
    if args.dropout is not None:
        config = replace(model.config, embd_pdrop=args.dropout, resid_pdrop=args.dropout, attn_pdrop=0.0)
        model = GPT2(config, model.parameters)
    texts = tokens(tokenizer, text), tokens(tokenizer, held_out)
    return Trainer(model, *texts, settings, args.only), tokenizer


def _new_model(args: argparse.Namespace, shape: dict[str, Any], tokenizer: Tokenizer, seed: int) -> GPT2:
    end = tokenizer.eot_id
    config = Config(**shape, attn_pdrop=0.0, bos_token_id=end, eos_token_id=end)
    # Refuse a model that does not fit in memory now, not after a minute of drawing random numbers.
    np.empty(count_parameters(config)["tied"]["total"], np.float32)
    model = GPT2.random(config, seed)
    if args.head == "untied" or args.init_unembedding:
        return model.untie(args.init_unembedding or "random", seed)
    return model


@contextmanager
def _stop_on_signal() -> Iterator[list[int]]:
    """A list to which the first Ctrl-C or SIGTERM is appended; the loop then stops. A second one ends it."""
    signals: list[int] = []

    def first(number: int, _: Any) -> None:
        signals.append(number)
        restore()
        line = b"\ntiedgpt: note: stopping after this step; again to stop at once\n"
        with suppress(OSError):  # a full disk behind stderr
            os.write(sys.stderr.fileno(), line)  # Python refuses a print in the middle of another

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before: dict[int, Any] = {
        number: signal.signal(number, first)
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) != signal.SIG_IGN  # a script ignores Ctrl-C for a command with `&`
    }
    try:
        yield signals
    finally:
        restore()


def _log(args: argparse.Namespace, step: int) -> Any:
    """The log to write to. With --resume, lines after the saved step are removed from it."""
    if not args.log:
        return nullcontext()
    kept = 0
    if args.resume and args.log.exists():
        lines = args.log.read_bytes().splitlines(keepends=True)
        whole = (line for line in lines if line.endswith(b"\n"))  # a crash may have left half a line
        try:
            kept = sum(len(line) for line in whole if json.loads(line)["step"] <= step)
        except (ValueError, TypeError, KeyError) as error:
            raise ArgumentError(f"--log: {args.log} is not the log of a training") from error
    file = open(args.log, "a", encoding="utf-8", buffering=1)  # noqa: SIM115  # closed by the caller's `with`
    file.truncate(kept)
    return file


def _train(trainer: Any, tokenizer: Tokenizer, bits: float, out: Path, log: Any, signals: list[int]) -> None:
    """Run the trainer to its end or to a signal, with a progress bar; save at each evaluation."""
    from tqdm import tqdm

    smooth, shown, read, saved = None, "", 0, trainer.best

    def show_held_out(tokens: int) -> None:
        """Show progress: a large model takes minutes for the held-out text."""
        nonlocal read
        read += tokens
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
                if log:
                    print(json.dumps(record), file=log)
                if "loss" in record:
                    smooth = record["loss"] if smooth is None else 0.9 * smooth + 0.1 * record["loss"]
                    shown = f"loss {smooth:.3f}, {record['tokens_per_s']:,.0f} tokens/s"
                    bar.set_postfix_str(shown, refresh=False)
                    bar.update()
                if "val_loss" in record or signals:
                    trainer.save(out, tokenizer)
                    saved = trainer.best
                if "val_loss" in record:
                    read = 0
                    bar.set_postfix_str(shown, refresh=False)
                    verdict = "" if trainer.is_best else " (not the best)"
                    bar.write(
                        f"step {record['step']:>6,}: {f'loss {smooth:.4f}, ' if smooth else ''}"
                        f"held out {record['val_loss']:.4f} nats per token, "
                        f"{record['val_loss'] * bits:.3f} bits per byte{verdict}",
                        file=sys.stderr,
                    )
                if signals:
                    return
        except MemoryError as error:
            size = f"{trainer.settings.batch:,} sequences of {trainer.settings.context:,} tokens"
            raise TiedGPTError(
                f"not enough memory for a batch of {size}; use a smaller --batch and --accumulate"
            ) from error
        except TiedGPTError as error:
            kept = f"; {out} holds the model of step {saved[1]}" if saved else ""
            raise TiedGPTError(f"{error}{kept}") from error


def _report(args: argparse.Namespace, trainer: Any, bits: float, seconds: float) -> None:
    config, (loss, step) = trainer.model.config, trainer.best
    count = count_parameters(config)[config.head]["total"]
    if args.json:
        report = {"model": str(args.out), "head": config.head, "parameters": count, "steps": trainer.step}
        best = {"best_step": step, "val_loss": loss, "val_bits_per_byte": loss * bits}
        print(json.dumps({**report, **best, "seconds": round(seconds, 1)}))
        return
    print(
        common.printable(f"{args.out}: {config.head}, {count:,} parameters, {config.vocab_size:,} tokens"),
        f"held out: {loss:.4f} nats per token, {loss * bits:.3f} bits per byte, after step {step:,}",
        sep="\n",
    )
