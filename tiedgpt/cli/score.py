"""`tiedgpt score`: how well a model predicts a text."""

import argparse
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import numpy as np

from ..checks import check_stride, check_text
from ..errors import ArgumentError, TiedGPTError, one_line
from ..inference.evaluation import Score, predicted_places, score, score_of, windows
from ..study.predictions import Prediction, token_predictions
from . import common
from .tokens import prediction_json, print_predictions

ALTERNATIVES = 5  # other tokens in a prediction for --tokens

ABOUT = """\
Measure how well a model predicts a text: loss per token, perplexity and bits
per byte, by the sliding-window recipe of Hugging Face's documentation. Windows
as long as the context start every --stride tokens. Each window predicts the
tokens that no earlier window contains. The first token of the text is not
predicted. If the stride is the whole context, the first token of each window
is not predicted either.
"""

EXAMPLES = """\
  tiedgpt score story.txt
  tiedgpt score --model gpt2 --stride 1024 --json story.txt
  tiedgpt score --model shakespeare-tied --stride 127 story.txt
  tiedgpt score --tokens --head both poem.txt
  cat story.txt | tiedgpt score -
"""


def add_parser(commands: Any) -> None:
    parser = common.add_command(commands, "score", run, "Measure how well a model predicts a text.", EXAMPLES)
    parser.description = ABOUT
    add = parser.add_argument
    add("file", metavar="FILE", help="a text in UTF-8; - for stdin")
    common.add_model_option(parser)
    common.add_head_option(parser)
    add(
        "--stride",
        type=common.positive_int,
        metavar="N",
        help="tokens from the start of one window to the next, at most the context; a smaller stride is "
        "slower and gives each token a longer context (default: half the context, 512 for gpt2)",
    )
    add(
        "--tokens",
        action="store_true",
        help="also list each token with its surprisal (-log2 of its probability, in bits) and the likeliest "
        "other tokens; on a terminal, below 1 bit is green, from 5 bits yellow, from 10 bits red",
    )
    common.add_special_option(parser)
    common.add_json_option(parser)


def run(args: argparse.Namespace) -> None:
    text = common.read_text(args.file)
    name, checkpoint, tokenizer = common.open_model(args.model)
    config = checkpoint.config
    # Check the input before reading the weights.
    if args.stride is not None and args.stride > config.n_ctx:
        raise ArgumentError(
            f"--stride must be at most the context of {config.n_ctx} tokens, got {args.stride}"
        )
    stride = check_stride(args.stride, config)
    try:
        ids = check_text(common.encode(tokenizer, text, args.allow_special), config)
    except TiedGPTError as error:
        raise ArgumentError(f"{common.source_name(args.file)}: {error}") from error

    models = common.load_heads(checkpoint, args.head)
    heads = [model.config.head for model in models]
    places = predicted_places(ids.size, config.n_ctx, stride)
    results: list[Score] = []
    predictions: list[list[Prediction]] = []  # by each head, with --tokens
    with common.Progress("scoring", len(models) * ids.size, "token") as progress:
        for model in models:
            if args.tokens:
                predictions.append(token_predictions(model, ids, stride, ALTERNATIVES, progress.add))
                losses = -np.array([prediction.log_probability for prediction in predictions[-1]])
                results.append(score_of(losses, tokenizer, ids[places]))
            else:
                results.append(score(model, tokenizer, ids, stride, progress.add))
    text_bytes = len(text.encode())
    if args.json:
        text_fields = {"text_tokens": ids.size, "text_bytes": text_bytes, "file": args.file}
        text_fields |= {"context": config.n_ctx, "stride": stride}
        documents = []
        for number, result in enumerate(results):
            documents.append({"model": name, "head": heads[number], **asdict(result), **text_fields})
            if args.tokens:
                documents[-1]["predictions"] = [
                    {"place": place, **prediction_json(tokenizer, prediction, "bits")}
                    for place, prediction in zip(places.tolist(), predictions[number], strict=True)
                ]
        common.print_json(documents)
        return
    for head, by_head in zip(heads, predictions, strict=False):  # there are none without --tokens
        if len(heads) > 1:
            print(f"--- {head} ---")
        by_place = dict(zip(places.tolist(), by_head, strict=True))
        print_predictions(tokenizer, "bits", ((one, by_place.get(n)) for n, one in enumerate(ids.tolist())))
        print()
    count = len(windows(ids.size, config.n_ctx, stride))
    each_window = f" of each of {count:,} windows" if stride == config.n_ctx and count > 1 else ""
    label = heads[0] if len(heads) == 1 else "both heads"
    print(
        one_line(f"{name}, {label}, on {common.source_name(args.file)}"),
        "" if len(heads) == 1 else f"\n{'':15}" + columns(heads),
        f"loss           {columns(f'{result.nll:.4f}' for result in results)}  nats per token",
        f"perplexity     {columns(f'{result.perplexity:,.2f}' for result in results)}  "
        "compare models that share a tokenizer",
        f"bits per byte  {columns(f'{result.bits_per_byte:.4f}' for result in results)}  "
        "compare any models on the same text",
        "",
        f"predicted      {places.size:,} of {ids.size:,} tokens, "
        f"{results[0].bytes:,} of {text_bytes:,} bytes",
        f"not predicted  the first token{each_window}",
        f"windows        {count:,} of up to {config.n_ctx:,} tokens, one every {stride:,}",
        sep="\n",
    )


def columns(cells: Iterable[str]) -> str:
    """A cell for each head, flush right."""
    return "  ".join(cell.rjust(10) for cell in cells)
