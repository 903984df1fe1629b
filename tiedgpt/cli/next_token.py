"""`tiedgpt next`: what follows a token, by each path through a model, and in a text."""

import argparse
import json
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np

from ..checkpoints import open_checkpoint
from ..checkpoints.vocabulary import read_tokenizer
from ..errors import ArgumentError, show
from ..model import check_ids
from ..study.corpus import Corpus
from ..study.paths import best, log_softmax, paths_of
from ..tokenizer import Tokenizer
from .common import (
    add_command,
    add_json_option,
    add_special_option,
    encode,
    find,
    load,
    note,
    print_table,
    read_text,
    spelled,
    token_json,
)

SHOWN = 10  # continuations by each path

EXAMPLES = """\
  tiedgpt next gpt2 " Saudi"
  tiedgpt next gpt2 " New" " York"
  tiedgpt next shakespeare-untied q u --corpus shakespeare.txt
"""


def add_parser(commands: Any) -> None:
    summary = "Show what follows a token, by each path through a model."
    parser = add_command(commands, "next", run, summary, EXAMPLES)
    add = parser.add_argument
    add("model", metavar="MODEL", help="a name, a directory or a .safetensors file")
    add(
        "tokens",
        nargs="+",
        metavar="TOKEN",
        help='the text of a token, as " York" with its space; of two, also how they score in either order',
    )
    add("--corpus", metavar="FILE", help="a text in UTF-8, for what follows there; - for stdin")
    add_special_option(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> None:
    path = find(args.model)[1]
    checkpoint = open_checkpoint(path)
    tokenizer = read_tokenizer(path)
    tokens = single_tokens(tokenizer, args.tokens, args.allow_special)
    check_ids(tokens[:, None], checkpoint.config)  # as sequences of one token, which fit into any context
    corpus = None
    if args.corpus is None:
        note("no --corpus: what follows in a text is left out")
    else:
        ids = encode(tokenizer, read_text(args.corpus), args.allow_special)
        corpus = Corpus.of(ids, checkpoint.config.vocab_size)
    model = load(checkpoint, None)
    logits = {name: path(model, tokens) for name, path in paths_of(model).items()}  # [n, V] each

    report: dict[str, Any] = {"model": args.model, "head": model.config.head, "tokens": [], "pairs": []}
    for number, token in enumerate(tokens):
        following = {name: likeliest(tokenizer, rows[number]) for name, rows in logits.items()}
        if corpus is not None:
            following["corpus"] = commonest(tokenizer, *corpus.row(token))
        report["tokens"].append({**token_json(tokenizer, token), "next": following})
    for (i, a), (j, b) in pairwise(enumerate(tokens)):
        scores = {name: [float(rows[i, b]), float(rows[j, a])] for name, rows in logits.items()}
        if corpus is not None:
            scores["corpus"] = [corpus.count(a, b), corpus.count(b, a)]
        report["pairs"].append({"ids": [int(a), int(b)], "scores": scores})
    if args.json:
        print(json.dumps(report))
    else:
        print_report(report, tokenizer)


def single_tokens(tokenizer: Tokenizer, texts: list[str], allow_special: bool) -> np.ndarray:  # -> [n]
    """The ids of those texts that are one token; a note on each that is not. ArgumentError if none is."""
    tokens = []
    for text in texts:
        ids = encode(tokenizer, text, allow_special)
        if len(ids) == 1:
            tokens += ids
            continue
        parts = " ".join(spelled(tokenizer, token) for token in ids[:8]) + (" ..." if len(ids) > 8 else "")
        what = f"{len(ids)} tokens, {parts}" if ids else "no token"
        spaced = f" {text}"
        hint = f"; {show(spaced)} is one" if len(encode(tokenizer, spaced, allow_special)) == 1 else ""
        note(f"{show(text)} is left out: it is {what}, and one is wanted{hint}")
    if not tokens:
        raise ArgumentError(
            "no TOKEN is one token of this model; `tiedgpt tokenize` shows the tokens of a text"
        )
    return np.array(tokens)


def likeliest(tokenizer: Tokenizer, logits: np.ndarray) -> list[dict[str, Any]]:
    """The likeliest tokens by logits [V]."""
    log_p = log_softmax(logits)
    return [
        {
            **token_json(tokenizer, token),
            "logit": float(logits[token]),
            "probability": float(np.exp(log_p[token])),
        }
        for token in best(log_p, SHOWN)
    ]


def commonest(tokenizer: Tokenizer, successors: np.ndarray, followed: np.ndarray) -> list[dict[str, Any]]:
    """The commonest successors; none of a token that is not in the corpus."""
    return [
        {
            **token_json(tokenizer, successors[place]),
            "count": int(followed[place]),
            "probability": float(followed[place] / followed.sum()),
        }
        for place in best(followed, SHOWN)
    ]


def print_report(report: dict[str, Any], tokenizer: Tokenizer) -> None:
    """A table for each token, its paths side by side; one for each pair, its two orders side by side."""
    for number, after in enumerate(report["tokens"]):
        print(("\n" if number else "") + f"after {spelled(tokenizer, after['id'])}")
        columns = [
            [name, *(f"{spelled(tokenizer, row['id'])} {row['probability']:6.1%}" for row in rows)]
            for name, rows in after["next"].items()
        ]
        ranks = ["", *map(str, range(1, max(map(len, columns))))]
        print_table(list(zip_longest(ranks, *columns, fillvalue="")))
    for pair in report["pairs"]:
        print()
        a, b = (spelled(tokenizer, token) for token in pair["ids"])
        orders = [("logit", f"{a} {b}", f"{b} {a}")]
        for name, scores in pair["scores"].items():
            cells = (f"{score:,} times" if name == "corpus" else f"{score:.3f}" for score in scores)
            orders.append((name, *cells))
        print_table(orders)
