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
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..checkpoints.checkpoint import Checkpoint
from ..errors import ABOVE_0, ArgumentError, TiedGPTError, short_repr
from ..gpt2.checks import check_prompt_ids, seed_or_new
from ..gpt2.config import Config
from ..gpt2.model import GPT2
from ..gpt2.tokenizer import EOT, Tokenizer
from ..inference.drafts import LOOKUP, Draft
from ..inference.generation import TextSample, kept_tokens, push_steps, random_streams, sample_steps
from ..inference.sampling import Sampling
from ..study.predictions import predict, predicted_json
from . import common
from .terminal import ProgressBar, note, print_error, print_predictions, printable, read_prompt


def add_arguments(parser: common.Parser) -> None:
    parser.add_shared("[PROMPT]", *common.ASKING, *common.SAMPLING)
    add = parser.add
    divide = "divide the logits by T: below 1 sharpens, above 1 flattens (default: 1)"
    greedy = "; for the likeliest token always, use --greedy"
    add("-t --temperature T", divide, common.number(ABOVE_0, greedy))
    add("--greedy", "take the likeliest token every time")
    add("-s --seed S", "the same S gives the same text (default: new)", common.count)
    no_room = (
        "if the context has no room for a prompt and N more tokens, drop the prompt's beginning"
    )
    add("--truncate", no_room)
    listed = "also list the log probability, before -t, -k and -p, of each token and the K likeliest others"
    add("--logprobs K", listed, common.count)
    guess = "what guesses tokens, for speed: lookup (in the text so far; default), none, or a smaller MODEL"
    add("--draft MODEL", guess, default=LOOKUP)


def run(args: argparse.Namespace) -> None:
    if args.greedy and (args.temperature, args.top_k, args.top_p) != (None, None, None):
        raise ArgumentError(
            "--greedy excludes --temperature, --top-k and --top-p: it never samples"
        )
    sampling = Sampling(args.temperature or 1.0, args.top_k, args.top_p, args.greedy)
    head, as_json, seed, new, stop = args.head, args.json, args.seed, args.max_new_tokens, args.stop
    num_samples, logprobs = args.num_samples, args.logprobs
    interactive = args.prompt is None and sys.stdin.isatty() and sys.stdout.isatty() and not as_json
    prompt = "" if interactive else read_prompt(args.prompt)
    name, checkpoint, tokenizer = common.open_model(args.model)
    draft = open_draft(args.draft, checkpoint, tokenizer)
    # Check the prompt before reading the weights.
    kept = kept_tokens(checkpoint.config.n_ctx, new)
    encoded = partial(
        encode_prompt, checkpoint.config, tokenizer, kept, args.truncate, args.allow_special
    )
    ids = [] if interactive else encoded(prompt)
    start = time.perf_counter()
    models = common.load_heads(checkpoint, head)
    guesses = common.load(draft, None) if isinstance(draft, Checkpoint) else draft
    load_s = time.perf_counter() - start

    def continuations(ids: list[int]) -> Iterator[Continuation]:
        """One by each model, all with the same seed."""
        same = seed_or_new(seed)
        for model in models:
            draft = None if guesses is None else Draft(guesses, model)
            samples = [
                TextSample(tokenizer, stop, model.config.eos_token_ids) for _ in range(num_samples)
            ]
            yield Continuation(model, tokenizer, draft, ids, same, new, sampling, samples, logprobs)

    def write(ids: list[int], before: str = "") -> None:
        for continuation in continuations(ids):
            continuation.write(before, with_head=len(models) > 1)

    if interactive:
        prompt_loop(lambda typed, end: write(encoded(typed), end))
    elif as_json:
        given = {"model": name, "prompt": prompt, "prompt_ids": ids}
        found = (one.report(load_s) for one in continuations(ids))
        common.print_reports(given, models, found, as_json, print)
    else:
        write(ids)


def open_draft(
    source: str, checkpoint: Checkpoint, tokenizer: Tokenizer
) -> Checkpoint | str | None:
    """What --draft names: a checkpoint, "lookup", or None. Raises ArgumentError if it cannot
    guess."""
    if source in ("none", LOOKUP):
        return None if source == "none" else source
    _, draft, draft_tokenizer = common.open_model(source)
    named = f"--draft {short_repr(source)}"
    if draft.path == checkpoint.path:
        raise ArgumentError(f"{named} is the model itself; name a smaller one")
    if common.vocabulary(draft_tokenizer, draft) != common.vocabulary(tokenizer, checkpoint):
        raise ArgumentError(
            f"{named} has other merges, special tokens or vocab_size than the model"
        )
    if draft.config.n_ctx < (needed := checkpoint.config.n_ctx):
        raise ArgumentError(
            f"{named} has a context of {draft.config.n_ctx}; the model needs {needed}"
        )
    return draft


def encode_prompt(
    config: Config,
    tokenizer: Tokenizer,
    kept: int,
    truncate: bool,
    allow_special: bool,
    prompt: str,
) -> list[int]:
    """The prompt's ids, with --truncate the `kept` last ones. Raises ArgumentError for a bad
    prompt."""
    ids = common.encode(tokenizer, prompt, allow_special)
    if truncate and len(ids) > kept:
        note(f"--truncate drops the first {len(ids) - kept:,} of the prompt's {len(ids):,} tokens")
        ids = ids[-kept:]
    hint = ""
    if len(ids) > config.n_ctx:
        hint = f"; to keep its last {kept}, add --truncate"
    elif not ids and tokenizer.eot_id is not None:
        hint = f' (to start from nothing: --allow-special "{EOT}")'
    try:
        return check_prompt_ids(ids, config)
    except ArgumentError as error:
        raise ArgumentError(f"{error}{hint}") from error


@dataclass
class Continuation:
    """The samples by which one model continues a prompt."""

    model: GPT2
    tokenizer: Tokenizer
    draft: Draft | None
    ids: list[int]  # the prompt
    seed: int
    max_new_tokens: int
    sampling: Sampling
    samples: list[TextSample]
    logprobs: int | None
    listed: dict[int, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    def grow(self) -> Iterator[tuple[int, str]]:
        """Read the prompt; add a token to one sample after the other. Yields (index, its new
        text)."""

        def record(index: int, logits: Any, token: int) -> None:
            (prediction,) = predict(logits, [token], self.logprobs or 0)
            self.listed[index].append(predicted_json(self.tokenizer, prediction, "logprob"))

        prompts, streams = (
            [self.ids] * len(self.samples),
            random_streams(self.seed, len(self.samples)),
        )
        how = self.max_new_tokens, self.sampling, streams, self.draft
        listed = None if self.logprobs is None else record
        with ProgressBar("reading the prompt", len(self.ids), "token") as progress:
            yield from push_steps(
                sample_steps(self.model, prompts, *how, progress.add, listed), self.samples
            )

    def report(self, load_s: float) -> dict[str, Any]:
        """Generate all samples; return what --json prints of them."""
        start = time.perf_counter()
        growth = self.grow()
        next(growth)
        first = time.perf_counter()
        with ProgressBar(
            "generating", self.max_new_tokens * len(self.samples), "token"
        ) as progress:
            for _ in growth:
                progress.add(1)
        # The first token of each sample came with the prompt's logits.
        decoded = sum(max(0, len(sample.ids) - 1) for sample in self.samples)
        rate = decoded / (time.perf_counter() - first) if decoded else None
        samples: list[dict[str, Any]] = []
        for index, sample in enumerate(self.samples):
            samples.append(
                {"ids": sample.ids, "text": sample.text, "finish_reason": sample.finish_reason}
            )
            if self.logprobs is not None:  # without the end-of-text token
                samples[-1]["logprobs"] = self.listed[index][: len(sample.ids)]
        draft = self.draft and {"drafted": self.draft.drafted, "accepted": self.draft.accepted}
        timing = {"load_s": load_s, "prefill_s": first - start, "decode_tokens_per_s": rate}
        return {"seed": self.seed, "samples": samples, "draft": draft, "timing": timing}

    def write(self, before: str, with_head: bool) -> None:
        """Print the samples one below the other while they grow, each after the text `before`."""
        growth = self.grow()
        for number, sample in enumerate(self.samples):
            headings = [self.model.config.head] * with_head
            headings += [f"{number + 1} of {len(self.samples)}"] * (len(self.samples) > 1)
            if headings:
                print(f"--- {', '.join(headings)} ---")
            print(printable(before + sample.text), end="", flush=True)
            while sample.finish_reason is None:
                grown, new = next(growth)
                if grown == number:
                    print(printable(new), end="", flush=True)
            print()
            if self.logprobs is not None:
                print()
                rows = zip(sample.ids, self.listed[number], strict=False)
                print_predictions(self.tokenizer, "logprob", rows)


def prompt_loop(answer: Callable[[str, str], None]) -> None:
    """Answer each prompt that is typed, with its last line before the answer, until Ctrl-D."""
    with suppress(ImportError):  # input() then has line editing and a history
        import readline

        if (
            os.environ.get("TERM", "dumb") != "dumb"
        ):  # the terminal marks a paste, so that it is one input
            readline.parse_and_bind("set enable-bracketed-paste on")
    stdin: Any = sys.stdin
    # The tokenizer has an error for bytes that are not text.
    stdin.reconfigure(encoding="utf-8", errors="surrogateescape")
    print(
        "Type the beginning of a text. Ctrl-C stops its continuation, Ctrl-D leaves.",
        file=sys.stderr,
    )
    while True:
        prompt = ""
        try:
            if prompt := input("> ").removesuffix("\n"):
                answer(prompt, prompt.rpartition("\n")[2])
        except EOFError:
            print(file=sys.stderr)
            return
        except TiedGPTError as error:
            print_error(error)
        except KeyboardInterrupt:
            print("" if prompt else "\nTo leave, press Ctrl-D.", file=sys.stderr)
