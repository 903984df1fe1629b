"""Names: where on a machine a model is searched, and which models are found there."""

import importlib.util
import runpy
from pathlib import Path

import pytest
from conftest import refuses

import tiedgpt
from tiedgpt import Tokenizer
from tiedgpt.checkpoints import places
from tiedgpt.checkpoints.known_models import ALIASES, MODELS

COMMIT = "607a30d783dfa663caf39e06633721c8d4cfcd7e"
CACHE = ".cache/huggingface/hub"
PLACES = (".cache/tiedgpt", "checkout/weights", "elsewhere")  # of models by name, the last first


@pytest.fixture
def home(no_models, tmp_path, monkeypatch):
    """A machine without models: tiedgpt is a checkout, TIEDGPT_WEIGHTS names a folder."""
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("TIEDGPT_WEIGHTS", str(tmp_path / "elsewhere"))
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout" / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def snapshot(cache: Path, repository: str, commit: str = COMMIT) -> Path:
    """The folder of a repository's main snapshot in a Hugging Face cache."""
    folder = cache / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_bytes(commit.encode("latin-1") + b"\n")
    return folder / "snapshots" / commit


def touch(folder: Path, *files: str) -> Path:
    """A folder with the files that a model has, as far as a search by name looks at them."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in files or ("config.json", "model.safetensors"):
        (folder / file).write_text('{"model_type": "gpt2"}')
    return folder


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_where_a_name_is_searched(home, model, alias, name):
    """The later places first, so each new one must take precedence over those before it."""
    touch(home / ".cache/tiedgpt" / f"{name}-openai", "hparams.json", "model.ckpt.index")
    # from_pretrained("gpt2") makes the first of these snapshots.
    snapshots = [
        snapshot(home / CACHE, name),
        snapshot(home / CACHE, MODELS[name].repository),
    ]
    touch(snapshots[1], "config.json")  # a snapshot without weights does not hide another one
    for folder in [*snapshots, *(home / place / name for place in PLACES)]:
        tiedgpt.save_model(model, Tokenizer([]), folder)
        assert places.find_model(name) == folder
        assert places.find_model(alias) == folder
    assert tiedgpt.load_model(name).config == model.config


VARIABLES = [
    ({}, "HOME/.cache/huggingface/hub"),
    ({"XDG_CACHE_HOME": "HOME/xdg"}, "HOME/xdg/huggingface/hub"),
    ({"XDG_CACHE_HOME": "~/xdg"}, "HOME/xdg/huggingface/hub"),
    ({"XDG_CACHE_HOME": ""}, "huggingface/hub"),
    ({"XDG_CACHE_HOME": "HOME/xdg", "HF_HOME": "HOME/hf"}, "HOME/hf/hub"),
    ({"HF_HOME": "~/$SUB"}, "HOME/sub/hub"),
    ({"FAR": "~/far", "HF_HOME": "$FAR"}, "HOME/far/hub"),
    ({"HF_HOME": "HOME/hf", "HUGGINGFACE_HUB_CACHE": "HOME/old"}, "HOME/old"),
    ({"HUGGINGFACE_HUB_CACHE": "~/old"}, "HOME/old"),
    ({"HUGGINGFACE_HUB_CACHE": "HOME/old", "HF_HUB_CACHE": "HOME/new"}, "HOME/new"),
    ({"HF_HOME": "HOME/hf", "HF_HUB_CACHE": "${HOME}/$SUB"}, "HOME/sub"),
]


@pytest.mark.parametrize(("variables", "cache"), VARIABLES)
def test_the_variables_that_name_the_hugging_face_cache(home, monkeypatch, variables, cache):
    """In huggingface_hub's own order; where that is installed, it is asked too."""
    monkeypatch.setenv("SUB", "sub")
    for variable, value in variables.items():
        monkeypatch.setenv(
            variable, value.replace("HOME", str(home)) if "$" not in value else value
        )
    cache = cache.replace("HOME", str(home))
    path = touch(snapshot(Path(cache), "someone/tiny-gpt2"))
    assert places.find_model("someone/tiny-gpt2") == path
    assert places.models_here() == {"someone/tiny-gpt2": path}
    if importlib.util.find_spec("huggingface_hub"):
        constants = importlib.util.find_spec("huggingface_hub.constants")
        assert runpy.run_path(constants.origin)["HF_HUB_CACHE"] == cache


@pytest.mark.parametrize("ref", ["../../../elsewhere", "", "\xff", "0" * 39])
def test_a_hostile_ref_is_ignored(home, ref):
    folder = home / CACHE / "models--openai-community--gpt2"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(ref, encoding="latin-1")
    touch(home / "elsewhere")
    refuses("gpt2 is not on this machine: looked for", places.find_model, "gpt2")
    assert places.models_here() == {}


@pytest.mark.parametrize("name", ["gpt2", "someone/model"])
def test_a_model_that_is_not_here_is_an_error(home, name):
    message = (
        f"{name} is not on this machine: looked for .*cache/tiedgpt/{name}.* put its files in such"
    )
    refuses(message, tiedgpt.load_model, name)


def test_a_known_name_is_never_a_directory_by_accident(home, model):
    tiedgpt.save_model(model, None, home / "gpt2")
    refuses(r"for the directory here, write \./gpt2", tiedgpt.load_model, "gpt2")
    assert tiedgpt.load_model("./gpt2").config == model.config


def test_models_here(home):
    """All that find_model finds by name, each directory once, in the same order on every disk."""
    cache, checkout, elsewhere = (home / place for place in PLACES)
    expected = {
        "gpt2": touch(elsewhere / "gpt2"),
        "gpt2-medium": touch(checkout / "gpt2-medium-openai", "hparams.json", "model.ckpt.index"),
        "gpt2-xl": touch(snapshot(home / CACHE, "gpt2-xl")),
        "distilgpt2": touch(snapshot(home / CACHE, "distilbert/distilgpt2")),
        "shakespeare-tied": touch(checkout / "shakespeare-tied"),
        "a/z": touch(cache / "a" / "z", "config.json", "model.safetensors.index.json"),
        "openai-community/gpt2": touch(elsewhere / "openai-community" / "gpt2"),
        "z/a": touch(snapshot(home / CACHE, "z/a")),
        "z/b": touch(elsewhere / "z" / "b"),
    }
    # Found a second time, or not a model, not a GPT-2, or not found by any name.
    touch(cache / "gpt2")
    touch(elsewhere / "gpt2-openai", "hparams.json", "model.ckpt.index")
    touch(snapshot(home / CACHE, "z/b"))
    touch(cache / "gpt2-large" / ".tokenizer")
    touch(cache / "gpt2-large", "config.json")
    touch(cache / "my-model")
    touch(snapshot(home / CACHE, "tokenizer/alone"), "config.json", "merges.txt")
    for n, config in enumerate((b'{"model_type": "bert"}', b"{", b"[]", b"\xff")):
        folder = touch(snapshot(home / CACHE, f"bert/{n}"))
        (folder / "config.json").write_bytes(config)
    touch(snapshot(home / CACHE, "b/ref", "../../.."))
    (home / CACHE / "models--a--file").touch()
    (home / CACHE / "models--..--x").mkdir()
    (elsewhere / "file").touch()
    assert list(places.models_here().items()) == list(expected.items())
    assert all(places.find_model(name) == path for name, path in expected.items())


def test_models_here_on_damaged_places(home, monkeypatch):
    """A folder that is a file, a link to itself or unreadable hides no other model."""
    good = touch(home / ".cache/tiedgpt/gpt2")
    (home / "elsewhere").write_text("a file")
    (home / "checkout" / "weights").symlink_to(home / "checkout" / "weights")
    closed = home / ".cache" / "tiedgpt" / "someone"
    closed.mkdir()
    snapshot(home / CACHE, "a/b").mkdir(parents=True)
    (home / CACHE / "models--c--d").symlink_to(home / CACHE / "models--c--d")
    closed.chmod(0)
    try:
        assert places.models_here() == {"gpt2": good}
        monkeypatch.setenv("HF_HUB_CACHE", str(home / "elsewhere"))
        assert places.models_here() == {"gpt2": good}
    finally:
        closed.chmod(0o700)
