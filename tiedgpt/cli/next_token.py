"""`tiedgpt next`: what follows a token, by each path through a model, and in a text."""

import argparse
import json
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np

from ..checkpoints import open_checkpoint
from ..checkpoints.vocabulary import read_tokenizer
from ..errors import ArgumentError, short_repr
from ..study.corpus import Corpus
from ..study.paths import best, likeliest, log_probabilities, paths_of
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
    source_name,
    spelled,
    token_json,
)

SHOWN = 10  # continuations by each path
UNITS = {"raw": "A", "corpus": "count"}  # of a pair's scores; for the other paths ln of the probability

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
    directory = find(args.model)[1]
    checkpoint = open_checkpoint(directory)
    tokenizer = read_tokenizer(directory)
    V = checkpoint.config.vocab_size
    tokens = single_tokens(tokenizer, V, args.tokens, args.allow_special)
    corpus = None
    if args.corpus is None:
        note("no --corpus: what follows in a text is left out")
    else:
        source = source_name(args.corpus)
        corpus = Corpus.of(encode(tokenizer, read_text(args.corpus), args.allow_special, source), V)
        for token in tokens[corpus.counts[tokens] == 0]:
            note(f"{spelled(tokenizer, token)} is not in {source}")
    model = load(checkpoint, None)
    logits = {name: path(model, tokens) for name, path in paths_of(model).items()}  # [n, V] each

    report: dict[str, Any] = {"model": args.model, "head": model.config.head, "tokens": [], "pairs": []}
    for number, token in enumerate(tokens):
        following = {name: continuations(tokenizer, rows[number]) for name, rows in logits.items()}
        if corpus is not None:
            following["corpus"] = commonest(tokenizer, *corpus.row(token))
        report["tokens"].append({**token_json(tokenizer, token), "next": following})
    # Two entries of one matrix compare as they are, two rows of logits only as probabilities.
    scored = {name: rows if name == "raw" else log_probabilities(rows) for name, rows in logits.items()}
    for (i, a), (j, b) in pairwise(enumerate(tokens)):
        scores = {name: [float(rows[i, b]), float(rows[j, a])] for name, rows in scored.items()}
        if corpus is not None:
            scores["corpus"] = [corpus.count(a, b), corpus.count(b, a)]
        report["pairs"].append({"ids": [int(a), int(b)], "scores": scores})
    if args.json:
        print(json.dumps(report))
    else:
        print_report(report, tokenizer)


def single_tokens(  # -> [n]
    tokenizer: Tokenizer, V: int, texts: list[str], allow_special: bool
) -> np.ndarray:
    """The ids of those texts that are one of V tokens, a note on each other. ArgumentError if none is."""
    tokens = []
    for text in texts:
        ids = encode(tokenizer, text, allow_special)
        if len(ids) == 1 and ids[0] < V:
            tokens += ids
            continue
        if len(ids) == 1:
            note(f"{short_repr(text)} is left out: its id is {ids[0]}, and the model has tokens 0 to {V - 1}")
            continue
        parts = " ".join(spelled(tokenizer, token) for token in ids[:8]) + (" ..." if len(ids) > 8 else "")
        what = f"{len(ids)} tokens, {parts}" if ids else "no token"
        spaced = f" {text}"
        hint = f"; {short_repr(spaced)} is one" if len(encode(tokenizer, spaced, allow_special)) == 1 else ""
        note(f"{short_repr(text)} is left out: it is {what}, and one is wanted{hint}")
    if not tokens:
        raise ArgumentError(
            "no TOKEN is one token of this model; `tiedgpt tokenize` shows the tokens of a text"
        )
    return np.array(tokens)


def continuations(tokenizer: Tokenizer, logits: np.ndarray) -> list[dict[str, Any]]:
    """The likeliest tokens by logits [V]."""
    return [
        {
            **token_json(tokenizer, token),
            "logit": float(logits[token]),
            "probability": float(probability),
        }
        for token, probability in zip(*likeliest(logits, SHOWN), strict=True)
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
        orders: list[tuple[str, ...]] = [("", f"{a} -> {b}", f"{b} -> {a}")]
        for name, scores in pair["scores"].items():
            cells = (f"{score:,} times" if name == "corpus" else f"{score:.3f}" for score in scores)
            orders.append((f"{name}: {UNITS.get(name, 'ln p')}", *cells))
        print_table(orders)
