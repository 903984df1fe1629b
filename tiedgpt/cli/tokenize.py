"""`tiedgpt tokenize`: text to tokens and ids, and back."""

import argparse
import json
import re
import sys
from typing import Any

from ..checkpoints.vocabulary import read_tokenizer
from ..errors import ArgumentError, short_repr
from . import common

EXAMPLES = """\
  tiedgpt tokenize "Hello world"
  tiedgpt tokenize --json "naïve café"
  tiedgpt tokenize --model gpt2 --decode 15496 995
  cat story.txt | tiedgpt tokenize | wc -l
"""


def add_parser(commands: Any) -> None:
    parser = common.add_command(commands, "tokenize", run, "Show the tokens and ids of a text.", EXAMPLES)
    parser.add_argument("text", nargs="*", metavar="TEXT", help="the text, in quotes; - or nothing for stdin")
    parser.add_argument("--decode", action="store_true", help="TEXT is token ids; print their text")
    common.add_special_option(parser)
    common.add_model_option(parser)
    common.add_json_option(parser)


def run(args: argparse.Namespace) -> None:
    if not args.text and sys.stdin.isatty():
        raise ArgumentError("there is no TEXT: give one in quotes, or pipe one in")
    if len(args.text) > 1 and not args.decode:
        raise ArgumentError(f"expected one TEXT, got {len(args.text)}: put it in quotes")
    text = common.read_text("-") if args.text in ([], ["-"]) else " ".join(args.text)

    tokenizer = read_tokenizer(common.find(args.model, only_tokenizer=True)[1])
    if args.decode:
        ids = parse_ids(text)
        decoded = tokenizer.decode(ids)
    else:
        ids = common.encode(tokenizer, text, args.allow_special)
    if args.json:
        tokens = [tokenizer.token_text(token) for token in ids]
        print(json.dumps({"ids": ids, "tokens": tokens, **({"text": decoded} if args.decode else {})}))
    elif args.decode:
        print(common.printable(decoded))
    else:
        for token in ids:
            print(f"{token:>6}  {common.quoted(tokenizer.decode_bytes([token]))}")


def parse_ids(text: str) -> list[int]:
    """Token ids separated by spaces or commas, also in the brackets of a list."""
    words = re.split(r"[\s,]+", text.strip().removeprefix("[").removesuffix("]").strip())
    for word in words:
        if not re.fullmatch(r"-?\d{1,18}", word, re.ASCII):
            raise ArgumentError(f"--decode expects token ids, whole numbers, got {short_repr(word)}")
    return [int(word) for word in words]
