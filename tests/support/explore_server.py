"""Calls of the views of `tiedgpt explore`, and requests to its server, in this process.

A view computes the answer to a request of the page. An answer has one line of JSON or several. The
server has a secret, with which each path begins.
"""

import http.client
import json
import threading
from contextlib import closing, contextmanager

from support.models import CONFIG, random_model
from tiedgpt import Tokenizer
from tiedgpt.explore.server import Server
from tiedgpt.explore.shown import ShownModels
from tiedgpt.explore.views import VIEWS
from tiedgpt.explore.views.query import Query
from tiedgpt.explore.views.registry import Turn, to_json


def shown_models(*models, corpus=None):
    """What the server shows: up to two models, named "a" and "b", and a corpus, named "a text".

    The tokens of the models are bytes. Without models, one small tied model is shown.
    """
    if not models:
        models = (random_model(CONFIG),)
    named_models = list(zip("ab", models, strict=False))
    named_corpus = None
    if corpus is not None:
        named_corpus = ("a text", corpus)
    return ShownModels(named_models, Tokenizer([]), named_corpus)


def view_answer(shown, name, fields, turn=None):
    """Call a view without a server. Returns its answer as the page would read it from JSON.

    The answer is a list if the view yields several. turn: where the view reports its progress.
    """
    answer = VIEWS[name](Query(shown, fields), turn or Turn())
    if not isinstance(answer, dict):
        answer = list(answer)
    return json.loads(to_json(answer))


@contextmanager
def serving(shown, port=0):
    """A server that answers, in a thread, until the end of the `with` block."""
    with Server(shown, port) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.stopping = True  # so that the views that still compute an answer stop
            server.shutdown()
            thread.join()


def connect(server):
    """A connection to the server, which the end of a `with` block closes."""
    return closing(http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=120))


def page_headers(server, **changes):
    """The headers that the page sends with its requests, with changes.

    Each of `changes` replaces or adds a header. The name Content_Type stands for Content-Type. The
    value None leaves the header out.
    """
    headers = {"Content-Type": "application/json", "Origin": server.origin}
    for name, value in changes.items():
        headers[name.replace("_", "-")] = value
    return {name: value for name, value in headers.items() if value is not None}


def request(server, method, path, body=None, **changes):
    """Send a request with page_headers(server, **changes). Returns (status, body, response)."""
    with connect(server) as connection:
        connection.request(method, path, body, page_headers(server, **changes))
        with connection.getresponse() as response:
            return response.status, response.read(), response


def get(server, path, **changes):
    """Send a GET request as a browser does for an address. Returns (status, body, response)."""
    return request(server, "GET", path, Content_Type=None, Origin=None, **changes)


def post_body(server, name, body, **changes):
    """Send a POST request with page_headers(server, **changes). Returns its status."""
    status, _, _ = request(server, "POST", f"/{server.secret}/{name}", body, **changes)
    return status


def post_lines(server, name, fields=None):
    """Send a POST request as the page does. Returns (status, the lines of the answer)."""
    body = json.dumps(fields or {}).encode()
    status, text, _ = request(server, "POST", f"/{server.secret}/{name}", body)
    return status, [json.loads(line) for line in text.splitlines()]


def post(server, name, fields=None):
    """Send a POST request as the page does. Returns (status, the last line of the answer)."""
    status, lines = post_lines(server, name, fields)
    return status, lines[-1]
