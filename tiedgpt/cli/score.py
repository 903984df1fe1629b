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
from dataclasses import asdict
from typing import Any

import numpy as np

from ..checkpoints import find_model, read_config, read_tokenizer
from ..errors import ArgumentError, TiedGPTError, one_line
from ..evaluation import predicted_places, score, score_of
from ..gpt2.checks import check_text_ids, stride_or_default
from ..gpt2.model import GPT2
from ..gpt2.run import OnProgress
from ..gpt2.tokenizer import Tokenizer
from ..study.predictions import predicted_json, token_predictions
from . import models, options
from .messages import ProgressBar, note
from .output import fill, print_json
from .tables import print_predictions, print_table
from .texts import encode_text, read_text, source_name

ALTERNATIVES = 5  # other tokens in a prediction for --tokens


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_file(parser)
    options.add_question(parser)
    parser.add_argument(
        "--stride",
        metavar="N",
        type=options.positive_int,
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
    name, path = find_model(args.model, note)
    config = read_config(path)
    tokenizer = read_tokenizer(path)

    # The input is checked before the weights are read, which takes longer.
    stride = stride_or_default(args.stride, config)
    try:
        ids = check_text_ids(encode_text(tokenizer, text, args.allow_special), config)
    except TiedGPTError as error:
        raise ArgumentError(f"{source}: {error}") from error

    reports = []
    loaded = models.load_heads(path, args.head)
    with ProgressBar("scoring", len(loaded) * ids.size, "token") as progress:
        for model in loaded:
            report: dict[str, Any] = {
                "model": name,
                "file": args.file or "-",
                "text_tokens": ids.size,
                "text_bytes": len(text.encode()),
                "context": config.n_ctx,
                "stride": stride,
                "head": model.config.head,
            }
            if args.tokens:
                report |= score_of_each_token(model, tokenizer, ids, stride, progress.add)
            else:
                report |= asdict(score(model, tokenizer, ids, stride, progress.add))
            reports.append(report)

    if args.json:
        print_json(reports)
        return
    if args.tokens:
        print_tokens(tokenizer, ids, reports)
    print_scores(reports, source)


def score_of_each_token(
    model: GPT2, tokenizer: Tokenizer, ids: np.ndarray, stride: int, progress: OnProgress
) -> dict[str, Any]:
    """The score of the text, with a list of its predicted tokens under "predictions"."""
    places = predicted_places(ids.size, model.config.n_ctx, stride)
    predictions = token_predictions(model, ids, stride, ALTERNATIVES, progress)
    losses = -np.array([prediction.log_probability for prediction in predictions])
    report = asdict(score_of(losses, tokenizer, ids[places]))
    report["predictions"] = []
    for place, prediction in zip(places.tolist(), predictions, strict=True):
        document = {"place": place, **predicted_json(tokenizer, prediction, "bits")}
        report["predictions"].append(document)
    return report


def print_tokens(tokenizer: Tokenizer, ids: np.ndarray, reports: list[dict[str, Any]]) -> None:
    """Print a line for each token of the text, also for those that are not predicted."""
    for report in reports:
        if len(reports) > 1:
            print(f"--- {report['head']} ---")
        by_place = {prediction["place"]: prediction for prediction in report["predictions"]}
        rows = [(token, by_place.get(place)) for place, token in enumerate(ids.tolist())]
        print_predictions(tokenizer, "bits", rows)
        print()


def print_scores(reports: list[dict[str, Any]], source: str) -> None:
    """Print a table with a column for each head, and a paragraph that says what was measured."""
    first = reports[0]
    heads = [report["head"] for report in reports]
    head = heads[0] if len(reports) == 1 else "both heads"
    print(one_line(f"{first['model']}, {head}, on {source}"))
    print()

    losses = [f"{report['nll']:.4f}" for report in reports]
    perplexities = [f"{report['perplexity']:,.2f}" for report in reports]
    bits_per_byte = [f"{report['bits_per_byte']:.4f}" for report in reports]
    rows: list[str | tuple[str, ...]] = [
        ("loss", *losses),
        ("perplexity", *perplexities),
        ("bits per byte", *bits_per_byte),
    ]
    if len(reports) > 1:
        rows.insert(0, ("", *heads))
    print_table(rows)

    token_count = f"{first['tokens']:,} of {first['text_tokens']:,} tokens"
    byte_count = f"{first['bytes']:,} of {first['text_bytes']:,} bytes"
    paragraph = (
        f"The model predicted {token_count} ({byte_count}), in windows of up to "
        f"{first['context']:,} tokens, one every {first['stride']:,}. The loss is in nats per "
        "token. Compare perplexity between models that share a tokenizer, and bits per byte "
        "between any models, on the same text."
    )
    print()
    print(fill(paragraph))
