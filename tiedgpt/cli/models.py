"""The commands about models on this machine: list, download, untie, tie and resize.

The last three write a changed copy of a model to a new directory.
"""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

import numpy as np

from ..atomic import check_new, new_directory
from ..checkpoints import Opened
from ..checkpoints.model_names import MODELS, models_here, weight_folders
from ..checkpoints.vocabulary import read_tokenizer
from ..checkpoints.writing import write_checkpoint
from ..errors import COUNT, ArgumentError, CheckpointError, TiedGPTError, one_line
from ..evaluation import score
from ..gpt2.checks import check_logits, check_vocab_size
from ..gpt2.config import Config
from ..gpt2.model import GPT2
from ..gpt2.parameters import parameter_count
from . import inputs, options
from .output import (
    Cells,
    fill,
    megabytes,
    note,
    print_json,
    print_table,
    printable,
    shown,
    value_at,
)

SONNETS = "sonnets.txt"  # in the folder of the shipped models


class Summary(TypedDict):
    """What --json prints of a known model."""

    model: str
    head: str
    parameters: int
    bytes: int  # on the disk, or of the download


class SummaryHere(Summary):
    path: str


def add_list_arguments(parser: argparse.ArgumentParser) -> None:
    options.add(parser, "json")


def run_list(args: argparse.Namespace) -> None:
    """List the models on this machine.

    Print their size on disk, and the known models that can be downloaded, with the size of the
    download.

    examples:
      tiedgpt list
      tiedgpt list --json
    """
    here: list[SummaryHere] = []
    for name, path in models_here().items():
        try:
            size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
            model = summary(name, Opened(path).config, size)
        except (TiedGPTError, OSError) as error:
            note(f"{name} is left out: {error}")
        else:
            here.append({**model, "path": str(path)})

    names_here = [model["model"] for model in here]
    not_here = []
    for name, known_model in MODELS.items():
        if name not in names_here:
            config = known_model.config
            # The weights on the hub hold a causal mask for each layer.
            download_bytes = parameter_count(config).bytes + 4 * config.n_layer * config.n_ctx**2
            not_here.append(summary(name, config, download_bytes))

    if args.json:
        print_json({"here": here, "not_here": not_here})
        return
    if here:
        print_models(here)
    if not_here:
        print(fill("\nNot on this machine; `tiedgpt download MODEL` fetches one:\n"))
        print_models(not_here)


def summary(name: str, config: Config, size: int) -> Summary:
    """The summary of a model of this configuration."""
    count = parameter_count(config).total
    return {"model": name, "head": config.head, "parameters": count, "bytes": size}


def print_models(models: Sequence[Summary]) -> None:
    """Print a row for each model, and below it where the model is, if it is on this machine."""
    lines: list[str | Cells] = [("model", "head", "parameters", "size")]
    for model in models:
        parameters = shown("parameters", model["parameters"])
        size = megabytes(model["bytes"])
        lines.append((one_line(model["model"]), model["head"], parameters, size))
        path = value_at(model, "path")
        if path is not None:
            lines.append(f"  {one_line(path)}")
    print_table(lines)


def add_download_arguments(parser: argparse.ArgumentParser) -> None:
    options.add_models(
        parser, f"{', '.join(MODELS)}, or a repository owner/name of the Hugging Face hub"
    )


def run_download(args: argparse.Namespace) -> None:
    """Download a model and verify it.

    Print the model's directory. An interrupted download continues where it stopped.

    The directory is in $TIEDGPT_WEIGHTS, else in weights/ of a checkout, else in ~/.cache/tiedgpt.
    The commands that read a model download it themselves if it is named and not on this machine, so
    this command is needed only to choose the time. list downloads nothing; tokenize and params get
    all files but the weights.

    examples:
      tiedgpt download gpt2
      TIEDGPT_WEIGHTS=/big/disk tiedgpt download gpt2-xl
    """
    models = args.models or []
    if len(models) != 1:
        raise ArgumentError(f"expected one MODEL, got {len(models)} (try: tiedgpt download -h)")
    from ..checkpoints.download import download  # here, because `list` needs no network

    directory = download(models[0], note)
    print(printable(str(directory)))


def add_untie_arguments(parser: argparse.ArgumentParser) -> None:
    add_paths(parser)
    parser.add_argument(
        "--init",
        choices=["copy", "random", "zeros"],
        help="the values of W_U: a copy of wte.T, with the same logits (default), random, or zeros",
    )
    parser.add_argument(
        "--seed",
        metavar="S",
        type=options.whole_number,
        default=0,
        help="the seed of --init random (default: 0)",
    )


def run_untie(args: argparse.Namespace) -> None:
    """Copy a tied model with an output matrix of its own, W_U.

    The copy is written to a new directory, as a checkpoint that transformers reads too. The
    tokenizer's files are copied as they are. If the copy has other logits, a note says what that
    does to the loss of five sonnets.

    examples:
      tiedgpt untie gpt2 my-untied-gpt2
      tiedgpt untie gpt2 my-fresh-head --init random --seed 1
    """
    source, destination = source_and_destination(args)
    seed = COUNT.check("seed", args.seed)
    check_new(destination)
    opened = inputs.open_model(source)
    model = load_to_untie(opened, args.init)
    copy = model
    if model.config.tied:  # if not, it has a W_U that its config.json does not mention
        copy = model.untie(args.init or "copy", seed)
    write_copy(copy, opened, destination)
    note_losses(model, copy, opened)


def load_to_untie(opened: Opened, init: str | None) -> GPT2:
    """The model to untie: tied, or with a W_U of its own that its config.json does not mention.

    init: None keeps such a W_U. Raises ArgumentError if it is untied already.
    """
    if opened.config.tied:  # the files have no W_U that differs from wte.T
        return inputs.load(opened, "tied")
    if not opened.has_head:
        note(f"config.json of {opened.name} says untied, but there is no W_U: it begins with wte.T")
        return inputs.load(opened, "tied")
    if not opened.contradicts_config:
        raise ArgumentError(f"{opened.name} is untied already")
    if init is not None:
        return inputs.load(opened, "tied")
    note(
        f"config.json of {opened.name} says tied, but the file has a W_U that is not wte.T: it is "
        "kept"
    )
    return inputs.load(opened, "untied")


def add_tie_arguments(parser: argparse.ArgumentParser) -> None:
    add_paths(parser)


def run_tie(args: argparse.Namespace) -> None:
    """Copy an untied model without its output matrix, W_U.

    The copy computes logits with the token embedding, wte.T. It is written to a new directory, as a
    checkpoint that transformers reads too. The tokenizer's files are copied as they are. If the
    copy has other logits, a note says what that does to the loss of five sonnets.

    examples:
      tiedgpt tie my-untied-gpt2 my-tied-gpt2
    """
    source, destination = source_and_destination(args)
    check_new(destination)
    opened = inputs.open_model(source)
    if opened.config.tied:
        raise ArgumentError(f"{source} is tied already")
    model = inputs.load(opened, "untied")
    copy = model.tie()
    write_copy(copy, opened, destination)
    note_losses(model, copy, opened)


def add_resize_arguments(parser: argparse.ArgumentParser) -> None:
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


def run_resize(args: argparse.Namespace) -> None:
    """Copy a model with more tokens, or with fewer.

    The token embedding gets new rows, and so does W_U if the model is untied. A new row is the mean
    of the old ones, so that no new token is likelier than an average one before it is trained. The
    tokenizer's files are copied as they are: add the new tokens there, with transformers for
    instance. The copy is a checkpoint that transformers reads too.

    examples:
      tiedgpt resize gpt2 my-gpt2 --vocab-size 50304
      tiedgpt resize gpt2 my-gpt2 --vocab-size 50260 --init random --seed 1
      tiedgpt resize my-gpt2 my-smaller-gpt2 --vocab-size 50257 --shrink
    """
    source, destination = source_and_destination(args)
    if args.seed is not None and args.init != "random":
        raise ArgumentError("--seed is for --init random: the mean of the old rows needs no seed")
    seed = COUNT.check("seed", args.seed or 0)
    check_new(destination)
    opened = inputs.open_model(source)
    V = opened.config.vocab_size
    if args.vocab_size == V:
        raise ArgumentError(f"{source} has {V:,} tokens already")
    if args.vocab_size < V and not args.shrink:
        removed = V - args.vocab_size
        raise ArgumentError(
            f"{source} has {V:,} tokens; to remove the last {removed:,}, add --shrink"
        )
    if args.vocab_size > V and args.shrink:
        raise ArgumentError(f"--shrink: {source} has {V:,} tokens, fewer than {args.vocab_size:,}")
    check_vocab_size(args.vocab_size, opened.config)
    model = inputs.load(opened, head=None)
    resized = model.resize(args.vocab_size, args.init, seed)
    write_copy(resized, opened, destination)
    try:  # reading it warns of tokens that the copy does not have
        tokens = read_tokenizer(opened.folder, resized.config).vocab_size
    except CheckpointError:  # the model has no tokenizer, so the copy has none
        return
    if tokens < resized.config.vocab_size:
        note(f"the tokenizer has {tokens:,} tokens: ids from {tokens} on have no text yet")


# What untie, tie and resize share


def add_paths(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "paths",
        metavar="SRC DST",
        nargs="*",
        help="the model (a name, a directory or a file of weights), and the new directory to write",
    )
    parser.add_argument("-m", "--model", metavar="SRC", help="the model, if SRC is not given")


def write_copy(model: GPT2, source: Opened, destination: Path) -> None:
    """Write a changed model, with the files of its source's tokenizer as they are.

    Raises TiedGPTError if the model's logits are not finite.
    """
    with np.errstate(invalid="ignore", over="ignore"):
        check_logits(model([0]))
    with new_directory(destination) as directory:
        write_checkpoint(directory, model, source.copied_files(note))
    head = model.config.head
    size = parameter_count(model.config)
    note(f"wrote {destination}: {head}, {size.total:,} parameters, {size.bytes / 1e6:,.1f} MB")


def note_losses(model: GPT2, copy: GPT2, source: Opened) -> None:
    """Print the losses of the shipped sonnets before and after, if the copy has other logits.

    Without a tokenizer they are not measured.
    """
    if np.array_equal(copy.W_U, model.W_U):
        return
    try:
        tokenizer = source.tokenizer
        files = [folder / SONNETS for folder in weight_folders() if (folder / SONNETS).is_file()]
        if not files:
            raise ArgumentError(f"{SONNETS} is missing from tiedgpt: install tiedgpt again")
        ids = tokenizer.encode(files[0].read_text(encoding="utf-8"))
        before = score(model, tokenizer, ids)
        after = score(copy, tokenizer, ids)
    except TiedGPTError as error:
        note(f"what the copy does to the loss of a text is not measured: {error}")
        return
    note(f"the loss of {SONNETS} goes from {before.nll:.2f} to {after.nll:.2f} nats per token")


def source_and_destination(args: argparse.Namespace) -> tuple[str, Path]:
    """The model, and the directory of the copy. Raises ArgumentError if one is missing."""
    paths = list(args.paths)
    if args.model is not None:
        paths.insert(0, args.model)
    if len(paths) != 2:
        raise ArgumentError(f"expected SRC and DST, got {' '.join(paths) or 'neither'}")
    return paths[0], Path(paths[1])
