"""Names: where on a machine a model is searched, and which models are found there.

`home` is the home directory of a machine without models. find_here(name) returns the folder of a
model. models_here() returns all models of the machine: name -> folder.
"""

import hashlib
import importlib.util
import json
import re
import runpy
from pathlib import Path

import pytest
from support.checks import refuses
from support.models import find_here
from support.reference import GPT2_MERGES, GPT2_VOCAB

import tiedgpt
from tiedgpt import count_parameters
from tiedgpt.checkpoints import Opened
from tiedgpt.checkpoints.download import download, find_default
from tiedgpt.checkpoints.model_names import (
    ALIASES,
    INDEX,
    MODELS,
    PYTORCH_INDEX,
    VOCABULARY_SHA256,
    check_name,
    known_config,
    models_here,
    weight_folders,
)

# Folders in the home directory which hold models by name. The last of these is searched first.
CACHE = ".cache/huggingface/hub"
DOWNLOADS = ".cache/tiedgpt"
SHIPPED = "checkout/weights"
CHOSEN = "elsewhere"  # the variable TIEDGPT_WEIGHTS names this folder
COMMIT = "607a30d783dfa663caf39e06633721c8d4cfcd7e"

A_MODEL = ("config.json", "model.safetensors")
SHARDED = ("config.json", "model.safetensors.index.json")
PICKLED = ("config.json", "pytorch_model.bin")
OPENAIS = ("hparams.json", "model.ckpt.index")
SMALL_FILES = ("config.json", "vocab.json", "merges.txt")


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


def write(folder: Path, files: tuple[str, ...] = A_MODEL) -> Path:
    """Make a folder with files of these names. Each has the text of a GPT-2's config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        (folder / file).write_text('{"model_type": "gpt2"}')
    return folder


def snapshot(cache: Path, repository: str, commit: str = COMMIT) -> Path:
    """The folder of a commit in a Hugging Face cache, which this does not make.

    refs/main gets the commit, so a reader of the cache looks in snapshots/COMMIT.
    """
    folder = cache / f"models--{repository.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_bytes(commit.encode("latin-1") + b"\n")
    return folder / "snapshots" / commit


# Where a model is searched


@pytest.mark.parametrize(("alias", "name"), ALIASES.items())
def test_the_places_of_a_name_are_searched_in_this_order(home, model, alias, name):
    """The place that is searched last gets a model first. The place of the newest model is found.

    The small files in the first place are not found, because the weights are not there.
    """
    by_its_short_name = snapshot(home / CACHE, name)  # as from_pretrained("gpt2") makes it
    by_its_repository = snapshot(home / CACHE, MODELS[name].repository)
    write(by_its_repository, SMALL_FILES)
    write(home / CHOSEN / name, SMALL_FILES)
    places_from_last_to_first = [
        by_its_short_name,
        by_its_repository,
        home / DOWNLOADS / name,
        home / SHIPPED / name,
        home / CHOSEN / name,
    ]
    for place in places_from_last_to_first:
        write(place)
        assert find_here(name) == find_here(alias) == find_here(name, weights=False) == place
    (home / CHOSEN / name / "config.json").unlink()
    tiedgpt.save_model(model, None, home / "save")
    (home / SHIPPED / name).rename(home / "moved")
    (home / "save").rename(home / SHIPPED / name)
    assert tiedgpt.load_model(name).config == model.config


def test_small_files_are_enough_where_no_weights_are_needed(home):
    """Not in Hugging Face's cache: it may have any few files of a repository."""
    write(snapshot(home / CACHE, "openai-community/gpt2"), SMALL_FILES)
    refuses("gpt2 is not on this machine", find_here, "gpt2", False)
    folder = write(home / DOWNLOADS / "gpt2", SMALL_FILES)
    assert find_here("gpt2", weights=False) == folder
    refuses("gpt2 is not on this machine", find_here, "gpt2")
    (folder / "config.json").unlink()  # it comes last, so others may be missing
    refuses("gpt2 is not on this machine", find_here, "gpt2", False)


@pytest.mark.parametrize(("index", "ending"), [(INDEX, "safetensors"), (PYTORCH_INDEX, "bin")])
def test_a_model_without_one_of_its_shards_is_not_whole(home, index, ending):
    """Hugging Face's cache may have a part of a repository. Each shard that is missing counts."""
    folder = snapshot(home / CACHE, "someone/sharded")
    weight_map = {"wte.weight": f"a.{ending}", "wpe.weight": f"b.{ending}"}
    write(folder, ["config.json", f"a.{ending}"])
    (folder / index).write_text(json.dumps({"weight_map": weight_map}))
    refuses("someone/sharded is not on this machine", find_here, "someone/sharded")
    write(folder, [f"b.{ending}"])
    assert find_here("someone/sharded") == folder
    (folder / f"b.{ending}").unlink()
    (folder / f"b.{ending}").mkdir()
    refuses("someone/sharded is not on this machine", find_here, "someone/sharded")


def test_a_model_with_a_damaged_index_is_found_and_refused(home):
    """It hides neither itself nor other models."""
    folder = write(home / CHOSEN / "gpt2", SHARDED)
    other = write(home / DOWNLOADS / "someone" / "other")
    for weight_map in ("", None, "[]", '{"a": []}', '{"a": 1}'):
        index = f'{{"weight_map": {weight_map}}}'
        (folder / INDEX).write_text("{}" if weight_map is None else index)
        assert models_here() == {"gpt2": folder, "someone/other": other}
        refuses(f"{INDEX}: ", lambda: Opened(find_here("gpt2")).saved)


def test_a_folder_with_the_name_of_a_file_of_a_model_is_no_file(home):
    folder = write(home / CHOSEN / "gpt2", ["model.safetensors"])
    (folder / "config.json").mkdir()
    for needs_weights in (True, False):
        refuses("gpt2 is not on this machine", find_here, "gpt2", needs_weights)
    assert models_here() == {}


def test_a_tilde_in_a_path_is_the_home_directory(home):
    folder = write(home / "mine")
    for source in ("~/mine", Path("~/mine")):
        assert find_here(source) == folder


def test_a_folder_for_weights_may_begin_with_a_tilde(home, monkeypatch):
    monkeypatch.setenv("TIEDGPT_WEIGHTS", "~/mine")
    monkeypatch.setenv("XDG_CACHE_HOME", "")  # as if it were not set
    first, _, last = weight_folders()
    assert (first, last) == (home / "mine", home / ".cache" / "tiedgpt")


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


@pytest.mark.parametrize(("variables", "cache"), VARIABLES)
def test_the_variables_that_name_the_hugging_face_cache(home, monkeypatch, variables, cache):
    """huggingface_hub reads them in the same order, when it is imported: the test runs its file."""
    monkeypatch.setenv("SUB", "sub")
    for variable, value in variables.items():
        has_variables = "$" in value
        monkeypatch.setenv(variable, value if has_variables else value.replace("HOME", str(home)))
    cache = cache.replace("HOME", str(home))
    path = write(snapshot(Path(cache), "someone/tiny-gpt2"))
    assert find_here("someone/tiny-gpt2") == path
    assert models_here() == {"someone/tiny-gpt2": path}

    pytest.importorskip("huggingface_hub")
    constants = importlib.util.find_spec("huggingface_hub.constants")
    assert runpy.run_path(constants.origin)["HF_HUB_CACHE"] == cache


@pytest.mark.parametrize(
    "ref",
    [
        pytest.param("../../../elsewhere", id="path"),
        pytest.param("", id="empty"),
        pytest.param("\xff", id="not-ascii"),
        pytest.param("0" * 39, id="too-short"),
        pytest.param("0" * 41, id="too-long"),
        pytest.param("0" * 40 + "/..", id="path-after-a-commit"),
    ],
)
def test_a_hostile_ref_is_ignored(home, ref):
    """The file refs/main holds a commit, whose files are in snapshots/COMMIT.

    The ref leads to a folder with a model. It is still ignored, because it is not a commit.
    """
    write(snapshot(home / CACHE, "openai-community/gpt2", ref))
    refuses("gpt2 is not on this machine: looked for", find_here, "gpt2")
    assert models_here() == {}


def test_a_snapshot_with_a_link_to_a_missing_file_is_not_used(home):
    folder = write(snapshot(home / CACHE, "gpt2"), SMALL_FILES)
    (folder / "model.safetensors").symlink_to("not-downloaded-yet")
    refuses("gpt2 is not on this machine", find_here, "gpt2")


@pytest.mark.parametrize("name", ["gpt2", "124M"])
def test_a_known_name_does_not_stand_for_a_directory_of_that_name(home, name):
    """The working directory has a model in such a directory. ./NAME stands for that."""
    write(home / name)
    folders = [home / place / "gpt2" for place in (CHOSEN, SHIPPED, DOWNLOADS)]
    message = (
        f"gpt2 is not on this machine: looked for {', '.join(map(str, folders))} and in the "
        "Hugging Face cache; download it with `tiedgpt download gpt2`, put its files in such a "
        "folder, or give a path"
    )
    here = f" (for the directory here, write ./{name})"
    assert refuses("gpt2", find_here, name) == message + here
    assert find_here(f"./{name}") == Path(name)
    (home / name).rename(home / "moved")
    assert refuses("gpt2", find_here, name) == message


def test_a_shipped_model_that_is_missing(home):
    """A directory of its name is not meant."""
    name = "shakespeare-untied"
    write(home / name)
    message = f"^{name} comes with tiedgpt but is missing from it: install tiedgpt again$"
    for function in (find_here, download):
        refuses(message, function, name)


# The models that are found


@pytest.fixture
def all_models(home):
    """Make models in all places. The value is their names -> their folders.

    The names are in the order of models_here: known names, shipped models, then all others.
    """
    return {
        "gpt2": write(home / CHOSEN / "gpt2"),
        "gpt2-medium": write(home / SHIPPED / "gpt2-medium", OPENAIS),
        "gpt2-xl": write(snapshot(home / CACHE, "gpt2-xl")),
        "distilgpt2": write(snapshot(home / CACHE, "distilbert/distilgpt2"), PICKLED),
        "shakespeare-tied": write(home / SHIPPED / "shakespeare-tied"),
        "a/z": write(home / DOWNLOADS / "a" / "z", SHARDED),
        "openai-community/gpt2": write(home / CHOSEN / "openai-community" / "gpt2"),
        "z/A": write(snapshot(home / CACHE, "z/A")),
        "z/b": write(home / CHOSEN / "z" / "b"),
    }


def test_models_here_finds_each_model_once_in_a_fixed_order(home, all_models):
    """gpt2 and z/b are in more than one place. The place that is searched first counts."""
    write(home / DOWNLOADS / "gpt2")
    write(snapshot(home / CACHE, "z/b"))
    assert list(models_here().items()) == list(all_models.items())
    for name, path in all_models.items():
        assert find_here(name) == path


def test_models_here_leaves_out_what_is_no_model(home, all_models):
    """Folders without weights, other names, hostile names, and files in place of folders."""
    write(home / DOWNLOADS / "gpt2-large", SMALL_FILES)
    write(home / DOWNLOADS / "my-model")
    write(home / DOWNLOADS / "two words" / "model")  # it could not be named
    write(home / DOWNLOADS / "someone" / "two words")
    write(snapshot(home / CACHE, "tokenizer/alone"), SMALL_FILES)
    write(snapshot(home / CACHE, "b/ref", commit="../../.."))
    (home / CACHE / "models--a--file").touch()
    (home / CACHE / "models--..--x").mkdir()
    (home / CHOSEN / "file").touch()
    for n, config in enumerate([b'{"model_type": "bert"}', b"{}", b"{", b"[]", b"\xff"]):
        other = write(snapshot(home / CACHE, f"bert/other{n}"))
        (other / "config.json").write_bytes(config)
    assert list(models_here().items()) == list(all_models.items())


# Damaged places hide no other model


@pytest.fixture
def gpt2_alone(home):
    """Make a gpt2, the only model of the machine. The value is what models_here returns then."""
    return {"gpt2": write(home / DOWNLOADS / "gpt2")}


def test_models_are_found_although_a_folder_of_models_is_a_file(home, gpt2_alone, monkeypatch):
    """TIEDGPT_WEIGHTS names a file. Then HF_HUB_CACHE, the Hugging Face cache, names it too."""
    (home / CHOSEN).write_text("a file")
    assert models_here() == gpt2_alone
    monkeypatch.setenv("HF_HUB_CACHE", str(home / CHOSEN))
    assert models_here() == gpt2_alone


def test_models_are_found_although_a_folder_of_models_cannot_be_read(home, gpt2_alone):
    """The folder of the shipped models is a link to itself. So is a repository in the cache.

    A second repository in the cache has no files, and a folder of downloads may not be read.
    """
    weights = home / SHIPPED
    weights.symlink_to(weights)
    snapshot(home / CACHE, "a/b").mkdir(parents=True)
    repository = home / CACHE / "models--c--d"
    repository.symlink_to(repository)
    closed = home / DOWNLOADS / "someone"
    closed.mkdir()
    closed.chmod(0)  # nobody may read it
    try:
        assert models_here() == gpt2_alone
    finally:
        closed.chmod(0o700)  # so that pytest can remove it


# The default model


def test_the_default_model(home, monkeypatch):
    """The one that TIEDGPT_MODEL names, else gpt2, else a shipped one and a note."""
    notes = []
    refuses("gpt2 is not on this machine", find_default, notes.append)
    shipped = write(home / SHIPPED / "shakespeare-tied")
    assert find_default(notes.append) == ("shakespeare-tied", shipped)
    assert notes == ["model: shakespeare-tied; for a larger one: tiedgpt download gpt2"]
    gpt2 = write(home / DOWNLOADS / "gpt2")
    assert find_default(notes.append) == ("gpt2", gpt2)
    monkeypatch.setenv("TIEDGPT_MODEL", "shakespeare-tied")
    assert find_default(notes.append) == ("shakespeare-tied", shipped)
    monkeypatch.setenv("TIEDGPT_MODEL", "gpt3")
    refuses("^TIEDGPT_MODEL: no model 'gpt3'", find_default, notes.append)
    assert len(notes) == 1


NO_FILE = "there is no such file or directory, and "


@pytest.mark.parametrize(
    ("text", "reason", "hint"),
    [
        ("gpt2-larg", NO_FILE, "; did you mean gpt2-large?"),
        ("GPT2-XL", NO_FILE, "; did you mean gpt2-xl?"),
        ("gpt2-small", NO_FILE, "; did you mean gpt2?"),
        ("1558m", NO_FILE, "; did you mean 1558M?"),
        ("shakespeare-unt", NO_FILE, "; did you mean shakespeare-untied?"),
        ("someone/model/of", NO_FILE, ""),
        (".", "", ""),
        ("~", "", ""),
        ("a\0b", NO_FILE, ""),
    ],
)
def test_a_text_that_is_no_name_of_a_model(text, reason, hint):
    message = refuses("no model ", check_name, text)
    names = ", ".join([*MODELS, "shakespeare-tied", "shakespeare-untied"])
    assert message == f"no model {text!r}: {reason}the names known are {names}{hint}"


PARAMETERS = {  # of the published models, as they are counted in torch
    "gpt2": 124_439_808,
    "gpt2-medium": 354_823_168,
    "gpt2-large": 774_030_080,
    "gpt2-xl": 1_557_611_200,
    "distilgpt2": 81_912_576,
}
HEAD_WIDTH = 64  # n_embd / n_head: the number of heads changes no count


@pytest.mark.parametrize("name", MODELS)
def test_the_sizes_of_a_known_model_are_those_of_the_published_one(name):
    config = known_config(name)
    assert count_parameters(config)["tied"]["total"] == PARAMETERS[name]
    assert config.n_embd / config.n_head == HEAD_WIDTH
    assert (config.n_ctx, config.eos_token_id) == (1024, config.vocab_size - 1)
    assert round(PARAMETERS[name] / 1e6) == int(MODELS[name].alias.removesuffix("M"))


def test_the_config_of_a_name_or_of_its_alias_is_known_without_a_file(home):
    for alias, name in ALIASES.items():
        assert known_config(alias) == known_config(name) == MODELS[name].config
    for name in ("someone/tiny-gpt2", "shakespeare-tied"):
        assert known_config(name) is None


def test_each_known_model_has_a_commit_and_a_hash_of_its_own():
    """gpt2's vocabulary is that of all, and each weights file is another one."""
    models = MODELS.values()
    for values, length in (([m.commit for m in models], 40), ([m.sha256 for m in models], 64)):
        assert len(set(values)) == len(MODELS)
        assert all(re.fullmatch(f"[0-9a-f]{{{length}}}", value) for value in values)
    assert len({model.repository for model in models}) == len(MODELS)
    for name, model in MODELS.items():
        assert model.repository.endswith(f"/{name}")


@pytest.mark.parametrize(
    ("file", "path"), [("merges.txt", GPT2_MERGES), ("vocab.json", GPT2_VOCAB)]
)
def test_the_hashes_of_the_vocabulary_are_those_of_openais_files(file, path):
    if not path.is_file():
        pytest.skip("GPT-2's vocabulary is not here: there is no folder `shared`")
    assert hashlib.sha256(path.read_bytes()).hexdigest() == VOCABULARY_SHA256[file]
