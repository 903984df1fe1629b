"""The server of the two pages: HTTP for this machine only, one request at a time, and a page waits.

The article is at /SECRET/, and asks nothing. The laboratory is at /SECRET/lab.

A page of another site, open in the same browser, can send requests to this server too. So:
- the server listens on 127.0.0.1, and each path begins with a secret that is new in each run;
- Host must be a name of this machine, because an attacker can give a name of theirs the address
  127.0.0.1 (DNS rebinding), and their page then counts as this server's own. Any port will do, for
  SSH tunnels;
- a POST must have the Origin of this Host and the type application/json;
- the laboratory may load files from this server only, and the article nothing
  (Content-Security-Policy); no site may frame them.
"""

import io
import json
import math
import re
import secrets
import selectors
import time
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from importlib.resources import files
from operator import methodcaller
from typing import Any

from ..errors import TiedGPTError
from .panels import QUESTIONS, Answer
from .query import Query
from .shown import ShownModels

MAX_BODY = 64 * 1024  # bytes
MAX_WAITING = 32  # connections whose request is not whole; a browser opens a few
# A body of up to this size is read before it is refused: a browser that is still writing would miss
# the refusal. A client on this machine sends so much at once.
MAX_REFUSED_BODY = 64 * MAX_BODY
# The slowest line, in bytes per second: an SSH tunnel over a mobile network, for example.
SLOWEST_LINE = 8 * 1024
BODY_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*(\d{1,12})[ \t]*\r\n", re.IGNORECASE)
LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")
PAGE = files(__package__) / "page"
ARTICLE = files(__package__) / "tied.html"
MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
# A browser applies this one together with that in the article's own <meta>, where frame-ancestors
# has no effect.
ARTICLE_POLICY = "frame-ancestors 'none'"
HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
}


def page_files() -> dict[str, str]:
    """The files of the laboratory, in page/, by their paths below the secret."""
    by_path = {file.name: file.name for file in PAGE.iterdir()}
    by_path["lab"] = by_path.pop("page.html")
    return by_path


def to_json(answer: Any) -> str:
    """An answer as JSON: arrays as lists, NumPy's numbers as Python's."""
    return json.dumps(answer, allow_nan=False, default=methodcaller("tolist"))


class Refusal(Exception):
    """A request that is not answered: its status, and what was expected."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class Server(HTTPServer):
    """Both pages on one port of 127.0.0.1, port 0 is any free one: the article at `url`."""

    def __init__(self, shown: ShownModels, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.shown = shown
        self.stopped = False
        self.secret = secrets.token_urlsafe(16)
        self.url = f"http://127.0.0.1:{self.server_port}/{self.secret}/"

    def serve(self) -> None:
        """Answer one request after the other until `stopped`.

        A browser opens connections before it needs them, and a client may send slowly. So each
        connection is read when bytes have come, and a request is answered when it is whole.
        """
        with selectors.DefaultSelector() as waiting:
            waiting.register(self.socket, selectors.EVENT_READ)
            while not self.stopped:
                for key, _ in waiting.select(timeout=0.1):
                    if key.fileobj is self.socket:
                        connection, _ = self.socket.accept()
                        incoming = Incoming(connection, Handler.timeout)
                        waiting.register(connection, selectors.EVENT_READ, incoming)
                    elif key.data.read():
                        waiting.unregister(key.fileobj)
                        self.answer(key.data, requests_in(waiting))
                self.close_late(waiting)
            for incoming in requests_in(waiting):
                self.shutdown_request(incoming.connection)

    def close_late(self, waiting: selectors.BaseSelector) -> None:
        """Close late connections, and the oldest if there are more than MAX_WAITING."""
        requests = requests_in(waiting)
        oldest = requests[:-MAX_WAITING]
        for incoming in requests:
            if incoming.is_late() or incoming in oldest:
                waiting.unregister(incoming.connection)
                self.shutdown_request(incoming.connection)

    def answer(self, incoming: "Incoming", others: list["Incoming"]) -> None:
        """Answer the one request of a connection, and close it."""
        start = time.monotonic()
        with suppress(OSError):  # the page has gone, or does not read
            # Handler.setup takes the connection and what was received.
            Handler(incoming, incoming.connection.getpeername(), self)  # type: ignore[arg-type]
        self.shutdown_request(incoming.connection)
        for other in others:  # what they sent meanwhile is not read yet, which is not their fault
            other.end += time.monotonic() - start


class Incoming:
    """The request of a connection, as far as it has come.

    It has some seconds from its first byte on, and more for what a slow line takes.
    """

    def __init__(self, connection: Any, seconds: float) -> None:
        self.connection = connection
        self.seconds = seconds
        self.received = bytearray()
        self.end = math.inf  # on the clock time.monotonic

    def read(self) -> bool:
        """Read what has come. Is the request whole, or has the client gone?"""
        try:
            piece = self.connection.recv(MAX_BODY)
        except OSError:
            return True
        if not self.received:
            self.end = time.monotonic() + self.seconds
        self.end += len(piece) / SLOWEST_LINE
        self.received += piece
        return not piece or self.is_whole()

    def is_whole(self) -> bool:
        """Are the headers here, and as much of the body as is read?"""
        end_of_head = self.received.find(b"\r\n\r\n")
        if end_of_head < 0:
            return len(self.received) > MAX_BODY  # so large are no headers: they are refused
        length = BODY_LENGTH.search(self.received, 0, end_of_head + 2)
        size = int(length[1]) if length else 0  # a POST without a length is refused
        if size > MAX_REFUSED_BODY:
            return True  # it is refused unread
        return len(self.received) >= end_of_head + 4 + size

    def is_late(self) -> bool:
        return time.monotonic() > self.end


def requests_in(waiting: selectors.BaseSelector) -> list[Incoming]:
    """The requests that are not whole yet, from the oldest connection on."""
    return [key.data for key in waiting.get_map().values() if key.data is not None]


class Handler(BaseHTTPRequestHandler):
    """One request. GET sends a page or its file, POST an answer; there are no other methods."""

    server: Server
    timeout = 5  # seconds, for a request to come, and for each write
    server_version = "tiedgpt"
    sys_version = ""

    def setup(self) -> None:
        incoming = self.request
        self.request = incoming.connection
        super().setup()
        self.rfile = io.BytesIO(incoming.received)

    def log_message(self, *_: Any) -> None:
        """Log nothing: requests hold the user's text."""

    def do_GET(self) -> None:
        try:
            name = self.path_below_secret({"", *page_files()})
            if name == "":
                # The link to the laboratory is hidden where there is none.
                body = ARTICLE.read_bytes().replace(b'<a href="lab" hidden>', b'<a href="lab">')
                self.send(HTTPStatus.OK, "text/html", body, ARTICLE_POLICY)
                return
            file = page_files()[name]
            _, _, extension = file.rpartition(".")
            self.send(HTTPStatus.OK, MEDIA_TYPES[extension], (PAGE / file).read_bytes())
        except (Refusal, TiedGPTError) as error:
            status, message = failure(error)
            self.send(status, "text/plain", message.encode())

    def do_POST(self) -> None:
        """Send an answer as JSON: one object, or a line for each that the question yields."""
        try:
            answer = self.compute()
            if not isinstance(answer, dict):
                self.send_lines(answer)
                return
            status = HTTPStatus.OK
            body = to_json(answer)
        except OSError:  # the connection broke
            raise
        except Exception as error:
            status, message = failure(error)
            body = to_json({"error": message})
        self.send(status, "application/json", body.encode())

    def compute(self) -> Answer | Iterator[Answer]:
        """The answer to a POST. Raises Refusal for one that the page did not send."""
        body = self.read_body()
        self.refuse_other_pages()
        name = self.path_below_secret({*QUESTIONS, "quit"})
        fields = fields_of(body)
        if name == "quit":
            self.server.stopped = True
            return {}
        return QUESTIONS[name](Query(self.server.shown, fields))

    def path_below_secret(self, known: Any) -> str:
        """The path after /SECRET/, which must be a known one. Raises Refusal."""
        host = ", ".join(self.headers.get_all("Host", []))
        if not LOOPBACK.fullmatch(host):
            raise Refusal(HTTPStatus.FORBIDDEN, "expected the host 127.0.0.1 or localhost")
        secret, slash, path = self.path.removeprefix("/").partition("/")
        # The time of the comparison does not tell how much of a guess is right.
        is_secret = secrets.compare_digest(secret.encode(), self.server.secret.encode())
        if not is_secret or not slash or path not in known:
            raise Refusal(
                HTTPStatus.NOT_FOUND,
                "Nothing is here. Each run of tiedgpt explore has a new address: open the one that "
                "it has printed. Of an old link, what follows its last / goes to the end of the "
                "new address.",
            )
        return path

    def refuse_other_pages(self) -> None:
        """Raise Refusal for a POST that a page of another site sent, or a form."""
        if self.headers.get("Origin") != f"http://{self.headers.get('Host')}":
            raise Refusal(HTTPStatus.FORBIDDEN, "expected a request of this server's own page")
        if self.headers.get_content_type() != "application/json":
            raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected application/json")

    def read_body(self) -> bytes:
        """The body of a POST. Raises Refusal for one without a length, or a large one."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            raise Refusal(HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length")
        # `int` refuses thousands of digits. Twelve are enough to see that a size is too large.
        size = int(length[:12])
        body = self.rfile.read(size) if size <= MAX_REFUSED_BODY else b""
        if size > MAX_BODY:
            message = f"expected at most {MAX_BODY:,} bytes"
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
        return body

    def send(self, status: HTTPStatus, media_type: str, body: bytes, policy: str = POLICY) -> None:
        """Send a whole response."""
        self.send_head(status, media_type, {"Content-Length": str(len(body))}, policy)
        # The timeout counts for each `write`. So one write has what the slowest line takes in a
        # second, and a large answer has as many seconds as it needs.
        for start in range(0, len(body), SLOWEST_LINE):
            self.wfile.write(body[start : start + SLOWEST_LINE])

    def send_lines(self, answers: Iterator[Answer]) -> None:
        """Send each answer as a line of JSON at once. An error is the last line.

        A page that has gone cannot be written to: OSError, and the iterator ends.
        """
        self.send_head(HTTPStatus.OK, "application/x-ndjson", {})
        try:
            for answer in answers:
                self.wfile.write(to_json(answer).encode() + b"\n")
        except OSError:
            raise
        except Exception as error:
            _, message = failure(error)
            self.wfile.write(to_json({"error": message}).encode() + b"\n")

    def send_head(
        self, status: HTTPStatus, media_type: str, more: dict[str, str], policy: str = POLICY
    ) -> None:
        """Send the status and the headers."""
        self.send_response(status)
        self.send_header("Content-Type", f"{media_type}; charset=utf-8")
        self.send_header("Content-Security-Policy", policy)
        for name, value in {**HEADERS, **more}.items():
            self.send_header(name, value)
        self.end_headers()


def fields_of(body: bytes) -> dict[str, Any]:
    """The fields of a POST's body. Raises Refusal if it is not a JSON object."""
    fields: Any = None
    with suppress(ValueError, RecursionError):
        fields = json.loads(body)
    if not isinstance(fields, dict):
        raise Refusal(HTTPStatus.BAD_REQUEST, "expected a JSON object")
    return fields


def failure(error: Exception) -> tuple[HTTPStatus, str]:
    """The status and the message of a request that has no answer."""
    if isinstance(error, Refusal):
        return error.status, str(error)
    if isinstance(error, TiedGPTError):
        return HTTPStatus.BAD_REQUEST, str(error)
    bug = f"this is a bug in tiedgpt, or too little memory: {type(error).__name__}: {error}"
    return HTTPStatus.INTERNAL_SERVER_ERROR, bug
