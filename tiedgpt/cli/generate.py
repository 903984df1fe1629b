"""Sample text that continues a prompt.

The prompt is PROMPT, or the text on stdin less one final newline. On a terminal, without PROMPT,
each line that you enter is continued.

examples:
  tiedgpt generate "Alan Turing theorized that computers would one day become"
  tiedgpt generate --greedy --logprobs 3 "The capital of France is"
  tiedgpt generate --head both --seed 1 "The capital of France is"
  tiedgpt generate -t 0.8 -k 40 -s 1 --num-samples 3 "In a shocking finding,"
  cat story.txt | tiedgpt generate --truncate --stop "\\n" -n 100
  tiedgpt generate --allow-special "<|endoftext|>"
"""

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ..checkpoints.opened import generation_settings
from ..errors import COUNT, ArgumentError, Range, TiedGPTError, short_repr
from ..generation import Sampling, TextSample, check_prompt_ids, grow, sample_tokens, seed_or_new
from ..gpt2.config import Config
from ..gpt2.model import GPT2
from ..gpt2.tokenizer import EOT, Tokenizer
from ..study.predictions import predict
from ..study.reports import SurpriseReport, surprise_report
from . import inputs, options
from .inputs import encode_text, read_prompt
from .output import ProgressBar, note, print_json_by_head, print_predictions, printable

MAX_SAMPLES = 10_000  # in one batch; memory runs out long before


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add(parser, "prompt", "model", "heads", "allow_special", "json")
    parser.add_argument(
        "-n",
        "--max-new-tokens",
        metavar="N",
        type=options.whole_number,
        default=40,
        help="generate at most N tokens (default: 40)",
    )
    options.add_fields(parser, Sampling)
    parser.add_argument(
        "--stop",
        metavar="TEXT",
        type=options.stop_text,
        action="append",
        default=[],
        help=r"end before TEXT, in which \n is a line end (may be repeated)",
    )
    parser.add_argument(
        "--num-samples",
        metavar="M",
        type=options.whole_number,
        default=1,
        help="continue the prompt M times (default: 1)",
    )
    parser.add_argument(
        "-s",
        "--seed",
        metavar="S",
        type=options.whole_number,
        help="the same S gives the same text (default: a new one)",
    )
    parser.add_argument(
        "--truncate",
        action="store_true",
        help="if the context has no room for a prompt and N more tokens, drop the prompt's "
        "beginning",
    )
    parser.add_argument(
        "--logprobs",
        metavar="K",
        type=options.whole_number,
        help="also list the log probability, before any other flag changes it, of each "
        "token and the K likeliest others",
    )
    parser.add_argument(
        "--echo", action="store_true", help="print the prompt too, before each sample"
    )


def run(args: argparse.Namespace) -> None:
    given = options.values_of(args, Sampling)
    sampling = Sampling(**given)
    COUNT.check("seed", args.seed or 0)  # each check raises for a number out of range
    COUNT.check("logprobs", args.logprobs or 0)
    Range(1).check("max_new_tokens", args.max_new_tokens)
    Range(1, MAX_SAMPLES).check("num_samples", args.num_samples)
    if sampling.is_greedy:
        note_unused(given)
    if args.echo and args.json:
        raise ArgumentError("--echo cannot be given with --json: the document has the prompt")
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    is_interactive = args.prompt is None and on_terminal and not args.json

    # Everything is checked before the weights are read, which takes longer.
    prompt = "" if is_interactive else read_prompt(args.prompt)
    opened = inputs.open_model(args.model)
    config, tokenizer = opened.config, opened.tokenizer
    ids = [] if is_interactive else prompt_ids(prompt, tokenizer, config, args)
    file, settings = generation_settings(opened.folder)
    if settings:
        note_settings_of_model(file, settings, given, sampling.is_greedy)

    start = time.perf_counter()
    heads = inputs.load_heads(opened, args.head)
    load_s = time.perf_counter() - start

    if is_interactive:
        prompt_loop(args, sampling, tokenizer, heads)
        return
    seed = seed_or_new(args.seed)
    answers = answers_of(args, sampling, tokenizer, heads, ids, seed)
    if args.json:
        question = {"model": opened.name, "prompt": prompt, "prompt_ids": ids}
        print_json_by_head(question, [answer.report(load_s) for answer in answers])
    else:
        for answer in answers:
            answer.print_samples(before=prompt if args.echo else "")
        if args.seed is None and not sampling.is_greedy:
            note(f"the same text again: --seed {seed}")


def note_unused(given: dict[str, Any]) -> None:
    """Say that -t 0 is --greedy, and which settings of Sampling then change nothing."""
    changes_greedy = {each.name: each.metadata["changes_greedy"] for each in fields(Sampling)}
    if given.get("temperature") == 0:
        note("the likeliest token is taken every time, as with --greedy")
        changes_greedy["temperature"] = True
    unused = [options.flag_of(name) for name in given if not changes_greedy[name]]
    if unused:
        note(f"no effect of {' and '.join(unused)}: the likeliest token is taken")


def note_settings_of_model(
    file: str, settings: dict[str, Any], given: dict[str, Any], is_greedy: bool
) -> None:
    """Say which settings of the model's file are not used, and how to use them.

    file: generation_config.json, or config.json. given: the settings that the flags give. With
    greedy, settings that change nothing are not named.
    """
    usable = []  # settings and their values
    flags = []  # that give them
    others = dict(settings)  # for which there is no flag
    for field in fields(Sampling):
        value = others.pop(field.name, None)
        if field.name in given or (is_greedy and not field.metadata["changes_greedy"]):
            continue
        if value in field.metadata.get("accepted", ()):
            usable.append(f"{field.name} {value}")
            flags.append(f"{options.flag_of(field.name)} {value}")
        elif value is not None:
            others[field.name] = value
    if others.pop("stop_strings", None):
        usable.append("stop_strings")
        flags.append("--stop TEXT")
    if usable:
        note(
            f"{file} of the model says {', '.join(usable)}, which is not used; to "
            f"use it: {' '.join(flags)}"
        )
    if others:
        names = ", ".join(short_repr(name) for name in others)
        note(f"{file} of the model says {names}, which tiedgpt does not have")


def prompt_ids(
    prompt: str, tokenizer: Tokenizer, config: Config, args: argparse.Namespace
) -> list[int]:
    """The ids of a prompt; with --truncate, the last ones of a long prompt.

    Raises ArgumentError for a prompt that the model cannot continue, and says which flag may help.
    """
    ids = encode_text(tokenizer, prompt, args.allow_special)
    # The new tokens have room beside the kept ones, unless they are more than half the context. At
    # least one token is kept, even of a context of one.
    kept = max(config.n_ctx - args.max_new_tokens, config.n_ctx // 2, 1)
    if args.truncate and len(ids) > kept:
        note(f"--truncate drops the first {len(ids) - kept:,} of the prompt's {len(ids):,} tokens")
        ids = ids[-kept:]
    try:
        return check_prompt_ids(ids, config)
    except ArgumentError as error:
        hint = ""
        if len(ids) > config.n_ctx:
            hint = f"; to keep its last {kept}, add --truncate"
        elif not ids and tokenizer.eot_id is not None:
            hint = f' (to start from nothing: --allow-special "{EOT}")'
        raise ArgumentError(f"{error}{hint}") from error


@dataclass
class Answer:
    """The samples by which a model continues a prompt, and what --logprobs lists of them."""

    sampling: Sampling
    tokenizer: Tokenizer
    model: GPT2
    ids: list[int]  # of the prompt
    seed: int
    max_new_tokens: int
    samples: list[TextSample]
    # What --logprobs lists of each token of a sample, the end-of-text token included
    logprobs: list[list[SurpriseReport]]
    alternatives: int | None  # that --logprobs lists of each token; None: it lists nothing
    names_head: bool  # whether the heading of a sample names the head

    def grow(self) -> Iterator[None]:
        """Let all samples grow by a token each time. A bar shows how far the prompt is read."""
        with ProgressBar("reading the prompt", len(self.ids), "token") as progress:
            steps = sample_tokens(
                self.model,
                self.ids,
                max_new_tokens=self.max_new_tokens,
                sampling=self.sampling,
                seed=self.seed,
                num_samples=len(self.samples),
                progress=progress.add,
                record=None if self.alternatives is None else self.record,
            )
            yield from grow(self.samples, steps)

    def record(self, number: int, logits: np.ndarray, token: int) -> None:
        """Note the log probability of a token of a sample, and its alternatives."""
        assert self.alternatives is not None  # else `grow` does not ask for it
        (prediction,) = predict(logits, [token], self.alternatives)
        self.logprobs[number].append(surprise_report(self.tokenizer, prediction, "logprob"))

    def report(self, load_s: float) -> dict[str, Any]:
        """Generate all samples; return what --json prints of them."""
        # The first step also reads the prompt, so it is timed alone.
        start = time.perf_counter()
        steps = self.grow()
        next(steps)
        after_first = time.perf_counter()
        with ProgressBar("generating", self.max_new_tokens, "token") as progress:
            progress.add(1)  # the first step
            for _ in steps:
                progress.add(1)
        decode_s = time.perf_counter() - after_first

        documents = []
        for sample, listed in zip(self.samples, self.logprobs, strict=True):
            document: dict[str, Any] = {
                "ids": sample.ids,
                "text": sample.text,
                "finish_reason": sample.finish_reason,
            }
            if self.alternatives is not None:
                document["logprobs"] = listed[: len(sample.ids)]  # without the end-of-text token
            documents.append(document)
        # The first token of each sample came with the logits of the prompt: it was not decoded.
        decoded = sum(max(0, len(sample.ids) - 1) for sample in self.samples)
        return {
            "head": self.model.config.head,
            "seed": self.seed,
            "samples": documents,
            "timing": {
                "load_s": load_s,
                "prefill_s": after_first - start,
                "decode_tokens_per_s": decoded / decode_s if decoded > 0 else None,
            },
        }

    def print_samples(self, before: str) -> None:
        """Print the samples one below the other while they grow, each after the text `before`."""
        steps = self.grow()
        for number, sample in enumerate(self.samples):
            headings = []
            if self.names_head:
                headings.append(self.model.config.head)
            if len(self.samples) > 1:
                headings.append(f"{number + 1} of {len(self.samples)}")
            if headings:
                print(f"--- {', '.join(headings)} ---")

            # The samples grow together, so some text of this one may be there already.
            print(printable(before), end="")
            shown = 0
            while sample.finish_reason is None or shown < len(sample.text):
                print(printable(sample.text[shown:]), end="", flush=True)
                shown = len(sample.text)
                if sample.finish_reason is None:
                    next(steps, None)  # one more token of each sample; the last step completes them
            print()

            if self.alternatives is not None:
                print()
                # The predictions may end with that of the end-of-text token, which is not in ids.
                rows = zip(sample.ids, self.logprobs[number], strict=False)
                print_predictions(self.tokenizer, "logprob", rows)


def answers_of(
    args: argparse.Namespace,
    sampling: Sampling,
    tokenizer: Tokenizer,
    heads: list[GPT2],
    ids: list[int],
    seed: int,
) -> list[Answer]:
    """An answer by each head."""
    answers = []
    for model in heads:
        samples = []
        for _ in range(args.num_samples):
            samples.append(TextSample(tokenizer, args.stop, model.config.eos_token_ids))
        answer = Answer(
            sampling,
            tokenizer,
            model,
            ids,
            seed,
            max_new_tokens=args.max_new_tokens,
            samples=samples,
            logprobs=[[] for _ in samples],
            alternatives=args.logprobs,
            names_head=args.head == "both",
        )
        answers.append(answer)
    return answers


def prompt_loop(
    args: argparse.Namespace, sampling: Sampling, tokenizer: Tokenizer, heads: list[GPT2]
) -> None:
    """Continue each line that is typed, until Ctrl-D. An error does not end it."""
    with suppress(ImportError):  # Windows has no readline
        import readline  # noqa: F401  (it gives input() line editing and a history)
    # Bytes that are not text are let through here: the tokenizer has an error for them.
    stdin: Any = sys.stdin
    stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    print(
        "Type the beginning of a text. Ctrl-C stops its continuation, Ctrl-D leaves.",
        file=sys.stderr,
    )
    while True:
        try:
            line = input("> ")
            if line == "":
                continue
            ids = prompt_ids(line, tokenizer, heads[0].config, args)
            seed = seed_or_new(args.seed)
            for answer in answers_of(args, sampling, tokenizer, heads, ids, seed):
                answer.print_samples(before=line)
        except EOFError:
            print()
            return
        except TiedGPTError as error:
            print(f"tiedgpt: error: {error}", file=sys.__stderr__)  # with --quiet, too
        except KeyboardInterrupt:  # it ends the text or the line, not the loop
            print()
