"""`tiedgpt compare --tokens FILE`: the verdict on greedy tokens, as a table or JSON."""

import argparse
import time
from pathlib import Path
from typing import Any

from ..checkpoints import Opened
from ..comparison.token_files import ids_of_prompt, ids_of_text, read_greedy_file
from ..comparison.tokens import TokensReport, compare_tokens
from ..errors import CheckpointError, check_file_name
from ..gpt2.tokenizer import Tokenizer
from . import models
from .messages import ProgressBar, note
from .output import fill, print_json, quoted_token
from .tables import Cells, print_table

EXIT_CODES = {"identical": 0, "defect": 1, "tie-break": 3}
LONG = 60.0  # seconds of planting mistakes from which a note says how long it takes
TIMED = 5  # mistakes after which their time is known
MOST_ROWS = 10  # departures, and mistakes, that are printed; --json has all


def run(args: argparse.Namespace) -> None:
    check_file_name(args.tokens)
    file = read_greedy_file(Path(args.tokens))
    opened = models.open_model(args.model)
    model = models.load(opened, args.head)
    tokenizer = tokenizer_of(opened)
    prompt = ids_of_prompt(file.prompt, tokenizer)
    tokens = file.continuation
    notes: list[str] = []
    if isinstance(tokens, str):
        tokens, notes = ids_of_text(model, tokenizer, prompt, tokens)
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
        print_report(report, tokenizer)
    code = EXIT_CODES[report["verdict"]]
    if code:
        raise SystemExit(code)


def tokenizer_of(opened: Opened) -> Tokenizer | None:
    """The tokenizer of a model, or None: ids can be judged without one."""
    try:
        return opened.tokenizer
    except CheckpointError:
        return None


class Progress:
    """Moves a bar for each mistake that is planted. A note says if all take long."""

    def __init__(self, bar: ProgressBar) -> None:
        self.bar = bar
        self.start = 0.0

    def __call__(self, tried: int, total: int) -> None:
        self.bar.add(1, total)
        if tried == 0:
            self.start = time.monotonic()
        if tried == TIMED:
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


def print_report(report: TokensReport, tokenizer: Tokenizer | None) -> None:
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
    mistakes = report["mistakes"]
    for line in mistakes[:MOST_ROWS]:
        print(fill(f"  {line}"))
    if len(mistakes) > MOST_ROWS:
        print(f"  and {len(mistakes) - MOST_ROWS} more (--json lists them)")
