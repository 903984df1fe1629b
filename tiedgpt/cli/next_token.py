"""`tiedgpt next`: the likeliest next tokens after one token, by parts of a model and in a text."""

import argparse
import json
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np

from ..errors import ArgumentError, short_repr
from ..study.corpus import Corpus
from ..study.paths import PATH_PARTS, log_probabilities, paths_of, top_k, top_k_probabilities
from ..tokenizer import Tokenizer
from .common import (
    add_command,
    add_json_option,
    add_model_option,
    add_special_option,
    encode,
    fill,
    load,
    note,
    open_model,
    print_table,
    read_text,
    source_name,
    spelled,
    token_json,
)

SHOWN = 10  # next tokens by each path

ABOUT = """\
Show the likeliest next tokens after one token, by four parts of the model (paths): raw, W_E and W_U alone;
normed, with the final layer norm; mlp0, with the first MLP too; model, the whole model on this token alone.
Two tokens are also scored in either order.
"""

EXAMPLES = """\
  tiedgpt next " Saudi"
  tiedgpt next --model gpt2 " New" " York"
  tiedgpt next --model shakespeare-untied q u --corpus shakespeare.txt
"""


def add_parser(commands: Any) -> None:
    summary = "Show the likeliest next tokens after one token."
    parser = add_command(commands, "next", run, summary, EXAMPLES)
    parser.description = ABOUT
    add = parser.add_argument
    add("tokens", nargs="+", metavar="TOKEN", help='the text of one token, with its space: " York"')
    add_model_option(parser)
    add("--corpus", metavar="FILE", help="a text in UTF-8: also show what follows in it; - for stdin")
    add_special_option(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> None:
    name, checkpoint, tokenizer = open_model(args.model)
    V = checkpoint.config.vocab_size
    tokens = single_tokens(tokenizer, V, args.tokens, args.allow_special)
    corpus = None
    if args.corpus is not None:
        source = source_name(args.corpus)
        corpus = Corpus.of(encode(tokenizer, read_text(args.corpus), args.allow_special, source), V)
        for token in tokens[corpus.counts[tokens] == 0]:
            note(f"{spelled(tokenizer, token)} does not occur in {source}")
    model = load(checkpoint, None)
    logits = {path_name: path(model, tokens) for path_name, path in paths_of(model).items()}  # [n, V] each

    report: dict[str, Any] = {"model": name, "head": model.config.head, "tokens": [], "pairs": []}
    for number, token in enumerate(tokens):
        following = {path: likeliest(tokenizer, rows[number]) for path, rows in logits.items()}
        if corpus is not None:
            following["corpus"] = most_common(tokenizer, *corpus.row(token))
        report["tokens"].append({**token_json(tokenizer, token), "next": following})
    # raw scores are entries of one matrix and compare as they are; logits of two rows only as probabilities
    scored = {path: rows if path == "raw" else log_probabilities(rows) for path, rows in logits.items()}
    for (i, a), (j, b) in pairwise(enumerate(tokens)):
        scores = {path: [float(rows[i, b]), float(rows[j, a])] for path, rows in scored.items()}
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
    """The ids of the texts that are one token of the V; a note on every other. ArgumentError if none is."""
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
        what = f"{len(ids)} tokens, {parts}" if ids else "empty"
        spaced = f" {text}"
        hint = f", as {short_repr(spaced)} is" if len(encode(tokenizer, spaced, allow_special)) == 1 else ""
        note(f"{short_repr(text)} is left out: it is {what}; expected one token{hint}")
    if not tokens:
        raise ArgumentError(
            "no TOKEN is a single token of this model; `tiedgpt tokenize` shows the tokens of a text"
        )
    return np.array(tokens)


def likeliest(tokenizer: Tokenizer, logits: np.ndarray) -> list[dict[str, Any]]:
    """The likeliest next tokens by logits [V]."""
    return [
        {
            **token_json(tokenizer, token),
            "logit": float(logits[token]),
            "probability": float(probability),
        }
        for token, probability in zip(*top_k_probabilities(logits, SHOWN), strict=True)
    ]


def most_common(tokenizer: Tokenizer, successors: np.ndarray, counts: np.ndarray) -> list[dict[str, Any]]:
    """The most common successors in the corpus; none for a token that does not occur in it."""
    return [
        {
            **token_json(tokenizer, successors[place]),
            "count": int(counts[place]),
            "probability": float(counts[place] / counts.sum()),
        }
        for place in top_k(counts, SHOWN)
    ]


def print_report(report: dict[str, Any], tokenizer: Tokenizer) -> None:
    """A table for each token, a column for each path; a table for each pair, a column for each order."""
    for after in report["tokens"]:
        print(f"Likeliest next tokens after {spelled(tokenizer, after['id'])}:")
        columns = []
        for path, rows in after["next"].items():
            values = (f"{row['logit']:.2f}" if path == "raw" else f"{row['probability']:.1%}" for row in rows)
            cells = zip(rows, values, strict=True)
            columns.append([path, *(f"{spelled(tokenizer, row['id'])} {value:>5}" for row, value in cells)])
        ranks = ["", *map(str, range(1, max(map(len, columns))))]
        print_table(list(zip_longest(ranks, *columns, fillvalue="")))
        print()
    for pair in report["pairs"]:
        a, b = (spelled(tokenizer, token) for token in pair["ids"])
        orders: list[tuple[str, ...]] = [("", f"{a} then {b}", f"{b} then {a}")]
        for path, scores in pair["scores"].items():
            form = {"raw": "{:.2f}", "corpus": "{:,} times"}.get(path, "{:.3g}%")
            values = scores if path in ("raw", "corpus") else 100 * np.exp(scores)
            orders.append((path, *map(form.format, values)))
        print_table(orders)
        print()
    paths = report["tokens"][0]["next"]
    legend = [f"{path}: {parts}" for path, parts in PATH_PARTS.items() if path in paths]
    legend[0] += " (scores; the others are probabilities)"
    if "corpus" in paths:
        legend.append("corpus: share of what follows in the text")
    print(fill("; ".join(legend) + "."))
