"""Show which parts of the model a logit comes from.

Split the logit of TOKEN after PROMPT into what each part of the model adds: the token embedding (wte), the
position embedding (wpe), each attention head, each MLP, the biases, and the bias of ln_f. The parts add up to
the logit, with the scale of ln_f held at its value. With --against, split the difference of two logits.

With --ablate, set parts of the model to 0 instead, and show what changes. A part also acts through later
layers, so removing it can change the logit by more or less than the part adds.
"""

import argparse
from typing import Any

import numpy as np

from ..checks import check_prompt
from ..errors import one_line
from ..model import GPT2
from ..study.attribution import ablation, attribute
from ..study.predictions import last_logits, predict, prediction_json
from ..tokenizer import Tokenizer
from . import common
from .terminal import end_of, fill, print_reports, print_table, read_prompt, spelled

LARGEST = 10  # parts that are listed by themselves
FORMATS = {"logit": ".3f", "probability": ".2%", "rank": ","}

EXAMPLES = """\
  tiedgpt attribute "The capital of France is" " Paris" --against " London"
  tiedgpt attribute --model shakespeare-tied "ROMEO:"
  tiedgpt attribute -m shakespeare-tied --ablate attn.3.head.2 "ROMEO:"
"""


def add_parser(commands: dict[str, common.Parser]) -> None:
    parser = common.add_command(commands, "attribute", run, __doc__, EXAMPLES)
    common.add_shared(parser, "prompt", "-m --model", "--head", "--allow-special", "--json")
    token = 'the text of the next token, with its space: " Paris" (default: the likeliest)'
    parser.add_argument("token", nargs="?", type=common.text, metavar="TOKEN", help=token)
    parser.flag("--against TOKEN", "subtract the logit of this token", common.text)
    ablate = "set attn.N.head.H, attn.N or mlp.N to 0, layers and heads from 0 (may be repeated)"
    parser.flag("--ablate PART", ablate, action="append", default=[])


def run(args: argparse.Namespace) -> None:
    prompt, head, as_json, ablated = read_prompt(args.prompt), args.head, args.json, args.ablate
    texts = [text for text in (args.token, args.against) if text is not None]
    with_likeliest, allow_special = args.token is None, args.allow_special
    name, checkpoint, tokenizer = common.open_model(args.model)
    config = checkpoint.config
    # Check the input before reading the weights.
    ids = check_prompt(common.encode(tokenizer, prompt, allow_special), config)
    given = [common.single_token(tokenizer, config.vocab_size, text, allow_special) for text in texts]
    edit = ablation(config, ablated)

    def report(model: GPT2) -> dict[str, Any]:
        logits = last_logits(model, ids)
        tokens: Any = [int(logits.argmax()), *given] if with_likeliest else given
        document: dict[str, Any] = {"model": name, "head": model.config.head, "prompt": prompt}
        document |= {"prompt_ids": ids, **figures(logits, tokens, tokenizer)}
        document["parts"] = attribute(model, ids, *tokens)
        if edit:
            without = figures(last_logits(model, ids, edit), tokens, tokenizer)
            document["ablated"] = {"parts": ablated, **without}
        return document

    def show(reports: list[dict[str, Any]]) -> None:
        for number, report in enumerate(reports):
            print("\n" * (number > 0), end="")
            print_report(report, tokenizer)

    print_reports([report(model) for model in common.load_heads(checkpoint, head)], as_json, show)


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
        rows: list[Any] = [f"Ablated (set to 0): {', '.join(ablated['parts'])}"]
        rows.append(("", "model", "ablated", "change"))
        for name, *pair in zip(names, report["tokens"], ablated["tokens"], strict=True):
            for key, form in FORMATS.items():
                rows.append(change(f"{key} of {name}", form, *(token[key] for token in pair)))
        if len(names) > 1:
            rows.append(change("difference of logits", ".3f", report["total"], ablated["total"]))
        print_table(rows)
        return
    parts = report["parts"]
    largest = sorted(parts, key=lambda part: -abs(parts[part]))[:LARGEST]
    shown = {part: parts[part] for part in largest}
    if others := set(parts) - set(shown):
        shown[f"other parts ({len(others)})"] = sum(parts[part] for part in others)
    shown["all parts"] = sum(parts.values())
    print_table([(part, f"{value:+.3f}") for part, value in shown.items()])


def change(label: str, form: str, model: float, ablated: float) -> tuple[str, ...]:
    return label, f"{model:{form}}", f"{ablated:{form}}", f"{ablated - model:+{form}}"
