"""Show the next token that each layer predicts.

Apply the final layer norm and the output matrix to the residual stream after the embedding and
after each block, at each token of the prompt (the logit lens).

examples:
  tiedgpt lens "The capital of France is"
  tiedgpt lens --model shakespeare-untied --head both "ROMEO:"
"""

import argparse
from typing import Any

from ..checkpoints import find_model, read_config, read_tokenizer
from ..gpt2.tokenizer import Tokenizer
from ..study.predictions import Layer, lens, token_json
from . import models, options
from .messages import note
from .output import fill, print_json, quoted_token
from .tables import Cells, print_table
from .texts import encode_prompt, read_prompt


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_prompt(parser)
    options.add_question(parser)


def run(args: argparse.Namespace) -> None:
    prompt = read_prompt(args.prompt)
    name, path = find_model(args.model, note)
    config = read_config(path)
    tokenizer = read_tokenizer(path)
    # The prompt is checked before the weights are read, which takes longer.
    ids = encode_prompt(tokenizer, config, prompt, args.allow_special)

    reports = []
    for model in models.load_heads(path, args.head):
        layers = [layer_json(tokenizer, layer) for layer in lens(model, ids)]
        report = {
            "model": name,
            "prompt": prompt,
            "prompt_ids": ids,
            "head": model.config.head,
            "layers": layers,
        }
        reports.append(report)
    if args.json:
        print_json(reports)
    else:
        print_layers(tokenizer, reports)


def layer_json(tokenizer: Tokenizer, layer: Layer) -> dict[str, Any]:
    """What a layer predicts after each token of the prompt: the likeliest tokens."""
    positions = []
    for tokens, probabilities in zip(layer.tokens, layer.probabilities, strict=True):
        likeliest = []
        for token, probability in zip(tokens, probabilities, strict=True):
            document = token_json(tokenizer, token)
            document["probability"] = float(probability)
            likeliest.append(document)
        positions.append(likeliest)
    return {"name": layer.name, "positions": positions}


def print_layers(tokenizer: Tokenizer, reports: list[dict[str, Any]]) -> None:
    """Print a table for each head: a row for each layer, a column for each token of the prompt."""
    paragraph = (
        "The likeliest next token and its probability, after each token of the prompt (columns), "
        "as predicted from the embedding and from the output of each block (rows)."
    )
    print(fill(paragraph))
    for report in reports:
        print()
        if len(reports) > 1:
            print(f"{report['head']}:")
        prompt_tokens = [quoted_token(tokenizer, token) for token in report["prompt_ids"]]
        rows: list[Cells] = [("", *prompt_tokens)]
        for number, layer in enumerate(report["layers"]):
            label = "embedding" if number == 0 else f"block {number - 1}"
            cells = []
            for position in layer["positions"]:
                likeliest = position[0]
                quoted = quoted_token(tokenizer, likeliest["id"])
                cells.append(f"{quoted} {likeliest['probability']:4.0%}")
            rows.append((label, *cells))
        print_table(rows)
