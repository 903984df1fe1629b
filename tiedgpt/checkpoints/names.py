"""Model names, and where their checkpoints are on this machine."""

import glob
import os
import re
from contextlib import suppress
from pathlib import Path

from ..errors import CheckpointError, nearest, short_repr
from ..gpt2.config import Config
from .files import read_json

# name -> (repository on the Hugging Face hub, configuration)
MODELS = {
    "gpt2": ("openai-community/gpt2", Config()),
    "gpt2-medium": ("openai-community/gpt2-medium", Config(n_embd=1024, n_layer=24, n_head=16)),
    "gpt2-large": ("openai-community/gpt2-large", Config(n_embd=1280, n_layer=36, n_head=20)),
    "gpt2-xl": ("openai-community/gpt2-xl", Config(n_embd=1600, n_layer=48, n_head=25)),
    "distilgpt2": ("distilbert/distilgpt2", Config(n_layer=6)),
}
ALIASES = dict(zip(("124M", "355M", "774M", "1558M", "82M"), MODELS, strict=True))
SHIPPED = ("shakespeare-tied", "shakespeare-untied")  # small models that come with tiedgpt
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
# A folder holds a model if it has all files of one of these rows. The Hugging Face cache also has
# folders with fewer files, for example with a tokenizer alone.
FORMS = (
    ("config.json", "model.safetensors"),
    ("config.json", "model.safetensors.index.json"),
    ("hparams.json", "model.ckpt.index"),
)


def known_config(name: str) -> Config | None:
    """The configuration of a known name or alias, without any file; None for another name."""
    name = ALIASES.get(name, name)
    return MODELS[name][1] if name in MODELS else None


def find_model(source: str | Path) -> Path:
    """The directory or .safetensors file of a name, an alias, a hub repository or a path.

    A known name always means that model (./gpt2 is a directory). Any other text is a path if that
    exists, else a hub repository owner/name. Raises CheckpointError if it is not here.
    """
    text = str(source)
    known = ALIASES.get(text, text) in (*MODELS, *SHIPPED)
    if text and not known and os.path.exists(path := Path(os.path.expanduser(source))):
        return path
    name = check_name(text)
    if folder := _find_name(name):
        return folder
    if name in SHIPPED:
        raise CheckpointError(
            f"{name} comes with tiedgpt but is missing from it: install tiedgpt again"
        )
    places = ", ".join(str(root / name) for root in weight_folders())
    looked = f"{name} is not on this machine: looked for {places} and in the Hugging Face cache"
    here = f" (for the directory here, write ./{text})" if Path(text).is_dir() else ""
    how = f"download it with `tiedgpt download {name}`, put its files in such a folder, or give a path{here}"
    raise CheckpointError(f"{looked}; {how}")


def models_here() -> dict[str, Path]:
    """The models on this machine: name -> directory, each directory once and under its first
    name."""
    repositories = set()
    for root in weight_folders():
        repositories |= {Path(path).as_posix() for path in glob.glob("*/*", root_dir=root)}
    for cached in glob.glob("models--*--*", root_dir=_hugging_face_cache()):
        name = cached.removeprefix("models--").replace("--", "/")
        for snapshot in _snapshots(name):
            with suppress(CheckpointError):
                if read_json(snapshot / "config.json").get("model_type") == "gpt2":
                    repositories.add(name)
    here: dict[str, Path] = {}
    for name in (*MODELS, *SHIPPED, *sorted(filter(REPOSITORY.fullmatch, repositories))):
        if (folder := _find_name(name)) and folder not in here.values():
            here[name] = folder
    return here


def _find_name(name: str) -> Path | None:
    """The first folder of a name that holds a model."""
    for folder in [*folders_of(name), *folders_of(name, "openai")]:
        # os.path.isfile, unlike Path.is_file, is False for a folder that may not be read.
        if any(all(os.path.isfile(folder / file) for file in form) for form in FORMS):
            return folder
    return None


def check_name(text: str) -> str:
    """The name that an alias means, or `text` itself if it is a name; else raises
    CheckpointError."""
    name = ALIASES.get(text, text)
    if name in MODELS or name in SHIPPED or REPOSITORY.fullmatch(name):
        return name
    exists = os.path.exists(os.path.expanduser(text))
    known = f"the names known are {', '.join([*MODELS, *SHIPPED])}"
    known += nearest(name.lower().removesuffix("-small"), [*MODELS, *ALIASES, *SHIPPED])
    no_file = "" if exists else "there is no such file or directory, and "
    raise CheckpointError(f"no model {short_repr(text)}: {no_file}{known}")


def folders_of(name: str, source: str = "hub") -> list[Path]:
    """The folders where the files of a model may be, in the order in which they are searched.

    source: as for `download`. Each has its own folder: files of one do not change how another is
    loaded.
    """
    if source == "tokenizer":
        return [root / name / ".tokenizer" for root in weight_folders()]
    if source == "openai":
        return [root / f"{name}-openai" for root in weight_folders()]
    # from_pretrained("gpt2") stores the model in the cache as gpt2, not as openai-community/gpt2.
    repositories = [MODELS[name][0], name] if name in MODELS else [name]
    cached = [snapshot for repository in repositories for snapshot in _snapshots(repository)]
    return [*(root / name for root in weight_folders()), *cached]


def find_default() -> tuple[str, Path]:
    """The name and path of the default model: gpt2 if it is on this machine, else a shipped one."""
    for name in ("gpt2", SHIPPED[0]):
        with suppress(CheckpointError):
            return name, find_model(name)
    return "gpt2", find_model("gpt2")  # raises; the message names the folders


def weight_folders() -> list[Path]:
    """The folders with a subfolder for each model, in the order in which they are searched."""
    named = os.environ.get("TIEDGPT_WEIGHTS")
    package = Path(__file__).resolve().parents[1]
    in_checkout = (package.parent / "pyproject.toml").is_file()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    own = (package.parent if in_checkout else package) / "weights"
    folders: list[str | Path] = [*([named] if named else []), own, Path(cache) / "tiedgpt"]
    return [Path(os.path.expanduser(folder)) for folder in folders]


def _snapshots(repository: str) -> list[Path]:
    """The folder of a repository's main snapshot in the Hugging Face cache, in a list; [] if it has
    none."""
    folder = _hugging_face_cache() / f"models--{repository.replace('/', '--')}"
    try:
        commit = (folder / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return []
    return [folder / "snapshots" / commit] if re.fullmatch(r"[0-9a-f]{40}", commit) else []


def _hugging_face_cache() -> Path:
    """The cache folder of the library huggingface_hub, from the same variables in the same
    order."""
    get = os.environ.get
    home = get("HF_HOME", os.path.join(get("XDG_CACHE_HOME", "~/.cache"), "huggingface"))
    hub = os.path.join(os.path.expandvars(os.path.expanduser(home)), "hub")
    cache = get("HF_HUB_CACHE", get("HUGGINGFACE_HUB_CACHE", hub))
    return Path(os.path.expandvars(os.path.expanduser(cache)))
