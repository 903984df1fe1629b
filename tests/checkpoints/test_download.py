"""Downloads from a hub that fails: after each fault, the right files are there, or one line is.

The fixture hub_server is a hub on this machine. It has a small model, NAME, whose files are the
fixture hub_files; the weights have about 90 kB. `hub_server.faults[file]` is a list of faults: each
spoils one answer with the file, and after the last fault the answers are right. The hub redirects
requests for weights to another host, so a fault of the weights is one of that host.

Downloads go to weights_folder. A part is the hidden file with what a download has received. The
client gives up after 6 attempts in a row without a new byte.
"""

import hashlib
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import tqdm
from support.checkpoint_files import write_shards
from support.checks import refuses
from support.commands import assert_one_error_line
from support.loopback_hub import (
    BLOCK,
    COMMIT,
    CONFIG,
    HALF,
    INDEX,
    NAME,
    OTHER_COMMIT,
    WEIGHTS,
    Fault,
    LoopbackHub,
    hidden_files,
    running,
    visible_files,
)
from support.models import find_here, random_model
from support.terminal import CTRL_C, Terminal
from support.torch_files import torch_file
from support.vocabularies import bpe_model, tokenizer_json

import tiedgpt
from tiedgpt import Tokenizer
from tiedgpt.checkpoints import download as module
from tiedgpt.checkpoints import find_model, model_names
from tiedgpt.checkpoints.download import download, find_default
from tiedgpt.checkpoints.model_names import MODELS, PYTORCH, PYTORCH_INDEX
from tiedgpt.errors import CheckpointError
from tiedgpt.gpt2.tokenizer import spelled_ids

GPT2 = "openai-community/gpt2"
PINNED_COMMIT = OTHER_COMMIT  # of gpt2, in the tests that have it on this hub
PART = f".{WEIGHTS}.{COMMIT[:12]}.part"
DROPPED = Fault(is_dropped=True)
HALFWAY = Fault(stop=HALF)  # the connection is cut in the middle of the weights
WRONG_BYTES = Fault(flips_a_bit=True)
CONFIG_FILE = "config.json"
WITHOUT_A_DOWNLOAD = (
    "; without a download, put the model's files (config.json, model.safetensors, vocab.json, "
    "merges.txt) in {}, or give a path"
)


def lasting(fault: Fault) -> list[Fault]:
    """The same fault for more requests than a download makes."""
    return [fault] * 99


def assert_whole(folder: Path, files: dict[str, bytes]) -> None:
    """The folder has exactly these files, and of hidden files none but the commit."""
    assert visible_files(folder) == files
    assert hidden_files(folder) == {".commit"}


# The faults of a server

ENDS_RIGHT = {  # the file, and the faults of the first answers with it
    "plain": (WEIGHTS, []),
    "cut at once": (WEIGHTS, [Fault(stop=0)]),
    "cut after a byte": (WEIGHTS, [Fault(stop=1)]),
    "cut before the last byte": (WEIGHTS, [HALFWAY, Fault(stop=-1)]),
    "cut three times": (WEIGHTS, [Fault(stop=100), HALFWAY, Fault(stop=HALF + 1)]),
    "500, 502, 503, 408": (WEIGHTS, [Fault(500), Fault(502), Fault(503), Fault(408)]),
    "429": (WEIGHTS, [Fault(429, {"Retry-After": "0"}), Fault(429, {"Retry-After": "later"})]),
    "dropped": (WEIGHTS, [DROPPED]),
    "dropped at first": (CONFIG_FILE, [DROPPED]),
    "of the hub itself": (
        CONFIG_FILE,
        [Fault(408), Fault(429), Fault(stop=3), Fault(500), Fault(504)],
    ),
    "stalled": (WEIGHTS, [Fault(stop=HALF, stalls=True)]),
    "no Range": (WEIGHTS, [HALFWAY, Fault(no_range=True, stop=9), Fault(no_range=True)]),
    "416": (WEIGHTS, [HALFWAY, Fault(416)]),
    "the link has expired": (WEIGHTS, [Fault(403), HALFWAY, Fault(403), Fault(410)]),
    "404 of the other host": (WEIGHTS, [Fault(404), HALFWAY, Fault(404)]),
    "small file": ("merges.txt", [DROPPED, Fault(503), Fault(stop=3), Fault(stop=1), Fault(429)]),
    "one of each": (
        WEIGHTS,
        [Fault(503), Fault(stop=9), DROPPED, Fault(429), HALFWAY, Fault(no_range=True)],
    ),
}


# Other cases have each of these faults, too.
SLOW = {"plain", "cut at once", "cut three times", "dropped", "404 of the other host"}
SLOW |= {"403", "redirects in a circle", "410", "cut", "503", "too small a Content-Length"}
SLOW |= {"416", "small file", "cut after a byte", "no Range", "no hash", "no commit"}


def download_cases(cases):
    """The cases of a table as parameters. Those of SLOW are slow."""
    parameters = []
    for name, values in cases.items():
        marks = pytest.mark.slow if name in SLOW else ()
        parameters.append(pytest.param(*values, id=name, marks=marks))
    return parameters


@pytest.mark.parametrize(("file", "faults"), download_cases(ENDS_RIGHT))
def test_after_faults_that_pass_the_files_are_right(
    hub_server, hub_files, monkeypatch, file, faults
):
    if any(fault.stalls for fault in faults):
        monkeypatch.setattr(module, "TIMEOUT", (5, 1))  # seconds to connect, and for more data
    hub_server.faults[file] = list(faults)
    assert_whole(download(NAME), hub_files)
    assert hub_server.faults[file] == []  # each fault was met


REFUSED = (
    "127.0.0.1 answers {}: no such repository, or a private or gated one; check the name, or set "
    "HF_TOKEN"
)
NO_DATA = "; 6 attempts in a row brought no data; the same command continues from here"
ANOTHER_HASH = (
    "its hash is [0-9a-f]{{{0}}}, expected [0-9a-f]{{{0}}}; what was received is deleted, and the "
    "same command starts over"
)
WRONG_COMMIT = "expected a file of commit {}, the server names '{}'"
# The file, the fault of each answer with it, and what the line says after the file's address.
ENDS_IN_A_LINE = {
    "401": (CONFIG_FILE, Fault(401), REFUSED.format(401)),
    "403": (CONFIG_FILE, Fault(403), REFUSED.format(403)),
    "410": (CONFIG_FILE, Fault(410), "127.0.0.1 answers 410"),
    "503": (WEIGHTS, Fault(503), f"localhost answers 503{NO_DATA}"),
    "404 of the other host": (WEIGHTS, Fault(404), f"localhost answers 404{NO_DATA}"),
    "cut": (WEIGHTS, HALFWAY, f"the connection was cut{NO_DATA}"),
    "wrong bytes": (WEIGHTS, WRONG_BYTES, ANOTHER_HASH.format(64)),
    "wrong bytes, small file": ("vocab.json", WRONG_BYTES, ANOTHER_HASH.format(40)),
    "too small a Content-Length": (
        WEIGHTS,
        Fault(headers={"Content-Length": "9"}),
        ANOTHER_HASH.format(64),
    ),
    "no hash": (
        "merges.txt",
        Fault(headers={"ETag": '"5f-abc"'}),
        "the server names no hash, so the file cannot be verified",
    ),
    "no commit": (
        CONFIG_FILE,
        Fault(headers={"X-Repo-Commit": ""}),
        WRONG_COMMIT.format("main", ""),
    ),
    "another commit": (
        "vocab.json",
        Fault(headers={"X-Repo-Commit": OTHER_COMMIT}),
        WRONG_COMMIT.format(COMMIT, OTHER_COMMIT),
    ),
    "redirects in a circle": (
        WEIGHTS,
        Fault(302, {"Location": f"/{NAME}/resolve/{COMMIT}/{WEIGHTS}"}),
        "cannot be reached: 'Exceeded 30 redirects.'",
    ),
    "redirect to no URL": (
        WEIGHTS,
        Fault(302, {"Location": "http://u:p@[/"}),
        "cannot be reached: .*",
    ),
}


@pytest.mark.parametrize(("file", "fault", "message"), download_cases(ENDS_IN_A_LINE))
def test_a_fault_that_lasts_is_one_line_and_no_model(
    weights_folder, hub_server, hub_files, file, fault, message
):
    """The line says what to do without a download. After the fault, the same call succeeds."""
    hub_server.faults[file] = lasting(fault)
    address = f"127.0.0.1:{hub_server.server_port}/{NAME}/{file}"
    advice = re.escape(WITHOUT_A_DOWNLOAD.format(weights_folder / NAME))
    error = refuses(f"^{address}:? {message}{advice}$", download, NAME)
    assert "u:p" not in error  # a password
    is_small = file != WEIGHTS
    there = visible_files(weights_folder / NAME)
    assert WEIGHTS not in there
    assert (CONFIG_FILE in there) != is_small  # it comes when all other small files are there
    hub_server.faults.clear()
    assert_whole(download(NAME), hub_files)


def test_headers_and_codes_that_are_nearly_right(hub_server):
    repository = module.Repository(NAME, "", lambda note: None)
    commit = 41 * "f"
    hub_server.faults[CONFIG_FILE] = [Fault(410), Fault(headers={"X-Repo-Commit": commit})]
    refuses(f"/{CONFIG_FILE}: 127.0.0.1 answers 410$", repository.read, CONFIG_FILE)
    refuses(f"{WRONG_COMMIT.format('main', commit)}$", repository.read, CONFIG_FILE)
    assert repository.read(CONFIG_FILE)
    hub_server.faults["merges.txt"] = [Fault(headers={"ETag": f'"{50 * "0"}"'})]
    refuses("/merges.txt: the server names no hash", repository.read, "merges.txt")


@pytest.mark.parametrize(
    "file",
    ["vocab.json", pytest.param("merges.txt", marks=pytest.mark.slow), "generation_config.json"],
)
def test_a_404_of_another_host_leaves_no_model_without_a_small_file(
    weights_folder, hub_server, hub_files, file
):
    """The hub has the file, and redirects to a host that does not: no model is taken for whole."""
    files = {**hub_files, "generation_config.json": b'{"eos_token_id": 5}'}
    hub_server.put(NAME, files)
    elsewhere = f"http://localhost:{hub_server.server_port}/{NAME}/resolve/{COMMIT}/none"
    hub_server.faults[file] = lasting(Fault(302, {"Location": elsewhere}))
    for function in (download, tiedgpt.load_tokenizer):
        error = refuses(rf"/{file}: localhost answers 404; 6 attempts", function, NAME)
        assert error.endswith(WITHOUT_A_DOWNLOAD.format(weights_folder / NAME))
        assert CONFIG_FILE not in visible_files(weights_folder / NAME)
        assert_model_is_not_whole()
    hub_server.faults.clear()
    assert_whole(download(NAME), files)


MANY_BYTES = 1 << 25


@pytest.mark.parametrize("length", [str(MANY_BYTES), ""], ids=["with-length", "without"])
@pytest.mark.parametrize(
    "file",
    [
        CONFIG_FILE,
        pytest.param("merges.txt", marks=pytest.mark.slow),
        pytest.param(INDEX, marks=pytest.mark.slow),
    ],
)
def test_a_small_file_that_is_large_is_not_read(
    weights_folder, hub_server, hub_files, monkeypatch, file, length
):
    """It would be read into memory. The server may name its length, or not."""
    monkeypatch.setattr(module, "MAX_TEXT", 1 << 14)
    hub_server.put(NAME, {**without(hub_files, WEIGHTS), file: bytes(MANY_BYTES)})
    hub_server.faults[file] = [Fault(headers={"Content-Length": length})]
    size = MANY_BYTES if length else 20480  # or what has come
    refuses(rf"/{file}: {size} bytes; expected at most 16384; without", download, NAME)
    assert file not in visible_files(weights_folder / NAME)
    (request,) = [each for each in hub_server.requests if each.file == file]
    assert request.sent < MANY_BYTES // 2  # what waits in the buffers of the connection


def test_a_small_file_of_the_largest_size_is_read(hub_server, hub_files, monkeypatch):
    content = hub_files["vocab.json"]
    size = len(content)
    repository = module.Repository(NAME, "", lambda note: None)
    for length in (str(size), ""):
        hub_server.faults["vocab.json"] = 2 * [Fault(headers={"Content-Length": length})]
        monkeypatch.setattr(module, "MAX_TEXT", size)
        assert repository.read("vocab.json") == content
        monkeypatch.setattr(module, "MAX_TEXT", size - 1)
        message = f"/vocab.json: {size} bytes; expected at most {size - 1}$"
        refuses(message, repository.read, "vocab.json")


def test_the_hash_of_another_host_does_not_count(hub_server):
    """The hub redirects to a host whose ETag looks like a hash."""
    hub_server.names_hashes = False
    refuses(f"{WEIGHTS}: the server names no hash", download, NAME)


def test_a_full_disk_is_one_line_and_the_part_is_continued(weights_folder, hub_server, hub_files):
    """This process is not allowed to make a file of more than HALF bytes."""
    resource = pytest.importorskip("resource")
    soft_limit, hard_limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (HALF, hard_limit))
    try:
        error = refuses("cannot write to .*: File too large; .*TIEDGPT_WEIGHTS", download, NAME)
        assert error.endswith(WITHOUT_A_DOWNLOAD.format(weights_folder / NAME))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft_limit, hard_limit))
    assert WEIGHTS not in visible_files(weights_folder / NAME)
    assert_whole(download(NAME), hub_files)
    assert hub_server.asked() == [0, HALF - 1]


class Screen(io.StringIO):
    """A terminal on which a bar can be shown."""

    def isatty(self) -> bool:
        return True


def test_the_next_download_continues_where_the_last_one_stopped(
    weights_folder, hub_server, hub_files, monkeypatch
):
    """It asks for the last byte again, so that a request for the rest is never empty.

    Its bar begins with the bytes that are there.
    """
    hub_server.faults[WEIGHTS] = [HALFWAY, *lasting(DROPPED)]
    refuses("the same command continues from here", download, NAME)
    part = weights_folder / NAME / PART
    received = part.read_bytes()
    assert len(received) > HALF - BLOCK
    assert hub_server.asked() == [0, *6 * [len(received) - 1]]
    assert hub_files[WEIGHTS].startswith(received)

    hub_server.faults.clear()
    hub_server.requests.clear()
    bars = []

    class Bar(tqdm.tqdm):
        def close(self) -> None:
            if not self.disable:
                bars.append((self.desc, self.initial, self.n, self.total))
            super().close()

    monkeypatch.setattr(tqdm, "tqdm", Bar)
    monkeypatch.setattr(sys, "stderr", Screen())
    assert_whole(download(NAME), hub_files)
    size = len(hub_files[WEIGHTS])
    assert bars[-2:] == [
        (WEIGHTS, len(received) - 1, size, size),
        ("verifying", 0, size, size),
    ]
    assert sys.stderr.getvalue() == ""  # it takes less than 0.3 s
    assert hub_server.asked() == [len(received) - 1]
    assert hub_server.asked("vocab.json", "127.0.0.1") == []


def test_a_bar_is_shown_in_a_terminal_and_removed(monkeypatch):
    """Elsewhere nothing is shown."""
    for stderr in (Screen(), io.StringIO()):
        monkeypatch.setattr(sys, "stderr", stderr)
        with module._progress_bar(WEIGHTS, 2_000_000, 500_000) as bar:
            if not bar.disable:
                bar.start_t = bar.last_print_t = bar.start_t - 1  # as if a second had passed
            bar.update(500_000)
        shown = stderr.getvalue()
        assert ("model.safetensors:  50%" in shown) == stderr.isatty()
        speed = re.search(r" 1\.00M/2\.00M \[\d\d:\d\d<\d\d:\d\d, [\d.]+kB/s\]", shown)
        assert bool(speed) == stderr.isatty()
        assert shown == "" or shown.endswith(" \r")  # the line is empty again


def test_what_a_download_asks_for_and_what_it_says(weights_folder, hub_server, hub_files):
    """Ctrl-C comes when all is there but the weights. The next download completes the model.

    What a killed process left of a small file is removed. Other weights are not asked for. Only the
    first answer must name the commit.
    """
    hub_server.faults["vocab.json"] = [Fault(headers={"X-Repo-Commit": ""})]
    hub_server.put(NAME, {**hub_files, PYTORCH: b"other weights"})
    folder = weights_folder / NAME
    folder.mkdir(parents=True)
    (folder / ".merges.txt.0123abcd.new").touch()
    hub = f"127.0.0.1:{hub_server.server_port}/{NAME}"
    notes = []

    def note(text):
        notes.append(text)
        if len(notes) == 2:  # all is there but the weights
            assert (folder / ".commit").read_text() == COMMIT  # other processes read it
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        download(NAME, note)
    assert_whole(download(NAME, note), hub_files)
    assert_whole(download(NAME, note), hub_files)
    assert notes == [
        f"downloading the vocabulary of {NAME} from {hub} to {folder}",
        f"downloading the weights of {NAME} from {hub} to {folder}",
        "stopped; the same command continues from here",
        f"downloading the weights of {NAME} from {hub} to {folder}",
        f"{NAME} is on this machine already",
    ]
    first = [CONFIG_FILE, *module.VOCABULARY, *module.MORE_SMALL_FILES]
    requests = hub_server.requests
    assert [each.file for each in requests] == [*first, CONFIG_FILE, WEIGHTS, WEIGHTS]
    sent = {(each.token, each.program, each.encoding) for each in requests}
    assert sent == {(None, "tiedgpt", "identity")}


def test_a_shard_that_is_whole_is_not_asked_for_again(hub_server, hub_files, tmp_path):
    write_shards(tmp_path, random_model(CONFIG))
    files = without(hub_files, WEIGHTS)
    for name in (INDEX, "a.safetensors", "b.safetensors"):
        files[name] = (tmp_path / name).read_bytes()
    hub_server.put(NAME, files)
    hub_server.faults["b.safetensors"] = lasting(DROPPED)
    refuses("the same command continues from here", download, NAME)
    hub_server.faults.clear()
    assert_whole(download(NAME), files)
    assert hub_server.asked("a.safetensors") == [0]


@pytest.mark.parametrize("part", ["whole", "longer", "other bytes"])
def test_a_part_is_verified_before_it_is_a_model(weights_folder, hub_server, hub_files, part):
    """What is received again, after a part that was too long, is nothing new."""
    hub_server.faults[WEIGHTS] = lasting(DROPPED)
    if part == "longer":  # half of the file comes, is deleted, and comes again
        hub_server.faults[WEIGHTS] = 20 * [HALFWAY, Fault(416)]
    refuses("continues from here", download, NAME)
    hub_server.faults.clear()
    weights = hub_files[WEIGHTS]
    contents = {"whole": weights, "longer": weights + b"more", "other bytes": b"junk"}
    (weights_folder / NAME / PART).write_bytes(contents[part])
    if part == "other bytes":
        refuses("its hash is", download, NAME)
    assert_whole(download(NAME), hub_files)


def test_how_long_a_server_may_take():
    """Seconds to connect, for more data, and before the second attempt and the last one."""
    assert module.TIMEOUT == (10, 30)
    assert (module.DELAY * 2, module.DELAY * 2 ** (module.ATTEMPTS - 1)) == (1, 16)


def test_how_long_it_waits(hub_server, monkeypatch):
    """Twice as long after each attempt without a new byte, but as long as the server asks for."""
    slept = []
    monkeypatch.setattr(module.time, "sleep", slept.append)
    hub_server.faults[WEIGHTS] = [
        Fault(503),
        Fault(503, {"Retry-After": "7 s"}),
        HALFWAY,
        Fault(503, {"Retry-After": "7"}),
        Fault(429, {"Retry-After": "99999999"}),
    ]
    notes = []
    download(NAME, notes.append)
    assert slept == [0.002, 0.004, 0.001, 7, 300]
    assert notes[2:] == [
        f"{WEIGHTS}: localhost answers 503; trying again in 0.002 s",
        f"{WEIGHTS}: localhost answers 503; trying again in 0.004 s",
        f"{WEIGHTS}: the connection was cut; trying again in 0.001 s",
        f"{WEIGHTS}: localhost answers 503; trying again in 7 s",
        f"{WEIGHTS}: localhost answers 429; trying again in 300 s",
    ]


# No connection


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:9", "http://u:p@", "ftp://a/x", "\udce9"])
def test_a_hub_that_was_never_reached_is_one_line_at_once(
    weights_folder, monkeypatch, run, endpoint
):
    """Nobody listens at port 9, and the other endpoints are no URLs. u:p is a password."""
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    result = run("download", NAME)
    address = f"{endpoint.rpartition('/')[2].removeprefix('u:p@')}/{NAME}/{CONFIG_FILE}"
    if endpoint.isascii():
        assert_one_error_line(result, f"{address} cannot be reached: ")
    if endpoint.startswith("ftp"):  # the reason has more than 60 characters
        assert f"found for 'ftp://a/x/{NAME}/resolve/main/{CONFIG_FILE}'\"; without" in result[2]
    assert_one_error_line(result, "config.json cannot be reached: ")
    assert result[2].endswith(f"{WITHOUT_A_DOWNLOAD.format(weights_folder / NAME)}\n")
    assert "u:p" not in result[2]
    assert not weights_folder.exists()


UNREACHABLE = {  # the endpoint -> the reason in the line
    "http://127.0.0.1:9": "Connection refused",
    "http://example.org": "Connection refused",  # by the proxy, which is at port 9, too
    "http://nowhere.invalid": "Name or service not known",
    "https://127.0.0.1:{port}": "wrong version number",  # this hub has no TLS
}


@pytest.mark.parametrize("endpoint", UNREACHABLE)
def test_the_line_says_why_the_hub_was_not_reached(hub_server, monkeypatch, endpoint):
    """The library requests has the reason of the system deep in its error."""

    def no_such_name(*arguments):
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    if "nowhere" in endpoint:
        monkeypatch.setattr(socket, "getaddrinfo", no_such_name)
        monkeypatch.setenv("NO_PROXY", "nowhere.invalid")
    monkeypatch.setenv("HF_ENDPOINT", endpoint.format(port=hub_server.server_port))
    error = refuses("config.json cannot be reached: ", download, NAME)
    reason = error.partition(WITHOUT_A_DOWNLOAD[:20])[0].rpartition("cannot be reached: ")[2]
    assert UNREACHABLE[endpoint] in reason
    assert len(reason) < 80


LOST = {  # a fault of the weights, which passes -> the reason in the note
    "503": (Fault(503), "localhost answers 503"),
    "dropped": (DROPPED, "the connection was cut"),
    "reset": (Fault(is_reset=True), "the connection was cut"),
    "stalled": (Fault(stop=HALF, stalls=True), "no answer in time"),
    "stalled at once": (Fault(stop=0, stalls=True), "no answer in time"),
    "no end": (Fault(headers={"Content-Length": "99999999"}), "the connection was cut"),
    "416": (Fault(416), "what was received is longer than the file"),
}


@pytest.mark.parametrize("name", LOST)
def test_a_note_says_why_it_is_tried_again(hub_server, hub_files, monkeypatch, name):
    monkeypatch.setattr(module, "TIMEOUT", (5, 1))  # seconds to connect, and for more data
    fault, reason = LOST[name]
    hub_server.faults[WEIGHTS] = [fault]
    notes = []
    assert_whole(download(NAME, notes.append), hub_files)
    assert f"{WEIGHTS}: {reason}; trying again in " in notes[-1]


def test_a_hub_that_does_not_answer_in_time_is_asked_again(hub_server, hub_files, monkeypatch):
    """Not even the first request was answered."""
    monkeypatch.setattr(module, "TIMEOUT", (5, 1))  # seconds to connect, and for more data
    hub_server.faults[CONFIG_FILE] = [Fault(before=lambda: hub_server.closing.wait(3))]
    notes = []
    assert_whole(download(NAME, notes.append), hub_files)
    assert notes[0] == f"{CONFIG_FILE}: no answer in time; trying again in 0.002 s"


def test_the_hash_of_another_port_does_not_count(hub_server, hub_files):
    """The hub names no hash. It leads to another server of its name, which names one."""
    hub_server.names_hashes = False
    with running(LoopbackHub()) as other:
        other.put(NAME, hub_files)
        location = f"{other.url}/{NAME}/resolve/{COMMIT}/{WEIGHTS}"
        hub_server.faults[WEIGHTS] = [Fault(302, {"Location": location})]
        refuses(f"{WEIGHTS}: the server names no hash", download, NAME)
        assert other.asked(WEIGHTS, "127.0.0.1") == [0]


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
@pytest.mark.parametrize("value", ["1", "true", "ON", "yes"])
def test_offline_nothing_is_asked_for(
    weights_folder, hub_server, hub_files, monkeypatch, variable, value
):
    """The line has the folder in which the files can be put by hand."""
    monkeypatch.setenv(variable, value)
    for function in (download, tiedgpt.load_model, tiedgpt.load_tokenizer):
        error = refuses(f"{NAME} is not on this machine, and {variable} is set", function, NAME)
    folder = weights_folder / NAME
    assert error.endswith(WITHOUT_A_DOWNLOAD.format(folder))
    folder.mkdir(parents=True)
    for name, content in hub_files.items():
        (folder / name).write_bytes(content)
    assert download(NAME) == folder
    assert tiedgpt.load_model(NAME).config == CONFIG
    assert hub_server.requests == []


@pytest.mark.parametrize("variable", ["HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_check_is_offline_too(weights_folder, hub_server, monkeypatch, run, variable):
    monkeypatch.setenv(variable, "1")
    assert_one_error_line(run("check", NAME), f"{NAME} is not on this machine")
    assert hub_server.requests == []


def test_huggingface_hubs_own_variable_counts_first(hub_server, hub_files, monkeypatch):
    """Its values "0" and "1" count. If it is empty, that of transformers counts."""
    monkeypatch.setenv("TRANSFORMERS_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    refuses("TRANSFORMERS_OFFLINE is set", download, NAME)
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert_whole(download(NAME), hub_files)


@pytest.mark.parametrize("recorded", [b"", b"\xff", b"e" * 40])
def test_a_commit_that_the_repository_does_not_have(weights_folder, hub_server, recorded):
    """The file .commit has it. Without this file, there is no such repository."""
    folder = weights_folder / "someone" / "else"
    hub = f"127.0.0.1:{hub_server.server_port}/someone/else"
    revision, more = "main", ""
    if recorded:
        folder.mkdir(parents=True)
        (folder / ".commit").write_bytes(recorded)
        revision = recorded.decode("ascii", errors="replace")
        more = f"; {folder} has files of this commit"
    message = f"{hub}: no such repository, or no config.json in it at {revision} (404){more}"
    error = refuses("no such repository", download, "someone/else")
    assert error == message + WITHOUT_A_DOWNLOAD.format(folder)


# One commit


def without(files: dict[str, bytes], *names: str) -> dict[str, bytes]:
    return {name: content for name, content in files.items() if name not in names}


@pytest.fixture
def other_files(tmp_path) -> dict[str, bytes]:
    """The files of another model with the same shapes and another vocabulary."""
    path = tmp_path / "other"
    config = replace(CONFIG, vocab_size=258)
    tiedgpt.save_model(random_model(config, seed=1), Tokenizer([("a", "b")]), path)
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.mark.parametrize("file", [CONFIG_FILE, "vocab.json", "merges.txt", WEIGHTS])
def test_a_revision_that_moves_in_the_middle_is_not_mixed(
    weights_folder, hub_server, hub_files, other_files, file
):
    """The first answer names the commit of main. All other requests ask for that commit."""
    move = Fault(before=lambda: hub_server.put(NAME, other_files, OTHER_COMMIT))
    hub_server.faults[file] = [move]
    assert_whole(download(NAME), hub_files)
    revisions = [re.search("/resolve/([^/]+)/", each.path)[1] for each in hub_server.requests]
    assert revisions[0] == "main"
    assert set(revisions[1:]) == {COMMIT}


def test_the_weights_come_from_the_commit_of_the_small_files(
    hub_server, hub_files, other_files, monkeypatch
):
    """The repository has another commit when the weights are needed, and a part may be there."""
    monkeypatch.setenv("TIEDGPT_MODEL", NAME)
    notes = []
    assert find_default(notes.append, weights=False)[0] == NAME
    assert [note.partition(" of ")[0] for note in notes] == ["downloading the vocabulary"]
    hub_server.put(NAME, other_files, OTHER_COMMIT)
    hub_server.faults[WEIGHTS] = [HALFWAY, *lasting(DROPPED)]
    refuses("continues from here", download, NAME)
    hub_server.faults.clear()
    assert_whole(download(NAME), hub_files)


def test_two_processes_that_saw_two_commits_are_not_mixed(
    weights_folder, hub_server, hub_files, other_files
):
    """Another process has begun the download after the first answer, from another commit."""
    folder = weights_folder / NAME

    def begin_in_another_process():
        folder.mkdir(parents=True)
        (folder / ".commit").write_text(OTHER_COMMIT)

    hub_server.faults[CONFIG_FILE] = [Fault(before=begin_in_another_process)]
    message = (
        f"{folder} has files of commit '{OTHER_COMMIT}', and the download is of {COMMIT}; try "
    )
    refuses(f"^{re.escape(message)}again; without", download, NAME)
    assert visible_files(folder) == {}
    hub_server.put(NAME, other_files, OTHER_COMMIT)
    assert_whole(download(NAME), other_files)


@pytest.mark.parametrize("file", ["added_tokens.json", WEIGHTS, CONFIG_FILE])
@pytest.mark.usefixtures("hub_server")
def test_files_that_a_user_put_there_are_not_mixed_with_others(weights_folder, hub_files, file):
    folder = weights_folder / NAME
    folder.mkdir(parents=True)
    (folder / file).write_bytes(hub_files.get(file, b"{}"))
    message = f"{folder} has files, but not all of a model; move it away to download the model; "
    refuses(f"^{re.escape(message)}", download, NAME)
    assert visible_files(folder).keys() == {file}


def test_of_two_downloads_at_once_the_second_waits(weights_folder, hub_server, hub_files):
    """The server does not send the weights before the second download waits.

    The downloads are threads here. A lock keeps them apart like processes.
    """
    first_asks = threading.Event()
    second_waits = threading.Event()
    notes_of_second = []

    def wait_for_second():
        first_asks.set()
        assert second_waits.wait(timeout=30)

    def note_of_second(text):
        notes_of_second.append(text)
        second_waits.set()

    hub_server.faults[WEIGHTS] = [Fault(before=wait_for_second)]
    with ThreadPoolExecutor() as threads:
        first = threads.submit(download, NAME)
        assert first_asks.wait(timeout=30)
        second = threads.submit(download, NAME, note_of_second)
        assert first.result() == second.result() == weights_folder / NAME
    assert notes_of_second == [
        f"another process downloads to {weights_folder / NAME}: waiting for it"
    ]
    assert hub_server.asked() == [0]  # the weights were sent once
    assert_whole(weights_folder / NAME, hub_files)


@pytest.mark.slow
def test_a_download_that_ctrl_c_stops_is_continued(weights_folder, hub_server, hub_files):
    """Until then, a bar shows the speed and the time left. The server pauses after each piece."""
    hub_files = {**hub_files, WEIGHTS: bytes(1 << 20)}  # it takes long enough
    hub_server.put(NAME, hub_files)
    hub_server.pause = 0.1  # seconds
    with Terminal("download", NAME) as terminal:
        bar = terminal.type("", "kB/s]")  # type nothing, and wait until the speed is shown
        shown = bar + terminal.type(CTRL_C)
        assert terminal.process.wait(timeout=20) == 130
    # The bar looks like this: model.safetensors:  12%|###    | ... [00:01<00:07, 130kB/s]
    assert re.search(r"model.safetensors: +\d+%\|.*\[\d\d:\d\d<\d\d:\d\d, +[\d.]+kB/s\]", shown)
    assert "the same command continues from here" in shown
    assert "Traceback" not in shown

    received = (weights_folder / NAME / PART).stat().st_size
    hub_server.pause = 0
    assert_whole(download(NAME), hub_files)
    assert hub_server.asked() == [0, received - 1]


# The arguments: a name, and the number of the file before whose last step the process is killed.
KILLED = """
import os, signal, sys
from tiedgpt.checkpoints.download import download
replace, left = os.replace, [int(sys.argv[2])]
def killed_replace(*arguments):
    left[0] -= 1
    if left[0] == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    replace(*arguments)
os.replace = killed_replace
download(sys.argv[1])
"""


@pytest.mark.parametrize(
    "number", [*(pytest.param(number, marks=pytest.mark.slow) for number in (1, 2, 3)), 4]
)
def test_after_a_kill_the_next_download_completes_the_model(
    weights_folder, hub_server, hub_files, number
):
    """The order is vocab.json, merges.txt, config.json, and the weights."""
    killed = subprocess.run([sys.executable, "-c", KILLED, NAME, str(number)], timeout=60)
    assert killed.returncode == -signal.SIGKILL
    there = visible_files(weights_folder / NAME)
    assert there.items() <= hub_files.items()
    assert (CONFIG_FILE in there) == (number == 4)
    assert_whole(download(NAME), hub_files)
    assert hub_server.asked() == ([0, len(hub_files[WEIGHTS]) - 1] if number == 4 else [0])


# Tokens


def tokens_sent_to(server, host: str) -> set[str | None]:
    """The tokens of all requests to this host; None for a request without a token."""
    return {request.token for request in server.requests if request.host == host}


def test_the_token_goes_to_the_hub_and_to_no_other_host(
    hub_server, hub_files, monkeypatch, tmp_path
):
    """A password for the hub in .netrc, of the home directory, is not sent in its place."""
    monkeypatch.setenv("HF_TOKEN", " !hf_secret~\n")
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login somebody password else\n")
    hub_server.faults[WEIGHTS] = [HALFWAY, Fault(403)]
    assert_whole(download(NAME), hub_files)
    assert tokens_sent_to(hub_server, "127.0.0.1") == {"Bearer !hf_secret~"}
    assert tokens_sent_to(hub_server, "localhost") == {None}


def test_the_token_stays_when_the_hub_redirects_to_itself(hub_server, hub_files, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    location = f"/{NAME}/resolve/{COMMIT}/merges.txt"
    hub_server.faults["merges.txt"] = [Fault(307, {"Location": location})]
    assert_whole(download(NAME), hub_files)
    assert tokens_sent_to(hub_server, "127.0.0.1") == {"Bearer hf_secret"}


def test_the_older_variable_of_the_token_is_read(hub_server, monkeypatch):
    """huggingface_hub reads it, too, if HF_TOKEN is not set or empty."""
    monkeypatch.setenv("HF_TOKEN", "")
    monkeypatch.setenv("HUGGING_FACE_HUB_TOKEN", "hf_older")
    tiedgpt.load_tokenizer(NAME)
    assert tokens_sent_to(hub_server, "127.0.0.1") == {"Bearer hf_older"}
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub_server.requests.clear()
    download(NAME)
    assert tokens_sent_to(hub_server, "127.0.0.1") == {"Bearer hf_secret"}


def test_a_token_that_is_refused_is_not_shown(hub_server, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub_server.faults[CONFIG_FILE] = [Fault(403)]
    message = (
        f"/{CONFIG_FILE}: 127.0.0.1 answers 403: no such repository, or a private or gated one; "
        "check the name, and HF_TOKEN; without"
    )
    error = refuses(message, download, NAME)
    for token in ("hf_sec\nret", "hf_secr\xe9t", "hf_sec ret"):
        monkeypatch.setenv("HF_TOKEN", token)
        error += refuses("^HF_TOKEN contains characters that no token has; without", download, NAME)
    assert "sec" not in error


# Which files a repository has


def tokenizer_of_bytes() -> bytes:
    """A tokenizer.json whose tokens are bytes."""
    model = bpe_model(vocab=spelled_ids([], first_id=0), merges=[])
    return json.dumps(tokenizer_json(model=model, added_tokens=[])).encode()


def test_a_folder_here_does_not_take_the_place_of_a_download(
    hub_server, hub_files, tmp_path, monkeypatch
):
    """load_model takes the folder; `tiedgpt download` was asked for the repository's files."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / NAME).mkdir(parents=True)
    assert download(NAME) != Path(NAME)
    assert_whole(download(NAME), hub_files)


def test_files_of_each_kind_are_downloaded(hub_server, hub_files, tmp_path):
    """The weights of the later cases are in several files with an index, and of PyTorch."""
    write_shards(tmp_path, random_model(CONFIG))
    names = [INDEX, "a.safetensors", "b.safetensors"]
    shards = {name: (tmp_path / name).read_bytes() for name in names}
    tensors = list(random_model(CONFIG).parameters.items())
    parts = {"a.bin": dict(tensors[:5]), "b.bin": dict(tensors[5:])}
    weight_map = {name: file for file, part in parts.items() for name in part}
    index = {PYTORCH_INDEX: json.dumps({"weight_map": weight_map}).encode()}
    pickles = index | {file: torch_file(part) for file, part in parts.items()}
    more = {
        "tokenizer_config.json": b'{"model_max_length": 9}',
        "added_tokens.json": b'{"<|endoftext|>": 256}',
        "special_tokens_map.json": b'{"eos_token": "<|endoftext|>"}',
        "chat_template.jinja": b"{{ messages }}",
        "generation_config.json": b'{"eos_token_id": 5}',
    }
    no_vocabulary = without(hub_files, "vocab.json", "merges.txt")
    cases = [
        {**hub_files, **more},
        {**no_vocabulary, "tokenizer.json": tokenizer_of_bytes()},
        no_vocabulary,
        {**without(hub_files, WEIGHTS), **shards},
        {**without(hub_files, WEIGHTS), PYTORCH: torch_file(dict(tensors))},
        {**without(hub_files, WEIGHTS), **pickles},
    ]
    for n, files in enumerate(cases):
        repository = f"case/{n}"
        hub_server.put(repository, files)
        for shard in ("b.safetensors", "b.bin", PYTORCH):
            # Broken off, then refused by the host of the link: it is tried again after both.
            hub_server.faults[shard] = [Fault(stop=9), Fault(404)]
        assert_whole(download(repository), files)
        tiedgpt.load_model(repository)


REFUSED_BEFORE_THE_WEIGHTS = {
    "bert": (CONFIG_FILE, b'{"model_type": "bert"}', "HUB/config.json: .*'bert'"),
    "no JSON": (CONFIG_FILE, b"", "HUB/config.json: not JSON: Expecting value"),
    "merges": ("merges.txt", b"junk\n", r"merges\.txt, line 1"),
    "vocabulary": ("vocab.json", b"[]", r"vocab\.json: "),
    "another vocabulary": ("tokenizer.json", b"[]", r"tokenizer\.json: "),
    "settings": ("tokenizer_config.json", b"\xff", r"tokenizer_config\.json"),
    "generation": ("generation_config.json", b'{"eos_token_id": "x"}', r"generation_config\.json"),
}


@pytest.mark.parametrize(
    ("file", "content", "message"),
    REFUSED_BEFORE_THE_WEIGHTS.values(),
    ids=REFUSED_BEFORE_THE_WEIGHTS,
)
def test_a_wrong_small_file_is_refused_before_the_weights(
    weights_folder, hub_server, hub_files, file, content, message
):
    if file == "tokenizer.json":
        hub_files = without(hub_files, *module.VOCABULARY)
    hub_server.put(NAME, {**hub_files, file: content})
    hub = f"^127.0.0.1:{hub_server.server_port}/{NAME}"
    refuses(message.replace("HUB", hub), download, NAME)
    assert hub_server.asked(WEIGHTS, "127.0.0.1") == []
    if file == CONFIG_FILE:
        assert not weights_folder.exists()


MUST_MAP = ': "weight_map" must map tensor names to .safetensors or .bin files beside it, got '


@pytest.mark.parametrize(
    ("files", "message"),
    [
        pytest.param(
            {},
            f" has none of {WEIGHTS}, {INDEX}, {PYTORCH} and {PYTORCH_INDEX}",
            id="none",
        ),
        pytest.param({INDEX: b"{}"}, f"/{INDEX}{MUST_MAP}None", id="no-map"),
        pytest.param({INDEX: b'{"weight_map": {"a": 1}}'}, f"/{INDEX}{MUST_MAP}1", id="number"),
        pytest.param(
            {INDEX: b'{"weight_map": {"a": "../x.safetensors"}}'},
            f"/{INDEX}{MUST_MAP}'../x.safetensors'",
            id="outside",
        ),
        pytest.param(
            {PYTORCH_INDEX: b'{"weight_map": {"a": "c.bin"}}'},
            f" has no c.bin, which {PYTORCH_INDEX} names (404)",
            id="absent",
        ),
    ],
)
def test_weights_that_are_not_there(weights_folder, hub_server, hub_files, files, message):
    hub_server.put(NAME, {**without(hub_files, WEIGHTS), **files})
    hub = f"127.0.0.1:{hub_server.server_port}/{NAME}"
    error = refuses(hub, download, NAME)
    assert error == hub + message + WITHOUT_A_DOWNLOAD.format(weights_folder / NAME)
    assert visible_files(weights_folder / NAME) == without(hub_files, WEIGHTS)
    assert_model_is_not_whole()


def test_an_adapter_is_named(weights_folder, hub_server):
    hub_server.put(NAME, {"adapter_config.json": b"{}", "adapter_model.safetensors": b""})
    message = (
        "tiny-gpt2 is a LoRA adapter: merge it into its base model first, with peft's "
        "merge_and_unload, and save that model; PEFT 0.21.2 merges what is added to a tied matrix "
        "into both its uses; without a download, "
    )
    refuses(message, download, NAME)
    assert not weights_folder.exists()


def assert_model_is_not_whole() -> None:
    with pytest.raises(CheckpointError):
        find_here(NAME)


# Small files first


@pytest.fixture
def pinned_gpt2(hub_server, hub_files, monkeypatch):
    """The hub has the small model a second time, as gpt2. Its commit and hashes are pinned."""
    hub_server.put(GPT2, hub_files, PINNED_COMMIT)
    hashes = {name: hashlib.sha256(content).hexdigest() for name, content in hub_files.items()}
    model = replace(MODELS["gpt2"], commit=PINNED_COMMIT, sha256=hashes[WEIGHTS])
    monkeypatch.setitem(MODELS, "gpt2", model)
    for file in module.VOCABULARY:
        monkeypatch.setitem(module.VOCABULARY_SHA256, file, hashes[file])


@pytest.mark.parametrize("name", ["124M", NAME])
def test_tokenize_and_params_fetch_the_small_files_alone(
    weights_folder, hub_server, pinned_gpt2, hub_files, run, monkeypatch, name
):
    """Their folder is no model yet. It becomes one when a command needs the weights.

    "é" has two bytes, whose ids are 127 and 102 in GPT-2. The configuration of gpt2 is known.
    """
    folder = weights_folder / model_names.check_name(name)
    code, out, err = run("tokenize", "--model", name, "é")
    assert (code, out) == (0, "   127  b'\\xc3'\n   102  b'\\xa9'\n")
    to = re.escape(str(folder))
    assert re.fullmatch(rf"tiedgpt: note: downloading the vocabulary of .* to {to}\n", err)
    assert_whole(folder, without(hub_files, WEIGHTS))
    hub_server.requests.clear()
    assert run("params", name)[0] == 0
    assert tiedgpt.load_tokenizer(name).vocab_size == 257
    assert hub_server.requests == []
    assert model_names.models_here() == {}

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert_one_error_line(run("generate", "-m", name, "a"), "HF_HUB_OFFLINE is set")
    monkeypatch.delenv("HF_HUB_OFFLINE")
    code, _, err = run("generate", "-m", name, "-n", "3", "-s", "1", "a")
    assert code == 0
    assert re.fullmatch(rf"tiedgpt: note: downloading the weights of .* to {to}\n", err)
    assert_whole(folder, hub_files)
    assert run("generate", "-m", name, "-n", "3", "-s", "1", "a")[::2] == (0, "")


def test_a_command_without_a_model_downloads_nothing(hub_server, pinned_gpt2, run):
    assert_one_error_line(run("tokenize", "a"), "gpt2 is not on this machine")
    assert hub_server.requests == []


# gpt2 and its pins


def test_the_pins_are_the_facts(shared):
    """The row of a model in FACTS.md: name, repository, commit, size and SHA-256 of its weights."""
    text = (shared / "FACTS.md").read_text()
    for name, model in MODELS.items():
        (row,) = re.findall(rf"^\| {name}, .*$", text, re.MULTILINE)
        _, repository, commit, _size, digest = row.strip("| ").split(" | ")
        assert (model.repository, model.commit, model.sha256) == (repository, commit, digest)
    for file, digest in model_names.VOCABULARY_SHA256.items():
        assert re.search(rf"{file} \d+ B {digest}", text)


@pytest.mark.parametrize(("name", "commit"), [("gpt2", COMMIT), ("124M", PINNED_COMMIT)])
@pytest.mark.usefixtures("pinned_gpt2")
def test_gpt2_comes_from_its_commit(
    weights_folder, hub_server, hub_files, name, commit, monkeypatch
):
    """A directory gpt2 in the working directory is not meant; a note says how to name it.

    A download that an older tiedgpt has begun continues from the commit of that one.
    """
    monkeypatch.chdir(weights_folder.parent)
    Path(name).mkdir()
    if commit != PINNED_COMMIT:
        hub_server.put(GPT2, hub_files, commit)
        (weights_folder / "gpt2").mkdir(parents=True)
        (weights_folder / "gpt2" / ".commit").write_text(commit)
    notes = []
    assert find_model(name, notes.append) == (name, weights_folder / "gpt2")
    assert_whole(weights_folder / "gpt2", hub_files)
    assert {re.search("/resolve/([^/]+)/", each.path)[1] for each in hub_server.requests} == {
        commit
    }
    assert notes[0] == f"{name} is the name of a model; for the directory here, write ./{name}"


@pytest.mark.parametrize("file", ["vocab.json", "merges.txt", WEIGHTS])
@pytest.mark.usefixtures("pinned_gpt2")
def test_a_file_that_differs_from_its_pin_is_refused(
    weights_folder, hub_server, hub_files, other_files, file
):
    """It is refused even though the server names the right hash of its other file."""
    hub_server.put(GPT2, {**hub_files, file: other_files[file]}, PINNED_COMMIT)
    got, expected = (hashlib.sha256(files[file]).hexdigest() for files in (other_files, hub_files))
    refuses(f"/{file}: its hash is {got}, expected {expected}; what was", download, "gpt2")
    assert file not in visible_files(weights_folder / "gpt2")


@pytest.mark.parametrize("file", ["vocab.json", "merges.txt"])
@pytest.mark.usefixtures("pinned_gpt2")
def test_a_known_model_has_its_vocabulary(hub_server, hub_files, file):
    hub_server.put(GPT2, without(hub_files, file), PINNED_COMMIT)
    refuses(rf"{GPT2} has no {file} \(404\); without", download, "gpt2")


# Names


@pytest.mark.parametrize(
    "name",
    ["gtp2", "GPT2", "../secret", "a/../b", "a/..", "", "a\\..\\b/c", "a/b/c", "a/b?x", "a/b\n"],
)
@pytest.mark.parametrize("function", [download, tiedgpt.load_model])
def test_a_text_that_is_not_a_name(weights_folder, hub_server, function, name):
    error = refuses(f"^no model {re.escape(repr(name))}: .*the names known are ", function, name)
    assert error.endswith("; did you mean gpt2?") == (name in ("gtp2", "GPT2"))
    assert hub_server.requests == []
    assert not weights_folder.exists()


@pytest.mark.parametrize("source", [Path(NAME), Path("gpt2"), "shakespeare-tied"])
def test_a_path_and_a_shipped_model_are_never_downloaded(hub_server, pinned_gpt2, source):
    """The machine of this test has no models, so the shipped model is missing."""
    refuses(f"{source} .*(is not on this machine|is missing)", tiedgpt.load_model, source)
    assert hub_server.requests == []


# The folder that is filled


def test_the_folder_of_a_download(hub_server, hub_files, tmp_path, monkeypatch):
    """Without TIEDGPT_WEIGHTS: weights/ of a checkout, if it can be written to, else the cache.

    It is not the package's own folder, which an upgrade would delete.
    """
    monkeypatch.delenv("TIEDGPT_WEIGHTS")
    checkout = tmp_path / "checkout"
    cache = tmp_path / ".cache" / "tiedgpt"
    assert model_names.weight_folders() == [checkout / "tiedgpt" / "weights", cache]
    assert model_names.folder_for_download(NAME) == cache / NAME
    monkeypatch.setenv("TIEDGPT_WEIGHTS", "")  # as if it were not set
    assert model_names.weight_folders() == [checkout / "tiedgpt" / "weights", cache]
    assert model_names.folder_for_download(NAME) == cache / NAME

    checkout.mkdir()
    (checkout / "pyproject.toml").touch()
    assert download(NAME) == checkout / "weights" / NAME
    assert download(NAME) == checkout / "weights" / NAME  # it is there already
    assert hub_server.asked() == [0]

    closed = [checkout / "weights"]
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK or path not in closed)
    assert model_names.folder_for_download(NAME) == cache / NAME
    (checkout / "weights").rename(tmp_path / "moved")
    closed[:] = [checkout]
    assert model_names.folder_for_download(NAME) == cache / NAME
    closed.append(cache.parent if cache.parent.exists() else tmp_path)
    message = (
        f"cannot write to {checkout / 'weights'} or {cache}: name a folder for weights in "
        "TIEDGPT_WEIGHTS, or give a path"
    )
    refuses(f"^{re.escape(message)}$", model_names.folder_for_download, NAME)


# Parts of files

PART_OF_FILE = {  # the faults of the first answers, and the requests that were made
    "no fault": ([], 1),
    "cut": ([Fault(stop=3)], 2),
    "fewer bytes, and said so": ([Fault(headers={"Content-Length": "3"})], 2),
    "503": ([Fault(503)], 2),
}


@pytest.mark.parametrize(("faults", "requests"), PART_OF_FILE.values(), ids=PART_OF_FILE)
def test_a_part_of_a_file(hub_server, hub_files, faults, requests):
    hub_server.faults[WEIGHTS] = list(faults)
    whole = hub_files[WEIGHTS]
    repository = module.Repository(NAME, "", lambda note: None)
    assert repository.read_range(WEIGHTS, 10, 20) == (whole[10:20], len(whole))
    assert len(hub_server.asked()) == requests
    assert {each.last for each in hub_server.requests} == {19}


def test_a_part_of_a_file_ends_with_the_file(hub_server, hub_files):
    whole = hub_files[WEIGHTS]
    size = len(whole)
    repository = module.Repository(NAME, "", lambda note: None)
    assert repository.read_range(WEIGHTS, size - 5, size + 5) == (whole[-5:], size)
    assert repository.read_range("no-such-file", 0, 5) is None
    hub_server.faults[WEIGHTS] = lasting(Fault(503))
    message = f"/{WEIGHTS}: localhost answers 503; 6 attempts in a row brought no data$"
    refuses(message, repository.read_range, WEIGHTS, 0, 5)  # another call would begin anew


def test_a_server_that_sends_whole_files_is_read_no_further_than_asked_for(hub_server, hub_files):
    """It may do for the first bytes. The others would take the bytes before them, too."""
    whole = hub_files[WEIGHTS]
    hub_server.faults[WEIGHTS] = lasting(Fault(no_range=True))
    repository = module.Repository(NAME, "", lambda note: None)
    assert repository.read_range(WEIGHTS, 0, 8) == (whole[:8], len(whole))
    message = f"{WEIGHTS}: the server does not send parts of files$"
    refuses(message, repository.read_range, WEIGHTS, 8, 16)
    hub_server.faults[WEIGHTS] = [Fault(headers={"Content-Range": "bytes 9-16/99"})]
    refuses(message, repository.read_range, WEIGHTS, 8, 16)
    size = 12_345_678_901  # bytes, of a large model
    length = {"Content-Length": str(size)}
    hub_server.faults[WEIGHTS] = [Fault(no_range=True, headers=length)]
    assert repository.read_range(WEIGHTS, 0, 8) == (whole[:8], size)
    hub_server.faults[WEIGHTS] = [Fault(headers={"Content-Range": f"bytes 8-15/{size}"})]
    assert repository.read_range(WEIGHTS, 8, 16) == (whole[8:16], size)


def test_the_rest_of_a_whole_file_is_not_fetched_for_its_first_bytes(
    hub_server, tmp_path, monkeypatch
):
    """Another file, of more than a megabyte, is fetched and verified as a whole."""
    more = bytes((1 << 20) + 1)
    hub_server.put(NAME, {WEIGHTS: bytes(MANY_BYTES), "more.safetensors": more})
    hub_server.faults[WEIGHTS] = [Fault(no_range=True)]
    repository = module.Repository(NAME, "", lambda note: None)
    assert repository.read_range(WEIGHTS, 0, 8) == (bytes(8), MANY_BYTES)
    assert hub_server.requests[-1].sent < MANY_BYTES // 2
    monkeypatch.setattr(module, "BYTES_PER_READ", 1 << 18)
    assert repository.fetch("more.safetensors", tmp_path)
    assert (tmp_path / "more.safetensors").read_bytes() == more


@pytest.mark.parametrize(
    ("endpoint", "url"),
    [
        (None, "https://huggingface.co"),
        ("", "https://huggingface.co"),
        ("http://mirror:8/", "http://mirror:8"),
    ],
)
def test_the_hub_is_hugging_faces_unless_another_is_named(monkeypatch, endpoint, url):
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    if endpoint is not None:
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
    assert module.Repository(NAME, "", lambda note: None).url == f"{url}/{NAME}"


def test_a_download_is_on_disk_before_it_has_its_name(hub_server, monkeypatch):
    """Else a loss of power would leave a file of the right name without its content."""
    done = []
    replace_file = os.replace
    monkeypatch.setattr(os, "fsync", lambda descriptor: done.append("fsync"))

    def recording_replace(source, target):
        done.append(Path(target).name)
        replace_file(source, target)

    monkeypatch.setattr(os, "replace", recording_replace)
    download(NAME)
    assert done[done.index(WEIGHTS) - 1] == "fsync"
