"""The views of `tiedgpt explore`, and its server, in this process."""

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
    """Models whose tokens are bytes, named "a" and "b", and a corpus named "a text".

    Without models: one tied model.
    """
    if not models:
        models = (random_model(CONFIG),)
    named_models = list(zip("ab", models, strict=False))
    named_corpus = None
    if corpus is not None:
        named_corpus = ("a text", corpus)
    return ShownModels(named_models, Tokenizer([]), named_corpus)


def view_answer(shown, name, fields, turn=None):
    """The answer of a view without a server, as the page gets it.

    It is a list if the view gives several answers. The view reports to `turn`.
    """
    answer = VIEWS[name](Query(shown, fields), turn or Turn())
    if not isinstance(answer, dict):
        answer = list(answer)
    return json.loads(to_json(answer))


@contextmanager
def serving(shown, port=0):
    """A server that answers until the block ends."""
    with Server(shown, port) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.stopping = True  # so that what is computed for a page ends
            server.shutdown()
            thread.join()


def connect(server):
    """A connection to the server that is closed at the end of a `with` block."""
    return closing(http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30))


def page_headers(server, **changes):
    """The headers of the page's own requests, with `changes`.

    Content_Type is written Content-Type. None leaves a header out.
    """
    headers = {"Content-Type": "application/json", "Origin": server.origin}
    for name, value in changes.items():
        headers[name.replace("_", "-")] = value
    return {name: value for name, value in headers.items() if value is not None}


def request(server, method, path, body=None, **changes):
    """(status, body, response) of a request with the page's headers and `changes`."""
    with connect(server) as connection:
        connection.request(method, path, body, page_headers(server, **changes))
        with connection.getresponse() as response:
            return response.status, response.read(), response


def get(server, path, **changes):
    """(status, body, response) of a request as a browser sends it for an address."""
    return request(server, "GET", path, Content_Type=None, Origin=None, **changes)


def post_body(server, name, body, **changes):
    """The status of a POST below the secret, with the page's headers and `changes`."""
    status, _, _ = request(server, "POST", f"/{server.secret}/{name}", body, **changes)
    return status


def post_lines(server, name, fields=None):
    """(status, the lines of the answer) of a request as the page sends it."""
    body = json.dumps(fields or {}).encode()
    status, text, _ = request(server, "POST", f"/{server.secret}/{name}", body)
    return status, [json.loads(line) for line in text.splitlines()]


def post(server, name, fields=None):
    """(status, the last line of the answer) of a request as the page sends it."""
    status, lines = post_lines(server, name, fields)
    return status, lines[-1]
