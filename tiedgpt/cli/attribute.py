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

from ..checkpoints import find_model, read_config, read_tokenizer
from ..errors import one_line
from ..gpt2.tokenizer import Tokenizer
from ..study.attribution import ablation, attribute
from ..study.predictions import last_logits, predict, prediction_json
from . import models, options
from .messages import note
from .output import end_of_prompt, fill, print_json, quoted_token
from .tables import Cells, print_table
from .texts import encode_prompt, read_prompt, single_token

LARGEST = 10  # parts that are listed by themselves


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_prompt(parser)
    options.add_question(parser)
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
    name, path = find_model(args.model, note)
    config = read_config(path)
    tokenizer = read_tokenizer(path)

    # The input is checked before the weights are read, which takes longer.
    ids = encode_prompt(tokenizer, config, prompt, args.allow_special)
    token = None
    if args.token is not None:
        token = single_token(tokenizer, config.vocab_size, args.token, args.allow_special)
    against = None
    if args.against is not None:
        against = single_token(tokenizer, config.vocab_size, args.against, args.allow_special)
    edit = ablation(config, args.ablate)

    reports = []
    for model in models.load_heads(path, args.head):
        logits = last_logits(model, ids)
        # Without TOKEN, each head has a likeliest token of its own.
        first = token
        if first is None:
            first = int(logits.argmax())
        tokens = [first]
        if against is not None:
            tokens.append(against)
        report = {
            "model": name,
            "prompt": prompt,
            "prompt_ids": ids,
            "head": model.config.head,
            **logits_json(logits, tokens, tokenizer),
            "parts": attribute(model, ids, first, against),
        }
        if edit:
            changed_logits = last_logits(model, ids, edit)
            changed = logits_json(changed_logits, tokens, tokenizer)
            report["ablated"] = {"parts": args.ablate, **changed}
        reports.append(report)

    if args.json:
        print_json(reports)
        return
    for number, report in enumerate(reports):
        if number > 0:
            print()
        print_report(report, tokenizer)


def logits_json(logits: np.ndarray, tokens: list[int], tokenizer: Tokenizer) -> dict[str, Any]:
    """What --json prints of one or two tokens, from the logits [V].

    "tokens" lists the numbers of each. "total" is the logit of the first, less that of the second.
    """
    listed = [prediction_json(tokenizer, prediction) for prediction in predict(logits, tokens)]
    total = listed[0]["logit"]
    if len(listed) > 1:
        total -= listed[1]["logit"]
    return {"tokens": listed, "total": total}


def print_report(report: dict[str, Any], tokenizer: Tokenizer) -> None:
    """Print the logit, and a table of its parts or, with --ablate, of what changes."""
    names = [quoted_token(tokenizer, token["id"]) for token in report["tokens"]]
    logit = " less that of ".join(names)
    prompt = end_of_prompt(report["prompt"])
    model = one_line(report["model"])
    total = f"{report['total']:.3f}"
    print(fill(f"The logit of {logit} after {prompt}, by {model}, {report['head']}: {total}"))
    print()
    if "ablated" in report:
        print_changes(report, names)
    else:
        print_parts(report["parts"])


def print_parts(parts: dict[str, float]) -> None:
    """Print the largest parts, and the sum of the others."""
    by_size = sorted(parts.items(), key=lambda part: -abs(part[1]))
    listed = by_size[:LARGEST]
    others = [value for _, value in by_size[LARGEST:]]
    if others:
        listed.append((f"other parts ({len(others)})", sum(others)))
    listed.append(("all parts", sum(parts.values())))
    print_table([(part, f"{value:+.3f}") for part, value in listed])


def print_changes(report: dict[str, Any], names: list[str]) -> None:
    """Print the numbers of each token with and without the parts that --ablate names."""
    ablated = report["ablated"]
    rows: list[str | Cells] = [
        f"Ablated (set to 0): {', '.join(ablated['parts'])}",
        ("", "model", "ablated", "change"),
    ]
    for name, before, after in zip(names, report["tokens"], ablated["tokens"], strict=True):
        rows.append(change(f"logit of {name}", before["logit"], after["logit"], ".3f"))
        rows.append(
            change(f"probability of {name}", before["probability"], after["probability"], ".2%")
        )
        rows.append(change(f"rank of {name}", before["rank"], after["rank"], ","))
    if len(names) > 1:
        rows.append(change("difference of logits", report["total"], ablated["total"], ".3f"))
    print_table(rows)


def change(label: str, before: float, after: float, form: str) -> Cells:
    """A row with two numbers and their difference."""
    return label, f"{before:{form}}", f"{after:{form}}", f"{after - before:+{form}}"
