"""Downloads from a hub on the loopback interface that can fail in every way a network can.

After each fault the right file is there under its final name, or no file is.
"""

# ruff: noqa: F403, F405  # the server and its faults come from loopback_hub
import json
import os
import re
import shutil
import socket
import ssl
import subprocess
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from loopback_hub import *
from support.checks import refuses
from support.commands import command
from support.hub_cache import CACHE, snapshot
from support.models import SMALL, random_model
from support.terminal import CTRL_C, Terminal
from test_tensorflow import write_bundle
from test_vocabulary import tokenizer_json

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
from tiedgpt.gpt2.tokenizer import spelled_ids


@pytest.fixture
def pinned(server, files, monkeypatch):
    """The same small model as gpt2 on this hub, with pins of its files."""
    server.files |= {f"openai-community/gpt2/{file}": content for file, content in files.items()}
    weights = version(files[WEIGHTS])
    model = replace(MODELS["gpt2"], commit="f" * 40, weights=weights)
    monkeypatch.setitem(MODELS, "gpt2", model)


@pytest.fixture
def openai(server, files, monkeypatch, tmp_path):
    """A small model in OpenAI's format, with pins of its files."""
    monkeypatch.setattr(tensorflow, "HEAD_WIDTH", SMALL.head_width)
    config = replace(
        SMALL, vocab_size=257, n_inner=4 * SMALL.n_embd, bos_token_id=256, eos_token_id=256
    )
    folder = write_bundle(tmp_path / "openai", random_model(config))
    openai = {path.name: path.read_bytes() for path in folder.iterdir()}
    for file in known_models.OPENAI_124M:
        monkeypatch.setitem(known_models.OPENAI_124M, file, version(openai[file]))
    openai |= {"encoder.json": files["vocab.json"], "vocab.bpe": files["merges.txt"]}
    server.files |= {f"openai/124M/{file}": content for file, content in openai.items()}
    monkeypatch.setattr(remote_models, "OPENAI", f"http://{server.host}/openai")
    return openai


NO_VOCABULARY = {"vocab.json": None, "merges.txt": None}
BYTES_ALONE = tokenizer_json(model__vocab=spelled_ids([], 0), model__merges=[], added_tokens=[])
SHARDS = b'{"weight_map": {"wte.weight": "a-1.safetensors", "wpe.weight": "b.safetensors"}}'
LAYOUTS = {  # what is different from the usual files; None: the repository lacks the file
    "usual": {},
    "tokenizer.json": {**NO_VOCABULARY, "tokenizer.json": json.dumps(BYTES_ALONE).encode()},
    "special": {
        "tokenizer_config.json": b'{"model_max_length": 9}',
        "added_tokens.json": b'{"<pad>": 257}',
    },
    "eos": {"generation_config.json": b'{"eos_token_id": 5}'},
    "no tokenizer": NO_VOCABULARY,
    "half a tokenizer": {"merges.txt": None},
    "shards": {WEIGHTS: None, INDEX: SHARDS, "a-1.safetensors": bytes(9999), "b.safetensors": b""},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_of_a_repository(weights, server, files, notes, layout):
    """The files of one commit appear, not mixed with any that are there. Later, nothing is asked
    for."""
    expected = {
        name: content for name, content in (files | LAYOUTS[layout]).items() if content is not None
    }
    server.files = {f"{NAME}/{file}": content for file, content in expected.items()}
    (weights / NAME).mkdir(parents=True)
    (weights / NAME / "added_tokens.json").write_bytes(b"old")
    refuses(
        rf"has no config\.json; to download {NAME}, move {weights / NAME} away", hub.download, NAME
    )
    (weights / NAME / "added_tokens.json").unlink()
    assert hub.download(NAME, note=notes.append) == weights / NAME
    assert_whole(weights / NAME, expected)
    assert notes[0] == f"downloading {NAME} from {server.host}/{NAME} to {weights / NAME}"
    revisions = [re.findall("/resolve/([^/]+)/", request.path)[0] for request in server.requests]
    assert revisions[0] == "main"
    assert set(revisions[1:]) == {COMMIT}  # all files are of the commit that main was at first
    if "a tokenizer" in layout or "no " in layout:
        assert notes[1].endswith(
            "has no tokenizer: neither vocab.json and merges.txt nor tokenizer.json"
        )
    else:
        special = {"<pad>": 257} if layout == "special" else {}
        special |= {} if layout == "tokenizer.json" else {"<|endoftext|>": 256}
        assert tiedgpt.load_tokenizer(NAME).special_tokens == special
        assert len(notes) == 1
    if layout != "shards":
        before = len(server.requests)
        assert tiedgpt.load_model(NAME).config.eos_token_ids == ((5,) if layout == "eos" else ())
        assert hub.download(NAME, note=notes.append) == hub.find_or_download(NAME) == weights / NAME
        assert notes[-1] == f"{NAME} is here already, complete"
        assert len(server.requests) == before


def test_a_command_that_needs_the_tokenizer_alone(weights, server, pinned, files, monkeypatch, run):
    """It downloads no weights. find_model finds no model then, and a later download completes
    it."""
    tokenizer = {name: content for name, content in files.items() if name != WEIGHTS}
    folder = weights / "gpt2" / ".tokenizer"
    size = f"{sum(len(tokenizer[name]) for name in ('vocab.json', 'merges.txt')) / 1e6:.1f}"
    code, out, err = run("tokenize", "--model", "124M", "é")
    assert (code, out) == (0, "   127  b'\\xc3'\n   102  b'\\xa9'\n")
    assert err == (
        "tiedgpt: note: gpt2 is not on this machine\n"
        f"tiedgpt: note: downloading the tokenizer of gpt2 ({size} MB) from {server.host}"
        f"/openai-community/gpt2 to {folder}\n"
    )
    assert_whole(folder, tokenizer)
    assert {request.file for request in server.requests} == tokenizer.keys()

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert tiedgpt.load_tokenizer("gpt2").vocab_size == 257
    message = (
        "error: gpt2 is not on this machine: .*; HF_HUB_OFFLINE is set, so it is not downloaded\n$"
    )
    assert re.search(message, fail_in_one_line(run, "generate", "--model", "gpt2", "a"))
    refuses("gpt2 is not on this machine", places.find_model, "gpt2")

    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert tiedgpt.load_model("gpt2").config == CONFIG
    shutil.rmtree(folder)
    assert_whole(weights / "gpt2", files)
    assert tiedgpt.load_tokenizer("gpt2").vocab_size == 257


def test_a_plain_server_of_files(server, files):
    """It sends sizes but no hashes. A part is continued as long as the ETag stays the same.

    Its last byte is sent again. A cut connection may lose less than a block.
    """
    server.is_plain = True
    server.faults[WEIGHTS] = [Fault(stop=100 * BLOCK), Fault(-1), Fault(stop=200 * BLOCK + 7)]
    assert_whole(hub.download(NAME), files)
    assert starts(server) == [0, 100 * BLOCK - 1, 100 * BLOCK - 1, 200 * BLOCK - 2]
    assert server.served[WEIGHTS] == len(files[WEIGHTS]) + 1 + (7 + 1) + 1


def test_the_pins_are_the_facts(shared):
    text = (shared / "FACTS.md").read_text()
    for name, model in MODELS.items():
        (row,) = re.findall(rf"^\| {name}, .*$", text, re.MULTILINE)
        _, repository, commit, size, digest = row.strip("| ").split(" | ")
        weights = model.weights
        assert (model.repository, model.commit, weights.digest) == (repository, commit, digest)
        assert size.startswith(str(weights.size)) or (weights.size is None and "(" in size)
    for file, pin in (
        ("encoder.json", known_models.VOCAB),
        ("vocab.bpe", known_models.MERGES),
        *known_models.OPENAI_124M.items(),
    ):
        assert pin.digest in text
        if (path := shared / "gpt2" / "124M" / file).exists():
            assert pin.why_not(path) == ""
        else:
            assert f"data {pin.size} B {pin.digest}" in text


def test_gpt2_comes_from_its_commit_and_is_verified(
    weights, server, pinned, files, notes, monkeypatch
):
    monkeypatch.chdir(weights.parent)
    Path("gpt2").mkdir()  # is mentioned, but the name does not mean it
    assert hub.find_or_download("gpt2", notes.append) == weights / "gpt2"
    assert_whole(weights / "gpt2", files)
    assert all(
        "/openai-community/gpt2/resolve/" + "f" * 40 in request.path for request in server.requests
    )
    before = len(server.requests)
    assert (
        hub.download("124M", note=notes.append) == hub.find_or_download("gpt2") == weights / "gpt2"
    )
    assert notes[0] == "gpt2 is not on this machine (for the directory here, write ./gpt2)"
    assert re.match(
        r"downloading gpt2 \(1\.\d MB\) from \S+/openai-community/gpt2 to \S+/gpt2$", notes[1]
    )
    assert notes[2:] == ["gpt2 is here already, complete and verified"]
    for file, damage, message in (
        (
            WEIGHTS,
            flip_bit(files[WEIGHTS]),
            r"gpt2/model\.safetensors: its SHA-256 is .*, expected ",
        ),
        ("merges.txt", None, r"No such file .*gpt2/merges\.txt'"),
    ):
        path = weights / "gpt2" / file
        path.unlink() if damage is None else path.write_bytes(damage)
        refuses(f"{message}.*; to download gpt2, move .* away", hub.download, "gpt2")
        path.write_bytes(files[file])
    assert len(server.requests) == before


@pytest.mark.parametrize(
    "file",
    [WEIGHTS, "merges.txt", "hparams.json", "model.ckpt.index", tensorflow.DATA, "vocab.bpe"],
)
def test_gpt2_is_refused_unless_it_is_as_pinned(server, pinned, openai, file):
    """Even if the server describes its other file correctly."""
    source = "hub" if file in (WEIGHTS, "merges.txt") else "openai"
    folder = "openai-community/gpt2" if source == "hub" else "openai/124M"
    good = server.files[f"{folder}/{file}"]
    for content, message in (
        (flip_bit(good), "its SHA-256 is .*, expected .*; the part is deleted"),
        (good + b"!", r"expected one number of bytes, got \d+ and \d+"),
        (None, rf"no {file} in it|some of the files that OpenAI|has neither|has no tokenizer"),
    ):
        server.files |= {f"{folder}/{file}": content}
        prefix = f"127.*/{folder}" + (f"/{file}: " if content else ".*")
        if (content, file) != (None, "merges.txt"):
            fail(f"^{prefix}{message}", "gpt2", source)


DROP, BUSY, HALFWAY = Fault(-1), Fault(503), Fault(stop=HALF)
PASSING = {  # the faults of the first requests for the weights
    "cut at once": [Fault(stop=0)],
    "cut after a byte": [Fault(stop=1)],
    "cut before the last byte": [Fault(stop=-1)],
    "cut three times": [Fault(stop=100), HALFWAY, Fault(stop=HALF + 1)],
    "reset": [Fault(stop=HALF, then=reset)],
    "stalled": [Fault(stop=HALF, then=stall)],
    "500, 502, 504, 408": [Fault(500), Fault(502), Fault(504), Fault(408)],
    "429": [Fault(429, {"Retry-After": text}) for text in ("0", "Fri, 31 Dec 1999 23:59:59 GMT")],
    "an expired link to the CDN": [Fault(403)],
    "no Range": [HALFWAY, Fault(no_range=True)],
    "no Range, ever": [HALFWAY, *(Fault(no_range=True, stop=stop) for stop in (HALF + 5, 9, None))],
    "416": [HALFWAY, Fault(416)],
    "chunked": [Fault(chunked=True)],
    "all": [BUSY, Fault(stop=9), DROP, Fault(429), Fault(stop=HALF, then=reset), Fault(stop=800)],
}
AWFUL = [DROP, BUSY, Fault(stop=3), Fault(stop=1), Fault(429), Fault(chunked=True)]
SMALL_FILES = ("config.json", "vocab.json", "merges.txt")


@pytest.mark.parametrize(
    ("file", "faults"),
    [*((WEIGHTS, faults) for faults in PASSING.values()), *((file, AWFUL) for file in SMALL_FILES)],
    ids=[*PASSING, *SMALL_FILES],
)
def test_after_an_interruption_the_download_continues(
    server, files, notes, monkeypatch, file, faults
):
    if any(fault.then is stall for fault in faults):
        monkeypatch.setattr(fetching, "TIMEOUT", (5, 0.2))
    server.faults[file] = [*faults]
    assert_whole(hub.download(NAME, note=notes.append), files)
    assert server.faults[file] == []
    assert len(notes) == 1 + sum(fault.code != 0 or fault.stop is not None for fault in faults)


def test_how_long_the_client_waits_and_how_often_it_tries(
    weights, server, files, notes, monkeypatch
):
    """As long as Retry-After says; else twice as long after each attempt without a new byte."""
    slept = []
    monkeypatch.setattr(fetching.time, "sleep", slept.append)
    waits = [Fault(429, {"Retry-After": "7"}), Fault(503, {"Retry-After": "99999999"}), BUSY]
    server.faults[WEIGHTS] = waits + [Fault(stop=BLOCK * n) for n in range(1, 20)] + [BUSY] * 99
    fail(
        rf"{NAME}/{WEIGHTS}: the server answers 503; 6 attempts in a row brought no data",
        note=notes.append,
    )
    assert len(server.faults[WEIGHTS]) == 99 - 6
    assert part(weights / NAME).stat().st_size == 19 * BLOCK - 18
    assert slept == [7, fetching.MAX_DELAY, 0.008, *[0.001] * 19, 0.002, 0.004, 0.008, 0.016, 0.032]
    assert notes[-1] == f"{WEIGHTS}: the server answers 503; trying again in 0.032 s"
    server.faults.clear()
    assert_whole(hub.download(NAME), files)


def end_at(server, stop: int, name: str = NAME, source: str = "hub", file: str = WEIGHTS) -> None:
    """A download that gives up after this many bytes of the weights."""
    server.faults[file] = [Fault(stop=stop), *[DROP] * fetching.ATTEMPTS]
    fail("; the next download continues from here", name, source)


def fill_disk(server, stop: int) -> None:
    """A download to a disk that is full after this many bytes of the weights."""
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (stop, limits[1]))
    try:
        fail(r"cannot write to .*: File too large; .*TIEDGPT_WEIGHTS")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


@pytest.mark.parametrize(
    ("stop", "changed"),
    [(end_at, None), (fill_disk, None), (end_at, slice(None)), (end_at, slice(1, HALF))],
    ids=["cut", "the disk is full", "the part is complete", "the part is damaged"],
)
def test_the_next_download_continues(weights, server, files, stop, changed):
    """A complete part is only verified, a damaged one deleted. `changed`: the bytes that it then
    has."""
    stop(server, HALF)
    server.faults.clear()
    found, content = part(weights / NAME), files[WEIGHTS]
    received = found.read_bytes()
    assert len(received) > HALF - BLOCK  # a cut connection may lose less than a block
    assert content.startswith(received)
    if changed:
        found.write_bytes(received := content[changed])
    before, is_damaged = server.served[WEIGHTS], not content.startswith(received)
    if is_damaged:
        fail(rf"{WEIGHTS}: its SHA-256 is \w{{64}}, expected \w{{64}}; the part is deleted")
        assert not found.exists()
    assert_whole(hub.download(NAME), files)
    assert is_damaged or server.served[WEIGHTS] - before == len(content) - len(received) + 1


@pytest.mark.parametrize("size", [100, HALF, 2_000_000])
@pytest.mark.parametrize("during", [False, True])
def test_a_changed_file_is_not_joined_to_an_old_part(server, files, size, during, notes):
    new = os.urandom(size)

    def change(_):
        server.files[f"{NAME}/{WEIGHTS}"] = new

    if during:
        server.faults[WEIGHTS] = [Fault(stop=HALF, then=change)]
    else:
        end_at(server, HALF)
        change(server)
    assert_whole(hub.download(NAME, note=notes.append), {**files, WEIGHTS: new})
    assert f"{WEIGHTS}: it changed on the server; trying again in 0.00" in notes[-1]


def leave(folder: Path) -> Path:
    """A part and more that a killed download, or one of an older version or another layout,
    leaves."""
    (folder / ".save.x1y2.tmp" / "new").mkdir(parents=True)
    part = folder / ".model-00001-of-00002.safetensors.4567.part"
    for path in (
        part,
        folder / ".save.x1y2.tmp" / "new" / "vocab.json",
        folder / ".save.x1y2.tmp" / locks.LOCK,
    ):
        path.write_bytes(b"left")
    return part


@pytest.mark.parametrize("source", ["hub", "openai"])
def test_what_a_killed_download_leaves_is_removed_by_the_next(weights, server, request, source):
    """Only a part of the weights is continued. While another process has the lock, nothing is
    removed."""
    files = request.getfixturevalue("openai" if source == "openai" else "files")
    name, big = ("gpt2", tensorflow.DATA) if source == "openai" else (NAME, WEIGHTS)
    folder = places.folders_of(name, source)[0]
    leave(folder)
    end_at(server, BLOCK, name, source, big)
    hub.download(name, source)
    assert_whole(folder, files)
    assert BLOCK - 1 in starts(server, big)

    left = leave(folder)  # as a kill between the last rename and the removal of parts does
    with locks.locked_file(folder / locks.LOCK):
        hub.download(name, source)
        assert left.exists()  # staged files have a lock of their own
    hub.download(name, source)
    assert_whole(folder, files)


SIZES, DELETED = (
    r"expected one number of bytes, got \d+ and \d+",
    ".*, expected .*; the part is deleted",
)
NO_BYTE = "6 attempts in a row brought no data"
FLIPPED, LONGER = Fault(change=flip_bit), Fault(change=lambda content: content + b"!")
MUCH_LONGER = Fault(change=lambda content: content + b"!" * 9000, chunked=True)
UNKNOWN = Fault(chunked=True, headers={"ETag": None, "X-Repo-Commit": None})
HUGE = Fault(chunked=True, headers={"X-Linked-Size": "9" * 17})
CIRCLE = Fault(302, {"Location": "{path}"})
ELSEWHERE = Fault(
    302, {"Location": "{elsewhere}{path}", "ETag": '"{hash}"', "X-Repo-Commit": COMMIT}
)
LASTING = {  # the file, the fault of each request for it or the faults of the first ones, the error
    "redirects in a circle": (
        WEIGHTS,
        CIRCLE,
        f"{WEIGHTS} cannot be reached: 'Exceeded 30 redirects",
    ),
    "wrong bytes": (WEIGHTS, FLIPPED, f"its SHA-256 is {DELETED}"),
    "wrong bytes in a small file": ("vocab.json", FLIPPED, f"its git's SHA-1 is {DELETED}"),
    "wrong bytes elsewhere": (
        "vocab.json",
        [ELSEWHERE, FLIPPED],
        rf"json: its git's SHA-1 is {DELETED}",
    ),
    "short": (WEIGHTS, Fault(change=lambda content: content[:-1]), SIZES),
    "long": (WEIGHTS, LONGER, SIZES),
    "longer than it says": (WEIGHTS, MUCH_LONGER, r"it has \d+ bytes, expected \d+"),
    "neither size nor hash": ("merges.txt", UNKNOWN, "expected one number of bytes, got none"),
    "no end": ("merges.txt", Fault(chunked=True, endless=True), f"its git's SHA-1 is {DELETED}"),
    "too big": ("merges.txt", HUGE, r"needs 100,000,000,000\.0 MB, but .* free"),
    "401": (
        "config.json",
        Fault(401),
        r"the server answers 401: .* check the name, or set HF_TOKEN$",
    ),
    "403": (
        "config.json",
        Fault(403),
        r"the server answers 403: .* check the name, or set HF_TOKEN$",
    ),
    "410": (WEIGHTS, Fault(410), "the server answers 410"),
    "no config": (
        "config.json",
        Fault(404),
        r"no such repository, or no config\.json in it \(404\)",
    ),
    "503 without end": (WEIGHTS, BUSY, f"the server answers 503; {NO_BYTE}$"),
    "cuts without end": (
        WEIGHTS,
        HALFWAY,
        f"the connection was cut; {NO_BYTE}; the next download cont",
    ),
    "stalled without end": (WEIGHTS, Fault(stop=HALF, then=stall), f"no answer in time; {NO_BYTE}"),
    **{
        f"another range: {lie}": (
            WEIGHTS,
            [HALFWAY, Fault(headers={"Content-Range": lie})],
            message,
        )
        for lie, message in (
            (
                "bytes 0-{size}/{size}",
                rf"asked for bytes {HALF - 1}-, the server sends 'bytes 0-\d+/\d+'",
            ),
            (
                f"bytes {HALF}-{{size}}/{{size}}",
                f"asked for bytes {HALF - 1}-, .* sends 'bytes {HALF}-",
            ),
            ("{size}/{size}", rf"asked for bytes {HALF - 1}-, the server sends '\d+/"),
            (f"bytes {HALF - 1}-99/9", r"expected one number of bytes, got 9 and \d+"),
            (None, f"asked for bytes {HALF - 1}-, the server sends ''"),
        )
    },
}


@pytest.mark.parametrize("kind", LASTING)
def test_a_lasting_fault_is_an_error_and_publishes_nothing(server, files, monkeypatch, kind):
    file, fault, message = LASTING[kind]
    monkeypatch.setattr(fetching, "TIMEOUT", (5, 0.1))
    server.faults[file] = fault if isinstance(fault, list) else [fault] * 99
    assert fail(message).startswith(f"{server.host}/{NAME}")
    monkeypatch.setattr(fetching, "TIMEOUT", (5, 5))
    server.faults.clear()
    assert_whole(hub.download(NAME), files)


NO_URLS = [
    "http://[::1/x",
    "//[x",
    "http://u:p@[/",
    "http://a..b/x",
    f"http://{'a' * 300}.example/x",
]
NO_URLS += ["http://127.0.0.1:99999/x", "ftp://127.0.0.1/x"]
MORE = [
    "http://\udce9/x",
    "http://127.0.0.1/\udce9",
    "127.0.0.1",
    "http://a b",
    "http://:80",
    "http:///x",
]
PLACES = [("HF_ENDPOINT", url) for url in (*NO_URLS, *MORE, "ftp://u:p@127.0.0.1/x")]
PLACES += [
    (file, url) for file in ("config.json", WEIGHTS) for url in (*NO_URLS, "http://\xe9/x", "\xe9")
]


@pytest.mark.parametrize(("place", "url"), PLACES)
def test_an_endpoint_or_a_redirect_that_is_no_url(weights, server, monkeypatch, run, place, url):
    if place == "HF_ENDPOINT":
        monkeypatch.setenv("HF_ENDPOINT", url)
    else:
        monkeypatch.setenv("NO_PROXY", "*")
        server.faults[place] = [Fault(302, {"Location": url})]
    error = fail_in_one_line(run, "download", NAME)
    assert " cannot be reached: " in error
    assert "u:p" not in error
    assert visible(weights) == set()


def test_a_server_that_cannot_be_reached_is_an_error_at_once(weights, server, monkeypatch, notes):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        free, invalid = f"http://127.0.0.1:{listener.getsockname()[1]}", "http://hub.invalid"
    for endpoint, proxy, message in (
        (free, free, r"^127\.0\.0\.1:\d+/\S+/config\.json cannot be reached: Connection refused$"),
        (f"https://{server.host}", free, r"config\.json cannot be reached: .*wrong version number"),
        (invalid, free, r"hub\.invalid/.* cannot be reached: Connection refused by the proxy"),
        (
            invalid,
            "http://[x",
            r"hub\.invalid/.* cannot be reached: HF_ENDPOINT, a redirect or the proxy is",
        ),
    ):
        monkeypatch.setenv("HF_ENDPOINT", endpoint)
        monkeypatch.setenv("HTTP_PROXY", proxy)
        fail(message, note=notes.append)
    assert notes == []
    assert not weights.exists()


def test_a_server_that_stops_during_the_download_is_waited_for(server, notes):
    """Once the server was reached, a refused connection is an interruption."""
    server.faults[WEIGHTS] = [Fault(stop=HALF, then=lambda _: server.socket.close())]
    fail(f"{WEIGHTS}: Connection refused; 6 attempts in a row brought no data", note=notes.append)
    assert len(notes) == 1 + 6


@pytest.mark.skipif(not shutil.which("openssl"), reason="makes a certificate with openssl")
def test_certificates(server, files, monkeypatch, tmp_path):
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    key = [
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:P-256",
        "-nodes",
        "-keyout",
        tmp_path / "key",
    ]
    command = ["openssl", "req", "-x509", *key, "-out", tmp_path / "certificate", *subject]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    server.socket = context.wrap_socket(server.socket, server_side=True)
    server.is_plain = True
    monkeypatch.setenv("HF_ENDPOINT", f"https://{server.host}")
    fail(r"certificate verify failed: self.signed certificate; .*REQUESTS_CA_BUNDLE can name")
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "missing"))
    fail(
        "be reached: .* invalid path: .*/missing'; the variable REQUESTS_CA_BUNDLE can name a file"
    )
    monkeypatch.setenv("REQUESTS_CA_BUNDLE", str(tmp_path / "certificate"))
    assert_whole(hub.download(NAME), files)


SMALL_JUNK = [  # what is different from the usual files
    ({"merges.txt": b"junk\n"}, r"merges\.txt, line 1: expected two tokens, got 'junk'"),
    ({"vocab.json": b"[]"}, r"vocab\.json: expected a JSON object"),
    ({"added_tokens.json": b"{"}, r"added_tokens\.json: not JSON"),
    ({"tokenizer_config.json": b"\xff"}, r"tokenizer_config\.json, line 1: not UTF-8"),
    (
        {"generation_config.json": b'{"eos_token_id": "x"}'},
        r"generation_config\.json: .*eos_token_id",
    ),
    ({"tokenizer.json": b"{}", "merges.txt": None}, r"tokenizer\.json: "),
]
PICKLE = {WEIGHTS: None, "pytorch_model.bin": b""}
OUTSIDE, ABSENT = (b'{"weight_map": {"a": "%s.safetensors"}}' % name for name in (b"../x", b"c"))
REFUSED = [
    ({"config.json": b'{"model_type": "bert"}'}, "model_type is 'bert', which is another model"),
    ({"config.json": b""}, r"config\.json: not JSON"),
    *SMALL_JUNK,
    (PICKLE, r"has neither model\.safetensors nor .* \(pytorch_model\.bin is a"),
    ({WEIGHTS: None, INDEX: b"{}"}, '"weight_map" must map tensor names to files'),
    ({WEIGHTS: None, INDEX: OUTSIDE}, "'../x.safetensors' names no .safetensors file beside it"),
    (
        {WEIGHTS: None, INDEX: ABSENT},
        r"lacks some of the files that model\.safetensors\.index\.json names",
    ),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_what_is_no_gpt2_is_refused_before_its_weights_are_asked_for(
    weights, server, files, change, message
):
    """Another model by its configuration alone. No index names files elsewhere; no pickle is
    read."""
    found = {name: content for name, content in (files | change).items() if content is not None}
    server.files = {f"{NAME}/{file}": content for file, content in found.items()}
    for source in ("hub", *(["tokenizer"] if (change, message) in SMALL_JUNK else [])):
        fail(f"^{server.host}/{NAME}.*{message}", source=source)
    asked = {request.file for request in server.requests}
    assert asked == {"config.json"} or "config.json" not in change
    assert asked & {WEIGHTS, "pytorch_model.bin"} == change.keys() & {WEIGHTS}
    assert not weights.exists()
    server.files = {f"{NAME}/{file}": content for file, content in files.items()}
    assert_whole(hub.download(NAME), files)
    (weights / NAME / "merges.txt").write_bytes(b"junk\n")  # such a folder is not complete either
    refuses(rf"^{weights}.*; to download {NAME}, move .* away", hub.download, NAME)


def test_a_vocabulary_that_a_repository_lacks(weights, server, files):
    server.files = {f"{NAME}/config.json": files["config.json"]}
    fail(
        "has no tokenizer: neither vocab.json and merges.txt nor tokenizer.json", source="tokenizer"
    )


BAD_NAMES = ["gtp2", "GPT2", "../secret", "a/../b", "a/..", "missing/dir/deep", "", "/etc/passwd"]


@pytest.mark.parametrize("name", [*BAD_NAMES, "a\\..\\b/c", "a/b/c", "a/b?x", "a/b\n"])
def test_a_text_that_is_no_name_is_not_asked_for(weights, server, name):
    guess = r"; did you mean gpt2\?" if name in ("gtp2", "GPT2") else ""
    message = f"^no model {re.escape(repr(name))}: .*the names known are gpt2, .*{guess}$"
    for function in (hub.download, *([] if name == "/etc/passwd" else [tiedgpt.load_model])):
        refuses(message, function, name)
    assert server.requests == []
    assert not weights.exists()


def test_what_is_never_downloaded(server, pinned, run):
    """A Path, a model that ships with tiedgpt, and gpt2 if nobody named it."""
    for path in (Path(NAME), Path("gpt2")):
        refuses(f"{path} is not on this machine", tiedgpt.load_model, path)
    for function in (hub.download, hub.find_or_download):
        refuses("shakespeare-tied comes with tiedgpt but is missing", function, "shakespeare-tied")
    assert "gpt2 is not on this machine" in fail_in_one_line(run, "tokenize", "a")
    assert server.requests == []


def test_the_token_goes_to_the_hub_and_to_no_other_host(
    weights, server, files, monkeypatch, tmp_path
):
    """127.0.0.1 redirects to localhost, another name, for the weights. ~/.netrc is not used."""
    monkeypatch.setenv("HF_TOKEN", " hf_secret\n")
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login somebody password else\n")
    assert_whole(hub.download(NAME), files)
    (tmp_path / ".netrc").unlink()
    shutil.rmtree(weights)
    server.faults["config.json"] = [
        Fault(307, {"Location": f"/{NAME}/resolve/{COMMIT}/config.json"})
    ]
    assert_whole(hub.download(NAME), files)
    sent = {(urlsplit(f"//{request.host}").hostname, request.token) for request in server.requests}
    assert sent == {("127.0.0.1", "Bearer hf_secret"), ("localhost", None)}


def test_a_token_that_is_refused_or_is_none_is_not_shown(server, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    server.faults["config.json"] = [Fault(401)]
    assert "secret" not in fail(r"the server answers 401: .* check the name, and HF_TOKEN$")
    monkeypatch.setenv("HF_TOKEN", "hf_sec\nret")
    fail("^HF_TOKEN contains characters that no token has$")


@pytest.mark.parametrize("value", ["1", "true", "ON", "yes"])
def test_offline_nothing_is_asked_for(weights, server, monkeypatch, value):
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    fail(f"^{NAME} cannot be downloaded: HF_HUB_OFFLINE is set$")
    fail("gpt2 cannot be downloaded: HF_HUB_OFFLINE is set", "gpt2", "openai")
    message = rf"{NAME} is not on this machine: looked for .*; HF_HUB_OFFLINE is set, so it is not downloaded"
    refuses(message, tiedgpt.load_model, NAME)
    assert server.requests == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    hub.download(NAME)
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    assert hub.download(NAME) == hub.find_or_download(NAME) == weights / NAME


CACHED = [(NAME, NAME, True), ("gpt2", "openai-community/gpt2", True), ("124M", "gpt2", True)]
CACHED += [(NAME, NAME, {file: None}) for file in ("config.json", WEIGHTS)]
CACHED += [(NAME, NAME, {WEIGHTS: content}) for content in (b"", b"dangling")]
CACHED += [(NAME, NAME, {WEIGHTS: None, INDEX: SHARDS})]


@pytest.mark.parametrize(("name", "cached", "change"), CACHED)
def test_a_model_in_the_hugging_face_cache_is_used_if_it_is_complete(
    weights, tmp_path, server, pinned, files, name, cached, change
):
    is_complete = change is True
    found = files if is_complete else files | change
    folder = snapshot(tmp_path / CACHE, cached)
    folder.mkdir(parents=True)
    for file, content in found.items():
        if content is not None:
            (folder / file).write_bytes(content)
    if found[WEIGHTS] == b"dangling":  # a link to a file that is not downloaded yet
        (folder / WEIGHTS).unlink()
        (folder / WEIGHTS).symlink_to("missing")
    if is_complete:
        left = leave(weights / places.check_name(name))  # by a download that was stopped
        assert hub.download(name) == hub.find_or_download(name) == folder
        assert server.requests == []
        assert not left.exists()
    else:
        assert hub.download(name) == hub.find_or_download(name) == weights / NAME
        assert_whole(weights / NAME, files)


def test_the_first_folder_that_is_named_or_can_be_written(tmp_path, server, monkeypatch):
    monkeypatch.delenv("TIEDGPT_WEIGHTS")
    checkout, cache = tmp_path / "checkout", tmp_path / ".cache" / "tiedgpt"
    # tiedgpt is installed: nothing is downloaded into the package
    assert places.weight_folders() == [checkout / "tiedgpt" / "weights", cache]
    assert hub.download(NAME) == cache / NAME
    shutil.rmtree(cache)
    # tiedgpt is a checkout
    checkout.mkdir()
    (checkout / "pyproject.toml").touch()
    assert hub.download(NAME) == checkout / "weights" / NAME
    shutil.rmtree(checkout / "weights")
    # the checkout cannot be written; then nothing can
    denied = {checkout}
    monkeypatch.setattr(os, "access", lambda path, mode: path not in denied)
    assert hub.download(NAME) == cache / NAME
    shutil.rmtree(cache)
    denied.add(tmp_path / ".cache")
    refuses(rf"cannot write to {checkout}/weights or {cache}: name a folder", hub.download, NAME)


def test_a_disk_that_is_too_small_is_an_error_before_the_download(weights, server, monkeypatch):
    usage = shutil.disk_usage(weights.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=900_000))
    fail(rf"{NAME}/{WEIGHTS} needs 1\.1 MB, but {weights / NAME} has 0\.9 MB free; make room")
    assert not weights.exists()


def test_openais_files(weights, server, openai, notes, monkeypatch, request):
    """They have a folder for themselves; if the hub's files are here too, the name means those."""
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    server.faults[tensorflow.DATA] = [Fault(stop=5 * BLOCK), BUSY]
    assert hub.download("124M", "openai") == weights / "gpt2-openai"
    assert_whole(weights / "gpt2-openai", openai)
    assert {request.token for request in server.requests} == {None}
    before = len(server.requests)
    assert (
        hub.download("gpt2", "openai", notes.append)
        == places.find_model("gpt2")
        == weights / "gpt2-openai"
    )
    assert notes == ["gpt2 is here already, complete and verified"]
    assert (
        tiedgpt.load_model("gpt2").config.vocab_size
        == tiedgpt.load_tokenizer("gpt2").vocab_size
        == 257
    )
    assert len(server.requests) == before
    request.getfixturevalue("pinned")
    assert hub.download("gpt2") == places.find_model("gpt2") == weights / "gpt2"


def test_openais_larger_models_are_known_by_their_size(server, openai):
    server.files |= {f"openai/355M/{file}": content for file, content in openai.items()}
    fail(
        r"00000-of-00001: expected one number of bytes, got \d+ and 1419292672",
        "gpt2-medium",
        "openai",
    )
    for name in ("distilgpt2", NAME):
        fail(f"OpenAI released gpt2, .*, not {name}; download it from the hub", name, "openai")


def test_the_command(weights, server, files, run):
    """It prints the directory alone; an error is one line. Other commands download the model they
    name."""
    for note in ("downloading", "is here already, complete"):
        code, out, err = run("download", NAME)
        assert (code, out) == (0, f"{weights / NAME}\n")
        assert re.fullmatch(f"tiedgpt: note: [^\n]*{note}[^\n]*\n", err)
    shutil.rmtree(weights)
    assert "no such repository" in fail_in_one_line(run, "download", "some/typo")
    assert not weights.exists()
    missing = f"tiedgpt: note: {NAME} is not on this machine\n"
    for notes in (missing + f"tiedgpt: note: downloading {NAME} from [^\n]*\n", ""):
        code, out, err = run("generate", "--model", NAME, "-n", "3", "a")
        assert (code, bool(out)) == (0, True)
        assert re.fullmatch(notes, err)


def test_two_at_once(weights, server, files):
    """One downloads, the other says that it waits. (writers.py kills one.)"""
    server.pause = 0.2
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(command("download", NAME), **pipes) as one:
        assert f"downloading {NAME}" in one.stderr.readline()
        with subprocess.Popen(command("download", NAME), **pipes) as other:
            assert (
                f"another process is downloading {NAME}: waiting for it" in other.stderr.readline()
            )
            server.pause = 0
            results = [process.communicate(timeout=30) for process in (one, other)]
    assert [out for out, _ in results] == [f"{weights / NAME}\n"] * 2
    assert results[1][1] == f"tiedgpt: note: the other process has completed {NAME}\n"
    assert server.served[WEIGHTS] == len(files[WEIGHTS])
    assert_whole(weights / NAME, files)


def test_ctrl_c_on_a_terminal_and_again(weights, server, files):
    """The bar shows speed and time left. Ctrl-C leaves the part, from which the next download
    continues."""
    server.pause = 0.1
    with Terminal("download", NAME) as terminal:
        shown = terminal.type("", "kB/s]") + terminal.type(CTRL_C)
        assert terminal.process.wait(timeout=20) == 130
    assert re.search(r"model.safetensors: +\d+%\|.*\[\d\d:\d\d<\d\d:\d\d, +[\d.]+kB/s\]", shown)
    assert "tiedgpt: note: stopped; the same command continues from here" in shown
    assert "Traceback" not in shown
    assert visible(weights) == set()
    server.pause, received = 0, part(weights / NAME).stat().st_size
    assert received > 0
    assert_whole(hub.download(NAME), files)
    assert starts(server)[-1] == received - 1
