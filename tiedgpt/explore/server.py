"""The server of the page: HTTP for this machine only, with one computation at a time.

Pages of other sites and other users of this machine can send requests too. So:
- the server listens on 127.0.0.1, and each path begins with a secret that is new in each run;
- requests of other pages are refused (refusals.py);
- the browser is started with an address that works once and leads to the secret one, because other
  users of the machine can read the command line of a process;
- the page may load files from this server only (Content-Security-Policy), and no site may frame it.

Requests compute in turns (turns.py). A turn ends at each pause of a view, so a slider moves while a
text is being written. A request that its page has left or cancelled ends at its next pause.
"""

import io
import secrets
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

from ..errors import TiedGPTError
from .page_files import FILE_OF_PATH, content_type, read_page_file
from .refusals import (
    MAX_BODY,
    Refusal,
    content_length,
    fields_of,
    loopback_host,
    refuse_large_body,
    refuse_other_pages,
    refuse_unknown_path,
)
from .shown import ShownModels
from .turns import QueuedTurn, TurnQueue
from .views import VIEWS
from .views.query import Query
from .views.registry import Answer, View, to_json

# A body of up to this size is read before it is refused as too large.
MAX_REFUSED_BODY = 64 * MAX_BODY  # 4 MB, which a client on this machine sends at once
QUIT = "quit"  # the name of the request that stops the server
PATHS = {*FILE_OF_PATH, *VIEWS, QUIT}  # below the secret
MAX_CONNECTIONS = 128
REQUEST_SECONDS = 15.0  # for a connection's wait for a request, and all of the request
WRITE_SECONDS = 30.0  # for each write of an answer
BUSY = "tiedgpt explore serves no more connections. Close other pages of it, and reload this one."
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
SECURITY_HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
}


class DeadlineReader(socket.SocketIO):
    """The bytes of a connection, up to a time of the monotonic clock."""

    deadline = 0.0

    def readinto(self, buffer: Any) -> int | None:
        """As SocketIO.readinto. Raises TimeoutError if nothing comes before the deadline."""
        seconds = max(self.deadline - time.monotonic(), 0)
        readable, _, _ = select.select([self], [], [], seconds)
        if not readable:
            raise TimeoutError
        return super().readinto(buffer)


class Server(ThreadingHTTPServer):
    """The page and its views on one port of 127.0.0.1; port 0 is any free one.

    `url` is the address of the page. `url_once` leads to it one time.
    """

    daemon_threads = True
    request_queue_size = MAX_CONNECTIONS

    def __init__(self, shown: ShownModels, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), Handler)
        self.shown = shown
        self.stopping = False
        self.turns = TurnQueue()
        self.secret = secrets.token_urlsafe(16)
        self.ticket = secrets.token_urlsafe(16)  # "" when it has been used
        self.origin = f"http://127.0.0.1:{self.server_port}"
        self.url = f"{self.origin}/{self.secret}/"
        self.url_once = f"{self.origin}/{self.ticket}/"

    def process_request(self, request: Any, client_address: Any) -> None:
        """Serve a connection in a thread of its own, or refuse it if there are too many."""
        if threading.active_count() <= MAX_CONNECTIONS:
            super().process_request(request, client_address)
        else:
            self.refuse_connection(request)

    def refuse_connection(self, request: socket.socket) -> None:
        """Answer that the server is busy, without a thread, and close the connection."""
        head = (
            "HTTP/1.1 503 Busy\r\n"
            "Content-Type: text/plain\r\n"
            f"Content-Length: {len(BUSY)}\r\n"
            "Connection: close\r\n\r\n"
        )
        with suppress(OSError):
            request.settimeout(0.2)  # seconds; no other connection is accepted meanwhile
            request.recv(MAX_BODY)  # a socket that is closed before it is read loses its answer
            request.sendall((head + BUSY).encode())
        self.shutdown_request(request)

    def use_ticket(self, word: str) -> bool:
        """Whether a word is the ticket, which then is used up."""
        if not self.ticket or not is_same_secret(word, self.ticket):
            return False
        self.ticket = ""
        return True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Do nothing: a connection that breaks is not an error of the server."""


def is_same_secret(word: str, secret: str) -> bool:
    """Whether they are equal, in a time that does not tell how much of a guess is right."""
    return secrets.compare_digest(word.encode(), secret.encode())


class Handler(BaseHTTPRequestHandler):
    """One connection and its requests. GET sends a file of the page, POST an answer of a view."""

    server: Server
    # Connections stay open, which saves most of the time of a small request.
    protocol_version = "HTTP/1.1"
    timeout = WRITE_SECONDS
    disable_nagle_algorithm = True
    wbufsize = 2**16  # what is written is sent by `flush`, as one packet
    server_version = "tiedgpt"
    sys_version = ""

    def setup(self) -> None:
        """Begin a connection. What it reads goes through a DeadlineReader."""
        super().setup()
        self.reader = DeadlineReader(self.connection, "r")
        self.rfile = io.BufferedReader(self.reader)

    def handle_one_request(self) -> None:
        """Wait for a request, and answer it. One that is not here in time ends the connection."""
        self.reader.deadline = time.monotonic() + REQUEST_SECONDS
        super().handle_one_request()

    def log_message(self, *_: Any) -> None:
        """Log nothing: requests hold the user's text."""

    def do_GET(self) -> None:
        self.respond(self.send_page)

    # send_page refuses these, whatever their path.
    do_HEAD = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_GET

    def do_POST(self) -> None:
        self.respond(self.send_view)

    def respond(self, send: Callable[[], None]) -> None:
        """Send an answer, or an error."""
        self.head_is_sent = False
        try:
            if self.server.stopping:
                raise ConnectionAbortedError  # the connection is closed without an answer
            send()
        except (ConnectionError, TimeoutError):
            self.close_connection = True
        except Exception as error:
            with suppress(OSError):
                self.send_failure(error)

    # The answers

    def send_page(self) -> None:
        """Send a file of the page, or lead to the secret address."""
        if self.path == "/ask.js":
            # This is the script of ask.html, which a browser gets that does not know the secret.
            loopback_host(self.headers)
            self.send_file("ask.js")
            return
        path = self.path_below_secret()
        if path is None:
            self.send_redirect(f"/{self.server.secret}/")
            return
        paths_of_method = FILE_OF_PATH
        if self.command != "GET":
            # do_GET is called for HEAD and PUT too, and no path accepts these.
            paths_of_method = {}
        refuse_unknown_path(self.command, path, paths_of_method, of_any_method=PATHS)
        self.send_file(FILE_OF_PATH[path])

    def send_view(self) -> None:
        """Send the answer of a view, or stop the server."""
        name = self.path_below_secret()
        fields = self.read_fields()
        refuse_unknown_path(self.command, name, {*VIEWS, QUIT}, of_any_method=PATHS)
        if name == QUIT:
            self.quit()
        else:
            self.send_answer(VIEWS[str(name)], Query(self.server.shown, fields))

    def send_answer(self, view: View, query: Query) -> None:
        """Compute a view's answer in turns, and send it: a line, or several from an iterator.

        The computation may call `send_part`, whose lines come before the answer's own.
        """
        turn = QueuedTurn(self.server.turns, self.check_is_wanted, self.send_part)
        with turn:
            answer = view(query, turn)
            if not isinstance(answer, dict):
                for line in answer:  # the iterator computes each line, so it needs the turn
                    self.send_line(line)

        # A single line is complete. It is sent after the turn, so that no request waits for that.
        if isinstance(answer, dict):
            self.send_line(answer)
        self.end_lines()

    def quit(self) -> None:
        """Answer with {}, then stop the server."""
        self.close_connection = True
        self.send_line({})
        self.server.stopping = True  # streams end at their next token
        self.end_lines()  # now, because the process may end at once
        # `shutdown` waits for serve_forever, so it needs a thread of its own.
        threading.Thread(target=self.server.shutdown).start()

    def send_failure(self, error: Exception) -> None:
        """Send an error as JSON.

        A browser that opens an old link gets a page that asks for the new secret.
        """
        if isinstance(error, Refusal):
            status = error.status
            message = error.message
        elif isinstance(error, TiedGPTError):
            status = HTTPStatus.BAD_REQUEST
            message = str(error)
        else:
            status = HTTPStatus.INTERNAL_SERVER_ERROR
            message = (
                f"this is a bug in tiedgpt, or too little memory: {type(error).__name__}: {error}"
            )
        # A bad request was read to its end. Other errors may come before that, and then the next
        # request would begin in the middle of this one.
        if status != HTTPStatus.BAD_REQUEST:
            self.close_connection = True

        wants_html = "text/html" in self.headers.get("Accept", "")
        if status == HTTPStatus.NOT_FOUND and wants_html:
            self.send_file("ask.html", status)
        else:
            self.send_line({"error": {"kind": status.phrase.lower(), "message": message}}, status)
            self.end_lines()

    # What they read

    def path_below_secret(self) -> str | None:
        """The path after /SECRET/; None for /SECRET and /TICKET, which lead to /SECRET/.

        Raises Refusal for another, and for a Host that is not a name of this machine.
        """
        loopback_host(self.headers)
        path = urlsplit(self.path).path
        first, slash, rest = path.removeprefix("/").partition("/")
        if is_same_secret(first, self.server.secret):
            if slash == "":
                return None
            return rest
        if self.server.use_ticket(first):
            return None
        raise Refusal(
            HTTPStatus.NOT_FOUND, "nothing is here; open the address that tiedgpt explore printed"
        )

    def read_fields(self) -> dict[str, Any]:
        """The fields of a POST. Raises Refusal for one that the page did not send."""
        refuse_other_pages(self.headers)
        size = content_length(self.headers)
        # A client that is still writing would miss the refusal. So a body that is too large is read
        # first, unless that would take long.
        if MAX_BODY < size <= MAX_REFUSED_BODY:
            self.rfile.read(size)
        refuse_large_body(size)
        return fields_of(self.rfile.read(size))

    def check_is_wanted(self) -> None:
        """Raise if the request should end: the server stops, or the page closed the connection."""
        if self.server.stopping:
            raise Refusal(HTTPStatus.SERVICE_UNAVAILABLE, "the server is stopping")
        # A connection that the page has closed can be read, and has no bytes. MSG_PEEK leaves a
        # byte of the next request where it is.
        readable, _, _ = select.select([self.connection], [], [], 0)
        if readable and not self.connection.recv(1, socket.MSG_PEEK):
            raise ConnectionAbortedError

    # How they are sent

    def send_head(self, status: HTTPStatus, media_type: str, **more_headers: str) -> None:
        """Send the status and the headers; Content_Length is written Content-Length."""
        self.send_response(status)
        for name, value in SECURITY_HEADERS.items():
            self.send_header(name, value)
        self.send_header("Content-Type", f"{media_type}; charset=utf-8")
        for name, value in more_headers.items():
            self.send_header(name.replace("_", "-"), value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def send_redirect(self, location: str) -> None:
        """Lead the browser to another address."""
        self.send_head(HTTPStatus.FOUND, "text/html", Location=location, Content_Length="0")

    def send_file(self, name: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        """Send a file of page/."""
        body = read_page_file(name)
        self.send_head(status, content_type(name), Content_Length=str(len(body)))
        self.wfile.write(body)

    def send_line(self, answer: Answer, status: HTTPStatus = HTTPStatus.OK) -> None:
        """Send one line of an answer at once, after the head if it is the first one.

        `status` is that of the first line. An error after it is a line like the others.
        """
        if not self.head_is_sent:
            media_type = "application/json"  # of an error, which is one line
            if status == HTTPStatus.OK:
                media_type = "application/x-ndjson"  # of lines of JSON
            self.send_head(status, media_type, Transfer_Encoding="chunked")
            self.head_is_sent = True
        line = to_json(answer).encode() + b"\n"
        # A chunk is its length in hexadecimal digits, and its bytes.
        self.wfile.write(b"%x\r\n%b\r\n" % (len(line), line))
        self.wfile.flush()

    def send_part(self, part: float) -> None:
        """Send which part of the work is done, from 0 to 1."""
        self.send_line({"part": part})

    def end_lines(self) -> None:
        """End the answer with a chunk of no bytes."""
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()
