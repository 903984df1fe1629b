"""Continue many texts: JSON lines in, a row for each out.

examples:
  tiedgpt documents generate prompts.jsonl --out samples.jsonl -n 20
"""

import argparse

from ..scale.inputs import find_files
from . import documents, options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    documents.add_arguments(parser, field="prompt")
    options.add_sampling(parser)
    options.add_temperature(parser, default=1.0)
    parser.add_argument(
        "-s",
        "--seed",
        metavar="S",
        type=options.count,
        default=0,
        help="the same S gives the same text (default: 0)",
    )
    parser.set_defaults(scores_only=False)  # a flag of `documents score`, which settings_of reads


def run(args: argparse.Namespace) -> None:
    documents.check_flags(args)
    files = list(find_files(args.inputs))
    opened = documents.open_with_head(args)
    settings = documents.settings_of("generate", args, opened)
    documents.write_rows(files, settings, args)
