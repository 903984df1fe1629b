"""`tiedgpt train`: train a model from scratch, or go on with a checkpoint, with either head."""

import argparse
import json
import os
import signal
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..checkpoints import open_checkpoint, save_model
from ..checkpoints.huggingface import Checkpoint
from ..checkpoints.vocabulary import read_tokenizer
from ..config import HEADS, Config
from ..errors import ArgumentError, TiedGPTError
from ..evaluation import bits_per_nat
from ..model import GPT2
from ..parameters import count_parameters
from ..tokenizer import Tokenizer
from ..training.merges import learn_tokenizer
from .common import (
    add_command,
    add_json_option,
    add_special_option,
    encode,
    find,
    load,
    note,
    printable,
    read_text,
)

SHAPE = ("layers", "heads", "dim", "vocab")  # flags that a checkpoint leaves no choice for
SETTINGS = ("context", "steps", "batch", "accumulate", "lr", "seed", "eval_every", "threads")
FROM_CHECKPOINT = {"steps": 200, "batch": 4, "lr": 1e-4}
INITS = {"normal": "random", "copy": "copy", "zeros": "zeros"}  # ours -> GPT2.untie's

ABOUT = """\
Train a GPT-2 on a text, from scratch or from a checkpoint, tied or untied. What is written is a checkpoint as
any other, of the step that did best on text held out, beside what --resume needs to go on. Ctrl-C saves and
stops.
"""

EXAMPLES = """\
  tiedgpt train story.txt --out my-model
  tiedgpt train story.txt --out my-model --resume
  tiedgpt train story.txt --out my-untied --head untied --layers 2 --dim 64 --steps 500
  tiedgpt train story.txt --out my-gpt2 --from gpt2 --steps 100 --log log.jsonl
  tiedgpt train story.txt --out my-head --from gpt2 --only head
  tiedgpt generate --model my-model "Once"
"""


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "train", run, "Train a model, tied or untied.", EXAMPLES)
    parser.description = ABOUT
    add = parser.add_argument
    add("corpus", metavar="CORPUS", help="a text in UTF-8")
    add("--out", metavar="DIR", type=Path, required=True, help="where the checkpoint goes, a new directory")
    add("--resume", action="store_true", help="go on with the training in DIR, as if it had not stopped")
    add("--val", metavar="FILE", help="the text to hold out (default: the last tenth of CORPUS)")
    add("--from", dest="source", metavar="MODEL", help="start from this model, not from scratch")
    add("--layers", type=int, metavar="L", help="from scratch (default: 4)")
    add("--heads", type=int, metavar="H", help="from scratch (default: 4)")
    add("--dim", type=int, metavar="D", help="n_embd, from scratch (default: 128)")
    add(
        "--vocab",
        type=int,
        metavar="V",
        help="tokens to learn from CORPUS, from scratch; 257 is one for each byte and <|endoftext|> "
        "(default: 1024)",
    )
    add(
        "--context",
        type=int,
        metavar="T",
        help="tokens in a sequence; from scratch, the most that the model will ever see at once "
        "(default: 128; with --from, 256 or what the model has)",
    )
    add("--head", choices=HEADS, help="(default: tied, or as the checkpoint says)")
    add(
        "--init-unembedding",
        choices=INITS,
        help="what an untied W_U starts as (default: normal; from a checkpoint without one, copy, of wte.T)",
    )
    add("--only", choices=["head"], help="with --from, train W_U alone, on a body that does not change")
    add(
        "--steps",
        type=int,
        metavar="N",
        help="in all (default: 2000; with --from, 200); more than before with --resume, the learning rate "
        "then follows the longer course",
    )
    add("--batch", type=int, metavar="B", help="sequences in a step (default: 32; with --from, 4)")
    add("--accumulate", type=int, metavar="A", help="batches to a step, added up (default: 1)")
    add("--lr", type=float, metavar="LR", help="peak learning rate (default: 0.003; with --from, 0.0001)")
    add(
        "--dropout",
        type=float,
        metavar="P",
        help="of the embedding and of what each layer adds; the attention patterns then have none "
        "(default: 0.1; with --from, all three as the checkpoint says)",
    )
    add("--seed", type=int, metavar="S", help="of weights, batches and dropout (default: 1)")
    add("--eval-every", type=int, metavar="N", help="steps between looks at held-out text (default: a tenth)")
    add("--threads", type=int, metavar="N", help="that share a batch (default: by the model and the machine)")
    add("--log", metavar="FILE", type=Path, help="write a line of JSON for each step")
    add_special_option(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> None:
    from ..training.loop import STATE  # here, so that other commands do not wait for it

    _check(args, (args.out / STATE).is_file())
    text, held_out = read_text(args.corpus), read_text(args.val) if args.val else ""
    if not args.val:
        cut = len(text) * 9 // 10
        text, held_out = text[:cut], text[cut:]
    trainer, tokenizer = _trainer(args, text, held_out)
    bits = bits_per_nat(tokenizer, trainer.held_out[1:])  # the first token is not predicted
    start = time.monotonic()
    with _log(args, trainer.step) as log, _stop_on_signal() as signals:
        if args.vocab and tokenizer.vocab_size < args.vocab:
            note(
                f"the text has no more than {tokenizer.vocab_size} tokens to learn, so this is the vocabulary"
            )
        if trainer.step == trainer.settings.steps:
            note(f"all {trainer.step:,} steps are done; --steps takes more")
        _train(trainer, tokenizer, bits, args.out, log, signals)
    _report(args, trainer, bits, time.monotonic() - start)
    if signals:
        note(f"stopped after step {trainer.step}; go on with --resume")
        raise KeyboardInterrupt if signals[0] == signal.SIGINT else SystemExit(128 + signals[0])


def _check(args: argparse.Namespace, is_ours: bool) -> None:
    """What can be known to be wrong from the flags and DIR alone. Raises ArgumentError."""
    if args.resume:
        if not is_ours:
            raise ArgumentError(f"--resume: {args.out} holds no training to go on with")
        for name in (*SHAPE, *SETTINGS, "source", "head", "init_unembedding", "only", "dropout"):
            if getattr(args, name) is not None and name != "steps":
                flag = "--from" if name == "source" else f"--{name.replace('_', '-')}"
                raise ArgumentError(f"{flag} cannot be given with --resume: it stays as it was")
    elif is_ours:
        raise ArgumentError(f"{args.out} holds a training already: add --resume to go on with it")
    elif os.path.lexists(args.out) and not (args.out.is_dir() and not any(args.out.iterdir())):
        raise ArgumentError(f"--out: {args.out} exists and is not empty; choose a new directory")
    if args.log and not args.log.parent.is_dir():
        raise ArgumentError(f"--log: there is no directory {args.log.parent}")
    if args.log and args.log.exists() and not args.resume:
        raise ArgumentError(f"--log: {args.log} exists; choose a new file")
    if args.dropout is not None and not 0 <= args.dropout < 1:
        raise ArgumentError(f"--dropout must be at least 0 and below 1, got {args.dropout}")
    if args.source:
        for name in SHAPE:
            if getattr(args, name) is not None:
                raise ArgumentError(f"--{name} cannot be given with --from: the checkpoint decides it")
    elif args.only:
        raise ArgumentError("--only head fits W_U to a trained body: say which with --from")
    if args.head == "tied" and (args.only or args.init_unembedding):
        flag = "--only head" if args.only else "--init-unembedding"
        raise ArgumentError(f"{flag} is for an untied model: a tied one has no W_U of its own")
    if args.only and args.dropout is not None:
        raise ArgumentError("--dropout has no effect with --only head: the body stays the same")


def _trainer(args: argparse.Namespace, text: str, held_out: str) -> tuple[Any, Tokenizer]:
    """The trainer that the flags describe, new or as it was saved, and its tokenizer."""
    from ..training.loop import Settings, Trainer

    def tokens(tokenizer: Tokenizer, part: str) -> np.ndarray:
        return np.array(encode(tokenizer, part, args.allow_special), np.int64)

    if args.resume:
        # By path: load_model would take a directory called gpt2 for the name.
        tokenizer, model = read_tokenizer(args.out), load(open_checkpoint(args.out), None)
        texts = tokens(tokenizer, text), tokens(tokenizer, held_out)
        return Trainer.resume(args.out, model, *texts, args.steps), tokenizer

    given = {name: getattr(args, name) for name in SETTINGS if getattr(args, name) is not None}
    if args.source:
        path = find(args.source)[1]
        checkpoint, tokenizer = open_checkpoint(path), read_tokenizer(path)
        settings = Settings(**{**FROM_CHECKPOINT, "context": min(256, checkpoint.config.n_ctx), **given})
        model = _from_checkpoint(args, checkpoint, settings.seed)
    else:
        settings = Settings(**given)
        tokenizer = learn_tokenizer(text, 1024 if args.vocab is None else args.vocab)
        model = _from_scratch(args, tokenizer, settings)
    if args.dropout is not None:
        config = replace(model.config, embd_pdrop=args.dropout, resid_pdrop=args.dropout, attn_pdrop=0.0)
        model = GPT2(config, model.parameters)
    texts = tokens(tokenizer, text), tokens(tokenizer, held_out)
    return Trainer(model, *texts, settings, args.only), tokenizer


def _from_scratch(args: argparse.Namespace, tokenizer: Tokenizer, settings: Any) -> GPT2:
    config = Config(
        vocab_size=tokenizer.vocab_size,
        n_ctx=settings.context,
        n_embd=128 if args.dim is None else args.dim,
        n_layer=4 if args.layers is None else args.layers,
        n_head=4 if args.heads is None else args.heads,
        attn_pdrop=0.0,
        bos_token_id=tokenizer.eot_id,
        eos_token_id=tokenizer.eot_id,
    )
    # A model that no memory holds is refused here, not after a minute of drawing some of its numbers.
    np.empty(count_parameters(config)["tied"]["total"], np.float32)
    model = GPT2.random(config, settings.seed)
    if args.head == "untied" or args.init_unembedding:
        return model.untie(INITS[args.init_unembedding or "normal"], settings.seed)
    return model


def _from_checkpoint(args: argparse.Namespace, checkpoint: Checkpoint, seed: int) -> GPT2:
    """The checkpoint's model with the head asked for, and a W_U that begins as was asked."""
    if args.init_unembedding:
        return load(checkpoint, "tied").untie(INITS[args.init_unembedding], seed)
    return load(checkpoint, args.head or ("untied" if args.only else None))


@contextmanager
def _stop_on_signal() -> Iterator[list[int]]:
    """The first Ctrl-C or SIGTERM goes on the list, for the loop to end after its step; a second ends it."""
    signals: list[int] = []

    def first(number: int, _: Any) -> None:
        signals.append(number)
        restore()
        # Not print: Python refuses it where the signal came in the middle of another one.
        os.write(sys.stderr.fileno(), b"\ntiedgpt: note: stopping after this step; again to stop at once\n")

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    before: dict[int, Any] = {
        number: signal.signal(number, first)
        for number in (signal.SIGINT, signal.SIGTERM)
        if signal.getsignal(number) != signal.SIG_IGN  # as a script's `&` has it: Ctrl-C is for others
    }
    try:
        yield signals
    finally:
        restore()


def _log(args: argparse.Namespace, step: int) -> Any:
    """The log to write to; of a run that goes on, with what was written up to its step."""
    if not args.log:
        return nullcontext()
    kept = 0
    if args.resume and args.log.exists():
        lines = args.log.read_bytes().splitlines(keepends=True)
        try:  # a crash may have left half a line at the end
            kept = sum(
                len(line) for line in lines if line.endswith(b"\n") and json.loads(line)["step"] <= step
            )
        except (ValueError, TypeError, KeyError) as error:
            raise ArgumentError(f"--log: {args.log} is not a log of a training") from error
    file = open(args.log, "a", encoding="utf-8", buffering=1)  # noqa: SIM115  # closed by the caller's `with`
    file.truncate(kept)
    return file


def _train(trainer: Any, tokenizer: Tokenizer, bits: float, out: Path, log: Any, signals: list[int]) -> None:
    """Run the trainer to its end or to a signal, under a progress bar; save what is best and where it is."""
    from tqdm import tqdm

    smooth, shown, read, saved = None, "", 0, trainer.best

    def show_held_out(tokens: int) -> None:
        """A sign of life: a large model reads held-out text for minutes."""
        nonlocal read
        read += tokens
        bar.set_postfix_str(f"held out: {read / len(trainer.held_out):.0%}")

    total, first = trainer.settings.steps, trainer.step
    with (
        warnings.catch_warnings(),
        # No bar where stderr is a file: the lines about held-out text are enough there.
        tqdm(total=total, initial=first, unit="step", file=sys.stderr, disable=None) as bar,
    ):
        # NumPy's, on the way to a loss that is no number: that is an error, which the trainer raises.
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
                if "val_loss" in record:
                    read = 0
                    bar.set_postfix_str(shown, refresh=False)
                    if trainer.is_best:
                        save_model(trainer.model, tokenizer, out)
                        saved = trainer.best
                    trainer.save(out)
                    verdict = "" if trainer.is_best else " (not the best)"
                    bar.write(
                        f"step {record['step']:>6,}: {f'loss {smooth:.4f}, ' if smooth else ''}"
                        f"held out {record['val_loss']:.4f} nats per token, "
                        f"{record['val_loss'] * bits:.3f} bits per byte{verdict}",
                        file=sys.stderr,
                    )
                if signals:
                    if "val_loss" not in record:
                        trainer.save(out)
                    return
        except MemoryError as error:
            size = f"{trainer.settings.batch:,} sequences of {trainer.settings.context:,} tokens"
            raise TiedGPTError(
                f"not enough memory for a batch of {size}; --accumulate takes smaller ones"
            ) from error
        except TiedGPTError as error:
            kept = f"; {out} holds the model of step {saved[1]}" if saved else ""
            raise TiedGPTError(f"{error}{kept}") from error


def _report(args: argparse.Namespace, trainer: Any, bits: float, seconds: float) -> None:
    config, (loss, step) = trainer.model.config, trainer.best
    count = count_parameters(config)[config.head]["total"]
    bits_per_byte = loss * bits
    if args.json:
        report = {"model": str(args.out), "head": config.head, "parameters": count, "steps": trainer.step}
        best = {"best_step": step, "val_loss": loss, "val_bits_per_byte": bits_per_byte}
        print(json.dumps({**report, **best, "seconds": round(seconds, 1)}))
        return
    print(
        printable(f"{args.out}: {config.head}, {count:,} parameters, {config.vocab_size:,} tokens"),
        f"held out: {loss:.4f} nats per token, {bits_per_byte:.3f} bits per byte, after step {step:,}",
        sep="\n",
    )
