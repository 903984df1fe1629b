"""Compare another GPT-2 with this one, and name its mistake.

FILE has its activations, or its logits alone. Find the activation that differs first from this
model's, and the known mistake that gives the same numbers. Save the activations, and the token ids
that were read, with numpy.savez("mine.npz", ids=ids, **activations), as safetensors, or as JSON:
under the names of tiedgpt's tape, or of transformers, nanoGPT, TransformerLens or llm.c. If there
are `targets`, arrays under names of parameters are gradients. The exit code is 1 if anything
differs, or if nothing could be compared. What was not compared is said first.

--tokens FILE has the tokens that it appended to a prompt, greedily: {"prompt": TEXT, "text": TEXT},
or "prompt_ids" and "ids" with lists. Exit code 0: they are this model's; 1: a defect; 3: each
departure is a tie that rounding breaks.

--vectors FILE has its answers to the reference values for other languages, under the names of the
cases: .json, .npz or .safetensors. Exit code 0: none of them is wrong.

examples:
  tiedgpt compare --model shakespeare-tied mine.npz
  tiedgpt compare --model gpt2 --head untied directory/ --json
  tiedgpt compare --model gpt2 --tokens mine.json --precision bfloat16
  tiedgpt compare --vectors mine.json
"""

import argparse
import time
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..comparison.compare import NothingCompared, compare
from ..comparison.diagnosis import joined_by_or
from ..comparison.recording import KINDS, read_arrays, read_by_name
from ..comparison.token_files import ids_of_text, needed_tokenizer, read_greedy_file
from ..comparison.tokens import ALL_ZERO, TokensReport, compare_tokens
from ..comparison.vectors import VectorsReport, judge
from ..errors import ArgumentError, CheckpointError, check_file_name, one_line
from ..gpt2.tokenizer import Tokenizer
from . import inputs, options
from .output import Cells, ProgressBar, fill, note, print_json, print_table, quoted_token

TOKENS_EXIT_CODES = {"identical": 0, "defect": 1, "tie-break": 3}
LONG = 60.0  # seconds of planting mistakes from which a note says how long it takes
TIMED = 5  # mistakes after which their time is known
MOST_ROWS = 10  # departures, and mistakes, that are printed; --json has all
MOST_MISTAKES = 5  # that are printed for each group of cases; --json has all


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", metavar="FILE", nargs="?", help=f"a {KINDS}")
    parser.add_argument(
        "--tokens", metavar="FILE", help="a prompt and its greedy continuation, JSON"
    )
    parser.add_argument("--vectors", metavar="FILE", help="answers to the reference values")
    parser.add_argument(
        "--precision",
        metavar="P",
        help="with --tokens, that of the other GPT-2: float32, float16 or bfloat16 (default: "
        "float32)",
    )
    options.add(parser, "head", "model", "json")
    parser.add_argument(
        "--trials",
        metavar="N",
        type=options.whole_number,
        help="make at most N trials of known mistakes, alone and together, the likeliest first "
        "(default: as many as take some minutes)",
    )


def run(args: argparse.Namespace) -> None:
    given = [each for each in (args.file, args.tokens, args.vectors) if each is not None]
    if len(given) != 1:
        raise ArgumentError(
            "expected one of FILE, --tokens FILE and --vectors FILE (try: tiedgpt compare -h)"
        )
    if args.precision is not None and args.tokens is None:
        raise ArgumentError("--precision goes with --tokens: arrays are compared in float32")
    if given == [""]:  # Path("") is the working directory
        raise ArgumentError("'' is not the name of a file")
    check_file_name(given[0])  # refuses NUL, and half of a surrogate pair
    if args.tokens is not None:
        run_tokens(args)
        return
    if args.vectors is not None:
        if args.model is not None or args.head is not None:
            raise ArgumentError("--vectors has models of its own: leave out --model and --head")
        if args.trials is not None:
            raise ArgumentError("--vectors plants all known mistakes: leave out --trials")
        run_vectors(args)
        return
    run_arrays(args)


def run_arrays(args: argparse.Namespace) -> None:
    """Compare the arrays of a file."""
    arrays = read_arrays(Path(args.file))
    ids = arrays.pop("ids", None)
    targets = arrays.pop("targets", None)  # the rest are activations, and gradients with targets
    if ids is None:
        raise ArgumentError(
            f"{args.file} has no `ids`: add the token ids that the other model read"
        )
    if not arrays:
        raise ArgumentError(f"{args.file} has no activations beside `ids`")

    model = inputs.load(inputs.open_model(args.model), args.head)
    try:
        # Each trial reports how many there are, so a total of 1 lasts until the first is done.
        with ProgressBar("trying known mistakes", total=1, unit="mistake") as bar:
            report = compare(
                model,
                arrays,
                ids,
                targets,
                progress=lambda number, total: bar.add(1, total),
                trials=args.trials,
            )
    except NothingCompared as error:
        document = {"same": None, "rows": [], "not_compared": [str(error)]}
        if args.json:
            print_json(document)
        else:
            print(error)
        raise SystemExit(1) from None
    if args.json:
        print_json({"same": report.same, **asdict(report)})
    else:
        print(report)
    if report.same is False:
        raise SystemExit(1)


# Tokens


def run_tokens(args: argparse.Namespace) -> None:
    """Judge the tokens of a file."""
    file = read_greedy_file(Path(args.tokens))
    opened = inputs.open_model(args.model)
    model = inputs.load(opened, args.head)
    tokenizer = None  # ids can be judged without one
    with suppress(CheckpointError):
        tokenizer = opened.tokenizer
    prompt = file.prompt
    if isinstance(prompt, str):
        prompt = needed_tokenizer(tokenizer).encode(prompt, special="token")  # raises without one
    tokens = file.continuation
    # A file may have a text and its ids: then the ids are read.
    notes = [f"{name!r} is not looked at: its ids are" for name in file.unread]
    if isinstance(tokens, str):
        tokens, notes_on_text = ids_of_text(model, tokenizer, prompt, tokens)
        notes += notes_on_text
    with ProgressBar("planting known mistakes", total=1, unit="mistake") as bar:
        report = compare_tokens(
            model,
            prompt,
            tokens,
            args.precision or "float32",
            greedy=file.greedy,
            trials=args.trials,
            progress=Progress(bar),
        )
    report["notes"] = notes + report["notes"]
    if args.json:
        print_json(with_texts(report, tokenizer))
    else:
        print_departures(report, tokenizer)
    code = TOKENS_EXIT_CODES[report["verdict"]]
    if code:
        raise SystemExit(code)


class Progress:
    """Moves a bar for each mistake that is planted. A note says if all take long."""

    def __init__(self, bar: ProgressBar) -> None:
        self.bar = bar
        self.start = 0.0

    def __call__(self, tried: int, total: int) -> None:
        """Called before each mistake is planted. tried: how many were planted before it."""
        self.bar.add(1, total)
        if tried == 0:
            self.start = time.monotonic()
        if tried == TIMED:  # the time of these gives that of all
            seconds = (time.monotonic() - self.start) / TIMED * total
            if seconds > LONG:
                note(
                    f"{total:,} known mistakes are planted, which takes about {seconds / 60:.1f} "
                    "min; --trials N plants at most N"
                )


def with_texts(report: TokensReport, tokenizer: Tokenizer | None) -> dict[str, Any]:
    """The report with the text of each departing token beside its id."""

    def text_of(token: int) -> str | None:
        if tokenizer is None or token not in tokenizer.tokens:
            return None
        return tokenizer.token_text(token)

    departures = []
    for departure in report["departures"]:
        texts = {
            "token_text": text_of(departure["token"]),
            "ours_text": text_of(departure["ours"]),
        }
        departures.append({**departure, **texts})
    return {**report, "departures": departures}


def print_departures(report: TokensReport, tokenizer: Tokenizer | None) -> None:
    """A row for each departure, the verdict, and what else is to be said."""

    def shown(token: int) -> str:
        if tokenizer is None:
            return str(token)
        return f"{token} {quoted_token(tokenizer, token)}"

    departures = report["departures"]
    if departures:
        rows: list[Cells] = [("", "yours", "this model's", "gap", "rounding", "rank", "")]
        for departure in departures[:MOST_ROWS]:
            rows.append(
                (
                    f"tokens[{departure['place']}]",
                    shown(departure["token"]),
                    shown(departure["ours"]),
                    f"{departure['gap']:.1e}",
                    f"{departure['rounding']:.1e}",
                    str(departure["rank"]),
                    "tie-break" if departure["is_tie_break"] else "defect",
                )
            )
        print_table(rows)
        if len(departures) > MOST_ROWS:
            print(f"and {len(departures) - MOST_ROWS} more")
        print()
    print(fill(report["sentence"]))
    for line in report["notes"]:
        print(fill(line))
    print_mistakes(report)


def print_mistakes(report: TokensReport) -> None:
    """The known mistakes that give the tokens: of a defect, or what right tokens do not exclude."""
    mistakes = report["mistakes"]
    if report["verdict"] == "defect":
        yours = "perhaps yours" if ALL_ZERO in report["notes"] else "yours"
        lines, word = joined_by_or(mistakes, first=yours), "or"
    else:
        # "yours is the exact gelu" would say that it is: here it is only possible.
        lines, word = [line.replace(": yours ", ": ", 1) for line in mistakes], "and"
        if mistakes:
            print("yours may be right, or make one of these mistakes:")
    for line in lines[:MOST_ROWS]:
        print(fill(f"  {line}"))
    if len(lines) > MOST_ROWS:
        print(f"  {word} {len(lines) - MOST_ROWS} more (--json lists them)")


# Reference values


def run_vectors(args: argparse.Namespace) -> None:
    """Judge the answers of a file."""
    answers = read_by_name(Path(args.vectors), example='{"logits/tied": [[[0.5, ...]]]}')
    report = judge(answers)
    if args.json:
        print_json(report)
    else:
        print_cases(report)
    if report["wrong"]:
        raise SystemExit(1)


def print_cases(report: VectorsReport) -> None:
    """Print a row for each case, a sentence for each wrong one, the mistakes, and the count."""
    rows: list[Cells] = [("", "")]
    for case in report["cases"]:
        rows.append((case["name"], case["status"]))
    print_table(rows)
    print()
    for case in report["cases"]:
        if case["sentence"]:
            print(fill(one_line(f"{case['name']}: {case['sentence']}")))
    # The groups of logits come first. Only by logits are two mistakes at once named, or one in a
    # single layer: it may be why no mistake is known for another group.
    named = [group for group, mistakes in report["mistakes"].items() if mistakes]
    for group, mistakes in report["mistakes"].items():
        if not mistakes and named:
            print(fill(f"{group}: no other mistake is known: mend that of {named[0]} first"))
        elif not mistakes:
            print(fill(f"{group}: none of the known mistakes gives these answers"))
        for sentence in mistakes[:MOST_MISTAKES]:
            print(fill(f"{group}: {sentence}"))
        if len(mistakes) > MOST_MISTAKES:
            print(f"{group}: or {len(mistakes) - MOST_MISTAKES} other mistakes (--json lists them)")
    print(fill(report["sentence"]))
