"""`tiedgpt next`: the likeliest tokens after a prompt, by one head, by both, or by parts of the model."""

import argparse
from itertools import chain, zip_longest
from typing import Any

import numpy as np

from ..checks import check_prompt
from ..errors import one_line
from ..model import GPT2
from ..study.paths import PATH_PARTS, paths_of, top_k
from ..study.predictions import Prediction, next_tokens, predict, prediction_json
from . import common
from .terminal import fill, print_reports, print_table, read_prompt, spelled
from .tokens import end_of, single_token

ABOUT = """\
Show the likeliest next tokens after a prompt, with probability and logit. With --head both, a token is \
listed if it is among the K likeliest by one of the heads, and marked with * if it is not by the other.

With --paths, PROMPT is one token, and four parts of the model (paths) predict what follows it: raw, W_E and \
W_U alone; normed, with the final layer norm; mlp0, with the first MLP too; model, the whole model."""

EXAMPLES = """\
  tiedgpt next "The capital of France is"
  tiedgpt next --model shakespeare-untied --head both "ROMEO:"
  tiedgpt next --model gpt2 --paths " New"
"""


def add_parser(commands: dict[str, common.Parser]) -> None:
    summary = "Show the likeliest next tokens after a prompt."
    parser = common.add_command(commands, "next", run, summary, EXAMPLES, ABOUT)
    common.add_prompt(parser)
    add = parser.add_argument
    shown = "show the K likeliest tokens (default: %(default)s)"
    add("-k", "--top-k", type=common.positive_int, default=10, metavar="K", help=shown)
    paths = 'predict from parts of the model; PROMPT is one token, with its space: " New"'
    add("--paths", action="store_true", help=paths)
    common.add_shared_options(parser)


def run(args: argparse.Namespace) -> None:
    prompt, head, k, by_paths, as_json = (
        read_prompt(args.prompt),
        args.head,
        args.top_k,
        args.paths,
        args.json,
    )
    name, checkpoint, tokenizer = common.open_model(args.model)
    config = checkpoint.config
    if by_paths:
        ids = [single_token(tokenizer, config.vocab_size, prompt, args.allow_special)]
    else:
        ids = check_prompt(common.encode(tokenizer, prompt, args.allow_special), config)
    models = common.load_heads(checkpoint, head)

    def report(model: GPT2, **predictions: Any) -> dict[str, Any]:
        given = {"model": name, "head": model.config.head, "prompt": prompt, "prompt_ids": ids}
        return {**given, **predictions}

    def listed(predictions: list[Prediction]) -> list[dict[str, Any]]:
        return [prediction_json(tokenizer, prediction) for prediction in predictions]

    def following(model: GPT2) -> dict[str, Any]:
        """The likeliest tokens by each path."""
        logits = {path: of(model, np.array(ids))[0] for path, of in paths_of(model).items()}
        return {path: listed(predict(row, top_k(row, k))) for path, row in logits.items()}

    def show_next(reports: Any) -> None:
        print(fill(f"The likeliest tokens after {end_of(prompt)} by {one_line(name)}:"))
        both = len(reports) > 1
        columns = [
            (report["head"], "logit", "rank") if both else ("probability", "logit") for report in reports
        ]
        rows = [("", *chain.from_iterable(columns))]
        for by_head in zip(*(report["next"] for report in reports), strict=True):
            only_one = max(one["rank"] for one in by_head) > k
            label = spelled(tokenizer, by_head[0]["id"]) + (" *" if only_one else "")
            cells = ((f"{p['probability']:.2%}", f"{p['logit']:.2f}", f"{p['rank']:,}") for p in by_head)
            rows.append((label, *chain.from_iterable(cell if both else cell[:2] for cell in cells)))
        print_table(rows)
        if any(row[0].endswith(" *") for row in rows):
            print(fill(f"* among the {k} likeliest by one head only"))

    def show_paths(reports: Any) -> None:
        for report in reports:
            print(f"Likeliest next tokens after {spelled(tokenizer, ids[0])}, {report['head']}:")
            columns = []
            for path, rows in report["paths"].items():
                form = "{logit:.2f}" if path == "raw" else "{probability:.1%}"
                columns.append(
                    [path, *(f"{spelled(tokenizer, row['id'])} {form.format(**row):>5}" for row in rows)]
                )
            ranks = ["", *map(str, range(1, max(map(len, columns))))]
            print_table(list(zip_longest(ranks, *columns, fillvalue="")))
            print()
        parts = (f"{path}: {PATH_PARTS[path]}" for path in reports[0]["paths"])
        print(fill(f"{'; '.join(parts)}. Numbers of raw are scores, the others are probabilities."))

    if by_paths:
        reports = [report(model, paths=following(model)) for model in models]
    else:
        predictions = next_tokens(models, ids, k)
        reports = [report(model, next=listed(p)) for model, p in zip(models, predictions, strict=True)]
    print_reports(reports, as_json, show_paths if by_paths else show_next)
