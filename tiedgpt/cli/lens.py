"""`tiedgpt lens`: what each layer's residual stream would say, token by token of a prompt."""

import argparse
import json
import shutil
from typing import Any

from ..checkpoints import open_checkpoint
from ..checkpoints.vocabulary import read_tokenizer
from ..checks import check_prompt
from ..study.lens import Layer, lens
from ..tokenizer import Tokenizer
from .common import (
    add_command,
    add_head_option,
    add_json_option,
    add_special_option,
    encode,
    find,
    load,
    print_table,
    spelled,
    token_json,
)

EXAMPLES = """\
  tiedgpt lens shakespeare-tied "ROMEO:"
  tiedgpt lens shakespeare-untied --head tied "ROMEO:"
  tiedgpt lens gpt2 "The capital of France is" --json
"""


def add_parser(commands: Any) -> None:
    summary = "Show what each layer would say next, after each token of a prompt."
    parser = add_command(commands, "lens", run, summary, EXAMPLES)
    parser.add_argument("model", metavar="MODEL", help="a name, a directory or a .safetensors file")
    parser.add_argument("prompt", metavar="PROMPT", help="the text to read")
    add_head_option(parser)
    add_special_option(parser)
    add_json_option(parser)


def run(args: argparse.Namespace) -> None:
    path = find(args.model)[1]
    checkpoint = open_checkpoint(path)
    tokenizer = read_tokenizer(path)
    ids = check_prompt(encode(tokenizer, args.prompt, args.allow_special), checkpoint.config)
    model = load(checkpoint, args.head)
    layers = lens(model, ids)
    if not args.json:
        print_layers(layers, ids, tokenizer)
        return
    document = {
        "model": args.model,
        "head": model.config.head,
        "prompt": args.prompt,
        "prompt_ids": ids,
        "layers": [
            {
                "name": layer.name,
                "positions": [
                    [
                        {**token_json(tokenizer, token), "probability": float(probability)}
                        for token, probability in zip(*position, strict=True)
                    ]
                    for position in zip(layer.tokens, layer.probabilities, strict=True)
                ],
            }
            for layer in layers
        ],
    }
    print(json.dumps(document))


def print_layers(layers: list[Layer], ids: list[int], tokenizer: Tokenizer) -> None:
    """A row for each layer, a column for each token: what is likeliest after it, and how likely.

    Columns that the terminal is too narrow for stand below the others.
    """
    labels = ["", *(layer.name for layer in layers)]
    columns = []
    for position, token in enumerate(ids):
        cells = [spelled(tokenizer, token)]
        for layer in layers:
            likeliest, probability = layer.tokens[position, 0], layer.probabilities[position, 0]
            cells.append(f"{spelled(tokenizer, likeliest)} {probability:4.0%}")
        columns.append(cells)

    print("likeliest next token by each layer (rows), after each token of the prompt (columns)\n")
    width = shutil.get_terminal_size().columns
    while columns:
        used, fitting = max(map(len, labels)), 0
        while fitting < len(columns):
            used += 2 + max(map(len, columns[fitting]))
            if used > width and fitting:
                break
            fitting += 1
        print_table(list(zip(labels, *columns[:fitting], strict=True)))
        columns = columns[fitting:]
        if columns:
            print()
