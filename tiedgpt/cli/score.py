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

from ..errors import ArgumentError, TiedGPTError, one_line
from ..gpt2.checks import check_text_ids, stride_or_default
from ..gpt2.model import GPT2
from ..inference.evaluation import predicted_places, score, score_of
from ..inference.prompts import encode_text
from ..study.predictions import predicted_json, token_predictions
from . import common
from .terminal import ProgressBar, fill, print_predictions, print_table, read_text, source_name

ALTERNATIVES = 5  # other tokens in a prediction for --tokens
FIGURES = (
    ("loss", "nll", ".4f"),
    ("perplexity", "perplexity", ",.2f"),
    ("bits per byte", "bits_per_byte", ".4f"),
)


def add_arguments(parser: common.Parser) -> None:
    parser.add_shared("[FILE]", *common.ASKING)
    stride = "tokens from window to window; fewer take longer, with more context (default: half the context)"
    parser.add("--stride N", stride, common.positive_int)
    parser.add("--tokens", "also list each token with its surprisal and the likeliest other tokens")


def run(args: argparse.Namespace) -> None:
    text, file, head, each_token, as_json = (
        read_text(args.file),
        args.file,
        args.head,
        args.tokens,
        args.json,
    )
    name, checkpoint, tokenizer = common.open_model(args.model)
    config = checkpoint.config
    # Check the input before reading the weights.
    stride = stride_or_default(args.stride, config)
    try:
        ids = check_text_ids(encode_text(tokenizer, text, args.allow_special), config)
    except TiedGPTError as error:
        raise ArgumentError(f"{source_name(file)}: {error}") from error

    models = common.load_heads(checkpoint, head)
    places = predicted_places(ids.size, config.n_ctx, stride).tolist()

    def report(model: GPT2) -> dict[str, Any]:
        if not each_token:
            return asdict(score(model, tokenizer, ids, stride, progress.add))
        listed = token_predictions(model, ids, stride, ALTERNATIVES, progress.add)
        result = score_of(-np.array([p.log_probability for p in listed]), tokenizer, ids[places])
        pairs = zip(places, listed, strict=True)
        rows = [{"place": place, **predicted_json(tokenizer, p, "bits")} for place, p in pairs]
        return {**asdict(result), "predictions": rows}

    def show(reports: list[dict[str, Any]]) -> None:
        for report in reports if each_token else ():
            print(f"--- {report['head']} ---\n" * (len(reports) > 1), end="")
            by_place = {row["place"]: row for row in report["predictions"]}
            rows = ((token, by_place.get(place)) for place, token in enumerate(ids.tolist()))
            print_predictions(tokenizer, "bits", rows)
            print()
        print_scores(reports, source_name(file))

    with ProgressBar("scoring", len(models) * ids.size, "token") as progress:
        found = [report(model) for model in models]
    given = {
        "model": name,
        "file": file or "-",
        "text_tokens": ids.size,
        "text_bytes": len(text.encode()),
    }
    given |= {"context": config.n_ctx, "stride": stride}
    common.print_reports(given, models, found, as_json, show)


def print_scores(reports: list[dict[str, Any]], file: str) -> None:
    first, heads = reports[0], [report["head"] for report in reports]
    by = heads[0] if len(heads) == 1 else "both heads"
    print(one_line(f"{first['model']}, {by}, on {file}"), end="\n\n")
    rows = [
        (label, *(f"{report[key]:{form}}" for report in reports)) for label, key, form in FIGURES
    ]
    print_table(rows if len(heads) == 1 else [("", *heads), *rows])
    tokens, nbytes = (
        f"{first[key]:,} of {first[f'text_{key}']:,} {key}" for key in ("tokens", "bytes")
    )
    windows = f"in windows of up to {first['context']:,} tokens, one every {first['stride']:,}"
    how = "Compare perplexity between models that share a tokenizer, and bits per byte between any models"
    loss = f"The loss is in nats per token. {how}, on the same text."
    print(fill(f"\nThe model predicted {tokens} ({nbytes}), {windows}. {loss}"))
