"""List the models on this machine.

Print their size on disk, and the known models that can be downloaded, with the size of the
download.

examples:
  tiedgpt list
  tiedgpt list --json
"""

import argparse
import json
from typing import Any

from ..checkpoints.formats import read_config
from ..checkpoints.known_models import MODELS
from ..checkpoints.places import models_here
from ..errors import TiedGPTError, one_line
from ..gpt2.config import Config
from ..gpt2.parameters import parameter_count
from . import common
from .terminal import fill, note, print_table


def add_arguments(parser: common.Parser) -> None:
    parser.add_shared("--json")


def run(args: argparse.Namespace) -> None:
    here = []
    for name, path in models_here().items():
        try:
            size = sum(file.stat().st_size for file in path.iterdir() if file.is_file())
            here.append({**summary(name, read_config(path), size), "path": str(path)})
        except (TiedGPTError, OSError) as error:
            note(f"{name} is left out: {error}")
    names = {model["model"] for model in here}
    others = [(name, known.config) for name, known in MODELS.items() if name not in names]
    # The hub's weights also hold a causal mask for each layer.
    sizes = [parameter_count(c).bytes + 4 * c.n_layer * c.n_ctx**2 for _, c in others]
    not_here = [summary(*other, size) for other, size in zip(others, sizes, strict=True)]
    if args.json:
        return print(json.dumps({"here": here, "not_here": not_here}))
    if here:
        print_models(here)
    if not_here:
        print(fill("\nNot on this machine; `tiedgpt download MODEL` fetches one:\n"))
        print_models(not_here)


def summary(name: str, config: Config, size: int) -> dict[str, Any]:
    count = parameter_count(config).total
    return {"model": name, "head": config.head, "parameters": count, "bytes": size}


def print_models(models: list[dict[str, Any]]) -> None:
    lines: list[Any] = [("model", "head", "parameters", "size")]
    for model in models:
        size = f"{model['bytes'] / 1e6:,.1f} MB"
        lines.append((one_line(model["model"]), model["head"], f"{model['parameters']:,}", size))
        if "path" in model:
            lines.append(f"  {one_line(model['path'])}")
    print_table(lines)
