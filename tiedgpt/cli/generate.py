"""`tiedgpt generate`: text that continues a prompt."""

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

from ..checkpoints import open_checkpoint
from ..checkpoints.vocabulary import read_tokenizer
from ..checks import check_count, check_prompt, check_seed
from ..errors import ArgumentError, TiedGPTError
from ..generation import Sampling, TextSample, generate_text
from ..model import GPT2
from ..tokenizer import EOT, Tokenizer
from .common import (
    Progress,
    add_command,
    add_head_option,
    add_json_option,
    add_model_option,
    add_special_option,
    encode,
    find,
    load,
    printable,
    read_stdin,
)

MAX_SAMPLES = 10_000  # of one batch: long before, it no longer fits into memory

EXAMPLES = """\
  tiedgpt generate "Alan Turing theorized that computers would one day become"
  tiedgpt generate --greedy --head untied "The capital of France is"
  tiedgpt generate --temperature 0.8 --top-k 40 --seed 1 --num-samples 3 "In a shocking finding,"
  cat story.txt | tiedgpt generate --stop "." -n 100
  tiedgpt generate --allow-special "<|endoftext|>"
"""


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "generate", run, "Sample text that continues a prompt.", EXAMPLES)
    add = parser.add_argument
    add(
        "prompt",
        nargs="?",
        metavar="PROMPT",
        help="text to continue; without it, stdin (less one final newline) or, on a terminal, a prompt loop",
    )
    add_model_option(parser)
    add_head_option(parser)
    add("-n", "--max-new-tokens", type=int, default=40, metavar="N", help="tokens at most (default: 40)")
    add("--temperature", type=float, metavar="T", help="below 1 safer, above 1 wilder (default: 1)")
    add("--top-k", type=int, metavar="K", help="draw from the K likeliest tokens only")
    add(
        "--top-p",
        type=float,
        metavar="P",
        help="draw from the fewest tokens that have probability P together",
    )
    add("--greedy", action="store_true", help="always the likeliest token, no draw")
    add("--seed", type=int, metavar="S", help="make the draws repeat (default: new ones each time)")
    add("--num-samples", type=int, default=1, metavar="N", help="continuations to sample (default: 1)")
    add("--stop", action="append", default=[], metavar="TEXT", help="end before TEXT (may be repeated)")
    add_special_option(parser)
    add("--no-stream", action="store_true", help="print when complete, not token by token")
    add_json_option(parser)


def run(args: argparse.Namespace) -> None:
    sampling = check_flags(args)
    interactive = args.prompt is None and sys.stdin.isatty()
    if interactive and args.json:
        raise ArgumentError("--json needs a prompt, as an argument or on stdin")
    name, path = find(args.model)
    checkpoint = open_checkpoint(path)
    tokenizer = read_tokenizer(path)
    # The prompt is read before the weights are: a mistake in it should not cost the wait.
    if not interactive:
        prompt = read_stdin().removesuffix("\n").removesuffix("\r") if args.prompt is None else args.prompt
        ids = check_prompt(encode_prompt(tokenizer, prompt, args), checkpoint.config)
    start = time.perf_counter()
    model = load(checkpoint, args.head)
    load_s = time.perf_counter() - start

    if interactive:
        prompt_loop(model, tokenizer, sampling, args)
        return
    answer = Answer(model, tokenizer, sampling, args)
    if not args.json:
        answer.print(ids)
        return
    answer.complete(ids)
    document = {
        "model": name,
        "head": model.config.head,
        "prompt": prompt,
        "prompt_ids": ids,
        "seed": answer.seed,
        "samples": [
            {"ids": sample.ids, "text": sample.text, "finish_reason": sample.finish_reason}
            for sample in answer.samples
        ],
        "timing": {"load_s": load_s, **answer.timing},
    }
    print(json.dumps(document))


def check_flags(args: argparse.Namespace) -> Sampling:
    """The sampling that the flags ask for. Raises ArgumentError that names the flag."""
    if args.greedy:
        for flag in ("temperature", "top_k", "top_p"):
            if getattr(args, flag) is not None:
                raise ArgumentError(
                    f"--greedy and --{flag.replace('_', '-')} exclude each other: "
                    "greedy always takes the likeliest token"
                )
    if "" in args.stop:
        raise ArgumentError("--stop needs a text that is not empty")
    try:
        check_count("max_new_tokens", args.max_new_tokens)
        if check_count("num_samples", args.num_samples) > MAX_SAMPLES:
            raise ArgumentError(f"num_samples must be at most {MAX_SAMPLES}, got {args.num_samples}")
        check_seed(args.seed)
        temperature = 1.0 if args.temperature is None else args.temperature
        return Sampling(temperature, args.top_k, args.top_p, args.greedy)
    except ArgumentError as error:  # its first word is the argument's name in the library
        name, _, rest = str(error).partition(" ")
        raise ArgumentError(f"--{name.replace('_', '-')} {rest}") from error


def encode_prompt(tokenizer: Tokenizer, prompt: str, args: argparse.Namespace) -> list[int]:
    """The prompt's ids. Raises ArgumentError for an empty prompt or a special token that is not allowed."""
    if not prompt:
        start = f' (to start from nothing: --allow-special "{EOT}")' if tokenizer.eot_id is not None else ""
        raise ArgumentError(f"the prompt is empty: GPT-2 needs at least one token to continue{start}")
    return encode(tokenizer, prompt, args.allow_special)


class Answer:
    """The samples that continue one prompt, and how long they took."""

    def __init__(
        self, model: GPT2, tokenizer: Tokenizer, sampling: Sampling, args: argparse.Namespace
    ) -> None:
        self.samples = [
            TextSample(tokenizer, args.stop, model.config.eos_token_ids) for _ in range(args.num_samples)
        ]
        self.seed = check_seed(args.seed)
        self.timing: dict[str, float | None] = {"prefill_s": None, "decode_tokens_per_s": None}
        self._model, self._sampling, self._args = model, sampling, args

    def texts(self, ids: list[int]) -> Iterator[tuple[int, str]]:
        """Let the samples grow; yield (a sample's number, new text) as it comes. Measures the time."""
        ids = check_prompt(ids, self._model.config)
        start = time.perf_counter()
        with Progress("reading the prompt", len(ids), "token") as progress:
            texts = generate_text(
                self._model,
                ids,
                self.samples,
                self._args.max_new_tokens,
                self._sampling,
                self.seed,
                progress.add,
            )
            first_text = next(texts)
        first = time.perf_counter()
        self.timing["prefill_s"] = first - start
        yield first_text
        yield from texts
        # Reading the prompt gave each sample its first token.
        decoded = sum(max(0, len(sample.ids) - 1) for sample in self.samples)
        if decoded:
            self.timing["decode_tokens_per_s"] = decoded / (time.perf_counter() - first)

    def complete(self, ids: list[int]) -> None:
        """Let the samples grow to their ends before anything is shown."""
        with Progress("generating", self._args.max_new_tokens * len(self.samples), "token") as progress:
            for _ in self.texts(ids):
                progress.add(1)

    def print(self, ids: list[int]) -> None:
        """The samples on stdout, one below the other: each as it grows, as soon as those above have ended."""
        if self._args.no_stream:
            self.complete(ids)
            for number, sample in enumerate(self.samples):
                self._print_heading(number)
                print(printable(sample.text))
            return
        waiting = [""] * len(self.samples)
        current = 0
        self._print_heading(current)
        for number, text in self.texts(ids):
            waiting[number] += text
            while current < len(self.samples):
                print(printable(waiting[current]), end="", flush=True)
                waiting[current] = ""
                if self.samples[current].finish_reason is None:
                    break
                print()
                current += 1
                if current < len(self.samples):
                    self._print_heading(current)

    def _print_heading(self, number: int) -> None:
        if len(self.samples) > 1:
            print(f"--- {number + 1} of {len(self.samples)} ---")


def prompt_loop(model: GPT2, tokenizer: Tokenizer, sampling: Sampling, args: argparse.Namespace) -> None:
    """Answer one line after another. Ctrl-C ends an answer, Ctrl-D the loop."""
    with suppress(ImportError):  # a history and line editing for input(), where the system has them
        import readline  # noqa: F401
    stdin: Any = sys.stdin
    stdin.reconfigure(errors="surrogateescape")  # bytes that are not text reach the error that says so
    print("Type the beginning of a text. Ctrl-C stops the answer, Ctrl-D leaves.", file=sys.stderr)
    while True:
        try:
            prompt = input("> ")
        except EOFError:
            print(file=sys.stderr)
            return
        if not prompt:
            continue
        try:
            Answer(model, tokenizer, sampling, args).print(encode_prompt(tokenizer, prompt, args))
        except KeyboardInterrupt:
            print()
        except TiedGPTError as error:
            print(f"tiedgpt: error: {error}", file=sys.stderr)
