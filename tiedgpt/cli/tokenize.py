"""Show the tokens of a text and their ids, or the text of ids.

With --decode, TEXT is ids, separated by spaces or commas.

examples:
  tiedgpt tokenize "Hello world"
  tiedgpt tokenize --json "naïve café"
  tiedgpt tokenize --model gpt2 --decode 15496 995
  cat story.txt | tiedgpt tokenize | wc -l
"""

import argparse
import re
from typing import Any

from ..errors import ArgumentError, short_repr
from . import inputs, options
from .inputs import STDIN, encode_text, read_text
from .output import print_json, printable, quoted_token

WHOLE_TOKEN = 10**6  # characters of a token that are shown: no token is longer


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "text",
        metavar="TEXT",
        nargs="*",
        type=options.utf8_text,
        help=f"in quotes; {options.STDIN_TOO}",
    )
    parser.add_argument("--decode", action="store_true", help="TEXT is token ids; print their text")
    options.add(parser, "model", "allow_special", "json")


def run(args: argparse.Namespace) -> None:
    if len(args.text) > 1 and not args.decode:
        raise ArgumentError(f"expected one TEXT, got {len(args.text)}: put it in quotes")
    if args.decode and args.allow_special:
        raise ArgumentError("--allow-special cannot be given with --decode, which reads ids")
    if not args.text:
        text = read_text(None)  # that of stdin, unless it is a terminal
    elif args.text == [STDIN]:
        text = read_text(STDIN)
    else:
        text = " ".join(args.text)

    tokenizer = inputs.open_model(args.model, weights=False).tokenizer
    if args.decode:
        ids = parse_ids(text)
    else:
        ids = encode_text(tokenizer, text, args.allow_special)
    decoded = tokenizer.decode(ids)  # raises for an id that is not a token

    if args.json:
        tokens = [tokenizer.token_text(token) for token in ids]
        document: dict[str, Any] = {"ids": ids, "tokens": tokens}
        if args.decode:
            document["text"] = decoded
        print_json(document)
    elif args.decode:
        print(printable(decoded))
    else:
        for token in ids:
            print(f"{token:>6}  {quoted_token(tokenizer, token, WHOLE_TOKEN)}")


def parse_ids(text: str) -> list[int]:
    """Token ids separated by spaces or commas, also in the brackets of a list."""
    listed = text.strip().removeprefix("[").removesuffix("]").strip()
    ids = []
    for word in re.split(r"[\s,]+", listed):
        if not re.fullmatch(r"-?\d{1,18}", word, re.ASCII):  # int() would read "1_0" as 10
            raise ArgumentError(
                f"--decode expects token ids, whole numbers, got {short_repr(word)}"
            )
        ids.append(int(word))
    return ids
