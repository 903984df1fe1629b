"""Measure how well a model predicts a text.

Print the loss per token, perplexity and bits per byte, by the sliding-window recipe of Hugging
Face's documentation. Windows as long as the context start every --stride tokens. Each window
predicts the tokens that no earlier window contains. The first token of the text is not predicted.
If the stride is the whole context, the first token of each window is not predicted either.

With --tokens: the surprisal of a token is -log2 of its probability, in bits. On a terminal, less
than 1 bit is green, 5 bits or more are yellow, 10 or more are red.

examples:
  tiedgpt score story.txt
  tiedgpt score --model gpt2 --stride 1024 --json story.txt
  tiedgpt score --tokens --head both poem.txt
  cat story.txt | tiedgpt score
"""

import argparse
from typing import TypedDict

import numpy as np

from ..errors import ArgumentError, TiedGPTError, one_line
from ..evaluation import check_text_ids, stride_or_default
from ..gpt2.tokenizer import Tokenizer
from ..study.reports import ScoreReport, score_report
from . import inputs, options
from .inputs import encode_text, read_text, source_name
from .messages import ProgressBar
from .output import fill, print_json_by_head, print_predictions, print_table, rows_of_fields

ALTERNATIVES = 5  # other tokens in a prediction for --tokens


class Question(TypedDict):
    """What --json prints before the numbers."""

    model: str
    file: str  # "-" for stdin
    text_tokens: int
    text_bytes: int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add(parser, "file", "model", "heads", "allow_special", "json")
    parser.add_argument(
        "--stride",
        metavar="N",
        type=options.whole_number,
        help="tokens from window to window; fewer take longer, with more context "
        "(default: half the context)",
    )
    parser.add_argument(
        "--tokens",
        action="store_true",
        help="also list each token with its surprisal and the likeliest other tokens",
    )


def run(args: argparse.Namespace) -> None:
    text = read_text(args.file)
    source = source_name(args.file)
    opened = inputs.open_model(args.model)
    config, tokenizer = opened.config, opened.tokenizer

    # The input is checked before the weights are read, which takes longer.
    stride = stride_or_default(args.stride, config)
    try:
        ids = check_text_ids(encode_text(tokenizer, text, args.allow_special), config)
    except TiedGPTError as error:
        raise ArgumentError(f"{source}: {error}") from error

    loaded = inputs.load_heads(opened, args.head)
    alternatives = ALTERNATIVES if args.tokens else None
    with ProgressBar("scoring", len(loaded) * ids.size, "token") as progress:
        reports = [
            score_report(model, tokenizer, ids, stride, alternatives, progress.add)
            for model in loaded
        ]
    question: Question = {
        "model": opened.name,
        "file": args.file or "-",
        "text_tokens": ids.size,
        "text_bytes": len(text.encode()),
    }
    if args.json:
        print_json_by_head(question, reports)
        return
    if args.tokens:
        print_tokens(tokenizer, ids, reports)
    head = reports[0]["head"] if len(reports) == 1 else "both heads"
    print(one_line(f"{opened.name}, {head}, on {source}"))
    print()
    print_scores(question, reports)


def print_tokens(tokenizer: Tokenizer, ids: np.ndarray, reports: list[ScoreReport]) -> None:
    """Print a line for each token of the text, also for those that are not predicted."""
    for report in reports:
        if len(reports) > 1:
            print(f"--- {report['head']} ---")
        by_place = {prediction["place"]: prediction for prediction in report["predictions"]}
        rows = [(token, by_place.get(place)) for place, token in enumerate(ids.tolist())]
        print_predictions(tokenizer, "bits", rows)
        print()


def print_scores(question: Question, reports: list[ScoreReport]) -> None:
    """Print a table with a column for each head, and a paragraph that says what was measured."""
    labels = {
        "nll": "loss, nats per token",
        "perplexity": "perplexity",
        "bits_per_byte": "bits per byte",
    }
    if len(reports) > 1:
        labels = {"head": "", **labels}
    print_table(rows_of_fields(labels, reports))

    first = reports[0]  # both heads predict the same tokens
    paragraph = (
        f"The model predicted {first['tokens']:,} of {question['text_tokens']:,} tokens "
        f"({first['bytes']:,} of {question['text_bytes']:,} bytes), in windows of up to "
        f"{first['context']:,} tokens, one every {first['stride']:,}. "
        "Compare perplexity between models that share a tokenizer, and bits per byte "
        "between any models, on the same text."
    )
    print()
    print(fill(paragraph))
