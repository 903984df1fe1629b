"""Show the tokens and ids of a text, or with --decode the text of ids.

examples:
  tiedgpt tokenize "Hello world"
  tiedgpt tokenize --json "naïve café"
  tiedgpt tokenize --model gpt2 --decode 15496 995
  cat story.txt | tiedgpt tokenize | wc -l
"""

import argparse
import json
import re

from ..checkpoints import open_tokenizer
from ..errors import ArgumentError, short_repr
from ..inference.prompts import encode_text
from . import common
from .terminal import STDIN, note, printable, read_text, spelled


def add_arguments(parser: common.Parser) -> None:
    parser.add("TEXT", f"in quotes; {common.STDIN_TOO}", common.text, nargs="*")
    parser.add("--decode", "TEXT is token ids; print their text")
    parser.add_shared("-m --model MODEL", "--allow-special", "--json")


def run(args: argparse.Namespace) -> None:
    texts, decode, allow_special, as_json = args.text, args.decode, args.allow_special, args.json
    if len(texts) > 1 and not decode:
        raise ArgumentError(f"expected one TEXT, got {len(texts)}: put it in quotes")
    text = read_text(*texts or [None]) if texts in ([], [STDIN]) else " ".join(texts)
    tokenizer = open_tokenizer(args.model, note)
    ids = parse_ids(text) if decode else encode_text(tokenizer, text, allow_special)
    decoded = tokenizer.decode(ids)
    if as_json:
        tokens = [tokenizer.token_text(token) for token in ids]
        print(json.dumps({"ids": ids, "tokens": tokens, **({"text": decoded} if decode else {})}))
    elif decode:
        print(printable(decoded))
    else:
        for token in ids:
            print(f"{token:>6}  {spelled(tokenizer, token, limit=10**6)}")


def parse_ids(text: str) -> list[int]:
    """Token ids separated by spaces or commas, also in the brackets of a list."""
    words = re.split(r"[\s,]+", text.strip().removeprefix("[").removesuffix("]").strip())
    for word in words:
        if not re.fullmatch(r"-?\d{1,18}", word, re.ASCII):
            raise ArgumentError(
                f"--decode expects token ids, whole numbers, got {short_repr(word)}"
            )
    return [int(word) for word in words]
