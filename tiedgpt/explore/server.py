"""The server of the page: HTTP for this machine only, with one computation at a time.

A page of another site, open in the same browser, can send requests to this server too. So:
- the server listens on 127.0.0.1, and each path begins with a secret that is new in each run;
- Host must be 127.0.0.1 or localhost with this port, because an attacker can give a name of theirs the
  address 127.0.0.1 (DNS rebinding), and their page then counts as this server's own;
- a POST must have this server's Origin and the type application/json, which other sites cannot send unasked;
- the browser is started with an address that works once and leads to the secret one, because other users of
  the machine can read the command line of a process;
- the page may load files from this server only (Content-Security-Policy), and no site may frame it.

Requests compute in turns, in the order in which they came. A turn ends at each `step` of a view, so a slider
moves while a text is being written. A request that is replaced by a newer one of the same page ends at its
next step.
"""

import json
import secrets
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
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
PAGE = {"": "page.html", "page.css": "page.css", "page.js": "page.js"}  # path -> file
TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
MAX_BODY = 64 * 1024
CONNECTIONS = 8
TIMEOUT = 30  # seconds that a connection may be idle, or slow to send a request
BUSY = b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
PAGES = 64  # whose newest requests are remembered
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


class Turns:
    """Requests that compute one after the other, first come, first served."""

    def __init__(self) -> None:
        self._queue: deque[object] = deque()
        self._changed = threading.Condition()

    @contextmanager
    def turn(self, check: Callable[[], Any]) -> Iterator[Callable[..., None]]:
        """Wait for a turn, and hold it in the block. The block gets a function that lets the others go first.

        `check` is called whenever a turn begins, and while waiting. It may raise.
        """
        place = object()

        def wait() -> None:
            with self._changed:
                self._queue.append(place)
                while self._queue[0] is not place:
                    self._changed.wait(0.05)
                    check()
            check()

        def leave() -> None:
            with self._changed:
                self._queue.remove(place)
                self._changed.notify_all()

        def step(*_: Any) -> None:
            leave()
            wait()

        try:
            wait()
            yield step
        finally:
            leave()


class Server(ThreadingHTTPServer):
    """The page and its views on one port of 127.0.0.1; port 0 is any free one."""

    daemon_threads = True
    request_queue_size = 2 * CONNECTIONS

    def __init__(self, views: Views, port: int = 0) -> None:
        self.views = views
        self.secret = secrets.token_urlsafe(16)
        self.ticket = secrets.token_urlsafe(16)  # "" after it was used
        self.turns = Turns()
        self.stopping = False
        self._connections = threading.BoundedSemaphore(CONNECTIONS)
        self._newest: OrderedDict[tuple[str, str], int] = OrderedDict()
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", port), Handler)

    @property
    def origins(self) -> list[str]:
        return [f"http://{name}:{self.server_port}" for name in ("127.0.0.1", "localhost")]

    @property
    def url(self) -> str:
        return f"{self.origins[0]}/{self.secret}/"

    @property
    def url_once(self) -> str:
        return f"{self.origins[0]}/{self.ticket}/"

    def stop(self) -> None:
        """Refuse new work, and make `serve_forever` return. Streams end at their next token."""
        self.stopping = True
        threading.Thread(target=self.shutdown, daemon=True).start()  # it waits for serve_forever

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._connections.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with suppress(OSError):
            request.sendall(BUSY)
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A connection that breaks is no error of the server's."""

    def newest(self, view: str, query: Query) -> Callable[[], None]:
        """Note a request's number; return a function that raises Refusal if the request should end.

        A page numbers its requests. A request is replaced by one of the same page and view with a higher
        number.
        """
        page, number = query.get("page"), query.get("number")
        if not isinstance(page, str) or len(page) > 32 or type(number) is not int:
            raise Refusal(HTTPStatus.BAD_REQUEST, "expected a page and a number in the request")
        key = page, view
        with self._lock:
            self._newest[key] = max(number, self._newest.get(key, number))
            self._newest.move_to_end(key)
            while len(self._newest) > PAGES * len(VIEWS):
                self._newest.popitem(last=False)

        def check() -> None:
            if self.stopping:
                raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the server is stopping")
            if self._newest.get(key, number) > number:
                raise Refusal(HTTPStatus.CONFLICT, "a newer request has replaced this one")

        return check


class Handler(BaseHTTPRequestHandler):
    """One connection."""

    server: Server
    protocol_version = "HTTP/1.1"  # connections stay open, which saves most of the time of a small request
    disable_nagle_algorithm = True
    wbufsize = 2**16  # what is written is sent by `flush`, as one packet
    timeout = TIMEOUT
    server_version, sys_version = "tiedgpt", ""

    def log_message(self, *_: Any) -> None:
        """Log nothing: requests hold the user's text."""

    def do_GET(self) -> None:
        self.answer(self.send_page)

    def do_POST(self) -> None:
        self.answer(self.send_view)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("do_"):  # any other method
            return lambda: self.answer(self.refuse_method)
        raise AttributeError(name)

    def refuse_method(self) -> None:
        self.path_below_secret()
        raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "expected GET or POST")

    def answer(self, send: Callable[[], None]) -> None:
        """Send an answer, or an error as JSON."""
        self.streaming = False
        try:
            send()
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except Refusal as refusal:
            self.send_failure(refusal.status, refusal.status.phrase.lower(), str(refusal))
        except TiedGPTError as error:
            self.send_failure(HTTPStatus.BAD_REQUEST, type(error).__name__, str(error))
        except MemoryError:
            self.send_failure(
                HTTPStatus.INTERNAL_SERVER_ERROR, "memory", "there is not enough memory for this"
            )
        except Exception as error:
            message = f"this is a bug in tiedgpt: {type(error).__name__}: {error}"
            self.send_failure(HTTPStatus.INTERNAL_SERVER_ERROR, "bug", message)

    def send_failure(self, status: HTTPStatus, kind: str, message: str) -> None:
        # What the client still sends is not read, so the connection cannot be used again.
        self.close_connection = self.close_connection or status not in (
            HTTPStatus.BAD_REQUEST,
            HTTPStatus.CONFLICT,
        )
        document = {"error": {"kind": kind, "message": message}}
        with suppress(OSError):
            if self.streaming:
                self.send_line(document)
                self.wfile.write(b"0\r\n\r\n")
            else:
                self.send(status, "application/json", json.dumps(document).encode())

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

    def path_below_secret(self) -> str:
        """The path after the secret. Raises Refusal for another host or another secret."""
        hosts = [urlsplit(origin).netloc for origin in self.server.origins]
        if self.headers.get_all("Host", []) not in ([host] for host in hosts):
            raise Refusal(HTTPStatus.FORBIDDEN, f"expected the host {hosts[0]}")
        first, _, rest = urlsplit(self.path).path.removeprefix("/").partition("/")
        if not secrets.compare_digest(first.encode(), self.server.secret.encode()):
            raise Refusal(
                HTTPStatus.NOT_FOUND, "nothing is here; open the address that tiedgpt explore printed"
            )
        return rest

    def send_page(self) -> None:
        ticket = f"/{self.server.ticket}/"
        if self.server.ticket and secrets.compare_digest(self.path.encode(), ticket.encode()):
            self.server.ticket, self.path = "", f"/{self.server.secret}/"
            self.path_below_secret()
            self.send(HTTPStatus.FOUND, "text/html", b"", {"Location": self.path})
            return
        path = self.path_below_secret()
        if path in VIEWS or path == "quit":
            raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, f"{path} expects POST")
        if path not in PAGE:
            raise Refusal(HTTPStatus.NOT_FOUND, "the page has no such file")
        body = (files(__package__) / "page" / PAGE[path]).read_bytes()
        self.send(HTTPStatus.OK, TYPES[PAGE[path].rpartition(".")[2]], body)

    def send_view(self) -> None:
        name = self.path_below_secret()
        query = self.read_query()
        if name == "quit":
            self.close_connection = True
            self.send(HTTPStatus.OK, "application/json", b"{}")
            self.server.stop()
            return
        if name in PAGE:
            raise Refusal(HTTPStatus.METHOD_NOT_ALLOWED, "this expects GET")
        if name not in VIEWS:
            raise Refusal(HTTPStatus.NOT_FOUND, "there is no such view")
        view, check = getattr(self.server.views, name), self.server.newest(name, query)
        with self.server.turns.turn(check) as step:
            answer = view(query, step)
            if isinstance(answer, dict):
                body = json.dumps(answer, allow_nan=False).encode()
            else:
                self.send_stream(answer)
                return
        self.send(HTTPStatus.OK, "application/json", body)

    def read_query(self) -> Query:
        """The JSON of a POST. Raises Refusal for one that the page did not send."""
        if self.headers.get("Origin") not in self.server.origins:
            raise Refusal(HTTPStatus.FORBIDDEN, "expected a request of this server's own page")
        if self.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
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
            raise Refusal(
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the request is longer than {MAX_BODY:,} bytes"
            )
        try:
            query = parse_json(self.rfile.read(size))
        except (ValueError, RecursionError):
            query = None
        if not isinstance(query, dict):
            raise Refusal(HTTPStatus.BAD_REQUEST, "expected a JSON object")
        return query

    def send_stream(self, lines: Iterator[dict[str, Any]]) -> None:
        """One JSON document per line, each sent at once. It ends if the page is closed: writing fails."""
        for line in lines:
            if not self.streaming:  # not before the first line: until then, an error has its own status
                self.send(HTTPStatus.OK, "application/x-ndjson", None)
                self.streaming = True
            self.send_line(line)
        self.wfile.write(b"0\r\n\r\n")

    def send_line(self, document: dict[str, Any]) -> None:
        line = json.dumps(document, allow_nan=False).encode() + b"\n"
        self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
        self.wfile.flush()
