"""`tiedgpt next`: the likeliest tokens after a prompt, or after one token by parts of a model."""

import argparse
from itertools import chain, pairwise, zip_longest
from typing import Any

import numpy as np

from ..checkpoints.huggingface import Checkpoint
from ..checks import check_prompt
from ..errors import ArgumentError, one_line
from ..model import GPT2
from ..study.corpus import Corpus
from ..study.paths import PATH_PARTS, log_probabilities, paths_of, top_k
from ..study.predictions import next_tokens, predict
from ..tokenizer import Tokenizer
from . import common
from .tokens import candidate_json, end_of, single_token

ABOUT = """\
Show the likeliest next tokens after a prompt, with probability, logit and rank. With --head both, a token is
listed if it is among the likeliest by one of the heads.

With --paths, show what follows each TOKEN by four parts of the model (paths): raw, W_E and W_U alone; normed,
with the final layer norm; mlp0, with the first MLP too; model, the whole model on this token alone. Two
tokens are also scored in either order.
"""

EXAMPLES = """\
  tiedgpt next "The capital of France is"
  tiedgpt next --model shakespeare-untied --head both "ROMEO:"
  tiedgpt next --model gpt2 --paths " New" " York"
  tiedgpt next --model shakespeare-untied --paths q u --corpus shakespeare.txt
"""


def add_parser(commands: Any) -> None:
    summary = "Show the likeliest next tokens after a prompt."
    parser = common.add_command(commands, "next", run, summary, EXAMPLES)
    parser.description = ABOUT
    add = parser.add_argument
    add("prompt", nargs="?", metavar="PROMPT", help="the text to predict from")
    common.add_model_option(parser)
    common.add_head_option(parser)
    shown = "show the K likeliest tokens (default: %(default)s)"
    add("-k", "--top-k", type=common.positive_int, default=10, metavar="K", help=shown)
    paths = 'in place of PROMPT: texts of one token each, with their spaces: " York"'
    add("--paths", nargs="+", metavar="TOKEN", help=paths)
    corpus = "with --paths, a text in UTF-8: also show what follows in it; - for stdin"
    add("--corpus", metavar="FILE", help=corpus)
    common.add_special_option(parser)
    common.add_json_option(parser)


def run(args: argparse.Namespace) -> None:
    if (args.prompt is None) == (args.paths is None):
        raise ArgumentError("expected either PROMPT or --paths TOKEN (try: tiedgpt next -h)")
    if args.corpus is not None and args.paths is None:
        raise ArgumentError("--corpus needs --paths")
    name, checkpoint, tokenizer = common.open_model(args.model)
    if args.paths is not None:
        run_paths(args, name, checkpoint, tokenizer)
        return
    ids = check_prompt(common.encode(tokenizer, args.prompt, args.allow_special), checkpoint.config)
    models = common.load_heads(checkpoint, args.head)
    predictions = next_tokens(models, ids, args.top_k)
    heads = [model.config.head for model in models]
    if args.json:
        prompt = {"prompt": args.prompt, "prompt_ids": ids}
        listed = ([candidate_json(tokenizer, p) for p in by_head] for by_head in predictions)
        common.print_json(
            [{"model": name, "head": h, **prompt, "next": n} for h, n in zip(heads, listed, strict=True)]
        )
        return
    print(common.fill(f"The likeliest tokens after {end_of(args.prompt)} by {one_line(name)}:"))
    titles = heads if len(heads) > 1 else ["probability"]
    rows = [("", *chain.from_iterable((title, "logit", "rank") for title in titles))]
    for by_head in zip(*predictions, strict=True):
        cells = ((f"{p.probability:.2%}", f"{p.logit:.2f}", f"{p.rank:,}") for p in by_head)
        rows.append((common.spelled(tokenizer, by_head[0].token), *chain.from_iterable(cells)))
    common.print_table(rows)


def run_paths(args: argparse.Namespace, name: str, checkpoint: Checkpoint, tokenizer: Tokenizer) -> None:
    V = checkpoint.config.vocab_size
    tokens = np.array([single_token(tokenizer, V, text, args.allow_special) for text in args.paths])
    corpus = None
    if args.corpus is not None:
        source = common.source_name(args.corpus)
        corpus = Corpus.of(
            common.encode(tokenizer, common.read_text(args.corpus), args.allow_special, source), V
        )
        for token in tokens[corpus.counts[tokens] == 0]:
            common.note(f"{common.spelled(tokenizer, token)} does not occur in {source}")
    models = common.load_heads(checkpoint, args.head)
    reports = [
        {"model": name, **paths_report(model, tokenizer, tokens, corpus, args.top_k)} for model in models
    ]
    if args.json:
        common.print_json(reports)
        return
    for report in reports:
        if len(reports) > 1:
            print(f"--- {report['head']} ---\n")
        print_paths(report, tokenizer)


def paths_report(
    model: GPT2, tokenizer: Tokenizer, tokens: np.ndarray, corpus: Corpus | None, k: int
) -> dict[str, Any]:
    """The k likeliest tokens after each of `tokens` [n] by each path, and the scores of each pair."""
    logits = {path_name: path(model, tokens) for path_name, path in paths_of(model).items()}  # [n, V] each
    report: dict[str, Any] = {"head": model.config.head, "tokens": [], "pairs": []}
    for number, token in enumerate(tokens):
        following = {}
        for path, rows in logits.items():
            predictions = predict(rows[number], top_k(rows[number], k))
            following[path] = [candidate_json(tokenizer, prediction) for prediction in predictions]
        if corpus is not None:
            following["corpus"] = most_common(tokenizer, *corpus.row(token), k)
        report["tokens"].append({**common.token_json(tokenizer, token), "next": following})
    # raw scores are entries of one matrix and compare as they are; logits of two rows only as probabilities
    scored = {path: rows if path == "raw" else log_probabilities(rows) for path, rows in logits.items()}
    for (i, a), (j, b) in pairwise(enumerate(tokens)):
        scores = {path: [float(rows[i, b]), float(rows[j, a])] for path, rows in scored.items()}
        if corpus is not None:
            scores["corpus"] = [corpus.count(a, b), corpus.count(b, a)]
        report["pairs"].append({"ids": [int(a), int(b)], "scores": scores})
    return report


def most_common(
    tokenizer: Tokenizer, successors: np.ndarray, counts: np.ndarray, k: int
) -> list[dict[str, Any]]:
    """The k most common successors in the corpus; none for a token that does not occur in it."""
    return [
        {
            **common.token_json(tokenizer, successors[place]),
            "count": int(counts[place]),
            "probability": float(counts[place] / counts.sum()),
        }
        for place in top_k(counts, k)
    ]


def print_paths(report: dict[str, Any], tokenizer: Tokenizer) -> None:
    """A table for each token, a column for each path; a table for each pair, a column for each order."""
    for after in report["tokens"]:
        print(f"Likeliest next tokens after {common.spelled(tokenizer, after['id'])}:")
        columns = []
        for path, rows in after["next"].items():
            values = (f"{row['logit']:.2f}" if path == "raw" else f"{row['probability']:.1%}" for row in rows)
            cells = zip(rows, values, strict=True)
            columns.append(
                [path, *(f"{common.spelled(tokenizer, row['id'])} {value:>5}" for row, value in cells)]
            )
        ranks = ["", *map(str, range(1, max(map(len, columns))))]
        common.print_table(list(zip_longest(ranks, *columns, fillvalue="")))
        print()
    for pair in report["pairs"]:
        a, b = (common.spelled(tokenizer, token) for token in pair["ids"])
        orders: list[tuple[str, ...]] = [("", f"{a} then {b}", f"{b} then {a}")]
        for path, scores in pair["scores"].items():
            form = {"raw": "{:.2f}", "corpus": "{:,} times"}.get(path, "{:.3g}%")
            values = scores if path in ("raw", "corpus") else 100 * np.exp(scores)
            orders.append((path, *map(form.format, values)))
        common.print_table(orders)
        print()
    paths = report["tokens"][0]["next"]
    legend = [f"{path}: {parts}" for path, parts in PATH_PARTS.items() if path in paths]
    legend[0] += " (scores; the others are probabilities)"
    if "corpus" in paths:
        legend.append("corpus: share of what follows in the text")
    print(common.fill("; ".join(legend) + "."))
