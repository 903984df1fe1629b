"""Downloads, against a hub on loopback that can do everything wrong that a network can.

After each fault there is either the right file under its final name, or nothing under it.
"""

import errno
import fcntl
import hashlib
import json
import os
import pty
import random
import re
import select
import shutil
import signal
import socket
import ssl
import struct
import subprocess
import sys
import termios
import threading
import time
from collections import defaultdict
from dataclasses import dataclass, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from conftest import SMALL, random_model
from test_tensorflow import bundle, split_table, write

import tiedgpt
from tiedgpt import Tokenizer, cli
from tiedgpt.checkpoints import fetching, hub, names, tensorflow
from tiedgpt.checkpoints.fetching import Version
from tiedgpt.checkpoints.vocabulary import vocabulary_files
from tiedgpt.errors import ArgumentError, CheckpointError

NAME = "someone/tiny-gpt2"
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CONFIG = replace(
    SMALL, vocab_size=257, n_embd=60, n_inner=240, n_layer=6, eos_token_id=None, bos_token_id=None
)
WEIGHTS = "model.safetensors"
CHUNK = 1 << 12


# The hub


@dataclass
class Request:
    host: str
    path: str
    start: int  # of the range that was asked for, else 0
    token: str | None

    @property
    def file(self) -> str:
        return self.path.rpartition("/")[2]


class LoopbackHub(ThreadingHTTPServer):
    """huggingface.co in small: weights are sent on to another host name, and both can go wrong on request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}  # "owner/name/file" -> content
        self.faults: dict[str, list] = defaultdict(list)  # file -> for each request to come, what to do to it
        self.requests: list[Request] = []
        self.served: dict[str, int] = defaultdict(int)  # file -> bytes of its content that were sent
        self.commit = COMMIT
        self.is_plain = False  # like any server of files
        self.pause = 0.0  # seconds after every piece
        self.closing = threading.Event()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address) -> None:
        """A client that hangs up, or is killed, is nothing to report."""


class Handler(BaseHTTPRequestHandler):
    server: LoopbackHub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_) -> None:
        pass

    def do_GET(self) -> None:
        self.close_connection = True
        requested = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        start = int(requested[1]) if requested else 0
        request = Request(self.headers["Host"], self.path, start, self.headers.get("Authorization"))
        self.server.requests.append(request)
        name = self.path.removeprefix("/cdn").removeprefix("/").partition("/resolve/")[0]
        content = self.server.files.get(f"{name}/{request.file}")
        if self.path.startswith("/openai/"):
            content = self.server.files.get(self.path.removeprefix("/"))
        if content is None:
            return self.answer(404)
        headers = {"X-Repo-Commit": self.server.commit} if "/resolve/" in self.path else {}
        if self.server.is_plain:
            headers = {"ETag": '"5f-abc"'}
        elif request.file.endswith(".safetensors") and not self.path.startswith("/cdn"):
            digest = hashlib.sha256(content).hexdigest()
            headers |= {"X-Linked-Size": str(len(content)), "X-Linked-Etag": f'"{digest}"', "ETag": '"wrong"'}
            location = f"http://localhost:{self.server.server_port}/cdn{self.path}"
            return self.answer(302, **headers, Location=location)
        elif self.path.startswith("/cdn"):
            headers = {"ETag": f'"{"0" * 40}"'}  # the CDN's own word for it, which is no git hash
        else:
            blob = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
            headers["ETag"] = f'W/"{blob}"'
        faults = self.server.faults[request.file]
        fault = faults.pop(0) if faults else None
        if fault is not None and fault(self, request, content, headers):
            return None
        self.send(request, content, headers)

    def answer(self, code: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for header, value in {"Content-Length": str(len(body)), "Connection": "close", **headers}.items():
            if value is not None:
                self.send_header(header.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def send(self, request: Request, content: bytes, headers: dict, stop: int | None = None) -> None:
        """The content from request.start on, but nothing after byte `stop`, whatever the headers promise."""
        if request.start >= len(content) > 0:
            return self.answer(416, **headers, **{"Content-Range": f"bytes */{len(content)}"})
        if request.start:
            last = f"bytes {request.start}-{len(content) - 1}/{len(content)}"
            headers = {"Content-Range": last, **headers}
        self.send_response(206 if request.start else 200)
        length = {"Content-Length": str(len(content) - request.start), "Connection": "close"}
        for header, value in {**length, **headers}.items():
            if value is not None:
                self.send_header(header, value)
        self.end_headers()
        self.wfile.flush()
        rest = memoryview(content)[request.start : stop]
        for at in range(0, len(rest), 1 << 14):
            piece = rest[at : at + (1 << 14)]
            self.wfile.write(piece)
            self.server.served[request.file] += len(piece)
            if self.server.pause:
                self.server.closing.wait(self.server.pause)
        return None


# Faults: functions of a handler, a request, its content and its headers. True: nothing else is to be sent.


def cut(stop: int):
    """Hang up after this many bytes of the file."""
    return lambda handler, request, content, headers: not handler.send(request, content, headers, stop)


def reset(stop: int):
    """The same, as a router does that has lost its memory."""

    def fault(handler, request, content, headers):
        handler.send(request, content, headers, stop)
        handler.wfile.flush()
        time.sleep(0.05)  # what was sent is to arrive
        handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        handler.connection.close()
        return True

    return fault


def drop(handler, request, content, headers):
    """Hang up without a word."""
    return True


def stall(stop: int):
    """Send this much and then nothing more, without hanging up."""

    def fault(handler, request, content, headers):
        handler.send(request, content, headers, stop)
        handler.wfile.flush()
        handler.server.closing.wait(5)
        return True

    return fault


def status(code: int, **headers: str):
    return lambda handler, *_: not handler.answer(code, b"sorry", **headers)


def no_range(handler, request, content, headers):
    """All of it, whatever was asked for."""
    request.start = 0


def no_range_and_cut(stop: int):
    def fault(handler, request, content, headers):
        request.start = 0
        return cut(stop)(handler, request, content, headers)

    return fault


def header(**changes):
    """Lie in a header, or leave it out."""
    return lambda handler, request, content, headers: headers.update(
        {name.replace("_", "-"): value for name, value in changes.items()}
    )


def damage(handler, request, content, headers):
    """One wrong bit."""
    content = bytearray(content)
    content[len(content) // 2] ^= 1
    return not handler.send(request, bytes(content), headers)


def shorter(handler, request, content, headers):
    return not handler.send(request, content[:-1], headers)


def longer(handler, request, content, headers):
    return not handler.send(request, content + b"!", headers)


def chunked(extra: bytes):
    """No Content-Length, and more than there should be."""

    def fault(handler, request, content, headers):
        handler.answer(200, **headers, **{"Content-Length": None, "Transfer-Encoding": "chunked"})
        for piece in (content[:1000], content[1000:] + extra):
            handler.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece))
        handler.wfile.write(b"0\r\n\r\n")
        return True

    return fault


def unknown(handler, request, content, headers):
    """Chunks without end in sight, and not a word about them."""
    return chunked(b"")(handler, request, content, {})


def bottomless(handler, request, content, headers):
    """Chunks without end, of a file whose hash is said."""
    handler.answer(200, **headers, **{"Content-Length": None, "Transfer-Encoding": "chunked"})
    while True:
        handler.wfile.write(b"10000\r\n%s\r\n" % bytes(1 << 16))


def endless(handler, request, content, headers):
    return chunked(b"")(handler, request, content, {**headers, "X-Linked-Size": "9" * 17})


# What tests start from


@pytest.fixture(autouse=True)
def only_loopback(monkeypatch):
    """No test here reaches for the real network, nor does a process that one starts (a dead proxy)."""
    connect, resolve = socket.socket.connect, socket.getaddrinfo

    def guarded_connect(self, address):
        if self.family != socket.AF_UNIX and address[0] not in ("127.0.0.1", "::1"):
            pytest.fail(f"connects to {address}")
        return connect(self, address)

    def guarded_resolve(host, *arguments, **options):
        if host not in ("127.0.0.1", "localhost", None):
            pytest.fail(f"asks for the address of {host}")
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(socket.socket, "connect", guarded_connect)
    monkeypatch.setattr(socket, "getaddrinfo", guarded_resolve)
    for variable in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv(variable.upper(), "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")


@pytest.fixture(autouse=True)
def weights(tmp_path, monkeypatch):
    """An empty folder for weights, on a machine that has no other model; waiting is short."""
    for variable in ("HF_TOKEN", "HF_HUB_OFFLINE", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME", "NETRC"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TIEDGPT_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setattr(
        names, "__file__", str(tmp_path / "checkout" / "tiedgpt" / "checkpoints" / "names.py")
    )
    monkeypatch.setattr(os, "fsync", lambda fd: None)  # a disk would take most of the time
    monkeypatch.setattr(fetching, "DELAY", 0.001)
    monkeypatch.setattr(fetching, "TIMEOUT", (5, 5))
    monkeypatch.setattr(fetching, "CHUNK", CHUNK)
    return tmp_path / "weights"


@pytest.fixture(scope="session")
def files(tmp_path_factory) -> dict[str, bytes]:
    """A model's files, small but for its weights of about 1 MB."""
    path = tmp_path_factory.mktemp("hub") / "tiny"
    tiedgpt.save_model(random_model(CONFIG), Tokenizer([]), path)
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.fixture
def server(files, monkeypatch):
    with LoopbackHub() as server:
        server.files = {f"{NAME}/{file}": content for file, content in files.items()}
        monkeypatch.setenv("HF_ENDPOINT", server.endpoint)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.closing.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def notes():
    return []


@pytest.fixture
def pinned(server, files, monkeypatch):
    """As gpt2 on this hub: the same small model, with its own pins."""
    server.files |= {f"openai-community/gpt2/{file}": content for file, content in files.items()}
    monkeypatch.setitem(hub.PINNED, "gpt2", ("f" * 40, version(files[WEIGHTS])))
    monkeypatch.setattr(hub, "VOCAB", version(files["vocab.json"]))
    monkeypatch.setattr(hub, "MERGES", version(files["merges.txt"]))


def version(content: bytes) -> Version:
    return Version(len(content), hashlib.sha256(content).hexdigest())


def assert_whole(folder: Path, files: dict[str, bytes]) -> None:
    """Exactly these files with exactly these contents, and no leftovers."""
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == files


def visible(folder: Path) -> set[str]:
    """The files that have their final names."""
    return {path.name for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")}


def part(folder: Path, file: str = WEIGHTS) -> Path:
    (found,) = folder.glob(f".{file}.*.part")
    return found


# All goes well


def test_a_repository(weights, server, files, notes):
    folder = hub.download(NAME, note=notes.append)
    assert folder == weights / NAME
    assert_whole(folder, files)
    assert notes == [f"downloading {NAME} from 127.0.0.1:{server.server_port}/{NAME} to {folder}"]
    assert tiedgpt.load_model(NAME).config == CONFIG
    assert tiedgpt.load_tokenizer(NAME).encode("é") == Tokenizer([]).encode("é")


def test_all_files_are_of_the_commit_that_main_was_at_first(server, files):
    hub.download(NAME)
    revisions = [re.findall("/resolve/([^/]+)/", request.path)[0] for request in server.requests]
    assert revisions[0] == "main"
    assert set(revisions[1:]) == {COMMIT}


def test_what_is_here_is_not_fetched_again(weights, server, notes):
    hub.download(NAME)
    before = len(server.requests)
    assert hub.download(NAME, note=notes.append) == hub.find_or_download(NAME) == weights / NAME
    assert len(server.requests) == before
    assert notes[-1] == f"{NAME} is here already, complete"


def test_loading_a_name_fetches_it(server):
    assert tiedgpt.load_model(NAME).config == CONFIG
    assert tiedgpt.load_tokenizer(NAME).vocab_size == 257


def test_shards(weights, server, files):
    """Two files and an index instead of one file; the tokenizer as tokenizer.json."""
    prefix, weight_map = f"{NAME}/", {"wte.weight": "a-1.safetensors", "wpe.weight": "b.safetensors"}
    expected = {
        "config.json": files["config.json"],
        "model.safetensors.index.json": json.dumps({"weight_map": weight_map}).encode(),
        "a-1.safetensors": os.urandom(1000),
        "b.safetensors": b"",
        "tokenizer.json": b"{}",
    }
    server.files = {prefix + file: content for file, content in expected.items()}
    assert_whole(hub.download(NAME), expected)


def test_the_tokenizers_other_files_are_fetched_where_there_are_some(server, files):
    more = {"tokenizer_config.json": b'{"add_prefix_space": false}', "added_tokens.json": b'{"<pad>": 257}'}
    server.files |= {f"{NAME}/{file}": content for file, content in more.items()}
    assert_whole(hub.download(NAME), files | more)
    assert tiedgpt.load_tokenizer(NAME).special_tokens == {"<|endoftext|>": 256, "<pad>": 257}


def test_what_ends_a_text_is_fetched_where_a_file_of_its_own_says_it(server, files):
    server.files[f"{NAME}/generation_config.json"] = b'{"eos_token_id": 5}'
    assert_whole(hub.download(NAME), {**files, "generation_config.json": b'{"eos_token_id": 5}'})
    assert tiedgpt.load_model(NAME).config.eos_token_ids == (5,)


def test_without_a_tokenizer_it_is_said_and_the_model_loads(server, notes):
    for file in ("vocab.json", "merges.txt"):
        del server.files[f"{NAME}/{file}"]
    hub.download(NAME, note=notes.append)
    assert notes[-1].endswith("has no tokenizer: neither vocab.json and merges.txt nor tokenizer.json")
    assert tiedgpt.load_model(NAME).config == CONFIG
    assert hub.download(NAME, note=notes.append)
    assert notes[-1] == f"{NAME} is here already, complete"


def test_who_needs_the_tokenizer_alone_fetches_no_weights(
    weights, server, pinned, files, monkeypatch, capsys
):
    """And what has come is no model: not to find_model, not offline, not to the download that comes later."""
    tokenizer = {name: content for name, content in files.items() if name != WEIGHTS}
    size = f"{sum(len(tokenizer[name]) for name in ('vocab.json', 'merges.txt')) / 1e6:.1f}"
    assert cli.main(["tokenize", "--model", "124M", "é"]) == 0
    out, err = capsys.readouterr()
    assert out == "   127  b'\\xc3'\n   102  b'\\xa9'\n"
    assert err == (
        "tiedgpt: note: gpt2 is not on this machine\n"
        f"tiedgpt: note: downloading the tokenizer of gpt2 ({size} MB) from 127.0.0.1:{server.server_port}"
        f"/openai-community/gpt2 to {weights}/gpt2/.tokenizer\n"
    )
    assert_whole(weights / "gpt2" / ".tokenizer", tokenizer)
    assert {request.file for request in server.requests} == tokenizer.keys()

    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert tiedgpt.load_tokenizer("gpt2").vocab_size == 257
    assert cli.main(["generate", "--model", "gpt2", "a"]) == 2
    assert re.match(
        "tiedgpt: error: gpt2 is not on this machine: .*; HF_HUB_OFFLINE is set, so it is not downloaded\n$",
        capsys.readouterr().err,
    )
    with pytest.raises(CheckpointError, match="gpt2 is not on this machine"):
        names.find_model("gpt2")

    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    assert tiedgpt.load_model("gpt2").config == CONFIG
    assert {name: (weights / "gpt2" / name).read_bytes() for name in files} == files
    shutil.rmtree(weights / "gpt2" / ".tokenizer")
    assert tiedgpt.load_tokenizer("gpt2").vocab_size == 257
    assert_whole(weights / "gpt2", files)


def test_a_tokenizer_alone_comes_whole_or_not_at_all(weights, server, files):
    server.faults["merges.txt"] = [drop] * fetching.ATTEMPTS
    with pytest.raises(CheckpointError, match=r"merges\.txt: the connection was cut, 6 times"):
        tiedgpt.load_tokenizer(NAME)
    assert visible(weights) == set()
    assert tiedgpt.load_tokenizer(NAME).vocab_size == 257
    assert_whole(weights / NAME / ".tokenizer", {name: files[name] for name in files if name != WEIGHTS})


def test_a_tokenizer_alone_of_a_repository_that_has_none(weights, server):
    del server.files[f"{NAME}/vocab.json"]
    with pytest.raises(CheckpointError, match=rf"/{NAME} has no tokenizer: neither vocab\.json and merges"):
        tiedgpt.load_tokenizer(NAME)
    assert visible(weights) == set()


def test_a_plain_server_is_a_hub_too(server, files):
    """It has sizes but no hashes; a part is continued as long as the ETag stays the same."""
    server.is_plain = True
    server.faults[WEIGHTS] = [cut(HALF), drop]
    assert_whole(hub.download(NAME), files)
    assert [request.start for request in server.requests if request.file == WEIGHTS] == [
        0,
        HALF - 1,
        HALF - 1,
    ]


def test_a_small_file_that_comes_from_elsewhere_is_what_the_hub_says_it_is(server, files):
    path = f"{NAME}/resolve/{COMMIT}/vocab.json"
    location = f"http://localhost:{server.server_port}/cdn/{path}"
    etag = hashlib.sha1(b"blob %d\0" % len(files["vocab.json"]) + files["vocab.json"]).hexdigest()
    sent_on = status(302, Location=location, ETag=f'"{etag}"', X_Repo_Commit=COMMIT)
    server.faults["vocab.json"] = [sent_on, damage]
    with pytest.raises(CheckpointError, match=rf"vocab\.json: its git's SHA-1 is \w{{40}}, expected {etag}"):
        hub.download(NAME)
    server.faults["vocab.json"] = [sent_on]
    assert_whole(hub.download(NAME), files)


# gpt2, whose files are known beforehand


def test_the_pins_are_the_facts(shared):
    text = (shared / "FACTS.md").read_text()
    for name, (commit, weights) in hub.PINNED.items():
        (row,) = re.findall(rf"^\| {name}, .*$", text, re.MULTILINE)
        cells = row.split(" | ")
        assert (names.MODELS[name][0], commit, weights.digest) == (cells[1], cells[2], cells[4].strip("| "))
        assert cells[3].startswith(str(weights.size)) or (weights.size is None and "(" in cells[3])
    for pin in (hub.VOCAB, hub.MERGES, *hub.OPENAI_124M.values()):
        assert pin.digest in text
    for file, pin in (("encoder.json", hub.VOCAB), ("vocab.bpe", hub.MERGES), *hub.OPENAI_124M.items()):
        if (path := shared / "gpt2" / "124M" / file).exists():
            assert pin.difference(path) == ""
        else:
            assert f"data {pin.size} B {pin.digest}" in text


def test_gpt2_comes_from_its_pinned_commit_under_any_name(weights, server, pinned, files):
    assert hub.download("124M") == hub.find_or_download("gpt2") == weights / "gpt2"
    assert_whole(weights / "gpt2", files)
    assert all("/openai-community/gpt2/resolve/" + "f" * 40 in request.path for request in server.requests)


def test_gpt2_is_verified_when_it_is_here(weights, server, pinned, files, notes):
    hub.download("gpt2")
    before = len(server.requests)
    hub.download("gpt2", note=notes.append)
    assert notes == ["gpt2 is here already, complete and verified"]
    with open(weights / "gpt2" / WEIGHTS, "rb+") as file:
        file.seek(-1, os.SEEK_END)
        file.write(bytes([files[WEIGHTS][-1] ^ 1]))
    with pytest.raises(
        CheckpointError, match=r"gpt2/model\.safetensors: its SHA-256 is .*, expected .*move .* away"
    ):
        hub.download("gpt2")
    (weights / "gpt2" / WEIGHTS).write_bytes(files[WEIGHTS])
    (weights / "gpt2" / "merges.txt").unlink()
    with pytest.raises(
        CheckpointError, match=r"No such file .*gpt2/merges\.txt'; to download gpt2, move .* away"
    ):
        hub.download("gpt2")
    assert len(server.requests) == before


@pytest.mark.parametrize("file", [WEIGHTS, "merges.txt"])
def test_gpt2_is_nothing_but_what_is_pinned(weights, server, pinned, files, file):
    """Not even where the server itself thinks that the file is right."""
    content = bytearray(files[file])
    content[-1] ^= 1
    server.files[f"openai-community/gpt2/{file}"] = bytes(content)
    with pytest.raises(CheckpointError, match=rf"gpt2/{file}: its SHA-256 is .*, expected .*is deleted"):
        hub.download("gpt2")
    server.files[f"openai-community/gpt2/{file}"] = files[file] + b"!"
    with pytest.raises(CheckpointError, match=rf"gpt2/{file}: expected one number of bytes, got \d+ and \d+"):
        hub.download("gpt2")
    assert visible(weights) == set()


# Interruptions that pass

HALF = 120 * CHUNK
PASSING = {
    "cut": [cut(HALF)],
    "cut at once": [cut(0)],
    "cut after a byte": [cut(1)],
    "cut before the last byte": [cut(-1)],
    "cut three times": [cut(100), cut(HALF), cut(HALF + 1)],
    "reset": [reset(HALF)],
    "dropped": [drop] * 3,
    "stalled": [stall(HALF)],
    "503": [status(503)] * 4,
    "500, 502, 504": [status(500), status(502), status(504)],
    "429": [status(429, Retry_After="0"), status(429, Retry_After="Fri, 31 Dec 1999 23:59:59 GMT")],
    "408": [status(408)],
    "a link to the CDN that has expired": [status(403)],
    "no Range": [cut(HALF), no_range],
    "no Range, ever": [cut(HALF), no_range_and_cut(HALF + 5), no_range_and_cut(9), no_range],
    "416": [cut(HALF), status(416)],
    "chunked": [chunked(b"")],
    "a little of everything": [
        status(503),
        cut(9),
        drop,
        status(429),
        reset(HALF),
        no_range_and_cut(7),
        cut(800),
    ],
}


@pytest.mark.parametrize("faults", PASSING.values(), ids=PASSING)
def test_an_interruption_is_made_up_for(weights, server, files, notes, monkeypatch, faults):
    if faults is PASSING["stalled"]:
        monkeypatch.setattr(fetching, "TIMEOUT", (5, 0.5))
    server.faults[WEIGHTS] = list(faults)
    assert_whole(hub.download(NAME, note=notes.append), files)
    assert server.faults[WEIGHTS] == []
    assert len(notes) == (1 if faults == PASSING["chunked"] else 1 + len(faults) - (no_range in faults))


@pytest.mark.parametrize("file", ["config.json", "vocab.json", "merges.txt"])
def test_small_files_are_interrupted_too(server, files, file):
    server.faults[file] = [drop, status(503), cut(3), cut(1), status(429), chunked(b"")]
    assert_whole(hub.download(NAME), files)


def test_any_sequence_of_interruptions(server, files, weights):
    rng = random.Random(0)
    size = len(files[WEIGHTS])
    for _ in range(8):
        at = sorted(rng.randrange(size) for _ in range(6))
        faults = [rng.choice([cut, no_range_and_cut])(stop) for stop in at]
        faults[rng.randrange(6)] = rng.choice([drop, status(503), status(416), no_range])
        server.faults[WEIGHTS] = faults
        assert_whole(hub.download(NAME), files)
        shutil.rmtree(weights)


def test_only_what_is_missing_is_sent(server, files):
    """What was written is not sent again but for its last byte; a chunk may be lost with its connection."""
    server.faults[WEIGHTS] = [cut(100 * CHUNK), cut(200 * CHUNK + 7)]
    hub.download(NAME)
    starts = [request.start for request in server.requests if request.path.startswith("/cdn")]
    assert starts == [0, 100 * CHUNK - 1, 200 * CHUNK - 2]
    assert server.served[WEIGHTS] == len(files[WEIGHTS]) + 1 + (7 + 1) + 1


def test_attempts_end_when_nothing_comes_and_count_anew_when_something_does(weights, server, files, notes):
    server.faults[WEIGHTS] = [cut(CHUNK * n) for n in range(1, 20)] + [status(503)] * 99
    with pytest.raises(
        CheckpointError, match=rf"{NAME}/{WEIGHTS}: the server answers 503, 6 times without a byte"
    ):
        hub.download(NAME, note=notes.append)
    assert len(server.faults[WEIGHTS]) == 99 - 6
    assert visible(weights) == set()
    assert part(weights / NAME).stat().st_size == 19 * CHUNK - 18
    assert [note.rpartition(" in ")[2] for note in notes[-6:]] == [
        f"{seconds} s" for seconds in (0.001, 0.002, 0.004, 0.008, 0.016, 0.032)
    ]
    server.faults.clear()
    assert_whole(hub.download(NAME), files)


def test_retry_after_is_waited_for(server, monkeypatch):
    slept = []
    monkeypatch.setattr(fetching.time, "sleep", slept.append)
    server.faults[WEIGHTS] = [status(429, Retry_After="7"), status(503, Retry_After="99999999"), status(503)]
    hub.download(NAME)
    assert slept == [7, fetching.MAX_DELAY, 0.008]


# Runs that end in between


def end_at(server, stop: int) -> None:
    """A run that gives up after this many bytes of the weights."""
    server.faults[WEIGHTS] = [cut(stop), *[drop] * fetching.ATTEMPTS]
    with pytest.raises(CheckpointError, match="the next try"):
        hub.download(NAME)


def test_the_next_run_continues(weights, server, files):
    end_at(server, HALF)
    assert visible(weights) == set()
    assert part(weights / NAME).read_bytes() == files[WEIGHTS][:HALF]
    before = server.served[WEIGHTS]
    assert_whole(hub.download(NAME), files)
    assert server.served[WEIGHTS] - before == len(files[WEIGHTS]) - HALF + 1


def test_a_part_that_is_whole_is_only_verified(weights, server, files):
    end_at(server, len(files[WEIGHTS]) - 1)
    part(weights / NAME).write_bytes(files[WEIGHTS])
    before = server.served[WEIGHTS]
    assert_whole(hub.download(NAME), files)
    assert server.served[WEIGHTS] - before == 1


def test_a_part_that_is_damaged_is_found_out(weights, server, files):
    end_at(server, HALF)
    damaged = part(weights / NAME)
    damaged.write_bytes(bytes(HALF))
    with pytest.raises(
        CheckpointError, match=rf"{WEIGHTS}: its SHA-256 is \w{{64}}, expected \w{{64}}; what came is"
    ):
        hub.download(NAME)
    assert not damaged.exists()
    assert_whole(hub.download(NAME), files)


@pytest.mark.parametrize("size", [100, HALF, 2_000_000])
def test_a_file_that_has_changed_is_not_joined_to_an_old_part(weights, server, files, size, notes):
    end_at(server, HALF)
    new = os.urandom(size)
    server.files[f"{NAME}/{WEIGHTS}"] = new
    assert_whole(hub.download(NAME, note=notes.append), {**files, WEIGHTS: new})
    assert notes[-1] == f"{WEIGHTS}: it changed on the server; trying again in 0.002 s"


def test_a_file_that_changes_in_the_middle(server, files):
    new = os.urandom(700_000)

    def change(handler, request, content, headers):
        server.files[f"{NAME}/{WEIGHTS}"] = new
        return cut(HALF)(handler, request, content, headers)

    server.faults[WEIGHTS] = [change]
    assert_whole(hub.download(NAME), {**files, WEIGHTS: new})


def test_a_stop_between_the_names_leaves_whole_files_and_no_model(weights, server, files, monkeypatch):
    """Killed at each of the renames, the last of which is config.json's: without it there is no model."""
    rename = os.replace
    for count in range(len(files)):
        calls = iter(range(99))

        def fail(source, target, calls=calls, count=count):
            if next(calls) == count:
                raise SystemExit("killed")
            rename(source, target)

        monkeypatch.setattr(os, "replace", fail)
        with pytest.raises(SystemExit, match="killed"):
            hub.download(NAME)
        for path in (weights / NAME).iterdir():
            assert path.name.startswith(".") or path.read_bytes() == files[path.name]
        assert not (weights / NAME / "config.json").exists()
        monkeypatch.setattr(os, "replace", rename)
        with pytest.raises(CheckpointError, match="is not on this machine"):
            names.find_model(NAME)
    assert_whole(hub.download(NAME), files)


# Faults that do not pass

LASTING = {
    "wrong bytes": (WEIGHTS, damage, r"its SHA-256 is .*, expected .*; what came is deleted"),
    "wrong bytes in a small file": ("vocab.json", damage, r"its git's SHA-1 is .*, expected "),
    "wrong bytes in the configuration": ("config.json", damage, r"its git's SHA-1 is .*, expected "),
    "short": (WEIGHTS, shorter, r"expected one number of bytes, got \d+ and \d+"),
    "long": (WEIGHTS, longer, r"expected one number of bytes, got \d+ and \d+"),
    "longer than it says": (WEIGHTS, chunked(b"!" * 9000), r"it has \d+ bytes, expected \d+"),
    "neither size nor hash": ("merges.txt", unknown, "expected one number of bytes, got none"),
    "no end": ("merges.txt", bottomless, r"its git's SHA-1 is .*, expected .*; what came is deleted"),
    "a size that no disk has": (
        "merges.txt",
        endless,
        r"merges\.txt needs 100,000,000,000\.0 MB, but .* free",
    ),
    "401": ("config.json", status(401), r"no access \(401\): .* check the name, or set HF_TOKEN$"),
    "403": ("config.json", status(403), r"no access \(403\): .* check the name, or set HF_TOKEN$"),
    "410": (WEIGHTS, status(410), "the server answers 410"),
    "no configuration": ("config.json", status(404), r"no such repository, or no config\.json in it \(404\)"),
    "503 without end": (WEIGHTS, status(503), "the server answers 503, 6 times without a byte more"),
    "cuts without end": (
        WEIGHTS,
        cut(HALF),
        "the connection was cut, 6 times without a byte more; what has come waits",
    ),
    "stalled without end": (WEIGHTS, stall(HALF), "no answer in time, 6 times without a byte more"),
}


@pytest.mark.parametrize(("file", "fault", "message"), LASTING.values(), ids=LASTING)
def test_a_lasting_fault_is_an_error_and_nothing_has_its_name(
    weights, server, files, monkeypatch, file, fault, message
):
    monkeypatch.setattr(fetching, "TIMEOUT", (5, 0.2))
    server.faults[file] = [fault] * 99
    with pytest.raises(CheckpointError, match=message) as caught:
        hub.download(NAME)
    assert str(caught.value).startswith(f"127.0.0.1:{server.server_port}/{NAME}")
    assert "\n" not in str(caught.value)
    assert visible(weights) == set()
    monkeypatch.setattr(fetching, "TIMEOUT", (5, 5))
    server.faults.clear()
    assert_whole(hub.download(NAME), files)


@pytest.mark.parametrize(
    ("lie", "message"),
    [
        ("bytes 0-SIZE/SIZE", rf"asked for bytes {HALF - 1}-, the server sends 'bytes 0-"),
        (f"bytes {HALF}-SIZE/SIZE", rf"asked for bytes {HALF - 1}-, the server sends 'bytes {HALF}-"),
        ("SIZE/SIZE", rf"asked for bytes {HALF - 1}-, the server sends "),
        (f"bytes {HALF - 1}-SIZE/9", r"expected one number of bytes, got 9 and \d+"),
        (None, rf"asked for bytes {HALF - 1}-, the server sends ''"),
    ],
)
def test_a_rest_that_is_another_than_was_asked_for_is_refused(weights, server, files, lie, message):
    lie = lie and lie.replace("SIZE", str(len(files[WEIGHTS])))
    server.faults[WEIGHTS] = [cut(HALF), header(Content_Range=lie)]
    with pytest.raises(CheckpointError, match=message):
        hub.download(NAME)
    assert visible(weights) == set()
    assert_whole(hub.download(NAME), files)


def test_redirects_in_a_circle(weights, server):
    loop = status(302, Location=f"http://localhost:{server.server_port}/cdn/{NAME}/resolve/main/{WEIGHTS}")
    server.faults[WEIGHTS] = [loop] * 99
    with pytest.raises(CheckpointError, match=rf"{WEIGHTS} cannot be reached: 'Exceeded 30 redirects"):
        hub.download(NAME)
    assert visible(weights) == set()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


@pytest.mark.parametrize(
    ("endpoint", "message"),
    [
        (
            "http://127.0.0.1:PORT",
            r"^127\.0\.0\.1:\d+/\S+/config\.json cannot be reached: Connection refused$",
        ),
        ("https://127.0.0.1:SERVER", r"config\.json cannot be reached: .*wrong version number"),
        ("http://127.0.0.1:99999", r"config\.json cannot be reached: 'Failed to parse"),
        ("ftp://127.0.0.1", r"HF_ENDPOINT must be an address like https://huggingface\.co, got 'ftp"),
        ("127.0.0.1", "HF_ENDPOINT must be an address"),
        ("http://a b", "HF_ENDPOINT must be an address"),
    ],
)
def test_an_endpoint_that_cannot_be_reached_is_said_at_once(
    weights, server, monkeypatch, notes, endpoint, message
):
    endpoint = endpoint.replace("PORT", str(free_port())).replace("SERVER", str(server.server_port))
    monkeypatch.setenv("HF_ENDPOINT", endpoint)
    with pytest.raises(CheckpointError, match=message):
        hub.download(NAME, note=notes.append)
    assert notes == []
    assert not weights.exists()


def test_a_proxy_that_cannot_be_reached(server, monkeypatch):
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("HF_ENDPOINT", "http://hub.invalid")
    with pytest.raises(
        CheckpointError, match=r"hub\.invalid/.* cannot be reached: Connection refused by the proxy"
    ):
        hub.download(NAME)


def test_a_server_that_dies_on_the_way_is_waited_for(server, notes):
    """The same refusal, once something has been reached, is an interruption."""

    def die(handler, request, content, headers):
        server.socket.close()
        return cut(HALF)(handler, request, content, headers)

    server.faults[WEIGHTS] = [die]
    with pytest.raises(CheckpointError, match=f"{WEIGHTS}: Connection refused, 6 times without a byte more"):
        hub.download(NAME, note=notes.append)
    assert len(notes) == 1 + 6


@pytest.mark.skipif(not shutil.which("openssl"), reason="makes a certificate with openssl")
def test_a_certificate_that_nobody_knows(weights, monkeypatch, tmp_path):
    subject = ["-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1"]
    key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-keyout", tmp_path / "key"]
    command = ["openssl", "req", "-x509", *key, "-out", tmp_path / "certificate", *subject]
    subprocess.run(command, check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    with LoopbackHub() as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        monkeypatch.setenv("HF_ENDPOINT", f"https://127.0.0.1:{server.server_port}")
        with pytest.raises(
            CheckpointError, match=r"certificate verify failed: self.signed certificate; .*CA_BUNDLE"
        ):
            hub.download(NAME)
        server.shutdown()
        thread.join()


# Repositories that are no GPT-2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (b'{"model_type": "bert"}', rf"{NAME}/config\.json: model_type is 'bert', which is another model"),
        (b"{", rf"{NAME}/config\.json: not JSON"),
        (b"\xff", rf"{NAME}/config\.json, line 1: not UTF-8"),
        (b"", rf"{NAME}/config\.json: not JSON"),
    ],
)
def test_another_model_is_known_by_its_configuration_and_nothing_else_is_fetched(
    weights, server, config, message
):
    server.files[f"{NAME}/config.json"] = config
    with pytest.raises(CheckpointError, match=message):
        hub.download(NAME)
    assert [request.file for request in server.requests] == ["config.json"]
    assert not weights.exists()


@pytest.mark.parametrize("file", ["pytorch_model.bin", "pytorch_model.bin.index.json"])
def test_a_pickle_is_refused_with_the_reason_and_not_fetched(weights, server, file):
    server.files[f"{NAME}/{file}"] = server.files.pop(f"{NAME}/{WEIGHTS}")
    with pytest.raises(
        CheckpointError, match=rf"{NAME}: the weights are in {file} alone, a pickle, which can run"
    ):
        hub.download(NAME)
    assert visible(weights) == set()
    del server.files[f"{NAME}/{file}"]
    with pytest.raises(
        CheckpointError, match=rf"{NAME}: there is neither model\.safetensors nor .*index\.json"
    ):
        hub.download(NAME)


@pytest.mark.parametrize(
    ("index", "message"),
    [
        ({"weight_map": {"wte.weight": "../x.safetensors"}}, r"'\.\./x\.safetensors' is not the name of a"),
        ({"weight_map": {"wte.weight": "/etc/x.safetensors"}}, "is not the name of a"),
        ({"weight_map": {"wte.weight": "a\\x.safetensors"}}, "is not the name of a"),
        (
            {"weight_map": {"wte.weight": "config.json"}},
            "'config.json' is not the name of a .safetensors file",
        ),
        ({"weight_map": {"wte.weight": ".x.safetensors"}}, "is not the name of a"),
        ({"weight_map": {"wte.weight": "x.safetensors\n"}}, "is not the name of a"),
        ({"weight_map": {"wte.weight": 3}}, "3 is not the name of a"),
        ({"weight_map": {"wte.weight": ["x"]}}, '"weight_map" must map tensors to files'),
        ({"weight_map": {"wte.weight": "x" * 300 + ".safetensors"}}, r"'x+\.\.\. is not the name of a"),
        ({"weight_map": []}, '"weight_map" must map tensors to files'),
        ([], '"weight_map" must map tensors to files'),
        (
            {"weight_map": {"wte.weight": "c.safetensors"}},
            r"not all files that .*index\.json names are there",
        ),
    ],
)
def test_an_index_that_leads_astray(weights, server, files, index, message):
    del server.files[f"{NAME}/{WEIGHTS}"]
    server.files[f"{NAME}/{WEIGHTS}.index.json"] = json.dumps(index).encode()
    with pytest.raises(CheckpointError, match=message):
        hub.download(NAME)
    assert visible(weights) == set()
    assert {path.parent for path in weights.rglob("*") if path.is_file()} <= {weights / NAME}


# Names


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("gtp2", r"no model 'gtp2': .*did you mean gpt2\?"),
        ("GPT2", r"no model 'GPT2': .*did you mean gpt2\?"),
        ("../secret", r"no model '\.\./secret'"),
        ("a/../b", r"no model 'a/\.\./b'"),
        ("a/..", r"no model 'a/\.\.'"),
        ("/etc/passwd", "no model '/etc/passwd': the names known are"),
        ("a\\..\\b/c", "no model"),
        ("a/b/c", "no model 'a/b/c'"),
        ("a/b?x", "no model"),
        ("a/b\n", "no model"),
        ("", "no model ''"),
    ],
)
def test_names_that_are_none_lead_nowhere(weights, server, name, message):
    for function in (hub.download, *([] if name in ("", "/etc/passwd") else [hub.find_or_download])):
        with pytest.raises(CheckpointError, match=message):
            function(name)
    assert server.requests == []
    assert not weights.exists()


def test_an_unknown_source(server):
    with pytest.raises(ArgumentError, match="source must be one of hub, openai, tokenizer, got 'tensorflow'"):
        hub.download("gpt2", "tensorflow")


def test_a_path_is_no_name(server, tmp_path, monkeypatch):
    for path in (Path(NAME), Path("gpt2")):
        with pytest.raises(CheckpointError, match=f"{path} is not on this machine"):
            tiedgpt.load_model(path)
    assert server.requests == []


def test_what_ships_with_tiedgpt_is_found_and_not_asked_for(server):
    for function in (hub.download, hub.find_or_download):
        with pytest.raises(CheckpointError, match="shakespeare-tied comes with tiedgpt but is missing"):
            function("shakespeare-tied")
    assert server.requests == []


# The token


def test_the_token_goes_to_the_hub_and_to_nobody_else(server, files, monkeypatch, tmp_path):
    """127.0.0.1 sends the weights on to localhost, which is another name; ~/.netrc has no say."""
    monkeypatch.setenv("HF_TOKEN", " hf_secret\n")
    (tmp_path / ".netrc").write_text("machine 127.0.0.1 login somebody password else\n")
    assert_whole(hub.download(NAME), files)
    hosts = {urlsplit(f"//{request.host}").hostname: set() for request in server.requests}
    for request in server.requests:
        hosts[urlsplit(f"//{request.host}").hostname].add(request.token)
    assert hosts == {"127.0.0.1": {"Bearer hf_secret"}, "localhost": {None}}


def test_the_token_stays_where_the_hub_sends_on_to_itself(server, files, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    server.faults["config.json"] = [status(307, Location=f"/{NAME}/resolve/{COMMIT}/config.json")]
    assert_whole(hub.download(NAME), files)
    assert {r.token for r in server.requests if r.file == "config.json"} == {"Bearer hf_secret"}


def test_a_token_that_is_none_is_not_shown(server, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_sec\nret")
    with pytest.raises(CheckpointError, match=r"^HF_TOKEN holds characters that no token has$"):
        hub.download(NAME)


def test_a_token_that_does_not_help(server, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    server.faults["config.json"] = [status(401)]
    with pytest.raises(
        CheckpointError, match=r"no access \(401\): .* check the name and HF_TOKEN$"
    ) as caught:
        hub.download(NAME)
    assert "secret" not in str(caught.value)


def test_openai_gets_no_token(server, openai, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    hub.download("gpt2", "openai")
    assert {request.token for request in server.requests} == {None}


# Offline, and what is here already


@pytest.mark.parametrize("value", ["1", "true", "ON", "yes"])
def test_offline_means_offline(weights, server, monkeypatch, value):
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    with pytest.raises(CheckpointError, match=f"^{NAME} cannot be downloaded: HF_HUB_OFFLINE is set$"):
        hub.download(NAME)
    with pytest.raises(CheckpointError, match="gpt2 cannot be downloaded: HF_HUB_OFFLINE is set"):
        hub.download("gpt2", "openai")
    message = rf"{NAME} is not on this machine: looked for .*; HF_HUB_OFFLINE is set, so it is not downloaded"
    with pytest.raises(CheckpointError, match=message):
        tiedgpt.load_model(NAME)
    assert server.requests == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    hub.download(NAME)
    monkeypatch.setenv("HF_HUB_OFFLINE", value)
    assert hub.download(NAME) == hub.find_or_download(NAME) == weights / NAME


def snapshot(tmp_path: Path, name: str, files: dict[str, bytes]) -> Path:
    """These files as Hugging Face's own library leaves them."""
    folder = tmp_path / ".cache/huggingface/hub" / f"models--{name.replace('/', '--')}"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text(COMMIT)
    (folder / "snapshots" / COMMIT).mkdir(parents=True)
    for file, content in files.items():
        (folder / "snapshots" / COMMIT / file).write_bytes(content)
    return folder / "snapshots" / COMMIT


@pytest.mark.parametrize(("name", "repository"), [(NAME, NAME), ("gpt2", "openai-community/gpt2")])
def test_what_is_in_the_hugging_face_cache_is_used(tmp_path, server, pinned, files, name, repository):
    folder = snapshot(tmp_path, repository, files)
    assert hub.download(name) == hub.find_or_download(name) == folder
    assert server.requests == []


@pytest.mark.parametrize("missing", [WEIGHTS, "config.json"])
def test_a_cache_with_less_than_a_model_does_not_stand_in_the_way(weights, tmp_path, server, files, missing):
    """Whoever loaded a tokenizer alone has a folder in the cache, with config.json and without weights."""
    snapshot(tmp_path, NAME, {file: content for file, content in files.items() if file != missing})
    assert hub.find_or_download(NAME) == weights / NAME
    assert_whole(weights / NAME, files)


def test_a_directory_of_a_models_name_is_pointed_out(tmp_path, server, pinned, notes, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gpt2").mkdir()
    hub.find_or_download("gpt2", notes.append)
    assert notes[0] == "gpt2 is not on this machine (for the directory here, write ./gpt2)"
    assert re.match(r"downloading gpt2 \(1\.\d MB\) from \S+/openai-community/gpt2 to \S+/gpt2$", notes[1])


def test_without_model_nothing_is_ever_downloaded(server, pinned, monkeypatch, capsys):
    assert cli.main(["tokenize", "a"]) == 2
    assert "gpt2 is not on this machine" in capsys.readouterr().err
    assert server.requests == []


# Where to


def test_the_first_folder_that_is_named_or_can_be_written(weights, tmp_path, server, files, monkeypatch):
    monkeypatch.delenv("TIEDGPT_WEIGHTS")
    checkout, cache = tmp_path / "checkout", tmp_path / ".cache" / "tiedgpt"
    # tiedgpt is installed: what is inside of it is not for downloads
    assert names.weight_folders() == [checkout / "tiedgpt" / "weights", cache]
    monkeypatch.setattr(hub, "__file__", str(checkout / "tiedgpt" / "checkpoints" / "hub.py"))
    assert hub.download(NAME) == cache / NAME
    shutil.rmtree(cache)
    # tiedgpt is a checkout
    checkout.mkdir()
    (checkout / "pyproject.toml").touch()
    assert hub.download(NAME) == checkout / "weights" / NAME
    shutil.rmtree(checkout / "weights")
    # which cannot be written, nor, in the end, can anything
    denied = {checkout}
    monkeypatch.setattr(os, "access", lambda path, mode: path not in denied)
    assert hub.download(NAME) == cache / NAME
    shutil.rmtree(cache)
    denied.add(tmp_path / ".cache")
    with pytest.raises(
        CheckpointError, match=rf"cannot write to {checkout}/weights or {cache}: name a folder"
    ):
        hub.download(NAME)


@pytest.fixture
def unprivileged():
    """For root, who may write everywhere, the rights of nobody; to whom tmp_path is closed altogether."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    yield
    if root:
        os.seteuid(0)


def test_a_folder_that_cannot_be_written(weights, server, monkeypatch, request):
    monkeypatch.setattr(names, "__file__", hub.__file__)
    weights.mkdir(mode=0o500)
    request.getfixturevalue("unprivileged")
    message = (
        r"cannot write to .*: Permission denied; to download to another folder, name it in TIEDGPT_WEIGHTS"
    )
    with pytest.raises(CheckpointError, match=message):
        hub.download(NAME)


def test_a_folder_that_is_a_file(weights, server):
    weights.write_text("")
    with pytest.raises(
        CheckpointError, match=r"cannot write to .*: (Not a directory|File exists); .*TIEDGPT_WEIGHTS"
    ):
        hub.download(NAME)


def test_a_disk_that_is_too_small_is_found_out_first(weights, server, files, monkeypatch):
    usage = shutil.disk_usage(weights.parent)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=900_000))
    message = rf"{NAME}/{WEIGHTS} needs 1\.1 MB, but {weights / NAME} has 0\.9 MB free; make room"
    with pytest.raises(CheckpointError, match=message):
        hub.download(NAME)
    assert [path.name for path in weights.rglob("*") if path.is_file()] == [".lock"]


def test_a_disk_that_fills_up(weights, server, files, monkeypatch):
    """What was written by then is kept, and continued when there is room."""

    class FullDisk:
        def __init__(self, file):
            self.file = file

        def __enter__(self):
            return self

        def __exit__(self, *_):
            self.file.close()

        def __getattr__(self, name):
            return getattr(self.file, name)

        def write(self, data):
            if self.file.tell() + len(data) > HALF:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return self.file.write(data)

    full = lambda path, mode: FullDisk(path.open(mode))  # noqa: E731
    monkeypatch.setattr(fetching, "open", full, raising=False)
    with pytest.raises(CheckpointError, match=f"cannot write to {weights / NAME}: No space left on device; "):
        hub.download(NAME)
    assert visible(weights) == set()
    monkeypatch.delattr(fetching, "open")
    before = server.served[WEIGHTS]
    assert_whole(hub.download(NAME), files)
    assert server.served[WEIGHTS] - before < len(files[WEIGHTS]) * 2 / 3


# OpenAI's files


@pytest.fixture
def openai(server, monkeypatch, tmp_path):
    """A small model in OpenAI's form, with its own pins."""
    config = replace(SMALL, vocab_size=257, n_inner=4 * SMALL.n_embd, bos_token_id=256, eos_token_id=256)
    entries, data = bundle(random_model(config))
    folder = write(tmp_path / "openai", split_table(entries), data, config)
    files = {path.name: path.read_bytes() for path in folder.iterdir()}
    vocabulary = vocabulary_files(Tokenizer([]))
    files |= {
        "encoder.json": vocabulary["vocab.json"].encode(),
        "vocab.bpe": vocabulary["merges.txt"].encode(),
    }
    server.files |= {f"openai/124M/{file}": content for file, content in files.items()}
    monkeypatch.setattr(hub, "OPENAI", f"{server.endpoint}/openai")
    monkeypatch.setattr(hub, "VOCAB", version(files["encoder.json"]))
    monkeypatch.setattr(hub, "MERGES", version(files["vocab.bpe"]))
    for file in hub.OPENAI_124M:
        monkeypatch.setitem(hub.OPENAI_124M, file, version(files[file]))
    return files


def test_openais_files(weights, server, openai, notes):
    server.faults[tensorflow.DATA] = [cut(5 * CHUNK), status(503)]
    assert hub.download("124M", "openai") == weights / "gpt2-openai"
    assert_whole(weights / "gpt2-openai", openai)
    before = len(server.requests)
    assert hub.download("gpt2", "openai", notes.append) == names.find_model("gpt2") == weights / "gpt2-openai"
    assert notes == ["gpt2 is here already, complete and verified"]
    assert tiedgpt.load_model("gpt2").config.vocab_size == tiedgpt.load_tokenizer("gpt2").vocab_size == 257
    assert len(server.requests) == before


def test_openais_files_do_not_pass_for_the_hubs(weights, server, openai, files, request):
    """Both may be here, each in its folder; a name then means the hub's."""
    hub.download("gpt2", "openai")
    request.getfixturevalue("pinned")
    assert hub.download("gpt2") == names.find_model("gpt2") == weights / "gpt2"


@pytest.mark.parametrize("file", ["hparams.json", "model.ckpt.index", "vocab.bpe"])
def test_openais_files_are_verified(weights, server, openai, file):
    server.faults[file] = [damage]
    with pytest.raises(CheckpointError, match=rf"127.*/openai/124M/{file}: its SHA-256 is .*, expected "):
        hub.download("gpt2", "openai")
    server.files[f"openai/124M/{file}"] += b"!"
    with pytest.raises(CheckpointError, match=rf"{file}: expected one number of bytes, got \d+ and \d+"):
        hub.download("gpt2", "openai")
    del server.files[f"openai/124M/{file}"]
    with pytest.raises(CheckpointError, match=rf"no {file} in it|not all of the files that OpenAI released"):
        hub.download("gpt2", "openai")
    assert visible(weights) == set()


def test_openais_larger_models_are_known_by_their_size(server, openai):
    server.files |= {f"openai/355M/{file}": content for file, content in openai.items()}
    with pytest.raises(
        CheckpointError, match=r"data-00000-of-00001: expected one number of bytes, got \d+ and 1419292672"
    ):
        hub.download("gpt2-medium", "openai")


@pytest.mark.parametrize("name", ["distilgpt2", NAME])
def test_openai_has_not_every_model(server, name):
    with pytest.raises(CheckpointError, match=f"OpenAI released gpt2, .*; {name} is only on the hub"):
        hub.download(name, "openai")


# Processes


def start(*arguments: str, **options) -> subprocess.Popen:
    command = [sys.executable, "-m", "tiedgpt", *arguments]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, **options}
    return subprocess.Popen(command, cwd=Path(__file__).parents[1], **pipes)


def wait_until(condition, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.001)


def test_the_command_prints_the_directory_alone(weights, server, files):
    for note in ("downloading", "is here already, complete"):
        with start("download", NAME) as process:
            out, err = process.communicate(timeout=30)
        assert (process.returncode, out) == (0, f"{weights / NAME}\n")
        assert err.startswith("tiedgpt: note: ")
        assert note in err
        assert err.count("\n") == 1
    assert_whole(weights / NAME, files)


def test_the_command_fails_in_one_line(weights, server, monkeypatch, capsys):
    for name, message in (
        ("gtp2", "did you mean gpt2?"),
        ("../x", "no model"),
        ("some/typo", "no such repository"),
    ):
        assert cli.main(["download", name]) == 2
        out, err = capsys.readouterr()
        assert out == ""
        assert err.startswith("tiedgpt: error: ")
        assert message in err
        assert err.count("\n") == 1
    assert not weights.exists()


def test_model_fetches_what_is_not_here(server, capsys):
    assert cli.main(["generate", "--model", NAME, "-n", "3", "a"]) == 0
    out, err = capsys.readouterr()
    assert out.startswith("a") or out
    assert err.startswith(
        f"tiedgpt: note: {NAME} is not on this machine\ntiedgpt: note: downloading {NAME} from "
    )
    assert cli.main(["generate", "--model", NAME, "-n", "3", "a"]) == 0
    assert capsys.readouterr().err == ""


def test_two_at_once(weights, server, files):
    """One downloads, the other says that it waits, and both have it."""
    server.pause = 0.2
    with start("download", NAME) as one:
        wait_until(lambda: server.served[WEIGHTS] > 10_000)
        with start("download", NAME) as other:
            assert f"downloading {NAME} from" in other.stderr.readline()
            assert f"another process is downloading {NAME}: waiting for it" in other.stderr.readline()
            server.pause = 0
            results = [process.communicate(timeout=30) for process in (one, other)]
    assert [one.returncode, other.returncode] == [0, 0]
    assert {out for out, _ in results} == {f"{weights / NAME}\n"}
    assert results[1][1] == f"tiedgpt: note: the other process has completed {NAME}\n"
    assert server.served[WEIGHTS] == len(files[WEIGHTS])
    assert_whole(weights / NAME, files)


def test_two_at_once_and_the_first_is_killed(weights, server, files):
    server.pause = 0.2
    with start("download", NAME) as one:
        wait_until(lambda: server.served[WEIGHTS] > 10_000)
        with start("download", NAME) as other:
            assert "downloading" in other.stderr.readline()
            assert "waiting for it" in other.stderr.readline()
            one.kill()
            server.pause = 0
            assert other.communicate(timeout=30)[0] == f"{weights / NAME}\n"
    assert_whole(weights / NAME, files)


def test_killed_at_any_moment(weights, server, files):
    """Never is there a file with its final name that is not whole; in the end there is all."""
    rng = random.Random(1)
    size = len(files[WEIGHTS])
    server.pause = 0.001

    def is_sound() -> bool:
        for path in weights.rglob("*"):
            if path.is_file() and not path.name.startswith("."):
                assert path.read_bytes() == files[path.name]
        return True

    for moment in [*sorted(rng.randrange(size) for _ in range(4)), size]:
        with start("download", NAME) as process:
            wait_until(lambda: is_sound() and sum(server.served.values()) >= moment)  # noqa: B023
            time.sleep(rng.random() * 0.01)
            process.kill()
            process.communicate()
        assert is_sound()
    assert_whole(hub.download(NAME), files)
    assert server.served[WEIGHTS] < 2 * size


def test_ctrl_c_on_a_terminal_and_again(weights, server, files):
    """The bar shows speed and time left; Ctrl-C leaves the part, from which the next run continues."""
    server.pause = 0.1
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with start("download", NAME, stderr=terminal, text=False) as process:
        os.close(terminal)
        shown = b""
        while not re.search(rb"model.safetensors: +\d+%\|.*B/s\]", shown):
            assert select.select([controller], [], [], 20)[0], shown
            shown += os.read(controller, 4096)
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
        while select.select([controller], [], [], 0)[0]:
            try:
                shown += os.read(controller, 4096)
            except OSError:  # how Linux says that the other end is closed
                break
        assert process.stdout.read() == b""
    os.close(controller)
    assert re.search(rb"\[\d\d:\d\d<\d\d:\d\d, +[\d.]+[kM]B/s\]", shown)
    assert b"tiedgpt: note: stopped; the same command continues from here" in shown
    assert b"Traceback" not in shown
    assert visible(weights) == set()
    server.pause, come = 0, part(weights / NAME).stat().st_size
    assert come > 0
    assert_whole(hub.download(NAME), files)
    assert [request.start for request in server.requests if request.file == WEIGHTS][-1] == come - 1
