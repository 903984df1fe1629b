"""`tiedgpt generate`: text that continues a prompt."""

import argparse
import os
import select
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

from ..checkpoints import open_checkpoint
from ..checkpoints.huggingface import Checkpoint
from ..checkpoints.vocabulary import read_tokenizer
from ..checks import check_prompt, check_seed
from ..config import Config
from ..errors import ArgumentError, TiedGPTError, short_repr
from ..inference.drafts import LOOKUP, Draft, check_draft_model
from ..inference.generation import TextSample, generate_text, kept_tokens
from ..inference.sampling import Sampling
from ..model import GPT2
from ..study.predictions import Prediction, predict
from ..tokenizer import EOT, Tokenizer
from .common import (
    BOTH,
    Progress,
    add_command,
    add_head_option,
    add_json_option,
    add_model_option,
    add_special_option,
    count,
    encode,
    find,
    fraction,
    load,
    load_heads,
    note,
    open_model,
    positive_float,
    positive_int,
    print_error,
    print_json,
    printable,
    read_text,
    vocabulary,
)
from .tokens import prediction_json, print_predictions

MAX_SAMPLES = 10_000  # in one batch; memory runs out long before
STDIN_WAIT = 3.0  # seconds until the first byte on stdin, when PROMPT is given too
PASTE_GAP = 0.05  # seconds between two lines of a paste, at most

ABOUT = """\
Sample text that continues a prompt. The prompt is PROMPT, or the text on stdin
less one final newline, or both: the text on stdin, then PROMPT on a new line.
To leave stdin out, add < /dev/null. On a terminal, without PROMPT, each line or
paste that you enter is continued.
"""

EXAMPLES = """\
  tiedgpt generate "Alan Turing theorized that computers would one day become"
  tiedgpt generate --greedy --logprobs 3 "The capital of France is"
  tiedgpt generate --head both --seed 1 "The capital of France is"
  tiedgpt generate -t 0.8 -k 40 -s 1 --num-samples 3 "In a shocking finding,"
  cat story.txt | tiedgpt generate --truncate --stop "." -n 100
  cat story.txt | tiedgpt generate --truncate "Chapter 2"
  tiedgpt generate --allow-special "<|endoftext|>"
"""


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "generate", run, "Sample text that continues a prompt.", EXAMPLES)
    parser.description = ABOUT
    add = parser.add_argument
    add("prompt", nargs="?", metavar="PROMPT", help="text to continue; - for stdin alone")
    add_model_option(parser)
    add_head_option(parser)
    number = "generate at most N tokens (default: %(default)s)"
    names = ("-n", "--max-new-tokens", "--max-tokens")
    add(*names, type=positive_int, default=40, metavar="N", help=number)
    divide = "divide the logits by T: below 1 sharpens, above 1 flattens (default: 1)"
    add("-t", "--temperature", "--temp", type=temperature, metavar="T", help=divide)
    add("-k", "--top-k", type=positive_int, metavar="K", help="sample from the K likeliest tokens")
    mass = "sample from the smallest set of tokens whose probabilities add up to P"
    add("-p", "--top-p", type=fraction, metavar="P", help=mass)
    add("--greedy", action="store_true", help="take the likeliest token every time")
    add(
        "-s",
        "--seed",
        type=count,
        metavar="S",
        help="the same S gives the same text (default: a new seed)",
    )
    add(
        "--num-samples",
        type=positive_int,
        default=1,
        metavar="N",
        help="continuations (default: %(default)s)",
    )
    add("--stop", action="append", default=[], metavar="TEXT", help="end before TEXT (may be repeated)")
    drop = "if the context has no room for a prompt and N more tokens, drop the prompt's beginning"
    add("--truncate", action="store_true", help=drop)
    logprobs = (
        "also list each token with its log probability and the K likeliest other tokens, as the model "
        "predicts them before temperature, top-k and top-p"
    )
    add("--logprobs", type=count, metavar="K", help=logprobs)
    guess = (
        "for speed, guess several tokens and let the model check them in one pass: lookup guesses from the "
        "text so far, MODEL with a smaller model that has the same vocabulary, none does not guess "
        "(default: %(default)s)"
    )
    add("--draft", default=LOOKUP, metavar="MODEL", help=guess)
    add_special_option(parser)
    add("--no-stream", action="store_true", help="print when complete, not token by token")
    add_json_option(parser)


def temperature(text: str) -> float:
    """The type of --temperature: a positive_float whose error for 0 names --greedy."""
    with suppress(ValueError):
        if float(text) == 0:
            raise argparse.ArgumentTypeError("must be above 0; for the likeliest token always, use --greedy")
    return positive_float(text)


def run(args: argparse.Namespace) -> None:
    sampling = check_flags(args)
    interactive = args.prompt is None and sys.stdin.isatty()
    if interactive and args.json:
        raise ArgumentError("--json needs a prompt, as an argument or on stdin")
    name, checkpoint, tokenizer = open_model(args.model)
    draft = open_draft(args.draft, checkpoint, tokenizer)
    if not interactive:  # check the prompt before reading the weights
        prompt = read_prompt(args.prompt)
        ids = encode_prompt(checkpoint.config, tokenizer, prompt, args)
    start = time.perf_counter()
    models = load_heads(checkpoint, args.head)
    guesses = load(draft, None) if isinstance(draft, Checkpoint) else draft
    load_s = time.perf_counter() - start

    def continuations() -> list[Continuation]:
        """One continuation by each model, all with the same seed."""
        seed = check_seed(args.seed)
        return [Continuation(model, tokenizer, sampling, seed, guesses, args) for model in models]

    if interactive:
        prompt_loop(continuations, checkpoint.config, tokenizer, args)
        return
    if not args.json:
        for continuation in continuations():
            continuation.write(ids)
        return
    documents = []
    for continuation in continuations():
        continuation.complete(ids)
        documents.append(
            {
                "model": name,
                "head": continuation.head,
                "prompt": prompt,
                "prompt_ids": ids,
                "seed": continuation.seed,
                "samples": continuation.samples_json(),
                "draft": continuation.draft_json(),
                "timing": {"load_s": load_s, **continuation.timing},
            }
        )
    print_json(documents)


def check_flags(args: argparse.Namespace) -> Sampling:
    """The sampling that the flags ask for. Raises ArgumentError for flags that exclude each other."""
    if args.greedy:
        for flag in ("temperature", "top_k", "top_p"):
            if getattr(args, flag) is not None:
                raise ArgumentError(
                    f"--greedy and --{flag.replace('_', '-')} exclude each other: "
                    "greedy takes the likeliest token every time"
                )
    if "" in args.stop:
        raise ArgumentError("--stop needs a text that is not empty")
    if args.num_samples > MAX_SAMPLES:
        raise ArgumentError(f"--num-samples must be at most {MAX_SAMPLES}, got {args.num_samples}")
    return Sampling(
        1.0 if args.temperature is None else args.temperature, args.top_k, args.top_p, args.greedy
    )


def open_draft(source: str, checkpoint: Checkpoint, tokenizer: Tokenizer) -> Checkpoint | str | None:
    """What --draft names: a checkpoint, "lookup", or None. Raises ArgumentError if it cannot guess."""
    if source in ("none", LOOKUP):
        return None if source == "none" else source
    _, path = find(source)
    draft = open_checkpoint(path)
    if draft.path == checkpoint.path:
        raise ArgumentError(f"--draft {short_repr(source)} is the model itself; name a smaller one")
    check_draft_model(draft.config, checkpoint.config)
    if vocabulary(read_tokenizer(path), draft) != vocabulary(tokenizer, checkpoint):
        raise ArgumentError(
            f"--draft {short_repr(source)} has another vocabulary: "
            "its merges or special tokens are not those of the model"
        )
    return draft


def read_prompt(argument: str | None) -> str:
    """The argument, the text on stdin, or both: the text on stdin, then the argument on a new line."""
    if argument is None or argument == "-":
        return without_newline(read_text("-"))
    text = read_stdin_beside_argument()
    if not without_newline(text):
        return argument
    note("the prompt is the text on stdin, then PROMPT on a new line; to leave stdin out, add < /dev/null")
    return text + ("" if text.endswith("\n") else "\n") + argument


def read_stdin_beside_argument() -> str:
    """The text on stdin; "" if it is a terminal, sends nothing, or cannot be read (as under nohup).

    A stdin inherited from another program may be a pipe that never sends anything and never ends. So the
    wait for the first byte is limited. After that byte, stdin is read to its end.
    """
    if sys.stdin.isatty():
        return ""
    try:
        # Windows has no select for pipes, so there the wait is not limited.
        if os.name != "posix" or select.select([sys.stdin], [], [], STDIN_WAIT)[0]:
            return read_text("-")
        note(f"nothing on stdin for {STDIN_WAIT:.0f} s, so it is left out; to skip the wait, add < /dev/null")
    except OSError:
        pass
    return ""


def without_newline(text: str) -> str:
    """The text less one final newline."""
    return text.removesuffix("\n").removesuffix("\r")


def encode_prompt(config: Config, tokenizer: Tokenizer, prompt: str, args: argparse.Namespace) -> list[int]:
    """The prompt's ids, with --truncate the last of them. Raises ArgumentError for a bad prompt."""
    if not prompt:
        start = f' (to start from nothing: --allow-special "{EOT}")' if tokenizer.eot_id is not None else ""
        raise ArgumentError(f"the prompt is empty: GPT-2 needs at least one token to continue{start}")
    ids = encode(tokenizer, prompt, args.allow_special)
    kept = kept_tokens(config.n_ctx, args.max_new_tokens)
    if args.truncate and len(ids) > kept:
        note(f"--truncate drops the first {len(ids) - kept:,} of the prompt's {len(ids):,} tokens")
        ids = ids[-kept:]
    elif len(ids) > config.n_ctx:
        raise ArgumentError(
            f"the prompt has {len(ids)} tokens, more than the model's context of {config.n_ctx}; "
            f"to keep its last {kept}, add --truncate"
        )
    return check_prompt(ids, config)


class Continuation:
    """The samples by which one model continues a prompt, and how long they took."""

    def __init__(
        self,
        model: GPT2,
        tokenizer: Tokenizer,
        sampling: Sampling,
        seed: int,
        draft: GPT2 | str | None,
        args: argparse.Namespace,
    ) -> None:
        self.samples = [
            TextSample(tokenizer, args.stop, model.config.eos_token_ids) for _ in range(args.num_samples)
        ]
        self.seed, self.head = seed, model.config.head
        self.timing: dict[str, float | None] = {"prefill_s": None, "decode_tokens_per_s": None}
        self._model, self._tokenizer, self._args = model, tokenizer, args
        self._draft = None if draft is None else Draft(draft, model)
        self._sampling = sampling
        self._predictions: list[list[Prediction]] = [[] for _ in self.samples]  # with --logprobs

    def grow(self, ids: list[int]) -> Iterator[None]:
        """Add a token to one sample after the other; measure the time."""
        start = time.perf_counter()
        n = self._args.max_new_tokens
        with Progress("reading the prompt", len(ids), "token") as progress:
            record = None if self._args.logprobs is None else self.record
            texts = generate_text(
                self._model,
                ids,
                self.samples,
                n,
                self._sampling,
                self.seed,
                self._draft,
                progress.add,
                record,
            )
            next(texts)
        first = time.perf_counter()
        self.timing["prefill_s"] = first - start
        yield
        for _ in texts:
            yield
        # The first token of each sample came with the prompt's logits.
        decoded = sum(max(0, len(sample.ids) - 1) for sample in self.samples)
        if decoded:
            self.timing["decode_tokens_per_s"] = decoded / (time.perf_counter() - first)

    def record(self, index: int, logits: Any, token: int) -> None:
        """Keep the prediction of a token that sample `index` chose."""
        self._predictions[index] += predict(logits, [token], self._args.logprobs)

    def complete(self, ids: list[int]) -> None:
        """Generate all samples before anything is printed."""
        with Progress("generating", self._args.max_new_tokens * len(self.samples), "token") as progress:
            for _ in self.grow(ids):
                progress.add(1)

    def predictions(self, index: int) -> list[Prediction]:
        """The predictions of a sample's tokens; none without --logprobs."""
        return self._predictions[index][: len(self.samples[index].ids)]  # the end-of-text token is not in ids

    def samples_json(self) -> list[dict[str, Any]]:
        documents: list[dict[str, Any]] = []
        for index, sample in enumerate(self.samples):
            documents.append({"ids": sample.ids, "text": sample.text, "finish_reason": sample.finish_reason})
            if self._args.logprobs is not None:
                listed = (prediction_json(self._tokenizer, p, "logprob") for p in self.predictions(index))
                documents[-1]["logprobs"] = list(listed)
        return documents

    def draft_json(self) -> dict[str, int] | None:
        """The numbers of guessed tokens and of right guesses."""
        if self._draft is None:
            return None
        return {"drafted": self._draft.drafted, "accepted": self._draft.accepted}

    def write(self, ids: list[int], before: str = "") -> None:
        """Print the samples one below the other while they grow, each after the text `before`."""
        growth = self.grow(ids)
        if self._args.no_stream:
            self.complete(ids)
        for number, sample in enumerate(self.samples, 1):
            of = f"{number} of {len(self.samples)}" if len(self.samples) > 1 else ""
            if heading := ", ".join(filter(None, [self.head if self._args.head == BOTH else "", of])):
                print(f"--- {heading} ---")
            print(printable(before), end="", flush=True)
            printed = 0
            while True:
                print(printable(sample.text[printed:]), end="", flush=True)
                printed = len(sample.text)
                if sample.finish_reason is not None:
                    break
                next(growth)
            print()
            if self._args.logprobs is not None:
                rows = ((prediction.token, prediction) for prediction in self.predictions(number - 1))
                print()
                print_predictions(self._tokenizer, "logprob", rows)


def prompt_loop(
    continuations: Callable[[], list[Continuation]],
    config: Config,
    tokenizer: Tokenizer,
    args: argparse.Namespace,
) -> None:
    """Continue each prompt that is typed. Ctrl-C stops a text; Ctrl-D, or Ctrl-C twice, leaves the loop."""
    with suppress(ImportError):  # input() then has line editing and a history
        import readline

        if os.environ.get("TERM", "dumb") != "dumb":  # the terminal marks a paste, so that it is one input
            readline.parse_and_bind("set enable-bracketed-paste on")
    stdin: Any = sys.stdin
    stdin.reconfigure(errors="surrogateescape")  # the tokenizer has an error for bytes that are not text
    print("Type the beginning of a text. Ctrl-C stops its continuation, Ctrl-D leaves.", file=sys.stderr)
    interrupted = False  # by Ctrl-C at the last prompt
    while True:
        prompt = ""
        try:
            prompt = read_typed()
            interrupted = False
            if prompt:
                ids = encode_prompt(config, tokenizer, prompt, args)
                # On a terminal, the continuation stands on the same line as the end of its prompt.
                before = prompt.rpartition("\n")[2] if sys.stdout.isatty() else ""
                for continuation in continuations():
                    continuation.write(ids, before)
        except EOFError:
            print(file=sys.stderr)
            return
        except TiedGPTError as error:
            print_error(error)
        except KeyboardInterrupt:
            if prompt:  # its continuation ends here
                print()
                continue
            if interrupted:
                raise
            interrupted = True
            print("\nTo leave, press Ctrl-D, or Ctrl-C again.", file=sys.stderr)


def read_typed() -> str:
    """One prompt from the terminal: a line, or all lines of a paste."""
    on_terminal = sys.stdout.isatty()
    if not on_terminal:  # stdout is for the generated text alone
        print("> ", end="", file=sys.stderr, flush=True)
    lines = [input("> " if on_terminal else "")]
    # Where readline or the terminal does not mark a paste, its other lines are there at once.
    while os.name == "posix" and select.select([sys.stdin], [], [], PASTE_GAP)[0]:
        try:
            lines.append(input())
        except EOFError:
            break
    return without_newline("\n".join(lines))
