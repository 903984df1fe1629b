"""The server of `tiedgpt explore`: what it answers and refuses, and how requests take turns.

A view is a function of VIEWS that computes the answer to one kind of request, such as "lens". A
request has its turn while its view computes: `turn.pause()` lets other requests go on, and ends the
view if nobody waits for its answer. `turn.report(part)` sends how much of the answer is computed.

The address of the server is http://127.0.0.1:PORT/SECRET/. Other programs and sites do not know the
secret. The functions post, get and status_of send a request, and return its status first.
"""

import json
import socket
import threading
import time
import webbrowser
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import cycle

import pytest
from support.explore_server import (
    connect,
    get,
    page_headers,
    post,
    post_body,
    post_lines,
    request,
    serving,
    shown_models,
    view_answer,
)

from tiedgpt.explore import server as server_module
from tiedgpt.explore import turns
from tiedgpt.explore.browser import open_browser
from tiedgpt.explore.page_files import FILE_OF_PATH, read_page_file
from tiedgpt.explore.refusals import MAX_BODY
from tiedgpt.explore.views import VIEWS

TEXT = "To be, or not to be"
FIELDS = {"text": TEXT}
BODY = json.dumps(FIELDS).encode()


@pytest.fixture(scope="module")
def shown():
    return shown_models()


@pytest.fixture(scope="module")
def server(shown):
    with serving(shown) as server:
        yield server


@pytest.fixture
def is_alive(server):
    """Checks after the test that the server still answers."""
    yield
    status, answer = post(server, "next", {"text": "still here"})
    assert status == 200
    assert answer["text"] == "still here"


def status_of(server, path, **headers):
    """The status of a GET request with these headers."""
    status, _, _ = get(server, path, **headers)
    return status


def with_port(text, server):
    return text.replace("PORT", str(server.server_port))


# Answers


def test_a_view_is_answered(server, shown):
    assert post(server, "lens", FIELDS) == (200, view_answer(shown, "lens", FIELDS))


def test_a_view_with_several_answers_sends_a_line_for_each(server, shown):
    fields = {"text": TEXT, "n": 9, "seed": 5}
    status, lines = post_lines(server, "generate", fields)
    assert status == 200
    assert len(lines) == 9 + 1, "one for each token, and one that says why the text ends"
    assert lines == view_answer(shown, "generate", fields)


@pytest.mark.usefixtures("is_alive")
def test_wrong_fields_are_an_error(server):
    status, answer = post(server, "next", {"text": 5})
    assert status == 400
    assert answer["error"]["kind"] == "bad request"
    assert answer["error"]["message"].startswith("text must be a string")


@pytest.mark.usefixtures("is_alive")
def test_an_exception_in_a_view_is_reported_as_a_bug(server, monkeypatch):
    monkeypatch.setitem(VIEWS, "lens", lambda query, turn: 1 / 0)
    status, answer = post(server, "lens", FIELDS)
    assert status == 500
    assert "a bug in tiedgpt" in answer["error"]["message"]


@pytest.mark.parametrize("path", FILE_OF_PATH)
def test_each_file_of_the_page_is_sent(server, path):
    status, body, _ = get(server, f"/{server.secret}/{path}")
    assert status == 200
    assert body == read_page_file(FILE_OF_PATH[path])


@pytest.mark.parametrize("path", FILE_OF_PATH)
def test_the_headers_of_a_file(server, path):
    _, _, response = get(server, f"/{server.secret}/{path}")
    assert response.getheader("X-Content-Type-Options") == "nosniff"
    assert response.getheader("Cache-Control") == "no-store"
    assert response.getheader("Referrer-Policy") == "same-origin"
    policy = response.getheader("Content-Security-Policy")
    assert "unsafe" not in policy
    rules = policy.split("; ")
    assert "default-src 'none'" in rules
    assert "script-src 'self'" in rules
    assert "connect-src 'self'" in rules
    assert "frame-ancestors 'none'" in rules


# Addresses


def test_the_address_in_the_browsers_command_line_works_once(shown):
    """Other users can see a command line. So it has a ticket, which leads to the secret once."""
    with serving(shown) as server:
        ticket_path = f"/{server.ticket}/"
        secret_path = f"/{server.secret}/"
        assert server.url_once.endswith(ticket_path)
        assert status_of(server, ticket_path, Host="evil.example") == 403
        status, _, response = get(server, ticket_path)
        assert status == 302
        assert response.getheader("Location") == secret_path
        assert status_of(server, ticket_path) == 404
        assert status_of(server, "//") == 404, "a used ticket is not replaced by an empty one"
        assert status_of(server, secret_path) == 200


def test_an_address_without_its_slash_leads_to_the_page(server):
    status, _, response = get(server, f"/{server.secret}")
    assert status == 302
    assert response.getheader("Location") == f"/{server.secret}/"


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        pytest.param("text/html", "text/html; charset=utf-8", id="browser"),
        pytest.param("*/*", "application/json; charset=utf-8", id="script"),
    ],
)
def test_the_address_of_an_earlier_run_does_not_tell_the_secret(server, accept, content_type):
    status, body, response = get(server, "/of-an-earlier-run/", Accept=accept)
    assert status == 404
    assert response.getheader("Content-Type") == content_type
    assert server.secret.encode() not in body


def test_the_script_that_asks_for_the_address_is_for_this_machine_only(server):
    """The page with this script answers a path without the right secret."""
    assert status_of(server, "/ask.js") == 200
    assert status_of(server, "/ask.js", Host="evil.example") == 403


# Which requests are refused

# With any port, because the browser may use an SSH tunnel, which has a port of its own.
OWN_HOSTS = ["127.0.0.1:1", "localhost:8080", "localhost", "[::1]:99"]
OTHER_HOSTS = [
    pytest.param("", id="empty"),
    "evil.example",
    "evil.example:PORT",
    "evil.example@127.0.0.1",
    "127.0.0.1:x",
    "127.0.0.2:PORT",
    "127.0.0.1.evil.example",
    "localhost.evil.example:PORT",
]


@pytest.mark.parametrize("host", OWN_HOSTS)
def test_requests_to_a_name_of_this_machine_are_answered(server, host):
    status, _, _ = get(server, f"/{server.secret}/", Host=host)
    assert status == 200
    assert post_body(server, "next", BODY, Host=host, Origin=f"http://{host}") == 200


@pytest.mark.usefixtures("is_alive")
@pytest.mark.parametrize("host", OTHER_HOSTS)
def test_requests_to_the_name_of_another_host_are_refused(server, host):
    host = with_port(host, server)
    status, _, _ = get(server, f"/{server.secret}/", Host=host)
    assert status == 403
    assert post_body(server, "next", BODY, Host=host, Origin=f"http://{host}") == 403


@pytest.mark.usefixtures("is_alive")
@pytest.mark.parametrize("name", ["next", "quit"])
@pytest.mark.parametrize(
    "origin",
    [
        pytest.param(None, id="none"),
        "null",
        "http://evil.example",
        "http://127.0.0.1:1",
        "https://127.0.0.1:PORT",
    ],
)
def test_a_post_from_a_page_of_another_origin_is_refused(server, name, origin):
    if origin is not None:
        origin = with_port(origin, server)
    assert post_body(server, name, BODY, Origin=origin) == 403


@pytest.mark.usefixtures("is_alive")
@pytest.mark.parametrize("name", ["next", "quit"])
@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_post_from_a_page_of_another_site_is_refused(server, name, site):
    assert post_body(server, name, BODY, Sec_Fetch_Site=site) == 403


@pytest.mark.usefixtures("is_alive")
@pytest.mark.parametrize("name", ["next", "quit"])
@pytest.mark.parametrize(
    "content_type",
    [
        pytest.param(None, id="none"),
        "text/plain",
        "application/x-www-form-urlencoded",
        "multipart/form-data",
    ],
)
def test_a_content_type_that_a_form_can_send_is_refused(server, name, content_type):
    assert post_body(server, name, BODY, Content_Type=content_type) == 415


@pytest.mark.usefixtures("is_alive")
@pytest.mark.parametrize("method", ["GET", "POST"])
@pytest.mark.parametrize(
    "path", ["/", "/x/", "/SECRETx/", "/SECRET/../page.html", "/SECRET/x", "/SECRET/%2e%2e/"]
)
def test_a_path_without_the_secret_or_a_file_is_not_found(server, method, path):
    status, _, _ = request(server, method, path.replace("SECRET", server.secret), BODY)
    assert status == 404


@pytest.mark.usefixtures("is_alive")
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("PUT", ""),
        ("HEAD", ""),
        ("DELETE", "next"),
        ("OPTIONS", "next"),
        ("GET", "next"),
        ("DELETE", "quit"),
        ("OPTIONS", "quit"),
        ("GET", "quit"),
        ("POST", "page.js"),
    ],
)
def test_a_method_that_a_path_does_not_have_is_refused(server, method, path):
    status, _, _ = request(server, method, f"/{server.secret}/{path}", BODY)
    assert status == 405


@pytest.mark.usefixtures("is_alive")
@pytest.mark.parametrize("size", [MAX_BODY + 1, 1_000_000])
def test_a_large_body_is_refused(server, size):
    assert post_body(server, "next", b"x" * size) == 413


@pytest.mark.usefixtures("is_alive")
def test_a_length_of_thirty_digits_is_refused(server):
    assert post_body(server, "next", b"", Content_Length="9" * 30) == 413


@pytest.mark.usefixtures("is_alive")
@pytest.mark.parametrize("length", ["-1", "1x"])
def test_a_length_that_is_not_a_number_is_refused(server, length):
    assert post_body(server, "next", b"", Content_Length=length) == 411


@pytest.mark.usefixtures("is_alive")
def test_a_body_without_a_length_is_refused(server):
    assert post_body(server, "next", b"", Transfer_Encoding="chunked") == 411


@pytest.mark.usefixtures("is_alive")
@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"[]", id="list"),
        pytest.param(b"{", id="not-closed"),
        pytest.param(b'{"x": NaN}', id="nan"),
        pytest.param(b"[" * 50_000, id="deep"),
        pytest.param(b"\xff", id="not-utf-8"),
        pytest.param(b" " * MAX_BODY, id="blank"),
    ],
)
def test_a_body_that_is_not_a_json_object_is_refused(server, body):
    status, text, _ = request(server, "POST", f"/{server.secret}/next", body)
    assert status == 400
    assert json.loads(text)["error"]["message"] == "expected a JSON object"


@pytest.mark.usefixtures("is_alive")
def test_too_many_connections_are_refused(server, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(server_module, "MAX_CONNECTIONS", 0)
        status, body, _ = get(server, f"/{server.secret}/")
    assert status == 503
    assert b"Close other pages" in body  # it says what to do


def is_closed(connection):
    """Wait for the timeout of the connection. Returns whether the server closes it meanwhile."""
    try:
        return connection.recv(1) == b""  # no byte: the connection is closed
    except TimeoutError:
        return False
    except ConnectionError:
        return True


def send_if_open(connection, data):
    with suppress(ConnectionError):
        connection.sendall(data)


@pytest.mark.parametrize("text", [pytest.param("", id="nothing"), "GET /a"])
def test_a_client_that_never_completes_its_request_is_cut_off(server, monkeypatch, text):
    """The client sends the letters of the text again and again, one every 0.05 seconds."""
    monkeypatch.setattr(server_module, "REQUEST_SECONDS", 0.3)
    letters = cycle(text)
    begun = time.monotonic()
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=0.05) as connection:
        while not is_closed(connection):  # this waits for 0.05 seconds
            assert time.monotonic() - begun < 60
            if text:
                send_if_open(connection, next(letters).encode())


def test_a_client_that_does_not_send_the_body_of_its_request_gets_no_answer(server, monkeypatch):
    monkeypatch.setattr(server_module, "REQUEST_SECONDS", 0.3)
    with connect(server) as connection:
        connection.putrequest("POST", f"/{server.secret}/next")
        for name, value in page_headers(server).items():
            connection.putheader(name, value)
        connection.putheader("Content-Length", str(len(BODY)))
        connection.endheaders()
        with pytest.raises(ConnectionError):  # the connection is closed
            connection.getresponse()


# Turns


class HeldViews:
    """Two views that compute nothing: `lens` ends when `go_on` is set, `generate` never ends.

    A test can wait until a view has begun or ended; each wait is for one request more.
    """

    def __init__(self):
        self.begun = threading.Semaphore(0)
        self.ended = threading.Semaphore(0)
        self.go_on = threading.Event()

    def lens(self, query, turn):
        for _ in self.generate(query, turn):
            if self.go_on.is_set():
                break
        return {"done": True}

    def generate(self, query, turn):
        try:
            self.begun.release()
            while True:
                turn.pause()  # this ends the view if nobody waits for its answer
                self.go_on.wait(0.01)
                yield {"text": "x" * 1000}
        finally:
            self.ended.release()

    def wait_until_begun(self):
        assert self.begun.acquire(timeout=120)

    def wait_until_ended(self):
        assert self.ended.acquire(timeout=120)


@pytest.fixture
def held(monkeypatch):
    """HeldViews, whose `lens` and `generate` replace the views of these names."""
    held = HeldViews()
    monkeypatch.setitem(VIEWS, "lens", held.lens)
    monkeypatch.setitem(VIEWS, "generate", held.generate)
    return held


@pytest.fixture
def held_server(held, shown):
    """A server with the two views of HeldViews."""
    with serving(shown) as server:
        yield server
        held.go_on.set()  # so that `lens` ends with the test


@pytest.fixture
def pool():
    with ThreadPoolExecutor() as pool:
        yield pool


@pytest.mark.parametrize("name", ["lens", "generate"])
def test_other_requests_are_answered_while_one_computes(held_server, held, pool, name):
    long_request = pool.submit(post, held_server, name)
    held.wait_until_begun()
    status, _ = post(held_server, "next", FIELDS)
    assert status == 200
    assert not long_request.done()
    post(held_server, "quit")  # this ends the long request


@pytest.mark.parametrize("name", ["lens", "generate"])
def test_a_view_ends_when_its_page_closes_the_connection(held_server, held, name):
    """Before it closes the connection, a page that has asked for `generate` reads a line."""
    with connect(held_server) as connection:
        path = f"/{held_server.secret}/{name}"
        connection.request("POST", path, "{}", page_headers(held_server))
        held.wait_until_begun()
        if name == "generate":
            first_line = connection.getresponse().readline()
            assert first_line != b""
    held.wait_until_ended()


def test_a_view_goes_on_when_another_page_closes_its_connection(held_server, held, pool):
    with connect(held_server) as connection:
        path = f"/{held_server.secret}/generate"
        connection.request("POST", path, "{}", page_headers(held_server))
        held.wait_until_begun()
        request_of_second_page = pool.submit(post, held_server, "lens")
        held.wait_until_begun()
    # The connection of the first page is closed now, so its view, `generate`, ends.
    held.wait_until_ended()
    held.go_on.set()
    assert request_of_second_page.result(timeout=120) == (200, {"done": True})


def test_a_long_computation_says_how_far_it_is(server, monkeypatch):
    def reporting(query, turn):
        turn.report(0.25)
        turn.report(0.5)
        return {"done": True}

    monkeypatch.setattr(turns, "PROGRESS_SECONDS", 0)  # send each report
    monkeypatch.setitem(VIEWS, "symmetry", reporting)
    expected = [{"part": 0.25}, {"part": 0.5}, {"done": True}]
    assert post_lines(server, "symmetry") == (200, expected)


def test_quit_ends_a_view_that_computes(held_server, held, pool):
    long_request = pool.submit(post, held_server, "lens")
    held.wait_until_begun()
    assert post(held_server, "quit") == (200, {})
    status, answer = long_request.result(timeout=120)
    assert status == 503
    assert answer["error"]["message"] == "the server is stopping"


# The browser


@pytest.fixture
def opened(monkeypatch):
    """An event that is set when a browser opens the page. The variable BROWSER names none."""
    opened = threading.Event()

    def open_url(self, url, *_):
        assert url == "http://x/"
        opened.set()

    monkeypatch.setattr(webbrowser.GenericBrowser, "open", open_url)
    monkeypatch.setattr(webbrowser.BackgroundBrowser, "open", open_url)
    monkeypatch.setenv("BROWSER", "")
    return opened


def test_a_browser_with_windows_is_opened(opened, monkeypatch):
    """webbrowser's class of such browsers is BackgroundBrowser."""
    monkeypatch.setattr(webbrowser, "get", lambda: webbrowser.BackgroundBrowser("firefox"))
    assert open_browser("http://x/")
    assert opened.wait(120)


def test_a_browser_that_takes_the_terminal_is_not_opened(opened, monkeypatch):
    """webbrowser's class of such browsers is GenericBrowser."""
    monkeypatch.setattr(webbrowser, "get", lambda: webbrowser.GenericBrowser("w3m"))
    assert not open_browser("http://x/")
    assert not opened.is_set()


def test_a_browser_that_takes_the_terminal_is_opened_if_the_variable_browser_names_it(
    opened, monkeypatch
):
    monkeypatch.setenv("BROWSER", "w3m")
    monkeypatch.setattr(webbrowser, "get", lambda: webbrowser.GenericBrowser("w3m"))
    assert open_browser("http://x/")
    assert opened.wait(120)


def test_no_browser_is_opened_if_there_is_none(opened, monkeypatch):
    def get_none():
        raise webbrowser.Error("no browser")

    monkeypatch.setattr(webbrowser, "get", get_none)
    assert not open_browser("http://x/")
    assert not opened.is_set()
