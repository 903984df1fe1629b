"""A small huggingface.co (a hub) on this machine, which can fail in every way a network can.

`LoopbackHub` is the server. `Handler` answers its requests. A `Fault` says what is wrong with one
response. For the weights, the hub redirects a request to another host, here another name of the
same server, whose paths begin with /cdn. The functions at the end are about downloads from the hub.
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
HALF = 120 * BLOCK  # about half the bytes of the weights
PIECE = 1 << 14  # bytes that the server sends at a time
COMMIT = "0123456789abcdef0123456789abcdef01234567"


def nothing(handler: BaseHTTPRequestHandler) -> None:
    """The usual `then` of a fault: the connection is closed at once."""


def unchanged(content: bytes) -> bytes:
    return content


@dataclass
class Request:
    """A request that the server got."""

    host: str
    path: str
    start: int  # the first byte that is asked for; 0 for the whole file
    token: str | None

    @property
    def file(self) -> str:
        return self.path.rpartition("/")[2]


@dataclass
class Fault:
    """What is wrong with one response. With the default values, nothing is wrong."""

    code: int = 0  # if not 0, the response has this status, and not the file
    # These headers replace the right ones. A header with the value None is not sent. In a value,
    # {size}, {hash} and {path} stand for those of the file that was asked for, and {elsewhere} for
    # the URL to which the hub redirects.
    headers: dict[str, str | None] = field(default_factory=dict)
    is_dropped: bool = False  # the connection is closed without a response
    no_range: bool = False  # the whole file is sent, whatever range was asked for
    change: Callable[[bytes], bytes] = unchanged  # computes the content to send from the right one
    chunked: bool = False  # the response has no Content-Length
    endless: bool = False  # zeros are sent without end
    stop: int | None = None  # the connection is closed after so many bytes of the file
    then: Callable[[BaseHTTPRequestHandler], object] = nothing  # called before it is closed


def reset(handler: BaseHTTPRequestHandler) -> None:
    """Reset the connection, as a router does that has lost its state."""
    time.sleep(0.05)  # meanwhile the client receives what was sent
    # With SO_LINGER and 0 seconds, `close` resets the connection instead of ending it in order.
    lingers = 1
    seconds = 0
    linger = struct.pack("ii", lingers, seconds)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    handler.connection.close()


def stall(handler: BaseHTTPRequestHandler) -> None:
    """Send nothing more, but leave the connection open: for 5 s, or until the server closes."""
    handler.server.closing.wait(5)


def flip_bit(content: bytes) -> bytes:
    """The content with one bit in its middle changed."""
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


class LoopbackHub(ThreadingHTTPServer):
    """The server, with its files, the faults of its responses, and the requests that it got."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.files: dict[str, bytes] = {}  # "owner/name/file" -> content
        # file -> the faults of the next responses with this file, one for each
        self.faults: dict[str, list[Fault]] = defaultdict(list)
        self.requests: list[Request] = []
        # file -> the number of bytes of its content that were sent
        self.served: dict[str, int] = defaultdict(int)
        self.is_plain = False  # if true, it does not redirect, and sends no headers of a hub
        self.pause = 0.0  # seconds after every piece
        self.closing = threading.Event()  # set when the server closes

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self.server_port}"

    @property
    def elsewhere(self) -> str:
        """The same server under another name, to which the hub redirects."""
        return f"http://localhost:{self.server_port}/cdn"

    def handle_error(self, request, client_address) -> None:
        """Print nothing if a client closes the connection or is killed."""

    def put(self, folder: str, files: dict[str, bytes]) -> None:
        """Add files to a folder, such as "owner/name"."""
        for file, content in files.items():
            self.files[f"{folder}/{file}"] = content

    def first_bytes(self, file: str = WEIGHTS) -> list[int]:
        """The first byte of each request for a file."""
        return [request.start for request in self.requests if request.file == file]


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
        request = self.read_request()
        self.server.requests.append(request)
        # The path is /owner/name/resolve/revision/file. After a redirection, /cdn comes before it.
        # Without "/cdn" and "/resolve/revision", it is "owner/name/file", a key of server.files.
        name = re.sub("^/(cdn/)?|/resolve/[^/]+", "", self.path)
        content = self.server.files.get(name)
        if content is None:
            self.answer(404, {})
            return

        headers = self.headers_of(content)
        is_weights = request.file.endswith(".safetensors")
        is_at_hub = not self.path.startswith("/cdn") and not self.server.is_plain
        if is_weights and is_at_hub:
            # The client must read the file's hash from X-Linked-Etag. The ETag is not its hash.
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
        """The request that the client has sent.

        With the header "Range: bytes=7-", for example, it asks for the file from byte 7 on.
        """
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
        """The headers that describe a file.

        The hub's ETag is the hash of the file. The ETag of a plain server, or of the host to which
        the hub redirects, is something else.
        """
        if self.server.is_plain:
            return {"ETag": '"5f-abc"'}
        if self.path.startswith("/cdn"):
            like_a_hash = (
                "0" * 40
            )  # a client that took it for the file's hash would refuse the file
            return {"ETag": f'"{like_a_hash}"'}
        headers: dict[str, str | None] = {"ETag": f'W/"{git_hash(content)}"'}
        if "/resolve/" in self.path:
            headers["X-Repo-Commit"] = COMMIT
        return headers

    def wrong_headers(self, content: bytes, fault: Fault) -> dict[str, str | None]:
        """The headers of the fault. {size} and the like are replaced by what they stand for."""
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
        """Send the content from byte request.start on. The fault may change how much is sent."""
        size = len(content)
        start = request.start
        if fault.no_range:
            start = 0
        if start > 0 and start >= size:
            # There is no such byte. (An empty file is sent if the start is 0.)
            self.answer(416, {**headers, "Content-Range": f"bytes */{size}"})
            return

        if start == 0:
            code = 200  # the whole file follows
        else:
            code = 206  # a part of the file follows
            last = size - 1
            headers["Content-Range"] = f"bytes {start}-{last}/{size}"
        if fault.chunked:
            headers["Content-Length"] = None  # is not sent, so the client does not know the size
            headers["Transfer-Encoding"] = "chunked"
        else:
            headers["Content-Length"] = str(size - start)
        self.answer(code, headers | wrong_headers)

        if fault.endless:
            pieces = zeros()
        else:
            pieces = in_pieces(content[start : fault.stop])  # to the end if fault.stop is None
        for piece in pieces:
            self.send_piece(piece, fault.chunked)
            self.server.served[request.file] += len(piece)
            if self.server.pause:
                self.server.closing.wait(self.server.pause)
        if fault.chunked:
            self.send_piece(b"", chunked=True)  # an empty chunk marks the end
        # The connection is closed when this method returns. Before that, the fault may reset it, or
        # leave it open for a while. Most faults do nothing here.
        fault.then(self)

    def send_piece(self, piece: bytes, chunked: bool) -> None:
        """Send a piece of the content, as a chunk if the response is chunked.

        A chunk has its length in hexadecimal digits before the piece.
        """
        if chunked:
            piece = b"%x\r\n%s\r\n" % (len(piece), piece)
        self.wfile.write(piece)


def in_pieces(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), PIECE):
        yield content[start : start + PIECE]


def zeros() -> Iterator[bytes]:
    """Pieces of zeros without end."""
    return itertools.repeat(bytes(PIECE))


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


def version(content: bytes) -> Version:
    """The size and the SHA-256 of a file with this content, which a download can be checked by."""
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
    """The hidden file with the bytes that an interrupted download has received."""
    (part,) = folder.glob(f".{file}.*.part")
    return part
