"""Copy a model with more tokens, or with fewer.

The token embedding gets new rows, and so does W_U if the model is untied. A new row is the mean of
the old ones, so that no new token is likelier than an average one before it is trained. The
tokenizer's files are copied as they are: add the new tokens there, with transformers for instance.
The copy is a checkpoint that transformers reads too.

examples:
  tiedgpt resize gpt2 my-gpt2 --vocab-size 50304
  tiedgpt resize gpt2 my-gpt2 --vocab-size 50260 --init random --seed 1
  tiedgpt resize my-gpt2 my-smaller-gpt2 --vocab-size 50257 --shrink
"""

import argparse

from ..atomic import check_new
from ..checkpoints import Opened
from ..checkpoints.vocabulary import read_tokenizer
from ..errors import COUNT, ArgumentError, CheckpointError
from ..gpt2.checks import check_vocab_size
from ..gpt2.config import Config
from . import models, options
from .convert import add_paths, source_and_destination, write_copy
from .messages import note


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_paths(parser)
    parser.add_argument(
        "--vocab-size",
        metavar="N",
        type=options.whole_number,
        required=True,
        help="the number of tokens of the copy",
    )
    parser.add_argument(
        "--init",
        choices=["mean", "random"],
        default="mean",
        help="new rows: the mean of the old ones (default), or the mean plus random numbers",
    )
    parser.add_argument(
        "--seed",
        metavar="S",
        type=options.whole_number,
        help="the seed of --init random (default: 0)",
    )
    parser.add_argument(
        "--shrink", action="store_true", help="remove the last tokens; nothing else removes any"
    )


def run(args: argparse.Namespace) -> None:
    source, destination = source_and_destination(args)
    if args.seed is not None and args.init != "random":
        raise ArgumentError("--seed is for --init random: the mean of the old rows needs no seed")
    seed = COUNT.check("seed", args.seed or 0)
    check_new(destination)
    opened = models.open_model(source)
    check_size(opened.config, source, args.vocab_size, args.shrink)
    model = models.load(opened, head=None)
    resized = model.resize(args.vocab_size, args.init, seed)
    write_copy(resized, opened, destination)
    compare_with_tokenizer(opened, resized.config)


def check_size(config: Config, name: str, vocab_size: int, shrink: bool) -> None:
    """Raise ArgumentError if nothing would change, or if --shrink does not fit the new size."""
    V = config.vocab_size
    if vocab_size == V:
        raise ArgumentError(f"{name} has {V:,} tokens already")
    if vocab_size < V and not shrink:
        raise ArgumentError(
            f"{name} has {V:,} tokens; to remove the last {V - vocab_size:,}, add --shrink"
        )
    if vocab_size > V and shrink:
        raise ArgumentError(f"--shrink: {name} has {V:,} tokens, fewer than {vocab_size:,}")
    check_vocab_size(vocab_size, config)


def compare_with_tokenizer(opened: Opened, config: Config) -> None:
    """Say what the tokenizer does with the tokens that the copy has alone.

    config: the copy's. read_tokenizer warns of tokens that the tokenizer has alone.
    """
    try:
        tokens = read_tokenizer(opened.folder, config).vocab_size
    except CheckpointError:  # without a tokenizer, the copy has none either
        return
    if tokens < config.vocab_size:
        note(f"the tokenizer has {tokens:,} tokens: ids from {tokens} on have no text yet")
