"""For test_hub.py: a hub on the loopback interface that can fail in every way a network can."""

import hashlib
import itertools
import os
import re
import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.checks import refuses
from support.models import SMALL, random_model

import tiedgpt
from tiedgpt import Tokenizer
from tiedgpt.checkpoints import fetching, hub, remote_models
from tiedgpt.checkpoints.verification import Version

NAME = "someone/tiny-gpt2"
CONFIG = replace(
    SMALL, vocab_size=257, n_embd=60, n_inner=240, n_layer=6, eos_token_id=None, bos_token_id=None
)
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
BLOCK = 1 << 12  # bytes that the client reads at a time
HALF = 120 * BLOCK
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Request:
    host: str
    path: str
    start: int  # of the range in the request, else 0
    token: str | None

    @property
    def file(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass
class Fault:
    """What is wrong with one response; without arguments, nothing."""

    code: int = 0  # the status of a response without content; -1: the connection is closed without a response
    # In place of the right headers; None: left out. {size}, {hash} and {path} are those of the file
    # that was asked for, {elsewhere} is the address of the host to which the hub redirects.
    headers: dict[str, str | None] = field(default_factory=dict)
    no_range: bool = False  # the whole file is sent, whatever range was asked for
    change: Callable[[bytes], bytes] = bytes  # other content is sent than the headers describe
    chunked: bool = False  # without Content-Length
    endless: bool = False
    stop: int | None = None  # the connection is closed after this byte of the file
    then: Callable[[BaseHTTPRequestHandler], object] = lambda _: None  # called before it is closed


def reset(handler: BaseHTTPRequestHandler) -> None:
    """Reset the connection, as a router does that has lost its state."""
    time.sleep(0.05)  # until the client has received what was sent
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()


def stall(handler: BaseHTTPRequestHandler) -> None:
    """Send nothing more, but leave the connection open."""
    handler.server.closing.wait(5)


def flip_bit(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


class LoopbackHub(ThreadingHTTPServer):
    """A small huggingface.co: it redirects to another host name for weights, and can fail on
    request."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}  # "owner/name/file" -> content
        self.faults: dict[str, list[Fault]] = defaultdict(
            list
        )  # file -> one for each coming request
        self.requests: list[Request] = []
        self.served: dict[str, int] = defaultdict(
            int
        )  # file -> bytes of its content that were sent
        self.is_plain = False  # like any server of files, without the hub's headers
        self.pause = 0.0  # seconds after every piece
        self.closing = threading.Event()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address) -> None:
        """Clients that close the connection or are killed are expected."""


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
        on_cdn, file = self.path.startswith("/cdn"), request.file
        content = self.server.files.get(re.sub("^/(cdn/)?|/resolve/[^/]+", "", self.path))
        if content is None:
            return self.answer(404, {})
        git = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        elsewhere = (
            f"http://localhost:{self.server.server_port}/cdn"  # the same server under another name
        )
        headers = {"X-Repo-Commit": COMMIT} if "/resolve/" in self.path else {}
        if self.server.is_plain:
            headers = {"ETag": '"5f-abc"'}
        elif file.endswith(".safetensors") and not on_cdn:
            digest = hashlib.sha256(content).hexdigest()
            headers |= {
                "X-Linked-Size": str(len(content)),
                "X-Linked-Etag": f'"{digest}"',
                "ETag": '"wrong"',
            }
            return self.answer(302, headers | {"Location": f"{elsewhere}{self.path}"})
        elif on_cdn:
            headers = {"ETag": f'"{"0" * 40}"'}  # not the hash of a git blob
        else:
            headers["ETag"] = f'W/"{git}"'
        faults = self.server.faults[file]
        fault = faults.pop(0) if faults else Fault()
        known = {"size": len(content), "hash": git, "path": self.path, "elsewhere": elsewhere}
        wrong = {header: value and value.format(**known) for header, value in fault.headers.items()}
        if fault.code > 0:
            return self.answer(fault.code, wrong, b"sorry")
        return fault.code or self.send(request, fault.change(content), headers, wrong, fault)

    def answer(self, code: int, headers: dict[str, str | None], body: bytes = b"") -> None:
        self.send_response(code)
        for header, value in {
            "Content-Length": str(len(body)),
            "Connection": "close",
            **headers,
        }.items():
            if value is not None:
                self.send_header(header, value)
        self.end_headers()
        self.wfile.write(body)

    def send(
        self, request: Request, content: bytes, headers: dict, wrong: dict, fault: Fault
    ) -> None:
        """Send the content from request.start on."""
        size, start = len(content), 0 if fault.no_range else request.start
        if start >= size > 0:
            return self.answer(416, headers | {"Content-Range": f"bytes */{size}"})
        headers = {"Content-Length": str(size - start), **headers}
        headers |= {"Content-Range": f"bytes {start}-{size - 1}/{size}"} if start else {}
        headers |= {"Content-Length": None, "Transfer-Encoding": "chunked"} if fault.chunked else {}
        self.answer(206 if start else 200, headers | wrong)
        rest = memoryview(content)[start : fault.stop]
        for at in itertools.count(0, 1 << 14) if fault.endless else range(0, len(rest), 1 << 14):
            piece = bytes(1 << 14) if fault.endless else rest[at : at + (1 << 14)]
            self.wfile.write(b"%x\r\n%s\r\n" % (len(piece), piece) if fault.chunked else piece)
            self.server.served[request.file] += len(piece)
            if self.server.pause:
                self.server.closing.wait(self.server.pause)
        self.wfile.write(b"0\r\n\r\n" if fault.chunked else b"")
        return fault.then(self)


@contextmanager
def running(server: LoopbackHub):
    with server, ThreadPoolExecutor() as threads:
        threads.submit(server.serve_forever, poll_interval=0.01)
        try:
            yield server
        finally:
            server.closing.set()
            server.shutdown()


@pytest.fixture(autouse=True)
def weights(no_models, tmp_path, monkeypatch):
    """An empty folder for weights, on a machine without any model; the client waits only a moment.

    A test fails where it asks for an address of the real network. Processes get a dead proxy.
    """
    resolve = socket.getaddrinfo

    def guarded_resolve(host, *arguments, **options):
        if host not in ("127.0.0.1", "localhost", None):
            pytest.fail(f"asks for the address of {host}")
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", guarded_resolve)
    for variable in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
        monkeypatch.setenv(variable.upper(), "http://127.0.0.1:9")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1,localhost")
    for variable in ("HF_HUB_OFFLINE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable)
    monkeypatch.setenv("TIEDGPT_WEIGHTS", str(tmp_path / "weights"))
    monkeypatch.setattr(fetching, "DELAY", 0.001)
    monkeypatch.setattr(fetching, "TIMEOUT", (5, 5))
    monkeypatch.setattr(fetching, "BYTES_PER_READ", BLOCK)
    return tmp_path / "weights"


@pytest.fixture(scope="session")
def files(tmp_path_factory) -> dict[str, bytes]:
    """A small model's files; the weights have about 1 MB."""
    path = tmp_path_factory.mktemp("hub") / "tiny"
    tiedgpt.save_model(random_model(CONFIG), Tokenizer([]), path)
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.fixture
def server(files, monkeypatch):
    with running(LoopbackHub()) as server:
        server.files = {f"{NAME}/{file}": content for file, content in files.items()}
        monkeypatch.setenv("HF_ENDPOINT", f"http://{server.host}")
        monkeypatch.setattr(remote_models, "VOCAB", version(files["vocab.json"]))
        monkeypatch.setattr(remote_models, "MERGES", version(files["merges.txt"]))
        yield server


@pytest.fixture
def notes():
    return []


def version(content: bytes) -> Version:
    return Version(len(content), hashlib.sha256(content).hexdigest())


def assert_whole(folder: Path, files: dict[str, bytes]) -> None:
    """The folder has exactly these files with exactly these contents, and nothing hidden."""
    assert {path.name: path.is_file() and path.read_bytes() for path in folder.iterdir()} == files


def visible(folder: Path) -> set[str]:
    """The files that have their final names."""
    return {
        path.name for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")
    }


def fail(message: str, name: str = NAME, source: str = "hub", note=str) -> str:
    """A download is refused with this message and publishes no file."""
    error = refuses(message, hub.download, name, source, note)
    folder = Path(os.environ["TIEDGPT_WEIGHTS"])
    assert visible(folder) == set()
    return error


def fail_in_one_line(run, *arguments: str) -> str:
    """A command exits with 2, prints nothing on stdout and one error line on stderr, which is
    returned."""
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert re.fullmatch(r"(tiedgpt: note: [^\n]*\n)*tiedgpt: error: [^\n]*\n", err)
    return err


def part(folder: Path, file: str = WEIGHTS) -> Path:
    (found,) = folder.glob(f".{file}.*.part")
    return found


def starts(server: LoopbackHub, file: str = WEIGHTS) -> list[int]:
    """The first byte of each request for a file."""
    return [request.start for request in server.requests if request.file == file]


def wait_until(condition, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.001)
