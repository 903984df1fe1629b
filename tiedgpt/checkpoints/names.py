"""Model names: what they stand for, and where on this machine their checkpoints are looked for."""

import difflib
import os
import re
from contextlib import suppress
from pathlib import Path

from ..config import Config
from ..errors import CheckpointError, short_repr

# name -> (repository on the Hugging Face hub, configuration)
MODELS = {
    "gpt2": ("openai-community/gpt2", Config()),
    "gpt2-medium": ("openai-community/gpt2-medium", Config(n_embd=1024, n_layer=24, n_head=16)),
    "gpt2-large": ("openai-community/gpt2-large", Config(n_embd=1280, n_layer=36, n_head=20)),
    "gpt2-xl": ("openai-community/gpt2-xl", Config(n_embd=1600, n_layer=48, n_head=25)),
    "distilgpt2": ("distilbert/distilgpt2", Config(n_layer=6)),
}
ALIASES = {
    "124M": "gpt2",
    "355M": "gpt2-medium",
    "774M": "gpt2-large",
    "1558M": "gpt2-xl",
    "82M": "distilgpt2",
}
SHIPPED = ("shakespeare-tied", "shakespeare-untied")  # small models that come with tiedgpt
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
# What a folder must hold to be a model's. Hugging Face's cache has folders with less, say a tokenizer alone.
FORMS = (
    ("config.json", "model.safetensors"),
    ("config.json", "model.safetensors.index.json"),
    ("hparams.json", "model.ckpt.index"),
)


def _expand(path: str | Path) -> Path:
    """`~` made a directory where there is one to make it; os.path's, unlike Path's, never raises."""
    return Path(os.path.expanduser(path))


def known_config(name: str) -> Config | None:
    """The configuration of a model that is known by name, so that counting needs no file."""
    name = ALIASES.get(name, name)
    return MODELS[name][1] if name in MODELS else None


def find_model(source: str | Path) -> Path:
    """The directory or .safetensors file that a name, alias, hub repository or path stands for.

    A known name is always that model (write ./gpt2 for a directory of your own); anything else is a path
    if it exists, and a hub repository if it reads owner/name. Raises CheckpointError when nothing is found.
    """
    text = str(source)
    known = ALIASES.get(text, text) in (*MODELS, *SHIPPED)
    if text and not known and os.path.exists(path := _expand(source)):
        return path
    name = check_name(text)
    for folder in [*folders_of(name), *folders_of(name, "openai")]:
        # os.path's isfile, unlike Path's, is False where it may not look.
        if any(all(os.path.isfile(folder / file) for file in form) for form in FORMS):
            return folder
    if name in SHIPPED:
        raise CheckpointError(f"{name} comes with tiedgpt but is missing from it: install tiedgpt again")
    repository = MODELS[name][0] if name in MODELS else name
    places = ", ".join(str(root / name) for root in weight_folders())
    raise CheckpointError(
        f"{name} is not on this machine: looked for {places} and in the Hugging Face cache; fetch it with "
        f"`tiedgpt download {name}`, put the files of {repository} in one of these, or give the path of a "
        "checkpoint" + (f" (for the directory here, write ./{text})" if Path(text).is_dir() else "")
    )


def check_name(text: str) -> str:
    """The name that an alias stands for, or text itself if it is a name. Raises CheckpointError if not."""
    name = ALIASES.get(text, text)
    if name in MODELS or name in SHIPPED or REPOSITORY.fullmatch(name):
        return name
    guess = difflib.get_close_matches(name.lower(), [*MODELS, *ALIASES, *SHIPPED], n=1)
    raise CheckpointError(
        f"no model {short_repr(text)}: "
        + ("" if text and os.path.exists(_expand(text)) else "there is no such file or directory, and ")
        + f"the names known are {', '.join([*MODELS, *SHIPPED])}"
        + (f"; did you mean {guess[0]}?" if guess else "")
    )


def folders_of(name: str, source: str = "hub") -> list[Path]:
    """Where a name's checkpoint may lie, the first place first: the hub's, OpenAI's, or its tokenizer alone.

    One form to a folder: what is loaded does not depend on what else lies beside it.
    """
    if source == "tokenizer":
        return [root / name / ".tokenizer" for root in weight_folders()]
    if source == "openai":
        return [root / f"{name}-openai" for root in weight_folders()]
    repository = MODELS[name][0] if name in MODELS else name
    return [*(root / name for root in weight_folders()), *_hub_snapshots(repository)]


def find_default() -> tuple[str, Path]:
    """The model to use when none is named, and where it is: gpt2 if it is here, else a shipped one."""
    for name in ("gpt2", SHIPPED[0]):
        with suppress(CheckpointError):
            return name, find_model(name)
    return "gpt2", find_model("gpt2")  # raises, and says where it looked


def weight_folders() -> list[Path]:
    """The folders that hold a model in a subfolder of its name, in the order they are looked at."""
    named = os.environ.get("TIEDGPT_WEIGHTS")
    package = Path(__file__).resolve().parents[1]
    in_checkout = (package.parent / "pyproject.toml").is_file()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return [
        *([_expand(named)] if named else []),
        (package.parent if in_checkout else package) / "weights",
        _expand(cache) / "tiedgpt",
    ]


def _hub_snapshots(repository: str) -> list[Path]:
    """Where Hugging Face's own library keeps a repository: the main snapshot if it has one."""
    home = os.environ.get("HF_HOME") or "~/.cache/huggingface"
    hub = _expand(os.environ.get("HF_HUB_CACHE") or f"{home}/hub")
    folder = hub / f"models--{repository.replace('/', '--')}"
    try:
        commit = (folder / "refs" / "main").read_text(encoding="ascii").strip()
    except (OSError, ValueError):
        return []
    return [folder / "snapshots" / commit] if re.fullmatch(r"[0-9a-f]{40}", commit) else []
