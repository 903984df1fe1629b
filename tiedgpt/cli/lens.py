"""Show the next token that each layer predicts.

Apply the final layer norm and the output matrix to the residual stream after the embedding and
after each block, at each token of the prompt (the logit lens).

examples:
  tiedgpt lens "The capital of France is"
  tiedgpt lens --model shakespeare-untied --head both "ROMEO:"
"""

import argparse

from ..errors import one_line
from ..gpt2.tokenizer import Tokenizer
from ..study.reports import LensReport, lens_report
from . import models, options
from .output import fill, print_json_by_head, quoted_token
from .tables import Cells, print_table, token_cell
from .texts import encode_prompt, read_prompt


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add(parser, "prompt", "model", "heads", "allow_special", "json")


def run(args: argparse.Namespace) -> None:
    prompt = read_prompt(args.prompt)
    opened = models.open_model(args.model)
    config, tokenizer = opened.config, opened.tokenizer
    # The prompt is checked before the weights are read, which takes longer.
    ids = encode_prompt(tokenizer, config, prompt, args.allow_special)
    loaded = models.load_heads(opened, args.head)
    reports = [lens_report(model, tokenizer, ids) for model in loaded]
    if args.json:
        print_json_by_head({"model": opened.name, "prompt": prompt, "prompt_ids": ids}, reports)
    else:
        print_layers(tokenizer, opened.name, ids, reports)


def print_layers(
    tokenizer: Tokenizer, name: str, ids: list[int], reports: list[LensReport]
) -> None:
    """Print a table for each head: a row for each layer, a column for each token of the prompt."""
    paragraph = (
        f"The likeliest next token by {one_line(name)} and its probability, after each token of "
        "the prompt (columns), as predicted from the embedding and from the output of each block "
        "(rows)."
    )
    print(fill(paragraph))
    prompt_tokens = [quoted_token(tokenizer, token) for token in ids]
    for report in reports:
        print()
        rows: list[Cells] = [(report["head"], *prompt_tokens)]
        for number, layer in enumerate(report["layers"]):
            label = "embedding" if number == 0 else f"block {number - 1}"
            cells = [token_cell(tokenizer, likeliest[0]) for likeliest in layer["positions"]]
            rows.append((label, *cells))
        print_table(rows)
