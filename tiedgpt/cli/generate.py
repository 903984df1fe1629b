"""Sample text that continues a prompt.

The prompt is PROMPT, or the text on stdin less one final newline. On a terminal, without PROMPT,
each line or paste that you enter is continued.

examples:
  tiedgpt generate "Alan Turing theorized that computers would one day become"
  tiedgpt generate --greedy --logprobs 3 "The capital of France is"
  tiedgpt generate --head both --seed 1 "The capital of France is"
  tiedgpt generate -t 0.8 -k 40 -s 1 --num-samples 3 "In a shocking finding,"
  cat story.txt | tiedgpt generate --truncate --stop "." -n 100
  tiedgpt generate --allow-special "<|endoftext|>"
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..checkpoints import Opened, open_model
from ..errors import ArgumentError, Range, TiedGPTError, short_repr
from ..gpt2.checks import check_prompt_ids, seed_or_new
from ..gpt2.model import GPT2
from ..gpt2.tokenizer import EOT, Tokenizer
from ..inference.drafts import LOOKUP, Draft
from ..inference.prompts import encode_text, kept_tokens
from ..inference.text import TextGeneration
from ..sampling import Sampling
from ..study.predictions import predict, predicted_json
from . import models, options
from .messages import ProgressBar, note, print_error
from .output import print_json, printable
from .tables import print_predictions
from .texts import read_prompt

MAX_SAMPLES = 10_000  # in one batch; memory runs out long before


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_prompt(parser)
    options.add_question(parser)
    options.add_sampling(parser)
    parser.add_argument(
        "--num-samples",
        metavar="N",
        type=options.number(Range(1, MAX_SAMPLES)),
        default=1,
        help="samples of the prompt (default: 1)",
    )
    parser.add_argument(
        "-s",
        "--seed",
        metavar="S",
        type=options.count,
        help="the same S gives the same text (default: new)",
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
        type=options.count,
        help="also list the log probability, before any other flag changes it, of each "
        "token and the K likeliest others",
    )
    parser.add_argument(
        "--echo", action="store_true", help="print the prompt too, before each sample"
    )
    parser.add_argument(
        "--draft",
        metavar="MODEL",
        default=LOOKUP,
        help="what guesses tokens, for speed: lookup (in the text so far; default), none, or a "
        "smaller MODEL",
    )


def run(args: argparse.Namespace) -> None:
    sampling = options.sampling_of(args)
    if args.echo and args.json:
        raise ArgumentError("--echo cannot be given with --json: the document has the prompt")
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    is_interactive = args.prompt is None and on_terminal and not args.json
    prompt = None
    if not is_interactive:
        prompt = read_prompt(args.prompt)

    # Everything is checked before the weights are read, which takes longer.
    opened = open_model(args.model, note)
    tokenizer = opened.tokenizer
    opened_draft = open_draft(args.draft, opened)
    ids: list[int] = []
    if prompt is not None:
        ids = prompt_ids(prompt, opened, args)

    start = time.perf_counter()
    loaded = models.load_heads(opened.checkpoint.path, args.head)
    guesses = load_draft(args.draft, opened_draft)
    load_s = time.perf_counter() - start
    answerer = Answerer(args, sampling, tokenizer, loaded, guesses)

    if prompt is None:
        prompt_loop(answerer, opened, args)
    elif args.json:
        answers = answerer.answers(ids)
        print_json([report(answer, opened.name, prompt, load_s) for answer in answers])
    else:
        before = ""
        if args.echo:
            before = prompt
        print_answers(answerer.answers(ids), before)


def open_draft(source: str, opened: Opened) -> Opened | None:
    """The smaller model that --draft names; None for "lookup" and "none", which are not models.

    Raises ArgumentError for a model that cannot guess tokens of `opened`.
    """
    if source in ("none", LOOKUP):
        return None
    draft = open_model(source, note)
    if draft.checkpoint.path == opened.checkpoint.path:
        raise ArgumentError(f"--draft {short_repr(source)} is the model itself; name a smaller one")
    if draft.vocabulary != opened.vocabulary:
        raise ArgumentError(
            f"--draft {short_repr(source)} has other merges, special tokens or vocab_size than "
            "the model"
        )
    context = draft.checkpoint.config.n_ctx
    needed = opened.checkpoint.config.n_ctx
    if context < needed:
        raise ArgumentError(
            f"--draft {short_repr(source)} has a context of {context}; the model needs {needed}"
        )
    return draft


def load_draft(source: str, draft: Opened | None) -> GPT2 | str | None:
    """What guesses tokens: a model, "lookup", or None for nothing."""
    if source == "none":
        return None
    if draft is None:  # open_draft opens every source but "none" and "lookup"
        return LOOKUP
    return models.load(draft.checkpoint.path, None)


def prompt_ids(prompt: str, opened: Opened, args: argparse.Namespace) -> list[int]:
    """The ids of a prompt; with --truncate, the last ones of a long prompt.

    Raises ArgumentError for a prompt that the model cannot continue, and says which flag may help.
    """
    config = opened.checkpoint.config
    ids = encode_text(opened.tokenizer, prompt, args.allow_special)
    kept = kept_tokens(config.n_ctx, args.max_new_tokens)
    if args.truncate and len(ids) > kept:
        note(f"--truncate drops the first {len(ids) - kept:,} of the prompt's {len(ids):,} tokens")
        ids = ids[-kept:]
    try:
        return check_prompt_ids(ids, config)
    except ArgumentError as error:
        hint = ""
        if len(ids) > config.n_ctx:
            hint = f"; to keep its last {kept}, add --truncate"
        elif not ids and opened.tokenizer.eot_id is not None:
            hint = f' (to start from nothing: --allow-special "{EOT}")'
        raise ArgumentError(f"{error}{hint}") from error


@dataclass
class Answerer:
    """Loaded models, and how they continue a prompt."""

    args: argparse.Namespace
    sampling: Sampling
    tokenizer: Tokenizer
    models: list[GPT2]
    guesses: GPT2 | str | None  # what guesses tokens: see load_draft

    def answers(self, ids: list[int]) -> list["Answer"]:
        """The answer of each model to a prompt, all with the same seed.

        Without --seed, the seed is new for each prompt.
        """
        seed = seed_or_new(self.args.seed)
        answers = []
        for model in self.models:
            draft = None
            if self.guesses is not None:
                draft = Draft(self.guesses, model)
            generation = TextGeneration(
                model=model,
                tokenizer=self.tokenizer,
                prompt_ids=ids,
                max_new_tokens=self.args.max_new_tokens,
                sampling=self.sampling,
                seed=seed,
                num_samples=self.args.num_samples,
                stop=self.args.stop,
                draft=draft,
            )
            answers.append(Answer(generation, self.args.logprobs))
        return answers


@dataclass
class Answer:
    """The samples by which one model continues a prompt, and what --logprobs lists of them."""

    generation: TextGeneration
    logprobs: int | None  # alternatives to list for each token; None to list nothing
    # For each sample, the predictions of its tokens, the end-of-text token included
    predictions: list[list[dict[str, Any]]] = field(init=False)

    def __post_init__(self) -> None:
        self.predictions = [[] for _ in self.generation.samples]

    def steps(self) -> Iterator[tuple[int, str]]:
        """The steps of the generation, with a progress bar while it reads the prompt."""
        record = None  # what the generation calls with the logits of each new token
        if self.logprobs is not None:
            record = self.record
        length = len(self.generation.prompt_ids)
        with ProgressBar("reading the prompt", length, "token") as progress:
            yield from self.generation.steps(progress.add, record)

    def record(self, index: int, logits: np.ndarray, token: int) -> None:
        """Note the log probability of a token of sample `index`, and its alternatives."""
        (prediction,) = predict(logits, [token], self.logprobs or 0)
        tokenizer = self.generation.tokenizer
        self.predictions[index].append(predicted_json(tokenizer, prediction, "logprob"))


def report(answer: Answer, name: str, prompt: str, load_s: float) -> dict[str, Any]:
    """Generate all samples; return what --json prints of them."""
    generation = answer.generation
    # The first step also reads the prompt, so it is timed alone.
    start = time.perf_counter()
    steps = answer.steps()
    next(steps)
    after_first = time.perf_counter()
    max_tokens = generation.max_new_tokens * generation.num_samples
    with ProgressBar("generating", max_tokens, "token") as progress:
        for _ in steps:
            progress.add(1)
    decode_s = time.perf_counter() - after_first

    # The first token of each sample came with the logits of the prompt: it was not decoded.
    decoded = sum(max(0, len(sample.ids) - 1) for sample in generation.samples)
    rate = None
    if decoded > 0:
        rate = decoded / decode_s
    draft = None
    if generation.draft is not None:
        draft = {"drafted": generation.draft.drafted, "accepted": generation.draft.accepted}
    return {
        "model": name,
        "prompt": prompt,
        "prompt_ids": generation.prompt_ids,
        "head": generation.model.config.head,
        "seed": generation.seed,
        "samples": samples_json(answer),
        "draft": draft,
        "timing": {
            "load_s": load_s,
            "prefill_s": after_first - start,
            "decode_tokens_per_s": rate,
        },
    }


def samples_json(answer: Answer) -> list[dict[str, Any]]:
    """The samples as --json prints them."""
    documents = []
    for sample, predictions in zip(answer.generation.samples, answer.predictions, strict=True):
        document: dict[str, Any] = {
            "ids": sample.ids,
            "text": sample.text,
            "finish_reason": sample.finish_reason,
        }
        if answer.logprobs is not None:
            document["logprobs"] = predictions[: len(sample.ids)]  # without the end-of-text token
        documents.append(document)
    return documents


def print_answers(answers: list[Answer], before: str = "") -> None:
    """Print the answer of each model, each sample after the text `before`."""
    for answer in answers:
        print_samples(answer, before, with_head=len(answers) > 1)


def print_samples(answer: Answer, before: str, with_head: bool) -> None:
    """Print the samples one below the other while they grow, each after the text `before`."""
    generation = answer.generation
    steps = answer.steps()
    for number, sample in enumerate(generation.samples):
        headings = []
        if with_head:
            headings.append(generation.model.config.head)
        if generation.num_samples > 1:
            headings.append(f"{number + 1} of {generation.num_samples}")
        if headings:
            print(f"--- {', '.join(headings)} ---")

        # The samples grow together, so some text of this one may be there already.
        print(printable(before + sample.text), end="", flush=True)
        while sample.finish_reason is None:
            index, new_text = next(steps)
            # The text of another sample is in its `text` when its turn comes.
            if index == number:
                print(printable(new_text), end="", flush=True)
        print()

        if answer.logprobs is not None:
            print()
            # The predictions may end with that of the end-of-text token, which is not in ids.
            rows = zip(sample.ids, answer.predictions[number], strict=False)
            print_predictions(generation.tokenizer, "logprob", rows)


def prompt_loop(answerer: Answerer, opened: Opened, args: argparse.Namespace) -> None:
    """Answer each prompt that is typed, until Ctrl-D. An error does not end it."""
    prepare_to_type()
    print(
        "Type the beginning of a text. Ctrl-C stops its continuation, Ctrl-D leaves.",
        file=sys.stderr,
    )
    while True:
        prompt = ""
        try:
            # A paste of several lines is one input, which may end with a line break.
            prompt = input("> ").removesuffix("\n")
            if prompt:
                ids = prompt_ids(prompt, opened, args)
                # The answer repeats the line that it continues.
                last_line = prompt.rpartition("\n")[2]
                print_answers(answerer.answers(ids), before=last_line)
        except EOFError:
            print(file=sys.stderr)
            return
        except TiedGPTError as error:
            print_error(error, args.error_stream)
        except KeyboardInterrupt:
            if prompt:
                print(file=sys.stderr)
            else:
                print("\nTo leave, press Ctrl-D.", file=sys.stderr)


def prepare_to_type() -> None:
    """Give input() line editing and a history, and make a paste of several lines one input."""
    with suppress(ImportError):
        import readline  # it changes input()

        if os.environ.get("TERM", "dumb") != "dumb":  # the terminal marks where a paste ends
            readline.parse_and_bind("set enable-bracketed-paste on")
    # Bytes that are not text are let through here: the tokenizer has an error for them.
    stdin: Any = sys.stdin
    stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
