"""The server of the page: HTTP for this machine only, with one computation at a time.

A page of another site, open in the same browser, can send requests to this server too. So:
- the server listens on 127.0.0.1, and each path begins with a secret that is new in each run;
- Host must be a name of this machine, because an attacker can give a name of theirs the address
  127.0.0.1 (DNS rebinding), and their page then counts as this server's own. Any port will do, for
  SSH tunnels;
- a POST must have the Origin of this Host and the type application/json, which other sites cannot
  send;
- the browser is started with an address that works once and leads to the secret one, because other
  users of the machine can read the command line of a process;
- the page may load files from this server only (Content-Security-Policy), and no site may frame it.

Requests compute in turns, first come, first served. A turn ends at each `step` of a view, so a
slider moves while a text is being written. A request that its page has left or cancelled ends at
its next step.
"""

import io
import os
import re
import secrets
import select
import socket
import threading
import time
import webbrowser
from collections import deque
from collections.abc import Callable, Container
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

from ..checkpoints.reading import parse_json
from ..errors import TiedGPTError
from .views import Query, Views, to_json

PANELS = ["next", "path", "toy", "lens", "parts", "attention", "gradient", "cost"]
VIEWS = ["start", "generate", "symmetry", "solved", "nearest", *PANELS]
MODULES = [f"{name}.js" for name in ("draw", "state", "flow", *PANELS, "page")]  # as they import
PAGE = {"": "page.html", "page.css": "page.css", **{name: name for name in MODULES}}  # path -> file
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
MAX_BODY = 64 * 1024
CONNECTIONS = 128
REQUEST, TIMEOUT = 15.0, 30.0  # seconds: for the wait for a request and all of it, for each write
PROGRESS = 0.2  # seconds between two lines that say how far a computation is
LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")
BUSY = "tiedgpt explore serves no more connections. Close other pages of it, and reload this one."
SECURITY = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
}


class Refusal(Exception):
    """Refusal(status, message): a request that is not answered."""


def require(condition: object, status: HTTPStatus, message: str) -> None:
    if not condition:
        raise Refusal(status, message)


class Reader(socket.SocketIO):
    """The bytes of a connection, up to a time."""

    deadline = 0.0

    def readinto(self, buffer: Any) -> int | None:
        left = max(self.deadline - time.monotonic(), 0)
        if not select.select([self], [], [], left)[0]:
            raise TimeoutError
        return super().readinto(buffer)


class Server(ThreadingHTTPServer):
    """The page and its views on one port of 127.0.0.1; port 0 is any free one."""

    daemon_threads = True
    request_queue_size = CONNECTIONS

    def __init__(self, views: Views, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.views, self.stopping = views, False
        self.queue: deque[Handler] = (
            deque()
        )  # the requests that compute in turns; the first has its turn
        self.changed = threading.Condition()
        self.secret, self.ticket = secrets.token_urlsafe(16), secrets.token_urlsafe(16)
        self.origin = f"http://127.0.0.1:{self.server_port}"
        self.url, self.url_once = f"{self.origin}/{self.secret}/", f"{self.origin}/{self.ticket}/"

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


def open_browser(url: str) -> bool:
    """Open the page in $BROWSER or a browser with windows, in the background. False if there is
    none."""
    with suppress(webbrowser.Error):
        browser = webbrowser.get()
        # lynx or w3m would take the terminal, but the reader's own choice is never refused.
        if type(browser) is not webbrowser.GenericBrowser or os.environ.get("BROWSER"):
            threading.Thread(target=browser.open, args=(url,), daemon=True).start()
            return True
    return False


class Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = (
        "HTTP/1.1"  # connections stay open, which saves most of the time of a small request
    )
    timeout = TIMEOUT
    disable_nagle_algorithm = True
    wbufsize = 2**16  # what is written is sent by `flush`, as one packet
    server_version, sys_version = "tiedgpt", ""

    def setup(self) -> None:
        super().setup()
        self.reader = Reader(self.connection, "r")
        self.rfile = io.BufferedReader(self.reader)

    def handle_one_request(self) -> None:
        self.reader.deadline = time.monotonic() + REQUEST
        super().handle_one_request()

    def log_message(self, *_: Any) -> None:
        """Log nothing: requests hold the user's text."""

    def do_GET(self) -> None:
        self.answer(self.send_page)

    do_HEAD = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_GET

    def do_POST(self) -> None:
        self.answer(self.send_view)

    def answer(self, send: Callable[[], None]) -> None:
        self.streaming = False
        try:
            if self.server.stopping:  # close the connection, as the end of the process will
                raise ConnectionAbortedError
            send()
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except Exception as error:
            with suppress(OSError):
                self.send_failure(error)

    def send_failure(self, error: Exception) -> None:
        """An error as JSON. A browser that opens an old link gets a page that asks for the new
        secret."""
        message = f"this is a bug in tiedgpt, or too little memory: {type(error).__name__}: {error}"
        status = HTTPStatus.INTERNAL_SERVER_ERROR
        if isinstance(error, Refusal):
            status, message = error.args
        elif isinstance(error, TiedGPTError):
            status, message = HTTPStatus.BAD_REQUEST, str(error)
        self.close_connection |= (
            status != HTTPStatus.BAD_REQUEST
        )  # what the client still sends is not read
        if status == HTTPStatus.NOT_FOUND and "text/html" in self.headers.get("Accept", ""):
            return self.send_file("ask.html", status)
        self.send_line({"error": {"kind": status.phrase.lower(), "message": message}}, status)
        self.end_lines()

    def send_head(self, status: HTTPStatus, type_: str, **more: str) -> None:
        self.send_response(status)
        if self.close_connection:
            more["Connection"] = "close"
        for name, value in {**SECURITY, "Content-Type": f"{type_}; charset=utf-8", **more}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()

    def send_line(self, document: dict[str, Any], status: HTTPStatus = HTTPStatus.OK) -> None:
        """One line of an answer, at once. Before the first one, an error still has a status of its
        own."""
        if not self.streaming:
            type_ = "application/x-ndjson" if status == HTTPStatus.OK else "application/json"
            self.send_head(status, type_, Transfer_Encoding="chunked")
            self.streaming = True
        line = to_json(document).encode() + b"\n"
        self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
        self.wfile.flush()

    def end_lines(self) -> None:
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def send_file(self, name: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        body = (files(__package__) / "page" / name).read_bytes()
        self.send_head(status, TYPES[name.rpartition(".")[2]], Content_Length=str(len(body)))
        self.wfile.write(body)

    def host(self) -> str:
        """The Host that the browser sees. Raises Refusal for one that is no name of this
        machine."""
        host = ", ".join(self.headers.get_all("Host", []))
        require(
            LOOPBACK.fullmatch(host),
            HTTPStatus.FORBIDDEN,
            "expected the host 127.0.0.1 or localhost",
        )
        return host

    def path_below_secret(self) -> str | None:
        """The path after the secret; None for one that leads to the secret. Raises Refusal for
        another."""
        self.host()
        first, slash, rest = urlsplit(self.path).path.removeprefix("/").partition("/")
        if secrets.compare_digest(first.encode(), self.server.secret.encode()):
            return rest if slash else None
        if self.server.ticket and secrets.compare_digest(
            first.encode(), self.server.ticket.encode()
        ):
            self.server.ticket = ""
            return None
        raise Refusal(
            HTTPStatus.NOT_FOUND, "nothing is here; open the address that tiedgpt explore printed"
        )

    def send_page(self) -> None:
        if self.path == "/ask.js" and self.host():
            return self.send_file("ask.js")
        path = self.path_below_secret()
        if path is None:
            location = f"/{self.server.secret}/"
            return self.send_head(
                HTTPStatus.FOUND, "text/html", Location=location, Content_Length="0"
            )
        self.expect(path, PAGE if self.command == "GET" else ())
        self.send_file(PAGE[path])

    def expect(self, path: str | None, known: Container[str]) -> None:
        if path not in known:
            is_other = path in (*PAGE, *VIEWS, "quit")
            status = HTTPStatus.METHOD_NOT_ALLOWED if is_other else HTTPStatus.NOT_FOUND
            raise Refusal(status, f"{self.command} of {path or 'the page'} is not expected")

    def send_view(self) -> None:
        name = self.path_below_secret()
        query = self.read_query()
        self.expect(name, (*VIEWS, "quit"))
        if name == "quit":
            self.close_connection = True
            self.send_line({})
            self.server.stopping = True  # streams end at their next token
            self.end_lines()  # now, because the process may end at once
            return threading.Thread(
                target=self.server.shutdown
            ).start()  # it waits for serve_forever
        said = time.monotonic()

        def step(*_: Any, part: float | None = None) -> None:
            nonlocal said
            self.end_turn()
            self.wait_for_turn()
            if part is not None and time.monotonic() - said > PROGRESS:
                said = time.monotonic()
                self.send_line({"part": part})

        try:
            self.wait_for_turn()
            answer = getattr(self.server.views, str(name))(query, step)
            for line in () if isinstance(answer, dict) else answer:
                self.send_line(line)
        finally:
            self.end_turn()
        if isinstance(answer, dict):
            self.send_line(answer)
        self.end_lines()

    def wait_for_turn(self) -> None:
        """Wait, first come, first served. Raises what `check` raises."""
        with self.server.changed:
            self.server.queue.append(self)
            while self.server.queue[0] is not self:
                self.server.changed.wait(0.05)
                self.check()
        self.check()

    def end_turn(self) -> None:
        with self.server.changed:
            self.server.queue.remove(self)
            self.server.changed.notify_all()

    def check(self) -> None:
        """Raise if the request should end: the server stops, or the page has closed the
        connection."""
        if self.server.stopping:
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the server is stopping")
        if select.select([self.connection], [], [], 0)[0] and not self.connection.recv(
            1, socket.MSG_PEEK
        ):
            raise ConnectionAbortedError

    def read_query(self) -> Query:
        """The JSON of a POST. Raises Refusal for one that the page did not send."""
        own_site = self.headers.get("Sec-Fetch-Site", "same-origin") == "same-origin"
        own_page = own_site and self.headers.get("Origin") == f"http://{self.host()}"
        require(own_page, HTTPStatus.FORBIDDEN, "expected a request of this server's own page")
        is_json = self.headers.get_content_type() == "application/json"
        require(is_json, HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected application/json")
        length = self.headers.get("Content-Length", "")
        known = length.isascii() and length.isdigit()
        require(known, HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length")
        size = int(length[:12])
        if MAX_BODY < size <= 64 * MAX_BODY:  # a client that is still writing would miss the answer
            self.rfile.read(size)
        require(
            size <= MAX_BODY,
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            f"expected at most {MAX_BODY:,} bytes",
        )
        query: Any = None
        with suppress(ValueError, RecursionError):
            query = parse_json(self.rfile.read(size))
        require(isinstance(query, dict), HTTPStatus.BAD_REQUEST, "expected a JSON object")
        return query
