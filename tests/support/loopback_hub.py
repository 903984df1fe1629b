"""A small huggingface.co on the loopback interface, which can fail in every way a network can.

`LoopbackHub` is the server and `Fault` what is wrong with one of its responses. The functions below
them are about downloads from it; the fixtures that use them are in conftest.py.
"""

import hashlib
import itertools
import os
import re
import socket
import struct
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from support.checks import refuses
from support.models import SMALL
from tiedgpt.checkpoints import hub
from tiedgpt.checkpoints.messages import discard_note
from tiedgpt.checkpoints.verification import Version

NAME = "someone/tiny-gpt2"  # a repository of the hub
CONFIG = replace(  # of the model in it
    SMALL, vocab_size=257, n_embd=60, n_inner=240, n_layer=6, eos_token_id=None, bos_token_id=None
)
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
BLOCK = 1 << 12  # bytes that the client reads at a time
HALF = 120 * BLOCK  # of the bytes of the weights
PIECE = 1 << 14  # bytes that the server sends at a time
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def nothing(handler: BaseHTTPRequestHandler) -> None:
    """What most faults do before the connection is closed."""


def unchanged(content: bytes) -> bytes:
    return content


@dataclass
class Request:
    """A request that the server got."""

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

    code: int = 0  # the status of a response without the file; 0: the usual response
    # Headers in place of the right ones. A header with the value None is not sent. {size}, {hash}
    # and {path} are those of the file that was asked for, {elsewhere} is the URL to which the hub
    # redirects.
    headers: dict[str, str | None] = field(default_factory=dict)
    is_dropped: bool = False  # the connection is closed without a response
    no_range: bool = False  # the whole file is sent, whatever range was asked for
    change: Callable[[bytes], bytes] = unchanged  # what is sent instead of what headers describe
    chunked: bool = False  # without Content-Length
    endless: bool = False
    stop: int | None = None  # the connection is closed after this byte of the file
    then: Callable[[BaseHTTPRequestHandler], object] = nothing  # called before it is closed


def reset(handler: BaseHTTPRequestHandler) -> None:
    """Reset the connection, as a router does that has lost its state."""
    time.sleep(0.05)  # until the client has received what was sent
    # A connection that lingers for 0 seconds is not ended in order, but reset.
    lingers = 1
    seconds = 0
    linger = struct.pack("ii", lingers, seconds)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    handler.connection.close()


def stall(handler: BaseHTTPRequestHandler) -> None:
    """Send nothing more, but leave the connection open."""
    handler.server.closing.wait(5)


def flip_bit(content: bytes) -> bytes:
    """The content with one bit in its middle changed."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


class LoopbackHub(ThreadingHTTPServer):
    """The server. It redirects to another host name for weights, as the hub does."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}  # "owner/name/file" -> content
        # file -> one fault for each coming request
        self.faults: dict[str, list[Fault]] = defaultdict(list)
        self.requests: list[Request] = []
        # file -> bytes of its content that were sent
        self.served: dict[str, int] = defaultdict(int)
        self.is_plain = False  # like any server of files, without the hub's headers
        self.pause = 0.0  # seconds after every piece
        self.closing = threading.Event()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    @property
    def elsewhere(self) -> str:
        """The same server under another name, to which the hub redirects."""
        return f"http://localhost:{self.server_port}/cdn"

    def handle_error(self, request, client_address) -> None:
        """Clients that close the connection or are killed are expected."""

    def put(self, folder: str, files: dict[str, bytes]) -> None:
        """Add files to a folder."""
        for file, content in files.items():
            self.files[f"{folder}/{file}"] = content

    def first_bytes(self, file: str = WEIGHTS) -> list[int]:
        """The first byte of each request for a file."""
        return [request.start for request in self.requests if request.file == file]


class Handler(BaseHTTPRequestHandler):
    """It answers one request."""

    server: LoopbackHub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *_) -> None:
        pass

    def do_GET(self) -> None:
        """Answer with the file, a redirection to it, the file's next fault, or 404."""
        self.close_connection = True  # after this answer: each request has its own connection
        request = self.read_request()
        self.server.requests.append(request)
        # A path is /owner/name/resolve/revision/file, after a redirection /cdn/owner/name/...
        # Without /cdn and /resolve/revision it is a key of server.files.
        name = re.sub("^/(cdn/)?|/resolve/[^/]+", "", self.path)
        content = self.server.files.get(name)
        if content is None:
            self.answer(404, {})
            return

        headers = self.headers_of(content)
        is_weights = request.file.endswith(".safetensors")
        is_at_hub = not self.path.startswith("/cdn") and not self.server.is_plain
        if is_weights and is_at_hub:
            # A redirection's own ETag is not that of the file: the client must use X-Linked-Etag.
            headers |= {
                "X-Linked-Size": str(len(content)),
                "X-Linked-Etag": f'"{hashlib.sha256(content).hexdigest()}"',
                "ETag": '"wrong"',
                "Location": f"{self.server.elsewhere}{self.path}",
            }
            self.answer(302, headers)
            return

        faults = self.server.faults[request.file]
        if faults:
            fault = faults.pop(0)
        else:
            fault = Fault()
        wrong_headers = self.wrong_headers(content, fault)
        if fault.is_dropped:
            return
        if fault.code:
            self.answer(fault.code, wrong_headers, b"sorry")
            return
        self.send(request, fault.change(content), headers, wrong_headers, fault)

    def read_request(self) -> Request:
        """The request. The header Range, as in "bytes=7-", says at which byte to start."""
        start = 0
        match = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if match:
            start = int(match[1])
        return Request(
            host=self.headers["Host"],
            path=self.path,
            start=start,
            token=self.headers.get("Authorization"),
        )

    def headers_of(self, content: bytes) -> dict[str, str | None]:
        """The headers of the hub, of the host to which it redirects, or of a plain server.

        The ETag of the hub is the hash of the file. The ETags of the two others are not.
        """
        if self.server.is_plain:
            return {"ETag": '"5f-abc"'}
        if self.path.startswith("/cdn"):
            like_a_hash = "0" * 40  # a client that believes it would refuse the file
            return {"ETag": f'"{like_a_hash}"'}
        headers: dict[str, str | None] = {"ETag": f'W/"{git_hash(content)}"'}
        if "/resolve/" in self.path:
            headers["X-Repo-Commit"] = COMMIT
        return headers

    def wrong_headers(self, content: bytes, fault: Fault) -> dict[str, str | None]:
        """The headers of the fault, with what {size}, {hash}, {path} and {elsewhere} stand for."""
        headers = {}
        for header, value in fault.headers.items():
            if value is not None:
                value = value.format(
                    size=len(content),
                    hash=git_hash(content),
                    path=self.path,
                    elsewhere=self.server.elsewhere,
                )
            headers[header] = value
        return headers

    def answer(self, code: int, headers: dict[str, str | None], body: bytes = b"") -> None:
        """Send a status, the headers whose value is not None, and the body."""
        self.send_response(code)
        usual = {"Content-Length": str(len(body)), "Connection": "close"}
        for header, value in {**usual, **headers}.items():
            if value is not None:
                self.send_header(header, value)
        self.end_headers()
        self.wfile.write(body)

    def send(
        self,
        request: Request,
        content: bytes,
        headers: dict[str, str | None],
        wrong_headers: dict[str, str | None],
        fault: Fault,
    ) -> None:
        """Send the content from request.start on, as far as the fault lets it."""
        size = len(content)
        start = request.start
        if fault.no_range:
            start = 0
        if start > 0 and start >= size:  # there is no such byte; an empty file is sent from 0
            self.answer(416, {**headers, "Content-Range": f"bytes */{size}"})
            return

        if start == 0:
            code = 200
        else:
            code = 206
            last = size - 1
            headers["Content-Range"] = f"bytes {start}-{last}/{size}"
        if fault.chunked:
            headers["Content-Length"] = None  # so the client does not know the size
            headers["Transfer-Encoding"] = "chunked"
        else:
            headers["Content-Length"] = str(size - start)
        self.answer(code, headers | wrong_headers)

        pieces = in_pieces(content[start : fault.stop])  # to its end, if fault.stop is None
        if fault.endless:
            pieces = zeros()
        for piece in pieces:
            self.send_piece(piece, fault.chunked)
            self.server.served[request.file] += len(piece)
            if self.server.pause:
                self.server.closing.wait(self.server.pause)
        if fault.chunked:
            self.send_piece(b"", chunked=True)  # the end
        # The connection is closed when this method returns. The fault may reset it before, or leave
        # it open for a while; most faults do nothing here.
        fault.then(self)

    def send_piece(self, piece: bytes, chunked: bool) -> None:
        """Send a piece; a chunk begins with its length in hexadecimal digits."""
        if chunked:
            piece = b"%x\r\n%s\r\n" % (len(piece), piece)
        self.wfile.write(piece)


def in_pieces(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), PIECE):
        yield content[start : start + PIECE]


def zeros() -> Iterator[bytes]:
    """Pieces without end."""
    return itertools.repeat(bytes(PIECE))


def git_hash(content: bytes) -> str:
    """The hash of a git blob."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextmanager
def running(server: LoopbackHub) -> Iterator[LoopbackHub]:
    """The server while it answers."""
    with server, ThreadPoolExecutor() as threads:
        threads.submit(server.serve_forever, poll_interval=0.01)
        try:
            yield server
        finally:
            server.closing.set()
            server.shutdown()


def version(content: bytes) -> Version:
    """The pin of a file with this content."""
    return Version(len(content), hashlib.sha256(content).hexdigest())


def assert_has_exactly(folder: Path, files: dict[str, bytes]) -> None:
    """The folder has exactly these files with exactly these contents, and nothing hidden."""
    assert sorted(path.name for path in folder.iterdir()) == sorted(files)
    for name, content in files.items():
        assert (folder / name).read_bytes() == content, name


def visible_files(folder: Path) -> set[str]:
    """The names of all files in the folder and below it that are not hidden."""
    paths = [path for path in folder.rglob("*") if path.is_file()]
    return {path.name for path in paths if not path.name.startswith(".")}


def assert_download_fails(
    message: str, name: str = NAME, source: str = "hub", note=discard_note
) -> str:
    """Start a download of a model. It must fail with this message, and publish no file.

    Returns the whole message.
    """
    error = refuses(message, hub.download, name, source, note)
    assert visible_files(Path(os.environ["TIEDGPT_WEIGHTS"])) == set()
    return error


def assert_command_fails(run, *arguments: str) -> str:
    """Run a command. It must print one error line on stderr, and nothing on stdout.

    Lines that are notes may come before the error. Returns all of stderr.
    """
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    *notes, error = err.splitlines()
    for note in notes:
        assert note.startswith("tiedgpt: note: ")
    assert error.startswith("tiedgpt: error: ")
    assert err.endswith("\n")
    return err


def part_of(folder: Path, file: str = WEIGHTS) -> Path:
    """The part that an interrupted download has left."""
    (part,) = folder.glob(f".{file}.*.part")
    return part
