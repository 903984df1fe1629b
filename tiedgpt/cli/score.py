"""`tiedgpt score`: how well a model predicts a text."""

import argparse
import json
from dataclasses import asdict
from typing import Any

from ..checks import check_stride, check_text
from ..errors import ArgumentError, TiedGPTError, one_line
from ..evaluation import score, windows
from .common import (
    Progress,
    add_command,
    add_head_option,
    add_json_option,
    add_model_option,
    add_special_option,
    encode,
    load,
    open_model,
    positive_int,
    read_text,
    source_name,
)

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
  cat story.txt | tiedgpt score -
"""


def add_parser(commands: Any) -> None:
    parser = add_command(commands, "score", run, "Measure how well a model predicts a text.", EXAMPLES)
    parser.description = ABOUT
    add = parser.add_argument
    add("file", metavar="FILE", help="a text in UTF-8; - for stdin")
    add_model_option(parser)
    add_head_option(parser)
    add(
        "--stride",
        type=positive_int,
        metavar="N",
        help="tokens from the start of one window to the next, at most the context; a smaller stride is "
        "slower and gives each token a longer context (default: half the context, 512 for gpt2)",
    )
    add_special_option(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> None:
    text = read_text(args.file)
    name, checkpoint, tokenizer = open_model(args.model)
    config = checkpoint.config
    # Check the input before reading the weights.
    if args.stride is not None and args.stride > config.n_ctx:
        raise ArgumentError(
            f"--stride must be at most the context of {config.n_ctx} tokens, got {args.stride}"
        )
    stride = check_stride(args.stride, config)
    try:
        ids = check_text(encode(tokenizer, text, args.allow_special), config)
    except TiedGPTError as error:
        raise ArgumentError(f"{source_name(args.file)}: {error}") from error

    model = load(checkpoint, args.head)
    with Progress("scoring", ids.size, "token") as progress:
        result = score(model, tokenizer, ids, stride, progress.add)
    text_bytes = len(text.encode())
    if args.json:
        context = {"file": args.file, "context": config.n_ctx, "stride": stride}
        whole = {"text_tokens": ids.size, "text_bytes": text_bytes}
        print(json.dumps({"model": name, "head": model.config.head, **asdict(result), **whole, **context}))
        return
    count = len(windows(ids.size, config.n_ctx, stride))
    each_window = f" of each of {count:,} windows" if stride == config.n_ctx and count > 1 else ""
    print(
        one_line(f"{name}, {model.config.head}, on {source_name(args.file)}"),
        "",
        f"loss           {result.nll:>10.4f}  nats per token",
        f"perplexity     {result.perplexity:>10,.2f}  per token: compare models that share a tokenizer",
        f"bits per byte  {result.bits_per_byte:>10.4f}  compare any models on the same text",
        "",
        f"predicted      {result.tokens:,} of {ids.size:,} tokens, {result.bytes:,} of {text_bytes:,} bytes",
        f"not predicted  the first token{each_window}",
        f"windows        {count:,} of up to {config.n_ctx:,} tokens, one every {stride:,}",
        sep="\n",
    )
