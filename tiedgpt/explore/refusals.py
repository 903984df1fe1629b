"""Which requests the server refuses. Each function raises Refusal for one that it does not accept.

A page of another site, open in the same browser, can send requests to this server too. So Host must
be a name of this machine, because an attacker can give a name of theirs the address 127.0.0.1 (DNS
rebinding), and their page then counts as this server's own. Any port will do, for SSH tunnels. A
POST must have the Origin of this Host and the type application/json, which other sites cannot send.
"""

import re
from collections.abc import Container
from contextlib import suppress
from email.message import Message
from http import HTTPStatus
from typing import Any

from ..checkpoints.reading import STRICT_JSON

MAX_BODY = 64 * 1024  # bytes
LOOPBACK = re.compile(r"(127\.0\.0\.1|localhost|\[::1\])(:\d{1,5})?")


class Refusal(Exception):
    """A request that is not answered."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(status, message)
        self.status = status
        self.message = message


def loopback_host(headers: Message) -> str:
    """The Host of a request, which must be a name of this machine."""
    host = ", ".join(headers.get_all("Host", []))
    if not LOOPBACK.fullmatch(host):
        raise Refusal(HTTPStatus.FORBIDDEN, "expected the host 127.0.0.1 or localhost")
    return host


def refuse_other_pages(headers: Message) -> None:
    """Refuse a POST that a page of another site sent, or a form."""
    host = loopback_host(headers)
    is_same_site = headers.get("Sec-Fetch-Site", "same-origin") == "same-origin"
    is_same_origin = headers.get("Origin") == f"http://{host}"
    if not (is_same_site and is_same_origin):
        raise Refusal(HTTPStatus.FORBIDDEN, "expected a request of this server's own page")
    if headers.get_content_type() != "application/json":
        raise Refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "expected application/json")


def content_length(headers: Message) -> int:
    """The size of a POST's body, in bytes."""
    length = headers.get("Content-Length", "")
    if not (length.isascii() and length.isdigit()):
        raise Refusal(HTTPStatus.LENGTH_REQUIRED, "expected a Content-Length")
    # `int` refuses thousands of digits. The first twelve are enough for a size that is too large.
    return int(length[:12])


def refuse_large_body(size: int) -> None:
    """Refuse a body of more than MAX_BODY bytes."""
    if size > MAX_BODY:
        raise Refusal(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"expected at most {MAX_BODY:,} bytes")


def fields_of(body: bytes) -> dict[str, Any]:
    """The fields of a POST's body, a JSON object."""
    fields: Any = None
    with suppress(ValueError, RecursionError):
        fields = STRICT_JSON.decode(body.decode())
    if not isinstance(fields, dict):
        raise Refusal(HTTPStatus.BAD_REQUEST, "expected a JSON object")
    return fields


def refuse_unknown_path(
    method: str, path: str | None, of_method: Container[str], of_any_method: Container[str]
) -> None:
    """Refuse a path that is not one `of_method`; None is the page's, without the last "/"."""
    if path in of_method:
        return
    status = HTTPStatus.NOT_FOUND
    if path in of_any_method:
        status = HTTPStatus.METHOD_NOT_ALLOWED
    raise Refusal(status, f"{method} of {path or 'the page'} is not expected")
