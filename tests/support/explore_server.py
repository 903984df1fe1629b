"""Answers to questions of the page of `tiedgpt explore`, and requests to its server.

An answer is one object, or several from an iterator. The server has a secret, with which each path
begins.
"""

import http.client
import json
import socket
import threading
from contextlib import closing, contextmanager, suppress

from support.models import CONFIG, random_model
from tiedgpt import Tokenizer
from tiedgpt.explore.panels import QUESTIONS
from tiedgpt.explore.query import Query, ShownModels
from tiedgpt.explore.server import Server, to_json


def shown_models(*models, corpus=None):
    """What the server shows: up to two models, named "a" and "b", and a corpus, named "a text".

    The tokens of the models are bytes. Without models, one small tied model is shown.
    """
    named_models = list(zip("ab", models or [random_model(CONFIG)], strict=False))
    named_corpus = None if corpus is None else ("a text", corpus)
    return ShownModels(named_models, Tokenizer([]), named_corpus)


def ask(shown, name, **fields):
    """Ask a question without a server. Returns what the page would read from the JSON.

    It is a list if there are several answers.
    """
    answer = QUESTIONS[name](Query(shown, fields))
    if not isinstance(answer, dict):
        answer = list(answer)
    return json.loads(to_json(answer))


@contextmanager
def serving(shown, port=0):
    """A server that answers, in a thread, until the end of the `with` block."""
    with Server(shown, port) as server:

        def serve():
            server.serve()
            server.server_close()  # a request that comes after `quit` is refused, and does not wait
            # A browser opens connections before it needs them. As at the end of a process, they are
            # closed.
            for connection in list(server.strangers):
                with suppress(OSError):  # it has gone already
                    connection.shutdown(socket.SHUT_RDWR)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server
        finally:
            server.stopped = True
            thread.join()


def connect(port):
    """A connection to the server, which the end of a `with` block closes."""
    return closing(http.client.HTTPConnection("127.0.0.1", port, timeout=30))


def request(url, method, path, body=None, **changes):
    """Send a request as the page does. Returns (status, headers, body).

    `path` follows the secret in the address, unless it begins with "/". Each of `changes` replaces,
    adds or (None) leaves out a header; the name Content_Type stands for Content-Type.
    """
    origin, secret = url.rstrip("/").rsplit("/", 1)
    host = origin.removeprefix("http://")
    headers = {"Content-Type": "application/json", "Origin": origin, "Host": host}
    headers.update({name.replace("_", "-"): value for name, value in changes.items()})
    with connect(int(host.rpartition(":")[2])) as connection:
        whole_path = path if path.startswith("/") else f"/{secret}/{path}"
        # It adds no header of its own, so that `changes` can leave out each.
        connection.putrequest(method, whole_path, skip_host=True, skip_accept_encoding=True)
        if body is not None and not {"Content-Length", "Transfer-Encoding"} & headers.keys():
            headers["Content-Length"] = str(len(body))
        for name, value in headers.items():
            if value is not None:
                connection.putheader(name, value)
        connection.endheaders(body)
        with connection.getresponse() as response:
            return response.status, response.headers, response.read()


def post(url, name, **fields):
    """Ask the server a question, as the page does. Returns (status, the lines of the answer)."""
    status, _, body = request(url, "POST", name, json.dumps(fields).encode())
    return status, [json.loads(line) for line in body.splitlines()]
