"""The commands list and download: models on this machine, and those that are fetched to it."""

import argparse
from collections.abc import Sequence
from typing import TypedDict

from ..checkpoints import Opened
from ..checkpoints.model_names import MODELS, models_here
from ..errors import ArgumentError, TiedGPTError, one_line
from ..gpt2.config import Config
from ..gpt2.parameters import parameter_count
from . import options
from .messages import note
from .output import Cells, fill, megabytes, print_json, print_table, printable, shown, value_at


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
