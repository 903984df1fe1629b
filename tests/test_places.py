"""Names: where on a machine a model is searched, and which models are found there.

`home` is the home directory of a machine without models. `snapshot(cache, repository)` returns the
folder in a Hugging Face cache that the files of a repository belong in. find_model(name) returns
the folder of a model. models_here() returns all models of the machine: name -> folder.
"""

import importlib.util
import runpy
import shutil
from pathlib import Path

import pytest
from support.checks import refuses
from support.hub_cache import CACHE, snapshot

import tiedgpt
from tiedgpt.checkpoints import places
from tiedgpt.checkpoints.known_models import ALIASES, MODELS

# Folders in the home directory which hold models by name. The last of these is searched first.
DOWNLOADS = ".cache/tiedgpt"
SHIPPED = "checkout/weights"
CHOSEN = "elsewhere"  # the variable TIEDGPT_WEIGHTS names this folder


@pytest.fixture
def home(no_models, tmp_path, monkeypatch):
    """The home of a machine without models, and the working directory.

    tiedgpt is a checkout in its folder `checkout`. TIEDGPT_WEIGHTS names its folder CHOSEN.
    """
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("TIEDGPT_WEIGHTS", str(tmp_path / CHOSEN))
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout" / "pyproject.toml").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_model(folder: Path) -> Path:
    """Make a folder with the files of a model that a search by name looks at."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text('{"model_type": "gpt2"}')
    (folder / "model.safetensors").touch()
    return folder


def write_files(folder: Path, *files: str) -> Path:
    """Make a folder with files of these names. Each has the text of a GPT-2's config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        (folder / file).write_text('{"model_type": "gpt2"}')
    return folder


# Where a model is searched


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_the_places_of_a_name_are_searched_in_this_order(home, model, alias, name):
    """The place that is searched last gets a model first. The place of the newest model is found.

    OpenAI's files, which are there from the start, are found in none of these steps.
    """
    write_files(home / DOWNLOADS / f"{name}-openai", "hparams.json", "model.ckpt.index")
    by_its_short_name = snapshot(home / CACHE, name)  # as from_pretrained("gpt2") makes it
    by_its_repository = snapshot(home / CACHE, MODELS[name].repository)
    write_files(by_its_repository, "config.json")  # without weights, so it is not found
    places_from_last_to_first = [
        by_its_short_name,
        by_its_repository,
        home / DOWNLOADS / name,
        home / SHIPPED / name,
        home / CHOSEN / name,
    ]
    for place in places_from_last_to_first:
        tiedgpt.save_model(model, None, home / "save")
        shutil.copytree(home / "save", place, dirs_exist_ok=True)
        shutil.rmtree(home / "save")
        assert places.find_model(name) == place
        assert places.find_model(alias) == place
    assert tiedgpt.load_model(name).config == model.config


# Variables of the environment, and the cache folder that they name. HOME stands for the home
# directory. The variable SUB is "sub".
VARIABLES = [
    pytest.param({}, "HOME/.cache/huggingface/hub", id="none"),
    pytest.param({"XDG_CACHE_HOME": "HOME/xdg"}, "HOME/xdg/huggingface/hub", id="xdg"),
    pytest.param({"XDG_CACHE_HOME": "~/xdg"}, "HOME/xdg/huggingface/hub", id="xdg-tilde"),
    pytest.param({"XDG_CACHE_HOME": ""}, "huggingface/hub", id="xdg-empty"),
    pytest.param(
        {"XDG_CACHE_HOME": "HOME/xdg", "HF_HOME": "HOME/hf"}, "HOME/hf/hub", id="home-before-xdg"
    ),
    pytest.param({"HF_HOME": "~/$SUB"}, "HOME/sub/hub", id="home-with-a-variable"),
    pytest.param({"FAR": "~/far", "HF_HOME": "$FAR"}, "HOME/far/hub", id="tilde-in-a-variable"),
    pytest.param(
        {"HF_HOME": "HOME/hf", "HUGGINGFACE_HUB_CACHE": "HOME/old"},
        "HOME/old",
        id="old-cache-before-home",
    ),
    pytest.param({"HUGGINGFACE_HUB_CACHE": "~/old"}, "HOME/old", id="old-cache-tilde"),
    pytest.param(
        {"HUGGINGFACE_HUB_CACHE": "HOME/old", "HF_HUB_CACHE": "HOME/new"},
        "HOME/new",
        id="cache-before-old-cache",
    ),
    pytest.param(
        {"HF_HOME": "HOME/hf", "HF_HUB_CACHE": "${HOME}/$SUB"}, "HOME/sub", id="cache-before-home"
    ),
]


@pytest.fixture
def set_variables(home, monkeypatch):
    """set_variables(variables): set these variables of the environment, and SUB.

    HOME in a value is replaced by the home directory, unless the value has a "$": ${HOME}/$SUB.
    """

    def set_variables(variables):
        monkeypatch.setenv("SUB", "sub")
        for variable, value in variables.items():
            has_variables = "$" in value
            if not has_variables:
                value = value.replace("HOME", str(home))
            monkeypatch.setenv(variable, value)

    return set_variables


@pytest.mark.parametrize(("variables", "cache"), VARIABLES)
def test_the_variables_that_name_the_hugging_face_cache(home, set_variables, variables, cache):
    set_variables(variables)
    cache_folder = Path(cache.replace("HOME", str(home)))
    path = write_model(snapshot(cache_folder, "someone/tiny-gpt2"))
    assert places.find_model("someone/tiny-gpt2") == path
    assert places.models_here() == {"someone/tiny-gpt2": path}


@pytest.mark.parametrize(("variables", "cache"), VARIABLES)
def test_huggingface_hub_reads_these_variables_in_the_same_order(
    home, set_variables, variables, cache
):
    """huggingface_hub.constants reads the variables when it is imported.

    It may be imported already, so the test runs its file.
    """
    pytest.importorskip("huggingface_hub")
    set_variables(variables)
    constants = importlib.util.find_spec("huggingface_hub.constants")
    variables_of_module = runpy.run_path(constants.origin)
    folder = variables_of_module["HF_HUB_CACHE"]
    assert folder == cache.replace("HOME", str(home))


@pytest.mark.parametrize(
    "ref",
    [
        pytest.param("../../../elsewhere", id="path"),
        pytest.param("", id="empty"),
        pytest.param("\xff", id="not-ascii"),
        pytest.param("0" * 39, id="too-short"),
    ],
)
def test_a_hostile_ref_is_ignored(home, ref):
    """The file refs/main holds a commit, whose files are in snapshots/COMMIT.

    The ref leads to a folder with a model. It is still ignored, because it is not a commit.
    """
    folder = home / CACHE / "models--openai-community--gpt2"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(ref, encoding="latin-1")
    write_model(folder / "snapshots" / ref)
    refuses("gpt2 is not on this machine: looked for", places.find_model, "gpt2")
    assert places.models_here() == {}


@pytest.mark.parametrize("name", ["gpt2", "someone/model"])
def test_a_model_that_is_not_here_is_an_error(home, name):
    message = refuses(f"{name} is not on this machine: looked for ", tiedgpt.load_model, name)
    assert f"cache/tiedgpt/{name}" in message
    assert "put its files in such" in message


@pytest.mark.parametrize("name", ["gpt2", "124M"])
def test_a_known_name_does_not_stand_for_a_directory_of_that_name(home, model, name):
    """The working directory has a model in such a directory. ./NAME stands for that."""
    tiedgpt.save_model(model, None, home / name)
    refuses(rf"for the directory here, write \./{name}", tiedgpt.load_model, name)
    assert tiedgpt.load_model(f"./{name}").config == model.config


# The models that are found


@pytest.fixture
def all_models(home):
    """Make models in all places. The value is their names -> their folders.

    The names are in the order of models_here: known names, shipped models, then all others.
    """
    openai = ("hparams.json", "model.ckpt.index")
    sharded = ("config.json", "model.safetensors.index.json")
    return {
        "gpt2": write_model(home / CHOSEN / "gpt2"),
        "gpt2-medium": write_files(home / SHIPPED / "gpt2-medium-openai", *openai),
        "gpt2-xl": write_model(snapshot(home / CACHE, "gpt2-xl")),
        "distilgpt2": write_model(snapshot(home / CACHE, "distilbert/distilgpt2")),
        "shakespeare-tied": write_model(home / SHIPPED / "shakespeare-tied"),
        "a/z": write_files(home / DOWNLOADS / "a" / "z", *sharded),
        "openai-community/gpt2": write_model(home / CHOSEN / "openai-community" / "gpt2"),
        "z/a": write_model(snapshot(home / CACHE, "z/a")),
        "z/b": write_model(home / CHOSEN / "z" / "b"),
    }


def test_models_here_finds_all_models_in_a_fixed_order(all_models):
    assert list(places.models_here().items()) == list(all_models.items())
    for name, path in all_models.items():
        assert places.find_model(name) == path


def test_models_here_has_each_name_once(home, all_models):
    """gpt2 and z/b are in more than one place. The place that is searched first counts."""
    write_model(home / DOWNLOADS / "gpt2")
    write_files(home / CHOSEN / "gpt2-openai", "hparams.json", "model.ckpt.index")
    write_model(snapshot(home / CACHE, "z/b"))
    assert list(places.models_here().items()) == list(all_models.items())


def test_models_here_leaves_out_folders_without_weights_and_unusual_names(home, all_models):
    """A name is a known one or OWNER/NAME."""
    write_model(home / DOWNLOADS / "gpt2-large" / ".tokenizer")
    write_files(home / DOWNLOADS / "gpt2-large", "config.json")
    write_model(home / DOWNLOADS / "my-model")
    write_files(snapshot(home / CACHE, "tokenizer/alone"), "config.json", "merges.txt")
    assert list(places.models_here().items()) == list(all_models.items())


@pytest.mark.parametrize(
    "config",
    [
        pytest.param(b'{"model_type": "bert"}', id="bert"),
        pytest.param(b"{", id="not-json"),
        pytest.param(b"[]", id="list"),
        pytest.param(b"\xff", id="not-utf-8"),
    ],
)
def test_models_here_leaves_out_models_that_are_not_gpt2s(home, all_models, config):
    """A folder with this config.json is not found."""
    other = write_model(snapshot(home / CACHE, "bert/other"))
    (other / "config.json").write_bytes(config)
    assert list(places.models_here().items()) == list(all_models.items())


def test_models_here_leaves_out_files_and_hostile_names(home, all_models):
    """The cache has a commit that is a path, a file in place of a folder, and an owner named "..".

    The folder CHOSEN has a file in place of a folder, too.
    """
    write_model(snapshot(home / CACHE, "b/ref", commit="../../.."))
    (home / CACHE / "models--a--file").touch()
    (home / CACHE / "models--..--x").mkdir()
    (home / CHOSEN / "file").touch()
    assert list(places.models_here().items()) == list(all_models.items())


# Damaged places hide no other model


@pytest.fixture
def gpt2_alone(home):
    """Make a gpt2, the only model of the machine. The value is what models_here returns then."""
    return {"gpt2": write_model(home / DOWNLOADS / "gpt2")}


def test_models_are_found_although_a_folder_of_models_is_a_file(home, gpt2_alone, monkeypatch):
    """TIEDGPT_WEIGHTS names a file. Then HF_HUB_CACHE, the Hugging Face cache, names it too."""
    (home / CHOSEN).write_text("a file")
    assert places.models_here() == gpt2_alone
    monkeypatch.setenv("HF_HUB_CACHE", str(home / CHOSEN))
    assert places.models_here() == gpt2_alone


def test_models_are_found_although_a_folder_of_models_is_a_link_to_itself(home, gpt2_alone):
    """The folder of the shipped models is such a link. So is a repository's folder in the cache.

    A second repository in the cache has no files.
    """
    weights = home / SHIPPED
    weights.symlink_to(weights)
    snapshot(home / CACHE, "a/b").mkdir(parents=True)
    repository = home / CACHE / "models--c--d"
    repository.symlink_to(repository)
    assert places.models_here() == gpt2_alone


def test_models_are_found_although_a_folder_of_models_may_not_be_read(home, gpt2_alone):
    closed = home / DOWNLOADS / "someone"
    closed.mkdir()
    closed.chmod(0)  # nobody may read it
    try:
        assert places.models_here() == gpt2_alone
    finally:
        closed.chmod(0o700)  # so that pytest can remove it
