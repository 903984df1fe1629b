"""The server of the two pages: HTTP for this machine only, and one answer is computed at a time.

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

import json
import re
import secrets
import socket
import threading
from collections.abc import Iterator
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from operator import methodcaller
from typing import Any

from ..errors import TiedGPTError
from .panels import QUESTIONS, Answer
from .query import Query, ShownModels

MAX_BODY = 64 * 1024  # bytes
MAX_STRANGERS = 32  # connections that have not sent the secret yet; a browser opens a few
MAX_REFUSED_BODY = 64 * MAX_BODY  # a client on this machine sends so much at once
# The slowest line, in bytes per second: an SSH tunnel over a mobile network, for example.
SLOWEST_LINE = 8 * 1024
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


class Server(ThreadingHTTPServer):
    """Both pages on one port of 127.0.0.1, the article at `url`. Port 0 means any free one.

    Each connection has a thread: a client that sends or reads slowly keeps no other waiting.
    """

    timeout = 0.1  # seconds, after which `serve` looks at `stopped` again

    def __init__(self, shown: ShownModels, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.shown = shown
        self.computing = threading.Lock()  # the models and their caches serve one thread at a time
        self.strangers: list[Any] = []  # connections that have not sent the secret yet
        self.stopped = False
        self.secret = secrets.token_urlsafe(16)
        self.url = f"http://127.0.0.1:{self.server_port}/{self.secret}/"

    def serve(self) -> None:
        """Answer requests until `stopped`."""
        while not self.stopped:
            self.handle_request()

    def process_request(self, connection: Any, address: Any) -> None:
        """Start the thread of a connection. Of too many strangers, close the oldest."""
        self.strangers.append(connection)
        if len(self.strangers) > MAX_STRANGERS:
            with suppress(OSError):  # it has gone already
                self.strangers[0].shutdown(socket.SHUT_RDWR)  # its thread reads the end
        super().process_request(connection, address)

    def remove_stranger(self, connection: Any) -> None:
        with suppress(ValueError):  # it has sent the secret before
            self.strangers.remove(connection)


class Handler(BaseHTTPRequestHandler):
    """One request. GET sends a page or its file, POST an answer; there are no other methods."""

    server: Server
    patience = 5  # seconds, for each read of a piece of the request, and for each write
    is_last = False  # after this request the server stops
    server_version = "tiedgpt"
    sys_version = ""

    def handle(self) -> None:
        with suppress(OSError):  # the page has gone, or does not read
            # No limit for the first byte: a browser opens connections before it needs them.
            self.connection.recv(1, socket.MSG_PEEK)
            self.connection.settimeout(self.patience)
            super().handle()
        self.server.remove_stranger(self.connection)

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
        if self.is_last:
            self.server.stopped = True

    def compute(self) -> Answer | Iterator[Answer]:
        """The answer to a POST, or an iterator of answers.

        Raises Refusal for a POST that the page did not send.
        """
        body = self.read_body()
        # A page of another site, or a form of it, may have sent it.
        if self.headers.get("Origin") != f"http://{self.headers.get('Host')}":
            raise Refusal(HTTPStatus.FORBIDDEN, "expected a request of this server's own page")
        if self.headers.get_content_type() != "application/json":
            raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected application/json")
        name = self.path_below_secret({*QUESTIONS, "quit"})
        fields: Any = None
        with suppress(ValueError, RecursionError):  # no JSON, or nested too deeply
            fields = json.loads(body)
        if not isinstance(fields, dict):
            raise Refusal(HTTPStatus.BAD_REQUEST, "expected a JSON object")
        if name == "quit":
            self.is_last = True
            return {}
        # An iterator has not computed its answers yet: send_lines locks for each of them.
        with self.server.computing:
            return QUESTIONS[name](Query(self.server.shown, fields))

    def path_below_secret(self, known: set[str]) -> str:
        """The path after /SECRET/, which must be in `known`. Raises Refusal."""
        host = ", ".join(self.headers.get_all("Host", []))  # two of them are refused, too
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
        self.server.remove_stranger(self.connection)
        return path

    def read_body(self) -> bytes:
        """The body of a POST. Raises Refusal for one without a length, or a large one."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            raise Refusal(HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length")
        # `int` refuses thousands of digits. Twelve are enough to see that a size is too large.
        size = int(length[:12])
        # A body that is refused is read too, up to a limit: a browser that is still writing would
        # miss the refusal.
        body = self.rfile.read(size) if size <= MAX_REFUSED_BODY else b""
        if size > MAX_BODY:
            message = f"expected at most {MAX_BODY:,} bytes"
            raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, message)
        return body

    def send(self, status: HTTPStatus, media_type: str, body: bytes, policy: str = POLICY) -> None:
        """Send a whole response."""
        self.send_head(status, media_type, {"Content-Length": str(len(body))}, policy)
        # The socket's timeout is for each `write`, not for the whole answer. So the body is sent in
        # pieces, each of which even the slowest line takes in a second.
        for start in range(0, len(body), SLOWEST_LINE):
            self.wfile.write(body[start : start + SLOWEST_LINE])

    def send_lines(self, answers: Iterator[Answer]) -> None:
        """Send each answer as a line of JSON at once. An error is the last line.

        A page that has gone cannot be written to: OSError, and the iterator ends.
        """
        self.send_head(HTTPStatus.OK, "application/x-ndjson", {})
        try:
            while not self.server.stopped:
                with self.server.computing:  # other questions are answered between two lines
                    answer = next(answers, None)
                if answer is None:
                    break
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


def failure(error: Exception) -> tuple[HTTPStatus, str]:
    """The status and the message of a request that has no answer."""
    if isinstance(error, Refusal):
        return error.status, str(error)
    if isinstance(error, TiedGPTError):
        return HTTPStatus.BAD_REQUEST, str(error)
    bug = f"this is a bug in tiedgpt, or too little memory: {type(error).__name__}: {error}"
    return HTTPStatus.INTERNAL_SERVER_ERROR, bug
