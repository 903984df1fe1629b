"""A hub on this machine that can fail, and downloads from it.

The server listens on 127.0.0.1 alone. As the Hugging Face hub does, it names the commit and the
hash of each file in the headers of its answer, and redirects requests for weights to another host,
which is `localhost` here. That host knows neither commits nor hashes.
"""

import hashlib
import re
import socket
import struct
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from support.models import SMALL

NAME = "someone/tiny-gpt2"  # a repository of the hub
CONFIG = replace(  # of the model in it
    SMALL, vocab_size=257, n_embd=24, n_inner=96, n_layer=2, eos_token_id=None, bos_token_id=None
)
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
BLOCK = 1 << 12  # bytes that the client reads at a time
HALF = 10 * BLOCK  # about half the bytes of the weights
PIECE = 1 << 14  # bytes that the server sends at a time
COMMIT = "0123456789abcdef0123456789abcdef01234567"
OTHER_COMMIT = "f" * 40


@dataclass
class Request:
    """A request that the server got."""

    host: str  # without the port
    path: str
    start: int  # the first byte that is asked for; 0 for the whole file
    last: int | None  # the last byte that is asked for; None for all up to the end
    token: str | None
    program: str | None  # the header User-Agent
    encoding: str | None  # the header Accept-Encoding
    sent: int = 0  # the bytes of the file that were sent

    @property
    def file(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass
class Fault:
    """What is wrong with one response. With the default values, nothing is wrong."""

    code: int = 0  # if not 0, the response has this status, and not the file
    headers: dict[str, str] = field(default_factory=dict)  # these replace the right ones
    is_dropped: bool = False  # the connection is closed without a response
    is_reset: bool = False  # the connection is reset without a response
    stop: int | None = None  # the connection is closed after so many bytes of the file
    stalls: bool = False  # the connection stays open for a while after the last byte
    no_range: bool = False  # the whole file is sent, whatever range was asked for
    flips_a_bit: bool = False  # in the middle of the file
    before: Callable[[], object] | None = None  # called before the response


class LoopbackHub(ThreadingHTTPServer):
    """The server, with its files, the faults of its responses, and the requests that it got."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[tuple[str, str], dict[str, bytes]] = {}  # (repository, commit) -> files
        self.main: dict[str, str] = {}  # repository -> the commit of main
        # file -> the faults of the next responses with this file, one for each
        self.faults: dict[str, list[Fault]] = defaultdict(list)
        self.requests: list[Request] = []
        self.names_hashes = True  # whether its answers name the hashes of weights
        self.pause = 0.0  # seconds after every piece
        self.closing = threading.Event()  # set when the server closes

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request, client_address) -> None:
        """Print nothing if a client closes the connection or is killed."""

    def put(self, repository: str, files: dict[str, bytes], commit: str = COMMIT) -> None:
        """Make a commit with these files alone. It is main from now on."""
        self.files[repository, commit] = dict(files)
        self.main[repository] = commit

    def asked(self, file: str = WEIGHTS, host: str = "localhost") -> list[int]:
        """The first byte of each request to a host for a file."""
        asked = (file, host)
        return [each.start for each in self.requests if (each.file, each.host) == asked]


class Handler(BaseHTTPRequestHandler):
    """It answers one request of a client."""

    server: LoopbackHub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_) -> None:
        pass

    def do_GET(self) -> None:
        """Answer with the file, as its next fault says; with a redirection to it; or with 404."""
        self.close_connection = True  # after this answer: each request has its own connection
        server = self.server

        # What is asked for
        byte_range = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        start = int(byte_range[1]) if byte_range else 0
        last = int(byte_range[2]) if byte_range and byte_range[2] else None
        host = self.headers["Host"].partition(":")[0]
        names = ("Authorization", "User-Agent", "Accept-Encoding")
        request = Request(host, self.path, start, last, *map(self.headers.get, names))
        server.requests.append(request)

        owner, name, revision, file = re.fullmatch(
            "/(.+?)/(.+?)/resolve/(.+?)/(.+)", self.path
        ).groups()
        repository = f"{owner}/{name}"
        commit = server.main.get(repository, "") if revision == "main" else revision
        content = server.files.get((repository, commit), {}).get(file)
        if content is None:
            self.answer(404, {})
            return

        # The headers. The host of the hub sends a client on to localhost for weights.
        is_large = file.endswith((".safetensors", ".bin"))
        headers = {}
        if host == "localhost":
            headers["ETag"] = f'"{"0" * 40}"'  # looks like a hash, and is none
        else:
            headers["X-Repo-Commit"] = commit
            if server.names_hashes or not is_large:
                headers["ETag"] = f'W/"{git_hash(content)}"'
        if is_large and host != "localhost":
            if server.names_hashes:
                headers["X-Linked-Etag"] = f'"{hashlib.sha256(content).hexdigest()}"'
            headers["Location"] = f"http://localhost:{server.server_port}{self.path}"
            self.answer(302, headers)
            return

        # The file, as its next fault lets it be sent
        fault = server.faults[file].pop(0) if server.faults[file] else Fault()
        if fault.before:
            fault.before()
        if fault.is_reset:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            return
        if not fault.is_dropped and fault.code:
            self.answer(fault.code, headers | fault.headers, b"sorry")
        elif not fault.is_dropped:
            self.send(content, request, headers, fault)

    def answer(self, code: int, headers: dict[str, str], body: bytes = b"") -> None:
        """Send a status, the headers and the body."""
        self.send_response(code)
        usual = {"Content-Length": str(len(body)), "Connection": "close"}
        for header, value in {**usual, **headers}.items():
            self.send_header(header, value)
        self.end_headers()
        self.wfile.write(body)

    def send(self, content: bytes, request: Request, headers: dict[str, str], fault: Fault) -> None:
        """Send the bytes of the content that are asked for. The fault may change what is sent."""
        size = len(content)
        start, last = request.start, request.last
        if fault.no_range:
            start, last = 0, None
        if fault.flips_a_bit:
            middle = size // 2
            flipped = bytes([content[middle] ^ 1])
            content = content[:middle] + flipped + content[middle + 1 :]
        if start > 0 and start >= size:  # there is no such byte
            self.answer(416, headers)
            return
        is_range = start > 0 or last is not None
        end = size if last is None else min(last + 1, size)
        headers["Content-Length"] = str(end - start)
        if is_range:
            headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
        self.answer(206 if is_range else 200, headers | fault.headers)

        body = content[:end][start : fault.stop]  # to the end if fault.stop is None
        for begin in range(0, len(body), PIECE):
            piece = body[begin : begin + PIECE]
            request.sent += len(piece)
            self.wfile.write(piece)  # raises an error if the client has closed the connection
            self.server.closing.wait(self.server.pause)
        if fault.stalls:
            self.server.closing.wait(5)


def git_hash(content: bytes) -> str:
    """The SHA-1 by which git knows a file with this content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def running(server: LoopbackHub) -> Iterator[LoopbackHub]:
    """Let the server answer, in a thread, until the end of the `with` block."""
    with server, ThreadPoolExecutor() as threads:
        threads.submit(server.serve_forever, poll_interval=0.01)
        try:
            yield server
        finally:
            server.closing.set()
            server.shutdown()


def visible_files(folder: Path) -> dict[str, bytes]:
    """{name: content} of the files in the folder that are not hidden."""
    if not folder.exists():
        return {}
    return {
        path.name: path.read_bytes() for path in folder.iterdir() if not path.name.startswith(".")
    }


def hidden_files(folder: Path) -> set[str]:
    """The names of the hidden files in the folder."""
    return {path.name for path in folder.glob(".*")}
