"""Show the likeliest next tokens after a prompt.

With --head both, list the tokens among the K likeliest by either head; * marks a token of only one
head.

With --paths, PROMPT is one token, and four parts of the model (paths) predict what follows it: raw,
W_E and W_U alone; normed, with the final layer norm; mlp0, with the first MLP too; model, the whole
model.

examples:
  tiedgpt next "The capital of France is"
  tiedgpt next --model shakespeare-untied --head both "ROMEO:"
  tiedgpt next --model gpt2 --paths " New"
"""

import argparse
from functools import partial
from itertools import chain
from typing import Any

import numpy as np

from ..errors import one_line
from ..gpt2.model import GPT2
from ..gpt2.tokenizer import Tokenizer
from ..inference.prompts import encode_prompt
from ..study.paths import PATH_PARTS, paths_of, top_k
from ..study.predictions import Prediction, next_tokens, predict, prediction_json
from . import common
from .terminal import end_of, fill, print_table, read_prompt, spelled


def add_arguments(parser: common.Parser) -> None:
    parser.add_shared("[PROMPT]", *common.ASKING)
    shown = "show the K likeliest tokens (default: %(default)s)"
    parser.add("-k --top-k K", shown, common.positive_int, default=10)
    parser.add(
        "--paths", 'predict from parts of the model; PROMPT is one token, with its space: " New"'
    )


def run(args: argparse.Namespace) -> None:
    prompt, head, k, as_json = read_prompt(args.prompt), args.head, args.top_k, args.json
    by_paths, allow_special = args.paths, args.allow_special
    name, checkpoint, tokenizer = common.open_model(args.model)
    config = checkpoint.config
    if by_paths:
        ids = [common.single_token(tokenizer, config.vocab_size, prompt, allow_special)]
    else:
        ids = encode_prompt(tokenizer, config, prompt, allow_special)
    models = common.load_heads(checkpoint, head)

    def listed(predictions: list[Prediction]) -> list[dict[str, Any]]:
        return [prediction_json(tokenizer, prediction) for prediction in predictions]

    def by_each_path(model: GPT2) -> dict[str, Any]:
        logits = {path: of(model, np.array(ids))[0] for path, of in paths_of(model).items()}
        return {
            "paths": {path: listed(predict(row, top_k(row, k))) for path, row in logits.items()}
        }

    if by_paths:
        show, found = show_paths, [by_each_path(model) for model in models]
    else:
        show, found = show_next, [{"next": listed(rows)} for rows in next_tokens(models, ids, k)]
    given = {"model": name, "prompt": prompt, "prompt_ids": ids}
    common.print_reports(given, models, found, as_json, partial(show, tokenizer, k))


def show_next(tokenizer: Tokenizer, k: int, reports: list[dict[str, Any]]) -> None:
    """A row for each token, with its probability, logit and, if there are two heads, rank by
    each."""
    prompt, name, both = (
        end_of(reports[0]["prompt"]),
        one_line(reports[0]["model"]),
        len(reports) > 1,
    )
    print(fill(f"The likeliest tokens after {prompt} by {name}:"))
    titles = (
        (report["head"], "logit", "rank") if both else ("probability", "logit")
        for report in reports
    )
    rows = [("", *chain.from_iterable(titles))]
    for by_head in zip(*(report["next"] for report in reports), strict=True):
        mark = " *" * any(one["rank"] > k for one in by_head)
        cells = (
            (f"{p['probability']:.2%}", f"{p['logit']:.2f}", f"{p['rank']:,}") for p in by_head
        )
        shown = chain.from_iterable(cell if both else cell[:2] for cell in cells)
        rows.append((spelled(tokenizer, by_head[0]["id"]) + mark, *shown))
    print_table(rows)
    if any(row[0].endswith(" *") for row in rows):
        print(fill(f"* among the {k} likeliest by one head only"))


def show_paths(tokenizer: Tokenizer, k: int, reports: list[dict[str, Any]]) -> None:
    for report in reports:
        print(f"Likeliest next tokens after {end_of(report['prompt'])}, {report['head']}:")
        columns = [["", *map(str, range(1, k + 1))]]
        for path, rows in report["paths"].items():
            form = "{logit:.2f}" if path == "raw" else "{probability:.1%}"
            columns.append(
                [path, *(f"{spelled(tokenizer, p['id'])} {form.format(**p):>5}" for p in rows)]
            )
        print_table([*zip(*columns, strict=False)])  # a small vocabulary has fewer than k tokens
        print()
    parts = (f"{path}: {PATH_PARTS[path]}" for path in reports[0]["paths"])
    print(fill(f"{'; '.join(parts)}. Numbers of raw are scores, the others are probabilities."))
