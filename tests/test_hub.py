"""Downloads: which files, from where, to which folder, and what is refused.

The fixture hub_server is a hub on this machine. It has a small model, NAME. The fixture hub_files
has the model's files; its tokens are the 256 bytes, and EOT with the id 256. Downloads go to
weights_folder. A model comes from the source "hub", or "openai" for OpenAI's own server; the source
"tokenizer" is the hub, for the small files alone. A pin is the size and the hash that a file must
have. The notes of a download are the lines that it prints for the user.

An interrupted download leaves what it has received in a hidden file, the part. test_fetching.py
tests the faults of the network.
"""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from support.checkpoint_files import write_shards
from support.checks import refuses
from support.commands import command
from support.hub_cache import CACHE, snapshot
from support.loopback_hub import (
    BLOCK,
    COMMIT,
    CONFIG,
    INDEX,
    NAME,
    WEIGHTS,
    Fault,
    assert_command_fails,
    assert_download_fails,
    assert_has_exactly,
    flip_bit,
    part_of,
    version,
    visible_files,
)
from support.models import SMALL, random_model
from support.openai_files import write_openai_model
from support.terminal import CTRL_C, Terminal
from support.vocabularies import added_token, bpe_model, tokenizer_json

import tiedgpt
from tiedgpt.checkpoints import (
    fetching,
    hub,
    known_models,
    locks,
    places,
    remote_models,
    tensorflow,
)
from tiedgpt.checkpoints.known_models import MODELS
from tiedgpt.gpt2.tokenizer import EOT, spelled_ids

GPT2 = "openai-community/gpt2"
GPT2_COMMIT = "f" * 40  # of the small gpt2 on the loopback hub


@pytest.fixture
def pinned_gpt2(hub_server, hub_files, monkeypatch):
    """The hub has the small model a second time, as gpt2. Its commit, size and hash are pinned."""
    hub_server.put(GPT2, hub_files)
    weights = version(hub_files[WEIGHTS])
    model = replace(MODELS["gpt2"], commit=GPT2_COMMIT, weights=weights)
    monkeypatch.setitem(MODELS, "gpt2", model)


@pytest.fixture
def openai_files(hub_server, hub_files, monkeypatch, tmp_path):
    """The files of a small gpt2 in OpenAI's format. Their sizes and hashes are pinned.

    hub_server has them in the folder openai/124M, and is asked in the place of OpenAI's server.
    """
    monkeypatch.setattr(tensorflow, "HEAD_WIDTH", SMALL.head_width)
    # OpenAI's format fixes n_inner, and the last token as the begin and end of a text.
    config = replace(
        SMALL, vocab_size=257, n_inner=4 * SMALL.n_embd, bos_token_id=256, eos_token_id=256
    )
    folder = write_openai_model(tmp_path / "openai", random_model(config))
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    for file in known_models.OPENAI_124M:
        monkeypatch.setitem(known_models.OPENAI_124M, file, version(files[file]))
    files["encoder.json"] = hub_files["vocab.json"]
    files["vocab.bpe"] = hub_files["merges.txt"]
    hub_server.put("openai/124M", files)
    monkeypatch.setattr(remote_models, "OPENAI", f"http://{hub_server.host}/openai")
    return files


# Which files a repository has


def serve_only(server, files: dict[str, bytes]) -> None:
    """Let the hub have the repository NAME with just these files, and nothing else."""
    server.files.clear()
    server.put(NAME, files)


def without(files: dict[str, bytes], *names: str) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if name not in names}


def tokenizer_of_bytes(added_tokens: Sequence[dict] = ()) -> bytes:
    """A tokenizer.json whose tokens are the 256 bytes and the added tokens."""
    ids_of_bytes = spelled_ids([], first_id=0)  # the bytes alone, because there is no merge
    model = bpe_model(vocab=ids_of_bytes, merges=[])
    return json.dumps(tokenizer_json(model=model, added_tokens=list(added_tokens))).encode()


def assert_downloads(server, files: dict[str, bytes]) -> list[str]:
    """Let the repository have these files, and download it. It must bring just these files.

    Returns the notes.
    """
    serve_only(server, files)
    notes = []
    assert_has_exactly(hub.download(NAME, note=notes.append), files)
    return notes


def test_a_usual_repository(weights_folder, hub_server, hub_files):
    notes = assert_downloads(hub_server, hub_files)
    folder = weights_folder / NAME
    assert notes == [f"downloading {NAME} from {hub_server.host}/{NAME} to {folder}"]
    assert tiedgpt.load_tokenizer(NAME).special_tokens == {EOT: 256}
    assert tiedgpt.load_model(NAME).config.eos_token_ids == ()


def test_a_repository_with_a_tokenizer_json_alone(hub_server, hub_files):
    files = without(hub_files, "vocab.json", "merges.txt")
    assert_downloads(hub_server, {**files, "tokenizer.json": tokenizer_of_bytes()})
    assert tiedgpt.load_tokenizer(NAME).special_tokens == {}


def test_a_repository_with_tokens_that_tokenizer_json_adds(hub_server, hub_files):
    added = [added_token(EOT, 256), added_token("<pad>", 257)]
    assert_downloads(hub_server, {**hub_files, "tokenizer.json": tokenizer_of_bytes(added)})
    assert tiedgpt.load_tokenizer(NAME).special_tokens == {EOT: 256, "<pad>": 257}


def test_a_repository_with_special_tokens(hub_server, hub_files):
    added = [added_token(EOT, 256), added_token("<pad>", 257)]
    settings = {
        "tokenizer.json": tokenizer_of_bytes(added),
        "tokenizer_config.json": b'{"model_max_length": 9}',
        "added_tokens.json": b'{"<pad>": 257}',
        "special_tokens_map.json": b'{"pad_token": "<pad>"}',
        "chat_template.jinja": b"{{ messages }}",
    }
    assert_downloads(hub_server, {**hub_files, **settings})
    assert tiedgpt.load_tokenizer(NAME).special_tokens == {EOT: 256, "<pad>": 257}


def test_a_repository_with_a_generation_config(hub_server, hub_files):
    assert_downloads(hub_server, {**hub_files, "generation_config.json": b'{"eos_token_id": 5}'})
    assert tiedgpt.load_model(NAME).config.eos_token_ids == (5,)


def test_a_repository_without_a_tokenizer(hub_server, hub_files):
    notes = assert_downloads(hub_server, without(hub_files, "vocab.json", "merges.txt"))
    _downloading, missing = notes
    assert missing.endswith(
        "has no tokenizer: neither vocab.json and merges.txt nor tokenizer.json"
    )


def test_a_repository_with_half_a_tokenizer(hub_server, hub_files):
    notes = assert_downloads(hub_server, without(hub_files, "merges.txt"))
    _downloading, missing = notes
    assert missing.endswith(
        "has no tokenizer: neither vocab.json and merges.txt nor tokenizer.json"
    )


def test_a_repository_with_several_files_of_weights(hub_server, hub_files, tmp_path):
    write_shards(tmp_path, random_model(CONFIG))
    names = [INDEX, "a.safetensors", "b.safetensors"]
    shards = {name: (tmp_path / name).read_bytes() for name in names}
    assert_downloads(hub_server, {**without(hub_files, WEIGHTS), **shards})


def test_all_files_are_of_the_commit_that_main_was_at_first(hub_server):
    """The first request asks for main, and its answer names the commit of main, COMMIT.

    The path of a request is /owner/name/resolve/REVISION/file.
    """
    hub.download(NAME)
    revisions = []
    for request in hub_server.requests:
        revisions.append(re.search("/resolve/([^/]+)/", request.path)[1])
    first, *later = revisions
    assert first == "main"
    assert set(later) == {COMMIT}


def test_a_complete_model_is_not_asked_for_again(weights_folder, hub_server):
    hub.download(NAME)
    hub_server.requests.clear()
    notes = []
    assert hub.download(NAME, note=notes.append) == weights_folder / NAME
    assert hub.find_or_download(NAME) == weights_folder / NAME
    assert notes == [f"{NAME} is here already, complete"]
    assert hub_server.requests == []


@pytest.mark.usefixtures("hub_server")
def test_files_that_are_there_are_not_mixed_with_others(weights_folder):
    folder = weights_folder / NAME
    folder.mkdir(parents=True)
    (folder / "added_tokens.json").write_bytes(b"old")
    refuses(rf"has no config\.json; to download {NAME}, move {folder} away", hub.download, NAME)


@pytest.mark.usefixtures("hub_server")
def test_a_damaged_model_is_not_complete(weights_folder):
    hub.download(NAME)
    (weights_folder / NAME / "merges.txt").write_bytes(b"junk\n")
    refuses(rf"^{weights_folder}.*; to download {NAME}, move .* away", hub.download, NAME)


# What is refused before the weights are asked for

BAD_SMALL_FILES = [
    pytest.param(
        "merges.txt",
        b"junk\n",
        r"merges\.txt, line 1: expected two tokens, got 'junk'",
        id="merges",
    ),
    pytest.param("vocab.json", b"[]", r"vocab\.json: expected a JSON object", id="vocab"),
    pytest.param("added_tokens.json", b"{", r"added_tokens\.json: not JSON", id="added"),
    pytest.param(
        "tokenizer_config.json",
        b"\xff",
        r"tokenizer_config\.json, line 1: not UTF-8",
        id="settings",
    ),
    pytest.param(
        "generation_config.json",
        b'{"eos_token_id": "x"}',
        r"generation_config\.json: .*eos_token_id",
        id="generation-config",
    ),
]


@pytest.mark.parametrize("source", ["hub", "tokenizer"])
@pytest.mark.parametrize(("file", "content", "message"), BAD_SMALL_FILES)
def test_a_wrong_small_file_is_refused_before_the_weights_are_asked_for(
    weights_folder, hub_server, hub_files, source, file, content, message
):
    serve_only(hub_server, {**hub_files, file: content})
    assert_download_fails(f"^{hub_server.host}/{NAME}.*{message}", source=source)
    assert WEIGHTS not in {request.file for request in hub_server.requests}
    assert not weights_folder.exists()


@pytest.mark.parametrize("source", ["hub", "tokenizer"])
def test_a_wrong_tokenizer_json_is_refused_before_the_weights(hub_server, hub_files, source):
    serve_only(hub_server, {**without(hub_files, "merges.txt"), "tokenizer.json": b"{}"})
    assert_download_fails(f"^{hub_server.host}/{NAME}.*tokenizer\\.json: ", source=source)
    assert WEIGHTS not in {request.file for request in hub_server.requests}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        pytest.param(
            b'{"model_type": "bert"}', "model_type is 'bert', which is another model", id="bert"
        ),
        pytest.param(b"", r"config\.json: not JSON", id="empty"),
    ],
)
def test_a_model_that_is_no_gpt2_is_refused_by_its_configuration_alone(
    weights_folder, hub_server, hub_files, config, message
):
    serve_only(hub_server, {**hub_files, "config.json": config})
    assert_download_fails(f"^{hub_server.host}/{NAME}.*{message}")
    assert {request.file for request in hub_server.requests} == {"config.json"}
    assert not weights_folder.exists()


@pytest.mark.parametrize(
    ("index", "message"),
    [
        pytest.param(b"{}", '"weight_map" must map tensor names to files', id="no-map"),
        pytest.param(
            b'{"weight_map": {"a": "../x.safetensors"}}',
            "'../x.safetensors' names no .safetensors file beside it",
            id="outside",
        ),
        pytest.param(
            b'{"weight_map": {"a": "c.safetensors"}}',
            r"lacks some of the files that model\.safetensors\.index\.json names",
            id="absent",
        ),
    ],
)
def test_an_index_that_names_no_file_here(weights_folder, hub_server, hub_files, index, message):
    serve_only(hub_server, {**without(hub_files, WEIGHTS), INDEX: index})
    assert_download_fails(f"^{hub_server.host}/{NAME}.*{message}")
    assert not weights_folder.exists()


def test_a_pickle_is_not_read(weights_folder, hub_server, hub_files):
    serve_only(hub_server, {**without(hub_files, WEIGHTS), "pytorch_model.bin": b""})
    assert_download_fails(
        r"has neither model\.safetensors nor .*; a pytorch_model\.bin, if it has one, is a pickle"
    )
    assert "pytorch_model.bin" not in {request.file for request in hub_server.requests}
    assert not weights_folder.exists()


def test_after_a_refusal_the_right_files_are_downloaded(hub_server, hub_files):
    serve_only(hub_server, {**hub_files, "vocab.json": b"[]"})
    assert_download_fails(r"vocab\.json: expected a JSON object")
    serve_only(hub_server, hub_files)
    assert_has_exactly(hub.download(NAME), hub_files)


# The tokenizer alone


def test_a_command_that_needs_the_tokenizer_alone(
    weights_folder, hub_server, pinned_gpt2, hub_files, run
):
    """124M is another name of gpt2. "é" has two bytes, whose ids are 127 and 102 in GPT-2."""
    code, out, err = run("tokenize", "--model", "124M", "é")
    assert (code, out) == (0, "   127  b'\\xc3'\n   102  b'\\xa9'\n")
    folder = weights_folder / "gpt2" / ".tokenizer"
    size = len(hub_files["vocab.json"]) + len(hub_files["merges.txt"])
    assert err == (
        "tiedgpt: note: gpt2 is not on this machine\n"
        f"tiedgpt: note: downloading the tokenizer of gpt2 ({size / 1e6:.1f} MB) from "
        f"{hub_server.host}/{GPT2} to {folder}\n"
    )
    all_but_weights = without(hub_files, WEIGHTS)
    assert_has_exactly(folder, all_but_weights)
    assert {request.file for request in hub_server.requests} == all_but_weights.keys()


@pytest.mark.usefixtures("pinned_gpt2")
def test_a_tokenizer_alone_is_used_offline_and_is_not_a_model(monkeypatch, run):
    tiedgpt.load_tokenizer("gpt2")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert tiedgpt.load_tokenizer("gpt2").vocab_size == 257
    refuses("gpt2 is not on this machine", places.find_model, "gpt2")
    error = assert_command_fails(run, "generate", "--model", "gpt2", "a")
    assert "error: gpt2 is not on this machine: " in error
    assert error.endswith("; HF_HUB_OFFLINE is set, so it is not downloaded\n")


@pytest.mark.usefixtures("pinned_gpt2")
def test_a_model_is_complete_without_the_tokenizer_that_came_first(weights_folder, hub_files):
    """The tokenizer that was downloaded alone is in the folder gpt2/.tokenizer."""
    tiedgpt.load_tokenizer("gpt2")
    assert tiedgpt.load_model("gpt2").config == CONFIG
    shutil.rmtree(weights_folder / "gpt2" / ".tokenizer")
    assert_has_exactly(weights_folder / "gpt2", hub_files)
    assert tiedgpt.load_tokenizer("gpt2").vocab_size == 257


def test_a_tokenizer_of_a_repository_without_a_vocabulary_is_an_error(hub_server, hub_files):
    serve_only(hub_server, {"config.json": hub_files["config.json"]})
    assert_download_fails(
        "has no tokenizer: neither vocab.json and merges.txt nor tokenizer.json", source="tokenizer"
    )


# gpt2 and its pins


def row_of_facts(shared, name: str) -> list[str]:
    """The row of a model in FACTS.md: name, repository, commit, size and SHA-256 of its weights.

    A row is a line of a table, such as "| gpt2, 124M | openai-community/gpt2 | ... |".
    """
    text = (shared / "FACTS.md").read_text()
    (row,) = re.findall(rf"^\| {name}, .*$", text, re.MULTILINE)
    return row.strip("| ").split(" | ")


@pytest.mark.parametrize("name", MODELS)
def test_the_pins_of_weights_are_the_facts(shared, name):
    """Weights have a pin of their size only if FACTS.md has the exact size."""
    _, repository, commit, size, digest = row_of_facts(shared, name)
    model = MODELS[name]
    assert model.repository == repository
    assert model.commit == commit
    assert model.weights.digest == digest
    if model.weights.size is None:
        assert "(" in size  # for example "3247159078 (derived)"
    else:
        assert size.startswith(str(model.weights.size))  # a remark may follow


@pytest.mark.parametrize(
    ("file", "pin"),
    [
        ("encoder.json", known_models.VOCAB),
        ("vocab.bpe", known_models.MERGES),
        *known_models.OPENAI_124M.items(),
    ],
)
def test_the_pins_of_openais_files_are_the_facts(shared, file, pin):
    """The folder `shared` lacks the large files, but FACTS.md has their sizes."""
    text = (shared / "FACTS.md").read_text()
    assert pin.digest in text
    path = shared / "gpt2" / "124M" / file
    if path.exists():
        assert pin.find_difference(path) == ""
    else:
        assert f"data {pin.size} B {pin.digest}" in text


def test_gpt2_comes_from_its_commit(weights_folder, hub_server, pinned_gpt2, hub_files):
    notes = []
    assert hub.find_or_download("gpt2", note=notes.append) == weights_folder / "gpt2"
    assert_has_exactly(weights_folder / "gpt2", hub_files)
    for request in hub_server.requests:
        assert f"/{GPT2}/resolve/{GPT2_COMMIT}/" in request.path
    missing, downloading = notes
    assert missing == "gpt2 is not on this machine"
    assert re.match(rf"downloading gpt2 \(1\.\d MB\) from \S+/{GPT2} to \S+/gpt2$", downloading)


@pytest.mark.usefixtures("pinned_gpt2")
def test_gpt2_is_downloaded_even_if_there_is_a_directory_gpt2(weights_folder, monkeypatch):
    """A note says how to name the directory."""
    monkeypatch.chdir(weights_folder.parent)
    Path("gpt2").mkdir()
    notes = []
    assert hub.find_or_download("gpt2", note=notes.append) == weights_folder / "gpt2"
    missing, _downloading = notes
    assert missing == "gpt2 is not on this machine (for the directory here, write ./gpt2)"


def test_a_gpt2_that_is_here_is_verified(weights_folder, hub_server, pinned_gpt2):
    """124M is another name of gpt2."""
    hub.download("gpt2")
    hub_server.requests.clear()
    notes = []
    assert hub.download("124M", note=notes.append) == weights_folder / "gpt2"
    assert notes == ["gpt2 is here already, complete and verified"]
    assert hub_server.requests == []


@pytest.mark.usefixtures("pinned_gpt2")
def test_a_gpt2_that_is_damaged_is_not_complete(weights_folder):
    path = hub.download("gpt2") / WEIGHTS
    path.write_bytes(flip_bit(path.read_bytes()))
    message = (
        r"gpt2/model\.safetensors: its SHA-256 is .*, expected .*; to download gpt2, move .* away"
    )
    refuses(message, hub.download, "gpt2")


@pytest.mark.usefixtures("pinned_gpt2")
def test_a_gpt2_that_lacks_a_file_is_not_complete(weights_folder):
    (hub.download("gpt2") / "merges.txt").unlink()
    message = r"No such file .*gpt2/merges\.txt'.*; to download gpt2, move .* away"
    refuses(message, hub.download, "gpt2")


PINNED_FILES = [  # the source, the folder on its server, the file
    ("hub", GPT2, WEIGHTS),
    ("hub", GPT2, "merges.txt"),
    ("openai", "openai/124M", "hparams.json"),
    ("openai", "openai/124M", "model.ckpt.index"),
    ("openai", "openai/124M", tensorflow.DATA),
    ("openai", "openai/124M", "vocab.bpe"),
]


@pytest.mark.usefixtures("pinned_gpt2", "openai_files")
@pytest.mark.parametrize(("source", "folder", "file"), PINNED_FILES)
def test_a_file_that_differs_from_its_pin_is_refused(hub_server, source, folder, file):
    """It is refused even though the server sends the right size and hash of its changed file."""
    pinned_content = hub_server.files[f"{folder}/{file}"]
    hub_server.put(folder, {file: flip_bit(pinned_content)})
    message = rf"/{file}: its SHA-256 is .*, expected .*; the part is deleted"
    assert_download_fails(message, name="gpt2", source=source)
    hub_server.put(folder, {file: pinned_content + b"!"})
    message = rf"/{file}: expected one number of bytes, got \d+ and \d+"
    assert_download_fails(message, name="gpt2", source=source)


@pytest.mark.usefixtures("pinned_gpt2", "openai_files")
@pytest.mark.parametrize(
    ("source", "path", "message"),
    [
        ("hub", f"{GPT2}/{WEIGHTS}", r"has neither model\.safetensors nor"),
        ("openai", "openai/124M/hparams.json", r"no such repository, or no hparams\.json in it"),
        ("openai", "openai/124M/model.ckpt.index", "some of the files that OpenAI released"),
        ("openai", f"openai/124M/{tensorflow.DATA}", "some of the files that OpenAI released"),
        ("openai", "openai/124M/vocab.bpe", "some of the files that OpenAI released"),
    ],
)
def test_a_file_that_the_server_lacks(hub_server, source, path, message):
    del hub_server.files[path]
    assert_download_fails(message, name="gpt2", source=source)


# OpenAI's files


def test_openais_files_are_downloaded_without_the_hubs_token_to_a_folder_of_their_own(
    weights_folder, hub_server, openai_files, monkeypatch
):
    """The download is interrupted twice. 124M is another name of gpt2."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub_server.faults[tensorflow.DATA] = [Fault(stop=5 * BLOCK), Fault(503)]
    assert hub.download("124M", "openai") == weights_folder / "gpt2-openai"
    assert_has_exactly(weights_folder / "gpt2-openai", openai_files)
    assert {request.token for request in hub_server.requests} == {None}


def test_gpt2_means_openais_files_if_they_alone_are_here(weights_folder, hub_server, openai_files):
    """Nothing is asked for, because the files are complete."""
    hub.download("gpt2", "openai")
    hub_server.requests.clear()
    notes = []
    assert hub.download("gpt2", "openai", notes.append) == weights_folder / "gpt2-openai"
    assert notes == ["gpt2 is here already, complete and verified"]
    assert places.find_model("gpt2") == weights_folder / "gpt2-openai"
    assert tiedgpt.load_model("gpt2").config.vocab_size == 257
    assert tiedgpt.load_tokenizer("gpt2").vocab_size == 257
    assert hub_server.requests == []


@pytest.mark.usefixtures("openai_files", "pinned_gpt2")
def test_gpt2_means_the_hubs_files_if_both_are_here(weights_folder):
    hub.download("gpt2", "openai")
    assert hub.download("gpt2") == weights_folder / "gpt2"
    assert places.find_model("gpt2") == weights_folder / "gpt2"


def test_the_sizes_of_openais_larger_models_are_pinned(hub_server, openai_files):
    """The server has the files of a small model in the place of those of gpt2-medium."""
    hub_server.put("openai/355M", openai_files)
    message = r"00000-of-00001: expected one number of bytes, got \d+ and 1419292672"
    assert_download_fails(message, name="gpt2-medium", source="openai")


@pytest.mark.usefixtures("openai_files")
@pytest.mark.parametrize("name", ["distilgpt2", NAME])
def test_a_model_that_openai_did_not_release(name):
    message = f"OpenAI released gpt2, .*, not {name}; download it from the hub"
    assert_download_fails(message, name=name, source="openai")


# What a killed download leaves


def leave_files_of_a_killed_download(folder: Path) -> Path:
    """Write a staging directory, and the part of a file that no model of these tests has.

    So this part is not continued. Returns its path.
    """
    staging = folder / ".save.x1y2.tmp"
    (staging / "new").mkdir(parents=True)
    (staging / "new" / "vocab.json").write_bytes(b"left")
    (staging / locks.LOCK).write_bytes(b"left")
    part = folder / ".model-00001-of-00002.safetensors.4567.part"
    part.write_bytes(b"left")
    return part


def interrupt_download(server, *, name: str, source: str, file: str) -> None:
    """Start a download that fails when it has the first BLOCK bytes of a file."""
    dropped = Fault(is_dropped=True)
    server.faults[file] = [Fault(stop=BLOCK), *[dropped] * fetching.ATTEMPTS]
    assert_download_fails("; the next download continues from here", name=name, source=source)


# The first byte that a download asks for after interrupt_download, which leaves a part of BLOCK
# bytes: it is the last byte of the part, so that the request is not empty if the part is complete.
CONTINUED_AT = BLOCK - 1


def test_a_part_of_the_weights_is_continued(weights_folder, hub_server, hub_files):
    """The part of a different file and a staging directory are removed."""
    leave_files_of_a_killed_download(weights_folder / NAME)
    interrupt_download(hub_server, name=NAME, source="hub", file=WEIGHTS)
    assert_has_exactly(hub.download(NAME), hub_files)
    assert CONTINUED_AT in hub_server.first_bytes()


def test_a_part_of_openais_weights_is_continued(weights_folder, hub_server, openai_files):
    """The part of a different file and a staging directory are removed."""
    leave_files_of_a_killed_download(weights_folder / "gpt2-openai")
    interrupt_download(hub_server, name="gpt2", source="openai", file=tensorflow.DATA)
    assert_has_exactly(hub.download("gpt2", "openai"), openai_files)
    assert CONTINUED_AT in hub_server.first_bytes(tensorflow.DATA)


@pytest.mark.usefixtures("hub_server")
def test_parts_beside_a_complete_model_are_removed(weights_folder, hub_files):
    """A download that is killed after its last rename leaves its parts."""
    folder = hub.download(NAME)
    leave_files_of_a_killed_download(folder)
    hub.download(NAME)
    assert_has_exactly(folder, hub_files)


@pytest.mark.usefixtures("hub_server")
def test_a_part_is_not_removed_while_another_process_has_the_lock():
    """The process that has the lock may still be writing to the part."""
    folder = hub.download(NAME)
    part = leave_files_of_a_killed_download(folder)
    with locks.locked_file(folder / locks.LOCK):
        hub.download(NAME)
        assert part.exists()


# Names that are not asked for

NOT_NAMES = [
    pytest.param("gtp2", id="typo"),
    pytest.param("GPT2", id="upper-case"),
    pytest.param("../secret", id="parent"),
    pytest.param("a/../b", id="parent-inside"),
    pytest.param("a/..", id="parent-at-the-end"),
    pytest.param("missing/dir/deep", id="three-parts"),
    pytest.param("", id="empty"),
    pytest.param("a\\..\\b/c", id="backslash"),
    pytest.param("a/b/c", id="path"),
    pytest.param("a/b?x", id="query"),
    pytest.param("a/b\n", id="line-break"),
]


@pytest.mark.parametrize("name", NOT_NAMES)
@pytest.mark.parametrize("function", [hub.download, tiedgpt.load_model])
def test_a_text_that_is_not_a_name(weights_folder, hub_server, function, name):
    message = f"^no model {re.escape(repr(name))}: .*the names known are gpt2, "
    refuses(message, function, name)
    assert hub_server.requests == []
    assert not weights_folder.exists()


@pytest.mark.usefixtures("hub_server")
def test_the_path_of_a_file_is_not_a_name():
    refuses("^no model '/etc/passwd': the names known are", hub.download, "/etc/passwd")


@pytest.mark.usefixtures("hub_server")
@pytest.mark.parametrize("name", ["gtp2", "GPT2"])
def test_the_error_suggests_the_name_that_was_meant(name):
    refuses(r"; did you mean gpt2\?$", hub.download, name)


@pytest.mark.parametrize("path", [Path(NAME), Path("gpt2")])
def test_a_path_is_never_downloaded(hub_server, pinned_gpt2, path):
    """A Path means a folder on this machine, even if the hub has a model of this name."""
    refuses(f"{path} is not on this machine", tiedgpt.load_model, path)
    assert hub_server.requests == []


@pytest.mark.parametrize("function", [hub.download, hub.find_or_download])
def test_a_shipped_model_is_never_downloaded(hub_server, function):
    """The machine of this test has no models, so the shipped model is missing."""
    refuses("shakespeare-tied comes with tiedgpt but is missing", function, "shakespeare-tied")
    assert hub_server.requests == []


def test_a_command_without_a_model_does_not_download_gpt2(hub_server, pinned_gpt2, run):
    """gpt2 is the model of a command that names none."""
    assert "gpt2 is not on this machine" in assert_command_fails(run, "tokenize", "a")
    assert hub_server.requests == []


# Offline


@pytest.mark.parametrize("value", ["1", "true", "ON", "yes"])
def test_offline_nothing_is_asked_for(hub_server, monkeypatch, value):
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    assert_download_fails(f"^{NAME} cannot be downloaded: HF_HUB_OFFLINE is set$")
    assert_download_fails(
        "gpt2 cannot be downloaded: HF_HUB_OFFLINE is set", name="gpt2", source="openai"
    )
    error = refuses(f"{NAME} is not on this machine: looked for ", tiedgpt.load_model, NAME)
    assert error.endswith("; HF_HUB_OFFLINE is set, so it is not downloaded")
    assert hub_server.requests == []


def test_offline_a_model_that_is_here_is_found(weights_folder, hub_server, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")  # not offline
    hub.download(NAME)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert hub.download(NAME) == weights_folder / NAME
    assert hub.find_or_download(NAME) == weights_folder / NAME


# The Hugging Face cache


def write_snapshot(home: Path, repository: str, files: dict[str, bytes]) -> Path:
    """Write a repository's files to the Hugging Face cache in this home. Returns their folder."""
    folder = snapshot(home / CACHE, repository)
    folder.mkdir(parents=True)
    for file, content in files.items():
        (folder / file).write_bytes(content)
    return folder


@pytest.mark.usefixtures("pinned_gpt2")
@pytest.mark.parametrize(("name", "repository"), [(NAME, NAME), ("gpt2", GPT2), ("124M", "gpt2")])
def test_a_model_in_the_hugging_face_cache_is_used(
    weights_folder, tmp_path, hub_server, hub_files, name, repository
):
    """Nothing is downloaded. The part that a killed download has left is removed."""
    folder = write_snapshot(tmp_path, repository, hub_files)
    folder_of_download = weights_folder / places.check_name(name)  # 124M is another name of gpt2
    part = leave_files_of_a_killed_download(folder_of_download)
    assert hub.find_or_download(name) == folder
    assert hub.download(name) == folder
    assert hub_server.requests == []
    assert not part.exists()


@pytest.mark.usefixtures("hub_server")
@pytest.mark.parametrize("file", ["config.json", WEIGHTS])
def test_a_snapshot_that_lacks_a_file_is_not_used(weights_folder, tmp_path, hub_files, file):
    write_snapshot(tmp_path, NAME, without(hub_files, file))
    assert hub.download(NAME) == weights_folder / NAME
    assert_has_exactly(weights_folder / NAME, hub_files)


@pytest.mark.usefixtures("hub_server")
def test_a_snapshot_with_empty_weights_is_not_complete(weights_folder, tmp_path, hub_files):
    write_snapshot(tmp_path, NAME, {**hub_files, WEIGHTS: b""})
    assert hub.download(NAME) == weights_folder / NAME


@pytest.mark.usefixtures("hub_server")
def test_a_snapshot_with_a_link_to_a_missing_file_is_not_used(weights_folder, tmp_path, hub_files):
    folder = write_snapshot(tmp_path, NAME, without(hub_files, WEIGHTS))
    (folder / WEIGHTS).symlink_to("not-downloaded-yet")
    assert hub.download(NAME) == weights_folder / NAME


@pytest.mark.usefixtures("hub_server")
def test_a_snapshot_without_the_files_of_its_index_is_not_complete(
    weights_folder, tmp_path, hub_files
):
    index = b'{"weight_map": {"wte.weight": "a-1.safetensors"}}'
    write_snapshot(tmp_path, NAME, {**without(hub_files, WEIGHTS), INDEX: index})
    assert hub.download(NAME) == weights_folder / NAME


# The folder that is filled


@pytest.fixture
def home(hub_server, tmp_path, monkeypatch):
    """A home directory. tiedgpt seems to be installed in its folder `checkout`.

    The variable TIEDGPT_WEIGHTS, which would name the folder of downloads, is not set.
    """
    monkeypatch.delenv("TIEDGPT_WEIGHTS")
    return tmp_path


def make_checkout(home: Path) -> Path:
    """Let tiedgpt seem to be a checkout. A checkout has a pyproject.toml."""
    checkout = home / "checkout"
    checkout.mkdir()
    (checkout / "pyproject.toml").touch()
    return checkout


def forbid_writing(monkeypatch, *folders: Path) -> None:
    """Let the system say that these folders cannot be written, and that all others can."""
    monkeypatch.setattr(os, "access", lambda path, mode: path not in folders)


def test_an_installed_tiedgpt_downloads_to_the_users_cache(home):
    """It does not download to the package, because an upgrade would delete the model there.

    Models are searched in both folders.
    """
    cache = home / ".cache" / "tiedgpt"
    package = home / "checkout" / "tiedgpt"
    assert places.weight_folders() == [package / "weights", cache]
    assert hub.download(NAME) == cache / NAME


def test_a_checkout_downloads_to_its_weights(home):
    checkout = make_checkout(home)
    assert hub.download(NAME) == checkout / "weights" / NAME


def test_a_checkout_that_cannot_be_written_downloads_to_the_users_cache(home, monkeypatch):
    forbid_writing(monkeypatch, make_checkout(home))
    assert hub.download(NAME) == home / ".cache" / "tiedgpt" / NAME


def test_a_download_fails_if_no_folder_can_be_written(home, monkeypatch):
    checkout = make_checkout(home)
    cache = home / ".cache"
    cache.mkdir(exist_ok=True)
    forbid_writing(monkeypatch, checkout, cache)
    message = rf"cannot write to {checkout}/weights or {cache}/tiedgpt: name a folder"
    refuses(message, hub.download, NAME)


# Commands


@pytest.mark.usefixtures("hub_server")
def test_download_prints_the_directory_alone(weights_folder, run):
    code, out, err = run("download", NAME)
    assert (code, out) == (0, f"{weights_folder / NAME}\n")
    assert re.fullmatch("tiedgpt: note: downloading [^\n]*\n", err)


@pytest.mark.usefixtures("hub_server")
def test_download_of_a_complete_model_prints_its_directory(weights_folder, run):
    hub.download(NAME)
    code, out, err = run("download", NAME)
    assert (code, out) == (0, f"{weights_folder / NAME}\n")
    assert re.fullmatch("tiedgpt: note: [^\n]* is here already, complete\n", err)


@pytest.mark.usefixtures("hub_server")
def test_download_of_a_name_with_a_typo(weights_folder, run):
    assert "no such repository" in assert_command_fails(run, "download", "some/typo")
    assert not weights_folder.exists()


@pytest.mark.usefixtures("hub_server")
def test_other_commands_download_the_model_that_they_name(run):
    code, out, err = run("generate", "--model", NAME, "-n", "3", "a")
    assert code == 0
    assert out != ""
    missing, downloading = err.splitlines()
    assert missing == f"tiedgpt: note: {NAME} is not on this machine"
    assert downloading.startswith(f"tiedgpt: note: downloading {NAME} from ")


@pytest.mark.usefixtures("hub_server")
def test_a_command_uses_the_model_that_was_downloaded(run):
    hub.download(NAME)
    code, out, err = run("generate", "--model", NAME, "-n", "3", "a")
    assert (code, err) == (0, "")
    assert out != ""


def start_download() -> subprocess.Popen:
    return subprocess.Popen(
        command("download", NAME), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_of_two_downloads_at_once_the_second_waits(weights_folder, hub_server, hub_files):
    """The server makes a pause after each piece until the second download waits."""
    hub_server.pause = 0.2  # seconds
    with start_download() as first:
        assert f"downloading {NAME}" in first.stderr.readline()
        with start_download() as second:
            waiting = f"another process is downloading {NAME}: waiting for it"
            assert waiting in second.stderr.readline()
            hub_server.pause = 0
            first_out, _ = first.communicate(timeout=30)
            second_out, second_err = second.communicate(timeout=30)
    assert first_out == f"{weights_folder / NAME}\n"
    assert second_out == first_out
    assert second_err == f"tiedgpt: note: the other process has completed {NAME}\n"
    assert hub_server.served[WEIGHTS] == len(hub_files[WEIGHTS])  # they were sent once
    assert_has_exactly(weights_folder / NAME, hub_files)


def test_a_download_that_ctrl_c_stops_is_continued(weights_folder, hub_server, hub_files):
    """Until then, a progress bar shows the speed and the time left.

    The server makes a pause after each piece, so Ctrl-C comes in the middle of the file.
    """
    hub_server.pause = 0.1  # seconds
    with Terminal("download", NAME) as terminal:
        bar = terminal.type("", "kB/s]")  # type nothing, and wait until the speed is shown
        rest = terminal.type(CTRL_C)
        shown = bar + rest
        assert terminal.process.wait(timeout=20) == 130
    # The bar looks like this: model.safetensors:  12%|###    | ... [00:01<00:07, 130kB/s]
    assert re.search(r"model.safetensors: +\d+%\|.*\[\d\d:\d\d<\d\d:\d\d, +[\d.]+kB/s\]", shown)
    assert "tiedgpt: note: stopped; the same command continues from here" in shown
    assert "Traceback" not in shown
    assert visible_files(weights_folder) == set()

    received = part_of(weights_folder / NAME).stat().st_size
    assert received > 0
    hub_server.pause = 0
    assert_has_exactly(hub.download(NAME), hub_files)
    # The last byte of the part is requested again, so that a complete part makes no empty request.
    *_, first_byte_of_last_request = hub_server.first_bytes()
    last_byte_of_part = received - 1
    assert first_byte_of_last_request == last_byte_of_part
