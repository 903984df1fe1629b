"""Show the next token that each layer predicts.

Apply the final layer norm and the output matrix to the residual stream after the embedding and
after each block, at each token of the prompt (the logit lens).

examples:
  tiedgpt lens "The capital of France is"
  tiedgpt lens --model shakespeare-untied --head both "ROMEO:"
"""

import argparse
from typing import Any

from ..gpt2.model import GPT2
from ..inference.prompts import encode_prompt
from ..study.predictions import Layer, lens, token_json
from . import common
from .terminal import fill, print_table, read_prompt, spelled


def add_arguments(parser: common.Parser) -> None:
    parser.add_shared("[PROMPT]", *common.ASKING)


def run(args: argparse.Namespace) -> None:
    prompt, head, as_json = read_prompt(args.prompt), args.head, args.json
    name, checkpoint, tokenizer = common.open_model(args.model)
    ids = encode_prompt(tokenizer, checkpoint.config, prompt, args.allow_special)

    def positions(layer: Layer) -> list[Any]:
        rows = (
            zip(*row, strict=True) for row in zip(layer.tokens, layer.probabilities, strict=True)
        )
        return [
            [{**token_json(tokenizer, t), "probability": float(p)} for t, p in row] for row in rows
        ]

    def report(model: GPT2) -> dict[str, Any]:
        return {
            "layers": [{"name": at.name, "positions": positions(at)} for at in lens(model, ids)]
        }

    def show(reports: list[dict[str, Any]]) -> None:
        """A row for each layer, a column for each token of the prompt: the likeliest next token."""
        after = (
            "The likeliest next token and its probability, after each token of the prompt (columns)"
        )
        print(
            fill(
                f"{after}, as predicted from the embedding and from the output of each block (rows)."
            )
        )
        for report in reports:
            print(f"\n{report['head']}:" if len(reports) > 1 else "")
            rows = [("", *(spelled(tokenizer, token) for token in ids))]
            for number, layer in enumerate(report["layers"]):
                first = [position[0] for position in layer["positions"]]
                cells = (
                    f"{spelled(tokenizer, one['id'])} {one['probability']:4.0%}" for one in first
                )
                rows.append((f"block {number - 1}" if number else "embedding", *cells))
            print_table(rows)

    models = common.load_heads(checkpoint, head)
    given = {"model": name, "prompt": prompt, "prompt_ids": ids}
    common.print_reports(given, models, map(report, models), as_json, show)
