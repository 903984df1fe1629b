"""A server of `tiedgpt explore` in this process, for tests."""

import http.client
import json
import threading
from contextlib import closing, contextmanager

from support.models import CONFIG, random_model

from tiedgpt import Tokenizer
from tiedgpt.explore.server import Server
from tiedgpt.explore.views import Views


def views_of(*models, names="ab", text=None, kind=Views):
    """The views of random models whose tokens are bytes."""
    models = models or (random_model(CONFIG),)
    return kind([*zip(names, models, strict=False)], Tokenizer([]), text)


@contextmanager
def serving(views, port=0):
    """A server that answers until the block ends."""
    with Server(views, port) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.stopping = True
            server.shutdown()
            thread.join()


def connect(server):
    return closing(http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=30))


def headers(server, **changes):
    """The headers of the page's own requests; None leaves one out."""
    own = {"Content-Type": "application/json", "Origin": server.origin}
    names = {name.replace("_", "-"): value for name, value in changes.items()}
    return {name: value for name, value in {**own, **names}.items() if value is not None}


def request(server, method, path, body=None, **changes):
    """(status, body, response) of a request with the page's headers and `changes`."""
    with connect(server) as connection:
        connection.request(method, path, body, headers(server, **changes))
        with connection.getresponse() as response:
            return response.status, response.read(), response


def lines(server, view, fields=None):
    """(status, the lines of the answer) of a request as the page sends it."""
    status, text, _ = request(
        server, "POST", f"/{server.secret}/{view}", json.dumps(fields or {}).encode()
    )
    return status, [json.loads(line) for line in text.splitlines()]


def post(server, view, fields=None):
    """(status, answer) of a request as the page sends it."""
    status, found = lines(server, view, fields)
    return status, found[-1]
