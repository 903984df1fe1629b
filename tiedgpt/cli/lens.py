"""`tiedgpt lens`: the next token that each layer's residual stream predicts, after each token of a prompt."""

import argparse
from typing import Any

from ..checks import check_prompt
from ..study.lens import Layer, lens
from ..tokenizer import Tokenizer
from . import common

ABOUT = """\
Show the next token that each layer predicts, after each token of a prompt (the logit lens): apply the final
layer norm and the output head to the residual stream after the embedding and after each block.
"""

EXAMPLES = """\
  tiedgpt lens "The capital of France is"
  tiedgpt lens --model shakespeare-tied "ROMEO:"
  tiedgpt lens --model shakespeare-untied --head both "ROMEO:"
"""


def add_parser(commands: Any) -> None:
    summary = "Show the next token that each layer predicts."
    parser = common.add_command(commands, "lens", run, summary, EXAMPLES)
    parser.description = ABOUT
    parser.add_argument("prompt", metavar="PROMPT", help="the text to predict from")
    common.add_model_option(parser)
    common.add_head_option(parser)
    common.add_special_option(parser)
    common.add_json_option(parser)


def run(args: argparse.Namespace) -> None:
    name, checkpoint, tokenizer = common.open_model(args.model)
    ids = check_prompt(common.encode(tokenizer, args.prompt, args.allow_special), checkpoint.config)
    models = common.load_heads(checkpoint, args.head)
    layers = {model.config.head: lens(model, ids) for model in models}
    if args.json:
        given = {"prompt": args.prompt, "prompt_ids": ids}
        reports = [
            {"model": name, "head": head, **given, "layers": [layer_json(tokenizer, one) for one in of_head]}
            for head, of_head in layers.items()
        ]
        common.print_json(reports)
        return
    title = (
        "The likeliest next token and its probability, after each token of the prompt (columns), as "
        "predicted from the embedding and from the output of each block (rows)."
    )
    print(common.fill(title))
    for head, of_head in layers.items():
        print(f"\n{head}:" if len(models) > 1 else "")
        print_layers(of_head, ids, tokenizer)


def layer_json(tokenizer: Tokenizer, layer: Layer) -> dict[str, Any]:
    positions = [
        [
            {**common.token_json(tokenizer, token), "probability": float(probability)}
            for token, probability in zip(*position, strict=True)
        ]
        for position in zip(layer.tokens, layer.probabilities, strict=True)
    ]
    return {"name": layer.name, "positions": positions}


def print_layers(layers: list[Layer], ids: list[int], tokenizer: Tokenizer) -> None:
    """A row for each layer, a column for each token of the prompt: the likeliest next token."""
    rows = [("", *(common.spelled(tokenizer, token) for token in ids))]
    for number, layer in enumerate(layers):
        likeliest = zip(layer.tokens[:, 0], layer.probabilities[:, 0], strict=True)
        cells = (f"{common.spelled(tokenizer, token)} {probability:4.0%}" for token, probability in likeliest)
        rows.append((f"block {number - 1}" if number else "embedding", *cells))
    common.print_table(rows)
