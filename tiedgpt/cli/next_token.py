"""Show the likeliest next tokens after a prompt.

With --head both, list the tokens among the K likeliest by either head; * marks a token of only one
head.

With --paths, PROMPT is one token, and four parts of the model (paths) predict what follows it: raw,
W_E and W_U alone; normed, with the final layer norm; mlp0, with the first MLP too; model, the whole
model.

examples:
  tiedgpt next "The capital of France is"
  tiedgpt next --model shakespeare-untied --head both "ROMEO:"
  tiedgpt next --paths " the"
"""

import argparse
from typing import Any

import numpy as np

from ..checkpoints import find_model, read_config, read_tokenizer
from ..errors import one_line
from ..gpt2.model import GPT2
from ..gpt2.tokenizer import Tokenizer
from ..study.paths import PATH_PARTS, paths_of, top_k
from ..study.predictions import Prediction, next_tokens, predict, prediction_json
from . import models, options
from .messages import note
from .output import end_of_prompt, fill, print_json, quoted_token
from .tables import Cells, print_table
from .texts import encode_prompt, read_prompt, single_token


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_prompt(parser)
    options.add_question(parser)
    parser.add_argument(
        "-k",
        "--top-k",
        metavar="K",
        type=options.positive_int,
        default=10,
        help="show the K likeliest tokens (default: 10)",
    )
    parser.add_argument(
        "--paths",
        action="store_true",
        help='predict from parts of the model; PROMPT is one token, with its space: " the"',
    )


def run(args: argparse.Namespace) -> None:
    prompt = read_prompt(args.prompt)
    name, path = find_model(args.model, note)
    config = read_config(path)
    tokenizer = read_tokenizer(path)

    # The prompt is checked before the weights are read, which takes longer.
    if args.paths:
        ids = [single_token(tokenizer, config.vocab_size, prompt, args.allow_special)]
    else:
        ids = encode_prompt(tokenizer, config, prompt, args.allow_special)

    loaded = models.load_heads(path, args.head)
    reports: list[dict[str, Any]] = []
    for model in loaded:
        head = model.config.head
        reports.append({"model": name, "prompt": prompt, "prompt_ids": ids, "head": head})
    if args.paths:
        for report, model in zip(reports, loaded, strict=True):
            report["paths"] = predictions_of_paths(model, tokenizer, ids[0], args.top_k)
    else:
        by_head = next_tokens(loaded, ids, args.top_k)  # the same tokens for both heads
        for report, predictions in zip(reports, by_head, strict=True):
            report["next"] = listed(tokenizer, predictions)

    if args.json:
        print_json(reports)
    elif args.paths:
        print_paths(tokenizer, args.top_k, reports)
    else:
        print_next(tokenizer, args.top_k, reports)


def predictions_of_paths(
    model: GPT2, tokenizer: Tokenizer, token: int, k: int
) -> dict[str, list[dict[str, Any]]]:
    """For each path, the k likeliest tokens after a token."""
    by_path = {}
    for name, path in paths_of(model).items():
        logits = path(model, np.array([token]))[0]  # [V]
        by_path[name] = listed(tokenizer, predict(logits, top_k(logits, k)))
    return by_path


def listed(tokenizer: Tokenizer, predictions: list[Prediction]) -> list[dict[str, Any]]:
    """Predictions as --json prints them."""
    return [prediction_json(tokenizer, prediction) for prediction in predictions]


def print_next(tokenizer: Tokenizer, k: int, reports: list[dict[str, Any]]) -> None:
    """Print a row for each token, with its numbers by the model, or by each head."""
    prompt = end_of_prompt(reports[0]["prompt"])
    name = one_line(reports[0]["model"])
    print(fill(f"The likeliest tokens after {prompt} by {name}:"))
    if len(reports) == 1:
        print_table(rows_of_one_head(tokenizer, reports[0]))
        return

    rows = rows_of_two_heads(tokenizer, k, reports)
    print_table(rows)
    if any(row[0].endswith(" *") for row in rows):
        print(fill(f"* among the {k} likeliest by one head only"))


def rows_of_one_head(tokenizer: Tokenizer, report: dict[str, Any]) -> list[Cells]:
    """The rows of the table: the tokens, with probability and logit."""
    rows: list[Cells] = [("", "probability", "logit")]
    for prediction in report["next"]:
        label = quoted_token(tokenizer, prediction["id"])
        rows.append((label, f"{prediction['probability']:.2%}", f"{prediction['logit']:.2f}"))
    return rows


def rows_of_two_heads(tokenizer: Tokenizer, k: int, reports: list[dict[str, Any]]) -> list[Cells]:
    """The rows of the table: the tokens, with probability, logit and rank by each head.

    The reports list the same tokens in the same order (predictions.next_tokens).
    """
    titles = [""]
    for report in reports:
        titles += [report["head"], "logit", "rank"]
    rows: list[Cells] = [tuple(titles)]
    predictions = [report["next"] for report in reports]
    for by_head in zip(*predictions, strict=True):  # one token, by each head
        cells = [quoted_token(tokenizer, by_head[0]["id"])]
        if any(prediction["rank"] > k for prediction in by_head):
            cells[0] += " *"
        for prediction in by_head:
            cells.append(f"{prediction['probability']:.2%}")
            cells.append(f"{prediction['logit']:.2f}")
            cells.append(f"{prediction['rank']:,}")
        rows.append(tuple(cells))
    return rows


def print_paths(tokenizer: Tokenizer, k: int, reports: list[dict[str, Any]]) -> None:
    """Print a column for each path, with its k likeliest tokens."""
    for report in reports:
        print(f"Likeliest next tokens after {end_of_prompt(report['prompt'])}, {report['head']}:")
        ranks = [str(rank) for rank in range(1, k + 1)]
        columns = [["", *ranks]]
        for path, predictions in report["paths"].items():
            column = [path]
            for prediction in predictions:
                if path == "raw":  # without a layer norm, its logits have no useful scale
                    figure = f"{prediction['logit']:.2f}"
                else:
                    figure = f"{prediction['probability']:.1%}"
                column.append(f"{quoted_token(tokenizer, prediction['id'])} {figure:>5}")
            columns.append(column)
        # The columns become rows. A small vocabulary has fewer than k tokens, so fewer rows.
        print_table(list(zip(*columns, strict=False)))
        print()

    parts = [f"{path}: {PATH_PARTS[path]}" for path in reports[0]["paths"]]
    print(fill(f"{'; '.join(parts)}. Numbers of raw are scores, the others are probabilities."))
