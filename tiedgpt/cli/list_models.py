"""List the models on this machine.

Print their size on disk, and the known models that can be downloaded, with the size of the
download.

examples:
  tiedgpt list
  tiedgpt list --json
"""

import argparse
from collections.abc import Sequence
from typing import TypedDict

from ..checkpoints import Opened
from ..checkpoints.model_names import MODELS, models_here
from ..errors import TiedGPTError, one_line
from ..gpt2.config import Config
from ..gpt2.parameters import parameter_count
from . import options
from .messages import note
from .output import fill, megabytes, print_json
from .tables import Cells, print_table, shown, value_at


class Summary(TypedDict):
    """What --json prints of a known model."""

    model: str
    head: str
    parameters: int
    bytes: int  # on the disk, or of the download


class SummaryHere(Summary):
    path: str


def add_arguments(parser: argparse.ArgumentParser) -> None:
    options.add(parser, "json")


def run(args: argparse.Namespace) -> None:
    here = list_here()
    names_here = [model["model"] for model in here]
    not_here = []
    for name, known_model in MODELS.items():
        if name not in names_here:
            config = known_model.config
            not_here.append(summary(name, config, download_size(config)))

    if args.json:
        print_json({"here": here, "not_here": not_here})
        return
    if here:
        print_models(here)
    if not_here:
        print(fill("\nNot on this machine; `tiedgpt download MODEL` fetches one:\n"))
        print_models(not_here)


def list_here() -> list[SummaryHere]:
    """A summary of each model on this machine. A note says why one is left out."""
    summaries: list[SummaryHere] = []
    for name, path in models_here().items():
        try:
            size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
            model = summary(name, Opened(path).config, size)
        except (TiedGPTError, OSError) as error:
            note(f"{name} is left out: {error}")
        else:
            summaries.append({**model, "path": str(path)})
    return summaries


def download_size(config: Config) -> int:
    """The bytes of a known model's weights on the hub, which hold a causal mask for each layer."""
    return parameter_count(config).bytes + 4 * config.n_layer * config.n_ctx**2


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
