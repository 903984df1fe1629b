"""Write reference values for a GPT-2 in another language.

DIR gets a small random GPT-2 (config.json, model.safetensors), token ids, every activation, the
gradients (expected.safetensors), the parameters after one step of AdamW (after_step.safetensors),
the loss and ten greedy tokens (vectors.json). scripts/ports.md says how to read them. To find the
mistake of a port, let it write a file as expected.safetensors is, or a JSON of lists, and give it
to `tiedgpt compare`.

examples:
  tiedgpt vectors vectors
  tiedgpt compare --model vectors mine.json
  tiedgpt vectors untied-vectors --head untied --seed 1
"""

import argparse
from pathlib import Path

from ..comparison.vectors import write_vectors
from . import options
from .messages import note


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", help="the new directory to write")
    parser.add_argument(
        "--head",
        choices=["tied", "untied"],
        default="tied",
        help="whether the model has a W_U of its own (default: tied)",
    )
    parser.add_argument(
        "-s",
        "--seed",
        metavar="S",
        type=options.count,
        default=0,
        help="the same S gives the same numbers on every machine (default: 0)",
    )


def run(args: argparse.Namespace) -> None:
    directory = Path(args.directory)
    write_vectors(directory, args.head, args.seed)
    note(f"wrote {directory}")
