"""The names of models, and where their files are on this machine.

A name is looked for in $TIEDGPT_WEIGHTS, in weights/ of a checkout (or of the installed package),
in the user's cache, and in Hugging Face's cache. download.py fetches what is in none of them.
"""

import glob
import os
import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from ..errors import CheckpointError, did_you_mean, short_repr
from ..gpt2.config import Config
from .json_files import read_json

Note = Callable[[str], Any]  # called with each message for the user

PACKAGE = Path(__file__).resolve().parents[1]  # the folder tiedgpt/ of this code
DEFAULT_MODEL = "TIEDGPT_MODEL"  # the environment variable that names the default model
WEIGHT_FOLDER = "TIEDGPT_WEIGHTS"  # the environment variable that names a folder of models
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
INDEX = "model.safetensors.index.json"
PYTORCH = "pytorch_model.bin"
PYTORCH_INDEX = "pytorch_model.bin.index.json"
# A folder holds a model if it has all files of one of these rows. The last file of a row is the
# weights, or an index of the files of the weights.
FILES_OF_A_MODEL = (
    ("config.json", "model.safetensors"),
    ("config.json", INDEX),
    ("config.json", PYTORCH),
    ("config.json", PYTORCH_INDEX),
    ("hparams.json", "model.ckpt.index"),  # OpenAI's own files
)


@dataclass(frozen=True)
class KnownModel:
    """A published model."""

    alias: str  # another name: how many parameters it has, as its authors counted them
    repository: str  # on the Hugging Face hub
    config: Config
    commit: str  # the one of the repository that is downloaded
    sha256: str  # of model.safetensors in that commit


MODELS = {
    "gpt2": KnownModel(
        alias="124M",
        repository="openai-community/gpt2",
        config=Config(),
        commit="607a30d783dfa663caf39e06633721c8d4cfcd7e",
        sha256="248dfc3911869ec493c76e65bf2fcf7f615828b0254c12b473182f0f81d3a707",
    ),
    "gpt2-medium": KnownModel(
        alias="355M",
        repository="openai-community/gpt2-medium",
        config=Config(n_embd=1024, n_layer=24, n_head=16),
        commit="6dcaa7a952f72f9298047fd5137cd6e4f05f41da",
        sha256="fc5a354a19255ad494f3d71549390baca1ccf61d1d822b9408971705c687c9cd",
    ),
    "gpt2-large": KnownModel(
        alias="774M",
        repository="openai-community/gpt2-large",
        config=Config(n_embd=1280, n_layer=36, n_head=20),
        commit="32b71b12589c2f8d625668d2335a01cac3249519",
        sha256="5f47f3e12f91cd33b662ce7e433b6150ad5512b5884a2cee961b50e9c3bbebce",
    ),
    "gpt2-xl": KnownModel(
        alias="1558M",
        repository="openai-community/gpt2-xl",
        config=Config(n_embd=1600, n_layer=48, n_head=25),
        commit="15ea56dee5df4983c59b2538573817e1667135e2",
        sha256="0f8b28eb05a8075f48b61b6f35332978c74fc7763fa9fb4051a1c30511736a6a",
    ),
    "distilgpt2": KnownModel(
        alias="82M",
        repository="distilbert/distilgpt2",
        config=Config(n_layer=6),
        commit="2290a62682d06624634c1f46a6ad5be0f47f38aa",
        sha256="e1ff18884359fe8beb795a5f414feb85a6ce3d929ad019c0d958c039d2b94a1b",
    ),
}
ALIASES = {model.alias: name for name, model in MODELS.items()}
SHIPPED = ("shakespeare-tied", "shakespeare-untied")
VOCABULARY_SHA256 = {  # the same in all of MODELS
    "vocab.json": "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783",
    "merges.txt": "1ce1664773c50f3e0cc8842619a93edc4624525b728b188a9e0be33b7726adc5",
}


def discard_note(message: str) -> None:
    """The note of the library, which prints nothing."""


def known_config(name: str) -> Config | None:
    """The configuration of a known name or alias, without any file; None for another name."""
    model = MODELS.get(ALIASES.get(name, name))
    return model.config if model else None


def check_name(text: str) -> str:
    """The name that an alias means, or `text` if it is a name. Raises CheckpointError."""
    name = ALIASES.get(text, text)
    if name in MODELS or name in SHIPPED or REPOSITORY.fullmatch(name):
        return name
    try:
        os.stat(os.path.expanduser(text))
        no_file = ""  # it is there, but a name is needed, as in `tiedgpt download PATH`
    except PermissionError:
        no_file = "there is no permission to look for such a file, and "
    except (OSError, ValueError):  # ValueError: no file can have this name
        no_file = "there is no such file or directory, and "
    # "gpt2-small" is what the smallest model is often called.
    searched_name = name.lower().removesuffix("-small")
    hint = did_you_mean(searched_name, [*MODELS, *ALIASES, *SHIPPED])
    raise CheckpointError(
        f"no model {short_repr(text)}: {no_file}the names known are "
        f"{', '.join([*MODELS, *SHIPPED])}{hint}"
    )


def not_here(name: str, text: str) -> CheckpointError:
    """The error for a model that is not on this machine. text: what the user wrote for its name."""
    if name in SHIPPED:
        return CheckpointError(
            f"{name} comes with tiedgpt but is missing from it: install tiedgpt again"
        )
    folders = ", ".join(str(root / name) for root in weight_folders())
    directory_here = f" (for the directory here, write ./{text})" if Path(text).is_dir() else ""
    return CheckpointError(
        f"{name} is not on this machine: looked for {folders} and in the Hugging Face cache; "
        f"download it with `tiedgpt download {name}`, put its files in such a folder, or give a "
        f"path{directory_here}"
    )


def find_by_name(name: str, weights: bool = True) -> Path | None:
    """The first folder of a name that holds a whole model; None without one.

    With weights=False, a folder that has all files but the weights will do.
    """
    # Hugging Face's cache has a model under the name by which it was downloaded: gpt2, or
    # openai-community/gpt2.
    repositories = [MODELS[name].repository, name] if name in MODELS else [name]
    in_cache = map(_snapshot, repositories)  # only asked if no weight folder has the model
    for folder in chain((root / name for root in weight_folders()), in_cache):
        if folder is None:  # the cache has no such repository
            continue
        for files in FILES_OF_A_MODEL:
            # os.path.isfile, unlike Path.is_file, is False for a folder that may not be read.
            if all(os.path.isfile(folder / file) for file in files):
                weights_or_index = files[-1]
                is_index = weights_or_index.endswith(".json")
                if not is_index or _has_all_shards(folder, weights_or_index):
                    return folder
    # In a weight folder, config.json is the last of the small files that a download writes, so the
    # vocabulary is there. In Hugging Face's cache it may be missing, so the cache is left out here.
    for root in weight_folders():
        if not weights and os.path.isfile(root / name / "config.json"):
            return root / name
    return None


def _has_all_shards(folder: Path, index: str) -> bool:
    """Whether all files that the index names are there. Loading refuses a damaged index."""
    try:
        shards = set(read_json(folder / index)["weight_map"].values())
        return all(os.path.isfile(folder / shard) for shard in shards)
    except (CheckpointError, KeyError, AttributeError, TypeError):
        return True


def models_here() -> dict[str, Path]:
    """The models on this machine: name -> directory, each directory once, under its first name."""
    repositories = set()  # names OWNER/NAME
    for root in weight_folders():
        paths = glob.glob("*/*", root_dir=root)
        repositories |= {Path(path).as_posix() for path in paths}  # with "/" on Windows, too
    for folder_name in glob.glob("models--*--*", root_dir=_hugging_face_cache()):
        name = folder_name.removeprefix("models--").replace("--", "/")
        snapshot = _snapshot(name)
        with suppress(CheckpointError):  # a config.json that is missing or damaged
            if snapshot and read_json(snapshot / "config.json").get("model_type") == "gpt2":
                repositories.add(name)
    models: dict[str, Path] = {}
    others = sorted(name for name in repositories if REPOSITORY.fullmatch(name))
    for name in (*MODELS, *SHIPPED, *others):
        folder = find_by_name(name)
        if folder is not None and folder not in models.values():
            models[name] = folder
    return models


def folder_for_download(name: str) -> Path:
    """The model's folder in $TIEDGPT_WEIGHTS, else in the first weight folder to write to."""
    roots = weight_folders()
    if os.environ.get(WEIGHT_FOLDER):  # it is the first weight folder
        return roots[0] / name
    for root in roots:
        if PACKAGE in root.parents:  # an upgrade of tiedgpt would delete it
            continue
        # The root, or the folder in which it would be made.
        existing = next(path for path in (root, *root.parents) if os.path.exists(path))
        if os.access(existing, os.W_OK):
            return root / name
    folders = " or ".join(str(root) for root in roots)
    raise CheckpointError(
        f"cannot write to {folders}: name a folder for weights in {WEIGHT_FOLDER}, or give a path"
    )


def weight_folders() -> list[Path]:
    """The folders with a subfolder for each model, in the order in which they are searched."""
    folders = []
    variable = os.environ.get(WEIGHT_FOLDER)
    if variable:
        folders.append(Path(os.path.expanduser(variable)))

    # In a checkout, weights/ is beside the package; in an installation it is inside.
    is_checkout = (PACKAGE.parent / "pyproject.toml").is_file()
    folders.append(PACKAGE.parent / "weights" if is_checkout else PACKAGE / "weights")

    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folders.append(Path(os.path.expanduser(cache)) / "tiedgpt")
    return folders


def _snapshot(repository: str) -> Path | None:
    """The folder of a repository's main snapshot in the Hugging Face cache; None without one.

    The files are in models--OWNER--NAME/snapshots/COMMIT, and refs/main holds the commit.
    """
    folder = _hugging_face_cache() / f"models--{repository.replace('/', '--')}"
    try:
        commit = (folder / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return None
    if not re.fullmatch(r"[0-9a-f]{40}", commit):
        return None
    return folder / "snapshots" / commit


def _hugging_face_cache() -> Path:
    """The cache of the library huggingface_hub, from the same variables in the same order."""
    cache_home = os.environ.get("XDG_CACHE_HOME", "~/.cache")
    home = os.environ.get("HF_HOME", os.path.join(cache_home, "huggingface"))
    # huggingface_hub expands HF_HOME, and then the whole: "$FAR" may stand for "~/far".
    hub = os.path.join(os.path.expandvars(os.path.expanduser(home)), "hub")
    cache = os.environ.get("HUGGINGFACE_HUB_CACHE", hub)
    cache = os.environ.get("HF_HUB_CACHE", cache)
    return Path(os.path.expandvars(os.path.expanduser(cache)))
