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
from typing import Any

import numpy as np

from ..errors import one_line
from ..gpt2.model import GPT2
from ..gpt2.tokenizer import Tokenizer
from ..inference.prompts import encode_prompt
from ..study.attribution import ablation, attribute
from ..study.predictions import last_logits, predict, prediction_json
from . import common
from .terminal import end_of, fill, print_table, read_prompt, spelled

LARGEST = 10  # parts that are listed by themselves
FORMATS = (("logit", ".3f"), ("probability", ".2%"), ("rank", ","))


def add_arguments(parser: common.Parser) -> None:
    parser.add_shared("[PROMPT]", *common.ASKING)
    token = 'the text of the next token, with its space: " Paris" (default: the likeliest)'
    parser.add("[TOKEN]", token, common.text)
    parser.add("--against TOKEN", "subtract the logit of this token", common.text)
    ablate = "set attn.N.head.H, attn.N or mlp.N to 0, layers and heads from 0 (may be repeated)"
    parser.add("--ablate PART", ablate, action="append", default=[])


def run(args: argparse.Namespace) -> None:
    prompt, head, as_json, ablated = read_prompt(args.prompt), args.head, args.json, args.ablate
    texts = [text for text in (args.token, args.against) if text is not None]
    with_likeliest, allow_special = args.token is None, args.allow_special
    name, checkpoint, tokenizer = common.open_model(args.model)
    config = checkpoint.config
    # Check the input before reading the weights.
    ids = encode_prompt(tokenizer, config, prompt, allow_special)
    given = [
        common.single_token(tokenizer, config.vocab_size, text, allow_special) for text in texts
    ]
    edit = ablation(config, ablated)

    def report(model: GPT2) -> dict[str, Any]:
        logits = last_logits(model, ids)
        tokens: Any = [int(logits.argmax()), *given] if with_likeliest else given
        document = {**figures(logits, tokens, tokenizer), "parts": attribute(model, ids, *tokens)}
        if edit:
            without = figures(last_logits(model, ids, edit), tokens, tokenizer)
            document["ablated"] = {"parts": ablated, **without}
        return document

    def show(reports: list[dict[str, Any]]) -> None:
        for number, report in enumerate(reports):
            print("\n" * (number > 0), end="")
            print_report(report, tokenizer)

    models = common.load_heads(checkpoint, head)
    asked = {"model": name, "prompt": prompt, "prompt_ids": ids}
    common.print_reports(asked, models, map(report, models), as_json, show)


def figures(logits: np.ndarray, tokens: list[int], tokenizer: Tokenizer) -> dict[str, Any]:  # [V]
    """One or two tokens, and the logit of the first less that of the second."""
    listed = [prediction_json(tokenizer, prediction) for prediction in predict(logits, tokens)]
    total = listed[0]["logit"] - sum(token["logit"] for token in listed[1:])
    return {"tokens": listed, "total": total}


def print_report(report: dict[str, Any], tokenizer: Tokenizer) -> None:
    names = [spelled(tokenizer, token["id"]) for token in report["tokens"]]
    what = " less that of ".join(names)
    after = f"after {end_of(report['prompt'])}, by {one_line(report['model'])}, {report['head']}"
    print(fill(f"The logit of {what} {after}: {report['total']:.3f}"), end="\n\n")
    if ablated := report.get("ablated"):
        numbers = []
        for name, x, y in zip(names, report["tokens"], ablated["tokens"], strict=True):
            numbers += [(f"{key} of {name}", form, x[key], y[key]) for key, form in FORMATS]
        if len(names) > 1:
            numbers.append(("difference of logits", ".3f", report["total"], ablated["total"]))
        rows = [
            (label, f"{x:{form}}", f"{y:{form}}", f"{y - x:+{form}}")
            for label, form, x, y in numbers
        ]
        caption = f"Ablated (set to 0): {', '.join(ablated['parts'])}"
        print_table([caption, ("", "model", "ablated", "change"), *rows])
        return
    parts = sorted(report["parts"].items(), key=lambda part: -abs(part[1]))
    shown, others = parts[:LARGEST], [value for _, value in parts[LARGEST:]]
    if others:
        shown.append((f"other parts ({len(others)})", sum(others)))
    shown.append(("all parts", sum(report["parts"].values())))
    print_table([(part, f"{value:+.3f}") for part, value in shown])
