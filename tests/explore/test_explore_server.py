"""The server of `tiedgpt explore`: what it answers and refuses, one request at a time.

Its address is http://127.0.0.1:PORT/SECRET/. Other programs and sites do not know the secret.
"""

import json
import socket
import threading
import time
from contextlib import ExitStack, suppress
from functools import partial

import pytest
from support.explore_server import ask, connect, post, request, serving, shown_models

from tiedgpt.errors import ArgumentError
from tiedgpt.explore import server as server_module
from tiedgpt.explore.panels import PANELS, QUESTIONS
from tiedgpt.explore.server import (
    ARTICLE,
    MAX_BODY,
    MAX_REFUSED_BODY,
    PAGE,
    Server,
    page_files,
)

TEXT = "To be, or not to be"
BODY = json.dumps({"text": TEXT}).encode()


@pytest.fixture(scope="module")
def shown():
    return shown_models()


@pytest.fixture(scope="module")
def server(shown):
    with serving(shown) as server:
        yield server


def test_a_question_is_answered_and_nothing_is_logged(server, shown, capsys):
    assert post(server.url, "lens", text=TEXT) == (200, [ask(shown, "lens", text=TEXT)])
    assert capsys.readouterr() == ("", "")


def test_only_programs_of_this_machine_reach_the_server(server):
    assert server.socket.getsockname() == ("127.0.0.1", server.server_port)


def test_nobody_can_guess_the_secret(shown, server):
    """It has 16 random bytes, in base64."""
    with Server(shown) as another:
        assert another.secret != server.secret
        assert len(another.secret) == 22


def test_several_answers_are_lines(server, shown):
    fields = {"text": TEXT, "n": 9, "seed": 5}
    status, lines = post(server.url, "generate", **fields)
    assert status == 200
    _, headers, _ = request(server.url, "POST", "generate", json.dumps(fields).encode())
    assert headers["Content-Type"] == "application/x-ndjson; charset=utf-8"
    assert COMMON_HEADERS.items() <= dict(headers).items()
    assert len(lines) == 9 + 1, "one for each token, and one that says why the text ends"
    assert lines == ask(shown, "generate", **fields)


COMMON_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
    "Referrer-Policy": "same-origin",
}


def test_each_file_of_the_laboratory_is_sent_with_a_policy(server):
    """The policy allows files of this server only, and no site may frame the page."""
    assert {f"{name}.js" for name in PANELS} < set(page_files())
    files = {file.name for file in PAGE.iterdir()}
    assert set(page_files()) == files - {"page.html"} | {"lab"}
    for path, file in page_files().items():
        status, headers, body = request(server.url, "GET", path)
        assert status == 200
        assert body == (PAGE / file).read_bytes()
        assert COMMON_HEADERS.items() <= dict(headers).items()
        rules = headers["Content-Security-Policy"].split("; ")
        assert set(rules) == {
            *("default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'"),
            *("img-src data:", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"),
        }
        media_type = {"js": "text/javascript", "css": "text/css", "html": "text/html"}
        assert headers["Content-Type"] == f"{media_type[file.split('.')[-1]]}; charset=utf-8"
        assert headers["Content-Length"] == str(len(body))
        assert "unsafe" not in headers["Content-Security-Policy"]


def test_the_article_is_sent_with_a_link_to_the_laboratory(server):
    """Its policy is in the page, but for what a page cannot say. test_article.py reads it."""
    status, headers, body = request(server.url, "GET", "")
    assert status == 200
    assert COMMON_HEADERS.items() <= dict(headers).items()
    assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert headers["Content-Type"] == "text/html; charset=utf-8"
    page = body.decode()
    assert '<a href="lab">' in page
    without = page.replace('<a href="lab">', '<a href="lab" hidden>')
    assert without == ARTICLE.read_text(encoding="utf-8")


# Any port, because the browser may use an SSH tunnel, which has a port of its own.
@pytest.mark.parametrize("host", ["127.0.0.1:1", "localhost:8080", "localhost", "[::1]:99"])
def test_a_name_of_this_machine_is_answered(server, host):
    assert request(server.url, "GET", "lab", Host=host)[0] == 200
    status, _, _ = request(server.url, "POST", "next", BODY, Host=host, Origin=f"http://{host}")
    assert status == 200


OTHER_HOSTS = (
    "",
    "evil.example",
    "evil.example:PORT",
    "evil.example@127.0.0.1",
    "127.0.0.1:x",
    "127.0.0.2:PORT",
    "127.0.0.1.evil.example",
    "localhost.evil.example:PORT",
)
OTHER_ORIGINS = (
    None,
    "null",
    "http://evil.example",
    "http://127.0.0.1:1",
    "https://127.0.0.1:PORT",
)
FORM_TYPES = (None, "text/plain", "application/x-www-form-urlencoded", "multipart/form-data")
OTHER_PATHS = ("/", "/x/", "/SECRET", "/SECRETx/", "/SECRET/../page.html", "/SECRET/x/y", "//")

HOST = (403, "expected the host 127.0.0.1 or localhost")
ORIGIN = (403, "expected a request of this server's own page")
KIND = (415, "expected application/json")
NOTHING = (
    404,
    "Nothing is here. Each run of tiedgpt explore has a new address: open the one that it has "
    "printed. Of an old link, what follows its last / goes to the end of the new address.",
)
METHOD = (501, None)  # Python's own page says why
TOO_LONG = (413, "expected at most 65,536 bytes")
LENGTH = (411, "expected a Content-Length")
OBJECT = (400, "expected a JSON object")

# method, name, body, changed headers -> status, reason
REFUSED = [
    *[("GET", "", None, {"Host": host}, HOST) for host in OTHER_HOSTS],
    *[("POST", "next", BODY, {"Host": h, "Origin": f"http://{h}"}, HOST) for h in OTHER_HOSTS],
    *[("POST", "next", BODY, {"Origin": origin}, ORIGIN) for origin in OTHER_ORIGINS],
    *[("POST", "next", BODY, {"Content_Type": kind}, KIND) for kind in FORM_TYPES],
    *[("GET", path, None, {}, NOTHING) for path in OTHER_PATHS],
    *[("POST", path, BODY, {}, NOTHING) for path in OTHER_PATHS],
    ("GET", "next", None, {}, NOTHING),
    ("GET", "quit", None, {}, NOTHING),
    ("POST", "page.js", BODY, {}, NOTHING),
    ("PUT", "quit", BODY, {}, METHOD),
    ("DELETE", "quit", None, {}, METHOD),
    ("OPTIONS", "quit", None, {}, METHOD),
    ("POST", "next", b"x" * (MAX_BODY + 1), {}, TOO_LONG),
    ("POST", "next", b"x" * 1_000_000, {}, TOO_LONG),
    ("POST", "next", b"", {"Content_Length": str(MAX_REFUSED_BODY + 1)}, TOO_LONG),
    ("POST", "next", b"", {"Content_Length": "9" * 5000}, TOO_LONG),
    ("POST", "next", b"", {"Content_Length": "-1"}, LENGTH),
    ("POST", "next", b"", {"Content_Length": "1x"}, LENGTH),
    ("POST", "next", b"", {"Transfer_Encoding": "chunked"}, LENGTH),
    ("POST", "next", b"", {}, OBJECT),
    ("POST", "next", b"[]", {}, OBJECT),
    ("POST", "next", b"{", {}, OBJECT),
    ("POST", "next", b"\xff", {}, OBJECT),
    ("POST", "next", b"[" * 50_000, {}, OBJECT),
    ("POST", "next", b'{"text": 5}', {}, (400, "text must be a string, got 5")),
    (
        "POST",
        "next",
        b'{"text": "a", "temperature": NaN}',
        {},
        (400, "temperature must be a number of at least 0, got nan"),
    ),
    (
        "POST",
        "generate",
        b'{"text": "a", "n": 201, "seed": 1}',
        {},
        (400, "n must be a whole number from 1 to 200, got 201"),
    ),
]


@pytest.mark.parametrize(("method", "name", "body", "headers", "expected"), REFUSED)
def test_refused(server, method, name, body, headers, expected):
    port = str(server.server_port)
    name = name.replace("SECRET", server.secret)
    headers = {key: value and value.replace("PORT", port) for key, value in headers.items()}
    status, _, answer = request(server.url, method, name, body, **headers)
    expected_status, reason = expected
    assert status == expected_status
    if reason is not None:
        shown = json.loads(answer)["error"] if method == "POST" else answer.decode()
        assert shown == reason
    assert server.secret.encode() not in answer
    assert post(server.url, "next", text=TEXT)[0] == 200, "the server still answers"


def test_a_refusal_says_why_as_text_or_to_the_page_as_json(server):
    _, headers, body = request(server.url, "GET", "nowhere")
    assert headers["Content-Type"] == "text/plain; charset=utf-8"  # so a browser runs nothing
    assert body.decode() == NOTHING[1]
    assert COMMON_HEADERS.items() <= dict(headers).items()
    assert headers["Content-Security-Policy"].startswith("default-src 'none'; ")
    assert headers["Server"].strip() == "tiedgpt", "which Python runs is nobody's business"
    status, headers, body = request(server.url, "POST", "next", b'{"text": 5}')
    assert status == 400
    assert headers["Content-Type"] == "application/json; charset=utf-8"
    assert json.loads(body) == {"error": "text must be a string, got 5"}


def test_a_request_with_two_hosts_is_refused(server):
    head = f"GET /{server.secret}/lab HTTP/1.1\r\nHost: localhost\r\nHost: evil.example\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=30) as client:
        client.sendall(head.encode())
        assert b" 403 " in client.recv(100)


def test_an_exception_is_reported_as_a_bug(server, monkeypatch):
    def broken(query):
        return {"x": 1 / 0}

    def broken_at_the_end(query):
        yield {"x": 1}
        yield {"x": float("nan")}  # JSON has none

    def refused_at_the_end(query):
        yield {"x": 1}
        raise ArgumentError("the reason")

    monkeypatch.setitem(QUESTIONS, "lens", broken)
    monkeypatch.setitem(QUESTIONS, "generate", broken_at_the_end)
    status, (answer,) = post(server.url, "lens")
    assert status == 500
    bug = "this is a bug in tiedgpt, or too little memory"
    assert answer == {"error": f"{bug}: ZeroDivisionError: division by zero"}
    _, (first, last) = post(server.url, "generate")
    assert first == {"x": 1}
    assert last["error"].startswith(f"{bug}: ValueError: Out of range float values")
    monkeypatch.setitem(QUESTIONS, "generate", refused_at_the_end)
    assert post(server.url, "generate") == (200, [{"x": 1}, {"error": "the reason"}])


def test_an_idle_connection_keeps_no_other_waiting(server):
    """A browser opens connections before it needs them."""
    address = ("127.0.0.1", server.server_port)
    with socket.create_connection(address), socket.create_connection(address):
        assert post(server.url, "next", text=TEXT)[0] == 200


def test_of_many_idle_connections_the_oldest_is_closed(server):
    address = ("127.0.0.1", server.server_port)
    with ExitStack() as stack:
        idle = []
        for _ in range(server_module.MAX_STRANGERS + 1):
            idle.append(stack.enter_context(socket.create_connection(address, timeout=30)))
        assert idle[0].recv(1) == b""
        assert post(server.url, "next", text=TEXT)[0] == 200


def test_as_many_idle_connections_as_are_allowed_stay_open(server):
    address = ("127.0.0.1", server.server_port)
    head = f"GET /{server.secret}/lab HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with ExitStack() as stack:
        idle = []
        for _ in range(server_module.MAX_STRANGERS):
            idle.append(stack.enter_context(socket.create_connection(address, timeout=30)))
        # When the last one is answered, all of them have been accepted.
        for connection in (idle[-1], idle[0]):
            connection.sendall(head.encode())
            assert b" 200 " in connection.recv(100)


def begin_slow_answer(server, monkeypatch):
    """Ask a question in a thread, whose answer is computed until the function returned is called.

    That function returns what the question got.
    """
    is_computing, may_end = threading.Event(), threading.Event()

    def slow(query):
        is_computing.set()
        return {"ended": may_end.wait(60)}

    monkeypatch.setitem(QUESTIONS, "lens", slow)
    answers = []
    thread = threading.Thread(target=lambda: answers.append(post(server.url, "lens")))
    thread.start()
    assert is_computing.wait(60)

    def end_answer():
        may_end.set()
        thread.join()
        (answer,) = answers
        return answer

    return end_answer


def test_a_client_that_has_sent_the_secret_is_not_closed_for_idle_connections(server, monkeypatch):
    end_answer = begin_slow_answer(server, monkeypatch)
    address = ("127.0.0.1", server.server_port)
    with ExitStack() as stack:
        idle = []
        for _ in range(server_module.MAX_STRANGERS + 1):
            idle.append(stack.enter_context(socket.create_connection(address, timeout=30)))
        assert idle[0].recv(1) == b""  # so the oldest stranger has been closed
        answer = end_answer()
    assert answer == (200, [{"ended": True}])


@pytest.mark.parametrize("sent", [b"G", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"])
def test_a_client_that_stops_sending_is_left(server, monkeypatch, sent):
    with monkeypatch.context() as patch:
        patch.setattr(server_module.Handler, "patience", 0.1)
        with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as client:
            client.sendall(sent)
            with suppress(ConnectionResetError):  # closed before what was sent is read
                assert client.recv(100) == b"", "the connection is closed"
    assert post(server.url, "next", text=TEXT)[0] == 200


@pytest.mark.parametrize(
    "sent", [b"P", b"POST / HTTP/1.1\r\n", b"POST / HTTP/1.1\r\nContent-Length: 9\r\n\r\n{"]
)
def test_a_client_that_is_still_sending_keeps_no_other_waiting(server, monkeypatch, sent):
    """It has more time than the other one waits for its answer: 30 seconds."""
    monkeypatch.setattr(server_module.Handler, "patience", 1000)
    with socket.create_connection(("127.0.0.1", server.server_port)) as client:
        client.sendall(sent)
        assert post(server.url, "next", text=TEXT)[0] == 200


@pytest.mark.parametrize("path", ["", "lens"], ids=["the article", "an answer"])
def test_a_client_that_reads_slowly_keeps_no_other_waiting(server, monkeypatch, path):
    """It reads one byte, and has more time for the rest than the other one waits: 30 seconds."""
    monkeypatch.setattr(server_module.Handler, "patience", 1000)
    monkeypatch.setitem(QUESTIONS, "lens", lambda query: {"text": "x" * 12_000_000})
    host = f"127.0.0.1:{server.server_port}"
    head = f"GET /{server.secret}/ HTTP/1.1\r\nHost: {host}\r\n\r\n"
    if path:
        head = (
            f"POST /{server.secret}/{path} HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n"
            "Content-Type: application/json\r\nContent-Length: 2\r\n\r\n{}"
        )
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)  # the answer does not fit in
        client.connect(("127.0.0.1", server.server_port))
        client.sendall(head.encode())
        assert client.recv(1) == b"H"
        assert post(server.url, "next", text=TEXT)[0] == 200


def test_a_page_is_sent_while_an_answer_is_computed(server, monkeypatch):
    end_answer = begin_slow_answer(server, monkeypatch)
    assert request(server.url, "GET", "lab")[0] == 200
    assert end_answer() == (200, [{"ended": True}])


def test_one_answer_is_computed_at_a_time(server, monkeypatch):
    """The models and their caches are not made for two threads."""
    running = []

    def alone(query):
        running.append(query)
        time.sleep(0.05)
        count = len(running)
        running.remove(query)
        return {"count": count}

    def steps(query):
        for _ in range(4):
            yield alone(query)

    monkeypatch.setitem(QUESTIONS, "lens", alone)
    monkeypatch.setitem(QUESTIONS, "generate", steps)
    answers = []
    threads = []
    for name in ("lens", "generate", "lens", "generate"):
        ask_it = partial(lambda name: answers.extend(post(server.url, name)[1]), name)
        threads.append(threading.Thread(target=ask_it))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # Two answers to "lens", and twice the four steps of "generate"
    assert answers == [{"count": 1}] * 10


def test_a_slow_client_that_keeps_sending_and_reading_is_answered(server, monkeypatch):
    """The request takes longer than the timeout, and the answer too."""
    monkeypatch.setattr(server_module.Handler, "patience", 1)
    monkeypatch.setitem(QUESTIONS, "lens", lambda query: {"text": "x" * 12_000_000})
    host = f"127.0.0.1:{server.server_port}"
    head = (
        f"POST /{server.secret}/lens HTTP/1.1\r\nHost: {host}\r\nOrigin: http://{host}\r\n"
        f"Content-Type: application/json\r\nContent-Length: {MAX_BODY}\r\n\r\n"
    )
    sent = head.encode() + BODY.ljust(MAX_BODY)
    with socket.create_connection(("127.0.0.1", server.server_port), timeout=60) as client:
        for start in range(0, len(sent), 3000):  # 22 pieces or more, which take more than 1 s
            client.sendall(sent[start : start + 3000])
            time.sleep(0.06)
        answer = bytearray()
        while piece := client.recv(2**16):
            answer += piece
            if len(answer) < 4_000_000:
                time.sleep(0.03)
    assert answer.endswith(b'xxx"}')
    assert len(answer) > 12_000_000


def test_a_text_ends_when_its_page_is_closed(server, monkeypatch):
    ended = threading.Event()

    def endless(query):
        try:
            while True:
                yield {"token": "x" * 1000}
        finally:
            ended.set()

    monkeypatch.setitem(QUESTIONS, "generate", endless)
    with connect(server.server_port) as connection:
        host = f"127.0.0.1:{server.server_port}"
        headers = {"Content-Type": "application/json", "Origin": f"http://{host}"}
        connection.request("POST", f"/{server.secret}/generate", b"{}", headers)
        assert connection.getresponse().readline() != b""
    assert ended.wait(60)
    assert post(server.url, "next", text=TEXT)[0] == 200


def test_a_text_ends_when_the_server_stops(shown, monkeypatch):
    with serving(shown) as server:

        def text_that_stops_the_server(query):
            yield {"n": 1}
            server.stopped = True
            yield {"n": 2}
            yield {"n": 3}

        monkeypatch.setitem(QUESTIONS, "generate", text_that_stops_the_server)
        assert post(server.url, "generate") == (200, [{"n": 1}, {"n": 2}])


@pytest.mark.parametrize("changed", [{"Origin": None}, {"Content_Type": "text/plain"}])
def test_another_page_cannot_stop_the_server(shown, changed):
    with serving(shown) as server:
        assert request(server.url, "POST", "quit", b"{}", **changed)[0] in (403, 415)
        assert not server.stopped


def test_quit_stops_the_server(shown):
    with serving(shown) as server:
        assert post(server.url, "quit") == (200, [{}])
        end = time.monotonic() + 60
        while not server.stopped:
            assert time.monotonic() < end
