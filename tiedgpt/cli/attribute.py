"""Show which parts of the model a logit comes from.

Split the logit of TOKEN after PROMPT into what each part of the model adds: the token embedding
(wte), the position embedding (wpe), each attention head, each MLP, the biases, and the bias of
ln_f. The parts add up to the logit, with the scale of ln_f held at its value. With --against, split
the difference of two logits.

With --ablate, set parts of the model to 0 instead, and show what changes. A part also acts through
later layers, so removing it can change the logit by more or less than the part adds.

examples:
  tiedgpt attribute "The capital of France is" " Paris" --against " London"
  tiedgpt attribute --model shakespeare-tied "ROMEO:"
  tiedgpt attribute -m shakespeare-tied --ablate attn.3.head.2 "ROMEO:"
"""

import argparse

from ..errors import one_line
from ..study.attribution import ablation
from ..study.reports import LogitReport, logit_report
from . import models, options
from .output import end_of_prompt, fill, print_json_by_head, quoted_token
from .tables import Cells, print_table, shown, value_at
from .texts import encode_prompt, read_prompt, single_token

LARGEST = 10  # parts that are listed by themselves


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add(parser, "prompt", "model", "heads", "allow_special", "json")
    parser.add_argument(
        "token",
        metavar="TOKEN",
        nargs="?",
        type=options.text,
        help='the text of the next token, with its space: " Paris" (default: the likeliest)',
    )
    parser.add_argument(
        "--against",
        metavar="TOKEN",
        type=options.text,
        help="subtract the logit of this token",
    )
    parser.add_argument(
        "--ablate",
        metavar="PART",
        action="append",
        default=[],
        help="set attn.N.head.H, attn.N or mlp.N to 0, layers and heads from 0 (may be repeated)",
    )


def run(args: argparse.Namespace) -> None:
    prompt = read_prompt(args.prompt)
    opened = models.open_model(args.model)
    config, tokenizer = opened.config, opened.tokenizer

    # The input is checked before the weights are read, which takes longer.
    ids = encode_prompt(tokenizer, config, prompt, args.allow_special)
    token = None  # each head has a likeliest token of its own
    if args.token is not None:
        token = single_token(tokenizer, config.vocab_size, args.token, args.allow_special)
    against = None
    if args.against is not None:
        against = single_token(tokenizer, config.vocab_size, args.against, args.allow_special)
    ablation(config, args.ablate)

    loaded = models.load_heads(opened, args.head)
    reports = [logit_report(model, tokenizer, ids, token, against, args.ablate) for model in loaded]
    if args.json:
        print_json_by_head({"model": opened.name, "prompt": prompt, "prompt_ids": ids}, reports)
        return
    for number, report in enumerate(reports):
        if number > 0:
            print()
        names = [quoted_token(tokenizer, token["id"]) for token in report["tokens"]]
        logit = f"The logit of {' less that of '.join(names)} after {end_of_prompt(prompt)}"
        total = shown("total", report["total"])
        print(fill(f"{logit}, by {one_line(opened.name)}, {report['head']}: {total}"))
        print()
        print_table(rows_of_changes(report, names) if args.ablate else rows_of_parts(report))
    if not args.ablate:
        print()
        print(fill("Each number is rounded, so their sum may differ in the last digit."))


def rows_of_parts(report: LogitReport) -> list[Cells]:
    """The largest parts, the sum of the others, and the sum of all."""
    by_size = sorted(report["parts"].items(), key=lambda part: -abs(part[1]))
    listed = by_size[:LARGEST]
    others = [value for _, value in by_size[LARGEST:]]
    if others:
        listed.append((f"other parts ({len(others)})", sum(others)))
    listed.append(("all parts", sum(report["parts"].values())))
    return [(part, shown("logit", value, "+")) for part, value in listed]


def rows_of_changes(report: LogitReport, names: list[str]) -> list[str | Cells]:
    """The numbers of each token with and without the parts that --ablate names."""
    ablated = report["ablated"]
    rows: list[str | Cells] = [
        f"Ablated (set to 0): {', '.join(ablated['parts'])}",
        ("", "model", "ablated", "change"),
    ]
    for name, before, after in zip(names, report["tokens"], ablated["tokens"], strict=True):
        for field in ("logit", "probability", "rank"):
            numbers = value_at(before, field), value_at(after, field)
            rows.append(change(f"{field} of {name}", field, *numbers))
    if len(names) > 1:
        rows.append(change("difference of logits", "total", report["total"], ablated["total"]))
    return rows


def change(label: str, field: str, before: float, after: float) -> Cells:
    """A row with two values of a field and their difference."""
    return label, shown(field, before), shown(field, after), shown(field, after - before, "+")
