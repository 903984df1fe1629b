"""The server of the page: HTTP for this machine only, with one computation at a time.

A page of another site, open in the same browser, can send requests to this server too. So:
- the server listens on 127.0.0.1, and each path begins with a secret that is new in each run;
- Host must be a name of this machine, because an attacker can give a name of theirs the address 127.0.0.1
  (DNS rebinding), and their page then counts as this server's own. Any port will do, for SSH tunnels;
- a POST must have the Origin of this Host and the type application/json, which other sites cannot send;
- the browser is started with an address that works once and leads to the secret one, because other users of
  the machine can read the command line of a process;
- the page may load files from this server only (Content-Security-Policy), and no site may frame it.

Requests compute in turns, in the order in which they came. A turn ends at each `step` of a view, so a slider
moves while a text is being written. A request whose page has gone or has cancelled it ends at its next
step.
"""

import io
import json
import re
import secrets
import select
import socket
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from ..checkpoints.files import parse_json
from ..errors import TiedGPTError
from .views import Query, Views

VIEWS = (
    *("start", "source", "next", "generate", "path", "symmetry", "solved", "nearest"),
    *("toy", "lens", "parts", "attention", "gradient", "params"),
)
MODULES = ("draw.js", "state.js", "panels.js", "page.js")  # each imports from those before it only
PAGE = {"": "page.html", "page.css": "page.css", **{name: name for name in MODULES}}  # path -> file
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
MAX_BODY = 64 * 1024
CONNECTIONS = 128
IDLE, REQUEST, TIMEOUT = 5.0, 20.0, 30.0  # seconds: until a request begins, for all of it, for each write
PROGRESS = 0.2  # seconds between two lines that say how far a computation is
LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")
BUSY = (
    f"{CONNECTIONS} connections are open, the most that tiedgpt explore serves. "
    "Close other pages of it, and reload this one."
)
SECURITY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
}


class Refusal(Exception):
    """A request that is not answered."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


def spelled(document: Any) -> bytes:
    return json.dumps(document, allow_nan=False).encode()


class Turns:
    """Requests that compute one after the other, first come, first served."""

    def __init__(self) -> None:
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()

    def wait(self, request: object, check: Callable[[], Any]) -> None:
        """Wait for a turn. `check` is called meanwhile, and when the turn begins. It may raise."""
        with self._changed:
            self._queue.append(request)
            while self._queue[0] is not request:
                self._changed.wait(0.05)
                check()
        check()

    def end(self, request: object) -> None:
        with self._changed:
            self._queue.remove(request)
            self._changed.notify_all()


class Reader(io.RawIOBase):
    """The bytes of a connection. A request must begin within IDLE seconds, and then end within REQUEST."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.deadline: float | None = None  # None before the request's first byte

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        left = IDLE if self.deadline is None else self.deadline - time.monotonic()
        self.connection.settimeout(max(left, 0.001))
        try:
            return self.connection.recv_into(buffer)
        finally:
            self.connection.settimeout(TIMEOUT)
            self.deadline = self.deadline or time.monotonic() + REQUEST


class Server(ThreadingHTTPServer):
    """The page and its views on one port of 127.0.0.1; port 0 is any free one."""

    daemon_threads = True
    request_queue_size = CONNECTIONS

    def __init__(self, views: Views, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.views, self.turns, self.stopping = views, Turns(), False
        self.secret, self.ticket = secrets.token_urlsafe(16), secrets.token_urlsafe(16)
        self.origin = f"http://127.0.0.1:{self.server_port}"
        self.url, self.url_once = f"{self.origin}/{self.secret}/", f"{self.origin}/{self.ticket}/"

    def stop(self) -> None:
        """Refuse new work, and make `serve_forever` return. Streams end at their next token."""
        self.stopping = True
        threading.Thread(target=self.shutdown, daemon=True).start()  # it waits for serve_forever

    def process_request(self, request: Any, client_address: Any) -> None:
        if threading.active_count() <= CONNECTIONS:
            return super().process_request(request, client_address)
        with suppress(OSError):
            request.settimeout(0.2)
            request.recv(MAX_BODY)  # a socket that is closed before it is read loses its answer
            head = f"HTTP/1.1 503 Busy\r\nContent-Type: text/plain\r\nContent-Length: {len(BUSY)}"
            request.sendall(f"{head}\r\nConnection: close\r\n\r\n{BUSY}".encode())
        self.shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is no error of the server's."""


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"  # connections stay open, which saves most of the time of a small request
    disable_nagle_algorithm = True
    wbufsize = 2**16  # what is written is sent by `flush`, as one packet
    server_version, sys_version = "tiedgpt", ""

    def setup(self) -> None:
        super().setup()
        self.reader = Reader(self.connection)
        self.rfile = io.BufferedReader(self.reader)

    def handle_one_request(self) -> None:
        self.reader.deadline = None
        super().handle_one_request()

    def log_message(self, *_: Any) -> None:
        """Log nothing: requests hold the user's text."""

    def do_GET(self) -> None:
        self.answer(self.send_page)

    def do_POST(self) -> None:
        self.answer(self.send_view)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):  # any other method
            return lambda: self.answer(self.send_page)
        raise AttributeError(name)

    def answer(self, send: Callable[[], None]) -> None:
        """Send an answer, or an error as JSON."""
        self.streaming = False
        try:
            if self.server.stopping:  # close the connection, as the end of the process will
                raise ConnectionAbortedError
            send()
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except Refusal as refusal:
            self.send_failure(refusal.status, refusal.status.phrase.lower(), str(refusal))
        except TiedGPTError as error:
            self.send_failure(HTTPStatus.BAD_REQUEST, type(error).__name__, str(error))
        except MemoryError:
            message = "there is not enough memory for this"
            self.send_failure(HTTPStatus.INTERNAL_SERVER_ERROR, "memory", message)
        except Exception as error:
            message = f"this is a bug in tiedgpt: {type(error).__name__}: {error}"
            self.send_failure(HTTPStatus.INTERNAL_SERVER_ERROR, "bug", message)

    def send_failure(self, status: HTTPStatus, kind: str, message: str) -> None:
        # What the client still sends is not read, so the connection cannot be used again.
        self.close_connection = self.close_connection or status != HTTPStatus.BAD_REQUEST
        document = {"error": {"kind": kind, "message": message}}
        with suppress(OSError):
            if self.streaming:
                self.send_line(document)
                self.wfile.write(b"0\r\n\r\n")
            else:
                self.send(status, "application/json", spelled(document))

    def send(self, status: HTTPStatus, type_: str, body: bytes | None, more: Mapping[str, str] = {}) -> None:
        """The head and the body in one piece; without a body, the head of a stream."""
        self.send_response(status)
        headers = {**SECURITY, **more, "Content-Type": f"{type_}; charset=utf-8"}
        length = {"Transfer-Encoding": "chunked"} if body is None else {"Content-Length": str(len(body))}
        if self.close_connection:
            headers["Connection"] = "close"
        for name, value in {**headers, **length}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body or b"")
        self.wfile.flush()

    def send_file(self, name: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        body = (files(__package__) / "page" / name).read_bytes()
        self.send(status, TYPES[name.rpartition(".")[2]], body)

    def host(self) -> str:
        """The Host that the browser sees. Raises Refusal for one that is no name of this machine."""
        hosts = self.headers.get_all("Host", [])
        if len(hosts) != 1 or not LOOPBACK.fullmatch(hosts[0]):
            raise Refusal(HTTPStatus.FORBIDDEN, "expected the host 127.0.0.1 or localhost")
        return hosts[0]

    def path_below_secret(self) -> str | None:
        """The path after the secret; None for the secret alone. Raises Refusal for another secret."""
        self.host()
        first, slash, rest = urlsplit(self.path).path.removeprefix("/").partition("/")
        if not secrets.compare_digest(first.encode(), self.server.secret.encode()):
            message = "nothing is here; open the address that tiedgpt explore printed"
            raise Refusal(HTTPStatus.NOT_FOUND, message)
        return rest if slash else None

    def send_page(self) -> None:
        ticket = f"/{self.server.ticket}/"
        if self.server.ticket and secrets.compare_digest(self.path.encode(), ticket.encode()):
            self.server.ticket, self.path = "", f"/{self.server.secret}"
        self.host()
        if self.path == "/ask.js":
            return self.send_file("ask.js")
        try:
            path = self.path_below_secret()
        except Refusal as refusal:
            if "text/html" not in self.headers.get("Accept", ""):
                raise
            return self.send_file("ask.html", refusal.status)  # an old link: it asks for the new secret
        if path is None:
            return self.send(HTTPStatus.FOUND, "text/html", b"", {"Location": f"/{self.server.secret}/"})
        if path in VIEWS or path == "quit" or self.command != "GET":
            raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, f"{self.command} is not expected here")
        if path not in PAGE:
            raise Refusal(HTTPStatus.NOT_FOUND, "the page has no such file")
        self.send_file(PAGE[path])

    def send_view(self) -> None:
        name = self.path_below_secret()
        query = self.read_query()
        if name == "quit":
            self.close_connection = True
            self.send(HTTPStatus.OK, "application/json", b"{}")
            return self.server.stop()
        if name not in VIEWS:
            status = HTTPStatus.METHOD_NOT_ALLOWED if name in PAGE else HTTPStatus.NOT_FOUND
            raise Refusal(status, "there is no such view")
        turns, said = self.server.turns, time.monotonic()

        def step(*_: Any, part: float | None = None) -> None:
            nonlocal said
            turns.end(self)
            turns.wait(self, self.check)
            if part is not None and time.monotonic() - said > PROGRESS:
                said = time.monotonic()
                self.send_line({"part": part})

        try:
            turns.wait(self, self.check)
            answer = getattr(self.server.views, name)(query, step)
            for line in () if isinstance(answer, dict) else answer:
                self.send_line(line)
        finally:
            turns.end(self)
        if isinstance(answer, dict) and not self.streaming:
            return self.send(HTTPStatus.OK, "application/json", spelled(answer))
        if isinstance(answer, dict):
            self.send_line(answer)
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def check(self) -> None:
        """Raise if the request should end: the server stops, or the page has closed the connection."""
        if self.server.stopping:
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the server is stopping")
        if select.select([self.connection], [], [], 0)[0] and not self.connection.recv(1, socket.MSG_PEEK):
            raise ConnectionAbortedError

    def read_query(self) -> Query:
        """The JSON of a POST. Raises Refusal for one that the page did not send."""
        own_site = self.headers.get("Sec-Fetch-Site", "same-origin") == "same-origin"
        if not own_site or self.headers.get("Origin") != f"http://{self.host()}":
            raise Refusal(HTTPStatus.FORBIDDEN, "expected a request of this server's own page")
        if self.headers.get_content_type() != "application/json":
            raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected application/json")
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            raise Refusal(HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length")
        size = int(length[:12])
        if size > MAX_BODY:
            if size <= 64 * MAX_BODY:  # read it, or the client would still be writing and miss the answer
                self.rfile.read(size)
            message = f"the request is longer than {MAX_BODY:,} bytes"
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
        try:
            query = parse_json(self.rfile.read(size))
        except (ValueError, RecursionError):
            query = None
        if not isinstance(query, dict):
            raise Refusal(HTTPStatus.BAD_REQUEST, "expected a JSON object")
        return query

    def send_line(self, document: dict[str, Any]) -> None:
        """One line of a stream, at once. Before the first one, an error still has a status of its own."""
        if not self.streaming:
            self.send(HTTPStatus.OK, "application/x-ndjson", None)
            self.streaming = True
        line = spelled(document) + b"\n"
        self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
        self.wfile.flush()
