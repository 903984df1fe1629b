"""Continue many texts: JSON lines in, a row for each out.

For several samples of a prompt, repeat its line: each line has its own random numbers.

examples:
  tiedgpt documents generate prompts.jsonl --out samples.jsonl -n 20
  tiedgpt documents generate prompts.jsonl --out samples.jsonl --greedy --repetition-penalty 1.2
"""

import argparse

from ..scale.inputs import find_files
from . import documents, options

# Bytes of the input in a shard. A prompt takes far more time than its bytes take to be scored.
SHARD_SIZE = 250_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    documents.add_arguments(parser, field="prompt")
    options.add_sampling(parser)
    parser.add_argument(
        "-s",
        "--seed",
        metavar="S",
        type=options.count,
        default=0,
        help="the same S gives the same text (default: 0)",
    )
    # settings_of reads flags that only `documents score` or `generate` has.
    parser.set_defaults(scores_only=False, shard_size=SHARD_SIZE, num_samples=1)


def run(args: argparse.Namespace) -> None:
    sampling = options.sampling_of(args)
    args.temperature = sampling.temperature  # 1 if the flag is not given
    documents.check_flags(args)
    files = list(find_files(args.inputs))
    opened = documents.open_with_head(args)
    settings = documents.settings_of("generate", args, opened)
    documents.write_rows(files, settings, args)
