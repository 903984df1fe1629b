"""Show the likeliest next tokens after a prompt.

With --head both, list the tokens among the K likeliest by either head; * marks a token of only one
head.

With --paths, PROMPT is one token, and four parts of the model (paths) predict what follows it: raw,
W_E and W_U alone; normed, with the final layer norm; mlp0, with the first MLP (mlp.0) too; model,
the whole model. W_E is the token embedding, W_U the output matrix, W_E^T in a tied model.

examples:
  tiedgpt next "The capital of France is"
  tiedgpt next --model shakespeare-untied --head both "ROMEO:"
  tiedgpt next --paths " the"
"""

import argparse

from ..errors import Range, one_line
from ..gpt2.tokenizer import Tokenizer
from ..study.paths import PATH_PARTS
from ..study.reports import NextReport, PathsReport, next_report, paths_report
from . import models, options
from .output import end_of_prompt, fill, print_json_by_head, quoted_token
from .tables import Cells, print_table, shown, token_cell, value_at
from .texts import encode_prompt, read_prompt, single_token


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add(parser, "prompt", "model", "heads", "allow_special", "json")
    parser.add_argument(
        "-k",
        "--top-k",
        metavar="K",
        type=options.whole_number,
        default=10,
        help="show the K likeliest tokens (default: 10)",
    )
    parser.add_argument(
        "--paths",
        action="store_true",
        help='predict from parts of the model; PROMPT is one token, with its space: " the"',
    )


def run(args: argparse.Namespace) -> None:
    k = Range(1).check("top_k", args.top_k)
    prompt = read_prompt(args.prompt)
    opened = models.open_model(args.model)
    config, tokenizer = opened.config, opened.tokenizer
    # The prompt is checked before the weights are read, which takes longer.
    if args.paths:
        ids = [single_token(tokenizer, config.vocab_size, prompt, args.allow_special)]
    else:
        ids = encode_prompt(tokenizer, config, prompt, args.allow_special)

    loaded = models.load_heads(opened, args.head)
    question = {"model": opened.name, "prompt": prompt, "prompt_ids": ids}
    title = f"The likeliest tokens after {end_of_prompt(prompt)} by {one_line(opened.name)}"
    if args.paths:
        by_path = [paths_report(model, tokenizer, ids[0], k) for model in loaded]
        if args.json:
            print_json_by_head(question, by_path)
        else:
            print_paths(tokenizer, title, by_path)
        return
    reports = next_report(loaded, tokenizer, ids, k)
    if args.json:
        print_json_by_head(question, reports)
    else:
        print(fill(f"{title}:"))
        print_next(tokenizer, k, reports)


def print_next(tokenizer: Tokenizer, k: int, reports: list[NextReport]) -> None:
    """Print a row for each token, with its numbers by the model, or by each head."""
    fields = ["probability", "logit"]
    titles = ["", *fields]
    if len(reports) > 1:
        fields.append("rank")
        titles = [""]
        for report in reports:
            titles += [f"{report['head']} p", "logit", "rank"]

    rows: list[Cells] = [tuple(titles)]
    predictions = [report["next"] for report in reports]  # all list the same tokens
    for by_head in zip(*predictions, strict=True):
        label = quoted_token(tokenizer, by_head[0]["id"])
        if any(prediction["rank"] > k for prediction in by_head):
            label += " *"
        cells = []
        for prediction in by_head:
            cells += [shown(field, value_at(prediction, field)) for field in fields]
        rows.append((label, *cells))
    print_table(rows)
    if any(label.endswith(" *") for label, *_ in rows):
        print(fill(f"* among the {k} likeliest by one head only"))


def print_paths(tokenizer: Tokenizer, title: str, reports: list[PathsReport]) -> None:
    """Print a table for each head: a column for each path, a row for each rank."""
    for report in reports:
        print(fill(f"{title} ({report['head']}):"))
        paths = report["paths"]
        rows: list[Cells] = [("rank", *paths)]
        for rank, by_path in enumerate(zip(*paths.values(), strict=True), start=1):
            cells = []
            for path, prediction in zip(paths, by_path, strict=True):
                # Without a layer norm, the logits of raw have no useful scale.
                field = "logit" if path == "raw" else "probability"
                cells.append(token_cell(tokenizer, prediction, field))
            rows.append((str(rank), *cells))
        print_table(rows)
        print()
    parts = [f"{path}: {PATH_PARTS[path]}" for path in reports[0]["paths"]]
    print(fill(f"{'; '.join(parts)}. Numbers of raw are scores, the others are probabilities."))
