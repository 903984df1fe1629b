"""`tiedgpt attribute`: which parts of a model a logit comes from, and what it is without some of them."""

import argparse
from typing import Any

import numpy as np

from ..checks import check_prompt
from ..errors import one_line
from ..study.attribution import ablation, attribute
from ..study.predictions import last_logits, predict
from ..tokenizer import Tokenizer
from . import common
from .tokens import candidate_json, end_of, single_token

LARGEST = 10  # parts that are listed by themselves
COLUMNS = ("heads", "mlp", "biases", "sum")

ABOUT = """\
Split the logit of TOKEN after PROMPT into what each part of the model adds to it: the token embedding (wte),
the position embedding (wpe), each attention head, each MLP, the biases, and the bias of ln_f. The parts add
up to the logit, with the scale of ln_f held at its value. With --against, split the difference of two logits.

With --ablate, set parts of the model to 0 instead, and show what changes. A part also acts through later
layers, so removing it can change the logit by more or less than the part adds.
"""

EXAMPLES = """\
  tiedgpt attribute "The capital of France is" " Paris" --against " London"
  tiedgpt attribute --model shakespeare-tied "ROMEO:"
  tiedgpt attribute -m shakespeare-tied --ablate attn.3.head.2 "ROMEO:"
"""


def add_parser(commands: Any) -> None:
    summary = "Show which parts of the model a logit comes from."
    parser = common.add_command(commands, "attribute", run, summary, EXAMPLES)
    parser.description = ABOUT
    add = parser.add_argument
    add("prompt", metavar="PROMPT", help="the text to predict from")
    token = 'the text of the next token, with its space: " Paris" (default: the likeliest)'
    add("token", nargs="?", metavar="TOKEN", help=token)
    add("--against", metavar="TOKEN", help="subtract the logit of this token")
    ablate = "set attn.N.head.H, attn.N or mlp.N to 0, layers and heads from 0 (may be repeated)"
    add("--ablate", action="append", default=[], metavar="PART", help=ablate)
    common.add_model_option(parser)
    common.add_head_option(parser)
    common.add_special_option(parser)
    common.add_json_option(parser)


def run(args: argparse.Namespace) -> None:
    name, checkpoint, tokenizer = common.open_model(args.model)
    config = checkpoint.config
    # Check the input before reading the weights.
    ids = check_prompt(common.encode(tokenizer, args.prompt, args.allow_special), config)
    token, against = (
        None if text is None else single_token(tokenizer, config.vocab_size, text, args.allow_special)
        for text in (args.token, args.against)
    )
    edit = ablation(config, args.ablate)
    reports = []
    for model in common.load_heads(checkpoint, args.head):
        logits = last_logits(model, ids)
        first = int(logits.argmax()) if token is None else token
        tokens = [first] if against is None else [first, against]
        report = {"model": name, "head": model.config.head, "prompt": args.prompt, "prompt_ids": ids}
        report |= figures(logits, tokens, tokenizer)
        report["parts"] = attribute(model, ids, first, against)
        if edit:
            without = figures(last_logits(model, ids, edit), tokens, tokenizer)
            report["ablated"] = {"parts": args.ablate, **without}
        reports.append(report)
    if args.json:
        common.print_json(reports)
        return
    for number, report in enumerate(reports):
        if number:
            print()
        print_report(report, tokenizer)


def figures(logits: np.ndarray, tokens: list[int], tokenizer: Tokenizer) -> dict[str, Any]:  # [V]
    """One or two tokens, and the logit of the first less that of the second."""
    listed = [candidate_json(tokenizer, prediction) for prediction in predict(logits, tokens)]
    total = listed[0]["logit"] - sum(token["logit"] for token in listed[1:])
    return {"tokens": listed, "total": total}


def print_report(report: dict[str, Any], tokenizer: Tokenizer) -> None:
    names = [common.spelled(tokenizer, token["id"]) for token in report["tokens"]]
    what = " less that of ".join(names)
    after = f"after {end_of(report['prompt'])}, by {one_line(report['model'])}, {report['head']}"
    print(common.fill(f"The logit of {what} {after}: {report['total']:.3f}"))
    print()
    if "ablated" in report:
        print(common.fill(f"Ablated (set to 0): {', '.join(report['ablated']['parts'])}"))
        common.print_table(change_rows(report, report["ablated"], names))
        return
    parts = report["parts"]
    common.print_table(
        [("", *COLUMNS), *layer_rows(parts), ("total", "", "", "", f"{sum(parts.values()):+.3f}")]
    )
    print(f"\nThe {min(LARGEST, len(parts))} parts that add or subtract the most:\n")
    largest = sorted(parts, key=lambda part: -abs(parts[part]))[:LARGEST]
    common.print_table([(part, f"{parts[part]:+.3f}") for part in largest])


def layer_rows(parts: dict[str, float]) -> list[tuple[str, ...]]:
    """A row for each layer and for each part outside of the layers, with their sums."""
    rows: dict[str, dict[str, float]] = {}
    for part, value in parts.items():
        kind, *place = part.split(".")
        layer = kind in ("attn", "mlp")
        row = rows.setdefault(f"block {place[0]}" if layer else part, {})
        column = "biases" if part.endswith("bias") else "heads" if kind == "attn" else "mlp"
        for name in (column, "sum") if layer else ("sum",):
            row[name] = row.get(name, 0.0) + value
    return [
        (label, *(f"{row[name]:+.3f}" if name in row else "" for name in COLUMNS))
        for label, row in rows.items()
    ]


def change_rows(before: dict[str, Any], after: dict[str, Any], names: list[str]) -> list[tuple[str, ...]]:
    """The model as it is beside the model without some parts."""
    rows: list[tuple[str, ...]] = [("", "model", "ablated", "change")]

    def add(label: str, form: str, one: float, other: float) -> None:
        rows.append((label, f"{one:{form}}", f"{other:{form}}", f"{other - one:+{form}}"))

    for name, one, other in zip(names, before["tokens"], after["tokens"], strict=True):
        for key, form in (("logit", ".3f"), ("probability", ".2%"), ("rank", ",")):
            add(f"{key} of {name}", form, one[key], other[key])
    if len(names) > 1:
        add("difference of logits", ".3f", before["total"], after["total"])
    return rows
