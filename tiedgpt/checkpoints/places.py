"""Where models are on this machine: from a name or a path to a directory."""

import glob
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..errors import CheckpointError, did_you_mean, short_repr
from .known_models import ALIASES, MODELS, SHIPPED
from .reading import read_json

DEFAULT_MODEL = "TIEDGPT_MODEL"  # the environment variable that names the default model
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
# A folder holds a model if it has all files of one of these rows. The Hugging Face cache also has
# folders with fewer files, for example with a tokenizer alone.
FILES_OF_A_MODEL = (
    ("config.json", "model.safetensors"),
    ("config.json", "model.safetensors.index.json"),
    ("hparams.json", "model.ckpt.index"),
)


def find_model(source: str | Path) -> Path:
    """The directory or .safetensors file of a name, an alias, a hub repository or a path.

    A known name always means that model (./gpt2 is a directory). Any other text is a path if that
    exists, else a hub repository owner/name. Raises CheckpointError if it is not here.
    """
    text = str(source)
    is_known = ALIASES.get(text, text) in (*MODELS, *SHIPPED)
    if text and not is_known:  # "" is not a path, although Path("") is the working directory
        path = Path(os.path.expanduser(source))
        if os.path.exists(path):
            return path

    name = check_name(text)
    folder = _find_name(name)
    if folder is not None:
        return folder
    if name in SHIPPED:
        raise CheckpointError(
            f"{name} comes with tiedgpt but is missing from it: install tiedgpt again"
        )
    folders = ", ".join(str(root / name) for root in weight_folders())
    directory_here = f" (for the directory here, write ./{text})" if Path(text).is_dir() else ""
    raise CheckpointError(
        f"{name} is not on this machine: looked for {folders} and in the Hugging Face cache; "
        f"download it with `tiedgpt download {name}`, put its files in such a folder, or give a "
        f"path{directory_here}"
    )


@contextmanager
def named_in_errors(variable: str) -> Iterator[None]:
    """Put the name of a variable before the message of a CheckpointError."""
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{variable}: {error}") from error


def find_default() -> tuple[str, Path]:
    """The name and path of the default model: gpt2 if it is on this machine, else a shipped one."""
    for name in ("gpt2", SHIPPED[0]):
        with suppress(CheckpointError):
            return name, find_model(name)
    return "gpt2", find_model("gpt2")  # raises; the message names the folders


def models_here() -> dict[str, Path]:
    """The models on this machine: name -> directory, each directory once, under its first name."""
    repositories = _repositories_in_weight_folders() | _repositories_in_hugging_face_cache()
    models: dict[str, Path] = {}
    for name in (*MODELS, *SHIPPED, *sorted(repositories)):
        folder = _find_name(name)
        if folder is not None and folder not in models.values():
            models[name] = folder
    return models


def _repositories_in_weight_folders() -> set[str]:
    """The names OWNER/NAME of the subfolders two levels down, with a model or without."""
    names = set()
    for root in weight_folders():
        for path in glob.glob("*/*", root_dir=root):
            name = Path(path).as_posix()
            if REPOSITORY.fullmatch(name):
                names.add(name)
    return names


def _repositories_in_hugging_face_cache() -> set[str]:
    """The names OWNER/NAME of the repositories whose configuration is that of a GPT-2."""
    names = set()
    for folder in glob.glob("models--*--*", root_dir=_hugging_face_cache()):
        name = folder.removeprefix("models--").replace("--", "/")
        snapshot = _snapshot(name)
        if snapshot is None or not REPOSITORY.fullmatch(name):
            continue
        with suppress(CheckpointError):
            if read_json(snapshot / "config.json").get("model_type") == "gpt2":
                names.add(name)
    return names


def _find_name(name: str) -> Path | None:
    """The first folder of a name that holds a model, the hub's or OpenAI's; None without one."""
    for folder in [*folders_of(name), *folders_of(name, "openai")]:
        for files in FILES_OF_A_MODEL:
            # os.path.isfile, unlike Path.is_file, is False for a folder that may not be read.
            if all(os.path.isfile(folder / file) for file in files):
                return folder
    return None


def check_name(text: str) -> str:
    """The name that an alias means, or `text` if it is a name. Raises CheckpointError."""
    name = ALIASES.get(text, text)
    if name in MODELS or name in SHIPPED or REPOSITORY.fullmatch(name):
        return name
    no_file = "there is no such file or directory, and "
    if os.path.exists(os.path.expanduser(text)):
        no_file = ""
    # "gpt2-small" is what the smallest model is often called.
    searched_name = name.lower().removesuffix("-small")
    hint = did_you_mean(searched_name, [*MODELS, *ALIASES, *SHIPPED])
    raise CheckpointError(
        f"no model {short_repr(text)}: {no_file}the names known are "
        f"{', '.join([*MODELS, *SHIPPED])}{hint}"
    )


def own_folders(name: str, source: str = "hub") -> list[Path]:
    """The folders in which tiedgpt keeps a model: one in each weight folder, in the same order.

    source: "hub", "openai" for OpenAI's TensorFlow files, or "tokenizer" for the hub's files
        without the weights. Each has its own folder, so its files do not change how another is
        loaded.
    """
    roots = weight_folders()
    if source == "tokenizer":
        return [root / name / ".tokenizer" for root in roots]
    if source == "openai":
        return [root / f"{name}-openai" for root in roots]
    return [root / name for root in roots]


def folders_of(name: str, source: str = "hub") -> list[Path]:
    """The folders where the files of a model may be, in the order in which they are searched.

    source: as for own_folders. Hugging Face's cache comes last.
    """
    folders = own_folders(name, source)
    if source != "hub":  # the cache has files of the hub only
        return folders
    repositories = [name]
    if name in MODELS:
        # The cache calls a model as the user called it: gpt2, or openai-community/gpt2.
        repositories = [MODELS[name].repository, name]
    for repository in repositories:
        snapshot = _snapshot(repository)
        if snapshot is not None:
            folders.append(snapshot)
    return folders


def weight_folders() -> list[Path]:
    """The folders with a subfolder for each model, in the order in which they are searched."""
    folders = []
    variable = os.environ.get("TIEDGPT_WEIGHTS")
    if variable:
        folders.append(Path(os.path.expanduser(variable)))

    # In a checkout, weights/ is beside the package; in an installation it is inside.
    package = package_folder()
    is_checkout = (package.parent / "pyproject.toml").is_file()
    if is_checkout:
        folders.append(package.parent / "weights")
    else:
        folders.append(package / "weights")

    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folders.append(Path(os.path.expanduser(cache)) / "tiedgpt")
    return folders


def package_folder() -> Path:
    """The folder tiedgpt/ of this code."""
    return Path(__file__).resolve().parents[1]


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
    hub = os.path.join(os.path.expandvars(os.path.expanduser(home)), "hub")
    cache = os.environ.get("HUGGINGFACE_HUB_CACHE", hub)
    cache = os.environ.get("HF_HUB_CACHE", cache)
    return Path(os.path.expandvars(os.path.expanduser(cache)))
