"""The commands next, lens and attribute, which show how a model continues a prompt, and why."""

import argparse

from ..errors import Range, one_line
from ..gpt2.tokenizer import Tokenizer
from ..study.paths import PATH_PARTS
from ..study.predictions import ablation
from ..study.reports import (
    LogitReport,
    NextReport,
    PathsReport,
    lens_report,
    logit_report,
    next_report,
    paths_report,
)
from . import inputs, options
from .inputs import encode_prompt, read_prompt, single_token
from .output import (
    Cells,
    end_of_prompt,
    fill,
    print_json_by_head,
    print_table,
    quoted_token,
    shown,
    token_cell,
    value_at,
)

LARGEST = 10  # parts of a logit that are listed by themselves


def add_next_arguments(parser: argparse.ArgumentParser) -> None:
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


def run_next(args: argparse.Namespace) -> None:
    """Show the likeliest next tokens after a prompt.

    With --head both, list the tokens among the K likeliest by either head; * marks a token of only
    one head.

    With --paths, PROMPT is one token, and four parts of the model (paths) predict what follows it:
    raw, W_E and W_U alone; normed, with the final layer norm; mlp0, with the first MLP (mlp.0) too;
    model, the whole model. W_E is the token embedding, W_U the output matrix, W_E^T in a tied
    model.

    examples:
      tiedgpt next "The capital of France is"
      tiedgpt next --model shakespeare-untied --head both "ROMEO:"
      tiedgpt next --paths " the"
    """
    k = Range(1).check("top_k", args.top_k)
    prompt = read_prompt(args.prompt)
    opened = inputs.open_model(args.model)
    config, tokenizer = opened.config, opened.tokenizer
    # The prompt is checked before the weights are read, which takes longer.
    if args.paths:
        ids = [single_token(tokenizer, config.vocab_size, prompt, args.allow_special)]
    else:
        ids = encode_prompt(tokenizer, config, prompt, args.allow_special)
    loaded = inputs.load_heads(opened, args.head)
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
        print_next(tokenizer, title, k, reports)


def print_next(tokenizer: Tokenizer, title: str, k: int, reports: list[NextReport]) -> None:
    """Print a row for each token, with its numbers by the model, or by each head."""
    print(fill(f"{title}:"))
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


def add_lens_arguments(parser: argparse.ArgumentParser) -> None:
    options.add(parser, "prompt", "model", "heads", "allow_special", "json")


def run_lens(args: argparse.Namespace) -> None:
    """Show the next token that each layer predicts.

    Apply the final layer norm and the output matrix to the residual stream after the embedding and
    after each block, at each token of the prompt (the logit lens).

    examples:
      tiedgpt lens "The capital of France is"
      tiedgpt lens --model shakespeare-untied --head both "ROMEO:"
    """
    prompt = read_prompt(args.prompt)
    opened = inputs.open_model(args.model)
    config, tokenizer = opened.config, opened.tokenizer
    # The prompt is checked before the weights are read, which takes longer.
    ids = encode_prompt(tokenizer, config, prompt, args.allow_special)
    loaded = inputs.load_heads(opened, args.head)
    reports = [lens_report(model, tokenizer, ids) for model in loaded]
    if args.json:
        print_json_by_head({"model": opened.name, "prompt": prompt, "prompt_ids": ids}, reports)
        return
    paragraph = (
        f"The likeliest next token by {one_line(opened.name)} and its probability, after each "
        "token of the prompt (columns), as predicted from the embedding and from the output of "
        "each block (rows)."
    )
    print(fill(paragraph))
    prompt_tokens = [quoted_token(tokenizer, token) for token in ids]
    for report in reports:
        print()
        rows: list[Cells] = [(report["head"], *prompt_tokens)]
        for number, layer in enumerate(report["layers"]):
            label = "embedding" if number == 0 else f"block {number - 1}"
            cells = [token_cell(tokenizer, likeliest[0]) for likeliest in layer["positions"]]
            rows.append((label, *cells))
        print_table(rows)


def add_attribute_arguments(parser: argparse.ArgumentParser) -> None:
    options.add(parser, "prompt", "model", "heads", "allow_special", "json")
    parser.add_argument(
        "token",
        metavar="TOKEN",
        nargs="?",
        type=options.utf8_text,
        help='the text of the next token, with its space: " Paris" (default: the likeliest)',
    )
    parser.add_argument(
        "--against",
        metavar="TOKEN",
        type=options.utf8_text,
        help="subtract the logit of this token",
    )
    parser.add_argument(
        "--ablate",
        metavar="PART",
        action="append",
        default=[],
        help="set attn.N.head.H, attn.N or mlp.N to 0, layers and heads from 0 (may be repeated)",
    )


def run_attribute(args: argparse.Namespace) -> None:
    """Show which parts of the model a logit comes from.

    Split the logit of TOKEN after PROMPT into what each part of the model adds: the token embedding
    (wte), the position embedding (wpe), each attention head, each MLP, the biases, and the bias of
    ln_f. The parts add up to the logit, with the scale of ln_f held at its value. With --against,
    split the difference of two logits.

    With --ablate, set parts of the model to 0 instead, and show what changes. A part also acts
    through later layers, so removing it can change the logit by more or less than the part adds.

    examples:
      tiedgpt attribute "The capital of France is" " Paris" --against " London"
      tiedgpt attribute --model shakespeare-tied "ROMEO:"
      tiedgpt attribute -m shakespeare-tied --ablate attn.3.head.2 "ROMEO:"
    """
    prompt = read_prompt(args.prompt)
    opened = inputs.open_model(args.model)
    config, tokenizer = opened.config, opened.tokenizer

    # The input is checked before the weights are read, which takes longer.
    ids = encode_prompt(tokenizer, config, prompt, args.allow_special)
    token = None  # the likeliest one, which may be another by each output matrix
    if args.token is not None:
        token = single_token(tokenizer, config.vocab_size, args.token, args.allow_special)
    against = None
    if args.against is not None:
        against = single_token(tokenizer, config.vocab_size, args.against, args.allow_special)
    ablation(config, args.ablate)  # raises for a part that the model does not have

    loaded = inputs.load_heads(opened, args.head)
    reports = [logit_report(model, tokenizer, ids, token, against, args.ablate) for model in loaded]
    if args.json:
        print_json_by_head({"model": opened.name, "prompt": prompt, "prompt_ids": ids}, reports)
        return
    title = f"after {end_of_prompt(prompt)}, by {one_line(opened.name)}"
    print_logits(tokenizer, title, reports)


def print_logits(tokenizer: Tokenizer, title: str, reports: list[LogitReport]) -> None:
    """Print a table for each head: the largest parts, or what --ablate changes."""
    for number, report in enumerate(reports):
        if number > 0:
            print()
        names = [quoted_token(tokenizer, token["id"]) for token in report["tokens"]]
        total = shown("total", report["total"])
        logit = f"The logit of {' less that of '.join(names)}"
        print(fill(f"{logit} {title}, {report['head']}: {total}"))
        print()
        if "ablated" in report:
            print_table(rows_of_changes(report, names))
            continue
        by_size = sorted(report["parts"].items(), key=lambda part: -abs(part[1]))
        listed = by_size[:LARGEST]
        others = [value for _, value in by_size[LARGEST:]]
        if others:
            listed.append((f"other parts ({len(others)})", sum(others)))
        listed.append(("all parts", sum(report["parts"].values())))
        print_table([(part, shown("logit", value, "+")) for part, value in listed])
    if "ablated" not in reports[0]:
        print()
        print(fill("Each number is rounded, so their sum may differ in the last digit."))


def rows_of_changes(report: LogitReport, names: list[str]) -> list[str | Cells]:
    """A caption, and rows with the numbers of each token without --ablate and with it."""
    ablated = report["ablated"]
    rows: list[str | Cells] = [
        f"Ablated (set to 0): {', '.join(ablated['parts'])}",
        ("", "model", "ablated", "change"),
    ]
    for name, before, after in zip(names, report["tokens"], ablated["tokens"], strict=True):
        for field in ("logit", "probability", "rank"):
            label = f"{field} of {name}"
            rows.append(change(label, field, value_at(before, field), value_at(after, field)))
    if len(names) > 1:  # with --against
        totals = report["total"], ablated["total"]
        rows.append(change("difference of logits", "total", *totals))
    return rows


def change(label: str, field: str, before: float, after: float) -> Cells:
    """A row with two values of a field and their difference."""
    return label, shown(field, before), shown(field, after), shown(field, after - before, "+")
