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
FORMATS = {"logit": ".3f", "probability": ".2%", "rank": ","}

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
        report |= figures(logits, tokens, tokenizer) | {"parts": attribute(model, ids, first, against)}
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
    print(common.fill(f"The logit of {what} {after}: {report['total']:.3f}"), end="\n\n")
    if ablated := report.get("ablated"):
        rows: list[Any] = [
            f"Ablated (set to 0): {', '.join(ablated['parts'])}",
            ("", "model", "ablated", "change"),
        ]
        for name, *pair in zip(names, report["tokens"], ablated["tokens"], strict=True):
            for key, form in FORMATS.items():
                rows.append(change(f"{key} of {name}", form, *(token[key] for token in pair)))
        if len(names) > 1:
            rows.append(change("difference of logits", ".3f", report["total"], ablated["total"]))
        common.print_table(rows)
        return
    parts = report["parts"]
    largest = sorted(parts, key=lambda part: -abs(parts[part]))[:LARGEST]
    shown = {part: parts[part] for part in largest}
    if others := set(parts) - set(shown):
        shown[f"other parts ({len(others)})"] = sum(parts[part] for part in others)
    shown["all parts"] = sum(parts.values())
    common.print_table([(part, f"{value:+.3f}") for part, value in shown.items()])


def change(label: str, form: str, model: float, ablated: float) -> tuple[str, ...]:
    return label, f"{model:{form}}", f"{ablated:{form}}", f"{ablated - model:+{form}}"
